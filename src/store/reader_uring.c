#include "store/reader_internal.h"

#if defined(__linux__) && defined(__has_include)
#if __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#endif
#endif

/* Kernel headers from 5.6 on define this; they also have IORING_OP_READ and
 * IORING_REGISTER_PROBE. */
#ifdef IO_URING_OP_SUPPORTED

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/plat.h"
#include "base/plat_reads.h"

/* The two rings shared with the kernel. Loads a head or tail that the kernel moves with acquire,
 * and stores one that this reader moves with release. */
struct ring {
    int fd;
    char *rings; /* both, in one mapping */
    size_t rings_bytes, sqes_bytes;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    unsigned *sq_head, *sq_tail, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask;
};

struct request {
    struct read_op *op;
    struct op_span span;
    char *bounce; /* [reader_bounce_bytes] */
    bool is_retry; /* the kernel returned EAGAIN once */
};

struct reader_uring {
    struct reader base;
    struct op_queue queue; /* its lock covers this block; has_work is used when is_broken */
    bool wakes[2]; /* by urgency: the thread may sleep and would serve such an operation */
    bool is_broken; /* the ring failed: the thread reads with pread */

    /* Only the thread uses these. The ring holds at most `depth` reads and the read of wake_fd. It
     * is large enough for all of them, so it is never full. */
    struct ring ring;
    unsigned depth, n_free;
    unsigned free_requests[READER_MAX_DEPTH];
    struct request requests[READER_MAX_DEPTH];
    bool is_wake_armed; /* a read of wake_fd is in the ring */
    uint64_t wake_count;
    /* since when io_uring_enter has asked to be called again; 0: it has not */
    uint64_t stuck_since_ns;

    int wake_fd;
    bool is_started;
    pthread_t thread;
    char *bounces;
};

/* marks the read of wake_fd; other entries carry the index of their request */
#define WAKE_DATA UINT64_MAX

/* ---- the ring ----------------------------------------------------------------------------- */

static int ring_refuse(struct fm_error *err, const char *call, int why)
{
    return err_set(err, FM_ERR_UNSUPPORTED, "io_uring cannot be used here: %s: %s", call,
                   strerror(why));
}

static void ring_close(struct ring *ring)
{
    if (ring->sqes != NULL)
        (void)munmap(ring->sqes, ring->sqes_bytes);
    if (ring->rings != NULL)
        (void)munmap(ring->rings, ring->rings_bytes);
    plat_close(ring->fd);
    *ring = (struct ring){.fd = -1};
}

static int ring_map(struct ring *ring, const struct io_uring_params *p, struct fm_error *err)
{
    const int may = PROT_READ | PROT_WRITE, how = MAP_SHARED | MAP_POPULATE;
    const size_t sq_bytes = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    const size_t cq_bytes = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    ring->rings_bytes = sq_bytes > cq_bytes ? sq_bytes : cq_bytes;
    ring->sqes_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    void *rings = mmap(NULL, ring->rings_bytes, may, how, ring->fd, IORING_OFF_SQ_RING);
    if (rings == MAP_FAILED)
        return ring_refuse(err, "mapping the rings", errno);
    ring->rings = rings;
    void *sqes = mmap(NULL, ring->sqes_bytes, may, how, ring->fd, IORING_OFF_SQES);
    if (sqes == MAP_FAILED)
        return ring_refuse(err, "mapping the entries", errno);
    ring->sqes = sqes;
    ring->sq_head = (unsigned *)(void *)(ring->rings + p->sq_off.head);
    ring->sq_tail = (unsigned *)(void *)(ring->rings + p->sq_off.tail);
    ring->cq_head = (unsigned *)(void *)(ring->rings + p->cq_off.head);
    ring->cq_tail = (unsigned *)(void *)(ring->rings + p->cq_off.tail);
    ring->sq_mask = p->sq_entries - 1;
    ring->cq_mask = p->cq_entries - 1;
    ring->cqes = (struct io_uring_cqe *)(void *)(ring->rings + p->cq_off.cqes);
    unsigned *array = (unsigned *)(void *)(ring->rings + p->sq_off.array);
    for (unsigned i = 0; i < p->sq_entries; i++)
        array[i] = i;
    return 0;
}

