/* Fuzzes Kimi's tokenizer files. The input is tiktoken.model, then a NUL byte and
 * tokenizer_config.json, which may be missing. A file that ends in "+" gets the 256 bytes first. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/jdoc.h"
#include "base/mem.h"
#include "text/text_buffer.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static void add_bytes(struct text_buffer *b)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (unsigned byte = 0; byte < 256; byte++) {
        char line[32];
        (void)snprintf(line, sizeof line, "%c%c== %u\n", digits[byte >> 2],
                       digits[byte << 4 & 63], byte);
        require(text_buffer_add(b, line, strlen(line)), "there is memory");
    }
}

static void use(const struct tokenizer *tok)
{
    static const char text[] = "Hello HELLO \u4f60\u597d [BOS] 12345 aaaaaaaaaaaaaaaaaaaaaaaaaaa";
    struct fm_error err;
    int32_t *ids;
    size_t n;
    require(tokenizer_n_ids(tok) >= 512, "bytes and special tokens have ids");
    require(tokenizer_encode(tok, text, sizeof text - 1, true, &ids, &n, &err) == 0,
            "every text can be encoded");
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        require(tokenizer_piece(tok, ids[i], &bytes) != NULL, "an encoded id has a token");
        total += bytes;
    }
    require(total == sizeof text - 1, "the pieces are the text");
    mem_free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct text_buffer model = {0};
    struct jdoc config = {0};
    struct tokenizer *tok;
    struct fm_error err = {0};
    const uint8_t *end = memchr(data, 0, size);
    size_t bytes = end != NULL ? (size_t)(end - data) : size;
    if (end != NULL && jdoc_parse(&config, "config.json", (const char *)end + 1,
                                  size - bytes - 1, NULL) != 0)
        config = (struct jdoc){0};
    if (bytes > 0 && data[bytes - 1] == '+') {
        add_bytes(&model);
        bytes--;
    }
    require(text_buffer_add(&model, (const char *)data, bytes), "there is memory");
    const int rc = tokenizer_parse_tiktoken("tiktoken.model", text_buffer_text(&model), model.n,
                                            &config, &tok, &err);
    if (rc == 0)
        use(tok);
    else
        require(tok == NULL && err.code == rc && err.text[0] != '\0', "an error has code and text");
    tokenizer_close(tok);
    jdoc_clear(&config);
    text_buffer_clear(&model);
    return 0;
}
