/* The commands of the chat, and sending a message. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat.h"
#include "apps/chat/chat.h"
#include "apps/cli/common.h"

/* ---- answers ---------------------------------------------------------------------------- */

static void after_answer(const struct chat *chat)
{
    if (chat->is_terminal && !chat->is_quiet)
        chat_show_status(chat);
}

void chat_ask(struct chat *chat, const char *text, size_t text_bytes)
{
    struct fm_error err = {0};
    if (chat_say(chat, "user", text, text_bytes, &err) != 0)
        (void)say_failed(&err, 0);
    else if (chat_answer(chat))
        after_answer(chat);
    else
        json_decref(chat_take_last(chat, "user"));
}

static int do_regen(struct chat *chat, const char *rest, struct fm_error *err)
{
    (void)rest;
    json_t *old = chat_take_last(chat, "assistant");
    if (old == NULL)
        return err_set(err, FM_ERR_ARG, "/regen: there is no answer yet");
    if (!chat->is_seed_set)
        chat->sampling.seed = (chat->sampling.seed + 1) & INT64_MAX;
    if (chat_answer(chat))
        after_answer(chat);
    else
        (void)json_array_append(chat->messages, old); /* keeps the old answer */
    json_decref(old);
    return 0;
}

static int do_undo(struct chat *chat, const char *rest, struct fm_error *err)
{
    (void)rest;
    json_t *answer = chat_take_last(chat, "assistant");
    json_t *question = chat_take_last(chat, "user");
    if (answer == NULL && question == NULL)
        return err_set(err, FM_ERR_ARG, "/undo: there is nothing to undo");
    json_decref(answer);
    json_decref(question);
    say("removed the last exchange; %zu messages remain", json_array_size(chat->messages));
    return 0;
}

static int do_new(struct chat *chat, const char *rest, struct fm_error *err)
{
    (void)rest;
    (void)err;
    while (json_array_size(chat->messages) > 0) {
        json_t *last = chat_take_last(chat, "system");
        if (last != NULL && json_array_size(chat->messages) == 0) {
            (void)json_array_append_new(chat->messages, last);
            break;
        }
        json_decref(last);
        if (last == NULL)
            (void)json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    }
    say("started a new conversation");
    return 0;
}

/* ---- the conversation ------------------------------------------------------------------- */

static int do_system(struct chat *chat, const char *rest, struct fm_error *err)
{
    int rc = chat_set_system(chat, rest, strlen(rest), err);
    if (rc == 0)
        say(rest[0] != '\0' ? "system message set" : "system message removed");
    return rc;
}

static int do_think(struct chat *chat, const char *rest, struct fm_error *err)
{
    if (rest[0] != '\0' && strcmp(rest, "on") != 0 && strcmp(rest, "off") != 0)
        return err_set(err, FM_ERR_ARG, "/think takes on or off, not '%s'", rest);
    if (rest[0] != '\0')
        chat->thinking = strcmp(rest, "on") == 0;
    say("thinking: %s", chat->thinking < 0 ? "the template's default"
                        : chat->thinking  ? "on" : "off");
    return 0;
}

static int do_save(struct chat *chat, const char *rest, struct fm_error *err)
{
    return rest[0] != '\0' ? chat_save(chat, rest, err)
                           : err_set(err, FM_ERR_ARG, "/save needs a FILE");
}

static int do_load(struct chat *chat, const char *rest, struct fm_error *err)
{
    return rest[0] != '\0' ? chat_load(chat, rest, err)
                           : err_set(err, FM_ERR_ARG, "/load needs a FILE");
}

/* Splits FILE, or "FILE WITH BLANKS", from an optional text after it. */
static const char *split_path(const char *rest, char path[LIMIT_PATH_BYTES])
{
    const bool is_quoted = rest[0] == '"' && strchr(rest + 1, '"') != NULL;
    const char *from = rest + is_quoted;
    const size_t n = is_quoted ? (size_t)(strchr(from, '"') - from) : strcspn(from, " \t");
    (void)snprintf(path, LIMIT_PATH_BYTES, "%.*s", (int)n, from);
    from += n + is_quoted;
    return from + strspn(from, " \t");
}

