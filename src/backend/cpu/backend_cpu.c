#include "backend/cpu/backend_cpu.h"

#include <assert.h>
#include <string.h>

#include "backend/cpu/backend_cpu_internal.h"
#include "backend/not_finite.h"
#include "backend/prefer.h"
#include "backend/router.h"
#include "base/fmath.h"
#include "base/carve.h"
#include "base/mem.h"
#include "quant/interleave.h"

/* The calling thread does less work than this alone: waking another costs more. In
 * multiply-adds. */
#define MIN_PARALLEL_WORK 16384

void cpu_run(const struct backend_cpu *cpu, pool_fn *fn, void *ctx, size_t work)
{
    if (work < MIN_PARALLEL_WORK)
        pool_run_alone(cpu->pool, fn, ctx);
    else
        pool_run(cpu->pool, fn, ctx);
}

/* Same, with rows as parts. A single row is one part. */
static void run_rows(const struct backend_cpu *cpu, pool_fn *fn, void *ctx, size_t n, size_t dim)
{
    cpu_run(cpu, fn, ctx, n > 1 ? n * dim : 0);
}

/* ---- operations: each packs its arguments for the pool and names one thread's share --------- */

struct embed_job {
    struct backend_cpu *cpu;
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
        if (job->w->is_interleaved)
            interleave_take_row(job->w, (size_t)job->tokens[t], cpu_scratch(job->cpu, part), parts);
        else
            weight_row(job->w, (size_t)job->tokens[t], parts);
        job->w->quant->decode_row(job->w->quant, parts, job->x + t * job->w->n_cols,
                                  job->w->n_cols);
    }
}

static void cpu_embed(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                      float *x)
{
    struct embed_job job = {cpu_of(be), w, tokens, n, x};
    run_rows(cpu_of(be), embed_part, &job, n, w->n_cols);
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
        job->cpu->kernels.rms_norm(job->x + t * job->dim, job->weight, job->eps, job->dim,
                                    job->y + t * job->dim);
}

static void cpu_rms_norm(struct backend *be, const float *x, const float *weight, float eps,
                         size_t n, size_t dim, float *y)
{
    struct norm_job job = {cpu_of(be), x, weight, eps, n, dim, y};
    run_rows(job.cpu, norm_part, &job, n, dim);
}

static void cpu_rope_table(struct backend *be, const uint32_t *positions, size_t n,
                           const float *frequencies, unsigned rotary_dim, float scale,
                           float *out)
{
    const unsigned half = rotary_dim / 2;
    for (size_t t = 0; t < n; t++)
        cpu_of(be)->kernels.rope_angles(positions[t], frequencies, half, out + t * rotary_dim,
                                         out + t * rotary_dim + half);
    for (size_t i = 0; i < n * rotary_dim; i++)
        out[i] *= scale;
}

struct heads_job {
    struct backend_cpu *cpu;
    const struct backend_heads *heads;
    size_t n;
};

/* The same rotation of other pairs. */
static void rotate_neighbours(const struct kernels *kernels, float *x, const float *rope,
                              unsigned half)
{
    float apart[LIMIT_HEAD_DIM];
    for (unsigned i = 0; i < half; i++) {
        apart[i] = x[2 * i];
        apart[half + i] = x[2 * i + 1];
    }
    kernels->rotate(apart, rope, rope + half, half);
    for (unsigned i = 0; i < half; i++) {
        x[2 * i] = apart[i];
        x[2 * i + 1] = apart[half + i];
    }
}

static void heads_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct heads_job *job = ctx;
    const struct backend_heads *h = job->heads;
    const struct kernels *kernels = &job->cpu->kernels;
    const unsigned half = h->rotary_dim / 2;
    size_t begin, end;
    pool_range(job->n * h->n_heads, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++) {
        const size_t t = i / h->n_heads;
        const float *rope = h->rope + t * h->rotary_dim;
        float *x = h->x + t * h->row_stride + i % h->n_heads * h->head_stride;
        if (h->norm != NULL)
            kernels->rms_norm(x, h->norm, h->eps, h->head_dim, x);
        if (h->turns_neighbours)
            rotate_neighbours(kernels, x, rope, half);
        else
            kernels->rotate(x, rope, rope + half, half);
    }
}

struct copy_job {
    const struct backend_head_copy *args;
    size_t n;
};

static void copy_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct copy_job *job = ctx;
    const struct backend_head_copy *a = job->args;
    size_t begin, end;
    pool_range(job->n * a->n_heads, part, n_parts, &begin, &end);
    for (size_t i = begin; i < end; i++)
        memcpy(a->to + i * a->to_stride, a->from + i * a->from_stride, a->dim * sizeof *a->to);
}

static void cpu_copy_heads(struct backend *be, const struct backend_head_copy *args, size_t n)
{
    struct copy_job job = {args, n};
    cpu_run(cpu_of(be), copy_part, &job, n * args->n_heads * args->dim);
}

