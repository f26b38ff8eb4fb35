#include "apps/bench/stream_report.h"

#include <math.h>
#include <string.h>

#include "apps/bench/bench_common.h"
#include "apps/bench/svg_plot.h"
#include "apps/cli/term.h"
#include "apps/bench/topics.h"
#include "flashmoe_lab.h"

static const char *const pass_names[STREAM_PASSES] = {"cold", "warm"};

static double resident_share(const struct stream *s, const struct stream_point *point)
{
    return (double)point->n_slots / ((double)s->info.n_experts * s->info.n_moe_layers);
}

/* Returns the mean, minimum and maximum of all measurements. */
static struct fm_speed together(const struct fm_speed *speeds, unsigned n)
{
    struct fm_speed all = {0};
    for (unsigned i = 0; i < n; i++) {
        all.median += speeds[i].median / n;
        all.min = i == 0 || speeds[i].min < all.min ? speeds[i].min : all.min;
        all.max = speeds[i].max > all.max ? speeds[i].max : all.max;
    }
    return all;
}

/* ---- the table ------------------------------------------------------------------------------- */

static void print_pass(const struct stream_pass *pass, const char *name)
{
    const struct limit *limit = &pass->limit;
    (void)printf("%6s%10.2f%8.1f%11.3f", name, limit->tok_per_s, 100 * pass->hit_rate,
                 pass->bytes_per_token * 1e-6);
    if (limit->is_exceeded)
        (void)printf("%10s%10.2f%9s\n", limit_bound_name(limit->bound), limit->max_per_s,
                     "busy");
    else if (limit->max_per_s > 0)
        (void)printf("%10s%10.2f%9.1f\n", limit_bound_name(limit->bound),
                     limit->max_per_s, limit->percent);
    else
        (void)printf("%10s%10s%9s\n", "-", "-", "-");
}

static void print_speed(const char *title, const struct fm_speed *speeds, unsigned n)
{
    const struct fm_speed all = together(speeds, n);
    char mean[UNIT_BYTES], min[UNIT_BYTES], max[UNIT_BYTES];
    (void)printf("%-12s %s, %s to %s, measured %u times", title, human_rate(all.median, mean),
                 human_rate(all.min, min), human_rate(all.max, max), n);
}

static void print_topics(const struct stream *s)
{
    (void)printf("topics       ");
    for (unsigned i = 0; s->is_text && i < N_TOPICS; i++)
        (void)printf("%s%s", i > 0 ? ", " : "", topic_name(i));
    (void)printf("%s, %u tokens each\n", s->is_text ? "" : "from the routes",
                 s->n_topic_tokens);
    (void)printf("routes       %s\n", s->routes != NULL ? s->routes : "the model's own");
    if (s->approximate != NULL)
        (void)printf("%s\n", s->approximate);
}

static void print_elastic(const struct stream *s)
{
    for (unsigned i = 0; i < s->n_points; i++) {
        char where[UNIT_BYTES + 8], budget[UNIT_BYTES];
        (void)snprintf(where, sizeof where, "at %s ",
                       human_bytes(s->points[i].budget_bytes, budget));
        bench_print_elastic(where, s->points[i].n_shrinks, s->points[i].n_grows);
    }
}

static void print_busy(const struct stream *s)
{
    bool is_any = false;
    for (unsigned i = 0; i < s->n_points; i++)
        for (unsigned pass = 0; pass < STREAM_PASSES; pass++)
            is_any |= s->points[i].passes[pass].limit.is_exceeded;
    if (is_any)
        (void)printf("busy         above the limit: %s\n", LIMIT_EXCEEDED_WHY);
}

