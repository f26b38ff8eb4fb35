/* Parses messages from a stream: checks the events of an answer, and that the way of cutting it
 * does not matter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/splitmix.h"
#include "chat/dialect.h"
#include "text/json_scan.h"
#include "chat/message.h"
#include "chat/tool_schema.h"
#include "text/unicode.h"

/* ---- events, written down --------------------------------------------------------------- */

enum { RECORD_BYTES = 1 << 16 };

/* R[..] C[..] M[..] call N(name) A[..] end[raw] broken[raw] END; neighbouring texts are joined. */
struct record {
    char text[RECORD_BYTES];
    size_t n;
    char all[RECORD_BYTES]; /* every byte of the answer, as reported by events */
    size_t n_all;
    char args[RECORD_BYTES]; /* of the current call */
    size_t n_args;
    int last; /* kind whose text may continue, or -1 */
    bool is_utf8;
    char ids[64][MESSAGE_ID_BYTES];
};

static void put(struct record *r, const char *text, size_t bytes)
{
    assert_true(r->n + bytes < RECORD_BYTES);
    memcpy(r->text + r->n, text, bytes);
    r->n += bytes;
    r->text[r->n] = '\0';
}

static void put_event(struct record *r, const char *name, const struct message_event *e)
{
    if (r->last >= 0 && r->last != (int)e->kind)
        put(r, "]", 1);
    if (r->last != (int)e->kind) {
        put(r, name, strlen(name));
        put(r, "[", 1);
    }
    put(r, e->text, e->text_bytes);
    const bool may_go_on = e->kind <= MESSAGE_MARKUP || e->kind == MESSAGE_CALL_ARGUMENTS;
    r->last = may_go_on ? (int)e->kind : -1;
    if (!may_go_on)
        put(r, "]", 1);
}

static void record_event(void *ctx, const struct message_event *e)
{
    static const char *const names[] = {"R", "C", "M", "call", "A", "end", "broken", "END"};
    struct record *r = ctx;
    struct message_event shown = *e;
    if (e->kind == MESSAGE_CALL_BEGIN) {
        shown.text = e->name;
        shown.text_bytes = strlen(e->name);
        assert_true(shown.text_bytes > 0 && shown.text_bytes <= 256 && e->call < 64);
        memcpy(r->ids[e->call], e->id, MESSAGE_ID_BYTES);
        r->n_args = 0;
    }
    put_event(r, names[e->kind], &shown);
    r->is_utf8 = r->is_utf8 && utf8_count_bad((const uint8_t *)e->text, e->text_bytes) == 0;
    if (e->kind != MESSAGE_CALL_ARGUMENTS) {
        memcpy(r->all + r->n_all, e->text, e->text_bytes);
        r->n_all += e->text_bytes;
    } else {
        memcpy(r->args + r->n_args, e->text, e->text_bytes);
        r->n_args += e->text_bytes;
    }
    if (e->kind == MESSAGE_CALL_END || e->kind == MESSAGE_CALL_BROKEN) {
        assert_string_equal(r->ids[e->call], e->id);
        for (size_t i = 0; i < e->lead_bytes; i++)
            assert_int_equal(e->text[i], '\n');
        assert_int_equal(e->text[e->lead_bytes], '<');
    }
    if (e->kind == MESSAGE_CALL_END)
        assert_int_equal(json_scan_text(r->args, r->n_args), '{');
}

/* Pushes the answer in pieces that end at `cuts`, ascending; without cuts, in one piece. */
static void run(struct record *r, const struct message_options *options, const char *answer,
                size_t bytes, const size_t *cuts, size_t n_cuts)
{
    struct message *m;
    r->n = r->n_all = r->n_args = 0;
    r->text[0] = '\0';
    r->last = -1;
    r->is_utf8 = true;
    assert_int_equal(message_open(options, record_event, r, &m, NULL), 0);
    size_t at = 0;
    for (size_t i = 0; i <= n_cuts; i++) {
        const size_t end = i < n_cuts ? cuts[i] : bytes;
        assert_int_equal(message_push(m, answer + at, end - at, NULL), 0);
        at = end;
    }
    assert_int_equal(message_finish(m, NULL), 0);
    message_close(m);
    assert_int_equal(r->n_all, bytes);
    assert_memory_equal(r->all, answer, bytes);
}

static struct record whole, other;

static void assert_same(void)
{
    if (whole.n != other.n || memcmp(whole.text, other.text, whole.n) != 0)
        assert_string_equal(whole.text, other.text);
}

