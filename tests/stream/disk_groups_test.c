/* fm_disk_measure measures experts alone and in pairs as decode asks for them: the next ones are
 * asked for when nothing is in flight. Before that it keeps many in flight. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "flashmoe_lab.h"
#include "store/expert_store.h"

#define MAX_READS (1u << 16)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned n_in_flight, n_reads;
static unsigned char before[MAX_READS]; /* of each read: how many were in flight */
static void (*done)(struct expert_read *read, bool ok);
static const char *model;

static void count_done(struct expert_read *read, bool ok)
{
    pthread_mutex_lock(&lock);
    void (*const real_done)(struct expert_read *, bool) = done;
    n_in_flight--;
    pthread_mutex_unlock(&lock);
    real_done(read, ok);
}

/* Linked with --wrap=expert_store_submit. */
void __real_expert_store_submit(struct expert_store *store, struct expert_read *read);
void __wrap_expert_store_submit(struct expert_store *store, struct expert_read *read);

void __wrap_expert_store_submit(struct expert_store *store, struct expert_read *read)
{
    pthread_mutex_lock(&lock);
    assert_true(n_reads < MAX_READS);
    before[n_reads++] = (unsigned char)n_in_flight++;
    done = read->done;
    read->done = count_done;
    pthread_mutex_unlock(&lock);
    __real_expert_store_submit(store, read);
}

/* From the end: pairs, then experts alone, then many at a time. The second of a pair may find that
 * the first one has landed. */
static void test_groups(void **state)
{
    (void)state;
    struct fm_model_options options = {.size = sizeof options, .read_depth = 8};
    struct fm_disk_speeds speeds = {.size = sizeof speeds};
    unsigned n_pairs = 0, n_whole = 0, n_alone = 0, most = 0;
    assert_int_equal(fm_disk_measure(model, &options, true, &speeds, NULL), 0);
    assert_true(speeds.read.median > 0 && speeds.one.median > 0 && speeds.two.median > 0);
    unsigned first = n_reads; /* of the pairs */
    for (unsigned i = n_reads; i >= 2 && before[i - 1] <= 1 && before[i - 2] == 0; i -= 2)
        first = before[i - 1] == 1 ? i - 2 : first;
    for (unsigned i = first; i < n_reads; i += 2, n_pairs++)
        n_whole += before[i + 1] == 1;
    unsigned i = first;
    for (; i > 0 && before[i - 1] == 0; i--)
        n_alone++;
    for (; i > 0; i--)
        most = before[i - 1] > most ? before[i - 1] : most;
    print_message("%u pairs, %u of them in flight together; %u alone; at most %u\n", n_pairs,
                  n_whole, n_alone, most + 1);
    assert_true(n_pairs >= 100 && n_whole > n_pairs / 2);
    assert_true(n_alone >= 200);
    assert_int_equal(most + 1, 8);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups)};
    if (argc != 2)
        return 2;
    model = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
