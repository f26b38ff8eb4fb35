#include "apps/chat/chat_edit.h"

#include "apps/cli/interrupt.h"

#ifndef FLASHMOE_HAS_LIBEDIT

bool chat_edit_open(const char *history, const struct chat_words *words, struct chat_edit **out)
{
    (void)history;
    (void)words;
    *out = NULL;
    return false;
}

void chat_edit_close(struct chat_edit *edit)
{
    (void)edit;
}

int chat_edit_read(struct chat_edit *edit, const char *prompt, const char **line,
                   struct fm_error *err)
{
    (void)edit;
    (void)prompt;
    *line = "";
    return err_set(err, FM_ERR_UNSUPPORTED, "this program was built without libedit"), EDIT_FAILED;
}

void chat_edit_remember(struct chat_edit *edit, const char *text)
{
    (void)edit;
    (void)text;
}

#else

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/mem.h"
#include "apps/cli/part_file.h"
#include "apps/cli/term.h"
#include "apps/cli/width.h"

#define HISTORY_LINES 1000
#define SHOWN_NAMES 200 /* of a completion */
#define UNKNOWN_COLUMNS 80
#define PASTE_BYTES_MAX ((size_t)16 << 20)

struct chat_edit {
    EditLine *el;
    History *history;
    const char *path; /* of the history; NULL: none */
    const char *prompt;
    const struct chat_words *words;
    unsigned columns; /* of the terminal when the line was drawn */
    void *line; /* UTF-8 */
    size_t line_capacity;
    void *paste; /* wchar_t */
    size_t paste_capacity;
};

static volatile sig_atomic_t is_resized, is_continued;

static void on_change(int signal_number)
{
    if (signal_number == SIGWINCH)
        is_resized = 1;
    else
        is_continued = 1;
}

static void watch_terminal(void)
{
    struct sigaction action = {.sa_handler = on_change}; /* interrupts a read in progress */
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGWINCH, &action, NULL);
    (void)sigaction(SIGCONT, &action, NULL);
}

static bool is_changed(void)
{
    return is_resized || is_continued;
}

/* ---- another width ---------------------------------------------------------------------- */

static unsigned terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col
                                                                           : UNKNOWN_COLUMNS;
}

/* Moves a position over a character as libedit draws it. */
static void step(uint32_t c, unsigned columns, unsigned *row, unsigned *column)
{
    unsigned cells = c == '\t' ? 8 - *column % 8 : c < 0x20 ? 2 : width_of(c);
    if (c == '\n') {
        *row += 1;
        *column = 0;
        return;
    }
    if (*column + cells > columns) {
        *row += 1;
        *column = 0;
        cells = cells < columns ? cells : columns - 1;
    }
    *column += cells;
    if (*column == columns) { /* libedit leaves the edge at once */
        *row += 1;
        *column = 0;
    }
}

/* Returns in which row of the line the cursor is on a terminal of this width. */
static unsigned cursor_row(const struct chat_edit *edit, const LineInfoW *line, unsigned columns)
{
    unsigned row = 0, column = 0;
    const size_t n = strlen(edit->prompt);
    for (size_t i = 0, used; i < n; i += used)
        step(width_decode(edit->prompt + i, n - i, &used), columns, &row, &column);
    for (const wchar_t *c = line->buffer; c < line->cursor; c++)
        step((uint32_t)*c, columns, &row, &column);
    return row;
}

/* Draws the line again after the terminal has changed its size. Some terminals break the rows that
 * are shown anew and some do not, so the first row is one of two. This takes the lower one: a row
 * that is left over does less harm than one that is erased. */
static void redraw(EditLine *el)
{
    struct chat_edit *edit = NULL;
    const LineInfoW *line = el_wline(el);
    if (el_get(el, EL_CLIENTDATA, &edit) != 0 || edit == NULL || line == NULL)
        return;
    const unsigned columns = terminal_columns();
    const unsigned before = cursor_row(edit, line, edit->columns);
    const unsigned after = cursor_row(edit, line, columns), up = before < after ? before : after;
    char move[32] = "\r";
    if (up > 0)
        (void)snprintf(move, sizeof move, "\r\033[%uA", up);
    (void)out_text(move, strlen(move));
    (void)out_text("\033[J", 3); /* erases everything below */
    edit->columns = columns;
    el_resize(el);
    (void)el_set(el, EL_REFRESH);
}

/* ---- characters ------------------------------------------------------------------------ */

/* Reads one byte. Returns 1, 0 at the end, or -1 after an error or Ctrl-C. */
static int next_byte(EditLine *el, unsigned char *byte)
{
    for (;;) {
        const bool is_there = interrupt_wait_input(STDIN_FILENO, is_changed);
        const ssize_t n = is_there ? read(STDIN_FILENO, byte, 1) : -1;
        if (n >= 0)
            return (int)n;
        if (interrupt_seen() || (is_there && errno != EINTR))
            return -1;
        if (is_continued) { /* the process was suspended; the shell changed the terminal */
            is_continued = 0;
            (void)el_set(el, EL_PREP_TERM, 0);
            (void)el_set(el, EL_PREP_TERM, 1);
            (void)el_set(el, EL_REFRESH);
        }
        if (is_resized) {
            is_resized = 0;
            redraw(el);
        }
    }
}

