/* Lists the tensors of a shape by their Hugging Face names, with their formats. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "flashmoe_lab.h"
#include "lab/synth_internal.h"

#define STD 0.02f

struct builder {
    struct synth_plan *plan;
    const uint32_t *n;
    char prefix[64];
    struct synth_tensor nowhere;
    struct fm_error *err;
    int rc;
};

void synth_tensor_name(const struct synth_tensor *t, uint32_t expert, char name[SYNTH_NAME_BYTES])
{
    if (t->matrix == NULL)
        (void)snprintf(name, SYNTH_NAME_BYTES, "%s", t->stem);
    else
        (void)snprintf(name, SYNTH_NAME_BYTES, "%.90s%u.%s.weight", t->stem, expert,
                       t->short_matrix != NULL ? t->short_matrix : t->matrix);
}

/* Appends a tensor, which the caller completes. After a failure returns one that is discarded. */
static struct synth_tensor *add(struct builder *b, enum synth_role role, const char *name)
{
    struct synth_plan *p = b->plan;
    if (b->rc == 0)
        b->rc = mem_grow((void **)&p->tensors, &p->cap_tensors, p->n_tensors + 1,
                         sizeof *p->tensors, "the tensors", b->err);
    if (b->rc != 0)
        return &b->nowhere;
    struct synth_tensor *t = &p->tensors[p->n_tensors++];
    *t = (struct synth_tensor){.role = role, .std = STD};
    (void)snprintf(t->stem, sizeof t->stem, "%s%s", b->prefix, name);
    return t;
}

static struct synth_tensor *add_matrix(struct builder *b, enum synth_role role, uint64_t n_rows,
                                       uint64_t n_cols, const char *name)
{
    struct synth_tensor *t = add(b, role, name);
    t->n_dims = 2;
    t->dims[0] = t->n_rows = n_rows;
    t->dims[1] = t->n_cols = n_cols;
    return t;
}

static void add_vector(struct builder *b, enum synth_values values, uint64_t n, const char *name)
{
    struct synth_tensor *t = add(b, SYNTH_VECTOR, name);
    t->values = values;
    t->n_dims = 1;
    t->n_rows = 1;
    t->dims[0] = t->n_cols = n;
}

/* Biases of all experts, one row each. */
static void add_expert_biases(struct builder *b, uint64_t n, const char *name)
{
    struct synth_tensor *t = add(b, SYNTH_VECTOR, name);
    t->values = SYNTH_SMALL;
    t->n_dims = 2;
    t->dims[0] = t->n_rows = b->n[FM_SYNTH_EXPERTS];
    t->dims[1] = t->n_cols = n;
}

static void add_norm(struct builder *b, uint64_t n, const char *name)
{
    add_vector(b, b->plan->shape.family->has_zero_centred_norms ? SYNTH_CENTRED_ONE : SYNTH_ONE, n,
               name);
}

static void add_head_norms(struct builder *b, uint64_t q, uint64_t kv)
{
    const enum head_norms norms = b->plan->shape.family->norms;
    const uint64_t dim = b->n[FM_SYNTH_HEAD_DIM];
    if (norms == NORM_NO_HEADS)
        return;
    add_norm(b, norms == NORM_ALL_HEADS ? q : dim, "self_attn.q_norm.weight");
    add_norm(b, norms == NORM_ALL_HEADS ? kv : dim, "self_attn.k_norm.weight");
}

/* A matrix of each head, one after the other. */
static void add_heads(struct builder *b, uint64_t n_rows, uint64_t n_cols, const char *name)
{
    const uint64_t heads = b->n[FM_SYNTH_HEADS];
    struct synth_tensor *t = add_matrix(b, SYNTH_DENSE, heads * n_rows, n_cols, name);
    t->n_dims = 3;
    t->dims[0] = heads;
    t->dims[1] = n_rows;
    t->dims[2] = n_cols;
}

