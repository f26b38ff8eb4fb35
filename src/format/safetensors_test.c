#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"
#include "format/safetensors.h"

/* Parses `json` as the header of the file 'm', followed by `data_bytes` bytes of data. */
static int parse(const char *json, uint64_t data_bytes, struct safetensors *st,
                 struct fm_error *err)
{
    size_t n = strlen(json);
    unsigned char *head = malloc(n + 8); /* exact, so that a sanitizer sees any byte too many */
    assert_non_null(head);
    for (unsigned i = 0; i < 8; i++)
        head[i] = (unsigned char)((uint64_t)n >> (8 * i));
    memcpy(head + 8, json, n);
    int rc = safetensors_parse(st, "m", head, n + 8, 8 + n + data_bytes, err);
    free(head);
    return rc;
}

static void test_good_header(void **state)
{
    (void)state;
    const char *json = "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"b\":{\"dtype\":\"U32\",\"shape\":[],\"data_offsets\":[17,21]},"
                       "\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[1,13],"
                       "\"note\":{\"extra\":[null]}},"
                       "\"empty\":{\"dtype\":\"F16\",\"shape\":[4,0],\"data_offsets\":[5,5]}} ";
    struct safetensors st;
    struct fm_error err;
    assert_int_equal(parse(json, 21, &st, &err), 0);
    uint64_t data = 8 + strlen(json);
    assert_int_equal(st.n_tensors, 3);
    assert_int_equal(st.names_bytes, 2 + 2 + 6);
    const struct tensor_info *t = &st.tensors[0];
    assert_string_equal(t->name, "a");
    assert_string_equal(t->dtype, "BF16");
    assert_ptr_equal(t->quant, &quant_bf16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 2);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->parts[0].offset, data + 1);
    assert_int_equal(t->parts[0].bytes, 12);
    assert_string_equal(st.tensors[1].name, "empty");
    assert_int_equal(st.tensors[1].parts[0].bytes, 0);
    assert_string_equal(st.tensors[2].name, "b");
    assert_null(st.tensors[2].quant);
    assert_int_equal(st.tensors[2].n_dims, 0);
    assert_int_equal(st.tensors[2].parts[0].offset, data + 17);
    safetensors_clear(&st);
    safetensors_clear(&st);
    assert_int_equal(parse("{}", 0, &st, &err), 0);
    assert_int_equal(st.n_tensors, 0);
    safetensors_clear(&st);
    assert_int_equal(parse("{\"__metadata__\":null}", 0, &st, &err), 0);
    safetensors_clear(&st);
}

static void test_dtypes(void **state)
{
    (void)state;
    const struct {
        const char *name;
        unsigned bytes;
        const struct quant *quant;
    } known[] = {
        {"BOOL", 1, NULL},    {"U8", 1, NULL},         {"I8", 1, NULL},      {"F8_E5M2", 1, NULL},
        {"F8_E4M3", 1, NULL}, {"F8_E8M0", 1, NULL},    {"I16", 2, NULL},     {"U16", 2, NULL},
        {"F16", 2, &quant_f16}, {"BF16", 2, &quant_bf16}, {"I32", 4, NULL},  {"U32", 4, NULL},
        {"F32", 4, &quant_f32}, {"I64", 8, NULL},      {"U64", 8, NULL},     {"F64", 8, NULL},
        {"C64", 8, NULL},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char json[128];
        (void)snprintf(json, sizeof json,
                       "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,%u]}}",
                       known[i].name, 3 * known[i].bytes);
        struct safetensors st;
        struct fm_error err;
        assert_int_equal(parse(json, 3 * known[i].bytes, &st, &err), 0);
        assert_string_equal(st.tensors[0].dtype, known[i].name);
        assert_ptr_equal(st.tensors[0].quant, known[i].quant);
        safetensors_clear(&st);
    }
}

