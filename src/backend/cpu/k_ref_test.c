/* Compares the reference kernels with straightforward double-precision loops. Also checks, bit for
 * bit, that results do not depend on batch, split or blocks. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/levels.h"

static struct kernels ref;
static uint32_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state;
}

static float random_float(void)
{
    return (float)(int32_t)random_bits() * 0x1p-31f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double gelu(double x)
{
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* ---- matmul ---------------------------------------------------------------------------------- */

enum { MAX_ROWS = 11, MAX_COLS = 768, MAX_TOKENS = 6, MAX_GROUPS = MAX_COLS / 16 };

struct fixture {
    unsigned char parts[QUANT_MAX_PARTS][MAX_ROWS * MAX_COLS * 4];
    float dense[MAX_ROWS * MAX_COLS]; /* what the weights decode to */
    float x[MAX_TOKENS * MAX_COLS];
    int8_t q[MAX_TOKENS * MAX_COLS];
    float scale[MAX_TOKENS * MAX_GROUPS], offset[MAX_TOKENS * MAX_GROUPS];
    int32_t sum[MAX_TOKENS * MAX_GROUPS];
    _Alignas(64) float scratch[KERNEL_MATMUL_SCRATCH(MAX_COLS, MAX_TOKENS)];
    struct weight w;
    struct kernel_matmul m; /* all rows, all tokens, into y */
    float y[MAX_TOKENS * MAX_ROWS];
};

static bool are_small(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < 100))
            return false;
    return true;
}

/* Makes a row of random bytes that decode to small numbers, block by block. */
static void random_row(const struct quant *quant, unsigned char *const to[], float *decoded,
                       size_t n)
{
    for (size_t b = 0; b < n / quant->block; b++) {
        const void *at[QUANT_MAX_PARTS] = {NULL};
        do {
            for (unsigned p = 0; p < quant->n_parts; p++) {
                const size_t bytes = quant->part_block_bytes[p];
                for (size_t i = 0; i < bytes; i++)
                    to[p][b * bytes + i] = (unsigned char)(random_bits() >> 24);
                at[p] = to[p] + b * bytes;
            }
            quant->decode_row(quant, at, decoded + b * quant->block, quant->block);
        } while (!are_small(decoded + b * quant->block, quant->block));
    }
}

/* Rows that share scales are all decoded with the scales of the last one. */
static void make_weight(struct fixture *f, const struct quant *quant, uint32_t rows, uint32_t cols)
{
    f->w = (struct weight){.quant = quant, .n_rows = rows, .n_cols = cols};
    for (unsigned p = 0; p < quant->n_parts; p++)
        f->w.parts[p] = f->parts[p];
    for (uint32_t r = 0; r < rows; r++) {
        unsigned char *to[QUANT_MAX_PARTS] = {NULL};
        for (unsigned p = 0; p < quant->n_parts; p++)
            to[p] = f->parts[p] + quant_part_row(quant, p, r) *
                                      quant_part_row_bytes(quant, p, cols);
        random_row(quant, to, f->dense + (size_t)r * cols, cols);
    }
    for (uint32_t r = 0; r < rows; r++) {
        const void *from[QUANT_MAX_PARTS] = {NULL};
        weight_row(&f->w, r, from);
        quant->decode_row(quant, from, f->dense + (size_t)r * cols, cols);
    }
}

static void make_input(struct fixture *f, size_t n)
{
    const size_t cols = f->w.n_cols;
    fill(f->x, n * cols);
    f->m = (struct kernel_matmul){.w = &f->w, .end = f->w.n_rows, .n = n, .y = f->y,
                                  .y_stride = f->w.n_rows, .scratch = f->scratch};
    if (f->w.quant->codes == QUANT_NO_CODES) {
        f->m.in.x = f->x;
        return;
    }
    const size_t group = f->w.quant->group, n_groups = cols / group;
    for (size_t t = 0; t < n; t++)
        ref.quantize_row(f->x + t * cols, cols, group, f->q + t * cols, f->scale + t * n_groups,
                         f->offset + t * n_groups, f->sum + t * n_groups);
    f->m.in = (struct kernel_input){.q = f->q, .scale = f->scale, .offset = f->offset,
                                    .sum = f->sum};
}

