/* The results as one JSON object. Numbers are plain: bytes, seconds, tokens per second; shares of
 * the limit are percent. No path of this machine is in it, so that results can be published. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "apps/bench/all.h"
#include "base/path.h"

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *text_json(const char *text)
{
    return text[0] != '\0' ? json_text(text, strlen(text)) : json_null();
}

/* Appends a new reference. NULL, of memory that ran out, makes the whole list NULL: a report never
 * lacks a part without an error. */
static void append(json_t **list, json_t *value)
{
    if (json_array_append_new(*list, value) == 0)
        return;
    json_decref(*list);
    *list = NULL;
}

static json_t *spread_json(const struct all_spread *s)
{
    return s->n > 0 ? json_pack("{s:f, s:f, s:f, s:I}", "median", s->median, "min", s->min, "max",
                                s->max, "n", (json_int_t)s->n)
                    : json_null();
}

static json_t *quiet_json(const struct quiet_view *q)
{
    json_t *processes = json_array();
    for (unsigned i = 0; i < q->n_processes; i++)
        append(&processes, json_pack("{s:o, s:f}", "name",
                                     json_text(q->processes[i].name,
                                               strlen(q->processes[i].name)),
                                     "n_cpus", q->processes[i].n_cpus));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "is_quiet",
                     q->is_known ? json_boolean(q->is_quiet) : json_null(), "others_cpus",
                     number(q->is_known ? q->others : NAN), "stolen_cpus",
                     number(q->is_known ? q->stolen : NAN), "load", number(q->load >= 0 ? q->load
                                                                                       : NAN),
                     "processes", processes);
}

static json_t *run_json(const struct all_regime *regime, const struct all_run *run,
                        unsigned program, unsigned round)
{
    json_t *extras = json_object();
    for (unsigned i = 0; i < ALL_EXTRAS && regime->extras[i].name != NULL; i++)
        (void)json_object_set_new(extras, regime->extras[i].name,
                                  number(regime->extras[i].factor * run->extras[i]));
    return json_pack("{s:I, s:s, s:f, s:o, s:o, s:b, s:o, s:o, s:o, s:f, s:o, s:o, s:o}", "round",
                     (json_int_t)round + 1, "program", program == ALL_THIS ? "this" : "other",
                     "value", run->value, "limit", number(run->limit), "percent",
                     number(run->percent), "is_above_limit", (int)run->is_exceeded, "bound_by",
                     text_json(run->bound), "extras", extras, "logits_hash", text_json(run->hash),
                     "seconds", run->seconds, "is_quiet",
                     run->quiet.is_known ? json_boolean(run->quiet.is_quiet) : json_null(),
                     "others_cpus", number(run->quiet.is_known ? run->quiet.others : NAN),
                     "stolen_cpus", number(run->quiet.is_known ? run->quiet.stolen : NAN));
}

static json_t *runs_json(const struct all *all, const struct all_case *one)
{
    json_t *list = json_array();
    for (unsigned r = 0; r < all->n_rounds; r++)
        for (unsigned p = 0; p < ALL_PROGRAMS; p++)
            if (one->runs[p][r].was_run)
                append(&list, run_json(&all_regimes[one->regime], &one->runs[p][r], p, r));
    return list;
}

static json_t *case_json(const struct all *all, const struct all_case *one)
{
    struct all_result r;
    char command[ALL_COMMAND_BYTES], why[ALL_WHY_BYTES];
    const struct all_regime *regime = &all_regimes[one->regime];
    json_t *extras = json_array();
    all_result(all, one, &r);
    for (unsigned i = 0; i < ALL_EXTRAS && regime->extras[i].name != NULL; i++) {
        struct all_spread s = r.extras[i];
        s.median *= regime->extras[i].factor;
        s.min *= regime->extras[i].factor;
        s.max *= regime->extras[i].factor;
        append(&extras, json_pack("{s:s, s:s, s:o}", "name", regime->extras[i].name, "unit",
                                  regime->extras[i].unit, "value", spread_json(&s)));
    }
    return json_pack("{s:o, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:I,"
                     " s:o, s:o}",
                     "label", text_json(one->label), "x", one->x, "command",
                     text_json(all_command(all, one, command)), "memory_budget_bytes",
                     one->budget_bytes > 0 ? json_integer((json_int_t)one->budget_bytes)
                                           : json_null(),
                     "value", spread_json(&r.value[ALL_THIS]), "other",
                     spread_json(&r.value[ALL_OTHER]), "ratio", spread_json(&r.ratio), "limit",
                     spread_json(&r.limit), "percent", spread_json(&r.percent), "bound_by",
                     text_json(r.bound), "extras", extras, "logits_differ", (int)one->differs,
                     "n_runs", (json_int_t)r.n_runs, "n_not_quiet", (json_int_t)r.n_busy,
                     "n_above_limit", (json_int_t)r.n_exceeded, "left_out",
                     text_json(all_public_text(all, one->failed, why)), "runs",
                     runs_json(all, one));
}

