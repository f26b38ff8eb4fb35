#include "apps/pull/model_name.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/path.h"

#define EXPECTED "expected ORG/NAME, ORG/NAME:FILE for one GGUF of a repository, or the URL of a " \
                 "GGUF file"

/* ---- words ------------------------------------------------------------------------------ */

static bool is_word_character(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           c == '.' || c == '_' || c == '-';
}

bool model_word_is_good(const char *word)
{
    const size_t n = strlen(word);
    if (n == 0 || n >= MODEL_WORD_BYTES || word[0] == '.' || word[0] == '-')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_word_character(word[i]))
            return false;
    return strstr(word, "..") == NULL;
}

static bool is_revision(const char *text)
{
    const size_t n = strlen(text);
    if (n == 0 || n >= MODEL_REVISION_BYTES || text[0] == '.' || text[0] == '-' ||
        text[0] == '/' || text[n - 1] == '/')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_word_character(text[i]) && text[i] != '/')
            return false;
    return strstr(text, "..") == NULL && strstr(text, "//") == NULL;
}

bool model_file_is_good(const char *path)
{
    if (path[0] == '\0' || path[0] == '/' || strlen(path) >= MODEL_FILE_BYTES)
        return false;
    for (const char *c = path; *c != '\0'; c++)
        if ((unsigned char)*c < 32 || *c == 127 || *c == '\\')
            return false;
    for (const char *part = path; part != NULL;) {
        const char *slash = strchr(part, '/');
        const size_t n = slash != NULL ? (size_t)(slash - part) : strlen(part);
        if (n == 0 || n > 240 || part[0] == '.') /* hidden files are never part of a model */
            return false;
        part = slash != NULL ? slash + 1 : NULL;
    }
    return true;
}

/* ---- parsing ---------------------------------------------------------------------------- */

/* Copies n bytes as a string. Returns false if they do not fit. */
static bool copy(char *out, size_t out_bytes, const char *from, size_t n)
{
    if (n >= out_bytes)
        return false;
    memcpy(out, from, n);
    out[n] = '\0';
    return true;
}

/* Parses ORG/NAME[@REVISION][:FILE]. */
static bool parse_plain(const char *text, struct model_name *out)
{
    const char *slash = strchr(text, '/');
    *out = (struct model_name){.revision = MODEL_MAIN};
    if (slash == NULL || !copy(out->org, sizeof out->org, text, (size_t)(slash - text)))
        return false;
    const char *rest = slash + 1;
    const size_t n_name = strcspn(rest, "@:");
    if (!copy(out->name, sizeof out->name, rest, n_name))
        return false;
    rest += n_name;
    if (*rest == '@') {
        const size_t n = strcspn(++rest, ":");
        if (!copy(out->revision, sizeof out->revision, rest, n))
            return false;
        rest += n;
    }
    if (*rest == ':' && (!copy(out->file, sizeof out->file, rest + 1, strlen(rest + 1)) ||
                         !model_file_is_good(out->file)))
        return false;
    return model_word_is_good(out->org) && model_word_is_good(out->name) &&
           is_revision(out->revision);
}

bool model_name_is_plain(const char *text)
{
    struct model_name name;
    return parse_plain(text, &name);
}

/* Returns the text after a page of the hub such as "https://huggingface.co/", or NULL. */
static const char *after_hub(const char *text, const char *endpoint)
{
    static const char *const hubs[] = {"https://huggingface.co", "https://hf.co",
                                       "https://www.huggingface.co", "huggingface.co", "hf.co"};
    for (size_t i = 0; i <= sizeof hubs / sizeof hubs[0]; i++) {
        const char *hub = i > 0 ? hubs[i - 1] : endpoint;
        const size_t n = strlen(hub);
        if (n > 0 && strncasecmp(text, hub, n) == 0 && text[n] == '/')
            return text + n + 1;
    }
    return NULL;
}

/* Parses the path of a page: ORG/NAME, ORG/NAME/tree/REVISION or
 * ORG/NAME/resolve/REVISION/FILE (also blob, raw). */
