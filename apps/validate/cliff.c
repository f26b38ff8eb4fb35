/* What happens when the budget is larger than what is free, and when another process needs memory.
 *
 * Both parts watch the free memory before every token, and every few tokens of a prompt, and stop
 * before it runs out. */
#include <stdio.h>
#include <string.h>

#include "apps/cli/interrupt.h"
#include "apps/validate/holder.h"
#include "apps/validate/validate.h"
#include "base/plat.h"

static const double shares[] = {0.5, 0.7, 0.85, 0.95, 1.05, 1.2}; /* of what is free */
#define N_SHARES (sizeof shares / sizeof shares[0])
#define CLIFF_SHARE 0.8  /* slower than this share of a smaller budget's speed */
#define PASSES_MAX 16    /* over all prompts, while the other process takes memory */
#define SMALL_SHARE 4    /* a model smaller than a quarter of what is free is not pressed */
#define MIN_FLOOR ((uint64_t)64 << 20)

/* What has to stay free: less than what makes an elastic budget shrink (engine/pressure.h), so that
 * this can be seen. A fixed budget gets a larger margin. */
static uint64_t floor_for_budget(const struct validation *v, uint64_t free_bytes)
{
    const bool is_elastic = strcmp(args_text(v->args, "elastic"), "off") != 0;
    const uint64_t floor = free_bytes / (is_elastic ? 100 : 25);
    return floor > MIN_FLOOR ? floor : MIN_FLOOR;
}

static uint64_t floor_for_pressure(uint64_t free_bytes)
{
    const uint64_t floor = free_bytes / 25;
    return floor > MIN_FLOOR / 2 ? floor : MIN_FLOOR / 2;
}

/* ---- one measurement ------------------------------------------------------------------------- */

static bool goes_on(struct runner *r, struct cliff_point *p)
{
    if (r->min_free_bytes < p->min_free_bytes)
        p->min_free_bytes = r->min_free_bytes;
    return !r->is_low;
}

static uint64_t pass_tokens(const struct validation *v)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < v->n_prompts; i++)
        n += v->references[i].n_prompt + v->n_tokens;
    return n;
}

/* Answers all prompts and compares them. */
static int run_pass(struct runner *r, struct cliff_point *p, struct fm_error *err)
{
    struct validation *v = r->v;
    struct counts sum = {0};
    struct spoken said;
    int rc = spoken_new(&said, v->n_tokens, err);
    for (unsigned i = 0; rc == 0 && i < v->n_prompts && goes_on(r, p); i++) {
        const struct spoken ref = reference_spoken(v, i);
        struct answer answer;
        rc = runner_answer(r, i, &said, &answer, err);
        if (rc == 0 && spoken_differs(&ref, &said) >= 0 && p->is_same) {
            char budget[UNIT_BYTES], held[UNIT_BYTES], size[UNIT_BYTES + 16] = "the free memory";
            p->is_same = false;
            if (p->budget_bytes > 0)
                (void)snprintf(size, sizeof size, "%s", human_bytes(p->budget_bytes, budget));
            validation_fail(v, &(struct failure){.budget_bytes = p->budget_bytes, .layer = -1,
                                                 .token = spoken_differs(&ref, &said),
                                                 .prompt = v->references[i].name},
                            "with a budget of %s while another process held %s, prompt '%s': token "
                            "%d differs", size, human_bytes(p->held_bytes, held),
                            v->references[i].name, spoken_differs(&ref, &said) + 1);
        }
        sum.seconds += answer.decode.seconds;
        sum.n_tokens += answer.decode.n_tokens;
        sum.n_hits += answer.decode.n_hits;
        sum.n_misses += answer.decode.n_misses;
    }
    spoken_free(&said);
    p->tok_per_s = sum.seconds > 0 ? (double)sum.n_tokens / sum.seconds : 0;
    p->hit_rate = counts_hit_rate(&sum);
    return rc;
}

static void keep_state(const struct runner *r, struct cliff_point *p)
{
    struct fm_stats stats = {.size = sizeof stats};
    fm_model_stats(r->model, &stats);
    p->n_slots = stats.n_cache_slots;
    p->n_shrinks = stats.n_shrinks;
    p->n_grows = stats.n_grows;
    p->peak_bytes = stats.memory_resident_peak_bytes;
}

/* Says why a point has no result. Returns 0 unless the command has to end. */
static int explain(const struct runner *r, struct cliff_point *p, int rc,
                   const struct fm_error *err)
{
    char floor[UNIT_BYTES], left[UNIT_BYTES];
    if (r->is_low) {
        p->is_stopped = true;
        (void)snprintf(p->why, sizeof p->why, "stopped in time: %s were free, and %s must stay "
                                              "free",
                       human_bytes(r->min_free_bytes, left), human_bytes(r->guard_bytes, floor));
        return 0;
    }
    if (rc == FM_ERR_BUDGET) {
        p->is_refused = true;
        (void)snprintf(p->why, sizeof p->why, "refused: %.240s", err->text);
        return 0;
    }
    return rc;
}

