/* Flash-MoE: run Mixture-of-Experts language models that are larger than memory.
 *
 * A model is opened once and is immutable afterwards, except for the expert cache inside it.
 * A session is one sequence of tokens with its state. For a given model file the logits are the
 * same bits whatever the memory budget, the cache, the thread count, the prefill chunk and the
 * other sessions in a batch.
 *
 * Structs: those that a program makes itself begin with their size. Set it, and leave at 0 what is
 * not needed: `struct fm_model_options options = {.size = sizeof options};`. Programs that were
 * compiled with an older header keep working: fields are only added at the end, and a field that is
 * 0 changes nothing. Where a newer one asks an older library for what it does not know, the call
 * fails with FM_ERR_ARG; what it cannot fill in is 0. A size that cannot be one is FM_ERR_ARG too,
 * or false where a function returns bool. Structs without a size are only seen through pointers
 * and may grow, but for fm_error, fm_batch_item, fm_logit_bias, fm_logprob and fm_speed, which
 * never do.
 *
 * Errors: a function that can fail returns 0 or a negative FM_ERR_* code and fills
 * `struct fm_error`, which may be NULL. The library never exits, prints or reads the environment.
 *
 * Threads: a model and its sessions are used by one thread at a time. Beside it, any thread may
 * use text (fm_tokenize*, fm_chat_render, fm_token_*), decoders and samplers of its own, and call
 * fm_session_cancel, which a signal handler may do too. Two models are independent.
 *
 * Callbacks run on the thread that evaluates. They may tokenize and decode; they must not evaluate,
 * reset or close anything of the same model. */
#ifndef FLASHMOE_H
#define FLASHMOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "flashmoe_error.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define FM_API __attribute__((visibility("default")))
#else
#define FM_API
#endif

/* ---- log ------------------------------------------------------------------------------- */

/* Installs the receiver of log lines, NULL for none. Call before opening a model. */
FM_API void fm_log_to(fm_log_fn *sink, void *ctx);

FM_API const char *fm_version(void);

/* ---- model ----------------------------------------------------------------------------- */

struct fm_model;

/* Called during long work: bytes while the dense weights are read. */
typedef void fm_progress_fn(void *ctx, uint64_t done, uint64_t total);

enum fm_choice { FM_AUTO, FM_ON, FM_OFF };
enum fm_io { FM_IO_AUTO, FM_IO_DIRECT, FM_IO_PAGE };
enum fm_reader { FM_READER_PREAD, FM_READER_URING };
enum fm_policy { FM_POLICY_LCP, FM_POLICY_LRU };

/* Some layers of a model that is cut into stages. Rows pass one stage after the other; however a
 * model is cut, the bits are the same. */
struct fm_stage_options {
    size_t size;
    unsigned n_layers;     /* all stages together have every layer of the model */
    uint64_t memory_bytes; /* the stage's own budget; the first holds the program as well */
    unsigned n_threads;    /* 0: one per physical core this process may use */
};

