/* Tests sampling through the public API, on logits made here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "flashmoe_lab.h"
#include "session/session_internal.h"

enum { N = 320 }; /* the golden's vocabulary */

static struct fm_model *model;
static float logits[N];

static int open_model(void **state)
{
    (void)state;
    struct fm_model_options options = {.size = sizeof options};
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
    sampling.size = sizeof sampling;
    assert_int_equal(fm_sampler_open(model, &sampling, &sampler, NULL), 0);
    return sampler;
}

static void all_unlikely(void)
{
    for (int i = 0; i < N; i++)
        logits[i] = -50.0f;
}

/* Counts how often each token is drawn in n draws. */
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
    logits[7] = -INFINITY;
    assert_int_equal(fm_sampler_pick(sampler, logits), 200);
    for (int i = 0; i < N; i++)
        logits[i] = NAN;
    assert_int_equal(fm_sampler_pick(sampler, logits), FM_ERR_FORMAT);
    fm_sampler_close(sampler);
}

/* One NaN or INFINITY anywhere is enough to refuse, greedy and sampled, however improbable its
 * token is. If all are -INFINITY, no token is left either. */
static void test_one_bad_logit_is_refused(void **state)
{
    (void)state;
    static const float bad[] = {NAN, -NAN, INFINITY};
    static const int places[] = {0, 1, 4, 7, N / 2, N - 2, N - 1};
    const struct fm_sampling kinds[] = {{.top_p = 1}, {.temperature = 1, .top_p = 1},
                                        {.temperature = 1, .top_k = 1, .top_p = 1},
                                        {.top_p = 1, .presence_penalty = 1},
                                        {.temperature = 1, .top_p = 1, .typical_p = 0.5f}};
    struct fm_logprob chosen = {.id = 7}, top[2];
    int32_t ids[N];
    float probabilities[N];
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct fm_sampler *sampler = open_sampler(kinds[k]);
        for (size_t i = 0; i < 3 * sizeof places / sizeof places[0]; i++) {
            all_unlikely();
            logits[7] = 3;
            assert_true(fm_sampler_pick(sampler, logits) >= 0);
            logits[places[i / 3]] = bad[i % 3];
            assert_int_equal(fm_sampler_pick(sampler, logits), FM_ERR_FORMAT);
            assert_int_equal(fm_sampler_distribution(sampler, logits, ids, probabilities),
                             FM_ERR_FORMAT);
            assert_int_equal(fm_logprobs(model, logits, &chosen, top, 2), FM_ERR_FORMAT);
            assert_int_equal(fm_logprobs(model, logits, &chosen, NULL, 0), FM_ERR_FORMAT);
        }
        for (int i = 0; i < N; i++)
            logits[i] = -INFINITY;
        assert_int_equal(fm_sampler_pick(sampler, logits), FM_ERR_FORMAT);
        logits[9] = -3e38f;
        assert_int_equal(fm_sampler_pick(sampler, logits), 9);
        fm_sampler_close(sampler);
    }
}

/* Makes logits of few values, so that many are equal, with some forbidden tokens and, in some
 * rounds, NaN or INFINITY. */
static void any_logits(uint32_t *state)
{
    static const float values[] = {-INFINITY, -1, -INFINITY, 0, 1, 2, NAN, INFINITY};
    const unsigned n_values = 1 + (*state >> 8) % 8;
    for (int i = 0; i < N; i++) {
        *state = *state * 1664525u + 1013904223u;
        logits[i] = values[(*state >> 16) % n_values];
    }
}

/* The greedy pick equals the distribution, which is made from the list of all candidates. */
static void test_greedy_is_the_distribution(void **state)
{
    (void)state;
    struct fm_logit_bias bias[40];
    uint32_t seed = 1;
    for (int i = 0; i < 40; i++)
        bias[i] = (struct fm_logit_bias){7 * i, i % 3 == 0 ? -INFINITY : (float)(i % 5) - 2};
    for (int round = 0; round < 400; round++) {
        struct fm_sampling sampling = {.top_p = 1, .logit_bias = bias,
                                       .n_logit_bias = round % 2 * 40,
                                       .presence_penalty = (float)(round % 3)};
        struct fm_sampler *sampler = open_sampler(sampling);
        int32_t ids[N];
        float probabilities[N];
        any_logits(&seed);
        fm_sampler_accept(sampler, round % N);
        const int n = fm_sampler_distribution(sampler, logits, ids, probabilities);
        assert_int_equal(fm_sampler_pick(sampler, logits), n > 0 ? ids[0] : n);
        fm_sampler_close(sampler);
    }
}

