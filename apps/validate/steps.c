#include "apps/validate/steps.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/plat.h"

#define LINE_EVERY_NS 10000000000u

void steps_begin(struct steps *s, bool is_quiet)
{
    *s = (struct steps){.is_quiet = is_quiet, .begin_ns = plat_now_ns()};
    s->said_ns = s->begin_ns;
    progress_begin(&s->bar, "validate", !is_quiet);
}

static void say_line(struct steps *s)
{
    char eta[UNIT_BYTES];
    const double seconds = (double)(plat_now_ns() - s->begin_ns) * 1e-9;
    s->said_ns = plat_now_ns();
    if (s->done == 0 || s->total == 0) {
        say("validate: %s", s->note);
        return;
    }
    const uint64_t left = s->total > s->done ? s->total - s->done : 0;
    say("validate: %s; %.0f%% done, ETA %s", s->note,
        100.0 * (double)s->done / (double)(s->done + left),
        human_seconds(seconds * (double)left / (double)s->done, eta));
}

void steps_part(struct steps *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(s->note, sizeof s->note, fmt, args);
    va_end(args);
    if (!s->is_quiet && !s->bar.is_on)
        say_line(s);
}

void steps_add(struct steps *s, uint64_t n)
{
    s->done += n;
    progress_steps(&s->bar, s->done, s->total > s->done ? s->total : s->done, s->note);
    if (!s->is_quiet && !s->bar.is_on && plat_now_ns() - s->said_ns >= LINE_EVERY_NS)
        say_line(s);
}

void steps_pause(struct steps *s)
{
    const bool is_on = s->bar.is_on;
    progress_end(&s->bar);
    s->bar.is_on = is_on;
}

void steps_end(struct steps *s)
{
    progress_end(&s->bar);
}