/* Returns the value of an input as the kernel sees it. */
static double input_value(const struct fixture *f, size_t t, size_t i)
{
    const size_t cols = f->w.n_cols;
    if (f->m.in.x != NULL)
        return f->x[t * cols + i];
    const size_t group = f->w.quant->group;
    return (double)f->q[t * cols + i] * f->scale[t * (cols / group) + i / group];
}

static void check_values(const struct fixture *f)
{
    const size_t rows = f->w.n_rows, cols = f->w.n_cols;
    for (size_t t = 0; t < f->m.n; t++)
        for (size_t r = 0; r < rows; r++) {
            double want = 0, size = 0;
            for (size_t i = 0; i < cols; i++) {
                const double product = f->dense[r * cols + i] * input_value(f, t, i);
                want += product;
                size += fabs(product);
            }
            assert_true(fabs(f->y[t * rows + r] - want) <= 2e-6 * size + 1e-6);
        }
}

/* A product has the same bits when computed alone, in parts of the rows, and through lists of rows.
 * Nothing else in the output changes. */
static void check_independence(struct fixture *f)
{
    enum { PAD = 3 };
    const uint32_t pick[MAX_TOKENS] = {3, 0, 5, 3, 1, 2}, place[MAX_TOKENS] = {5, 1, 0, 4, 2, 3};
    const size_t rows = f->w.n_rows, stride = rows + PAD;
    float y[MAX_TOKENS * (MAX_ROWS + PAD)];
    for (size_t begin = 0; begin <= rows; begin++) {
        const size_t end = begin + (rows - begin) / 2;
        struct kernel_matmul m = f->m;
        for (size_t i = 0; i < MAX_TOKENS * stride; i++)
            y[i] = 123;
        m.begin = begin, m.end = end, m.y_first = begin;
        m.pick = pick, m.place = place;
        m.y = y, m.y_stride = stride;
        ref.matmul(&m);
        for (size_t t = 0; t < m.n; t++)
            for (size_t r = 0; r < stride; r++) {
                const float *got = &y[place[t] * stride + r];
                const float untouched = 123;
                assert_memory_equal(got, r < end - begin
                                             ? &f->y[pick[t] * rows + begin + r] : &untouched,
                                    sizeof *got);
            }
    }
    for (size_t t = 0; t < f->m.n; t++) {
        const uint32_t one = (uint32_t)t;
        struct kernel_matmul m = f->m;
        m.n = 1, m.pick = &one, m.y = y;
        ref.matmul(&m);
        assert_memory_equal(y, f->y + t * rows, rows * sizeof *y);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    struct fixture *f = aligned_alloc(64, (sizeof *f + 63) / 64 * 64);
    assert_non_null(f);
    for (unsigned i = 0; quant_at(i) != NULL; i++) {
        const struct quant *quant = quant_at(i);
        const uint32_t step = quant->block == 1 ? 83 : quant->block < 128 ? 5 * quant->block : 256;
        for (uint32_t cols = quant->block; cols <= MAX_COLS; cols += step) {
            make_weight(f, quant, 1 + cols % MAX_ROWS, cols);
            make_input(f, MAX_TOKENS);
            ref.matmul(&f->m);
            check_values(f);
            check_independence(f);
        }
    }
    free(f);
}

/* ---- quantize_row ---------------------------------------------------------------------------- */

static struct {
    float x[64];
    int8_t q[64];
    float scale[2], offset[2];
    int32_t sum[2];
} row;

static void quantize(void)
{
    ref.quantize_row(row.x, 64, 32, row.q, row.scale, row.offset, row.sum);
}

static void test_quantize_rounds(void **state)
{
    (void)state;
    memset(&row, 0, sizeof row);
    row.x[3] = -2.0f;
    row.x[4] = 1.0f;               /* 63.5: to even */
    row.x[5] = 1.0f + 1.0f / 127;  /* 64 */
    row.x[6] = -2.5f / 127 * 2.0f; /* -2.5 or next to it */
    quantize();
    assert_int_equal(row.q[3], -127);
    assert_int_equal(row.q[4], 64);
    assert_int_equal(row.q[5], 64);
    assert_true(row.q[6] == -2 || row.q[6] == -3);
    assert_true(row.scale[0] == 2.0f / 127);
    assert_int_equal(row.sum[0], row.q[3] + row.q[4] + row.q[5] + row.q[6]);
    assert_true(row.offset[0] == row.scale[0] * (float)row.sum[0]);
    assert_true(row.scale[1] == 0 && row.offset[1] == 0 && row.sum[1] == 0);
    for (unsigned n = 0; n < 200; n++) {
        fill(row.x, 64);
        quantize();
        for (unsigned g = 0; g < 2; g++) {
            int max = 0;
            for (unsigned i = 32 * g; i < 32 * g + 32; i++) {
                const double error = (double)row.q[i] * row.scale[g] - row.x[i];
                assert_true(fabs(error) <= 0.50001 * row.scale[g]);
                max = abs(row.q[i]) > max ? abs(row.q[i]) : max;
            }
            assert_int_equal(max, 127);
        }
    }
}

static bool is_zero_group(unsigned g)
{
    for (unsigned i = 32 * g; i < 32 * g + 32; i++)
        if (row.q[i] != 0)
            return false;
    return row.scale[g] == 0 && row.offset[g] == 0 && row.sum[g] == 0;
}

static void test_quantize_extremes(void **state)
{
    (void)state;
    memset(&row, 0, sizeof row);
    /* Everything below the minimum magnitude counts as zero; the minimum itself does not. */
    row.x[0] = -0x1.fffffep-101f;
    row.x[1] = 0x1p-149f;
    row.x[2] = -0.0f;
    row.x[32] = KERNEL_MIN_SCALED;
    row.x[33] = 0x1p-149f;
    quantize();
    assert_true(is_zero_group(0));
    assert_true(row.q[32] == 127 && row.q[33] == 0 && row.sum[1] == 127);
    assert_true(row.scale[1] == KERNEL_MIN_SCALED / 127);
    /* The largest finite numbers. */
    row.x[0] = -0x1.fffffep127f;
    row.x[1] = 0x1p127f;
    quantize();
    assert_true(row.q[0] == -127 && row.q[1] == 64 && isfinite(row.scale[0]));
    /* An infinity makes the scale infinite, a NaN makes it NaN. No result is a number then. */
    row.x[1] = -INFINITY;
    row.x[40] = -NAN;
    row.x[41] = INFINITY;
    quantize();
    assert_true(isinf(row.scale[0]) && row.scale[0] > 0 && row.q[0] == 0 && isnan(row.offset[0]));
    assert_true(isnan(row.scale[1]) && isnan(row.offset[1]));
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { HEADS = 3, DIM = 24, POSITIONS = 2 * KERNEL_ATTENTION_BLOCK + 90, Q_STRIDE = DIM + 5 };

struct heads {
    float max[HEADS], total[HEADS], out[HEADS * DIM];
};

struct attention {
    float x[POSITIONS * DIM], keys_f32[POSITIONS * DIM], values_f32[POSITIONS * DIM];
    uint16_t keys_f16[POSITIONS * DIM], values_f16[POSITIONS * DIM];
    double keys[POSITIONS * DIM], values[POSITIONS * DIM]; /* decoded */
    float q[HEADS * Q_STRIDE];
};

static void attend_heads(const struct attention *f, const struct kv_format *format, size_t first,
                         size_t n, unsigned head, unsigned n_heads, struct heads *to)
{
    float scratch[KERNEL_ATTENTION_SCRATCH(HEADS, DIM)];
    const bool is_half = format == &kv_f16;
    ref.attend(&(struct kernel_attention){
        .kv_format = format, .q = f->q + head * Q_STRIDE, .q_stride = Q_STRIDE,
        .n_heads = n_heads, .head_dim = DIM, .value_dim = DIM,
        .keys = is_half ? (const char *)(f->keys_f16 + first * DIM)
                        : (const char *)(f->keys_f32 + first * DIM),
        .values = is_half ? (const char *)(f->values_f16 + first * DIM)
                          : (const char *)(f->values_f32 + first * DIM),
        .n_positions = n, .scale = 5.0f, .max = to->max + head, .total = to->total + head,
        .out = to->out + head * DIM, .scratch = scratch});
}

/* Attends block by block and merges in ascending order. */
static void attend_all(const struct attention *f, const struct kv_format *format, size_t n,
                       const float *gate, struct heads *to)
{
    for (size_t at = 0; at < n; at += KERNEL_ATTENTION_BLOCK) {
        const size_t left = n - at;
        struct heads block, alone;
        const size_t count = left < KERNEL_ATTENTION_BLOCK ? left : KERNEL_ATTENTION_BLOCK;
        attend_heads(f, format, at, count, 0, HEADS, &block);
        for (unsigned h = 0; h < HEADS; h++)
            attend_heads(f, format, at, count, h, 1, &alone);
        assert_memory_equal(&alone, &block, sizeof block);
        for (unsigned h = 0; h < HEADS && at > 0; h++)
            ref.attend_merge(&to->max[h], &to->total[h], to->out + h * DIM, block.max[h],
                             block.total[h], block.out + h * DIM, DIM);
        if (at == 0)
            *to = block;
    }
    for (unsigned h = 0; h < HEADS; h++)
        ref.attend_close(to->out + h * DIM, to->total[h], gate, DIM);
}

static void check_attention(const struct attention *f, const struct kv_format *format, size_t n,
                            const float *gate)
{
    struct heads got;
    attend_all(f, format, n, gate, &got);
    for (unsigned h = 0; h < HEADS; h++) {
        double weight[POSITIONS], max = -1e30, total = 0;
        for (size_t p = 0; p < n; p++) {
            weight[p] = 0;
            for (size_t d = 0; d < DIM; d++)
                weight[p] += 5.0 * f->q[h * Q_STRIDE + d] * f->keys[p * DIM + d];
            max = weight[p] > max ? weight[p] : max;
        }
        for (size_t p = 0; p < n; p++)
            total += weight[p] = exp(weight[p] - max);
        assert_true(fabs(got.max[h] - max) < 1e-5);
        assert_true(fabs(got.total[h] - total) < 1e-5 * total);
        for (size_t d = 0; d < DIM; d++) {
            double want = 0;
            for (size_t p = 0; p < n; p++)
                want += weight[p] / total * f->values[p * DIM + d];
            want *= gate != NULL ? sigmoid(gate[d]) : 1;
            assert_true(fabs(got.out[h * DIM + d] - want) < 3e-6);
        }
    }
}

static void store(const struct kv_format *format, const float *x, void *to, double *decoded)
{
    static float back[POSITIONS * DIM];
    const void *from = to;
    ref.store_kv(format, KV_KEY, x, POSITIONS * DIM, to);
    format->plain->decode_row(format->plain, &from, back, POSITIONS * DIM);
    for (size_t i = 0; i < POSITIONS * DIM; i++) {
        decoded[i] = back[i];
        assert_true(fabs(decoded[i] - x[i]) <= (format == &kv_f16 ? 0x1p-12 : 0));
    }
}

static void test_attention(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 2, 16, 255, 256, 257, 511, 512, POSITIONS};
    static struct attention f;
    float gate[DIM];
    fill(gate, DIM);
    for (unsigned half = 0; half < 2; half++) {
        const struct kv_format *format = half ? &kv_f16 : &kv_f32;
        fill(f.x, POSITIONS * DIM);
        store(format, f.x, half ? (void *)f.keys_f16 : (void *)f.keys_f32, f.keys);
        fill(f.x, POSITIONS * DIM);
        store(format, f.x, half ? (void *)f.values_f16 : (void *)f.values_f32, f.values);
        for (unsigned i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            fill(f.q, HEADS * Q_STRIDE);
            check_attention(&f, format, lengths[i], i % 2 == 0 ? gate : NULL);
        }
    }
}

/* A block with negligible weight changes nothing, whichever block comes first. */
static void test_merge_of_far_blocks(void **state)
{
    (void)state;
    float max = 500, total = 2, x[3] = {1, -2, 3}, far[3] = {7, 8, 9};
    ref.attend_merge(&max, &total, x, -500, 4, far, 3);
    assert_true(max == 500 && total == 2 && x[0] == 1 && x[1] == -2 && x[2] == 3);
    max = -500, total = 4;
    ref.attend_merge(&max, &total, far, 500, 2, x, 3);
    assert_true(max == 500 && total == 2 && far[0] == 1 && far[1] == -2 && far[2] == 3);
}

/* ---- the delta rule -------------------------------------------------------------------------- */

enum { KEY_HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 20, VALUE_DIM = 12, KERNEL = 4, TOKENS = 9 };
enum { CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM };

struct delta_fixture {
    float qkv[TOKENS * CHANNELS], mixed[TOKENS * CHANNELS];
    float z[TOKENS * VALUE_HEADS * VALUE_DIM], out[TOKENS * VALUE_HEADS * VALUE_DIM];
    float b[TOKENS * VALUE_HEADS], a[TOKENS * VALUE_HEADS];
    float conv_weight[KERNEL * CHANNELS], decay[VALUE_HEADS], dt_bias[VALUE_HEADS];
    float norm[VALUE_DIM], conv[(KERNEL - 1) * CHANNELS];
    float delta[VALUE_HEADS * VALUE_DIM * KEY_DIM];
    struct backend_delta_net args;
    struct backend_segment segment;
};

static void make_delta(struct delta_fixture *f, bool is_tiled)
{
    random_state = 99;
    memset(f, 0, sizeof *f);
    fill(f->qkv, TOKENS * CHANNELS);
    fill(f->z, TOKENS * VALUE_HEADS * VALUE_DIM);
    fill(f->b, TOKENS * VALUE_HEADS);
    fill(f->a, TOKENS * VALUE_HEADS);
    fill(f->conv_weight, CHANNELS * KERNEL);
    fill(f->dt_bias, VALUE_HEADS);
    fill(f->norm, VALUE_DIM);
    for (unsigned h = 0; h < VALUE_HEADS; h++)
        f->decay[h] = -0.5f - (float)h;
    f->segment = (struct backend_segment){
        .n_rows = TOKENS, .state = {[DELTA_NET_CONV] = f->conv, [DELTA_NET_STATE] = f->delta}};
    f->args = (struct backend_delta_net){
        .segments = &f->segment, .n_segments = 1, .n_key_heads = KEY_HEADS,
        .n_value_heads = VALUE_HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM,
        .kernel = KERNEL, .has_tiled_value_heads = is_tiled, .qkv = f->qkv, .z = f->z, .b = f->b,
        .a = f->a, .conv_weight = f->conv_weight, .decay = f->decay, .dt_bias = f->dt_bias,
        .norm = f->norm, .eps = 1e-6f, .mixed = f->mixed, .out = f->out};
}

static void run_delta(struct delta_fixture *f, unsigned first, unsigned n)
{
    float scratch[KERNEL_DELTA_SCRATCH(KEY_DIM)];
    f->segment.first_row = first;
    f->segment.n_rows = n;
    ref.conv_silu(&f->args, &f->segment, 0, CHANNELS / 3);
    ref.conv_silu(&f->args, &f->segment, CHANNELS / 3, CHANNELS);
    for (unsigned h = 0; h < VALUE_HEADS; h++)
        ref.delta_head(&f->args, &f->segment, h, scratch);
}

/* Weight s of a channel applies to the token KERNEL - 1 - s steps back. */
static void naive_conv(const struct delta_fixture *f, unsigned t, double *c)
{
    for (unsigned ch = 0; ch < CHANNELS; ch++) {
        double acc = 0;
        for (int s = 0; s < KERNEL; s++) {
            const int from = (int)t - (KERNEL - 1) + s;
            if (from >= 0)
                acc += f->conv_weight[s * CHANNELS + (int)ch] * f->qkv[from * CHANNELS + (int)ch];
        }
        c[ch] = silu(acc);
    }
}

static void naive_step(double s[VALUE_DIM][KEY_DIM], const double *q, const double *k,
                       const double *v, double alpha, double beta, double *o)
{
    double q2 = 1e-6, k2 = 1e-6;
    for (unsigned i = 0; i < KEY_DIM; i++)
        q2 += q[i] * q[i], k2 += k[i] * k[i];
    for (unsigned j = 0; j < VALUE_DIM; j++) {
        double m = 0;
        for (unsigned i = 0; i < KEY_DIM; i++)
            m += (s[j][i] *= alpha) * k[i] / sqrt(k2);
        o[j] = 0;
        for (unsigned i = 0; i < KEY_DIM; i++) {
            s[j][i] += k[i] / sqrt(k2) * beta * (v[j] - m);
            o[j] += s[j][i] * q[i] / sqrt(q2) / sqrt(KEY_DIM);
        }
    }
}

/* The layer's definition, token by token, in double. */
static void naive_delta_head(const struct delta_fixture *f, unsigned h, double *out)
{
    const unsigned key_head = f->args.has_tiled_value_heads ? h % KEY_HEADS
                                                            : h / (VALUE_HEADS / KEY_HEADS);
    double s[VALUE_DIM][KEY_DIM] = {{0}};
    for (unsigned t = 0; t < TOKENS; t++) {
        double c[CHANNELS], o[VALUE_DIM], mean = 0;
        naive_conv(f, t, c);
        const double at = f->a[t * VALUE_HEADS + h] + f->dt_bias[h];
        naive_step(s, c + key_head * KEY_DIM, c + (KEY_HEADS + key_head) * KEY_DIM,
                   c + 2 * KEY_HEADS * KEY_DIM + h * VALUE_DIM,
                   exp(f->decay[h] * log1p(exp(at))), sigmoid(f->b[t * VALUE_HEADS + h]), o);
        for (unsigned j = 0; j < VALUE_DIM; j++)
            mean += o[j] * o[j] / VALUE_DIM;
        for (unsigned j = 0; j < VALUE_DIM; j++)
            out[t * VALUE_DIM + j] = o[j] / sqrt(mean + 1e-6) * f->norm[j] *
                                     silu(f->z[(t * VALUE_HEADS + h) * VALUE_DIM + j]);
    }
}

static void test_delta_rule(void **state)
{
    (void)state;
    static struct delta_fixture whole, parts;
    for (unsigned tiled = 0; tiled < 2; tiled++) {
        make_delta(&whole, tiled);
        run_delta(&whole, 0, TOKENS);
        for (unsigned h = 0; h < VALUE_HEADS; h++) {
            double want[TOKENS * VALUE_DIM];
            naive_delta_head(&whole, h, want);
            for (unsigned t = 0; t < TOKENS; t++)
                for (unsigned j = 0; j < VALUE_DIM; j++) {
                    const double got = whole.out[(t * VALUE_HEADS + h) * VALUE_DIM + j];
                    assert_true(fabs(got - want[t * VALUE_DIM + j]) < 1e-5);
                }
        }
        make_delta(&parts, tiled);
        run_delta(&parts, 0, 1);
        run_delta(&parts, 1, 5);
        run_delta(&parts, 6, 3);
        assert_memory_equal(parts.out, whole.out, sizeof whole.out);
        assert_memory_equal(parts.delta, whole.delta, sizeof whole.delta);
        assert_memory_equal(parts.conv, whole.conv, sizeof whole.conv);
        assert_memory_equal(parts.conv, parts.qkv + (TOKENS - KERNEL + 1) * CHANNELS,
                            sizeof parts.conv);
    }
}

/* ---- the router ------------------------------------------------------------------------------ */

static void test_route(void **state)
{
    (void)state;
    uint32_t ids[6];
    float weights[6];
    const float ties[6] = {1, 2, 2, 2, 2, 0};
    ref.route_row(ties, 6, 3, true, ids, weights);
    assert_true(ids[0] == 1 && ids[1] == 2 && ids[2] == 3);
    assert_true(weights[0] == 1.0f / 3);
    ref.route_row(ties, 6, 6, true, ids, weights);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(ids[i], i);
    const float logits[5] = {0.5f, -1, 3, 2, NAN};
    ref.route_row(logits, 4, 2, false, ids, weights);
    double total = exp(0.5) + exp(-1) + exp(3) + exp(2);
    assert_true(ids[0] == 2 && ids[1] == 3);
    assert_true(fabs(weights[0] - exp(3) / total) < 1e-6);
    assert_true(fabs(weights[1] - exp(2) / total) < 1e-6);
    ref.route_row(logits, 5, 3, true, ids, weights);
    assert_true(ids[0] == 0 && ids[1] == 2 && ids[2] == 3);
    total = exp(0.5) + exp(3) + exp(2);
    assert_true(fabs(weights[0] - exp(0.5) / total) < 1e-6);
    const float nothing[4] = {NAN, NAN, NAN, NAN};
    ref.route_row(nothing, 4, 3, true, ids, weights);
    assert_true(ids[0] < 4 && ids[1] < 4 && ids[2] < 4 && ids[0] != ids[1] && ids[1] != ids[2]);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_rotation(void **state)
{
    (void)state;
    enum { HALF = 8 };
    static const uint32_t positions[] = {0, 1, 12345, (1u << 24) - 1};
    float frequencies[HALF], cosines[HALF], sines[HALF], x[2 * HALF], before[2 * HALF];
    for (unsigned i = 0; i < HALF; i++)
        frequencies[i] = (float)pow(10000, -(double)i / HALF);
    for (unsigned p = 0; p < sizeof positions / sizeof positions[0]; p++) {
        fill(x, 2 * HALF);
        memcpy(before, x, sizeof x);
        ref.rope_angles(positions[p], frequencies, HALF, cosines, sines);
        ref.rotate(x, cosines, sines, HALF);
        for (unsigned i = 0; i < HALF; i++) {
            const double angle = (double)((float)positions[p] * frequencies[i]);
            const double a = before[i], b = before[i + HALF];
            assert_true(fabs(cosines[i] - cos(angle)) < 1e-7);
            assert_true(fabs(sines[i] - sin(angle)) < 1e-7);
            assert_true(fabs(x[i] - (a * cos(angle) - b * sin(angle))) < 1e-6);
            assert_true(fabs(x[i + HALF] - (b * cos(angle) + a * sin(angle))) < 1e-6);
        }
    }
}

static void test_activations(void **state)
{
    (void)state;
    enum { N = 37 };
    float gate[N], up[N], y[N];
    fill(gate, N), fill(up, N);
    for (unsigned i = 0; i < N; i++)
        gate[i] *= 12, up[i] *= 12;
    memcpy(y, gate, sizeof y);
    ref.gelu_mul(y, up, N);
    for (unsigned i = 0; i < N; i++)
        assert_true(fabs(y[i] - gelu(gate[i]) * up[i]) < 5e-5); /* of at most 144 */
    memcpy(y, gate, sizeof y);
    ref.clamped_swiglu(y, up, 1.702f, 7, N);
    for (unsigned i = 0; i < N; i++) {
        const double g = fmin(gate[i], 7), u = fmax(-7, fmin(up[i], 7));
        assert_true(fabs(y[i] - g * sigmoid(1.702 * g) * (u + 1)) < 5e-5); /* of at most 56 */
    }
}

static void test_rows(void **state)
{
    (void)state;
    enum { N = 37, PARTS = 3 };
    float x[N], w[N], y[N], parts[PARTS * N], before[N];
    fill(x, N), fill(w, N), fill(parts, PARTS * N);
    double mean = 0;
    for (unsigned i = 0; i < N; i++)
        mean += (double)x[i] * x[i] / N;
    ref.rms_norm(x, w, 1e-6f, N, y);
    for (unsigned i = 0; i < N; i++)
        assert_true(fabs(y[i] - x[i] / sqrt(mean + 1e-6) * w[i]) < 1e-6);
    memcpy(y, x, sizeof y);
    ref.silu_mul(y, w, N);
    for (unsigned i = 0; i < N; i++)
        assert_true(fabs(y[i] - silu(x[i]) * w[i]) < 1e-6);
    memcpy(before, y, sizeof y);
    ref.add_scaled_sigmoid(y, x, 0.75f, N);
    for (unsigned i = 0; i < N; i++)
        assert_true(fabs(y[i] - (before[i] + sigmoid(0.75) * x[i])) < 1e-6);
    memcpy(before, y, sizeof y);
    ref.add(y, x, N);
    for (unsigned i = 0; i < N; i++)
        assert_true(y[i] == before[i] + x[i]);
    ref.weighted_sum(parts, w, PARTS, N, y);
    for (unsigned i = 0; i < N; i++)
        assert_true(fabs(y[i] - ((double)w[0] * parts[i] + (double)w[1] * parts[N + i] +
                                 (double)w[2] * parts[2 * N + i])) < 1e-6);
}

static int open_reference(void **state)
{
    (void)state;
    k_ref_init(&ref);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_quantize_rounds),
        cmocka_unit_test(test_quantize_extremes),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_merge_of_far_blocks),
        cmocka_unit_test(test_delta_rule),
        cmocka_unit_test(test_route),
        cmocka_unit_test(test_rotation),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, open_reference, NULL);
}
