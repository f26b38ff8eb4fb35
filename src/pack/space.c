/* The disk: how much is needed at the worst moment, and which source files may go. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "pack/pack_internal.h"

/* Files that are on the way at the same time: see pipeline.c. */
#define WINDOW 2

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

/* The directory a path lies in. */
static void folder_of(const char *path, char out[LIMIT_PATH_BYTES])
{
    (void)snprintf(out, LIMIT_PATH_BYTES, "%s", path);
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        (void)snprintf(out, LIMIT_PATH_BYTES, ".");
    else
        slash[slash == out] = '\0';
}

/* ---- what may be removed -------------------------------------------------------------------- */

static bool is_inside(const char *inner, const char *outer)
{
    const size_t n = strlen(outer);
    return strncmp(inner, outer, n) == 0 && (inner[n] == '/' || inner[n] == '\0');
}

static int check_file(const char *path, struct fm_error *err)
{
    struct plat_file_info info;
    if (plat_file_info(path, &info) && !info.is_link)
        return 0;
    return err_set(err, FM_ERR_ARG, "--consume: '%s' is a link; give the directory that holds the "
                   "files themselves, so that removing them frees space", path);
}

int space_check_consume(struct pack *pack, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    char src[LIMIT_PATH_BYTES], dst[LIMIT_PATH_BYTES], folder[LIMIT_PATH_BYTES];
    struct fm_pack_result *result = pack->result;
    folder_of(pack->partial, folder);
    if (pack->options->consume && source->kind == SOURCE_PACKED)
        return err_set(err, FM_ERR_ARG, "--consume: '%s' is packed already", pack->src);
    if (pack->options->consume && plat_real_path(pack->src, src) && plat_real_path(folder, dst) &&
        is_inside(dst, src))
        return err_set(err, FM_ERR_ARG, "--consume: '%s' lies inside the source '%s'; give another "
                       "destination", pack->dst, pack->src);
    for (unsigned f = 0; f < source->n_files; f++) {
        const struct source_file *file = &source->files[f];
        if (pack->last_use[f] < 0) {
            (void)snprintf(result->left, sizeof result->left, "%.159s", base_name(file->path));
        } else if (!pack->is_spare[f]) {
            int rc = pack->options->consume ? check_file(file->path, err) : 0;
            if (rc != 0)
                return rc;
            result->n_removable++;
            result->removable_bytes += file->bytes;
        }
    }
    return 0;
}

/* ---- how much ------------------------------------------------------------------------------- */

/* What removing the source files behind output file i frees on the destination's disk. */
static uint64_t freed_by(const struct pack *pack, uint32_t i, uint64_t device)
{
    const struct source *source = pack->model->source;
    uint64_t bytes = 0;
    for (unsigned f = 0; f < source->n_files; f++) {
        struct plat_file_info info;
        if (pack->last_use[f] == i && !pack->is_spare[f] &&
            plat_file_info(source->files[f].path, &info) && info.device == device &&
            info.n_links == 1)
            bytes += info.bytes;
    }
    return bytes;
}

/* Checksums, headers of removed files, model.json. */
static uint64_t small_files(const struct pack *pack)
{
    uint64_t bytes = 4u << 20;
    for (size_t i = 0; i < pack->packed.n_files; i++)
        bytes += pack->packed.files[i].bytes;
    bytes += pack->packed.n_tensors * 512;
    for (uint32_t i = 0; i < pack->packed.n_layers; i++)
        bytes += pack->packed.layers[i].n_experts * (uint64_t)64;
    return bytes;
}

int space_check(struct pack *pack, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES];
    struct plat_file_info info = {0};
    folder_of(pack->partial, folder);
    (void)plat_file_info(folder, &info);
    uint64_t used = small_files(pack), need = used, freed[WINDOW] = {0};
    for (uint32_t i = 0; i < pack->n_files; i++) {
        if (pack->options->consume && i >= WINDOW)
            used -= used < freed[i % WINDOW] ? used : freed[i % WINDOW];
        used += pack->files[i].was_found ? 0 : mem_round_up(pack->files[i].bytes, MEM_PAGE);
        need = used > need ? used : need;
        freed[i % WINDOW] = freed_by(pack, i, info.device);
    }
    pack->result->need_bytes = need;
    pack->result->free_bytes = plat_free_bytes(folder);
    if (need <= pack->result->free_bytes)
        return 0;
    const double gb = 1e-9;
    return err_set(err, FM_ERR_IO, "not enough space on the disk of '%s': the pack has %.2f GB, of "
                   "which %.2f GB are there already; %.2f GB more are needed%s and %.2f GB are "
                   "free%s", pack->dst, (double)pack->result->packed_bytes * gb,
                   (double)pack->result->found_bytes * gb, (double)need * gb,
                   pack->options->consume ? " at the worst moment" : "",
                   (double)pack->result->free_bytes * gb,
                   pack->options->consume ? "" : "; --consume removes source files on the way");
}

