/* A cluster of threads, of which one cannot be started: the others end, and say who they are. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "flashmoe.h"

#define N_RANKS 4

static unsigned n_started, n_possible;

/* The linker gives the library this one (CMakeLists.txt). */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    if (n_started == n_possible)
        return EAGAIN;
    n_started++;
    return __real_pthread_create(thread, attr, fn, arg);
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool has_ended[N_RANKS];

static void take_line(void *ctx, int level, const char *module, const char *text)
{
    unsigned rank;
    (void)ctx;
    (void)level;
    if (strcmp(module, "cluster") != 0 || sscanf(text, "rank %u ends: ", &rank) != 1)
        return;
    pthread_mutex_lock(&lock);
    if (rank < N_RANKS)
        has_ended[rank] = true;
    pthread_mutex_unlock(&lock);
}

static void test_no_thread(void **state)
{
    (void)state;
    fm_log_to(take_line, NULL);
    for (n_possible = 0; n_possible < N_RANKS - 1; n_possible++) {
        const struct fm_cluster_options options = {.size = sizeof options, .n_threads = N_RANKS};
        struct fm_cluster *cluster = NULL;
        struct fm_error err = {0};
        n_started = 0;
        memset(has_ended, 0, sizeof has_ended);
        assert_int_equal(fm_cluster_join(&options, &cluster, &err), FM_ERR_NOMEM);
        assert_null(cluster);
        assert_non_null(strstr(err.text, "cannot start a thread"));
        for (unsigned i = 1; i < N_RANKS; i++)
            assert_int_equal(has_ended[i], i <= n_possible);
    }
    fm_log_to(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_no_thread)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
