/* What the GGUF tables of the families are put together from: lists of fields and names, as
 * llama.cpp spells them for every family with the part in question. Constant. */
#ifndef FLASHMOE_ARCH_GGUF_PIECES_H
#define FLASHMOE_ARCH_GGUF_PIECES_H

#include "format/gguf_family.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct gguf_field gguf_moe_fields[];

extern const struct gguf_name gguf_global_names[];
extern const struct gguf_name gguf_attention_names[];
/* The norm after attention, which some families call so and others "ffn_norm". */
extern const struct gguf_name gguf_post_norm_names[];
extern const struct gguf_name gguf_expert_names[];
extern const struct gguf_name gguf_shared_expert_names[];
extern const struct gguf_name gguf_delta_net_names[];

extern const char *const gguf_chatml_stop_tokens[];

/* gguf_family.more of the families with gated delta rule layers and a shared expert: which layers
 * are recurrent, and their sizes. */
int gguf_read_delta_net(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                        struct fm_error *err);

#ifdef __cplusplus
}
#endif
#endif
