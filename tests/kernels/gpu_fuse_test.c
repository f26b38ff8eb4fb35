/* Lists of launches, joined by cuda_fuse and as they were, over the emulator: all memory must be
 * the same. Kernels that exist only joined, or have shapes that checkkernel does not reach, are
 * compared with the processor's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/levels.h"
#include "backend/cuda/cuda_fuse.h"
#include "backend/cuda/device_emulated.h"
#include "backend/cuda/kernels_mix.h"
#include "backend/not_finite.h"
#include "backend/peak.h"

/* ---- memory ---------------------------------------------------------------------------------- */

#define ARENA_FLOATS (1u << 20)

/* All that a list uses lies in one piece of memory, so that it can be compared as a whole. */
static _Alignas(256) float arena[ARENA_FLOATS];
static float before[ARENA_FLOATS], expected[ARENA_FLOATS];
static size_t used;
static uint32_t rng = 1;

static uint32_t any(uint32_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(rng >> 8) * n) >> 24);
}

static float any_float(void)
{
    return any(40) == 0 ? 0 : ((float)any(1u << 20) / (1u << 19) - 1.0f) * (any(3) == 0 ? 40 : 1);
}

/* Takes a piece of the arena and fills it with any values. */
static void *take(size_t floats)
{
    float *at = arena + used;
    used += (floats + 63) / 64 * 64;
    assert_true(used <= ARENA_FLOATS);
    for (size_t i = 0; i < floats; i++)
        at[i] = any_float();
    return at;
}

/* Compares all of the arena but [from, from + n) with what is expected. */
static void compare_except(const float *from, size_t n)
{
    for (size_t i = 0; i < ARENA_FLOATS; i++)
        if ((arena + i < from || arena + i >= from + n) &&
            memcmp(&arena[i], &expected[i], sizeof arena[i]) != 0)
            fail_msg("float %zu is %.9g, expected %.9g", i, (double)arena[i], (double)expected[i]);
}

/* ---- lists ----------------------------------------------------------------------------------- */

#define MAX_COMMANDS 16

struct list {
    struct gpu_command commands[MAX_COMMANDS];
    size_t n;
};

static void add_command(struct list *l, struct gpu_launch launch, const void *args, size_t bytes)
{
    struct gpu_command *c = &l->commands[l->n++];
    assert_true(l->n <= MAX_COMMANDS && bytes <= sizeof c->args);
    c->launch = launch;
    c->args_bytes = (uint32_t)bytes;
    memcpy(c->args, args, bytes);
}