/* Checks that the kernel supports reads, and that a seccomp filter that allows io_uring_setup also
 * allows the other calls. */
static int ring_probe(const struct ring *ring, struct fm_error *err)
{
    enum { N_OPS = IORING_OP_READ + 1 };
    union {
        struct io_uring_probe probe;
        char room[sizeof(struct io_uring_probe) + N_OPS * sizeof(struct io_uring_probe_op)];
    } known;
    memset(&known, 0, sizeof known);
    if (syscall(__NR_io_uring_register, ring->fd, IORING_REGISTER_PROBE, &known, N_OPS) < 0)
        return ring_refuse(err, "io_uring_register", errno);
    const struct io_uring_probe_op *ops = known.probe.ops;
    if (known.probe.last_op < IORING_OP_READ ||
        (ops[IORING_OP_READ].flags & IO_URING_OP_SUPPORTED) == 0)
        return ring_refuse(err, "IORING_OP_READ", EOPNOTSUPP);
    if (syscall(__NR_io_uring_enter, ring->fd, 0, 0, 0, NULL, 0) < 0)
        return ring_refuse(err, "io_uring_enter", errno);
    return 0;
}

static int ring_open(struct ring *ring, unsigned n_entries, struct fm_error *err)
{
    struct io_uring_params params;
    memset(&params, 0, sizeof params);
    ring->fd = (int)syscall(__NR_io_uring_setup, n_entries, &params);
    if (ring->fd < 0)
        return ring_refuse(err, "io_uring_setup", errno);
    if ((params.features & IORING_FEAT_SINGLE_MMAP) == 0) /* older than IORING_OP_READ */
        return ring_refuse(err, "IORING_FEAT_SINGLE_MMAP", EOPNOTSUPP);
    int rc = ring_probe(ring, err);
    return rc != 0 ? rc : ring_map(ring, &params, err);
}

static void ring_push(struct ring *ring, const struct io_uring_sqe *sqe)
{
    const unsigned tail = *ring->sq_tail;
    assert(tail - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE) <= ring->sq_mask);
    ring->sqes[tail & ring->sq_mask] = *sqe;
    __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static bool ring_has_result(const struct ring *ring)
{
    return __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) != *ring->cq_head;
}

/* Submits the pushed entries and waits for a result. May return without one; entries that the
 * kernel did not take stay pushed. Returns 0 or an errno. */
static int ring_enter(const struct ring *ring)
{
    const unsigned n_pushed = *ring->sq_tail - __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE);
    if (n_pushed == 0 && ring_has_result(ring))
        return 0;
    long rc = syscall(__NR_io_uring_enter, ring->fd, n_pushed, 1, IORING_ENTER_GETEVENTS, NULL, 0);
    return rc >= 0 || errno == EINTR ? 0 : errno;
}

static void nap(void)
{
    const struct timespec millisecond = {.tv_nsec = 1000000};
    (void)nanosleep(&millisecond, NULL);
}

/* ---- the thread --------------------------------------------------------------------------- */

/* Returns the number of operations in flight below which guesses are served. The rest of the depth
 * is reserved for needed operations. */
static unsigned guesses_below(const struct reader_uring *r)
{
    return r->depth < 4 ? 1 : r->depth / 4;
}

static void request_push(struct reader_uring *r, unsigned i)
{
    const struct request *request = &r->requests[i];
    assert(request->span.bytes <= UINT32_MAX);
    const struct io_uring_sqe sqe = {
        .opcode = IORING_OP_READ,
        .flags = request->is_retry ? IOSQE_ASYNC : 0, /* on a kernel thread, which may block */
        .fd = request->op->fd,
        .addr = (uint64_t)(uintptr_t)request->span.at,
        .len = (uint32_t)request->span.bytes,
        .off = request->span.offset,
        .user_data = i,
    };
    ring_push(&r->ring, &sqe);
}

