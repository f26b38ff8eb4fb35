/* Products of a token over the emulator, compared with the processor's: one input for each weight,
 * experts that the GPU finds, inputs that it activates, heads, many inputs of floats and halves.
 * checkkernel has few weights of these shapes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/levels.h"
#include "backend/cuda/device_emulated.h"
#include "backend/cuda/formats.h"
#include "backend/not_finite.h"
#include "backend/peak.h"
#include "base/mem.h"
#include "quant/interleave.h"

#define MAX_INPUTS 70
#define MAX_COLS 6144
#define MAX_ROWS 176
#define MAX_EXPERTS 3
#define PART_BYTES ((size_t)MAX_ROWS * MAX_COLS * 4 + 256)

static uint32_t rng = 1;

static uint32_t any(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(rng >> 8) * n) >> 24);
}

static float any_float(void)
{
    return any(40) == 0 ? 0 : ((float)any(1u << 20) / (1u << 19) - 1.0f) * (any(3) == 0 ? 40 : 1);
}

/* ---- a product ------------------------------------------------------------------------------- */

struct product {
    struct weight w[MAX_EXPERTS]; /* parts of all have the same distance */
    uint64_t bases[MAX_EXPERTS];
    uint32_t ids[MAX_INPUTS], pick[MAX_INPUTS], place[MAX_INPUTS];
    float x[MAX_INPUTS * MAX_COLS], up[MAX_INPUTS * MAX_COLS];
    _Alignas(64) int8_t q[MAX_INPUTS * MAX_COLS];
    float scale[MAX_INPUTS * MAX_COLS / 32], offset[MAX_INPUTS * MAX_COLS / 32];
    int32_t sum[MAX_INPUTS * MAX_COLS / 32];
    float bias[MAX_EXPERTS * MAX_ROWS];
    float y[MAX_INPUTS * MAX_ROWS], expected[MAX_INPUTS * MAX_ROWS];
    _Alignas(64) float scratch[KERNEL_MATMUL_SCRATCH(MAX_COLS, 1)];
    uint32_t n;
    bool is_found, is_activated, has_bias;
    bool is_broken; /* a value of its result is NaN */
    struct activation activation;
    uint8_t *parts; /* [MAX_EXPERTS, PART_BYTES] */
};

/* Any codes, and scales of moderate size, of a format that can only be read. */
static void fill_codes(const struct weight *w, void *const parts[])
{
    const struct quant *quant = w->quant;
    uint8_t *codes = parts[0], *scales = parts[1];
    for (uint64_t i = 0; i < quant_part_bytes(quant, 0, w->n_rows, w->n_cols); i++)
        codes[i] = (uint8_t)any(256);
    for (uint64_t i = 0; i < quant_part_bytes(quant, 1, w->n_rows, w->n_cols); i += 2) {
        const float x = any_float();
        void *to = scales + i;
        quant->scale->encode_row(quant->scale, &x, &to, 1);
    }
}

static void fill_weight(const struct weight *w, void *const parts[])
{
    const struct quant *quant = w->quant;
    if (quant->encode_row == NULL) {
        fill_codes(w, parts);
        return;
    }
    float row[MAX_COLS];
    for (uint32_t r = 0; r < w->n_rows; r++) {
        void *to[QUANT_MAX_PARTS] = {0};
        for (unsigned p = 0; p < quant->n_parts; p++)
            to[p] = (char *)parts[p] + r * quant_part_row_bytes(quant, p, w->n_cols);
        for (uint32_t i = 0; i < w->n_cols; i++)
            row[i] = any_float();
        quant->encode_row(quant, row, to, w->n_cols);
    }
}

