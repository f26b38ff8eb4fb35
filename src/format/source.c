#include "format/source.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "format/directory.h"
#include "format/gguf.h"
#include "format/hugging_face.h"
#include "format/packed.h"
#include "format/refuse.h"

char *source_join(const char *dir, const char *name, struct fm_error *err)
{
    const char *slash = dir[strlen(dir) - 1] == '/' ? "" : "/";
    size_t bytes = strlen(dir) + strlen(slash) + strlen(name) + 1;
    char *path = mem_new(bytes, 1, "a path", err);
    if (path != NULL)
        (void)snprintf(path, bytes, "%s%s%s", dir, slash, name);
    return path;
}

/* ---- opening ----------------------------------------------------------------------------- */

static int open_directory(struct source *s, const struct source_options *options,
                          struct fm_error *err)
{
    const char *spare_dir = options->spare_dir;
    const char *const gguf[] = {".gguf"}, *const safetensors[] = {".safetensors"};
    char found[DIRECTORY_NAME_BYTES];
    if (directory_has(s->path, PACKED_MODEL_NAME))
        return packed_open(s, s->path, options, err);
    const bool has_gguf = !directory_find(s->path, safetensors, 1, found) &&
                          !directory_find(spare_dir, safetensors, 1, found) &&
                          (directory_find(s->path, gguf, 1, found) ||
                           directory_find(spare_dir, gguf, 1, found));
    if (!has_gguf) {
        int refused = refuse_adapter(s->path, err);
        if (refused != 0)
            return refused;
    }
    if (directory_has(s->path, "config.json") && !has_gguf)
        return hugging_face_open(s, s->path, options, err);
    if (!has_gguf)
        return err_set(err, FM_ERR_FORMAT, "'%s' has neither model.json nor config.json: %s",
                       s->path, SOURCE_EXPECTED);
    int rc = gguf_find_model(s->path, spare_dir, found, err);
    char *path = rc == 0 ? source_join(s->path, found, err) : NULL;
    if (rc == 0)
        rc = path == NULL ? FM_ERR_NOMEM : gguf_open(s, path, options, err);
    mem_free(path);
    return rc;
}

static int open_path(struct source *s, const struct source_options *options, struct fm_error *err)
{
    struct stat st;
    bool is_there = stat(s->path, &st) == 0;
    if (is_there && S_ISDIR(st.st_mode))
        return open_directory(s, options, err);
    if (name_has_suffix(s->path, ".gguf") && (is_there || options->spare_dir != NULL))
        return gguf_open(s, s->path, options, err);
    if (!is_there)
        return err_set(err, FM_ERR_IO, "cannot open '%s': %s; %s", s->path, strerror(errno),
                       SOURCE_EXPECTED);
    return err_set(err, FM_ERR_ARG, "'%s' is not a directory: %s", s->path, SOURCE_EXPECTED);
}

/* Finds the device of file f among those of the files before it. Returns n_disks for a new one. */
static unsigned disk_of(const struct source *source, unsigned f)
{
    const struct source_file *file = &source->files[f];
    for (unsigned i = 0; i < f; i++)
        if (file->fd < 0 || source->files[i].opened.device == file->opened.device)
            return source->files[i].disk;
    return source->n_disks;
}

/* A model whose files are on several devices, by links for example, has a disk for each. */
static int find_disks(struct source *source, struct fm_error *err)
{
    if (source->n_disks > 0) /* disks.json has named them */
        return 0;
    for (unsigned f = 0; f < source->n_files; f++) {
        char folder[LIMIT_PATH_BYTES];
        const unsigned disk = disk_of(source, f);
        source->files[f].disk = disk < SOURCE_MAX_DISKS ? disk : SOURCE_MAX_DISKS - 1;
        if (disk < source->n_disks || disk >= SOURCE_MAX_DISKS)
            continue;
        path_folder(source->files[f].path, folder);
        char *copy = mem_strdup(folder, err);
        if (copy == NULL)
            return FM_ERR_NOMEM;
        source->disks[source->n_disks++].folder = copy;
    }
    return 0;
}