static void add_latent(struct builder *b, const struct synth_latent *latent)
{
    const uint64_t hidden = b->n[FM_SYNTH_HIDDEN], heads = b->n[FM_SYNTH_HEADS];
    const uint64_t rope = b->n[FM_SYNTH_HEAD_DIM], plain = latent->plain_dim;
    add_matrix(b, SYNTH_DENSE, latent->q_rank, hidden, "self_attn.q_a_proj.weight");
    add_norm(b, latent->q_rank, "self_attn.q_a_layernorm.weight");
    add_matrix(b, SYNTH_DENSE, heads * (plain + rope), latent->q_rank,
               "self_attn.q_b_proj.weight");
    add_matrix(b, SYNTH_DENSE, latent->rank + rope, hidden,
               "self_attn.kv_a_proj_with_mqa.weight");
    add_norm(b, latent->rank, "self_attn.kv_a_layernorm.weight");
    if (b->plan->has_cut_heads) {
        add_heads(b, latent->rank, plain, "self_attn.embed_q.weight");
        add_heads(b, latent->value_dim, latent->rank, "self_attn.unembed_out.weight");
    } else {
        add_matrix(b, SYNTH_DENSE, heads * (plain + latent->value_dim), latent->rank,
                   "self_attn.kv_b_proj.weight");
    }
    add_matrix(b, SYNTH_DENSE, hidden, heads * latent->value_dim, "self_attn.o_proj.weight");
}

static void add_attention(struct builder *b)
{
    const uint32_t *n = b->n;
    const uint64_t hidden = n[FM_SYNTH_HIDDEN], q = n[FM_SYNTH_HEADS] * n[FM_SYNTH_HEAD_DIM];
    const uint64_t kv = n[FM_SYNTH_KV_HEADS] * n[FM_SYNTH_HEAD_DIM];
    const bool has_gate = b->plan->shape.family->has_attention_gate;
    add_matrix(b, SYNTH_DENSE, has_gate ? 2 * q : q, hidden, "self_attn.q_proj.weight");
    add_matrix(b, SYNTH_DENSE, kv, hidden, "self_attn.k_proj.weight");
    add_matrix(b, SYNTH_DENSE, kv, hidden, "self_attn.v_proj.weight");
    add_matrix(b, SYNTH_DENSE, hidden, q, "self_attn.o_proj.weight");
    const struct synth_family *family = b->plan->shape.family;
    if (family->is_gpt_oss) {
        add_vector(b, SYNTH_SMALL, q, "self_attn.q_proj.bias");
        add_vector(b, SYNTH_SMALL, kv, "self_attn.k_proj.bias");
        add_vector(b, SYNTH_SMALL, kv, "self_attn.v_proj.bias");
        add_vector(b, SYNTH_SMALL, hidden, "self_attn.o_proj.bias");
        add_vector(b, SYNTH_SMALL, n[FM_SYNTH_HEADS], "self_attn.sinks");
    } else if (family->bias_field != NULL) {
        add_vector(b, SYNTH_WEIGHTS, q, "self_attn.q_proj.bias");
        add_vector(b, SYNTH_WEIGHTS, kv, "self_attn.k_proj.bias");
        add_vector(b, SYNTH_WEIGHTS, kv, "self_attn.v_proj.bias");
    }
    add_head_norms(b, q, kv);
}

static void add_conv(struct builder *b, uint64_t channels, uint64_t kernel, const char *name)
{
    struct synth_tensor *conv = add(b, SYNTH_VECTOR, name);
    conv->std = 0.3f;
    conv->n_dims = 3;
    conv->dims[0] = conv->n_rows = channels;
    conv->dims[1] = 1;
    conv->dims[2] = conv->n_cols = kernel;
}

