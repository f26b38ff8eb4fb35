#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "text/nfc.h"
#include "text/pretok.h"
#include "text/unicode.h"

static const uint8_t *u8(const char *text)
{
    return (const uint8_t *)text;
}

static void test_class_bits(void **state)
{
    (void)state;
    assert_int_equal(unicode_bits('a'), UNICODE_L | UNICODE_LOWER);
    assert_int_equal(unicode_bits('A'), UNICODE_L | UNICODE_UPPER);
    assert_int_equal(unicode_bits(0x1c5), UNICODE_L | UNICODE_UPPER); /* Dž */
    assert_int_equal(unicode_bits(0x3005), UNICODE_L | UNICODE_HAN); /* Lm */
    assert_int_equal(unicode_bits(0x3007), UNICODE_N | UNICODE_HAN);
    assert_int_equal(unicode_bits(0x2e80), UNICODE_PS | UNICODE_HAN);
    assert_int_equal(unicode_bits('+'), UNICODE_PS);
    assert_int_equal(unicode_bits(0), 0);
    assert_int_equal(unicode_bits('7'), UNICODE_N);
    assert_int_equal(unicode_bits('\n'), UNICODE_SPACE);
    assert_int_equal(unicode_bits('!'), UNICODE_PS);
    assert_int_equal(unicode_bits(0x0301), UNICODE_M | UNICODE_NFC);
    assert_int_equal(unicode_bits(0x3000), UNICODE_SPACE);
    assert_int_equal(unicode_bits(0x85), UNICODE_SPACE);
    assert_int_equal(unicode_bits(0x180e), 0); /* no longer white space */
    assert_int_equal(unicode_bits(0x4e2d), UNICODE_L | UNICODE_HAN);
    assert_int_equal(unicode_bits(0x2163), UNICODE_N);
    assert_int_equal(unicode_bits(0x10ffff), 0);
    assert_int_equal(unicode_bits(0x110000), 0);
    assert_int_equal(unicode_bits(UINT32_MAX), 0);
}

static void test_utf8_round_trip(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        uint8_t text[4];
        uint32_t got = 0, fast = 0;
        size_t used;
        const size_t n = utf8_put(c, text);
        assert_int_equal(utf8_step(text, n, &got, &used), UTF8_CHAR);
        assert_int_equal(utf8_get(text, &fast), n);
        assert_true(used == n && got == c && fast == c);
        for (size_t cut = 1; cut < n; cut++)
            assert_int_equal(utf8_step(text, cut, &got, &used), UTF8_CUT);
    }
}

