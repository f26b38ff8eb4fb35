/* json_lines MODEL: constrains answers of a model to schemas. Reads one JSON request per line and
 * writes one answer for each: {"schema": TEXT or null, "seeds": N, "first_seed": S, "tokens": M}
 * gives {"answers": [...]}, with null for an answer that was incomplete after M tokens, or
 * {"error": SENTENCE} if the schema is refused. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashmoe_lab.h"

#define ANSWER_BYTES 65536

static struct fm_model *model;
static struct fm_session *session;
static int32_t *prompt;
static size_t n_prompt;

static void require(int rc, const struct fm_error *err)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "json_lines: %s\n", err->text);
    exit(1);
}

static json_t *sample_answer(struct fm_grammar *grammar, uint64_t seed, json_int_t n_tokens)
{
    static char text[ANSWER_BYTES];
    struct fm_error err = {.text = "no token fits"};
    struct fm_sampling sampling = {.size = sizeof sampling,
                                   .temperature = 1.5f, .top_p = 1, .seed = seed};
    struct fm_sampler *sampler;
    size_t n = 0;
    fm_session_reset(session);
    fm_grammar_reset(grammar);
    require(fm_sampler_open(model, &sampling, &sampler, &err), &err);
    fm_sampler_constrain(sampler, grammar);
    require(fm_session_eval(session, prompt, n_prompt, &err), &err);
    bool is_whole = false;
    for (json_int_t i = 0; i < n_tokens && !is_whole; i++) {
        const int32_t id = fm_sampler_pick(sampler, fm_session_logits(session));
        require(id, &err);
        fm_sampler_accept(sampler, id);
        is_whole = fm_token_is_stop(model, id);
        size_t bytes;
        const char *piece = fm_token_text(model, id, &bytes);
        if (!is_whole && n + bytes < sizeof text) {
            memcpy(text + n, piece, bytes);
            n += bytes;
        }
        is_whole = is_whole || fm_grammar_must_end(grammar);
        if (!is_whole)
            require(fm_session_eval(session, &id, 1, &err), &err);
    }
    fm_sampler_close(sampler);
    return is_whole ? json_stringn(text, n) : json_null();
}

static json_t *answer(const json_t *request)
{
    const json_t *schema = json_object_get(request, "schema");
    struct fm_error err = {0};
    struct fm_grammar *grammar;
    if (fm_grammar_open_json(model, json_string_value(schema), json_string_length(schema),
                             &grammar, &err) != 0)
        return json_pack("{s:s}", "error", err.text);
    json_t *answers = json_array();
    const json_int_t n = json_integer_value(json_object_get(request, "seeds"));
    const json_int_t first = json_integer_value(json_object_get(request, "first_seed"));
    const json_int_t n_tokens = json_integer_value(json_object_get(request, "tokens"));
    for (json_int_t i = 0; i < n; i++)
        (void)json_array_append_new(answers, sample_answer(grammar, (uint64_t)(first + i),
                                                           n_tokens));
    fm_grammar_close(grammar);
    return json_pack("{s:o}", "answers", answers);
}

int main(int argc, char **argv)
{
    static const char question[] = "Answer in JSON.";
    struct fm_error err = {0};
    if (argc != 2) {
        (void)fprintf(stderr, "usage: json_lines MODEL\n");
        return 2;
    }
    struct fm_model_options options = {.size = sizeof options, .n_context = 1024};
    require(fm_model_open(argv[1], &options, &model, &err), &err);
    require(fm_session_open(model, &session, &err), &err);
    require(fm_chat_tokenize_turn(model, NULL, question, strlen(question), NULL, &prompt, &n_prompt,
                             &err), &err);
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        json_t *request = json_loads(line, 0, NULL);
        json_t *reply = request != NULL ? answer(request) : json_pack("{s:s}", "error", "no JSON");
        char *text = json_dumps(reply, JSON_COMPACT);
        (void)printf("%s\n", text);
        (void)fflush(stdout);
        free(text);
        json_decref(reply);
        json_decref(request);
    }
    free(line);
    fm_free(prompt);
    fm_session_close(session);
    fm_model_close(model);
    return 0;
}
