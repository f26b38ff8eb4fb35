/* The vocabulary of 16 lanes for Advanced SIMD with dot products, and with int8 matrix products if
 * the file is compiled for them: see lanes.h. A vector is four registers of four lanes. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_NEON_H
#define FLASHMOE_BACKEND_CPU_LANES_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/lanes_macros.h"

typedef struct { float32x4_t p[4]; } vf;
typedef struct { int32x4_t p[4]; } vi;
typedef struct { uint8x16_t p[4]; } vc;
typedef float32x4_t vp;
#define PART_LANES 4

/* Products of one tile: 16 rows and 4 tokens take 16 accumulators. The other 16 registers hold the
 * tokens' columns and the rows' codes. */
#define TILE_BLOCKS 1
#define TILE_TOKENS 4
#define INTERLEAVED_BLOCKS 1

/* A vector of `type` whose registers are f of the operands' registers. */
#define NEON_1(type, f, a) ((type){{f((a).p[0]), f((a).p[1]), f((a).p[2]), f((a).p[3])}})
#define NEON_2(type, f, a, b)                                                                      \
    ((type){{f((a).p[0], (b).p[0]), f((a).p[1], (b).p[1]), f((a).p[2], (b).p[2]),                  \
             f((a).p[3], (b).p[3])}})
#define NEON_3(type, f, a, b, c)                                                                   \
    ((type){{f((a).p[0], (b).p[0], (c).p[0]), f((a).p[1], (b).p[1], (c).p[1]),                     \
             f((a).p[2], (b).p[2], (c).p[2]), f((a).p[3], (b).p[3], (c).p[3])}})

INLINE float neon_f16(uint16_t half)
{
    __fp16 x;
    memcpy(&x, &half, sizeof x);
    return (float)x;
}
#define CODES_F16(half) neon_f16(half)

/* ---- one register ---------------------------------------------------------------------------- */

INLINE vp vp_zero(void) { return vdupq_n_f32(0); }
INLINE vp vp_set1(float x) { return vdupq_n_f32(x); }
INLINE vp vp_load(const float *p) { return vld1q_f32(p); }
INLINE vp vp_load_part(const float *p, size_t n)
{
    float x[4] = {0};
    for (size_t i = 0; i < n && i < 4; i++)
        x[i] = p[i];
    return vld1q_f32(x);
}
INLINE uint16x4_t neon_load_halves(const void *p)
{
    uint16x4_t x;
    memcpy(&x, p, sizeof x);
    return x;
}
INLINE uint16x4_t neon_load_halves_part(const void *p, size_t n)
{
    uint16_t x[4] = {0};
    for (size_t i = 0; i < n && i < 4; i++)
        memcpy(&x[i], (const char *)p + 2 * i, sizeof x[i]);
    return vld1_u16(x);
}
INLINE vp neon_of_f16(uint16x4_t h) { return vcvt_f32_f16(vreinterpret_f16_u16(h)); }
INLINE vp neon_of_bf16(uint16x4_t h) { return vreinterpretq_f32_u32(vshll_n_u16(h, 16)); }
INLINE vp vp_load_f16(const void *p) { return neon_of_f16(neon_load_halves(p)); }
INLINE vp vp_load_bf16(const void *p) { return neon_of_bf16(neon_load_halves(p)); }
INLINE vp vp_load_f16_part(const void *p, size_t n)
{
    return neon_of_f16(neon_load_halves_part(p, n));
}
INLINE vp vp_load_bf16_part(const void *p, size_t n)
{
    return neon_of_bf16(neon_load_halves_part(p, n));
}
INLINE void vp_store(float *p, vp x) { vst1q_f32(p, x); }
INLINE void vp_store_part(float *p, vp x, size_t n)
{
    float lanes[4];
    vst1q_f32(lanes, x);
    for (size_t i = 0; i < n && i < 4; i++)
        p[i] = lanes[i];
}
INLINE vp vp_fma(vp a, vp b, vp c) { return vfmaq_f32(c, a, b); }
INLINE void vf_put_part(vf *to, unsigned part, vp x) { to->p[part / PART_LANES] = x; }

/* ---- 16 floats ------------------------------------------------------------------------------- */

