#include "arch/state.h"

#include <assert.h>
#include <string.h>

#include "base/mem.h"

void sequence_sizes(const struct model *model, const struct kv_format *kv_format,
                    struct sequence_sizes *sizes)
{
    const struct arch *arch = arch_of(model);
    *sizes = (struct sequence_sizes){0};
    for (uint32_t i = 0; i < model->shape.n_layers; i++) {
        struct layer_state s;
        arch->state(model->arch, i, &s);
        sizes->kv_position_bytes += 2 * s.n_kv_heads * kv_row_bytes(kv_format, s.head_dim);
        sizes->recurrent_bytes +=
            mem_round_up((s.conv_floats + s.delta_floats) * sizeof(float), MEM_CACHE_LINE);
    }
}

int sequence_check(const struct model *model, const struct kv_format *kv_format,
                   struct fm_error *err)
{
    for (uint32_t i = 0; i < model->shape.n_layers; i++) {
        struct layer_state s;
        arch_of(model)->state(model->arch, i, &s);
        if (s.n_kv_heads > 0 && !kv_fits(kv_format, s.head_dim))
            return err_set(err, FM_ERR_ARG,
                           "keys and values cannot be kept as '%s': layer %u has heads of %u "
                           "dimensions, and only multiples of %d are rotated; use f16",
                           kv_format->name, i, s.head_dim, KV_GROUP);
    }
    return 0;
}

/* Positions of a block: the attention kernels walk as many at a time. */
#define BLOCK_POSITIONS 256

void sequence_blocks(const struct model *model, const struct kv_format *kv_format,
                     uint32_t n_context, struct sequence_blocks *blocks)
{
    struct sequence_sizes sizes;
    sequence_sizes(model, kv_format, &sizes);
    blocks->n_positions = n_context < BLOCK_POSITIONS ? n_context : BLOCK_POSITIONS;
    blocks->bytes = blocks->n_positions * sizes.kv_position_bytes;
}

uint64_t sequence_kv_bytes(const struct sequence_blocks *blocks, uint32_t n_positions)
{
    const uint64_t n = (n_positions + (uint64_t)blocks->n_positions - 1) / blocks->n_positions;
    uint64_t bytes;
    return mem_mul(n > 0 ? n : 1, blocks->bytes, &bytes) ? mem_range_bytes(blocks->bytes, bytes)
                                                         : UINT64_MAX;
}

static int allocate(struct sequence *seq, uint32_t n_context, uint32_t n_marks,
                    struct fm_error *err)
{
    const uint64_t all = sequence_kv_bytes(&seq->blocks, n_context);
    uint64_t bytes;
    if (all == UINT64_MAX || !mem_mul(seq->recurrent_bytes, 1 + (uint64_t)n_marks, &bytes))
        return err_set(err, FM_ERR_NOMEM, "size overflow: a context of %u positions", n_context);
    seq->block = memory_make(seq->memory, bytes, "the recurrent state", err);
    if (seq->block == NULL)
        return FM_ERR_NOMEM;
    int rc = seq->memory->ops->range_open(seq->memory, &seq->kv, seq->blocks.bytes, all,
                                          "the KV cache", err);
    return rc != 0 ? rc : sequence_reach(seq, 0, err);
}

int sequence_new(const struct model *model, const struct memory *memory,
                 const struct kv_format *kv_format, uint32_t n_context, uint32_t n_marks,
                 struct sequence **out, struct fm_error *err)
{
    *out = NULL;
    const struct arch *arch = arch_of(model);
    const uint32_t n_layers = model->shape.n_layers;
    struct sequence *seq =
        mem_new(1, sizeof *seq + n_layers * sizeof seq->layers[0], "a sequence", err);
    if (seq == NULL)
        return FM_ERR_NOMEM;
    struct sequence_sizes sizes;
    seq->memory = memory;
    sequence_sizes(model, kv_format, &sizes);
    sequence_blocks(model, kv_format, n_context, &seq->blocks);
    seq->recurrent_bytes = sizes.recurrent_bytes;
    if (allocate(seq, n_context, n_marks, err) != 0) {
        sequence_free(seq);
        return FM_ERR_NOMEM;
    }
    char *recurrent = seq->block, *kv = seq->kv.at;
    seq->n_marks = sizes.recurrent_bytes > 0 ? n_marks : 0;
    for (unsigned i = 0; i < seq->n_marks; i++)
        seq->marks[i].recurrent = recurrent + (i + 1) * sizes.recurrent_bytes;
    for (uint32_t i = 0; i < n_layers; i++) {
        struct layer_state s;
        arch->state(model->arch, i, &s);
        struct sequence_layer *l = &seq->layers[i];
        l->conv = (float *)(void *)recurrent;
        l->delta = l->conv + s.conv_floats;
        recurrent += mem_round_up((s.conv_floats + s.delta_floats) * sizeof(float),
                                  MEM_CACHE_LINE);
        if (s.n_kv_heads == 0)
            continue;
        const uint64_t half = (uint64_t)s.n_kv_heads * kv_row_bytes(kv_format, s.head_dim) *
                              seq->blocks.n_positions;
        l->keys = kv;
        l->values = kv + half;
        kv += 2 * half;
    }
    sequence_reset(seq);
    *out = seq;
    return 0;
}

void sequence_free(struct sequence *sequence)
{
    if (sequence == NULL)
        return;
    sequence->memory->ops->range_close(sequence->memory, &sequence->kv);
    memory_free(sequence->memory, sequence->block);
    mem_free(sequence);
}

