/* A model on several ranks: each has some layers, and rows go from rank to rank in a ring. The
 * first rank has the embedding, the first layers, the head and the sessions; what it does to a
 * sequence the others do to their parts of it, in the same order, because all of it travels in one
 * ring. docs/CLUSTER.md describes it for users, docs/decisions/0039-*.md the reasons.
 *
 * A struct cluster is one rank's membership; it owns its transport. The thread that drives the rank
 * calls everything. Functions that fail return an error that names the rank and its host. */
#ifndef FLASHMOE_CLUSTER_CLUSTER_H
#define FLASHMOE_CLUSTER_CLUSTER_H

#include "base/plat_dir.h"
#include "cluster/transport.h"
#include "engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cluster;

/* What a rank says of itself. Plain numbers that travel as they are. */
struct cluster_rank_stats {
    uint32_t first_layer, end_layer, n_threads;
    uint32_t n_expert_layers; /* of these layers */
    uint64_t budget, cache, resident_peak;
    struct expert_cache_stats experts;
    uint64_t busy_ns, bytes_sent, n_messages;
    char cpu_level[16];
};

struct cluster_options {
    const char *words; /* must be the same everywhere; NULL: none */
    uint64_t timeout_ns;
    bool is_process; /* false: the ranks are threads of one */
};

/* ---- joining: all ranks call these in the same order (join.c) */

/* Compares version and words with the first rank's. Takes the transport, also after a failure. */
int cluster_join(struct transport *transport, const struct cluster_options *options,
                 struct cluster **out, struct fm_error *err);
/* The first rank lets the others go. */
void cluster_leave(struct cluster *cluster); /* accepts NULL */

/* What the first rank decides for all when a model opens. */
struct cluster_shared {
    uint32_t n_sessions, n_context, n_marks, n_drafts, prefill_chunk, experts_per_token;
    uint32_t draft, draft_source, check, policy, lookahead, unused;
    double cache_bias;
    char kv[16], routes[512];
};
/* The first rank begins to open a model. */
int cluster_begin(struct cluster *c, const struct cluster_shared *shared, struct fm_error *err);
/* Another rank waits for that. *has_one is false when the first rank has left. */
int cluster_await(struct cluster *c, struct cluster_shared *shared, bool *has_one,
                  struct fm_error *err);
/* Between engine_open_model and engine_open: all ranks have the same model; each gets its layers.
 * `memory_bytes` is what this rank has, `n_layers` [ranks] the layers of each, or NULL. */
int cluster_meet(struct cluster *c, struct engine *e, uint64_t memory_bytes,
                 const unsigned *n_layers, struct fm_error *err);
/* Once after cluster_begin or cluster_await: the rank has opened its layers, or could not (`rc` and
 * `err`). Returns 0 when all ranks have; otherwise none has. */
int cluster_ready(struct cluster *c, int rc, struct fm_error *err);
/* Before the engine is closed: the other ranks close theirs. Accepts one that is not ready. */
void cluster_end(struct cluster *c);

/* ---- measuring, without a model (probe.c) */

#define CLUSTER_PROBE_BYTES 2048
/* Measures this machine and writes what it found to text. */
typedef int cluster_measure_fn(void *ctx, char *text, size_t bytes, struct fm_error *err);
struct cluster_probe {
    char text[CLUSTER_PROBE_BYTES]; /* of the rank's measure function */
    /* To the next rank: a short message, one of the given size; 0: it could not be measured. */
    double latency_s, message_s, bytes_per_s;
};
/* All ranks call this. Each measures its machine, ranks of one host one after the other, and the
 * way to the next rank. The first rank gets `probes` [n_ranks]; the others pass NULL. */
int cluster_probe(struct cluster *c, cluster_measure_fn *measure, void *ctx,
                  uint64_t message_bytes, struct cluster_probe *probes, struct fm_error *err);

/* ---- the other ranks (member.c) */

/* Computes for the first rank until it ends the model. */
int cluster_serve(struct cluster *c, struct fm_error *err);

/* ---- the first rank (first.c) */

uint32_t cluster_rank(const struct cluster *c);
uint32_t cluster_n_ranks(const struct cluster *c);
const char *cluster_host(const struct cluster *c, uint32_t rank);
/* Why nothing can be computed any more, or NULL. */
const char *cluster_lost(const struct cluster *c);
/* This rank was told to end: it says so to the first one. The first one finds out which rank has
 * died, when it waits for the others next. A signal handler may call it. CLUSTER_ENDS: if none has
 * died, computing ends all the same. */
enum { CLUSTER_LOOKS = 1, CLUSTER_ENDS };
void cluster_alarm(struct cluster *c, int alarm);
/* The first rank computes: lets messages go on, if that was not done just now. */
void cluster_look(struct cluster *c);
/* Returns whether every rank has room for all its experts, as far as it has told. */
bool cluster_is_resident(const struct cluster *c);
/* Asks all ranks how they are, if they can be asked now. */
void cluster_refresh(struct cluster *c);
void cluster_stats(struct cluster *c, uint32_t rank, struct cluster_rank_stats *stats);
/* Time that passes were away, and of *n_lone passes that were away alone the time in which no other
 * rank was busy with them. */
void cluster_times(const struct cluster *c, uint64_t *away_ns, uint64_t *network_ns,
                   uint64_t *n_lone);
/* Asks the rank that has an expert layer, counted in the whole model. Each array has n_experts
 * elements or is NULL. *recall is as in fm_model_recall. False: no other rank has it. */
bool cluster_experts(struct cluster *c, uint32_t expert_layer, bool *resident, uint8_t *levels,
                     uint8_t *tiers, double *recall);
/* Changes the budget of another rank. */
int cluster_set_memory(struct cluster *c, uint32_t rank, uint64_t bytes, struct fm_error *err);

/* ---- parts of snapshots (first.c, member.c, part_file.c) */

/* Folds what the states of the other ranks depend on into *identity. */
int cluster_identity(struct cluster *c, uint64_t *identity, struct fm_error *err);
/* Every other rank writes its part of the sequence's state beside the file at `path`, under that
 * name and its rank. `stamp` says which parts belong together. */
int cluster_save(struct cluster *c, const struct sequence *s, uint64_t identity, uint64_t stamp,
                 const char *path, struct fm_error *err);
/* Reads them into a sequence, which has memory for its positions. All ranks or none: after a
 * failure its state is nobody's. `marks` are the sequence's that get a state, in the file's
 * order. */
int cluster_load(struct cluster *c, const struct sequence *s, uint64_t identity, uint64_t stamp,
                 const char *path, uint32_t n_positions, const int32_t *ids, uint32_t n_marks,
                 struct fm_error *err);
/* The parts beside a file that is removed are removed, too. */
void cluster_drop(struct cluster *c, const char *path);
/* Parts in a folder that a killed process left unfinished are removed. */
void cluster_tidy(struct cluster *c, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
