/* The grids of GGUF's "IQ" formats: the vectors that a block's indices select. An entry is one
 * vector, with its first column in the lowest bits:
 *   iq2_*, iq1: eight columns of two bits, a code from 0 to 2
 *   iq3_*:      four columns of three bits, a code from 0 to 7
 * Each format defines what a code means. Constants, private to this folder. */
#ifndef FLASHMOE_QUANT_IQ_GRIDS_INTERNAL_H
#define FLASHMOE_QUANT_IQ_GRIDS_INTERNAL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const uint16_t iq2_xxs_grid[256], iq2_xs_grid[512], iq2_s_grid[1024];
extern const uint16_t iq3_xxs_grid[256], iq3_s_grid[512];
extern const uint16_t iq1_grid[2048]; /* of iq1_s and iq1_m */

#ifdef __cplusplus
}
#endif
#endif
