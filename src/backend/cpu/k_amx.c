/* AMX int8 tiles on top of AVX-512 with VNNI, for products with many tokens. One tile instruction
 * multiplies 16 tokens with 16 weight rows over 64 columns. The rest of the work is the fold over
 * groups. */
#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/lanes_avx512.h"
#include "base/mem.h"

/* This file uses only the panels of lanes.h. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "backend/cpu/lanes.h"

#define TILE_ROWS 16
#define TILE_BYTES 64 /* per tile row */

/* Tile registers 0 to 3 hold sums, 4 and 6 tokens, 5 and 7 codes. The intrinsics need literals. */

/* The layout that the processor reads. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void configure_tiles(unsigned step, unsigned n_tokens)
{
    struct tile_config c = {.palette = 1};
    for (unsigned i = 0; i < 8; i++) {
        c.rows[i] = TILE_ROWS;
        c.row_bytes[i] = TILE_BYTES;
    }
    c.rows[0] = c.rows[1] = c.rows[2] = c.rows[3] = c.rows[4] = c.rows[6] = (uint8_t)n_tokens;
    c.row_bytes[4] = c.row_bytes[6] = (uint16_t)step;
    c.rows[5] = c.rows[7] = (uint8_t)(step / 4);
    /* gcc 12 assumes that the instruction reads eight bytes and drops stores to the others. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

/* The tokens of one product, sixteen at a time, their columns in the order of the panel's codes. */
struct tokens {
    int8_t *codes;   /* [n / 16][n_cols / step][16][step] */
    float *scale;    /* [n / 16][n_groups][16] */
    float *offset;   /* the same */
    int32_t *start;  /* the same: initial values of the sums */
    unsigned step;   /* columns per instruction: a group, at most 64 */
};

/* Tokens are folded four at a time. The padding after the last token has factors that cost no
 * time. */
static void pad_tokens(size_t n, size_t n_groups, const struct tokens *to)
{
    for (size_t t = n; t % 4 != 0; t++)
        for (size_t g = 0; g < n_groups; g++) {
            const size_t at = t / TILE_ROWS * TILE_ROWS * n_groups + g * TILE_ROWS + t % TILE_ROWS;
            to->scale[at] = to->offset[at] = 0;
        }
}

static void gather_tokens(const struct kernel_matmul *m, const struct tokens *to)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group, step = to->step;
    for (size_t t = 0; t < m->n; t++) {
        const size_t row = kernel_pick(m, t), in_tile = t % TILE_ROWS;
        const size_t block = t / TILE_ROWS * TILE_ROWS;
        const int8_t *from = m->in.q + row * n_cols;
        int8_t *codes = to->codes + block * n_cols + in_tile * step;
        for (size_t at = 0; at < n_cols; at += step)
            order_token(m->w, from + at, step, codes + at * TILE_ROWS);
        for (size_t g = 0; g < n_groups; g++) {
            const size_t at = block * n_groups + g * TILE_ROWS + in_tile;
            to->scale[at] = m->in.scale[row * n_groups + g];
            to->offset[at] = m->in.offset[row * n_groups + g];
            to->start[at] = -(int32_t)quant->zero * m->in.sum[row * n_groups + g];
        }
    }
    pad_tokens(m->n, n_groups, to);
}

/* Computes the sums of group g, with one instruction per `step` columns. */
#define GROUP_SUMS(s, t, c, g)                                                                     \
    do {                                                                                           \
        _tile_zero(s);                                                                             \
        for (size_t at = (g) * in->group; at < ((g) + 1) * in->group; at += in->step) {            \
            _tile_loadd(t, in->tokens + at * TILE_ROWS, in->step);                                 \
            _tile_loadd(c, in->codes + at * LANES, TILE_BYTES);                                    \
            _tile_dpbsud(s, t, c);                                                                 \
        }                                                                                          \
    } while (0)

struct tile_operands {
    const int8_t *tokens;
    const uint8_t *codes;
    size_t group, step;
};

