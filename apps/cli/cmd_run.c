#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "apps/cli/answer_screen.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/disk_report.h"
#include "apps/cli/gpu_report.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/prefix_options.h"
#include "apps/cli/question.h"
#include "apps/cli/speed_report.h"
#include "apps/bench/profile.h"
#include "apps/bench/route_trace.h"
#include "apps/cli/sampling_options.h"
#include "apps/cli/term.h"
#include "apps/cli/token_logprobs.h"

struct run_text {
    void *at;
    size_t bytes, capacity;
};

/* One run, from the prompt to the summary line. */
struct run {
    const struct args *args;
    bool is_json, is_quiet;
    struct fm_model *model;
    struct fm_session *session;
    struct fm_answer *answer;
    struct fm_snapshots *snapshots; /* NULL: none */
    struct fm_grammar *grammar; /* NULL: the answer is unconstrained */
    struct fm_sampling sampling;
    struct fm_logit_bias bias[SAMPLING_BIAS_MAX];
    struct fm_model_info info;
    unsigned n_context;
    struct route_trace trace;
    struct profile profile;
    struct progress progress; /* of reading the prompt */

    int32_t *prompt; /* [n_prompt] */
    size_t n_prompt;
    size_t n_system; /* prompt tokens before the first user message */
    size_t n_reused; /* prompt tokens restored from a snapshot */
    size_t eval_from, eval_to; /* prompt tokens being evaluated */
    void *tokens; /* int32_t [n_tokens], including the stop token */
    size_t n_tokens, tokens_capacity;
    bool is_chat; /* the prompt is a conversation: the answer may have reasoning */
    struct run_text text, reasoning; /* the answer so far; kept only for JSON */
    struct answer_screen screen;
    bool is_out_gone;  /* standard output can no longer be written */
    const char *stop_reason;
    int stop_string; /* index of the --stop that ended the answer, or -1 */
    struct token_logprobs logprobs;
    json_t *json; /* printed at the end */
    struct fm_stats prompt_end; /* statistics at the end of the prompt */
    struct speed_report report; /* --stats */
};

/* ---- before the first token ------------------------------------------------------------ */

static bool is_constrained(const struct run *run)
{
    return args_flag(run->args, "json-object") || args_given(run->args, "json-schema");
}

/* Tokenizes one user message with the chat template. For a constrained answer thinking is disabled
 * if the model allows it; otherwise the JSON follows the reasoning. */
static int tokenize_turn(const struct run *run, const char *system, const char *text,
                         size_t text_bytes, int32_t **ids, size_t *n_ids, struct fm_error *err)
{
    const struct fm_chat_options now = app_chat_now();
    if (!is_constrained(run))
        return fm_chat_tokenize_turn(run->model, system, text, text_bytes, &now, ids, n_ids, err);
    json_t *messages = json_array();
    if (system != NULL)
        (void)json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "system", "content",
                                                        json_text(system, strlen(system))));
    (void)json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content",
                                                    json_text(text, text_bytes)));
    json_t *all = json_pack("{s:o, s:b, s:b}", "messages", messages, "enable_thinking", 0,
                            "thinking", 0); /* templates read either name */
    char *conversation = all != NULL ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    const int rc = conversation == NULL
        ? err_set(err, FM_ERR_NOMEM, "out of memory for the prompt")
        : fm_chat_tokenize(run->model, conversation, strlen(conversation), &now, ids, n_ids,
                               err);
    free(conversation); /* jansson's */
    return rc;
}

/* Tokenizes the prompt and finds how many of its tokens precede the user message. */
static int tokenize_chat(struct run *run, const char *text, size_t text_bytes,
                         struct fm_error *err)
{
    const char *const other = text_bytes > 0 && text[0] == 'a' ? "1" : "a";
    char *system;
    size_t system_bytes, n_ids;
    int32_t *ids = NULL;
    int rc = prefix_read_system(run->args, &system, &system_bytes, err);
    if (rc == 0)
        rc = tokenize_turn(run, system, text, text_bytes, &run->prompt, &run->n_prompt, err);
    if (rc == 0 && system_bytes > 0)
        rc = tokenize_turn(run, system, other, 1, &ids, &n_ids, err);
    if (ids != NULL)
        run->n_system = prefix_common(run->prompt, run->n_prompt, ids, n_ids);
    if (rc == FM_ERR_UNSUPPORTED && system != NULL && run->info.has_tokenizer)
        rc = err_wrap(err, FM_ERR_ARG, "--system cannot be used");
    mem_free(system);
    fm_free(ids);
    return rc;
}

