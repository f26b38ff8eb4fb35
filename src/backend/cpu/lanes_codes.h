/* Part of lanes.h: products with weights that are codes. Sixteen rows form a block, one row per
 * lane. With a few tokens, codes are multiplied as they come out of the rows, which are read once,
 * in order. With many tokens, codes are put into a panel first. Both give the same integers. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_CODES_H
#define FLASHMOE_BACKEND_CPU_LANES_CODES_H

#define SPAN 128       /* columns whose dot products are computed together */
#define PANEL_TOKENS 3 /* the minimum for which a panel pays off */
#define CHUNK 256      /* columns unpacked at a time: whole blocks of every format */

#include "backend/cpu/lanes_fold.h"
#include "backend/cpu/lanes_interleaved.h"

/* Both headers define struct row_block with `first` and `n`, row_block_at, matmul_few,
 * panel_tokens_of and panel_fill. */
#ifdef LEVEL_HAS_COLUMNS
#include "backend/cpu/lanes_columns.h"
#else
#include "backend/cpu/lanes_rows.h"
#endif

/* TILE_BLOCKS row blocks: codes [n_cols / 4][16][4] each, scales and biases [n_groups, 16]. */
struct panel {
    uint8_t *codes[TILE_BLOCKS];
    float *scales[TILE_BLOCKS], *biases[TILE_BLOCKS];
    struct row_block blocks[TILE_BLOCKS];
    unsigned n_blocks;
    const int8_t *tokens; /* in the order of the codes; NULL: the columns' own order */
};

struct tile {
    const int8_t *q[TILE_TOKENS];
    struct fold_inputs f[TILE_TOKENS]; /* scales and biases unused */
};

/* Multiplies one group of a tile. n_blocks and n_tokens are constants where this is inlined. */
INLINE void tile_group(const struct panel *p, const struct tile *tile, unsigned n_blocks,
                       unsigned n_tokens, size_t g, unsigned group, bool has_bias, bool is_wide,
                       vf acc[TILE_BLOCKS][TILE_TOKENS])
{
    vi dots[TILE_BLOCKS][TILE_TOKENS];
    UNROLL for (unsigned t = 0; t < n_tokens; t++) {
        const struct fold_inputs *f = &tile->f[t];
        const vi start = vi_set1(-surplus(f, has_bias, is_wide) * f->x_sum[g]);
        UNROLL for (unsigned b = 0; b < n_blocks; b++)
            dots[b][t] = start;
    }
    for (size_t i = g * group; i < (g + 1) * group; i += KERNEL_SMALLEST_GROUP) {
        vx x[TILE_TOKENS];
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            x[t] = vx_load(tile->q[t] + i);
        UNROLL for (unsigned k = 0; k < KERNEL_SMALLEST_GROUP / 4; k++) {
            vc codes[TILE_BLOCKS];
            UNROLL for (unsigned b = 0; b < n_blocks; b++)
                codes[b] = vc_load(p->codes[b] + (i + 4 * k) * LANES);
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                UNROLL for (unsigned b = 0; b < n_blocks; b++)
                    dots[b][t] = vi_dot4_of(dots[b][t], codes[b], x[t], k, is_wide);
        }
    }
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        UNROLL for (unsigned b = 0; b < n_blocks; b++)
            acc[b][t] = fold(acc[b][t], dots[b][t], p->scales[b] + g * LANES,
                             p->biases[b] + g * LANES, has_bias, tile->f[t].x_scale[g],
                             tile->f[t].x_offset[g]);
}