/* Pushes it in one piece, byte by byte, and in two pieces cut at every place. */
static void check_splits(const struct message_options *options, const char *answer, size_t bytes)
{
    static size_t cuts[RECORD_BYTES];
    run(&whole, options, answer, bytes, NULL, 0);
    const bool is_valid = utf8_count_bad((const uint8_t *)answer, bytes) == 0;
    assert_true(!is_valid || whole.is_utf8);
    for (size_t i = 0; i < bytes; i++)
        cuts[i] = i + 1;
    run(&other, options, answer, bytes, cuts, bytes);
    assert_same();
    assert_true(!is_valid || other.is_utf8);
    for (size_t i = 1; i < bytes; i++) {
        cuts[0] = i;
        run(&other, options, answer, bytes, cuts, 1);
        assert_same();
    }
}

/* ---- examples --------------------------------------------------------------------------- */

static json_t *tools;

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
    "\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"array\"},"
    "\"o\":{\"type\":\"object\"},\"z\":{\"type\":\"null\"},"
    "\"sn\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"is\":{\"type\":[\"integer\",\"string\"]},\"e\":{\"enum\":[\"x\",\"y\"]},"
    "\"r\":{\"$ref\":\"#/$defs/P\"},\"l\":{\"$ref\":\"#/$defs/L\"},\"c\":{\"const\":3},"
    "\"m\":{\"allOf\":[{\"type\":[\"string\",\"array\"]},{\"type\":\"array\"}]},\"u\":{}},"
    "\"$defs\":{\"P\":{\"type\":\"object\"},\"L\":{\"$ref\":\"#/$defs/L\"}}}}},"
    "{\"name\":\"g\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"i\":"
    "{\"type\":\"integer\"}}}}]";

static const struct dialect *only_json[2], *only_xml[2], *both[3];

static int load_tools(void **state)
{
    (void)state;
    tools = json_loads(tools_text, JSON_REJECT_DUPLICATES, NULL);
    only_json[0] = both[0] = dialect_find("qwen-json");
    only_xml[0] = both[1] = dialect_find("qwen-xml");
    return tools != NULL && both[0] != NULL && both[1] != NULL ? 0 : -1;
}

static int free_tools(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

enum { THINKING = 1, HELD = 2, WITH_TOOLS = 4, NO_CALLS = 8, JSON_ONLY = 16, XML_ONLY = 32,
       MUST_CALL = 64 };

static struct message_options options_of(unsigned flags)
{
    return (struct message_options){
        .is_thinking = (flags & THINKING) != 0,
        .hold_calls = (flags & HELD) != 0,
        .is_call = (flags & MUST_CALL) != 0,
        .tools = (flags & WITH_TOOLS) != 0 ? tools : NULL,
        .dialects = (flags & NO_CALLS) != 0    ? NULL
                    : (flags & JSON_ONLY) != 0 ? only_json
                    : (flags & XML_ONLY) != 0  ? only_xml
                                               : both,
    };
}

struct example {
    unsigned flags;
    const char *answer, *events;
};

static void check_examples(const struct example *examples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct message_options options = options_of(examples[i].flags);
        check_splits(&options, examples[i].answer, strlen(examples[i].answer));
        assert_string_equal(whole.text, examples[i].events);
    }
}

#define CHECK_EXAMPLES(list) check_examples(list, sizeof list / sizeof list[0])

static void test_reasoning(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, "", "END[]"},
        {0, "hello\n", "C[hello\n]END[]"},
        {0, "\n\nhello", "C[\n\nhello]END[]"},
        {0, "<think>\nhm\n</think>\n\nyes", "M[<think>\n]R[hm]M[\n</think>\n\n]C[yes]END[]"},
        {0, "\n<think>hm</think>yes", "M[\n<think>]R[hm]M[</think>]C[yes]END[]"},
        {0, "<think>\n\n</think>\n\nyes", "M[<think>\n\n</think>\n\n]C[yes]END[]"},
        {0, "a <think>b</think>", "C[a <think>b</think>]END[]"},
        {0, "<thin", "C[<thin]END[]"},
        {0, "<thinking>", "C[<thinking>]END[]"},
        {0, "x</think>\ny", "C[x</think>\ny]END[]"},
        {0, "<think>a</think>\n<think>b", "M[<think>]R[a]M[</think>\n]C[<think>b]END[]"},
        {THINKING, "hm\n\n</think>\n\nyes\n", "R[hm]M[\n\n</think>\n\n]C[yes\n]END[]"},
        {THINKING, "\nhm", "M[\n]R[hm]END[]"},
        {THINKING, "hm\n", "R[hm]M[\n]END[]"},
        {THINKING, "a\n\nb\n</thi", "R[a\n\nb\n</thi]END[]"},
        {THINKING, "a<</think>", "R[a<]M[</think>]END[]"},
        {THINKING, "</think>", "M[</think>]END[]"},
        {THINKING, "<think>x", "R[<think>x]END[]"},
        {THINKING, "<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n</think>\n",
         "R[<tool_call>\n{\"name\": \"f\"}\n</tool_call>]M[\n</think>\n]END[]"},
        {THINKING, "\u00e9\u4f60</think>\U0001f600",
         "R[\u00e9\u4f60]M[</think>]C[\U0001f600]END[]"},
    };
    CHECK_EXAMPLES(list);
}

