/* Text that a grammar forces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "grammar/grammar.h"

static struct tokenizer *tok;
static struct grammar_vocabulary *vocabulary;

/* What is forced does not change the answer: the same tokens fit before and after. */
static void test_forced(void **state)
{
    static const char text[] = "{\"properties\": {\"the_only_name\": {\"const\": true}},"
                               "\"required\": [\"the_only_name\"],"
                               "\"type\": \"object\", \"additionalProperties\": false}";
    struct fm_error err = {0};
    struct grammar *g;
    int32_t ids[8];
    (void)state;
    assert_int_equal(grammar_open(vocabulary, text, strlen(text), &g, &err), 0);
    size_t n_bytes;
    assert_in_range(grammar_forced(g, ids, 8), 1, 8);
    assert_int_equal(tokenizer_piece(tok, ids[0], &n_bytes)[0], '{');
    assert_int_equal(grammar_accept_bytes(g, "{", 1, &err), 0);
    assert_int_equal(grammar_forced(g, ids, 8), 0); /* white space or a name */
    grammar_reset(g);
    assert_int_equal(grammar_accept_bytes(g, "{\"the", 5, &err), 0);
    uint32_t before[1 << 13];
    const size_t bytes = (tokenizer_n_ids(tok) / 32 + 1) * sizeof *before;
    assert_true(bytes <= sizeof before);
    memcpy(before, grammar_mask(g), bytes);
    const uint32_t n = grammar_forced(g, ids, 8);
    assert_in_range(n, 1, 8);
    assert_memory_equal(grammar_mask(g), before, bytes);
    assert_int_equal(grammar_forced(g, ids, 1), 1); /* one needs no step */
    assert_memory_equal(grammar_mask(g), before, bytes);
    char name[64] = "";
    assert_int_equal(grammar_forced(g, ids, 8), n);
    for (uint32_t i = 0; i < n; i++) {
        const char *piece = tokenizer_piece(tok, ids[i], &n_bytes);
        strncat(name, piece, n_bytes);
        assert_int_equal(grammar_accept(g, ids[i], &err), 0);
    }
    assert_memory_equal(name, "_only_name", 10);
    grammar_reset(g);
    assert_int_equal(grammar_accept_bytes(g, "{\"the_only_name\": true}", 23, &err), 0);
    assert_int_equal(grammar_forced(g, ids, 8), 0); /* it may end */
    grammar_close(g);
}

static int open_vocabulary(void **state)
{
    (void)state;
    struct fm_error err;
    if (tokenizer_open(FLASHMOE_TEST_DIR "/text/frozen_qwen2_tokenizer.json", &tok, &err) != 0 ||
        grammar_vocabulary_open(tok, (uint32_t)tokenizer_n_ids(tok), &vocabulary, &err) != 0) {
        print_error("%s\n", err.text);
        return 1;
    }
    return 0;
}

static int close_vocabulary(void **state)
{
    (void)state;
    grammar_vocabulary_close(vocabulary);
    tokenizer_close(tok);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_forced)};
    return cmocka_run_group_tests(tests, open_vocabulary, close_vocabulary);
}
