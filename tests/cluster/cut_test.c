/* The best cut against all cuts, for small random cases. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apps/cluster/cut.h"
#include "base/splitmix.h"

#define CASES 400
#define MAX_LAYERS 9

struct random_case {
    struct cut_problem p;
    struct cut_layer layers[MAX_LAYERS];
    struct cut_machine machines[4];
};

static double between(uint64_t *state, double low, double high)
{
    return low + (high - low) * (double)(splitmix_next(state) >> 11) * 0x1p-53;
}

static struct cut_layer random_layer(uint64_t *random)
{
    const double experts = between(random, 0, 1) < 0.2 ? 0 : between(random, 10, 1000);
    return (struct cut_layer){.dense = between(random, 1, 30),
                              .dense_token = between(random, 1, 30), .experts = experts,
                              .expert_token = experts / 10,
                              .kv = between(random, 0, 5), .kv_token = between(random, 0, 5),
                              .mul_adds = between(random, 0, 100)};
}

static void make_case(struct random_case *c, uint64_t *random)
{
    const bool is_equal = between(random, 0, 1) < 0.3;
    *c = (struct random_case){0};
    c->p.n_layers = 2 + (unsigned)(splitmix_next(random) % (MAX_LAYERS - 1));
    c->p.n_machines = 1 + (unsigned)(splitmix_next(random) % 4);
    if (c->p.n_machines > c->p.n_layers)
        c->p.n_machines = c->p.n_layers;
    for (unsigned i = 0; i < c->p.n_layers; i++)
        c->layers[i] = is_equal && i > 0 ? c->layers[0] : random_layer(random);
    c->p.head = (struct cut_layer){.dense = between(random, 0, 50),
                                   .dense_token = between(random, 0, 50)};
    for (unsigned i = 0; i < c->p.n_machines; i++)
        c->machines[i] = (struct cut_machine){
            .memory_bytes = between(random, 50, 3000), .memory_per_s = between(random, 100, 1000),
            .disk_per_s = between(random, 10, 300), .mul_adds_per_s = between(random, 100, 10000),
            .latency_s = between(random, 0, 0.2), .bytes_per_s = between(random, 0, 1000)};
    c->p.layers = c->layers;
    c->p.machines = c->machines;
    c->p.overhead_bytes = 10;
    c->p.message_bytes = 3;
    c->p.curve = (struct cut_curve){4, {0.1, 0.25, 0.5, 0.75}, {0.3, 0.5, 0.8, 0.95}};
}

/* What trying all cuts finds. */
struct all_cuts {
    double best_s, slowest_s; /* the smallest sum; the smallest slowest stage within tolerance */
    bool is_second; /* the sum is known */
};

static void try_all(const struct cut_problem *p, unsigned rank, unsigned first, double sum,
                    double slowest, struct all_cuts *found)
{
    if (rank == p->n_machines) {
        if (first != p->n_layers)
            return;
        if (!found->is_second && sum < found->best_s)
            found->best_s = sum;
        if (found->is_second && sum <= found->best_s * (1 + CUT_TOLERANCE) * (1 + 1e-12) &&
            slowest < found->slowest_s)
            found->slowest_s = slowest;
        return;
    }
    for (unsigned n = 1; first + n <= p->n_layers; n++) {
        struct cut_stage s;
        if (cut_stage_of(p, rank, first, n, &s))
            try_all(p, rank + 1, first + n, sum + s.max_s, fmax(slowest, s.max_s), found);
    }
}

static void test_best_of_all(void **state)
{
    uint64_t random = 7;
    unsigned n_fit = 0;
    (void)state;
    for (unsigned i = 0; i < CASES; i++) {
        struct random_case c;
        struct all_cuts found = {.best_s = INFINITY, .slowest_s = INFINITY};
        struct cut cut;
        struct fm_error err = {0};
        make_case(&c, &random);
        try_all(&c.p, 0, 0, 0, 0, &found);
        const int rc = cut_find(&c.p, c.p.n_machines, &cut, &err);
        if (!isfinite(found.best_s)) {
            assert_int_equal(rc, FM_ERR_BUDGET);
            assert_non_null(strstr(err.text, "does not fit"));
            continue;
        }
        assert_int_equal(rc, 0);
        found.is_second = true;
        try_all(&c.p, 0, 0, 0, 0, &found);
        n_fit++;
        const double slowest = cut.stages[cut.slowest_stage].max_s;
        if (cut.max_s - cut.hops_s > found.best_s * (1 + CUT_TOLERANCE) * (1 + 1e-9) ||
            fabs(slowest - found.slowest_s) > 1e-9 * found.slowest_s)
            fail_msg("case %u: sum %.9g and slowest stage %.9g; of all cuts %.9g and %.9g", i,
                     cut.max_s - cut.hops_s, slowest, found.best_s, found.slowest_s);
    }
    assert_in_range(n_fit, CASES / 4, CASES); /* most cases say something */
}

