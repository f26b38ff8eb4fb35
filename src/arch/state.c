#include "arch/state.h"

#include <string.h>

#include "base/mem.h"

void sequence_sizes(const struct model *model, const struct kv_format *kv_format,
                    struct sequence_sizes *sizes)
{
    const struct arch *arch = arch_of(model);
    *sizes = (struct sequence_sizes){0};
    for (uint32_t i = 0; i < model->shape.n_layers; i++) {
        struct layer_state s;
        arch->state(model->arch, i, &s);
        sizes->kv_position_bytes += 2 * s.n_kv_heads * kv_row_bytes(kv_format, s.head_dim);
        sizes->recurrent_bytes +=
            mem_round_up((s.conv_floats + s.delta_floats) * sizeof(float), MEM_CACHE_LINE);
    }
}

int sequence_check(const struct model *model, const struct kv_format *kv_format,
                   struct fm_error *err)
{
    for (uint32_t i = 0; i < model->shape.n_layers; i++) {
        struct layer_state s;
        arch_of(model)->state(model->arch, i, &s);
        if (s.n_kv_heads > 0 && !kv_fits(kv_format, s.head_dim))
            return err_set(err, FM_ERR_ARG,
                           "keys and values cannot be kept as '%s': layer %u has heads of %u "
                           "dimensions, and only multiples of %d are rotated; use f16",
                           kv_format->name, i, s.head_dim, KV_GROUP);
    }
    return 0;
}

bool sequence_bytes(const struct model *model, const struct kv_format *kv_format,
                    uint32_t n_context, uint64_t *bytes)
{
    struct sequence_sizes sizes;
    sequence_sizes(model, kv_format, &sizes);
    uint64_t kv;
    return mem_mul(sizes.kv_position_bytes, n_context, &kv) &&
           mem_add(kv, sizes.recurrent_bytes, bytes);
}

int sequence_new(const struct model *model, const struct kv_format *kv_format, uint32_t n_context,
                 struct sequence **out, struct fm_error *err)
{
    *out = NULL;
    const struct arch *arch = arch_of(model);
    const uint32_t n_layers = model->shape.n_layers;
    uint64_t bytes;
    if (!sequence_bytes(model, kv_format, n_context, &bytes))
        return err_set(err, FM_ERR_NOMEM, "size overflow: a context of %u positions", n_context);
    struct sequence *seq =
        mem_new(1, sizeof *seq + n_layers * sizeof seq->layers[0], "a sequence", err);
    if (seq == NULL)
        return FM_ERR_NOMEM;
    struct sequence_sizes sizes;
    sequence_sizes(model, kv_format, &sizes);
    seq->recurrent_bytes = sizes.recurrent_bytes;
    seq->block = mem_new_bulk(bytes, "the KV cache", err);
    if (seq->block == NULL) {
        sequence_free(seq);
        return FM_ERR_NOMEM;
    }
    char *recurrent = seq->block, *kv = recurrent + sizes.recurrent_bytes;
    for (uint32_t i = 0; i < n_layers; i++) {
        struct layer_state s;
        arch->state(model->arch, i, &s);
        struct sequence_layer *l = &seq->layers[i];
        l->conv = (float *)(void *)recurrent;
        l->delta = l->conv + s.conv_floats;
        recurrent += mem_round_up((s.conv_floats + s.delta_floats) * sizeof(float),
                                  MEM_CACHE_LINE);
        uint64_t half = (uint64_t)s.n_kv_heads * kv_row_bytes(kv_format, s.head_dim) * n_context;
        l->keys = kv;
        l->values = kv + half;
        kv += 2 * half;
    }
    sequence_reset(seq);
    *out = seq;
    return 0;
}

void sequence_free(struct sequence *sequence)
{
    if (sequence == NULL)
        return;
    mem_free(sequence->block);
    mem_free(sequence);
}

void sequence_reset(struct sequence *sequence)
{
    sequence->position = 0;
    memset(sequence->block, 0, sequence->recurrent_bytes);
}
