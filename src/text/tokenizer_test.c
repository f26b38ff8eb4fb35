#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"
#include "text/tokenizer.h"

#define TINY FLASHMOE_TEST_DIR "/golden/tiny_tokenizer.json"

struct fixture {
    char *json;
    size_t json_bytes;
    struct tokenizer *tok;
};

static int set_up(void **state)
{
    static struct fixture f;
    struct fm_error err;
    if (plat_read_file(TINY, 1 << 20, &f.json, &f.json_bytes, &err) != 0 ||
        tokenizer_open(TINY, &f.tok, &err) != 0) {
        print_error("%s\n", err.text);
        return -1;
    }
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    mem_free(f->json);
    tokenizer_close(f->tok);
    return 0;
}

/* ---- encoding ---------------------------------------------------------------------------- */

static void check_ids(const struct tokenizer *tok, const char *text, bool with_special,
                      const int32_t *expected, size_t n_expected)
{
    int32_t *ids;
    size_t n;
    struct fm_error err;
    assert_int_equal(tokenizer_encode(tok, text, strlen(text), with_special, &ids, &n, &err), 0);
    assert_int_equal(n, n_expected);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], expected[i]);
    mem_free(ids);
}

#define CHECK_IDS(tok, text, with_special, ...)                                                   \
    do {                                                                                          \
        const int32_t expected[] = {__VA_ARGS__};                                                 \
        check_ids(tok, text, with_special, expected, sizeof expected / sizeof expected[0]);       \
    } while (0)

/* Byte b has id 3 + b. The ids are those of the official package. */
static void test_encode(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    check_ids(tok, "", true, NULL, 0);
    CHECK_IDS(tok, "the the", true, 119, 259, 261);
    CHECK_IDS(tok, "Once upon a time, there was a fox and you.", true, 82, 113, 102, 104, 35, 120,
              115, 266, 267, 260, 108, 112, 104, 47, 261, 265, 299, 267, 273, 114, 123, 289, 307,
              49);
    CHECK_IDS(tok, "a  b", true, 100, 35, 271);
    CHECK_IDS(tok, "a\u0301", true, 198, 164); /* NFC */
    CHECK_IDS(tok, "\u00e9", true, 198, 172);
}

static void test_added_tokens(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    CHECK_IDS(tok, "<|im_start|>hi<|im_end|>", true, 2, 107, 108, 1);
    CHECK_IDS(tok, "<|im_end|><|im_end|>", true, 1, 1);
    CHECK_IDS(tok, "<|im_end", true, 63, 127, 108, 112, 98, 104, 274);
    CHECK_IDS(tok, "<|im_end|>", false, 63, 127, 108, 112, 98, 104, 274, 127, 65);
    int32_t id = -1;
    assert_true(tokenizer_find(tok, "<|im_end|>", &id));
    assert_int_equal(id, 1);
    assert_false(tokenizer_find(tok, "<|im_end|>x", &id));
    assert_false(tokenizer_find(tok, "<|im_end", &id));
    assert_false(tokenizer_find(tok, "the", &id));
    assert_false(tokenizer_find(tok, "", &id));
}

static void test_invalid_utf8_is_replaced(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    CHECK_IDS(tok, "a\xffz", true, 100, 3 + 0xef, 3 + 0xbf, 3 + 0xbd, 125);
    CHECK_IDS(tok, "\xe4\xbd", true, 3 + 0xef, 3 + 0xbf, 3 + 0xbd);
}

static void test_text_too_long(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    int32_t *ids;
    size_t n;
    struct fm_error err;
    assert_int_equal(
        tokenizer_encode(tok, "", (size_t)TOKENIZER_TEXT_BYTES + 1, true, &ids, &n, &err),
        FM_ERR_ARG);
    assert_non_null(strstr(err.text, "67108865"));
    assert_null(ids);
}

/* A megabyte without a space takes about 0.3 s with the heap and an hour without, when ctest's time
 * limit ends the test. */
