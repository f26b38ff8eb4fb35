/* Attention of one row is divided in several ways: block by block or all blocks in turn, and heads
 * together or in parts. A row alone must have the bits of the same row among others, whatever the
 * number of threads. The kernels themselves are compared in tests/kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels.h"
#include "base/mem.h"

#define BLOCK KERNEL_ATTENTION_BLOCK
#define POSITIONS (11 * BLOCK + 17) /* more blocks than one or two threads keep */
#define ROWS 3
#define DIM 48
#define VALUE_DIM 32
#define HEADS 80

struct shape {
    const struct kv_format *format;
    unsigned n_heads, n_kv_heads, value_dim;
    uint32_t window;
    bool has_values, has_sinks;
};

struct fixture {
    char *keys, *values;
    float *q, *k, *v, *out, *sinks;
    uint64_t block_bytes;
};

static uint32_t seed = 1;

static float *random_floats(size_t n)
{
    float *x = mem_new(n, sizeof *x, "floats", NULL);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-30f;
    }
    return x;
}

static char *random_rows(const struct shape *s, enum kv_side side)
{
    const size_t n = (POSITIONS / BLOCK + 1) * (size_t)BLOCK * s->n_kv_heads;
    const size_t row_bytes = kv_row_bytes(s->format, DIM);
    char *rows = mem_new(n, row_bytes, "rows", NULL);
    assert_non_null(rows);
    for (size_t i = 0; i < n; i++) {
        float *x = random_floats(DIM);
        kv_store(s->format, side, x, DIM, rows + i * row_bytes);
        mem_free(x);
    }
    return rows;
}

static void setup(struct fixture *f, const struct shape *s)
{
    seed = 1;
    f->block_bytes = BLOCK * s->n_kv_heads * kv_row_bytes(s->format, DIM);
    f->keys = random_rows(s, KV_KEY);
    f->values = s->has_values ? random_rows(s, KV_VALUE) : NULL;
    f->q = random_floats(ROWS * HEADS * DIM);
    f->k = random_floats(ROWS * (size_t)s->n_kv_heads * DIM);
    f->v = random_floats(ROWS * (size_t)s->n_kv_heads * DIM);
    f->sinks = random_floats(HEADS);
    f->out = random_floats(ROWS * HEADS * DIM);
}

static void teardown(struct fixture *f)
{
    mem_free(f->keys);
    mem_free(f->values);
    mem_free(f->q);
    mem_free(f->k);
    mem_free(f->v);
    mem_free(f->sinks);
    mem_free(f->out);
}

/* Attends with ROWS rows, which end at POSITIONS. is_alone: one after the other. */
static void run(const struct shape *s, unsigned n_threads, bool is_alone, struct fixture *f)
{
    struct backend *be;
    struct fm_error err = {0};
    const struct backend_options options = {
        .n_threads = n_threads, .max_cols = DIM, .max_rows = ROWS, .max_ffn_rows = 1,
        .max_intermediate = DIM, .n_heads = s->n_heads, .head_dim = DIM, .n_context = 16 * BLOCK};
    setup(f, s);
    assert_int_equal(backend_open("cpu", &options, &be, &err), 0);
    struct backend_segment segments[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        segments[i] = (struct backend_segment){.first_row = i, .n_rows = is_alone ? 1 : ROWS,
                                               .position = POSITIONS - ROWS + i,
                                               .state = {f->keys, f->values}};
    be->ops->attention(be, &(struct backend_attention){
        .segments = segments, .n_segments = is_alone ? ROWS : 1, .kv_format = s->format,
        .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .head_dim = DIM,
        .value_dim = s->value_dim, .block_positions = BLOCK, .block_bytes = f->block_bytes,
        .q = f->q, .q_row_stride = (size_t)s->n_heads * DIM, .q_head_stride = DIM, .k = f->k,
        .v = s->has_values ? f->v : NULL, .scale = 0.25f, .window = s->window,
        .sinks = s->has_sinks ? f->sinks : NULL, .out = f->out});
    backend_close(be);
}

static void check(const struct shape *s)
{
    static const unsigned n_threads[] = {1, 2, 3, 16};
    const size_t bytes = ROWS * (size_t)s->n_heads * s->value_dim * sizeof(float);
    struct fixture expected, got;
    run(s, 1, false, &expected);
    for (unsigned i = 0; i < 8; i++) {
        run(s, n_threads[i / 2], i % 2 == 0, &got);
        assert_memory_equal(expected.out, got.out, bytes);
        teardown(&got);
    }
    teardown(&expected);
}

static void test_shared_rows(void **state)
{
    (void)state;
    check(&(struct shape){&kv_f16, 64, 1, VALUE_DIM, 0, false, false});
    check(&(struct shape){&kv_f32, 80, 1, VALUE_DIM, 0, false, false});
    check(&(struct shape){&kv_rot4, 34, 1, DIM, 0, false, false});
    check(&(struct shape){&kv_f16, 20, 1, DIM, 0, false, false});
}

static void test_grouped_heads(void **state)
{
    (void)state;
    check(&(struct shape){&kv_f16, 8, 4, DIM, 0, true, false});
    check(&(struct shape){&kv_f16, 64, 2, DIM, 0, true, true});
    check(&(struct shape){&kv_f16, 12, 2, DIM, 5 * BLOCK + 3, true, true});
    check(&(struct shape){&kv_rot8, 4, 4, DIM, BLOCK, true, false});
}

/* Blocks that wait to be merged take memory by the number of threads, not by the context. */
static void test_scratch(void **state)
{
    (void)state;
    struct backend_options options = {.n_threads = 2, .max_cols = DIM, .max_rows = ROWS,
                                      .max_ffn_rows = 1, .max_intermediate = DIM, .n_heads = 128,
                                      .head_dim = 576, .n_context = 32768};
    const uint64_t bytes = backend_scratch_bytes("cpu", &options);
    options.n_context = 1 << 20;
    assert_int_equal(backend_scratch_bytes("cpu", &options), bytes);
    assert_true(bytes < 8u << 20);
    options.n_context = BLOCK;
    assert_true(backend_scratch_bytes("cpu", &options) < bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared_rows),
                                       cmocka_unit_test(test_grouped_heads),
                                       cmocka_unit_test(test_scratch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
