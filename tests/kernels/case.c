/* Buffers with guards, and the comparison of what the sides wrote to them. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"

#define MAX_SLOTS 80
#define MAX_OUTPUTS 12
#define SLOT_BYTES (2u << 20)
#define CANARY_BYTES 192 /* watched before and after a buffer */
#define CANARY 0xff      /* not a number in any format */

/* A region between two inaccessible pages, and the buffer in it. */
struct slot {
    char *begin, *end;
    char *copy; /* the expected contents of an input */
    const char *name;
    char *at;
    size_t bytes;
    bool is_input;
};

struct output {
    const char *name;
    enum element element;
    size_t n;
    unsigned slots[MAX_SIDES];
    bool is_scratch;
};

static struct slot slots[MAX_SLOTS];
static struct output outputs[MAX_OUTPUTS];
static unsigned n_slots, n_outputs;
static struct check *running; /* for the signal handler */

static void *map_or_die(size_t bytes, int protection)
{
    void *at = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        perror("checkkernel: mmap");
        exit(2);
    }
    return at;
}

static void *(*make_memory)(size_t bytes); /* NULL: with guards */
static size_t min_alignment = 1;

void case_use_memory(void *(*make)(size_t bytes))
{
    make_memory = make;
}

void case_align(size_t alignment)
{
    min_alignment = alignment;
}

static void slot_open(struct slot *s)
{
    s->copy = map_or_die(SLOT_BYTES, PROT_READ | PROT_WRITE);
    if (make_memory != NULL) {
        s->begin = make_memory(SLOT_BYTES);
        if (s->begin == NULL) {
            fprintf(stderr, "checkkernel: no memory for a case\n");
            exit(2);
        }
        s->end = s->begin + SLOT_BYTES;
        return;
    }
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = map_or_die(SLOT_BYTES + 2 * page, PROT_NONE);
    if (mprotect(at + page, SLOT_BYTES, PROT_READ | PROT_WRITE) != 0) {
        perror("checkkernel: mprotect");
        exit(2);
    }
    s->begin = at + page;
    s->end = s->begin + SLOT_BYTES;
}

static size_t canary_before(const struct slot *s)
{
    const size_t room = (size_t)(s->at - s->begin);
    return room < CANARY_BYTES ? room : CANARY_BYTES;
}

static size_t canary_behind(const struct slot *s)
{
    const size_t room = (size_t)(s->end - s->at) - s->bytes;
    return room < CANARY_BYTES ? room : CANARY_BYTES;
}

/* Half of the buffers end at the inaccessible page, as closely as their alignment allows. Others
 * begin at one, or lie in between. The choice does not depend on which levels are tested. */
static unsigned slot_take(struct check *c, const char *name, unsigned side, size_t bytes,
                          size_t alignment)
{
    alignment = alignment < min_alignment ? min_alignment : alignment;
    if (n_slots == MAX_SLOTS || bytes + 2 * CANARY_BYTES + 64 * alignment > SLOT_BYTES) {
        fprintf(stderr, "checkkernel: no room for %zu bytes of %s\n", bytes, name);
        exit(2);
    }
    struct slot *s = &slots[n_slots];
    if (s->begin == NULL)
        slot_open(s);
    s->name = name;
    s->bytes = bytes;
    struct rng rng = {hash_text(hash_text(c->seed, name), c->names[side])};
    const size_t place = c->has_no_pages ? 3 : rng_below(&rng, 4), steps = rng_below(&rng, 64);
    s->at = s->end - bytes;
    s->at -= (uintptr_t)s->at % alignment;
    if (place == 2)
        s->at = s->begin;
    if (place == 3)
        s->at = s->begin + CANARY_BYTES + steps * alignment;
    memset(s->at - canary_before(s), CANARY, canary_before(s));
    memset(s->at + s->bytes, CANARY, canary_behind(s));
    s->is_input = false;
    return n_slots++;
}

void *take_input(struct check *c, const char *name, size_t bytes, size_t alignment)
{
    struct slot *s = &slots[slot_take(c, name, 0, bytes, alignment)];
    s->is_input = true;
    return s->at;
}

float *take_floats(struct check *c, const char *name, size_t n, enum values values)
{
    float *x = take_input(c, name, n * sizeof *x, sizeof *x);
    rng_floats(&c->rng, values, x, n);
    return x;
}

static const size_t element_bytes[] = {[BYTES] = 1, [INT32] = 4, [FLOAT32] = 4, [FLOAT16] = 2};

unsigned take_output(struct check *c, const char *name, enum element element, size_t n,
                     size_t alignment)
{
    struct output *o = &outputs[n_outputs];
    *o = (struct output){.name = name, .element = element, .n = n};
    for (unsigned i = 0; i < c->n_sides; i++)
        o->slots[i] = slot_take(c, name, i, n * element_bytes[element], alignment);
    memset(out_of(n_outputs, 0), 0x2a + (int)rng_below(&c->rng, 16), n * element_bytes[element]);
    return n_outputs++;
}

/* Fills the scratch with another number on every side. */
unsigned take_scratch(struct check *c, size_t n_floats, size_t alignment)
{
    const unsigned s = take_output(c, "scratch", FLOAT32, n_floats, alignment);
    outputs[s].is_scratch = true;
    for (unsigned i = 0; i < c->n_sides; i++)
        memset(out_of(s, i), i == 0 ? 0x42 : CANARY, n_floats * sizeof(float));
    return s;
}

void *out_of(unsigned output, unsigned side)
{
    return slots[outputs[output].slots[side]].at;
}

