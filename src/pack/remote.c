/* Packing source files that are still elsewhere (fm_pack_remote).
 *
 * Headers are read first and kept as stubs, so that the model can be opened and planned. Then each
 * source file is fetched before the first output file that needs its experts. When all layers that
 * use it are finished, it is removed; its stub then holds the dense tensors too, which are packed
 * last. So the disk has the pack, the dense tensors and a few source files at a time. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "base/plat.h"
#include "format/directory.h"
#include "pack/pack_internal.h"

#define SAFETENSORS ".safetensors"
#define GGUF ".gguf"
/* Of a GGUF file, whose header does not say how long it is: the longest known has 11 MB. */
#define GGUF_HEAD_BYTES (32u << 20)

/* ---- headers -------------------------------------------------------------------------------- */

static int head_bytes(const struct fm_pack_remote *r, size_t i, uint64_t *bytes,
                      struct fm_error *err)
{
    uint8_t length[8];
    uint64_t n = 0;
    if (name_has_suffix(r->names[i], GGUF)) {
        *bytes = r->bytes[i] < GGUF_HEAD_BYTES ? r->bytes[i] : GGUF_HEAD_BYTES;
        return 0;
    }
    if (r->bytes[i] < sizeof length)
        return err_set(err, FM_ERR_FORMAT, "'%s' has %llu bytes and no header", r->names[i],
                       (unsigned long long)r->bytes[i]);
    int rc = r->read(r->ctx, i, 0, sizeof length, length, err);
    for (unsigned k = 0; k < sizeof length; k++)
        n |= (uint64_t)length[k] << (8 * k);
    *bytes = n + sizeof length;
    if (rc == 0 && (n > LIMIT_SAFETENSORS_HEADER_BYTES || *bytes > r->bytes[i]))
        rc = err_set(err, FM_ERR_FORMAT, "'%s': its header would have %llu bytes", r->names[i],
                     (unsigned long long)n);
    return rc;
}

