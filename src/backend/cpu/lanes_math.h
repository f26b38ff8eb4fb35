/* Part of lanes.h: functions of one vector, norms, the router, and everything that works element by
 * element. Each performs k_ref.c's operations in the same order. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_MATH_H
#define FLASHMOE_BACKEND_CPU_LANES_MATH_H

/* fmath_exp lane by lane. */
static inline vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f);
    const vf c = vf_min(vf_set1(89.0f), vf_max(vf_set1(-104.0f), x));
    const vf n = vf_sub(vf_fma(c, vf_set1(1.44269504088896341f), magic), magic);
    vf r = vf_fma(n, vf_set1(-0x1.62e4p-1f), c);
    r = vf_fma(n, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_fma(vf_set1(0x1.6d7af4p-10f), r, vf_set1(0x1.1239f2p-7f));
    p = vf_fma(p, r, vf_set1(0x1.5554cp-5f));
    p = vf_fma(p, r, vf_set1(0x1.555492p-3f));
    p = vf_fma(p, r, vf_set1(0x1p-1f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    const vi whole = vi_of_vf(n), half = vi_half(whole), bias = vi_set1(127);
    const vf a = vf_of_bits(vi_shift_to_exponent(vi_add(half, bias)));
    const vf b = vf_of_bits(vi_shift_to_exponent(vi_add(vi_sub(whole, half), bias)));
    return vf_mul(vf_mul(p, a), b);
}

static inline vf vf_one_plus_exp_neg(vf x)
{
    return vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_set1(-0.0f), x)));
}

static inline vf vf_sigmoid(vf x)
{
    return vf_div(vf_set1(1.0f), vf_one_plus_exp_neg(x));
}

static inline vf vf_silu(vf x)
{
    return vf_div(x, vf_one_plus_exp_neg(x));
}

static inline vf vf_gelu(vf x)
{
    const vf inner =
        vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(0x1.2444f2p-4f), vf_set1(0x1.988454p+0f)));
    return vf_div(x, vf_one_plus_exp_neg(inner));
}

/* Runs a body over n elements. i is the first of at most 16, and `count` is their number. LOAD and
 * STORE use whole vectors where they can. */
