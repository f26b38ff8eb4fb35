/* Flash-MoE's instruments, for tools that measure, prepare and test: the inside of a model, the
 * pieces of an answer, the machine, routing, packing, verifying, synthetic models. A program that
 * runs a model needs flashmoe.h alone. The rules at the top of flashmoe.h hold here too. */
#ifndef FLASHMOE_LAB_H
#define FLASHMOE_LAB_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- inside a model -------------------------------------------------------------------- */

struct fm_number_format {
    size_t size;
    const char *name;
    double bits_per_weight;
    bool can_be_made; /* weights can be converted to it */
};
/* Gives the i-th number format that this version reads, sorted by name; false past the end. */
FM_API bool fm_number_format(unsigned i, struct fm_number_format *format);

struct fm_format_info {
    size_t size;
    const char *name; /* "bf16", "affine4-g64", ... */
    bool is_expert;
    uint64_t n_tensors, n_bytes;
};
/* Gives the i-th number format of a model, experts and dense weights apart; false past the end. */
FM_API bool fm_model_format(const struct fm_model *model, unsigned i, struct fm_format_info *info);

struct fm_plan {
    size_t size;
    uint64_t memory_budget_bytes, memory_program_bytes, memory_dense_bytes, memory_cache_bytes,
        memory_kv_bytes, memory_kv_max_bytes, memory_scratch_bytes; /* as in fm_stats */
    uint64_t n_cache_slots;
    unsigned prefill_chunk, n_context, n_threads;
    uint64_t min_bytes; /* the smallest budget that works */
    /* The GPU that the options choose, as in fm_stats; empty and 0: the processor alone. The budget
     * above is then that of the host's memory beside it, and n_cache_slots counts both. */
    char gpu[128];
    uint64_t gpu_budget_bytes, gpu_dense_bytes, gpu_cache_bytes, gpu_kv_bytes, gpu_kv_max_bytes,
        gpu_scratch_bytes;
    uint64_t n_gpu_slots;
};
/* Gives the division of a budget without allocating it. The model may be open for its metadata
 * only; its KV format is the one it was opened with. FM_ERR_BUDGET: it does not fit; the error has
 * the arithmetic, and only min_bytes is set. */
FM_API int fm_model_plan(const struct fm_model *model, const struct fm_model_options *options,
                         struct fm_plan *plan, struct fm_error *err);

/* Gives the recall of lookahead in the i-th layer with experts, 0 to 1; negative: nothing was
 * predicted yet. False past the end. */
FM_API bool fm_model_recall(const struct fm_model *model, unsigned i, double *recall);

/* Gives which experts of the i-th layer with experts are resident, and the heat of each, from 0
 * (not used lately) to 255 (used by every token). Each array has n_experts elements; either may be
 * NULL. False past the end. Call it between evaluations or from fm_observer.progress; on several
 * ranks, with other evaluations under way, only between them: it is false otherwise. */
FM_API bool fm_model_experts(const struct fm_model *model, unsigned i, bool *resident,
                             uint8_t *heat);
/* The place of an expert. */
enum { FM_PLACE_DISK, FM_PLACE_MEMORY, FM_PLACE_GPU };
/* Gives the place of each expert of the i-th layer with experts: FM_PLACE_*. As fm_model_experts,
 * whose resident ones are all that are not FM_PLACE_DISK. */
FM_API bool fm_model_places(const struct fm_model *model, unsigned i, uint8_t *places);

/* Returns the hit rate, 0 to 1, that a cache of cache_bytes would have had on the tokens decoded so
 * far; negative before the first. With FM_POLICY_LRU it is exact but for the smallest caches, with
 * FM_POLICY_LCP right within about 5 points. *n_slots is the number of experts that such a cache
 * holds, from one token's to all; 0 for a model without a cache. */
FM_API double fm_model_hit_rate(const struct fm_model *model, uint64_t cache_bytes,
                                unsigned *n_slots);

