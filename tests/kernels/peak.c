/* Measures the speed limit of one thread with the instructions of a level. Each loop is compiled
 * for its own level, and runs only if the machine has it. */
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define N_STEPS 200000 /* of twelve instructions or chains: a few milliseconds */

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Twelve independent chains: enough to hide the latency, few enough for 16 registers. Their initial
 * values are hidden from the compiler, or it would merge them. */
#define TWELVE(S) S(0) S(1) S(2) S(3) S(4) S(5) S(6) S(7) S(8) S(9) S(10) S(11)
#define DECLARE(i)                                                                                 \
    vector acc##i = start;                                                                         \
    __asm__ volatile("" : "+" REGISTER(acc##i));
#define KEEP(i) __asm__ volatile("" : : REGISTER(acc##i));

/* Defines a function that returns operations per second. `ops` is the number in one STEP. */
#define CHAIN_LOOP(name, target_isa, vector_type, start_value, operand_value, STEP, ops)           \
    __attribute__((target(target_isa))) static double name(void)                                   \
    {                                                                                              \
        typedef vector_type vector;                                                                \
        const vector start = (start_value);                                                        \
        vector a = (operand_value);                                                                \
        __asm__ volatile("" : "+" REGISTER(a));                                                    \
        TWELVE(DECLARE)                                                                            \
        const double begin = seconds_now();                                                        \
        for (unsigned step = 0; step < N_STEPS; step++) {                                          \
            TWELVE(STEP)                                                                           \
        }                                                                                          \
        TWELVE(KEEP)                                                                               \
        return (ops) * 12.0 * N_STEPS / (seconds_now() - begin);                                   \
    }

/* Reads the buffer with vectors of this many bytes, as eight streams side by side, four vectors of
 * each in turn. A single stream does not reach the full memory bandwidth. */
#define N_STREAMS 8
#define READ_LOOP(name, target_isa, vector_bytes)                                                  \
    __attribute__((target(target_isa))) static double name(const void *buffer, size_t bytes)       \
    {                                                                                              \
        typedef uint64_t vector __attribute__((vector_size(vector_bytes), may_alias));             \
        vector a = {0}, b = {0}, c = {0}, d = {0};                                                 \
        const size_t n = bytes / sizeof a / 4 / N_STREAMS * 4;                                     \
        const double begin = seconds_now();                                                        \
        for (size_t i = 0; i < n; i += 4)                                                          \
            for (unsigned s = 0; s < N_STREAMS; s++) {                                             \
                const vector *p = (const vector *)buffer + s * n + i;                              \
                a ^= p[0], b ^= p[1], c ^= p[2], d ^= p[3];                                        \
            }                                                                                      \
        const double seconds = seconds_now() - begin;                                              \
        a ^= b ^ c ^ d;                                                                            \
        __asm__ volatile("" : : REGISTER(a));                                                      \
        return (double)(n * N_STREAMS * sizeof a) / seconds;                                       \
    }

struct peak {
    const char *level;
    double (*int8)(void), (*flt)(void), (*read)(const void *buffer, size_t bytes);
};

#if defined(__x86_64__)
#define REGISTER_CLASS "v"
#define REGISTER(x) REGISTER_CLASS(x)

/* The product is separate from the sum: it is recomputed from values that may have changed. */
#define INT8_AVX2(i)                                                                               \
    __asm__ volatile("" : "+" REGISTER(a));                                                        \
    acc##i = _mm256_add_epi32(acc##i, _mm256_madd_epi16(_mm256_maddubs_epi16(a, a), a));
#define INT8_AVX512(i) acc##i = _mm512_dpbusd_epi32(acc##i, a, a);
#define FLOAT_AVX2(i) acc##i = _mm256_fmadd_ps(a, a, acc##i);
#define FLOAT_AVX512(i) acc##i = _mm512_fmadd_ps(a, a, acc##i);

#define AVX512 "avx512f,avx512bw,avx512vl,avx512vnni"
CHAIN_LOOP(int8_avx2, "avx2", __m256i, _mm256_setzero_si256(), _mm256_set1_epi8(1), INT8_AVX2, 64)
CHAIN_LOOP(int8_avx512, AVX512, __m512i, _mm512_setzero_si512(), _mm512_set1_epi8(1), INT8_AVX512,
           128)
CHAIN_LOOP(float_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), _mm256_set1_ps(1), FLOAT_AVX2, 16)
CHAIN_LOOP(float_avx512, AVX512, __m512, _mm512_setzero_ps(), _mm512_set1_ps(1), FLOAT_AVX512, 32)
READ_LOOP(read_plain, "sse2", 16)
READ_LOOP(read_avx2, "avx2", 32)
READ_LOOP(read_avx512, "avx512f", 64)

#if defined(__linux__)
/* Four tiles of sums, the maximum that leaves room for the operands: 16 x 16 x 64 products per
 * step. */
__attribute__((target("amx-tile,amx-int8"))) static double int8_amx(void)
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (unsigned i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "m"(config)); /* GCC 12 assumes that only its first bytes are read */
    _tile_loadconfig(&config);
    const double begin = seconds_now();
    for (unsigned step = 0; step < N_STEPS; step++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 5, 6);
        _tile_dpbusd(2, 4, 7);
        _tile_dpbusd(3, 5, 7);
    }
    const double seconds = seconds_now() - begin;
    _tile_release();
    return 4 * 2 * 16 * 16 * 64.0 * N_STEPS / seconds;
}
#else
#define int8_amx NULL
#endif

