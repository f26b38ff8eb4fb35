#include "server/answer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/text_json.h"
#include "chat/message.h"

#define HELD_LOGPROBS 32 /* tokens */

struct answer {
    struct answer_options o;
    struct fm_sampler *sampler;
    struct fm_decoder *decoder;
    struct fm_stop *stop;
    struct message *parts; /* NULL: everything is content */
    uint64_t n_tokens, n_reasoning;
    unsigned n_calls;
    struct text_buffer arguments; /* of the call at hand */
    bool is_reasoning;
    int found; /* the stop string; -1: none */
    bool is_over, is_length;
    bool is_called; /* the only call there may be is whole: what follows is left out */
    bool is_held; /* to the grammar */
    struct job_logprobs logprobs;
    int rc; /* of the function */
};

/* ---- parts ------------------------------------------------------------------------------ */

static void give(struct answer *a, const struct job_event *like, const char *text, size_t bytes)
{
    const bool has_logprobs = like->kind == JOB_CONTENT || like->kind == JOB_REASONING ||
                              like->kind == JOB_CHOICE_END;
    if (a->rc == 0)
        a->rc = a->o.fn(a->o.ctx, like, text, bytes, has_logprobs ? &a->logprobs : NULL);
}

static void take_call(struct answer *a, const struct message_event *event)
{
    struct job_event like = {.choice = a->o.choice, .call = event->call};
    (void)snprintf(like.id, sizeof like.id, "%s", event->id);
    (void)snprintf(like.name, sizeof like.name, "%s", event->name);
    if (event->kind == MESSAGE_CALL_BEGIN) {
        like.kind = JOB_CALL_BEGIN;
        a->n_calls++;
        text_buffer_clear(&a->arguments);
        give(a, &like, "", 0);
    } else if (event->kind == MESSAGE_CALL_ARGUMENTS) {
        like.kind = JOB_CALL_ARGUMENTS;
        (void)text_buffer_add(&a->arguments, event->text, event->text_bytes);
        give(a, &like, event->text, event->text_bytes);
    } else {
        like.kind = JOB_CALL_END;
        like.is_broken = event->kind == MESSAGE_CALL_BROKEN;
        if (like.is_broken)
            a->n_calls--; /* it is not to be called */
        else
            recall_add(a->o.recall, event->id, event->name, &a->arguments, event->text,
                       event->text_bytes);
        give(a, &like, "", 0);
        a->is_called = a->o.spec->is_one_call && !like.is_broken;
        a->is_over |= a->is_called;
    }
}

/* The last marker of reasoning tells whether more of it comes. */
static void take_marker(struct answer *a, const char *text, size_t bytes)
{
    static const char begin[] = "<think>", end[] = "</think>";
    for (size_t i = 0; i < bytes; i++) {
        if (bytes - i >= sizeof begin - 1 && memcmp(text + i, begin, sizeof begin - 1) == 0)
            a->is_reasoning = true;
        if (bytes - i >= sizeof end - 1 && memcmp(text + i, end, sizeof end - 1) == 0)
            a->is_reasoning = false;
    }
}

static void take_part(void *ctx, const struct message_event *event)
{
    struct answer *a = ctx;
    struct job_event like = {.choice = a->o.choice, .kind = JOB_CONTENT};
    if (a->is_called)
        return;
    switch (event->kind) {
    case MESSAGE_REASONING:
        like.kind = JOB_REASONING;
        a->is_reasoning = true;
        give(a, &like, event->text, event->text_bytes);
        break;
    case MESSAGE_CONTENT:
        a->is_reasoning = false;
        give(a, &like, event->text, event->text_bytes);
        break;
    case MESSAGE_CALL_BEGIN:
    case MESSAGE_CALL_ARGUMENTS:
    case MESSAGE_CALL_END:
    case MESSAGE_CALL_BROKEN:
        a->is_reasoning = false;
        take_call(a, event);
        break;
    case MESSAGE_MARKUP:
        take_marker(a, event->text, event->text_bytes);
        break;
    case MESSAGE_END:
        break;
    }
}

static int push_parts(struct answer *a, const char *text, size_t bytes, struct fm_error *err)
{
    if (bytes == 0)
        return 0;
    if (a->parts != NULL)
        return message_push(a->parts, text, bytes, err);
    const struct job_event like = {.kind = JOB_CONTENT, .choice = a->o.choice};
    give(a, &like, text, bytes);
    return 0;
}

