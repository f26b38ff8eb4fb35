/* The gate decides how many drafts a pass computes: as many as give the most tokens per time. It
 * knows from passes before how long one takes with so many rows, and how often drafts of a source
 * were right that was as sure. Both change with the text, the length of the context and what the
 * cache holds, so the gate goes on measuring: now and then a pass has one draft more, or none.
 *
 * Drafts of the model's own block take time before the pass, and how sure the block is shows when
 * they are there. So they are decided on one by one: whether to make another, and whether to
 * compute the one that was made. The block looks for them in the first tokens of the vocabulary
 * alone where that costs less than the drafts that it misses: tokenizers number frequent tokens
 * first.
 *
 * Several sessions share a pass, and the block drafts for all of them together. So probes count
 * passes, and a prediction is worth it if the sessions together gain more than it takes. Whether
 * predictions are worth it at all, trials say (draft_trial.h).
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
#include "session/draft_trial.h"

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
#define DRAFT_SURE 6  /* how sure a source is, from 0 on */
#define DRAFT_HEADS 4 /* parts of the vocabulary: an eighth, a quarter, a half, all */

/* Drafts of one source at one distance, by how sure the source was. */
struct draft_record {
    double right[DRAFT_SURE]; /* share that were right, given that those before them were */
    double often[DRAFT_SURE]; /* share of all */
    uint32_t n_seen, n_checked[DRAFT_SURE];
};

/* When to try drafts of a source that seem not worth it. */
struct draft_tries {
    uint32_t n_refused; /* passes since one was, or was tried */
    uint32_t patience;  /* so many of them until one is tried */
};

struct draft_gate {
    bool is_open;   /* always lets all drafts through */
    double row_ns;  /* of a pass with one row, now; 0: unknown */
    double times[DRAFT_ROWS + 1]; /* as long: a pass with so many rows; 0: unknown */
    uint32_t n_timed[DRAFT_ROWS + 1];
    /* Likewise: one draft of the model's own block for one session, before the pass, in each part
     * of the vocabulary; 0: unknown. Then the share of the text's tokens that the part has. */
    double predictions[DRAFT_HEADS];
    uint32_t n_predicted[DRAFT_HEADS];
    double covered[DRAFT_HEADS];
    uint32_t head; /* in use */
    uint32_t n_chains; /* passes so far that the block could draft for */
    struct draft_record records[N_DRAFT_SOURCES][SEQUENCE_DRAFTS];
    struct draft_tries tries[N_DRAFT_SOURCES];
    uint32_t n_lessons;  /* early tries of the block, so far */
    uint32_t n_accepted; /* passes with drafts, since one without any */
    uint32_t n_depths;   /* passes with drafts that are not predicted, since drafts are worth it */
    uint32_t n_stops;    /* passes in which a chain ended early, likewise */
    uint32_t n_cut;      /* predicted drafts that were not computed, since one was all the same */
    struct draft_trials trials;
};

/* A pass that is being put together: its rows, and the tokens that it will probably give. */
struct draft_pass {
    uint32_t n_rows;
    double n_tokens;
    uint32_t n_sessions; /* rows that are no drafts */
    bool is_plain;       /* a probe: no session gets drafts */
    bool is_unpredicted; /* the block makes none */
    /* Probes that one session of the pass gets: another number of drafts, a further one of the
     * block, and one of the block whatever it seems worth. */
    bool has_other_depth, has_longer_chain, has_try;
    /* What was decided on drafts of each source in this pass. */
    bool is_worth[N_DRAFT_SOURCES], is_refused[N_DRAFT_SOURCES], is_tried[N_DRAFT_SOURCES];
    /* Sessions that the block makes a draft for, and of these the ones that go on, with the time
     * that they will gain together before the prediction is paid. */
    uint32_t n_chains, n_going;
    double going_gain;
    bool is_stopped;      /* a chain ended early */
    bool must_go_on;      /* a probe of a longer chain */
    double n_predictions; /* made so far: as many of one session take as long */
};

/* The drafts of the model's own block for one session. */
struct draft_chain {
    uint32_t n;      /* to be computed */
    double is_right; /* probability that all of them are */
};

/* What to do with a draft that the block has made. */
enum draft_verdict {
    DRAFT_DROP,  /* the pass is faster without it */
    DRAFT_STOP,  /* compute it, and make no further one */
    DRAFT_GO_ON, /* compute it, and make another */
};

void draft_gate_init(struct draft_gate *gate, bool is_open);
/* Begins a pass of so many sessions. Then comes draft_gate_choose for each session whose drafts are
 * there, draft_gate_chains once for all others, and draft_gate_end. */
void draft_gate_begin(struct draft_gate *gate, struct draft_pass *pass, uint32_t n_sessions);
/* Returns how many of a session's n drafts to compute, and adds them to the pass. The source is as
 * sure of all of them. */
uint32_t draft_gate_choose(struct draft_gate *gate, enum draft_source source, uint32_t sure,
                           struct draft_pass *pass, uint32_t n);
/* The model's own block can draft for so many sessions, n tokens for each. Decides for how many it
 * does, pass->n_chains, and returns how many tokens it makes at most for each of these.
 * draft_gate_judge adds them to the pass. */
uint32_t draft_gate_chains(struct draft_gate *gate, struct draft_pass *pass, uint32_t n_sessions,
                           uint32_t n);
/* The block has made the next draft of a chain, of at most n, and is so sure of it. Adds it to the
 * chain and the pass unless it is dropped. */
enum draft_verdict draft_gate_judge(struct draft_gate *gate, struct draft_chain *chain,
                                    uint32_t sure, struct draft_pass *pass, uint32_t n);
/* The drafts of one depth are judged. Returns whether to make the next ones: of the chains that are
 * to go on. They all end otherwise. */
bool draft_gate_goes_on(const struct draft_gate *gate, struct draft_pass *pass);
/* The pass is decided on. */
void draft_gate_end(struct draft_gate *gate, const struct draft_pass *pass);
/* Returns how sure the block is whose best token has a logit that is so much above the next one's;
 * and how sure a draft is that was looked up with so many tokens before it. */
uint32_t draft_sure_of_margin(float margin);
uint32_t draft_sure_of_match(uint32_t n_tokens);
/* The model's own block has made the drafts of a pass in so long. */
void draft_gate_prediction(struct draft_gate *gate, const struct draft_pass *pass, uint64_t ns);
/* The text has a token; in_part[i]: whether part i of the vocabulary has it. */
void draft_gate_token(struct draft_gate *gate, const bool in_part[DRAFT_HEADS]);
/* Tokens of so many sessions took so long, with all that belongs to them: as in
 * draft_trials_note. */
void draft_gate_spent(struct draft_gate *gate, uint32_t n_sessions, uint64_t n_tokens,
                      uint64_t ns, bool counts);
/* A decoding pass with n_rows took so long, without predicting drafts. */
void draft_gate_time(struct draft_gate *gate, uint32_t n_rows, uint64_t ns);
/* It is known now whether draft `at` of a pass was right; those before it were. */
void draft_gate_result(struct draft_gate *gate, enum draft_source source, uint32_t sure,
                       uint32_t at, bool is_right);

#ifdef __cplusplus
}
#endif
#endif