/* Time of one evaluation in one layer. The layer after the last is the head, which has only
 * compute_ns. The times add up to nearly the whole evaluation; read_ns overlaps them. */
struct fm_layer_profile {
    unsigned layer;
    unsigned position, n_tokens; /* first position of the session; tokens of all sessions */
    uint64_t mix_ns;     /* attention or another mixer */
    uint64_t route_ns;   /* choosing experts, starting reads, lookahead */
    uint64_t wait_ns;    /* waiting for experts */
    uint64_t compute_ns; /* experts, or the dense block */
    uint64_t read_ns;    /* from the start of the reads until the last missing expert is used */
    uint64_t n_hits, n_misses, bytes_read; /* bytes_read includes prefetches that arrived */
};

/* Watches the computation. With `logits` set, the logits of every position are computed, not only
 * of the last one. Layer 0 is the embedding, layer i the residual stream after layer i-1, and the
 * layer after the last is the final norm's output, given where logits are computed. A model with
 * several residual streams gives all of them in a row: `n` is their number times the width. */
struct fm_observer {
    size_t size;
    void *ctx;
    void (*hidden)(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n);
    void (*logits)(void *ctx, unsigned position, const float *logits, unsigned n);
    /* The chosen experts, ascending, and their weights; before they compute. */
    void (*route)(void *ctx, unsigned layer, unsigned position, unsigned n, const uint32_t *ids,
                  const float *weights);
    fm_progress_fn *progress; /* before every layer; counts tokens times layers */
    void (*profile)(void *ctx, const struct fm_layer_profile *layer); /* after every layer */
};
FM_API int fm_session_observe(struct fm_session *session, const struct fm_observer *observer);

/* Returns the tokens so far, one per position; valid until the next evaluation. */
FM_API const int32_t *fm_session_ids(const struct fm_session *session);
/* Returns the position that fm_session_rewind would go to. */
FM_API unsigned fm_session_nearest(const struct fm_session *session, const int32_t *ids,
                                   size_t n_ids);

/* Moves on to n_positions without computing, to measure what tokens cost in a long context. Tokens,
 * keys and values of the whole blocks (fm_model_info.kv_block_positions) that the session has
 * follow each other again and again; recurrent state stays as it is. So the answer means nothing.
 * FM_ERR_ARG: the session has no whole block, or is further. */
FM_API int fm_session_repeat(struct fm_session *session, unsigned n_positions,
                             struct fm_error *err);

/* Drafts (fm_model_options.n_drafts) of a session that is measured. */
struct fm_draft_control {
    size_t size;
    bool is_off; /* none for now, and nothing is kept for later ones */
    void *ctx;
    /* The only source of drafts; NULL: the usual ones. Whoever measures knows the tokens that it
     * will give the session: it writes up to `max` drafts of what follows the token at `position`,
     * and returns how many. Sets *n_right: so many of them it will give next. With replaced routes,
     * the drafts behind these use experts of another token. One session of a model at a time. */
    unsigned (*draft)(void *ctx, unsigned position, int32_t *drafts, unsigned max,
                      unsigned *n_right);
};
FM_API int fm_session_control_drafts(struct fm_session *session,
                                     const struct fm_draft_control *control);

/* What drafts of one session came to since it was opened; the fields are those of fm_stats. */
struct fm_draft_counts {
    size_t size;
    uint64_t n_drafted_by[FM_DRAFT_SOURCES][FM_DRAFTS_MAX];
    uint64_t n_drafts_accepted_by[FM_DRAFT_SOURCES][FM_DRAFTS_MAX];
    uint64_t n_draft_passes[1 + FM_DRAFTS_MAX];
};
FM_API int fm_session_draft_counts(const struct fm_session *session,
                                   struct fm_draft_counts *counts);

/* ---- pieces of an answer --------------------------------------------------------------- */

