/* repeat_test MODEL: fm_session_repeat copies tokens and whole blocks of keys and values, and the
 * session goes on from there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "flashmoe_lab.h"
#include "session/session_internal.h"

#define BLOCK 256u
#define CONTEXT 2000u

static const char *path;
static int32_t text[CONTEXT];

static void must(int rc, const struct fm_error *err)
{
    if (rc != 0)
        fail_msg("%s", err->text);
}

static struct fm_model *open_model(unsigned n_threads)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_error err = {0};
    options.n_context = CONTEXT;
    options.n_threads = n_threads;
    must(fm_model_open(path, &options, &model, &err), &err);
    for (unsigned i = 0; i < CONTEXT; i++)
        text[i] = (int32_t)((i * 2654435761u >> 9) % 64);
    return model;
}

static const char *block_of(const struct fm_session *s, unsigned i)
{
    const struct sequence_part *part = &s->sequence->parts[0];
    return (const char *)part->kv.at + i * part->blocks.bytes;
}

static void test_blocks(void **state)
{
    (void)state;
    char first[33], hash[33];
    for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
        struct fm_model *model = open_model(n_threads);
        struct fm_session *s;
        struct fm_error err = {0};
        must(fm_session_open(model, &s, &err), &err);
        must(fm_session_eval(s, text, 2 * BLOCK + 9, &err), &err);
        must(fm_session_repeat(s, 7 * BLOCK + 3, &err), &err);
        assert_int_equal(fm_session_position(s), 7 * BLOCK + 3);
        const uint64_t bytes = s->sequence->parts[0].blocks.bytes;
        assert_true(memcmp(block_of(s, 0), block_of(s, 1), bytes) != 0);
        for (unsigned i = 2; i < 8; i++)
            assert_memory_equal(block_of(s, i), block_of(s, i % 2), bytes);
        for (unsigned i = 0; i < 7 * BLOCK + 3; i++)
            assert_int_equal(fm_session_ids(s)[i], text[i % (2 * BLOCK)]);
        for (unsigned i = 0; i < 5; i++)
            must(fm_session_eval(s, text + i, 1, &err), &err);
        assert_int_equal(fm_session_position(s), 7 * BLOCK + 8);
        fm_session_logits_hash(s, n_threads == 1 ? first : hash);
        if (n_threads > 1)
            assert_string_equal(hash, first);
        fm_session_close(s);
        fm_model_close(model);
    }
}

static void test_refused(void **state)
{
    (void)state;
    struct fm_model *model = open_model(1);
    struct fm_session *s;
    struct fm_error err = {0};
    must(fm_session_open(model, &s, &err), &err);
    must(fm_session_eval(s, text, BLOCK - 1, &err), &err);
    assert_int_equal(fm_session_repeat(s, 1000, &err), FM_ERR_ARG);
    assert_non_null(strstr(err.text, "a session of 255 tokens cannot be repeated up to 1000"));
    must(fm_session_eval(s, text, 1, &err), &err);
    assert_int_equal(fm_session_repeat(s, CONTEXT + 1, &err), FM_ERR_ARG);
    assert_int_equal(fm_session_repeat(s, BLOCK - 1, &err), FM_ERR_ARG);
    assert_int_equal(fm_session_position(s), BLOCK);
    must(fm_session_repeat(s, CONTEXT, &err), &err);
    assert_int_equal(fm_session_position(s), CONTEXT);
    fm_session_reset(s);
    must(fm_session_eval(s, text, 1, &err), &err);
    fm_session_close(s);
    fm_model_close(model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_blocks),
                                       cmocka_unit_test(test_refused)};
    path = argv[argc - 1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
