/* Writes a bar chart as a part of a page (apps/bench/page.h): a horizontal bar for each share in
 * percent, beside the plots of apps/bench/svg_plot.h. The caller checks the stream for errors. */
#ifndef FLASHMOE_APPS_BENCH_SVG_BARS_H
#define FLASHMOE_APPS_BENCH_SVG_BARS_H

#include <stdio.h>

struct bars {
    const char *title, *unit;
    const char *const *names; /* [n] */
    const double *percents;   /* [n]; NaN: no bar, only the note */
    const char *const *notes; /* [n], behind the percentage or instead of it; may be "" */
    unsigned n;
};

void svg_bars_write(FILE *out, const struct bars *bars);

#endif
