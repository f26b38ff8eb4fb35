/* Products with many rows are divided into blocks of rows and pieces of weights. A row among many
 * must have the bits of the row alone, whatever the number of threads. The kernels themselves are
 * compared in tests/kernels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels.h"
#include "base/mem.h"

#define COLS 4096  /* wide: a block has at most 64 rows */
#define ROWS 203   /* four blocks; the last group of sixteen is not full */
#define WIDTH 2048 /* of the feed-forward blocks: two blocks of rows for their second product */
#define FIRST 48   /* rows of the two products' weights */
#define SECOND 80

static uint32_t seed = 1;

static float *random_floats(size_t n)
{
    float *x = mem_new(n, sizeof *x, "floats", NULL);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
    }
    return x;
}

/* A weight with parts of its own. */
static struct weight random_weight(const char *format, uint32_t n_rows, uint32_t n_cols)
{
    struct weight w = {.quant = quant_find(format), .n_rows = n_rows, .n_cols = n_cols};
    assert_non_null(w.quant);
    for (unsigned i = 0; i < w.quant->n_parts; i++) {
        w.parts[i] = mem_new_aligned(64, n_rows * quant_part_row_bytes(w.quant, i, n_cols),
                                     "weight", NULL);
        assert_non_null(w.parts[i]);
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const void *parts[QUANT_MAX_PARTS];
        void *to[QUANT_MAX_PARTS];
        float *x = random_floats(n_cols);
        weight_row(&w, r, parts);
        for (unsigned i = 0; i < w.quant->n_parts; i++)
            to[i] = (void *)(uintptr_t)parts[i];
        w.quant->encode_row(w.quant, x, to, n_cols);
        mem_free(x);
    }
    return w;
}

/* In the layout that the backend wants. */
static void prepare(const struct backend *be, struct weight *w)
{
    if (be->preparer == NULL || !be->preparer->changes(w))
        return;
    be->preparer->prepare(w, 0, 1);
    w->is_interleaved = true;
}

static void free_weight(struct weight *w)
{
    for (unsigned i = 0; i < w->quant->n_parts; i++)
        mem_free((void *)(uintptr_t)w->parts[i]);
}

struct fixture {
    struct weight first, second, gate, up, down;
    float *x, *bias, *gate_bias, *down_bias;
    uint32_t rows[ROWS], places[ROWS];
};

struct results { /* each run writes all of it */
    float *first, *second, *shared, *picked;
};

/* The second of two products has another format. */
static void setup(struct fixture *f, const char *format, const char *other)
{
    seed = 1;
    *f = (struct fixture){
        .first = random_weight(format, FIRST, COLS), .second = random_weight(other, SECOND, COLS),
        .gate = random_weight(format, WIDTH, COLS), .up = random_weight(other, WIDTH, COLS),
        .down = random_weight(format, FIRST, WIDTH), .x = random_floats((size_t)ROWS * COLS),
        .bias = random_floats(SECOND), .gate_bias = random_floats(WIDTH),
        .down_bias = random_floats(FIRST)};
    for (uint32_t i = 0; i < ROWS; i++) {
        f->rows[i] = i * 8 % ROWS;
        f->places[i] = i * 5 % ROWS;
    }
}

static void teardown(struct fixture *f)
{
    struct weight *const weights[] = {&f->first, &f->second, &f->gate, &f->up, &f->down};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        free_weight(weights[i]);
    mem_free(f->x);
    mem_free(f->bias);
    mem_free(f->gate_bias);
    mem_free(f->down_bias);
}

/* Two products, a feed-forward block with all rows, and one with rows in an order of its own. */
static void compute(struct backend *be, const struct fixture *f, size_t first, size_t n,
                    const struct results *to)
{
    const struct backend_product products[] = {
        {&f->first, to->first + first * FIRST, NULL},
        {&f->second, to->second + first * SECOND, f->bias}};
    struct backend_ffn blocks[2] = {
        {.gate = f->gate, .up = f->up, .down = f->down, .gate_bias = f->gate_bias,
         .down_bias = f->down_bias, .activation = {.kind = ACTIVATION_SILU}, .n = n,
         .out = to->shared + first * FIRST}};
    blocks[1] = blocks[0];
    blocks[1].rows = n == 1 ? &(uint32_t){0} : f->rows;
    blocks[1].places = n == 1 ? &f->places[first] : f->places;
    blocks[1].out = to->picked;
    be->ops->input(be, f->x + first * COLS, n, COLS);
    be->ops->matmul(be, products, 2);
    if (n > 1) {
        be->ops->ffn(be, blocks, 2);
        return;
    }
    be->ops->ffn(be, blocks, 1);
    /* row `first` is input rows[first] of the others */
    be->ops->input(be, f->x + (size_t)f->rows[first] * COLS, n, COLS);
    be->ops->ffn(be, blocks + 1, 1);
}

