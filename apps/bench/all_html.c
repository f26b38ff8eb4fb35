/* The results as one page: a table of everything, and plots of each regime. */
#include <math.h>
#include <string.h>

#include "apps/bench/all.h"
#include "apps/bench/page.h"
#include "apps/bench/svg_bars.h"
#include "apps/bench/svg_plot.h"

static void put(FILE *out, const char *html)
{
    (void)fputs(html, out);
}

static bool has_other(const struct all *all)
{
    return all->programs[ALL_OTHER] != NULL;
}

/* ---- the top --------------------------------------------------------------------------------- */

static unsigned n_busy(const struct all *all, unsigned *n_runs, unsigned *n_unknown, bool *differs)
{
    unsigned n = 0;
    *n_runs = *n_unknown = 0;
    for (unsigned i = 0; i < all->n_cases; i++) {
        struct all_result r;
        all_result(all, &all->cases[i], &r);
        n += r.n_busy;
        *n_runs += r.n_runs;
        *n_unknown += r.n_unknown;
        *differs |= all->cases[i].differs;
    }
    return n;
}

static void put_verdict(const struct all *all, FILE *out)
{
    char text[QUIET_TEXT_BYTES], took[UNIT_BYTES];
    bool differs = false;
    unsigned n_runs, n_unknown;
    const unsigned n = n_busy(all, &n_runs, &n_unknown, &differs);
    const bool is_busy = n > 0 || (all->before.is_known && !all->before.is_quiet);
    const bool is_known = all->before.is_known && n_unknown == 0;
    const bool is_bad = differs || is_busy || !is_known;
    (void)fprintf(out, "<div class=\"verdict%s\"><strong class=\"%s\">%s</strong><br>\n",
                  is_bad ? " bad" : "", is_bad ? "bad" : "good",
                  differs ? "The logits differ between runs: a fault"
                  : is_busy ? "The machine was not quiet"
                  : is_known ? "The machine was quiet"
                             : "It is not known whether the machine was quiet");
    put(out, "Before the first run: ");
    svg_plot_text(out, quiet_text(&all->before, text));
    if (n_runs > n_unknown)
        (void)fprintf(out, ". In %u of %u runs other programs used more than a little; their cases "
                      "are marked <em>busy</em>", n, n_runs - n_unknown);
    if (n_unknown > 0)
        (void)fprintf(out, ". Of %u runs it is not known what other programs used", n_unknown);
    (void)fprintf(out, ".%s%s<br>\n<span class=\"soft\">",
                  all->is_quick ? " This was a quick run; leave --quick out for all of it." : "",
                  all->is_cut ? " It was interrupted: this is what was measured until then." : "");
    svg_plot_text(out, all->versions[ALL_THIS]);
    if (has_other(all)) {
        put(out, " in turns with ");
        svg_plot_text(out, all->versions[ALL_OTHER]);
    }
    (void)fprintf(out, ", %u of %u rounds, %s</span></div>\n", all->n_rounds, all->n_repeat,
                  human_seconds(all->seconds, took));
}

/* ---- the table ------------------------------------------------------------------------------- */

static void put_row(const struct all *all, const struct all_case *one, FILE *out)
{
    const struct all_regime *regime = &all_regimes[one->regime];
    struct all_result r;
    char value[UNIT_BYTES * 2], limit[UNIT_BYTES * 2], share[UNIT_BYTES], ratio[UNIT_BYTES * 2];
    char mark[UNIT_BYTES * 2], extras[ALL_EXTRAS_BYTES];
    all_result(all, one, &r);
    struct all_spread mid = r.limit;
    mid.n = r.limit.n > 0 ? 1 : 0;
    put(out, "<tr><td>");
    svg_plot_text(out, one->label);
    (void)fprintf(out, "</td><td>%s %s</td><td>%s</td><td>%s</td><td>%s</td>",
                  all_spread_text(&r.value[ALL_THIS], value), regime->unit,
                  all_spread_text(&mid, limit), r.bound, all_share_text(&r, share));
    if (has_other(all))
        (void)fprintf(out, "<td>%s</td>", all_spread_text(&r.ratio, ratio));
    (void)fprintf(out, "<td class=\"note\">%s%s<span class=\"bad\">%s</span></td></tr>\n",
                  all_extras_text(regime, &r, extras),
                  extras[0] != '\0' && r.n_busy + r.n_exceeded > 0 ? "; " : "",
                  all_mark_text(&r, mark));
}

