#include "apps/chat/chat_input.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "apps/chat/chat_edit.h"
#include "apps/cli/interrupt.h"
#include "apps/cli/term.h"
#include "apps/cli/width.h"

#define READ_BYTES 65536
#define MESSAGE_BYTES_MAX ((size_t)64 << 20)
#define PROMPT_END "> "
#define PROMPT_MORE ". "
#define PROMPT_COLUMNS 32 /* of the model's name */
#define PROMPT_BYTES 256

static const char quotes[] = "\"\"\"";
static const char paste_begin[] = "\033[200~", paste_end[] = "\033[201~";

struct text {
    void *at; /* NUL-terminated bytes */
    size_t bytes, capacity;
};

struct chat_input {
    bool is_terminal;
    struct chat_edit *edit; /* NULL: unedited lines */
    char *ahead;            /* [READ_BYTES] read but not yet used */
    size_t n_ahead, n_used;
    struct text line, message;
    char prompt[PROMPT_BYTES];
};

static int text_add(struct text *text, const char *more, size_t bytes, struct fm_error *err)
{
    if (text->bytes + bytes > MESSAGE_BYTES_MAX)
        return err_set(err, FM_ERR_ARG, "the message has more than %zu bytes", MESSAGE_BYTES_MAX);
    int rc = mem_grow(&text->at, &text->capacity, text->bytes + bytes + 1, 1, "the message", err);
    if (rc != 0)
        return rc;
    char *at = text->at;
    for (size_t i = 0; i < bytes; i++)
        if (more[i] != '\0')
            at[text->bytes++] = more[i];
    at[text->bytes] = '\0';
    return 0;
}

static void text_clear(struct text *text)
{
    text->bytes = 0;
    if (text->at != NULL)
        ((char *)text->at)[0] = '\0';
}

/* Writes "NAME> ", with as much of the name as a line can show. */
static void make_prompt(const char *name, char prompt[PROMPT_BYTES])
{
    char clean[FOREIGN_BYTES(PROMPT_BYTES)];
    struct foreign_text f = {0};
    const size_t n = foreign_clean(&f, name, strnlen(name, PROMPT_BYTES), clean);
    size_t used = 0;
    unsigned columns = 0;
    for (size_t i = 0, bytes; i < n; i += bytes) {
        columns += width_of(width_decode(clean + i, n - i, &bytes));
        const bool is_gap = clean[i] == '\n' || clean[i] == '\t';
        if (columns > PROMPT_COLUMNS || used + bytes + sizeof PROMPT_END > PROMPT_BYTES)
            break;
        memcpy(prompt + used, is_gap ? " " : clean + i, bytes);
        used += bytes;
    }
    memcpy(prompt + used, PROMPT_END, sizeof PROMPT_END);
}

int chat_input_open(bool is_terminal, const char *model, const char *history,
                    const struct chat_words *words, struct chat_input **out,
                    struct fm_error *err)
{
    *out = NULL;
    struct chat_input *input = mem_new(1, sizeof *input, "the input", err);
    if (input == NULL)
        return FM_ERR_NOMEM;
    input->is_terminal = is_terminal;
    input->ahead = mem_new(READ_BYTES, 1, "the input", err);
    if (input->ahead == NULL) {
        mem_free(input);
        return FM_ERR_NOMEM;
    }
    make_prompt(model, input->prompt);
    if (is_terminal)
        (void)chat_edit_open(history, words, &input->edit); /* falls back to plain lines */
    *out = input;
    return 0;
}

void chat_input_close(struct chat_input *input)
{
    if (input == NULL)
        return;
    chat_edit_close(input->edit);
    mem_free(input->ahead);
    mem_free(input->line.at);
    mem_free(input->message.at);
    mem_free(input);
}

/* ---- lines ------------------------------------------------------------------------------ */

/* Appends the rest of a line to `line`, without the newline. */
static int read_line(struct chat_input *input, struct fm_error *err)
{
    bool is_empty = true;
    for (;;) {
        if (input->n_used == input->n_ahead) {
            const bool is_there = interrupt_wait_input(STDIN_FILENO, NULL);
            const ssize_t n = is_there ? read(STDIN_FILENO, input->ahead, READ_BYTES) : -1;
            if (n < 0 && interrupt_seen())
                return EDIT_CLEARED;
            if (n < 0 && (!is_there || errno == EINTR))
                continue;
            if (n < 0)
                return err_set(err, FM_ERR_IO, "cannot read standard input: %s", strerror(errno)),
                       EDIT_FAILED;
            if (n == 0)
                return is_empty ? EDIT_END : EDIT_LINE;
            input->n_ahead = (size_t)n;
            input->n_used = 0;
        }
        const char *from = input->ahead + input->n_used;
        const size_t left = input->n_ahead - input->n_used;
        const char *newline = memchr(from, '\n', left);
        const size_t n = newline != NULL ? (size_t)(newline - from) : left;
        if (text_add(&input->line, from, n, err) != 0)
            return EDIT_FAILED;
        is_empty = false;
        input->n_used += n + (newline != NULL);
        if (newline != NULL)
            return EDIT_LINE;
    }
}