static int do_read(struct chat *chat, const char *rest, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], *file = NULL;
    size_t file_bytes = 0;
    if (rest[0] == '\0')
        return err_set(err, FM_ERR_ARG, "/read needs a FILE");
    const char *text = split_path(rest, path);
    const size_t text_bytes = strlen(text);
    if (strcmp(path, "-") == 0)
        return err_set(err, FM_ERR_ARG, "/read needs a file; '-' is the conversation itself");
    int rc = file_read(path, &file, &file_bytes, err);
    if (rc != 0)
        return rc;
    while (file_bytes > 0 && file[file_bytes - 1] == '\n')
        file_bytes--;
    if (memchr(file, '\0', file_bytes) != NULL || file_bytes == 0)
        rc = err_set(err, FM_ERR_ARG, "/read: '%s' %s", path,
                     file_bytes == 0 ? "is empty" : "is not text");
    char *message = rc == 0 ? mem_new(text_bytes + file_bytes + 3, 1, "the message", err) : NULL;
    if (message != NULL) {
        const size_t n_gap = text_bytes > 0 ? 2 : 0;
        memcpy(message, text, text_bytes);
        memcpy(message + text_bytes, "\n\n", n_gap);
        memcpy(message + text_bytes + n_gap, file, file_bytes);
        chat_ask(chat, message, text_bytes + n_gap + file_bytes);
    } else if (rc == 0) {
        rc = FM_ERR_NOMEM;
    }
    mem_free(message);
    mem_free(file);
    return rc;
}

/* ---- numbers ---------------------------------------------------------------------------- */

static int do_stats(struct chat *chat, const char *rest, struct fm_error *err)
{
    const struct chat_turn *turn = &chat->last;
    struct fm_stats stats = {.size = sizeof stats};
    char a[UNIT_BYTES], b[UNIT_BYTES], c[UNIT_BYTES];
    const uint64_t n_used = turn->n_hits + turn->n_misses;
    (void)rest;
    (void)err;
    fm_model_stats(chat->model, &stats);
    (void)printf("conversation  %zu messages, position %u of %u\n",
                 json_array_size(chat->messages), fm_session_position(chat->session),
                 chat->n_context);
    (void)printf("last prompt   %zu tokens: %zu reused, %zu computed, %.1f tok/s\n",
                 turn->n_prompt, turn->n_reused, turn->n_computed,
                 per_second(turn->n_prefilled, turn->prefill_ns));
    (void)printf("last answer   %zu tokens (%s), %.1f tok/s, seed %llu\n", turn->n_answer,
                 turn->end != NULL ? turn->end : "none",
                 per_second(turn->n_decoded, turn->decode_ns), (unsigned long long)turn->seed);
    (void)printf("last turn     expert hits %.1f%%, %s read, disk %.2f GB/s\n",
                 n_used > 0 ? 100 * (double)turn->n_hits / (double)n_used : 100.0,
                 human_bytes(turn->bytes_read, a),
                 per_second(turn->bytes_read, turn->wall_ns) * 1e-9);
    (void)printf("memory        %s of %s, peak %s\n", human_bytes(plat_resident_bytes(), a),
                 human_bytes(stats.memory_budget_bytes, b),
                 human_bytes(stats.memory_resident_peak_bytes, c));
    if (chat->snapshots != NULL) {
        struct fm_snapshots_stats kept = {.size = sizeof kept};
        fm_snapshots_stats(chat->snapshots, &kept);
        (void)printf("snapshots     %llu files, %s; %llu written, %llu used\n",
                     (unsigned long long)kept.n_files, human_bytes(kept.bytes, a),
                     (unsigned long long)kept.n_written, (unsigned long long)kept.n_restored);
    }
    if (stats.routes != NULL)
        (void)printf("routes        %s\n", stats.routes);
    if (stats.approximate != NULL)
        (void)printf("%s\n", stats.approximate);
    chat->is_out_gone = !out_text("", 0);
    return 0;
}

struct setting {
    const char *name;
    float *real;      /* exactly one of the three is set */
    unsigned *number;
    uint64_t *large;
    double min, max;
};

#define N_SETTINGS 11

