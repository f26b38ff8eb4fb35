/* Stop strings: compares the first match with a search of the whole text, for all ways of cutting
 * it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/limits.h"
#include "base/mem.h"
#include "chat/stop_match.h"

struct result {
    char shown[512];
    size_t n;
    int found;
    size_t max_kept;
};

static void show(struct result *r, const char *text, size_t n)
{
    assert_true(r->n + n <= sizeof r->shown);
    memcpy(r->shown + r->n, text, n);
    r->n += n;
}

/* Pushes pieces of 1 to `longest` bytes. */
static void run(struct result *r, const char *const *strings, size_t n_strings, const char *text,
                size_t bytes, uint32_t seed, size_t longest)
{
    struct stop_match *s;
    const char *shown;
    size_t n;
    *r = (struct result){.found = -1};
    assert_int_equal(stop_match_open(strings, n_strings, &s, NULL), 0);
    for (size_t at = 0; at < bytes;) {
        seed = seed * 1664525u + 1013904223u;
        size_t piece = 1 + (seed >> 16) % longest;
        piece = piece < bytes - at ? piece : bytes - at;
        assert_int_equal(stop_match_push(s, text + at, piece, &shown, &n, &r->found, NULL), 0);
        show(r, shown, n);
        at += piece;
        if (r->found < 0 && at - r->n > r->max_kept)
            r->max_kept = at - r->n;
    }
    stop_match_finish(s, &shown, &n);
    show(r, shown, n);
    stop_match_finish(s, &shown, &n);
    assert_int_equal(n, 0);
    stop_match_close(s);
}

/* Finds the string that ends first, the longest of those, and where it begins. */
static int search(const char *const *strings, size_t n_strings, const char *text, size_t bytes,
                  size_t *begin)
{
    for (size_t end = 1; end <= bytes; end++) {
        int found = -1;
        for (size_t i = 0; i < n_strings; i++) {
            const size_t n = strlen(strings[i]);
            if (n <= end && memcmp(text + end - n, strings[i], n) == 0 &&
                (found < 0 || n > strlen(strings[found])))
                found = (int)i;
        }
        if (found >= 0) {
            *begin = end - strlen(strings[found]);
            return found;
        }
    }
    *begin = bytes;
    return -1;
}

static void check(const char *const *strings, size_t n_strings, const char *text, size_t bytes)
{
    size_t begin;
    const int want = search(strings, n_strings, text, bytes, &begin);
    struct result r;
    for (uint32_t seed = 0; seed < 12; seed++) {
        run(&r, strings, n_strings, text, bytes, seed, seed == 0 ? bytes + 1 : seed);
        assert_int_equal(r.found, want);
        assert_int_equal(r.n, begin);
        assert_memory_equal(r.shown, text, begin);
    }
}

static void test_examples(void **state)
{
    (void)state;
    static const char *const one[] = {"\n\nUser:"}, *const two[] = {"b", "abc"};
    static const char *const nested[] = {"bc", "abc", "abcd"};
    check(one, 1, "Hi.\n\n\nUser: me", 15);
    check(one, 1, "Hi.\n\nUser", 9);
    check(two, 2, "xabc", 4);
    check(nested, 3, "xabcd", 5);
    check(one, 0, "abc", 3);
    struct result r;
    run(&r, nested, 3, "xabcd", 5, 1, 1);
    assert_int_equal(r.found, 1);
}

static void test_only_a_beginning_is_kept(void **state)
{
    (void)state;
    static const char *const strings[] = {"aab", "ba"};
    const char *shown;
    size_t n;
    int found;
    struct stop_match *s;
    assert_int_equal(stop_match_open(strings, 2, &s, NULL), 0);
    static const char *const pushed[] = {"x", "a", "a", "a", "c", "b", "b"};
    static const size_t n_shown[] = {1, 0, 0, 1, 3, 0, 1};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(stop_match_push(s, pushed[i], 1, &shown, &n, &found, NULL), 0);
        assert_int_equal(n, n_shown[i]);
        assert_int_equal(found, -1);
    }
    stop_match_close(s);
}

static void test_random_texts(void **state)
{
    (void)state;
    uint32_t seed = 5;
    unsigned n_found = 0;
    for (unsigned round = 0; round < 4000; round++) {
        char texts[4][8], text[128];
        const char *strings[4];
        size_t n_strings = 1 + (seed >> 20) % 4;
        for (size_t i = 0; i < n_strings; i++) {
            seed = seed * 1664525u + 1013904223u;
            const size_t n = 1 + (seed >> 24) % 6;
            for (size_t k = 0; k < n; k++)
                texts[i][k] = "ab"[(seed >> (8 + k)) & 1];
            texts[i][n] = '\0';
            strings[i] = texts[i];
        }
        seed = seed * 1664525u + 1013904223u;
        const size_t bytes = (seed >> 16) % sizeof text;
        for (size_t k = 0; k < bytes; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[k] = "abbac"[(seed >> 20) % 5];
        }
        check(strings, n_strings, text, bytes);
        size_t begin;
        n_found += search(strings, n_strings, text, bytes, &begin) >= 0;
    }
    assert_true(n_found > 1000 && n_found < 3900);
}

static void test_refused(void **state)
{
    (void)state;
    static char longest[LIMIT_STOP_STRING_BYTES + 2];
    const char *strings[LIMIT_STOP_STRINGS + 1];
    struct stop_match *s;
    for (size_t i = 0; i <= LIMIT_STOP_STRINGS; i++)
        strings[i] = "x";
    assert_int_equal(stop_match_open(strings, LIMIT_STOP_STRINGS + 1, &s, NULL), FM_ERR_ARG);
    strings[1] = "";
    assert_int_equal(stop_match_open(strings, 2, &s, NULL), FM_ERR_ARG);
    assert_null(s);
    memset(longest, 'x', LIMIT_STOP_STRING_BYTES + 1);
    strings[0] = longest;
    assert_int_equal(stop_match_open(strings, 1, &s, NULL), FM_ERR_ARG);
    longest[LIMIT_STOP_STRING_BYTES] = '\0';
    assert_int_equal(stop_match_open(strings, 1, &s, NULL), 0);
    stop_match_close(s);
    int rc = FM_ERR_NOMEM;
    for (long nth = 1; rc != 0; nth++) {
        const char *shown;
        size_t n;
        int found;
        mem_fail_at(nth);
        rc = stop_match_open(strings, 1, &s, NULL);
        if (rc == 0)
            rc = stop_match_push(s, "x", 1, &shown, &n, &found, NULL);
        mem_fail_at(0);
        assert_true(rc == 0 || rc == FM_ERR_NOMEM);
        stop_match_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_only_a_beginning_is_kept),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
