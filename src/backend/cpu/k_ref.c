/* The reference kernels: they define the bits of every result. Plain loops over 16 lanes that
 * any compiler may vectorise without changing a bit. */
#include <math.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "base/fmath.h"

#define LANES 16

static inline float sum_lanes(float lane[LANES])
{
    for (unsigned width = LANES / 2; width > 0; width /= 2)
        for (unsigned j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

static float dot(const float *a, const float *b, size_t n)
{
    float lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (unsigned j = 0; j < LANES; j++)
            lane[j] = fmaf(a[i + j], b[i + j], lane[j]);
    for (unsigned j = 0; i + j < n; j++)
        lane[j] = fmaf(a[i + j], b[i + j], lane[j]);
    return sum_lanes(lane);
}

/* Four rows against one vector: the vector is loaded once, each row's sum is that of dot(). */
static void dot_4(const float *rows, size_t row_stride, const float *x, size_t n, float *y)
{
    float lane[KERNEL_ROW_BLOCK][LANES] = {{0}};
    const float *r0 = rows, *r1 = r0 + row_stride, *r2 = r1 + row_stride, *r3 = r2 + row_stride;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (unsigned j = 0; j < LANES; j++) {
            lane[0][j] = fmaf(r0[i + j], x[i + j], lane[0][j]);
            lane[1][j] = fmaf(r1[i + j], x[i + j], lane[1][j]);
            lane[2][j] = fmaf(r2[i + j], x[i + j], lane[2][j]);
            lane[3][j] = fmaf(r3[i + j], x[i + j], lane[3][j]);
        }
    for (unsigned j = 0; i + j < n; j++) {
        lane[0][j] = fmaf(r0[i + j], x[i + j], lane[0][j]);
        lane[1][j] = fmaf(r1[i + j], x[i + j], lane[1][j]);
        lane[2][j] = fmaf(r2[i + j], x[i + j], lane[2][j]);
        lane[3][j] = fmaf(r3[i + j], x[i + j], lane[3][j]);
    }
    for (unsigned r = 0; r < KERNEL_ROW_BLOCK; r++)
        y[r] = sum_lanes(lane[r]);
}

static float sum(const float *x, size_t n)
{
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % LANES] += x[i];
    return sum_lanes(lane);
}

static float sum_squares(const float *x, size_t n)
{
    return dot(x, x, n);
}

static void quantize_row(const float *x, size_t n, size_t group, int8_t *q, float *scale,
                         int32_t *q_sum)
{
    const float magic = 12582912.0f; /* adding it rounds to nearest even */
    for (size_t g = 0; g < n / group; g++) {
        float most = 0;
        for (size_t i = g * group; i < (g + 1) * group; i++) {
            float size = fabsf(x[i]);
            most = size > most ? size : most;
        }
        float inverse = most > 0 ? 127.0f / most : 0;
        int32_t total = 0;
        for (size_t i = g * group; i < (g + 1) * group; i++) {
            float v = x[i] * inverse;
            v = v > -127.0f ? v : -127.0f; /* a NaN becomes -127, never undefined */
            v = v < 127.0f ? v : 127.0f;
            q[i] = (int8_t)(v + magic - magic);
            total += q[i];
        }
        scale[g] = most / 127.0f;
        q_sum[g] = total;
    }
}

static void decode_weight_row(const struct weight *w, size_t r, float *dst)
{
    const void *parts[QUANT_MAX_PARTS] = {NULL};
    weight_row(w, r, parts);
    w->quant->decode_row(w->quant, parts, dst, w->n_cols);
}

static void matmul_float(const struct weight *w, size_t begin, size_t end, const float *x,
                         size_t n, float *y, size_t y_stride, float *scratch)
{
    const size_t n_cols = w->n_cols;
    size_t r = begin;
    for (; r + KERNEL_ROW_BLOCK <= end; r += KERNEL_ROW_BLOCK) {
        for (unsigned k = 0; k < KERNEL_ROW_BLOCK; k++)
            decode_weight_row(w, r + k, scratch + k * n_cols);
        for (size_t t = 0; t < n; t++)
            dot_4(scratch, n_cols, x + t * n_cols, n_cols, y + t * y_stride + r);
    }
    for (; r < end; r++) {
        decode_weight_row(w, r, scratch);
        for (size_t t = 0; t < n; t++)
            y[t * y_stride + r] = dot(scratch, x + t * n_cols, n_cols);
    }
}

static int32_t dot_codes(const uint8_t *codes, const int8_t *q, size_t n)
{
    int32_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += (int32_t)codes[i] * q[i];
    return total;
}

/* One weight row as it is multiplied. */
struct affine_row {
    const uint8_t *codes;
    const float *scales, *biases;
    size_t n_groups, group;
};

/* Tokens [t, t + AFFINE_TOKENS): the folds of several tokens run side by side. */
#define AFFINE_TOKENS 4
static void affine_dot_4(const struct affine_row *row, const struct kernel_input *in, size_t t,
                         float acc[AFFINE_TOKENS])
{
    const size_t n_groups = row->n_groups, group = row->group, n_cols = n_groups * group;
    for (size_t g = 0; g < n_groups; g++)
        for (unsigned k = 0; k < AFFINE_TOKENS; k++) {
            const size_t at = (t + k) * n_groups + g;
            const int8_t *q = in->q + (t + k) * n_cols + g * group;
            const int32_t dot = dot_codes(row->codes + g * group, q, group);
            acc[k] = fmaf(row->scales[g] * in->scale[at], (float)dot, acc[k]);
            acc[k] = fmaf(row->biases[g] * in->scale[at], (float)in->q_sum[at], acc[k]);
        }
}

static float affine_dot(const struct affine_row *row, const struct kernel_input *in, size_t t)
{
    const size_t n_groups = row->n_groups, group = row->group;
    const int8_t *q = in->q + t * n_groups * group;
    const float *scale = in->scale + t * n_groups;
    const int32_t *q_sum = in->q_sum + t * n_groups;
    float acc = 0;
    for (size_t g = 0; g < n_groups; g++) {
        const int32_t dot = dot_codes(row->codes + g * group, q + g * group, group);
        acc = fmaf(row->scales[g] * scale[g], (float)dot, acc);
        acc = fmaf(row->biases[g] * scale[g], (float)q_sum[g], acc);
    }
    return acc;
}

/* The row's codes, scales and biases lie one after the other in `scratch`: at most n_cols / 4 +
 * 2 * n_cols / 32 floats. */
static void matmul_affine(const struct weight *w, size_t begin, size_t end,
                          const struct kernel_input *in, size_t n, float *y, size_t y_stride,
                          float *scratch)
{
    const size_t n_cols = w->n_cols, n_groups = n_cols / w->quant->block;
    const struct quant *sq = w->quant->scale;
    float *scales = scratch, *biases = scratch + n_groups;
    uint8_t *codes = (uint8_t *)(scratch + 2 * n_groups);
    const struct affine_row row = {codes, scales, biases, n_groups, w->quant->block};
    for (size_t r = begin; r < end; r++) {
        const void *parts[QUANT_MAX_PARTS];
        weight_row(w, r, parts);
        w->quant->unpack_row(w->quant, parts[0], codes, n_cols);
        sq->decode_row(sq, &parts[1], scales, n_groups);
        sq->decode_row(sq, &parts[2], biases, n_groups);
        size_t t = 0;
        for (; t + AFFINE_TOKENS <= n; t += AFFINE_TOKENS) {
            float acc[AFFINE_TOKENS] = {0};
            affine_dot_4(&row, in, t, acc);
            for (unsigned k = 0; k < AFFINE_TOKENS; k++)
                y[(t + k) * y_stride + r] = acc[k];
        }
        for (; t < n; t++)
            y[t * y_stride + r] = affine_dot(&row, in, t);
    }
}

static void matmul(const struct weight *w, size_t begin, size_t end, const struct kernel_input *in,
                   size_t n, float *y, size_t y_stride, float *scratch)
{
    if (w->quant->kind == QUANT_AFFINE)
        matmul_affine(w, begin, end, in, n, y, y_stride, scratch);
    else
        matmul_float(w, begin, end, in->x, n, y, y_stride, scratch);
}

static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *y)
{
    float scale = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * scale * weight[i];
}

