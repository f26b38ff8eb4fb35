/* Misuse of sessions, cancellation, and files that change under an open model. Each is refused with
 * a sentence; after that the session works and gives the bits of a fresh one. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "flashmoe_lab.h"

#define GOLDEN FLASHMOE_TEST_DIR "/golden/"
#define CONTEXT 32
#define N_IDS 6

static const int32_t ids[N_IDS] = {3, 1, 4, 1, 5, 9};

static struct fm_model *open_model(const char *path)
{
    struct fm_model_options options = {.size = sizeof options};
    options.n_threads = 2;
    options.n_sessions = 2;
    options.n_context = CONTEXT;
    struct fm_model *model;
    struct fm_error err = {0};
    if (fm_model_open(path, &options, &model, &err) != 0)
        fail_msg("%s", err.text);
    return model;
}

static struct fm_session *open_session(struct fm_model *model)
{
    struct fm_session *session;
    struct fm_error err = {0};
    if (fm_session_open(model, &session, &err) != 0)
        fail_msg("%s", err.text);
    return session;
}

static void refused(int rc, int code, const struct fm_error *err, const char *word)
{
    if (rc != code || err->code != code || strstr(err->text, word) == NULL)
        fail_msg("expected code %d and '%s', got %d: '%s'", code, word, rc, err->text);
}

/* Checks that the session works and has the bits of one that never saw a fault. */
static void works(struct fm_session *session)
{
    static char expected[33];
    char hash[33];
    struct fm_error err = {0};
    if (fm_session_eval(session, ids, N_IDS, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(fm_session_position(session), N_IDS);
    assert_non_null(fm_session_logits(session));
    fm_session_logits_hash(session, hash);
    if (expected[0] == '\0')
        memcpy(expected, hash, sizeof expected);
    assert_string_equal(hash, expected);
}

static void test_number_of_sessions(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_model *model = open_model(GOLDEN "qwen3_next");
    struct fm_session *a = open_session(model), *b = open_session(model), *c;
    refused(fm_session_open(model, &c, &err), FM_ERR_BUDGET, &err, "2 session(s)");
    assert_null(c);
    assert_int_equal(fm_session_open(model, &c, NULL), FM_ERR_BUDGET);
    fm_session_close(a);
    a = open_session(model);
    works(a);
    works(b);
    fm_session_close(a);
    fm_session_close(b);
    fm_session_close(NULL);
    fm_model_close(model);
}

static void test_metadata_only(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_session *session;
    options.metadata_only = true;
    assert_int_equal(fm_model_open(GOLDEN "qwen3_next", &options, &model, &err), 0);
    refused(fm_session_open(model, &session, &err), FM_ERR_ARG, &err, "metadata");
    assert_null(session);
    refused(fm_eval_batch(model, NULL, 0, &err), FM_ERR_ARG, &err, "0 sessions");
    fm_model_close(model);
    fm_model_close(NULL);
}

static void test_wrong_tokens(void **state)
{
    (void)state;
    static const int32_t wrong[][2] = {{3, 320}, {3, -1}, {INT32_MAX, 0}, {3, INT32_MIN}};
    static const int32_t many[CONTEXT + 1] = {0};
    struct fm_error err;
    struct fm_model *model = open_model(GOLDEN "qwen3_next");
    struct fm_session *s = open_session(model);
    assert_null(fm_session_logits(s));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refused(fm_session_eval(s, wrong[i], 2, &err), FM_ERR_ARG, &err, "id ");
    refused(fm_session_eval(s, many, 0, &err), FM_ERR_ARG, &err, "no tokens");
    refused(fm_session_eval(s, many, CONTEXT + 1, &err), FM_ERR_ARG, &err, "context of 32");
    refused(fm_session_eval(s, many, SIZE_MAX, &err), FM_ERR_ARG, &err, "context of 32");
    assert_int_equal(fm_session_eval(s, wrong[0], 2, NULL), FM_ERR_ARG);
    works(s); /* a refused argument changes nothing */
    refused(fm_session_eval(s, many, CONTEXT - N_IDS + 1, &err), FM_ERR_ARG, &err, "position 6");
    assert_int_equal(fm_session_eval(s, many, CONTEXT - N_IDS, &err), 0);
    refused(fm_session_eval(s, many, 1, &err), FM_ERR_ARG, &err, "position 32");
    fm_session_reset(s);
    works(s);
    fm_session_close(s);
    fm_model_close(model);
}

static void test_wrong_batches(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_model *model = open_model(GOLDEN "qwen3_next");
    struct fm_model *other = open_model(GOLDEN "qwen3_moe");
    struct fm_session *a = open_session(model), *b = open_session(model);
    struct fm_session *foreign = open_session(other);
    struct fm_batch_item twice[] = {{a, ids, 2, 0}, {a, ids, 2, 0}};
    struct fm_batch_item mixed[] = {{a, ids, 2, 0}, {foreign, ids, 2, 0}};
    struct fm_batch_item three[] = {{a, ids, 1, 0}, {b, ids, 1, 0}, {a, ids, 1, 0}};
    struct fm_batch_item empty[] = {{a, ids, 2, 0}, {b, ids, 0, 0}};
    struct fm_batch_item good[] = {{a, ids, N_IDS, 0}, {b, ids, N_IDS, 0}};
    refused(fm_eval_batch(model, twice, 2, &err), FM_ERR_ARG, &err, "twice");
    refused(fm_eval_batch(model, mixed, 2, &err), FM_ERR_ARG, &err, "another model");
    refused(fm_eval_batch(other, good, 2, &err), FM_ERR_ARG, &err, "another model");
    refused(fm_eval_batch(model, three, 3, &err), FM_ERR_ARG, &err, "3 sessions");
    refused(fm_eval_batch(model, empty, 2, &err), FM_ERR_ARG, &err, "no tokens");
    refused(fm_eval_batch(model, good, 0, &err), FM_ERR_ARG, &err, "0 sessions");
    assert_int_equal(fm_session_position(a), 0);
    assert_int_equal(fm_eval_batch(model, good, 2, &err), 0);
    fm_session_reset(a);
    fm_session_reset(b);
    works(a);
    works(b);
    fm_session_close(foreign);
    fm_session_close(a);
    fm_session_close(b);
    fm_model_close(other);
    fm_model_close(model);
}

/* ---- cancellation --------------------------------------------------------------------------- */

/* It had no mark to return to. */
static void is_empty(const struct fm_session *s)
{
    assert_null(fm_session_logits(s));
    assert_int_equal(fm_session_position(s), 0);
}

static void test_cancel_before(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_model *model = open_model(GOLDEN "qwen3_next");
    struct fm_session *a = open_session(model), *b = open_session(model);
    for (int round = 0; round < 3; round++) {
        fm_session_cancel(a);
        refused(fm_session_eval(a, ids, N_IDS, &err), FM_ERR_CANCELLED, &err, "cancel");
        is_empty(a);
        works(a);
        fm_session_cancel(a); /* nothing has started, so nothing is lost */
        refused(fm_session_eval(a, ids, 1, &err), FM_ERR_CANCELLED, &err, "cancel");
        assert_int_equal(fm_session_position(a), N_IDS);
        assert_non_null(fm_session_logits(a));
        fm_session_reset(a);
    }
    fm_session_cancel(b);
    struct fm_batch_item both[] = {{a, ids, 2, 0}, {b, ids, 2, 0}};
    refused(fm_eval_batch(model, both, 2, &err), FM_ERR_CANCELLED, &err, "1 of 2");
    assert_int_equal(both[0].rc, 0);
    assert_int_equal(both[1].rc, FM_ERR_CANCELLED);
    assert_int_equal(fm_session_position(a), 2);
    is_empty(b);
    fm_session_reset(a);
    works(a);
    works(b);
    fm_session_cancel(a);
    fm_session_reset(a); /* forgets the cancellation */
    works(a);
    fm_session_close(a);
    fm_session_close(b);
    fm_model_close(model);
}

struct canceller {
    struct fm_session *session;
    unsigned layer;
};

static void cancel_at(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    const struct canceller *c = ctx;
    (void)position, (void)x, (void)n;
    if (layer == c->layer)
        fm_session_cancel(c->session);
}

static void test_cancel_within(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_model *model = open_model(GOLDEN "qwen3_next");
    struct fm_session *s = open_session(model);
    for (unsigned layer = 0; layer < 4; layer++) {
        struct canceller c = {s, layer};
        fm_session_observe(s, &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                    .ctx = &c, .hidden = cancel_at});
        int rc = fm_session_eval(s, ids, N_IDS, &err);
        fm_session_observe(s, NULL);
        refused(rc, FM_ERR_CANCELLED, &err, "cancel");
        is_empty(s);
        works(s);
        fm_session_reset(s);
    }
    fm_session_close(s);
    fm_model_close(model);
}

static void *cancel_soon(void *arg)
{
    (void)usleep(2000);
    fm_session_cancel(arg);
    return NULL;
}

static void test_cancel_from_another_thread(void **state)
{
    (void)state;
    struct fm_error err;
    struct fm_model *model = open_model(GOLDEN "qwen3_next");
    struct fm_session *s = open_session(model);
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        int rc = 0;
        assert_int_equal(pthread_create(&thread, NULL, cancel_soon, s), 0);
        while (rc == 0) {
            if (fm_session_position(s) == CONTEXT)
                fm_session_reset(s);
            rc = fm_session_eval(s, ids, 1, &err);
            /* The cancellation may have come just before a reset and been forgotten. */
            if (rc == 0 && pthread_tryjoin_np(thread, NULL) == 0) {
                rc = fm_session_eval(s, ids, 1, &err);
                break;
            }
            if (rc != 0)
                assert_int_equal(pthread_join(thread, NULL), 0);
        }
        assert_true(rc == 0 || rc == FM_ERR_CANCELLED);
        fm_session_reset(s);
        works(s);
        fm_session_reset(s);
    }
    fm_session_close(s);
    fm_model_close(model);
}

