/* Breaks lines between words: known cases, however they are cut into pieces, and what holds for any
 * text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/splitmix.h"
#include "apps/cli/width.h"
#include "apps/cli/wrap.h"

#define TEXT_BYTES 4096

/* Pushes pieces of n bytes after a first one of `first`; characters stay whole. */
static size_t wrap(const char *text, size_t bytes, unsigned columns, size_t first, size_t n,
                   char *out)
{
    struct wrap w = {0};
    size_t used = 0;
    wrap_set_columns(&w, columns);
    for (size_t at = 0; at < bytes;) {
        size_t piece = at == 0 && first > 0 ? first : n;
        piece = piece < bytes - at ? piece : bytes - at;
        while (at + piece < bytes && ((unsigned char)text[at + piece] & 0xc0) == 0x80)
            piece++;
        used += wrap_text(&w, text + at, piece, out + used);
        at += piece;
    }
    used += wrap_flush(&w, out + used);
    out[used] = '\0';
    return used;
}

static const struct {
    unsigned columns;
    const char *text, *shown;
} cases[] = {
    {20, "The quick brown fox jumps over the lazy dog.",
     "The quick brown fox\njumps over the lazy\ndog."},
    {20, "aaaaaaaaaa bbbbbbbbb c", "aaaaaaaaaa bbbbbbbbb\nc"},      /* 20 columns fit */
    {20, "aaaaaaaaaa bbbbbbbbbb c", "aaaaaaaaaa\nbbbbbbbbbb c"},    /* 21 do not */
    {20, "aaaaaaaaaa bbbbbbbbb\nc", "aaaaaaaaaa bbbbbbbbb\nc"},     /* no empty line */
    {20, "one\n\n  two\n", "one\n\n  two\n"},
    {20, "a https://example.org/a/long/path b",
     "a\nhttps://example.org/a/long/path b"},                       /* the terminal breaks it */
    {20, "https://example.org/a/long/path/to/it and more",
     "https://example.org/a/long/path/to/it\nand more"},
    {20, "words and        blanks   at the edge", "words and\nblanks   at the edge"},
    {20, "aaaaaaaaaaaaaaaaaaaa b", "aaaaaaaaaaaaaaaaaaaa\nb"},
    {20, "aaaaaaaaaaaaaaaaaaaa  ", "aaaaaaaaaaaaaaaaaaaa"},
    {20, "name\tvalue\tmore\tx", "name\tvalue\tmore\nx"},
    {20, "\tindented by a tab and more", "\tindented by\na tab and more"},
    /* Ten characters of two columns. */
    {20, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe7\xab\xa0\xe3\x81\xaf\xe7"
         "\xa9\xba\xe7\x99\xbd\xe3\x81\x8c\xe3\x81\xaa\xe3\x81\x84",
     "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x81\xae\xe6\x96\x87\xe7\xab\xa0\xe3\x81\xaf\xe7\xa9"
     "\xba\xe7\x99\xbd\xe3\x81\x8c\n\xe3\x81\xaa\xe3\x81\x84"},
    /* No line begins with an ideographic full stop. */
    {10, "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe6\x96\x87\xe7\xab\xa0\xe3\x80\x82\xe6\x97\xa5",
     "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe6\x96\x87\n\xe7\xab\xa0\xe3\x80\x82\xe6\x97\xa5"},
    /* Combining marks take no column: e with an acute accent, ten times. */
    {10, "e\xcc\x81" "e\xcc\x81" "e\xcc\x81" "e\xcc\x81" "e\xcc\x81 " "e\xcc\x81" "e\xcc\x81"
         "e\xcc\x81" "e\xcc\x81 x",
     "e\xcc\x81" "e\xcc\x81" "e\xcc\x81" "e\xcc\x81" "e\xcc\x81 " "e\xcc\x81" "e\xcc\x81"
     "e\xcc\x81" "e\xcc\x81\nx"},
    /* An emoji of several characters stays whole. */
    {10, "aaaa \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb b",
     "aaaa \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb\nb"},
    {10, "aaaaaaa \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb b",
     "aaaaaaa\n\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb b"},
    {10, "aaaaaaaa \xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd b",
     "aaaaaaaa\n\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd b"},
    /* A no-break space is part of a word. */
    {10, "aaaaaa 10\xc2\xa0km b", "aaaaaa\n10\xc2\xa0km b"},
    /* Code is left alone. */
    {20, "text that is longer than a line\n```c\nint main(void) { return 0; } /* more */\n```\n"
         "text that is longer than a line",
     "text that is longer\nthan a line\n```c\nint main(void) { return 0; } /* more */\n```\n"
     "text that is longer\nthan a line"},
    {20, "~~~\nlines of code that ``` may have\n~~~ \nwords after the code end here",
     "~~~\nlines of code that ``` may have\n~~~ \nwords after the code\nend here"},
    {20, "```not code``` because it is in a line\nwords that are wrapped again",
     "```not code```\nbecause it is in a\nline\nwords that are\nwrapped again"},
    {20, "a ``` within the line\nwords that are wrapped again",
     "a ``` within the\nline\nwords that are\nwrapped again"},
    {5, "a narrow terminal is left alone", "a narrow terminal is left alone"},
    {0, "an unknown width is left alone", "an unknown width is left alone"},
    {20, "", ""},
};
#define N_CASES (sizeof cases / sizeof cases[0])