static size_t sequence_bytes(unsigned char first)
{
    return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
}

/* Decodes n bytes into a character, or U+FFFD. */
static wchar_t decode(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return (wchar_t)s[0];
    if (utf8_length(s, n) != n)
        return 0xfffd;
    unsigned c = s[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3fu);
    return (wchar_t)c;
}

static size_t encode(wchar_t wide, char *out)
{
    unsigned c = (unsigned)wide;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        c = 0xfffd;
    const size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00u >> n) | c);
    return n;
}

static int next_char(EditLine *el, wchar_t *out)
{
    unsigned char s[4];
    int got = next_byte(el, &s[0]);
    if (got <= 0)
        return got;
    const size_t n = sequence_bytes(s[0]);
    for (size_t i = 1; i < n; i++)
        if ((got = next_byte(el, &s[i])) <= 0)
            return got;
    *out = decode(s, n);
    return 1;
}

/* ---- paste ------------------------------------------------------------------------------ */

/* Takes a bracketed paste: everything between ESC [ 200 ~ and ESC [ 201 ~, with its newlines. */
static unsigned char take_paste(EditLine *el, wint_t key)
{
    static const wchar_t end[] = L"\033[201~";
    const size_t n_end = sizeof end / sizeof end[0] - 1;
    struct chat_edit *edit = NULL;
    (void)key;
    if (el_wget(el, EL_CLIENTDATA, &edit) != 0 || edit == NULL)
        return CC_ERROR;
    size_t n = 0;
    bool was_return = false;
    for (;;) {
        wchar_t c;
        if (next_char(el, &c) <= 0)
            break;
        if (c == L'\n' && was_return) {
            was_return = false;
            continue;
        }
        was_return = c == L'\r';
        c = was_return ? L'\n' : c;
        if (mem_grow(&edit->paste, &edit->paste_capacity, n + 2, sizeof c, "a paste", NULL) != 0)
            return CC_ERROR;
        wchar_t *text = edit->paste;
        if (n < PASTE_BYTES_MAX / sizeof c)
            text[n++] = c;
        if (n >= n_end && wmemcmp(text + n - n_end, end, n_end) == 0) {
            n -= n_end;
            break;
        }
    }
    wchar_t *text = edit->paste;
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] >= 0x20 || text[i] == L'\n' || text[i] == L'\t')
            text[used++] = text[i] == 0x7f ? L'?' : text[i];
    if (used == 0)
        return CC_NORM;
    text[used] = L'\0';
    return el_winsertstr(el, text) == 0 ? CC_REFRESH : CC_ERROR;
}

/* ---- completion ------------------------------------------------------------------------- */

/* Shows the names below the line. */
static void show_names(const struct completion *found)
{
    struct foreign_text f = {0};
    struct wrap wrap = {0};
    size_t i = 0;
    (void)out_text("\n", 1);
    for (size_t n = 0; n < found->n && n < SHOWN_NAMES; n++) {
        const char *name = found->names + i;
        (void)out_wrapped(&f, &wrap, n > 0 ? "  " : "", n > 0 ? 2 : 0);
        (void)out_wrapped(&f, &wrap, name, strlen(name));
        i += strlen(name) + 1;
    }
    (void)out_wrapped_end(&wrap);
    if (found->n > SHOWN_NAMES)
        (void)printf("  and %zu more", found->n - SHOWN_NAMES);
    (void)out_text("\n", 1);
}

/* Replaces the last n characters before the cursor by UTF-8 text. */
static unsigned char replace(EditLine *el, size_t n, const char *text)
{
    wchar_t wide[LIMIT_PATH_BYTES + 8];
    const size_t bytes = strlen(text);
    size_t used = 0;
    for (size_t i = 0, length; i < bytes && used + 1 < sizeof wide / sizeof wide[0]; i += length)
        wide[used++] = (wchar_t)width_decode(text + i, bytes - i, &length);
    wide[used] = L'\0';
    el_deletestr(el, (int)n);
    return used == 0 || el_winsertstr(el, wide) == 0 ? CC_REFRESH : CC_ERROR;
}

static unsigned char take_tab(EditLine *el, wint_t key)
{
    char text[4 * LIMIT_PATH_BYTES];
    struct chat_edit *edit = NULL;
    const LineInfoW *line = el_wline(el);
    size_t used = 0, n_old = 0;
    (void)key;
    if (el_get(el, EL_CLIENTDATA, &edit) != 0 || edit == NULL || line == NULL)
        return CC_ERROR;
    for (const wchar_t *c = line->buffer; c < line->cursor; c++) {
        if (used + 5 > sizeof text || *c == L'\0')
            return CC_ERROR;
        used += encode(*c, text + used);
    }
    text[used] = '\0';
    struct completion found;
    chat_complete(edit->words, text, &found);
    unsigned char result = CC_ERROR;
    for (size_t i = found.from; i < used; i++)
        n_old += ((unsigned char)text[i] & 0xc0) != 0x80;
    if (found.n > 0 && strcmp(text + found.from, found.text) != 0)
        result = replace(el, n_old, found.text);
    else if (found.n > 1) {
        show_names(&found);
        result = CC_REDISPLAY;
    }
    chat_complete_clear(&found);
    return result;
}

