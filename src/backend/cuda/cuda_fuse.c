#include "backend/cuda/cuda_fuse.h"

#include <string.h>

#include "backend/cuda/kernels_mix.h"

/* The arguments of a command, of the kernel that it launches. */
#define ARGS_OF(command, name) ((const struct gpu_##name##_args *)(const void *)(command)->args)

_Static_assert(sizeof(struct gpu_row_chain_args) <= GPU_MAX_ARGS, "a command holds it");

/* ---- chains of rows -------------------------------------------------------------------------- */

/* A chain while it grows. */
struct chain {
    struct gpu_row_chain_args args;
    uint64_t n_elements; /* of all rows; 0: nothing is in it yet */
    float *rows;         /* where the rows are now */
    bool has_sum;        /* something was added to the rows; they can only be added to others */
};

static uint64_t row_elements(const struct gpu_command *c, uint32_t dim)
{
    return (uint64_t)c->launch.n_blocks_x * dim;
}

/* Rows of this size belong to the chain; dim 0: any, it is not known. */
static bool fits(struct chain *chain, uint64_t n_elements, uint32_t dim)
{
    struct gpu_row_chain_args *a = &chain->args;
    if (dim > GPU_ROW_CHAIN_DIM || (chain->n_elements > 0 && chain->n_elements != n_elements) ||
        (a->dim > 0 && dim > 0 && a->dim != dim))
        return false;
    a->dim = dim > 0 ? dim : a->dim;
    chain->n_elements = n_elements;
    return true;
}

/* Whether the rows themselves can still change. */
static bool is_open(const struct chain *chain)
{
    const struct gpu_row_chain_args *a = &chain->args;
    return a->residual == NULL && a->not_finite == NULL && a->norm == NULL;
}

static bool take_expert_sum(struct chain *chain, const struct gpu_command *c)
{
    const struct gpu_expert_sum_args *e = ARGS_OF(c, expert_sum);
    struct gpu_row_chain_args *a = &chain->args;
    if (chain->rows != NULL || e->k == 0 || !fits(chain, row_elements(c, e->dim), e->dim))
        return false;
    a->parts = e->parts;
    a->weights = e->weights;
    a->k = e->k;
    a->rows = chain->rows = e->out;
    return true;
}

static bool take_add_gated(struct chain *chain, const struct gpu_command *c)
{
    const struct gpu_add_gated_args *g = ARGS_OF(c, add_gated);
    struct gpu_row_chain_args *a = &chain->args;
    if (!is_open(chain) || (chain->rows != NULL && (chain->rows != g->y || chain->has_sum)) ||
        !fits(chain, row_elements(c, g->dim), g->dim))
        return false;
    a->gated = g->x;
    a->gate = g->gate;
    a->rows = chain->rows = g->y;
    chain->has_sum = true;
    return true;
}

/* Adds something to the rows, or the rows to a residual. */
static bool take_add(struct chain *chain, const struct gpu_command *c)
{
    const struct gpu_add_args *add = ARGS_OF(c, add);
    struct gpu_row_chain_args *a = &chain->args;
    const bool is_first = chain->rows == NULL, is_residual = !is_first && add->x == chain->rows;
    if (!is_open(chain) ||
        (!is_first && !is_residual && (add->y != chain->rows || chain->has_sum)) ||
        !fits(chain, add->n, 0))
        return false;
    if (is_residual) {
        a->residual = chain->rows = add->y;
        return true;
    }
    a->added = add->x;
    a->rows = chain->rows = add->y;
    chain->has_sum = true;
    return true;
}

static bool take_check(struct chain *chain, const struct gpu_command *c)
{
    const struct gpu_find_not_finite_args *f = ARGS_OF(c, find_not_finite);
    struct gpu_row_chain_args *a = &chain->args;
    if (a->not_finite != NULL || a->norm != NULL || chain->rows == NULL ||
        f->x != chain->rows || !fits(chain, row_elements(c, f->dim), f->dim))
        return false;
    a->not_finite = f->found;
    return true;
}

static bool take_rms_norm(struct chain *chain, const struct gpu_command *c)
{
    const struct gpu_rms_norm_args *r = ARGS_OF(c, rms_norm);
    struct gpu_row_chain_args *a = &chain->args;
    if (a->norm != NULL || (chain->rows != NULL && chain->rows != r->x) ||
        !fits(chain, row_elements(c, r->dim), r->dim))
        return false;
    if (chain->rows == NULL)
        a->rows = (float *)(uintptr_t)r->x; /* is not written */
    a->norm = r->weight;
    a->eps = r->eps;
    a->normed = chain->rows = r->y;
    return true;
}

