#include "apps/cli/wrap.h"

#include <string.h>

#include "apps/cli/width.h"

#define TAB_COLUMNS 8
#define ZERO_WIDTH_SPACE 0x200b
#define JOINER 0x200d      /* joins emoji into one */
#define WORD_JOINER 0x2060
#define NO_BREAK_SPACE 0xa0
#define WIDE_SPACE 0x3000
#define AS_EMOJI 0xfe0f    /* shows the character before it as an emoji, which is wide */
#define FENCE_MARKS 3

struct output {
    char *at;
    size_t n;
};

static void put(struct output *out, const char *text, size_t n)
{
    memcpy(out->at + out->n, text, n);
    out->n += n;
}

/* ---- where a line may break ------------------------------------------------------------- */

static bool is_blank(uint32_t c)
{
    return c == ' ' || c == '\t' || c == WIDE_SPACE || c == ZERO_WIDTH_SPACE;
}

static bool is_one_of(uint32_t c, const uint32_t *list)
{
    while (*list != 0 && *list != c)
        list++;
    return *list != 0;
}

/* Returns whether a line must not begin with the character. */
static bool is_closing(uint32_t c)
{
    static const uint32_t list[] = {
        '!', ')', ',', '.', ':', ';', '?', ']', '}', '%', '"', '\'', 0x2019, 0x201d, 0x2026, 0x3001,
        0x3002, 0x3005, 0x3009, 0x300b, 0x300d, 0x300f, 0x3011, 0x3015, 0x3017, 0x3019, 0x301b,
        0x301f, 0x3041, 0x3043, 0x3045, 0x3047, 0x3049, 0x3063, 0x3083, 0x3085, 0x3087, 0x308e,
        0x309d, 0x309e, 0x30a1, 0x30a3, 0x30a5, 0x30a7, 0x30a9, 0x30c3, 0x30e3, 0x30e5, 0x30e7,
        0x30ee, 0x30fb, 0x30fc, 0x30fd, 0x30fe, 0xff01, 0xff05, 0xff09, 0xff0c, 0xff0e, 0xff1a,
        0xff1b, 0xff1f, 0xff3d, 0xff5d, 0xff60, 0};
    return is_one_of(c, list);
}

/* Returns whether a line must not end with the character. */
static bool is_opening(uint32_t c)
{
    static const uint32_t list[] = {'(', '[', '{', '"', '\'', 0x2018, 0x201c, 0x3008, 0x300a,
                                    0x300c, 0x300e, 0x3010, 0x3014, 0x3016, 0x3018, 0x301a, 0x301d,
                                    0xff08, 0xff3b, 0xff5b, 0xff5f, '$', '#', 0xa5, 0xffe5, 0};
    return is_one_of(c, list);
}

/* Returns whether words are written without blanks between them. Korean has blanks. */
static bool breaks_anywhere(uint32_t c)
{
    return width_of(c) == 2 && !(c >= 0xac00 && c <= 0xd7a3) && !(c >= 0x1100 && c <= 0x115f);
}

static bool is_flag_half(uint32_t c)
{
    return c >= 0x1f1e6 && c <= 0x1f1ff;
}

static bool is_skin_tone(uint32_t c)
{
    return c >= 0x1f3fb && c <= 0x1f3ff;
}

/* Returns whether a line may break between two characters of which neither is a blank. */
static bool may_break(uint32_t a, uint32_t b)
{
    if (width_of(b) == 0 || a == JOINER || a == WORD_JOINER || a == NO_BREAK_SPACE ||
        b == NO_BREAK_SPACE || is_skin_tone(b) || (is_flag_half(a) && is_flag_half(b)))
        return false;
    return (breaks_anywhere(a) || breaks_anywhere(b)) && !is_opening(a) && !is_closing(b);
}

/* ---- the line --------------------------------------------------------------------------- */

/* Follows the cursor over a character that the terminal shows. */
static void advance(struct wrap *w, unsigned cells)
{
    w->column = w->column + cells <= w->columns ? w->column + cells : cells;
}

static void start_line(struct wrap *w)
{
    w->column = 0;
    w->has_text = false;
}

static void drop_blanks(struct wrap *w)
{
    w->n_blanks = 0;
    w->blank_columns = 0;
}

/* Returns the columns of a blank that begins at `column`. */
static unsigned blank_width(uint32_t c, unsigned column)
{
    return c == '\t' ? TAB_COLUMNS - column % TAB_COLUMNS : width_of(c);
}

static unsigned room(const struct wrap *w)
{
    return w->columns - w->column;
}

static void put_blanks(struct wrap *w, struct output *out)
{
    put(out, w->blanks, w->n_blanks);
    w->column += w->blank_columns < room(w) ? w->blank_columns : room(w);
    drop_blanks(w);
}

/* Writes the held word; what follows of it is written at once. */
static void show_word(struct wrap *w, struct output *out)
{
    if (w->blank_columns + w->word_columns > room(w) && w->column > 0) {
        put(out, "\n", 1);
        start_line(w);
        drop_blanks(w);
    }
    put_blanks(w, out);
    put(out, w->word, w->n_word);
    if (w->word_columns > room(w))
        w->column = width_of(w->last); /* longer than a line: the terminal has broken it */
    else
        w->column += w->word_columns;
    w->has_text = true;
    w->n_word = 0;
    w->word_columns = 0;
    w->is_shown = true;
}