#define CALL(json) "<tool_call>\n" json "\n</tool_call>"

static void test_json_calls(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, CALL("{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}"),
         "call[f]A[{\"a\": [1, {\"b\": \"}\\\"\"}]}]"
         "end[" CALL("{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\\\"\"}]}}")
         "]END[]"},
        {0, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
         "call[f]A[{}]end[<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>]END[]"},
        {0, "Yes.\n\n" CALL("{\"name\":\"f\"}") "\n"
         CALL("{\"name\":\"g\",\"arguments\":null}") "\n",
         "C[Yes.]call[f]A[{}]end[\n\n" CALL("{\"name\":\"f\"}") "]"
         "call[g]A[{}]end[\n" CALL("{\"name\":\"g\",\"arguments\":null}") "]M[\n]END[]"},
        {0, CALL("{\"name\":\"f\"}") "\n\nDone.\n",
         "call[f]A[{}]end[" CALL("{\"name\":\"f\"}") "]C[\n\nDone.\n]END[]"},
        {0, CALL("{\"id\": [{}, 1e-3], \"arguments\": {\"x\": 1}, \"name\": \"f\\u00e9\"}"),
         "call[f\u00e9]A[{\"x\": 1}]"
         "end[" CALL("{\"id\": [{}, 1e-3], \"arguments\": {\"x\": 1}, \"name\": \"f\\u00e9\"}")
         "]END[]"},
        {0, CALL("{\"name\":\"f\",\"arguments\":\" {\\\"a\\\": \\\"\\ud83d\\ude00\\\"}\"}"),
         "call[f]A[ {\"a\": \"\U0001f600\"}]"
         "end[" CALL("{\"name\":\"f\",\"arguments\":\" {\\\"a\\\": \\\"\\ud83d\\ude00\\\"}\"}")
         "]END[]"},
        /* The last tag may be missing at the end. */
        {0, "<tool_call>{\"name\":\"f\"}\n</tool",
         "call[f]A[{}]end[<tool_call>{\"name\":\"f\"}\n</tool]END[]"},
        {THINKING, "hm\n</think>\n\n" CALL("{\"name\":\"f\"}"),
         "R[hm]M[\n</think>\n\n]call[f]A[{}]end[" CALL("{\"name\":\"f\"}") "]END[]"},
        {NO_CALLS, CALL("{\"name\":\"f\"}"), "C[" CALL("{\"name\":\"f\"}") "]END[]"},
        {XML_ONLY, CALL("{\"name\":\"f\"}"), "C[" CALL("{\"name\":\"f\"}") "]END[]"},
        {JSON_ONLY, CALL("<function=f></function>"), "C[" CALL("<function=f></function>") "]END[]"},
    };
    CHECK_EXAMPLES(list);
}

static void test_broken_json_calls_are_text(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, CALL("oh"), "C[" CALL("oh") "]END[]"},
        {0, CALL("{}"), "C[" CALL("{}") "]END[]"},
        {0, CALL("[]"), "C[" CALL("[]") "]END[]"},
        {0, CALL("{\"name\":\"\"}"), "C[" CALL("{\"name\":\"\"}") "]END[]"},
        {0, CALL("{\"name\":1}"), "C[" CALL("{\"name\":1}") "]END[]"},
        {0, CALL("{\"name\":[\"f\"]}"), "C[" CALL("{\"name\":[\"f\"]}") "]END[]"},
        {0, CALL("{\"arguments\":{}}"), "C[" CALL("{\"arguments\":{}}") "]END[]"},
        {0, CALL("{\"name\":\"f\",\"arguments\":[1]}"),
         "C[" CALL("{\"name\":\"f\",\"arguments\":[1]}") "]END[]"},
        {0, CALL("{\"name\":\"f\",\"arguments\":\"[1]\"}"),
         "C[" CALL("{\"name\":\"f\",\"arguments\":\"[1]\"}") "]END[]"},
        {0, CALL("{\"name\":\"f\",\"arguments\":\"\"}"),
         "C[" CALL("{\"name\":\"f\",\"arguments\":\"\"}") "]END[]"},
        {0, CALL("{\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}"),
         "C[" CALL("{\"name\":\"f\",\"name\":\"g\",\"arguments\":{}}") "]END[]"},
        {0, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call>",
         "C[<tool_call>]call[f]A[{}]end[<tool_call>{\"name\":\"f\"}</tool_call>]END[]"},
        {0, "<tool_call>\n<tool_call>{\"name\":\"f\"}</tool_call>",
         "C[<tool_call>]call[f]A[{}]end[\n<tool_call>{\"name\":\"f\"}</tool_call>]END[]"},
        {0, "<tool_call>{\"name\": <tool_call>{\"name\":\"f\"}</tool_call>",
         "C[<tool_call>{\"name\": ]call[f]A[{}]end[<tool_call>{\"name\":\"f\"}</tool_call>]END[]"},
        {0, "a <tool_c b", "C[a <tool_c b]END[]"},
        {0, "<tool_call>\n", "C[<tool_call>\n]END[]"},
        /* It breaks after the call has begun. */
        {0, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1]",
         "call[f]A[{\"a\":1]broken[<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1]C[]]END[]"},
        {0, "\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":",
         "call[f]A[{\"a\":]broken[\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":]END[]"},
        {0, "<tool_call>{\"name\":\"f\",\"arguments\":{}}}</tool_call>",
         "call[f]A[{}]broken[<tool_call>{\"name\":\"f\",\"arguments\":{}}]C[}</tool_call>]END[]"},
        {HELD, "<tool_call>{\"name\":\"f\",\"arguments\":{}}}</tool_call>",
         "C[<tool_call>{\"name\":\"f\",\"arguments\":{}}}</tool_call>]END[]"},
        {HELD, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":",
         "C[<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":]END[]"},
        {HELD, "x\n" CALL("{\"name\":\"f\",\"arguments\":{\"a\":1}}"),
         "C[x]call[f]A[{\"a\":1}]end[\n" CALL("{\"name\":\"f\",\"arguments\":{\"a\":1}}") "]END[]"},
    };
    CHECK_EXAMPLES(list);
}

