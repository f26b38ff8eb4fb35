#include "lab/routes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include <cmocka.h>

#include "base/limits.h"
#include "lab/routes_internal.h"
#include "flashmoe_lab.h"

#define TRACE FLASHMOE_TEST_DIR "/fuzz/corpus/routes/two-turns.csv"

static struct routes *open_routes(const char *text, struct routes_shape shape)
{
    struct routes *routes;
    struct fm_error err = {0};
    if (routes_open(text, &shape, &routes, &err) != 0)
        fail_msg("'%s': %s", text, err.text);
    return routes;
}

static uint64_t hash_of(const struct routes *r)
{
    const struct routes_shape *s = &r->shape;
    XXH64_hash_t hash = 0;
    for (size_t i = 0; i < (size_t)s->n_positions * s->n_layers * s->n_used; i++) {
        const uint8_t bytes[] = {(uint8_t)r->ids[i], (uint8_t)(r->ids[i] >> 8)};
        hash = XXH64(bytes, sizeof bytes, hash);
    }
    return hash;
}

static void check_order(const struct routes *r)
{
    const struct routes_shape *s = &r->shape;
    for (uint32_t p = 0; p < s->n_positions; p++)
        for (uint32_t layer = 0; layer < s->n_layers; layer++) {
            const uint16_t *ids = routes_at(r, p, layer);
            for (uint32_t i = 0; i < s->n_used; i++)
                assert_true(ids[i] < s->n_experts && (i == 0 || ids[i - 1] < ids[i]));
        }
}

/* ---- generator -------------------------------------------------------------------------- */

static void test_same_on_every_machine(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        struct routes_shape shape;
        uint64_t hash;
    } cases[] = {
        {"gen", {48, 128, 6, 156, 0}, 0x68c9a930ba60834au},
        {"gen", {8, 512, 10, 300, 0}, 0x5a392009f7083f6fu},
        {"gen:hot=20%,alpha=1.5,delta=2,beta=0,drift=2.5,topic=10,seed=77", {3, 60, 4, 64, 0},
         0x52aba8b1247caf47u},
        {"gen:topic=7,topics=3", {4, 64, 8, 60, 0}, 0x0cafe2a6edc8416fu},
        {"gen", {2, 5, 5, 9, 0}, 0x635c01fa7832ba61u},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct routes *r = open_routes(cases[i].text, cases[i].shape);
        check_order(r);
        print_message("%s: %016llx\n", r->label, (unsigned long long)hash_of(r));
        assert_true(hash_of(r) == cases[i].hash);
        routes_close(r);
    }
}

static void test_beginning_does_not_depend_on_length(void **state)
{
    (void)state;
    struct routes *longer = open_routes("gen", (struct routes_shape){4, 64, 8, 200, 0});
    struct routes *shorter = open_routes("gen", (struct routes_shape){4, 64, 8, 50, 0});
    assert_memory_equal(longer->ids, shorter->ids, (size_t)50 * 4 * 8 * sizeof *longer->ids);
    assert_ptr_equal(routes_at(shorter, 50, 3), routes_at(shorter, 0, 3)); /* starts again */
    routes_close(longer);
    routes_close(shorter);
}

static double distance(double a, double b)
{
    return a > b ? a - b : b - a;
}

/* Counts the experts of layer 7 that two ranges of 50 positions have in common. */
static unsigned n_common(const struct routes *r, uint32_t a, uint32_t b)
{
    bool is_used[2][128] = {{false}};
    unsigned n = 0;
    for (uint32_t p = 0; p < 50; p++)
        for (uint32_t i = 0; i < r->shape.n_used; i++) {
            is_used[0][routes_at(r, a + p, 7)[i]] = true;
            is_used[1][routes_at(r, b + p, 7)[i]] = true;
        }
    for (uint32_t e = 0; e < 128; e++)
        n += is_used[0][e] && is_used[1][e];
    return n;
}

/* With two topics the third one is the first again: its popularity, but not its tokens. */
static void test_topics_return(void **state)
{
    (void)state;
    static const char text[] = "gen:topic=50,topics=2,drift=0,alpha=0,hot=30,delta=20";
    struct routes *r = open_routes(text, (struct routes_shape){8, 128, 6, 150, 0});
    const size_t row_bytes = (size_t)8 * 6 * sizeof *r->ids;
    check_order(r);
    assert_true(n_common(r, 0, 100) > 2 * n_common(r, 0, 50));
    assert_true(memcmp(routes_at(r, 0, 0), routes_at(r, 100, 0), 50 * row_bytes) != 0);
    routes_close(r);
}

