/* Tokenizers that are not Qwen's: SentencePiece, tiktoken.model, whole words, prefixes, tokens in
 * normalised text, and hostile texts. Ids against the official packages: tests/text/families. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/jdoc.h"
#include "base/mem.h"
#include "base/plat.h"
#include "text/pretok.h"
#include "text/text_buffer.h"
#include "text/tokenizer.h"

/* ---- documents --------------------------------------------------------------------------- */

#define SPACE "\\u2581"
#define PREPEND \
    "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"" SPACE "\"}," \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" SPACE "\"}]}"
#define METASPACE(scheme, split) \
    "{\"type\":\"Metaspace\",\"replacement\":\"" SPACE "\",\"prepend_scheme\":\"" scheme \
    "\",\"split\":" split "}"
#define DECODERS(strip) \
    "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"" SPACE \
    "\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}" strip "]}"
#define STRIP ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
#define TEMPLATE \
    "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}}," \
    "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1]}}}"

static void add(struct text_buffer *b, const char *text)
{
    assert_true(text_buffer_add(b, text, strlen(text)));
}

/* Ids: 0 <unk>, 1 <s>, 2 the added token <t>, 3..258 the bytes, then these. */
enum { SP = 259, A, B, AB, SP_AB, SP_SP, B_SP, X80_SP };

/* Writes a tokenizer in the style of SentencePiece. `more` are further merges. */
static void make_spm(struct text_buffer *b, const char *normalizer, const char *pre,
                     const char *decoder, const char *more)
{
    char item[64];
    add(b, "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true,\"normalized\":"
           "false},{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":false},{\"id\":2,"
           "\"content\":\"<t>\",\"special\":false,\"normalized\":false}],\"normalizer\":");
    add(b, normalizer);
    add(b, ",\"pre_tokenizer\":");
    add(b, pre);
    add(b, ",\"decoder\":");
    add(b, decoder);
    add(b, ",\"post_processor\":" TEMPLATE ",\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\","
           "\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++) {
        (void)snprintf(item, sizeof item, "\"<0x%02X>\":%u,", byte, byte + 3);
        add(b, item);
    }
    add(b, "\"" SPACE "\":259,\"a\":260,\"b\":261,\"ab\":262,\"" SPACE "ab\":263,\"" SPACE SPACE
           "\":264,\"b" SPACE "\":265,\"<0x80>" SPACE "\":266},\"merges\":[[\"a\",\"b\"],"
           "[\"" SPACE "\",\"ab\"],[\"" SPACE "\",\"" SPACE "\"]");
    add(b, more);
    add(b, "]}}");
}

static struct tokenizer *open_text(struct text_buffer *b)
{
    struct tokenizer *tok;
    struct fm_error err = {0};
    if (tokenizer_parse("t.json", text_buffer_text(b), b->n, &tok, &err) != 0)
        print_error("%s\n", err.text);
    text_buffer_clear(b);
    assert_non_null(tok);
    return tok;
}

static struct tokenizer *open_spm(const char *normalizer, const char *pre, const char *decoder,
                                  const char *more)
{
    struct text_buffer b = {0};
    make_spm(&b, normalizer, pre, decoder, more);
    return open_text(&b);
}

static void check_ids(const struct tokenizer *tok, const char *text, const int32_t *expected,
                      size_t n_expected)
{
    int32_t *ids;
    size_t n;
    struct fm_error err;
    assert_int_equal(tokenizer_encode(tok, text, strlen(text), true, &ids, &n, &err), 0);
    for (size_t i = 0; i < n && i < n_expected; i++)
        assert_int_equal(ids[i], expected[i]);
    assert_int_equal(n, n_expected);
    mem_free(ids);
}

#define CHECK_IDS(tok, text, ...)                                              \
    do {                                                                       \
        const int32_t expected[] = {__VA_ARGS__};                              \
        check_ids(tok, text, expected, sizeof expected / sizeof expected[0]);  \
    } while (0)