typedef int32_t tile_sums[TILE_ROWS * LANES];

/* Computes the sums of groups 2 * pair and 2 * pair + 1. Successive pairs use different
 * registers. */
INLINE void pair_sums(const struct tile_operands *in, size_t pair, size_t n_groups)
{
    const size_t g = 2 * pair;
    if (pair % 2 == 0) {
        GROUP_SUMS(0, 4, 5, g);
        if (g + 1 < n_groups)
            GROUP_SUMS(1, 6, 7, g + 1);
    } else {
        GROUP_SUMS(2, 4, 5, g);
        if (g + 1 < n_groups)
            GROUP_SUMS(3, 6, 7, g + 1);
    }
}

INLINE void pair_store(size_t pair, tile_sums to[4])
{
    if (pair % 2 == 0) {
        _tile_stored(0, to[0], TILE_BYTES);
        _tile_stored(1, to[1], TILE_BYTES);
    } else {
        _tile_stored(2, to[2], TILE_BYTES);
        _tile_stored(3, to[3], TILE_BYTES);
    }
}

/* Folds one group of one token. */
INLINE vf fold_token(vf acc, vf scale, vf bias, const int32_t *sums, const struct tokens *tokens,
                     size_t at, bool has_bias)
{
    vi dots = _mm512_load_si512(sums);
    if (!has_bias)
        dots = vi_add(dots, vi_set1(tokens->start[at]));
    acc = vf_fma(vf_mul(scale, vf_set1(tokens->scale[at])), vf_of_vi(dots), acc);
    return has_bias ? vf_fma(bias, vf_set1(tokens->offset[at]), acc) : acc;
}

/* Multiplies n tokens from t0 on with one row block. n and has_bias are constants where this is
 * inlined. The tile unit computes the next pair of groups while this one is folded. */
INLINE void tile_block(const struct kernel_matmul *m, const struct panel *p,
                       const struct tokens *tokens, struct ahead *ahead, size_t t0, unsigned n,
                       bool has_bias)
{
    const size_t n_groups = m->w->n_cols / m->w->quant->group, n_pairs = (n_groups + 1) / 2;
    const struct tile_operands in = {tokens->codes + t0 * m->w->n_cols, p->codes[0],
                                     m->w->quant->group, tokens->step};
    const size_t n_ahead = (ahead->n_steps + n_pairs - 1) / n_pairs;
    _Alignas(64) tile_sums sums[4];
    vf acc[TILE_ROWS];
    for (unsigned t = 0; t < n; t++)
        acc[t] = vf_zero();
    pair_sums(&in, 0, n_groups);
    pair_store(0, sums);
    for (size_t pair = 0; pair < n_pairs; pair++) {
        if (pair + 1 < n_pairs)
            pair_sums(&in, pair + 1, n_groups);
        if (t0 == 0)
            ahead_fetch(ahead, n_ahead);
        for (size_t g = 2 * pair; g < 2 * pair + 2 && g < n_groups; g++) {
            const vf scale = vf_load(p->scales[0] + g * LANES);
            const vf bias = has_bias ? vf_load(p->biases[0] + g * LANES) : vf_zero();
            const size_t at = t0 * n_groups + g * TILE_ROWS;
            for (unsigned t = 0; t < n; t++)
                acc[t] = fold_token(acc[t], scale, bias, sums[g % 4] + t * LANES, tokens, at + t,
                                    has_bias);
        }
        if (pair + 1 < n_pairs)
            pair_store(pair + 1, sums);
    }
    for (unsigned t = 0; t < n; t++)
        store_rows(m, p->blocks[0].first, p->blocks[0].n, p->blocks[0].lane, t0 + t, acc[t]);
}

static void tile_tokens(const struct kernel_matmul *m, const struct panel *p,
                        const struct tokens *tokens, struct ahead *ahead)
{
    const bool has_bias = m->w->quant->has_bias;
    size_t t = 0;
    for (; t + TILE_ROWS <= m->n; t += TILE_ROWS)
        has_bias ? tile_block(m, p, tokens, ahead, t, TILE_ROWS, true)
                 : tile_block(m, p, tokens, ahead, t, TILE_ROWS, false);
    if (t < m->n)
        tile_block(m, p, tokens, ahead, t, (unsigned)(m->n - t), has_bias);
}

