#include "engine/sequence.h"

#include <assert.h>

#include "base/mem.h"

/* ---- the state of layers --------------------------------------------------------------------- */

/* Returns the bytes of a part's rows for n_positions, up to where the next part may begin. */
static uint64_t part_bytes(const struct state_part *part, const struct kv_format *kv_format,
                           uint32_t n_positions)
{
    return mem_round_up(part->n_rows * state_row_bytes(part, kv_format) * n_positions,
                        sizeof(float));
}

static uint64_t recurrent_bytes(const struct layer_state *s)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_parts; i++)
        bytes += s->parts[i].kind == STATE_RECURRENT ? s->parts[i].bytes : 0;
    return mem_round_up(bytes, MEM_CACHE_LINE);
}

static uint64_t position_bytes(const struct layer_state *s, const struct kv_format *kv_format)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].kind == STATE_BY_POSITION)
            bytes += s->parts[i].n_rows * state_row_bytes(&s->parts[i], kv_format);
    return bytes;
}

static uint64_t block_bytes(const struct layer_state *s, const struct kv_format *kv_format,
                            uint32_t n_positions)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->n_parts; i++)
        if (s->parts[i].kind == STATE_BY_POSITION)
            bytes += part_bytes(&s->parts[i], kv_format, n_positions);
    return bytes;
}

void sequence_sizes(const struct model *model, const struct kv_format *kv_format,
                    struct sequence_sizes *sizes)
{
    const struct arch *arch = arch_of(model);
    *sizes = (struct sequence_sizes){0};
    for (uint32_t i = model->first_layer; i < model->end_layer; i++) {
        struct layer_state s;
        arch->state(model->arch, i, &s);
        sizes->kv_position_bytes += position_bytes(&s, kv_format);
        sizes->recurrent_bytes += recurrent_bytes(&s);
        sizes->position_mul_adds += s.position_mul_adds;
    }
}

int sequence_check(const struct model *model, const struct kv_format *kv_format,
                   struct fm_error *err)
{
    for (uint32_t i = 0; i < model_n_state_layers(model); i++) {
        struct layer_state s;
        arch_of(model)->state(model->arch, model_state_layer(model, i), &s);
        for (uint32_t p = 0; p < s.n_parts; p++)
            if (s.parts[p].kind == STATE_BY_POSITION && s.parts[p].format == NULL &&
                !kv_fits(kv_format, s.parts[p].n_values))
                return err_set(err, FM_ERR_ARG,
                               "keys and values cannot be kept as '%s': layer %u has heads of %u "
                               "dimensions, and only multiples of %d are rotated; use f16",
                               kv_format->name, model_state_layer(model, i), s.parts[p].n_values,
                               KV_GROUP);
    }
    return 0;
}

/* Positions of a block: the attention kernels walk as many at a time. */
#define BLOCK_POSITIONS 256

void sequence_blocks(const struct model *model, const struct kv_format *kv_format,
                     uint32_t n_context, struct sequence_blocks *blocks)
{
    blocks->n_positions = n_context < BLOCK_POSITIONS ? n_context : BLOCK_POSITIONS;
    blocks->bytes = 0;
    for (uint32_t i = 0; i < model_n_state_layers(model); i++) {
        struct layer_state s;
        arch_of(model)->state(model->arch, model_state_layer(model, i), &s);
        blocks->bytes += block_bytes(&s, kv_format, blocks->n_positions);
    }
}

uint64_t sequence_kv_bytes(const struct sequence_blocks *blocks, uint32_t n_positions)
{
    const uint64_t n = (n_positions + (uint64_t)blocks->n_positions - 1) / blocks->n_positions;
    uint64_t bytes;
    return mem_mul(n > 0 ? n : 1, blocks->bytes, &bytes) ? mem_range_bytes(blocks->bytes, bytes)
                                                         : UINT64_MAX;
}

/* A trail has the state before its tokens and one behind each of them: the first and the drafts. */
static uint32_t n_slots_of(uint32_t n_drafts)
{
    return n_drafts > 0 ? n_drafts + 2 : 1;
}

uint32_t sequence_n_states(uint32_t n_drafts, uint32_t n_marks)
{
    return n_slots_of(n_drafts) + n_marks;
}

