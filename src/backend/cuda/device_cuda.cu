#include "backend/cuda/device_cuda.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/device_copies.cuh"
#include "backend/cuda/kernels_all.h"

/* The oldest architecture that the kernels are compiled for. */
#define MIN_MAJOR 8

#define HOST_PAGE_BYTES (2u << 20) /* where the host's pinned memory begins */

/* A batch that comes again is kept as a graph: its kernels then start without the host. */
#define N_GRAPHS 128 /* of ten kernels each takes 84 KiB of the host's memory */
#define N_SEEN 4096 /* fingerprints of batches that came once */
#define MIN_GRAPH_COMMANDS 4
/* Making one takes as long as fifty launches. So none takes the place of another that was used
 * within so many of them. */
#define GRAPH_LIFE 4096

/* Two lanes carry transfers: while one sends, the next one starts, which takes microseconds. */
#define N_LANES 2

/* Marks whose event is kept. */
#define N_MARKS 64

struct pinned {
    const char *at;
    uint64_t bytes;
};

struct graph {
    uint64_t fingerprint; /* 0: none */
    uint64_t last_use;
    struct gpu_command *commands; /* [n], to be sure */
    size_t n;
    cudaGraphExec_t whole;
};

struct lane {
    cudaStream_t stream;
    cudaEvent_t has_arrived;
    uint64_t mark; /* the last one that it waits for */
    bool is_used;  /* since the queue joined it */
};

/* Calls of the driver that the runtime does not have. */
struct driver {
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*release)(CUdeviceptr, size_t);
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                       unsigned long long);
    CUresult (*drop)(CUmemGenericAllocationHandle);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*unmap)(CUdeviceptr, size_t);
    CUresult (*allow)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    CUresult (*page_bytes)(size_t *, const CUmemAllocationProp *,
                           CUmemAllocationGranularity_flags);
};

struct cuda_device {
    struct gpu_device base;
    int index;
    char name[256];
    struct driver driver;
    CUmemAllocationProp memory;
    cudaStream_t queue;
    bool starts_early; /* the kernels know how to wait for each other */
    struct copies copies;
    struct graph graphs[N_GRAPHS];
    uint64_t seen[N_SEEN];
    uint64_t n_batches; /* the clock of graphs */
    struct lane lanes[N_LANES];
    unsigned lane; /* of the last send */
    bool has_moved, has_sent; /* on lane 0, on lane 1: the other lane has not waited for it */
    cudaEvent_t marks[N_MARKS];
    uint64_t n_marks;
    pthread_mutex_t lock; /* of what follows, which any thread uses */
    struct pinned *pinned; /* [n_pinned], ascending: memory that kernels see */
    size_t n_pinned, max_pinned;
    cudaStream_t filler;
    char failure[256];
    bool has_failed; /* accessed atomically */
};

static const void *const kernels[] = {
#define GPU_ENTRY(kernel) (const void *)gpu_##kernel,
#include "backend/cuda/kernel_list.h"
#undef GPU_ENTRY
};

static const size_t args_bytes[] = {
#define GPU_ENTRY(kernel) sizeof(struct gpu_##kernel##_args),
#include "backend/cuda/kernel_list.h"
#undef GPU_ENTRY
};

static struct cuda_device *cuda_of(struct gpu_device *d)
{
    return (struct cuda_device *)d;
}

/* ---- failures -------------------------------------------------------------------------------- */

/* Also chooses the GPU for the calling thread, of which CUDA remembers one. */
static bool is_broken(struct gpu_device *d)
{
    return __atomic_load_n(&cuda_of(d)->has_failed, __ATOMIC_ACQUIRE) ||
           cudaSetDevice(cuda_of(d)->index) != cudaSuccess;
}

/* Keeps the first failure. The lock must be held. Returns whether there is none. */
static bool note(struct cuda_device *c, const char *what, cudaError_t rc)
{
    if (rc == cudaSuccess)
        return true;
    if (!c->has_failed)
        snprintf(c->failure, sizeof c->failure, "the GPU failed: %s: %s", what,
                 cudaGetErrorString(rc));
    __atomic_store_n(&c->has_failed, true, __ATOMIC_RELEASE);
    return false;
}

