/* Flash-MoE's instruments: what happens inside a model, what a machine can do, routing and its
 * reuse of experts, packing and verifying model files, synthetic models. For tools that measure and
 * prepare; a program that only runs a model needs flashmoe.h alone. Structs, errors and threads as
 * there. */
#ifndef FLASHMOE_LAB_H
#define FLASHMOE_LAB_H

#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- looking into a model -------------------------------------------------------------- */

/* The i-th number format this version reads, in order of name; false when there is none. */
struct fm_number_format {
    size_t size;
    const char *name;
    double bits_per_weight;
    bool can_be_made; /* weights can be converted to it */
};
FM_API bool fm_number_format(unsigned i, struct fm_number_format *format);

/* The share of its experts that looking ahead has foreseen in the i-th layer with experts, 0 to 1;
 * negative while there is none. False past the end. */
FM_API bool fm_model_recall(const struct fm_model *model, unsigned i, double *recall);

/* A picture of the expert cache: which experts of the i-th layer with experts are in memory, and
 * how hot each is, from 0, not used lately, to 255, used by every token. Each array has room for
 * n_experts; either may be NULL. False past the end. Between evaluations, or from a callback of
 * fm_observer.progress. */
FM_API bool fm_model_experts(const struct fm_model *model, unsigned i, bool *resident,
                             uint8_t *heat);

/* What a cache of another size would have hit on the tokens decoded so far, counted while they are
 * decoded. Exact with the policy lru but for the smallest caches; with lcp right within about
 * five points. The rate goes from 0 to 1; negative while no token was decoded. cache_bytes are as
 * in fm_stats.memory_cache_bytes; *n_slots are the experts that it has room for, at least one
 * token's, at most all, or 0 for a model that has no cache. */
FM_API double fm_model_hit_rate(const struct fm_model *model, uint64_t cache_bytes,
                                unsigned *n_slots);

/* Where the time of one evaluation went in one layer. The one after the last is the head, which
 * computes alone. All times together are nearly the evaluation's; reads pass beside them. */
struct fm_layer_profile {
    unsigned layer;
    unsigned position, n_tokens; /* the session's first; computed together, of all sessions */
    uint64_t mix_ns;     /* attention or its like */
    uint64_t route_ns;   /* choosing experts, starting their reads, looking ahead */
    uint64_t wait_ns;    /* for the next experts that are ready */
    uint64_t compute_ns; /* experts, or the dense block */
    uint64_t read_ns;    /* from starting the reads until the last missing expert is taken up */
    uint64_t n_hits, n_misses, bytes_read; /* guesses that landed are among the bytes */
};

/* Looks into the computation. With `logits` set, every position's logits are computed, not only
 * the last one's. `layer` 0 is the embedding, layer i the residual stream after layer i-1, and
 * the one after the last is the final norm's output, shown where logits are computed. */
struct fm_observer {
    size_t size;
    void *ctx;
    void (*hidden)(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n);
    void (*logits)(void *ctx, unsigned position, const float *logits, unsigned n);
    /* The experts that compute, ascending, and their weights; before they do. */
    void (*route)(void *ctx, unsigned layer, unsigned position, unsigned n, const uint32_t *ids,
                  const float *weights);
    fm_progress_fn *progress; /* before every layer; tokens times layers */
    void (*profile)(void *ctx, const struct fm_layer_profile *layer); /* after every layer */
};
FM_API int fm_session_observe(struct fm_session *session, const struct fm_observer *observer);

/* What fm_sampler_pick would draw from, best first, without drawing: `ids` and `probabilities` have
 * room for the vocabulary. Returns how many there are, or FM_ERR_FORMAT as above. */
FM_API int fm_sampler_distribution(struct fm_sampler *sampler, const float *logits, int32_t *ids,
                                   float *probabilities);

/* ---- machine --------------------------------------------------------------------------- */

