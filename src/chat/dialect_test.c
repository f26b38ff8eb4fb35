#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "chat/dialect.h"
#include "chat/message.h"
#include "chat/reasoning.h"

/* ---- the lists --------------------------------------------------------------------------- */

static const char *texts[128];
static size_t n_texts;

static void add(const char *text)
{
    assert_true(n_texts < sizeof texts / sizeof texts[0]);
    texts[n_texts++] = text;
}

/* The property that chat/marker.h relies on. */
static void test_first_bytes(void **state)
{
    (void)state;
    for (const struct reasoning *r = reasoning_list; r->begin != NULL; r++) {
        add(r->begin);
        add(r->end);
        assert_non_null(strstr(r->closing, r->end));
    }
    for (const struct dialect *const *d = dialect_all(); *d != NULL; d++)
        for (const struct dialect_opener *o = (*d)->openers; o->text != NULL; o++) {
            if (!o->is_inner)
                add(o->text);
            if (o->stray != NULL)
                add(o->stray);
        }
    for (const struct dialect *const *d = dialect_all(); *d != NULL; d++) {
        const struct dialect_frames *frames = (*d)->frames;
        for (const char *const *t = frames != NULL ? frames->begins : NULL; t && *t != NULL; t++)
            add(*t);
        for (const char *const *t = frames != NULL ? frames->ends : NULL; t && *t != NULL; t++)
            add(*t);
        if (frames != NULL)
            add(frames->message);
    }
    for (size_t i = 0; i < n_texts; i++) {
        assert_true(strlen(texts[i]) > 1 && strlen(texts[i]) < MARKER_BYTES);
        for (size_t k = 0; k < n_texts; k++)
            assert_null(strchr(texts[i] + 1, texts[k][0]));
    }
}

static void test_entries(void **state)
{
    (void)state;
    const struct dialect *chosen[DIALECTS_MAX + 1];
    for (const struct dialect *const *d = dialect_all(); *d != NULL; d++) {
        assert_ptr_equal(dialect_find((*d)->name), *d);
        assert_non_null((*d)->openers[0].text);
        for (const char *const *token = (*d)->tokens; *token != NULL; token++)
            assert_true(dialect_is_marker(dialect_all(), *token, strlen(*token)));
        /* A template that contains its text selects it, also if the template is only for tools. */
        char shown[128];
        const char *also = (*d)->also_in_template;
        (void)snprintf(shown, sizeof shown, "%s{}%s", also != NULL ? also : "", (*d)->in_template);
        const struct dialect_text text = {shown, strlen(shown)};
        for (unsigned k = 0; k < 2; k++) {
            const struct dialect_text templates[2] = {[0] = {"x", 1}, [1] = {NULL, 0}};
            struct dialect_text both[2] = {templates[0], templates[1]};
            both[k] = text;
            dialect_choose(both, 2, chosen);
            unsigned i = 0;
            while (chosen[i] != NULL && chosen[i] != *d)
                i++;
            assert_ptr_equal(chosen[i], *d);
        }
    }
    assert_null(dialect_find("none"));
    assert_false(dialect_is_marker(dialect_all(), "<tool_cal", 9));
    assert_true(dialect_is_marker(dialect_all(), "</think>", 8));
}

