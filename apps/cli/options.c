#include "apps/cli/options.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plat.h"
#include "apps/cli/other_tools.h"

/* ---- nearest word ---------------------------------------------------------------------- */

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
    unsigned ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Counts the insertions, deletions, substitutions and swaps that turn one word into the other. */
static unsigned edit_distance(const char *a, const char *b)
{
    const size_t n_a = strlen(a), n_b = strlen(b);
    if (n_a >= WORD_BYTES || n_b >= WORD_BYTES)
        return WORD_BYTES;
    unsigned row[3][WORD_BYTES + 1];
    for (size_t j = 0; j <= n_b; j++)
        row[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n_a; i++) {
        unsigned *here = row[i % 3];
        const unsigned *above = row[(i + 2) % 3], *above2 = row[(i + 1) % 3];
        here[0] = (unsigned)i;
        for (size_t j = 1; j <= n_b; j++) {
            unsigned change = above[j - 1] + (a[i - 1] != b[j - 1]);
            here[j] = min3(change, above[j] + 1, here[j - 1] + 1);
            bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (is_swap && above2[j - 2] + 1 < here[j])
                here[j] = above2[j - 2] + 1;
        }
    }
    return row[n_a % 3][n_b];
}

const char *nearest_word(const char *word, const char *const *words)
{
    const size_t n = strlen(word);
    const char *best = NULL;
    unsigned best_distance = n < 3 ? 1 : n < 6 ? 2 : 3;
    for (; *words != NULL; words++) {
        bool is_prefix = n >= 2 && strncmp(word, *words, n) == 0;
        unsigned distance = is_prefix ? 0 : edit_distance(word, *words);
        if (distance >= n && !is_prefix)
            continue;
        if (distance < best_distance || (best == NULL && distance == best_distance)) {
            best = *words;
            best_distance = distance;
        }
    }
    return best;
}

/* ---- values ---------------------------------------------------------------------------- */

struct unit {
    const char *name;
    double bytes;
};

static const struct unit unit_list[] = {
    {"", 1},          {"b", 1},         {"k", 0x1p10},    {"kib", 0x1p10},  {"kb", 1e3},
    {"m", 0x1p20},    {"mib", 0x1p20},  {"mb", 1e6},      {"g", 0x1p30},    {"gib", 0x1p30},
    {"gb", 1e9},      {"t", 0x1p40},    {"tib", 0x1p40},  {"tb", 1e12},
};

static int unit_find(const char *suffix, double *unit_bytes)
{
    char lower[8];
    size_t n = strlen(suffix);
    if (n >= sizeof lower)
        return -1;
    for (size_t i = 0; i <= n; i++)
        lower[i] = (char)tolower((unsigned char)suffix[i]);
    for (size_t i = 0; i < sizeof unit_list / sizeof unit_list[0]; i++)
        if (strcmp(lower, unit_list[i].name) == 0) {
            *unit_bytes = unit_list[i].bytes;
            return 0;
        }
    return -1;
}

int bytes_parse(const char *text, uint64_t available_bytes, uint64_t *out, struct fm_error *err)
{
    static const char forms[] = "write a number and a unit, as in 8G, 512M, 1.5GiB or 70%";
    /* Allows digits and one point. strtod alone would also accept "inf", "0x10" and "1e9". */
    size_t n = strspn(text, "0123456789.");
    if (n == 0 || !isdigit((unsigned char)text[0]) || n > 20)
        return err_set(err, FM_ERR_ARG, "'%s' is not a size; %s", text, forms);
    char digits[24];
    memcpy(digits, text, n);
    digits[n] = '\0';
    char *end;
    double number = strtod(digits, &end);
    if (*end != '\0')
        return err_set(err, FM_ERR_ARG, "'%s' is not a size; %s", text, forms);
    const char *suffix = text + n;
    suffix += *suffix == ' ';
    double unit_bytes;
    if (strcmp(suffix, "%") == 0) {
        if (number <= 0 || number > 100)
            return err_set(err, FM_ERR_ARG, "'%s' must be more than 0%% and at most 100%%", text);
        if (available_bytes == 0)
            return err_set(err, FM_ERR_ARG, "'%s': the available memory of this machine is unknown;"
                           " give a size such as 8G", text);
        unit_bytes = (double)available_bytes / 100;
    } else if (unit_find(suffix, &unit_bytes) != 0) {
        return err_set(err, FM_ERR_ARG, "'%s' is not a size: unknown unit '%s'; %s", text, suffix,
                       forms);
    }
    double bytes = number * unit_bytes;
    if (bytes >= 0x1p63)
        return err_set(err, FM_ERR_ARG, "'%s' is too large", text);
    *out = (uint64_t)bytes;
    return 0;
}

