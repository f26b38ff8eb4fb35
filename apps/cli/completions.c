#include <string.h>

#include "apps/cli/docs.h"

/* ---- the tables, as the shells see them ------------------------------------------------ */

typedef void option_fn(FILE *out, const struct command *command, const struct option *option);

static void for_each_option(FILE *out, const struct command *command, option_fn *fn)
{
    for (const struct option_group *const *group = command->groups; *group != NULL; group++)
        for (const struct option *option = (*group)->options; option->name != NULL; option++)
            fn(out, command, option);
}

static const char *second_word(const struct command *command)
{
    const char *blank = strchr(command->name, ' ');
    return blank != NULL ? blank + 1 : NULL;
}

static int first_word_bytes(const struct command *command)
{
    return (int)strcspn(command->name, " ");
}

/* Returns whether the command starts a new first word. Commands with the same one are adjacent. */
static bool is_new_first_word(const struct command *const *commands, size_t i)
{
    int n = first_word_bytes(commands[i]);
    return i == 0 || first_word_bytes(commands[i - 1]) != n ||
           strncmp(commands[i - 1]->name, commands[i]->name, (size_t)n) != 0;
}

static void put_first_words(FILE *out, const struct command *const *commands)
{
    for (size_t i = 0; commands[i] != NULL; i++)
        if (is_new_first_word(commands, i))
            fprintf(out, "%s%.*s", i > 0 ? " " : "", first_word_bytes(commands[i]),
                    commands[i]->name);
}

static void put_second_words(FILE *out, const struct command *const *commands, size_t i)
{
    const int n = first_word_bytes(commands[i]);
    for (bool is_first = true; commands[i] != NULL; i++, is_first = false) {
        if (!is_first && is_new_first_word(commands, i))
            break;
        fprintf(out, "%s%s", is_first ? "" : " ", commands[i]->name + n + 1);
    }
}

/* Returns what completes the operand: "file", "model", "pulled", "command" or the choices. Valid
 * until the next call. */
static const char *operand_source(const struct operand *operand)
{
    static char words[1024];
    if (operand->is_command)
        return "command";
    if (operand->choice != NULL) {
        size_t used = 0;
        for (unsigned i = 0; operand->choice(i) != NULL && used < sizeof words; i++)
            used += (size_t)snprintf(words + used, sizeof words - used, "%s%s", i > 0 ? " " : "",
                                     operand->choice(i));
        return words;
    }
    if (operand->is_pulled_name)
        return "pulled";
    return operand->choices != NULL ? operand->choices
           : operand_is_model(operand) ? "model"
                                       : "file";
}

/* Returns whether a function of the script completes the operand. */
static bool is_function(const char *source)
{
    return strcmp(source, "file") == 0 || strcmp(source, "model") == 0 ||
           strcmp(source, "pulled") == 0;
}

/* Writes the first sentence for single quotes; characters in `special` get a backslash, as the
 * shell's own syntax requires. */
static void put_quoted(FILE *out, const char *text, const char *special)
{
    for (; *text != '\0' && strncmp(text, ". ", 2) != 0; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fprintf(out, "%s%c", strchr(special, *text) != NULL ? "\\" : "", *text);
    }
}

/* ---- bash ------------------------------------------------------------------------------ */

static void bash_word(FILE *out, const struct command *command, const struct option *option)
{
    (void)command;
    fprintf(out, " --%s", option->name);
}

static void bash_value(FILE *out, const struct command *command, const struct option *option)
{
    if (option->kind == OPTION_FLAG)
        return;
    if (option->letter != 0)
        fprintf(out, "    '%s:-%c' |", command->name, option->letter);
    else
        fprintf(out, "   ");
    fprintf(out, " '%s:--%s')%s return ;;\n", command->name, option->name,
            option->kind == OPTION_PATH ? " _flashmoe_files \"$cur\";" : "");
}

static const char bash_head[] =
    "# bash completion for flashmoe\n\n"
    "_flashmoe_files()\n{\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    mapfile -t COMPREPLY < <(compgen -f -- \"$1\")\n"
    "}\n\n"
    "_flashmoe_words()\n{\n"
    "    mapfile -t COMPREPLY < <(compgen -W \"$1\" -- \"$2\")\n"
    "}\n\n"
    "_flashmoe_pulleds()\n{\n"
    "    mapfile -t -O \"${#COMPREPLY[@]}\" COMPREPLY < <(compgen -W "
    "\"$(\"${COMP_WORDS[0]}\" list --names 2>/dev/null)\" -- \"$1\")\n"
    "}\n\n"
    "_flashmoe_models()\n{\n"
    "    _flashmoe_files \"$1\"\n"
    "    _flashmoe_pulleds \"$1\"\n"
    "}\n\n"
    "_flashmoe()\n{\n"
    "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
    "    local command=\"${COMP_WORDS[1]}\" first=2\n"
    "    COMPREPLY=()\n"
    "    if [[ $cur == '=' ]]; then\n"
    "        cur=\n"
    "    elif [[ $prev == '=' ]]; then\n"
    "        prev=\"${COMP_WORDS[COMP_CWORD-2]}\"\n"
    "    fi\n";