#define ADD(list, name, x, y, threads, ...)                                                        \
    add_command(list,                                                                              \
                (struct gpu_launch){GPU_KERNEL_##name, (uint32_t)(x), (uint32_t)(y),               \
                                    (uint32_t)(threads), 0},                                       \
                &(struct gpu_##name##_args)__VA_ARGS__, sizeof(struct gpu_##name##_args))

static size_t over(size_t n, size_t unit)
{
    return (n + unit - 1) / unit;
}

static void run(const struct list *l)
{
    struct gpu_device *gpu = device_emulated();
    gpu->ops->submit(gpu, &(struct gpu_batch){.commands = l->commands, .n = l->n});
}

/* Runs the list as it is and joined, and compares all memory. Returns the length when joined. */
static size_t run_both(const struct list *list)
{
    struct list joined = *list;
    memcpy(before, arena, sizeof before);
    run(list);
    memcpy(expected, arena, sizeof expected);
    memcpy(arena, before, sizeof arena);
    static uint32_t counter;
    joined.n = cuda_fuse(joined.commands, joined.n, &counter);
    run(&joined);
    if (memcmp(arena, expected, sizeof arena) != 0)
        compare_except(arena, 0);
    return joined.n;
}

/* ---- chains of rows -------------------------------------------------------------------------- */

enum stage { SUM, GATED, ADDED, RESIDUAL, CHECK, NORM, ROUND, N_STAGES };

/* The rows of a chain, and where each stage finds them. */
struct rows {
    uint32_t n, dim, k, group;
    float *rows, *residual, *normed;
    float *at; /* what the next stage works on */
};

static struct rows choose_rows(void)
{
    static const uint32_t dims[] = {16, 48, 64, 128, 208, 640, 2048, 2304};
    struct rows r = {.n = 1 + any(3), .dim = dims[any(8)], .k = 1 + any(12), .group = 16};
    while (r.group < 128 && r.dim % (2 * r.group) == 0 && any(3) > 0)
        r.group *= 2;
    used = 0;
    const size_t room = (size_t)(r.n + 2) * r.dim; /* tests use rows that begin later, too */
    r.rows = take(room);
    r.residual = take(room);
    r.normed = any(4) == 0 ? NULL : take(room);
    return r;
}

static void add_quantize(struct list *l, const float *x, size_t elements, uint32_t group)
{
    const size_t n_groups = elements / group;
    ADD(l, quantize, over(n_groups, GPU_QUANTIZE_WARPS), 1, 32 * GPU_QUANTIZE_WARPS,
        {.x = x, .n_groups = n_groups, .group = group, .q = take(elements / 4),
         .scale = take(n_groups), .offset = take(n_groups), .sum = take(n_groups)});
}

static void add_stage(struct list *l, struct rows *r, enum stage stage)
{
    const size_t elements = (size_t)r->n * r->dim;
    switch (stage) {
    case SUM:
        ADD(l, expert_sum, r->n, over(r->dim, 256), 256,
            {.parts = take(elements * r->k), .weights = take((size_t)r->n * r->k), .k = r->k,
             .dim = r->dim, .out = r->at});
        break;
    case GATED:
        ADD(l, add_gated, r->n, over(r->dim, 256), 256,
            {.y = r->at, .x = take(elements), .gate = take(r->n), .dim = r->dim});
        break;
    case ADDED:
        ADD(l, add, over(elements, 256), 1, 256, {.y = r->at, .x = take(elements), .n = elements});
        break;
    case RESIDUAL:
        ADD(l, add, over(elements, 256), 1, 256, {.y = r->residual, .x = r->at, .n = elements});
        r->at = r->residual;
        break;
    case CHECK: {
        uint32_t *found = take(1);
        *found = any(2) == 0 ? 0 : not_finite_code(any(4), any(2) == 0);
        ADD(l, find_not_finite, r->n, 1, 32, {.x = r->at, .dim = r->dim, .found = found});
        break;
    }
    case NORM:
        ADD(l, rms_norm, r->n, 1, GPU_ROW_THREADS,
            {.x = r->at, .weight = take(r->dim), .y = r->normed != NULL ? r->normed : r->at,
             .eps = 1e-6f, .dim = r->dim});
        r->at = r->normed != NULL ? r->normed : r->at;
        break;
    default:
        add_quantize(l, r->at, elements, r->group);
        break;
    }
}

/* Stages that follow each other; of gated and added at most one. At least one tells the size of a
 * row. */
static unsigned choose_stages(void)
{
    unsigned stages;
    do
        stages = any(1u << N_STAGES);
    while ((stages >> GATED & 1 && stages >> ADDED & 1) ||
           (stages & (1u << SUM | 1u << GATED | 1u << CHECK | 1u << NORM)) == 0 ||
           ((stages & (1u << CHECK)) != 0 && (stages & ((1u << CHECK) - 1)) == 0) ||
           (stages & (stages - 1)) == 0);
    return stages;
}

static void make_not_finite(const struct rows *r)
{
    r->rows[any(r->n * r->dim)] = any(2) == 0 ? INFINITY : NAN;
}

static void test_chains(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct rows r = choose_rows();
        struct list l = {0};
        const unsigned stages = choose_stages();
        r.at = r.rows;
        for (unsigned s = 0; s < N_STAGES; s++)
            if (stages >> s & 1)
                add_stage(&l, &r, s);
        if (any(3) == 0)
            make_not_finite(&r);
        assert_int_equal(run_both(&l), 1);
    }
}

/* A chain ends where a stage works on other rows, on fewer of them or of another size. */
static void test_broken_chains(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct rows r = choose_rows();
        struct list l = {0};
        const unsigned stages = choose_stages();
        unsigned broken;
        do
            broken = any(N_STAGES);
        while ((stages >> broken & 1) == 0 || (stages & ((1u << broken) - 1)) == 0);
        r.at = r.rows;
        for (unsigned s = 0; s < N_STAGES; s++) {
            const struct rows kept = r;
            const unsigned how = any(3);
            if (s == broken && how == 0)
                r.at = take((size_t)(r.n + 2) * r.dim);
            else if (s == broken && how == 1)
                r.at += r.n > 1 ? r.dim : r.group;
            else if (s == broken)
                r.n++;
            if (stages >> s & 1)
                add_stage(&l, &r, s);
            if (s == broken)
                r.n = kept.n;
        }
        assert_true(run_both(&l) > 1);
    }
}

