/* Packing into several folders, each on a disk of its own. The first folder is an ordinary packed
 * model; the others have a part of every expert's record, or a copy of everything. Each is made in
 * its own DST.partial. The first folder's model.json is written last and it is renamed last, so
 * that everything belongs together once it exists.
 *   plan.json     the same bytes in all of them: with another text, or without one in the first
 *                 folder, they belong to another packing */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "flashmoe_lab.h"
#include "format/directory.h"
#include "format/disks.h"
#include "pack/pack_internal.h"
#include "store/disk_probe.h"

#define PARTIAL_SUFFIX ".partial"

static int exists_already(const char *dst, struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "'%s' exists already; remove it or choose another name", dst);
}

/* ---- names ---------------------------------------------------------------------------------- */

/* Writes the path of a folder that need not exist, without links in what is above it. */
static int real_folder(const char *path, char out[LIMIT_PATH_BYTES], struct fm_error *err)
{
    char trimmed[LIMIT_PATH_BYTES], above[LIMIT_PATH_BYTES], real[LIMIT_PATH_BYTES];
    int n = snprintf(trimmed, sizeof trimmed, "%s", path);
    if (n <= 0 || (size_t)n >= sizeof trimmed - 300)
        return err_set(err, FM_ERR_ARG, "the path of the folder '%.60s' is empty or too long",
                       path);
    while (n > 1 && trimmed[n - 1] == '/')
        trimmed[--n] = '\0';
    path_folder(trimmed, above);
    if (!plat_real_path(above, real))
        return err_set(err, FM_ERR_IO, "'%s', where '%s' is to be created, does not exist", above,
                       path);
    n = snprintf(out, LIMIT_PATH_BYTES, "%s%s%s", real, strcmp(real, "/") == 0 ? "" : "/",
                 path_base(trimmed));
    if (n <= 0 || n >= LIMIT_PATH_BYTES - 300)
        return err_set(err, FM_ERR_ARG, "the path of the folder '%.60s' is too long", path);
    return 0;
}

int folders_read(struct pack *pack, struct fm_error *err)
{
    const struct fm_pack_options *o = pack->options;
    pack->n_folders = 1 + o->n_others;
    if (pack->n_folders > SOURCE_MAX_DISKS)
        return err_set(err, FM_ERR_ARG, "%u folders are too many: at most %d", pack->n_folders,
                       SOURCE_MAX_DISKS);
    if (o->n_others == 0 && (o->mirror || o->shares != NULL))
        return err_set(err, FM_ERR_ARG, "a mirror and shares need at least two folders");
    if (o->mirror && o->shares != NULL)
        return err_set(err, FM_ERR_ARG, "a mirror has no shares: every folder gets everything");
    if (o->n_others == 0)
        return 0;
    pack->others = mem_new(o->n_others, sizeof *pack->others, "the folders", err);
    if (pack->others == NULL)
        return FM_ERR_NOMEM;
    for (unsigned i = 0; i < o->n_others; i++)
        pack->others[i].dir.fd = -1;
    int rc = real_folder(pack->dst, pack->real_dst, err);
    for (unsigned i = 0; rc == 0 && i < o->n_others; i++) {
        rc = real_folder(o->others[i], pack->others[i].dst, err);
        bool is_twice = rc == 0 && strcmp(pack->others[i].dst, pack->real_dst) == 0;
        for (unsigned j = 0; j < i; j++)
            is_twice |= strcmp(pack->others[i].dst, pack->others[j].dst) == 0;
        if (is_twice)
            rc = err_set(err, FM_ERR_ARG, "'%s' is named twice", o->others[i]);
    }
    return rc;
}

const struct plat_dir *folders_dir(const struct pack *pack, unsigned folder)
{
    return folder == 0 ? &pack->dir : &pack->others[folder - 1].dir;
}

/* ---- the directories ------------------------------------------------------------------------ */

static int remove_any(void *ctx, const char *name, struct fm_error *err)
{
    const struct plat_dir *dir = ctx;
    return plat_dir_remove(dir, name, NULL, err);
}

static int note_name(void *ctx, const char *name, struct fm_error *err)
{
    (void)err;
    (void)snprintf(ctx, DIRECTORY_NAME_BYTES, "%s", name);
    return 0;
}