static const struct peak peaks[] = {
    {"reference", NULL, NULL, read_plain},
    {"avx2", int8_avx2, float_avx2, read_avx2},
    {"avx512", int8_avx512, float_avx512, read_avx512},
    {"amx", int8_amx, float_avx512, read_avx512},
};

#elif defined(__aarch64__)
#define REGISTER_CLASS "w"
#define REGISTER(x) REGISTER_CLASS(x)

#define INT8_DOTPROD(i) acc##i = vdotq_s32(acc##i, bytes_of(a), bytes_of(a));
#define INT8_I8MM(i) acc##i = vmmlaq_s32(acc##i, bytes_of(a), bytes_of(a));
#define FLOAT_NEON(i) acc##i = vfmaq_f32(acc##i, a, a);
#define bytes_of(x) vreinterpretq_s8_s32(x)

CHAIN_LOOP(int8_dotprod, "arch=armv8.2-a+dotprod", int32x4_t, vdupq_n_s32(0),
           vdupq_n_s32(0x01010101), INT8_DOTPROD, 32)
CHAIN_LOOP(int8_i8mm, "arch=armv8.2-a+i8mm", int32x4_t, vdupq_n_s32(0), vdupq_n_s32(0x01010101),
           INT8_I8MM, 64)
CHAIN_LOOP(float_neon, "arch=armv8-a", float32x4_t, vdupq_n_f32(0), vdupq_n_f32(1), FLOAT_NEON, 8)
READ_LOOP(read_neon, "arch=armv8-a", 16)

static const struct peak peaks[] = {
    {"reference", NULL, NULL, read_neon},
    {"dotprod", int8_dotprod, float_neon, read_neon},
    {"i8mm", int8_i8mm, float_neon, read_neon},
};
#endif

#define N_TRIES 5

static const struct peak *peak_find(const char *level)
{
    for (unsigned i = 0; i < sizeof peaks / sizeof peaks[0]; i++)
        if (strcmp(peaks[i].level, level) == 0)
            return &peaks[i];
    return NULL;
}

static double best_of(double (*loop)(void))
{
    double best = 0;
    for (unsigned i = 0; i < N_TRIES && loop != NULL; i++) {
        const double now = loop();
        best = now > best ? now : best;
    }
    return best;
}

double peak_int8(const char *level)
{
    const struct peak *peak = peak_find(level);
    return peak != NULL ? best_of(peak->int8) : 0;
}

double peak_float(const char *level)
{
    const struct peak *peak = peak_find(level);
    return peak != NULL ? best_of(peak->flt) : 0;
}

double peak_read(const char *level, const void *buffer, size_t bytes)
{
    const struct peak *peak = peak_find(level);
    const unsigned n_tries = bytes < 8u << 20 ? 200 : N_TRIES;
    double best = 0;
    for (unsigned i = 0; i < n_tries && peak != NULL; i++) {
        const double now = peak->read(buffer, bytes);
        best = now > best ? now : best;
    }
    return best;
}
