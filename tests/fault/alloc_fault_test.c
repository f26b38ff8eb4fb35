/* Makes every allocation fail once. Model, session, sampler, answer, text, evaluation and close
 * must report FM_ERR_NOMEM with a sentence, leak nothing (AddressSanitizer checks that) and leave
 * nothing behind that disturbs the next attempt. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "flashmoe_lab.h"

#define GOLDEN FLASHMOE_TEST_DIR "/golden/"

static const char prompt[] = "the moon";
static const char *routes; /* NULL for the model's own routing */

/* Everything that one use of the library holds. */
struct use {
    struct fm_model *model;
    struct fm_session *sessions[2];
    struct fm_sampler *sampler;
    struct fm_decoder *decoder;
    struct fm_answer *answer;
    int32_t *ids;
    size_t n_ids;
    char hash[33];
};

static int use_text(struct use *u, struct fm_error *err)
{
    int rc = fm_decoder_open(u->model, &u->decoder, err);
    if (rc == 0)
        rc = fm_chat_tokenize_turn(u->model, "be brief", prompt, strlen(prompt), NULL, &u->ids,
                              &u->n_ids, err);
    return rc;
}

static int use_answer(struct use *u, struct fm_error *err)
{
    static const char *const stops[] = {"never comes", "nor this"};
    const struct fm_sampling sampling = {.size = sizeof sampling,
                                         .temperature = 1, .top_p = 1, .seed = 7};
    const struct fm_answer_options how = {.size = sizeof how, .sampling = &sampling,
                                          .stops = stops, .n_stops = 2, .is_chat = true,
                                          .prompt = u->ids, .n_prompt = u->n_ids,
                                          .wants_logprobs = true, .n_top_logprobs = 3};
    int rc = fm_answer_open(u->model, &how, &u->answer, err);
    for (int i = 0; rc == 0 && i < 4; i++) {
        int32_t id;
        rc = fm_answer_step(u->answer, u->sessions[0], &id, err);
        if (rc == 0 && id < 0)
            break;
        if (rc == 0)
            rc = fm_session_eval(u->sessions[0], &id, 1, err);
    }
    return rc == 0 ? fm_answer_finish(u->answer, err) : rc;
}

static int generate(struct use *u, struct fm_error *err)
{
    int rc = fm_session_eval(u->sessions[0], u->ids, u->n_ids, err);
    for (int i = 0; rc == 0 && i < 4; i++) {
        int32_t id = fm_sampler_pick(u->sampler, fm_session_logits(u->sessions[0]));
        const char *text;
        size_t text_bytes;
        rc = fm_decoder_push(u->decoder, id, &text, &text_bytes, err);
        if (rc == 0)
            rc = fm_session_eval(u->sessions[0], &id, 1, err);
    }
    if (rc == 0)
        rc = use_answer(u, err);
    struct fm_batch_item both[] = {{u->sessions[0], u->ids, 3, 0}, {u->sessions[1], u->ids, 5, 0}};
    if (rc == 0)
        rc = fm_eval_batch(u->model, both, 2, err);
    if (rc == 0)
        fm_session_logits_hash(u->sessions[0], u->hash);
    return rc;
}

static int use_all(struct use *u, const char *path, bool has_text, struct fm_error *err)
{
    static const int32_t fixed_ids[] = {3, 1, 4, 1, 5, 9, 2, 6};
    const struct fm_logit_bias bias = {1, -1};
    const struct fm_sampling sampling = {.size = sizeof sampling,
                                         .temperature = 1, .top_p = 1, .seed = 7, .typical_p = 0.9f,
                                         .repetition_penalty = 1.1f, .penalty_window = 8,
                                         .logit_bias = &bias, .n_logit_bias = 1};
    struct fm_model_options options = {.size = sizeof options};
    options.n_threads = 2;
    options.n_sessions = 2;
    options.n_context = 128;
    options.routes = routes;
    int rc = fm_model_open(path, &options, &u->model, err);
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = fm_session_open(u->model, &u->sessions[i], err);
    if (rc == 0)
        rc = fm_sampler_open(u->model, &sampling, &u->sampler, err);
    if (rc == 0 && !has_text)
        return fm_session_eval(u->sessions[0], fixed_ids, 8, err);
    if (rc == 0)
        rc = use_text(u, err);
    return rc == 0 ? generate(u, err) : rc;
}

static void use_clear(struct use *u)
{
    fm_free(u->ids);
    fm_answer_close(u->answer);
    fm_decoder_close(u->decoder);
    fm_sampler_close(u->sampler);
    fm_session_close(u->sessions[1]);
    fm_session_close(u->sessions[0]);
    fm_model_close(u->model);
}

/* Makes one attempt in which the nth allocation fails; 0 for none. */
static int attempt(const char *path, bool has_text, long nth, struct use *u, struct fm_error *err)
{
    *u = (struct use){0};
    mem_fail_at(nth);
    int rc = use_all(u, path, has_text, err);
    mem_fail_at(0);
    use_clear(u);
    return rc;
}

static void fail_every_allocation(const char *path, bool has_text)
{
    struct use u, sound;
    struct fm_error err;
    const long before = mem_count();
    assert_int_equal(attempt(path, has_text, 0, &sound, &err), 0);
    const long total = mem_count() - before;
    assert_true(total > 50);
    for (long n = 1; n <= total; n++) {
        err = (struct fm_error){0};
        int rc = attempt(path, has_text, n, &u, &err);
        if (rc != FM_ERR_NOMEM || err.code != FM_ERR_NOMEM || strstr(err.text, "memory") == NULL)
            fail_msg("allocation %ld of %ld: code %d, '%s'", n, total, rc, err.text);
        assert_int_equal(attempt(path, has_text, n, &u, NULL), FM_ERR_NOMEM);
    }
    assert_int_equal(attempt(path, has_text, total + 1, &u, &err), 0);
    assert_string_equal(u.hash, sound.hash);
    print_message("%s: %ld allocations failed one by one\n", path, total);
}

static void test_with_text(void **state)
{
    (void)state;
    fail_every_allocation(GOLDEN "qwen3_next", true);
}

static void test_gguf(void **state)
{
    (void)state;
    fail_every_allocation(FLASHMOE_TEST_DIR "/oracle/frozen/small_qwen3_next-q8_0.gguf", true);
    fail_every_allocation(FLASHMOE_TEST_DIR "/oracle/frozen/small_mixtral-q8_0.gguf", false);
}

static void test_without_text(void **state)
{
    (void)state;
    fail_every_allocation(GOLDEN "qwen3_moe", false);
    fail_every_allocation(GOLDEN "qwen3_5_moe_text", false);
}

static void test_with_routes(void **state)
{
    (void)state;
    routes = "gen";
    fail_every_allocation(GOLDEN "qwen3_moe", false);
    routes = FLASHMOE_TEST_DIR "/fuzz/corpus/routes/two-turns.csv";
    fail_every_allocation(GOLDEN "qwen3_moe", false);
    routes = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_with_text),
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_without_text),
        cmocka_unit_test(test_with_routes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
