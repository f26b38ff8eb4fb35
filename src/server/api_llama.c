/* llama-server's own completion and infill APIs. */
#include <stdio.h>

#include "server/constrain.h"
#include "server/fields.h"
#include "server/infill.h"
#include "server/text_json.h"

/* ---- reading -------------------------------------------------------------------------------- */

static void read_common(struct api_call *call, const struct fields *f, struct job_spec *spec)
{
    static const char *const limits[] = {"max_tokens", "n_predict", NULL};
    api_new_id("cmpl-", call->id);
    (void)api_read_limit(f, limits, 0, spec);
    api_read_sampling(call, f, spec);
    api_read_stops(call, f, "stop", spec);
    call->wants_progress = fields_bool(f, "return_progress", false);
    call->wants_tokens = fields_bool(f, "return_tokens", false);
    spec->n_top_logprobs = (unsigned)fields_uint(f, "n_probs", 0, FM_TOP_LOGPROBS_MAX, 0);
    call->has_logprobs = spec->wants_logprobs = spec->n_top_logprobs > 0 || call->wants_tokens;
    if (call->error.fault == API_GOOD)
        (void)constrain_fields(call, f, 0);
}

static int read_completion(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    read_common(call, &f, spec);
    call->echo = json_array();
    if (call->error.fault != API_GOOD || constrain_answer(NULL, call, spec) != 0)
        return -1;
    return api_read_prompts(call, fields_find(&f, "prompt"), "prompt", spec);
}

static const json_t *find_text(const struct fields *f, const char *name)
{
    const json_t *value = fields_find(f, name);
    if (value != NULL && !json_is_string(value))
        (void)fields_fail(f, name, "must be a string");
    return value;
}

static int read_infill(struct api_call *call, const json_t *body, struct job_spec *spec)
{
    const struct fields f = {body, &call->error, ""};
    const struct infill what = {.prefix = find_text(&f, "input_prefix"),
                                .suffix = find_text(&f, "input_suffix"),
                                .more = find_text(&f, "prompt"),
                                .extra = fields_array(&f, "input_extra"),
                                .field = "input_prefix"};
    read_common(call, &f, spec);
    call->echo = json_array();
    if (what.prefix == NULL && what.suffix == NULL)
        (void)fields_fail(&f, "input_prefix", "or 'input_suffix' must be given");
    if (call->error.fault != API_GOOD || constrain_answer(NULL, call, spec) != 0)
        return -1;
    return infill_add_prompt(call, spec, &what);
}

/* ---- writing -------------------------------------------------------------------------------- */

json_t *api_timings_json(const struct job_usage *u)
{
    const double prompt_ms = (double)u->prefill_ns * 1e-6, answer_ms = (double)u->decode_ns * 1e-6;
    const uint64_t n_prompt = u->n_prompt - u->n_cached;
    const uint64_t n_steps = u->n_answer > 1 ? u->n_answer - 1 : 0; /* the first comes for free */
    json_t *timings = json_pack(
        "{s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f}", "cache_n", (json_int_t)u->n_cached,
        "prompt_n", (json_int_t)n_prompt, "prompt_ms", prompt_ms, "prompt_per_token_ms",
        n_prompt > 0 ? prompt_ms / (double)n_prompt : 0.0, "prompt_per_second",
        prompt_ms > 0 ? (double)n_prompt / prompt_ms * 1e3 : 0.0, "predicted_n",
        (json_int_t)u->n_answer, "predicted_ms", answer_ms, "predicted_per_token_ms",
        n_steps > 0 ? answer_ms / (double)n_steps : 0.0, "predicted_per_second",
        answer_ms > 0 ? (double)n_steps / answer_ms * 1e3 : 0.0, "predicted_max_ms",
        (double)u->gap_ns * 1e-6);
    if (u->n_draft_passes > 0) {
        (void)json_object_set_new(timings, "draft_n", json_integer((json_int_t)u->n_drafted));
        (void)json_object_set_new(timings, "draft_n_accepted",
                                  json_integer((json_int_t)u->n_accepted));
        (void)json_object_set_new(timings, "draft_passes",
                                  json_integer((json_int_t)u->n_draft_passes));
    }
    return timings;
}

