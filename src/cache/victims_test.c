/* Compares heat and victims with a model that recomputes every key and scans every slot. */
#include "cache/victims.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS_MAX 9
#define EXPERTS_MAX 24
#define SLOTS_MAX 120
#define STEPS 4000
#define SAME 1e-9 /* tolerance: the model computes keys differently */

enum place { PLACE_EMPTY, PLACE_HELD, PLACE_ORDERED };

struct model {
    struct heat heat;
    struct victims victims;
    uint32_t n_layers, n_experts, n_slots, floor, random;
    struct slot {
        enum place place;
        uint32_t layer, expert;
    } slots[SLOTS_MAX];
    struct use {
        float count;
        int64_t last, number; /* token of the layer; number of the use, over all layers */
    } uses[LAYERS_MAX][EXPERTS_MAX];
    int64_t tokens[LAYERS_MAX], n_uses;
};

static uint32_t next_random(struct model *m, uint32_t below)
{
    m->random = m->random * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(m->random >> 8) * below) >> 24);
}

/* ---- the slow model -------------------------------------------------------------------------- */

static double key_of(const struct model *m, uint32_t layer, uint32_t expert)
{
    const struct use *use = &m->uses[layer][expert];
    if (m->heat.policy == HEAT_LRU)
        return (double)use->number;
    const double idle = (double)(m->tokens[layer] - use->last);
    return log2((double)use->count) - idle / HEAT_HALF_LIFE;
}

static uint32_t count_held(const struct model *m, uint32_t layer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_slots; i++)
        n += m->slots[i].place != PLACE_EMPTY && m->slots[i].layer == layer;
    return n;
}

static bool is_before(const struct model *m, const struct slot *a, const struct slot *b)
{
    const double x = key_of(m, a->layer, a->expert), y = key_of(m, b->layer, b->expert);
    if (fabs(x - y) > SAME)
        return x < y;
    return a->layer != b->layer ? a->layer < b->layer : a->expert < b->expert;
}

static uint32_t find_coldest(const struct model *m, uint32_t layer)
{
    uint32_t own = NO_VICTIM, other = NO_VICTIM;
    for (uint32_t i = 0; i < m->n_slots; i++) {
        const struct slot *s = &m->slots[i];
        if (s->place != PLACE_ORDERED)
            continue;
        if (s->layer == layer && (own == NO_VICTIM || is_before(m, s, &m->slots[own])))
            own = i;
        if (count_held(m, s->layer) > m->floor &&
            (other == NO_VICTIM || is_before(m, s, &m->slots[other])))
            other = i;
    }
    if (own == NO_VICTIM || other == NO_VICTIM)
        return own == NO_VICTIM ? other : own;
    const double margin = m->heat.policy == HEAT_LCP ? 1 : 0;
    const struct slot *a = &m->slots[own], *b = &m->slots[other];
    const bool is_other =
        key_of(m, b->layer, b->expert) + margin < key_of(m, a->layer, a->expert) - SAME;
    return is_other ? other : own;
}

static void check_coldest(const struct model *m, uint32_t layer)
{
    const uint32_t found = victims_coldest(&m->victims, layer), want = find_coldest(m, layer);
    if (found == want)
        return;
    if (found == NO_VICTIM || want == NO_VICTIM || m->slots[found].place != PLACE_ORDERED)
        fail_msg("layer %u: slot %u instead of %u", layer, found, want);
    /* Keys of different uses that differ only by rounding may be in either order. */
    const struct slot *a = &m->slots[found], *b = &m->slots[want];
    const double x = key_of(m, a->layer, a->expert), y = key_of(m, b->layer, b->expert);
    const double between = fabs(x - y), margin = m->heat.policy == HEAT_LCP ? 1 : 0;
    if (between > SAME && fabs(between - margin) > SAME)
        fail_msg("layer %u: slot %u, heat %.12g, instead of %u, heat %.12g", layer, found, x, want,
                 y);
}

/* ---- random operations ----------------------------------------------------------------------- */

static uint32_t find_slot(const struct model *m, uint32_t layer, uint32_t expert)
{
    for (uint32_t i = 0; i < m->n_slots; i++)
        if (m->slots[i].place != PLACE_EMPTY && m->slots[i].layer == layer &&
            m->slots[i].expert == expert)
            return i;
    return NO_VICTIM;
}

static void empty_slot(struct model *m, uint32_t i)
{
    if (m->slots[i].place == PLACE_ORDERED)
        victims_remove(&m->victims, i);
    victims_unassign(&m->victims, i);
    m->slots[i].place = PLACE_EMPTY;
}

static void use_expert(struct model *m, uint32_t layer, uint32_t expert, uint32_t n, uint32_t idle)
{
    struct use *use = &m->uses[layer][expert];
    const int64_t last = m->tokens[layer] - idle;
    const double left = pow(0.5, (double)(last - use->last) / HEAT_FADE);
    use->count = (float)(use->count * left + n);
    use->last = last;
    use->number = ++m->n_uses;
    heat_use(&m->heat, layer, expert, n, idle);
}

