/* Small copies between the host and the GPU, for device_cuda.cu. Kernels do them: copy engines
 * begin microseconds later, and may be busy with transfers. One thread uses it. */
#ifndef FLASHMOE_BACKEND_CUDA_DEVICE_COPIES_CUH
#define FLASHMOE_BACKEND_CUDA_DEVICE_COPIES_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#include "backend/cuda/language.h"

/* What is sent to the GPU waits in a ring of pinned memory until the GPU has copied it. The ring
 * has a few parts, which grow with what is sent; the host waits for a part before it enters it
 * again. */
#define N_PARTS 4
#define MIN_PART_BYTES (256u << 10)

/* What the host fetches and waits for: up to so many bytes come with a word that the host watches.
 * It sees them several microseconds before the driver says that they are there. */
#define MAIL_BYTES 4096u
#define WATCH_ROUNDS (1u << 16) /* of a pause each: a few milliseconds */

#define COPY_THREADS 256u

struct ring {
    char *at; /* [N_PARTS, part_bytes] */
    size_t part_bytes;
    unsigned part;
    size_t used;                    /* of the part */
    cudaEvent_t is_copied[N_PARTS]; /* what was sent with the part */
};

/* In pinned memory. */
struct mail {
    uint32_t words[MAIL_BYTES / sizeof(uint32_t)];
    uint32_t number; /* of the fetch whose words these are */
};

struct copies {
    cudaStream_t queue;
    bool starts_early; /* kernels know how to wait for each other */
    struct ring ring;
    struct mail *mail;
    uint32_t n_fetches;
};

/* ---- kernels --------------------------------------------------------------------------------- */

/* Reads the host's memory before the launches ahead have ended. */
static __global__ void take_words(uint32_t *to, const uint32_t *from, uint32_t n)
{
    const uint32_t i = blockIdx.x * COPY_THREADS + threadIdx.x;
    const uint32_t word = i < n ? __ldcv(from + i) : 0; /* the host writes there again and again */
    gpu_wait();
    if (i < n)
        to[i] = word;
}

/* One block: n words, then the number that says that they are there. */
static __global__ void post_mail(struct mail *mail, const uint32_t *from, uint32_t n,
                                 uint32_t number)
{
    for (uint32_t i = threadIdx.x; i < n; i += COPY_THREADS)
        mail->words[i] = from[i];
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence_system();
    *(volatile uint32_t *)&mail->number = number;
}

static cudaError_t start_copy(const struct copies *c, const void *kernel, uint32_t n_blocks,
                              void **args, bool is_early)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t how = {};
    how.gridDim = dim3(n_blocks);
    how.blockDim = dim3(COPY_THREADS);
    how.stream = c->queue;
    how.attrs = &early;
    how.numAttrs = is_early && c->starts_early;
    return cudaLaunchKernelExC(&how, kernel, args);
}

static uint32_t n_copy_blocks(uint32_t n)
{
    return (n + COPY_THREADS - 1) / COPY_THREADS;
}

/* ---- open and close -------------------------------------------------------------------------- */

static cudaError_t copies_open(struct copies *c, cudaStream_t queue, bool starts_early)
{
    cudaError_t rc = cudaMallocHost((void **)&c->mail, sizeof *c->mail);
    c->queue = queue;
    c->starts_early = starts_early;
    if (rc == cudaSuccess)
        memset(c->mail, 0, sizeof *c->mail);
    for (unsigned i = 0; rc == cudaSuccess && i < N_PARTS; i++)
        rc = cudaEventCreateWithFlags(&c->ring.is_copied[i], cudaEventDisableTiming);
    return rc;
}

/* Accepts one that is zero. */
static void copies_close(struct copies *c)
{
    cudaFreeHost(c->ring.at);
    cudaFreeHost(c->mail);
    for (unsigned i = 0; i < N_PARTS && c->ring.is_copied[i] != NULL; i++)
        cudaEventDestroy(c->ring.is_copied[i]);
}