/* The same stages in any order. */
static void test_any_order(void **state)
{
    (void)state;
    for (int round = 0; round < 400; round++) {
        struct rows r = choose_rows();
        struct list l = {0};
        r.at = r.rows;
        for (unsigned s = r.dim > 1000 ? 2 : 2 + any(6); s > 0; s--)
            add_stage(&l, &r, any(N_STAGES));
        (void)run_both(&l);
    }
}

/* A stage that writes what another one reads must not be joined with it. */
static void test_overlaps(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct rows r = choose_rows();
        struct list l = {0};
        const size_t elements = (size_t)r.n * r.dim;
        const unsigned how = any(4);
        float *weight = how == 0 ? r.residual + any(r.dim) : take(r.dim);
        float *added = how == 1 ? r.residual + 1 : take(elements + 1);
        r.normed = how == 2 ? added + 1 : how == 3 ? r.rows : take(elements);
        ADD(&l, add, over(elements, 256), 1, 256, {.y = r.rows, .x = added, .n = elements});
        ADD(&l, add, over(elements, 256), 1, 256,
            {.y = r.residual, .x = r.rows, .n = elements});
        ADD(&l, rms_norm, r.n, 1, GPU_ROW_THREADS,
            {.x = r.residual, .weight = weight, .y = r.normed, .eps = 1e-6f, .dim = r.dim});
        assert_true(run_both(&l) > 1);
    }
}

/* ---- peaks ----------------------------------------------------------------------------------- */

/* The highest value of a row, of equal ones the first, both zeros being equal; and whether all are
 * finite. */
static void test_peaks(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const uint32_t dim = 1 + any(3 * GPU_CHECK_COLUMNS);
        struct list l = {0};
        uint32_t found = 0, best = 0;
        uint64_t peak = 0;
        used = 0;
        float *x = take(dim);
        for (uint32_t i = 0; i < dim; i++) {
            if (round % 3 == 0)
                x[i] = any(2) == 0 ? -0.0f : 0.0f;
            else if (round % 3 == 1)
                x[i] = -(float)any(5) - 1;
            best = x[i] > x[best] ? i : best;
        }
        ADD(&l, find_not_finite, 1, over(dim, GPU_CHECK_COLUMNS), 32,
            {.x = x, .dim = dim, .found = &found, .peak = &peak});
        run(&l);
        assert_int_equal(found, 0);
        assert_int_equal(peak_index(peak), best);
        x[any(dim)] = round % 2 == 0 ? NAN : INFINITY;
        run(&l);
        assert_int_equal(found, not_finite_code(0, round % 2 == 0));
    }
}

/* ---- the output head ------------------------------------------------------------------------- */

/* A head of bytes in the arena, n_rows of n_cols. */
static struct gpu_product choose_head(uint32_t n_rows, uint32_t n_cols)
{
    const size_t groups = (size_t)n_rows * n_cols / 64;
    uint32_t n_blocks[GPU_N_MATMULS] = {0};
    used = 0;
    struct gpu_product p = {
        .w = {.format = {.codes = QUANT_CODES_AFFINE, .scale = GPU_PLAIN_BF16, .bits = 8,
                         .has_bias = 1, .block = 64, .group = 64, .part_block_bytes = {64, 2, 2},
                         .part_rows = {1, 1, 1}},
              .n_rows = n_rows, .n_cols = n_cols, .is_interleaved = 1,
              .parts = {take((size_t)n_rows * n_cols / 4), take(groups / 2), take(groups / 2)}},
        .in = {.q = take(n_cols / 4), .scale = take(n_cols / 64), .offset = take(n_cols / 64)},
        .end = n_rows, .n = 1, .y = take(n_rows + 64), .y_stride = n_rows};
    gpu_place_product(&p, n_blocks);
    return p;
}

static void add_head(struct list *l, const struct gpu_product *p, uint32_t n_tiles)
{
    ADD(l, matmul_head, over(p->n_across, n_tiles), 1, GPU_MATMUL_THREADS,
        {.p = *p, .n_tiles = n_tiles});
}