static void tile_panels(const struct kernel_matmul *m, struct panel *p, const struct tokens *tokens)
{
    configure_tiles(tokens->step, TILE_ROWS);
    for (size_t r = m->begin; r < m->end; r += p->blocks[0].n) {
        row_block_at(m, r, &p->blocks[0]);
        panel_fill(m, &p->blocks[0], 0, m->w->n_cols, NULL, p->codes[0], p->scales[0],
                   p->biases[0]);
        struct ahead ahead = ahead_after(m, r + p->blocks[0].n, LANES);
        tile_tokens(m, p, tokens, &ahead);
    }
}

/* ---- interleaved rows ------------------------------------------------------------------------
 * Nibbles and bytes need no panel. The part of a group that a tile needs is unpacked while the
 * groups before it are multiplied and folded, and never leaves the L1 cache. */

/* Unpack this many groups before the tile unit needs them: loading a tile from bytes that were just
 * stored is slow. */
#define UNPACKED_AHEAD 4
#define UNPACKED_GROUPS 8 /* at least UNPACKED_AHEAD - 1: those that are not loaded yet */
#define MAX_GROUP 128

struct unpacked {
    _Alignas(64) uint8_t codes[UNPACKED_GROUPS][MAX_GROUP * LANES];
    _Alignas(64) tile_sums sums[2];
};

/* A row block with at most 16 tokens. Constants where the functions below are inlined: kind, group,
 * and n, the number of tokens rounded up. */
struct tile_product {
    const struct interleaved *in;
    const struct tokens *tokens;
    const int8_t *token_codes; /* of these tokens */
    size_t factors;            /* where their factors begin in scale and offset */
    bool is_first;             /* the first product with this row block */
    struct unpacked *unpacked;
};

INLINE void unpack_group(const struct tile_product *p, size_t g, enum interleaved_kind kind,
                         unsigned group)
{
    const uint8_t *from = p->in->codes + g * group * LANES / 2;
    uint8_t *to = p->unpacked->codes[g % UNPACKED_GROUPS];
    UNROLL for (unsigned i = 0; i < group; i += 8) {
        const vc x = vc_load(from + i / 2 * LANES);
        vc_store(to + i * LANES, nibbles_of(vc_low_nibbles(x), kind));
        vc_store(to + (i + 4) * LANES, nibbles_of(vc_high_nibbles(x), kind));
    }
}

/* Computes the sums of group g in tile s. t and c are tiles for tokens and codes. */
#define TILE_GROUP(s, t, c, g)                                                                     \
    do {                                                                                           \
        const unsigned step = group < TILE_BYTES ? group : TILE_BYTES;                             \
        const uint8_t *codes = kind == KIND_EIGHT ? p->in->codes + (g) * group * LANES             \
                                                  : p->unpacked->codes[(g) % UNPACKED_GROUPS];     \
        const int8_t *rows = p->token_codes + (g) * group * TILE_ROWS;                             \
        _tile_zero(s);                                                                             \
        UNROLL for (unsigned at = 0; at < group; at += step) {                                     \
            _tile_loadd(t, rows + at * TILE_ROWS, step);                                           \
            _tile_loadd(c, codes + at * LANES, TILE_BYTES);                                        \
            _tile_dpbsud(s, t, c);                                                                 \
        }                                                                                          \
    } while (0)
#define TILE_STORE(s) _tile_stored(s, p->unpacked->sums[s], TILE_BYTES)

/* Prefetches the same group of the next row block. */
INLINE void fetch_next(const struct interleaved *in, size_t g, enum interleaved_kind kind,
                       unsigned group)
{
    const size_t bytes = (size_t)group * LANES * kind_bits(kind) / 8, at = g * bytes;
    if (at >= in->next.codes_step)
        return;
    UNROLL for (size_t i = 0; i < bytes; i += MEM_CACHE_LINE)
        __builtin_prefetch(in->next.codes + at + i, 0, 2);
    fetch_scales(in, g, 0, kind);
}

