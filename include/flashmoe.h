/* Flash-MoE: runs Mixture-of-Experts language models that are larger than memory.
 *
 * A model is opened once. A session is one sequence of tokens and its state. An answer chooses
 * tokens from a session's logits and reports their text. For one model file the logits are the same
 * bits, whatever the memory budget, the cache, the threads, the prefill chunk, the stages and the
 * other sessions of a batch. These rules hold for all functions unless their comment differs:
 *
 * Errors. A function that returns int returns 0, or a negative FM_ERR_* code with a sentence in
 * `struct fm_error`, which may be NULL. The library never exits, prints or reads the environment.
 *
 * Ownership. The caller closes what it opens, the model last. Every close function and fm_free
 * accept NULL. Texts and ids that a function allocates are freed with fm_free. Other pointers are
 * borrowed from the object they came from. Options are read during the call; it keeps only
 * callbacks, their contexts, and what a comment calls borrowed.
 *
 * Structs. A struct that the caller makes begins with its size: set it to sizeof, and leave at 0
 * what is not needed: `struct fm_model_options options = {.size = sizeof options};`. New versions
 * only add fields at the end, and 0 in them changes nothing, so a program that was compiled with an
 * older header keeps working. An older library refuses a newer option that is set, with FM_ERR_ARG,
 * and sets results that it does not know to 0. A size that no struct can have is FM_ERR_ARG too, or
 * false from a function that returns bool. A struct without a size never grows if the caller makes
 * it (fm_error, fm_batch_item, fm_logit_bias), and may grow if the library does.
 *
 * Strings. Options are enums or numbers. Strings are for sets that grow without a new header:
 * paths, and names of number formats, KV formats and kernel levels. The error lists known names.
 *
 * Threads. One thread at a time uses a model, its sessions and its snapshots. Meanwhile any thread
 * may call fm_tokenize, fm_chat_*, fm_token_* and fm_session_cancel, and use its own grammars,
 * decoders and samplers. Two models are independent. Callbacks run on the thread that called; they
 * may tokenize and decode, but not evaluate, reset or close anything of that model. */
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

FM_API const char *fm_version(void);
FM_API void fm_free(void *p); /* accepts NULL */

/* Sets the receiver of log lines; NULL: none. Call it before a model is opened. */
FM_API void fm_log_to(fm_log_fn *sink, void *ctx);

/* ---- model ----------------------------------------------------------------------------- */

struct fm_model;

/* Receives the progress of long work. fm_model_open counts bytes of dense weights. */
typedef void fm_progress_fn(void *ctx, uint64_t done, uint64_t total);

enum fm_choice { FM_AUTO, FM_ON, FM_OFF };
/* What guesses tokens (fm_model_options.n_drafts). */
enum fm_draft_source {
    FM_DRAFT_ANY,    /* both, where the model has what FM_DRAFT_MTP needs */
    FM_DRAFT_MTP,    /* the model's own block for multi-token prediction */
    FM_DRAFT_LOOKUP, /* what followed the same tokens before */
    /* Not to be chosen: */
    FM_DRAFT_GRAMMAR, /* text that the grammar of an answer forces */
    FM_DRAFT_GIVEN,   /* by whoever measures (flashmoe_lab.h) */
    FM_DRAFT_SOURCES
};
enum fm_io { FM_IO_AUTO, FM_IO_DIRECT, FM_IO_PAGE };
enum fm_reader { FM_READER_PREAD, FM_READER_URING };
#define FM_DRAFTS_MAX 8
enum fm_policy { FM_POLICY_LCP, FM_POLICY_LRU };

/* A run of consecutive layers with its own memory and threads. */
struct fm_stage_options {
    size_t size;
    unsigned n_layers;     /* the sum over all stages is the model's layer count */
    uint64_t memory_bytes; /* budget of this stage; that of stage 0 includes the program */
    unsigned n_threads;    /* 0: one per physical core */
};