/* A peak that a device has found is taken as it is, unless a bias or a penalty moves it. */
static void test_known_peaks(void **state)
{
    (void)state;
    static const float other[1], others[PEAKS_MAX][1];
    const struct fm_logit_bias bias = {9, -1};
    all_unlikely();
    logits[200] = 3.0f;
    struct fm_sampler *plain = open_sampler((struct fm_sampling){.top_p = 1});
    struct fm_sampler *biased =
        open_sampler((struct fm_sampling){.top_p = 1, .logit_bias = &bias, .n_logit_bias = 1});
    peaks_set(&model->peaks, other, logits, 9);
    assert_int_equal(fm_sampler_pick(plain, logits), 9);
    assert_int_equal(fm_sampler_pick(biased, logits), 200);
    peaks_set(&model->peaks, logits, other, 10); /* the session goes on */
    assert_int_equal(fm_sampler_pick(plain, logits), 200);
    assert_int_equal(peaks_find(&model->peaks, other), 10);
    peaks_set(&model->peaks, other, logits, -1);
    assert_int_equal(peaks_find(&model->peaks, logits), -1);
    assert_int_equal(peaks_find(&model->peaks, other), -1);
    assert_int_equal(peaks_find(&model->peaks, NULL), -1);
    assert_int_equal(fm_sampler_pick(plain, NULL), FM_ERR_ARG);
    for (unsigned i = 0; i < PEAKS_MAX; i++)
        peaks_set(&model->peaks, other, others[i], i);
    peaks_set(&model->peaks, other, logits, 9); /* there is no room */
    assert_int_equal(fm_sampler_pick(plain, logits), 200);
    for (unsigned i = 0; i < PEAKS_MAX; i++) {
        assert_int_equal(peaks_find(&model->peaks, others[i]), i);
        peaks_forget(&model->peaks, others[i]);
        assert_int_equal(peaks_find(&model->peaks, others[i]), -1);
    }
    fm_sampler_close(plain);
    fm_sampler_close(biased);
}

/* Where the tokenizer has only a few tokens, only they are looked at. */
static void test_few_tokens(void **state)
{
    (void)state;
    static int32_t few[] = {3, 40, 41, 300};
    struct fm_sampler *sampler = open_sampler((struct fm_sampling){.top_p = 1});
    assert_null(model->few_tokens); /* this one has most of them */
    model->few_tokens = few;
    model->n_few_tokens = 4;
    all_unlikely();
    logits[42] = 9.0f;
    logits[41] = logits[300] = 3.0f;
    assert_int_equal(fm_sampler_pick(sampler, logits), 41);
    logits[200] = NAN;
    assert_int_equal(fm_sampler_pick(sampler, logits), FM_ERR_FORMAT);
    model->few_tokens = NULL;
    model->n_few_tokens = 0;
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
        int last; /* tokens 5 to last are allowed */
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

/* Makes logits that differ from token to token, from whole numbers. */
static void patterned(int step)
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 37 + step * 11) % 101) * 0.09f - 4.0f;
}

static void test_seeds_keep_their_tokens(void **state)
{
    (void)state;
    static const struct {
        struct fm_sampling sampling;
        int32_t ids[24];
    } cases[] = {
        {{.temperature = 1, .top_p = 1, .seed = 1},
         {199, 2,  42,  190, 217, 312, 175, 156, 134, 177, 248, 21,
          231, 116, 184, 91, 287, 120, 169, 223, 267, 294, 228, 176}},
        {{.temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .seed = 42},
         {120, 158, 13,  40,  37,  83,  293, 208, 175, 131, 300, 84,
          10,  310, 165, 233, 159, 317, 112, 27,  286, 92,  179, 206}},
        {{.temperature = 1.3f, .top_p = 0.95f, .min_p = 0.05f, .seed = 123456789},
         {90, 196, 245, 280, 168, 211, 74,  82,  142, 300, 313, 152,
          48, 239, 34,  61,  189, 44,  281, 196, 116, 190, 135, 293}},
        {{.temperature = 0.6f, .top_k = 5, .top_p = 1, .min_p = 0.2f, .seed = 7},
         {131, 57,  114, 212, 239, 165, 293, 118, 44, 172, 98,  155,
          182, 108, 34,  233, 189, 186, 314, 68,  95, 92,  119, 247}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct fm_sampler *sampler = open_sampler(cases[c].sampling);
        for (int step = 0; step < 24; step++) {
            patterned(step);
            assert_int_equal(fm_sampler_pick(sampler, logits), cases[c].ids[step]);
            fm_sampler_accept(sampler, cases[c].ids[step]); /* has no effect without penalties */
        }
        fm_sampler_close(sampler);
    }
}

/* Compares draws with an exact softmax over the allowed tokens. */
static void test_draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { DRAWS = 200000 };
    const struct fm_sampling cases[] = {
        {.temperature = 1.5f, .top_p = 1, .top_k = 60, .seed = 3},
        {.temperature = 2, .top_p = 0.7f, .seed = 4},
        {.temperature = 1.2f, .top_p = 1, .min_p = 0.02f, .typical_p = 0.9f, .seed = 5},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        unsigned counts[N], n_kept = 0;
        patterned(1);
        draw(cases[c], DRAWS, counts);
        double total = 0, chi_square = 0;
        for (int i = 0; i < N; i++)
            total += counts[i] > 0 ? exp((double)logits[i] / cases[c].temperature) : 0;
        for (int i = 0; i < N; i++) {
            if (counts[i] == 0)
                continue;
            const double want =
                exp((double)logits[i] / cases[c].temperature) / total * DRAWS;
            chi_square += (counts[i] - want) * (counts[i] - want) / want;
            n_kept++;
        }
        const double freedom = n_kept - 1.0; /* its mean; its variance is twice that */
        assert_true(n_kept > 30);
        assert_true(fabs(chi_square - freedom) < 4 * sqrt(2 * freedom));
    }
}