/* What fm_answer is made of, for tools that choose tokens themselves. */

/* Turns ids into text without splitting UTF-8 characters. */
struct fm_decoder;
FM_API int fm_decoder_open(const struct fm_model *model, struct fm_decoder **out,
                           struct fm_error *err);
FM_API void fm_decoder_close(struct fm_decoder *decoder); /* accepts NULL */
/* Gives the text that `id` completes, which may be empty; valid until the next call. */
FM_API int fm_decoder_push(struct fm_decoder *decoder, int32_t id, const char **text,
                           size_t *text_bytes, struct fm_error *err);
/* Gives the rest; an incomplete character becomes U+FFFD. */
FM_API void fm_decoder_finish(struct fm_decoder *decoder, const char **text, size_t *text_bytes);

/* Chooses tokens. The same seed, logits and accepted tokens give the same token on any machine. */
struct fm_sampler;
FM_API int fm_sampler_open(const struct fm_model *model, const struct fm_sampling *sampling,
                           struct fm_sampler **out, struct fm_error *err);
FM_API void fm_sampler_close(struct fm_sampler *sampler); /* accepts NULL */
/* Returns a token id, never one with a logit of -INFINITY and never a padding row of the
 * vocabulary. FM_ERR_FORMAT: a logit is NaN or INFINITY, or no token is left to choose. */
FM_API int32_t fm_sampler_pick(struct fm_sampler *sampler, const float *logits);
/* Gives what fm_sampler_pick would draw from, best first, without drawing. `ids` and
 * `probabilities` have `vocabulary` elements. Returns the count, or FM_ERR_FORMAT as above. */
FM_API int fm_sampler_distribution(struct fm_sampler *sampler, const float *logits, int32_t *ids,
                                   float *probabilities);
/* Tell penalties and grammar the prompt, then each token of the answer. Unknown ids are ignored. */
FM_API void fm_sampler_accept_prompt(struct fm_sampler *sampler, const int32_t *ids, size_t n_ids);
FM_API void fm_sampler_accept(struct fm_sampler *sampler, int32_t id);
/* Makes the sampler pick only what the grammar allows, and pass accepted tokens on to it; NULL ends
 * that. Call it after the reasoning. The grammar must outlive the sampler. */
FM_API void fm_sampler_constrain(struct fm_sampler *sampler, struct fm_grammar *grammar);

/* Starts a new answer; faster than opening another grammar. */
FM_API void fm_grammar_reset(struct fm_grammar *grammar);
/* For callers without a sampler: sets the logits of forbidden tokens to -INFINITY, and takes the
 * token that was chosen. At least one token is always allowed. FM_ERR_ARG: the token is forbidden;
 * nothing changed. */
FM_API void fm_grammar_mask(struct fm_grammar *grammar, float *logits);
FM_API int fm_grammar_accept(struct fm_grammar *grammar, int32_t id, struct fm_error *err);
/* Returns whether the answer is whole and only a stop token can follow. */
FM_API bool fm_grammar_must_end(const struct fm_grammar *grammar);

/* Gives log probabilities of the model's distribution, padding rows included, before bias,
 * penalties, temperature and filters. Fills `chosen` in for its id, and `top` with the n_top most
 * likely tokens, best first, the lower id first among equals. Returns the length of `top`.
 * FM_ERR_ARG: unknown id. FM_ERR_FORMAT: a logit is NaN or INFINITY, or all are -INFINITY. */
FM_API int fm_logprobs(const struct fm_model *model, const float *logits,
                       struct fm_logprob *chosen, struct fm_logprob *top, unsigned n_top);

/* ---- machine --------------------------------------------------------------------------- */