INLINE void tile_run(const struct kernel_matmul *m, const struct panel *p, size_t t0,
                     unsigned n_blocks, unsigned n_tokens, bool has_bias, bool is_wide)
{
    const unsigned group = m->w->quant->group;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / group;
    struct tile tile;
    vf acc[TILE_BLOCKS][TILE_TOKENS];
    for (unsigned t = 0; t < n_tokens; t++) {
        tile.q[t] = p->tokens != NULL ? p->tokens + (t0 + t) * n_cols
                                      : m->in.q + kernel_pick(m, t0 + t) * n_cols;
        tile.f[t] = fold_inputs_of(m, t0 + t, n_groups, NULL, NULL);
        for (unsigned b = 0; b < n_blocks; b++)
            acc[b][t] = vf_zero();
    }
    for (size_t g = 0; g < n_groups; g++)
        tile_group(p, &tile, n_blocks, n_tokens, g, group, has_bias, is_wide, acc);
    for (unsigned t = 0; t < n_tokens; t++)
        for (unsigned b = 0; b < n_blocks; b++)
            store_rows(m, p->blocks[b].first, p->blocks[b].n, p->blocks[b].lane, t0 + t,
                       acc[b][t]);
}

INLINE void panel_tokens(const struct kernel_matmul *m, const struct panel *p, unsigned n_blocks,
                         bool has_bias, bool is_wide)
{
    size_t t = 0;
    for (; t + TILE_TOKENS <= m->n; t += TILE_TOKENS)
        tile_run(m, p, t, n_blocks, TILE_TOKENS, has_bias, is_wide);
    for (; t + 2 <= m->n; t += 2)
        tile_run(m, p, t, n_blocks, 2, has_bias, is_wide);
    if (t < m->n)
        tile_run(m, p, t, n_blocks, 1, has_bias, is_wide);
}

#define PANEL(has_bias, is_wide)                                                                   \
    (TILE_BLOCKS > 1 && p->n_blocks == 1 ? panel_tokens(m, p, 1, has_bias, is_wide)                \
                                         : panel_tokens(m, p, TILE_BLOCKS, has_bias, is_wide))

#ifdef LEVEL_HAS_PANEL_MULTIPLY
static void panel_multiply(const struct kernel_matmul *m, const struct panel *p);
#else
static void panel_multiply(const struct kernel_matmul *m, const struct panel *p)
{
    const struct quant *quant = m->w->quant;
    if (quant->has_bias)
        quant->has_wide_codes ? PANEL(true, true) : PANEL(true, false);
    else
        quant->has_wide_codes ? PANEL(false, true) : PANEL(false, false);
}
#endif

/* scratch, all at multiples of 64 bytes: one chunk of codes, then per block the panel's codes,
 * scales and biases, at most 4 * n_cols + 2 * n_cols floats per block, then the inputs. */
static void matmul_panel(const struct kernel_matmul *m)
{
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / m->w->quant->group;
    uint8_t *chunk = (uint8_t *)m->scratch;
    float *at = m->scratch + LANES * CHUNK / sizeof(float);
    struct panel p = {.tokens = NULL};
    for (unsigned b = 0; b < TILE_BLOCKS; b++) {
        p.codes[b] = (uint8_t *)at;
        p.scales[b] = at + n_cols * LANES / sizeof(float);
        p.biases[b] = p.scales[b] + n_groups * LANES;
        at = p.biases[b] + n_groups * LANES;
    }
    p.tokens = panel_tokens_of(m, (int8_t *)at);
    for (size_t r = m->begin; r < m->end;) {
        for (p.n_blocks = 0; p.n_blocks < TILE_BLOCKS && r < m->end; p.n_blocks++) {
            row_block_at(m, r, &p.blocks[p.n_blocks]);
            const unsigned b = p.n_blocks;
            panel_fill(m, &p.blocks[b], chunk, p.codes[b], p.scales[b], p.biases[b]);
            r += p.blocks[p.n_blocks].n;
        }
        panel_multiply(m, &p);
    }
}

static void matmul(const struct kernel_matmul *m)
{
    if (m->w->quant->codes == QUANT_NO_CODES)
        matmul_float(m);
    else if (is_interleaved_apart(m->w) && m->n <= INTERLEAVED_MOST)
        matmul_interleaved(m);
    else if (m->n >= PANEL_TOKENS)
        matmul_panel(m);
    else
        matmul_few(m);
}

#endif
