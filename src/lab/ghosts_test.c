/* Compares the miss curve with caches that are replayed in full, one per size. */
#include "cache/ghosts.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "lab/replay.h"

#define LAYERS 12
#define EXPERTS 64
#define USED 4
#define TOKENS 700

static uint32_t random_state;

static uint32_t next_random(uint32_t below)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(random_state >> 8) * below) >> 24);
}

static bool is_among(const uint16_t *ids, uint32_t n, uint16_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Makes routes with popular experts; a token keeps some experts of the previous one, and the topic
 * changes every `topic` tokens. With a flatness of 1 all experts are equally popular. */
static uint16_t *make_routes(uint32_t seed, uint32_t topic, uint32_t flatness)
{
    uint16_t *ids = malloc(sizeof *ids * TOKENS * LAYERS * USED);
    assert_non_null(ids);
    random_state = seed;
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            uint16_t *row = ids + (token * LAYERS + layer) * USED;
            const uint32_t shift = token / topic * 17 + layer * 5;
            for (uint32_t i = 0; i < USED;) {
                uint32_t rank = next_random(EXPERTS);
                for (uint32_t j = 1; j < flatness; j++)
                    rank = next_random(rank + 1);
                uint16_t id = (uint16_t)((rank + shift) % EXPERTS);
                if (token > 0 && next_random(4) == 0)
                    id = row[(int32_t)i - LAYERS * USED];
                if (!is_among(row, i, id))
                    row[i++] = id;
            }
        }
    return ids;
}

static void feed(struct heat *heat, struct ghosts *g, const uint16_t *ids)
{
    for (uint32_t token = 0; token < TOKENS; token++)
        for (uint32_t layer = 0; layer < LAYERS; layer++, ids += USED) {
            for (uint32_t i = 0; i < USED; i++)
                ghosts_record_use(g, layer, ids[i]);
            heat_advance(heat, layer, 1);
            for (uint32_t i = 0; i < USED; i++) {
                heat_use(heat, layer, ids[i], 1, 0);
                ghosts_update(g, layer, ids[i]);
            }
        }
}

/* Compares the curve with the replays; it may be off by this much. */
static void check(enum heat_policy policy, const uint16_t *ids, double max)
{
    const double shares[] = {0.0625, 0.125, 0.25, 0.375, 0.5, 0.75, 1};
    const struct replay_routes routes = {.n_layers = LAYERS, .n_experts = EXPERTS, .n_used = USED,
                                         .n_positions = TOKENS, .ids = ids, .n_tokens = TOKENS};
    struct heat heat;
    struct ghosts g;
    assert_int_equal(heat_init(&heat, policy, LAYERS, EXPERTS, NULL), 0);
    assert_int_equal(ghosts_init(&g, &heat, LAYERS * USED, NULL), 0);
    assert_true(ghosts_hit_rate(&g, 100) < 0);
    feed(&heat, &g, ids);
    double before = 0;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        const uint32_t n_slots = (uint32_t)(shares[i] * LAYERS * EXPERTS);
        struct replay_hits hits;
        assert_int_equal(replay_run(&routes, policy == HEAT_LRU ? REPLAY_LRU : REPLAY_LCP, n_slots,
                                    &hits, NULL), 0);
        const double real = 100.0 * (double)hits.n_all / (TOKENS * LAYERS * USED);
        const double found = 100 * ghosts_hit_rate(&g, n_slots);
        print_message("%s %6.2f%%: %5.1f%% hits, the curve has %5.1f%%\n",
                      heat_policy_name(policy), 100 * shares[i], real, found);
        assert_true(found >= before);
        assert_true(fabs(found - real) <= max);
        before = found;
    }
    ghosts_clear(&g);
    heat_clear(&heat);
}

static void test_curve(void **state)
{
    (void)state;
    const struct {
        uint32_t topic, flatness;
    } kinds[] = {{TOKENS, 3}, {TOKENS, 2}, {150, 3}, {TOKENS, 1}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        uint16_t *ids = make_routes((uint32_t)i + 1, kinds[i].topic, kinds[i].flatness);
        check(HEAT_LRU, ids, 1.5);
        check(HEAT_LCP, ids, 5.5);
        free(ids);
    }
}

/* A key far above the window, one far below it, and the order between them. */
static void test_window(void **state)
{
    (void)state;
    struct heat heat;
    struct ghosts g;
    assert_int_equal(heat_init(&heat, HEAT_LCP, 1, 256, NULL), 0);
    assert_int_equal(ghosts_init(&g, &heat, 0, NULL), 0); /* no floor */
    heat_restore(&heat, 0, 9, 1, 100000);
    ghosts_restore(&g);
    for (uint32_t i = 0; i < 3; i++) {
        heat_use(&heat, 0, i, 1, 0);
        ghosts_update(&g, 0, i);
        heat_advance(&heat, 0, i == 0 ? 1000000 : 10);
    }
    ghosts_record_use(&g, 0, 2); /* the hottest */
    ghosts_record_use(&g, 0, 1);
    ghosts_record_use(&g, 0, 0); /* the last two share a bucket */
    ghosts_record_use(&g, 0, 9);
    ghosts_record_use(&g, 0, 200); /* never used */
    assert_true(fabs(ghosts_hit_rate(&g, 1) - 0.2) < 1e-9);
    assert_true(fabs(ghosts_hit_rate(&g, 2) - 0.4) < 1e-9);
    assert_true(fabs(ghosts_hit_rate(&g, 256) - 0.8) < 1e-9);
    ghosts_clear(&g);
    heat_clear(&heat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_curve), cmocka_unit_test(test_window)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