struct fm_machine_info {
    size_t size;
    const char *architecture;       /* "x86-64", "aarch64" */
    char processor[128];            /* name; empty: unknown */
    unsigned n_cpus;                /* processors that this process may run on */
    unsigned n_cpus_of_machine;
    unsigned n_cores;               /* default of fm_model_options.n_threads */
    double cpu_quota;               /* processors that the cgroup grants; 0: no limit */
    uint64_t cache_bytes;           /* sum of the last-level caches; 0: unknown */
    uint64_t memory_bytes;          /* 0: unknown */
    uint64_t memory_available_bytes;
    char huge_pages[16];            /* "always", "madvise", "never"; empty: unknown */
};
FM_API int fm_machine_info(struct fm_machine_info *info);

/* Checks a budget against the memory cgroup of this process. FM_ERR_BUDGET with the arithmetic:
 * fm_model_open would fail with the same error. */
FM_API int fm_machine_check_memory(uint64_t bytes, struct fm_error *err);

struct fm_level_info {
    size_t size;
    const char *name;  /* "reference", "avx2", ... */
    const char *needs; /* instructions that it uses */
    bool is_usable;    /* on this machine */
    bool is_default;
};
/* Gives the i-th kernel level of this architecture, lowest first; false past the end. All levels
 * give the same bits. */
FM_API bool fm_machine_level(unsigned i, struct fm_level_info *info);
/* Checks that a level is usable here; NULL, the best one, always is. FM_ERR_ARG: no level has that
 * name; the error lists them. FM_ERR_UNSUPPORTED: this machine cannot run it. */
FM_API int fm_machine_check_level(const char *name, struct fm_error *err);

enum {
    FM_MEASURE_READ = 1,      /* memory bandwidth */
    FM_MEASURE_INT8 = 2,      /* int8 multiplication */
    FM_MEASURE_ONE_THREAD = 4, /* the chosen ones with one thread too */
    FM_MEASURE_FMA = 8         /* multiply-adds of floats */
};

struct fm_machine_options {
    size_t size;
    unsigned what;      /* sum of FM_MEASURE_*; 0: all but FM_MEASURE_FMA */
    unsigned n_threads; /* n_threads, pin_threads and cpu as in fm_model_options */
    bool pin_threads;
    const char *cpu;
    bool quick;               /* fewer passes over less memory */
    fm_progress_fn *progress; /* counts passes */
    void *progress_ctx;
};

/* Rates per second over all passes. All 0: not measured. Never grows. */
struct fm_speed {
    double median, min, max;
};

struct fm_machine_speeds {
    size_t size;
    unsigned n_threads;
    const char *cpu_level;
    uint64_t read_buffer_bytes;
    struct fm_speed read, read_one; /* bytes: all threads together; one thread */
    struct fm_speed int8, int8_one; /* operations; a multiply-add counts as two */
    struct fm_speed fma, fma_one;   /* likewise */
};
/* Measures now, with memory and threads of its own. `options` may be NULL. */
FM_API int fm_machine_measure(const struct fm_machine_options *options,
                              struct fm_machine_speeds *speeds, struct fm_error *err);

struct fm_gpu_info {
    size_t size;
    char name[128];
    uint64_t memory_bytes, memory_free_bytes; /* free now */
};
/* Opens the i-th GPU, as fm_model_options.gpu numbers them, and describes it. FM_ERR_ARG: there is
 * none. FM_ERR_UNSUPPORTED: it cannot be used. The error says why. */
FM_API int fm_gpu_info(unsigned i, struct fm_gpu_info *info, struct fm_error *err);

struct fm_gpu_speeds {
    size_t size;
    struct fm_speed memory; /* bytes read and written in its memory, by copies within it */
    struct fm_speed send;   /* bytes copied from the host's memory to its own */
};
/* Measures the i-th GPU now, with memory of its own. Errors as in fm_gpu_info. */
FM_API int fm_gpu_measure(unsigned i, bool quick, struct fm_gpu_speeds *speeds,
                          struct fm_error *err);

/* One of several disks that a model lies on. */
struct fm_disk_speed {
    char folder[1024];
    struct fm_speed read; /* bytes, of this disk alone */
    bool is_lost;         /* a mirror that is missing or has another model */
};