/* ---- lines ------------------------------------------------------------------------------ */

static char *prompt_of(EditLine *el)
{
    static char text[512];
    struct chat_edit *edit = NULL;
    if (el_get(el, EL_CLIENTDATA, &edit) == 0 && edit != NULL)
        (void)snprintf(text, sizeof text, "%s", edit->prompt);
    return text;
}

static void set_up(struct chat_edit *edit)
{
    EditLine *el = edit->el;
    (void)el_set(el, EL_CLIENTDATA, edit);
    (void)el_set(el, EL_EDITOR, "emacs");
    (void)el_set(el, EL_SIGNAL, 0); /* interrupt.h handles Ctrl-C */
    (void)el_set(el, EL_PROMPT, prompt_of);
    (void)el_set(el, EL_HIST, history, edit->history);
    (void)el_set(el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    (void)el_source(el, NULL); /* the user's key bindings, if any */
    (void)el_wset(el, EL_ADDFN, L"flashmoe-paste", L"Bracketed paste", take_paste);
    (void)el_set(el, EL_BIND, "\\e[200~", "flashmoe-paste", NULL);
    (void)el_wset(el, EL_ADDFN, L"flashmoe-complete", L"Completes commands and files", take_tab);
    (void)el_set(el, EL_BIND, "^I", "flashmoe-complete", NULL);
    (void)el_wset(el, EL_GETCFN, next_char);
}

bool chat_edit_open(const char *path, const struct chat_words *words, struct chat_edit **out)
{
    HistEvent event;
    *out = NULL;
    (void)setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    struct chat_edit *edit = mem_new(1, sizeof *edit, "the line editor", NULL);
    if (edit == NULL)
        return false;
    edit->path = path;
    edit->words = words;
    edit->prompt = "";
    edit->history = history_init();
    edit->el = el_init("flashmoe", stdin, stdout, stderr);
    if (edit->el == NULL || edit->history == NULL) {
        chat_edit_close(edit);
        return false;
    }
    (void)history(edit->history, &event, H_SETSIZE, HISTORY_LINES);
    (void)history(edit->history, &event, H_SETUNIQUE, 1);
    if (path != NULL)
        plat_make_path_private(path);
    if (path != NULL)
        (void)history(edit->history, &event, H_LOAD, path); /* it may not exist yet */
    set_up(edit);
    watch_terminal();
    *out = edit;
    return true;
}

void chat_edit_close(struct chat_edit *edit)
{
    if (edit == NULL)
        return;
    if (edit->el != NULL)
        el_end(edit->el);
    if (edit->history != NULL)
        history_end(edit->history);
    mem_free(edit->line);
    mem_free(edit->paste);
    mem_free(edit);
}

int chat_edit_read(struct chat_edit *edit, const char *prompt, const char **line,
                   struct fm_error *err)
{
    int n = 0;
    edit->prompt = prompt;
    edit->columns = terminal_columns();
    if (is_resized) {
        is_resized = 0;
        el_resize(edit->el);
    }
    (void)el_set(edit->el, EL_PREP_TERM, 1); /* first: early typing is edited too */
    (void)out_text("\033[?2004h", 8);        /* turns bracketed paste on */
    const wchar_t *wide = el_wgets(edit->el, &n);
    if (interrupt_seen())
        clearerr(stdout); /* Ctrl-C interrupted a write; a real error will recur */
    (void)out_text("\033[?2004l", 8);
    if (wide == NULL || n <= 0)
        return interrupt_seen() ? EDIT_CLEARED : EDIT_END;
    size_t used = 0;
    if (mem_grow(&edit->line, &edit->line_capacity, (size_t)n * 4 + 1, 1, "a line", err) != 0)
        return EDIT_FAILED;
    char *text = edit->line;
    for (int i = 0; i < n; i++)
        if (wide[i] != L'\0')
            used += encode(wide[i], text + used);
    if (used > 0 && text[used - 1] == '\n')
        used--;
    text[used] = '\0';
    *line = text;
    return EDIT_LINE;
}

void chat_edit_remember(struct chat_edit *edit, const char *text)
{
    HistEvent event;
    (void)history(edit->history, &event, H_ENTER, text);
    struct part_file out;
    if (edit->path == NULL || part_file_open(&out, "", edit->path, PLAT_PRIVATE, NULL) != 0)
        return; /* a lost history entry is not worth a message */
    const bool is_whole = history(edit->history, &event, H_SAVE_FP, out.file) >= 0;
    (void)part_file_close(&out, is_whole, NULL);
}

#endif