static void cpu_norm_rope(struct backend *be, const struct backend_heads *heads, size_t n)
{
    struct heads_job job = {cpu_of(be), heads, n};
    cpu_run(job.cpu, heads_part, &job, n * heads->n_heads * heads->head_dim);
}

struct route_job {
    struct backend_cpu *cpu;
    const struct router *router;
    const float *logits;
    size_t n;
    uint32_t *ids;
    float *weights;
};

static void route_row(const struct route_job *job, size_t t)
{
    const struct router *r = job->router;
    const struct kernels *kernels = &job->cpu->kernels;
    const float *logits = job->logits + t * r->n_experts;
    uint32_t *ids = job->ids + t * r->k;
    float *weights = job->weights + t * r->k;
    if (!router_is_plain(r)) {
        kernels->route_scored(r, logits, ids, weights);
        return;
    }
    kernels->route_row(logits, r->n_experts, r->k, r->renormalises, ids, weights);
    for (unsigned i = 0; i < r->k; i++)
        weights[i] *= r->scale;
}

static void route_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct route_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        route_row(job, t);
}

static void cpu_route(struct backend *be, const struct router *router, const float *logits,
                      size_t n, uint32_t *ids, float *weights)
{
    struct route_job job = {cpu_of(be), router, logits, n, ids, weights};
    assert(router->n_groups <= 1 ||
           (router->n_groups_chosen <= LIMIT_TOP_K && router->n_experts % router->n_groups == 0 &&
            router->n_groups_chosen * router_group_size(router) >= router->k));
    run_rows(job.cpu, route_part, &job, n, router->n_experts);
}

static void cpu_prefer(struct backend *be, const struct backend_preference *args)
{
    (void)be; /* few rows: not worth splitting */
    prefer_resident(args);
}

static void cpu_find_not_finite(struct backend *be, const float *x, size_t n, size_t dim,
                                uint32_t *found)
{
    (void)be; /* one pass over rows that are in the processor's cache */
    size_t row = 0;
    bool has_nan = false;
    if (fmath_all_finite(x, n * dim))
        return;
    while (fmath_all_finite(x + row * dim, dim))
        row++;
    for (size_t i = 0; i < dim; i++)
        has_nan |= x[row * dim + i] != x[row * dim + i];
    *found = not_finite_code(row, has_nan);
}

struct elementwise_job {
    struct backend_cpu *cpu;
    float *y;
    const float *x, *factors;
    size_t n, dim;
    unsigned k;
};

static void expert_sum_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct elementwise_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        job->cpu->kernels.weighted_sum(job->x + t * job->k * job->dim, job->factors + t * job->k,
                                        job->k, job->dim, job->y + t * job->dim);
}

static void cpu_expert_sum(struct backend *be, const float *parts, const float *weights, size_t n,
                           unsigned k, size_t dim, float *out)
{
    struct elementwise_job job = {
        .cpu = cpu_of(be), .y = out, .x = parts, .factors = weights, .n = n, .dim = dim, .k = k};
    run_rows(job.cpu, expert_sum_part, &job, n, k * dim);
}

static void add_gated_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct elementwise_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    for (size_t t = begin; t < end; t++)
        job->cpu->kernels.add_scaled_sigmoid(job->y + t * job->dim, job->x + t * job->dim,
                                             job->factors[t], job->dim);
}

static void cpu_add_gated(struct backend *be, float *y, const float *x, const float *gate,
                          size_t n, size_t dim)
{
    struct elementwise_job job = {
        .cpu = cpu_of(be), .y = y, .x = x, .factors = gate, .n = n, .dim = dim};
    run_rows(job.cpu, add_gated_part, &job, n, dim);
}

static void add_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct elementwise_job *job = ctx;
    size_t begin, end;
    pool_range(job->n, part, n_parts, &begin, &end);
    job->cpu->kernels.add(job->y + begin, job->x + begin, end - begin);
}

static void cpu_add(struct backend *be, float *y, const float *x, size_t n)
{
    struct elementwise_job job = {.cpu = cpu_of(be), .y = y, .x = x, .n = n};
    cpu_run(job.cpu, add_part, &job, n);
}

/* ---- open and close ------------------------------------------------------------------------ */

static const size_t group_sizes[CPU_GROUP_SIZES] = {16, 32, 64, 128};

/* Room for the keys and values of a block of positions, in any format. */
static size_t gather_floats_for(const struct backend_options *o)
{
    return o->index_best > 0 ? 2ul * KERNEL_ATTENTION_BLOCK * (o->head_dim + 16ul) : 0;
}

/* Returns the maximum that any kernel needs: a product, the heads of rows that attention computes
 * together, a head's keys and queries. */
static size_t thread_floats_for(const struct backend_options *o)
{
    const size_t product = KERNEL_MATMUL_SCRATCH(o->max_cols, o->max_rows);
    const size_t n_heads = o->n_heads > CPU_TILE_HEADS ? o->n_heads : CPU_TILE_HEADS;
    const size_t attention = KERNEL_ATTENTION_SCRATCH(n_heads, o->head_dim) +
                             n_heads * (4ul + o->head_dim) + gather_floats_for(o);
    const size_t delta = KERNEL_DELTA_SCRATCH(o->key_dim);
    const size_t heads = cpu_head_floats(o);
    size_t max = product > attention ? product : attention;
    max = max > heads ? max : heads;
    max = max > delta ? max : delta;
    max = max > o->index_best ? max : o->index_best;
    return mem_round_up(max, MEM_CACHE_LINE / sizeof(float));
}

