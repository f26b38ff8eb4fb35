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
 * A kernel may start before the launches ahead of it have ended. Every thread calls gpu_wait, which
 * returns when they have. Before that it writes no global memory, and reads only what the launch
 * directly ahead does not write (lists, weights, states of the token before): those further ahead
 * have ended. A launch behind a copy starts when that has ended (device_cuda.cu).
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
#define GPU_METHOD __device__ __forceinline__ /* of a struct; may be static */
/* Unrolls the loop that follows, wholly or n times. */
#define GPU_UNROLL _Pragma("unroll")
#define GPU_PRAGMA(text) _Pragma(#text)
#define GPU_UNROLL_BY(n) GPU_PRAGMA(unroll n)

template <class T> using gpu_shared = T *;
#define GPU_SHARED(T, name, n) __shared__ alignas(16) T name[n]
extern __shared__ uint4 gpu_shared_block[];
#define GPU_SHARED_AT(T, name, at, n)                                                              \
    T *const name = (T *)((char *)gpu_shared_block + (at));                                        \
    (void)(n)

/* Eight bytes. */
struct alignas(8) gpu_pair {
    uint32_t low, high;
};

GPU_FN unsigned gpu_thread() { return threadIdx.x; }
GPU_FN unsigned gpu_n_threads() { return blockDim.x; }
GPU_FN unsigned gpu_block_x() { return blockIdx.x; }
GPU_FN unsigned gpu_block_y() { return blockIdx.y; }
GPU_FN void gpu_barrier() { __syncthreads(); }
/* Returns when all launches before have ended and what they wrote is there. From then on the next
 * launch may start. */
GPU_FN void gpu_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
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

/* Byte i of the result is the one that four bits of the selector name: 0 to 3 in a, 4 to 7 in b.
 * Further bits are 0. */
GPU_FN uint32_t gpu_permute(uint32_t a, uint32_t b, uint32_t selector)
{
    return __byte_perm(a, b, selector);
}

/* c += products of a tile of 16 rows of unsigned bytes and 8 columns of signed ones, 32 or 16 deep;
 * a warp calls it. Lane l has row l / 4 in the even words of a and row l / 4 + 8 in the odd ones,
 * column l / 4 in b, four bytes at depth l % 4 * 4 in each word, the later words 16 deeper. In c it
 * has row l / 4, columns l % 4 * 2 and the next, then the same of row l / 4 + 8. */
GPU_FN void gpu_tile_32(int32_t c[4], const uint32_t a[4], struct gpu_pair b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.low), "r"(b.high));
}
GPU_FN void gpu_tile_16(int32_t c[4], const uint32_t a[2], uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* The threads of the warp that say yes, a bit each, and their number; the warp meets. */
GPU_FN uint32_t gpu_vote(bool yes) { return __ballot_sync(0xffffffffu, yes); }
GPU_FN unsigned gpu_n_bits(uint32_t bits) { return __popc(bits); }
GPU_FN unsigned gpu_count(bool yes) { return gpu_n_bits(gpu_vote(yes)); }

/* Four bytes at a multiple of four, eight at a multiple of eight. */
GPU_FN uint32_t gpu_load_word(const void *at) { return *(const uint32_t *)at; }
GPU_FN struct gpu_pair gpu_load_pair(const void *at) { return *(const struct gpu_pair *)at; }
/* The same, of what is read once. */
GPU_FN struct gpu_pair gpu_stream_pair(const void *at)
{
    const uint2 pair = __ldcs((const uint2 *)at);
    return {pair.x, pair.y};
}
GPU_FN void gpu_store_word(void *at, uint32_t word) { *(uint32_t *)at = word; }
/* Sixteen bytes at a multiple of sixteen. */
struct alignas(16) gpu_four {
    uint32_t words[4];
};
GPU_FN struct gpu_four gpu_load_four(const void *at) { return *(const struct gpu_four *)at; }
GPU_FN struct gpu_four gpu_stream_four(const void *at)
{
    const uint4 four = __ldcs((const uint4 *)at);
    return {{four.x, four.y, four.z, four.w}};
}
/* Four bytes anywhere. Nothing is read but words in which some of them lie. */
GPU_FN uint32_t gpu_load_any(const uint8_t *at)
{
    const unsigned off = (unsigned)((uintptr_t)at & 3);
    const uint32_t *word = (const uint32_t *)(at - off);
    const uint32_t first = word[0], second = off > 0 ? word[1] : 0;
    return __funnelshift_r(first, second, 8 * off);
}

/* Four floats at a multiple of 16 bytes, in global and in shared memory. */
struct alignas(16) gpu_quad {
    float x[4];
};
GPU_FN struct gpu_quad gpu_load_quad(const float *at) { return *(const struct gpu_quad *)at; }
GPU_FN void gpu_store_quad(float *at, struct gpu_quad quad) { *(struct gpu_quad *)at = quad; }
GPU_FN struct gpu_quad gpu_take_quad(const float *x, size_t i) { return gpu_load_quad(x + i); }
GPU_FN void gpu_put_quad(float *x, size_t i, struct gpu_quad quad) { gpu_store_quad(x + i, quad); }

/* Loads of global memory that stay where they are written. The compiler likes to put a load off
 * until its value is used; loads in a row are then not on their way together. */
GPU_FN struct gpu_four gpu_load_four_now(const void *at)
{
    struct gpu_four four;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(four.words[0]), "=r"(four.words[1]), "=r"(four.words[2]),
                   "=r"(four.words[3])
                 : "l"(__cvta_generic_to_global(at)));
    return four;
}
GPU_FN struct gpu_quad gpu_take_quad_now(const float *x, size_t i)
{
    struct gpu_quad quad;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(quad.x[0]), "=f"(quad.x[1]), "=f"(quad.x[2]), "=f"(quad.x[3])
                 : "l"(__cvta_generic_to_shared(x + i))
                 : "memory");
    return quad;
}
/* The same of what other blocks of this launch have written (gpu_count_up). */
GPU_FN uint32_t gpu_load_word_new(const void *at)
{
    uint32_t word;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word) : "l"(__cvta_generic_to_global(at)));
    return word;
}
GPU_FN uint32_t gpu_load_word_now(const void *at)
{
    uint32_t word;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(word) : "l"(__cvta_generic_to_global(at)));
    return word;
}

