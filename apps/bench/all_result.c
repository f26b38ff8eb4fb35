/* What the rounds give together, and how figures are written. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench/all.h"
#include "base/limits.h"
#include "base/path.h"
#include "base/plat.h"

bool all_is_less_better(const struct all_regime *regime)
{
    return strcmp(regime->unit, "s") == 0;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct all_spread all_spread_of(const double *values, unsigned n)
{
    double sorted[ALL_ROUNDS_MAX];
    struct all_spread s = {.median = NAN, .min = NAN, .max = NAN};
    for (unsigned i = 0; i < n; i++)
        if (isfinite(values[i]))
            sorted[s.n++] = values[i];
    if (s.n == 0)
        return s;
    qsort(sorted, s.n, sizeof sorted[0], compare_doubles);
    s.median = (sorted[(s.n - 1) / 2] + sorted[s.n / 2]) / 2;
    s.min = sorted[0];
    s.max = sorted[s.n - 1];
    return s;
}

bool all_has_result(const struct all_case *one)
{
    bool has = false;
    for (unsigned r = 0; r < ALL_ROUNDS_MAX; r++)
        has |= one->runs[ALL_THIS][r].was_run;
    return has;
}

/* Returns what binds the run that is closest to the median. */
static const char *bound_of(const struct all *all, const struct all_case *one, double median)
{
    const struct all_run *best = NULL;
    for (unsigned r = 0; r < all->n_rounds; r++) {
        const struct all_run *run = &one->runs[ALL_THIS][r];
        if (run->was_run &&
            (best == NULL || fabs(run->value - median) < fabs(best->value - median)))
            best = run;
    }
    return best != NULL ? best->bound : "";
}

void all_result(const struct all *all, const struct all_case *one, struct all_result *out)
{
    const bool is_less = all_is_less_better(&all_regimes[one->regime]);
    double values[ALL_PROGRAMS][ALL_ROUNDS_MAX], ratios[ALL_ROUNDS_MAX], limits[ALL_ROUNDS_MAX];
    double percents[ALL_ROUNDS_MAX], extras[ALL_EXTRAS][ALL_ROUNDS_MAX];
    *out = (struct all_result){.bound = ""};
    for (unsigned r = 0; r < all->n_rounds; r++) {
        const struct all_run *run = &one->runs[ALL_THIS][r], *other = &one->runs[ALL_OTHER][r];
        values[ALL_THIS][r] = run->was_run ? run->value : NAN;
        values[ALL_OTHER][r] = other->was_run ? other->value : NAN;
        ratios[r] = is_less ? values[ALL_OTHER][r] / values[ALL_THIS][r]
                            : values[ALL_THIS][r] / values[ALL_OTHER][r];
        limits[r] = run->was_run ? run->limit : NAN;
        percents[r] = run->was_run ? run->percent : NAN;
        for (unsigned i = 0; i < ALL_EXTRAS; i++)
            extras[i][r] = run->was_run ? run->extras[i] : NAN;
        out->n_runs += run->was_run;
        out->n_busy += run->was_run && run->quiet.is_known && !run->quiet.is_quiet;
        out->n_unknown += run->was_run && !run->quiet.is_known;
        out->n_exceeded += run->was_run && run->is_exceeded;
    }
    for (unsigned p = 0; p < ALL_PROGRAMS; p++)
        out->value[p] = all_spread_of(values[p], all->n_rounds);
    out->ratio = all_spread_of(ratios, all->n_rounds);
    out->limit = all_spread_of(limits, all->n_rounds);
    out->percent = all_spread_of(percents, all->n_rounds);
    for (unsigned i = 0; i < ALL_EXTRAS; i++)
        out->extras[i] = all_spread_of(extras[i], all->n_rounds);
    out->bound = bound_of(all, one, out->value[ALL_THIS].median);
}

/* ---- text ------------------------------------------------------------------------------------ */

const char *all_command(const struct all *all, const struct all_case *one,
                        char text[ALL_COMMAND_BYTES])
{
    size_t at = (size_t)snprintf(text, ALL_COMMAND_BYTES, "flashmoe");
    for (unsigned i = 0; i < one->n_words && at < ALL_COMMAND_BYTES; i++) {
        const char *word = one->words[i];
        if (word == all->model)
            word = "MODEL";
        else if (word == all->packed)
            word = "PACKED";
        else if (word == all->heat_path)
            word = "HEAT";
        else if (word == args_text(all->args, "routes"))
            word = path_base(word); /* a recording */
        if (strcmp(word, "--json") != 0 && strcmp(word, "-q") != 0)
            at += (size_t)snprintf(text + at, ALL_COMMAND_BYTES - at, " %s", word);
    }
    return text;
}

/* Returns how many bytes at the start of `text` are this path: all of it, before a file in it or
 * before the end of a word. */
static size_t path_at(const char *text, const char *path)
{
    const size_t n = path != NULL ? strlen(path) : 0;
    return n > 0 && strncmp(text, path, n) == 0 && strchr("/'\" ,:;)", text[n]) != NULL ? n : 0;
}

/* Returns the bytes of the path of one of the programs' files at the start of `text`, and the word
 * that stands for it; 0 if there is none. */
