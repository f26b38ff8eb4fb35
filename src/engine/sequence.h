/* A sequence: what the layers of a model remember of one token stream. It has a part for each stage
 * of the model, in the memory of that stage's backend: keys and values of attention layers, and the
 * recurrent state of the others, which is taken at new. Keys and values
 * have addresses for n_context positions, and memory for those that sequence_reach has asked for,
 * in blocks: of some positions all layers of a part lie together, so that memory grows at its end.
 *
 * Keys and values of a position stay what they are, so attention can go back to any position. A
 * recurrent state cannot: of some positions it is copied aside, which are the sequence's marks. The
 * more tokens ago, the further apart they are.
 *
 * Belongs to the thread that drives the forward pass. */
#ifndef FLASHMOE_ENGINE_SEQUENCE_H
#define FLASHMOE_ENGINE_SEQUENCE_H

#include "arch/arch.h"
#include "base/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sequence_layer {
    void *keys, *values;
    float *conv, *delta;
};

/* How keys and values lie. */
struct sequence_blocks {
    uint32_t n_positions; /* of one block */
    uint64_t bytes;
};

#define SEQUENCE_MARKS 8  /* at most */
#define SEQUENCE_PARTS 64 /* likewise */

/* The state of the layers of one stage. */
struct sequence_part {
    const struct memory *memory; /* that the state is in */
    void *block;
    uint64_t recurrent_bytes; /* at the front of the block; the marks' states lie behind it */
    struct mem_range kv;
    struct sequence_blocks blocks;
    uint32_t first_layer;
    struct sequence_layer *layers; /* those of the stage, from first_layer on */
};

struct sequence {
    uint32_t position; /* tokens so far */
    /* Some recurrent layers have gone further: going back makes it whole again. */
    bool is_torn;
    bool is_recurrent;        /* some layer is */
    uint32_t n_marks;         /* room for so many: 0 where nothing is recurrent */
    uint32_t marks[SEQUENCE_MARKS]; /* [n_marks] positions, in no order; 0: none */
    /* The mark that the tokens being computed leave: at that position, when all layers are done. */
    uint32_t next_position; /* 0: none */
    uint32_t next_mark;     /* index into marks */
    uint32_t n_parts;
    struct sequence_part parts[]; /* [n_parts] in the order of the stages */
};

/* Where a part is made. */
struct sequence_place {
    const struct model *model; /* the layers of a stage */
    const struct memory *memory;
};

/* Of the layers that a model has. */
struct sequence_sizes {
    uint64_t kv_position_bytes; /* keys and values of one position, all layers */
    uint64_t recurrent_bytes;
};

void sequence_sizes(const struct model *model, const struct kv_format *kv_format,
                    struct sequence_sizes *sizes);
/* Refuses a format that the heads of a layer do not fit. */
int sequence_check(const struct model *model, const struct kv_format *kv_format,
                   struct fm_error *err);

void sequence_blocks(const struct model *model, const struct kv_format *kv_format,
                     uint32_t n_context, struct sequence_blocks *blocks);
/* What those of so many positions take, which is one block at least; UINT64_MAX on overflow. */
uint64_t sequence_kv_bytes(const struct sequence_blocks *blocks, uint32_t n_positions);

/* A part for each place. The models outlive it. */
int sequence_new(const struct sequence_place *places, uint32_t n_places,
                 const struct kv_format *kv_format, uint32_t n_context, uint32_t n_marks,
                 struct sequence **out, struct fm_error *err);
void sequence_free(struct sequence *sequence); /* accepts NULL */

/* Has memory for keys and values of so many positions, or one block, and no more; at least for
 * those that it has. FM_ERR_NOMEM: it is as it was. */
int sequence_reach(struct sequence *sequence, uint32_t n_positions, struct fm_error *err);
bool sequence_holds(const struct sequence *sequence, uint32_t n_positions);

/* Waits until no queued operation uses the sequence: its state may be filled. */
void sequence_finish(const struct sequence *sequence);

/* Back to position 0, without marks. */
void sequence_reset(struct sequence *sequence);

/* ---- going back ------------------------------------------------------------------------------ */

/* The nearest position at or before this one that the sequence can go back to; 0 always is. */
uint32_t sequence_nearest(const struct sequence *sequence, uint32_t position);
/* Goes there, from wherever its layers are; marks behind it are dropped. */
void sequence_rewind(struct sequence *sequence, uint32_t position);
/* The same in another sequence of the model, an empty one that holds so many positions: it becomes
 * what this one was there. `position` is one that it can go back to. */
void sequence_copy(struct sequence *to, const struct sequence *from, uint32_t position);
/* Marks where it is. */
void sequence_mark(struct sequence *sequence);

/* The next n_tokens will be computed and leave a mark a little before their end, where a prompt
 * that has changed in its last line can go on: where layers copy their state there to, offset as
 * the state itself. From here on the sequence can only advance or go back. */
void sequence_expect(struct sequence *sequence, uint32_t n_tokens);
/* They are computed: the position moves on. */
void sequence_advance(struct sequence *sequence, uint32_t n_tokens);
/* The recurrent state of a part at a mark. */
static inline char *sequence_mark_state(const struct sequence_part *part, uint32_t mark)
{
    return (char *)part->block + (mark + (uint64_t)1) * part->recurrent_bytes;
}
/* A layer's state in that of the next mark, which lies there as in the part's own. */
static inline float *sequence_next_state(const struct sequence *sequence,
                                         const struct sequence_part *part, const float *state)
{
    return (float *)(void *)(sequence_mark_state(part, sequence->next_mark) +
                             ((const char *)state - (const char *)part->block));
}

#ifdef __cplusplus
}
#endif
#endif