/* Tokenizes the prompt with the chat template, or as plain text if the model has none. */
static int tokenize_prompt(struct run *run, const char *text, size_t text_bytes,
                           struct fm_error *err)
{
    if (!args_flag(run->args, "raw")) {
        const int rc = tokenize_chat(run, text, text_bytes, err);
        run->is_chat = rc == 0;
        if (rc != FM_ERR_UNSUPPORTED || !run->info.has_tokenizer)
            return rc;
        if (!run->is_quiet)
            say("note: this model cannot chat; the prompt is continued as it is (--raw)");
    }
    return fm_tokenize(run->model, text, text_bytes, FM_TEXT_WITH_SPECIAL | FM_TEXT_WITH_PREFIX,
                       &run->prompt, &run->n_prompt, err);
}

/* Opens the grammar of --json-object or --json-schema. */
static int open_grammar(struct run *run, struct fm_error *err)
{
    const char *path = args_text(run->args, "json-schema");
    char *schema = NULL;
    size_t bytes = 0;
    int rc = path != NULL ? file_read(path, &schema, &bytes, err) : 0;
    if (rc == 0 && is_constrained(run))
        rc = fm_grammar_open_json(run->model, schema, bytes, &run->grammar, err);
    if (rc == FM_ERR_ARG && path != NULL)
        rc = err_wrap(err, rc, "--json-schema %s", path);
    mem_free(schema);
    return rc;
}

static int take_event(void *ctx, const struct fm_answer_event *event, struct fm_error *err);

/* Opens the answer. Without tools, calls are text. */
static int open_answer(struct run *run, struct fm_error *err)
{
    const char *stops[REPEATS_MAX];
    unsigned n_stops = 0;
    int rc = open_grammar(run, err);
    if (rc == 0)
        rc = stops_choose(run->args, stops, &n_stops, err);
    const struct fm_answer_options how = {
        .size = sizeof how,
        .event = take_event,
        .ctx = run,
        .sampling = &run->sampling,
        .prompt = run->prompt,
        .n_prompt = run->n_prompt,
        .max_tokens = args_uint(run->args, "n-tokens"),
        .stops = stops,
        .n_stops = n_stops,
        .grammar = run->grammar,
        .ends_with_grammar = true,
        .wants_logprobs = args_given(run->args, "logprobs"),
        .n_top_logprobs = (unsigned)args_uint(run->args, "logprobs"),
        .is_chat = run->is_chat,
        .is_reasoning = run->is_chat &&
                        fm_prompt_opens_reasoning(run->model, run->prompt, run->n_prompt),
    };
    return rc == 0 ? fm_answer_open(run->model, &how, &run->answer, err) : rc;
}

static int open_all(struct run *run, const char *text, size_t text_bytes, struct fm_error *err)
{
    int rc = route_trace_open(&run->trace, args_text(run->args, "trace"), err);
    if (rc == 0)
        rc = profile_open(&run->profile, args_text(run->args, "profile"), err);
    const struct app_model_options how = {
        .n_context = (unsigned)args_uint(run->args, "context"),
        .routes = args_text(run->args, "routes"),
        .n_marks = args_given(run->args, "snapshots") ? 4 : 0,
        .keeps_heat = args_text(run->args, "routes") == NULL,
    };
    if (rc == 0)
        rc = app_model_open(run->args, &how, &run->model, err);
    if (rc != 0)
        return rc;
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(run->model, &stats);
    run->n_context = stats.n_context;
    run->info.size = sizeof run->info;
    fm_model_info(run->model, &run->info);
    route_trace_head(&run->trace, app_model_path(run->args), &run->info);
    rc = sampling_choose(run->args, run->model, run->is_quiet, run->bias, &run->sampling, err);
    if (rc == 0)
        rc = profile_head(&run->profile, &run->info, err);
    if (rc == 0)
        rc = question_check_bytes(text_bytes, &run->info, run->n_context, err);
    if (rc == 0)
        rc = tokenize_prompt(run, text, text_bytes, err);
    if (rc == 0 && run->n_prompt == 0)
        rc = err_set(err, FM_ERR_ARG, "the prompt has no tokens");
    if (rc == 0)
        rc = question_check_tokens(run->n_prompt, &run->info, run->n_context, err);
    if (rc == 0)
        rc = open_answer(run, err);
    if (rc == 0)
        rc = fm_session_open(run->model, &run->session, err);
    if (rc == 0)
        rc = prefix_open_snapshots(run->args, run->model, &run->snapshots, err);
    if (rc != 0)
        return rc;
    if (!run->is_quiet && !args_flag(run->args, "raw"))
        app_note_template(run->model);
    return 0;
}

