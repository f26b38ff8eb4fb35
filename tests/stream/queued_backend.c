/* The CPU backend behind a queue, with memory that only its operations can access (guard.h). Linked
 * with --wrap=backend_open it replaces every backend.
 *
 * It does as little as the contract of backend.h and memory.h allows. An operation copies what it
 * gets from the host's memory and waits in the queue. It runs when something waits for it, and not
 * before. The host never gets the memory itself: opening a piece makes a copy, which is overwritten
 * with garbage when the piece is closed. Code that relies on more than the contract gets other
 * bits. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "guard.h"

/* A copy of an operation's arguments, freed with it. */
struct kept {
    struct kept *next;
    size_t bytes;
    max_align_t data[];
};

struct op {
    struct op *next;
    uint64_t number;
    void (*run)(struct backend *cpu, const void *args);
    const void *args;
    struct kept *kept;
};

/* An open piece of memory. */
struct piece {
    struct piece *next;
    const void *at;
    uint64_t bytes;
    enum memory_use use;
    char *host;
};

struct queued {
    struct backend base;
    struct memory memory;
    struct backend *cpu;
    struct op *first, *last;
    uint64_t n_queued, n_done;
    pthread_mutex_t lock; /* protects the pieces */
    struct piece *pieces;
};

#define POISON 0xa5

static struct queued *queued_of(struct backend *be)
{
    return (struct queued *)(void *)be;
}

static struct queued *owner_of(const struct memory *m)
{
    return (struct queued *)(void *)((char *)(uintptr_t)m - offsetof(struct queued, memory));
}

/* ---- the queue ------------------------------------------------------------------------------- */

static struct op *add_op(struct queued *q, void (*run)(struct backend *cpu, const void *args))
{
    struct op *op = calloc(1, sizeof *op);
    guard_must(op != NULL);
    op->run = run;
    op->number = ++q->n_queued;
    *(q->last != NULL ? &q->last->next : &q->first) = op;
    q->last = op;
    return op;
}

/* Copies what the host may change after the call. NULL stays NULL. */
static void *keep(struct op *op, const void *from, size_t bytes)
{
    if (from == NULL)
        return NULL;
    struct kept *kept = malloc(sizeof *kept + bytes);
    guard_must(kept != NULL);
    *kept = (struct kept){.next = op->kept, .bytes = bytes};
    op->kept = kept;
    return memcpy(kept->data, from, bytes);
}

static void free_op(struct op *op)
{
    while (op->kept != NULL) {
        struct kept *kept = op->kept;
        op->kept = kept->next;
        memset(kept->data, POISON, kept->bytes);
        free(kept);
    }
    free(op);
}

/* Runs the operations up to that one. */
static void run_until(struct queued *q, uint64_t number)
{
    if (q->n_done >= number)
        return;
    guard_begin();
    while (q->first != NULL && q->first->number <= number) {
        struct op *op = q->first;
        op->run(q->cpu, op->args);
        q->n_done = op->number;
        q->first = op->next;
        free_op(op);
    }
    if (q->first == NULL)
        q->last = NULL;
    guard_end();
}

static void run_all(struct queued *q)
{
    run_until(q, q->n_queued);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void queued_free(const struct memory *m, void *at)
{
    run_all(owner_of(m));
    guard_free(m, at);
}

static void queued_give_back(const struct memory *m, void *at, uint64_t bytes)
{
    if (bytes > 0)
        run_all(owner_of(m));
    guard_give_back(m, at, bytes);
}

static int queued_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
                               const char *what, struct fm_error *err)
{
    if (bytes < range->used_bytes)
        run_all(owner_of(m));
    return guard_range_resize(m, range, bytes, what, err);
}

static void queued_range_close(const struct memory *m, struct mem_range *range)
{
    run_all(owner_of(m));
    guard_range_close(m, range);
}

static void *queued_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use)
{
    struct queued *q = owner_of(m);
    struct piece *piece = malloc(sizeof *piece);
    const uint64_t room = mem_round_up(bytes > 0 ? bytes : 1, MEM_PAGE);
    guard_must(piece != NULL);
    *piece = (struct piece){.at = at, .bytes = bytes, .use = use,
                            .host = aligned_alloc(MEM_PAGE, room)};
    guard_must(piece->host != NULL);
    memset(piece->host, POISON, room);
    if (use == MEMORY_LOOK)
        run_all(q);
    void *real = guard_open(m, at, bytes, use);
    if (use == MEMORY_LOOK)
        memcpy(piece->host, real, bytes);
    else
        memset(real, POISON, bytes); /* a late operation must get other bits */
    guard_close(m, at, bytes);
    pthread_mutex_lock(&q->lock);
    piece->next = q->pieces;
    q->pieces = piece;
    pthread_mutex_unlock(&q->lock);
    return piece->host;
}

