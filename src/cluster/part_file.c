/* The part of a snapshot that another rank than the first has: the states of its layers, in a file
 * of its own beside the path that the first rank has, with the rank behind its name. The stamp is
 * the checksum of the first rank's header, tokens and marks, so parts of different snapshots are
 * never mixed. A part is written to a temporary file and renamed when it is whole. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/path.h"
#include "base/plat.h"
#include "cluster/cluster_internal.h"
#include "engine/state_file.h"

struct part_header {
    char magic[8];
    uint64_t identity, stamp, bytes, recurrent_bytes, kv_position_bytes;
    uint32_t first_layer, end_layer, n_tokens, n_marks;
};

static const char magic[8] = {'F', 'M', 'P', 'A', 'R', 'T', '1', '\n'};

static struct part_header header_of(const struct cluster *c, const struct part_request *request,
                                    uint32_t n_positions)
{
    const struct model *model = c->engine->stages[0].model;
    struct sequence_sizes sizes;
    sequence_sizes(model, c->engine->kv_format, &sizes);
    struct part_header h = {.identity = request->identity, .stamp = request->stamp,
                            .recurrent_bytes = sizes.recurrent_bytes,
                            .kv_position_bytes = sizes.kv_position_bytes,
                            .first_layer = model->first_layer, .end_layer = model->end_layer,
                            .n_tokens = n_positions, .n_marks = request->n_marks};
    memcpy(h.magic, magic, sizeof magic);
    h.bytes = sizeof h + (1 + (uint64_t)h.n_marks) * h.recurrent_bytes +
              h.n_tokens * h.kv_position_bytes + sizeof(XXH128_hash_t);
    return h;
}

/* Where a part is: its folder, which is made if it is missing, and its name. */
struct part_place {
    struct plat_dir dir;
    char folder[LIMIT_PATH_BYTES], name[LIMIT_PATH_BYTES], path[2 * LIMIT_PATH_BYTES];
};

static int find_place(const struct cluster *c, const char *path, struct part_place *place,
                      struct fm_error *err)
{
    path_folder(path, place->folder);
    const int n = snprintf(place->name, sizeof place->name, "%s.rank%u", path_base(path), c->rank);
    if (n < 0 || (size_t)n + sizeof ".part" > sizeof place->name)
        return err_set(err, FM_ERR_ARG, "the path '%s' is too long", path);
    (void)snprintf(place->path, sizeof place->path, "%s/%s", place->folder, place->name);
    if (!plat_file_exists(place->folder)) {
        const int rc = plat_make_private_dir(place->folder, err);
        if (rc != 0)
            return rc;
    }
    return plat_dir_open(place->folder, PLAT_ANY_LINK, &place->dir, err);
}

static int write_part(struct cluster *c, const struct sequence *s,
                      const struct part_request *request, uint32_t n_positions, int fd,
                      const char *path, struct fm_error *err)
{
    struct part_header h = header_of(c, request, n_positions);
    struct state_file f = {.fd = fd, .writes = true, .path = path};
    int rc = plat_reserve(fd, path, h.bytes, err);
    if (rc == 0)
        rc = state_file_begin(&f, err);
    if (rc != 0)
        return rc;
    state_transfer(&f, &h, sizeof h);
    for (uint32_t i = 0; i < request->n_marks; i++)
        state_transfer_recurrent(&f, s, true, request->marks[i]);
    state_transfer_recurrent(&f, s, false, 0);
    state_transfer_kv(&f, c->engine, s, n_positions);
    XXH128_hash_t sum = XXH3_128bits_digest(f.hash);
    state_transfer(&f, &sum, sizeof sum);
    (void)XXH3_freeState(f.hash); /* always succeeds */
    assert(f.rc != 0 || f.at == h.bytes);
    return f.rc != 0 ? f.rc : plat_sync(fd, path, err);
}

