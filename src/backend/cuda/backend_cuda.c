#include "backend/cuda/backend_cuda.h"

#include <assert.h>
#include <string.h>

#include "backend/cuda/backend_cuda_internal.h"
#include "backend/router.h"
#include "base/carve.h"
#include "base/err.h"
#include "base/limits.h"
#include "quant/interleave.h"

/* ---- rows ------------------------------------------------------------------------------------ */

static void cuda_rms_norm(struct backend *be, const float *x, const float *weight, float eps,
                          size_t n, size_t dim, float *y)
{
    CUDA_LAUNCH(cuda_of(be), rms_norm, n, 1, GPU_ROW_THREADS,
                {.x = x, .weight = weight, .y = y, .eps = eps, .dim = (uint32_t)dim});
}

static void cuda_rope_table(struct backend *be, const uint32_t *positions, size_t n,
                            const float *frequencies, unsigned rotary_dim, float scale, float *out)
{
    struct backend_cuda *cuda = cuda_of(be);
    const size_t half = rotary_dim / 2;
    const uint32_t threads = cuda_over(half, 32) * 32;
    if (half == 0)
        return;
    cuda_queue_begin(&cuda->queue);
    const uint32_t *at = cuda_queue_put(&cuda->queue, positions, n * sizeof *positions);
    const float *turns = cuda_queue_put(&cuda->queue, frequencies, half * sizeof *frequencies);
    CUDA_LAUNCH(cuda, rope_table, n, 1, threads < 256 ? threads : 256,
                {.positions = at, .frequencies = turns, .scale = scale, .rotary_dim = rotary_dim,
                 .out = out});
}

static void cuda_norm_rope(struct backend *be, const struct backend_heads *heads, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), norm_rope, n, heads->n_heads, 64,
                {.x = heads->x, .row_stride = heads->row_stride,
                 .head_stride = heads->head_stride, .head_dim = heads->head_dim,
                 .rotary_dim = heads->rotary_dim, .turns_neighbours = heads->turns_neighbours,
                 .norm = heads->norm, .eps = heads->eps, .rope = heads->rope});
}

static void cuda_copy_heads(struct backend *be, const struct backend_head_copy *args, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), copy_heads, n * args->n_heads, cuda_over(args->dim, 256), 256,
                {.from = args->from, .to = args->to, .from_stride = args->from_stride,
                 .to_stride = args->to_stride, .dim = args->dim});
}

static void cuda_expert_sum(struct backend *be, const float *parts, const float *weights, size_t n,
                            unsigned k, size_t dim, float *out)
{
    CUDA_LAUNCH(cuda_of(be), expert_sum, n, cuda_over(dim, 256), 256,
                {.parts = parts, .weights = weights, .k = k, .dim = (uint32_t)dim, .out = out});
}

static void cuda_add_gated(struct backend *be, float *y, const float *x, const float *gate,
                           size_t n, size_t dim)
{
    CUDA_LAUNCH(cuda_of(be), add_gated, n, cuda_over(dim, 256), 256,
                {.y = y, .x = x, .gate = gate, .dim = (uint32_t)dim});
}

static void cuda_add(struct backend *be, float *y, const float *x, size_t n)
{
    CUDA_LAUNCH(cuda_of(be), add, cuda_over(n, 256), 1, 256, {.y = y, .x = x, .n = n});
}

static void cuda_find_not_finite(struct backend *be, const float *x, size_t n, size_t dim,
                                 uint32_t *found)
{
    CUDA_LAUNCH(cuda_of(be), find_not_finite, n, cuda_over(dim, GPU_CHECK_COLUMNS), 32,
                {.x = x, .dim = (uint32_t)dim, .found = found});
}

static void cuda_find_peak(struct backend *be, const float *x, size_t dim, uint32_t *found,
                           uint64_t *peak)
{
    CUDA_LAUNCH(cuda_of(be), find_not_finite, 1, cuda_over(dim, GPU_CHECK_COLUMNS), 32,
                {.x = x, .dim = (uint32_t)dim, .found = found, .peak = peak});
}

