#include "chat/stop_match.h"

#include <string.h>

#include "base/limits.h"
#include "text/text_buffer.h"

struct stop_string {
    char *text;
    size_t n;
    size_t *border;   /* [n] length of the longest proper prefix of the first i + 1 bytes that is
                       * also their suffix */
    size_t n_matched; /* matched bytes of the string at the end of the text so far */
};

struct stop_match {
    struct stop_string *strings;
    size_t n_strings;
    struct text_buffer text; /* the text held back, followed by the text of this call */
    size_t n_given;          /* bytes of it that the last call has returned */
    int found;
};

static int add_string(struct stop_string *string, const char *text, struct fm_error *err)
{
    const size_t n = strlen(text);
    if (n == 0 || n > LIMIT_STOP_STRING_BYTES)
        return err_set(err, FM_ERR_ARG, "a stop string has %zu bytes: expected 1 to %u", n,
                       LIMIT_STOP_STRING_BYTES);
    string->text = mem_strdup(text, err);
    string->border = mem_new(n, sizeof *string->border, "a stop string", err);
    if (string->text == NULL || string->border == NULL)
        return FM_ERR_NOMEM;
    string->n = n;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && text[i] != text[k])
            k = string->border[k - 1];
        k += text[i] == text[k];
        string->border[i] = k;
    }
    return 0;
}

int stop_match_open(const char *const *strings, size_t n_strings, struct stop_match **out,
                    struct fm_error *err)
{
    *out = NULL;
    if (n_strings > LIMIT_STOP_STRINGS)
        return err_set(err, FM_ERR_ARG, "%zu stop strings: at most %d", n_strings,
                       LIMIT_STOP_STRINGS);
    struct stop_match *s = mem_new(1, sizeof *s, "stop strings", err);
    if (s == NULL)
        return FM_ERR_NOMEM;
    s->found = -1;
    s->strings = mem_new(n_strings, sizeof *s->strings, "stop strings", err);
    int rc = s->strings != NULL ? 0 : FM_ERR_NOMEM;
    for (; rc == 0 && s->n_strings < n_strings; s->n_strings++)
        rc = add_string(&s->strings[s->n_strings], strings[s->n_strings], err);
    if (rc != 0) {
        stop_match_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void stop_match_close(struct stop_match *s)
{
    if (s == NULL)
        return;
    for (size_t i = 0; i < s->n_strings; i++) {
        mem_free(s->strings[i].text);
        mem_free(s->strings[i].border);
    }
    mem_free(s->strings);
    text_buffer_clear(&s->text);
    mem_free(s);
}

/* Returns how many bytes at the end of the text may be the start of a string; all of it if one is
 * found. */
static size_t push_byte(struct stop_match *s, char byte)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < s->n_strings; i++) {
        struct stop_string *string = &s->strings[i];
        size_t k = string->n_matched;
        while (k > 0 && byte != string->text[k])
            k = string->border[k - 1];
        k += byte == string->text[k];
        string->n_matched = k;
        const bool is_whole = k == string->n;
        if (is_whole && (s->found < 0 || k > s->strings[s->found].n))
            s->found = (int)i;
        n_kept = k > n_kept ? k : n_kept;
    }
    return s->found >= 0 ? s->strings[s->found].n : n_kept;
}

int stop_match_push(struct stop_match *s, const char *text, size_t bytes, const char **shown,
                    size_t *shown_bytes, int *found, struct fm_error *err)
{
    struct text_buffer *b = &s->text;
    *shown = "";
    *shown_bytes = 0;
    b->n -= s->n_given;
    if (b->n > 0)
        memmove(b->data, (const char *)b->data + s->n_given, b->n);
    s->n_given = 0;
    size_t n_kept = b->n, n_taken = 0;
    if (s->found < 0 && !text_buffer_add(b, text, bytes))
        return err_set(err, FM_ERR_NOMEM, "out of memory: %zu bytes of text", bytes);
    for (; n_taken < bytes && s->found < 0; n_taken++)
        n_kept = push_byte(s, text[n_taken]);
    if (n_taken > 0)
        b->n -= bytes - n_taken; /* drops the text after the string */
    *found = s->found;
    *shown = text_buffer_text(b);
    *shown_bytes = s->n_given = b->n - n_kept;
    if (s->found >= 0)
        b->n = s->n_given;
    return 0;
}

void stop_match_finish(struct stop_match *s, const char **shown, size_t *shown_bytes)
{
    *shown = s->text.n > 0 ? (const char *)s->text.data + s->n_given : "";
    *shown_bytes = s->text.n - s->n_given;
    s->n_given = s->text.n;
    for (size_t i = 0; i < s->n_strings; i++)
        s->strings[i].n_matched = 0;
}
