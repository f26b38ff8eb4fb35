#include "apps/cli/term.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/plat.h"
#include "flashmoe.h"

#define ERASE_LINE "\r\033[K"
#define BAR_CELLS 24
#define BAR_CELLS_MIN 4
#define LINE_BYTES 256

/* Whether a progress line is on the screen. */
static volatile sig_atomic_t is_line_drawn;
static int out_errno; /* why standard output failed, 0 while it works */

/* Copies text without control sequences, with a NUL; `out` has FOREIGN_BYTES(bytes) + 1. */
static void clean_all(const char *text, size_t bytes, char *out)
{
    struct foreign_text f = {0};
    size_t n = foreign_clean(&f, text, bytes, out);
    n += foreign_finish(&f, out + n);
    out[n] = '\0';
}

/* ---- messages -------------------------------------------------------------------------- */

static void say_line(const char *prefix, bool is_wrapped, const char *fmt, va_list args)
{
    char text[2 * FM_ERROR_BYTES];
    (void)vsnprintf(text, sizeof text, fmt, args); /* truncation is acceptable */
    /* The text may quote a file. */
    char clean[FOREIGN_BYTES(sizeof text) + 1];
    const bool is_terminal = isatty(STDERR_FILENO);
    if (is_terminal)
        clean_all(text, strlen(text), clean);
    char line[sizeof clean + 32];
    (void)snprintf(line, sizeof line, "flashmoe: %s%s\n", prefix, is_terminal ? clean : text);
    if (is_line_drawn)
        (void)fputs(ERASE_LINE, stderr);
    is_line_drawn = 0;
    if (is_terminal && is_wrapped)
        err_wrapped(line);
    else
        (void)fputs(line, stderr);
}

void say(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say_line("", false, fmt, args);
    va_end(args);
}

void say_figures(bool wraps, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say_line("", wraps, fmt, args);
    va_end(args);
}

void say_warning(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say_line("warning: ", false, fmt, args);
    va_end(args);
}

int say_failed(const struct fm_error *err, int status)
{
    say("%s", err->text);
    return status;
}

static void log_warnings(void *ctx, int level, const char *module, const char *text)
{
    const bool *is_verbose = ctx;
    if (level == FM_LOG_WARN)
        say_warning("%s", text);
    else if (*is_verbose)
        say("%s: %s", module, text);
}

void say_library_log(bool is_verbose)
{
    static bool wants_info;
    wants_info = is_verbose;
    fm_log_to(log_warnings, &wants_info);
}

/* ---- progress -------------------------------------------------------------------------- */

static int line_columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    return 80;
}

/* Draws the line, cut to the terminal's width: a wrapped line cannot be erased. */
static void draw_line(const char *text)
{
    (void)fprintf(stderr, ERASE_LINE "%.*s", line_columns() - 1, text);
    (void)fflush(stderr);
    is_line_drawn = 1;
}

/* Limits drawing to ten times a second, and to work that takes longer than 0.2 s. */
static bool is_due(struct progress *progress)
{
    uint64_t now_ns = plat_now_ns();
    if (!progress->is_on || now_ns - progress->start_ns < 200000000u ||
        now_ns - progress->drawn_ns < 100000000u)
        return false;
    progress->drawn_ns = now_ns;
    return true;
}

/* Draws LABEL [####----] TEXT. On a narrow terminal the bar is shorter, then the label is cut: the
 * text has the rate and the time left. */
static void draw_bar(const char *label, double part, const char *text)
{
    const int columns = line_columns() - 1 - (int)strlen(text) - 4, n_label = (int)strlen(label);
    const int left = columns - n_label;
    const int n_cells = left > BAR_CELLS ? BAR_CELLS : left < BAR_CELLS_MIN ? BAR_CELLS_MIN
                                                                              : left;
    const int n_full = (int)(part * n_cells);
    char bar[BAR_CELLS + 1], line[2 * LINE_BYTES];
    int n_shown = columns - n_cells < n_label ? columns - n_cells : n_label;
    n_shown = n_shown > 0 ? n_shown : 0;
    while (n_shown > 0 && ((unsigned char)label[n_shown] & 0xC0) == 0x80)
        n_shown--; /* not within a character */
    for (int i = 0; i < n_cells; i++)
        bar[i] = i < n_full ? '#' : '-';
    bar[n_cells] = '\0';
    (void)snprintf(line, sizeof line, "%.*s [%s] %s", n_shown, label, bar, text);
    draw_line(line);
}

