/* Builds a source from files and headers: split sets and tensors. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "format/gguf_internal.h"

#define SUFFIX ".gguf"
#define SPLIT_DIGITS 5
/* "-00001-of-00004.gguf" */
#define SPLIT_BYTES (1 + SPLIT_DIGITS + 4 + SPLIT_DIGITS + sizeof SUFFIX - 1)

/* The headers of a source's files. */
struct header_set {
    struct gguf *parts; /* [n] */
    unsigned n;
};

/* ---- which files belong together --------------------------------------------------------- */

static bool read_digits(const char *text, unsigned *out)
{
    *out = 0;
    for (unsigned i = 0; i < SPLIT_DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *out = *out * 10 + (unsigned)(text[i] - '0');
    }
    return true;
}

/* Returns true for NAME-00002-of-00004.gguf and sets *stem to the length of NAME. */
static bool is_split_name(const char *name, size_t *stem, unsigned *number, unsigned *count)
{
    const size_t bytes = strlen(name);
    if (bytes <= SPLIT_BYTES)
        return false;
    *stem = bytes - SPLIT_BYTES;
    const char *at = name + *stem;
    return at[0] == '-' && read_digits(at + 1, number) &&
           memcmp(at + 1 + SPLIT_DIGITS, "-of-", 4) == 0 &&
           read_digits(at + 5 + SPLIT_DIGITS, count) &&
           strcmp(at + 5 + 2 * SPLIT_DIGITS, SUFFIX) == 0;
}

/* Returns whether both names belong to one model. */
static bool is_same_model(const char *a, const char *b)
{
    size_t a_stem, b_stem;
    unsigned number, a_count, b_count;
    return is_split_name(a, &a_stem, &number, &a_count) &&
           is_split_name(b, &b_stem, &number, &b_count) && a_count == b_count &&
           a_stem == b_stem && memcmp(a, b, a_stem) == 0;
}

/* Copies the first name of a model to `found`, and a name that does not belong to it to `other`. */
static int look_for_models(const char *dir, char found[DIRECTORY_NAME_BYTES],
                           char other[DIRECTORY_NAME_BYTES], struct fm_error *err)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return err_set(err, FM_ERR_IO, "cannot open '%s': %s", dir, strerror(errno));
    for (const struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        if (!name_has_suffix(e->d_name, SUFFIX) || strncmp(e->d_name, "mmproj", 6) == 0)
            continue;
        if (found[0] != '\0' && strcmp(e->d_name, found) != 0 && !is_same_model(found, e->d_name))
            (void)snprintf(other, DIRECTORY_NAME_BYTES, "%s", e->d_name);
        if (found[0] == '\0' || strcmp(e->d_name, found) < 0)
            (void)snprintf(found, DIRECTORY_NAME_BYTES, "%s", e->d_name);
    }
    (void)closedir(d); /* opened for reading only: nothing can be lost */
    return 0;
}

int gguf_find_model(const char *dir, const char *spare_dir, char found[DIRECTORY_NAME_BYTES],
                    struct fm_error *err)
{
    char other[DIRECTORY_NAME_BYTES] = "";
    found[0] = '\0';
    int rc = look_for_models(dir, found, other, err);
    if (rc == 0 && spare_dir != NULL && plat_file_exists(spare_dir))
        rc = look_for_models(spare_dir, found, other, err);
    if (rc != 0)
        return rc;
    if (found[0] == '\0')
        return err_set(err, FM_ERR_FORMAT, "'%s' contains no model: %s", dir, SOURCE_EXPECTED);
    if (other[0] != '\0')
        return err_set(err, FM_ERR_ARG,
                       "'%s' contains several models, among them '%s'; give the path of one file",
                       dir, other);
    return 0;
}

static int open_set(struct source *s, const char *dir, const char *spare_dir, const char *path,
                    const char *name, size_t stem, unsigned count, struct fm_error *err)
{
    const size_t bytes = stem + SPLIT_BYTES + 1;
    const char **names = mem_new(count, sizeof *names, "the names of a split set", err);
    char *texts = mem_new(count, bytes, "the names of a split set", err);
    int rc = names == NULL || texts == NULL ? FM_ERR_NOMEM : 0;
    for (unsigned i = 0; rc == 0 && i < count; i++) {
        char *text = texts + i * bytes;
        (void)snprintf(text, bytes, "%.*s-%05u-of-%05u" SUFFIX, (int)stem, name, i + 1, count);
        names[i] = text;
    }
    if (rc == 0)
        rc = source_open_files(s, dir, spare_dir, names, NULL, count, path, err);
    mem_free(names);
    mem_free(texts);
    return rc;
}

