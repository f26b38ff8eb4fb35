#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"

static void print_tokens(const struct fm_model *model, const int32_t *ids, size_t n_ids)
{
    for (size_t i = 0; i < n_ids; i++) {
        size_t text_bytes = 0;
        const char *text = fm_token_text(model, ids[i], &text_bytes);
        (void)printf("%8d  \"", ids[i]);
        out_escaped(text, text_bytes);
        (void)puts("\"");
    }
}

static json_t *tokens_json(const int32_t *ids, size_t n_ids, size_t text_bytes)
{
    json_t *array = json_array();
    for (size_t i = 0; i < n_ids; i++)
        (void)json_array_append_new(array, json_integer(ids[i]));
    return json_pack("{s:o, s:I, s:I}", "tokens", array, "n_tokens", (json_int_t)n_ids,
                     "text_bytes", (json_int_t)text_bytes);
}

static int print_result(const struct args *args, const struct fm_model *model, const int32_t *ids,
                        size_t n_ids, size_t text_bytes)
{
    if (args_flag(args, "json"))
        return out_json(tokens_json(ids, n_ids, text_bytes)) ? STATUS_OK : STATUS_FAILED;
    if (args_flag(args, "count")) {
        (void)printf("%zu\n", n_ids);
        return STATUS_OK;
    }
    if (args_flag(args, "ids")) {
        for (size_t i = 0; i < n_ids; i++)
            (void)printf("%d\n", ids[i]);
        return STATUS_OK;
    }
    print_tokens(model, ids, n_ids);
    return STATUS_OK;
}

static int run_tokenize(const struct args *args)
{
    struct fm_error err = {0};
    char *text = NULL;
    size_t text_bytes = 0;
    int rc = prompt_read(args, &text, &text_bytes, &err);
    if (rc != 0)
        return say_failed(&err, rc == FM_ERR_ARG ? STATUS_USAGE : STATUS_FAILED);
    struct fm_model *model = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int flags = args_flag(args, "plain") ? FM_TEXT_PLAIN : FM_TEXT_WITH_SPECIAL;
    rc = app_model_open_metadata(args, NULL, &model, &err);
    if (rc == 0)
        rc = fm_tokenize(model, text, text_bytes, flags, &ids, &n_ids, &err);
    int status = rc == 0 ? print_result(args, model, ids, n_ids, text_bytes)
                         : say_failed(&err, STATUS_FAILED);
    fm_free(ids);
    fm_model_close(model);
    mem_free(text);
    return status;
}

static const struct option text_options[] = {
    {.name = "prompt", .letter = 'p', .kind = OPTION_STRING, .metavar = "TEXT", .excludes = "file",
     .help = "The text. Without -p and -f it is read from standard input"},
    {.name = "file", .letter = 'f', .kind = OPTION_PATH, .metavar = "FILE",
     .help = "Read the text from a file, including a trailing newline"},
    {.name = "plain", .kind = OPTION_FLAG,
     .help = "Treat special tokens such as <|im_end|> in the text as plain characters"},
    {.name = NULL},
};

static const struct option form_options[] = {
    {.name = "ids", .kind = OPTION_FLAG, .excludes = "count json",
     .help = "Print only the ids, one per line"},
    {.name = "count", .kind = OPTION_FLAG, .excludes = "json",
     .help = "Print only the number of tokens"},
    {.name = NULL},
};

static const struct option_group group_text = {"Text", text_options};
static const struct option_group group_form = {"Output", form_options};

const struct command cmd_tokenize = {
    .name = "tokenize",
    .summary = "Show the tokens of a text",
    .description = "Prints one line per token: its id and its text, escaped as in C. Special "
                   "tokens are recognised.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help,
                                          .is_optional = true},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_text, &group_form, &group_json,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe tokenize MODEL -p \"Hello, world\"", "One line per token"},
        {"flashmoe tokenize MODEL --count -f book.txt", "Count the tokens of a file"},
        {NULL, NULL}},
    .run = run_tokenize,
};