#define EACH_VECTOR(n, ...)                                                                        \
    do {                                                                                           \
        size_t i = 0;                                                                              \
        for (; i + LANES <= (n); i += LANES) {                                                     \
            const size_t count = LANES;                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        if (i < (n)) {                                                                             \
            const size_t count = (n) - i;                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)
#define LOAD(p) (count == LANES ? vf_load(p) : vf_load_part((p), count))
#define STORE(p, x)                                                                                \
    do {                                                                                           \
        if (count == LANES)                                                                        \
            vf_store((p), (x));                                                                    \
        else                                                                                       \
            vf_store_part((p), (x), count);                                                        \
    } while (0)

static inline float dot_one(const float *a, const float *b, size_t n)
{
    vf acc = vf_zero();
    EACH_VECTOR(n, acc = vf_fma(LOAD(a + i), LOAD(b + i), acc););
    return vf_sum(acc);
}

static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *y)
{
    const vf scale = vf_set1(1.0f / sqrtf(dot_one(x, x, n) / (float)n + eps));
    EACH_VECTOR(n, STORE(y + i, vf_mul(vf_mul(LOAD(x + i), scale), LOAD(weight + i))););
}

/* Rotates dimension i with dimension i + half. */
static void rotate(float *x, const float *cosines, const float *sines, unsigned half)
{
    EACH_VECTOR(half, {
        const vf a = LOAD(x + i), b = LOAD(x + half + i);
        const vf c = LOAD(cosines + i), s = LOAD(sines + i);
        STORE(x + i, vf_nmadd(b, s, vf_mul(a, c)));
        STORE(x + half + i, vf_fma(a, s, vf_mul(b, c)));
    });
}

static void silu_mul(float *gate, const float *up, size_t n)
{
    EACH_VECTOR(n, STORE(gate + i, vf_mul(vf_silu(LOAD(gate + i)), LOAD(up + i))););
}

static void gelu_mul(float *gate, const float *up, size_t n)
{
    EACH_VECTOR(n, STORE(gate + i, vf_mul(vf_gelu(LOAD(gate + i)), LOAD(up + i))););
}

/* vf_min and vf_max pass on a NaN in their second argument. */
static void clamped_swiglu(float *gate, const float *up, float alpha, float limit, size_t n)
{
    const vf highest = vf_set1(limit), lowest = vf_set1(-limit), one = vf_set1(1.0f);
    EACH_VECTOR(n, {
        const vf g = vf_min(highest, LOAD(gate + i));
        const vf u = vf_max(lowest, vf_min(highest, LOAD(up + i)));
        const vf glu = vf_div(g, vf_one_plus_exp_neg(vf_mul(g, vf_set1(alpha))));
        STORE(gate + i, vf_mul(glu, vf_add(u, one)));
    });
}

static void weighted_sum(const float *parts, const float *weights, unsigned k, size_t dim,
                         float *out)
{
    EACH_VECTOR(dim, {
        vf acc = vf_zero();
        for (unsigned j = 0; j < k; j++)
            acc = vf_fma(vf_set1(weights[j]), LOAD(parts + j * dim + i), acc);
        STORE(out + i, acc);
    });
}

static void add_scaled_sigmoid(float *y, const float *x, float gate, size_t n)
{
    const vf scale = vf_set1(fmath_sigmoid(gate));
    EACH_VECTOR(n, STORE(y + i, vf_fma(scale, LOAD(x + i), LOAD(y + i))););
}

static void add(float *y, const float *x, size_t n)
{
    EACH_VECTOR(n, STORE(y + i, vf_add(LOAD(y + i), LOAD(x + i))););
}

static void quantize_row(const float *x, size_t n, size_t group, int8_t *q, float *scale,
                         float *offset, int32_t *sums)
{
    const vf magic = vf_set1(12582912.0f);
    for (size_t g = 0; g < n / group; g++, x += group, q += group) { /* groups are whole vectors */
        vi max_bits = vi_set1(0), total = vi_set1(0);
        for (size_t i = 0; i < group; i += LANES)
            max_bits = vi_max(max_bits, vi_magnitude_bits(vf_load(x + i)));
        const float max = fmath_float_of_bits((uint32_t)vi_reduce_max(max_bits));
        const bool is_zero = max < KERNEL_MIN_SCALED;
        const vf inverse = vf_set1(is_zero ? 0 : 127.0f / max);
        for (size_t i = 0; i < group; i += LANES)
            total = vi_add(total, vi_store_low_bytes(
                                      q + i, vi_bits_of(vf_fma(vf_load(x + i), inverse, magic))));
        scale[g] = is_zero ? 0 : max / 127.0f;
        sums[g] = vi_reduce_add(total);
        offset[g] = scale[g] * (float)sums[g];
    }
}

/* ---- router ---------------------------------------------------------------------------------- */

static void best_of(const float *logits, unsigned n_experts, unsigned k, uint32_t *ids,
                    float *weights)
{
    unsigned n = 0;
    uint32_t e = 0;
    while (e < n_experts) {
        if (n == k && e + LANES <= n_experts &&
            !vf_any_greater(vf_load(logits + e), vf_set1(weights[k - 1]))) {
            e += LANES;
            continue;
        }
        const uint32_t end = e + LANES < n_experts ? e + LANES : n_experts;
        for (; e < end; e++)
            router_insert(e, router_rank(logits[e]), k, &n, ids, weights);
    }
}

static void route_row(const float *logits, unsigned n_experts, unsigned k, bool renormalise,
                      uint32_t *ids, float *weights)
{
    best_of(logits, n_experts, k, ids, weights);
    const float max = weights[0];
    EACH_VECTOR(k, STORE(weights + i, vf_exp(vf_sub(LOAD(weights + i), vf_set1(max)))););
    float total = 0;
    if (renormalise) {
        for (unsigned i = 0; i < k; i++)
            total += weights[i];
    } else {
        float lane[LANES];
        vf acc = vf_zero();
        size_t e = 0;
        for (; e + LANES <= n_experts; e += LANES)
            acc = vf_add(acc, vf_exp(vf_sub(vf_load(logits + e), vf_set1(max))));
        vf_store(lane, acc);
        for (; e < n_experts; e++)
            lane[e % LANES] += fmath_exp(logits[e] - max);
        total = vf_sum(vf_load(lane));
    }
    for (unsigned i = 0; i < k; i++)
        weights[i] /= total;
    router_sort(ids, weights, k);
}

/* Computes what `count` experts from e on, at most 16, are chosen by. NaN where there is no
 * expert. */
static inline void choices_of(const struct router *r, const struct router_row *row,
                              const float *logits, uint32_t e, size_t count, float *choices)
{
    const vf x = LOAD(logits + e);
    vf score = r->score == ROUTER_SIGMOID
                   ? vf_sigmoid(x)
                   : vf_div(vf_exp(vf_sub(x, vf_set1(row->max))), vf_set1(row->total));
    if (r->correction != NULL)
        score = vf_add(score, LOAD(r->correction + e));
    vf_store(choices, score);
}

static struct router_pair pair_of(const struct router *r, const struct router_row *row,
                                  const float *logits, uint32_t begin, uint32_t end)
{
    struct router_pair pair = {-INFINITY, -INFINITY};
    float choices[LANES];
    for (uint32_t e = begin; e < end; e += LANES) {
        const size_t count = end - e < LANES ? end - e : LANES;
        choices_of(r, row, logits, e, count, choices);
        for (size_t i = 0; i < count; i++)
            router_pair_add(&pair, router_rank(choices[i]));
    }
    return pair;
}

static void route_scored(const struct router *r, const float *logits, uint32_t *ids,
                         float *weights)
{
    const struct router_row row = router_row_of(r, logits);
    const uint32_t size = router_group_size(r);
    uint32_t groups[LIMIT_TOP_K];
    const unsigned n_groups = router_groups(r, &row, logits, pair_of, groups);
    float choices[LANES];
    unsigned n = 0;
    for (unsigned g = 0; g < n_groups; g++) {
        const uint32_t end = (groups[g] + 1) * size;
        for (uint32_t e = groups[g] * size; e < end; e += LANES) {
            const size_t count = end - e < LANES ? end - e : LANES;
            choices_of(r, &row, logits, e, count, choices);
            for (uint32_t i = 0; i < count; i++)
                router_insert(e + i, router_rank(choices[i]), r->k, &n, ids, weights);
        }
    }
    router_weigh(r, &row, logits, ids, weights);
}

#endif
