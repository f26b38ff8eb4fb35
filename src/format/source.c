#include "format/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/safetensors.h"

#define CONFIG_NAME "config.json"
#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
#define EXPECTED "expected a Hugging Face directory with config.json and *.safetensors"
#define ENTRY_NAME_BYTES 256

/* model.safetensors.index.json: which shard holds which tensor. */
struct shard_index {
    char *path;
    struct jdoc doc;
    json_t *weight_map;  /* borrowed from doc */
    const char **shards; /* sorted, each once; borrowed from doc */
    size_t n_shards;
};

static char *join(const char *dir, const char *name, struct fm_error *err)
{
    const char *slash = dir[strlen(dir) - 1] == '/' ? "" : "/";
    size_t bytes = strlen(dir) + strlen(slash) + strlen(name) + 1;
    char *path = mem_new(bytes, 1, "a path", err);
    if (path != NULL)
        (void)snprintf(path, bytes, "%s%s%s", dir, slash, name);
    return path;
}

/* ---- what is said about a path that is no checkpoint ------------------------------------- */

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* The first entry in name order with one of the suffixes, into `found`. */
static bool find_entry(const char *dir, const char *const suffixes[], size_t n_suffixes,
                       char found[ENTRY_NAME_BYTES])
{
    found[0] = '\0';
    DIR *d = opendir(dir);
    if (d == NULL)
        return false;
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        for (size_t i = 0; i < n_suffixes; i++)
            if (has_suffix(e->d_name, suffixes[i]) &&
                (found[0] == '\0' || strcmp(e->d_name, found) < 0))
                (void)snprintf(found, ENTRY_NAME_BYTES, "%s", e->d_name);
    (void)closedir(d); /* opened for reading: nothing can be lost */
    return found[0] != '\0';
}

static int check_directory(const char *dir, struct fm_error *err)
{
    struct stat st;
    if (stat(dir, &st) != 0)
        return err_set(err, FM_ERR_IO, "cannot open '%s': %s; %s", dir, strerror(errno), EXPECTED);
    if (S_ISDIR(st.st_mode))
        return 0;
    if (has_suffix(dir, ".gguf"))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "'%s' is a GGUF file: this version reads safetensors only; %s", dir,
                       EXPECTED);
    return err_set(err, FM_ERR_ARG, "'%s' is not a directory: %s", dir, EXPECTED);
}

static int no_config(const char *dir, struct fm_error *err)
{
    const char *const weights[] = {".safetensors"}, *const gguf[] = {".gguf"};
    char found[ENTRY_NAME_BYTES];
    if (!find_entry(dir, weights, 1, found) && find_entry(dir, gguf, 1, found))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "'%s' holds the GGUF file '%s': this version reads safetensors only; %s",
                       dir, found, EXPECTED);
    return err_set(err, FM_ERR_FORMAT, "'%s' has no config.json: %s", dir, EXPECTED);
}

static int no_weights(const char *dir, struct fm_error *err)
{
    const char *const weights[] = {".safetensors"};
    const char *const others[] = {".gguf", ".bin", ".pth", ".pt"};
    char found[ENTRY_NAME_BYTES];
    if (find_entry(dir, weights, 1, found))
        return err_set(err, FM_ERR_FORMAT,
                       "'%s' has '%s', but neither %s nor %s to say which files belong to the "
                       "model",
                       dir, found, INDEX_NAME, SINGLE_NAME);
    if (find_entry(dir, others, sizeof others / sizeof others[0], found))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "'%s' has its weights in '%s': this version reads safetensors only; %s",
                       dir, found, EXPECTED);
    return err_set(err, FM_ERR_FORMAT, "'%s' has neither %s nor %s: %s", dir, INDEX_NAME,
                   SINGLE_NAME, EXPECTED);
}

