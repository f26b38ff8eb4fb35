/* Disk space: how much is needed at the peak, and which source files can be removed. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "flashmoe_lab.h"
#include "pack/pack_internal.h"

#define CHANGED "'%s' was changed while it was packed: left in place"

/* ---- which source files can be removed ------------------------------------------------------ */

static bool is_inside(const char *inner, const char *outer)
{
    const size_t n = strlen(outer);
    return strncmp(inner, outer, n) == 0 && (inner[n] == '/' || inner[n] == '\0');
}

static int check_file(const char *path, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES];
    struct plat_file_info info;
    path_folder(path, folder);
    if (!plat_file_info(path, &info) || info.is_link)
        return err_set(err, FM_ERR_ARG, "--consume: '%s' is a link; give the directory that holds "
                       "the files themselves, so that removing them frees space", path);
    if (!plat_may_change_dir(folder))
        return err_set(err, FM_ERR_ARG, "--consume: nothing can be removed from '%s', which is "
                       "read-only: go on without --consume", folder);
    return 0;
}

int space_check_consume(struct pack *pack, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    char src[LIMIT_PATH_BYTES], dst[LIMIT_PATH_BYTES], folder[LIMIT_PATH_BYTES];
    struct fm_pack_result *result = pack->result;
    path_folder(pack->partial, folder);
    if (pack->options->consume && source->kind == SOURCE_PACKED)
        return err_set(err, FM_ERR_ARG, "--consume: '%s' is packed already", pack->src);
    if (pack->options->consume && plat_real_path(pack->src, src) && plat_real_path(folder, dst) &&
        is_inside(dst, src))
        return err_set(err, FM_ERR_ARG, "--consume: '%s' lies inside the source '%s'; give another "
                       "destination", pack->dst, pack->src);
    for (unsigned f = 0; f < source->n_files; f++) {
        const struct source_file *file = &source->files[f];
        if (pack->last_use[f] < 0) {
            (void)snprintf(result->left, sizeof result->left, "%.159s", path_base(file->path));
        } else if (!pack->is_stub[f]) {
            int rc = pack->options->consume ? check_file(file->path, err) : 0;
            if (rc != 0)
                return rc;
            result->n_removable++;
            result->removable_bytes += file->bytes;
        }
    }
    return 0;
}

/* ---- required space ------------------------------------------------------------------------- */

/* Returns the bytes that removing source files after output file i frees on the destination's
 * disk. */
static uint64_t freed_by(const struct pack *pack, uint32_t i, uint64_t device)
{
    const struct source *source = pack->model->source;
    uint64_t bytes = 0;
    for (unsigned f = 0; f < source->n_files; f++) {
        struct plat_file_info info;
        if (pack->last_use[f] == i && !pack->is_stub[f] &&
            plat_file_info(source->files[f].path, &info) && info.device == device &&
            info.n_links == 1)
            bytes += info.bytes;
    }
    return bytes;
}

/* Returns the size of checksums, stubs of removed files and model.json. */
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

/* Returns the bytes that the folders on a device get of an output file. */
static uint64_t written_to(const struct pack_file *file, const uint64_t devices[],
                           uint64_t device)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < file->n_outs && !file->was_found && !file->is_elsewhere; i++)
        if (devices[i] == device)
            bytes += mem_round_up(file->outs[i].bytes, MEM_PAGE);
    return bytes;
}

/* Returns the peak need on a device. */
static uint64_t need_on(const struct pack *pack, const uint64_t devices[], uint64_t device)
{
    /* Negative: more was freed than written. */
    int64_t used = (int64_t)small_files(pack), need = used;
    uint64_t freed[PACK_WINDOW] = {0};
    for (uint32_t i = 0; i < pack->n_files; i++) {
        if (pack->options->consume && i >= PACK_WINDOW)
            used -= (int64_t)freed[i % PACK_WINDOW];
        used += (int64_t)written_to(&pack->files[i], devices, device);
        need = used > need ? used : need;
        freed[i % PACK_WINDOW] = freed_by(pack, i, device);
    }
    if (pack->options->remote != NULL)
        need += (int64_t)remote_peak_bytes(pack);
    return (uint64_t)need;
}

