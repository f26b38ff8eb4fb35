/* One turn: from the tokens of the conversation to the text of the answer. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "apps/chat/chat.h"
#include "apps/cli/answer_screen.h"
#include "apps/cli/common.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/prefix_options.h"
#include "apps/cli/sampling_options.h"

struct text {
    void *at;
    size_t bytes, capacity;
};

/* An answer in progress. */
struct answer {
    struct chat *chat;
    struct fm_answer *answer;
    struct text content, reasoning;
    struct answer_screen screen;
    struct progress progress;
    size_t n_before, n_piece, n_total; /* prompt tokens, for the progress line */
};

/* ---- the prompt ------------------------------------------------------------------------- */

static void show_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct answer *a = ctx;
    if (interrupt_seen())
        a->progress.label = "stopping soon (Ctrl-C again: now)";
    progress_steps(&a->progress, a->n_before + done * a->n_piece / total, a->n_total, "tokens");
}

/* Evaluates in pieces, so that Ctrl-C between two of them loses no computed state. With
 * `last_apart` the last token is a piece of its own: recurrent layers can return to the mark before
 * it, so that another answer computes only that token. */
static int eval_prompt(struct answer *a, const int32_t *ids, size_t n_ids, bool last_apart,
                       struct fm_error *err)
{
    struct chat *chat = a->chat;
    const struct fm_observer observer = {.size = sizeof observer,
                                         .ctx = a, .progress = show_progress};
    int rc = 0;
    a->n_total = n_ids;
    progress_begin(&a->progress, "reading", !chat->is_quiet);
    fm_session_observe(chat->session, &observer);
    for (size_t i = 0; rc == 0 && i < n_ids; i += a->n_piece) {
        a->n_before = i;
        a->n_piece = n_ids - i < chat->prefill_chunk ? n_ids - i : chat->prefill_chunk;
        if (last_apart && a->n_piece > 1 && i + a->n_piece == n_ids)
            a->n_piece--;
        rc = interrupt_seen() ? err_set(err, FM_ERR_CANCELLED, "interrupted")
                              : fm_session_eval(chat->session, ids + i, a->n_piece, err);
    }
    fm_session_observe(chat->session, NULL);
    progress_end(&a->progress);
    return rc;
}

static unsigned go_back(struct chat *chat, const int32_t *ids, size_t n_ids)
{
    return chat->snapshots != NULL
               ? fm_snapshots_restore(chat->snapshots, chat->session, ids, n_ids)
               : fm_session_rewind(chat->session, ids, n_ids);
}

static int check_context(const struct chat *chat, size_t n_ids, struct fm_error *err)
{
    if (n_ids < chat->n_context)
        return 0;
    if (n_ids >= chat->info.max_context)
        return err_set(err, FM_ERR_ARG, "the conversation would have %zu tokens, but the context "
                       "holds %u and the model supports at most %u (--context). The message was "
                       "not added; use /undo or /new", n_ids, chat->n_context,
                       chat->info.max_context);
    return err_set(err, FM_ERR_ARG, "the context is full: the conversation would have %zu tokens, "
                   "but the context holds %u. The message was not added; use /undo, or /save, "
                   "restart with a larger --context, and /load", n_ids,
                   chat->n_context);
}

int chat_read_ahead(struct chat *chat, struct fm_error *err)
{
    static const char *const probes[] = {"a", "1"};
    int32_t *ids[2] = {NULL, NULL};
    size_t n_ids[2] = {0, 0};
    int rc = 0;
    for (int i = 0; rc == 0 && i < 2; i++) {
        rc = chat_say(chat, "user", probes[i], 1, err);
        if (rc == 0)
            rc = chat_tokens(chat, chat->messages, &ids[i], &n_ids[i], err);
        json_decref(chat_take_last(chat, "user"));
    }
    const size_t n = prefix_common(ids[0], n_ids[0], ids[1], n_ids[1]);
    if (rc == 0)
        rc = check_context(chat, n_ids[0], err);
    const unsigned from = rc == 0 ? go_back(chat, ids[0], n_ids[0]) : 0;
    struct answer a = {.chat = chat};
    if (rc == 0 && from < n) {
        interrupt_watch(chat->session);
        rc = eval_prompt(&a, ids[0] + from, n - from, false, err);
        interrupt_watch(NULL);
        if (rc == 0 && chat->snapshots != NULL)
            rc = fm_snapshots_keep(chat->snapshots, chat->session, err);
    }
    if (rc == FM_ERR_CANCELLED) {
        interrupt_forget();
        rc = 0;
    }
    if (rc == 0)
        chat->last = (struct chat_turn){.n_prompt = n, .n_reused = from < n ? from : n,
                                        .n_computed = from < n ? n - from : 0};
    fm_free(ids[0]);
    fm_free(ids[1]);
    return rc;
}

