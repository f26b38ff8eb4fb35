#include "apps/pull/pull.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "apps/pull/gguf_name.h"
#include "apps/pull/work_file.h"

#define HASH_BYTES (1u << 20)

/* ---- the files of a model --------------------------------------------------------------- */

static int list_new(struct pull_list *list, size_t n, struct fm_error *err)
{
    list->items = mem_new(n, sizeof *list->items, "the files", err);
    list->names = mem_new(n, sizeof *list->names, "the files", err);
    list->urls = mem_new(n, sizeof *list->urls, "the files", err);
    return list->items != NULL && list->names != NULL && list->urls != NULL ? 0 : FM_ERR_NOMEM;
}

void pull_list_clear(struct pull_list *list)
{
    for (size_t i = 0; list->urls != NULL && i < list->n; i++)
        mem_free(list->urls[i]);
    mem_free(list->urls);
    mem_free(list->names);
    mem_free(list->items);
    *list = (struct pull_list){0};
}

/* Adds a file under its name without folders. */
static int add(struct pull_list *list, const char *path, const char *url, uint64_t bytes,
               struct fm_error *err)
{
    const char *name = path_base(path);
    for (size_t i = 0; i < list->n; i++)
        if (strcmp(list->names[i], name) == 0)
            return err_set(err, FM_ERR_FORMAT, "the model has two files with the name '%s'", name);
    struct part_item *item = &list->items[list->n];
    (void)snprintf(list->names[list->n], PARTS_NAME_BYTES, "%s", name);
    item->name = list->names[list->n];
    item->bytes = bytes;
    list->bytes += bytes;
    list->urls[list->n] = mem_strdup(url, err);
    return list->urls[list->n++] != NULL ? 0 : FM_ERR_NOMEM;
}

/* Small files come first: they say whether the model can be used at all. */
static int by_size(const void *a, const void *b)
{
    const struct hub_file *x = *(const struct hub_file *const *)a;
    const struct hub_file *y = *(const struct hub_file *const *)b;
    const bool is_small_x = x->bytes < 64u << 20, is_small_y = y->bytes < 64u << 20;
    return is_small_x != is_small_y ? is_small_y - is_small_x : strcmp(x->path, y->path);
}

static int list_repo(const struct pull_options *o, const struct hub_repo *repo,
                     struct pull_list *list, struct fm_error *err)
{
    char url[MODEL_URL_BYTES];
    size_t n = 0;
    const struct hub_file **chosen = mem_new(repo->n_files, sizeof *chosen, "the files", err);
    int rc = chosen == NULL ? FM_ERR_NOMEM : list_new(list, repo->n_files, err);
    for (size_t i = 0; rc == 0 && i < repo->n_files; i++)
        if (repo->files[i].is_chosen)
            chosen[n++] = &repo->files[i];
    if (rc == 0)
        qsort(chosen, n, sizeof *chosen, by_size);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (!hub_url(o->web->env, o->name, repo->commit, chosen[i]->path, url))
            rc = err_set(err, FM_ERR_FORMAT, "'%s': the name is too long", chosen[i]->path);
        if (rc == 0)
            rc = add(list, chosen[i]->path, url, chosen[i]->bytes, err);
        if (rc == 0) {
            struct part_item *item = &list->items[list->n - 1];
            memcpy(item->sha256, chosen[i]->sha256, sizeof item->sha256);
            memcpy(item->git_id, chosen[i]->git_id, sizeof item->git_id);
        }
    }
    (void)snprintf(list->commit, sizeof list->commit, "%s", repo->commit);
    mem_free(chosen);
    return rc;
}

/* Lists the file at a URL, or all files of its set. */
static int list_url(const struct pull_options *o, struct pull_list *list, struct fm_error *err)
{
    const char *url = o->name->url, *file = strstr(url, o->name->file);
    unsigned number;
    const unsigned n = gguf_set(o->name->file, &number);
    int rc = list_new(list, n, err);
    if (rc == 0 && n > 1 && o->sha256 != NULL)
        rc = err_set(err, FM_ERR_ARG, "--digest: '%s' is one of %u files", o->name->file, n);
    for (unsigned i = 1; rc == 0 && i <= n; i++) {
        char path[MODEL_FILE_BYTES], text[MODEL_URL_BYTES], etag[WEB_ETAG_BYTES], digits[16];
        uint64_t bytes;
        (void)snprintf(path, sizeof path, "%s", o->name->file);
        (void)snprintf(digits, sizeof digits, "%05u", i);
        if (n > 1) /* -00001-of-00003.gguf */
            memcpy(path + strlen(path) - 19, digits, 5);
        (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(file - url), url, path,
                       file + strlen(o->name->file));
        rc = web_probe(o->web, text, &bytes, etag, err);
        if (rc == 0)
            rc = add(list, path, text, bytes, err);
        if (rc != 0)
            break;
        struct part_item *item = &list->items[list->n - 1];
        (void)snprintf(item->version, sizeof item->version, "%s", etag);
        if (o->sha256 != NULL)
            (void)snprintf(item->sha256, sizeof item->sha256, "%s", o->sha256);
    }
    return rc;
}

