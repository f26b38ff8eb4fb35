#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/cli/docs.h"
#include "apps/cli/other_tools.h"
#include "flashmoe.h"

/* Writes text within a line, with all troff characters escaped. */
static void put_escaped(FILE *out, const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '.' && c == text)
            fputs("\\&", out);
        switch (*c) {
        case '\\': fputs("\\e", out); break;
        case '-': fputs("\\-", out); break;
        case '\'': fputs("\\(aq", out); break;
        case '`': fputs("\\(ga", out); break;
        case '^': fputs("\\(ha", out); break;
        case '~': fputs("\\(ti", out); break;
        case '"': fputs("\\(dq", out); break;
        default: fputc(*c, out);
        }
    }
}

/* Writes running text in lines of at most 80 characters. Each sentence ends its line, as troff
 * expects for spacing; a newline starts a paragraph. */
static void put_text(FILE *out, const char *text)
{
    const size_t max_columns = 66; /* escapes make lines longer */
    size_t column = 0;
    while (*text != '\0') {
        char word[128];
        size_t n = strcspn(text, " \n");
        if (n >= sizeof word)
            n = sizeof word - 1;
        memcpy(word, text, n);
        word[n] = '\0';
        if (column > 0 && column + 1 + n > max_columns) {
            fputc('\n', out);
            column = 0;
        }
        if (column > 0)
            fputc(' ', out);
        put_escaped(out, word);
        column += n + 1;
        text += n;
        if (*text == '\n') {
            fputs("\n.PP\n", out);
            column = 0;
        } else if (n > 0 && word[n - 1] == '.' && *text == ' ') {
            fputc('\n', out);
            column = 0;
        }
        text += *text != '\0' && strchr(" \n", *text) != NULL;
    }
    if (column > 0)
        fputc('\n', out);
}

/* Writes a sentence that has no full stop in the table. */
static void put_sentence(FILE *out, const char *text)
{
    char sentence[1024];
    (void)snprintf(sentence, sizeof sentence, "%s.", text);
    put_text(out, sentence);
}

static void put_option(FILE *out, const struct option *option)
{
    fprintf(out, ".TP\n");
    if (option->letter != 0)
        fprintf(out, "\\fB\\-%c\\fR, ", option->letter);
    fprintf(out, "\\fB\\-\\-");
    put_escaped(out, option->name);
    fprintf(out, "\\fR");
    if (option->metavar != NULL) {
        fprintf(out, " \\fI");
        put_escaped(out, option->metavar);
        fprintf(out, "\\fR");
    }
    char limits[128], text[1024];
    docs_limits(option, limits, sizeof limits);
    (void)snprintf(text, sizeof text, "%s%s%s%s.", option->help, limits[0] != '\0' ? " (" : "",
                   limits, limits[0] != '\0' ? ")" : "");
    fputc('\n', out);
    put_text(out, text);
}

static void put_command(FILE *out, const struct command *command)
{
    fprintf(out, ".SS flashmoe ");
    put_escaped(out, command->name);
    fprintf(out, "\n.B flashmoe ");
    put_escaped(out, command->name);
    fprintf(out, "\n.RI [ OPTION...\\& ]\n");
    for (const struct operand *operand = command->operands; operand->name != NULL; operand++)
        fprintf(out, operand->is_optional ? ".RI [ %s%s ]\n" : ".I %s%s\n", operand->name,
                operand->is_many ? "...\\&" : "");
    fprintf(out, ".PP\n");
    put_sentence(out, command->summary);
    if (command->description != NULL) {
        fprintf(out, ".PP\n");
        put_text(out, command->description);
    }
    for (const struct operand *operand = command->operands; operand->name != NULL; operand++) {
        fprintf(out, ".TP\n.I %s\n", operand->name);
        put_sentence(out, operand->help);
    }
    for (const struct option_group *const *group = command->groups; *group != NULL; group++) {
        const char *heading = docs_heading(command, group);
        if (heading != NULL) {
            fprintf(out, ".PP\n.B ");
            put_escaped(out, heading);
            fputc('\n', out);
        }
        for (const struct option *option = (*group)->options; option->name != NULL; option++)
            put_option(out, option);
    }
}

