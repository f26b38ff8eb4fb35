#include "session/snapshot.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"
#include "engine/identity.h"
#include "engine/state_file.h"

/* Little-endian, which is the byte order of every supported processor. After the header: tokens,
 * positions of the marks, their states, the session's own state, keys and values, and XXH3-128 of
 * everything before. */
struct snapshot_header {
    char magic[8];
    uint64_t model;
    uint64_t bytes; /* of the file */
    uint64_t recurrent_bytes, kv_position_bytes;
    char kv_format[16];
    uint32_t n_tokens, n_marks;
    uint64_t checksum; /* XXH3 of the header up to here, the tokens and the marks' positions */
};

static const char magic[8] = {'F', 'M', 'S', 'N', 'A', 'P', '1', '\n'};

/* ---- content -------------------------------------------------------------------------------- */

int snapshot_identity(const struct fm_model *m, uint64_t *identity, struct fm_error *err)
{
    const struct engine *e = &m->engine;
    uint64_t hash = 0;
    if (m->is_metadata_only)
        return err_set(err, FM_ERR_ARG, "the model was opened for its metadata only");
    if (m->routes != NULL)
        return err_set(err, FM_ERR_ARG, "snapshots cannot be used with routes, which replace the "
                       "model's routers");
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < e->n_stages; i++)
        rc = identity_add_dense(e->stages[i].model, &hash, err);
    hash = XXH3_64bits_withSeed(m->approximate, strlen(m->approximate), hash);
    if (rc == 0)
        rc = identity_add_config(e->model, &hash, err);
    for (uint32_t i = 0; rc == 0 && i < e->n_stages; i++)
        rc = identity_add_samples(e->stages[i].model, &hash, err);
    if (rc == 0 && m->cluster != NULL)
        rc = cluster_identity(m->cluster, &hash, err);
    *identity = hash;
    return rc;
}

static uint32_t n_marks(const struct sequence *seq)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < seq->n_marks; i++)
        n += seq->marks[i] > 0;
    return n;
}

static uint64_t bytes_of(const struct snapshot_header *h)
{
    return sizeof *h + (uint64_t)h->n_tokens * sizeof(int32_t) + h->n_marks * sizeof(uint32_t) +
           (1 + (uint64_t)h->n_marks) * h->recurrent_bytes + h->n_tokens * h->kv_position_bytes +
           sizeof(XXH128_hash_t);
}

/* The sizes are those of the layers that this process has. */
static struct snapshot_header header_of(const struct fm_model *m, uint64_t model)
{
    struct sequence_sizes sizes = {0};
    struct snapshot_header h = {.model = model};
    for (uint32_t i = 0; i < m->engine.n_stages; i++) {
        struct sequence_sizes own;
        sequence_sizes(m->engine.stages[i].model, m->engine.kv_format, &own);
        sizes.recurrent_bytes += own.recurrent_bytes;
        sizes.kv_position_bytes += own.kv_position_bytes;
    }
    memcpy(h.magic, magic, sizeof magic);
    (void)snprintf(h.kv_format, sizeof h.kv_format, "%s", m->engine.kv_format->name);
    h.recurrent_bytes = sizes.recurrent_bytes;
    h.kv_position_bytes = sizes.kv_position_bytes;
    return h;
}

static struct snapshot_header header_for(const struct fm_session *s, uint64_t model)
{
    struct snapshot_header h = header_of(s->owner, model);
    h.n_tokens = s->sequence->position;
    h.n_marks = n_marks(s->sequence);
    h.bytes = bytes_of(&h);
    return h;
}

uint64_t snapshot_bytes(const struct fm_session *s)
{
    return header_for(s, 0).bytes;
}

static uint64_t head_checksum(const struct snapshot_header *h, const int32_t *ids,
                              const uint32_t *marks)
{
    const uint64_t sums[] = {XXH3_64bits(h, offsetof(struct snapshot_header, checksum)),
                             XXH3_64bits(ids, h->n_tokens * sizeof *ids),
                             XXH3_64bits(marks, h->n_marks * sizeof *marks)};
    return XXH3_64bits(sums, sizeof sums);
}