static void put_left_out(const struct all *all, unsigned regime, FILE *out)
{
    char why[ALL_WHY_BYTES];
    for (unsigned i = 0; i < all->n_cases; i++)
        if (all->cases[i].regime == regime && all->cases[i].failed[0] != '\0') {
            put(out, "<p class=\"soft\">Left out: ");
            svg_plot_text(out, all->cases[i].label);
            put(out, ": ");
            svg_plot_text(out, all_public_text(all, all->cases[i].failed, why));
            put(out, "</p>\n");
        }
    if (all->left_out[regime][0] != '\0') {
        put(out, "<p class=\"soft\">Left out: ");
        svg_plot_text(out, all->left_out[regime]);
        put(out, "</p>\n");
    }
}

/* ---- plots ----------------------------------------------------------------------------------- */

/* The cases of one regime that have results. */
struct points {
    unsigned n;
    double x[ALL_CASES_MAX], value[ALL_CASES_MAX], other[ALL_CASES_MAX], limit[ALL_CASES_MAX];
    double percent[ALL_CASES_MAX];
    char text[ALL_CASES_MAX][16], note[ALL_CASES_MAX][UNIT_BYTES * 2];
    const char *x_names[ALL_CASES_MAX], *names[ALL_CASES_MAX], *notes[ALL_CASES_MAX];
};

static void collect(const struct all *all, unsigned regime, struct points *p)
{
    p->n = 0;
    for (unsigned i = 0; i < all->n_cases; i++) {
        const struct all_case *one = &all->cases[i];
        struct all_result r;
        if (one->regime != regime || !all_has_result(one))
            continue;
        const unsigned n = p->n++;
        all_result(all, one, &r);
        p->x[n] = one->x;
        p->value[n] = r.value[ALL_THIS].median;
        p->other[n] = r.value[ALL_OTHER].median;
        p->limit[n] = r.limit.median;
        p->percent[n] = r.percent.median;
        (void)snprintf(p->text[n], sizeof p->text[n], "%g", one->x);
        (void)snprintf(p->note[n], sizeof p->note[n], "%s",
                       r.percent.n > 0 ? r.bound
                       : r.n_exceeded > 0 ? "above the limit" : "no limit measured");
        p->x_names[n] = p->text[n];
        p->names[n] = one->label;
        p->notes[n] = p->note[n];
    }
}

static void put_curve(const struct all *all, const struct all_regime *regime,
                      const struct points *p, FILE *out)
{
    struct plot_panel panel = {.title = "Speed", .unit = regime->unit};
    panel.series[panel.n_series++] =
        (struct plot_series){has_other(all) ? "this program" : "reached", PLOT_SOLID, p->value};
    if (has_other(all))
        panel.series[panel.n_series++] =
            (struct plot_series){"other program", PLOT_DASHED, p->other};
    panel.series[panel.n_series++] = (struct plot_series){"limit", PLOT_DOTTED, p->limit};
    const struct plot plot = {.title = regime->title, .subtitle = "", .x_title = regime->x_title,
                              .x_unit = regime->x_unit, .x = p->x, .x_names = p->x_names,
                              .n_points = p->n, .panels = &panel, .n_panels = 1};
    svg_plot_write_part(out, &plot);
}

static void put_plots(const struct all *all, unsigned i, const struct points *p, FILE *out)
{
    const struct all_regime *regime = &all_regimes[i];
    const struct bars bars = {.title = "Share of the limit", .unit = "% of what the machine allows",
                              .names = p->names, .percents = p->percent, .notes = p->notes,
                              .n = p->n};
    const bool has_curve = regime->x_title != NULL && p->n > 1;
    (void)fprintf(out, "<div class=\"plots%s\">\n", has_curve ? "" : " one");
    if (has_curve)
        put_curve(all, regime, p, out);
    svg_bars_write(out, &bars);
    put(out, "</div>\n");
}

