#include "engine/state_file.h"

#include <assert.h>

#include "base/plat.h"

/* Writes or reads n bytes at the file's position and adds them to the hash. */
void state_transfer(struct state_file *f, void *bytes, uint64_t n)
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
static void transfer_memory(struct state_file *f, const struct memory *memory, void *at,
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
        state_transfer(f, bytes, n_piece);
        memory_close(memory, piece, n_piece);
    }
}

/* Transfers the recurrent state of all layers: the session's own, or that of a mark. */
void state_transfer_recurrent(struct state_file *f, const struct sequence *seq, bool is_mark,
                               uint32_t mark)
{
    for (uint32_t i = 0; i < seq->n_parts; i++) {
        const struct sequence_part *part = &seq->parts[i];
        transfer_memory(f, part->memory, is_mark ? sequence_mark_state(part, mark)
                                                : sequence_state(seq, part),
                        part->recurrent_bytes);
    }
}

/* Transfers one row of every position, in the order of positions. `first` is the row of the first
 * position. */
static void transfer_row(struct state_file *f, const struct sequence_part *part, char *first,
                         uint64_t row_bytes, uint32_t n_positions)
{
    const uint32_t max = part->blocks.n_positions;
    for (uint32_t at = 0; at < n_positions; at += max) {
        const uint32_t n = n_positions - at < max ? n_positions - at : max;
        char *block = sequence_block(part, at / max);
        assert(f->writes || at / max >= part->n_shared);
        transfer_memory(f, part->memory, block + (first - (char *)part->kv.at), n * row_bytes);
    }
}

/* Transfers row `row` of every part of a layer that has that many. Returns whether one has. */
static bool transfer_rows(struct state_file *f, const struct sequence_part *part,
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
static void transfer_kv(struct state_file *f, const struct engine *e, uint32_t stage,
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

void state_transfer_kv(struct state_file *f, const struct engine *e, const struct sequence *s,
                       uint32_t n_positions)
{
    for (uint32_t i = 0; i < e->n_stages; i++)
        transfer_kv(f, e, i, &s->parts[i], n_positions);
}

int state_file_begin(struct state_file *f, struct fm_error *err)
{
    f->err = err;
    f->hash = XXH3_createState();
    if (f->hash == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot allocate a checksum");
    (void)XXH3_128bits_reset(f->hash); /* fails for NULL only */
    return 0;
}