static void arm_wake(struct reader_uring *r)
{
    assert(!r->is_wake_armed);
    const struct io_uring_sqe sqe = {
        .opcode = IORING_OP_READ,
        .fd = r->wake_fd,
        .addr = (uint64_t)(uintptr_t)&r->wake_count,
        .len = sizeof r->wake_count,
        .user_data = WAKE_DATA,
    };
    ring_push(&r->ring, &sqe);
    r->is_wake_armed = true;
}

/* Starts operations from the queue while requests are free. Returns false when the reader closes
 * and nothing is in flight, neither an operation nor the read of wake_fd: the kernel writes to no
 * memory then. */
static bool take_queued(struct reader_uring *r)
{
    pthread_mutex_lock(&r->queue.lock);
    while (r->n_free > 0) {
        struct read_op *op = op_queue_pop(&r->queue, r->depth - r->n_free < guesses_below(r));
        if (op == NULL)
            break;
        const unsigned i = r->free_requests[--r->n_free];
        struct request *request = &r->requests[i];
        request->op = op;
        request->span = op_span_of(op, request->bounce);
        request->is_retry = false;
        request_push(r, i);
    }
    if (!r->is_wake_armed && !r->queue.is_closing)
        arm_wake(r);
    const unsigned n_in_flight = r->depth - r->n_free;
    const bool may_sleep = !ring_has_result(&r->ring);
    r->wakes[READ_NEEDED] = may_sleep && n_in_flight < r->depth;
    r->wakes[READ_GUESSED] = may_sleep && n_in_flight < guesses_below(r);
    const bool is_over = r->queue.is_closing && n_in_flight == 0 && !r->is_wake_armed;
    pthread_mutex_unlock(&r->queue.lock);
    return !is_over;
}

/* How long io_uring_enter may report a lack of memory before the ring counts as broken, and how
 * long a broken ring may take to return its reads before a warning is logged. */
#define PATIENCE_NS 10000000000ull

/* Submits and waits. Returns false when the ring is no longer usable. */
static bool wait_for_result(struct reader_uring *r)
{
    const int why = ring_enter(&r->ring);
    pthread_mutex_lock(&r->queue.lock);
    r->wakes[READ_NEEDED] = r->wakes[READ_GUESSED] = false;
    pthread_mutex_unlock(&r->queue.lock);
    const uint64_t now_ns = why != 0 ? plat_now_ns() : 0;
    if (why == 0)
        r->stuck_since_ns = 0;
    else if (r->stuck_since_ns == 0)
        r->stuck_since_ns = now_ns;
    if (why == 0)
        return true;
    if ((why == EAGAIN || why == EBUSY) && now_ns - r->stuck_since_ns < PATIENCE_NS) {
        nap(); /* the kernel lacks memory */
        return true;
    }
    log_warn("reader", "io_uring_enter failed: %s; reading with pread from now on, one at a time "
             "(--reader pread is faster)", strerror(why));
    return false;
}

/* Reads with pread what the kernel left undone: the rest of a short read, which is nearly always
 * the end of the file; a direct read that the file system refuses; and a read that stays at EAGAIN,
 * as older kernels answer for a file opened with O_NONBLOCK. */
static int64_t settle(const struct read_op *op, const struct op_span *span, int64_t result)
{
    if (result >= 0 && (uint64_t)result < span->bytes)
        result = op_span_read(op, span, (uint64_t)result);
    if ((result == -EINVAL && op->is_direct) || result == -EAGAIN)
        result = op_span_read(op, span, 0);
    return op_span_finish(op, span, result);
}

/* Handles one result. One at a time, so that a free request is used again before the next copy or
 * callback. */
static void handle_result(struct reader_uring *r)
{
    struct ring *ring = &r->ring;
    if (!ring_has_result(ring))
        return;
    const unsigned head = *ring->cq_head;
    const uint64_t data = ring->cqes[head & ring->cq_mask].user_data;
    const int result = ring->cqes[head & ring->cq_mask].res;
    __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
    if (data == WAKE_DATA) {
        r->is_wake_armed = false;
        return;
    }
    const unsigned i = (unsigned)data;
    struct request *request = &r->requests[i];
    assert(i < r->depth && r->n_free < r->depth);
    if (result == -EINTR || (result == -EAGAIN && !request->is_retry)) {
        request->is_retry |= result == -EAGAIN;
        request_push(r, i);
        return;
    }
    struct read_op *op = request->op;
    if (result > 0)
        plat_count_read();
    const int64_t settled = settle(op, &request->span, result);
    r->free_requests[r->n_free++] = i;
    op->done(op, settled);
}