void *out(struct check *c, unsigned output)
{
    return out_of(output, c->side);
}

void describe(struct check *c, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->shape, sizeof c->shape, fmt, args);
    va_end(args);
}

void side_fail(struct check *c, unsigned side, const char *fmt, ...)
{
    struct failure *f = &c->failures[side];
    if (c->has_failed[side])
        return;
    c->has_failed[side] = true;
    if (f->n++ > 0)
        return;
    f->index = c->index;
    char why[TEXT_BYTES / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    snprintf(f->text, sizeof f->text, "%.200s: %.200s", c->shape, why);
}

static bool is_canary(const char *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)at[i] != CANARY)
            return false;
    return true;
}

/* Checks that only the outputs have changed. */
static void side_check(struct check *c)
{
    for (unsigned i = 0; i < n_slots; i++) {
        const struct slot *s = &slots[i];
        if (s->is_input && memcmp(s->at, s->copy, s->bytes) != 0)
            side_fail(c, c->side, "writes into its input '%s'", s->name);
        if (!is_canary(s->at - canary_before(s), canary_before(s)))
            side_fail(c, c->side, "writes before '%s'", s->name);
        if (!is_canary(s->at + s->bytes, canary_behind(s)))
            side_fail(c, c->side, "writes behind '%s'", s->name);
    }
}

const struct kernels *side_first(struct check *c)
{
    for (unsigned i = 0; i < n_slots; i++)
        if (slots[i].is_input)
            memcpy(slots[i].copy, slots[i].at, slots[i].bytes);
    for (unsigned i = 0; i < n_outputs; i++)
        for (unsigned side = 1; side < c->n_sides && !outputs[i].is_scratch; side++)
            memcpy(out_of(i, side), out_of(i, 0), outputs[i].n * element_bytes[outputs[i].element]);
    c->side = 0;
    return c->tables[0];
}

const struct kernels *side_next(struct check *c)
{
    side_check(c);
    do
        c->side++;
    while (c->side < c->n_sides && c->is_skipped[c->side]);
    return c->side < c->n_sides ? c->tables[c->side] : NULL;
}

static uint32_t bits_at(const struct output *o, unsigned side, size_t i)
{
    const char *at = slots[o->slots[side]].at + i * element_bytes[o->element];
    uint32_t bits = 0;
    memcpy(&bits, at, element_bytes[o->element]);
    /* All NaNs are equal. */
    if (o->element == FLOAT32 && (bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fc00000u;
    if (o->element == FLOAT16 && (bits & 0x7fffu) > 0x7c00u)
        return 0x7e00u;
    return bits;
}

static double value_of(const struct output *o, uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return o->element == FLOAT32   ? (double)x
           : o->element == FLOAT16 ? (double)quant_f16_to_f32((uint16_t)bits)
                                   : (double)(int32_t)bits;
}

static void output_compare(struct check *c, const struct output *o, unsigned side)
{
    if (memcmp(slots[o->slots[side]].at, slots[o->slots[0]].at,
               o->n * element_bytes[o->element]) == 0)
        return;
    for (size_t i = 0; i < o->n; i++) {
        const uint32_t got = bits_at(o, side, i), want = bits_at(o, 0, i);
        if (got != want) {
            side_fail(c, side, "%s[%zu] is 0x%08x (%.9g), the reference has 0x%08x (%.9g)",
                      o->name, i, got, value_of(o, got), want, value_of(o, want));
            return;
        }
    }
}

static void output_hash(struct check *c, const struct output *o)
{
    for (size_t i = 0; i < o->n; i++) {
        const uint32_t bits = bits_at(o, 0, i);
        c->hash = hash_bytes(c->hash, &bits, element_bytes[o->element]);
    }
}

/* Describes an inaccessible address relative to the nearest buffer. */
static void fault_describe(struct check *c, const char *at)
{
    for (unsigned i = 0; i < n_slots; i++) {
        const struct slot *s = &slots[i];
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        if (at >= s->begin - page && at < s->end + page) {
            side_fail(c, c->side, "touches byte %lld of the %zu of '%s'",
                      (long long)(at - s->at), s->bytes, s->name);
            return;
        }
    }
    side_fail(c, c->side, "touches memory at %p that is none of its buffers", (const void *)at);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (running == NULL) {
        signal(number, SIG_DFL);
        return;
    }
    if (number == SIGILL)
        side_fail(running, running->side, "an instruction that this processor does not have");
    else
        fault_describe(running, info->si_addr);
    siglongjmp(running->fault, 1);
}

void case_stop(const char *message)
{
    side_fail(running, running->side, "%s", message);
    siglongjmp(running->fault, 1);
}

void case_init(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    sigaction(SIGILL, &action, NULL);
}

/* A fault ends the case: the remaining sides are not run. */
void case_run(struct check *c, void (*function)(struct check *c), uint64_t seed, uint64_t index)
{
    c->rng.state = c->seed = hash_bytes(seed, &index, sizeof index);
    c->index = index;
    c->side = 0;
    c->shape[0] = '\0';
    memset(c->has_failed, 0, sizeof c->has_failed);
    n_slots = n_outputs = 0;
    if (sigsetjmp(c->fault, 1) == 0) {
        running = c;
        function(c);
        for (unsigned i = 0; i < n_outputs; i++) {
            if (outputs[i].is_scratch)
                continue;
            output_hash(c, &outputs[i]);
            for (unsigned side = 1; side < c->n_sides; side++)
                if (!c->is_skipped[side])
                    output_compare(c, &outputs[i], side);
        }
    }
    running = NULL;
}