static int push_text(struct answer *a, const char *text, size_t bytes, struct fm_error *err)
{
    const char *shown = NULL;
    size_t shown_bytes = 0;
    int rc = bytes > 0 && a->found < 0
                 ? fm_stop_push(a->stop, text, bytes, &shown, &shown_bytes, &a->found, err) : 0;
    if (rc == 0)
        rc = push_parts(a, shown, shown_bytes, err);
    a->is_over |= a->found >= 0;
    return rc != 0 ? rc : a->rc;
}

/* ---- tokens ----------------------------------------------------------------------------- */

/* Special tokens that part an answer have a text for the parser. */
static int push_token(struct answer *a, int32_t id, struct fm_error *err)
{
    static const char *const markers[] = {"<think>", "</think>", "<tool_call>", "</tool_call>"};
    const char *text = NULL;
    size_t bytes = 0;
    int rc = fm_decoder_push(a->decoder, id, &text, &bytes, err);
    if (rc == 0)
        rc = push_text(a, text, bytes, err);
    if (rc != 0 || a->parts == NULL || !fm_token_is_special(a->o.model, id))
        return rc;
    text = fm_token_text(a->o.model, id, &bytes);
    for (size_t i = 0; rc == 0 && i < sizeof markers / sizeof markers[0]; i++)
        if (text != NULL && bytes == strlen(markers[i]) && memcmp(text, markers[i], bytes) == 0)
            rc = push_text(a, text, bytes, err);
    return rc;
}

static int note_logprobs(struct answer *a, const float *logits, int32_t id, struct fm_error *err)
{
    struct fm_logprob chosen = {.id = id}, top[JOB_TOP_LOGPROBS_MAX];
    struct job_logprobs *l = &a->logprobs;
    const int n = fm_logprobs(a->o.model, logits, &chosen, top, a->o.spec->n_top_logprobs);
    if (n < 0)
        return err_set(err, n, "the logits give no distribution: the weights are damaged");
    l->n_each = 1 + (unsigned)n; /* as many as the vocabulary has, at every token the same */
    const int rc = mem_grow((void **)&l->at, &l->capacity, l->n + l->n_each, sizeof *l->at,
                            "the log probabilities", err);
    if (rc != 0)
        return rc;
    l->at[l->n] = chosen;
    memcpy(&l->at[l->n + 1], top, (size_t)n * sizeof *top);
    l->n += l->n_each;
    return 0;
}

/* Gives on what tokens have left that were no text so far, so that it is counted and does not pile
 * up: a call is long, and so is what may become a stop string. */
static void give_logprobs(struct answer *a)
{
    const struct job_event like = {.kind = JOB_CONTENT, .choice = a->o.choice};
    if (a->logprobs.n >= (size_t)HELD_LOGPROBS * a->logprobs.n_each)
        give(a, &like, "", 0);
}

/* Reasoning is free; what follows it is held to the grammar. */
static void begin_grammar(struct answer *a)
{
    if (a->is_held || a->o.spec->grammar == NULL || a->is_reasoning)
        return;
    a->is_held = true;
    fm_grammar_reset(a->o.spec->grammar);
    fm_sampler_constrain(a->sampler, a->o.spec->grammar);
}

/* The request is to blame where the logits are numbers and some token is forbidden. */
static int no_token(const struct answer *a, const float *logits, struct fm_error *err)
{
    const struct fm_sampling *s = &a->o.spec->sampling;
    struct fm_model_info info;
    bool is_forbidden = false;
    fm_model_info(a->o.model, &info);
    for (unsigned i = 0; i < s->n_logit_bias; i++)
        is_forbidden = is_forbidden || isinf(s->logit_bias[i].bias);
    for (unsigned i = 0; i < info.vocabulary; i++)
        is_forbidden = is_forbidden && isfinite(logits[i]);
    if (is_forbidden)
        return err_set(err, FM_ERR_ARG, "'logit_bias' forbids every token that %s after %llu "
                       "tokens of the answer", a->is_held ? "the format or the tool allows"
                                                          : "there is",
                       (unsigned long long)a->n_tokens);
    return err_set(err, FM_ERR_FORMAT, "no token can be chosen: the logits are not numbers");
}

