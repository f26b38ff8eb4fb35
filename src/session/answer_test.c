/* Tests the answer loop on logits made here: what happens to the tokens, and why the answer ends.
 * The model is a golden one whose last four tokens are the markers of reasoning and calls. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/mem.h"
#include "session/answer.h"

#define GOLDEN FLASHMOE_TEST_DIR "/golden/qwen3_next"

enum { N = 320, FIRST_MARKER = 316, RECORD_BYTES = 1 << 14, STOP_TOKEN = 1 };

static const char *const markers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
static const char *const linked[] = {"config.json", "generation_config.json", "model.safetensors"};
static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"get\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}}}}]";

static char folder[] = "/tmp/answer_test.XXXXXX";
static struct fm_model *model;

/* ---- the model -------------------------------------------------------------------------- */

static const char *in_folder(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Writes the golden's tokenizer with markers in place of its last tokens and their merges. */
static int write_tokenizer(void)
{
    json_t *all = json_load_file(GOLDEN "/tokenizer.json", 0, NULL);
    json_t *inner = json_object_get(all, "model"), *vocabulary = json_object_get(inner, "vocab");
    json_t *merges = json_object_get(inner, "merges");
    json_t *added = json_object_get(all, "added_tokens");
    const char *key;
    void *next;
    json_t *id;
    json_object_foreach_safe(vocabulary, next, key, id)
        if (json_integer_value(id) >= FIRST_MARKER)
            (void)json_object_del(vocabulary, key);
    for (int i = 0; i < N - FIRST_MARKER; i++) {
        (void)json_array_remove(merges, json_array_size(merges) - 1);
        (void)json_object_set_new(vocabulary, markers[i], json_integer(FIRST_MARKER + i));
        json_t *token = json_deep_copy(json_array_get(added, 0));
        (void)json_object_set_new(token, "id", json_integer(FIRST_MARKER + i));
        (void)json_object_set_new(token, "content", json_string(markers[i]));
        (void)json_array_append_new(added, token);
    }
    const int rc = json_dump_file(all, in_folder("tokenizer.json"), 0);
    json_decref(all);
    return rc;
}

static int open_model(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL || write_tokenizer() != 0)
        return -1;
    for (size_t i = 0; i < sizeof linked / sizeof linked[0]; i++) {
        char from[512];
        (void)snprintf(from, sizeof from, "%s/%s", GOLDEN, linked[i]);
        if (symlink(from, in_folder(linked[i])) != 0)
            return -1;
    }
    struct fm_model_options options = {.size = sizeof options};
    options.n_context = 8;
    options.n_sessions = 1;
    return fm_model_open(folder, &options, &model, NULL);
}

static int close_model(void **state)
{
    (void)state;
    fm_model_close(model);
    for (size_t i = 0; i < sizeof linked / sizeof linked[0]; i++)
        (void)unlink(in_folder(linked[i]));
    (void)unlink(in_folder("tokenizer.json"));
    return rmdir(folder);
}

/* ---- events as text --------------------------------------------------------------------- */

/* Events as text: T[text] R[reasoning] call 0 get A[arguments] end[raw] broken[raw] FIN why. Pieces
 * of one text are joined. */
struct record {
    char text[RECORD_BYTES];
    size_t n;
    int last; /* kind whose text may be continued, or -1 */
    unsigned n_tokens, n_logprobs, n_calls;
    int fail_at; /* kind at which the function fails, or -1 */
};

static void put(struct record *r, const char *text, size_t bytes)
{
    assert_true(r->n + bytes < RECORD_BYTES);
    memcpy(r->text + r->n, text, bytes);
    r->n += bytes;
    r->text[r->n] = '\0';
}

static void put_piece(struct record *r, const char *name, const struct fm_answer_event *e)
{
    if (r->last != (int)e->kind) {
        put(r, name, strlen(name));
        put(r, "[", 1);
    } else {
        r->n--; /* the closing bracket */
    }
    put(r, e->text, e->text_bytes);
    put(r, "]", 1);
    r->last = (int)e->kind;
}

