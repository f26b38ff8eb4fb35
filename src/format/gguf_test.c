#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/plat.h"
#include "format/gguf_family.h"
#include "gguf_file.h"

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
    /* with fewer bytes available than the file has, it asks for more */
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
            "m: the file has 20 bytes, but a GGUF header has at least 24: the file is truncated or "
            "not GGUF; download it again");
    begin(&f);
    memcpy(f.bytes, "ggjt", 4);
    refused(&f, 24, FM_ERR_FORMAT,
            "m: not a GGUF file: it begins with the bytes 67 67 6a 74, expected \"GGUF\"");
    begin(&f);
    set_uint(&f, 4, 1, 4);
    refused(&f, 24, FM_ERR_UNSUPPORTED,
            "m: the file has GGUF version 1; this version reads 2 and 3");
    begin(&f);
    set_uint(&f, 4, 3u << 24, 4);
    refused(&f, 24, FM_ERR_UNSUPPORTED,
            "m: the GGUF file is big-endian; this version reads only little-endian files");
    begin(&f);
    memcpy(f.bytes, "FUGG", 4);
    refused(&f, 24, FM_ERR_UNSUPPORTED,
            "m: the GGUF file is big-endian; this version reads only little-endian files");
    begin(&f);
    f.n = 0;
    put(&f, "version https://git-lfs.github.com/spec/v1\n", 43);
    refused(&f, 43, FM_ERR_FORMAT,
            "m: this is a Git LFS pointer of 43 bytes, not a GGUF file; download the file "
            "itself, for example with 'git lfs pull'");
    begin(&f);
    set_uint(&f, 8, UINT64_MAX, 8);
    refused(&f, 24, FM_ERR_FORMAT,
            "m: the header declares 18446744073709551615 tensors, more than the limit of 1048576: "
            "the file is damaged; download it again");
    begin(&f);
    set_uint(&f, 16, 65537, 8);
    refused(&f, 24, FM_ERR_FORMAT,
            "m: the header declares 65537 entries of metadata, more than the limit of 65536: the "
            "file is damaged; download it again");
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
            "m: the header is longer than the file: entry 1 of 1 needs 18446744073709551615 bytes, "
            "but only 0 are left: the file is truncated or damaged; download it again");
    begin(&f);
    put_key(&f, "k", GGUF_ARRAY);
    put_uint(&f, GGUF_U64, 4);
    put_uint(&f, UINT64_C(1) << 61, 8);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: the header is longer than the file: entry 1 of 1 needs 18446744073709551615 bytes, "
            "but only 0 are left: the file is truncated or damaged; download it again");
    begin(&f);
    put_key(&f, "k", GGUF_ARRAY);
    put_uint(&f, GGUF_STRING, 4);
    put_uint(&f, 1000, 8);
    end(&f);
    refused(&f, f.n, FM_ERR_FORMAT,
            "m: the header is longer than the file: entry 1 of 1 needs 8000 bytes, but only 0 are "
            "left: the file is truncated or damaged; download it again");
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
            "m: entry 1 of 1 has a value of type 13, expected a type below 13");
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
            "m: the name of entry 1 of 1 is not printable text: the file is damaged; download it "
            "again");
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
            "m: the file has 91 bytes, but its tensors end at byte 96: the file is truncated, 5 "
            "bytes are missing; download it again");
    begin(&f);
    add_tensor(&f, "w", 12, 128, 2, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_FORMAT,
            "m: tensor 'w' has rows of 128 values, but its type Q4_K has blocks of 256");
    begin(&f);
    add_tensor(&f, "w", 4, 8, 0, 0);
    end(&f);
    refused(&f, MAX_BYTES, FM_ERR_UNSUPPORTED,
            "m: tensor 'w' has type 4, which this version does not support");
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

/* A header that needs more than one read. */
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

/* ---- a family that is handed down --------------------------------------------------------- */

static const char *const toy_architectures[] = {"toy", "toy2", NULL};
static const char *const toy_own_keys[] = {".expert_weights_scale", ".expert_gating_func", NULL};
static const struct gguf_field toy_fields[] = {
    {"hidden_size", ".embedding_length", 64, false},
    {"num_attention_heads", ".attention.head_count", 64, false},
    {0},
};
static const struct gguf_name toy_names[] = {
    {"token_embd.weight", "embedding", false, false},
    {0},
};
static const struct gguf_name toy_first[] = {
    {"mix.weight", "mixer.a", true, false},
    {"gate.weight", "gate", false, true},
    {0},
};
static const struct gguf_name toy_second[] = {
    {"mix.weight", "mixer.b", false, false},
    {0},
};

/* Layer 1 is recurrent. */
static int toy_more(const struct gguf *g, json_t *config, struct gguf_layout *layout,
                    struct fm_error *err)
{
    double scale;
    int rc = gguf_number_or(g, ".expert_weights_scale", 0, 10, 1, &scale, err);
    gguf_config_set(config, "scale", json_real(scale), &rc, err);
    layout->is_recurrent[1] = true;
    layout->conventions.has_final_decay = false;
    return rc;
}