static void test_cases(void **state)
{
    (void)state;
    char out[TEXT_BYTES];
    for (size_t i = 0; i < N_CASES; i++) {
        const size_t n = strlen(cases[i].text);
        for (size_t first = 0; first <= n; first++) {
            (void)wrap(cases[i].text, n, cases[i].columns, first, n + 1, out);
            assert_string_equal(out, cases[i].shown);
        }
        (void)wrap(cases[i].text, n, cases[i].columns, 1, 1, out);
        assert_string_equal(out, cases[i].shown);
    }
}

/* A word that begins far from the edge is written as it comes; one near it when it is complete. */
static void test_held(void **state)
{
    (void)state;
    struct wrap w = {0};
    char out[WRAP_BYTES(64)];
    wrap_set_columns(&w, 40);
    assert_int_equal(wrap_text(&w, "ab", 2, out), 2);
    assert_int_equal(wrap_text(&w, " cd", 3, out), 3);
    assert_int_equal(wrap_text(&w, " efg", 4, out), 4);
    assert_int_equal(wrap_text(&w, " hij", 4, out), 0); /* 29 columns are left after the blank */
    assert_int_equal(wrap_text(&w, " ", 1, out), 4);
    assert_int_equal(wrap_text(&w, "klm", 3, out), 0);
    assert_int_equal(wrap_flush(&w, out), 4);
}

/* The width may change between two pieces. */
static void test_resized(void **state)
{
    (void)state;
    struct wrap w = {0};
    char out[2 * WRAP_BYTES(64)];
    wrap_set_columns(&w, 80);
    size_t n = wrap_text(&w, "The quick brown fox jumps", 25, out);
    wrap_set_columns(&w, 20); /* the cursor is now behind "jumps", in the second line */
    n += wrap_text(&w, " over the lazy dog.", 19, out + n);
    n += wrap_flush(&w, out + n);
    out[n] = '\0';
    assert_string_equal(out, "The quick brown fox jumps over the lazy\ndog.");
}

/* ---- any text --------------------------------------------------------------------------- */

static const char *const pieces[] = {
    "a", "word", "longer-word", "https://example.org/x", " ", "  ", "\t", "\n", "\n\n", "```",
    "~~~",
    "\xe6\x97\xa5", "\xe3\x80\x82", "\xe3\x80\x8c", "\xcc\x81", "\xf0\x9f\x98\x80", "\xe2\x80\x8d",
    "\xef\xb8\x8f", "\xe2\x9d\xa4", "\xf0\x9f\x87\xa9", "\xed\x95\x9c", "\xe3\x80\x80", ",", "(",
    "\xe2\x80\x8b", "\xc2\xa0", "`",
};