/* ---- the text --------------------------------------------------------------------------- */

static int keep(struct text *text, const char *more, size_t bytes, struct fm_error *err)
{
    int rc = mem_grow(&text->at, &text->capacity, text->bytes + bytes, 1, "the answer", err);
    if (rc != 0)
        return rc;
    char *to = (char *)text->at + text->bytes;
    for (size_t i = 0; i < bytes; i++)
        to[i] = more[i] != '\0' ? more[i] : '?'; /* JSON strings cannot contain NUL */
    text->bytes += bytes;
    return 0;
}

static int take_text(struct answer *a, const struct fm_answer_event *event, struct fm_error *err)
{
    const bool is_reasoning = event->kind == FM_EVENT_REASONING;
    const int rc = keep(is_reasoning ? &a->reasoning : &a->content, event->text, event->text_bytes,
                        err);
    if (rc == 0 && !answer_screen_show(&a->screen, is_reasoning, event->text, event->text_bytes))
        a->chat->is_out_gone = true;
    return rc;
}

static int take_event(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    struct answer *a = ctx;
    if (event->kind == FM_EVENT_TEXT || event->kind == FM_EVENT_REASONING)
        return take_text(a, event, err);
    if (event->kind == FM_EVENT_TOKEN)
        a->chat->last.n_answer++;
    if (event->kind == FM_EVENT_FINISHED)
        a->chat->last.end = app_end_name(event->end);
    return 0;
}

/* Decodes until the answer ends, Ctrl-C is pressed, or standard output is closed. */
static int decode(struct answer *a, struct fm_error *err)
{
    struct chat *chat = a->chat;
    int32_t id = 0;
    int rc = 0;
    while (rc == 0 && id >= 0 && !chat->is_out_gone && !interrupt_seen()) {
        rc = fm_answer_step(a->answer, chat->session, &id, err);
        if (rc == 0 && id >= 0)
            rc = fm_session_eval(chat->session, &id, 1, err);
    }
    return rc;
}

/* Emits what is still held back, also after a failure. */
static int finish_text(struct answer *a, struct fm_error *err)
{
    const int rc = fm_answer_finish(a->answer, err);
    answer_screen_end(&a->screen);
    if (a->screen.is_line_open)
        (void)out_text("\n", 1);
    a->screen.is_line_open = false;
    return rc;
}

/* ---- the turn --------------------------------------------------------------------------- */

static int open_answer(struct answer *a, const int32_t *ids, size_t n_ids, struct fm_error *err)
{
    struct chat *chat = a->chat;
    const char *stops[REPEATS_MAX];
    unsigned n_stops = 0;
    const int rc = stops_choose(chat->args, stops, &n_stops, err);
    const struct fm_answer_options how = {
        .size = sizeof how,
        .event = take_event,
        .ctx = a,
        .sampling = &chat->sampling,
        .prompt = ids,
        .n_prompt = n_ids,
        .max_tokens = chat->n_max,
        .stops = stops,
        .n_stops = n_stops,
        .is_chat = true,
        .is_reasoning = fm_prompt_opens_reasoning(chat->model, ids, n_ids),
    };
    return rc == 0 ? fm_answer_open(chat->model, &how, &a->answer, err) : rc;
}

static void close_answer(struct answer *a)
{
    fm_answer_close(a->answer);
    mem_free(a->content.at);
    mem_free(a->reasoning.at);
}

static void count(struct chat_turn *turn, const struct fm_stats *before,
                  const struct fm_stats *after, uint64_t wall_ns)
{
    turn->n_decoded = after->n_decode_tokens - before->n_decode_tokens;
    turn->decode_ns = after->decode_ns - before->decode_ns;
    turn->n_prefilled = after->n_prefill_tokens - before->n_prefill_tokens;
    turn->prefill_ns = after->prefill_ns - before->prefill_ns;
    turn->n_hits = after->n_expert_hits - before->n_expert_hits;
    turn->n_misses = after->n_expert_misses - before->n_expert_misses;
    turn->bytes_read = after->bytes_read - before->bytes_read;
    turn->wall_ns = wall_ns;
}