int sequence_reach(struct sequence *s, uint32_t n_positions, struct fm_error *err)
{
    const uint32_t n = n_positions > s->position ? n_positions : s->position;
    return s->memory->ops->range_resize(s->memory, &s->kv, sequence_kv_bytes(&s->blocks, n),
                                        "keys and values", err);
}

bool sequence_holds(const struct sequence *s, uint32_t n_positions)
{
    return sequence_kv_bytes(&s->blocks, n_positions) <= s->kv.used_bytes;
}

void sequence_reset(struct sequence *sequence)
{
    sequence->position = 0;
    sequence->is_torn = false;
    sequence->next_position = 0;
    memory_clear(sequence->memory, sequence->block, sequence->recurrent_bytes);
    for (unsigned i = 0; i < sequence->n_marks; i++)
        sequence->marks[i].position = 0;
}

/* ---- going back ------------------------------------------------------------------------------ */

/* A changed last line is seldom longer, and this much is computed anew at most beside it. */
#define MARK_TOKENS 64

static const struct sequence_mark *nearest_mark(const struct sequence *s, uint32_t position)
{
    const struct sequence_mark *best = NULL;
    for (unsigned i = 0; i < s->n_marks; i++) {
        const struct sequence_mark *m = &s->marks[i];
        if (m->position > 0 && m->position <= position &&
            (best == NULL || m->position > best->position))
            best = m;
    }
    return best;
}

uint32_t sequence_nearest(const struct sequence *s, uint32_t position)
{
    if (position >= s->position && !s->is_torn)
        return s->position;
    if (s->recurrent_bytes == 0)
        return position;
    const struct sequence_mark *mark = nearest_mark(s, position);
    return mark != NULL ? mark->position : 0;
}

void sequence_rewind(struct sequence *s, uint32_t position)
{
    const uint32_t to = sequence_nearest(s, position);
    if (to == s->position && !s->is_torn)
        return;
    if (to == 0) {
        sequence_reset(s);
        return;
    }
    if (s->recurrent_bytes > 0)
        memory_copy(s->memory, s->block, nearest_mark(s, to)->recurrent, s->recurrent_bytes);
    for (unsigned i = 0; i < s->n_marks; i++)
        if (s->marks[i].position > to)
            s->marks[i].position = 0;
    s->position = to;
    s->is_torn = false;
    s->next_position = 0;
}

void sequence_copy(struct sequence *to, const struct sequence *from, uint32_t position)
{
    assert(to->position == 0 && to->memory == from->memory && sequence_holds(to, position));
    memory_copy(to->memory, to->kv.at, from->kv.at, sequence_kv_bytes(&from->blocks, position));
    if (from->recurrent_bytes > 0)
        memory_copy(to->memory, to->block,
                    position == from->position && !from->is_torn
                        ? (const char *)from->block
                        : nearest_mark(from, position)->recurrent, from->recurrent_bytes);
    for (unsigned i = 0; i < from->n_marks && i < to->n_marks; i++)
        if (from->marks[i].position > 0 && from->marks[i].position <= position) {
            to->marks[i].position = from->marks[i].position;
            memory_copy(to->memory, to->marks[i].recurrent, from->marks[i].recurrent,
                        from->recurrent_bytes);
        }
    to->position = position;
}

/* The mark before this one and the one behind it, or where the sequence begins and `end`. */
static void neighbours(const struct sequence *s, uint32_t position, uint32_t end, uint32_t *before,
                       uint32_t *behind)
{
    *before = 0;
    *behind = end;
    for (unsigned i = 0; i < s->n_marks; i++) {
        const uint32_t p = s->marks[i].position;
        if (p > *before && p < position)
            *before = p;
        if (p > position && p < *behind)
            *behind = p;
    }
}

/* A mark to overwrite for one at `position`: itself, a free one, or the one that is missed least:
 * whose neighbours are the closest together for how long ago it is. */
static struct sequence_mark *take_mark(struct sequence *s, uint32_t position)
{
    struct sequence_mark *worst = NULL;
    double least = 0;
    for (unsigned i = 0; i < s->n_marks; i++)
        if (s->marks[i].position == position)
            return &s->marks[i];
    for (unsigned i = 0; i < s->n_marks; i++) {
        struct sequence_mark *m = &s->marks[i];
        if (m->position == 0)
            return m;
        uint32_t before, behind;
        neighbours(s, m->position, position, &before, &behind);
        const double loss = (double)(behind - before) / (double)(position + 1 - before);
        if (worst == NULL || loss < least) {
            worst = m;
            least = loss;
        }
    }
    return worst;
}

void sequence_mark(struct sequence *s)
{
    if (s->n_marks == 0 || s->position == 0)
        return;
    struct sequence_mark *m = take_mark(s, s->position);
    memory_copy(s->memory, m->recurrent, s->block, s->recurrent_bytes);
    m->position = s->position;
}

void sequence_expect(struct sequence *s, uint32_t n_tokens)
{
    const uint32_t last = s->position + n_tokens - 1;
    const uint32_t at = last / MARK_TOKENS * MARK_TOKENS;
    s->is_torn = s->recurrent_bytes > 0;
    s->next_position = 0;
    if (s->n_marks == 0 || n_tokens == 1 || at <= s->position)
        return;
    s->next_mark = take_mark(s, at);
    s->next_mark->position = 0; /* until it is whole */
    s->next_position = at;
}

void sequence_advance(struct sequence *s, uint32_t n_tokens)
{
    s->position += n_tokens;
    s->is_torn = false;
    if (s->next_position > 0)
        s->next_mark->position = s->next_position;
    s->next_position = 0;
}