/* Wakes the thread. The caller holds the lock, so that the thread cannot end and wake_fd is not
 * closed meanwhile. */
static void wake(struct reader_uring *r)
{
    const uint64_t one = 1;
    r->wakes[READ_NEEDED] = r->wakes[READ_GUESSED] = false;
    ssize_t n;
    do
        n = write(r->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
    assert(n == (ssize_t)sizeof one);
}

/* ---- without the ring --------------------------------------------------------------------- */

static void finish_by_pread(struct reader_uring *r, unsigned i)
{
    struct request *request = &r->requests[i];
    struct read_op *op = request->op;
    assert(r->is_broken && r->n_free < r->depth);
    const int64_t result = op_span_finish(op, &request->span, op_span_read(op, &request->span, 0));
    r->free_requests[r->n_free++] = i;
    op->done(op, result);
}

/* Takes back the entries that the kernel has not taken, and marks their requests in `is_ours`.
 * Nothing enters the ring afterwards. */
static void take_back(struct reader_uring *r, bool is_ours[READER_MAX_DEPTH])
{
    struct ring *ring = &r->ring;
    const unsigned head = __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE);
    for (unsigned at = head; at != *ring->sq_tail; at++) {
        const uint64_t data = ring->sqes[at & ring->sq_mask].user_data;
        if (data == WAKE_DATA)
            r->is_wake_armed = false;
        else
            is_ours[data] = true;
    }
    __atomic_store_n(ring->sq_tail, head, __ATOMIC_RELEASE);
}

/* Waits for the reads that the kernel has taken, however long they take. An abandoned read could
 * still write into its buffer after another expert is there, and a pread of the same bytes would
 * take as long. Only the read of wake_fd is abandoned. */
static void drain_ring(struct reader_uring *r, bool is_ours[READER_MAX_DEPTH])
{
    struct ring *ring = &r->ring;
    unsigned n_ours = 0;
    for (unsigned i = 0; i < r->depth; i++)
        n_ours += is_ours[i];
    const uint64_t since_ns = plat_now_ns();
    bool is_told = false;
    while (r->depth - r->n_free > n_ours || r->is_wake_armed) {
        if (!ring_has_result(ring)) {
            const unsigned n_left = r->depth - r->n_free - n_ours;
            const bool is_late = plat_now_ns() - since_ns > PATIENCE_NS;
            if (is_late && n_left == 0)
                break;
            if (is_late && !is_told)
                log_warn("store", "io_uring failed and %u reads have not come back from the disk "
                         "yet; waiting for them", n_left);
            is_told |= is_late;
            nap();
            continue;
        }
        const unsigned head = *ring->cq_head;
        const uint64_t data = ring->cqes[head & ring->cq_mask].user_data;
        __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
        if (data == WAKE_DATA) {
            r->is_wake_armed = false;
        } else {
            assert(data < r->depth && !is_ours[data]);
            is_ours[data] = true; /* whatever its result: it is read again */
            n_ours++;
        }
    }
}

/* Stops using the ring for good. Reads everything that was in it with pread. */
static void leave_ring(struct reader_uring *r)
{
    bool is_free[READER_MAX_DEPTH] = {false}, is_ours[READER_MAX_DEPTH] = {false};
    for (unsigned i = 0; i < r->n_free; i++)
        is_free[r->free_requests[i]] = true;
    take_back(r, is_ours);
    pthread_mutex_lock(&r->queue.lock);
    r->is_broken = true;
    if (r->is_wake_armed)
        wake(r); /* ends the read of wake_fd */
    pthread_mutex_unlock(&r->queue.lock);
    drain_ring(r, is_ours);
    ring_close(&r->ring);
    for (unsigned i = 0; i < r->depth; i++)
        if (!is_free[i])
            finish_by_pread(r, i);
    assert(r->n_free == r->depth);
}

