/* Checks attention, and the convolution and delta rule of recurrent layers. */
#include <math.h>
#include <string.h>

#include "check.h"

/* ---- attention ------------------------------------------------------------------------------- */

static size_t alignment_of(const struct kv_format *format)
{
    return format == &kv_f32 ? 4 : format == &kv_f16 ? 2 : 1;
}

static void *take_kv(struct check *c, const char *name, enum kv_side side, size_t n, size_t dim,
                     enum values values)
{
    const size_t bytes = kv_row_bytes(c->kv, dim);
    char *kv = take_input(c, name, n * bytes, alignment_of(c->kv));
    float x[300];
    for (size_t i = 0; i < n; i++) {
        rng_floats(&c->rng, values, x, dim);
        kv_store(c->kv, side, x, dim, kv + i * bytes);
    }
    return kv;
}

/* Rotated vectors have whole groups. */
static size_t choose_dim(struct check *c, size_t max)
{
    const size_t dim = rng_length(&c->rng, max);
    return c->kv->plain != NULL ? dim : (dim + KV_GROUP - 1) / KV_GROUP * KV_GROUP;
}

void check_store_kv(struct check *c)
{
    const size_t n = choose_dim(c, 300);
    const enum values values = rng_values(&c->rng);
    float *x = take_floats(c, "x", n, values);
    const unsigned scaled = (unsigned)rng_below(&c->rng, 3);
    for (size_t i = 0; values == ORDINARY && i < n && scaled > 0; i++)
        x[i] *= scaled == 1 ? 0x1p-12f : 0x1p14f; /* denormals and the largest values of f16 */
    const enum kv_side side = rng_chance(&c->rng, 2) ? KV_KEY : KV_VALUE;
    const bool is_half = c->kv == &kv_f16;
    const unsigned to =
        c->kv->plain == NULL
            ? take_output(c, "to", BYTES, kv_row_bytes(c->kv, n), 1)
            : take_output(c, "to", is_half ? FLOAT16 : FLOAT32, n, alignment_of(c->kv));
    describe(c, "n %zu, values %d", n, (int)values);
    EACH_SIDE(c, k)
        k->store_kv(c->kv, side, x, n, out(c, to));
}

static size_t choose_positions(struct rng *rng)
{
    switch (rng_below(rng, 4)) {
    case 0: return KERNEL_ATTENTION_BLOCK;
    case 1: return rng_between(rng, 1, 9);
    default: return rng_length(rng, KERNEL_ATTENTION_BLOCK);
    }
}

void check_attend(struct check *c)
{
    const size_t n = choose_positions(&c->rng);
    const bool is_even = c->kv->plain != NULL && rng_chance(&c->rng, 4); /* as in real models */
    const size_t dim = is_even ? 16 * rng_between(&c->rng, 1, 17)
                               : choose_dim(c, rng_chance(&c->rng, 4) ? 260 : 80);
    const size_t value_dim =
        c->kv->plain != NULL && rng_chance(&c->rng, 3) ? rng_between(&c->rng, 1, dim) : dim;
    const size_t row_heads = rng_between(&c->rng, 1, rng_chance(&c->rng, 3) ? 34 : 9);
    const size_t n_rows = rng_chance(&c->rng, 2) ? 1 : rng_between(&c->rng, 2, 7);
    const size_t n_heads = n_rows * row_heads;
    const size_t stride = dim + (rng_chance(&c->rng, 2) ? 0 : rng_below(&c->rng, 20));
    const size_t row_stride = row_heads * stride + rng_below(&c->rng, 20);
    const enum values values = rng_values(&c->rng);
    struct kernel_attention a = {
        .kv_format = c->kv, .q_stride = stride, .q_row_stride = row_stride,
        .n_heads = (unsigned)n_heads, .row_heads = n_rows > 1 ? (unsigned)row_heads : 0,
        .head_dim = (unsigned)dim, .value_dim = (unsigned)value_dim, .n_positions = n,
        .scale = rng_chance(&c->rng, 4) ? rng_float(&c->rng, rng_values(&c->rng)) : 0.125f};
    a.q = take_floats(c, "q", (n_rows - 1) * row_stride + (row_heads - 1) * stride + dim,
                      rng_values(&c->rng));
    a.keys = take_kv(c, "keys", KV_KEY, n, dim, values);
    a.values = take_kv(c, "values", KV_VALUE, n, dim, rng_values(&c->rng));
    const unsigned max = take_output(c, "most", FLOAT32, n_heads, 4);
    const unsigned total = take_output(c, "total", FLOAT32, n_heads, 4);
    const unsigned result = take_output(c, "out", FLOAT32, n_heads * value_dim, 4);
    const unsigned scratch = take_scratch(c, KERNEL_ATTENTION_SCRATCH(n_heads, dim), 4);
    describe(c, "%zu positions, %zu rows of %zu heads of %zu by %zu, keys %d", n, n_rows, row_heads,
             dim, stride, (int)values);
    EACH_SIDE(c, k) {
        a.max = out(c, max);
        a.total = out(c, total);
        a.out = out(c, result);
        a.scratch = out(c, scratch);
        k->attend(&a);
    }
}