struct fm_machine_info {
    size_t size;
    const char *architecture;       /* "x86-64", "aarch64" */
    char processor[128];            /* its name; empty when unknown */
    unsigned n_cpus;                /* processors this process may run on */
    unsigned n_cpus_of_machine;
    unsigned n_cores;               /* what fm_model_options.n_threads 0 means */
    double cpu_quota;               /* processors whose time the cgroup grants; 0: no limit */
    uint64_t cache_bytes;           /* last-level caches of these together; 0: unknown */
    uint64_t memory_bytes;          /* 0: unknown */
    uint64_t memory_available_bytes;
    char huge_pages[16];            /* "always", "madvise", "never"; empty when unknown */
};

FM_API int fm_machine_info(struct fm_machine_info *info);
/* Whether a budget of so many bytes is within the limit of this process's memory cgroup.
 * FM_ERR_BUDGET with the arithmetic when it is not; fm_model_open then fails with the same. */
FM_API int fm_machine_check_memory(uint64_t bytes, struct fm_error *err);

/* The i-th level of kernels for this architecture, lowest first; false when there is none. All of
 * them give the same bits. */
struct fm_level_info {
    size_t size;
    const char *name;  /* "reference", "avx2", ... */
    const char *needs; /* the instructions it uses */
    bool is_usable;    /* on this machine */
    bool is_default;
};
FM_API bool fm_machine_level(unsigned i, struct fm_level_info *info);
/* 0 when the level is usable here, as the best one, NULL, always is. FM_ERR_ARG: there is none of
 * that name; the error lists them. FM_ERR_UNSUPPORTED: not on this machine. */
FM_API int fm_machine_check_level(const char *name, struct fm_error *err);

enum {
    FM_MEASURE_READ = 1,      /* memory */
    FM_MEASURE_INT8 = 2,      /* multiplication */
    FM_MEASURE_ONE_THREAD = 4 /* each of these with one thread too */
};

struct fm_machine_options {
    size_t size;
    unsigned what;      /* 0: everything */
    unsigned n_threads; /* 0, pin_threads and cpu as in fm_model_options */
    bool pin_threads;
    const char *cpu;
    bool quick;               /* fewer passes over less memory */
    fm_progress_fn *progress; /* passes */
    void *progress_ctx;
};

/* Per second: the median of all passes, the slowest and the fastest. All 0: not measured. */
struct fm_speed {
    double median, min, max;
};

struct fm_machine_speeds {
    size_t size;
    unsigned n_threads;
    const char *cpu_level;
    uint64_t read_buffer_bytes;
    struct fm_speed read, read_one; /* bytes: all threads together, one thread */
    struct fm_speed int8, int8_one; /* operations; a multiply-add is two */
};

/* Measures now, with memory and threads of its own, which are given back. `options` may be NULL. */
FM_API int fm_machine_measure(const struct fm_machine_options *options,
                              struct fm_machine_speeds *speeds, struct fm_error *err);

/* How fast the experts of a model come from its disk: random whole experts, with so many reads
 * under way as `options` say (io, io_path, reader, read_depth; the rest is not looked at). */
struct fm_disk_speeds {
    size_t size;
    struct fm_speed read;       /* bytes */
    uint64_t expert_bytes;      /* of the largest expert */
    unsigned read_depth;
    const char *io, *reader;    /* in use */
};
FM_API int fm_disk_measure(const char *model_path, const struct fm_model_options *options,
                           bool quick, struct fm_disk_speeds *speeds, struct fm_error *err);

/* Whether the experts of a model come faster past the page cache or through it, in bytes per second
 * from the disk, which FM_IO_AUTO goes by. Measures now, and keeps it in io_path if that is set. */
struct fm_io_speeds {
    size_t size;
    double direct, page; /* 0: not measured: the file system cannot, or is slow */
    enum fm_io io;       /* the choice; page only where it is clearly faster */
};
FM_API int fm_io_measure(const char *model_path, const struct fm_model_options *options,
                         struct fm_io_speeds *speeds, struct fm_error *err);

/* ---- routing --------------------------------------------------------------------------- */

/* How much a routing reuses its experts, as means over all layers. What needs more tokens than
 * there are is negative. */