void progress_begin(struct progress *progress, const char *label, bool is_wanted)
{
    *progress = (struct progress){.label = label, .start_ns = plat_now_ns()};
    progress->is_on = is_wanted && isatty(STDERR_FILENO);
}

void progress_bytes(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    struct progress *progress = ctx;
    if (total_bytes == 0 || !is_due(progress))
        return;
    double part = (double)done_bytes / (double)total_bytes;
    double seconds = (double)(plat_now_ns() - progress->start_ns) * 1e-9;
    double rate = (double)(done_bytes - progress->first_bytes) / seconds;
    double left = rate > 0 ? (double)(total_bytes - done_bytes) / rate : 0;
    char text[LINE_BYTES], done[UNIT_BYTES], total[UNIT_BYTES];
    char speed[UNIT_BYTES], eta[UNIT_BYTES];
    (void)snprintf(text, sizeof text, "%3.0f%%  %s of %s  %s  ETA %s", part * 100,
                   human_bytes(done_bytes, done), human_bytes(total_bytes, total),
                   human_rate(rate, speed), human_seconds(left, eta));
    draw_bar(progress->label, part, text);
}

void progress_steps(struct progress *progress, uint64_t done, uint64_t total, const char *note)
{
    if (total == 0 || !is_due(progress))
        return;
    double part = (double)done / (double)total;
    double seconds = (double)(plat_now_ns() - progress->start_ns) * 1e-9;
    double left = part > 0 ? seconds * (1 - part) / part : 0;
    char text[LINE_BYTES], eta[UNIT_BYTES];
    (void)snprintf(text, sizeof text, "%llu of %llu  %s%sETA %s", (unsigned long long)done,
                   (unsigned long long)total, note, note[0] != '\0' ? "  " : "",
                   human_seconds(left, eta));
    draw_bar(progress->label, part, text);
}

void progress_end(struct progress *progress)
{
    if (progress->is_on && is_line_drawn) {
        (void)fputs(ERASE_LINE, stderr);
        (void)fflush(stderr);
        is_line_drawn = 0;
    }
    progress->is_on = false;
}

void progress_erase_from_signal(void)
{
    if (!is_line_drawn)
        return;
    is_line_drawn = 0;
    ssize_t n = write(STDERR_FILENO, ERASE_LINE, sizeof ERASE_LINE - 1);
    (void)n; /* nothing can be done about it in a signal handler */
}

/* ---- units ----------------------------------------------------------------------------- */

static const char *scaled(double value, double step, const char *const *units, size_t n_units,
                          char buffer[UNIT_BYTES])
{
    size_t i = 0;
    /* Avoids showing 999.95 as 1000.0. */
    while (i + 1 < n_units && value >= (step == 1024 ? 1023.95 : 999.95)) {
        value /= step;
        i++;
    }
    (void)snprintf(buffer, UNIT_BYTES, i == 0 ? "%.0f %s" : "%.1f %s", value, units[i]);
    return buffer;
}

const char *human_bytes(uint64_t bytes, char buffer[UNIT_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled((double)bytes, 1024, units, 6, buffer);
}

const char *human_rate(double bytes_per_s, char buffer[UNIT_BYTES])
{
    static const char *const units[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s"};
    return scaled(bytes_per_s, 1000, units, 5, buffer);
}

const char *human_count(uint64_t n, char buffer[UNIT_BYTES])
{
    static const char *const units[] = {"", "thousand", "million", "billion", "trillion"};
    return scaled((double)n, 1000, units, 5, buffer);
}

const char *human_seconds(double seconds, char buffer[UNIT_BYTES])
{
    unsigned long long s = seconds > 0 ? (unsigned long long)(seconds + 0.5) : 0;
    if (s < 60)
        (void)snprintf(buffer, UNIT_BYTES, "%llu s", s);
    else if (s < 3600)
        (void)snprintf(buffer, UNIT_BYTES, "%llu min %llu s", s / 60, s % 60);
    else
        (void)snprintf(buffer, UNIT_BYTES, "%llu h %llu min", s / 3600, s / 60 % 60);
    return buffer;
}

const char *grouped_digits(uint64_t n, char buffer[UNIT_BYTES])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
    size_t used = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            buffer[used++] = ',';
        buffer[used++] = digits[i];
    }
    buffer[used] = '\0';
    return buffer;
}