static void make_weights(struct product *p, const char *format, uint32_t n_rows, uint32_t n_cols)
{
    const struct quant *quant = quant_find(format);
    for (unsigned e = 0; e < MAX_EXPERTS; e++) {
        void *parts[QUANT_MAX_PARTS] = {0};
        size_t at = e * PART_BYTES;
        p->w[e] = (struct weight){.quant = quant, .n_rows = n_rows, .n_cols = n_cols};
        for (unsigned i = 0; i < quant->n_parts; i++) {
            parts[i] = p->parts + at;
            p->w[e].parts[i] = parts[i];
            at += mem_round_up(quant_part_bytes(quant, i, n_rows, n_cols), 64);
        }
        fill_weight(&p->w[e], parts);
        p->w[e].is_interleaved = interleave_suits(quant, n_rows, n_cols);
        if (p->w[e].is_interleaved)
            interleave_blocks(quant, n_cols, parts, 0, n_rows / INTERLEAVE_ROWS);
        p->bases[e] = e * PART_BYTES;
    }
}

static void make_inputs(struct product *p, const struct kernels *k)
{
    const uint32_t n_cols = p->w[0].n_cols, group = p->w[0].quant->group;
    for (uint32_t i = 0; i < p->n * n_cols; i++) {
        p->x[i] = any_float();
        p->up[i] = any_float();
    }
    for (uint32_t i = 0; i < MAX_EXPERTS * p->w[0].n_rows; i++)
        p->bias[i] = any_float();
    for (uint32_t t = 0; t < p->n; t++) {
        p->ids[t] = any(MAX_EXPERTS);
        p->pick[t] = any(p->n);
        p->place[t] = p->n - 1 - t;
    }
    if (group > 0 && !p->is_activated)
        k->quantize_row(p->x, p->n * n_cols, group, p->q, p->scale, p->offset, p->sum);
}

/* ---- the processor's result ------------------------------------------------------------------ */

static void activate(const struct product *p, const struct kernels *k, float *gate, size_t n)
{
    switch (p->activation.kind) {
    case ACTIVATION_SILU: k->silu_mul(gate, p->up, n); break;
    case ACTIVATION_GELU: k->gelu_mul(gate, p->up, n); break;
    default:
        k->clamped_swiglu(gate, p->up, p->activation.alpha, p->activation.limit, n);
        break;
    }
}

static void compute(struct product *p, const struct kernels *k)
{
    static float x[MAX_INPUTS * MAX_COLS];
    const uint32_t n_cols = p->w[0].n_cols, n_rows = p->w[0].n_rows;
    const uint32_t group = p->w[0].quant->group;
    memcpy(x, p->x, p->n * n_cols * sizeof *x);
    if (p->is_activated) {
        activate(p, k, x, p->n * n_cols);
        k->quantize_row(x, p->n * n_cols, group, p->q, p->scale, p->offset, p->sum);
    }
    for (uint32_t t = 0; t < p->n; t++) {
        const uint32_t e = p->is_found ? p->ids[t] : 0;
        float *y = p->expected + p->place[t] * n_rows;
        k->matmul(&(struct kernel_matmul){
            .w = &p->w[e], .end = n_rows, .in = {x, p->q, p->scale, p->offset, p->sum}, .n = 1,
            .pick = &p->pick[t], .y = y, .y_stride = n_rows, .scratch = p->scratch});
        for (uint32_t r = 0; p->has_bias && r < n_rows; r++)
            y[r] += p->bias[e * n_rows + r];
    }
    if (p->is_activated) { /* the GPU must not need it */
        memset(p->q, 0x55, sizeof p->q);
        memset(p->scale, 0x55, sizeof p->scale);
        memset(p->offset, 0x55, sizeof p->offset);
    }
}

/* ---- the GPU's ------------------------------------------------------------------------------- */