/* ---- tokens ---------------------------------------------------------------------------- */

static int emit(struct run *run, bool is_reasoning, const char *text, size_t text_bytes,
                struct fm_error *err)
{
    struct run_text *to = is_reasoning ? &run->reasoning : &run->text;
    if (text_bytes == 0)
        return 0;
    if (!run->is_json) {
        if (!answer_screen_show(&run->screen, is_reasoning, text, text_bytes))
            run->is_out_gone = true;
        return 0;
    }
    int rc = mem_grow(&to->at, &to->capacity, to->bytes + text_bytes, 1, "the answer", err);
    if (rc != 0)
        return rc;
    memcpy((char *)to->at + to->bytes, text, text_bytes);
    to->bytes += text_bytes;
    return 0;
}

static int keep_token(struct run *run, const struct fm_answer_event *event, struct fm_error *err)
{
    int rc = mem_grow(&run->tokens, &run->tokens_capacity, run->n_tokens + 1, sizeof event->id,
                      "the answer", err);
    if (rc != 0)
        return rc;
    ((int32_t *)run->tokens)[run->n_tokens++] = event->id;
    return event->n_logprobs > 0 ? token_logprobs_add(&run->logprobs, event->logprobs,
                                                      event->n_logprobs, err)
                                 : 0;
}

static int take_event(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    struct run *run = ctx;
    if (event->kind == FM_EVENT_TOKEN)
        return keep_token(run, event, err);
    if (event->kind == FM_EVENT_TEXT || event->kind == FM_EVENT_REASONING)
        return emit(run, event->kind == FM_EVENT_REASONING, event->text, event->text_bytes, err);
    if (event->kind == FM_EVENT_FINISHED) {
        run->stop_reason = app_end_name(event->end);
        run->stop_string = event->end == FM_END_STRING ? (int)event->stop : -1;
    }
    return 0;
}

static void show_prompt_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct run *run = ctx;
    const size_t from = run->eval_from, n = run->eval_to - from;
    progress_steps(&run->progress, from + done * n / total, run->n_prompt, "tokens");
}

static void record_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                         const uint32_t *ids, const float *weights)
{
    struct run *run = ctx;
    route_trace_row(&run->trace, layer, position, n, ids, weights);
}

static void record_times(void *ctx, const struct fm_layer_profile *layer)
{
    struct run *run = ctx;
    profile_add(&run->profile, layer);
}

/* Evaluates the prompt up to position `to`. */
static int eval_to(struct run *run, size_t to, struct fm_error *err)
{
    if (interrupt_seen())
        return err_set(err, FM_ERR_CANCELLED, "interrupted");
    run->eval_from = fm_session_position(run->session);
    run->eval_to = to;
    return fm_session_eval(run->session, run->prompt + run->eval_from, to - run->eval_from, err);
}

/* Evaluates up to `to` and saves a snapshot. A snapshot that cannot be saved is only a warning. */
static int eval_and_keep(struct run *run, size_t to, struct fm_error *err)
{
    struct fm_error why = {0};
    int rc = eval_to(run, to, err);
    if (rc == 0 && fm_snapshots_keep(run->snapshots, run->session, &why) != 0)
        say_warning("no snapshot was saved: %s", why.text);
    return rc;
}

static int eval_kept_prompt(struct run *run, struct fm_error *err)
{
    int rc = 0;
    run->n_reused = fm_snapshots_restore(run->snapshots, run->session, run->prompt, run->n_prompt);
    if (run->n_reused < run->n_system) {
        rc = eval_and_keep(run, run->n_system, err);
        (void)fm_session_rewind(run->session, run->prompt, run->n_prompt); /* resets the logits */
    }
    return rc == 0 ? eval_and_keep(run, run->n_prompt, err) : rc;
}

