/* Kernels over 16 lanes, written once. A level's file (k_<isa>.c) first includes its vocabulary,
 * lanes_<isa>.h, then this. The result is one complete set of static functions compiled for that
 * level, and lanes_init, which puts them into a table.
 *
 * The vocabulary: vf is 16 floats, vi 16 int32, vc 16 rows of four codes. Each takes as many
 * registers as the level needs. vf_* and vi_* work lane by lane. Sums over lanes follow the tree of
 * kernels.h. vi_dots_* and vi_dot4 are exact integers, so a level may compute them in any way.
 * vi_dot4 may subtract a constant, WIDE_CODES_SHIFT, from every wide code; the caller corrects for
 * it. vl is a table of 16 levels of keys and values (quant/kv.h), and vf_load_levels looks up the
 * levels of 16 codes. vp is one register of a vf. TILE_BLOCKS and TILE_TOKENS are the row blocks
 * and tokens of a panel's product that the level keeps in registers.
 *
 * A level that has a better version of a template's function defines LEVEL_HAS_<NAME> before it
 * includes this, and the function itself before or after. Numbers that a level may choose, like
 * TILE_TOKENS or AHEAD_STEP, are defined before this, too; the header that uses one says what it
 * is. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_H
#define FLASHMOE_BACKEND_CPU_LANES_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/lanes_macros.h"
#include "backend/cpu/levels.h"
#include "backend/router.h"
#include "base/fmath.h"
#include "base/limits.h"
#include "base/mem.h"
#include "quant/codes.h"

#ifndef PART_LANES /* a vf is one register, or is treated as one */
#define PART_LANES LANES
typedef vf vp;
#define vp_zero vf_zero
#define vp_set1 vf_set1
#define vp_load vf_load
#define vp_load_part vf_load_part
#define vp_load_f16 vf_load_f16
#define vp_load_f16_part vf_load_f16_part
#define vp_load_bf16 vf_load_bf16
#define vp_load_bf16_part vf_load_bf16_part
#define vp_store vf_store
#define vp_store_part vf_store_part
#define vp_fma vf_fma
#define vf_put_part(to, part, x) (*(to) = (x))
#endif

#include "backend/cpu/lanes_math.h"
#include "backend/cpu/lanes_float.h"
#include "backend/cpu/lanes_codes.h"
#include "backend/cpu/lanes_attention.h"
#include "backend/cpu/lanes_delta.h"
#include "backend/cpu/lanes_peak.h"

static void lanes_init(struct kernels *table)
{
    table->quantize_row = quantize_row;
    table->matmul = matmul;
#ifdef LEVEL_HAS_COLUMNS
    table->takes_blocks = true;
#endif
    table->n_few = FEW_TOKENS;
    table->rms_norm = rms_norm;
    table->rotate = rotate;
    table->store_kv = store_kv;
    table->attend = attend;
    table->attend_merge = attend_merge;
    table->attend_sink = attend_sink;
    table->attend_close = attend_close;
    table->conv_silu = conv_silu;
    table->delta_head = delta_head;
    table->route_row = route_row;
    table->route_scored = route_scored;
    table->silu_mul = silu_mul;
    table->gelu_mul = gelu_mul;
    table->clamped_swiglu = clamped_swiglu;
    table->weighted_sum = weighted_sum;
    table->add_scaled_sigmoid = add_scaled_sigmoid;
    table->add = add;
    table->int8_peak = int8_peak;
    table->fma_peak = fma_peak;
}

#endif
