#include "backend/cuda/cuda_queue.h"

#include <assert.h>
#include <string.h>

#include "backend/cuda/cuda_fuse.h"
#include "base/err.h"

/* Commands of one submission: a token of a model with a hundred layers. */
#define MAX_COMMANDS 4096

/* The GPU begins with a token when so many commands are there, those of a few layers. Each further
 * submission of the token has so many times as many as the one before: there are few of them, and
 * the GPU is still busy with the last one when the host has prepared the next. */
#define FIRST_COMMANDS 16
#define MORE_COMMANDS 4

/* Room for the lists of a token beside those of the longest operation. */
#define TOKEN_LIST_BYTES (2u << 20)

size_t cuda_queue_list_bytes(size_t operation_bytes)
{
    return mem_round_up(operation_bytes, MEM_PAGE) + TOKEN_LIST_BYTES;
}

uint64_t cuda_queue_host_bytes(size_t operation_bytes)
{
    return cuda_queue_list_bytes(operation_bytes) + MAX_COMMANDS * sizeof(struct gpu_command);
}

int cuda_queue_open(struct cuda_queue *q, char *lists, size_t operation_bytes,
                    struct fm_error *err)
{
    q->lists = lists;
    q->operation_bytes = operation_bytes;
    q->list_bytes = cuda_queue_list_bytes(operation_bytes);
    q->capacity = MAX_COMMANDS;
    q->enough = FIRST_COMMANDS;
    q->commands = mem_new(q->capacity, sizeof *q->commands, "commands for the GPU", err);
    q->host_lists = mem_new_aligned(MEM_CACHE_LINE, q->list_bytes, "lists for the GPU", err);
    return q->commands == NULL || q->host_lists == NULL ? FM_ERR_NOMEM : 0;
}

void cuda_queue_close(struct cuda_queue *q)
{
    mem_free(q->commands);
    mem_free(q->host_lists);
    *q = (struct cuda_queue){0};
}

/* ---- commands and their lists ---------------------------------------------------------------- */

void cuda_queue_begin(struct cuda_queue *q)
{
    if (q->n >= q->enough) {
        cuda_queue_submit(q);
        q->enough *= MORE_COMMANDS;
    }
    if (q->operation_bytes > q->list_bytes - q->list_used)
        cuda_queue_submit(q);
}

void *cuda_queue_reserve(struct cuda_queue *q, size_t bytes, const void **device)
{
    const size_t at = q->list_used;
    q->list_used += mem_round_up(bytes, MEM_CACHE_LINE);
    assert(q->list_used <= q->list_bytes);
    *device = q->lists + at;
    return q->host_lists + at;
}

const void *cuda_queue_put(struct cuda_queue *q, const void *list, size_t bytes)
{
    const void *device;
    if (list == NULL)
        return NULL;
    memcpy(cuda_queue_reserve(q, bytes, &device), list, bytes);
    return device;
}

/* Submits the commands so far. The lists stay: an operation may go on. */
static void submit_commands(struct cuda_queue *q)
{
    if (q->n == 0)
        return;
    const struct gpu_batch batch = {.commands = q->commands,
                                    .n = cuda_fuse(q->commands, q->n, q->counter),
                                    .lists = q->lists, .host_lists = q->host_lists,
                                    .list_bytes = q->list_used};
    q->device->ops->submit(q->device, &batch);
    q->n_submitted++;
    q->n = 0;
}

void cuda_queue_add(struct cuda_queue *q, const struct gpu_launch *launch, const void *args,
                    size_t args_bytes)
{
    assert(args_bytes <= GPU_MAX_ARGS);
    if (q->n == q->capacity)
        submit_commands(q);
    struct gpu_command *command = &q->commands[q->n++];
    command->launch = *launch;
    command->args_bytes = (uint32_t)args_bytes;
    memcpy(command->args, args, args_bytes);
}

void cuda_queue_submit(struct cuda_queue *q)
{
    submit_commands(q);
    q->list_used = 0;
}