struct fm_model_options {
    size_t size;
    uint64_t memory_bytes;  /* budget for everything; 0: the free memory of the machine */
    uint64_t caller_bytes;  /* part of the budget that is reserved for the caller */
    /* Shrinks the expert cache under memory pressure and grows it again, up to memory_bytes or the
     * machine's memory. No effect where the system does not report pressure. FM_AUTO: FM_ON. */
    enum fm_choice elastic;
    unsigned n_threads;     /* 0: one per physical core that this process may use */
    bool pin_threads;       /* bind each thread but the caller's to a core */
    const char *cpu;        /* kernel level (fm_machine_level); NULL: the best one here */
    unsigned n_sessions;    /* max open sessions; the budget reserves the minimum of each. 0: 1 */
    /* Max positions of a session. KV memory grows in blocks of kv_block_positions and is taken from
     * the expert cache. 0: the model's maximum, or what fits beside the smallest cache. */
    unsigned n_context;
    /* Saved recurrent states per session, at most 8, for fm_session_rewind. 0: a model with
     * recurrent layers can only rewind to position 0. Other models need none. */
    unsigned n_marks;
    unsigned prefill_chunk; /* tokens computed together; 0: chosen from the budget */
    /* FM_AUTO: verifies all that is read from a packed model against its checksums, but for rows of
     * n-gram tables, and that the files of other models do not change. FM_ON: verifies unused files
     * too and refuses a model without checksums. FM_OFF: verifies nothing. */
    enum fm_choice check;
    bool metadata_only;     /* reads headers and tokenizer only: no sessions */
    /* Replaces the routers to measure speed; the text is then meaningless. "gen",
     * "gen:KEY=VALUE,..." or the path of a routing trace. NULL: the model's routers. */
    const char *routes;
    /* KV format: "f16" or "f32"; or the approximate "rot8", "rot4", "rot3", "rot2". NULL: f16. */
    const char *kv;
    /* Reads experts past the page cache (direct) or through it. FM_IO_AUTO: what io_path says, else
     * direct. A reader that the system does not have is replaced by FM_READER_PREAD. */
    enum fm_io io;
    enum fm_reader reader;
    const char *io_path; /* file that caches the faster `io`, measured in about 1 s; NULL: none */
    unsigned read_depth; /* concurrent reads; 0: 8 */
    /* Prefetches the predicted experts of the next layer. FM_AUTO: while that is faster. */
    enum fm_choice lookahead;
    enum fm_policy policy; /* eviction by use count and age (LCP), or by age alone (LRU) */
    /* File that keeps the heat of experts between runs: read at open to prefetch the hottest
     * experts, written at close. A damaged or foreign file is ignored and logged. NULL: none. */
    const char *heat_path;
    /* Approximations change the logits; fm_stats.approximate names them. */
    unsigned experts_per_token; /* fewer than the model's; 0: the model's */
    /* Favours resident experts while decoding: added to their router logits, as a share of the
     * token's logit range, 0 to 1. Results then depend on the cache. */
    double cache_bias;
    fm_progress_fn *progress;
    void *progress_ctx;
    /* Cuts the model into stages, which replace memory_bytes and n_threads. All elements have the
     * same size. n_stages 0 or 1: the model is one stage, and `stages` is not used. */
    const struct fm_stage_options *stages;
    unsigned n_stages;
    /* "auto": the first GPU if it can be used, "0", "1", ...: that GPU or an error. NULL or "off":
     * the processor alone. The bits are the same. A GPU computes all but experts that are not in
     * its memory; memory_bytes is then the budget of the rest. */
    const char *gpu;
    uint64_t gpu_memory_bytes; /* budget of the GPU's memory; 0: what is free, less a margin */
    /* Tokens that are guessed and computed together with the one that fm_session_eval is given, at
     * most FM_DRAFTS_MAX; 0: none. If the next evaluation is of the guessed token, no layer runs.
     * No result changes, only the time it takes. Recurrent layers need memory for n_drafts + 1 more
     * states of each session. */
    unsigned n_drafts;
    /* FM_AUTO: as many of them as have lately been worth their time. FM_ON: always all. */
    enum fm_choice draft;
    /* FM_DRAFT_MTP fails to open a model without such a block (FM_ERR_UNSUPPORTED). */
    enum fm_draft_source draft_source;
    /* Divides the layers among the ranks of a cluster, which is borrowed; this is its rank 0. NULL:
     * this process has all. memory_bytes is the budget of this rank. */
    struct fm_cluster *cluster;
    /* Layers of each rank. n_layers_of_ranks is the number of ranks, and the sum is the number of
     * layers; 0: chosen from the memory that each rank has. */
    const unsigned *layers_of_ranks;
    unsigned n_layers_of_ranks;
};

/* Opens a packed model (NAME.fmoe), a GGUF file (any one of a split set), or a Hugging Face or MLX
 * directory with config.json and safetensors. `options` may be NULL. */
FM_API int fm_model_open(const char *path, const struct fm_model_options *options,
                         struct fm_model **out, struct fm_error *err);
FM_API void fm_model_close(struct fm_model *model); /* accepts NULL */