static void check_refused(const char *json, uint64_t data_bytes, int code, const char *message)
{
    struct safetensors st;
    struct fm_error err = {0};
    assert_int_equal(parse(json, data_bytes, &st, &err), code);
    assert_string_equal(err.text, message);
    assert_int_equal(err.code, code);
    assert_null(st.tensors);
    assert_int_equal(parse(json, data_bytes, &st, NULL), code);
}

#define T(dtype, shape, offsets) \
    "{\"t\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *json, *message;
} bad_entries[] = {
    {"{\"t\":3}", "m: tensor 't' is 3, expected an object"},
    {"{\"t\":{\"shape\":[1],\"data_offsets\":[0,1]}}", "m: tensor 't' has no dtype"},
    {"{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", "m: tensor 't' has no shape"},
    {"{\"t\":{\"dtype\":\"U8\",\"shape\":[1]}}", "m: tensor 't' has no data_offsets"},
    {T("8", "[1]", "[0,1]"), "m: tensor 't': dtype is 8, expected a string"},
    {T("null", "[1]", "[0,1]"), "m: tensor 't': dtype is null, expected a string"},
    {T("\"F7\"", "[1]", "[0,1]"),
     "m: tensor 't': dtype is \"F7\", expected a known one such as \"BF16\""},
    {T("\"U8\"", "4", "[0,1]"),
     "m: tensor 't': shape is 4, expected an array of non-negative integers"},
    {T("\"U8\"", "[2,-4]", "[0,1]"),
     "m: tensor 't': shape is [2,-4], expected an array of non-negative integers"},
    {T("\"U8\"", "[1.5]", "[0,1]"),
     "m: tensor 't': shape is [1.5], expected an array of non-negative integers"},
    {T("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"),
     "m: tensor 't' has 9 dimensions, more than the limit of 8"},
    {T("\"F32\"", "[4611686018427387904,3]", "[0,1]"),
     "m: tensor 't': the bytes of shape [4611686018427387904, 3] in dtype F32 overflow 64 "
     "bits"},
    {T("\"F32\"", "[0,4611686018427387904,3]", "[0,0]"),
     "m: tensor 't': the bytes of shape [0, 4611686018427387904, 3] in dtype F32 overflow 64 "
     "bits"},
    {T("\"U8\"", "[1]", "\"x\""),
     "m: tensor 't': data_offsets is \"x\", expected an array of two non-negative integers"},
    {T("\"U8\"", "[1]", "[0]"),
     "m: tensor 't': data_offsets is [0], expected an array of two non-negative integers"},
    {T("\"U8\"", "[1]", "[-1,0]"),
     "m: tensor 't': data_offsets is [-1,0], expected an array of two non-negative integers"},
    {T("\"U8\"", "[1]", "[0,1.0]"),
     "m: tensor 't': data_offsets is [0,1.0], expected an array of two non-negative integers"},
    {T("\"U8\"", "[1]", "[5,4]"),
     "m: tensor 't': data_offsets [5, 4] end before they begin"},
    {T("\"U8\"", "[8]", "[9,17]"),
     "m: tensor 't': data_offsets [9, 17] end beyond the file, which has 16 bytes after its "
     "header"},
    {T("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]"),
     "m: tensor 't': data_offsets [0, 9223372036854775807] end beyond the file, which has 16 "
     "bytes after its header"},
    {T("\"BF16\"", "[2,3]", "[0,11]"),
     "m: tensor 't': shape [2, 3] in dtype BF16 needs 12 bytes, but its data_offsets hold 11"},
    {T("\"BF16\"", "[2,0]", "[0,4]"),
     "m: tensor 't': shape [2, 0] in dtype BF16 needs 0 bytes, but its data_offsets hold 4"},
    {"{\"__metadata__\":[]}", "m: __metadata__ is [], expected an object of strings"},
    {"{\"__metadata__\":{\"n\":1}}",
     "m: field 'n' of __metadata__ is 1, expected a string"},
};