static void note_finished(struct cuda_queue *q)
{
    q->n_finished = q->n_submitted;
    q->enough = FIRST_COMMANDS;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* A copy that a kernel does becomes part of a token's graph. */
#define KERNEL_COPY_BYTES (1u << 20)
#define COPY_THREADS 256u

static bool is_small(const void *a, const void *b, uint64_t bytes)
{
    return bytes <= KERNEL_COPY_BYTES &&
           ((uintptr_t)a | (uintptr_t)b | bytes) % sizeof(uint32_t) == 0;
}

static bool overlap(const char *a, const char *b, uint64_t bytes)
{
    return a < b + bytes && b < a + bytes;
}

static void add_copy(struct cuda_queue *q, void *to, const void *from, uint64_t bytes)
{
    const struct gpu_copy_args args = {.to = to, .from = from,
                                       .n = (uint32_t)(bytes / sizeof(uint32_t))};
    const uint32_t n_blocks = (args.n + COPY_THREADS - 1) / COPY_THREADS;
    const struct gpu_launch launch = {.kernel = GPU_KERNEL_copy, .n_blocks_x = n_blocks,
                                      .n_blocks_y = 1, .n_threads = COPY_THREADS};
    cuda_queue_add(q, &launch, &args, sizeof args);
}

void cuda_queue_copy(struct cuda_queue *q, void *to, const void *from, uint64_t bytes)
{
    if (bytes == 0 || to == from)
        return;
    if (is_small(to, from, bytes) && !overlap(to, from, bytes)) {
        add_copy(q, to, from, bytes);
        return;
    }
    cuda_queue_submit(q);
    q->device->ops->copy(q->device, to, from, bytes);
    q->n_submitted++;
}

void cuda_queue_clear(struct cuda_queue *q, void *at, uint64_t bytes)
{
    if (bytes == 0)
        return;
    if (is_small(at, at, bytes)) {
        add_copy(q, at, NULL, bytes);
        return;
    }
    cuda_queue_submit(q);
    q->device->ops->clear(q->device, at, bytes);
    q->n_submitted++;
}

void cuda_queue_upload(struct cuda_queue *q, void *to, const void *from, uint64_t bytes)
{
    cuda_queue_submit(q);
    q->device->ops->upload(q->device, to, from, bytes);
    q->n_submitted++;
}

void cuda_queue_bring(struct cuda_queue *q, void *to, const struct link_pieces *pieces)
{
    const uint32_t n = pieces->n;
    if (n == 0)
        return;
    cuda_queue_begin(q);
    struct gpu_copy_pieces_args args = {
        .to = to, .from = pieces->from, .gate = pieces->gate, .n_pieces = n,
        .n_words = (uint32_t)(pieces->bytes / sizeof(uint32_t))};
    uint32_t *list = cuda_queue_reserve(q, (n + 1) * sizeof *list, (const void **)&args.numbers);
    memcpy(list, pieces->numbers, n * sizeof *list);
    list[n] = pieces->opens_at;
    const struct gpu_launch launch = {
        .kernel = GPU_KERNEL_copy_pieces, .n_blocks_x = n,
        .n_blocks_y = (args.n_words + COPY_THREADS - 1) / COPY_THREADS, .n_threads = COPY_THREADS};
    assert(pieces->bytes % sizeof(uint32_t) == 0);
    cuda_queue_add(q, &launch, &args, sizeof args);
}

/* Whether a copy of logits belongs to the commands before it: it does behind a head, which does it
 * itself then. Others are submitted apart. Where they go differs from session to session, and the
 * commands of a pass of several sessions should be those of the pass before. */
static bool is_apart(const struct cuda_queue *q)
{
    const enum gpu_kernel last = q->n > 0 ? q->commands[q->n - 1].launch.kernel : GPU_KERNEL_embed;
    const bool is_look = last == GPU_KERNEL_find_not_finite;
    const bool has_head =
        q->n > 1 && q->commands[q->n - 2].launch.kernel == GPU_KERNEL_matmul_head;
    return is_look && !has_head;
}

/* A kernel begins at once, copy engines begin later. */
void cuda_queue_download(struct cuda_queue *q, void *to, const void *from, uint64_t bytes)
{
    if (bytes == 0)
        return;
    if (is_small(to, from, bytes) && q->device->ops->is_seen(q->device, to, bytes)) {
        if (is_apart(q))
            submit_commands(q);
        add_copy(q, to, from, bytes);
        return;
    }
    cuda_queue_submit(q);
    q->device->ops->download(q->device, to, from, bytes);
    q->n_submitted++;
}

void cuda_queue_fetch(struct cuda_queue *q, void *to, const void *from, uint64_t bytes)
{
    cuda_queue_submit(q);
    q->device->ops->fetch(q->device, to, from, bytes);
    note_finished(q);
}

/* ---- waiting --------------------------------------------------------------------------------- */

uint64_t cuda_queue_fence(const struct cuda_queue *q)
{
    const uint64_t fence = q->n_submitted + (q->n > 0);
    return fence > q->n_finished ? fence : 0;
}

void cuda_queue_wait(struct cuda_queue *q, uint64_t fence)
{
    if (fence <= q->n_finished)
        return;
    if (fence > q->n_submitted)
        cuda_queue_submit(q);
    q->device->ops->finish(q->device);
    note_finished(q);
}
