/* The results of `bench draft`: every budget, without drafts and with them, as a table, JSON or a
 * plot. The command owns the strings. One thread. */
#ifndef FLASHMOE_APPS_BENCH_DRAFT_REPORT_H
#define FLASHMOE_APPS_BENCH_DRAFT_REPORT_H

#include "apps/bench/bench_common.h"
#include "apps/bench/budgets.h"
#include "apps/bench/topics.h"

enum { DRAFT_PLAIN, DRAFT_DRAFTED, DRAFT_SIDES };

/* Passes with so many rows: how many, and where their time went. */
struct draft_passes {
    uint64_t n, mix_ns, route_ns, wait_ns, compute_ns, head_ns;
    uint64_t n_experts; /* that their layers chose */
};

/* All measured tokens without drafts, or with them. */
struct draft_side {
    uint64_t n_tokens, n_hits, n_misses, bytes_read;
    struct draft_passes passes[1 + FM_DRAFTS_MAX]; /* [i]: 1 + i rows */
};

struct draft_point {
    uint64_t budget_bytes, n_slots;
    /* [topic]: one run after the other, in pairs. */
    double tok_per_s[DRAFT_SIDES][N_OPENINGS][BENCH_REPEAT_MAX];
    struct draft_side sides[DRAFT_SIDES];
    uint64_t n_drafted[FM_DRAFTS_MAX], n_accepted[FM_DRAFTS_MAX];
};

struct draft_bench {
    const struct args *args;
    char *architecture, *routes, *approximate; /* copies; routes NULL: the model's own */
    char cpu_level[32];
    unsigned n_threads;
    uint64_t n_experts, experts_bytes; /* of all layers */
    unsigned n_tokens, n_repeat; /* of a run; runs without drafts, and with them */
    unsigned n_topics;           /* 1 if the drafts are simulated */
    double acceptance[FM_DRAFTS_MAX]; /* [n_acceptance]: 0 to 1 */
    unsigned n_acceptance;            /* 0: real drafts */
    float temperature;                /* of the model's own text */
    struct draft_point points[BUDGETS_MAX];
    unsigned n_points;
};

/* Writes what kind of drafts these are. */
const char *draft_kind_text(const struct draft_bench *bench, char text[160]);
int draft_print_table(const struct draft_bench *bench); /* both return the exit status */
int draft_print_json(const struct draft_bench *bench);
void draft_write_svg(const struct draft_bench *bench, FILE *out);

#endif
