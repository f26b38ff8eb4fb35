/* Injects faults while nano answers with the minimum of experts in memory, so that nearly all are
 * read again and again. For every N of a short request, the Nth read fails, is short, finds
 * nothing, is damaged or is slow: with both readers, with and without the page cache, with and
 * without lookahead. The request fails with a sentence that names file, expert, layer and offset.
 * When repeated, it works and gives the same bits. Another session continues unaffected.
 *
 *   nano_fault_test NANO          each N with each fault once or more
 *   nano_fault_test NANO all      each N with each fault in each combination
 *   nano_fault_test NANO few      one N in seven
 *   nano_fault_test NANO detach DETACH ATTACH
 *                                 the disk is gone between these two commands
 *
 * The fault is injected where a reader converts the system's answer to the result of the operation
 * (op_span_finish, replaced at link time). */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "flashmoe.h"
#include "store/reader_internal.h"

#define CONTEXT 64
#define N_PROMPT 1
#define N_ANSWER 1
#define SLOW_NS 2000000

static const char *nano;
static bool runs_all, runs_few;
static const int32_t ids[N_PROMPT + N_ANSWER] = {312, 7001};

/* ---- a fault --------------------------------------------------------------------------------- */

enum fault { FAULT_EIO, FAULT_SHORT, FAULT_EMPTY, FAULT_DAMAGE, FAULT_SLOW, N_FAULTS };

static struct {
    pthread_mutex_t lock;
    enum fault fault;
    long at; /* the read that fails, counted down; 0 for none */
    long slow_ns;
    bool was_hit;
} injected = {.lock = PTHREAD_MUTEX_INITIALIZER};

int64_t __real_op_span_finish(const struct read_op *op, const struct op_span *span,
                              int64_t result);
int64_t __wrap_op_span_finish(const struct read_op *op, const struct op_span *span,
                              int64_t result);

int64_t __wrap_op_span_finish(const struct read_op *op, const struct op_span *span, int64_t result)
{
    pthread_mutex_lock(&injected.lock);
    const bool is_hit = injected.at > 0 && --injected.at == 0;
    injected.was_hit |= is_hit;
    const enum fault fault = injected.fault;
    const struct timespec nap = {injected.slow_ns / 1000000000, injected.slow_ns % 1000000000};
    pthread_mutex_unlock(&injected.lock);
    if (is_hit && fault == FAULT_SLOW)
        (void)nanosleep(&nap, NULL);
    if (is_hit && fault == FAULT_EIO)
        result = -EIO;
    if (is_hit && fault == FAULT_SHORT)
        result /= 2;
    if (is_hit && fault == FAULT_EMPTY)
        result = 0;
    result = __real_op_span_finish(op, span, result);
    if (is_hit && fault == FAULT_DAMAGE)
        ((char *)op->dst)[op->bytes / 2] ^= 0x10;
    return result;
}

static void inject(enum fault fault, long at, long slow_ns)
{
    pthread_mutex_lock(&injected.lock);
    injected.fault = fault;
    injected.at = at;
    injected.slow_ns = slow_ns;
    injected.was_hit = false;
    pthread_mutex_unlock(&injected.lock);
}

/* Returns whether the fault has happened, and disarms it. */
static bool disarm(void)
{
    pthread_mutex_lock(&injected.lock);
    const bool was_hit = injected.was_hit;
    injected.at = 0;
    pthread_mutex_unlock(&injected.lock);
    return was_hit;
}

/* ---- a model with two sessions --------------------------------------------------------------- */

struct combination {
    enum fm_reader reader;
    enum fm_io io;
    enum fm_choice lookahead;
};

static const struct combination combinations[] = {
    {FM_READER_PREAD, FM_IO_DIRECT, FM_OFF},
    {FM_READER_URING, FM_IO_DIRECT, FM_OFF},
    {FM_READER_PREAD, FM_IO_PAGE, FM_OFF},
    {FM_READER_URING, FM_IO_PAGE, FM_OFF},
    {FM_READER_URING, FM_IO_PAGE, FM_ON},
    {FM_READER_PREAD, FM_IO_DIRECT, FM_ON},
    {FM_READER_URING, FM_IO_DIRECT, FM_ON},
    {FM_READER_PREAD, FM_IO_PAGE, FM_ON},
};
#define N_COMBINATIONS (sizeof combinations / sizeof combinations[0])

struct fixture {
    struct fm_model *model;
    struct fm_session *session, *other;
};

static struct fm_session *open_session(struct fm_model *model)
{
    struct fm_session *session;
    struct fm_error err = {0};
    if (fm_session_open(model, &session, &err) != 0)
        fail_msg("%s", err.text);
    return session;
}

