/* Part of lanes.h: the convolution over time and the gated delta rule. Sixteen rows of a head's
 * state stay in the L1 cache while all tokens are processed. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_DELTA_H
#define FLASHMOE_BACKEND_CPU_LANES_DELTA_H

static void conv_silu(const struct backend_delta_net *args, const struct backend_segment *segment,
                      size_t begin, size_t end)
{
    const size_t channels = 2 * (size_t)args->n_key_heads * args->key_dim +
                            (size_t)args->n_value_heads * args->value_dim;
    const unsigned kernel = args->kernel;
    for (size_t t = 0; t < segment->n_rows; t++) {
        const float *newest = args->qkv + (segment->first_row + t) * channels + begin;
        float *out = args->mixed + (segment->first_row + t) * channels + begin;
        const float *weight = args->conv_weight + begin;
        const float *past = kernel_state_before(segment, DELTA_NET_CONV, t) + begin;
        float *history = kernel_state_behind(segment, DELTA_NET_CONV, t) + begin;
        EACH_VECTOR(end - begin, {
            vf acc = vf_zero();
            for (unsigned s = 0; s + 1 < kernel; s++) {
                const vf old = LOAD(past + s * channels + i);
                acc = vf_fma(LOAD(weight + s * channels + i), old, acc);
                if (s > 0)
                    STORE(history + (s - 1) * channels + i, old);
            }
            const vf now = LOAD(newest + i);
            acc = vf_fma(LOAD(weight + (kernel - 1) * channels + i), now, acc);
            if (kernel > 1)
                STORE(history + (kernel - 2) * channels + i, now);
            STORE(out + i, vf_silu(acc));
        });
    }
}

/* x / sqrt(sum x^2 + 1e-6) * scale: the constant is part of the layer's definition. */
static void unit_norm(const float *x, size_t n, float scale, float *y)
{
    const float eps = 1e-6f;
    const vf inverse = vf_set1(1.0f / sqrtf(dot_one(x, x, n) + eps)), times = vf_set1(scale);
    EACH_VECTOR(n, STORE(y + i, vf_mul(vf_mul(LOAD(x + i), inverse), times)););
}

/* Keys, queries and factors of a run of tokens, [n, key_dim] and [n]. */
struct delta_inputs {
    float *q, *k, *alpha, *beta;
};

static void delta_inputs_of(const struct backend_delta_net *args, unsigned head, size_t first,
                            size_t n, const struct delta_inputs *in)
{
    const size_t key_dim = args->key_dim, key_width = args->n_key_heads * key_dim;
    const size_t width = 2 * key_width + (size_t)args->n_value_heads * args->value_dim;
    const size_t key_head = args->has_tiled_value_heads
                                ? head % args->n_key_heads
                                : head / (args->n_value_heads / args->n_key_heads);
    const float query_scale = 1.0f / sqrtf((float)key_dim);
    for (size_t t = 0; t < n; t++) {
        const float *mixed = args->mixed + (first + t) * width;
        unit_norm(mixed + key_head * key_dim, key_dim, query_scale, in->q + t * key_dim);
        unit_norm(mixed + key_width + key_head * key_dim, key_dim, 1.0f, in->k + t * key_dim);
        const size_t at = (first + t) * args->n_value_heads + head;
        in->beta[t] = fmath_sigmoid(args->b[at]);
        in->alpha[t] =
            fmath_exp(args->decay[head] * fmath_softplus(args->a[at] + args->dt_bias[head]));
    }
}

#define DELTA_ROWS 4 /* state rows that share the loads of keys and queries */

/* Decays the rows and reads them with k: lane j of the result is row j. The decayed rows are not
 * stored; delta_write computes them again. */