static void queued_close(const struct memory *m, void *at, uint64_t bytes)
{
    struct queued *q = owner_of(m);
    pthread_mutex_lock(&q->lock);
    struct piece **link = &q->pieces;
    while (*link != NULL && ((*link)->at != at || (*link)->bytes != bytes))
        link = &(*link)->next;
    struct piece *piece = *link;
    guard_must(piece != NULL);
    *link = piece->next;
    pthread_mutex_unlock(&q->lock);
    if (piece->use == MEMORY_FILL) {
        memcpy(guard_open(m, at, bytes, piece->use), piece->host, bytes);
        guard_close(m, at, bytes);
    }
    memset(piece->host, POISON, bytes);
    free(piece->host);
    free(piece);
}

struct move {
    void *to;
    const void *from;
    uint64_t bytes;
};

static void run_copy(struct backend *cpu, const void *args)
{
    const struct move *a = args;
    (void)cpu;
    memmove(a->to, a->from, a->bytes);
}

static void queued_copy(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    struct op *op = add_op(owner_of(m), run_copy);
    op->args = keep(op, &(struct move){to, from, bytes}, sizeof(struct move));
}

static void run_clear(struct backend *cpu, const void *args)
{
    const struct move *a = args;
    (void)cpu;
    memset(a->to, 0, a->bytes);
}

static void queued_clear(const struct memory *m, void *at, uint64_t bytes)
{
    struct op *op = add_op(owner_of(m), run_clear);
    op->args = keep(op, &(struct move){at, NULL, bytes}, sizeof(struct move));
}

static uint64_t queued_fence(const struct memory *m)
{
    return owner_of(m)->n_queued;
}

static void queued_wait(const struct memory *m, uint64_t fence)
{
    run_until(owner_of(m), fence);
}

static const struct memory_ops queued_memory_ops = {
    .make = guard_make,
    .free = queued_free,
    .give_back = queued_give_back,
    .take_back = guard_take_back,
    .range_open = guard_range_open,
    .range_resize = queued_range_resize,
    .range_close = queued_range_close,
    .open = queued_open,
    .close = queued_close,
    .fetch = guard_fetch,
    .copy = queued_copy,
    .clear = queued_clear,
    .fence = queued_fence,
    .wait = queued_wait,
};

/* ---- operations: what runs one, and what queues it ------------------------------------------- */

