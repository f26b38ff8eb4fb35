/* Jumps between stacks are what this file is for; the checked longjmp refuses them. */
#undef _FORTIFY_SOURCE

#include "backend/cuda/emulator.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#define HAS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAS_TSAN 1
#endif
#endif
#ifdef HAS_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define WARP 32u
#define MAX_THREADS 1024u
#define MAX_WARPS (MAX_THREADS / WARP)
#define STACK_BYTES ((size_t)128 << 10)
/* As on the GPUs: what a kernel may declare, and what a launch may ask for. */
#define STATIC_BYTES ((size_t)48 << 10)
#define DYNAMIC_BYTES ((size_t)227 << 10)
#define SHARED_BYTES (STATIC_BYTES + DYNAMIC_BYTES)
#define MESSAGE_BYTES 300

enum state { READY, AT_WARP, AT_BLOCK, DONE };
enum meeting { MEET_BARRIER, MEET_SHUFFLE, MEET_TILE };

/* One thread of the GPU. */
struct fiber {
    char *stack;
    jmp_buf jump;
    ucontext_t context;
    bool is_started, has_waited;
    enum state state;
    enum meeting meeting;
    size_t declared; /* bytes of shared memory, so far */
#ifdef HAS_TSAN
    void *tsan;
#endif
};

struct warp {
    uint32_t epoch; /* how often it has met */
    uint64_t given[2][WARP];
    struct emulator_operands operands[2][WARP];
};

/* Who used an element of shared memory last. An epoch is the time between two barriers. */
struct shadow {
    uint32_t run; /* of the block that wrote it; any other: nobody has */
    uint32_t write_epoch, write_warp_epoch;
    uint32_t read_epoch, read_warp_epoch;
    uint16_t writer, reader, reader_warp;
};

#define SEVERAL 0xffffu /* readers, or warps of readers */

static struct {
    const char *name;
    struct emulator_grid grid;
    void (*kernel)(const void *args);
    const void *args;
    struct fiber fibers[MAX_THREADS];
    struct warp warps[MAX_WARPS];
    jmp_buf scheduler;
    uint32_t epoch, run;
    unsigned n_launches;
    bool is_running;
    void (*fault)(const char *message);
#ifdef HAS_ASAN
    const void *host_stack;
    size_t host_stack_bytes;
    void *host_fake_stack;
#endif
#ifdef HAS_TSAN
    void *host_tsan;
#endif
} emulator;

static char *shared_memory;      /* [SHARED_BYTES]: declared, then asked for */
static struct shadow *shadows;   /* [SHARED_BYTES], of the element that begins there */
struct emulator_place emulator_here;

/* ---- faults ---------------------------------------------------------------------------------- */

static void fault(const char *what)
{
    char message[MESSAGE_BYTES];
    (void)snprintf(message, sizeof message, "kernel %s, block (%u, %u), thread %u: %s",
                   emulator.name, emulator_here.block_x, emulator_here.block_y,
                   emulator_here.thread, what);
    if (emulator.fault != NULL)
        emulator.fault(message);
    (void)fprintf(stderr, "%s\n", message);
    abort();
}

void emulator_on_fault(void (*handler)(const char *message))
{
    emulator.fault = handler;
}

void emulator_check_place(const void *at, size_t alignment)
{
    char text[96];
    if ((uintptr_t)at % alignment == 0)
        return;
    snprintf(text, sizeof text, "uses %zu bytes at %p, which is no multiple of them", alignment,
             at);
    fault(text);
}

void emulator_outside(size_t index, size_t n)
{
    char text[MESSAGE_BYTES / 2];
    (void)snprintf(text, sizeof text, "uses element %zu of %zu in shared memory", index, n);
    fault(text);
}

/* ---- fibers ---------------------------------------------------------------------------------- */

