/* GGUF's ternary formats: 256 columns of x = d * (q - 1), d an f16 at the end of the block.
 *   tq1_0: 52 bytes, d. A byte / 256 is a fraction whose base-3 digits are the q of five columns,
 *          or of four columns in the last four bytes
 *   tq2_0: bit pairs[64], d. A byte holds four columns, 32 apart; q is 0 to 3 */
#include "quant/block_internal.h"
#include "quant/blocks.h"

BLOCK_FORMAT(tq1_0, 256, 54, 2, NULL)
BLOCK_FORMAT(tq2_0, 256, 66, 2, NULL)
