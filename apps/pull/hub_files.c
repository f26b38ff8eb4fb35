#include "apps/pull/hub_files.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/path.h"
#include "apps/pull/gguf_name.h"

#define MAX_FILES 10000 /* some work grows with the square of it */
/* Larger than any disk of today; sums of sizes cannot overflow. */
#define MAX_FILE_BYTES ((json_int_t)1 << 46)

/* ---- answers ---------------------------------------------------------------------------- */

static bool is_hex(const char *text, size_t n)
{
    return text != NULL && strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

int hub_bad_answer(const char *url, const char *why, struct fm_error *err)
{
    return err_set(err, FM_ERR_FORMAT, "%.*s: the answer is not the hub's: %.300s",
                   (int)strcspn(url, "?#") < 300 ? (int)strcspn(url, "?#") : 300, url, why);
}

static int parse(const char *url, const char *text, size_t bytes, json_t **root,
                 struct fm_error *err)
{
    json_error_t why;
    *root = json_loadb(text, bytes, 0, &why);
    return *root != NULL ? 0 : hub_bad_answer(url, why.text, err);
}

int hub_read_commit(const char *url, const char *text, size_t bytes, struct hub_repo *repo,
                    struct fm_error *err)
{
    json_t *root;
    int rc = parse(url, text, bytes, &root, err);
    if (rc != 0)
        return rc;
    const char *sha = json_string_value(json_object_get(root, "sha"));
    if (is_hex(sha, HUB_COMMIT_BYTES - 1))
        (void)snprintf(repo->commit, sizeof repo->commit, "%s", sha);
    else
        rc = hub_bad_answer(url, "'sha' is no commit", err);
    json_decref(root);
    return rc;
}

/* Returns whether a part of the path begins with a dot, as in .gitattributes. */
static bool is_hidden(const char *path)
{
    return (path[0] == '.' && path[1] != '.') ||
           (strstr(path, "/.") != NULL && strstr(path, "/..") == NULL);
}

static int add_file(struct hub_repo *repo, const char *url, const json_t *entry,
                    struct fm_error *err)
{
    const char *type = json_string_value(json_object_get(entry, "type"));
    const char *path = json_string_value(json_object_get(entry, "path"));
    const char *id = json_string_value(json_object_get(entry, "oid"));
    const json_t *size = json_object_get(entry, "size"), *lfs = json_object_get(entry, "lfs");
    const char *sha256 = json_string_value(json_object_get(lfs, "oid"));
    if (type == NULL || path == NULL)
        return hub_bad_answer(url, "an entry has no type or no path", err);
    if (strcmp(type, "file") != 0 || is_hidden(path))
        return 0;
    if (!model_file_is_good(path))
        return err_set(err, FM_ERR_FORMAT, "the hub lists a file '%.200s', whose name cannot be "
                       "used: nothing was downloaded", path);
    if (json_is_integer(json_object_get(lfs, "size")))
        size = json_object_get(lfs, "size");
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        json_integer_value(size) > MAX_FILE_BYTES)
        return hub_bad_answer(url, "a file has no size, or one that cannot be", err);
    if ((lfs != NULL && !is_hex(sha256, 64)) || (lfs == NULL && !is_hex(id, 40)))
        return hub_bad_answer(url, "a file has no digest", err);
    if (repo->n_files == MAX_FILES)
        return hub_bad_answer(url, "there are too many files", err);
    int rc = mem_grow((void **)&repo->files, &repo->capacity, repo->n_files + 1,
                      sizeof *repo->files, "the files", err);
    if (rc != 0)
        return rc;
    struct hub_file *file = &repo->files[repo->n_files++];
    *file = (struct hub_file){.bytes = (uint64_t)json_integer_value(size)};
    (void)snprintf(file->path, sizeof file->path, "%s", path);
    (void)snprintf(lfs != NULL ? file->sha256 : file->git_id, SHA_HEX_BYTES, "%s",
                   lfs != NULL ? sha256 : id);
    return 0;
}

int hub_read_page(const char *url, const char *text, size_t bytes, struct hub_repo *repo,
                  struct fm_error *err)
{
    json_t *root, *entry;
    size_t i;
    int rc = parse(url, text, bytes, &root, err);
    if (rc == 0 && !json_is_array(root))
        rc = hub_bad_answer(url, "it is no list of files", err);
    json_array_foreach(root, i, entry) {
        rc = rc != 0 ? rc : add_file(repo, url, entry, err);
    }
    json_decref(root);
    return rc;
}

void hub_clear(struct hub_repo *repo)
{
    mem_free(repo->files);
    *repo = (struct hub_repo){0};
}

/* ---- choosing --------------------------------------------------------------------------- */

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), n_suffix = strlen(suffix);
    return n > n_suffix && strcasecmp(name + n - n_suffix, suffix) == 0;
}

static const struct hub_file *find(const struct hub_repo *repo, const char *path)
{
    for (size_t i = 0; i < repo->n_files; i++)
        if (strcmp(repo->files[i].path, path) == 0)
            return &repo->files[i];
    return NULL;
}

/* Returns whether the file makes a folder look like a packed model, or like one half packed. */
static bool is_of_pack(const char *path)
{
    static const char *const names[] = {"model.json", "plan.json", "disks.json"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcasecmp(path, names[i]) == 0)
            return true;
    return false;
}