static int record_event(void *ctx, const struct fm_answer_event *e, struct fm_error *err)
{
    static const char *const ends[] = {"token", "string", "call", "grammar", "length", "context",
                                       "cancelled"};
    struct record *r = ctx;
    char line[64];
    if ((int)e->kind == r->fail_at)
        return err_set(err, FM_ERR_IO, "the reader is gone");
    switch (e->kind) {
    case FM_EVENT_TOKEN:
        r->n_tokens++;
        r->n_logprobs += e->n_logprobs;
        if (e->n_logprobs > 0)
            assert_int_equal(e->logprobs[0].id, e->id);
        return 0;
    case FM_EVENT_TEXT:
        put_piece(r, "T", e);
        return 0;
    case FM_EVENT_REASONING:
        put_piece(r, "R", e);
        return 0;
    case FM_EVENT_CALL_ARGUMENTS:
        put_piece(r, "A", e);
        return 0;
    case FM_EVENT_CALL_STARTED:
        assert_int_equal(strlen(e->call_id), 29);
        (void)snprintf(line, sizeof line, "call %u %s ", e->call, e->name);
        put(r, line, strlen(line));
        break;
    case FM_EVENT_CALL_ENDED:
        put_piece(r, e->is_broken ? "broken" : "end", e);
        break;
    case FM_EVENT_FINISHED:
        (void)snprintf(line, sizeof line, " FIN %s", ends[e->end]);
        put(r, line, strlen(line));
        if (e->end == FM_END_STRING)
            put(r, (const char[]){' ', (char)('0' + e->stop)}, 2);
        r->n_calls = e->n_calls;
        break;
    }
    r->last = -1;
    return 0;
}

/* ---- answers ---------------------------------------------------------------------------- */

static const float *only(int32_t id)
{
    static float logits[N];
    for (int i = 0; i < N; i++)
        logits[i] = i == id ? 9.0f : -9.0f;
    return logits;
}

static struct fm_answer *open_answer(struct fm_answer_options how, struct record *r)
{
    static const struct fm_sampling greedy = {.size = sizeof greedy, .top_p = 1};
    struct fm_answer *answer = NULL;
    struct fm_error err = {0};
    *r = (struct record){.last = -1, .fail_at = -1};
    how.size = sizeof how;
    how.event = record_event;
    how.ctx = r;
    how.sampling = how.sampling != NULL ? how.sampling : &greedy;
    if (fm_answer_open(model, &how, &answer, &err) != 0)
        fail_msg("%s", err.text);
    return answer;
}

/* Makes the model say the text, token by token; "\1" is its stop token. Returns the number of
 * tokens that were used. */
static size_t say(struct fm_answer *answer, const char *text, bool is_full)
{
    int32_t *ids = NULL, id = 0;
    size_t n_ids = 0, i = 0;
    const char *end = strchr(text, '\1');
    const size_t bytes = end != NULL ? (size_t)(end - text) : strlen(text);
    assert_int_equal(fm_tokenize(model, text, bytes, FM_TEXT_WITH_SPECIAL, &ids, &n_ids, NULL), 0);
    for (; i < n_ids && id >= 0; i++)
        assert_int_equal(answer_take(answer, only(ids[i]), is_full && i + 1 == n_ids, &id, NULL),
                         0);
    if (end != NULL && id >= 0)
        assert_int_equal(answer_take(answer, only(STOP_TOKEN), false, &id, NULL), 0);
    fm_free(ids);
    return i;
}

/* Returns all events of an answer as text. */
static const char *answer_of(struct fm_answer_options how, const char *text, struct record *r)
{
    struct fm_answer *answer = open_answer(how, r);
    (void)say(answer, text, false);
    assert_int_equal(fm_answer_finish(answer, NULL), 0);
    fm_answer_close(answer);
    return r->text;
}

