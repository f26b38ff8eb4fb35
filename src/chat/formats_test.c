/* The chat formats of model families other than Qwen3: the events of answers in each, whatever the
 * pieces they arrive in, and markers that count only as special tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "chat/dialect.h"
#include "chat/message.h"
#include "text/json_scan.h"
#include "text/unicode.h"

enum { RECORD_BYTES = 1 << 14 };

/* R[..] C[..] M[..] call[id name] A[..] end[raw] broken[raw]; neighbouring texts are joined. */
struct record {
    char text[RECORD_BYTES], all[RECORD_BYTES], args[RECORD_BYTES];
    size_t n, n_all, n_args;
    int last;
};

static void put(struct record *r, const char *text, size_t bytes)
{
    assert_true(r->n + bytes < RECORD_BYTES);
    memcpy(r->text + r->n, text, bytes);
    r->n += bytes;
    r->text[r->n] = '\0';
}

static void take(void *ctx, const struct message_event *e)
{
    static const char *const names[] = {"R[", "C[", "M[", "call[", "A[", "end[", "broken[", ""};
    struct record *r = ctx;
    const bool may_go_on = e->kind <= MESSAGE_MARKUP || e->kind == MESSAGE_CALL_ARGUMENTS;
    assert_int_equal(utf8_count_bad((const uint8_t *)e->text, e->text_bytes), 0);
    if (r->last >= 0 && r->last != (int)e->kind)
        put(r, "]", 1);
    if (r->last != (int)e->kind)
        put(r, names[e->kind], strlen(names[e->kind]));
    if (e->kind == MESSAGE_CALL_BEGIN) {
        const bool is_own = strncmp(e->id, "call_", 5) == 0;
        put(r, is_own ? "" : e->id, is_own ? 0 : strlen(e->id));
        put(r, " ", 1);
        put(r, e->name, strlen(e->name));
        r->n_args = 0;
    }
    put(r, e->text, e->text_bytes);
    if (!may_go_on && e->kind != MESSAGE_END)
        put(r, "]", 1);
    r->last = may_go_on ? (int)e->kind : -1;
    char *to = e->kind == MESSAGE_CALL_ARGUMENTS ? r->args + r->n_args : r->all + r->n_all;
    memcpy(to, e->text, e->text_bytes);
    *(e->kind == MESSAGE_CALL_ARGUMENTS ? &r->n_args : &r->n_all) += e->text_bytes;
    if (e->kind == MESSAGE_CALL_END)
        assert_int_equal(json_scan_text(r->args, r->n_args), '{');
}

/* ---- an answer ---------------------------------------------------------------------------- */

static json_t *tools;
static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
    "\"o\":{\"type\":\"object\"},\"b\":{\"type\":\"boolean\"}}}}}]";

static int load_tools(void **state)
{
    (void)state;
    tools = json_loads(tools_text, 0, NULL);
    return tools != NULL ? 0 : -1;
}

static int free_tools(void **state)
{
    (void)state;
    json_decref(tools);
    return 0;
}

/* `~` begins and ends the text of a special token, if the vocabulary has them. */
static bool is_special(const void *ctx, const char *text)
{
    (void)ctx;
    return strcmp(text, "</think>") != 0;
}

enum { THINKING = 1, HELD = 2, NO_CALLS = 4, MUST_CALL = 8, SPECIAL = 16 };

static struct message_options options_of(const char *dialect, unsigned flags,
                                         const struct dialect *list[3])
{
    list[0] = dialect_find(dialect);
    const bool has_json = strcmp(dialect, "glm") == 0 || strcmp(dialect, "qwen-xml") == 0;
    list[1] = has_json ? dialect_find("qwen-json") : NULL;
    list[2] = NULL;
    assert_non_null(list[0]);
    return (struct message_options){
        .dialects = list,
        .tools = tools,
        .is_thinking = (flags & THINKING) != 0,
        .hold_calls = (flags & HELD) != 0,
        .is_without_calls = (flags & NO_CALLS) != 0,
        .is_call = (flags & MUST_CALL) != 0,
        .is_special = (flags & SPECIAL) != 0 ? is_special : NULL,
    };
}