/* A machine with more memory gets more of a model that does not fit. */
static void test_memory_decides(void **state)
{
    struct cut_layer layers[8];
    struct cut_machine machines[2];
    struct cut_problem p = {.layers = layers, .n_layers = 8, .machines = machines,
                            .n_machines = 2, .overhead_bytes = 1,
                            .curve = {1, {0.5}, {0.9}}};
    struct cut cut;
    (void)state;
    for (unsigned i = 0; i < 8; i++)
        layers[i] = (struct cut_layer){.dense = 1, .dense_token = 1, .experts = 100,
                                       .expert_token = 5};
    for (unsigned i = 0; i < 2; i++)
        machines[i] = (struct cut_machine){.memory_bytes = i == 0 ? 620 : 220, .memory_per_s = 1e6,
                                           .disk_per_s = 100, .latency_s = 0.5};
    assert_int_equal(cut_find(&p, 2, &cut, NULL), 0);
    assert_int_equal(cut.stages[0].n_layers, 6);
    assert_int_equal(cut.stages[1].n_layers, 2);
    assert_int_equal(cut.stages[0].limit.bound, LIMIT_MEMORY);
    assert_true(fabs(cut.hops_s - 1) < 1e-12);
    /* One machine alone has no hop, and reads what does not fit. */
    assert_int_equal(cut_find(&p, 1, &cut, NULL), 0);
    assert_int_equal(cut.stages[0].limit.bound, LIMIT_DISK);
    assert_true(cut.hops_s == 0);
}

/* Equal machines with everything in memory: all sums are alike, so the slowest stage decides. */
static void test_equal_machines_share(void **state)
{
    struct cut_layer layers[9];
    struct cut_machine machines[3];
    struct cut_problem p = {.layers = layers, .n_layers = 9, .machines = machines,
                            .n_machines = 3};
    struct cut cut;
    (void)state;
    for (unsigned i = 0; i < 9; i++)
        layers[i] = (struct cut_layer){.dense = 1, .dense_token = 1};
    for (unsigned i = 0; i < 3; i++)
        machines[i] = (struct cut_machine){.memory_bytes = 100, .memory_per_s = 1,
                                           .disk_per_s = 1};
    assert_int_equal(cut_find(&p, 3, &cut, NULL), 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(cut.stages[i].n_layers, 3);
    p.head = (struct cut_layer){.dense = 3, .dense_token = 3}; /* the first one does more */
    assert_int_equal(cut_find(&p, 3, &cut, NULL), 0);
    assert_int_equal(cut.stages[0].n_layers, 1);
}

static void test_curve(void **state)
{
    const struct cut_curve c = {2, {0.2, 0.6}, {0.4, 0.8}};
    (void)state;
    assert_true(fabs(cut_hit_rate(&c, 0.1) - 0.2) < 1e-12);
    assert_true(fabs(cut_hit_rate(&c, 0.2) - 0.4) < 1e-12);
    assert_true(fabs(cut_hit_rate(&c, 0.4) - 0.6) < 1e-12);
    assert_true(fabs(cut_hit_rate(&c, 0.8) - 0.9) < 1e-12);
    assert_true(cut_hit_rate(&c, 1) == 1);
}

static void test_too_many_ranks(void **state)
{
    struct random_case c;
    uint64_t random = 1;
    struct cut cut;
    struct fm_error err;
    (void)state;
    make_case(&c, &random);
    c.p.n_layers = 3;
    assert_int_equal(cut_find(&c.p, 4, &cut, &err), FM_ERR_ARG);
    assert_string_equal(err.text, "4 ranks are too many for the 3 layers of the model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_of_all), cmocka_unit_test(test_memory_decides),
        cmocka_unit_test(test_equal_machines_share), cmocka_unit_test(test_curve),
        cmocka_unit_test(test_too_many_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
