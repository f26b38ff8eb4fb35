#include "apps/bench/topics.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "apps/cli/interrupt.h"

#define TEMPERATURE 1.0f
#define TOP_P 0.95f
#define SEED 1
#define NEVER (-1e30f) /* logit of a forbidden token */

static const struct {
    const char *name, *opening;
    bool is_question; /* in a chat with the model; a text otherwise */
    const char *before; /* messages before the question, as JSON */
} topic_list[N_ALL_OPENINGS] = {
    [TOPIC_C] = {"C code", "#include <string.h>\n\nstruct buffer {\n    char *data;\n"},
    [TOPIC_VERSE] = {"Chinese verse", "《山居秋暝》\n王维\n空山新雨后，"},
    [TOPIC_STORY] = {"story", "Once upon a time there was a girl who lived by the sea."},
    [TOPIC_PYTHON] = {"Python code", "import os\n\n\nclass Reader:\n    def __init__(self, path):"},
    [TOPIC_JAPANESE] = {"Japanese prose", "私はその人を常に先生と呼んでいた。"},
    [TOPIC_SUMS] = {"sums", "Jack had 32 pencils. He gave 27 to Mia. How many"},
    [TOPIC_PROSE] = {"English prose", "It was late in the autumn when the old house was sold, and"},
    [TOPIC_CHAT] = {"chat", "What is the Moon, and why does it shine?", true, NULL},
    [TOPIC_REACT] = {"React",
                     "import { useState } from \"react\";\n\nexport function Counter({ start }) {\n"
                     "  const [count, setCount] = useState(start);\n"},
    [TOPIC_RUST] = {"Rust code",
                    "use std::collections::HashMap;\n\npub fn count_words(text: &str) -> "
                    "HashMap<&str, usize> {\n"},
    [TOPIC_MATHS] = {"mathematics",
                     "Theorem. There are infinitely many primes.\nProof. Suppose that p_1, ..., "
                     "p_n are all of them, and let N ="},
    [TOPIC_LOGIC] = {"logic",
                     "All birds have feathers. A penguin is a bird. Nothing with feathers is a "
                     "fish. Therefore a penguin"},
    [TOPIC_TURNS] = {"several turns", "And how many are left after two more days?", true,
                     "{\"role\": \"user\", \"content\": \"I had twelve apples and ate two a day "
                     "for three days. How many are left?\"}, {\"role\": \"assistant\", "
                     "\"content\": \"Three days with two apples each are six apples, so six are "
                     "left.\"}, "},
};

const char *topic_name(unsigned topic)
{
    return topic_list[topic].name;
}

/* ---- routes ---------------------------------------------------------------------------------- */

static int has_tokenizer(const struct args *args, bool *has, struct fm_error *err)
{
    struct fm_model *model;
    int rc = app_model_open_metadata(args, NULL, &model, err);
    if (rc != 0)
        return rc;
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    *has = info.has_tokenizer;
    fm_model_close(model);
    return 0;
}