static void test_text(void **state)
{
    (void)state;
    struct record r;
    assert_string_equal(answer_of((struct fm_answer_options){0}, "Hello there\1", &r),
                        "T[Hello there] FIN token");
    assert_true(r.n_tokens > 3);
    assert_string_equal(answer_of((struct fm_answer_options){0}, "Hello", &r),
                        "T[Hello] FIN cancelled");
    /* Markers are not text when nobody parses them, and an answer that is cut off is not
     * complete. */
    assert_string_equal(answer_of((struct fm_answer_options){0}, "<think>a\xc3", &r),
                        "T[a\xef\xbf\xbd] FIN cancelled");
}

static void test_reasoning(void **state)
{
    (void)state;
    struct record r;
    const struct fm_answer_options chat = {.is_chat = true};
    const struct fm_answer_options opened = {.is_chat = true, .is_reasoning = true};
    assert_string_equal(answer_of(chat, "<think>\nwell\n</think>\n\nso\1", &r),
                        "R[well]T[so] FIN token");
    assert_string_equal(answer_of(opened, "well</think>so\1", &r), "R[well]T[so] FIN token");
    assert_string_equal(answer_of(chat, "a<tool_call>b</tool_call>\1", &r),
                        "T[a<tool_call>b</tool_call>] FIN token");

    struct fm_answer *answer = open_answer(chat, &r);
    const size_t n = say(answer, "<think>ab", false);
    assert_int_equal(fm_answer_n_reasoning_tokens(answer), n);
    (void)say(answer, "</think>c", false);
    assert_int_equal(fm_answer_n_reasoning_tokens(answer), n);
    assert_int_equal(fm_answer_n_tokens(answer), n + 2);
    fm_answer_close(answer);
}

static void test_calls(void **state)
{
    (void)state;
    static const char one[] = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 1}}\n"
                              "</tool_call>";
    char two[256];
    struct record r;
    struct fm_answer_options how = {.is_chat = true, .tools = tools, .tools_bytes = strlen(tools)};
    (void)snprintf(two, sizeof two, "ok\n%s\n%s\1", one, one);
    (void)answer_of(how, two, &r);
    assert_int_equal(r.n_calls, 2);
    assert_non_null(strstr(r.text, "T[ok]call 0 get A[{\"n\": 1}]end[\n<tool_call>"));
    assert_non_null(strstr(r.text, "call 1 get A[{\"n\": 1}]end["));
    assert_non_null(strstr(r.text, " FIN token"));

    how.is_one_call = true;
    (void)answer_of(how, two, &r);
    assert_int_equal(r.n_calls, 1);
    assert_null(strstr(r.text, "call 1"));
    assert_non_null(strstr(r.text, " FIN call"));

    assert_string_equal(answer_of(how, "<tool_call>{\"name\": \"get\", \"arguments\": {\"n\"", &r),
                        "call 0 get A[{\"n\"]broken[<tool_call>{\"name\": \"get\", \"arguments\": "
                        "{\"n\"] FIN cancelled");
    assert_int_equal(r.n_calls, 0);
}

/* The prompt has opened the call. Its end is added if the model ended normally. */
static void test_forced_call(void **state)
{
    (void)state;
    struct record r;
    struct fm_answer_options how = {.is_chat = true, .tools = tools, .tools_bytes = strlen(tools),
                                    .is_one_call = true, .is_reasoning = true,
                                    .lead = "\n</think>\n\n<tool_call>\n",
                                    .tail = "\n</tool_call>"};
    assert_string_equal(answer_of(how, "{\"name\": \"get\", \"arguments\": {}}\1", &r),
                        "call 0 get A[{}]end[<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n"
                        "</tool_call>] FIN call");
    assert_int_equal(r.n_calls, 1);
    assert_string_equal(answer_of(how, "{\"name\": \"get\", \"arguments\": {\"n\": 1", &r),
                        "call 0 get A[{\"n\": 1]broken[<tool_call>\n{\"name\": \"get\", "
                        "\"arguments\": {\"n\": 1] FIN cancelled");
    /* a forced call is not text, so they never match */
    static const char *const stops[] = {"name", "}"};
    how.stops = stops;
    how.n_stops = 2;
    (void)answer_of(how, "{\"name\": \"get\", \"arguments\": {}}\1", &r);
    assert_non_null(strstr(r.text, "call 0 get A[{}]end["));
    assert_non_null(strstr(r.text, " FIN call"));
    how.max_tokens = 4;
    (void)answer_of(how, "{\"name\": \"get\", \"arguments\": {}}\1", &r);
    assert_string_equal(r.text, " FIN length");
}