/* Opens the model with the smallest budget that is accepted. */
static void open_smallest(struct fixture *f, const char *path, const struct combination *how)
{
    static uint64_t budget = 16 << 20;
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err = {0};
    int rc = FM_ERR_BUDGET;
    options.n_threads = 1;
    options.n_sessions = 2;
    options.n_context = CONTEXT;
    options.check = FM_ON;
    options.reader = how->reader;
    options.io = how->io;
    options.lookahead = how->lookahead;
    for (budget -= 2 << 20; rc == FM_ERR_BUDGET; budget += 1 << 20) {
        options.memory_bytes = budget;
        rc = fm_model_open(path, &options, &f->model, &err);
    }
    if (rc != 0)
        fail_msg("%s", err.text);
    f->session = open_session(f->model);
    f->other = open_session(f->model);
}

static void close_all(struct fixture *f)
{
    fm_session_close(f->session);
    fm_session_close(f->other);
    fm_model_close(f->model);
}

/* Evaluates a prompt and an answer from an empty session. */
static int request(struct fm_session *session, struct fm_error *err)
{
    fm_session_reset(session);
    int rc = fm_session_eval(session, ids, N_PROMPT, err);
    for (int i = 0; rc == 0 && i < N_ANSWER; i++)
        rc = fm_session_eval(session, ids + N_PROMPT + i, 1, err);
    return rc;
}

/* Checks for one hash, whatever came before and in any combination. */
static void is_right(const struct fm_session *session)
{
    static char expected[33];
    char hash[33];
    fm_session_logits_hash(session, hash);
    if (expected[0] == '\0')
        memcpy(expected, hash, sizeof expected);
    assert_string_equal(hash, expected);
}

static void request_works(struct fm_session *session)
{
    struct fm_error err = {0};
    if (request(session, &err) != 0)
        fail_msg("%s", err.text);
    is_right(session);
}

/* Computes the other session's next token, which must be unaffected. */
static void other_goes_on(struct fm_session *other)
{
    static char expected[CONTEXT][33];
    char hash[33];
    struct fm_error err = {0};
    if (fm_session_position(other) == CONTEXT)
        fm_session_reset(other);
    const unsigned at = fm_session_position(other);
    const int32_t id = (int32_t)(at * 131 % 16000);
    if (fm_session_eval(other, &id, 1, &err) != 0)
        fail_msg("the other session: %s", err.text);
    fm_session_logits_hash(other, hash);
    if (expected[at][0] == '\0')
        memcpy(expected[at], hash, sizeof hash);
    assert_string_equal(hash, expected[at]);
}

static void check_sentence(const struct fm_error *err, int rc, enum fault fault)
{
    static const char *const words[] = {"Input/output error", "ends early", "ends early",
                                        "is damaged"};
    unsigned expert, layer, file;
    const bool is_damage = fault == FAULT_DAMAGE;
    const bool is_named =
        sscanf(err->text, is_damage ? "expert %u of layer %u is damaged: "
                                    : "cannot read expert %u of layer %u: ", &expert, &layer) == 2;
    const char *name = strstr(err->text, "/experts-");
    if (rc != (is_damage ? FM_ERR_FORMAT : FM_ERR_IO) || err->code != rc || !is_named ||
        expert >= 64 || name == NULL || sscanf(name, "/experts-%u.bin'", &file) != 1 ||
        file != layer || strstr(err->text, nano) == NULL ||
        strstr(err->text, words[fault]) == NULL || strstr(err->text, " at byte ") == NULL ||
        strchr(err->text, '\n') != NULL)
        fail_msg("fault %d gives %d: '%s'", fault, rc, err->text);
}

/* ---- every read ------------------------------------------------------------------------------ */

/* Returns false if the request has fewer than n reads. */
static bool fault_at(struct fixture *f, enum fault fault, long n, long *n_failed)
{
    struct fm_error err = {0};
    inject(fault, n, SLOW_NS);
    int rc = request(f->session, &err);
    const bool was_hit = disarm();
    if (rc == 0) {
        is_right(f->session); /* a slow read, or a failed guess that was read again */
    } else {
        assert_true(was_hit);
        (*n_failed)++;
        check_sentence(&err, rc, fault);
        assert_int_equal(fm_session_position(f->session), 0); /* it has no marks */
        assert_null(fm_session_logits(f->session));
    }
    other_goes_on(f->other);
    request_works(f->session);
    return was_hit;
}

static void run_combination(size_t c)
{
    const struct combination *how = &combinations[c];
    struct fixture f;
    struct fm_stats stats = {.size = sizeof stats};
    long n_failed = 0, n_slow = 0, n_reads = 0;
    open_smallest(&f, nano, how);
    request_works(f.session);
    fm_model_stats(f.model, &stats);
    for (unsigned round = 0; round < (runs_all ? N_FAULTS : 1); round++) {
        bool goes_on = true;
        for (long n = 1; goes_on; n += runs_few ? 7 : 1) {
            const enum fault fault = ((unsigned long)n + c + round) % N_FAULTS;
            goes_on = fault_at(&f, fault, n, &n_failed);
            n_reads += goes_on;
            n_slow += goes_on && fault == FAULT_SLOW;
        }
    }
    print_message("%s (asked for %s), %s (asked for %s), lookahead %s, %llu slots: %ld reads, %ld "
                  "slow, %ld requests failed\n", stats.reader,
                  how->reader == FM_READER_PREAD ? "pread" : "uring", stats.io,
                  how->io == FM_IO_DIRECT ? "direct" : "page",
                  how->lookahead == FM_OFF ? "off" : "on",
                  (unsigned long long)stats.n_cache_slots, n_reads, n_slow, n_failed);
    assert_true(n_reads >= (runs_few ? 9 : 60));
    assert_true(n_failed >= n_reads / 4);
    if (how->lookahead == FM_OFF)
        assert_int_equal(n_failed, n_reads - n_slow);
    close_all(&f);
}

