/* Runs a part of a test on a thread with a small stack, so that unbounded recursion fails there
 * first and not for a user whose threads have less than 8 MiB. */
#ifndef FLASHMOE_TESTS_SMALL_STACK_H
#define FLASHMOE_TESTS_SMALL_STACK_H

#include <pthread.h>
#include <stddef.h>

#ifdef __has_feature
#define TEST_HAS_FEATURE(x) __has_feature(x)
#else
#define TEST_HAS_FEATURE(x) 0
#endif

/* Sanitizers and builds without optimisation have frames several times as large. */
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||   \
    TEST_HAS_FEATURE(address_sanitizer) || TEST_HAS_FEATURE(thread_sanitizer)
#define TEST_STACK_BYTES ((size_t)4 << 20)
#else
#define TEST_STACK_BYTES ((size_t)512 << 10)
#endif

/* Returns what the function returns: NULL, or why it failed. */
static inline const char *run_on_small_stack(void *(*fn)(void *), void *arg)
{
    pthread_attr_t attr;
    pthread_t thread;
    void *why = NULL;
    if (pthread_attr_init(&attr) != 0)
        return "no attributes for a thread";
    if (pthread_attr_setstacksize(&attr, TEST_STACK_BYTES) != 0 ||
        pthread_create(&thread, &attr, fn, arg) != 0 || pthread_join(thread, &why) != 0)
        why = (void *)"no thread with a small stack";
    (void)pthread_attr_destroy(&attr);
    return (const char *)why;
}

#endif
