#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"
#include "format/gguf.h"

/* ---- building files in memory ------------------------------------------------------------ */

#define MAX_BYTES (1u << 20)

struct file {
    uint8_t *bytes;
    size_t n;
    unsigned n_values, n_tensors;
    uint64_t data_bytes;
};

static void put(struct file *f, const void *bytes, size_t n)
{
    assert_true(f->n + n <= MAX_BYTES);
    memcpy(f->bytes + f->n, bytes, n);
    f->n += n;
}

static void put_uint(struct file *f, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++, value >>= 8)
        put(f, &(uint8_t){(uint8_t)value}, 1);
}

static void put_text(struct file *f, const char *text)
{
    put_uint(f, strlen(text), 8);
    put(f, text, strlen(text));
}

static void begin(struct file *f)
{
    *f = (struct file){.bytes = malloc(MAX_BYTES)};
    assert_non_null(f->bytes);
    put(f, "GGUF", 4);
    put_uint(f, 3, 4);
    put_uint(f, 0, 16); /* end() writes the counts */
}

/* Overwrites what stands at `at`. */
static void set_uint(struct file *f, size_t at, uint64_t value, unsigned bytes)
{
    const size_t n = f->n;
    f->n = at;
    put_uint(f, value, bytes);
    f->n = n;
}

static void put_key(struct file *f, const char *key, enum gguf_type type)
{
    put_text(f, key);
    put_uint(f, type, 4);
    f->n_values++;
}

static void add_u32(struct file *f, const char *key, uint32_t value)
{
    put_key(f, key, GGUF_U32);
    put_uint(f, value, 4);
}

static void add_f32(struct file *f, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(f, key, GGUF_F32);
    put_uint(f, bits, 4);
}

static void add_text(struct file *f, const char *key, const char *value)
{
    put_key(f, key, GGUF_STRING);
    put_text(f, value);
}

static void add_texts(struct file *f, const char *key, const char *const *values, size_t n)
{
    put_key(f, key, GGUF_ARRAY);
    put_uint(f, GGUF_STRING, 4);
    put_uint(f, n, 8);
    for (size_t i = 0; i < n; i++)
        put_text(f, values[i]);
}

/* Dimensions in ggml's order; 0 ends them. */
static void add_tensor(struct file *f, const char *name, uint32_t type, uint64_t a, uint64_t b,
                       uint64_t c)
{
    const uint64_t dims[] = {a, b, c};
    const unsigned n_dims = b == 0 ? 1 : c == 0 ? 2 : 3;
    const struct gguf_format *format = gguf_format_find(type);
    uint64_t bytes = format != NULL ? a / format->block * format->block_bytes : 0;
    put_text(f, name);
    put_uint(f, n_dims, 4);
    for (unsigned d = 0; d < n_dims; d++) {
        put_uint(f, dims[d], 8);
        bytes *= d > 0 ? dims[d] : 1;
    }
    put_uint(f, type, 4);
    put_uint(f, f->data_bytes, 8);
    f->data_bytes += mem_round_up(bytes, 32);
    f->n_tensors++;
}

static void end(struct file *f)
{
    set_uint(f, 8, f->n_tensors, 8);
    set_uint(f, 16, f->n_values, 8);
}

static uint64_t file_bytes(const struct file *f)
{
    return mem_round_up(f->n, 32) + f->data_bytes;
}

/* Parses exactly the bytes of the header, so that a sanitizer sees any byte too many. */
static int parse(const struct file *f, uint64_t bytes, struct gguf *g, uint8_t **held,
                 struct fm_error *err)
{
    const size_t n = bytes < f->n ? (size_t)bytes : f->n;
    *held = malloc(n > 0 ? n : 1);
    assert_non_null(*held);
    memcpy(*held, f->bytes, n);
    const int rc = gguf_parse(g, "m", *held, n, bytes, err);
    if (rc != 0) {
        free(*held);
        *held = NULL;
    }
    return rc;
}

static void refused(struct file *f, uint64_t bytes, int code, const char *message)
{
    struct gguf g;
    struct fm_error err = {0};
    uint8_t *held;
    assert_int_equal(parse(f, bytes, &g, &held, &err), code);
    assert_string_equal(err.text, message);
    assert_int_equal(err.code, code);
    assert_null(g.values);
    assert_null(g.tensors);
    assert_int_equal(parse(f, bytes, &g, &held, NULL), code);
    free(f->bytes);
    f->bytes = NULL;
}

