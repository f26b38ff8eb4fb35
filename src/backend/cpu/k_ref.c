/* The reference kernels: they define the bits of every result. Plain loops over 16 lanes, which any
 * compiler may vectorise without changing a bit. They are compiled for any processor of the
 * architecture, so fmaf may be a library call. */
#include <math.h>
#include <string.h>

#include "backend/cpu/levels.h"
#include "backend/router.h"
#include "base/fmath.h"
#include "base/limits.h"
#include "quant/interleave.h"

#define LANES 16

static inline float sum_lanes(float lane[LANES])
{
    for (unsigned width = LANES / 2; width > 0; width /= 2)
        for (unsigned j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return lane[0];
}

/* Missing elements at the end of the last 16 count as zero. */
static float dot(const float *a, const float *b, size_t n)
{
    float lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (unsigned j = 0; j < LANES; j++)
            lane[j] = fmaf(a[i + j], b[i + j], lane[j]);
    for (unsigned j = 0; i < n && j < LANES; j++)
        lane[j] = i + j < n ? fmaf(a[i + j], b[i + j], lane[j]) : fmaf(0.0f, 0.0f, lane[j]);
    return sum_lanes(lane);
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

static uint32_t magnitude_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

/* The scale follows from the largest magnitude. A NaN counts as the largest: it makes the group's
 * scale NaN, and everything computed with it. */
static void quantize_group(const float *x, size_t n, int8_t *q, float *scale, float *offset,
                           int32_t *sum_out)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: the low bits of the sum are the integer */
    uint32_t max_bits = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = magnitude_bits(x[i]);
        max_bits = bits > max_bits ? bits : max_bits;
    }
    const float max = fmath_float_of_bits(max_bits);
    const bool is_zero = max < KERNEL_MIN_SCALED;
    const float inverse = is_zero ? 0 : 127.0f / max;
    int32_t total = 0;
    for (size_t i = 0; i < n; i++) {
        float shifted = fmaf(x[i], inverse, magic);
        uint32_t bits;
        memcpy(&bits, &shifted, sizeof bits);
        q[i] = (int8_t)(uint8_t)bits;
        total += q[i];
    }
    *scale = is_zero ? 0 : max / 127.0f;
    *offset = *scale * (float)total;
    *sum_out = total;
}

static void quantize_row(const float *x, size_t n, size_t group, int8_t *q, float *scale,
                         float *offset, int32_t *sums)
{
    for (size_t g = 0; g < n / group; g++)
        quantize_group(x + g * group, group, q + g * group, &scale[g], &offset[g], &sums[g]);
}

static void matmul_float(const struct kernel_matmul *m)
{
    const struct weight *w = m->w;
    for (size_t r = m->begin; r < m->end; r++) {
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        weight_row(w, r, parts);
        w->quant->decode_row(w->quant, parts, m->scratch, w->n_cols);
        for (size_t t = 0; t < m->n; t++)
            *kernel_out(m, t, r) = dot(m->scratch, m->in.x + kernel_pick(m, t) * w->n_cols,
                                       w->n_cols);
    }
}

static int32_t dot_codes(const uint8_t *codes, const int8_t *q, size_t n)
{
    int32_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += (int32_t)codes[i] * q[i];
    return total;
}

/* `scratch` holds the row's scales, biases and codes, one after the other. If the weight's rows are
 * interleaved, the row itself follows. */