static int run_point(struct validation *v, struct cliff_point *p, uint64_t budget_bytes,
                     struct fm_error *err)
{
    struct runner r;
    char budget[UNIT_BYTES];
    (void)plat_resident_peak_reset(); /* then the peak is that of the whole run */
    *p = (struct cliff_point){.budget_bytes = budget_bytes, .is_same = true,
                              .free_bytes = plat_memory_available(), .min_free_bytes = UINT64_MAX};
    v->steps.total += 2 * pass_tokens(v);
    steps_part(&v->steps, "memory: a budget of %s", human_bytes(budget_bytes, budget));
    int rc = runner_open(&r, v, budget_bytes, err);
    r.guard_bytes = v->cliff.floor_bytes;
    for (unsigned pass = 0; rc == 0 && pass < 2 && !r.is_low; pass++) /* one fills the cache */
        rc = run_pass(&r, p, err);
    if (r.model != NULL && rc == 0)
        keep_state(&r, p);
    rc = rc != 0 || r.is_low ? explain(&r, p, rc, err) : 0;
    runner_close(&r);
    return rc;
}

/* ---- budgets past what is free --------------------------------------------------------------- */

static void find_cliff(struct cliff *c)
{
    double best = 0;
    for (unsigned i = 0; i < c->n && c->cliff_bytes == 0; i++) {
        const struct cliff_point *p = &c->points[i];
        if (p->is_stopped || (p->tok_per_s > 0 && p->tok_per_s < CLIFF_SHARE * best))
            c->cliff_bytes = p->budget_bytes;
        best = p->tok_per_s > best ? p->tok_per_s : best;
    }
}

static int raise_budget(struct validation *v, struct fm_error *err)
{
    struct cliff *c = &v->cliff;
    char whole[UNIT_BYTES], left[UNIT_BYTES];
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < N_SHARES && !validation_is_over(v); i++) {
        const uint64_t bytes = (uint64_t)(shares[i] * (double)c->free_bytes);
        if (bytes <= v->budgets.floor_bytes || bytes >= v->whole_bytes)
            continue;
        rc = run_point(v, &c->points[c->n], bytes, err);
        if (rc == 0 && (c->points[c->n].is_stopped || c->points[c->n].is_refused))
            i = N_SHARES; /* larger ones end likewise */
        c->n += rc == 0;
    }
    find_cliff(c);
    (void)human_bytes(v->whole_bytes, whole);
    (void)human_bytes(c->free_bytes, left);
    if (c->n == 0)
        (void)snprintf(c->note, sizeof c->note, "No cliff on this machine: the whole model takes "
                       "%s, and %s are free.", whole, left);
    else if (c->cliff_bytes == 0)
        (void)snprintf(c->note, sizeof c->note, "No cliff found: no budget is clearly slower than "
                       "a smaller one. The whole model takes %s, and %s were free.", whole, left);
    else
        (void)snprintf(c->note, sizeof c->note, "The whole model takes %s, and %s were free.",
                       whole, left);
    return rc;
}

/* ---- pressure -------------------------------------------------------------------------------- */

/* Returns what the other process is to take: so much that about half of the experts fit. */
static uint64_t wanted_hold(const struct validation *v, uint64_t free_bytes)
{
    const uint64_t max = args_uint(v->args, "pressure");
    const uint64_t keep = v->budgets.half_bytes + free_bytes / 10;
    const uint64_t hold = free_bytes > keep ? free_bytes - keep : free_bytes / 3;
    return max > 0 && hold > max ? max : hold;
}

static bool is_left_out(struct validation *v, uint64_t free_bytes)
{
    struct cliff *c = &v->cliff;
    char whole[UNIT_BYTES], left[UNIT_BYTES];
    if (args_given(v->args, "pressure"))
        return false;
    if (v->is_quick || args_flag(v->args, "no-pressure")) {
        (void)snprintf(c->pressure_note, sizeof c->pressure_note, "Left out with %s.",
                       v->is_quick ? "--quick; --pressure SIZE includes it" : "--no-pressure");
        return true;
    }
    if (v->whole_bytes >= free_bytes / SMALL_SHARE)
        return false;
    (void)snprintf(c->pressure_note, sizeof c->pressure_note,
                   "Left out: the model takes %s of %s that are free, so another process would "
                   "have "
                   "to take nearly all memory of this machine. --pressure SIZE allows so much.",
                   human_bytes(v->whole_bytes, whole), human_bytes(free_bytes, left));
    return true;
}

/* Decodes until the other process holds what it is to hold, or gets no more; or is gone. */
static int press(struct runner *r, struct holder *holder, uint64_t hold, struct cliff_point *p,
                 struct holder_report *report, struct fm_error *err)
{
    uint64_t last = 0;
    unsigned n_same = 0;
    int rc = 0;
    for (unsigned i = 0; rc == 0 && i < PASSES_MAX && n_same < 2 && !r->is_low; i++) {
        if (!holder_ask(holder, hold, report))
            return 0;
        p->held_bytes = report->held_bytes;
        if (i > 0 && report->held_bytes + HOLDER_PIECE_BYTES > hold)
            break;
        n_same = i > 0 && report->held_bytes <= last ? n_same + 1 : 0;
        last = report->held_bytes;
        rc = run_pass(r, p, err);
    }
    if (rc == 0 && !r->is_low)
        rc = run_pass(r, p, err);
    if (rc == 0 && holder_ask(holder, hold, report))
        p->held_bytes = report->held_bytes;
    return rc;
}