/* ---- the container ----------------------------------------------------------------------- */

static void test_good_header(void **state)
{
    (void)state;
    for (unsigned version = 2; version <= 3; version++) {
        struct file f;
        struct gguf g;
        struct fm_error err;
        uint8_t *held;
        begin(&f);
        set_uint(&f, 4, version, 4);
        add_text(&f, "general.architecture", "x");
        add_u32(&f, "b", 7);
        put_key(&f, "a", GGUF_ARRAY); /* [[1], []] */
        put_uint(&f, GGUF_ARRAY, 4);
        put_uint(&f, 2, 8);
        put_uint(&f, GGUF_U8, 4);
        put_uint(&f, 1, 8);
        put_uint(&f, 1, 1);
        put_uint(&f, GGUF_STRING, 4);
        put_uint(&f, 0, 8);
        add_tensor(&f, "w", 30, 6, 5, 0);
        add_tensor(&f, "q", 8, 64, 3, 2);
        add_tensor(&f, "empty", 0, 4, 0, 0);
        end(&f);
        set_uint(&f, f.n - 8 - 4 - 8, 0, 8); /* the dimension of "empty" */
        assert_int_equal(parse(&f, file_bytes(&f), &g, &held, &err), 0);
        assert_int_equal(g.n_values, 3);
        assert_int_equal(g.n_tensors, 3);
        assert_int_equal(g.data_begin, mem_round_up(f.n, 32));
        const struct gguf_value *v = gguf_find(&g, "b");
        assert_non_null(v);
        assert_int_equal(v->type, GGUF_U32);
        assert_int_equal(v->data[0], 7);
        assert_null(gguf_find(&g, "c"));
        v = gguf_find(&g, "a");
        assert_int_equal(v->n, 2);
        assert_int_equal(v->element_type, GGUF_ARRAY);
        const struct gguf_tensor *t = gguf_find_tensor(&g, "w");
        assert_string_equal(t->format->name, "BF16");
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->dims[0], 5);
        assert_int_equal(t->dims[1], 6);
        assert_int_equal(t->bytes, 60);
        assert_int_equal(t->offset, g.data_begin);
        t = gguf_find_tensor(&g, "q");
        assert_int_equal(t->dims[0], 2);
        assert_int_equal(t->dims[2], 64);
        assert_int_equal(t->bytes, 2 * 3 * 68);
        assert_int_equal(t->offset, g.data_begin + 64);
        assert_int_equal(gguf_find_tensor(&g, "empty")->bytes, 0);
        assert_null(gguf_find_tensor(&g, "wx"));
        gguf_clear(&g);
        gguf_clear(&g);
        free(held);
        free(f.bytes);
    }
}

static void test_every_cut(void **state)
{
    (void)state;
    struct file f;
    begin(&f);
    add_text(&f, "t", "text");
    add_texts(&f, "l", (const char *const[]){"a", "bc"}, 2);
    add_u32(&f, "general.alignment", 32);
    add_tensor(&f, "w", 0, 3, 2, 0);
    end(&f);
    /* 24 bytes of data; what pads them may be missing */
    for (uint64_t n = 0; n < mem_round_up(f.n, 32) + 24; n++) {
        struct gguf g;
        struct fm_error err = {0};
        uint8_t *held;
        assert_int_equal(parse(&f, n, &g, &held, &err), FM_ERR_FORMAT);
        assert_true(strlen(err.text) > 0);
    }
    /* with fewer bytes at hand than the file has, more are asked for */
    for (size_t n = 24; n < f.n; n++) {
        struct gguf g;
        struct fm_error err = {0};
        assert_int_equal(gguf_parse(&g, "m", f.bytes, n, file_bytes(&f), &err), FM_ERR_ARG);
    }
    free(f.bytes);
}

static void test_formats(void **state)
{
    (void)state;
    unsigned n_known = 0;
    for (unsigned i = 0; gguf_format_at(i) != NULL; i++) {
        const struct gguf_format *format = gguf_format_at(i);
        assert_ptr_equal(gguf_format_find(format->id), format);
        const struct quant *q = quant_find(format->quant);
        if (q == NULL)
            continue;
        n_known++;
        assert_int_equal(q->block, format->block);
        assert_int_equal(q->n_parts, 1);
        assert_int_equal(q->part_block_bytes[0], format->block_bytes);
    }
    assert_int_equal(n_known, 25); /* not q8_1, q8_k, integers, f64, nvfp4, q1_0, q2_0 */
    assert_null(gguf_format_find(4));
    assert_null(gguf_format_find(UINT32_MAX));
}