int source_open(const char *path, const struct source_options *options, struct source **out,
                struct fm_error *err)
{
    *out = NULL;
    if (path[0] == '\0')
        return err_set(err, FM_ERR_ARG, "the path of the model is empty: %s", SOURCE_EXPECTED);
    struct source *s = mem_new(1, sizeof *s, "a source", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->path = mem_strdup(path, err);
    int rc = s->path == NULL ? FM_ERR_NOMEM : open_path(s, options, err);
    if (rc == 0)
        rc = find_disks(s, err);
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
    for (unsigned i = 0; i < source->n_disks; i++)
        mem_free(source->disks[i].folder);
    for (unsigned i = 0; i < source->n_texts; i++)
        mem_free(source->texts[i].text);
    packed_free(source->packed);
    mem_free(source->files);
    mem_free(source->tensors);
    mem_free(source->path);
    jdoc_clear(&source->config);
    mem_free(source);
}

/* Reads the length of the file that a spare stands for. */
static int read_spare_bytes(struct source_file *file, struct fm_error *err)
{
    uint8_t end[SOURCE_SPARE_BYTES] = {0};
    const size_t magic_bytes = sizeof SOURCE_SPARE_MAGIC - 1;
    int rc = file->bytes < sizeof end ? 0
                                      : plat_read_at(file->fd, file->path, end, sizeof end,
                                                     file->bytes - sizeof end, err);
    if (rc == 0 && memcmp(end, SOURCE_SPARE_MAGIC, magic_bytes) != 0)
        rc = err_set(err, FM_ERR_FORMAT, "'%s' is damaged or is not the header of a removed file",
                     file->path);
    file->bytes = 0;
    for (unsigned i = 0; i < sizeof end - magic_bytes; i++)
        file->bytes |= (uint64_t)end[magic_bytes + i] << (8 * i);
    return rc;
}

bool source_wants_layer(const struct source_options *o, uint32_t layer)
{
    const uint32_t n_layers = o->n_layers > 0 ? o->n_layers : o->end_layer;
    return o->end_layer == 0 || (layer >= o->first_layer && layer < o->end_layer) ||
           (o->with_mtp && layer >= n_layers);
}

bool source_wants_tensor(const struct source_options *options, const char *name)
{
    static const char word[] = "layers.";
    const char *at = strstr(name, word);
    if (strncmp(name, "mtp.", 4) == 0)
        return options->end_layer == 0 || options->with_mtp;
    if (at == NULL || (at > name && at[-1] != '.'))
        return true;
    char *end;
    const unsigned long layer = strtoul(at + sizeof word - 1, &end, 10);
    return end == at + sizeof word - 1 || *end != '.' || layer > UINT32_MAX ||
           source_wants_layer(options, (uint32_t)layer);
}

int source_file_open(struct source_file *file, struct fm_error *err)
{
    int rc = plat_open(file->path, &file->fd, &file->bytes, err);
    if (rc == 0 && !plat_open_file_info(file->fd, &file->opened))
        rc = err_set(err, FM_ERR_IO, "cannot stat '%s': %s", file->path, strerror(errno));
    return rc;
}

int source_open_files(struct source *s, const char *dir, const char *spare_dir,
                      const char *const names[], const bool is_needed[], size_t n,
                      const char *named_by, struct fm_error *err)
{
    struct source_file *files = mem_new(s->n_files + n, sizeof *files, "the list of files", err);
    if (files == NULL)
        return FM_ERR_NOMEM;
    if (s->n_files > 0)
        memcpy(files, s->files, s->n_files * sizeof *files);
    mem_free(s->files);
    s->files = files;
    for (size_t i = 0; i < n; i++) {
        struct source_file *file = &s->files[s->n_files];
        const bool is_spare = !directory_has(dir, names[i]) && directory_has(spare_dir, names[i]);
        file->fd = -1;
        file->path = source_join(is_spare ? spare_dir : dir, names[i], err);
        if (file->path == NULL)
            return FM_ERR_NOMEM;
        s->n_files++;
        if (is_needed != NULL && !is_needed[i])
            continue;
        if (named_by != NULL && !plat_file_exists(file->path))
            return err_set(err, FM_ERR_IO, "'%s' is missing, but '%s' names it", names[i],
                           named_by);
        int rc = source_file_open(file, err);
        if (rc == 0 && is_spare)
            rc = read_spare_bytes(file, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

void source_shut_files(struct source *source, unsigned first)
{
    for (unsigned f = first; f < source->n_files; f++) {
        plat_close(source->files[f].fd);
        source->files[f].fd = -1;
    }
}

/* ---- disks ------------------------------------------------------------------------------- */

void source_add_disk(struct source *source, char *folder, unsigned first_file)
{
    assert(source->n_disks < SOURCE_MAX_DISKS);
    for (unsigned f = first_file; f < source->n_files; f++)
        source->files[f].disk = source->n_disks;
    source->disks[source->n_disks++].folder = folder;
}

unsigned source_copy(const struct source *source, unsigned file, unsigned disk)
{
    assert(source->is_mirrored && file > 0 && file <= source->packed->n_layers);
    return packed_file_index(source->packed, file - 1, disk);
}

/* ---- the same file ----------------------------------------------------------------------- */

static bool is_same_file(const struct plat_file_info *a, const struct plat_file_info *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->mtime_ns == b->mtime_ns;
}

bool source_file_has_changed(const struct source_file *file)
{
    struct plat_file_info now;
    if (file->fd < 0)
        return false;
    return !plat_open_file_info(file->fd, &now) || !is_same_file(&file->opened, &now);
}

int source_explain_change(const char *path, struct fm_error *err)
{
    return err_set(err, FM_ERR_IO, "'%s' was changed or replaced after it was opened (its size, "
                   "modification time or inode differs); wait until nothing writes to it, then "
                   "open the model again", path);
}

int source_reopen_direct(const struct source_file *file, int *fd, struct fm_error *err)
{
    struct plat_file_info now;
    uint64_t bytes;
    bool is_direct;
    *fd = -1;
    int again;
    if (plat_open_device(file->path, &again, &bytes, &is_direct, NULL) != 0)
        return 0;
    const bool is_same = plat_open_file_info(again, &now) && is_same_file(&file->opened, &now);
    if (is_same && is_direct)
        *fd = again;
    else
        plat_close(again);
    return is_same ? 0 : source_explain_change(file->path, err);
}

/* ---- tensors ----------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct tensor_info *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->parts[0].file > y->parts[0].file) -
                                    (x->parts[0].file < y->parts[0].file);
}

int source_sort_tensors(struct source *s, struct fm_error *err)
{
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < s->n_tensors; i++) {
        const struct tensor_info *a = &s->tensors[i - 1], *b = &s->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return err_set(err, FM_ERR_FORMAT, "tensor '%.160s' occurs twice: in '%s' and '%s'",
                           a->name, s->files[a->parts[0].file].path,
                           s->files[b->parts[0].file].path);
    }
    return 0;
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

const struct quant *tensor_info_affine(const struct tensor_info *tensor, uint64_t n_cols)
{
    if (tensor->scale == NULL || tensor->n_dims == 0 || tensor->n_scale_cols == 0 || n_cols == 0 ||
        n_cols % tensor->n_scale_cols != 0)
        return NULL;
    const uint64_t n_words = tensor->dims[tensor->n_dims - 1];
    const uint64_t group = n_cols / tensor->n_scale_cols;
    uint64_t n_bits;
    if (group > 1024 || !mem_mul(n_words, 32, &n_bits) || n_bits % n_cols != 0)
        return NULL;
    char name[64];
    (void)snprintf(name, sizeof name, "affine%llu-g%llu%s", (unsigned long long)(n_bits / n_cols),
                   (unsigned long long)group, tensor->scale == &quant_f16 ? "-f16" : "");
    return quant_find(name);
}

/* ---- files beside the weights ------------------------------------------------------------ */

const char *source_kind_name(const struct source *source)
{
    switch (source->kind) {
    case SOURCE_GGUF:
        return "GGUF";
    case SOURCE_PACKED:
        return "packed model";
    case SOURCE_HUGGING_FACE:
        break;
    }
    return "Hugging Face directory";
}

int source_add_text(struct source *source, const char *name, char *text, size_t bytes,
                    struct fm_error *err)
{
    if (source->n_texts == SOURCE_MAX_TEXTS) {
        mem_free(text);
        return err_set(err, FM_ERR_UNSUPPORTED, "%s: more than %d files beside the weights",
                       source->path, SOURCE_MAX_TEXTS);
    }
    source->texts[source->n_texts++] = (struct source_text){name, text, bytes};
    return 0;
}

static int copy_text(const struct source_text *from, char **text, size_t *bytes,
                     struct fm_error *err)
{
    *text = mem_new(from->bytes + 1, 1, from->name, err);
    if (*text == NULL)
        return FM_ERR_NOMEM;
    memcpy(*text, from->text, from->bytes);
    *bytes = from->bytes;
    return 0;
}

int source_read_text(const struct source *source, const char *name, size_t max_bytes, char **text,
                     size_t *bytes, char label[], struct fm_error *err)
{
    *text = NULL;
    *bytes = 0;
    int n = snprintf(label, LIMIT_PATH_BYTES, "%s%s%s", source->path,
                     source->kind == SOURCE_GGUF ? ": " : "/", name);
    if (n < 0 || n >= LIMIT_PATH_BYTES)
        return err_set(err, FM_ERR_ARG, "the path of the model is too long");
    for (unsigned i = 0; i < source->n_texts; i++)
        if (strcmp(source->texts[i].name, name) == 0)
            return copy_text(&source->texts[i], text, bytes, err);
    if (source->kind == SOURCE_GGUF)
        return 0;
    if (!plat_file_exists(label))
        return source->packed != NULL && packed_lists(source->packed, name)
                   ? err_set(err, FM_ERR_IO, "'%s' is missing, but model.json names it", label)
                   : 0;
    int rc = plat_read_file(label, max_bytes, text, bytes, err);
    if (rc == 0 && source->packed != NULL)
        rc = packed_check_text(source->packed, name, label, *text, *bytes, err);
    if (rc != 0) {
        mem_free(*text);
        *text = NULL;
    }
    return rc;
}

int source_read_json(const struct source *source, const char *name, size_t max_bytes,
                     struct jdoc *doc, struct fm_error *err)
{
    *doc = (struct jdoc){0};
    char label[LIMIT_PATH_BYTES], *text;
    size_t bytes;
    int rc = source_read_text(source, name, max_bytes, &text, &bytes, label, err);
    if (rc == 0 && text != NULL)
        rc = jdoc_parse(doc, label, text, bytes, err);
    mem_free(text);
    return rc;
}