static void rope_angles(uint32_t position, const float *frequencies, unsigned half,
                        float *cosines, float *sines)
{
    for (unsigned i = 0; i < half; i++)
        fmath_sincos((float)position * frequencies[i], &sines[i], &cosines[i]);
}

/* Dimension i turns with dimension i + half. */
static void rotate(float *x, const float *cosines, const float *sines, unsigned half)
{
    for (unsigned i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(-b, sines[i], a * cosines[i]);
        x[i + half] = fmaf(a, sines[i], b * cosines[i]);
    }
}

/* Softmax with a running maximum, block after block from position 0, so that the result depends
 * on the position alone and not on how the prompt was cut. */
static void attend(const struct kernel_attention *a)
{
    const size_t dim = a->head_dim;
    const size_t row_bytes = quant_row_bytes(a->kv_format, dim);
    float *score = a->scratch, *row = a->scratch + KERNEL_ATTENTION_BLOCK;
    float most = -INFINITY, total = 0;
    memset(a->out, 0, dim * sizeof *a->out);
    for (size_t first = 0; first < a->n_positions; first += KERNEL_ATTENTION_BLOCK) {
        size_t n = a->n_positions - first;
        n = n < KERNEL_ATTENTION_BLOCK ? n : KERNEL_ATTENTION_BLOCK;
        float block_most = most;
        for (size_t i = 0; i < n; i++) {
            const void *key = a->keys + (first + i) * row_bytes;
            a->kv_format->decode_row(a->kv_format, &key, row, dim);
            score[i] = dot(a->q, row, dim) * a->scale;
            block_most = score[i] > block_most ? score[i] : block_most;
        }
        float keep = fmath_exp(most - block_most);
        most = block_most;
        for (size_t i = 0; i < n; i++)
            score[i] = fmath_exp(score[i] - most);
        total = fmaf(total, keep, sum(score, n));
        for (size_t d = 0; d < dim; d++)
            a->out[d] *= keep;
        for (size_t i = 0; i < n; i++) {
            const void *value = a->values + (first + i) * row_bytes;
            a->kv_format->decode_row(a->kv_format, &value, row, dim);
            for (size_t d = 0; d < dim; d++)
                a->out[d] = fmaf(score[i], row[d], a->out[d]);
        }
    }
    for (size_t d = 0; d < dim; d++)
        a->out[d] /= total;
}

