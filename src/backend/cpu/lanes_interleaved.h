/* Part of lanes.h: weights whose rows are interleaved (interleave.h), with scales apart from codes.
 * A vector in memory is four bytes of each of sixteen rows, so nothing is transposed and the kernel
 * is limited by memory. Several row blocks are processed side by side, each a stream of its own,
 * because a single stream does not reach the full memory bandwidth (docs/BENCHMARKS.md). */
#ifndef FLASHMOE_BACKEND_CPU_LANES_INTERLEAVED_H
#define FLASHMOE_BACKEND_CPU_LANES_INTERLEAVED_H

#include <assert.h>

#include "quant/interleave.h"

/* Independent sums that hide a multiplication's latency. If there are fewer, each is split in two.
 * These two are for panels, too. */
#ifndef DOT_CHAINS
#define DOT_CHAINS 1
#endif
/* Ends a loop that adds to v, where gcc 12 would copy v from one register to another. */
#ifndef KEEP_IN_PLACE
#define KEEP_IN_PLACE(v) ((void)0)
#endif
/* Tokens that are multiplied with rows as they lie in memory. */
#ifndef INTERLEAVED_TOKENS
#define INTERLEAVED_TOKENS 2
#endif
/* The most tokens of a product that memory limits. */
#ifndef FEW_TOKENS
#define FEW_TOKENS INTERLEAVED_TOKENS
#endif

/* True if these kernels take the weight: interleaved, with its scales apart from its codes.
 * Blocks of GGUF hold both. */
INLINE bool is_interleaved_apart(const struct weight *w)
{
    return w->is_interleaved && w->quant->n_parts > 1;
}

#ifndef LEVEL_HAS_DOT4_OF
/* Sixteen columns of a token, and vi_dot4 with the k-th four of them. */
typedef const int8_t *vx;
INLINE vx vx_load(const int8_t *p) { return p; }
INLINE vi vi_dot4_of(vi acc, vc codes, vx x, unsigned k, bool is_wide)
{
    return vi_dot4(acc, codes, x + 4 * k, is_wide);
}
#endif

/* The same. is_once: only these rows are multiplied with the token. */
INLINE vi vi_dot4_maybe_once(vi acc, vc codes, vx x, unsigned k, bool is_wide, bool is_once)
{
#ifdef LEVEL_HAS_DOT4_ONCE
    if (is_once)
        return vi_dot4_once(acc, codes, x + 4 * k, is_wide);
#else
    (void)is_once;
#endif
    return vi_dot4_of(acc, codes, x, k, is_wide);
}

#ifdef LEVEL_HAS_COLUMNS
/* Extract codes in the form vi_dot4_of takes, from bytes as they lie in memory. */
INLINE vc vc_low_nibbles(vc x) { return vi_and(x, vi_set1(0x0f0f0f0f)); }
INLINE vc vc_high_nibbles(vc x) { return vi_and(vi_srl(x, 4), vi_set1(0x0f0f0f0f)); }
INLINE vc vc_wide(vc x) { return x; }
INLINE vc vc_lookup(const uint8_t table[16], vc x) { return vi_lookup(table, x); }
#endif

#ifndef LEVEL_HAS_MXFP4_SCALE
/* 2^(e - 128), in two factors because the smallest values are denormal. */
INLINE vf mxfp4_scale(vi e)
{
    const vi whole = vi_sub(e, vi_set1(128)), half = vi_half(whole), bias = vi_set1(127);
    return vf_mul(vf_of_bits(vi_shift_to_exponent(vi_add(half, bias))),
                  vf_of_bits(vi_shift_to_exponent(vi_add(vi_sub(whole, half), bias))));
}
#endif

/* How codes are stored: a constant where a function is inlined. FP4 is four bits with a table of
 * levels, INT4 is four bits without biases. */