static bool check(struct gpu_device *d, const char *what, cudaError_t rc)
{
    if (rc == cudaSuccess)
        return true;
    pthread_mutex_lock(&cuda_of(d)->lock);
    note(cuda_of(d), what, rc);
    pthread_mutex_unlock(&cuda_of(d)->lock);
    return false;
}

static const char *failure(struct gpu_device *d)
{
    return __atomic_load_n(&cuda_of(d)->has_failed, __ATOMIC_ACQUIRE) ? cuda_of(d)->failure : NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *make(struct gpu_device *d, uint64_t bytes)
{
    void *at = NULL;
    if (is_broken(d) || cudaMalloc(&at, bytes > 0 ? bytes : 1) == cudaSuccess)
        return at;
    (void)cudaGetLastError(); /* no memory: the caller reports it */
    return NULL;
}

static void release_block(struct gpu_device *d, void *at)
{
    if (!is_broken(d))
        check(d, "freeing memory", cudaFree(at));
}

static void *reserve(struct gpu_device *d, uint64_t bytes)
{
    CUdeviceptr at = 0;
    if (is_broken(d) || cuda_of(d)->driver.reserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS)
        return NULL;
    return (void *)at;
}

static void release(struct gpu_device *d, void *at, uint64_t bytes)
{
    if (!is_broken(d))
        cuda_of(d)->driver.release((CUdeviceptr)at, bytes);
}

static void unmap(struct gpu_device *d, void *at, uint64_t bytes)
{
    for (uint64_t i = 0; !is_broken(d) && i < bytes; i += d->page_bytes)
        cuda_of(d)->driver.unmap((CUdeviceptr)at + i, d->page_bytes);
}

/* The mapping keeps the page: its handle is not needed again. */
static bool map_page(struct cuda_device *c, CUdeviceptr at)
{
    CUmemGenericAllocationHandle page;
    const size_t bytes = c->base.page_bytes;
    if (c->driver.create(&page, bytes, &c->memory, 0) != CUDA_SUCCESS)
        return false;
    const CUresult rc = c->driver.map(at, bytes, 0, page, 0);
    c->driver.drop(page);
    return rc == CUDA_SUCCESS;
}

static bool map(struct gpu_device *d, void *at, uint64_t bytes)
{
    struct cuda_device *c = cuda_of(d);
    CUmemAccessDesc access = {};
    uint64_t n = 0;
    access.location = c->memory.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    if (is_broken(d))
        return false;
    while (n < bytes && map_page(c, (CUdeviceptr)at + n))
        n += d->page_bytes;
    if (n == bytes && c->driver.allow((CUdeviceptr)at, bytes, &access, 1) == CUDA_SUCCESS)
        return true;
    unmap(d, at, n);
    return false;
}

/* Returns how many pieces begin at `at` or before. The lock must be held. */
static size_t n_pinned_to(const struct cuda_device *c, const void *at)
{
    size_t first = 0, end = c->n_pinned;
    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        if ((uintptr_t)c->pinned[middle].at <= (uintptr_t)at)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Makes room for one more piece. Without memory for it, the piece is not remembered. */
static bool grow_pinned(struct cuda_device *c)
{
    if (c->n_pinned < c->max_pinned)
        return true;
    const size_t n = c->max_pinned > 0 ? 2 * c->max_pinned : 64;
    struct pinned *grown = (struct pinned *)realloc(c->pinned, n * sizeof *grown);
    if (grown == NULL)
        return false;
    c->pinned = grown;
    c->max_pinned = n;
    return true;
}

/* Remembers pinned memory, if kernels see it at the same address. */
static void remember_pinned(struct cuda_device *c, void *at, uint64_t bytes)
{
    void *seen = NULL;
    if (cudaHostGetDevicePointer(&seen, at, 0) != cudaSuccess || seen != at) {
        (void)cudaGetLastError();
        return;
    }
    pthread_mutex_lock(&c->lock);
    if (grow_pinned(c)) {
        struct pinned *p = &c->pinned[n_pinned_to(c, at)];
        memmove(p + 1, p, (size_t)(c->pinned + c->n_pinned - p) * sizeof *p);
        *p = {(const char *)at, bytes};
        c->n_pinned++;
    }
    pthread_mutex_unlock(&c->lock);
}

static void forget_pinned(struct cuda_device *c, const void *at)
{
    pthread_mutex_lock(&c->lock);
    const size_t n = n_pinned_to(c, at);
    if (n > 0 && c->pinned[n - 1].at == at) {
        struct pinned *p = &c->pinned[n - 1];
        memmove(p, p + 1, (c->n_pinned - n) * sizeof *p);
        c->n_pinned--;
    }
    pthread_mutex_unlock(&c->lock);
}

static bool is_seen(struct gpu_device *d, const void *at, uint64_t bytes)
{
    struct cuda_device *c = cuda_of(d);
    bool is_found = false;
    pthread_mutex_lock(&c->lock);
    const size_t n = n_pinned_to(c, at);
    if (n > 0) {
        const struct pinned *p = &c->pinned[n - 1];
        const uint64_t from = (uint64_t)((uintptr_t)at - (uintptr_t)p->at);
        is_found = from <= p->bytes && bytes <= p->bytes - from;
    }
    pthread_mutex_unlock(&c->lock);
    return is_found;
}

static bool pin(struct gpu_device *d, void *at, uint64_t bytes)
{
    if (is_broken(d))
        return false;
    if (cudaHostRegister(at, bytes, cudaHostRegisterDefault) == cudaSuccess) {
        remember_pinned(cuda_of(d), at, bytes);
        return true;
    }
    (void)cudaGetLastError();
    return false;
}

static void unpin(struct gpu_device *d, void *at, uint64_t)
{
    if (is_broken(d))
        return;
    forget_pinned(cuda_of(d), at);
    check(d, "unlocking memory", cudaHostUnregister(at));
}

/* Memory of the process that is locked then. In pages that the driver maps, the system refuses to
 * read files past its cache ("Bad address"). */
static void *host_make(struct gpu_device *d, uint64_t bytes)
{
    void *at = NULL;
    if (is_broken(d) || posix_memalign(&at, HOST_PAGE_BYTES, bytes) != 0)
        return NULL;
    if (pin(d, at, bytes))
        return at;
    free(at);
    return NULL;
}

static void host_free(struct gpu_device *d, void *at)
{
    if (at == NULL)
        return;
    unpin(d, at, 0);
    free(at);
}

static uint64_t free_bytes(struct gpu_device *d)
{
    size_t left = 0, all = 0;
    if (is_broken(d) || !check(d, "asking for free memory", cudaMemGetInfo(&left, &all)))
        return 0;
    return left;
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* Whether a command may start before the one ahead of it has ended (gpu_wait). What a copy wrote
 * must be there at once. */
static bool is_early(const struct cuda_device *c, const struct gpu_batch *batch, size_t i)
{
    return c->starts_early && i > 0 && batch->commands[i - 1].launch.kernel != GPU_KERNEL_copy;
}

static cudaError_t start(struct cuda_device *c, const struct gpu_batch *batch)
{
    cudaError_t rc = cudaSuccess;
    for (size_t i = 0; rc == cudaSuccess && i < batch->n; i++) {
        const struct gpu_command *command = &batch->commands[i];
        const struct gpu_launch *l = &command->launch;
        void *args[] = {(void *)command->args};
        cudaLaunchAttribute early = {};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t how = {};
        how.gridDim = dim3(l->n_blocks_x, l->n_blocks_y);
        how.blockDim = dim3(l->n_threads);
        how.dynamicSmemBytes = l->shared_bytes;
        how.stream = c->queue;
        how.attrs = &early;
        how.numAttrs = is_early(c, batch, i);
        rc = cudaLaunchKernelExC(&how, kernels[l->kernel], args);
    }
    return rc;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* Bytes of a command that say what it does. */
static size_t command_bytes(const struct gpu_command *c)
{
    return offsetof(struct gpu_command, args) + c->args_bytes;
}

static uint64_t fingerprint(const struct gpu_batch *batch)
{
    uint64_t hash = 14695981039346656037ull + batch->n;
    for (size_t i = 0; i < batch->n; i++) {
        const struct gpu_command *command = &batch->commands[i];
        const uint64_t *words = (const uint64_t *)command;
        for (size_t w = 0; w < command_bytes(command) / sizeof *words; w++) {
            hash = (hash ^ words[w]) * 1099511628211ull;
            hash ^= hash >> 29;
        }
    }
    return hash != 0 ? hash : 1;
}

static bool is_of(const struct graph *g, const struct gpu_batch *batch)
{
    bool is_same = g->n == batch->n;
    for (size_t i = 0; is_same && i < batch->n; i++)
        is_same = memcmp(&g->commands[i], &batch->commands[i],
                         command_bytes(&batch->commands[i])) == 0;
    return is_same;
}

static void forget(struct graph *g)
{
    if (g->whole != NULL)
        cudaGraphExecDestroy(g->whole);
    free(g->commands);
    *g = {};
}

/* Makes a graph of what `start` would start now. */
static cudaError_t record(struct cuda_device *c, const struct gpu_batch *batch, cudaGraph_t *whole)
{
    cudaError_t rc = cudaStreamBeginCapture(c->queue, cudaStreamCaptureModeThreadLocal);
    if (rc != cudaSuccess)
        return rc;
    rc = start(c, batch);
    const cudaError_t ended = cudaStreamEndCapture(c->queue, whole);
    return rc != cudaSuccess ? rc : ended;
}

/* Keeps the batch in the place of the graph that was not used for the longest time. Returns NULL if
 * that is not long enough. */
static struct graph *keep(struct cuda_device *c, const struct gpu_batch *batch, uint64_t hash)
{
    struct graph *g = &c->graphs[0];
    cudaGraph_t whole = NULL;
    for (unsigned i = 1; i < N_GRAPHS; i++)
        g = c->graphs[i].last_use < g->last_use ? &c->graphs[i] : g;
    if (g->fingerprint != 0 && c->n_batches - g->last_use < GRAPH_LIFE)
        return NULL;
    forget(g);
    g->commands = (struct gpu_command *)malloc(batch->n * sizeof *g->commands);
    if (g->commands == NULL)
        return NULL; /* it starts without one */
    memcpy(g->commands, batch->commands, batch->n * sizeof *g->commands);
    cudaError_t rc = record(c, batch, &whole);
    if (rc == cudaSuccess)
        rc = cudaGraphInstantiate(&g->whole, whole, 0);
    if (whole != NULL)
        cudaGraphDestroy(whole);
    if (rc != cudaSuccess) {
        (void)cudaGetLastError(); /* no memory for it */
        forget(g);
        return NULL;
    }
    g->fingerprint = hash;
    g->n = batch->n;
    return g;
}

/* Returns the graph of a batch that has come before, or NULL. */
static struct graph *find_graph(struct cuda_device *c, const struct gpu_batch *batch)
{
    if (batch->n < MIN_GRAPH_COMMANDS)
        return NULL;
    const uint64_t hash = fingerprint(batch);
    for (unsigned i = 0; i < N_GRAPHS; i++)
        if (c->graphs[i].fingerprint == hash && is_of(&c->graphs[i], batch))
            return &c->graphs[i];
    uint64_t *seen = &c->seen[hash % N_SEEN];
    if (*seen == hash)
        return keep(c, batch, hash);
    *seen = hash;
    return NULL;
}

static void submit(struct gpu_device *d, const struct gpu_batch *batch)
{
    struct cuda_device *c = cuda_of(d);
    for (size_t i = 0; i < batch->n; i++)
        if (batch->commands[i].args_bytes != args_bytes[batch->commands[i].launch.kernel])
            abort();
    if (is_broken(d) ||
        !check(d, "copying", copies_send(&c->copies, batch->lists, batch->host_lists,
                                         batch->list_bytes)))
        return;
    c->n_batches++;
    struct graph *g = find_graph(c, batch);
    if (g == NULL) {
        check(d, "starting a kernel", start(c, batch));
        return;
    }
    g->last_use = c->n_batches;
    check(d, "starting a graph", cudaGraphLaunch(g->whole, c->queue));
}

/* Pieces that overlap are copied in parts that do not: from the end when they move up. */
static void copy(struct gpu_device *d, void *to, const void *from, uint64_t bytes)
{
    const uintptr_t a = (uintptr_t)to, b = (uintptr_t)from;
    const uint64_t distance = a > b ? a - b : b - a;
    const uint64_t part = distance < bytes ? distance : bytes;
    bool is_good = !is_broken(d);
    for (uint64_t done = 0; is_good && done < bytes;) {
        const uint64_t n = bytes - done < part ? bytes - done : part;
        const uint64_t at = a > b ? bytes - done - n : done;
        is_good = check(d, "copying",
                        cudaMemcpyAsync((char *)to + at, (const char *)from + at, n,
                                        cudaMemcpyDeviceToDevice, cuda_of(d)->queue));
        done += n;
    }
}

static void clear(struct gpu_device *d, void *at, uint64_t bytes)
{
    if (!is_broken(d))
        check(d, "clearing memory", cudaMemsetAsync(at, 0, bytes, cuda_of(d)->queue));
}

static void finish(struct gpu_device *d)
{
    if (!is_broken(d))
        check(d, "computing", cudaStreamSynchronize(cuda_of(d)->queue));
}

static void fetch(struct gpu_device *d, void *to, const void *from, uint64_t bytes)
{
    struct cuda_device *c = cuda_of(d);
    if (!is_broken(d) && copies_fetch_suits(from, bytes)) {
        check(d, "computing", copies_fetch(&c->copies, to, from, bytes));
    } else {
        if (!is_broken(d))
            check(d, "fetching",
                  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->queue));
        finish(d);
    }
    if (is_broken(d))
        memset(to, 0, bytes);
}

static void fill(struct gpu_device *d, void *to, const void *from, uint64_t bytes)
{
    struct cuda_device *c = cuda_of(d);
    pthread_mutex_lock(&c->lock);
    if (!c->has_failed)
        (void)(note(c, "choosing the GPU", cudaSetDevice(c->index)) && /* a thread of its own */
               note(c, "filling", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                                                  c->filler)) &&
               note(c, "filling", cudaStreamSynchronize(c->filler)));
    pthread_mutex_unlock(&c->lock);
}

static void upload(struct gpu_device *d, void *to, const void *from, uint64_t bytes)
{
    if (!is_broken(d))
        check(d, "copying", copies_send(&cuda_of(d)->copies, to, from, bytes));
}

static void download(struct gpu_device *d, void *to, const void *from, uint64_t bytes)
{
    struct cuda_device *c = cuda_of(d);
    if (!is_broken(d))
        check(d, "downloading",
              cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, c->queue));
}

/* ---- transfers ------------------------------------------------------------------------------- */

static uint64_t mark(struct gpu_device *d)
{
    struct cuda_device *c = cuda_of(d);
    const uint64_t number = ++c->n_marks;
    if (!is_broken(d))
        check(d, "marking", cudaEventRecord(c->marks[number % N_MARKS], c->queue));
    return number;
}

/* What is started on `to` from now on waits for what was started on `from`. */
static void follow(struct gpu_device *d, cudaStream_t to, struct lane *from)
{
    if (check(d, "transferring", cudaEventRecord(from->has_arrived, from->stream)))
        check(d, "transferring", cudaStreamWaitEvent(to, from->has_arrived, 0));
}

/* The event of a mark that is long gone was recorded again: the later one is behind it. */
static void carry(struct gpu_device *d, struct lane *lane, void *to, const void *from,
                  uint64_t bytes, uint64_t mark)
{
    struct cuda_device *c = cuda_of(d);
    if (mark > lane->mark) {
        check(d, "transferring", cudaStreamWaitEvent(lane->stream, c->marks[mark % N_MARKS], 0));
        lane->mark = mark;
    }
    lane->is_used = true;
    check(d, "transferring", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, lane->stream));
}

