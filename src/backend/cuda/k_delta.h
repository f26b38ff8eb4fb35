/* The gated delta rule and the convolution before it. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_DELTA_H
#define FLASHMOE_BACKEND_CUDA_K_DELTA_H

/* Returns where a part of a segment's state lies behind row t: in a slot of its own if the rows
 * leave a trail. */
GPU_FN float *gpu_state_behind(const struct backend_segment *segment, unsigned part, uint32_t t)
{
    char *at = (char *)segment->state[part];
    if (segment->n_slots == 0)
        return (float *)at;
    const uint32_t slot = (segment->slot + t + 1) % segment->n_slots;
    return (float *)(at - segment->slot * segment->slot_bytes + slot * segment->slot_bytes);
}

/* ---- the convolution ------------------------------------------------------------------------- */

/* A channel of a segment: row t, or what the history has of those before its first. */
struct gpu_conv_channel {
    const float *newest; /* row 0 */
    const float *history;
    uint32_t channels, n_past;
};

GPU_FN float gpu_conv_at(const struct gpu_conv_channel &c, int32_t t)
{
    return t >= 0 ? c.newest[(size_t)t * c.channels]
                  : c.history[(size_t)((int32_t)c.n_past + t) * c.channels];
}

/* The history behind n_rows rows. Each value moves down, so that none is read after it is written
 * where the history before lies. */
GPU_FN void gpu_conv_remember(const struct gpu_conv_channel &c, uint32_t n_rows, float *history)
{
    for (uint32_t s = 0; s < c.n_past; s++)
        history[(size_t)s * c.channels] = gpu_conv_at(c, (int32_t)(n_rows + s - c.n_past));
}

/* One thread for a channel of a chunk. Only the first chunk uses the history. */
GPU_KERNEL void gpu_conv_silu(const struct gpu_conv_silu_args a)
{
    const struct backend_segment *segment = &a.d.net.segments[gpu_block_y()];
    const uint32_t n_blocks = (a.end - a.begin + gpu_n_threads() - 1) / gpu_n_threads();
    const uint32_t c = a.begin + gpu_block_x() % n_blocks * gpu_n_threads() + gpu_thread();
    const uint32_t begin = gpu_block_x() / n_blocks * GPU_CONV_ROWS, n_rows = segment->n_rows;
    const uint32_t end = n_rows < begin + GPU_CONV_ROWS ? n_rows : begin + GPU_CONV_ROWS;
    const uint32_t channels = a.d.channels, kernel = a.d.net.kernel;
    const float *w = a.d.net.conv_weight + c;
    gpu_wait();
    if (c >= a.end || begin >= end)
        return;
    const size_t at = (size_t)segment->first_row * channels + c;
    const struct gpu_conv_channel channel = {
        a.d.net.qkv + at, (const float *)segment->state[DELTA_NET_CONV] + c, channels,
        kernel - 1};
    for (uint32_t t = begin; t < end; t++) {
        float acc = 0;
        for (uint32_t s = 0; s < kernel; s++)
            acc = fmaf(w[(size_t)s * channels], gpu_conv_at(channel, (int32_t)(t + s - kernel + 1)),
                       acc);
        a.d.net.mixed[at + (size_t)t * channels] = fmath_silu(acc);
    }
    /* A trail has one chunk. */
    for (uint32_t t = segment->n_slots > 0 ? 0 : n_rows - 1; begin == 0 && t < n_rows; t++)
        gpu_conv_remember(channel, t + 1, gpu_state_behind(segment, DELTA_NET_CONV, t) + c);
}

/* What the token before left of a channel, and the channel's weights. */
struct gpu_conv_taps {
    float past[GPU_TOKEN_KERNEL], w[GPU_TOKEN_KERNEL];
};

/* Taps that are not there have the first one's place. */
GPU_FN struct gpu_conv_taps gpu_read_taps(const struct gpu_delta_net &d, const float *history,
                                          uint32_t c)
{
    const uint32_t n_past = d.net.kernel - 1;
    struct gpu_conv_taps taps;
    GPU_UNROLL
    for (uint32_t s = 0; s < GPU_TOKEN_KERNEL; s++) {
        const size_t at = s <= n_past ? (size_t)s * d.channels : 0;
        taps.past[s] = n_past > 0 ? gpu_load_float_now(history + (s < n_past ? at : 0) + c) : 0;
        taps.w[s] = gpu_load_float_now(d.net.conv_weight + at + c);
    }
    return taps;
}

