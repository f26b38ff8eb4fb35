/* The order in which prompts are read, and how many of their tokens a pass gets. */
#include "server/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MS 1000000u

static size_t sum_of_prompts(const struct schedule_entry *e, size_t n)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += schedule_is_single(&e[i]) ? 0 : e[i].n_piece;
    return sum;
}

/* ---- one pass -------------------------------------------------------------------------------- */

static void test_answers_always(void **state)
{
    (void)state;
    struct schedule_entry e[] = {{.n_left = 0, .order = 0}, {.n_left = 500, .due = 500, .order = 1},
                                 {.n_left = 1, .due = 9, .order = 2}};
    schedule_pass(e, 3, 32);
    assert_int_equal(e[0].n_piece, 1);
    assert_int_equal(e[1].n_piece, 32);
    assert_int_equal(e[2].n_piece, 1); /* the last token of a prompt */
    schedule_pass(e, 3, 0);
    assert_int_equal(e[1].n_piece, 1); /* a prompt always goes on */
}

static void test_last_token_alone(void **state)
{
    (void)state;
    struct schedule_entry e[] = {{.n_left = 330}};
    schedule_pass(e, 1, 512);
    assert_int_equal(e[0].n_piece, 329);
}

static void test_one_after_the_other(void **state)
{
    (void)state;
    struct schedule_entry e[] = {{.n_left = 330, .due = 330, .order = 2},
                                 {.n_left = 330, .due = 330, .order = 1},
                                 {.n_left = 330, .due = 330, .order = 0}};
    schedule_pass(e, 3, 512);
    assert_int_equal(e[2].n_piece, 329);
    assert_int_equal(e[1].n_piece, 512 - 329);
    assert_int_equal(e[0].n_piece, 0);
}

static void test_stops(void **state)
{
    (void)state;
    struct schedule_entry e[] = {{.n_left = 330, .n_stop = 100, .due = 330},
                                 {.n_left = 330, .due = 331, .order = 1},
                                 {.n_left = 2, .n_stop = 5, .due = 332, .order = 2}};
    schedule_pass(e, 3, 512);
    assert_int_equal(e[0].n_piece, 100);
    assert_int_equal(e[1].n_piece, 329);
    assert_int_equal(e[2].n_piece, 1);
}

/* ---- many passes ----------------------------------------------------------------------------- */

struct user {
    uint64_t comes; /* pass in which the prompt comes */
    size_t n_prompt;
    struct schedule_entry entry;
    uint64_t first; /* pass that gave its first token; 0: none yet */
};

/* Runs passes until all have answered. No pass with answers has more than n_mixed prompt tokens,
 * and each answer gets a token in every pass. Returns the number of passes. */
static uint64_t run(struct user *users, size_t n, size_t n_chunk, size_t n_mixed)
{
    uint64_t pass = 0, n_read = 0;
    size_t n_first = 0;
    for (size_t i = 0; i < n; i++)
        users[i].entry = (struct schedule_entry){0};
    while (n_first < n) {
        struct schedule_entry e[8];
        struct user *of[8];
        size_t n_here = 0;
        bool is_mixed = false;
        pass++;
        for (size_t i = 0; i < n; i++) {
            struct user *u = &users[i];
            if (u->comes == pass)
                u->entry = (struct schedule_entry){.n_left = u->n_prompt,
                                                   .due = n_read + u->n_prompt, .order = i};
            if (u->comes > pass)
                continue;
            is_mixed |= schedule_is_single(&u->entry);
            of[n_here] = u;
            e[n_here++] = u->entry;
        }
        schedule_pass(e, n_here, is_mixed ? n_mixed : n_chunk);
        assert_true(sum_of_prompts(e, n_here) <= (is_mixed ? n_mixed : n_chunk));
        for (size_t i = 0; i < n_here; i++) {
            struct user *u = of[i];
            if (schedule_is_single(&u->entry))
                assert_int_equal(e[i].n_piece, 1);
            if (u->entry.n_left == 0)
                continue;
            assert_true(e[i].n_piece <= u->entry.n_left);
            u->entry.n_left -= e[i].n_piece;
            n_read += e[i].n_piece;
            if (u->entry.n_left == 0) {
                u->first = pass;
                n_first++;
            }
        }
    }
    return pass;
}

static void test_first_tokens_in_order(void **state)
{
    (void)state;
    struct user users[8];
    for (size_t i = 0; i < 8; i++)
        users[i] = (struct user){.comes = 1, .n_prompt = 330};
    const uint64_t n = run(users, 8, 512, 64);
    assert_int_equal(users[0].first, 2);
    for (size_t i = 1; i < 8; i++)
        assert_true(users[i].first > users[i - 1].first);
    assert_true(n <= 1 + (8 * 330 - 512 + 63) / 64 + 2);
}

/* A short prompt does not wait for the whole of a long one, and a long one is not put off by ever
 * more short ones. */
static void test_long_and_short(void **state)
{
    (void)state;
    struct user users[8] = {{.comes = 1, .n_prompt = 3000}, {.comes = 2, .n_prompt = 100}};
    for (size_t i = 2; i < 8; i++)
        users[i] = (struct user){.comes = 3 + 8 * (i - 2), .n_prompt = 500};
    (void)run(users, 8, 64, 64);
    assert_true(users[1].first < 6);
    assert_true(users[0].first <= 2 * 3000 / 64 + 8);
    users[1].n_prompt = 4000;
    (void)run(users, 2, 64, 64);
    assert_true(users[0].first < users[1].first);
}