static void test_megabyte_word(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    enum { BYTES = 1 << 20 };
    char *text = mem_new(BYTES, 1, "text", NULL);
    assert_non_null(text);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = "thatherein"[i % 10];
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(tok, text, BYTES, true, &ids, &n, NULL), 0);
    assert_true(n > 0 && n < BYTES);
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        const char *piece = tokenizer_piece(tok, ids[i], &bytes);
        assert_memory_equal(piece, text + total, bytes);
        total += bytes;
    }
    assert_int_equal(total, BYTES);
    mem_free(ids);
    mem_free(text);
}

/* Words around the length where the method changes are merged the same way: a word of period 10
 * gives the same ids in its middle, whatever its length. */
static void test_short_and_long_words_agree(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    char text[101];
    for (size_t i = 0; i < 100; i++)
        text[i] = "thatherein"[i % 10];
    text[100] = '\0';
    int32_t *whole;
    size_t n_whole;
    assert_int_equal(tokenizer_encode(tok, text, 100, true, &whole, &n_whole, NULL), 0);
    for (size_t periods = 1; periods < 10; periods++) {
        int32_t *ids;
        size_t n;
        assert_int_equal(tokenizer_encode(tok, text, periods * 10, true, &ids, &n, NULL), 0);
        assert_int_equal(n * 10, n_whole * periods);
        assert_memory_equal(ids, whole, (n - 1) * sizeof *ids);
        mem_free(ids);
    }
    mem_free(whole);
}

/* ---- decoding ---------------------------------------------------------------------------- */

static void push(struct token_decoder *decoder, int32_t id, const char *expected)
{
    const char *text;
    size_t bytes;
    struct fm_error err;
    assert_int_equal(token_decoder_push(decoder, id, &text, &bytes, &err), 0);
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(text, expected, bytes);
}

static void finish(struct token_decoder *decoder, const char *expected)
{
    const char *text;
    size_t bytes;
    token_decoder_finish(decoder, &text, &bytes);
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(text, expected, bytes);
}

static void test_decode_whole_characters(void **state)
{
    struct token_decoder d;
    assert_int_equal(token_decoder_init(&d, ((struct fixture *)*state)->tok, NULL), 0);
    push(&d, 261, " the");
    push(&d, 3 + 0xf0, "");
    push(&d, 3 + 0x9f, "");
    push(&d, 3 + 0x98, "");
    push(&d, 3 + 0x80, "\U0001f600");
    push(&d, 3 + 0xe4, "");
    push(&d, 261, "\uFFFD the"); /* never completed */
    push(&d, 3 + 0xff, "\uFFFD");
    push(&d, 3 + 0xe4, "");
    push(&d, 3 + 0xbd, "");
    push(&d, 1, ""); /* special tokens have no text and break nothing */
    push(&d, 3 + 0xa0, "\u4f60");
    finish(&d, "");
    push(&d, 3 + 0xe4, "");
    push(&d, 3 + 0xbd, "");
    finish(&d, "\uFFFD");
    push(&d, 100, "a");
    token_decoder_clear(&d);
}

static void test_decode_unknown_id(void **state)
{
    struct token_decoder d;
    assert_int_equal(token_decoder_init(&d, ((struct fixture *)*state)->tok, NULL), 0);
    static const int32_t bad[] = {-1, 320, INT32_MAX, INT32_MIN};
    push(&d, 3 + 0xc3, "");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *text;
        size_t bytes;
        struct fm_error err;
        assert_int_equal(token_decoder_push(&d, bad[i], &text, &bytes, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "has no token; ids end at 319"));
    }
    push(&d, 3 + 0xa9, "\u00e9");
    token_decoder_clear(&d);
}

