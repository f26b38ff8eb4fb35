/* A plot as one SVG file that needs nothing else: panels over one common x axis, readable on a
 * light and on a dark page. Every point carries its numbers as a tooltip. Faults of the stream are
 * left to the caller. */
#ifndef FLASHMOE_APPS_BENCH_SVG_PLOT_H
#define FLASHMOE_APPS_BENCH_SVG_PLOT_H

#include <stdio.h>

#define PLOT_SERIES_MAX 3
#define PLOT_NOTES_MAX 3

enum plot_style { PLOT_SOLID, PLOT_DASHED, PLOT_DOTTED }; /* dotted: thin, without points */

struct plot_series {
    const char *name; /* the same name has the same style in all panels */
    enum plot_style style;
    const double *y; /* [n_points]; not a number: no point */
};

struct plot_panel {
    const char *title, *unit;
    double y_max;  /* the axis goes so far at least; 0: as far as the values */
    double y_mark; /* a line of the grid that stands out; 0: none */
    struct plot_series series[PLOT_SERIES_MAX];
    unsigned n_series;
};

struct plot {
    const char *title, *subtitle;
    const char *notes[PLOT_NOTES_MAX]; /* below, broken into lines; NULL: none */
    const char *x_title, *x_unit;
    const double *x;            /* [n_points], ascending */
    const char *const *x_names; /* as they are shown, without the unit */
    unsigned n_points;
    const struct plot_panel *panels; /* two in a row */
    unsigned n_panels;
};

void svg_plot_write(FILE *out, const struct plot *plot);

#endif