/* Pushes the answer in pieces of `step` bytes, the first of `first`. */
static void run(struct record *r, const struct message_options *options, const char *answer,
                size_t first, size_t step)
{
    struct message *m;
    bool is_marked = false;
    *r = (struct record){.last = -1};
    assert_int_equal(message_open(options, take, r, &m, NULL), 0);
    size_t piece = first;
    for (const char *at = answer; *at != '\0';) {
        size_t n = 0;
        for (; *at == '~'; at++)
            is_marked = !is_marked;
        while (n < piece && at[n] != '\0' && at[n] != '~')
            n++;
        assert_int_equal(is_marked ? message_push_marked(m, at, n, NULL)
                                   : message_push(m, at, n, NULL), 0);
        at += n;
        piece = step;
    }
    assert_int_equal(message_finish(m, NULL), 0);
    message_close(m);
    /* No byte is lost. */
    size_t n_all = 0;
    for (const char *at = answer; *at != '\0'; at++)
        if (*at != '~')
            assert_int_equal(r->all[n_all++], *at);
    assert_int_equal(r->n_all, n_all);
}

struct example {
    unsigned flags;
    const char *answer, *events;
};

static void check(const char *dialect, const struct example *list, size_t n)
{
    static struct record r;
    for (size_t i = 0; i < n; i++) {
        const struct dialect *dialects[3];
        const struct message_options options = options_of(dialect, list[i].flags, dialects);
        const size_t bytes = strlen(list[i].answer);
        for (size_t cut = 1; cut <= bytes + 1; cut++) {
            run(&r, &options, list[i].answer, cut, bytes + 1);
            assert_string_equal(r.text, list[i].events);
        }
        run(&r, &options, list[i].answer, 1, 1);
        assert_string_equal(r.text, list[i].events);
    }
}

#define CHECK(dialect, list) check(dialect, list, sizeof list / sizeof list[0])

/* ---- Harmony ------------------------------------------------------------------------------ */

#define ANALYSIS(text) "<|channel|>analysis<|message|>" text "<|end|>"
#define START "<|start|>assistant"
#define FINAL "<|channel|>final<|message|>"
#define COMMENTARY "<|channel|>commentary"

static void test_harmony(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, FINAL "Hi\n", "M[" FINAL "]C[Hi\n]"},
        {0, ANALYSIS("\nhm\n") START FINAL "\nHi\n<|return|>",
         "M[<|channel|>analysis<|message|>]R[\nhm\n]M[<|end|>" START FINAL "]C[\nHi\n]"
         "M[<|return|>]"},
        /* The recipient after the channel, and in the role part. */
        {0, COMMENTARY " to=functions.f <|constrain|>json<|message|>{\"i\": 1}<|call|>",
         "call[ f]A[{\"i\": 1}]end[" COMMENTARY
         " to=functions.f <|constrain|>json<|message|>{\"i\": 1}<|call|>]"},
        {0, " to=functions.f" COMMENTARY " json<|message|>{}",
         "call[ f]A[{}]end[ to=functions.f" COMMENTARY " json<|message|>{}]"},
        {0, ANALYSIS("a") START " to=functions.f" COMMENTARY
         "<|message|>{\"s\": \"<|end|>\"}<|call|>",
         "M[<|channel|>analysis<|message|>]R[a]M[<|end|>]call[ f]A[{\"s\": \"<|end|>\"}]"
         "end[" START " to=functions.f" COMMENTARY "<|message|>{\"s\": \"<|end|>\"}<|call|>]"},
        {0, COMMENTARY " to=functions.f<|message|><|call|>",
         "call[ f]A[{}]end[" COMMENTARY " to=functions.f<|message|><|call|>]"},
        {0, COMMENTARY " to=functions.user<|message|>{}<|call|>",
         "call[ user]A[{}]end[" COMMENTARY " to=functions.user<|message|>{}<|call|>]"},
        {0, COMMENTARY " to=user<|message|>{}<|end|>",
         "M[" COMMENTARY " to=user<|message|>]C[{}]M[<|end|>]"},
        /* Text before a call, two calls, analysis between them. */
        {0, COMMENTARY "<|message|>I look.<|end|>" START COMMENTARY
         " to=functions.f<|message|>{}<|call|>"
         START ANALYSIS("b") START COMMENTARY " to=browser.search<|message|>{}",
         "M[" COMMENTARY "<|message|>]C[I look.]M[<|end|>]call[ f]A[{}]"
         "end[" START COMMENTARY " to=functions.f<|message|>{}<|call|>]"
         "M[" START "<|channel|>analysis<|message|>]R[b]M[<|end|>]call[ browser.search]A[{}]"
         "end[" START COMMENTARY " to=browser.search<|message|>{}]"},
        /* A call that is not JSON is content; a call that breaks later is broken. */
        {0, COMMENTARY " to=python<|message|>print(1)<|call|>",
         "M[" COMMENTARY " to=python<|message|>]C[print(1)]M[<|call|>]"},
        {0, COMMENTARY " to=functions.f<|message|>{\"a\":]<|call|>",
         "call[ f]A[{\"a\":]broken[" COMMENTARY
         " to=functions.f<|message|>{\"a\":]C[]]M[<|call|>]"},
        {HELD, COMMENTARY " to=functions.f<|message|>{\"a\":]<|call|>",
         "M[" COMMENTARY " to=functions.f<|message|>]C[{\"a\":]]M[<|call|>]"},
        {NO_CALLS, COMMENTARY " to=functions.f<|message|>{}<|call|>",
         "M[" COMMENTARY " to=functions.f<|message|>]C[{}]M[<|call|>]"},
        {MUST_CALL, " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
         "call[ f]A[{}]end[ to=functions.f<|channel|>commentary json<|message|>{}<|call|>]"},
        /* Two channels: the last one counts. */
        {0, COMMENTARY " to=assistant<|channel|>analysis<|message|>a<|end|>",
         "M[" COMMENTARY " to=assistant<|channel|>analysis<|message|>]R[a]M[<|end|>]"},
        {0, COMMENTARY FINAL "b", "M[" COMMENTARY FINAL "]C[b]"},
        /* Headers that are missing or cut. */
        {0, "Hi <|end|>", "C[Hi ]M[<|end|>]"},
        {0, "to", "C[to]"},
        {0, "tomorrow", "C[tomorrow]"},
        {0, "<|channel|>fin", "M[<|channel|>fin]"},
        {0, FINAL "a<|channel|>final<|message|>b",
         "M[" FINAL "]C[a]M[" FINAL "]C[b]"},
        {0, START "<|message|>x", "M[" START "<|message|>]C[x]"},
        {0, FINAL "a <| b <|channel c", "M[" FINAL "]C[a <| b <|channel c]"},
    };
    CHECK("harmony", list);
}