static int refuse_space(const struct pack *pack, const char *dst, uint64_t need,
                        uint64_t free_bytes, struct fm_error *err)
{
    const double gb = 1e-9;
    return err_set(err, FM_ERR_IO, "not enough space on the disk of '%s': the pack has %.2f GB, "
                   "and "
                   "%.2f GB of it are written already; %.2f GB more are needed%s%s and %.2f GB are "
                   "free%s", dst, (double)pack->result->packed_bytes * gb,
                   (double)pack->result->found_bytes * gb, (double)need * gb,
                   pack->n_folders > 1 ? " here" : "",
                   pack->options->consume ? " at the peak" : "", (double)free_bytes * gb,
                   pack->options->consume ? "" : "; --consume removes source files while packing");
}

int space_check(struct pack *pack, struct fm_error *err)
{
    uint64_t devices[SOURCE_MAX_DISKS] = {0};
    char folders[SOURCE_MAX_DISKS][LIMIT_PATH_BYTES];
    for (unsigned i = 0; i < pack->n_folders; i++) {
        struct plat_file_info info = {0};
        path_folder(i == 0 ? pack->partial : pack->others[i - 1].partial, folders[i]);
        (void)plat_file_info(folders[i], &info);
        devices[i] = info.device;
    }
    for (unsigned i = 0; i < pack->n_folders; i++) {
        const uint64_t need = need_on(pack, devices, devices[i]);
        const uint64_t free_bytes = plat_free_bytes(folders[i]);
        if (i == 0) {
            pack->result->need_bytes = need;
            pack->result->free_bytes = free_bytes;
        }
        /* A dry run of --restart counts what the restart would remove. */
        if (need > free_bytes && !(pack->is_restart && pack->options->plan_only))
            return refuse_space(pack, i == 0 ? pack->dst : pack->others[i - 1].dst, need,
                                free_bytes, err);
    }
    return 0;
}

/* ---- removing ------------------------------------------------------------------------------- */

uint64_t space_head_bytes(const struct pack *pack, unsigned f)
{
    const struct source *source = pack->model->source;
    uint64_t bytes = source->files[f].bytes;
    for (size_t i = 0; i < source->n_tensors; i++)
        for (unsigned p = 0; p < source->tensors[i].n_parts; p++) {
            const struct tensor_part *part = &source->tensors[i].parts[p];
            if (part->file == f && part->offset < bytes)
                bytes = part->offset;
        }
    return bytes;
}

static int copy_range(const struct source_file *from, uint64_t first, uint64_t bytes, int fd,
                      const char *path, struct fm_error *err)
{
    const uint64_t max = 1u << 20;
    char *buffer = mem_new(max, 1, "a copy buffer", err);
    int rc = buffer == NULL ? FM_ERR_NOMEM : 0;
    for (uint64_t at = 0; rc == 0 && at < bytes;) {
        uint64_t n = bytes - at < max ? bytes - at : max;
        rc = plat_read_at(from->fd, from->path, buffer, n, first + at, err);
        if (rc == 0)
            rc = plat_write_at(fd, path, buffer, n, first + at, err);
        at += n;
    }
    mem_free(buffer);
    return rc;
}

int space_end_stub(int fd, const char *path, uint64_t at, uint64_t bytes, struct fm_error *err)
{
    uint8_t end[SOURCE_SPARE_BYTES] = SOURCE_SPARE_MAGIC;
    for (unsigned i = 0; i < 8; i++)
        end[8 + i] = (uint8_t)(bytes >> (8 * i));
    int rc = plat_write_at(fd, path, end, sizeof end, at, err);
    return rc != 0 ? rc : plat_sync(fd, path, err);
}

/* Copies the dense tensors of a source file to their places in its stub. */
static int copy_dense(const struct pack *pack, unsigned f, int fd, const char *path,
                      struct fm_error *err)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < pack->packed.n_tensors; i++) {
        const struct tensor_info *t = pack->tensors[i];
        for (unsigned p = 0; rc == 0 && p < t->n_parts; p++) {
            const struct tensor_part *part = &t->parts[p];
            const uint64_t bytes = part->stride > 0 ? part->stride * (t->dims[0] - 1) +
                                                          part->bytes / t->dims[0]
                                                    : part->bytes;
            if (part->file == f)
                rc = copy_range(&pack->model->source->files[f], part->offset, bytes, fd, path,
                                err);
        }
    }
    return rc;
}

/* Writes a stub with the header and the length of a source file. With it the source can still be
 * opened. If dense tensors are packed last, they stay where they were, with holes between them. */
