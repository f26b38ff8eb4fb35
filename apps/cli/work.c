#include "apps/cli/work.h"

#include <stdio.h>

#include "base/plat.h"
#include "apps/cli/interrupt.h"

#define LINE_EVERY_NS 5000000000u

void work_begin(struct work *work, const char *verb, bool is_quiet)
{
    *work = (struct work){.verb = verb, .is_quiet = is_quiet, .begin_ns = plat_now_ns()};
    work->said_ns = work->begin_ns;
    progress_begin(&work->bar, verb, !is_quiet);
    interrupt_install();
    interrupt_hold(true);
}

double work_seconds(const struct work *work)
{
    return (double)(plat_now_ns() - work->begin_ns) * 1e-9;
}

static void say_line(struct work *work, const char *what, uint64_t done, uint64_t total)
{
    const double seconds = work_seconds(work);
    const double rate = seconds > 0 ? (double)(done - work->first_bytes) / seconds : 0;
    char left[UNIT_BYTES], speed[UNIT_BYTES];
    work->said_ns = plat_now_ns();
    say("%s %s: %.0f%%, %s, ETA %s", work->verb, what, 100.0 * (double)done / (double)total,
        human_rate(rate, speed),
        human_seconds(rate > 0 ? (double)(total - done) / rate : 0, left));
}

bool work_show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct work *work = ctx;
    if (!work->has_first) {
        work->has_first = true;
        work->first_bytes = done;
    }
    (void)snprintf(work->label, sizeof work->label, "%s %s", work->verb, what);
    work->bar.label = work->label;
    work->bar.first_bytes = work->first_bytes;
    progress_bytes(&work->bar, done, total);
    if (!work->is_quiet && !work->bar.is_on && total > 0 &&
        plat_now_ns() - work->said_ns >= LINE_EVERY_NS)
        say_line(work, what, done, total);
    return !interrupt_seen();
}

void work_end(struct work *work)
{
    progress_end(&work->bar);
    interrupt_hold(false);
}
