/* The sequence mixers: softmax attention and the gated delta rule. */
#include <assert.h>
#include <string.h>

#include "backend/cpu/backend_cpu_internal.h"

/* ---- attention ------------------------------------------------------------------------------- */

struct attention_job {
    struct backend_cpu *cpu;
    const struct backend_attention *args;
    const struct backend_segment *segment;
    size_t first_block, n_blocks; /* that are computed now; each row alone sees those it may */
    /* What a thread computes together: query heads that share a key head, of so many rows. */
    unsigned item_heads, item_rows;
};

static bool is_rotated(const struct backend_attention *a)
{
    return a->kv_format->plain == NULL;
}

/* Returns the offset of a head's row for a position, in keys and in values. */
static ptrdiff_t row_at(const struct attention_job *job, size_t kv_head, size_t position)
{
    const struct backend_attention *a = job->args;
    const int64_t *shift = segment_shift(job->segment, ATTENTION_KEYS);
    const size_t block = position / a->block_positions, rest = position % a->block_positions;
    const size_t at = block * a->block_bytes +
                      (kv_head * a->block_positions + rest) *
                          kv_row_bytes(a->kv_format, a->head_dim);
    return (ptrdiff_t)at + (shift != NULL ? (ptrdiff_t)shift[block] : 0);
}

/* Stores keys and values and rotates the queries. Rows and heads are dealt out to the parts in
 * turn. */
static void store_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct attention_job *job = ctx;
    const struct backend_attention *a = job->args;
    const struct backend_segment *segment = job->segment;
    const struct kernels *kernels = &job->cpu->kernels;
    const size_t dim = a->head_dim;
    const size_t group = a->n_heads / a->n_kv_heads;
    for (size_t i = part; i < (size_t)segment->n_rows * a->n_kv_heads; i += n_parts) {
        const size_t t = i / a->n_kv_heads, h = i % a->n_kv_heads, row = segment->first_row + t;
        const ptrdiff_t at = row_at(job, h, segment->position + t);
        const size_t from = (row * a->n_kv_heads + h) * dim;
        kernels->store_kv(a->kv_format, KV_KEY, a->k + from, dim,
                          (char *)segment->state[ATTENTION_KEYS] + at);
        if (a->v != NULL)
            kernels->store_kv(a->kv_format, KV_VALUE, a->v + from, dim,
                              (char *)segment->state[ATTENTION_VALUES] + at);
        for (size_t q = h * group; is_rotated(a) && q < (h + 1) * group; q++)
            kv_rotate(a->q + row * a->q_row_stride + q * a->q_head_stride, dim);
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Returns the first position that a row sees, of the `visible` ones. */
static size_t first_of(const struct backend_attention *a, size_t visible)
{
    return a->window > 0 && visible > a->window ? visible - a->window : 0;
}

/* Positions that a row sees of a block of attention, in one run or gathered. */
struct sight {
    const char *keys, *values;
    size_t n;
};

/* Returns the blocks that a row has chosen, or NULL if it sees all positions. */
static const uint32_t *chosen_of(const struct attention_job *job, size_t row)
{
    const struct backend_attention *a = job->args;
    if (a->chosen == NULL)
        return NULL;
    const uint32_t *chosen = a->chosen + (job->segment->first_row + row) * (1ul + a->n_best);
    return chosen[0] == INDEX_ALL ? NULL : chosen;
}

/* Adds the positions from `from` on that lie in [first, end), and gathers them if there is room to
 * put them. */
static void see_run(const struct attention_job *job, size_t kv_head, size_t from, size_t to,
                    size_t first, size_t end, char *room, struct sight *sight)
{
    const struct backend_attention *a = job->args;
    const size_t bytes = kv_row_bytes(a->kv_format, a->head_dim);
    from = larger(from, first);
    to = smaller(to, end);
    if (from >= to)
        return;
    if (room != NULL) {
        const ptrdiff_t at = row_at(job, kv_head, from);
        const size_t n = (to - from) * bytes;
        char *keys = room + sight->n * bytes;
        memcpy(keys, (const char *)job->segment->state[ATTENTION_KEYS] + at, n);
        memcpy(keys + KERNEL_ATTENTION_BLOCK * bytes,
               (const char *)job->segment->state[ATTENTION_VALUES] + at, n);
    }
    sight->n += to - from;
}

/* Finds what a row sees of the positions [first, end). Without room it only counts them. */
static struct sight see_chosen(const struct attention_job *job, size_t row, size_t kv_head,
                               size_t first, size_t end, char *room)
{
    const struct backend_attention *a = job->args;
    const uint32_t *chosen = chosen_of(job, row);
    const size_t visible = job->segment->position + row + 1, n = chosen[0];
    const size_t bytes = kv_row_bytes(a->kv_format, a->head_dim);
    struct sight sight = {room, room != NULL ? room + KERNEL_ATTENTION_BLOCK * bytes : NULL, 0};
    size_t low = 0, high = n; /* the first chosen block that ends behind `first` */
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if ((chosen[1 + middle] + 1ul) * a->ratio > first)
            high = middle;
        else
            low = middle + 1;
    }
    for (size_t i = low; i < n && chosen[1 + i] * (size_t)a->ratio < end; i++)
        see_run(job, kv_head, chosen[1 + i] * (size_t)a->ratio, (chosen[1 + i] + 1ul) * a->ratio,
                first, end, room, &sight);
    see_run(job, kv_head, visible / a->ratio * a->ratio, visible, first, end, room, &sight);
    return sight;
}

