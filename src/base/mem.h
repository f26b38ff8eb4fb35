/* Checked sizes and allocation. Every allocation of the library goes through here, so that a
 * size computed from a file cannot overflow, a failed allocation always has a sentence, and
 * tests can make the Nth one fail. Any thread may call anything; mem_fail_at is for tests. */
#ifndef FLASHMOE_BASE_MEM_H
#define FLASHMOE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MEM_CACHE_LINE 64
#define MEM_PAGE 4096
#define MEM_LARGE_PAGE (2u << 20)

/* True and *out set, or false on overflow. */
static inline bool mem_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool mem_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* `align` is a power of two; the caller knows that n + align does not overflow. */
static inline uint64_t mem_round_up(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* `n * bytes` zeroed bytes, never NULL for size 0. `what` names the purpose in the error. */
void *mem_new(uint64_t n, uint64_t bytes, const char *what, struct fm_error *err);

/* Uninitialised, aligned to `align` (a power of two of at least 16). Free with mem_free. */
void *mem_new_aligned(uint64_t align, uint64_t bytes, const char *what, struct fm_error *err);

/* Uninitialised memory that is read in bulk: page-aligned, in large pages where the system gives
 * them on request (docs/BENCHMARKS.md has what they give). No page reaches beyond `bytes` rounded
 * up to MEM_PAGE. Free with mem_free. */
void *mem_new_bulk(uint64_t bytes, const char *what, struct fm_error *err);
/* What such memory of so many bytes is given back in without breaking up a page. */
uint64_t mem_bulk_page(uint64_t bytes);

/* Memory that grows and shrinks at its end and stays where it is: addresses for all of it, memory
 * for what is in use, in pages that pieces of so many bytes fill. New memory is zero. */
struct mem_range {
    char *at;
    uint64_t all_bytes, used_bytes; /* whole pages */
    uint64_t page_bytes;
};
/* What `bytes` of such a range take, with pieces of piece_bytes; UINT64_MAX on overflow. */
uint64_t mem_range_bytes(uint64_t piece_bytes, uint64_t bytes);
int mem_range_open(struct mem_range *range, uint64_t piece_bytes, uint64_t bytes, const char *what,
                   struct fm_error *err);
/* At most what it was opened with. Fewer never fails; FM_ERR_NOMEM: it is as it was. */
int mem_range_resize(struct mem_range *range, uint64_t bytes, const char *what,
                     struct fm_error *err);
void mem_range_close(struct mem_range *range); /* accepts a zeroed one */

/* Grows *array to at least `need` elements by doubling; *capacity is updated. 0 or FM_ERR_NOMEM,
 * the old array still valid. */
int mem_grow(void **array, size_t *capacity, size_t need, size_t element_bytes, const char *what,
             struct fm_error *err);

char *mem_strdup(const char *text, struct fm_error *err);

void mem_free(void *p);

/* Tests: the nth allocation from now fails (1 = the next one), 0 switches it off. */
void mem_fail_at(long nth);
/* Allocations the calling thread has made. */
long mem_count(void);

#ifdef __cplusplus
}
#endif
#endif