/* ---- the index --------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_shard_name(const struct shard_index *index, const char *tensor,
                            const json_t *value, struct fm_error *err)
{
    const char *name = json_string_value(value);
    if (name != NULL && name[0] != '\0' && strchr(name, '/') == NULL && strstr(name, "..") == NULL)
        return 0;
    char shown[80];
    return err_set(err, FM_ERR_FORMAT,
                   "%s: weight_map places tensor '%.160s' in %s, expected the name of a file in "
                   "the same directory",
                   index->path, tensor, jdoc_show(value, shown, sizeof shown));
}

static int collect_shards(struct shard_index *index, struct fm_error *err)
{
    size_t n = json_object_size(index->weight_map);
    index->shards = mem_new(n, sizeof *index->shards, "shard names", err);
    if (index->shards == NULL)
        return FM_ERR_NOMEM;
    size_t filled = 0;
    for (void *i = json_object_iter(index->weight_map); i != NULL;
         i = json_object_iter_next(index->weight_map, i)) {
        const json_t *value = json_object_iter_value(i);
        int rc = check_shard_name(index, json_object_iter_key(i), value, err);
        if (rc != 0)
            return rc;
        index->shards[filled++] = json_string_value(value);
    }
    qsort(index->shards, n, sizeof *index->shards, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(index->shards[i], index->shards[index->n_shards - 1]) != 0)
            index->shards[index->n_shards++] = index->shards[i];
    if (index->n_shards > LIMIT_SHARDS)
        return err_set(err, FM_ERR_FORMAT, "%s: names %zu shards, more than the limit of %d",
                       index->path, index->n_shards, LIMIT_SHARDS);
    return 0;
}

static int index_load(struct shard_index *index, struct fm_error *err)
{
    int rc = jdoc_load(&index->doc, index->path, LIMIT_INDEX_JSON_BYTES, err);
    if (rc != 0)
        return rc;
    index->weight_map = json_object_get(index->doc.root, "weight_map");
    if (json_object_size(index->weight_map) == 0) {
        char shown[80];
        const json_t *value = index->weight_map;
        return err_set(err, FM_ERR_FORMAT,
                       "%s: field 'weight_map' is %s, expected an object that names the shard of "
                       "each tensor",
                       index->path,
                       value == NULL ? "missing" : jdoc_show(value, shown, sizeof shown));
    }
    return collect_shards(index, err);
}

static void index_clear(struct shard_index *index)
{
    mem_free(index->path);
    mem_free(index->shards);
    jdoc_clear(&index->doc);
    *index = (struct shard_index){0};
}

/* ---- the tensors ------------------------------------------------------------------------- */

/* `index_path` is the index that names the files, NULL when there is none. */
static int open_files(struct source *s, const char *const names[], size_t n,
                      const char *index_path, struct fm_error *err)
{
    s->files = mem_new(n, sizeof *s->files, "the list of files", err);
    if (s->files == NULL)
        return FM_ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        struct source_file *file = &s->files[i];
        file->fd = -1;
        file->path = join(s->dir, names[i], err);
        if (file->path == NULL)
            return FM_ERR_NOMEM;
        s->n_files++;
        if (index_path != NULL && !plat_file_exists(file->path))
            return err_set(err, FM_ERR_IO, "shard '%s' is missing, but '%s' names it", names[i],
                           index_path);
        int rc = plat_open(file->path, &file->fd, &file->bytes, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor_info *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->file > y->file) - (x->file < y->file);
}

/* Copies the tensors of all files into one sorted array, with the names behind it. */
static int merge(struct source *s, const struct safetensors *parts, struct fm_error *err)
{
    uint64_t n = 0, names_bytes = 0;
    for (unsigned f = 0; f < s->n_files; f++) {
        n += parts[f].n_tensors;
        names_bytes += parts[f].names_bytes;
    }
    /* Both terms describe memory that is already held. */
    s->tensors = mem_new(n * sizeof *s->tensors + names_bytes, 1, "tensor descriptions", err);
    if (s->tensors == NULL)
        return FM_ERR_NOMEM;
    char *names = (char *)(s->tensors + n);
    for (unsigned f = 0; f < s->n_files; f++) {
        for (size_t i = 0; i < parts[f].n_tensors; i++) {
            struct tensor_info *t = &s->tensors[s->n_tensors++];
            *t = parts[f].tensors[i];
            size_t bytes = strlen(t->name) + 1;
            t->name = memcpy(names, t->name, bytes);
            t->file = f;
            names += bytes;
        }
    }
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < s->n_tensors; i++) {
        const struct tensor_info *a = &s->tensors[i - 1], *b = &s->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return err_set(err, FM_ERR_FORMAT, "tensor '%.160s' is in two files: '%s' and '%s'",
                           a->name, s->files[a->file].path, s->files[b->file].path);
    }
    return 0;
}

static int read_tensors(struct source *s, struct fm_error *err)
{
    struct safetensors *parts = mem_new(s->n_files, sizeof *parts, "the headers of files", err);
    if (parts == NULL)
        return FM_ERR_NOMEM;
    int rc = 0;
    for (unsigned f = 0; rc == 0 && f < s->n_files; f++)
        rc = safetensors_read(&parts[f], s->files[f].fd, s->files[f].path, s->files[f].bytes, err);
    if (rc == 0)
        rc = merge(s, parts, err);
    for (unsigned f = 0; f < s->n_files; f++)
        safetensors_clear(&parts[f]);
    mem_free(parts);
    return rc;
}

