/* Fuzzes grammars in GBNF. The first byte is the length of a text that follows it; the rest is the
 * grammar. A grammar is refused with a sentence, or its machine reads the text byte by byte and can
 * then go on or end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "grammar/gbnf_machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct token_trie no_tokens = {.longest = 1};
    struct gbnf *g = NULL;
    struct gbnf_machine *m = NULL;
    struct fm_error err = {0};
    if (size < 1 || size - 1 < data[0])
        return 0;
    const size_t n = data[0];
    const int rc = gbnf_compile((const char *)data + 1 + n, size - 1 - n, &g, &err);
    require((rc == 0) == (g != NULL), "a grammar or an error");
    require(rc == 0 || err.text[0] != '\0', "an error has a sentence");
    if (rc != 0)
        return 0;
    const int opened = gbnf_machine_open(g, &no_tokens, &m, &err);
    require((opened == 0) == (m != NULL), "a machine or an error");
    require(opened == 0 || err.text[0] != '\0', "an error has a sentence");
    if (opened != 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (gbnf_machine_accept_bytes(m, (const char *)data + 1 + i, 1, &err) != 0)
            break;
    require(!gbnf_machine_must_end(m) || gbnf_machine_may_end(m), "what must end may end");
    gbnf_machine_close(m);
    return 0;
}
