#include "apps/bench/svg_plot.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "apps/cli/term.h"

/* In pixels. */
#define WIDTH 960
#define HEAD 100       /* title, subtitle, legend */
#define NOTE_LINE 18
#define FOOT 18        /* below the notes */
#define NOTE_CHARACTERS 125 /* per line */
#define MARGIN 24
#define CELL_WIDTH ((WIDTH - 2 * MARGIN) / 2)
#define CELL_HEIGHT 268
#define PLOT_LEFT 62   /* within a cell, for the y axis labels */
#define PLOT_TOP 36
#define PLOT_WIDTH (CELL_WIDTH - PLOT_LEFT - 22)
#define PLOT_HEIGHT (CELL_HEIGHT - PLOT_TOP - 58)
#define X_PAD 14       /* between the frame and the outer points */
#define CHARACTER 6.4  /* width in the small text */
#define NAME_GAP 4     /* between x axis labels */

#define Y_STEPS 5 /* maximum */

/* Colours are repeated: not every renderer supports CSS variables. */
static const char style_sheet[] =
    "svg { font-family: system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }\n"
    ".title { font-size: 18px; font-weight: 600; }\n"
    ".panel { font-size: 13px; font-weight: 600; }\n"
    ".text { font-size: 12px; font-weight: 400; }\n"
    ".number { font-size: 11px; font-variant-numeric: tabular-nums; }\n"
    ".grid, .axis { stroke-width: 1; }\n"
    ".solid, .dashed { stroke-width: 2; fill: none; }\n"
    ".dashed { stroke-dasharray: 7 4; }\n"
    ".dotted { stroke-width: 1.5; stroke-dasharray: 2 3; fill: none; }\n"
    ".point-solid { stroke-width: 1; }\n"
    ".point-dashed { stroke-width: 2; }\n"
    ".page { fill: #ffffff; }\n"
    ".title, .panel { fill: #1f2328; }\n"
    ".text, .number { fill: #59636e; }\n"
    ".grid { stroke: #d8dee4; }\n"
    ".axis { stroke: #8c959f; }\n"
    ".solid { stroke: #0550ae; }\n"
    ".dashed { stroke: #bc4c00; }\n"
    ".dotted { stroke: #6e7781; }\n"
    ".point-solid { fill: #0550ae; stroke: #ffffff; }\n"
    ".point-dashed { fill: #ffffff; stroke: #bc4c00; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    ".page { fill: #0d1117; }\n"
    ".title, .panel { fill: #e6edf3; }\n"
    ".text, .number { fill: #9198a1; }\n"
    ".grid { stroke: #2b323b; }\n"
    ".axis { stroke: #6e7681; }\n"
    ".solid { stroke: #58a6ff; }\n"
    ".dashed { stroke: #f0883e; }\n"
    ".dotted { stroke: #8b949e; }\n"
    ".point-solid { fill: #58a6ff; stroke: #0d1117; }\n"
    ".point-dashed { fill: #0d1117; stroke: #f0883e; }\n"
    "}\n";

static const char *const style_names[] = {"solid", "dashed", "dotted"};

void svg_plot_text(FILE *out, const char *text)
{
    for (size_t left = strlen(text), n; left > 0; left -= n, text += n) {
        const unsigned char c = (unsigned char)*text;
        const size_t used = utf8_length((const unsigned char *)text, left);
        n = used > 0 ? used : 1;
        if (used == 0 || c < 32 || c == 127 || (n == 3 && memcmp(text, "\xef\xbf", 2) == 0 &&
                                                (unsigned char)text[2] >= 0xbe))
            (void)fputc('?', out);
        else if (c == '&')
            (void)fputs("&amp;", out);
        else if (c == '<')
            (void)fputs("&lt;", out);
        else if (c == '>')
            (void)fputs("&gt;", out);
        else
            (void)fwrite(text, 1, n, out);
    }
}

static void text_at(FILE *out, double x, double y, const char *class_name, const char *anchor,
                    const char *text)
{
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y,
                  class_name, anchor);
    svg_plot_text(out, text);
    (void)fputs("</text>\n", out);
}

static void line(FILE *out, const char *class_name, double x1, double y1, double x2, double y2)
{
    (void)fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                  class_name, x1, y1, x2, y2);
}

/* ---- one panel ------------------------------------------------------------------------------- */

struct frame {
    FILE *out;
    const struct plot *plot;
    const struct plot_panel *panel;
    double left, top;
    double y_step, y_end;
};

static double x_of(const struct frame *f, unsigned i)
{
    const double *x = f->plot->x;
    const double range = x[f->plot->n_points - 1] - x[0];
    const double share = range > 0 ? (x[i] - x[0]) / range : 0.5;
    return f->left + X_PAD + share * (PLOT_WIDTH - 2 * X_PAD);
}

