/* Implements guard.h. */
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/plat.h"

#define MAX_BLOCKS 64

/* Memory that is protected as a unit. */
struct block {
    char *at; /* NULL: free */
    uint64_t bytes;
    const struct mem_range *range; /* only its used bytes are protected; may be NULL */
    unsigned n_open;
};

static struct {
    pthread_mutex_t lock;
    struct block blocks[MAX_BLOCKS];
    unsigned n_running; /* operations */
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- protection ------------------------------------------------------------------------------ */

void guard_must(bool is_good)
{
    if (!is_good)
        abort();
}

/* The caller holds the lock. */
static void protect(const struct block *b)
{
    const uint64_t bytes = b->range != NULL ? b->range->used_bytes : b->bytes;
    const bool is_readable = guard.n_running > 0 || b->n_open > 0;
    if (bytes > 0)
        guard_must(mprotect(b->at, bytes, is_readable ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
}

static void protect_all(int more)
{
    pthread_mutex_lock(&guard.lock);
    guard.n_running += (unsigned)more;
    for (unsigned i = 0; guard.n_running == (more > 0) && i < MAX_BLOCKS; i++)
        if (guard.blocks[i].at != NULL && guard.blocks[i].n_open == 0)
            protect(&guard.blocks[i]);
    pthread_mutex_unlock(&guard.lock);
}

void guard_begin(void)
{
    protect_all(1);
}

void guard_end(void)
{
    protect_all(-1);
}

/* The caller holds the lock. */
static struct block *block_of(const void *at)
{
    for (unsigned i = 0; i < MAX_BLOCKS; i++) {
        struct block *b = &guard.blocks[i];
        if (b->at != NULL && (const char *)at >= b->at && (const char *)at < b->at + b->bytes)
            return b;
    }
    abort();
}

static void add_block(void *at, uint64_t bytes, const struct mem_range *range)
{
    pthread_mutex_lock(&guard.lock);
    unsigned i = 0;
    while (i < MAX_BLOCKS && guard.blocks[i].at != NULL)
        i++;
    guard_must(i < MAX_BLOCKS);
    guard.blocks[i] = (struct block){.at = at, .bytes = bytes, .range = range};
    protect(&guard.blocks[i]);
    pthread_mutex_unlock(&guard.lock);
}

static struct block take_block(const void *at)
{
    pthread_mutex_lock(&guard.lock);
    struct block *b = block_of(at), taken = *b;
    guard_must(b->n_open == 0);
    *b = (struct block){0};
    pthread_mutex_unlock(&guard.lock);
    return taken;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *guard_make(const struct memory *m, uint64_t bytes, const char *what,
                        struct fm_error *err)
{
    (void)m;
    const uint64_t all = mem_round_up(bytes > 0 ? bytes : 1, MEM_PAGE);
    void *at = mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        (void)err_set(err, FM_ERR_NOMEM, "out of memory: %s", what);
        return NULL;
    }
    add_block(at, all, NULL);
    return at;
}

void guard_free(const struct memory *m, void *at)
{
    (void)m;
    if (at == NULL)
        return;
    const struct block b = take_block(at);
    guard_must(munmap(b.at, b.bytes) == 0);
}

void guard_give_back(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    plat_give_back(at, bytes);
}

bool guard_take_back(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m, (void)at, (void)bytes;
    return true;
}

void guard_fetch(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    void *piece = (void *)(uintptr_t)from;
    memcpy(to, memory_open(m, piece, bytes, MEMORY_LOOK), bytes);
    memory_close(m, piece, bytes);
}

int guard_range_open(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                            uint64_t bytes, const char *what, struct fm_error *err)
{
    (void)m;
    int rc = mem_range_open(range, piece_bytes, bytes, what, err);
    if (rc == 0 && range->at != NULL)
        add_block(range->at, range->all_bytes, range);
    return rc;
}

int guard_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
                              const char *what, struct fm_error *err)
{
    (void)m;
    pthread_mutex_lock(&guard.lock);
    int rc = mem_range_resize(range, bytes, what, err);
    if (range->at != NULL)
        protect(block_of(range->at));
    pthread_mutex_unlock(&guard.lock);
    return rc;
}

void guard_range_close(const struct memory *m, struct mem_range *range)
{
    (void)m;
    if (range->at != NULL)
        (void)take_block(range->at);
    mem_range_close(range);
}

static void change_open(const void *at, uint64_t bytes, int more)
{
    if (bytes == 0)
        return;
    pthread_mutex_lock(&guard.lock);
    struct block *b = block_of(at);
    guard_must((const char *)at + bytes <= b->at + b->bytes && (more > 0 || b->n_open > 0));
    b->n_open += (unsigned)more;
    if (guard.n_running == 0 && b->n_open == (more > 0))
        protect(b);
    pthread_mutex_unlock(&guard.lock);
}

void *guard_open(const struct memory *m, void *at, uint64_t bytes, enum memory_use use)
{
    (void)m, (void)use;
    change_open(at, bytes, 1);
    return at;
}

void guard_close(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    change_open(at, bytes, -1);
}

static void complain(int number)
{
    static const char text[] = "the host looked into the backend's memory\n";
    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(6);
}

/* Checks that the guard works: a child that reads protected memory is ended. */
static void check_guard(void)
{
    volatile char *at = guard_make(NULL, 1, "a page", NULL);
    guard_must(at != NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)close(STDERR_FILENO);
        _exit(*at);
    }
    int status = 0;
    guard_must(child > 0 && waitpid(child, &status, 0) == child);
    guard_must(WIFEXITED(status) && WEXITSTATUS(status) == 6);
    guard_free(NULL, (void *)(uintptr_t)at);
}

void guard_start(void)
{
    static bool is_checked;
    guard_must(signal(SIGSEGV, complain) != SIG_ERR && signal(SIGBUS, complain) != SIG_ERR);
    if (!is_checked)
        check_guard();
    is_checked = true;
}