static void test_bias(void **state)
{
    (void)state;
    all_unlikely();
    logits[5] = 3.0f;
    logits[6] = 2.0f;
    struct fm_logit_bias bias[] = {{6, 0.75f}, {6, 0.75f}, {9, 53.25f}, {9, -INFINITY}};
    struct fm_sampling sampling = {.top_p = 1, .logit_bias = bias, .n_logit_bias = 4};
    struct fm_sampler *sampler = open_sampler(sampling);
    bias[0].bias = -100; /* the sampler has copied it at open */
    assert_int_equal(fm_sampler_pick(sampler, logits), 6);
    fm_sampler_close(sampler);
    struct fm_logit_bias none[N];
    for (int i = 0; i < N; i++)
        none[i] = (struct fm_logit_bias){i, -INFINITY};
    for (int temperature = 0; temperature < 2; temperature++) {
        sampling = (struct fm_sampling){.temperature = (float)temperature, .top_p = 1,
                                        .logit_bias = none, .n_logit_bias = N};
        sampler = open_sampler(sampling);
        assert_int_equal(fm_sampler_pick(sampler, logits), FM_ERR_FORMAT);
        fm_sampler_close(sampler);
        sampling.n_logit_bias = 7;
        sampler = open_sampler(sampling);
        assert_true(fm_sampler_pick(sampler, logits) >= 7);
        fm_sampler_close(sampler);
    }
}

/* Returns which of two tokens with the logits a and b is picked after `ids`, of which the first
 * n_prompt are the prompt. */
static int32_t pick_after(struct fm_sampling sampling, float a, float b, const int32_t *ids,
                          size_t n_ids, size_t n_prompt)
{
    all_unlikely();
    logits[1] = a;
    logits[2] = b;
    sampling.top_p = 1;
    struct fm_sampler *sampler = open_sampler(sampling);
    fm_sampler_accept_prompt(sampler, ids, n_prompt);
    for (size_t i = n_prompt; i < n_ids; i++)
        fm_sampler_accept(sampler, ids[i]);
    int32_t id = fm_sampler_pick(sampler, logits);
    fm_sampler_close(sampler);
    return id;
}

static void test_penalties(void **state)
{
    (void)state;
    const struct fm_sampling repetition = {.repetition_penalty = 2};
    const struct fm_sampling presence = {.presence_penalty = 1};
    const struct fm_sampling frequency = {.frequency_penalty = 0.5f};
    const int32_t ids[] = {1, 1, 1, 9, 9, -1, N};
    /* 3 becomes 1.5; -3 becomes -6. It does not matter how often or where the token occurred. */
    assert_int_equal(pick_after(repetition, 3, 1.4f, ids, 3, 0), 1);
    assert_int_equal(pick_after(repetition, 3, 1.6f, ids, 3, 0), 2);
    assert_int_equal(pick_after(repetition, 3, 1.6f, ids, 1, 1), 2);
    assert_int_equal(pick_after(repetition, -3, -5.9f, ids, 3, 0), 2);
    assert_int_equal(pick_after(repetition, -3, -6.1f, ids, 3, 0), 1);
    /* Only the answer counts: presence once, frequency every time. */
    assert_int_equal(pick_after(presence, 3, 2.1f, ids, 3, 0), 2);
    assert_int_equal(pick_after(presence, 3, 1.9f, ids, 3, 0), 1);
    assert_int_equal(pick_after(presence, 3, 2.1f, ids, 3, 3), 1);
    assert_int_equal(pick_after(frequency, 3, 1.6f, ids, 3, 0), 2);
    assert_int_equal(pick_after(frequency, 3, 1.4f, ids, 3, 0), 1);
    assert_int_equal(pick_after(frequency, 3, 1.9f, ids, 3, 1), 1);
    assert_int_equal(pick_after(frequency, 3, 2.1f, ids, 3, 1), 2);
    /* Unknown ids are ignored; negative penalties favour a token. */
    assert_int_equal(pick_after(frequency, 3, 2.9f, ids + 3, 4, 0), 1);
    assert_int_equal(pick_after((struct fm_sampling){.presence_penalty = -1}, 3, 3.5f, ids, 1, 0),
                     1);
}

