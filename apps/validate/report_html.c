/* The results as one page: no script, nothing from elsewhere, light and dark. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/bench/svg_plot.h"
#include "apps/validate/report_plots.h"
#include "apps/validate/validate.h"

static const char style_sheet[] =
    ":root { color-scheme: light dark; --page: #ffffff; --card: #f6f8fa; --line: #d8dee4;\n"
    " --text: #1f2328; --soft: #59636e; --good: #1a7f37; --bad: #cf222e; }\n"
    "@media (prefers-color-scheme: dark) { :root { --page: #0d1117; --card: #161b22;\n"
    " --line: #2b323b; --text: #e6edf3; --soft: #9198a1; --good: #3fb950; --bad: #ff7b72; } }\n"
    "* { box-sizing: border-box; }\n"
    "body { margin: 0; background: var(--page); color: var(--text); line-height: 1.5;\n"
    " font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }\n"
    "main { max-width: 1000px; margin: 0 auto; padding: 24px 16px 64px; }\n"
    "h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 8px; overflow-wrap: anywhere; }\n"
    "h2 { font-size: 1.15rem; margin: 40px 0 8px; }\n"
    "p { margin: 8px 0; } .soft { color: var(--soft); }\n"
    ".good { color: var(--good); } .bad { color: var(--bad); }\n"
    ".verdict { border: 1px solid var(--line); border-left: 6px solid var(--good);\n"
    " background: var(--card); padding: 12px 16px; border-radius: 6px; margin: 16px 0; }\n"
    ".verdict.bad { border-left-color: var(--bad); color: inherit; }\n"
    ".verdict strong { font-size: 1.1rem; }\n"
    ".wide { overflow-x: auto; margin: 8px 0; }\n"
    "table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }\n"
    "th, td { text-align: left; padding: 5px 14px 5px 0; vertical-align: top;\n"
    " border-bottom: 1px solid var(--line); }\n"
    "th { color: var(--soft); font-weight: 600; }\n"
    ".numbers td + td, .numbers th + th { text-align: right; }\n"
    ".numbers td, td.good, td.bad, td.soft { white-space: nowrap; }\n"
    ".numbers th { vertical-align: bottom; }\n"
    ".plots { display: grid; gap: 8px; grid-template-columns: repeat(auto-fit, minmax(min(100%,\n"
    " 440px), 1fr)); margin: 12px 0; }\n"
    ".plots svg { width: 100%; height: auto; display: block; }\n"
    "details { border-bottom: 1px solid var(--line); padding: 6px 0; }\n"
    "summary { cursor: pointer; }\n"
    "pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--card); padding: 8px;\n"
    " border-radius: 6px; margin: 6px 0; font-size: 0.85rem; }\n"
    "code { overflow-wrap: anywhere; }\n";

/* After the plots' own: larger letters where the plots are small. */
static const char small_sheet[] =
    "@media (max-width: 520px) { .number { font-size: 13px; } .plots .text { font-size: 14px; }\n"
    " .panel { font-size: 15px; } }\n";

/* ---- pieces ---------------------------------------------------------------------------------- */

static void put(FILE *out, const char *html)
{
    (void)fputs(html, out);
}

/* Writes text of several lines. */
static void put_lines(FILE *out, const char *text)
{
    while (*text != '\0') {
        char line[512];
        size_t n = strcspn(text, "\n");
        n = n < sizeof line - 1 ? n : sizeof line - 1;
        if (n == sizeof line - 1) /* not within a character, which has at most 4 bytes */
            while (n > sizeof line - 4 && ((unsigned char)text[n] & 0xc0) == 0x80)
                n--;
        (void)snprintf(line, sizeof line, "%.*s", (int)n, text);
        svg_plot_text(out, line);
        text += n;
        if (*text == '\n') {
            (void)fputc('\n', out);
            text++;
        }
    }
}

static void put_row(FILE *out, const char *title, const char *text)
{
    put(out, "<tr><td>");
    svg_plot_text(out, title);
    put(out, "</td><td>");
    svg_plot_text(out, text);
    put(out, "</td></tr>\n");
}

static const char *size_of(uint64_t bytes, char text[UNIT_BYTES])
{
    if (bytes == 0 || bytes == UINT64_MAX)
        (void)snprintf(text, UNIT_BYTES, "-");
    else
        (void)human_bytes(bytes, text);
    return text;
}

