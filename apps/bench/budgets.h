/* The memory budgets of a benchmark that runs with several: from the smallest possible one to one
 * with room for every expert. One thread. */
#ifndef FLASHMOE_APPS_BENCH_BUDGETS_H
#define FLASHMOE_APPS_BENCH_BUDGETS_H

#include "flashmoe_lab.h"

#define BUDGETS_MAX 16

struct budgets {
    uint64_t floor_bytes, all_bytes; /* the ends; limited by the budget that they were found with */
    /* Room for no expert, and for half and for a quarter of them. */
    uint64_t fixed_bytes, half_bytes, quarter_bytes;
    uint64_t n_experts; /* all of them, with those of the block that makes drafts if it is open */
    uint64_t bytes[BUDGETS_MAX]; /* [n], ascending and distinct */
    unsigned n;
};

/* Finds the ends from how a large budget of a model with experts is divided. */
void budgets_find_ends(struct budgets *budgets, const struct fm_stats *stats,
                       const struct fm_model_info *info);
/* Reads a list of sizes and the words floor, quarter, half and all, separated by commas. Fails with
 * FM_ERR_ARG. Called before the ends are known, it only refuses a wrong list. */
int budgets_read(struct budgets *budgets, const char *list, struct fm_error *err);
/* Takes these shares of the way from the floor to all. */
void budgets_take_shares(struct budgets *budgets, const double *shares, unsigned n);

#endif
