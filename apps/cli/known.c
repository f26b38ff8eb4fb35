#include "apps/cli/known.h"

#include <stdio.h>
#include <string.h>

#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define ONE_MORE ((uint64_t)1 << 30)

static const double shares[KNOWN_POINTS] = {0.125, 0.25, 0.5, 0.75, 1};

static uint64_t n_all_experts(const struct known *known)
{
    return (uint64_t)known->info.n_experts * known->info.n_moe_layers;
}

static void take_point(const struct known *known, const struct fm_model *model,
                       uint64_t cache_bytes, struct known_point *point)
{
    unsigned n_slots;
    const double hit_rate = fm_model_hit_rate(model, cache_bytes, &n_slots);
    *point = (struct known_point){.cache_bytes = cache_bytes, .hit_rate = hit_rate};
    if (n_slots == 0)
        return;
    point->n_slots = n_slots;
    point->share = (double)n_slots / (double)n_all_experts(known);
}

void known_take(struct known *known, const struct fm_model *model, const struct fm_stats *before,
                double first_position)
{
    *known = (struct known){.before = *before, .first_position = first_position};
    known->after.size = sizeof known->after;
    fm_model_stats(model, &known->after);
    known->info.size = sizeof known->info;
    fm_model_info(model, &known->info);
    const uint64_t n_slots = known->after.n_cache_slots;
    const uint64_t cache_bytes = known->after.memory_cache_bytes;
    known->is_resident = n_slots >= n_all_experts(known);
    take_point(known, model, cache_bytes, &known->now);
    take_point(known, model, cache_bytes + ONE_MORE, &known->more);
    for (unsigned i = 0; i < KNOWN_POINTS && n_slots > 0; i++) /* nearly all bytes are slots */
        take_point(known, model,
                   (uint64_t)((double)cache_bytes * shares[i] * (double)n_all_experts(known) /
                              (double)n_slots), &known->points[i]);
    known->has_curve = n_slots > 0 && known->now.hit_rate >= 0 &&
                       known->after.n_decode_tokens > before->n_decode_tokens;
    known->curve_hit_rate = known->now.hit_rate;
}

static void finish_point(const struct known *known, double miss_rate, struct known_point *point)
{
    if (!known->has_curve)
        return;
    double miss = miss_rate + known->curve_hit_rate - point->hit_rate;
    miss = miss < 0 ? 0 : miss > 1 ? 1 : miss;
    struct limit_load load = known->limit.load;
    load.miss_bytes = miss * load.expert_bytes;
    point->hit_rate = 1 - miss;
    limit_of(&load, 0, &point->limit);
}

void known_finish(struct known *known, double disk_per_s, double memory_per_s)
{
    limit_between(&known->before, &known->after, &known->info, known->first_position, disk_per_s,
                  memory_per_s, &known->limit);
    const struct limit_load *load = &known->limit.load;
    const double miss = load->expert_bytes > 0 ? load->miss_bytes / load->expert_bytes : 0;
    finish_point(known, miss, &known->more);
    for (unsigned i = 0; i < KNOWN_POINTS; i++)
        finish_point(known, miss, &known->points[i]);
    finish_point(known, miss, &known->now);
}

void known_set_speed(struct known *known, double tok_per_s)
{
    const struct limit_load load = known->limit.load;
    limit_of(&load, tok_per_s, &known->limit);
}

/* ---- shown ----------------------------------------------------------------------------------- */

const char *known_curve_text(const struct known *known, char text[KNOWN_TEXT_BYTES])
{
    if (!known->has_curve) {
        (void)snprintf(text, KNOWN_TEXT_BYTES, "unknown: no token was decoded with experts");
        return text;
    }
    int n = snprintf(text, KNOWN_TEXT_BYTES, "cache holds %.1f%% of experts, hit rate %.1f%%; hit "
                     "rate by cache size:", 100 * known->now.share, 100 * known->now.hit_rate);
    for (unsigned i = 0; i < KNOWN_POINTS && n > 0 && n < KNOWN_TEXT_BYTES; i++)
        n += snprintf(text + n, KNOWN_TEXT_BYTES - (size_t)n, "%s %.3g%%: %.1f%%",
                      i == 0 ? "" : ",", 100 * shares[i], 100 * known->points[i].hit_rate);
    return text;
}

const char *known_more_text(const struct known *known, char text[KNOWN_TEXT_BYTES])
{
    char limit[UNIT_BYTES * 2] = "";
    if (known->is_resident)
        (void)snprintf(text, KNOWN_TEXT_BYTES, "no change: every expert is in the cache");
    else if (!known->has_curve)
        (void)snprintf(text, KNOWN_TEXT_BYTES, "unknown: no token was decoded with experts");
    else {
        if (known->more.limit.max_per_s > 0)
            (void)snprintf(limit, sizeof limit, ", limit %.2f -> %.2f tok/s",
                           known->limit.max_per_s, known->more.limit.max_per_s);
        (void)snprintf(text, KNOWN_TEXT_BYTES, "cache %.1f%% -> %.1f%% of experts, hit rate "
                       "%.1f%% -> %.1f%%%s", 100 * known->now.share, 100 * known->more.share,
                       100 * known->now.hit_rate, 100 * known->more.hit_rate, limit);
    }
    return text;
}

static json_t *point_json(const struct known_point *point)
{
    const bool is_known = point->limit.max_per_s > 0;
    return json_pack("{s:I, s:I, s:f, s:f, s:o, s:o}", "cache_bytes",
                     (json_int_t)point->cache_bytes, "n_slots", (json_int_t)point->n_slots,
                     "share", point->share, "hit_rate", point->hit_rate, "overlapped_tok_per_s",
                     is_known ? json_real(point->limit.max_per_s) : json_null(),
                     "serial_tok_per_s",
                     is_known ? json_real(point->limit.min_per_s) : json_null());
}

json_t *known_json(const struct known *known)
{
    json_t *curve = json_array();
    for (unsigned i = 0; known->has_curve && i < KNOWN_POINTS; i++)
        (void)json_array_append_new(curve, point_json(&known->points[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "limit", limit_json(&known->limit),
                     "cache", known->has_curve ? point_json(&known->now) : json_null(),
                     "cache_hit_rate_of_curve",
                     known->has_curve ? json_real(known->curve_hit_rate) : json_null(),
                     "miss_curve", curve, "one_more_gib",
                     known->has_curve ? point_json(&known->more) : json_null());
}
