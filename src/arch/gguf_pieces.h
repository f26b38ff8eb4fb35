/* What the GGUF tables of the families are put together from: lists of fields and names, as
 * llama.cpp spells them for every family with the part in question. Constant. */
#ifndef FLASHMOE_ARCH_GGUF_PIECES_H
#define FLASHMOE_ARCH_GGUF_PIECES_H

#include "format/gguf_family.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct gguf_field gguf_moe_fields[];
/* Of families whose layers all have experts of feed_forward_length. */
extern const struct gguf_field gguf_even_fields[];

extern const struct gguf_name gguf_global_names[];
extern const struct gguf_name gguf_attention_names[];
extern const struct gguf_name gguf_bias_names[];  /* of queries, keys and values */
extern const struct gguf_name gguf_dense_names[]; /* of layers without experts */
/* The norm after attention, which some families call so and others "ffn_norm". */
extern const struct gguf_name gguf_post_norm_names[];
extern const struct gguf_name gguf_expert_names[];
extern const struct gguf_name gguf_shared_expert_names[];
extern const struct gguf_name gguf_delta_net_names[];

extern const char *const gguf_chatml_stop_tokens[];

/* Reads how a sigmoid router chooses: n_group, topk_group and routed_scaling_factor. Its keys are
 * expert_gating_func, expert_weights_scale, expert_group_count and expert_group_used_count. */
int gguf_read_sigmoid_router(const struct gguf *g, json_t *config, struct fm_error *err);

/* gguf_family.more of the families with gated delta rule layers and a shared expert: which layers
 * are recurrent, and their sizes. */
int gguf_read_delta_net(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                        struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
