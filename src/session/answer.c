/* The answer loop: turns logits into tokens, text, stop strings and the parts of a message
 * (chat/message.h), and reports them as events. */
#include "session/answer.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/sized.h"
#include "chat/dialect.h"
#include "chat/message.h"
#include "chat/reasoning.h"
#include "chat/stop_match.h"
#include "session/session_internal.h"

struct fm_answer {
    const struct fm_model *model;
    /* of its pointers, only grammar, tail, stop_tokens and ctx are used after open */
    struct fm_answer_options o;
    struct fm_sampler *sampler;
    struct fm_decoder *decoder;
    struct stop_match *stop;
    struct message *parts; /* NULL: everything is text */
    json_t *tools;         /* parsed here; NULL: the caller's tools, or none */
    uint64_t n_tokens, n_reasoning;
    unsigned n_calls;
    bool is_reasoning;
    bool bias_forbids; /* the logit bias forbids some token */
    bool is_constrained; /* the grammar constrains the sampler */
    bool is_over, is_finished;
    /* Text that may begin a stop string is held back. Where the text of special tokens lies in what
     * was pushed and has not been shown: pairs of offsets, and the offsets reached. */
    struct text_buffer marked;
    uint64_t n_pushed, n_shown;
    bool has_only_call;  /* the single allowed call is complete: the rest is dropped */
    enum fm_end end; /* FM_END_CANCELLED until it is over */
    int found;       /* index of the stop string; -1: none */
    int rc;          /* result of the event function */
    struct fm_error *err; /* the current caller's */
};

static void end(struct fm_answer *a, enum fm_end why)
{
    a->is_over = true;
    a->end = why;
}

/* ---- parts ------------------------------------------------------------------------------ */

static void give(struct fm_answer *a, const struct fm_answer_event *event)
{
    if (a->rc == 0 && a->o.event != NULL)
        a->rc = a->o.event(a->o.ctx, event, a->err);
}

static void give_text(struct fm_answer *a, enum fm_event_kind kind, const char *text, size_t bytes)
{
    give(a, &(struct fm_answer_event){.kind = kind, .text = text, .text_bytes = bytes});
}

static void take_call(struct fm_answer *a, const struct message_event *part)
{
    struct fm_answer_event event = {.call = part->call, .call_id = part->id, .name = part->name,
                                    .text = part->text, .text_bytes = part->text_bytes};
    if (part->kind == MESSAGE_CALL_BEGIN) {
        event.kind = FM_EVENT_CALL_STARTED;
        a->n_calls++;
        give(a, &event);
    } else if (part->kind == MESSAGE_CALL_ARGUMENTS) {
        event.kind = FM_EVENT_CALL_ARGUMENTS;
        give(a, &event);
    } else {
        event.kind = FM_EVENT_CALL_ENDED;
        event.is_broken = part->kind == MESSAGE_CALL_BROKEN;
        assert(a->n_calls > 0);
        if (event.is_broken)
            a->n_calls--; /* a broken call is not counted */
        give(a, &event);
        a->has_only_call = a->o.is_one_call && !event.is_broken;
        if (a->has_only_call)
            end(a, FM_END_CALL);
    }
}

static bool begins_with(const char *text, size_t bytes, const char *what)
{
    return bytes >= strlen(what) && memcmp(text, what, strlen(what)) == 0;
}

/* The last reasoning marker decides whether reasoning goes on. */
static void take_markup(struct fm_answer *a, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        for (const struct reasoning *r = reasoning_list; r->begin != NULL; r++)
            if (begins_with(text + i, bytes - i, r->begin))
                a->is_reasoning = true;
            else if (begins_with(text + i, bytes - i, r->end))
                a->is_reasoning = false;
}

/* Returns true for content that a schema does not constrain: messages before the final one. With
 * them the text would not match the schema. */
static bool is_before_answer(const struct fm_answer *a)
{
    return a->o.grammar != NULL && !a->is_constrained && a->o.lead == NULL && a->parts != NULL &&
           message_place(a->parts) != MESSAGE_ANYWHERE;
}