static void check_text(const struct tokenizer *tok, bool continues, const int32_t *ids, size_t n,
                       const char *expected)
{
    struct token_decoder d;
    struct text_buffer all = {0};
    const char *text;
    size_t bytes;
    assert_int_equal(token_decoder_init(&d, tok, NULL), 0);
    if (continues)
        token_decoder_continue(&d);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(token_decoder_push(&d, ids[i], &text, &bytes, NULL), 0);
        assert_true(text_buffer_add(&all, text, bytes));
    }
    token_decoder_finish(&d, &text, &bytes);
    assert_true(text_buffer_add(&all, text, bytes));
    assert_true(text_buffer_add(&all, "", 1));
    assert_string_equal(text_buffer_text(&all), expected);
    text_buffer_clear(&all);
    token_decoder_clear(&d);
}

#define CHECK_TEXT(tok, continues, expected, ...)                                           \
    do {                                                                                    \
        const int32_t list[] = {__VA_ARGS__};                                               \
        check_text(tok, continues, list, sizeof list / sizeof list[0], expected);           \
    } while (0)

/* ---- SentencePiece ----------------------------------------------------------------------- */

static void test_spm_prefix(void **state)
{
    (void)state;
    struct tokenizer *tok = open_spm(PREPEND, "null", DECODERS(STRIP), "");
    CHECK_IDS(tok, "ab", SP_AB);
    CHECK_IDS(tok, " ab", SP, SP_AB);
    CHECK_IDS(tok, "ab ab<t>ab", SP_AB, SP_AB, 2, SP_AB); /* every span gets one */
    CHECK_IDS(tok, "  b", SP_SP, SP, B);
    CHECK_IDS(tok, "<t>", 2);
    CHECK_IDS(tok, "\xe4\xbd\xa0" "a\n", SP, 3 + 0xe4, 3 + 0xbd, 3 + 0xa0, A, 3 + '\n');
    size_t n;
    assert_int_equal(tokenizer_prefix(tok, &n)[0], 1);
    assert_int_equal(n, 1);
    assert_int_equal(tokenizer_max_token_bytes(tok), 3 * strlen("<0x80> "));
    tokenizer_close(tok);

    tok = open_spm("null", METASPACE("first", "false"), DECODERS(STRIP), "");
    CHECK_IDS(tok, "ab ab<t>ab<t> ab", SP_AB, SP_AB, 2, AB, 2, SP_AB);
    CHECK_IDS(tok, " ab", SP_AB);
    CHECK_IDS(tok, "<t>ab", 2, AB);
    tokenizer_close(tok);

    tok = open_spm("null", METASPACE("always", "true"), DECODERS(STRIP), "");
    CHECK_IDS(tok, "ab  ab<t>ab", SP_AB, SP, SP_AB, 2, SP_AB); /* cut before every space */
    tokenizer_close(tok);

    tok = open_spm("null", METASPACE("never", "false"), DECODERS(""), "");
    CHECK_IDS(tok, "ab ab", AB, SP_AB);
    CHECK_TEXT(tok, false, " ab", SP_AB);
    tokenizer_close(tok);
}

/* Text is cut only where no merge could cross the cut. */
static void test_spm_crossing_merges(void **state)
{
    (void)state;
    struct tokenizer *tok = open_spm(PREPEND, "null", DECODERS(STRIP), ",[\"b\",\"" SPACE "\"]");
    CHECK_IDS(tok, "b b", SP, B_SP, B);
    CHECK_IDS(tok, "a b", SP, A, SP, B);
    tokenizer_close(tok);
    /* A byte token does not show how the text before it ends. */
    tok = open_spm(PREPEND, "null", DECODERS(STRIP), ",[\"<0x80>\",\"" SPACE "\"]");
    CHECK_IDS(tok, "\xc4\x80 b", SP, 3 + 0xc4, X80_SP, B);
    tokenizer_close(tok);
    tok = open_spm(PREPEND, "null", DECODERS(STRIP), "");
    CHECK_IDS(tok, "b b\xc4\x80 b", SP, B, SP, B, 3 + 0xc4, 3 + 0x80, SP, B);
    tokenizer_close(tok);
}

