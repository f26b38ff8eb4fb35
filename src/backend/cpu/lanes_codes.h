/* Part of lanes.h: products with weights that are codes. Sixteen rows form a block, one row per
 * lane. With a few tokens, codes are multiplied as they come out of the rows, which are read once,
 * in order. With many tokens, codes are put into a panel first. Both give the same integers. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_CODES_H
#define FLASHMOE_BACKEND_CPU_LANES_CODES_H

#define SPAN 128       /* columns whose dot products are computed together */
#define PANEL_TOKENS 3 /* the minimum for which a panel pays off */
#define CHUNK 256      /* columns unpacked or gathered at a time: whole blocks of every format */

#include "backend/cpu/lanes_ahead.h"
#include "backend/cpu/lanes_fold.h"
#include "backend/cpu/lanes_gather.h"
#ifdef LEVEL_HAS_COLUMNS
#include "backend/cpu/lanes_planes.h"
#endif
#include "backend/cpu/lanes_interleaved.h"

/* Both headers define struct row_block with `first` and `n`, row_block_at, matmul_few, order_token
 * and panel_fill. */
#ifdef LEVEL_HAS_COLUMNS
#include "backend/cpu/lanes_columns.h"
#else
#include "backend/cpu/lanes_rows.h"
#endif

/* Columns of a panel, whole chunks: so many that the codes of TILE_BLOCKS row blocks stay in the L1
 * cache while all tokens are multiplied with them. */
#ifndef SLICE_COLUMNS
#define SLICE_COLUMNS 512
#endif
_Static_assert(SLICE_COLUMNS == SIZE_MAX || SLICE_COLUMNS % CHUNK == 0, "slices are whole chunks");

/* Columns [begin, end) of TILE_BLOCKS row blocks: codes [columns / 4][16][4] each, unless the level
 * has its own panel_multiply, scales and biases [groups][16]. */
struct panel {
    uint8_t *codes[TILE_BLOCKS];
    float *scales[TILE_BLOCKS], *biases[TILE_BLOCKS];
    struct row_block blocks[TILE_BLOCKS];
    unsigned n_blocks; /* that count; the others repeat the first */
    size_t begin, end;
    size_t first_group, end_group, n_groups; /* n_groups: of whole rows */
    struct gathered tokens; /* tile after tile, unless the level has its own panel_gather */
    float *sums; /* [n][TILE_BLOCKS][16], of the columns before `begin` */
};

_Static_assert(TILE_TOKENS == 4 || TILE_TOKENS == 6, "panel_tiles has these sizes");

/* ---- tiles ------------------------------------------------------------------------------------
 * Their sizes differ by one at most: a small one at the end would leave the multipliers waiting for
 * its sums. */

struct tile_sizes {
    size_t n_tiles, n_each, n_larger;
};

static struct tile_sizes tile_sizes_of(size_t n)
{
    const size_t n_tiles = (n + TILE_TOKENS - 1) / TILE_TOKENS;
    return (struct tile_sizes){n_tiles, n / n_tiles, n % n_tiles};
}

static size_t tile_size(const struct tile_sizes *sizes, size_t tile)
{
    return sizes->n_each + (tile < sizes->n_larger);
}

/* Returns where the tile that begins with token t0 has its tokens. */
static struct gathered gathered_tile(const struct panel *p, size_t t0, size_t n_cols)
{
    return (struct gathered){.codes = p->tokens.codes + t0 * n_cols,
                             .factors = p->tokens.factors + 3 * t0 * p->n_groups};
}

/* Multiplies one group of a tile. n_tokens, has_bias and is_wide are constants where this is
 * inlined. */