static void add_delta_net(struct builder *b)
{
    const uint32_t *n = b->n;
    const uint64_t hidden = n[FM_SYNTH_HIDDEN], heads = n[FM_SYNTH_VALUE_HEADS];
    const uint64_t values = heads * n[FM_SYNTH_VALUE_DIM];
    const uint64_t channels = 2ull * n[FM_SYNTH_KEY_HEADS] * n[FM_SYNTH_KEY_DIM] + values;
    const bool is_fused = b->plan->shape.family->has_fused_projections;
    if (is_fused && !b->plan->has_split_projections) {
        add_matrix(b, SYNTH_DENSE, channels + values, hidden, "linear_attn.in_proj_qkvz.weight");
    } else {
        add_matrix(b, SYNTH_DENSE, channels, hidden, "linear_attn.in_proj_qkv.weight");
        add_matrix(b, SYNTH_DENSE, values, hidden, "linear_attn.in_proj_z.weight");
    }
    if (is_fused) {
        add_matrix(b, SYNTH_DENSE, 2 * heads, hidden, "linear_attn.in_proj_ba.weight");
    } else {
        add_matrix(b, SYNTH_DENSE, heads, hidden, "linear_attn.in_proj_b.weight");
        add_matrix(b, SYNTH_DENSE, heads, hidden, "linear_attn.in_proj_a.weight");
    }
    add_conv(b, channels, n[FM_SYNTH_CONV], "linear_attn.conv1d.weight");
    add_vector(b, SYNTH_DECAY, heads, "linear_attn.A_log");
    add_vector(b, SYNTH_STEP, heads, "linear_attn.dt_bias");
    add_vector(b, SYNTH_ONE, n[FM_SYNTH_VALUE_DIM], "linear_attn.norm.weight");
    add_matrix(b, SYNTH_DENSE, hidden, values, "linear_attn.out_proj.weight");
}

/* A gate before a block, or behind the last layer. */
static void add_gate(struct builder *b, const struct synth_streams *s, bool injects,
                     const char *gate)
{
    const uint64_t wide = (uint64_t)s->n_streams * b->n[FM_SYNTH_HIDDEN];
    char name[80];
    (void)snprintf(name, sizeof name, "%s.hc_norm.weight", gate);
    add_norm(b, wide, name);
    (void)snprintf(name, sizeof name, "%s.input_mix_weight_down.weight", gate);
    add_matrix(b, SYNTH_DENSE, s->rank, wide, name);
    (void)snprintf(name, sizeof name, "%s.input_mix_weight_up.weight", gate);
    add_matrix(b, SYNTH_DENSE, wide, s->rank, name);
    (void)snprintf(name, sizeof name, "%s.block_inject_weight.weight", gate);
    if (injects)
        add_matrix(b, SYNTH_GATE, s->n_streams, wide, name);
}

/* The parts of a table are as they are read, row by row: floats. */
static void add_table(struct builder *b, const struct synth_streams *s)
{
    const uint64_t hidden = b->n[FM_SYNTH_HIDDEN], wide = s->n_streams * hidden;
    add_matrix(b, SYNTH_DENSE, wide, hidden, "ple.key_proj.weight");
    add_matrix(b, SYNTH_DENSE, hidden, hidden, "ple.value_proj.weight");
    add_norm(b, wide, "ple.norm_key.weight");
    add_norm(b, wide, "ple.norm_query.weight");
    add_norm(b, wide, "ple.norm_conv.weight");
    add_conv(b, wide, s->conv, "ple.conv1d.weight");
    for (uint32_t i = 0; i < s->n_parts; i++) {
        char name[80];
        (void)snprintf(name, sizeof name, "ple.ple_embedding.ngram_embedding.shard_%u.weight", i);
        add_matrix(b, SYNTH_TABLE, s->n_rows / s->n_parts,
                   hidden / ((s->ngram_size - 1) * s->heads), name)->std = 1;
    }
}

static void add_index(struct builder *b, const struct synth_streams *s)
{
    add_matrix(b, SYNTH_DENSE, (uint64_t)(s->index_heads + 1) * s->index_dim,
               b->n[FM_SYNTH_HIDDEN], "self_attn.indexer.index_qk_proj.weight");
    add_norm(b, s->index_dim, "self_attn.indexer.q_layernorm.weight");
    add_norm(b, s->index_dim, "self_attn.indexer.k_layernorm.weight");
}

static const char *const matrices[] = {"gate_proj", "up_proj", "down_proj"};

