/* The results as text: for a terminal, as markdown, and the list of what would be run. */
#include <string.h>

#include "apps/bench/all.h"
#include "apps/bench/limit.h"

static bool has_other(const struct all *all)
{
    return all->programs[ALL_OTHER] != NULL;
}

/* ---- a terminal ------------------------------------------------------------------------------ */

static void print_machine(const struct all *all, FILE *out)
{
    const struct fm_machine_info *m = &all->machine;
    const struct all_facts *f = &all->facts;
    char total[UNIT_BYTES], dense[UNIT_BYTES], experts[UNIT_BYTES], text[QUIET_TEXT_BYTES];
    char memory[UNIT_BYTES * 2], disk[UNIT_BYTES * 2];
    double memories[ALL_ROUNDS_MAX], disks[ALL_ROUNDS_MAX];
    for (unsigned r = 0; r < all->n_rounds; r++) {
        memories[r] = all->memory_per_s[r] * 1e-9;
        disks[r] = all->disk_per_s[r] * 1e-9;
    }
    const struct all_spread memory_read = all_spread_of(memories, all->n_rounds);
    const struct all_spread disk_read = all_spread_of(disks, all->n_rounds);
    (void)fprintf(out, "model        %s, %s, %s: %s of dense weights, %s of experts\n", f->name,
                  f->container, f->architecture, human_bytes(f->dense_bytes, dense),
                  human_bytes(f->experts_bytes, experts));
    (void)fprintf(out, "processor    %s, %u cores, level %s\n",
                  m->processor[0] != '\0' ? m->processor : m->architecture, m->n_cores,
                  all->cpu_level);
    if (f->gpu[0] != '\0')
        (void)fprintf(out, "GPU          %s\n", f->gpu);
    (void)fprintf(out, "memory       %s, read at %s GB/s\n", human_bytes(m->memory_bytes, total),
                  all_spread_text(&memory_read, memory));
    (void)fprintf(out, "disk         read at %s GB/s\n", all_spread_text(&disk_read, disk));
    (void)fprintf(out, "machine      %s\n", quiet_text(&all->before, text));
}

static void print_row(const struct all *all, const struct all_case *one, FILE *out)
{
    const struct all_regime *regime = &all_regimes[one->regime];
    struct all_result r;
    char value[UNIT_BYTES * 2], limit[UNIT_BYTES * 2], share[UNIT_BYTES], extras[ALL_EXTRAS_BYTES];
    char mark[UNIT_BYTES * 2], ratio[UNIT_BYTES * 2];
    if (one->failed[0] != '\0' && !all_has_result(one)) {
        (void)fprintf(out, "  %-32s left out: %s\n", one->label, one->failed);
        return;
    }
    if (!all_has_result(one))
        return;
    all_result(all, one, &r);
    struct all_spread mid = r.limit;
    mid.n = r.limit.n > 0 ? 1 : 0; /* without its spread */
    (void)fprintf(out, "  %-32s %24s %-5s %8s of %8s  %-10s", one->label,
                  all_spread_text(&r.value[ALL_THIS], value), regime->unit,
                  all_share_text(&r, share), all_spread_text(&mid, limit), r.bound);
    if (has_other(all))
        (void)fprintf(out, " %24s x", all_spread_text(&r.ratio, ratio));
    (void)fprintf(out, " %s\n", all_mark_text(&r, mark));
    if (all_extras_text(regime, &r, extras)[0] != '\0')
        (void)fprintf(out, "  %-32s %s\n", "", extras);
    if (one->differs)
        (void)fprintf(out, "  %-32s THE LOGITS DIFFER BETWEEN RUNS: a fault\n", "");
    if (one->failed[0] != '\0')
        (void)fprintf(out, "  %-32s ended early: %s\n", "", one->failed);
}

static bool has_case(const struct all *all, unsigned regime)
{
    bool has = false;
    for (unsigned i = 0; i < all->n_cases; i++)
        has |= all->cases[i].regime == regime;
    return has;
}

void all_print(const struct all *all, FILE *out)
{
    char took[UNIT_BYTES];
    print_machine(all, out);
    (void)fprintf(out, "rounds       %u of %u, %s%s\n", all->n_rounds, all->n_repeat,
                  human_seconds(all->seconds, took),
                  all->is_cut ? "; interrupted: what was measured until then" : "");
    if (has_other(all))
        (void)fprintf(out, "in turns     %s, and the other program, %s; x: this over the other\n",
                      all->versions[ALL_THIS], all->versions[ALL_OTHER]);
    for (unsigned i = 0; all_regimes[i].name != NULL; i++) {
        if (!all->is_chosen[i])
            continue;
        (void)fprintf(out, "\n%s: %s\n", all_regimes[i].name, all_regimes[i].title);
        for (unsigned k = 0; k < all->n_cases; k++)
            if (all->cases[k].regime == i)
                print_row(all, &all->cases[k], out);
        if (all->left_out[i][0] != '\0')
            (void)fprintf(out, "  %s: %s\n", has_case(all, i) ? "partly left out" : "left out",
                          all->left_out[i]);
    }
    (void)fprintf(out, "\nFigures are medians with the lowest and highest round, and the share of "
                  "the limit that\nthe same run measured. busy: other programs used the machine. "
                  "above the limit: %s.\n", LIMIT_EXCEEDED_WHY);
}