/* Returns whether `word` is one of `words`, which are separated by blanks; NULL: none. */
static bool is_listed(const char *words, const char *word)
{
    const size_t n = strlen(word);
    while (words != NULL && *words != '\0') {
        const size_t bytes = strcspn(words, " ");
        if (bytes == n && strncmp(words, word, n) == 0)
            return true;
        words += bytes;
        words += strspn(words, " ");
    }
    return false;
}

static int uint_parse(const struct option *option, const char *text, uint64_t *out,
                      struct fm_error *err)
{
    uint64_t max = option->max != 0 ? option->max : UINT64_MAX;
    if (is_listed(option->as_max, text)) {
        *out = max;
        return 0;
    }
    char *end;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    const bool is_negative = text[0] == '-' && isdigit((unsigned char)text[1]);
    if ((!isdigit((unsigned char)text[0]) && !is_negative) || *end != '\0')
        return err_set(err, FM_ERR_ARG, "'%s' is not a whole number", text);
    if (is_negative)
        return err_set(err, FM_ERR_ARG, "%s is out of range: %llu to %llu", text,
                       (unsigned long long)option->min, (unsigned long long)max);
    if (errno == ERANGE || n < option->min || n > max)
        return err_set(err, FM_ERR_ARG, "%s is out of range: %llu to %llu", text,
                       (unsigned long long)option->min, (unsigned long long)max);
    *out = n;
    return 0;
}

static int float_parse(const struct option *option, const char *text, double *out,
                       struct fm_error *err)
{
    char *end;
    double x = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(x))
        return err_set(err, FM_ERR_ARG, "'%s' is not a number", text);
    if (x < option->float_min || x > option->float_max)
        return err_set(err, FM_ERR_ARG, "%s is out of range: %g to %g", text, option->float_min,
                       option->float_max);
    *out = x;
    return 0;
}

static int size_parse(const struct option *option, const char *text, uint64_t *out,
                      struct fm_error *err)
{
    uint64_t available = strchr(text, '%') != NULL ? plat_memory_available() : 0;
    int rc = bytes_parse(text, available, out, err);
    if (rc == 0 && *out < option->min)
        rc = err_set(err, FM_ERR_ARG, "%s is %llu bytes, below the minimum of %llu; "
                     "give a unit, as in 8G", text, (unsigned long long)*out,
                     (unsigned long long)option->min);
    return rc;
}

static int value_set(struct arg_value *value, const char *text, struct fm_error *err)
{
    const struct option *option = value->option;
    int rc = 0;
    if (is_listed(option->as_unset, text)) {
        value->is_given = value->has_value = false;
        value->number = 0;
        return option->value != NULL ? value_set(value, option->value, err) : 0;
    }
    if (option->kind == OPTION_UINT)
        rc = uint_parse(option, text, &value->number, err);
    else if (option->kind == OPTION_FLOAT)
        rc = float_parse(option, text, &value->real, err);
    else if (option->kind == OPTION_BYTES)
        rc = size_parse(option, text, &value->number, err);
    if (rc == 0 && option->is_many && value->n_texts == REPEATS_MAX)
        rc = err_set(err, FM_ERR_ARG, "given more than %d times", REPEATS_MAX);
    if (rc != 0)
        return err_wrap(err, rc, "--%s", option->name);
    if (option->is_many)
        value->texts[value->n_texts++] = text;
    value->text = text;
    value->has_value = true;
    return 0;
}

/* ---- the command line ------------------------------------------------------------------ */

static int values_init(struct args *args, struct fm_error *err)
{
    for (const struct option_group *const *group = args->command->groups; *group != NULL; group++)
        for (const struct option *option = (*group)->options; option->name != NULL; option++) {
            assert(args->n_values < OPTIONS_MAX);
            struct arg_value *value = &args->values[args->n_values++];
            value->option = option;
            if (option->value == NULL)
                continue;
            int rc = value_set(value, option->value, err);
            if (rc != 0)
                return rc;
        }
    return 0;
}