/* Returns a slot for an expert: its own, an empty one, or the coldest one. */
static uint32_t take_slot(struct model *m, uint32_t layer, uint32_t expert)
{
    uint32_t i = find_slot(m, layer, expert);
    if (i != NO_VICTIM) {
        if (m->slots[i].place == PLACE_ORDERED)
            victims_remove(&m->victims, i);
        m->slots[i].place = PLACE_HELD;
        return i;
    }
    for (i = 0; i < m->n_slots && m->slots[i].place != PLACE_EMPTY;)
        i++;
    if (i == m->n_slots) {
        check_coldest(m, layer);
        i = victims_coldest(&m->victims, layer);
        if (i == NO_VICTIM)
            return i;
        empty_slot(m, i);
    }
    m->slots[i] = (struct slot){PLACE_HELD, layer, expert};
    victims_assign(&m->victims, i, layer, expert);
    return i;
}

/* Lets tokens pass a layer and use some experts. A few of these stay pinned for a while. */
static void pass_layer(struct model *m, uint32_t layer)
{
    const uint32_t n_tokens = 1 + next_random(m, next_random(m, 20) == 0 ? 70 : 3);
    heat_advance(&m->heat, layer, n_tokens);
    m->tokens[layer] += n_tokens;
    victims_refresh(&m->victims, layer);
    const uint32_t first = next_random(m, m->n_experts), n = 1 + next_random(m, 6);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t expert = (first + i) % m->n_experts, at = find_slot(m, layer, expert);
        if (at != NO_VICTIM && m->slots[at].place == PLACE_ORDERED) {
            victims_remove(&m->victims, at);
            m->slots[at].place = PLACE_HELD;
        }
        use_expert(m, layer, expert, 1 + next_random(m, 3), next_random(m, n_tokens));
        const uint32_t slot = take_slot(m, layer, expert);
        if (slot == NO_VICTIM || next_random(m, 8) == 0)
            continue;
        victims_add(&m->victims, slot);
        m->slots[slot].place = PLACE_ORDERED;
    }
}

static void release_pinned(struct model *m)
{
    for (uint32_t i = 0; i < m->n_slots; i++)
        if (m->slots[i].place == PLACE_HELD && next_random(m, 2) == 0) {
            victims_add(&m->victims, i);
            m->slots[i].place = PLACE_ORDERED;
        }
}

static void restore_some(struct model *m)
{
    for (uint32_t layer = 0; layer < m->n_layers; layer++)
        for (uint32_t expert = 0; expert < m->n_experts; expert += 2) {
            const uint32_t count = next_random(m, 9), idle = next_random(m, 100);
            heat_restore(&m->heat, layer, expert, count, idle);
            if (count > 0)
                m->uses[layer][expert] = (struct use){(float)count, -(int64_t)idle,
                                                      -(int64_t)idle};
        }
}

static void run_model(struct model *m, enum heat_policy policy, bool restores)
{
    assert_int_equal(heat_init(&m->heat, policy, m->n_layers, m->n_experts, NULL), 0);
    assert_int_equal(victims_init(&m->victims, &m->heat, m->n_slots, m->floor, NULL), 0);
    if (restores)
        restore_some(m);
    for (uint32_t step = 0; step < STEPS; step++) {
        const uint32_t layer = next_random(m, m->n_layers), what = next_random(m, 16);
        if (what < 12)
            pass_layer(m, step % 3 == 0 ? layer : step % m->n_layers);
        else if (what < 15)
            release_pinned(m);
        else
            for (uint32_t i = next_random(m, m->n_slots); i < m->n_slots; i += 7)
                if (m->slots[i].place != PLACE_EMPTY)
                    empty_slot(m, i);
        check_coldest(m, layer);
    }
    victims_clear(&m->victims);
    heat_clear(&m->heat);
}

