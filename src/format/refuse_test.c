#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "format/refuse.h"

/* Configurations of compressed-tensors as Kimi's, with one value replaced. */
static const char config[] =
    "{\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
    "\"format\": \"pack-quantized\", \"quantization_status\": \"compressed\", "
    "\"kv_cache_scheme\": null, \"sparsity_config\": {}, \"transform_config\": {}, "
    "\"ignore\": [\"lm_head\"], \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "
    "\"input_activations\": null, \"output_activations\": null, \"weights\": {"
    "\"num_bits\": 4, \"group_size\": 32, \"strategy\": \"group\", \"symmetric\": true, "
    "\"type\": \"int\", \"dynamic\": false, \"actorder\": null, \"block_structure\": null, "
    "\"observer\": \"minmax\"}}}}}";

/* Writes the configuration with `old` replaced by `new`, below text_config or not. */
static void write_config(char *to, size_t bytes, const char *old, const char *new, bool is_inner)
{
    const char *at = strstr(config, old);
    assert_non_null(at);
    assert_null(strstr(at + 1, old));
    const int n = snprintf(to, bytes, "%s%.*s%s%s%s", is_inner ? "{\"text_config\": " : "",
                           (int)(at - config), config, new, at + strlen(old), is_inner ? "}" : "");
    assert_true(n > 0 && (size_t)n < bytes);
}

static int refuse(const char *text, struct fm_error *err)
{
    struct jdoc doc = {0};
    assert_int_equal(jdoc_parse(&doc, "/m/config.json", text, strlen(text), err), 0);
    const int rc = refuse_quantised(&doc, err);
    jdoc_clear(&doc);
    return rc;
}

static void check_refused(const char *old, const char *new, const char *field, const char *shown)
{
    for (int inner = 0; inner < 2; inner++) {
        char text[2048], words[256];
        struct fm_error err = {0};
        write_config(text, sizeof text, old, new, inner != 0);
        assert_int_not_equal(refuse(text, &err), 0);
        (void)snprintf(words, sizeof words,
                       "/m/config.json: field '%squantization_config.%s' is %s",
                       inner ? "text_config." : "", field, shown);
        if (strstr(err.text, words) == NULL)
            fail_msg("'%s' is not in '%s'", words, err.text);
    }
}

static void test_packed_is_read(void **state)
{
    (void)state;
    static const char *const optional[] = {
        "\"strategy\": \"group\", ", "\"symmetric\": true, ", "\"dynamic\": false, ",
        "\"quantization_status\": \"compressed\", ", "\"sparsity_config\": {}, "};
    struct fm_error err = {0};
    char text[2048];
    for (int inner = 0; inner < 2; inner++) {
        struct jdoc doc = {0};
        write_config(text, sizeof text, "lm_head", "re:.*", inner != 0);
        assert_int_equal(refuse(text, &err), 0);
        assert_int_equal(jdoc_parse(&doc, "c", text, strlen(text), &err), 0);
        assert_true(refuse_expects_packed(&doc));
        jdoc_clear(&doc);
    }
    for (size_t i = 0; i < sizeof optional / sizeof optional[0]; i++) {
        write_config(text, sizeof text, optional[i], "", false);
        assert_int_equal(refuse(text, &err), 0);
    }
}

#define WEIGHTS "config_groups.group_0.weights."

static void test_other_weights(void **state)
{
    (void)state;
    check_refused("\"num_bits\": 4", "\"num_bits\": 8", WEIGHTS "num_bits", "8: of compressed");
    check_refused("\"num_bits\": 4", "\"num_bits\": \"4\"", WEIGHTS "num_bits", "\"4\"");
    check_refused("\"num_bits\": 4, ", "", WEIGHTS "num_bits", "missing");
    check_refused("\"group_size\": 32", "\"group_size\": 128", WEIGHTS "group_size", "128");
    check_refused("\"group_size\": 32", "\"group_size\": null", WEIGHTS "group_size", "missing");
    check_refused("\"strategy\": \"group\"", "\"strategy\": \"channel\"", WEIGHTS "strategy",
                  "\"channel\"");
    check_refused("\"symmetric\": true", "\"symmetric\": false", WEIGHTS "symmetric", "false");
    check_refused("\"type\": \"int\"", "\"type\": \"float\"", WEIGHTS "type", "\"float\"");
    check_refused("\"dynamic\": false", "\"dynamic\": true", WEIGHTS "dynamic", "true");
    check_refused("\"actorder\": null", "\"actorder\": \"group\"", WEIGHTS "actorder",
                  "\"group\"");
    check_refused("\"actorder\": null", "\"actorder\": \"weight\"", WEIGHTS "actorder",
                  "\"weight\"");
    check_refused("\"block_structure\": null", "\"block_structure\": \"2x4\"",
                  WEIGHTS "block_structure", "\"2x4\"");
}

static void test_other_schemes(void **state)
{
    (void)state;
    check_refused("\"format\": \"pack-quantized\"", "\"format\": \"int-quantized\"", "format",
                  "\"int-quantized\"");
    check_refused("\"format\": \"pack-quantized\", ", "", "format", "missing");
    check_refused("\"quantization_status\": \"compressed\"", "\"quantization_status\": \"frozen\"",
                  "quantization_status", "\"frozen\"");
    check_refused("\"kv_cache_scheme\": null", "\"kv_cache_scheme\": {\"num_bits\": 8}",
                  "kv_cache_scheme", "{\"num_bits\":8}");
    check_refused("\"sparsity_config\": {}", "\"sparsity_config\": {\"format\": \"sparse-24\"}",
                  "sparsity_config", "{\"format\":\"sparse-24\"}");
    check_refused("\"transform_config\": {}", "\"transform_config\": {\"a\": 1}",
                  "transform_config", "{\"a\":1}");
    check_refused("\"input_activations\": null", "\"input_activations\": {\"num_bits\": 8}",
                  "config_groups.group_0.input_activations", "{\"num_bits\":8}");
    check_refused("\"output_activations\": null", "\"output_activations\": 1",
                  "config_groups.group_0.output_activations", "1");
    check_refused("\"targets\": [\"Linear\"]", "\"format\": \"marlin-24\"",
                  "config_groups.group_0.format", "\"marlin-24\"");
    check_refused("\"config_groups\"", "\"config_group\"", "config_groups", "missing");
    check_refused("\"group_0\": {", "\"a\": 5, \"group_0\": {", "config_groups.a", "5, expected");
    check_refused("\"weights\"", "\"weight\"", "config_groups.group_0", "{");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_is_read),
        cmocka_unit_test(test_other_weights),
        cmocka_unit_test(test_other_schemes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
