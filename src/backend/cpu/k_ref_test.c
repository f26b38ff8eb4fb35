/* The reference kernels against straightforward double-precision loops, and their independence of
 * batch and split, bit for bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernels.h"

static uint32_t random_state = 1;

static float random_float(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int32_t)random_state * 0x1p-31f;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_float();
}

enum { MAX_ROWS = 11, MAX_COLS = 512, MAX_TOKENS = 6 };

struct fixture {
    unsigned char parts[QUANT_MAX_PARTS][MAX_ROWS * MAX_COLS * 4];
    float dense[MAX_ROWS * MAX_COLS]; /* what the weights decode to */
    float x[MAX_TOKENS * MAX_COLS];
    int8_t q[MAX_TOKENS * MAX_COLS];
    float scale[MAX_TOKENS * MAX_COLS];
    int32_t q_sum[MAX_TOKENS * MAX_COLS];
    float scratch[KERNEL_ROW_BLOCK * MAX_COLS];
    struct weight w;
    struct kernel_input in;
};

static void make_weight(struct fixture *f, const struct quant *quant, uint32_t rows, uint32_t cols)
{
    f->w = (struct weight){.quant = quant, .n_rows = rows, .n_cols = cols};
    for (unsigned p = 0; p < quant->n_parts; p++)
        f->w.parts[p] = f->parts[p];
    for (uint32_t r = 0; r < rows; r++) {
        float row[MAX_COLS];
        fill(row, cols);
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        void *out[QUANT_MAX_PARTS] = {NULL};
        weight_row(&f->w, r, parts);
        for (unsigned p = 0; p < quant->n_parts; p++)
            out[p] = f->parts[p] + ((const unsigned char *)parts[p] - f->parts[p]);
        quant->encode_row(quant, row, out, cols);
        quant->decode_row(quant, parts, f->dense + (size_t)r * cols, cols);
    }
}

static void make_input(struct fixture *f, size_t n)
{
    const size_t cols = f->w.n_cols, group = f->w.quant->block;
    fill(f->x, n * cols);
    f->in = (struct kernel_input){.x = f->x};
    if (f->w.quant->kind != QUANT_AFFINE)
        return;
    for (size_t t = 0; t < n; t++)
        kernels_ref.quantize_row(f->x + t * cols, cols, group, f->q + t * cols,
                                 f->scale + t * (cols / group), f->q_sum + t * (cols / group));
    f->in.q = f->q;
    f->in.scale = f->scale;
    f->in.q_sum = f->q_sum;
}

/* What the inputs are worth after quantisation. */
static double input_value(const struct fixture *f, size_t t, size_t i)
{
    const size_t cols = f->w.n_cols, group = f->w.quant->block;
    if (f->w.quant->kind != QUANT_AFFINE)
        return f->x[t * cols + i];
    return (double)f->q[t * cols + i] * f->scale[t * (cols / group) + i / group];
}

static void check_matmul(struct fixture *f, size_t n)
{
    const size_t rows = f->w.n_rows, cols = f->w.n_cols;
    float y[MAX_TOKENS * MAX_ROWS], one[MAX_ROWS], split[MAX_TOKENS * MAX_ROWS];
    kernels_ref.matmul(&f->w, 0, rows, &f->in, n, y, rows, f->scratch);
    for (size_t t = 0; t < n; t++)
        for (size_t r = 0; r < rows; r++) {
            double want = 0, size = 0;
            for (size_t i = 0; i < cols; i++) {
                want += f->dense[r * cols + i] * input_value(f, t, i);
                size += fabs(f->dense[r * cols + i] * input_value(f, t, i));
            }
            assert_true(fabs(y[t * rows + r] - want) <= 2e-6 * size + 1e-6);
        }
    const size_t n_groups = f->w.quant->kind == QUANT_AFFINE ? cols / f->w.quant->block : 0;
    for (size_t t = 0; t < n; t++) {
        struct kernel_input in = {f->x + t * cols, f->q + t * cols, f->scale + t * n_groups,
                                  f->q_sum + t * n_groups};
        kernels_ref.matmul(&f->w, 0, rows, &in, 1, one, rows, f->scratch);
        assert_memory_equal(one, y + t * rows, rows * sizeof *one);
    }
    for (size_t cut = 0; cut <= rows; cut++) {
        kernels_ref.matmul(&f->w, 0, cut, &f->in, n, split, rows, f->scratch);
        kernels_ref.matmul(&f->w, cut, rows, &f->in, n, split, rows, f->scratch);
        assert_memory_equal(split, y, n * rows * sizeof *y);
    }
}