/* ---- GLM ---------------------------------------------------------------------------------- */

#define ARG(key, value) "<arg_key>" key "</arg_key>\n<arg_value>" value "</arg_value>\n"
#define GLM(inner) "<tool_call>f\n" inner "</tool_call>"

static void test_glm(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, "\n<think>hm</think>\nYes.\n" GLM(ARG("s", "1") ARG("i", "1")),
         "M[\n<think>]R[hm]M[</think>\n]C[Yes.]call[ f]A[{\"s\": \"1\", \"i\": 1}]"
         "end[\n" GLM(ARG("s", "1") ARG("i", "1")) "]"},
        {0, GLM("") "\n" GLM(ARG("o", "{\"a\": [1]}")),
         "call[ f]A[{}]end[" GLM("") "]call[ f]A[{\"o\": {\"a\": [1]}}]"
         "end[\n" GLM(ARG("o", "{\"a\": [1]}")) "]"},
        /* GLM-4.7: nothing between the tags. */
        {0, "<tool_call>f<arg_key>s</arg_key><arg_value>\nx\n</arg_value></tool_call>",
         "call[ f]A[{\"s\": \"\\nx\\n\"}]"
         "end[<tool_call>f<arg_key>s</arg_key><arg_value>\nx\n</arg_value></tool_call>]"},
        /* A value may contain its closing tag and other markers. */
        {0, GLM(ARG("s", "a</arg_value> <b> </tool_call>")),
         "call[ f]A[{\"s\": \"a</arg_value> <b> </tool_call>\"}]"
         "end[" GLM(ARG("s", "a</arg_value> <b> </tool_call>")) "]"},
        {0, GLM(ARG("i", "many") ARG("b", "True")),
         "call[ f]A[{\"i\": \"many\", \"b\": true}]end[" GLM(ARG("i", "many") ARG("b", "True"))
         "]"},
        {0, "<tool_call>no call", "C[<tool_call>no call]"},
        {0, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
         "call[ f]A[{}]end[<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>]"},
        {0, GLM(ARG("s", "1") "<arg_key>s</arg_key>\n<arg_value>2</arg_value></tool_call>"),
         "call[ f]A[{\"s\": \"1\"]broken[<tool_call>f\n" ARG("s", "1") "<arg_key>s</arg_key>\n"
         "<arg_value]C[>2</arg_value></tool_call></tool_call>]"},
        {HELD, GLM("<arg_key>s</arg_key><arg_value>x"),
         "C[" GLM("<arg_key>s</arg_key><arg_value>x") "]"},
        {NO_CALLS, GLM(""), "C[" GLM("") "]"},
        {THINKING, "hm</think>", "R[hm]M[</think>]"},
    };
    CHECK("glm", list);
}

/* ---- Qwen3.5 ------------------------------------------------------------------------------ */

#define QWEN(name) "<tool_call>\n<function=" name ">\n<parameter=s>\nx\n</parameter>\n" \
                   "</function>\n</tool_call>"