INLINE vf delta_read(const float *state, size_t key_dim, vf alpha, const float *k)
{
    vf acc[LANES];
    for (unsigned j = 0; j < LANES; j += DELTA_ROWS, state += DELTA_ROWS * key_dim) {
        vf sums[DELTA_ROWS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        EACH_VECTOR(key_dim, {
            const vf key = LOAD(k + i);
            UNROLL for (unsigned r = 0; r < DELTA_ROWS; r++)
                sums[r] = vf_fma(vf_mul(LOAD(state + r * key_dim + i), alpha), key, sums[r]);
        });
        UNROLL for (unsigned r = 0; r < DELTA_ROWS; r++)
            acc[j + r] = sums[r];
    }
    return vf_sum16(acc);
}

/* Corrects the rows, writes them to `state`, and reads the new rows with q. */
INLINE vf delta_write(const float *before, float *state, size_t key_dim, vf alpha, const float *k,
                      const float *q, const float *delta)
{
    vf acc[LANES];
    for (unsigned j = 0; j < LANES; j += DELTA_ROWS, before += DELTA_ROWS * key_dim,
                  state += DELTA_ROWS * key_dim) {
        vf sums[DELTA_ROWS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        EACH_VECTOR(key_dim, {
            const vf key = LOAD(k + i);
            const vf query = LOAD(q + i);
            UNROLL for (unsigned r = 0; r < DELTA_ROWS; r++) {
                const vf old = vf_mul(LOAD(before + r * key_dim + i), alpha);
                const vf now = vf_fma(key, vf_set1(delta[j + r]), old);
                STORE(state + r * key_dim + i, now);
                /* Read back: then missing elements at the end are zero even if delta is
                 * infinite. */
                sums[r] = vf_fma(count == LANES ? now : LOAD(state + r * key_dim + i), query,
                                 sums[r]);
            }
        });
        UNROLL for (unsigned r = 0; r < DELTA_ROWS; r++)
            acc[j + r] = sums[r];
    }
    return vf_sum16(acc);
}

/* Handles fewer than sixteen rows, one at a time. */
static void delta_row(const float *before, float *row, size_t n, float alpha, float beta,
                      const float *k, const float *q, float v, float *out)
{
    const vf decay = vf_set1(alpha);
    EACH_VECTOR(n, STORE(row + i, vf_mul(LOAD(before + i), decay)););
    const vf delta = vf_set1(beta * (v - dot_one(row, k, n)));
    EACH_VECTOR(n, STORE(row + i, vf_fma(LOAD(k + i), delta, LOAD(row + i))););
    *out = dot_one(row, q, n);
}

/* Up to sixteen rows of a head's state, from in_state on in the part; tokens of a segment, from its
 * row `first` on. */
struct delta_run {
    const struct backend_segment *segment;
    size_t in_state, n_rows, first, n;
    float *kept; /* sixteen rows of a state, where a trail's next token finds them */
};

/* Sixteen rows of a state that only a token of another pass may need. */
static void delta_put(const float *rows, size_t key_dim, float *state)
{
    for (size_t i = 0; i < LANES * key_dim; i += LANES)
        vf_stream(state + i, vf_load(rows + i));
}

/* The tokens of a trail leave their states in different slots, which memory would have to be read
 * for before a plain store writes it. */
static bool delta_can_put(const struct delta_run *run, size_t key_dim)
{
    const float *state = kernel_state_behind(run->segment, DELTA_NET_STATE, run->first);
    return run->segment->n_slots > 0 && run->n_rows == LANES && key_dim % LANES == 0 &&
           (uintptr_t)(state + run->in_state) % 64 == 0 && run->segment->slot_bytes % 64 == 0;
}

static void delta_rows(const struct delta_run *run, size_t key_dim, const struct delta_inputs *in,
                       const float *v, size_t v_stride, float *out, size_t out_stride)
{
    const bool puts = delta_can_put(run, key_dim);
    for (size_t t = 0; t < run->n; t++, v += v_stride, out += out_stride) {
        const float *k = in->k + t * key_dim, *q = in->q + t * key_dim;
        float *behind =
            kernel_state_behind(run->segment, DELTA_NET_STATE, run->first + t) + run->in_state;
        float *state = puts ? run->kept : behind;
        const float *before =
            puts && t > 0
                ? run->kept
                : kernel_state_before(run->segment, DELTA_NET_STATE, run->first + t) +
                      run->in_state;
        if (run->n_rows < LANES) {
            for (size_t j = 0; j < run->n_rows; j++)
                delta_row(before + j * key_dim, state + j * key_dim, key_dim, in->alpha[t],
                          in->beta[t], k, q, v[j], out + j);
            continue;
        }
        const vf alpha = vf_set1(in->alpha[t]), beta = vf_set1(in->beta[t]);
        float delta[LANES];
        vf_store(delta, vf_mul(beta, vf_sub(vf_load(v), delta_read(before, key_dim, alpha, k))));
        vf_store(out, delta_write(before, state, key_dim, alpha, k, q, delta));
        if (puts)
            delta_put(state, key_dim, behind);
    }
    if (puts)
        stream_end();
}

static void delta_head(const struct backend_delta_net *args, const struct backend_segment *segment,
                       unsigned head, float *scratch)
{
    const size_t key_dim = args->key_dim, value_dim = args->value_dim;
    const size_t key_width = args->n_key_heads * key_dim;
    const size_t value_width = args->n_value_heads * value_dim;
    const size_t width = 2 * key_width + value_width;
    const struct delta_inputs in = {.q = scratch, .k = scratch + KERNEL_DELTA_ROWS * key_dim,
                                    .alpha = scratch + 2 * KERNEL_DELTA_ROWS * key_dim,
                                    .beta = scratch + (2 * key_dim + 1) * KERNEL_DELTA_ROWS};
    for (size_t at = 0; at < segment->n_rows; at += KERNEL_DELTA_ROWS) {
        const size_t left = segment->n_rows - at, first = segment->first_row + at;
        const size_t n = left < KERNEL_DELTA_ROWS ? left : KERNEL_DELTA_ROWS;
        const float *v = args->mixed + first * width + 2 * key_width + head * value_dim;
        float *out = args->out + first * value_width + head * value_dim;
        delta_inputs_of(args, head, first, n, &in);
        for (size_t j = 0; j < value_dim; j += LANES) {
            const struct delta_run run = {
                .segment = segment, .in_state = (head * value_dim + j) * key_dim,
                .n_rows = value_dim - j < LANES ? value_dim - j : LANES, .first = at, .n = n,
                .kept = scratch + (2 * key_dim + 2) * KERNEL_DELTA_ROWS};
            delta_rows(&run, key_dim, &in, v + j, width, out + j, value_width);
        }
        for (size_t t = 0; t < n; t++, out += value_width) {
            const float *z = args->z + (first + t) * value_width + head * value_dim;
            rms_norm(out, args->norm, args->eps, value_dim, out);
            if (args->has_sigmoid_gate)
                EACH_VECTOR(value_dim,
                            STORE(out + i, vf_mul(LOAD(out + i), vf_sigmoid(LOAD(z + i)))););
            else
                EACH_VECTOR(value_dim,
                            STORE(out + i, vf_mul(LOAD(out + i), vf_silu(LOAD(z + i)))););
        }
    }
}

#endif