INLINE vf vf_set1(float x)
{
    const float32x4_t v = vdupq_n_f32(x);
    return (vf){{v, v, v, v}};
}
INLINE vf vf_zero(void) { return vf_set1(0); }
INLINE vf vf_load(const float *p)
{
    return (vf){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
INLINE void vf_store(float *p, vf x)
{
    vst1q_f32(p, x.p[0]);
    vst1q_f32(p + 4, x.p[1]);
    vst1q_f32(p + 8, x.p[2]);
    vst1q_f32(p + 12, x.p[3]);
}
/* As vf_store: this processor sees by itself that whole lines are written. */
INLINE void vf_stream(float *p, vf x) { vf_store(p, x); }
INLINE void stream_end(void) {}
static inline vf vf_load_part(const float *p, size_t n)
{
    float x[16] = {0};
    memcpy(x, p, n * sizeof *x);
    return vf_load(x);
}
static inline void vf_store_part(float *p, vf x, size_t n)
{
    float lanes[16];
    vf_store(lanes, x);
    memcpy(p, lanes, n * sizeof *lanes);
}
/* Loads eight halves at a time. neon_high_* take the upper four. */
INLINE uint16x8_t neon_load_8_halves(const void *p)
{
    return vreinterpretq_u16_u8(vld1q_u8(p));
}
INLINE vp neon_high_of_f16(uint16x8_t h)
{
    return vcvt_high_f32_f16(vreinterpretq_f16_u16(h));
}
INLINE vp neon_high_of_bf16(uint16x8_t h)
{
    return vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
}
INLINE vf vf_load_f16(const void *p)
{
    const uint16x8_t a = neon_load_8_halves(p), b = neon_load_8_halves((const char *)p + 16);
    return (vf){{neon_of_f16(vget_low_u16(a)), neon_high_of_f16(a), neon_of_f16(vget_low_u16(b)),
                 neon_high_of_f16(b)}};
}
INLINE vf vf_load_bf16(const void *p)
{
    const uint16x8_t a = neon_load_8_halves(p), b = neon_load_8_halves((const char *)p + 16);
    return (vf){{neon_of_bf16(vget_low_u16(a)), neon_high_of_bf16(a),
                 neon_of_bf16(vget_low_u16(b)), neon_high_of_bf16(b)}};
}
static inline vf vf_load_f16_part(const void *p, size_t n)
{
    uint16_t x[16] = {0};
    memcpy(x, p, n * sizeof *x);
    return vf_load_f16(x);
}
static inline vf vf_load_bf16_part(const void *p, size_t n)
{
    uint16_t x[16] = {0};
    memcpy(x, p, n * sizeof *x);
    return vf_load_bf16(x);
}

/* The codes of keys and values (quant/kv.h) as levels; `bits` is a constant. */
typedef int8x16_t vl;

INLINE vl vl_load(const int8_t levels[16]) { return vld1q_s8(levels); }

INLINE uint8x16_t neon_low_bits(const char *p)
{
    static const int32_t by[4] = {0, -2, -4, -6};
    uint32_t packed;
    memcpy(&packed, p, sizeof packed);
    const uint32x4_t moved = vshlq_u32(vdupq_n_u32(packed), vld1q_s32(by));
    return vandq_u8(vreinterpretq_u8_u32(moved), vdupq_n_u8(3));
}
INLINE uint8x16_t neon_high_bit(const char *p)
{
    const uint8x8_t each = vreinterpret_u8_u64(vdup_n_u64(0x8040201008040201ull));
    const uint8x16_t spread = vcombine_u8(vdup_n_u8((uint8_t)p[0]), vdup_n_u8((uint8_t)p[1]));
    return vandq_u8(vtstq_u8(spread, vcombine_u8(each, each)), vdupq_n_u8(4));
}
INLINE int8x16_t neon_levels(const char *p, unsigned bits, vl table)
{
    if (bits == 8)
        return vreinterpretq_s8_u8(vld1q_u8((const uint8_t *)p));
    uint8x16_t codes;
    if (bits == 4) {
        const uint8x8_t packed = vld1_u8((const uint8_t *)p);
        codes = vcombine_u8(vand_u8(packed, vdup_n_u8(15)), vshr_n_u8(packed, 4));
    } else {
        codes = neon_low_bits(p);
        if (bits == 3)
            codes = vorrq_u8(codes, neon_high_bit(p + 4));
    }
    return vqtbl1q_s8(table, codes);
}
INLINE vf vf_load_levels(const char *p, unsigned bits, vl table)
{
    const int8x16_t levels = neon_levels(p, bits, table);
    const int16x8_t lo = vmovl_s8(vget_low_s8(levels)), hi = vmovl_high_s8(levels);
    return (vf){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))}};
}
INLINE void vf_store_f16(void *p, vf x)
{
    const float16x8_t a = vcvt_high_f16_f32(vcvt_f16_f32(x.p[0]), x.p[1]);
    const float16x8_t b = vcvt_high_f16_f32(vcvt_f16_f32(x.p[2]), x.p[3]);
    vst1q_u8(p, vreinterpretq_u8_f16(a));
    vst1q_u8((uint8_t *)p + 16, vreinterpretq_u8_f16(b));
}

