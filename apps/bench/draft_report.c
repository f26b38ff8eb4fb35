#include "apps/bench/draft_report.h"

#include <math.h>
#include <string.h>

#include "apps/bench/svg_plot.h"

static const char *const side_names[DRAFT_SIDES] = {"plain", "drafted"};

const char *draft_kind_text(const struct draft_bench *b, char text[160])
{
    size_t used = (size_t)snprintf(text, 160, "%s",
                                   b->n_acceptance > 0 ? "simulated: each draft is right with"
                                                       : "those of the model and its text");
    for (unsigned i = 0; i < b->n_acceptance; i++)
        used += (size_t)snprintf(text + used, 160 - used, "%s %g%%", i > 0 ? "," : "",
                                 100 * b->acceptance[i]);
    if (b->n_acceptance > 0)
        (void)snprintf(text + used, 160 - used, " by distance, if those before it are");
    else
        (void)snprintf(text + used, 160 - used, ", at temperature %g", (double)b->temperature);
    return text;
}

/* ---- figures --------------------------------------------------------------------------------- */

static struct fm_speed speed_of(const struct draft_bench *b, const struct draft_point *p,
                                unsigned side, unsigned topic)
{
    return bench_spread(p->tok_per_s[side][topic], b->n_repeat);
}

/* Returns how many times faster drafts are, of pairs of runs beside each other. */
static struct fm_speed ratio_of(const struct draft_bench *b, const struct draft_point *p,
                                unsigned topic)
{
    double ratios[BENCH_REPEAT_MAX];
    for (unsigned i = 0; i < b->n_repeat; i++)
        ratios[i] = p->tok_per_s[DRAFT_DRAFTED][topic][i] / p->tok_per_s[DRAFT_PLAIN][topic][i];
    return bench_spread(ratios, b->n_repeat);
}

/* Returns the mean of all topics' medians, and the range of all runs. */
static struct fm_speed over_topics(const struct draft_bench *b, const struct draft_point *p,
                                   int side)
{
    struct fm_speed all = {0};
    for (unsigned t = 0; t < b->n_topics; t++) {
        const struct fm_speed one = side < 0 ? ratio_of(b, p, t)
                                             : speed_of(b, p, (unsigned)side, t);
        all.median += one.median / b->n_topics;
        all.min = t == 0 || one.min < all.min ? one.min : all.min;
        all.max = one.max > all.max ? one.max : all.max;
    }
    return all;
}

static double hit_rate(const struct draft_side *s)
{
    const double all = (double)(s->n_hits + s->n_misses);
    return all > 0 ? (double)s->n_hits / all : 0;
}

static double bytes_per_token(const struct draft_side *s)
{
    return s->n_tokens > 0 ? (double)s->bytes_read / (double)s->n_tokens : 0;
}

static double tokens_per_pass(const struct draft_side *s)
{
    uint64_t n = 0;
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++)
        n += s->passes[i].n;
    return n > 0 ? (double)s->n_tokens / (double)n : 0;
}

static double share(uint64_t part, uint64_t all)
{
    return all > 0 ? (double)part / (double)all : 0;
}

static double milliseconds(uint64_t ns, uint64_t n)
{
    return n > 0 ? (double)ns * 1e-6 / (double)n : 0;
}

