#include "apps/bench/corpus.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"
#include "apps/cli/common.h"

int corpus_open(struct corpus *corpus, const char *path, struct corpus_marks marks,
                struct fm_error *err)
{
    *corpus = (struct corpus){.path = path, .marks = marks};
    const char *dot = strrchr(path, '.');
    corpus->is_jsonl = dot != NULL && strcmp(dot, ".jsonl") == 0;
    return file_read(path, &corpus->text, &corpus->text_bytes, err);
}

void corpus_close(struct corpus *corpus)
{
    mem_free(corpus->text);
    *corpus = (struct corpus){0};
}

/* ---- records --------------------------------------------------------------------------- */

/* A growing document. After a failure, appending does nothing. */
struct draft {
    void *text;
    size_t n_bytes, capacity;
    int rc;
    struct fm_error *err;
};

static void draft_add(struct draft *draft, const char *text, size_t n_bytes)
{
    if (draft->rc == 0)
        draft->rc = mem_grow(&draft->text, &draft->capacity, draft->n_bytes + n_bytes + 1, 1,
                             "a document", draft->err);
    if (draft->rc != 0)
        return;
    memcpy((char *)draft->text + draft->n_bytes, text, n_bytes);
    draft->n_bytes += n_bytes;
}

static void draft_add_string(struct draft *draft, const char *text)
{
    draft_add(draft, text, strlen(text));
}

static int draft_take(struct draft *draft, char **text, size_t *text_bytes)
{
    draft_add(draft, "", 0);
    if (draft->rc != 0) {
        mem_free(draft->text);
        return draft->rc;
    }
    ((char *)draft->text)[draft->n_bytes] = '\0';
    *text = draft->text;
    *text_bytes = draft->n_bytes;
    return 0;
}

static void add_turn(struct draft *draft, struct corpus_marks marks, const char *role,
                     const char *text, size_t n_bytes)
{
    if (marks.has_chat) {
        draft_add_string(draft, "<|im_start|>");
        draft_add_string(draft, role);
        draft_add_string(draft, "\n");
    }
    draft_add(draft, text, n_bytes);
    draft_add_string(draft, marks.has_chat ? "<|im_end|>\n" : "\n");
}

static bool starts_with(const char *text, size_t n_bytes, const char *prefix)
{
    size_t n = strlen(prefix);
    return n_bytes >= n && memcmp(text, prefix, n) == 0;
}

/* Returns the role if the line begins with its name and a colon, else NULL. */
static const char *line_role(const char *line, size_t n_bytes)
{
    if (starts_with(line, n_bytes, "User: "))
        return "user";
    return starts_with(line, n_bytes, "Assistant: ") ? "assistant" : NULL;
}

/* Splits a prompt that begins with "User: " into turns: every line that begins with "User: " or
 * "Assistant: " starts one. Any other prompt is one turn. */
static void add_prompt(struct draft *draft, struct corpus_marks marks, const char *text,
                       size_t n_bytes)
{
    if (!starts_with(text, n_bytes, "User: ")) {
        add_turn(draft, marks, "user", text, n_bytes);
        return;
    }
    const char *const end = text + n_bytes;
    while (text < end) {
        const char *role = line_role(text, (size_t)(end - text));
        const char *begin = text + strlen(role) + strlen(": ");
        const char *stop = begin; /* becomes the newline before the next turn, or the end */
        while (stop < end &&
               !(*stop == '\n' && line_role(stop + 1, (size_t)(end - stop) - 1) != NULL))
            stop++;
        add_turn(draft, marks, role, begin, (size_t)(stop - begin));
        text = stop + 1;
    }
}

/* ---- white space around a field -------------------------------------------------------------- */

struct span {
    const char *text;
    size_t n_bytes;
};

/* Returns the bytes of a white space character at the start (or end) of the span, or 0. */
static size_t blank_at(struct span s, bool is_end)
{
    static const char *const blanks[] = {
        "\t", "\n", "\v", "\f", "\r", " ", "\x1c", "\x1d", "\x1e", "\x1f", "\xc2\x85", "\u00a0",
        "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006", "\u2007",
        "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000",
    };
    for (size_t i = 0; i < sizeof blanks / sizeof blanks[0]; i++) {
        size_t n = strlen(blanks[i]);
        const char *at = is_end ? s.text + s.n_bytes - n : s.text;
        if (n <= s.n_bytes && memcmp(at, blanks[i], n) == 0)
            return n;
    }
    return 0;
}