int pull_list_get(const struct pull_options *o, struct pull_list *list, struct fm_error *err)
{
    struct hub_repo repo = {0};
    *list = (struct pull_list){0};
    if (o->name->url[0] != '\0')
        return list_url(o, list, err);
    int rc = hub_list(o->web, o->name, &repo, err);
    if (rc == 0)
        rc = hub_choose(&repo, o->name, err);
    if (rc == 0)
        rc = list_repo(o, &repo, list, err);
    hub_clear(&repo);
    return rc;
}

bool pull_is_cached(const struct pull_options *o, const struct pull_list *list,
                    char path[LIMIT_PATH_BYTES])
{
    char file[LIMIT_PATH_BYTES], real[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    if (list->commit[0] == '\0' || !store_find_cached(o->web->env, o->name, list->commit, path))
        return false;
    for (size_t i = 0; i < list->n; i++) {
        const int n = snprintf(file, sizeof file, "%s/%s", path, list->names[i]);
        if (n <= 0 || n >= LIMIT_PATH_BYTES || !plat_real_path(file, real) ||
            !plat_file_info(real, &info) || !info.is_file || info.bytes != list->items[i].bytes)
            return false;
    }
    return true;
}

/* ---- what is there already -------------------------------------------------------------- */

/* Returns the manifest's entry of a file. */
static const json_t *find_entry(const json_t *manifest, const char *name)
{
    const json_t *entry;
    size_t i;
    json_array_foreach(json_object_get(manifest, "files"), i, entry) {
        const char *its = json_string_value(json_object_get(entry, "name"));
        if (its != NULL && strcmp(its, name) == 0)
            return entry;
    }
    return NULL;
}

static const char *digest_of(const struct part_item *item)
{
    return item->sha256[0] != '\0' ? item->sha256 : item->git_id;
}

/* Returns whether an earlier run has downloaded exactly this file. */
static bool is_entry(const json_t *entry, const struct part_item *item)
{
    const char *digest = json_string_value(json_object_get(entry, "digest"));
    const char *version = json_string_value(json_object_get(entry, "version"));
    if (json_integer_value(json_object_get(entry, "bytes")) != (json_int_t)item->bytes)
        return false;
    if (digest_of(item)[0] != '\0')
        return digest != NULL && strcmp(digest, digest_of(item)) == 0;
    return version != NULL && version[0] != '\0' && strcmp(version, item->version) == 0;
}

static int hash_file(const struct plat_dir *dir, const struct part_item *item,
                     char hex[SHA_HEX_BYTES], struct fm_error *err)
{
    struct sha sha;
    uint64_t bytes = 0, at = 0;
    char head[48], *buffer = mem_new(HASH_BYTES, 1, "a buffer", err);
    int fd = -1, rc = buffer == NULL ? FM_ERR_NOMEM
                                     : plat_dir_read(dir, item->name, &fd, &bytes, err);
    const bool is_git = item->sha256[0] == '\0' && item->git_id[0] != '\0';
    sha_begin(&sha, is_git ? SHA_1 : SHA_256);
    const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)bytes);
    if (is_git)
        sha_add(&sha, head, (size_t)n + 1);
    for (; rc == 0 && at < bytes; at += HASH_BYTES) {
        const uint64_t step = bytes - at < HASH_BYTES ? bytes - at : HASH_BYTES;
        rc = plat_read_at(fd, item->name, buffer, step, at, err);
        if (rc == 0)
            sha_add(&sha, buffer, (size_t)step);
    }
    sha_hex(&sha, hex);
    plat_close(fd);
    mem_free(buffer);
    return rc;
}

/* A file that no manifest lists: it is taken if it has the right content, and never replaced. */
static int check_foreign(const struct plat_dir *dir, struct part_item *item,
                         const struct plat_file_info *info, struct fm_error *err)
{
    int rc = 0;
    if (info->is_file && info->bytes == item->bytes && digest_of(item)[0] != '\0') {
        rc = hash_file(dir, item, item->found, err);
        item->is_done = rc == 0 && strcmp(item->found, digest_of(item)) == 0;
    }
    return rc != 0 || item->is_done
               ? rc
               : err_set(err, FM_ERR_ARG, "'%s/%s' exists and is not the file to download; move it "
                         "away or choose another folder", dir->path, item->name);
}