/* Refuses a folder that belongs to another packing, or to none. */
static int check_plan(const struct pack *pack, const struct pack_folder *folder,
                      struct fm_error *err)
{
    char *ours = NULL, *theirs = NULL, found[DIRECTORY_NAME_BYTES] = "";
    struct plat_file_info info;
    size_t n_ours = 0, n_theirs = 0;
    const bool has_plan = plat_dir_info(&folder->dir, PLAN_NAME, &info);
    if (!has_plan && pack->is_renamed) /* it is cleaned up already */
        return 0;
    int rc = has_plan ? plat_dir_read_file(&folder->dir, PLAN_NAME, LIMIT_INDEX_JSON_BYTES,
                                           &theirs, &n_theirs, err)
                      : plat_dir_each_name(&folder->dir, note_name, found, err);
    if (rc == 0 && has_plan && plat_dir_info(&pack->dir, PLAN_NAME, &info))
        rc = plat_dir_read_file(&pack->dir, PLAN_NAME, LIMIT_INDEX_JSON_BYTES, &ours, &n_ours, err);
    if (rc == 0 && has_plan && (n_ours != n_theirs || memcmp(ours, theirs, n_ours) != 0))
        rc = err_set(err, FM_ERR_ARG, "'%s' belongs to another packing than '%s': finish that one "
                     "first, or begin again with --restart", folder->partial, pack->partial);
    if (rc == 0 && found[0] != '\0')
        rc = err_set(err, FM_ERR_ARG, "'%s' holds '%.200s' and no " PLAN_NAME ": no packing has "
                     "created it; move it away or choose another folder", folder->partial, found);
    mem_free(ours);
    mem_free(theirs);
    return rc;
}

static int take_folder(struct pack *pack, struct pack_folder *folder, struct fm_error *err)
{
    char above[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    const bool is_there = plat_file_info(folder->dst, &info);
    folder->is_renamed = is_there && !pack->is_restart &&
                         (pack->is_renamed || directory_has(folder->dst, PLAN_NAME));
    if (is_there && !folder->is_renamed)
        return exists_already(folder->dst, err);
    (void)snprintf(folder->partial, sizeof folder->partial, "%.*s%s", LIMIT_PATH_BYTES - 16,
                   folder->dst, folder->is_renamed ? "" : PARTIAL_SUFFIX);
    if (pack->options->plan_only && !plat_file_exists(folder->partial))
        return 0;
    path_folder(folder->partial, above);
    int rc = plat_make_dir(folder->partial, err);
    if (rc == 0)
        rc = plat_dir_open(folder->partial, PLAT_NO_LINK, &folder->dir, err);
    if (rc == 0)
        rc = plat_dir_check_own(&folder->dir, err);
    if (rc == 0)
        rc = plat_dir_lock(&folder->dir, err);
    if (rc == 0)
        rc = plat_sync_dir(above, err);
    if (rc == 0)
        rc = partial_check_names(&folder->dir, false, err);
    if (rc == 0 && pack->is_restart && !pack->options->plan_only &&
        plat_dir_info(&folder->dir, PLAN_NAME, &info))
        rc = plat_dir_each_name(&folder->dir, remove_any, &folder->dir, err);
    return rc != 0 || (pack->is_restart && pack->options->plan_only)
               ? rc : check_plan(pack, folder, err);
}

int folders_take(struct pack *pack, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i + 1 < pack->n_folders; i++)
        rc = take_folder(pack, &pack->others[i], err);
    return rc;
}

/* ---- shares --------------------------------------------------------------------------------- */

static int measure_shares(struct pack *pack, struct fm_error *err)
{
    double speeds[SOURCE_MAX_DISKS] = {0};
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 2 * pack->n_folders; i++) { /* best of two, in turns */
        const unsigned f = i % pack->n_folders;
        double speed = 0;
        rc = disk_probe(folders_dir(pack, f), &speed, err);
        speeds[f] = speed > speeds[f] ? speed : speeds[f];
    }
    for (unsigned i = 0; rc == 0 && i < pack->n_folders; i++)
        log_info("pack", "'%s' reads %.2f GB/s", folders_dir(pack, i)->path, speeds[i] * 1e-9);
    memcpy(pack->shares, speeds, sizeof speeds);
    return rc;
}

