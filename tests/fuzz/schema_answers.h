/* What the schema targets share: a vocabulary, and answers drawn from the allowed tokens. There is
 * always an allowed token or the answer may end, every token that a mask allows is accepted, and a
 * complete answer is one JSON document. FLASHMOE_TESTS in the environment is the path of the folder
 * tests. */
#ifndef FLASHMOE_TESTS_SCHEMA_ANSWERS_H
#define FLASHMOE_TESTS_SCHEMA_ANSWERS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"
#include "text/json_scan.h"

enum { N_TOKENS = 48 };

static struct tokenizer *tok;
static struct grammar_vocabulary *vocabulary;

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void open_vocabulary(void)
{
    struct fm_error err;
    char path[4096];
    const char *folder = getenv("FLASHMOE_TESTS");
    (void)snprintf(path, sizeof path, "%s/text/frozen_qwen2_tokenizer.json",
                   folder != NULL ? folder : FLASHMOE_TEST_DIR);
    require(tokenizer_open(path, &tok, &err) == 0, "the tokenizer opens");
    require(grammar_vocabulary_open(tok, (uint32_t)tokenizer_n_ids(tok), &vocabulary, &err) == 0,
            "the vocabulary opens");
}

/* Returns some token of the mask, or -1 if it is empty. */
static int32_t pick(const uint32_t *mask, uint32_t seed)
{
    uint32_t n = 0;
    const uint32_t n_words = (uint32_t)tokenizer_n_ids(tok) / 32 + 1;
    for (uint32_t i = 0; i < n_words; i++)
        n += (uint32_t)__builtin_popcount(mask[i]);
    uint32_t left = n > 0 ? seed % n : 0;
    for (uint32_t id = 0; n > 0 && id < 32 * n_words; id++)
        if ((mask[id / 32] >> id % 32 & 1) != 0 && left-- == 0)
            return (int32_t)id;
    return -1;
}

static void draw_answer(struct grammar *g, uint32_t seed)
{
    static char text[N_TOKENS * TRIE_TOKEN_BYTES];
    size_t n = 0, bytes;
    for (unsigned i = 0; i < N_TOKENS; i++) {
        if (grammar_may_end(g))
            require(json_scan_text(text, n) != 0, "a whole answer is JSON");
        const int32_t id = pick(grammar_mask(g), (seed = seed * 1664525u + 1013904223u) >> 8);
        require(id >= 0 || grammar_may_end(g), "an answer can go on");
        if (id < 0)
            return;
        require(grammar_accept(g, id, NULL) == 0, "a token that is allowed is taken");
        const char *piece = tokenizer_piece(tok, id, &bytes);
        memcpy(text + n, piece, bytes);
        n += bytes;
    }
}

/* Compiles a schema and draws answers. Returns false if the schema is refused, with a message. */
static int try_schema(const char *schema, size_t bytes, uint32_t seed, uint32_t n_answers)
{
    struct grammar *g;
    struct fm_error err = {0};
    if (vocabulary == NULL)
        open_vocabulary();
    const int rc = grammar_open(vocabulary, schema, bytes, &g, &err);
    require(rc == 0 || (rc == FM_ERR_ARG && err.text[0] != '\0'), "a refusal has its sentence");
    if (rc != 0)
        return 0;
    for (uint32_t i = 0; i < n_answers; i++) {
        draw_answer(g, seed + i);
        grammar_reset(g);
    }
    grammar_close(g);
    return 1;
}

#endif