static void queued_backend_close(struct backend *be)
{
    struct queued *q = queued_of(be);
    guard_must(q->first == NULL && q->pieces == NULL);
    backend_close(q->cpu);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

struct embed_args {
    const struct weight *w;
    const int32_t *tokens;
    size_t n;
    float *x;
};

static void run_embed(struct backend *cpu, const void *args)
{
    const struct embed_args *a = args;
    cpu->ops->embed(cpu, a->w, a->tokens, a->n, a->x);
}

static void queued_embed(struct backend *be, const struct weight *w, const int32_t *tokens,
                         size_t n, float *x)
{
    struct op *op = add_op(queued_of(be), run_embed);
    const struct embed_args a = {keep(op, w, sizeof *w), keep(op, tokens, n * sizeof *tokens), n,
                                 x};
    op->args = keep(op, &a, sizeof a);
}

/* Arguments that are rows, in the order of the functions' parameters. */
struct rows_args {
    const float *x, *weight;
    float eps;
    size_t n, dim;
    unsigned k;
    float *y;
};

static void run_input(struct backend *cpu, const void *args)
{
    const struct rows_args *a = args;
    cpu->ops->input(cpu, a->x, a->n, a->dim);
}

static void queued_input(struct backend *be, const float *x, size_t n, size_t n_cols)
{
    struct op *op = add_op(queued_of(be), run_input);
    op->args = keep(op, &(struct rows_args){.x = x, .n = n, .dim = n_cols},
                    sizeof(struct rows_args));
}

static void run_rms_norm(struct backend *cpu, const void *args)
{
    const struct rows_args *a = args;
    cpu->ops->rms_norm(cpu, a->x, a->weight, a->eps, a->n, a->dim, a->y);
}

static void queued_rms_norm(struct backend *be, const float *x, const float *weight, float eps,
                            size_t n, size_t dim, float *y)
{
    struct op *op = add_op(queued_of(be), run_rms_norm);
    const struct rows_args a = {.x = x, .weight = weight, .eps = eps, .n = n, .dim = dim, .y = y};
    op->args = keep(op, &a, sizeof a);
}

static void run_expert_sum(struct backend *cpu, const void *args)
{
    const struct rows_args *a = args;
    cpu->ops->expert_sum(cpu, a->x, a->weight, a->n, a->k, a->dim, a->y);
}

static void queued_expert_sum(struct backend *be, const float *parts, const float *weights,
                              size_t n, unsigned k, size_t dim, float *out)
{
    struct op *op = add_op(queued_of(be), run_expert_sum);
    const struct rows_args a = {.x = parts, .weight = weights, .n = n, .dim = dim, .k = k,
                                .y = out};
    op->args = keep(op, &a, sizeof a);
}

static void run_add_gated(struct backend *cpu, const void *args)
{
    const struct rows_args *a = args;
    cpu->ops->add_gated(cpu, a->y, a->x, a->weight, a->n, a->dim);
}

static void queued_add_gated(struct backend *be, float *y, const float *x, const float *gate,
                             size_t n, size_t dim)
{
    struct op *op = add_op(queued_of(be), run_add_gated);
    const struct rows_args a = {.x = x, .weight = gate, .n = n, .dim = dim, .y = y};
    op->args = keep(op, &a, sizeof a);
}

static void run_add(struct backend *cpu, const void *args)
{
    const struct rows_args *a = args;
    cpu->ops->add(cpu, a->y, a->x, a->n);
}

static void queued_add(struct backend *be, float *y, const float *x, size_t n)
{
    struct op *op = add_op(queued_of(be), run_add);
    op->args = keep(op, &(struct rows_args){.x = x, .n = n, .y = y}, sizeof(struct rows_args));
}

struct list_args {
    const void *items;
    size_t n;
};

static void run_matmul(struct backend *cpu, const void *args)
{
    const struct list_args *a = args;
    cpu->ops->matmul(cpu, a->items, a->n);
}

static void queued_matmul(struct backend *be, const struct backend_product *products, size_t n)
{
    struct op *op = add_op(queued_of(be), run_matmul);
    struct backend_product *own = keep(op, products, n * sizeof *products);
    for (size_t i = 0; i < n; i++)
        own[i].w = keep(op, own[i].w, sizeof *own[i].w);
    op->args = keep(op, &(struct list_args){own, n}, sizeof(struct list_args));
}

static void run_ffn(struct backend *cpu, const void *args)
{
    const struct list_args *a = args;
    cpu->ops->ffn(cpu, a->items, a->n);
}

static void queued_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks)
{
    struct op *op = add_op(queued_of(be), run_ffn);
    struct backend_ffn *own = keep(op, blocks, n_blocks * sizeof *blocks);
    for (size_t i = 0; i < n_blocks; i++) {
        own[i].rows = keep(op, own[i].rows, own[i].n * sizeof *own[i].rows);
        own[i].places = keep(op, own[i].places, own[i].n * sizeof *own[i].places);
    }
    op->args = keep(op, &(struct list_args){own, n_blocks}, sizeof(struct list_args));
}

struct rope_args {
    const uint32_t *positions;
    size_t n;
    const float *frequencies;
    unsigned rotary_dim;
    float scale;
    float *out;
};

static void run_rope_table(struct backend *cpu, const void *args)
{
    const struct rope_args *a = args;
    cpu->ops->rope_table(cpu, a->positions, a->n, a->frequencies, a->rotary_dim, a->scale, a->out);
}

static void queued_rope_table(struct backend *be, const uint32_t *positions, size_t n,
                              const float *frequencies, unsigned rotary_dim, float scale,
                              float *out)
{
    struct op *op = add_op(queued_of(be), run_rope_table);
    const struct rope_args a = {keep(op, positions, n * sizeof *positions), n,
                                keep(op, frequencies, rotary_dim / 2 * sizeof *frequencies),
                                rotary_dim, scale, out};
    op->args = keep(op, &a, sizeof a);
}