#define P(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
#define F(inner) "<tool_call>\n<function=f>\n" inner "</function>\n</tool_call>"

static void test_xml_calls(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, F(""), "call[f]A[{}]end[" F("") "]END[]"},
        {0, F(P("a", "b")), "call[f]A[{\"a\": \"b\"}]end[" F(P("a", "b")) "]END[]"},
        {0, F(P("a", "1") P("b", "")),
         "call[f]A[{\"a\": \"1\", \"b\": \"\"}]end[" F(P("a", "1") P("b", "")) "]END[]"},
        {0, F(P("a", "\n x\"\\\t\x01\n\n")),
         "call[f]A[{\"a\": \"\\n x\\\"\\\\\\t\\u0001\\n\\n\"}]end[" F(P("a", "\n x\"\\\t\x01\n\n"))
         "]END[]"},
        {0, F("<parameter=a>x</parameter><parameter=b></parameter>"),
         "call[f]A[{\"a\": \"x\", \"b\": \"\"}]"
         "end[" F("<parameter=a>x</parameter><parameter=b></parameter>") "]END[]"},
        /* A value may contain any text, also the closing tag. */
        {0, F(P("a", "</p></parameter> <b>\n</parameter>\n</paramete <tool_call></tool_call>")),
         "call[f]A[{\"a\": \"</p></parameter> <b>\\n</parameter>\\n</paramete "
         "<tool_call></tool_call>\"}]end["
         F(P("a", "</p></parameter> <b>\n</parameter>\n</paramete <tool_call></tool_call>"))
         "]END[]"},
        {0, F(P("a", "x\n</parameter>\n</parameter>")),
         "call[f]A[{\"a\": \"x\\n</parameter>\\n</parameter>\"}]"
         "end[" F(P("a", "x\n</parameter>\n</parameter>")) "]END[]"},
        {0, "One.\n" F("") "\n" F(P("k\"", "\u4f60")),
         "C[One.]call[f]A[{}]end[\n" F("") "]call[f]A[{\"k\\\"\": \"\u4f60\"}]"
         "end[\n" F(P("k\"", "\u4f60")) "]END[]"},
        /* Without the outer tag, and with only its end. */
        {0, "<function=f>\n" P("a", "b") "</function> ok",
         "call[f]A[{\"a\": \"b\"}]end[<function=f>\n" P("a", "b") "</function>]C[ ok]END[]"},
        {0, "x\n<function=f></function>\n</tool_call>\n",
         "C[x]call[f]A[{}]end[\n<function=f></function>]M[\n</tool_call>\n]END[]"},
        {0, "<tool_call><function=f></function>\n<function=g>\n</function></tool_call>",
         "call[f]A[{}]end[<tool_call><function=f></function>\n]"
         "call[g]A[{}]end[<function=g>\n</function>]M[</tool_call>]END[]"},
        {WITH_TOOLS, "<function=nobody>\n</function>", "C[<function=nobody>\n</function>]END[]"},
        {WITH_TOOLS, "<function=g>\n</function>",
         "call[g]A[{}]end[<function=g>\n</function>]END[]"},
        {0, "<tool_call><function=f></function>",
         "call[f]A[{}]end[<tool_call><function=f></function>]END[]"},
    };
    CHECK_EXAMPLES(list);
}

