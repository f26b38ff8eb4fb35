#include <string.h>

#include "apps/cli/docs.h"
#include "flashmoe.h"

#define HELP_COLUMNS 80
#define HELP_LEFT 26 /* column where option descriptions begin */

const char docs_tagline[] = "run Mixture-of-Experts language models that are larger than memory";

const char docs_sizes[] =
    "A SIZE is a number with a unit. K, M, G and T, also written KiB, MiB, GiB and TiB, are powers "
    "of 1024; KB, MB, GB and TB are powers of 1000; a bare number is bytes. A percentage, as in "
    "70%, is a share of the memory that is available when the program starts.";

/* Prints text from `column` on, wrapped at HELP_COLUMNS and indented by `indent`, and ends the last
 * line. A newline in the text starts a new line. */
static void print_wrapped(FILE *out, const char *text, int column, int indent)
{
    bool is_line_start = true;
    while (*text != '\0') {
        if (*text == '\n') {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            is_line_start = true;
            text++;
        }
        int n = (int)strcspn(text, " \n");
        if (!is_line_start && column + 1 + n > HELP_COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            is_line_start = true;
        }
        column += fprintf(out, "%s%.*s", is_line_start ? "" : " ", n, text);
        is_line_start = false;
        text += n;
        text += *text == ' ';
    }
    fputc('\n', out);
}

void docs_limits(const struct option *option, char *buffer, size_t buffer_bytes)
{
    const unsigned long long max_shown = 1000000; /* larger limits only guard against overflow */
    char range[64] = "";
    if (option->kind == OPTION_FLOAT)
        (void)snprintf(range, sizeof range, "%g to %g", option->float_min, option->float_max);
    else if (option->kind == OPTION_UINT && option->max != 0 && option->max <= max_shown)
        (void)snprintf(range, sizeof range, "%llu to %llu", (unsigned long long)option->min,
                       (unsigned long long)option->max);
    const char *value = option->shown != NULL ? option->shown : option->value;
    (void)snprintf(buffer, buffer_bytes, "%s%s%s%s", range,
                   range[0] != '\0' && value != NULL ? "; " : "",
                   value != NULL ? "default: " : "", value != NULL ? value : "");
}

static void print_option(FILE *out, const struct option *option)
{
    char left[WORD_BYTES], letter[8] = "    ", limits[128], text[1024];
    if (option->letter != 0)
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    int n = snprintf(left, sizeof left, "  %s--%s%s%s", letter, option->name,
                     option->metavar != NULL ? " " : "",
                     option->metavar != NULL ? option->metavar : "");
    docs_limits(option, limits, sizeof limits);
    (void)snprintf(text, sizeof text, "%s%s%s%s", option->help, limits[0] != '\0' ? " (" : "",
                   limits, limits[0] != '\0' ? ")" : "");
    if (n + 1 >= HELP_LEFT)
        fprintf(out, "%s\n%*s", left, HELP_LEFT, "");
    else
        fprintf(out, "%-*s", HELP_LEFT, left);
    print_wrapped(out, text, HELP_LEFT, HELP_LEFT);
}

void docs_usage(FILE *out, const struct command *command)
{
    fprintf(out, "flashmoe %s [OPTION...]", command->name);
    for (const struct operand *operand = command->operands; operand->name != NULL; operand++)
        fprintf(out, operand->is_optional ? " [%s%s]" : " %s%s", operand->name,
                operand->is_many ? "..." : "");
}

const char *docs_heading(const struct command *command, const struct option_group *const *group)
{
    const bool is_first = group == command->groups;
    return is_first || strcmp(group[-1]->title, group[0]->title) != 0 ? group[0]->title : NULL;
}

bool docs_has_sizes(const struct command *command)
{
    for (const struct option_group *const *group = command->groups; *group != NULL; group++)
        for (const struct option *option = (*group)->options; option->name != NULL; option++)
            if (option->kind == OPTION_BYTES)
                return true;
    return false;
}

void docs_help(FILE *out, const struct command *command)
{
    fprintf(out, "Usage: ");
    docs_usage(out, command);
    fprintf(out, "\n\n");
    fprintf(out, "%s.\n", command->summary);
    if (command->description != NULL) {
        fputc('\n', out);
        print_wrapped(out, command->description, 0, 0);
    }
    if (command->operands[0].name != NULL)
        fputc('\n', out);
    for (const struct operand *operand = command->operands; operand->name != NULL; operand++) {
        fprintf(out, "  %-*s", HELP_LEFT - 2, operand->name);
        print_wrapped(out, operand->help, HELP_LEFT, HELP_LEFT);
    }
    for (const struct option_group *const *group = command->groups; *group != NULL; group++) {
        const char *heading = docs_heading(command, group);
        if (heading != NULL)
            fprintf(out, "\n%s:\n", heading);
        for (const struct option *option = (*group)->options; option->name != NULL; option++)
            print_option(out, option);
    }
    if (docs_has_sizes(command)) {
        fputc('\n', out);
        print_wrapped(out, docs_sizes, 0, 0);
    }
    if (command->examples == NULL)
        return;
    fprintf(out, "\nExamples:\n");
    for (const struct example *example = command->examples; example->line != NULL; example++) {
        fprintf(out, "  %s\n      ", example->line);
        print_wrapped(out, example->meaning, 6, 6);
    }
}

void docs_group(FILE *out, const struct command *const *commands, const char *group)
{
    const size_t n = strlen(group);
    fprintf(out, "Usage: flashmoe %s COMMAND [OPTION...] [ARGUMENT...]\n\n", group);
    for (size_t i = 0; commands[i] != NULL; i++)
        if (strncmp(commands[i]->name, group, n) == 0 && commands[i]->name[n] == ' ')
            fprintf(out, "  %-13s  %s\n", commands[i]->name + n + 1, commands[i]->summary);
    fprintf(out, "\n'flashmoe help %s COMMAND' explains a command.\n", group);
}

void docs_overview(FILE *out, const struct command *const *commands)
{
    fprintf(out, "flashmoe %s: %s.\n\nUsage: flashmoe COMMAND [OPTION...] [ARGUMENT...]\n\n",
            fm_version(), docs_tagline);
    for (size_t i = 0; commands[i] != NULL; i++)
        fprintf(out, "  %-13s  %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out,
            "\nTry the bundled model first:\n"
            "  flashmoe run \"Write a story about a robot who loves music.\"\n"
            "MODEL is a GGUF file, a packed model, or a Hugging Face or MLX directory:\n"
            "  flashmoe inspect MODEL\n"
            "  flashmoe run MODEL \"What is the Moon?\"\n"
            "  flashmoe chat MODEL\n"
            "\n'flashmoe help COMMAND' explains a command; 'flashmoe --version' prints the "
            "version.\n");
}