static double y_of(const struct frame *f, double y)
{
    return f->top + PLOT_HEIGHT * (1 - y / f->y_end);
}

/* Returns 1, 2 or 5 times a power of ten, so that at most Y_STEPS steps reach the maximum. */
static void choose_scale(struct frame *f)
{
    double max = f->panel->y_max;
    for (unsigned s = 0; s < f->panel->n_series; s++)
        for (unsigned i = 0; i < f->plot->n_points; i++)
            if (f->panel->series[s].y[i] > max)
                max = f->panel->series[s].y[i];
    max = max > 0 ? max : 1;
    const double power = pow(10, floor(log10(max / Y_STEPS)));
    const double need = max / Y_STEPS / power;
    f->y_step = power * (need <= 1 ? 1 : need <= 2 ? 2 : need <= 5 ? 5 : 10);
    f->y_end = f->y_step * ceil(max / f->y_step - 1e-9);
}

static void draw_y_axis(const struct frame *f)
{
    const int decimals = f->y_step >= 1 ? 0 : (int)ceil(-log10(f->y_step) - 1e-9);
    const int n = (int)(f->y_end / f->y_step + 0.5);
    for (int i = 0; i <= n; i++) {
        char number[32];
        const double y = y_of(f, i * f->y_step);
        (void)snprintf(number, sizeof number, "%.*f", decimals, i * f->y_step);
        const bool is_mark = f->panel->y_mark > 0 && fabs(i * f->y_step - f->panel->y_mark) < 1e-9;
        line(f->out, i == 0 || is_mark ? "axis" : "grid", f->left, y, f->left + PLOT_WIDTH, y);
        text_at(f->out, f->left - 8, y + 4, "number", "end", number);
    }
}

/* Draws a tick for every point, and its label unless it would touch the previous or the last one.
 * The last one is always drawn. */
static void draw_x_axis(const struct frame *f)
{
    const double bottom = f->top + PLOT_HEIGHT;
    const unsigned last = f->plot->n_points - 1;
    double free_from = f->left - PLOT_LEFT;
    for (unsigned i = 0; i <= last; i++) {
        const double x = x_of(f, i);
        const double half = CHARACTER * (double)strlen(f->plot->x_names[i]) / 2;
        const double last_left =
            x_of(f, last) - CHARACTER * (double)strlen(f->plot->x_names[last]) / 2;
        line(f->out, "axis", x, bottom, x, bottom + 5);
        if (i < last && (x - half < free_from || x + half + NAME_GAP > last_left))
            continue;
        text_at(f->out, x, bottom + 18, "number", "middle", f->plot->x_names[i]);
        free_from = x + half + NAME_GAP;
    }
    (void)fprintf(f->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"text\" text-anchor=\"middle\">",
                  f->left + PLOT_WIDTH / 2.0, bottom + 38);
    svg_plot_text(f->out, f->plot->x_title);
    (void)fputs(f->plot->x_unit[0] != '\0' ? ", " : "", f->out);
    svg_plot_text(f->out, f->plot->x_unit);
    (void)fputs("</text>\n", f->out);
}

static void draw_series(const struct frame *f, const struct plot_series *series)
{
    const char *style = style_names[series->style];
    bool is_open = false;
    (void)fprintf(f->out, "<path class=\"%s\" d=\"", style);
    for (unsigned i = 0; i < f->plot->n_points; i++) {
        const bool is_there = isfinite(series->y[i]);
        if (is_there)
            (void)fprintf(f->out, "%s%.1f %.1f", is_open ? " L" : " M", x_of(f, i),
                          y_of(f, series->y[i]));
        is_open = is_there;
    }
    (void)fputs("\"/>\n", f->out);
    for (unsigned i = 0; i < f->plot->n_points; i++) {
        if (!isfinite(series->y[i]) || series->style == PLOT_DOTTED)
            continue;
        (void)fprintf(f->out, "<circle class=\"point-%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\">"
                      "<title>", style, x_of(f, i), y_of(f, series->y[i]));
        svg_plot_text(f->out, series->name);
        (void)fputs(", ", f->out);
        svg_plot_text(f->out, f->plot->x_names[i]);
        (void)fputc(' ', f->out);
        svg_plot_text(f->out, f->plot->x_unit);
        (void)fprintf(f->out, ": %.4g ", series->y[i]);
        svg_plot_text(f->out, f->panel->unit);
        (void)fputs("</title></circle>\n", f->out);
    }
}