/* For any seed the generator is as close to the trace it was fitted to as its comment says. */
static void test_like_the_trace(void **state)
{
    (void)state;
    const struct fm_routes_stats *want = &routes_reference(0)->stats;
    for (int seed = 1; seed <= 4; seed++) {
        char text[32];
        (void)snprintf(text, sizeof text, "gen:seed=%d", seed);
        struct fm_routes_stats s = {.size = sizeof s};
        assert_int_equal(fm_routes_measure(text, &s, NULL), 0);
        assert_int_equal(s.n_tokens, want->n_tokens);
        for (unsigned i = 0; i < FM_ROUTES_POINTS; i++) {
            assert_true(distance(s.overlap[i], want->overlap[i]) < 0.035);
            assert_true(distance(s.distinct[i] / want->distinct[i], 1) < 0.03);
            assert_true(distance(s.lru_hits[i], want->lru_hits[i]) < 0.025);
        }
        assert_true(distance(s.overlap[0], want->overlap[0]) < 0.01);
    }
}

/* Published hit rates of a model with 512 experts and 10 per token. */
static void test_like_512_experts(void **state)
{
    (void)state;
    struct fm_routes_stats s = {.size = sizeof s, .n_experts = 512, .n_used = 10, .n_tokens = 512};
    assert_int_equal(fm_routes_measure("gen", &s, NULL), 0);
    assert_true(distance(s.lru_hits[0], 0.565) < 0.06); /* 1/16 */
    assert_true(distance(s.lru_hits[2], 0.67) < 0.06);  /* 1/8 */
    assert_true(distance(s.lru_hits[4], 0.81) < 0.06);  /* 1/4 */
    assert_true(distance(s.lru_hits[5], 0.93) < 0.06);  /* 3/8 */
}

/* Every parameter does what its name says. */
static void test_keys(void **state)
{
    (void)state;
    struct fm_routes_stats plain = {.size = sizeof plain}, s;
    assert_int_equal(fm_routes_measure("gen", &plain, NULL), 0);
    s = (struct fm_routes_stats){.size = sizeof(struct fm_routes_stats)};
    assert_int_equal(fm_routes_measure("gen:beta=2", &s, NULL), 0);
    assert_true(s.overlap[0] > plain.overlap[0] + 0.1);
    s = (struct fm_routes_stats){.size = sizeof(struct fm_routes_stats)};
    assert_int_equal(fm_routes_measure("gen:topic=32", &s, NULL), 0);
    assert_true(s.overlap[6] < plain.overlap[6] - 0.1 && s.distinct[6] > plain.distinct[6] + 20);
    s = (struct fm_routes_stats){.size = sizeof(struct fm_routes_stats)};
    assert_int_equal(fm_routes_measure("gen:drift=5", &s, NULL), 0);
    assert_true(s.distinct[6] > plain.distinct[6] + 10);
    s = (struct fm_routes_stats){.size = sizeof(struct fm_routes_stats)};
    assert_int_equal(fm_routes_measure("gen:hot=16", &s, NULL), 0);
    assert_true(s.lru_hits[2] > plain.lru_hits[2] + 0.1);
    s = (struct fm_routes_stats){.size = sizeof(struct fm_routes_stats)};
    assert_int_equal(fm_routes_measure("gen:alpha=0,delta=0,beta=0", &s, NULL), 0);
    for (unsigned i = 0; i < FM_ROUTES_POINTS; i++) /* uniform */
        assert_true(distance(s.overlap[i], 6.0 / 128) < 0.005);
}

/* Returns the share of all rows that is predicted. */
static double predicted_share(const struct routes *r)
{
    const struct routes_shape *s = &r->shape;
    uint32_t n_right = 0;
    for (uint32_t p = 0; p < s->n_positions; p++)
        for (uint32_t layer = 0; layer < s->n_layers; layer++) {
            const uint16_t *used = routes_at(r, p, layer);
            uint32_t ids[LIMIT_TOP_K] = {0}, again[LIMIT_TOP_K] = {0};
            routes_predict_ids((void *)r, p, layer, ids);
            routes_predict_ids((void *)r, p + s->n_positions, layer, again);
            assert_memory_equal(ids, again, sizeof ids);
            for (uint32_t i = 0; i < s->n_used; i++) {
                assert_true(ids[i] < s->n_experts && (i == 0 || ids[i - 1] < ids[i]));
                for (uint32_t j = 0; j < s->n_used; j++)
                    n_right += used[j] == ids[i];
            }
        }
    return (double)n_right / ((double)s->n_positions * s->n_layers * s->n_used);
}