static void take_part(void *ctx, const struct message_event *part)
{
    struct fm_answer *a = ctx;
    if (a->has_only_call)
        return;
    switch (part->kind) {
    case MESSAGE_REASONING:
        a->is_reasoning = true;
        give_text(a, FM_EVENT_REASONING, part->text, part->text_bytes);
        break;
    case MESSAGE_CONTENT:
        a->is_reasoning = false;
        give_text(a, is_before_answer(a) ? FM_EVENT_REASONING : FM_EVENT_TEXT, part->text,
                  part->text_bytes);
        break;
    case MESSAGE_CALL_BEGIN:
    case MESSAGE_CALL_ARGUMENTS:
    case MESSAGE_CALL_END:
    case MESSAGE_CALL_BROKEN:
        a->is_reasoning = false;
        take_call(a, part);
        break;
    case MESSAGE_MARKUP:
        take_markup(a, part->text, part->text_bytes);
        break;
    case MESSAGE_END:
        break;
    }
}

struct span {
    uint64_t begin, end;
};

/* Returns how many of the next bytes are of one kind: the text of special tokens, or not. */
static size_t same_kind(struct fm_answer *a, size_t bytes, bool *is_marked)
{
    const struct span *span = (const struct span *)a->marked.data;
    *is_marked = false;
    if (a->marked.n == 0)
        return bytes;
    *is_marked = a->n_shown >= span->begin;
    const uint64_t n = (*is_marked ? span->end : span->begin) - a->n_shown;
    if (n > bytes)
        return bytes;
    if (*is_marked) {
        a->marked.n -= sizeof *span;
        memmove(a->marked.data, (const char *)a->marked.data + sizeof *span, a->marked.n);
    }
    return (size_t)n;
}

static int push_parts(struct fm_answer *a, const char *text, size_t bytes, struct fm_error *err)
{
    if (bytes > 0 && a->parts == NULL)
        give_text(a, FM_EVENT_TEXT, text, bytes);
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < bytes && a->parts != NULL;) {
        bool is_marked;
        const size_t n = same_kind(a, bytes - at, &is_marked);
        /* The grammar has written a forced call: the text of a marker is the marker. */
        is_marked = is_marked || a->o.lead != NULL;
        rc = is_marked ? message_push_marked(a->parts, text + at, n, err)
                       : message_push(a->parts, text + at, n, err);
        a->n_shown += n;
        at += n;
    }
    return rc;
}

/* Pushes text that the template could have written around a call. */
static int push_template(struct fm_answer *a, const char *text, struct fm_error *err)
{
    return text != NULL ? message_push_marked(a->parts, text, strlen(text), err) : 0;
}

/* Returns true for the frames of messages, which stop strings do not look at: a user who stops at
 * "final" does not mean the channel. */
static bool is_frame(const struct fm_answer *a, bool is_marked)
{
    const enum message_place place = a->parts != NULL ? message_place(a->parts) : MESSAGE_ANYWHERE;
    return place == MESSAGE_IN_HEADER || (place != MESSAGE_ANYWHERE && is_marked);
}

static int push_frame(struct fm_answer *a, const char *text, size_t bytes, struct fm_error *err)
{
    const char *held = NULL;
    size_t held_bytes = 0;
    stop_match_finish(a->stop, &held, &held_bytes);
    int rc = push_parts(a, held, held_bytes, err);
    a->n_pushed += bytes;
    if (rc == 0)
        rc = push_parts(a, text, bytes, err);
    return rc != 0 ? rc : a->rc;
}