struct fm_model_info {
    size_t size;
    const char *container;    /* "packed model", "GGUF", "Hugging Face directory" */
    const char *architecture; /* model_type of the checkpoint */
    uint64_t n_parameters;
    unsigned n_layers, n_moe_layers, n_attention_layers;
    unsigned hidden, vocabulary;
    unsigned n_experts, n_experts_per_token;
    unsigned max_context;        /* with rope scaling */
    uint64_t dense_bytes;        /* everything but routed experts; always resident */
    uint64_t experts_bytes;      /* all routed experts */
    uint64_t expert_bytes;       /* the largest expert */
    uint64_t expert_token_bytes; /* expert bytes that one token needs */
    uint64_t dense_token_bytes;  /* dense bytes that one token reads */
    uint64_t kv_position_bytes;  /* in the KV format in use */
    unsigned kv_block_positions; /* positions whose KV memory is allocated together */
    uint64_t state_bytes;        /* recurrent state of a session */
    uint64_t mul_adds_per_token; /* of matrices and chosen experts, without the head */
    uint64_t mul_adds_per_head;  /* for each token whose logits are computed */
    unsigned n_ignored_tensors;  /* vision, multi-token prediction */
    unsigned max_token_bytes;    /* n bytes of text have at least n / this tokens; 0: unknown */
    bool has_tokenizer, has_tied_head;
    bool has_checksums;     /* of every expert and dense tensor */
    bool has_chat_template; /* its own; false: ChatML is used */
    const char *routes, *approximate; /* as in fm_stats */
    const char *rope_scaling;  /* "linear" or "yarn"; NULL: none, and both factors are 1 */
    double rope_factor;        /* context length with scaling over that without */
    double attention_factor;   /* multiplies cosines and sines */
    unsigned original_context; /* positions without scaling */
    /* Float multiply-adds of a token with every position before it; without layers with a window */
    uint64_t mul_adds_per_position;
    uint64_t table_bytes;      /* of n-grams: they stay on disk, a token reads a few rows */
    /* The block for multi-token prediction, if the model was opened with drafts that may use it.
     * dense_bytes has its dense weights; experts_bytes has none of its experts. */
    unsigned n_mtp_layers;     /* 0: none */
    bool has_large_mtp;        /* there is one, and it is not used: its experts are larger than the
                                * model's */
    uint64_t mtp_dense_bytes, mtp_experts_bytes;
    char layers_here[160]; /* of a part of a model, the layers with experts: "0-3, 6"; empty: all */
};
FM_API int fm_model_info(const struct fm_model *model, struct fm_model_info *info);

/* How the budget is spent, and counters since the model was opened. */
/* One of several disks that a model lies on. */
#define FM_DISKS_MAX 8
struct fm_disk_stats {
    const char *folder; /* valid while the model is open */
    bool is_lost;       /* a mirror that is missing or has failed */
    uint64_t bytes_read, busy_ns; /* busy: some read was in flight */
};

struct fm_stats {
    size_t size;
    uint64_t memory_budget_bytes; /* now */
    uint64_t memory_min_bytes, memory_max_bytes; /* limits of fm_model_set_memory */
    uint64_t memory_program_bytes; /* resident before the model was opened, plus caller_bytes */
    uint64_t memory_dense_bytes, memory_cache_bytes, memory_scratch_bytes;
    uint64_t memory_kv_bytes;     /* KV and recurrent state of all sessions, now */
    uint64_t memory_kv_max_bytes; /* when all sessions are full; may exceed the budget */
    uint64_t memory_resident_peak_bytes; /* measured */
    uint64_t n_cache_slots;       /* experts that fit into the cache now */
    uint64_t n_shrinks, n_grows;  /* changes of the elastic budget */
    unsigned prefill_chunk, n_context;
    unsigned n_threads;    /* with stages, which take turns: of the stage that has the most */
    const char *cpu_level; /* kernels in use; NULL without sessions */