static void bash_commands(FILE *out, const struct command *const *commands)
{
    fprintf(out, "    if ((COMP_CWORD == 1)); then\n        _flashmoe_words '");
    put_first_words(out, commands);
    fprintf(out, " --help --version' \"$cur\"\n        return\n    fi\n    case \"$command\" in\n");
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (second_word(commands[i]) == NULL || !is_new_first_word(commands, i))
            continue;
        fprintf(out, "    %.*s)\n        if ((COMP_CWORD == 2)); then\n            "
                "_flashmoe_words '", first_word_bytes(commands[i]), commands[i]->name);
        put_second_words(out, commands, i);
        fprintf(out, "' \"$cur\"\n            return\n        fi\n"
                     "        command=\"$command ${COMP_WORDS[2]}\" first=3 ;;\n");
    }
    fprintf(out, "    esac\n");
}

static void bash_operands(FILE *out, const struct command *const *commands)
{
    fprintf(out, "    case \"$command\" in\n");
    for (size_t i = 0; commands[i] != NULL; i++) {
        const char *source = commands[i]->operands[0].name != NULL
                                 ? operand_source(&commands[i]->operands[0])
                                 : NULL;
        fprintf(out, "    '%s')\n        if [[ $cur == -* ]]; then\n            _flashmoe_words '",
                commands[i]->name);
        for_each_option(out, commands[i], bash_word);
        fprintf(out, "' \"$cur\"\n");
        if (source != NULL)
            fprintf(out, "        else\n            ");
        if (source != NULL && is_function(source)) {
            fprintf(out, "_flashmoe_%ss \"$cur\"\n", source);
        } else if (source != NULL) {
            fprintf(out, "_flashmoe_words '");
            if (strcmp(source, "command") == 0)
                put_first_words(out, commands);
            else
                fputs(source, out);
            fprintf(out, "' \"$cur\"\n");
        }
        fprintf(out, "        fi ;;\n");
    }
    fprintf(out, "    esac\n");
}

static void put_bash(FILE *out, const struct command *const *commands)
{
    fputs(bash_head, out);
    bash_commands(out, commands);
    fprintf(out, "    if ((COMP_CWORD > first)); then\n    case \"$command:$prev\" in\n");
    for (size_t i = 0; commands[i] != NULL; i++)
        for_each_option(out, commands[i], bash_value);
    fprintf(out, "    esac\n    fi\n");
    bash_operands(out, commands);
    fprintf(out, "}\n\ncomplete -F _flashmoe flashmoe\n");
}

/* ---- zsh ------------------------------------------------------------------------------- */

static void zsh_option(FILE *out, const struct command *command, const struct option *option)
{
    (void)command;
    const bool is_flag = option->kind == OPTION_FLAG;
    fprintf(out, " \\\n            ");
    if (option->letter != 0)
        fprintf(out, "'(-%c --%s)'{-%c%s,--%s%s}'", option->letter, option->name, option->letter,
                is_flag ? "" : "+", option->name, is_flag ? "" : "=");
    else
        fprintf(out, "'%s--%s%s", option->is_many ? "*" : "", option->name, is_flag ? "" : "=");
    fputc('[', out);
    put_quoted(out, option->help, "[]:\\");
    fputc(']', out);
    if (!is_flag)
        fprintf(out, ":%s:%s", option->metavar, option->kind == OPTION_PATH ? "_files" : " ");
    fputc('\'', out);
}

static void zsh_arguments(FILE *out, const struct command *const *commands, size_t i)
{
    fprintf(out, "        _arguments -s -S");
    for_each_option(out, commands[i], zsh_option);
    for (const struct operand *operand = commands[i]->operands; operand->name != NULL; operand++) {
        const char *source = operand_source(operand);
        fprintf(out, " \\\n            ':%s:", operand->name);
        if (operand->is_question) {
            fprintf(out, " '"); /* nothing completes a question */
        } else if (is_function(source)) {
            fprintf(out, strcmp(source, "file") == 0 ? "_files'" : "_flashmoe_%ss'", source);
        } else {
            fputc('(', out);
            if (strcmp(source, "command") == 0)
                put_first_words(out, commands);
            else
                fputs(source, out);
            fprintf(out, ")'");
        }
    }
    fprintf(out, " ;;\n");
}

