#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "arch/arch.h"
#include "base/mem.h"
#include "format/gguf_family.h"
#include "gguf_file.h"

/* ---- the source -------------------------------------------------------------------------- */

static void add_key_u32(struct file *f, const char *architecture, const char *key, uint32_t value)
{
    char full[128];
    (void)snprintf(full, sizeof full, "%s.%s", architecture, key);
    add_u32(f, full, value);
}

/* The metadata of a model with `n_blocks` blocks: hidden size 32, 4 heads of 8, 2 for keys. */
static void add_model(struct file *f, const char *architecture, unsigned n_blocks)
{
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {
        {"embedding_length", 32},       {"attention.head_count", 4},
        {"attention.head_count_kv", 2}, {"attention.key_length", 8},
        {"expert_count", 4},            {"expert_used_count", 2},
        {"context_length", 64},         {"expert_feed_forward_length", 64},
    };
    static const struct {
        const char *key;
        uint32_t value;
    } hybrid[] = {
        {"ssm.conv_kernel", 4},    {"ssm.state_size", 8},   {"ssm.group_count", 2},
        {"ssm.time_step_rank", 4}, {"ssm.inner_size", 48},  {"rope.dimension_count", 2},
        {"expert_shared_feed_forward_length", 96},
    };
    add_text(f, "general.architecture", architecture);
    add_key_u32(f, architecture, "block_count", n_blocks);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        add_key_u32(f, architecture, keys[i].key, keys[i].value);
    const bool is_hybrid = strcmp(architecture, "qwen3moe") != 0;
    for (size_t i = 0; is_hybrid && i < sizeof hybrid / sizeof hybrid[0]; i++)
        add_key_u32(f, architecture, hybrid[i].key, hybrid[i].value);
}

static int fill(struct file *f, struct source **s, struct fm_error *err)
{
    struct gguf g;
    uint8_t *held;
    end(f);
    assert_int_equal(parse(f, file_bytes(f), &g, &held, err), 0);
    *s = mem_new(1, sizeof **s, "a source", NULL);
    assert_non_null(*s);
    struct model_gguf gguf;
    model_gguf_init(&gguf, arch_families());
    const int rc = gguf_fill_source(*s, &g, &gguf.names, err);
    gguf_clear(&g);
    free(held);
    free(f->bytes);
    return rc;
}

static void has_tensor(const struct source *s, const char *name, unsigned n_dims, uint64_t first,
                       uint64_t bytes)
{
    const struct tensor_info *t = source_find(s, name);
    if (t == NULL)
        fail_msg("no tensor '%s'", name);
    assert_int_equal(t->n_dims, n_dims);
    assert_int_equal(t->dims[0], first);
    assert_int_equal(t->n_parts, 1);
    assert_int_equal(t->parts[0].bytes, bytes);
}

static json_int_t field(const struct source *s, const char *name)
{
    const json_t *value = json_object_get(s->config.root, name);
    if (!json_is_integer(value))
        fail_msg("no field '%s'", name);
    return json_integer_value(value);
}

/* Blocks 0 and 2 recurrent, 1 and 3 attention by an interval of 2; block 4 predicts ahead. */
static struct source *open_hybrid(void)
{
    struct file f;
    struct source *s;
    struct fm_error err;
    begin(&f);
    add_model(&f, "qwen35moe", 5);
    add_u32(&f, "qwen35moe.nextn_predict_layers", 1);
    add_u32(&f, "qwen35moe.full_attention_interval", 2);
    add_f32(&f, "qwen35moe.rope.freq_base", 1e7f);
    add_tensor(&f, "token_embd.weight", 8, 32, 10, 0);
    add_tensor(&f, "blk.0.attn_qkv.weight", 8, 32, 80, 0);
    add_tensor(&f, "blk.0.attn_gate.weight", 8, 32, 48, 0);
    add_tensor(&f, "blk.0.ssm_a", 0, 4, 0, 0);
    add_tensor(&f, "blk.0.ssm_dt.bias", 0, 4, 0, 0);
    add_tensor(&f, "blk.0.post_attention_norm.weight", 0, 32, 0, 0);
    add_tensor(&f, "blk.1.attn_qkv.weight", 8, 32, 96, 0); /* 64 + 16 + 16 */
    add_tensor(&f, "blk.1.attn_gate.weight", 8, 32, 48, 0);
    add_tensor(&f, "blk.1.ffn_gate_inp_shexp.weight", 0, 32, 0, 0);
    add_tensor(&f, "blk.1.ffn_gate_up_exps.weight", 8, 32, 128, 4);
    add_tensor(&f, "blk.2.ssm_conv1d.weight", 0, 4, 80, 0);
    add_tensor(&f, "blk.4.attn_q.weight", 8, 32, 64, 0);
    add_tensor(&f, "blk.4.nextn.eh_proj.weight", 8, 64, 32, 0);
    add_tensor(&f, "blk.5.attn_q.weight", 8, 32, 64, 0);
    add_tensor(&f, "blk.01.attn_q.weight", 8, 32, 64, 0);
    assert_int_equal(fill(&f, &s, &err), 0);
    return s;
}