    uint64_t n_prefill_tokens, prefill_ns;
    uint64_t n_decode_tokens, decode_ns; /* evaluations of one token per session */
    uint64_t n_expert_hits, n_expert_misses;
    uint64_t n_expert_late; /* misses that a prefetch was already reading */
    uint64_t n_guesses, n_guesses_used; /* prefetched experts; those that were used */
    uint64_t n_warmed;                  /* experts prefetched after opening */
    uint64_t bytes_read;                /* expert bytes read from storage */
    uint64_t read_wait_ns;              /* time in which reads left nothing to compute */
    const char *reader, *io, *policy;   /* in use; NULL without routed experts */
    /* Words that belong in every output. `routes` says what replaces the routers and makes the
     * text meaningless; `approximate` says which approximations are on. NULL: none. */
    const char *routes, *approximate;
    /* The GPU; NULL and 0 without one. Its memory is not part of the budget above. */
    const char *gpu;
    uint64_t gpu_budget_bytes, gpu_dense_bytes, gpu_cache_bytes, gpu_kv_bytes, gpu_scratch_bytes;
    uint64_t n_gpu_slots;        /* of n_cache_slots: in the GPU's memory */
    uint64_t n_expert_hits_gpu;  /* of n_expert_hits: in the GPU's memory */
    uint64_t n_experts_sent;     /* copied to the GPU for one use */
    uint64_t n_experts_computed; /* by the processor, beside the GPU */
    uint64_t n_experts_moved_up, n_experts_moved_down; /* to the GPU's memory and back */
    /* What one expert took lately: copied to the GPU; computed by the processor for one token. */
    uint64_t expert_send_ns, expert_compute_ns;
    uint64_t gpu_min_bytes, gpu_max_bytes; /* limits of fm_model_set_gpu_memory */
    uint64_t n_decode_passes; /* of the layers, for n_decode_tokens; drafts make them fewer */
    /* Guessed tokens that were computed, and those that were right, by their distance from the
     * token before them. */
    uint64_t n_drafted[FM_DRAFTS_MAX], n_drafts_accepted[FM_DRAFTS_MAX];
    /* The same by source, FM_DRAFT_*. */
    uint64_t n_drafted_by[FM_DRAFT_SOURCES][FM_DRAFTS_MAX];
    uint64_t n_drafts_accepted_by[FM_DRAFT_SOURCES][FM_DRAFTS_MAX];
    /* What was decided: in how many passes a session had so many drafts. Where it may have some. */
    uint64_t n_draft_passes[1 + FM_DRAFTS_MAX];
    unsigned n_disks; /* that experts are read from; 0: only one */
    bool is_mirrored; /* each has all experts; else they are split */
    struct fm_disk_stats disks[FM_DISKS_MAX];
    uint64_t n_layers_read; /* layers of evaluations with misses */
};
/* Returns "mtp", "lookup", "grammar" or "given"; NULL for another number. */
FM_API const char *fm_draft_source_name(unsigned source);
FM_API int fm_model_stats(const struct fm_model *model, struct fm_stats *stats);

/* Changes the budget between evaluations or from a callback. The cache has shrunk on return. Values
 * above memory_max_bytes mean that maximum. FM_ERR_BUDGET: too small, nothing changed. */
FM_API int fm_model_set_memory(struct fm_model *model, uint64_t bytes, struct fm_error *err);

/* The same for the budget of the GPU's memory. FM_ERR_ARG: the model uses no GPU. */
FM_API int fm_model_set_gpu_memory(struct fm_model *model, uint64_t bytes, struct fm_error *err);

/* ---- text ------------------------------------------------------------------------------ */

enum {
    FM_TEXT_PLAIN = 0,        /* special tokens in the text are ordinary characters */
    FM_TEXT_WITH_SPECIAL = 1, /* "<|im_end|>" and the like become their token */
    /* Begins with the tokens that the model expects before a text that is not a conversation, such
     * as <s>, unless the text itself begins with them. Many models have none. */
    FM_TEXT_WITH_PREFIX = 2
};

/* Allocates the token ids of `text`. `flags` is a combination of the above, else FM_ERR_ARG. */
FM_API int fm_tokenize(const struct fm_model *model, const char *text, size_t text_bytes,
                       int flags, int32_t **ids, size_t *n_ids, struct fm_error *err);

struct fm_chat_options {
    size_t size;
    int64_t now_s;        /* seconds since 1970, for templates that write the date */
    int32_t now_offset_s; /* local time minus UTC */
    /* Refuses a conversation that must have more tokens before it is tokenized: FM_ERR_ARG, and
     * *n_ids is a lower bound of its tokens. 0: no limit. */
    size_t max_tokens;
};
/* Renders a conversation with the model's chat template, or ChatML where it has none. The
 * conversation is JSON text: an array of messages, or an object with "messages", "tools",
 * "documents", "add_generation_prompt" (default true) and other variables of the template, such as
 * "enable_thinking". With "continue_final_message" the text ends inside the last message, which is
 * the assistant's, for an answer that continues it (is_continued). `options` may be NULL. Allocates
 * the text, which is NUL-terminated. FM_ERR_ARG for no conversation, one that cannot be continued,
 * or if the template refuses it. FM_ERR_UNSUPPORTED: no chat form. */
FM_API int fm_chat_render(const struct fm_model *model, const char *conversation, size_t bytes,
                          const struct fm_chat_options *options, char **text, size_t *text_bytes,
                          struct fm_error *err);
/* Allocates the token ids of a conversation. Special tokens inside messages are ordinary
 * characters, so a message cannot end its turn. Only the assistant's messages may contain tokens
 * such as <think> and <tool_call>, so that its earlier answers keep their ids. */