/* The same as conv_silu for a segment's only row. */
GPU_FN float gpu_conv_token(const struct gpu_delta_net &d, const struct gpu_conv_taps &taps,
                            float newest)
{
    const uint32_t n_past = d.net.kernel - 1;
    float acc = 0;
    GPU_UNROLL
    for (uint32_t s = 0; s < GPU_TOKEN_KERNEL; s++)
        acc = s <= n_past ? fmaf(taps.w[s], s < n_past ? taps.past[s] : newest, acc) : acc;
    return fmath_silu(acc);
}

/* The history of the next row. */
GPU_FN void gpu_remember_token(const struct gpu_delta_net &d, float *history, uint32_t c,
                               const struct gpu_conv_taps &taps, float newest)
{
    const uint32_t n_past = d.net.kernel - 1;
    GPU_UNROLL
    for (uint32_t s = 0; s + 1 < GPU_TOKEN_KERNEL; s++)
        if (s < n_past)
            history[(size_t)s * d.channels + c] = s + 1 < n_past ? taps.past[s + 1] : newest;
}

/* ---- heads ----------------------------------------------------------------------------------- */

struct gpu_delta_place {
    uint32_t key_dim, value_dim, key_width, value_width;
};

GPU_FN struct gpu_delta_place gpu_delta_place_of(const struct backend_delta_net &net)
{
    return {net.key_dim, net.value_dim, net.n_key_heads * net.key_dim,
            net.n_value_heads * net.value_dim};
}

GPU_FN uint32_t gpu_key_head_of(const struct backend_delta_net &net, uint32_t head)
{
    return net.has_tiled_value_heads ? head % net.n_key_heads
                                     : head / (net.n_value_heads / net.n_key_heads);
}

GPU_FN float *gpu_delta_state(const struct backend_delta_net &net,
                              const struct backend_segment *segment, uint32_t head)
{
    return (float *)segment->state[DELTA_NET_STATE] + (size_t)head * net.key_dim * net.value_dim;
}

/* Factors of a token: alpha, the decay of the state, and beta, the share of what is corrected. */
GPU_FN float gpu_delta_alpha(const struct backend_delta_net &net, size_t t, uint32_t head)
{
    return fmath_exp(net.decay[head] *
                     fmath_softplus(net.a[t * net.n_value_heads + head] + net.dt_bias[head]));
}

GPU_FN float gpu_delta_beta(const struct backend_delta_net &net, size_t t, uint32_t head)
{
    return fmath_sigmoid(net.b[t * net.n_value_heads + head]);
}

GPU_FN float gpu_unit_scale(float squares)
{
    const float eps = 1e-6f;
    return 1.0f / sqrtf(squares + eps);
}

/* ---- heads of 128 keys: a team of four threads has a row of the state in registers ----------- */

#define GPU_TEAM_QUADS (GPU_TOKEN_DIM / GPU_LANES)

/* Member u of a team has elements 16 m + 4 u to 16 m + 4 u + 3: lanes 4 u to 4 u + 3 of a sum. */
struct gpu_team_row {
    struct gpu_quad quads[GPU_TEAM_QUADS];
};

GPU_FN struct gpu_team_row gpu_load_team_row(const float *row)
{
    struct gpu_team_row r;
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++)
        r.quads[m] = gpu_load_quad(row + m * GPU_LANES + gpu_member() * 4);
    return r;
}

GPU_FN void gpu_store_team_row(const struct gpu_team_row &r, float *row)
{
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++)
        gpu_store_quad(row + m * GPU_LANES + gpu_member() * 4, r.quads[m]);
}

GPU_FN struct gpu_quad gpu_team_quad(gpu_shared<float> x, unsigned m)
{
    return gpu_take_quad(x, m * GPU_LANES + gpu_member() * 4);
}

GPU_FN float gpu_dot_team(const struct gpu_team_row &r, gpu_shared<float> x)
{
    struct gpu_quad lanes = {};
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++) {
        const struct gpu_quad it = gpu_team_quad(x, m);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            lanes.x[e] = fmaf(r.quads[m].x[e], it.x[e], lanes.x[e]);
    }
    return gpu_sum_team(lanes);
}