struct fm_model_options {
    size_t size;
    uint64_t memory_bytes;  /* budget for everything; 0: what the machine has free */
    uint64_t caller_bytes;  /* of that budget, left to the caller's own memory */
    /* While tokens are computed the budget follows the machine's memory: under pressure the expert
     * cache gives some back, and takes it again slowly, up to memory_bytes or, when that is 0, to
     * what the machine has. FM_AUTO: FM_ON, which does nothing where the system cannot tell. */
    enum fm_choice elastic;
    unsigned n_threads;     /* 0: one per physical core this process may use */
    bool pin_threads;       /* keep each on a core of its own, except the caller's */
    const char *cpu;        /* level of the kernels (fm_machine_level); NULL: the best one here */
    unsigned n_sessions;    /* that may be open at a time; the budget holds the least of each */
    /* Positions that a session may have; 0: the model's maximum, or as many as one session could
     * have in this budget beside the fewest experts. Keys and values take memory as positions are
     * reached, in blocks of 256, and the expert cache gives it up for them. */
    unsigned n_context;
    /* States of recurrent layers that a session keeps to go back to (fm_session_rewind), at most 8;
     * each takes memory. 0: it can only begin again. Without such layers it needs none. */
    unsigned n_marks;
    unsigned prefill_chunk; /* tokens computed together; 0: chosen from the budget */
    /* Verifies what is read. FM_AUTO: each dense tensor and expert of a packed model against its
     * checksum; of other models, which have none, that their files do not change while they are
     * open. FM_ON: the same, also files beside the weights that are not used, and a model without
     * checksums is refused. FM_OFF: nothing. */
    enum fm_choice check;
    bool metadata_only;     /* headers and tokenizer only: inspect and tokenize, no sessions */
    /* Replaces the routers' choice of experts, to measure speed with realistic reuse: "gen",
     * "gen:KEY=VALUE,..." or the path of a routing trace. NULL: the model's own routers. */
    const char *routes;
    /* Format of keys and values: "f16" or "f32"; or, which is approximate, rotated and in fewer
     * bits: "rot8", "rot4", "rot3", "rot2". NULL: f16. */
    const char *kv;
    /* How experts are read, which changes no bit: past the page cache where the file system can, or
     * through it; FM_IO_AUTO: what io_path says, or direct. By threads that pread, or by an
     * io_uring where the system has it. */
    enum fm_io io;
    enum fm_reader reader;
    /* A file that keeps which of the two is faster for this model on its disk. Where it does not
     * say so, that is measured when the model is opened, in about a second. NULL: none. */
    const char *io_path;
    unsigned read_depth; /* reads under way at a time; 0: 8 */
    /* Reads experts that the next layer's router would choose now. FM_AUTO: tried in turns, and
     * kept while it is faster. */
    enum fm_choice lookahead;
    enum fm_policy policy; /* drop experts used seldom and long ago, or those used longest ago */
    /* A file that keeps the heat of the experts from one run to the next: read when the model is
     * opened, so that the hottest are fetched at once, and written when it is closed. NULL: none.
     * A file that is damaged or another model's is ignored with a line in the log. */
    const char *heat_path;
    /* Approximations: they change the logits, and fm_stats.approximate says so in every output.
     * Fewer experts per token than the model was made for; 0: the model's own number. */
    unsigned experts_per_token;
    /* Decoded tokens prefer experts that are in memory: what is added to their router logits, as a
     * share of the distance between the token's highest and lowest, 0 to 1. Results then depend on
     * what the cache holds. 0: the routers alone choose. */
    double cache_bias;
    fm_progress_fn *progress;
    void *progress_ctx;
    /* Cuts the model into stages, all of one size, in the order of its layers, each with memory and
     * threads of its own in the place of memory_bytes and n_threads. 0 or 1: it is one stage. */
    const struct fm_stage_options *stages;
    unsigned n_stages;
};

/* `path` is a packed model (NAME.fmoe), a GGUF file (of a split set any one), or a Hugging Face or
 * MLX directory: config.json and safetensors, tokenizer.json if there is one. `options` may be
 * NULL. */
FM_API int fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err);
FM_API void fm_model_close(struct fm_model *model); /* accepts NULL; close the sessions first */

struct fm_model_info {
    size_t size;
    const char *container;    /* "packed model", "GGUF", "Hugging Face directory" */
    const char *architecture; /* model_type of the checkpoint */
    uint64_t n_parameters;
    unsigned n_layers, n_moe_layers, n_attention_layers;
    unsigned hidden, vocabulary;
    unsigned n_experts, n_experts_per_token;
    unsigned max_context;           /* what the checkpoint was made for, with its rope scaling */
    uint64_t dense_bytes;           /* resident: everything but the routed experts */
    uint64_t experts_bytes;         /* all routed experts */
    uint64_t expert_bytes;          /* the largest single expert */
    uint64_t expert_token_bytes;    /* expert bytes one token needs */
    uint64_t dense_token_bytes;     /* dense bytes one token reads */
    uint64_t kv_position_bytes;     /* KV bytes per position, in the format it was opened with */
    unsigned kv_block_positions;    /* that take memory together */
    uint64_t state_bytes;           /* recurrent state per session */
    uint64_t mul_adds_per_token;    /* in matrices: dense ones, chosen experts; not the head */
    uint64_t mul_adds_per_head;     /* for each token whose logits are wanted */
    unsigned n_ignored_tensors;     /* vision, multi-token prediction */
    /* A text of n bytes has n / max_token_bytes tokens or more; 0 without a tokenizer. */
    unsigned max_token_bytes;
    bool has_tokenizer, has_tied_head;
    bool has_checksums; /* of every expert and dense tensor: packed models */
    bool has_chat_template; /* of its own; where it is false, ChatML stands in */
    const char *routes, *approximate; /* as in fm_stats */
    const char *rope_scaling;  /* "linear" or "yarn"; NULL: none, and the factors are 1 */
    double rope_factor;        /* by which the context is longer than without it */
    double attention_factor;   /* of cosines and sines */
    unsigned original_context; /* positions without scaling */
};