INLINE void fold_group(const struct tile_product *p, size_t g, enum interleaved_kind kind,
                       unsigned n, vf acc[TILE_ROWS])
{
    const struct interleaved *in = p->in;
    const bool has_bias = KIND_HAS_BIAS(kind);
    const vf scale = scales_at(in->scales, g, kind, in->is_f16);
    const vf bias = has_bias ? scales_at(in->biases, g, kind, in->is_f16) : vf_zero();
    UNROLL for (unsigned t = 0; t < n; t++)
        acc[t] = fold_token(acc[t], scale, bias, p->unpacked->sums[g % 2] + t * LANES, p->tokens,
                            p->factors + g * TILE_ROWS + t, has_bias);
}

/* Beside group g, group g + 2 is multiplied and the sums of g + 1 are stored. */
INLINE void tile_row_block(const struct tile_product *p, enum interleaved_kind kind,
                           unsigned group, unsigned n, vf out[TILE_ROWS])
{
    const size_t n_groups = p->in->n_groups;
    vf acc[TILE_ROWS];
    UNROLL for (unsigned t = 0; t < n; t++)
        acc[t] = vf_zero();
    for (size_t g = 0; kind != KIND_EIGHT && g < UNPACKED_AHEAD && g < n_groups; g++)
        unpack_group(p, g, kind, group);
    TILE_GROUP(0, 4, 5, 0);
    if (n_groups > 1)
        TILE_GROUP(1, 6, 7, 1);
    TILE_STORE(0);
    for (size_t g = 0; g < n_groups; g++) {
        const bool is_even = g % 2 == 0;
        if (kind != KIND_EIGHT && g + UNPACKED_AHEAD < n_groups)
            unpack_group(p, g + UNPACKED_AHEAD, kind, group);
        if (g + 2 < n_groups && is_even)
            TILE_GROUP(0, 4, 5, g + 2);
        else if (g + 2 < n_groups)
            TILE_GROUP(1, 6, 7, g + 2);
        if (p->is_first)
            fetch_next(p->in, g, kind, group);
        if (g + 1 < n_groups && is_even)
            TILE_STORE(1);
        else if (g + 1 < n_groups)
            TILE_STORE(0);
        fold_group(p, g, kind, n, acc);
    }
    UNROLL for (unsigned t = 0; t < n; t++)
        out[t] = acc[t];
}

#define TILE_ROW_BLOCK(n)                                                                          \
    static __attribute__((noinline)) void tile_row_block_##n(const struct tile_product *p,         \
                                                             vf out[TILE_ROWS])                    \
    {                                                                                              \
        const bool is_wide = p->in->kind == KIND_EIGHT;                                            \
        switch (p->in->group) {                                                                    \
        case 32:                                                                                   \
            if (p->in->kind == KIND_FP4)                                                           \
                tile_row_block(p, KIND_FP4, 32, n, out);                                           \
            else if (p->in->kind == KIND_INT4)                                                     \
                tile_row_block(p, KIND_INT4, 32, n, out);                                          \
            else                                                                                   \
                is_wide ? tile_row_block(p, KIND_EIGHT, 32, n, out)                                \
                        : tile_row_block(p, KIND_FOUR, 32, n, out);                                \
            break;                                                                                 \
        case 64:                                                                                   \
            is_wide ? tile_row_block(p, KIND_EIGHT, 64, n, out)                                    \
                    : tile_row_block(p, KIND_FOUR, 64, n, out);                                    \
            break;                                                                                 \
        default:                                                                                   \
            assert(p->in->group == MAX_GROUP);                                                     \
            is_wide ? tile_row_block(p, KIND_EIGHT, MAX_GROUP, n, out)                             \
                    : tile_row_block(p, KIND_FOUR, MAX_GROUP, n, out);                             \
        }                                                                                          \
    }