/* ---- to the GPU ------------------------------------------------------------------------------ */

static cudaError_t grow_ring(struct copies *c, size_t bytes)
{
    struct ring *r = &c->ring;
    const size_t part = (bytes + MIN_PART_BYTES - 1) / MIN_PART_BYTES * MIN_PART_BYTES;
    cudaError_t rc = cudaStreamSynchronize(c->queue);
    if (rc != cudaSuccess)
        return rc;
    cudaFreeHost(r->at);
    r->at = NULL;
    r->part_bytes = r->used = 0;
    rc = cudaMallocHost((void **)&r->at, N_PARTS * part);
    r->part_bytes = rc == cudaSuccess ? part : 0;
    return rc;
}

/* Goes on with the next part of the ring when the GPU has copied what was in it. */
static cudaError_t next_part(struct copies *c)
{
    struct ring *r = &c->ring;
    const cudaError_t rc = cudaEventRecord(r->is_copied[r->part], c->queue);
    if (rc != cudaSuccess)
        return rc;
    r->part = (r->part + 1) % N_PARTS;
    r->used = 0;
    return cudaEventSynchronize(r->is_copied[r->part]);
}

/* Copies whole words to the GPU; the host may change them at once. */
static cudaError_t copies_send(struct copies *c, void *to, const void *from, size_t bytes)
{
    struct ring *r = &c->ring;
    cudaError_t rc = cudaSuccess;
    if (bytes == 0)
        return rc;
    if (bytes > r->part_bytes)
        rc = grow_ring(c, bytes);
    if (rc == cudaSuccess && bytes > r->part_bytes - r->used)
        rc = next_part(c);
    if (rc != cudaSuccess)
        return rc;
    char *at = r->at + r->part * r->part_bytes + r->used;
    const size_t taken = (bytes + 255) / 256 * 256, left = r->part_bytes - r->used;
    uint32_t n = (uint32_t)(bytes / sizeof(uint32_t));
    void *args[] = {&to, &at, &n};
    memcpy(at, from, bytes);
    r->used += taken < left ? taken : left;
    return start_copy(c, (const void *)take_words, n_copy_blocks(n), args, true);
}

/* ---- to the host ----------------------------------------------------------------------------- */

static void rest(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

static bool has_mail(const struct copies *c, uint32_t number)
{
    return __atomic_load_n(&c->mail->number, __ATOMIC_ACQUIRE) == number;
}

/* Waits for the mail with that number: watches for about as long as a few tokens take, then lets
 * the driver wait, which says what is wrong with the GPU. */
static cudaError_t wait_for_mail(const struct copies *c, uint32_t number)
{
    for (uint32_t n = 0; n < WATCH_ROUNDS; n++) {
        if (has_mail(c, number))
            return cudaSuccess;
        rest();
    }
    const cudaError_t rc = cudaStreamSynchronize(c->queue);
    return rc != cudaSuccess || has_mail(c, number) ? rc : cudaErrorUnknown;
}

static bool copies_fetch_suits(const void *from, uint64_t bytes)
{
    return bytes <= MAIL_BYTES && (bytes | (uintptr_t)from) % sizeof(uint32_t) == 0;
}

/* Fetches what suits; the host waits for all that is queued. */
static cudaError_t copies_fetch(struct copies *c, void *to, const void *from, uint64_t bytes)
{
    uint32_t n = (uint32_t)(bytes / sizeof(uint32_t)), number = ++c->n_fetches;
    void *args[] = {&c->mail, &from, &n, &number};
    cudaError_t rc = start_copy(c, (const void *)post_mail, 1, args, false);
    if (rc == cudaSuccess)
        rc = wait_for_mail(c, number);
    if (rc == cudaSuccess)
        memcpy(to, c->mail->words, bytes);
    return rc;
}

#endif
