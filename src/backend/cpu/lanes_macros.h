/* What vocabularies (lanes_<isa>.h) and templates (lanes.h) write their functions with. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_MACROS_H
#define FLASHMOE_BACKEND_CPU_LANES_MACROS_H

#define LANES 16

/* For functions whose arguments are constants where they are used. */
#define INLINE static inline __attribute__((always_inline))

/* Before a loop whose counter picks registers: it turns a constant number of times, and every
 * turn is written out, so that its arrays are registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
