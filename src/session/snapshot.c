#include "session/snapshot.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"

/* Little-endian, as it lies in memory on every processor this runs on. Behind it: tokens, positions
 * of the marks, their states, the session's own, keys and values, XXH3-128 of all of it. */
struct snapshot_header {
    char magic[8];
    uint64_t model;
    uint64_t bytes; /* of the file */
    uint64_t recurrent_bytes, kv_position_bytes;
    char kv_format[16];
    uint32_t n_tokens, n_marks;
    uint64_t checksum; /* XXH3 of the header before it, the tokens and the marks' positions */
};

static const char magic[8] = {'F', 'M', 'S', 'N', 'A', 'P', '1', '\n'};

/* ---- what is in it -------------------------------------------------------------------------- */

/* Of a layer without checksums: the beginnings of its first, middle and last expert. */
#define SAMPLE_BYTES 4096
static int sample_experts(const struct model *model, const struct expert_layer *layer,
                          uint64_t *hash, struct fm_error *err)
{
    const uint32_t experts[] = {0, layer->n_experts / 2, layer->n_experts - 1};
    unsigned char bytes[SAMPLE_BYTES];
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        const struct extent *e = &layer->extents[(size_t)experts[i] * layer->n_extents];
        const struct source_file *file = &model->source->files[e->file];
        const uint64_t n = e->bytes < sizeof bytes ? e->bytes : sizeof bytes;
        rc = plat_read_at(file->fd, file->path, bytes, n, e->offset, err);
        if (rc == 0)
            *hash = XXH3_64bits_withSeed(bytes, (size_t)n, *hash);
    }
    return rc;
}

static int hash_piece(const char *text, size_t n, void *hash)
{
    *(uint64_t *)hash = XXH3_64bits_withSeed(text, n, *(uint64_t *)hash);
    return 0;
}

/* Every field: the same weights compute something else with another rotation, for example. */
static int hash_config(const struct model *model, uint64_t *hash, struct fm_error *err)
{
    const size_t how = JSON_COMPACT | JSON_SORT_KEYS;
    if (json_dump_callback(model->source->config.root, hash_piece, hash, how) != 0)
        return err_set(err, FM_ERR_NOMEM, "out of memory for the configuration");
    return 0;
}

/* The dense weights as they lie in memory. A model that is cut elsewhere has them elsewhere, so its
 * snapshots are others'. */
static void hash_dense(const struct model *model, uint64_t *hash)
{
    const void *dense =
        memory_open(model->memory, model->dense, model->dense_bytes, MEMORY_LOOK);
    *hash = XXH3_64bits_withSeed(dense, model->dense_bytes, *hash ^ model_identity(model));
    memory_close(model->memory, model->dense, model->dense_bytes);
}

static int sample_stage(const struct stage *stage, uint64_t *hash, struct fm_error *err)
{
    const struct model *model = stage->model;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < model->n_expert_layers; i++)
        if (model->expert_layers[i].sums == NULL)
            rc = sample_experts(model, &model->expert_layers[i], hash, err);
    return rc;
}

