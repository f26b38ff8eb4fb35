/* The results as a table on standard output. */
#include <stdio.h>

#include "apps/validate/validate.h"

static void print_point(const struct validation *v, const struct point *p)
{
    const struct counts first = point_sum(v, p, AFTER_OPENING, true);
    const struct counts fresh = point_sum(v, p, AFTER_OPENING, false);
    const struct counts later = point_sum(v, p, AFTER_SWITCH, false);
    const struct limit *limit = &p->limits[AFTER_SWITCH];
    unsigned n_same = 0, n = 0;
    char budget[UNIT_BYTES], share[UNIT_BYTES] = "-";
    for (unsigned i = 0; i < v->n_prompts; i++)
        for (unsigned after = 0; after < N_AFTER; after++) {
            n += p->answers[i][after].was_run;
            n_same += p->answers[i][after].is_same;
        }
    if (limit->max_per_s > 0 && limit->tok_per_s > 0)
        (void)snprintf(share, sizeof share, limit->is_exceeded ? "busy" : "%.0f", limit->percent);
    (void)printf("%11s%4u of %-3u%10.2f%10.2f%10.1f%10.1f%8.1f%10.3f%9s\n",
                 human_bytes(p->budget_bytes, budget), n_same, n, point_open_s(v, p),
                 first.seconds / v->n_prompts,
                 fresh.seconds > 0 ? (double)fresh.n_tokens / fresh.seconds : 0,
                 later.seconds > 0 ? (double)later.n_tokens / later.seconds : 0,
                 100 * counts_hit_rate(&later),
                 later.n_tokens > 0 ? (double)later.bytes_read / (double)later.n_tokens * 1e-6 : 0,
                 share);
}

static void print_soak(const struct validation *v)
{
    const struct long_run *l = &v->long_run;
    const struct cycles *c = &v->cycles;
    char memory[UNIT_BYTES];
    if (l->was_run)
        (void)printf("long answer  %u tokens: %s at both budgets, %.1f and %.1f tok/s\n",
                     l->n_tokens, l->is_same ? "the same" : "NOT the same",
                     l->n_tokens / l->seconds[0],
                     l->n_tokens / l->seconds[1]);
    if (c->was_run)
        (void)printf("resets       %u: %s, memory %s (%s)\n", c->n,
                     c->is_same ? "the same" : "NOT the same", c->is_flat ? "flat" : "GROWS",
                     human_bytes(c->resident_bytes[c->n - 1], memory));
    if (v->cliff.note[0] != '\0')
        (void)printf("memory       %s\n", v->cliff.note);
    if (v->cliff.pressure_note[0] != '\0')
        (void)printf("pressure     %s\n", v->cliff.pressure_note);
}

void validation_print(const struct validation *v)
{
    bool is_any = false;
    for (unsigned n = 0; n < v->budgets.n; n++) {
        if (!v->points[n].answers[0][0].was_run)
            continue;
        if (!is_any)
            (void)printf("%11s%11s%10s%10s%10s%10s%8s%10s%9s\n%11s%11s%10s%10s%10s%10s%8s%10s%9s\n",
                         "budget", "same", "open", "first", "tok/s", "tok/s", "hits", "MB/token",
                         "of limit", "", "answers", "s", "s", "fresh", "switched", "in %", "read",
                         "in %");
        is_any = true;
        print_point(v, &v->points[n]);
    }
    (void)printf(is_any ? "\n" : "");
    if (v->files.has_checksums)
        (void)printf("files        %llu experts, %llu tensors: %llu damaged\n",
                     (unsigned long long)v->files.n_experts,
                     (unsigned long long)v->files.n_tensors, (unsigned long long)v->files.n_bad);
    else
        (void)printf("files        no checksums\n");
    print_soak(v);
    if (v->against.n_compared > 0)
        (void)printf("against      %u prompts of '%s'\n", v->against.n_compared, v->against.path);
    for (unsigned i = 0; i < v->n_failures; i++)
        (void)printf("FAILED       %s\n", v->failures[i].text);
    (void)printf("verdict      %s\n", v->n_failures == 0 ? "passed" : "failed");
}