static void test_spm_decode(void **state)
{
    (void)state;
    struct tokenizer *tok = open_spm(PREPEND, "null", DECODERS(STRIP), "");
    CHECK_TEXT(tok, false, "ab ab", SP_AB, SP_AB);
    CHECK_TEXT(tok, true, " ab ab", SP_AB, SP_AB);
    CHECK_TEXT(tok, false, "ab<t>", 1, SP_AB, 2, 0); /* special tokens have no text */
    CHECK_TEXT(tok, false, " ab", SP_SP, AB);
    CHECK_TEXT(tok, false, "\xe4\xbd\xa0\n", 3 + 0xe4, 3 + 0xbd, 3 + 0xa0, 3 + '\n');
    /* One U+FFFD per byte; whole characters in the same run stay. */
    CHECK_TEXT(tok, false, "\xef\xbf\xbd\xef\xbf\xbd" "a\xe4\xbd\xa0\xef\xbf\xbd", 3 + 0xe4,
               3 + 0xbd, A, 3 + 0xe4, 3 + 0xbd, 3 + 0xa0, 3 + 0xff);
    CHECK_TEXT(tok, false, "\xef\xbf\xbd\xef\xbf\xbd", 3 + 0xe4, 3 + 0xbd);
    tokenizer_close(tok);
}

static void check_refused(struct text_buffer *b, int code, const char *expected)
{
    struct tokenizer *tok;
    struct fm_error err = {0};
    assert_int_equal(tokenizer_parse("t.json", text_buffer_text(b), b->n, &tok, &err), code);
    if (strstr(err.text, expected) == NULL)
        print_error("'%s' does not contain '%s'\n", err.text, expected);
    assert_non_null(strstr(err.text, expected));
    assert_non_null(strstr(err.text, "t.json: "));
    assert_null(tok);
    text_buffer_clear(b);
}

