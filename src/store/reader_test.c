#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"
#include "store/reader.h"

#define READ_OP_BYTES (1u << 20)
#define FILE_BYTES (3u * READ_OP_BYTES + 5 * MEM_PAGE + 1237)
#define GUARD_BYTES 16
#define GUARD 0xA5
#define ROOM_BYTES (READ_OP_BYTES + 2 * MEM_PAGE)

static const struct kind {
    const char *name;
    int (*open)(const struct reader_options *, struct reader **, struct fm_error *);
} kinds[] = {{"pread", reader_pread_open}, {"io_uring", reader_uring_open}};

static char path[] = "reader_test_XXXXXX"; /* in the working directory: /tmp may not be on a disk */
static unsigned char *content; /* [FILE_BYTES] of the file */

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int make_file(void **state)
{
    (void)state;
    int fd = mkstemp(path);
    content = malloc(FILE_BYTES);
    if (fd < 0 || content == NULL)
        return -1;
    uint64_t seed = 88172645463325252u;
    for (size_t i = 0; i < FILE_BYTES; i++)
        content[i] = (unsigned char)(next_random(&seed) >> 32);
    int rc = plat_write_at(fd, path, content, FILE_BYTES, 0, NULL);
    rc = rc != 0 ? rc : plat_sync(fd, path, NULL);
    plat_close(fd);
    return rc;
}

static int remove_file(void **state)
{
    (void)state;
    free(content);
    return unlink(path);
}

/* ---- a crowd of operations ---------------------------------------------------------------- */

struct crowd {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    unsigned n_done;
    bool is_open; /* gates let their threads pass */
};

struct item {
    struct read_op op;
    struct crowd *crowd;
    struct reader *reader;
    unsigned char *room; /* [ROOM_BYTES] */
    int64_t result;
    unsigned n_done, order; /* order: position among the operations that are done */
    unsigned n_again;       /* how often `done` submits it again */
};

static void crowd_init(struct crowd *crowd)
{
    *crowd = (struct crowd){.n_done = 0};
    pthread_mutex_init(&crowd->lock, NULL);
    pthread_cond_init(&crowd->changed, NULL);
}

static void crowd_clear(struct crowd *crowd)
{
    pthread_cond_destroy(&crowd->changed);
    pthread_mutex_destroy(&crowd->lock);
}

static void crowd_wait(struct crowd *crowd, unsigned n_done)
{
    pthread_mutex_lock(&crowd->lock);
    while (crowd->n_done < n_done)
        pthread_cond_wait(&crowd->changed, &crowd->lock);
    pthread_mutex_unlock(&crowd->lock);
}

static void count_done(struct read_op *op, int64_t result)
{
    struct item *item = op->ctx;
    struct crowd *crowd = item->crowd;
    pthread_mutex_lock(&crowd->lock);
    item->result = result;
    item->n_done++;
    item->order = crowd->n_done++;
    pthread_cond_broadcast(&crowd->changed);
    pthread_mutex_unlock(&crowd->lock);
}

static struct item *new_items(struct crowd *crowd, struct reader *reader, unsigned n)
{
    struct item *items = calloc(n, sizeof *items);
    unsigned char *rooms = mem_new_aligned(MEM_PAGE, (uint64_t)n * ROOM_BYTES, "rooms", NULL);
    assert_non_null(items);
    assert_non_null(rooms);
    for (unsigned i = 0; i < n; i++) {
        items[i].crowd = crowd;
        items[i].reader = reader;
        items[i].room = rooms + i * (size_t)ROOM_BYTES;
    }
    return items;
}

static void free_items(struct item *items)
{
    mem_free(items[0].room);
    free(items);
}

/* `at` is an offset into the room; guard bytes surround the destination. */
static void item_set(struct item *item, int fd, bool is_direct, uint64_t offset, uint64_t bytes,
                     size_t at)
{
    unsigned char *dst = item->room + at;
    memset(dst, 0, (size_t)bytes);
    memset(dst - GUARD_BYTES, GUARD, GUARD_BYTES);
    memset(dst + bytes, GUARD, GUARD_BYTES);
    item->n_done = 0;
    item->op = (struct read_op){.fd = fd, .is_direct = is_direct, .offset = offset, .bytes = bytes,
                                .dst = dst, .done = count_done, .ctx = item};
}

