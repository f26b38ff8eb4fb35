#include "session/snapshot.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/path.h"

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

/* Bytes that are sampled of the first, middle and last expert of a layer without checksums. */
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

/* Likewise of a table: its first, middle and last row. */
static int sample_table(const struct model *model, const struct row_table *table, uint64_t *hash,
                        struct fm_error *err)
{
    const uint64_t rows[] = {0, table->n_rows / 2, table->n_rows - 1};
    unsigned char bytes[SAMPLE_BYTES];
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < 3; i++) {
        const struct row_shard *shard = &table->shards[rows[i] / table->shard_rows];
        const struct source_file *file = &model->source->files[shard->file];
        const uint64_t n = table->row_bytes < sizeof bytes ? table->row_bytes : sizeof bytes;
        rc = plat_read_at(file->fd, file->path, bytes, n,
                          shard->offset + (rows[i] - shard->first_row) * table->row_bytes, err);
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

/* Hashes every field of the configuration: the same weights give other results with another rope,
 * for example. */
static int hash_config(const struct model *model, uint64_t *hash, struct fm_error *err)
{
    const size_t how = JSON_COMPACT | JSON_SORT_KEYS;
    if (json_dump_callback(model->source->config.root, hash_piece, hash, how) != 0)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot hash the configuration");
    return 0;
}

/* Hashes the dense weights as they lie in memory. A model cut into other stages has another hash,
 * so its snapshots are not interchangeable. */
static int hash_dense(const struct model *model, uint64_t *hash, struct fm_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    if (state == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: a checksum");
    (void)XXH3_64bits_reset_withSeed(state, *hash ^ model_identity(model));
    const uint64_t end = model->dense_bytes - model->mtp_dense_bytes; /* drafts change nothing */
    uint64_t at = 0;
    while (at < end) {
        char *piece = (char *)model->dense + at;
        const uint64_t n = memory_handy(model->memory, end - at);
        const void *bytes = memory_open(model->memory, piece, n, MEMORY_LOOK);
        if (bytes == NULL)
            break;
        (void)XXH3_64bits_update(state, bytes, n);
        memory_close(model->memory, piece, n);
        at += n;
    }
    *hash = XXH3_64bits_digest(state);
    (void)XXH3_freeState(state);
    return at == end ? 0 : err_set(err, FM_ERR_NOMEM, "out of memory: weights");
}

static int sample_stage(const struct stage *stage, uint64_t *hash, struct fm_error *err)
{
    const struct model *model = stage->model;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < model_n_own_expert_layers(model); i++)
        if (model->expert_layers[i].sums == NULL)
            rc = sample_experts(model, &model->expert_layers[i], hash, err);
    for (uint32_t i = 0; rc == 0 && i < model->n_row_tables; i++)
        rc = sample_table(model, &model->row_tables[i], hash, err);
    return rc;
}

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
        rc = hash_dense(e->stages[i].model, &hash, err);
    hash = XXH3_64bits_withSeed(m->approximate, strlen(m->approximate), hash);
    if (rc == 0)
        rc = hash_config(e->model, &hash, err);
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

/* ---- transfer of a file --------------------------------------------------------------------- */

/* A snapshot that is being read or written. Does nothing after the first error. */
struct snapshot_file {
    int fd;
    bool writes;
    const char *path;
    uint64_t at;
    XXH3_state_t *hash;
    int rc;
    bool is_full; /* it failed because the disk is full */
    struct fm_error *err;
};

/* Writes or reads n bytes at the file's position and adds them to the hash. */
static void transfer(struct snapshot_file *f, void *bytes, uint64_t n)
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

/* Transfers memory of the sequence. */
static void transfer_memory(struct snapshot_file *f, const struct memory *memory, void *at,
                            uint64_t n)
{
    char *piece = at;
    for (uint64_t n_piece; f->rc == 0 && n > 0; n -= n_piece, piece += n_piece) {
        n_piece = memory_handy(memory, n);
        void *bytes =
            memory_open(memory, piece, n_piece, f->writes ? MEMORY_LOOK : MEMORY_FILL);
        if (bytes == NULL) {
            f->rc = err_set(f->err, FM_ERR_NOMEM, "out of memory: a part of the session");
            return;
        }
        transfer(f, bytes, n_piece);
        memory_close(memory, piece, n_piece);
    }
}

/* Transfers the recurrent state of all layers: the session's own, or that of a mark. */
static void transfer_recurrent(struct snapshot_file *f, const struct sequence *seq, bool is_mark,
                               uint32_t mark)
{
    for (uint32_t i = 0; i < seq->n_parts; i++) {
        const struct sequence_part *part = &seq->parts[i];
        transfer_memory(f, part->memory, is_mark ? sequence_mark_state(part, mark)
                                                : sequence_state(seq, part),
                        part->recurrent_bytes);
    }
}

/* Transfers the marks' states, before the session's own state. When reading, a mark without room is
 * read into the session's state, which is read over afterwards. */
static void transfer_marks(struct snapshot_file *f, const struct sequence *seq, uint32_t n)
{
    for (uint32_t i = 0; f->writes && i < seq->n_marks; i++)
        if (seq->marks[i] > 0)
            transfer_recurrent(f, seq, true, i);
    for (uint32_t i = 0; !f->writes && i < n; i++)
        transfer_recurrent(f, seq, i < seq->n_marks, i);
}

/* Transfers one row of every position, in the order of positions. `first` is the row of the first
 * position. */
static void transfer_row(struct snapshot_file *f, const struct sequence_part *part, char *first,
                         uint64_t row_bytes, uint32_t n_positions)
{
    const uint32_t max = part->blocks.n_positions;
    for (uint32_t at = 0; at < n_positions; at += max) {
        const uint32_t n = n_positions - at < max ? n_positions - at : max;
        transfer_memory(f, part->memory, first + at / max * part->blocks.bytes, n * row_bytes);
    }
}

/* Transfers row `row` of every part of a layer that has that many. Returns whether one has. */
static bool transfer_rows(struct snapshot_file *f, const struct sequence_part *part,
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
        transfer_row(f, part, (char *)l->state[i] + row * bytes * part->blocks.n_positions, bytes,
                     n_positions);
    }
    return has_any;
}

