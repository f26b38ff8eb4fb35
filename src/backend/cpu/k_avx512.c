/* AVX-512 with VNNI: F, BW, DQ, VL, VNNI, and F16C from the level below. */
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/lanes_avx512.h"

#define AHEAD_STEP (2 * MEM_CACHE_LINE) /* the processor fetches lines in pairs */
#include "backend/cpu/lanes.h"

void k_avx512_matmul(const struct kernel_matmul *m)
{
    matmul(m);
}

void k_avx512_init(struct kernels *table)
{
    lanes_init(table);
    table->name = "avx512";
}