INLINE void tile_group(const struct panel *p, const int8_t *q, const float *factors,
                       unsigned n_tokens, size_t g, unsigned group, bool has_bias, bool is_wide,
                       vf acc[TILE_BLOCKS][TILE_TOKENS])
{
    const unsigned n_sums = n_tokens * TILE_BLOCKS < DOT_CHAINS ? 2 : 1;
    const bool has_start = !has_bias || (is_wide && WIDE_CODES_SHIFT != 0);
    const uint8_t *at[TILE_BLOCKS];
    vi dots[TILE_BLOCKS][TILE_TOKENS][2];
    UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++)
        at[b] = p->codes[b] + g * group * LANES;
    UNROLL for (unsigned t = 0; t < n_tokens; t++) {
        const vi start = has_start ? gathered_start(factors, n_tokens, t) : vi_set1(0);
        UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++) {
            dots[b][t][0] = start;
            dots[b][t][1] = vi_set1(0);
        }
    }
    for (size_t i = 0; i < group; i += GATHERED_COLUMNS) {
        vx x[TILE_TOKENS];
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            x[t] = vx_load(q + i * n_tokens + t * GATHERED_COLUMNS);
        UNROLL for (unsigned k = 0; k < GATHERED_COLUMNS / 4; k++) {
            vc codes[TILE_BLOCKS];
            UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++)
                codes[b] = vc_load(at[b] + (i + 4 * k) * LANES);
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++) {
                    vi *sum = &dots[b][t][k % n_sums];
                    *sum = vi_dot4_of(*sum, codes[b], x[t], k, is_wide);
                }
        }
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++)
                UNROLL for (unsigned k = 0; k < n_sums; k++)
                    KEEP_IN_PLACE(dots[b][t][k]);
    }
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++) {
            const vi sum = n_sums == 2 ? vi_add(dots[b][t][0], dots[b][t][1]) : dots[b][t][0];
            acc[b][t] = fold(acc[b][t], sum, p->scales[b] + g * LANES, p->biases[b] + g * LANES,
                             has_bias, factors[t], has_bias ? factors[n_tokens + t] : 0);
        }
}

/* Multiplies tokens from t0 on with the panel. n_ahead steps are prefetched beside each group. */
INLINE void tile_run(const struct kernel_matmul *m, const struct panel *p, size_t t0,
                     unsigned n_tokens, unsigned group, bool has_bias, bool is_wide,
                     struct ahead *ahead, size_t n_ahead)
{
    const size_t n_cols = m->w->n_cols, first = p->first_group;
    const struct gathered tokens = gathered_tile(p, t0, n_cols);
    const int8_t *q = tokens.codes + p->begin * n_tokens;
    const float *factors = tokens.factors + 3 * first * n_tokens;
    float *sums = p->sums + t0 * TILE_BLOCKS * LANES;
    vf acc[TILE_BLOCKS][TILE_TOKENS];
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++)
            acc[b][t] = p->begin == 0 ? vf_zero() : vf_load(sums + (t * TILE_BLOCKS + b) * LANES);
    for (size_t g = 0; g < p->end_group - first; g++) {
        ahead_fetch(ahead, n_ahead);
        tile_group(p, q, factors, n_tokens, g, group, has_bias, is_wide, acc);
        q += n_tokens * group;
        factors += 3 * n_tokens;
    }
    UNROLL for (unsigned t = 0; t < n_tokens; t++)
        UNROLL for (unsigned b = 0; b < TILE_BLOCKS; b++) {
            if (p->end < n_cols)
                vf_store(sums + (t * TILE_BLOCKS + b) * LANES, acc[b][t]);
            else if (b < p->n_blocks)
                store_rows(m, p->blocks[b].first, p->blocks[b].n, p->blocks[b].lane, t0 + t,
                           acc[b][t]);
        }
}

INLINE void panel_tiles(const struct kernel_matmul *m, const struct panel *p, bool has_bias,
                        bool is_wide, struct ahead *ahead)
{
    const struct tile_sizes sizes = tile_sizes_of(m->n);
    const size_t n_products = sizes.n_tiles * p->n_groups;
    const size_t n_ahead = (ahead->n_steps + n_products - 1) / n_products;
    const unsigned group = m->w->quant->group;
#define TILE(n_tokens)                                                                             \
    tile_run(m, p, t0, n_tokens, group, has_bias, is_wide, ahead, n_ahead)
    for (size_t t0 = 0, i = 0, n; t0 < m->n; t0 += n, i++) {
        n = tile_size(&sizes, i);
        switch (n) {
#if TILE_TOKENS == 4
        case 2: TILE(2); break;
        case 3: TILE(3); break;
        default: TILE(4); break;
#else
        case 3: TILE(3); break;
        case 4: TILE(4); break;
        case 5: TILE(5); break;
        default: TILE(6); break;
#endif
        }
    }
#undef TILE
}

#define PANEL_TILES(name, has_bias, is_wide)                                                       \
    static __attribute__((noinline)) void name(                                                    \
        const struct kernel_matmul *m, const struct panel *p, struct ahead *ahead)                 \
    {                                                                                              \
        panel_tiles(m, p, has_bias, is_wide, ahead);                                               \
    }

/* A level with its own panel_multiply also has its own panel_gather. It may use all scratch from
 * `at` on. */
#ifdef LEVEL_HAS_PANEL_MULTIPLY
static void panel_multiply(const struct kernel_matmul *m, const struct panel *p,
                           struct ahead *ahead);
