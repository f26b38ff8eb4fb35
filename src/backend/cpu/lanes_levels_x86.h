/* Part of the vocabularies for x86: the codes of keys and values (quant/kv.h) as levels, 16 bytes
 * in one register. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_LEVELS_X86_H
#define FLASHMOE_BACKEND_CPU_LANES_LEVELS_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "backend/cpu/lanes_macros.h"

typedef __m128i vl;

INLINE vl vl_load(const int8_t levels[16])
{
    return _mm_loadu_si128((const __m128i *)levels);
}

/* Two bits of every code, stored in four bytes. */
INLINE __m128i x86_low_bits(const char *p)
{
    int32_t packed;
    memcpy(&packed, p, sizeof packed);
    const __m128i moved = _mm_srlv_epi32(_mm_set1_epi32(packed), _mm_setr_epi32(0, 2, 4, 6));
    return _mm_and_si128(moved, _mm_set1_epi8(3));
}

/* A set bit in the two bytes is worth 4. */
INLINE __m128i x86_high_bit(const char *p)
{
    int16_t packed;
    memcpy(&packed, p, sizeof packed);
    const __m128i each = _mm_set1_epi64x((long long)0x8040201008040201ull);
    const __m128i which = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i spread = _mm_shuffle_epi8(_mm_set1_epi16(packed), which);
    const __m128i is_set = _mm_cmpeq_epi8(_mm_and_si128(spread, each), each);
    return _mm_and_si128(is_set, _mm_set1_epi8(4));
}

/* `bits` is a constant. */
INLINE __m128i x86_levels(const char *p, unsigned bits, vl table)
{
    if (bits == 8)
        return _mm_loadu_si128((const __m128i *)p);
    if (bits == 4) {
        const __m128i packed = _mm_loadl_epi64((const __m128i *)p);
        const __m128i both = _mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4));
        return _mm_shuffle_epi8(table, _mm_and_si128(both, _mm_set1_epi8(15)));
    }
    __m128i codes = x86_low_bits(p);
    if (bits == 3)
        codes = _mm_or_si128(codes, x86_high_bit(p + 4));
    return _mm_shuffle_epi8(table, codes);
}

#endif