static void test_stop_strings(void **state)
{
    (void)state;
    static const char *const stops[] = {"END", "\xef\xbf\xbd"};
    struct record r;
    struct fm_answer_options how = {.stops = stops, .n_stops = 2};
    assert_string_equal(answer_of(how, "one EN END two\1", &r), "T[one EN ] FIN string 0");
    assert_string_equal(answer_of(how, "one EN\1", &r), "T[one EN] FIN token");
    how.max_tokens = 2;
    assert_string_equal(answer_of(how, "xEN", &r), "T[xE] FIN length");
    /* Half a character becomes a stop string at the very end, and the stop string wins. */
    how.max_tokens = 1;
    struct fm_answer *answer = open_answer(how, &r);
    int32_t *ids = NULL, id;
    size_t n_ids;
    assert_int_equal(fm_tokenize(model, "\xc3\xa4", 2, 0, &ids, &n_ids, NULL), 0);
    assert_int_equal(n_ids, 2);
    assert_int_equal(answer_take(answer, only(ids[0]), false, &id, NULL), 0);
    assert_int_equal(id, -1);
    assert_int_equal(fm_answer_finish(answer, NULL), 0);
    assert_string_equal(r.text, " FIN string 1");
    fm_answer_close(answer);
    fm_free(ids);
}

static void test_ends(void **state)
{
    (void)state;
    struct record r;
    struct fm_error err = {0};
    struct fm_answer_options how = {.max_tokens = 3};
    assert_string_equal(answer_of(how, "abcdef\1", &r), "T[abc] FIN length");
    assert_int_equal(r.n_tokens, 3);
    assert_string_equal(answer_of(how, "ab\1", &r), "T[ab] FIN token");

    struct fm_answer *answer = open_answer((struct fm_answer_options){.max_tokens = 9}, &r);
    int32_t id;
    (void)say(answer, "ab", true);
    assert_int_equal(answer_take(answer, only(99), false, &id, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "over"));
    assert_int_equal(fm_answer_finish(answer, NULL), 0);
    assert_int_equal(fm_answer_finish(answer, NULL), 0);
    assert_string_equal(r.text, "T[ab] FIN context");
    fm_answer_close(answer);
    fm_answer_close(NULL);
}

static void test_grammar(void **state)
{
    (void)state;
    struct record r;
    struct fm_grammar *grammar = NULL;
    assert_int_equal(fm_grammar_open_json(model, NULL, 0, &grammar, NULL), 0);
    struct fm_answer_options how = {.grammar = grammar, .ends_with_grammar = true};
    assert_string_equal(answer_of(how, "{\"a\": 1}zz", &r), "T[{\"a\": 1}] FIN grammar");
    how.ends_with_grammar = false; /* then only the stop token is allowed */
    assert_string_equal(answer_of(how, "{\"a\": 1}zz", &r), "T[{\"a\": 1}] FIN token");
    how.is_chat = how.is_reasoning = true; /* reasoning is not constrained */
    assert_string_equal(answer_of(how, "well</think>{}z", &r), "R[well]T[{}] FIN token");
    fm_grammar_close(grammar);
}

/* Buffers grow during the first tokens; after that no token allocates. */
static void test_allocates_nothing(void **state)
{
    (void)state;
    static const char *const stops[] = {"aaab"};
    static const struct fm_sampling sampling = {.size = sizeof sampling,
                                                .temperature = 1, .top_p = 0.9f, .top_k = 50,
                                                .typical_p = 0.9f, .repetition_penalty = 1.1f};
    struct fm_answer_options how = {.sampling = &sampling, .stops = stops, .n_stops = 1,
                                    .wants_logprobs = true, .n_top_logprobs = 20};
    for (int is_chat = 0; is_chat < 2; is_chat++) {
        struct record r;
        int32_t id = 0;
        long before = 0;
        how.is_chat = is_chat == 1;
        struct fm_answer *answer = open_answer(how, &r);
        for (int i = 0; i < 200; i++) {
            before = i == 20 ? mem_count() : before;
            const int32_t next = i % 7 == 6 ? 'x' : 'a';
            assert_int_equal(answer_take(answer, only(next), false, &id, NULL), 0);
            assert_true(id >= 0);
        }
        assert_int_equal(mem_count(), before);
        assert_int_equal(fm_answer_finish(answer, NULL), 0);
        fm_answer_close(answer);
    }
}