static int write_head(struct pack *pack, size_t i, const struct plat_dir *stubs,
                      struct fm_error *err)
{
    const struct fm_pack_remote *r = pack->options->remote;
    char path[LIMIT_PATH_BYTES], *head = NULL;
    uint64_t bytes = 0;
    struct plat_file_info is;
    int fd = -1;
    bool is_direct = false;
    int rc = pack_path(pack, 0, r->names[i], ".tmp", path, err);
    if (rc == 0)
        rc = head_bytes(r, i, &bytes, err);
    if (rc == 0)
        head = mem_new(bytes, 1, "a header", err);
    if (rc == 0)
        rc = head == NULL ? FM_ERR_NOMEM : r->read(r->ctx, i, 0, (size_t)bytes, head, err);
    if (rc == 0)
        rc = plat_dir_create(&pack->dir, path_base(path), PLAT_SHARED, &is_direct, &fd, err);
    if (rc == 0 && !plat_open_file_info(fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", path);
    if (rc == 0)
        rc = plat_write_at(fd, path, head, bytes, 0, err);
    if (rc == 0)
        rc = space_end_stub(fd, path, bytes, r->bytes[i], err);
    plat_close(fd);
    mem_free(head);
    return rc != 0 ? rc : plat_dir_move(&pack->dir, path_base(path), stubs, r->names[i], &is, err);
}

static bool is_weights(const char *name)
{
    return name_has_suffix(name, SAFETENSORS) || name_has_suffix(name, GGUF);
}

int remote_headers(struct pack *pack, struct fm_error *err)
{
    const struct fm_pack_remote *r = pack->options->remote;
    struct plat_dir stubs = {.fd = -1};
    struct plat_file_info info;
    if (r == NULL)
        return 0;
    int rc = plat_dir_make(&pack->dir, STUBS_NAME, err);
    if (rc == 0)
        rc = plat_dir_open_in(&pack->dir, STUBS_NAME, pack->stubs, &stubs, err);
    for (size_t i = 0; rc == 0 && i < r->n_files; i++)
        if (is_weights(r->names[i]) && !directory_has(pack->src, r->names[i]) &&
            !plat_dir_info(&stubs, r->names[i], &info))
            rc = write_head(pack, i, &stubs, err);
    if (rc == 0)
        rc = plat_dir_sync(&stubs, err);
    plat_dir_close(&stubs);
    return rc;
}

/* ---- whole files ---------------------------------------------------------------------------- */

const char *remote_digest(const struct pack *pack, const char *name)
{
    const struct fm_pack_remote *r = pack->options->remote;
    for (size_t i = 0; r != NULL && i < r->n_files; i++)
        if (strcmp(r->names[i], name) == 0)
            return r->digests[i];
    return NULL;
}

/* Compares the beginning of a file that was fetched with the header that was planned with. */
static int compare_heads(const struct source_file *stub, int fd, const char *path, uint64_t bytes,
                         struct fm_error *err)
{
    const uint64_t step = 1u << 20;
    char *buffer = mem_new(2, step, "a buffer", err);
    int rc = buffer == NULL ? FM_ERR_NOMEM : 0;
    for (uint64_t at = 0; rc == 0 && at < bytes; at += step) {
        const uint64_t n = bytes - at < step ? bytes - at : step;
        rc = plat_read_at(stub->fd, stub->path, buffer, n, at, err);
        if (rc == 0)
            rc = plat_read_at(fd, path, buffer + step, n, at, err);
        if (rc == 0 && memcmp(buffer, buffer + step, n) != 0)
            rc = err_set(err, FM_ERR_IO, "'%s' has another header than the server sent before",
                         path);
    }
    mem_free(buffer);
    return rc;
}

/* Replaces the stub of source file f by the file in `folder`. */
static int reopen(struct pack *pack, unsigned f, const char *folder, struct fm_error *err)
{
    struct source_file *file = &pack->model->source->files[f];
    const bool is_whole = folder == pack->src;
    char *path = source_join(folder, path_base(file->path), err);
    uint64_t bytes;
    int fd = -1, rc = path == NULL ? FM_ERR_NOMEM : plat_open(path, &fd, &bytes, err);
    if (rc == 0 && is_whole && bytes != file->bytes)
        rc = err_set(err, FM_ERR_IO, "'%s' has %llu bytes, not %llu", path,
                     (unsigned long long)bytes, (unsigned long long)file->bytes);
    if (rc == 0 && is_whole)
        rc = compare_heads(file, fd, path, space_head_bytes(pack, f), err);
    if (rc == 0 && !plat_open_file_info(fd, &pack->opened[f]))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", path);
    if (rc != 0) {
        plat_close(fd);
        mem_free(path);
        return rc;
    }
    plat_close(file->fd);
    mem_free(file->path);
    file->fd = fd;
    file->path = path;
    file->opened = pack->opened[f];
    pack->is_stub[f] = !is_whole;
    pack->has_dense[f] = true;
    return 0;
}

int remote_reopen_stub(struct pack *pack, unsigned f, struct fm_error *err)
{
    return reopen(pack, f, pack->stubs, err);
}

struct provider {
    struct crew *crew;
};

static bool goes_on(void *ctx)
{
    const struct provider *p = ctx;
    return crew_advance(p->crew, 0, NULL) == 0;
}

static int provide(struct pack *pack, struct crew *crew, unsigned f, struct fm_error *err)
{
    const struct fm_pack_remote *r = pack->options->remote;
    const char *name = path_base(pack->model->source->files[f].path);
    struct provider provider = {crew};
    for (size_t i = 0; i < r->n_files; i++)
        if (strcmp(r->names[i], name) == 0) {
            const int rc = r->fetch(r->ctx, i, goes_on, &provider, err);
            return rc != 0 ? rc : reopen(pack, f, pack->src, err);
        }
    return err_set(err, FM_ERR_FORMAT, "'%s' is missing, and the server does not have it", name);
}

int remote_provide(struct pack *pack, struct crew *crew, const struct pack_file *file,
                   struct fm_error *err)
{
    const struct expert_layer *from = file->from;
    int rc = 0;
    if (pack->options->remote == NULL)
        return 0;
    for (size_t i = 0; rc == 0 && from == NULL && i < pack->packed.n_tensors; i++)
        for (unsigned p = 0; rc == 0 && p < pack->tensors[i]->n_parts; p++) {
            const unsigned f = pack->tensors[i]->parts[p].file;
            if (pack->is_stub[f] && !pack->has_dense[f])
                rc = provide(pack, crew, f, err);
        }
    for (size_t x = 0; rc == 0 && from != NULL && x < (size_t)from->n_experts * from->n_extents;
         x++)
        if (from->extents[x].bytes > 0 && pack->is_stub[from->extents[x].file])
            rc = provide(pack, crew, from->extents[x].file, err);
    return rc;
}

uint64_t remote_peak_bytes(const struct pack *pack)
{
    const struct source *source = pack->model->source;
    uint64_t bytes = 0, largest = 0;
    for (size_t i = 0; i < pack->packed.n_tensors; i++)
        for (unsigned p = 0; p < pack->tensors[i]->n_parts; p++)
            bytes += pack->tensors[i]->parts[p].bytes;
    for (unsigned f = 0; f < source->n_files; f++)
        if (pack->last_use[f] >= 0 && source->files[f].bytes > largest)
            largest = source->files[f].bytes;
    /* One is packed, one is fetched, and one may begin in a layer and end in the next. */
    return bytes + 3 * largest;
}