static void item_submit(struct item *item)
{
    item->reader->ops->submit(item->reader, &item->op);
}

static void item_check(const struct item *item)
{
    const uint64_t offset = item->op.offset, bytes = item->op.bytes;
    const unsigned char *dst = item->op.dst;
    uint64_t left = offset < FILE_BYTES ? FILE_BYTES - offset : 0;
    left = left < bytes ? left : bytes;
    assert_int_equal(item->n_done, 1);
    assert_int_equal(item->result, left);
    if (left > 0)
        assert_memory_equal(dst, content + offset, left);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(*(dst - GUARD_BYTES + i), GUARD);
        assert_int_equal(dst[bytes + i], GUARD);
    }
}

/* Opens a reader of the kind. Skips the test where the system does not support it. */
static struct reader *open_kind(void **state, unsigned depth, bool bounces)
{
    const struct kind *kind = *state;
    struct reader *reader = NULL;
    struct fm_error err = {0};
    const uint64_t bounce_bytes = bounces ? READ_OP_BYTES : 0;
    const struct reader_options options = {.depth = depth, .bounce_bytes = bounce_bytes};
    int rc = kind->open(&options, &reader, &err);
    if (rc == FM_ERR_UNSUPPORTED) {
        print_message("%s: %s\n", kind->name, err.text);
        assert_null(reader);
        assert_true(err.text[0] != '\0');
        skip();
    }
    assert_int_equal(rc, 0);
    assert_string_equal(reader->ops->name, kind->name);
    return reader;
}

static int open_buffered(void)
{
    int fd;
    uint64_t bytes;
    assert_int_equal(plat_open(path, &fd, &bytes, NULL), 0);
    assert_int_equal(bytes, FILE_BYTES);
    return fd;
}

static int open_direct(bool *is_direct)
{
    int fd;
    uint64_t bytes;
    assert_int_equal(plat_open_device(path, &fd, &bytes, is_direct, NULL), 0);
    return fd;
}

/* ---- tests -------------------------------------------------------------------------------- */

/* One file, opened in three ways. A direct file may leave that mode when its last page is read, so
 * the end of the file has a descriptor of its own. */
struct files {
    int buffered, direct, direct_end;
    bool is_direct;
};

static void item_set_random(struct item *item, const struct files *files, uint64_t *seed)
{
    const uint64_t dice = next_random(seed);
    const bool is_direct = dice & 1, is_aligned = dice & 2, is_end = (dice & 28) == 0;
    uint64_t bytes = 1 + next_random(seed) % ((uint64_t)2 << (dice >> 8) % 20);
    uint64_t offset = next_random(seed) % (FILE_BYTES - READ_OP_BYTES - 2 * MEM_PAGE);
    size_t at = MEM_PAGE + (dice >> 16) % (MEM_PAGE - 2 * GUARD_BYTES);
    if (is_end)
        offset = FILE_BYTES - READ_OP_BYTES / 64 + next_random(seed) % (READ_OP_BYTES / 32);
    if (is_end && (dice & 32) != 0)
        offset = FILE_BYTES - FILE_BYTES % MEM_PAGE;
    if (is_aligned) {
        bytes = mem_round_up(bytes, MEM_PAGE);
        offset -= offset % MEM_PAGE;
        at = MEM_PAGE;
    }
    bytes = bytes < READ_OP_BYTES ? bytes : READ_OP_BYTES;
    const int fd = !is_direct ? files->buffered : is_end ? files->direct_end : files->direct;
    item_set(item, fd, is_direct && files->is_direct, offset, bytes, at);
    item->op.urgency = (dice & 64) != 0 ? READ_GUESSED : READ_NEEDED;
}

static void check_random(void **state, unsigned depth)
{
    enum { N_ITEMS = 40, N_ROUNDS = 40 };
    struct reader *reader = open_kind(state, depth, true);
    struct crowd crowd;
    crowd_init(&crowd);
    struct item *items = new_items(&crowd, reader, N_ITEMS);
    uint64_t seed = 2463534242u + depth;
    for (unsigned round = 0; round < N_ROUNDS; round++) {
        struct files files = {.buffered = open_buffered()};
        files.direct = open_direct(&files.is_direct);
        files.direct_end = open_direct(&files.is_direct);
        crowd.n_done = 0;
        for (unsigned i = 0; i < N_ITEMS; i++) {
            item_set_random(&items[i], &files, &seed);
            item_submit(&items[i]);
        }
        crowd_wait(&crowd, N_ITEMS);
        for (unsigned i = 0; i < N_ITEMS; i++)
            item_check(&items[i]);
        plat_close(files.buffered);
        plat_close(files.direct);
        plat_close(files.direct_end);
    }
    reader->ops->close(reader);
    free_items(items);
    crowd_clear(&crowd);
}