static void test_entries_that_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_entries / sizeof bad_entries[0]; i++)
        check_refused(bad_entries[i].json, 16, FM_ERR_FORMAT, bad_entries[i].message);
    check_refused(T("\"F4\"", "[2]", "[0,1]"), 16, FM_ERR_UNSUPPORTED,
                  "m: tensor 't' has dtype F4, whose elements are smaller than a byte; this "
                  "version cannot read it");
}

static void test_overlaps_are_refused(void **state)
{
    (void)state;
#define U8(name, n, begin, end) \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" n "],\"data_offsets\":[" begin "," end "]}"
    check_refused("{" U8("late", "4", "7", "11") "," U8("early", "8", "0", "8") "}", 16,
                  FM_ERR_FORMAT,
                  "m: tensors 'early' and 'late' overlap: data_offsets [0, 8] and [7, 11]");
    check_refused("{" U8("a", "4", "2", "6") "," U8("b", "4", "2", "6") "}", 16, FM_ERR_FORMAT,
                  "m: tensors 'a' and 'b' overlap: data_offsets [2, 6] and [2, 6]");
    check_refused("{" U8("a", "9", "0", "9") "," U8("b", "2", "3", "5") "," U8("z", "0", "4", "4")
                  "}", 16, FM_ERR_FORMAT,
                  "m: tensors 'a' and 'b' overlap: data_offsets [0, 9] and [3, 5]");
    struct safetensors st;
    assert_int_equal(parse("{" U8("a", "4", "4", "8") "," U8("b", "4", "0", "4") "}", 8, &st, NULL),
                     0);
    assert_string_equal(st.tensors[0].name, "b");
    safetensors_clear(&st);
#undef U8
}

static void check_starts(const char *json, const char *start)
{
    struct safetensors st;
    struct fm_error err = {0};
    assert_int_equal(parse(json, 16, &st, &err), FM_ERR_FORMAT);
    assert_memory_equal(err.text, start, strlen(start));
    assert_null(st.tensors);
}

static void test_text_that_is_not_the_json_wanted(void **state)
{
    (void)state;
    check_starts("{\"t\":", "m (safetensors header): not valid JSON at byte 5 (line 1): ");
    check_starts("not JSON", "m (safetensors header): not valid JSON at byte ");
    check_starts("[1]", "m (safetensors header): the JSON root is not an object");
    check_starts("{\"t\":1,\"t\":2}", "m (safetensors header): not valid JSON at byte 10 (line 1): "
                                      "duplicate object key near '\"t\"'");
    check_starts(T("\"U8\"", "[99999999999999999999]", "[0,1]"),
                 "m: tensor 't': shape is [1e20], expected an array of non-negative integers");
    check_starts("{\"\\u0000\":1}", "m (safetensors header): not valid JSON at byte ");
}

static void check_framing(const char *bytes, size_t n, uint64_t file_bytes, int code,
                          const char *message)
{
    struct safetensors st;
    struct fm_error err = {0};
    assert_int_equal(safetensors_parse(&st, "m", bytes, n, file_bytes, &err), code);
    assert_string_equal(err.text, message);
}