int snapshot_model(const struct fm_model *m, uint64_t *identity, struct fm_error *err)
{
    const struct engine *e = &m->engine;
    uint64_t hash = 0;
    if (m->is_metadata_only)
        return err_set(err, FM_ERR_ARG, "the model was opened for its metadata only");
    if (m->routes != NULL)
        return err_set(err, FM_ERR_ARG, "routes have taken the place of the model's routers: what "
                       "they compute is no prefix to keep");
    for (uint32_t i = 0; i < e->n_stages; i++)
        hash_dense(e->stages[i].model, &hash);
    hash = XXH3_64bits_withSeed(m->approximate, strlen(m->approximate), hash);
    int rc = hash_config(e->model, &hash, err);
    for (uint32_t i = 0; rc == 0 && i < e->n_stages; i++)
        rc = sample_stage(&e->stages[i], &hash, err);
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

static struct snapshot_header header_of(const struct fm_model *m, uint64_t model)
{
    struct sequence_sizes sizes;
    struct snapshot_header h = {.model = model};
    sequence_sizes(m->engine.model, m->engine.kv_format, &sizes);
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

/* ---- a file, from its beginning to its end -------------------------------------------------- */

struct stream {
    int fd;
    bool writes;
    const char *path;
    uint64_t at;
    XXH3_state_t *hash;
    int rc;
    bool is_full; /* the fault is a full disk */
    struct fm_error *err;
};

static void pass(struct stream *f, void *bytes, uint64_t n)
{
    if (f->rc != 0 || n == 0)
        return;
    f->rc = f->writes ? plat_write_at(f->fd, f->path, bytes, n, f->at, f->err)
                      : plat_read_at(f->fd, f->path, bytes, n, f->at, f->err);
    f->is_full = f->rc != 0 && plat_was_full();
    if (f->rc == 0)
        (void)XXH3_128bits_update(f->hash, bytes, n); /* fails for NULL only */
    f->at += n;
}

/* The same of what the session computes with. */
static void pass_memory(struct stream *f, const struct memory *memory, void *at, uint64_t n)
{
    if (f->rc != 0 || n == 0)
        return;
    pass(f, memory_open(memory, at, n, f->writes ? MEMORY_LOOK : MEMORY_FILL), n);
    memory_close(memory, at, n);
}

/* The recurrent state of all layers: the session's own, or that of a mark. */
static void pass_recurrent(struct stream *f, const struct sequence *seq, bool is_mark,
                           uint32_t mark)
{
    for (uint32_t i = 0; i < seq->n_parts; i++) {
        const struct sequence_part *part = &seq->parts[i];
        pass_memory(f, part->memory, is_mark ? sequence_mark_state(part, mark) : part->block,
                    part->recurrent_bytes);
    }
}

/* Before the session's own state: where it has no room for a mark, that is read over it. */
static void pass_marks(struct stream *f, const struct sequence *seq, uint32_t n)
{
    for (uint32_t i = 0; f->writes && i < seq->n_marks; i++)
        if (seq->marks[i] > 0)
            pass_recurrent(f, seq, true, i);
    for (uint32_t i = 0; !f->writes && i < n; i++)
        pass_recurrent(f, seq, i < seq->n_marks, i);
}

/* One row of every position, in their order. `first` is that of position 0. */
static void pass_row(struct stream *f, const struct sequence_part *part, char *first,
                     uint64_t row_bytes, uint32_t n_positions)
{
    const uint32_t max = part->blocks.n_positions;
    for (uint32_t at = 0; at < n_positions; at += max) {
        const uint32_t n = n_positions - at < max ? n_positions - at : max;
        pass_memory(f, part->memory, first + at / max * part->blocks.bytes, n * row_bytes);
    }
}

/* Row `row` of every part of a layer that has so many. Returns whether one has. */
static bool pass_rows(struct stream *f, const struct sequence_part *part,
                      const struct layer_state *state, const struct sequence_layer *l,
                      const struct kv_format *kv_format, uint32_t row, uint32_t n_positions)
{
    bool has_any = false;
    for (uint32_t i = 0; i < state->n_parts; i++) {
        const struct state_part *p = &state->parts[i];
        const uint64_t bytes = state_row_bytes(p, kv_format);
        if (p->kind != STATE_BY_POSITION || row >= p->n_rows)
            continue;
        has_any = true;
        pass_row(f, part, (char *)l->state[i] + row * bytes * part->blocks.n_positions, bytes,
                 n_positions);
    }
    return has_any;
}

/* What is addressed by position, layer by layer: the first row of every part, then the second. */
static void pass_kv(struct stream *f, const struct engine *e, uint32_t stage,
                    const struct sequence_part *part, uint32_t n_positions)
{
    const struct model *model = e->stages[stage].model;
    for (uint32_t i = model->first_layer; i < model->end_layer; i++) {
        const struct sequence_layer *l = &part->layers[i - part->first_layer];
        struct layer_state state;
        arch_of(model)->state(model->arch, i, &state);
        uint32_t row = 0;
        while (pass_rows(f, part, &state, l, e->kv_format, row, n_positions))
            row++;
    }
}

static void pass_state(struct stream *f, const struct fm_session *s, uint32_t n_positions)
{
    const struct engine *e = &s->owner->engine;
    pass_recurrent(f, s->sequence, false, 0);
    for (uint32_t i = 0; i < e->n_stages; i++)
        pass_kv(f, e, i, &s->sequence->parts[i], n_positions);
}

static int stream_begin(struct stream *f, struct fm_error *err)
{
    f->err = err;
    f->hash = XXH3_createState();
    if (f->hash == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate a checksum");
    (void)XXH3_128bits_reset(f->hash); /* fails for NULL only */
    return 0;
}

/* ---- writing -------------------------------------------------------------------------------- */

static int write_all(const struct fm_session *s, uint64_t model, int fd, const char *path,
                     bool *is_full, struct fm_error *err)
{
    struct stream f = {.fd = fd, .writes = true, .path = path};
    struct snapshot_header h = header_for(s, model);
    uint32_t marks[SEQUENCE_MARKS];
    uint32_t n = 0;
    for (unsigned i = 0; i < s->sequence->n_marks; i++)
        if (s->sequence->marks[i] > 0)
            marks[n++] = s->sequence->marks[i];
    h.checksum = head_checksum(&h, s->ids, marks);
    /* A disk without the room says so before anything is written. */
    int rc = plat_reserve(fd, path, h.bytes, err);
    *is_full = rc != 0 && plat_was_full();
    if (rc == 0)
        rc = stream_begin(&f, err);
    if (rc != 0)
        return rc;
    pass(&f, &h, sizeof h);
    pass(&f, s->ids, h.n_tokens * sizeof *s->ids);
    pass(&f, marks, n * sizeof *marks);
    pass_marks(&f, s->sequence, n);
    pass_state(&f, s, h.n_tokens);
    XXH128_hash_t sum = XXH3_128bits_digest(f.hash);
    pass(&f, &sum, sizeof sum);
    (void)XXH3_freeState(f.hash); /* always succeeds */
    *is_full = f.is_full;
    if (f.rc != 0)
        return f.rc;
    rc = plat_sync(fd, path, err);
    *is_full = rc != 0 && plat_was_full();
    return rc;
}

int snapshot_write(const struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                   const char *name, bool *is_full, struct fm_error *err)
{
    char part[LIMIT_PATH_BYTES], path[LIMIT_PATH_BYTES];
    struct plat_file_info is;
    bool is_direct = false;
    int fd;
    *is_full = false;
    if (s->sequence->position == 0)
        return err_set(err, FM_ERR_ARG, "the session has no tokens to keep");
    if ((size_t)snprintf(part, sizeof part, "%s.part", name) >= sizeof part ||
        (size_t)snprintf(path, sizeof path, "%s/%s", dir->path, part) >= sizeof path)
        return err_set(err, FM_ERR_ARG, "the path '%s/%s' is too long", dir->path, name);
    int rc = plat_dir_create(dir, part, PLAT_PRIVATE, &is_direct, &fd, err);
    *is_full = rc != 0 && plat_was_full();
    if (rc != 0)
        return rc;
    if (!plat_open_file_info(fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot look at '%s'", path);
    if (rc == 0)
        rc = write_all(s, model, fd, path, is_full, err);
    if (rc == 0)
        rc = plat_dir_rename(dir, part, name, &is, err);
    if (rc != 0)
        (void)plat_dir_remove(dir, part, &is, NULL); /* the fault before is the one to tell of */
    plat_close(fd);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------- */

static int check_header(const struct fm_model *m, uint64_t model, const struct snapshot_header *h,
                        uint64_t file_bytes, const char *path, struct fm_error *err)
{
    const struct snapshot_header own = header_of(m, model);
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return err_set(err, FM_ERR_FORMAT, "'%s' is no snapshot", path);
    if (h->model != model || h->recurrent_bytes != own.recurrent_bytes ||
        h->kv_position_bytes != own.kv_position_bytes ||
        memcmp(h->kv_format, own.kv_format, sizeof own.kv_format) != 0)
        return err_set(err, FM_ERR_FORMAT,
                       "'%s' is a snapshot of another model or configuration, of other "
                       "approximations or of another format of keys and values", path);
    if (h->n_tokens == 0 || h->n_marks > SEQUENCE_MARKS || bytes_of(h) != h->bytes ||
        h->bytes != file_bytes)
        return err_set(err, FM_ERR_FORMAT,
                       "the snapshot '%s' is damaged: it has %llu bytes and says %llu", path,
                       (unsigned long long)file_bytes, (unsigned long long)h->bytes);
    if (h->n_tokens > engine_limits(&m->engine)->n_context)
        return err_set(err, FM_ERR_ARG,
                       "the snapshot '%s' has %u tokens, the context has %u positions (--context)",
                       path, h->n_tokens, engine_limits(&m->engine)->n_context);
    return 0;
}

/* Header, tokens and marks, in this order. */
static int read_head(const struct fm_model *m, uint64_t model, struct stream *f,
                     uint64_t file_bytes, struct snapshot_header *h, int32_t *ids,
                     uint32_t marks[SEQUENCE_MARKS])
{
    pass(f, h, sizeof *h);
    if (f->rc == 0)
        f->rc = check_header(m, model, h, file_bytes, f->path, f->err);
    if (f->rc != 0)
        return f->rc;
    pass(f, ids, h->n_tokens * sizeof *ids);
    pass(f, marks, h->n_marks * sizeof *marks);
    bool is_sound = f->rc == 0 && head_checksum(h, ids, marks) == h->checksum;
    for (uint32_t i = 0; is_sound && i < h->n_marks; i++)
        is_sound = marks[i] > 0 && marks[i] <= h->n_tokens;
    for (uint32_t i = 0; is_sound && i < h->n_tokens; i++)
        is_sound = ids[i] >= 0 && (uint32_t)ids[i] < m->engine.model->shape.vocabulary;
    if (f->rc == 0 && !is_sound)
        f->rc = err_set(f->err, FM_ERR_FORMAT, "the snapshot '%s' is damaged", f->path);
    return f->rc;
}

/* Opens a file for reading, whose path is written into `path`. One of this user's that others can
 * read, as earlier versions made them, is theirs no longer. */
static int open_file(const struct plat_dir *dir, const char *name, char path[LIMIT_PATH_BYTES],
                     struct stream *f, uint64_t *bytes, struct fm_error *err)
{
    (void)snprintf(path, LIMIT_PATH_BYTES, "%s/%s", dir->path, name); /* for messages */
    *f = (struct stream){.path = path};
    const int rc = plat_dir_read(dir, name, &f->fd, bytes, err);
    if (rc == 0)
        plat_make_private(f->fd);
    return rc;
}

int snapshot_read_info(const struct fm_model *m, uint64_t model, const struct plat_dir *dir,
                       const char *name, struct snapshot_info *info, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct stream f;
    struct snapshot_header h;
    uint64_t bytes;
    *info = (struct snapshot_info){0};
    int rc = open_file(dir, name, path, &f, &bytes, err);
    if (rc != 0)
        return rc;
    rc = stream_begin(&f, err);
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
    info->is_rewindable = h.recurrent_bytes == 0;
    return 0;
}

static int read_all(struct fm_session *s, uint64_t model, struct stream *f, uint64_t file_bytes)
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
    pass_marks(f, s->sequence, h.n_marks);
    pass_state(f, s, h.n_tokens);
    const XXH128_hash_t is = XXH3_128bits_digest(f->hash);
    pass(f, &sum, sizeof sum);
    if (f->rc == 0 && !XXH128_isEqual(is, sum))
        f->rc = err_set(f->err, FM_ERR_FORMAT, "the snapshot '%s' is damaged: its checksum is "
                        "another", f->path);
    for (uint32_t i = 0; f->rc == 0 && i < h.n_marks && i < s->sequence->n_marks; i++)
        s->sequence->marks[i] = marks[i];
    if (f->rc == 0)
        s->sequence->position = h.n_tokens;
    return f->rc;
}

int snapshot_read(struct fm_session *s, uint64_t model, const struct plat_dir *dir,
                  const char *name, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct stream f;
    uint64_t bytes;
    int rc = open_file(dir, name, path, &f, &bytes, err);
    if (rc != 0)
        return rc; /* the session has what it had */
    fm_session_reset(s);
    rc = stream_begin(&f, err);
    if (rc == 0) {
        rc = read_all(s, model, &f, bytes);
        (void)XXH3_freeState(f.hash); /* always succeeds */
    }
    plat_close(f.fd);
    if (rc != 0)
        fm_session_reset(s);
    return rc;
}

/* ---- for the public ------------------------------------------------------------------------- */

/* The folder that the caller names is the caller's choice, links and all. */
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
    int rc = snapshot_model(s->owner, &model, err);
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
    int rc = snapshot_model(s->owner, &model, err);
    if (rc == 0)
        rc = open_folder(file, folder, &dir, err);
    if (rc != 0)
        return rc;
    rc = snapshot_read(s, model, &dir, path_base(file), err);
    plat_dir_close(&dir);
    return rc;
}
