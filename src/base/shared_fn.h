/* For small functions that processors and GPUs have in common. A file that nvcc compiles gets them
 * for the GPU, any other file for the host; both compute the same bits. */
#ifndef FLASHMOE_BASE_SHARED_FN_H
#define FLASHMOE_BASE_SHARED_FN_H

#ifdef __CUDACC__
#define SHARED_FN static __device__ inline
/* The host's code in that file calls it as well. */
#define SHARED_HOST_FN static __host__ __device__ inline
#define SHARED_TABLE static __device__ const
#else
#define SHARED_FN static inline
#define SHARED_HOST_FN static inline
#define SHARED_TABLE static const
#endif

#endif