static void test_pieces_and_flags(void **state)
{
    const struct tokenizer *tok = ((struct fixture *)*state)->tok;
    assert_int_equal(tokenizer_n_ids(tok), 320);
    for (int32_t id = 0; id < 320; id++) {
        size_t bytes;
        const char *piece = tokenizer_piece(tok, id, &bytes);
        assert_true(tokenizer_has_id(tok, id));
        assert_int_equal(tokenizer_is_special(tok, id), id < 3);
        if (id >= 3 && id < 259) {
            assert_int_equal(bytes, 1);
            assert_int_equal((uint8_t)piece[0], id - 3);
        }
    }
    size_t bytes;
    assert_memory_equal(tokenizer_piece(tok, 0, &bytes), "<|endoftext|>", 13);
    assert_null(tokenizer_piece(tok, 320, &bytes));
    assert_false(tokenizer_has_id(tok, -1) || tokenizer_is_special(tok, 320));
}

/* ---- what is refused --------------------------------------------------------------------- */

/* Returns the tiny tokenizer with the first `from` replaced by `to`; "" keeps the file
 * unchanged. */
static char *change(const struct fixture *f, const char *from, const char *to)
{
    const char *at = strstr(f->json, from);
    assert_non_null(at);
    const size_t before = (size_t)(at - f->json);
    const size_t after = f->json_bytes - before - strlen(from);
    char *text = mem_new(before + strlen(to) + after + 1, 1, "text", NULL);
    assert_non_null(text);
    memcpy(text, f->json, before);
    memcpy(text + before, to, strlen(to));
    memcpy(text + before + strlen(to), at + strlen(from), after);
    return text;
}

static void check_refused(const struct fixture *f, const char *from, const char *to, int code,
                          const char *expected)
{
    char *text = change(f, from, to);
    struct tokenizer *tok;
    struct fm_error err = {0};
    const int rc = tokenizer_parse("t.json", text, strlen(text), &tok, &err);
    if (rc != code || strstr(err.text, expected) == NULL)
        print_error("%s -> %s: %d '%s'\n", from, to, rc, err.text);
    assert_int_equal(rc, code);
    assert_non_null(strstr(err.text, expected));
    assert_int_equal(strncmp(err.text, "t.json: ", 8), 0);
    assert_null(tok);
    mem_free(text);
}

struct refusal {
    const char *from, *to, *expected;
};

static void check_all_refused(const struct fixture *f, const struct refusal *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const bool is_json = strstr(cases[i].expected, "not valid JSON") == NULL;
        check_refused(f, cases[i].from, cases[i].to,
                      is_json ? FM_ERR_UNSUPPORTED : FM_ERR_FORMAT, cases[i].expected);
    }
}

