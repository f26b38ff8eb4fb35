#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/text_json.h"

static const char *const path[] = {"a", "b", "c"};

/* Follows the path with jansson. */
static const json_t *follow(const json_t *value)
{
    for (size_t i = 0; i < 3; i++)
        value = json_object_get(value, path[i]);
    return json_is_object(value) ? value : NULL;
}

/* Compares both results; returns whether there was something to find. */
static bool check_find(const char *text, size_t n)
{
    json_t *whole = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    const json_t *wanted = follow(whole);
    size_t begin, end;
    bool is_found = json_find_object(text, n, path, 3, &begin, &end);
    if (whole == NULL) { /* invalid JSON or unpaired surrogates: any result */
        assert_true(!is_found || end <= n);
        return false;
    }
    assert_int_equal(is_found, wanted != NULL);
    if (is_found) {
        json_t *part = json_loadb(text + begin, end - begin, JSON_ALLOW_NUL, NULL);
        assert_true(json_equal(part, wanted));
        json_decref(part);
    }
    is_found = wanted != NULL;
    json_decref(whole);
    return is_found;
}

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* Returns a random value whose names are mostly those of the path, often duplicated. */
static void add_value(struct text_buffer *out, uint64_t *state, unsigned depth)
{
    static const char *const names[] = {"a", "b", "c", "\\u0061", "\\u0062", "", "ab", "\\\"a",
                                        "\xc3\xa9", "c\\u0063", "b", "c", "a", "b", "c",
                                        "a name of more than thirty-two bytes, all of them"};
    static const char *const scalars[] = {"1", "-2.5e3", "null", "true", "\"a\"", "\"{\\\"b\"",
                                          "\"\\ud83d\\ude00\"", "[]", "{}", "\"\""};
    const uint32_t kind = draw(state, 10);
    if (depth == 0 || kind < 2) {
        assert_true(text_add_string(out, scalars[draw(state, 10)]));
        return;
    }
    const bool is_object = kind < 9;
    const uint32_t n = draw(state, 5);
    assert_true(text_add_string(out, is_object ? "{" : "[ "));
    for (uint32_t i = 0; i < n; i++) {
        assert_true(text_add_string(out, i > 0 ? "," : " "));
        if (is_object)
            assert_true(text_add_format(out, "\"%s\" :\n", names[draw(state, 16)]));
        add_value(out, state, depth - 1);
    }
    assert_true(text_add_string(out, is_object ? "}" : "]"));
}

static void test_find(void **state)
{
    (void)state;
    uint64_t random = 1;
    size_t n_found = 0;
    for (int i = 0; i < 20000; i++) {
        struct text_buffer text = {0};
        const bool is_led = i % 2 == 0;
        assert_true(text_add_string(&text, is_led ? "{\"a\":{\"b\":{\"c\":{}},\"b\":" : ""));
        add_value(&text, &random, 5);
        assert_true(text_add_string(&text, is_led ? "}}" : ""));
        /* Copies to the exact size, so that reading too far is detected. */
        char *copy = malloc(text.n);
        memcpy(copy, text_buffer_text(&text), text.n);
        n_found += check_find(copy, text.n);
        copy[draw(&random, (uint32_t)text.n)] = "{}[],:\"\\a0"[draw(&random, 10)];
        (void)check_find(copy, text.n);
        (void)check_find(copy, draw(&random, (uint32_t)text.n));
        free(copy);
        text_buffer_clear(&text);
    }
    assert_true(n_found > 500);
}

