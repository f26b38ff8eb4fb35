/* A batch on its way through the stages of a model.
 *
 * `struct batch` is what the caller wants: segments of (sequence, tokens), and functions that are
 * called meanwhile. `struct pass` is what is still computed of it: the segments that are not given
 * up, and their rows. It is the host's memory. One thread at a time. */
#ifndef FLASHMOE_ENGINE_PASS_H
#define FLASHMOE_ENGINE_PASS_H

#include "engine/mtp.h"
#include "engine/sequence.h"
#include "flashmoe_lab.h"

#ifdef __cplusplus
extern "C" {
#endif

struct batch_segment {
    struct sequence *sequence;
    const int32_t *tokens; /* checked by the caller: 0 <= token < vocabulary */
    const int32_t *before; /* [position] the tokens before them */
    uint32_t position; /* of the sequence, before these tokens */
    uint32_t n_tokens;
    uint32_t n_drafts; /* of these tokens: the last ones, behind one token (sequence_expect) */
    bool wants_last_logits, wants_all_logits, wants_hidden, wants_routes;
    bool is_first; /* of an evaluation */
    struct mtp_state *mtp; /* follows the tokens (mtp.h); NULL: there is none */
};

/* Where the time of a layer went; fm_layer_profile says what is what. */
struct batch_times {
    uint64_t mix_ns, route_ns, wait_ns, compute_ns, read_ns;
    uint64_t n_hits, n_misses, bytes_read;
};

/* Why a segment cannot be computed. */
struct batch_fault {
    int layer, expert;   /* the weights it came from; -1: not of one layer, not of an expert */
    struct fm_error err; /* code and sentence, which may name files */
    char where[96];      /* another rank, with its host; empty: here */
};

/* Called during the pass. `segment` and `row` count within the batch and the segment; `layer`
 * counts all layers of the model, whichever stage has them. */
struct batch_hooks {
    void *ctx;
    void (*before_layer)(void *ctx, uint32_t layer);
    /* True: the segment is given up, and stays so. Asked before every layer, its experts and the
     * head, where its rows leave the batch, and between experts, where the pass ends when it was
     * the last one. */
    bool (*is_given_up)(void *ctx, uint32_t segment);
    /* Rows of the segment chose an expert that cannot be read, or gave a value that is not finite.
     * That an expert is damaged may be known when the next layer has begun; nobody was shown
     * anything that came of it.
     * From here on is_given_up must return true for it. The other segments go on. May be called
     * again for the same segment. */
    void (*fault)(void *ctx, uint32_t segment, const struct batch_fault *fault);
    void (*hidden)(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const float *x);
    void (*route)(void *ctx, uint32_t segment, uint32_t row, uint32_t layer, const uint32_t *ids,
                  const float *weights);
    /* The experts of a draft, counted from 0, in a layer with experts: the cache has not counted
     * them (engine_accept_experts). For every such layer. */
    void (*draft_experts)(void *ctx, uint32_t segment, uint32_t draft, uint32_t expert_layer,
                          const uint32_t *ids);
    /* Returns where the logits of a row are wanted, or NULL: anywhere. They may arrive there also
     * when the segment is given up later. Best are those of engine_make_pages. */
    float *(*logits_place)(void *ctx, uint32_t segment, uint32_t row);
    /* Which token has the highest of the logits that come next, of several the first; called where
     * a device has found it. NULL: nobody wants to know. */
    void (*peak)(void *ctx, uint32_t segment, uint32_t row, uint32_t token);
    void (*logits)(void *ctx, uint32_t segment, uint32_t row, const float *logits);
    /* The host is about to wait for a device: there is time for what can be done now. */
    void (*idle)(void *ctx);
    /* Rows have come back from other ranks, and the head follows: there is no batch on the stages
     * now. NULL: nobody wants to know. */
    void (*before_head)(void *ctx);
    /* Returns whether another pass is to run before the next layer. NULL: never. Called where the
     * stage can be left (forward_can_pause), while rows are free for another pass. */
    bool (*wants_pause)(void *ctx);
    /* Another pass, of other sequences, may begin and end: engine_begin, engine_end. */
    void (*pause)(void *ctx);
    /* After every layer, and once more after the head; NULL: no clock is looked at. */
    void (*times)(void *ctx, uint32_t layer, const struct batch_times *times);
};

struct batch {
    const struct batch_segment *segments;
    uint32_t n_segments;
    struct batch_hooks hooks;
};

struct pass_options {
    uint32_t max_rows;     /* tokens in a batch */
    uint32_t max_segments; /* sequences in a batch */
    uint32_t row_floats;   /* of a row between two stages; 0: there is one stage */
};

struct pass {
    struct pass_options options;
    bool is_used; /* from engine_begin to engine_end */
    bool is_away; /* other ranks have its rows */
    const struct batch *batch;
    bool is_decode; /* one token of each segment, and drafts */
    uint32_t n_rows, n_segments;
    struct backend_segment *segments; /* [n_segments]; pointers are those of the layer at hand */
    uint32_t *in_batch;               /* [n_segments], which one of the batch each is */
    uint32_t *kept;                   /* [max_segments], for pass_keep */
    int32_t *tokens;                  /* [n_rows] */
    uint32_t *positions;              /* [n_rows] */
    float *rows;                      /* [n_rows, row_floats] between two stages */
    void *block;
};

uint64_t pass_bytes(const struct pass_options *options);
int pass_open(struct pass *pass, const struct pass_options *options, struct fm_error *err);
void pass_close(struct pass *pass); /* accepts a zeroed one */

/* Lays out the rows of a batch and prepares its sequences for them (sequence_expect). */
void pass_begin(struct pass *pass, const struct batch *batch);
/* The same for sequences that are prepared already: by another rank. */
void pass_lay_out(struct pass *pass, const struct batch *batch);
/* Advances the sequences that are still in the pass. The caller takes the others back with
 * sequence_rewind. */
void pass_end(struct pass *pass);

static inline const struct batch_segment *pass_segment(const struct pass *p, uint32_t s)
{
    return &p->batch->segments[p->in_batch[s]];
}

bool pass_is_given_up(const struct pass *pass, uint32_t segment);
bool pass_all_given_up(const struct pass *pass);
bool pass_any_given_up(const struct pass *pass);

/* Drops the rows of segments that are given up and moves the others up: no row depends on another.
 * `memory` has the rows x [n_rows, row_bytes]. Returns whether any were dropped. */
bool pass_drop_given_up(struct pass *pass, const struct memory *memory, void *x,
                        uint64_t row_bytes);
/* Keeps only the segments whose numbers in the batch are listed, ascending, of those that are still
 * there. No rows are moved. */
void pass_keep(struct pass *pass, const uint32_t *in_batch, uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
