/* A backend whose memory nobody can look into but its operations: the CPU's, with every block of
 * memory unreadable while no operation runs and the block is not open. Linked with
 * --wrap=backend_open it takes the place of every backend. A stray access by the host ends the
 * program with a line and status 6, as it would end in garbage on a device of its own. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/plat.h"

#define MAX_BLOCKS 64

/* Memory that is protected as one. */
struct block {
    char *at; /* NULL: free */
    uint64_t bytes;
    const struct mem_range *range; /* of which only the used bytes are protected; or NULL */
    unsigned n_open;
};

static struct {
    pthread_mutex_t lock;
    struct block blocks[MAX_BLOCKS];
    unsigned n_running; /* operations */
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct guarded {
    struct backend base;
    struct backend *cpu;
};

static struct backend *cpu_of(struct backend *be)
{
    return ((struct guarded *)(void *)be)->cpu;
}

/* ---- protection ------------------------------------------------------------------------------ */

static void must(bool is_good)
{
    if (!is_good)
        abort();
}

/* With the lock held. */
static void protect(const struct block *b)
{
    const uint64_t bytes = b->range != NULL ? b->range->used_bytes : b->bytes;
    const bool is_readable = guard.n_running > 0 || b->n_open > 0;
    if (bytes > 0)
        must(mprotect(b->at, bytes, is_readable ? PROT_READ | PROT_WRITE : PROT_NONE) == 0);
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

static void begin(void)
{
    protect_all(1);
}

static void end(void)
{
    protect_all(-1);
}

/* With the lock held. */
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
    must(i < MAX_BLOCKS);
    guard.blocks[i] = (struct block){.at = at, .bytes = bytes, .range = range};
    protect(&guard.blocks[i]);
    pthread_mutex_unlock(&guard.lock);
}

static struct block take_block(const void *at)
{
    pthread_mutex_lock(&guard.lock);
    struct block *b = block_of(at), taken = *b;
    must(b->n_open == 0);
    *b = (struct block){0};
    pthread_mutex_unlock(&guard.lock);
    return taken;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *guard_make(const struct memory *m, uint64_t bytes, const char *what,
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

static void guard_free(const struct memory *m, void *at)
{
    (void)m;
    if (at == NULL)
        return;
    const struct block b = take_block(at);
    must(munmap(b.at, b.bytes) == 0);
}

static void guard_give_back(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    plat_give_back(at, bytes);
}

static int guard_range_open(const struct memory *m, struct mem_range *range, uint64_t piece_bytes,
                            uint64_t bytes, const char *what, struct fm_error *err)
{
    (void)m;
    int rc = mem_range_open(range, piece_bytes, bytes, what, err);
    if (rc == 0 && range->at != NULL)
        add_block(range->at, range->all_bytes, range);
    return rc;
}

static int guard_range_resize(const struct memory *m, struct mem_range *range, uint64_t bytes,
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

static void guard_range_close(const struct memory *m, struct mem_range *range)
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
    must((const char *)at + bytes <= b->at + b->bytes && (more > 0 || b->n_open > 0));
    b->n_open += (unsigned)more;
    if (guard.n_running == 0 && b->n_open == (more > 0))
        protect(b);
    pthread_mutex_unlock(&guard.lock);
}

static void *guard_open(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    change_open(at, bytes, 1);
    return at;
}

static void guard_close(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    change_open(at, bytes, -1);
}

static void guard_copy(const struct memory *m, void *to, const void *from, uint64_t bytes)
{
    (void)m;
    begin();
    memmove(to, from, bytes);
    end();
}

static void guard_clear(const struct memory *m, void *at, uint64_t bytes)
{
    (void)m;
    begin();
    memset(at, 0, bytes);
    end();
}

static const struct memory_ops guard_memory_ops = {
    .make = guard_make,
    .free = guard_free,
    .give_back = guard_give_back,
    .range_open = guard_range_open,
    .range_resize = guard_range_resize,
    .range_close = guard_range_close,
    .open = guard_open,
    .close = guard_close,
    .copy = guard_copy,
    .clear = guard_clear,
};

static const struct memory guard_memory = {.ops = &guard_memory_ops, .is_host = true};

/* ---- operations ------------------------------------------------------------------------------ */

#define RUN(be, operation, ...)                                                                    \
    do {                                                                                           \
        begin();                                                                                   \
        cpu_of(be)->ops->operation(cpu_of(be), __VA_ARGS__);                                       \
        end();                                                                                     \
    } while (0)

static void guard_backend_close(struct backend *be)
{
    backend_close(cpu_of(be));
    free(be);
}

static void guard_embed(struct backend *be, const struct weight *w, const int32_t *tokens,
                        size_t n, float *x)
{
    RUN(be, embed, w, tokens, n, x);
}

static void guard_input(struct backend *be, const float *x, size_t n, size_t n_cols)
{
    RUN(be, input, x, n, n_cols);
}

static void guard_matmul(struct backend *be, const struct backend_product *products, size_t n)
{
    RUN(be, matmul, products, n);
}

static void guard_ffn(struct backend *be, const struct backend_ffn *blocks, size_t n_blocks)
{
    RUN(be, ffn, blocks, n_blocks);
}

static void guard_rms_norm(struct backend *be, const float *x, const float *weight, float eps,
                           size_t n, size_t dim, float *y)
{
    RUN(be, rms_norm, x, weight, eps, n, dim, y);
}

static void guard_rope_table(struct backend *be, const uint32_t *positions, size_t n,
                             const float *frequencies, unsigned rotary_dim, float scale,
                             float *out)
{
    RUN(be, rope_table, positions, n, frequencies, rotary_dim, scale, out);
}

static void guard_norm_rope(struct backend *be, const struct backend_heads *heads, size_t n)
{
    RUN(be, norm_rope, heads, n);
}

static void guard_attention(struct backend *be, const struct backend_attention *args)
{
    RUN(be, attention, args);
}

static void guard_delta_net(struct backend *be, const struct backend_delta_net *args)
{
    RUN(be, delta_net, args);
}

static void guard_route(struct backend *be, const struct router *router, const float *logits,
                        size_t n, uint32_t *ids, float *weights)
{
    RUN(be, route, router, logits, n, ids, weights);
}

static void guard_prefer(struct backend *be, const struct backend_preference *args)
{
    RUN(be, prefer, args);
}

static size_t guard_find_not_finite(struct backend *be, const float *x, size_t n, size_t dim)
{
    begin();
    const size_t row = cpu_of(be)->ops->find_not_finite(cpu_of(be), x, n, dim);
    end();
    return row;
}

static void guard_expert_sum(struct backend *be, const float *parts, const float *weights,
                             size_t n, unsigned k, size_t dim, float *out)
{
    RUN(be, expert_sum, parts, weights, n, k, dim, out);
}

static void guard_add_gated(struct backend *be, float *y, const float *x, const float *gate,
                            size_t n, size_t dim)
{
    RUN(be, add_gated, y, x, gate, n, dim);
}

static void guard_add(struct backend *be, float *y, const float *x, size_t n)
{
    RUN(be, add, y, x, n);
}

static const struct backend_ops guard_ops = {
    .name = "guarded",
    .close = guard_backend_close,
    .embed = guard_embed,
    .input = guard_input,
    .matmul = guard_matmul,
    .ffn = guard_ffn,
    .rms_norm = guard_rms_norm,
    .rope_table = guard_rope_table,
    .norm_rope = guard_norm_rope,
    .attention = guard_attention,
    .delta_net = guard_delta_net,
    .route = guard_route,
    .prefer = guard_prefer,
    .find_not_finite = guard_find_not_finite,
    .expert_sum = guard_expert_sum,
    .add_gated = guard_add_gated,
    .add = guard_add,
};

/* ---- in place of every backend --------------------------------------------------------------- */

static void complain(int number)
{
    static const char text[] = "the host looked into the backend's memory\n";
    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(6);
}

/* The guard bites: a child that looks is ended. */
static void check_guard(void)
{
    volatile char *at = memory_make(&guard_memory, 1, "a page", NULL);
    must(at != NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)close(STDERR_FILENO);
        _exit(*at);
    }
    int status = 0;
    must(child > 0 && waitpid(child, &status, 0) == child);
    must(WIFEXITED(status) && WEXITSTATUS(status) == 6);
    memory_free(&guard_memory, (void *)(uintptr_t)at);
}

int __real_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);
int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err);

int __wrap_backend_open(const char *name, const struct backend_options *options,
                        struct backend **out, struct fm_error *err)
{
    static bool is_checked;
    struct guarded *g = calloc(1, sizeof *g);
    must(g != NULL && signal(SIGSEGV, complain) != SIG_ERR && signal(SIGBUS, complain) != SIG_ERR);
    if (!is_checked)
        check_guard();
    is_checked = true;
    int rc = __real_backend_open(name, options, &g->cpu, err);
    if (rc != 0) {
        free(g);
        return rc;
    }
    /* Weights are prepared in pieces that are open. */
    g->base = (struct backend){&guard_ops, &guard_memory, g->cpu->preparer, g->cpu->level};
    *out = &g->base;
    return 0;
}
