/* The gate decides how many drafts a pass computes: as many as give the most tokens per time. It
 * knows from passes before how long one takes with so many rows, and how often drafts of a source
 * were right. Both change with the text, the length of the context and what the cache holds, so the
 * gate goes on measuring: now and then a pass has one draft more, or none.
 *
 * Times are kept as multiples of the time that a pass with one row takes now. Whatever makes the
 * whole machine slower for a while then changes one number, and no decision.
 *
 * One for a model, since its sessions share passes. One thread at a time. */
#ifndef FLASHMOE_SESSION_DRAFT_GATE_H
#define FLASHMOE_SESSION_DRAFT_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/sequence.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where drafts come from. */
enum draft_source {
    DRAFT_NONE = FM_DRAFT_ANY,
    DRAFT_PREDICTED = FM_DRAFT_MTP,
    DRAFT_LOOKED_UP = FM_DRAFT_LOOKUP,
    DRAFT_FORCED = FM_DRAFT_GRAMMAR,
    DRAFT_GIVEN = FM_DRAFT_GIVEN,
    N_DRAFT_SOURCES = FM_DRAFT_SOURCES,
};

#define DRAFT_ROWS 64 /* rows of a pass whose time is remembered, at most */

struct draft_gate {
    bool is_open;   /* always lets all drafts through */
    double row_ns;  /* of a pass with one row, now; 0: unknown */
    double times[DRAFT_ROWS + 1]; /* as long: a pass with so many rows; 0: unknown */
    uint32_t n_timed[DRAFT_ROWS + 1];
    double prediction; /* likewise: one draft of the model's own block, before the pass */
    /* Share of drafts that were right, given that those before them were. */
    double right[N_DRAFT_SOURCES][SEQUENCE_DRAFTS];
    uint32_t n_refused;  /* times since the last draft that no draft was worth it */
    uint32_t patience;   /* so many of them until one is tried */
    uint32_t n_accepted; /* times in a row that some were */
};

/* A pass that is being put together: its rows, and the tokens that it will probably give. */
struct draft_pass {
    uint32_t n_rows;
    double n_tokens;
};

void draft_gate_init(struct draft_gate *gate, bool is_open);
/* Returns how many of a session's n drafts to compute, and adds them to the pass. */
uint32_t draft_gate_choose(struct draft_gate *gate, enum draft_source source,
                           struct draft_pass *pass, uint32_t n);
/* Before a pass the model's own block has predicted n drafts, one behind the other, in so long. */
void draft_gate_prediction(struct draft_gate *gate, uint32_t n, uint64_t ns);
/* A decoding pass with n_rows took so long, without predicting drafts. */
void draft_gate_time(struct draft_gate *gate, uint32_t n_rows, uint64_t ns);
/* It is known now whether draft `at` of a pass was right; those before it were. */
void draft_gate_result(struct draft_gate *gate, enum draft_source source, uint32_t at,
                       bool is_right);

#ifdef __cplusplus
}
#endif
#endif