static int allocate(struct sequence_part *part, const struct sequence_room *room,
                    struct fm_error *err)
{
    const uint64_t all = sequence_kv_bytes(&part->blocks, room->n_context);
    uint64_t bytes;
    if (all == UINT64_MAX ||
        !mem_mul(part->recurrent_bytes, sequence_n_states(room->n_drafts, room->n_marks), &bytes))
        return err_set(err, FM_ERR_NOMEM, "size overflow: a context of %u positions",
                       room->n_context);
    part->block = memory_make(part->memory, bytes, "the recurrent state", err);
    if (part->block == NULL)
        return FM_ERR_NOMEM;
    return part->memory->ops->range_open(part->memory, &part->kv, part->blocks.bytes, all,
                                         "the KV cache", err);
}

/* Gives the parts of a layer their places: KV from `kv` on, recurrent ones from `recurrent` on. */
static void lay_out_layer(struct sequence_layer *l, const struct layer_state *s,
                          const struct kv_format *kv_format, uint32_t n_positions, char *kv,
                          char *recurrent)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const struct state_part *part = &s->parts[i];
        l->is_recurrent[i] = part->kind == STATE_RECURRENT;
        l->state[i] = l->is_recurrent[i] ? recurrent : kv;
        if (l->is_recurrent[i])
            recurrent += part->bytes;
        else
            kv += part_bytes(part, kv_format, n_positions);
    }
}

static void lay_out(struct sequence_part *part, const struct model *model,
                    const struct kv_format *kv_format)
{
    char *recurrent = part->block, *kv = part->kv.at;
    for (uint32_t i = 0; i < model_n_state_layers(model); i++) {
        struct layer_state s;
        arch_of(model)->state(model->arch, model_state_layer(model, i), &s);
        lay_out_layer(&part->layers[i], &s, kv_format,
                      part->blocks.n_positions, kv, recurrent);
        /* A rank without attention, or without recurrent layers, has no memory for them. */
        kv = kv != NULL ? kv + block_bytes(&s, kv_format, part->blocks.n_positions) : NULL;
        recurrent = recurrent != NULL ? recurrent + recurrent_bytes(&s) : NULL;
    }
    assert((uint64_t)(recurrent - (char *)part->block) == part->recurrent_bytes);
    assert((uint64_t)(kv - (char *)part->kv.at) == part->blocks.bytes);
}

static int part_init(struct sequence_part *part, const struct sequence_place *place,
                     const struct kv_format *kv_format, const struct sequence_room *room,
                     struct fm_error *err)
{
    const struct model *model = place->model;
    struct sequence_sizes sizes;
    sequence_sizes(model, kv_format, &sizes);
    sequence_blocks(model, kv_format, room->n_context, &part->blocks);
    part->memory = place->memory;
    part->recurrent_bytes = sizes.recurrent_bytes;
    part->n_slots = n_slots_of(room->n_drafts);
    part->first_layer = model->first_layer;
    part->layers = mem_new(model_n_state_layers(model), sizeof *part->layers, "a sequence", err);
    int rc = part->layers == NULL ? FM_ERR_NOMEM : allocate(part, room, err);
    if (rc == 0)
        lay_out(part, model, kv_format);
    return rc;
}

int sequence_new(const struct sequence_place *places, uint32_t n_places,
                 const struct kv_format *kv_format, const struct sequence_room *room,
                 struct sequence **out, struct fm_error *err)
{
    *out = NULL;
    assert(n_places <= SEQUENCE_PARTS && room->n_marks <= SEQUENCE_MARKS &&
           room->n_drafts <= SEQUENCE_DRAFTS);
    struct sequence *seq =
        mem_new(1, sizeof *seq + n_places * sizeof seq->parts[0], "a sequence", err);
    if (seq == NULL)
        return FM_ERR_NOMEM;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < n_places; i++) {
        seq->n_parts++;
        rc = part_init(&seq->parts[i], &places[i], kv_format, room, err);
        seq->is_recurrent |= seq->parts[i].recurrent_bytes > 0 || room->is_recurrent;
    }
    if (rc == 0)
        rc = sequence_reach(seq, 0, err);
    if (rc != 0) {
        sequence_free(seq);
        return FM_ERR_NOMEM;
    }
    seq->n_marks = seq->is_recurrent ? room->n_marks : 0;
    seq->n_drafts = room->n_drafts;
    seq->n_slots = n_slots_of(room->n_drafts);
    sequence_reset(seq);
    *out = seq;
    return 0;
}

