#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "format/fold.h"

/* A source that consists only of tensors; fold uses nothing else except the path, for messages. */
struct fixture {
    struct source source;
    struct source_file file;
    struct tensor_info tensors[8];
};

static struct tensor_info tensor(const char *name, const char *dtype, const struct quant *quant,
                                 uint64_t rows, uint64_t cols)
{
    return (struct tensor_info){.name = name, .dtype = dtype, .quant = quant, .n_dims = 2,
                                .dims = {rows, cols}, .n_parts = 1,
                                .parts = {{.offset = name != NULL ? strlen(name) : 0,
                                           .bytes = rows * cols}}};
}

static struct fixture *fixture_of(const struct tensor_info *tensors, size_t n)
{
    static struct fixture f;
    f = (struct fixture){.file = {.path = (char *)"m"}};
    memcpy(f.tensors, tensors, n * sizeof *tensors);
    f.source.files = &f.file;
    f.source.n_files = 1;
    f.source.tensors = f.tensors;
    f.source.n_tensors = n;
    return &f;
}

static void check_refused(const struct tensor_info *tensors, size_t n, int code, const char *words)
{
    struct fixture *f = fixture_of(tensors, n);
    struct fm_error err = {0};
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err), code);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' is not in '%s'", words, err.text);
}

static void test_affine(void **state)
{
    (void)state;
    const struct tensor_info tensors[] = {
        tensor("a.biases", "BF16", &quant_bf16, 4, 2),
        tensor("a.scales", "BF16", &quant_bf16, 4, 2),
        tensor("a.weight", "U32", NULL, 4, 16), tensor("b.weight", "U32", NULL, 4, 16)};
    struct fixture *f = fixture_of(tensors, 4);
    struct fm_error err = {0};
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err), 0);
    assert_int_equal(f->source.n_tensors, 2);
    const struct tensor_info *t = source_find(&f->source, "a.weight");
    assert_int_equal(t->n_parts, 3);
    assert_ptr_equal(t->scale, &quant_bf16);
    assert_int_equal(t->parts[1].offset, strlen("a.scales"));
    assert_int_equal(t->parts[2].offset, strlen("a.biases"));
    /* 16 words and 2 scales per row fit 128 columns of 4 bits, 64 of 8 and 256 of 2. */
    assert_string_equal(tensor_info_affine(t, 128)->name, "affine4-g64");
    assert_string_equal(tensor_info_affine(t, 64)->name, "affine8-g32");
    assert_string_equal(tensor_info_affine(t, 256)->name, "affine2-g128");
    assert_null(tensor_info_affine(t, 512));
    assert_null(tensor_info_affine(t, 127));
    assert_null(tensor_info_affine(t, 0));
    assert_null(tensor_info_affine(source_find(&f->source, "b.weight"), 128));
}

static void test_affine_refused(void **state)
{
    (void)state;
    const struct tensor_info codes = tensor("a.weight", "U32", NULL, 4, 16);
    const struct tensor_info scales = tensor("a.scales", "BF16", &quant_bf16, 4, 2);
    const struct tensor_info biases = tensor("a.biases", "BF16", &quant_bf16, 4, 2);
    const struct tensor_info no_biases[] = {scales, codes};
    check_refused(no_biases, 2, FM_ERR_UNSUPPORTED,
                  "m: tensor 'a.weight' has scales but no biases");
    struct tensor_info set[] = {biases, scales, codes};
    set[1].dims[0] = 5;
    check_refused(set, 3, FM_ERR_FORMAT, "'a.weight' [4, 16] and 'a.scales' [5, 2]");
    set[1] = scales;
    set[0].dims[1] = 1;
    check_refused(set, 3, FM_ERR_FORMAT, "'a.scales' [4, 2] and 'a.biases' [4, 1]");
    set[0] = tensor("a.biases", "F16", &quant_f16, 4, 2);
    check_refused(set, 3, FM_ERR_FORMAT, "scales and biases must be alike");
    set[0] = tensor("a.biases", "F32", &quant_f32, 4, 2);
    check_refused(set, 3, FM_ERR_UNSUPPORTED, "'a.biases' has dtype F32");
}