/* x / sqrt(sum x^2 + 1e-6) * scale of a key or query. All teams of a warp call it. */
GPU_FN void gpu_unit_norm_team(const struct gpu_team_row &x, float scale, bool is_there,
                               gpu_shared<float> y)
{
    struct gpu_quad lanes = {};
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++)
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            lanes.x[e] = fmaf(x.quads[m].x[e], x.quads[m].x[e], lanes.x[e]);
    const float inverse = gpu_unit_scale(gpu_sum_team(lanes));
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++) {
        struct gpu_quad to;
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            to.x[e] = x.quads[m].x[e] * inverse * scale;
        if (is_there)
            gpu_put_quad(y, m * GPU_LANES + gpu_member() * 4, to);
    }
}

/* One token of the rule: decay, read, correct, write, output. */
GPU_FN float gpu_delta_step_team(struct gpu_team_row *row, gpu_shared<float> q,
                                 gpu_shared<float> k, float v, float alpha, float beta)
{
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++)
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            row->quads[m].x[e] *= alpha;
    const float delta = beta * (v - gpu_dot_team(*row, k));
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++) {
        const struct gpu_quad it = gpu_team_quad(k, m);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            row->quads[m].x[e] = fmaf(it.x[e], delta, row->quads[m].x[e]);
    }
    return gpu_dot_team(*row, q);
}

/* ---- the rule for many rows ------------------------------------------------------------------ */

/* Rows whose keys, queries, values and factors lie in shared memory at a time. */
#define GPU_DELTA_ROWS 32u

struct gpu_delta_shared {
    gpu_shared<float> q, k;        /* [GPU_DELTA_ROWS, GPU_TOKEN_DIM] */
    gpu_shared<float> v;           /* [GPU_DELTA_ROWS, GPU_DELTA_COLUMNS] */
    gpu_shared<float> alpha, beta; /* [GPU_DELTA_ROWS] */
};

/* What a block computes: columns from first_column on of a head. */
struct gpu_delta_part {
    const struct backend_segment *segment;
    uint32_t head, first_column;
};

/* Fetches n rows from row t on. */
GPU_FN void gpu_delta_fetch(const struct gpu_delta_net &d, const struct gpu_delta_part &part,
                            size_t t, uint32_t n, const gpu_delta_shared &s)
{
    const struct gpu_delta_place p = gpu_delta_place_of(d.net);
    const uint32_t key_head = gpu_key_head_of(d.net, part.head);
    const float query_scale = 1.0f / sqrtf((float)p.key_dim);
    const uint32_t n_teams = gpu_n_threads() / GPU_TEAM;
    const float *mixed = d.net.mixed + t * d.channels;
    if (gpu_thread() < n) {
        s.alpha[gpu_thread()] = gpu_delta_alpha(d.net, t + gpu_thread(), part.head);
        s.beta[gpu_thread()] = gpu_delta_beta(d.net, t + gpu_thread(), part.head);
    }
    for (uint32_t i = gpu_thread(); i < n * GPU_DELTA_COLUMNS; i += gpu_n_threads()) {
        const uint32_t c = part.first_column + i % GPU_DELTA_COLUMNS;
        s.v[i] = c < p.value_dim ? mixed[(size_t)(i / GPU_DELTA_COLUMNS) * d.channels +
                                         2 * p.key_width + part.head * p.value_dim + c]
                                 : 0;
    }
    for (uint32_t first = 0; first < 2 * n; first += n_teams) {
        const uint32_t i = first + gpu_thread() / GPU_TEAM, row = i / 2;
        const bool is_key = i % 2 != 0, is_there = i < 2 * n;
        const float *x = mixed + (is_there ? row : 0) * (size_t)d.channels +
                         (is_key ? p.key_width : 0) + key_head * p.key_dim;
        gpu_unit_norm_team(gpu_load_team_row(x), is_key ? 1.0f : query_scale, is_there,
                           (is_key ? s.k : s.q) + (is_there ? row * GPU_TOKEN_DIM : 0));
    }
}