static void transfer(struct gpu_device *d, void *to, const void *from, uint64_t bytes,
                     uint64_t mark)
{
    struct cuda_device *c = cuda_of(d);
    if (is_broken(d))
        return;
    if (c->has_sent)
        follow(d, c->lanes[0].stream, &c->lanes[1]);
    carry(d, &c->lanes[0], to, from, bytes, mark);
    c->has_sent = false;
    c->has_moved = true;
}

static void send(struct gpu_device *d, void *to, const void *from, uint64_t bytes, uint64_t mark)
{
    struct cuda_device *c = cuda_of(d);
    if (is_broken(d))
        return;
    c->lane = (c->lane + 1) % N_LANES;
    if (c->lane == 1 && c->has_moved) {
        follow(d, c->lanes[1].stream, &c->lanes[0]);
        c->has_moved = false;
    }
    c->has_sent |= c->lane == 1;
    carry(d, &c->lanes[c->lane], to, from, bytes, mark);
}

static void join(struct gpu_device *d)
{
    struct cuda_device *c = cuda_of(d);
    for (unsigned i = 0; !is_broken(d) && i < N_LANES; i++)
        if (c->lanes[i].is_used) {
            follow(d, c->queue, &c->lanes[i]);
            c->lanes[i].is_used = false;
        }
}