static void test_broken_xml_calls_are_text(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, "<tool_call><function=></function>", "C[<tool_call><function=></function>]END[]"},
        {0, "<tool_call>\n<function=f\n>", "C[<tool_call>\n<function=f\n>]END[]"},
        {0, "<function=f> text", "C[<function=f> text]END[]"},
        {0, "see <function=f>", "C[see <function=f>]END[]"},
        {0, "<function=f><function=g></function>",
         "C[<function=f>]call[g]A[{}]end[<function=g></function>]END[]"},
        {0, "<tool_call><function=f>\n<tool_call><function=g></function></tool_call>",
         "C[<tool_call><function=f>]call[g]A[{}]"
         "end[\n<tool_call><function=g></function></tool_call>]END[]"},
        {0, F("<parameter=>\n</parameter>"), "C[" F("<parameter=>\n</parameter>") "]END[]"},
        {0, "<function=f>" P("a", "1") P("a", "2") "</function>",
         "call[f]A[{\"a\": \"1\"]broken[<function=f>" P("a", "1") "<parameter=a]"
         "C[>\n2\n</parameter>\n</function>]END[]"},
        {HELD, "<function=f>" P("a", "1") P("a", "2") "</function>",
         "C[<function=f>" P("a", "1") P("a", "2") "</function>]END[]"},
        {0, "<function=f><parameter=a>x",
         "call[f]A[{\"a\": \"x]broken[<function=f><parameter=a>x]END[]"},
        {0, "<function=f><parameter=a>x\xff</parameter>",
         "call[f]A[{\"a\": \"x]broken[<function=f><parameter=a>x]C[\xff</parameter>]END[]"},
        {HELD, "<function=f><parameter=a>x</parameter>",
         "C[<function=f><parameter=a>x</parameter>]END[]"},
        {0, F("") "</tool_call>", "call[f]A[{}]end[" F("") "]C[</tool_call>]END[]"},
        {0, "<tool_call><function=f></function>x",
         "call[f]A[{}]broken[<tool_call><function=f></function>]C[x]END[]"},
    };
    CHECK_EXAMPLES(list);
}

/* An answer cut off inside a call: the existing part of the call is reported once, held back or
 * not. */
static void test_cut_calls(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"<tool_call>\n{\"name\": \"f", NULL},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": ", NULL},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"x", "{\"s\": \"x"},
        {"<function=f>\n<parameter=s>\nab", "{\"s\": \"ab"},
        {"a<tool_call>\n<function=f>\n<parameter=i>\n1", "{\"i\": "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (unsigned how = 0; how < 4; how++) {
            const unsigned held = how % 2 == 1 ? HELD : 0, must = how / 2 == 1 ? MUST_CALL : 0;
            const struct message_options options = options_of(WITH_TOOLS | held | must);
            struct message *m;
            other = (struct record){.last = -1, .is_utf8 = true};
            assert_int_equal(message_open(&options, record_event, &other, &m, NULL), 0);
            assert_int_equal(message_push(m, cases[i][0], strlen(cases[i][0]), NULL), 0);
            assert_int_equal(message_cut(m, NULL), 0);
            message_close(m);
            assert_int_equal(other.n_all, strlen(cases[i][0])); /* all of it, once */
            assert_memory_equal(other.all, cases[i][0], other.n_all);
            assert_int_equal(strstr(other.text, "broken[") != NULL, cases[i][1] != NULL);
            assert_true(must == 0 || strstr(other.text, "C[") == NULL);
            if (cases[i][1] != NULL) {
                assert_int_equal(other.n_args, strlen(cases[i][1]));
                assert_memory_equal(other.args, cases[i][1], other.n_args);
            }
        }
}

