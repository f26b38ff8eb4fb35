/* What the files of the forward pass share. */
#ifndef FLASHMOE_ENGINE_FORWARD_INTERNAL_H
#define FLASHMOE_ENGINE_FORWARD_INTERNAL_H

#include "engine/forward.h"
#include "engine/forward_far.h"
#include "store/row_store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows whose logits are computed together: one of each sequence, so that the head is read once for
 * all of them, unless these are very many. */
#define FORWARD_MAX_HEAD_ROWS 32
#define FORWARD_MIN_HEAD_ROWS 8
static inline uint32_t forward_head_rows(const struct forward_options *options)
{
    if (options->max_segments < FORWARD_MIN_HEAD_ROWS)
        return FORWARD_MIN_HEAD_ROWS;
    return options->max_segments < FORWARD_MAX_HEAD_ROWS ? options->max_segments
                                                         : FORWARD_MAX_HEAD_ROWS;
}

/* Which rows each expert works on, found from the router's choice by counting. A pair is
 * row * k + place: the row and which of its experts. */
struct expert_groups {
    uint32_t *start;  /* [n_experts + 1] into pairs */
    uint32_t *pairs;  /* [max_rows * k] grouped by expert, rows ascending */
    uint32_t *rows;   /* [max_rows * k] the row of each pair */
    struct expert_use *chosen; /* experts with at least one row, ascending */
    uint32_t n_chosen;
};

/* Whether passes of so many rows take less time if the backend reads experts in the host's memory,
 * or if the host takes part (forward_reach.c). */
struct reach {
    struct reach_times {
        double ns[2]; /* of a pass: the host takes part, the backend reads */
        uint32_t n[2], n_passes;
    } times[BACKEND_ROUTED_ROWS + 1];
    bool is_possible;
    uint64_t begin_ns;
    uint64_t n_misses; /* of the cache, when the pass began */
};

/* Layers computed without asking the host which experts were chosen (forward_routed.c). */
struct forward_routed {
    bool is_on;      /* the pass at hand allows it */
    uint32_t n_rows; /* of the pass when it began */
    bool is_reaching; /* the pass at hand also reads experts in the host's memory */
    bool has_reached; /* and has done so */
    uint64_t *bases; /* [n_expert_layers, n_experts], in the backend's memory; NULL: never */
    uint64_t *table; /* the same for the host */
    uint64_t *generations; /* [n_expert_layers]: what bases was made from; 0: nothing yet */
    /* Experts that replace those that the routers choose, of the pass at hand: as ids below. */
    uint32_t *given, *given_seen;
    struct reach reach;
    /* What was chosen: [n_expert_layers, n_rows, k], in the backend's memory and for the host. They
     * lie behind not_finite and not_finite_seen, so that one wait gives both. */
    uint32_t *ids, *ids_seen;
    bool *is_pending; /* [n_expert_layers]: computed, and not counted yet */
    uint32_t n_pending;
    bool is_seen; /* ids_seen has the ids of what is pending */
};

/* The block for multi-token prediction (forward_mtp.c). */
struct forward_mtp {
    float *hidden, *pairs; /* [max_rows, hidden], and [max_rows, 2 * hidden]: its input */
    struct pass pass;      /* the rows at hand */
    struct batch_segment *wanted; /* [max_segments], likewise */
    bool has_failed;
};

struct forward {
    const struct arch *arch;
    const struct model *model;
    struct backend *be;
    struct expert_cache *cache;
    struct forward_options options;
    struct step step;
    struct expert_groups groups;
    /* For the host: what the layer at hand chose. */
    uint32_t *ids;    /* [max_rows, k] */
    float *weights;   /* [max_rows, k], where somebody wants to see them */
    uint32_t *ahead_ids; /* [ahead_rows, k] */
    float *ahead_weights;
    bool *resident; /* [n_experts] */
    struct lookahead lookahead;
    void *lookahead_memory;
    struct pass *pass;       /* at hand */
    uint32_t n_held;         /* rows of a pass that was left for this one */
    float *head_in, *logits; /* rows for the head, [head_rows, vocabulary] */
    struct row_store *rows;  /* NULL: the layers have no tables */
    /* Rows that are not finite, as not_finite_code: [1 + layers, max_segments], the embedding
     * first; in the backend's memory, and for the host. */
    uint32_t *not_finite, *not_finite_seen;
    bool has_head_checks; /* those of the head belong to rows of this pass */
    struct forward_routed routed;
    struct forward_mtp mtp;
    void *block, *host_block; /* in the backend's memory and in the host's */
    uint64_t host_bytes;
    bool is_host_pinned; /* what the host fetches into it arrives faster */
    bool is_timed; /* the pass at hand */
    uint64_t lap_ns;
    struct batch_times times; /* of the layer at hand */
    uint32_t planned_layer;   /* whose experts were computed last */
    struct far far;           /* where options.has_far */
};

