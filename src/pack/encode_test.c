/* The encoded bytes do not depend on the size of the buffer: for a matrix that is copied, encoded
 * in one pass, or encoded part by part because it does not fit. */
#include "pack/encode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"

enum { N_ROWS = 304, N_COLS = 512, BASE = 8192 };

/* One encoding, on a crew of one thread. */
struct job {
    const struct quant *to;
    bool interleaves;
    uint64_t out_bytes;
    struct matrix_source from;
    bool is_direct, is_taken;
    char path[64];
    struct packed_sum sum;
    uint64_t bytes;
};

static enum crew_next next_work(void *ctx, struct crew_work *work)
{
    struct job *job = ctx;
    *work = (struct crew_work){0};
    bool was_taken = job->is_taken;
    job->is_taken = true;
    return was_taken ? CREW_END : CREW_WORK;
}

static int run_work(void *ctx, struct crew *crew, unsigned worker, struct crew_work *work,
                    struct fm_error *err)
{
    struct job *job = ctx;
    struct encoder encoder;
    struct encoder_needs needs = {.out_bytes = job->out_bytes, .max_cols = 1};
    struct writer s;
    uint64_t part_offset[QUANT_MAX_PARTS], end = 0;
    int fd = -1;
    (void)worker, (void)work;
    assert_true(record_place(job->to, N_ROWS, N_COLS, &end, part_offset));
    job->bytes = mem_round_up(end, MEM_PAGE);
    encoder_needs_add(&needs, job->from.quant, N_COLS);
    int rc = encoder_init(&encoder, &needs, err);
    if (rc == 0)
        rc = plat_create(job->path, &job->is_direct, &fd, err);
    const struct writer_files to = {.n = 1, .files = {{.fd = fd, .path = job->path}},
                                    .is_direct = job->is_direct};
    writer_begin(&s, &encoder, crew, &to, BASE);
    if (rc == 0)
        rc = encode_matrix(&s, &job->from,
                           &(struct matrix_target){job->to, job->interleaves, part_offset, BASE},
                           err);
    if (rc == 0)
        rc = writer_pad(&s, BASE + job->bytes, err);
    if (rc == 0)
        writer_sum(&s, &job->sum);
    if (rc == 0)
        rc = writer_end(&s, err);
    plat_close(fd);
    encoder_clear(&encoder);
    return rc;
}

static void work_done(void *ctx, const struct crew_work *work)
{
    (void)ctx, (void)work;
}

static void encode(struct job *job, char **data)
{
    struct fm_error err = {0};
    const struct crew_job work = {.ctx = job, .next = next_work, .run = run_work,
                                  .done = work_done};
    const struct crew_options options = {.n_threads = 1};
    size_t bytes;
    assert_int_equal(crew_run(&work, &options, &err), 0);
    assert_int_equal(plat_read_file(job->path, 1u << 24, data, &bytes, &err), 0);
    assert_int_equal(bytes, BASE + job->bytes);
    struct packed_sum sum;
    packed_sum_of(*data + BASE, job->bytes, &sum);
    assert_true(packed_sum_equal(&sum, &job->sum));
}

/* Makes a source of two extents in one file, the second before the first. */
static void make_source(struct source *source, struct source_file *file, struct extent extents[2])
{
    const uint64_t half = (uint64_t)N_ROWS * N_COLS; /* bytes: half of the bf16 values */
    static uint16_t values[N_ROWS * N_COLS];
    struct fm_error err = {0};
    bool is_direct = false;
    for (unsigned i = 0; i < N_ROWS * N_COLS; i++)
        values[i] = quant_f32_to_bf16((float)((i * 2654435761u) >> 8) / (1 << 24) - 0.5f);
    assert_int_equal(plat_create(file->path, &is_direct, &file->fd, &err), 0);
    assert_int_equal(plat_write_at(file->fd, file->path, (char *)values + half, half, 0, &err), 0);
    assert_int_equal(plat_write_at(file->fd, file->path, values, half, half, &err), 0);
    extents[0] = (struct extent){.offset = half, .bytes = half};
    extents[1] = (struct extent){.bytes = half, .slot_offset = half};
    *source = (struct source){.files = file, .n_files = 1};
}