static void put_zsh(FILE *out, const struct command *const *commands)
{
    fprintf(out, "#compdef flashmoe\n\n_flashmoe_pulleds()\n{\n    local -a names\n"
                 "    names=(${(f)\"$(flashmoe list --names 2>/dev/null)\"})\n"
                 "    compadd -a names\n}\n\n_flashmoe_models()\n{\n    _flashmoe_pulleds\n"
                 "    _files\n}\n\n_flashmoe()\n{\n    local command\n    local -a commands\n"
                 "    commands=(\n");
    for (size_t i = 0; commands[i] != NULL; i++)
        if (is_new_first_word(commands, i)) {
            fprintf(out, "        '%.*s:", first_word_bytes(commands[i]), commands[i]->name);
            put_quoted(out, commands[i]->summary, ":\\");
            fprintf(out, "'\n");
        }
    fprintf(out, "    )\n    if ((CURRENT == 2)); then\n        _describe command commands\n"
                 "        return\n    fi\n    command=$words[2]\n    case $command in\n");
    for (size_t i = 0; commands[i] != NULL; i++) {
        if (second_word(commands[i]) == NULL || !is_new_first_word(commands, i))
            continue;
        fprintf(out, "    %.*s)\n        if ((CURRENT == 3)); then\n            compadd ",
                first_word_bytes(commands[i]), commands[i]->name);
        put_second_words(out, commands, i);
        fprintf(out, "\n            return\n        fi\n        command=\"$command $words[3]\"\n"
                     "        shift words\n        ((CURRENT--)) ;;\n");
    }
    fprintf(out, "    esac\n    shift words\n    ((CURRENT--))\n    case $command in\n");
    for (size_t i = 0; commands[i] != NULL; i++) {
        fprintf(out, "    '%s')\n", commands[i]->name);
        zsh_arguments(out, commands, i);
    }
    fprintf(out, "    esac\n}\n\nif [[ $funcstack[1] == _flashmoe ]]; then\n    _flashmoe \"$@\"\n"
                 "else\n    compdef _flashmoe flashmoe\nfi\n");
}

/* ---- fish ------------------------------------------------------------------------------ */

static void fish_condition(FILE *out, const struct command *command)
{
    fprintf(out, "complete -c flashmoe -n '__fish_seen_subcommand_from %.*s",
            first_word_bytes(command), command->name);
    if (second_word(command) != NULL)
        fprintf(out, "; and __fish_seen_subcommand_from %s", second_word(command));
    fprintf(out, "'");
}

static void fish_option(FILE *out, const struct command *command, const struct option *option)
{
    fish_condition(out, command);
    if (option->letter != 0)
        fprintf(out, " -s %c", option->letter);
    fprintf(out, " -l %s", option->name);
    if (option->kind != OPTION_FLAG)
        fprintf(out, option->kind == OPTION_PATH ? " -r -F" : " -x");
    fprintf(out, " -d '");
    put_quoted(out, option->help, "\\");
    fprintf(out, "'\n");
}

static void fish_command(FILE *out, const struct command *const *commands, size_t i)
{
    const struct command *command = commands[i];
    if (is_new_first_word(commands, i)) {
        fprintf(out, "complete -c flashmoe -n __fish_use_subcommand -a %.*s -d '",
                first_word_bytes(command), command->name);
        put_quoted(out, command->summary, "\\");
        fprintf(out, "'\n");
    }
    if (second_word(command) != NULL)
        fprintf(out,
                "complete -c flashmoe -n '__fish_seen_subcommand_from %.*s; and not "
                "__fish_seen_subcommand_from %s' -a %s\n",
                first_word_bytes(command), command->name, second_word(command),
                second_word(command));
    if (command->operands[0].name != NULL) {
        const char *source = operand_source(&command->operands[0]);
        fish_condition(out, command);
        if (is_function(source)) {
            fprintf(out, "%s%s\n", strcmp(source, "pulled") == 0 ? "" : " -F",
                    strcmp(source, "file") == 0 ? ""
                                                : " -a '(flashmoe list --names 2>/dev/null)'");
        } else {
            fprintf(out, " -a '");
            if (strcmp(source, "command") == 0)
                put_first_words(out, commands);
            else
                fputs(source, out);
            fprintf(out, "'\n");
        }
    }
    for_each_option(out, command, fish_option);
}

static void put_fish(FILE *out, const struct command *const *commands)
{
    fprintf(out, "# fish completion for flashmoe\n\ncomplete -c flashmoe -f\n"
                 "complete -c flashmoe -n __fish_use_subcommand -s h -l help -d 'Show help'\n"
                 "complete -c flashmoe -n __fish_use_subcommand -l version -d "
                 "'Print the version'\n");
    for (size_t i = 0; commands[i] != NULL; i++)
        fish_command(out, commands, i);
}

bool docs_completions(FILE *out, const struct command *const *commands, const char *shell)
{
    if (strcmp(shell, "bash") == 0)
        put_bash(out, commands);
    else if (strcmp(shell, "zsh") == 0)
        put_zsh(out, commands);
    else if (strcmp(shell, "fish") == 0)
        put_fish(out, commands);
    else
        return false;
    return true;
}