static void add_look(struct list *l, const float *x, uint32_t n)
{
    uint32_t *found = take(1);
    uint64_t *peak = any(3) > 0 ? take(2) : NULL;
    *found = 0;
    if (peak != NULL)
        *peak = 0;
    ADD(l, find_not_finite, 1, over(n, GPU_CHECK_COLUMNS), 32,
        {.x = x, .dim = n, .found = found, .peak = peak});
}

static void add_copy(struct list *l, float *to, const float *from, uint32_t n)
{
    ADD(l, copy, over(n, 256), 1, 256, {.to = to, .from = from, .n = n});
}

static void test_output_heads(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const struct gpu_product p = choose_head(16 * (1 + any(20)), 64 * (1 + any(6)));
        const bool has_look = any(3) > 0, has_copy = any(3) > 0;
        struct list l = {0};
        add_head(&l, &p, 1 + any(4));
        if (has_look)
            add_look(&l, p.y, p.end);
        if (has_copy)
            add_copy(&l, take(p.end), p.y, p.end);
        assert_int_equal(run_both(&l), 1);
    }
}

/* A look or a copy of other rows, or a copy to what the head uses, stays apart. */
static void test_other_output_heads(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        const struct gpu_product p = choose_head(16 * (2 + any(20)), 64 * (1 + any(6)));
        struct list l = {0};
        add_head(&l, &p, 1 + any(4));
        switch (any(6)) {
        case 0: add_look(&l, p.y + 1, p.end); break;
        case 1: add_look(&l, p.y, p.end - 1); break;
        case 2: add_copy(&l, take(p.end), p.y + 1, p.end); break;
        case 3: add_copy(&l, take(p.end), p.y, p.end - 16); break;
        case 4: add_copy(&l, (float *)(uintptr_t)p.in.scale - p.end + 1, p.y, p.end); break;
        default: add_copy(&l, p.y + p.end - 1, p.y, 1); break;
        }
        assert_int_equal(run_both(&l), 2);
    }
}

/* ---- the delta rule -------------------------------------------------------------------------- */

#define DIM GPU_TOKEN_DIM
#define MAX_SEGMENTS 2

struct net {
    struct gpu_delta_net d;
    struct backend_segment segments[MAX_SEGMENTS];
    size_t n_heads, value_width;
};

/* Heads of 128 with the state of each sequence at a multiple of 16 bytes. */
static void choose_net(struct net *net, bool is_token)
{
    struct backend_delta_net *a = &net->d.net;
    *net = (struct net){0};
    used = 0;
    a->n_key_heads = 1 + any(2);
    net->n_heads = a->n_value_heads = a->n_key_heads * (1 + any(a->n_key_heads == 1 ? 3 : 1));
    a->key_dim = DIM;
    a->value_dim = is_token ? DIM : 1 + any(70);
    a->value_dim += !is_token && any(2) == 0 ? 4 - a->value_dim % 4 : 0;
    a->kernel = 1 + any(GPU_TOKEN_KERNEL);
    a->has_tiled_value_heads = any(2) == 0;
    a->eps = 1e-6f;
    a->segments = net->segments;
    a->n_segments = 1 + any(a->n_key_heads == 1 ? MAX_SEGMENTS : 1);
    net->value_width = net->n_heads * a->value_dim;
    net->d.channels = (uint32_t)(2 * a->n_key_heads * DIM + net->value_width);
    for (size_t s = 0; s < a->n_segments; s++) {
        net->segments[s] = (struct backend_segment){
            .first_row = net->d.n_rows, .n_rows = is_token ? 1 : 1 + any(40),
            .state = {[DELTA_NET_CONV] = take((size_t)(a->kernel - 1) * net->d.channels),
                      [DELTA_NET_STATE] = take(net->n_heads * DIM * a->value_dim)}};
        net->d.n_rows += net->segments[s].n_rows;
    }
    const size_t n = net->d.n_rows;
    a->qkv = take(n * net->d.channels);
    a->z = take(n * net->value_width);
    a->b = take(n * net->n_heads);
    a->a = take(n * net->n_heads);
    a->conv_weight = take((size_t)a->kernel * net->d.channels);
    float *decay = take(net->n_heads);
    for (size_t h = 0; h < net->n_heads; h++)
        decay[h] = -(float)any(100) / 50;
    a->decay = decay;
    a->dt_bias = take(net->n_heads);
    a->norm = take(a->value_dim);
    a->mixed = take(n * net->d.channels);
    a->out = take(n * net->value_width);
}