static void serve_by_pread(void *ctx, struct read_op *op)
{
    struct reader_uring *r = ctx;
    const unsigned i = r->free_requests[--r->n_free];
    r->requests[i].op = op;
    r->requests[i].span = op_span_of(op, r->requests[i].bounce);
    finish_by_pread(r, i);
}

static void *uring_main(void *arg)
{
    struct reader_uring *r = arg;
    while (take_queued(r)) {
        if (!wait_for_result(r)) {
            leave_ring(r);
            op_queue_serve(&r->queue, serve_by_pread, r);
            break;
        }
        handle_result(r);
    }
    return NULL;
}

/* ---- the reader --------------------------------------------------------------------------- */

static void uring_submit(struct reader *reader, struct read_op *op)
{
    struct reader_uring *r = (struct reader_uring *)reader;
    pthread_mutex_lock(&r->queue.lock);
    op_queue_push(&r->queue, op);
    if (r->is_broken)
        pthread_cond_signal(&r->queue.has_work);
    else if (r->wakes[op->urgency])
        wake(r);
    pthread_mutex_unlock(&r->queue.lock);
}

static void uring_close(struct reader *reader)
{
    struct reader_uring *r = (struct reader_uring *)reader;
    if (r->is_started) {
        pthread_mutex_lock(&r->queue.lock);
        r->queue.is_closing = true;
        pthread_cond_signal(&r->queue.has_work);
        wake(r); /* also ends the read of wake_fd */
        pthread_mutex_unlock(&r->queue.lock);
        pthread_join(r->thread, NULL);
        assert(r->n_free == r->depth);
    }
    ring_close(&r->ring);
    plat_close(r->wake_fd);
    op_queue_clear(&r->queue);
    mem_free(r->bounces);
    mem_free(r);
}

static const struct reader_ops uring_ops = {
    .name = "io_uring",
    .submit = uring_submit,
    .close = uring_close,
};

/* Opens what the reader needs beyond its struct. After a failure uring_close frees it. */
static int uring_start(struct reader_uring *r, const struct reader_options *options,
                       struct fm_error *err)
{
    int rc = ring_open(&r->ring, r->depth + 1, err);
    if (rc != 0)
        return rc;
    r->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (r->wake_fd < 0)
        return ring_refuse(err, "eventfd", errno);
    if (options->bounce_bytes > 0)
        r->bounces = mem_new_aligned(MEM_PAGE, reader_bytes(options), "read buffers", err);
    if (options->bounce_bytes > 0 && r->bounces == NULL)
        return FM_ERR_NOMEM;
    for (unsigned i = 0; i < r->depth; i++) {
        if (r->bounces != NULL)
            r->requests[i].bounce = r->bounces + i * (size_t)reader_bounce_bytes(options);
        r->free_requests[r->n_free++] = i;
    }
    int why = plat_thread_start(&r->thread, uring_main, r);
    if (why != 0)
        return err_set(err, FM_ERR_NOMEM, "cannot start the reader thread: %s", strerror(why));
    r->is_started = true;
    return 0;
}

int reader_uring_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err)
{
    *out = NULL;
    int rc = reader_check_options(options, err);
    if (rc != 0)
        return rc;
    struct reader_uring *r = mem_new(1, sizeof *r, "the reader", err);
    if (r == NULL)
        return FM_ERR_NOMEM;
    r->base.ops = &uring_ops;
    r->depth = options->depth;
    r->ring.fd = r->wake_fd = -1;
    op_queue_init(&r->queue);
    rc = uring_start(r, options, err);
    if (rc != 0)
        uring_close(&r->base);
    else
        *out = &r->base;
    return rc;
}

#else

int reader_uring_open(const struct reader_options *options, struct reader **out,
                      struct fm_error *err)
{
    *out = NULL;
    int rc = reader_check_options(options, err);
    if (rc != 0)
        return rc;
    return err_set(err, FM_ERR_UNSUPPORTED, "io_uring needs Linux 5.6 or newer");
}

#endif
