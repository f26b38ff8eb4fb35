#include <stdio.h>
#include <string.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "base/sized.h"
#include "flashmoe_lab.h"
#include "format/directory.h"
#include "pack/pack_internal.h"

#define PARTIAL_SUFFIX ".partial"

/* ---- the destination ------------------------------------------------------------------------ */

static int exists_already(const struct pack *pack, struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "'%s' exists already; remove it or choose another name",
                   pack->dst);
}

static int set_paths(struct pack *pack, struct fm_error *err)
{
    struct plat_file_info info;
    size_t n = strlen(pack->dst);
    while (n > 1 && pack->dst[n - 1] == '/')
        n--;
    if (n == 0 || pack->dst[n - 1] == '/')
        return err_set(err, FM_ERR_ARG, "'%s' cannot be the destination", pack->dst);
    /* An earlier process renamed it but did not clean up: continue there. */
    pack->is_renamed = directory_has(pack->dst, PLAN_NAME) &&
                       directory_has(pack->dst, PACKED_MODEL_NAME) && !pack->options->restart;
    int length = snprintf(pack->partial, sizeof pack->partial, "%.*s%s", (int)n, pack->dst,
                          pack->is_renamed ? "" : PARTIAL_SUFFIX);
    if (length < 0 || (size_t)length >= sizeof pack->partial - 300)
        return err_set(err, FM_ERR_ARG, "the path of the destination is too long");
    (void)snprintf(pack->stubs, sizeof pack->stubs, "%.*s/" STUBS_NAME,
                   (int)(sizeof pack->stubs - 16), pack->partial);
    /* A dangling link counts as existing, too. */
    return !pack->is_renamed && plat_file_info(pack->dst, &info) ? exists_already(pack, err) : 0;
}

/* Creates DST.partial or opens an existing one. A dry run only opens an existing one. */
static int take_partial(struct pack *pack, struct fm_error *err)
{
    const struct fm_pack_options *o = pack->options;
    char folder[LIMIT_PATH_BYTES];
    if (o->plan_only && !plat_file_exists(pack->partial))
        return 0;
    path_folder(pack->partial, folder);
    int rc = plat_make_dir(pack->partial, err);
    if (rc == 0)
        rc = plat_dir_open(pack->partial, PLAT_NO_LINK, &pack->dir, err);
    if (rc == 0)
        rc = plat_dir_check_own(&pack->dir, err);
    if (rc == 0)
        rc = plat_dir_lock(&pack->dir, err);
    if (rc == 0)
        rc = plat_sync_dir(folder, err);
    if (rc == 0)
        rc = partial_check_own(pack, err);
    if (rc == 0 && o->restart)
        rc = o->plan_only ? partial_check_discard(pack, err) : partial_discard(pack, err);
    pack->is_restart = o->restart;
    return rc;
}

static int open_source(struct pack *pack, struct fm_error *err)
{
    const struct model_options options = {.families = arch_families(), .spare_dir = pack->stubs,
                                          .metadata_only = true, .with_mtp = true,
                                          .may_be_part = true};
    int rc = model_open(pack->src, &options, &pack->model, err);
    return rc != 0 ? rc : layers_check(pack, err);
}

/* ---- the last file -------------------------------------------------------------------------- */

static int write_texts(struct pack *pack, struct fm_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < pack->packed.n_files; i++) {
        const struct packed_file *file = &pack->packed.files[i];
        rc = partial_write(pack, file->name, pack->texts[i], file->bytes, err);
        if (rc == 0 && pack->options->mirror)
            rc = folders_write(pack, file->name, pack->texts[i], file->bytes, err);
    }
    return rc;
}