static void test_spm_refusals(void **state)
{
    static const struct {
        const char *normalizer, *pre, *decoder, *expected;
    } cases[] = {
        {"{\"type\":\"Prepend\",\"prepend\":\"_\"}", "null", DECODERS(""), "field 'normalizer' is"},
        {"null", "null", DECODERS(""), "field 'pre_tokenizer' is absent; only Metaspace"},
        {PREPEND, METASPACE("first", "true"), DECODERS(""), "only null beside this normalizer"},
        {"null", METASPACE("second", "true"), DECODERS(""),
         "field 'pre_tokenizer.prepend_scheme' is \"second\""},
        {"null", METASPACE("first", "3"), DECODERS(""), "field 'pre_tokenizer.split' is 3"},
        {"null", "{\"type\":\"Metaspace\",\"replacement\":\"_\"}", DECODERS(""),
         "field 'pre_tokenizer.replacement' is \"_\"; only U+2581"},
        {"null", METASPACE("first", "true"), "{\"type\":\"Metaspace\"}", "field 'decoder' is"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text_buffer b = {0};
        make_spm(&b, cases[i].normalizer, cases[i].pre, cases[i].decoder, "");
        check_refused(&b, FM_ERR_UNSUPPORTED, cases[i].expected);
    }
}

/* ---- byte level -------------------------------------------------------------------------- */

static const char byte_level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                 "\"trim_offsets\":true,\"use_regex\":true}";

/* Ids: 0..255 the bytes that UTF-8 has, 256 "ab", 257 "abc" without a merge, 258 three spaces, 259
 * <x>. */
static struct tokenizer *open_bytes(const char *normalizer, const char *ignores)
{
    struct text_buffer b = {0};
    char item[64];
    unsigned next = 0x100;
    add(&b, "{\"added_tokens\":[{\"id\":258,\"content\":\"   \",\"special\":false,"
            "\"normalized\":true},{\"id\":259,\"content\":\"<x>\",\"special\":false,"
            "\"normalized\":true}],\"normalizer\":");
    add(&b, normalizer);
    add(&b, ",\"pre_tokenizer\":");
    add(&b, byte_level);
    add(&b, ",\"decoder\":");
    add(&b, byte_level);
    add(&b, ",\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (unsigned byte = 0; byte < 256; byte++) {
        const bool is_own = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
        (void)snprintf(item, sizeof item, "\"\\u%04x\":%u,", is_own ? byte : next++, byte);
        if (byte != 0xc0 && byte != 0xc1 && byte < 0xf5)
            add(&b, item);
    }
    add(&b, "\"ab\":256,\"abc\":257},\"merges\":[[\"a\",\"b\"]],\"ignore_merges\":");
    add(&b, ignores);
    add(&b, "}}");
    return open_text(&b);
}

static void test_whole_words(void **state)
{
    (void)state;
    struct tokenizer *tok = open_bytes("null", "false");
    CHECK_IDS(tok, "abc", 256, 'c');
    tokenizer_close(tok);
    tok = open_bytes("null", "true");
    CHECK_IDS(tok, "abc", 257);
    CHECK_IDS(tok, "abc abca", 257, ' ', 256, 'c', 'a');
    tokenizer_close(tok);
}

/* Such tokens are found after NFC, which makes one angle bracket of two characters. */
static void test_normalized_added(void **state)
{
    static const char text[] = "<x>e\xcc\x81   <x>";
    (void)state;
    struct tokenizer *tok = open_bytes("{\"type\":\"NFC\"}", "false");
    CHECK_IDS(tok, text, 259, 0xc3, 0xa9, 258, 259);
    CHECK_IDS(tok, "<x>\xcc\xb8", '<', 'x', 0xe2, 0x89, 0xaf); /* not greater than */
    int32_t id, *ids;
    assert_true(tokenizer_find(tok, "<x>", &id));
    assert_int_equal(id, 259);
    /* Marks follow the text through NFC. Spaces are text, whatever the marks say. */
    uint8_t marks[sizeof text - 1];
    memset(marks, TOKENIZER_NONE, sizeof marks);
    memset(marks + 9, TOKENIZER_ALL, 3);
    size_t n;
    assert_int_equal(tokenizer_encode_marked(tok, text, sizeof text - 1, marks, &ids, &n, NULL), 0);
    const int32_t expected[] = {'<', 'x', '>', 0xc3, 0xa9, 258, 259};
    assert_int_equal(n, 7);
    assert_memory_equal(ids, expected, sizeof expected);
    mem_free(ids);
    tokenizer_close(tok);
}

/* ---- tiktoken.model ---------------------------------------------------------------------- */

static void add_line(struct text_buffer *b, const char *token, size_t bytes, unsigned rank)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char item[32], out[9] = "";
    for (size_t at = 0; at < bytes; at += 3) {
        const uint32_t group = (uint32_t)(uint8_t)token[at] << 16 |
                               (uint32_t)(at + 1 < bytes ? (uint8_t)token[at + 1] : 0) << 8 |
                               (at + 2 < bytes ? (uint8_t)token[at + 2] : 0);
        char *end = out + at / 3 * 4;
        for (int i = 0; i < 4; i++)
            end[i] = digits[group >> (18 - 6 * i) & 63];
        if (at + 1 >= bytes)
            end[2] = '=';
        if (at + 2 >= bytes)
            end[3] = '=';
        end[4] = '\0';
    }
    (void)snprintf(item, sizeof item, "%s %u\n", out, rank);
    add(b, item);
}

/* The bytes, then "aa", "aaa" and " aab". */
static void make_tiktoken(struct text_buffer *b)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        const char token = (char)byte;
        add_line(b, &token, 1, byte);
    }
    add_line(b, "aa", 2, 256);
    add_line(b, "aaa", 3, 257);
    add_line(b, "Aaab", 4, 258);
}

static int parse_tiktoken(const struct text_buffer *b, const char *config, struct tokenizer **tok,
                          struct fm_error *err)
{
    struct jdoc doc = {0};
    assert_int_equal(jdoc_parse(&doc, "config.json", config, strlen(config), NULL), 0);
    const int rc = tokenizer_parse_tiktoken("tiktoken.model", text_buffer_text(b), b->n, &doc, tok,
                                            err);
    jdoc_clear(&doc);
    return rc;
}