static void test_buffers(void **state)
{
    (void)state;
    char folder[] = "/tmp/encode-test-XXXXXX", src[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(src, sizeof src, "%s/src", folder);
    struct source source;
    struct source_file file = {.path = src};
    struct extent extents[2];
    const uint64_t slot_offset[QUANT_MAX_PARTS] = {0};
    make_source(&source, &file, extents);
    static const char *const formats[] = {"bf16", "affine4-g64", "affine8-g32", "q8_0", "f32"};
    const uint64_t sizes[] = {16u << 20, 3 * MEM_PAGE, 9 * MEM_PAGE, 200 * MEM_PAGE};
    for (unsigned f = 0; f < 5; f++) {
        char *expected = NULL;
        for (unsigned i = 0; i < 8; i++) {
            struct job job = {.to = quant_find(formats[f]), .out_bytes = sizes[i / 2],
                              .is_direct = i % 2 == 1};
            char *data;
            job.from = (struct matrix_source){.source = &source, .quant = &quant_bf16,
                                              .n_rows = N_ROWS, .n_cols = N_COLS,
                                              .part_offset = slot_offset, .extents = extents,
                                              .n_extents = 2};
            (void)snprintf(job.path, sizeof job.path, "%s/out", folder);
            encode(&job, &data);
            if (expected == NULL)
                expected = data;
            else
                assert_memory_equal(data + BASE, expected + BASE, job.bytes);
            if (data != expected)
                mem_free(data);
            assert_int_equal(unlink(job.path), 0);
        }
        mem_free(expected);
    }
    plat_close(file.fd);
    assert_int_equal(unlink(src), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* ---- the order of rows ---- */

struct place {
    char folder[32], src[64], out[64];
};

/* Returns the matrix in another format and order, encoded with buffers of this size, from BASE
 * on. */
static char *encoded(const struct place *place, const struct matrix_source *from, const char *to,
                     bool interleaves, uint64_t out_bytes)
{
    struct job job = {.to = quant_find(to), .interleaves = interleaves, .out_bytes = out_bytes,
                      .from = *from};
    char *data;
    (void)snprintf(job.path, sizeof job.path, "%s", place->out);
    encode(&job, &data);
    assert_int_equal(unlink(job.path), 0);
    return data;
}

/* Makes a source in `format` from the bytes at BASE of `data`. */
static void put_source(const struct place *place, const char *format, bool is_interleaved,
                       const char *data, struct source *source, struct source_file *file,
                       struct extent *extent, uint64_t part_offset[], struct matrix_source *from)
{
    const struct quant *quant = quant_find(format);
    struct fm_error err = {0};
    bool is_direct = false;
    uint64_t end = 0;
    assert_true(record_place(quant, N_ROWS, N_COLS, &end, part_offset));
    *file = (struct source_file){.path = (char *)(uintptr_t)place->src};
    assert_int_equal(plat_create(file->path, &is_direct, &file->fd, &err), 0);
    assert_int_equal(plat_write_at(file->fd, file->path, data + BASE, end, 0, &err), 0);
    *extent = (struct extent){.bytes = end};
    *source = (struct source){.files = file, .n_files = 1};
    *from = (struct matrix_source){.source = source, .quant = quant, .n_rows = N_ROWS,
                                   .n_cols = N_COLS, .part_offset = part_offset,
                                   .extents = extent, .n_extents = 1,
                                   .is_interleaved = is_interleaved};
}

static void drop_source(const struct place *place, struct source_file *file)
{
    plat_close(file->fd);
    assert_int_equal(unlink(place->src), 0);
}

/* Interleaves the rows at BASE. */
static void turn(const char *format, char *data)
{
    struct record_matrix matrix = {.quant = quant_find(format), .n_rows = N_ROWS,
                                   .n_cols = N_COLS};
    uint64_t end = 0;
    assert_true(record_place(matrix.quant, N_ROWS, N_COLS, &end, matrix.part_offset));
    record_interleave(&matrix, data + BASE);
}

static void check_same(const char *format, const char *a, const char *b)
{
    uint64_t end = 0, part_offset[QUANT_MAX_PARTS];
    assert_true(record_place(quant_find(format), N_ROWS, N_COLS, &end, part_offset));
    assert_memory_equal(a + BASE, b + BASE, end);
}

/* From rows or blocks, to rows or blocks, in one piece or in many, the numbers are the same. */
static void test_order_of_rows(void **state)
{
    (void)state;
    struct place place = {.folder = "/tmp/encode-test-XXXXXX"};
    assert_non_null(mkdtemp(place.folder));
    (void)snprintf(place.src, sizeof place.src, "%s/src", place.folder);
    (void)snprintf(place.out, sizeof place.out, "%s/out", place.folder);
    struct source source;
    struct source_file file = {.path = place.src};
    struct extent extents[2];
    uint64_t part_offset[QUANT_MAX_PARTS] = {0};
    make_source(&source, &file, extents);
    struct matrix_source from = {.source = &source, .quant = &quant_bf16, .n_rows = N_ROWS,
                                 .n_cols = N_COLS, .part_offset = part_offset, .extents = extents,
                                 .n_extents = 2};
    char *rows8 = encoded(&place, &from, "affine8-g32", false, 16u << 20);
    char *blocks8 = encoded(&place, &from, "affine8-g32", true, 16u << 20);
    char *small8 = encoded(&place, &from, "affine8-g32", true, 3 * MEM_PAGE);
    drop_source(&place, &file);
    put_source(&place, "affine8-g32", false, rows8, &source, &file, extents, part_offset, &from);
    char *rows4 = encoded(&place, &from, "affine4-g64", false, 16u << 20);
    char *copied8 = encoded(&place, &from, "affine8-g32", true, 3 * MEM_PAGE);
    drop_source(&place, &file);
    put_source(&place, "affine8-g32", true, blocks8, &source, &file, extents, part_offset, &from);
    char *again4 = encoded(&place, &from, "affine4-g64", false, 3 * MEM_PAGE);
    char *blocks4 = encoded(&place, &from, "affine4-g64", true, 9 * MEM_PAGE);
    char *again8 = encoded(&place, &from, "affine8-g32", true, 9 * MEM_PAGE);
    drop_source(&place, &file);
    turn("affine8-g32", rows8);
    check_same("affine8-g32", blocks8, rows8);
    check_same("affine8-g32", small8, rows8);
    check_same("affine8-g32", copied8, rows8);
    check_same("affine8-g32", again8, rows8);
    check_same("affine4-g64", again4, rows4);
    turn("affine4-g64", rows4);
    check_same("affine4-g64", blocks4, rows4);
    char *all[] = {rows8, blocks8, small8, rows4, copied8, again4, blocks4, again8};
    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        mem_free(all[i]);
    assert_int_equal(rmdir(place.folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_buffers),
                                       cmocka_unit_test(test_order_of_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