static void draw_panel(FILE *out, const struct plot *plot, unsigned i)
{
    struct frame f = {.out = out, .plot = plot, .panel = &plot->panels[i]};
    const double cell_left = MARGIN + (double)(i % 2) * CELL_WIDTH;
    f.left = cell_left + PLOT_LEFT;
    f.top = HEAD + (double)(i / 2) * CELL_HEIGHT + PLOT_TOP;
    choose_scale(&f);
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"panel\">", f.left, f.top - 14);
    svg_plot_text(out, f.panel->title);
    (void)fputs("<tspan class=\"text\">, ", out);
    svg_plot_text(out, f.panel->unit);
    (void)fputs("</tspan></text>\n", out);
    draw_y_axis(&f);
    draw_x_axis(&f);
    for (unsigned s = f.panel->n_series; s-- > 0;) /* draws the first one on top */
        draw_series(&f, &f.panel->series[s]);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Draws the legend from the first panel, which has every series. */
static void draw_legend(FILE *out, const struct plot *plot)
{
    double x = MARGIN + PLOT_LEFT;
    const double y = HEAD - 18;
    for (unsigned s = 0; plot->n_panels > 0 && s < plot->panels[0].n_series; s++) {
        const struct plot_series *series = &plot->panels[0].series[s];
        line(out, style_names[series->style], x, y, x + 34, y);
        if (series->style != PLOT_DOTTED)
            (void)fprintf(out, "<circle class=\"point-%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n",
                          style_names[series->style], x + 17, y);
        text_at(out, x + 42, y + 4, "text", "start", series->name);
        x += 42 + 7 * (double)strlen(series->name) + 24;
    }
}

/* Returns how many bytes of a note fit on a line, breaking at a blank or comma. */
static size_t line_bytes(const char *note)
{
    const size_t n = strlen(note);
    size_t at = n < NOTE_CHARACTERS ? n : NOTE_CHARACTERS;
    while (at < n && at > 0 && note[at - 1] != ' ' && note[at - 1] != ',')
        at--;
    return at > 0 ? at : NOTE_CHARACTERS;
}

/* Draws the notes from `top` on unless `out` is NULL; returns the number of lines. */
static unsigned draw_notes(FILE *out, const struct plot *plot, double top)
{
    unsigned n = 0;
    for (unsigned i = 0; i < PLOT_NOTES_MAX && plot->notes[i] != NULL; i++)
        for (const char *at = plot->notes[i]; *at != '\0'; n++) {
            char text[2 * NOTE_CHARACTERS];
            const size_t bytes = line_bytes(at);
            (void)snprintf(text, sizeof text, "%.*s", (int)bytes, at);
            if (out != NULL)
                text_at(out, MARGIN, top + NOTE_LINE * n, "text", "start", text);
            at += bytes;
        }
    return n;
}

void svg_plot_write(FILE *out, const struct plot *plot)
{
    const unsigned n_rows = (plot->n_panels + 1) / 2;
    const unsigned notes_top = HEAD + n_rows * CELL_HEIGHT + NOTE_LINE / 2;
    const unsigned height = notes_top + draw_notes(NULL, plot, 0) * NOTE_LINE + FOOT;
    (void)fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%u\" "
                  "viewBox=\"0 0 %d %u\" role=\"img\">\n<title>", WIDTH, height, WIDTH, height);
    svg_plot_text(out, plot->title);
    (void)fputs("</title>\n", out);
    (void)fprintf(out, "<style>\n%s</style>\n", style_sheet);
    (void)fprintf(out, "<rect class=\"page\" width=\"%d\" height=\"%u\"/>\n", WIDTH, height);
    text_at(out, MARGIN, 32, "title", "start", plot->title);
    text_at(out, MARGIN, 54, "text", "start", plot->subtitle);
    draw_legend(out, plot);
    for (unsigned i = 0; plot->n_points > 0 && i < plot->n_panels; i++)
        draw_panel(out, plot, i);
    (void)draw_notes(out, plot, notes_top + NOTE_LINE / 2.0);
    (void)fputs("</svg>\n", out);
}

void svg_plot_write_style(FILE *out)
{
    (void)fputs(style_sheet, out);
}

void svg_plot_write_part(FILE *out, const struct plot *plot)
{
    const int top = HEAD - 30; /* above the legend */
    (void)fprintf(out, "<svg viewBox=\"%d %d %d %d\" role=\"img\">\n<title>", MARGIN, top,
                  CELL_WIDTH, HEAD + CELL_HEIGHT - top);
    svg_plot_text(out, plot->panels[0].title);
    (void)fputs("</title>\n", out);
    draw_legend(out, plot);
    if (plot->n_points > 0)
        draw_panel(out, plot, 0);
    (void)fputs("</svg>\n", out);
}