enum interleaved_kind {
    KIND_FOUR,
    KIND_EIGHT,
    KIND_FP4,
    KIND_INT4,
    /* Their codes cross bytes or are in quarters of one: see lanes_planes.h. */
    KIND_TWO,
    KIND_THREE,
    KIND_FIVE,
    KIND_SIX
};
#define KIND_HAS_PLANES(kind) ((kind) >= KIND_TWO)
#define KIND_HAS_BIAS(kind) ((kind) != KIND_FP4 && (kind) != KIND_INT4)
#define KIND_SCALE_BYTES(kind) ((kind) == KIND_FP4 ? 1u : 2u)

INLINE unsigned kind_bits(enum interleaved_kind kind)
{
    switch (kind) {
    case KIND_EIGHT: return 8;
    case KIND_TWO: return 2;
    case KIND_THREE: return 3;
    case KIND_FIVE: return 5;
    case KIND_SIX: return 6;
    default: return 4;
    }
}

/* Columns that are unpacked together. */
INLINE unsigned kind_step(enum interleaved_kind kind)
{
    return kind == KIND_THREE || kind == KIND_FIVE ? 32 : 16;
}

/* True if an interleaved weight is of a kind with planes. */
INLINE bool has_planes(const struct weight *w)
{
    return w->quant->bits % 4 != 0;
}

/* The most tokens that rows are multiplied with as they lie in memory. Planes take registers. */
INLINE size_t interleaved_max_tokens(const struct weight *w)
{
    return has_planes(w) ? 2 : INTERLEAVED_TOKENS;
}

/* Puts the even columns, the lower nibbles, first among each eight columns of nibble pairs. n is a
 * multiple of 32. */
typedef int8_t order_vector __attribute__((vector_size(32)));
#define ORDER_NIBBLES                                                                              \
    0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 16, 18, 20, 22, 17, 19, 21, 23, 24, 26,  \
        28, 30, 25, 27, 29, 31
static void order_nibbles(const int8_t *from, size_t n, int8_t *to)
{
    for (size_t i = 0; i < n; i += sizeof(order_vector)) {
        order_vector x;
        memcpy(&x, from + i, sizeof x);
        x = __builtin_shufflevector(x, x, ORDER_NIBBLES);
        memcpy(to + i, &x, sizeof x);
    }
}

/* Consecutive row blocks, and the tokens they are multiplied with. */
struct interleaved {
    const uint8_t *codes, *scales, *biases; /* of the first block */
    size_t codes_step, scales_step;         /* from one block to the next */
    /* The same for the blocks that come next. */
    struct {
        const uint8_t *codes, *scales, *biases;
        size_t codes_step, scales_step;
    } next;
    struct gathered tokens;
    size_t n_groups;
    unsigned group;
    enum interleaved_kind kind;
    bool is_f16; /* scales and biases */
};

INLINE vf halves_at(const uint8_t *p, bool is_f16)
{
    return is_f16 ? vf_load_f16(p) : vf_load_bf16(p);
}

/* Scales of group g of a row block. */
INLINE vf scales_at(const uint8_t *scales, size_t g, enum interleaved_kind kind, bool is_f16)
{
    return kind == KIND_FP4 ? mxfp4_scale(vi_load_bytes(scales + g * LANES))
                            : halves_at(scales + g * 2 * LANES, is_f16);
}

/* Bytes of a block's codes that are prefetched. */
#define FETCH_AHEAD 1024

/* Returns the codes that nibbles stand for. */
INLINE vc nibbles_of(vc x, enum interleaved_kind kind)
{
    return kind == KIND_FP4 ? vc_lookup(codes_fp4_doubled, x) : x;
}

/* Sums of a block and a token. A single one would be a dependency chain; with more tokens there are
 * enough of them. */
#define INTERLEAVED_SUMS(n_blocks, n_tokens)                                                       \
    ((n_tokens) <= 2 || (n_blocks) * (n_tokens) < DOT_CHAINS ? 2u : 1u)