static int open_files(struct source *s, const char *path, const char *spare_dir,
                      struct fm_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    char *dir = mem_strdup(slash == NULL ? "." : path, err);
    if (dir == NULL)
        return FM_ERR_NOMEM;
    if (slash != NULL)
        dir[slash == path ? 1 : slash - path] = '\0';
    size_t stem;
    unsigned number, count;
    int rc;
    if (!is_split_name(name, &stem, &number, &count))
        rc = source_open_files(s, dir, spare_dir, &name, NULL, 1, NULL, err);
    else if (number == 0 || number > count || count > LIMIT_SHARDS)
        rc = err_set(err, FM_ERR_FORMAT,
                     "%s: the name says part %u of %u, expected 1 to %d parts", path, number,
                     count, LIMIT_SHARDS);
    else
        rc = open_set(s, dir, spare_dir, path, name, stem, count, err);
    mem_free(dir);
    return rc;
}

/* ---- a set against its own counts -------------------------------------------------------- */

static int check_part(const struct gguf *g, unsigned index, unsigned n, uint64_t n_tensors,
                      struct fm_error *err)
{
    uint64_t number, count, total;
    int rc = gguf_uint_or(g, "split.count", 0, UINT32_MAX, n > 1 ? 0 : 1, &count, err);
    if (rc == 0)
        rc = gguf_uint_or(g, "split.no", 0, UINT32_MAX, index, &number, err);
    if (rc == 0)
        rc = gguf_uint_or(g, "split.tensors.count", 0, UINT32_MAX, n_tensors, &total, err);
    if (rc != 0)
        return rc;
    if (n == 1 && count > 1)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key 'split.count' is %llu: this is part %llu of a split set, whose "
                       "files must be named NAME-00001-of-%05llu.gguf and so on",
                       g->path, (unsigned long long)count, (unsigned long long)number + 1,
                       (unsigned long long)count);
    if (n > 1 && count != n)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key 'split.count' is %llu, but the name of the file says %u", g->path,
                       (unsigned long long)count, n);
    if (number != index)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key 'split.no' is %llu (counted from 0), but the file is part %u of "
                       "%u (counted from 1)",
                       g->path, (unsigned long long)number, index + 1, n);
    if (total != n_tensors)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: key 'split.tensors.count' is %llu, but the files contain %llu tensors",
                       g->path, (unsigned long long)total, (unsigned long long)n_tensors);
    return 0;
}

static int check_set(const struct header_set *set, struct fm_error *err)
{
    uint64_t n_tensors = 0;
    for (unsigned f = 0; f < set->n; f++)
        n_tensors += set->parts[f].n_tensors;
    int rc = 0;
    for (unsigned f = 0; rc == 0 && f < set->n; f++)
        rc = check_part(&set->parts[f], f, set->n, n_tensors, err);
    return rc;
}

/* ---- tensors ----------------------------------------------------------------------------- */

static bool has_tensor(const struct header_set *set, const char *name)
{
    unsigned f = 0;
    while (f < set->n && gguf_find_tensor(&set->parts[f], name) == NULL)
        f++;
    return f < set->n;
}

static int find_head(const struct header_set *set, struct gguf_head *head, struct fm_error *err)
{
    const struct gguf_tensor *embedding = NULL, *output = NULL;
    for (unsigned f = 0; f < set->n; f++) {
        const struct gguf *g = &set->parts[f];
        if (embedding == NULL)
            embedding = gguf_find_tensor(g, "token_embd.weight");
        if (output == NULL)
            output = gguf_find_tensor(g, "output.weight");
    }
    if (embedding == NULL)
        return err_set(err, FM_ERR_FORMAT, "%s: tensor 'token_embd.weight' is missing",
                       set->parts[0].path);
    if (embedding->n_dims != 2 || embedding->dims[0] == 0 || embedding->dims[0] > LIMIT_VOCAB)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor 'token_embd.weight' has %u dimensions and %llu rows, expected "
                       "2 and 1 to %u",
                       set->parts[0].path, embedding->n_dims,
                       (unsigned long long)(embedding->n_dims > 0 ? embedding->dims[0] : 0),
                       LIMIT_VOCAB);
    *head = (struct gguf_head){.vocabulary = embedding->dims[0], .is_tied = output == NULL};
    return 0;
}