static void end_word(struct wrap *w, struct output *out)
{
    if (w->is_in_word && !w->is_shown)
        show_word(w, out);
    w->is_in_word = w->is_shown = false;
}

static void take_blank(struct wrap *w, uint32_t c, const char *s, size_t n, struct output *out)
{
    end_word(w, out);
    const unsigned at = w->column + w->blank_columns, cells = blank_width(c, at);
    const bool is_late = at + cells > w->columns;
    if (!w->has_text && !is_late) { /* indentation */
        put(out, s, n);
        w->column += cells;
        return;
    }
    if (w->n_blanks + n > sizeof w->blanks && !is_late)
        put_blanks(w, out);
    /* Blanks past the edge are not written. */
    w->blank_columns += cells;
    if (!is_late && w->n_blanks + n <= sizeof w->blanks) {
        memcpy(w->blanks + w->n_blanks, s, n);
        w->n_blanks += n;
    }
}

static void take_letter(struct wrap *w, uint32_t c, const char *s, size_t n, struct output *out)
{
    if (w->is_in_word && may_break(w->last, c))
        end_word(w, out);
    const bool is_emoji = c == AS_EMOJI && w->is_in_word && width_of(w->last) == 1;
    const unsigned cells = is_emoji ? 1 : width_of(c);
    w->is_in_word = true;
    w->last = c;
    if (!w->is_shown && w->n_word + n > sizeof w->word)
        show_word(w, out);
    if (w->is_shown) {
        put(out, s, n);
        advance(w, cells);
        return;
    }
    memcpy(w->word + w->n_word, s, n);
    w->n_word += n;
    w->word_columns += cells;
    const unsigned left = room(w) > w->blank_columns ? room(w) - w->blank_columns : 0;
    if (w->word_columns > left || left > WRAP_HOLD)
        show_word(w, out);
}

/* ---- code ------------------------------------------------------------------------------- */

static void watch_fence(struct wrap *w, uint32_t c)
{
    const bool is_first = !w->has_text && !w->is_in_word && w->n_marks == 0 && w->column < 4;
    if (is_first && (c == '`' || c == '~')) {
        w->marker = c;
        w->n_marks = 1;
        w->is_marked = true;
    } else if (w->is_marked && c == w->marker && w->n_marks < FENCE_MARKS) {
        w->n_marks++;
    } else if (w->is_marked && w->n_marks < FENCE_MARKS) {
        w->is_marked = false;
    } else if (w->is_marked && w->is_code) {
        w->is_marked = c == w->marker || is_blank(c); /* nothing follows a closing fence */
    } else if (w->is_marked && c == '`' && w->last != '`') {
        w->is_marked = false; /* code within a line */
    }
}

static void end_line(struct wrap *w, struct output *out)
{
    const bool is_fence = w->is_marked && w->n_marks == FENCE_MARKS &&
                          (!w->is_code || w->marker == w->fence);
    end_word(w, out);
    drop_blanks(w);
    put(out, "\n", 1);
    start_line(w);
    if (is_fence) {
        w->fence = w->marker;
        w->is_code = !w->is_code;
    }
    w->is_marked = false;
    w->n_marks = 0;
}

static void take_code(struct wrap *w, uint32_t c, const char *s, size_t n, struct output *out)
{
    put(out, s, n);
    w->last = c;
    w->has_text = w->has_text || !is_blank(c);
    if (c != '\t') {
        advance(w, width_of(c));
        return;
    }
    w->column += blank_width(c, w->column);
    w->column = w->column < w->columns ? w->column : w->columns - 1; /* tabs end at the edge */
}

/* ---- text ------------------------------------------------------------------------------- */

void wrap_set_columns(struct wrap *w, unsigned columns)
{
    columns = columns >= WRAP_MIN_COLUMNS ? columns : 0;
    if (columns > 0 && w->column > columns)
        w->column %= columns; /* a terminal that breaks its lines anew */
    w->columns = columns;
}

size_t wrap_text(struct wrap *w, const char *text, size_t bytes, char *out_text)
{
    struct output out = {.at = out_text};
    if (w->columns == 0) {
        out.n = wrap_flush(w, out_text);
        put(&out, text, bytes);
        return out.n;
    }
    for (size_t i = 0, n; i < bytes; i += n) {
        const uint32_t c = width_decode(text + i, bytes - i, &n);
        if (c != '\n')
            watch_fence(w, c);
        if (c == '\n')
            end_line(w, &out);
        else if (w->is_code)
            take_code(w, c, text + i, n, &out);
        else if (is_blank(c))
            take_blank(w, c, text + i, n, &out);
        else
            take_letter(w, c, text + i, n, &out);
    }
    return out.n;
}

size_t wrap_flush(struct wrap *w, char *out_text)
{
    struct output out = {.at = out_text};
    const unsigned columns = w->columns;
    w->columns = columns > 0 ? columns : UINT32_MAX / 2; /* unknown: as wide as needed */
    end_word(w, &out);
    put_blanks(w, &out);
    w->columns = columns;
    return out.n;
}