/* ---- markdown -------------------------------------------------------------------------------- */

static void put_cell(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        (void)fprintf(out, *text == '|' ? "\\|" : *text == '\n' ? " " : "%c", *text);
    (void)fputs(" |", out);
}

static void put_row(const struct all *all, const struct all_case *one, FILE *out)
{
    const struct all_regime *regime = &all_regimes[one->regime];
    struct all_result r;
    char value[UNIT_BYTES * 2], limit[UNIT_BYTES * 2], share[UNIT_BYTES], extras[ALL_EXTRAS_BYTES];
    char mark[UNIT_BYTES * 2], text[ALL_EXTRAS_BYTES];
    all_result(all, one, &r);
    struct all_spread mid = r.limit;
    mid.n = r.limit.n > 0 ? 1 : 0;
    (void)fputs("| ", out);
    put_cell(out, one->label);
    (void)snprintf(text, sizeof text, " %s %s", all_spread_text(&r.value[ALL_THIS], value),
                   regime->unit);
    put_cell(out, text);
    (void)snprintf(text, sizeof text, " %s%s%s", all_spread_text(&mid, limit),
                   r.bound[0] != '\0' ? ", " : "", r.bound);
    put_cell(out, text);
    (void)snprintf(text, sizeof text, " %s", all_share_text(&r, share));
    put_cell(out, text);
    if (has_other(all)) {
        (void)snprintf(text, sizeof text, " %s", all_spread_text(&r.ratio, value));
        put_cell(out, text);
    }
    (void)all_extras_text(regime, &r, extras);
    (void)all_mark_text(&r, mark);
    (void)snprintf(text, sizeof text, " %.150s%s%s", extras,
                   extras[0] != '\0' && mark[0] != '\0' ? "; " : "", mark);
    put_cell(out, text);
    (void)fputc('\n', out);
}

void all_markdown(const struct all *all, FILE *out)
{
    char why[ALL_WHY_BYTES];
    (void)fprintf(out, "# %s: flashmoe bench all\n\n```\n", all->facts.name);
    print_machine(all, out);
    (void)fprintf(out, "```\n\nMedians of %u round%s with the lowest and highest.%s%s\n",
                  all->n_rounds, all->n_rounds == 1 ? "" : "s",
                  all->is_quick ? " A quick run." : "",
                  all->is_cut ? " Interrupted: what was measured until then." : "");
    for (unsigned i = 0; all_regimes[i].name != NULL; i++) {
        bool has_any = false;
        if (!all->is_chosen[i])
            continue;
        (void)fprintf(out, "\n## %s\n", all_regimes[i].title);
        for (unsigned k = 0; k < all->n_cases; k++) {
            const struct all_case *one = &all->cases[k];
            if (one->regime != i || !all_has_result(one))
                continue;
            if (!has_any)
                (void)fprintf(out, "\n| | speed | limit | share |%s |\n|---|---|---|---|%s---|\n",
                              has_other(all) ? " over the other |" : "",
                              has_other(all) ? "---|" : "");
            has_any = true;
            put_row(all, one, out);
        }
        for (unsigned k = 0; k < all->n_cases; k++)
            if (all->cases[k].regime == i && all->cases[k].failed[0] != '\0')
                (void)fprintf(out, "\nLeft out: %s: %s\n", all->cases[k].label,
                              all_public_text(all, all->cases[k].failed, why));
        if (all->left_out[i][0] != '\0')
            (void)fprintf(out, "\nLeft out: %s\n", all->left_out[i]);
    }
}

/* ---- the list -------------------------------------------------------------------------------- */

void all_list(const struct all *all, FILE *out)
{
    char command[ALL_COMMAND_BYTES];
    for (unsigned i = 0; all_regimes[i].name != NULL; i++) {
        if (!all->is_chosen[i])
            continue;
        (void)fprintf(out, "%s%s: %s\n", i > 0 ? "\n" : "", all_regimes[i].name,
                      all_regimes[i].what);
        for (unsigned k = 0; k < all->n_cases; k++)
            if (all->cases[k].regime == i)
                (void)fprintf(out, "  %-32s %s\n", all->cases[k].label,
                              all_command(all, &all->cases[k], command));
        if (all->left_out[i][0] != '\0')
            (void)fprintf(out, "  %s: %s\n", has_case(all, i) ? "partly left out" : "left out",
                          all->left_out[i]);
    }
}