/* Heads of GPU_TOKEN_DIM keys. */
GPU_FN void gpu_delta_rows_team(const struct gpu_delta_net &d, const struct gpu_delta_part &part,
                                const gpu_delta_shared &s)
{
    const uint32_t value_dim = d.net.value_dim, own = gpu_thread() / GPU_TEAM;
    const uint32_t column = part.first_column + own;
    const bool is_there = column < value_dim;
    const uint32_t value_width = d.net.n_value_heads * value_dim;
    const size_t in_state = ((size_t)part.head * value_dim + (is_there ? column : 0)) *
                            GPU_TOKEN_DIM;
    const bool has_trail = part.segment->n_slots > 0;
    float *out = d.net.out + (size_t)part.head * value_dim + column;
    struct gpu_team_row row =
        gpu_load_team_row((const float *)part.segment->state[DELTA_NET_STATE] + in_state);
    for (uint32_t from = 0; from < part.segment->n_rows; from += GPU_DELTA_ROWS) {
        const size_t t = (size_t)part.segment->first_row + from;
        const uint32_t left = part.segment->n_rows - from;
        const uint32_t n = left < GPU_DELTA_ROWS ? left : GPU_DELTA_ROWS;
        gpu_barrier(); /* the rows before have been used */
        gpu_delta_fetch(d, part, t, n, s);
        gpu_barrier();
        for (uint32_t i = 0; i < n; i++) {
            const float result = gpu_delta_step_team(
                &row, s.q + i * GPU_TOKEN_DIM, s.k + i * GPU_TOKEN_DIM,
                s.v[i * GPU_DELTA_COLUMNS + own], s.alpha[i], s.beta[i]);
            if (is_there && gpu_member() == 0)
                out[(t + i) * value_width] = result;
            if (is_there && (has_trail || i + 1 == left))
                gpu_store_team_row(row, gpu_state_behind(part.segment, DELTA_NET_STATE, from + i) +
                                            in_state);
        }
    }
}

/* Any heads: a half warp takes a row of the state, which stays in global memory. */
GPU_FN void gpu_unit_norm(const float *x, uint32_t n, float scale, unsigned half,
                          gpu_shared<float> y)
{
    const unsigned j = gpu_lane() & 15;
    const bool is_mine = gpu_thread() / GPU_LANES == half;
    const float lane = is_mine ? gpu_end_lane(gpu_add_squares(x, n, j, 0), n, j) : 0;
    const float inverse = gpu_unit_scale(gpu_sum_half_warp(lane));
    for (uint32_t i = j; is_mine && i < n; i += GPU_LANES)
        y[i] = x[i] * inverse * scale;
}

GPU_FN float gpu_dot_lane(const float *a, gpu_shared<float> b, uint32_t n, unsigned j)
{
    float sum = 0;
    for (uint32_t i = j; i < n; i += GPU_LANES)
        sum = fmaf(a[i], b[i], sum);
    return gpu_end_lane(sum, n, j);
}

GPU_FN void gpu_delta_step(const struct gpu_delta_net &d, const struct gpu_delta_part &part,
                           size_t t, const gpu_delta_shared &s)
{
    const struct gpu_delta_place p = gpu_delta_place_of(d.net);
    const unsigned j = gpu_lane() & 15, n_halves = gpu_n_threads() / GPU_LANES;
    const float *v = d.net.mixed + t * d.channels + 2 * p.key_width + part.head * p.value_dim;
    const uint32_t r = (uint32_t)(t - part.segment->first_row);
    const size_t head = (size_t)part.head * p.key_dim * p.value_dim;
    float *state = gpu_state_behind(part.segment, DELTA_NET_STATE, r) + head;
    const float *before = r > 0 ? gpu_state_behind(part.segment, DELTA_NET_STATE, r - 1) + head
                                : gpu_delta_state(d.net, part.segment, part.head);
    for (uint32_t first = 0; first < GPU_DELTA_COLUMNS; first += n_halves) {
        const uint32_t c = part.first_column + first + gpu_thread() / GPU_LANES;
        const bool is_there = c < p.value_dim;
        float *row = state + (size_t)c * p.key_dim;
        for (uint32_t i = j; is_there && i < p.key_dim; i += GPU_LANES)
            row[i] = before[(size_t)c * p.key_dim + i] * s.alpha[0];
        const float read = gpu_sum_half_warp(is_there ? gpu_dot_lane(row, s.k, p.key_dim, j) : 0);
        const float delta = is_there ? s.beta[0] * (v[c] - read) : 0;
        for (uint32_t i = j; is_there && i < p.key_dim; i += GPU_LANES)
            row[i] = fmaf(s.k[i], delta, row[i]);
        const float result = gpu_sum_half_warp(is_there ? gpu_dot_lane(row, s.q, p.key_dim, j) : 0);
        if (is_there && j == 0)
            d.net.out[t * p.value_width + part.head * p.value_dim + c] = result;
    }
}

