/* Cache-biased routing on rows made by hand. */
#include "backend/prefer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define N 6
#define K 3

static const float logits[N] = {4.0f, 1.0f, 3.0f, 2.0f, 2.5f, -6.0f};

struct row {
    struct backend_preference p;
    struct router rule;
    bool resident[N];
    float router[N], scores[N], weights[K];
    uint32_t ids[K];
};

/* What the router chose: experts 0, 2 and 4. */
static void fill(struct row *r, bool renormalises, float bias)
{
    *r = (struct row){.ids = {0, 2, 4}};
    memcpy(r->router, logits, sizeof logits);
    double sum = 0;
    for (int e = 0; e < N; e++)
        sum += !renormalises || e == 0 || e == 2 || e == 4 ? exp((double)logits[e]) : 0;
    for (int i = 0; i < K; i++)
        r->weights[i] = (float)(exp((double)logits[r->ids[i]]) / sum);
    r->rule = (struct router){.n_experts = N, .k = K, .renormalises = renormalises, .scale = 1};
    r->p = (struct backend_preference){.router = &r->rule, .logits = r->router, .n = 1,
                                       .resident = r->resident, .bias = bias, .scores = r->scores,
                                       .ids = r->ids, .weights = r->weights};
}

static void expect(const struct row *r, bool renormalises, uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t ids[K] = {a, b, c};
    double sum = 0;
    for (uint32_t e = 0; e < N; e++)
        sum += !renormalises || e == a || e == b || e == c ? exp((double)logits[e]) : 0;
    for (int i = 0; i < K; i++) {
        assert_int_equal(r->ids[i], ids[i]);
        assert_true(fabs((double)r->weights[i] - exp((double)logits[ids[i]]) / sum) < 1e-6);
    }
}

/* The range of the logits is 10, so that a bias of 0.1 is worth 1. */
static void test_bias(void **state)
{
    (void)state;
    for (int renormalises = 0; renormalises < 2; renormalises++) {
        struct row r;
        fill(&r, renormalises, 0.1f);
        r.resident[1] = r.resident[3] = true; /* values 2 and 3: expert 3 ties with 2 and beats 4 */
        prefer_resident(&r.p);
        expect(&r, renormalises, 0, 2, 3);
        fill(&r, renormalises, 1.0f);
        r.resident[1] = r.resident[3] = r.resident[5] = true; /* the router's first choice stays */
        prefer_resident(&r.p);
        expect(&r, renormalises, 0, 1, 3);
    }
}

static void test_nothing_to_prefer(void **state)
{
    (void)state;
    for (int all = 0; all < 2; all++) {
        struct row r, before;
        fill(&r, true, 1.0f);
        memset(r.resident, all, sizeof r.resident);
        before = r;
        prefer_resident(&r.p);
        assert_memory_equal(r.ids, before.ids, sizeof r.ids);
        assert_memory_equal(r.weights, before.weights, sizeof r.weights); /* bit for bit */
    }
}

static void test_logits_that_are_no_numbers(void **state)
{
    (void)state;
    struct row r;
    fill(&r, true, 0.5f);
    r.router[1] = NAN;
    r.router[5] = -INFINITY;
    r.resident[1] = r.resident[5] = true;
    prefer_resident(&r.p);
    expect(&r, true, 0, 2, 4);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Two groups of three, of which the first is chosen. Resident experts of the second group do not
 * count. Weights are scores without correction. */
static void test_groups(void **state)
{
    (void)state;
    static const float correction[N] = {0, 0, 0, 0, 0, 0.25f};
    struct row r;
    fill(&r, true, 10.0f);
    r.rule.score = ROUTER_SIGMOID;
    r.rule.k = 2;
    r.rule.correction = correction;
    r.rule.n_groups = 2;
    r.rule.n_groups_chosen = 1;
    r.rule.scale = 2.5f;
    r.resident[1] = r.resident[3] = r.resident[4] = true;
    r.ids[0] = 0, r.ids[1] = 2;
    prefer_resident(&r.p);
    assert_true(r.ids[0] == 0 && r.ids[1] == 1);
    const double sum = sigmoid(4) + sigmoid(1);
    assert_true(fabs((double)r.weights[0] - 2.5 * sigmoid(4) / sum) < 1e-6);
    assert_true(fabs((double)r.weights[1] - 2.5 * sigmoid(1) / sum) < 1e-6);
}

/* A softmax router keeps its scale, whether or not its weights are renormalised. */
static void test_scale(void **state)
{
    (void)state;
    for (int renormalises = 0; renormalises < 2; renormalises++) {
        struct row r;
        fill(&r, renormalises, 0.1f);
        r.rule.scale = 4;
        for (int i = 0; i < K; i++)
            r.weights[i] *= 4;
        r.resident[3] = true;
        prefer_resident(&r.p);
        for (int i = 0; i < K; i++)
            r.weights[i] /= 4;
        expect(&r, renormalises, 0, 2, 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_nothing_to_prefer),
        cmocka_unit_test(test_logits_that_are_no_numbers),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
