#include "base/mem.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/lease.h"
#include "base/plat.h"

/* Bytes that an allocation takes beyond its usable size. */
#define BLOCK_OVERHEAD 16
/* Blocks of at least this size are mapped one by one (plat_memory_return_large). */
#define LARGE_BLOCK (128u << 10)
/* Bytes that a lease takes from its account at a time; small leases take less. */
#define LEASE_STEP (64u << 10)
#define LEASE_STEP_SMALL (4u << 10)

static _Thread_local long n_allocations;
static _Thread_local struct mem_lease *lease; /* NULL when nothing is counted */
/* Only a counter: it publishes no other memory, so relaxed order is enough. */
static atomic_long fail_countdown;

static bool must_fail(void)
{
    n_allocations++;
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) == 0)
        return false;
    return atomic_fetch_sub_explicit(&fail_countdown, 1, memory_order_relaxed) == 1;
}

/* ---- accounts ------------------------------------------------------------------------------- */

bool mem_account_take(struct mem_account *account, uint64_t bytes, uint64_t spare)
{
    uint64_t used = __atomic_load_n(&account->used, __ATOMIC_RELAXED), after;
    do {
        if (!mem_add(used, bytes, &after) || spare > account->limit ||
            after > account->limit - spare)
            return false;
    } while (!__atomic_compare_exchange_n(&account->used, &used, after, true, __ATOMIC_RELAXED,
                                          __ATOMIC_RELAXED));
    return true;
}

void mem_account_give(struct mem_account *account, uint64_t bytes)
{
    const uint64_t before = __atomic_fetch_sub(&account->used, bytes, __ATOMIC_RELAXED);
    assert(before >= bytes);
    (void)before;
}

uint64_t mem_account_used(const struct mem_account *account)
{
    return __atomic_load_n(&account->used, __ATOMIC_RELAXED);
}

uint64_t mem_lease_spare(const struct mem_lease *l, uint64_t bytes)
{
    const uint64_t limit = l->account->limit;
    const uint64_t part = l->is_answered ? limit / 32 : 0;
    if (bytes > (part > MEM_LEASE_SMALL ? part : MEM_LEASE_SMALL))
        return limit / 8;
    return l->is_answered ? 0 : limit / 16;
}

uint64_t mem_lease_max(const struct mem_lease *l)
{
    return l->account->limit - mem_lease_spare(l, UINT64_MAX);
}

void mem_lease_enter(struct mem_lease *l)
{
    assert(lease == NULL);
    lease = l;
}

void mem_lease_leave(void)
{
    assert(lease != NULL);
    lease = NULL;
}

void mem_lease_cancel(struct mem_lease *l)
{
    __atomic_store_n(&l->is_cancelled, true, __ATOMIC_RELAXED);
}

void mem_lease_settle(struct mem_lease *l)
{
    const uint64_t used = l->used > 0 ? (uint64_t)l->used : 0;
    if (l->taken > used)
        mem_account_give(l->account, l->taken - used);
    l->taken = l->taken > used ? used : l->taken;
}

void mem_lease_close(struct mem_lease *l)
{
    if (l->taken > 0)
        mem_account_give(l->account, l->taken);
    l->taken = 0;
    l->used = 0;
}

/* Returns whether the calling thread may allocate `bytes`. */
static bool lease_allows(uint64_t bytes)
{
    struct mem_lease *l = lease;
    if (l == NULL)
        return true;
    if (l->wanted > 0 || __atomic_load_n(&l->is_cancelled, __ATOMIC_RELAXED))
        return false;
    const uint64_t need = (l->used > 0 ? (uint64_t)l->used : 0) + bytes + BLOCK_OVERHEAD;
    if (need <= l->taken)
        return true;
    const uint64_t more = mem_round_up(need - l->taken,
                                       need < LEASE_STEP ? LEASE_STEP_SMALL : LEASE_STEP);
    if (!mem_account_take(l->account, more, mem_lease_spare(l, need))) {
        l->wanted = l->taken + more;
        return false;
    }
    l->taken += more;
    return true;
}

static void lease_note(void *p)
{
    if (lease != NULL && p != NULL)
        lease->used += (int64_t)(plat_block_bytes(p) + BLOCK_OVERHEAD);
}

static void lease_forget(void *p)
{
    if (lease != NULL && p != NULL)
        lease->used -= (int64_t)(plat_block_bytes(p) + BLOCK_OVERHEAD);
}

void *mem_new_counted(size_t bytes)
{
    (void)lease_allows(bytes); /* never refused; mem_lease_is_over reports it */
    void *p = malloc(bytes > 0 ? bytes : 1);
    lease_note(p);
    return p;
}

bool mem_lease_reserve(uint64_t bytes)
{
    return lease_allows(bytes);
}

bool mem_lease_is_over(void)
{
    return lease != NULL &&
           (lease->wanted > 0 || __atomic_load_n(&lease->is_cancelled, __ATOMIC_RELAXED));
}

/* ---- allocation ----------------------------------------------------------------------------- */

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
    void *p = must_fail() || !lease_allows(total) ? NULL
                                                  : calloc(1, total > 0 ? (size_t)total : 1);
    if (p == NULL)
        (void)out_of_memory(total, what, err);
    lease_note(p);
    return p;
}

void *mem_new_aligned(uint64_t align, uint64_t bytes, const char *what, struct fm_error *err)
{
    void *p = NULL;
    bool ok = bytes <= SIZE_MAX / 2 && !must_fail() && lease_allows(bytes) &&
              posix_memalign(&p, (size_t)align, bytes > 0 ? (size_t)bytes : 1) == 0;
    if (!ok) {
        (void)out_of_memory(bytes, what, err);
        return NULL;
    }
    lease_note(p);
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
    /* realloc needs both copies of a small block at once; a large block grows in place. */
    const uint64_t old = lease != NULL && *array != NULL ? plat_block_bytes(*array) : 0;
    if (must_fail() || !lease_allows(old >= LARGE_BLOCK && old <= total ? total - old : total))
        return out_of_memory(total, what, err);
    lease_forget(*array);
    void *p = realloc(*array, (size_t)total);
    lease_note(p != NULL ? p : *array);
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
    lease_forget(p);
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