static void put_regime(const struct all *all, unsigned i, FILE *out)
{
    static struct points points; /* large */
    const struct all_regime *regime = &all_regimes[i];
    collect(all, i, &points);
    (void)fprintf(out, "<h2 id=\"%s\">%s</h2>\n<p class=\"soft\">%s.</p>\n", regime->name,
                  regime->title, regime->what);
    if (points.n > 0) {
        (void)fprintf(out, PAGE_WIDE "<table class=\"numbers\"><tr><th></th>"
                      "<th>reached</th><th>limit</th><th>bound by</th><th>share</th>%s<th></th>"
                      "</tr>\n", has_other(all) ? "<th>over the other</th>" : "");
        for (unsigned k = 0; k < all->n_cases; k++)
            if (all->cases[k].regime == i && all_has_result(&all->cases[k]))
                put_row(all, &all->cases[k], out);
        put(out, "</table></div>\n");
        put_plots(all, i, &points, out);
    }
    put_left_out(all, i, out);
}

/* ---- the rest -------------------------------------------------------------------------------- */

static void put_facts(const struct all *all, FILE *out)
{
    const struct all_facts *f = &all->facts;
    const struct fm_machine_info *m = &all->machine;
    const struct all_spread memory = all_spread_of(all->memory_per_s, all->n_rounds);
    const struct all_spread disk = all_spread_of(all->disk_per_s, all->n_rounds);
    char text[512], a[UNIT_BYTES], b[UNIT_BYTES], c[UNIT_BYTES];
    put(out, "<h2>Model and machine</h2>" PAGE_WIDE "<table>\n");
    (void)snprintf(text, sizeof text, "%s, %s, %s, %s parameters", f->name, f->container,
                   f->architecture, human_count(f->n_parameters, a));
    page_row(out, "Model", text);
    (void)snprintf(text, sizeof text, "%u layers, %u experts each, %u per token; dense %s, experts "
                   "%s; %s", f->n_layers, f->n_experts, f->n_experts_per_token,
                   human_bytes(f->dense_bytes, a), human_bytes(f->experts_bytes, b), f->formats);
    page_row(out, "Shape", text);
    (void)snprintf(text, sizeof text, "%s; %u cores, %u processors, level %s",
                   m->processor[0] != '\0' ? m->processor : m->architecture, m->n_cores, m->n_cpus,
                   all->cpu_level);
    page_row(out, "Processor", text);
    if (f->gpu[0] != '\0')
        page_row(out, "GPU", f->gpu);
    (void)snprintf(text, sizeof text, "%s, of which %s were free; no budget is above %s",
                   human_bytes(m->memory_bytes, a), human_bytes(m->memory_available_bytes, b),
                   human_bytes(all->usable_bytes, c));
    page_row(out, "Memory", text);
    (void)snprintf(text, sizeof text, "memory %s (%s to %s)", human_rate(memory.median, a),
                   human_rate(memory.min, b), human_rate(memory.max, c));
    page_row(out, "Read speed", memory.n > 0 ? text : "not measured");
    (void)snprintf(text, sizeof text, "disk %s (%s to %s), experts at random",
                   human_rate(disk.median, a), human_rate(disk.min, b), human_rate(disk.max, c));
    page_row(out, "", disk.n > 0 ? text : "disk not measured");
    put(out, "</table></div>\n");
}

static void put_commands(const struct all *all, FILE *out)
{
    char command[ALL_COMMAND_BYTES];
    put(out, "<h2>Commands</h2>\n<details><summary>What was run for each case</summary>\n<pre>");
    for (unsigned i = 0; i < all->n_cases; i++) {
        svg_plot_text(out, all_command(all, &all->cases[i], command));
        put(out, "\n");
    }
    put(out, "</pre></details>\n");
}

void all_html(const struct all *all, FILE *out)
{
    page_begin(out, all->facts.name, ": flashmoe bench all");
    put(out, "<h1>How close does ");
    svg_plot_text(out, all->facts.name);
    put(out, " come to the limits of this machine?</h1>\n");
    put_verdict(all, out);
    put(out, "<p class=\"soft\">Medians of all rounds, with the lowest and the highest. A limit is "
             "what disk, memory or arithmetic allow, from the bytes and operations of the run "
             "itself and the speeds that it measured before and after. \"above\": a speed was "
             "measured too low, because the machine was busy then, or the processor's cache holds "
             "the model.</p>\n");
    for (unsigned i = 0; all_regimes[i].name != NULL; i++)
        if (all->is_chosen[i])
            put_regime(all, i, out);
    put_facts(all, out);
    put_commands(all, out);
    page_end(out);
}