FM_API int fm_model_info(const struct fm_model *model, struct fm_model_info *info);

/* The i-th storage format in use, experts and dense weights apart; false when there is none. */
struct fm_format_info {
    size_t size;
    const char *name; /* "bf16", "affine4-g64", ... */
    bool is_expert;
    uint64_t n_tensors, n_bytes;
};
FM_API bool fm_model_format(const struct fm_model *model, unsigned i, struct fm_format_info *info);

/* How the budget is spent, and what has happened so far. */
struct fm_stats {
    size_t size;
    uint64_t memory_budget_bytes; /* now */
    uint64_t memory_min_bytes, memory_max_bytes; /* what it may become */
    uint64_t memory_program_bytes; /* resident before the model's own memory was taken, and
                                    * fm_model_options.caller_bytes */
    uint64_t memory_dense_bytes;
    uint64_t memory_cache_bytes;
    uint64_t memory_kv_bytes;      /* KV and recurrent state of all sessions, now */
    uint64_t memory_kv_max_bytes; /* when all are full, which the budget need not have room for */
    uint64_t memory_scratch_bytes;
    uint64_t memory_resident_peak_bytes; /* measured */
    uint64_t n_cache_slots;       /* experts the cache has room for now */
    uint64_t n_shrinks, n_grows;  /* times that the budget has changed this */
    unsigned prefill_chunk, n_context, n_threads;
    const char *cpu_level; /* of the kernels in use; NULL without sessions */

    uint64_t n_prefill_tokens, prefill_ns; /* prompts */
    uint64_t n_decode_tokens, decode_ns;   /* evaluations of one further token per session */
    uint64_t n_expert_hits, n_expert_misses;
    uint64_t n_expert_late; /* of the misses, those that were on their way already */
    uint64_t n_guesses, n_guesses_used; /* experts read ahead; those that were used */
    uint64_t n_warmed;                  /* experts read because of the heat file */
    uint64_t bytes_read;                /* expert bytes read from storage */
    uint64_t read_wait_ns;              /* nothing could be computed while they travelled */
    const char *reader, *io, *policy;   /* in use; NULL without routed experts */
    /* What has taken the place of the routers and makes the text meaningless, in words that
     * belong in every output; NULL: the model routes itself. Valid until the model is closed. */
    const char *routes;
    /* "approximate: " and what differs from the model as it was made, in words that belong in every
     * output; NULL: nothing. Valid until the model is closed. */
    const char *approximate;
};

FM_API int fm_model_stats(const struct fm_model *model, struct fm_stats *stats);

/* Another budget for a model in use, which it does not exceed from here on: between evaluations, or
 * from a callback. The cache has become smaller when it returns; fm_stats tells the least and the
 * most it may be, and more than the most is the most. FM_ERR_BUDGET: too small, nothing changed. */
FM_API int fm_model_set_memory(struct fm_model *model, uint64_t bytes, struct fm_error *err);

/* How a budget would be divided, as fm_stats has it, without taking any of it. */
struct fm_plan {
    size_t size;
    uint64_t memory_budget_bytes, memory_program_bytes, memory_dense_bytes, memory_cache_bytes,
        memory_kv_bytes, memory_kv_max_bytes, memory_scratch_bytes;
    uint64_t n_cache_slots;
    unsigned prefill_chunk, n_context, n_threads;
    uint64_t min_bytes; /* the smallest budget that works */
};
/* The model may be open for its metadata only; keys and values are in the format it was opened
 * with. FM_ERR_BUDGET with the arithmetic where it does not fit; then only min_bytes is set. */
FM_API int fm_model_plan(const struct fm_model *model, const struct fm_model_options *options,
                         struct fm_plan *plan, struct fm_error *err);

/* ---- text ------------------------------------------------------------------------------ */

enum {
    FM_TEXT_PLAIN = 0,       /* special tokens in the text are ordinary characters */
    FM_TEXT_WITH_SPECIAL = 1 /* "<|im_end|>" and the like become their token */
};

/* Token ids of `text`, freed with fm_free. */
FM_API int fm_tokenize(const struct fm_model *model, const char *text, size_t text_bytes,
                       int flags, int32_t **ids, size_t *n_ids, struct fm_error *err);

/* A conversation in the model's chat form: JSON text, either an array of messages or an object with
 * "messages", "tools", "documents", "add_generation_prompt" (otherwise true) and other variables of
 * the model's chat template ("enable_thinking"). A model without a template has ChatML.
 *
 * Nobody leaves his turn: special tokens in what somebody wrote are ordinary characters. Tokens
 * such as <think> and <tool_call> count in content and reasoning of the assistant's messages, so
 * that an answer in the history has the ids it was generated with; those that frame the turns do
 * not even there. Any thread. FM_ERR_ARG when it is no conversation, or the template refuses it;
 * FM_ERR_UNSUPPORTED when the model has no chat form. */