/* Has the rows of all segments leave a trail: a few of them, with slots that hold both parts. */
static void choose_trails(struct net *net)
{
    const struct backend_delta_net *a = &net->d.net;
    const size_t conv = (size_t)(a->kernel - 1) * net->d.channels;
    const size_t n_state = net->n_heads * DIM * a->value_dim;
    for (size_t s = 0; s < a->n_segments; s++) {
        struct backend_segment *segment = &net->segments[s];
        segment->n_rows = 1 + (segment->n_rows - 1) % 5;
        segment->n_slots = segment->n_rows + 1 + any(2);
        segment->slot = any(segment->n_slots);
        /* Rounded up to four floats, or not. */
        const size_t floats = (conv + 3) / 4 * 4 + n_state + any(2) * any(4);
        segment->slot_bytes = floats * sizeof(float);
        float *first = take(segment->n_slots * floats);
        first += segment->slot * floats;
        segment->state[DELTA_NET_CONV] = first;
        segment->state[DELTA_NET_STATE] = first + (conv + 3) / 4 * 4;
    }
}

/* What the processor makes of it, into `expected`. */
static void run_reference(const struct net *net)
{
    static float scratch[KERNEL_DELTA_SCRATCH(DIM)];
    struct kernels k;
    k_ref_init(&k);
    memcpy(before, arena, sizeof before);
    for (size_t s = 0; s < net->d.net.n_segments; s++) {
        k.conv_silu(&net->d.net, &net->segments[s], 0, net->d.channels);
        for (unsigned h = 0; h < net->n_heads; h++)
            k.delta_head(&net->d.net, &net->segments[s], h, scratch);
    }
    memcpy(expected, arena, sizeof expected);
    memcpy(arena, before, sizeof arena);
}

static uint32_t counters[MAX_SEGMENTS * 2]; /* 0 between launches */

static void add_token(struct list *l, const struct net *net)
{
    ADD(l, delta_token, net->n_heads, net->d.net.n_segments, 4 * DIM,
        {.d = net->d, .n_read = counters});
}

static void test_delta_token(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct net net;
        struct list l = {0};
        choose_net(&net, true);
        run_reference(&net);
        add_token(&l, &net);
        run(&l);
        compare_except(net.d.net.mixed, (size_t)net.d.n_rows * net.d.channels);
        for (unsigned i = 0; i < sizeof counters / sizeof *counters; i++)
            assert_int_equal(counters[i], 0);
    }
}

static void add_delta_rows(struct list *l, const struct net *net)
{
    const struct backend_delta_net *a = &net->d.net;
    uint32_t rows = 0;
    for (size_t s = 0; s < a->n_segments; s++)
        rows = net->segments[s].n_rows > rows ? net->segments[s].n_rows : rows;
    ADD(l, conv_silu, over(net->d.channels, 128) * over(rows, GPU_CONV_ROWS), a->n_segments, 128,
        {.d = net->d, .end = net->d.channels});
    ADD(l, delta_head, net->n_heads * over(a->value_dim, GPU_DELTA_COLUMNS), a->n_segments,
        4 * GPU_DELTA_COLUMNS, {.d = net->d});
    ADD(l, delta_close, over(rows * net->n_heads, 4), a->n_segments, 128,
        {.d = net->d, .n_heads = (uint32_t)net->n_heads});
}

static void test_delta_rows(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct net net;
        struct list l = {0};
        choose_net(&net, false);
        run_reference(&net);
        add_delta_rows(&l, &net);
        run(&l);
        compare_except(arena, 0);
    }
}

/* The state behind each row lies in a slot of its own, and the one before all rows stays. */
static void test_delta_trails(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct net net;
        struct list l = {0};
        choose_net(&net, false);
        choose_trails(&net);
        run_reference(&net);
        add_delta_rows(&l, &net);
        run(&l);
        compare_except(arena, 0);
    }
}