/* As many experts are predicted as `recall` says; the routes themselves do not change. */
static void test_recall(void **state)
{
    (void)state;
    static const struct routes_shape shape = {8, 128, 6, 300, 0}, all = {2, 5, 5, 9, 0};
    static const struct {
        const char *text;
        double share;
    } cases[] = {{"gen:recall=1", 1}, {"gen:recall=0.7", 0.7}, {"gen:recall=0.25,seed=9", 0.25}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct routes *r = open_routes(cases[i].text, shape);
        assert_true(distance(predicted_share(r), cases[i].share) < 0.01);
        routes_close(r);
    }
    struct routes *plain = open_routes("gen", shape), *r = open_routes("gen:recall=0.5", shape);
    assert_int_equal(plain->recall, 0);
    assert_true(hash_of(plain) == hash_of(r));
    routes_close(plain);
    routes_close(r);
    r = open_routes("gen:recall=0.1", all); /* no expert is unused */
    assert_true(predicted_share(r) == 1);
    routes_close(r);
}

static void test_bad_texts(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "gen:", "gen:alpha", "gen:alpha=", "gen:alpha=x", "gen:alpha=-1", "gen:alpha=4.1",
        "gen:alpha=1e0", "gen:alpha=0.1234567", "gen:alpha=1.2.3", "gen:alpha=1,", "gen:,alpha=1",
        "gen:Alpha=1", "gen:hot=1.5", "gen:hot=101%", "gen:hot=%", "gen:seed=4294967296",
        "gen:topic=0.5", "gen:topics=65536", "gen:drift=99999999999999999999", "gen:beta=.",
        "gen:alpha=%", "gen:recall=1.1", "gen:recall=70%",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct routes *routes;
        struct fm_error err = {0};
        if (routes_open(bad[i], &(struct routes_shape){0}, &routes, &err) != FM_ERR_ARG ||
            routes != NULL || strstr(err.text, bad[i]) == NULL)
            fail_msg("'%s' was taken, or refused with '%s'", bad[i], err.text);
    }
    struct routes *routes;
    const struct routes_shape too_many = {2, 4, 5, 9, 0};
    assert_int_equal(routes_open("gen", &too_many, &routes, NULL), FM_ERR_ARG);
}

/* ---- traces ------------------------------------------------------------------------------ */

static void test_trace_as_it_is(void **state)
{
    (void)state;
    struct routes *r = open_routes(TRACE, (struct routes_shape){0});
    assert_int_equal(r->shape.n_layers, 3); /* 0, 1 and 3 of 4 */
    assert_int_equal(r->shape.n_experts, 8);
    assert_int_equal(r->shape.n_used, 2);
    assert_int_equal(r->shape.n_positions, 15); /* 5 and 7 of one turn, 3 of the other */
    assert_int_equal(r->shape.n_warm, 5);
    static const uint32_t layers[] = {0, 1, 3};
    for (uint32_t p = 0; p < 15; p++)
        for (uint32_t l = 0; l < 3; l++) {
            const uint32_t first = p < 12 ? 1 + 3 * p + layers[l] : 4 + 3 * (p - 12) + layers[l];
            const uint32_t a = first % 8, b = (first + 5) % 8;
            const uint16_t *ids = routes_at(r, p, l);
            assert_int_equal(ids[0], a < b ? a : b);
            assert_int_equal(ids[1], a < b ? b : a);
        }
    assert_non_null(strstr(r->label, "two-turns.csv"));
    routes_close(r);
}