static int write_stub(const struct pack *pack, unsigned f, int fd, const char *path,
                      struct fm_error *err)
{
    const struct source_file *file = &pack->model->source->files[f];
    const uint64_t head = space_head_bytes(pack, f);
    const bool keeps_dense = pack->options->remote != NULL;
    int rc = copy_range(file, 0, head, fd, path, err);
    if (rc == 0 && keeps_dense)
        rc = copy_dense(pack, f, fd, path, err);
    return rc != 0 ? rc : space_end_stub(fd, path, keeps_dense ? file->bytes : head, file->bytes,
                                         err);
}

static int make_spare(struct pack *pack, unsigned f, struct fm_error *err)
{
    const struct source *source = pack->model->source;
    const char *name = path_base(source->files[f].path);
    char path[LIMIT_PATH_BYTES];
    struct plat_dir stubs = {.fd = -1};
    struct plat_file_info is;
    int fd = -1;
    bool is_direct = false;
    /* In PARTIAL itself, where leftover files are removed. */
    int rc = pack_path(pack, 0, name, ".tmp", path, err);
    const char *tmp = path_base(path);
    if (rc == 0)
        rc = plat_dir_make(&pack->dir, STUBS_NAME, err);
    if (rc == 0)
        rc = plat_dir_open_in(&pack->dir, STUBS_NAME, pack->stubs, &stubs, err);
    if (rc == 0)
        rc = plat_dir_create(&pack->dir, tmp, PLAT_SHARED, &is_direct, &fd, err);
    if (rc == 0 && !plat_open_file_info(fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", path);
    if (rc == 0)
        rc = write_stub(pack, f, fd, path, err);
    plat_close(fd);
    if (rc == 0)
        rc = plat_dir_move(&pack->dir, tmp, &stubs, name, &is, err);
    if (rc == 0)
        rc = plat_dir_sync(&stubs, err);
    plat_dir_close(&stubs);
    return rc != 0 ? rc : plat_dir_sync(&pack->dir, err);
}

static bool is_same(const struct plat_file_info *a, const struct plat_file_info *b)
{
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->mtime_ns == b->mtime_ns;
}

static int remove_file(struct pack *pack, unsigned f, const struct plat_dir *folder,
                       const struct plat_file_info *is, struct fm_error *err)
{
    int rc = make_spare(pack, f, err);
    if (rc != 0)
        return rc;
    rc = plat_dir_remove(folder, path_base(pack->model->source->files[f].path), is, err);
    if (rc != 0)
        return err_wrap(err, rc, pack->options->remote != NULL
                                     ? "a source file cannot be removed after packing it"
                                     : "--consume failed, go on without it");
    return plat_dir_sync(folder, err);
}

/* Removes a source file that is packed completely. Leaves a file that has replaced it. */
static int consume_file(struct pack *pack, unsigned f, struct fm_error *err)
{
    struct source_file *file = &pack->model->source->files[f];
    struct plat_file_info is, named;
    struct plat_dir folder;
    char path[LIMIT_PATH_BYTES];
    if (!plat_open_file_info(file->fd, &is) || !is_same(&is, &pack->opened[f]))
        return err_set(err, FM_ERR_IO, CHANGED, file->path);
    path_folder(file->path, path);
    int rc = plat_dir_open(path, PLAT_ANY_LINK, &folder, err);
    if (rc == 0 && plat_dir_info(&folder, path_base(file->path), &named) && !is_same(&named, &is)) {
        log_warn("pack", CHANGED, file->path);
        pack->result->n_removable--;
        pack->result->removable_bytes -= file->bytes;
    } else if (rc == 0) {
        rc = remove_file(pack, f, &folder, &is, err);
    }
    plat_dir_close(&folder);
    pack->is_stub[f] = rc == 0;
    if (rc == 0 && pack->options->remote != NULL)
        return remote_reopen_stub(pack, f, err);
    plat_close(file->fd); /* closing the last descriptor frees its space */
    file->fd = -1;
    return rc;
}

int space_consume(struct pack *pack, uint32_t n_done, struct fm_error *err)
{
    int rc = 0;
    for (unsigned f = 0; rc == 0 && f < pack->model->source->n_files; f++)
        if (pack->last_use[f] >= 0 && pack->last_use[f] < n_done && !pack->is_stub[f])
            rc = consume_file(pack, f, err);
    return rc;
}
