#include "backend/cpu/backend_cpu.h"

#include <assert.h>
#include <string.h>

#include "backend/cpu/kernels.h"
#include "backend/machine.h"
#include "base/mem.h"
#include "base/pool.h"

/* The smallest group of a quantised format: it bounds the number of groups in a row. */
#define SMALLEST_GROUP 32

struct backend_cpu {
    struct backend base;
    const struct kernels *kernels;
    struct pool *pool;
    size_t max_cols, max_rows;
    void *scratch_block;
    /* Inside scratch_block. */
    float *thread_scratch; /* [n_threads, thread_floats] */
    size_t thread_floats;
    int8_t *q;      /* [max_rows, max_cols] */
    float *q_scale; /* [max_rows, max_cols / SMALLEST_GROUP] */
    int32_t *q_sum;
};

static struct backend_cpu *cpu_of(struct backend *be)
{
    return (struct backend_cpu *)be;
}

/* Less work than this is done by the calling thread: waking another costs more. The unit is one
 * multiply-add. The result does not depend on who computes it. */
#define LEAST_PARALLEL_WORK 16384

static void run(const struct backend_cpu *cpu, pool_fn *fn, void *ctx, size_t work)
{
    if (work < LEAST_PARALLEL_WORK)
        fn(ctx, 0, 1);
    else
        pool_run(cpu->pool, fn, ctx);
}

/* ---- operations: each packs its arguments for the pool and names one thread's share --------- */

struct embed_job {
    const struct weight *w;
    const int32_t *tokens;
    size_t n;
    float *x;
};

static void embed_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct embed_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++) {
        const void *parts[QUANT_MAX_PARTS] = {NULL};
        weight_row(job->w, (size_t)job->tokens[t], parts);
        job->w->quant->decode_row(job->w->quant, parts, job->x + t * job->w->n_cols,
                                  job->w->n_cols);
    }
}

static void cpu_embed(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                      float *x)
{
    struct embed_job job = {w, tokens, n, x};
    run(cpu_of(be), embed_part, &job, n * w->n_cols);
}

struct matmul_job {
    struct backend_cpu *cpu;
    const struct weight *w;
    struct kernel_input in;
    size_t n;
    float *y;
};

static void quantize_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct matmul_job *job = ctx;
    struct backend_cpu *cpu = job->cpu;
    const size_t n_cols = job->w->n_cols, group = job->w->quant->block;
    const size_t n_groups = n_cols / group;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        cpu->kernels->quantize_row(job->in.x + t * n_cols, n_cols, group, cpu->q + t * n_cols,
                                   cpu->q_scale + t * n_groups, cpu->q_sum + t * n_groups);
}

static void matmul_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct matmul_job *job = ctx;
    struct backend_cpu *cpu = job->cpu;
    size_t begin, end;
    pool_range(job->w->n_rows, part, n_parts, &begin, &end);
    cpu->kernels->matmul(job->w, begin, end, &job->in, job->n, job->y, job->w->n_rows,
                         cpu->thread_scratch + part * cpu->thread_floats);
}

static void cpu_matmul(struct backend *be, const struct weight *w, const float *x, size_t n,
                       float *y)
{
    struct backend_cpu *cpu = cpu_of(be);
    assert(w->n_cols <= cpu->max_cols && n <= cpu->max_rows);
    struct matmul_job job = {.cpu = cpu, .w = w, .in = {.x = x}, .n = n, .y = y};
    if (w->quant->kind == QUANT_AFFINE) {
        run(cpu, quantize_part, &job, n * w->n_cols);
        job.in.q = cpu->q;
        job.in.scale = cpu->q_scale;
        job.in.q_sum = cpu->q_sum;
    }
    run(cpu, matmul_part, &job, n * w->n_rows * w->n_cols);
}

struct norm_job {
    struct backend_cpu *cpu;
    const float *x, *weight;
    float eps;
    size_t n, dim;
    float *y;
};

