/* Macros that vocabularies (lanes_<isa>.h) and templates (lanes.h) use to define their
 * functions. */
#ifndef FLASHMOE_BACKEND_CPU_LANES_MACROS_H
#define FLASHMOE_BACKEND_CPU_LANES_MACROS_H

#define LANES 16

/* For functions whose arguments are constants where they are called. */
#define INLINE static inline __attribute__((always_inline))

/* Put before a loop whose counter selects registers. The loop has a constant number of iterations
 * and is fully unrolled, so that its arrays are kept in registers. */
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#endif
