/* All models of the store and of huggingface_hub's cache, their sizes, and removing one. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "apps/pull/gguf_name.h"
#include "apps/pull/store.h"
#include "apps/pull/work_file.h"

#define MAX_DEPTH 8 /* of folders in a model's folder */

/* ---- names in order --------------------------------------------------------------------- */

struct names {
    char **names;
    size_t n, capacity;
};

static int add_name(void *ctx, const char *name, struct fm_error *err)
{
    struct names *names = ctx;
    int rc = mem_grow((void **)&names->names, &names->capacity, names->n + 1,
                      sizeof *names->names, "a folder's names", err);
    char *copy = rc == 0 ? mem_strdup(name, err) : NULL;
    if (copy == NULL)
        return FM_ERR_NOMEM;
    names->names[names->n++] = copy;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_clear(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        mem_free(names->names[i]);
    mem_free(names->names);
}

/* Lists a folder in order; a missing one is empty. */
static int names_of(const char *path, struct names *names, struct fm_error *err)
{
    struct plat_dir dir;
    *names = (struct names){0};
    if (!plat_file_exists(path))
        return 0;
    int rc = plat_dir_open(path, PLAT_ANY_LINK, &dir, err);
    if (rc == 0)
        rc = plat_dir_each_name(&dir, add_name, names, err);
    plat_dir_close(&dir);
    if (rc == 0 && names->n > 1)
        qsort(names->names, names->n, sizeof *names->names, by_name);
    return rc;
}

/* ---- one folder ------------------------------------------------------------------------- */

struct listing {
    store_model_fn *fn;
    void *ctx;
    const struct names *files;
    const char *folder;
};

static uint64_t file_bytes(const char *folder, const char *name)
{
    char path[LIMIT_PATH_BYTES], real[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    /* Files of huggingface_hub's cache are links. */
    return n > 0 && n < LIMIT_PATH_BYTES && plat_real_path(path, real) &&
                   plat_file_info(real, &info) && info.is_file
               ? info.bytes
               : 0;
}

/* Calls fn for each GGUF model of the folder. */
static int list_gguf(const struct listing *l, const char *name, const char *state,
                     struct fm_error *err)
{
    char stem[512], other[512], text[1024], path[LIMIT_PATH_BYTES];
    unsigned n_sets = 0, number;
    int rc = 0;
    for (size_t i = 0; i < l->files->n; i++)
        n_sets += gguf_is_model(l->files->names[i]) &&
                  (gguf_set(l->files->names[i], &number) == 1 || number == 1);
    for (size_t i = 0; rc == 0 && i < l->files->n; i++) {
        const char *file = l->files->names[i];
        uint64_t bytes = 0;
        if (!gguf_is_model(file) || (gguf_set(file, &number) > 1 && number > 1))
            continue;
        gguf_stem(file, stem, sizeof stem);
        for (size_t k = 0; k < l->files->n; k++) {
            gguf_stem(l->files->names[k], other, sizeof other);
            bytes += gguf_is_model(l->files->names[k]) && strcmp(stem, other) == 0
                         ? file_bytes(l->folder, l->files->names[k])
                         : 0;
        }
        (void)snprintf(text, sizeof text, "%s%s%s", name, n_sets > 1 ? ":" : "",
                       n_sets > 1 ? stem : "");
        (void)snprintf(path, sizeof path, "%s/%.255s", l->folder, file);
        rc = l->fn(l->ctx, &(struct store_model){.name = text, .kind = "GGUF", .path = path,
                                                 .state = state, .bytes = bytes,
                                                 .all_bytes = bytes}, err);
    }
    return rc;
}

static bool has_name(const struct names *names, const char *name)
{
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->names[i], name) == 0)
            return true;
    return false;
}

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n > n_end && strcmp(text + n - n_end, end) == 0;
}

