#include "apps/validate/report_plots.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/bench/svg_plot.h"

#define POINTS_MAX (VALIDATE_LAYERS + 1)
#define NAME_MAX 16

/* The x axis of a plot. */
struct axis {
    double x[POINTS_MAX];
    char text[POINTS_MAX][NAME_MAX];
    const char *names[POINTS_MAX];
    const char *title, *unit;
    unsigned n;
};

static void axis_add(struct axis *a, double x, const char *fmt, double shown)
{
    a->x[a->n] = x;
    (void)snprintf(a->text[a->n], NAME_MAX, fmt, shown);
    a->names[a->n] = a->text[a->n];
    a->n++;
}

static void write_plot(FILE *out, const struct axis *a, const struct plot_panel *panel)
{
    const struct plot plot = {.title = panel->title, .subtitle = "", .x_title = a->title,
                              .x_unit = a->unit, .x = a->x, .x_names = a->names,
                              .n_points = a->n, .panels = panel, .n_panels = 1};
    svg_plot_write_part(out, &plot);
}

/* ---- budgets --------------------------------------------------------------------------------- */

enum { SPEED, LIMIT, FIRST, HITS, READ, SHARE, N_CURVES };

struct curves {
    double y[N_AFTER][N_CURVES][BUDGETS_MAX];
};

static void fill_curves(const struct validation *v, const struct point *p, unsigned after,
                        unsigned at, struct curves *c)
{
    const struct counts prompt = point_sum(v, p, after, true);
    const struct counts decode = point_sum(v, p, after, false);
    const struct limit *limit = &p->limits[after];
    const bool is_known = limit->max_per_s > 0 && !limit->is_exceeded;
    c->y[after][SPEED][at] = decode.seconds > 0 ? (double)decode.n_tokens / decode.seconds : NAN;
    c->y[after][LIMIT][at] = limit->max_per_s > 0 ? limit->max_per_s : NAN;
    c->y[after][FIRST][at] = 1e3 * prompt.seconds / v->n_prompts;
    c->y[after][HITS][at] = 100 * counts_hit_rate(&decode);
    c->y[after][READ][at] =
        decode.n_tokens > 0 ? (double)decode.bytes_read / (double)decode.n_tokens * 1e-6 : NAN;
    c->y[after][SHARE][at] = is_known ? limit->percent : NAN;
}

static struct plot_panel panel_of(const struct curves *c, const char *title, const char *unit,
                                  unsigned curve, double y_max)
{
    return (struct plot_panel){
        .title = title, .unit = unit, .y_max = y_max, .n_series = 2,
        .series = {{"switched", PLOT_SOLID, c->y[AFTER_SWITCH][curve]},
                   {"fresh", PLOT_DASHED, c->y[AFTER_OPENING][curve]}},
    };
}

/* Budgets in GiB if the largest has one, in MiB otherwise. */
static double unit_of(uint64_t largest, const char **unit)
{
    const bool is_large = largest >= (uint64_t)1 << 30;
    *unit = is_large ? "GiB" : "MiB";
    return is_large ? 0x1p30 : 0x1p20;
}

void plots_budgets(const struct validation *v, FILE *out)
{
    static struct axis axis; /* too large for a stack */
    static struct curves curves;
    axis = (struct axis){.title = "memory budget"};
    const double unit = unit_of(v->budgets.bytes[v->budgets.n - 1], &axis.unit);
    for (unsigned n = 0; n < v->budgets.n; n++) {
        const double x = (double)v->budgets.bytes[n] / unit;
        if (!v->points[n].answers[0][0].was_run)
            continue;
        for (unsigned after = 0; after < N_AFTER; after++)
            fill_curves(v, &v->points[n], after, axis.n, &curves);
        axis_add(&axis, x, unit > 0x1p20 ? "%.2f" : "%.1f", x);
    }
    struct plot_panel panels[] = {
        panel_of(&curves, "Speed", "tokens per second", SPEED, 0),
        panel_of(&curves, "First token", "ms", FIRST, 0),
        panel_of(&curves, "Expert hits", "% of the experts needed", HITS, 100),
        panel_of(&curves, "Read from the disk", "MB per token", READ, 0),
        panel_of(&curves, "Share of the limit", "%", SHARE, 100),
    };
    panels[0].series[panels[0].n_series++] =
        (struct plot_series){"limit", PLOT_DOTTED, curves.y[AFTER_SWITCH][LIMIT]};
    panels[4].y_mark = 100;
    for (unsigned i = 0; axis.n > 0 && i < sizeof panels / sizeof panels[0]; i++)
        write_plot(out, &axis, &panels[i]);
}

/* ---- long work ------------------------------------------------------------------------------- */