static void settle(struct gpu_device *d)
{
    for (unsigned i = 0; !is_broken(d) && i < N_LANES; i++)
        check(d, "transferring", cudaStreamSynchronize(cuda_of(d)->lanes[i].stream));
}

static bool is_settled(struct gpu_device *d)
{
    bool is = !is_broken(d);
    for (unsigned i = 0; is && i < N_LANES; i++) {
        const cudaError_t rc = cudaStreamQuery(cuda_of(d)->lanes[i].stream);
        is = rc == cudaSuccess || (rc != cudaErrorNotReady && check(d, "transferring", rc));
    }
    (void)cudaGetLastError(); /* not ready is no failure */
    return is;
}

/* ---- open and close -------------------------------------------------------------------------- */

static void close(struct gpu_device *d)
{
    struct cuda_device *c = cuda_of(d);
    for (unsigned i = 0; i < N_GRAPHS; i++)
        forget(&c->graphs[i]);
    copies_close(&c->copies);
    if (c->queue != NULL)
        cudaStreamDestroy(c->queue);
    if (c->filler != NULL)
        cudaStreamDestroy(c->filler);
    for (unsigned i = 0; i < N_LANES; i++) {
        if (c->lanes[i].stream != NULL)
            cudaStreamDestroy(c->lanes[i].stream);
        if (c->lanes[i].has_arrived != NULL)
            cudaEventDestroy(c->lanes[i].has_arrived);
    }
    for (unsigned i = 0; i < N_MARKS && c->marks[i] != NULL; i++)
        cudaEventDestroy(c->marks[i]);
    pthread_mutex_destroy(&c->lock);
    free(c->pinned);
    free(c);
}