static void test_random(void **state)
{
    check_random(state, 1);
    check_random(state, 7);
    check_random(state, READER_MAX_DEPTH);
}

/* Without bounce buffers the reader serves buffered operations and page-aligned direct ones. */
static void test_no_bounces(void **state)
{
    struct reader *reader = open_kind(state, 4, false);
    struct crowd crowd;
    crowd_init(&crowd);
    struct item *items = new_items(&crowd, reader, 8);
    bool is_direct;
    int buffered = open_buffered(), direct = open_direct(&is_direct);
    for (unsigned i = 0; i < 4; i++) {
        item_set(&items[i], buffered, false, 1000 * i + 1, 777 + i, MEM_PAGE + i);
        item_set(&items[4 + i], direct, is_direct, i * (uint64_t)READ_OP_BYTES, READ_OP_BYTES,
                 MEM_PAGE);
    }
    for (unsigned i = 0; i < 8; i++)
        item_submit(&items[i]);
    reader->ops->close(reader);
    for (unsigned i = 0; i < 8; i++)
        item_check(&items[i]);
    plat_close(buffered);
    plat_close(direct);
    free_items(items);
    crowd_clear(&crowd);
}

static void wait_at_gate(struct read_op *op, int64_t result)
{
    struct crowd *crowd = ((struct item *)op->ctx)->crowd;
    pthread_mutex_lock(&crowd->lock);
    while (!crowd->is_open)
        pthread_cond_wait(&crowd->changed, &crowd->lock);
    pthread_mutex_unlock(&crowd->lock);
    count_done(op, result);
}

/* Gates hold every thread of the reader in `done` until all other operations are submitted. Then
 * needed operations are served first, up to the depth. */
static void check_overtaking(void **state, unsigned depth)
{
    enum { N_GUESSED = 64, N_NEEDED = 4 };
    struct reader *reader = open_kind(state, depth, true);
    struct crowd crowd;
    crowd_init(&crowd);
    const unsigned n = depth + N_GUESSED + N_NEEDED;
    struct item *items = new_items(&crowd, reader, n);
    int fd = open_buffered();
    for (unsigned i = 0; i < n; i++) {
        item_set(&items[i], fd, false, 4099 * i, 100000, MEM_PAGE);
        if (i < depth)
            items[i].op.done = wait_at_gate;
        else if (i < depth + N_GUESSED)
            items[i].op.urgency = READ_GUESSED;
        item_submit(&items[i]);
    }
    pthread_mutex_lock(&crowd.lock);
    crowd.is_open = true;
    pthread_cond_broadcast(&crowd.changed);
    pthread_mutex_unlock(&crowd.lock);
    reader->ops->close(reader);
    unsigned first_needed = n, last_needed = 0;
    for (unsigned i = 0; i < n; i++) {
        item_check(&items[i]);
        if (i < depth + N_GUESSED)
            continue;
        first_needed = items[i].order < first_needed ? items[i].order : first_needed;
        last_needed = items[i].order > last_needed ? items[i].order : last_needed;
    }
    /* One thread that took a needed operation may be delayed, but not all of them. */
    assert_true(first_needed < n - N_NEEDED);
    if (depth == 1)
        assert_int_equal(last_needed, N_NEEDED);
    plat_close(fd);
    free_items(items);
    crowd_clear(&crowd);
}

static void test_needed_overtakes(void **state)
{
    check_overtaking(state, 1);
    check_overtaking(state, 8);
}

static void submit_again(struct read_op *op, int64_t result)
{
    struct item *item = op->ctx;
    if (item->n_again == 0 || result != (int64_t)op->bytes) {
        count_done(op, result);
        return;
    }
    item->n_again--;
    op->offset += 1009;
    op->urgency = item->n_again % 3 == 0 ? READ_GUESSED : READ_NEEDED;
    item_submit(item);
}

