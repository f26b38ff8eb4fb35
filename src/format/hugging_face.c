/* A Hugging Face directory, as transformers or mlx-lm writes it. */
#include "format/hugging_face.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/directory.h"
#include "format/fold.h"
#include "format/refuse.h"
#include "format/safetensors.h"

#define CONFIG_NAME "config.json"
#define INDEX_NAME "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"
/* Suffix of the tensor whose shape reveals that mlx-lm wrote it (is_from_mlx). */
#define TELLING_SUFFIX ".linear_attn.conv1d.weight"

/* model.safetensors.index.json: which shard contains which tensor. */
struct shard_index {
    char *path;
    struct jdoc doc;
    json_t *weight_map;  /* borrowed from doc */
    const char **shards; /* sorted, without duplicates; borrowed from doc */
    bool *is_needed;     /* [n_shards] */
    size_t n_shards;
};

static int no_weights(const char *dir, struct fm_error *err)
{
    const char *const weights[] = {".safetensors"};
    const char *const others[] = {".bin", ".pth", ".pt"};
    char found[DIRECTORY_NAME_BYTES];
    if (directory_find(dir, weights, 1, found))
        return err_set(err, FM_ERR_FORMAT,
                       "'%s' has '%s', but neither %s nor %s to say which files belong to the "
                       "model",
                       dir, found, INDEX_NAME, SINGLE_NAME);
    if (directory_find(dir, others, sizeof others / sizeof others[0], found))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "'%s' has its weights in '%s': this version reads safetensors and GGUF; %s",
                       dir, found, SOURCE_EXPECTED);
    return err_set(err, FM_ERR_FORMAT, "'%s' has neither %s nor %s: %s", dir, INDEX_NAME,
                   SINGLE_NAME, SOURCE_EXPECTED);
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
        return err_set(err, FM_ERR_FORMAT, "%s: lists %zu shards, more than the limit of %d",
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

/* Returns the index of a shard, which must exist. */
static size_t find_shard(const struct shard_index *index, const char *name)
{
    const char **at = bsearch(&name, index->shards, index->n_shards, sizeof name, by_text);
    return (size_t)(at - index->shards);
}

/* Selects the shards with tensors of the requested layers; existing shards with tensors of no
 * layer, such as the embedding; and at least one shard with the tensor that reveals mlx-lm's
 * files. */
static int choose_shards(struct shard_index *index, const char *dir,
                         const struct source_options *options, struct fm_error *err)
{
    const char *telling = NULL;
    bool has_telling = false;
    index->is_needed = mem_new(index->n_shards, sizeof *index->is_needed, "shard names", err);
    if (index->is_needed == NULL)
        return FM_ERR_NOMEM;
    for (void *i = json_object_iter(index->weight_map); i != NULL;
         i = json_object_iter_next(index->weight_map, i)) {
        const char *name = json_object_iter_key(i);
        const char *shard = json_string_value(json_object_iter_value(i));
        const bool is_wanted = source_wants_tensor(options, name);
        const bool is_of_a_layer = strstr(name, "layers.") != NULL;
        if (name_has_suffix(name, TELLING_SUFFIX)) {
            telling = shard;
            has_telling |= is_wanted;
        }
        if (is_wanted && (options->end_layer == 0 || is_of_a_layer || directory_has(dir, shard)))
            index->is_needed[find_shard(index, shard)] = true;
    }
    if (telling != NULL && !has_telling)
        index->is_needed[find_shard(index, telling)] = true;
    return 0;
}

static void index_clear(struct shard_index *index)
{
    mem_free(index->path);
    mem_free(index->shards);
    mem_free(index->is_needed);
    jdoc_clear(&index->doc);
    *index = (struct shard_index){0};
}

/* ---- the tensors ------------------------------------------------------------------------- */

/* Copies the tensors of all files into one sorted array, followed by the names. */
static int merge(struct source *s, const struct safetensors *parts, struct fm_error *err)
{
    uint64_t n = 0, names_bytes = 0;
    for (unsigned f = 0; f < s->n_files; f++) {
        n += parts[f].n_tensors;
        names_bytes += parts[f].names_bytes;
    }
    /* Both terms describe memory that is already allocated. */
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
            t->parts[0].file = f;
            names += bytes;
        }
    }
    return source_sort_tensors(s, err);
}

