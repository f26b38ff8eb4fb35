/* Checked size arithmetic and allocation. Every allocation of the library goes through these
 * functions. A size computed from a file therefore cannot overflow, every failed allocation has a
 * message, and tests can make the Nth allocation fail. The caller owns what it allocates. Any
 * thread may call every function; mem_fail_at is for tests. */
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

/* Both return false on overflow. */
static inline bool mem_mul(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool mem_add(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

/* Requires that `align` is a power of two and that n + align does not overflow. */
static inline uint64_t mem_round_up(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

/* Returns `n * bytes` zeroed bytes, also a valid pointer for size 0. `what` names the purpose in
 * the error message. Free with mem_free. */
void *mem_new(uint64_t n, uint64_t bytes, const char *what, struct fm_error *err);

/* Returns uninitialised memory aligned to `align`, a power of two of at least 16. Free with
 * mem_free. */
void *mem_new_aligned(uint64_t align, uint64_t bytes, const char *what, struct fm_error *err);

/* Returns uninitialised memory for bulk reads: page-aligned, in large pages where the system grants
 * them (docs/BENCHMARKS.md measures the gain). No page reaches beyond `bytes` rounded up to
 * MEM_PAGE. Free with mem_free. */
void *mem_new_bulk(uint64_t bytes, const char *what, struct fm_error *err);
/* Returns the granularity in which a mem_new_bulk block of `bytes` can be given back without
 * splitting a page. */
uint64_t mem_bulk_page(uint64_t bytes);

/* Memory that grows and shrinks at its end and never moves. The full address range is reserved;
 * only the used part is backed by memory, in pages whose size suits pieces of piece_bytes. New
 * memory is zero. */
struct mem_range {
    char *at;
    uint64_t all_bytes, used_bytes; /* both in whole pages */
    uint64_t page_bytes;
};
/* Returns the memory that `bytes` of such a range take; UINT64_MAX on overflow. */
uint64_t mem_range_bytes(uint64_t piece_bytes, uint64_t bytes);
int mem_range_open(struct mem_range *range, uint64_t piece_bytes, uint64_t bytes, const char *what,
                   struct fm_error *err);
/* Sets the used size, at most the size it was opened with. Shrinking never fails. On FM_ERR_NOMEM
 * the range is unchanged. */
int mem_range_resize(struct mem_range *range, uint64_t bytes, const char *what,
                     struct fm_error *err);
void mem_range_close(struct mem_range *range); /* accepts a zeroed one */

/* Grows *array to at least `need` elements by doubling and updates *capacity. On FM_ERR_NOMEM the
 * old array is still valid. */
int mem_grow(void **array, size_t *capacity, size_t need, size_t element_bytes, const char *what,
             struct fm_error *err);

char *mem_strdup(const char *text, struct fm_error *err);

void mem_free(void *p);

/* For tests: makes the nth allocation from now fail (1 is the next one). 0 switches this off. */
void mem_fail_at(long nth);
/* Returns how many allocations the calling thread has made. */
long mem_count(void);

#ifdef __cplusplus
}
#endif
#endif