static void test_hybrid_names(void **state)
{
    (void)state;
    struct source *s = open_hybrid();
    assert_int_equal(s->kind, SOURCE_GGUF);
    assert_int_equal(s->n_tensors, 15 + 2);
    has_tensor(s, "model.embed_tokens.weight", 2, 10, 340);
    has_tensor(s, "model.layers.0.linear_attn.in_proj_qkv.weight", 2, 80, 2720);
    has_tensor(s, "model.layers.0.linear_attn.in_proj_z.weight", 2, 48, 1632);
    has_tensor(s, "model.layers.0.linear_attn.A_log", 1, 4, 16);
    has_tensor(s, "model.layers.0.linear_attn.dt_bias", 1, 4, 16);
    has_tensor(s, "model.layers.0.post_attention_layernorm.weight", 1, 32, 128);
    has_tensor(s, "model.layers.1.self_attn.q_proj.weight", 2, 64, 64 * 34);
    has_tensor(s, "model.layers.1.self_attn.k_proj.weight", 2, 16, 16 * 34);
    has_tensor(s, "model.layers.1.self_attn.v_proj.weight", 2, 16, 16 * 34);
    const uint64_t q = source_find(s, "model.layers.1.self_attn.q_proj.weight")->parts[0].offset;
    assert_int_equal(source_find(s, "model.layers.1.self_attn.k_proj.weight")->parts[0].offset,
                     q + 64 * 34);
    assert_int_equal(source_find(s, "model.layers.1.self_attn.v_proj.weight")->parts[0].offset,
                     q + 80 * 34);
    has_tensor(s, "blk.1.attn_gate.weight", 2, 48, 1632); /* not in an attention layer */
    has_tensor(s, "model.layers.1.mlp.shared_expert_gate.weight", 2, 1, 128);
    has_tensor(s, "model.layers.1.mlp.experts.gate_up_proj.weight", 3, 4, 4 * 128 * 34);
    has_tensor(s, "model.layers.2.linear_attn.conv1d.weight", 2, 80, 1280);
    has_tensor(s, "mtp.blk.4.attn_q.weight", 2, 64, 64 * 34);
    has_tensor(s, "mtp.blk.4.nextn.eh_proj.weight", 2, 32, 32 * 68);
    has_tensor(s, "blk.5.attn_q.weight", 2, 64, 64 * 34); /* beyond block_count */
    has_tensor(s, "blk.01.attn_q.weight", 2, 64, 64 * 34);
    assert_string_equal(source_find(s, "model.embed_tokens.weight")->dtype, "Q8_0");
    source_close(s);
}

static void test_hybrid_config(void **state)
{
    (void)state;
    struct source *s = open_hybrid();
    assert_string_equal(json_string_value(json_object_get(s->config.root, "model_type")),
                        "qwen3_5_moe_text");
    assert_int_equal(field(s, "num_hidden_layers"), 4);
    assert_int_equal(field(s, "vocab_size"), 10);
    assert_int_equal(field(s, "linear_value_head_dim"), 12);
    assert_int_equal(field(s, "shared_expert_intermediate_size"), 96);
    assert_true(json_is_true(json_object_get(s->config.root, "tie_word_embeddings")));
    const json_t *types = json_object_get(s->config.root, "layer_types");
    assert_int_equal(json_array_size(types), 4);
    assert_string_equal(json_string_value(json_array_get(types, 0)), "linear_attention");
    assert_string_equal(json_string_value(json_array_get(types, 3)), "full_attention");
    assert_true(json_real_value(json_object_get(s->config.root, "partial_rotary_factor")) == 0.25);
    assert_true(json_real_value(json_object_get(s->config.root, "rope_theta")) == 1e7);
    assert_true(s->conventions.has_final_norms && s->conventions.has_final_decay &&
                s->conventions.has_tiled_value_heads);
    assert_int_equal(s->n_texts, 0);
    source_close(s);
}