/* Returns the k-th four codes of each row, of sixteen columns. */
INLINE vc codes_of_16(const vc *bytes, unsigned k, enum interleaved_kind kind)
{
    return kind == KIND_EIGHT ? vc_wide(bytes[k])
           : k % 2 == 0       ? nibbles_of(vc_low_nibbles(bytes[k / 2]), kind)
                              : nibbles_of(vc_high_nibbles(bytes[k / 2]), kind);
}

/* Prefetches the scales of group g of the next blocks. */
INLINE void fetch_scales(const struct interleaved *in, size_t g, unsigned b,
                         enum interleaved_kind kind)
{
    const unsigned bytes = KIND_SCALE_BYTES(kind) * LANES;
    const size_t at = b * in->next.scales_step + g * bytes;
    if (g % (64 / bytes) != 0) /* a line is two groups, or four */
        return;
    __builtin_prefetch(in->next.scales + at, 0, 2);
    if (KIND_HAS_BIAS(kind))
        __builtin_prefetch(in->next.biases + at, 0, 2);
}

/* Adds the dot products of group g to the sums. */
INLINE void interleaved_fold(const struct interleaved *in, size_t g, enum interleaved_kind kind,
                             unsigned n_blocks, unsigned n_tokens,
                             vi dots[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS][2],
                             vf acc[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS])
{
    const unsigned n_sums = INTERLEAVED_SUMS(n_blocks, n_tokens);
    const float *factors = in->tokens.factors + 3 * g * n_tokens;
    UNROLL for (unsigned b = 0; b < n_blocks; b++) {
        const size_t at = b * in->scales_step;
        fetch_scales(in, g, b, kind);
        const vf scale = scales_at(in->scales + at, g, kind, in->is_f16);
        const vf bias = KIND_HAS_BIAS(kind) ? scales_at(in->biases + at, g, kind, in->is_f16)
                                            : vf_zero();
        UNROLL for (unsigned t = 0; t < n_tokens; t++) {
            const vi sum = n_sums == 2 ? vi_add(dots[b][t][0], dots[b][t][1]) : dots[b][t][0];
            acc[b][t] = vf_fma(vf_mul(scale, vf_set1(factors[t])), vf_of_vi(sum), acc[b][t]);
            if (KIND_HAS_BIAS(kind))
                acc[b][t] = vf_fma(bias, vf_set1(factors[n_tokens + t]), acc[b][t]);
        }
    }
}

/* Adds the products of sixteen columns of each block, as they lie in memory, to its sums. `next` is
 * prefetched. */
INLINE void dot_nibbles_or_bytes(const uint8_t *at, size_t codes_step, const uint8_t *next,
                                 size_t next_step, enum interleaved_kind kind, unsigned n_blocks,
                                 unsigned n_tokens, const vx x[INTERLEAVED_TOKENS],
                                 vi dots[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS][2])
{
    const unsigned n_sums = INTERLEAVED_SUMS(n_blocks, n_tokens);
    vc bytes[INTERLEAVED_BLOCKS][4];
    UNROLL for (unsigned b = 0; b < n_blocks; b++)
        UNROLL for (unsigned k = 0; k < kind_bits(kind) / 2; k++) {
            __builtin_prefetch(next + b * next_step + 64 * k);
            bytes[b][k] = vc_load(at + b * codes_step + 64 * k);
        }
    UNROLL for (unsigned k = 0; k < 4; k++) {
        vc codes[INTERLEAVED_BLOCKS];
        UNROLL for (unsigned b = 0; b < n_blocks; b++)
            codes[b] = codes_of_16(bytes[b], k, kind);
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            UNROLL for (unsigned b = 0; b < n_blocks; b++) {
                vi *sum = &dots[b][t][k % n_sums];
                *sum = vi_dot4_maybe_once(*sum, codes[b], x[t], k, kind == KIND_EIGHT,
                                          n_blocks == 1);
            }
    }
}

