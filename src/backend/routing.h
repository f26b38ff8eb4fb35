/* What operations on routers and on the experts that they choose are called with; as backend.h. */
#ifndef FLASHMOE_BACKEND_ROUTING_H
#define FLASHMOE_BACKEND_ROUTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct backend_ffn;

enum router_score {
    ROUTER_SOFTMAX, /* scores are the softmax over all experts */
    ROUTER_SIGMOID, /* a score is the sigmoid of the expert's own logit */
};

/* How the logits of a row become k experts and their weights. The experts with the highest score
 * plus correction are chosen; ties go to the lower id. A group is a range of neighbouring experts.
 * If there are groups, experts are chosen only from the n_groups_chosen best ones: a group is rated
 * by the sum of its two highest values of score plus correction.
 * The weight of a chosen expert is its score without correction. If `renormalises` is set, it is
 * divided by (the sum of the chosen scores + 1e-20). Then it is multiplied with `scale`.
 * Without correction and groups, a softmax router chooses by logit, and `renormalises` takes the
 * softmax over the chosen experts. A router that takes its softmax after choosing is the same. */
struct router {
    enum router_score score;
    unsigned n_experts, k;
    const float *correction; /* [n_experts] in the backend's memory, or NULL */
    /* 0 or 1: no groups. Otherwise n_groups divides n_experts, each group has at least two experts,
     * and the chosen groups (at most LIMIT_TOP_K) have at least k experts. */
    unsigned n_groups, n_groups_chosen;
    bool renormalises;
    float scale;
};

/* Cache-biased routing, after route. Chooses the k experts with the highest value of
 * rating + bias * (highest - lowest rating of the row) * resident. A rating is what the router
 * chooses by: the logit, or score plus correction within the chosen groups. The top-rated expert is
 * always kept. The weights are those that the router gives the chosen experts without any bias. If
 * a row's choice does not change, neither do its weights. */
struct backend_preference {
    const struct router *router; /* the host's */
    const float *logits; /* [n, n_experts] */
    size_t n;
    const bool *resident; /* [n_experts], the host's */
    float bias;
    float *scores;  /* [n_experts], scratch */
    uint32_t *ids;  /* [n, k] as route left them */
    float *weights; /* [n, k] */
};

/* The maximum rows of the input of ffn_routed. */
#define BACKEND_ROUTED_ROWS 8

/* The experts that a router has chosen for the rows of the input. The backend looks their ids up
 * itself, so the host does not wait for them. Row t * k + j of expert->out is what expert ids[t][j]
 * makes of row t. The result has the bits of ffn.
 *
 * All rows together, n * (k + 1) with the shared block, are at most options.max_ffn_rows. */
struct backend_routed {
    const uint32_t *ids; /* [n, k], for the n rows of the input */
    unsigned k;
    /* For each expert, what is added to the addresses of the weights of `expert`; [n_experts] in
     * the backend's memory. */
    const uint64_t *bases;
    /* The host's. Biases are [n_experts, rows of the weight]. rows, places and n are not used. */
    const struct backend_ffn *expert;
    const struct backend_ffn *shared; /* the host's: a block that is computed beside; NULL: none */
};

#ifdef __cplusplus
}
#endif
#endif