/* Whether a rounding takes whole rows of `dim` that begin there. */
static bool rounds(const struct gpu_quantize_args *q, const float *rows, uint64_t n_elements,
                   uint32_t dim)
{
    return q->x == rows && dim > 0 && dim % q->group == 0 && q->n_groups * q->group == n_elements;
}

static struct gpu_rounding rounding_of(const struct gpu_quantize_args *q)
{
    return (struct gpu_rounding){q->group, q->q, q->scale, q->offset, q->sum};
}

static bool take_quantize(struct chain *chain, const struct gpu_command *c)
{
    const struct gpu_quantize_args *q = ARGS_OF(c, quantize);
    if (chain->rows == NULL || chain->args.rounding.group > 0 ||
        !rounds(q, chain->rows, chain->n_elements, chain->args.dim))
        return false;
    chain->args.rounding = rounding_of(q);
    return true;
}

/* Adds a command to the chain; returns false if it does not belong there. */
static bool take(struct chain *chain, const struct gpu_command *c)
{
    struct chain longer = *chain;
    bool is_taken = false;
    if (chain->args.rounding.group > 0)
        return false;
    switch (c->launch.kernel) {
    case GPU_KERNEL_expert_sum: is_taken = take_expert_sum(&longer, c); break;
    case GPU_KERNEL_add_gated: is_taken = take_add_gated(&longer, c); break;
    case GPU_KERNEL_add: is_taken = take_add(&longer, c); break;
    case GPU_KERNEL_find_not_finite: is_taken = take_check(&longer, c); break;
    case GPU_KERNEL_rms_norm: is_taken = take_rms_norm(&longer, c); break;
    case GPU_KERNEL_quantize: is_taken = take_quantize(&longer, c); break;
    default: break;
    }
    if (is_taken)
        *chain = longer;
    return is_taken;
}

/* ---- what a chain reads and writes ----------------------------------------------------------- */

struct range {
    const void *at; /* NULL: not there */
    uint64_t bytes;
};

static bool overlap(struct range a, struct range b)
{
    const uintptr_t x = (uintptr_t)a.at, y = (uintptr_t)b.at;
    return a.at != NULL && b.at != NULL && x < y + b.bytes && y < x + a.bytes;
}

#define MAX_RANGES 8

/* One kernel computes a row's stages before another row's begin. That is the same only if no stage
 * writes what another one reads or writes, apart from the rows that pass through. */
static bool is_separate(const struct gpu_row_chain_args *a, uint64_t n_elements)
{
    const uint64_t rows = n_elements / a->dim, bytes = n_elements * sizeof(float);
    const uint64_t groups = a->rounding.group > 0 ? n_elements / a->rounding.group : 0;
    const bool is_kept = a->parts == NULL && a->gated == NULL && a->added == NULL;
    const float *last = a->residual != NULL ? a->residual : a->rows;
    const struct range reads[MAX_RANGES] = {
        {a->parts, bytes * a->k}, {a->weights, rows * a->k * sizeof(float)}, {a->gated, bytes},
        {a->gate, rows * sizeof(float)}, {a->added, bytes}, {a->norm, a->dim * sizeof(float)},
        {is_kept ? a->rows : NULL, bytes}};
    const struct range writes[MAX_RANGES] = {
        {is_kept ? NULL : a->rows, bytes}, {a->residual, bytes},
        {a->not_finite, sizeof(uint32_t)}, {a->rounding.q, n_elements},
        {a->rounding.scale, groups * sizeof(float)}, {a->rounding.offset, groups * sizeof(float)},
        {a->rounding.sum, groups * sizeof(int32_t)}, {a->normed, bytes}};
    for (unsigned w = 0; w < MAX_RANGES; w++) {
        /* A norm may be in place. */
        const bool is_in_place = w == MAX_RANGES - 1 && writes[w].at == last;
        for (unsigned i = 0; i < MAX_RANGES; i++)
            if ((overlap(writes[w], reads[i]) && !(is_in_place && reads[i].at == last)) ||
                (i < w && overlap(writes[w], writes[i]) && !(is_in_place && writes[i].at == last)))
                return false;
    }
    return true;
}

/* Makes one command of the chain that begins there. Returns how many it replaces; 1: none. */
static size_t fuse_rows(struct gpu_command *commands, size_t n)
{
    struct chain chain = {0}, longest = {0};
    size_t length = 1;
    for (size_t i = 0; i < n && take(&chain, &commands[i]); i++)
        if (chain.args.dim > 0 && chain.n_elements % chain.args.dim == 0 &&
            is_separate(&chain.args, chain.n_elements)) {
            longest = chain;
            length = i + 1;
        }
    if (length == 1)
        return 1;
    commands[0].launch = (struct gpu_launch){
        GPU_KERNEL_row_chain, (uint32_t)(longest.n_elements / longest.args.dim), 1,
        GPU_ROW_CHAIN_THREADS, 0};
    commands[0].args_bytes = sizeof longest.args;
    memcpy(commands[0].args, &longest.args, sizeof longest.args);
    return length;
}