/* The positions of a block that exist and lie in the window. */
static void block_range(const struct attention_job *job, size_t row, size_t block, size_t *first,
                        size_t *end)
{
    const size_t visible = job->segment->position + row + 1;
    *first = larger(block * KERNEL_ATTENTION_BLOCK, first_of(job->args, visible));
    *end = smaller(visible, (block + 1) * KERNEL_ATTENTION_BLOCK);
}

/* Returns whether a row sees nothing of a block. */
static bool is_blind(const struct attention_job *job, size_t row, size_t block)
{
    size_t first, end;
    if (chosen_of(job, row) == NULL)
        return false;
    block_range(job, row, block, &first, &end);
    return see_chosen(job, row, 0, first, end, NULL).n == 0;
}

/* What a row sees of a block. If that is all of it, nothing is gathered: the same bits as attention
 * that sees everything. */
static struct sight see_block(const struct attention_job *job, size_t row, size_t kv_head,
                              size_t block, float *scratch)
{
    const struct backend_attention *a = job->args;
    const struct backend_segment *segment = job->segment;
    const void *values = segment->state[a->v != NULL ? ATTENTION_VALUES : ATTENTION_KEYS];
    size_t first, end;
    block_range(job, row, block, &first, &end);
    if (chosen_of(job, row) != NULL &&
        see_chosen(job, row, kv_head, first, end, NULL).n < end - first) {
        float *room = scratch + job->cpu->thread_floats - job->cpu->gather_floats;
        return see_chosen(job, row, kv_head, first, end, (char *)room);
    }
    const ptrdiff_t at = row_at(job, kv_head, first);
    return (struct sight){(const char *)segment->state[ATTENTION_KEYS] + at,
                          (const char *)values + at, end - first};
}

/* Returns the first block that a row sees something of. */
static size_t first_seen(const struct attention_job *job, size_t row)
{
    size_t block = first_of(job->args, job->segment->position + row + 1) / KERNEL_ATTENTION_BLOCK;
    while (is_blind(job, row, block))
        block++;
    return block;
}

/* Attends to one block of positions with item_heads query heads, from `head` on, of n_rows rows,
 * from `row` on. All of them see the same of the block. `scratch` is the thread's. */
static void attend_block(const struct attention_job *job, size_t row, size_t n_rows, size_t head,
                         size_t block, float *max, float *total, float *out, float *scratch)
{
    const struct backend_attention *a = job->args;
    const size_t kv_head = head / (a->n_heads / a->n_kv_heads);
    const struct sight sight = see_block(job, row, kv_head, block, scratch);
    const size_t q_at = (job->segment->first_row + row) * a->q_row_stride +
                        head * a->q_head_stride;
    job->cpu->kernels.attend(&(struct kernel_attention){
        .kv_format = a->kv_format, .q = a->q + q_at, .q_stride = a->q_head_stride,
        .q_row_stride = a->q_row_stride, .n_heads = (unsigned)n_rows * job->item_heads,
        .row_heads = job->item_heads, .head_dim = a->head_dim, .value_dim = a->value_dim,
        .keys = sight.keys, .values = sight.values, .n_positions = sight.n, .scale = a->scale,
        .max = max, .total = total, .out = out, .scratch = scratch});
}

static float *out_of(const struct attention_job *job, size_t row, size_t head)
{
    const struct backend_attention *a = job->args;
    return a->out + ((job->segment->first_row + row) * a->n_heads + head) * (size_t)a->value_dim;
}

