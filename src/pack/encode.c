#include "pack/encode.h"

#include <string.h>

#include "base/mem.h"
#include "base/plat.h"
#include "quant/interleave.h"

/* Approximate size of the pieces in which source rows are decoded. */
#define RAW_BYTES (2u << 20)
/* Maximum size of the pieces in which unchanged bytes are copied. */
#define COPY_BYTES (4u << 20)

/* ---- memory --------------------------------------------------------------------------------- */

/* Returns the number of rows that must be decoded together, because they share a row of some
 * part. */
static uint64_t rows_together(const struct quant *quant)
{
    uint64_t max = 1;
    for (unsigned p = 0; p < quant->n_parts; p++)
        max = quant->part_rows[p] > max ? quant->part_rows[p] : max;
    return max;
}

/* Returns the buffer size for n_rows rows. Parts begin at cache-line boundaries. */
static uint64_t raw_bytes_of(const struct quant *quant, uint64_t n_rows, uint64_t n_cols)
{
    return quant_matrix_bytes(quant, n_rows, n_cols) + (uint64_t)QUANT_MAX_PARTS * MEM_CACHE_LINE;
}

/* Returns the number of rows that are read, decoded and written together, in whole groups. */
static uint64_t rows_of_group(const struct matrix_source *from, const struct matrix_target *to)
{
    const uint64_t group = rows_together(from->quant);
    const bool has_blocks = from->is_interleaved || to->is_interleaved;
    return has_blocks && group < INTERLEAVE_ROWS ? INTERLEAVE_ROWS : group;
}

static uint64_t rows_per_piece(const struct quant *quant, uint64_t group, uint64_t n_cols)
{
    uint64_t n = RAW_BYTES / (raw_bytes_of(quant, group, n_cols) + 1) * group;
    return n > group ? n : group;
}

void encoder_needs_add(struct encoder_needs *needs, const struct quant *from, uint64_t n_cols)
{
    const uint64_t groups[] = {rows_together(from), INTERLEAVE_ROWS};
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t raw = raw_bytes_of(from, rows_per_piece(from, groups[i], n_cols), n_cols);
        needs->raw_bytes = raw > needs->raw_bytes ? raw : needs->raw_bytes;
    }
    needs->max_cols = n_cols > needs->max_cols ? n_cols : needs->max_cols;
}

uint64_t encoder_bytes(const struct encoder_needs *needs)
{
    return needs->out_bytes + needs->raw_bytes + needs->max_cols * 3 * sizeof(float) +
           needs->slot_bytes;
}

