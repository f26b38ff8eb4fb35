/* Products of weights with the input's rows, and feed-forward blocks made of them. */
#include <assert.h>
#include <string.h>

#include "backend/cuda/backend_cuda_internal.h"
#include "backend/cuda/formats.h"
#include "base/limits.h"
#include "base/mem.h"

void cuda_embed(struct backend *be, const struct weight *w, const int32_t *tokens, size_t n,
                float *x)
{
    struct backend_cuda *cuda = cuda_of(be);
    cuda_queue_begin(&cuda->queue);
    const int32_t *list = cuda_queue_put(&cuda->queue, tokens, n * sizeof *tokens);
    CUDA_LAUNCH(cuda, embed, n, 1, 256, {.w = gpu_weight_of(w), .tokens = list, .x = x});
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
    assert((uint64_t)cuda->n * cuda->n_cols <= cuda_input_floats(&cuda->limits));
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
    if (product.y_stride == 0)
        product.y_stride = product.w.n_rows;
    gpu_place_product(&product, list->n_blocks);
    list->products[list->n++] = product;
}

static void launch_one(struct backend_cuda *cuda, const struct product_list *list)
{
    const uint32_t n_blocks = list->n_blocks[GPU_MATMUL_ONE];
    struct gpu_matmul_one_args args = {.list = {list->device, list->n}, .n_blocks = n_blocks};
    for (uint32_t i = 1; i < list->n && list->n <= GPU_ONE_FEW; i++)
        args.first[i - 1] = list->products[i].first_block[GPU_MATMUL_ONE];
    cuda_queue_add(&cuda->queue,
                   &(struct gpu_launch){GPU_KERNEL_matmul_one, n_blocks, 1, GPU_MATMUL_THREADS, 0},
                   &args, sizeof args);
}

static void launch_list(struct backend_cuda *cuda, const struct product_list *list)
{
    const struct gpu_products all = {list->device, list->n};
    const uint32_t *n = list->n_blocks;
    if (n[GPU_MATMUL_FEW] > 0)
        CUDA_LAUNCH(cuda, matmul_few, n[GPU_MATMUL_FEW], 1, GPU_MATMUL_THREADS, {all});
    if (n[GPU_MATMUL_MANY] > 0)
        CUDA_LAUNCH(cuda, matmul_many, n[GPU_MATMUL_MANY], 1, GPU_MATMUL_THREADS, {all});
    if (n[GPU_MATMUL_ONE] > 0)
        launch_one(cuda, list);
    if (n[GPU_MATMUL_PLAIN_ONE] > 0)
        CUDA_LAUNCH(cuda, matmul_plain_one, n[GPU_MATMUL_PLAIN_ONE], 1, GPU_PLAIN_ONE_THREADS,
                    {all});
    if (n[GPU_MATMUL_PLAIN_TILES] > 0)
        CUDA_LAUNCH(cuda, matmul_plain_tiles, n[GPU_MATMUL_PLAIN_TILES], 1, GPU_MATMUL_THREADS,
                    {all});
    if (n[GPU_MATMUL_PLAIN] > 0)
        CUDA_LAUNCH(cuda, matmul_plain, n[GPU_MATMUL_PLAIN], 1, GPU_MATMUL_THREADS, {all});
    if (n[GPU_MATMUL_PLAIN_MANY] > 0)
        CUDA_LAUNCH(cuda, matmul_plain_many, n[GPU_MATMUL_PLAIN_MANY], 1, GPU_MATMUL_THREADS,
                    {all});
}

static void launch_head(struct backend_cuda *cuda, const struct gpu_product *p)
{
    const uint32_t n_tiles = (uint32_t)cuda_over(p->n_across, GPU_HEAD_BLOCKS);
    CUDA_LAUNCH(cuda, matmul_head, cuda_over(p->n_across, n_tiles), 1, GPU_MATMUL_THREADS,
                {.p = *p, .n_tiles = n_tiles});
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
    if (list.n == 1 && gpu_is_head(&list.products[0]))
        launch_head(cuda, &list.products[0]);
    else
        launch_list(cuda, &list);
}