static void test_trace_in_other_shapes(void **state)
{
    (void)state;
    static const struct routes_shape shapes[] = {{48, 512, 10, 99, 0}, {1, 8, 8, 15, 0},
                                                 {5, 3, 2, 15, 0},     {2, 9, 1, 4, 0},
                                                 {3, 1, 1, 15, 0},     {4, 1000, 64, 15, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct routes *r = open_routes(TRACE, shapes[i]);
        assert_int_equal(r->shape.n_positions, shapes[i].n_positions < 15
                                                   ? shapes[i].n_positions : 15);
        check_order(r);
        routes_close(r);
    }
}

static void check_bad(const char *text, const char *const *words)
{
    struct trace trace;
    struct fm_error err = {0};
    if (trace_parse(&trace, "x.csv", text, strlen(text), &err) != FM_ERR_FORMAT)
        fail_msg("taken, or another error (%s):\n%s", err.text, text);
    assert_null(trace.ids);
    assert_non_null(strstr(err.text, "x.csv"));
    for (; *words != NULL; words++)
        if (strstr(err.text, *words) == NULL)
            fail_msg("'%s' does not name %s", err.text, *words);
}

#define HEAD "# route_trace v1\n# n_layer=4 n_expert=8 n_expert_used=2\n" \
             "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"

/* The labels of a recording are not sizes, whatever a path in them contains. */
static void test_labels_in_a_trace(void **state)
{
    (void)state;
    static const char text[] =
        "# route_trace v1\n# n_layer=4 n_expert=8 n_expert_used=2\n"
        "# routes: replayed (/a n_layer=0 n_expert=1 n_expert_used=999999) - speed only\n"
        "# approximate: 2 of 4 experts per token; n_layer=0\n"
        "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
        "0,1,0,3,0,7,0.5,0,0\n0,1,0,3,1,2,0.5,0,0\n";
    struct trace trace;
    struct fm_error err = {0};
    if (trace_parse(&trace, "x.csv", text, sizeof text - 1, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(trace.n_experts, 8);
    assert_int_equal(trace.n_used, 2);
    trace_clear(&trace);
}

static void test_bad_traces(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        const char *words[4];
    } cases[] = {
        {"", {"line 0", "route_trace v1"}},
        {"# route_trace v2\n", {"line 1", "'# route_trace v2'"}},
        {"# route_trace v1\n", {"columns"}},
        {"# route_trace v1\nturn,phase\n", {"line 2", "'turn,phase'"}},
        {"# route_trace v1\n# n_layer=0 n_expert=8 n_expert_used=2\n", {"line 2", "n_layer=0"}},
        {"# route_trace v1\n# n_expert=x\n", {"line 2", "n_expert=x"}},
        {HEAD, {"no routes"}},
        {HEAD "0,0,0,0,0,1,1,0,0\n0,0,x,0,1,2,1,0,0\n", {"line 5", "'step'", "'x'"}},
        {HEAD "0,2,0,0,0,1,1,0,0\n", {"line 4", "'phase'", "'2'"}},
        {HEAD "0,0,16777216,0,0,1,1,0,0\n", {"'step'", "'16777216'"}},
        {HEAD "0,0,0,4,0,1,1,0,0\n", {"'layer'", "'4'"}},
        {HEAD "0,0,0,0,2,1,1,0,0\n", {"'slot'", "'2'"}},
        {HEAD "0,0,0,0,0,8,1,0,0\n", {"'expert'", "'8'"}},
        {HEAD "0,0,0,0,0,1,nan,0,0\n", {"'weight'", "'nan'"}},
        {HEAD "0,0,0,0,0,1,1e,0,0\n", {"'weight'", "'1e'"}},
        {HEAD "0,0,0,0,0,1,1,,0\n", {"'residency'", "''"}},
        {HEAD "0,0,0,0,0,1,1,0,\1\n", {"'expert_bytes'", "'?'"}},
        {HEAD "0,0,0,0,0,1,1,0\n", {"line 4", "9 fields"}},
        {HEAD "0,0,0,0,0,1,1,0,0,0\n", {"line 4", "9 fields"}},
        {HEAD "0,0,0,0,0,1,1,0,0\n0,0,0,0,1,1,1,0,0\n", {"line 5", "expert 1 twice"}},
        {HEAD "0,0,0,0,0,1,1,0,0\n0,0,0,0,0,2,1,0,0\n", {"line 5", "slot 0 twice"}},
        {HEAD "0,0,0,0,0,1,1,0,0\n9999,0,0,1,0,1,1,0,0\n", {"no routes in the first 1"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_bad(cases[i].text, cases[i].words);
}

static void test_raw(void **state)
{
    (void)state;
    uint8_t bytes[3 * 64];
    struct trace trace;
    struct fm_error err = {0};
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)((i / 8 + 9 * (i % 8)) % 64);
    assert_int_equal(trace_parse_raw(&trace, "x.u8", bytes, sizeof bytes, &err), 0);
    assert_true(trace.n_tokens == 3 && trace.n_layers == 8 && trace.n_experts == 64 &&
                trace.n_used == 8 && trace.n_prefill == 0);
    for (unsigned i = 0; i < sizeof bytes; i++)
        assert_int_equal(trace.ids[i], bytes[i]);
    trace_clear(&trace);
    static const struct {
        unsigned at, value, n;
        const char *word;
    } bad[] = {{0, 0, 0, "0 bytes"}, {0, 0, 63, "63 bytes"}, {70, 64, 192, "byte 70"},
               {70, 255, 192, "found 255"}, {191, 50, 192, "byte 191"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const uint8_t was = bytes[bad[i].at];
        bytes[bad[i].at] = (uint8_t)bad[i].value;
        if (trace_parse_raw(&trace, "x.u8", bytes, bad[i].n, &err) != FM_ERR_FORMAT ||
            trace.ids != NULL || strstr(err.text, bad[i].word) == NULL)
            fail_msg("taken, or refused with '%s'", err.text);
        bytes[bad[i].at] = was;
    }
    struct routes *r = open_routes(FLASHMOE_TEST_DIR "/fuzz/corpus/routes/raw.u8",
                                   (struct routes_shape){0});
    assert_true(r->shape.n_positions == 3 && r->shape.n_warm == 0 && r->shape.n_layers == 8);
    check_order(r);
    routes_close(r);
}

static void test_missing_cells(void **state)
{
    (void)state;
    static const char text[] = HEAD "0,0,3,0,0,1,1,0,0\n0,1,6,0,0,2,0.5,1,7\n0,1,6,0,1,7,5e-1,0,0\n"
                                    "0,0,3,2,1,4,1,0,0";
    struct trace t;
    assert_int_equal(trace_parse(&t, "x.csv", text, strlen(text), NULL), 0);
    assert_int_equal(t.n_tokens, 4);
    assert_int_equal(t.n_layers, 2);
    assert_int_equal(t.n_prefill, 3);
    static const uint16_t none = TRACE_NO_EXPERT;
    const uint16_t want[] = {1, none, none, 4, 2, 7, none, 4, 2, 7, none, 4, 2, 7, none, 4};
    assert_memory_equal(t.ids, want, sizeof want);
    trace_clear(&t);
}

/* ---- statistics -------------------------------------------------------------------------- */

static void test_statistics(void **state)
{
    (void)state;
    /* Two experts per token on a circle of 32: token t uses t and t + 1. */
    uint16_t ids[40][2];
    for (unsigned t = 0; t < 40; t++) {
        const uint16_t a = (uint16_t)(t % 32), b = (uint16_t)((t + 1) % 32);
        ids[t][0] = a < b ? a : b;
        ids[t][1] = a < b ? b : a;
    }
    const struct routes r = {.shape = {1, 32, 2, 40, 0}, .ids = &ids[0][0]};
    struct fm_routes_stats s = {.size = sizeof s};
    assert_int_equal(routes_measure(&r, 40, &s, NULL), 0);
    assert_true(s.overlap[0] == 0.5 && s.overlap[1] == 0 && s.overlap[4] == 0);
    assert_true(s.overlap[5] == 1 && s.overlap[6] < 0); /* once around; too few tokens */
    assert_true(s.distinct[0] == 3 && s.distinct[1] == 5 && s.distinct[4] == 32);
    assert_true(s.distinct[5] < 0);
    /* 39 of 80 uses repeat the previous token's; from 32 on, an LRU of 16 has lost the others. */
    assert_true(s.lru_hits[0] == 39.0 / 80 && s.lru_hits[6] == 39.0 / 80);
    assert_int_equal(fm_routes_capacity(512, 0), 32);
    assert_int_equal(fm_routes_capacity(4, 0), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_on_every_machine),
        cmocka_unit_test(test_beginning_does_not_depend_on_length),
        cmocka_unit_test(test_topics_return),
        cmocka_unit_test(test_like_the_trace),
        cmocka_unit_test(test_like_512_experts),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_recall),
        cmocka_unit_test(test_bad_texts),
        cmocka_unit_test(test_trace_as_it_is),
        cmocka_unit_test(test_trace_in_other_shapes),
        cmocka_unit_test(test_labels_in_a_trace),
        cmocka_unit_test(test_bad_traces),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_missing_cells),
        cmocka_unit_test(test_statistics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
