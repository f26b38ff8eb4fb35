/* Divides the layers of a model among machines so that a token takes the least time. Pure
 * arithmetic over measured numbers: keeps no state, any thread.
 *
 * A stage on one machine takes the time that apps/bench/limit.h gives for its bytes: without
 * overlap of disk and memory at most, with full overlap at least. A token passes all stages one
 * after the other, and a hop after each of them: latency + message / bandwidth. The cut has the
 * smallest sum of the times without overlap. Of all cuts whose sum is at most CUT_TOLERANCE above
 * it, it is the one whose slowest stage is fastest: with equal machines and everything in memory
 * all sums are alike, and several sequences at a time are bound by the slowest stage.
 *
 * The hit rate of a stage is that of a cache for the same share of all experts, from a curve. */
#ifndef FLASHMOE_APPS_CLUSTER_CUT_H
#define FLASHMOE_APPS_CLUSTER_CUT_H

#include "apps/bench/limit.h"
#include "base/err.h"

#define CUT_RANKS 64
#define CUT_POINTS 64
#define CUT_TOLERANCE 0.01

/* A layer, or the head. All in bytes but for mul_adds. */
struct cut_layer {
    double dense, dense_token;   /* resident; read per token */
    double experts, expert_token;
    double kv;                   /* resident: keys, values and state of one session */
    double kv_token;             /* read per token */
    double mul_adds;             /* per token */
};

struct cut_machine {
    char host[64], processor[128];
    char layers_here[160]; /* of a part of the model; empty: it has all */
    unsigned n_threads;
    double memory_bytes;   /* for the rank, with the program */
    double memory_per_s, disk_per_s; /* bytes */
    double mul_adds_per_s;           /* of codes; 0: not measured */
    double latency_s, bytes_per_s;   /* of the way to the next rank; 0 bytes: no limit */
    double message_s;                /* measured, for comparison; 0: not measured */
};

/* Hit rates of caches for shares of all experts, by ascending share. */
struct cut_curve {
    unsigned n_points;
    double shares[CUT_POINTS], hits[CUT_POINTS];
};

struct cut_problem {
    const struct cut_layer *layers; /* [n_layers] */
    unsigned n_layers;
    struct cut_layer head; /* of the first rank */
    const struct cut_machine *machines; /* [n_machines] */
    unsigned n_machines;
    struct cut_curve curve;
    double overhead_bytes; /* of every rank: program and scratch */
    double message_bytes;
};

struct cut_stage {
    unsigned first_layer, n_layers;
    double need_bytes;  /* the smallest memory that works */
    double cache_bytes, experts_bytes, share, hit_rate;
    struct limit limit; /* of its part of a token */
    double min_s, max_s; /* with full overlap, and without */
    double hop_s;        /* to the next rank, or from the last to the first; 0: there is none */
};

struct cut {
    unsigned n_ranks;
    struct cut_stage stages[CUT_RANKS];
    double min_s, max_s, hops_s;   /* of a token; with the hops */
    unsigned slowest_stage, slowest_hop; /* ranks */
};

double cut_hit_rate(const struct cut_curve *curve, double share);
/* Computes a stage of layers [first, first + n) on a machine. Returns false if they do not fit. */
bool cut_stage_of(const struct cut_problem *p, unsigned rank, unsigned first, unsigned n,
                  struct cut_stage *stage);
/* Computes a given cut: `n_layers` [n_ranks]. Fails as cut_find. */
int cut_of(const struct cut_problem *p, const unsigned *n_layers, unsigned n_ranks,
           struct cut *cut, struct fm_error *err);
/* Finds the best cut for the first n_ranks machines, each with one layer at least. FM_ERR_BUDGET:
 * none fits their memory. FM_ERR_NOMEM. */
int cut_find(const struct cut_problem *p, unsigned n_ranks, struct cut *cut,
             struct fm_error *err);

#endif
