/* What the files of this folder share: the structs behind the public API's opaque types. */
#ifndef FLASHMOE_SESSION_ENGINE_INTERNAL_H
#define FLASHMOE_SESSION_ENGINE_INTERNAL_H

#include <signal.h>
#include <xxhash.h>

#include "arch/forward.h"
#include "flashmoe.h"
#include "session/pressure.h"
#include "chat/chat.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How the memory budget is divided; all fields in bytes unless named otherwise. */
struct budget {
    uint64_t total;       /* now */
    uint64_t least, most; /* what it may become */
    uint64_t reserve;     /* what is left to everybody else */
    uint64_t program; /* resident before the model's own memory, buffers of reads, a margin */
    uint64_t caller;  /* left to the caller: a server's requests */
    uint64_t dense, scratch, cache;
    uint64_t sessions; /* but for keys and values */
    uint64_t kv;       /* keys and values now, of every session one block at least */
    struct sequence_blocks blocks;
    uint64_t need; /* with the fewest experts that work */
    uint32_t n_slots, n_fewest, n_most; /* experts cached: now, and what that may become */
    uint32_t n_context, n_sessions, n_marks, max_rows, n_threads;
};

/* The budget that follows the machine's memory (elastic.c). */
struct elastic {
    bool is_on;
    struct pressure pressure;
    uint64_t next_ns; /* when it is looked at again */
    uint64_t n_shrinks, n_grows;
};

/* How experts are read and kept (streaming.c). */
struct streaming {
    enum store_io io;
    bool wants_uring;
    struct reader_options reader;
    enum heat_policy policy;
    enum lookahead_mode lookahead;
    const char *heat_path; /* borrowed while the model opens */
    bool is_auto;          /* io is what was measured, here or before (io_choice.c) */
    const char *io_path;   /* where that is kept; borrowed likewise; NULL: nowhere */
};

struct fm_model {
    struct model *model;
    struct tokenizer *tokenizer; /* NULL without tokenizer.json */
    struct chat *chat;           /* NULL without tokenizer */
    struct model_grammars *grammars; /* what grammars share (session_grammar.c) */
    struct fm_sampling default_sampling;
    const struct kv_format *kv_format;
    struct budget budget;
    struct elastic elastic;
    bool is_metadata_only;
    bool checks, checks_all; /* verifies what is read; and all that model.json lists */
    struct routes *routes; /* NULL: the model's routers */
    char approximate[160]; /* empty: exact */
    float cache_bias;
    struct streaming streaming;
    const char *reader_name; /* NULL without routed experts */
    char *heat_path;         /* NULL: none */
    struct backend *be;
    struct expert_store *store;
    struct expert_cache *cache; /* NULL without routed experts */
    struct forward *forward;
    struct batch_segment *segments; /* [n_sessions], for one batch */
    uint32_t *segment_sessions;     /* [n_sessions], index of the item of each segment */
    unsigned n_open_sessions;
    uint64_t n_prefill_tokens, prefill_ns, n_decode_tokens, decode_ns;
};

struct fm_session {
    struct fm_model *owner;
    struct sequence *sequence;
    int32_t *ids;  /* [n_context]: the tokens so far, one for each position */
    float *logits; /* [vocabulary] */
    bool has_logits;
    volatile sig_atomic_t is_cancelled; /* accessed atomically: by any thread and signal handlers */
    struct fm_observer observer;
    XXH3_state_t *hash;
    uint64_t prefix_owner; /* whose the computed tokens are; snapshots of others are not used */
    uint32_t batch_item; /* while a batch runs: its place in the caller's list, plus one */
    /* The current call: where it began, tokens given to batches, whether there were logits. */
    uint32_t begin_position, n_done;
    bool has_new_logits;
    struct fm_failure failure; /* of the last one */
};

/* The chat form of the model: its template and special tokens (text.c). */
int chat_form_open(struct fm_model *m, struct fm_error *err);

/* What the grammars of a model share: a lock, and a vocabulary that the first one makes. NULL
 * without a tokenizer. */
int model_grammars_open(struct fm_model *m, struct fm_error *err);
void model_grammars_close(struct fm_model *m);
/* The tokens that a grammar allows, a bit for each id, stop tokens included. */
const uint32_t *constraint_mask(struct fm_grammar *grammar);