/* The result must equal that of Rust's String::from_utf8_lossy. */
static void test_utf8_repair(void **state)
{
    (void)state;
    static const struct {
        const char *bad, *good;
    } cases[] = {
        {"abc", "abc"},
        {"\xff", "\uFFFD"},
        {"\x80\x80", "\uFFFD\uFFFD"},
        {"\xc0\xaf", "\uFFFD\uFFFD"},             /* overlong */
        {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},   /* surrogate */
        {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"\xe4\xbd", "\uFFFD"},                   /* cut off: one for the maximal subpart */
        {"\xf0\x9f\x98" "a", "\uFFFD" "a"},
        {"\xe4\xbd\xe4\xbd\xa0", "\uFFFD\u4F60"},
        {"a\xc3\xa9\xc3", "a\u00e9\uFFFD"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t out[64];
        const size_t bytes = strlen(cases[i].bad);
        const size_t n = utf8_repair(u8(cases[i].bad), bytes, out, NULL);
        assert_int_equal(n, strlen(cases[i].good));
        assert_memory_equal(out, cases[i].good, n);
        assert_true(n <= bytes + 2 * utf8_count_bad(u8(cases[i].bad), bytes));
    }
}

static void check_nfc(const char *text, const char *expected)
{
    struct nfc_buffer buffer = {0};
    assert_int_equal(nfc_normalize(&buffer, u8(text), strlen(text), NULL), 0);
    assert_int_equal(buffer.bytes, strlen(expected));
    assert_memory_equal(buffer.text, expected, buffer.bytes);
    nfc_clear(&buffer);
}

static void test_nfc(void **state)
{
    (void)state;
    check_nfc("", "");
    check_nfc("plain text", "plain text");
    check_nfc("xe\u0301y", "x\u00e9y");
    check_nfc("\u0301a", "\u0301a");
    check_nfc("\u212b", "\u00c5");                   /* singleton */
    check_nfc("a\u0301\u0323", "\u1ea1\u0301");      /* ordered, then composed */
    check_nfc("\u1e0b\u0323", "\u1e0d\u0307");       /* decomposed, ordered and composed again */
    check_nfc("e\u0301\u0301", "\u00e9\u0301");      /* the second is blocked */
    check_nfc("\u0958", "\u0915\u093c");             /* excluded from composition */
    check_nfc("\u1100\u1161\u11a8", "\uac01");       /* Hangul */
    check_nfc("\uac00\u11a8\u11a8", "\uac01\u11a8");
    check_nfc("\uac00\u11a7", "\uac00\u11a7");
    check_nfc("\u0344", "\u0308\u0301");
    /* Characters newer than the official package's tables are not changed. */
    check_nfc("a\u0345\u08d3", "a\u0345\u08d3");
    check_nfc("\U00011935\U00011930", "\U00011935\U00011930");
}

static void test_nfc_active(void **state)
{
    (void)state;
    assert_int_equal(nfc_find_active(u8("caf\u00e9 \uac00"), 9), 9);
    assert_int_equal(nfc_find_active(u8("cafe\u0301"), 6), 4);
}

/* Sorts many marks after one letter: by counting, not by insertion. */
static void test_nfc_many_marks(void **state)
{
    (void)state;
    enum { N = 200000 };
    char *text = mem_new(1 + 4 * N, 1, "text", NULL);
    assert_non_null(text);
    text[0] = 'x';
    for (size_t i = 0; i < N; i++)
        memcpy(text + 1 + 4 * i, "\u0315\u0323", 4); /* classes 232 and 220 */
    struct nfc_buffer buffer = {0};
    assert_int_equal(nfc_normalize(&buffer, u8(text), 1 + 4 * N, NULL), 0);
    assert_int_equal(buffer.bytes, 1 + 4 * N);
    assert_memory_equal(buffer.text + 1, "\u0323\u0323", 4);
    assert_memory_equal(buffer.text + 1 + 4 * N - 4, "\u0315\u0315", 4);
    nfc_clear(&buffer);
    mem_free(text);
}

static const struct pretok *qwen2(void)
{
    return pretok_find_gguf("qwen2", 5);
}

static const struct pretok *qwen35(void)
{
    return pretok_find_gguf("qwen35", 6);
}

/* `pieces` is the text with a bar between pieces. */
static void check_pieces(const struct pretok *pattern, const char *pieces)
{
    uint8_t text[256] = {0};
    size_t ends[64], n_ends = 0, bytes = 0;
    for (const char *p = pieces; *p != '\0'; p++) {
        if (*p == '|')
            ends[n_ends++] = bytes;
        else
            text[bytes++] = (uint8_t)*p;
    }
    ends[n_ends++] = bytes;
    size_t at = 0;
    for (size_t i = 0; i < n_ends; i++) {
        at += pattern->next(text + at, bytes - at);
        assert_int_equal(at, ends[i]);
    }
}

static void test_pieces_of_both(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "Hello| world|!", "we|'ll| see|,| I|'m| sure", "x|'S|a|'Re|b|'LL|c", "'l", "'ra|'v",
        "a|'\u017f|b", "'\u017f|tr", "a|1|2|3|b", "a|\u00bd|\u0663",
        /* white space: one character stays with the word, none before punctuation but a space */
        "a| b|  | c", "a|   |\tb", "a| |\t|.", "a| .|  | .", "a|  ", "a|\t", " \t",
        "a|\n|b", "a| \n\n|  | b", "a|\r\n\r\n|b", "a|  \n", "a|.\n\n|b", "a| !!\r\n|x",
        "\u00a0a|\u3000b|\u00a0|1", "_a|-b|---|c", "\u4f60\u597d|\uff0c\u4e16\u754c",
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check_pieces(qwen2(), cases[i]);
        check_pieces(qwen35(), cases[i]);
    }
}

static void test_pieces_with_marks(void **state)
{
    (void)state;
    check_pieces(qwen2(), "x|\u0301y");
    check_pieces(qwen35(), "x\u0301y");
    check_pieces(qwen2(), "\u0928\u092e\u0938|\u094d\u0924|\u0947");
    check_pieces(qwen35(), "\u0928\u092e\u0938\u094d\u0924\u0947");
    check_pieces(qwen2(), " \u0301|1");
    check_pieces(qwen35(), " \u0301|1");
    check_pieces(qwen2(), "\t|\u0301");
    check_pieces(qwen35(), "\t\u0301");
    check_pieces(qwen2(), ".\u0301.\n|\u0301");
    check_pieces(qwen35(), ".\u0301|.\n|\u0301");
}

static void test_regex_names(void **state)
{
    (void)state;
    unsigned n = 0;
    for (; pretok_at(n) != NULL; n++) {
        const struct pretok *pattern = pretok_at(n);
        size_t n_regexes = 0;
        while (pattern->regexes[n_regexes] != NULL)
            n_regexes++;
        assert_ptr_equal(pretok_find(pattern->regexes, n_regexes)->next, pattern->next);
        assert_non_null(pattern->gguf_names[0]);
        for (const char *const *name = pattern->gguf_names; *name != NULL; name++) {
            assert_ptr_equal(pretok_find_gguf(*name, strlen(*name)), pattern);
            assert_null(pretok_find_gguf(*name, strlen(*name) - 1));
        }
    }
    assert_true(n >= 2);
    assert_null(pretok_at(n + 1));
    static const char *const unknown[] = {"\\s+", "\\p{N}{1,3}"};
    assert_null(pretok_find(unknown, 1));
    assert_null(pretok_find(unknown + 1, 1)); /* the first of DeepSeek's three */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_class_bits),
        cmocka_unit_test(test_utf8_round_trip),
        cmocka_unit_test(test_utf8_repair),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_nfc_active),
        cmocka_unit_test(test_nfc_many_marks),
        cmocka_unit_test(test_pieces_of_both),
        cmocka_unit_test(test_pieces_with_marks),
        cmocka_unit_test(test_regex_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