static void test_matmul(void **state)
{
    (void)state;
    struct fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    for (unsigned i = 0; quant_at(i) != NULL; i++) {
        const struct quant *quant = quant_at(i);
        if (quant->encode_row == NULL)
            continue;
        for (uint32_t cols = quant->block; cols <= MAX_COLS; cols += quant->block * 7) {
            make_weight(f, quant, 1 + cols % MAX_ROWS, cols);
            make_input(f, MAX_TOKENS);
            check_matmul(f, MAX_TOKENS);
        }
    }
    free(f);
}

static void test_quantize_row(void **state)
{
    (void)state;
    float x[64] = {0};
    int8_t q[64];
    float scale[2];
    int32_t q_sum[2];
    x[3] = -2.0f;
    x[4] = 1.0f;
    x[5] = 1.0f + 1.0f / 127; /* 63.5 + 0.5: rounds to even */
    kernels_ref.quantize_row(x, 64, 32, q, scale, q_sum);
    assert_int_equal(q[3], -127);
    assert_int_equal(q[4], 64); /* 63.5 rounds to even */
    assert_true(scale[0] == 2.0f / 127 && scale[1] == 0);
    assert_int_equal(q_sum[1], 0);
    x[6] = INFINITY;
    x[7] = NAN;
    kernels_ref.quantize_row(x, 64, 32, q, scale, q_sum); /* must only not be undefined */
}

static void test_attention(void **state)
{
    (void)state;
    enum { DIM = 24, MOST = 200 };
    static float keys[MOST * DIM], values[MOST * DIM];
    float q[DIM], out[DIM], scratch[KERNEL_ATTENTION_BLOCK + DIM];
    fill(keys, MOST * DIM);
    fill(values, MOST * DIM);
    static const size_t lengths[] = {1, 2, 63, 64, 65, 128, 129, MOST};
    for (unsigned l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        fill(q, DIM);
        kernels_ref.attend(&(struct kernel_attention){
            .kv_format = &quant_f32, .q = q, .keys = (const char *)keys,
            .values = (const char *)values, .n_positions = lengths[l], .head_dim = DIM,
            .scale = 5.0f, .out = out, .scratch = scratch});
        double weight[MOST], most = -1e30, total = 0;
        for (size_t p = 0; p < lengths[l]; p++) {
            weight[p] = 0;
            for (size_t d = 0; d < DIM; d++)
                weight[p] += 5.0 * q[d] * keys[p * DIM + d];
            most = weight[p] > most ? weight[p] : most;
        }
        for (size_t p = 0; p < lengths[l]; p++)
            total += weight[p] = exp(weight[p] - most);
        for (size_t d = 0; d < DIM; d++) {
            double want = 0;
            for (size_t p = 0; p < lengths[l]; p++)
                want += weight[p] / total * values[p * DIM + d];
            assert_true(fabs(out[d] - want) < 2e-6);
        }
    }
}

enum { KEY_HEADS = 2, VALUE_HEADS = 4, KEY_DIM = 20, VALUE_DIM = 12, KERNEL = 4, TOKENS = 9 };
enum { CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM };

struct delta_fixture {
    float qkv[TOKENS * CHANNELS], mixed[TOKENS * CHANNELS];
    float z[TOKENS * VALUE_HEADS * VALUE_DIM], out[TOKENS * VALUE_HEADS * VALUE_DIM];
    float b[TOKENS * VALUE_HEADS], a[TOKENS * VALUE_HEADS];
    float conv_weight[CHANNELS * KERNEL], decay[VALUE_HEADS], dt_bias[VALUE_HEADS];
    float norm[VALUE_DIM], conv[(KERNEL - 1) * CHANNELS];
    float delta[VALUE_HEADS * VALUE_DIM * KEY_DIM];
    struct backend_delta_net args;
    struct backend_segment segment;
};

static void make_delta(struct delta_fixture *f)
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
    f->segment = (struct backend_segment){.n_rows = TOKENS, .conv = f->conv, .delta = f->delta};
    f->args = (struct backend_delta_net){
        .segments = &f->segment, .n_segments = 1, .n_key_heads = KEY_HEADS,
        .n_value_heads = VALUE_HEADS, .key_dim = KEY_DIM, .value_dim = VALUE_DIM,
        .kernel = KERNEL, .qkv = f->qkv, .z = f->z, .b = f->b, .a = f->a,
        .conv_weight = f->conv_weight, .decay = f->decay, .dt_bias = f->dt_bias,
        .norm = f->norm, .eps = 1e-6f, .mixed = f->mixed, .out = f->out};
}