/* Transfers the marks' states, before the session's own state. When reading, a mark without room is
 * read into the session's state, which is read over afterwards. */
static void transfer_marks(struct state_file *f, const struct sequence *seq, uint32_t n)
{
    for (uint32_t i = 0; f->writes && i < seq->n_marks; i++)
        if (seq->marks[i] > 0)
            state_transfer_recurrent(f, seq, true, i);
    for (uint32_t i = 0; !f->writes && i < n; i++)
        state_transfer_recurrent(f, seq, i < seq->n_marks, i);
}

static void transfer_state(struct state_file *f, const struct fm_session *s,
                           uint32_t n_positions)
{
    state_transfer_recurrent(f, s->sequence, false, 0);
    state_transfer_kv(f, &s->owner->engine, s->sequence, n_positions);
}

/* ---- writing -------------------------------------------------------------------------------- */

static int write_all(const struct fm_session *s, uint64_t model, int fd, const char *path,
                     const char *whole, bool *is_full, struct fm_error *err)
{
    struct state_file f = {.fd = fd, .writes = true, .path = path};
    struct snapshot_header h = header_for(s, model);
    uint32_t marks[SEQUENCE_MARKS];
    uint32_t n = 0;
    for (unsigned i = 0; i < s->sequence->n_marks; i++)
        if (s->sequence->marks[i] > 0)
            marks[n++] = s->sequence->marks[i];
    assert(n == h.n_marks && n <= SEQUENCE_MARKS);
    h.checksum = head_checksum(&h, s->ids, marks);
    if (s->owner->cluster != NULL) { /* their parts come first: this file makes them count */
        const int rc =
            cluster_save(s->owner->cluster, s->sequence, model, h.checksum, whole, err);
        if (rc != 0)
            return rc;
    }
    /* A disk without enough room fails here, before anything is written. */
    int rc = plat_reserve(fd, path, h.bytes, err);
    *is_full = rc != 0 && plat_was_full();
    if (rc == 0)
        rc = state_file_begin(&f, err);
    if (rc != 0)
        return rc;
    state_transfer(&f, &h, sizeof h);
    state_transfer(&f, s->ids, h.n_tokens * sizeof *s->ids);
    state_transfer(&f, marks, n * sizeof *marks);
    transfer_marks(&f, s->sequence, n);
    transfer_state(&f, s, h.n_tokens);
    XXH128_hash_t sum = XXH3_128bits_digest(f.hash);
    state_transfer(&f, &sum, sizeof sum);
    (void)XXH3_freeState(f.hash); /* always succeeds */
    *is_full = f.is_full;
    if (f.rc != 0)
        return f.rc;
    assert(f.at == h.bytes); /* the header's sum of all parts */
    rc = plat_sync(fd, path, err);
    *is_full = rc != 0 && plat_was_full();
    return rc;
}