static void carve_quantized(struct carver *c, struct cpu_quantized *q, size_t group, uint64_t n)
{
    q->group = group;
    q->q = carve(c, n, 1);
    q->scale = carve(c, n / group + 1, sizeof(float));
    q->offset = carve(c, n / group + 1, sizeof(float));
    q->sum = carve(c, n / group + 1, sizeof(int32_t));
}

/* Blocks of attention whose results are kept until they are merged. More of them let threads wait
 * for each other less often. */
#define BLOCKS_PER_THREAD 4

static void carve_all(struct carver *c, struct backend_cpu *cpu, const struct backend_options *o)
{
    const uint64_t n_input = (uint64_t)o->max_rows * o->max_cols;
    const uint64_t n_hidden = backend_max_hidden(o);
    const uint64_t n_blocks = o->n_context / KERNEL_ATTENTION_BLOCK + 1ull;
    const uint64_t at_once = (uint64_t)o->n_threads * BLOCKS_PER_THREAD;
    cpu->thread_floats = thread_floats_for(o);
    cpu->gather_floats = gather_floats_for(o);
    cpu->thread_scratch = carve(c, o->n_threads * cpu->thread_floats, sizeof(float));
    for (unsigned i = 0; i < CPU_GROUP_SIZES; i++)
        carve_quantized(c, &cpu->input.quantized[i], group_sizes[i], n_input);
    cpu->gate = carve(c, n_hidden, sizeof(float));
    cpu->up = carve(c, n_hidden, sizeof(float));
    carve_quantized(c, &cpu->hidden, KERNEL_SMALLEST_GROUP, n_hidden);
    cpu->n_partial = n_blocks < at_once ? n_blocks : at_once;
    cpu->partial = carve(c, cpu->n_partial * o->n_heads * (o->head_dim + 2ull) + 2ull * o->n_heads,
                         sizeof(float));
}

uint64_t backend_cpu_scratch_bytes(const struct backend_options *options)
{
    struct backend_cpu scratch = {0};
    struct carver c = {0};
    carve_all(&c, &scratch, options);
    return c.bytes;
}

static void cpu_close(struct backend *be)
{
    struct backend_cpu *cpu = cpu_of(be);
    pool_close(cpu->pool);
    mem_free(cpu->block);
    mem_free(cpu);
}

static const struct backend_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .embed = cpu_embed,
    .input = cpu_input,
    .matmul = cpu_matmul,
    .ffn = cpu_ffn,
    .rms_norm = cpu_rms_norm,
    .rope_table = cpu_rope_table,
    .norm_rope = cpu_norm_rope,
    .head_products = cpu_head_products,
    .copy_heads = cpu_copy_heads,
    .attention = cpu_attention,
    .delta_net = cpu_delta_net,
    .delta_net_leaves_trails = true,
    .route = cpu_route,
    .prefer = cpu_prefer,
    .find_not_finite = cpu_find_not_finite,
    .expert_sum = cpu_expert_sum,
    .add_gated = cpu_add_gated,
    .add = cpu_add,
    .streams = &cpu_stream_ops,
};

static int open_pool(const struct backend_options *o, struct pool **out, struct fm_error *err)
{
    return o->spin_ns > 0 ? pool_open_patient(o->n_threads, o->pin_threads, o->spin_ns, out, err)
                          : pool_open(o->n_threads, o->pin_threads, out, err);
}

int backend_cpu_open(const struct backend_options *options, struct backend **out,
                     struct fm_error *err)
{
    *out = NULL;
    const struct level *level;
    int rc = level_use(options->cpu, &level, err);
    if (rc != 0)
        return rc;
    struct backend_cpu *cpu = mem_new(1, sizeof *cpu, "the CPU backend", err);
    if (cpu == NULL)
        return FM_ERR_NOMEM;
    cpu->base.ops = &cpu_ops;
    cpu->base.memory = &memory_host;
    cpu->base.level = level->name;
    cpu->limits = *options;
    level_kernels(level, &cpu->kernels);
    cpu->base.preparer = cpu->kernels.takes_blocks ? &interleave_all_preparer
                                                   : &interleave_preparer;
    struct carver c = {.at = mem_new_aligned(MEM_CACHE_LINE, backend_cpu_scratch_bytes(options),
                                             "the CPU backend's scratch", err)};
    cpu->block = c.at;
    rc = c.at == NULL ? FM_ERR_NOMEM
                      : open_pool(options, &cpu->pool, err);
    if (rc != 0) {
        cpu_close(&cpu->base);
        return rc;
    }
    carve_all(&c, cpu, options);
    *out = &cpu->base;
    return 0;
}