/* A repetition penalty near 0 makes repeated tokens certain. Their logits stay finite: with an
 * infinite one all probabilities would be NaN. */
static void test_tiny_repetition_penalty(void **state)
{
    (void)state;
    const int32_t seen[] = {7, 8};
    unsigned n[N] = {0};
    struct fm_sampler *sampler = open_sampler((struct fm_sampling){
        .temperature = 1, .top_p = 1, .repetition_penalty = 5e-38f, .seed = 5});
    all_unlikely();
    logits[7] = logits[8] = 20;
    logits[9] = 21;
    fm_sampler_accept_prompt(sampler, seen, 2);
    for (unsigned i = 0; i < 64; i++)
        n[fm_sampler_pick(sampler, logits)]++;
    assert_true(n[7] > 0 && n[8] > 0 && n[7] + n[8] == 64);
    fm_sampler_close(sampler);
}

static void test_penalty_window(void **state)
{
    (void)state;
    struct fm_sampling sampling = {.presence_penalty = 1, .repetition_penalty = 1.5f,
                                   .frequency_penalty = 0.25f};
    const int32_t ids[] = {1, 2, 1, 7, 7, 8};
    for (unsigned window = 1; window <= 7; window++) {
        sampling.penalty_window = window;
        for (size_t n = 0; n <= 6; n++)
            for (size_t n_prompt = 0; n_prompt <= n; n_prompt++) {
                const size_t skipped = n > window ? n - window : 0;
                struct fm_sampling all = sampling;
                all.penalty_window = 0;
                const size_t kept_prompt = n_prompt > skipped ? n_prompt - skipped : 0;
                for (float b = 0; b < 4; b += 0.3f)
                    assert_int_equal(pick_after(sampling, 3, b, ids, n, n_prompt),
                                     pick_after(all, 3, b, ids + skipped, n - skipped,
                                                kept_prompt));
            }
    }
}

/* Returns how many allocations a sampler takes. */
static long n_tables(unsigned window)
{
    const long before = mem_count();
    struct fm_sampler *sampler =
        open_sampler((struct fm_sampling){.presence_penalty = 1, .penalty_window = window});
    const long n = mem_count() - before;
    fm_sampler_close(sampler);
    return n;
}

/* A window that no text can fill needs no memory. */
static void test_large_window(void **state)
{
    (void)state;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    assert_int_equal(n_tables(info.max_context), n_tables(0) + 1);
    assert_int_equal(n_tables(info.max_context + 1), n_tables(0));
    assert_int_equal(n_tables(LIMIT_CONTEXT), n_tables(0));
}

static void test_typical(void **state)
{
    (void)state;
    all_unlikely();
    for (int i = 6; i < 10; i++)
        logits[i] = 0;
    unsigned counts[N];
    logits[5] = 3.0f; /* 0.834, 0.0415 each: the mean surprise is 0.68, ln 1/0.834 is 0.18 */
    draw((struct fm_sampling){.temperature = 1, .top_p = 1, .typical_p = 0.5f}, 2000, counts);
    assert_int_equal(counts[5], 2000);
    logits[5] = 1.0f; /* 0.405, 0.149 each: the mean is 1.497; 0.905 is 0.593 off, 1.905 0.407 */
    draw((struct fm_sampling){.temperature = 1, .top_p = 1, .typical_p = 0.1f}, 4000, counts);
    for (int i = 0; i < N; i++)
        assert_int_equal(counts[i] > 0, i >= 6 && i < 10); /* equal ones stay together */
    draw((struct fm_sampling){.temperature = 1, .top_p = 1, .typical_p = 0.7f}, 4000, counts);
    for (int i = 0; i < N; i++)
        assert_int_equal(counts[i] > 0, i >= 5 && i < 10);
    /* Top-k comes first: both of the two are kept. */
    draw((struct fm_sampling){.temperature = 1, .top_k = 2, .top_p = 1, .typical_p = 0.99f}, 2000,
         counts);
    assert_true(counts[5] + counts[6] == 2000 && counts[6] > 0);
}