int pull_compare(const struct store_dir *d, struct pull_list *list, uint64_t *missing,
                 struct fm_error *err)
{
    json_t *manifest = store_manifest(d->path);
    int rc = 0;
    *missing = 0;
    for (size_t i = 0; rc == 0 && i < list->n; i++) {
        struct part_item *item = &list->items[i];
        const json_t *entry = find_entry(manifest, item->name);
        struct plat_file_info info;
        if (plat_dir_info(&d->dir, item->name, &info)) {
            if (!info.is_file || entry == NULL)
                rc = check_foreign(&d->dir, item, &info, err);
            else
                item->is_done = is_entry(entry, item) && info.bytes == item->bytes;
        }
        *missing += item->is_done ? 0 : item->bytes;
    }
    json_decref(manifest);
    return rc;
}

/* ---- downloading ------------------------------------------------------------------------ */

static json_t *entry_json(const struct part_item *item)
{
    const char *digest = item->found[0] != '\0' && digest_of(item)[0] == '\0' ? item->found
                                                                              : digest_of(item);
    return json_pack("{s:s, s:I, s:s, s:s}", "name", item->name, "bytes",
                     (json_int_t)item->bytes, "digest", digest, "version", item->version);
}

/* Adds the entries of other models of the folder, if their files are there. */
static void keep_others(const struct store_dir *d, const struct pull_list *list, json_t *files)
{
    json_t *was = store_manifest(d->path), *entry;
    size_t i;
    json_array_foreach(json_object_get(was, "files"), i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        struct plat_file_info info;
        bool is_listed = name == NULL || !plat_dir_info(&d->dir, name, &info);
        for (size_t k = 0; k < list->n; k++)
            is_listed = is_listed || strcmp(list->names[k], name) == 0;
        if (!is_listed)
            (void)json_array_append(files, entry);
    }
    json_decref(was);
}

static int write_manifest(const struct pull_options *o, const struct store_dir *d,
                          const struct pull_list *list, struct fm_error *err)
{
    char text[MODEL_TEXT_BYTES], url[MODEL_URL_BYTES];
    json_t *files = json_array();
    for (size_t i = 0; i < list->n; i++)
        (void)json_array_append_new(files, entry_json(&list->items[i]));
    keep_others(d, list, files);
    model_name_text(o->name, text);
    json_t *root = json_pack("{s:i, s:s, s:s, s:s, s:o}", "version", 1, "model", text, "commit",
                             list->commit, "from",
                             o->name->url[0] != '\0' ? web_shown(o->name->url, url)
                                                     : o->web->env->endpoint,
                             "files", files);
    const int rc = work_file_write(&d->work, STORE_MANIFEST, root, true, err);
    json_decref(root);
    return rc;
}

/* Removes files of older content. They must be gone when the manifest has the new digests: after an
 * interruption it vouches for every file that is there. */
static int remove_old(const struct store_dir *d, const struct pull_list *list,
                      struct fm_error *err)
{
    int rc = 0;
    bool is_changed = false;
    for (size_t i = 0; rc == 0 && i < list->n; i++) {
        struct plat_file_info info;
        if (list->items[i].is_done || !plat_dir_info(&d->dir, list->names[i], &info))
            continue;
        rc = plat_dir_remove(&d->dir, list->names[i], &info, err);
        is_changed = true;
    }
    return rc == 0 && is_changed ? plat_dir_sync(&d->dir, err) : rc;
}

int pull_begin(const struct pull_options *o, const struct store_dir *d,
               const struct pull_list *list, struct fm_error *err)
{
    const int rc = remove_old(d, list, err);
    return rc != 0 ? rc : write_manifest(o, d, list, err);
}

int pull_fetch(const struct pull_options *o, const struct store_dir *d, struct pull_list *list,
               struct fm_error *err)
{
    const struct fetch_options options = {.web = o->web, .dir = &d->dir, .work = &d->work,
                                          .n_connections = o->n_connections,
                                          .progress = o->progress,
                                          .progress_ctx = o->progress_ctx};
    int rc = pull_begin(o, d, list, err);
    if (rc == 0)
        rc = fetch_run(&options, list->items, list->urls, list->n, err);
    /* Digests that nobody knew before are known now. */
    return rc != 0 ? rc : write_manifest(o, d, list, err);
}