/* ---- single heads ---------------------------------------------------------------------------- */

/* The input of a head: every n_heads-th row of all. */
static struct gpu_input head_input(const struct gpu_input *all, const struct weight *w, size_t head)
{
    struct gpu_input in = *all;
    const size_t at = head * w->n_cols, group = w->quant->group;
    if (w->quant->codes == QUANT_NO_CODES) {
        in.x += at;
        return in;
    }
    in.q += at;
    in.scale += at / group;
    in.offset += at / group;
    in.sum += at / group;
    return in;
}

/* The products of n tokens, whose rows are the input. */
static void multiply_heads(struct backend_cuda *cuda, const struct backend_head_products *args,
                           uint32_t n, float *y)
{
    cuda_queue_begin(&cuda->queue);
    const struct gpu_input all = input_for(cuda, &args->w[0]);
    struct product_list list = new_list(cuda, args->n_heads);
    const void *device;
    uint32_t *pick = cuda_queue_reserve(&cuda->queue, n * sizeof *pick, &device);
    for (uint32_t t = 0; t < n; t++)
        pick[t] = t * args->n_heads;
    for (size_t h = 0; h < args->n_heads; h++)
        add_product(&list, (struct gpu_product){.w = gpu_weight_of(&args->w[h]),
                                                .in = head_input(&all, &args->w[h], h), .n = n,
                                                .pick = device, .y = y + h * args->y_stride,
                                                .y_stride = args->n_heads * args->y_stride});
    launch_list(cuda, &list);
}