struct fm_chat_options {
    size_t size;
    int64_t now_s;        /* seconds since 1970, for templates that write the date */
    int32_t now_offset_s; /* what local time is ahead of UTC */
    /* A conversation that surely has more tokens is refused before it is tokenized: FM_ERR_ARG, and
     * *n_ids is the count that it has at least. 0: none is. */
    size_t max_tokens;
};
/* The text, NUL-terminated; freed with fm_free. `options` may be NULL: the beginning of 1970. */
FM_API int fm_chat_render(const struct fm_model *model, const char *conversation, size_t bytes,
                          const struct fm_chat_options *options, char **text, size_t *text_bytes,
                          struct fm_error *err);
/* Its token ids, freed with fm_free. */
FM_API int fm_chat_tokenize(const struct fm_model *model, const char *conversation,
                                size_t bytes, const struct fm_chat_options *options, int32_t **ids,
                                size_t *n_ids, struct fm_error *err);
/* The same of an optional system message and one of the user, ready to be answered. */
FM_API int fm_chat_tokenize_turn(const struct fm_model *model, const char *system, const char *user,
                            size_t user_bytes, const struct fm_chat_options *options, int32_t **ids,
                            size_t *n_ids, struct fm_error *err);

/* True for tokens that steer the model and give no text. */
FM_API bool fm_token_is_special(const struct fm_model *model, int32_t id);
/* The bytes an id stands for, special tokens included and not necessarily whole characters; NULL
 * when the id has no token. Not NUL-terminated. */
FM_API const char *fm_token_text(const struct fm_model *model, int32_t id, size_t *text_bytes);

FM_API void fm_free(void *p); /* accepts NULL */

/* True for the tokens that end an answer. */
FM_API bool fm_token_is_stop(const struct fm_model *model, int32_t id);

/* Turns ids into text piece by piece and never splits a UTF-8 character. */
struct fm_decoder;
FM_API int fm_decoder_open(const struct fm_model *model, struct fm_decoder **out,
                           struct fm_error *err);
FM_API void fm_decoder_close(struct fm_decoder *decoder); /* accepts NULL */
/* The text that is complete after `id`, valid until the next call; may be empty. Special tokens
 * give no text. */
FM_API int fm_decoder_push(struct fm_decoder *decoder, int32_t id, const char **text,
                           size_t *text_bytes, struct fm_error *err);
/* What is left at the end; an incomplete character becomes U+FFFD. */
FM_API void fm_decoder_finish(struct fm_decoder *decoder, const char **text, size_t *text_bytes);

/* ---- session --------------------------------------------------------------------------- */

struct fm_session;

FM_API int fm_session_open(struct fm_model *model, struct fm_session **out, struct fm_error *err);
FM_API void fm_session_close(struct fm_session *session); /* accepts NULL */

/* Back to position 0 with empty state. */
FM_API void fm_session_reset(struct fm_session *session);
FM_API unsigned fm_session_position(const struct fm_session *session);

/* The tokens so far, one for each position; borrowed until the next evaluation. */
FM_API const int32_t *fm_session_ids(const struct fm_session *session);

/* Prefixes are not computed twice: where the session could go back to, to go on with these tokens,
 * which are all from position 0 on. Tokens in common are kept, but for the last one, whose logits
 * are wanted. Recurrent layers cannot go back to just any position: the session keeps n_marks
 * of them, at the end of a prompt, up to 64 tokens before it, and ever further apart. 0: from the
 * beginning. */
FM_API unsigned fm_session_nearest(const struct fm_session *session, const int32_t *ids,
                                   size_t n_ids);
/* Goes there and returns where: evaluate ids from there on. The state is bit for bit what computing
 * the prefix gives. The logits and their hash begin anew. */
FM_API unsigned fm_session_rewind(struct fm_session *session, const int32_t *ids, size_t n_ids);

/* Appends tokens to the session and computes them. FM_ERR_BUDGET: the budget has no memory for
 * their keys and values; nothing was computed, and the session is what it was. After any other
 * failure it is where it was before; with recurrent layers, when they had begun, at its last mark
 * before that, or at 0 (fm_session_nearest): fm_session_position tells, and the tokens from there
 * on can be evaluated again. Where anything is dropped, the logits and their hash are too. */