/* Chains of operations, each submitted by `done` of the one before; close is called while they
 * run. */
static void test_submit_in_done(void **state)
{
    enum { N_CHAINS = 8, N_AGAIN = 400 };
    struct reader *reader = open_kind(state, 5, true);
    struct crowd crowd;
    crowd_init(&crowd);
    struct item *items = new_items(&crowd, reader, N_CHAINS);
    bool is_direct;
    int buffered = open_buffered(), direct = open_direct(&is_direct);
    for (unsigned i = 0; i < N_CHAINS; i++) {
        item_set(&items[i], i % 2 == 0 ? buffered : direct, i % 2 != 0 && is_direct, i, 5000,
                 MEM_PAGE + 17);
        items[i].op.done = submit_again;
        items[i].n_again = N_AGAIN;
        item_submit(&items[i]);
    }
    crowd_wait(&crowd, 1);
    reader->ops->close(reader);
    for (unsigned i = 0; i < N_CHAINS; i++) {
        item_check(&items[i]);
        assert_int_equal(items[i].n_again, 0);
        assert_int_equal(items[i].op.offset, i + 1009 * N_AGAIN);
    }
    plat_close(buffered);
    plat_close(direct);
    free_items(items);
    crowd_clear(&crowd);
}

struct caller {
    struct crowd crowd;
    struct item *item;
    int fd;
    unsigned n_right;
};

static void *call_main(void *arg)
{
    struct caller *caller = arg;
    struct item *item = caller->item;
    for (unsigned i = 0; i < 1500; i++) {
        item_set(item, caller->fd, false, 997 * i, 64, MEM_PAGE);
        item->op.urgency = i % 2 == 0 ? READ_NEEDED : READ_GUESSED;
        item_submit(item);
        crowd_wait(&caller->crowd, i + 1);
        caller->n_right += item->result == 64 && memcmp(item->op.dst, content + 997 * i, 64) == 0;
    }
    return NULL;
}

/* Threads that each wait for every operation, so that the reader sleeps and wakes all the time. */
static void test_many_callers(void **state)
{
    enum { N_CALLERS = 4 };
    struct reader *reader = open_kind(state, 3, false);
    struct caller callers[N_CALLERS];
    pthread_t threads[N_CALLERS];
    int fd = open_buffered();
    for (unsigned i = 0; i < N_CALLERS; i++) {
        callers[i].fd = fd;
        callers[i].n_right = 0;
        crowd_init(&callers[i].crowd);
        callers[i].item = new_items(&callers[i].crowd, reader, 1);
        assert_int_equal(plat_thread_start(&threads[i], call_main, &callers[i]), 0);
    }
    for (unsigned i = 0; i < N_CALLERS; i++)
        pthread_join(threads[i], NULL);
    reader->ops->close(reader);
    for (unsigned i = 0; i < N_CALLERS; i++) {
        assert_int_equal(callers[i].n_right, 1500);
        free_items(callers[i].item);
        crowd_clear(&callers[i].crowd);
    }
    plat_close(fd);
}

static void test_close_completes(void **state)
{
    enum { N_ITEMS = 100 };
    for (unsigned n = 0; n <= N_ITEMS; n += 20) {
        struct reader *reader = open_kind(state, 6, true);
        struct crowd crowd;
        crowd_init(&crowd);
        struct item *items = new_items(&crowd, reader, N_ITEMS);
        bool is_direct;
        int fd = open_direct(&is_direct);
        for (unsigned i = 0; i < n; i++) {
            item_set(&items[i], fd, is_direct, 30011 * i, 70001, MEM_PAGE + i);
            items[i].op.urgency = i % 2 == 0 ? READ_NEEDED : READ_GUESSED;
            item_submit(&items[i]);
        }
        reader->ops->close(reader);
        for (unsigned i = 0; i < n; i++)
            item_check(&items[i]);
        plat_close(fd);
        free_items(items);
        crowd_clear(&crowd);
    }
}

static void test_bad_file(void **state)
{
    struct reader *reader = open_kind(state, 2, true);
    struct crowd crowd;
    crowd_init(&crowd);
    struct item *items = new_items(&crowd, reader, 2);
    for (unsigned i = 0; i < 2; i++) {
        item_set(&items[i], -1, i == 1, 100, 100, MEM_PAGE);
        item_submit(&items[i]);
    }
    reader->ops->close(reader);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(items[i].n_done, 1);
        assert_int_equal(items[i].result, -EBADF);
    }
    free_items(items);
    crowd_clear(&crowd);
}

