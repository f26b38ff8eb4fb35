/* ggml's names and shapes of tensors as those of Hugging Face. */
#include <stdio.h>
#include <string.h>

#include "format/gguf_internal.h"

/* Which layers a name belongs to. */
enum layer_kind { ANY_LAYER, RECURRENT_LAYER };

struct mapping {
    const char *ggml, *hugging_face;
    enum layer_kind kind;
};

static const struct mapping global_names[] = {
    {"token_embd.weight", "model.embed_tokens.weight", ANY_LAYER},
    {"output_norm.weight", "model.norm.weight", ANY_LAYER},
    {"output.weight", "lm_head.weight", ANY_LAYER},
};

#define SHARED_GATE "mlp.shared_expert_gate.weight"

/* Below "blk.N." and "model.layers.N.". */
static const struct mapping layer_names[] = {
    {"attn_norm.weight", "input_layernorm.weight", ANY_LAYER},
    {"ffn_norm.weight", "post_attention_layernorm.weight", ANY_LAYER},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", ANY_LAYER},
    {"attn_q.weight", "self_attn.q_proj.weight", ANY_LAYER},
    {"attn_k.weight", "self_attn.k_proj.weight", ANY_LAYER},
    {"attn_v.weight", "self_attn.v_proj.weight", ANY_LAYER},
    {"attn_output.weight", "self_attn.o_proj.weight", ANY_LAYER},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", ANY_LAYER},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", ANY_LAYER},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", RECURRENT_LAYER},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", RECURRENT_LAYER},
    {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight", RECURRENT_LAYER},
    {"ssm_ba.weight", "linear_attn.in_proj_ba.weight", RECURRENT_LAYER},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", RECURRENT_LAYER},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", RECURRENT_LAYER},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", RECURRENT_LAYER},
    {"ssm_dt.bias", "linear_attn.dt_bias", RECURRENT_LAYER},
    {"ssm_a", "linear_attn.A_log", RECURRENT_LAYER},
    {"ssm_norm.weight", "linear_attn.norm.weight", RECURRENT_LAYER},
    {"ssm_out.weight", "linear_attn.out_proj.weight", RECURRENT_LAYER},
    {"ffn_gate_inp.weight", "mlp.gate.weight", ANY_LAYER},
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj.weight", ANY_LAYER},
    {"ffn_up_exps.weight", "mlp.experts.up_proj.weight", ANY_LAYER},
    {"ffn_down_exps.weight", "mlp.experts.down_proj.weight", ANY_LAYER},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj.weight", ANY_LAYER},
    {"ffn_gate_inp_shexp.weight", SHARED_GATE, ANY_LAYER},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", ANY_LAYER},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", ANY_LAYER},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", ANY_LAYER},
};

static const char *const fused_targets[] = {"q_proj", "k_proj", "v_proj"};

static bool is_name(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(name, wanted, bytes) == 0;
}

/* "blk.12.attn_q.weight": 12, and where the rest begins; false when it is no such name. */
static bool split_layer(const struct gguf_tensor *t, uint64_t *layer, size_t *rest)
{
    const size_t prefix = 4;
    size_t at = prefix;
    if (t->name_bytes < prefix || memcmp(t->name, "blk.", prefix) != 0)
        return false;
    for (*layer = 0; at < t->name_bytes && t->name[at] >= '0' && t->name[at] <= '9'; at++) {
        /* "007" would be a second name of layer 7 */
        if (*layer > LIMIT_LAYERS || (at > prefix && t->name[prefix] == '0'))
            return false;
        *layer = *layer * 10 + (uint64_t)(t->name[at] - '0');
    }
    *rest = at + 1;
    return at > prefix && at < t->name_bytes && t->name[at] == '.';
}

static const char *find_mapping(const struct mapping *list, size_t n, const char *name,
                                size_t bytes, bool is_recurrent)
{
    for (size_t i = 0; i < n; i++)
        if (is_name(name, bytes, list[i].ggml) &&
            (list[i].kind == ANY_LAYER || is_recurrent))
            return list[i].hugging_face;
    return NULL;
}