/* Transfers what is addressed by position, layer by layer: the first row of every part, then the
 * second. */
static void transfer_kv(struct snapshot_file *f, const struct engine *e, uint32_t stage,
                        const struct sequence_part *part, uint32_t n_positions)
{
    const struct model *model = e->stages[stage].model;
    for (uint32_t i = model->first_layer; i < model->end_layer; i++) {
        const struct sequence_layer *l = &part->layers[i - part->first_layer];
        struct layer_state state;
        arch_of(model)->state(model->arch, i, &state);
        uint32_t row = 0;
        while (transfer_rows(f, part, &state, l, e->kv_format, row, n_positions))
            row++;
    }
}

static void transfer_state(struct snapshot_file *f, const struct fm_session *s,
                           uint32_t n_positions)
{
    const struct engine *e = &s->owner->engine;
    transfer_recurrent(f, s->sequence, false, 0);
    for (uint32_t i = 0; i < e->n_stages; i++)
        transfer_kv(f, e, i, &s->sequence->parts[i], n_positions);
}

static int file_begin(struct snapshot_file *f, struct fm_error *err)
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
    struct snapshot_file f = {.fd = fd, .writes = true, .path = path};
    struct snapshot_header h = header_for(s, model);
    uint32_t marks[SEQUENCE_MARKS];
    uint32_t n = 0;
    for (unsigned i = 0; i < s->sequence->n_marks; i++)
        if (s->sequence->marks[i] > 0)
            marks[n++] = s->sequence->marks[i];
    assert(n == h.n_marks && n <= SEQUENCE_MARKS);
    h.checksum = head_checksum(&h, s->ids, marks);
    /* A disk without enough room fails here, before anything is written. */
    int rc = plat_reserve(fd, path, h.bytes, err);
    *is_full = rc != 0 && plat_was_full();
    if (rc == 0)
        rc = file_begin(&f, err);
    if (rc != 0)
        return rc;
    transfer(&f, &h, sizeof h);
    transfer(&f, s->ids, h.n_tokens * sizeof *s->ids);
    transfer(&f, marks, n * sizeof *marks);
    transfer_marks(&f, s->sequence, n);
    transfer_state(&f, s, h.n_tokens);
    XXH128_hash_t sum = XXH3_128bits_digest(f.hash);
    transfer(&f, &sum, sizeof sum);
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
    char part[LIMIT_PATH_BYTES], path[LIMIT_PATH_BYTES];
    struct plat_file_info is;
    bool is_direct = false;
    int fd;
    *is_full = false;
    if (s->sequence->position == 0)
        return err_set(err, FM_ERR_ARG, "the session has no tokens to save");
    if ((size_t)snprintf(part, sizeof part, "%s.part", name) >= sizeof part ||
        (size_t)snprintf(path, sizeof path, "%s/%s", dir->path, part) >= sizeof path)
        return err_set(err, FM_ERR_ARG, "the path '%s/%s' is too long", dir->path, name);
    int rc = plat_dir_create(dir, part, PLAT_PRIVATE, &is_direct, &fd, err);
    *is_full = rc != 0 && plat_was_full();
    if (rc != 0)
        return rc;
    if (!plat_open_file_info(fd, &is))
        rc = err_set(err, FM_ERR_IO, "cannot get the status of '%s'", path);
    if (rc == 0)
        rc = write_all(s, model, fd, path, is_full, err);
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
static int read_head(const struct fm_model *m, uint64_t model, struct snapshot_file *f,
                     uint64_t file_bytes, struct snapshot_header *h, int32_t *ids,
                     uint32_t marks[SEQUENCE_MARKS])
{
    transfer(f, h, sizeof *h);
    if (f->rc == 0)
        f->rc = check_header(m, model, h, file_bytes, f->path, f->err);
    if (f->rc != 0)
        return f->rc;
    transfer(f, ids, h->n_tokens * sizeof *ids);
    transfer(f, marks, h->n_marks * sizeof *marks);
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
                     struct snapshot_file *f, uint64_t *bytes, struct fm_error *err)
{
    (void)snprintf(path, LIMIT_PATH_BYTES, "%s/%s", dir->path, name); /* for messages */
    *f = (struct snapshot_file){.path = path};
    const int rc = plat_dir_read(dir, name, &f->fd, bytes, err);
    if (rc == 0)
        plat_make_private(f->fd);
    return rc;
}

int snapshot_read_info(const struct fm_model *m, uint64_t model, const struct plat_dir *dir,
                       const char *name, struct snapshot_info *info, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES];
    struct snapshot_file f;
    struct snapshot_header h;
    uint64_t bytes;
    *info = (struct snapshot_info){0};
    int rc = open_file(dir, name, path, &f, &bytes, err);
    if (rc != 0)
        return rc;
    rc = file_begin(&f, err);
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

static int read_all(struct fm_session *s, uint64_t model, struct snapshot_file *f,
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
    transfer(f, &sum, sizeof sum);
    if (f->rc == 0 && !XXH128_isEqual(is, sum))
        f->rc = err_set(f->err, FM_ERR_FORMAT, "the snapshot '%s' is damaged: its checksum does "
                        "not match", f->path);
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
    struct snapshot_file f;
    uint64_t bytes;
    int rc = open_file(dir, name, path, &f, &bytes, err);
    if (rc != 0)
        return rc; /* the session keeps its state */
    fm_session_reset(s);
    rc = file_begin(&f, err);
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