/* ---- routers --------------------------------------------------------------------------------- */

static void cuda_route(struct backend *be, const struct router *router, const float *logits,
                       size_t n, uint32_t *ids, float *weights)
{
    CUDA_LAUNCH(cuda_of(be), route, n, 1, 256,
                {.router = *router, .is_plain = router_is_plain(router), .logits = logits,
                 .ids = ids, .weights = weights});
}

static void cuda_prefer(struct backend *be, const struct backend_preference *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    struct backend_preference p = *args;
    cuda_queue_begin(&cuda->queue);
    p.resident = cuda_queue_put(&cuda->queue, args->resident,
                                args->router->n_experts * sizeof *args->resident);
    CUDA_LAUNCH(cuda, prefer, 1, 1, 32, {.p = p, .router = *args->router});
}

/* ---- open and close -------------------------------------------------------------------------- */

static void carve_quantized(struct carver *c, struct cuda_quantized *q, size_t group, uint64_t n)
{
    q->group = group;
    q->q = carve(c, n, 1);
    q->scale = carve(c, n / group + 1, sizeof(float));
    q->offset = carve(c, n / group + 1, sizeof(float));
    q->sum = carve(c, n / group + 1, sizeof(int32_t));
}

/* The longest lists of an operation: products and rows of feed-forward blocks, or segments. */
static size_t list_bytes(const struct backend_options *o)
{
    const size_t ffn = o->max_ffn_rows * (3 * sizeof(struct gpu_product) + 2ul * MEM_CACHE_LINE);
    const size_t matmul = CUDA_MAX_PRODUCTS * sizeof(struct gpu_product) +
                          o->n_heads * sizeof(struct gpu_product) + MEM_CACHE_LINE;
    const size_t rows = o->max_rows * (sizeof(struct backend_segment) + sizeof(uint32_t)) +
                        LIMIT_HEAD_DIM * sizeof(float) + LIMIT_EXPERTS;
    return mem_round_up(ffn + matmul + rows, MEM_PAGE);
}

static void carve_all(struct carver *c, struct backend_cuda *cuda, const struct backend_options *o)
{
    static const size_t groups[CUDA_GROUP_SIZES] = {16, 32, 64, 128};
    const uint64_t n_input = cuda_input_floats(o);
    const uint64_t n_hidden = backend_max_hidden(o);
    for (unsigned i = 0; i < CUDA_GROUP_SIZES; i++)
        carve_quantized(c, &cuda->input[i], groups[i], n_input);
    cuda->gate = carve(c, n_hidden, sizeof(float));
    cuda->up = carve(c, n_hidden, sizeof(float));
    carve_quantized(c, &cuda->hidden, CUDA_MIN_GROUP, n_hidden);
    cuda->partial_floats = cuda_partial_floats(o);
    cuda->partial = carve(c, cuda->partial_floats, sizeof(float));
    cuda->score_floats = cuda_score_floats(o);
    cuda->scores = carve(c, cuda->score_floats, sizeof(float));
    cuda->lists = carve(c, cuda_queue_list_bytes(list_bytes(o)), 1);
    cuda->counters = carve(c, CUDA_COUNTERS + 1, sizeof(uint32_t));
}

uint64_t backend_cuda_scratch_bytes(const struct backend_options *options)
{
    struct backend_cuda scratch = {0};
    struct carver c = {0};
    carve_all(&c, &scratch, options);
    return c.bytes;
}

/* Lists and commands, and what the device keeps of them: a ring that holds the longest lists a few
 * times (device_copies.cuh) and the commands that come again; and a piece of the usual size
 * (cuda_memory.c). */
#define DEVICE_HOST_BYTES (24ull << 20)
#define DEVICE_LIST_COPIES 4