/* Holds the tensors against the index: each one it names must be where it says, and the others
 * are left out, as the official loaders do. */
static int apply_index(struct source *s, const struct shard_index *index, struct fm_error *err)
{
    for (void *i = json_object_iter(index->weight_map); i != NULL;
         i = json_object_iter_next(index->weight_map, i)) {
        const char *name = json_object_iter_key(i);
        const char *shard = json_string_value(json_object_iter_value(i));
        const struct tensor_info *t = source_find(s, name);
        if (t == NULL || strcmp(index->shards[t->file], shard) != 0)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: places tensor '%.160s' in shard '%.160s', which does not hold it",
                           index->path, name, shard);
    }
    size_t n_kept = 0;
    const char *left_out = NULL;
    for (size_t i = 0; i < s->n_tensors; i++) {
        if (json_object_get(index->weight_map, s->tensors[i].name) != NULL)
            s->tensors[n_kept++] = s->tensors[i];
        else if (left_out == NULL)
            left_out = s->tensors[i].name;
    }
    if (n_kept < s->n_tensors)
        log_warn("format", "%s: leaves out %zu tensors of the shards, the first is '%.160s'",
                 index->path, s->n_tensors - n_kept, left_out);
    s->n_tensors = n_kept;
    return 0;
}

/* ---- the source -------------------------------------------------------------------------- */

static int open_weights(struct source *s, struct fm_error *err)
{
    struct shard_index index = {0};
    char *single = NULL;
    int rc = FM_ERR_NOMEM;
    index.path = join(s->dir, INDEX_NAME, err);
    single = join(s->dir, SINGLE_NAME, err);
    if (index.path == NULL || single == NULL)
        goto out;
    if (plat_file_exists(index.path)) {
        rc = index_load(&index, err);
        if (rc == 0)
            rc = open_files(s, index.shards, index.n_shards, index.path, err);
        if (rc == 0)
            rc = read_tensors(s, err);
        if (rc == 0)
            rc = apply_index(s, &index, err);
    } else if (plat_file_exists(single)) {
        const char *const names[] = {SINGLE_NAME};
        rc = open_files(s, names, 1, NULL, err);
        if (rc == 0)
            rc = read_tensors(s, err);
    } else {
        rc = no_weights(s->dir, err);
    }
out:
    index_clear(&index);
    mem_free(single);
    return rc;
}

static int open_config(struct source *s, struct fm_error *err)
{
    char *path = join(s->dir, CONFIG_NAME, err);
    if (path == NULL)
        return FM_ERR_NOMEM;
    int rc = plat_file_exists(path) ? jdoc_load(&s->config, path, LIMIT_CONFIG_JSON_BYTES, err)
                                    : no_config(s->dir, err);
    mem_free(path);
    return rc;
}

int source_open(const char *dir, struct source **out, struct fm_error *err)
{
    *out = NULL;
    if (dir[0] == '\0')
        return err_set(err, FM_ERR_ARG, "the path of the model is empty: %s", EXPECTED);
    int rc = check_directory(dir, err);
    if (rc != 0)
        return rc;
    struct source *s = mem_new(1, sizeof *s, "a source", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->dir = mem_strdup(dir, err);
    rc = s->dir == NULL ? FM_ERR_NOMEM : open_config(s, err);
    if (rc == 0)
        rc = open_weights(s, err);
    if (rc != 0) {
        source_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void source_close(struct source *source)
{
    if (source == NULL)
        return;
    for (unsigned f = 0; f < source->n_files; f++) {
        plat_close(source->files[f].fd);
        mem_free(source->files[f].path);
    }
    mem_free(source->files);
    mem_free(source->tensors);
    mem_free(source->dir);
    jdoc_clear(&source->config);
    mem_free(source);
}

static int name_to_tensor(const void *name, const void *tensor)
{
    return strcmp(name, ((const struct tensor_info *)tensor)->name);
}

const struct tensor_info *source_find(const struct source *source, const char *name)
{
    return bsearch(name, source->tensors, source->n_tensors, sizeof *source->tensors,
                   name_to_tensor);
}

const char *tensor_info_shape(const struct tensor_info *tensor, char *buffer, size_t bytes)
{
    size_t used = 0;
    for (unsigned i = 0; i < tensor->n_dims && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%llu", i == 0 ? "[" : ", ",
                                 (unsigned long long)tensor->dims[i]);
    if (used < bytes)
        (void)snprintf(buffer + used, bytes - used, tensor->n_dims == 0 ? "[]" : "]");
    return buffer;
}