static void before_switch(const struct fiber *to)
{
#ifdef HAS_ASAN
    if (to != NULL)
        __sanitizer_start_switch_fiber(&emulator.host_fake_stack, to->stack, STACK_BYTES);
    else
        __sanitizer_start_switch_fiber(NULL, emulator.host_stack, emulator.host_stack_bytes);
#endif
#ifdef HAS_TSAN
    __tsan_switch_to_fiber(to != NULL ? to->tsan : emulator.host_tsan, 0);
#endif
    (void)to;
}

static void after_switch(bool is_in_fiber)
{
#ifdef HAS_ASAN
    if (is_in_fiber)
        __sanitizer_finish_switch_fiber(NULL, &emulator.host_stack, &emulator.host_stack_bytes);
    else
        __sanitizer_finish_switch_fiber(emulator.host_fake_stack, NULL, NULL);
#endif
    (void)is_in_fiber;
}


/* Lets a thread run until it meets the others or ends. */
static void resume(unsigned thread)
{
    struct fiber *fiber = &emulator.fibers[thread];
    emulator_here.thread = thread;
    if (_setjmp(emulator.scheduler) == 0) {
        before_switch(fiber);
        if (fiber->is_started)
            _longjmp(fiber->jump, 1);
        fiber->is_started = true;
        setcontext(&fiber->context);
    }
    after_switch(false);
}

static void pause_here(enum state state, enum meeting meeting)
{
    struct fiber *fiber = &emulator.fibers[emulator_here.thread];
    fiber->state = state;
    fiber->meeting = meeting;
    if (_setjmp(fiber->jump) == 0) {
        before_switch(NULL);
        _longjmp(emulator.scheduler, 1);
    }
    after_switch(true);
}

/* A thread runs one kernel after the other: a new stack for each would take most of the time. */
static void fiber_main()
{
    after_switch(true);
    for (;;) {
        emulator.kernel(emulator.args);
        if (!emulator.fibers[emulator_here.thread].has_waited)
            fault("ends without having waited for the launches before");
        pause_here(DONE, MEET_BARRIER);
    }
}

static void *map_or_die(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("emulator: mmap");
        abort();
    }
    return at;
}

static void prepare_fiber(struct fiber *fiber)
{
    if (fiber->stack == NULL) {
        fiber->stack = (char *)map_or_die(STACK_BYTES);
#ifdef HAS_TSAN
        fiber->tsan = __tsan_create_fiber(0);
#endif
    }
    if (!fiber->is_started) {
        if (getcontext(&fiber->context) != 0)
            abort();
        fiber->context.uc_stack.ss_sp = fiber->stack;
        fiber->context.uc_stack.ss_size = STACK_BYTES;
        fiber->context.uc_link = NULL;
        makecontext(&fiber->context, fiber_main, 0);
    }
    fiber->state = READY;
    fiber->declared = 0;
    fiber->has_waited = false;
}

/* ---- a block --------------------------------------------------------------------------------- */

/* The one of n whose turn is i-th; `number` is another one for each order. */
static unsigned turn(unsigned i, unsigned n, unsigned number)
{
    return (emulator.n_launches + number) % 2 == 0 ? i : n - 1 - i;
}

/* Releases a warp whose threads all wait for each other; false if none does. */
static bool release_warp(unsigned warp)
{
    struct fiber *fibers = &emulator.fibers[warp * WARP];
    unsigned n_waiting = 0;
    for (unsigned i = 0; i < WARP; i++)
        n_waiting += fibers[i].state == AT_WARP;
    if (n_waiting == 0)
        return false;
    for (unsigned i = 0; i < WARP; i++) {
        emulator_here.thread = warp * WARP + i;
        if (n_waiting < WARP)
            fault("the threads of its warp do not all meet");
        if (fibers[i].meeting != fibers[0].meeting)
            fault("the threads of its warp do not meet for the same");
        fibers[i].state = READY;
    }
    emulator.warps[warp].epoch++;
    return true;
}

