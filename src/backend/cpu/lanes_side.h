/* Part of lanes.h: products of a few tokens with blocks of GGUF that are interleaved
 * (interleave.h). Nothing is transposed, so memory is the limit if it is read well. A single stream
 * does not reach the full memory bandwidth, so several parts of memory are read at a time. Which
 * way is better was measured (docs/decisions/0065-what-binds-interleaved-blocks.md):
 *   - blocks of 32 columns are small: several row blocks are multiplied in turns, a block of each
 *     at a time, and what they read next is prefetched into the L1 cache;
 *   - blocks of 256 columns are not. One row block is multiplied at a time. Row blocks are in
 *     groups of four: while the i-th of a group is multiplied, the i-th quarter of each of the next
 *     four is prefetched into the L2 cache. Memory is read in long runs so, which is faster than
 *     four runs in one row block. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_SIDE_H
#define FLASHMOE_BACKEND_CPU_LANES_SIDE_H

#include "backend/cpu/lanes_layouts.h"

#define SIDE_BLOCKS 4                  /* row blocks in turns */
#define SIDE_AHEAD 2048                /* bytes of each that are prefetched */
#define SIDE_RUNS 4                    /* row blocks in a group that is prefetched */

/* Consecutive row blocks, and the tokens they are multiplied with. */
struct side {
    const uint8_t *p; /* the first row block */
    size_t step;      /* bytes of a row block */
    unsigned n_blocks;
    /* Blocks of 32 columns: the row blocks that come next. Blocks of 256: in the first one of the
     * next SIDE_RUNS, the part that is prefetched beside this row block. */
    const uint8_t *next;
    size_t next_step;
    const int8_t *q[COLUMN_TOKENS];
    struct fold_inputs f[COLUMN_TOKENS]; /* scales and biases unused */
    const int32_t *start[COLUMN_TOKENS]; /* [n_groups]: what the sum of a group begins with */
    size_t n_cols;
};

/* Returns how many row blocks a function takes. */
static unsigned side_max_blocks(const struct quant *quant)
{
    return quant->block == 32 ? SIDE_BLOCKS : 1;
}

/* Prefetches as many bytes of the next row blocks as are reached of this one, after the first
 * *fetched. */
INLINE void side_fetch(const struct side *in, size_t reached, size_t *fetched)
{
    for (; *fetched < reached; *fetched += SIDE_RUNS * 64) {
        const uint8_t *at = in->next + *fetched / SIDE_RUNS;
        UNROLL for (unsigned i = 0; i < SIDE_RUNS; i++)
            __builtin_prefetch(at + i * in->next_step, 0, 2);
    }
}

/* Scales and biases of one block of columns. */
INLINE void side_scales_at(struct layout l, struct rows rows, float *scales, float *biases)
{
    if (!has_heads(l)) {
        block_scales(l.codes, rows, 0, scales, biases);
        return;
    }
    vf_store(scales, side_scale(rows, 0, l.bytes, l.codes == QUANT_CODES_MXFP4, l.has_bias));
    if (l.has_bias)
        vf_store(biases, side_bias(rows, 0, l.bytes));
}

/* Adds one block of columns of sixteen rows to the sums. */
INLINE void side_block(struct layout l, const struct side *in, struct rows rows, size_t column,
                       unsigned n_tokens, size_t *fetched, vf acc[COLUMN_TOKENS])
{
    const bool has_start = !l.has_bias || (l.is_wide && WIDE_CODES_SHIFT != 0);
    struct sink s = {.n_tokens = n_tokens, .group = l.group, .is_wide = l.is_wide};
    float scales[16 * LANES], biases[16 * LANES];
    size_t g = column / l.group;
    side_scales_at(l, rows, scales, biases);
    for (unsigned u = 0; u < l.block / l.unit; u++) {
        if (!has_heads(l))
            side_fetch(in, LANES * (column + u * l.unit) / l.block * l.bytes +
                               LANES * l.bytes * l.unit / l.block, fetched);
        UNROLL for (unsigned t = 0; t < n_tokens; t++) {
            s.q[t] = in->q[t] + column + u * l.unit;
            UNROLL for (unsigned i = 0; i < l.unit / l.group; i++) {
                s.dots[t][i][0] = vi_set1(has_start ? in->start[t][g + i] : 0);
                s.dots[t][i][1] = vi_set1(0);
            }
        }
        put_unit(l, rows, 0, u, &s);
        UNROLL for (unsigned i = 0; i < l.unit / l.group; i++, g++) {
            const size_t at = g % (l.block / l.group) * LANES;
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                acc[t] = fold(acc[t], group_sum(l, s.dots[t][i], i), scales + at, biases + at,
                              l.has_bias, in->f[t].x_scale[g], in->f[t].x_offset[g]);
        }
    }
}

/* The layout and n_tokens are constants where this is inlined. */
INLINE void side_run(struct layout l, const struct side *in, unsigned n_tokens,
                     vf out[SIDE_BLOCKS][COLUMN_TOKENS])
{
    const size_t block_bytes = LANES * l.bytes;
    const unsigned n_blocks = has_heads(l) ? in->n_blocks : 1;
    size_t fetched = 0;
    for (unsigned b = 0; b < n_blocks; b++)
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            out[b][t] = vf_zero();
    for (size_t column = 0, at = 0; column < in->n_cols; column += l.block, at += block_bytes) {
        const size_t ahead = at + SIDE_AHEAD;
        const bool is_next = ahead >= in->step;
        const size_t ahead_step = is_next ? in->next_step : in->step;
        struct rows rows = {.p = in->p + at, .is_interleaved = true, .has_ahead = has_heads(l),
                            .ahead = is_next ? in->next + (ahead - in->step) : in->p + ahead};
        for (unsigned b = 0; b < n_blocks; b++) {
            vf acc[COLUMN_TOKENS];
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                acc[t] = out[b][t];
            side_block(l, in, rows, column, n_tokens, &fetched, acc);
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                out[b][t] = acc[t];
            rows.p += in->step;
            rows.ahead += ahead_step;
        }
    }
}

#define SIDE(name, layout)                                                                         \
    static __attribute__((noinline)) void side_##name(const struct side *in, unsigned n_tokens,    \
                                                      vf out[SIDE_BLOCKS][COLUMN_TOKENS])          \
    {                                                                                              \
        if (n_tokens == 1)                                                                         \
            side_run(side_by_side(layout), in, 1, out);                                            \
        else                                                                                       \
            side_run(side_by_side(layout), in, 2, out);                                            \
    }
GGUF_LAYOUTS(SIDE)

#endif