void check_attend_merge(struct check *c)
{
    const size_t dim = rng_length(&c->rng, 260);
    const enum values values = rng_values(&c->rng);
    const unsigned max = take_output(c, "most", FLOAT32, 1, 4);
    const unsigned total = take_output(c, "total", FLOAT32, 1, 4);
    const unsigned result = take_output(c, "out", FLOAT32, dim, 4);
    const float *block = take_floats(c, "block_out", dim, values);
    rng_floats(&c->rng, values, out(c, result), dim);
    *(float *)out(c, max) = rng_float(&c->rng, values) * 20.0f;
    *(float *)out(c, total) = rng_float(&c->rng, values) + 1.0f;
    const float max_block = rng_float(&c->rng, values) * 20.0f;
    const float block_total = rng_float(&c->rng, values) + 1.0f;
    describe(c, "dim %zu, most %.9g and %.9g", dim, (double)*(float *)out(c, max),
             (double)max_block);
    EACH_SIDE(c, k)
        k->attend_merge(out(c, max), out(c, total), out(c, result), max_block, block_total,
                        block, dim);
}

void check_attend_sink(struct check *c)
{
    const size_t dim = rng_length(&c->rng, 260);
    const enum values values = rng_values(&c->rng);
    const unsigned total = take_output(c, "total", FLOAT32, 1, 4);
    const unsigned result = take_output(c, "out", FLOAT32, dim, 4);
    rng_floats(&c->rng, values, out(c, result), dim);
    *(float *)out(c, total) = rng_float(&c->rng, values) + 1.0f;
    const float max = rng_float(&c->rng, values) * 20.0f;
    const float sink = rng_float(&c->rng, rng_values(&c->rng)) * 20.0f;
    describe(c, "dim %zu, most %.9g, sink %.9g", dim, (double)max, (double)sink);
    EACH_SIDE(c, k)
        k->attend_sink(max, out(c, total), out(c, result), sink, dim);
}

void check_attend_close(struct check *c)
{
    const size_t dim = rng_length(&c->rng, 260);
    const enum values values = rng_values(&c->rng);
    const float *gate = rng_chance(&c->rng, 3) ? NULL : take_floats(c, "gate", dim, values);
    const unsigned result = take_output(c, "out", FLOAT32, dim, 4);
    rng_floats(&c->rng, values, out(c, result), dim);
    const float total = rng_float(&c->rng, values);
    describe(c, "dim %zu, total %.9g%s", dim, (double)total, gate != NULL ? ", gate" : "");
    EACH_SIDE(c, k)
        k->attend_close(out(c, result), total, gate, dim);
}

/* ---- recurrent layers ------------------------------------------------------------------------ */

struct net {
    struct backend_delta_net args;
    size_t n, channels, value_width; /* n rows in the batch */
    size_t first, parts[2];          /* the segment's rows, in two calls */
};

static struct net choose_net(struct check *c, bool is_long)
{
    struct rng *rng = &c->rng;
    const size_t widest = is_long ? 40 : 140;
    struct net net = {.first = rng_below(rng, 4)};
    struct backend_delta_net *a = &net.args;
    a->n_key_heads = (unsigned)rng_between(rng, 1, 3);
    a->n_value_heads = a->n_key_heads * (unsigned)rng_between(rng, 1, 3);
    a->key_dim = (unsigned)rng_length(rng, widest);
    a->value_dim = (unsigned)rng_length(rng, widest);
    a->kernel = (unsigned)(rng_chance(rng, 2) ? 4 : rng_between(rng, 1, 16));
    a->has_tiled_value_heads = rng_chance(rng, 2);
    a->has_sigmoid_gate = rng_chance(rng, 4);
    a->eps = 1e-6f;
    net.parts[0] = rng_between(rng, 1, is_long ? 2 * KERNEL_DELTA_ROWS + 3 : 4);
    net.parts[1] = rng_below(rng, 4);
    net.n = net.first + net.parts[0] + net.parts[1] + rng_below(rng, 2);
    net.value_width = (size_t)a->n_value_heads * a->value_dim;
    net.channels = 2 * (size_t)a->n_key_heads * a->key_dim + net.value_width;
    return net;
}

