/* GGUF's "IQ" formats. iq4_nl and iq4_xs map a nibble to one of 16 levels. The others map an
 * index to a vector of a grid (iq_grids.inc), which has eight columns, or four in iq3_*.
 * iq2_* and iq3_* add a sign per column: eight bits, or seven bits and their parity. iq1_* add or
 * subtract delta = 1/8. A scale s applies to 16 columns in iq2_xs, iq2_s and iq1_m, and to 32 in
 * the others. If scales are nibbles, the lower one of a byte is first.
 *   iq4_nl,   32 columns: d, nibbles[16] (byte i: columns i and i + 16)    x = d * level
 *   iq4_xs,  256 columns: d, scale pairs u16, scale nibbles[4], then 16 bytes of nibbles per 32
 *                                                                         x = d * s * level
 *   iq2_xxs, 256 columns: d, per 32 columns: index[4], u32 signs and scale
 *   iq2_xs,  256 columns: d, u16[32] index and signs, scales[8]
 *   iq2_s,   256 columns: d, index[32], signs[32], index high pairs[8], scales[8]
 *                                              x = +-magnitude * (d * (0.5 + s) * 0.25)
 *   iq3_xxs, 256 columns: d, index[64], per 32 columns: u32 signs and scale
 *                                              x = +-magnitude * (d * (0.5 + s) * 0.5)
 *   iq3_s,   256 columns: d, index[64], index high bits[8], signs[32], scales[4]
 *                                              x = +-magnitude * (d * (1 + 2 * s))
 *   iq1_s,   256 columns: d, index[32], per 32 columns: u16 index high, scale, sign of delta
 *   iq1_m,   256 columns: index[32], nibbles[16] of index high and sign of delta, u16[4] scales
 *            and, in their upper nibbles, d    x = d * (1 + 2 * s) * (step +- delta) */
#include <stdbool.h>

#include "quant/block_internal.h"
#include "quant/blocks.h"

BLOCK_FORMAT(iq1_m, 256, 56, 1, NULL)
BLOCK_FORMAT(iq1_s, 256, 50, 1, NULL)
BLOCK_FORMAT(iq2_s, 256, 82, 2, NULL)
BLOCK_FORMAT(iq2_xs, 256, 74, 2, NULL)
BLOCK_FORMAT(iq2_xxs, 256, 66, 2, NULL)
BLOCK_FORMAT(iq3_s, 256, 110, 3, NULL)
BLOCK_FORMAT(iq3_xxs, 256, 98, 3, NULL)
CODE_FORMAT(iq4_nl, 32, 18, 4, NULL, .codes = QUANT_CODES_IQ4_NL, .group = 32, .zero = 128,
            .has_wide_codes = true)
CODE_FORMAT(iq4_xs, 256, 136, 4, NULL, .codes = QUANT_CODES_IQ4_XS, .group = 32, .zero = 128,
            .has_wide_codes = true)