static bool parse_page(const char *text, struct model_name *out)
{
    char path[MODEL_URL_BYTES];
    const size_t n = strcspn(text, "?#");
    if (!copy(path, sizeof path, text, n))
        return false;
    for (size_t i = strlen(path); i > 0 && path[i - 1] == '/'; i--)
        path[i - 1] = '\0';
    char *second = strchr(path, '/');
    char *kind = second != NULL ? strchr(second + 1, '/') : NULL;
    if (kind == NULL)
        return parse_plain(path, out);
    *kind++ = '\0';
    char *revision = strchr(kind, '/');
    if (!parse_plain(path, out) || revision == NULL)
        return false;
    *revision++ = '\0';
    if (strcmp(kind, "tree") == 0)
        return copy(out->revision, sizeof out->revision, revision, strlen(revision)) &&
               is_revision(out->revision);
    if (strcmp(kind, "resolve") != 0 && strcmp(kind, "blob") != 0 && strcmp(kind, "raw") != 0)
        return false;
    char *file = strchr(revision, '/');
    if (file == NULL)
        return false;
    *file++ = '\0';
    return copy(out->revision, sizeof out->revision, revision, strlen(revision)) &&
           copy(out->file, sizeof out->file, file, strlen(file)) &&
           is_revision(out->revision) && model_file_is_good(out->file);
}

/* Names a file elsewhere by its host and its own name: "example.org/model". */
static int parse_url(const char *text, struct model_name *out, struct fm_error *err)
{
    const char *host = strstr(text, "://") + 3;
    const size_t n_host = strcspn(host, "/?#"), n_path = strcspn(host + n_host, "?#");
    char path[MODEL_URL_BYTES];
    *out = (struct model_name){.revision = MODEL_MAIN};
    if (strlen(text) >= sizeof out->url || !copy(path, sizeof path, host + n_host, n_path))
        return err_set(err, FM_ERR_ARG, "the URL is longer than %d bytes", MODEL_URL_BYTES - 1);
    (void)snprintf(out->url, sizeof out->url, "%s", text);
    if (memchr(host, '@', n_host) != NULL)
        return err_set(err, FM_ERR_ARG, "the URL has a user name in it: give it without one");
    const char *file = path_base(path);
    const size_t n_file = strlen(file), n_suffix = strlen(".gguf");
    if (n_file <= n_suffix || strcasecmp(file + n_file - n_suffix, ".gguf") != 0 ||
        !model_word_is_good(file))
        return err_set(err, FM_ERR_ARG, "'%.200s' is no name of a GGUF file; " EXPECTED, file);
    for (size_t i = 0; i < n_host && i + 1 < sizeof out->org; i++)
        out->org[i] = is_word_character(host[i]) ? host[i] : '_';
    if (!model_word_is_good(out->org) ||
        !copy(out->name, sizeof out->name, file, n_file - n_suffix))
        return err_set(err, FM_ERR_ARG, "'%.200s' cannot be the name of a folder; " EXPECTED, text);
    (void)snprintf(out->file, sizeof out->file, "%s", file);
    return 0;
}

int model_name_parse(const char *text, const char *endpoint, struct model_name *out,
                     struct fm_error *err)
{
    const char *page = after_hub(text, endpoint);
    const bool is_url = strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
    if (page == NULL && is_url)
        return parse_url(text, out, err);
    if (page != NULL ? parse_page(page, out) : parse_plain(text, out))
        return 0;
    return err_set(err, FM_ERR_ARG, "'%.200s' is not the name of a model; " EXPECTED, text);
}

/* ---- writing ---------------------------------------------------------------------------- */

void model_name_folder(const struct model_name *name, char out[MODEL_FOLDER_BYTES])
{
    int n = snprintf(out, MODEL_FOLDER_BYTES, "%s/%s", name->org, name->name);
    if (strcmp(name->revision, MODEL_MAIN) == 0)
        return;
    (void)snprintf(out + n, MODEL_FOLDER_BYTES - (size_t)n, "@%s", name->revision);
    for (char *c = out + n; *c != '\0'; c++)
        *c = *c == '/' ? '~' : *c; /* one folder for a branch such as refs/pr/1 */
}

void model_name_text(const struct model_name *name, char out[MODEL_TEXT_BYTES])
{
    const bool is_main = strcmp(name->revision, MODEL_MAIN) == 0;
    (void)snprintf(out, MODEL_TEXT_BYTES, "%s/%s%s%s%s%s", name->org, name->name,
                   is_main ? "" : "@", is_main ? "" : name->revision,
                   name->file[0] != '\0' ? ":" : "", name->file);
}