static const struct gguf_family toy = {
    .architectures = toy_architectures,
    .model_type = "toy_type",
    .fields = toy_fields,
    .global_names = toy_names,
    .layer_names = {toy_first, toy_second},
    .conventions = {.has_final_norms = true, .has_final_decay = true},
    .own_keys = toy_own_keys,
    .more = toy_more,
};
static const struct gguf_family *const toys[] = {&toy, NULL};
static const struct gguf_names handed_down = {.families = toys};

static int fill_toy(const char *architecture, const struct gguf_names *names,
                    struct source **s, struct fm_error *err)
{
    static const char *const keys[] = {"block_count", "embedding_length", "attention.head_count",
                                       "expert_gating_func", "expert_count"};
    /* An architecture whose name ends in "dense" has no experts. */
    const bool is_dense = strstr(architecture, "dense") != NULL;
    struct file f;
    struct gguf g;
    uint8_t *held;
    char key[64];
    begin(&f);
    add_text(&f, "general.architecture", architecture);
    for (unsigned i = 0; i < sizeof keys / sizeof keys[0] - is_dense; i++) {
        (void)snprintf(key, sizeof key, "%s.%s", architecture, keys[i]);
        add_u32(&f, key, 2);
    }
    (void)snprintf(key, sizeof key, "%s.expert_weights_scale", architecture);
    add_f32(&f, key, 2.5f);
    add_tensor(&f, "token_embd.weight", 0, 2, 10, 0);
    add_tensor(&f, "blk.0.mix.weight", 0, 2, 3, 0);
    add_tensor(&f, "blk.1.mix.weight", 0, 2, 3, 0);
    add_tensor(&f, "blk.1.gate.weight", 0, 2, 0, 0);
    add_tensor(&f, "output.weight", 0, 2, 10, 0);
    end(&f);
    assert_int_equal(parse(&f, file_bytes(&f), &g, &held, err), 0);
    *s = mem_new(1, sizeof **s, "a source", NULL);
    assert_non_null(*s);
    const int rc = gguf_fill_source(*s, &g, names, err);
    gguf_clear(&g);
    free(held);
    free(f.bytes);
    return rc;
}

static void test_family(void **state)
{
    (void)state;
    struct source *s;
    struct fm_error err = {0};
    for (const char *const *name = toy_architectures; *name != NULL; name++) {
        assert_int_equal(fill_toy(*name, &handed_down, &s, &err), 0);
        assert_string_equal(json_string_value(json_object_get(s->config.root, "model_type")),
                            "toy_type");
        assert_true(json_real_value(json_object_get(s->config.root, "scale")) == 2.5);
        assert_true(json_is_false(json_object_get(s->config.root, "norm_topk_prob")));
        assert_int_equal(json_integer_value(json_object_get(s->config.root, "hidden_size")), 2);
        assert_true(s->conventions.has_final_norms);
        assert_false(s->conventions.has_final_decay);
        assert_non_null(source_find(s, "embedding"));
        assert_non_null(source_find(s, "model.layers.0.mixer.b"));
        assert_non_null(source_find(s, "model.layers.1.mixer.a"));
        const struct tensor_info *gate = source_find(s, "model.layers.1.gate");
        assert_non_null(gate);
        assert_int_equal(gate->n_dims, 2);
        assert_int_equal(gate->dims[0], 1);
        assert_non_null(source_find(s, "output.weight")); /* a tensor without an entry keeps its
                                                           * name */
        source_close(s);
    }
}

static void test_family_unknown(void **state)
{
    (void)state;
    static const struct gguf_names none;
    struct source *s;
    struct fm_error err = {0};
    assert_int_equal(fill_toy("toy3", &handed_down, &s, &err), FM_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "m: key 'general.architecture' is \"toy3\"; this version reads "
                        "only toy, toy2, of which \"toy\" is the nearest; tensors it does not "
                        "know: output.weight");
    source_close(s);
    assert_int_equal(fill_toy("toydense", &handed_down, &s, &err), FM_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "m: key 'general.architecture' is \"toydense\", and there is no "
                        "key 'toydense.expert_count': this version runs models with experts only, "
                        "and reads toy, toy2");
    source_close(s);
    assert_int_equal(fill_toy("toy", &none, &s, &err), FM_ERR_UNSUPPORTED);
    source_close(s);
    assert_int_equal(fill_toy("toy", NULL, &s, &err), FM_ERR_UNSUPPORTED);
    source_close(s);
    /* Without own keys the same file is refused. */
    struct gguf_family strict = toy;
    const struct gguf_family *const list[] = {&strict, NULL};
    const struct gguf_names down = {.families = list};
    strict.own_keys = NULL;
    assert_int_equal(fill_toy("toy", &down, &s, &err), FM_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "m: key 'toy.expert_weights_scale' is 2.5; this version reads "
                        "only 1");
    source_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_header),
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_magic),
        cmocka_unit_test(test_hostile_values),
        cmocka_unit_test(test_wrong_values),
        cmocka_unit_test(test_hostile_tensors),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_family),
        cmocka_unit_test(test_family_unknown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