#define FM_ROUTES_POINTS 7
struct fm_routes_stats {
    size_t size;
    unsigned n_layers, n_experts, n_used; /* layers with experts, experts in each, per token */
    unsigned n_warm, n_tokens; /* tokens that only fill the caches, tokens measured */
    double overlap[FM_ROUTES_POINTS];  /* shared with the token 1, 2, 4, ... 64 before, 0 to 1 */
    double distinct[FM_ROUTES_POINTS]; /* experts that 2, 4, 8, ... 128 tokens use */
    double lru_hits[FM_ROUTES_POINTS]; /* of an LRU per layer that holds fm_routes_capacity */
};

/* Experts of n_experts that the i-th LRU holds: 1/16, 3/32, 1/8, 3/16, 1/4, 3/8, 1/2 of them. */
FM_API unsigned fm_routes_capacity(unsigned n_experts, unsigned i);

/* `routes` as in fm_model_options. In `stats`, n_layers, n_experts, n_used and n_tokens are the
 * shape wanted; one that is 0 is the trace's own. */
FM_API int fm_routes_measure(const char *routes, struct fm_routes_stats *stats,
                             struct fm_error *err);

/* What a cache that has room for a share of all experts would have hit on a routing, 0 to 1; late:
 * in the second half of the tokens alone. Negative: not measured. */
#define FM_REPLAY_POLICIES 16 /* room for them; fm_replay_policy_name lists those that there are */
struct fm_replay_point {
    size_t size;
    double share;     /* wanted: above 0, at most 1 */
    unsigned n_slots; /* experts that it has room for, at least one a layer */
    double hits[FM_REPLAY_POLICIES], late_hits[FM_REPLAY_POLICIES];
};

/* "lru", "lcp": the engine's own; "layer-lru", "layer-lfu": as many slots for each layer; "static":
 * what the first half used most stays, so that only the second half is measured; "layer-belady",
 * "belady": what none that does not know the future can beat. NULL when there is no i-th. */
FM_API const char *fm_replay_policy_name(unsigned i);

/* Fills `stats` as fm_routes_measure does, and the points for their shares. */
FM_API int fm_routes_replay(const char *routes, struct fm_routes_stats *stats,
                            struct fm_replay_point *points, unsigned n_points,
                            struct fm_error *err);

/* The i-th trace of a real model to compare with; false when there is none. */
FM_API bool fm_routes_reference(unsigned i, const char **name, struct fm_routes_stats *stats);

/* ---- packing --------------------------------------------------------------------------- */

/* Called on the caller's thread about ten times a second; false ends the work in order. */
typedef bool fm_work_fn(void *ctx, const char *what, uint64_t done_bytes, uint64_t total_bytes);

struct fm_pack_options {
    size_t size;
    /* Formats by name, or "keep". NULL: experts become affine4-g64 when they are floats;
     * everything else is kept bit for bit. */
    const char *experts, *dense, *embed, *head;
    unsigned n_threads; /* 0: one per processor */
    bool consume;       /* remove each source file once all that is taken of it is verified */
    bool restart;       /* throw away what an earlier run has begun */
    bool plan_only;     /* check and compute everything, pack nothing */
    fm_work_fn *progress;
    void *progress_ctx;
};

struct fm_pack_result {
    size_t size;
    uint64_t packed_bytes;          /* of the whole pack */
    uint64_t found_bytes;           /* of them, what an earlier run had finished */
    uint64_t need_bytes, free_bytes; /* on the disk at the worst moment; there now */
    uint64_t removable_bytes;       /* source files that `consume` removes, or has removed */
    unsigned n_removable;
    unsigned n_left_out; /* tensors that are not used: vision, multi-token prediction */
    unsigned n_too_narrow; /* matrices whose columns the chosen format cannot hold: kept */
    char left[160];      /* a source file that `consume` leaves because nothing is taken of it */
    char changes[256];   /* formats: "experts: bf16 becomes affine4-g64; ..."; empty: none */
    bool was_whole;      /* an earlier run had made and verified all of it but its name */
};

/* Writes the packed form of the model `src` to the directory `dst`, which must not exist. Work goes
 * on in `dst`.partial; when it is whole it is renamed. Interrupted in any way and called again it
 * continues and ends with the same bytes. `options` and `result` may be NULL. */