static void add_experts(struct builder *b, uint32_t layer)
{
    static const char *const short_names[] = {"w1", "w3", "w2"};
    char stem[40];
    (void)snprintf(stem, sizeof stem, "%sexperts.", synth_block(&b->plan->shape));
    const uint64_t hidden = b->n[FM_SYNTH_HIDDEN], width = b->n[FM_SYNTH_EXPERT_WIDTH];
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        const bool is_down = m == EXPERT_DOWN;
        struct synth_tensor *t = add_matrix(b, SYNTH_EXPERT, is_down ? hidden : width,
                                            is_down ? width : hidden, stem);
        t->matrix = matrices[m];
        t->short_matrix = b->plan->shape.family->block != NULL ? short_names[m] : NULL;
        t->layer = layer;
        t->n_experts = b->n[FM_SYNTH_EXPERTS];
    }
}

/* Adds a feed-forward block below "mlp." */
static void add_block(struct builder *b, uint64_t width, const char *block)
{
    const uint64_t hidden = b->n[FM_SYNTH_HIDDEN];
    for (unsigned m = 0; m < EXPERT_MATRICES; m++) {
        char name[SYNTH_NAME_BYTES];
        const bool is_down = m == EXPERT_DOWN;
        (void)snprintf(name, sizeof name, "mlp.%s%s.weight", block, matrices[m]);
        add_matrix(b, SYNTH_DENSE, is_down ? hidden : width, is_down ? width : hidden, name);
    }
}

static void add_routed(struct builder *b, uint32_t layer)
{
    const struct synth_family *family = b->plan->shape.family;
    const uint64_t hidden = b->n[FM_SYNTH_HIDDEN], shared = b->n[FM_SYNTH_SHARED_WIDTH];
    char name[SYNTH_NAME_BYTES];
    (void)snprintf(name, sizeof name, "%s%s.weight", synth_block(&b->plan->shape),
                   family->is_gpt_oss ? "router" : "gate");
    add_matrix(b, SYNTH_GATE, b->n[FM_SYNTH_EXPERTS], hidden, name);
    if (family->correction != NULL) {
        (void)snprintf(name, sizeof name, "%s%s", synth_block(&b->plan->shape),
                       family->correction);
        add_vector(b, SYNTH_WEIGHTS, b->n[FM_SYNTH_EXPERTS], name);
    }
    add_experts(b, layer);
    if (family->is_gpt_oss) {
        add_vector(b, SYNTH_SMALL, b->n[FM_SYNTH_EXPERTS], "mlp.router.bias");
        add_expert_biases(b, b->n[FM_SYNTH_EXPERT_WIDTH], "mlp.experts.gate_proj.bias");
        add_expert_biases(b, b->n[FM_SYNTH_EXPERT_WIDTH], "mlp.experts.up_proj.bias");
        add_expert_biases(b, hidden, "mlp.experts.down_proj.bias");
    }
    if (family->shared != SHARED_NONE)
        add_block(b, shared, family->shared == SHARED_GATED ? "shared_expert." : "shared_experts.");
    if (family->shared == SHARED_GATED)
        add_matrix(b, SYNTH_GATE, 1, hidden, "mlp.shared_expert_gate.weight");
}

static void add_layer(struct builder *b, uint32_t layer)
{
    const uint64_t hidden = b->n[FM_SYNTH_HIDDEN];
    const struct synth_streams *streams = b->plan->shape.family->streams;
    (void)snprintf(b->prefix, sizeof b->prefix, "model.layers.%u.", layer);
    if (streams != NULL) {
        add_gate(b, streams, true, "attn_hyper_connection");
        add_gate(b, streams, true, "mlp_hyper_connection");
        if (!synth_is_recurrent(&b->plan->shape, layer))
            add_index(b, streams);
        if (layer + 1 == streams->table_layer)
            add_table(b, streams);
    } else {
        add_norm(b, hidden, "input_layernorm.weight");
    }
    if (synth_is_recurrent(&b->plan->shape, layer))
        add_delta_net(b);
    else if (b->plan->shape.family->latent != NULL)
        add_latent(b, b->plan->shape.family->latent);
    else
        add_attention(b);
    if (streams == NULL)
        add_norm(b, hidden, "post_attention_layernorm.weight");
    if (layer < b->plan->shape.n_dense)
        add_block(b, b->plan->shape.dense_width, "");
    else
        add_routed(b, layer);
}