static void launch(const struct product *p, enum gpu_matmul_kind kind)
{
    struct gpu_device *gpu = device_emulated();
    struct gpu_product products[2] = {
        {.w = gpu_weight_of(&p->w[0]), .in = {p->x, p->q, p->scale, p->offset, p->sum},
         .end = p->w[0].n_rows, .n = p->n, .pick = p->pick, .place = p->place,
         .y = (float *)(uintptr_t)p->y, .y_stride = p->w[0].n_rows,
         .bias = p->has_bias ? p->bias : NULL, .bases = p->is_found ? p->bases : NULL,
         .id = p->is_found ? p->ids : NULL, .up = p->is_activated ? p->up : NULL,
         .activation = p->activation}};
    const enum gpu_kernel kernels[GPU_N_MATMULS] = {
        [GPU_MATMUL_ONE] = GPU_KERNEL_matmul_one,
        [GPU_MATMUL_PLAIN_ONE] = GPU_KERNEL_matmul_plain_one,
        [GPU_MATMUL_PLAIN_TILES] = GPU_KERNEL_matmul_plain_tiles};
    uint32_t n_blocks[GPU_N_MATMULS] = {0};
    assert_int_equal(gpu_kind_of(products), kind);
    products[1] = products[0]; /* the same once more, behind it */
    gpu_place_product(&products[0], n_blocks);
    gpu_place_product(&products[1], n_blocks);
    const bool is_one = kind == GPU_MATMUL_ONE;
    const uint32_t n_threads =
        kind == GPU_MATMUL_PLAIN_ONE ? GPU_PLAIN_ONE_THREADS : GPU_MATMUL_THREADS;
    const struct gpu_matmul_one_args args = {.list = {products, 2}, /* others have the list */
                                             .first = {products[1].first_block[kind]}};
    struct gpu_command command = {.launch = {.kernel = kernels[kind],
                                             .n_blocks_x = n_blocks[kind],
                                             .n_blocks_y = 1, .n_threads = n_threads},
                                  .args_bytes = is_one ? sizeof args : sizeof args.list};
    memcpy(command.args, &args, command.args_bytes);
    gpu->ops->submit(gpu, &(struct gpu_batch){.commands = &command, .n = 1});
}

static void check(struct product *p, enum gpu_matmul_kind kind)
{
    struct kernels k;
    const size_t bytes = (size_t)p->n * p->w[0].n_rows * sizeof *p->y;
    k_ref_init(&k);
    make_inputs(p, &k);
    compute(p, &k);
    memset(p->y, 0xff, sizeof p->y);
    launch(p, kind);
    assert_memory_equal(p->y, p->expected, bytes);
}

static struct product *new_product(void)
{
    struct product *p = test_calloc(1, sizeof *p);
    assert_int_equal(posix_memalign((void **)&p->parts, 256, MAX_EXPERTS * PART_BYTES), 0);
    return p;
}

static void free_product(struct product *p)
{
    free(p->parts);
    test_free(p);
}

static void test_codes(void **state)
{
    static const char *const formats[] = {"affine4-g32", "affine4-g64", "affine4-g128",
                                          "mxfp4-g32", "int4-g32", "int4-g32-f16", "affine8-g32",
                                          "affine8-g64", "affine8-g128"};
    static const uint32_t groups[] = {64, 64, 128, 64, 64, 64, 64, 64, 128};
    struct product *p = new_product();
    (void)state;
    for (int round = 0; round < 108; round++) {
        const unsigned f = (unsigned)round % 9;
        const uint32_t max = any(4) == 0 ? MAX_COLS : 1100;
        make_weights(p, formats[f], 16 * (1 + any(MAX_ROWS / 16)),
                     groups[f] * (1 + any(max / groups[f])));
        p->is_found = any(2) == 0;
        p->has_bias = any(2) == 0;
        p->is_activated = p->w[0].n_cols <= GPU_ONE_HIDDEN && any(2) == 0;
        p->activation = (struct activation){(enum activation_kind)any(3), 1.7f, 7.0f};
        p->n = p->is_found ? 1 + any(5) : 1;
        check(p, GPU_MATMUL_ONE);
    }
    free_product(p);
}