static void close_head(const struct attention_job *job, size_t row, size_t head, float max,
                       float total)
{
    const struct backend_attention *a = job->args;
    const struct kernels *kernels = &job->cpu->kernels;
    const size_t at = (job->segment->first_row + row) * a->q_row_stride + head * a->q_head_stride;
    float *out = out_of(job, row, head);
    if (a->sinks != NULL)
        kernels->attend_sink(max, &total, out, a->sinks[head], a->value_dim);
    if (is_rotated(a))
        kv_rotate_back(out, a->head_dim);
    kernels->attend_close(out, total, a->gate != NULL ? a->gate + at : NULL, a->value_dim);
}

/* Rows and heads that a thread computes together. `all` is what the blocks so far gave; its values
 * lie where the results go. `block` is what one block gave. */
struct tile {
    size_t row, n_rows, head;
    float *scratch;
    struct {
        float *max, *total; /* [n_rows * item_heads] */
    } all, block;
    float *block_out; /* [n_rows * item_heads, value_dim] */
};

static struct tile tile_of(const struct attention_job *job, size_t row, size_t head, float *scratch)
{
    const struct backend_attention *a = job->args;
    const size_t n_rows = smaller(job->item_rows, job->segment->n_rows - row);
    const size_t n = n_rows * job->item_heads;
    float *p = scratch + KERNEL_ATTENTION_SCRATCH(n, a->head_dim);
    return (struct tile){.row = row, .n_rows = n_rows, .head = head, .scratch = scratch,
                         .all = {p, p + n}, .block = {p + 2 * n, p + 3 * n},
                         .block_out = p + 4 * n};
}

/* Adds what a block gave to what the blocks before it gave, for one row of a tile. */
static void add_block(const struct attention_job *job, const struct tile *tile, size_t row,
                      bool is_first)
{
    const size_t dim = job->args->value_dim;
    float *out = out_of(job, tile->row + row, tile->head);
    for (size_t i = 0; i < job->item_heads; i++) {
        const size_t h = row * job->item_heads + i;
        if (is_first) {
            tile->all.max[h] = tile->block.max[h];
            tile->all.total[h] = tile->block.total[h];
            memcpy(out + i * dim, tile->block_out + h * dim, dim * sizeof *out);
        } else {
            job->cpu->kernels.attend_merge(&tile->all.max[h], &tile->all.total[h], out + i * dim,
                                           tile->block.max[h], tile->block.total[h],
                                           tile->block_out + h * dim, dim);
        }
    }
}

/* Computes blocks [first, end) for one row of a tile alone, as far as it sees something of them. */
static void attend_alone(const struct attention_job *job, const struct tile *tile, size_t row,
                         size_t first, size_t end)
{
    const size_t seen = first_seen(job, tile->row + row), at = row * job->item_heads;
    for (size_t b = larger(first, seen); b < end; b++) {
        if (is_blind(job, tile->row + row, b))
            continue;
        attend_block(job, tile->row + row, 1, tile->head, b, tile->block.max + at,
                     tile->block.total + at, tile->block_out + at * job->args->value_dim,
                     tile->scratch);
        add_block(job, tile, row, b == seen);
    }
}

/* Finds the blocks of which all rows of a tile see all positions. */
static void find_common(const struct attention_job *job, const struct tile *tile, size_t *first,
                        size_t *end)
{
    const size_t visible = job->segment->position + tile->row + 1;
    const size_t begin = first_of(job->args, visible + tile->n_rows - 1);
    *end = tile->n_rows > 1 ? visible / KERNEL_ATTENTION_BLOCK : 0;
    *first = smaller((begin + KERNEL_ATTENTION_BLOCK - 1) / KERNEL_ATTENTION_BLOCK, *end);
}

/* Each row takes its blocks in ascending order, with others or alone: the same bits. */
static void attend_tile(const struct attention_job *job, const struct tile *tile)
{
    size_t first, end;
    find_common(job, tile, &first, &end);
    for (size_t r = 0; r < tile->n_rows; r++)
        attend_alone(job, tile, r, 0, first);
    for (size_t b = first; b < end; b++) {
        attend_block(job, tile->row, tile->n_rows, tile->head, b, tile->block.max,
                     tile->block.total, tile->block_out, tile->scratch);
        for (size_t r = 0; r < tile->n_rows; r++)
            add_block(job, tile, r, b == first_seen(job, tile->row + r));
    }
    for (size_t r = 0; r < tile->n_rows; r++) {
        const size_t visible = job->segment->position + tile->row + r + 1, at = r * job->item_heads;
        attend_alone(job, tile, r, end,
                     (visible + KERNEL_ATTENTION_BLOCK - 1) / KERNEL_ATTENTION_BLOCK);
        for (size_t h = 0; h < job->item_heads; h++)
            close_head(job, tile->row + r, tile->head + h, tile->all.max[at + h],
                       tile->all.total[at + h]);
    }
}

