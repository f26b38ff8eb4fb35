#include "apps/bench/as_asked.h"

#include <stdio.h>

#include "apps/cli/term.h"

/* Returns the seconds of a layer that misses n experts of so many bytes: measured for one and for
 * two, and at the disk's full speed for each further one. */
static double seconds_of(double n, double bytes, const struct fm_disk_speeds *disk)
{
    const double one_s = bytes / disk->one.median, two_s = 2 * bytes / disk->two.median;
    if (n > 2)
        return two_s + (n - 2) * bytes / disk->read.median;
    return two_s > one_s ? one_s + (n - 1) * (two_s - one_s) : one_s;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

void as_asked_of(const struct fm_stats *before, const struct fm_stats *after,
                 const struct fm_disk_speeds *disk, const struct limit *limit,
                 struct as_asked *asked)
{
    const double n_tokens = (double)(after->n_decode_tokens - before->n_decode_tokens);
    const double n_misses = (double)(after->n_expert_misses - before->n_expert_misses);
    const double n_layers = (double)(after->n_layers_read - before->n_layers_read);
    const bool has_guessed = after->n_guesses != before->n_guesses;
    *asked = (struct as_asked){0};
    if (n_tokens <= 0 || n_layers <= 0 || has_guessed || limit->max_per_s <= 0 ||
        disk->one.median <= 0 || disk->two.median <= 0 || disk->read.median <= 0)
        return;
    asked->n_layers = n_layers / n_tokens;
    asked->n_experts = n_misses / n_layers;
    const double layer_s = seconds_of(asked->n_experts, (double)disk->expert_bytes, disk);
    asked->disk_per_s = asked->n_experts * (double)disk->expert_bytes / layer_s;
    asked->io_s = asked->n_layers * layer_s;
    asked->max_per_s = 1 / larger(asked->io_s, 1 / limit->max_per_s);
    const double percent = 100 * limit->tok_per_s / asked->max_per_s;
    asked->percent = limit_is_exceeded(percent) ? 0 : percent;
}

json_t *as_asked_json(const struct as_asked *asked)
{
    if (asked->max_per_s <= 0)
        return json_null();
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:o}", "layers_per_token", asked->n_layers,
                     "experts_per_layer", asked->n_experts, "disk_bytes_per_s", asked->disk_per_s,
                     "t_io_s", asked->io_s, "tok_per_s", asked->max_per_s, "percent",
                     asked->percent > 0 ? json_real(asked->percent) : json_null());
}

const char *as_asked_text(const struct as_asked *asked, char text[AS_ASKED_BYTES])
{
    char share[32] = "", rate[UNIT_BYTES];
    if (asked->percent > 0)
        (void)snprintf(share, sizeof share, "%.1f%% of ", asked->percent);
    (void)snprintf(text, AS_ASKED_BYTES, "%s%.2f tok/s: %.1f layers per token read %.1f experts "
                   "each, which the disk gives at %s (%.3g ms)", share, asked->max_per_s,
                   asked->n_layers, asked->n_experts, human_rate(asked->disk_per_s, rate),
                   1e3 * asked->io_s);
    return text;
}
