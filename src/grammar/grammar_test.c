/* Tests grammars on small schemas, number automata against arithmetic, regular expressions and
 * failing allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "small_stack.h"
#include "grammar/grammar.h"
#include "text/json_pointer.h"
#include "grammar/number_dfa.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

/* ---- automata ------------------------------------------------------------------------------- */

static struct arena arena = {.limit = 64u << 20};

static struct dfa_maker maker(void)
{
    return (struct dfa_maker){.arena = &arena, .fuel = 10u * 1000 * 1000};
}

static struct number_bound bound(const char *text, bool is_exclusive)
{
    return (struct number_bound){decimal_read(text), true, is_exclusive};
}

static bool has(const struct dfa *d, const char *text)
{
    return dfa_accepts(d, text, strlen(text));
}

static void test_integers_in_range(void **state)
{
    (void)state;
    for (int low = -130; low <= 130; low += 13)
        for (int width = 0; width < 250; width += 49) {
            char from[16], to[16], text[16];
            struct dfa_maker m = maker();
            const struct dfa *d;
            (void)snprintf(from, sizeof from, "%d", low);
            (void)snprintf(to, sizeof to, "%d", low + width);
            const struct number_range range = {.min = bound(from, false),
                                               .max = bound(to, width > 0), .is_integer = true};
            assert_int_equal(number_dfa(&m, &range, &d, NULL), 0);
            for (int i = -1200; i <= 1200; i++) {
                (void)snprintf(text, sizeof text, "%d", i);
                assert_int_equal(has(d, text), i >= low && i < low + width + (width == 0));
            }
            assert_false(has(d, "-0"));
            assert_false(has(d, "01"));
        }
}

static void test_decimals_in_range(void **state)
{
    (void)state;
    struct dfa_maker m = maker();
    const struct dfa *d;
    const struct number_range range = {.min = bound("-1.25", true), .max = bound("3.5e-1", false)};
    assert_int_equal(number_dfa(&m, &range, &d, NULL), 0);
    for (int i = -30000; i <= 30000; i += 7) {
        char text[32];
        const int whole = abs(i) / 1000, rest = abs(i) % 1000;
        (void)snprintf(text, sizeof text, "%s%d.%03d", i < 0 ? "-" : "", whole, rest);
        assert_int_equal(has(d, text), i > -1250 && i <= 350);
    }
    assert_true(has(d, "0.35"));
    assert_true(has(d, "0"));
    assert_true(has(d, "-1.24999"));
    assert_false(has(d, "0.350001"));
    assert_false(has(d, "1e-1"));
    assert_false(has(d, "0."));
}

static void test_large_and_divided(void **state)
{
    (void)state;
    struct dfa_maker m = maker();
    const struct dfa *d;
    struct number_range range = {.min = bound("123456789012345678901234567890", false),
                                 .max = bound("123456789012345678901234567999", false),
                                 .is_integer = true};
    assert_int_equal(number_dfa(&m, &range, &d, NULL), 0);
    assert_true(has(d, "123456789012345678901234567890"));
    assert_true(has(d, "123456789012345678901234567999"));
    assert_false(has(d, "123456789012345678901234567889"));
    assert_false(has(d, "123456789012345678901234568000"));
    range = (struct number_range){.multiple = 7, .max = bound("100", false)};
    assert_int_equal(number_dfa(&m, &range, &d, NULL), 0);
    for (int i = -500; i < 500; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%d", i);
        assert_int_equal(has(d, text), i % 7 == 0 && i <= 100);
    }
    range = (struct number_range){.min = bound("1e500", false)};
    assert_int_equal(number_dfa(&m, &range, &d, NULL), FM_ERR_ARG);
}

static void test_expressions(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *text;
        bool matches;
    } cases[] = {
        {"^a|b$", "axx", true}, {"^a|b$", "xxb", true}, {"^a|b$", "xax", false},
        {"a", "xax", true}, {"^$", "", true}, {"^$", "a", false}, {"", "anything", true},
        {"^[^a-c]$", "d", true}, {"^[^a-c]$", "b", false}, {"^[\\]\\-x-]+$", "]-x", true},
        {"^.$", "\n", false}, {"^.$", "\xf0\x9f\x99\x82", true}, {"^\\u{1F642}$",
                                                                  "\xf0\x9f\x99\x82", true},
        {"^\\ud83d\\ude42$", "\xf0\x9f\x99\x82", true}, {"^\\x41\\u0042\\t$", "AB\t", true},
        {"^(?:ab){2,3}?$", "abab", true}, {"^(?:ab){2,3}?$", "ab", false},
        {"^(?<n>a)+$", "aaa", true}, {"^a{0}$", "", true}, {"^(a*)*$", "aaa", true},
        {"^\\w\\d\\s$", "_9 ", true}, {"^\\S$", "\xc2\xa0", false}, {"^\\W$", "\xc3\xa9", true},
        {"$^", "", true}, {"a^b", "ab", false}, {"^a$|^b$", "b", true}, {"}]", "}]", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dfa_maker m = maker();
        const struct dfa *d;
        assert_int_equal(regex_compile(&m, cases[i].pattern, strlen(cases[i].pattern), &d, NULL),
                         0);
        if (has(d, cases[i].text) != cases[i].matches)
            fail_msg("/%s/ on '%s'", cases[i].pattern, cases[i].text);
    }
    static const char *const refused[] = {
        "(", ")", "[a", "a**b{", "*", "a{2,1}", "(?!a)", "(?<=a)", "\\1", "\\b", "\\p{L}",
        "\\ud83d\\u0041", "\\u{110000}", "[b-a]", "\\", "a{99999}"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct dfa_maker m = maker();
        const struct dfa *d;
        if (regex_compile(&m, refused[i], strlen(refused[i]), &d, NULL) != FM_ERR_ARG)
            fail_msg("/%s/ is not refused", refused[i]);
    }
}