static bool has_weights(const struct names *names, bool *is_gguf)
{
    *is_gguf = false;
    for (size_t i = 0; i < names->n; i++) {
        if (ends_in(names->names[i], ".safetensors"))
            return true;
        *is_gguf = *is_gguf || gguf_is_model(names->names[i]);
    }
    return *is_gguf;
}

/* Returns whether it is a file of a packed model's weights. */
static bool is_packed_weights(const char *name)
{
    return strcmp(name, "dense.bin") == 0 ||
           (strncmp(name, "experts-", 8) == 0 && ends_in(name, ".bin"));
}

/* Returns whether the files are those of a model, complete or not. */
static bool holds_model(const struct names *files, bool *is_gguf)
{
    return has_weights(files, is_gguf) || has_name(files, "model.json") ||
           has_name(files, "plan.json") || has_name(files, STORE_WORK);
}

/* Calls fn for what a folder holds. */
static int list_folder(struct listing *l, const char *name, bool is_cache, struct fm_error *err)
{
    struct names files;
    uint64_t there = 0, all = 0;
    bool is_gguf;
    int rc = names_of(l->folder, &files, err);
    l->files = &files;
    const bool is_packed = has_name(&files, "model.json");
    const bool is_packing = !is_packed && has_name(&files, "plan.json");
    const bool is_model = holds_model(&files, &is_gguf);
    store_progress(l->folder, &there, &all);
    const bool is_part = !is_packed && (there < all || (all == 0 && has_name(&files, STORE_WORK)));
    for (size_t i = 0; all == 0 && i < files.n; i++)
        there += file_bytes(l->folder, files.names[i]);
    all = all > 0 ? all : there;
    const struct store_model model = {
        .name = name, .path = l->folder, .bytes = there, .all_bytes = all,
        .kind = is_packed || is_packing ? "packed" : is_gguf ? "GGUF" : "Hugging Face",
        .state = is_cache     ? "cache"
                 : is_packing ? "packing"
                 : is_part    ? "partial"
                              : "complete"};
    if (rc == 0 && is_model)
        rc = is_gguf && !is_part && !is_packed ? list_gguf(l, name, model.state, err)
                                               : l->fn(l->ctx, &model, err);
    names_clear(&files);
    return rc;
}

/* ---- all -------------------------------------------------------------------------------- */

static bool is_folder_name(const char *name)
{
    return name[0] != '.' && strpbrk(name, "\n\r\t ") == NULL;
}

static int list_store(const struct pull_env *env, struct listing *l, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], name[LIMIT_PATH_BYTES];
    struct names orgs, names;
    struct plat_file_info info;
    int rc = names_of(env->models, &orgs, err);
    for (size_t i = 0; rc == 0 && i < orgs.n; i++) {
        (void)snprintf(path, sizeof path, "%.3000s/%.255s", env->models, orgs.names[i]);
        if (!is_folder_name(orgs.names[i]) || !plat_file_info(path, &info) || !info.is_dir)
            continue;
        rc = names_of(path, &names, err);
        for (size_t k = 0; rc == 0 && k < names.n; k++) {
            char folder[LIMIT_PATH_BYTES];
            (void)snprintf(folder, sizeof folder, "%.3500s/%.255s", path, names.names[k]);
            (void)snprintf(name, sizeof name, "%.255s/%.255s", orgs.names[i], names.names[k]);
            char *end = strstr(name, STORE_PACKED ".partial");
            if (end != NULL)
                end[strlen(STORE_PACKED)] = '\0';
            for (char *c = strchr(name, '@'); c != NULL && *c != '\0'; c++)
                *c = *c == '~' ? '/' : *c;
            if (!is_folder_name(names.names[k]) || !plat_file_info(folder, &info) || !info.is_dir)
                continue;
            l->folder = folder;
            rc = list_folder(l, name, false, err);
        }
        names_clear(&names);
    }
    names_clear(&orgs);
    return rc;
}