/* ---- the pace -------------------------------------------------------------------------------- */

/* Runs passes that take `fixed` and `each` for every prompt token; every seventh one has the end of
 * a prompt. Returns the longest time of the last half. */
static uint64_t settle(struct pace *p, uint64_t fixed, uint64_t each)
{
    uint64_t max = 0;
    for (unsigned i = 0; i < 60; i++) {
        const size_t n = i % 7 == 6 ? p->n_tokens / 3 + 1 : p->n_tokens;
        const uint64_t took = fixed + each * n;
        max = i >= 30 && took > max ? took : max;
        pace_note(p, n, true, took);
        pace_note(p, 0, true, fixed / 2); /* answers alone */
    }
    return max;
}

static void test_pace_follows_speed(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, 200 * MS, 512);
    assert_int_equal(p.n_tokens, PACE_MIN);
    assert_true(settle(&p, 40 * MS, 2 * MS) <= 200 * MS);
    assert_in_range(p.n_tokens, 60, 70); /* (175 - 40) / 2 */
    assert_true(settle(&p, 80 * MS, 4 * MS) <= 200 * MS); /* the machine has other work now */
    assert_in_range(p.n_tokens, 20, 25);
    assert_true(settle(&p, 10 * MS, MS / 10) <= 200 * MS);
    assert_int_equal(p.n_tokens, 512);
    pace_init(&p, 200 * MS, 4);
    assert_int_equal(p.n_tokens, 4);
}

/* If any number takes longer than the limit, the prompt still goes on, and answers wait for half as
 * long again at most. */
static void test_pace_in_vain(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, 200 * MS, 512);
    assert_in_range(settle(&p, 500 * MS, 2 * MS), 700 * MS, 760 * MS);
    assert_in_range(p.n_tokens, 110, 130);
}

static void test_pace_learns_from_prompts(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, 200 * MS, 512);
    pace_note(&p, 512, false, 1024 * MS); /* 2 ms for a token */
    assert_in_range(p.n_tokens, 43, 44);
    (void)settle(&p, 40 * MS, 2 * MS);
    const size_t n = p.n_tokens;
    pace_note(&p, 512, false, 512 * MS); /* what was measured with answers counts more */
    assert_int_equal(p.n_tokens, n);
}

/* One slow pass changes little. */
static void test_pace_is_steady(void **state)
{
    (void)state;
    struct pace p;
    pace_init(&p, 200 * MS, 512);
    (void)settle(&p, 40 * MS, 2 * MS);
    const size_t n = p.n_tokens;
    pace_note(&p, n, true, 1000 * MS);
    assert_in_range(p.n_tokens, n / 2, 2 * n);
    assert_true(settle(&p, 40 * MS, 2 * MS) <= 200 * MS);
    assert_in_range(p.n_tokens, n - 4, n + 4);
}

/* ---- answers between the layers of a prompt -------------------------------------------------- */

/* Runs pieces of 12 layers that take `layer` each, with passes of answers that take `answers`.
 * Returns the longest time from the end of one such pass to the end of the next, of the last half,
 * and how many there were. */
static uint64_t take_turns(struct turns *t, uint64_t layer, uint64_t answers, unsigned *n)
{
    uint64_t now = 1000 * MS, max = 0;
    *n = 0;
    for (unsigned i = 0; i < 20; i++) {
        turns_begin(t);
        for (unsigned l = 0; l < 12; l++, now += layer) {
            if (!turns_look(t, now))
                continue;
            const uint64_t since = t->answered_ns;
            turns_note(t, now, now + answers);
            now += answers;
            max = i >= 10 && now - since > max ? now - since : max;
            ++*n;
        }
    }
    return max;
}

static void test_turns(void **state)
{
    (void)state;
    unsigned n;
    struct turns t = {.limit_ns = 200 * MS};
    assert_true(take_turns(&t, 30 * MS, 50 * MS, &n) <= 200 * MS);
    assert_in_range(n, 60, 100); /* of 240 layers: after three or four, and before each piece */
    t = (struct turns){.limit_ns = 200 * MS};
    assert_int_equal(take_turns(&t, MS, 10 * MS, &n), 22 * MS); /* before each piece */
    assert_int_equal(n, 20);
    t = (struct turns){.limit_ns = 200 * MS};
    assert_int_equal(take_turns(&t, 300 * MS, 50 * MS, &n), 350 * MS); /* each layer is too long */
    assert_int_equal(n, 240);
}

/* A layer may take what the answers leave of the limit, but never nothing. */
static void test_layer_max(void **state)
{
    (void)state;
    struct turns t = {.limit_ns = 200 * MS};
    assert_int_equal(turns_layer_max_ns(&t), 175 * MS);
    turns_note(&t, 0, 80 * MS);
    assert_int_equal(turns_layer_max_ns(&t), 95 * MS);
    turns_note(&t, 0, 500 * MS);
    assert_int_equal(turns_layer_max_ns(&t), 50 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_always),
        cmocka_unit_test(test_last_token_alone),
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_first_tokens_in_order),
        cmocka_unit_test(test_long_and_short),
        cmocka_unit_test(test_pace_follows_speed),
        cmocka_unit_test(test_pace_in_vain),
        cmocka_unit_test(test_pace_learns_from_prompts),
        cmocka_unit_test(test_pace_is_steady),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_layer_max),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
