/* Accounts: memory that several requests share, up to a limit. The allocator (mem.c) counts what is
 * allocated under a lease, so that nobody has to guess what parsed JSON or a rendered template
 * takes. An account belongs to whoever declares it and outlives its leases. */
#ifndef FLASHMOE_BASE_LEASE_H
#define FLASHMOE_BASE_LEASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A limit on memory that several threads and requests share. Any thread may call these. */
struct mem_account {
    uint64_t limit;
    uint64_t used; /* accessed atomically */
};
/* Takes `bytes`, unless fewer than `spare` would be left of the limit. */
bool mem_account_take(struct mem_account *account, uint64_t bytes, uint64_t spare);
void mem_account_give(struct mem_account *account, uint64_t bytes);
uint64_t mem_account_used(const struct mem_account *account);

/* Counts the allocations of one request. Between mem_lease_enter and mem_lease_leave, what the
 * calling thread allocates is taken from the account in advance, and an allocation fails when the
 * account has no room. One thread at a time; only mem_lease_cancel may be called by others. */
struct mem_lease {
    struct mem_account *account;
    uint64_t taken;        /* of the account: at least `used` */
    int64_t used;          /* allocated and not freed; frees outside the lease are not seen */
    uint64_t wanted;       /* 0, or what `used` would have become when an allocation was refused;
                            * from then on all are */
    bool is_cancelled;     /* accessed atomically: every allocation fails */
    bool is_answered;      /* by a job: it may use what others leave free */
};
/* Leases up to this size leave a sixteenth of the account free, for what is being answered; larger
 * ones leave an eighth, so that a few large requests do not shut out small ones. Those that are
 * being answered may use all of it up to this size or a part in 32, and then leave an eighth. */
#define MEM_LEASE_SMALL (256u << 10)
/* What the lease leaves free of its account when it has so many bytes. */
uint64_t mem_lease_spare(const struct mem_lease *lease, uint64_t bytes);
/* The most that the lease can ever have. */
uint64_t mem_lease_max(const struct mem_lease *lease);
void mem_lease_enter(struct mem_lease *lease);
void mem_lease_leave(void);
void mem_lease_cancel(struct mem_lease *lease);
/* Gives back what was taken beyond `used`. */
void mem_lease_settle(struct mem_lease *lease);
/* Gives back all of it. */
void mem_lease_close(struct mem_lease *lease);
/* Takes `bytes` in advance, for what the calling thread will allocate under its lease. True without
 * a lease. */
bool mem_lease_reserve(uint64_t bytes);
/* Whether the calling thread's lease has refused memory or was cancelled. */
bool mem_lease_is_over(void);
/* malloc that counts, for a library that takes an allocator; mem_free frees. It does not fail where
 * the account has no room, because jansson's parser reads past its buffers then: whoever calls the
 * library reserves what it takes, or looks at mem_lease_is_over from time to time. */
void *mem_new_counted(size_t bytes);


#ifdef __cplusplus
}
#endif
#endif