static void test_types(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *json;
    } cases[] = {
        {"s", "12", "\"12\""},     {"s", "null", "\"null\""},   {"i", "12", "12"},
        {"i", " -3\n", "-3"},      {"i", "x", "\"x\""},         {"i", "012", "\"012\""},
        {"i", "1.5", "1.5"},       {"n", "1e5", "1e5"},         {"b", "True", "true"},
        {"b", "false", "false"},   {"b", "yes", "\"yes\""},     {"a", "[1, \"x\"]", "[1, \"x\"]"},
        {"a", "[1,", "\"[1,\""},   {"o", "{\"a\":\n1}", "{\"a\":\n1}"}, {"o", "\"q\"", "\"q\""},
        {"z", "None", "null"},     {"z", "nil", "\"nil\""},     {"sn", "null", "null"},
        {"sn", "NULL", "null"},    {"sn", "nullable", "\"nullable\""},  {"sn", "5", "\"5\""},
        {"sn", "[1]", "\"[1]\""},  {"is", "5", "5"},            {"is", "5 m", "\"5 m\""},
        {"is", "\"5\"", "\"\\\"5\\\"\""}, {"e", "3", "\"3\""},  {"r", "{}", "{}"},
        {"l", "3", "\"3\""},       {"c", "3", "3"},             {"m", "[]", "[]"},
        {"u", "3", "\"3\""},       {"unknown", "3", "\"3\""},   {"i", "", "\"\""},
        {"sn", "", "\"\""},        {"n", "null", "null"},
    };
    const struct message_options options = options_of(WITH_TOOLS);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char answer[256], events[512];
        (void)snprintf(answer, sizeof answer, "<tool_call>\n<function=f>\n<parameter=%s>\n%s\n"
                       "</parameter>\n</function>\n</tool_call>", cases[i].key, cases[i].value);
        (void)snprintf(events, sizeof events, "call[f]A[{\"%s\": %s}]end[%s]END[]", cases[i].key,
                       cases[i].json, answer);
        check_splits(&options, answer, strlen(answer));
        assert_string_equal(whole.text, events);
    }
    assert_true(tool_schema_has(tools, "g") && !tool_schema_has(tools, "h"));
    assert_int_equal(tool_schema_types(tools, "g", "i"), TOOL_NUMBER);
    assert_int_equal(tool_schema_types(NULL, "g", "i"), 0);
    assert_int_equal(tool_schema_types(tools, "f", "is"), TOOL_NUMBER | TOOL_STRING);
}

/* ---- what is kept back, and limits ------------------------------------------------------ */

static void test_nothing_is_kept_without_reason(void **state)
{
    (void)state;
    const struct {
        const char *pushed, *events;
    } steps[] = {
        {"abc", "C[abc"},
        {" <", "C[abc "},
        {"t", "C[abc "},
        {"r", "C[abc <tr"},
        {"\n", "C[abc <tr"},
        {"\xc3", "C[abc <tr\n"},
        {"\xa9", "C[abc <tr\n\u00e9"},
        {"<function=f><parameter=a", "C[abc <tr\n\u00e9"},
        {">", "C[abc <tr\n\u00e9]call[f]A[{\"a\": \""},
        {"\nx", "C[abc <tr\n\u00e9]call[f]A[{\"a\": \"x"},
        {"\n", "C[abc <tr\n\u00e9]call[f]A[{\"a\": \"x"},
        {"y</par", "C[abc <tr\n\u00e9]call[f]A[{\"a\": \"x\\ny"},
    };
    struct message *m;
    const struct message_options options = options_of(0);
    other.n = other.n_all = 0;
    other.last = -1;
    assert_int_equal(message_open(&options, record_event, &other, &m, NULL), 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(message_push(m, steps[i].pushed, strlen(steps[i].pushed), NULL), 0);
        assert_string_equal(other.text, steps[i].events);
    }
    message_close(m);
}

static void test_limits(void **state)
{
    (void)state;
    static char answer[4096];
    struct message_options options = options_of(0);
    /* Deeper than a parser has to go. */
    size_t n = (size_t)snprintf(answer, sizeof answer, "<tool_call>{\"name\":\"f\",\"x\":");
    memset(answer + n, '[', JSON_SCAN_DEPTH);
    n += JSON_SCAN_DEPTH;
    run(&whole, &options, answer, n, NULL, 0);
    assert_int_equal(whole.text[0], 'C');
    /* A name that is too long. */
    n = (size_t)snprintf(answer, sizeof answer, "<function=%0300d></function>", 1);
    run(&whole, &options, answer, n, NULL, 0);
    assert_int_equal(whole.text[0], 'C');
    /* Bytes of one call. */
    options.call_bytes = 60;
    for (int held = 0; held < 2; held++) {
        options.hold_calls = held != 0;
        n = (size_t)snprintf(answer, sizeof answer, "<function=f><parameter=a>%0100d</parameter>"
                             "</function>", 1);
        check_splits(&options, answer, n);
        assert_true(held ? whole.text[0] == 'C' : strstr(whole.text, "]broken[") != NULL);
    }
    /* More parameters than any tool has. */
    options = options_of(0);
    n = (size_t)snprintf(answer, sizeof answer, "<function=f>");
    static char many[64 * 300];
    memcpy(many, answer, n);
    for (int i = 0; i < 258; i++)
        n += (size_t)snprintf(many + n, sizeof many - n, "<parameter=%d>1</parameter>", i);
    run(&whole, &options, many, n, NULL, 0);
    assert_non_null(strstr(whole.text, "]broken["));
    /* Too many newlines are text. */
    memset(answer, '\n', 200);
    check_splits(&options, answer, 200);
}