/* Rounding joins the kernel before it, if that completes all its rows. */
static void test_delta_rounding(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        struct net net;
        struct list l = {0};
        const bool is_token = any(2) == 0, is_part = any(3) == 0;
        choose_net(&net, is_token);
        if (is_token)
            add_token(&l, &net);
        else
            add_delta_rows(&l, &net);
        const uint32_t group = is_token ? 16u << any(4) : 16;
        const size_t n_rows = net.d.n_rows + (is_part ? 16u : 0);
        const bool is_whole = net.d.net.value_dim % group == 0;
        if (net.value_width % group != 0)
            continue;
        (void)take(16 * net.value_width);
        add_quantize(&l, net.d.net.out, n_rows * net.value_width, group);
        const size_t n = l.n;
        assert_int_equal(run_both(&l), is_whole && !is_part ? n - 1 : n);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

#define BLOCK GPU_ATTENTION_BLOCK

struct heads {
    struct gpu_attention a;
    struct backend_segment segment;
    uint32_t n_parts;
};

/* Rows at the end of a sequence of a few blocks, whose keys and values are there already. The size
 * of a head is one that only f16 can take apart, or any. */
static void choose_heads(struct heads *h)
{
    const uint32_t n_rows = 1 + any(2);
    struct gpu_attention *a = &h->a;
    *h = (struct heads){.n_parts = 1 + any(3)};
    used = 0;
    a->kv.plain = GPU_PLAIN_F16;
    a->n_kv_heads = 1 + any(2);
    a->n_heads = a->n_kv_heads * (1 + any(9));
    a->head_dim = any(4) == 0 ? 1 + any(130) : 16 * (1 + any(4));
    a->head_dim = any(6) == 0 ? 256 : a->head_dim;
    a->head_dim = any(12) == 0 ? 640 : a->head_dim;
    a->value_dim = a->head_dim;
    if (a->head_dim > 200) {
        a->n_kv_heads = 1;
        a->n_heads = 1 + any(3);
    }
    const uint32_t n_positions = n_rows + any(a->head_dim > 200 ? 300 : 2 * BLOCK + 40);
    a->block_positions = (n_positions + BLOCK - 1) / BLOCK * BLOCK;
    const size_t kv = (size_t)a->n_kv_heads * a->block_positions * a->head_dim;
    h->segment = (struct backend_segment){.n_rows = n_rows, .position = n_positions - n_rows,
                                          .state = {take(kv / 2 + 1), take(kv / 2 + 1)}};
    for (unsigned s = 0; s < ATTENTION_PARTS; s++)
        for (size_t i = 0; i < kv; i++)
            ((uint16_t *)h->segment.state[s])[i] = quant_f32_to_f16(any_float());
    a->segments = &h->segment;
    a->n_segments = 1;
    a->q_head_stride = 2 * a->head_dim;
    a->q_row_stride = a->n_heads * a->q_head_stride;
    a->q = take(n_rows * a->q_row_stride);
    a->gate = any(2) == 0 ? a->q + a->head_dim : NULL;
    a->scale = 0.0625f;
    a->window = any(3) == 0 ? 1 + any(300) : 0;
    a->sinks = any(3) == 0 ? take(a->n_heads) : NULL;
    a->out = take((size_t)n_rows * a->n_heads * a->head_dim);
    a->n_blocks = 4;
    const size_t partial = (size_t)n_rows * a->n_blocks * a->n_heads;
    a->block_max = take(partial);
    a->block_total = take(partial);
    a->block_out = take(partial * a->head_dim);
}

/* What the processor makes of one row and key head, into `expected`. */
static void attend_reference(const struct kernels *k, const struct gpu_attention *a, uint32_t row,
                             uint32_t kv_head)
{
    static float scratch[KERNEL_ATTENTION_SCRATCH(9, 640)], values[9 * 640];
    float max[9], total[9], block_max[9], block_total[9];
    const uint32_t group = a->n_heads / a->n_kv_heads, dim = a->head_dim;
    const uint32_t end = a->segments->position + row + 1;
    const uint32_t first = a->window > 0 && end > a->window ? end - a->window : 0;
    const float *q = a->q + row * a->q_row_stride + kv_head * group * a->q_head_stride;
    float *out = expected + (a->out - arena) + ((size_t)row * a->n_heads + kv_head * group) * dim;
    for (uint32_t i = first; i < end; i = (i / BLOCK + 1) * BLOCK) {
        const uint32_t block_end = (i / BLOCK + 1) * BLOCK;
        const size_t at = ((size_t)kv_head * a->block_positions + i) * dim * 2;
        k->attend(&(struct kernel_attention){
            .kv_format = &kv_f16, .q = q, .q_stride = a->q_head_stride, .n_heads = group,
            .head_dim = dim, .value_dim = dim,
            .keys = (char *)a->segments->state[ATTENTION_KEYS] + at,
            .values = (char *)a->segments->state[ATTENTION_VALUES] + at,
            .n_positions = (end < block_end ? end : block_end) - i, .scale = a->scale,
            .max = i == first ? max : block_max, .total = i == first ? total : block_total,
            .out = i == first ? out : values, .scratch = scratch});
        for (uint32_t h = 0; i > first && h < group; h++)
            k->attend_merge(&max[h], &total[h], out + h * dim, block_max[h], block_total[h],
                            values + h * dim, dim);
    }
    for (uint32_t h = 0; h < group; h++) {
        if (a->sinks != NULL)
            k->attend_sink(max[h], &total[h], out + h * dim, a->sinks[kv_head * group + h], dim);
        k->attend_close(out + h * dim, total[h],
                        a->gate != NULL ? q + h * a->q_head_stride + dim : NULL, dim);
    }
}

static void add_attention(struct list *l, const struct heads *h)
{
    const struct gpu_attention *a = &h->a;
    ADD(l, attend, h->n_parts * a->n_kv_heads * a->n_blocks, h->segment.n_rows, GPU_ATTEND_THREADS,
        {*a, h->n_parts});
    ADD(l, merge, a->n_heads, h->segment.n_rows, 128, {.a = *a});
}

static void test_attention(void **state)
{
    struct kernels k;
    (void)state;
    k_ref_init(&k);
    for (int round = 0; round < 60; round++) {
        struct heads h;
        struct list l = {0};
        choose_heads(&h);
        memcpy(expected, arena, sizeof expected);
        for (uint32_t row = 0; row < h.segment.n_rows; row++)
            for (uint32_t kv_head = 0; kv_head < h.a.n_kv_heads; kv_head++)
                attend_reference(&k, &h.a, row, kv_head);
        add_attention(&l, &h);
        run(&l);
        compare_except(h.a.block_max, (size_t)(arena + used - h.a.block_max));
    }
}

/* Rounding joins the merge. */
static void test_attention_rounding(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        struct heads h;
        struct list l = {0};
        choose_heads(&h);
        const size_t elements = (size_t)h.segment.n_rows * h.a.n_heads * h.a.head_dim;
        if (elements % 16 != 0)
            continue;
        add_attention(&l, &h);
        add_quantize(&l, h.a.out, elements, 16);
        assert_int_equal(run_both(&l), h.a.head_dim % 16 == 0 ? 2 : 3);
    }
}