/* Takes models--ORG--NAME apart. */
static bool cached_name(const char *folder, struct model_name *name)
{
    char text[2 * MODEL_WORD_BYTES + 8];
    if (strncmp(folder, "models--", 8) != 0 || strlen(folder) >= sizeof text)
        return false;
    (void)snprintf(text, sizeof text, "%s", folder + 8);
    char *dashes = strstr(text, "--");
    if (dashes == NULL)
        return false;
    *dashes = '/';
    memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    return model_name_is_plain(text) && model_name_parse(text, "", name, NULL) == 0;
}

static int list_cache(const struct pull_env *env, struct listing *l, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], text[MODEL_TEXT_BYTES];
    struct names repos;
    struct model_name name;
    int rc = env->hub_cache[0] != '\0' ? names_of(env->hub_cache, &repos, err)
                                       : names_of("/nonexistent", &repos, err);
    for (size_t i = 0; rc == 0 && i < repos.n; i++) {
        struct names files;
        bool is_gguf, has_model;
        if (!cached_name(repos.names[i], &name) || !store_find_cached(env, &name, NULL, path))
            continue;
        rc = names_of(path, &files, err);
        has_model = rc == 0 && has_weights(&files, &is_gguf);
        names_clear(&files);
        model_name_text(&name, text);
        l->folder = path;
        if (has_model)
            rc = list_folder(l, text, true, err);
    }
    names_clear(&repos);
    return rc;
}

int store_each(const struct pull_env *env, store_model_fn *fn, void *ctx, struct fm_error *err)
{
    struct listing l = {.fn = fn, .ctx = ctx};
    int rc = list_store(env, &l, err);
    return rc != 0 ? rc : list_cache(env, &l, err);
}

/* ---- disk space and removing ------------------------------------------------------------ */

struct walk {
    const struct plat_dir *dir;
    unsigned depth;
    bool removes;
    uint64_t bytes;
};

static int walk_dir(struct walk *w, const struct plat_dir *dir, unsigned depth,
                    struct fm_error *err);