static void plot_long_answer(const struct validation *v, struct axis *axis, FILE *out)
{
    const struct long_run *l = &v->long_run;
    *axis = (struct axis){.title = "tokens of the answer", .unit = ""};
    for (unsigned i = 0; i < l->n_windows; i++) {
        const double x = (double)((i + 1) * l->n_tokens / l->n_windows);
        axis_add(axis, x, "%.0f", x);
    }
    write_plot(out, axis, &(struct plot_panel){
        .title = "One long answer", .unit = "tokens per second", .n_series = 2,
        .series = {{"smallest budget", PLOT_SOLID, l->tok_per_s[0]},
                   {"largest budget", PLOT_DASHED, l->tok_per_s[1]}}});
}

static void plot_cycles(const struct validation *v, struct axis *axis, FILE *out)
{
    const struct cycles *c = &v->cycles;
    double y[VALIDATE_CYCLES], budget[VALIDATE_CYCLES];
    *axis = (struct axis){.title = "reset", .unit = ""};
    for (unsigned i = 0; i < c->n; i++) {
        axis_add(axis, i + 1, "%.0f", i + 1);
        y[i] = (double)c->resident_bytes[i] / 0x1p20;
        budget[i] = (double)c->budget_bytes / 0x1p20;
    }
    write_plot(out, axis, &(struct plot_panel){
        .title = "Memory over resets", .unit = "MiB resident", .n_series = 2,
        .series = {{"resident", PLOT_SOLID, y}, {"budget", PLOT_DOTTED, budget}}});
}

static void plot_layers(const struct validation *v, struct axis *axis, FILE *out)
{
    static double compute[POINTS_MAX], wait[POINTS_MAX], mix[POINTS_MAX], misses[POINTS_MAX];
    char title[64], budget[UNIT_BYTES];
    *axis = (struct axis){.title = "layer; the last is the head", .unit = ""};
    for (unsigned i = 0; i < v->n_layers; i++) {
        const struct layer_times *t = &v->layers[i];
        axis_add(axis, i, "%.0f", i);
        compute[i] = t->compute_ms;
        wait[i] = t->wait_ms;
        mix[i] = t->mix_ms + t->route_ms;
        misses[i] = t->misses;
    }
    (void)snprintf(title, sizeof title, "Layers at %s",
                   human_bytes(v->layers_budget_bytes, budget));
    write_plot(out, axis, &(struct plot_panel){
        .title = title, .unit = "ms per token", .n_series = 3,
        .series = {{"computing", PLOT_SOLID, compute}, {"waiting", PLOT_DASHED, wait},
                   {"mixer, router", PLOT_DOTTED, mix}}});
    axis->n--; /* the head has no experts */
    axis->title = "layer";
    write_plot(out, axis, &(struct plot_panel){
        .title = "Misses by layer", .unit = "experts per token", .n_series = 1,
        .series = {{"misses", PLOT_SOLID, misses}}});
}

void plots_long(const struct validation *v, FILE *out)
{
    static struct axis axis;
    if (v->long_run.was_run)
        plot_long_answer(v, &axis, out);
    if (v->cycles.was_run)
        plot_cycles(v, &axis, out);
    if (v->long_run.was_run && v->n_layers <= POINTS_MAX)
        plot_layers(v, &axis, out);
}

/* ---- memory ---------------------------------------------------------------------------------- */

bool plots_cliff_is_same(const struct validation *v)
{
    bool is_same = true;
    for (unsigned i = 0; i < v->cliff.n; i++)
        is_same &= v->cliff.points[i].is_same;
    return is_same;
}

void plots_cliff(const struct validation *v, FILE *out)
{
    static struct axis axis;
    const struct cliff *c = &v->cliff;
    double speed[VALIDATE_CLIFF], peak[VALIDATE_CLIFF], free_bytes[VALIDATE_CLIFF];
    axis = (struct axis){.title = "memory budget"};
    const double unit = unit_of(c->points[c->n - 1].budget_bytes, &axis.unit);
    for (unsigned i = 0; i < c->n; i++) {
        const struct cliff_point *p = &c->points[i];
        const double x = (double)p->budget_bytes / unit;
        axis_add(&axis, x, unit > 0x1p20 ? "%.2f" : "%.1f", x);
        speed[i] = p->tok_per_s > 0 ? p->tok_per_s : NAN;
        peak[i] = p->peak_bytes > 0 ? (double)p->peak_bytes / unit : NAN;
        free_bytes[i] = (double)p->free_bytes / unit;
    }
    write_plot(out, &axis, &(struct plot_panel){
        .title = "Speed past what is free", .unit = "tokens per second", .n_series = 1,
        .series = {{"speed", PLOT_SOLID, speed}}});
    write_plot(out, &axis, &(struct plot_panel){
        .title = "Memory taken", .unit = axis.unit, .n_series = 2,
        .series = {{"taken", PLOT_SOLID, peak}, {"free before", PLOT_DOTTED, free_bytes}}});
}