int part_save(struct cluster *c, const struct sequence *s, const struct part_request *request,
              uint32_t n_positions, const char *path, struct fm_error *err)
{
    struct part_place place;
    struct plat_file_info is;
    char name[LIMIT_PATH_BYTES + 8];
    bool is_direct = false;
    int fd, rc = find_place(c, path, &place, err);
    if (rc != 0)
        return rc;
    (void)snprintf(name, sizeof name, "%s.part", place.name);
    rc = plat_dir_create(&place.dir, name, PLAT_PRIVATE, &is_direct, &fd, err);
    if (rc == 0) {
        if (!plat_open_file_info(fd, &is))
            rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", place.path);
        if (rc == 0)
            rc = write_part(c, s, request, n_positions, fd, place.path, err);
        if (rc == 0)
            rc = plat_dir_rename(&place.dir, name, place.name, &is, err);
        if (rc != 0)
            (void)plat_dir_remove(&place.dir, name, &is, NULL); /* the earlier error is told */
        plat_close(fd);
    }
    plat_dir_close(&place.dir);
    return rc;
}

static int read_part(struct cluster *c, struct sequence *s, const struct part_request *request,
                     uint32_t n_positions, struct state_file *f, uint64_t file_bytes)
{
    const struct part_header own = header_of(c, request, n_positions);
    struct part_header h;
    XXH128_hash_t sum;
    state_transfer(f, &h, sizeof h);
    if (f->rc == 0 && (memcmp(&h, &own, sizeof h) != 0 || file_bytes != own.bytes))
        f->rc = err_set(f->err, FM_ERR_FORMAT, "'%s' is not this rank's part of the snapshot, or "
                        "it is damaged", f->path);
    if (f->rc != 0)
        return f->rc;
    sequence_finish(s); /* what clears it may still be queued */
    for (uint32_t i = 0; i < h.n_marks; i++)
        state_transfer_recurrent(f, s, i < s->n_marks, i);
    state_transfer_recurrent(f, s, false, 0);
    state_transfer_kv(f, c->engine, s, n_positions);
    const XXH128_hash_t is = XXH3_128bits_digest(f->hash);
    state_transfer(f, &sum, sizeof sum);
    if (f->rc == 0 && !XXH128_isEqual(is, sum))
        f->rc = err_set(f->err, FM_ERR_FORMAT, "the part of a snapshot '%s' is damaged: its "
                        "checksum does not match", f->path);
    return f->rc;
}

int part_load(struct cluster *c, struct sequence *s, const struct part_request *request,
              uint32_t n_positions, const char *path, struct fm_error *err)
{
    struct part_place place;
    struct state_file f = {.path = place.path};
    uint64_t bytes;
    int rc = find_place(c, path, &place, err);
    if (rc != 0)
        return rc;
    rc = plat_dir_read(&place.dir, place.name, &f.fd, &bytes, err);
    if (rc == 0) {
        rc = state_file_begin(&f, err);
        if (rc == 0) {
            rc = read_part(c, s, request, n_positions, &f, bytes);
            (void)XXH3_freeState(f.hash); /* always succeeds */
        }
        plat_close(f.fd);
    }
    plat_dir_close(&place.dir);
    return rc;
}

void part_drop(struct cluster *c, const char *path)
{
    struct part_place place;
    if (find_place(c, path, &place, NULL) != 0)
        return;
    (void)plat_dir_remove(&place.dir, place.name, NULL, NULL); /* it may not be there */
    plat_dir_close(&place.dir);
}

/* What part_tidy looks for: names of this rank's unfinished parts. */
struct tidying {
    const struct plat_dir *dir;
    char suffix[48];
};

static int tidy_name(void *ctx, const char *name, struct fm_error *err)
{
    const struct tidying *t = ctx;
    const size_t n = strlen(name), n_suffix = strlen(t->suffix);
    (void)err;
    if (n > n_suffix && strcmp(name + n - n_suffix, t->suffix) == 0)
        (void)plat_dir_remove(t->dir, name, NULL, NULL); /* it may be gone */
    return 0;
}

void part_tidy(struct cluster *c, const char *folder)
{
    struct plat_dir dir;
    struct tidying t = {.dir = &dir};
    (void)snprintf(t.suffix, sizeof t.suffix, ".fmsnap.rank%u.part", c->rank);
    if (plat_dir_open(folder, PLAT_OWN_LINK, &dir, NULL) != 0)
        return; /* there is none */
    if (plat_dir_check_own(&dir, NULL) == 0)
        (void)plat_dir_each_name(&dir, tidy_name, &t, NULL);
    plat_dir_close(&dir);
}