GPU_FN void gpu_delta_rows(const struct gpu_delta_net &d, const struct gpu_delta_part &part,
                           const gpu_delta_shared &s)
{
    const struct gpu_delta_place p = gpu_delta_place_of(d.net);
    const uint32_t key_head = gpu_key_head_of(d.net, part.head);
    const float query_scale = 1.0f / sqrtf((float)p.key_dim);
    const size_t begin = part.segment->first_row, end = begin + part.segment->n_rows;
    for (size_t t = begin; t < end; t++) {
        const float *q = d.net.mixed + t * d.channels + key_head * p.key_dim;
        gpu_unit_norm(q, p.key_dim, query_scale, 0, s.q);
        gpu_unit_norm(q + p.key_width, p.key_dim, 1.0f, 2, s.k);
        if (gpu_thread() == gpu_n_threads() - 1) {
            s.alpha[0] = gpu_delta_alpha(d.net, t, part.head);
            s.beta[0] = gpu_delta_beta(d.net, t, part.head);
        }
        gpu_barrier();
        gpu_delta_step(d, part, t, s);
        gpu_barrier();
    }
}

/* Teams read four floats at a time. */
GPU_FN bool gpu_has_teams(const struct gpu_delta_net &d, const struct backend_segment *segment)
{
    const uintptr_t at = (uintptr_t)d.net.mixed | (uintptr_t)segment->state[DELTA_NET_STATE] |
                         (segment->n_slots > 0 ? (uintptr_t)segment->slot_bytes : 0);
    return d.net.key_dim == GPU_TOKEN_DIM && d.channels % 4 == 0 && at % sizeof(gpu_quad) == 0;
}

GPU_KERNEL void gpu_delta_head(const struct gpu_delta_head_args a)
{
    GPU_SHARED(float, q, GPU_DELTA_ROWS * GPU_TOKEN_DIM);
    GPU_SHARED(float, k, GPU_DELTA_ROWS * GPU_TOKEN_DIM);
    GPU_SHARED(float, v, GPU_DELTA_ROWS * GPU_DELTA_COLUMNS);
    GPU_SHARED(float, alpha, GPU_DELTA_ROWS);
    GPU_SHARED(float, beta, GPU_DELTA_ROWS);
    const gpu_delta_shared s = {q, k, v, alpha, beta};
    const uint32_t n_parts = (a.d.net.value_dim + GPU_DELTA_COLUMNS - 1) / GPU_DELTA_COLUMNS;
    const struct gpu_delta_part part = {&a.d.net.segments[gpu_block_y()],
                                        a.first_head + gpu_block_x() / n_parts,
                                        gpu_block_x() % n_parts * GPU_DELTA_COLUMNS};
    gpu_wait();
    if (gpu_has_teams(a.d, part.segment))
        gpu_delta_rows_team(a.d, part, s);
    else
        gpu_delta_rows(a.d, part, s);
}

/* ---- norm and gate --------------------------------------------------------------------------- */

GPU_FN float gpu_delta_gate(const struct backend_delta_net &net, float z)
{
    return net.has_sigmoid_gate ? fmath_sigmoid(z) : fmath_silu(z);
}

GPU_KERNEL void gpu_delta_close(const struct gpu_delta_close_args a)
{
    const struct backend_delta_net &net = a.d.net;
    const struct backend_segment *segment = &net.segments[gpu_block_y()];
    const uint32_t i = gpu_block_x() * (gpu_n_threads() / GPU_WARP) + gpu_warp();
    const uint32_t row = i / a.n_heads, head = a.first_head + i % a.n_heads, dim = net.value_dim;
    gpu_wait();
    if (row >= segment->n_rows)
        return;
    const size_t at = ((size_t)(segment->first_row + row) * net.n_value_heads + head) * dim;
    const unsigned j = gpu_lane() & 15;
    const float lane = gpu_end_lane(gpu_add_squares(net.out + at, dim, j, 0), dim, j);
    const float scale = gpu_norm_scale(gpu_sum_half_warp(lane), dim, net.eps);
    for (uint32_t first = 0; first < dim; first += GPU_UNIT) {
        const uint32_t n = dim - first < GPU_UNIT ? dim - first : GPU_UNIT;
        float x[GPU_UNIT_VALUES], norm[GPU_UNIT_VALUES], z[GPU_UNIT_VALUES];
        gpu_load_unit(net.out, at + first, n, x);
        gpu_load_unit(net.norm, first, n, norm);
        gpu_load_unit(net.z, at + first, n, z);
        GPU_UNROLL
        for (uint32_t e = 0; e < GPU_UNIT_VALUES; e++)
            x[e] = x[e] * scale * norm[e] * gpu_delta_gate(net, z[e]);
        gpu_store_unit(x, at + first, n, net.out);
        if (a.rounding.group > 0)
            gpu_round_unit(x, n, at + first, a.rounding);
    }
}

