/* Plans the GGUF form: one file or a split set, with the names and conventions of llama.cpp's
 * converter. Value heads are random, so they need no permutation. */
#include <stdio.h>
#include <string.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "flashmoe_lab.h"
#include "format/gguf_family.h"
#include "lab/synth_internal.h"

#define ALIGNMENT 32

enum { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_UNUSED = 5 };

/* A growing buffer. After the first failure it stays failed. */
struct bytes {
    char *data;
    size_t n, capacity;
    struct fm_error *err;
    int rc;
};

struct builder {
    struct synth_plan *plan;
    const struct gguf_family *family;
    uint64_t split_bytes;
    struct bytes values, infos; /* of the open file, without its header */
    uint64_t n_values, n_infos, at;
    struct fm_error *err;
};

static void put(struct bytes *b, const void *data, size_t n)
{
    if (b->rc == 0 && n > 0)
        b->rc = mem_grow((void **)&b->data, &b->capacity, b->n + n, 1, "a header", b->err);
    if (b->rc != 0 || n == 0)
        return;
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

static void put_u32(struct bytes *b, uint32_t x)
{
    put(b, &x, sizeof x);
}

static void put_u64(struct bytes *b, uint64_t x)
{
    put(b, &x, sizeof x);
}

static void put_text(struct bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

/* ---- metadata -------------------------------------------------------------------------------- */

/* Writes a key. One that begins with a dot belongs to the architecture. */
static void put_key(struct builder *b, const char *key, uint32_t type)
{
    char name[96];
    (void)snprintf(name, sizeof name, "%s%s", key[0] == '.' ? b->family->architectures[0] : "",
                   key);
    put_text(&b->values, name);
    put_u32(&b->values, type);
    b->n_values++;
}

static void add_u32(struct builder *b, const char *key, uint32_t x)
{
    put_key(b, key, GGUF_U32);
    put_u32(&b->values, x);
}

static void add_f32(struct builder *b, const char *key, double x)
{
    const float narrow = (float)x;
    put_key(b, key, GGUF_F32);
    put(&b->values, &narrow, sizeof narrow);
}

static void add_text(struct builder *b, const char *key, const char *text)
{
    put_key(b, key, GGUF_STRING);
    put_text(&b->values, text);
}

static void add_bool(struct builder *b, const char *key, bool x)
{
    const uint8_t byte = x;
    put_key(b, key, GGUF_BOOL);
    put(&b->values, &byte, 1);
}

static void add_array(struct builder *b, const char *key, uint32_t type, uint64_t n)
{
    put_key(b, key, GGUF_ARRAY);
    put_u32(&b->values, type);
    put_u64(&b->values, n);
}

/* llama.cpp needs a token for every row of the embedding. */
static void add_tokenizer(struct builder *b)
{
    const uint32_t vocab = b->plan->shape.n[FM_SYNTH_VOCAB];
    add_text(b, "tokenizer.ggml.model", "gpt2");
    add_text(b, "tokenizer.ggml.pre", synth_pattern()->gguf_names[0]);
    add_array(b, "tokenizer.ggml.tokens", GGUF_STRING, vocab);
    for (uint32_t i = 0; i < vocab; i++) {
        char name[32];
        if (i < SYNTH_END_OF_TEXT)
            synth_byte_character(i, name);
        else if (i < SYNTH_N_TOKENS)
            (void)snprintf(name, sizeof name, "%s", synth_special_tokens[i - SYNTH_END_OF_TEXT]);
        else
            (void)snprintf(name, sizeof name, "[PAD%u]", i);
        put_text(&b->values, name);
    }
    add_array(b, "tokenizer.ggml.token_type", GGUF_I32, vocab);
    for (uint32_t i = 0; i < vocab; i++)
        put_u32(&b->values, i < SYNTH_END_OF_TEXT ? TOKEN_NORMAL
                            : i < SYNTH_N_TOKENS  ? TOKEN_CONTROL
                                                  : TOKEN_UNUSED);
    add_array(b, "tokenizer.ggml.merges", GGUF_STRING, 0);
    add_u32(b, "tokenizer.ggml.bos_token_id", SYNTH_END_OF_TEXT);
    add_u32(b, "tokenizer.ggml.eos_token_id", SYNTH_IM_END);
    add_u32(b, "tokenizer.ggml.padding_token_id", SYNTH_END_OF_TEXT);
    add_bool(b, "tokenizer.ggml.add_bos_token", false);
    add_text(b, "tokenizer.chat_template", synth_chat_template);
}

static void add_delta_net(struct builder *b)
{
    const uint32_t *n = b->plan->shape.n;
    add_u32(b, ".expert_shared_feed_forward_length", n[FM_SYNTH_SHARED_WIDTH]);
    add_u32(b, ".rope.dimension_count", synth_rotary_dims(&b->plan->shape));
    add_u32(b, ".ssm.conv_kernel", n[FM_SYNTH_CONV]);
    add_u32(b, ".ssm.state_size", n[FM_SYNTH_KEY_DIM]);
    add_u32(b, ".ssm.group_count", n[FM_SYNTH_KEY_HEADS]);
    add_u32(b, ".ssm.time_step_rank", n[FM_SYNTH_VALUE_HEADS]);
    add_u32(b, ".ssm.inner_size", n[FM_SYNTH_VALUE_HEADS] * n[FM_SYNTH_VALUE_DIM]);
    add_u32(b, ".full_attention_interval", n[FM_SYNTH_INTERVAL]);
    if (!b->plan->shape.family->has_rope_parameters)
        return;
    static const uint32_t sections[] = {11, 11, 10, 0};
    add_array(b, ".rope.dimension_sections", GGUF_I32, 4);
    put(&b->values, sections, sizeof sections);
}

static void add_gpt_oss(struct builder *b)
{
    const uint32_t original = b->plan->shape.n[FM_SYNTH_CONTEXT] / 32;
    add_u32(b, ".attention.sliding_window", 128);
    add_text(b, ".rope.scaling.type", "yarn");
    add_f32(b, ".rope.scaling.factor", 32);
    add_u32(b, ".rope.scaling.original_context_length", original > 0 ? original : 1);
}

/* The cache has one head: the short row, and what turns. Heads have sizes of their own. */
static void add_latent(struct builder *b, const struct synth_latent *latent)
{
    const uint32_t rope = b->plan->shape.n[FM_SYNTH_HEAD_DIM];
    add_u32(b, ".attention.head_count_kv", 1);
    add_u32(b, ".attention.key_length", latent->rank + rope);
    add_u32(b, ".attention.value_length", latent->rank);
    add_u32(b, ".attention.key_length_mla", latent->plain_dim + rope);
    add_u32(b, ".attention.value_length_mla", latent->value_dim);
    add_u32(b, ".attention.q_lora_rank", latent->q_rank);
    add_u32(b, ".attention.kv_lora_rank", latent->rank);
    add_u32(b, ".rope.dimension_count", rope);
    if (latent->n_groups == 1)
        return;
    add_u32(b, ".expert_group_count", latent->n_groups);
    add_u32(b, ".expert_group_used_count", latent->n_groups_chosen);
}

/* What families with softmax attention alone have. */
static void add_attention(struct builder *b)
{
    const struct synth_shape *shape = &b->plan->shape;
    const uint32_t *n = shape->n;
    if (shape->family->has_even_layers)
        add_u32(b, ".feed_forward_length", n[FM_SYNTH_EXPERT_WIDTH]);
    if (shape->family->shared == SHARED_GATED)
        add_u32(b, ".expert_shared_feed_forward_length", n[FM_SYNTH_SHARED_WIDTH]);
    if (shape->family->shared == SHARED_PLAIN)
        add_u32(b, ".expert_shared_count", n[FM_SYNTH_SHARED_WIDTH] / n[FM_SYNTH_EXPERT_WIDTH]);
    if (shape->family->rotary_divisor > 1)
        add_u32(b, ".rope.dimension_count", synth_rotary_dims(shape));
    if (shape->family->correction != NULL)
        add_u32(b, ".expert_gating_func", 2);
    if (!shape->family->has_groups)
        return;
    add_u32(b, ".leading_dense_block_count", shape->n_dense);
    add_f32(b, ".expert_weights_scale", shape->route_scale);
    add_bool(b, ".expert_weights_norm", true);
}

static void add_metadata(struct builder *b)
{
    const struct synth_shape *shape = &b->plan->shape;
    const uint32_t *n = shape->n;
    char name[64];
    (void)snprintf(name, sizeof name, "synthetic %s", shape->name);
    add_text(b, "general.architecture", b->family->architectures[0]);
    add_text(b, "general.type", "model");
    add_text(b, "general.name", name);
    add_u32(b, "general.quantization_version", 2);
    add_u32(b, ".block_count", n[FM_SYNTH_LAYERS]);
    add_u32(b, ".context_length", n[FM_SYNTH_CONTEXT]);
    add_u32(b, ".embedding_length", n[FM_SYNTH_HIDDEN]);
    if (shape->dense_width > 0)
        add_u32(b, ".feed_forward_length", shape->dense_width);
    add_u32(b, ".attention.head_count", n[FM_SYNTH_HEADS]);
    if (shape->family->latent != NULL) {
        add_latent(b, shape->family->latent);
    } else {
        add_u32(b, ".attention.head_count_kv", n[FM_SYNTH_KV_HEADS]);
        add_u32(b, ".attention.key_length", n[FM_SYNTH_HEAD_DIM]);
        add_u32(b, ".attention.value_length", n[FM_SYNTH_HEAD_DIM]);
    }
    add_f32(b, ".attention.layer_norm_rms_epsilon", synth_eps(shape));
    add_f32(b, ".rope.freq_base", shape->rope_theta);
    add_u32(b, ".expert_count", n[FM_SYNTH_EXPERTS]);
    add_u32(b, ".expert_used_count", n[FM_SYNTH_USED]);
    add_u32(b, ".expert_feed_forward_length", n[FM_SYNTH_EXPERT_WIDTH]);
    if (shape->family->has_delta_net)
        add_delta_net(b);
    else
        add_attention(b);
    if (shape->family->is_gpt_oss)
        add_gpt_oss(b);
    add_tokenizer(b);
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Returns the first name that a list has for a Hugging Face tensor, or NULL. */
static const char *find_in(const struct gguf_name *list, const char *hf)
{
    for (; list->ggml != NULL; list++)
        if (strcmp(list->hugging_face, hf) == 0)
            return list->ggml;
    return NULL;
}

static const char *find_name(const struct gguf_family *family, const char *hf)
{
    const char *found = NULL;
    for (const struct gguf_name *const *list = family->layer_names; found == NULL && *list != NULL;
         list++)
        found = find_in(*list, hf);
    return found != NULL ? found : hf; /* a test opens every architecture */
}

static void gguf_name(const struct builder *b, const struct synth_tensor *t,
                      char name[SYNTH_NAME_BYTES])
{
    unsigned layer;
    int used = 0;
    const bool is_layer = sscanf(t->stem, "model.layers.%u.%n", &layer, &used) == 1 && used > 0;
    if (!is_layer) {
        const char *found = find_in(b->family->global_names, t->stem);
        (void)snprintf(name, SYNTH_NAME_BYTES, "%s", found != NULL ? found : t->stem);
        return;
    }
    /* The tables have the block under its usual name. */
    char hf[2 * SYNTH_NAME_BYTES];
    const char *own = t->stem + used, *block = b->plan->shape.family->block;
    const bool is_block = block != NULL && strncmp(own, block, strlen(block)) == 0;
    (void)snprintf(hf, sizeof hf, "%s%s%s%s", is_block ? "mlp." : "",
                   own + (is_block ? strlen(block) : 0), t->matrix != NULL ? t->matrix : "",
                   t->matrix != NULL ? ".weight" : "");
    (void)snprintf(name, SYNTH_NAME_BYTES, "blk.%u.%.100s", layer, find_name(b->family, hf));
}

static uint32_t type_id(const struct quant *quant)
{
    for (unsigned i = 0; gguf_format_at(i) != NULL; i++)
        if (strcmp(gguf_format_at(i)->quant, quant->name) == 0)
            return gguf_format_at(i)->id;
    return 0; /* cannot happen: only formats of GGUF are accepted */
}

/* Writes the dimensions, innermost first, without dimensions of one. */
static void put_dims(struct bytes *b, const struct synth_tensor *t)
{
    uint64_t dims[4];
    unsigned n = 0;
    for (unsigned d = t->n_dims; d-- > 0;)
        if (t->dims[d] > 1 || (t->n_dims == 1))
            dims[n++] = t->dims[d];
    if (t->n_experts > 0)
        dims[n++] = t->n_experts;
    put_u32(b, n);
    put(b, dims, n * sizeof dims[0]);
}

static uint64_t tensor_bytes(const struct synth_tensor *t)
{
    const uint64_t n = t->n_experts > 0 ? t->n_experts : 1;
    return n * quant_matrix_bytes(t->quant, t->n_rows, t->n_cols);
}

static int add_tensor(struct builder *b, uint32_t tensor)
{
    const struct synth_tensor *t = &b->plan->tensors[tensor];
    struct synth_file *file = &b->plan->files[b->plan->n_files - 1];
    char name[SYNTH_NAME_BYTES];
    gguf_name(b, t, name);
    put_text(&b->infos, name);
    put_dims(&b->infos, t);
    put_u32(&b->infos, type_id(t->quant));
    put_u64(&b->infos, b->at);
    b->n_infos++;
    int rc = b->infos.rc;
    for (uint32_t e = 0; rc == 0 && e < (t->n_experts > 0 ? t->n_experts : 1); e++)
        rc = synth_file_add_matrix(b->plan, file, tensor, e, &b->at, b->err);
    b->at = mem_round_up(b->at, ALIGNMENT);
    return rc;
}

/* ---- files ----------------------------------------------------------------------------------- */

static int close_file(struct builder *b)
{
    struct synth_file *file = &b->plan->files[b->plan->n_files - 1];
    struct bytes head = {.err = b->err};
    put(&head, "GGUF", 4);
    put_u32(&head, 3);
    put_u64(&head, b->n_infos);
    put_u64(&head, b->n_values);
    put(&head, b->values.data, b->values.n);
    put(&head, b->infos.data, b->infos.n);
    while (head.rc == 0 && head.n % ALIGNMENT != 0)
        put(&head, "", 1);
    file->head = head.data;
    file->head_bytes = head.n;
    for (size_t i = 0; i < file->n_spans; i++)
        file->spans[i].offset += head.n;
    file->bytes = head.n + b->at;
    b->values.n = b->infos.n = 0;
    b->n_values = b->n_infos = b->at = 0;
    return head.rc != 0 ? head.rc : b->values.rc != 0 ? b->values.rc : b->infos.rc;
}

/* Returns whether a tensor of this size begins a new file after `at`. */
static bool is_new(const struct builder *b, uint64_t at, const struct synth_tensor *t)
{
    return at > 0 && b->split_bytes > 0 && at + tensor_bytes(t) > b->split_bytes;
}

static uint32_t count_files(const struct builder *b)
{
    uint32_t n = 1;
    uint64_t at = 0;
    for (size_t i = 0; i < b->plan->n_tensors; i++) {
        const bool begins = is_new(b, at, &b->plan->tensors[i]);
        n += begins;
        at = mem_round_up((begins ? 0 : at) + tensor_bytes(&b->plan->tensors[i]), ALIGNMENT);
    }
    return n;
}

static int open_file(struct builder *b, const char *path, uint32_t n_files)
{
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    const uint32_t number = (uint32_t)b->plan->n_files;
    struct synth_file *file = synth_plan_file(b->plan, b->err);
    if (file == NULL)
        return FM_ERR_NOMEM;
    size_t stem = strlen(base);
    if (stem > 5 && strcmp(base + stem - 5, ".gguf") == 0)
        stem -= 5;
    if (base[0] == '\0' || stem > 200)
        return err_set(b->err, FM_ERR_ARG, "'%.200s' is not a name for a GGUF file", path);
    if (n_files == 1)
        (void)snprintf(file->name, sizeof file->name, "%s", base);
    else
        (void)snprintf(file->name, sizeof file->name, "%.*s-%05u-of-%05u.gguf", (int)stem, base,
                       number + 1, n_files);
    if (number == 0)
        add_metadata(b);
    if (n_files == 1)
        return 0;
    const uint16_t no = (uint16_t)number, count = (uint16_t)n_files;
    put_key(b, "split.no", GGUF_U16);
    put(&b->values, &no, sizeof no);
    put_key(b, "split.count", GGUF_U16);
    put(&b->values, &count, sizeof count);
    put_key(b, "split.tensors.count", GGUF_I32);
    put_u32(&b->values, (uint32_t)b->plan->n_tensors);
    return 0;
}

static const struct gguf_family *find_family(const char *model_type)
{
    for (const struct model_family *const *f = arch_families(); *f != NULL; f++)
        if ((*f)->gguf != NULL && strcmp((*f)->gguf->model_type, model_type) == 0)
            return (*f)->gguf;
    return NULL;
}

int synth_plan_gguf(struct synth_plan *plan, const char *path, uint64_t split_bytes,
                    struct fm_error *err)
{
    /* All families with latent attention have the names of one. */
    const bool is_latent = plan->shape.family->latent != NULL;
    struct builder b = {.plan = plan, .family = find_family(is_latent ? "deepseek_v3"
                                                            : plan->shape.family->model_type),
                        .err = err, .split_bytes = split_bytes, .values.err = err,
                        .infos.err = err};
    if (b.family == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED, "the shape '%s' has no GGUF form: its family, %s, "
                       "has no GGUF names", plan->shape.name, plan->shape.family->model_type);
    const uint32_t n_files = count_files(&b);
    plan->conventions.has_final_norms = b.family->conventions.has_final_norms;
    plan->conventions.has_final_decay = b.family->conventions.has_final_decay;
    int rc = n_files > UINT16_MAX
                 ? err_set(err, FM_ERR_ARG, "%u files are too many; choose a larger split", n_files)
                 : open_file(&b, path, n_files);
    for (uint32_t i = 0; rc == 0 && i < plan->n_tensors; i++) {
        if (is_new(&b, b.at, &plan->tensors[i])) {
            rc = close_file(&b);
            if (rc == 0)
                rc = open_file(&b, path, n_files);
        }
        if (rc == 0)
            rc = add_tensor(&b, i);
    }
    if (rc == 0)
        rc = close_file(&b);
    mem_free(b.values.data);
    mem_free(b.infos.data);
    return rc;
}