FM_API int fm_chat_tokenize(const struct fm_model *model, const char *conversation, size_t bytes,
                            const struct fm_chat_options *options, int32_t **ids, size_t *n_ids,
                            struct fm_error *err);
/* Does the same for one message of the user after a system message, which may be NULL. */
FM_API int fm_chat_tokenize_turn(const struct fm_model *model, const char *system,
                                 const char *user, size_t user_bytes,
                                 const struct fm_chat_options *options, int32_t **ids,
                                 size_t *n_ids, struct fm_error *err);

FM_API bool fm_token_is_special(const struct fm_model *model, int32_t id); /* has no text */
FM_API bool fm_token_is_stop(const struct fm_model *model, int32_t id);    /* ends an answer */
/* Returns the bytes of a token, special ones included, or NULL for an id without a token. They are
 * not NUL-terminated and may be part of a character. */
FM_API const char *fm_token_text(const struct fm_model *model, int32_t id, size_t *text_bytes);

/* ---- session --------------------------------------------------------------------------- */

struct fm_session;

FM_API int fm_session_open(struct fm_model *model, struct fm_session **out, struct fm_error *err);
FM_API void fm_session_close(struct fm_session *session); /* accepts NULL */

/* Goes back to position 0 with empty state. */
FM_API void fm_session_reset(struct fm_session *session);
FM_API unsigned fm_session_position(const struct fm_session *session);

/* Keeps the longest computed prefix of `ids`, all tokens from position 0 on, and returns its
 * length: evaluate `ids` from there. The last token is never kept, because its logits are wanted.
 * A model with recurrent layers returns to one of n_marks positions: the end of a prompt, up to 64
 * tokens before it, and ever further apart. The state is bit for bit that of computing the prefix.
 * Logits and hash start again. */
FM_API unsigned fm_session_rewind(struct fm_session *session, const int32_t *ids, size_t n_ids);

/* Appends tokens and computes them. FM_ERR_BUDGET: no memory for their KV; nothing changed. After
 * another failure the session is where it was; with recurrent layers it may be at an earlier mark
 * or at 0. fm_session_position tells; evaluate the tokens from there again. Logits and hash are
 * dropped with the tokens. */
FM_API int fm_session_eval(struct fm_session *session, const int32_t *ids, size_t n_ids,
                           struct fm_error *err);

struct fm_batch_item {
    struct fm_session *session; /* at most once in a batch */
    const int32_t *ids;
    size_t n_ids;
    int rc; /* set by the call: 0, or why not all of these tokens were computed */
};
/* Evaluates several sessions of one model in one pass. A fault ends only the sessions it concerns;
 * the others keep their bits. An item's rc is FM_ERR_CANCELLED: the session was cancelled;
 * FM_ERR_BUDGET or FM_ERR_NOMEM: no memory for its tokens; FM_ERR_IO or FM_ERR_FORMAT: an expert
 * that it needs cannot be read or is damaged; FM_ERR_FORMAT: a value is NaN or infinite. Returns
 * the first rc that is not 0; FM_ERR_CANCELLED only when there is no other. FM_ERR_ARG: wrong
 * arguments, nothing was computed. */
FM_API int fm_eval_batch(struct fm_model *model, struct fm_batch_item *items, size_t n_items,
                         struct fm_error *err);

/* The same in two parts. When other ranks have layers of the model, fm_eval_begin returns as soon
 * as they have the tokens, and other evaluations can begin meanwhile, of other sessions.
 * Otherwise it computes them itself. `items` and their ids stay where they are, and their
 * sessions are left alone but for fm_session_cancel, until fm_eval_end; what items[].rc is until
 * then means nothing. Observers of the sessions may be called by any function on the model. Begin
 * returns 0 or FM_ERR_ARG, and then nothing has begun; end waits and returns what fm_eval_batch
 * does. Every evaluation has to be ended, before its sessions and the model are closed. */
struct fm_evaluation;
FM_API int fm_eval_begin(struct fm_model *model, struct fm_batch_item *items, size_t n_items,
                         struct fm_evaluation **out, struct fm_error *err);
FM_API int fm_eval_end(struct fm_evaluation *evaluation, struct fm_error *err);
/* Returns how many evaluations should be under way at a time, so that all ranks have work: 1 if
 * this process has all layers. */
FM_API unsigned fm_model_evaluations(const struct fm_model *model);

/* Returns whether evaluating this token next takes no pass, because it was computed as a draft.
 * Whoever batches sessions evaluates such tokens first, so that they do not wait for the pass of
 * the others. */
FM_API bool fm_session_has_computed(const struct fm_session *session, int32_t id);

