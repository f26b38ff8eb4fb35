#include "apps/pull/store.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "apps/pull/gguf_name.h"

#define MANIFEST_BYTES (32u << 20)
#define PACK_BYTES ((size_t)1 << 30) /* of model.json: it has a checksum of every expert */

/* Writes A/B. Returns false if it is too long. */
static bool join(const char *a, const char *b, char out[LIMIT_PATH_BYTES])
{
    const int n = snprintf(out, LIMIT_PATH_BYTES, "%s/%s", a, b);
    return n > 0 && n < LIMIT_PATH_BYTES;
}

static bool has_file(const char *folder, const char *name)
{
    char path[LIMIT_PATH_BYTES];
    return join(folder, name, path) && plat_file_exists(path);
}

/* ---- manifests -------------------------------------------------------------------------- */

json_t *store_manifest(const char *path)
{
    char file[LIMIT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    if (!join(path, STORE_WORK "/" STORE_MANIFEST, file) || !plat_file_exists(file) ||
        plat_read_file(file, MANIFEST_BYTES, &text, &bytes, NULL) != 0)
        return NULL;
    json_t *root = json_loadb(text, bytes, 0, NULL);
    mem_free(text);
    return root;
}

void store_progress(const char *path, uint64_t *there, uint64_t *all)
{
    json_t *root = store_manifest(path), *entry;
    size_t i;
    *there = *all = 0;
    json_array_foreach(json_object_get(root, "files"), i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        const uint64_t bytes = (uint64_t)json_integer_value(json_object_get(entry, "bytes"));
        char file[LIMIT_PATH_BYTES];
        struct plat_file_info info;
        *all += bytes;
        if (name != NULL && join(path, name, file) && plat_file_info(file, &info) &&
            info.is_file && info.bytes == bytes)
            *there += bytes;
    }
    json_decref(root);
}

/* ---- paths ------------------------------------------------------------------------------ */

bool store_path(const struct pull_env *env, const struct model_name *name,
                char out[LIMIT_PATH_BYTES])
{
    char folder[MODEL_FOLDER_BYTES];
    model_name_folder(name, folder);
    return join(env->models, folder, out);
}

bool store_pack_source(const char *dst, const char *name, char out[LIMIT_PATH_BYTES])
{
    char folder[LIMIT_PATH_BYTES], clean[LIMIT_PATH_BYTES];
    (void)snprintf(clean, sizeof clean, "%s", dst);
    for (size_t n = strlen(clean); n > 1 && clean[n - 1] == '/'; n--)
        clean[n - 1] = '\0';
    path_folder(clean, folder);
    const int n = snprintf(out, LIMIT_PATH_BYTES, "%s/.pull-%s/%s", folder, path_base(clean),
                           name);
    return n > 0 && n < LIMIT_PATH_BYTES;
}

/* Finds the first file of the GGUF model that `wanted` names. */
static bool find_gguf(const char *folder, const char *wanted, char out[LIMIT_PATH_BYTES])
{
    char best[256] = "";
    DIR *names = opendir(folder);
    for (const struct dirent *e = names != NULL ? readdir(names) : NULL; e != NULL;
         e = readdir(names))
        if (gguf_is_model(e->d_name) && gguf_matches(e->d_name, path_base(wanted)) &&
            (best[0] == '\0' || strcmp(e->d_name, best) < 0))
            (void)snprintf(best, sizeof best, "%s", e->d_name);
    if (names != NULL)
        (void)closedir(names);
    return best[0] != '\0' && join(folder, best, out);
}

/* Writes what of a folder is the model: the folder, or the GGUF file that the name asks for. */
static bool model_in(const char *folder, const struct model_name *name,
                     char out[LIMIT_PATH_BYTES])
{
    if (name->file[0] != '\0')
        return find_gguf(folder, name->file, out);
    (void)snprintf(out, LIMIT_PATH_BYTES, "%s", folder);
    return plat_file_exists(folder);
}

static bool read_ref(const char *repo, const char *revision, char commit[64])
{
    char path[LIMIT_PATH_BYTES], below[MODEL_REVISION_BYTES + 8], *text = NULL;
    size_t bytes = 0;
    (void)snprintf(below, sizeof below, "refs/%s", revision);
    if (!join(repo, below, path) || !plat_file_exists(path) ||
        plat_read_file(path, 4096, &text, &bytes, NULL) != 0)
        return false;
    const size_t n = strspn(text, "0123456789abcdef");
    const bool is_good = n > 0 && n < 64 && (text[n] == '\0' || text[n] == '\n');
    if (is_good)
        (void)snprintf(commit, 64, "%.*s", (int)n, text);
    mem_free(text);
    return is_good;
}

bool store_find_cached(const struct pull_env *env, const struct model_name *name,
                       const char *commit, char out[LIMIT_PATH_BYTES])
{
    char repo[LIMIT_PATH_BYTES], folder[MODEL_FOLDER_BYTES + 16], below[MODEL_REVISION_BYTES + 16];
    char of_ref[64];
    (void)snprintf(folder, sizeof folder, "models--%s--%s", name->org, name->name);
    if (env->hub_cache[0] == '\0' || !join(env->hub_cache, folder, repo))
        return false;
    if (commit == NULL)
        commit = read_ref(repo, name->revision, of_ref) ? of_ref : name->revision;
    (void)snprintf(below, sizeof below, "snapshots/%s", commit);
    return join(repo, below, out) && plat_file_exists(out);
}

bool store_pack_is_of(const char *pack, const struct model_name *name)
{
    char file[LIMIT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    if (!join(pack, "model.json", file) ||
        plat_read_file(file, PACK_BYTES, &text, &bytes, NULL) != 0)
        return false;
    json_t *root = json_loadb(text, bytes, 0, NULL);
    mem_free(text);
    const json_t *of = json_object_get(root, "provenance");
    const char *source = json_string_value(json_object_get(of, "source"));
    bool is_same = false;
    if (source != NULL && gguf_is_model(source)) /* a repository's name does not say which GGUF */
        is_same = name->file[0] == '\0' || gguf_matches(source, path_base(name->file));
    else if (source != NULL)
        is_same = name->file[0] == '\0' && strcmp(source, name->name) == 0;
    json_decref(root);
    return is_same;
}

enum part { PART_NONE, PART_FILES, PART_PACK };

/* Returns whether an unfinished download of the folder has files of this model. */
static bool is_begun(const char *folder, const struct model_name *name)
{
    if (name->file[0] == '\0')
        return has_file(folder, STORE_WORK);
    json_t *root = store_manifest(folder), *entry;
    bool is_listed = false;
    size_t i;
    json_array_foreach(json_object_get(root, "files"), i, entry) {
        const char *file = json_string_value(json_object_get(entry, "name"));
        is_listed = is_listed || (file != NULL && gguf_is_model(file) &&
                                  gguf_matches(file, path_base(name->file)));
    }
    json_decref(root);
    return is_listed;
}

/* Finds a model that was pulled. *part says what there is of one that is not complete. */
static bool find_pulled(const struct pull_env *env, const struct model_name *name,
                        char out[LIMIT_PATH_BYTES], enum part *part)
{
    char folder[LIMIT_PATH_BYTES], packed[LIMIT_PATH_BYTES + 16];
    uint64_t there = 0, all = 0;
    *part = PART_NONE;
    if (!store_path(env, name, folder))
        return false;
    if (plat_file_exists(folder)) {
        store_progress(folder, &there, &all);
        /* Several GGUF models of a folder are complete one by one. */
        if (model_in(folder, name, out) && (name->file[0] != '\0' || there == all) &&
            (all > 0 || !has_file(folder, STORE_WORK)))
            return true;
        *part = is_begun(folder, name) ? PART_FILES : PART_NONE;
    }
    (void)snprintf(packed, sizeof packed, "%s" STORE_PACKED ".partial", folder);
    if (*part == PART_NONE && plat_file_exists(packed))
        *part = PART_PACK;
    (void)snprintf(packed, sizeof packed, "%s" STORE_PACKED, folder);
    if (strlen(packed) >= LIMIT_PATH_BYTES || !has_file(packed, "model.json") ||
        (name->file[0] != '\0' && !store_pack_is_of(packed, name)))
        return false;
    (void)snprintf(out, LIMIT_PATH_BYTES, "%s", packed);
    return true;
}

int store_resolve(const char *text, char buffer[LIMIT_PATH_BYTES], const char **path,
                  struct fm_error *err)
{
    struct pull_env env;
    struct model_name name;
    char cached[LIMIT_PATH_BYTES];
    enum part part = PART_NONE;
    *path = text;
    if (plat_file_exists(text) || model_name_parse(text, "", &name, NULL) != 0 ||
        name.url[0] != '\0')
        return 0;
    if (pull_env_folders(&env, err) != 0) /* without HOME it is a path that does not exist */
        return pull_env_has_models() ? FM_ERR_ARG : 0;
    *path = buffer;
    if (find_pulled(&env, &name, buffer, &part))
        return 0;
    if (store_find_cached(&env, &name, NULL, cached) && model_in(cached, &name, buffer))
        return 0;
    *path = text;
    if (part != PART_NONE)
        return err_set(err, FM_ERR_ARG, "'%s' was pulled in part; 'flashmoe pull %s%s' continues",
                       text, text, part == PART_PACK ? " --pack" : "");
    return err_set(err, FM_ERR_ARG, "'%s' is no file and no model that was pulled; "
                   "'flashmoe pull %s' downloads it, 'flashmoe list' shows what is here", text,
                   text);
}

/* ---- a model's folder ------------------------------------------------------------------- */

/* Creates the folder and all those above it. */
static int make_folders(const char *path, struct fm_error *err)
{
    char part[LIMIT_PATH_BYTES];
    int rc = 0;
    for (const char *slash = strchr(path + 1, '/'); rc == 0; slash = strchr(slash + 1, '/')) {
        const size_t n = slash != NULL ? (size_t)(slash - path) : strlen(path);
        (void)snprintf(part, sizeof part, "%.*s", (int)n, path);
        if (!plat_file_exists(part))
            rc = plat_make_dir(part, err);
        if (slash == NULL)
            break;
    }
    return rc;
}

static int begin(struct store_dir *d, const char *path, struct fm_error *err)
{
    d->dir.fd = d->work.fd = -1;
    (void)snprintf(d->path, sizeof d->path, "%s", path);
    return join(path, STORE_WORK, d->work_path)
               ? 0
               : err_set(err, FM_ERR_ARG, "the path '%.200s...' is too long", path);
}

static int open_locked(struct store_dir *d, struct fm_error *err)
{
    int rc = plat_dir_open(d->path, PLAT_OWN_LINK, &d->dir, err);
    if (rc == 0)
        rc = plat_dir_check_own(&d->dir, err);
    if (rc == 0)
        rc = plat_dir_lock(&d->dir, err);
    return rc;
}

static int open_work(struct store_dir *d, struct fm_error *err)
{
    const int rc = plat_dir_open_in(&d->dir, STORE_WORK, d->work_path, &d->work, err);
    return rc != 0 ? rc : plat_dir_check_own(&d->work, err);
}

int store_dir_open(struct store_dir *d, const char *path, struct fm_error *err)
{
    int rc = begin(d, path, err);
    if (rc == 0)
        rc = make_folders(path, err);
    if (rc == 0)
        rc = open_locked(d, err);
    if (rc == 0)
        rc = plat_dir_make(&d->dir, STORE_WORK, err);
    if (rc == 0)
        rc = open_work(d, err);
    if (rc != 0)
        store_dir_close(d);
    return rc;
}

int store_dir_take(struct store_dir *d, const char *path, struct fm_error *err)
{
    int rc = begin(d, path, err);
    if (rc == 0)
        rc = open_locked(d, err);
    if (rc == 0 && has_file(path, STORE_WORK))
        rc = open_work(d, err);
    if (rc != 0)
        store_dir_close(d);
    return rc;
}

int store_dir_look(struct store_dir *d, const char *path, struct fm_error *err)
{
    d->dir.fd = d->work.fd = -1;
    (void)snprintf(d->path, sizeof d->path, "%s", path);
    return plat_dir_open(d->path, PLAT_OWN_LINK, &d->dir, err);
}

void store_dir_close(struct store_dir *d)
{
    plat_dir_close(&d->work);
    plat_dir_close(&d->dir);
}