static void test_random_operations(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_layers, n_experts, n_slots, floor;
    } shapes[] = {{1, 24, 10, 4}, {5, 16, 20, 4}, {9, 24, 120, 6}, {9, 24, 70, 0}, {8, 20, 8, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (uint32_t turn = 0; turn < 4; turn++) {
            struct model m = {.n_layers = shapes[i].n_layers, .n_experts = shapes[i].n_experts,
                              .n_slots = shapes[i].n_slots, .floor = shapes[i].floor,
                              .random = (uint32_t)i * 4 + turn + 1};
            run_model(&m, turn % 2 == 0 ? HEAT_LCP : HEAT_LRU, turn >= 2);
        }
}

/* ---- single rules ---------------------------------------------------------------------------- */

static void fill(struct model *m, uint32_t layer, uint32_t first, uint32_t n)
{
    heat_advance(&m->heat, layer, 1);
    for (uint32_t i = first; i < first + n; i++) {
        heat_use(&m->heat, layer, i, 1, 0);
        const uint32_t slot = layer * 4 + i;
        victims_assign(&m->victims, slot, layer, i);
        victims_add(&m->victims, slot);
    }
    victims_refresh(&m->victims, layer);
}

static void test_floor(void **state)
{
    (void)state;
    struct model m = {0};
    assert_int_equal(heat_init(&m.heat, HEAT_LRU, 3, 4, NULL), 0);
    assert_int_equal(victims_init(&m.victims, &m.heat, 12, 2, NULL), 0);
    fill(&m, 0, 0, 2);
    fill(&m, 1, 0, 4);
    /* layer 0 is colder but has only its floor */
    assert_int_equal(victims_coldest(&m.victims, 2), 4);
    assert_int_equal(victims_coldest(&m.victims, 0), 0); /* its own layer may take it */
    for (uint32_t i = 0; i < 2; i++) {
        victims_remove(&m.victims, 4 + i);
        victims_unassign(&m.victims, 4 + i);
    }
    assert_int_equal(victims_coldest(&m.victims, 2), NO_VICTIM);
    victims_clear(&m.victims);
    heat_clear(&m.heat);
}

static void test_margin_and_fading(void **state)
{
    (void)state;
    struct model m = {0};
    assert_int_equal(heat_init(&m.heat, HEAT_LCP, 2, 4, NULL), 0);
    assert_int_equal(victims_init(&m.victims, &m.heat, 8, 1, NULL), 0);
    fill(&m, 0, 0, 2);
    fill(&m, 1, 0, 2);
    assert_int_equal(victims_coldest(&m.victims, 1), 4);
    heat_advance(&m.heat, 0, HEAT_HALF_LIFE);
    victims_refresh(&m.victims, 0);
    assert_int_equal(victims_coldest(&m.victims, 1), 4); /* half as hot is within the margin */
    heat_advance(&m.heat, 0, 1);
    victims_refresh(&m.victims, 0);
    assert_int_equal(victims_coldest(&m.victims, 1), 0);
    heat_advance(&m.heat, 0, HEAT_FADE - HEAT_HALF_LIFE - 1);
    heat_use(&m.heat, 0, 2, 3, 0);
    heat_advance(&m.heat, 0, 2 * HEAT_FADE);
    heat_use(&m.heat, 0, 2, 1, 0);
    assert_true(m.heat.counts[2] == 1.75f); /* 3/4 and 1 */
    victims_clear(&m.victims);
    heat_clear(&m.heat);
}

/* Equally hot experts are evicted in their own order, in whatever order they arrived. */
static void test_ties(void **state)
{
    (void)state;
    for (uint32_t step = 1; step < 13; step += 2) {
        struct model m = {0};
        assert_int_equal(heat_init(&m.heat, HEAT_LCP, 1, 16, NULL), 0);
        assert_int_equal(victims_init(&m.victims, &m.heat, 16, 0, NULL), 0);
        heat_advance(&m.heat, 0, 1);
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t expert = (i * step + 5) % 16;
            heat_use(&m.heat, 0, expert, 1, 0);
            victims_assign(&m.victims, i, 0, expert);
            victims_add(&m.victims, i);
        }
        for (uint32_t expert = 0; expert < 16; expert++) {
            const uint32_t slot = victims_coldest(&m.victims, 0);
            assert_int_equal(m.victims.slots[slot].expert, expert);
            victims_remove(&m.victims, slot);
            victims_unassign(&m.victims, slot);
        }
        assert_int_equal(victims_coldest(&m.victims, 0), NO_VICTIM);
        victims_clear(&m.victims);
        heat_clear(&m.heat);
    }
}

/* Restored experts that were not used since are in the order too. */
static void test_restored(void **state)
{
    (void)state;
    static const uint32_t idles[4] = {30, 10, 40, 20};
    for (enum heat_policy policy = 0; policy < N_HEAT_POLICIES; policy++) {
        struct model m = {0};
        assert_int_equal(heat_init(&m.heat, policy, 1, 4, NULL), 0);
        assert_int_equal(victims_init(&m.victims, &m.heat, 4, 0, NULL), 0);
        for (uint32_t i = 0; i < 4; i++) {
            heat_restore(&m.heat, 0, i, 3, idles[i]);
            victims_assign(&m.victims, i, 0, i);
            victims_add(&m.victims, i);
        }
        assert_int_equal(victims_coldest(&m.victims, 0), 2);
        victims_remove(&m.victims, 2);
        assert_int_equal(victims_coldest(&m.victims, 0), 0);
        heat_advance(&m.heat, 0, 1);
        heat_use(&m.heat, 0, 2, 1, 0);
        victims_add(&m.victims, 2);
        victims_remove(&m.victims, 0);
        assert_int_equal(victims_coldest(&m.victims, 0), 3);
        victims_clear(&m.victims);
        heat_clear(&m.heat);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_margin_and_fading),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_restored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
