#include <stdio.h>

#include "cmd.h"
#include "common.h"
#include "docs.h"
#include "term.h"

/* ---- help ------------------------------------------------------------------------------ */

static int run_help(const struct args *args)
{
    if (args_flag(args, "man")) {
        docs_man(stdout, command_list);
        return STATUS_OK;
    }
    if (args->n_operands == 0) {
        docs_overview(stdout, command_list);
        return STATUS_OK;
    }
    char *words[2] = {(char *)args_operand(args, 0), (char *)args_operand(args, 1)};
    struct fm_error err = {0};
    const struct command *command;
    int n_words;
    int n = (int)args->n_operands;
    if (command_find(command_list, n, words, &command, &n_words, &err) != 0)
        return say_failed(&err, STATUS_USAGE);
    docs_help(stdout, command);
    return STATUS_OK;
}

static const struct option man_options[] = {
    {.name = "man", .kind = OPTION_FLAG,
     .help = "Print the manual page, flashmoe(1), as troff source"},
    {.name = NULL},
};
static const struct option_group group_man = {"Output", man_options};

const struct command cmd_help = {
    .name = "help",
    .summary = "Explain a command",
    .operands = (const struct operand[]){{.name = "COMMAND", .is_optional = true,
                                          .is_command = true, .is_many = true,
                                          .help = "The command to explain, of one or two words"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_man, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe help run", "All options of 'flashmoe run'"},
        {"flashmoe help --man | man -l -", "Read the manual page of this program"},
        {NULL, NULL}},
    .run = run_help,
};

/* ---- completions ----------------------------------------------------------------------- */

static int run_completions(const struct args *args)
{
    if (docs_completions(stdout, command_list, args_operand(args, 0)))
        return STATUS_OK;
    say("no completions for '%s'; the shell is one of bash, zsh, fish", args_operand(args, 0));
    return STATUS_USAGE;
}

const struct command cmd_completions = {
    .name = "completions",
    .summary = "Print the completion script of a shell",
    .operands = (const struct operand[]){{.name = "SHELL", .choices = "bash zsh fish",
                                          .help = "One of bash, zsh, fish"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_help, NULL},
    .examples = (const struct example[]){
        {"source <(flashmoe completions bash)", "Complete commands and options in this shell"},
        {NULL, NULL}},
    .run = run_completions,
};
