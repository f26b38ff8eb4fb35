#include <stdio.h>
#include <string.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "base/plat.h"
#include "format/directory.h"
#include "pack/pack_internal.h"

#define PARTIAL_SUFFIX ".partial"
#define SPARES_NAME "source"

void fm_pack_options_init(struct fm_pack_options *options)
{
    *options = (struct fm_pack_options){0};
}

/* ---- before --------------------------------------------------------------------------------- */

static int set_paths(struct pack *pack, struct fm_error *err)
{
    size_t n = strlen(pack->dst);
    while (n > 1 && pack->dst[n - 1] == '/')
        n--;
    if (n == 0 || pack->dst[n - 1] == '/')
        return err_set(err, FM_ERR_ARG, "'%s' cannot be the destination", pack->dst);
    int length = snprintf(pack->partial, sizeof pack->partial, "%.*s" PARTIAL_SUFFIX, (int)n,
                          pack->dst);
    if (length < 0 || (size_t)length >= sizeof pack->partial - 300)
        return err_set(err, FM_ERR_ARG, "the path of the destination is too long");
    (void)snprintf(pack->spares, sizeof pack->spares, "%.*s/" SPARES_NAME,
                   (int)(sizeof pack->spares - 16), pack->partial);
    if (plat_file_exists(pack->dst))
        return err_set(err, FM_ERR_ARG, "'%s' exists already; remove it or choose another name",
                       pack->dst);
    return 0;
}

/* Makes DST.partial, or takes the one that is there. A plan takes it only if it is there. */
static int take_partial(struct pack *pack, struct fm_error *err)
{
    if (pack->options->plan_only && !plat_file_exists(pack->partial))
        return 0;
    int rc = plat_make_dir(pack->partial, err);
    if (rc == 0)
        rc = plat_lock_dir(pack->partial, &pack->lock_fd, err);
    if (rc == 0 && pack->options->restart && !pack->options->plan_only)
        rc = state_discard(pack, err);
    return rc;
}

static int open_source(struct pack *pack, struct fm_error *err)
{
    const struct model_options options = {.families = arch_families(), .metadata_only = true};
    struct source *source;
    int rc = source_open_with_spares(pack->src, pack->spares, &source, err);
    return rc != 0 ? rc : model_open_source(source, &options, &pack->model, err);
}

/* ---- the last file -------------------------------------------------------------------------- */

static int write_texts(struct pack *pack, struct fm_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < pack->packed.n_files; i++)
        rc = state_write(pack, pack->packed.files[i].name, pack->texts[i],
                         pack->packed.files[i].bytes, err);
    return rc;
}

/* The name of the source, without the folders it lies in. */
static json_t *provenance_json(const struct pack *pack)
{
    char path[LIMIT_PATH_BYTES];
    const char *given = pack->src;
    if (plat_real_path(pack->src, path))
        given = path;
    size_t n = strlen(given);
    while (n > 1 && given[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin > 0 && given[begin - 1] != '/')
        begin--;
    json_t *name = json_stringn(given + begin, n - begin);
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
        rc = state_write(pack, PACKED_MODEL_NAME, text, bytes, err);
    mem_free(text);
    json_decref(provenance);
    return rc;
}

/* DST.partial is whole: it opens as a model. */
static int rename_whole(struct pack *pack, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES];
    struct source *source;
    int rc = source_open(pack->partial, &source, err);
    if (rc == 0) {
        if (pack->result->packed_bytes == 0) /* all of it was found */
            for (unsigned f = 0; f < source->n_files; f++)
                pack->result->found_bytes += source->files[f].bytes;
        pack->result->packed_bytes += pack->result->packed_bytes == 0 ? pack->result->found_bytes
                                                                      : 0;
        source_close(source);
        rc = state_clean(pack, err);
    }
    if (rc == 0)
        rc = plat_rename(pack->partial, pack->dst, err);
    (void)snprintf(folder, sizeof folder, "%s", pack->partial);
    char *slash = strrchr(folder, '/');
    if (slash != NULL)
        slash[slash == folder] = '\0';
    return rc != 0 ? rc : plat_sync_dir(slash != NULL ? folder : ".", err);
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* Files from the front that an earlier run has finished. */
static uint32_t n_found(const struct pack *pack)
{
    uint32_t n = 0;
    while (n < pack->n_files && pack->files[n].was_found)
        n++;
    return n;
}

static int prepare(struct pack *pack, struct fm_error *err)
{
    int rc = open_source(pack, err);
    if (rc == 0)
        rc = plan_make(pack, err);
    if (rc == 0)
        rc = space_check_consume(pack, err);
    if (rc == 0)
        rc = state_begin(pack, err);
    if (rc == 0)
        rc = state_find(pack, err);
    if (rc == 0 && pack->options->consume && !pack->options->plan_only)
        rc = space_consume(pack, n_found(pack), err);
    if (rc == 0)
        rc = space_check(pack, err);
    for (uint32_t i = 0; i < pack->n_files; i++)
        pack->total_bytes += 2 * pack->files[i].bytes;
    pack->done_bytes = 2 * pack->result->found_bytes;
    return rc;
}

static int work(struct pack *pack, struct fm_error *err)
{
    int rc;
    if (directory_has(pack->partial, PACKED_MODEL_NAME)) {
        rc = state_check_formats(pack, err);
        return rc != 0 || pack->options->plan_only ? rc : rename_whole(pack, err);
    }
    rc = prepare(pack, err);
    if (rc != 0 || pack->options->plan_only)
        return rc;
    rc = write_texts(pack, err);
    if (rc == 0)
        rc = pipeline_run(pack, err);
    if (rc == 0)
        rc = write_model(pack, err);
    if (rc != 0)
        state_drop(pack); /* a full disk is less full then */
    return rc != 0 ? rc : rename_whole(pack, err);
}

int fm_pack(const char *src, const char *dst, const struct fm_pack_options *options,
            struct fm_pack_result *result, struct fm_error *err)
{
    struct fm_pack_options defaults;
    struct fm_pack_result ignored;
    fm_pack_options_init(&defaults);
    struct pack *pack = mem_new(1, sizeof *pack, "the packing", err);
    if (pack == NULL)
        return FM_ERR_NOMEM;
    pack->src = src;
    pack->dst = dst;
    pack->options = options != NULL ? options : &defaults;
    pack->result = result != NULL ? result : &ignored;
    pack->lock_fd = -1;
    *pack->result = (struct fm_pack_result){0};
    int rc = set_paths(pack, err);
    if (rc == 0)
        rc = take_partial(pack, err);
    if (rc == 0)
        rc = work(pack, err);
    if (rc != 0 && pack->lock_fd >= 0)
        (void)plat_remove_dir(pack->partial, NULL); /* only if nothing is in it */
    plan_clear(pack);
    model_close(pack->model);
    plat_close(pack->lock_fd);
    mem_free(pack);
    return rc;
}
