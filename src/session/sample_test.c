/* Sampling through the public API, on logits made here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "flashmoe.h"

enum { N = 320 }; /* the golden's vocabulary */

static struct fm_model *model;
static float logits[N];

static int open_model(void **state)
{
    (void)state;
    struct fm_model_options options;
    fm_model_options_init(&options);
    options.metadata_only = true;
    return fm_model_open(FLASHMOE_TEST_DIR "/golden/qwen3_next", &options, &model, NULL);
}

static int close_model(void **state)
{
    (void)state;
    fm_model_close(model);
    return 0;
}

static struct fm_sampler *open_sampler(struct fm_sampling sampling)
{
    struct fm_sampler *sampler = NULL;
    assert_int_equal(fm_sampler_open(model, &sampling, &sampler, NULL), 0);
    return sampler;
}

static void all_unlikely(void)
{
    for (int i = 0; i < N; i++)
        logits[i] = -50.0f;
}

/* How often each token comes in n draws. */
static void draw(struct fm_sampling sampling, unsigned n, unsigned counts[N])
{
    memset(counts, 0, N * sizeof counts[0]);
    struct fm_sampler *sampler = open_sampler(sampling);
    for (unsigned i = 0; i < n; i++) {
        int32_t id = fm_sampler_pick(sampler, logits);
        assert_true(id >= 0 && id < N);
        counts[id]++;
    }
    fm_sampler_close(sampler);
}

static void test_greedy(void **state)
{
    (void)state;
    all_unlikely();
    logits[7] = logits[200] = 3.0f;
    struct fm_sampler *sampler = open_sampler((struct fm_sampling){.top_p = 1});
    assert_int_equal(fm_sampler_pick(sampler, logits), 7); /* a tie goes to the lower id */
    logits[7] = NAN;
    assert_int_equal(fm_sampler_pick(sampler, logits), 200);
    for (int i = 0; i < N; i++)
        logits[i] = NAN;
    assert_int_equal(fm_sampler_pick(sampler, logits), FM_ERR_FORMAT);
    fm_sampler_close(sampler);
}

static void test_frequencies_follow_the_softmax(void **state)
{
    (void)state;
    enum { DRAWS = 100000 };
    all_unlikely();
    const float chosen[] = {1.0f, 0.0f, 2.0f, -1.0f};
    double total = 0;
    for (int i = 0; i < 4; i++) {
        logits[10 * i] = chosen[i];
        total += exp(chosen[i] / 0.8);
    }
    unsigned counts[N];
    draw((struct fm_sampling){.temperature = 0.8f, .top_p = 1, .seed = 1}, DRAWS, counts);
    for (int i = 0; i < 4; i++) {
        double p = exp(chosen[i] / 0.8) / total, sigma = sqrt(p * (1 - p) / DRAWS);
        assert_true(fabs((double)counts[10 * i] / DRAWS - p) < 5 * sigma);
    }
}

static void test_filters(void **state)
{
    (void)state;
    all_unlikely();
    logits[5] = 3.0f; /* weights 1, e^-1, e^-2, e^-3: 0.644 0.237 0.087 0.032 */
    logits[6] = 2.0f;
    logits[7] = 1.0f;
    logits[8] = 0.0f;
    const struct {
        struct fm_sampling sampling;
        int last; /* tokens 5 to last may come */
    } cases[] = {
        {{.temperature = 1, .top_k = 1, .top_p = 1}, 5},
        {{.temperature = 1, .top_k = 3, .top_p = 1}, 7},
        {{.temperature = 1, .top_p = 0.6f}, 5},
        {{.temperature = 1, .top_p = 0}, 5},
        {{.temperature = 1, .top_p = 0.7f}, 6},
        {{.temperature = 1, .top_p = 0.9f}, 7},
        {{.temperature = 1, .top_k = 2, .top_p = 0.7f}, 5}, /* of two, the first has 0.73 */
        {{.temperature = 1, .top_p = 1, .min_p = 0.3f}, 6},
        {{.temperature = 1, .top_p = 1, .min_p = 0.1f}, 7},
        {{.temperature = 1, .top_p = 1, .min_p = 1.0f}, 5},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        unsigned counts[N];
        draw(cases[c].sampling, 3000, counts);
        for (int id = 0; id < N; id++)
            assert_int_equal(counts[id] > 0, id >= 5 && id <= cases[c].last);
    }
}

static void test_a_seed_repeats(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        logits[i] = (float)(i % 7) * 0.3f;
    const struct fm_sampling sampling = {.temperature = 1, .top_p = 0.95f, .seed = 42};
    struct fm_sampler *a = open_sampler(sampling), *b = open_sampler(sampling);
    for (int i = 0; i < 200; i++)
        assert_int_equal(fm_sampler_pick(a, logits), fm_sampler_pick(b, logits));
    fm_sampler_close(a);
    fm_sampler_close(b);
}

static void test_out_of_range_is_refused(void **state)
{
    (void)state;
    const struct fm_sampling wrong[] = {
        {.temperature = -1, .top_p = 1}, {.temperature = NAN, .top_p = 1}, {.top_p = -0.5f},
        {.top_p = 1.5f},                 {.top_p = 1, .min_p = 2},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fm_sampler *sampler;
        struct fm_error err;
        assert_int_equal(fm_sampler_open(model, &wrong[i], &sampler, &err), FM_ERR_ARG);
        assert_null(sampler);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_frequencies_follow_the_softmax),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_a_seed_repeats),
        cmocka_unit_test(test_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