/* ---- one token, all in one ------------------------------------------------------------------- */

/* Parts of a block's threads: channels of the query, the key and the values; and the gate. */
enum gpu_token_part { GPU_TOKEN_QUERY, GPU_TOKEN_KEY, GPU_TOKEN_VALUE, GPU_TOKEN_GATE };

struct gpu_token_shared {
    gpu_shared<float> mixed;   /* [3, GPU_TOKEN_DIM]: query, key, values */
    gpu_shared<float> gate;    /* [GPU_TOKEN_DIM] */
    gpu_shared<float> norm;    /* [GPU_TOKEN_DIM] */
    gpu_shared<float> result;  /* [GPU_TOKEN_DIM] */
    gpu_shared<float> factors; /* [2]: alpha, beta */
};

/* A thread of the gate computes alpha, one of another warp beta. */
#define GPU_TOKEN_ALPHA 0u
#define GPU_TOKEN_BETA 32u

GPU_FN void gpu_token_factors(const struct backend_delta_net &net, size_t row, uint32_t head,
                              uint32_t i, const gpu_token_shared &s)
{
    if (i == GPU_TOKEN_ALPHA)
        s.factors[0] = gpu_delta_alpha(net, row, head);
    if (i == GPU_TOKEN_BETA)
        s.factors[1] = gpu_delta_beta(net, row, head);
}

/* 1 / sqrt(sum of squares + 1e-6) of a query or key, for every thread. All teams call it. */
GPU_FN float gpu_token_inverse(gpu_shared<float> x)
{
    struct gpu_quad lanes = {};
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++) {
        const struct gpu_quad it = gpu_team_quad(x, m);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++)
            lanes.x[e] = fmaf(it.x[e], it.x[e], lanes.x[e]);
    }
    return gpu_unit_scale(gpu_sum_team(lanes));
}

/* As gpu_delta_step_team, with a query and a key that are not scaled yet. */
GPU_FN float gpu_token_step(struct gpu_team_row *row, const gpu_token_shared &s, float v)
{
    const gpu_shared<float> q = s.mixed, k = s.mixed + GPU_TOKEN_DIM;
    const float query_scale = 1.0f / sqrtf((float)GPU_TOKEN_DIM);
    const float of_query = gpu_token_inverse(q), of_key = gpu_token_inverse(k);
    const float alpha = s.factors[0], beta = s.factors[1];
    struct gpu_quad read = {}, result = {};
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++) {
        const struct gpu_quad it = gpu_team_quad(k, m);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            row->quads[m].x[e] *= alpha;
            read.x[e] = fmaf(row->quads[m].x[e], it.x[e] * of_key, read.x[e]);
        }
    }
    const float delta = beta * (v - gpu_sum_team(read));
    GPU_UNROLL
    for (unsigned m = 0; m < GPU_TEAM_QUADS; m++) {
        const struct gpu_quad key = gpu_team_quad(k, m), query = gpu_team_quad(q, m);
        GPU_UNROLL
        for (unsigned e = 0; e < 4; e++) {
            row->quads[m].x[e] = fmaf(key.x[e] * of_key, delta, row->quads[m].x[e]);
            result.x[e] = fmaf(row->quads[m].x[e], query.x[e] * of_query * query_scale,
                               result.x[e]);
        }
    }
    return gpu_sum_team(result);
}