double per_second(uint64_t n, uint64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

/* ---- standard output ------------------------------------------------------------------- */

bool out_text(const char *text, size_t text_bytes)
{
    if (out_errno == 0 && fwrite(text, 1, text_bytes, stdout) != text_bytes)
        out_errno = errno;
    if (out_errno == 0 && fflush(stdout) != 0)
        out_errno = errno;
    return out_errno == 0;
}

#define PIECE_BYTES 512

bool out_foreign(struct foreign_text *f, const char *text, size_t text_bytes)
{
    char clean[FOREIGN_BYTES(PIECE_BYTES)];
    if (!isatty(STDOUT_FILENO)) {
        f->ends_line = text_bytes > 0 ? text[text_bytes - 1] == '\n' : f->ends_line;
        return out_text(text, text_bytes);
    }
    bool is_written = true;
    for (size_t i = 0; is_written && i < text_bytes; i += PIECE_BYTES) {
        const size_t n = text_bytes - i < PIECE_BYTES ? text_bytes - i : PIECE_BYTES;
        is_written = out_text(clean, foreign_clean(f, text + i, n, clean));
    }
    return is_written;
}

/* Returns the columns of a terminal; 0: unknown. */
static unsigned columns_of(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool out_wrapped(struct foreign_text *f, struct wrap *wrap, const char *text, size_t text_bytes)
{
    char clean[FOREIGN_BYTES(PIECE_BYTES)], broken[WRAP_BYTES(sizeof clean)];
    bool is_written = true;
    wrap_set_columns(wrap, columns_of(STDOUT_FILENO));
    for (size_t i = 0; is_written && i < text_bytes; i += PIECE_BYTES) {
        const size_t n = text_bytes - i < PIECE_BYTES ? text_bytes - i : PIECE_BYTES;
        const size_t n_clean = foreign_clean(f, text + i, n, clean);
        is_written = out_text(broken, wrap_text(wrap, clean, n_clean, broken));
    }
    return is_written;
}

bool out_wrapped_end(struct wrap *wrap)
{
    char held[WRAP_BYTES(0)];
    return out_text(held, wrap_flush(wrap, held));
}

void err_wrapped(const char *text)
{
    struct wrap wrap = {0};
    char broken[WRAP_BYTES(PIECE_BYTES)];
    const size_t bytes = strlen(text);
    wrap_set_columns(&wrap, columns_of(STDERR_FILENO));
    for (size_t i = 0; i < bytes; i += PIECE_BYTES) {
        const size_t n = bytes - i < PIECE_BYTES ? bytes - i : PIECE_BYTES;
        (void)fwrite(broken, 1, wrap_text(&wrap, text + i, n, broken), stderr);
    }
    (void)fwrite(broken, 1, wrap_flush(&wrap, broken), stderr);
}

void err_foreign(struct foreign_text *f, const char *text, size_t text_bytes)
{
    char clean[FOREIGN_BYTES(PIECE_BYTES)];
    const bool is_terminal = isatty(STDERR_FILENO);
    for (size_t i = 0; i < text_bytes; i += PIECE_BYTES) {
        const size_t n = text_bytes - i < PIECE_BYTES ? text_bytes - i : PIECE_BYTES;
        const size_t shown = is_terminal ? foreign_clean(f, text + i, n, clean) : n;
        (void)fwrite(is_terminal ? clean : text + i, 1, shown, stderr);
    }
}

const char *out_name(const char *name, char buffer[NAME_BYTES])
{
    char clean[FOREIGN_BYTES(NAME_BYTES) + 1];
    if (!isatty(STDOUT_FILENO))
        return name;
    clean_all(name, strnlen(name, NAME_BYTES), clean);
    const size_t n = strnlen(clean, NAME_BYTES - 1);
    memcpy(buffer, clean, n);
    buffer[n] = '\0';
    return buffer;
}

/* Prints JSON, in which C0 controls are already escaped, and escapes DEL and C1 likewise. */
static void print_json(const char *text, FILE *file)
{
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)text[0], next = (unsigned char)text[1];
        const bool is_c1 = c == 0xc2 && next >= 0x80 && next < 0xa0;
        if (c == 0x7f || is_c1)
            (void)fprintf(file, "\\u00%02x", is_c1 ? next : c);
        else
            (void)fputc(c, file);
        text += is_c1;
    }
}

