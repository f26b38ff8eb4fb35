/* What this machine can do: the levels of the CPU backend, and speeds measured on request. A
 * measurement uses memory and threads of its own and frees them afterwards. It means something only
 * if nothing else is running. Any thread may call; nothing here touches an open backend. */
#ifndef FLASHMOE_BACKEND_MACHINE_H
#define FLASHMOE_BACKEND_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "flashmoe_lab.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- levels (cpu/machine_levels.c) ------------------------------------------------------- */

/* Runs n_rounds of a fixed number of multiply-adds in registers. Returns the number of
 * operations; a multiply-add counts as two. */
typedef uint64_t machine_peak_fn(uint64_t n_rounds);

struct machine_level {
    const char *name;
    const char *needs; /* the instructions it uses */
    bool is_usable;    /* on this machine */
    bool is_default;
    /* Of bytes and of floats. Call machine_level_use first; NULL: cannot be measured. */
    machine_peak_fn *int8_peak, *fma_peak;
};

/* Gets the i-th level of this architecture, lowest first. Returns false past the end. */
bool machine_level(unsigned i, struct machine_level *level);
/* Finds a level by name; NULL means the default. The error lists the available levels. */
int machine_level_find(const char *name, struct machine_level *level, struct fm_error *err);
/* Same, and also asks the system for what the level needs, so that this process may run it. */
int machine_level_use(const char *name, struct machine_level *level, struct fm_error *err);

/* ---- speeds (cpu/machine.c) --------------------------------------------------------------- */

struct machine_run {
    unsigned n_threads;
    bool is_pinned;    /* as in pool_open */
    unsigned n_passes; /* at most MACHINE_PASSES_MAX, after one that is not counted */
    void (*pass_done)(void *ctx); /* after every pass; may be NULL */
    void *ctx;
};

#define MACHINE_PASSES_MAX 64

/* Returns several times the size of the caches, but at least 1 GiB, or 512 MiB if is_quick. Never
 * more than an eighth of the free memory. */
uint64_t machine_buffer_bytes(uint64_t cache_bytes, uint64_t available_bytes, bool is_quick);
uint64_t machine_read_bytes(bool is_quick); /* same, for this machine as it is now */
/* Measures the bytes per second at which all threads together read `bytes` bytes of memory. */
int machine_measure_read(const struct machine_run *run, uint64_t bytes,
                         struct fm_speed *speed, struct fm_error *err);
/* Measures the operations per second of all threads together. */
int machine_measure_peak(const struct machine_run *run, machine_peak_fn *peak,
                         struct fm_speed *speed, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