static int eval_prompt(struct run *run, struct fm_error *err)
{
    struct fm_observer observer = {.size = sizeof observer,
                                   .ctx = run, .progress = show_prompt_progress,
                                   .route = run->trace.out.file != NULL ? record_route : NULL,
                                   .profile = profile_is_on(&run->profile) ? record_times : NULL};
    progress_begin(&run->progress, "reading the prompt", !run->is_quiet);
    fm_session_observe(run->session, &observer);
    int rc = run->snapshots != NULL ? eval_kept_prompt(run, err)
                                    : eval_to(run, run->n_prompt, err);
    observer.progress = NULL;
    fm_session_observe(run->session, &observer);
    run->trace.is_decode = true;
    progress_end(&run->progress);
    run->prompt_end.size = sizeof run->prompt_end;
    fm_model_stats(run->model, &run->prompt_end);
    return rc;
}

/* Decodes until the answer ends, Ctrl-C is pressed, or standard output is closed. */
static int decode(struct run *run, struct fm_error *err)
{
    int rc = 0;
    int32_t id = 0;
    while (rc == 0 && id >= 0 && !run->is_out_gone && !interrupt_seen()) {
        rc = fm_answer_step(run->answer, run->session, &id, err);
        if (rc == 0 && id >= 0 && !run->is_out_gone)
            rc = fm_session_eval(run->session, &id, 1, err);
    }
    return rc;
}

static int generate(struct run *run, struct fm_error *err)
{
    const bool is_prompt_only = args_uint(run->args, "n-tokens") == 0;
    int rc = eval_prompt(run, err);
    if (rc == 0 && !is_prompt_only)
        rc = decode(run, err);
    if (rc == FM_ERR_CANCELLED)
        rc = 0; /* the answer ends as "interrupted" */
    else if (rc == 0 && is_prompt_only)
        run->stop_reason = "length";
    if (rc != 0 || run->is_out_gone || run->stop_reason != NULL)
        return rc;
    return fm_answer_finish(run->answer, err);
}

/* ---- after the last token -------------------------------------------------------------- */

static double hit_rate(const struct fm_stats *stats)
{
    uint64_t n = stats->n_expert_hits + stats->n_expert_misses;
    return n > 0 ? (double)stats->n_expert_hits / (double)n : 0;
}

/* Returns the --stop that ended the answer, or null. */
static json_t *stop_json(const struct run *run)
{
    if (run->stop_string < 0)
        return json_null();
    const char *text = args_text_at(run->args, "stop", (size_t)run->stop_string);
    return json_text(text, strlen(text));
}

/* By the distance of a draft from the token before it. */
static json_t *counts_json(const uint64_t counts[FM_DRAFTS_MAX])
{
    json_t *list = json_array();
    for (unsigned i = 0; i < FM_DRAFTS_MAX; i++)
        (void)json_array_append_new(list, json_integer((json_int_t)counts[i]));
    return list;
}

/* What drafts of every source came to, and how many were decided on. */
static json_t *drafts_json(const struct fm_stats *stats)
{
    json_t *passes = json_array(), *sources = json_object();
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++)
        (void)json_array_append_new(passes, json_integer((json_int_t)stats->n_draft_passes[i]));
    for (unsigned s = 0; s < FM_DRAFT_SOURCES; s++)
        if (stats->n_drafted_by[s][0] > 0)
            (void)json_object_set_new(
                sources, fm_draft_source_name(s),
                json_pack("{s:o, s:o}", "n_drafted", counts_json(stats->n_drafted_by[s]),
                          "n_accepted", counts_json(stats->n_drafts_accepted_by[s])));
    return json_pack("{s:o, s:o}", "n_passes", passes, "sources", sources);
}

static json_t *text_json(const struct run_text *text)
{
    return json_text(text->bytes > 0 ? text->at : "", text->bytes);
}

