#include "base/sha.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#include <immintrin.h>
#define HAS_SHA_NI 1
#endif

static int use_plain;

void sha_use_plain(int is_plain)
{
    use_plain = is_plain;
}

static uint32_t rotate_left(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

static uint32_t rotate_right(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static uint32_t big_endian(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* ---- SHA-256 -------------------------------------------------------------------------------- */

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static void expand_256(const unsigned char *p, uint32_t w[64])
{
    for (unsigned i = 0; i < 16; i++)
        w[i] = big_endian(p + 4 * i);
    for (unsigned i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + w[i - 7] +
               (rotate_right(a, 7) ^ rotate_right(a, 18) ^ a >> 3) +
               (rotate_right(b, 17) ^ rotate_right(b, 19) ^ b >> 10);
    }
}

static void blocks_256(uint32_t state[8], const unsigned char *p, size_t n_blocks)
{
    for (; n_blocks > 0; n_blocks--, p += 64) {
        uint32_t w[64];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        expand_256(p, w);
        for (unsigned i = 0; i < 64; i++) {
            const uint32_t first =
                h + (rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25)) +
                ((e & f) ^ (~e & g)) + constants[i] + w[i];
            const uint32_t second =
                (rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22)) +
                ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + first;
            d = c, c = b, b = a, a = first + second;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#ifdef HAS_SHA_NI

static int has_instructions(void)
{
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_SSE4_1) == 0 || (c & bit_SSSE3) == 0)
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29) != 0;
}

/* The processor has instructions for SHA-256: four rounds take two of them. They keep the state as
 * the words a b e f and c d g h. */
__attribute__((target("sha,sse4.1"))) static void
blocks_256_ni(uint32_t state[8], const unsigned char *p, size_t n_blocks)
{
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i low = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(void *)state), 0xb1);
    const __m128i high =
        _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(void *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(low, high, 8), cdgh = _mm_blend_epi16(high, low, 0xf0);
    for (; n_blocks > 0; n_blocks--, p += 64) {
        const __m128i abef_was = abef, cdgh_was = cdgh;
        __m128i w[4];
        for (unsigned i = 0; i < 16; i++) {
            __m128i *now = &w[i % 4];
            const __m128i before = w[(i + 3) % 4];
            if (i < 4)
                *now = _mm_shuffle_epi8(
                    _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), order);
            else
                *now = _mm_sha256msg2_epu32(
                    _mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) % 4]),
                                  _mm_alignr_epi8(before, w[(i + 2) % 4], 4)), before);
            const __m128i sum = _mm_add_epi32(
                *now, _mm_loadu_si128((const __m128i *)(const void *)(constants + 4 * i)));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_was);
        cdgh = _mm_add_epi32(cdgh, cdgh_was);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#endif

/* ---- SHA-1 ---------------------------------------------------------------------------------- */

static void blocks_1(uint32_t state[8], const unsigned char *p, size_t n_blocks)
{
    for (; n_blocks > 0; n_blocks--, p += 64) {
        uint32_t w[80];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4];
        for (unsigned i = 0; i < 16; i++)
            w[i] = big_endian(p + 4 * i);
        for (unsigned i = 16; i < 80; i++)
            w[i] = rotate_left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        for (unsigned i = 0; i < 80; i++) {
            const uint32_t mix = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                                 : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                                 : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                                          : (b ^ c ^ d) + 0xca62c1d6;
            const uint32_t next = rotate_left(a, 5) + mix + e + w[i];
            e = d, d = c, c = rotate_left(b, 30), b = a, a = next;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e;
    }
}

/* ---- both ----------------------------------------------------------------------------------- */

void sha_begin(struct sha *sha, enum sha_kind kind)
{
    static const uint32_t first_256[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    static const uint32_t first_1[8] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476,
                                        0xc3d2e1f0};
    *sha = (struct sha){.kind = kind};
    memcpy(sha->state, kind == SHA_256 ? first_256 : first_1, sizeof sha->state);
}

static void add_blocks(struct sha *sha, const unsigned char *p, size_t n_blocks)
{
    if (sha->kind == SHA_1) {
        blocks_1(sha->state, p, n_blocks);
        return;
    }
#ifdef HAS_SHA_NI
    if (!use_plain && has_instructions()) {
        blocks_256_ni(sha->state, p, n_blocks);
        return;
    }
#endif
    blocks_256(sha->state, p, n_blocks);
}

void sha_add(struct sha *sha, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    const size_t used = sha->n_bytes % 64;
    sha->n_bytes += bytes;
    if (used > 0) {
        const size_t n = bytes < 64 - used ? bytes : 64 - used;
        memcpy(sha->block + used, p, n);
        if (used + n < 64)
            return;
        add_blocks(sha, sha->block, 1);
        p += n;
        bytes -= n;
    }
    if (bytes >= 64)
        add_blocks(sha, p, bytes / 64);
    memcpy(sha->block, p + bytes / 64 * 64, bytes % 64);
}

void sha_hex(struct sha *sha, char hex[SHA_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    const uint64_t n_bits = sha->n_bytes * 8;
    unsigned char end[72] = {0x80};
    const size_t used = sha->n_bytes % 64, n_pad = (used < 56 ? 56 : 120) - used;
    for (unsigned i = 0; i < 8; i++)
        end[n_pad + i] = (unsigned char)(n_bits >> (56 - 8 * i));
    sha_add(sha, end, n_pad + 8);
    const unsigned n_words = sha->kind == SHA_256 ? 8 : 5;
    for (unsigned i = 0; i < 8 * n_words; i++)
        hex[i] = digits[sha->state[i / 8] >> (28 - 4 * (i % 8)) & 15];
    hex[8 * n_words] = '\0';
}