/* A file that the system returns in small pieces. */
static void test_short_pieces(void **state)
{
    enum { BYTES = 60000 };
    const char *list = "/proc/kallsyms";
    if (!plat_file_exists(list))
        skip();
    struct reader *reader = open_kind(state, 2, false);
    struct crowd crowd;
    crowd_init(&crowd);
    struct item *items = new_items(&crowd, reader, 2);
    int fd;
    uint64_t bytes;
    assert_int_equal(plat_open(list, &fd, &bytes, NULL), 0);
    int64_t n = plat_read_some(fd, items[1].room, BYTES, 0);
    assert_true(n >= 0);
    item_set(&items[0], fd, false, 0, BYTES, MEM_PAGE);
    item_submit(&items[0]);
    reader->ops->close(reader);
    assert_int_equal(items[0].result, n);
    assert_memory_equal(items[0].op.dst, items[1].room, (size_t)n);
    plat_close(fd);
    free_items(items);
    crowd_clear(&crowd);
}

/* ---- open --------------------------------------------------------------------------------- */

/* Counts open descriptors; 0 where the system does not list them. */
static unsigned count_files(void)
{
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (dir != NULL && readdir(dir) != NULL)
        n++;
    if (dir != NULL)
        (void)closedir(dir);
    return n;
}

static void test_depth(void **state)
{
    const struct kind *kind = *state;
    const unsigned wrong[] = {0, READER_MAX_DEPTH + 1, UINT32_MAX};
    for (unsigned i = 0; i < 3; i++) {
        struct reader *reader = (struct reader *)content;
        struct fm_error err = {0};
        const struct reader_options options = {.depth = wrong[i], .bounce_bytes = READ_OP_BYTES};
        assert_int_equal(kind->open(&options, &reader, &err), FM_ERR_ARG);
        assert_null(reader);
        assert_true(err.text[0] != '\0');
    }
}

static void test_no_memory(void **state)
{
    const struct kind *kind = *state;
    const struct reader_options options = {.depth = 9, .bounce_bytes = READ_OP_BYTES};
    long n = mem_count();
    struct reader *reader = open_kind(state, options.depth, options.bounce_bytes > 0);
    n = mem_count() - n;
    assert_true(n >= 2);
    reader->ops->close(reader);
    const unsigned n_files = count_files();
    for (long i = 1; i <= n; i++) {
        struct fm_error err = {0};
        mem_fail_at(i);
        int rc = kind->open(&options, &reader, &err);
        mem_fail_at(0);
        assert_int_equal(rc, FM_ERR_NOMEM);
        assert_null(reader);
        assert_true(err.text[0] != '\0');
    }
    assert_int_equal(count_files(), n_files);
}

/* With no free descriptor, then with one and so on, open fails as unsupported, so that the caller
 * uses another reader, until there are enough. */
