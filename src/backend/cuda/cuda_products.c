/* Products of weights with the input's rows, and feed-forward blocks made of them. */
#include <assert.h>
#include <string.h>

#include "backend/cuda/backend_cuda_internal.h"
#include "backend/cuda/formats.h"
#include "base/mem.h"

void cuda_embed(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                float *x)
{
    struct backend_cuda *cuda = cuda_of(be);
    cuda_queue_begin(&cuda->queue);
    const int32_t *list = cuda_queue_put(&cuda->queue, tokens, n * sizeof *tokens);
    CUDA_LAUNCH(cuda, embed, n, 1, 128, {.w = gpu_weight_of(w), .tokens = list, .x = x});
}

/* ---- the input ------------------------------------------------------------------------------- */

void cuda_input(struct backend *be, const float *x, size_t n, size_t n_cols)
{
    struct backend_cuda *cuda = cuda_of(be);
    assert(n <= cuda->limits.max_rows && n_cols <= cuda->limits.max_cols);
    cuda->x = x;
    cuda->n = n;
    cuda->n_cols = n_cols;
    for (unsigned i = 0; i < CUDA_GROUP_SIZES; i++)
        cuda->input[i].is_made = false;
}

/* Returns the input as the weight wants it; rounds it unless that was done before. */
static struct gpu_input input_for(struct backend_cuda *cuda, const struct weight *w)
{
    assert(w->n_cols == cuda->n_cols);
    if (w->quant->codes == QUANT_NO_CODES)
        return (struct gpu_input){.x = cuda->x};
    unsigned i = 0;
    while (cuda->input[i].group != w->quant->group)
        i++;
    struct cuda_quantized *to = &cuda->input[i];
    const size_t n_groups = cuda->n * cuda->n_cols / to->group;
    if (!to->is_made)
        CUDA_LAUNCH(cuda, quantize, cuda_over(n_groups, GPU_QUANTIZE_WARPS), 1,
                    32 * GPU_QUANTIZE_WARPS,
                    {.x = cuda->x, .n_groups = n_groups, .group = (uint32_t)to->group,
                     .q = to->q, .scale = to->scale, .offset = to->offset, .sum = to->sum});
    to->is_made = true;
    return (struct gpu_input){.q = to->q, .scale = to->scale, .offset = to->offset,
                              .sum = to->sum};
}

/* ---- lists of products ----------------------------------------------------------------------- */

/* A list of products; one launch computes all of a kind. */
struct product_list {
    struct gpu_product *products; /* on the host */
    const struct gpu_product *device;
    uint32_t n, n_blocks[GPU_N_MATMULS];
};

static struct product_list new_list(struct backend_cuda *cuda, size_t max)
{
    struct product_list list = {0};
    const void *device;
    list.products = cuda_queue_reserve(&cuda->queue, max * sizeof *list.products, &device);
    list.device = device;
    return list;
}

static void add_product(struct product_list *list, struct gpu_product product)
{
    if (product.n == 0 || product.w.n_rows == 0)
        return;
    product.end = product.w.n_rows;
    product.y_stride = product.w.n_rows;
    memcpy(product.first_block, list->n_blocks, sizeof product.first_block);
    list->n_blocks[gpu_kind_of(&product)] += gpu_n_tiles(&product);
    list->products[list->n++] = product;
}

static void launch_list(struct backend_cuda *cuda, const struct product_list *list)
{
    const struct gpu_products all = {list->device, list->n};
    const uint32_t *n = list->n_blocks;
    if (n[GPU_MATMUL_FEW] > 0)
        CUDA_LAUNCH(cuda, matmul_few, n[GPU_MATMUL_FEW], 1, GPU_MATMUL_THREADS, {all});
    if (n[GPU_MATMUL_MANY] > 0)
        CUDA_LAUNCH(cuda, matmul_many, n[GPU_MATMUL_MANY], 1, GPU_MATMUL_THREADS, {all});
    if (n[GPU_MATMUL_PLAIN] > 0)
        CUDA_LAUNCH(cuda, matmul_plain, n[GPU_MATMUL_PLAIN], 1, GPU_MATMUL_THREADS, {all});
    if (n[GPU_MATMUL_PLAIN_MANY] > 0)
        CUDA_LAUNCH(cuda, matmul_plain_many, n[GPU_MATMUL_PLAIN_MANY], 1, GPU_MATMUL_THREADS,
                    {all});
}

void cuda_matmul(struct backend *be, const struct backend_product *products, size_t n)
{
    struct backend_cuda *cuda = cuda_of(be);
    assert(n <= CUDA_MAX_PRODUCTS);
    cuda_queue_begin(&cuda->queue);
    struct product_list list = new_list(cuda, n);
    for (size_t i = 0; i < n; i++)
        add_product(&list, (struct gpu_product){.w = gpu_weight_of(products[i].w),
                                                .in = input_for(cuda, products[i].w),
                                                .n = (uint32_t)cuda->n, .y = products[i].y,
                                                .bias = products[i].bias});
    launch_list(cuda, &list);
}

/* ---- feed-forward blocks --------------------------------------------------------------------- */

