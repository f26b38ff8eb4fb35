/* The gated delta rule and the convolution before it. Part of kernels_all.h. */
#ifndef FLASHMOE_BACKEND_CUDA_K_DELTA_H
#define FLASHMOE_BACKEND_CUDA_K_DELTA_H

/* One thread for each channel, row after row. */
GPU_KERNEL void gpu_conv_silu(const struct gpu_conv_silu_args a)
{
    const uint32_t c = a.begin + gpu_block_x() * gpu_n_threads() + gpu_thread();
    const struct backend_segment *segment = &a.d.net.segments[gpu_block_y()];
    const uint32_t channels = a.d.channels, kernel = a.d.net.kernel;
    const float *w = a.d.net.conv_weight + c;
    float *history = (float *)segment->state[DELTA_NET_CONV] + c;
    if (c >= a.end)
        return;
    for (uint32_t t = 0; t < segment->n_rows; t++) {
        const size_t at = (size_t)(segment->first_row + t) * channels + c;
        const float newest = a.d.net.qkv[at];
        float acc = 0;
        for (uint32_t s = 0; s + 1 < kernel; s++)
            acc = fmaf(w[(size_t)s * channels], history[(size_t)s * channels], acc);
        acc = fmaf(w[(size_t)(kernel - 1) * channels], newest, acc);
        a.d.net.mixed[at] = fmath_silu(acc);
        for (uint32_t s = 0; s + 2 < kernel; s++)
            history[(size_t)s * channels] = history[(size_t)(s + 1) * channels];
        if (kernel > 1)
            history[(size_t)(kernel - 2) * channels] = newest;
    }
}

/* y = x / sqrt(sum x^2 + 1e-6) * scale of a key or query; the half warp `half` of the block does
 * it. All threads call it and the block meets before y is read. */
GPU_FN void gpu_unit_norm(const float *x, uint32_t n, float scale, unsigned half,
                          gpu_shared<float> y)
{
    const float eps = 1e-6f;
    const unsigned j = gpu_lane() & 15;
    const bool is_mine = gpu_thread() / GPU_LANES == half;
    const float squares = gpu_sum_half_warp(is_mine ? gpu_dot_lane(x, x, n, j) : 0);
    const float inverse = 1.0f / sqrtf(squares + eps);
    for (uint32_t i = j; is_mine && i < n; i += GPU_LANES)
        y[i] = x[i] * inverse * scale;
}

/* Lane j of the dot product with a vector in shared memory; as gpu_dot_lane. */
GPU_FN float gpu_dot_lane_shared(const float *a, gpu_shared<float> b, uint32_t n, unsigned j)
{
    float sum = 0;
    for (uint32_t i = j; i < n; i += GPU_LANES)
        sum = fmaf(a[i], b[i], sum);
    return n % GPU_LANES != 0 && j >= n % GPU_LANES ? fmaf(0.0f, 0.0f, sum) : sum;
}

/* One token of the rule: decay, read, correct, write, output. A half warp takes a row of the
 * state, which belongs to one value dimension. */
GPU_FN void gpu_delta_step(float *state, uint32_t key_dim, uint32_t value_dim,
                           gpu_shared<float> q, gpu_shared<float> k, const float *v, float alpha,
                           float beta, gpu_shared<float> out)
{
    const unsigned j = gpu_lane() & 15, n_halves = gpu_n_threads() / GPU_LANES;
    for (uint32_t first = 0; first < value_dim; first += n_halves) {
        const uint32_t d = first + gpu_thread() / GPU_LANES;
        const bool is_there = d < value_dim;
        float *row = state + (size_t)d * key_dim;
        for (uint32_t i = j; is_there && i < key_dim; i += GPU_LANES)
            row[i] *= alpha;
        const float read =
            gpu_sum_half_warp(is_there ? gpu_dot_lane_shared(row, k, key_dim, j) : 0);
        const float delta = is_there ? beta * (v[d] - read) : 0;
        for (uint32_t i = j; is_there && i < key_dim; i += GPU_LANES)
            row[i] = fmaf(k[i], delta, row[i]);
        const float result =
            gpu_sum_half_warp(is_there ? gpu_dot_lane_shared(row, q, key_dim, j) : 0);
        if (is_there && j == 0)
            out[d] = result;
    }
}

/* The norm of a head's output, and its gate. */
GPU_FN void gpu_delta_close(const struct backend_delta_net &net, gpu_shared<float> head,
                            gpu_shared<float> sum, const float *z, float *out)
{
    const uint32_t n = net.value_dim;
    const unsigned j = gpu_lane() & 15;
    if (gpu_warp() == 0) {
        float lane = 0;
        for (uint32_t i = j; i < n; i += GPU_LANES)
            lane = fmaf(head[i], head[i], lane);
        lane = n % GPU_LANES != 0 && j >= n % GPU_LANES ? fmaf(0.0f, 0.0f, lane) : lane;
        lane = gpu_sum_half_warp(lane);
        if (gpu_thread() == 0)
            sum[0] = lane;
    }
    gpu_barrier();
    const float scale = 1.0f / sqrtf(sum[0] / (float)n + net.eps);
    for (uint32_t i = gpu_thread(); i < n; i += gpu_n_threads())
        out[i] = head[i] * scale * net.norm[i] * fmath_silu(z[i]);
}

GPU_KERNEL void gpu_delta_head(const struct gpu_delta_head_args a)
{
    GPU_SHARED(float, q, GPU_MAX_KEY_DIM);
    GPU_SHARED(float, k, GPU_MAX_KEY_DIM);
    GPU_SHARED(float, result, GPU_MAX_VALUE_DIM);
    GPU_SHARED(float, factors, 2);
    GPU_SHARED(float, sum, 1);
    const struct backend_delta_net &net = a.d.net;
    const struct backend_segment *segment = &net.segments[gpu_block_y()];
    const uint32_t head = a.first_head + gpu_block_x();
    const uint32_t key_dim = net.key_dim, value_dim = net.value_dim;
    const uint32_t key_width = net.n_key_heads * key_dim;
    const uint32_t value_width = net.n_value_heads * value_dim;
    const uint32_t key_head = net.has_tiled_value_heads
                                  ? head % net.n_key_heads
                                  : head / (net.n_value_heads / net.n_key_heads);
    const float query_scale = 1.0f / sqrtf((float)key_dim);
    float *state = (float *)segment->state[DELTA_NET_STATE] + (size_t)head * key_dim * value_dim;
    for (size_t t = segment->first_row; t < segment->first_row + segment->n_rows; t++) {
        const float *mixed = net.mixed + t * a.d.channels;
        const float *v = mixed + 2 * key_width + head * value_dim;
        const size_t at = t * net.n_value_heads + head;
        gpu_unit_norm(mixed + key_head * key_dim, key_dim, query_scale, 0, q);
        gpu_unit_norm(mixed + key_width + key_head * key_dim, key_dim, 1.0f, 2, k);
        if (gpu_thread() == gpu_n_threads() - 1) {
            factors[0] = fmath_exp(net.decay[head] * fmath_softplus(net.a[at] + net.dt_bias[head]));
            factors[1] = fmath_sigmoid(net.b[at]);
        }
        gpu_barrier();
        gpu_delta_step(state, key_dim, value_dim, q, k, v, factors[0], factors[1], result);
        gpu_barrier();
        gpu_delta_close(net, result, sum, net.z + t * value_width + head * value_dim,
                        net.out + t * value_width + head * value_dim);
        gpu_barrier();
    }
}

#endif