/* An expert that is ready: `at` of the groups' chosen ones. */
struct step_expert forward_expert(const struct forward *f, const struct expert_item *item,
                                  const void *slot);

/* Has the backend compute experts on all their rows, and the shared one. */
void forward_compute(struct forward *f, uint32_t layer, const struct step_expert *experts,
                     uint32_t n, bool with_shared);

/* ---- forward_experts.c ---- */

/* The routed experts of a layer: reads, waits and computes. Ends early when every segment is given
 * up. */
void forward_run_experts(struct forward *f, uint32_t layer);
/* Fills in how the rows use the experts that `ids` [n_rows, k] name, ascending. Takes little time
 * if the rows are few. Returns how many experts these are, at most n_rows * k. */
uint32_t forward_uses(const struct forward *f, const uint32_t *ids, struct expert_use *uses);
/* Shows the experts of drafts in a layer with experts; `ids` are those of all rows. */
void forward_show_drafts(const struct forward *f, uint32_t expert_layer, const uint32_t *ids);
/* Returns how many tokens a layer's clock advances in this pass. */
uint32_t forward_n_tokens(const struct forward *f);
/* The experts of the last plan were computed while their checksums were, too. Those that turn out
 * to be damaged are found here: before rows change their places or choose other experts, and before
 * anybody sees what came of them. */
void forward_verify_experts(struct forward *f);

/* ---- forward_tables.c ---- */

/* Floats of a row that the layers' tables give, at most. */
uint64_t forward_looked_up_floats(const struct model *model);
/* Starts to read what the tables have for the pass at hand. */
void forward_ask_tables(struct forward *f);
/* Gets the rows of a layer's table, if it has one, where the layer looks for them. Returns false if
 * they cannot be read; every segment is given up then. */
bool forward_take_table(struct forward *f, uint32_t layer);

/* ---- forward_mtp.c ---- */

struct carver;
/* Lay out what it needs: nothing if the model has no such block. */
void forward_mtp_carve_rows(struct carver *c, struct forward_mtp *m, const struct model *model,
                            const struct forward_options *options);
void forward_mtp_carve_host(struct carver *c, struct forward_mtp *m, const struct model *model,
                            const struct forward_options *options);
/* At the end of a pass: keeps what the block needs of the rows. They are used up. */
void forward_mtp_follow(struct forward *f);

/* ---- forward_reach.c ---- */

/* Returns whether the backend reads experts in the host's memory in a pass that begins. The pass is
 * measured until reach_end. */
bool reach_begin(struct reach *reach, uint32_t n_rows, uint64_t n_misses);
void reach_end(struct reach *reach, uint32_t n_rows, bool is_reaching, uint64_t n_misses);

/* ---- forward_routed.c ---- */

/* Makes and frees the table of addresses, if backend and options allow such layers at all. */
int forward_open_routed(struct forward *f, struct fm_error *err);
void forward_close_routed(struct forward *f);
/* Decides for the pass at hand, and notes how long it took. */
void forward_begin_routed(struct forward *f);
void forward_end_routed(struct forward *f);
/* Rows have changed their places. */
void forward_follow_routed(struct forward *f);
/* Computes the experts of a layer if the backend finds all of them. Returns false otherwise. */
bool forward_run_routed(struct forward *f, uint32_t layer);
/* Counts what such layers have chosen; waits for it unless it was fetched. Called before another
 * layer's experts are planned, before rows change their places, and at the end. */
void forward_count_routed(struct forward *f);
/* Words that the ids of all layers take: at most, and now; 0: nothing is to be fetched. */
uint64_t forward_max_ids(const struct model *model);
uint64_t forward_pending_ids(const struct forward *f);

/* The experts of one row; of many rows, what one expert may get and the shared expert beside. */
uint64_t forward_max_ffn_rows(const struct model *model, uint64_t max_rows);

/* Since the last lap; 0 when nobody wants to know. Waits for what is queued, so that a piece of
 * work is counted where it was asked for. */
static inline uint64_t forward_lap(struct forward *f)
{
    if (!f->is_timed)
        return 0;
    memory_finish(f->be->memory);
    const uint64_t now_ns = plat_now_ns(), ns = now_ns - f->lap_ns;
    f->lap_ns = now_ns;
    return ns;
}

#ifdef __cplusplus
}
#endif
#endif