static void test_plain(void **state)
{
    (void)state;
    struct file f;
    struct source *s;
    struct fm_error err;
    begin(&f);
    add_model(&f, "qwen3moe", 1);
    add_text(&f, "qwen3moe.rope.scaling.type", "yarn");
    add_f32(&f, "qwen3moe.rope.scaling.factor", 1);
    put_key(&f, "qwen3moe.expert_weights_norm", GGUF_BOOL);
    put_uint(&f, 0, 1);
    add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
    add_tensor(&f, "output.weight", 0, 32, 10, 0);
    add_tensor(&f, "output_norm.weight", 0, 32, 0, 0);
    add_tensor(&f, "blk.0.attn_qkv.weight", 0, 32, 64, 0);
    add_tensor(&f, "blk.0.ffn_norm.weight", 0, 32, 0, 0);
    add_tensor(&f, "blk.0.ffn_down_exps.weight", 0, 64, 32, 4);
    assert_int_equal(fill(&f, &s, &err), 0);
    has_tensor(s, "lm_head.weight", 2, 10, 1280);
    has_tensor(s, "model.norm.weight", 1, 32, 128);
    has_tensor(s, "model.layers.0.self_attn.q_proj.weight", 2, 32, 4096);
    has_tensor(s, "model.layers.0.self_attn.v_proj.weight", 2, 16, 2048);
    has_tensor(s, "model.layers.0.post_attention_layernorm.weight", 1, 32, 128);
    has_tensor(s, "model.layers.0.mlp.experts.down_proj.weight", 3, 4, 4 * 32 * 64 * 4);
    assert_ptr_equal(source_find(s, "lm_head.weight")->quant, &quant_f32);
    assert_true(json_is_false(json_object_get(s->config.root, "tie_word_embeddings")));
    assert_true(json_is_false(json_object_get(s->config.root, "norm_topk_prob")));
    assert_null(json_object_get(s->config.root, "layer_types"));
    assert_true(json_real_value(json_object_get(s->config.root, "partial_rotary_factor")) == 1);
    assert_false(s->conventions.has_final_norms || s->conventions.has_final_decay ||
                 s->conventions.has_tiled_value_heads);
    source_close(s);
}

/* Files from before the sizes had keys of their own. */
static void test_old_qwen2(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"embedding_length", 32}, {"attention.head_count", 4}, {"expert_count", 4},
                {"expert_used_count", 2}, {"feed_forward_length", 96}, {"block_count", 1}};
    for (unsigned has_bias = 0; has_bias < 2; has_bias++) {
        struct file f;
        struct source *s;
        struct fm_error err;
        begin(&f);
        add_text(&f, "general.architecture", "qwen2moe");
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
            add_key_u32(&f, "qwen2moe", keys[i].key, keys[i].value);
        add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
        if (has_bias)
            add_tensor(&f, "blk.0.attn_q.bias", 0, 32, 0, 0);
        assert_int_equal(fill(&f, &s, &err), 0);
        assert_int_equal(field(s, "moe_intermediate_size"), 48);
        assert_int_equal(field(s, "shared_expert_intermediate_size"), 96);
        assert_int_equal(field(s, "num_key_value_heads"), 4);
        assert_int_equal(json_is_true(json_object_get(s->config.root, "qkv_bias")), has_bias);
        assert_int_equal(json_is_true(json_object_get(s->config.root, "norm_topk_prob")), 0);
        source_close(s);
    }
}

/* The first files of Mixtral have tensors for every expert. */
static void test_old_mixtral(void **state)
{
    (void)state;
    struct file f;
    struct source *s;
    struct fm_error err;
    begin(&f);
    add_text(&f, "general.architecture", "llama");
    add_key_u32(&f, "llama", "embedding_length", 32);
    add_key_u32(&f, "llama", "attention.head_count", 4);
    add_key_u32(&f, "llama", "feed_forward_length", 64);
    add_key_u32(&f, "llama", "block_count", 1);
    add_key_u32(&f, "llama", "expert_count", 11);
    add_key_u32(&f, "llama", "expert_used_count", 2);
    add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
    add_tensor(&f, "blk.0.ffn_gate.0.weight", 0, 32, 64, 0);
    add_tensor(&f, "blk.0.ffn_up.10.weight", 0, 32, 64, 0);
    add_tensor(&f, "blk.0.ffn_down.7.weight", 0, 64, 32, 0);
    add_tensor(&f, "blk.0.ffn_down.07.weight", 0, 64, 32, 0);
    add_tensor(&f, "blk.0.ffn_down.x.weight", 0, 64, 32, 0);
    add_tensor(&f, "blk.0.ffn_down.7.bias", 0, 64, 0, 0);
    assert_int_equal(fill(&f, &s, &err), 0);
    assert_true(s->conventions.has_paired_rows);
    has_tensor(s, "model.layers.0.mlp.experts.0.gate_proj.weight", 2, 64, 8192);
    has_tensor(s, "model.layers.0.mlp.experts.10.up_proj.weight", 2, 64, 8192);
    has_tensor(s, "model.layers.0.mlp.experts.7.down_proj.weight", 2, 32, 8192);
    has_tensor(s, "blk.0.ffn_down.07.weight", 2, 32, 8192);
    has_tensor(s, "blk.0.ffn_down.x.weight", 2, 32, 8192);
    has_tensor(s, "blk.0.ffn_down.7.bias", 1, 64, 256);
    source_close(s);
}