static int read_tensors(struct source *s, struct fm_error *err)
{
    struct safetensors *parts = mem_new(s->n_files, sizeof *parts, "the headers of files", err);
    if (parts == NULL)
        return FM_ERR_NOMEM;
    int rc = 0;
    for (unsigned f = 0; rc == 0 && f < s->n_files; f++)
        if (s->files[f].fd >= 0)
            rc = safetensors_read(&parts[f], s->files[f].fd, s->files[f].path, s->files[f].bytes,
                                  err);
    if (rc == 0)
        rc = merge(s, parts, err);
    for (unsigned f = 0; f < s->n_files; f++)
        safetensors_clear(&parts[f]);
    mem_free(parts);
    return rc;
}

/* Checks the tensors against the index: each listed tensor must be in its shard. Tensors that are
 * not listed are dropped, as the official loaders do. */
static int apply_index(struct source *s, const struct shard_index *index, struct fm_error *err)
{
    for (void *i = json_object_iter(index->weight_map); i != NULL;
         i = json_object_iter_next(index->weight_map, i)) {
        const char *name = json_object_iter_key(i);
        const char *shard = json_string_value(json_object_iter_value(i));
        const struct tensor_info *t = source_find(s, name);
        if (t == NULL && !index->is_needed[find_shard(index, shard)])
            continue;
        if (t == NULL || strcmp(index->shards[t->parts[0].file], shard) != 0)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: places tensor '%.160s' in shard '%.160s', which does not contain "
                           "it",
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
        log_warn("format", "%s: does not list %zu tensors of the shards, which are ignored; the "
                 "first is '%.160s'",
                 index->path, s->n_tensors - n_kept, left_out);
    s->n_tensors = n_kept;
    return 0;
}

/* ---- opening ----------------------------------------------------------------------------- */

static int open_weights(struct source *s, const char *dir, const struct source_options *options,
                        struct fm_error *err)
{
    const char *spare_dir = options->spare_dir;
    struct shard_index index = {0};
    const char *const single_names[] = {SINGLE_NAME};
    char *single = NULL;
    int rc = FM_ERR_NOMEM;
    index.path = source_join(dir, INDEX_NAME, err);
    single = source_join(dir, SINGLE_NAME, err);
    if (index.path == NULL || single == NULL)
        goto out;
    if (plat_file_exists(index.path)) {
        rc = index_load(&index, err);
        if (rc == 0)
            rc = choose_shards(&index, dir, options, err);
        if (rc == 0)
            rc = source_open_files(s, dir, spare_dir, index.shards, index.is_needed,
                                   index.n_shards, index.path, err);
    } else if (plat_file_exists(single) || directory_has(spare_dir, SINGLE_NAME)) {
        rc = source_open_files(s, dir, spare_dir, single_names, NULL, 1, NULL, err);
    } else {
        rc = no_weights(dir, err);
    }
    if (rc == 0)
        rc = read_tensors(s, err);
    if (rc == 0 && index.weight_map != NULL)
        rc = apply_index(s, &index, err);
out:
    index_clear(&index);
    mem_free(single);
    return rc;
}

/* mlx-lm stores 1 + w for zero-centred norms and swaps the last two dimensions of the convolution;
 * the second reveals the first. */
static bool is_from_mlx(const struct source *source)
{
    for (size_t i = 0; i < source->n_tensors; i++) {
        const struct tensor_info *t = &source->tensors[i];
        if (name_has_suffix(t->name, TELLING_SUFFIX))
            return t->n_dims == 3 && t->dims[2] == 1 && t->dims[1] > 1;
    }
    return false;
}

int hugging_face_open(struct source *source, const char *dir, const struct source_options *options,
                      struct fm_error *err)
{
    source->kind = SOURCE_HUGGING_FACE;
    char *path = source_join(dir, CONFIG_NAME, err);
    if (path == NULL)
        return FM_ERR_NOMEM;
    int rc = jdoc_load(&source->config, path, LIMIT_CONFIG_JSON_BYTES, err);
    mem_free(path);
    if (rc == 0)
        rc = refuse_quantised(&source->config, err);
    if (rc == 0)
        rc = open_weights(source, dir, options, err);
    if (rc == 0)
        rc = fold_quantised(source, options, err);
    source->conventions.has_final_norms = rc == 0 && is_from_mlx(source);
    return rc;
}