INLINE vf vf_add(vf a, vf b) { return NEON_2(vf, vaddq_f32, a, b); }
INLINE vf vf_sub(vf a, vf b) { return NEON_2(vf, vsubq_f32, a, b); }
INLINE vf vf_mul(vf a, vf b) { return NEON_2(vf, vmulq_f32, a, b); }
INLINE vf vf_div(vf a, vf b) { return NEON_2(vf, vdivq_f32, a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return NEON_3(vf, vfmaq_f32, c, a, b); }
INLINE vf vf_nmadd(vf a, vf b, vf c) { return NEON_3(vf, vfmsq_f32, c, a, b); }
/* The result is NaN if either operand is. The templates pass a NaN only as the second operand. */
INLINE vf vf_max(vf a, vf b) { return NEON_2(vf, vmaxq_f32, a, b); }
INLINE vf vf_min(vf a, vf b) { return NEON_2(vf, vminq_f32, a, b); }
/* vf_max passes on a NaN in either operand; this one does not. */
INLINE vf neon_max_number(vf a, vf b) { return NEON_2(vf, vmaxnmq_f32, a, b); }
#define vf_max_number neon_max_number
INLINE bool vf_any_greater(vf a, vf b)
{
    const uint32x4_t x = vorrq_u32(vcgtq_f32(a.p[0], b.p[0]), vcgtq_f32(a.p[1], b.p[1]));
    const uint32x4_t y = vorrq_u32(vcgtq_f32(a.p[2], b.p[2]), vcgtq_f32(a.p[3], b.p[3]));
    return vmaxvq_u32(vorrq_u32(x, y)) != 0;
}

/* ---- 16 integers ----------------------------------------------------------------------------- */

INLINE vi vi_set1(int32_t x)
{
    const int32x4_t v = vdupq_n_s32(x);
    return (vi){{v, v, v, v}};
}
INLINE vi vi_add(vi a, vi b) { return NEON_2(vi, vaddq_s32, a, b); }
INLINE vi vi_sub(vi a, vi b) { return NEON_2(vi, vsubq_s32, a, b); }
INLINE vi vi_max(vi a, vi b) { return NEON_2(vi, vmaxq_s32, a, b); }
INLINE int32x4_t neon_half(int32x4_t a) { return vshrq_n_s32(a, 1); }
INLINE int32x4_t neon_to_exponent(int32x4_t a) { return vshlq_n_s32(a, 23); }
INLINE int32x4_t neon_magnitude(float32x4_t x) { return vreinterpretq_s32_f32(vabsq_f32(x)); }
/* 16 bytes, each in a lane of its own. */
INLINE vi vi_load_bytes(const uint8_t *p)
{
    const uint8x16_t x = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_u8(vget_high_u8(x));
    return (vi){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                 vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
INLINE vi vi_half(vi a) { return NEON_1(vi, neon_half, a); }
INLINE vi vi_shift_to_exponent(vi a) { return NEON_1(vi, neon_to_exponent, a); }
INLINE vi vi_magnitude_bits(vf x) { return NEON_1(vi, neon_magnitude, x); }
INLINE vf vf_of_vi(vi a) { return NEON_1(vf, vcvtq_f32_s32, a); }
INLINE vi vi_of_vf(vf a) { return NEON_1(vi, vcvtnq_s32_f32, a); }
INLINE vf vf_of_bits(vi a) { return NEON_1(vf, vreinterpretq_f32_s32, a); }
INLINE vi vi_bits_of(vf a) { return NEON_1(vi, vreinterpretq_s32_f32, a); }
INLINE int32_t vi_reduce_max(vi a)
{
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.p[0], a.p[1]), vmaxq_s32(a.p[2], a.p[3])));
}
INLINE int32_t vi_reduce_add(vi a)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.p[0], a.p[1]), vaddq_s32(a.p[2], a.p[3])));
}
/* Stores the low byte of each lane. The sum of the returned lanes is the sum of these bytes as
 * signed numbers. */