static void test_magic(void **state)
{
    (void)state;
    struct file f;
    begin(&f);
    end(&f);
    refused(&f, 20, FM_ERR_FORMAT,
            "m: 20 bytes, too short for a GGUF file, which begins with 24 bytes of counts");
    begin(&f);
    memcpy(f.bytes, "ggjt", 4);
    refused(&f, 24, FM_ERR_FORMAT,
            "m: not a GGUF file: it begins with the bytes 67 67 6a 74, expected \"GGUF\"");
    begin(&f);
    set_uint(&f, 4, 1, 4);
    refused(&f, 24, FM_ERR_UNSUPPORTED, "m: GGUF version 1; this version reads 2 and 3");
    begin(&f);
    set_uint(&f, 4, 3u << 24, 4);
    refused(&f, 24, FM_ERR_UNSUPPORTED,
            "m: a GGUF file in big-endian byte order: this version reads little-endian files only");
    begin(&f);
    memcpy(f.bytes, "FUGG", 4);
    refused(&f, 24, FM_ERR_UNSUPPORTED,
            "m: a GGUF file in big-endian byte order: this version reads little-endian files only");
    begin(&f);
    f.n = 0;
    put(&f, "version https://git-lfs.github.com/spec/v1\n", 43);
    refused(&f, 43, FM_ERR_FORMAT,
            "m: not a GGUF file but, as it seems, a Git LFS pointer of 43 bytes: download the "
            "file itself");
    begin(&f);
    set_uint(&f, 8, UINT64_MAX, 8);
    refused(&f, 24, FM_ERR_FORMAT,
            "m: the header announces 18446744073709551615 tensors, more than the limit of 1048576: "
            "the file is damaged");
    begin(&f);
    set_uint(&f, 16, 65537, 8);
    refused(&f, 24, FM_ERR_FORMAT,
            "m: the header announces 65537 entries of metadata, more than the limit of 65536: the "
            "file is damaged");
}

static void test_hostile_values(void **state)
{
    (void)state;
    struct file f;
    begin(&f);
    put_key(&f, "k", GGUF_STRING);
    put_uint(&f, UINT64_MAX, 8);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: the header goes on beyond the end of the file: entry 1 of 1 needs "
            "18446744073709551615 more bytes, 0 are left: the file is cut short or damaged");
    begin(&f);
    put_key(&f, "k", GGUF_ARRAY);
    put_uint(&f, GGUF_U64, 4);
    put_uint(&f, UINT64_C(1) << 61, 8);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: the header goes on beyond the end of the file: entry 1 of 1 needs "
            "18446744073709551615 more bytes, 0 are left: the file is cut short or damaged");
    begin(&f);
    put_key(&f, "k", GGUF_ARRAY);
    put_uint(&f, GGUF_STRING, 4);
    put_uint(&f, 1000, 8);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: the header goes on beyond the end of the file: entry 1 of 1 needs 8000 more bytes, "
            "0 are left: the file is cut short or damaged");
}

static void test_wrong_values(void **state)
{
    (void)state;
    struct file f;
    begin(&f);
    put_key(&f, "k", (enum gguf_type)13);
    put_uint(&f, 0, 8);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: entry 1 of 1 has a value of type 13, expected one below 13");
    begin(&f);
    put_key(&f, "k", GGUF_ARRAY);
    for (unsigned i = 0; i < 5; i++) {
        put_uint(&f, GGUF_ARRAY, 4);
        put_uint(&f, 1, 8);
    }
    put_uint(&f, 0, 12);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT, "m: entry 1 of 1 has arrays nested more than 4 deep");
    begin(&f);
    add_u32(&f, "same", 1);
    add_u32(&f, "same", 2);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT, "m: key 'same' occurs twice");
    begin(&f);
    add_u32(&f, "", 1);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT, "m: entry 1 of 1 has a name of 0 bytes, expected 1 to 255");
    begin(&f);
    add_u32(&f, "\xff", 1);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: the name of entry 1 of 1 is not printable text: the file is damaged");
    begin(&f);
    add_u32(&f, "general.alignment", 24);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT, "m: general.alignment is 24, expected a power of two");
}