static void put_examples(FILE *out, const struct command *const *commands)
{
    fprintf(out, ".SH EXAMPLES\n");
    for (; *commands != NULL; commands++) {
        const struct example *example = (*commands)->examples;
        for (; example != NULL && example->line != NULL; example++) {
            fprintf(out, ".TP\n.B ");
            put_escaped(out, example->line);
            fputc('\n', out);
            put_sentence(out, example->meaning);
        }
    }
}

/* Writes the title; SOURCE_DATE_EPOCH makes it reproducible in package builds. */
static void put_title(FILE *out)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t now = epoch != NULL ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    struct tm day;
    char date[32] = "1970-01-01";
    if (gmtime_r(&now, &day) != NULL)
        (void)strftime(date, sizeof date, "%Y-%m-%d", &day);
    fprintf(out, ".TH FLASHMOE 1 %s \"flashmoe %s\" \"User Commands\"\n", date, fm_version());
}

static const char man_description[] =
    "Flash-MoE runs Mixture-of-Experts language models that are larger than memory. The dense "
    "weights stay in memory, the experts stay on disk, and each token reads only the experts its "
    "routers choose, through a cache.\n"
    "One budget, --memory, covers everything: dense weights, expert cache, KV and scratch. For a "
    "given model file the results are bit-identical for every budget, number of threads and "
    "prefill chunk.\n"
    "A model is a packed model (NAME.fmoe), a GGUF file, or a Hugging Face or MLX checkpoint "
    "directory. Options and arguments may be given in any order; -- ends the options. "
    "--name value and --name=value mean the same.";

/* Options of other tools, and what becomes of them. */
static void put_others(FILE *out)
{
    fprintf(out, ".SH OPTIONS OF OTHER TOOLS\nOptions of llama.cpp, Ollama, mlx\\-lm and vLLM are "
                 "accepted where an option here\nmeans the same. Others are refused with a "
                 "message that says what to use instead.\n");
    for (const struct other_option *other = other_options; other->spellings != NULL; other++) {
        fprintf(out, ".TP\n.B ");
        put_escaped(out, other->spellings);
        fprintf(out, "\n");
        if (other->answer != NULL) {
            char text[256];
            (void)snprintf(text, sizeof text, "%c%s", toupper((unsigned char)other->answer[0]),
                           other->answer + 1);
            put_sentence(out, text);
        } else if (strcmp(other->ours, OTHER_MODEL) == 0) {
            fprintf(out, "The MODEL of the command.\n");
        } else {
            fprintf(out, "The same as ");
            put_escaped(out, "--");
            put_escaped(out, other->ours);
            fprintf(out, ".\n");
        }
    }
}

static const char man_status[] =
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nSuccess.\n"
    ".TP\n.B 1\nThe command failed: for example, a file cannot be read, the model does not"
    "\nfit into the budget, or standard output was closed.\n"
    ".TP\n.B 2\nThe command line is wrong.\n"
    ".TP\n.B 130\nInterrupted with Ctrl\\-C.\n"
    "The text generated so far has been printed.\n";

void docs_man(FILE *out, const struct command *const *commands)
{
    put_title(out);
    fprintf(out, ".SH NAME\nflashmoe \\- ");
    put_escaped(out, docs_tagline);
    fprintf(out, "\n.SH SYNOPSIS\n.B flashmoe\n.I COMMAND\n.RI [ OPTION...\\& ]\n"
                 ".RI [ ARGUMENT...\\& ]\n.PP\n.B flashmoe \\-\\-help\n.PP\n"
                 ".B flashmoe \\-\\-version\n");
    fprintf(out, ".SH DESCRIPTION\n");
    put_text(out, man_description);
    fprintf(out, ".SH COMMANDS\n");
    for (size_t i = 0; commands[i] != NULL; i++)
        put_command(out, commands[i]);
    fprintf(out, ".SH SIZES\n");
    put_text(out, docs_sizes);
    put_others(out);
    fputs(man_status, out);
    put_examples(out, commands);
}