FM_API int fm_pack(const char *src, const char *dst, const struct fm_pack_options *options,
                   struct fm_pack_result *result, struct fm_error *err);

struct fm_verify_item {
    bool is_bad;      /* false: a file that is not part of the model */
    const char *what; /* "expert 17 of layer 3", "tensor 'lm_head.weight'", "tokenizer.json" */
    const char *file; /* its path */
    uint64_t offset, bytes;
    const char *why;
};
typedef void fm_verify_fn(void *ctx, const struct fm_verify_item *item);

struct fm_verify_options {
    size_t size;
    unsigned n_threads; /* 0: one per processor */
    fm_work_fn *progress;
    void *progress_ctx;
    fm_verify_fn *found; /* every bad item, in the order of the files, after all is read */
    void *found_ctx;
};

struct fm_verify_result {
    size_t size;
    uint64_t n_bytes;
    uint64_t n_experts, n_tensors, n_files; /* checked */
    uint64_t n_bad;
};

/* Reads every byte of a packed model from the device and holds it against the checksums. 0 also
 * when items are bad: see n_bad. FM_ERR_UNSUPPORTED for a model without checksums. */
FM_API int fm_verify(const char *path, const struct fm_verify_options *options,
                     struct fm_verify_result *result, struct fm_error *err);

/* ---- synthetic models ------------------------------------------------------------------ */

enum fm_synth_form { FM_SYNTH_PACKED, FM_SYNTH_SAFETENSORS, FM_SYNTH_GGUF };

/* The numbers of a shape. */
enum {
    FM_SYNTH_LAYERS, FM_SYNTH_HIDDEN, FM_SYNTH_HEADS, FM_SYNTH_KV_HEADS, FM_SYNTH_HEAD_DIM,
    FM_SYNTH_EXPERTS, FM_SYNTH_USED, FM_SYNTH_EXPERT_WIDTH, FM_SYNTH_SHARED_WIDTH,
    FM_SYNTH_KEY_HEADS, FM_SYNTH_VALUE_HEADS, FM_SYNTH_KEY_DIM, FM_SYNTH_VALUE_DIM, FM_SYNTH_CONV,
    FM_SYNTH_INTERVAL, FM_SYNTH_VOCAB, FM_SYNTH_CONTEXT, FM_SYNTH_NUMBERS
};

struct fm_synth_options {
    size_t size;
    enum fm_synth_form form;
    const uint32_t *numbers; /* [n_numbers], each at its FM_SYNTH_ place; 0: the shape's own */
    unsigned n_numbers;
    /* Formats by name. NULL: what a public four-bit quantisation of that form has, bf16 for
     * safetensors; embedding and head as the dense weights where only those are given. */
    const char *experts, *dense, *embed, *head;
    uint64_t seed;
    uint64_t split_bytes; /* of one safetensors or GGUF file; 0: 4 GB, or one GGUF file */
    unsigned n_threads;   /* 0: chosen from the processors */
    bool plan_only;       /* check and compute everything, write nothing */
    fm_work_fn *progress;
    void *progress_ctx;
};

struct fm_synth_result {
    size_t size;
    const char *architecture;
    uint64_t n_parameters, n_tensors, n_files;
    uint64_t file_bytes, free_bytes; /* to be written; on the disk now, 0 when unknown */
    uint64_t dense_bytes, experts_bytes, expert_bytes;
    uint64_t expert_token_bytes, dense_token_bytes;
};

/* The name of the i-th shape, NULL past the end. */
FM_API const char *fm_synth_shape_name(unsigned i);

/* Writes a model of random weights to `dst`, which must not exist: a directory, or a GGUF file.
 * The bytes depend on the shape, the form, the formats and the seed alone. Work goes on beside
 * `dst` and is renamed when whole; after a failure nothing is left. `options` and `result` may be
 * NULL; the result is filled before anything is written. */
FM_API int fm_synth(const char *shape, const char *dst, const struct fm_synth_options *options,
                    struct fm_synth_result *result, struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
