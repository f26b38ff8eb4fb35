#include <stdio.h>
#include <string.h>

#include "apps/cli/cmd.h"
#include "apps/cli/common.h"
#include "apps/cli/docs.h"
#include "apps/cli/other_tools.h"
#include "apps/cli/term.h"

/* ---- help ------------------------------------------------------------------------------ */

/* Prints every number format with its size and whether `pack` can write it. */
static void print_formats(void)
{
    struct fm_number_format format = {.size = sizeof format};
    (void)printf("Weight formats that this version reads, with bits per weight. 'flashmoe pack\n"
                 "--experts NAME' can write those marked with *.\n\n");
    for (unsigned i = 0; fm_number_format(i, &format); i++)
        (void)printf("  %-18s%c %8.4g\n", format.name, format.can_be_made ? '*' : ' ',
                     format.bits_per_weight);
}

/* Prints the options of other tools: those that are accepted, then what to use instead. */
static void print_flags(void)
{
    (void)printf("Options of llama.cpp, Ollama, mlx-lm and vLLM. These are accepted by the "
                 "commands\nthat have the option on the right:\n\n");
    for (const struct other_option *other = other_options; other->spellings != NULL; other++)
        if (other->answer == NULL)
            (void)printf("  %-55s %s%s\n", other->spellings,
                         strcmp(other->ours, OTHER_MODEL) == 0 ? "" : "--", other->ours);
    (void)printf("\nThese are answered with what to use instead:\n");
    for (const struct other_option *other = other_options; other->spellings != NULL; other++)
        if (other->answer != NULL)
            (void)printf("\n  %s\n      %s\n", other->spellings, other->answer);
}

static int say_unexpected(const struct args *args, size_t i, const char *after)
{
    say("unexpected argument '%s' after '%s'; 'flashmoe help' lists the commands",
        args_operand(args, i), after);
    return STATUS_USAGE;
}

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
    const char *first = args_operand(args, 0);
    const bool is_flags = strcmp(first, "flags") == 0;
    if (is_flags || strcmp(first, "formats") == 0) {
        if (args->n_operands > 1)
            return say_unexpected(args, 1, first);
        if (is_flags)
            print_flags();
        else
            print_formats();
        return STATUS_OK;
    }
    if (args->n_operands == 1 && command_is_group(command_list, first)) {
        docs_group(stdout, command_list, first);
        return STATUS_OK;
    }
    char *words[2] = {(char *)first, (char *)args_operand(args, 1)};
    struct fm_error err = {0};
    const struct command *command;
    int n_words;
    int n = (int)args->n_operands;
    if (command_find(command_list, n, words, &command, &n_words, &err) != 0)
        return say_failed(&err, STATUS_USAGE);
    if (n_words < n)
        return say_unexpected(args, (size_t)n_words, command->name);
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
                                          .help = "The command to explain (one or two words), "
                                                  "'formats', or 'flags' for options of other "
                                                  "tools"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_man, &group_help, NULL},
    .examples = (const struct example[]){
        {"flashmoe help run", "All options of 'flashmoe run'"},
        {"flashmoe help formats", "The number formats of weights"},
        {"flashmoe help flags", "What becomes of llama.cpp's, Ollama's and mlx-lm's options"},
        {"flashmoe help --man | man -l -", "Read the manual page"},
        {NULL, NULL}},
    .run = run_help,
};

/* ---- completions ----------------------------------------------------------------------- */

static int run_completions(const struct args *args)
{
    if (docs_completions(stdout, command_list, args_operand(args, 0)))
        return STATUS_OK;
    say("no completions for '%s'; use bash, zsh or fish", args_operand(args, 0));
    return STATUS_USAGE;
}

const struct command cmd_completions = {
    .name = "completions",
    .summary = "Print a shell completion script",
    .operands = (const struct operand[]){{.name = "SHELL", .choices = "bash zsh fish",
                                          .help = "bash, zsh or fish"},
                                         {.name = NULL}},
    .groups = (const struct option_group *const[]){&group_help, NULL},
    .examples = (const struct example[]){
        {"source <(flashmoe completions bash)", "Complete commands and options in this shell"},
        {NULL, NULL}},
    .run = run_completions,
};
