#include "backend/cuda/device_emulated.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

#include "backend/cuda/kernels_all.h"

struct entry {
    const char *name;
    size_t args_bytes;
    void (*run)(const void *args);
};

#define GPU_ENTRY(kernel)                                                                          \
    static void run_##kernel(const void *args)                                                     \
    {                                                                                              \
        struct gpu_##kernel##_args a;                                                              \
        memcpy(&a, args, sizeof a);                                                                \
        gpu_##kernel(a);                                                                           \
    }
#include "backend/cuda/kernel_list.h"
#undef GPU_ENTRY

static const struct entry entries[] = {
#define GPU_ENTRY(kernel) {#kernel, sizeof(struct gpu_##kernel##_args), run_##kernel},
#include "backend/cuda/kernel_list.h"
#undef GPU_ENTRY
};

static void submit(struct gpu_device *d, const struct gpu_batch *batch)
{
    if (d->ops->failure(d) != NULL)
        return;
    if (batch->list_bytes > 0)
        memcpy(batch->lists, batch->host_lists, batch->list_bytes);
    for (size_t i = 0; i < batch->n; i++) {
        const struct gpu_launch *l = &batch->commands[i].launch;
        const struct entry *entry = &entries[l->kernel];
        if (batch->commands[i].args_bytes != entry->args_bytes)
            abort();
        struct emulator_grid grid = {l->n_blocks_x, l->n_blocks_y, l->n_threads, l->shared_bytes};
        emulator_run(entry->name, &grid, entry->run, batch->commands[i].args);
    }
}

static void close(struct gpu_device *) {}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint64_t used_bytes; /* of its memory */
static uint64_t (*other_bytes)(void);

void device_emulated_share(uint64_t (*others)(void))
{
    other_bytes = others;
}

static uint64_t free_bytes(struct gpu_device *d)
{
    const uint64_t used = used_bytes + (other_bytes != NULL ? other_bytes() : 0);
    return d->total_bytes > used ? d->total_bytes - used : 0;
}

static void *make(struct gpu_device *d, uint64_t bytes)
{
    void *at = NULL;
    if (bytes > free_bytes(d) || posix_memalign(&at, 256, bytes > 0 ? bytes : 1) != 0)
        return NULL;
    used_bytes += malloc_usable_size(at);
    return at;
}

static void *host_make(struct gpu_device *, uint64_t bytes)
{
    void *at = NULL;
    return posix_memalign(&at, 4096, bytes > 0 ? bytes : 1) == 0 ? at : NULL;
}

static void release_block(struct gpu_device *, void *at)
{
    used_bytes -= malloc_usable_size(at);
    free(at);
}

static void host_release(struct gpu_device *, void *at)
{
    free(at);
}

/* Addresses without memory cannot be touched, so whoever still uses them is stopped. */
static void *reserve(struct gpu_device *, uint64_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void release(struct gpu_device *, void *at, uint64_t bytes)
{
    munmap(at, bytes);
}

static bool map(struct gpu_device *d, void *at, uint64_t bytes)
{
    if (bytes > free_bytes(d) || mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    used_bytes += bytes;
    return true;
}

/* Transfers wait for the last moment, so that whoever does not wait for them gets other bits. */
struct move_later {
    void *to;
    const void *from;
    uint64_t bytes;
};
static std::vector<move_later> transfers;

static bool touches(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes)
{
    return (const char *)a < (const char *)b + b_bytes &&
           (const char *)b < (const char *)a + a_bytes;
}

/* Stops the program if memory is taken away that a transfer still reads or writes. */
static void check_transfers(const void *at, uint64_t bytes)
{
    for (const move_later &t : transfers)
        if (touches(at, bytes, t.to, t.bytes) || touches(at, bytes, t.from, t.bytes)) {
            fprintf(stderr, "emulator: memory is taken away before a transfer of it has ended\n");
            abort();
        }
}

static void unmap(struct gpu_device *, void *at, uint64_t bytes)
{
    check_transfers(at, bytes);
    used_bytes -= bytes;
    madvise(at, bytes, MADV_DONTNEED);
    mprotect(at, bytes, PROT_NONE);
}

static void move(struct gpu_device *, void *to, const void *from, uint64_t bytes)
{
    memmove(to, from, bytes);
}

static void clear(struct gpu_device *, void *at, uint64_t bytes)
{
    memset(at, 0, bytes);
}

static void finish(struct gpu_device *) {}

static bool is_seen(struct gpu_device *, const void *, uint64_t)
{
    return true;
}

static uint64_t mark(struct gpu_device *)
{
    return 1;
}

static void transfer(struct gpu_device *, void *to, const void *from, uint64_t bytes, uint64_t)
{
    transfers.push_back({to, from, bytes});
}

static void settle(struct gpu_device *)
{
    for (const move_later &t : transfers)
        memmove(t.to, t.from, t.bytes);
    transfers.clear();
}

/* Transfers take a while. */
static bool is_settled(struct gpu_device *d)
{
    static unsigned n_looks;
    if (++n_looks % 3 == 0)
        settle(d);
    return transfers.empty();
}

static bool pin(struct gpu_device *, void *, uint64_t)
{
    return true;
}

static void unpin(struct gpu_device *, void *at, uint64_t bytes)
{
    check_transfers(at, bytes);
}

static const char *failed_with;

static const char *failure(struct gpu_device *)
{
    return failed_with;
}

void device_emulated_fail(const char *why)
{
    failed_with = why;
}

struct gpu_device *device_emulated(void)
{
    static const struct gpu_device_ops ops = {
        close, make, release_block, reserve, release, map, unmap, submit, move, clear,
        move, move, finish, move, is_seen, move, mark, transfer, transfer, settle, settle,
        is_settled, pin, unpin, host_make, host_release, free_bytes, failure};
    /* Small pages: of small models too, memory is given back soon. */
    static struct gpu_device device = {&ops, "emulated", 1ull << 34, 4096, true};
    return &device;
}

void device_emulated_on_fault(void (*fault)(const char *message))
{
    emulator_on_fault(fault);
}