static void test_logprobs(void **state)
{
    (void)state;
    struct record r;
    struct fm_answer_options how = {.wants_logprobs = true, .n_top_logprobs = 2};
    (void)answer_of(how, "abc\1", &r);
    assert_int_equal(r.n_tokens, 4);
    assert_int_equal(r.n_logprobs, 4 * 3);
    how.wants_logprobs = false;
    (void)answer_of(how, "abc\1", &r);
    assert_int_equal(r.n_logprobs, 0);
}

static void test_no_token(void **state)
{
    (void)state;
    static struct fm_logit_bias all[N];
    struct fm_sampling none = {.size = sizeof none, .top_p = 1, .logit_bias = all,
                               .n_logit_bias = N};
    struct record r;
    struct fm_error err = {0};
    int32_t id;
    for (int i = 0; i < N; i++)
        all[i] = (struct fm_logit_bias){i, -INFINITY};
    struct fm_answer *answer = open_answer((struct fm_answer_options){.sampling = &none}, &r);
    assert_int_equal(answer_take(answer, only(7), false, &id, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "'logit_bias' forbids every token that there is"));
    fm_answer_close(answer);

    static float nan_logits[N];
    nan_logits[3] = NAN; /* then the bias is not to blame */
    none.n_logit_bias = 1;
    answer = open_answer((struct fm_answer_options){.sampling = &none}, &r);
    assert_int_equal(answer_take(answer, nan_logits, false, &id, &err), FM_ERR_FORMAT);
    fm_answer_close(answer);
}

/* A failure of the event function ends the answer, and its message reaches the caller. */
static void test_function_fails(void **state)
{
    (void)state;
    struct record r;
    struct fm_error err = {0};
    int32_t id;
    static const int kinds[] = {FM_EVENT_TOKEN, FM_EVENT_TEXT};
    for (int i = 0; i < 2; i++) {
        struct fm_answer *answer = open_answer((struct fm_answer_options){0}, &r);
        r.fail_at = kinds[i];
        err = (struct fm_error){0};
        assert_int_equal(answer_take(answer, only('a' + 3), false, &id, &err), FM_ERR_IO);
        assert_int_equal(id, -1);
        assert_string_equal(err.text, "the reader is gone");
        assert_int_equal(answer_take(answer, only('a' + 3), false, &id, &err), FM_ERR_ARG);
        r.fail_at = -1;
        assert_int_equal(fm_answer_finish(answer, &err), FM_ERR_IO);
        assert_string_equal(r.text, "");
        fm_answer_close(answer);
    }
    struct fm_answer *answer = open_answer((struct fm_answer_options){0}, &r);
    r.fail_at = FM_EVENT_FINISHED;
    assert_int_equal(fm_answer_finish(answer, &err), FM_ERR_IO);
    fm_answer_close(answer);
}

static void refuse(const struct fm_answer_options *how, const char *word)
{
    struct fm_error err = {0};
    struct fm_answer *answer = NULL;
    assert_int_equal(fm_answer_open(model, how, &answer, &err), FM_ERR_ARG);
    assert_null(answer);
    if (strstr(err.text, word) == NULL)
        fail_msg("'%s' is not in '%s'", word, err.text);
}