FM_API int fm_session_eval(struct fm_session *session, const int32_t *ids, size_t n_ids,
                           struct fm_error *err);

/* The same for several sessions of one model in one pass; no session may appear twice. */
struct fm_batch_item {
    struct fm_session *session;
    const int32_t *ids;
    size_t n_ids;
    int rc; /* filled in: 0 when all of its tokens are computed, or why not */
};
/* A fault ends the evaluation of those sessions alone that it concerns, and the others are computed
 * with the bits that they would have had: FM_ERR_CANCELLED, the session was cancelled;
 * FM_ERR_BUDGET or FM_ERR_NOMEM, there is no memory for its tokens; FM_ERR_IO or FM_ERR_FORMAT, an
 * expert that its tokens chose cannot be read or is damaged; FM_ERR_FORMAT, it has a value or a
 * logit that is NaN or infinite. Returns 0 when every item's rc is 0; otherwise the first rc that
 * is not 0, FM_ERR_CANCELLED only when there is no other. A call with wrong arguments,
 * FM_ERR_ARG, computes nothing. */
FM_API int fm_eval_batch(struct fm_model *model, struct fm_batch_item *items, size_t n_items,
                         struct fm_error *err);

/* Why the session's last evaluation failed. In a batch every session has a reason of its own. */
struct fm_failure {
    int code;          /* as fm_batch_item.rc; 0: it has not failed */
    int layer, expert; /* the weights at fault; -1: not of one layer, not of an expert */
    char text[FM_ERROR_BYTES];    /* as fm_error.text: may name files */
    char summary[FM_ERROR_BYTES]; /* the same without any path, for those who may not know them */
};
/* Valid until the session's next evaluation. Calls with wrong arguments (FM_ERR_ARG) do not change
 * it. */
FM_API const struct fm_failure *fm_session_failure(const struct fm_session *session);

/* Logits after the last token, [vocabulary] finite floats, valid until the next evaluation. */
FM_API const float *fm_session_logits(const struct fm_session *session);

/* XXH3-128, in hexadecimal, of every logits row this session has produced since it was opened,
 * reset or rewound. */
FM_API void fm_session_logits_hash(const struct fm_session *session, char hex[33]);

/* Makes the session's evaluation in progress, or its next one, fail with FM_ERR_CANCELLED: before
 * the next layer, or within a layer that reads experts before the next of them. Sessions beside it
 * in a batch go on. fm_session_reset forgets the wish, and so does fm_session_rewind where it drops
 * anything. */
FM_API void fm_session_cancel(struct fm_session *session);

/* ---- snapshots ------------------------------------------------------------------------- */

/* The session's state in a file, written aside and renamed when it is whole; and back again into a
 * session of the same model, approximations and format of keys and values, bit for bit. Loading
 * what is damaged or another model's fails with a sentence and leaves the session empty. With
 * fm_model_options.routes nothing is kept. */
FM_API int fm_session_save(const struct fm_session *session, const char *path,
                           struct fm_error *err);
FM_API int fm_session_load(struct fm_session *session, const char *path, struct fm_error *err);

/* A directory of snapshots, max_bytes at most, whichever model they are of: those that were used
 * longest ago go first. One that is damaged or another model's is skipped with a line in the log.
 * One process at a time writes; others only read what was there when they opened it. Used by the
 * thread that drives the sessions. */
struct fm_snapshots;
FM_API int fm_snapshots_open(struct fm_model *model, const char *dir, uint64_t max_bytes,
                             struct fm_snapshots **out, struct fm_error *err);
FM_API void fm_snapshots_close(struct fm_snapshots *snapshots); /* accepts NULL */
/* Keeps what the session has computed, unless it is kept already or does not fit. */
FM_API int fm_snapshots_keep(struct fm_snapshots *snapshots, const struct fm_session *session,
                             struct fm_error *err);
/* Brings the session to the longest prefix of these tokens that it or a snapshot has, and returns
 * its length: evaluate ids from there on (fm_session_rewind). */
FM_API unsigned fm_snapshots_restore(struct fm_snapshots *snapshots, struct fm_session *session,
                                     const int32_t *ids, size_t n_ids);

struct fm_snapshots_stats {
    size_t size;
    uint64_t n_files, bytes;        /* snapshots of this model; of all in the directory */
    uint64_t n_written, n_restored; /* since it was opened */
};
FM_API int fm_snapshots_stats(const struct fm_snapshots *snapshots,
                               struct fm_snapshots_stats *stats);

/* ---- slots ----------------------------------------------------------------------------- */