static void mul_sigmoid(float *x, const float *gate, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] *= fmath_sigmoid(gate[i]);
}

static void conv_silu(const struct backend_delta_net *args, const struct backend_segment *segment,
                      size_t begin, size_t end)
{
    const size_t channels = 2 * (size_t)args->n_key_heads * args->key_dim +
                            (size_t)args->n_value_heads * args->value_dim;
    const unsigned kernel = args->kernel;
    for (size_t t = 0; t < segment->n_rows; t++) {
        const float *newest = args->qkv + (segment->first_row + t) * channels;
        float *out = args->mixed + (segment->first_row + t) * channels;
        for (size_t c = begin; c < end; c++) {
            const float *w = args->conv_weight + c * kernel;
            float acc = 0;
            for (unsigned s = 0; s + 1 < kernel; s++)
                acc = fmaf(w[s], segment->conv[s * channels + c], acc);
            acc = fmaf(w[kernel - 1], newest[c], acc);
            out[c] = fmath_silu(acc);
        }
        for (unsigned s = 0; s + 2 < kernel; s++)
            memcpy(segment->conv + s * channels + begin, segment->conv + (s + 1) * channels + begin,
                   (end - begin) * sizeof(float));
        if (kernel > 1)
            memcpy(segment->conv + (kernel - 2) * channels + begin, newest + begin,
                   (end - begin) * sizeof(float));
    }
}