static int push_text(struct fm_answer *a, const char *text, size_t bytes, bool is_marked,
                     struct fm_error *err)
{
    const char *shown = NULL;
    size_t shown_bytes = 0;
    if (bytes > 0 && a->found < 0 && is_frame(a, is_marked))
        return push_frame(a, text, bytes, err);
    int rc = bytes > 0 && a->found < 0
                 ? stop_match_push(a->stop, text, bytes, &shown, &shown_bytes, &a->found, err) : 0;
    a->n_pushed += bytes;
    if (rc == 0)
        rc = push_parts(a, shown, shown_bytes, err);
    assert(a->found < (int)a->o.n_stops);
    if (a->found >= 0)
        end(a, FM_END_STRING);
    return rc != 0 ? rc : a->rc;
}

/* ---- tokens ----------------------------------------------------------------------------- */

/* Pushes a token's text. A special token that separates the parts of an answer is pushed as text
 * for the parser. */
static int push_token(struct fm_answer *a, int32_t id, struct fm_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;
    int rc = fm_decoder_push(a->decoder, id, &text, &bytes, err);
    if (rc == 0)
        rc = push_text(a, text, bytes, false, err);
    if (rc != 0 || a->parts == NULL || !fm_token_is_special(a->model, id))
        return rc;
    text = fm_token_text(a->model, id, &bytes);
    if (text == NULL || bytes == 0 || !dialect_is_marker(model_dialects(a->model), text, bytes))
        return 0;
    const struct span span = {a->n_pushed, a->n_pushed + bytes};
    if (!text_buffer_add(&a->marked, (const char *)&span, sizeof span))
        return err_set(err, FM_ERR_NOMEM, "out of memory: the answer is too long");
    return push_text(a, text, bytes, true, err);
}

static int give_token(struct fm_answer *a, const float *logits, int32_t id, struct fm_error *err)
{
    struct fm_logprob probs[1 + FM_TOP_LOGPROBS_MAX] = {{.id = id}};
    struct fm_answer_event event = {.kind = FM_EVENT_TOKEN, .id = id};
    if (a->o.wants_logprobs) {
        const int n = fm_logprobs(a->model, logits, &probs[0], &probs[1], a->o.n_top_logprobs);
        if (n < 0)
            return err_set(err, n, "the logits give no distribution: the weights are damaged");
        event.logprobs = probs;
        event.n_logprobs = 1 + (unsigned)n; /* the same at every token, at most the vocabulary */
    }
    give(a, &event);
    return a->rc;
}

/* Constrains the answer to the grammar once reasoning has ended. */
static void begin_grammar(struct fm_answer *a)
{
    if (a->is_constrained || a->o.grammar == NULL || a->is_reasoning)
        return;
    const enum message_place place = a->parts != NULL ? message_place(a->parts) : MESSAGE_ANYWHERE;
    if (a->o.lead == NULL && place != MESSAGE_ANYWHERE && place != MESSAGE_IN_ANSWER)
        return;
    a->is_constrained = true;
    fm_grammar_reset(a->o.grammar);
    fm_sampler_constrain(a->sampler, a->o.grammar);
}

/* Explains why no token can be picked. Blames the grammar if it allows none, and the options if the
 * logits are finite and the bias forbids some token. */
static int no_token(const struct fm_answer *a, const float *logits, struct fm_error *err)
{
    const int rc = a->is_constrained ? constraint_check(a->o.grammar, err) : 0;
    bool is_forbidden = a->bias_forbids;
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < a->model->engine.model->shape.vocabulary; i++)
        is_forbidden = is_forbidden && isfinite(logits[i]);
    if (is_forbidden)
        return err_set(err, FM_ERR_ARG, "'logit_bias' forbids every token that %s after %llu "
                       "tokens of the answer", a->is_constrained ? "the format or the tool allows"
                                                          : "there is",
                       (unsigned long long)a->n_tokens);
    return err_set(err, FM_ERR_FORMAT, "no token can be picked: the logits are not finite");
}

/* Ends the answer if neither its text nor a call has ended it. */
static void check_end(struct fm_answer *a, bool is_full)
{
    if (a->is_over)
        return;
    if (a->o.ends_with_grammar && a->is_constrained && fm_grammar_must_end(a->o.grammar))
        end(a, FM_END_GRAMMAR);
    else if (a->o.max_tokens > 0 && a->n_tokens >= a->o.max_tokens)
        end(a, FM_END_LENGTH);
    else if (is_full)
        end(a, FM_END_CONTEXT);
}

