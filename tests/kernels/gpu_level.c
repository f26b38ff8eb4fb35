#include "gpu_level.h"

#include <string.h>

#include "backend/cuda/device_emulated.h"
#include "backend/cuda/formats.h"
#include "open_cuda.h"

static size_t over(size_t n, size_t unit)
{
    return (n + unit - 1) / unit;
}

static struct gpu_device *gpu;
static void (*on_fault)(const char *message);

/* What a launch needs beside the case's buffers lies on a desk that the GPU sees too. It is clear
 * after the launch. */
#define DESK_BYTES (1u << 20)
static char *desk;
static size_t desk_used;

/* Puts a copy on the desk; NULL: room for a result. */
static void *on_desk(const void *from, size_t bytes)
{
    char *at = desk + desk_used;
    desk_used += over(bytes, 64) * 64;
    if (desk_used > DESK_BYTES) {
        fprintf(stderr, "checkkernel: no room for %zu bytes\n", bytes);
        exit(2);
    }
    return from != NULL ? memcpy(at, from, bytes) : at;
}

#define ON_DESK(x) on_desk(&(x), sizeof(x))

static void launch(struct gpu_launch how, const void *args, size_t args_bytes)
{
    struct gpu_command command = {.launch = how, .args_bytes = (uint32_t)args_bytes};
    memcpy(command.args, args, args_bytes);
    gpu->ops->submit(gpu, &(struct gpu_batch){.commands = &command, .n = 1});
    gpu->ops->finish(gpu);
    desk_used = 0;
    if (gpu->ops->failure(gpu) != NULL)
        on_fault(gpu->ops->failure(gpu));
}

