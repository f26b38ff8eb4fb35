/* Removes control sequences from text of a model or a file, whole and cut into pieces
 * everywhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "apps/cli/foreign_text.h"

#define TEXT_BYTES 8192

static const struct {
    const char *text, *shown;
} cases[] = {
    {"plain text, \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\n\tmore", NULL},
    {"a\x1b[31mred\x1b[0m b", "ared b"},
    {"a\x1b[2J\x1b[H\x1b[?25lb", "ab"},
    {"a\x1b[38;2;1;2;3;4mb\x1b[1 qc", "abc"},
    {"a\x1b]0;title\x07" "b", "ab"},
    {"a\x1b]0;title\x1b\\b", "ab"},
    {"a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"},
    {"a\x1b]52;c;c2VjcmV0\x07" "b", "ab"},
    {"a\x1bP1$r0m\x1b\\b", "ab"},
    {"a\x1b_x\x1b\\b\x1b^y\x1b\\c\x1bXz\x1b\\d", "abcd"},
    {"a\x1b(0b\x1b" "c" "d\x1b#8e\x1b=f", "abdef"},
    {"a\x1b\x1b[31mb", "ab"},
    {"a\xc2\x9b" "31mb", "ab"},
    {"a\xc2\x9d" "0;title\xc2\x9c" "b", "ab"},
    {"a\xc2\x90x\xc2\x9c" "b\xc2\x85" "c\xc2\x80" "d", "abcd"},
    {"a\x9b" "31mb", "a\xef\xbf\xbd" "31mb"},
    {"secret\rpublic\r\n", "secretpublic\n"},
    {"a\x08\x08\x7f\x01\x0b\x0c\x0e\x0f" "b", "ab"},
    {"a\x1b]0;never ended\nb", "a\nb"},
    {"a\x1b[31\nb", "a\nb"},
    {"a\x1b]0;x\x18" "b\x1b[3\x1a" "c", "abc"},
    {"a\x1b[3\xc3\xa9", "a\xc3\xa9"},
    {"a\x1b]0;\x1b[31mb", "ab"},
    {"a\x1b[31;\x07\x08" "1mb", "ab"},
    {"\xff\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
     "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
     "\xef\xbf\xbd\xef\xbf\xbd"},
    {"", ""},
    {"\x1b", ""},
};
#define N_CASES (sizeof cases / sizeof cases[0])

/* Pushes pieces of n bytes after a first one of `first`. */
static size_t clean(const char *text, size_t bytes, size_t first, size_t n, char *out)
{
    struct foreign_text f = {0};
    size_t used = 0;
    for (size_t at = 0; at < bytes;) {
        size_t piece = at == 0 && first > 0 ? first : n;
        piece = piece < bytes - at ? piece : bytes - at;
        used += foreign_clean(&f, text + at, piece, out + used);
        at += piece;
    }
    used += foreign_finish(&f, out + used);
    out[used] = '\0';
    return used;
}

static void test_cases(void **state)
{
    (void)state;
    char out[TEXT_BYTES];
    for (size_t i = 0; i < N_CASES; i++) {
        const char *want = cases[i].shown != NULL ? cases[i].shown : cases[i].text;
        const size_t n = strlen(cases[i].text);
        for (size_t first = 0; first <= n; first++) {
            (void)clean(cases[i].text, n, first, n, out); /* cut once, anywhere */
            assert_string_equal(out, want);
        }
        (void)clean(cases[i].text, n, 1, 1, out);
        assert_string_equal(out, want);
    }
}

/* An unterminated sequence does not swallow the answer. */
static void test_a_long_one(void **state)
{
    (void)state;
    char text[3000], out[FOREIGN_BYTES(sizeof text) + 1];
    memset(text, 'x', sizeof text);
    memcpy(text, "a\x1b]0;", 5);
    const size_t n = clean(text, sizeof text, 0, 7, out);
    assert_true(n > sizeof text - 1100 && n < sizeof text - 900 && out[0] == 'a' && out[1] == 'x');
}

static void test_ends_line(void **state)
{
    (void)state;
    struct foreign_text f = {0};
    char out[FOREIGN_BYTES(16)];
    (void)foreign_clean(&f, "a\n\x1b[0m", 6, out);
    assert_true(f.ends_line);
    (void)foreign_clean(&f, "b\r", 2, out);
    assert_false(f.ends_line);
}

/* For any bytes, nothing is shown that a terminal would execute, and no more than fits. */
static void test_any_bytes(void **state)
{
    (void)state;
    static const char parts[] = "\x1b\x1b\xc2\x9b\x9d\x90[]P0;31mq\\\x07\x18\r\n\t a\xe2\x82\xac";
    uint32_t random = 1;
    for (int round = 0; round < 2000; round++) {
        char text[64], out[FOREIGN_BYTES(sizeof text) + 1], other[sizeof out];
        for (size_t i = 0; i < sizeof text; i++) {
            random = random * 1664525u + 1013904223u;
            text[i] = round % 2 == 0 ? (char)(random >> 24)
                                     : parts[(random >> 16) % (sizeof parts - 1)];
        }
        const size_t n = clean(text, sizeof text, 0, sizeof text, out);
        assert_true(n < sizeof out);
        assert_int_equal(clean(text, sizeof text, (random >> 8) % 64, 3, other), n);
        assert_memory_equal(out, other, n);
        for (size_t i = 0; i < n; i++) {
            const unsigned char c = (unsigned char)out[i];
            assert_true(c >= 0x20 || c == '\n' || c == '\t');
            assert_int_not_equal(c, 0x7f);
            assert_false(c == 0xc2 && (unsigned char)out[i + 1] < 0xa0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases), cmocka_unit_test(test_a_long_one),
        cmocka_unit_test(test_ends_line), cmocka_unit_test(test_any_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