void check_conv_silu(struct check *c)
{
    struct net net = choose_net(c, false);
    const size_t begin = rng_chance(&c->rng, 2) ? 0 : rng_below(&c->rng, net.channels);
    const size_t end = rng_chance(&c->rng, 2) ? net.channels
                                              : rng_between(&c->rng, begin, net.channels);
    const enum values values = rng_values(&c->rng);
    net.args.qkv = take_floats(c, "qkv", net.n * net.channels, values);
    net.args.conv_weight = take_floats(c, "conv_weight", net.args.kernel * net.channels,
                                       rng_values(&c->rng));
    const unsigned conv = take_output(c, "conv", FLOAT32, (net.args.kernel - 1) * net.channels, 4);
    rng_floats(&c->rng, values, out(c, conv), (net.args.kernel - 1) * net.channels);
    const unsigned mixed = take_output(c, "mixed", FLOAT32, net.n * net.channels, 4);
    describe(c, "channels %zu..%zu of %zu, kernel %u, rows %zu+%zu+%zu", begin, end, net.channels,
             net.args.kernel, net.first, net.parts[0], net.parts[1]);
    EACH_SIDE(c, k) {
        struct backend_segment segment = {.first_row = (uint32_t)net.first,
                                          .state = {[DELTA_NET_CONV] = out(c, conv)}};
        net.args.mixed = out(c, mixed);
        for (unsigned part = 0; part < 2; part++) {
            segment.n_rows = (uint32_t)net.parts[part];
            k->conv_silu(&net.args, &segment, begin, end);
            segment.first_row += segment.n_rows;
        }
    }
}

/* A value dimension that overflows must not affect the others. */
static void make_infinite_values(struct check *c, const struct net *net, float *mixed)
{
    const size_t at = net->channels - net->value_width;
    for (size_t t = 0; t < net->n; t++)
        for (size_t i = 0; i < 3; i++)
            mixed[t * net->channels + at + rng_below(&c->rng, net->value_width)] =
                rng_chance(&c->rng, 2) ? INFINITY : -0x1p127f;
}

/* The sum of a and dt_bias is NaN; which NaN differs between processors. */
static void make_nan_factor(struct check *c, const struct net *net, float *a, float *dt_bias)
{
    const size_t h = rng_below(&c->rng, net->args.n_value_heads);
    dt_bias[h] = INFINITY;
    a[rng_below(&c->rng, net->n) * net->args.n_value_heads + h] = -INFINITY;
}

/* Runs one head, or all of them. The state continues from one call to the next. */
void check_delta_head(struct check *c)
{
    struct net net = choose_net(c, rng_chance(&c->rng, 4));
    struct backend_delta_net *a = &net.args;
    const unsigned n_heads = a->n_value_heads;
    const unsigned head = rng_chance(&c->rng, 2) ? n_heads : (unsigned)rng_below(&c->rng, n_heads);
    const size_t n_state = n_heads * (size_t)a->key_dim * a->value_dim;
    const enum values values = rng_values(&c->rng);
    float *mixed = take_input(c, "mixed", net.n * net.channels * sizeof *mixed, 4);
    rng_floats(&c->rng, values, mixed, net.n * net.channels);
    if (values == ORDINARY && rng_chance(&c->rng, 4))
        make_infinite_values(c, &net, mixed);
    a->mixed = mixed;
    a->z = take_floats(c, "z", net.n * net.value_width, rng_values(&c->rng));
    a->b = take_floats(c, "b", net.n * n_heads, rng_values(&c->rng));
    float *decays = take_floats(c, "a", net.n * n_heads, rng_values(&c->rng));
    float *dt_bias = take_floats(c, "dt_bias", n_heads, rng_values(&c->rng));
    if (rng_chance(&c->rng, 12))
        make_nan_factor(c, &net, decays, dt_bias);
    a->a = decays;
    a->dt_bias = dt_bias;
    a->norm = take_floats(c, "norm", a->value_dim, ORDINARY);
    float *decay = take_input(c, "decay", n_heads * sizeof *decay, 4);
    for (unsigned h = 0; h < n_heads; h++)
        decay[h] = -fabsf(rng_float(&c->rng, ORDINARY));
    a->decay = decay;
    const unsigned state = take_output(c, "state", FLOAT32, n_state, 4);
    rng_floats(&c->rng, rng_values(&c->rng), out(c, state), n_state);
    const unsigned result = take_output(c, "out", FLOAT32, net.n * net.value_width, 4);
    const unsigned scratch = take_scratch(c, KERNEL_DELTA_SCRATCH(a->key_dim), 4);
    describe(c, "head %u of %u (all: %u) over %u%s%s, keys %u, values %u, rows %zu+%zu+%zu", head,
             n_heads, n_heads, a->n_key_heads, a->has_tiled_value_heads ? " tiled" : "",
             a->has_sigmoid_gate ? ", sigmoid" : "",
             a->key_dim, a->value_dim, net.first, net.parts[0], net.parts[1]);
    EACH_SIDE(c, k) {
        struct backend_segment segment = {.first_row = (uint32_t)net.first,
                                          .state = {[DELTA_NET_STATE] = out(c, state)}};
        a->out = out(c, result);
        for (unsigned part = 0; part < 2; part++) {
            segment.n_rows = (uint32_t)net.parts[part];
            for (unsigned h = 0; h < n_heads; h++)
                if (head == n_heads || head == h)
                    k->delta_head(a, &segment, h, out(c, scratch));
            segment.first_row += segment.n_rows;
        }
    }
}