static void test_unsupported_settings(void **state)
{
    static const struct refusal cases[] = {
        {"\"type\": \"BPE\"", "\"type\": \"Unigram\"",
         "field 'model.type' is \"Unigram\"; only \"BPE\" is supported"},
        {"\"type\": \"BPE\",", "", "field 'model.type' is absent"},
        {"\"dropout\": null", "\"dropout\": 0.1", "field 'model.dropout' is 0.1"},
        {"\"unk_token\": null", "\"unk_token\": \"<unk>\"",
         "field 'model.unk_token' is \"<unk>\"; only null is supported"},
        {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"",
         "field 'model.continuing_subword_prefix' is \"##\""},
        {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"",
         "field 'model.end_of_word_suffix' is \"</w>\""},
        {"\"byte_fallback\": false", "\"byte_fallback\": true",
         "field 'normalizer' is {\"type\":\"NFC\"}; only null, or a Sequence of Prepend"},
        {"\"byte_fallback\": false", "\"byte_fallback\": 1", "field 'model.byte_fallback' is 1"},
        {"\"ignore_merges\": false", "\"ignore_merges\": 1",
         "field 'model.ignore_merges' is 1; only true or false is supported"},
        {"\"fuse_unk\": false", "\"max_len\": 3", "field 'model.max_len' (3) is not supported"},
        {"\"type\": \"NFC\"", "\"type\": \"NFKC\"",
         "field 'normalizer' is {\"type\":\"NFKC\"}; only NFC"},
        {"\"type\": \"NFC\"", "\"type\": \"NFC\", \"x\": 1", "field 'normalizer.x'"},
        {"\"type\": \"NFC\"", "\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, "
                              "{\"type\": \"Lowercase\"}]",
         "field 'normalizer.normalizers' is {\"type\":\"Lowercase\"}"},
        {"\"type\": \"Sequence\"", "\"type\": \"Whitespace\"", "field 'pre_tokenizer' is"},
        {"\"type\": \"Split\"", "\"type\": \"Digits\"",
         "field 'pre_tokenizer.pretokenizers[0]' is"},
        {"|\\\\s+(?!\\\\S)|\\\\s+\"", "|\\\\s+\"", "pretokenizers[0].pattern' is {\"Regex\""},
        {"\"Regex\"", "\"String\"", "pretokenizers[0].pattern.String'"},
        {"\"Isolated\"", "\"Removed\"", "pretokenizers[0].behavior' is \"Removed\"; only Isolated"},
        {"\"invert\": false", "\"invert\": true", "pretokenizers[0].invert' is true"},
        {"\"type\": \"ByteLevel\"", "\"type\": \"Metaspace\"", "pretokenizers[1]' is"},
        {"\"add_prefix_space\": false", "\"add_prefix_space\": true",
         "pretokenizers[1].add_prefix_space' is true"},
        {"\"use_regex\": false", "\"use_regex\": true", "pretokenizers[1].use_regex' is true"},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\", "
         "\"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}",
         "field 'post_processor.single' is [{\"SpecialToken\""},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\", "
         "\"single\": [{\"SpecialToken\": {\"id\": \"x\"}}, {\"Sequence\": {}}]}",
         "field 'post_processor.special_tokens' is {\"id\":\"x\"}; only a token with ids"},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"BertProcessing\"}",
         "field 'post_processor' is {\"type\":\"BertProcessing\"}; only ByteLevel"},
        {"\"decoder\": {\n  \"type\": \"ByteLevel\"", "\"decoder\": {\n  \"type\": \"WordPiece\"",
         "field 'decoder' is"},
    };
    check_all_refused(*state, cases, sizeof cases / sizeof cases[0]);
}

static void test_unsupported_fields(void **state)
{
    static const struct refusal cases[] = {
        {"\"truncation\": null", "\"truncation\": {\"max_length\": 5}", "field 'truncation' is"},
        {"\"padding\": null", "\"padding\": {}", "field 'padding' is {}; only null"},
        {"\"version\": \"1.0\"", "\"version\": \"2.0\"", "field 'version' is \"2.0\""},
        {"\"version\": \"1.0\"", "\"versions\": \"1.0\"", "field 'versions' (\"1.0\") is not"},
        {"\"lstrip\": false", "\"lstrip\": true",
         "added token '<|endoftext|>': field 'lstrip' is true; only false is supported"},
        {"\"rstrip\": false", "\"rstrip\": true", "field 'rstrip' is true"},
        {"\"single_word\": false", "\"single_word\": true", "field 'single_word' is true"},
        {"\"normalized\": false", "\"normalized\": 1", "field 'normalized' is 1"},
        {"\"normalized\": false", "\"special\": true", "not valid JSON"},
        {"\"normalized\": false,", "", "field 'normalized' is absent"},
        {"\"lstrip\"", "\"strip\"", "field 'strip' is not supported"},
        {"\"special\": true", "\"special\": 1", "field 'special' is 1"},
    };
    check_all_refused(*state, cases, sizeof cases / sizeof cases[0]);
}