/* The norms of queries and keys join the store. */
static void test_heads(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        struct heads h;
        struct list l = {0};
        choose_heads(&h);
        struct gpu_attention *a = &h.a;
        const uint32_t n = h.segment.n_rows, dim = a->head_dim, half = any(dim / 2 + 1);
        const uint64_t width = (uint64_t)a->n_kv_heads * dim;
        const bool is_far = any(4) != 0, has_norm = any(3) != 0;
        float *k = take(n * width), *v = take(n * width);
        a->k = k;
        a->v = is_far ? v : k;
        if (any(3) == 0 && dim % KV_GROUP == 0) {
            a->kv = (struct gpu_kv_format){.bits = 8};
            a->gate = NULL;
        }
        const float *rope = take((size_t)n * 2 * half);
        ADD(&l, norm_rope, n, a->n_heads, 64,
            {.x = a->q, .row_stride = a->q_row_stride, .head_stride = a->q_head_stride,
             .head_dim = dim, .rotary_dim = 2 * half, .norm = has_norm ? take(dim) : NULL,
             .eps = 1e-6f, .rope = rope});
        ADD(&l, norm_rope, n, a->n_kv_heads, 64,
            {.x = k, .row_stride = width, .head_stride = dim, .head_dim = dim,
             .rotary_dim = 2 * half, .norm = has_norm ? take(dim) : NULL, .eps = 1e-6f,
             .rope = rope});
        ADD(&l, store_kv, a->n_kv_heads, n, 128, {*a});
        assert_int_equal(run_both(&l), is_far ? 1 : 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains),         cmocka_unit_test(test_broken_chains),
        cmocka_unit_test(test_any_order),      cmocka_unit_test(test_overlaps),
        cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_output_heads),   cmocka_unit_test(test_other_output_heads),
        cmocka_unit_test(test_delta_token),    cmocka_unit_test(test_delta_rows),
        cmocka_unit_test(test_delta_trails),
        cmocka_unit_test(test_delta_rounding), cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_rounding), cmocka_unit_test(test_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