static void norm_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct norm_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        job->cpu->kernels->rms_norm(job->x + t * job->dim, job->weight, job->eps, job->dim,
                                    job->y + t * job->dim);
}

static void cpu_rms_norm(struct backend *be, const float *x, const float *weight, float eps,
                         size_t n, size_t dim, float *y)
{
    struct norm_job job = {cpu_of(be), x, weight, eps, n, dim, y};
    run(job.cpu, norm_part, &job, n * dim);
}

static void cpu_rope_table(struct backend *be, const uint32_t *positions, size_t n,
                           const float *frequencies, unsigned rotary_dim, float *out)
{
    const unsigned half = rotary_dim / 2;
    for (size_t t = 0; t < n; t++)
        cpu_of(be)->kernels->rope_angles(positions[t], frequencies, half, out + t * rotary_dim,
                                         out + t * rotary_dim + half);
}

struct heads_job {
    struct backend_cpu *cpu;
    const struct backend_heads *heads;
    size_t n;
};

static void heads_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct heads_job *job = ctx;
    const struct backend_heads *h = job->heads;
    const struct kernels *kernels = job->cpu->kernels;
    const unsigned half = h->rotary_dim / 2;
    size_t begin, end;
    pool_range(job->n * h->n_heads, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const size_t t = i / h->n_heads;
        const float *rope = h->rope + t * h->rotary_dim;
        float *x = h->x + t * h->row_stride + i % h->n_heads * h->head_stride;
        kernels->rms_norm(x, h->norm, h->eps, h->head_dim, x);
        kernels->rotate(x, rope, rope + half, half);
    }
}

static void cpu_norm_rope(struct backend *be, const struct backend_heads *heads, size_t n)
{
    struct heads_job job = {cpu_of(be), heads, n};
    run(job.cpu, heads_part, &job, n * heads->n_heads * heads->head_dim);
}

struct attention_job {
    struct backend_cpu *cpu;
    const struct backend_attention *args;
    const struct backend_segment *segment;
};

static void store_kv(const struct backend_attention *a, const struct backend_segment *segment)
{
    const struct quant *f = a->kv_format;
    assert(f->n_parts == 1);
    const size_t dim = a->head_dim, row_bytes = quant_row_bytes(f, dim);
    for (size_t t = 0; t < segment->n_rows; t++)
        for (size_t h = 0; h < a->n_kv_heads; h++) {
            size_t at = (h * a->n_context + segment->position + t) * row_bytes;
            size_t from = ((segment->first_row + t) * a->n_kv_heads + h) * dim;
            void *key = (char *)segment->keys + at, *value = (char *)segment->values + at;
            f->encode_row(f, a->k + from, &key, dim);
            f->encode_row(f, a->v + from, &value, dim);
        }
}

/* Work items are (row, head), dealt out in turn: later rows see more positions. */
static void attention_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct attention_job *job = ctx;
    const struct backend_attention *a = job->args;
    const struct backend_segment *segment = job->segment;
    const struct kernels *kernels = job->cpu->kernels;
    const size_t dim = a->head_dim, n_items = (size_t)segment->n_rows * a->n_heads;
    const size_t head_bytes = a->n_context * quant_row_bytes(a->kv_format, dim);
    for (size_t i = part; i < n_items; i += n_parts) {
        const size_t row = i / a->n_heads, head = i % a->n_heads, t = segment->first_row + row;
        const size_t kv_head = head / (a->n_heads / a->n_kv_heads);
        const size_t at = t * a->q_row_stride + head * a->q_head_stride;
        const struct kernel_attention one = {
            .kv_format = a->kv_format,
            .q = a->q + at,
            .keys = (const char *)segment->keys + kv_head * head_bytes,
            .values = (const char *)segment->values + kv_head * head_bytes,
            .n_positions = segment->position + row + 1,
            .head_dim = a->head_dim,
            .scale = a->scale,
            .out = a->out + (t * a->n_heads + head) * dim,
            .scratch = job->cpu->thread_scratch + part * job->cpu->thread_floats,
        };
        kernels->attend(&one);
        if (a->gate != NULL)
            kernels->mul_sigmoid(one.out, a->gate + at, dim);
    }
}

