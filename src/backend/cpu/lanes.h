/* Kernels over 16 lanes, written once. A level's file (k_<isa>.c) first includes its vocabulary,
 * lanes_<isa>.h, then this; what comes out is one complete set of static functions compiled for
 * that level, and lanes_init, which puts them into a table.
 *
 * The vocabulary: vf is 16 floats, vi 16 int32, vc 16 rows of four codes, each in as many
 * registers as the level needs; vf_* and vi_* work lane by lane. Sums over lanes follow the tree
 * of kernels.h. vi_dots_* and vi_dot4 are exact integers, so how they are found is the level's
 * own affair; but vi_dot4 may take WIDE_CODES_SHIFT off every wide code, and the caller makes up for
 * it. TILE_BLOCKS and TILE_TOKENS are how many row blocks and tokens of a product the level keeps
 * in registers, FLOAT_SIDE how many rows and tokens of a product of floats. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_H
#define FLASHMOE_BACKEND_CPU_LANES_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/levels.h"
#include "base/fmath.h"
#include "base/limits.h"
#include "quant/codes.h"

#define LANES 16
/* For templates whose arguments are constants where they are used. */
#define INLINE static inline __attribute__((always_inline))
/* Before a loop whose counter picks registers: its turns are constants, and all are written out. */
#define UNROLL _Pragma("GCC unroll 16")

#include "backend/cpu/lanes_math.h"
#include "backend/cpu/lanes_float.h"
#include "backend/cpu/lanes_codes.h"
#include "backend/cpu/lanes_attention.h"
#include "backend/cpu/lanes_delta.h"

static void lanes_init(struct kernels *table)
{
    table->quantize_row = quantize_row;
    table->matmul = matmul;
    table->rms_norm = rms_norm;
    table->rotate = rotate;
    table->store_kv = store_kv;
    table->attend = attend;
    table->attend_merge = attend_merge;
    table->attend_close = attend_close;
    table->conv_silu = conv_silu;
    table->delta_head = delta_head;
    table->route_row = route_row;
    table->silu_mul = silu_mul;
    table->weighted_sum = weighted_sum;
    table->add_scaled_sigmoid = add_scaled_sigmoid;
    table->add = add;
}

#endif