static void test_hostile_tensors(void **state)
{
    (void)state;
    struct file f;
    begin(&f);
    add_tensor(&f, "w", 0, 8, 0, 0);
    end(&f);
    refused(&f, file_bytes(&f) - 5, FM_ERR_FORMAT,
            "m: the file has 91 bytes, but its tensors end at byte 96: 5 bytes are missing, the "
            "file is cut short");
    begin(&f);
    add_tensor(&f, "w", 12, 128, 2, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT,
            "m: tensor 'w' has rows of 128 values, but its type Q4_K has blocks of 256");
    begin(&f);
    add_tensor(&f, "w", 4, 8, 0, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_UNSUPPORTED,
            "m: tensor 'w' has type 4, which this version does not know");
    begin(&f);
    add_tensor(&f, "w", 0, UINT64_C(1) << 32, UINT64_C(1) << 32, 2);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT,
            "m: tensor 'w': the bytes of shape [2, 4294967296, 4294967296] in type F32 overflow 64 "
            "bits");
    begin(&f);
    put_text(&f, "w");
    put_uint(&f, 5, 4);
    f.n_tensors = 1;
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT,
            "m: tensor 'w' has 5 dimensions, more than the limit of 4");
    begin(&f);
    add_tensor(&f, "w", 0, 8, 0, 0);
    f.data_bytes = 16;
    add_tensor(&f, "v", 0, 8, 0, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT, "m: tensor 'v' has offset 16, expected a multiple of 32");
    begin(&f);
    add_tensor(&f, "w", 0, 16, 0, 0);
    f.data_bytes = 32;
    add_tensor(&f, "v", 0, 8, 0, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT,
            "m: tensors 'w' and 'v' overlap: bytes 96 to 160 and 128 to 160");
    begin(&f);
    f.data_bytes = UINT64_MAX - 31;
    add_tensor(&f, "w", 0, 8, 0, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT, "m: tensor 'w': offset and bytes overflow 64 bits");
    begin(&f);
    add_tensor(&f, "w", 0, 8, 0, 0);
    add_tensor(&f, "w", 0, 8, 0, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT, "m: tensor 'w' occurs twice");
}

/* A header of more than one reading step. */
static void test_read(void **state)
{
    (void)state;
    struct file f;
    struct gguf g;
    struct fm_error err;
    char *filler = calloc(1, 700001);
    assert_non_null(filler);
    memset(filler, 'x', 700000);
    begin(&f);
    add_text(&f, "filler", filler);
    add_tensor(&f, "w", 0, 8, 0, 0);
    end(&f);
    char path[] = "/tmp/gguf_test_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, f.bytes, f.n), (ssize_t)f.n);
    assert_int_equal(ftruncate(fd, (off_t)file_bytes(&f)), 0);
    assert_int_equal(gguf_read(&g, fd, path, file_bytes(&f), &err), 0);
    assert_int_equal(gguf_find(&g, "filler")->n, 700000);
    assert_int_equal(gguf_find_tensor(&g, "w")->bytes, 32);
    gguf_clear(&g);
    assert_int_equal(gguf_read(&g, fd, path, 300000, &err), FM_ERR_FORMAT);
    for (long nth = 1;; nth++) {
        mem_fail_at(nth);
        const int rc = gguf_read(&g, fd, path, file_bytes(&f), &err);
        mem_fail_at(0);
        if (rc == 0)
            break;
        assert_int_equal(rc, FM_ERR_NOMEM);
        assert_null(g.owned);
    }
    gguf_clear(&g);
    plat_close(fd);
    (void)unlink(path);
    free(filler);
    free(f.bytes);
}

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
    const int rc = gguf_fill_source(*s, &g, err);
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
    int rc = -1;
    for (long nth = 1; rc != 0; nth++) {
        struct source *s = mem_new(1, sizeof *s, "a source", NULL);
        assert_non_null(s);
        mem_fail_at(nth);
        rc = gguf_fill_source(s, &g, &err);
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
        cmocka_unit_test(test_good_header),     cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_formats),         cmocka_unit_test(test_magic),
        cmocka_unit_test(test_hostile_values),  cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_hostile_tensors), cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_read),            cmocka_unit_test(test_hybrid_names),
        cmocka_unit_test(test_hybrid_config),   cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_plain),           cmocka_unit_test(test_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