int encoder_init(struct encoder *e, const struct encoder_needs *needs, struct fm_error *err)
{
    *e = (struct encoder){.out_bytes = needs->out_bytes};
    e->out = mem_new_aligned(MEM_PAGE, needs->out_bytes, "a write buffer", err);
    e->raw = mem_new_aligned(MEM_CACHE_LINE, needs->raw_bytes, "a read buffer", err);
    e->row = mem_new_aligned(MEM_CACHE_LINE, needs->max_cols * sizeof(float), "a row", err);
    e->discarded = mem_new_aligned(MEM_CACHE_LINE, needs->max_cols * sizeof(float), "a row", err);
    e->gathered = mem_new_aligned(MEM_CACHE_LINE, needs->max_cols * sizeof(float), "a row", err);
    if (needs->slot_bytes > 0)
        e->slot = mem_new_aligned(MEM_PAGE, needs->slot_bytes, "an expert", err);
    e->hash = XXH3_createState();
    if (e->hash == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate a checksum");
    const bool has_all = e->out != NULL && e->raw != NULL && e->row != NULL &&
                         e->discarded != NULL && e->gathered != NULL &&
                         (needs->slot_bytes == 0 || e->slot != NULL);
    return has_all ? 0 : FM_ERR_NOMEM;
}

void encoder_clear(struct encoder *e)
{
    mem_free(e->out);
    mem_free(e->raw);
    mem_free(e->row);
    mem_free(e->discarded);
    mem_free(e->gathered);
    mem_free(e->slot);
    (void)XXH3_freeState(e->hash); /* accepts NULL */
    *e = (struct encoder){0};
}

/* ---- the writer ----------------------------------------------------------------------------- */

void writer_begin(struct writer *s, struct encoder *e, struct crew *crew,
                  const struct writer_files *to, uint64_t at)
{
    *s = (struct writer){.encoder = e, .crew = crew, .to = *to, .at = at};
    (void)XXH3_128bits_reset(e->hash); /* fails only for NULL */
}

static int write_file(const struct writer_files *to, unsigned f, const char *data, uint64_t bytes,
                      uint64_t at, struct fm_error *err)
{
    const struct writer_file *file = &to->files[f];
    int rc = plat_write_at(file->fd, file->path, data, bytes, at, err);
    if (rc == 0 && !to->is_direct)
        plat_write_behind(file->fd, at, bytes);
    return rc;
}

/* Writes a run of records, each cut into its parts. */
static int write_parts(const struct writer_files *to, const char *data, uint64_t bytes, uint64_t at,
                       struct fm_error *err)
{
    int rc = 0;
    while (rc == 0 && bytes > 0) {
        const uint64_t record = at / to->record_bytes;
        uint64_t within = at % to->record_bytes;
        unsigned f = 0;
        while (within >= to->files[f].part_bytes)
            within -= to->files[f++].part_bytes;
        const uint64_t part = to->files[f].part_bytes;
        const uint64_t n = part - within < bytes ? part - within : bytes;
        rc = write_file(to, f, data, n, record * part + within, err);
        data += n;
        at += n;
        bytes -= n;
    }
    return rc;
}

static int write_out(const struct writer *s, uint64_t bytes, struct fm_error *err)
{
    const struct writer_files *to = &s->to;
    int rc = 0;
    if (to->record_bytes > 0)
        return write_parts(to, s->encoder->out, bytes, s->at, err);
    for (unsigned f = 0; rc == 0 && f < to->n; f++)
        rc = write_file(to, f, s->encoder->out, bytes, s->at, err);
    return rc;
}

static void hash_up(struct writer *s)
{
    (void)XXH3_128bits_update(s->encoder->hash, s->encoder->out + s->hashed, s->used - s->hashed);
    s->hashed = s->used;
}

static int flush(struct writer *s, struct fm_error *err)
{
    hash_up(s);
    const uint64_t n = s->to.is_direct ? s->used - s->used % MEM_PAGE : s->used;
    const uint64_t n_copies = s->to.record_bytes == 0 && s->to.n > 1 ? s->to.n : 1;
    int rc = write_out(s, n, err);
    if (rc != 0)
        return rc;
    memmove(s->encoder->out, s->encoder->out + n, s->used - n);
    s->at += n;
    s->used -= n;
    s->hashed -= n;
    return crew_advance(s->crew, n * n_copies, err);
}

/* Makes room for n bytes, at most out_bytes - MEM_PAGE. They count once `used` has grown. */
static int make_room(struct writer *s, uint64_t n, char **at, struct fm_error *err)
{
    const bool is_due = s->used >= COPY_BYTES || s->encoder->out_bytes - s->used < n;
    int rc = is_due ? flush(s, err) : 0;
    *at = s->encoder->out + s->used;
    return rc;
}

static uint64_t max_at_once(const struct writer *s)
{
    const uint64_t max = s->encoder->out_bytes - MEM_PAGE;
    return max < COPY_BYTES ? max : COPY_BYTES;
}

int writer_pad(struct writer *s, uint64_t to, struct fm_error *err)
{
    while (s->at + s->used < to) {
        uint64_t n = to - s->at - s->used;
        char *at;
        n = n < max_at_once(s) ? n : max_at_once(s);
        int rc = make_room(s, n, &at, err);
        if (rc != 0)
            return rc;
        memset(at, 0, n);
        s->used += n;
    }
    return 0;
}

void writer_sum(struct writer *s, struct packed_sum *sum)
{
    hash_up(s);
    packed_sum_of_hash(s->encoder->hash, sum);
    (void)XXH3_128bits_reset(s->encoder->hash); /* fails only for NULL */
}

int writer_end(struct writer *s, struct fm_error *err)
{
    return flush(s, err);
}

/* ---- matrices ------------------------------------------------------------------------------- */

/* Reads bytes [at, at + bytes) of the slot. */
static int read_slot(const struct matrix_source *from, uint64_t at, uint64_t bytes, char *dst,
                     struct fm_error *err)
{
    if (from->slot != NULL) {
        memcpy(dst, from->slot + at, bytes);
        return 0;
    }
    for (unsigned i = 0; i < from->n_extents; i++) {
        const struct extent *x = &from->extents[i];
        const uint64_t end = x->slot_offset + x->bytes;
        const uint64_t first = at > x->slot_offset ? at : x->slot_offset;
        const uint64_t last = at + bytes < end ? at + bytes : end;
        if (first >= last)
            continue;
        const struct source_file *file = &from->source->files[x->file];
        int rc = plat_read_at(file->fd, file->path, dst + (first - at), last - first,
                              x->offset + (first - x->slot_offset), err);
        if (rc != 0)
            return rc;
    }
    return 0;
}

int encoder_settle(struct encoder *e, const struct source *source, const struct record *record,
                   const struct extent *extents, unsigned n_extents, struct fm_error *err)
{
    const struct matrix_source all = {.source = source, .extents = extents,
                                      .n_extents = n_extents};
    int rc = read_slot(&all, 0, record->bytes, e->slot, err);
    if (rc == 0)
        record_settle(record, e->slot);
    return rc;
}

static int refuse_rows(const struct matrix_source *from, struct fm_error *err)
{
    return err_set(err, FM_ERR_UNSUPPORTED, "rows of %llu columns are too long to be encoded",
                   (unsigned long long)from->n_cols);
}

/* Copies a part that keeps its format. With `turns`, interleaves its rows. */
static int copy_part(struct writer *s, const struct matrix_source *from, unsigned part, bool turns,
                     struct fm_error *err)
{
    const uint64_t bytes = quant_part_bytes(from->quant, part, from->n_rows, from->n_cols);
    const uint64_t row_bytes = quant_part_row_bytes(from->quant, part, from->n_cols);
    const uint64_t block = turns ? INTERLEAVE_ROWS * row_bytes : 1;
    const uint64_t max = max_at_once(s) - max_at_once(s) % block;
    if (max == 0)
        return refuse_rows(from, err);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t n = bytes - done < max ? bytes - done : max;
        char *at;
        int rc = make_room(s, n, &at, err);
        if (rc == 0)
            rc = read_slot(from, from->part_offset[part] + done, n, at, err);
        if (rc != 0)
            return rc;
        if (turns)
            interleave_part(from->quant, part, from->n_cols, at, n / block);
        s->used += n;
        done += n;
    }
    return 0;
}

