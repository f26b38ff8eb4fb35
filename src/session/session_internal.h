/* The structs behind the opaque types of the public API, and functions that the files of this
 * folder share. fm_model owns everything it points to. fm_session owns its sequence, ids, logits
 * and hash; its model outlives it. One thread at a time uses a model and its sessions, except where
 * noted. */
#ifndef FLASHMOE_SESSION_SESSION_INTERNAL_H
#define FLASHMOE_SESSION_SESSION_INTERNAL_H

#include <signal.h>
#include <xxhash.h>

#include "chat/chat.h"
#include "cluster/cluster.h"
#include "engine/engine.h"
#include "flashmoe_lab.h"
#include "lab/routes.h"
#include "session/between.h"
#include "session/draft.h"
#include "session/session_peaks.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CHAT_STOPS_MAX 8

struct fm_decoder;

/* A call of fm_eval_begin until its end. */
struct fm_evaluation {
    struct fm_model *m; /* NULL: nobody uses it */
    struct fm_batch_item *items; /* an item whose rc is set is not computed any further */
    size_t n_items;
    uint64_t n_tokens, n_done; /* of all items; before the passes that begin next */
    uint32_t n_flights;        /* passes that may be under way */
    uint32_t n_under_way;
    uint32_t n_passes, n_pass_rows; /* so far; rows of the last one */
    uint32_t n_sessions;            /* in the last one */
    uint64_t begin_ns, predict_ns;  /* predict_ns: that predicting drafts took */
    bool is_on_trial;          /* it depends on the model's own block which drafts it has */
    bool is_decode;            /* one token per item, after earlier tokens */
    bool is_observed;          /* somebody sees what happens inside a pass */
    bool is_alone;             /* no other evaluation was under way meanwhile */
    bool is_between;           /* the layers of another one (between.h) */
    uint64_t paused_ns;        /* that such evaluations took of this one's time */
    uint32_t stray_position;   /* as in struct engine */
};

/* A pass of an evaluation. */
struct flight {
    struct fm_evaluation *of;
    struct batch_segment *segments; /* [n_sessions] */
    uint32_t *items;                /* [n_sessions]: index of each segment's item */
    struct batch batch;
    uint32_t n_rows, n_draft_rows;  /* of all rows: drafts */
    struct pass *pass;              /* NULL: it is free */
};

struct fm_model {
    struct engine engine;
    struct cluster *cluster; /* borrowed; NULL: this process has all layers */
    struct tokenizer *tokenizer; /* NULL without tokenizer.json */
    /* The tokens that it has, if these are only a few of the vocabulary; NULL: they are not. */
    int32_t *few_tokens;
    uint32_t n_few_tokens;
    struct chat *chat;           /* NULL without a tokenizer */
    /* Tokens of the chat's dialects that end an answer, beside those of the model's files. */
    int32_t chat_stops[CHAT_STOPS_MAX];
    unsigned n_chat_stops;
    struct model_grammars *grammars; /* shared by all grammars (session_grammar.c) */
    struct fm_sampling default_sampling;
    bool is_metadata_only;
    bool checks_all;       /* verifies every file that model.json lists */
    struct routes *routes; /* NULL: the model's routers */
    char approximate[160]; /* empty: exact */
    struct fm_evaluation *evaluations; /* [n_sessions] */
    struct flight *flights;            /* [n_flights] */
    struct flight **in_flight;         /* [n_flights]: in the order in which they began */
    uint32_t n_flights, n_in_flight;
    struct session_between between;    /* its functions are NULL: nobody evaluates there */
    struct flight between_flight;
    bool is_paused;                    /* between two layers of an evaluation */
    uint32_t n_ranks;                  /* that have layers; 0: this process has all of them */
    uint64_t counted_ns;               /* when an evaluation last ended */
    long n_foreign;                    /* allocations made by observers */
    unsigned n_open_sessions;
    uint64_t n_prefill_tokens, prefill_ns, n_decode_tokens, decode_ns, n_decode_passes;
    struct draft_gate gate;
    enum fm_draft_source draft_source;
    uint32_t mtp_rest; /* passes before its block is asked again, which has failed */
    struct peaks peaks;
    struct mtp_row *mtp_rows; /* rows at hand; NULL: the model has no block for them */
    struct fm_draft_counts draft_counts; /* of all sessions */
};