INLINE vi vi_store_low_bytes(int8_t *p, vi a)
{
    const int16x8_t x = vuzp1q_s16(vreinterpretq_s16_s32(a.p[0]), vreinterpretq_s16_s32(a.p[1]));
    const int16x8_t y = vuzp1q_s16(vreinterpretq_s16_s32(a.p[2]), vreinterpretq_s16_s32(a.p[3]));
    const int8x16_t bytes = vuzp1q_s8(vreinterpretq_s8_s16(x), vreinterpretq_s8_s16(y));
    vst1q_s8(p, bytes);
    const int32x4_t zero = vdupq_n_s32(0);
    return (vi){{vdotq_s32(zero, bytes, vdupq_n_s8(1)), zero, zero, zero}};
}

/* ---- reductions -------------------------------------------------------------------------------
 * The tree is j += j+8, j+4, j+2, j+1. */

/* The first two steps: four lanes are left. */
INLINE float32x4_t neon_fold_16(vf x)
{
    return vaddq_f32(vaddq_f32(x.p[0], x.p[2]), vaddq_f32(x.p[1], x.p[3]));
}

INLINE float vf_sum(vf x)
{
    const float32x4_t a = neon_fold_16(x);
    const float32x2_t b = vadd_f32(vget_low_f32(a), vget_high_f32(a));
    return vget_lane_f32(vpadd_f32(b, b), 0);
}

/* j += j+2 of two vectors, packed into one. */
INLINE float32x4_t neon_fold_4(float32x4_t a, float32x4_t b)
{
    const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(x, y)),
                     vreinterpretq_f32_f64(vzip2q_f64(x, y)));
}

/* Lane i of the result is vf_sum(x[i]). */
INLINE vf vf_sum16(const vf x[16])
{
    vf sums;
    for (unsigned i = 0; i < 4; i++) {
        const vf *four = x + 4 * i;
        sums.p[i] = vpaddq_f32(neon_fold_4(neon_fold_16(four[0]), neon_fold_16(four[1])),
                               neon_fold_4(neon_fold_16(four[2]), neon_fold_16(four[3])));
    }
    return sums;
}

/* ---- codes ------------------------------------------------------------------------------------
 * Int8 matrix instructions take unsigned codes. Without them codes are signed bytes, which is the
 * same for codes below 128. Wide codes are reduced by 128 by flipping their top bit. */

#ifdef __ARM_FEATURE_MATMUL_INT8
#define WIDE_CODES_SHIFT 0
#else
#define WIDE_CODES_SHIFT 128
#endif

/* acc += the dot products of four codes each. */
INLINE int32x4_t neon_dot(int32x4_t acc, uint8x16_t codes, int8x16_t x)
{
#ifdef __ARM_FEATURE_MATMUL_INT8
    return vusdotq_s32(acc, codes, x);
#else
    return vdotq_s32(acc, vreinterpretq_s8_u8(codes), x);
#endif
}

/* Converts codes to the form that neon_dot takes. */
INLINE uint8x16_t neon_codes(uint8x16_t codes, bool is_wide)
{
    return is_wide && WIDE_CODES_SHIFT != 0 ? veorq_u8(codes, vdupq_n_u8(0x80)) : codes;
}

INLINE int32x4_t neon_sum_rows(const int32x4_t x[4])
{
    return vpaddq_s32(vpaddq_s32(x[0], x[1]), vpaddq_s32(x[2], x[3]));
}

/* Computes the group dot products of 16 rows over `cols` columns, at most 128, of nibble pairs.
 * `split` holds the activations of the even columns, then, from 64 on, of the odd ones. Works on
 * four rows at a time, whose sums then share a register. */
