#include "apps/bench/svg_bars.h"

#include <math.h>

#include "apps/bench/svg_plot.h"

/* In pixels; as wide as a part of svg_plot.h. */
#define WIDTH 456
#define LEFT 12
#define BAR_WIDTH (WIDTH - 2 * LEFT)
#define HEAD 34
#define ROW 40
#define BAR_TOP 22 /* within a row */
#define BAR_HEIGHT 8
#define FOOT 6

static void put_text(FILE *out, double x, double y, const char *class_name, const char *anchor,
                     const char *text)
{
    (void)fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\" text-anchor=\"%s\">", x, y,
                  class_name, anchor);
    svg_plot_text(out, text);
    (void)fputs("</text>\n", out);
}

static void put_bar(FILE *out, const struct bars *bars, unsigned i)
{
    const double top = HEAD + (double)i * ROW, percent = bars->percents[i];
    const double part = percent < 0 ? 0 : percent > 100 ? 1 : percent / 100;
    char figure[160];
    if (isfinite(percent))
        (void)snprintf(figure, sizeof figure, "%.1f %%%s%.120s", percent,
                       bars->notes[i][0] != '\0' ? ", " : "", bars->notes[i]);
    else
        (void)snprintf(figure, sizeof figure, "%.150s", bars->notes[i]);
    put_text(out, LEFT, top + 14, "text", "start", bars->names[i]);
    put_text(out, WIDTH - LEFT, top + 14, "number", "end", figure);
    (void)fprintf(out, "<rect class=\"bar-rest\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%d\" "
                  "rx=\"3\"/>\n", LEFT, top + BAR_TOP, BAR_WIDTH, BAR_HEIGHT);
    if (isfinite(percent))
        (void)fprintf(out, "<rect class=\"bar\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" "
                      "rx=\"3\"/>\n", LEFT, top + BAR_TOP, part * BAR_WIDTH, BAR_HEIGHT);
}

void svg_bars_write(FILE *out, const struct bars *bars)
{
    (void)fprintf(out, "<svg viewBox=\"0 0 %d %u\" role=\"img\">\n<title>", WIDTH,
                  HEAD + bars->n * ROW + FOOT);
    svg_plot_text(out, bars->title);
    (void)fprintf(out, "</title>\n<text x=\"%d\" y=\"20\" class=\"panel\">", LEFT);
    svg_plot_text(out, bars->title);
    (void)fputs("<tspan class=\"text\">, ", out);
    svg_plot_text(out, bars->unit);
    (void)fputs("</tspan></text>\n", out);
    for (unsigned i = 0; i < bars->n; i++)
        put_bar(out, bars, i);
    (void)fputs("</svg>\n", out);
}