void pack_source_name(const struct pack *pack, char out[])
{
    char path[LIMIT_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s", pack->src);
    (void)plat_real_path(pack->src, path);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    (void)snprintf(out, LIMIT_PATH_BYTES, "%s", path_base(path));
}

static json_t *provenance_json(const struct pack *pack)
{
    char path[LIMIT_PATH_BYTES];
    pack_source_name(pack, path);
    json_t *name = json_string(path);
    return json_pack("{s:o, s:s}", "source", name != NULL ? name : json_string(""), "kind",
                     source_kind_name(pack->model->source));
}

static int write_model(struct pack *pack, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    json_t *provenance = provenance_json(pack);
    char *text = NULL;
    size_t bytes = 0;
    int rc = packed_model_text(&pack->packed, source->config.root, &source->conventions,
                               provenance, &text, &bytes, err);
    if (rc == 0)
        rc = folders_write_list(pack, err);
    if (rc == 0)
        rc = folders_write(pack, PACKED_MODEL_NAME, text, bytes, err);
    if (rc == 0) /* last: with it everything is complete */
        rc = partial_write(pack, PACKED_MODEL_NAME, text, bytes, err);
    mem_free(text);
    json_decref(provenance);
    return rc;
}

/* Checks that a complete DST.partial opens as a model. */
static int check_whole(struct pack *pack, struct fm_error *err)
{
    const struct model_options options = {.families = arch_families(), .metadata_only = true,
                                          .with_mtp = true, .may_be_part = true};
    struct fm_pack_result *result = pack->result;
    struct model *model;
    int rc = model_open(pack->partial, &options, &model, err);
    if (rc != 0)
        return rc;
    const struct source *source = model->source;
    result->n_layers_here = result->n_layers_elsewhere = 0;
    for (uint32_t i = 0; i < source->packed->n_layers; i++)
        if (source->packed->layers[i].is_elsewhere)
            result->n_layers_elsewhere++;
        else
            result->n_layers_here++;
    if (result->was_whole) {
        const unsigned n_copies = source->is_mirrored ? source->n_disks : 1;
        for (unsigned f = 0; f < source->n_files; f++)
            result->packed_bytes += (f == 0 ? n_copies : 1) * source->files[f].bytes;
        for (size_t i = 0; i < source->packed->n_files; i++)
            result->packed_bytes += n_copies * source->packed->files[i].bytes;
        result->found_bytes = result->packed_bytes;
    }
    model_close(model);
    return 0;
}

int partial_rename(char partial[], const struct plat_dir *dir, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES], name[LIMIT_PATH_BYTES];
    struct plat_file_info is;
    struct plat_dir holder;
    path_folder(partial, folder);
    (void)snprintf(name, sizeof name, "%s", path_base(partial));
    name[strlen(name) - strlen(PARTIAL_SUFFIX)] = '\0';
    int rc = plat_dir_open(folder, PLAT_ANY_LINK, &holder, err);
    if (rc == 0 && !plat_open_file_info(dir->fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", partial);
    if (rc == 0)
        rc = plat_dir_rename(&holder, path_base(partial), name, &is, err);
    if (rc != 0) {
        plat_dir_close(&holder);
        return rc;
    }
    partial[strlen(partial) - strlen(PARTIAL_SUFFIX)] = '\0';
    rc = plat_dir_sync(&holder, err);
    plat_dir_close(&holder);
    return rc;
}

/* Renames the complete DST.partial to DST. Files for packing itself are removed afterwards, because
 * until then they record which source files are gone. */
static int rename_whole(struct pack *pack, struct fm_error *err)
{
    int rc = partial_rename(pack->partial, &pack->dir, err);
    pack->is_renamed = !name_has_suffix(pack->partial, PARTIAL_SUFFIX);
    (void)snprintf(pack->stubs, sizeof pack->stubs, "%.*s/" STUBS_NAME,
                   (int)(sizeof pack->stubs - 16), pack->partial);
    return rc;
}

static int finish(struct pack *pack, struct fm_error *err)
{
    int rc = folders_rename(pack, err); /* first: the model is opened with them */
    if (rc == 0)
        rc = check_whole(pack, err);
    if (rc == 0 && !pack->is_renamed)
        rc = rename_whole(pack, err);
    if (rc == 0)
        rc = folders_clean(pack, err);
    return rc != 0 ? rc : partial_clean(pack, err);
}

/* Finishes a pack that an earlier process has written completely. */
static int finish_earlier(struct pack *pack, struct fm_error *err)
{
    pack->result->was_whole = true;
    int rc = partial_check_whole(pack, err);
    if (rc == FM_ERR_ARG && pack->is_renamed)
        rc = exists_already(pack, err);
    return rc != 0 || pack->options->plan_only ? rc : finish(pack, err);
}

/* ---- packing a model ------------------------------------------------------------------------ */

static int prepare(struct pack *pack, struct fm_error *err)
{
    int rc = remote_headers(pack, err);
    if (rc == 0)
        rc = open_source(pack, err);
    if (rc == 0)
        rc = folders_share(pack, err);
    if (rc == 0)
        rc = plan_make(pack, err);
    if (rc == 0)
        rc = space_check_consume(pack, err);
    if (rc == 0)
        rc = partial_check_plan(pack, err);
    if (rc == 0)
        rc = partial_find(pack, err);
    if (rc == 0)
        rc = space_check(pack, err);
    if (rc == 0)
        rc = partial_begin(pack, err);
    for (uint32_t i = 0; i < pack->n_files; i++)
        if (pack->files[i].step != PACK_DONE)
            pack->total_bytes += (pack->files[i].is_elsewhere ? 1 : 2 * pack->files[i].n_copies) *
                                 pack->files[i].bytes;
    pack->done_bytes = pack->result->found_bytes; /* they are read back too */
    return rc;
}

static int work(struct pack *pack, struct fm_error *err)
{
    if (!pack->is_restart && directory_has(pack->partial, PACKED_MODEL_NAME))
        return finish_earlier(pack, err);
    int rc = prepare(pack, err);
    if (rc != 0 || pack->options->plan_only)
        return rc;
    rc = write_texts(pack, err);
    if (rc == 0)
        rc = pipeline_run(pack, err);
    if (rc == 0)
        rc = write_model(pack, err);
    if (rc != 0)
        partial_drop(pack); /* frees space on a full disk */
    return rc != 0 ? rc : finish(pack, err);
}

int fm_pack(const char *src, const char *dst, const struct fm_pack_options *options,
            struct fm_pack_result *result, struct fm_error *err)
{
    struct fm_pack_options own;
    struct fm_pack_result made = {0};
    int rc = result != NULL ? sized_check(result, "fm_pack_result", err) : 0;
    if (rc == 0)
        rc = sized_take(&own, sizeof own, options, "fm_pack_options", err);
    if (rc != 0)
        return rc;
    struct pack *pack = mem_new(1, sizeof *pack, "the packing", err);
    if (pack == NULL)
        return FM_ERR_NOMEM;
    pack->src = src;
    pack->dst = dst;
    own.consume = own.consume || own.remote != NULL;
    pack->options = &own;
    pack->result = &made;
    pack->dir.fd = -1;
    rc = layers_read(pack, err);
    if (rc == 0)
        rc = set_paths(pack, err);
    if (rc == 0)
        rc = folders_read(pack, err);
    if (rc == 0)
        rc = take_partial(pack, err);
    if (rc == 0)
        rc = folders_take(pack, err);
    if (rc == 0)
        rc = work(pack, err);
    if (rc != 0 && pack->dir.fd >= 0 && !pack->is_renamed)
        (void)plat_remove_dir(pack->partial, NULL); /* only succeeds when it is empty */
    if (rc != 0)
        folders_leave(pack);
    plan_clear(pack);
    folders_clear(pack);
    model_close(pack->model);
    plat_dir_close(&pack->dir);
    mem_free(pack);
    if (result != NULL)
        (void)sized_give(result, &made, sizeof made); /* a wrong size was refused above */
    return rc;
}