static json_t *regimes_json(const struct all *all)
{
    json_t *list = json_array();
    for (unsigned i = 0; all_regimes[i].name != NULL; i++) {
        const struct all_regime *regime = &all_regimes[i];
        json_t *cases = json_array();
        for (unsigned k = 0; k < all->n_cases; k++)
            if (all->cases[k].regime == i)
                append(&cases, case_json(all, &all->cases[k]));
        const char *why = all->is_chosen[i] ? all->left_out[i] : "not asked for (--only)";
        append(&list, json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", regime->name, "title",
                                regime->title, "what", regime->what, "unit", regime->unit,
                                "left_out", text_json(why), "cases", cases));
    }
    return list;
}

static json_t *speeds_json(const struct all *all, const double *values)
{
    const struct all_spread s = all_spread_of(values, all->n_rounds);
    return spread_json(&s);
}

static json_t *machine_json(const struct all *all)
{
    const struct fm_machine_info *m = &all->machine;
    return json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:o, s:o, s:o, s:o}",
                     "processor", text_json(m->processor), "architecture", m->architecture,
                     "n_cores", (json_int_t)m->n_cores, "n_cpus", (json_int_t)m->n_cpus,
                     "cache_bytes", (json_int_t)m->cache_bytes, "memory_bytes",
                     (json_int_t)m->memory_bytes, "memory_available_bytes",
                     (json_int_t)m->memory_available_bytes, "huge_pages", m->huge_pages,
                     "cpu_level", text_json(all->cpu_level), "gpu", text_json(all->facts.gpu),
                     "memory_read_bytes_per_s", speeds_json(all, all->memory_per_s),
                     "disk_read_bytes_per_s", speeds_json(all, all->disk_per_s), "quiet",
                     quiet_json(&all->before));
}

static json_t *model_json(const struct all *all)
{
    const struct all_facts *f = &all->facts;
    const char *routes = args_text(all->args, "routes");
    return json_pack("{s:o, s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:b}", "name",
                     text_json(f->name), "container", f->container, "architecture",
                     f->architecture, "formats", text_json(f->formats), "n_parameters",
                     (json_int_t)f->n_parameters, "n_layers", (json_int_t)f->n_layers,
                     "n_experts", (json_int_t)f->n_experts, "n_experts_per_token",
                     (json_int_t)f->n_experts_per_token, "dense_bytes",
                     (json_int_t)f->dense_bytes, "experts_bytes", (json_int_t)f->experts_bytes,
                     "n_disks", (json_int_t)f->n_disks, "routes",
                     text_json(routes != NULL ? path_base(routes) : ""), "has_mtp",
                     (int)f->has_mtp);
}

json_t *all_json(const struct all *all)
{
    char date[32] = "";
    const time_t begin = (time_t)(all->begin_wall_ns / 1000000000);
    struct tm when;
    if (gmtime_r(&begin, &when) != NULL)
        (void)strftime(date, sizeof date, "%Y-%m-%d", &when);
    return json_pack("{s:s, s:o, s:s, s:o, s:b, s:b, s:I, s:I, s:f, s:o, s:o, s:I, s:o}", "report",
                     "flashmoe bench all", "version", text_json(all->versions[ALL_THIS]), "date",
                     date, "versus", text_json(all->versions[ALL_OTHER]), "is_quick",
                     (int)all->is_quick, "is_interrupted", (int)all->is_cut, "n_rounds",
                     (json_int_t)all->n_rounds, "repeat", (json_int_t)all->n_repeat, "seconds",
                     all->seconds, "model", model_json(all), "machine", machine_json(all),
                     "usable_memory_bytes", (json_int_t)all->usable_bytes, "regimes",
                     regimes_json(all));
}