static void cpu_attention(struct backend *be, const struct backend_attention *args)
{
    for (size_t s = 0; s < args->n_segments; s++) {
        struct attention_job job = {cpu_of(be), args, &args->segments[s]};
        const size_t n_scores = (size_t)job.segment->n_rows * args->n_heads *
                                (job.segment->position + job.segment->n_rows);
        store_kv(args, job.segment);
        run(job.cpu, attention_part, &job, n_scores * args->head_dim);
    }
}

struct delta_job {
    struct backend_cpu *cpu;
    const struct backend_delta_net *args;
};

static void conv_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct delta_job *job = ctx;
    const struct backend_delta_net *a = job->args;
    const size_t channels = 2 * (size_t)a->n_key_heads * a->key_dim +
                            (size_t)a->n_value_heads * a->value_dim;
    size_t begin, end;
    pool_range(channels, part, n_parts, &begin, &end);
    for (size_t s = 0; s < a->n_segments; s++)
        job->cpu->kernels->conv_silu(a, &a->segments[s], begin, end);
}

static void delta_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct delta_job *job = ctx;
    const struct backend_delta_net *a = job->args;
    float *scratch = job->cpu->thread_scratch + part * job->cpu->thread_floats;
    const size_t n_items = a->n_segments * a->n_value_heads;
    for (size_t i = part; i < n_items; i += n_parts)
        job->cpu->kernels->delta_head(a, &a->segments[i / a->n_value_heads],
                                      (unsigned)(i % a->n_value_heads), scratch);
}

static void cpu_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    struct delta_job job = {cpu_of(be), args};
    size_t n_rows = 0;
    for (size_t s = 0; s < args->n_segments; s++)
        n_rows += args->segments[s].n_rows;
    const size_t values = (size_t)args->n_value_heads * args->value_dim;
    run(job.cpu, conv_part, &job, n_rows * values * args->kernel);
    run(job.cpu, delta_part, &job, n_rows * values * args->key_dim);
}

struct route_job {
    struct backend_cpu *cpu;
    const float *logits;
    size_t n;
    unsigned n_experts, k;
    bool renormalise;
    uint32_t *ids;
    float *weights;
};

static void route_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct route_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        job->cpu->kernels->route_row(job->logits + t * job->n_experts, job->n_experts, job->k,
                                     job->renormalise, job->ids + t * job->k,
                                     job->weights + t * job->k);
}

static void cpu_route(struct backend *be, const float *logits, size_t n, unsigned n_experts,
                      unsigned k, bool renormalise, uint32_t *ids, float *weights)
{
    struct route_job job = {cpu_of(be), logits, n, n_experts, k, renormalise, ids, weights};
    run(job.cpu, route_part, &job, n * n_experts);
}

struct elementwise_job {
    struct backend_cpu *cpu;
    float *y;
    const float *x, *factors;
    size_t n, dim;
    unsigned k;
};

static void silu_mul_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct elementwise_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    job->cpu->kernels->silu_mul(job->y + begin, job->x + begin, end - begin);
}

static void cpu_silu_mul(struct backend *be, float *gate, const float *up, size_t n)
{
    struct elementwise_job job = {.cpu = cpu_of(be), .y = gate, .x = up, .n = n};
    run(job.cpu, silu_mul_part, &job, n);
}

static void expert_sum_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct elementwise_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        job->cpu->kernels->weighted_sum(job->x + t * job->k * job->dim, job->factors + t * job->k,
                                        job->k, job->dim, job->y + t * job->dim);
}

static void cpu_expert_sum(struct backend *be, const float *parts, const float *weights, size_t n,
                           unsigned k, size_t dim, float *out)
{
    struct elementwise_job job = {
        .cpu = cpu_of(be), .y = out, .x = parts, .factors = weights, .n = n, .dim = dim, .k = k};
    run(job.cpu, expert_sum_part, &job, n * k * dim);
}

