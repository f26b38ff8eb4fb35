/* Converts ggml's tensor names and shapes to those of Hugging Face. */
#include <stdio.h>
#include <string.h>

#include "format/gguf_internal.h"

static const char *const fused_targets[] = {"q_proj", "k_proj", "v_proj"};

static bool is_name(const char *name, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(name, wanted, bytes) == 0;
}

/* Splits "blk.12.attn_q.weight" into 12 and the offset of the rest. Returns false for other
 * names. */
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

static const struct gguf_name *find_name(const struct gguf_name *list, const char *name,
                                         size_t bytes, bool is_recurrent)
{
    for (; list->ggml != NULL; list++)
        if (is_name(name, bytes, list->ggml) && (!list->is_recurrent || is_recurrent))
            return list;
    return NULL;
}

static const struct gguf_name *find_layer_name(const struct gguf_layout *layout, uint64_t layer,
                                               const char *name, size_t bytes)
{
    const struct gguf_name *found = NULL;
    for (const struct gguf_name *const *list = layout->family->layer_names;
         found == NULL && *list != NULL; list++)
        found = find_name(*list, name, bytes, layout->is_recurrent[layer]);
    return found;
}

bool gguf_family_names(const struct gguf_family *family, const struct gguf_tensor *t)
{
    uint64_t layer;
    size_t rest;
    if (!split_layer(t, &layer, &rest))
        return find_name(family->global_names, t->name, t->name_bytes, true) != NULL;
    const struct gguf_name *found = NULL;
    for (const struct gguf_name *const *list = family->layer_names; found == NULL && *list != NULL;
         list++)
        found = find_name(*list, t->name + rest, t->name_bytes - rest, true);
    return found != NULL;
}

/* Returns whether this is a fused projection of queries, keys and values in an attention layer. */
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

/* Writes the name of a matrix of one expert, which the first files of Mixtral have instead of one
 * tensor for all experts: "ffn_gate.7.weight". Returns false for other names. */
static bool make_expert_name(uint64_t layer, const char *rest, size_t bytes,
                             char name[GGUF_HF_NAME_BYTES])
{
    static const char *const matrices[][2] = {
        {"ffn_gate.", "gate_proj"}, {"ffn_up.", "up_proj"}, {"ffn_down.", "down_proj"}};
    for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++) {
        const size_t prefix = strlen(matrices[m][0]);
        size_t at = prefix;
        if (!starts_with(rest, bytes, matrices[m][0]))
            continue;
        while (at < bytes && at < prefix + 5 && rest[at] >= '0' && rest[at] <= '9')
            at++;
        if (at == prefix || (at > prefix + 1 && rest[prefix] == '0') ||
            !is_name(rest + at, bytes - at, ".weight"))
            return false;
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "model.layers.%llu.mlp.experts.%.*s.%s.weight",
                       (unsigned long long)layer, (int)(at - prefix), rest + prefix,
                       matrices[m][1]);
        return true;
    }
    return false;
}

/* Returns the family's entry, or NULL. Unknown names stay unchanged, and the binder refuses them by
 * name. */
static const struct gguf_name *make_name(const struct gguf_layout *layout,
                                         const struct gguf_tensor *t,
                                         char name[GGUF_HF_NAME_BYTES])
{
    uint64_t layer = 0;
    size_t rest = 0;
    const int bytes = (int)t->name_bytes;
    const bool is_layer = split_layer(t, &layer, &rest);
    const struct gguf_name *found = NULL;
    if (is_layer && ((layer >= layout->n_layers && layer < layout->n_blocks) ||
                     starts_with(t->name + rest, t->name_bytes - rest, "nextn."))) {
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "mtp.%.*s", bytes, t->name);
        return NULL;
    }
    if (!is_layer && layout->moved.ggml != NULL &&
        is_name(t->name, t->name_bytes, layout->moved.ggml)) {
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "model.layers.%llu.%s",
                       (unsigned long long)layout->moved_layer, layout->moved.hugging_face);
        return &layout->moved;
    }
    if (is_layer && layer < layout->n_layers)
        found = find_layer_name(layout, layer, t->name + rest, t->name_bytes - rest);
    else if (!is_layer)
        found = find_name(layout->family->global_names, t->name, t->name_bytes, false);
    if (found == NULL && is_layer && layer < layout->n_layers &&
        make_expert_name(layer, t->name + rest, t->name_bytes - rest, name))
        return NULL;
    if (found == NULL)
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "%.*s", bytes, t->name);
    else if (is_layer)
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "model.layers.%llu.%s",
                       (unsigned long long)layer, found->hugging_face);
    else
        (void)snprintf(name, GGUF_HF_NAME_BYTES, "%s", found->hugging_face);
    return found;
}

/* Describes the rows of q, k or v. */
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
    const struct gguf_name *found = make_name(layout, t, name);
    if (found != NULL && found->is_one_row && out->n_dims == 1) {
        out->n_dims = 2;
        out->dims[1] = out->dims[0];
        out->dims[0] = 1;
    }
    return 0;
}