/* Returns whether a checkpoint's folder needs the file. Folders in it hold other forms of the same
 * weights. */
static bool is_of_checkpoint(const char *path, bool has_model_files)
{
    static const char *const suffixes[] = {".json", ".jinja", ".model", ".tiktoken", ".txt"};
    if (strchr(path, '/') != NULL || is_of_pack(path))
        return false;
    if (ends_with(path, ".safetensors"))
        return !has_model_files || strncmp(path, "model", 5) == 0;
    if (strncasecmp(path, "LICENSE", 7) == 0 || strncasecmp(path, "NOTICE", 6) == 0 ||
        strcmp(path, "README.md") == 0)
        return true;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        if (ends_with(path, suffixes[i]))
            return true;
    return false;
}

static bool choose_checkpoint(struct hub_repo *repo)
{
    bool has_weights = false, has_model_files = false;
    for (size_t i = 0; i < repo->n_files; i++) {
        const char *path = repo->files[i].path;
        const bool is_weights = ends_with(path, ".safetensors") && strchr(path, '/') == NULL;
        has_weights = has_weights || is_weights;
        has_model_files = has_model_files || (is_weights && strncmp(path, "model", 5) == 0);
    }
    if (!has_weights || find(repo, "config.json") == NULL)
        return false;
    for (size_t i = 0; i < repo->n_files; i++)
        repo->files[i].is_chosen = is_of_checkpoint(repo->files[i].path, has_model_files);
    return true;
}

/* Appends "STEM (12.3 GB)" to a list for a message. */
static void add_choice(char *list, size_t size, const char *stem, uint64_t bytes)
{
    const size_t used = strlen(list);
    (void)snprintf(list + used, size - used, "%s%s (%.1f GB)", used > 0 ? ", " : "", stem,
                   (double)bytes * 1e-9);
}

static bool is_candidate(const struct hub_file *file, const char *wanted)
{
    return gguf_is_model(file->path) && (wanted[0] == '\0' || gguf_matches(file->path, wanted));
}

/* Chooses the set of the first GGUF that fits. Returns the number of sets that fit, and lists
 * them. */
static unsigned choose_gguf(struct hub_repo *repo, const char *wanted, char *list, size_t size)
{
    unsigned n_sets = 0;
    list[0] = '\0';
    for (size_t i = 0; i < repo->n_files; i++) {
        char stem[MODEL_FILE_BYTES], other[MODEL_FILE_BYTES];
        unsigned number;
        uint64_t bytes = 0;
        if (!is_candidate(&repo->files[i], wanted))
            continue;
        (void)gguf_set(repo->files[i].path, &number);
        /* A set counts once, whichever of its files was named. */
        if (number > 1 && wanted[0] == '\0')
            continue;
        gguf_stem(repo->files[i].path, stem, sizeof stem);
        for (size_t k = 0; k < repo->n_files; k++) {
            gguf_stem(repo->files[k].path, other, sizeof other);
            const bool is_in = gguf_is_model(repo->files[k].path) && strcmp(stem, other) == 0;
            if (is_in && k < i && is_candidate(&repo->files[k], wanted) && wanted[0] != '\0')
                stem[0] = '\0'; /* counted already */
            bytes += is_in ? repo->files[k].bytes : 0;
            if (is_in && n_sets == 0 && stem[0] != '\0')
                repo->files[k].is_chosen = true;
        }
        if (stem[0] == '\0')
            continue;
        n_sets++;
        add_choice(list, size, stem, bytes);
    }
    return n_sets;
}

/* Refuses a set that lacks files. */
static int check_set(const struct hub_repo *repo, struct fm_error *err)
{
    unsigned n = 0, n_expected = 0, number;
    for (size_t i = 0; i < repo->n_files; i++)
        if (repo->files[i].is_chosen) {
            n++;
            n_expected = gguf_set(repo->files[i].path, &number);
        }
    return n == n_expected ? 0 : err_set(err, FM_ERR_FORMAT, "the repository has %u of the %u "
                                         "files of this GGUF model", n, n_expected);
}

int hub_choose(struct hub_repo *repo, const struct model_name *name, struct fm_error *err)
{
    char list[FM_ERROR_BYTES / 2], text[MODEL_FOLDER_BYTES];
    model_name_folder(name, text);
    if (name->file[0] == '\0' && choose_checkpoint(repo))
        return 0;
    const unsigned n_sets = choose_gguf(repo, name->file, list, sizeof list);
    if (n_sets == 1)
        return check_set(repo, err);
    if (n_sets > 1)
        return err_set(err, FM_ERR_ARG, "'%s' has %u GGUF models%s%s; name one, as in "
                       "'flashmoe pull %s:Q4_K_M': %s", text, n_sets,
                       name->file[0] != '\0' ? " that fit " : "", name->file, text, list);
    if (name->file[0] == '\0')
        return err_set(err, FM_ERR_ARG, "'%s' has neither config.json with *.safetensors nor a "
                       "GGUF file: there is nothing that this program can run", text);
    (void)choose_gguf(repo, "", list, sizeof list);
    return err_set(err, FM_ERR_ARG, "'%s' has no GGUF model '%s'%s%s", text, name->file,
                   list[0] != '\0' ? "; it has: " : "", list);
}