static void test_no_descriptors(void **state)
{
    const struct kind *kind = *state;
    const struct reader_options options = {.depth = 2};
    struct reader *reader = open_kind(state, options.depth, options.bounce_bytes > 0);
    reader->ops->close(reader);
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const unsigned n_files = count_files();
    const int lowest = dup(0);
    assert_true(lowest >= 0);
    plat_close(lowest);
    int rc = FM_ERR_UNSUPPORTED;
    for (int more = 0; more < 16 && rc != 0; more++) {
        const struct rlimit tight = {.rlim_cur = (rlim_t)(lowest + more),
                                     .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
        rc = kind->open(&options, &reader, NULL);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
        assert_true(rc == 0 || rc == FM_ERR_UNSUPPORTED);
        if (rc == 0)
            reader->ops->close(reader);
        assert_int_equal(count_files(), n_files);
    }
    assert_int_equal(rc, 0);
}

/* ---- a ring that breaks -------------------------------------------------------------------- */

#ifdef __linux__
/* number of calls that succeed first; the errno after them, 0: none */
static atomic_int fail_in, fail_with;

/* Replaces the function of the C library. */
long syscall(long number, ...)
{
    static long (*next)(long, ...);
    va_list args;
    long a[6];
    va_start(args, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(args, long);
    va_end(args);
    if (number == SYS_io_uring_enter && atomic_load(&fail_with) != 0 &&
        atomic_fetch_sub(&fail_in, 1) <= 0) {
        errno = atomic_load(&fail_with);
        return -1;
    }
    if (next == NULL)
        *(void **)(uintptr_t)&next = dlsym(RTLD_NEXT, "syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* io_uring_enter fails for good after any number of calls, with an unexpected error. Every read is
 * answered once with the right bytes, also those submitted later; then the reader closes. */
static void test_ring_breaks(void **state)
{
    enum { N_ITEMS = 24, N_AT = 12 };
    const int errors[] = {EPERM, ENOSYS, EBADF, EINVAL, EFAULT, ENXIO};
    for (int i = 0; i < N_AT; i++) {
        struct reader *reader = open_kind(state, 5, true);
        struct crowd crowd;
        crowd_init(&crowd);
        struct item *items = new_items(&crowd, reader, N_ITEMS);
        struct files files = {.buffered = open_buffered()};
        files.direct = open_direct(&files.is_direct);
        files.direct_end = open_direct(&files.is_direct);
        uint64_t seed = 77 + (uint64_t)i;
        atomic_store(&fail_in, i);
        atomic_store(&fail_with, errors[i % 6]);
        for (unsigned round = 0; round < 3; round++) {
            crowd.n_done = 0;
            for (unsigned k = 0; k < N_ITEMS; k++) {
                item_set_random(&items[k], &files, &seed);
                item_submit(&items[k]);
            }
            crowd_wait(&crowd, N_ITEMS);
            for (unsigned k = 0; k < N_ITEMS; k++)
                item_check(&items[k]);
        }
        assert_true(atomic_load(&fail_in) < 0); /* it did fail */
        reader->ops->close(reader);
        atomic_store(&fail_with, 0);
        plat_close(files.buffered);
        plat_close(files.direct);
        plat_close(files.direct_end);
        free_items(items);
        crowd_clear(&crowd);
    }
}

/* The ring breaks while nothing is in flight, and the reader is closed. */
static void test_ring_breaks_idle(void **state)
{
    struct reader *reader = open_kind(state, 3, false);
    atomic_store(&fail_in, 0);
    atomic_store(&fail_with, EPERM);
    reader->ops->close(reader);
    atomic_store(&fail_with, 0);
}

/* The kernel lacks memory for a while; the ring continues afterwards. */
static void test_ring_recovers(void **state)
{
    struct reader *reader = open_kind(state, 3, true);
    struct crowd crowd;
    crowd_init(&crowd);
    struct item *items = new_items(&crowd, reader, 8);
    const int fd = open_buffered();
    atomic_store(&fail_in, 1);
    atomic_store(&fail_with, EBUSY);
    for (unsigned i = 0; i < 8; i++) {
        item_set(&items[i], fd, false, 5000 * i, 4321, MEM_PAGE);
        item_submit(&items[i]);
    }
    while (atomic_load(&fail_in) > -3)
        (void)sched_yield();
    atomic_store(&fail_with, 0);
    crowd_wait(&crowd, 8);
    for (unsigned i = 0; i < 8; i++)
        item_check(&items[i]);
    reader->ops->close(reader);
    plat_close(fd);
    free_items(items);
    crowd_clear(&crowd);
}

#define TEST_RING(test) cmocka_unit_test_prestate(test, (void *)(uintptr_t)&kinds[1])
#endif

#define TEST_BOTH(test)                                                                            \
    cmocka_unit_test_prestate(test, (void *)(uintptr_t)&kinds[0]),                                 \
        cmocka_unit_test_prestate(test, (void *)(uintptr_t)&kinds[1])

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST_BOTH(test_random),
        TEST_BOTH(test_no_bounces),
        TEST_BOTH(test_needed_overtakes),
        TEST_BOTH(test_submit_in_done),
        TEST_BOTH(test_many_callers),
        TEST_BOTH(test_close_completes),
        TEST_BOTH(test_bad_file),
        TEST_BOTH(test_short_pieces),
        TEST_BOTH(test_depth),
        TEST_BOTH(test_no_memory),
        TEST_BOTH(test_no_descriptors),
#ifdef __linux__
        TEST_RING(test_ring_breaks),
        TEST_RING(test_ring_breaks_idle),
        TEST_RING(test_ring_recovers),
#endif
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