/* A call that the model makes without ending its reasoning. */
static void test_qwen_early(void **state)
{
    (void)state;
    static const struct example list[] = {
        {THINKING, QWEN("f"), "call[ f]A[{\"s\": \"x\"}]end[" QWEN("f") "]"},
        {THINKING, "hm\n" QWEN("f") "\n" QWEN("f"),
         "R[hm]call[ f]A[{\"s\": \"x\"}]end[\n" QWEN("f") "]"
         "call[ f]A[{\"s\": \"x\"}]end[\n" QWEN("f") "]"},
        /* The end of reasoning may follow, once. */
        {THINKING, "hm\n" QWEN("f") "\n</think>\n\nyes</think>",
         "R[hm]call[ f]A[{\"s\": \"x\"}]end[\n" QWEN("f") "]M[\n</think>\n\n]C[yes</think>]"},
        {0, QWEN("f") "</think>",
         "call[ f]A[{\"s\": \"x\"}]end[" QWEN("f") "]C[</think>]"},
        /* What is no call of a known tool is thought about. */
        {THINKING, QWEN("g") "</think>", "R[" QWEN("g") "]M[</think>]"},
        {THINKING, "a <tool_call></think>b", "R[a <tool_call>]M[</think>]C[b]"},
        {THINKING, "<function=f>\n</function></think>",
         "R[<function=f>\n</function>]M[</think>]"},
        {THINKING, "<tool_call>{\"name\": \"f\"}</tool_call>",
         "R[<tool_call>{\"name\": \"f\"}</tool_call>]"},
        {THINKING | NO_CALLS, QWEN("f"), "R[" QWEN("f") "]"},
        {THINKING, "</think>" QWEN("g"),
         "M[</think>]call[ g]A[{\"s\": \"x\"}]end[" QWEN("g") "]"},
    };
    CHECK("qwen-xml", list);
}

/* ---- MiniMax and DSML --------------------------------------------------------------------- */

#define INVOKE(inner) "<invoke name=\"f\">\n" inner "</invoke>\n"
#define PARAMETER(key, value) "<parameter name=\"" key "\">" value "</parameter>\n"
#define MINIMAX(inner) "<minimax:tool_call>\n" inner "</minimax:tool_call>"

static void test_minimax(void **state)
{
    (void)state;
    static const struct example list[] = {
        {THINKING, "hm\n</think>\n\nYes.\n" MINIMAX(INVOKE(PARAMETER("s", "a\nb") PARAMETER("i",
         "3"))),
         "R[hm]M[\n</think>\n\n]C[Yes.]call[ f]A[{\"s\": \"a\\nb\", \"i\": 3}]"
         "end[\n" MINIMAX(INVOKE(PARAMETER("s", "a\nb") PARAMETER("i", "3"))) "]"},
        {0, MINIMAX(INVOKE("") INVOKE(PARAMETER("b", "false"))),
         "call[ f]A[{}]end[<minimax:tool_call>\n" INVOKE("") "]call[ f]A[{\"b\": false}]"
         "end[" INVOKE(PARAMETER("b", "false")) "</minimax:tool_call>]"},
        {0, MINIMAX(INVOKE(PARAMETER("s", "</parameter> x </invoke> <parameter"))),
         "call[ f]A[{\"s\": \"</parameter> x </invoke> <parameter\"}]"
         "end[" MINIMAX(INVOKE(PARAMETER("s", "</parameter> x </invoke> <parameter"))) "]"},
        {0, MINIMAX("<invoke name=\"f\">\n{\"i\": 1}\n</invoke>\n"),
         "call[ f]A[{\"i\": 1}]end[" MINIMAX("<invoke name=\"f\">\n{\"i\": 1}\n</invoke>\n") "]"},
        {0, "<minimax:tool_call>\n<invoke name=\"f\"></invoke>",
         "call[ f]A[{}]end[<minimax:tool_call>\n<invoke name=\"f\"></invoke>]"},
        {0, "<invoke name=\"f\"></invoke>", "C[<invoke name=\"f\"></invoke>]"},
        {0, "<minimax:tool_call> hello", "C[<minimax:tool_call> hello]"},
        {0, MINIMAX("<invoke name=\"\"></invoke>"), "C[" MINIMAX("<invoke name=\"\"></invoke>")
         "]"},
        {0, MINIMAX("<invoke name=\"f\"><parameter name=\"s\">x"),
         "call[ f]A[{\"s\": \"x</minimax:tool_call>]"
         "broken[" MINIMAX("<invoke name=\"f\"><parameter name=\"s\">x") "]"},
    };
    CHECK("minimax", list);
}