/* Norm, gate and rounding of a head; a warp does it. */
GPU_FN void gpu_token_close(const struct gpu_delta_token_args &a, size_t at,
                            const gpu_token_shared &s)
{
    float lane = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < GPU_TOKEN_DIM; i += GPU_LANES) {
        const float it = s.result[i + (gpu_lane() & 15)];
        lane = fmaf(it, it, lane);
    }
    const float scale = gpu_norm_scale(gpu_sum_half_warp(lane), GPU_TOKEN_DIM, a.d.net.eps);
    float x[GPU_UNIT_VALUES];
    GPU_UNROLL
    for (uint32_t e = 0; e < GPU_UNIT_VALUES; e++) {
        const uint32_t i = gpu_unit_column(e);
        x[e] = s.result[i] * scale * s.norm[i] * s.gate[i];
    }
    gpu_store_unit(x, at, GPU_UNIT, a.d.net.out);
    if (a.rounding.group == 64)
        gpu_round_unit<64>(x, GPU_UNIT, at, a.rounding);
    else if (a.rounding.group > 0)
        gpu_round_unit(x, GPU_UNIT, at, a.rounding);
}

/* Value heads of a key head read the same history of its query and key. The last of their blocks to
 * have read it moves it on. */
GPU_KERNEL_FOR(4 * GPU_TOKEN_DIM, 1) void gpu_delta_token(const struct gpu_delta_token_args a)
{
    GPU_SHARED(float, mixed, 3 * GPU_TOKEN_DIM);
    GPU_SHARED(float, gate, GPU_TOKEN_DIM);
    GPU_SHARED(float, norm, GPU_TOKEN_DIM);
    GPU_SHARED(float, result, GPU_TOKEN_DIM);
    GPU_SHARED(float, factors, 2);
    GPU_SHARED(uint32_t, n_before, 1);
    const gpu_token_shared s = {mixed, gate, norm, result, factors};
    gpu_read_args(a);
    const struct backend_delta_net &net = a.d.net;
    const struct backend_segment *segment = &net.segments[gpu_block_y()];
    const uint32_t head = gpu_block_x(), key_head = gpu_key_head_of(net, head);
    const uint32_t ratio = net.n_value_heads / net.n_key_heads, column = gpu_thread() / GPU_TEAM;
    const uint32_t part = gpu_thread() / GPU_TOKEN_DIM, i = gpu_thread() % GPU_TOKEN_DIM;
    const uint32_t key_width = net.n_key_heads * GPU_TOKEN_DIM;
    const bool has_channel = part != GPU_TOKEN_GATE;
    const uint32_t channel = (has_channel ? part : 0) * key_width +
                             (part == GPU_TOKEN_VALUE ? head : key_head) * GPU_TOKEN_DIM + i;
    float *history = (float *)segment->state[DELTA_NET_CONV];
    float *state = gpu_delta_state(net, segment, head) + (size_t)column * GPU_TOKEN_DIM;
    const size_t row = segment->first_row, at = (row * net.n_value_heads + head) * GPU_TOKEN_DIM;
    const float *own = has_channel ? net.qkv + row * a.d.channels + channel : net.z + at + i;
    struct gpu_team_row team_row = gpu_load_team_row(state);
    const struct gpu_conv_taps taps = gpu_read_taps(a.d, history, channel);
    if (part == GPU_TOKEN_GATE)
        norm[i] = net.norm[i];
    gpu_wait(); /* states and histories are those of the token before */
    const float newest = gpu_load_float_now(own);
    if (has_channel) {
        mixed[gpu_thread()] = gpu_conv_token(a.d, taps, newest);
    } else {
        gpu_token_factors(net, row, head, i, s);
        gate[i] = gpu_delta_gate(net, newest);
    }
    if (part == GPU_TOKEN_VALUE)
        gpu_remember_token(a.d, history, channel, taps, newest);
    gpu_barrier();
    if (gpu_thread() == 0)
        n_before[0] = gpu_count_up(&a.n_read[gpu_block_y() * net.n_key_heads + key_head]);
    const float y = gpu_token_step(&team_row, s, mixed[GPU_TOKEN_VALUE * GPU_TOKEN_DIM + column]);
    gpu_store_team_row(team_row, state);
    if (gpu_member() == 0)
        result[column] = y;
    gpu_barrier();
    if (n_before[0] == ratio - 1) {
        if (part == GPU_TOKEN_QUERY || part == GPU_TOKEN_KEY)
            gpu_remember_token(a.d, history, channel, taps, newest);
        if (gpu_thread() == 0)
            a.n_read[gpu_block_y() * net.n_key_heads + key_head] = 0;
    }
    if (gpu_warp() == gpu_n_threads() / GPU_WARP - 1)
        gpu_token_close(a, at, s);
}

#endif