static struct span stripped(const json_t *string)
{
    struct span s = {json_string_value(string), json_string_length(string)};
    size_t n;
    while ((n = blank_at(s, false)) > 0)
        s = (struct span){s.text + n, s.n_bytes - n};
    while ((n = blank_at(s, true)) > 0)
        s.n_bytes -= n;
    return s;
}

/* Converts a record to text, without white space around fields. */
static int record_render(const struct corpus *corpus, const json_t *record, char **text,
                         size_t *text_bytes, struct fm_error *err)
{
    const json_t *plain = json_object_get(record, "text");
    const json_t *prompt = json_object_get(record, "prompt");
    const json_t *response = json_object_get(record, "response");
    struct draft draft = {.err = err};
    if (json_is_string(plain)) {
        const struct span text_field = stripped(plain);
        draft_add(&draft, text_field.text, text_field.n_bytes);
    } else if (json_is_string(prompt) && json_is_string(response)) {
        const struct span question = stripped(prompt), answer = stripped(response);
        add_prompt(&draft, corpus->marks, question.text, question.n_bytes);
        add_turn(&draft, corpus->marks, "assistant", answer.text, answer.n_bytes);
    } else {
        return err_set(err, FM_ERR_FORMAT, "'%s' line %u: has neither \"text\" nor \"prompt\" and "
                       "\"response\" as strings", corpus->path, corpus->line);
    }
    if (corpus->marks.has_end)
        draft_add_string(&draft, "<|endoftext|>");
    else if (json_is_string(plain))
        draft_add_string(&draft, "\n");
    return draft_take(&draft, text, text_bytes);
}

/* ---- files ----------------------------------------------------------------------------- */

static bool is_blank(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (strchr(" \t\r", text[i]) == NULL || text[i] == '\0')
            return false;
    return true;
}

/* Finds the next line that is not blank; returns false at the end. */
static bool next_line(struct corpus *corpus, const char **line, size_t *line_bytes, bool *is_whole)
{
    while (corpus->at < corpus->text_bytes) {
        *line = corpus->text + corpus->at;
        size_t left = corpus->text_bytes - corpus->at;
        const char *newline = memchr(*line, '\n', left);
        *is_whole = newline != NULL;
        *line_bytes = newline != NULL ? (size_t)(newline - *line) : left;
        corpus->at += *line_bytes + (newline != NULL);
        corpus->line++;
        if (!is_blank(*line, *line_bytes))
            return true;
    }
    return false;
}

static int next_record(struct corpus *corpus, char **text, size_t *text_bytes,
                       struct fm_error *err)
{
    const char *line;
    size_t line_bytes;
    bool is_whole;
    if (!next_line(corpus, &line, &line_bytes, &is_whole))
        return 0;
    json_error_t why;
    json_t *record = json_loadb(line, line_bytes, 0, &why);
    if (record == NULL && !is_whole) {
        corpus->has_cut_line = true;
        return 0;
    }
    if (record == NULL)
        return err_set(err, FM_ERR_FORMAT, "'%s' line %u: not valid JSON at byte %d: %s",
                       corpus->path, corpus->line, why.position, why.text);
    int rc = record_render(corpus, record, text, text_bytes, err);
    json_decref(record);
    return rc == 0 ? 1 : rc;
}

int corpus_next(struct corpus *corpus, char **text, size_t *text_bytes, struct fm_error *err)
{
    if (corpus->is_jsonl)
        return next_record(corpus, text, text_bytes, err);
    if (corpus->at == corpus->text_bytes)
        return 0;
    corpus->at = corpus->text_bytes;
    struct draft draft = {.err = err};
    draft_add(&draft, corpus->text, corpus->text_bytes);
    int rc = draft_take(&draft, text, text_bytes);
    return rc == 0 ? 1 : rc;
}