/* Reads the router of GLM, with a gating function and number of dense blocks. */
static int open_glm(uint32_t gating, uint32_t n_dense, struct source **s, struct fm_error *err)
{
    struct file f;
    static const struct {
        const char *key;
        uint32_t value;
    } keys[] = {{"embedding_length", 32},     {"attention.head_count", 4},
                {"expert_count", 8},          {"expert_used_count", 2},
                {"feed_forward_length", 96},  {"expert_feed_forward_length", 16},
                {"expert_shared_count", 2},   {"block_count", 4},
                {"nextn_predict_layers", 1},  {"rope.dimension_count", 4},
                {"expert_group_count", 4},    {"expert_group_used_count", 2}};
    begin(&f);
    add_text(&f, "general.architecture", "glm4moe");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        add_key_u32(&f, "glm4moe", keys[i].key, keys[i].value);
    add_key_u32(&f, "glm4moe", "expert_gating_func", gating);
    add_key_u32(&f, "glm4moe", "leading_dense_block_count", n_dense);
    add_f32(&f, "glm4moe.expert_weights_scale", 2.5f);
    add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
    add_tensor(&f, "blk.0.attn_q_norm.weight", 0, 8, 0, 0);
    add_tensor(&f, "blk.1.exp_probs_b.bias", 0, 8, 0, 0);
    add_tensor(&f, "blk.1.ffn_up_shexp.weight", 0, 32, 32, 0);
    return fill(&f, s, err);
}

static void test_glm(void **state)
{
    (void)state;
    struct source *s;
    struct fm_error err;
    assert_int_equal(open_glm(2, 2, &s, &err), 0);
    assert_int_equal(field(s, "num_hidden_layers"), 3);
    assert_int_equal(field(s, "n_routed_experts"), 8);
    assert_int_equal(field(s, "n_shared_experts"), 2);
    assert_int_equal(field(s, "n_group"), 4);
    assert_int_equal(field(s, "topk_group"), 2);
    assert_int_equal(field(s, "first_k_dense_replace"), 2);
    assert_true(json_real_value(json_object_get(s->config.root, "routed_scaling_factor")) == 2.5);
    assert_true(json_is_true(json_object_get(s->config.root, "use_qk_norm")));
    assert_true(json_is_false(json_object_get(s->config.root, "attention_bias")));
    has_tensor(s, "model.layers.1.mlp.gate.e_score_correction_bias", 1, 8, 32);
    has_tensor(s, "model.layers.1.mlp.shared_experts.up_proj.weight", 2, 32, 4096);
    source_close(s);
    assert_int_equal(open_glm(1, 2, &s, &err), FM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "expert_gating_func' is 1"));
    source_close(s);
    assert_int_equal(open_glm(2, 3, &s, &err), FM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "leading_dense_block_count' is 3"));
    source_close(s);
}

static void test_rope_scaling(void **state)
{
    (void)state;
    static const struct {
        const char *key, *field; /* below "rope.scaling." and below "rope_scaling" */
        double stored, expected;
    } values[] = {{"factor", "factor", 4, 4}, {"yarn_beta_fast", "beta_fast", 16, 16},
                  {"yarn_beta_slow", "beta_slow", 2, 2},
                  {"attn_factor", "attention_factor", 0.5, 0.5 * (0.1 * 1.3862943611198906 + 1)}};
    struct file f;
    struct source *s;
    struct fm_error err;
    char key[64];
    begin(&f);
    add_model(&f, "qwen3moe", 1);
    add_text(&f, "qwen3moe.rope.scaling.type", "yarn");
    for (unsigned i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "qwen3moe.rope.scaling.%s", values[i].key);
        add_f32(&f, key, (float)values[i].stored);
    }
    add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
    assert_int_equal(fill(&f, &s, &err), 0);
    const json_t *rope = json_object_get(s->config.root, "rope_scaling");
    for (unsigned i = 0; i < 4; i++)
        assert_float_equal(json_number_value(json_object_get(rope, values[i].field)),
                           values[i].expected, 1e-7);
    source_close(s);
}

