/* What travels around the ring of ranks, from the first to the last and back to the first. A
 * message is a head and, in this order: operations on sequences, segments of a batch, their tokens,
 * the question of a request, results that ranks have added, and the rows of the segments that are
 * still computed. Little-endian, which is the byte order of every supported processor.
 *
 * Reading checks every count and size against the message and the limits that all ranks agreed on.
 * Plain memory; belongs to the thread that drives the rank. */
#ifndef FLASHMOE_CLUSTER_WIRE_H
#define FLASHMOE_CLUSTER_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WIRE_MAGIC 0x31474d46u /* "FMG1" */
#define WIRE_OPS 512           /* at most, in a message */

enum wire_kind {
    WIRE_RUN = 1, /* rows go through the layers */
    WIRE_ASK,     /* every rank adds an answer */
    WIRE_QUIT,    /* the model is closed */
};

struct wire_head {
    uint32_t magic, kind;
    uint64_t number; /* counts the messages of the first rank */
    uint32_t n_ops, n_segments, n_tokens, question_bytes, result_bytes;
    uint32_t n_rows;         /* that follow */
    uint32_t flags;          /* WIRE_TIMED */
    uint32_t stray_position; /* as in struct engine */
    uint64_t busy_ns;        /* of a pass: that the ranks so far were busy with it */
};

#define WIRE_TIMED 1u /* somebody wants to see where the time goes */

/* What happens to sequences before the segments are computed; as in struct sequence_far. */
enum wire_op_kind {
    WIRE_CLEAR = 1, /* sequence, state */
    WIRE_COPY_STATE,
    WIRE_COPY_KV, /* to, from, positions */
    WIRE_REPEAT,  /* sequence, position, positions */
    WIRE_FREE,    /* sequence */
    WIRE_REACH,   /* sequence, positions, position: fewer than before, which always fit */
    WIRE_ACCEPT,  /* sequence, draft */
};

struct wire_op {
    uint32_t kind, a, b, c, d;
};

struct wire_segment {
    uint32_t sequence, position, n_tokens, n_drafts;
    uint32_t slot, next_position, next_mark; /* as in struct sequence */
    uint32_t flags;
};

#define SEGMENT_LEFT 1u   /* is given up: its rows do not follow */
#define SEGMENT_TRAIL 2u  /* its drafts leave a trail */
#define SEGMENT_HIDDEN 4u /* an observer wants the hidden states, or the routes */
#define SEGMENT_ROUTES 8u
#define SEGMENT_LAST 32u  /* its logits are wanted: experts of its last tokens are remembered */
#define SEGMENT_FIRST 16u /* of an evaluation: a rank that gave up a segment before forgets it */

enum wire_result_kind {
    RESULT_FAULT = 1, /* struct wire_fault and a text */
    RESULT_ANSWER,    /* to a question; code is 0, or the text of an error follows */
    RESULT_NOTES,     /* uint64_t: how many notes the rank has sent for this pass */
    RESULT_STATS,     /* struct cluster_rank_stats */
};

/* A result and `bytes` bytes behind it, padded to 8. */
struct wire_result {
    uint32_t kind, rank;
    int32_t code;
    uint32_t bytes;
};

struct wire_fault {
    uint32_t segment;
    int32_t layer, expert;
};

/* What a message may have. */
struct wire_limits {
    uint32_t max_rows, max_segments, n_context, n_marks, n_drafts, n_ranks;
    uint32_t row_floats, vocabulary;
};

/* A message in memory: pointers into its bytes. */
struct wire {
    struct wire_head *head;
    struct wire_op *ops;
    struct wire_segment *segments;
    int32_t *tokens;
    char *question;
    char *results;
    float *rows;
};

/* Returns the bytes that results and questions take at most, and a whole message. */
uint64_t wire_small_bytes(const struct wire_limits *limits);
uint64_t wire_max_bytes(const struct wire_limits *limits);

/* Returns the bytes of a message with the rows of n_segments sequences and nothing else. */
uint64_t wire_pass_bytes(uint32_t n_segments, uint32_t n_rows, uint32_t row_floats);

/* Points into `bytes`, whose head is filled in but for result_bytes and n_rows, to write the rest.
 * The results begin empty. */
void wire_begin(struct wire *w, void *bytes);
/* Adds a result: `text` behind `facts`. Returns false if there is no room. */
bool wire_add(struct wire *w, const struct wire_limits *limits, const struct wire_result *result,
              const void *facts, uint32_t facts_bytes, const void *text);
/* Sets where the rows go, behind the results. Returns the bytes of the whole message. */
uint64_t wire_end(struct wire *w, uint32_t n_rows, uint32_t row_floats);

/* Points into a message of n bytes that another rank has sent and checks it. FM_ERR_FORMAT: it
 * cannot be one. */
int wire_read(struct wire *w, void *bytes, uint64_t n, const struct wire_limits *limits,
              struct fm_error *err);
/* Gives the next result of a message that was checked; *at begins with 0. Returns NULL at the
 * end; the bytes follow it. */
const struct wire_result *wire_next(const struct wire *w, uint32_t *at);

#ifdef __cplusplus
}
#endif
#endif
