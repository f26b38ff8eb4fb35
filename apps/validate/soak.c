/* Long work at the smallest budget: an answer of a thousand tokens, and resets. */
#include <stdio.h>
#include <string.h>

#include "apps/cli/interrupt.h"
#include "apps/validate/validate.h"
#include "base/plat.h"

/* Memory that may be taken between the first cycles and the last without being a leak: what an
 * allocator keeps. */
#define FLAT_SHARE 0.01
#define FLAT_BYTES (1u << 20)
#define LONG_PROMPT 0 /* English prose */

/* ---- the long answer ------------------------------------------------------------------------- */

struct profiler {
    struct validation *v;
    uint64_t n_tokens;
};

static void add_times(void *ctx, const struct fm_layer_profile *l)
{
    struct profiler *p = ctx;
    if (l->layer > VALIDATE_LAYERS || l->n_tokens != 1)
        return;
    struct layer_times *t = &p->v->layers[l->layer];
    t->mix_ms += (double)l->mix_ns * 1e-6;
    t->route_ms += (double)l->route_ns * 1e-6;
    t->wait_ms += (double)l->wait_ns * 1e-6;
    t->compute_ms += (double)l->compute_ns * 1e-6;
    t->hits += (double)l->n_hits;
    t->misses += (double)l->n_misses;
    p->n_tokens += l->layer == 0;
}

static void finish_times(const struct profiler *p)
{
    for (unsigned i = 0; p->n_tokens > 0 && i < p->v->n_layers; i++) {
        struct layer_times *t = &p->v->layers[i];
        const double n = (double)p->n_tokens;
        *t = (struct layer_times){t->mix_ms / n, t->route_ms / n, t->wait_ms / n,
                                  t->compute_ms / n, t->hits / n, t->misses / n};
    }
}

static void see_progress(struct long_run *l, unsigned k, unsigned token, uint64_t *since_ns,
                         unsigned *since)
{
    const unsigned window = token * l->n_windows / l->n_tokens;
    const unsigned next = (token + 1) * l->n_windows / l->n_tokens;
    if (next == window)
        return;
    const uint64_t now_ns = plat_now_ns();
    l->tok_per_s[k][window] = per_second(token + 1 - *since, now_ns - *since_ns);
    l->resident_bytes[k][window] = (double)plat_resident_bytes();
    *since_ns = now_ns;
    *since = token + 1;
}

static int speak_long(struct runner *r, unsigned k, struct spoken *said, struct fm_error *err)
{
    struct long_run *l = &r->v->long_run;
    const unsigned topic = r->v->references[LONG_PROMPT].topic;
    unsigned since = 0;
    int rc = fm_session_eval(r->topics.session, r->topics.openings[topic].ids,
                             r->topics.openings[topic].n_ids, err);
    uint64_t since_ns = plat_now_ns();
    const uint64_t begin_ns = since_ns;
    if (rc == 0)
        fm_session_logits_hash(r->topics.session, said->hashes[0]);
    for (unsigned i = 0; rc == 0 && i < l->n_tokens; i++) {
        rc = topics_pick(&r->topics, &said->ids[i], err);
        if (rc == 0)
            rc = interrupt_seen() ? FM_ERR_CANCELLED
                                  : fm_session_eval(r->topics.session, &said->ids[i], 1, err);
        fm_session_logits_hash(r->topics.session, said->hashes[i + 1]);
        see_progress(l, k, i, &since_ns, &since);
        steps_add(&r->v->steps, 1);
    }
    l->seconds[k] = (double)(plat_now_ns() - begin_ns) * 1e-9;
    return rc;
}

static int run_long(struct validation *v, unsigned k, struct spoken *said, struct fm_error *err)
{
    struct long_run *l = &v->long_run;
    struct profiler profiler = {.v = v};
    struct runner r;
    char budget[UNIT_BYTES];
    const bool profiles = k == 0; /* at the smallest budget */
    steps_part(&v->steps, "an answer of %u tokens at %s", l->n_tokens,
               human_bytes(l->budget_bytes[k], budget));
    int rc = runner_open(&r, v, l->budget_bytes[k], err);
    const struct fm_observer observer = {.size = sizeof observer, .ctx = &profiler,
                                         .profile = add_times};
    if (rc == 0 && profiles)
        fm_session_observe(r.topics.session, &observer);
    if (rc == 0)
        rc = speak_long(&r, k, said, err);
    if (rc == 0 && profiles)
        finish_times(&profiler);
    if (rc != 0 && rc != FM_ERR_CANCELLED && r.topics.session != NULL) {
        validation_fail(v, &(struct failure){.budget_bytes = l->budget_bytes[k], .token = -1,
                                             .layer = fm_session_failure(r.topics.session)->layer},
                        "at %s, an answer of %u tokens: %.400s",
                        human_bytes(l->budget_bytes[k], budget), l->n_tokens, err->text);
        rc = FM_ERR_IO;
    }
    runner_close(&r);
    return rc;
}