#define D "｜DSML｜"
#define STRING(key, value) "<" D "parameter name=\"" key "\" string=\"true\">" value "</" D \
    "parameter>\n"
#define OTHER(key, value) "<" D "parameter name=\"" key "\" string=\"false\">" value "</" D \
    "parameter>\n"
#define DSML(block, inner) "<" D block ">\n<" D "invoke name=\"f\">\n" inner "</" D "invoke>\n</" \
    D block ">"

static void test_dsml(void **state)
{
    (void)state;
    static const struct example functions[] = {
        {0, "Yes.\n\n" DSML("function_calls", STRING("i", "12") OTHER("s", "[1, {}]")),
         "C[Yes.]call[ f]A[{\"i\": \"12\", \"s\": [1, {}]}]"
         "end[\n\n" DSML("function_calls", STRING("i", "12") OTHER("s", "[1, {}]")) "]"},
        {0, "</think>" DSML("function_calls", OTHER("x", "null")),
         "M[</think>]call[ f]A[{\"x\": null}]end[" DSML("function_calls", OTHER("x", "null")) "]"},
        {0, DSML("function_calls", OTHER("x", "not JSON")),
         "call[ f]A[{\"x\": \"not JSON\"}]end[" DSML("function_calls", OTHER("x", "not JSON")) "]"},
        {0, DSML("function_calls", "<" D "parameter name=\"i\">7</" D "parameter>"),
         "call[ f]A[{\"i\": 7}]"
         "end[" DSML("function_calls", "<" D "parameter name=\"i\">7</" D "parameter>") "]"},
        {0, "a </think>", "C[a </think>]"},
        {0, DSML("tool_calls", ""), "C[" DSML("tool_calls", "") "]"},
        {0, "<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" x=\"1\">",
         "C[<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"s\" x=\"1\">]"},
    };
    CHECK("dsml-functions", functions);
    static const struct example tool_calls[] = {
        {THINKING, "hm</think>" DSML("tool_calls", "\n"),
         "R[hm]M[</think>]call[ f]A[{}]end[" DSML("tool_calls", "\n") "]"},
        {THINKING, "hm\n\n" DSML("tool_calls", ""), "R[hm]call[ f]A[{}]end[\n\n"
         DSML("tool_calls", "") "]"},
        {THINKING, "a <" D "tool_calls> b</think>c", "R[a <" D "tool_calls> b]M[</think>]C[c]"},
        {0, DSML("tool_calls", STRING("s", "</" D "parameter> ")),
         "call[ f]A[{\"s\": \"</" D "parameter> \"}]"
         "end[" DSML("tool_calls", STRING("s", "</" D "parameter> ")) "]"},
        {0, DSML("tool_calls", "{\"i\": 1}"), "call[ f]A[{\"i\": 1}]end[" DSML("tool_calls",
         "{\"i\": 1}") "]"},
    };
    CHECK("dsml-tools", tool_calls);
}

/* ---- Kimi and DeepSeek -------------------------------------------------------------------- */

#define K_OPEN "<|tool_calls_section_begin|>"
#define K_CLOSE "<|tool_calls_section_end|>"
#define K_CALL(id, json) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" json \
    "<|tool_call_end|>"