/* x / sqrt(sum x^2 + 1e-6) * scale: the constant is part of the layer's definition. */
static void unit_norm(const float *x, size_t n, float scale, float *y)
{
    const float eps = 1e-6f;
    float inverse = 1.0f / sqrtf(sum_squares(x, n) + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * inverse * scale;
}

/* One token of the gated delta rule: decay, read, correct, write, output. Row j of the state
 * belongs to value dimension j alone. */
static void delta_step(float *state, size_t key_dim, size_t value_dim, const float *q,
                       const float *k, const float *v, float alpha, float beta, float *out)
{
    for (size_t j = 0; j < value_dim; j++) {
        float *row = state + j * key_dim;
        for (size_t i = 0; i < key_dim; i++)
            row[i] *= alpha;
        float delta = beta * (v[j] - dot(row, k, key_dim));
        for (size_t i = 0; i < key_dim; i++)
            row[i] = fmaf(k[i], delta, row[i]);
        out[j] = dot(row, q, key_dim);
    }
}

static void delta_head(const struct backend_delta_net *args, const struct backend_segment *segment,
                       unsigned head, float *scratch)
{
    const size_t key_dim = args->key_dim, value_dim = args->value_dim;
    const size_t key_width = args->n_key_heads * key_dim;
    const size_t value_width = args->n_value_heads * value_dim;
    const size_t key_head = args->has_tiled_value_heads
                                ? head % args->n_key_heads
                                : head / (args->n_value_heads / args->n_key_heads);
    const float query_scale = 1.0f / sqrtf((float)key_dim);
    float *q = scratch, *k = scratch + key_dim;
    float *state = segment->delta + head * key_dim * value_dim;
    for (size_t t = segment->first_row; t < segment->first_row + segment->n_rows; t++) {
        const float *mixed = args->mixed + t * (2 * key_width + value_width);
        unit_norm(mixed + key_head * key_dim, key_dim, query_scale, q);
        unit_norm(mixed + key_width + key_head * key_dim, key_dim, 1.0f, k);
        const float *v = mixed + 2 * key_width + head * value_dim;
        size_t at = t * args->n_value_heads + head;
        float beta = fmath_sigmoid(args->b[at]);
        float alpha =
            fmath_exp(args->decay[head] * fmath_softplus(args->a[at] + args->dt_bias[head]));
        float *out = args->out + t * value_width + head * value_dim;
        delta_step(state, key_dim, value_dim, q, k, v, alpha, beta, out);
        const float *z = args->z + t * value_width + head * value_dim;
        rms_norm(out, args->norm, args->eps, value_dim, out);
        for (size_t j = 0; j < value_dim; j++)
            out[j] *= fmath_silu(z[j]);
    }
}

static void sort_ascending(uint32_t *ids, float *weights, unsigned k)
{
    for (unsigned i = 1; i < k; i++) {
        uint32_t id = ids[i];
        float weight = weights[i];
        unsigned j = i;
        for (; j > 0 && ids[j - 1] > id; j--) {
            ids[j] = ids[j - 1];
            weights[j] = weights[j - 1];
        }
        ids[j] = id;
        weights[j] = weight;
    }
}

static void route_row(const float *logits, unsigned n_experts, unsigned k, bool renormalise,
                      uint32_t *ids, float *weights)
{
    /* Insertion into a list sorted by logit, best first; a tie stays behind the earlier id. A
     * NaN is never chosen over a number. */
    unsigned n = 0;
    for (uint32_t e = 0; e < n_experts; e++) {
        float logit = logits[e] == logits[e] ? logits[e] : -INFINITY;
        if (n == k && !(logit > weights[k - 1]))
            continue;
        unsigned j = n < k ? n++ : k - 1;
        for (; j > 0 && logit > weights[j - 1]; j--) {
            ids[j] = ids[j - 1];
            weights[j] = weights[j - 1];
        }
        ids[j] = e;
        weights[j] = logit;
    }
    const float most = weights[0];
    float total = 0;
    if (renormalise) {
        for (unsigned i = 0; i < k; i++)
            total += fmath_exp(weights[i] - most);
    } else {
        float lane[LANES] = {0};
        for (uint32_t e = 0; e < n_experts; e++)
            lane[e % LANES] += fmath_exp(logits[e] - most);
        total = sum_lanes(lane);
    }
    for (unsigned i = 0; i < k; i++)
        weights[i] = fmath_exp(weights[i] - most) / total;
    sort_ascending(ids, weights, k);
}

static void silu_mul(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = fmath_silu(gate[i]) * up[i];
}

static void weighted_sum(const float *parts, const float *weights, unsigned k, size_t dim,
                         float *out)
{
    memset(out, 0, dim * sizeof *out);
    for (unsigned j = 0; j < k; j++)
        for (size_t i = 0; i < dim; i++)
            out[i] = fmaf(weights[j], parts[j * dim + i], out[i]);
}

static void add_scaled_sigmoid(float *y, const float *x, float gate, size_t n)
{
    float scale = fmath_sigmoid(gate);
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(scale, x[i], y[i]);
}

static void add(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += x[i];
}

const struct kernels kernels_ref = {
    .name = "reference",
    .quantize_row = quantize_row,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .rope_angles = rope_angles,
    .rotate = rotate,
    .attend = attend,
    .mul_sigmoid = mul_sigmoid,
    .conv_silu = conv_silu,
    .delta_head = delta_head,
    .route_row = route_row,
    .silu_mul = silu_mul,
    .weighted_sum = weighted_sum,
    .add_scaled_sigmoid = add_scaled_sigmoid,
    .add = add,
};