/* A pool of sessions for many conversations: each request gets the session that has computed most
 * of its tokens, and no conversation is dropped while another session or the disk can take the
 * new one. Used by the thread that drives the model. */
struct fm_slots;

struct fm_slots_options {
    size_t size;
    unsigned n_sessions;            /* opened at once; fm_model_options.n_sessions allows them */
    struct fm_snapshots *snapshots; /* where what does not fit is kept, borrowed; NULL: nowhere */
    unsigned keep_min;            /* tokens that are worth a file */
};

FM_API int fm_slots_open(struct fm_model *model, const struct fm_slots_options *options,
                         struct fm_slots **out, struct fm_error *err);
FM_API void fm_slots_close(struct fm_slots *slots); /* accepts NULL; all sessions are given back */

/* A session for these tokens, at the position *n_found: evaluate ids from there on. `key` names
 * whose conversation it is, 0: unknown; it decides where the tokens alone do not. Only what was
 * computed for the same `owner` is found, in sessions and in snapshots; those of fm_snapshots_keep
 * without slots have owner 0. NULL when every session is taken. */
FM_API struct fm_session *fm_slots_take(struct fm_slots *slots, const int32_t *ids, size_t n_ids,
                                        uint64_t key, uint64_t owner, unsigned *n_found);
/* Back again with what it has computed. */
FM_API void fm_slots_give(struct fm_slots *slots, struct fm_session *session);
/* Empties the session used longest ago that is not taken, where an evaluation found no memory for
 * keys and values (FM_ERR_BUDGET): it is kept on the disk like one that makes way. False: all are
 * taken or empty. */
FM_API bool fm_slots_drop_idle(struct fm_slots *slots);

/* Keeps one session that is not taken and has n_new tokens or more that no snapshot has: 1; 0 when
 * there is none. */
FM_API int fm_slots_keep(struct fm_slots *slots, unsigned n_new, struct fm_error *err);

struct fm_slot_info {
    size_t size;
    bool is_taken;
    unsigned position; /* tokens it has computed */
    uint64_t key;
};
FM_API bool fm_slot_info(const struct fm_slots *slots, unsigned i, struct fm_slot_info *info);

/* ---- sampling -------------------------------------------------------------------------- */

struct fm_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY: the token never comes */
};

/* In the order in which they apply, which is that of transformers: bias and penalties change the
 * logits, also at temperature 0; then the temperature divides them; then each of top-k, top-p,
 * min-p and typical-p leaves out tokens among those that the one before has left. */
struct fm_sampling {
    size_t size;
    float temperature; /* 0: the most likely token */
    unsigned top_k;    /* 0: off */
    float top_p;       /* 1: off; the most likely token always stays */
    float min_p;       /* 0: off */
    uint64_t seed;
    /* The fewest tokens with this much of the probability whose surprise is nearest to the mean
     * one; 0 and 1: off. */
    float typical_p;
    /* Of tokens that the prompt or the answer has: logits above 0 are divided by it, others
     * multiplied; 0 and 1: off. */
    float repetition_penalty;
    /* Of tokens that the answer has: subtracted once; and once for each time. 0: off. */
    float presence_penalty, frequency_penalty;
    unsigned penalty_window; /* the last tokens that these three look at; 0: all */
    const struct fm_logit_bias *logit_bias; /* [n_logit_bias], used while the sampler opens */
    unsigned n_logit_bias;
};

/* What the checkpoint's generation_config.json recommends, or greedy. */
FM_API int fm_sampling_default(const struct fm_model *model, struct fm_sampling *sampling);

/* Chooses tokens for one answer. The same seed, logits and tokens so far give the same token on
 * every machine. */
struct fm_sampler;
FM_API int fm_sampler_open(const struct fm_model *model, const struct fm_sampling *sampling,
                           struct fm_sampler **out, struct fm_error *err);
FM_API void fm_sampler_close(struct fm_sampler *sampler); /* accepts NULL */
/* A token id, or FM_ERR_FORMAT when a logit is NaN or INFINITY, or none is above -INFINITY, or the
 * bias forbids every token. A session's own logits are always finite. -INFINITY, which
 * fm_grammar_mask writes too, is a token that must not come. Padding rows of the vocabulary, which
 * have no token, are never chosen. */
FM_API int32_t fm_sampler_pick(struct fm_sampler *sampler, const float *logits);
/* What penalties and a grammar go by: the tokens of the prompt, then each token of the answer. Ids
 * that the model does not have are ignored. Without these two neither does anything. */