int topics_choose_routes(const struct args *args, unsigned n_topic_tokens, bool takes_trace,
                         char **routes, struct fm_error *err)
{
    const char *given = args_text(args, "routes");
    const char *command = args->command->name;
    bool has_text;
    *routes = NULL;
    int rc = has_tokenizer(args, &has_text, err);
    if (rc != 0 || (given == NULL && has_text))
        return rc;
    if (given == NULL)
        given = "gen";
    const bool has_keys = strncmp(given, "gen:", 4) == 0;
    if (!has_keys && strcmp(given, "gen") != 0) {
        if (!takes_trace)
            return err_set(err, FM_ERR_ARG, "--routes: %s needs routes that change their topic at "
                           "a known token: gen or gen:KEY=VALUE,..., not '%s'", command, given);
        *routes = mem_strdup(given, err);
        return *routes != NULL ? 0 : FM_ERR_NOMEM;
    }
    if (strstr(given, "topic") != NULL)
        return err_set(err, FM_ERR_ARG, "--routes: %s sets topic and topics itself; remove them "
                       "from '%s'",
                       command, given);
    const size_t bytes = strlen(given) + 64;
    *routes = mem_new(bytes, 1, "the routes", err);
    if (*routes == NULL)
        return FM_ERR_NOMEM;
    (void)snprintf(*routes, bytes, "%s%ctopic=%u,topics=%u", given, has_keys ? ',' : ':',
                   n_topic_tokens, (unsigned)N_TOPICS);
    return 0;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static int find_stops(struct topics *t, struct fm_error *err)
{
    for (int pass = 0; pass < 2; pass++) {
        t->n_stops = 0;
        for (unsigned id = 0; id < t->vocabulary; id++)
            if (fm_token_is_stop(t->model, (int32_t)id)) {
                if (pass == 1)
                    t->stops[t->n_stops] = (int32_t)id;
                t->n_stops++;
            }
        if (pass == 0 && t->n_stops > 0)
            t->stops = mem_new(t->n_stops, sizeof *t->stops, "the stop tokens", err);
        if (t->n_stops > 0 && t->stops == NULL)
            return FM_ERR_NOMEM;
    }
    return 0;
}

/* Tokenizes a conversation whose last message is the opening. */
static int read_turns(struct topics *t, unsigned i, struct fm_error *err)
{
    char text[1024];
    const int n = snprintf(text, sizeof text, "[%s{\"role\": \"user\", \"content\": \"%s\"}]",
                           topic_list[i].before, topic_list[i].opening);
    return fm_chat_tokenize(t->model, text, (size_t)n, NULL, &t->openings[i].ids,
                            &t->openings[i].n_ids, err);
}

static int read_openings(struct topics *t, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < N_ALL_OPENINGS; i++) {
        const char *text = topic_list[i].opening;
        if (topic_list[i].before != NULL && t->has_chat)
            rc = read_turns(t, i, err);
        else if (topic_list[i].is_question && t->has_chat)
            rc = fm_chat_tokenize_turn(t->model, NULL, text, strlen(text), NULL,
                                       &t->openings[i].ids, &t->openings[i].n_ids, err);
        else
            rc = fm_tokenize(t->model, text, strlen(text), FM_TEXT_PLAIN, &t->openings[i].ids,
                             &t->openings[i].n_ids, err);
        if (rc == 0 && t->openings[i].n_ids == 0)
            rc = err_set(err, FM_ERR_FORMAT, "'%s': its tokenizer produces no token for '%s'",
                         app_model_path(t->args), text);
    }
    return rc;
}

int topics_restart(struct topics *t, uint64_t seed, struct fm_error *err)
{
    t->sampling.seed = seed;
    fm_sampler_close(t->sampler);
    t->sampler = NULL;
    if (t->session != NULL)
        fm_session_reset(t->session);
    return fm_sampler_open(t->model, &t->sampling, &t->sampler, err);
}

int topics_open(struct topics *t, const struct args *args, struct fm_model *model,
                struct fm_error *err)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    *t = (struct topics){.args = args, .model = model, .vocabulary = info.vocabulary,
                         .is_text = info.has_tokenizer && info.routes == NULL,
                         .has_chat = info.has_chat_template,
                         .sampling = {.size = sizeof t->sampling, .temperature = TEMPERATURE,
                                      .top_p = TOP_P}};
    t->logits = mem_new(t->vocabulary, sizeof *t->logits, "the logits", err);
    if (t->logits == NULL)
        return FM_ERR_NOMEM;
    int rc = find_stops(t, err);
    if (rc == 0 && t->is_text)
        rc = read_openings(t, err);
    if (rc == 0)
        rc = topics_restart(t, SEED, err);
    if (rc == 0)
        rc = fm_session_open(model, &t->session, err);
    if (rc == 0)
        interrupt_watch(t->session);
    return rc;
}

void topics_close(struct topics *t)
{
    interrupt_watch(NULL);
    fm_session_close(t->session);
    fm_sampler_close(t->sampler);
    for (unsigned i = 0; i < N_ALL_OPENINGS; i++)
        fm_free(t->openings[i].ids);
    mem_free(t->stops);
    mem_free(t->logits);
    *t = (struct topics){0};
}

int topics_pick(struct topics *t, int32_t *id, struct fm_error *err)
{
    const float *logits = fm_session_logits(t->session);
    *id = fm_sampler_pick(t->sampler, logits);
    if (*id >= 0 && fm_token_is_stop(t->model, *id)) {
        memcpy(t->logits, logits, t->vocabulary * sizeof *logits);
        for (size_t i = 0; i < t->n_stops; i++)
            t->logits[t->stops[i]] = NEVER;
        *id = fm_sampler_pick(t->sampler, t->logits);
    }
    return *id >= 0 ? 0 : app_not_numbers(t->args, err);
}