/* The same for one block of a kind with planes, kind_step columns. There are two sums for each
 * token. */
INLINE void dot_planes(const uint8_t *at, const uint8_t *next, enum interleaved_kind kind,
                       unsigned n_tokens, bool is_once, vx x[2][INTERLEAVED_TOKENS],
                       vi dots[INTERLEAVED_TOKENS][2])
{
#ifdef LEVEL_HAS_COLUMNS
    const unsigned bits = kind_bits(kind), step = kind_step(kind);
    vi bytes[5], planes[5];
    UNROLL for (unsigned k = 0; k < bits * step / 32; k++) {
        __builtin_prefetch(next + 64 * k);
        bytes[k] = vc_load(at + 64 * k);
    }
    planes_of(bytes, bits, planes);
    UNROLL for (unsigned k = 0; k < step / 4; k++) {
        const vi codes = plane_codes(planes, bits, k);
        UNROLL for (unsigned t = 0; t < n_tokens && t < 2; t++)
            dots[t][k % 2] = vi_dot4_maybe_once(dots[t][k % 2], codes, x[k / 4][t], k % 4, false,
                                                is_once);
    }
#else /* weights of these kinds stay as they are in files */
    (void)at, (void)next, (void)kind, (void)n_tokens, (void)is_once, (void)x, (void)dots;
#endif
}

/* Multiplies group g. kind, n_blocks and n_tokens are constants where this is inlined. */
INLINE void interleaved_group(const struct interleaved *in, size_t g, enum interleaved_kind kind,
                              unsigned n_blocks, unsigned n_tokens,
                              vf acc[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS])
{
    const unsigned group = in->group, bits = kind_bits(kind), step = kind_step(kind);
    const unsigned n_sums = INTERLEAVED_SUMS(n_blocks, n_tokens);
    const size_t at_group = g * group * bits * 2, at_ahead = at_group + FETCH_AHEAD;
    const bool is_next = at_ahead >= in->codes_step;
    const uint8_t *ahead = is_next ? in->next.codes + (at_ahead - in->codes_step)
                                   : in->codes + at_ahead;
    const size_t ahead_step = is_next ? in->next.codes_step : in->codes_step;
    const int8_t *q = in->tokens.codes + g * group * n_tokens;
    const float *factors = in->tokens.factors + 3 * g * n_tokens;
    const bool has_start = !KIND_HAS_BIAS(kind) || (kind == KIND_EIGHT && WIDE_CODES_SHIFT != 0);
    vi dots[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS][2];
    UNROLL for (unsigned t = 0; t < n_tokens; t++) {
        const vi start = has_start ? gathered_start(factors, n_tokens, t) : vi_set1(0);
        UNROLL for (unsigned b = 0; b < n_blocks; b++) {
            dots[b][t][0] = start;
            dots[b][t][1] = vi_set1(0);
        }
    }
    for (unsigned i = 0; i < group; i += step) {
        const uint8_t *next = ahead + i * bits * 2;
        vx x[2][INTERLEAVED_TOKENS];
        UNROLL for (unsigned c = 0; c < step / GATHERED_COLUMNS; c++)
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                x[c][t] = vx_load(q + i * n_tokens + (c * n_tokens + t) * GATHERED_COLUMNS);
        if (KIND_HAS_PLANES(kind))
            UNROLL for (unsigned b = 0; b < n_blocks; b++)
                dot_planes(in->codes + at_group + b * in->codes_step + i * bits * 2,
                           next + b * ahead_step, kind, n_tokens, n_blocks == 1, x, dots[b]);
        else
            dot_nibbles_or_bytes(in->codes + at_group + i * bits * 2, in->codes_step, next,
                                 ahead_step, kind, n_blocks, n_tokens, x[0], dots);
        UNROLL for (unsigned b = 0; b < n_blocks; b++)
            UNROLL for (unsigned t = 0; t < n_tokens; t++)
                UNROLL for (unsigned k = 0; k < n_sums; k++)
                    KEEP_IN_PLACE(dots[b][t][k]);
    }
    interleaved_fold(in, g, kind, n_blocks, n_tokens, dots, acc);
}