/* Runs the threads of a warp until each has ended or waits for the block. */
static void run_warp(unsigned warp)
{
    do {
        const uint32_t epoch = emulator.warps[warp].epoch;
        for (unsigned i = 0; i < WARP; i++) {
            const unsigned thread = warp * WARP + turn(i, WARP, epoch);
            if (emulator.fibers[thread].state == READY)
                resume(thread);
        }
    } while (release_warp(warp));
}

/* Releases the block at its barrier; false if all threads have ended. */
static bool release_block()
{
    const unsigned n = emulator.grid.n_threads;
    unsigned n_waiting = 0;
    for (unsigned i = 0; i < n; i++)
        n_waiting += emulator.fibers[i].state == AT_BLOCK;
    if (n_waiting == 0)
        return false;
    for (unsigned i = 0; i < n; i++) {
        emulator_here.thread = i;
        if (n_waiting < n)
            fault("some threads of its block wait at a barrier, others have ended");
        emulator.fibers[i].state = READY;
    }
    for (unsigned i = 0; i < n / WARP; i++)
        emulator.warps[i].epoch++;
    emulator.epoch++;
    return true;
}

static void run_block()
{
    const unsigned n = emulator.grid.n_threads;
    emulator.run++;
    emulator.epoch = 1;
    for (unsigned i = 0; i < n; i++)
        prepare_fiber(&emulator.fibers[i]);
    memset(emulator.warps, 0, sizeof emulator.warps);
    do {
        const unsigned epoch = emulator.epoch;
        for (unsigned i = 0; i < n / WARP; i++)
            run_warp(turn(i, n / WARP, epoch));
    } while (release_block());
}

void emulator_run(const char *name, const struct emulator_grid *grid,
                  void (*kernel)(const void *args), const void *args)
{
    const unsigned n_blocks = grid->n_blocks_x * grid->n_blocks_y;
    emulator.name = name;
    emulator.grid = *grid;
    emulator.kernel = kernel;
    emulator.args = args;
    emulator.n_launches++;
    emulator_here = {};
    emulator_here.n_threads = grid->n_threads;
    if (shared_memory == NULL) {
        shared_memory = (char *)map_or_die(SHARED_BYTES);
        shadows = (struct shadow *)map_or_die(SHARED_BYTES * sizeof *shadows);
    }
#ifdef HAS_TSAN
    emulator.host_tsan = __tsan_get_current_fiber();
#endif
    if (grid->n_threads == 0 || grid->n_threads > MAX_THREADS || grid->n_threads % WARP != 0 ||
        n_blocks == 0 || grid->n_blocks_y > 65535 || grid->shared_bytes > DYNAMIC_BYTES)
        fault("cannot be launched: the sizes of the grid");
    for (unsigned i = 0; emulator.is_running && i < MAX_THREADS; i++)
        emulator.fibers[i].is_started = false; /* a fault ended the launch before */
    emulator.is_running = true;
    for (unsigned i = 0; i < n_blocks; i++) {
        const unsigned block = turn(i, n_blocks, 0);
        emulator_here.block_x = block % grid->n_blocks_x;
        emulator_here.block_y = block / grid->n_blocks_x;
        run_block();
    }
    emulator.is_running = false;
}

void gpu_barrier()
{
    pause_here(AT_BLOCK, MEET_BARRIER);
}

void gpu_wait()
{
    emulator.fibers[emulator_here.thread].has_waited = true;
}

void gpu_warp_barrier()
{
    pause_here(AT_WARP, MEET_BARRIER);
}

uint64_t emulator_shuffle(uint64_t value, unsigned lane)
{
    struct warp *warp = &emulator.warps[emulator_here.thread / WARP];
    uint64_t *given = warp->given[warp->epoch % 2];
    given[emulator_here.thread % WARP] = value;
    pause_here(AT_WARP, MEET_SHUFFLE);
    return given[lane % WARP];
}