#define LAUNCH(name, x, y, threads, ...)                                                           \
    launch((struct gpu_launch){GPU_KERNEL_##name, (uint32_t)(x), (uint32_t)(y),                    \
                               (uint32_t)(threads), 0},                                            \
           &(struct gpu_##name##_args)__VA_ARGS__, sizeof(struct gpu_##name##_args))

/* ---- products -------------------------------------------------------------------------------- */

static void quantize_row(const float *x, size_t n, size_t group, int8_t *q, float *scale,
                         float *offset, int32_t *sum)
{
    LAUNCH(quantize, over(n / group, GPU_QUANTIZE_WARPS), 1, 32 * GPU_QUANTIZE_WARPS,
           {.x = x, .n_groups = n / group, .group = (uint32_t)group, .q = q, .scale = scale,
            .offset = offset, .sum = sum});
}

#define MAX_ROWS 4096
#define MAX_INPUTS 8
#define SHIFT 4096

/* Lets the GPU find the weight of every input: its addresses are offsets from the second of two
 * bases. A bias of negative zeros changes nothing, and the first expert's biases are ones. */
static void find_on_gpu(struct gpu_product *p)
{
    static const uint64_t bases[] = {0, SHIFT};
    static const uint32_t ids[MAX_INPUTS] = {1, 1, 1, 1, 1, 1, 1, 1};
    float *biases = on_desk(NULL, 2 * p->w.n_rows * sizeof *biases);
    for (size_t i = 0; i < p->w.n_rows; i++) {
        biases[i] = 1;
        biases[p->w.n_rows + i] = -0.0f;
    }
    for (unsigned i = 0; i < QUANT_MAX_PARTS; i++)
        p->w.parts[i] -= SHIFT;
    p->bias = biases;
    p->bases = ON_DESK(bases);
    p->id = ON_DESK(ids);
}

static void matmul(const struct kernel_matmul *m)
{
    static unsigned n_calls;
    struct gpu_product product = {
        .w = gpu_weight_of(m->w),
        .in = {m->in.x, m->in.q, m->in.scale, m->in.offset, m->in.sum},
        .begin = (uint32_t)m->begin, .end = (uint32_t)m->end, .n = (uint32_t)m->n,
        .y_first = (uint32_t)m->y_first, .pick = m->pick, .place = m->place, .y = m->y,
        .y_stride = m->y_stride};
    if (m->end == m->begin || m->n == 0)
        return;
    if (n_calls++ % 2 == 1 && m->w->n_rows <= MAX_ROWS && m->n <= MAX_INPUTS)
        find_on_gpu(&product);
    const enum gpu_matmul_kind kind = gpu_kind_of(&product);
    uint32_t all[GPU_N_MATMULS] = {0};
    gpu_place_product(&product, all);
    const uint32_t n_blocks = all[kind];
    const struct gpu_products list = {ON_DESK(product), 1};
    switch (kind) {
    case GPU_MATMUL_FEW: LAUNCH(matmul_few, n_blocks, 1, GPU_MATMUL_THREADS, {list}); break;
    case GPU_MATMUL_MANY: LAUNCH(matmul_many, n_blocks, 1, GPU_MATMUL_THREADS, {list}); break;
    case GPU_MATMUL_ONE:
        LAUNCH(matmul_one, n_blocks, 1, GPU_MATMUL_THREADS, {.list = list});
        break;
    case GPU_MATMUL_PLAIN_ONE:
        LAUNCH(matmul_plain_one, n_blocks, 1, GPU_PLAIN_ONE_THREADS, {list});
        break;
    case GPU_MATMUL_PLAIN_TILES:
        LAUNCH(matmul_plain_tiles, n_blocks, 1, GPU_MATMUL_THREADS, {list});
        break;
    case GPU_MATMUL_PLAIN: LAUNCH(matmul_plain, n_blocks, 1, GPU_MATMUL_THREADS, {list}); break;
    default: LAUNCH(matmul_plain_many, n_blocks, 1, GPU_MATMUL_THREADS, {list}); break;
    }
}

static void activate(float *gate, const float *up, size_t n, struct activation activation)
{
    LAUNCH(activate, 1, over(over(n, 32), GPU_QUANTIZE_WARPS), 32 * GPU_QUANTIZE_WARPS,
           {.gate = gate, .up = up, .width = (uint32_t)n, .n_rows = 1, .activation = activation});
}

static void silu_mul(float *gate, const float *up, size_t n)
{
    activate(gate, up, n, (struct activation){.kind = ACTIVATION_SILU});
}

static void gelu_mul(float *gate, const float *up, size_t n)
{
    activate(gate, up, n, (struct activation){.kind = ACTIVATION_GELU});
}

static void clamped_swiglu(float *gate, const float *up, float alpha, float limit, size_t n)
{
    activate(gate, up, n, (struct activation){ACTIVATION_CLAMPED_SWIGLU, alpha, limit});
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void rms_norm(const float *x, const float *weight, float eps, size_t n, float *y)
{
    LAUNCH(rms_norm, 1, 1, GPU_ROW_THREADS,
           {.x = x, .weight = weight, .y = y, .eps = eps, .dim = (uint32_t)n});
}

static void rope_angles(uint32_t position, const float *frequencies, unsigned half,
                        float *cosines, float *sines)
{
    if (half == 0)
        return;
    float *out = on_desk(NULL, 2 * half * sizeof *out);
    const size_t threads = over(half, 32) * 32;
    LAUNCH(rope_table, 1, 1, threads < 256 ? threads : 256,
           {.positions = ON_DESK(position), .frequencies = frequencies, .scale = 1,
            .rotary_dim = 2 * half, .out = out});
    memcpy(cosines, out, half * sizeof *out);
    memcpy(sines, out + half, half * sizeof *out);
}

static void rotate(float *x, const float *cosines, const float *sines, unsigned half)
{
    float *rope = on_desk(NULL, 2 * half * sizeof *rope);
    memcpy(rope, cosines, half * sizeof *rope);
    memcpy(rope + half, sines, half * sizeof *rope);
    LAUNCH(norm_rope, 1, 1, 64,
           {.x = x, .row_stride = 2 * half, .head_stride = 2 * half, .head_dim = 2 * half,
            .rotary_dim = 2 * half, .rope = rope});
}

static void weighted_sum(const float *parts, const float *weights, unsigned k, size_t dim,
                         float *out)
{
    LAUNCH(expert_sum, 1, over(dim, 256), 256,
           {.parts = parts, .weights = weights, .k = k, .dim = (uint32_t)dim, .out = out});
}

static void add_scaled_sigmoid(float *y, const float *x, float gate, size_t n)
{
    LAUNCH(add_gated, 1, over(n, 256), 256,
           {.y = y, .x = x, .gate = ON_DESK(gate), .dim = (uint32_t)n});
}

static void add(float *y, const float *x, size_t n)
{
    LAUNCH(add, over(n, 256), 1, 256, {.y = y, .x = x, .n = n});
}

/* ---- mixers ---------------------------------------------------------------------------------- */

static void store_kv(const struct kv_format *format, enum kv_side side, const float *x, size_t n,
                     void *to)
{
    LAUNCH(piece_store_kv, 1, 1, 128,
           {.kv = gpu_kv_format_of(format), .side = side, .n = (uint32_t)n, .x = x, .to = to});
}

/* A row at the last of n positions, which sees exactly these: its block is the first one. */
static void attend_row(const struct kernel_attention *a)
{
    const struct backend_segment segment = {
        .n_rows = 1, .position = (uint32_t)a->n_positions - 1,
        .state = {[ATTENTION_KEYS] = (void *)(uintptr_t)a->keys,
                  [ATTENTION_VALUES] = (void *)(uintptr_t)a->values}};
    const unsigned n_parts = 1 + a->n_heads % 3;
    LAUNCH(attend, n_parts, 1, GPU_ATTEND_THREADS,
           {{.kv = gpu_kv_format_of(a->kv_format), .n_heads = a->n_heads, .n_kv_heads = 1,
             .head_dim = a->head_dim, .value_dim = a->value_dim,
             .block_positions = KERNEL_ATTENTION_BLOCK,
             .segments = ON_DESK(segment), .n_segments = 1, .q = (float *)(uintptr_t)a->q,
             .q_row_stride = a->n_heads * a->q_stride, .q_head_stride = a->q_stride,
             .scale = a->scale, .block_max = a->max, .block_total = a->total,
             .block_out = a->out, .n_blocks = 1}, n_parts});
}

static void attend(const struct kernel_attention *a)
{
    struct kernel_attention row = *a;
    row.n_heads = a->row_heads > 0 ? a->row_heads : a->n_heads;
    for (unsigned h = 0; h < a->n_heads; h += row.n_heads) {
        row.q = kernel_query(a, h);
        row.max = a->max + h;
        row.total = a->total + h;
        row.out = a->out + h * (size_t)a->value_dim;
        attend_row(&row);
    }
}

static void attend_merge(float *max, float *total, float *out, float max_block,
                         float block_total, const float *block_out, size_t head_dim)
{
    LAUNCH(piece_merge, 1, 1, 128,
           {.max = max, .total = total, .out = out, .max_block = max_block,
            .block_total = block_total, .block_out = block_out,
            .head_dim = (uint32_t)head_dim});
}

static void attend_sink(float max, float *total, float *out, float sink, size_t head_dim)
{
    LAUNCH(piece_sink, 1, 1, 128,
           {.max = max, .total = total, .out = out, .sink = sink,
            .head_dim = (uint32_t)head_dim});
}

static void attend_close(float *out, float total, const float *gate, size_t head_dim)
{
    LAUNCH(piece_close, 1, 1, 128,
           {.out = out, .total = total, .gate = gate, .head_dim = (uint32_t)head_dim});
}

static struct gpu_delta_net delta_net_of(const struct backend_delta_net *args,
                                         const struct backend_segment *segment)
{
    struct gpu_delta_net d = {.net = *args,
                              .channels = 2 * args->n_key_heads * args->key_dim +
                                          args->n_value_heads * args->value_dim};
    d.net.segments = ON_DESK(*segment);
    d.net.n_segments = 1;
    d.n_rows = segment->n_rows;
    return d;
}

static void conv_silu(const struct backend_delta_net *args, const struct backend_segment *segment,
                      size_t begin, size_t end)
{
    const size_t n_chunks = over(segment->n_rows, GPU_CONV_ROWS);
    if (begin == end || n_chunks == 0)
        return;
    LAUNCH(conv_silu, over(end - begin, 128) * n_chunks, 1, 128,
           {.d = delta_net_of(args, segment), .begin = (uint32_t)begin, .end = (uint32_t)end});
}

static void delta_head(const struct backend_delta_net *args, const struct backend_segment *segment,
                       unsigned head, float *scratch)
{
    (void)scratch;
    if (segment->n_rows == 0)
        return;
    LAUNCH(delta_head, over(args->value_dim, GPU_DELTA_COLUMNS), 1, 4 * GPU_DELTA_COLUMNS,
           {.d = delta_net_of(args, segment), .first_head = head});
    LAUNCH(delta_close, over(segment->n_rows, 4), 1, 128,
           {.d = delta_net_of(args, segment), .first_head = head, .n_heads = 1});
}

/* ---- routers --------------------------------------------------------------------------------- */

static void route(const struct router *router, bool is_plain, const float *logits, uint32_t *ids,
                  float *weights)
{
    LAUNCH(route, 1, 1, 256,
           {.router = *router, .is_plain = is_plain, .logits = logits, .ids = ids,
            .weights = weights});
}

static void route_scored(const struct router *router, const float *logits, uint32_t *ids,
                         float *weights)
{
    route(router, false, logits, ids, weights);
}

static void route_row(const float *logits, unsigned n_experts, unsigned k, bool renormalise,
                      uint32_t *ids, float *weights)
{
    const struct router router = {.score = ROUTER_SOFTMAX, .n_experts = n_experts, .k = k,
                                  .renormalises = renormalise, .scale = 1};
    route(&router, true, logits, ids, weights);
}

void *gpu_level_memory(size_t bytes)
{
    return gpu->ops->host_make(gpu, bytes);
}

/* Opens the GPU, or the emulator. */
static void open_device(const char *library)
{
    char why[256] = "";
    gpu = library != NULL ? open_cuda(library, why, sizeof why) : device_emulated();
    if (gpu == NULL) {
        fprintf(stderr, "checkkernel: %s\n", why);
        exit(77);
    }
    desk = gpu_level_memory(DESK_BYTES);
    if (desk == NULL) {
        fprintf(stderr, "checkkernel: no memory that the GPU sees\n");
        exit(2);
    }
}

void gpu_level(const struct kernels *base, const char *library,
               void (*fault)(const char *message), struct kernels *table)
{
    open_device(library);
    on_fault = fault;
    device_emulated_on_fault(fault);
    *table = *base;
    table->name = "gpu";
    table->quantize_row = quantize_row;
    table->matmul = matmul;
    table->silu_mul = silu_mul;
    table->gelu_mul = gelu_mul;
    table->clamped_swiglu = clamped_swiglu;
    table->rms_norm = rms_norm;
    table->rope_angles = rope_angles;
    table->rotate = rotate;
    table->weighted_sum = weighted_sum;
    table->add_scaled_sigmoid = add_scaled_sigmoid;
    table->add = add;
    table->store_kv = store_kv;
    table->attend = attend;
    table->attend_merge = attend_merge;
    table->attend_sink = attend_sink;
    table->attend_close = attend_close;
    table->conv_silu = conv_silu;
    table->delta_head = delta_head;
    table->route_scored = route_scored;
    table->route_row = route_row;
}