static void test_logprobs(void **state)
{
    (void)state;
    patterned(3);
    double total = 0;
    for (int i = 0; i < N; i++)
        total += exp(logits[i]);
    struct fm_logprob chosen = {.id = 17}, top[8];
    assert_int_equal(fm_logprobs(model, logits, &chosen, top, 8), 8);
    assert_true(fabs(chosen.logprob - (logits[17] - log(total))) < 1e-5);
    for (int i = 0; i < 8; i++) {
        assert_true(fabs(top[i].logprob - (logits[top[i].id] - log(total))) < 1e-5);
        assert_true(i == 0 || top[i].logprob < top[i - 1].logprob ||
                    (top[i].logprob == top[i - 1].logprob && top[i].id > top[i - 1].id));
        /* tokens that were left out are not more probable than the last one */
        for (int id = 0; id < N; id++)
            assert_true(logits[id] <= logits[top[7].id] || id == top[0].id || id == top[1].id ||
                        id == top[2].id || id == top[3].id || id == top[4].id ||
                        id == top[5].id || id == top[6].id);
    }
    assert_int_equal(fm_logprobs(model, logits, &chosen, NULL, 0), 0);
    chosen.id = N;
    assert_int_equal(fm_logprobs(model, logits, &chosen, NULL, 0), FM_ERR_ARG);
    chosen.id = 4;
    for (int i = 0; i < N; i++)
        logits[i] = i < 3 ? NAN : -INFINITY;
    assert_int_equal(fm_logprobs(model, logits, &chosen, top, 8), FM_ERR_FORMAT);
    logits[0] = logits[1] = logits[2] = -INFINITY;
    assert_int_equal(fm_logprobs(model, logits, &chosen, top, 8), FM_ERR_FORMAT);
    logits[4] = -1e30f; /* alone */
    assert_true(fm_logprobs(model, logits, &chosen, top, 2) == 2 && chosen.logprob == 0);
    assert_true(top[0].id == 4 && top[1].logprob == -INFINITY);
}

static void test_out_of_range_is_refused(void **state)
{
    (void)state;
    struct fm_sampling wrong[] = {
        {.temperature = -1, .top_p = 1}, {.temperature = NAN, .top_p = 1}, {.top_p = -0.5f},
        {.top_p = 1.5f},                 {.top_p = 1, .min_p = 2},
        {.top_p = 1, .typical_p = 1.5f}, {.top_p = 1, .typical_p = NAN},
        {.top_p = 1, .repetition_penalty = -1},
        {.top_p = 1, .presence_penalty = INFINITY},
        {.top_p = 1, .frequency_penalty = NAN},
        {.top_p = 1, .penalty_window = UINT32_MAX},
        {.top_p = 1, .logit_bias = &(struct fm_logit_bias){-1, 0}, .n_logit_bias = 1},
        {.top_p = 1, .logit_bias = &(struct fm_logit_bias){N, 0}, .n_logit_bias = 1},
        {.top_p = 1, .logit_bias = &(struct fm_logit_bias){1, NAN}, .n_logit_bias = 1},
        {.top_p = 1, .logit_bias = &(struct fm_logit_bias){1, INFINITY}, .n_logit_bias = 1},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct fm_sampler *sampler;
        struct fm_error err;
        assert_int_equal(fm_sampler_open(model, &wrong[i], &sampler, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "fm_sampling.size is 0"));
        wrong[i].size = sizeof wrong[i];
        assert_int_equal(fm_sampler_open(model, &wrong[i], &sampler, &err), FM_ERR_ARG);
        assert_null(strstr(err.text, "fm_sampling.size"));
        assert_null(sampler);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_one_bad_logit_is_refused),
        cmocka_unit_test(test_greedy_is_the_distribution),
        cmocka_unit_test(test_known_peaks),
        cmocka_unit_test(test_few_tokens),
        cmocka_unit_test(test_frequencies_follow_the_softmax),
        cmocka_unit_test(test_filters),
        cmocka_unit_test(test_a_seed_repeats),
        cmocka_unit_test(test_seeds_keep_their_tokens),
        cmocka_unit_test(test_draws_follow_the_distribution),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_tiny_repetition_penalty),
        cmocka_unit_test(test_penalty_window),
        cmocka_unit_test(test_large_window),
        cmocka_unit_test(test_typical),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_out_of_range_is_refused),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
