/* The language of the GPU's kernels: CUDA, or C++ over the emulator (emulator.h), which runs the
 * same source on the processor and reports what a GPU would hide. A kernel is written with what
 * this file defines and nothing else of CUDA's:
 *
 *   GPU_KERNEL void gpu_NAME(const struct gpu_NAME_args a) { ... }   an entry of kernel_list.h
 *   GPU_FN int helper(int x) { ... }                                 called by kernels
 *   GPU_SHARED(float, name, 256)         memory of a block, a constant number of elements
 *   GPU_SHARED_AT(float, name, at, n)    the same in what the launch asked for, `at` bytes in
 *   gpu_shared<float>                    the type of both, to pass it on
 *
 * Blocks have one dimension of threads, a multiple of 32, and a grid has two of blocks. All threads
 * of a block meet at gpu_barrier, all 32 of a warp at gpu_warp_barrier and at a shuffle. A thread
 * may not return while others of its block still meet. All declarations of shared memory come first
 * in a kernel.
 *
 * Floats: nvcc compiles with -fmad=false -ftz=false -prec-div=true -prec-sqrt=true. A fused
 * multiply-add is written fmaf, and nothing else of libm is used except sqrtf, which is exact. */
#ifndef FLASHMOE_BACKEND_CUDA_LANGUAGE_H
#define FLASHMOE_BACKEND_CUDA_LANGUAGE_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/fmath.h"

#define GPU_WARP 32u

#ifdef __CUDACC__

#include <cuda_fp16.h>

#define GPU_KERNEL static __global__
/* The same for blocks of n threads, of which a multiprocessor holds `blocks` at a time. */
#define GPU_KERNEL_FOR(n, blocks) static __global__ __launch_bounds__(n, blocks)
#define GPU_FN static __device__ __forceinline__
/* Unrolls the loop that follows. */
#define GPU_UNROLL _Pragma("unroll")

template <class T> using gpu_shared = T *;
#define GPU_SHARED(T, name, n) __shared__ alignas(16) T name[n]
extern __shared__ uint4 gpu_shared_block[];
#define GPU_SHARED_AT(T, name, at, n)                                                              \
    T *const name = (T *)((char *)gpu_shared_block + (at));                                        \
    (void)(n)

GPU_FN unsigned gpu_thread() { return threadIdx.x; }
GPU_FN unsigned gpu_n_threads() { return blockDim.x; }
GPU_FN unsigned gpu_block_x() { return blockIdx.x; }
GPU_FN unsigned gpu_block_y() { return blockIdx.y; }
GPU_FN void gpu_barrier() { __syncthreads(); }
GPU_FN void gpu_warp_barrier() { __syncwarp(); }
template <class T> GPU_FN T gpu_shuffle(T value, unsigned lane)
{
    return __shfl_sync(0xffffffffu, value, (int)lane);
}
template <class T> GPU_FN T gpu_shuffle_xor(T value, unsigned mask)
{
    return __shfl_xor_sync(0xffffffffu, value, (int)mask);
}

/* c plus the products of the four bytes: signed by signed, and unsigned by signed. */
GPU_FN int32_t gpu_dot4(int32_t a, int32_t b, int32_t c) { return __dp4a(a, b, c); }
GPU_FN int32_t gpu_dot4_unsigned(uint32_t a, int32_t b, int32_t c)
{
    int32_t d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

/* Four bytes at a multiple of four. */
GPU_FN uint32_t gpu_load_word(const void *at) { return *(const uint32_t *)at; }

/* Four floats at a multiple of 16 bytes, in global and in shared memory. */
struct alignas(16) gpu_quad {
    float x[4];
};
GPU_FN struct gpu_quad gpu_load_quad(const float *at) { return *(const struct gpu_quad *)at; }
GPU_FN void gpu_store_quad(float *at, struct gpu_quad quad) { *(struct gpu_quad *)at = quad; }
GPU_FN struct gpu_quad gpu_take_quad(const float *x, size_t i) { return gpu_load_quad(x + i); }
GPU_FN void gpu_put_quad(float *x, size_t i, struct gpu_quad quad) { gpu_store_quad(x + i, quad); }

GPU_FN float gpu_f16_to_f32(uint16_t h) { return __half2float(__ushort_as_half(h)); }
GPU_FN uint16_t gpu_f32_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

/* Lowers what lies there to x, whatever other threads do with it meanwhile. */
GPU_FN void gpu_lower(uint32_t *at, uint32_t x) { atomicMin(at, x); }

#else

#define GPU_KERNEL static
#define GPU_KERNEL_FOR(n, blocks) static
#define GPU_FN static inline
#define GPU_UNROLL

#include "backend/cuda/emulator.h"

#endif

#define CODES_F16(half) gpu_f16_to_f32(half)

GPU_FN float gpu_bf16_to_f32(uint16_t h) { return fmath_float_of_bits((uint32_t)h << 16); }
GPU_FN unsigned gpu_lane() { return gpu_thread() % GPU_WARP; }
GPU_FN unsigned gpu_warp() { return gpu_thread() / GPU_WARP; }

#endif