void sequence_free(struct sequence *sequence)
{
    if (sequence == NULL)
        return;
    if (sequence->far != NULL)
        sequence->far->free(sequence->far->ctx, sequence->far_id);
    sequence_drop_shared(sequence);
    for (uint32_t i = 0; i < sequence->n_parts; i++) {
        struct sequence_part *part = &sequence->parts[i];
        part->memory->ops->range_close(part->memory, &part->kv);
        memory_free(part->memory, part->block);
        mem_free(part->layers);
    }
    mem_free(sequence);
}

static int resize_part(struct sequence_part *part, uint64_t bytes, struct fm_error *err)
{
    return part->memory->ops->range_resize(part->memory, &part->kv, bytes, "keys and values", err);
}

int sequence_reach(struct sequence *s, uint32_t n_positions, struct fm_error *err)
{
    const uint32_t n = n_positions > s->position ? n_positions : s->position;
    uint64_t had[SEQUENCE_PARTS];
    assert(s->n_parts <= SEQUENCE_PARTS);
    for (uint32_t i = 0; i < s->n_parts; i++) {
        had[i] = s->parts[i].kv.used_bytes;
        const int rc =
            resize_part(&s->parts[i], sequence_kv_bytes(&s->parts[i].blocks, n), err);
        if (rc == 0)
            continue;
        while (i-- > 0)
            (void)resize_part(&s->parts[i], had[i], NULL); /* fewer bytes always fit */
        return rc;
    }
    assert(sequence_holds(s, n));
    return 0;
}

bool sequence_holds(const struct sequence *s, uint32_t n_positions)
{
    uint32_t i = 0;
    while (i < s->n_parts &&
           sequence_kv_bytes(&s->parts[i].blocks, n_positions) <= s->parts[i].kv.used_bytes)
        i++;
    return i == s->n_parts;
}

void sequence_finish(const struct sequence *s)
{
    for (uint32_t i = 0; i < s->n_parts; i++)
        memory_finish(s->parts[i].memory);
}

/* ---- states ---------------------------------------------------------------------------------- */

static char *state_in(const struct sequence_part *part, uint32_t state)
{
    return (char *)part->block + state * part->recurrent_bytes;
}

void sequence_clear_state(struct sequence *s, uint32_t state)
{
    assert(state < s->n_slots + s->n_marks);
    for (uint32_t i = 0; i < s->n_parts; i++)
        memory_clear(s->parts[i].memory, state_in(&s->parts[i], state),
                     s->parts[i].recurrent_bytes);
    if (s->far != NULL && s->is_recurrent)
        s->far->clear(s->far->ctx, s->far_id, state);
}

void sequence_copy_state(struct sequence *to, uint32_t to_state, const struct sequence *from,
                         uint32_t from_state)
{
    assert(to->n_parts == from->n_parts && to_state < to->n_slots + to->n_marks &&
           from_state < from->n_slots + from->n_marks);
    for (uint32_t i = 0; i < to->n_parts; i++) {
        const struct sequence_part *dst = &to->parts[i], *src = &from->parts[i];
        assert(dst->memory == src->memory && dst->recurrent_bytes == src->recurrent_bytes);
        if (src->recurrent_bytes > 0)
            memory_copy(dst->memory, state_in(dst, to_state), state_in(src, from_state),
                        src->recurrent_bytes);
    }
    if (to->far != NULL && to->is_recurrent)
        to->far->copy_state(to->far->ctx, to->far_id, to_state, from->far_id, from_state);
}

