/* AMX int8 tiles over AVX-512 with VNNI: products with many tokens. One tile instruction multiplies
 * 16 tokens with 16 weight rows over 64 columns; what is left is the fold over groups. */
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/lanes_avx512.h"
#include "base/mem.h"

/* Only panels are used of what is here. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "backend/cpu/lanes.h"

#define TILE_ROWS 16
#define TILE_BYTES 64 /* of one tile row */

/* Tile registers 0 to 3 hold sums, 4 and 6 tokens, 5 and 7 codes. The intrinsics want literals. */

/* The layout the processor reads. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void configure_tiles(unsigned step)
{
    struct tile_config c = {.palette = 1};
    for (unsigned i = 0; i < 8; i++) {
        c.rows[i] = TILE_ROWS;
        c.row_bytes[i] = TILE_BYTES;
    }
    c.row_bytes[4] = c.row_bytes[6] = (uint16_t)step;
    c.rows[5] = c.rows[7] = (uint8_t)(step / 4);
    /* gcc 12 believes that the instruction reads eight bytes and drops stores to the others. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

/* The tokens of one product, sixteen at a time, their columns in the order of the panel's codes. */
struct tokens {
    int8_t *codes;   /* [n / 16][n_cols / step][16][step] */
    float *scale;    /* [n / 16][n_groups][16] */
    float *offset;   /* the same */
    int32_t *start;  /* the same: what sums begin with */
    unsigned step;   /* columns that one instruction takes: a group, or 64 of a longer one */
};

static void gather_tokens(const struct kernel_matmul *m, const struct tokens *to)
{
    const struct quant *quant = m->w->quant;
    const size_t n_cols = m->w->n_cols, n_groups = n_cols / quant->group, step = to->step;
    const bool is_split = has_order(quant);
    for (size_t t = 0; t < m->n; t++) {
        const size_t row = kernel_pick(m, t), in_tile = t % TILE_ROWS;
        const size_t block = t / TILE_ROWS * TILE_ROWS;
        const int8_t *from = m->in.q + row * n_cols;
        int8_t *codes = to->codes + block * n_cols + in_tile * step;
        for (size_t at = 0; at < n_cols; at += step)
            if (is_split)
                order_columns(quant, from + at, step, codes + at * TILE_ROWS);
            else
                memcpy(codes + at * TILE_ROWS, from + at, step);
        for (size_t g = 0; g < n_groups; g++) {
            const size_t at = block * n_groups + g * TILE_ROWS + in_tile;
            to->scale[at] = m->in.scale[row * n_groups + g];
            to->offset[at] = m->in.offset[row * n_groups + g];
            to->start[at] = -(int32_t)quant->zero * m->in.sum[row * n_groups + g];
        }
    }
}

/* The sums of group g: an instruction for each `step` columns. */
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

/* The sums of groups 2 * pair and the next, each pair in other registers than the last. */
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

/* One token's fold of one group. */
INLINE vf fold_token(vf acc, vf scale, vf bias, const int32_t *sums, const struct tokens *tokens,
                     size_t at, bool has_bias)
{
    vi dots = _mm512_load_si512(sums);
    if (!has_bias)
        dots = vi_add(dots, vi_set1(tokens->start[at]));
    acc = vf_fma(vf_mul(scale, vf_set1(tokens->scale[at])), vf_of_vi(dots), acc);
    return has_bias ? vf_fma(bias, vf_set1(tokens->offset[at]), acc) : acc;
}

/* The weights of the next row block. They are asked for while the tiles work: the panel would wait
 * for memory otherwise. */
struct ahead {
    const char *parts[QUANT_MAX_PARTS];
    size_t bytes[QUANT_MAX_PARTS];
    unsigned n_parts;
};

static struct ahead ahead_of(const struct weight *w, size_t row)
{
    struct ahead a = {.n_parts = w->quant->n_parts};
    for (unsigned i = 0; i < a.n_parts; i++) {
        const size_t n = w->n_rows - row < LANES ? w->n_rows - row : LANES;
        const size_t first = quant_part_row(w->quant, i, row);
        const size_t row_bytes = quant_part_row_bytes(w->quant, i, w->n_cols);
        a.parts[i] = (const char *)w->parts[i] + first * row_bytes;
        a.bytes[i] = (quant_part_row(w->quant, i, row + n - 1) + 1 - first) * row_bytes;
    }
    return a;
}

INLINE void ahead_fetch(const struct ahead *a, size_t step, size_t n_steps)
{
    for (unsigned i = 0; i < a->n_parts; i++) {
        const char *at = a->parts[i] + a->bytes[i] * step / n_steps;
        const char *end = a->parts[i] + a->bytes[i] * (step + 1) / n_steps;
        for (; at < end; at += MEM_CACHE_LINE)
            __builtin_prefetch(at, 0, 2);
    }
}

/* n tokens from t0 on with one row block; n and has_bias are constants where this is inlined. The
 * tile unit finds the next pair of groups while this one is folded. */
INLINE void tile_block(const struct kernel_matmul *m, const struct panel *p,
                       const struct tokens *tokens, const struct ahead *ahead, size_t t0,
                       unsigned n, bool has_bias)
{
    const size_t n_groups = m->w->n_cols / m->w->quant->group, n_pairs = (n_groups + 1) / 2;
    const struct tile_operands in = {tokens->codes + t0 * m->w->n_cols, p->codes[0],
                                     m->w->quant->group, tokens->step};
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
            ahead_fetch(ahead, pair, n_pairs);
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
                        const struct tokens *tokens, const struct ahead *ahead)
{
    const bool has_bias = m->w->quant->has_bias;
    size_t t = 0;
    for (; t + TILE_ROWS <= m->n; t += TILE_ROWS)
        has_bias ? tile_block(m, p, tokens, ahead, t, TILE_ROWS, true)
                 : tile_block(m, p, tokens, ahead, t, TILE_ROWS, false);
    if (t < m->n)
        tile_block(m, p, tokens, ahead, t, (unsigned)(m->n - t), has_bias);
}

/* scratch: one block of the panel, then the tokens: for 16 of them at most 16
 * bytes of codes and 12 of factors a column. */
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
    configure_tiles(tokens.step);
    for (size_t r = m->begin; r < m->end; r += p.blocks[0].n) {
        row_block_at(m, r, &p.blocks[0]);
        panel_fill(m, &p.blocks[0], NULL, p.codes[0], p.scales[0], p.biases[0]);
        const size_t next = r + p.blocks[0].n;
        struct ahead ahead = {.n_parts = 0};
        if (next < m->end)
            ahead = ahead_of(m->w, next);
        else if (m->next != NULL)
            ahead = ahead_of(m->next, m->next_row);
        tile_tokens(m, &p, &tokens, &ahead);
    }
    _tile_release();
}

static void matmul_amx(const struct kernel_matmul *m)
{
    if (m->w->quant->codes != QUANT_NO_CODES && m->n >= PANEL_TOKENS)
        matmul_tiles(m);
    else
        k_avx512_matmul(m);
}

static uint64_t tile_peak(uint64_t n_rounds)
{
    configure_tiles(TILE_BYTES);
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