static void run_norm_rope(struct backend *cpu, const void *args)
{
    const struct list_args *a = args;
    cpu->ops->norm_rope(cpu, a->items, a->n);
}

static void queued_norm_rope(struct backend *be, const struct backend_heads *heads, size_t n)
{
    struct op *op = add_op(queued_of(be), run_norm_rope);
    const struct list_args a = {keep(op, heads, sizeof *heads), n};
    op->args = keep(op, &a, sizeof a);
}

static void run_head_products(struct backend *cpu, const void *args)
{
    const struct list_args *a = args;
    cpu->ops->head_products(cpu, a->items, a->n);
}

static void queued_head_products(struct backend *be, const struct backend_head_products *args,
                                 size_t n)
{
    struct op *op = add_op(queued_of(be), run_head_products);
    struct backend_head_products *p = keep(op, args, sizeof *args);
    p->w = keep(op, p->w, p->n_heads * sizeof *p->w);
    const struct list_args a = {p, n};
    op->args = keep(op, &a, sizeof a);
}

static void run_copy_heads(struct backend *cpu, const void *args)
{
    const struct list_args *a = args;
    cpu->ops->copy_heads(cpu, a->items, a->n);
}

static void queued_copy_heads(struct backend *be, const struct backend_head_copy *args, size_t n)
{
    struct op *op = add_op(queued_of(be), run_copy_heads);
    const struct list_args a = {keep(op, args, sizeof *args), n};
    op->args = keep(op, &a, sizeof a);
}

static void run_attention(struct backend *cpu, const void *args)
{
    cpu->ops->attention(cpu, args);
}

static void queued_attention(struct backend *be, const struct backend_attention *args)
{
    struct op *op = add_op(queued_of(be), run_attention);
    struct backend_attention *a = keep(op, args, sizeof *args);
    a->segments = keep(op, a->segments, a->n_segments * sizeof *a->segments);
    op->args = a;
}

static void run_delta_net(struct backend *cpu, const void *args)
{
    cpu->ops->delta_net(cpu, args);
}

static void queued_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    struct op *op = add_op(queued_of(be), run_delta_net);
    struct backend_delta_net *a = keep(op, args, sizeof *args);
    a->segments = keep(op, a->segments, a->n_segments * sizeof *a->segments);
    op->args = a;
}

struct route_args {
    const struct router *router;
    const float *logits;
    size_t n;
    uint32_t *ids;
    float *weights;
};

static void run_route(struct backend *cpu, const void *args)
{
    const struct route_args *a = args;
    cpu->ops->route(cpu, a->router, a->logits, a->n, a->ids, a->weights);
}

static void queued_route(struct backend *be, const struct router *router, const float *logits,
                         size_t n, uint32_t *ids, float *weights)
{
    struct op *op = add_op(queued_of(be), run_route);
    const struct route_args a = {keep(op, router, sizeof *router), logits, n, ids, weights};
    op->args = keep(op, &a, sizeof a);
}

static void run_prefer(struct backend *cpu, const void *args)
{
    cpu->ops->prefer(cpu, args);
}

static void queued_prefer(struct backend *be, const struct backend_preference *args)
{
    struct op *op = add_op(queued_of(be), run_prefer);
    struct backend_preference *a = keep(op, args, sizeof *args);
    a->router = keep(op, a->router, sizeof *a->router);
    a->resident = keep(op, a->resident, a->router->n_experts * sizeof *a->resident);
    op->args = a;
}

struct find_args {
    const float *x;
    size_t n, dim;
    uint32_t *found;
};

static void run_find_not_finite(struct backend *cpu, const void *args)
{
    const struct find_args *a = args;
    cpu->ops->find_not_finite(cpu, a->x, a->n, a->dim, a->found);
}

static void queued_find_not_finite(struct backend *be, const float *x, size_t n, size_t dim,
                                   uint32_t *found)
{
    const struct find_args a = {x, n, dim, found};
    struct op *op = add_op(queued_of(be), run_find_not_finite);
    op->args = keep(op, &a, sizeof a);
}

/* ---- operations on streams ------------------------------------------------------------------- */

