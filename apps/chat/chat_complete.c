#include "apps/chat/chat_complete.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "apps/cli/width.h"

#define MAX_NAMES 10000
#define BLANKS " \t"

/* A list of names while it is collected. */
struct list {
    void *at; /* char *, each owned */
    size_t n, capacity;
};

static void add(struct list *list, const char *name, const char *tail)
{
    const size_t n = strlen(name), n_tail = strlen(tail);
    char *copy = list->n < MAX_NAMES ? mem_new(n + n_tail + 1, 1, "a name", NULL) : NULL;
    if (copy == NULL ||
        mem_grow(&list->at, &list->capacity, list->n + 1, sizeof copy, "the names", NULL) != 0) {
        mem_free(copy);
        return;
    }
    memcpy(copy, name, n);
    memcpy(copy + n, tail, n_tail);
    ((char **)list->at)[list->n++] = copy;
}

static void add_if(struct list *list, const char *name, const char *prefix, const char *tail)
{
    if (strncmp(name, prefix, strlen(prefix)) == 0)
        add(list, name, tail);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* ---- files ------------------------------------------------------------------------------ */

/* Returns whether a line can show the name as it is. */
static bool is_printable(const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0, used; i < n; i += used) {
        const uint32_t c = width_decode(name + i, n - i, &used);
        if (c < 0x20 || (c >= 0x7f && c < 0xa0) || (c == 0xfffd && used == 1))
            return false;
    }
    return true;
}