/* Work items are (item_rows rows, item_heads heads). Later rows see more positions. */
static void attend_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct attention_job *job = ctx;
    const size_t n_items = job->args->n_heads / job->item_heads, n_rows = job->segment->n_rows;
    (void)n_parts;
    for (size_t i; (i = pool_take(job->cpu->pool)) / n_items * job->item_rows < n_rows;) {
        const struct tile tile = tile_of(job, i / n_items * job->item_rows,
                                         i % n_items * job->item_heads,
                                         cpu_scratch(job->cpu, part));
        attend_tile(job, &tile);
    }
}

/* ---- one row with many positions -------------------------------------------------------------
 * Work items are (block, item_heads heads). As many blocks as `partial` has room for are computed,
 * then they are merged in their order, then the next ones follow. So their results stay in a
 * cache, and their memory does not depend on the context. */

/* Returns where a block's result is kept: max, total and out of all heads, in this order. */
static float *partial_of(const struct attention_job *job, size_t block)
{
    return job->cpu->partial + block * job->args->n_heads * (job->args->head_dim + 2ul);
}

/* Returns max and total of all heads and of the blocks that are merged already. */
static float *merged_of(const struct attention_job *job)
{
    return partial_of(job, job->cpu->n_partial);
}

static void blocks_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct attention_job *job = ctx;
    const struct backend_attention *a = job->args;
    const size_t n_items = a->n_heads / job->item_heads;
    (void)n_parts;
    for (size_t i; (i = pool_take(job->cpu->pool)) < job->n_blocks * n_items;) {
        const size_t block = i / n_items, head = i % n_items * job->item_heads;
        float *max = partial_of(job, block), *total = max + a->n_heads;
        float *out = total + a->n_heads;
        if (is_blind(job, 0, job->first_block + block))
            continue;
        attend_block(job, 0, 1, head, job->first_block + block, max + head, total + head,
                     out + head * a->value_dim, cpu_scratch(job->cpu, part));
    }
}

static void merge_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct attention_job *job = ctx;
    const struct backend_attention *a = job->args;
    const size_t dim = a->value_dim, visible = job->segment->position + 1ul;
    const size_t first = first_seen(job, 0);
    const bool is_last = (job->first_block + job->n_blocks) * KERNEL_ATTENTION_BLOCK >= visible;
    for (size_t h = part; h < a->n_heads; h += n_parts) {
        float *max = merged_of(job) + h, *total = max + a->n_heads, *out = out_of(job, 0, h);
        for (size_t b = 0; b < job->n_blocks; b++) {
            const float *p = partial_of(job, b), *values = p + 2ul * a->n_heads + h * dim;
            if (is_blind(job, 0, job->first_block + b))
                continue;
            if (job->first_block + b == first) {
                *max = p[h];
                *total = p[a->n_heads + h];
                memcpy(out, values, dim * sizeof *out);
                continue;
            }
            job->cpu->kernels.attend_merge(max, total, out, p[h], p[a->n_heads + h], values, dim);
        }
        if (is_last)
            close_head(job, 0, h, *max, *total);
    }
}

static void attend_long_row(struct attention_job *job)
{
    const struct backend_attention *a = job->args;
    const size_t end = job->first_block + job->n_blocks, n_max = job->cpu->n_partial;
    for (; job->first_block < end; job->first_block += job->n_blocks) {
        job->n_blocks = smaller(end - job->first_block, n_max);
        const size_t work = job->n_blocks * a->n_heads * a->head_dim;
        cpu_run(job->cpu, blocks_part, job, work * KERNEL_ATTENTION_BLOCK);
        cpu_run(job->cpu, merge_part, job, work);
    }
}

/* Fewer heads than this make the same rows floats too often. */
#define MIN_ITEM_HEADS 16

/* Returns the number of heads that a thread computes together: those that share a key and value
 * head, or a part of them where there are too few items for all threads. */
static unsigned item_heads(const struct attention_job *job, size_t n)
{
    const struct backend_attention *a = job->args;
    unsigned heads = a->n_heads / a->n_kv_heads;
    while (n * (a->n_heads / heads) < 2ul * job->cpu->limits.n_threads && heads % 2 == 0 &&
           heads / 2 >= MIN_ITEM_HEADS)
        heads /= 2;
    return heads;
}