static bool is_stop(const struct fm_answer *a, int32_t id)
{
    for (unsigned i = 0; i < a->o.n_stop_tokens; i++)
        if (a->o.stop_tokens[i] == id)
            return true;
    return fm_token_is_stop(a->model, id);
}

int answer_take(struct fm_answer *a, const float *logits, bool is_full, int32_t *out,
                struct fm_error *err)
{
    *out = -1;
    a->err = err;
    if (a->is_over || a->is_finished || a->rc != 0)
        return err_set(err, FM_ERR_ARG, "the answer is over: it has no further token");
    const int32_t id = fm_sampler_pick(a->sampler, logits);
    if (id < 0)
        return no_token(a, logits, err);
    fm_sampler_accept(a->sampler, id);
    a->n_tokens++;
    int rc = give_token(a, logits, id, err);
    if (rc == 0 && is_stop(a, id)) {
        end(a, FM_END_TOKEN);
        return 0;
    }
    if (rc == 0)
        rc = push_token(a, id, err);
    if (a->parts != NULL && message_place(a->parts) != MESSAGE_ANYWHERE)
        a->is_reasoning = message_place(a->parts) == MESSAGE_IN_REASONING;
    a->n_reasoning += a->is_reasoning;
    assert(a->n_reasoning <= a->n_tokens);
    begin_grammar(a);
    if (rc == 0)
        rc = a->rc;
    if (rc != 0)
        return rc;
    check_end(a, is_full);
    if (!a->is_over)
        *out = id;
    return 0;
}

/* Tells the session what the grammar forces behind a token. */
static void offer_forced(struct fm_answer *a, const struct fm_session *session, int32_t id)
{
    uint32_t max;
    struct draft_offer *offer = a->is_constrained ? draft_offer_for(session, id, &max) : NULL;
    if (offer != NULL)
        offer->n = constraint_forced(a->o.grammar, offer->drafts, max);
}

int fm_answer_step(struct fm_answer *a, const struct fm_session *session, int32_t *id,
                   struct fm_error *err)
{
    const float *logits = fm_session_logits(session);
    *id = -1;
    if (logits == NULL)
        return err_set(err, FM_ERR_ARG, "the session has no logits: evaluate the prompt first");
    const bool is_full =
        fm_session_position(session) >= engine_limits(&a->model->engine)->n_context;
    const int rc = answer_take(a, logits, is_full, id, err);
    if (rc == 0 && *id >= 0)
        offer_forced(a, session, *id);
    return rc;
}

int fm_answer_finish(struct fm_answer *a, struct fm_error *err)
{
    const char *text = NULL;
    size_t bytes = 0;
    if (a->is_finished)
        return 0;
    a->is_finished = true;
    a->err = err;
    const bool is_cut = a->end == FM_END_LENGTH || a->end == FM_END_CONTEXT ||
                        a->end == FM_END_CANCELLED;
    fm_decoder_finish(a->decoder, &text, &bytes);
    int rc = push_text(a, text, bytes, false, err);
    if (rc == 0 && a->found < 0) {
        stop_match_finish(a->stop, &text, &bytes);
        rc = push_parts(a, text, bytes, err);
    }
    if (rc == 0 && !is_cut)
        rc = push_template(a, a->o.tail, err);
    if (rc == 0 && a->parts != NULL)
        rc = is_cut ? message_cut(a->parts, err) : message_finish(a->parts, err);
    if (rc == 0)
        give(a, &(struct fm_answer_event){.kind = FM_EVENT_FINISHED, .end = a->end,
                                          .stop = a->found >= 0 ? (unsigned)a->found : 0,
                                          .n_calls = a->n_calls});
    return rc != 0 ? rc : a->rc;
}

/* ---- open and close --------------------------------------------------------------------- */