INLINE void interleaved_run(const struct interleaved *in, enum interleaved_kind kind,
                            unsigned n_blocks, unsigned n_tokens,
                            vf out[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS])
{
    vf acc[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS];
    UNROLL for (unsigned b = 0; b < n_blocks; b++)
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            acc[b][t] = vf_zero();
    for (size_t g = 0; g < in->n_groups; g++)
        interleaved_group(in, g, kind, n_blocks, n_tokens, acc);
    UNROLL for (unsigned b = 0; b < n_blocks; b++)
        UNROLL for (unsigned t = 0; t < n_tokens; t++)
            out[b][t] = acc[b][t];
}

typedef void interleaved_fn(const struct interleaved *in,
                            vf out[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS]);
#ifdef LEVEL_HAS_COLUMNS
#define INTERLEAVED_PLANES(n_blocks, n_tokens)                                                     \
    switch (in->kind) {                                                                            \
    case KIND_TWO: interleaved_run(in, KIND_TWO, n_blocks, n_tokens, out); break;                  \
    case KIND_THREE: interleaved_run(in, KIND_THREE, n_blocks, n_tokens, out); break;              \
    case KIND_FIVE: interleaved_run(in, KIND_FIVE, n_blocks, n_tokens, out); break;                \
    default: interleaved_run(in, KIND_SIX, n_blocks, n_tokens, out);                               \
    }
#else
#define INTERLEAVED_PLANES(n_blocks, n_tokens) assert(!"weights of these kinds stay by rows");
#endif
#define INTERLEAVED(name, n_blocks, n_tokens)                                                      \
    static __attribute__((noinline)) void name(const struct interleaved *in,                       \
                                               vf out[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS])     \
    {                                                                                              \
        if (in->kind == KIND_FOUR)                                                                 \
            interleaved_run(in, KIND_FOUR, n_blocks, n_tokens, out);                               \
        else if (in->kind == KIND_FP4)                                                             \
            interleaved_run(in, KIND_FP4, n_blocks, n_tokens, out);                                \
        else if (in->kind == KIND_INT4)                                                            \
            interleaved_run(in, KIND_INT4, n_blocks, n_tokens, out);                               \
        else if (in->kind == KIND_EIGHT || (n_tokens) > 2)                                         \
            interleaved_run(in, KIND_EIGHT, n_blocks, n_tokens, out);                              \
        else                                                                                       \
            INTERLEAVED_PLANES(n_blocks, n_tokens)                                                 \
    }
INTERLEAVED(interleaved_one, 1, 1)
INTERLEAVED(interleaved_two, 1, 2)
#if INTERLEAVED_BLOCKS > 1
INTERLEAVED(interleaved_many_one, INTERLEAVED_BLOCKS, 1)
INTERLEAVED(interleaved_many_two, INTERLEAVED_BLOCKS, 2)
#else
#define interleaved_many_one interleaved_one
#define interleaved_many_two interleaved_two
#endif
_Static_assert(INTERLEAVED_TOKENS == 2 || (INTERLEAVED_TOKENS == 9 && INTERLEAVED_BLOCKS > 1),
               "these are the functions there are");
#if INTERLEAVED_TOKENS > 2
/* Two blocks or one: the sums of more do not fit into the registers. */
INTERLEAVED(interleaved_three, 1, 3)
INTERLEAVED(interleaved_four, 1, 4)
INTERLEAVED(interleaved_five, 1, 5)
INTERLEAVED(interleaved_six, 1, 6)
INTERLEAVED(interleaved_seven, 1, 7)
INTERLEAVED(interleaved_eight, 1, 8)
INTERLEAVED(interleaved_nine, 1, 9)
INTERLEAVED(interleaved_many_three, 2, 3)
INTERLEAVED(interleaved_many_four, 2, 4)
INTERLEAVED(interleaved_many_five, 2, 5)
#endif