int synth_plan_tensors(struct synth_plan *plan, struct fm_error *err)
{
    struct builder b = {.plan = plan, .n = plan->shape.n, .prefix = "model.", .err = err};
    const uint64_t vocab = b.n[FM_SYNTH_VOCAB], hidden = b.n[FM_SYNTH_HIDDEN];
    /* Larger than what the layers add, so that they do not hide the token. */
    add_matrix(&b, SYNTH_EMBED, vocab, hidden, "embed_tokens.weight")->std = 1;
    for (uint32_t i = 0; i < b.n[FM_SYNTH_LAYERS]; i++)
        add_layer(&b, i);
    (void)snprintf(b.prefix, sizeof b.prefix, "model.");
    if (plan->shape.family->streams != NULL)
        add_gate(&b, plan->shape.family->streams, false, "hyper_connection_mixer");
    else
        add_norm(&b, hidden, "norm.weight");
    b.prefix[0] = '\0';
    add_matrix(&b, SYNTH_HEAD, vocab, hidden, "lm_head.weight");
    return b.rc;
}

/* ---- formats --------------------------------------------------------------------------------- */

/* Default formats, in order of preference: the first that fits the columns is used. */
static const char *const wanted[3][SYNTH_TABLE + 1][4] = {
    [FM_SYNTH_PACKED] = {
        [SYNTH_EXPERT] = {"affine4-g64", "affine4-g32", "bf16"},
        [SYNTH_DENSE] = {"affine4-g64", "affine4-g32", "bf16"},
        [SYNTH_EMBED] = {"affine4-g64", "affine4-g32", "bf16"},
        [SYNTH_HEAD] = {"affine4-g64", "affine4-g32", "bf16"},
        [SYNTH_GATE] = {"affine8-g64", "affine8-g32", "bf16"},
        [SYNTH_VECTOR] = {"bf16"}, [SYNTH_TABLE] = {"bf16"}},
    [FM_SYNTH_SAFETENSORS] = {
        [SYNTH_EXPERT] = {"bf16"}, [SYNTH_DENSE] = {"bf16"}, [SYNTH_EMBED] = {"bf16"},
        [SYNTH_HEAD] = {"bf16"}, [SYNTH_GATE] = {"bf16"}, [SYNTH_VECTOR] = {"bf16"},
        [SYNTH_TABLE] = {"bf16"}},
    [FM_SYNTH_GGUF] = {
        [SYNTH_EXPERT] = {"q4_k", "q4_0", "f16"},
        [SYNTH_DENSE] = {"q4_k", "q4_0", "f16"},
        [SYNTH_EMBED] = {"q4_k", "q4_0", "f16"},
        [SYNTH_HEAD] = {"q6_k", "q8_0", "f16"},
        [SYNTH_GATE] = {"f32"},
        [SYNTH_VECTOR] = {"f32"}},
};

/* Headers alone need no weights, and a packed model has any format. */
static int format_given(const char *name, const struct fm_synth_options *options,
                        const struct quant **quant, struct fm_error *err)
{
    const int form = (int)options->form;
    const bool has_weights = !options->headers_only || form != FM_SYNTH_PACKED;
    *quant = quant_find(name);
    if (*quant == NULL || (has_weights && !synth_can_fill(*quant)))
        return err_set(err, FM_ERR_ARG, "random weights cannot be made in format '%s'", name);
    if (form == FM_SYNTH_GGUF && (*quant)->codes == QUANT_CODES_FP4)
        return err_set(err, FM_ERR_ARG, "a GGUF file has no %s; it has mxfp4", name);
    if (form == FM_SYNTH_GGUF && strncmp(name, "int4-", 5) == 0)
        return err_set(err, FM_ERR_ARG, "a GGUF file has no %s; it has q4_0", name);
    const bool is_affine = (*quant)->kind == QUANT_AFFINE, is_block = (*quant)->kind == QUANT_BLOCK;
    if ((form == FM_SYNTH_GGUF && is_affine) || (form == FM_SYNTH_SAFETENSORS && is_block))
        return err_set(err, FM_ERR_ARG, "a %s has no %s; it has %s",
                       is_affine ? "GGUF file" : "Hugging Face directory", name,
                       is_affine ? "f32, f16, bf16, q8_0, q4_k and the like"
                                 : "f32, f16, bf16, and affine4-g64 and the like as in MLX");
    return 0;
}