/* Rows that do not lie side by side. */
static void test_few_rows(void **state)
{
    struct product *p = new_product();
    (void)state;
    for (int round = 0; round < 24; round++) {
        make_weights(p, "affine8-g64", 1 + any(15), 64 * (1 + any(MAX_COLS / 64)));
        p->is_found = any(2) == 0;
        p->has_bias = any(2) == 0;
        p->is_activated = false;
        p->n = p->is_found ? 1 + any(5) : 1;
        check(p, GPU_MATMUL_ONE);
    }
    free_product(p);
}

/* The block of a router's products that ends last makes the choice. */
static void test_choice(void **state)
{
    static uint32_t n_ended;
    struct product *p = new_product();
    struct kernels k;
    (void)state;
    k_ref_init(&k);
    for (int round = 0; round < 24; round++) {
        uint32_t expected_ids[8], ids[8];
        float expected[8], weights[8];
        make_weights(p, round % 2 == 0 ? "affine8-g64" : "affine4-g64", 16 * (1 + any(11)),
                     64 * (1 + any(32)));
        p->is_found = p->has_bias = p->is_activated = false;
        p->n = 1;
        make_inputs(p, &k);
        compute(p, &k);
        const struct router router = {.score = ROUTER_SOFTMAX, .n_experts = p->w[0].n_rows,
                                      .k = 1 + any(8), .renormalises = true, .scale = 1};
        k.route_row(p->expected, router.n_experts, router.k, true, expected_ids, expected);
        struct gpu_product product = {
            .w = gpu_weight_of(&p->w[0]), .in = {p->x, p->q, p->scale, p->offset, p->sum},
            .end = p->w[0].n_rows, .n = 1, .y = p->y, .y_stride = p->w[0].n_rows};
        uint32_t all[GPU_N_MATMULS] = {0};
        gpu_place_product(&product, all);
        const uint32_t n_blocks = all[GPU_MATMUL_ONE];
        const struct gpu_matmul_one_args args = {
            .list = {&product, 1}, .has_route = 1, .n_blocks = n_blocks, .n_ended = &n_ended,
            .route = {.router = router, .is_plain = 1, .logits = p->y, .ids = ids,
                      .weights = weights}};
        struct gpu_command command = {.launch = {.kernel = GPU_KERNEL_matmul_one,
                                                 .n_blocks_x = n_blocks, .n_blocks_y = 1,
                                                 .n_threads = GPU_MATMUL_THREADS},
                                      .args_bytes = sizeof args};
        struct gpu_device *gpu = device_emulated();
        memcpy(command.args, &args, sizeof args);
        gpu->ops->submit(gpu, &(struct gpu_batch){.commands = &command, .n = 1});
        assert_memory_equal(ids, expected_ids, router.k * sizeof *ids);
        assert_memory_equal(weights, expected, router.k * sizeof *weights);
        assert_int_equal(n_ended, 0);
    }
    free_product(p);
}

/* What the head's launch leaves beside the product: whether all values are finite, the first of the
 * highest ones, and a copy. */
static void check_head(struct product *p, const float *copy, uint32_t found, uint64_t peak)
{
    const uint32_t n = p->w[0].n_rows;
    uint32_t best = 0;
    for (uint32_t r = 0; r < n; r++)
        best = p->expected[r] > p->expected[best] ? r : best;
    assert_memory_equal(p->y, p->expected, n * sizeof *p->y);
    assert_memory_equal(copy, p->expected, n * sizeof *copy);
    if (p->is_broken)
        assert_int_equal(found, not_finite_code(0, true));
    else
        assert_int_equal(found, 0);
    if (!p->is_broken)
        assert_int_equal(peak_index(peak), best);
}

