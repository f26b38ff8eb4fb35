/* A sequence: what the layers of a model remember of one token stream. Keys and values of
 * attention layers, and the recurrent state of the others, which is taken at new. Keys and values
 * have addresses for n_context positions, and memory for those that sequence_reach has asked for,
 * in blocks: of some positions all layers lie together, so that memory grows at its end.
 *
 * Keys and values of a position stay what they are, so attention can go back to any position. A
 * recurrent state cannot: of some positions it is copied aside, which are the sequence's marks. The
 * more tokens ago, the further apart they are.
 *
 * Belongs to the thread that drives the forward pass. */
#ifndef FLASHMOE_ARCH_STATE_H
#define FLASHMOE_ARCH_STATE_H

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

#define SEQUENCE_MARKS 8 /* at most */

struct sequence_mark {
    uint32_t position; /* 0: none */
    char *recurrent;   /* [recurrent_bytes] */
};

struct sequence {
    const struct memory *memory; /* that its state is in */
    uint32_t position; /* tokens so far */
    /* Some recurrent layers have gone further: going back makes it whole again. */
    bool is_torn;
    void *block;
    uint64_t recurrent_bytes; /* at the front of the block, the marks' behind it */
    struct mem_range kv;
    struct sequence_blocks blocks;
    uint32_t n_marks; /* room for so many: 0 where nothing is recurrent */
    struct sequence_mark marks[SEQUENCE_MARKS]; /* [n_marks], in no order */
    /* The mark that the tokens being computed leave: at that position, when all layers are done. */
    uint32_t next_position; /* 0: none */
    struct sequence_mark *next_mark;
    struct sequence_layer layers[]; /* [n_layers] */
};

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

int sequence_new(const struct model *model, const struct memory *memory,
                 const struct kv_format *kv_format, uint32_t n_context, uint32_t n_marks,
                 struct sequence **out, struct fm_error *err);
void sequence_free(struct sequence *sequence); /* accepts NULL */

/* Has memory for keys and values of so many positions, or one block, and no more; at least for
 * those that it has. FM_ERR_NOMEM: it is as it was. */
int sequence_reach(struct sequence *sequence, uint32_t n_positions, struct fm_error *err);
bool sequence_holds(const struct sequence *sequence, uint32_t n_positions);

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
/* A layer's state in a mark. */
static inline float *sequence_marked(const struct sequence *sequence, const float *state)
{
    return (float *)(void *)(sequence->next_mark->recurrent +
                             ((const char *)state - (const char *)sequence->block));
}

#ifdef __cplusplus
}
#endif
#endif