/* ---- the tokenizer ----------------------------------------------------------------------- */

static const char *const tokens[] = {"a", "\"\\\x01", "<|im_end|>", "<think>", "[PAD4]"};
static const char *const merges[] = {"a b"};

static void add_tokenizer(struct file *f)
{
    static const int types[] = {1, 1, 3, 4, 5};
    add_text(f, "tokenizer.ggml.model", "gpt2");
    add_text(f, "tokenizer.ggml.pre", "qwen2");
    add_texts(f, "tokenizer.ggml.tokens", tokens, 5);
    add_texts(f, "tokenizer.ggml.merges", merges, 1);
    put_key(f, "tokenizer.ggml.token_type", GGUF_ARRAY);
    put_uint(f, GGUF_I32, 4);
    put_uint(f, 5, 8);
    for (unsigned i = 0; i < 5; i++)
        put_uint(f, (uint64_t)types[i], 4);
}

static void test_tokenizer(void **state)
{
    (void)state;
    struct file f;
    struct source *s;
    struct fm_error err;
    char label[LIMIT_PATH_BYTES], *text;
    size_t bytes;
    begin(&f);
    add_model(&f, "qwen3moe", 1);
    add_tokenizer(&f);
    add_u32(&f, "tokenizer.ggml.eos_token_id", 2);
    add_text(&f, "tokenizer.chat_template", "{{ \"x\" }}\n");
    add_f32(&f, "general.sampling.temp", 0.5f);
    put_key(&f, "general.sampling.top_k", GGUF_I32);
    put_uint(&f, 20, 4);
    add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
    assert_int_equal(fill(&f, &s, &err), 0);
    assert_int_equal(field(s, "eos_token_id"), 2);
    s->path = mem_strdup("m", NULL);
    assert_int_equal(source_read_text(s, "tokenizer.json", 1 << 20, &text, &bytes, label, &err), 0);
    assert_non_null(strstr(text, "\"vocab\":{\"a\":0,\"\\u0022\\u005c\\u0001\":1},\"merges\":[\"a "
                                 "b\"]}}"));
    assert_non_null(strstr(text, "{\"id\":2,\"content\":\"<|im_end|>\""));
    assert_non_null(strstr(text, "{\"id\":3,\"content\":\"<think>\""));
    assert_null(strstr(text, "PAD"));
    mem_free(text);
    assert_int_equal(
        source_read_text(s, "generation_config.json", 1 << 20, &text, &bytes, label, &err), 0);
    assert_string_equal(text, "{\"eos_token_id\":[2],\"do_sample\":true,\"temperature\":0.5,"
                              "\"top_k\":20}");
    mem_free(text);
    assert_int_equal(
        source_read_text(s, "tokenizer_config.json", 1 << 20, &text, &bytes, label, &err), 0);
    assert_string_equal(text, "{\"add_bos_token\":false,\"eos_token\":\"<|im_end|>\","
                              "\"chat_template\":\"{{ \\u0022x\\u0022 }}\\u000a\"}");
    mem_free(text);
    source_close(s);
}

/* Every allocation fails once. */
static void test_out_of_memory(void **state)
{
    (void)state;
    struct file f;
    struct gguf g;
    struct fm_error err;
    uint8_t *held;
    begin(&f);
    add_model(&f, "qwen3moe", 1);
    add_tokenizer(&f);
    add_tensor(&f, "token_embd.weight", 0, 32, 10, 0);
    end(&f);
    assert_int_equal(parse(&f, file_bytes(&f), &g, &held, &err), 0);
    struct model_gguf gguf;
    model_gguf_init(&gguf, arch_families());
    int rc = -1;
    for (long nth = 1; rc != 0; nth++) {
        struct source *s = mem_new(1, sizeof *s, "a source", NULL);
        assert_non_null(s);
        mem_fail_at(nth);
        rc = gguf_fill_source(s, &g, &gguf.names, &err);
        mem_fail_at(0);
        if (rc != 0)
            assert_int_equal(rc, FM_ERR_NOMEM);
        source_close(s);
        assert_true(nth < 100);
    }
    gguf_clear(&g);
    free(held);
    free(f.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hybrid_names),
        cmocka_unit_test(test_hybrid_config),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_old_qwen2),
        cmocka_unit_test(test_old_mixtral),
        cmocka_unit_test(test_glm),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