int snapshot_write(const struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                   const char *name, bool *is_full, struct fm_error *err)
{
    char part[LIMIT_PATH_BYTES], path[LIMIT_PATH_BYTES], whole[LIMIT_PATH_BYTES];
    struct plat_file_info is;
    bool is_direct = false;
    int fd;
    *is_full = false;
    if (s->sequence->position == 0)
        return err_set(err, FM_ERR_ARG, "the session has no tokens to save");
    if ((size_t)snprintf(part, sizeof part, "%s.part", name) >= sizeof part ||
        (size_t)snprintf(path, sizeof path, "%s/%s", dir->path, part) >= sizeof path)
        return err_set(err, FM_ERR_ARG, "the path '%s/%s' is too long", dir->path, name);
    (void)snprintf(whole, sizeof whole, "%.*s", (int)(strlen(path) - strlen(".part")), path);
    int rc = plat_dir_create(dir, part, PLAT_PRIVATE, &is_direct, &fd, err);
    *is_full = rc != 0 && plat_was_full();
    if (rc != 0)
        return rc;
    if (!plat_open_file_info(fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", path);
    if (rc == 0)
        rc = write_all(s, model, fd, path, whole, is_full, err);
    if (rc == 0)
        rc = plat_dir_rename(dir, part, name, &is, err);
    if (rc != 0)
        (void)plat_dir_remove(dir, part, &is, NULL); /* the earlier error is reported */
    plat_close(fd);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------- */

static int check_header(const struct fm_model *m, uint64_t model, const struct snapshot_header *h,
                        uint64_t file_bytes, const char *path, struct fm_error *err)
{
    const struct snapshot_header own = header_of(m, model);
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(err, FM_ERR_FORMAT, "'%s' is not a snapshot", path);
    if (h->model != model || h->recurrent_bytes != own.recurrent_bytes ||
        h->kv_position_bytes != own.kv_position_bytes ||
        memcmp(h->kv_format, own.kv_format, sizeof own.kv_format) != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "'%s' is a snapshot of another model, configuration, approximation or "
                       "format of keys and values", path);
    if (h->n_tokens == 0 || h->n_marks > SEQUENCE_MARKS || bytes_of(h) != h->bytes ||
        h->bytes != file_bytes)
        return err_set(err, FM_ERR_FORMAT,
                       "the snapshot '%s' is damaged: it has %llu bytes, its header says %llu",
                       path, (unsigned long long)file_bytes, (unsigned long long)h->bytes);
    if (h->n_tokens > engine_limits(&m->engine)->n_context)
        return err_set(err, FM_ERR_ARG,
                       "the snapshot '%s' has %u tokens, the context has %u positions (--context)",
                       path, h->n_tokens, engine_limits(&m->engine)->n_context);
    return 0;
}

/* Reads and checks header, tokens and marks, in this order. */
static int read_head(const struct fm_model *m, uint64_t model, struct state_file *f,
                     uint64_t file_bytes, struct snapshot_header *h, int32_t *ids,
                     uint32_t marks[SEQUENCE_MARKS])
{
    state_transfer(f, h, sizeof *h);
    if (f->rc == 0)
        f->rc = check_header(m, model, h, file_bytes, f->path, f->err);
    if (f->rc != 0)
        return f->rc;
    state_transfer(f, ids, h->n_tokens * sizeof *ids);
    state_transfer(f, marks, h->n_marks * sizeof *marks);
    bool is_sound = f->rc == 0 && head_checksum(h, ids, marks) == h->checksum;
    for (uint32_t i = 0; is_sound && i < h->n_marks; i++)
        is_sound = marks[i] > 0 && marks[i] <= h->n_tokens;
    for (uint32_t i = 0; is_sound && i < h->n_tokens; i++)
        is_sound = ids[i] >= 0 && (uint32_t)ids[i] < m->engine.model->shape.vocabulary;
    if (f->rc == 0 && !is_sound)
        f->rc = err_set(f->err, FM_ERR_FORMAT, "the snapshot '%s' is damaged", f->path);
    return f->rc;
}

/* Opens a file for reading and writes its path to `path`. Makes a file private that an earlier
 * version of this program left readable for other users. */
static int open_file(const struct plat_dir *dir, const char *name, char path[LIMIT_PATH_BYTES],
                     struct state_file *f, uint64_t *bytes, struct fm_error *err)
{
    (void)snprintf(path, LIMIT_PATH_BYTES, "%s/%s", dir->path, name); /* for messages */
    *f = (struct state_file){.path = path};
    const int rc = plat_dir_read(dir, name, &f->fd, bytes, err);
    if (rc == 0)
        plat_make_private(f->fd);
    return rc;
}

int snapshot_read_info(const struct fm_model *m, uint64_t model, const struct plat_dir *dir,
                       const char *name, struct snapshot_info *info, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct state_file f;
    struct snapshot_header h;
    uint64_t bytes;
    *info = (struct snapshot_info){0};
    int rc = open_file(dir, name, path, &f, &bytes, err);
    if (rc != 0)
        return rc;
    rc = state_file_begin(&f, err);
    if (rc == 0) {
        info->ids = mem_new(engine_limits(&m->engine)->n_context, sizeof *info->ids,
                            "a snapshot's tokens", err);
        rc = info->ids == NULL ? FM_ERR_NOMEM
                               : read_head(m, model, &f, bytes, &h, info->ids, info->marks);
        (void)XXH3_freeState(f.hash); /* always succeeds */
    }
    plat_close(f.fd);
    if (rc != 0) {
        mem_free(info->ids);
        info->ids = NULL;
        return rc;
    }
    info->bytes = bytes;
    info->n_tokens = h.n_tokens;
    info->n_marks = h.n_marks;
    struct sequence_sizes sizes; /* of the whole model */
    sequence_sizes(m->engine.model, m->engine.kv_format, &sizes);
    info->is_rewindable = sizes.recurrent_bytes == 0;
    return 0;
}

static int read_all(struct fm_session *s, uint64_t model, struct state_file *f,
                    uint64_t file_bytes)
{
    struct snapshot_header h;
    uint32_t marks[SEQUENCE_MARKS];
    XXH128_hash_t sum;
    if (read_head(s->owner, model, f, file_bytes, &h, s->ids, marks) != 0)
        return f->rc;
    f->rc = session_reach(s, h.n_tokens, f->err);
    if (f->rc != 0)
        return f->rc;
    sequence_finish(s->sequence); /* it was reset: what clears it may still be queued */
    transfer_marks(f, s->sequence, h.n_marks);
    transfer_state(f, s, h.n_tokens);
    const XXH128_hash_t is = XXH3_128bits_digest(f->hash);
    state_transfer(f, &sum, sizeof sum);
    if (f->rc == 0 && !XXH128_isEqual(is, sum))
        f->rc = err_set(f->err, FM_ERR_FORMAT, "the snapshot '%s' is damaged: its checksum does "
                        "not match", f->path);
    if (f->rc == 0 && s->owner->cluster != NULL)
        f->rc = cluster_load(s->owner->cluster, s->sequence, model, h.checksum, f->path,
                             h.n_tokens, s->ids, h.n_marks, f->err);
    for (uint32_t i = 0; f->rc == 0 && i < h.n_marks && i < s->sequence->n_marks; i++)
        s->sequence->marks[i] = marks[i];
    assert(f->rc != 0 || (f->at == h.bytes && sequence_holds(s->sequence, h.n_tokens)));
    if (f->rc == 0)
        s->sequence->position = h.n_tokens;
    return f->rc;
}

int snapshot_read(struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                  const char *name, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct state_file f;
    uint64_t bytes;
    int rc = open_file(dir, name, path, &f, &bytes, err);
    if (rc != 0)
        return rc; /* the session keeps its state */
    fm_session_reset(s);
    rc = state_file_begin(&f, err);
    if (rc == 0) {
        rc = read_all(s, model, &f, bytes);
        (void)XXH3_freeState(f.hash); /* always succeeds */
    }
    plat_close(f.fd);
    if (rc != 0)
        fm_session_reset(s);
    return rc;
}

/* ---- public functions ----------------------------------------------------------------------- */

/* Opens the folder of a path that the caller chose. Follows links. */
static int open_folder(const char *path, char folder[LIMIT_PATH_BYTES], struct plat_dir *dir,
                       struct fm_error *err)
{
    path_folder(path, folder);
    return plat_dir_open(folder, PLAT_ANY_LINK, dir, err);
}

int fm_session_save(const struct fm_session *s, const char *path, struct fm_error *err)
{
    char folder[LIMIT_PATH_BYTES];
    struct plat_dir dir;
    uint64_t model;
    bool is_full;
    int rc = snapshot_identity(s->owner, &model, err);
    if (rc == 0)
        rc = open_folder(path, folder, &dir, err);
    if (rc != 0)
        return rc;
    rc = snapshot_write(s, model, &dir, path_base(path), &is_full, err);
    plat_dir_close(&dir);
    return rc;
}

int fm_session_load(struct fm_session *s, const char *path, struct fm_error *err)
{
    char real[LIMIT_PATH_BYTES], folder[LIMIT_PATH_BYTES];
    struct plat_dir dir;
    uint64_t model;
    const char *file = plat_real_path(path, real) ? real : path;
    fm_session_reset(s);
    int rc = snapshot_identity(s->owner, &model, err);
    if (rc == 0)
        rc = open_folder(file, folder, &dir, err);
    if (rc != 0)
        return rc;
    rc = snapshot_read(s, model, &dir, path_base(file), err);
    plat_dir_close(&dir);
    return rc;
}
