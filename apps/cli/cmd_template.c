#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"

/* Parses JSON; `what` names the text in errors. */
static int parse_json(const char *what, const char *text, size_t bytes, json_t **out,
                      struct fm_error *err)
{
    json_error_t why;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (*out != NULL)
        return 0;
    return err_set(err, FM_ERR_ARG, "%s is not JSON: line %d: %s", what, why.line, why.text);
}

static int read_json(const char *path, json_t **out, struct fm_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    int rc = file_read(path, &text, &bytes, err);
    if (rc == 0)
        rc = parse_json(strcmp(path, "-") == 0 ? "standard input" : path, text, bytes, out, err);
    mem_free(text);
    return rc;
}

static int no_memory(struct fm_error *err)
{
    return err_set(err, FM_ERR_NOMEM, "out of memory for the conversation");
}

/* Sets KEY=JSON, or several variables from an object. */
static int set_variables(json_t *conversation, const char *text, struct fm_error *err)
{
    json_t *value = NULL;
    const char *equals = strchr(text, '=');
    char key[WORD_BYTES];
    int rc = 0;
    if (text[0] == '{') {
        rc = parse_json("--set", text, strlen(text), &value, err);
        if (rc == 0 && json_object_update(conversation, value) != 0)
            rc = no_memory(err);
        json_decref(value);
        return rc;
    }
    if (equals == NULL || equals == text || (size_t)(equals - text) >= sizeof key)
        return err_set(err, FM_ERR_ARG, "--set needs KEY=JSON, not '%s'", text);
    (void)snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    rc = parse_json("the value of --set", equals + 1, strlen(equals + 1), &value, err);
    if (rc == 0 && json_object_set_new(conversation, key, value) != 0)
        rc = no_memory(err);
    return rc;
}

/* Reads the file, applies the options and returns an object. */
static int read_conversation(const struct args *args, json_t **out, struct fm_error *err)
{
    json_t *given = NULL, *tools = NULL;
    *out = NULL;
    int rc = read_json(args_operand(args, 1), &given, err);
    if (rc != 0)
        return rc;
    *out = json_is_object(given) ? json_incref(given) : json_pack("{s:O}", "messages", given);
    json_decref(given);
    if (*out == NULL)
        return no_memory(err);
    if (args_given(args, "tools")) {
        rc = read_json(args_text(args, "tools"), &tools, err);
        if (rc == 0 && json_object_set_new(*out, "tools", tools) != 0)
            rc = no_memory(err);
    }
    if (rc == 0 && args_flag(args, "no-generation-prompt") &&
        json_object_set_new(*out, "add_generation_prompt", json_false()) != 0)
        rc = no_memory(err);
    if (rc == 0 && args_given(args, "set"))
        rc = set_variables(*out, args_text(args, "set"), err);
    return rc;
}

struct rendered {
    char *text;
    size_t text_bytes;
    int32_t *ids;
    size_t n_ids;
};

static int render(const struct args *args, const struct fm_model *model, struct rendered *out,
                  struct fm_error *err)
{
    json_t *conversation = NULL;
    char *text = NULL;
    const struct fm_chat_options options = app_chat_now();
    int rc = read_conversation(args, &conversation, err);
    if (rc == 0) {
        text = json_dumps(conversation, JSON_COMPACT | JSON_REAL_PRECISION(17));
        rc = text != NULL ? 0 : no_memory(err);
    }
    const bool wants_ids = args_flag(args, "tokens") || args_flag(args, "json");
    if (rc == 0)
        rc = fm_chat_render(model, text, strlen(text), &options, &out->text, &out->text_bytes,
                            err);
    if (rc == 0 && wants_ids)
        rc = fm_chat_tokenize(model, text, strlen(text), &options, &out->ids, &out->n_ids,
                                  err);
    json_decref(conversation);
    free(text);
    return rc;
}

static void print_tokens(const struct fm_model *model, const struct rendered *r)
{
    for (size_t i = 0; i < r->n_ids; i++) {
        size_t bytes = 0;
        const char *text = fm_token_text(model, r->ids[i], &bytes);
        (void)printf("%8d %c \"", r->ids[i], fm_token_is_special(model, r->ids[i]) ? '*' : ' ');
        out_escaped(text, bytes);
        (void)puts("\"");
    }
}

static int print_result(const struct args *args, const struct fm_model *model,
                        const struct rendered *r)
{
    if (args_flag(args, "json")) {
        struct fm_model_info info = {.size = sizeof info};
        fm_model_info(model, &info);
        json_t *ids = json_array();
        for (size_t i = 0; i < r->n_ids; i++)
            (void)json_array_append_new(ids, json_integer(r->ids[i]));
        return out_json(json_pack("{s:s%, s:o, s:b}", "text", r->text, r->text_bytes, "tokens",
                                  ids, "has_chat_template", (int)info.has_chat_template))
                   ? STATUS_OK : STATUS_FAILED;
    }
    if (args_flag(args, "tokens"))
        print_tokens(model, r);
    else
        (void)out_foreign(&(struct foreign_text){0}, r->text, r->text_bytes);
    return STATUS_OK;
}

static int run_template(const struct args *args)
{
    struct fm_error err = {0};
    struct fm_model *model = NULL;
    struct rendered rendered = {0};
    int rc = app_model_open_metadata(args, NULL, &model, &err);
    if (rc == 0)
        rc = render(args, model, &rendered, &err);
    if (rc == 0)
        app_note_template(model);
    const int status = rc == 0 ? print_result(args, model, &rendered)
                               : say_failed(&err, STATUS_FAILED);
    fm_free(rendered.text);
    fm_free(rendered.ids);
    fm_model_close(model);
    return status;
}

static const struct option conversation_options[] = {
    {.name = "tools", .kind = OPTION_PATH, .metavar = "FILE",
     .help = "A JSON array of tools; replaces those of the conversation"},
    {.name = "no-generation-prompt", .kind = OPTION_FLAG,
     .help = "Do not open the assistant's turn at the end"},
    {.name = "set", .kind = OPTION_STRING, .metavar = "KEY=JSON",
     .help = "Set a template variable, such as enable_thinking=false; an object sets several"},
    {.name = NULL},
};

static const struct option form_options[] = {
    {.name = "tokens", .kind = OPTION_FLAG, .excludes = "json",
     .help = "Print one token per line: its id, '*' where it is special, and its text"},
    {.name = NULL},
};

static const struct option_group group_conversation = {"Conversation", conversation_options};
static const struct option_group group_form = {"Output", form_options};

const struct command cmd_template = {
    .name = "template",
    .summary = "Render a conversation with the model's chat template",
    .description = "MESSAGES is a JSON file: an array of messages, or an object with 'messages', "
                   "'tools' and template variables. '-' is standard input. The output is rendered "
                   "by the model's chat template, or by ChatML for a model without one.\n"
                   "Special tokens inside messages stay plain text; --tokens shows this.",
    .operands = (const struct operand[]){{.name = "MODEL", .help = operand_model_help},
                                         {.name = "MESSAGES",
                                          .help = "The conversation, a JSON file"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_conversation, &group_form, &group_json,
                                                   &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe template MODEL messages.json", "Show the text that the model receives"},
        {"flashmoe template MODEL chat.json --set enable_thinking=false",
         "Set a template variable"},
        {NULL, NULL}},
    .run = run_template,
};
