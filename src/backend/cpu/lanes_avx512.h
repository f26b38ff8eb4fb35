/* The vocabulary of 16 lanes for AVX-512 with VNNI: see lanes.h. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_AVX512_H
#define FLASHMOE_BACKEND_CPU_LANES_AVX512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/lanes_levels_x86.h"
#include "backend/cpu/lanes_macros.h"

#define CODES_F16(half) _cvtsh_ss(half)
/* Keeps the compiler from computing values in advance, and then spilling them, when it is cheaper
 * to compute them from p where they are needed. */
#define OPAQUE(p) __asm__("" : "+r"(p))

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vc;

/* Products of one tile: 32 rows and 6 tokens take 24 accumulators. */
#define TILE_BLOCKS 2
#define TILE_TOKENS 6
#define DOT_CHAINS 9
#define INTERLEAVED_BLOCKS 4
#define INTERLEAVED_TOKENS 9
#define FEW_TOKENS 5
#define PEAK_CHAINS 16
#define WIDE_HEADS 6 /* with four rows or registers: 24 sums */

INLINE __mmask16 first_lanes(size_t n)
{
    return n >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
/* Stores to an address of whole cache lines past the caches; stream_end before others read it. */
INLINE void vf_stream(float *p, vf x) { _mm512_stream_ps(p, x); }
INLINE void stream_end(void) { _mm_sfence(); }
INLINE vf vf_load_part(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
INLINE void vf_store_part(float *p, vf x, size_t n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
INLINE vf vf_of_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf vf_load_bf16(const void *p)
{
    return vf_of_bf16(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf vf_load_bf16_part(const void *p, size_t n)
{
    return vf_of_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
INLINE vf vf_load_f16(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf vf_load_f16_part(const void *p, size_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
INLINE vf vf_load_levels(const char *p, unsigned bits, vl table)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x86_levels(p, bits, table)));
}
INLINE void vf_store_f16(void *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf vf_nmadd(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
/* a > b ? a : b for max, a < b ? a : b for min. If either is NaN, the second operand. */
INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE bool vf_any_greater(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0;
}

INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
/* 16 bytes, each in a lane of its own. */
INLINE vi vi_load_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE vi vi_half(vi a) { return _mm512_srai_epi32(a, 1); }
INLINE vi vi_shift_to_exponent(vi a) { return _mm512_slli_epi32(a, 23); }
INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
INLINE vi vi_magnitude_bits(vf x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}
INLINE int32_t vi_reduce_max(vi a) { return _mm512_reduce_max_epi32(a); }
INLINE int32_t vi_reduce_add(vi a) { return _mm512_reduce_add_epi32(a); }
INLINE vf vf_of_vi(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vi vi_of_vf(vf a) { return _mm512_cvtps_epi32(a); }
INLINE vf vf_of_bits(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi vi_bits_of(vf a) { return _mm512_castps_si512(a); }
/* Stores the low byte of each lane. Returns these bytes sign-extended. */
INLINE vi vi_store_low_bytes(int8_t *p, vi a)
{
    const __m128i bytes = _mm512_cvtepi32_epi8(a);
    _mm_storeu_si128((__m128i *)p, bytes);
    return _mm512_cvtepi8_epi32(bytes);
}

/* ---- reductions -------------------------------------------------------------------------------
 * The tree is j += j+8, j+4, j+2, j+1. */

INLINE float vf_sum(vf x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Lane i of the result is vf_sum(x[i]). Each step adds one level of the tree and packs two
 * vectors into one. */
INLINE vf vf_sum16(const vf x[16])
{
    vf a[8], b[4], c[2];
    for (unsigned i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44),
                             _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
    for (unsigned i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[i], a[i + 4], 0x88),
                             _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd));
    /* Each quarter of b[i] holds four lanes of one of the vectors i, i+8, i+4, i+12. */
    for (unsigned i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[i], b[i + 2], 0x44),
                             _mm512_shuffle_ps(b[i], b[i + 2], 0xee));
    vf d = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    /* Quarter k holds vectors {0, 2, 1, 3} + {0, 8, 4, 12}[k]. */
    d = _mm512_permute_ps(d, 0xd8);
    return _mm512_shuffle_f32x4(d, d, 0xd8);
}

/* x[i][j] becomes x[j][i]. */
#define LEVEL_HAS_TRANSPOSE
INLINE void vi_transpose(vi x[16])
{
    vi a[16], b[16];
    for (unsigned i = 0; i < 8; i++) {
        a[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (unsigned i = 0; i < 4; i++) {
        b[4 * i] = _mm512_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm512_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm512_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm512_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    for (unsigned j = 0; j < 4; j++) {
        const vi lo0 = _mm512_shuffle_i32x4(b[j], b[j + 4], 0x88);
        const vi hi0 = _mm512_shuffle_i32x4(b[j], b[j + 4], 0xdd);
        const vi lo1 = _mm512_shuffle_i32x4(b[j + 8], b[j + 12], 0x88);
        const vi hi1 = _mm512_shuffle_i32x4(b[j + 8], b[j + 12], 0xdd);
        x[j] = _mm512_shuffle_i32x4(lo0, lo1, 0x88);
        x[j + 4] = _mm512_shuffle_i32x4(hi0, hi1, 0x88);
        x[j + 8] = _mm512_shuffle_i32x4(lo0, lo1, 0xdd);
        x[j + 12] = _mm512_shuffle_i32x4(hi0, hi1, 0xdd);
    }
}

/* ---- codes ------------------------------------------------------------------------------------
 * vc is 16 rows of four codes; VNNI multiplies unsigned codes of any width with signed bytes. */

#define WIDE_CODES_SHIFT 0 /* codes are multiplied as they are */

INLINE vc vc_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
/* Hides the contents of a vc or vi from the compiler. */
#define HIDE(v) __asm__ volatile("" : "+v"(v))
#define KEEP_IN_PLACE(v) HIDE(v)
INLINE void vc_store(uint8_t *p, vi x) { _mm512_storeu_si512(p, x); }

/* acc += the dot product of each row's four codes with x[0..3]. With the intrinsic, gcc 12 copies
 * sums between registers, which halves the speed of loops with many of them. */
INLINE vi vi_dot4(vi acc, vc codes, const int8_t *x, bool is_wide)
{
    (void)is_wide;
    int32_t four;
    memcpy(&four, x, sizeof four);
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(_mm512_set1_epi32(four)));
    return acc;
}

/* The same with a token that no other rows are multiplied with: it needs no register. */
#define LEVEL_HAS_DOT4_ONCE
INLINE vi vi_dot4_once(vi acc, vc codes, const int8_t *x, bool is_wide)
{
    typedef int32_t four __attribute__((may_alias, aligned(1)));
    (void)is_wide;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*(const four *)x));
    return acc;
}

/* ---- columns: see lanes_formats.h ------------------------------------------------------------ */

#define LEVEL_HAS_COLUMNS
#define LEVEL_HAS_MXFP4_SCALE
INLINE vf mxfp4_scale(vi e)
{
    const vf power = vf_of_vi(vi_sub(e, vi_set1(128)));
    return _mm512_scalef_ps(vf_set1(1.0f), power);
}

/* Loads sixteen bytes from each of four places. */
INLINE vi four_rows(const uint8_t *a, const uint8_t *b, const uint8_t *c, const uint8_t *d)
{
    vi x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)a));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)b), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)c), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)d), 3);
}