void emulator_tile(int32_t c[4], const struct emulator_operands *mine)
{
    struct warp *warp = &emulator.warps[emulator_here.thread / WARP];
    struct emulator_operands *given = warp->operands[warp->epoch % 2];
    const unsigned lane = emulator_here.thread % WARP;
    given[lane] = *mine;
    pause_here(AT_WARP, MEET_TILE);
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++) {
            const struct emulator_operands *row = &given[lane / 4 * 4 + k];
            const struct emulator_operands *column = &given[(lane % 4 * 2 + i % 2) * 4 + k];
            for (unsigned word = 0; word < 2; word++)
                if (column->b[word] != 0)
                    c[i] = gpu_dot4_unsigned(row->a[2 * word + i / 2], (int32_t)column->b[word],
                                             c[i]);
        }
}

/* ---- shared memory --------------------------------------------------------------------------- */

char *emulator_declare(size_t bytes, size_t alignment)
{
    struct fiber *fiber = &emulator.fibers[emulator_here.thread];
    const size_t at = (fiber->declared + alignment - 1) / alignment * alignment;
    fiber->declared = at + bytes;
    if (fiber->declared > STATIC_BYTES)
        fault("declares more than 48 KiB of shared memory");
    return shared_memory + at;
}

char *emulator_declare_at(size_t at, size_t bytes)
{
    if (at + bytes > emulator.grid.shared_bytes)
        fault("declares more shared memory than its launch asked for");
    return shared_memory + STATIC_BYTES + at;
}

/* Whether what a thread did is ordered before what this thread does now. */
static bool is_ordered(unsigned thread, unsigned warp, uint32_t epoch, uint32_t warp_epoch)
{
    const unsigned here = emulator_here.thread;
    return thread == here || epoch != emulator.epoch ||
           (warp == here / WARP && warp_epoch != emulator.warps[warp].epoch);
}

static void race(const char *what, unsigned other, size_t at)
{
    char text[MESSAGE_BYTES / 2], name[16] = "several threads";
    if (other != SEVERAL)
        (void)snprintf(name, sizeof name, "thread %u", other);
    (void)snprintf(text, sizeof text, "%s byte %zu of shared memory, as %s did, without a barrier",
                   what, at, name);
    fault(text);
}

static void note_read(struct shadow *s)
{
    const uint16_t here = (uint16_t)emulator_here.thread, warp = (uint16_t)(here / WARP);
    if (s->read_epoch != emulator.epoch) {
        s->reader = here;
        s->reader_warp = warp;
        s->read_epoch = emulator.epoch;
    } else if (s->reader != here) {
        s->reader = SEVERAL;
        s->reader_warp = s->reader_warp == warp ? warp : (uint16_t)SEVERAL;
    }
    s->read_warp_epoch = emulator.warps[warp].epoch;
}

void emulator_note(const char *address, size_t bytes, enum emulator_use use)
{
    const size_t at = (size_t)(address - shared_memory);
    struct shadow *s = &shadows[at];
    const uint16_t here = (uint16_t)emulator_here.thread;
    (void)bytes;
    const bool is_written = s->run == emulator.run;
    if (!is_written && use == EMULATOR_READ)
        fault("reads shared memory that nobody has written");
    if (is_written && !is_ordered(s->writer, s->writer / WARP, s->write_epoch, s->write_warp_epoch))
        race(use == EMULATOR_READ ? "reads" : "writes", s->writer, at);
    if (use == EMULATOR_READ) {
        note_read(s);
        return;
    }
    if (is_written && !is_ordered(s->reader, s->reader_warp, s->read_epoch, s->read_warp_epoch))
        race("writes what was read:", s->reader, at);
    if (!is_written)
        s->read_epoch = 0;
    s->run = emulator.run;
    s->writer = here;
    s->write_epoch = emulator.epoch;
    s->write_warp_epoch = emulator.warps[here / WARP].epoch;
}
