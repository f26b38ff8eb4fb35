/* The vocabulary of 16 lanes for AVX2 with FMA and F16C: see lanes.h. Sixteen lanes are two
 * registers, lanes 0..7 and 8..15. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_AVX2_H
#define FLASHMOE_BACKEND_CPU_LANES_AVX2_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/lanes_levels_x86.h"
#include "backend/cpu/lanes_macros.h"

#define CODES_F16(half) _cvtsh_ss(half)
/* Keeps the compiler from computing values in advance, and then spilling them, when it is cheaper
 * to compute them from p where they are needed. */
#define OPAQUE(p) __asm__("" : "+r"(p))

typedef struct {
    __m256 lo, hi;
} vf;
typedef struct {
    __m256i lo, hi;
} vi;
typedef vi vc;

/* Products of one tile: 16 rows and 4 tokens take 8 of the 16 registers. The sums over groups are
 * in memory meanwhile. */
#define TILE_BLOCKS 1
#define TILE_TOKENS 4
#define INTERLEAVED_BLOCKS 2
#define FLOAT_PART_ROWS 2
#define VALUE_PARTS 2

#define VF_EACH(f, a, b) ((vf){f((a).lo, (b).lo), f((a).hi, (b).hi)})
#define VI_EACH(f, a, b) ((vi){f((a).lo, (b).lo), f((a).hi, (b).hi)})

/* Sets all bits of the first n lanes. */
INLINE vi first_lanes(size_t n)
{
    const __m256i count = _mm256_set1_epi32((int)n);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vi){_mm256_cmpgt_epi32(count, lane),
                _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))};
}