INLINE void vi_columns(const uint8_t *p, size_t stride, vi out[4])
{
    const uint8_t *p4 = p + 4 * stride, *p8 = p + 8 * stride, *p12 = p4 + 8 * stride;
    OPAQUE(p);
    OPAQUE(p4);
    OPAQUE(p8);
    OPAQUE(p12);
    const size_t two = 2 * stride, three = 3 * stride;
    const vi a = four_rows(p, p4, p8, p12);
    const vi b = four_rows(p + stride, p4 + stride, p8 + stride, p12 + stride);
    const vi c = four_rows(p + two, p4 + two, p8 + two, p12 + two);
    const vi d = four_rows(p + three, p4 + three, p8 + three, p12 + three);
    const vi ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    const vi ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab, cd);
    out[1] = _mm512_unpackhi_epi64(ab, cd);
    out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi vi_select(uint32_t mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(_mm512_set1_epi32((int)mask), a, b, 0xca);
}
#define vi_srl(a, n) _mm512_srli_epi32(a, n)
#define vi_sll(a, n) _mm512_slli_epi32(a, n)
#define vi_sra(a, n) _mm512_srai_epi32(a, n)
#define vi_rol(a, n) _mm512_rol_epi32(a, n)
INLINE vi vi_lookup(const uint8_t table[16], vi a)
{
    const vi all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table));
    return _mm512_shuffle_epi8(all, a);
}
INLINE vf vf_of_halves(vi a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }

#endif
