#include "apps/cli/foreign_text.h"

#include <string.h>

#include "apps/cli/term.h"

#define SEQUENCE_MAX 1000

#define BELL 0x07
#define CANCEL 0x18
#define SUBSTITUTE 0x1a
#define ESCAPE 0x1b
#define DELETE 0x7f

enum state {
    TEXT,
    AFTER_ESCAPE,
    IN_CONTROL,         /* CSI: parameters until a letter */
    IN_STRING,          /* OSC, DCS, SOS, PM, APC: until BEL or ST */
    ESCAPE_IN_STRING,   /* possibly the first half of ST */
};

static unsigned decode(const unsigned char *s, size_t n)
{
    unsigned c = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
    for (size_t i = 1; i < n; i++)
        c = c << 6 | (s[i] & 0x3fu);
    return c;
}

static bool is_shown(unsigned c)
{
    return c == '\n' || c == '\t' || (c >= 0x20 && c < DELETE) || c >= 0xa0;
}

/* Returns the state after a C1 control. */
static enum state after_c1(unsigned c)
{
    if (c == 0x9b)
        return IN_CONTROL;
    return c == 0x90 || c == 0x98 || c == 0x9d || c == 0x9e || c == 0x9f ? IN_STRING : TEXT;
}

static enum state after_escape(unsigned c)
{
    if (c >= 0x20 && c < 0x30)
        return AFTER_ESCAPE;
    if (c == '[')
        return IN_CONTROL;
    return c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_' ? IN_STRING : TEXT;
}

/* Processes one character; returns whether it is shown. */
static bool take(struct foreign_text *f, unsigned c)
{
    const enum state was = (enum state)f->state;
    f->n_swallowed = was == TEXT ? 0 : f->n_swallowed + 1;
    if (c == '\n' || f->n_swallowed > SEQUENCE_MAX) {
        f->state = TEXT;
        return is_shown(c);
    }
    if (c == ESCAPE) {
        f->state = was == IN_STRING ? ESCAPE_IN_STRING : AFTER_ESCAPE;
        return false;
    }
    if (c == CANCEL || c == SUBSTITUTE || (c >= 0x80 && c < 0xa0)) {
        f->state = c >= 0x80 ? after_c1(c) : TEXT;
        return false;
    }
    if (was == TEXT)
        return is_shown(c);
    if (was == IN_STRING) {
        f->state = c == BELL ? TEXT : IN_STRING;
        return false;
    }
    if (c < 0x20 || c == DELETE)
        return false; /* terminals continue the sequence */
    if (c >= 0x80) {
        f->state = TEXT; /* no sequence contains such characters */
        return true;
    }
    if (was == IN_CONTROL)
        f->state = c >= 0x40 ? TEXT : IN_CONTROL;
    else
        f->state = after_escape(c); /* also ends ST, ESC \ */
    return false;
}

static size_t put(struct foreign_text *f, const unsigned char *s, size_t n, char *out)
{
    static const char unknown[] = "\xef\xbf\xbd";
    const bool is_valid = n > 0;
    const unsigned c = is_valid ? decode(s, n) : 0xfffd;
    if (!take(f, c))
        return 0;
    n = is_valid ? n : sizeof unknown - 1;
    memcpy(out, is_valid ? (const char *)s : unknown, n);
    f->ends_line = c == '\n';
    return n;
}

/* Returns the length of a character from its first byte; 1 if the byte cannot start one. */
static size_t wanted(unsigned char first)
{
    if (first < 0xc2 || first > 0xf4)
        return 1;
    return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
}

size_t foreign_clean(struct foreign_text *f, const char *text, size_t bytes, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        f->held[f->n_held++] = (unsigned char)text[i];
        while (f->n_held > 0) {
            const size_t n = utf8_length(f->held, f->n_held);
            const bool may_follow = n == 0 && f->n_held < wanted(f->held[0]) &&
                                    (f->n_held < 2 || (f->held[f->n_held - 1] & 0xc0) == 0x80);
            if (may_follow)
                break;
            used += put(f, f->held, n, out + used);
            const size_t taken = n > 0 ? n : 1;
            f->n_held -= taken;
            memmove(f->held, f->held + taken, f->n_held);
        }
    }
    return used;
}

size_t foreign_finish(struct foreign_text *f, char *out)
{
    size_t used = 0;
    for (; f->n_held > 0; f->n_held--)
        used += put(f, f->held, 0, out + used);
    f->state = TEXT;
    return used;
}
