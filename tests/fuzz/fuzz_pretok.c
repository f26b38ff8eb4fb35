/* Fuzzes the pre-tokenizers. The input is a text. Every pattern must split it into whole characters
 * without losing any, and the pieces of a text must not depend on what stood before it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "text/pretok.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what, const struct pretok *pattern)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s (%s)\n", what, pattern->models);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *text = mem_new(size + 2 * utf8_count_bad(data, size), 1, "a text", NULL);
    if (text == NULL)
        return 0;
    const size_t bytes = utf8_repair(data, size, text, NULL);
    for (unsigned i = 0; pretok_at(i) != NULL; i++) {
        const struct pretok *pattern = pretok_at(i);
        for (size_t at = 0; at < bytes;) {
            const size_t step = pattern->next(text + at, bytes - at);
            require(step > 0 && step <= bytes - at, "a piece is not empty and inside", pattern);
            require(utf8_count_bad(text + at, step) == 0, "a piece is whole characters", pattern);
            /* What follows a piece is seen only as white space or not. A piece by itself may be
             * split further, but never be longer. */
            require(pattern->next(text + at, step) <= step, "a piece has an end", pattern);
            at += step;
        }
    }
    mem_free(text);
    return 0;
}
