/* Opens the files of a packed model, in its own folder and in those that disks.json names. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/directory.h"
#include "format/disks.h"
#include "format/packed.h"

struct opening {
    struct source *source;
    const char *dir;
    const struct source_options *options;
    const char *text; /* of model.json */
    size_t text_bytes;
    struct disks disks;
    /* dense.bin, then the files of experts */
    char (*names)[PACKED_NAME_BYTES];
    const char **list;
    bool *is_needed;
};

static int check_size(const struct source_file *file, uint64_t expected, struct fm_error *err)
{
    if (file->bytes == expected)
        return 0;
    return err_set(err, FM_ERR_FORMAT, "%s: the file has %llu bytes, but model.json says %llu: it "
                   "was truncated or changed; copy it again or pack the model again", file->path,
                   (unsigned long long)file->bytes, (unsigned long long)expected);
}

bool packed_is_part(const struct packed *packed)
{
    for (uint32_t i = 0; i < packed->n_layers; i++)
        if (packed->layers[i].is_elsewhere)
            return true;
    return false;
}

const char *packed_layers_here(const struct packed *packed, char text[PACKED_LAYERS_BYTES])
{
    size_t used = 0;
    (void)snprintf(text, PACKED_LAYERS_BYTES, "none");
    for (uint32_t i = 0; i < packed->n_layers; i++) {
        const uint32_t first = i;
        if (packed->layers[i].is_elsewhere)
            continue;
        while (i + 1 < packed->n_layers && !packed->layers[i + 1].is_elsewhere &&
               packed->layers[i + 1].layer == packed->layers[i].layer + 1)
            i++;
        char range[32];
        (void)snprintf(range, sizeof range, first < i ? "%u-%u" : "%u",
                       packed->layers[first].layer, packed->layers[i].layer);
        if (used + strlen(range) + 8 > PACKED_LAYERS_BYTES) {
            (void)snprintf(text + used, PACKED_LAYERS_BYTES - used, ", ...");
            break;
        }
        used += (size_t)snprintf(text + used, PACKED_LAYERS_BYTES - used, "%s%s",
                                 used > 0 ? ", " : "", range);
    }
    return text;
}

static int explain_part(const struct packed *packed, const char *dir, const char *name,
                        struct fm_error *err)
{
    char here[PACKED_LAYERS_BYTES];
    return err_set(err, FM_ERR_IO, "'%s' is missing: '%s' is part of a model and has the experts "
                   "of layers %s. Copy the file from a machine that has it, use the whole model, "
                   "or give this part to a rank of these layers alone (--layers, docs/CLUSTER.md)",
                   name, dir, packed_layers_here(packed, here));
}

/* Returns whether a file of experts is to be opened; fails if it should be there and is not. */
static int needs_layer(const struct packed *packed, uint32_t index, const char *dir,
                       const char *name, const struct source_options *options, bool *is_needed,
                       struct fm_error *err)
{
    const struct packed_layer *layer = &packed->layers[index];
    const bool is_there = directory_has(dir, name);
    const bool may_lack = options->may_lack_experts ||
                          (options->may_be_part && layer->is_elsewhere);
    *is_needed = source_wants_layer(options, layer->layer) && (is_there || !may_lack);
    return *is_needed && !is_there && layer->is_elsewhere ? explain_part(packed, dir, name, err)
                                                          : 0;
}

static void free_names(struct opening *o)
{
    mem_free(o->names);
    mem_free(o->list);
    mem_free(o->is_needed);
}

static int make_names(struct opening *o, struct fm_error *err)
{
    const struct packed *packed = o->source->packed;
    const size_t n = (size_t)packed->n_layers + 1;
    o->names = mem_new(n, sizeof *o->names, "file names", err);
    o->list = mem_new(n, sizeof *o->list, "file names", err);
    o->is_needed = mem_new(n, sizeof *o->is_needed, "file names", err);
    int rc = o->names == NULL || o->list == NULL || o->is_needed == NULL ? FM_ERR_NOMEM : 0;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        (void)snprintf(o->names[i], sizeof o->names[i],
                       i == 0 ? PACKED_DENSE_NAME : PACKED_EXPERTS_NAME,
                       i == 0 ? 0 : packed->layers[i - 1].layer);
        o->list[i] = o->names[i];
        o->is_needed[i] = true;
        if (i > 0)
            rc = needs_layer(packed, (uint32_t)i - 1, o->dir, o->names[i], o->options,
                             &o->is_needed[i], err);
    }
    return rc;
}