/* ---- grammars ------------------------------------------------------------------------------- */

static struct tokenizer *tok;
static struct grammar_vocabulary *vocabulary;

static bool fits(const char *schema, const char *text)
{
    struct grammar *g;
    struct fm_error err;
    if (grammar_open(vocabulary, schema, schema != NULL ? strlen(schema) : 0, &g, &err) != 0)
        fail_msg("%s: %s", schema, err.text);
    const bool is_whole = grammar_accept_bytes(g, text, strlen(text), NULL) == 0 &&
                          grammar_may_end(g);
    grammar_close(g);
    return is_whole;
}

static void test_strings(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool fits;
    } cases[] = {
        {"\"\"", true}, {"\"a\\n\\/\\u00e9\"", true}, {"\"\\ud83d\\ude42\"", true},
        {"\"\\ud83d\"", false}, {"\"\\ude42\"", false}, {"\"\\ud83d\\u0041\"", false},
        {"\"\n\"", false}, {"\"\x80\"", false}, {"\"\xc0\x80\"", false},
        {"\"\xed\xa0\x80\"", false},
        {"\"\xf4\x90\x80\x80\"", false}, {"\"\xf0\x9f\x99\x82\"", true}, {"\"\\x\"", false},
        {"\"\\u12g4\"", false}, {"\"\xe2\x82\"", false}, {" \"\"", false}, {"\"\" ", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (fits("{\"type\": \"string\"}", cases[i].text) != cases[i].fits)
            fail_msg("case %zu: %s", i, cases[i].text);
    /* Lengths count characters, in whatever form they are written. */
    static const char two[] = "{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 2}";
    assert_true(fits(two, "\"\xf0\x9f\x99\x82\\ud83d\\ude42\""));
    assert_true(fits(two, "\"\\n\xc3\xa9\""));
    assert_false(fits(two, "\"a\""));
    assert_false(fits(two, "\"abc\""));
}

static void test_white_space(void **state)
{
    (void)state;
    static const char list[] = "{\"type\": \"array\"}";
    assert_true(fits(list, "[1,2]"));
    assert_true(fits(list, "[ 1, 2 ]"));
    assert_true(fits(list, "[\n  1,\n  2\n]"));
    assert_true(fits(list, "[ ]"));
    assert_false(fits(list, "[  1]"));
    assert_false(fits(list, "[\n\n1]"));
    assert_false(fits(list, "[1 ,2]"));
    assert_true(fits(NULL, "{\"a\": {\"b\":[]}}"));
    assert_false(fits(NULL, "{\"a\" : 1}"));
    assert_false(fits(NULL, "[]"));
}

static void test_names(void **state)
{
    (void)state;
    assert_true(fits(NULL, "{\"a\":1,\"b\":{\"a\":2}}"));
    assert_false(fits(NULL, "{\"a\":1,\"a\":2}"));
    assert_false(fits(NULL, "{\"a\":1, \"b\":[{\"c\":\",\"}],\"\\u0061\":2}"));
    static const char order[] = "{\"type\": \"object\", \"properties\": {\"b\": {}, \"a\": {}}, "
                                "\"required\": [\"a\"]}";
    assert_true(fits(order, "{\"b\":1,\"a\":2,\"c\":3}"));
    assert_true(fits(order, "{\"a\":2}"));
    assert_false(fits(order, "{\"a\":2,\"b\":1}"));
    assert_false(fits(order, "{\"b\":1}"));
    /* More names than are cached. */
    char text[8192] = "{";
    size_t n = 1;
    for (int i = 0; i < 300; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "\"k%d\":0,", i);
    (void)snprintf(text + n, sizeof text - n, "\"new\":0}");
    assert_true(fits(NULL, text));
    (void)snprintf(text + n, sizeof text - n, "\"k299\":0}");
    assert_false(fits(NULL, text));
}

/* Deep answers end at the limit, and everything open can still be closed. */
static void test_depth(void **state)
{
    (void)state;
    struct grammar *g;
    static const char tree[] = "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": "
                               "0}";
    assert_int_equal(grammar_open(vocabulary, tree, strlen(tree), &g, NULL), 0);
    unsigned depth = 0;
    while (grammar_accept_bytes(g, "[", 1, NULL) == 0)
        depth++;
    assert_int_equal(depth, 100);
    const uint32_t *mask = grammar_mask(g);
    size_t n_allowed = 0;
    for (uint32_t id = 0; id < tokenizer_n_ids(tok); id++)
        n_allowed += mask[id / 32] >> id % 32 & 1;
    assert_true(n_allowed > 0);
    for (unsigned i = 0; i < depth; i++) {
        assert_false(grammar_may_end(g));
        assert_int_equal(grammar_accept_bytes(g, "]", 1, NULL), 0);
    }
    assert_true(grammar_must_end(g));
    /* A long answer does not run out of nodes. */
    grammar_reset(g);
    assert_int_equal(grammar_accept_bytes(g, "[[]", 3, NULL), 0);
    for (unsigned i = 0; i < 50000; i++)
        assert_int_equal(grammar_accept_bytes(g, ",[[]]", 5, NULL), 0);
    assert_int_equal(grammar_accept_bytes(g, "]", 1, NULL), 0);
    assert_true(grammar_may_end(g));
    grammar_close(g);
}

/* Checks that the mask agrees with accepting each token. */
static void check_masks(const char *schema, const char *text)
{
    struct grammar *g, *probe;
    struct fm_error err;
    assert_int_equal(grammar_open(vocabulary, schema, strlen(schema), &g, &err), 0);
    assert_int_equal(grammar_open(vocabulary, schema, strlen(schema), &probe, &err), 0);
    for (size_t n = 0; n <= strlen(text); n++) {
        const uint32_t *mask = grammar_mask(g);
        for (uint32_t id = 0; id < tokenizer_n_ids(tok); id++) {
            int32_t added;
            size_t bytes;
            char name[600] = "";
            const char *piece = tokenizer_piece(tok, (int32_t)id, &bytes);
            if (piece == NULL || bytes >= sizeof name)
                continue;
            memcpy(name, piece, bytes);
            const bool is_text = !tokenizer_is_special(tok, (int32_t)id) &&
                                 !(tokenizer_find(tok, name, &added) && added == (int32_t)id);
            const bool is_taken = is_text && grammar_accept(probe, (int32_t)id, NULL) == 0;
            if (is_taken) {
                grammar_reset(probe);
                assert_int_equal(grammar_accept_bytes(probe, text, n, NULL), 0);
            }
            if (is_taken != ((mask[id / 32] >> id % 32 & 1) != 0))
                fail_msg("%s: token %u '%s' after '%.*s'", schema, id, name, (int)n, text);
        }
        if (n < strlen(text)) {
            assert_int_equal(grammar_accept_bytes(g, text + n, 1, NULL), 0);
            assert_int_equal(grammar_accept_bytes(probe, text + n, 1, NULL), 0);
        }
    }
    assert_true(grammar_may_end(g));
    grammar_close(g);
    grammar_close(probe);
}

static void test_masks_are_exact(void **state)
{
    (void)state;
    check_masks("{}", "{\"a\":[1,\"\\u00e9\"],\"b\":null}");
    check_masks("{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", "
                "\"maxLength\": 4}, \"n\": {\"type\": \"integer\", \"maximum\": 40}}, "
                "\"additionalProperties\": {\"anyOf\": [{\"const\": \"x\"}, {\"type\": \"array\"}]}"
                "}", "{\"name\": \"abc\",\n \"n\":3,\"zz\":\"x\"}");
    check_masks("{\"propertyNames\": {\"pattern\": \"^[ab]{1,7}$\"}, \"minProperties\": 2, "
                "\"type\": \"object\"}", "{\"a\":1,\"ab\":2}");
}

/* ---- calls ---------------------------------------------------------------------------------- */

#define TEXT(text) text, sizeof text - 1
static const struct grammar_tool some_tools[] = {
    {"get", NULL, 0, false},
    {"get_\"it\"", TEXT("{\"properties\": {\"a\": {\"$ref\": \"#/$defs/A\"}}, \"$defs\": {\"A\": "
                        "{\"const\": 1}}, \"additionalProperties\": false}"), false},
    {"bad", TEXT("{\"type\": \"object\", \"not\": {}}"), false},
    {"never", TEXT("{\"type\": \"string\"}"), false},
};
static const struct grammar_call some_call = {
    .separator = "\n", .open = "<tool_call>", .open_end = "\n", .before_name = "{ \"name\": \"",
    .before_arguments = ", \"arguments\": ", .after_arguments = " }", .close_begin = "\n",
    .close = "</tool_call>"};
#define CALL(text) "<tool_call>\n" text "\n</tool_call>"
#define GET "{\"name\": \"get\", \"arguments\": {}}"

static struct grammar *open_calls(const char *schema, bool is_one_call, bool is_opened)
{
    const struct grammar_form form = {.schema = schema,
                                      .schema_bytes = schema != NULL ? strlen(schema) : 0,
                                      .tools = some_tools, .n_tools = 4, .call = &some_call,
                                      .is_one_call = is_one_call, .is_opened = is_opened};
    struct grammar *g;
    struct fm_error err;
    if (grammar_open_form(vocabulary, &form, &g, &err) != 0)
        fail_msg("%s", err.text);
    return g;
}

static bool takes(struct grammar *g, const char *text)
{
    grammar_reset(g);
    return grammar_accept_bytes(g, text, strlen(text), NULL) == 0 && grammar_may_end(g);
}

static void test_calls(void **state)
{
    (void)state;
    struct grammar *g = open_calls("{\"type\": \"integer\"}", false, false);
    static const char *const good[] = {
        "12", CALL(GET), CALL("{\"name\":\"get\",\"arguments\":{}}"),
        CALL("{ \"name\": \"get\", \"arguments\": { \"x\": [ 1, 2 ] } }"),
        CALL("{\"name\": \"get_\\\"it\\\"\", \"arguments\": {\"a\": 1}}"),
        CALL("{\"name\": \"bad\", \"arguments\": {\"y\": {}}}"),
        CALL("{\"name\": \"never\", \"arguments\": {}}"), CALL(GET) "\n" CALL(GET),
        CALL(GET) "\n",
    };
    static const char *const wrong[] = {
        "", "\"x\"", "<tool_call>", "<tool_call>\n" GET, "\n" CALL(GET), CALL(GET) CALL(GET),
        CALL(GET) "1", "1" CALL(GET), CALL(GET) "\n1", CALL("1"),
        CALL("{\"name\": \"\\u0067et\", \"arguments\": {}}"),
        CALL("{\"name\": \"other\", \"arguments\": {}}"),
        CALL("{\"name\": \"get\", \"arguments\": 1}"),
        CALL("{\"name\": \"get\", \"arguments\": []}"),
        CALL("{\"name\": \"get\"}"), CALL("{\"arguments\": {}, \"name\": \"get\"}"),
        CALL("{  \"name\": \"get\", \"arguments\": {}}"),
        CALL("{\n\"name\": \"get\", \"arguments\": {}}"),
        CALL("{\"name\":  \"get\", \"arguments\": {}}"),
        CALL("{\"name\": \"get\",  \"arguments\": {}}"),
        CALL("{\"name\": \"get\", \"arguments\":  {}}"),
        CALL("{\"name\": \"get\", \"arguments\": {\n}}"),
        CALL("{\"name\": \"get\", \"arguments\": {\"a\": [\n1]}}"),
        CALL("{\"name\": \"get\", \"arguments\": {}  }"),
        CALL("{\"name\": \"get_\\\"it\\\"\", \"arguments\": {\"a\": 2}}"),
        CALL("{\"name\": \"get_\\\"it\\\"\", \"arguments\": \"a\"}"),
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        if (!takes(g, good[i]))
            fail_msg("%s is not taken", good[i]);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (takes(g, wrong[i]))
            fail_msg("%s is taken", wrong[i]);
    grammar_close(g);
    g = open_calls(NULL, true, true); /* the prompt contains the first tag, and nothing else
                                       * follows */
    assert_true(takes(g, GET) && grammar_must_end(g));
    assert_false(takes(g, CALL(GET)));
    assert_false(takes(g, "12"));
    grammar_close(g);
    g = open_calls("{}", true, false);
    assert_true(takes(g, CALL(GET)) && grammar_must_end(g));
    assert_true(takes(g, "{\n  \"a\": 1\n}")); /* a value that is not a call may contain white
                                                * space */
    grammar_close(g);
}

/* The tag tokens are allowed where the tags are, and nowhere else. */
static void test_tags(void **state)
{
    (void)state;
    struct grammar *g = open_calls("{}", false, false);
    int32_t begin, end;
    assert_true(tokenizer_find(tok, "<tool_call>", &begin));
    assert_true(tokenizer_find(tok, "</tool_call>", &end));
    const struct {
        const char *before;
        bool begins, ends;
    } cases[] = {{"", true, false}, {"\"", false, false}, {"<", false, false},
                 {"<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"", false, false},
                 {"<tool_call>\n" GET "\n", false, true}, {CALL(GET) "\n", true, false},
                 {CALL(GET), false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)takes(g, cases[i].before);
        const uint32_t *mask = grammar_mask(g);
        assert_int_equal(mask[begin / 32] >> begin % 32 & 1, cases[i].begins);
        assert_int_equal(mask[end / 32] >> end % 32 & 1, cases[i].ends);
        if (cases[i].begins || cases[i].ends)
            assert_int_equal(grammar_accept(g, cases[i].begins ? begin : end, NULL), 0);
    }
    grammar_close(g);
}

/* Another call format: no newlines, and nothing after the arguments. */
static void test_another_form(void **state)
{
    (void)state;
    static const struct grammar_call other = {
        .separator = "", .open = "[TOOL]", .open_end = "", .before_name = "\"",
        .before_arguments = "[ARGS]", .after_arguments = "", .close_begin = "", .close = ""};
    struct grammar_form form = {.tools = some_tools, .n_tools = 4, .call = &other};
    struct grammar *g;
    assert_int_equal(grammar_open_form(vocabulary, &form, &g, NULL), 0);
    assert_true(takes(g, "[TOOL]\"get\"[ARGS]{\"x\": 1}"));
    assert_true(takes(g, "[TOOL]\"get\"[ARGS]{}[TOOL]\"never\"[ARGS]{}"));
    assert_false(takes(g, "[TOOL]\"get\"[ARGS]"));
    assert_false(takes(g, "[TOOL]\"get\"{}"));
    assert_false(takes(g, CALL(GET)));
    grammar_close(g);
    form.is_one_call = true;
    assert_int_equal(grammar_open_form(vocabulary, &form, &g, NULL), 0);
    assert_true(takes(g, "[TOOL]\"get\"[ARGS]{}"));
    assert_true(grammar_must_end(g));
    assert_false(takes(g, "[TOOL]\"get\"[ARGS]{}[TOOL]\"get\"[ARGS]{}"));
    grammar_close(g);
    form.is_opened = true;
    assert_int_equal(grammar_open_form(vocabulary, &form, &g, NULL), 0);
    assert_true(takes(g, "\"get\"[ARGS]{}"));
    assert_true(grammar_must_end(g));
    assert_false(takes(g, "[TOOL]\"get\"[ARGS]{}"));
    grammar_close(g);
}

/* Names without quotes, one of which begins with another, and a tag after them. */
static void test_bare_names(void **state)
{
    (void)state;
    static const struct grammar_tool tools[] = {{"get", NULL, 0, false}, {"get_it", NULL, 0, false},
                                                {"a\"b\\", NULL, 0, false}};
    static const struct grammar_call bare = {
        .separator = "", .open = "<tool_call>", .open_end = "", .before_name = "", .is_bare = true,
        .middle = "</tool_call>", .before_arguments = "\n", .after_arguments = "",
        .close_begin = "", .close = ";"};
    struct grammar_form form = {.tools = tools, .n_tools = 3, .call = &bare};
    struct grammar *g;
    int32_t middle;
    assert_true(tokenizer_find(tok, "</tool_call>", &middle));
    assert_int_equal(grammar_open_form(vocabulary, &form, &g, NULL), 0);
    assert_true(takes(g, "<tool_call>get</tool_call>\n{\"x\": 1};"
                         "<tool_call>get_it</tool_call>\n{};"));
    assert_true(takes(g, "<tool_call>a\"b\\</tool_call>\n{};"));
    assert_false(takes(g, "<tool_call>get_</tool_call>\n{};"));
    assert_false(takes(g, "<tool_call>get{};"));
    assert_false(takes(g, "<tool_call>\"get\"</tool_call>\n{};"));
    static const struct {
        const char *before;
        bool is_tag;
    } cases[] = {{"<tool_call>", false}, {"<tool_call>ge", false}, {"<tool_call>get", true},
                 {"<tool_call>get_", false}, {"<tool_call>get_it", true},
                 {"<tool_call>get<", false}, {"<tool_call>get</tool_call>", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        (void)takes(g, cases[i].before);
        assert_int_equal(grammar_mask(g)[middle / 32] >> middle % 32 & 1, cases[i].is_tag);
        if (cases[i].is_tag)
            assert_int_equal(grammar_accept(g, middle, NULL), 0);
    }
    grammar_close(g);
    form.is_opened = form.is_one_call = true;
    assert_int_equal(grammar_open_form(vocabulary, &form, &g, NULL), 0);
    assert_true(takes(g, "get</tool_call>\n{}") && grammar_must_end(g));
    grammar_close(g);
    static const char *const wrong[] = {"", "a<b", "a\nb"};
    for (size_t i = 0; i < 3; i++) {
        const struct grammar_tool tool = {wrong[i], NULL, 0, false};
        const struct grammar_form bad = {.tools = &tool, .n_tools = 1, .call = &bare};
        struct fm_error err;
        assert_int_equal(grammar_open_form(vocabulary, &bad, &g, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, "without quotes"));
    }
}

/* Where the vocabulary has a control token for a tag, its characters are not the tag. */
static void test_control_tags(void **state)
{
    (void)state;
    static const struct grammar_tool tools[] = {{"get", NULL, 0, false},
                                                {"get_it", NULL, 0, false}};
    static const struct grammar_call call = {
        .separator = "", .open = "<|im_start|>", .open_end = "to ", .before_name = "",
        .is_bare = true, .middle = "<|im_end|>", .before_arguments = "json<|im_start|>",
        .after_arguments = "", .close_begin = "", .close = "<|im_end|>"};
    const struct grammar_form form = {.tools = tools, .n_tools = 2, .call = &call};
    struct grammar *g;
    int32_t start, end;
    assert_true(tokenizer_find(tok, "<|im_start|>", &start));
    assert_true(tokenizer_find(tok, "<|im_end|>", &end));
    assert_int_equal(grammar_open_form(vocabulary, &form, &g, NULL), 0);
    assert_false(takes(g, "<|im_start|>"));
    grammar_reset(g);
    for (unsigned i = 0; i < 2; i++) { /* another call may follow */
        assert_int_equal(grammar_accept(g, start, NULL), 0);
        assert_int_equal(grammar_accept_bytes(g, "to get", 6, NULL), 0);
        assert_int_equal(grammar_accept_bytes(g, "<", 1, NULL), FM_ERR_ARG);
        assert_int_equal(grammar_accept(g, end, NULL), 0);
        assert_int_equal(grammar_accept_bytes(g, "json", 4, NULL), 0);
        assert_int_equal(grammar_accept(g, end, NULL), FM_ERR_ARG);
        assert_int_equal(grammar_accept(g, start, NULL), 0);
        assert_int_equal(grammar_accept_bytes(g, "{}", 2, NULL), 0);
        assert_int_equal(grammar_accept_bytes(g, "<", 1, NULL), FM_ERR_ARG);
        assert_int_equal(grammar_mask(g)[end / 32] >> end % 32 & 1, 1);
        assert_false(grammar_may_end(g));
        assert_int_equal(grammar_accept(g, end, NULL), 0);
        assert_true(grammar_may_end(g));
    }
    grammar_close(g);
}

static void test_forms_refused(void **state)
{
    (void)state;
    struct grammar *g;
    struct fm_error err;
    const struct grammar_form none = {.schema = NULL}, broken = {.schema = "{", .schema_bytes = 1,
                                                                 .tools = some_tools, .n_tools = 4,
                                                                 .call = &some_call};
    const struct grammar_form many = {.tools = some_tools, .n_tools = 1025, .call = &some_call};
    const struct grammar_form unspelled = {.tools = some_tools, .n_tools = 4};
    assert_int_equal(grammar_open_form(vocabulary, &none, &g, &err), FM_ERR_ARG);
    assert_int_equal(grammar_open_form(vocabulary, &broken, &g, &err), FM_ERR_ARG);
    assert_int_equal(grammar_open_form(vocabulary, &many, &g, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "1025 tools"));
    assert_int_equal(grammar_open_form(vocabulary, &unspelled, &g, &err), FM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "cannot be enforced"));
}

static void test_allocations_of_calls(void **state)
{
    (void)state;
    const struct grammar_form form = {.schema = "{}", .schema_bytes = 2, .tools = some_tools,
                                      .n_tools = 4, .call = &some_call};
    for (long nth = 1;; nth++) {
        struct grammar *g = NULL;
        struct fm_error err = {0};
        mem_fail_at(nth);
        const int rc = grammar_open_form(vocabulary, &form, &g, &err);
        mem_fail_at(0);
        grammar_close(g);
        if (rc == 0)
            return;
        assert_int_equal(rc, FM_ERR_NOMEM);
        assert_true(err.text[0] != '\0');
    }
}

/* Schemas that refer to themselves: what matches and what does not. */
static void *check_circular(void *arg)
{
    (void)arg;
    static const struct {
        const char *schema, *good, *bad;
    } cases[] = {
        /* No name is an object, so no name is allowed. */
        {"{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#\"}}", "{}", "{\"a\":1}"},
        {"{\"propertyNames\":{\"$ref\":\"#\"}}", "{\"a\":{\"b\":1}}", "{\"a\"}"},
        {"{\"type\":[\"object\",\"string\"],\"maxLength\":2,\"propertyNames\":{\"$ref\":"
         "\"#\"}}", "{\"ab\":1}", "{\"abc\":1}"},
        {"{\"$defs\":{\"n\":{\"anyOf\":[{\"pattern\":\"^a\",\"type\":\"string\"},{\"type\":"
         "\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/n\"}}]}},\"$ref\":\"#/$defs/n\"}",
         "{\"ab\":{\"b\":1}}", "{\"b\":1}"},
        {"{\"$defs\":{\"a\":{\"propertyNames\":{\"$ref\":\"#/$defs/b\"}},\"b\":{\"minLength\":2,"
         "\"propertyNames\":{\"$ref\":\"#/$defs/a\"}}},\"$ref\":\"#/$defs/a\"}", "{\"ab\":1}",
         "{\"b\":1}"},
        {"{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"x\",{},1,\"y\"],\"propertyNames\":"
         "{\"$ref\":\"#\"}},\"additionalProperties\":{\"$ref\":\"#\"}}", "{\"x\":{\"y\":{}}}",
         "{\"z\":{}}"},
        {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"prefixItems\":[{\"$ref\":\"#\"}]}",
         "[[[]],[]]", "[1]"},
        {"{\"patternProperties\":{\"^a\":{\"$ref\":\"#\"}},\"type\":\"object\"}",
         "{\"a\":{\"b\":1}}", "{\"a\":1}"},
        {"{\"$ref\":\"#/%24defs/a%20b~1c%7e0\",\"$defs\":{\"a b/c~\":{\"const\":1}}}", "1", "2"},
        {"{\"$ref\":\"#/allOf/1/items\",\"allOf\":[true,{\"items\":{\"type\":\"null\"}}]}", "null",
         "1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (!fits(cases[i].schema, cases[i].good) || fits(cases[i].schema, cases[i].bad))
            return (void *)cases[i].schema;
    return NULL;
}

static void test_circular(void **state)
{
    (void)state;
    const char *why = run_on_small_stack(check_circular, NULL);
    if (why != NULL)
        fail_msg("%s", why);
}

static void append(char *to, const char *text)
{
    memcpy(to + strlen(to), text, strlen(text) + 1);
}

/* A schema that would recurse as deep as its text is long, or take unbounded work, is refused with
 * these words. */
static void *check_refused(void *arg)
{
    (void)arg;
    static char stars[16000], groups[16000], choices[4000], together[4000], number[3000];
    (void)snprintf(stars, sizeof stars, "{\"pattern\":\"a%0*d\"}", 9000, 0);
    (void)snprintf(groups, sizeof groups, "{\"pattern\":\"%0*d\"}", 9000, 0);
    (void)snprintf(number, sizeof number, "{\"const\":1%0*d}", 2000, 0);
    for (size_t i = 0; i < 9000; i++) {
        stars[13 + i] = '*';
        groups[12 + i] = '(';
    }
    append(together, "{\"allOf\":[{}");
    for (unsigned i = 0; i <= SCHEMA_CHOICES; i++) {
        append(choices, "{\"anyOf\":[");
        append(together, ",{\"anyOf\":[{}]}");
    }
    append(choices, "{}");
    append(together, "]}");
    for (unsigned i = 0; i <= SCHEMA_CHOICES; i++)
        append(choices, "]}");
    const char *const cases[][2] = {
        {stars, "needs a group"}, {groups, "groups are nested"}, {choices, "choices for one"},
        {together, "too many schemas"},
        {number, "2001 characters"},
        {"{\"pattern\":\"((a{1,1000}){1,1000}){1,1000}\"}", "too many repetitions"},
        {"{\"pattern\":\"((((){9999}){9999}){9999}){9999}\"}", "too much work"},
        {"{\"pattern\":\"^a*$\",\"minLength\":1000000000}", "20000 states"},
        {"{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/%24defs/a\"}}}", "back to itself"},
        {"{\"$ref\":\"#/allOf/01\",\"allOf\":[true,true]}", "names nothing"},
        {"{\"enum\":[1e999999,7],\"multipleOf\":14}", "no value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct grammar *g;
        struct fm_error err = {0};
        if (grammar_open(vocabulary, cases[i][0], strlen(cases[i][0]), &g, &err) != FM_ERR_ARG ||
            strstr(err.text, cases[i][1]) == NULL || strstr(err.text, "the schema") != err.text) {
            print_error("%.80s: %s\n", cases[i][0], err.text);
            return (void *)cases[i][1];
        }
    }
    /* 10^999999 = 2^999999 5^999999: a million zeros are not written out. */
    return fits("{\"enum\":[1e999999,7],\"multipleOf\":16}", "1e999999") ? NULL
                                                                        : (void *)"a large power";
}

static void test_refused(void **state)
{
    (void)state;
    const char *why = run_on_small_stack(check_refused, NULL);
    if (why != NULL)
        fail_msg("%s", why);
}

static void test_pointers(void **state)
{
    (void)state;
    static const struct {
        const char *fragment, *parts; /* each part and a '|'; NULL if it is not a pointer */
    } cases[] = {
        {"#", ""}, {"#/", "|"}, {"#/a/b", "a|b|"}, {"#//", "||"}, {"#/a~1b~0c", "a/b~c|"},
        {"#/%24defs/x%2fy", "$defs|x|y|"}, {"#%2Fa", "a|"}, {"#/~01", "~1|"}, {"#/%7E1", "/|"},
        {"#/%", "%|"}, {"#/%2", "%2|"}, {"#/%zz~", "%zz~|"}, {"#/%c3%A9", "\xc3\xa9|"},
        {"#/~2", "~2|"}, {"", NULL}, {"a", NULL}, {"#a", NULL}, {"/a", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct json_pointer p;
        char parts[64] = "";
        const bool is_pointer = json_pointer_open(&p, cases[i].fragment,
                                                  strlen(cases[i].fragment));
        assert_int_equal(is_pointer, cases[i].parts != NULL);
        while (is_pointer && json_pointer_next(&p))
            (void)snprintf(parts + strlen(parts), sizeof parts - strlen(parts), "%.16s|", p.part);
        if (is_pointer)
            assert_string_equal(parts, cases[i].parts);
    }
    /* A part that is too long is not a name; the rest of the pointer is still parsed. */
    char text[JSON_POINTER_PART_BYTES + 16];
    struct json_pointer p;
    for (size_t n = JSON_POINTER_PART_BYTES - 1; n <= JSON_POINTER_PART_BYTES + 2; n++) {
        memset(text, 'a', sizeof text);
        memcpy(text, "#/", 2);
        memcpy(text + 2 + n, "/b", 2);
        assert_true(json_pointer_open(&p, text, n + 4) && json_pointer_next(&p));
        assert_int_equal(p.part[0] == 'a', n <= JSON_POINTER_PART_BYTES);
        assert_true(json_pointer_next(&p) && p.n_part == 1 && p.part[0] == 'b');
        assert_false(json_pointer_next(&p));
    }
}

static void test_allocations(void **state)
{
    (void)state;
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1, "
                                 "\"x\"]}, \"b\": {\"type\": \"string\", \"pattern\": \"^a+$\"}}}";
    for (long nth = 1;; nth++) {
        struct grammar *g = NULL;
        struct fm_error err = {0};
        mem_fail_at(nth);
        const int rc = grammar_open(vocabulary, schema, strlen(schema), &g, &err);
        mem_fail_at(0);
        grammar_close(g);
        if (rc == 0)
            return;
        assert_int_equal(rc, FM_ERR_NOMEM);
        assert_true(err.text[0] != '\0');
    }
}

/* The memory kept for tools while they may be called depends on what they allow, not on the work of
 * compiling them. */
static void test_tools_take_little(void **state)
{
    enum { N = 32, BYTES = 4 << 10 };
    static const char schema[] =
        "{\"type\": \"object\", \"required\": [\"path\"], \"additionalProperties\": false, "
        "\"properties\": {\"path\": {\"type\": \"string\", \"description\": \"A file.\"}, "
        "\"mode\": {\"enum\": [\"read\", \"write\"]}, \"n\": {\"type\": \"integer\"}, "
        "\"lines\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}}}}";
    struct grammar_tool tools[N];
    char names[N][16];
    (void)state;
    for (unsigned i = 0; i < N; i++) {
        (void)snprintf(names[i], sizeof names[i], "tool_%u", i);
        tools[i] = (struct grammar_tool){.name = names[i], .schema = schema,
                                         .schema_bytes = sizeof schema - 1};
    }
    const struct grammar_form form = {.tools = tools, .n_tools = N, .call = &some_call};
    struct grammar_program *p;
    assert_int_equal(schema_compile_form(&form, &p, NULL), 0);
    const size_t bytes = (size_t)p->arena.total + p->n_rules * sizeof *p->rules +
                         p->n_values * sizeof *p->values;
    print_message("%zu bytes for a tool\n", bytes / N);
    assert_true(bytes / N < BYTES);
    grammar_program_free(p);
}

static int open_vocabulary(void **state)
{
    (void)state;
    struct fm_error err;
    if (tokenizer_open(FLASHMOE_TEST_DIR "/text/frozen_qwen2_tokenizer.json", &tok, &err) != 0 ||
        grammar_vocabulary_open(tok, (uint32_t)tokenizer_n_ids(tok), &vocabulary, &err) != 0) {
        print_error("%s\n", err.text);
        return 1;
    }
    return 0;
}

static int close_vocabulary(void **state)
{
    (void)state;
    grammar_vocabulary_close(vocabulary);
    tokenizer_close(tok);
    arena_clear(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers_in_range), cmocka_unit_test(test_decimals_in_range),
        cmocka_unit_test(test_large_and_divided), cmocka_unit_test(test_expressions),
        cmocka_unit_test(test_strings),           cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_names),             cmocka_unit_test(test_depth),
        cmocka_unit_test(test_masks_are_exact),   cmocka_unit_test(test_circular),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_pointers),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_calls),             cmocka_unit_test(test_tags),
        cmocka_unit_test(test_another_form),
        cmocka_unit_test(test_bare_names),
        cmocka_unit_test(test_control_tags),
        cmocka_unit_test(test_forms_refused),     cmocka_unit_test(test_allocations_of_calls),
        cmocka_unit_test(test_tools_take_little),
    };
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
