/* Checks products with weights of every format, and the rounding of activations before them. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "quant/interleave.h"

/* ---- quantize_row ---------------------------------------------------------------------------- */

/* The codes of a group whose scale is NaN may be anything, but their sum must be right. */
static void forget_nan_groups(struct check *c, size_t n_groups, size_t group, unsigned q,
                              unsigned scale, unsigned sum)
{
    const float *scales = out_of(scale, 0);
    for (unsigned side = 0; side < c->n_sides; side++) {
        int8_t *codes = out_of(q, side);
        int32_t *sums = out_of(sum, side);
        for (size_t g = 0; g < n_groups && !c->is_skipped[side]; g++) {
            if (scales[g] == scales[g])
                continue;
            int32_t total = 0;
            for (size_t i = 0; i < group; i++)
                total += codes[g * group + i];
            if (total != sums[g])
                side_fail(c, side, "the sum of group %zu is %d, its codes give %d", g,
                          (int)sums[g], (int)total);
            memset(codes + g * group, 0, group);
            sums[g] = 0;
        }
    }
}

/* Makes ordinary activations, with groups scaled down to where they count as zero. */
static void shrink_groups(struct check *c, float *x, size_t n_groups, size_t group)
{
    for (size_t g = 0; g < n_groups; g++)
        if (rng_chance(&c->rng, 8)) {
            const float scale = rng_chance(&c->rng, 2) ? 0x1p-100f : 0x1p-99f;
            for (size_t i = 0; i < group; i++)
                x[g * group + i] *= scale;
        }
}

/* Makes values halfway between two codes, and a few units in the last place next to that. This
 * shows double rounding and rounding away from zero. */
static void make_halves(struct check *c, float *x, size_t n, size_t group)
{
    float max = 0;
    for (size_t i = 0; i < n; i++) {
        if (i % group == 0) {
            x[i] = max = rng_chance(&c->rng, 4) ? 127.0f : rng_float(&c->rng, ORDINARY) + 2.0f;
            continue;
        }
        x[i] = ((float)(int)rng_below(&c->rng, 253) - 126.5f) * (max / 127.0f);
        for (size_t steps = rng_below(&c->rng, 3); steps > 0; steps--)
            x[i] = nextafterf(x[i], rng_chance(&c->rng, 2) ? 127.0f : -127.0f);
    }
}