INLINE vf vf_zero(void) { return (vf){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
INLINE vf vf_set1(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
INLINE vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.lo);
    _mm256_storeu_ps(p + 8, x.hi);
}
/* Stores to an address of whole cache lines past the caches; stream_end before others read it. */
INLINE void vf_stream(float *p, vf x)
{
    _mm256_stream_ps(p, x.lo);
    _mm256_stream_ps(p + 8, x.hi);
}
INLINE void stream_end(void) { _mm_sfence(); }
INLINE vf vf_load_part(const float *p, size_t n)
{
    const vi mask = first_lanes(n);
    return (vf){_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
INLINE void vf_store_part(float *p, vf x, size_t n)
{
    const vi mask = first_lanes(n);
    _mm256_maskstore_ps(p, mask.lo, x.lo);
    _mm256_maskstore_ps(p + 8, mask.hi, x.hi);
}
INLINE __m256 f32_of_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE vf vf_load_bf16(const void *p)
{
    return (vf){f32_of_bf16(_mm_loadu_si128((const __m128i *)p)),
                f32_of_bf16(_mm_loadu_si128((const __m128i *)p + 1))};
}
INLINE vf vf_load_bf16_part(const void *p, size_t n)
{
    uint16_t halves[16] = {0};
    memcpy(halves, p, n * sizeof halves[0]);
    return vf_load_bf16(halves);
}
INLINE vf vf_load_f16(const void *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}
INLINE vf vf_load_f16_part(const void *p, size_t n)
{
    uint16_t halves[16] = {0};
    memcpy(halves, p, n * sizeof halves[0]);
    return vf_load_f16(halves);
}
/* One register: eight lanes. */
typedef __m256 vp;
#define PART_LANES 8
static inline vp vp_zero(void) { return _mm256_setzero_ps(); }
static inline vp vp_set1(float x) { return _mm256_set1_ps(x); }
static inline vp vp_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vp vp_load_part(const float *p, size_t n)
{
    return _mm256_maskload_ps(p, first_lanes(n).lo);
}
static inline vp vp_load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline vp vp_load_f16_part(const void *p, size_t n) { return vf_load_f16_part(p, n).lo; }
static inline vp vp_load_bf16(const void *p)
{
    return f32_of_bf16(_mm_loadu_si128((const __m128i *)p));
}
static inline vp vp_load_bf16_part(const void *p, size_t n) { return vf_load_bf16_part(p, n).lo; }
static inline void vp_store(float *p, vp x) { _mm256_storeu_ps(p, x); }
static inline void vp_store_part(float *p, vp x, size_t n)
{
    _mm256_maskstore_ps(p, first_lanes(n).lo, x);
}
static inline vp vp_fma(vp a, vp b, vp c) { return _mm256_fmadd_ps(a, b, c); }
static inline void vf_put_part(vf *to, unsigned part, vp x)
{
    if (part == 0)
        to->lo = x;
    else
        to->hi = x;
}

INLINE vf vf_load_levels(const char *p, unsigned bits, vl table)
{
    const __m128i levels = x86_levels(p, bits, table);
    const __m256i lo = _mm256_cvtepi8_epi32(levels);
    const __m256i hi = _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(levels, levels));
    return (vf){_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
}
static inline void vf_store_f16(void *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)p + 1, _mm256_cvtps_ph(x.hi, _MM_FROUND_TO_NEAREST_INT));
}

INLINE vf vf_add(vf a, vf b) { return VF_EACH(_mm256_add_ps, a, b); }
INLINE vf vf_sub(vf a, vf b) { return VF_EACH(_mm256_sub_ps, a, b); }
INLINE vf vf_mul(vf a, vf b) { return VF_EACH(_mm256_mul_ps, a, b); }
INLINE vf vf_div(vf a, vf b) { return VF_EACH(_mm256_div_ps, a, b); }
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
INLINE vf vf_nmadd(vf a, vf b, vf c)
{
    return (vf){_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
/* a > b ? a : b for max, a < b ? a : b for min. If either is NaN, the second operand. */
INLINE vf vf_max(vf a, vf b) { return VF_EACH(_mm256_max_ps, a, b); }
INLINE vf vf_min(vf a, vf b) { return VF_EACH(_mm256_min_ps, a, b); }
INLINE bool vf_any_greater(vf a, vf b)
{
    const __m256 lo = _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ);
    const __m256 hi = _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ);
    return _mm256_movemask_ps(_mm256_or_ps(lo, hi)) != 0;
}

INLINE vi vi_set1(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
INLINE vi vi_add(vi a, vi b) { return VI_EACH(_mm256_add_epi32, a, b); }
INLINE vi vi_sub(vi a, vi b) { return VI_EACH(_mm256_sub_epi32, a, b); }
/* 16 bytes, each in a lane of its own. */
INLINE vi vi_load_bytes(const uint8_t *p)
{
    return (vi){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8)))};
}
INLINE vi vi_half(vi a)
{
    return (vi){_mm256_srai_epi32(a.lo, 1), _mm256_srai_epi32(a.hi, 1)};
}
INLINE vi vi_shift_to_exponent(vi a)
{
    return (vi){_mm256_slli_epi32(a.lo, 23), _mm256_slli_epi32(a.hi, 23)};
}
INLINE vi vi_max(vi a, vi b) { return VI_EACH(_mm256_max_epi32, a, b); }
INLINE vi vi_magnitude_bits(vf x)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    return (vi){_mm256_and_si256(_mm256_castps_si256(x.lo), mask),
                _mm256_and_si256(_mm256_castps_si256(x.hi), mask)};
}
INLINE int32_t vi_reduce_max(vi a)
{
    const __m256i m = _mm256_max_epi32(a.lo, a.hi);
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE int32_t vi_reduce_add(vi a)
{
    const __m256i m = _mm256_add_epi32(a.lo, a.hi);
    __m128i x = _mm_add_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
INLINE vf vf_of_vi(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
INLINE vi vi_of_vf(vf a)
{
    return (vi){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
INLINE vf vf_of_bits(vi a)
{
    return (vf){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
INLINE vi vi_bits_of(vf a)
{
    return (vi){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
INLINE __m256i low_byte_extended(__m256i x)
{
    return _mm256_srai_epi32(_mm256_slli_epi32(x, 24), 24);
}
/* Stores the low byte of each lane. Returns these bytes sign-extended. */
INLINE vi vi_store_low_bytes(int8_t *p, vi a)
{
    const vi wide = {low_byte_extended(a.lo), low_byte_extended(a.hi)};
    const __m128i first = _mm_packs_epi32(_mm256_castsi256_si128(wide.lo),
                                          _mm256_extracti128_si256(wide.lo, 1));
    const __m128i second = _mm_packs_epi32(_mm256_castsi256_si128(wide.hi),
                                           _mm256_extracti128_si256(wide.hi, 1));
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(first, second));
    return wide;
}

/* ---- reductions -------------------------------------------------------------------------------
 * The tree is j += j+8, j+4, j+2, j+1. */

INLINE float vf_sum(vf x)
{
    const __m256 a = _mm256_add_ps(x.lo, x.hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Lane i of the result is the sum of x[i]. Each step adds one level of the tree and packs two
 * vectors into one. */
INLINE __m256 sum8(const vf x[8])
{
    __m256 a[8], b[4], c[2];
    for (unsigned i = 0; i < 8; i++)
        a[i] = _mm256_add_ps(x[i].lo, x[i].hi);
    for (unsigned i = 0; i < 4; i++)
        b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20),
                             _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    for (unsigned i = 0; i < 2; i++)
        c[i] = _mm256_add_ps(_mm256_shuffle_ps(b[i], b[i + 2], 0x44),
                             _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
    const __m256 d = _mm256_add_ps(_mm256_shuffle_ps(c[0], c[1], 0x88),
                                   _mm256_shuffle_ps(c[0], c[1], 0xdd));
    return _mm256_permute_ps(d, 0xd8); /* each half held vectors 0, 2, 1, 3 */
}

INLINE vf vf_sum16(const vf x[16])
{
    return (vf){sum8(x), sum8(x + 8)};
}

/* ---- codes ------------------------------------------------------------------------------------
 * vpmaddubsw adds two products of an unsigned and a signed byte in 16 bits and saturates, so it is
 * exact for codes up to 127. A wide code minus 128 is multiplied either as magnitude times sign, at
 * most 128 * 127 per product, or as a 16-bit number. */

#define PEAK_CHAINS 2 /* of two registers each; more would spill to memory */
#define WIDE_CODES_SHIFT 128 /* vi_dot4 subtracts this from a wide code */

INLINE vc vc_load(const uint8_t *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}
/* Hides the contents of a vc or vi from the compiler. */
#define HIDE(v) __asm__ volatile("" : "+x"((v).lo), "+x"((v).hi))
INLINE void vc_store(uint8_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x.lo);
    _mm256_storeu_si256((__m256i *)p + 1, x.hi);
}

INLINE __m256i pairs_added(__m256i words)
{
    return _mm256_madd_epi16(words, _mm256_set1_epi16(1));
}

INLINE __m256i dot4_wide(__m256i codes, __m256i x)
{
    const __m256i centred = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    return pairs_added(_mm256_maddubs_epi16(_mm256_abs_epi8(centred),
                                            _mm256_sign_epi8(x, centred)));
}

/* acc += the dot product of each row's four codes with x[0..3]. */
INLINE vi vi_dot4(vi acc, vc codes, const int8_t *x, bool is_wide)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    const __m256i all = _mm256_set1_epi32(four);
    if (is_wide)
        return vi_add(acc, (vi){dot4_wide(codes.lo, all), dot4_wide(codes.hi, all)});
    return vi_add(acc, (vi){pairs_added(_mm256_maddubs_epi16(codes.lo, all)),
                            pairs_added(_mm256_maddubs_epi16(codes.hi, all))});
}

/* ---- columns: see lanes_formats.h ------------------------------------------------------------ */

#define LEVEL_HAS_COLUMNS

INLINE __m256i two_rows(const uint8_t *a, const uint8_t *b)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                   _mm_loadu_si128((const __m128i *)b), 1);
}

INLINE void eight_columns(const uint8_t *p, size_t stride, __m256i out[4])
{
    const uint8_t *p4 = p + 4 * stride;
    OPAQUE(p);
    OPAQUE(p4);
    const size_t two = 2 * stride, three = 3 * stride;
    const __m256i a = two_rows(p, p4), b = two_rows(p + stride, p4 + stride);
    const __m256i c = two_rows(p + two, p4 + two), d = two_rows(p + three, p4 + three);
    const __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
    const __m256i ab_high = _mm256_unpackhi_epi32(a, b), cd_high = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab, cd);
    out[1] = _mm256_unpackhi_epi64(ab, cd);
    out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}

INLINE void vi_columns(const uint8_t *p, size_t stride, vi out[4])
{
    __m256i lo[4], hi[4];
    eight_columns(p, stride, lo);
    eight_columns(p + 8 * stride, stride, hi);
    UNROLL for (unsigned k = 0; k < 4; k++)
        out[k] = (vi){lo[k], hi[k]};
}

INLINE vi vi_load(const int32_t *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)p),
                _mm256_loadu_si256((const __m256i *)(p + 8))};
}
INLINE vi vi_and(vi a, vi b) { return VI_EACH(_mm256_and_si256, a, b); }
INLINE vi vi_or(vi a, vi b) { return VI_EACH(_mm256_or_si256, a, b); }
INLINE vi vi_xor(vi a, vi b) { return VI_EACH(_mm256_xor_si256, a, b); }
INLINE vi vi_select(uint32_t mask, vi a, vi b)
{
    const __m256i m = _mm256_set1_epi32((int)mask);
    return vi_or(vi_and((vi){m, m}, a), VI_EACH(_mm256_andnot_si256, ((vi){m, m}), b));
}
#define vi_srl(a, n) ((vi){_mm256_srli_epi32((a).lo, n), _mm256_srli_epi32((a).hi, n)})
#define vi_sll(a, n) ((vi){_mm256_slli_epi32((a).lo, n), _mm256_slli_epi32((a).hi, n)})
#define vi_sra(a, n) ((vi){_mm256_srai_epi32((a).lo, n), _mm256_srai_epi32((a).hi, n)})
/* n is in bytes here. */
INLINE __m256i rotated(__m256i x, unsigned n)
{
    const __m256i first = _mm256_set1_epi32(0x03020100), lane = _mm256_setr_epi32(
        0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c, 0x00000000, 0x04040404, 0x08080808,
        0x0c0c0c0c);
    const __m256i in_lane = _mm256_and_si256(
        _mm256_sub_epi8(first, _mm256_set1_epi8((char)n)), _mm256_set1_epi8(3));
    return _mm256_shuffle_epi8(x, _mm256_or_si256(lane, in_lane));
}
#define vi_rol(a, n) ((vi){rotated((a).lo, (n) / 8), rotated((a).hi, (n) / 8)})
INLINE vi vi_lookup(const uint8_t table[16], vi a)
{
    const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    return (vi){_mm256_shuffle_epi8(all, a.lo), _mm256_shuffle_epi8(all, a.hi)};
}
/* Converts the low halves of eight lanes. */
INLINE __m256 f32_of_low_halves(__m256i x)
{
    const __m256i words = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(words),
                                            _mm256_extracti128_si256(words, 1)));
}
INLINE vf vf_of_halves(vi a)
{
    return (vf){f32_of_low_halves(a.lo), f32_of_low_halves(a.hi)};
}

#endif