/* Blocks of one shape, one after the other: their intermediates are one matrix. */
struct run {
    const struct backend_ffn *first;
    size_t n_blocks, n_rows;
    size_t at; /* where its intermediates begin, in elements */
};

static bool is_same_shape(const struct backend_ffn *a, const struct backend_ffn *b)
{
    return a->gate.n_rows == b->gate.n_rows && a->down.quant == b->down.quant &&
           a->activation.kind == b->activation.kind && a->activation.alpha == b->activation.alpha &&
           a->activation.limit == b->activation.limit;
}

static struct run run_at(const struct backend_ffn *blocks, size_t n_blocks, size_t i, size_t at)
{
    struct run run = {.first = &blocks[i], .n_blocks = 1, .n_rows = blocks[i].n, .at = at};
    for (i++; i < n_blocks && is_same_shape(run.first, &blocks[i]); i++) {
        run.n_blocks++;
        run.n_rows += blocks[i].n;
    }
    return run;
}

static size_t behind_run(const struct run *run)
{
    return mem_round_up(run->at + run->n_rows * run->first->gate.n_rows, CUDA_MAX_GROUP);
}

/* The intermediates of a block that begins `at` elements into the run's. */
static struct gpu_input hidden_of(const struct backend_cuda *cuda, const struct run *run,
                                  size_t at)
{
    const struct quant *quant = run->first->down.quant;
    const struct cuda_quantized *h = &cuda->hidden;
    if (quant->codes == QUANT_NO_CODES)
        return (struct gpu_input){.x = cuda->gate + run->at + at};
    const size_t g = run->at / CUDA_MIN_GROUP + at / quant->group;
    return (struct gpu_input){.q = h->q + run->at + at, .scale = h->scale + g,
                              .offset = h->offset + g, .sum = h->sum + g};
}

static void activate(struct backend_cuda *cuda, const struct run *run)
{
    const struct backend_ffn *f = run->first;
    const struct gpu_input hidden = hidden_of(cuda, run, 0);
    const uint32_t width = f->gate.n_rows;
    const uint32_t group = f->down.quant->codes == QUANT_NO_CODES ? 0 : f->down.quant->group;
    if (run->n_rows == 0)
        return;
    CUDA_LAUNCH(cuda, activate, run->n_rows,
                cuda_over(cuda_over(width, group > 0 ? group : 32), GPU_QUANTIZE_WARPS),
                32 * GPU_QUANTIZE_WARPS,
                {.gate = cuda->gate + run->at, .up = cuda->up + run->at, .width = width,
                 .n_rows = (uint32_t)run->n_rows, .group = group, .activation = f->activation,
                 .q = (int8_t *)(uintptr_t)hidden.q, .scale = (float *)(uintptr_t)hidden.scale,
                 .offset = (float *)(uintptr_t)hidden.offset,
                 .sum = (int32_t *)(uintptr_t)hidden.sum});
}

/* Adds the products of a run's blocks: gate and up to one list, down to the other. */
static void add_run(struct backend_cuda *cuda, const struct run *run, struct product_list *gates,
                    struct product_list *downs)
{
    size_t at = 0;
    for (size_t i = 0; i < run->n_blocks; i++) {
        const struct backend_ffn *f = &run->first[i];
        const uint32_t *rows = cuda_queue_put(&cuda->queue, f->rows, f->n * sizeof *rows);
        const uint32_t *places = cuda_queue_put(&cuda->queue, f->places, f->n * sizeof *places);
        struct gpu_product p = {.w = gpu_weight_of(&f->gate), .in = input_for(cuda, &f->gate),
                                .n = (uint32_t)f->n, .pick = rows, .bias = f->gate_bias,
                                .y = cuda->gate + run->at + at};
        add_product(gates, p);
        p.w = gpu_weight_of(&f->up);
        p.in = input_for(cuda, &f->up);
        p.bias = f->up_bias;
        p.y = cuda->up + run->at + at;
        add_product(gates, p);
        add_product(downs, (struct gpu_product){.w = gpu_weight_of(&f->down),
                                                .in = hidden_of(cuda, run, at),
                                                .n = (uint32_t)f->n, .place = places,
                                                .bias = f->down_bias, .y = f->out});
        at += f->n * f->gate.n_rows;
    }
}

void cuda_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks)
{
    struct backend_cuda *cuda = cuda_of(be);
    cuda_queue_begin(&cuda->queue);
    struct product_list gates = new_list(cuda, 2 * n_blocks), downs = new_list(cuda, n_blocks);
    struct run run;
    for (size_t i = 0, at = 0; i < n_blocks; i += run.n_blocks, at = behind_run(&run)) {
        run = run_at(blocks, n_blocks, i, at);
        add_run(cuda, &run, &gates, &downs);
    }
    launch_list(cuda, &gates);
    for (size_t i = 0, at = 0; i < n_blocks; i += run.n_blocks, at = behind_run(&run)) {
        run = run_at(blocks, n_blocks, i, at);
        activate(cuda, &run);
    }
    launch_list(cuda, &downs);
}