static void test_kimi(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, "Yes." K_OPEN K_CALL("functions.f:3", "{\"i\": 1}") K_CALL("functions.g:4", "{}")
         K_CLOSE,
         "C[Yes.]call[functions.f:3 f]A[{\"i\": 1}]end[" K_OPEN K_CALL("functions.f:3",
         "{\"i\": 1}")
         "]call[functions.g:4 g]A[{}]end[" K_CALL("functions.g:4", "{}") K_CLOSE "]"},
        /* The same id again is not an id; nor is a name alone. */
        {0, K_OPEN K_CALL("functions.f:0", "{}") K_CALL("functions.f:0", "") K_CALL(" f ",
         " {} ") K_CLOSE,
         "call[functions.f:0 f]A[{}]end[" K_OPEN K_CALL("functions.f:0", "{}") "]"
         "call[ f]A[{}]end[" K_CALL("functions.f:0", "") "]"
         "call[ f]A[{}]end[" K_CALL(" f ", " {} ") K_CLOSE "]"},
        {MUST_CALL, K_OPEN K_CALL("functions.a.b-c:0", "{}") K_CLOSE,
         "call[ a.b-c]A[{}]end[" K_OPEN K_CALL("functions.a.b-c:0", "{}") K_CLOSE "]"},
        /* A call ends reasoning that the model has not ended. */
        {THINKING, "hm" K_OPEN K_CALL("functions.f:0", "{}") K_CLOSE,
         "R[hm]call[functions.f:0 f]A[{}]end[" K_OPEN K_CALL("functions.f:0", "{}") K_CLOSE "]"},
        {THINKING, "a\n" K_OPEN "b</think>c", "R[a\n" K_OPEN "b]M[</think>]C[c]"},
        {THINKING | HELD, K_OPEN K_CALL("functions.f:0", "{]") "</think>c",
         "R[" K_OPEN K_CALL("functions.f:0", "{]") "]M[</think>]C[c]"},
        {0, K_OPEN K_CALL("functions.f:0", "{\"s\": \"" K_CLOSE "\"}"),
         "call[functions.f:0 f]A[{\"s\": \"" K_CLOSE "\"}]"
         "end[" K_OPEN K_CALL("functions.f:0", "{\"s\": \"" K_CLOSE "\"}") "]"},
        {0, K_OPEN K_CALL("functions.f:0", "oh") K_CLOSE,
         "C[" K_OPEN K_CALL("functions.f:0", "oh") K_CLOSE "]"},
        {0, K_OPEN K_CALL("functions.f:0", "{oh"), "call[functions.f:0 f]A[{]broken[" K_OPEN
         "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{]C[oh<|tool_call_end|>]"},
        {0, "<|tool_call", "C[<|tool_call]"},
        /* Without the markers that end calls. */
        {0, "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{} "
         K_CALL("functions.g:1", "{}") K_CLOSE,
         "call[functions.f:0 f]A[{}]"
         "end[<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{} ]"
         "call[functions.g:1 g]A[{}]end[" K_CALL("functions.g:1", "{}") K_CLOSE "]"},
        {0, K_OPEN "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}" K_CLOSE "a",
         "call[functions.f:0 f]A[{}]end[" K_OPEN
         "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}" K_CLOSE "]C[a]"},
    };
    CHECK("kimi", list);
}

#define S_OPEN "<｜tool▁calls▁begin｜>"
#define S_CLOSE "<｜tool▁calls▁end｜>"
#define S_CALL(name, json) "<｜tool▁call▁begin｜>" name "<｜tool▁sep｜>" json "<｜tool▁call▁end｜>"

static void test_deepseek(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, "Yes." S_OPEN S_CALL("f", "{\"i\": 1}") S_CALL("functions.g:1", "{}") S_CLOSE,
         "C[Yes.]call[ f]A[{\"i\": 1}]end[" S_OPEN S_CALL("f", "{\"i\": 1}") "]"
         "call[ functions.g:1]A[{}]end[" S_CALL("functions.g:1", "{}") S_CLOSE "]"},
        {0, "</think>Hi", "M[</think>]C[Hi]"},
        {0, "\n</think>\n\nHi", "M[\n</think>\n\n]C[Hi]"},
        {THINKING, "hm" S_OPEN "</think>Hi", "R[hm" S_OPEN "]M[</think>]C[Hi]"},
        {0, S_CALL("f", "{}"), "call[ f]A[{}]end[" S_CALL("f", "{}") "]"},
        {0, S_OPEN S_CALL("f", "```json"), "C[" S_OPEN S_CALL("f", "```json") "]"},
        {0, S_OPEN S_CALL("", "{}"), "C[" S_OPEN S_CALL("", "{}") "]"},
    };
    CHECK("deepseek", list);
}

#define V3_CALL(name, json) S_CALL("function", name "\n```json\n" json "\n```")