int stream_print_table(const struct stream *s)
{
    char budget[UNIT_BYTES], expert[UNIT_BYTES];
    (void)printf("%11s%10s%6s%10s%8s%11s%10s%10s%9s\n", "budget", "experts", "", "tok/s", "hits",
                 "MB/token", "bound by", "limit", "reached");
    (void)printf("%11s%10s%6s%10s%8s%11s%10s%10s%9s\n", "", "in %", "", "", "in %", "read", "",
                 "tok/s", "in %");
    for (unsigned i = 0; i < s->n_points; i++) {
        const struct stream_point *point = &s->points[i];
        for (unsigned pass = 0; pass < STREAM_PASSES; pass++) {
            if (pass == 0)
                (void)printf("%11s%10.1f", human_bytes(point->budget_bytes, budget),
                             100 * resident_share(s, point));
            else
                (void)printf("%21s", "");
            print_pass(&point->passes[pass], pass_names[pass]);
        }
    }
    (void)printf("\ntokens       %u per pass; the logits %s\n", s->n_tokens,
                 s->depends_on_budget ? "depend on the budget (approximate)"
                                      : "are identical at every budget");
    print_busy(s);
    print_topics(s);
    print_elastic(s);
    print_speed("disk read", s->disk, s->n_measured);
    (void)printf("; experts of %s, %u concurrent reads, %s\n",
                 human_bytes(s->reads.expert_bytes, expert), s->reads.read_depth, s->reads.io);
    print_speed("memory read", s->memory, s->n_measured);
    if (!app_is_beyond_cache(s->read_buffer_bytes))
        (void)printf("; partly the speed of the processor's cache: too little memory is free");
    if (s->gpu_text[0] != '\0')
        (void)printf("\nGPU          %s", s->gpu_text);
    (void)printf("\nprocessor    level %s, %u thread%s\n", s->cpu_level, s->n_threads,
                 s->n_threads == 1 ? "" : "s");
    return STATUS_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static json_t *pass_json(const struct stream_pass *pass)
{
    return json_pack("{s:f, s:f, s:f, s:o}", "tok_per_s", pass->limit.tok_per_s, "hit_rate",
                     pass->hit_rate, "bytes_per_token", pass->bytes_per_token, "limit",
                     limit_json(&pass->limit));
}

static json_t *points_json(const struct stream *s)
{
    json_t *points = json_array();
    for (unsigned i = 0; i < s->n_points; i++) {
        const struct stream_point *p = &s->points[i];
        json_t *peak = p->peak_bytes > 0 ? json_integer((json_int_t)p->peak_bytes) : json_null();
        (void)json_array_append_new(
            points, json_pack("{s:I, s:I, s:I, s:I, s:f, s:o, s:o, s:o}", "memory_budget_bytes",
                              (json_int_t)p->budget_bytes, "n_cache_slots",
                              (json_int_t)p->n_slots, "n_shrinks", (json_int_t)p->n_shrinks,
                              "n_grows", (json_int_t)p->n_grows,
                              "resident_share", resident_share(s, p),
                              "memory_bytes", peak, pass_names[STREAM_COLD],
                              pass_json(&p->passes[STREAM_COLD]), pass_names[STREAM_WARM],
                              pass_json(&p->passes[STREAM_WARM])));
    }
    return points;
}

static json_t *speed_json(const struct fm_speed *speeds, unsigned n)
{
    const struct fm_speed all = together(speeds, n);
    return json_pack("{s:f, s:f, s:f, s:I}", "mean", all.median, "min", all.min, "max", all.max,
                     "n_measured", (json_int_t)n);
}

int stream_print_json(const struct stream *s)
{
    const char *path = app_model_path(s->args);
    json_t *topics = s->is_text ? json_array() : json_null();
    for (unsigned i = 0; s->is_text && i < N_TOPICS; i++)
        (void)json_array_append_new(topics, json_string(topic_name(i)));
    return out_json(json_pack(
               "{s:o, s:b, s:I, s:I, s:o, s:o, s:o, s:b, s:I, s:s, s:I, s:o, s:s, s:o, s:o}",
               "budgets", points_json(s), "logits_depend_on_budget", s->depends_on_budget,
               "n_tokens", (json_int_t)s->n_tokens,
               "n_topic_tokens", (json_int_t)s->n_topic_tokens, "topics", topics,
               "disk_bytes_per_s", speed_json(s->disk, s->n_measured),
               "memory_bytes_per_s", speed_json(s->memory, s->n_measured),
               "is_read_beyond_cache", app_is_beyond_cache(s->read_buffer_bytes),
               "expert_bytes", (json_int_t)s->reads.expert_bytes, "cpu_level", s->cpu_level,
               "n_threads", (json_int_t)s->n_threads, "model", json_text(path, strlen(path)),
               "architecture", s->architecture, "routes", json_label(s->routes),
               "approximate", json_label(s->approximate)))
               ? STATUS_OK
               : STATUS_FAILED;
}

/* ---- the plot -------------------------------------------------------------------------------- */

enum { CURVE_SPEED, CURVE_LIMIT, CURVE_HITS, CURVE_BYTES, CURVE_PERCENT, N_CURVES };

struct curves {
    double y[STREAM_PASSES][N_CURVES][STREAM_BUDGETS_MAX];
};

static void fill_curves(const struct stream *s, struct curves *c)
{
    for (unsigned pass = 0; pass < STREAM_PASSES; pass++)
        for (unsigned i = 0; i < s->n_points; i++) {
            const struct stream_pass *p = &s->points[i].passes[pass];
            const bool is_known = p->limit.max_per_s > 0 && !p->limit.is_exceeded;
            c->y[pass][CURVE_SPEED][i] = p->limit.tok_per_s;
            c->y[pass][CURVE_LIMIT][i] = p->limit.max_per_s > 0 ? p->limit.max_per_s : NAN;
            c->y[pass][CURVE_HITS][i] = 100 * p->hit_rate;
            c->y[pass][CURVE_BYTES][i] = p->bytes_per_token * 1e-6;
            c->y[pass][CURVE_PERCENT][i] = is_known ? p->limit.percent : NAN;
        }
}

static struct plot_panel panel_of(const struct curves *c, const char *title, const char *unit,
                                  unsigned curve, double y_max)
{
    return (struct plot_panel){
        .title = title, .unit = unit, .y_max = y_max, .n_series = 2,
        .series = {{pass_names[STREAM_WARM], PLOT_SOLID, c->y[STREAM_WARM][curve]},
                   {pass_names[STREAM_COLD], PLOT_DASHED, c->y[STREAM_COLD][curve]}},
    };
}

void stream_write_svg(const struct stream *s, FILE *out)
{
    struct curves curves;
    double x[STREAM_BUDGETS_MAX];
    char names[STREAM_BUDGETS_MAX][UNIT_BYTES], subtitle[128], note[256];
    char routes[LIMIT_PATH_BYTES + 256]; /* a label may contain a path */
    char experts[UNIT_BYTES], disk[UNIT_BYTES], memory[UNIT_BYTES];
    const char *x_names[STREAM_BUDGETS_MAX];
    fill_curves(s, &curves);
    const bool is_large = s->points[s->n_points - 1].budget_bytes >= (uint64_t)1 << 30;
    for (unsigned i = 0; i < s->n_points; i++) {
        x[i] = (double)s->points[i].budget_bytes / (is_large ? 0x1p30 : 0x1p20);
        (void)snprintf(names[i], sizeof names[i], is_large ? "%.2f" : "%.1f", x[i]);
        x_names[i] = names[i];
    }
    struct plot_panel panels[4] = {
        panel_of(&curves, "Speed", "tokens per second", CURVE_SPEED, 0),
        panel_of(&curves, "Expert hits", "% of the experts needed", CURVE_HITS, 100),
        panel_of(&curves, "Read from the disk", "MB per token", CURVE_BYTES, 0),
        panel_of(&curves, "Share of the limit", "% of 1 / max(t_io, t_ram)", CURVE_PERCENT, 100),
    };
    panels[3].y_mark = 100;
    panels[0].series[panels[0].n_series++] = (struct plot_series){
        "limit of disk and memory, warm", PLOT_DOTTED, curves.y[STREAM_WARM][CURVE_LIMIT]};
    const char *path = app_model_path(s->args), *slash = strrchr(path, '/');
    char title[160];
    (void)snprintf(title, sizeof title, "%.80s: decoding over changing topics by memory budget",
                   slash != NULL && slash[1] != '\0' ? slash + 1 : path);
    (void)snprintf(subtitle, sizeof subtitle,
                   "%s of experts; %u tokens per pass, %u per topic",
                   human_bytes(s->info.experts_bytes, experts), s->n_tokens, s->n_topic_tokens);
    (void)snprintf(routes, sizeof routes, "Routes: %s",
                   s->routes != NULL ? s->routes : "the model's own");
    (void)snprintf(note, sizeof note, "cold: after a fresh start; warm: the same topics again. "
                   "Measured in between: disk %s, memory %s. Level %s, %u threads.",
                   human_rate(together(s->disk, s->n_measured).median, disk),
                   human_rate(together(s->memory, s->n_measured).median, memory), s->cpu_level,
                   s->n_threads);
    const struct plot plot = {.title = title, .subtitle = subtitle, 
                              .notes = {note, routes, s->approximate},
                              .x_title = "memory budget", .x_unit = is_large ? "GiB" : "MiB",
                              .x = x, .x_names = x_names,
                              .n_points = s->n_points, .panels = panels, .n_panels = 4};
    svg_plot_write(out, &plot);
}