/* Appends the generated text to the conversation. */
static int keep_answer(struct answer *a, struct fm_error *err)
{
    struct chat *chat = a->chat;
    int rc = chat_say(chat, "assistant", a->content.bytes > 0 ? a->content.at : "",
                      a->content.bytes, err);
    if (rc != 0 || a->reasoning.bytes == 0)
        return rc;
    json_t *message = json_array_get(chat->messages, json_array_size(chat->messages) - 1);
    return json_object_set_new(message, "reasoning_content",
                               json_text(a->reasoning.at, a->reasoning.bytes)) == 0
               ? 0 : err_set(err, FM_ERR_NOMEM, "out of memory for the answer");
}

static int write_answer(struct answer *a, const int32_t *ids, size_t n_ids, struct fm_error *err)
{
    struct chat *chat = a->chat;
    struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    int rc = check_context(chat, n_ids, err);
    if (rc == 0)
        rc = open_answer(a, ids, n_ids, err);
    if (rc != 0)
        return rc;
    const unsigned from = go_back(chat, ids, n_ids);
    chat->last = (struct chat_turn){.n_prompt = n_ids, .n_reused = from, .n_computed = n_ids - from,
                                    .seed = chat->sampling.seed};
    const uint64_t begin_ns = plat_now_ns();
    fm_model_stats(chat->model, &before);
    interrupt_watch(chat->session);
    rc = eval_prompt(a, ids + from, n_ids - from, true, err);
    if (rc == 0)
        rc = decode(a, err);
    interrupt_watch(NULL);
    fm_model_stats(chat->model, &after);
    count(&chat->last, &before, &after, plat_now_ns() - begin_ns);
    if (rc == FM_ERR_CANCELLED)
        rc = 0; /* the answer ends as "interrupted" */
    struct fm_error late = {0};
    if (finish_text(a, &late) != 0 && rc == 0) {
        *err = late;
        rc = late.code;
    }
    if (rc != 0)
        chat->last.end = "failed";
    return rc;
}

bool chat_answer(struct chat *chat)
{
    struct fm_error err = {0};
    struct answer a = {.chat = chat, .screen = {.is_terminal = chat->is_terminal,
                                                .is_quiet = chat->is_quiet,
                                                .wraps = !args_flag(chat->args, "no-wrap")}};
    int32_t *ids = NULL;
    size_t n_ids = 0;
    interrupt_forget();
    int rc = chat_tokens(chat, chat->messages, &ids, &n_ids, &err);
    if (rc == 0)
        rc = write_answer(&a, ids, n_ids, &err);
    fm_free(ids);
    if (rc != 0)
        (void)say_failed(&err, 0);
    const bool is_begun = a.content.bytes + a.reasoning.bytes > 0;
    const bool is_whole = rc == 0 && chat->last.n_answer > 0; /* it may be empty */
    bool is_kept = false;
    if (is_begun || is_whole) {
        is_kept = keep_answer(&a, &err) == 0;
        if (!is_kept)
            (void)say_failed(&err, 0);
    } else if (rc == 0) {
        say("interrupted before any text; the message was not added");
    }
    if (is_kept && rc == 0 && strcmp(chat->last.end, "context") == 0)
        say("the context of %u tokens is full (--context); the answer was cut off",
            chat->n_context);
    close_answer(&a);
    interrupt_forget();
    chat->is_seed_set = false;
    return is_kept;
}

void chat_show_status(const struct chat *chat)
{
    const struct chat_turn *turn = &chat->last;
    struct fm_stats stats = {.size = sizeof stats};
    char resident[UNIT_BYTES], budget[UNIT_BYTES], text[256];
    const uint64_t n_used = turn->n_hits + turn->n_misses;
    fm_model_stats(chat->model, &stats);
    (void)snprintf(text, sizeof text, "%.1f tok/s | hits %.0f%% | disk %.2f GB/s | memory %s of %s "
                   "| %u/%u%s", per_second(turn->n_decoded, turn->decode_ns),
                   n_used > 0 ? 100 * (double)turn->n_hits / (double)n_used : 100.0,
                   per_second(turn->bytes_read, turn->wall_ns) * 1e-9,
                   human_bytes(plat_resident_bytes(), resident),
                   human_bytes(stats.memory_budget_bytes, budget),
                   fm_session_position(chat->session), chat->n_context,
                   strcmp(turn->end, "stop") == 0 ? "" : strcmp(turn->end, "length") == 0
                   ? " | max_tokens reached" : strcmp(turn->end, "context") == 0
                   ? " | context full" : " | interrupted");
    (void)fputs(SCREEN_DIM, stderr);
    if (args_flag(chat->args, "no-wrap"))
        (void)fputs(text, stderr);
    else
        err_wrapped(text);
    (void)fputs(SCREEN_NORMAL "\n", stderr);
}