static void list_settings(struct chat *chat, struct setting out[N_SETTINGS])
{
    struct fm_sampling *s = &chat->sampling;
    const struct setting all[N_SETTINGS] = {
        {"temperature", &s->temperature, NULL, NULL, 0, 10},
        {"top_k", NULL, &s->top_k, NULL, 0, LIMIT_VOCAB},
        {"top_p", &s->top_p, NULL, NULL, 0, 1},
        {"min_p", &s->min_p, NULL, NULL, 0, 1},
        {"typical_p", &s->typical_p, NULL, NULL, 0, 1},
        {"repetition_penalty", &s->repetition_penalty, NULL, NULL, 0, 100},
        {"presence_penalty", &s->presence_penalty, NULL, NULL, -100, 100},
        {"frequency_penalty", &s->frequency_penalty, NULL, NULL, -100, 100},
        {"penalty_window", NULL, &s->penalty_window, NULL, 0, LIMIT_CONTEXT},
        {"seed", NULL, NULL, &s->seed, 0, 0x1p63},
        {"max_tokens", NULL, NULL, &chat->n_max, 0, 0x1p30},
    };
    memcpy(out, all, sizeof all);
}

static const char *word_of_setting(unsigned i)
{
    static struct chat none;
    struct setting settings[N_SETTINGS];
    list_settings(&none, settings);
    return i < N_SETTINGS ? settings[i].name : NULL;
}

static void print_setting(const struct setting *setting)
{
    if (setting->real != NULL)
        (void)printf("%-18s  %g\n", setting->name, (double)*setting->real);
    else
        (void)printf("%-18s  %llu\n", setting->name,
                     setting->number != NULL ? *setting->number
                                             : (unsigned long long)*setting->large);
}

static int set_value(const struct setting *setting, const char *text, struct fm_error *err)
{
    char *end;
    errno = 0;
    const double x = strtod(text, &end);
    const bool is_whole = setting->real == NULL;
    if (end == text || *end != '\0' || !isfinite(x) || x < setting->min || x > setting->max ||
        (is_whole && text[strspn(text, "0123456789")] != '\0'))
        return err_set(err, FM_ERR_ARG, "/set %s needs a %snumber from %g to %g, not '%s'",
                       setting->name, is_whole ? "whole " : "", setting->min, setting->max,
                       text);
    if (setting->real != NULL)
        *setting->real = (float)x;
    else if (setting->number != NULL)
        *setting->number = (unsigned)x;
    else
        *setting->large = strtoull(text, NULL, 10);
    return 0;
}