static void cpu_add_gated(struct backend *be, float *y, const float *x, const float *gate,
                          size_t n, size_t dim)
{
    for (size_t t = 0; t < n; t++)
        cpu_of(be)->kernels->add_scaled_sigmoid(y + t * dim, x + t * dim, gate[t], dim);
}

static void cpu_add(struct backend *be, float *y, const float *x, size_t n)
{
    cpu_of(be)->kernels->add(y, x, n);
}

/* ---- open and close ------------------------------------------------------------------------ */

static size_t thread_floats_for(const struct backend_options *options)
{
    /* The widest user: four decoded weight rows. A head's vectors are narrower than a row, but a
     * block of attention scores may not be. */
    size_t floats = KERNEL_ROW_BLOCK * options->max_cols + 2 * KERNEL_ATTENTION_BLOCK;
    return mem_round_up(floats, MEM_CACHE_LINE / sizeof(float));
}

static uint64_t quantized_groups(const struct backend_options *options)
{
    return (uint64_t)options->max_rows * (options->max_cols / SMALLEST_GROUP + 1);
}

uint64_t backend_cpu_scratch_bytes(const struct backend_options *options)
{
    return (uint64_t)options->n_threads * thread_floats_for(options) * sizeof(float) +
           quantized_groups(options) * (sizeof(float) + sizeof(int32_t)) +
           (uint64_t)options->max_rows * options->max_cols;
}

static void cpu_close(struct backend *be)
{
    struct backend_cpu *cpu = cpu_of(be);
    pool_close(cpu->pool);
    mem_free(cpu->scratch_block);
    mem_free(cpu);
}

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .embed = cpu_embed,
    .matmul = cpu_matmul,
    .rms_norm = cpu_rms_norm,
    .rope_table = cpu_rope_table,
    .norm_rope = cpu_norm_rope,
    .attention = cpu_attention,
    .delta_net = cpu_delta_net,
    .route = cpu_route,
    .silu_mul = cpu_silu_mul,
    .expert_sum = cpu_expert_sum,
    .add_gated = cpu_add_gated,
    .add = cpu_add,
};

static int check_processor(struct fm_error *err)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "this processor has no AVX2 and FMA instructions; Flash-MoE needs them "
                       "(Intel since Haswell, AMD since Zen)");
#endif
    (void)err;
    return 0;
}

int backend_cpu_open(const struct backend_options *options, struct backend **out,
                     struct fm_error *err)
{
    *out = NULL;
    struct machine_level level;
    int rc = check_processor(err);
    if (rc == 0)
        rc = machine_level_find(options->cpu, &level, err);
    if (rc != 0)
        return rc;
    struct backend_cpu *cpu = mem_new(1, sizeof *cpu, "the CPU backend", err);
    if (cpu == NULL)
        return FM_ERR_NOMEM;
    cpu->base.ops = &cpu_ops;
    cpu->base.level = level.name;
    cpu->kernels = &kernels_ref;
    cpu->max_cols = options->max_cols;
    cpu->max_rows = options->max_rows;
    cpu->thread_floats = thread_floats_for(options);
    cpu->scratch_block = mem_new_aligned(MEM_CACHE_LINE, backend_cpu_scratch_bytes(options),
                                         "the CPU backend's scratch", err);
    rc = cpu->scratch_block == NULL
             ? FM_ERR_NOMEM
             : pool_open(options->n_threads, options->pin_threads, &cpu->pool, err);
    if (rc != 0) {
        cpu_close(&cpu->base);
        return rc;
    }
    cpu->thread_scratch = cpu->scratch_block;
    cpu->q_scale = cpu->thread_scratch + options->n_threads * cpu->thread_floats;
    cpu->q_sum = (int32_t *)(cpu->q_scale + quantized_groups(options));
    cpu->q = (int8_t *)(cpu->q_sum + quantized_groups(options));
    *out = &cpu->base;
    return 0;
}