/* ---- a file that changes under an open model ------------------------------------------------ */

static char *read_whole(const char *path, size_t *bytes)
{
    struct stat st;
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    char *text = malloc((size_t)st.st_size);
    assert_non_null(text);
    assert_int_equal(read(fd, text, (size_t)st.st_size), st.st_size);
    (void)close(fd);
    *bytes = (size_t)st.st_size;
    return text;
}

/* Writes in place, because the model keeps the file open. */
static void write_whole(const char *path, const char *text, size_t bytes)
{
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, bytes), (ssize_t)bytes);
    (void)close(fd);
}

static void test_file_shrinks(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors"};
    char dir[] = "/tmp/flashmoe-fault-XXXXXX", paths[2][64], from[1024];
    char *text[2];
    size_t bytes[2];
    struct fm_error err;
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        (void)snprintf(from, sizeof from, "%sqwen3_next/%s", GOLDEN, names[i]);
        (void)snprintf(paths[i], sizeof paths[i], "%s/%s", dir, names[i]);
        text[i] = read_whole(from, &bytes[i]);
        write_whole(paths[i], text[i], bytes[i]);
    }
    struct fm_model *model = open_model(dir);
    struct fm_session *s = open_session(model);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(truncate(paths[1], round == 0 ? (off_t)bytes[1] / 9 : 0), 0);
        for (int again = 0; again < 2; again++) {
            /* Experts before the end have all their bytes, but of a file that changed. */
            refused(fm_session_eval(s, ids, N_IDS, &err), FM_ERR_IO, &err,
                    round == 0 ? "expert " : "ends early");
            assert_non_null(strstr(err.text, paths[1]));
            is_empty(s);
        }
        write_whole(paths[1], text[1], bytes[1]);
    }
    /* Whether it has the same bytes again is unknown: the model must be reopened. */
    refused(fm_session_eval(s, ids, N_IDS, &err), FM_ERR_IO, &err, "was changed or replaced");
    is_empty(s);
    fm_session_close(s);
    fm_model_close(model);
    model = open_model(dir);
    s = open_session(model);
    works(s);
    fm_session_close(s);
    fm_model_close(model);
    for (int i = 0; i < 2; i++) {
        (void)unlink(paths[i]);
        free(text[i]);
    }
    (void)rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_number_of_sessions),
        cmocka_unit_test(test_metadata_only),
        cmocka_unit_test(test_wrong_tokens),
        cmocka_unit_test(test_wrong_batches),
        cmocka_unit_test(test_cancel_before),
        cmocka_unit_test(test_cancel_within),
        cmocka_unit_test(test_cancel_from_another_thread),
        cmocka_unit_test(test_file_shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
