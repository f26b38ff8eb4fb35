/* Writes a plot as one self-contained SVG file: panels with a common x axis, readable on light and
 * dark pages. Every point has a tooltip with its numbers. The caller checks the stream for
 * errors. */
#ifndef FLASHMOE_APPS_BENCH_SVG_PLOT_H
#define FLASHMOE_APPS_BENCH_SVG_PLOT_H

#include <stdio.h>

#define PLOT_SERIES_MAX 3
#define PLOT_NOTES_MAX 3

enum plot_style { PLOT_SOLID, PLOT_DASHED, PLOT_DOTTED }; /* dotted: thin, without points */

struct plot_series {
    const char *name; /* the same name has the same style in all panels */
    enum plot_style style;
    const double *y; /* [n_points]; NaN: no point */
};

struct plot_panel {
    const char *title, *unit;
    double y_max;  /* minimum extent of the axis; 0: from the values */
    double y_mark; /* value of a highlighted grid line; 0: none */
    struct plot_series series[PLOT_SERIES_MAX];
    unsigned n_series;
};

struct plot {
    const char *title, *subtitle;
    const char *notes[PLOT_NOTES_MAX]; /* wrapped below the panels; NULL: none */
    const char *x_title, *x_unit; /* the unit may be "" */
    const double *x;            /* [n_points], ascending */
    const char *const *x_names; /* axis labels, without the unit */
    unsigned n_points;
    const struct plot_panel *panels; /* two per row */
    unsigned n_panels;
};

void svg_plot_write(FILE *out, const struct plot *plot);

/* Writes the first panel alone, with its legend, as part of a page. It scales with the page, which
 * has the style sheet of all its plots. Title, subtitle and notes are not written. */
void svg_plot_write_part(FILE *out, const struct plot *plot);
void svg_plot_write_style(FILE *out);
/* Writes text for XML and HTML outside of attributes: characters that are not allowed become '?'. A
 * file name may contain any byte. */
void svg_plot_text(FILE *out, const char *text);

#endif
