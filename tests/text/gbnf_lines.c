/* Runs GBNF grammars over texts, to compare with other implementations.
 *
 * usage: gbnf_lines < LINES
 *
 * A line is {"grammar": text, "texts": [text, ...]}. For each, prints a list of [number of bytes
 * that fit, whether the text may end there], or {"error": sentence}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/gbnf_machine.h"

static json_t *run(struct gbnf_machine *m, const json_t *text)
{
    const char *bytes = json_string_value(text);
    size_t n = 0;
    gbnf_machine_reset(m);
    while (n < json_string_length(text) && gbnf_machine_accept_bytes(m, bytes + n, 1, NULL) == 0)
        n++;
    return json_pack("[I, b]", (json_int_t)n, gbnf_machine_may_end(m));
}

static json_t *answer(const json_t *line)
{
    static const struct token_trie no_tokens = {.longest = 1};
    const json_t *grammar = json_object_get(line, "grammar");
    const json_t *texts = json_object_get(line, "texts");
    struct gbnf *g;
    struct gbnf_machine *m = NULL;
    struct fm_error err = {0};
    int rc = gbnf_compile(json_string_value(grammar), json_string_length(grammar), &g, &err);
    if (rc == 0)
        rc = gbnf_machine_open(g, &no_tokens, &m, &err);
    if (rc != 0)
        return json_pack("{s:s}", "error", err.text);
    json_t *all = json_array();
    for (size_t i = 0; i < json_array_size(texts); i++)
        (void)json_array_append_new(all, run(m, json_array_get(texts, i)));
    gbnf_machine_close(m);
    return all;
}

int main(void)
{
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, stdin) > 0) {
        json_t *read = json_loads(line, JSON_ALLOW_NUL, NULL), *found = answer(read);
        char *text = json_dumps(found, JSON_COMPACT | JSON_ENCODE_ANY);
        (void)puts(text);
        free(text);
        json_decref(found);
        json_decref(read);
    }
    free(line);
    return 0;
}