struct fm_disk_speeds {
    size_t size;
    struct fm_speed read;       /* bytes; of all disks together */
    uint64_t expert_bytes;      /* the largest expert */
    unsigned read_depth;        /* for each disk */
    const char *io, *reader;    /* in use */
    unsigned n_disks;           /* 0: there is only one */
    bool is_mirrored;           /* each has all experts; else they are split */
    struct fm_disk_speed disks[FM_DISKS_MAX];
    struct fm_speed one, two;   /* like read, if nothing is asked for beside one expert, or two */
};
/* Measures random reads of whole experts of a model. Of `options`, only io, io_path, reader and
 * read_depth are used. */
FM_API int fm_disk_measure(const char *model_path, const struct fm_model_options *options,
                           bool quick, struct fm_disk_speeds *speeds, struct fm_error *err);

struct fm_io_speeds {
    size_t size;
    double direct, page; /* bytes per second; 0: not measured, unsupported or slow */
    enum fm_io io;       /* the choice: FM_IO_PAGE only if it is clearly faster */
};
/* Measures whether experts are read faster past the page cache or through it, which FM_IO_AUTO goes
 * by. Writes the result to io_path if that is set. */
FM_API int fm_io_measure(const char *model_path, const struct fm_model_options *options,
                         struct fm_io_speeds *speeds, struct fm_error *err);

/* ---- several machines ------------------------------------------------------------------ */

/* What one layer of a model takes, for dividing the layers among machines. */
struct fm_layer_info {
    size_t size;
    uint64_t dense_bytes;        /* resident; layer 0 has the embedding */
    uint64_t dense_token_bytes;  /* of them read per token */
    uint64_t experts_bytes, expert_token_bytes; /* as in fm_model_info; 0: no routed experts */
    uint64_t kv_position_bytes, state_bytes;
    uint64_t mul_adds_per_token; /* of matrices and chosen experts */
    /* Of layer 0, the head beside it, which the first rank has, too; otherwise 0. */
    uint64_t head_bytes, head_token_bytes, mul_adds_per_head;
};
/* Gives the i-th layer of a model, which may be open for its metadata only. Opens its files again.
 * FM_ERR_ARG: there is no such layer. */
FM_API int fm_model_layer(const struct fm_model *model, unsigned i, struct fm_layer_info *info,
                          struct fm_error *err);
/* Returns the bytes that go from rank to rank for a pass of n_rows tokens of n_sequences. */
FM_API uint64_t fm_model_message_bytes(const struct fm_model *model, unsigned n_sequences,
                                       unsigned n_rows);

#define FM_PROBE_BYTES 2048
/* Measures this machine and writes what it found to text, which goes to rank 0. */
typedef int fm_probe_fn(void *ctx, char *text, size_t bytes, struct fm_error *err);
struct fm_probe {
    size_t size;
    const char *host;
    char text[FM_PROBE_BYTES];
    /* From this rank to the next one: seconds of a short message and of one of message_bytes, and
     * bytes per second of a long one. 0: not measured. */
    double latency_s, message_s, bytes_per_s;
};
/* All ranks of a cluster call this, before a model is open. Each calls `measure`, ranks of one host
 * one after the other; then neighbours measure the way between them. `probes` of rank 0 has one
 * for each rank, all of the same size; the others pass NULL. FM_ERR_ARG and others: what a rank's
 * `measure` returned, with its rank and host. */
FM_API int fm_cluster_probe(struct fm_cluster *cluster, fm_probe_fn *measure, void *ctx,
                            uint64_t message_bytes, struct fm_probe *probes,
                            struct fm_error *err);

/* ---- routing --------------------------------------------------------------------------- */

