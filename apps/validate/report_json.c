/* The results as one JSON object. Numbers are plain: bytes, seconds, tokens per second. */
#include <stdio.h>
#include <string.h>

#include "apps/cli/gpu_report.h"
#include "apps/validate/validate.h"

static json_t *bytes_json(uint64_t bytes)
{
    return bytes > 0 && bytes != UINT64_MAX ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *label_json(const char *text)
{
    return json_label(text[0] != '\0' ? text : NULL);
}

static json_t *index_json(int i)
{
    return i >= 0 ? json_integer(i) : json_null();
}

static json_t *failures_json(const struct validation *v)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < v->n_failures; i++) {
        const struct failure *f = &v->failures[i];
        (void)json_array_append_new(
            list, json_pack("{s:o, s:o, s:o, s:o, s:o}", "what",
                            json_text(f->text, strlen(f->text)),
                            "memory_budget_bytes", bytes_json(f->budget_bytes), "prompt",
                            json_label(f->prompt), "token",
                            index_json(f->token >= 0 ? f->token + 1 : -1), "layer",
                            index_json(f->layer)));
    }
    return list;
}

static json_t *files_json(const struct validation *v)
{
    const struct files *f = &v->files;
    if (!f->was_run)
        return json_null();
    return json_pack("{s:b, s:I, s:I, s:I, s:I, s:f}", "has_checksums", (int)f->has_checksums,
                     "n_bytes", (json_int_t)f->n_bytes, "n_experts", (json_int_t)f->n_experts,
                     "n_tensors", (json_int_t)f->n_tensors, "n_bad", (json_int_t)f->n_bad,
                     "seconds", f->seconds);
}

/* ---- prompts --------------------------------------------------------------------------------- */

/* Eight digits for each layer: of the prompt, then of every token. */
static json_t *steps_json(const struct validation *v, const struct reference *r)
{
    json_t *list = json_array();
    char text[HASH_DIGITS * (VALIDATE_LAYERS + 1) + 1];
    for (unsigned step = 0; r->trail.hashes != NULL && step <= v->n_tokens; step++)
        (void)json_array_append_new(list, json_string(validation_step(r, step, text)));
    return list;
}

static json_t *prompts_json(const struct validation *v)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < v->n_prompts; i++) {
        const struct reference *r = &v->references[i];
        json_t *hashes = json_array();
        for (unsigned k = 0; k <= v->n_tokens; k++)
            (void)json_array_append_new(hashes, json_string(r->hashes[k]));
        (void)json_array_append_new(
            list, json_pack("{s:s, s:I, s:o, s:s, s:s, s:o, s:o}", "name", r->name,
                            "n_prompt_tokens", (json_int_t)r->n_prompt, "text",
                            r->text != NULL ? json_text(r->text, strlen(r->text)) : json_null(),
                            "text_hash", r->text_hash, "logits_hash", r->hashes[v->n_tokens],
                            "token_hashes", hashes, "layer_hashes", steps_json(v, r)));
    }
    return list;
}

/* ---- budgets --------------------------------------------------------------------------------- */

static json_t *counts_json(const struct counts *c)
{
    return json_pack("{s:f, s:I, s:f, s:I, s:I, s:f, s:I}", "seconds", c->seconds, "n_tokens",
                     (json_int_t)c->n_tokens, "tok_per_s",
                     c->seconds > 0 ? (double)c->n_tokens / c->seconds : 0.0, "n_hits",
                     (json_int_t)c->n_hits, "n_misses", (json_int_t)c->n_misses, "hit_rate",
                     counts_hit_rate(c), "bytes_read", (json_int_t)c->bytes_read);
}

static json_t *answer_json(const struct answer *a)
{
    if (!a->was_run)
        return json_null();
    return json_pack("{s:b, s:o, s:o, s:o}", "is_same", (int)a->is_same, "open_s",
                     a->open_s > 0 ? json_real(a->open_s) : json_null(), "prompt",
                     counts_json(&a->prompt), "decode", counts_json(&a->decode));
}

static json_t *sums_json(const struct validation *v, const struct point *p, unsigned after)
{
    const struct counts prompt = point_sum(v, p, after, true);
    const struct counts decode = point_sum(v, p, after, false);
    return json_pack("{s:f, s:o, s:o, s:o}", "first_token_s", prompt.seconds / v->n_prompts,
                     "prompt", counts_json(&prompt), "decode", counts_json(&decode), "limit",
                     limit_json(&p->limits[after]));
}