TILE_ROW_BLOCK(4)
TILE_ROW_BLOCK(8)
TILE_ROW_BLOCK(12)
TILE_ROW_BLOCK(16)

static void tile_interleaved(const struct kernel_matmul *m, const struct tokens *tokens)
{
    static void (*const functions[])(const struct tile_product *, vf *) = {
        tile_row_block_4, tile_row_block_8, tile_row_block_12, tile_row_block_16};
    struct unpacked unpacked;
    for (size_t t0 = 0; t0 < m->n; t0 += TILE_ROWS) {
        const size_t n = m->n - t0 < TILE_ROWS ? m->n - t0 : TILE_ROWS, fours = (n + 3) / 4;
        struct interleaved in = interleaved_of(m->w);
        const struct tile_product p = {
            .in = &in, .tokens = tokens, .token_codes = tokens->codes + t0 * m->w->n_cols,
            .factors = t0 * in.n_groups, .is_first = t0 == 0, .unpacked = &unpacked};
        if (t0 == 0 || n < TILE_ROWS)
            configure_tiles(tokens->step, (unsigned)fours * 4);
        interleaved_move(&in, m->begin / LANES);
        for (size_t r = m->begin; r < m->end; r += LANES, interleaved_move(&in, 1)) {
            vf out[TILE_ROWS];
            interleaved_find_next(m, r, 1, &in);
            functions[fours - 1](&p, out);
            for (size_t t = 0; t < n; t++)
                vf_store(kernel_out(m, t0 + t, r), out[t]);
        }
    }
}

/* ---- the product ----------------------------------------------------------------------------- */

/* True if products with more than FEW_TOKENS tokens unpack no panel. */
static bool is_direct(const struct weight *w)
{
    return is_interleaved_apart(w) && !has_planes(w);
}

/* scratch: one block of the panel, then the tokens. For 16 tokens, a column takes at most 16 bytes
 * of codes and 12 of factors. */
static void matmul_tiles(const struct kernel_matmul *m)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group;
    const size_t n = (m->n + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    struct panel p = {.n_blocks = 1};
    p.codes[0] = (uint8_t *)m->scratch;
    p.scales[0] = (float *)(void *)p.codes[0] + n_cols * LANES / sizeof(float);
    p.biases[0] = p.scales[0] + n_groups * LANES;
    struct tokens tokens = {.step = quant->group < TILE_BYTES ? quant->group : TILE_BYTES};
    tokens.scale = p.biases[0] + n_groups * LANES;
    tokens.offset = tokens.scale + n * n_groups;
    tokens.start = (int32_t *)(void *)(tokens.offset + n * n_groups);
    tokens.codes = (int8_t *)(tokens.start + n * n_groups);
    if (!m->has_same_inputs)
        gather_tokens(m, &tokens);
    if (is_direct(m->w))
        tile_interleaved(m, &tokens);
    else
        tile_panels(m, &p, &tokens);
    _tile_release();
}

static void matmul_amx(const struct kernel_matmul *m)
{
    const size_t n_few = is_direct(m->w) ? FEW_TOKENS : PANEL_TOKENS - 1;
    if (m->w->quant->codes != QUANT_NO_CODES && m->n > n_few)
        matmul_tiles(m);
    else
        k_avx512_matmul(m);
}

static uint64_t tile_peak(uint64_t n_rounds)
{
    configure_tiles(TILE_BYTES, TILE_ROWS);
    for (uint64_t i = 0; i < n_rounds; i++) {
        _tile_dpbsud(0, 4, 5);
        _tile_dpbsud(1, 4, 5);
        _tile_dpbsud(2, 4, 5);
        _tile_dpbsud(3, 4, 5);
    }
    _tile_release();
    return n_rounds * 4 * TILE_ROWS * LANES * TILE_BYTES * 2;
}

void k_amx_init(struct kernels *table)
{
    table->name = "amx";
    table->matmul = matmul_amx;
    table->int8_peak = tile_peak;
}
