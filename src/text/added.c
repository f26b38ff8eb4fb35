#include "text/added.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static int compare_added(const void *a, const void *b)
{
    const struct added_token *x = a, *y = b;
    const size_t shorter = x->bytes < y->bytes ? x->bytes : y->bytes;
    const int order = memcmp(x->text, y->text, shorter);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

int added_set_init(struct added_set *set, const char *file, const struct added_token *tokens,
                   size_t n, struct fm_error *err)
{
    size_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += tokens[i].bytes;
    *set = (struct added_set){.n = n};
    set->tokens = mem_new(n, sizeof *set->tokens, "added tokens", err);
    set->texts = mem_new(total, 1, "added tokens", err);
    if (set->tokens == NULL || set->texts == NULL)
        return FM_ERR_NOMEM;
    char *end = set->texts;
    for (size_t i = 0; i < n; i++) {
        memcpy(end, tokens[i].text, tokens[i].bytes);
        set->tokens[i] = (struct added_token){end, tokens[i].bytes, tokens[i].id};
        end += tokens[i].bytes;
    }
    qsort(set->tokens, n, sizeof *set->tokens, compare_added);
    for (size_t i = 0; i < n; i++) {
        const struct added_token *t = &set->tokens[i];
        if (i > 0 && compare_added(t - 1, t) == 0)
            return err_set(err, FM_ERR_FORMAT, "%s: added token '%.*s' occurs twice", file,
                           (int)t->bytes, t->text);
        set->begin[(uint8_t)t->text[0] + 1]++;
    }
    for (size_t i = 1; i <= 256; i++)
        set->begin[i] += set->begin[i - 1];
    return 0;
}

void added_set_clear(struct added_set *set)
{
    mem_free(set->tokens);
    mem_free(set->texts);
    *set = (struct added_set){0};
}

/* The candidates are sorted, so those that share the first k bytes are neighbours. The range [low,
 * high) narrows byte by byte; its first entry is the token that ends there, if any. */
const struct added_token *added_set_match(const struct added_set *set, const char *text,
                                          size_t bytes)
{
    size_t low = set->begin[(uint8_t)text[0]];
    size_t high = set->begin[(uint8_t)text[0] + 1];
    const struct added_token *found = NULL;
    for (size_t k = 1; low < high; k++) {
        if (set->tokens[low].bytes == k)
            found = &set->tokens[low++];
        if (k == bytes)
            break;
        const uint8_t byte = (uint8_t)text[k];
        size_t a = low, b = high;
        while (a < b) { /* the first whose byte k is not smaller */
            const size_t middle = (a + b) / 2;
            if ((uint8_t)set->tokens[middle].text[k] < byte)
                a = middle + 1;
            else
                b = middle;
        }
        low = a;
        b = high;
        while (a < b) { /* the first whose byte k is larger */
            const size_t middle = (a + b) / 2;
            if ((uint8_t)set->tokens[middle].text[k] <= byte)
                a = middle + 1;
            else
                b = middle;
        }
        high = a;
    }
    return found;
}