static json_t *budgets_json(const struct validation *v)
{
    json_t *list = json_array();
    for (unsigned n = 0; n < v->budgets.n; n++) {
        const struct point *p = &v->points[n];
        json_t *answers = json_array();
        for (unsigned i = 0; i < v->n_prompts; i++)
            (void)json_array_append_new(
                answers, json_pack("{s:s, s:o, s:o}", "prompt", v->references[i].name, "fresh",
                                   answer_json(&p->answers[i][AFTER_OPENING]), "switched",
                                   answer_json(&p->answers[i][AFTER_SWITCH])));
        (void)json_array_append_new(
            list, json_pack("{s:I, s:I, s:f, s:I, s:I, s:o, s:f, s:o, s:o, s:o}",
                            "memory_budget_bytes", (json_int_t)v->budgets.bytes[n],
                            "n_cache_slots", (json_int_t)p->n_slots, "resident_share",
                            (double)p->n_slots /
                                ((double)v->info.n_experts * v->info.n_moe_layers),
                            "n_shrinks", (json_int_t)p->n_shrinks, "n_grows",
                            (json_int_t)p->n_grows, "memory_bytes", bytes_json(p->peak_bytes),
                            "open_s", point_open_s(v, p), "fresh", sums_json(v, p, AFTER_OPENING),
                            "switched", sums_json(v, p, AFTER_SWITCH), "answers", answers));
    }
    return list;
}

/* ---- long work ------------------------------------------------------------------------------- */

static json_t *numbers_json(const double *values, unsigned n)
{
    json_t *list = json_array();
    for (unsigned i = 0; i < n; i++)
        (void)json_array_append_new(list, json_real(values[i]));
    return list;
}

static json_t *long_json(const struct validation *v)
{
    const struct long_run *l = &v->long_run;
    json_t *runs = json_array();
    if (!l->was_run) {
        json_decref(runs);
        return json_null();
    }
    for (unsigned k = 0; k < 2; k++)
        (void)json_array_append_new(
            runs, json_pack("{s:I, s:f, s:f, s:o, s:o}", "memory_budget_bytes",
                            (json_int_t)l->budget_bytes[k], "seconds", l->seconds[k], "tok_per_s",
                            l->seconds[k] > 0 ? l->n_tokens / l->seconds[k] : 0.0,
                            "tok_per_s_by_part",
                            numbers_json(l->tok_per_s[k], l->n_windows), "resident_bytes_by_part",
                            numbers_json(l->resident_bytes[k], l->n_windows)));
    return json_pack("{s:I, s:b, s:o}", "n_tokens", (json_int_t)l->n_tokens, "is_same",
                     (int)l->is_same, "runs", runs);
}

static json_t *cycles_json(const struct validation *v)
{
    const struct cycles *c = &v->cycles;
    json_t *list = json_array();
    for (unsigned i = 0; i < c->n; i++)
        (void)json_array_append_new(list, json_integer((json_int_t)c->resident_bytes[i]));
    if (!c->was_run) {
        json_decref(list);
        return json_null();
    }
    return json_pack("{s:I, s:b, s:b, s:I, s:o}", "n", (json_int_t)c->n, "is_same",
                     (int)c->is_same, "is_flat", (int)c->is_flat, "memory_budget_bytes",
                     (json_int_t)c->budget_bytes, "resident_bytes", list);
}

static json_t *cliff_point_json(const struct cliff_point *p)
{
    return json_pack("{s:o, s:I, s:I, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:b, s:b, s:b, s:o}",
                     "memory_budget_bytes", bytes_json(p->budget_bytes), "free_bytes",
                     (json_int_t)p->free_bytes, "held_bytes", (json_int_t)p->held_bytes,
                     "min_free_bytes", bytes_json(p->min_free_bytes), "memory_bytes",
                     bytes_json(p->peak_bytes), "n_cache_slots", (json_int_t)p->n_slots,
                     "n_shrinks", (json_int_t)p->n_shrinks, "n_grows", (json_int_t)p->n_grows,
                     "tok_per_s", p->tok_per_s, "hit_rate", p->hit_rate, "is_same",
                     (int)p->is_same, "is_refused", (int)p->is_refused, "is_stopped",
                     (int)p->is_stopped, "why", label_json(p->why));
}

