/* thread_speed MODEL [ROUNDS [TOKENS]]: prefill on one thread, on two, and by two models of one
 * thread each side by side, in turns. The last is what two processors of this machine give to work
 * that shares nothing: what two threads of one model lose against it, they lose by themselves. The
 * model is opened four times and should fit in memory so often. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/plat.h"
#include "flashmoe.h"

#define MAX_ROUNDS 1000

struct runner {
    struct fm_model *model;
    struct fm_session *session;
    const int32_t *tokens;
    size_t n;
    unsigned core;
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "thread_speed: %s\n", err->text);
    exit(1);
}

static void runner_open(struct runner *r, const char *path, unsigned n_threads,
                        unsigned core)
{
    struct fm_error err;
    struct fm_model_options options = {.size = sizeof options};
    options.n_threads = n_threads;
    options.pin_threads = n_threads > 1;
    options.n_context = (uint32_t)r->n;
    check(fm_model_open(path, &options, &r->model, &err), &err);
    check(fm_session_open(r->model, &r->session, &err), &err);
    r->core = core;
}

static void *runner_run(void *arg)
{
    struct runner *r = arg;
    struct fm_error err;
    (void)plat_thread_pin(r->core); /* this thread is new: the program's first stays free */
    fm_session_reset(r->session);
    struct fm_batch_item item = {r->session, r->tokens, r->n, 0};
    check(fm_eval_batch(r->model, &item, 1, &err), &err);
    return NULL;
}

/* Tokens per second of all together. */
static double speed_of(struct runner *runners, unsigned n)
{
    pthread_t threads[2];
    const double start = now_s();
    for (unsigned i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, runner_run, &runners[i]) != 0)
            exit(1);
    for (unsigned i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    return (double)(n * runners[0].n) / (now_s() - start);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_spread(const char *what, double *values, unsigned n)
{
    qsort(values, n, sizeof *values, by_value);
    printf("%-44s %7.2f median, %.2f to %.2f\n", what, values[n / 2], values[0], values[n - 1]);
}

int main(int argc, char **argv)
{
    const unsigned n_rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 5;
    const int n_tokens = argc > 3 ? atoi(argv[3]) : 512;
    if (argc < 2 || n_rounds < 1 || n_rounds > MAX_ROUNDS || n_tokens < 1) {
        fprintf(stderr, "usage: thread_speed MODEL [ROUNDS [TOKENS]]\n");
        return 2;
    }
    int32_t *tokens = malloc((size_t)n_tokens * sizeof *tokens);
    if (tokens == NULL)
        return 1;
    for (int i = 0; i < n_tokens; i++)
        tokens[i] = i * 37 % 199;
    const struct runner empty = {.tokens = tokens, .n = (size_t)n_tokens};
    struct runner one = empty, two = empty, side[2] = {empty, empty};
    runner_open(&one, argv[1], 1, 0);
    runner_open(&two, argv[1], 2, 0);
    runner_open(&side[0], argv[1], 1, 0);
    runner_open(&side[1], argv[1], 1, 1);
    static double alone[MAX_ROUNDS], both[MAX_ROUNDS], apart[MAX_ROUNDS], gain[MAX_ROUNDS],
        machine[MAX_ROUNDS], kept[MAX_ROUNDS];
    for (unsigned i = 0; i <= n_rounds; i++) { /* the first fills the caches */
        const unsigned at = i > 0 ? i - 1 : 0;
        alone[at] = speed_of(&one, 1);
        both[at] = speed_of(&two, 1);
        apart[at] = speed_of(side, 2);
        gain[at] = both[at] / alone[at];
        machine[at] = apart[at] / alone[at];
        kept[at] = both[at] / apart[at];
    }
    print_spread("one thread, tok/s", alone, n_rounds);
    print_spread("two threads, tok/s", both, n_rounds);
    print_spread("two models of one thread, together, tok/s", apart, n_rounds);
    print_spread("two threads / one", gain, n_rounds);
    print_spread("two models / one", machine, n_rounds);
    print_spread("two threads / two models", kept, n_rounds);
    for (unsigned i = 0; i < 2; i++)
        fm_session_close(side[i].session), fm_model_close(side[i].model);
    fm_session_close(two.session), fm_model_close(two.model);
    fm_session_close(one.session), fm_model_close(one.model);
    free(tokens);
    return 0;
}