static json_t *make_json(const struct run *run, const struct fm_stats *stats)
{
    char hash[33] = "";
    fm_session_logits_hash(run->session, hash);
    json_t *tokens = json_array();
    for (size_t i = 0; i < run->n_tokens; i++)
        (void)json_array_append_new(tokens, json_integer(((const int32_t *)run->tokens)[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:I, s:I, s:s, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:s?,"
        " s:s?, s:s?, s:I, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:s, s:s, s:I, s:o, s:o, s:o, s:s,"
        " s:o, s:o, s:I, s:o, s:o, s:o}",
        "text", text_json(&run->text), "reasoning", text_json(&run->reasoning),
        "tokens", tokens,
        "n_tokens", (json_int_t)run->n_tokens,
        "n_prompt_tokens", (json_int_t)run->n_prompt,
        "stop_reason", run->stop_reason,
        "tok_per_s", per_second(stats->n_decode_tokens, stats->decode_ns),
        "prefill_tok_per_s", per_second(stats->n_prefill_tokens, stats->prefill_ns),
        "hit_rate", hit_rate(stats),
        "n_expert_hits", (json_int_t)stats->n_expert_hits,
        "n_expert_misses", (json_int_t)stats->n_expert_misses,
        "n_expert_late", (json_int_t)stats->n_expert_late,
        "n_warmed", (json_int_t)stats->n_warmed,
        "n_cache_slots", (json_int_t)stats->n_cache_slots,
        "bytes_read", (json_int_t)stats->bytes_read,
        "read_wait_s", (double)stats->read_wait_ns * 1e-9,
        "io", stats->io, "reader", stats->reader, "policy", stats->policy,
        "memory_bytes", (json_int_t)stats->memory_resident_peak_bytes,
        "memory_budget_bytes", (json_int_t)stats->memory_budget_bytes,
        "n_shrinks", (json_int_t)stats->n_shrinks, "n_grows", (json_int_t)stats->n_grows,
        "n_prompt_reused", (json_int_t)run->n_reused,
        "n_context", (int)stats->n_context,
        "prefill_chunk", (int)stats->prefill_chunk,
        "n_threads", (int)stats->n_threads,
        "cpu_level", gpu_report_cpu_level(stats),
        "logits_hash", hash,
        "seed", (json_int_t)run->sampling.seed,
        "sampling", sampling_json(&run->sampling), "stop_string", stop_json(run),
        "model", json_text(app_model_path(run->args), strlen(app_model_path(run->args))),
        "architecture", run->info.architecture, "routes", json_label(stats->routes),
        "approximate", json_label(stats->approximate),
        "n_decode_passes", (json_int_t)stats->n_decode_passes,
        "n_drafted", counts_json(stats->n_drafted),
        "n_drafts_accepted", counts_json(stats->n_drafts_accepted),
        "drafts", drafts_json(stats));
}

/* Writes the share of drafts that were right, by distance. */
static void write_shares(const uint64_t *drafted, const uint64_t *accepted, char text[80])
{
    size_t at = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < FM_DRAFTS_MAX && drafted[i] > 0; i++)
        at += (size_t)snprintf(text + at, 80 - at, "%s%.0f%%", i > 0 ? ", " : "",
                               100.0 * (double)accepted[i] / (double)drafted[i]);
}

static void print_drafts(const struct fm_stats *stats, bool wraps)
{
    char text[256] = "", shares[80];
    size_t at = 0;
    uint64_t n = 0, n_passes = 0;
    for (unsigned i = 0; i < FM_DRAFTS_MAX; i++)
        n += stats->n_drafts_accepted[i];
    for (unsigned s = 0; s < FM_DRAFT_SOURCES; s++) {
        write_shares(stats->n_drafted_by[s], stats->n_drafts_accepted_by[s], shares);
        if (shares[0] != '\0')
            at += (size_t)snprintf(text + at, sizeof text - at, " | %s %s",
                                   fm_draft_source_name(s), shares);
    }
    say_figures(wraps, "drafts: %llu of %llu tokens, in %llu passes; accepted by distance%s",
                (unsigned long long)n, (unsigned long long)stats->n_decode_tokens,
                (unsigned long long)stats->n_decode_passes, text);
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++)
        n_passes += stats->n_draft_passes[i];
    at = 0;
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++)
        if (stats->n_draft_passes[i] > 0)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s%u in %.0f%%",
                                   at > 0 ? ", " : "", i,
                                   100.0 * (double)stats->n_draft_passes[i] / (double)n_passes);
    say_figures(wraps, "drafts in a pass: %s", text);
}