static void test_read(void **state)
{
    (void)state;
    static const char *const good[][2] = {
        {"{\"a\": 9223372036854775807}", "{\"a\": 9223372036854775807}"},
        {"{\"a\": 9223372036854775808, \"99999999999999999999\": -1}",
         "{\"a\": 9223372036854775808.0, \"99999999999999999999\": -1}"},
        {"[-99999999999999999999,1e3,12345678901234567890]",
         "[-1e20, 1000.0, 12345678901234567890.0]"},
        /* Invalid characters are replaced: in values, in names, repeatedly, at the end. */
        {"[\"a\\u0000b\"]", "[\"a\xef\xbf\xbd" "b\"]"},
        {"{\"\\u0000\": \"\\ud800\"}", "{\"\xef\xbf\xbd\": \"\xef\xbf\xbd\"}"},
        {"[\"\\uDFFF\\uD83D\\uDE00\\uD83D\"]",
         "[\"\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd\"]"},
        {"[\"\\ud83d\\ud83d\\ude00\"]", "[\"\xef\xbf\xbd\xf0\x9f\x98\x80\"]"},
        {"[\"\\ud83d\\n\\ude00\"]", "[\"\xef\xbf\xbd\\n\xef\xbf\xbd\"]"},
        {"[\"\\\\u0000\", \"\\\\\\u0000\"]", "[\"\\\\u0000\", \"\\\\\xef\xbf\xbd\"]"},
        {"[\"\xff\\u0000\xed\xa0\x80\", 99999999999999999999]",
         "[\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\", 1e20]"},
    };
    static const char *const bad[] = {"[1e999]", "[99999999999999999999", "", "{\"a\": 01}",
                                      "[99999999999999999999, 1e999]", "[\"\\u000", "[\"\\u00g0\"]",
                                      "\xff\xfe", "[\"\\ud800", "\\u0000"};
    json_error_t why;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        json_t *found = json_read(good[i][0], strlen(good[i][0]), &why);
        json_t *wanted = json_loads(good[i][1], 0, NULL);
        assert_true(json_equal(found, wanted));
        json_decref(found);
        json_decref(wanted);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_null(json_read(bad[i], strlen(bad[i]), &why));
        assert_true(why.text[0] != '\0');
    }
}

/* Returns `n` nested arrays. */
static char *nested(size_t n)
{
    char *text = malloc(2 * n + 1);
    assert_non_null(text);
    memset(text, '[', n);
    memset(text + n, ']', n);
    text[2 * n] = '\0';
    return text;
}

static void test_depth(void **state)
{
    (void)state;
    static const size_t depths[] = {1, 127, 128, 129, 255, JSON_READ_DEPTH, JSON_READ_DEPTH + 1,
                                    2048, 3000, 1000000};
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        char *text = nested(depths[i]);
        json_error_t why = {.text = ""};
        json_t *value = json_read(text, strlen(text), &why);
        assert_int_equal(value != NULL, depths[i] <= JSON_READ_DEPTH);
        if (value != NULL) { /* what can be read can be written */
            struct text_buffer again = {0};
            assert_true(text_add_json(&again, value) && text_buffer_add(&again, "", 1));
            assert_string_equal(text_buffer_text(&again), text);
            text_buffer_clear(&again);
        } else {
            assert_non_null(strstr(why.text, "more than 256"));
            assert_int_equal(why.column, JSON_READ_DEPTH + 1);
        }
        json_decref(value);
        free(text);
    }
    /* Brackets in strings do not count. */
    static const char text[] = "[\"\\\"[[[[[[\", \"]]]]]\", 1.5, \"12\", -7]";
    json_t *value = json_read(text, sizeof text - 1, NULL);
    struct text_buffer again = {0};
    assert_true(text_add_json(&again, value) && text_buffer_add(&again, "", 1));
    assert_string_equal(text_buffer_text(&again), "[\"\\\"[[[[[[\",\"]]]]]\",1.5,\"12\",-7]");
    text_buffer_clear(&again);
    json_decref(value);
}

static void test_exact(void **state)
{
    (void)state;
    static const char *const numbers[] = {"0.1", "99.99", "3.14159265358979", "5e-324", "1e+21",
                                          "0.30000000000000004", "-1.7976931348623157e+308",
                                          "123456789012345678", "\"1.50\""};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct text_buffer text = {0};
        json_t *value = json_loads(numbers[i], JSON_DECODE_ANY, NULL);
        assert_true(text_add_json(&text, value) && text_buffer_add(&text, "", 1));
        json_t *again = json_loads(text_buffer_text(&text), JSON_DECODE_ANY, NULL);
        assert_true(json_equal(value, again));
        if (strstr(numbers[i], "e+21") == NULL && strstr(numbers[i], "e-") == NULL)
            assert_string_equal(text_buffer_text(&text), numbers[i]);
        json_decref(again);
        json_decref(value);
        text_buffer_clear(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
