/* The CPU backend with memory that only its operations can access (guard.h). Linked with
 * --wrap=backend_open it replaces every backend. */
#include <stdlib.h>
#include <string.h>

#include "guard.h"

struct guarded {
    struct backend base;
    struct backend *cpu;
};

static struct backend *cpu_of(struct backend *be)
{
    return ((struct guarded *)(void *)be)->cpu;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void guard_copy(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    (void)m;
    guard_begin();
    memmove(to, from, bytes);
    guard_end();
}

static void guard_clear(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    guard_begin();
    memset(at, 0, bytes);
    guard_end();
}

/* Nothing is ever queued. */
static uint64_t guard_fence(const struct memory *m)
{
    (void)m;
    return 0;
}

static void guard_wait(const struct memory *m, uint64_t fence)
{
    (void)m, (void)fence;
}

static const struct memory_ops guard_memory_ops = {
    .make = guard_make,
    .free = guard_free,
    .give_back = guard_give_back,
    .take_back = guard_take_back,
    .range_open = guard_range_open,
    .range_resize = guard_range_resize,
    .range_close = guard_range_close,
    .open = guard_open,
    .close = guard_close,
    .fetch = guard_fetch,
    .copy = guard_copy,
    .clear = guard_clear,
    .fence = guard_fence,
    .wait = guard_wait,
};

static const struct memory guard_memory = {.ops = &guard_memory_ops, .is_host = true};

/* ---- operations ------------------------------------------------------------------------------ */

#define RUN(be, operation, ...)                                                                    \
    do {                                                                                           \
        guard_begin();                                                                             \
        cpu_of(be)->ops->operation(cpu_of(be), __VA_ARGS__);                                       \
        guard_end();                                                                               \
    } while (0)

static void guard_backend_close(struct backend *be)
{
    backend_close(cpu_of(be));
    free(be);
}

static void guard_embed(struct backend *be, const struct weight *w, const int32_t *tokens,
                        size_t n, float *x)
{
    RUN(be, embed, w, tokens, n, x);
}

static void guard_input(struct backend *be, const float *x, size_t n, size_t n_cols)
{
    RUN(be, input, x, n, n_cols);
}

static void guard_matmul(struct backend *be, const struct backend_product *products, size_t n)
{
    RUN(be, matmul, products, n);
}

static void guard_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks)
{
    RUN(be, ffn, blocks, n_blocks);
}

static void guard_rms_norm(struct backend *be, const float *x, const float *weight, float eps,
                           size_t n, size_t dim, float *y)
{
    RUN(be, rms_norm, x, weight, eps, n, dim, y);
}

static void guard_rope_table(struct backend *be, const uint32_t *positions, size_t n,
                             const float *frequencies, unsigned rotary_dim, float scale,
                             float *out)
{
    RUN(be, rope_table, positions, n, frequencies, rotary_dim, scale, out);
}

static void guard_norm_rope(struct backend *be, const struct backend_heads *heads, size_t n)
{
    RUN(be, norm_rope, heads, n);
}

static void guard_head_products(struct backend *be, const struct backend_head_products *args,
                                size_t n)
{
    RUN(be, head_products, args, n);
}

static void guard_copy_heads(struct backend *be, const struct backend_head_copy *args, size_t n)
{
    RUN(be, copy_heads, args, n);
}

static void guard_attention(struct backend *be, const struct backend_attention *args)
{
    RUN(be, attention, args);
}

static void guard_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    RUN(be, delta_net, args);
}

static void guard_route(struct backend *be, const struct router *router, const float *logits,
                        size_t n, uint32_t *ids, float *weights)
{
    RUN(be, route, router, logits, n, ids, weights);
}

static void guard_prefer(struct backend *be, const struct backend_preference *args)
{
    RUN(be, prefer, args);
}

static void guard_find_not_finite(struct backend *be, const float *x, size_t n, size_t dim,
                                  uint32_t *found)
{
    RUN(be, find_not_finite, x, n, dim, found);
}

static void guard_expert_sum(struct backend *be, const float *parts, const float *weights,
                             size_t n, unsigned k, size_t dim, float *out)
{
    RUN(be, expert_sum, parts, weights, n, k, dim, out);
}

static void guard_add_gated(struct backend *be, float *y, const float *x, const float *gate,
                            size_t n, size_t dim)
{
    RUN(be, add_gated, y, x, gate, n, dim);
}

static void guard_add(struct backend *be, float *y, const float *x, size_t n)
{
    RUN(be, add, y, x, n);
}

#define RUN_STREAM(be, operation, ...)                                                             \
    do {                                                                                           \
        guard_begin();                                                                             \
        cpu_of(be)->ops->streams->operation(cpu_of(be), __VA_ARGS__);                              \
        guard_end();                                                                               \
    } while (0)

static void guard_stream_norm(struct backend *be, const struct backend_stream_norm *args, size_t n)
{
    RUN_STREAM(be, norm, args, n);
}

static void guard_stream_mean(struct backend *be, const struct backend_stream_mean *args, size_t n)
{
    RUN_STREAM(be, mean, args, n);
}

static void guard_stream_add(struct backend *be, const struct backend_stream_add *args, size_t n)
{
    RUN_STREAM(be, add, args, n);
}

static void guard_stream_silu(struct backend *be, float *x, float divisor, size_t n)
{
    RUN_STREAM(be, silu, x, divisor, n);
}

static void guard_ngram_gate(struct backend *be, const struct backend_ngram_gate *args, size_t n)
{
    RUN_STREAM(be, ngram_gate, args, n);
}

static void guard_ngram_conv(struct backend *be, const struct backend_ngram_conv *args)
{
    RUN_STREAM(be, ngram_conv, args);
}

static void guard_index_means(struct backend *be, const struct backend_index *args)
{
    RUN_STREAM(be, index_means, args);
}

static void guard_index_choose(struct backend *be, const struct backend_index *args)
{
    RUN_STREAM(be, index_choose, args);
}

static const struct backend_stream_ops guard_stream_ops = {
    .norm = guard_stream_norm,
    .mean = guard_stream_mean,
    .add = guard_stream_add,
    .silu = guard_stream_silu,
    .ngram_gate = guard_ngram_gate,
    .ngram_conv = guard_ngram_conv,
    .index_means = guard_index_means,
    .index_choose = guard_index_choose,
};

static const struct backend_ops guard_ops = {
    .name = "guarded",
    .close = guard_backend_close,
    .embed = guard_embed,
    .input = guard_input,
    .matmul = guard_matmul,
    .ffn = guard_ffn,
    .rms_norm = guard_rms_norm,
    .rope_table = guard_rope_table,
    .norm_rope = guard_norm_rope,
    .head_products = guard_head_products,
    .copy_heads = guard_copy_heads,
    .attention = guard_attention,
    .delta_net = guard_delta_net,
    .route = guard_route,
    .prefer = guard_prefer,
    .find_not_finite = guard_find_not_finite,
    .expert_sum = guard_expert_sum,
    .add_gated = guard_add_gated,
    .add = guard_add,
    .streams = &guard_stream_ops,
};

/* ---- in place of every backend --------------------------------------------------------------- */

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err)
{
    struct guarded *g = calloc(1, sizeof *g);
    guard_must(g != NULL);
    guard_start();
    int rc = __real_backend_open(name, options, &g->cpu, err);
    if (rc != 0) {
        free(g);
        return rc;
    }
    /* Weights are prepared in pieces that are open. */
    g->base = (struct backend){&guard_ops, &guard_memory, g->cpu->preparer, g->cpu->level};
    *out = &g->base;
    return 0;
}