#define QUEUE_ROWS(operation, type)                                                                \
    static void run_##operation(struct backend *cpu, const void *args)                             \
    {                                                                                              \
        const struct list_args *a = args;                                                          \
        cpu->ops->streams->operation(cpu, a->items, a->n);                                         \
    }                                                                                              \
                                                                                                   \
    static void queued_stream_##operation(struct backend *be, const struct type *args, size_t n)   \
    {                                                                                              \
        struct op *op = add_op(queued_of(be), run_##operation);                                    \
        const struct list_args a = {keep(op, args, sizeof *args), n};                              \
        op->args = keep(op, &a, sizeof a);                                                         \
    }

QUEUE_ROWS(norm, backend_stream_norm)
QUEUE_ROWS(mean, backend_stream_mean)
QUEUE_ROWS(ngram_gate, backend_ngram_gate)

static void run_stream_add(struct backend *cpu, const void *args)
{
    const struct list_args *a = args;
    cpu->ops->streams->add(cpu, a->items, a->n);
}

static void queued_stream_add(struct backend *be, const struct backend_stream_add *args, size_t n)
{
    struct op *op = add_op(queued_of(be), run_stream_add);
    const struct list_args a = {keep(op, args, sizeof *args), n};
    op->args = keep(op, &a, sizeof a);
}

static void run_silu(struct backend *cpu, const void *args)
{
    const struct rows_args *a = args;
    cpu->ops->streams->silu(cpu, a->y, a->eps, a->n);
}

static void queued_stream_silu(struct backend *be, float *x, float divisor, size_t n)
{
    struct op *op = add_op(queued_of(be), run_silu);
    op->args = keep(op, &(struct rows_args){.y = x, .eps = divisor, .n = n},
                    sizeof(struct rows_args));
}

#define QUEUE_SEGMENTS(operation, type)                                                            \
    static void run_##operation(struct backend *cpu, const void *args)                             \
    {                                                                                              \
        cpu->ops->streams->operation(cpu, args);                                                   \
    }                                                                                              \
                                                                                                   \
    static void queued_stream_##operation(struct backend *be, const struct type *args)             \
    {                                                                                              \
        struct op *op = add_op(queued_of(be), run_##operation);                                    \
        struct type *a = keep(op, args, sizeof *args);                                             \
        a->segments = keep(op, a->segments, a->n_segments * sizeof *a->segments);                  \
        op->args = a;                                                                              \
    }

QUEUE_SEGMENTS(ngram_conv, backend_ngram_conv)
QUEUE_SEGMENTS(index_means, backend_index)
QUEUE_SEGMENTS(index_choose, backend_index)

static const struct backend_stream_ops queued_stream_ops = {
    .norm = queued_stream_norm,
    .mean = queued_stream_mean,
    .add = queued_stream_add,
    .silu = queued_stream_silu,
    .ngram_gate = queued_stream_ngram_gate,
    .ngram_conv = queued_stream_ngram_conv,
    .index_means = queued_stream_index_means,
    .index_choose = queued_stream_index_choose,
};

static const struct backend_ops queued_ops = {
    .name = "queued",
    .close = queued_backend_close,
    .embed = queued_embed,
    .input = queued_input,
    .matmul = queued_matmul,
    .ffn = queued_ffn,
    .rms_norm = queued_rms_norm,
    .rope_table = queued_rope_table,
    .norm_rope = queued_norm_rope,
    .head_products = queued_head_products,
    .copy_heads = queued_copy_heads,
    .attention = queued_attention,
    .delta_net = queued_delta_net,
    .route = queued_route,
    .prefer = queued_prefer,
    .find_not_finite = queued_find_not_finite,
    .expert_sum = queued_expert_sum,
    .add_gated = queued_add_gated,
    .add = queued_add,
    .streams = &queued_stream_ops,
};

/* ---- in place of every backend --------------------------------------------------------------- */

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err)
{
    struct queued *q = calloc(1, sizeof *q);
    guard_must(q != NULL);
    guard_start();
    int rc = __real_backend_open(name, options, &q->cpu, err);
    if (rc != 0) {
        free(q);
        return rc;
    }
    guard_must(pthread_mutex_init(&q->lock, NULL) == 0);
    /* Weights and snapshots go through many small pieces. */
    q->memory = (struct memory){.ops = &queued_memory_ops, .handy_bytes = 2 * MEM_PAGE};
    q->base = (struct backend){&queued_ops, &q->memory, q->cpu->preparer, q->cpu->level};
    *out = &q->base;
    return 0;
}