/* ---- removing ------------------------------------------------------------------------------- */

/* Bytes in front of the first tensor of the file. */
static uint64_t header_bytes(const struct source *source, unsigned f)
{
    uint64_t bytes = source->files[f].bytes;
    for (size_t i = 0; i < source->n_tensors; i++)
        for (unsigned p = 0; p < source->tensors[i].n_parts; p++) {
            const struct tensor_part *part = &source->tensors[i].parts[p];
            if (part->file == f && part->offset < bytes)
                bytes = part->offset;
        }
    return bytes;
}

static int copy_header(const struct source_file *from, uint64_t bytes, int fd, const char *path,
                       struct fm_error *err)
{
    const uint64_t most = 1u << 20;
    char *buffer = mem_new(most, 1, "a copy buffer", err);
    int rc = buffer == NULL ? FM_ERR_NOMEM : 0;
    for (uint64_t at = 0; rc == 0 && at < bytes;) {
        uint64_t n = bytes - at < most ? bytes - at : most;
        rc = plat_read_at(from->fd, from->path, buffer, n, at, err);
        if (rc == 0)
            rc = plat_write_at(fd, path, buffer, n, at, err);
        at += n;
    }
    mem_free(buffer);
    return rc;
}

/* The header alone in a file of the same size and time, which takes almost no space: with it the
 * source can still be opened. */
static int make_spare(struct pack *pack, unsigned f, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    const struct source_file *file = &source->files[f];
    char path[LIMIT_PATH_BYTES], tmp[LIMIT_PATH_BYTES + 8];
    struct plat_file_info info;
    int fd = -1;
    bool is_direct = false;
    if (!plat_file_info(file->path, &info))
        return err_set(err, FM_ERR_IO, "'%s' is gone", file->path);
    int n = snprintf(path, sizeof path, "%s/%s", pack->spares, base_name(file->path));
    if (n < 0 || n >= LIMIT_PATH_BYTES)
        return err_set(err, FM_ERR_ARG, "the path of '%s' is too long", pack->spares);
    /* In PARTIAL itself, where leftovers are cleared away. */
    (void)snprintf(tmp, sizeof tmp, "%s/%s.tmp", pack->partial, base_name(file->path));
    int rc = plat_make_dir(pack->spares, err);
    if (rc == 0)
        rc = plat_create(tmp, &is_direct, &fd, err);
    if (rc == 0)
        rc = copy_header(file, header_bytes(source, f), fd, tmp, err);
    /* The last byte makes it as long as it was. */
    if (rc == 0 && file->bytes > header_bytes(source, f))
        rc = plat_write_at(fd, tmp, "", 1, file->bytes - 1, err);
    if (rc == 0)
        rc = plat_set_mtime(fd, tmp, info.mtime_ns, err);
    if (rc == 0)
        rc = plat_sync(fd, tmp, err);
    plat_close(fd);
    if (rc == 0)
        rc = plat_rename(tmp, path, err);
    if (rc == 0)
        rc = plat_sync_dir(pack->spares, err);
    return rc != 0 ? rc : plat_sync_dir(pack->partial, err);
}

int space_consume(struct pack *pack, uint32_t n_done, struct fm_error *err)
{
    struct source *source = pack->model->source;
    char folder[LIMIT_PATH_BYTES];
    for (unsigned f = 0; f < source->n_files; f++) {
        if (pack->is_spare[f] || pack->last_use[f] < 0 || pack->last_use[f] >= n_done)
            continue;
        int rc = make_spare(pack, f, err);
        if (rc == 0)
            rc = plat_remove(source->files[f].path, err);
        if (rc != 0)
            return rc;
        pack->is_spare[f] = true;
        plat_close(source->files[f].fd); /* nobody reads it any more; now its space is free */
        source->files[f].fd = -1;
        folder_of(source->files[f].path, folder);
        rc = plat_sync_dir(folder, err);
        if (rc != 0)
            return rc;
    }
    return 0;
}
