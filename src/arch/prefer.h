/* Cache-biased routing, which is approximate: an expert that is in memory is chosen before one that
 * is not when the router rates them about the same, so that fewer are read. What is computed then
 * depends on what the cache holds. */
#ifndef FLASHMOE_ARCH_PREFER_H
#define FLASHMOE_ARCH_PREFER_H

#include "arch/arch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Chooses again after the router, which has filled step->router, ids and weights: the k experts
 * with the highest logit + cache_bias * (highest - lowest logit of the row) * resident. The expert
 * that the router rates highest stays. Weights are those the router gives the chosen experts
 * without any bias: of all experts or, with `renormalises`, of the chosen. A row whose choice stays
 * has its weights unchanged. */
void prefer_resident(struct step *step, uint32_t n_experts, uint32_t k, bool renormalises);

#ifdef __cplusplus
}
#endif
#endif