static int take_options(struct fm_answer *a, const struct fm_answer_options *given,
                        struct fm_error *err)
{
    const int rc = sized_take(&a->o, sizeof a->o, given, "fm_answer_options", err);
    if (rc != 0)
        return rc;
    if (a->o.n_top_logprobs > FM_TOP_LOGPROBS_MAX)
        return err_set(err, FM_ERR_ARG, "fm_answer_options.n_top_logprobs is %u: expected 0 to %d",
                       a->o.n_top_logprobs, FM_TOP_LOGPROBS_MAX);
    const char *needs_chat = a->o.is_reasoning    ? "is_reasoning"
                             : a->o.tools != NULL ? "tools"
                             : a->o.lead != NULL  ? "lead"
                             : a->o.tail != NULL  ? "tail"
                             : a->o.is_continued  ? "is_continued" : NULL;
    if (needs_chat != NULL && !a->o.is_chat)
        return err_set(err, FM_ERR_ARG, "fm_answer_options.%s is set without is_chat: set it too",
                       needs_chat);
    return 0;
}

static int parse_tools(struct fm_answer *a, const json_t **tools, struct fm_error *err)
{
    json_error_t why;
    if (*tools != NULL || a->o.tools == NULL)
        return 0;
    a->tools = json_loadb(a->o.tools, a->o.tools_bytes, JSON_REJECT_DUPLICATES, &why);
    if (a->tools == NULL)
        return err_set(err, FM_ERR_ARG, "fm_answer_options.tools is not JSON: line %d: %s",
                       why.line, why.text);
    if (!json_is_array(a->tools))
        return err_set(err, FM_ERR_ARG, "fm_answer_options.tools is not a JSON array");
    *tools = a->tools;
    return 0;
}

static bool is_special(const void *ctx, const char *text)
{
    const struct fm_model *model = ctx;
    int32_t id;
    return model->tokenizer != NULL && tokenizer_find(model->tokenizer, text, &id) &&
           tokenizer_is_special(model->tokenizer, id);
}

static int open_parts(struct fm_answer *a, const json_t *tools, struct fm_error *err)
{
    const int rc = parse_tools(a, &tools, err);
    if (rc != 0)
        return rc;
    const struct message_options how = {
        .is_thinking = a->o.is_reasoning,
        .is_continued = a->o.is_continued,
        .dialects = model_dialects(a->model),
        .is_without_calls = tools == NULL,
        .is_special = is_special,
        .special_ctx = a->model,
        .hold_calls = a->o.hold_calls,
        .is_call = a->o.lead != NULL,
        .tools = tools,
        .id_seed = a->o.call_seed,
    };
    a->is_reasoning = a->o.is_reasoning;
    return message_open(&how, take_part, a, &a->parts, err);
}

static int open_sampler(struct fm_answer *a, struct fm_error *err)
{
    const struct fm_sampling *given = a->o.sampling != NULL ? a->o.sampling
                                                            : &a->model->default_sampling;
    struct fm_sampling sampling;
    int rc = sized_take(&sampling, sizeof sampling, given, "fm_sampling", err);
    if (rc != 0)
        return rc;
    for (unsigned i = 0; i < sampling.n_logit_bias; i++)
        a->bias_forbids = a->bias_forbids || isinf(sampling.logit_bias[i].bias);
    rc = fm_sampler_open(a->model, &sampling, &a->sampler, err);
    if (rc == 0)
        fm_sampler_accept_prompt(a->sampler, a->o.prompt, a->o.n_prompt);
    return rc;
}

