/* Products of single heads, each with a weight of its own. A thread takes a whole head. */
#include <assert.h>

#include "backend/cpu/backend_cpu_internal.h"
#include "base/mem.h"

/* Tokens whose rows a thread multiplies together. */
#define TOKENS 32

struct heads_job {
    struct backend_cpu *cpu;
    const struct backend_head_products *args;
    size_t n;
};

/* A thread's copy of some rows of a head, rounded as its weight wants them, behind the scratch of
 * a product. */
struct rounded {
    int8_t *q;
    float *scale, *offset;
    int32_t *sum;
};

static size_t product_floats(const struct backend_options *o)
{
    return mem_round_up(KERNEL_MATMUL_SCRATCH(o->max_cols, o->max_rows),
                        MEM_CACHE_LINE / sizeof(float));
}

size_t cpu_head_floats(const struct backend_options *o)
{
    const size_t n = TOKENS * (size_t)o->head_dim;
    return product_floats(o) + n / sizeof(float) + 3 * (n / KERNEL_SMALLEST_GROUP) + 4;
}

static struct rounded rounded_at(float *at, size_t n_cols)
{
    const size_t n = TOKENS * n_cols, n_groups = n / KERNEL_SMALLEST_GROUP;
    struct rounded r = {.scale = at, .offset = at + n_groups};
    r.sum = (int32_t *)(void *)(r.offset + n_groups);
    r.q = (int8_t *)(r.sum + n_groups);
    return r;
}

/* Rounds the rows of tokens [first, first + n) of a head. */
static struct kernel_input round_rows(const struct heads_job *job, unsigned head, size_t first,
                                      size_t n, float *at)
{
    const struct weight *w = &job->args->w[head];
    const size_t n_cols = w->n_cols, group = w->quant->group, n_groups = n_cols / group;
    const struct rounded to = rounded_at(at, n_cols);
    for (size_t t = 0; t < n; t++)
        job->cpu->kernels.quantize_row(
            job->args->x + ((first + t) * job->args->n_heads + head) * n_cols, n_cols, group,
            to.q + t * n_cols, to.scale + t * n_groups, to.offset + t * n_groups,
            to.sum + t * n_groups);
    return (struct kernel_input){.q = to.q, .scale = to.scale, .offset = to.offset,
                                 .sum = to.sum};
}

static void multiply_head(const struct heads_job *job, unsigned head, float *scratch)
{
    const struct backend_head_products *a = job->args;
    const struct weight *w = &a->w[head];
    const bool has_codes = w->quant->codes != QUANT_NO_CODES;
    uint32_t pick[TOKENS];
    for (uint32_t t = 0; t < TOKENS; t++)
        pick[t] = t * a->n_heads;
    for (size_t first = 0; first < job->n; first += TOKENS) {
        const size_t n = job->n - first < TOKENS ? job->n - first : TOKENS;
        const size_t row = first * a->n_heads + head;
        struct kernel_matmul m = {.w = w, .end = w->n_rows, .in.x = a->x + row * w->n_cols, .n = n,
                                  .pick = pick, .y = a->y + row * a->y_stride,
                                  .y_stride = a->n_heads * a->y_stride, .scratch = scratch};
        if (has_codes) {
            m.in = round_rows(job, head, first, n, scratch + product_floats(&job->cpu->limits));
            m.pick = NULL;
        }
        job->cpu->kernels.matmul(&m);
    }
}

static void heads_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct heads_job *job = ctx;
    (void)n_parts;
    for (size_t head; (head = pool_take(job->cpu->pool)) < job->args->n_heads;)
        multiply_head(job, (unsigned)head, cpu_scratch(job->cpu, part));
}

void cpu_head_products(struct backend *be, const struct backend_head_products *args, size_t n)
{
    struct heads_job job = {cpu_of(be), args, n};
    assert(args->w[0].n_cols <= job.cpu->limits.head_dim && n <= job.cpu->limits.max_rows);
    assert(args->w[0].n_cols <= job.cpu->limits.max_cols);
    cpu_run(job.cpu, heads_part, &job,
            n * args->n_heads * args->w[0].n_rows * (size_t)args->w[0].n_cols);
}