static int walk_name(void *ctx, const char *name, struct fm_error *err)
{
    struct walk *w = ctx;
    const struct plat_dir *dir = w->dir;
    char path[LIMIT_PATH_BYTES];
    struct stat st;
    struct plat_dir below;
    if (fstatat(dir->fd, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return 0; /* it is gone already */
    w->bytes += (uint64_t)st.st_blocks * 512;
    if (!S_ISDIR(st.st_mode))
        return w->removes ? plat_dir_remove(dir, name, NULL, err) : 0;
    (void)snprintf(path, sizeof path, "%.3500s/%.255s", dir->path, name);
    if (w->depth == MAX_DEPTH)
        return err_set(err, FM_ERR_ARG, "'%s' has more folders in it than any model", path);
    int rc = plat_dir_open_in(dir, name, path, &below, err);
    const unsigned depth = w->depth;
    if (rc == 0)
        rc = walk_dir(w, &below, depth + 1, err);
    plat_dir_close(&below);
    w->dir = dir;
    w->depth = depth;
    return rc == 0 && w->removes ? plat_dir_remove_dir(dir, name, err) : rc;
}

/* Calls walk_name for the names, collected first: removing changes the folder. */
static int walk_dir(struct walk *w, const struct plat_dir *dir, unsigned depth,
                    struct fm_error *err)
{
    struct names names = {0};
    int rc = plat_dir_each_name(dir, add_name, &names, err);
    for (size_t i = 0; rc == 0 && i < names.n; i++) {
        w->dir = dir;
        w->depth = depth;
        rc = walk_name(w, names.names[i], err);
    }
    names_clear(&names);
    return rc;
}

uint64_t store_disk_bytes(const char *path)
{
    struct walk w = {0};
    struct plat_dir dir;
    struct stat st;
    if (stat(path, &st) != 0)
        return 0;
    if (!S_ISDIR(st.st_mode))
        return (uint64_t)st.st_blocks * 512;
    if (plat_dir_open(path, PLAT_ANY_LINK, &dir, NULL) == 0)
        (void)walk_dir(&w, &dir, 0, NULL); /* counts what can be read */
    plat_dir_close(&dir);
    return w.bytes;
}

/* Returns the round in which a name is removed. What makes the folder a model goes after the rest,
 * so that removing can be repeated after an interruption. Of these, the manifest and a pack's plan
 * go last: without them, nobody knows whose weights are left. */
static unsigned round_of(const char *name)
{
    if (strcmp(name, STORE_WORK) == 0 || strcmp(name, "plan.json") == 0 ||
        strcmp(name, "plan.json.tmp") == 0)
        return 2;
    return ends_in(name, ".safetensors") || gguf_is_model(name) || is_packed_weights(name) ? 1 : 0;
}

/* Removes what is in the folder. */
static int empty_folder(const struct plat_dir *dir, struct fm_error *err)
{
    struct walk w = {.removes = true};
    struct names names = {0};
    int rc = plat_dir_each_name(dir, add_name, &names, err);
    for (unsigned round = 0; round < 3; round++)
        for (size_t i = 0; rc == 0 && i < names.n; i++) {
            if (round_of(names.names[i]) != round)
                continue;
            w.dir = dir;
            w.depth = 0;
            rc = walk_name(&w, names.names[i], err);
        }
    names_clear(&names);
    return rc;
}

/* Removes the model.json of a packed model first: without it the folder is no model any more. */
int store_remove_folder(const char *path, struct fm_error *err)
{
    char parent[LIMIT_PATH_BYTES];
    struct plat_dir dir, above = {.fd = -1};
    path_folder(path, parent);
    int rc = plat_dir_open(path, PLAT_NO_LINK, &dir, err);
    if (rc == 0)
        rc = plat_dir_check_own(&dir, err);
    if (rc == 0)
        rc = plat_dir_lock(&dir, err);
    if (rc == 0)
        rc = plat_dir_remove(&dir, "model.json", NULL, err);
    if (rc == 0)
        rc = empty_folder(&dir, err);
    if (rc == 0)
        rc = plat_dir_open(parent, PLAT_OWN_LINK, &above, err);
    if (rc == 0)
        rc = plat_dir_remove_dir(&above, path_base(path), err);
    plat_dir_close(&above);
    plat_dir_close(&dir);
    if (rc == 0)
        (void)plat_remove_dir(parent, NULL); /* of the organisation, if it is empty now */
    return rc;
}

/* Returns whether the file is one of the GGUF model with this stem. */
static bool is_of_gguf(const char *name, const char *stem)
{
    char other[512];
    gguf_stem(name, other, sizeof other);
    return gguf_is_model(name) && strcmp(other, stem) == 0;
}

/* Removes the entries of a GGUF model from the manifest, if there is one. */
static int forget_gguf(const struct store_dir *d, const char *stem, struct fm_error *err)
{
    json_t *root = store_manifest(d->path), *files = json_object_get(root, "files");
    int rc = 0;
    for (size_t i = json_array_size(files); i > 0; i--) {
        const char *name =
            json_string_value(json_object_get(json_array_get(files, i - 1), "name"));
        if (name != NULL && is_of_gguf(name, stem))
            (void)json_array_remove(files, i - 1);
    }
    if (root != NULL)
        rc = work_file_write(&d->work, STORE_MANIFEST, root, true, err);
    json_decref(root);
    return rc;
}

/* Writes the stem of the GGUF model that is meant: one of the folder, or one that an interrupted
 * download has begun. "": there is none. Fails if several are as likely. */
static int find_stem(const struct store_dir *d, const char *wanted, char stem[512],
                     struct fm_error *err)
{
    struct names files;
    json_t *root = store_manifest(d->path), *entry;
    char other[512];
    bool is_exact = false;
    size_t i;
    int rc = names_of(d->path, &files, err);
    stem[0] = '\0';
    json_array_foreach(json_object_get(root, "files"), i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        (void)add_name(&files, name != NULL ? name : "", NULL);
    }
    for (i = 0; rc == 0 && i < files.n && !is_exact; i++) {
        if (!gguf_is_model(files.names[i]) || !gguf_matches(files.names[i], wanted))
            continue;
        gguf_stem(files.names[i], other, sizeof other);
        is_exact = strcmp(files.names[i], wanted) == 0 || strcmp(other, wanted) == 0;
        if (!is_exact && stem[0] != '\0' && strcmp(stem, other) != 0)
            rc = err_set(err, FM_ERR_ARG, "'%s' may mean '%s' or '%s' of '%s': give the whole name",
                         wanted, stem, other, d->path);
        (void)snprintf(stem, 512, "%s", other);
    }
    names_clear(&files);
    json_decref(root);
    return rc;
}

/* Removes the files of a GGUF model, also NAME.gguf.part and NAME.gguf.state. Returns in *is_empty
 * whether nothing else is in the folder but `kept`. */
static int remove_files(const struct plat_dir *dir, const char *stem, const char *kept,
                        bool *is_empty, struct fm_error *err)
{
    struct names files;
    int rc = names_of(dir->path, &files, err);
    *is_empty = rc == 0;
    for (size_t i = 0; rc == 0 && i < files.n; i++) {
        char file[512];
        (void)snprintf(file, sizeof file, "%s", files.names[i]);
        if (ends_in(file, ".part") || ends_in(file, ".state"))
            *strrchr(file, '.') = '\0';
        if (is_of_gguf(file, stem))
            rc = plat_dir_remove(dir, files.names[i], NULL, err);
        else
            *is_empty = *is_empty && strcmp(files.names[i], kept) == 0;
    }
    names_clear(&files);
    return rc;
}

/* Removes one GGUF model of a folder, and the folder with the last one. *is_there: it had it. */
static int remove_gguf(const char *path, const struct model_name *name, bool *is_there,
                       struct fm_error *err)
{
    struct store_dir d;
    char stem[512];
    bool is_empty = false, is_done = true;
    int rc = store_dir_take(&d, path, err);
    if (rc != 0)
        return rc;
    rc = find_stem(&d, path_base(name->file), stem, err);
    *is_there = rc == 0 && stem[0] != '\0';
    if (*is_there && d.work.fd >= 0)
        rc = remove_files(&d.work, stem, STORE_MANIFEST, &is_done, err);
    if (rc == 0 && *is_there)
        rc = remove_files(&d.dir, stem, STORE_WORK, &is_empty, err);
    if (rc == 0 && *is_there) /* last, so that all of this can be repeated */
        rc = forget_gguf(&d, stem, err);
    store_dir_close(&d);
    return rc == 0 && is_empty && is_done ? store_remove_folder(path, err) : rc;
}

/* Refuses what lies elsewhere: behind a link of the models folder may be anything. */
static int check_no_link(const char *path, struct fm_error *err)
{
    struct plat_file_info info;
    if (plat_file_info(path, &info) && !info.is_dir)
        return err_set(err, FM_ERR_ARG, "'%s' is %s", path, info.is_link
                       ? "a link: nothing behind it is removed; remove the link, or the model "
                         "where it is" : "no folder: it was not removed");
    return 0;
}

/* Returns whether the files are what is left of a packed model whose removal was interrupted: its
 * model.json goes first. */
static bool is_removed_in_part(const char *path, const struct names *files)
{
    bool is_pack = false;
    for (size_t i = 0; i < files->n; i++)
        is_pack = is_pack || is_packed_weights(files->names[i]);
    return is_pack && ends_in(path, STORE_PACKED);
}

/* The same of a folder that may be missing or whole. */
static bool is_left_of_pack(const char *path)
{
    struct names files;
    const bool is_left_over = names_of(path, &files, NULL) == 0 &&
                              !has_name(&files, "model.json") && is_removed_in_part(path, &files);
    names_clear(&files);
    return is_left_over;
}

/* Refuses a link, and a folder that is no model. An empty one is no loss. */
static int check_removable(const char *path, struct fm_error *err)
{
    struct names files;
    bool is_gguf;
    int rc = check_no_link(path, err);
    if (rc != 0)
        return rc;
    rc = names_of(path, &files, err);
    if (rc == 0 && files.n > 0 && !holds_model(&files, &is_gguf) &&
        !is_removed_in_part(path, &files))
        rc = err_set(err, FM_ERR_ARG, "'%s' is no model: it was not removed", path);
    names_clear(&files);
    return rc;
}

/* Returns whether the folder NAME.partial is what an interrupted pack has left. Other folders, and
 * even models, can have such a name. The plan is the first file of a pack, and the last one when it
 * is removed. */
static bool is_left(const char *path)
{
    struct names files;
    bool is_pack = names_of(path, &files, NULL) == 0;
    if (is_pack && (files.n > 0 || !ends_in(path, STORE_PACKED ".partial")))
        is_pack = has_name(&files, "plan.json") || has_name(&files, "plan.json.tmp");
    names_clear(&files);
    return is_pack;
}

/* Removes a pack and what an interrupted one has left. Returns false in *is_there if there is
 * nothing. */
static int remove_pack(const char *path, bool *is_there, struct fm_error *err)
{
    char partial[LIMIT_PATH_BYTES + 16], source[LIMIT_PATH_BYTES], holder[LIMIT_PATH_BYTES];
    const char *const paths[] = {holder, partial, path};
    int rc = 0;
    *is_there = false;
    (void)snprintf(partial, sizeof partial, "%s.partial", path);
    if (!store_pack_source(path, "x", source))
        return 0;
    path_folder(source, holder);
    if (plat_file_exists(path))
        rc = check_removable(path, err); /* before anything is gone */
    for (size_t i = 0; rc == 0 && i < sizeof paths / sizeof paths[0]; i++)
        if (plat_file_exists(paths[i]) && (paths[i] != partial || is_left(partial))) {
            *is_there = true;
            rc = store_remove_folder(paths[i], err);
        }
    return rc;
}

int store_remove(const struct pull_env *env, const struct model_name *name, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], cached[LIMIT_PATH_BYTES], text[MODEL_TEXT_BYTES];
    bool is_there = false;
    model_name_text(name, text);
    if (!store_path(env, name, path))
        return err_set(err, FM_ERR_ARG, "the path of the models folder is too long");
    path_folder(path, cached);
    int rc = check_no_link(cached, err);
    if (rc != 0)
        return rc;
    if (name->file[0] != '\0') {
        rc = plat_file_exists(path) ? check_removable(path, err) : 0;
        if (rc == 0 && plat_file_exists(path))
            rc = remove_gguf(path, name, &is_there, err);
    } else {
        rc = remove_pack(path, &is_there, err);
    }
    const size_t n = strlen(path);
    (void)snprintf(path + n, sizeof path - n, STORE_PACKED);
    if (rc == 0 && !is_there && (name->file[0] == '\0' || store_pack_is_of(path, name) ||
                                 is_left_of_pack(path)))
        rc = remove_pack(path, &is_there, err);
    if (rc != 0 || is_there)
        return rc;
    if (store_find_cached(env, name, NULL, cached))
        return err_set(err, FM_ERR_ARG, "'%s' is in huggingface_hub's cache, which other programs "
                       "use: remove it with their tools ('hf cache'), or remove '%s'", text,
                       cached);
    return err_set(err, FM_ERR_ARG, "no pulled model has the name '%s'; 'flashmoe list' shows them",
                   text);
}