/* Returns whether the command has what the entry stands for. */
static bool other_applies(const struct args *args, const struct other_option *other)
{
    if (other->ours == NULL)
        return true;
    if (strcmp(other->ours, OTHER_MODEL) == 0) {
        const struct operand *first = &args->command->operands[0];
        return first->name != NULL && operand_is_model(first);
    }
    for (size_t i = 0; i < args->n_values; i++)
        if (strcmp(args->values[i].option->name, other->ours) == 0)
            return true;
    return false;
}

/* Returns the known spelling closest to --NAME, without the dashes, or NULL. `found` holds it if it
 * is one of another tool. */
static const char *nearest_option(const struct args *args, const char *name,
                                  char found[OTHER_BYTES])
{
    const char *names[OPTIONS_MAX + 1];
    size_t n = 0;
    for (; n < args->n_values; n++)
        names[n] = args->values[n].option->name;
    names[n] = NULL;
    const char *nearest = nearest_word(name, names);
    char spelling[OTHER_BYTES];
    for (const struct other_option *other = other_options; other->spellings != NULL; other++)
        for (const char *rest = other->spellings;
             nearest == NULL && other_option_next(&rest, spelling) > 0;) {
            const char *const one[] = {spelling + 2, NULL};
            if (strncmp(spelling, "--", 2) == 0 && other_applies(args, other) &&
                nearest_word(name, one) != NULL) {
                (void)snprintf(found, OTHER_BYTES, "%s", spelling + 2);
                nearest = found;
            }
        }
    return nearest;
}

/* Returns the first command that has --NAME, or NULL. */
static const struct command *command_with(const struct command *const *commands, const char *name)
{
    for (; *commands != NULL; commands++)
        for (const struct option_group *const *group = (*commands)->groups; *group != NULL; group++)
            for (const struct option *option = (*group)->options; option->name != NULL; option++)
                if (strcmp(option->name, name) == 0)
                    return *commands;
    return NULL;
}

static int unknown_option(const struct args *args, const char *shown, const char *name,
                          struct fm_error *err)
{
    char found[OTHER_BYTES];
    const struct command *owner = command_with(args->commands, name);
    if (owner != NULL && strncmp(shown, "--", 2) == 0)
        return err_set(err, FM_ERR_ARG, "'%s' is an option of 'flashmoe %s', not of 'flashmoe %s'",
                       shown, owner->name, args->command->name);
    const char *nearest = name[0] != '\0' ? nearest_option(args, name, found) : NULL;
    if (nearest != NULL)
        return err_set(err, FM_ERR_ARG, "unknown option '%s'; did you mean '--%s'?", shown,
                       nearest);
    return err_set(err, FM_ERR_ARG, "unknown option '%s'; 'flashmoe help %s' lists the options",
                   shown, args->command->name);
}

static struct arg_value *find_long(struct args *args, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < args->n_values; i++) {
        const char *known = args->values[i].option->name;
        if (strlen(known) == name_bytes && strncmp(known, name, name_bytes) == 0)
            return &args->values[i];
    }
    return NULL;
}

static struct arg_value *find_letter(struct args *args, char letter)
{
    for (size_t i = 0; i < args->n_values; i++)
        if (args->values[i].option->letter == letter)
            return &args->values[i];
    return NULL;
}

/* Stores an option's value. `attached` is a value written in the same word ("--name=value"), or
 * NULL; otherwise the next word is the value and *i advances over it. */
static int take_value(struct arg_value *value, const char *attached, int argc,
                      char *const *argv, int *i, struct fm_error *err)
{
    const struct option *option = value->option;
    value->is_given = true;
    if (option->kind == OPTION_FLAG) {
        value->has_value = true;
        return attached == NULL ? 0
                                : err_set(err, FM_ERR_ARG, "--%s takes no value, but got '%s'",
                                          option->name, attached);
    }
    if (attached == NULL && *i + 1 >= argc)
        return err_set(err, FM_ERR_ARG, "--%s needs a value: --%s %s", option->name, option->name,
                       option->metavar);
    return value_set(value, attached != NULL ? attached : argv[++*i], err);
}

/* Takes the value of an option that names the model. */
static int take_model(struct args *args, const char *attached, int argc, char *const *argv, int *i,
                      struct fm_error *err)
{
    if (attached == NULL && *i + 1 >= argc)
        return err_set(err, FM_ERR_ARG, "%s needs a value: %s MODEL", argv[*i], argv[*i]);
    if (args->model != NULL)
        return err_set(err, FM_ERR_ARG, "the model is given twice: '%s' and '%s'", args->model,
                       attached != NULL ? attached : argv[*i + 1]);
    args->model = attached != NULL ? attached : argv[++*i];
    return 0;
}