/* Refuses a budget above the limit of the process's memory cgroup, which `file` states. `left` is
 * what is left of the limit now, `own` what this process has of it. */
int budget_check_limit(uint64_t asked, uint64_t limit, const char *file, uint64_t left,
                       uint64_t own, struct fm_error *err);
/* Divides the budget, or says with the arithmetic why it cannot. */
int budget_plan(struct budget *b, const struct model *model, const struct kv_format *kv_format,
                uint64_t reader_bytes, const struct fm_model_options *options, bool is_elastic,
                struct fm_error *err);
/* Another total between `least` and `most`: fills in what depends on it. */
void budget_change(struct budget *b, const struct model *model, uint64_t total);
/* It never becomes more than it is now. */
void budget_stop_growth(struct budget *b, const struct model *model);
int budget_too_small(const struct budget *b, const struct model *model, uint64_t total,
                     struct fm_error *err);
/* Keys and values take so many bytes from now on, of this total or of as much as they need. False:
 * that is more than `most`, and nothing has changed. */
bool budget_change_kv(struct budget *b, const struct model *model, uint64_t kv, uint64_t most);
/* Keys and values when all sessions are full. */
uint64_t budget_kv_most(const struct budget *b);

int elastic_choose(struct elastic *e, const struct fm_model_options *options,
                   struct fm_error *err);
/* Once the cache is open. */
void elastic_start(struct fm_model *m);
/* Keys and values take so many bytes from now on: the cache becomes smaller before it returns, or
 * larger. False: the budget has no room for them, and nothing has changed. No plan is open. */
bool elastic_change_kv(struct fm_model *m, uint64_t kv);
/* What the budget may become for their sake; without a fixed one, as memory is free now. */
uint64_t elastic_kv_most(const struct fm_model *m);
/* Before every layer: looks at the machine's memory when it is time, and moves a few experts where
 * the cache is to become smaller. No plan is open. */
void elastic_step(struct fm_model *m);

/* Memory for keys and values of so many positions of a session, inside the budget. FM_ERR_BUDGET,
 * FM_ERR_NOMEM: nothing has changed (session.c). */
int session_reach(struct fm_session *s, uint32_t n_positions, struct fm_error *err);
/* A wish to cancel that came too late. */
void session_forget_cancel(struct fm_session *s);
/* Makes it what the other one was at a position that it can go back to. After a failure, which is
 * want of memory, it is empty. */
int session_copy(struct fm_session *to, const struct fm_session *from, uint32_t position,
                 struct fm_error *err);

/* Checks the approximations that are asked for once the model's headers are read, and puts them in
 * words (approximate.c). */
int approximate_choose(struct fm_model *m, const struct fm_model_options *options,
                       struct fm_error *err);
/* The words, or NULL. */
const char *approximate_label(const struct fm_model *m);

/* Takes the options apart, or says what is wrong with one, before anything is opened. */
int streaming_choose(struct streaming *s, const struct fm_model_options *options,
                     struct fm_error *err);
int streaming_open_reader(const struct streaming *s, struct reader **reader, struct fm_error *err);
/* Once the model's headers are read: what io is where it was left open, as it was kept or as it is
 * measured now where it may be. Never fails: what is not known is read past the page cache. */
void io_choose(struct streaming *s, const struct model *model, bool may_measure);
/* After that. */
void streaming_fit(struct streaming *s, const struct model *model);
/* Then: memory that reads take on their way. */
uint64_t streaming_bytes(const struct streaming *s, const struct model *model);
/* The options and the headers of a model whose disk is to be measured: one with routed experts. The
 * model, NULL when it could not be opened, is the caller's also after a failure. */
int streaming_open_model(const char *model_path, const struct fm_model_options *options,
                         struct streaming *s, struct model **model, struct fm_error *err);
/* Opens store and cache, and begins to warm it. */
int streaming_open(struct fm_model *m, bool checks, struct fm_error *err);
/* Saves the heat and closes both. */
void streaming_close(struct fm_model *m);

#ifdef __cplusplus
}
#endif
#endif
