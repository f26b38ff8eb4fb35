/* Fuzzes tokenizer.json. The input is the file. A tokenizer that opens must encode and decode fixed
 * texts and keep the promises of tokenizer.h: known ids, pieces that add up to the text, whole
 * characters. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void decode(struct token_decoder *decoder, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i <= n; i++) {
        const char *text;
        size_t bytes;
        struct fm_error err;
        if (i == n)
            token_decoder_finish(decoder, &text, &bytes);
        else
            require(token_decoder_push(decoder, ids[i], &text, &bytes, &err) == 0,
                    "an id that was encoded can be decoded");
        require(utf8_count_bad((const uint8_t *)text, bytes) == 0, "a piece is whole characters");
    }
}

static void use_text(const struct tokenizer *tok, struct token_decoder *decoder, const char *text)
{
    for (int with_special = 0; with_special < 2; with_special++) {
        int32_t *ids;
        size_t n;
        struct fm_error err;
        require(tokenizer_encode(tok, text, strlen(text), with_special != 0, &ids, &n, &err) == 0,
                "every text can be encoded");
        /* A space may become three bytes, and so may the one before every span. */
        require(n <= 6 * strlen(text) + 3, "the number of tokens is bounded");
        for (size_t i = 0; i < n; i++) {
            size_t bytes;
            require(tokenizer_has_id(tok, ids[i]) && tokenizer_piece(tok, ids[i], &bytes) != NULL,
                    "an encoded id has a token");
        }
        decode(decoder, ids, n);
        mem_free(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const texts[] = {
        "", "the quick brown fox", "<|im_start|>user\nhi<|im_end|>\n", "e\u0301\u0323 \uac00\u11a8",
        "a\xff\xe4\xbd", "it's 12345  \n\n  'll \u4f60\u597d <<<<a<a>", "\u0301\u0345\u08d3",
        "   HTTPServer's ABC\u0301 1234 \u30a0\u30ab\u30fb\u3007 !a \u2581 \x01\x02b <s>x</s> ",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaathethethethethethethethethethethethethethethe",
    };
    struct tokenizer *tok;
    struct fm_error err = {0};
    const int rc = tokenizer_parse("fuzz.json", (const char *)data, size, &tok, &err);
    if (rc != 0) {
        require(rc < 0 && err.code == rc && err.text[0] != '\0', "an error has code and text");
        require(tok == NULL, "nothing is left after an error");
        return 0;
    }
    require(tokenizer_n_ids(tok) >= 243, "every byte of UTF-8 has a token");
    struct token_decoder decoder;
    require(token_decoder_init(&decoder, tok, &err) == 0, "a decoder can be made");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        use_text(tok, &decoder, texts[i]);
    size_t n_prefix;
    const int32_t *prefix = tokenizer_prefix(tok, &n_prefix);
    for (size_t i = 0; i < n_prefix; i++)
        require(tokenizer_has_id(tok, prefix[i]), "a prefix has tokens");
    int32_t id;
    if (tokenizer_find(tok, "<|im_end|>", &id))
        require(tokenizer_has_id(tok, id), "an added token has an id");
    int32_t all[64];
    size_t n = 0;
    for (size_t i = 0; i < tokenizer_n_ids(tok) && n < 64; i++) {
        if (tokenizer_has_id(tok, (int32_t)i))
            all[n++] = (int32_t)i;
    }
    decode(&decoder, all, n);
    token_decoder_clear(&decoder);
    tokenizer_close(tok);
    return 0;
}