/* ---- rounding by the kernel before ----------------------------------------------------------- */

/* The rows that a kernel completes, and where it says how they are rounded. */
struct finished {
    const float *rows;
    uint64_t n_elements;
    uint32_t unit; /* columns that a warp has together */
    struct gpu_rounding *rounding;
};

static struct finished finished_by(struct gpu_command *c)
{
    void *args = c->args;
    if (c->launch.kernel == GPU_KERNEL_delta_close || c->launch.kernel == GPU_KERNEL_delta_token) {
        struct gpu_delta_close_args *close = args;
        struct gpu_delta_token_args *token = args;
        const bool is_token = c->launch.kernel == GPU_KERNEL_delta_token;
        const struct gpu_delta_net *d = is_token ? &token->d : &close->d;
        return (struct finished){
            d->net.out, (uint64_t)d->n_rows * d->net.n_value_heads * d->net.value_dim,
            d->net.value_dim, is_token ? &token->rounding : &close->rounding};
    }
    if (c->launch.kernel == GPU_KERNEL_merge) {
        struct gpu_merge_args *m = args;
        const struct gpu_attention *a = &m->a;
        return (struct finished){
            a->out + (size_t)a->first_row * a->n_heads * a->value_dim,
            (uint64_t)c->launch.n_blocks_y * a->n_heads * a->value_dim, a->value_dim,
            &m->rounding};
    }
    return (struct finished){0};
}

static size_t fuse_rounding(struct gpu_command *commands, size_t n)
{
    const struct finished f = finished_by(&commands[0]);
    if (f.rounding == NULL || n < 2 || commands[1].launch.kernel != GPU_KERNEL_quantize ||
        !rounds(ARGS_OF(&commands[1], quantize), f.rows, f.n_elements, f.unit))
        return 1;
    *f.rounding = rounding_of(ARGS_OF(&commands[1], quantize));
    return 2;
}

/* ---- heads of attention ---------------------------------------------------------------------- */

_Static_assert(sizeof(struct gpu_place_heads_args) <= GPU_MAX_ARGS, "a command holds it");

/* Whether a norm_rope works on exactly these heads of all rows. */
static bool places(const struct gpu_command *c, const float *x, uint64_t row_stride,
                   uint64_t head_stride, uint32_t n_heads, uint32_t head_dim)
{
    const struct gpu_norm_rope_args *h = ARGS_OF(c, norm_rope);
    return c->launch.kernel == GPU_KERNEL_norm_rope && h->x == x && h->row_stride == row_stride &&
           h->head_stride == head_stride && h->head_dim == head_dim &&
           c->launch.n_blocks_y == n_heads;
}

/* Whether no block of the joined kernel writes what another one reads. */
static bool are_apart(const struct gpu_place_heads_args *p, uint64_t n_rows)
{
    const struct gpu_attention *a = &p->a;
    const uint64_t kv = n_rows * a->n_kv_heads * a->head_dim * sizeof(float);
    const uint64_t rope = n_rows * p->q.rotary_dim * sizeof(float);
    const struct range q = {a->q, n_rows * a->q_row_stride * sizeof(float)}, k = {a->k, kv};
    const struct range reads[] = {{a->v, kv}, {p->q.rope, rope}, {p->k.rope, rope}};
    bool is_apart = !overlap(q, k);
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
        is_apart = is_apart && !overlap(q, reads[i]) && !overlap(k, reads[i]);
    return is_apart;
}

/* Joins norm_rope of queries and keys with the store of keys and values. */
static size_t fuse_heads(struct gpu_command *commands, size_t n)
{
    if (n < 3 || commands[2].launch.kernel != GPU_KERNEL_store_kv)
        return 1;
    const struct gpu_attention *a = &ARGS_OF(&commands[2], store_kv)->a;
    const uint32_t n_rows = commands[2].launch.n_blocks_y, dim = a->head_dim;
    if (!places(&commands[0], a->q, a->q_row_stride, a->q_head_stride, a->n_heads, dim) ||
        !places(&commands[1], a->k, (uint64_t)a->n_kv_heads * dim, dim, a->n_kv_heads, dim) ||
        commands[0].launch.n_blocks_x != n_rows || commands[1].launch.n_blocks_x != n_rows ||
        a->first_row != 0)
        return 1;
    const struct gpu_place_heads_args args = {*ARGS_OF(&commands[0], norm_rope),
                                              *ARGS_OF(&commands[1], norm_rope), *a};
    if (!are_apart(&args, n_rows))
        return 1;
    commands[0].launch = (struct gpu_launch){GPU_KERNEL_place_heads, a->n_heads + a->n_kv_heads,
                                             n_rows, 128, 0};
    commands[0].args_bytes = sizeof args;
    memcpy(commands[0].args, &args, sizeof args);
    return 3;
}

