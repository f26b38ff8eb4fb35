/* What this machine can do: the levels of the CPU backend, and speeds measured now. A measurement
 * takes memory and threads of its own and gives them back; it needs the machine for itself to mean
 * anything. Any thread may call; nothing here touches an open backend. */
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

/* Multiply-adds of int8 in registers: n_rounds of some number of them. Returns how many operations
 * that was; a multiply-add is two. */
typedef uint64_t machine_peak_fn(uint64_t n_rounds);

struct machine_level {
    const char *name;
    const char *needs; /* the instructions it uses */
    bool is_usable;    /* on this machine */
    bool is_default;
    machine_peak_fn *int8_peak; /* behind machine_level_use; NULL: not to be measured */
};

/* The i-th level of this architecture, lowest first; false past the end. */
bool machine_level(unsigned i, struct machine_level *level);
/* The level of that name, NULL for the default; the error names the levels there are. */
int machine_level_find(const char *name, struct machine_level *level, struct fm_error *err);
/* The same, and the process may run it from now on: the system is asked for what it needs. */
int machine_level_use(const char *name, struct machine_level *level, struct fm_error *err);

/* ---- speeds (cpu/machine.c) --------------------------------------------------------------- */

struct machine_run {
    unsigned n_threads;
    bool is_pinned;    /* as in pool_open */
    unsigned n_passes; /* at most MACHINE_PASSES_MAX, behind one that is not counted */
    void (*pass_done)(void *ctx); /* after every pass; may be NULL */
    void *ctx;
};

#define MACHINE_PASSES_MAX 64

/* Several times the caches, and at least 1 GiB, or half of that when quick; but no more than an
 * eighth of the free memory. */
uint64_t machine_buffer_bytes(uint64_t cache_bytes, uint64_t available_bytes, bool is_quick);
uint64_t machine_read_bytes(bool is_quick); /* the same for this machine now */
/* Bytes per second at which all threads together read `bytes` bytes of memory. */
int machine_measure_read(const struct machine_run *run, uint64_t bytes,
                         struct fm_speed *speed, struct fm_error *err);
/* Operations per second of all threads together. */
int machine_measure_int8(const struct machine_run *run, machine_peak_fn *int8_peak,
                         struct fm_speed *speed, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
