/* The levels of the kernel table this program has for its architecture, lowest first. Each one
 * overrides the table of the level below it, so a table is made by climbing from the reference.
 * Constants, pure functions and level_use: any thread; nothing fails but what says so. */
#ifndef FLASHMOE_BACKEND_CPU_LEVELS_H
#define FLASHMOE_BACKEND_CPU_LEVELS_H

#include "backend/cpu/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct level {
    const char *name;    /* "reference", "avx2", "avx512", "amx", "dotprod", "i8mm" */
    const char *summary; /* the instructions it uses */
    bool (*is_there)(void); /* this processor and system can run it, and all below it */
    bool (*allow)(void);    /* asks the system for what it needs, or errno; NULL: nothing */
    void (*init)(struct kernels *table); /* overrides what it does faster */
};

/* The i-th level, NULL past the end. */
const struct level *level_at(unsigned i);
/* The highest level that is there. */
const struct level *level_best(void);
/* The level of that name, NULL for the best; an error names the levels there are. */
int level_find(const char *name, const struct level **out, struct fm_error *err);
/* level_find, and the process may run its kernels from now on. Where the system refuses the best
 * level it is the one below. */
int level_use(const char *name, const struct level **out, struct fm_error *err);
/* The table of a level. */
void level_kernels(const struct level *level, struct kernels *out);

void k_ref_init(struct kernels *table);
void k_avx2_init(struct kernels *table);
void k_avx512_init(struct kernels *table);
void k_amx_init(struct kernels *table);
void k_avx512_matmul(const struct kernel_matmul *m); /* for AMX, which takes many tokens alone */
void k_dotprod_init(struct kernels *table);
void k_i8mm_init(struct kernels *table);

#ifdef __cplusplus
}
#endif
#endif