/* ---- routers --------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct gpu_matmul_one_args) <= GPU_MAX_ARGS, "a command holds it");

/* Joins products of one input with the choice that follows them. All blocks end before it is made,
 * so it does not matter what they compute. */
static size_t fuse_route(struct gpu_command *commands, size_t n, uint32_t *counter)
{
    if (n < 2 || commands[0].launch.kernel != GPU_KERNEL_matmul_one ||
        commands[1].launch.kernel != GPU_KERNEL_route || commands[1].launch.n_blocks_x != 1 ||
        !gpu_has_few(ARGS_OF(&commands[1], route)))
        return 1;
    struct gpu_matmul_one_args args;
    memcpy(&args, commands[0].args, sizeof args);
    memcpy(&args.route, commands[1].args, sizeof args.route);
    args.has_route = 1;
    args.n_ended = counter;
    memcpy(commands[0].args, &args, sizeof args);
    return 2;
}

/* ---- heads ----------------------------------------------------------------------------------- */

_Static_assert(sizeof(struct gpu_matmul_head_args) <= GPU_MAX_ARGS, "a command holds it");

/* Whether a piece is apart from all that a head reads and writes. Weights are never written. */
static bool is_apart_from(const struct gpu_product *p, const void *at, uint64_t bytes)
{
    const uint64_t n_groups = p->w.n_cols / p->w.format.group, rows = p->end * sizeof(float);
    const struct range uses[] = {{p->y, rows}, {p->bias, rows}, {p->in.q, p->w.n_cols},
                                 {p->in.scale, n_groups * sizeof(float)},
                                 {p->in.offset, n_groups * sizeof(float)}};
    bool is_apart = true;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++)
        is_apart = is_apart && !overlap((struct range){at, bytes}, uses[i]);
    return is_apart;
}

/* Whether the command looks at all rows of the head. */
static bool looks_at(const struct gpu_command *c, const struct gpu_product *p)
{
    const struct gpu_find_not_finite_args *f = ARGS_OF(c, find_not_finite);
    return c->launch.kernel == GPU_KERNEL_find_not_finite && c->launch.n_blocks_x == 1 &&
           f->x == p->y && f->dim == p->end && is_apart_from(p, f->found, sizeof *f->found) &&
           is_apart_from(p, f->peak, sizeof *f->peak);
}

/* Whether it copies them. */
static bool gives(const struct gpu_command *c, const struct gpu_matmul_head_args *h)
{
    const struct gpu_copy_args *copy = ARGS_OF(c, copy);
    const uint64_t bytes = copy->n * sizeof(float);
    const struct range to = {copy->to, bytes};
    return c->launch.kernel == GPU_KERNEL_copy && copy->from == h->p.y && copy->n == h->p.end &&
           is_apart_from(&h->p, copy->to, bytes) &&
           !overlap(to, (struct range){h->found, sizeof *h->found}) &&
           !overlap(to, (struct range){h->peak, sizeof *h->peak});
}

/* Joins a head with the look at what it wrote and with the copy of it. */
static size_t fuse_head(struct gpu_command *commands, size_t n)
{
    size_t used = 1;
    struct gpu_matmul_head_args args;
    if (commands[0].launch.kernel != GPU_KERNEL_matmul_head)
        return 1;
    memcpy(&args, commands[0].args, sizeof args);
    if (args.p.begin != 0 || args.p.y_first != 0)
        return 1;
    if (used < n && looks_at(&commands[used], &args.p)) {
        const struct gpu_find_not_finite_args *look = ARGS_OF(&commands[used++], find_not_finite);
        args.found = look->found;
        args.peak = look->peak;
    }
    if (used < n && gives(&commands[used], &args)) {
        const struct gpu_copy_args *copy = ARGS_OF(&commands[used++], copy);
        args.copy = copy->to;
    }
    memcpy(commands[0].args, &args, sizeof args);
    return used;
}

size_t cuda_fuse(struct gpu_command *commands, size_t n, uint32_t *counter)
{
    size_t kept = 0, used;
    for (size_t i = 0; i < n; i += used, kept++) {
        used = fuse_rounding(commands + i, n - i);
        if (used == 1)
            used = fuse_heads(commands + i, n - i);
        if (used == 1)
            used = fuse_route(commands + i, n - i, counter);
        if (used == 1)
            used = fuse_head(commands + i, n - i);
        if (used == 1)
            used = fuse_rows(commands + i, n - i);
        if (kept != i)
            memcpy(&commands[kept], &commands[i], sizeof commands[kept]);
    }
    return kept;
}