/* Checks the size of the file that a layer has on a disk. */
static int check_layer(const struct opening *o, uint32_t index, unsigned disk,
                       struct fm_error *err)
{
    const struct packed *packed = o->source->packed;
    const struct packed_layer *layer = &packed->layers[index];
    return check_size(&o->source->files[packed_file_index(packed, index, disk)],
                      layer->n_experts * layer->part_bytes[packed->n_parts > 1 ? disk : 0], err);
}

static int open_own(const struct opening *o, struct fm_error *err)
{
    struct source *source = o->source;
    const struct packed *packed = source->packed;
    int rc = source_open_files(source, o->dir, NULL, o->list, o->is_needed,
                               (size_t)packed->n_layers + 1, PACKED_MODEL_NAME, err);
    if (rc == 0)
        rc = check_size(&source->files[0], packed->dense_bytes, err);
    for (uint32_t i = 0; rc == 0 && i < packed->n_layers; i++)
        if (o->is_needed[i + 1])
            rc = check_layer(o, i, 0, err);
    return rc;
}

/* ---- other folders -------------------------------------------------------------------------- */

/* Fails when a folder is missing, or holds another model or another part of this one. */
static int check_folder(const struct opening *o, const char *folder, unsigned i,
                        struct fm_error *err)
{
    char *path = source_join(folder, PACKED_MODEL_NAME, err), *text = NULL;
    size_t bytes = 0;
    struct disks theirs = {0};
    int rc = path == NULL ? FM_ERR_NOMEM : 0;
    if (rc == 0 && !plat_file_exists(path))
        rc = err_set(err, FM_ERR_IO, "'%s' has no model.json: is its disk missing?", folder);
    if (rc == 0)
        rc = plat_read_file(path, LIMIT_INDEX_JSON_BYTES, &text, &bytes, err);
    if (rc == 0 && (bytes != o->text_bytes || memcmp(text, o->text, bytes) != 0))
        rc = err_set(err, FM_ERR_FORMAT, "'%s' holds another model than '%s': their model.json "
                     "differ. Was the disk swapped?", folder, o->dir);
    if (rc == 0 && !o->disks.is_mirrored)
        rc = disks_load(folder, &theirs, err);
    if (rc == 0 && !o->disks.is_mirrored && (theirs.n != o->disks.n || theirs.here != i))
        rc = err_set(err, FM_ERR_FORMAT, "'%s' is not part %u of the %u parts of this model: its "
                     DISKS_NAME " says otherwise", folder, i + 1, o->disks.n);
    disks_clear(&theirs);
    mem_free(text);
    mem_free(path);
    return rc;
}

static int open_folder(const struct opening *o, const char *folder, unsigned i, unsigned disk,
                       struct fm_error *err)
{
    const struct packed *packed = o->source->packed;
    int rc = check_folder(o, folder, i, err);
    for (uint32_t l = 0; rc == 0 && l < packed->n_layers; l++) {
        if (!o->is_needed[l + 1])
            continue;
        rc = source_file_open(&o->source->files[packed_file_index(packed, l, disk)], err);
        if (rc == 0)
            rc = check_layer(o, l, disk, err);
    }
    return rc;
}

static int refuse_split(const struct opening *o, const char *folder, int rc, struct fm_error *err)
{
    return err_wrap(err, rc, "the experts of '%s' are split over %u folders, and '%s' cannot be "
                    "used. Attach its disk, or write its new path into '%s/" DISKS_NAME "'",
                    o->dir, o->disks.n, folder, o->dir);
}

/* Adds one folder as a disk. A mirror that cannot be used is left out: the others have its
 * bytes. */
