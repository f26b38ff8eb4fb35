#include "apps/cli/question.h"

#include <ctype.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/plat.h"
#include "apps/cli/cluster.h"
#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "apps/pull/store.h"

/* How long standard input may be silent before the program says that it waits for it. */
#define SILENT_MS 2000

/* ---- words ------------------------------------------------------------------------------ */

static bool has_blank(const char *word)
{
    return strpbrk(word, " \t\r\n") != NULL;
}

/* Returns whether the word is a model that is here. */
static bool is_known(const char *word)
{
    char buffer[LIMIT_PATH_BYTES];
    const char *path;
    if (plat_file_exists(word) || strcmp(word, "nano") == 0)
        return true;
    return store_resolve(word, buffer, &path, NULL) == 0 && path != word;
}

static bool begins_as_path(const char *word)
{
    return word[0] == '/' || word[0] == '~' || strncmp(word, "./", 2) == 0 ||
           strncmp(word, "../", 3) == 0;
}

static bool ends_as_model(const char *word)
{
    static const char *const suffixes[] = {".gguf", ".fmoe", ".safetensors"};
    const size_t n = strlen(word);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        const size_t n_suffix = strlen(suffixes[i]);
        if (n > n_suffix && strcasecmp(word + n - n_suffix, suffixes[i]) == 0)
            return true;
    }
    return false;
}

/* Returns whether the word can only be meant as a model, though there is none. */
static bool looks_like_model(const char *word)
{
    const bool begins = begins_as_path(word), ends = ends_as_model(word);
    if (has_blank(word))
        return begins && ends;
    bool is_plain = true; /* no name on the hub has other characters */
    for (const char *c = word; *c != '\0'; c++)
        is_plain = is_plain && (isalnum((unsigned char)*c) || strchr("._-:@/", *c) != NULL);
    return begins || ends || (is_plain && strchr(word, '/') != NULL) ||
           strncmp(word, "http://", 7) == 0 || strncmp(word, "https://", 8) == 0;
}

/* Returns whether the word could be a model's name as well as a question: "qwen3", "llama3.2:1b",
 * but not "Hello", "2+2" or "Why?". */
static bool is_unclear(const char *word)
{
    bool has_more = false;
    for (const char *c = word; *c != '\0'; c++) {
        if (!isalnum((unsigned char)*c) && strchr("._-:@", *c) == NULL)
            return false;
        has_more = has_more || !isalpha((unsigned char)*c);
    }
    return has_more;
}

/* ---- one word --------------------------------------------------------------------------- */

/* The question alone: the model is the default. */
static void set_question(struct args *args, const char *word)
{
    args->operands[0] = NULL;
    args->operands[1] = word;
    args->n_operands = 2;
}

static int split_one(struct args *args, struct fm_error *err)
{
    const char *word = args->operands[0];
    if (is_known(word))
        return 0;
    if (looks_like_model(word)) {
        char buffer[LIMIT_PATH_BYTES];
        const char *path;
        struct fm_error why = {.text = "there is no such file; 'flashmoe list' shows what was "
                                       "pulled"};
        (void)store_resolve(word, buffer, &path, &why);
        return err_set(err, FM_ERR_ARG, "'%.200s' looks like a model: %.600s. For a question: "
                       "flashmoe run -p \"%.200s\"", word, why.text, word);
    }
    if (is_unclear(word))
        return err_set(err, FM_ERR_ARG, "'%s' is no file and no pulled model, and could also be a "
                       "question. 'flashmoe list' shows pulled models, 'flashmoe pull ORG/NAME' "
                       "downloads one; 'flashmoe run -p %s' asks it", word, word);
    if (word[0] != '\0' && !has_blank(word) && isalpha((unsigned char)word[strlen(word) - 1]) &&
        !args_flag(args, "quiet"))
        say("note: '%s' is taken as a question; a model is a path or ORG/NAME", word);
    set_question(args, word);
    return 0;
}

/* ---- several words ---------------------------------------------------------------------- */

static int split_two(const struct args *args, struct fm_error *err)
{
    const char *first = args->operands[0], *second = args->operands[1];
    if (is_known(first))
        return 0;
    if (is_known(second))
        return err_set(err, FM_ERR_ARG, "the model comes first: flashmoe run %s \"%.200s\"",
                       second, first);
    if (!looks_like_model(first))
        return err_set(err, FM_ERR_ARG, "'%.200s' is no file and no pulled model; 'flashmoe list' "
                       "shows those that are here. For a question of several words: flashmoe run "
                       "\"%.200s %.200s\"", first, first, second);
    return 0; /* resolving or opening it says why it cannot be used */
}

static int given_twice(const char *option, const char *word, struct fm_error *err)
{
    if (strcmp(option, "-f") == 0)
        return err_set(err, FM_ERR_ARG, "the prompt is given twice: with -f and as '%.200s'. To "
                       "ask about a file, send it to standard input: flashmoe run \"%.200s\" < "
                       "FILE", word, word);
    return err_set(err, FM_ERR_ARG, "the question is given twice: with -p and as '%.200s'", word);
}

/* The operands are MODEL of -m and two words more. */
static int too_many(const struct args *args, struct fm_error *err)
{
    const char *first = args->operands[1], *second = args->operands[2];
    if (is_known(first) || looks_like_model(first))
        return err_set(err, FM_ERR_ARG, "the model is given twice: '%.200s' and -m '%.200s'", first,
                       args->model);
    return err_set(err, FM_ERR_ARG, "unexpected argument '%.200s'; put quotes around the whole "
                   "question, as in: flashmoe %s -m %.200s \"%.200s %.200s\"", second,
                   args->command->name, args->model, first, second);
}