/* Codes [2 experts, 6 rows, 3 blocks, 16 bytes] and scales, as gpt-oss checkpoints have them. */
static void make_blocks(struct tensor_info set[2])
{
    set[0] = tensor("e.up_blocks", "U8", NULL, 0, 0);
    set[1] = tensor("e.up_scales", "U8", NULL, 0, 0);
    set[0].n_dims = 4;
    set[1].n_dims = 3;
    memcpy(set[0].dims, (const uint64_t[]){2, 6, 3, 16}, 4 * sizeof(uint64_t));
    memcpy(set[1].dims, (const uint64_t[]){2, 6, 3}, 3 * sizeof(uint64_t));
}

static void test_mxfp4_blocks(void **state)
{
    (void)state;
    struct tensor_info set[2];
    make_blocks(set);
    struct fixture *f = fixture_of(set, 2);
    struct fm_error err = {0};
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err), 0);
    assert_int_equal(f->source.n_tensors, 1);
    const struct tensor_info *t = source_find(&f->source, "e.up_blocks");
    assert_string_equal(t->quant->name, "mxfp4-g32");
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->dims[1], 6);
    assert_int_equal(t->dims[2], 96);
    assert_int_equal(t->n_parts, 2);
    check_refused(set, 1, FM_ERR_FORMAT, "'e.up_blocks' has no scales");
    set[0].dims[3] = 8;
    check_refused(set, 2, FM_ERR_FORMAT, "'e.up_blocks' [2, 6, 3, 8] and 'e.up_scales' [2, 6, 3]");
    make_blocks(set);
    set[1].dims[2] = 4;
    check_refused(set, 2, FM_ERR_FORMAT, "16 bytes and one U8 scale per 32 columns");
    make_blocks(set);
    set[1].dtype = "BF16";
    check_refused(set, 2, FM_ERR_FORMAT, "one U8 scale");
    make_blocks(set);
    set[1].n_dims = 4;
    check_refused(set, 2, FM_ERR_FORMAT, "do not belong together");
}

static void test_mxfp4_words(void **state)
{
    (void)state;
    struct tensor_info set[] = {tensor("a.scales", "U8", NULL, 4, 2),
                                tensor("a.weight", "U32", NULL, 4, 8)};
    struct fixture *f = fixture_of(set, 2);
    struct fm_error err = {0};
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err), 0);
    const struct tensor_info *t = source_find(&f->source, "a.weight");
    assert_string_equal(t->quant->name, "mxfp4-g32");
    assert_int_equal(t->dims[1], 64);
    assert_int_equal(f->source.n_tensors, 1);
    set[1] = tensor("a.weight", "U32", NULL, 4, 16); /* MLX's mxfp8 */
    check_refused(set, 2, FM_ERR_UNSUPPORTED, "has 16 words and 2 scales per row");
    set[1] = tensor("a.weight", "U32", NULL, 5, 8);
    check_refused(set, 2, FM_ERR_FORMAT, "'a.weight' [5, 8] and 'a.scales' [4, 2]");
}

static void test_fp8(void **state)
{
    (void)state;
    const struct tensor_info tensors[] = {
        tensor("x.input_scale", "F32", &quant_f32, 1, 1),
        tensor("x.weight", "F8_E4M3", NULL, 130, 256),
        tensor("x.weight_scale_inv", "F32", &quant_f32, 2, 2)};
    struct fixture *f = fixture_of(tensors, 3);
    struct fm_error err = {0};
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err), 0);
    assert_int_equal(f->source.n_tensors, 1);
    const struct tensor_info *t = source_find(&f->source, "x.weight");
    assert_string_equal(t->quant->name, "fp8-b128-f32");
    assert_int_equal(t->n_parts, 2);
    /* 130 rows need 2 rows of a part that 128 rows share. */
    assert_int_equal(quant_part_bytes(t->quant, 1, 130, 256), 2 * 2 * sizeof(float));
    assert_int_equal(quant_matrix_bytes(t->quant, 130, 256), 130 * 256 + 16);
}