void check_quantize_row(struct check *c)
{
    static const size_t groups[] = {16, 32, 64, 128};
    const size_t group = groups[rng_below(&c->rng, 4)], n_groups = rng_between(&c->rng, 1, 12);
    const size_t n = n_groups * group;
    const enum values values = rng_values(&c->rng);
    float *x = take_floats(c, "x", n, values);
    if (values == ORDINARY && rng_chance(&c->rng, 4))
        shrink_groups(c, x, n_groups, group);
    else if (values == ORDINARY && rng_chance(&c->rng, 4))
        make_halves(c, x, n, group);
    const unsigned q = take_output(c, "q", BYTES, n, 1);
    const unsigned scale = take_output(c, "scale", FLOAT32, n_groups, 4);
    const unsigned offset = take_output(c, "offset", FLOAT32, n_groups, 4);
    const unsigned sum = take_output(c, "sum", INT32, n_groups, 4);
    describe(c, "%zu groups of %zu, values %d", n_groups, group, (int)values);
    EACH_SIDE(c, k)
        k->quantize_row(x, n, group, out(c, q), out(c, scale), out(c, offset), out(c, sum));
    forget_nan_groups(c, n_groups, group, q, scale, sum);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

struct shape {
    size_t n_rows, n_cols, begin, end, n;
    size_t in_rows, y_rows, y_first, y_stride;
    bool has_pick, has_place;
    bool is_interleaved;
};

static size_t choose_tokens(struct rng *rng)
{
    switch (rng_below(rng, 8)) {
    case 0: return rng_between(rng, 1, 70);
    case 1: return rng_between(rng, 3, 40);
    case 2: return rng_between(rng, 3, 20);
    case 3:
    case 4: return rng_between(rng, 2, 9);
    default: return rng_between(rng, 1, 3);
    }
}

#define MAX_INPUTS (128 << 10) /* floats in all rows of the input */

static size_t round_to_blocks(size_t n_rows)
{
    return (n_rows + INTERLEAVE_ROWS - 1) / INTERLEAVE_ROWS * INTERLEAVE_ROWS;
}

static struct shape choose_shape(struct check *c)
{
    struct rng *rng = &c->rng;
    const size_t block = c->format->block;
    const size_t max = rng_chance(rng, 16) ? 6000 : block < 128 ? 900 : 1300;
    struct shape s = {.n = choose_tokens(rng)};
    s.n_cols = block == 1 ? rng_length(rng, max) : block * rng_between(rng, 1, max / block);
    size_t n = rng_chance(rng, 40) ? 0 : rng_length(rng, 72);
    while (n * s.n_cols * s.n > 200000 && n > 20)
        n -= 16;
    while ((n * s.n_cols * s.n > 600000 || (s.n + 6) * s.n_cols > MAX_INPUTS) && s.n_cols > block)
        s.n_cols = (s.n_cols / block + 1) / 2 * block;
    s.begin = rng_chance(rng, 3) ? 0 : rng_below(rng, rng_chance(rng, 4) ? 200 : 40);
    while (s.begin * s.n_cols > 40000)
        s.begin /= 2;
    s.end = s.begin + n;
    s.n_rows = s.end + (rng_chance(rng, 2) ? 0 : rng_below(rng, 20));
    s.n_rows = s.n_rows > 0 ? s.n_rows : 1;
    s.is_interleaved = (interleave_suits(c->format, INTERLEAVE_ROWS, s.n_cols) ||
                        interleave_suits_memory(c->format, INTERLEAVE_ROWS, s.n_cols)) &&
                       rng_chance(rng, 2);
    if (s.is_interleaved) {
        s.begin = s.begin / INTERLEAVE_ROWS * INTERLEAVE_ROWS;
        s.end = round_to_blocks(s.end);
        s.n_rows = round_to_blocks(s.n_rows);
    }
    s.has_pick = rng_chance(rng, 2);
    s.has_place = rng_chance(rng, 2);
    s.in_rows = s.n + (s.has_pick ? rng_below(rng, 6) : 0);
    s.y_rows = s.n + (s.has_place ? rng_below(rng, 6) : 0);
    s.y_first = rng_chance(rng, 3) ? s.begin : rng_chance(rng, 2) ? 0 : rng_below(rng, s.begin + 1);
    s.y_stride = s.end - s.y_first + rng_below(rng, 8);
    return s;
}

static void interleave(struct weight *w)
{
    void *parts[QUANT_MAX_PARTS];
    for (unsigned p = 0; p < w->quant->n_parts; p++)
        parts[p] = (void *)(uintptr_t)w->parts[p];
    interleave_blocks(w->quant, w->n_cols, parts, 0, w->n_rows / INTERLEAVE_ROWS);
    w->is_interleaved = true;
}

/* Sometimes a few blocks have any bytes, so that some rows are NaN. */
static void make_weight(struct check *c, const struct shape *s, struct weight *w)
{
    static const char *const names[QUANT_MAX_PARTS] = {"weights", "scales", "biases"};
    const struct quant *format = c->format;
    const enum blocks blocks = rng_chance(&c->rng, 3) ? BLOCKS_FINITE : BLOCKS_ORDINARY;
    const bool has_others = rng_chance(&c->rng, 8);
    *w = (struct weight){.quant = format, .n_rows = (uint32_t)s->n_rows,
                         .n_cols = (uint32_t)s->n_cols};
    for (unsigned p = 0; p < format->n_parts; p++) {
        const size_t bytes = quant_part_bytes(format, p, s->n_rows, s->n_cols);
        const size_t block_bytes = format->part_block_bytes[p], n = bytes / block_bytes;
        uint8_t *to = take_input(c, names[p], bytes, 1);
        pool_fill(c->pool, blocks, p, &c->rng, to, n);
        for (size_t i = 0; has_others && i < 3; i++)
            pool_fill(c->pool, BLOCKS_ANY, p, &c->rng, to + rng_below(&c->rng, n) * block_bytes, 1);
        w->parts[p] = to;
    }
    if (s->is_interleaved && interleave_suits(format, w->n_rows, w->n_cols))
        interleave(w);
}

/* Returns the same weight for levels that take it in an order that no file has: a copy, because the
 * reference and the other levels have it by rows. */
static struct weight with_turned_blocks(struct check *c, const struct shape *s,
                                        const struct weight *w)
{
    struct weight turned = *w;
    if (!s->is_interleaved || w->is_interleaved)
        return turned;
    for (unsigned p = 0; p < w->quant->n_parts; p++) {
        const size_t bytes = quant_part_bytes(w->quant, p, w->n_rows, w->n_cols);
        turned.parts[p] = take_input(c, "interleaved weights", bytes, 1);
        memcpy((void *)(uintptr_t)turned.parts[p], w->parts[p], bytes);
    }
    interleave(&turned);
    return turned;
}

/* Codes at the ends of their range, where sums of products are largest. */
static void make_extreme_codes(struct check *c, int8_t *q, size_t n)
{
    const bool is_one_sign = rng_chance(&c->rng, 2);
    for (size_t i = 0; i < n; i++)
        q[i] = is_one_sign || rng_chance(&c->rng, 2) ? -127 : 127;
}

static void make_codes(struct check *c, const struct shape *s, struct kernel_input *in)
{
    const size_t group = c->format->group, n_groups = s->n_cols / group;
    const size_t n = s->in_rows * s->n_cols;
    const enum values values = rng_values(&c->rng);
    const bool is_extreme = rng_chance(&c->rng, 6);
    static float x[MAX_INPUTS];
    rng_floats(&c->rng, values, x, n);
    int8_t *q = take_input(c, "q", n, 1);
    float *scale = take_input(c, "scale", s->in_rows * n_groups * sizeof *scale, 4);
    float *offset = take_input(c, "offset", s->in_rows * n_groups * sizeof *offset, 4);
    int32_t *sum = take_input(c, "sum", s->in_rows * n_groups * sizeof *sum, 4);
    for (size_t t = 0; t < s->in_rows; t++)
        c->tables[0]->quantize_row(x + t * s->n_cols, s->n_cols, group, q + t * s->n_cols,
                                   scale + t * n_groups, offset + t * n_groups,
                                   sum + t * n_groups);
    if (is_extreme)
        make_extreme_codes(c, q, n);
    for (size_t g = 0; is_extreme && g < s->in_rows * n_groups; g++) {
        sum[g] = 0;
        for (size_t i = 0; i < group; i++)
            sum[g] += q[g * group + i];
        offset[g] = scale[g] * (float)sum[g];
    }
    *in = (struct kernel_input){.q = q, .scale = scale, .offset = offset, .sum = sum};
}

/* Returns n different numbers below n_all, in any order; or any numbers. */
static uint32_t *take_list(struct check *c, const char *name, size_t n, size_t n_all,
                           bool is_different)
{
    uint32_t *list = take_input(c, name, n * sizeof *list, sizeof *list);
    uint32_t all[128];
    for (size_t i = 0; i < n_all; i++)
        all[i] = (uint32_t)i;
    for (size_t i = 0; i < n; i++) {
        const size_t from = is_different ? rng_between(&c->rng, i, n_all - 1)
                                         : rng_below(&c->rng, n_all);
        list[i] = all[from];
        if (is_different)
            all[from] = all[i];
    }
    return list;
}

/* Returns where the rows are split into two products with the same inputs. The end means no
 * split. */
static size_t choose_cut(struct check *c, const struct shape *s)
{
    const size_t cut = s->begin + rng_below(&c->rng, s->end - s->begin + 1) / 16 * 16;
    return rng_chance(&c->rng, 2) && cut > s->begin ? cut : s->end;
}

void check_matmul(struct check *c)
{
    const struct shape s = choose_shape(c);
    struct weight w;
    make_weight(c, &s, &w);
    const struct weight turned = with_turned_blocks(c, &s, &w);
    struct kernel_matmul m = {.begin = s.begin, .end = s.end, .n = s.n,
                              .y_first = s.y_first, .y_stride = s.y_stride};
    if (c->format->codes != QUANT_NO_CODES) {
        make_codes(c, &s, &m.in);
    } else {
        float *x = take_input(c, "x", s.in_rows * s.n_cols * sizeof *x, 4);
        rng_floats(&c->rng, rng_values(&c->rng), x, s.in_rows * s.n_cols);
        m.in.x = x;
    }
    if (s.has_pick)
        m.pick = take_list(c, "pick", s.n, s.in_rows, rng_chance(&c->rng, 2));
    if (s.has_place)
        m.place = take_list(c, "place", s.n, s.y_rows, true);
    const unsigned y = take_output(c, "y", FLOAT32,
                                   (s.y_rows - 1) * s.y_stride + s.end - s.y_first, 4);
    const unsigned scratch = take_scratch(c, KERNEL_MATMUL_SCRATCH(s.n_cols, s.n), 64);
    const size_t cut = choose_cut(c, &s);
    const bool has_next = rng_chance(&c->rng, 2);
    describe(c, "rows %zu..%zu..%zu of %zu, %zu columns, %zu tokens%s%s%s%s, y from row %zu by %zu",
             s.begin, cut, s.end, s.n_rows, s.n_cols, s.n,
             s.is_interleaved ? ", interleaved" : "", s.has_pick ? ", pick" : "",
             s.has_place ? ", place" : "", has_next ? ", next" : "", s.y_first, s.y_stride);
    EACH_SIDE(c, k) {
        m.w = k->takes_blocks ? &turned : &w;
        m.y = out(c, y);
        m.scratch = out(c, scratch);
        m.begin = s.begin;
        m.end = cut;
        m.has_same_inputs = false;
        m.next = has_next ? m.w : NULL;
        m.next_row = cut < s.end ? cut : 0;
        k->matmul(&m);
        m.begin = cut;
        m.end = s.end;
        m.has_same_inputs = true;
        if (cut < s.end)
            k->matmul(&m);
    }
}
