#include "apps/chat/chat_edit.h"

#include "apps/cli/interrupt.h"

#ifndef FLASHMOE_HAS_LIBEDIT

bool chat_edit_open(const char *history, struct chat_edit **out)
{
    (void)history;
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
#include <unistd.h>
#include <wchar.h>

#include "base/mem.h"
#include "apps/cli/part_file.h"
#include "apps/cli/term.h"

#define HISTORY_LINES 1000
#define PASTE_BYTES_MAX ((size_t)16 << 20)

struct chat_edit {
    EditLine *el;
    History *history;
    const char *path; /* of the history; NULL: none */
    const char *prompt;
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

/* ---- characters ------------------------------------------------------------------------ */

/* Reads one byte. Returns 1, 0 at the end, or -1 after an error or Ctrl-C. */
static int next_byte(EditLine *el, unsigned char *byte)
{
    for (;;) {
        const bool is_there = interrupt_wait_input(STDIN_FILENO);
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
            el_resize(el);
            (void)el_set(el, EL_REFRESH);
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

/* ---- lines ------------------------------------------------------------------------------ */

static char *prompt_of(EditLine *el)
{
    static char text[16];
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
    (void)el_wset(el, EL_GETCFN, next_char);
}

bool chat_edit_open(const char *path, struct chat_edit **out)
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
