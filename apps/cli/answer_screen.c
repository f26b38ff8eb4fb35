#include "apps/cli/answer_screen.h"

#include <string.h>

#include "apps/cli/term.h"

/* Changes between reasoning and text, with an empty line between them. */
static void set_dim(struct answer_screen *s, bool is_dim)
{
    const char *colour = is_dim ? SCREEN_DIM : SCREEN_NORMAL;
    if (s->is_dim == is_dim)
        return;
    s->is_dim = is_dim;
    s->shown = (struct foreign_text){0};
    (void)out_wrapped_end(&s->wrap);
    s->wrap = (struct wrap){0};
    if (s->is_line_open)
        (void)out_text("\n\n", 2);
    s->is_line_open = false;
    if (s->is_terminal)
        (void)out_text(colour, strlen(colour));
}

/* Shows reasoning beside the answer. */
static void note(struct answer_screen *s, const char *text, size_t bytes)
{
    if (s->is_quiet || bytes == 0)
        return;
    err_foreign(&s->noted, text, bytes);
    s->is_note_open = text[bytes - 1] != '\n';
}

static void end_note(struct answer_screen *s)
{
    if (s->is_note_open)
        err_foreign(&s->noted, "\n", 1);
    s->is_note_open = false;
}

bool answer_screen_show(struct answer_screen *s, bool is_reasoning, const char *text, size_t bytes)
{
    if (is_reasoning && !s->is_terminal) {
        note(s, text, bytes);
        return true;
    }
    end_note(s);
    set_dim(s, is_reasoning);
    const bool ok = s->is_terminal && s->wraps ? out_wrapped(&s->shown, &s->wrap, text, bytes)
                                               : out_foreign(&s->shown, text, bytes);
    s->is_line_open = !s->shown.ends_line;
    return ok;
}

void answer_screen_end(struct answer_screen *s)
{
    end_note(s);
    (void)out_wrapped_end(&s->wrap);
    set_dim(s, false);
}