/* Programs that were compiled with an older or a newer header. */
static void test_sizes(void **state)
{
    (void)state;
    struct {
        struct fm_answer_options known;
        uint64_t later;
    } newer = {.known = {.size = sizeof newer}};
    struct fm_answer *answer = NULL;
    assert_int_equal(fm_answer_open(model, &newer.known, &answer, NULL), 0);
    fm_answer_close(answer);
    newer.later = 1;
    refuse(&newer.known, "an option after them is set");

    /* Fields after an old program's options are zero. */
    const size_t old_bytes = offsetof(struct fm_answer_options, grammar);
    struct fm_answer_options old;
    memset(&old, 0xff, sizeof old);
    memset(&old, 0, old_bytes);
    old.size = old_bytes;
    assert_int_equal(fm_answer_open(model, &old, &answer, NULL), 0);
    fm_answer_close(answer);
}

static void test_bad_options(void **state)
{
    (void)state;
    const size_t size = sizeof(struct fm_answer_options);
    static const char *const empty[] = {""};
    refuse(&(struct fm_answer_options){0}, "fm_answer_options.size is 0");
    refuse(&(struct fm_answer_options){.size = size, .n_top_logprobs = 21}, "n_top_logprobs is 21");
    refuse(&(struct fm_answer_options){.size = size, .stops = empty, .n_stops = 1}, "stop string");
    refuse(&(struct fm_answer_options){.size = size, .is_chat = true, .tools = "[",
                                       .tools_bytes = 1}, "tools is not JSON");
    refuse(&(struct fm_answer_options){.size = size, .is_chat = true, .tools = "{}",
                                       .tools_bytes = 2}, "not a JSON array");
    refuse(&(struct fm_answer_options){.size = size, .is_reasoning = true}, "is_reasoning is set");
    refuse(&(struct fm_answer_options){.size = size, .tools = "[]", .tools_bytes = 2},
           "tools is set");
    refuse(&(struct fm_answer_options){.size = size, .lead = "x"}, "lead is set");
}

static void test_prompt(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool opens;
    } prompts[] = {{"a<think>", true}, {"a<think>\n \n", true}, {"<think>a", false}, {"", false},
                   {"<think>\n</think>\n", false}, {"a very long prompt <think>\n", true}};
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        int32_t *ids = NULL;
        size_t n_ids = 0;
        assert_int_equal(fm_tokenize(model, prompts[i].text, strlen(prompts[i].text),
                                     FM_TEXT_WITH_SPECIAL, &ids, &n_ids, NULL), 0);
        assert_int_equal(fm_prompt_opens_reasoning(model, ids, n_ids), prompts[i].opens);
        fm_free(ids);
    }
}

/* With a session: there are no logits before its prompt, and its context is full after eight
 * tokens. */
static void test_session(void **state)
{
    (void)state;
    static const int32_t prompt[] = {70, 71, 72};
    struct fm_logit_bias no_stop[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    const struct fm_sampling sampling = {.size = sizeof sampling, .top_p = 1,
                                         .logit_bias = no_stop, .n_logit_bias = 3};
    struct fm_session *session = NULL;
    struct fm_error err = {0};
    struct record r;
    int32_t id = -1;
    assert_int_equal(fm_session_open(model, &session, NULL), 0);
    struct fm_answer *answer = open_answer((struct fm_answer_options){.sampling = &sampling}, &r);
    assert_int_equal(fm_answer_step(answer, session, &id, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "no logits"));
    assert_int_equal(fm_session_eval(session, prompt, 3, NULL), 0);
    for (unsigned n = 3; n <= 8; n++) {
        assert_int_equal(fm_answer_step(answer, session, &id, NULL), 0);
        assert_int_equal(id >= 0, n < 8);
        if (id >= 0)
            assert_int_equal(fm_session_eval(session, &id, 1, NULL), 0);
    }
    assert_int_equal(fm_answer_finish(answer, NULL), 0);
    assert_non_null(strstr(r.text, " FIN context"));
    assert_int_equal(r.n_tokens, 6);
    fm_answer_close(answer);
    fm_session_close(session);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_forced_call),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_ends),
        cmocka_unit_test(test_grammar),
        cmocka_unit_test(test_allocates_nothing),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_no_token),
        cmocka_unit_test(test_function_fails),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_session),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