static void panel_gather(const struct kernel_matmul *m, float *at, struct panel *p);
#else
/* Factors, sums, then codes. */
static void panel_gather(const struct kernel_matmul *m, float *at, struct panel *p)
{
    const size_t n = (m->n + LANES - 1) / LANES * LANES;
    p->tokens.factors = at;
    p->sums = at + 3 * n * p->n_groups;
    p->tokens.codes = (int8_t *)(p->sums + n * TILE_BLOCKS * LANES);
    const struct tile_sizes sizes = tile_sizes_of(m->n);
    for (size_t t0 = 0, i = 0; t0 < m->n && !m->has_same_inputs; t0 += tile_size(&sizes, i++)) {
        const struct gathered tile = gathered_tile(p, t0, m->w->n_cols);
        gather(m, t0, tile_size(&sizes, i), &tile);
    }
}

PANEL_TILES(panel_biases, true, false)
PANEL_TILES(panel_plain, false, false)
#if WIDE_CODES_SHIFT == 0
#define panel_biases_wide panel_biases
#define panel_plain_wide panel_plain
#else
PANEL_TILES(panel_biases_wide, true, true)
PANEL_TILES(panel_plain_wide, false, true)
#endif

static void panel_multiply(const struct kernel_matmul *m, const struct panel *p,
                           struct ahead *ahead)
{
    const struct quant *quant = m->w->quant;
    if (quant->has_bias)
        (quant->has_wide_codes ? panel_biases_wide : panel_biases)(m, p, ahead);
    else
        (quant->has_wide_codes ? panel_plain_wide : panel_plain)(m, p, ahead);
}
#endif

/* scratch, all at multiples of 64 bytes: one chunk of codes, then the panel's codes, scales and
 * biases of each block, then what panel_gather puts there. */
static struct panel panel_in(const struct kernel_matmul *m)
{
    const size_t n_cols = m->w->n_cols, group = m->w->quant->group;
    const size_t width = n_cols < SLICE_COLUMNS ? n_cols : SLICE_COLUMNS;
    float *at = m->scratch + LANES * CHUNK / sizeof(float);
    struct panel p = {.n_groups = n_cols / group};
    for (unsigned b = 0; b < TILE_BLOCKS; b++) {
        p.codes[b] = (uint8_t *)at;
        p.scales[b] = at + width * LANES / sizeof(float);
        p.biases[b] = p.scales[b] + width / group * LANES;
        at = p.biases[b] + width / group * LANES;
    }
    panel_gather(m, at, &p);
    return p;
}

/* Multiplies TILE_BLOCKS row blocks from row r on and returns the next row. A single one at the end
 * is multiplied twice, which is rare: threads take whole pairs. */
static size_t panel_blocks(const struct kernel_matmul *m, size_t r, struct panel p)
{
    const size_t n_cols = m->w->n_cols, group = m->w->quant->group;
    for (; p.n_blocks < TILE_BLOCKS && r < m->end; r += p.blocks[p.n_blocks++].n)
        row_block_at(m, r, &p.blocks[p.n_blocks]);
    struct ahead ahead = ahead_after(m, r, TILE_BLOCKS * LANES);
    for (unsigned b = p.n_blocks; b < TILE_BLOCKS; b++) {
        p.codes[b] = p.codes[0];
        p.scales[b] = p.scales[0];
        p.biases[b] = p.biases[0];
    }
    for (p.begin = 0; p.begin < n_cols; p.begin = p.end) {
        p.end = n_cols - p.begin < SLICE_COLUMNS ? n_cols : p.begin + SLICE_COLUMNS;
        p.first_group = p.begin / group;
        p.end_group = p.end / group;
        for (unsigned b = 0; b < p.n_blocks; b++)
            panel_fill(m, &p.blocks[b], p.begin, p.end, (uint8_t *)m->scratch, p.codes[b],
                       p.scales[b], p.biases[b]);
        panel_multiply(m, &p, &ahead);
    }
    return r;
}

static void matmul_panel(const struct kernel_matmul *m)
{
    const struct panel p = panel_in(m);
    for (size_t r = m->begin; r < m->end;)
        r = panel_blocks(m, r, p);
}

static void matmul(const struct kernel_matmul *m)
{
    if (m->w->quant->codes == QUANT_NO_CODES)
        matmul_float(m);
    else if (is_interleaved_apart(m->w) && m->n <= interleaved_max_tokens(m->w))
        matmul_interleaved(m);
    else if (m->n >= PANEL_TOKENS)
        matmul_panel(m);
    else
        matmul_few(m);
}

#endif