/* Handles an option of another tool, the first `bytes` of argv[*i]. *is_known says that it is one;
 * otherwise nothing happens. */
static int parse_other(struct args *args, size_t bytes, const char *attached, int argc,
                       char *const *argv, int *i, bool *is_known, struct fm_error *err)
{
    const char *word = argv[*i];
    const struct other_option *other = other_option_find(word, bytes);
    *is_known = other != NULL && other_applies(args, other);
    if (!*is_known)
        return 0;
    if (other->answer != NULL)
        return err_set(err, FM_ERR_ARG, "%.*s is no option of flashmoe: %s", (int)bytes, word,
                       other->answer);
    if (strcmp(other->ours, OTHER_MODEL) == 0)
        return take_model(args, attached, argc, argv, i, err);
    return take_value(find_long(args, other->ours, strlen(other->ours)), attached, argc, argv, i,
                      err);
}

/* Finds --top_p as --top-p. */
static struct arg_value *find_underscored(struct args *args, const char *name, size_t name_bytes)
{
    char dashed[WORD_BYTES];
    if (name_bytes >= sizeof dashed)
        return NULL;
    for (size_t i = 0; i < name_bytes; i++)
        dashed[i] = name[i] == '_' ? '-' : name[i];
    return find_long(args, dashed, name_bytes);
}

static int parse_long(struct args *args, int argc, char *const *argv, int *i,
                      struct fm_error *err)
{
    const char *name = argv[*i] + 2;
    const char *equals = strchr(name, '='), *attached = equals != NULL ? equals + 1 : NULL;
    size_t name_bytes = equals != NULL ? (size_t)(equals - name) : strlen(name);
    struct arg_value *value = find_long(args, name, name_bytes);
    if (value == NULL)
        value = find_underscored(args, name, name_bytes);
    if (value != NULL)
        return take_value(value, attached, argc, argv, i, err);
    bool is_known;
    int rc = parse_other(args, name_bytes + 2, attached, argc, argv, i, &is_known, err);
    if (is_known)
        return rc;
    char shown[WORD_BYTES + 2];
    (void)snprintf(shown, sizeof shown, "--%.*s", (int)name_bytes, name);
    return unknown_option(args, shown, shown + 2, err);
}

/* Parses "-n 32", "-n32", and several flags as in "-qv". Words of other tools with one dash, such
 * as "-ngl", come first. */
static int parse_letters(struct args *args, int argc, char *const *argv, int *i,
                         struct fm_error *err)
{
    const char *word = argv[*i];
    const bool is_long = strlen(word) > 2;
    bool is_known = false;
    int rc = is_long ? parse_other(args, strlen(word), NULL, argc, argv, i, &is_known, err) : 0;
    if (is_known)
        return rc;
    const struct other_option *other = is_long ? other_option_find(word, strlen(word)) : NULL;
    if (other != NULL && other->answer == NULL) /* not "-n" with the value "p" */
        return unknown_option(args, word, "", err);
    for (const char *letter = word + 1; *letter != '\0'; letter++) {
        struct arg_value *value = find_letter(args, *letter);
        if (value == NULL && letter == word + 1) {
            rc = parse_other(args, 2, letter[1] != '\0' ? letter + 1 : NULL, argc, argv, i,
                             &is_known, err);
            if (is_known)
                return rc;
        }
        if (value == NULL) {
            const char shown[] = {'-', *letter, '\0'};
            bool is_word = letter == word + 1 && strlen(letter) > 2;
            return unknown_option(args, is_word ? word : shown, is_word ? letter : "", err);
        }
        bool is_flag = value->option->kind == OPTION_FLAG;
        const char *attached = !is_flag && letter[1] != '\0' ? letter + 1 : NULL;
        rc = take_value(value, attached, argc, argv, i, err);
        if (rc != 0 || !is_flag)
            return rc;
    }
    return 0;
}

static int add_operand(struct args *args, const char *word, struct fm_error *err)
{
    size_t n = 0;
    while (args->command->operands[n].name != NULL)
        n++;
    const bool is_many = n > 0 && args->command->operands[n - 1].is_many;
    if (args->n_operands < (is_many ? OPERANDS_MAX : n)) {
        args->operands[args->n_operands++] = word;
        return 0;
    }
    if (n > 0 && args->command->operands[n - 1].is_question)
        return err_set(err, FM_ERR_ARG, "unexpected argument '%s'; put quotes around the whole "
                       "question, as in: flashmoe %s \"Why is the sky blue?\"", word,
                       args->command->name);
    return err_set(err, FM_ERR_ARG, "unexpected argument '%s'; quote a value that contains spaces "
                   "(see 'flashmoe help %s')", word, args->command->name);
}

