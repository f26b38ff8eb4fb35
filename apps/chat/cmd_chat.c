#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/mem.h"
#include "apps/chat/chat.h"
#include "apps/cli/cluster.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/prefix_options.h"

/* Checks that the model can chat before anything is typed. */
static int check_chat_form(struct chat *chat, struct fm_error *err)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = chat_say(chat, "user", "a", 1, err);
    if (rc == 0)
        rc = chat_tokens(chat, chat->messages, &ids, &n_ids, err);
    fm_free(ids);
    (void)json_array_clear(chat->messages);
    return rc;
}

static int open_model(struct chat *chat, struct fm_error *err)
{
    const struct args *args = chat->args;
    const struct app_model_options how = {.n_context = (unsigned)args_uint(args, "context"),
                                          .n_marks = 4, .keeps_heat = true};
    struct fm_stats stats = {.size = sizeof stats};
    int rc = app_model_open(args, &how, &chat->model, err);
    if (rc != 0)
        return rc;
    chat->info.size = sizeof chat->info;
    fm_model_info(chat->model, &chat->info);
    fm_model_stats(chat->model, &stats);
    chat->n_context = stats.n_context;
    chat->prefill_chunk = stats.prefill_chunk;
    chat->n_max = args_uint(args, "n-tokens");
    rc = sampling_choose(args, chat->model, chat->is_quiet, chat->bias, &chat->sampling, err);
    if (rc == 0)
        rc = check_chat_form(chat, err);
    if (rc == 0 && !chat->is_quiet)
        app_note_template(chat->model);
    if (rc == 0)
        rc = fm_session_open(chat->model, &chat->session, err);
    return rc == 0 ? prefix_open_snapshots(args, chat->model, &chat->snapshots, err) : rc;
}

/* Sets the system message and computes it before the first user message. */
static int take_system(struct chat *chat, struct fm_error *err)
{
    char *text;
    size_t bytes;
    int rc = prefix_read_system(chat->args, &text, &bytes, err);
    if (rc == 0)
        rc = chat_set_system(chat, text, bytes, err);
    mem_free(text);
    return rc == 0 && bytes > 0 ? chat_read_ahead(chat, err) : rc;
}

static int open_all(struct chat *chat, struct fm_error *err)
{
    static char history[LIMIT_PATH_BYTES];
    const bool has_history = !args_flag(chat->args, "no-history") &&
                             app_cache_path("chat_history", history);
    app_model_name(app_model_path(chat->args), chat->name);
    chat->messages = json_array();
    if (chat->messages == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory for the conversation");
    int rc = open_model(chat, err);
    if (rc != 0)
        return rc;
    interrupt_install_patient();
    rc = take_system(chat, err);
    if (rc == 0)
        rc = chat_input_open(chat->is_terminal, chat->name, has_history ? history : NULL,
                             &chat_words, &chat->input, err);
    return rc;
}

static void close_all(struct chat *chat)
{
    struct fm_error err = {0};
    interrupt_watch(NULL);
    chat_input_close(chat->input);
    if (chat->snapshots != NULL && fm_session_position(chat->session) > 0 &&
        fm_snapshots_keep(chat->snapshots, chat->session, &err) != 0)
        say_warning("%s", err.text);
    fm_snapshots_close(chat->snapshots);
    fm_session_close(chat->session);
    fm_model_close(chat->model);
    json_decref(chat->messages);
}

static int talk(struct chat *chat)
{
    const bool is_shown = chat->is_terminal && !chat->is_quiet;
    if (is_shown)
        (void)printf("%s, %u tokens of context. /help lists the commands, /bye quits.\n",
                     chat->info.architecture, chat->n_context);
    while (!chat->is_over && !chat->is_out_gone) {
        struct fm_error err = {0};
        const char *text = "";
        size_t text_bytes = 0;
        interrupt_forget();
        switch (chat_input_read(chat->input, &text, &text_bytes, &err)) {
        case INPUT_MESSAGE:
            chat_ask(chat, text, text_bytes);
            break;
        case INPUT_COMMAND:
            chat_command(chat, text);
            break;
        case INPUT_NOTHING:
            if (interrupt_seen() && !chat->is_terminal)
                return STATUS_INTERRUPTED;
            if (interrupt_seen())
                (void)out_text("\n", 1);
            break;
        case INPUT_END:
            if (is_shown)
                (void)out_text("\n", 1);
            return STATUS_OK;
        case INPUT_FAILED:
            return say_failed(&err, STATUS_FAILED);
        }
    }
    return STATUS_OK;
}

static int run_chat(const struct args *args)
{
    struct fm_error err = {0};
    struct chat chat = {.args = args, .is_quiet = args_flag(args, "quiet"), .thinking = -1,
                        .is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    chat.now = app_chat_now();
    int rc = open_all(&chat, &err);
    const int status = rc == 0 ? talk(&chat) : say_failed(&err, STATUS_FAILED);
    close_all(&chat);
    return status;
}

static const struct option chat_options[] = {
    {.name = "no-history", .kind = OPTION_FLAG,
     .help = "Neither read nor write the input history in the user's cache folder"},
    {.name = NULL},
};

static const struct option answer_options[] = {
    {.name = "n-tokens", .letter = 'n', .kind = OPTION_UINT, .metavar = "N", .max = 1u << 30,
     .value = "0", .as_unset = "-1 -2",
     .help = "Maximum tokens per answer; 0 or -1: limited by the context only"},
    {.name = "stop", .kind = OPTION_STRING, .metavar = "TEXT", .is_many = true,
     .help = "End an answer before this text. May be given several times; the first match ends the "
             "answer"},
    {.name = NULL},
};

static const struct option_group group_chat = {"Conversation", chat_options};
static const struct option_group group_answer = {"Answer", answer_options};

const struct command cmd_chat = {
    .name = "chat",
    .summary = "Chat with a model",
    .description =
        "Type a message and press Enter. For several lines, paste them, put them between two "
        "\"\"\", or end lines with a backslash. Ctrl-C stops an answer and keeps its text; "
        "Ctrl-D or /bye quits. Tab completes commands and files.\n"
        "Commands begin with '/'; /help lists them. /save FILE and /load FILE store a conversation "
        "with its computed state; /regen answers again, /undo removes the last exchange; /read "
        "FILE sends a file; /set temperature 0.5 changes a setting; /stats shows speed and "
        "reuse.\n"
        "Every turn computes only new tokens. After an answer, a status line shows tokens per "
        "second, expert hit rate, disk speed, memory and context use. If standard input is not a "
        "terminal, its lines are messages and commands, and standard output gets only answers and "
        "the output of commands.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_prefix, &group_chat, &group_answer,
                                                   &group_sampling, &group_engine,
                                                   &group_ranks, &group_context,
                                                   &group_wrap, &group_messages,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe chat", "Chat with the bundled nano model"},
        {"flashmoe chat MODEL --memory 12G --system \"Be brief.\"",
         "Use a system message and at most 12 GiB"},
        {"flashmoe chat MODEL --system-file agent.txt --snapshots ~/.cache/chats",
         "Compute long instructions once and keep them on disk"},
        {NULL, NULL}},
    .run = run_chat,
};