static void print_closing_line(const struct run *run, const struct fm_stats *stats)
{
    char read[UNIT_BYTES], peak[UNIT_BYTES], budget[UNIT_BYTES], seed[UNIT_BYTES + 8] = "greedy";
    char kept[48] = "", gpu[GPU_REPORT_BYTES];
    const bool wraps = !args_flag(run->args, "no-wrap");
    if (run->sampling.temperature > 0)
        (void)snprintf(seed, sizeof seed, "seed %llu", (unsigned long long)run->sampling.seed);
    const char *why = strcmp(run->stop_reason, "length") == 0    ? "-n reached"
                      : strcmp(run->stop_reason, "context") == 0 ? "context full"
                      : run->stop_string >= 0                    ? "stop string"
                      : strcmp(run->stop_reason, "stop") == 0    ? "complete"
                                                                 : "interrupted";
    if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO))
        (void)fputc('\n', stderr);
    if (run->n_reused > 0)
        (void)snprintf(kept, sizeof kept, ", %zu from a snapshot", run->n_reused);
    say_figures(wraps, "%zu token%s (%s), %.2f tok/s | prompt %zu token%s%s, %.2f tok/s | expert "
                "hits %.1f%%, %s read | memory %s of %s | %s", run->n_tokens,
                run->n_tokens == 1 ? "" : "s", why,
                per_second(stats->n_decode_tokens, stats->decode_ns), run->n_prompt,
                run->n_prompt == 1 ? "" : "s", kept,
                per_second(stats->n_prefill_tokens, stats->prefill_ns), 100 * hit_rate(stats),
                human_bytes(stats->bytes_read, read),
                human_bytes(stats->memory_resident_peak_bytes, peak),
                human_bytes(stats->memory_budget_bytes, budget), seed);
    if (stats->gpu != NULL)
        say("GPU %s: %s", stats->gpu, gpu_report_work(NULL, stats, gpu));
    if (args_flag(run->args, "stats"))
        disk_report_say(stats);
    if (stats->n_drafted[0] > 0)
        print_drafts(stats, wraps);
    if (stats->n_shrinks > 0)
        say("memory was scarce: the expert cache shrank to %llu experts (--elastic off prevents "
            "this)", (unsigned long long)stats->n_cache_slots);
    if (stats->routes != NULL)
        say("routes: %s", stats->routes);
    if (stats->approximate != NULL)
        say("%s", stats->approximate);
}

