/* The levels of the kernel table this program has for its architecture, lowest first. Each one
 * overrides the table of the level below it, so a table is built upwards from the reference. Any
 * thread may call. Functions fail only where their comments say so. */
#ifndef FLASHMOE_BACKEND_CPU_LEVELS_H
#define FLASHMOE_BACKEND_CPU_LEVELS_H

#include "backend/cpu/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct level {
    const char *name;    /* "reference", "avx2", "avx512", "amx", "dotprod", "i8mm" */
    const char *summary; /* the instructions it uses */
    bool (*is_there)(void); /* true if this machine can run it and all below it */
    bool (*allow)(void);    /* asks the system for permission; sets errno; NULL: none needed */
    void (*init)(struct kernels *table); /* overrides the kernels it has a faster version of */
};

/* Returns the i-th level, or NULL past the end. */
const struct level *level_at(unsigned i);
/* Returns the highest level that this machine can run. */
const struct level *level_best(void);
/* Finds a level by name; NULL means the best. The error lists the available levels. */
int level_find(const char *name, const struct level **out, struct fm_error *err);
/* Like level_find, and allows the process to run the level's kernels. If the system refuses the
 * best level, the one below is used. */
int level_use(const char *name, const struct level **out, struct fm_error *err);
/* Fills in the table of a level. */
void level_kernels(const struct level *level, struct kernels *out);

void k_ref_init(struct kernels *table);
void k_avx2_init(struct kernels *table);
void k_avx512_init(struct kernels *table);
void k_amx_init(struct kernels *table);
void k_avx512_matmul(const struct kernel_matmul *m); /* for AMX, which needs many tokens */
void k_dotprod_init(struct kernels *table);
void k_i8mm_init(struct kernels *table);

#ifdef __cplusplus
}
#endif
#endif
