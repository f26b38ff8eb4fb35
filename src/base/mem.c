#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/plat.h"

static _Thread_local long n_allocations;
/* A counter only: no other memory is published through it, so relaxed order is enough. */
static atomic_long fail_countdown;

static bool must_fail(void)
{
    n_allocations++;
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0)
        return false;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

static int out_of_memory(uint64_t bytes, const char *what, struct fm_error *err)
{
    return err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate %llu bytes for %s",
                   (unsigned long long)bytes, what);
}

void *mem_new(uint64_t n, uint64_t bytes, const char *what, struct fm_error *err)
{
    uint64_t total;
    if (!mem_mul(n, bytes, &total) || total > SIZE_MAX / 2) {
        (void)err_set(err, FM_ERR_NOMEM, "size overflow: %llu x %llu bytes for %s",
                      (unsigned long long)n, (unsigned long long)bytes, what);
        return NULL;
    }
    void *p = must_fail() ? NULL : calloc(1, total > 0 ? (size_t)total : 1);
    if (p == NULL)
        (void)out_of_memory(total, what, err);
    return p;
}

void *mem_new_aligned(uint64_t align, uint64_t bytes, const char *what, struct fm_error *err)
{
    void *p = NULL;
    bool ok = bytes <= SIZE_MAX / 2 && !must_fail() &&
              posix_memalign(&p, (size_t)align, bytes > 0 ? (size_t)bytes : 1) == 0;
    if (!ok) {
        (void)out_of_memory(bytes, what, err);
        return NULL;
    }
    return p;
}

uint64_t mem_bulk_page(uint64_t bytes)
{
    return bytes < 2 * (uint64_t)MEM_LARGE_PAGE ? MEM_PAGE : MEM_LARGE_PAGE;
}

void *mem_new_bulk(uint64_t bytes, const char *what, struct fm_error *err)
{
    if (mem_bulk_page(bytes) == MEM_PAGE)
        return mem_new_aligned(MEM_PAGE, bytes, what, err);
    void *p = mem_new_aligned(MEM_LARGE_PAGE, bytes, what, err);
    const uint64_t whole = bytes / MEM_LARGE_PAGE * MEM_LARGE_PAGE;
    if (p == NULL)
        return NULL;
    plat_want_large_pages(p, whole);
    if (bytes > whole)
        plat_refuse_large_pages((char *)p + whole, bytes - whole);
    return p;
}

static uint64_t range_page(uint64_t piece_bytes)
{
    return piece_bytes < MEM_LARGE_PAGE ? MEM_PAGE : MEM_LARGE_PAGE;
}

uint64_t mem_range_bytes(uint64_t piece_bytes, uint64_t bytes)
{
    return bytes > SIZE_MAX / 2 ? UINT64_MAX : mem_round_up(bytes, range_page(piece_bytes));
}

int mem_range_open(struct mem_range *range, uint64_t piece_bytes, uint64_t bytes, const char *what,
                   struct fm_error *err)
{
    const uint64_t all = mem_range_bytes(piece_bytes, bytes);
    *range = (struct mem_range){.page_bytes = range_page(piece_bytes)};
    if (bytes == 0)
        return 0;
    range->at = all == UINT64_MAX || must_fail() ? NULL : plat_range_reserve(all);
    if (range->at == NULL)
        return out_of_memory(bytes, what, err);
    range->all_bytes = all;
    if (range->page_bytes == MEM_LARGE_PAGE)
        plat_want_large_pages(range->at, all);
    else
        plat_refuse_large_pages(range->at, all);
    return 0;
}

int mem_range_resize(struct mem_range *range, uint64_t bytes, const char *what,
                     struct fm_error *err)
{
    const uint64_t used = mem_round_up(bytes, range->page_bytes), now = range->used_bytes;
    assert(used <= range->all_bytes);
    if (used > now && (must_fail() || !plat_range_commit(range->at + now, used - now)))
        return out_of_memory(used - now, what, err);
    if (used < now)
        plat_range_decommit(range->at + used, now - used);
    range->used_bytes = used;
    return 0;
}

void mem_range_close(struct mem_range *range)
{
    if (range->at != NULL)
        plat_range_release(range->at, range->all_bytes);
    *range = (struct mem_range){0};
}

int mem_grow(void **array, size_t *capacity, size_t need, size_t element_bytes, const char *what,
             struct fm_error *err)
{
    if (need <= *capacity)
        return 0;
    uint64_t wanted = *capacity > 0 ? (uint64_t)*capacity * 2 : 16;
    if (wanted < need)
        wanted = need;
    uint64_t total;
    if (!mem_mul(wanted, element_bytes, &total) || total > SIZE_MAX / 2)
        return out_of_memory(UINT64_MAX, what, err);
    void *p = must_fail() ? NULL : realloc(*array, (size_t)total);
    if (p == NULL)
        return out_of_memory(total, what, err);
    *array = p;
    *capacity = (size_t)wanted;
    return 0;
}

char *mem_strdup(const char *text, struct fm_error *err)
{
    size_t bytes = strlen(text) + 1;
    char *copy = mem_new(bytes, 1, "a string", err);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

void mem_free(void *p)
{
    free(p);
}

void mem_fail_at(long nth)
{
    atomic_store_explicit(&fail_countdown, nth, memory_order_relaxed);
}

long mem_count(void)
{
    return n_allocations;
}