static bool is_gap(const char *s, size_t *n)
{
    static const char *const gaps[] = {" ", "\t", "\n", "\xe3\x80\x80", "\xe2\x80\x8b"};
    for (size_t i = 0; i < sizeof gaps / sizeof gaps[0]; i++) {
        *n = strlen(gaps[i]);
        if (strncmp(s, gaps[i], *n) == 0)
            return true;
    }
    return false;
}

/* Compares two texts without their blanks and newlines. */
static bool has_same_letters(const char *a, const char *b)
{
    size_t n;
    for (;; a++, b++) {
        while (is_gap(a, &n))
            a += n;
        while (is_gap(b, &n))
            b += n;
        if (*a != *b || *a == '\0')
            return *a == *b;
    }
}

static void test_any_text(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint64_t random = splitmix_mix(seed + 1);
        char text[TEXT_BYTES] = "", whole[2 * TEXT_BYTES], cut[2 * TEXT_BYTES];
        size_t n = 0;
        const unsigned columns = 10 + (unsigned)(random % 90), n_pieces = 1 + (random >> 8) % 120;
        for (unsigned i = 0; i < n_pieces; i++) {
            random = splitmix_mix(random + 1);
            const char *piece = pieces[random % (sizeof pieces / sizeof pieces[0])];
            n += (size_t)snprintf(text + n, sizeof text - n, "%s", piece);
        }
        const size_t bytes = wrap(text, n, columns, 0, n, whole);
        assert_true(bytes <= 2 * n + 1);
        assert_true(has_same_letters(text, whole));
        (void)wrap(text, n, columns, random % n + 1, 1 + random % 7, cut);
        assert_string_equal(cut, whole); /* pieces change nothing */
        size_t n_in = 0, n_out = 0; /* newlines are only added */
        for (size_t i = 0; i < n; i++)
            n_in += text[i] == '\n';
        for (size_t i = 0; i < bytes; i++)
            n_out += whole[i] == '\n';
        assert_true(n_out >= n_in);
    }
}

/* Marks without end do not overflow the held word. */
static void test_many_marks(void **state)
{
    (void)state;
    char text[TEXT_BYTES], out[2 * TEXT_BYTES];
    size_t n = (size_t)snprintf(text, sizeof text, "aaaaaaaaaaaaaaaa b");
    while (n + 3 < sizeof text)
        n += (size_t)snprintf(text + n, sizeof text - n, "\xcc\x81");
    assert_int_equal(wrap(text, n, 20, 0, 7, out), n);
    assert_string_equal(out, text);
    memset(text, ' ', sizeof text - 1);
    memcpy(text, "word", 4);
    text[sizeof text - 1] = '\0';
    (void)wrap(text, strlen(text), 500, 0, 7, out);
    assert_true(has_same_letters(text, out));
    assert_true(strlen(out) <= 500);
}

static void test_widths(void **state)
{
    (void)state;
    static const struct {
        uint32_t c;
        unsigned width;
    } known[] = {{'a', 1}, {0, 0}, {0x1b, 0}, {0x7f, 0}, {0x9b, 0}, {0xe9, 1}, {0x301, 0},
                 {0x4e00, 2}, {0xac00, 2}, {0x1f600, 2}, {0x200d, 0}, {0xfe0f, 0}, {0xff01, 2},
                 {0x20ac, 1}, {0x10ffff, 1}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_int_equal(width_of(known[i].c), known[i].width);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),      cmocka_unit_test(test_held),
        cmocka_unit_test(test_resized),    cmocka_unit_test(test_any_text),
        cmocka_unit_test(test_many_marks), cmocka_unit_test(test_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