/* How many blocks a function takes, and the function for one block. */
static const struct {
    unsigned n_blocks;
    interleaved_fn *many, *one;
} interleaved_by_tokens[] = {
    {INTERLEAVED_BLOCKS, interleaved_many_one, interleaved_one},
    {INTERLEAVED_BLOCKS, interleaved_many_two, interleaved_two},
#if INTERLEAVED_TOKENS > 2
    {2, interleaved_many_three, interleaved_three},
    {2, interleaved_many_four, interleaved_four},
    {2, interleaved_many_five, interleaved_five},
    {1, interleaved_six, interleaved_six},
    {1, interleaved_seven, interleaved_seven},
    {1, interleaved_eight, interleaved_eight},
    {1, interleaved_nine, interleaved_nine},
#endif
};

static enum interleaved_kind interleaved_kind_of(const struct quant *quant)
{
    if (quant->codes == QUANT_CODES_FP4)
        return KIND_FP4;
    if (!quant->has_bias)
        return KIND_INT4;
    static const enum interleaved_kind of_bits[] = {
        [2] = KIND_TWO, [3] = KIND_THREE, [4] = KIND_FOUR, [5] = KIND_FIVE, [6] = KIND_SIX,
        [8] = KIND_EIGHT};
    return of_bits[quant->bits];
}

static struct interleaved interleaved_of(const struct weight *w)
{
    const size_t n_groups = w->n_cols / w->quant->group;
    const enum interleaved_kind kind = interleaved_kind_of(w->quant);
    return (struct interleaved){.codes = w->parts[0], .scales = w->parts[1], .biases = w->parts[2],
                                .codes_step = w->n_cols * w->quant->bits / 8 * LANES,
                                .scales_step = n_groups * KIND_SCALE_BYTES(kind) * LANES,
                                .n_groups = n_groups, .kind = kind, .group = w->quant->group,
                                .is_f16 = w->quant->scale == &quant_f16};
}

static void interleaved_move(struct interleaved *in, size_t n_blocks)
{
    in->codes += n_blocks * in->codes_step;
    in->scales += n_blocks * in->scales_step;
    if (KIND_HAS_BIAS(in->kind))
        in->biases += n_blocks * in->scales_step;
}

/* Finds the blocks after the next n. They may belong to another matrix. */
static void interleaved_find_next(const struct kernel_matmul *m, size_t r, size_t n,
                                struct interleaved *in)
{
    struct interleaved next = *in;
    if (r + n * LANES < m->end || m->next == NULL ||
        !is_interleaved_apart(m->next)) {
        interleaved_move(&next, n);
    } else {
        next = interleaved_of(m->next);
        interleaved_move(&next, m->next_row / LANES);
    }
    in->next.codes = next.codes;
    in->next.scales = next.scales;
    in->next.biases = next.biases != NULL ? next.biases : next.scales; /* only prefetched */
    in->next.codes_step = next.codes_step;
    in->next.scales_step = next.scales_step;
}