static uint64_t pass_ns(const struct draft_passes *p)
{
    return p->mix_ns + p->route_ns + p->wait_ns + p->compute_ns + p->head_ns;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_point(const struct draft_bench *b, const struct draft_point *p)
{
    char budget[UNIT_BYTES];
    for (unsigned side = 0; side < DRAFT_SIDES; side++) {
        const struct draft_side *s = &p->sides[side];
        const struct fm_speed speed = over_topics(b, p, (int)side);
        if (side == DRAFT_PLAIN)
            (void)printf("%11s%9.1f", human_bytes(p->budget_bytes, budget),
                         100 * share(p->n_slots, b->n_experts));
        else
            (void)printf("%20s", "");
        (void)printf("%9s%9.2f%9.2f%9.2f%8.1f%10.3f%8.2f", side_names[side], speed.median,
                     speed.min, speed.max, 100 * hit_rate(s), bytes_per_token(s) * 1e-6,
                     tokens_per_pass(s));
        const struct fm_speed ratio = over_topics(b, p, -1);
        if (side == DRAFT_DRAFTED)
            (void)printf("  %.2fx, %.2f to %.2f", ratio.median, ratio.min, ratio.max);
        (void)printf("\n");
    }
}

static void print_topics(const struct draft_bench *b, const struct draft_point *p)
{
    char budget[UNIT_BYTES];
    (void)printf("\ntopics       at %s:", human_bytes(p->budget_bytes, budget));
    for (unsigned t = 0; t < b->n_topics; t++)
        (void)printf("%s %s %.2fx", t > 0 ? "," : "", topic_name(t), ratio_of(b, p, t).median);
}

static void print_accepted(const struct draft_point *p)
{
    char budget[UNIT_BYTES];
    (void)printf("\naccepted     at %s, of those computed, by distance:",
                 human_bytes(p->budget_bytes, budget));
    for (unsigned i = 0; i < FM_DRAFTS_MAX && p->n_drafted[i] > 0; i++)
        (void)printf("%s %.1f%% of %llu", i > 0 ? "," : "",
                     100 * share(p->n_accepted[i], p->n_drafted[i]),
                     (unsigned long long)p->n_drafted[i]);
    if (p->n_drafted[0] == 0)
        (void)printf(" no draft was computed");
}

static void print_passes(const struct draft_bench *b)
{
    char budget[UNIT_BYTES];
    (void)printf("\n\n%11s%9s%6s%8s%9s%9s%9s%9s%9s%9s%9s\n", "budget", "", "rows", "passes",
                 "experts", "ms each", "mixing", "routing", "waiting", "experts", "head");
    (void)printf("%34s%9s\n", "", "each");
    for (unsigned i = 0; i < b->n_points; i++)
        for (unsigned side = 0; side < DRAFT_SIDES; side++)
            for (unsigned r = 0; r <= FM_DRAFTS_MAX; r++) {
                const struct draft_passes *p = &b->points[i].sides[side].passes[r];
                if (p->n == 0)
                    continue;
                (void)printf("%11s%9s%6u%8llu%9.1f%9.2f%9.2f%9.2f%9.2f%9.2f%9.2f\n",
                             human_bytes(b->points[i].budget_bytes, budget), side_names[side],
                             r + 1, (unsigned long long)p->n, share(p->n_experts, p->n),
                             milliseconds(pass_ns(p), p->n),
                             milliseconds(p->mix_ns, p->n), milliseconds(p->route_ns, p->n),
                             milliseconds(p->wait_ns, p->n), milliseconds(p->compute_ns, p->n),
                             milliseconds(p->head_ns, p->n));
            }
}

int draft_print_table(const struct draft_bench *b)
{
    char kind[160];
    (void)printf("%11s%9s%9s%9s%9s%9s%8s%10s%8s  %s\n", "budget", "experts", "", "tok/s", "lowest",
                 "highest", "hits", "MB/token", "tokens", "with drafts");
    (void)printf("%11s%9s%9s%9s%9s%9s%8s%10s%8s\n", "", "in %", "", "", "", "", "in %", "read",
                 "a pass");
    for (unsigned i = 0; i < b->n_points; i++)
        print_point(b, &b->points[i]);
    (void)printf("\ndrafts       %s", draft_kind_text(b, kind));
    (void)printf("\nruns         %u without drafts and %u with them, in turns, of %u tokens%s",
                 b->n_repeat, b->n_repeat, b->n_tokens, b->n_topics > 1 ? " for each topic" : "");
    for (unsigned i = 0; i < b->n_points; i++)
        print_accepted(&b->points[i]);
    for (unsigned i = 0; b->n_topics > 1 && i < b->n_points; i++)
        print_topics(b, &b->points[i]);
    print_passes(b);
    (void)printf("\nroutes       %s\n", b->routes != NULL ? b->routes : "the model's own");
    if (b->approximate != NULL)
        (void)printf("%s\n", b->approximate);
    (void)printf("processor    level %s, %u thread%s\n", b->cpu_level, b->n_threads,
                 b->n_threads == 1 ? "" : "s");
    return STATUS_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *spread_json(struct fm_speed s)
{
    return json_pack("{s:f, s:f, s:f}", "median", s.median, "min", s.min, "max", s.max);
}

static json_t *passes_json(const struct draft_side *s)
{
    json_t *all = json_array();
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++) {
        const struct draft_passes *p = &s->passes[i];
        if (p->n > 0)
            (void)json_array_append_new(
                all, json_pack("{s:i, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "n_rows", i + 1,
                               "n_passes", (json_int_t)p->n, "n_experts",
                               share(p->n_experts, p->n), "ms", milliseconds(pass_ns(p), p->n),
                               "mix_ms", milliseconds(p->mix_ns, p->n), "route_ms",
                               milliseconds(p->route_ns, p->n), "wait_ms",
                               milliseconds(p->wait_ns, p->n), "compute_ms",
                               milliseconds(p->compute_ns, p->n), "head_ms",
                               milliseconds(p->head_ns, p->n)));
    }
    return all;
}

static json_t *side_json(const struct draft_bench *b, const struct draft_point *p, unsigned side)
{
    const struct draft_side *s = &p->sides[side];
    return json_pack("{s:o, s:f, s:f, s:f, s:o}", "tok_per_s",
                     spread_json(over_topics(b, p, (int)side)), "hit_rate", hit_rate(s),
                     "bytes_per_token", bytes_per_token(s), "tokens_per_pass", tokens_per_pass(s),
                     "passes", passes_json(s));
}

static json_t *topics_json(const struct draft_bench *b, const struct draft_point *p)
{
    json_t *all = b->n_topics > 1 ? json_array() : json_null();
    for (unsigned t = 0; b->n_topics > 1 && t < b->n_topics; t++)
        (void)json_array_append_new(
            all, json_pack("{s:s, s:o, s:o, s:o}", "topic", topic_name(t), "plain",
                           spread_json(speed_of(b, p, DRAFT_PLAIN, t)), "drafted",
                           spread_json(speed_of(b, p, DRAFT_DRAFTED, t)), "speedup",
                           spread_json(ratio_of(b, p, t))));
    return all;
}

static json_t *counts_json(const uint64_t counts[FM_DRAFTS_MAX])
{
    json_t *all = json_array();
    for (unsigned i = 0; i < FM_DRAFTS_MAX; i++)
        (void)json_array_append_new(all, json_integer((json_int_t)counts[i]));
    return all;
}

static json_t *points_json(const struct draft_bench *b)
{
    json_t *points = json_array();
    for (unsigned i = 0; i < b->n_points; i++) {
        const struct draft_point *p = &b->points[i];
        (void)json_array_append_new(
            points, json_pack("{s:I, s:I, s:f, s:o, s:o, s:o, s:o, s:o, s:o}",
                              "memory_budget_bytes", (json_int_t)p->budget_bytes, "n_cache_slots",
                              (json_int_t)p->n_slots, "resident_share",
                              share(p->n_slots, b->n_experts), "plain",
                              side_json(b, p, DRAFT_PLAIN), "drafted",
                              side_json(b, p, DRAFT_DRAFTED), "speedup",
                              spread_json(over_topics(b, p, -1)), "topics", topics_json(b, p),
                              "n_drafted", counts_json(p->n_drafted), "n_drafts_accepted",
                              counts_json(p->n_accepted)));
    }
    return points;
}

int draft_print_json(const struct draft_bench *b)
{
    char kind[160];
    const char *path = app_model_path(b->args);
    json_t *acceptance = b->n_acceptance > 0 ? json_array() : json_null();
    json_t *temperature = b->n_acceptance > 0
                              ? json_null() : json_real(round(1e6 * (double)b->temperature) * 1e-6);
    for (unsigned i = 0; i < b->n_acceptance; i++)
        (void)json_array_append_new(acceptance, json_real(b->acceptance[i]));
    return out_json(json_pack("{s:o, s:s, s:b, s:o, s:I, s:I, s:o, s:s, s:I, s:o, s:s, s:o, s:o}",
                              "budgets", points_json(b), "drafts", draft_kind_text(b, kind),
                              "is_simulated", b->n_acceptance > 0, "acceptance", acceptance,
                              "n_tokens", (json_int_t)b->n_tokens, "n_repeat",
                              (json_int_t)b->n_repeat, "temperature", temperature, "cpu_level",
                              b->cpu_level, "n_threads", (json_int_t)b->n_threads, "model",
                              json_text(path, strlen(path)),
                              "architecture", b->architecture, "routes", json_label(b->routes),
                              "approximate", json_label(b->approximate)))
               ? STATUS_OK
               : STATUS_FAILED;
}

/* ---- the plot -------------------------------------------------------------------------------- */

enum { CURVE_SPEED, CURVE_HITS, CURVE_BYTES, N_CURVES };

struct curves {
    double y[DRAFT_SIDES][N_CURVES][BUDGETS_MAX];
    double ratio[BUDGETS_MAX];
};

static void fill_curves(const struct draft_bench *b, struct curves *c)
{
    for (unsigned i = 0; i < b->n_points; i++) {
        const struct draft_point *p = &b->points[i];
        c->ratio[i] = over_topics(b, p, -1).median;
        for (unsigned side = 0; side < DRAFT_SIDES; side++) {
            c->y[side][CURVE_SPEED][i] = over_topics(b, p, (int)side).median;
            c->y[side][CURVE_HITS][i] = 100 * hit_rate(&p->sides[side]);
            c->y[side][CURVE_BYTES][i] = bytes_per_token(&p->sides[side]) * 1e-6;
        }
    }
}

static struct plot_panel panel_of(const struct curves *c, const char *title, const char *unit,
                                  unsigned curve, double y_max)
{
    return (struct plot_panel){
        .title = title, .unit = unit, .y_max = y_max, .n_series = 2,
        .series = {{side_names[DRAFT_DRAFTED], PLOT_SOLID, c->y[DRAFT_DRAFTED][curve]},
                   {side_names[DRAFT_PLAIN], PLOT_DASHED, c->y[DRAFT_PLAIN][curve]}}};
}

void draft_write_svg(const struct draft_bench *b, FILE *out)
{
    struct curves curves;
    double x[BUDGETS_MAX];
    char names[BUDGETS_MAX][UNIT_BYTES], subtitle[160], kind[160], drafts[200];
    char routes[LIMIT_PATH_BYTES + 256]; /* a label may contain a path */
    char title[160], experts[UNIT_BYTES];
    const char *x_names[BUDGETS_MAX];
    fill_curves(b, &curves);
    const bool is_large = b->points[b->n_points - 1].budget_bytes >= (uint64_t)1 << 30;
    for (unsigned i = 0; i < b->n_points; i++) {
        x[i] = (double)b->points[i].budget_bytes / (is_large ? 0x1p30 : 0x1p20);
        (void)snprintf(names[i], sizeof names[i], is_large ? "%.2f" : "%.1f", x[i]);
        x_names[i] = names[i];
    }
    const struct plot_panel panels[4] = {
        panel_of(&curves, "Speed", "tokens per second", CURVE_SPEED, 0),
        {.title = "Speed-up", .unit = "times the speed without drafts", .y_max = 1, .y_mark = 1,
         .n_series = 1, .series = {{side_names[DRAFT_DRAFTED], PLOT_SOLID, curves.ratio}}},
        panel_of(&curves, "Expert hits", "% of the experts needed", CURVE_HITS, 100),
        panel_of(&curves, "Read from the disk", "MB per token", CURVE_BYTES, 0)};
    const char *path = app_model_path(b->args), *slash = strrchr(path, '/');
    (void)snprintf(title, sizeof title, "%.80s: drafts by memory budget",
                   slash != NULL && slash[1] != '\0' ? slash + 1 : path);
    (void)snprintf(subtitle, sizeof subtitle,
                   "%s of experts; medians of %u runs of %u tokens each, in turns%s",
                   human_bytes(b->experts_bytes, experts), b->n_repeat, b->n_tokens,
                   b->n_acceptance > 0 ? "; simulated acceptance" : "");
    (void)snprintf(drafts, sizeof drafts, "Drafts: %s. Level %s, %u threads.",
                   draft_kind_text(b, kind), b->cpu_level, b->n_threads);
    (void)snprintf(routes, sizeof routes, "Routes: %s",
                   b->routes != NULL ? b->routes : "the model's own");
    const struct plot plot = {.title = title, .subtitle = subtitle,
                              .notes = {drafts, routes, b->approximate},
                              .x_title = "memory budget", .x_unit = is_large ? "GiB" : "MiB",
                              .x = x, .x_names = x_names, .n_points = b->n_points,
                              .panels = panels, .n_panels = 4};
    svg_plot_write(out, &plot);
}
