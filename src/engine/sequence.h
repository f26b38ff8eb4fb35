/* A sequence: what the layers of a model remember of one token stream. It has a part for each stage
 * of the model, in the memory of that stage's backend. Each layer's mixer describes its state
 * (struct layer_state), and nothing here knows more of it: rows that are addressed by position, as
 * keys and values are ("KV" below), and recurrent state, which is allocated at new. KV has
 * addresses for n_context positions, and memory for those that sequence_reach has asked for, in
 * blocks. A block has the rows of all layers of a part for some positions, so that memory grows at
 * its end. Full blocks can belong to several sequences.
 *
 * Rows of a position stay as they are, so a sequence without recurrent state can go back to any
 * position. A recurrent state is copied aside at some positions, which are the sequence's marks.
 * The more tokens ago, the further apart they are.
 *
 * Tokens may be computed before anybody knows that they belong to the sequence: drafts. Such a pass
 * leaves a trail: the recurrent state behind each of its tokens has a slot of its own, and so has
 * the one before them. The sequence goes to any position of the trail without a copy.
 *
 * Belongs to the thread that drives the forward pass. */
#ifndef FLASHMOE_ENGINE_SEQUENCE_H
#define FLASHMOE_ENGINE_SEQUENCE_H

#include "arch/arch.h"
#include "base/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the parts of a layer's state are. */
struct sequence_layer {
    void *state[BACKEND_STATE_PARTS]; /* by position: in the first block; else: in slot 0 */
    bool is_recurrent[BACKEND_STATE_PARTS];
};

/* How KV lies. */
struct sequence_blocks {
    uint32_t n_positions; /* of one block */
    uint64_t bytes;
};

#define SEQUENCE_MARKS 8  /* at most */
#define SEQUENCE_PARTS 64 /* likewise */
#define SEQUENCE_DRAFTS 8 /* likewise, in one pass */

/* The state of the layers of one stage. */
struct sequence_part {
    const struct memory *memory; /* that the state is in */
    /* Slots for recurrent states: n_slots of the sequence, then one of each mark. */
    void *block;
    uint64_t recurrent_bytes; /* of a slot */
    uint32_t n_slots;
    struct mem_range kv;
    struct sequence_blocks blocks;
    /* The first n_shared blocks lie elsewhere, each with a count of the sequences that use it.
     * Their places in kv hold nothing. */
    uint32_t n_shared;
    struct shared_block **shared; /* [blocks of the context]; NULL: nothing was shared so far */
    int64_t *block_shift;         /* likewise: from a block's place to where it is */
    uint32_t first_layer;
    struct sequence_layer *layers; /* those of the stage, from first_layer on */
};

/* The parts of sequences that other ranks have. Called on the thread that drives the sequence; all
 * of it is done, in this order, before the next pass. A state is one of the slots, or a mark's
 * behind them. */
struct sequence_far {
    void *ctx;
    void (*clear)(void *ctx, uint32_t id, uint32_t state);
    void (*copy_state)(void *ctx, uint32_t to, uint32_t to_state, uint32_t from,
                       uint32_t from_state);
    void (*copy_kv)(void *ctx, uint32_t to, uint32_t from, uint32_t n_positions);
    void (*repeat)(void *ctx, uint32_t id, uint32_t position, uint32_t n_positions);
    void (*free)(void *ctx, uint32_t id);
};

struct sequence {
    uint32_t position; /* tokens so far */
    /* Some recurrent layers have gone further: going back makes it whole again. */
    bool is_torn;
    bool is_recurrent;        /* some layer is */
    uint32_t n_marks;         /* room for so many: 0 where nothing is recurrent */
    uint32_t marks[SEQUENCE_MARKS]; /* [n_marks] positions, in no order; 0: none */
    uint32_t kept_mark; /* position whose mark makes no room for others; 0: none */
    /* The mark that the tokens being computed leave: at that position, when all layers are done. */
    uint32_t next_position; /* 0: none */
    uint32_t next_mark;     /* index into marks */
    uint32_t n_drafts;      /* room for a trail of so many */
    uint32_t n_slots, slot; /* of every part's block: how many, and the one with the state now */
    /* Where the sequence can go without a copy: the position at which the last pass with drafts
     * began, and n behind it. */
    struct {
        bool is_there;
        uint32_t position, n;
        uint32_t slot; /* of the first position; the others follow in a ring */
    } trail;
    const struct sequence_far *far; /* NULL: this process has all parts */
    uint32_t far_id;                /* what the other ranks call it */
    uint32_t far_positions;         /* that they have memory for */
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
    uint64_t kv_position_bytes; /* rows of one position, all layers */
    uint64_t recurrent_bytes;
    uint64_t position_mul_adds; /* as in layer_state, all layers */
};

void sequence_sizes(const struct model *model, const struct kv_format *kv_format,
                    struct sequence_sizes *sizes);
/* Refuses a format that the rows of a layer do not fit. */
int sequence_check(const struct model *model, const struct kv_format *kv_format,
                   struct fm_error *err);

void sequence_blocks(const struct model *model, const struct kv_format *kv_format,
                     uint32_t n_context, struct sequence_blocks *blocks);
/* Returns the bytes of KV for n_positions, at least one block; UINT64_MAX on overflow. */
uint64_t sequence_kv_bytes(const struct sequence_blocks *blocks, uint32_t n_positions);

/* Returns how many recurrent states a sequence has room for: its own, those of a trail of so many
 * drafts, and those of marks. */
uint32_t sequence_n_states(uint32_t n_drafts, uint32_t n_marks);