/* Locates row i in the bytes that were read. Gathers a row of an interleaved matrix. */
static void take_row(const struct encoder *e, const struct matrix_source *from,
                     const char *const raw[], uint64_t i, const void *row[])
{
    struct weight w = {.quant = from->quant, .n_cols = (uint32_t)from->n_cols};
    for (unsigned p = 0; p < from->quant->n_parts; p++) {
        w.parts[p] = raw[p];
        row[p] = raw[p] + quant_part_row(from->quant, p, i) *
                              quant_part_row_bytes(from->quant, p, from->n_cols);
    }
    if (from->is_interleaved)
        interleave_take_row(&w, i, e->gathered, row);
}

/* Encodes rows [first, first + n); the first one begins a group. Row i of part p goes to out[p] + i
 * * step[p]. */
static int encode_rows(struct encoder *e, const struct matrix_source *from, uint64_t first,
                       uint64_t n, const struct quant *to, char *const out[],
                       const uint64_t step[], struct fm_error *err)
{
    const char *raw[QUANT_MAX_PARTS] = {0};
    uint64_t used = 0;
    for (unsigned p = 0; p < from->quant->n_parts; p++) {
        const uint64_t at = quant_part_row(from->quant, p, first) *
                            quant_part_row_bytes(from->quant, p, from->n_cols);
        const uint64_t bytes = quant_part_bytes(from->quant, p, n, from->n_cols);
        raw[p] = e->raw + used;
        int rc = read_slot(from, from->part_offset[p] + at, bytes, e->raw + used, err);
        if (rc != 0)
            return rc;
        used = mem_round_up(used + bytes, MEM_CACHE_LINE);
    }
    for (uint64_t i = 0; i < n; i++) {
        const void *src[QUANT_MAX_PARTS] = {0};
        void *dst[QUANT_MAX_PARTS] = {0};
        take_row(e, from, raw, i, src);
        for (unsigned p = 0; p < to->n_parts; p++)
            dst[p] = out[p] + i * step[p];
        from->quant->decode_row(from->quant, src, e->row, from->n_cols);
        to->encode_row(to, e->row, dst, from->n_cols);
    }
    return 0;
}