int validate_long_run(struct validation *v, struct fm_error *err)
{
    struct long_run *l = &v->long_run;
    struct spoken said[2] = {{0}, {0}};
    const unsigned n_failures = v->n_failures;
    const unsigned room = v->n_context - (unsigned)v->references[LONG_PROMPT].n_prompt;
    l->n_tokens = v->n_long < room ? v->n_long : room;
    l->n_windows = l->n_tokens < VALIDATE_WINDOWS ? l->n_tokens : VALIDATE_WINDOWS;
    l->budget_bytes[0] = v->budgets.bytes[0];
    l->budget_bytes[1] = v->budgets.bytes[v->budgets.n - 1];
    v->layers_budget_bytes = l->budget_bytes[0];
    int rc = 0;
    for (unsigned k = 0; rc == 0 && k < 2; k++)
        rc = spoken_new(&said[k], l->n_tokens, err);
    for (unsigned k = 2; rc == 0 && k-- > 0;)
        rc = run_long(v, k, &said[k], err);
    if (rc == 0) {
        const int token = spoken_differs(&said[1], &said[0]);
        char small[UNIT_BYTES], large[UNIT_BYTES];
        l->was_run = true;
        l->is_same = token < 0;
        if (token >= 0)
            validation_fail(v, &(struct failure){.budget_bytes = l->budget_bytes[0],
                                                 .prompt = v->references[LONG_PROMPT].name,
                                                 .token = token, .layer = -1},
                            "at %s, an answer of %u tokens: token %d differs from the one at %s",
                            human_bytes(l->budget_bytes[0], small), l->n_tokens, token + 1,
                            human_bytes(l->budget_bytes[1], large));
    }
    spoken_free(&said[0]);
    spoken_free(&said[1]);
    return v->n_failures > n_failures && rc != FM_ERR_CANCELLED ? 0 : rc;
}

/* ---- resets ---------------------------------------------------------------------------------- */

/* Compares the last third with the second: the first cycles fill the cache. */
static bool is_flat(const struct cycles *c)
{
    const unsigned third = c->n / 3;
    uint64_t early = 0, late = 0;
    for (unsigned i = third; i < c->n; i++) {
        uint64_t *to = i < 2 * third ? &early : &late;
        *to = c->resident_bytes[i] > *to ? c->resident_bytes[i] : *to;
    }
    return third == 0 || (double)late <= (1 + FLAT_SHARE) * (double)early + FLAT_BYTES;
}

static int run_cycles(struct runner *r, struct spoken *said, struct fm_error *err)
{
    struct validation *v = r->v;
    struct cycles *c = &v->cycles;
    const struct spoken ref = reference_spoken(v, 0);
    char budget[UNIT_BYTES];
    int rc = 0;
    c->is_same = true;
    for (unsigned i = 0; rc == 0 && i < c->n; i++) {
        struct answer ignored;
        rc = runner_answer(r, 0, said, &ignored, err);
        c->resident_bytes[i] = plat_resident_bytes();
        const int token = rc == 0 ? spoken_differs(&ref, said) : -1;
        if (token < 0 || !c->is_same)
            continue;
        c->is_same = false;
        validation_fail(v, &(struct failure){.budget_bytes = c->budget_bytes, .token = token,
                                             .layer = -1, .prompt = v->references[0].name},
                        "at %s, after reset %u of %u: token %d of prompt '%s' differs",
                        human_bytes(c->budget_bytes, budget), i + 1, c->n, token + 1,
                        v->references[0].name);
    }
    return rc;
}

int validate_cycles(struct validation *v, struct fm_error *err)
{
    struct cycles *c = &v->cycles;
    struct spoken said;
    struct runner r = {0};
    c->budget_bytes = v->budgets.bytes[0];
    c->n = v->n_cycles;
    steps_part(&v->steps, "%u resets", c->n);
    int rc = spoken_new(&said, v->n_tokens, err);
    if (rc == 0)
        rc = runner_open(&r, v, c->budget_bytes, err);
    if (rc == 0)
        rc = run_cycles(&r, &said, err);
    c->was_run = rc == 0;
    if (rc == 0) {
        c->is_flat = is_flat(c);
        if (!c->is_flat)
            validation_fail(v, &(struct failure){.budget_bytes = c->budget_bytes, .token = -1,
                                                 .layer = -1},
                            "memory grew over %u resets: %.1f MiB after the first third, %.1f MiB "
                            "at the end", c->n, (double)c->resident_bytes[c->n / 3] / 0x1p20,
                            (double)c->resident_bytes[c->n - 1] / 0x1p20);
    } else if (rc != FM_ERR_CANCELLED && r.topics.session != NULL) {
        validation_fail(v, &(struct failure){.budget_bytes = c->budget_bytes, .token = -1,
                                             .layer = fm_session_failure(r.topics.session)->layer},
                        "resets: %.440s", err->text);
        rc = 0;
    }
    runner_close(&r);
    spoken_free(&said);
    return rc;
}