int answer_step(struct answer *a, const float *logits, int32_t *out, struct fm_error *err)
{
    const struct job_spec *spec = a->o.spec;
    *out = -1;
    const int32_t id = fm_sampler_pick(a->sampler, logits);
    if (id < 0)
        return no_token(a, logits, err);
    fm_sampler_accept(a->sampler, id);
    a->n_tokens++;
    if (fm_model_is_stop_token(a->o.model, id)) {
        a->is_over = true;
        return 0;
    }
    int rc = spec->wants_logprobs ? note_logprobs(a, logits, id, err) : 0;
    if (rc == 0)
        rc = push_token(a, id, err);
    if (rc == 0 && a->logprobs.n > 0)
        give_logprobs(a);
    a->n_reasoning += a->is_reasoning;
    begin_grammar(a);
    if (rc == 0)
        rc = a->rc;
    if (rc != 0 || a->is_over)
        return rc;
    if (spec->n_most > 0 && a->n_tokens >= spec->n_most)
        a->is_over = a->is_length = true;
    else
        *out = id;
    return 0;
}

int answer_finish(struct answer *a, bool is_full, struct fm_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;
    fm_decoder_finish(a->decoder, &text, &bytes);
    int rc = push_text(a, text, bytes, err);
    if (rc == 0 && a->found < 0) {
        fm_stop_finish(a->stop, &text, &bytes);
        rc = push_parts(a, text, bytes, err);
    }
    if (rc == 0 && a->o.spec->tail != NULL && !a->is_length && !is_full)
        rc = push_parts(a, a->o.spec->tail, strlen(a->o.spec->tail), err);
    if (rc == 0 && a->parts != NULL)
        rc = a->is_length || is_full ? message_cut(a->parts, err) : message_finish(a->parts, err);
    struct job_event like = {.kind = JOB_CHOICE_END, .choice = a->o.choice};
    if (a->found >= 0) {
        like.end = JOB_END_STRING;
        like.stop = (unsigned)a->found;
    } else if (a->is_length || is_full) {
        like.end = JOB_END_LENGTH;
    } else {
        like.end = a->n_calls > 0 ? JOB_END_CALLS : JOB_END_STOP;
    }
    if (rc == 0)
        give(a, &like, "", 0);
    return rc != 0 ? rc : a->rc;
}

/* ---- open and close --------------------------------------------------------------------- */

static int open_parts(struct answer *a, struct fm_error *err)
{
    const struct job_spec *spec = a->o.spec;
    const struct message_options how = {
        .is_thinking = spec->is_thinking,
        .calls = spec->tools != NULL ? MESSAGE_JSON_CALLS | MESSAGE_XML_CALLS : 0,
        .hold_calls = !spec->is_stream,
        .is_call = spec->lead != NULL,
        .tools = spec->tools,
        .id_seed = spec->id_seed + a->o.choice,
    };
    a->is_reasoning = spec->is_thinking;
    return message_open(&how, take_part, a, &a->parts, err);
}

int answer_open(const struct answer_options *options, struct answer **out, struct fm_error *err)
{
    *out = NULL;
    struct answer *a = mem_new(1, sizeof *a, "an answer", err);
    if (a == NULL)
        return FM_ERR_NOMEM;
    const struct job_spec *spec = options->spec;
    const struct job_prompt *prompt = &spec->prompts[options->prompt];
    struct fm_sampling sampling = spec->sampling;
    a->o = *options;
    a->found = -1;
    sampling.seed += options->choice % spec->n_choices;
    int rc = fm_sampler_open(options->model, &sampling, &a->sampler, err);
    if (rc == 0)
        rc = fm_decoder_open(options->model, &a->decoder, err);
    const unsigned n_stops = spec->lead != NULL ? 0 : spec->n_stops; /* a forced call is no text */
    if (rc == 0)
        rc = fm_stop_open((const char *const *)spec->stops, n_stops, &a->stop, err);
    if (rc == 0 && spec->is_chat)
        rc = open_parts(a, err);
    if (rc != 0) {
        answer_close(a);
        return rc;
    }
    fm_sampler_accept_prompt(a->sampler, prompt->ids, prompt->n_ids);
    if (spec->lead != NULL)
        rc = push_parts(a, spec->lead, strlen(spec->lead), err);
    if (rc != 0) {
        answer_close(a);
        return rc;
    }
    begin_grammar(a);
    *out = a;
    return 0;
}

void answer_close(struct answer *a)
{
    if (a == NULL)
        return;
    if (a->sampler != NULL)
        fm_sampler_close(a->sampler);
    if (a->decoder != NULL)
        fm_decoder_close(a->decoder);
    fm_stop_close(a->stop);
    message_close(a->parts);
    mem_free(a->logprobs.at);
    text_buffer_clear(&a->arguments);
    mem_free(a);
}

uint64_t answer_n_tokens(const struct answer *a)
{
    return a->n_tokens;
}

uint64_t answer_n_reasoning(const struct answer *a)
{
    return a->n_reasoning;
}