FM_API void fm_sampler_accept_prompt(struct fm_sampler *sampler, const int32_t *ids, size_t n_ids);
FM_API void fm_sampler_accept(struct fm_sampler *sampler, int32_t id);

struct fm_logprob {
    int32_t id;
    float logprob; /* natural */
};
/* Log probabilities in the model's own distribution: before bias, penalties, temperature and
 * filters, padding rows included. `chosen` is filled in for its id; `top` gets the n_top most
 * likely tokens, best first, the lower id first among equals. Returns how many of them there are,
 * or FM_ERR_ARG for an id that the model does not have, or FM_ERR_FORMAT when the logits give no
 * distribution: one is NaN or INFINITY, or all are -INFINITY. */
FM_API int fm_logprobs(const struct fm_model *model, const float *logits,
                       struct fm_logprob *chosen, struct fm_logprob *top, unsigned n_top);

/* Answers that are JSON and fit a schema: tokens after which they could not are never chosen. What
 * is enforced of JSON Schema is listed in docs/SCHEMA.md; anything else is refused.
 *
 * A grammar is one answer in progress. One thread at a time uses it; any number may be open, and
 * any thread may open one. The first one of a model takes some time to look through its vocabulary.
 * It must be closed before the model is. */
struct fm_grammar;
/* `schema` is JSON text; NULL: any object. FM_ERR_ARG with the keyword and where it stands when the
 * schema cannot be enforced, is none or allows nothing. FM_ERR_UNSUPPORTED: the model has no
 * tokenizer, no token that ends an answer, or a byte without a token. */
FM_API int fm_grammar_open_json(const struct fm_model *model, const char *schema,
                                size_t schema_bytes, struct fm_grammar **out,
                                struct fm_error *err);
FM_API void fm_grammar_close(struct fm_grammar *grammar); /* accepts NULL */
/* For a new answer with the same schema, which is faster than opening another one. */
FM_API void fm_grammar_reset(struct fm_grammar *grammar);
/* From here on the sampler picks what the grammar allows, and fm_sampler_accept tells it what has
 * come; NULL ends that. Where a model thinks first, constrain once it has begun to answer. The
 * grammar must live as long; fm_logprobs stay the model's own. */
FM_API void fm_sampler_constrain(struct fm_sampler *sampler, struct fm_grammar *grammar);
/* For those that choose tokens themselves: makes the logits of all tokens that are not allowed
 * -INFINITY, and takes the token that was chosen. FM_ERR_ARG: it was not allowed; nothing changes.
 * At least one token is always allowed; tokens that end an answer only when it may. */
FM_API void fm_grammar_mask(struct fm_grammar *grammar, float *logits);
FM_API int fm_grammar_accept(struct fm_grammar *grammar, int32_t id, struct fm_error *err);
/* The answer is whole, though more may come (a number); it is, and only its end can come. */
FM_API bool fm_grammar_may_end(const struct fm_grammar *grammar);
FM_API bool fm_grammar_must_end(const struct fm_grammar *grammar);

/* ---- answers --------------------------------------------------------------------------- */

/* One answer in progress: it chooses tokens from a session's logits, turns them into text, finds
 * stop strings, follows a grammar, tells reasoning and tool calls from text, and reports all of it
 * as events. The caller evaluates the tokens, alone or in a batch with other sessions:
 *
 *     while ((rc = fm_answer_step(answer, session, &id, &err)) == 0 && id >= 0)
 *         if ((rc = fm_session_eval(session, &id, 1, &err)) != 0)
 *             break;
 *     if (rc == 0 || rc == FM_ERR_CANCELLED)
 *         rc = fm_answer_finish(answer, &err);
 *
 * One thread at a time uses an answer. Any number may be open; close them before the model. */
struct fm_answer;

enum fm_event_kind {
    FM_EVENT_TOKEN,          /* id and logprobs of a token that was chosen; before its text */
    FM_EVENT_TEXT,           /* text */
    FM_EVENT_REASONING,      /* text */
    FM_EVENT_CALL_STARTED,   /* call, call_id, name */
    FM_EVENT_CALL_ARGUMENTS, /* the same, and text: a piece of the arguments, a JSON object */
    FM_EVENT_CALL_ENDED,     /* the same, is_broken, and text: the call as the model wrote it */
    FM_EVENT_FINISHED,       /* end, stop, n_calls; the last */
};