uint64_t backend_cuda_host_bytes(const struct backend_options *options)
{
    return cuda_queue_host_bytes(list_bytes(options)) +
           DEVICE_LIST_COPIES * cuda_queue_list_bytes(list_bytes(options)) + DEVICE_HOST_BYTES;
}

static void cuda_close(struct backend *be)
{
    struct backend_cuda *cuda = cuda_of(be);
    memory_free(&cuda->memory.base, cuda->block);
    cuda_memory_clear(&cuda->memory);
    cuda->device->ops->close(cuda->device);
    cuda_queue_close(&cuda->queue);
    mem_free(cuda);
}

struct gpu_device *backend_cuda_device(struct backend *be)
{
    return cuda_of(be)->device;
}

static const char *cuda_failure(struct backend *be)
{
    return cuda_of(be)->device->ops->failure(cuda_of(be)->device);
}

static const struct backend_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .failure = cuda_failure,
    .embed = cuda_embed,
    .input = cuda_input,
    .matmul = cuda_matmul,
    .ffn = cuda_ffn,
    .ffn_routed = cuda_ffn_routed,
    .rms_norm = cuda_rms_norm,
    .rope_table = cuda_rope_table,
    .norm_rope = cuda_norm_rope,
    .head_products = cuda_head_products,
    .copy_heads = cuda_copy_heads,
    .attention = cuda_attention,
    .delta_net = cuda_delta_net,
    .delta_net_leaves_trails = true,
    .route = cuda_route,
    .prefer = cuda_prefer,
    .find_not_finite = cuda_find_not_finite,
    .find_peak = cuda_find_peak,
    .expert_sum = cuda_expert_sum,
    .add_gated = cuda_add_gated,
    .add = cuda_add,
    .streams = &cuda_stream_ops,
};

static int make_scratch(struct backend_cuda *cuda, struct fm_error *err)
{
    struct carver c = {0};
    if (cuda->limits.key_dim > GPU_MAX_KEY_DIM)
        return err_set(err, FM_ERR_ARG, "the GPU supports key heads of at most %u, the model has "
                       "%u", GPU_MAX_KEY_DIM, cuda->limits.key_dim);
    if (cuda->limits.max_rows > CUDA_MAX_ROWS)
        return err_set(err, FM_ERR_ARG, "the GPU computes at most %u tokens at a time, %zu are "
                       "requested", CUDA_MAX_ROWS, cuda->limits.max_rows);
    c.at = memory_make(&cuda->memory.base, backend_cuda_scratch_bytes(&cuda->limits), "scratch",
                       err);
    cuda->block = c.at;
    if (c.at == NULL)
        return FM_ERR_NOMEM;
    carve_all(&c, cuda, &cuda->limits);
    const int rc = cuda_queue_open(&cuda->queue, cuda->lists, list_bytes(&cuda->limits), err);
    if (rc != 0)
        return rc;
    cuda->queue.counter = cuda->counters + CUDA_COUNTERS;
    cuda_queue_clear(&cuda->queue, cuda->counters, (CUDA_COUNTERS + 1) * sizeof *cuda->counters);
    return 0;
}

int backend_cuda_open_on(struct gpu_device *device, const struct backend_options *options,
                         struct backend **out, struct fm_error *err)
{
    *out = NULL;
    struct backend_cuda *cuda = mem_new(1, sizeof *cuda, "the CUDA backend", err);
    if (cuda == NULL) {
        device->ops->close(device);
        return FM_ERR_NOMEM;
    }
    cuda->queue.device = device;
    cuda_memory_init(&cuda->memory, &cuda->queue);
    cuda->base = (struct backend){.ops = &cuda_ops, .memory = &cuda->memory.base,
                                  .preparer = &interleave_preparer, .level = device->name};
    cuda->device = device;
    cuda->limits = *options;
    const int rc = make_scratch(cuda, err);
    if (rc != 0)
        cuda_close(&cuda->base);
    else
        *out = &cuda->base;
    return rc;
}