static void test_ids(void **state)
{
    (void)state;
    char a[MESSAGE_ID_BYTES], b[MESSAGE_ID_BYTES];
    message_call_id(1, 0, a);
    message_call_id(1, 0, b);
    assert_string_equal(a, b);
    assert_int_equal(strlen(a), MESSAGE_ID_BYTES - 1);
    assert_memory_equal(a, "call_", 5);
    for (unsigned i = 1; i < 1000; i++) {
        message_call_id(1, i, b);
        assert_string_not_equal(a, b);
        message_call_id(1 + i, 0, b);
        assert_string_not_equal(a, b);
    }
}

static void test_json_scan(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}", "[]", " [ ] ", "0", "-0", "12.5e+3", "1E5", "\"\"", "\"\\u0000\\/\"", "true", "null",
        "[1,[2,{\"a\":[]}],false]", "{\"\":{},\"a\":-1}", "\"\u00e9\U0001f600\"", "[0 ,1\n]",
    };
    static const char *const bad[] = {
        "", " ", "{", "[1,]", "{,}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "01", "+1", "1.",
        ".5", "1e", "-", "--1", "tru", "truee", "nul", "\"", "\"\n\"", "\"\\x\"", "\"\\u12\"",
        "\"\\ud800\"", "\"\\udc00\"", "\"\\ud800\\u0041\"", "[}", "{]", "[]]", "1 2", "\"\xff\"",
        "\"\xc3\"", "\"\xed\xa0\x80\"", "{\"a\":1 \"b\":2}", "'a'", "NaN", "[1 2]",
        "\xef\xbb\xbf[]",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(json_scan_text(good[i], strlen(good[i])) != 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(json_scan_text(bad[i], strlen(bad[i])), 0);
    for (unsigned byte = 0; byte < 0x80; byte++) { /* every escape decodes to its byte */
        char text[8] = "\"";
        const size_t n = 1 + json_escape((uint8_t)byte, text + 1);
        text[n] = '"';
        json_t *value = json_loadb(text, n + 1, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(value);
        assert_int_equal(json_string_length(value), 1);
        assert_int_equal(json_string_value(value)[0], byte);
        json_decref(value);
    }
}

/* ---- random answers --------------------------------------------------------------------- */

static uint64_t random_state = 7;

static unsigned pick(unsigned n)
{
    return (unsigned)(splitmix_next(&random_state) % n);
}

struct answer {
    char text[8192];
    size_t n;
};

static void say(struct answer *a, const char *text)
{
    const size_t n = strlen(text);
    if (a->n + n > 4000)
        return;
    memcpy(a->text + a->n, text, n);
    a->n += n;
}

static void say_text(struct answer *a, unsigned n_words)
{
    static const char *const words[] = {
        "yes", " ", "\n", "\n\n", "<", "</", "<t", "<b>", "\u00e9", "\u4f60\u597d", "\U0001f600",
        "{", "}", "\"", "\\", "\t", "<tool_call", "</think", "</parameter>", "<parameter=", "x < y",
        "</function", "<function", "</tool_call>", "null", "1", "\\u00e9", "'", "\r\n", ",",
    };
    for (unsigned i = pick(n_words + 1); i > 0; i--)
        say(a, words[pick(sizeof words / sizeof words[0])]);
}

static void say_json(struct answer *a, unsigned depth)
{
    static const char *const scalars[] = {"1", "-0.5e3", "true", "null", "\"a\"", "\"\\n\\u00e9\"",
                                          "\"</tool_call>\"", "\"\u4f60\"", "\"\\ud83d\\ude00\""};
    const unsigned kind = depth > 0 ? pick(4) : 3;
    if (kind == 3) {
        say(a, scalars[pick(sizeof scalars / sizeof scalars[0])]);
        return;
    }
    say(a, kind == 0 ? "[" : "{");
    for (unsigned i = 0, n = pick(3); i < n; i++) {
        say(a, i > 0 ? ", " : "");
        say(a, kind == 0 ? "" : i == 0 ? "\"k\": " : i == 1 ? "\"l\":" : "\"m\" : ");
        say_json(a, depth - 1);
    }
    say(a, kind == 0 ? "]" : "}");
}

static void say_json_call(struct answer *a)
{
    static const char *const spaces[] = {"", "\n", " ", "\r\n\t"};
    say(a, "<tool_call>");
    say(a, spaces[pick(4)]);
    const unsigned order = pick(4);
    say(a, order == 0 ? "{\"arguments\": {\"a\": " : "{\"name\": \"f\", \"arguments\": {\"a\": ");
    say_json(a, 3);
    say(a, order == 0 ? "}, \"name\": \"f\"}" : order == 1 ? "}, \"id\": 7}" : "}}");
    say(a, spaces[pick(4)]);
    say(a, "</tool_call>");
}

static void say_xml_call(struct answer *a)
{
    static const char *const keys[] = {"s", "i", "b", "a", "o", "sn", "is", "free", "n"};
    const bool is_bare = pick(3) == 0;
    say(a, is_bare ? "<function=" : "<tool_call>\n<function=");
    say(a, pick(4) > 0 ? "f" : "other");
    say(a, ">\n");
    for (unsigned i = 0, first = pick(9), n = pick(4); i < n; i++) {
        say(a, "<parameter=");
        say(a, keys[(first + i) % 9]);
        say(a, pick(4) > 0 ? ">\n" : ">");
        if (pick(3) == 0)
            say_json(a, 2);
        else
            say_text(a, 6);
        say(a, pick(4) > 0 ? "\n</parameter>\n" : "</parameter>");
    }
    say(a, "</function>");
    say(a, is_bare ? "" : "\n</tool_call>");
}

static void mutate(struct answer *a)
{
    for (unsigned i = pick(4); i > 0 && a->n > 1; i--) {
        const size_t at = pick((unsigned)a->n), n = a->n - at;
        switch (pick(4)) {
        case 0:
            a->text[at] = (char)pick(256);
            break;
        case 1:
            memmove(a->text + at, a->text + at + 1, n - 1);
            a->n--;
            break;
        case 2:
            memmove(a->text + at + 1, a->text + at, n);
            a->text[at] = "<>{}\"\\\n/="[pick(9)];
            a->n++;
            break;
        default:
            a->n = pick(3) == 0 ? at + 1 : a->n;
        }
    }
}

static void make_answer(struct answer *a)
{
    a->n = 0;
    if (pick(2) == 0) {
        say(a, pick(2) == 0 ? "<think>\n" : "");
        say_text(a, 8);
        say(a, pick(4) > 0 ? "\n</think>\n\n" : "</think>");
    }
    for (unsigned i = pick(4); i > 0; i--) {
        say_text(a, 5);
        if (pick(2) == 0)
            say_json_call(a);
        else
            say_xml_call(a);
        say(a, pick(2) == 0 ? "\n" : "");
    }
    say_text(a, 5);
    if (pick(2) == 0)
        mutate(a);
}

static int compare_sizes(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return x < y ? -1 : x > y;
}

static void test_every_split_gives_the_same(void **state)
{
    (void)state;
    static struct answer answer;
    static size_t cuts[64];
    unsigned n_splits = 0, n_calls = 0, n_broken = 0;
    for (unsigned i = 0; i < 800; i++) {
        make_answer(&answer);
        if (answer.n == 0)
            continue;
        const struct message_options options = options_of(i % 8);
        check_splits(&options, answer.text, answer.n);
        n_calls += strstr(whole.text, "]end[") != NULL;
        n_broken += strstr(whole.text, "]broken[") != NULL;
        n_splits += (unsigned)answer.n + 20;
        for (unsigned k = 0; k < 20; k++) {
            const unsigned n = 1 + pick(30);
            for (unsigned c = 0; c < n; c++)
                cuts[c] = pick((unsigned)answer.n + 1);
            qsort(cuts, n, sizeof cuts[0], compare_sizes);
            run(&other, &options, answer.text, answer.n, cuts, n);
            assert_same();
        }
    }
    print_message("%u splits; answers with calls %u, with broken ones %u\n", n_splits, n_calls,
                  n_broken);
    assert_true(n_splits > 100000 && n_calls > 200 && n_broken > 20);
}

/* Makes every allocation fail: an error, and no leaks. */
static void test_want_of_memory(void **state)
{
    (void)state;
    static const char answer[] = "<think>a</think>b\n" F(P("a", "b") P("sn", "null"))
        CALL("{\"arguments\":{\"a\":1},\"name\":\"f\"}");
    for (int held = 0; held < 2; held++) {
        const struct message_options options = options_of(held ? HELD | WITH_TOOLS : WITH_TOOLS);
        int rc = FM_ERR_NOMEM;
        for (long nth = 1; rc != 0; nth++) {
            assert_true(nth < 100);
            struct message *m = NULL;
            other.n = other.n_all = other.n_args = 0;
            other.last = -1;
            mem_fail_at(nth);
            rc = message_open(&options, record_event, &other, &m, NULL);
            if (rc == 0)
                rc = message_push(m, answer, sizeof answer - 1, NULL);
            if (rc == 0)
                rc = message_finish(m, NULL);
            mem_fail_at(0);
            assert_true(rc == 0 || rc == FM_ERR_NOMEM);
            message_close(m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_json_calls),
        cmocka_unit_test(test_broken_json_calls_are_text),
        cmocka_unit_test(test_xml_calls),
        cmocka_unit_test(test_broken_xml_calls_are_text),
        cmocka_unit_test(test_cut_calls),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_nothing_is_kept_without_reason),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_json_scan),
        cmocka_unit_test(test_every_split_gives_the_same),
        cmocka_unit_test(test_want_of_memory),
    };
    return cmocka_run_group_tests(tests, load_tools, free_tools);
}