static int do_set(struct chat *chat, const char *rest, struct fm_error *err)
{
    struct setting settings[N_SETTINGS];
    const char *names[N_SETTINGS + 1] = {NULL};
    char name[WORD_BYTES];
    list_settings(chat, settings);
    const size_t n = strcspn(rest, " \t=");
    (void)snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : WORD_BYTES - 1, rest);
    for (char *c = name; *c != '\0'; c++)
        *c = *c == '-' ? '_' : *c;
    const char *value = rest + n;
    value += strspn(value, " \t=");
    for (size_t i = 0; i < N_SETTINGS; i++) {
        names[i] = settings[i].name;
        if (name[0] == '\0' || strcmp(name, names[i]) == 0) {
            int rc = value[0] != '\0' ? set_value(&settings[i], value, err) : 0;
            if (rc != 0)
                return rc;
            if (value[0] != '\0' && strcmp(name, "seed") == 0)
                chat->is_seed_set = true;
            print_setting(&settings[i]);
        }
        if (strcmp(name, names[i]) == 0)
            break;
    }
    chat->is_out_gone = !out_text("", 0);
    for (size_t i = 0; i < N_SETTINGS; i++)
        if (name[0] == '\0' || (names[i] != NULL && strcmp(name, names[i]) == 0))
            return 0;
    const char *nearest = nearest_word(name, names);
    return err_set(err, FM_ERR_ARG, "/set: unknown setting '%s'; %s%s%s", name,
                   nearest != NULL ? "did you mean '" : "/set lists all settings",
                   nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

/* ---- the table -------------------------------------------------------------------------- */

static int do_quit(struct chat *chat, const char *rest, struct fm_error *err)
{
    (void)rest;
    (void)err;
    chat->is_over = true;
    return 0;
}

static int do_help(struct chat *chat, const char *rest, struct fm_error *err);

static const struct chat_command {
    const char *name, *operand, *help;
    int (*run)(struct chat *chat, const char *rest, struct fm_error *err);
    enum chat_operand kind;
} commands[] = {
    {"help", "", "show this list", do_help, OPERAND_NONE},
    {"system", "TEXT", "set the system message; without TEXT, remove it",
     do_system, OPERAND_TEXT},
    {"think", "on|off", "turn thinking on or off, if the template can",
     do_think, OPERAND_SWITCH},
    {"regen", "", "answer the last message again with another seed", do_regen, OPERAND_NONE},
    {"undo", "", "remove the last message and its answer", do_undo, OPERAND_NONE},
    {"new", "", "start a new conversation; keeps the system message", do_new, OPERAND_NONE},
    {"read", "FILE [TEXT]", "send TEXT and the contents of a file",
     do_read, OPERAND_QUOTED_FILE},
    {"save", "FILE", "save the conversation, and its state in FILE.fmsnap",
     do_save, OPERAND_FILE},
    {"load", "FILE", "load a saved conversation",
     do_load, OPERAND_FILE},
    {"set", "[NAME [VALUE]]", "show or change temperature, top_p, seed, max_tokens, ...",
     do_set, OPERAND_SETTING},
    {"stats", "", "show tokens reused and computed, speed, hits, memory", do_stats,
     OPERAND_NONE},
    {"quit", "", "quit (also /bye, /exit and Ctrl-D)", do_quit, OPERAND_NONE},
};
#define N_COMMANDS (sizeof commands / sizeof commands[0])

/* Names that other tools have for these commands. */
static const char *const aliases[][2] = {
    {"bye", "quit"}, {"exit", "quit"}, {"clear", "new"}, {"?", "help"}};
#define N_ALIASES (sizeof aliases / sizeof aliases[0])

static const char *word_of_command(unsigned i, enum chat_operand *operand)
{
    *operand = i < N_COMMANDS ? commands[i].kind : OPERAND_NONE;
    return i < N_COMMANDS               ? commands[i].name
           : i < N_COMMANDS + N_ALIASES ? aliases[i - N_COMMANDS][0]
                                        : NULL;
}

const struct chat_words chat_words = {.command = word_of_command, .setting = word_of_setting};

static int do_help(struct chat *chat, const char *rest, struct fm_error *err)
{
    (void)rest;
    (void)err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        (void)printf("/%s %-*s  %s\n", commands[i].name,
                     (int)(20 - strlen(commands[i].name)), commands[i].operand, commands[i].help);
    (void)printf("For several lines, paste them, put them between two \"\"\", or end lines "
                 "with \\.\nFor a message that begins with '/', put a space before it.\n"
                 "Ctrl-C stops an answer and keeps its text. Tab completes commands and files.\n");
    chat->is_out_gone = !out_text("", 0);
    return 0;
}

void chat_command(struct chat *chat, const char *line)
{
    struct fm_error err = {0};
    const char *names[N_COMMANDS + 1] = {NULL};
    char name[WORD_BYTES], *rest = mem_strdup(line + 1 + strcspn(line + 1, " \t"), &err);
    if (rest == NULL) {
        (void)say_failed(&err, 0);
        return;
    }
    (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 1, " \t"), line + 1);
    for (size_t n = strlen(rest); n > 0 && isspace((unsigned char)rest[n - 1]); n--)
        rest[n - 1] = '\0';
    for (size_t i = 0; i < N_ALIASES; i++)
        if (strcmp(name, aliases[i][0]) == 0)
            (void)snprintf(name, sizeof name, "%s", aliases[i][1]);
    int rc = FM_ERR_UNSUPPORTED;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0)
            rc = commands[i].run(chat, rest + strspn(rest, " \t"), &err);
    }
    const char *nearest = rc == FM_ERR_UNSUPPORTED ? nearest_word(name, names) : NULL;
    if (rc == FM_ERR_UNSUPPORTED && err.code == 0)
        say("unknown command '/%s'; %s%s%s/help lists them", name,
            nearest != NULL ? "did you mean '/" : "", nearest != NULL ? nearest : "",
            nearest != NULL ? "'? " : "");
    else if (rc != 0)
        (void)say_failed(&err, 0);
    mem_free(rest);
}