/* Why an answer ended. */
enum fm_end {
    FM_END_TOKEN,     /* a stop token of the model */
    FM_END_STRING,    /* a stop string, which is not part of the text */
    FM_END_CALL,      /* its only call is whole (is_one_call) */
    FM_END_GRAMMAR,   /* nothing can follow in the grammar (ends_with_grammar) */
    FM_END_LENGTH,    /* max_tokens */
    FM_END_CONTEXT,   /* the session's context is full */
    FM_END_CANCELLED, /* the caller finished it before any of these */
};

/* Everything that it points to is valid during the call only. Text is not NUL-terminated, never
 * ends inside a UTF-8 character, and comes in pieces of any size. */
struct fm_answer_event {
    enum fm_event_kind kind;
    const char *text;
    size_t text_bytes;
    int32_t id;
    /* With wants_logprobs: the token's own, then those of the most likely ones, best first. */
    const struct fm_logprob *logprobs;
    unsigned n_logprobs;
    unsigned call; /* the call's number, from 0 */
    const char *call_id, *name;
    bool is_broken; /* the arguments are not whole: the call must not be made */
    enum fm_end end;
    unsigned stop;    /* the number of the stop string, of FM_END_STRING */
    unsigned n_calls; /* whole calls in the answer */
};
/* Returns 0, or a negative code that ends the answer, with the reason in `err`, which may be
 * NULL. */
typedef int fm_answer_fn(void *ctx, const struct fm_answer_event *event, struct fm_error *err);

#define FM_TOP_LOGPROBS_MAX 20

/* Zero every field that is not needed. Only `grammar` and `tail` are borrowed until the answer is
 * closed; everything else is used while it opens. */
struct fm_answer_options {
    size_t size;
    fm_answer_fn *event;
    void *ctx;
    const struct fm_sampling *sampling; /* NULL: fm_sampling_default */
    const int32_t *prompt;              /* [n_prompt], for penalties */
    size_t n_prompt;
    uint64_t max_tokens; /* the stop token counts; 0: as many as the context holds */
    const char *const *stops;
    unsigned n_stops;
    struct fm_grammar *grammar; /* from the end of the reasoning on; it is reset. NULL: any text */
    bool ends_with_grammar;     /* without waiting for the stop token, where only that can follow */
    bool wants_logprobs;
    unsigned n_top_logprobs; /* at most FM_TOP_LOGPROBS_MAX */
    /* Tells reasoning and calls from text; the fields below need it. Special tokens that mark them,
     * such as <think>, are read as their text; a marker that nothing looks for stays text. */
    bool is_chat;
    bool is_reasoning; /* the prompt ends inside reasoning: fm_prompt_opens_reasoning */
    /* The tools that may be called: JSON text, an array as in a conversation's "tools", whose
     * schemas tell the types of arguments. NULL: calls are not looked for. */
    const char *tools;
    size_t tools_bytes;
    bool is_one_call;   /* the answer ends with its first whole call */
    bool hold_calls;    /* start a call only when it is whole; a broken one is text */
    uint64_t call_seed; /* the ids of the calls follow from it */
    /* For a call that must come: the text that the prompt has ended with to open it, which is read
     * as part of the answer, and the text that closes it. Such an answer has no text, so stop
     * strings do not apply. NULL: calls are the model's choice. */
    const char *lead, *tail;
};

FM_API int fm_answer_open(const struct fm_model *model, const struct fm_answer_options *options,
                          struct fm_answer **out, struct fm_error *err);
FM_API void fm_answer_close(struct fm_answer *answer); /* accepts NULL */

/* Chooses the next token from the session's logits and reports it and what text it completes. *id
 * is the token, to be evaluated before the next step, or -1: the answer is over, finish it.
 * FM_ERR_ARG: logit_bias forbids every token, the session has no logits, or the answer is over.
 * After a failure the answer can only be finished or closed. */
FM_API int fm_answer_step(struct fm_answer *answer, const struct fm_session *session, int32_t *id,
                          struct fm_error *err);
/* Reports what was kept back, then FM_EVENT_FINISHED. Once; may be called at any time, to cancel
 * the answer. */
FM_API int fm_answer_finish(struct fm_answer *answer, struct fm_error *err);

/* Tokens chosen so far, the stop token included; and how many of them are reasoning. */
FM_API uint64_t fm_answer_n_tokens(const struct fm_answer *answer);
FM_API uint64_t fm_answer_n_reasoning_tokens(const struct fm_answer *answer);

/* True for a prompt that ends with the marker that opens reasoning, as some templates write it. */
FM_API bool fm_prompt_opens_reasoning(const struct fm_model *model, const int32_t *ids,
                                      size_t n_ids);

#ifdef __cplusplus
}
#endif
#endif
