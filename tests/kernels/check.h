/* What the parts of checkkernel share. A case is one call of one kernel with random arguments. The
 * case function takes its buffers, fills them, and runs the kernel once per side. Side 0 is the
 * reference, the others are the levels under test. Every output exists once per side.
 *
 * Buffers are borrowed until the next case. They lie next to inaccessible pages, or between bytes
 * that must not change. One thread. Errors of the program itself end it. */
#ifndef FLASHMOE_KERNELS_CHECK_H
#define FLASHMOE_KERNELS_CHECK_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cpu/levels.h"

#define MAX_SIDES 6
#define TEXT_BYTES 512

/* ---- random values: values.c ----------------------------------------------------------------- */

struct rng {
    uint64_t state;
};

enum values { ORDINARY, WIDE, TINY, GIANT, ZEROS, SPECIAL, N_VALUES };

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n);
uint64_t hash_text(uint64_t hash, const char *text);
uint64_t rng_next(struct rng *rng);
/* Returns a number from [0, n), evenly distributed; 0 if n is 0. */
size_t rng_below(struct rng *rng, size_t n);
size_t rng_between(struct rng *rng, size_t first, size_t last);
bool rng_chance(struct rng *rng, unsigned one_in);
void rng_bytes(struct rng *rng, void *to, size_t n);
/* Returns a kind of values, mostly ordinary. */
enum values rng_values(struct rng *rng);
float rng_float(struct rng *rng, enum values values);
void rng_floats(struct rng *rng, enum values values, float *to, size_t n);
/* Returns 1 to max, often at or next to a multiple of 16. */
size_t rng_length(struct rng *rng, size_t max);

/* Blocks of random bytes of one format, sorted by the kind of values they decode to. */
enum blocks { BLOCKS_ORDINARY, BLOCKS_FINITE, BLOCKS_ANY, N_BLOCKS };
#define POOL_BLOCKS 128

struct pool {
    const struct quant *format;
    uint8_t *parts[N_BLOCKS][QUANT_MAX_PARTS]; /* [POOL_BLOCKS] blocks each */
};

void pool_init(struct pool *pool, const struct quant *format, uint64_t seed);
void pool_clear(struct pool *pool);
/* Fills in n blocks of one part, in runs from the pool. */
void pool_fill(const struct pool *pool, enum blocks blocks, unsigned part, struct rng *rng,
               void *to, size_t n);

/* ---- one case: case.c ------------------------------------------------------------------------ */

enum element { BYTES, INT32, FLOAT32, FLOAT16 };

struct failure {
    unsigned n;     /* cases */
    uint64_t index; /* of the first, which `text` describes */
    char text[TEXT_BYTES];
};

struct check {
    struct rng rng;
    const struct kernels *tables[MAX_SIDES];
    const char *names[MAX_SIDES];
    unsigned n_sides, side;
    bool has_no_pages;          /* no buffer touches an inaccessible page */
    bool is_skipped[MAX_SIDES]; /* this kernel is the same as in a lower level */
    const struct quant *format; /* of the weights */
    const struct kv_format *kv; /* of keys and values */
    const struct pool *pool;
    char shape[TEXT_BYTES];
    uint64_t index, seed; /* of the case */
    bool has_failed[MAX_SIDES]; /* in this case */
    struct failure failures[MAX_SIDES];
    uint64_t hash; /* of all outputs of side 0 so far */
    sigjmp_buf fault;
};

/* Returns a buffer that the kernel only reads. */
void *take_input(struct check *c, const char *name, size_t bytes, size_t alignment);
/* Returns n random floats of one kind. */
float *take_floats(struct check *c, const char *name, size_t n, enum values values);
/* Takes a buffer per side. out() returns that of the current side. Before the first side runs, the
 * initial contents may be written to out(); by default they are a pattern of numbers. */
unsigned take_output(struct check *c, const char *name, enum element element, size_t n,
                     size_t alignment);
unsigned take_scratch(struct check *c, size_t n_floats, size_t alignment);
void *out(struct check *c, unsigned output);
void *out_of(unsigned output, unsigned side);
void describe(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Runs the statement for every side. k is the side's table. */
#define EACH_SIDE(c, k)                                                                            \
    for (const struct kernels *k = side_first(c); k != NULL; k = side_next(c))
const struct kernels *side_first(struct check *c);
const struct kernels *side_next(struct check *c);
void side_fail(struct check *c, unsigned side, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Runs case `index` of a seed: the function, then the comparison of all outputs. */
void case_run(struct check *c, void (*function)(struct check *c), uint64_t seed, uint64_t index);
void case_init(void);
/* Ends the case as failed, with this message. */
void case_stop(const char *message);
/* From now on, buffers come from there: no inaccessible pages are beside them. */
void case_use_memory(void *(*make)(size_t bytes));
/* From now on, buffers begin at multiples of that at least. */
void case_align(size_t alignment);

/* ---- what is checked ------------------------------------------------------------------------- */

enum formats { NO_FORMAT, WEIGHT_FORMATS, KV_FORMATS };

struct family {
    const char *name;
    size_t member;    /* its offset in struct kernels */
    unsigned weight;  /* cases per round */
    enum formats formats;
    void (*run)(struct check *c);
};

void check_quantize_row(struct check *c); /* check_matmul.c */
void check_matmul(struct check *c);
void check_rms_norm(struct check *c); /* check_rows.c */
void check_rope_angles(struct check *c);
void check_rotate(struct check *c);
void check_route_row(struct check *c);
void check_route_scored(struct check *c);
void check_gelu_mul(struct check *c);
void check_clamped_swiglu(struct check *c);
void check_silu_mul(struct check *c);
void check_weighted_sum(struct check *c);
void check_add_scaled_sigmoid(struct check *c);
void check_add(struct check *c);
void check_int8_peak(struct check *c);
void check_fma_peak(struct check *c);
void check_store_kv(struct check *c); /* check_mix.c */
void check_attend(struct check *c);
void check_attend_merge(struct check *c);
void check_attend_sink(struct check *c);
void check_attend_close(struct check *c);
void check_conv_silu(struct check *c);
void check_delta_head(struct check *c);

/* ---- how fast: bench.c and peak.c ------------------------------------------------------------ */

struct bench_options {
    const char *level, *kernel, *format; /* NULL: all, or a selection of formats */
};

int bench_run(const struct bench_options *options);

/* Return the speed limits of one thread with the instructions of a level: bytes per second read
 * from a buffer at a multiple of 64 bytes, and operations per second of int8 by int8 into int32,
 * and of floats, without memory. 0: not known. */
double peak_read(const char *level, const void *buffer, size_t bytes);
double peak_int8(const char *level);
double peak_float(const char *level);
double seconds_now(void);

#endif