static void matmul_codes(const struct kernel_matmul *m)
{
    const struct weight *w = m->w;
    const struct quant *quant = w->quant;
    const size_t group = quant->group, n_groups = w->n_cols / group;
    float *scales = m->scratch, *biases = scales + n_groups;
    uint8_t *codes = (uint8_t *)(biases + n_groups);
    for (size_t r = m->begin; r < m->end; r++) {
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        if (w->is_interleaved)
            interleave_take_row(w, r, codes + w->n_cols, parts);
        else
            weight_row(w, r, parts);
        quant->unpack_row(quant, parts, w->n_cols, codes, scales, biases, 1);
        for (size_t t = 0; t < m->n; t++) {
            const size_t from = kernel_pick(m, t) * n_groups;
            float acc = 0;
            for (size_t g = 0; g < n_groups; g++) {
                const int8_t *q = m->in.q + (from + g) * group;
                const int32_t all = dot_codes(codes + g * group, q, group);
                const int32_t centred = all - (int32_t)quant->zero * m->in.sum[from + g];
                acc = fmaf(scales[g] * m->in.scale[from + g], (float)centred, acc);
                if (quant->has_bias)
                    acc = fmaf(biases[g], m->in.offset[from + g], acc);
            }
            *kernel_out(m, t, r) = acc;
        }
    }
}

static void matmul(const struct kernel_matmul *m)
{
    if (m->w->quant->codes != QUANT_NO_CODES)
        matmul_codes(m);
    else
        matmul_float(m);
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

/* Rotates dimension i with dimension i + half. */
static void rotate(float *x, const float *cosines, const float *sines, unsigned half)
{
    for (unsigned i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(-b, sines[i], a * cosines[i]);
        x[i + half] = fmaf(a, sines[i], b * cosines[i]);
    }
}

static void store_kv(const struct kv_format *kv_format, enum kv_side side, const float *x, size_t n,
                     void *to)
{
    kv_store(kv_format, side, x, n, to);
}

/* The row is x times the returned scale. */
static float load_kv(const struct kernel_attention *a, const char *rows, size_t i, float *x)
{
    const size_t dim = a->head_dim;
    const struct quant *plain = a->kv_format->plain;
    const void *row = rows + i * kv_row_bytes(a->kv_format, dim);
    if (plain != NULL) {
        plain->decode_row(plain, &row, x, dim);
        return 1;
    }
    int8_t levels[LIMIT_HEAD_DIM];
    kv_load_levels(a->kv_format, row, dim, levels);
    for (size_t d = 0; d < dim; d++)
        x[d] = levels[d];
    return kv_load_scale(a->kv_format, row, dim);
}

static void attend(const struct kernel_attention *a)
{
    const size_t dim = a->head_dim, value_dim = a->value_dim, n = a->n_positions;
    float row[LIMIT_HEAD_DIM];
    for (unsigned h = 0; h < a->n_heads; h++)
        a->max[h] = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        const float kept = load_kv(a, a->keys, i, row);
        for (unsigned h = 0; h < a->n_heads; h++) {
            const float score = dot(kernel_query(a, h), row, dim) * kept * a->scale;
            a->scratch[h * KERNEL_ATTENTION_BLOCK + i] = score;
            a->max[h] = score > a->max[h] ? score : a->max[h];
        }
    }
    for (unsigned h = 0; h < a->n_heads; h++) {
        float *score = a->scratch + h * KERNEL_ATTENTION_BLOCK;
        for (size_t i = 0; i < n; i++)
            score[i] = fmath_exp(score[i] - a->max[h]);
        a->total[h] = sum(score, n);
    }
    memset(a->out, 0, a->n_heads * value_dim * sizeof *a->out);
    for (size_t i = 0; i < n; i++) {
        const float kept = load_kv(a, a->values, i, row);
        for (unsigned h = 0; h < a->n_heads; h++) {
            const float share = a->scratch[h * KERNEL_ATTENTION_BLOCK + i] * kept;
            for (size_t d = 0; d < value_dim; d++)
                a->out[h * value_dim + d] = fmaf(share, row[d], a->out[h * value_dim + d]);
        }
    }
}

static void attend_merge(float *max, float *total, float *out, float max_block,
                         float block_total, const float *block_out, size_t head_dim)
{
    const float larger = max_block > *max ? max_block : *max;
    const float keep = fmath_exp(*max - larger), add_share = fmath_exp(max_block - larger);
    *max = larger;
    *total = fmaf(*total, keep, block_total * add_share);
    for (size_t d = 0; d < head_dim; d++)
        out[d] = fmaf(out[d], keep, block_out[d] * add_share);
}