void sequence_copy_kv(struct sequence *to, const struct sequence *from, uint32_t n_positions)
{
    assert(sequence_holds(to, n_positions) && sequence_holds(from, n_positions));
    for (uint32_t i = 0; i < to->n_parts; i++) {
        const struct sequence_part *dst = &to->parts[i], *src = &from->parts[i];
        const uint32_t n = src->blocks.n_positions;
        for (uint32_t b = dst->n_shared; b < (n_positions + n - 1) / n; b++)
            memory_copy(dst->memory, sequence_block(dst, b), sequence_block(src, b),
                        src->blocks.bytes);
    }
    if (to->far != NULL)
        to->far->copy_kv(to->far->ctx, to->far_id, from->far_id, n_positions);
}

static uint32_t mark_state(const struct sequence *s, uint32_t mark)
{
    return s->n_slots + mark;
}

void sequence_reset(struct sequence *sequence)
{
    sequence->position = 0;
    sequence->is_torn = false;
    sequence->next_position = 0;
    sequence->slot = 0;
    sequence->trail.is_there = false;
    sequence_clear_state(sequence, 0);
    for (uint32_t i = 0; i < sequence->n_marks; i++)
        sequence->marks[i] = 0;
    sequence->kept_mark = 0;
}

/* ---- going back ------------------------------------------------------------------------------ */

/* Distance of marks before the end of a prompt. A changed last line is seldom longer, and at most
 * this many tokens are computed again besides it. */
#define MARK_TOKENS 64

/* Returns the mark with the highest position up to this one, or n_marks. */
static uint32_t nearest_mark(const struct sequence *s, uint32_t position)
{
    uint32_t best = s->n_marks;
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] > 0 && s->marks[i] <= position &&
            (best == s->n_marks || s->marks[i] > s->marks[best]))
            best = i;
    return best;
}

static bool has_in_trail(const struct sequence *s, uint32_t position)
{
    return s->trail.is_there && position >= s->trail.position &&
           position - s->trail.position <= s->trail.n;
}

static uint32_t slot_at(const struct sequence *s, uint32_t position)
{
    return (s->trail.slot + position - s->trail.position) % s->n_slots;
}

uint32_t sequence_nearest(const struct sequence *s, uint32_t position)
{
    if (position >= s->position && !s->is_torn)
        return s->position;
    if (!s->is_recurrent || has_in_trail(s, position))
        return position;
    const uint32_t mark = nearest_mark(s, position);
    return mark < s->n_marks ? s->marks[mark] : 0;
}

void sequence_rewind(struct sequence *s, uint32_t position)
{
    const uint32_t to = sequence_nearest(s, position);
    assert(to <= position && to <= s->position);
    if (to == s->position && !s->is_torn)
        return;
    if (to == 0) {
        sequence_reset(s);
        return;
    }
    const uint32_t mark = nearest_mark(s, to);
    const bool is_copied = s->is_recurrent && !sequence_go(s, to);
    if (is_copied)
        sequence_copy_state(s, s->slot, s, mark_state(s, mark));
    s->trail.is_there = false;
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] > to)
            s->marks[i] = 0;
    s->position = to;
    s->is_torn = false;
    s->next_position = 0;
}

/* Returns the recurrent state at a position that the sequence can go back to. */
static uint32_t state_at(const struct sequence *s, uint32_t position)
{
    if (position == s->position && !s->is_torn)
        return s->slot;
    if (has_in_trail(s, position))
        return slot_at(s, position);
    return mark_state(s, nearest_mark(s, position));
}

void sequence_repeat(struct sequence *s, uint32_t n_positions)
{
    assert(!s->is_torn && n_positions >= s->position && sequence_holds(s, n_positions));
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const struct sequence_part *part = &s->parts[i];
        const uint32_t n = part->blocks.n_positions, n_full = s->position / n;
        assert(n_full > 0);
        for (uint32_t b = n_full; b < (n_positions + n - 1) / n; b++)
            memory_copy(part->memory, sequence_block(part, b), sequence_block(part, b % n_full),
                        part->blocks.bytes);
    }
    if (s->far != NULL)
        s->far->repeat(s->far->ctx, s->far_id, s->position, n_positions);
    for (uint32_t i = 0; i < s->n_marks; i++)
        s->marks[i] = 0;
    s->next_position = 0;
    s->trail.is_there = false;
    s->position = n_positions;
}