static void run_delta(struct delta_fixture *f, unsigned first, unsigned n)
{
    float scratch[2 * KEY_DIM];
    f->segment.first_row = first;
    f->segment.n_rows = n;
    kernels_ref.conv_silu(&f->args, &f->segment, 0, CHANNELS / 3);
    kernels_ref.conv_silu(&f->args, &f->segment, CHANNELS / 3, CHANNELS);
    for (unsigned h = 0; h < VALUE_HEADS; h++)
        kernels_ref.delta_head(&f->args, &f->segment, h, scratch);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* The layer's definition, token by token, in double. */
static void naive_delta_head(const struct delta_fixture *f, unsigned h, double *out)
{
    double s[VALUE_DIM][KEY_DIM] = {{0}};
    for (unsigned t = 0; t < TOKENS; t++) {
        double c[CHANNELS];
        for (unsigned ch = 0; ch < CHANNELS; ch++) {
            double acc = 0;
            for (int k = 0; k < KERNEL; k++) {
                int from = (int)t - (KERNEL - 1) + k;
                if (from >= 0)
                    acc += f->conv_weight[ch * KERNEL + k] * f->qkv[from * CHANNELS + (int)ch];
            }
            c[ch] = silu(acc);
        }
        const double *q = c + h / 2 * KEY_DIM, *k = c + KEY_HEADS * KEY_DIM + h / 2 * KEY_DIM;
        const double *v = c + 2 * KEY_HEADS * KEY_DIM + h * VALUE_DIM;
        double q2 = 1e-6, k2 = 1e-6, mean = 0;
        for (unsigned i = 0; i < KEY_DIM; i++)
            q2 += q[i] * q[i], k2 += k[i] * k[i];
        double at = f->a[t * VALUE_HEADS + h] + f->dt_bias[h];
        double alpha = exp(f->decay[h] * log1p(exp(at)));
        double beta = 1 / (1 + exp(-(double)f->b[t * VALUE_HEADS + h])), o[VALUE_DIM];
        for (unsigned j = 0; j < VALUE_DIM; j++) {
            double m = 0;
            for (unsigned i = 0; i < KEY_DIM; i++)
                m += (s[j][i] *= alpha) * k[i] / sqrt(k2);
            o[j] = 0;
            for (unsigned i = 0; i < KEY_DIM; i++) {
                s[j][i] += k[i] / sqrt(k2) * beta * (v[j] - m);
                o[j] += s[j][i] * q[i] / sqrt(q2) / sqrt(KEY_DIM);
            }
            mean += o[j] * o[j] / VALUE_DIM;
        }
        for (unsigned j = 0; j < VALUE_DIM; j++)
            out[t * VALUE_DIM + j] = o[j] / sqrt(mean + 1e-6) * f->norm[j] *
                                     silu(f->z[(t * VALUE_HEADS + h) * VALUE_DIM + j]);
    }
}

static void test_delta_rule(void **state)
{
    (void)state;
    static struct delta_fixture whole, parts;
    make_delta(&whole);
    run_delta(&whole, 0, TOKENS);
    for (unsigned h = 0; h < VALUE_HEADS; h++) {
        double want[TOKENS * VALUE_DIM];
        naive_delta_head(&whole, h, want);
        for (unsigned t = 0; t < TOKENS; t++)
            for (unsigned j = 0; j < VALUE_DIM; j++) {
                double got = whole.out[(t * VALUE_HEADS + h) * VALUE_DIM + j];
                assert_true(fabs(got - want[t * VALUE_DIM + j]) < 1e-5);
            }
    }
    make_delta(&parts);
    run_delta(&parts, 0, 1);
    run_delta(&parts, 1, 5);
    run_delta(&parts, 6, 3);
    assert_memory_equal(parts.out, whole.out, sizeof whole.out);
    assert_memory_equal(parts.delta, whole.delta, sizeof whole.delta);
    assert_memory_equal(parts.conv, whole.conv, sizeof whole.conv);
}

static void test_route(void **state)
{
    (void)state;
    uint32_t ids[3];
    float weights[3];
    const float ties[6] = {1, 2, 2, 2, 2, 0};
    kernels_ref.route_row(ties, 6, 3, true, ids, weights);
    assert_true(ids[0] == 1 && ids[1] == 2 && ids[2] == 3);
    assert_true(weights[0] == 1.0f / 3);
    const float logits[5] = {0.5f, -1, 3, 2, NAN};
    kernels_ref.route_row(logits, 4, 2, false, ids, weights);
    double total = exp(0.5) + exp(-1) + exp(3) + exp(2);
    assert_true(ids[0] == 2 && ids[1] == 3);
    assert_true(fabs(weights[0] - exp(3) / total) < 1e-6);
    assert_true(fabs(weights[1] - exp(2) / total) < 1e-6);
    kernels_ref.route_row(logits, 5, 3, true, ids, weights);
    assert_true(ids[0] == 0 && ids[1] == 2 && ids[2] == 3);
    const float nothing[4] = {NAN, NAN, NAN, NAN};
    kernels_ref.route_row(nothing, 4, 3, true, ids, weights);
    assert_true(ids[0] < 4 && ids[1] < 4 && ids[2] < 4 && ids[0] != ids[1] && ids[1] != ids[2]);
}

static void test_rotation_keeps_length(void **state)
{
    (void)state;
    float frequencies[8], cosines[8], sines[8], x[16], before[16];
    backend_rope_frequencies(10000, 16, frequencies);
    assert_true(frequencies[0] == 1.0f && fabs(frequencies[4] - 0.01) < 1e-8);
    fill(x, 16);
    memcpy(before, x, sizeof x);
    kernels_ref.rope_angles(12345, frequencies, 8, cosines, sines);
    kernels_ref.rotate(x, cosines, sines, 8);
    for (unsigned i = 0; i < 8; i++) {
        double angle = (double)(12345.0f * frequencies[i]);
        assert_true(fabs(x[i] - (before[i] * cos(angle) - before[i + 8] * sin(angle))) < 1e-6);
        assert_true(fabs(x[i + 8] - (before[i + 8] * cos(angle) + before[i] * sin(angle))) < 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),      cmocka_unit_test(test_quantize_row),
        cmocka_unit_test(test_attention),   cmocka_unit_test(test_delta_rule),
        cmocka_unit_test(test_route),       cmocka_unit_test(test_rotation_keeps_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