/* The same of the host's memory, which changes while the launch runs. */
GPU_FN uint32_t gpu_load_word_of_host(const uint32_t *at) { return __ldcv(at); }
/* A word that the host writes meanwhile, behind all that it wrote before. */
GPU_FN uint32_t gpu_see_word(const uint32_t *at)
{
    uint32_t word;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(word) : "l"(at) : "memory");
    return word;
}

/* Between two looks at it. */
GPU_FN void gpu_rest() {}

/* Two floats at a multiple of 8 bytes in shared memory. */
struct alignas(8) gpu_two {
    float x[2];
};
GPU_FN struct gpu_two gpu_take_two(const float *x, size_t i) { return *(const gpu_two *)(x + i); }

GPU_FN float gpu_f16_to_f32(uint16_t h) { return __half2float(__ushort_as_half(h)); }
GPU_FN uint16_t gpu_f32_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

/* The largest and the smallest that a thread of the warp has; the warp meets. */
GPU_FN uint32_t gpu_max_of_warp(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }
GPU_FN uint32_t gpu_min_of_warp(uint32_t x) { return __reduce_min_sync(0xffffffffu, x); }

/* Raises what lies there to x, whatever other threads do with it meanwhile. */
GPU_FN void gpu_raise(uint32_t *at, uint32_t x) { atomicMax(at, x); }
GPU_FN void gpu_raise(uint64_t *at, uint64_t x)
{
    atomicMax((unsigned long long *)at, (unsigned long long)x);
}

/* Reads the arguments of a launch once. The first use of each 64 bytes of them takes as long as a
 * read of global memory; here it lies before gpu_wait. */
template <class T> GPU_FN void gpu_read_args(const T &args)
{
    const uint32_t *words = (const uint32_t *)&args;
    GPU_UNROLL
    for (size_t i = 0; i < sizeof args / sizeof *words; i += 16)
        asm volatile("" ::"r"(words[i]));
    asm volatile("" ::"r"(words[sizeof args / sizeof *words - 1]));
}

/* Counts up, behind all that this thread has done and has seen done; returns what it was. */
GPU_FN uint32_t gpu_count_up(uint32_t *at)
{
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;"
                 : "=r"(before)
                 : "l"(__cvta_generic_to_global(at))
                 : "memory");
    return before;
}

#else

#define GPU_KERNEL static
#define GPU_KERNEL_FOR(n, blocks) static
#define GPU_FN static inline
#define GPU_METHOD inline
#define GPU_UNROLL
#define GPU_UNROLL_BY(n)

#include "backend/cuda/emulator.h"

#endif

GPU_FN struct gpu_quad gpu_load_quad_now(const float *at)
{
    const struct gpu_four four = gpu_load_four_now(at);
    return {{fmath_float_of_bits(four.words[0]), fmath_float_of_bits(four.words[1]),
             fmath_float_of_bits(four.words[2]), fmath_float_of_bits(four.words[3])}};
}
GPU_FN float gpu_load_float_new(const float *at)
{
    return fmath_float_of_bits(gpu_load_word_new(at));
}
GPU_FN float gpu_load_float_now(const float *at)
{
    return fmath_float_of_bits(gpu_load_word_now(at));
}

#define CODES_F16(half) gpu_f16_to_f32(half)

GPU_FN float gpu_bf16_to_f32(uint16_t h) { return fmath_float_of_bits((uint32_t)h << 16); }
GPU_FN unsigned gpu_lane() { return gpu_thread() % GPU_WARP; }
GPU_FN unsigned gpu_warp() { return gpu_thread() / GPU_WARP; }

#endif