static size_t known_at(const struct all *all, const char *text, const char **word)
{
    const char *routes = args_text(all->args, "routes");
    char model[LIMIT_PATH_BYTES] = "", packed[LIMIT_PATH_BYTES] = "";
    if (!plat_real_path(all->model, model))
        model[0] = '\0';
    if (all->packed == NULL || !plat_real_path(all->packed, packed))
        packed[0] = '\0';
    const struct {
        const char *path, *word;
    } known[] = {{all->model, "MODEL"}, {model, "MODEL"}, {all->packed, "PACKED"},
                 {packed, "PACKED"}, {all->heat_path, "HEAT"},
                 {routes, routes != NULL ? path_base(routes) : ""}};
    size_t best = 0;
    for (unsigned i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t n = path_at(text, known[i].path);
        if (n > best)
            *word = known[i].word;
        best = n > best ? n : best;
    }
    return best;
}

/* Returns the bytes before the last name of the path at the start of `text`; 0 if there is no path.
 * After a quote, which is '\0' without one, it may have blanks, and a folder need not be marked. */
static size_t folders_at(const char *text, char quote)
{
    const char end[] = {quote, '\0'};
    const size_t n = strcspn(text, quote != '\0' ? end : "'\" ,:;)");
    size_t last = 0;
    for (size_t i = 0; i + 1 < n; i++)
        last = text[i] == '/' ? i + 1 : last;
    const bool is_marked = text[0] == '/' || strncmp(text, "~/", 2) == 0 ||
                           strncmp(text, "./", 2) == 0 || strncmp(text, "../", 3) == 0;
    return quote != '\0' || is_marked ? last : 0;
}

const char *all_public_text(const struct all *all, const char *message, char text[ALL_WHY_BYTES])
{
    size_t at = 0;
    char quote = '\0'; /* that is open */
    bool is_start = true; /* of a word */
    while (*message != '\0' && at + 1 < ALL_WHY_BYTES) {
        const char *word = "";
        const char c = *message;
        size_t n = is_start ? known_at(all, message, &word) : 0;
        if (is_start && n == 0)
            n = folders_at(message, quote);
        if (n > 0) {
            const int bytes = snprintf(text + at, ALL_WHY_BYTES - at, "%s", word);
            at += bytes > 0 ? (size_t)bytes : 0;
            message += n;
            is_start = false;
            continue;
        }
        const bool opens = (c == '\'' || c == '"') && quote == '\0' && is_start;
        is_start = opens || (quote == '\0' && strchr(" (=,:[", c) != NULL);
        quote = opens ? c : c == quote ? '\0' : quote;
        text[at++] = c;
        message++;
    }
    text[at < ALL_WHY_BYTES ? at : ALL_WHY_BYTES - 1] = '\0';
    return text;
}

/* Writes three digits, or all digits before the point. */
static void put_figure(double x, char *text, size_t bytes)
{
    (void)snprintf(text, bytes, x >= 99.95 ? "%.0f" : x >= 9.995 ? "%.1f" : "%.2f", x);
}

const char *all_spread_text(const struct all_spread *s, char text[UNIT_BYTES * 2])
{
    char median[UNIT_BYTES / 2], min[UNIT_BYTES / 2], max[UNIT_BYTES / 2];
    put_figure(s->median, median, sizeof median);
    put_figure(s->min, min, sizeof min);
    put_figure(s->max, max, sizeof max);
    if (s->n == 0)
        (void)snprintf(text, UNIT_BYTES * 2, "-");
    else if (s->n == 1)
        (void)snprintf(text, UNIT_BYTES * 2, "%s", median);
    else
        (void)snprintf(text, UNIT_BYTES * 2, "%s (%s to %s)", median, min, max);
    return text;
}

const char *all_extras_text(const struct all_regime *regime, const struct all_result *result,
                            char text[ALL_EXTRAS_BYTES])
{
    size_t at = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < ALL_EXTRAS && at < ALL_EXTRAS_BYTES; i++) {
        const struct all_extra *e = &regime->extras[i];
        char figure[UNIT_BYTES / 2];
        if (e->name == NULL || result->extras[i].n == 0)
            continue;
        put_figure(e->factor * result->extras[i].median, figure, sizeof figure);
        at += (size_t)snprintf(text + at, ALL_EXTRAS_BYTES - at, "%s%s %s%s%s",
                               at > 0 ? ", " : "", e->name, figure, e->unit[0] != '\0' ? " " : "",
                               e->unit);
    }
    return text;
}

const char *all_share_text(const struct all_result *result, char text[UNIT_BYTES])
{
    if (result->percent.n > 0)
        (void)snprintf(text, UNIT_BYTES, "%.1f %%", result->percent.median);
    else
        (void)snprintf(text, UNIT_BYTES, "%s", result->n_exceeded > 0 ? "above" : "-");
    return text;
}

const char *all_mark_text(const struct all_result *result, char text[UNIT_BYTES * 2])
{
    size_t at = 0;
    text[0] = '\0';
    if (result->n_busy > 0)
        at = (size_t)snprintf(text, UNIT_BYTES * 2, "busy in %u of %u", result->n_busy,
                              result->n_runs);
    if (result->n_exceeded > 0)
        (void)snprintf(text + at, UNIT_BYTES * 2 - at, "%sabove the limit in %u of %u",
                       at > 0 ? ", " : "", result->n_exceeded, result->n_runs);
    return text;
}