/* How much a routing reuses its experts: means over all layers. Negative: too few tokens. */
#define FM_ROUTES_POINTS 7
struct fm_routes_stats {
    size_t size;
    unsigned n_layers, n_experts, n_used; /* layers with experts; experts per layer, per token */
    unsigned n_warm, n_tokens; /* tokens that only fill the caches; tokens measured */
    double overlap[FM_ROUTES_POINTS];  /* share in common with the token 1, 2, 4, ... 64 before */
    double distinct[FM_ROUTES_POINTS]; /* experts that 2, 4, 8, ... 128 tokens use */
    double lru_hits[FM_ROUTES_POINTS]; /* hit rate of an LRU per layer of fm_routes_capacity */
};

/* Returns the size of the i-th LRU: 1/16, 3/32, 1/8, 3/16, 1/4, 3/8 or 1/2 of n_experts. */
FM_API unsigned fm_routes_capacity(unsigned n_experts, unsigned i);

/* Measures `routes`, as in fm_model_options. On entry n_layers, n_experts, n_used and n_tokens of
 * `stats` are the wanted shape; 0: the trace's own. */
FM_API int fm_routes_measure(const char *routes, struct fm_routes_stats *stats,
                             struct fm_error *err);

#define FM_REPLAY_POLICIES 16 /* array size; fm_replay_policy_name lists the policies */
/* Hit rates, 0 to 1, of a cache for a share of all experts; late_hits: of the second half of the
 * tokens. Negative: not measured. */
struct fm_replay_point {
    size_t size;
    double share;     /* set by the caller: above 0, at most 1 */
    unsigned n_slots; /* experts that fit, at least one per layer */
    double hits[FM_REPLAY_POLICIES], late_hits[FM_REPLAY_POLICIES];
};

/* Returns the name of the i-th policy, or NULL past the end. "lru" and "lcp" are the engine's.
 * "layer-lru" and "layer-lfu" give each layer the same number of slots. "static" keeps what the
 * first half used most, so it measures only the second half. "layer-belady" and "belady" know the
 * future: the upper limit. */
FM_API const char *fm_replay_policy_name(unsigned i);

/* Fills `stats` in as fm_routes_measure does, and the points for their shares. All points have the
 * same size. */
FM_API int fm_routes_replay(const char *routes, struct fm_routes_stats *stats,
                            struct fm_replay_point *points, unsigned n_points,
                            struct fm_error *err);

#define FM_REPLAY_MOVES 8 /* array size; fm_replay_moves_name lists the policies */
/* Two tiers of a cache, the GPU's memory above the host's, as shares of all experts. Hit rates in
 * each, 0 to 1, and experts that moved per token, by what happens to an expert that leaves the
 * first tier. */
struct fm_replay_tiers {
    size_t size;
    double above, below; /* set by the caller: above 0, each at most 1 */
    unsigned n_above, n_below; /* experts that fit; below: at least one per layer */
    double hits_above[FM_REPLAY_MOVES], hits_below[FM_REPLAY_MOVES];
    double moved_up[FM_REPLAY_MOVES], moved_down[FM_REPLAY_MOVES];
};

/* Returns the name of the i-th policy, or NULL past the end. "none": nothing moves. "drop": an
 * expert of the first tier that a hotter one replaces is dropped. "down": it moves to the second
 * tier unless all experts there are hotter, as in the engine. */
FM_API const char *fm_replay_moves_name(unsigned i);

/* As fm_routes_replay for two tiers. */
FM_API int fm_routes_replay_tiers(const char *routes, struct fm_routes_stats *stats,
                                  struct fm_replay_tiers *points, unsigned n_points,
                                  struct fm_error *err);

/* Gives the i-th trace of a real model to compare with; false past the end. */
FM_API bool fm_routes_reference(unsigned i, const char **name, struct fm_routes_stats *stats);

/* ---- packing --------------------------------------------------------------------------- */

/* Receives progress on the caller's thread, about ten times a second; false cancels the work. */
typedef bool fm_work_fn(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes);