static int add_folder(const struct opening *o, unsigned i, struct fm_error *err)
{
    struct source *source = o->source;
    const unsigned disk = source->n_disks, first = source->n_files;
    const size_t n = source->packed->n_layers;
    struct fm_error why = {0};
    char *folder = disks_folder(&o->disks, o->dir, i, err);
    bool *none = mem_new(n, sizeof *none, "file names", err);
    int rc = folder == NULL || none == NULL
                 ? FM_ERR_NOMEM
                 : source_open_files(source, folder, NULL, o->list + 1, none, n, NULL, err);
    mem_free(none);
    if (rc != 0) {
        mem_free(folder);
        return rc;
    }
    source_add_disk(source, folder, first);
    rc = open_folder(o, folder, i, disk, &why);
    if (rc == 0)
        return 0;
    source_shut_files(source, first);
    if (!o->disks.is_mirrored || rc == FM_ERR_NOMEM) {
        (void)err_set(err, rc, "%s", why.text);
        return rc == FM_ERR_NOMEM ? rc : refuse_split(o, folder, rc, err);
    }
    source->disks[disk].is_lost = true;
    log_warn("model", "the mirror '%s' is not used: %s", folder, why.text);
    return 0;
}

static int check_layout(const struct opening *o, struct fm_error *err)
{
    const struct disks *d = &o->disks;
    const unsigned n_parts = o->source->packed->n_parts;
    if (n_parts > 1 && d->n == 0)
        return err_set(err, FM_ERR_FORMAT, "the experts of '%s' are split over %u folders, but "
                       "'%s/" DISKS_NAME "' is missing, which says where they are: copy it back or "
                       "pack the model again", o->dir, n_parts, o->dir);
    if (d->n > 0 && (d->is_mirrored ? n_parts != 1 : n_parts != d->n))
        return err_set(err, FM_ERR_FORMAT, "'%s/" DISKS_NAME "' names %u folders with the layout "
                       "\"%s\", but model.json has %u part%s of each expert: one of the two files "
                       "belongs to another model", o->dir, d->n,
                       d->is_mirrored ? DISKS_MIRROR : DISKS_SPLIT, n_parts,
                       n_parts == 1 ? "" : "s");
    if (d->n > 0 && !d->is_mirrored && d->here != 0)
        return err_set(err, FM_ERR_ARG, "'%s' has only part %u of each expert: open '%s', which "
                       "has the rest of the model", o->dir, d->here + 1, d->folders[0]);
    return 0;
}

static int open_folders(struct opening *o, struct fm_error *err)
{
    struct source *source = o->source;
    int rc = disks_load(o->dir, &o->disks, err);
    if (rc == 0)
        rc = check_layout(o, err);
    if (rc == 0)
        rc = make_names(o, err);
    if (rc == 0)
        rc = open_own(o, err);
    char *own = rc == 0 && o->disks.n > 0 ? mem_strdup(o->dir, err) : NULL;
    if (rc != 0 || o->disks.n == 0)
        return rc;
    if (own == NULL)
        return FM_ERR_NOMEM;
    source_add_disk(source, own, 0);
    source->is_mirrored = o->disks.is_mirrored;
    for (unsigned i = 0; rc == 0 && i < o->disks.n; i++)
        if (i != o->disks.here)
            rc = add_folder(o, i, err);
    return rc;
}

int packed_open(struct source *source, const char *dir, const struct source_options *options,
                struct fm_error *err)
{
    char *path = source_join(dir, PACKED_MODEL_NAME, err), *text = NULL;
    size_t bytes = 0;
    int rc = path == NULL ? FM_ERR_NOMEM
                          : plat_read_file(path, LIMIT_INDEX_JSON_BYTES, &text, &bytes, err);
    if (rc == 0)
        rc = packed_parse(source, path, text, bytes, err);
    struct opening opening = {.source = source, .dir = dir, .options = options, .text = text,
                              .text_bytes = bytes};
    if (rc == 0)
        rc = open_folders(&opening, err);
    if (rc == 0)
        rc = source_sort_tensors(source, err);
    free_names(&opening);
    disks_clear(&opening.disks);
    mem_free(text);
    mem_free(path);
    return rc;
}