static void cut(struct text *text, char *at, size_t bytes)
{
    const size_t rest = text->bytes - (size_t)(at - (char *)text->at) - bytes;
    memmove(at, at + bytes, rest + 1);
    text->bytes -= bytes;
}

/* Without an editor, joins all lines from the start of a bracketed paste to its end. */
static int read_plain(struct chat_input *input, const char *prompt, const char **line,
                      struct fm_error *err)
{
    struct text *text = &input->line;
    text_clear(text);
    if (input->is_terminal) {
        (void)out_text("\033[?2004h", 8);
        (void)out_text(prompt, strlen(prompt));
    }
    int got = text_add(text, "", 0, err) == 0 ? read_line(input, err) : EDIT_FAILED;
    char *begin = input->is_terminal && got == EDIT_LINE ? strstr(text->at, paste_begin) : NULL;
    if (begin != NULL)
        cut(text, begin, strlen(paste_begin));
    while (got == EDIT_LINE && begin != NULL && strstr(text->at, paste_end) == NULL)
        got = text_add(text, "\n", 1, err) == 0 ? read_line(input, err) : EDIT_FAILED;
    char *end = begin != NULL && got == EDIT_LINE ? strstr(text->at, paste_end) : NULL;
    if (end != NULL)
        cut(text, end, strlen(paste_end));
    if (input->is_terminal)
        (void)out_text("\033[?2004l", 8);
    if (text->bytes > 0 && ((char *)text->at)[text->bytes - 1] == '\r')
        cut(text, (char *)text->at + text->bytes - 1, 1);
    *line = text->at;
    return got;
}

static int next_line(struct chat_input *input, const char *prompt, const char **line,
                     struct fm_error *err)
{
    return input->edit != NULL ? chat_edit_read(input->edit, prompt, line, err)
                               : read_plain(input, prompt, line, err);
}

/* ---- messages --------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *tail)
{
    const size_t n = strlen(text), n_tail = strlen(tail);
    return n >= n_tail && strcmp(text + n - n_tail, tail) == 0;
}

/* Joins the lines from the one that begins with three quotes to the one that ends with three, or to
 * the end of the file. */
static int read_block(struct chat_input *input, const char *line, struct fm_error *err)
{
    struct text *message = &input->message;
    bool is_first = true;
    line += strspn(line, " \t") + strlen(quotes);
    for (int got = EDIT_LINE; got == EDIT_LINE;) {
        const bool is_last = ends_with(line, quotes);
        const size_t n = strlen(line) - (is_last ? strlen(quotes) : 0);
        const bool is_alone = n == 0 && (is_first || is_last);
        if (!is_alone && message->bytes > 0 && text_add(message, "\n", 1, err) != 0)
            return EDIT_FAILED;
        if (text_add(message, line, n, err) != 0)
            return EDIT_FAILED;
        if (is_last)
            return EDIT_LINE;
        is_first = false;
        got = next_line(input, PROMPT_MORE, &line, err);
        if (got != EDIT_LINE && got != EDIT_END)
            return got;
    }
    return EDIT_LINE;
}

/* Joins lines up to the first that does not end with a backslash. */
static int read_continued(struct chat_input *input, const char *line, struct fm_error *err)
{
    struct text *message = &input->message;
    for (;;) {
        const bool goes_on = ends_with(line, "\\");
        if (text_add(message, line, strlen(line) - goes_on, err) != 0)
            return EDIT_FAILED;
        if (!goes_on)
            return EDIT_LINE;
        if (text_add(message, "\n", 1, err) != 0)
            return EDIT_FAILED;
        const int got = next_line(input, PROMPT_MORE, &line, err);
        if (got != EDIT_LINE)
            return got == EDIT_END ? EDIT_LINE : got;
    }
}

enum input_kind chat_input_read(struct chat_input *input, const char **text, size_t *text_bytes,
                                struct fm_error *err)
{
    const char *line = "";
    text_clear(&input->message);
    int got = next_line(input, input->prompt, &line, err);
    const bool is_block =
        got == EDIT_LINE && strncmp(line + strspn(line, " \t"), quotes, strlen(quotes)) == 0;
    if (got == EDIT_LINE)
        got = is_block ? read_block(input, line, err) : read_continued(input, line, err);
    if (got == EDIT_CLEARED || got == EDIT_END)
        return got == EDIT_END ? INPUT_END : INPUT_NOTHING;
    if (got == EDIT_FAILED)
        return INPUT_FAILED;
    *text = input->message.at;
    *text_bytes = input->message.bytes;
    if ((*text)[strspn(*text, " \t\r\n")] == '\0')
        return INPUT_NOTHING;
    if (input->edit != NULL)
        chat_edit_remember(input->edit, *text);
    return !is_block && (*text)[0] == '/' && strchr(*text, '\n') == NULL ? INPUT_COMMAND
                                                                        : INPUT_MESSAGE;
}