static void test_framing_that_is_refused(void **state)
{
    (void)state;
    check_framing("", 0, 0, FM_ERR_FORMAT,
                  "m: 0 bytes, too short for a safetensors file, which begins with 8 bytes of "
                  "header length");
    check_framing("\2\0\0\0\0\0\0", 7, 7, FM_ERR_FORMAT,
                  "m: 7 bytes, too short for a safetensors file, which begins with 8 bytes of "
                  "header length");
    check_framing("\0\0\0\0\0\0\0\0{}", 10, 10, FM_ERR_FORMAT,
                  "m: the safetensors header length is 0");
    check_framing("\3\0\0\0\0\0\0\0{}", 10, 10, FM_ERR_FORMAT,
                  "m: the safetensors header length is 3, but only 2 bytes follow it: the file is "
                  "truncated or not a safetensors file; download it again");
    check_framing("\377\377\377\377\377\377\377\377{}", 10, 10, FM_ERR_FORMAT,
                  "m: the safetensors header length is 18446744073709551615, but only 2 bytes "
                  "follow it: the file is truncated or not a safetensors file; download it again");
    check_framing("\1\341\365\5\0\0\0\0{}", 10, 1u << 30, FM_ERR_FORMAT,
                  "m: the safetensors header length is 100000001, more than the limit of "
                  "100000000");
    check_framing("\3\0\0\0\0\0\0\0{}", 10, 11, FM_ERR_ARG,
                  "m: 2 bytes were given of a header of 3");
    check_framing("version https://", 16, 16, FM_ERR_FORMAT,
                  "m: this is a Git LFS pointer of 16 bytes, not a safetensors file; "
                  "download the file itself, for example with 'git lfs pull'");
}

/* A name of any length leaves room in the message for the rest of the sentence. */
static void test_long_name_keeps_the_sentence(void **state)
{
    (void)state;
    char json[4096];
    (void)snprintf(json, sizeof json, "{\"%03000d\":{}}", 7);
    struct safetensors st;
    struct fm_error err = {0};
    assert_int_equal(parse(json, 0, &st, &err), FM_ERR_FORMAT);
    assert_non_null(strstr(err.text, "' has no dtype"));
}

/* 36,000 tensors, the count of a 397B checkpoint with unstacked experts, in reverse order. */
static void test_large_header_is_quick(void **state)
{
    (void)state;
    const unsigned n = 36000;
    size_t capacity = (size_t)n * 192, used = 0;
    char *json = malloc(capacity);
    assert_non_null(json);
    for (unsigned i = 0; i < n; i++)
        used += (size_t)snprintf(json + used, capacity - used,
                                 "%s\"model.layers.%u.mlp.experts.%u.gate_proj.weight\":{\"dtype\":"
                                 "\"BF16\",\"shape\":[4,8],\"data_offsets\":[%u,%u]}%s",
                                 i == 0 ? "{" : ",", i / 600, i % 600, (n - 1 - i) * 64,
                                 (n - i) * 64, i + 1 == n ? "}" : "");
    struct safetensors st;
    struct fm_error err;
    uint64_t begin = plat_now_ns();
    assert_int_equal(parse(json, (uint64_t)n * 64, &st, &err), 0);
    uint64_t ms = (plat_now_ns() - begin) / 1000000;
    print_message("36,000 tensors in %llu ms\n", (unsigned long long)ms);
    assert_int_equal(st.n_tensors, n);
    assert_string_equal(st.tensors[n - 1].name, "model.layers.0.mlp.experts.0.gate_proj.weight");
    assert_true(ms < 60000); /* a quadratic step takes minutes; sanitizers and load take seconds */
    safetensors_clear(&st);
    free(json);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    for (long nth = 1;; nth++) {
        struct safetensors st;
        struct fm_error err = {0};
        mem_fail_at(nth);
        int rc = parse(T("\"U8\"", "[2]", "[0,2]"), 2, &st, &err);
        mem_fail_at(0);
        if (rc == 0) {
            assert_true(nth > 1);
            safetensors_clear(&st);
            return;
        }
        assert_int_equal(rc, FM_ERR_NOMEM);
        assert_int_equal(err.code, FM_ERR_NOMEM);
        assert_null(st.tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_header),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_entries_that_are_refused),
        cmocka_unit_test(test_overlaps_are_refused),
        cmocka_unit_test(test_text_that_is_not_the_json_wanted),
        cmocka_unit_test(test_framing_that_is_refused),
        cmocka_unit_test(test_long_name_keeps_the_sentence),
        cmocka_unit_test(test_large_header_is_quick),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