static void attend_sink(float max, float *total, float *out, float sink, size_t head_dim)
{
    const float larger = sink > max ? sink : max;
    const float keep = fmath_exp(max - larger);
    *total = fmaf(*total, keep, fmath_exp(sink - larger));
    for (size_t d = 0; d < head_dim; d++)
        out[d] *= keep;
}

static void attend_close(float *out, float total, const float *gate, size_t head_dim)
{
    for (size_t d = 0; d < head_dim; d++)
        out[d] /= total;
    for (size_t d = 0; gate != NULL && d < head_dim; d++)
        out[d] *= fmath_sigmoid(gate[d]);
}

static void conv_silu(const struct backend_delta_net *args, const struct backend_segment *segment,
                      size_t begin, size_t end)
{
    const size_t channels = 2 * (size_t)args->n_key_heads * args->key_dim +
                            (size_t)args->n_value_heads * args->value_dim;
    const unsigned kernel = args->kernel;
    for (size_t t = 0; t < segment->n_rows; t++) {
        const float *past = kernel_state_before(segment, DELTA_NET_CONV, t);
        float *history = kernel_state_behind(segment, DELTA_NET_CONV, t);
        const float *newest = args->qkv + (segment->first_row + t) * channels;
        float *out = args->mixed + (segment->first_row + t) * channels;
        for (size_t c = begin; c < end; c++) {
            const float *w = args->conv_weight + c;
            float acc = 0;
            for (unsigned s = 0; s + 1 < kernel; s++)
                acc = fmaf(w[s * channels], past[s * channels + c], acc);
            acc = fmaf(w[(kernel - 1) * channels], newest[c], acc);
            out[c] = fmath_silu(acc);
        }
        for (unsigned s = 0; s + 2 < kernel; s++)
            memcpy(history + s * channels + begin, past + (s + 1) * channels + begin,
                   (end - begin) * sizeof(float));
        if (kernel > 1)
            memcpy(history + (kernel - 2) * channels + begin, newest + begin,
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
 * depends only on value dimension j. */
static void delta_step(const float *before, float *state, size_t key_dim, size_t value_dim,
                       const float *q, const float *k, const float *v, float alpha, float beta,
                       float *out)
{
    for (size_t j = 0; j < value_dim; j++) {
        float *row = state + j * key_dim;
        for (size_t i = 0; i < key_dim; i++)
            row[i] = before[j * key_dim + i] * alpha;
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
    const size_t in_state = head * key_dim * value_dim;
    for (size_t r = 0; r < segment->n_rows; r++) {
        const size_t t = segment->first_row + r;
        const float *mixed = args->mixed + t * (2 * key_width + value_width);
        unit_norm(mixed + key_head * key_dim, key_dim, query_scale, q);
        unit_norm(mixed + key_width + key_head * key_dim, key_dim, 1.0f, k);
        const float *v = mixed + 2 * key_width + head * value_dim;
        size_t at = t * args->n_value_heads + head;
        float beta = fmath_sigmoid(args->b[at]);
        float alpha =
            fmath_exp(args->decay[head] * fmath_softplus(args->a[at] + args->dt_bias[head]));
        float *out = args->out + t * value_width + head * value_dim;
        delta_step(kernel_state_before(segment, DELTA_NET_STATE, r) + in_state,
                   kernel_state_behind(segment, DELTA_NET_STATE, r) + in_state, key_dim, value_dim,
                   q, k, v, alpha, beta, out);
        const float *z = args->z + t * value_width + head * value_dim;
        rms_norm(out, args->norm, args->eps, value_dim, out);
        for (size_t j = 0; j < value_dim; j++)
            out[j] *= args->has_sigmoid_gate ? fmath_sigmoid(z[j]) : fmath_silu(z[j]);
    }
}

static void route_row(const float *logits, unsigned n_experts, unsigned k, bool renormalise,
                      uint32_t *ids, float *weights)
{
    unsigned n = 0;
    for (uint32_t e = 0; e < n_experts; e++)
        router_insert(e, router_rank(logits[e]), k, &n, ids, weights);
    const float max = weights[0];
    float total = 0;
    if (renormalise) {
        for (unsigned i = 0; i < k; i++)
            total += fmath_exp(weights[i] - max);
    } else {
        float lane[LANES] = {0};
        for (uint32_t e = 0; e < n_experts; e++)
            lane[e % LANES] += fmath_exp(logits[e] - max);
        total = sum_lanes(lane);
    }
    for (unsigned i = 0; i < k; i++)
        weights[i] = fmath_exp(weights[i] - max) / total;
    router_sort(ids, weights, k);
}

static void route_scored(const struct router *r, const float *logits, uint32_t *ids,
                         float *weights)
{
    const struct router_row row = router_row_of(r, logits);
    const uint32_t size = router_group_size(r);
    uint32_t groups[LIMIT_TOP_K];
    const unsigned n_groups = router_groups(r, &row, logits, router_pair_of, groups);
    unsigned n = 0;
    for (unsigned g = 0; g < n_groups; g++)
        for (uint32_t e = groups[g] * size; e < (groups[g] + 1) * size; e++)
            router_insert(e, router_choice(r, &row, logits, e), r->k, &n, ids, weights);
    router_weigh(r, &row, logits, ids, weights);
}

static void silu_mul(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = fmath_silu(gate[i]) * up[i];
}

static void gelu_mul(float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        gate[i] = fmath_gelu(gate[i]) * up[i];
}

static void clamped_swiglu(float *gate, const float *up, float alpha, float limit, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float g = gate[i] > limit ? limit : gate[i];
        const float u = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
        gate[i] = g / (1.0f + fmath_exp(-(g * alpha))) * (u + 1.0f);
    }
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

static uint64_t int8_peak(uint64_t n_rounds)
{
    uint8_t codes[64];
    int8_t x[64];
    for (unsigned i = 0; i < sizeof codes; i++) {
        codes[i] = (uint8_t)(i + n_rounds % 3);
        x[i] = (int8_t)(i + n_rounds % 5);
    }
    uint32_t total = 0; /* wraps around */
    for (uint64_t i = 0; i < n_rounds; i++) {
        total += (uint32_t)dot_codes(codes, x, sizeof codes);
        codes[i % sizeof codes] ^= 1;
    }
    volatile uint32_t keep = total;
    (void)keep;
    return n_rounds * sizeof codes * 2;
}

static uint64_t fma_peak(uint64_t n_rounds)
{
    float lane[LANES];
    for (unsigned j = 0; j < LANES; j++)
        lane[j] = (float)j;
    for (uint64_t i = 0; i < n_rounds; i++)
        for (unsigned j = 0; j < LANES; j++)
            lane[j] = fmaf(lane[j], 0.5f, 1.0f);
    volatile float keep = sum_lanes(lane);
    (void)keep;
    return n_rounds * LANES * 2;
}

void k_ref_init(struct kernels *table)
{
    *table = (struct kernels){
        .name = "reference",
        .quantize_row = quantize_row,
        .matmul = matmul,
        .n_few = 2,
        .rms_norm = rms_norm,
        .rope_angles = rope_angles,
        .rotate = rotate,
        .store_kv = store_kv,
        .attend = attend,
        .attend_merge = attend_merge,
        .attend_sink = attend_sink,
        .attend_close = attend_close,
        .conv_silu = conv_silu,
        .delta_head = delta_head,
        .route_row = route_row,
        .route_scored = route_scored,
        .silu_mul = silu_mul,
        .gelu_mul = gelu_mul,
        .clamped_swiglu = clamped_swiglu,
        .weighted_sum = weighted_sum,
        .add_scaled_sigmoid = add_scaled_sigmoid,
        .add = add,
        .int8_peak = int8_peak,
        .fma_peak = fma_peak,
    };
}