/* Returns the number of rows that a thread computes together, which read keys and values once. */
static unsigned item_rows(const struct attention_job *job)
{
    const size_t n_rows = job->segment->n_rows, n_items = job->args->n_heads / job->item_heads;
    size_t rows = smaller(larger(CPU_TILE_HEADS / job->item_heads, 1), n_rows);
    if (job->args->chosen != NULL) /* each row sees other positions */
        return 1;
    while (rows > 1 && (n_rows + rows - 1) / rows * n_items < 2ul * job->cpu->limits.n_threads)
        rows = (rows + 1) / 2;
    return (unsigned)rows;
}

void cpu_attention(struct backend *be, const struct backend_attention *args)
{
    struct backend_cpu *cpu = cpu_of(be);
    assert(args->value_dim == args->head_dim ||
           (args->value_dim < args->head_dim && args->v == NULL && !is_rotated(args)));
    assert(args->chosen == NULL || (args->v != NULL && args->window == 0 &&
                                    cpu->gather_floats > 0));
    for (size_t s = 0; s < args->n_segments; s++) {
        const struct backend_segment *segment = &args->segments[s];
        const size_t n_positions = segment->position + segment->n_rows;
        assert(n_positions <= args->block_positions ||
               args->block_positions % KERNEL_ATTENTION_BLOCK == 0);
        const size_t first = first_of(args, n_positions);
        const size_t end = (n_positions + KERNEL_ATTENTION_BLOCK - 1) / KERNEL_ATTENTION_BLOCK;
        struct attention_job job = {.cpu = cpu, .args = args, .segment = segment,
                                    .first_block = first / KERNEL_ATTENTION_BLOCK};
        job.n_blocks = end - job.first_block;
        const bool is_long = segment->n_rows == 1 && job.n_blocks > 1;
        job.item_heads = item_heads(&job, is_long ? smaller(job.n_blocks, cpu->n_partial)
                                                  : segment->n_rows);
        job.item_rows = item_rows(&job);
        const size_t work = (n_positions - first) * args->n_heads * args->head_dim;
        cpu_run(cpu, store_part, &job, (size_t)segment->n_rows * args->n_kv_heads * args->head_dim);
        if (is_long)
            attend_long_row(&job);
        else
            cpu_run(cpu, attend_part, &job, segment->n_rows * work);
    }
}

/* ---- the gated delta rule -------------------------------------------------------------------- */

struct delta_job {
    struct backend_cpu *cpu;
    const struct backend_delta_net *args;
};

/* Computes a key head and the value heads that use it: the convolution of their channels, then the
 * delta rule. These value heads are neighbours unless they are tiled. */
static void delta_item(const struct delta_job *job, const struct backend_segment *segment,
                       size_t key_head, float *scratch)
{
    const struct backend_delta_net *a = job->args;
    const struct kernels *kernels = &job->cpu->kernels;
    const size_t key_dim = a->key_dim, value_dim = a->value_dim;
    const size_t key_width = a->n_key_heads * key_dim, ratio = a->n_value_heads / a->n_key_heads;
    const size_t q = key_head * key_dim, k = key_width + q;
    kernels->conv_silu(a, segment, q, q + key_dim);
    kernels->conv_silu(a, segment, k, k + key_dim);
    for (size_t i = 0; i < ratio; i++) {
        const size_t head = a->has_tiled_value_heads ? key_head + i * a->n_key_heads
                                                     : key_head * ratio + i;
        const size_t v = 2 * key_width + head * value_dim;
        kernels->conv_silu(a, segment, v, v + value_dim);
        kernels->delta_head(a, segment, (unsigned)head, scratch);
    }
}

static void delta_part(void *ctx, unsigned part, unsigned n_parts)
{
    const struct delta_job *job = ctx;
    const struct backend_delta_net *a = job->args;
    const size_t n_items = a->n_segments * a->n_key_heads;
    (void)n_parts;
    for (size_t i; (i = pool_take(job->cpu->pool)) < n_items;)
        delta_item(job, &a->segments[i / a->n_key_heads], i % a->n_key_heads,
                   cpu_scratch(job->cpu, part));
}

void cpu_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    struct delta_job job = {cpu_of(be), args};
    size_t n_rows = 0;
    for (size_t s = 0; s < args->n_segments; s++)
        n_rows += args->segments[s].n_rows;
    cpu_run(job.cpu, delta_part, &job,
            n_rows * args->n_value_heads * args->value_dim * args->key_dim);
}