int folders_share(struct pack *pack, struct fm_error *err)
{
    const struct fm_pack_options *o = pack->options;
    double sum = 0;
    int rc = 0;
    pack->packed.n_parts = o->mirror ? 1 : pack->n_folders;
    if (pack->packed.n_parts == 1)
        return 0;
    if (partial_read_shares(pack, pack->shares))
        return 0;
    for (unsigned i = 0; i < pack->n_folders; i++)
        pack->shares[i] = o->shares != NULL ? o->shares[i] : 1;
    if (o->shares == NULL && !o->plan_only)
        rc = measure_shares(pack, err);
    for (unsigned i = 0; i < pack->n_folders; i++)
        sum += pack->shares[i];
    for (unsigned i = 0; rc == 0 && i < pack->n_folders; i++) {
        if (!(pack->shares[i] > 0 && pack->shares[i] < 1e15))
            rc = err_set(err, FM_ERR_ARG, "the share of folder %u is %g, expected a number above 0",
                         i + 1, pack->shares[i]);
        pack->shares[i] /= sum;
    }
    return rc;
}

int folders_cut(const struct pack *pack, struct packed_layer *layer, struct fm_error *err)
{
    const unsigned n = pack->packed.n_parts;
    const uint64_t n_pages = layer->record.bytes / MEM_PAGE;
    uint64_t left = n_pages;
    layer->part_bytes[0] = layer->record.bytes;
    if (n == 1)
        return 0;
    if (n_pages < n)
        return err_set(err, FM_ERR_UNSUPPORTED, "an expert of layer %u has %llu bytes, which "
                       "cannot be split over %u folders: use --mirror or one folder", layer->layer,
                       (unsigned long long)layer->record.bytes, n);
    for (unsigned i = 0; i < n; i++) {
        uint64_t pages = (uint64_t)((double)n_pages * pack->shares[i] + 0.5);
        const uint64_t max = left - (n - 1 - i); /* a page for each of the others */
        pages = pages < 1 ? 1 : pages > max || i == n - 1 ? max : pages;
        layer->part_bytes[i] = pages * MEM_PAGE;
        left -= pages;
    }
    return 0;
}

/* ---- small files ---------------------------------------------------------------------------- */

int folders_write(const struct pack *pack, const char *name, const void *data, size_t bytes,
                  struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i + 1 < pack->n_folders; i++)
        rc = partial_write_in(&pack->others[i].dir, name, data, bytes, err);
    return rc;
}

int folders_write_plan(const struct pack *pack, struct fm_error *err)
{
    char *text;
    size_t bytes;
    if (pack->n_folders == 1)
        return 0;
    int rc = plat_dir_read_file(&pack->dir, PLAN_NAME, LIMIT_INDEX_JSON_BYTES, &text, &bytes, err);
    if (rc == 0)
        rc = folders_write(pack, PLAN_NAME, text, bytes, err);
    mem_free(text);
    return rc;
}

int folders_write_list(const struct pack *pack, struct fm_error *err)
{
    struct disks disks = {.n = pack->n_folders, .is_mirrored = pack->options->mirror};
    int rc = 0;
    disks.folders[0] = (char *)(uintptr_t)pack->real_dst;
    for (unsigned i = 1; i < disks.n; i++)
        disks.folders[i] = pack->others[i - 1].dst;
    for (unsigned i = 0; rc == 0 && disks.n > 1 && i < disks.n; i++) {
        char *text;
        size_t bytes;
        disks.here = i;
        rc = disks_text(&disks, &text, &bytes, err);
        if (rc == 0)
            rc = partial_write_in(folders_dir(pack, i), DISKS_NAME, text, bytes, err);
        mem_free(text);
    }
    return rc;
}

/* ---- the end -------------------------------------------------------------------------------- */

int folders_rename(struct pack *pack, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i + 1 < pack->n_folders; i++) {
        struct pack_folder *folder = &pack->others[i];
        if (folder->is_renamed)
            continue;
        rc = partial_rename(folder->partial, &folder->dir, err);
        folder->is_renamed = rc == 0;
    }
    return rc;
}

int folders_clean(const struct pack *pack, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i + 1 < pack->n_folders; i++) {
        const struct plat_dir *dir = &pack->others[i].dir;
        rc = plat_dir_remove(dir, PLAN_NAME, NULL, err);
        if (rc == 0)
            rc = plat_dir_sync(dir, err);
    }
    return rc;
}

void folders_leave(struct pack *pack)
{
    for (unsigned i = 0; pack->others != NULL && i + 1 < pack->n_folders; i++)
        if (pack->others[i].dir.fd >= 0 && !pack->others[i].is_renamed)
            (void)plat_remove_dir(pack->others[i].partial, NULL); /* only when it is empty */
}

void folders_clear(struct pack *pack)
{
    for (unsigned i = 0; pack->others != NULL && i + 1 < pack->n_folders; i++)
        plat_dir_close(&pack->others[i].dir);
    mem_free(pack->others);
    pack->others = NULL;
}
