/* Tests what a model does with tokenizers that are not Qwen's: the tokens before a text, the space
 * at the beginning of an answer, and tiktoken.model. The model is a golden one with another
 * tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/err.h"
#include "session/answer.h"

#define GOLDEN FLASHMOE_TEST_DIR "/golden/qwen3_next"

enum { N = 320, BOS = 0, SPACE_A = 259 };

static const char *const linked[] = {"config.json", "generation_config.json", "model.safetensors"};
static const char *const written[] = {"tokenizer.json", "tokenizer_config.json", "tiktoken.model"};
static char folder[] = "/tmp/families_text_test.XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Ids: 0 <s>, 1 </s>, 2 U+2581, 3..258 the bytes, 259 U+2581 and "a", 260 "a". */
static void write_tokenizer(void)
{
    FILE *f = fopen(in_folder("tokenizer.json"), "w");
    assert_non_null(f);
    (void)fputs("{\"added_tokens\":[{\"id\":0,\"content\":\"<s>\",\"special\":true,\"normalized\":"
                "false},{\"id\":1,\"content\":\"</s>\",\"special\":true,\"normalized\":false}],"
                "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\\u2581\","
                "\"prepend_scheme\":\"first\",\"split\":false},\"decoder\":{\"type\":\"Sequence\","
                "\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},"
                "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":"
                "\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"post_processor\":{"
                "\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
                "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[0]}}},"
                "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"vocab\":{",
                f);
    for (unsigned byte = 0; byte < 256; byte++)
        (void)fprintf(f, "\"<0x%02X>\":%u,", byte, byte + 3);
    (void)fputs("\"\\u2581\":2,\"\\u2581a\":259,\"a\":260},\"merges\":[[\"\\u2581\",\"a\"]]}}", f);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    (void)fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    for (size_t i = 0; i < sizeof linked / sizeof linked[0]; i++) {
        char from[512];
        (void)snprintf(from, sizeof from, "%s/%s", GOLDEN, linked[i]);
        if (symlink(from, in_folder(linked[i])) != 0)
            return -1;
    }
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        (void)unlink(in_folder(linked[i]));
        (void)unlink(in_folder(written[i]));
    }
    return rmdir(folder);
}

static struct fm_model *open_model(const char *config, struct fm_error *err)
{
    struct fm_model *model = NULL;
    struct fm_model_options options = {.size = sizeof options};
    options.n_context = 8;
    options.n_sessions = 1;
    write_text("tokenizer_config.json", config);
    const int rc = fm_model_open(folder, &options, &model, err);
    assert_int_equal(rc == 0, model != NULL);
    return model;
}

static void check_ids(const struct fm_model *model, const char *text, int flags, size_t n,
                      const int32_t *expected)
{
    int32_t *ids;
    size_t n_ids;
    assert_int_equal(fm_tokenize(model, text, strlen(text), flags, &ids, &n_ids, NULL), 0);
    assert_int_equal(n_ids, n);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    fm_free(ids);
}

static void test_prefix(void **state)
{
    static const struct {
        const char *config;
        bool has_prefix;
    } cases[] = {
        {"{}", true}, /* the tokenizer's own template */
        {"{\"add_bos_token\": false, \"bos_token\": \"<s>\"}", false},
        {"{\"add_bos_token\": true, \"bos_token\": {\"content\": \"<s>\"}}", true},
        {"{\"add_bos_token\": true, \"bos_token\": null}", true},
    };
    static const int32_t expected[] = {BOS, SPACE_A};
    const int all = FM_TEXT_WITH_SPECIAL | FM_TEXT_WITH_PREFIX;
    (void)state;
    write_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fm_error err = {0};
        struct fm_model *model = open_model(cases[i].config, &err);
        if (model == NULL)
            fail_msg("%s", err.text);
        check_ids(model, "a", FM_TEXT_WITH_SPECIAL, 1, expected + 1);
        check_ids(model, "a", all, cases[i].has_prefix ? 2 : 1,
                  expected + !cases[i].has_prefix);
        check_ids(model, "", all, cases[i].has_prefix, expected);
        check_ids(model, "<s> a", all, 2, expected); /* never twice */
        fm_model_close(model);
    }
    struct fm_error err = {0};
    assert_null(open_model("{\"add_bos_token\": 1}", &err));
    assert_non_null(strstr(err.text, "tokenizer_config.json: field 'add_bos_token' is not true"));
}

static int take_event(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    char *text = ctx;
    (void)err;
    if (event->kind == FM_EVENT_TEXT)
        (void)strncat(text, event->text, event->text_bytes);
    return 0;
}

/* An answer that continues a text keeps the space at its beginning. */
static void test_space_of_answers(void **state)
{
    static float logits[N];
    static const int32_t prompt[] = {SPACE_A};
    (void)state;
    write_tokenizer();
    struct fm_model *model = open_model("{}", NULL);
    for (int is_chat = 0; is_chat < 2; is_chat++) {
        char text[64] = "";
        struct fm_answer *answer;
        int32_t id;
        struct fm_sampling sampling = {.size = sizeof sampling, .top_p = 1};
        struct fm_answer_options how = {.size = sizeof how, .event = take_event, .ctx = text,
                                        .sampling = &sampling, .prompt = prompt, .n_prompt = 1,
                                        .is_chat = is_chat != 0};
        assert_int_equal(fm_answer_open(model, &how, &answer, NULL), 0);
        memset(logits, 0, sizeof logits);
        logits[SPACE_A] = 10;
        for (int i = 0; i < 2; i++)
            assert_int_equal(answer_take(answer, logits, false, &id, NULL), 0);
        assert_int_equal(fm_answer_finish(answer, NULL), 0);
        fm_answer_close(answer);
        assert_string_equal(text, is_chat ? "a a" : " a a");
    }
    fm_model_close(model);
}

/* Kimi has no tokenizer.json. Its special tokens need more ids than this model has. */
static void test_tiktoken_file(void **state)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct fm_error err = {0};
    (void)state;
    (void)unlink(in_folder("tokenizer.json"));
    FILE *f = fopen(in_folder("tiktoken.model"), "w");
    assert_non_null(f);
    for (unsigned b = 0; b < 256; b++)
        (void)fprintf(f, "%c%c== %u\n", digits[b >> 2], digits[b << 4 & 63], b);
    assert_int_equal(fclose(f), 0);
    assert_null(open_model("{}", &err));
    assert_non_null(strstr(err.text, "tiktoken.model: the highest token id is 511, the model's "
                                     "vocab_size 320"));
    assert_null(open_model("{\"tokenizer_class\": \"QwenTokenizer\"}", &err));
    assert_non_null(strstr(err.text, "field 'tokenizer_class' is \"QwenTokenizer\""));
    (void)unlink(in_folder("tiktoken.model"));
}

/* A directory with SentencePiece's own file alone opens, and text is refused with the next step. */
static void test_no_tokenizer(void **state)
{
    struct fm_error err = {0};
    int32_t *ids;
    size_t n_ids;
    (void)state;
    (void)unlink(in_folder("tokenizer.json"));
    struct fm_model *model = open_model("{}", &err);
    assert_non_null(model);
    assert_int_equal(fm_tokenize(model, "a", 1, 0, &ids, &n_ids, &err), FM_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "has no tokenizer.json"));
    assert_non_null(strstr(err.text, "save_pretrained"));
    fm_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_space_of_answers),
        cmocka_unit_test(test_tiktoken_file),
        cmocka_unit_test(test_no_tokenizer),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