struct fm_failure {
    int code;          /* as fm_batch_item.rc; 0: no failure */
    int layer, expert; /* the weights at fault; -1: none in particular */
    char text[FM_ERROR_BYTES];    /* as fm_error.text; may name files */
    char summary[FM_ERROR_BYTES]; /* the same without paths, for remote users */
};
/* Returns why the last evaluation failed, unless with FM_ERR_ARG; valid until the next one. */
FM_API const struct fm_failure *fm_session_failure(const struct fm_session *session);

/* Returns the logits after the last token: [vocabulary] floats, valid until the next evaluation. */
FM_API const float *fm_session_logits(const struct fm_session *session);
/* Writes the hexadecimal XXH3-128 of all logits since the session was opened, reset or rewound. */
FM_API void fm_session_logits_hash(const struct fm_session *session, char hex[33]);

/* Makes the current evaluation, or the next one, fail with FM_ERR_CANCELLED before its next layer
 * or expert read. Any thread and any signal handler may call it. fm_session_reset clears it, and so
 * does fm_session_rewind when it drops tokens. */
FM_API void fm_session_cancel(struct fm_session *session);

/* ---- snapshots ------------------------------------------------------------------------- */

/* Save and load a session's state in a file, bit for bit. The file is written aside, then renamed.
 * Loading needs the same model, approximations and KV format; a failure leaves the session empty.
 * With fm_model_options.routes nothing is saved. */
FM_API int fm_session_save(const struct fm_session *session, const char *path,
                           struct fm_error *err);
FM_API int fm_session_load(struct fm_session *session, const char *path, struct fm_error *err);

/* A directory of snapshots, limited to max_bytes over all models: the least recently used are
 * removed first. Damaged and foreign files are skipped and logged. One process writes; others see
 * what was there when they opened it. */
struct fm_snapshots;
FM_API int fm_snapshots_open(struct fm_model *model, const char *dir, uint64_t max_bytes,
                             struct fm_snapshots **out, struct fm_error *err);
FM_API void fm_snapshots_close(struct fm_snapshots *snapshots); /* accepts NULL */
/* Saves the session unless it is saved already or does not fit. */
FM_API int fm_snapshots_keep(struct fm_snapshots *snapshots, const struct fm_session *session,
                             struct fm_error *err);
/* Brings the session to the longest prefix of `ids` that it or a snapshot has, and returns its
 * length, as fm_session_rewind does. */
FM_API unsigned fm_snapshots_restore(struct fm_snapshots *snapshots, struct fm_session *session,
                                     const int32_t *ids, size_t n_ids);

struct fm_snapshots_stats {
    size_t size;
    uint64_t n_files, bytes;        /* snapshots of this model; bytes of the whole directory */
    uint64_t n_written, n_restored; /* since it was opened */
};
FM_API int fm_snapshots_stats(const struct fm_snapshots *snapshots,
                              struct fm_snapshots_stats *stats);

/* ---- sampling -------------------------------------------------------------------------- */

struct fm_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -INFINITY forbids the token */
};

/* Applied in the order of transformers: bias and penalties, also at temperature 0; temperature;
 * then top-k, top-p, min-p and typical-p, each on what the one before has kept. */
struct fm_sampling {
    size_t size;
    float temperature; /* 0: the most likely token */
    unsigned top_k;    /* 0: off */
    float top_p;       /* 1: off; 0: the most likely token alone */
    float min_p;       /* 0: off */
    uint64_t seed;
    float typical_p;          /* probability kept, nearest to the mean surprise; 0 and 1: off */
    float repetition_penalty; /* on tokens of prompt and answer: divides logits above 0, multiplies
                               * others; 0 and 1: off */
    /* On tokens of the answer: subtracted once; subtracted once per occurrence. 0: off. */
    float presence_penalty, frequency_penalty;
    unsigned penalty_window; /* last tokens that the three penalties see; 0: all */
    const struct fm_logit_bias *logit_bias; /* [n_logit_bias] */
    unsigned n_logit_bias;
};

/* Gives what generation_config.json recommends, or greedy sampling. */
FM_API int fm_sampling_default(const struct fm_model *model, struct fm_sampling *sampling);

/* Holds one answer to JSON that fits a schema. docs/SCHEMA.md lists the supported keywords. */
struct fm_grammar;
/* `schema` is JSON text; NULL: any object. The first grammar of a model takes longer: it scans the
 * vocabulary. FM_ERR_ARG: the schema cannot be enforced, is invalid or allows nothing; the error
 * names keyword and place. FM_ERR_UNSUPPORTED: the model has no tokenizer, no stop token, or a byte
 * without a token. */