struct sequence_room {
    uint32_t n_context, n_marks, n_drafts;
    bool is_recurrent; /* some layer is, here or on another rank */
};
/* Makes a sequence with a part in each place. The models outlive it. */
int sequence_new(const struct sequence_place *places, uint32_t n_places,
                 const struct kv_format *kv_format, const struct sequence_room *room,
                 struct sequence **out, struct fm_error *err);
void sequence_free(struct sequence *sequence); /* accepts NULL */

/* Changes the memory for KV to that of n_positions, at least one block and at least the positions
 * that the sequence has. FM_ERR_NOMEM: nothing has changed. */
int sequence_reach(struct sequence *sequence, uint32_t n_positions, struct fm_error *err);
bool sequence_holds(const struct sequence *sequence, uint32_t n_positions);

/* ---- blocks that several sequences use (sequence_shared.c) ------------------------------------
 * Rows of a position never change, so sequences with the same beginning can use the same full
 * blocks of KV. A sequence that goes back into one gets a copy before it writes there. */

/* Returns whether two sequences of a model can: their KV is the host's memory, and this process has
 * all of it. */
bool sequence_can_share(const struct sequence *sequence);
/* Lets `to` use the full blocks that `from` has of the first n_positions, and makes their end its
 * position. `to` is empty; sequence_copy follows, and memory for the rest before it. FM_ERR_NOMEM:
 * `to` is empty still. FM_ERR_ARG: `to` shares blocks already, and nothing has changed. */
int sequence_share(struct sequence *to, struct sequence *from, uint32_t n_positions,
                   struct fm_error *err);
/* Returns how many blocks of a part may stay shared if the sequence is to have n_positions: behind
 * its position it writes. */
uint32_t sequence_keeps_shared(const struct sequence *sequence, const struct sequence_part *part,
                               uint32_t n_positions);
/* Ends the sharing of all but the first blocks that sequence_keeps_shared tells. One that has
 * positions of the sequence is copied. */
void sequence_unshare(struct sequence *sequence, uint32_t n_positions);
/* Returns the bytes of a part that only this sequence uses, if it shares n_shared blocks. They are
 * at least one block, which an empty sequence has: so it can always give up what it shares. */
uint64_t sequence_own_bytes(const struct sequence_part *part, uint32_t n_shared);
/* Returns the bytes of a part's blocks from the first one on that no other sequence shares. */
uint64_t sequence_unshared_bytes(const struct sequence_part *part, uint32_t first);
/* Gives up what the sequence shares, for sequence_free. */
void sequence_drop_shared(struct sequence *sequence);

/* Returns where a block of KV is. */
static inline char *sequence_block(const struct sequence_part *part, uint32_t block)
{
    return (char *)part->kv.at + block * part->blocks.bytes +
           (block < part->n_shared ? part->block_shift[block] : 0);
}

/* Waits until no queued operation uses the sequence: its state may be filled. */
void sequence_finish(const struct sequence *sequence);

/* Goes back to position 0 and drops all marks. */
void sequence_reset(struct sequence *sequence);

/* ---- going back ------------------------------------------------------------------------------ */

/* Returns the last position up to this one that the sequence can go back to; 0 always is one. */
uint32_t sequence_nearest(const struct sequence *sequence, uint32_t position);
/* Goes back to that position, however far its layers are, and drops later marks. */
void sequence_rewind(struct sequence *sequence, uint32_t position);
/* Makes `to` what `from` was at `position`, one that `from` can go back to. `to` is empty, of the
 * same model, and has memory for so many positions. */
void sequence_copy(struct sequence *to, const struct sequence *from, uint32_t position);
/* Do what a far sequence was asked for: copy a state, or KV. */
void sequence_clear_state(struct sequence *sequence, uint32_t state);
void sequence_copy_state(struct sequence *to, uint32_t to_state, const struct sequence *from,
                         uint32_t from_state);
void sequence_copy_kv(struct sequence *to, const struct sequence *from, uint32_t n_positions);
/* Moves on to n_positions without computing, for measurements: the blocks of KV that are full are
 * copied in turn, and recurrent state stays as it is. One block is full at least, and there is
 * memory for n_positions. No mark is left. */
void sequence_repeat(struct sequence *sequence, uint32_t n_positions);
/* Sets a mark at its position. */
void sequence_mark(struct sequence *sequence);

/* Prepares for n_tokens that will be computed. They leave a mark a little before their end, where a
 * prompt that has changed in its last line can go on; layers copy their recurrent state there. From
 * here on the sequence can only advance or go back. With drafts, up to n_drafts, there is one token
 * before them; they leave a trail and no mark. */
void sequence_expect(struct sequence *sequence, uint32_t n_tokens, uint32_t n_drafts);
/* Moves the position on when the tokens are computed. */
void sequence_advance(struct sequence *sequence, uint32_t n_tokens);
/* Goes to a position of the trail. Returns false if it has none there. */
bool sequence_go(struct sequence *sequence, uint32_t position);

/* Return where a part's recurrent state is: now, and at a mark. */
static inline char *sequence_state(const struct sequence *sequence,
                                   const struct sequence_part *part)
{
    return (char *)part->block + sequence->slot * part->recurrent_bytes;
}
static inline char *sequence_mark_state(const struct sequence_part *part, uint32_t mark)
{
    return (char *)part->block + ((uint64_t)part->n_slots + mark) * part->recurrent_bytes;
}
/* Returns where a layer's state goes for the next mark; `state` is the one in slot 0. */
static inline void *sequence_next_state(const struct sequence *sequence,
                                        const struct sequence_part *part, const void *state)
{
    return sequence_mark_state(part, sequence->next_mark) +
           ((const char *)state - (const char *)part->block);
}

#ifdef __cplusplus
}
#endif
#endif