/* Encodes all parts in one pass, because they fit into the buffer together. */
static int encode_at_once(struct writer *s, const struct matrix_source *from,
                          const struct matrix_target *target, uint64_t span, struct fm_error *err)
{
    const struct quant *to = target->quant;
    const uint64_t *part_offset = target->part_offset;
    const uint64_t n_rows = rows_per_piece(from->quant, rows_of_group(from, target), from->n_cols);
    char *at, *out[QUANT_MAX_PARTS] = {0};
    uint64_t step[QUANT_MAX_PARTS] = {0};
    int rc = make_room(s, span, &at, err);
    if (rc != 0)
        return rc;
    for (unsigned p = 0; p < to->n_parts; p++) {
        const uint64_t bytes = quant_part_bytes(to, p, from->n_rows, from->n_cols);
        step[p] = quant_part_row_bytes(to, p, from->n_cols);
        out[p] = at + (part_offset[p] - part_offset[0]);
        if (p + 1 < to->n_parts)
            memset(out[p] + bytes, 0, part_offset[p + 1] - part_offset[p] - bytes);
    }
    for (uint64_t r = 0; rc == 0 && r < from->n_rows; r += n_rows) {
        const uint64_t n = from->n_rows - r < n_rows ? from->n_rows - r : n_rows;
        rc = encode_rows(s->encoder, from, r, n, to, out, step, err);
        for (unsigned p = 0; p < to->n_parts; p++) {
            if (rc == 0 && target->is_interleaved)
                interleave_part(to, p, from->n_cols, out[p], n / INTERLEAVE_ROWS);
            out[p] += n * step[p];
        }
        if (rc == 0)
            rc = crew_advance(s->crew, 0, err);
    }
    s->used += span;
    return rc;
}

/* Encodes one part of a matrix that does not fit into the buffer. The other parts are computed and
 * discarded. */
static int encode_part(struct writer *s, const struct matrix_source *from,
                       const struct matrix_target *target, unsigned part, struct fm_error *err)
{
    const struct quant *to = target->quant;
    const uint64_t row_bytes = quant_part_row_bytes(to, part, from->n_cols);
    const uint64_t group = rows_of_group(from, target), room = max_at_once(s) / row_bytes;
    uint64_t n_rows = rows_per_piece(from->quant, group, from->n_cols);
    n_rows = room < n_rows ? room - room % group : n_rows;
    if (n_rows == 0)
        return refuse_rows(from, err);
    for (uint64_t r = 0; r < from->n_rows; r += n_rows) {
        const uint64_t n = from->n_rows - r < n_rows ? from->n_rows - r : n_rows;
        char *at, *out[QUANT_MAX_PARTS];
        uint64_t step[QUANT_MAX_PARTS] = {0};
        int rc = make_room(s, n * row_bytes, &at, err);
        for (unsigned p = 0; p < to->n_parts; p++)
            out[p] = p == part ? at : s->encoder->discarded;
        step[part] = row_bytes;
        if (rc == 0)
            rc = encode_rows(s->encoder, from, r, n, to, out, step, err);
        if (rc != 0)
            return rc;
        if (target->is_interleaved)
            interleave_part(to, part, from->n_cols, at, n / INTERLEAVE_ROWS);
        s->used += n * row_bytes;
    }
    return 0;
}

int encode_matrix(struct writer *s, const struct matrix_source *from,
                  const struct matrix_target *to, struct fm_error *err)
{
    const unsigned last = to->quant->n_parts - 1;
    const uint64_t *part_offset = to->part_offset;
    const uint64_t span = part_offset[last] - part_offset[0] +
                          quant_part_bytes(to->quant, last, from->n_rows, from->n_cols);
    const bool turns = to->is_interleaved && !from->is_interleaved;
    int rc = 0;
    if (from->quant != to->quant && span <= s->encoder->out_bytes - MEM_PAGE) {
        rc = writer_pad(s, to->base + part_offset[0], err);
        return rc != 0 ? rc : encode_at_once(s, from, to, span, err);
    }
    for (unsigned p = 0; rc == 0 && p < to->quant->n_parts; p++) {
        rc = writer_pad(s, to->base + part_offset[p], err);
        if (rc == 0)
            rc = from->quant == to->quant ? copy_part(s, from, p, turns, err)
                                          : encode_part(s, from, to, p, err);
    }
    return rc;
}