/* Source files that are not in SRC yet. They are fetched when they are needed and removed after
 * their experts are packed, so that they are never all on the disk. */
struct fm_pack_remote {
    size_t n_files;
    const char *const *names;   /* [n_files] in SRC, also of files that are there */
    const uint64_t *bytes;      /* [n_files] */
    const char *const *digests; /* [n_files] of the content: other content is not continued with */
    /* Reads bytes of a file that is not there; called before packing begins. */
    int (*read)(void *ctx, size_t file, uint64_t offset, size_t bytes, void *out,
                struct fm_error *err);
    /* Puts a whole, verified file into SRC. Called on a thread of the packer, one at a time, while
     * others pack. Must end soon after goes_on(goes_on_ctx) returns false. */
    int (*fetch)(void *ctx, size_t file, bool (*goes_on)(void *goes_on_ctx), void *goes_on_ctx,
                 struct fm_error *err);
    void *ctx;
};

struct fm_pack_options {
    size_t size;
    /* Number formats by name, or "keep". NULL: float experts become affine4-g64; everything else is
     * kept bit for bit. */
    const char *experts, *dense, *embed, *head;
    unsigned n_threads; /* 0: one per processor */
    bool consume;       /* remove each source file once all that is taken from it is verified */
    bool restart;       /* discard the work of an earlier run */
    bool plan_only;     /* check and compute everything, write nothing */
    fm_work_fn *progress;
    void *progress_ctx;
    /* Layers whose experts are written, counted from 0, such as "0-19" or "0-9,30-39". The result
     * is part of a model, for a machine that has only these layers; NULL: the whole model. */
    const char *layers;
    /* Further folders, each on a disk of its own, at most FM_DISKS_MAX - 1. All must be new. `dst`
     * and these have a part of every expert each, which are read at the same time; with `mirror`,
     * each has a copy of everything. */
    const char *const *others; /* [n_others] */
    unsigned n_others;
    bool mirror;
    /* What `dst` and the others get of each expert, in any unit; NULL: as fast as their disks
     * read, which is measured. */
    const double *shares; /* [1 + n_others] */
    /* Files that are fetched while packing; NULL: all files are in SRC. Implies `consume`. */
    const struct fm_pack_remote *remote;
};

struct fm_pack_result {
    size_t size;
    uint64_t packed_bytes;           /* of the whole packed model */
    uint64_t found_bytes;            /* part of them that an earlier run had finished */
    uint64_t need_bytes, free_bytes; /* peak need of disk space; free now */
    uint64_t removable_bytes;        /* source files that `consume` removes or has removed */
    unsigned n_removable;
    unsigned n_left_out;   /* unused tensors: vision, multi-token prediction */
    unsigned n_too_narrow; /* matrices kept because the format needs more columns */
    char left[160];        /* a source file that `consume` leaves: nothing is taken from it, or it
                            * has experts of a layer that is left out */
    char changes[256];     /* "experts: bf16 becomes affine4-g64; ..."; empty: none */
    bool was_whole;        /* an earlier run had finished all but the rename */
    unsigned n_layers_here, n_layers_elsewhere; /* files of experts that it has and leaves out */
};

/* Packs the model `src` into the directory `dst`, which must not exist. Works in `dst`.partial and
 * renames it when it is whole. After any interruption, another call continues and ends with the
 * same bytes. `options` and `result` may be NULL. */
FM_API int fm_pack(const char *src, const char *dst, const struct fm_pack_options *options,
                   struct fm_pack_result *result, struct fm_error *err);

struct fm_verify_item {
    bool is_bad;      /* false: a file that is not part of the model */
    const char *what; /* "expert 17 of layer 3", "tensor 'lm_head.weight'", "tokenizer.json" */
    const char *file; /* its path */
    uint64_t offset, bytes;
    const char *why;
};
/* Receives one item; its pointers are valid during the call. */
typedef void fm_verify_fn(void *ctx, const struct fm_verify_item *item);