static void test_tiktoken(void **state)
{
    (void)state;
    struct text_buffer b = {0};
    struct tokenizer *tok;
    struct fm_error err = {0};
    make_tiktoken(&b);
    assert_int_equal(parse_tiktoken(&b, "{\"tokenizer_class\":\"TikTokenTokenizer\","
                                        "\"added_tokens_decoder\":{\"259\":{\"content\":\"[BOS]\","
                                        "\"special\":true},\"260\":{\"content\":\"<think>\","
                                        "\"special\":false}}}", &tok, &err), 0);
    assert_int_equal(tokenizer_n_ids(tok), 259 + 256);
    /* The lowest rank first, and of two merges to the same token the left one. */
    CHECK_IDS(tok, "aaa", 257);
    CHECK_IDS(tok, "aaaa", 256, 256);
    CHECK_IDS(tok, "aaaaa", 256, 257);
    CHECK_IDS(tok, "Aaab", 258);          /* a whole word needs no merge */
    CHECK_IDS(tok, "Aaabb", 'A', 256, 'b', 'b');
    CHECK_IDS(tok, "[BOS]<think><|reserved_token_261|>a", 259, 260, 261, 'a');
    CHECK_TEXT(tok, false, "<think>aa", 259, 260, 261, 256);
    assert_true(tokenizer_is_special(tok, 259) && !tokenizer_is_special(tok, 260));
    tokenizer_close(tok);
    text_buffer_clear(&b);
}

/* Cutting every one of many long tokens anywhere would take minutes. */
static void test_long_tokens(void)
{
    struct text_buffer b = {0};
    struct tokenizer *tok;
    struct fm_error err = {0};
    make_tiktoken(&b);
    for (unsigned i = 0; i < 2000; i++) {
        char line[700]; /* 480 bytes, the first three of which are the number */
        memset(line, 'A', 640);
        for (unsigned k = 0; k < 4; k++)
            line[k] = (char)('a' + (i >> (4 * k)) % 16);
        (void)snprintf(line + 640, sizeof line - 640, " %u\n", 259 + i);
        add(&b, line);
    }
    assert_true(parse_tiktoken(&b, "{}", &tok, &err) < 0);
    assert_non_null(strstr(err.text, "tiktoken.model: the tokens up to rank 1424 are too long"));
    assert_null(tok);
    text_buffer_clear(&b);
}