/* Both forms of DeepSeek's calls are read in both dialects. */
static void test_deepseek_v3(void **state)
{
    (void)state;
    static const struct example list[] = {
        {0, "Yes.\n" S_OPEN V3_CALL("f", "{\"i\": 1}") "\n" V3_CALL("g", "{}") S_CLOSE,
         "C[Yes.]call[ f]A[{\"i\": 1}]end[\n" S_OPEN V3_CALL("f", "{\"i\": 1}") "\n]"
         "call[ g]A[{}]end[" V3_CALL("g", "{}") S_CLOSE "]"},
        {THINKING, "hm\n</think>\n\n" S_OPEN V3_CALL("f", "{\n  \"s\": \"a\"\n}") S_CLOSE,
         "R[hm]M[\n</think>\n\n]call[ f]A[{\n  \"s\": \"a\"\n}]"
         "end[" S_OPEN V3_CALL("f", "{\n  \"s\": \"a\"\n}") S_CLOSE "]"},
        /* Markers and fences in a string are text. */
        {0, S_OPEN V3_CALL("f", "{\"s\": \"\\n```<｜tool▁call▁end｜>\"}") S_CLOSE,
         "call[ f]A[{\"s\": \"\\n```<｜tool▁call▁end｜>\"}]"
         "end[" S_OPEN V3_CALL("f", "{\"s\": \"\\n```<｜tool▁call▁end｜>\"}") S_CLOSE "]"},
        /* A fence, the newline of a fence or the arguments are missing; the type is another. */
        {0, S_CALL("function", "f\n{}"), "call[ f]A[{}]end[" S_CALL("function", "f\n{}") "]"},
        {0, S_CALL("tool", " f \r\n```json{}```"),
         "call[ f]A[{}]end[" S_CALL("tool", " f \r\n```json{}```") "]"},
        {0, S_CALL("function", "f\n```json\n```"),
         "call[ f]A[{}]end[" S_CALL("function", "f\n```json\n```") "]"},
        {0, S_CALL("f", "{\"i\": 1}"), "call[ f]A[{\"i\": 1}]end[" S_CALL("f", "{\"i\": 1}") "]"},
        {0, S_CALL("f", ""), "call[ f]A[{}]end[" S_CALL("f", "") "]"},
        {0, S_CALL("f", " {}"), "call[ f]A[{}]end[" S_CALL("f", " {}") "]"},
        /* The answer ends early. */
        {0, S_OPEN "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n`",
         "call[ f]A[{}]end[" S_OPEN "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n`]"},
        {0, S_OPEN "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"s\": \"",
         "call[ f]A[{\"s\": \"]broken[" S_OPEN
         "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"s\": \"]"},
        /* A break inside a character. */
        {0, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<＝", "call[ f]A[{}]"
         "broken[<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}]C[<＝]"},
        {0, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end＝", "call[ f]A[{}]"
         "broken[<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end]C[＝]"},
        {0, S_CALL("function", "f"), "C[" S_CALL("function", "f") "]"},
        {0, S_CALL("function", "f\nx"), "C[" S_CALL("function", "f\nx") "]"},
        {0, S_CALL("function", "f\n```python\n{}```"), "C[" S_CALL("function",
         "f\n```python\n{}```") "]"},
    };
    CHECK("deepseek-v3", list);
    CHECK("deepseek", list);
}

/* A call that becomes too long breaks anywhere, but no event ends inside a character. */
static void test_long_calls(void **state)
{
    (void)state;
    static struct record r;
    static const char kimi[] = K_OPEN K_CALL("functions.f:0", "{\"s\": \"é€😀é€😀\"}") K_CLOSE;
    static const char deepseek[] = S_OPEN V3_CALL("f", "{\"s\": \"é€😀é€😀\"}") S_CLOSE;
    const struct dialect *dialects[3];
    for (size_t n = 1; n <= sizeof deepseek; n++)
        for (unsigned flags = 0; flags <= (MUST_CALL | HELD); flags += HELD) {
            struct message_options options = options_of("kimi", flags & ~NO_CALLS, dialects);
            options.call_bytes = n;
            run(&r, &options, kimi, 1, 1);
            options = options_of("deepseek-v3", flags & ~NO_CALLS, dialects);
            options.call_bytes = n;
            run(&r, &options, deepseek, 1, 1);
        }
}

/* ---- special tokens ----------------------------------------------------------------------- */

/* Where the vocabulary has a token for a marker, its characters alone are text. */
static void test_special(void **state)
{
    (void)state;
    static const struct example kimi[] = {
        {SPECIAL, K_OPEN K_CALL("functions.f:0", "{}"),
         "C[" K_OPEN K_CALL("functions.f:0", "{}") "]"},
        {SPECIAL, "<think>a</think>b", "C[<think>a</think>b]"},
        {SPECIAL, "~<think>~a</think>b", "M[<think>]R[a]M[</think>]C[b]"},
        {SPECIAL, "a~" K_OPEN "<|tool_call_begin|>~functions.f:0~<|tool_call_argument_begin|>~{}"
         "~<|tool_call_end|>" K_CLOSE "~",
         "C[a]call[functions.f:0 f]A[{}]end[" K_OPEN K_CALL("functions.f:0", "{}") K_CLOSE "]"},
        /* A marker lies in one kind of text. */
        {SPECIAL, "~<|tool_calls_~section_begin|>", "C[" K_OPEN "]"},
        {SPECIAL | THINKING, "a~</thi~nk>b", "R[a</think>b]"},
        {SPECIAL, "<~" K_OPEN "<|tool_call_begin|>~functions.f:0~<|tool_call_argument_begin|>~{}",
         "C[<]call[functions.f:0 f]A[{}]end[" K_OPEN
         "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}]"},
        /* A broken call, and the next one. */
        {SPECIAL, "~" K_OPEN "~x~" K_OPEN
         "<|tool_call_begin|>~functions.f:0~<|tool_call_argument_begin|>~{}",
         "C[" K_OPEN "x]call[functions.f:0 f]A[{}]end[" K_OPEN
         "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}]"},
        {SPECIAL, "~" K_OPEN K_OPEN
         "<|tool_call_begin|>~functions.f:0~<|tool_call_argument_begin|>~{}",
         "C[" K_OPEN "]call[functions.f:0 f]A[{}]end[" K_OPEN
         "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}]"},
    };
    CHECK("kimi", kimi);
    static const struct example harmony[] = {
        {SPECIAL, "~<|channel|>~final~<|message|>~a<|end|><|start|>assistant" FINAL "~<|return|>~",
         "M[" FINAL "]C[a<|end|><|start|>assistant" FINAL "]M[<|return|>]"},
        {SPECIAL, ANALYSIS("a"), "C[" ANALYSIS("a") "]"},
        {SPECIAL, "~<|channel|>~analysis~<|message|>~a~<|end|><|start|>~assistant~<|channel|>~final"
         "~<|message|>~b",
         "M[<|channel|>analysis<|message|>]R[a]M[<|end|>" START FINAL "]C[b]"},
        {SPECIAL, " to=functions.f~<|channel|>~commentary json<|message|>~<|message|>~{}",
         "call[ f]A[{}]end[ to=functions.f" COMMENTARY " json<|message|><|message|>{}]"},
    };
    CHECK("harmony", harmony);
}