/* As many tokens at a time as the rounded input has room for. */
void cuda_head_products(struct backend *be, const struct backend_head_products *args, size_t n)
{
    struct backend_cuda *cuda = cuda_of(be);
    const size_t n_cols = args->w[0].n_cols, width = args->n_heads * n_cols;
    const size_t fit = cuda_input_floats(&cuda->limits) / width;
    assert(fit > 0 && n <= cuda->limits.max_rows);
    for (size_t t = 0; t < n; t += fit) {
        const size_t count = n - t < fit ? n - t : fit;
        cuda->x = args->x + t * width;
        cuda->n = count * args->n_heads;
        cuda->n_cols = n_cols;
        for (unsigned i = 0; i < CUDA_GROUP_SIZES; i++)
            cuda->input[i].is_made = false;
        multiply_heads(cuda, args, (uint32_t)count,
                       args->y + t * args->n_heads * args->y_stride);
    }
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

/* Blocks of one call. The last one is that of experts which the GPU finds, if there are any. */
struct ffn_call {
    const struct backend_ffn *blocks;
    size_t n_blocks;
    const struct backend_routed *routed; /* NULL: none */
};

static const struct backend_routed *routed_of(const struct ffn_call *call,
                                              const struct backend_ffn *f)
{
    return f == &call->blocks[call->n_blocks - 1] ? call->routed : NULL;
}

/* Whether the down products of a run compute their inputs themselves: those of a token. */
static bool activates_later(const struct ffn_call *call, const struct run *run)
{
    for (size_t i = 0; i < run->n_blocks; i++) {
        const struct backend_ffn *f = &run->first[i];
        const struct backend_routed *routed = routed_of(call, f);
        const struct gpu_product down = {.w = gpu_weight_of(&f->down), .n = (uint32_t)f->n,
                                         .bases = routed != NULL ? routed->bases : NULL};
        if (f->n > 0 && (gpu_kind_of(&down) != GPU_MATMUL_ONE || !down.w.is_interleaved ||
                         f->down.n_cols > GPU_ONE_HIDDEN))
            return false;
    }
    return true;
}

static void activate(struct backend_cuda *cuda, const struct ffn_call *call,
                     const struct run *run)
{
    const struct backend_ffn *f = run->first;
    const struct gpu_input hidden = hidden_of(cuda, run, 0);
    const uint32_t width = f->gate.n_rows;
    const uint32_t group = f->down.quant->codes == QUANT_NO_CODES ? 0 : f->down.quant->group;
    if (run->n_rows == 0 || activates_later(call, run))
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
static void add_run(struct backend_cuda *cuda, const struct ffn_call *call, const struct run *run,
                    struct product_list *gates, struct product_list *downs)
{
    const bool is_later = activates_later(call, run);
    size_t at = 0;
    for (size_t i = 0; i < run->n_blocks; i++) {
        const struct backend_ffn *f = &run->first[i];
        const struct backend_routed *routed = routed_of(call, f);
        const uint32_t *rows = cuda_queue_put(&cuda->queue, f->rows, f->n * sizeof *rows);
        const uint32_t *places = cuda_queue_put(&cuda->queue, f->places, f->n * sizeof *places);
        struct gpu_product p = {.w = gpu_weight_of(&f->gate), .in = input_for(cuda, &f->gate),
                                .n = (uint32_t)f->n, .pick = rows, .bias = f->gate_bias,
                                .bases = routed != NULL ? routed->bases : NULL,
                                .id = routed != NULL ? routed->ids : NULL,
                                .y = cuda->gate + run->at + at};
        add_product(gates, p);
        p.w = gpu_weight_of(&f->up);
        p.in = input_for(cuda, &f->up);
        p.bias = f->up_bias;
        p.y = cuda->up + run->at + at;
        add_product(gates, p);
        p.w = gpu_weight_of(&f->down);
        p.in = hidden_of(cuda, run, at);
        p.pick = NULL;
        p.place = places;
        p.has_old_ids = true; /* gate and up lie between */
        p.bias = f->down_bias;
        p.y = f->out;
        if (is_later) {
            p.in = (struct gpu_input){.x = cuda->gate + run->at + at};
            p.up = cuda->up + run->at + at;
            p.activation = f->activation;
        }
        add_product(downs, p);
        at += f->n * f->gate.n_rows;
    }
}

static void run_call(struct backend_cuda *cuda, const struct ffn_call *call)
{
    const size_t n_blocks = call->n_blocks;
    cuda_queue_begin(&cuda->queue);
    struct product_list gates = new_list(cuda, 2 * n_blocks), downs = new_list(cuda, n_blocks);
    struct run run;
    for (size_t i = 0, at = 0; i < n_blocks; i += run.n_blocks, at = behind_run(&run)) {
        run = run_at(call->blocks, n_blocks, i, at);
        add_run(cuda, call, &run, &gates, &downs);
    }
    launch_list(cuda, &gates);
    for (size_t i = 0, at = 0; i < n_blocks; i += run.n_blocks, at = behind_run(&run)) {
        run = run_at(call->blocks, n_blocks, i, at);
        activate(cuda, call, &run);
    }
    launch_list(cuda, &downs);
}

void cuda_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks)
{
    run_call(cuda_of(be), &(struct ffn_call){.blocks = blocks, .n_blocks = n_blocks});
}

/* The experts of all rows are one block: its inputs are the pairs of a row and one of its experts.
 * Nothing here depends on which experts these are, so a token gives the same commands again. */
void cuda_ffn_routed(struct backend *be, const struct backend_routed *args)
{
    struct backend_cuda *cuda = cuda_of(be);
    struct backend_ffn blocks[2];
    uint32_t rows[BACKEND_ROUTED_ROWS * LIMIT_TOP_K];
    struct ffn_call call = {.blocks = blocks, .routed = args};
    const size_t n_pairs = cuda->n * args->k;
    assert(cuda->n <= BACKEND_ROUTED_ROWS && args->k <= LIMIT_TOP_K);
    assert(n_pairs + cuda->n <= cuda->limits.max_ffn_rows);
    for (size_t i = 0; i < n_pairs; i++)
        rows[i] = (uint32_t)(i / args->k);
    if (args->shared != NULL)
        blocks[call.n_blocks++] = *args->shared;
    blocks[call.n_blocks] = *args->expert;
    blocks[call.n_blocks].rows = rows;
    blocks[call.n_blocks].places = NULL;
    blocks[call.n_blocks++].n = n_pairs;
    run_call(cuda, &call);
}
