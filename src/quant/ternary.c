/* GGUF's ternary formats: 256 columns of x = d * (q - 1), d an f16 at the end of the block.
 *   tq1_0: 52 bytes, d. A byte / 256 is a fraction whose base-3 digits are the q of five columns,
 *          or of four columns in the last four bytes
 *   tq2_0: bit pairs[64], d. A byte holds four columns, 32 apart; q is 0 to 3 */
#include "quant/block_internal.h"

/* Digit t of byte i goes to column n * t + i. */
static inline void decode_digits(const uint8_t *restrict src, unsigned n, unsigned n_digits,
                                 float d, float *restrict dst)
{
    unsigned power = 1; /* moves digit t to the front */
    for (unsigned t = 0; t < n_digits; t++, power *= 3)
        for (unsigned i = 0; i < n; i++) {
            const unsigned fraction = src[i] * power & 255;
            dst[n * t + i] = d * (float)((int)(fraction * 3 >> 8) - 1);
        }
}

static void tq1_0_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src + 52);
    decode_digits(src, 32, 5, d, dst);
    decode_digits(src + 32, 16, 5, d, dst + 160);
    decode_digits(src + 48, 4, 4, d, dst + 240);
}

static void tq2_0_decode_block(const uint8_t *restrict src, float *restrict dst)
{
    const float d = load_f16(src + 64);
    for (unsigned g = 0; g < 8; g++)
        for (unsigned i = 0; i < 32; i++)
            dst[32 * g + i] = d * (float)((src[g / 4 * 32 + i] >> g % 4 * 2 & 3) - 1);
}

BLOCK_FORMAT(tq1_0, 256, 54, 2, NULL)
BLOCK_FORMAT(tq2_0, 256, 66, 2, NULL)