static json_t *cliff_json(const struct validation *v)
{
    const struct cliff *c = &v->cliff;
    json_t *points = json_array();
    for (unsigned i = 0; i < c->n; i++)
        (void)json_array_append_new(points, cliff_point_json(&c->points[i]));
    if (!c->was_run && c->note[0] == '\0') {
        json_decref(points);
        return json_null();
    }
    json_t *pressure = json_null();
    if (c->was_pressed)
        pressure = json_pack("{s:o, s:o, s:I, s:b, s:I}", "before",
                             cliff_point_json(&c->before), "during",
                             cliff_point_json(&c->during), "max_held_bytes",
                             (json_int_t)c->max_held_bytes, "gave_back", (int)c->gave_back,
                             "n_kills", (json_int_t)c->n_kills);
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "free_bytes",
                     (json_int_t)c->free_bytes, "floor_bytes", (json_int_t)c->floor_bytes,
                     "whole_model_bytes", (json_int_t)v->whole_bytes, "cliff_bytes",
                     bytes_json(c->cliff_bytes), "note", label_json(c->note), "points", points,
                     "pressure", pressure, "pressure_note", label_json(c->pressure_note));
}

static json_t *times_json(const struct validation *v)
{
    json_t *list = json_array();
    if (!v->long_run.was_run) {
        json_decref(list);
        return json_null();
    }
    for (unsigned i = 0; i < v->n_layers; i++) {
        const struct layer_times *t = &v->layers[i];
        const bool is_head = i + 1 == v->n_layers;
        (void)json_array_append_new(
            list, json_pack("{s:o, s:f, s:f, s:f, s:f, s:f, s:f}", "layer",
                            is_head ? json_string("head") : json_integer(i), "mix_ms", t->mix_ms,
                            "route_ms", t->route_ms, "wait_ms", t->wait_ms, "compute_ms",
                            t->compute_ms, "hits", t->hits, "misses", t->misses));
    }
    return list;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static json_t *machine_json(const struct validation *v)
{
    const struct fm_machine_info *m = &v->machine;
    json_t *disk = json_array(), *memory = json_array();
    for (unsigned i = 0; i < v->n_measured; i++) {
        (void)json_array_append_new(disk, json_real(v->speeds[i].disk.read.median));
        (void)json_array_append_new(memory, json_real(v->speeds[i].machine.read.median));
    }
    return json_pack("{s:o, s:s, s:I, s:I, s:I, s:I, s:s, s:o, s:o, s:o, s:s}", "processor",
                     json_text(m->processor, strlen(m->processor)), "architecture",
                     m->architecture, "n_cpus", (json_int_t)m->n_cpus, "n_threads",
                     (json_int_t)v->n_threads, "memory_bytes", (json_int_t)m->memory_bytes,
                     "memory_available_bytes", (json_int_t)m->memory_available_bytes, "cpu_level",
                     v->cpu_level, "gpu", label_json(v->gpu), "disk_bytes_per_s", disk,
                     "memory_bytes_per_s", memory, "io", v->io);
}

static json_t *model_json(const struct validation *v)
{
    const char *path = app_model_path(v->args);
    return json_pack("{s:o, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:s}", "path",
                     json_text(path, strlen(path)), "container", v->container, "architecture",
                     v->architecture, "n_parameters", (json_int_t)v->info.n_parameters, "n_layers",
                     (json_int_t)v->info.n_layers, "n_experts", (json_int_t)v->info.n_experts,
                     "n_experts_per_token", (json_int_t)v->info.n_experts_per_token,
                     "dense_bytes", (json_int_t)v->info.dense_bytes, "experts_bytes",
                     (json_int_t)v->info.experts_bytes, "routes", label_json(v->routes),
                     "approximate", label_json(v->approximate), "kv", args_text(v->args, "kv"));
}

json_t *validation_json(const struct validation *v)
{
    json_t *blind = json_array();
    for (unsigned i = 0; validation_blind_spot(v, i) != NULL; i++)
        (void)json_array_append_new(blind, json_string(validation_blind_spot(v, i)));
    return json_pack("{s:s, s:s, s:b, s:b, s:o, s:o, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o,"
                     " s:o, s:f, s:o}", "report", "flashmoe validate", "version", fm_version(),
                     "is_good", (int)(v->n_failures == 0), "is_quick", (int)v->is_quick,
                     "failures", failures_json(v), "model", model_json(v), "machine",
                     machine_json(v), "n_tokens", (json_int_t)v->n_tokens, "files", files_json(v),
                     "prompts", prompts_json(v), "budgets", budgets_json(v), "long_answer",
                     long_json(v), "resets", cycles_json(v), "memory", cliff_json(v), "layers",
                     times_json(v), "against", v->against.path != NULL
                         ? json_pack("{s:o, s:I}", "file",
                                     json_text(v->against.path, strlen(v->against.path)),
                                     "n_compared", (json_int_t)v->against.n_compared)
                         : json_null(),
                     "seconds", v->seconds, "cannot_see", blind);
}