/* A text for every dialect that templates are told apart by. */
static void test_choices(void **state)
{
    (void)state;
    static const struct {
        const char *template, *names;
    } cases[] = {
        {"<tool_call>", "qwen-json qwen-xml "},
        {"<tool_call>{name}<arg_key>", "glm qwen-json "},
        {"'｜DSML｜' + 'function_calls>'", "dsml-functions "},
        {"'｜DSML｜' + 'tool_calls>'", "dsml-tools "},
        {"<｜tool▁calls▁begin｜>", "deepseek "},
        {"<｜tool▁calls▁begin｜>{name}\\n```json\\n", "deepseek-v3 "},
        {"<|tool_calls_section_begin|>", "kimi "},
        {"<minimax:tool_call>", "minimax "},
        {"<|channel|>final<|message|>", "harmony "},
        {"<|message|>", "qwen-json qwen-xml "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct dialect *chosen[DIALECTS_MAX + 1];
        const struct dialect_text text = {cases[i].template, strlen(cases[i].template)};
        char names[128] = "";
        dialect_choose(&text, 1, chosen);
        for (unsigned k = 0; chosen[k] != NULL; k++) {
            const size_t n = strlen(names);
            (void)snprintf(names + n, sizeof names - n, "%s ", chosen[k]->name);
        }
        assert_string_equal(names, cases[i].names);
        assert_non_null(dialect_forced_call(chosen));
    }
}

static void test_defaults(void **state)
{
    (void)state;
    const struct dialect *chosen[DIALECTS_MAX + 1];
    const struct dialect_text none[] = {{NULL, 0}, {"<tool_cal", 9}};
    dialect_choose(none, 2, chosen);
    assert_non_null(chosen[0]);
    for (unsigned i = 0; chosen[i] != NULL || dialect_defaults()[i] != NULL; i++)
        assert_ptr_equal(chosen[i], dialect_defaults()[i]);
    assert_non_null(dialect_forced_call(chosen));
    assert_null(dialect_forced_call((const struct dialect *const[]){NULL}));
}

/* ---- a dialect of another kind ------------------------------------------------------------ */

enum { TAG_CLOSE = 1, TAG_COMMA = 2 };

/* [CALLS] {...} , {...} ; */
static const struct marker toy_tags[] = {{";", TAG_CLOSE}, {",", TAG_COMMA}, {NULL, 0}};
static const struct dialect_opener toy_openers[] = {
    {.text = "[CALLS]", .first = '{'},
    {.text = ",", .first = '{', .is_inner = true},
    {.text = NULL},
};

static enum toolcall_status toy_push(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!tc->is_complete)
        return toolcall_push_object(tc, byte);
    if (!toolcall_push_tag(tc, byte, toy_tags, TAG_CLOSE | TAG_COMMA, &tag))
        return TOOLCALL_BROKEN;
    tc->next = ",";
    return tag == TAG_CLOSE ? TOOLCALL_WHOLE : tag == TAG_COMMA ? TOOLCALL_NEXT : TOOLCALL_MORE;
}

static const struct dialect toy = {.name = "toy", .openers = toy_openers, .push = toy_push};

struct record {
    char text[1024];
    size_t n;
};

static void put(struct record *r, char c)
{
    assert_true(r->n + 1 < sizeof r->text);
    r->text[r->n++] = c;
    r->text[r->n] = '\0';
}

/* Records one letter per event, and the text of all events except the ends of calls. */
static void take(void *ctx, const struct message_event *e)
{
    struct record *r = ctx;
    static const char letters[] = "RCMBAEXZ";
    static int last = -1;
    if (r->n == 0 || last != (int)e->kind || e->kind >= MESSAGE_CALL_END)
        put(r, letters[e->kind]);
    last = (int)e->kind;
    const char *text = e->kind == MESSAGE_CALL_BEGIN ? e->name : e->text;
    const size_t n = e->kind == MESSAGE_CALL_BEGIN ? strlen(e->name) : e->text_bytes;
    for (size_t i = 0; i < n; i++)
        put(r, text[i]);
}

static void check(const char *answer, const char *events)
{
    const struct dialect *const dialects[] = {&toy, NULL};
    const struct message_options options = {.dialects = dialects};
    for (size_t step = 1; step <= strlen(answer); step++) {
        struct record r = {.n = 0};
        struct message *m;
        assert_int_equal(message_open(&options, take, &r, &m, NULL), 0);
        for (size_t i = 0; i < strlen(answer); i += step) {
            const size_t left = strlen(answer) - i;
            assert_int_equal(message_push(m, answer + i, left < step ? left : step, NULL), 0);
        }
        assert_int_equal(message_finish(m, NULL), 0);
        assert_string_equal(r.text, events);
        message_close(m);
    }
}

#define F "{\"name\":\"f\",\"arguments\":{}}"

static void test_toy(void **state)
{
    (void)state;
    check("a [CALLS]" F ";", "Ca BfA{}E[CALLS]" F ";Z");
    check("[CALLS] " F " , " F ";", "BfA{}E[CALLS] " F " BfA{}E, " F ";Z");
    check("[CALL] [CALLS[CALLS]" F ";", "C[CALL] [CALLSBfA{}E[CALLS]" F ";Z");
    check("<think>[CALLS]" F ";</think>b", "M<think>R[CALLS]" F ";M</think>CbZ");
    check("a,{b;", "Ca,{b;Z");
    check("[CALLS]<x", "C[CALLS]<xZ");
    check("<tool_call>" F "</tool_call>", "C<tool_call>" F "</tool_call>Z");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_bytes),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_toy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
