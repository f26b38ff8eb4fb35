/* AVX2, FMA and F16C. */
#include <stdbool.h>
#include <string.h>

#include "backend/cpu/lanes_avx2.h"

#define AHEAD_STEP (2 * MEM_CACHE_LINE) /* the processor fetches lines in pairs */
#include "backend/cpu/lanes.h"

void k_avx2_init(struct kernels *table)
{
    lanes_init(table);
    table->name = "avx2";
}