INLINE void vi_dots_nibbles(const uint8_t *const rows[16], const int8_t *split, unsigned cols,
                            unsigned group, vi *dots)
{
    const uint8x16_t low = vdupq_n_u8(15);
    const unsigned max_groups = 128 / group;
    for (unsigned r = 0; r < 16; r += 4)
        UNROLL for (unsigned g = 0; g < max_groups; g++) {
            if (g * group >= cols)
                break;
            const int8_t *even = split + g * group / 2, *odd = even + 64;
            int32x4_t x[4];
            UNROLL for (unsigned k = 0; k < 4; k++) {
                uint8x16_t pairs[4];
                UNROLL for (unsigned i = 0; i < group / 32; i++)
                    pairs[i] = vld1q_u8(rows[r + k] + g * group / 2 + 16 * i);
                x[k] = vdupq_n_s32(0);
                UNROLL for (unsigned i = 0; i < group / 32; i++) {
                    x[k] = neon_dot(x[k], vandq_u8(pairs[i], low), vld1q_s8(even + 16 * i));
                    x[k] = neon_dot(x[k], vshrq_n_u8(pairs[i], 4), vld1q_s8(odd + 16 * i));
                }
            }
            dots[g].p[r / 4] = neon_sum_rows(x);
        }
}

/* Same for whole bytes. */
INLINE void vi_dots_bytes(const uint8_t *const rows[16], const int8_t *q, unsigned cols,
                          unsigned group, bool is_wide, vi *dots)
{
    const unsigned max_groups = 128 / group;
    for (unsigned r = 0; r < 16; r += 4)
        UNROLL for (unsigned g = 0; g < max_groups; g++) {
            if (g * group >= cols)
                break;
            int32x4_t x[4];
            UNROLL for (unsigned k = 0; k < 4; k++) {
                uint8x16_t codes[8];
                UNROLL for (unsigned i = 0; i < group / 16; i++)
                    codes[i] = vld1q_u8(rows[r + k] + g * group + 16 * i);
                x[k] = vdupq_n_s32(0);
                UNROLL for (unsigned i = 0; i < group / 16; i++)
                    x[k] = neon_dot(x[k], neon_codes(codes[i], is_wide),
                                    vld1q_s8(q + g * group + 16 * i));
            }
            dots[g].p[r / 4] = neon_sum_rows(x);
        }
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* Sixteen columns of a token in one register. The instruction selects four of them. The panel's
 * codes are in the form that neon_dot takes. */
#define LEVEL_HAS_DOT4_OF
typedef int8x16_t vx;

INLINE vx vx_load(const int8_t *p) { return vld1q_s8(p); }
INLINE vc vc_load(const uint8_t *p)
{
    return (vc){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}

INLINE void vc_store(uint8_t *p, vc x)
{
    UNROLL for (unsigned i = 0; i < 4; i++)
        vst1q_u8(p + 16 * i, x.p[i]);
}

/* Extract codes in the form vi_dot4_of takes, from bytes as they lie in memory. */
INLINE vc vc_low_nibbles(vc x)
{
    const uint8x16_t low = vdupq_n_u8(15);
    return (vc){{vandq_u8(x.p[0], low), vandq_u8(x.p[1], low), vandq_u8(x.p[2], low),
                 vandq_u8(x.p[3], low)}};
}
INLINE vc vc_high_nibbles(vc x)
{
    return (vc){{vshrq_n_u8(x.p[0], 4), vshrq_n_u8(x.p[1], 4), vshrq_n_u8(x.p[2], 4),
                 vshrq_n_u8(x.p[3], 4)}};
}
INLINE vc vc_wide(vc x)
{
    return (vc){{neon_codes(x.p[0], true), neon_codes(x.p[1], true), neon_codes(x.p[2], true),
                 neon_codes(x.p[3], true)}};
}

/* Byte by byte, table[x]; the bytes of x are below 16. */
INLINE vc vc_lookup(const uint8_t table[16], vc x)
{
    const uint8x16_t all = vld1q_u8(table);
    return (vc){{vqtbl1q_u8(all, x.p[0]), vqtbl1q_u8(all, x.p[1]), vqtbl1q_u8(all, x.p[2]),
                 vqtbl1q_u8(all, x.p[3])}};
}

/* Hides the contents of a vc or vi from the compiler. */
#define HIDE(v)                                                                                    \
    __asm__ volatile("" : "+w"((v).p[0]), "+w"((v).p[1]), "+w"((v).p[2]), "+w"((v).p[3]))

#ifdef __ARM_FEATURE_MATMUL_INT8
#define NEON_DOT_LANE(acc, codes, x, k) vusdotq_laneq_s32(acc, codes, x, k)
#else
#define NEON_DOT_LANE(acc, codes, x, k) vdotq_laneq_s32(acc, vreinterpretq_s8_u8(codes), x, k)
#endif
#define NEON_DOT4(k)                                                                               \
    ((vi){{NEON_DOT_LANE(acc.p[0], codes.p[0], x, k), NEON_DOT_LANE(acc.p[1], codes.p[1], x, k),   \
           NEON_DOT_LANE(acc.p[2], codes.p[2], x, k), NEON_DOT_LANE(acc.p[3], codes.p[3], x, k)}})

INLINE vi vi_dot4_of(vi acc, vc codes, vx x, unsigned k, bool is_wide)
{
    (void)is_wide;
    switch (k) {
    case 0: return NEON_DOT4(0);
    case 1: return NEON_DOT4(1);
    case 2: return NEON_DOT4(2);
    default: return NEON_DOT4(3);
    }
}

/* The order in which nibble pairs are unpacked. */
static void order_even_first(const int8_t *from, size_t n, int8_t *to)
{
    for (size_t at = 0; at < n; at += 32) {
        const int8x16_t x = vld1q_s8(from + at), y = vld1q_s8(from + at + 16);
        vst1q_s8(to + at, vuzp1q_s8(x, y));
        vst1q_s8(to + at + 16, vuzp2q_s8(x, y));
    }
}

/* Eight groups of four rows: zipped as halves, then widened. */
INLINE void neon_transpose_4_by_8(const uint16x8_t x[4], bool is_f16, size_t n, float *out)
{
    const uint16x8_t a = vzip1q_u16(x[0], x[2]), b = vzip1q_u16(x[1], x[3]);
    const uint16x8_t c = vzip2q_u16(x[0], x[2]), d = vzip2q_u16(x[1], x[3]);
    const uint16x8_t y[4] = {vzip1q_u16(a, b), vzip2q_u16(a, b), vzip1q_u16(c, d),
                             vzip2q_u16(c, d)};
    for (unsigned i = 0; i < 4; i++) {
        const uint16x4_t low = vget_low_u16(y[i]);
        if (2 * i < n)
            vst1q_f32(out + 2 * i * 16, is_f16 ? neon_of_f16(low) : neon_of_bf16(low));
        if (2 * i + 1 < n)
            vst1q_f32(out + (2 * i + 1) * 16,
                      is_f16 ? neon_high_of_f16(y[i]) : neon_high_of_bf16(y[i]));
    }
}

INLINE void neon_transpose_halves(const uint8_t *const rows[16], size_t n_groups, bool is_f16,
                                  float *out)
{
    for (unsigned r = 0; r < 16; r += 4) {
        uint16x8_t x[4];
        size_t g = 0;
        for (; g + 8 <= n_groups; g += 8) {
            for (unsigned k = 0; k < 4; k++)
                x[k] = neon_load_8_halves(rows[r + k] + 2 * g);
            neon_transpose_4_by_8(x, is_f16, 8, out + g * 16 + r);
        }
        if (g == n_groups)
            continue;
        for (unsigned k = 0; k < 4; k++) {
            uint16_t rest[8] = {0};
            memcpy(rest, rows[r + k] + 2 * g, 2 * (n_groups - g));
            x[k] = vld1q_u16(rest);
        }
        neon_transpose_4_by_8(x, is_f16, n_groups - g, out + g * 16 + r);
    }
}

static void transpose_halves(const uint8_t *const rows[16], size_t n_groups, bool is_f16,
                             float *out)
{
    if (is_f16)
        neon_transpose_halves(rows, n_groups, true, out);
    else
        neon_transpose_halves(rows, n_groups, false, out);
}

#endif