int question_split(struct args *args, struct fm_error *err)
{
    const struct operand *operands = args->command->operands;
    if (operands[0].name == NULL || operands[1].name == NULL || !operands[1].is_question)
        return 0;
    const char *given = args_given(args, "prompt") ? "-p" : args_given(args, "file") ? "-f" : NULL;
    const bool has_model = args->model != NULL;
    if (args->n_operands > 0 && strcmp(args->operands[args->n_operands - 1], "-") == 0)
        args->n_operands--; /* standard input, which is read anyway */
    if (args->n_operands > 2)
        return too_many(args, err);
    if (given == NULL && args->n_operands == 1 && !has_model)
        return split_one(args, err);
    if (given != NULL && args->n_operands > 0) {
        const char *last = args->operands[args->n_operands - 1];
        const bool is_model = args->n_operands == 1 &&
                              (has_model || !has_blank(last) || is_known(last) ||
                               looks_like_model(last));
        return is_model ? 0 : given_twice(given, last, err);
    }
    return has_model || args->n_operands < 2 ? 0 : split_two(args, err);
}

/* ---- the prompt ------------------------------------------------------------------------- */

/* Returns whether standard input may be context. nohup opens it for writing only, and mpirun keeps
 * it open for ever. */
static bool has_input(void)
{
    const int flags = fcntl(STDIN_FILENO, F_GETFL);
    struct stat file;
    return flags >= 0 && (flags & O_ACCMODE) != O_WRONLY && fstat(STDIN_FILENO, &file) == 0 &&
           !S_ISDIR(file.st_mode) && !isatty(STDIN_FILENO) && cluster_of_process() == NULL;
}

/* Reads standard input, and says so if that takes long, also to who wants quiet: a program that
 * started this one may have left it open. */
static int read_context(char **text, size_t *bytes, struct fm_error *err)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&input, 1, SILENT_MS) == 0)
        say("waiting for the end of standard input, which comes before the question; without one, "
            "use </dev/null");
    return file_read("-", text, bytes, err);
}

static int join(const char *context, size_t context_bytes, const char *question, bool is_raw,
                char **text, size_t *text_bytes, struct fm_error *err)
{
    const size_t n = strlen(question), n_gap = is_raw || context_bytes == 0 ? 0 : 2;
    *text = mem_new(context_bytes + n_gap + n + 1, 1, "the prompt", err);
    if (*text == NULL)
        return FM_ERR_NOMEM;
    if (context_bytes > 0)
        memcpy(*text, context, context_bytes);
    memcpy(*text + context_bytes, "\n\n", n_gap);
    memcpy(*text + context_bytes + n_gap, question, n);
    *text_bytes = context_bytes + n_gap + n;
    return 0;
}

int question_read(const struct args *args, char **text, size_t *text_bytes, struct fm_error *err)
{
    const char *question = args_operand(args, 1);
    const bool is_raw = args_flag(args, "raw");
    char *context = NULL;
    size_t n = 0;
    if (question == NULL)
        question = args_text(args, "prompt");
    if (question == NULL && !args_given(args, "file") && isatty(STDIN_FILENO))
        return err_set(err, FM_ERR_ARG, "no question given, as in 'flashmoe run MODEL \"Why?\"'; "
                       "-p TEXT, -f FILE or standard input also work, and 'flashmoe chat' is a "
                       "conversation");
    if (question == NULL)
        return prompt_read(args, text, text_bytes, err);
    int rc = has_input() ? read_context(&context, &n, err) : 0;
    if (rc == 0 && !is_raw)
        while (n > 0 && strchr(" \t\r\n", context[n - 1]) != NULL && context[n - 1] != '\0')
            n--;
    if (rc == 0 && n > 0 && !args_flag(args, "quiet"))
        say("note: the prompt begins with %zu bytes of standard input", n);
    if (rc == 0)
        rc = join(context, n, question, is_raw, text, text_bytes, err);
    mem_free(context);
    return rc;
}

/* ---- its size --------------------------------------------------------------------------- */

/* `what` describes the prompt, which has `n` tokens or more. */
static int too_long(const char *what, size_t n, const struct fm_model_info *info,
                    unsigned n_context, struct fm_error *err)
{
    if (n > info->max_context)
        return err_set(err, FM_ERR_ARG, "the prompt has %s but the context holds %u and the model "
                       "supports at most %u; shorten the prompt", what, n_context,
                       info->max_context);
    const size_t need = n + 256 < info->max_context ? n + 256 : info->max_context;
    return err_set(err, FM_ERR_ARG, "the prompt has %s but the context holds %u; make room with "
                   "--context %zu, or shorten the prompt", what, n_context, need);
}

int question_check_tokens(size_t n, const struct fm_model_info *info, unsigned n_context,
                          struct fm_error *err)
{
    char what[64];
    (void)snprintf(what, sizeof what, "%zu tokens", n);
    return n <= n_context ? 0 : too_long(what, n, info, n_context, err);
}

int question_check_bytes(size_t bytes, const struct fm_model_info *info, unsigned n_context,
                         struct fm_error *err)
{
    const size_t n_min = info->max_token_bytes > 0 ? bytes / info->max_token_bytes : 0;
    char what[128];
    (void)snprintf(what, sizeof what, "%zu bytes, which are at least %zu tokens,", bytes, n_min);
    return n_min <= n_context ? 0 : too_long(what, n_min, info, n_context, err);
}