static bool is_folder(const char *folder, const char *name)
{
    char path[2 * LIMIT_PATH_BYTES];
    struct stat info;
    (void)snprintf(path, sizeof path, "%s%s", folder, name);
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Lists the files that begin with `path`; *n_folder is the length of the folder in it. */
static void list_files(const char *path, struct list *list, size_t *n_folder)
{
    const char *slash = strrchr(path, '/');
    char folder[LIMIT_PATH_BYTES];
    *n_folder = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    if (*n_folder >= sizeof folder)
        return;
    memcpy(folder, path, *n_folder);
    folder[*n_folder] = '\0';
    const char *prefix = path + *n_folder;
    DIR *dir = opendir(*n_folder > 0 ? folder : ".");
    if (dir == NULL)
        return;
    for (const struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        const char *name = entry->d_name;
        const bool is_hidden = name[0] == '.' && prefix[0] != '.';
        if (is_hidden || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || !is_printable(name) ||
            strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        add(list, name, is_folder(folder, name) ? "/" : "");
    }
    (void)closedir(dir);
}

/* ---- the result ------------------------------------------------------------------------- */

/* Returns how many bytes all names begin with, whole characters only. */
static size_t common_bytes(const struct list *list)
{
    char *const *names = list->at;
    size_t n = strlen(names[0]);
    for (size_t i = 1; i < list->n; i++)
        for (size_t k = 0; k < n; k++)
            if (names[i][k] != names[0][k])
                n = k;
    while (n > 0 && ((unsigned char)names[0][n] & 0xc0) == 0x80)
        n--;
    return n;
}

/* Sorts the names and writes them one after the other. */
static void keep_names(struct list *list, struct completion *out)
{
    char **names = list->at;
    size_t bytes = 0;
    qsort(names, list->n, sizeof *names, by_name);
    for (size_t i = 0; i < list->n; i++)
        bytes += strlen(names[i]) + 1;
    out->names = mem_new(bytes, 1, "the names", NULL);
    for (size_t i = 0; out->names != NULL && i < list->n; i++) {
        const size_t n = strlen(names[i]) + 1;
        memcpy(out->names + out->n_bytes, names[i], n);
        out->n_bytes += n;
    }
    out->n = out->names != NULL ? list->n : 0;
}

/* Completes to FOLDER and what the names have in common; `tail` follows a single name. */
static void finish(struct list *list, const char *folder, size_t n_folder, const char *tail,
                   struct completion *out)
{
    if (list->n > 0) {
        const char *first = ((char **)list->at)[0];
        const size_t n = common_bytes(list);
        const bool is_open = list->n > 1 || (n > 0 && first[n - 1] == '/'); /* more may follow */
        const int length = snprintf(out->text, sizeof out->text, "%.*s%.*s%s", (int)n_folder,
                                    folder, (int)n, first, is_open ? "" : tail);
        if (length > 0 && (size_t)length < sizeof out->text)
            keep_names(list, out);
    }
    for (size_t i = 0; i < list->n; i++)
        mem_free(((char **)list->at)[i]);
    mem_free(list->at);
}

/* ---- operands --------------------------------------------------------------------------- */

static void complete_file(const char *path, struct completion *out)
{
    struct list list = {0};
    size_t n_folder = 0;
    list_files(path, &list, &n_folder);
    finish(&list, path, n_folder, "", out);
}

/* A name with blanks needs quotes. */
static void complete_quoted(const char *word, struct completion *out)
{
    const bool is_quoted = word[0] == '"';
    if (strpbrk(word + is_quoted, is_quoted ? "\"" : BLANKS) != NULL)
        return; /* the text after the file */
    complete_file(word + is_quoted, out);
    const size_t n = strlen(out->text);
    const bool needs_quotes = is_quoted || strpbrk(out->text, BLANKS) != NULL;
    if (out->n == 0 || !needs_quotes || n + 3 > sizeof out->text)
        return;
    memmove(out->text + 1, out->text, n + 1);
    out->text[0] = '"';
    if (out->n == 1 && out->text[n] != '/')
        memcpy(out->text + n + 1, "\"", 2);
}

static void complete_word(const struct chat_words *words, enum chat_operand operand,
                          const char *word, struct completion *out)
{
    struct list list = {0};
    if (strpbrk(word, BLANKS) != NULL)
        return;
    for (unsigned i = 0; operand == OPERAND_SETTING && words->setting(i) != NULL; i++)
        add_if(&list, words->setting(i), word, "");
    if (operand == OPERAND_SWITCH) {
        add_if(&list, "off", word, "");
        add_if(&list, "on", word, "");
    }
    finish(&list, "", 0, operand == OPERAND_SETTING ? " " : "", out);
}

static void complete_command(const struct chat_words *words, const char *word,
                             struct completion *out)
{
    struct list list = {0};
    enum chat_operand operand, found = OPERAND_NONE;
    for (unsigned i = 0; words->command(i, &operand) != NULL; i++)
        if (strncmp(words->command(i, &operand), word, strlen(word)) == 0) {
            add(&list, words->command(i, &operand), "");
            found = operand;
        }
    finish(&list, "", 0, found != OPERAND_NONE ? " " : "", out);
}

void chat_complete(const struct chat_words *words, const char *line, struct completion *out)
{
    *out = (struct completion){0};
    if (line[0] != '/' || strpbrk(line, "\r\n") != NULL)
        return;
    const size_t n_name = strcspn(line, BLANKS);
    if (line[n_name] == '\0') {
        out->from = 1;
        complete_command(words, line + 1, out);
        return;
    }
    out->from = n_name + strspn(line + n_name, BLANKS);
    enum chat_operand operand = OPERAND_NONE;
    for (unsigned i = 0;; i++) {
        const char *name = words->command(i, &operand);
        if (name == NULL)
            return;
        if (strlen(name) == n_name - 1 && strncmp(name, line + 1, n_name - 1) == 0)
            break;
    }
    if (operand == OPERAND_FILE)
        complete_file(line + out->from, out);
    else if (operand == OPERAND_QUOTED_FILE)
        complete_quoted(line + out->from, out);
    else
        complete_word(words, operand, line + out->from, out);
}

void chat_complete_clear(struct completion *out)
{
    mem_free(out->names);
    *out = (struct completion){0};
}