static void test_every_read(void **state)
{
    (void)state;
    for (size_t c = 0; c < N_COMBINATIONS; c++)
        run_combination(c);
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void test_a_second(void **state)
{
    (void)state;
    for (size_t c = 0; c < 2; c++) {
        struct fixture f;
        struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
        open_smallest(&f, nano, &combinations[c]);
        fm_model_stats(f.model, &before);
        inject(FAULT_SLOW, 20, 1000000000);
        const double begin_s = now_s();
        request_works(f.session);
        assert_true(disarm());
        assert_true(now_s() - begin_s >= 1.0);
        fm_model_stats(f.model, &after);
        assert_true(after.read_wait_ns - before.read_wait_ns >= 900000000);
        other_goes_on(f.other);
        close_all(&f);
    }
}

/* ---- files that change while they are read --------------------------------------------------- */

static void command(const char *format, const char *a, const char *b)
{
    char line[2048];
    (void)snprintf(line, sizeof line, format, a, b);
    if (system(line) != 0)
        fail_msg("failed: %s", line);
}

/* A file is shorter than when the model was opened. */
static void test_truncated(void **state)
{
    (void)state;
    const char *whole = nano;
    for (size_t c = 0; c < 4; c++) {
        char dir[] = "nano-fault-XXXXXX", model[64], file[96];
        struct fixture f;
        struct fm_error err = {0};
        assert_non_null(mkdtemp(dir));
        (void)snprintf(model, sizeof model, "%s/nano.fmoe", dir);
        (void)snprintf(file, sizeof file, "%s/experts-003.bin", model);
        command("cp -R '%s' '%s'", whole, model);
        open_smallest(&f, model, &combinations[c]);
        request_works(f.session);
        assert_int_equal(truncate(file, 4096), 0);
        nano = model;
        const int rc = request(f.session, &err);
        check_sentence(&err, rc, FAULT_SHORT);
        assert_non_null(strstr(err.text, "expert "));
        assert_non_null(strstr(err.text, " of layer 3:"));
        nano = whole;
        command("cat '%s/experts-003.bin' > '%s'", whole, file);
        request_works(f.session);
        other_goes_on(f.other);
        close_all(&f);
        command("rm -r '%s'%s", dir, "");
    }
}

/* An open model continues without its path; a new one cannot be opened. */
static void test_unlinked(void **state)
{
    (void)state;
    for (size_t c = 0; c < 4; c++) {
        char dir[] = "nano-fault-XXXXXX", model[64];
        struct fixture f;
        struct fm_model *again;
        struct fm_error err = {0};
        assert_non_null(mkdtemp(dir));
        (void)snprintf(model, sizeof model, "%s/nano.fmoe", dir);
        command("cp -R '%s' '%s'", nano, model);
        open_smallest(&f, model, &combinations[c]);
        command("rm -r '%s'%s", dir, "");
        request_works(f.session);
        other_goes_on(f.other);
        assert_int_equal(fm_model_open(model, NULL, &again, &err), FM_ERR_IO);
        assert_null(again);
        assert_non_null(strstr(err.text, model));
        request_works(f.session);
        close_all(&f);
    }
}

/* ---- a disk that goes away ------------------------------------------------------------------- */

static const char *detach, *attach;

static void test_detached(void **state)
{
    (void)state;
    for (size_t c = 0; c < 2; c++) { /* bypasses the page cache, which would hide the loss */
        struct fixture f;
        struct fm_stats stats = {.size = sizeof stats};
        struct fm_error err = {0};
        open_smallest(&f, nano, &combinations[c]);
        fm_model_stats(f.model, &stats);
        assert_string_equal(stats.io, "direct");
        request_works(f.session);
        command("%s%s", detach, "");
        const int rc = request(f.session, &err);
        print_message("%s: %s\n", stats.reader, err.text);
        command("%s%s", attach, "");
        check_sentence(&err, rc, FAULT_EIO);
        request_works(f.session);
        other_goes_on(f.other);
        close_all(&f);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_read),
        cmocka_unit_test(test_a_second),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_unlinked),
    };
    const struct CMUnitTest detached[] = {cmocka_unit_test(test_detached)};
    if (argc < 2)
        return 2;
    nano = argv[1];
    runs_all = argc == 3 && strcmp(argv[2], "all") == 0;
    runs_few = argc == 3 && strcmp(argv[2], "few") == 0;
    if (argc < 5)
        return cmocka_run_group_tests(tests, NULL, NULL);
    detach = argv[3];
    attach = argv[4];
    return cmocka_run_group_tests(detached, NULL, NULL);
}