/* The scale stays: who binds the table takes it. */
static void test_fp8_table(void **state)
{
    (void)state;
    const struct tensor_info tensors[] = {
        tensor("t.shard_0.weight", "F8_E4M3", NULL, 3, 5),
        tensor("t.shard_1.weight", "F8_E4M3", NULL, 3, 5),
        tensor("t.weight_scale", "BF16", &quant_bf16, 1, 1)};
    struct fixture *f = fixture_of(tensors, 3);
    struct fm_error err = {0};
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err), 0);
    assert_int_equal(f->source.n_tensors, 3);
    assert_ptr_equal(source_find(&f->source, "t.shard_1.weight")->quant, &quant_fp8_codes);
    struct tensor_info set[] = {tensors[0], tensors[2]};
    set[1].dims[1] = 2;
    check_refused(set, 2, FM_ERR_UNSUPPORTED, "without 't.shard_0.weight_scale_inv'");
}

static void test_fp8_refused(void **state)
{
    (void)state;
    const struct tensor_info codes = tensor("x.weight", "F8_E4M3", NULL, 128, 256);
    const struct tensor_info scales = tensor("x.weight_scale_inv", "F32", &quant_f32, 1, 2);
    check_refused(&codes, 1, FM_ERR_UNSUPPORTED, "without 'x.weight_scale_inv'");
    struct tensor_info set[] = {codes, scales};
    set[1].dims[0] = 2;
    check_refused(set, 2, FM_ERR_FORMAT, "one scale per 128 x 128");
    set[1] = tensor("x.weight_scale_inv", "I32", NULL, 1, 2);
    check_refused(set, 2, FM_ERR_UNSUPPORTED, "has dtype I32");
    set[1] = scales;
    set[0].dims[1] = 250;
    check_refused(set, 2, FM_ERR_UNSUPPORTED, "has 250 columns");
}

/* ---- compressed-tensors ---- */

static const char packed_config[] =
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\"}}";

/* A packed weight [rows, words] with scales and a shape tensor, whose bytes are in a file. Names
 * are cut in place. */
struct packed_case {
    char name[32];
    struct tensor_info set[4];
    size_t n;
    int32_t shape[2];
    const char *config;
};

static struct packed_case packed_case(void)
{
    struct packed_case c = {.name = "x.weight_packed", .n = 3, .shape = {4, 64},
                            .config = packed_config};
    c.set[0] = tensor(NULL, "I32", NULL, 4, 8);
    c.set[1] = tensor("x.weight_scale", "BF16", &quant_bf16, 4, 2);
    c.set[2] = tensor("x.weight_shape", "I32", NULL, 2, 1);
    c.set[2].n_dims = 1;
    return c;
}

/* Folds the case. The source is gone afterwards, except for its tensors. */
static int fold_case(struct packed_case *c, struct fixture **out, struct fm_error *err)
{
    c->set[0].name = c->name;
    struct fixture *f = *out = fixture_of(c->set, c->n);
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_int_equal(fwrite(c->shape, sizeof c->shape, 1, file), 1);
    assert_int_equal(fflush(file), 0);
    f->file.fd = fileno(file);
    f->file.bytes = f->file.opened.bytes = sizeof c->shape;
    f->tensors[2].parts[0].offset = 0;
    assert_int_equal(jdoc_parse(&f->source.config, "c", c->config, strlen(c->config), err), 0);
    const int rc = fold_quantised(&f->source, &(struct source_options){0}, err);
    jdoc_clear(&f->source.config);
    (void)fclose(file);
    return rc;
}

static void check_packed_refused(struct packed_case c, int code, const char *words)
{
    struct fixture *f;
    struct fm_error err = {0};
    assert_int_equal(fold_case(&c, &f, &err), code);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' is not in '%s'", words, err.text);
}

static struct tensor_info scales_of(const char *dtype, const struct quant *quant, uint64_t rows,
                                    uint64_t cols)
{
    return tensor("x.weight_scale", dtype, quant, rows, cols);
}