int answer_open_tools(const struct fm_model *model, const struct fm_answer_options *options,
                      const json_t *tools, struct fm_answer **out, struct fm_error *err)
{
    *out = NULL;
    struct fm_answer *a = mem_new(1, sizeof *a, "an answer", err);
    if (a == NULL)
        return FM_ERR_NOMEM;
    a->model = model;
    a->found = -1;
    a->end = FM_END_CANCELLED;
    a->err = err;
    int rc = take_options(a, options, err);
    if (rc == 0)
        rc = open_sampler(a, err);
    if (rc == 0)
        rc = fm_decoder_open(model, &a->decoder, err);
    if (rc == 0 && a->o.n_prompt > 0 &&
        (!a->o.is_chat || a->o.lead != NULL || a->o.is_continued))
        decoder_continue(a->decoder); /* the answer goes on with the prompt's text */
    const unsigned n_stops = a->o.lead != NULL ? 0 : a->o.n_stops; /* a forced call is not text */
    if (rc == 0)
        rc = stop_match_open(a->o.stops, n_stops, &a->stop, err);
    if (rc == 0 && a->o.is_chat)
        rc = open_parts(a, tools, err);
    if (rc == 0)
        rc = push_template(a, a->o.lead, err);
    if (rc == 0)
        rc = a->rc;
    if (rc != 0) {
        fm_answer_close(a);
        return rc;
    }
    begin_grammar(a);
    *out = a;
    return 0;
}

int fm_answer_open(const struct fm_model *model, const struct fm_answer_options *options,
                   struct fm_answer **out, struct fm_error *err)
{
    return answer_open_tools(model, options, NULL, out, err);
}

void fm_answer_close(struct fm_answer *a)
{
    if (a == NULL)
        return;
    fm_sampler_close(a->sampler);
    fm_decoder_close(a->decoder);
    stop_match_close(a->stop);
    message_close(a->parts);
    json_decref(a->tools);
    text_buffer_clear(&a->marked);
    mem_free(a);
}

uint64_t fm_answer_n_tokens(const struct fm_answer *a)
{
    return a->n_tokens;
}

uint64_t fm_answer_n_reasoning_tokens(const struct fm_answer *a)
{
    return a->n_reasoning;
}

/* Returns the kind of reasoning that the prompt's end opens, or NULL. */
static const struct reasoning *prompt_reasoning(const struct fm_model *model,
                                                const int32_t *ids, size_t n_ids)
{
    char tail[256];
    size_t used = 0;
    for (size_t i = n_ids > 8 ? n_ids - 8 : 0; i < n_ids; i++) {
        size_t bytes = 0;
        const char *text = fm_token_text(model, ids[i], &bytes);
        if (text == NULL || used + bytes > sizeof tail)
            continue;
        memcpy(tail + used, text, bytes);
        used += bytes;
    }
    while (used > 0 && (tail[used - 1] == '\n' || tail[used - 1] == ' '))
        used--;
    for (const struct reasoning *r = reasoning_list; r->begin != NULL; r++) {
        const size_t n = strlen(r->begin);
        if (used >= n && memcmp(tail + used - n, r->begin, n) == 0)
            return r;
    }
    return NULL;
}

bool fm_prompt_opens_reasoning(const struct fm_model *model, const int32_t *ids, size_t n_ids)
{
    return prompt_reasoning(model, ids, n_ids) != NULL;
}

const struct dialect *const *model_dialects(const struct fm_model *model)
{
    return model->chat != NULL ? chat_dialects(model->chat) : dialect_defaults();
}

bool model_may_restore(const struct fm_model *model)
{
    bool may = true;
    for (const struct dialect *const *d = model_dialects(model); *d != NULL; d++)
        may = may && (*d)->may_restore;
    return may;
}

int answer_forced_call(const struct fm_model *model, const int32_t *ids, size_t n_ids,
                       struct forced_call *out, struct fm_error *err)
{
    const struct grammar_call *call = dialect_forced_call(model_dialects(model));
    const struct reasoning *begun = prompt_reasoning(model, ids, n_ids);
    if (call == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED, "the call format of this model cannot be forced");
    (void)snprintf(out->lead, sizeof out->lead, "%s%s%s", begun != NULL ? begun->closing : "",
                   call->open, call->open_end);
    (void)snprintf(out->tail, sizeof out->tail, "%s%s", call->close_begin, call->close);
    return 0;
}