static void test_contradictions(void **state)
{
    static const struct refusal cases[] = {
        {"\"th\": 317", "\"tj\": 317",
         "model.merges[58] ([\"t\",\"h\"]): 'th' is not in model.vocab"},
        {"\"Ġt\",\n    \"he\"", "\"Ġt\",\n    \"hf\"", "'Ġthf' is not in model.vocab"},
        {"\"h\",\n    \"e\"", "\"\",\n    \"he\"", "model.merges[0] ([\"\",\"he\"]): ''"},
        {"\"h\",\n    \"e\"", "\"h\"", "model.merges[0] is [\"h\"], expected two tokens"},
        {"[\n    \"h\",\n    \"e\"\n   ]", "\"h e \"", "model.merges[0] is \"h e \", expected"},
        {"[\n    \"h\",\n    \"e\"\n   ]", "7", "model.merges[0] is 7, expected two tokens"},
        {"[\n    \"h\",\n    \"e\"\n   ]", "\"Ġ t\"",
         "model.merges[1] ([\"\xc4\xa0\",\"t\"]) occurs twice"},
        {"\"th\": 317", "\"th\": 318", "id 318 belongs to both"},
        {"\"th\": 317", "\"th\": -1", "the id of token 'th' is -1"},
        {"\"th\": 317", "\"th\": 4194304", "the id of token 'th' is 4194304"},
        {"\"th\": 317", "\"th\": 1.5", "the id of token 'th' is 1.5"},
        {"\"th\": 317", "\"\": 317", "model.vocab has an empty token"},
        {"\"h\": 107", "\"hhhh\": 107", "model.vocab has no token for byte 0x68 ('h')"},
        {"\"id\": 1,", "\"id\": 5,",
         "token '<|im_end|>' has id 5 in added_tokens and 1 in model.vocab"},
        {"\"id\": 1,\n   \"content\": \"<|im_end|>\"", "\"id\": 5,\n   \"content\": \"<x>\"",
         "id 5 belongs to both"},
        {"\"content\": \"<|im_end|>\"", "\"content\": \"\"", "added_tokens[1] has no content"},
        {"\"content\": \"<|im_end|>\",", "", "added_tokens[1] has no content"},
        {"\"id\": 1,\n   \"content\": \"<|im_end|>\"",
         "\"id\": 0,\n   \"content\": \"<|endoftext|>\"", "'<|endoftext|>' occurs twice"},
        {"\"id\": 1,", "", "the id of token '<|im_end|>' is absent"},
        {"\"merges\": [", "\"merges\": 3, \"vocab\": [", "not valid JSON"},
        {"{\n", "[", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(*state, cases[i].from, cases[i].to, FM_ERR_FORMAT, cases[i].expected);
    struct tokenizer *tok;
    struct fm_error err;
    assert_int_equal(tokenizer_open("no/such/file", &tok, &err), FM_ERR_IO);
    assert_null(tok);
}

static void test_added_token_too_long(void **state)
{
    char to[1024], filler[TOKENIZER_ADDED_BYTES + 2];
    memset(filler, 'x', sizeof filler - 1);
    filler[sizeof filler - 1] = '\0';
    (void)snprintf(to, sizeof to, "\"id\": 320,\n   \"content\": \"%s\"", filler);
    check_refused(*state, "\"id\": 1,\n   \"content\": \"<|im_end|>\"", to, FM_ERR_UNSUPPORTED,
                  "has 513 bytes; at most 512 are supported");
}

/* ---- what is accepted -------------------------------------------------------------------- */

static struct tokenizer *open_changed(const struct fixture *f, const char *from, const char *to)
{
    char *text = change(f, from, to);
    struct tokenizer *tok;
    struct fm_error err = {0};
    if (tokenizer_parse("t.json", text, strlen(text), &tok, &err) != 0)
        print_error("%s\n", err.text);
    assert_non_null(tok);
    mem_free(text);
    return tok;
}

static void test_accepted_variants(void **state)
{
    static const struct refusal cases[] = {
        {"\"dropout\": null", "\"dropout\": 0.0", ""},
        {"\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"\"", ""},
        {"\"type\": \"NFC\"", "\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]", ""},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\", "
         "\"single\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}]}", ""},
        {"\"post_processor\": null", "\"post_processor\": {\"type\": \"ByteLevel\", "
                                     "\"add_prefix_space\": true, \"trim_offsets\": true}", ""},
        {"[\n    \"h\",\n    \"e\"\n   ]", "\"h e\"", ""},
        {"\"normalized\": false", "\"normalized\": true", ""},
        {"\"ignore_merges\": false", "\"ignore_merges\": true", ""},
        {"\"Isolated\",\n    \"invert\": false", "\"Removed\",\n    \"invert\": true", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tokenizer *tok = open_changed(*state, cases[i].from, cases[i].to);
        CHECK_IDS(tok, " the a\u0301", true, 261, 35, 198, 164);
        tokenizer_close(tok);
    }
    struct tokenizer *tok = open_changed(*state, "{\n  \"type\": \"NFC\"\n }", "null");
    CHECK_IDS(tok, "a\u0301", true, 100, 3 + 0xcc, 3 + 0x81); /* not normalised */
    tokenizer_close(tok);
}

/* Leftmost first, then longest; ids without a token; text of tokens that are not special. */
static void test_added_tokens_nest(void **state)
{
    struct tokenizer *tok = open_changed(
        *state, "\"added_tokens\": [",
        "\"added_tokens\": ["
        "{\"id\": 400, \"content\": \"<a>\", \"normalized\": false, \"special\": false},"
        "{\"id\": 401, \"content\": \"<a><b>\", \"normalized\": false, \"special\": false},"
        "{\"id\": 402, \"content\": \"<b><c>\", \"normalized\": false, \"special\": false},"
        "{\"id\": 403, \"content\": \"e\xcc\x81 \", \"normalized\": false, \"special\": false},");
    assert_int_equal(tokenizer_n_ids(tok), 404);
    assert_false(tokenizer_has_id(tok, 350));
    CHECK_IDS(tok, "<a><b><c><a><b", true, 401, 63, 102, 65, 400, 63, 101);
    CHECK_IDS(tok, "<b><c><a>", true, 402, 400);
    CHECK_IDS(tok, "ae\u0301 ", true, 100, 403); /* found before normalisation */
    struct token_decoder d;
    assert_int_equal(token_decoder_init(&d, tok, NULL), 0);
    push(&d, 401, "<a><b>");
    push(&d, 403, "e\u0301 ");
    const char *text;
    size_t bytes;
    assert_int_equal(token_decoder_push(&d, 350, &text, &bytes, NULL), FM_ERR_ARG);
    token_decoder_clear(&d);
    tokenizer_close(tok);
}

/* ---- allocation failures ----------------------------------------------------------------- */

/* Does everything that allocates, once. Returns a negative value on failure. */
static int use_all(const struct fixture *f)
{
    static const char text[] = "the e\u0301 <|im_end|>\xff thatthereinthatthereinthatthereinthat";
    struct tokenizer *tok;
    struct fm_error err;
    int rc = tokenizer_parse("t.json", f->json, f->json_bytes, &tok, &err);
    if (rc != 0)
        return rc;
    int32_t *ids;
    size_t n;
    rc = tokenizer_encode(tok, text, sizeof text - 1, true, &ids, &n, &err);
    if (rc == 0) {
        struct token_decoder d;
        rc = token_decoder_init(&d, tok, &err);
        token_decoder_clear(&d);
    } else {
        assert_null(ids);
    }
    mem_free(ids);
    tokenizer_close(tok);
    if (rc != 0)
        assert_non_null(strstr(err.text, "out of memory"));
    return rc;
}

static void test_every_allocation_may_fail(void **state)
{
    long nth = 1;
    for (;; nth++) {
        mem_fail_at(nth);
        const int rc = use_all(*state);
        mem_fail_at(0);
        if (rc == 0)
            break;
        assert_int_equal(rc, FM_ERR_NOMEM);
    }
    assert_true(nth > 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_invalid_utf8_is_replaced),
        cmocka_unit_test(test_text_too_long),
        cmocka_unit_test(test_megabyte_word),
        cmocka_unit_test(test_short_and_long_words_agree),
        cmocka_unit_test(test_decode_whole_characters),
        cmocka_unit_test(test_decode_unknown_id),
        cmocka_unit_test(test_pieces_and_flags),
        cmocka_unit_test(test_unsupported_settings),
        cmocka_unit_test(test_unsupported_fields),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_added_token_too_long),
        cmocka_unit_test(test_accepted_variants),
        cmocka_unit_test(test_added_tokens_nest),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
