/* Limits the memory that requests use together. An account is a shared limit; a lease counts the
 * allocations of one request against it. The allocator (mem.c) does the counting, so that the real
 * size of parsed JSON or a rendered template is known. The caller owns accounts and leases; an
 * account outlives its leases. */
#ifndef FLASHMOE_BASE_LEASE_H
#define FLASHMOE_BASE_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A memory limit shared by several threads and requests. Any thread may call these functions. */
struct mem_account {
    uint64_t limit;
    uint64_t used; /* accessed atomically */
};
/* Takes `bytes` from the account. Returns false if that would leave less than `spare` bytes of the
 * limit. */
bool mem_account_take(struct mem_account *account, uint64_t bytes, uint64_t spare);
void mem_account_give(struct mem_account *account, uint64_t bytes);
uint64_t mem_account_used(const struct mem_account *account);

/* Counts the allocations of one request. Between mem_lease_enter and mem_lease_leave, the calling
 * thread's allocations are taken from the account in advance; an allocation fails when the account
 * has no room. One thread at a time, except for mem_lease_cancel, which any thread may call. */
struct mem_lease {
    struct mem_account *account;
    uint64_t taken;        /* from the account, at least `used` */
    int64_t used;          /* allocated and not yet freed; frees outside the lease do not count */
    uint64_t wanted;       /* 0, or the value `used` would have had when an allocation was refused;
                            * all later allocations are refused too */
    bool is_cancelled;     /* accessed atomically; makes every allocation fail */
    bool is_answered;      /* a job is answering the request, so it may use the reserve that other
                            * requests leave free */
};
/* Leases up to this size leave a sixteenth of the account free for requests that are being
 * answered. Larger leases leave an eighth free, so that a few large requests do not shut out small
 * ones. A request that is being answered may use all of the account up to this size or 1/32 of the
 * limit, whichever is larger; above that it leaves an eighth free. */
#define MEM_LEASE_SMALL (256u << 10)
/* Returns how much of its account the lease must leave free when it holds `bytes`. */
uint64_t mem_lease_spare(const struct mem_lease *lease, uint64_t bytes);
/* Returns the maximum that the lease can ever hold. */
uint64_t mem_lease_max(const struct mem_lease *lease);
void mem_lease_enter(struct mem_lease *lease);
void mem_lease_leave(void);
void mem_lease_cancel(struct mem_lease *lease);
/* Returns to the account what was taken in advance and not used. */
void mem_lease_settle(struct mem_lease *lease);
/* Returns everything to the account. */
void mem_lease_close(struct mem_lease *lease);
/* Takes `bytes` in advance for coming allocations of the calling thread. Returns true if the thread
 * has no lease. */
bool mem_lease_reserve(uint64_t bytes);
/* Returns true if the calling thread's lease has refused memory or was cancelled. */
bool mem_lease_is_over(void);
/* A counting malloc for libraries that accept an allocator; free with mem_free. It does not fail
 * when the account has no room, because jansson's parser would then read past its buffers. The
 * caller of such a library must reserve the memory first, or check mem_lease_is_over regularly. */
void *mem_new_counted(size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
