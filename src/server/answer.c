#include "server/answer.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "server/text_json.h"
#include "session/answer.h"

#define HELD_LOGPROBS 32 /* maximum tokens held back */

struct answer {
    struct answer_options o;
    struct fm_answer *answer;
    struct text_buffer arguments; /* of the current call */
    struct job_logprobs logprobs; /* of tokens since the last event that had some */
};

/* ---- events ----------------------------------------------------------------------------- */

static int give(struct answer *a, const struct job_event *like, const char *text, size_t bytes)
{
    const bool has_logprobs = like->kind == JOB_CONTENT || like->kind == JOB_REASONING ||
                              like->kind == JOB_CHOICE_END;
    return a->o.fn(a->o.ctx, like, text, bytes, has_logprobs ? &a->logprobs : NULL);
}

static bool is_stop(const struct answer *a, int32_t id)
{
    for (unsigned i = 0; i < a->o.spec->n_stop_tokens; i++)
        if (a->o.spec->stop_tokens[i] == id)
            return true;
    return fm_token_is_stop(a->o.model, id);
}

/* Skips a stop token, which is not part of the answer. After the tokens of the prompt it counts:
 * whoever wants those reckons with one entry for each token of the prompt and of the answer. */
static int take_logprobs(struct answer *a, const struct fm_answer_event *event,
                         struct fm_error *err)
{
    struct job_logprobs *l = &a->logprobs;
    if (event->n_logprobs == 0 ||
        (!a->o.spec->wants_prompt_logprobs && is_stop(a, event->id)))
        return 0;
    l->n_each = event->n_logprobs;
    const int rc = mem_grow((void **)&l->at, &l->capacity, l->n + l->n_each, sizeof *l->at,
                            "the log probabilities", err);
    if (rc != 0)
        return rc;
    memcpy(&l->at[l->n], event->logprobs, l->n_each * sizeof *l->at);
    l->n += l->n_each;
    return 0;
}

static int take_call(struct answer *a, const struct fm_answer_event *event)
{
    struct job_event like = {.choice = a->o.choice, .call = event->call};
    (void)snprintf(like.id, sizeof like.id, "%s", event->call_id);
    (void)snprintf(like.name, sizeof like.name, "%s", event->name);
    if (event->kind == FM_EVENT_CALL_STARTED) {
        like.kind = JOB_CALL_BEGIN;
        text_buffer_clear(&a->arguments);
        return give(a, &like, "", 0);
    }
    if (event->kind == FM_EVENT_CALL_ARGUMENTS) {
        like.kind = JOB_CALL_ARGUMENTS;
        (void)text_buffer_add(&a->arguments, event->text, event->text_bytes);
        return give(a, &like, event->text, event->text_bytes);
    }
    like.kind = JOB_CALL_END;
    like.is_broken = event->is_broken;
    if (!like.is_broken && model_may_restore(a->o.model))
        call_texts_add(a->o.texts, event->call_id, event->name, &a->arguments, event->text,
                       event->text_bytes);
    return give(a, &like, "", 0);
}

static enum job_end job_end_of(const struct fm_answer_event *event)
{
    if (event->end == FM_END_STRING)
        return JOB_END_STRING;
    if (event->end == FM_END_LENGTH || event->end == FM_END_CONTEXT)
        return JOB_END_LENGTH;
    return event->n_calls > 0 ? JOB_END_CALLS : JOB_END_STOP;
}

static int take_event(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    struct answer *a = ctx;
    struct job_event like = {.choice = a->o.choice, .kind = JOB_CONTENT};
    switch (event->kind) {
    case FM_EVENT_TOKEN:
        return take_logprobs(a, event, err);
    case FM_EVENT_REASONING:
        like.kind = JOB_REASONING;
        return give(a, &like, event->text, event->text_bytes);
    case FM_EVENT_TEXT:
        return give(a, &like, event->text, event->text_bytes);
    case FM_EVENT_CALL_STARTED:
    case FM_EVENT_CALL_ARGUMENTS:
    case FM_EVENT_CALL_ENDED:
        return take_call(a, event);
    case FM_EVENT_FINISHED:
        like.kind = JOB_CHOICE_END;
        like.end = job_end_of(event);
        like.stop = event->stop;
        like.n_prompt = a->o.spec->prompts[a->o.prompt].n_ids;
        like.n_done = fm_answer_n_tokens(a->answer);
        return give(a, &like, "", 0);
    }
    return 0;
}

/* ---- the answer ------------------------------------------------------------------------- */

/* Emits the log probabilities of many tokens without text, so that they are charged and do not pile
 * up: a call can be long, and so can a possible stop string. */
static int give_logprobs(struct answer *a)
{
    const struct job_event like = {.kind = JOB_CONTENT, .choice = a->o.choice};
    return a->logprobs.n >= (size_t)HELD_LOGPROBS * a->logprobs.n_each ? give(a, &like, "", 0) : 0;
}

int answer_step(struct answer *a, const struct fm_session *session, int32_t *id,
                struct fm_error *err)
{
    const int rc = fm_answer_step(a->answer, session, id, err);
    return rc == 0 && a->logprobs.n > 0 ? give_logprobs(a) : rc;
}

int answer_finish(struct answer *a, struct fm_error *err)
{
    return fm_answer_finish(a->answer, err);
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
    sampling.seed += options->choice % spec->n_choices;
    const struct fm_answer_options how = {
        .size = sizeof how,
        .event = take_event,
        .ctx = a,
        .sampling = &sampling,
        .prompt = prompt->ids,
        .n_prompt = prompt->n_ids,
        .max_tokens = spec->n_max,
        .stops = (const char *const *)spec->stops,
        .n_stops = spec->n_stops,
        .grammar = spec->grammar,
        .wants_logprobs = spec->wants_logprobs,
        .n_top_logprobs = spec->n_top_logprobs,
        .is_chat = spec->is_chat,
        .is_reasoning = spec->is_thinking,
        .is_one_call = spec->is_one_call,
        .hold_calls = !spec->is_stream || spec->holds_calls,
        .call_seed = spec->id_seed + options->choice,
        .lead = spec->is_forced ? spec->forced.lead : NULL,
        .tail = spec->is_forced ? spec->forced.tail : NULL,
        .is_continued = spec->is_continued,
        .stop_tokens = spec->stop_tokens,
        .n_stop_tokens = spec->n_stop_tokens,
    };
    const int rc = answer_open_tools(options->model, &how, spec->tools, &a->answer, err);
    if (rc != 0) {
        answer_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void answer_close(struct answer *a)
{
    if (a == NULL)
        return;
    fm_answer_close(a->answer);
    mem_free(a->logprobs.at);
    text_buffer_clear(&a->arguments);
    mem_free(a);
}

uint64_t answer_n_tokens(const struct answer *a)
{
    return fm_answer_n_tokens(a->answer);
}

uint64_t answer_n_reasoning(const struct answer *a)
{
    return fm_answer_n_reasoning_tokens(a->answer);
}
