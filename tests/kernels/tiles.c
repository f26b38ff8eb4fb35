/* With tiles.h: the level "avx512" gets the products of k_amx.c, so that they are checked on a
 * processor without tiles. */
#include "backend/cpu/levels.h"

void avx512_alone_init(struct kernels *table); /* k_avx512_init of k_avx512.c */

void k_avx512_init(struct kernels *table)
{
    avx512_alone_init(table);
    k_amx_init(table);
    table->name = "avx512";
}
