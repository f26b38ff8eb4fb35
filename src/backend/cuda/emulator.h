/* Runs the GPU's kernels on the processor (language.h): every thread of a block has a stack of its
 * own, and they take turns where they meet. It stops a kernel with a message when
 *   - two threads use the same element of shared memory, one of them writes it, and no barrier lies
 *     between them;
 *   - a thread reads an element of shared memory that nobody has written, or uses one that is not
 *     there;
 *   - threads do not all meet at a barrier or shuffle;
 *   - a thread ends that has not called gpu_wait;
 *   - a thread loads or stores several bytes at once at an address that is no multiple of them.
 * Blocks run one after the other, in an order that changes with the launch, so a kernel in which
 * one block relies on another gets other bits. Global memory is ordinary memory.
 *
 * One thread of the host uses it at a time. */
#ifndef FLASHMOE_BACKEND_CUDA_EMULATOR_H
#define FLASHMOE_BACKEND_CUDA_EMULATOR_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#include "base/gate.h"
#include "quant/quant.h"

struct emulator_grid {
    unsigned n_blocks_x, n_blocks_y, n_threads;
    size_t shared_bytes;
};

/* Runs a kernel to its end. */
void emulator_run(const char *name, const struct emulator_grid *grid,
                  void (*kernel)(const void *args), const void *args);

/* Called with the message when a kernel is stopped; it must not return. The default prints the
 * message and aborts. */
void emulator_on_fault(void (*fault)(const char *message));

/* ---- what kernels call ----------------------------------------------------------------------- */

struct alignas(8) gpu_pair {
    uint32_t low, high;
};

struct emulator_place {
    unsigned thread, block_x, block_y, n_threads;
};

extern struct emulator_place emulator_here; /* of the thread that runs */

static inline unsigned gpu_thread() { return emulator_here.thread; }
static inline unsigned gpu_n_threads() { return emulator_here.n_threads; }
static inline unsigned gpu_block_x() { return emulator_here.block_x; }
static inline unsigned gpu_block_y() { return emulator_here.block_y; }
void gpu_barrier();
void gpu_warp_barrier();
void gpu_wait();

/* Returns what the lane of this warp gave; the warp meets. */
uint64_t emulator_shuffle(uint64_t value, unsigned lane);

template <class T> static inline T gpu_shuffle(T value, unsigned lane)
{
    uint64_t bits = 0;
    static_assert(sizeof value <= sizeof bits, "a shuffle moves at most eight bytes");
    __builtin_memcpy(&bits, &value, sizeof value);
    bits = emulator_shuffle(bits, lane);
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> static inline T gpu_shuffle_xor(T value, unsigned mask)
{
    return gpu_shuffle(value, emulator_here.thread % 32 ^ mask);
}

static inline int32_t gpu_dot4(int32_t a, int32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int32_t)(int8_t)((uint32_t)a >> i) * (int8_t)((uint32_t)b >> i);
    return c;
}

static inline int32_t gpu_dot4_unsigned(uint32_t a, int32_t b, int32_t c)
{
    for (int i = 0; i < 32; i += 8)
        c += (int32_t)(uint8_t)(a >> i) * (int8_t)((uint32_t)b >> i);
    return c;
}

static inline uint32_t gpu_permute(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = a | (uint64_t)b << 32;
    uint32_t out = 0;
    for (int i = 0; i < 32; i += 8)
        out |= (uint32_t)(bytes >> (selector >> i / 2 & 7) * 8 & 0xff) << i;
    return out;
}

/* What a lane gives to a tile. */
struct emulator_operands {
    uint32_t a[4], b[2];
};

/* Adds to c what the lane has of the tile; the warp meets. */
void emulator_tile(int32_t c[4], const struct emulator_operands *given);

static inline void gpu_tile_32(int32_t c[4], const uint32_t a[4], struct gpu_pair b)
{
    const struct emulator_operands given = {{a[0], a[1], a[2], a[3]}, {b.low, b.high}};
    emulator_tile(c, &given);
}

static inline void gpu_tile_16(int32_t c[4], const uint32_t a[2], uint32_t b)
{
    const struct emulator_operands given = {{a[0], a[1], 0, 0}, {b, 0}};
    emulator_tile(c, &given);
}

static inline uint32_t gpu_vote(bool yes)
{
    uint32_t bits = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        bits |= (uint32_t)gpu_shuffle<uint32_t>(yes, lane) << lane;
    return bits;
}

static inline unsigned gpu_n_bits(uint32_t bits) { return (unsigned)__builtin_popcount(bits); }
static inline unsigned gpu_count(bool yes) { return gpu_n_bits(gpu_vote(yes)); }

static inline uint32_t gpu_max_of_warp(uint32_t x)
{
    for (unsigned mask = 16; mask > 0; mask /= 2) {
        const uint32_t other = gpu_shuffle_xor(x, mask);
        x = other > x ? other : x;
    }
    return x;
}

static inline uint32_t gpu_min_of_warp(uint32_t x) { return ~gpu_max_of_warp(~x); }

/* Stops the kernel unless the address is a multiple of that, as a GPU does. */
void emulator_check_place(const void *at, size_t alignment);