/* Records what the system killed. The other process is to be the first: then the model only has
 * no result. `is_there`: that process was alive after the kills were counted. */
static void judge_kills(struct validation *v, bool is_there, const struct holder_report *report)
{
    struct cliff *c = &v->cliff;
    char held[UNIT_BYTES], least[UNIT_BYTES];
    c->was_pressed &= is_there;
    if (!is_there) {
        (void)snprintf(c->pressure_note, sizeof c->pressure_note,
                       "Stopped: the other process, which held %s, was killed. The system kills "
                       "it first when memory runs out.", human_bytes(report->held_bytes, held));
        return;
    }
    if (c->n_kills > 0)
        validation_fail(v, &(struct failure){.token = -1, .layer = -1},
                        "under memory pressure: the system killed a process for lack of memory, "
                        "but not the one that took it");
    (void)snprintf(c->pressure_note, sizeof c->pressure_note,
                   "Another process took up to %s; the least that was free was %s. %s%s",
                   human_bytes(report->max_held_bytes, held),
                   human_bytes(c->during.min_free_bytes, least),
                   c->gave_back ? "It had to give memory back. " : "",
                   c->n_kills > 0 ? "The system killed a process for lack of memory."
                                  : "Nothing was killed.");
}

static int run_pressed(struct validation *v, struct holder *holder, uint64_t hold,
                       struct fm_error *err)
{
    struct cliff *c = &v->cliff;
    struct holder_report report = {0}, ignored;
    struct plat_pressure at_first = {0}, at_last = {0};
    struct runner r;
    (void)plat_memory_pressure(&at_first);
    c->before = (struct cliff_point){.is_same = true, .min_free_bytes = UINT64_MAX,
                                     .free_bytes = plat_memory_available()};
    c->during = c->before;
    int rc = runner_open(&r, v, 0, err);
    r.guard_bytes = floor_for_pressure(c->free_bytes) / 4;
    for (unsigned pass = 0; rc == 0 && pass < 2 && !r.is_low; pass++)
        rc = run_pass(&r, &c->before, err);
    if (rc == 0)
        keep_state(&r, &c->before);
    if (rc == 0)
        rc = press(&r, holder, hold, &c->during, &report, err);
    if (rc == 0)
        keep_state(&r, &c->during);
    if (report.max_held_bytes > 0 && report.min_free_bytes < c->during.min_free_bytes)
        c->during.min_free_bytes = report.min_free_bytes;
    rc = rc != 0 || r.is_low ? explain(&r, &c->during, rc, err) : 0;
    runner_close(&r);
    (void)plat_memory_pressure(&at_last);
    c->was_pressed = rc == 0;
    c->gave_back = report.gave_back;
    c->max_held_bytes = report.max_held_bytes;
    c->n_kills = at_last.n_kills - at_first.n_kills;
    if (rc == 0)
        judge_kills(v, holder_ask(holder, 0, &ignored), &report);
    return rc;
}

static int apply_pressure(struct validation *v, struct fm_error *err)
{
    struct cliff *c = &v->cliff;
    struct holder holder;
    const uint64_t free_bytes = plat_memory_available();
    char size[UNIT_BYTES];
    if (is_left_out(v, free_bytes))
        return 0;
    const uint64_t hold = wanted_hold(v, free_bytes);
    v->steps.total += 4 * pass_tokens(v);
    steps_part(&v->steps, "memory: another process takes up to %s", human_bytes(hold, size));
    int rc = holder_start(&holder, floor_for_pressure(free_bytes), err);
    if (rc == 0)
        rc = run_pressed(v, &holder, hold, err);
    holder_stop(&holder);
    if (rc == 0 || rc == FM_ERR_CANCELLED || rc == FM_ERR_NOMEM)
        return rc;
    validation_fail(v, &(struct failure){.token = -1, .layer = -1}, "under memory pressure: %.400s",
                    err->text);
    (void)snprintf(c->pressure_note, sizeof c->pressure_note, "Failed: %.300s", err->text);
    return 0;
}

int validate_cliff(struct validation *v, struct fm_error *err)
{
    struct cliff *c = &v->cliff;
    c->free_bytes = plat_memory_available();
    if (c->free_bytes == 0) {
        (void)snprintf(c->note, sizeof c->note, "Left out: this system does not say what is free.");
        (void)snprintf(c->pressure_note, sizeof c->pressure_note, "Left out likewise.");
        return 0;
    }
    c->floor_bytes = floor_for_budget(v, c->free_bytes);
    c->was_run = true;
    const int rc = raise_budget(v, err);
    return rc == 0 && !validation_is_over(v) ? apply_pressure(v, err) : rc;
}