static void launch_head(struct product *p, uint32_t n_tiles)
{
    static float copy[MAX_ROWS];
    struct gpu_device *gpu = device_emulated();
    struct gpu_matmul_head_args args = {
        .p = {.w = gpu_weight_of(&p->w[0]), .in = {p->x, p->q, p->scale, p->offset, p->sum},
              .end = p->w[0].n_rows, .n = 1, .y = p->y, .y_stride = p->w[0].n_rows,
              .bias = p->has_bias ? p->bias : NULL},
        .n_tiles = n_tiles, .copy = copy};
    uint32_t all[GPU_N_MATMULS] = {0}, found = 0;
    uint64_t peak = 0;
    args.found = &found;
    args.peak = &peak;
    gpu_place_product(&args.p, all);
    struct gpu_command command = {
        .launch = {.kernel = GPU_KERNEL_matmul_head,
                   .n_blocks_x = (args.p.n_across + n_tiles - 1) / n_tiles, .n_blocks_y = 1,
                   .n_threads = GPU_MATMUL_THREADS},
        .args_bytes = sizeof args};
    memcpy(command.args, &args, sizeof args);
    gpu->ops->submit(gpu, &(struct gpu_batch){.commands = &command, .n = 1});
    check_head(p, copy, found, peak);
}

/* Rows that a block computes tile after tile. */
static void test_head(void **state)
{
    struct product *p = new_product();
    struct kernels k;
    (void)state;
    k_ref_init(&k);
    for (int round = 0; round < 60; round++) {
        const bool is_wide = round % 2 == 0;
        make_weights(p, is_wide ? "affine8-g64" : "affine4-g64", 16 * (1 + any(MAX_ROWS / 16)),
                     64 * (1 + any(round % 5 == 0 ? is_wide ? 32 : 64 : 12)));
        p->is_found = p->is_activated = false;
        p->has_bias = any(2) == 0;
        p->is_broken = p->has_bias && any(3) == 0;
        p->n = 1;
        make_inputs(p, &k);
        p->pick[0] = p->place[0] = 0;
        if (p->is_broken)
            p->bias[any(p->w[0].n_rows)] = NAN;
        compute(p, &k);
        launch_head(p, 1 + any(5));
    }
    p->is_broken = false;
    free_product(p);
}

/* Only long ones that are read whole are computed so. */
static void test_which_heads(void **state)
{
    struct gpu_product p = {.n = 1, .end = 1u << 17};
    (void)state;
    p.w = (struct gpu_weight){.format = {.codes = QUANT_CODES_AFFINE, .bits = 4, .has_bias = 1,
                                         .group = 64},
                              .n_rows = p.end, .n_cols = 2048, .is_interleaved = 1};
    assert_true(gpu_is_head(&p));
    p.end = 32 * GPU_HEAD_BLOCKS;
    assert_false(gpu_is_head(&p));
    p.end += 32;
    assert_true(gpu_is_head(&p));
    p.n = 2;
    assert_false(gpu_is_head(&p));
    p.n = 1;
    p.w.n_cols = 4096 + 64;
    assert_false(gpu_is_head(&p));
    p.w.n_cols = 2048;
    p.w.format.group = 32;
    assert_false(gpu_is_head(&p));
}

static void test_floats(void **state)
{
    static const char *const formats[] = {"bf16", "f16", "f32"};
    struct product *p = new_product();
    (void)state;
    for (int round = 0; round < 45; round++) {
        const bool has_many = round % 3 == 2;
        const uint32_t max = !has_many && any(4) == 0 ? MAX_COLS / 16 : 40;
        make_weights(p, formats[any(3)], 1 + any(70), 16 * (1 + any(max)));
        p->is_found = !has_many && any(2) == 0;
        p->has_bias = any(2) == 0;
        p->n = has_many ? 9 + any(MAX_INPUTS - 8) : p->is_found ? 1 + any(5) : 1;
        check(p, has_many ? GPU_MATMUL_PLAIN_TILES : GPU_MATMUL_PLAIN_ONE);
    }
    free_product(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes),
                                       cmocka_unit_test(test_few_rows),
                                       cmocka_unit_test(test_choice),
                                       cmocka_unit_test(test_head),
                                       cmocka_unit_test(test_which_heads),
                                       cmocka_unit_test(test_floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