static const char *model_name(const struct validation *v)
{
    const char *path = app_model_path(v->args), *slash = strrchr(path, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : path;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static unsigned n_answers(const struct validation *v)
{
    unsigned n = 0;
    for (unsigned b = 0; b < v->budgets.n; b++)
        for (unsigned i = 0; i < v->n_prompts; i++)
            for (unsigned after = 0; after < N_AFTER; after++)
                n += v->points[b].answers[i][after].was_run;
    return n;
}

static void put_verdict(const struct validation *v, FILE *out)
{
    char took[UNIT_BYTES];
    (void)fprintf(out, "<div class=\"verdict%s\"><strong class=\"%s\">%s</strong><br>\n",
                  v->n_failures > 0 ? " bad" : "", v->n_failures > 0 ? "bad" : "good",
                  v->n_failures > 0 ? "Failed" : "Passed");
    if (v->n_failures == 0)
        (void)fprintf(out, "%u answers at %u memory budgets have the same text and the same "
                      "logits, bit for bit.%s", n_answers(v), v->budgets.n,
                      v->is_quick ? " This was a quick run; leave --quick out for all of it." : "");
    else if (v->is_cut)
        put(out, "The run ended early: some parts below are missing.");
    put(out, "<ul>");
    for (unsigned i = 0; i < v->n_failures; i++) {
        put(out, "<li class=\"bad\">");
        svg_plot_text(out, v->failures[i].text);
        put(out, "</li>\n");
    }
    (void)fprintf(out, "</ul><span class=\"soft\">flashmoe %s, %s</span></div>\n", fm_version(),
                  human_seconds(v->seconds, took));
}

static void put_check(FILE *out, const char *what, int is_good, const char *detail)
{
    put(out, "<tr><td>");
    svg_plot_text(out, what);
    (void)fprintf(out, "</td><td class=\"%s\">%s</td><td>",
                  is_good < 0 ? "soft" : is_good ? "good" : "bad",
                  is_good < 0 ? "not run" : is_good ? "passed" : "failed");
    svg_plot_text(out, detail);
    put(out, "</td></tr>\n");
}

static void put_files_check(const struct validation *v, FILE *out)
{
    const struct files *f = &v->files;
    char text[512], size[UNIT_BYTES];
    if (!f->has_checksums)
        (void)snprintf(text, sizeof text, "This kind of file has no checksums; 'flashmoe pack' "
                       "adds them.");
    else if (f->n_bad > 0)
        (void)snprintf(text, sizeof text, "%llu damaged, the first: %.300s",
                       (unsigned long long)f->n_bad, f->what);
    else
        (void)snprintf(text, sizeof text, "%llu experts and %llu tensors, %s, read and verified",
                       (unsigned long long)f->n_experts, (unsigned long long)f->n_tensors,
                       human_bytes(f->n_bytes, size));
    put_check(out, "Files", f->has_checksums ? f->n_bad == 0 : -1, text);
}

static bool all_same(const struct validation *v)
{
    bool is_same = true;
    for (unsigned b = 0; b < v->budgets.n; b++)
        for (unsigned i = 0; i < v->n_prompts; i++)
            for (unsigned after = 0; after < N_AFTER; after++)
                is_same &= v->points[b].answers[i][after].was_run &&
                           v->points[b].answers[i][after].is_same;
    return is_same;
}

static void put_checks(const struct validation *v, FILE *out)
{
    const struct long_run *l = &v->long_run;
    const struct cycles *c = &v->cycles;
    char text[512];
    put(out, "<h2>Checks</h2><div class=\"wide\"><table>\n");
    put_files_check(v, out);
    (void)snprintf(text, sizeof text, "%u answers of %u tokens, with an empty cache and after "
                   "another topic", n_answers(v), v->n_tokens);
    put_check(out, "Same at every budget", n_answers(v) == 0 ? -1 : all_same(v), text);
    (void)snprintf(text, sizeof text, "%u tokens at the smallest and the largest budget",
                   l->n_tokens);
    put_check(out, "Long answer", l->was_run ? l->is_same : -1, l->was_run ? text : "");
    (void)snprintf(text, sizeof text, "%u resets at the smallest budget", c->n);
    put_check(out, "Resets", c->was_run ? c->is_same : -1, c->was_run ? text : "");
    put_check(out, "Memory over resets", c->was_run ? c->is_flat : -1,
              c->was_run ? "the last third takes no more than the second" : "");
    put_check(out, "Memory past what is free",
              v->cliff.n == 0 ? -1 : plots_cliff_is_same(v), v->cliff.note);
    put_check(out, "Another process needs memory",
              !v->cliff.was_pressed ? -1
              : v->cliff.during.is_same && v->cliff.before.is_same && v->cliff.n_kills == 0,
              v->cliff.pressure_note);
    if (v->against.path != NULL) {
        (void)snprintf(text, sizeof text, "%u prompts compared with %.300s", v->against.n_compared,
                       v->against.path);
        put_check(out, "Another report",
                  v->against.n_compared > 0 ? v->against.n_different == 0 : -1, text);
    }
    put(out, "</table></div>\n");
}

/* ---- budgets --------------------------------------------------------------------------------- */

static double rate_of(const struct counts *c)
{
    return c->seconds > 0 ? (double)c->n_tokens / c->seconds : 0;
}

static void put_budget_row(const struct validation *v, const struct point *p, FILE *out)
{
    const struct counts first = point_sum(v, p, AFTER_OPENING, true);
    const struct counts again = point_sum(v, p, AFTER_SWITCH, true);
    const struct counts fresh = point_sum(v, p, AFTER_OPENING, false);
    const struct counts later = point_sum(v, p, AFTER_SWITCH, false);
    const struct limit *limit = &p->limits[AFTER_SWITCH];
    char budget[UNIT_BYTES], peak[UNIT_BYTES], share[UNIT_BYTES] = "-";
    if (limit->max_per_s > 0 && limit->tok_per_s > 0)
        (void)snprintf(share, sizeof share, limit->is_exceeded ? "busy" : "%.0f %%",
                       limit->percent);
    (void)fprintf(out, "<tr><td>%s</td><td>%.0f %%</td><td>%.2f s</td><td>%.2f s</td><td>%.2f "
                       "s</td>"
                  "<td>%.1f</td><td>%.1f</td><td>%.1f %%</td><td>%.2f</td><td>%s</td><td>%s</td>"
                  "<td>%s</td></tr>\n", human_bytes(p->budget_bytes, budget),
                  100.0 * (double)p->n_slots /
                      ((double)v->info.n_experts * v->info.n_moe_layers),
                  point_open_s(v, p) + first.seconds / v->n_prompts, first.seconds / v->n_prompts,
                  again.seconds / v->n_prompts, rate_of(&fresh), rate_of(&later),
                  100 * counts_hit_rate(&later),
                  later.n_tokens > 0 ? (double)later.bytes_read / (double)later.n_tokens * 1e-6 : 0,
                  limit->max_per_s > 0 ? limit_bound_name(limit->bound) : "-", share,
                  size_of(p->peak_bytes, peak));
}

static void put_budgets(const struct validation *v, FILE *out)
{
    put(out, "<h2>Speed by memory budget</h2>\n<p class=\"soft\">Means over all prompts. Fresh: "
             "the "
             "cache is empty. Switched: another topic has filled it. A cold start is opening the "
             "model and the first token. The limit is that of <code>bench decode</code>: what disk "
             "and memory allow.</p>\n<div class=\"wide\"><table "
             "class=\"numbers\"><tr><th>budget</th>"
             "<th>experts in memory</th><th>cold start</th><th>first token, fresh</th>"
             "<th>switched</th><th>tok/s, fresh</th><th>switched</th><th>hits</th>"
             "<th>MB/token read</th><th>bound by</th><th>of the limit</th><th>memory peak</th></tr>"
             "\n");
    for (unsigned n = 0; n < v->budgets.n; n++)
        if (v->points[n].answers[0][0].was_run)
            put_budget_row(v, &v->points[n], out);
    put(out, "</table></div>\n<div class=\"plots\">\n");
    plots_budgets(v, out);
    put(out, "</div>\n");
}

static void put_switches(const struct validation *v, FILE *out)
{
    put(out, "<h2>Change of topic</h2>\n<p class=\"soft\">What the prompt of another topic costs, "
             "beside the same prompt with an empty cache.</p>\n<div class=\"wide\"><table "
             "class=\"numbers\"><tr><th>budget</th><th>misses, fresh</th><th>switched</th>"
             "<th>MB read, fresh</th><th>switched</th><th>first token, fresh</th><th>switched</th>"
             "</tr>\n");
    for (unsigned n = 0; n < v->budgets.n; n++) {
        const struct point *p = &v->points[n];
        const struct counts a = point_sum(v, p, AFTER_OPENING, true);
        const struct counts b = point_sum(v, p, AFTER_SWITCH, true);
        const double k = v->n_prompts;
        char budget[UNIT_BYTES];
        if (!p->answers[0][0].was_run)
            continue;
        (void)fprintf(out, "<tr><td>%s</td><td>%.0f</td><td>%.0f</td><td>%.2f</td><td>%.2f</td>"
                      "<td>%.0f ms</td><td>%.0f ms</td></tr>\n",
                      human_bytes(p->budget_bytes, budget), (double)a.n_misses / k,
                      (double)b.n_misses / k, (double)a.bytes_read / k * 1e-6,
                      (double)b.bytes_read / k * 1e-6, 1e3 * a.seconds / k, 1e3 * b.seconds / k);
    }
    put(out, "</table></div>\n");
}

static void put_mark(FILE *out, const struct answer *a)
{
    put(out, !a->was_run ? "<span class=\"soft\">&middot;</span>"
             : a->is_same ? "<span class=\"good\">&#10003;</span>"
                          : "<span class=\"bad\">&#10007;</span>");
}

static void put_prompts(const struct validation *v, FILE *out)
{
    char budget[UNIT_BYTES];
    put(out, "<h2>Prompts</h2>\n<p class=\"soft\">Same text and logits as at the largest budget: "
             "fresh, then switched.</p>\n<div class=\"wide\"><table><tr><th>prompt</th>");
    for (unsigned n = 0; n < v->budgets.n; n++)
        (void)fprintf(out, "<th>%s</th>", human_bytes(v->budgets.bytes[n], budget));
    put(out, "</tr>\n");
    for (unsigned i = 0; i < v->n_prompts; i++) {
        (void)fprintf(out, "<tr><td>%s</td>", v->references[i].name);
        for (unsigned n = 0; n < v->budgets.n; n++) {
            put(out, "<td>");
            put_mark(out, &v->points[n].answers[i][AFTER_OPENING]);
            put(out, " ");
            put_mark(out, &v->points[n].answers[i][AFTER_SWITCH]);
            put(out, "</td>");
        }
        put(out, "</tr>\n");
    }
    put(out, "</table></div>\n");
    for (unsigned i = 0; i < v->n_prompts; i++) {
        const struct reference *r = &v->references[i];
        (void)fprintf(out, "<details><summary>%s: %zu and %u tokens</summary><pre>", r->name,
                      r->n_prompt, v->n_tokens);
        put_lines(out, r->text != NULL ? r->text : "(no tokenizer, or replaced routes)");
        (void)fprintf(out, "</pre><p class=\"soft\">text <code>%s</code>, logits "
                      "<code>%s</code></p></details>\n", r->text_hash, r->hashes[v->n_tokens]);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void put_cliff_row(FILE *out, const char *title, const struct cliff_point *p)
{
    char least[UNIT_BYTES], peak[UNIT_BYTES], held[UNIT_BYTES];
    put(out, "<tr><td>");
    svg_plot_text(out, title);
    if (p->is_refused || p->is_stopped) {
        put(out, "</td><td colspan=\"7\" style=\"white-space: normal; text-align: left\">");
        svg_plot_text(out, p->why);
        put(out, "</td></tr>\n");
        return;
    }
    (void)fprintf(out, "</td><td>%.1f</td><td>%.1f %%</td><td>%llu</td><td>%llu</td><td>%s</td>"
                  "<td>%s</td><td>%s</td></tr>\n", p->tok_per_s, 100 * p->hit_rate,
                  (unsigned long long)p->n_slots, (unsigned long long)p->n_shrinks,
                  size_of(p->peak_bytes, peak), size_of(p->held_bytes, held),
                  size_of(p->min_free_bytes, least));
}

static void put_cliff(const struct validation *v, FILE *out)
{
    const struct cliff *c = &v->cliff;
    char budget[UNIT_BYTES];
    put(out, "<h2>The memory cliff</h2>\n<p>");
    svg_plot_text(out, c->note);
    if (c->cliff_bytes > 0)
        (void)fprintf(out, " <strong>From a budget of %s on it is slower.</strong>",
                      human_bytes(c->cliff_bytes, budget));
    put(out, "</p>\n<p>");
    svg_plot_text(out, c->pressure_note);
    put(out, "</p>\n");
    if (c->n == 0 && !c->was_pressed)
        return;
    put(out, "<div class=\"wide\"><table class=\"numbers\"><tr><th>budget</th><th>tok/s</th>"
             "<th>hits</th><th>experts cached</th><th>shrinks</th><th>memory peak</th>"
             "<th>held by the other</th><th>least free</th></tr>\n");
    for (unsigned i = 0; i < c->n; i++)
        put_cliff_row(out, human_bytes(c->points[i].budget_bytes, budget), &c->points[i]);
    if (c->was_pressed) {
        put_cliff_row(out, "chosen by the engine, before", &c->before);
        put_cliff_row(out, "under pressure", &c->during);
    }
    put(out, "</table></div>\n");
    if (c->n > 1) {
        put(out, "<div class=\"plots\">\n");
        plots_cliff(v, out);
        put(out, "</div>\n");
    }
}

/* ---- facts ----------------------------------------------------------------------------------- */

static void put_facts(const struct validation *v, FILE *out)
{
    char text[512], a[UNIT_BYTES], b[UNIT_BYTES];
    put(out, "<h2>Model and machine</h2><div class=\"wide\"><table>\n");
    put_row(out, "Model", app_model_path(v->args));
    (void)snprintf(text, sizeof text, "%s, %s, %s parameters", v->container, v->architecture,
                   human_count(v->info.n_parameters, a));
    put_row(out, "Kind", text);
    (void)snprintf(text, sizeof text, "%u layers, %u experts each, %u per token; dense %s, experts "
                   "%s", v->info.n_layers, v->info.n_experts, v->info.n_experts_per_token,
                   human_bytes(v->info.dense_bytes, a), human_bytes(v->info.experts_bytes, b));
    put_row(out, "Shape", text);
    if (v->routes[0] != '\0')
        put_row(out, "Routes", v->routes);
    if (v->approximate[0] != '\0')
        put_row(out, "Approximate", v->approximate);
    (void)snprintf(text, sizeof text, "%s; %u threads, level %s", v->machine.processor[0] != '\0'
                   ? v->machine.processor : v->machine.architecture, v->n_threads, v->cpu_level);
    put_row(out, "Processor", text);
    if (v->gpu[0] != '\0')
        put_row(out, "GPU", v->gpu);
    (void)snprintf(text, sizeof text, "%s, of which %s were free",
                   human_bytes(v->machine.memory_bytes, a),
                   human_bytes(v->machine.memory_available_bytes, b));
    put_row(out, "Memory", text);
    for (unsigned i = 0; i < v->n_measured; i++) {
        (void)snprintf(text, sizeof text, "disk %s (experts at random, %s), memory %s",
                       human_rate(v->speeds[i].disk.read.median, a), v->io,
                       human_rate(v->speeds[i].machine.read.median, b));
        put_row(out, i == 0 ? "Speed before" : "Speed after", text);
    }
    put(out, "</table></div>\n");
}

static void put_blind_spots(const struct validation *v, FILE *out)
{
    put(out, "<h2>What this report cannot see</h2><ul>\n");
    for (unsigned i = 0; validation_blind_spot(v, i) != NULL; i++) {
        put(out, "<li>");
        svg_plot_text(out, validation_blind_spot(v, i));
        put(out, "</li>\n");
    }
    put(out, "</ul>\n");
}

const char *validation_blind_spot(const struct validation *v, unsigned i)
{
    static const char *const always[] = {
        "Whether the answers are good. It compares the model with itself.",
        "A wrong weight that is in the file and has the checksum of the wrong bytes: every budget "
        "then gives the same wrong answer. --against finds it with a report of the right file.",
        "Experts that none of the prompts used, except for their checksums.",
    };
    const unsigned n = sizeof always / sizeof always[0];
    if (i < n)
        return always[i];
    if (i == n && !v->files.has_checksums && v->files.was_run)
        return "Damage that was in this file before: it has no checksums.";
    return NULL;
}

void validation_html(const struct validation *v, FILE *out)
{
    put(out, "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    svg_plot_text(out, model_name(v));
    put(out, ": flashmoe validate</title>\n<style>\n");
    svg_plot_write_style(out);
    put(out, style_sheet);
    put(out, small_sheet);
    put(out, "</style>\n</head>\n<body>\n<main>\n<h1>Can ");
    svg_plot_text(out, model_name(v));
    put(out, " be trusted on this machine?</h1>\n");
    put_verdict(v, out);
    put_checks(v, out);
    if (n_answers(v) > 0) {
        put_budgets(v, out);
        put_switches(v, out);
        put_prompts(v, out);
    }
    if (v->long_run.was_run || v->cycles.was_run) {
        put(out, "<h2>Long work and layers</h2>\n<div class=\"plots\">\n");
        plots_long(v, out);
        put(out, "</div>\n");
    }
    if (v->cliff.was_run)
        put_cliff(v, out);
    put_facts(v, out);
    put_blind_spots(v, out);
    put(out, "</main>\n</body>\n</html>\n");
}