FM_API int fm_grammar_open_json(const struct fm_model *model, const char *schema,
                                size_t schema_bytes, struct fm_grammar **out,
                                struct fm_error *err);
/* Holds an answer to a grammar in GBNF, the notation of llama.cpp (docs/SCHEMA.md). Fails likewise;
 * the error names the line. */
FM_API int fm_grammar_open_gbnf(const struct fm_model *model, const char *text, size_t bytes,
                                struct fm_grammar **out, struct fm_error *err);
FM_API void fm_grammar_close(struct fm_grammar *grammar); /* accepts NULL */

/* ---- answers --------------------------------------------------------------------------- */

/* One answer in progress: samples tokens from a session's logits, decodes text, finds stop strings,
 * follows a grammar, separates reasoning and tool calls, and reports events. The caller evaluates
 * each token, alone or in a batch, before the next step. docs/API.md has the loop. */
struct fm_answer;

enum fm_event_kind {
    FM_EVENT_TOKEN,          /* id and logprobs; before the token's text */
    FM_EVENT_TEXT,           /* text */
    FM_EVENT_REASONING,      /* text */
    FM_EVENT_CALL_STARTED,   /* call, call_id, name */
    FM_EVENT_CALL_ARGUMENTS, /* the same, and text: a piece of the arguments, a JSON object */
    FM_EVENT_CALL_ENDED,     /* the same, is_broken, and text: the call as the model wrote it */
    FM_EVENT_FINISHED,       /* end, stop, n_calls; the last event */
};

/* Why an answer ended. */
enum fm_end {
    FM_END_TOKEN,     /* a stop token */
    FM_END_STRING,    /* a stop string, which is not part of the text */
    FM_END_CALL,      /* the first call is whole (is_one_call) */
    FM_END_GRAMMAR,   /* nothing can follow in the grammar (ends_with_grammar) */
    FM_END_LENGTH,    /* max_tokens */
    FM_END_CONTEXT,   /* the session's context is full */
    FM_END_CANCELLED, /* the caller finished it before any of these */
};

struct fm_logprob {
    int32_t id;
    float logprob; /* natural; of the model's distribution, before bias, penalties and filters */
};

/* Pointers are valid during the call only. Text is not NUL-terminated, has any length, and never
 * ends inside a UTF-8 character. */
struct fm_answer_event {
    enum fm_event_kind kind;
    const char *text;
    size_t text_bytes;
    int32_t id;
    const struct fm_logprob *logprobs; /* the token's own, then the most likely, best first */
    unsigned n_logprobs;               /* 0 without wants_logprobs */
    unsigned call; /* number of the call, from 0 */
    const char *call_id, *name;
    bool is_broken; /* the arguments are incomplete: do not make the call */
    enum fm_end end;
    unsigned stop;    /* FM_END_STRING: number of the stop string */
    unsigned n_calls; /* whole calls in the answer */
};
/* Returns 0, or a negative code that ends the answer, with the reason in `err` if not NULL. */
typedef int fm_answer_fn(void *ctx, const struct fm_answer_event *event, struct fm_error *err);

#define FM_TOP_LOGPROBS_MAX 20

/* `grammar`, `tail` and `stop_tokens` are borrowed until the answer is closed. */
struct fm_answer_options {
    size_t size;
    fm_answer_fn *event;
    void *ctx;
    const struct fm_sampling *sampling; /* NULL: fm_sampling_default */
    const int32_t *prompt;              /* [n_prompt], for penalties */
    size_t n_prompt;
    uint64_t max_tokens; /* including the stop token; 0: until the context is full */
    const char *const *stops;
    unsigned n_stops;
    struct fm_grammar *grammar; /* for the text after reasoning; it is reset. NULL: none */
    bool ends_with_grammar;     /* do not wait for the stop token when only that can follow */
    bool wants_logprobs;
    unsigned n_top_logprobs; /* at most FM_TOP_LOGPROBS_MAX */
    /* Separates reasoning and calls from text; the fields below need it. Special tokens that no
     * parser looks for stay text. */
    bool is_chat;
    bool is_reasoning; /* the prompt ends inside reasoning (fm_prompt_opens_reasoning) */
    /* Tools that may be called: a JSON array as in a conversation's "tools". NULL: no calls. */
    const char *tools;
    size_t tools_bytes;
    bool is_one_call;   /* end after the first whole call */
    bool hold_calls;    /* report a call when it is whole; a broken one is text */
    uint64_t call_seed; /* determines the ids of calls */
    /* For a call that must come: `lead` is the end of the prompt, which opens the call, and `tail`
     * closes it. There is no text, so stop strings do not apply. NULL: the model chooses. */
    const char *lead, *tail;
    /* The prompt ends inside the answer, or with is_reasoning inside its reasoning: what the model
     * writes continues that text. */
    bool is_continued;
    /* Further tokens that end the answer; their text is not part of it. */
    const int32_t *stop_tokens;
    unsigned n_stop_tokens;
};
FM_API int fm_answer_open(const struct fm_model *model, const struct fm_answer_options *options,
                          struct fm_answer **out, struct fm_error *err);