/* What a schema may constrain: the answer itself, not its frames. */
static void test_places(void **state)
{
    (void)state;
    static const struct {
        const char *push;
        enum message_place place;
    } steps[] = {
        {"<|channel|>analysis", MESSAGE_IN_HEADER}, {"<|message|>", MESSAGE_IN_REASONING},
        {"a", MESSAGE_IN_REASONING},              {"<|end|>", MESSAGE_IN_HEADER},
        {START COMMENTARY "<|message|>b", MESSAGE_BETWEEN},
        {"<|end|>" START FINAL, MESSAGE_IN_ANSWER}, {"c", MESSAGE_IN_ANSWER},
    };
    static struct record r;
    const struct dialect *list[3];
    const struct message_options options = options_of("harmony", 0, list);
    struct message *m;
    r = (struct record){.last = -1};
    assert_int_equal(message_open(&options, take, &r, &m, NULL), 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(message_push(m, steps[i].push, strlen(steps[i].push), NULL), 0);
        assert_int_equal(message_place(m), steps[i].place);
    }
    message_close(m);
    const struct message_options other = options_of("kimi", 0, list);
    assert_int_equal(message_open(&other, take, &r, &m, NULL), 0);
    assert_int_equal(message_place(m), MESSAGE_ANYWHERE);
    message_close(m);
}

/* Text goes on as soon as it cannot be a marker. */
static void test_streams(void **state)
{
    (void)state;
    static const struct {
        const char *push, *events;
    } steps[] = {
        {FINAL, "M[" FINAL}, {"ab", "M[" FINAL "]C[ab"}, {"<", "M[" FINAL "]C[ab"},
        {"|end", "M[" FINAL "]C[ab"}, {"x", "M[" FINAL "]C[ab<|endx"},
        {"<|end|>", "M[" FINAL "]C[ab<|endx]M[<|end|>"},
        {START COMMENTARY " to=functions.f<|message|>", "M[" FINAL "]C[ab<|endx]M[<|end|>"},
        {"{", "M[" FINAL "]C[ab<|endx]M[<|end|>]call[ f]A[{"},
        {"\"s\": \"t", "M[" FINAL "]C[ab<|endx]M[<|end|>]call[ f]A[{\"s\": \"t"},
    };
    static struct record r;
    const struct dialect *list[3];
    const struct message_options options = options_of("harmony", 0, list);
    struct message *m;
    r = (struct record){.last = -1};
    assert_int_equal(message_open(&options, take, &r, &m, NULL), 0);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        assert_int_equal(message_push(m, steps[i].push, strlen(steps[i].push), NULL), 0);
        assert_string_equal(r.text, steps[i].events);
    }
    message_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_harmony), cmocka_unit_test(test_glm),
        cmocka_unit_test(test_minimax), cmocka_unit_test(test_dsml),
        cmocka_unit_test(test_kimi),    cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_deepseek_v3), cmocka_unit_test(test_long_calls),
        cmocka_unit_test(test_special), cmocka_unit_test(test_places),
        cmocka_unit_test(test_streams), cmocka_unit_test(test_qwen_early),
    };
    return cmocka_run_group_tests(tests, load_tools, free_tools);
}