void err_json(const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    if (text != NULL && isatty(STDERR_FILENO))
        print_json(text, stderr);
    else if (text != NULL)
        (void)fputs(text, stderr);
    free(text);
}

bool out_json(json_t *object)
{
    const size_t flags = JSON_REAL_PRECISION(9);
    char *text = object != NULL ? json_dumps(object, flags) : NULL;
    json_decref(object);
    if (text == NULL) {
        say("out of memory for the JSON output");
        return false;
    }
    if (isatty(STDOUT_FILENO))
        print_json(text, stdout);
    else
        (void)out_text(text, strlen(text));
    bool is_written = out_text("\n", 1);
    free(text);
    return is_written;
}

size_t utf8_length(const unsigned char *s, size_t n)
{
    if (s[0] < 0x80)
        return 1;
    size_t length = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    bool is_overlong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xf0 && s[1] < 0x90);
    bool is_outside = (s[0] == 0xed && s[1] >= 0xa0) || (s[0] == 0xf4 && s[1] >= 0x90);
    return is_overlong || is_outside ? 0 : length;
}

json_t *json_text(const char *text, size_t text_bytes)
{
    json_t *string = json_stringn(text, text_bytes);
    if (string != NULL)
        return string;
    char *clean = mem_new(text_bytes + 1, 3, "the JSON output", NULL);
    if (clean == NULL)
        return NULL;
    size_t used = 0;
    for (size_t i = 0; i < text_bytes;) {
        size_t n = utf8_length((const unsigned char *)text + i, text_bytes - i);
        memcpy(clean + used, n > 0 ? text + i : "\xef\xbf\xbd", n > 0 ? n : 3);
        used += n > 0 ? n : 3;
        i += n > 0 ? n : 1;
    }
    string = json_stringn(clean, used);
    mem_free(clean);
    return string;
}

void out_escaped(const char *text, size_t text_bytes)
{
    for (size_t i = 0; i < text_bytes;) {
        const unsigned char c = (unsigned char)text[i];
        size_t n = utf8_length((const unsigned char *)text + i, text_bytes - i);
        if (c == '\n' || c == '\t' || c == '\r')
            (void)printf("\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
        else if (c == '"' || c == '\\')
            (void)printf("\\%c", c);
        else if (n == 0 || c < 0x20 || c == 0x7f)
            (void)printf("\\x%02x", c);
        else if (c == 0xc2 && (unsigned char)text[i + 1] < 0xa0) /* C1 */
            (void)printf("\\xc2\\x%02x", (unsigned char)text[i + 1]);
        else
            (void)printf("%.*s", (int)n, text + i);
        i += n > 0 ? n : 1;
    }
}

int out_finish(int status)
{
    if (out_errno == 0 && fflush(stdout) != 0)
        out_errno = errno;
    if (out_errno == 0 && ferror(stdout))
        out_errno = EPIPE; /* an earlier write failed and its errno is gone */
    if (out_errno == 0 || status == STATUS_INTERRUPTED)
        return status;
    if (out_errno != EPIPE)
        say("cannot write to standard output: %s", strerror(out_errno));
    return STATUS_FAILED;
}