static const struct gpu_device_ops cuda_ops = {
    close, make, release_block, reserve, release, map, unmap, submit, copy, clear, fetch, fill,
    finish, upload, is_seen, download, mark, transfer, send, join, settle, is_settled, pin, unpin,
    host_make, host_free, free_bytes, failure};

template <class F> static bool find(const char *name, F *call)
{
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    const cudaError_t rc =
        cudaGetDriverEntryPointByVersion(name, (void **)call, 12000, cudaEnableDefault, &found);
#else
    const cudaError_t rc = cudaGetDriverEntryPoint(name, (void **)call, cudaEnableDefault, &found);
#endif
    return rc == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

static bool find_driver(struct driver *driver)
{
    return find("cuMemAddressReserve", &driver->reserve) &&
           find("cuMemAddressFree", &driver->release) && find("cuMemCreate", &driver->create) &&
           find("cuMemRelease", &driver->drop) && find("cuMemMap", &driver->map) &&
           find("cuMemUnmap", &driver->unmap) && find("cuMemSetAccess", &driver->allow) &&
           find("cuMemGetAllocationGranularity", &driver->page_bytes);
}

static bool open_queue(struct cuda_device *c)
{
    cudaFuncAttributes compiled = {};
    cudaError_t rc = cudaFuncGetAttributes(&compiled, kernels[0]);
    c->starts_early = compiled.binaryVersion >= 90 && compiled.ptxVersion >= 90;
    if (rc == cudaSuccess)
        rc = cudaStreamCreateWithFlags(&c->queue, cudaStreamNonBlocking);
    if (rc == cudaSuccess)
        rc = cudaStreamCreateWithFlags(&c->filler, cudaStreamNonBlocking);
    for (unsigned i = 0; rc == cudaSuccess && i < N_LANES; i++) {
        rc = cudaStreamCreateWithFlags(&c->lanes[i].stream, cudaStreamNonBlocking);
        if (rc == cudaSuccess)
            rc = cudaEventCreateWithFlags(&c->lanes[i].has_arrived, cudaEventDisableTiming);
    }
    for (unsigned i = 0; rc == cudaSuccess && i < N_MARKS; i++)
        rc = cudaEventCreateWithFlags(&c->marks[i], cudaEventDisableTiming);
    if (rc == cudaSuccess)
        rc = copies_open(&c->copies, c->queue, c->starts_early);
    return check(&c->base, "opening it", rc);
}

static bool open_memory(struct cuda_device *c)
{
    size_t page = 0;
    c->memory.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    c->memory.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    c->memory.location.id = c->index;
    if (!find_driver(&c->driver) ||
        c->driver.page_bytes(&page, &c->memory, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return check(&c->base, "its driver cannot map memory", cudaErrorNotSupported);
    c->base.page_bytes = page;
    return true;
}

/* Says why the driver gives no GPU. */
static void explain_driver(cudaError_t rc, char *why, size_t why_bytes)
{
    int version = 0;
    (void)cudaDriverGetVersion(&version);
    if (rc != cudaErrorInsufficientDriver)
        snprintf(why, why_bytes, "no GPU answers: %s", cudaGetErrorString(rc));
    else if (version == 0)
        snprintf(why, why_bytes, "there is no NVIDIA driver");
    else
        snprintf(why, why_bytes, "the NVIDIA driver is too old: it supports CUDA %d.%d, and the "
                 "library of kernels was built with %d.%d", version / 1000, version % 1000 / 10,
                 CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

/* Returns whether there is such a GPU and the kernels run on it; otherwise why not. */
static bool is_usable(unsigned index, cudaDeviceProp *properties, bool *is_there, char *why,
                      size_t why_bytes)
{
    int n = 0;
    const cudaError_t rc = cudaGetDeviceCount(&n);
    *is_there = rc == cudaSuccess && index < (unsigned)n;
    if (rc != cudaSuccess)
        explain_driver(rc, why, why_bytes);
    else if (!*is_there)
        snprintf(why, why_bytes, "there is no GPU %u: the driver knows %d", index, n);
    else if (cudaGetDeviceProperties(properties, (int)index) != cudaSuccess)
        snprintf(why, why_bytes, "GPU %u does not answer", index);
    else if (properties->major < MIN_MAJOR)
        snprintf(why, why_bytes, "GPU %u (%s) is too old: it has compute capability %d.%d, and the "
                 "kernels need %d.0", index, properties->name, properties->major,
                 properties->minor, MIN_MAJOR);
    else
        return true;
    return false;
}

extern "C" __attribute__((visibility("default"))) const char *device_cuda_version(void)
{
    return FLASHMOE_VERSION;
}

extern "C" __attribute__((visibility("default"))) struct gpu_device *
device_cuda_open(unsigned index, bool *is_there, char *why, size_t why_bytes)
{
    cudaDeviceProp properties;
    if (!is_usable(index, &properties, is_there, why, why_bytes))
        return NULL;
    struct cuda_device *c = (struct cuda_device *)calloc(1, sizeof *c);
    if (c == NULL) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    c->index = (int)index;
    pthread_mutex_init(&c->lock, NULL);
    snprintf(c->name, sizeof c->name, "%s", properties.name);
    int has_watchdog = 1; /* that of a screen ends kernels that take seconds */
    (void)cudaDeviceGetAttribute(&has_watchdog, cudaDevAttrKernelExecTimeout, c->index);
    c->base = {&cuda_ops, c->name, properties.totalGlobalMem, 0, has_watchdog == 0};
    if (check(&c->base, "opening it", cudaSetDevice(c->index)) && open_queue(c) && open_memory(c))
        return &c->base;
    snprintf(why, why_bytes, "%s", c->failure);
    close(&c->base);
    return NULL;
}