FM_API void fm_answer_close(struct fm_answer *answer); /* accepts NULL */

/* Chooses the next token and reports it and the text it completes. *id is the token to evaluate
 * before the next step, or -1: the answer is over, finish it. FM_ERR_ARG: logit_bias forbids every
 * token, the session has no logits, or the answer is over. After a failure, finish or close it. */
FM_API int fm_answer_step(struct fm_answer *answer, const struct fm_session *session, int32_t *id,
                          struct fm_error *err);
/* Reports held-back text, then FM_EVENT_FINISHED. Call it once, at any time; early, it cancels. */
FM_API int fm_answer_finish(struct fm_answer *answer, struct fm_error *err);

/* Return the tokens chosen so far, with the stop token; and how many of them are reasoning. */
FM_API uint64_t fm_answer_n_tokens(const struct fm_answer *answer);
FM_API uint64_t fm_answer_n_reasoning_tokens(const struct fm_answer *answer);

/* Returns whether a prompt ends with the marker that opens reasoning, as some templates do. */
FM_API bool fm_prompt_opens_reasoning(const struct fm_model *model, const int32_t *ids,
                                      size_t n_ids);

/* ---- a model on several machines -------------------------------------------------------- */

/* Ranks: processes that mpirun has started, or threads of this process. Each opens the model from
 * its own files and has some of its layers; rank 0 has the sessions too. The bits are the same as
 * on one machine. Ranks trust each other and everyone who reaches their ports. */
struct fm_cluster;

struct fm_cluster_options {
    size_t size;
    unsigned n_threads; /* ranks that are threads, for tests; 0: the processes of mpirun */
    /* Words that must be the same on all ranks, such as the options of a program; NULL: none. */
    const char *words;
    unsigned timeout_s; /* a rank that is silent for so long is lost; 0: 8 */
};
/* Joins the other ranks. FM_ERR_UNSUPPORTED: Open MPI is not there. FM_ERR_ARG: a rank has another
 * version or other words. One thread at a time uses a cluster and its models. */
FM_API int fm_cluster_join(const struct fm_cluster_options *options, struct fm_cluster **out,
                           struct fm_error *err);
FM_API unsigned fm_cluster_rank(const struct fm_cluster *cluster);
FM_API unsigned fm_cluster_n_ranks(const struct fm_cluster *cluster);
/* Works for rank 0: opens each model that it opens, from `path`, until rank 0 closes the cluster.
 * The options say how this rank uses its machine (memory, threads, reads, heat); rank 0 says the
 * rest. Fails if rank 0 is gone. */
FM_API int fm_cluster_work(struct fm_cluster *cluster, const char *path,
                           const struct fm_model_options *options, struct fm_error *err);
/* For the signal handlers of all ranks, which mpirun tells to end when one of them has died. The
 * evaluation of rank 0 that runs, or the next one, finds out which rank that is and fails with its
 * name. With `ends` it fails also if none has died. */
FM_API void fm_cluster_alarm(struct fm_cluster *cluster, bool ends);
/* Rank 0 lets the others go. After its models. */
FM_API void fm_cluster_close(struct fm_cluster *cluster); /* accepts NULL */

struct fm_rank_stats {
    size_t size;
    const char *host;
    char cpu_level[16];
    unsigned first_layer, n_layers, n_threads;
    uint64_t memory_budget_bytes, memory_cache_bytes, memory_resident_peak_bytes;
    uint64_t n_cache_slots, n_expert_hits, n_expert_misses, bytes_read, read_wait_ns;
    uint64_t busy_ns;  /* computing, with waits for the disk */
    uint64_t bytes_sent, n_messages; /* to the next rank */
    /* Of rank 0: time in which passes were with the other ranks; and of passes that were there one
     * at a time, the time in which none was busy with them: the network's. How many those were. */
    uint64_t away_ns, network_ns, n_lone_passes;
};
/* Gives what is known of a rank. False past the last; a model without a cluster has none. */
FM_API bool fm_model_rank(const struct fm_model *model, unsigned rank,
                          struct fm_rank_stats *stats);
/* Returns why the model cannot be used any more, since it has lost a rank; NULL: it can. */
FM_API const char *fm_model_lost(const struct fm_model *model);

#ifdef __cplusplus
}
#endif
#endif