/* A projection of queries, keys and values in one tensor, in a layer of ordinary attention. */
static bool is_fused(const struct gguf_layout *layout, const struct gguf_tensor *t)
{
    uint64_t layer;
    size_t rest;
    return split_layer(t, &layer, &rest) && layer < layout->n_layers &&
           !layout->is_recurrent[layer] &&
           is_name(t->name + rest, t->name_bytes - rest, "attn_qkv.weight");
}

unsigned gguf_n_targets(const struct gguf_layout *layout, const struct gguf_tensor *t)
{
    return is_fused(layout, t) ? 3 : 1;
}

static bool starts_with(const char *name, size_t bytes, const char *prefix)
{
    return bytes >= strlen(prefix) && memcmp(name, prefix, strlen(prefix)) == 0;
}

/* Names that are not known stay as they are: the binder refuses them by name. */
static void make_name(const struct gguf_layout *layout, const struct gguf_tensor *t,
                      char name[GGUF_HF_NAME_BYTES])
{
    uint64_t layer = 0;
    size_t rest = 0;
    const int bytes = (int)t->name_bytes;
    const bool is_layer = split_layer(t, &layer, &rest);
    const char *found = NULL;
    if (is_layer && ((layer >= layout->n_layers && layer < layout->n_blocks) ||
                     starts_with(t->name + rest, t->name_bytes - rest, "nextn."))) {
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "mtp.%.*s", bytes, t->name);
        return;
    }
    if (is_layer && layer < layout->n_layers)
        found = find_mapping(layer_names, sizeof layer_names / sizeof layer_names[0],
                             t->name + rest, t->name_bytes - rest, layout->is_recurrent[layer]);
    else if (!is_layer)
        found = find_mapping(global_names, sizeof global_names / sizeof global_names[0], t->name,
                             t->name_bytes, false);
    if (found == NULL)
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "%.*s", bytes, t->name);
    else if (is_layer)
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "model.layers.%llu.%s",
                       (unsigned long long)layer, found);
    else
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "%s", found);
}

/* The rows of q, k or v. */
static int describe_fused(const struct gguf *g, const struct gguf_layout *layout,
                          const struct gguf_tensor *t, unsigned target, struct tensor_info *out,
                          char name[GGUF_HF_NAME_BYTES], struct fm_error *err)
{
    const uint64_t q = layout->q_rows, kv = layout->kv_rows;
    uint64_t layer;
    size_t rest;
    if (t->n_dims != 2 || t->dims[0] != q + 2 * kv) {
        char shape[64];
        return err_set(err, FM_ERR_FORMAT,
                       "%s: tensor '%.*s' has shape %s, expected %llu + 2 x %llu rows", g->path,
                       (int)t->name_bytes, t->name, tensor_info_shape(out, shape, sizeof shape),
                       (unsigned long long)q, (unsigned long long)kv);
    }
    const uint64_t row_bytes = t->bytes / t->dims[0];
    const uint64_t first[] = {0, q, q + kv};
    out->dims[0] = target == 0 ? q : kv;
    out->parts[0].offset += first[target] * row_bytes;
    out->parts[0].bytes = out->dims[0] * row_bytes;
    (void)split_layer(t, &layer, &rest);
    (void)snprintf(name, GGUF_HF_NAME_BYTES, "model.layers.%llu.self_attn.%s.weight",
                   (unsigned long long)layer, fused_targets[target]);
    return 0;
}

int gguf_describe(const struct gguf *g, const struct gguf_layout *layout,
                  const struct gguf_tensor *t, unsigned target, struct tensor_info *out,
                  char name[GGUF_HF_NAME_BYTES], struct fm_error *err)
{
    *out = (struct tensor_info){
        .name = name,
        .dtype = t->format->name,
        .quant = quant_find(t->format->quant),
        .n_dims = t->n_dims,
        .n_parts = 1,
        .parts = {{.offset = t->offset, .bytes = t->bytes}},
    };
    memcpy(out->dims, t->dims, sizeof out->dims);
    if (is_fused(layout, t))
        return describe_fused(g, layout, t, target, out, name, err);
    make_name(layout, t, name);
    const size_t bytes = strlen(name), suffix = strlen(SHARED_GATE);
    if (out->n_dims == 1 && bytes > suffix && strcmp(name + bytes - suffix, SHARED_GATE) == 0) {
        out->n_dims = 2;
        out->dims[1] = out->dims[0];
        out->dims[0] = 1;
    }
    return 0;
}