static void test_packed(void **state)
{
    (void)state;
    struct fixture *f;
    struct fm_error err = {0};
    struct packed_case c = packed_case();
    assert_int_equal(fold_case(&c, &f, &err), 0);
    assert_int_equal(f->source.n_tensors, 1);
    const struct tensor_info *t = source_find(&f->source, "x.weight");
    assert_non_null(t);
    assert_string_equal(t->quant->name, "int4-g32");
    assert_int_equal(t->dims[0], 4);
    assert_int_equal(t->dims[1], 64);
    assert_int_equal(t->n_parts, 2);
    assert_int_equal(t->parts[1].offset, strlen("x.weight_scale"));
    c = packed_case();
    c.set[1] = scales_of("F16", &quant_f16, 4, 2);
    assert_int_equal(fold_case(&c, &f, &err), 0);
    assert_string_equal(source_find(&f->source, "x.weight")->quant->name, "int4-g32-f16");
}

static void test_packed_shapes_refused(void **state)
{
    (void)state;
    struct packed_case c = packed_case();
    c.shape[1] = 63;
    check_packed_refused(c, FM_ERR_FORMAT, "m: tensor 'x.weight_shape' has the values [4, 63]");
    c = packed_case();
    c.shape[0] = -4;
    check_packed_refused(c, FM_ERR_FORMAT, "'x.weight_shape' has the values [4294967292, 64]");
    c = packed_case();
    c.set[2].dims[0] = 3;
    check_packed_refused(c, FM_ERR_FORMAT, "'x.weight_shape' is I32 [3], expected two numbers");
    c = packed_case();
    c.set[2].dtype = "BF16";
    check_packed_refused(c, FM_ERR_FORMAT, "'x.weight_shape' is BF16 [2]");
    c = packed_case();
    c.set[1] = scales_of("BF16", &quant_bf16, 4, 1); /* groups of 64 */
    check_packed_refused(c, FM_ERR_FORMAT, "'x.weight_packed' [4, 8] and 'x.weight_scale' [4, 1]");
    c = packed_case();
    c.set[1] = scales_of("BF16", &quant_bf16, 5, 2);
    check_packed_refused(c, FM_ERR_FORMAT, "4 words and one scale per 32 columns");
    c = packed_case();
    c.set[0] = tensor(NULL, "I32", NULL, 4, 9);
    check_packed_refused(c, FM_ERR_FORMAT, "4 words and one scale per 32 columns");
}

static void test_packed_refused(void **state)
{
    (void)state;
    struct packed_case c = packed_case();
    c.set[1] = scales_of("F32", &quant_f32, 4, 2);
    check_packed_refused(c, FM_ERR_UNSUPPORTED, "'x.weight_scale' has dtype F32");
    c = packed_case();
    c.config = "{}";
    check_packed_refused(c, FM_ERR_FORMAT, "'x.weight_packed' is packed, but c has no");
    c = packed_case();
    c.n = 2;
    check_packed_refused(c, FM_ERR_FORMAT, "has no 'weight_shape' beside it");
    static const char *const others[] = {"x.weight_zero_point", "x.weight_zzz"};
    for (unsigned i = 0; i < 2; i++) {
        struct fixture *f;
        struct fm_error err = {0};
        c = packed_case();
        c.set[3] = tensor(others[i], "I32", NULL, 4, 2);
        c.n = 4;
        assert_int_equal(fold_case(&c, &f, &err), i == 0 ? FM_ERR_UNSUPPORTED : 0);
    }
    c = packed_case();
    c.set[3] = c.set[2];
    c.set[2] = c.set[1];
    c.set[1] = tensor("x.weight_g_idx", "I32", NULL, 64, 1);
    c.n = 4;
    /* Sorted: x.weight_g_idx comes before x.weight_packed. */
    const struct tensor_info first = c.set[1];
    c.set[1] = c.set[0];
    c.set[0] = first;
    struct fixture *f = fixture_of(c.set, c.n);
    struct fm_error err = {0};
    f->tensors[1].name = c.name;
    assert_int_equal(fold_quantised(&f->source, &(struct source_options){0}, &err),
                     FM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "tensor 'x.weight_g_idx' belongs to 'x.weight_packed'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_affine),
        cmocka_unit_test(test_affine_refused),
        cmocka_unit_test(test_mxfp4_blocks),
        cmocka_unit_test(test_mxfp4_words),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_fp8_refused),
        cmocka_unit_test(test_fp8_table),
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_packed_shapes_refused),
        cmocka_unit_test(test_packed_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