/* Puts the model of -m before the operands. Where the last operand is a question, one operand too
 * many is left to question_split, which knows what is a model. */
static int place_model(struct args *args, struct fm_error *err)
{
    if (args->model == NULL)
        return 0;
    size_t n = 0;
    while (args->command->operands[n].name != NULL)
        n++;
    if (args->n_operands >= n + args->command->operands[n - 1].is_question)
        return err_set(err, FM_ERR_ARG, "the model is given twice: '%s' and -m '%s'",
                       args->operands[0], args->model);
    memmove(args->operands + 1, args->operands, args->n_operands * sizeof args->operands[0]);
    args->operands[0] = args->model;
    args->n_operands++;
    return 0;
}

/* Returns false also when the command has no such option. */
static bool is_given(const struct args *args, const char *name)
{
    for (size_t i = 0; i < args->n_values; i++)
        if (strcmp(args->values[i].option->name, name) == 0)
            return args->values[i].is_given;
    return false;
}

static int check_excludes(const struct args *args, struct fm_error *err)
{
    for (size_t i = 0; i < args->n_values; i++) {
        const struct arg_value *value = &args->values[i];
        const char *rest = value->is_given ? value->option->excludes : NULL;
        while (rest != NULL && *rest != '\0') {
            char name[WORD_BYTES];
            size_t n = strcspn(rest, " ");
            assert(n < sizeof name);
            memcpy(name, rest, n);
            name[n] = '\0';
            if (is_given(args, name))
                return err_set(err, FM_ERR_ARG, "--%s and --%s cannot be used together",
                               value->option->name, name);
            rest += n;
            rest += strspn(rest, " ");
        }
    }
    return 0;
}

static int check_operands(const struct args *args, struct fm_error *err)
{
    const struct command *command = args->command;
    size_t n = 0;
    while (n < args->n_operands && command->operands[n].name != NULL)
        n++;
    const struct operand *operand = &command->operands[n];
    if (operand->name == NULL || operand->is_optional)
        return 0;
    char usage[128];
    size_t used = 0;
    for (const struct operand *each = command->operands; each->name != NULL; each++) {
        int more = snprintf(usage + used, sizeof usage - used, " %s", each->name);
        used += more > 0 && used + (size_t)more < sizeof usage ? (size_t)more : 0;
    }
    return err_set(err, FM_ERR_ARG, "%s is missing, as in 'flashmoe %s%s'; see 'flashmoe help %s'",
                   operand->name, command->name, usage, command->name);
}

bool operand_is_model(const struct operand *operand)
{
    return strcmp(operand->name, "MODEL") == 0 || strcmp(operand->name, "SRC") == 0;
}

int args_parse(const struct command *const *commands, const struct command *command, int argc,
               char *const *argv, struct args *args, struct fm_error *err)
{
    *args = (struct args){.command = command, .commands = commands};
    int rc = values_init(args, err);
    bool is_options = true;
    for (int i = 0; i < argc && rc == 0; i++) {
        const char *word = argv[i];
        if (is_options && strcmp(word, "--") == 0)
            is_options = false;
        else if (is_options && strncmp(word, "--", 2) == 0)
            rc = parse_long(args, argc, argv, &i, err);
        else if (is_options && word[0] == '-' && word[1] != '\0')
            rc = parse_letters(args, argc, argv, &i, err);
        else
            rc = add_operand(args, word, err);
        if (rc == 0 && args_flag(args, "help")) {
            args->wants_help = true;
            return 0;
        }
    }
    if (rc == 0)
        rc = place_model(args, err);
    if (rc == 0)
        rc = check_excludes(args, err);
    if (rc == 0)
        rc = check_operands(args, err);
    return rc;
}

/* ---- readers --------------------------------------------------------------------------- */

static const struct arg_value *find_value(const struct args *args, const char *name)
{
    for (size_t i = 0; i < args->n_values; i++)
        if (strcmp(args->values[i].option->name, name) == 0)
            return &args->values[i];
    assert(!"the command has no such option");
    return &args->values[0];
}

bool args_given(const struct args *args, const char *name)
{
    return find_value(args, name)->is_given;
}

bool args_has(const struct args *args, const char *name)
{
    return find_value(args, name)->has_value;
}