struct fm_verify_options {
    size_t size;
    unsigned n_threads; /* 0: one per processor */
    fm_work_fn *progress;
    void *progress_ctx;
    fm_verify_fn *found; /* every item, in the order of the files, after all is read */
    void *found_ctx;
};

struct fm_verify_result {
    size_t size;
    uint64_t n_bytes;
    uint64_t n_experts, n_tensors, n_files; /* checked */
    uint64_t n_bad;
    char layers_here[160]; /* of a part of a model: "0-3, 6"; empty: it is whole */
};

/* Reads every byte of a packed model from the device and verifies its checksums. Returns 0 even if
 * items are bad: n_bad counts them. FM_ERR_UNSUPPORTED: the model has no checksums. `options` and
 * `result` may be NULL. */
FM_API int fm_verify(const char *path, const struct fm_verify_options *options,
                     struct fm_verify_result *result, struct fm_error *err);

/* ---- synthetic models ------------------------------------------------------------------ */

enum fm_synth_form { FM_SYNTH_PACKED, FM_SYNTH_SAFETENSORS, FM_SYNTH_GGUF };

/* Indices into fm_synth_options.numbers. */
enum {
    FM_SYNTH_LAYERS, FM_SYNTH_HIDDEN, FM_SYNTH_HEADS, FM_SYNTH_KV_HEADS, FM_SYNTH_HEAD_DIM,
    FM_SYNTH_EXPERTS, FM_SYNTH_USED, FM_SYNTH_EXPERT_WIDTH, FM_SYNTH_SHARED_WIDTH,
    FM_SYNTH_KEY_HEADS, FM_SYNTH_VALUE_HEADS, FM_SYNTH_KEY_DIM, FM_SYNTH_VALUE_DIM, FM_SYNTH_CONV,
    FM_SYNTH_INTERVAL, FM_SYNTH_VOCAB, FM_SYNTH_CONTEXT, FM_SYNTH_NUMBERS
};

struct fm_synth_options {
    size_t size;
    enum fm_synth_form form;
    const uint32_t *numbers; /* [n_numbers]; 0: the shape's own. Unknown ones must be 0 */
    unsigned n_numbers;
    /* Number formats by name. NULL: those of a public four-bit quantisation of that form; bf16 for
     * safetensors. If only `dense` is set, `embed` and `head` follow it. */
    const char *experts, *dense, *embed, *head;
    uint64_t seed;
    uint64_t split_bytes; /* of one safetensors or GGUF file; 0: 4 GB, or one GGUF file */
    unsigned n_threads;   /* 0: chosen from the processors */
    bool plan_only;       /* check and compute everything, write nothing */
    fm_work_fn *progress;
    void *progress_ctx;
    /* Write headers and configuration only. The files have their full length but hold no weights,
     * so they take almost no space: such a model can be inspected and planned, not run. */
    bool headers_only;
};

struct fm_synth_result {
    size_t size;
    const char *architecture;
    uint64_t n_parameters, n_tensors, n_files;
    uint64_t file_bytes, free_bytes; /* to be written; free on the disk, 0: unknown */
    uint64_t dense_bytes, experts_bytes, expert_bytes;
    uint64_t expert_token_bytes, dense_token_bytes;
};

/* Returns the name of the i-th shape, or NULL past the end. */
FM_API const char *fm_synth_shape_name(unsigned i);

/* Writes a model of random weights to `dst`, which must not exist: a directory, or a GGUF file. The
 * bytes depend only on shape, form, formats and seed. Works beside `dst` and renames it when it is
 * whole; a failure leaves nothing. `options` and `result` may be NULL; `result` is filled in before
 * anything is written. */
FM_API int fm_synth(const char *shape, const char *dst, const struct fm_synth_options *options,
                    struct fm_synth_result *result, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