/* For up to interleaved_max_tokens. scratch: the gathered tokens. */
static void matmul_interleaved(const struct kernel_matmul *m)
{
    struct interleaved in = interleaved_of(m->w);
    const size_t n_many = interleaved_by_tokens[m->n - 1].n_blocks;
    in.tokens.codes = (int8_t *)m->scratch;
    in.tokens.factors = m->scratch + m->n * m->w->n_cols / sizeof(float);
    if (!m->has_same_inputs)
        gather(m, 0, m->n, &in.tokens);
    interleaved_move(&in, m->begin / LANES);
    for (size_t r = m->begin, n; r < m->end; r += n * LANES) {
        vf acc[INTERLEAVED_BLOCKS][INTERLEAVED_TOKENS];
        n = m->end - r >= n_many * LANES ? n_many : 1;
        interleaved_find_next(m, r, n, &in);
        if (n == 1)
            interleaved_by_tokens[m->n - 1].one(&in, acc);
        else
            interleaved_by_tokens[m->n - 1].many(&in, acc);
        for (size_t b = 0; b < n; b++)
            for (size_t t = 0; t < m->n; t++)
                vf_store(kernel_out(m, t, r + b * LANES), acc[b][t]);
        interleaved_move(&in, n);
    }
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* Fills in the codes of one block, with the columns in the order of its kind. */
#ifdef LEVEL_HAS_INTERLEAVED_CODES
static void interleaved_codes(const uint8_t *from, size_t n_cols, enum interleaved_kind kind,
                              uint8_t *to);
#else
/* The kind is a constant where this is inlined. */
INLINE void planes_fill(const uint8_t *from, size_t n_cols, enum interleaved_kind kind, uint8_t *to)
{
#ifdef LEVEL_HAS_COLUMNS
    const unsigned bits = kind_bits(kind), step = kind_step(kind);
    for (size_t at = 0; at < n_cols; at += step, from += bits * step / 8 * LANES) {
        vi bytes[5], planes[5];
        UNROLL for (unsigned k = 0; k < bits * step / 32; k++) {
            __builtin_prefetch(from + 64 * k + FETCH_AHEAD);
            bytes[k] = vc_load(from + 64 * k);
        }
        planes_of(bytes, bits, planes);
        UNROLL for (unsigned k = 0; k < step / 4; k++)
            vc_store(to + (at + 4 * k) * LANES, plane_codes(planes, bits, k));
    }
#else
    (void)from, (void)n_cols, (void)kind, (void)to;
#endif
}

static void interleaved_codes(const uint8_t *from, size_t n_cols, enum interleaved_kind kind,
                              uint8_t *to)
{
    switch (kind) {
    case KIND_TWO: planes_fill(from, n_cols, KIND_TWO, to); return;
    case KIND_THREE: planes_fill(from, n_cols, KIND_THREE, to); return;
    case KIND_FIVE: planes_fill(from, n_cols, KIND_FIVE, to); return;
    case KIND_SIX: planes_fill(from, n_cols, KIND_SIX, to); return;
    default: break;
    }
    for (size_t at = 0; kind == KIND_EIGHT && at < n_cols; at += 4)
        vc_store(to + at * LANES, vc_wide(vc_load(from + at * LANES)));
    for (size_t at = 0; kind != KIND_EIGHT && at < n_cols; at += 8) {
        const vc x = vc_load(from + at / 2 * LANES);
        __builtin_prefetch(from + at / 2 * LANES + FETCH_AHEAD);
        vc_store(to + at * LANES, nibbles_of(vc_low_nibbles(x), kind));
        vc_store(to + (at + 4) * LANES, nibbles_of(vc_high_nibbles(x), kind));
    }
}
#endif

/* Fills a panel with columns [begin, end) of the block that begins with row `first`. */
static void interleaved_fill(const struct weight *w, size_t first, size_t begin, size_t end,
                             uint8_t *codes, float *scales, float *biases)
{
    struct interleaved in = interleaved_of(w);
    interleaved_move(&in, first / LANES);
    interleaved_codes(in.codes + begin * w->quant->bits / 8 * LANES, end - begin, in.kind,
                      codes);
    for (size_t g = begin / in.group; g < end / in.group; g++, scales += LANES, biases += LANES) {
        vf_store(scales, scales_at(in.scales, g, in.kind, in.is_f16));
        if (KIND_HAS_BIAS(in.kind))
            vf_store(biases, scales_at(in.biases, g, in.kind, in.is_f16));
    }
}

#endif