bool args_flag(const struct args *args, const char *name)
{
    const struct arg_value *value = find_value(args, name);
    assert(value->option->kind == OPTION_FLAG);
    return value->is_given;
}

uint64_t args_uint(const struct args *args, const char *name)
{
    const struct arg_value *value = find_value(args, name);
    assert(value->option->kind == OPTION_UINT || value->option->kind == OPTION_BYTES);
    return value->number;
}

double args_float(const struct args *args, const char *name)
{
    const struct arg_value *value = find_value(args, name);
    assert(value->option->kind == OPTION_FLOAT);
    return value->real;
}

const char *args_text(const struct args *args, const char *name)
{
    const struct arg_value *value = find_value(args, name);
    assert(value->option->kind == OPTION_STRING || value->option->kind == OPTION_PATH);
    return value->text;
}

size_t args_count(const struct args *args, const char *name)
{
    const struct arg_value *value = find_value(args, name);
    assert(value->option->is_many);
    return value->n_texts;
}

const char *args_text_at(const struct args *args, const char *name, size_t i)
{
    const struct arg_value *value = find_value(args, name);
    assert(i < value->n_texts);
    return value->texts[i];
}

const char *args_operand(const struct args *args, size_t i)
{
    return i < args->n_operands ? args->operands[i] : NULL;
}

/* ---- commands -------------------------------------------------------------------------- */

/* Returns whether `name` is `word` followed by another word. */
static bool is_first_word(const char *name, const char *word)
{
    size_t n = strlen(word);
    return strncmp(name, word, n) == 0 && name[n] == ' ';
}

bool command_is_group(const struct command *const *commands, const char *word)
{
    for (; *commands != NULL; commands++)
        if (is_first_word((*commands)->name, word))
            return true;
    return false;
}

bool words_ask_help(int argc, char *const *argv)
{
    for (int i = 0; i < argc && argv[i][0] == '-' && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static int unknown_second_word(const struct command *const *commands, const char *first,
                               const char *second, struct fm_error *err)
{
    char known[256] = "";
    size_t used = 0;
    for (; *commands != NULL; commands++)
        if (is_first_word((*commands)->name, first)) {
            int n = snprintf(known + used, sizeof known - used, "%s'flashmoe %s'",
                             used > 0 ? ", " : "", (*commands)->name);
            used += n > 0 && used + (size_t)n < sizeof known ? (size_t)n : 0;
        }
    if (second == NULL)
        return err_set(err, FM_ERR_ARG, "'%s' needs a second word: %s", first, known);
    return err_set(err, FM_ERR_ARG, "unknown command '%s %s'; use %s", first, second, known);
}

int command_find(const struct command *const *commands, int argc, char *const *argv,
                 const struct command **out, int *n_words, struct fm_error *err)
{
    const char *second = argc > 1 ? argv[1] : NULL;
    const char *words[OPTIONS_MAX + 1];
    size_t n = 0;
    for (size_t i = 0; commands[i] != NULL; i++) {
        const char *name = commands[i]->name;
        bool is_half = is_first_word(name, argv[0]);
        bool is_two = is_half && second != NULL && strcmp(name + strlen(argv[0]) + 1, second) == 0;
        if (is_two || strcmp(name, argv[0]) == 0) {
            *out = commands[i];
            *n_words = is_two ? 2 : 1;
            return 0;
        }
        assert(n < OPTIONS_MAX);
        words[n++] = name;
    }
    words[n] = NULL;
    if (command_is_group(commands, argv[0]))
        return unknown_second_word(commands, argv[0], second, err);
    const char *other = other_command_find(argv[0]);
    const char *nearest = other != NULL ? other : nearest_word(argv[0], words);
    if (nearest != NULL)
        return err_set(err, FM_ERR_ARG, "unknown command '%s'; did you mean '%s'?", argv[0],
                       nearest);
    if (strchr(argv[0], ' ') != NULL && !plat_file_exists(argv[0]))
        return err_set(err, FM_ERR_ARG, "'%s' is not a command; to ask a question: flashmoe run "
                       "\"%.200s\"", argv[0], argv[0]);
    if (plat_file_exists(argv[0]))
        return err_set(err, FM_ERR_ARG, "'%s' is not a command; to run a model: flashmoe run %s "
                       "-p TEXT", argv[0], argv[0]);
    return err_set(err, FM_ERR_ARG, "unknown command '%s'; 'flashmoe help' lists the commands",
                   argv[0]);
}
