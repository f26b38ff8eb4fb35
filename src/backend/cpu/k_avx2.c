#include "backend/cpu/levels.h"
void k_avx2_init(struct kernels *table)
{
    table->name = "avx2";
}