/* Returns false if this processor does not have the level. */
static bool run(const char *format, const char *other, const char *level, unsigned n_threads,
                bool is_alone, const struct results *to)
{
    struct fixture f;
    struct backend *be;
    struct fm_error err = {0};
    const struct backend_options options = {
        .n_threads = n_threads, .cpu = level, .max_cols = COLS, .max_rows = ROWS,
        .max_ffn_rows = 2 * ROWS, .max_intermediate = WIDTH, .n_heads = 1, .head_dim = 16,
        .n_context = 256};
    if (backend_open("cpu", &options, &be, &err) != 0) {
        assert_non_null(level); /* there always is a best one */
        return false;
    }
    setup(&f, format, other);
    struct weight *const weights[] = {&f.first, &f.second, &f.gate, &f.up, &f.down};
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        prepare(be, weights[i]);
    for (size_t i = 0; i < (is_alone ? ROWS : 1); i++)
        compute(be, &f, i, is_alone ? 1 : ROWS, to);
    backend_close(be);
    teardown(&f);
    return true;
}

static struct results new_results(void)
{
    return (struct results){random_floats(ROWS * FIRST), random_floats(ROWS * SECOND),
                            random_floats(ROWS * FIRST), random_floats(ROWS * FIRST)};
}

static void free_results(struct results *r)
{
    mem_free(r->first);
    mem_free(r->second);
    mem_free(r->shared);
    mem_free(r->picked);
}

static void compare(const struct results *expected, const struct results *got)
{
    assert_memory_equal(expected->first, got->first, ROWS * FIRST * sizeof(float));
    assert_memory_equal(expected->second, got->second, ROWS * SECOND * sizeof(float));
    assert_memory_equal(expected->shared, got->shared, ROWS * FIRST * sizeof(float));
    assert_memory_equal(expected->picked, got->picked, ROWS * FIRST * sizeof(float));
}

static void check(const char *format, const char *other)
{
    static const char *const levels[] = {"avx2", "avx512", "dotprod"};
    static const unsigned n_threads[] = {1, 2, 3, 16};
    struct results expected = new_results(), got = new_results();
    assert_true(run(format, other, NULL, 1, true, &expected));
    for (size_t i = 0; i < sizeof n_threads / sizeof *n_threads; i++) {
        assert_true(run(format, other, NULL, n_threads[i], false, &got));
        compare(&expected, &got);
    }
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (run(format, other, levels[i], 3, false, &got))
            compare(&expected, &got);
    free_results(&got);
    free_results(&expected);
}

static void test_codes(void **state)
{
    (void)state;
    check("affine4-g64", "affine8-g64");
    check("affine8-g32", "affine4-g64");
    check("q8_0", "q8_0");
}

static void test_floats(void **state)
{
    (void)state;
    check("bf16", "affine4-g64");
}

#define FEW 4     /* rows of the input */
#define UNEVEN 40 /* rows of a weight that are not whole groups of sixteen: never interleaved */

/* Multiplies a few rows with weights of two layouts, both in one list or each alone. Returns false
 * if this processor does not have the level. */
static bool run_layouts(const char *level, bool is_list, float *even, float *uneven)
{
    struct backend *be;
    struct fm_error err = {0};
    const struct backend_options options = {
        .n_threads = 1, .cpu = level, .max_cols = COLS, .max_rows = FEW, .max_ffn_rows = FEW,
        .max_intermediate = WIDTH, .n_heads = 1, .head_dim = 16, .n_context = 256};
    if (backend_open("cpu", &options, &be, &err) != 0)
        return false;
    seed = 1;
    struct weight first = random_weight("affine4-g64", FIRST, COLS);
    struct weight second = random_weight("affine4-g64", UNEVEN, COLS);
    float *x = random_floats(FEW * COLS);
    prepare(be, &first);
    prepare(be, &second);
    assert_false(second.is_interleaved);
    const struct backend_product products[] = {{&first, even, NULL}, {&second, uneven, NULL}};
    be->ops->input(be, x, FEW, COLS);
    be->ops->matmul(be, products, is_list ? 2 : 1);
    if (!is_list)
        be->ops->matmul(be, products + 1, 1);
    backend_close(be);
    mem_free(x);
    free_weight(&first);
    free_weight(&second);
    return true;
}

/* What a kernel keeps of the input for one layout is not right for the other. */
static void test_layouts(void **state)
{
    static const char *const levels[] = {"avx2", "avx512", "amx", "dotprod", "i8mm"};
    float *even = random_floats(2 * FEW * FIRST), *uneven = random_floats(2 * FEW * UNEVEN);
    (void)state;
    assert_true(run_layouts("reference", false, even, uneven));
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (!run_layouts(levels[i], true, even + FEW * FIRST, uneven + FEW * UNEVEN))
            continue;
        assert_memory_equal(even, even + FEW * FIRST, FEW * FIRST * sizeof(float));
        assert_memory_equal(uneven, uneven + FEW * UNEVEN, FEW * UNEVEN * sizeof(float));
    }
    mem_free(even);
    mem_free(uneven);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes), cmocka_unit_test(test_floats),
                                       cmocka_unit_test(test_layouts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