static void test_tiktoken_refusals(void **state)
{
    static const struct {
        const char *line, *config, *expected;
    } cases[] = {
        {"YWFhYQ== 260\n", "{}", "line 260: the ranks are not 0, 1, 2"},
        {"YWFhYQ== 3\n", "{}", "line 260: the ranks are not 0, 1, 2"},
        {"YWFhYQ==\n", "{}", "line 260: expected a token in base64, a space and its rank"},
        {"YWFhYQ== 1x\n", "{}", "line 260: the rank is not a number"},
        {"YWFh_Q== 259\n", "{}", "the token of rank 259 ('YWFh_Q==') is not base64"},
        {"YWE= 259\n", "{}", "the token of rank 259 occurs twice"},
        {"", "{\"added_tokens_decoder\":{\"258\":{\"content\":\"x\"}}}",
         "config.json: field 'added_tokens_decoder' has id '258'; special tokens have 259 to 514"},
        {"", "{\"added_tokens_decoder\":{\"300\":{}}}", "added_tokens_decoder.300' has no usable"},
        {"", "{\"added_tokens_decoder\":[]}", "'added_tokens_decoder' is not an object"},
        {"", "{\"tokenizer_class\":\"Other\"}",
         "config.json: field 'tokenizer_class' is \"Other\"; beside tiktoken.model only"},
        {"", "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<|reserved_token_301|>\"}}}",
         "added token '<|reserved_token_301|>' occurs twice"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct text_buffer b = {0};
        struct tokenizer *tok;
        struct fm_error err = {0};
        make_tiktoken(&b);
        add(&b, cases[i].line);
        assert_true(parse_tiktoken(&b, cases[i].config, &tok, &err) < 0);
        if (strstr(err.text, cases[i].expected) == NULL)
            print_error("'%s' does not contain '%s'\n", err.text, cases[i].expected);
        assert_non_null(strstr(err.text, cases[i].expected));
        assert_null(tok);
        text_buffer_clear(&b);
    }
    test_long_tokens();
    struct text_buffer b = {0};
    struct tokenizer *tok;
    struct fm_error err = {0};
    add(&b, "IQ== 0\n");
    assert_true(parse_tiktoken(&b, "{}", &tok, &err) < 0);
    assert_non_null(strstr(err.text, "tiktoken.model: there is no token for byte 0x00"));
    text_buffer_clear(&b);
}

/* ---- lack of memory and hostile texts ---------------------------------------------------- */

static int use_all(const struct text_buffer *spm, const struct text_buffer *tiktoken)
{
    static const char text[] = "ab ab <t> \xe4\xbd\xa0 ababababababababababababababababababab";
    struct tokenizer *tok;
    struct fm_error err;
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        rc = i == 0 ? tokenizer_parse("t.json", text_buffer_text(spm), spm->n, &tok, &err)
                    : tokenizer_parse_tiktoken("t.model", text_buffer_text(tiktoken), tiktoken->n,
                                               NULL, &tok, &err);
        int32_t *ids = NULL;
        size_t n;
        if (rc == 0)
            rc = tokenizer_encode(tok, text, sizeof text - 1, true, &ids, &n, &err);
        mem_free(ids);
        tokenizer_close(tok);
    }
    if (rc != 0)
        assert_non_null(strstr(err.text, "out of memory"));
    return rc;
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct text_buffer spm = {0}, tiktoken = {0};
    make_spm(&spm, PREPEND, "null", DECODERS(STRIP), "");
    make_tiktoken(&tiktoken);
    long nth = 1;
    for (;; nth++) {
        mem_fail_at(nth);
        const int rc = use_all(&spm, &tiktoken);
        mem_fail_at(0);
        if (rc == 0)
            break;
        assert_int_equal(rc, FM_ERR_NOMEM);
    }
    assert_true(nth > 20);
    text_buffer_clear(&spm);
    text_buffer_clear(&tiktoken);
}

/* Returns the seconds that a pattern takes for repeated text. */
static double split_seconds(const struct pretok *pattern, const char *unit, const char *tail)
{
    const size_t bytes = 1 << 18, n = strlen(unit);
    struct text_buffer b = {0};
    while (b.n < bytes)
        assert_true(text_buffer_add(&b, unit, n));
    add(&b, tail);
    const uint64_t begin = plat_now_ns();
    for (size_t at = 0; at < b.n;) {
        const size_t step = pattern->next((const uint8_t *)b.data + at, b.n - at);
        assert_true(step > 0 && step <= b.n - at);
        at += step;
    }
    text_buffer_clear(&b);
    return (double)(plat_now_ns() - begin) / 1e9;
}

/* Quadratic time would be minutes. */
static void test_hostile_texts_are_linear(void **state)
{
    static const char *const units[] = {
        "a", "A", "aA", "Aa", " ", "\t", "\n", " \n", "7", "7 ", "!", "!A", "'", "'s", "'A",
        "\xcc\x81", "A\xcc\x81", "\xcc\x81" "A", "\xe4\xb8\x80", "\xe4\xb8\x80" "A", "\x01",
        "\x01 ", "\x01\xcc\x81", "\xe3\x80\x87", " A", " \xcc\x81", "/", "!\n/", "\xca\xb0" "A",
    };
    static const char *const tails[] = {"", "x", "X", " ", "\n", "1", "!"};
    (void)state;
    for (unsigned p = 0; pretok_at(p) != NULL; p++)
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++)
            for (size_t t = u % 3; t < sizeof tails / sizeof tails[0]; t += 3)
                assert_true(split_seconds(pretok_at(p), units[u], tails[t]) < 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm_prefix),
        cmocka_unit_test(test_spm_crossing_merges),
        cmocka_unit_test(test_spm_decode),
        cmocka_unit_test(test_spm_refusals),
        cmocka_unit_test(test_whole_words),
        cmocka_unit_test(test_normalized_added),
        cmocka_unit_test(test_tiktoken),
        cmocka_unit_test(test_tiktoken_refusals),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_hostile_texts_are_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