/* Closes everything; may be called twice. */
static void close_all(struct run *run)
{
    interrupt_watch(NULL);
    fm_session_close(run->session);
    fm_answer_close(run->answer);
    fm_grammar_close(run->grammar);
    fm_snapshots_close(run->snapshots);
    fm_model_close(run->model);
    run->answer = NULL;
    run->snapshots = NULL;
    run->grammar = NULL;
    run->session = NULL;
    run->model = NULL;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Maximum number of times that the machine is measured. */
#define MEASURES_MAX 2

/* Measures memory and disk after the answer, in the memory that the model used, and computes the
 * limits. An answer that was faster than the limit means that another program slowed the
 * measurement; it is then repeated. A failed measurement is only a warning. */
static void measure_stats(struct run *run)
{
    const struct speed_report *report = &run->report;
    struct fm_error err = {0};
    struct limit limit = {.is_exceeded = true};
    struct limit_speeds most = {0};
    const bool has_gpu = report->after.gpu != NULL;
    close_all(run);
    const bool is_read = report->after.bytes_read > run->prompt_end.bytes_read;
    for (int n = 0; n < MEASURES_MAX && limit.is_exceeded; n++) {
        struct app_speeds speeds;
        if (app_speeds_measure(run->args, is_read, report->after.io, &speeds, &err) != 0) {
            say_warning("--stats: %s", err.text);
            break;
        }
        if (has_gpu)
            app_gpu_measure(run->args, &speeds.gpu);
        most.disk = larger(most.disk, speeds.disk.read.median);
        most.memory = larger(most.memory, speeds.machine.read.median);
        most.gpu = larger(most.gpu, speeds.gpu.memory.median);
        most.link = larger(most.link, speeds.gpu.send.median);
        limit_between(&report->before, &report->after, &report->info, report->first_position,
                      &most, &limit);
    }
    speed_report_finish(&run->report, &most);
}

static void print_stats(const struct run *run)
{
    char limit[LIMIT_TEXT_BYTES], text[SPEED_REPORT_BYTES];
    const bool wraps = !args_flag(run->args, "no-wrap");
    if (run->report.limit.tok_per_s == 0) {
        say("limit: unknown: no token was decoded after the first");
        return;
    }
    say_figures(wraps, "limit: %s", limit_text(&run->report.limit, limit));
    say_figures(wraps, "miss curve: %s", speed_report_curve_text(&run->report, text));
    say_figures(wraps, "+1 GiB: %s", speed_report_more_text(&run->report, text));
}

static int finish(struct run *run)
{
    const bool has_stats = args_flag(run->args, "stats");
    if (run->is_out_gone && !interrupt_seen())
        return STATUS_FAILED;
    if (run->stop_reason == NULL)
        run->stop_reason = "interrupted"; /* Ctrl-C ended a write into a full pipe */
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(run->model, &stats);
    if (run->is_json)
        run->json = make_json(run, &stats);
    if (run->json != NULL)
        (void)gpu_report_put(run->json, NULL, &stats);
    if (run->json != NULL)
        disk_report_put(run->json, &stats);
    if (run->json != NULL)
        cluster_put(run->json, run->model);
    const bool has_logprobs = args_given(run->args, "logprobs");
    if (has_logprobs && run->json != NULL)
        (void)json_object_set_new(run->json, "logprobs",
                                  token_logprobs_json(&run->logprobs, run->model));
    answer_screen_end(&run->screen);
    if (run->screen.is_line_open)
        (void)out_text("\n", 1); /* out_finish reports a fault */
    if (has_logprobs && !run->is_json)
        token_logprobs_print(&run->logprobs, run->model);
    if (!run->is_json && !run->is_quiet)
        print_closing_line(run, &stats);
    if (has_stats) {
        speed_report_take(&run->report, run->model, &run->prompt_end, (double)run->n_prompt);
        if (!run->is_json)
            cluster_say(run->model);
        measure_stats(run); /* closes the model */
    }
    if (has_stats && run->is_json && run->json != NULL)
        (void)json_object_set_new(run->json, "stats", speed_report_json(&run->report));
    if (run->is_json && !out_json(run->json))
        return STATUS_FAILED;
    if (has_stats && !run->is_json)
        print_stats(run);
    return strcmp(run->stop_reason, "interrupted") == 0 ? STATUS_INTERRUPTED : STATUS_OK;
}

static int run_run(const struct args *args)
{
    struct fm_error err = {0};
    struct run run = {.args = args, .is_json = args_flag(args, "json"),
                      .is_quiet = args_flag(args, "quiet"), .stop_string = -1};
    run.screen = (struct answer_screen){.is_terminal = isatty(STDOUT_FILENO) != 0,
                                        .is_quiet = run.is_quiet,
                                        .wraps = !args_flag(args, "no-wrap")};
    char *text = NULL;
    size_t text_bytes = 0;
    int rc = question_read(args, &text, &text_bytes, &err);
    if (rc != 0)
        return say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    if (!args_given(args, "prompt") && args_operand(args, 1) == NULL && text_bytes > 0 &&
        text[text_bytes - 1] == '\n')
        text[--text_bytes] = '\0';
    if (text_bytes == 0) {
        mem_free(text);
        say("the prompt is empty; give a QUESTION, -p TEXT, -f FILE or standard input");
        return STATUS_USAGE;
    }
    interrupt_install();
    rc = open_all(&run, text, text_bytes, &err);
    mem_free(text);
    if (rc == 0) {
        interrupt_watch(run.session);
        rc = generate(&run, &err);
    }
    if (rc != 0)
        answer_screen_end(&run.screen);
    if (rc != 0 && run.screen.is_line_open && isatty(STDOUT_FILENO))
        (void)out_text("\n", 1); /* the message starts on its own line */
    int status = rc == 0 ? finish(&run) : say_failed(&err, STATUS_FAILED);
    if (route_trace_close(&run.trace, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    if (profile_close(&run.profile, rc == 0, &err) != 0)
        status = say_failed(&err, STATUS_FAILED);
    close_all(&run);
    fm_free(run.prompt);
    mem_free(run.tokens);
    mem_free(run.text.at);
    mem_free(run.reasoning.at);
    token_logprobs_clear(&run.logprobs);
    return status;
}

static const struct option prompt_options[] = {
    {.name = "prompt", .letter = 'p', .kind = OPTION_STRING, .metavar = "TEXT", .excludes = "file",
     .help = "The prompt, like QUESTION. Standard input, unless it is a terminal, comes before it "
             "as context. Without a question and -f, it is the prompt"},
    {.name = "file", .letter = 'f', .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Read the prompt from a file; drops one trailing newline"},
    {.name = "raw", .kind = OPTION_FLAG,
     .help = "Continue the prompt as it is, without the chat template. Special tokens such as "
             "<|im_start|> are recognised"},
    {.name = NULL},
};

static const struct option answer_options[] = {
    {.name = "json-object", .kind = OPTION_FLAG, .excludes = "json-schema",
     .help = "Constrain the answer to a JSON object"},
    {.name = "json-schema", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Constrain the answer to the JSON schema in FILE. A schema that cannot be enforced is "
             "refused; see docs/SCHEMA.md. -n may still cut the answer off"},
    {.name = "n-tokens", .letter = 'n', .kind = OPTION_UINT, .metavar = "N", .max = 1u << 30,
     .value = "512", .as_max = "-1 -2",
     .help = "Maximum tokens to generate. The answer ends earlier at the model's stop token or "
             "when the context is full. -1: no limit; 0 only reads the prompt"},
    {.name = "stop", .kind = OPTION_STRING, .metavar = "TEXT", .is_many = true,
     .help = "End the answer before this text. May be given several times; the first match ends "
             "the answer"},
    {.name = NULL},
};

static const struct option stats_options[] = {
    {.name = "stats", .kind = OPTION_FLAG,
     .help = "Show whether disk or memory limits the speed, what share of that limit was reached, "
             "and the hit rates of other cache sizes. The limits are measured after the answer, "
             "which takes a few seconds"},
    {.name = "logprobs", .kind = OPTION_UINT, .metavar = "N", .max = FM_TOP_LOGPROBS_MAX,
     .help = "Show the log probability of each token and of its N most likely alternatives: in the "
             "object with --json, otherwise on standard error. They are computed before "
             "temperature, penalties and filters"},
    {.name = NULL},
};

static const struct option_group group_stats = {"Output", stats_options};
static const struct option_group group_prompt = {"Prompt", prompt_options};
static const struct option_group group_answer = {"Answer", answer_options};

const struct command cmd_run = {
    .name = "run",
    .summary = "Answer a prompt and print the text as it is generated",
    .description =
        "The answer goes to standard output. Reasoning is shown dim before it on a terminal; "
        "otherwise it goes to standard error, or nowhere with -q. Progress and a summary line with "
        "speed, expert hit rate, bytes read and memory go to standard error. Ctrl-C ends the "
        "answer cleanly with exit status 130; a second Ctrl-C kills the program.\n"
        "--json prints one object: the text, the reasoning, the token ids (including the stop "
        "token), the stop reason (stop, length, context, interrupted), the matched stop string, "
        "speed, hit rate, bytes read, memory, the seed and a hash of all logits.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = "QUESTION", .is_optional = true,
                                          .is_question = true,
                                          .help = "The prompt. A single word that could also be "
                                                  "the name of a model is refused; then use -p"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_prompt, &group_prefix, &group_answer,
                                                   &group_sampling,
                                                   &group_engine,
                                                   &group_ranks, &group_context,
                                                   &group_routes, &group_trace, &group_stats,
                                                   &group_profile, &group_json, &group_wrap,
                                                   &group_messages, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe run \"Write a story about a robot who loves music.\"",
         "Use the bundled nano model"},
        {"flashmoe run MODEL \"What is the Moon?\"", "Ask one question"},
        {"git diff | flashmoe run MODEL \"Write a commit message.\"",
         "Ask about what another program writes"},
        {"flashmoe run MODEL --memory 8G -n 100 --seed 7 < question.txt",
         "Read the prompt from a file, use at most 8 GiB, and make the answer reproducible"},
        {"flashmoe run MODEL --json --greedy -p Hello | jq -r .text",
         "Use the answer and the measurements in a script"},
        {"flashmoe run MODEL --temp 0.7 --top-p 0.8 --stop END -p \"Count to ten.\"",
         "Sample with more variety, and end the answer at a word"},
        {"flashmoe run MODEL --system-file rules.txt --snapshots kept -f question.txt",
         "Compute long instructions once and keep them on disk for the next question"},
        {"flashmoe run MODEL --json-schema person.json -p \"Invent a person.\"",
         "Get an answer that a program can parse"},
        {"flashmoe run MODEL --routes gen -p Hello", "Measure the speed of random weights"},
        {NULL, NULL}},
    .run = run_run,
};