void sequence_copy(struct sequence *to, const struct sequence *from, uint32_t position)
{
    assert(to->position <= position && to->n_parts == from->n_parts &&
           sequence_holds(to, position));
    assert(to->position == 0 || to->parts[0].n_shared > 0);
    for (uint32_t m = 0; m < from->n_marks && m < to->n_marks; m++)
        to->marks[m] = from->marks[m] <= position ? from->marks[m] : 0;
    sequence_copy_kv(to, from, position);
    if (to->is_recurrent && position > 0)
        sequence_copy_state(to, to->slot, from, state_at(from, position));
    for (uint32_t m = 0; m < to->n_marks; m++)
        if (to->marks[m] > 0)
            sequence_copy_state(to, mark_state(to, m), from, mark_state(from, m));
    to->position = position;
    to->kept_mark = from->kept_mark <= position ? from->kept_mark : 0;
}

/* Finds the marks next to this one, or 0 and `end` where there is none. */
static void neighbours(const struct sequence *s, uint32_t position, uint32_t end, uint32_t *before,
                       uint32_t *behind)
{
    *before = 0;
    *behind = end;
    for (uint32_t i = 0; i < s->n_marks; i++) {
        const uint32_t p = s->marks[i];
        if (p > *before && p < position)
            *before = p;
        if (p > position && p < *behind)
            *behind = p;
    }
}

/* Returns the mark to overwrite with one at `position`: one at the same position, a free one, or
 * the one with the smallest loss, which is the gap that it would leave, relative to its age, but
 * for the one that is to be kept. There is at least one mark. */
static uint32_t take_mark(const struct sequence *s, uint32_t position)
{
    uint32_t worst = s->n_marks;
    double min = 0;
    for (uint32_t i = 0; i < s->n_marks; i++)
        if (s->marks[i] == position)
            return i;
    for (uint32_t i = 0; i < s->n_marks; i++) {
        if (s->marks[i] == 0)
            return i;
        uint32_t before, behind;
        neighbours(s, s->marks[i], position, &before, &behind);
        const double loss = (double)(behind - before) / (double)(position + 1 - before);
        if (s->marks[i] != s->kept_mark && (worst == s->n_marks || loss < min)) {
            worst = i;
            min = loss;
        }
    }
    return worst < s->n_marks ? worst : 0; /* there is only one */
}

void sequence_mark(struct sequence *s)
{
    if (s->n_marks == 0 || s->position == 0)
        return;
    const uint32_t mark = take_mark(s, s->position);
    sequence_copy_state(s, mark_state(s, mark), s, s->slot);
    s->marks[mark] = s->position;
}

void sequence_expect(struct sequence *s, uint32_t n_tokens, uint32_t n_drafts)
{
    const uint32_t last = s->position + n_tokens - 1;
    const uint32_t at = last / MARK_TOKENS * MARK_TOKENS;
    assert(n_tokens > 0 && !s->is_torn);
    assert(n_drafts == 0 || (n_tokens == 1 + n_drafts && n_drafts <= s->n_drafts));
    s->is_torn = s->is_recurrent;
    s->next_position = 0;
    s->trail.is_there = n_drafts > 0;
    s->trail.position = s->position;
    s->trail.slot = s->slot;
    s->trail.n = 0; /* until the tokens are computed */
    if (n_drafts > 0 || s->n_marks == 0 || n_tokens == 1 || at <= s->position)
        return;
    s->next_mark = take_mark(s, at);
    s->marks[s->next_mark] = 0; /* until it is whole */
    s->next_position = at;
}

void sequence_advance(struct sequence *s, uint32_t n_tokens)
{
    s->position += n_tokens;
    assert(s->next_position <= s->position && sequence_holds(s, s->position));
    s->is_torn = false;
    if (s->next_position > 0)
        s->marks[s->next_mark] = s->next_position;
    s->next_position = 0;
    if (!s->trail.is_there)
        return;
    s->trail.n = n_tokens;
    s->slot = slot_at(s, s->position);
}

bool sequence_go(struct sequence *s, uint32_t position)
{
    if (!has_in_trail(s, position) || !sequence_holds(s, position))
        return false;
    s->position = position;
    s->slot = slot_at(s, position);
    s->is_torn = false;
    s->next_position = 0;
    return true;
}