/* Visits every target of every tensor; without a source it only counts them. */
static int fill_tensors(const struct header_set *set, const struct gguf_layout *layout,
                        struct source *s, char *names, uint64_t *n, uint64_t *names_bytes,
                        struct fm_error *err)
{
    *n = *names_bytes = 0;
    for (unsigned f = 0; f < set->n; f++) {
        for (size_t i = 0; i < set->parts[f].n_tensors; i++) {
            const struct gguf_tensor *t = &set->parts[f].tensors[i];
            const unsigned n_targets = gguf_n_targets(layout, t);
            for (unsigned k = 0; k < n_targets; k++) {
                char name[GGUF_HF_NAME_BYTES];
                struct tensor_info info;
                int rc = gguf_describe(&set->parts[f], layout, t, k, &info, name, err);
                if (rc != 0)
                    return rc;
                const size_t bytes = strlen(name) + 1;
                if (s != NULL) {
                    info.name = memcpy(names + *names_bytes, name, bytes);
                    info.parts[0].file = f;
                    s->tensors[s->n_tensors++] = info;
                }
                *names_bytes += bytes;
                (*n)++;
            }
        }
    }
    return 0;
}

static int add_tensors(struct source *s, const struct header_set *set,
                       const struct gguf_layout *layout, struct fm_error *err)
{
    uint64_t n, names_bytes;
    int rc = fill_tensors(set, layout, NULL, NULL, &n, &names_bytes, err);
    if (rc != 0)
        return rc;
    /* At most three tensors for each tensor that is already described in memory. */
    s->tensors = mem_new(n * sizeof *s->tensors + names_bytes, 1, "tensor descriptions", err);
    if (s->tensors == NULL)
        return FM_ERR_NOMEM;
    rc = fill_tensors(set, layout, s, (char *)(s->tensors + n), &n, &names_bytes, err);
    return rc != 0 ? rc : source_sort_tensors(s, err);
}

static int fill_source(struct source *s, const struct header_set *set,
                       const struct gguf_names *names, struct fm_error *err)
{
    static const struct gguf_names none;
    struct gguf_head head;
    struct gguf_layout layout = {0};
    const struct gguf *first = &set->parts[0];
    s->kind = SOURCE_GGUF;
    names = names != NULL ? names : &none;
    int rc = check_set(set, err);
    if (rc == 0)
        rc = gguf_find_family(first, names->families, &layout, err);
    if (rc == 0)
        rc = find_head(set, &head, err);
    layout.has_attention_bias = has_tensor(set, "blk.0.attn_q.bias");
    layout.has_head_norms = has_tensor(set, "blk.0.attn_q_norm.weight");
    if (rc == 0)
        rc = gguf_read_config(s, first, &head, &layout, err);
    if (rc == 0)
        rc = add_tensors(s, set, &layout, err);
    if (rc == 0)
        rc = gguf_add_texts(s, first, names->patterns, layout.family->stop_tokens, err);
    return rc;
}

int gguf_fill_source(struct source *source, const struct gguf *g, const struct gguf_names *names,
                     struct fm_error *err)
{
    struct gguf copy = *g;
    source->files = mem_new(1, sizeof *source->files, "the list of files", err);
    if (source->files == NULL)
        return FM_ERR_NOMEM;
    source->n_files = 1;
    source->files[0].fd = -1;
    source->files[0].path = mem_strdup(g->path, err);
    if (source->files[0].path == NULL)
        return FM_ERR_NOMEM;
    return fill_source(source, &(struct header_set){.parts = &copy, .n = 1}, names, err);
}

int gguf_open(struct source *source, const char *path, const struct source_options *options,
              struct fm_error *err)
{
    struct header_set set = {0};
    int rc = open_files(source, path, options->spare_dir, err);
    if (rc != 0)
        return rc;
    set.parts = mem_new(source->n_files, sizeof *set.parts, "the headers of files", err);
    if (set.parts == NULL)
        return FM_ERR_NOMEM;
    set.n = source->n_files;
    for (unsigned f = 0; rc == 0 && f < set.n; f++)
        rc = gguf_read(&set.parts[f], source->files[f].fd, source->files[f].path,
                       source->files[f].bytes, err);
    if (rc == 0)
        rc = fill_source(source, &set, options->gguf, err);
    for (unsigned f = 0; f < set.n; f++)
        gguf_clear(&set.parts[f]);
    mem_free(set.parts);
    return rc;
}