struct fm_session {
    struct fm_model *owner;
    struct sequence *sequence;
    int32_t *ids;  /* [n_context]: the token at each position so far */
    float *logits; /* [vocabulary] */
    float *next_logits; /* [vocabulary]: those that are computed */
    struct engine_pages logits_pages[2]; /* of the two */
    int64_t next_peak; /* of next_logits; -1: nobody knows */
    bool has_logits;
    bool is_counted; /* the hash has seen `logits`, or there are none */
    volatile sig_atomic_t is_cancelled; /* atomic: set by any thread and by signal handlers */
    struct fm_observer observer;
    XXH3_state_t *hash;
    /* owner of the computed tokens; snapshots of other owners are not used */
    uint64_t prefix_owner;
    struct fm_evaluation *evaluation; /* that it is in; NULL: none */
    /* State of the current call: where it began, tokens given to batches, whether it gave
     * logits. */
    uint32_t begin_position, n_done;
    bool has_new_logits;
    struct draft draft;
    struct mtp_state mtp; /* where the model has the block */
    struct fm_failure failure; /* of the last call */
};

/* Opens the chat template and special tokens of the model (text.c). Without files it succeeds and
 * chat has no template. */
int chat_form_open(struct fm_model *m, struct fm_error *err);

/* Says that a decoder's text continues another one, so a space at its beginning belongs to it. */
void decoder_continue(struct fm_decoder *decoder);

/* Opens what the grammars of a model share: a lock, and a vocabulary that the first grammar
 * creates. Fails with FM_ERR_NOMEM. Close accepts a model without grammars. */
int model_grammars_open(struct fm_model *m, struct fm_error *err);
void model_grammars_close(struct fm_model *m);
/* Returns the tokens that a grammar allows, a bit per id, stop tokens included. The grammar owns
 * the mask; it is valid until the next accept, reset or mask. */
const uint32_t *constraint_mask(struct fm_grammar *grammar);
/* Fails with FM_ERR_ARG if the grammar allows no token. */
int constraint_check(struct fm_grammar *grammar, struct fm_error *err);
/* Writes up to `max` tokens that the grammar forces next (grammar.h). Returns how many. */
uint32_t constraint_forced(struct fm_grammar *grammar, int32_t *ids, uint32_t max);

/* Makes a failure that names no file. */
struct fm_failure session_failure(int code, const char *text);
uint64_t session_logits_bytes(const struct fm_model *m);
/* Returns how many numbers the experts of a draft take. */
size_t session_draft_experts(const struct fm_model *m);
/* Frees the memory of positions after the current one. */
void session_give_back(struct fm_session *s);
void session_drop_logits(struct fm_session *s);
/* Has the hash see the logits, if it has not. */
void session_count_logits(struct fm_session *s);

/* Changes a session's memory for keys and values to n_positions positions, within the budget. Fails
 * with FM_ERR_BUDGET or FM_ERR_NOMEM and then changes nothing (session.c). */
int session_reach(struct fm_session *s, uint32_t n_positions, struct fm_error *err);
/* Discards a cancel request that came too late. */
void session_forget_cancel(struct fm_session *s);
/* Returns whether there is one, and discards it. */
bool session_take_cancel(struct fm_session *s);

/* A model on several ranks (session_cluster.c). Each does nothing without a cluster. adapt: options
 * become those of one rank, or are refused. begin: the other ranks open it, too. meet: this rank
 * gets its layers. ready: all have opened it, or none has (`rc`). end: before the engine is
 * closed. */
int session_cluster_adapt(struct fm_model_options *options, struct fm_error *err);
int session_cluster_begin(struct fm_model *m, const char *path,
                          const struct fm_model_options *options, struct fm_error *err);
int session_cluster_meet(struct fm_model *m, const struct fm_model_options *options,
                         struct fm_error *err);
int session_cluster_ready(struct fm_model *m, int rc, struct fm_error *err);
void session_cluster_end(struct fm_model *m);
/* Asks the other ranks for their numbers, if that was not done just now. */
void session_cluster_refresh(const struct fm_model *m);
/* While this rank computes: lets messages go on. */
void session_cluster_look(const struct fm_model *m);
/* Returns whether every rank has room for all its experts. */
bool session_cluster_is_resident(const struct fm_model *m);
/* Names the rank of a fault, with its host. False: there are no ranks, or all are concerned. */
bool session_cluster_where(const struct fm_model *m, const struct batch_fault *fault, char *where,
                           size_t bytes);

/* Checks the approximations that the options ask for and describes them in m->approximate. Called
 * once the model's headers are read (approximate.c). */
int approximate_choose(struct fm_model *m, const struct fm_model_options *options,
                       struct fm_error *err);
/* Returns that description, or NULL when the model is exact. */
const char *approximate_label(const struct fm_model *m);

/* ---- layer_info.c */

/* Counts one multiply-add per weight that a token uses: every dense matrix, and the chosen experts'
 * share of the experts; and those of the head. */
void session_count_mul_adds(const struct model *model, uint64_t *per_token, uint64_t *per_head);

#ifdef __cplusplus
}
#endif
#endif
