/* The results as one page: no script, nothing from elsewhere, light and dark. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/bench/page.h"
#include "apps/bench/svg_plot.h"
#include "apps/validate/report_plots.h"
#include "apps/validate/validate.h"

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
    put(out, "<h2>Checks</h2>" PAGE_WIDE "<table>\n");
    put_files_check(v, out);
    (void)snprintf(text, sizeof text, "%u answers of %u tokens, with an empty cache and after "
                   "another topic", n_answers(v), v->n_tokens);
    put_check(out, "Same at every budget", n_answers(v) == 0 ? -1 : all_same(v),
              n_answers(v) == 0 ? "" : text);
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
             "and memory allow.</p>\n" PAGE_WIDE "<table "
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
             "beside the same prompt with an empty cache.</p>\n" PAGE_WIDE "<table "
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
             "fresh, then switched.</p>\n" PAGE_WIDE "<table><tr><th>prompt</th>");
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
    put(out, PAGE_WIDE "<table class=\"numbers\"><tr><th>budget</th><th>tok/s</th>"
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

/* What is known once the model was opened; damaged files end a run before that. */
static void put_model_facts(const struct validation *v, FILE *out)
{
    char text[512], a[UNIT_BYTES], b[UNIT_BYTES];
    (void)snprintf(text, sizeof text, "%s, %s, %s parameters", v->container, v->architecture,
                   human_count(v->info.n_parameters, a));
    page_row(out, "Kind", text);
    (void)snprintf(text, sizeof text, "%u layers, %u experts each, %u per token; dense %s, experts "
                   "%s", v->info.n_layers, v->info.n_experts, v->info.n_experts_per_token,
                   human_bytes(v->info.dense_bytes, a), human_bytes(v->info.experts_bytes, b));
    page_row(out, "Shape", text);
}

static void put_facts(const struct validation *v, FILE *out)
{
    char text[512], a[UNIT_BYTES], b[UNIT_BYTES];
    put(out, "<h2>Model and machine</h2>" PAGE_WIDE "<table>\n");
    page_row(out, "Model", app_model_path(v->args));
    if (v->info.n_layers > 0)
        put_model_facts(v, out);
    if (v->routes[0] != '\0')
        page_row(out, "Routes", v->routes);
    if (v->approximate[0] != '\0')
        page_row(out, "Approximate", v->approximate);
    const int n = snprintf(text, sizeof text, "%s", v->machine.processor[0] != '\0'
                           ? v->machine.processor : v->machine.architecture);
    if (v->n_threads > 0)
        (void)snprintf(text + n, sizeof text - (size_t)n, "; %u threads, level %s", v->n_threads,
                       v->cpu_level);
    page_row(out, "Processor", text);
    if (v->gpu[0] != '\0')
        page_row(out, "GPU", v->gpu);
    (void)snprintf(text, sizeof text, "%s, of which %s were free",
                   human_bytes(v->machine.memory_bytes, a),
                   human_bytes(v->machine.memory_available_bytes, b));
    page_row(out, "Memory", text);
    for (unsigned i = 0; i < v->n_measured; i++) {
        (void)snprintf(text, sizeof text, "disk %s (experts at random, %s), memory %s",
                       human_rate(v->speeds[i].disk.read.median, a), v->io,
                       human_rate(v->speeds[i].machine.read.median, b));
        page_row(out, i == 0 ? "Speed before" : "Speed after", text);
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
    page_begin(out, model_name(v), ": flashmoe validate");
    put(out, "<h1>Can ");
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
    page_end(out);
}