/* Returns the format of a gate: that of the dense weights, with 8 bits if it is affine, as in
 * mlx-lm. */
static const struct quant *gate_format(const struct quant *dense, uint64_t n_cols)
{
    if (dense->kind == QUANT_FLOAT)
        return dense;
    if (dense->kind == QUANT_BLOCK)
        return &quant_f32;
    const struct quant *eight = quant_find(dense->scale == &quant_f16 ? "affine8-g64-f16"
                                                                      : "affine8-g64");
    return n_cols % 64 == 0 ? eight : dense;
}

/* As released: experts in MXFP4, everything else in BF16. */
static const struct quant *gpt_oss_format(int form, const struct synth_tensor *t)
{
    const bool is_gguf = form == FM_SYNTH_GGUF;
    if (t->role == SYNTH_EXPERT)
        return quant_find(is_gguf ? "mxfp4" : "mxfp4-g32");
    return is_gguf && t->role >= SYNTH_GATE ? &quant_f32 : &quant_bf16;
}

static const struct quant *default_format(int form, const struct synth_tensor *t)
{
    for (const char *const *name = wanted[form][t->role]; *name != NULL; name++) {
        const struct quant *quant = quant_find(*name);
        if (t->n_cols % quant->block == 0)
            return quant;
    }
    return &quant_f16;
}

static int choose_format(const struct synth_family *family, struct synth_tensor *t, int form,
                         const struct quant *const given[], struct fm_error *err)
{
    t->quant = family->is_gpt_oss ? gpt_oss_format(form, t) : default_format(form, t);
    if (t->role < SYNTH_GATE && given[t->role] != NULL)
        t->quant = given[t->role];
    else if (t->role == SYNTH_GATE && given[SYNTH_DENSE] != NULL && form != FM_SYNTH_GGUF)
        t->quant = gate_format(given[SYNTH_DENSE], t->n_cols);
    else if (t->role == SYNTH_VECTOR && given[SYNTH_DENSE] != NULL && form != FM_SYNTH_GGUF &&
             given[SYNTH_DENSE]->kind == QUANT_FLOAT)
        t->quant = given[SYNTH_DENSE];
    if (t->n_cols % t->quant->block == 0)
        return 0;
    char name[SYNTH_NAME_BYTES];
    synth_tensor_name(t, 0, name);
    return err_set(err, FM_ERR_ARG, "'%s' has rows of %llu columns, which %s cannot hold: it takes "
                   "multiples of %u", name, (unsigned long long)t->n_cols, t->quant->name,
                   t->quant->block);
}

int synth_plan_formats(struct synth_plan *plan, const struct fm_synth_options *options,
                       struct fm_error *err)
{
    const char *const names[SYNTH_GATE] = {
        [SYNTH_EXPERT] = options->experts, [SYNTH_DENSE] = options->dense,
        [SYNTH_EMBED] = options->embed, [SYNTH_HEAD] = options->head};
    const struct quant *given[SYNTH_GATE] = {NULL};
    int rc = 0;
    if (plan->shape.family->streams != NULL && options->form == FM_SYNTH_GGUF)
        rc = err_set(err, FM_ERR_ARG, "%s cannot be made as GGUF; it can be made packed or as a "
                     "Hugging Face directory", plan->shape.name);
    if (plan->shape.family->is_gpt_oss && options->form == FM_SYNTH_SAFETENSORS)
        rc = err_set(err, FM_ERR_ARG, "%s cannot be made as a Hugging Face directory; it can be "
                     "made packed or as GGUF", plan->shape.name);
    for (unsigned i = 0; rc == 0 && i < SYNTH_GATE; i++)
        if (names[i] != NULL)
            rc = format_given(names[i], options, &given[i], err);
        else if (i > SYNTH_DENSE) /* embedding and head use the format of the dense weights */
            given[i] = given[SYNTH_DENSE];
    for (size_t i = 0; rc == 0 && i < plan->n_tensors; i++)
        rc = choose_format(plan->shape.family, &plan->tensors[i], options->form, given, err);
    return rc;
}