template <class T> static inline T emulator_load(const void *at)
{
    T it;
    emulator_check_place(at, sizeof it);
    __builtin_memcpy(&it, at, sizeof it);
    return it;
}

static inline uint32_t gpu_load_word(const void *at) { return emulator_load<uint32_t>(at); }

static inline void gpu_store_word(void *at, uint32_t word)
{
    emulator_check_place(at, sizeof word);
    __builtin_memcpy(at, &word, sizeof word);
}

static inline struct gpu_pair gpu_load_pair(const void *at) { return emulator_load<gpu_pair>(at); }

static inline struct gpu_pair gpu_stream_pair(const void *at) { return gpu_load_pair(at); }
static inline uint32_t gpu_load_any(const uint8_t *at)
{
    uint32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    return word;
}

struct gpu_four {
    uint32_t words[4];
};

static inline struct gpu_four gpu_load_four(const void *at) { return emulator_load<gpu_four>(at); }

static inline struct gpu_four gpu_load_four_now(const void *at) { return gpu_load_four(at); }
static inline uint32_t gpu_load_word_new(const void *at) { return gpu_load_word(at); }
static inline uint32_t gpu_load_word_of_host(const uint32_t *at) { return gpu_load_word(at); }
static inline uint32_t gpu_see_word(const uint32_t *at)
{
    return gate_see(at);
}
static inline void gpu_rest(void) { sched_yield(); }
static inline uint32_t gpu_load_word_now(const void *at) { return gpu_load_word(at); }
static inline struct gpu_four gpu_stream_four(const void *at) { return gpu_load_four(at); }

struct gpu_quad {
    float x[4];
};

static inline struct gpu_quad gpu_load_quad(const float *at) { return emulator_load<gpu_quad>(at); }

static inline void gpu_store_quad(float *at, struct gpu_quad quad)
{
    emulator_check_place(at, sizeof quad);
    __builtin_memcpy(at, &quad, sizeof quad);
}

struct gpu_two {
    float x[2];
};

static inline float gpu_f16_to_f32(uint16_t h) { return quant_f16_to_f32(h); }
static inline uint16_t gpu_f32_to_f16(float x) { return quant_f32_to_f16(x); }

template <class T> static inline void gpu_raise(T *at, T x)
{
    *at = x > *at ? x : *at;
}

static inline uint32_t gpu_count_up(uint32_t *at) { return (*at)++; }
template <class T> static inline void gpu_read_args(const T &) {}

/* ---- shared memory --------------------------------------------------------------------------- */

enum emulator_use { EMULATOR_READ, EMULATOR_WRITE };

/* The piece of the block's memory that a declaration names: the same in all threads. */
char *emulator_declare(size_t bytes, size_t alignment);
char *emulator_declare_at(size_t at, size_t bytes);
/* Notes the use of `bytes` at an address, and stops the kernel if it may not be. */
void emulator_note(const char *at, size_t bytes, enum emulator_use use);
void emulator_outside(size_t index, size_t n);

/* An element: reading and writing are noted. */
template <class T> struct emulator_element {
    T *at;
    operator T() const
    {
        emulator_note((const char *)at, sizeof(T), EMULATOR_READ);
        return *at;
    }
    T operator=(T value) const
    {
        emulator_note((const char *)at, sizeof(T), EMULATOR_WRITE);
        return *at = value;
    }
    T operator=(const emulator_element &other) const { return *this = (T)other; }
    T operator+=(T value) const { return *this = (T)(*this) + value; }
    T operator*=(T value) const { return *this = (T)(*this) * value; }
};

template <class T> struct gpu_shared {
    T *first;
    size_t n;
    emulator_element<T> operator[](size_t i) const
    {
        if (i >= n)
            emulator_outside(i, n);
        return emulator_element<T>{first + i};
    }
    /* Elements from i on. */
    gpu_shared operator+(size_t i) const
    {
        if (i > n)
            emulator_outside(i, n);
        return gpu_shared{first + i, n - i};
    }
};

static inline struct gpu_quad gpu_take_quad(const gpu_shared<float> &x, size_t i)
{
    return {{x[i], x[i + 1], x[i + 2], x[i + 3]}};
}
static inline struct gpu_quad gpu_take_quad_now(const gpu_shared<float> &x, size_t i)
{
    return gpu_take_quad(x, i);
}

static inline struct gpu_two gpu_take_two(const gpu_shared<float> &x, size_t i)
{
    return {{x[i], x[i + 1]}};
}

static inline void gpu_put_quad(const gpu_shared<float> &x, size_t i, struct gpu_quad quad)
{
    for (unsigned e = 0; e < 4; e++)
        x[i + e] = quad.x[e];
}

#define GPU_SHARED(T, name, n)                                                                     \
    const gpu_shared<T> name = {(T *)emulator_declare(sizeof(T) * (n), alignof(T)), (n)}
#define GPU_SHARED_AT(T, name, at, n)                                                              \
    const gpu_shared<T> name = {(T *)emulator_declare_at((at), sizeof(T) * (n)), (n)}

#endif
