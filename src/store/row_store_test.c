/* Rows of a table in shards: which bytes are read, what a batch forgets, and what fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/row_store.h"

#define N_COLS 3
#define SHARD_ROWS 5
#define N_SHARDS 4
#define N_ROWS (SHARD_ROWS * N_SHARDS)
#define GAP 16 /* bytes before each shard */
#define SHARD_BYTES (SHARD_ROWS * N_COLS * sizeof(float))
#define N_SLOTS 6

/* Row r of the table is r, r + 1/4 and r + 1/2. The shards lie in reverse order. */
struct fixture {
    struct model model;
    struct source source;
    struct source_file file;
    struct row_shard shards[N_SHARDS];
    char path[64];
};

static void write_table(struct fixture *f)
{
    static const char gap[GAP];
    for (unsigned s = N_SHARDS; s-- > 0;) {
        assert_int_equal(write(f->file.fd, gap, GAP), GAP);
        for (unsigned i = 0; i < SHARD_ROWS * N_COLS; i++) {
            const unsigned row = s * SHARD_ROWS + i / N_COLS;
            const float x = (float)row + 0.25f * (float)(i % N_COLS);
            assert_int_equal(write(f->file.fd, &x, sizeof x), sizeof x);
        }
        f->shards[s] = (struct row_shard){
            0, (N_SHARDS - 1 - s) * (GAP + SHARD_BYTES) + GAP, s * (uint64_t)SHARD_ROWS};
    }
}

static void open_fixture(struct fixture *f)
{
    *f = (struct fixture){.path = "/tmp/flashmoe-rows-XXXXXX"};
    f->file = (struct source_file){.path = f->path, .fd = mkstemp(f->path)};
    assert_true(f->file.fd >= 0);
    write_table(f);
    assert_true(plat_open_file_info(f->file.fd, &f->file.opened));
    f->source = (struct source){.files = &f->file, .n_files = 1};
    f->model.source = &f->source;
    f->model.n_row_tables = 1;
    f->model.row_tables[0] = (struct row_table){
        .layer = 7, .n_per_token = 2, .n_recent = 2, .n_cols = N_COLS, .n_rows = N_ROWS,
        .shard_rows = SHARD_ROWS, .row_bytes = N_COLS * sizeof(float), .quant = &quant_f32,
        .scale = 1, .shards = f->shards, .n_shards = N_SHARDS};
}

static void close_fixture(struct fixture *f)
{
    close(f->file.fd);
    unlink(f->path);
}

static void check_slot(struct row_store *store, uint32_t slot, const uint64_t rows[2])
{
    float found[2 * N_COLS];
    row_store_decode(store, 0, slot, found);
    for (unsigned i = 0; i < 2 * N_COLS; i++)
        assert_true(found[i] == (float)rows[i / N_COLS] + 0.25f * (float)(i % N_COLS));
}

static void test_rows(void **state)
{
    struct fixture f;
    struct row_store *store;
    struct fm_error err;
    (void)state;
    open_fixture(&f);
    assert_true(row_store_bytes(&f.model, N_SLOTS) > 0);
    assert_int_equal(row_store_open(&f.model, N_SLOTS, true, &store, &err), 0);
    for (unsigned batch = 0; batch < 50; batch++) {
        uint64_t rows[N_SLOTS][2];
        row_store_begin(store);
        for (uint32_t s = 0; s < N_SLOTS; s++) {
            rows[s][0] = (batch * 7 + s * 3) % N_ROWS;
            rows[s][1] = N_ROWS - 1 - (batch + s) % N_ROWS;
            row_store_ask(store, 0, s, rows[s]);
        }
        assert_int_equal(row_store_wait(store, 0, &err), 0);
        for (uint32_t s = 0; s < N_SLOTS; s++)
            check_slot(store, s, rows[s]);
    }
    row_store_close(store);
    close_fixture(&f);
}

/* The file ends within the last shard, which is the first one of the table. */
static void test_a_row_that_cannot_be_read(void **state)
{
    static const uint64_t good[] = {19, 6}, bad[] = {19, 4};
    struct fixture f;
    struct row_store *store;
    struct fm_error err = {0};
    (void)state;
    open_fixture(&f);
    assert_int_equal(ftruncate(f.file.fd, N_SHARDS * (GAP + SHARD_BYTES) - 4), 0);
    assert_int_equal(row_store_open(&f.model, N_SLOTS, false, &store, &err), 0);
    row_store_begin(store);
    row_store_ask(store, 0, 0, bad);
    row_store_ask(store, 0, 1, good); /* another sequence's, which needs no bad row */
    assert_int_equal(row_store_wait(store, 0, &err), 0);
    assert_int_equal(row_store_check(store, 0, 1, &err), 0);
    check_slot(store, 1, good);
    assert_int_not_equal(row_store_check(store, 0, 0, &err), 0);
    assert_non_null(strstr(err.text, "row 4 of the n-gram table of layer 7"));
    assert_non_null(strstr(err.text, f.path));
    /* The next batch begins anew. */
    row_store_begin(store);
    row_store_ask(store, 0, 0, good);
    assert_int_equal(row_store_wait(store, 0, &err), 0);
    assert_int_equal(row_store_check(store, 0, 0, &err), 0);
    check_slot(store, 0, good);
    row_store_close(store);
    close_fixture(&f);
}

static void test_a_file_that_changes(void **state)
{
    static const uint64_t rows[] = {1, 2};
    struct fixture f;
    struct row_store *store;
    struct fm_error err = {0};
    (void)state;
    open_fixture(&f);
    assert_int_equal(row_store_open(&f.model, N_SLOTS, true, &store, &err), 0);
    assert_int_equal(ftruncate(f.file.fd, 4096), 0);
    row_store_begin(store);
    row_store_ask(store, 0, 0, rows);
    assert_int_not_equal(row_store_wait(store, 0, &err), 0);
    assert_non_null(strstr(err.text, f.path));
    row_store_close(store);
    close_fixture(&f);
}

static void test_no_tables(void **state)
{
    struct model model = {0};
    struct row_store *store;
    (void)state;
    assert_int_equal(row_store_bytes(&model, N_SLOTS), 0);
    assert_int_equal(row_store_open(&model, N_SLOTS, true, &store, NULL), 0);
    assert_null(store);
    row_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows), cmocka_unit_test(test_a_row_that_cannot_be_read),
        cmocka_unit_test(test_a_file_that_changes), cmocka_unit_test(test_no_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