/* Takes the reference `content`. */
static json_t *piece_json(const struct api_call *call, unsigned choice, json_t *content,
                          const struct job_logprobs *logprobs, bool is_last)
{
    const bool has_some = logprobs != NULL && logprobs->n > 0;
    json_t *piece = json_pack(
        "{s:i, s:o, s:o, s:b, s:i}", "index", (int)choice, "content", content, "tokens",
        has_some && call->wants_tokens ? api_logprobs_mark(choice, API_LIST_IDS) : json_array(),
        "stop", is_last, "id_slot", -1);
    if (has_some && logprobs->n_each > 1)
        (void)json_object_set_new(piece, "completion_probabilities",
                                  api_logprobs_mark(choice, API_LIST_ENTRIES));
    return piece;
}

/* Adds how an answer ended and what it took. */
static void add_end(const struct api_call *call, unsigned choice, json_t *piece)
{
    static const char *const types[] = {[JOB_END_STOP] = "eos", [JOB_END_STRING] = "word",
                                        [JOB_END_LENGTH] = "limit", [JOB_END_CALLS] = "eos"};
    const struct api_choice *c = &call->choices[choice];
    const char *word = c->end == JOB_END_STRING ? call->stops[c->stop] : "";
    json_t *end = json_pack(
        "{s:s, s:I, s:I, s:I, s:b, s:s, s:o, s:o}", "model", call->model, "tokens_predicted",
        (json_int_t)c->n_answer, "tokens_evaluated", (json_int_t)c->n_prompt, "tokens_cached",
        (json_int_t)(c->n_prompt + c->n_answer), "truncated", 0, "stop_type", types[c->end],
        "stopping_word", text_json(word, strlen(word)), "timings",
        api_timings_json(&call->usage));
    (void)json_object_update(piece, end);
    json_decref(end);
    if (json_array_size(call->echo) > choice)
        (void)json_object_set(piece, "prompt", json_array_get(call->echo, choice));
}

static bool write_frame(struct api_call *call, json_t *piece, const struct job_logprobs *logprobs)
{
    return logprobs != NULL && logprobs->n > 0 ? api_frame_logprobs(call, piece, logprobs)
                                               : api_frame(call, NULL, piece);
}

static bool write_llama(struct api_call *call, const struct job_event *event)
{
    struct api_choice *c = event->choice < call->n_choices ? &call->choices[event->choice] : NULL;
    switch (event->kind) {
    case JOB_PROGRESS:
        return text_add_format(call->out, ": prompt %llu/%llu\n\n",
                               (unsigned long long)event->n_done,
                               (unsigned long long)event->n_prompt);
    case JOB_CONTENT:
        return write_frame(call, piece_json(call, event->choice,
                                            text_json(event->text, event->text_bytes),
                                            &event->logprobs, false), &event->logprobs);
    case JOB_CHOICE_END:
        api_choice_end(c, event);
        return event->logprobs.n == 0 ||
               write_frame(call, piece_json(call, event->choice, json_string(""), &event->logprobs,
                                            false), &event->logprobs);
    case JOB_DONE: {
        bool is_good = true;
        for (unsigned i = 0; is_good && i < call->n_choices; i++) {
            json_t *last = piece_json(call, i, json_string(""), NULL, true);
            add_end(call, i, last);
            is_good = api_frame(call, NULL, last);
        }
        return is_good;
    }
    case JOB_FAILED:
        return api_frame(call, NULL, api_error_json(&call->error, API_OPENAI));
    default:
        return true;
    }
}

static json_t *whole_llama(const struct api_call *call)
{
    json_t *all = json_array();
    for (unsigned i = 0; i < call->n_choices; i++) {
        const struct api_choice *c = &call->choices[i];
        json_t *one = piece_json(call, i, api_buffer_json(&c->content), &c->logprobs, true);
        add_end(call, i, one);
        (void)json_array_append_new(all, one);
    }
    if (call->n_choices > 1)
        return all;
    json_t *one = json_incref(json_array_get(all, 0));
    json_decref(all);
    return one;
}

const struct api api_llama_completion = {
    .path = "/completion", .dialect = API_OPENAI, .read = read_completion, .write = write_llama,
    .whole = whole_llama, .hello = SSE_HELLO, .ping = ": ping\n\n"};
const struct api api_llama_infill = {
    .path = "/infill", .dialect = API_OPENAI, .read = read_infill, .write = write_llama,
    .whole = whole_llama, .hello = SSE_HELLO, .ping = ": ping\n\n"};
