#include "apps/cli/speed_report.h"

#include <stdio.h>
#include <string.h>

#include "apps/cli/term.h"
#include "flashmoe_lab.h"

#define ONE_MORE ((uint64_t)1 << 30)

static const double shares[SPEED_POINTS] = {0.125, 0.25, 0.5, 0.75, 1};

static uint64_t n_all_experts(const struct speed_report *report)
{
    return (uint64_t)report->info.n_experts * report->info.n_moe_layers;
}

static void take_point(const struct speed_report *report, const struct fm_model *model,
                       uint64_t cache_bytes, struct speed_point *point)
{
    unsigned n_slots;
    const double hit_rate = fm_model_hit_rate(model, cache_bytes, &n_slots);
    *point = (struct speed_point){.cache_bytes = cache_bytes, .hit_rate = hit_rate};
    if (n_slots == 0)
        return;
    point->n_slots = n_slots;
    point->share = (double)n_slots / (double)n_all_experts(report);
}

void speed_report_take(struct speed_report *report, const struct fm_model *model,
                       const struct fm_stats *before, double first_position)
{
    *report = (struct speed_report){.before = *before, .first_position = first_position};
    report->after.size = sizeof report->after;
    fm_model_stats(model, &report->after);
    report->info.size = sizeof report->info;
    fm_model_info(model, &report->info);
    const uint64_t n_slots = report->after.n_cache_slots;
    const uint64_t cache_bytes = report->after.memory_cache_bytes + report->after.gpu_cache_bytes;
    report->is_resident = n_slots >= n_all_experts(report);
    take_point(report, model, cache_bytes, &report->now);
    take_point(report, model, cache_bytes + ONE_MORE, &report->more);
    for (unsigned i = 0; i < SPEED_POINTS && n_slots > 0; i++) /* nearly all bytes are slots */
        take_point(report, model,
                   (uint64_t)((double)cache_bytes * shares[i] * (double)n_all_experts(report) /
                              (double)n_slots), &report->points[i]);
    report->has_curve = n_slots > 0 && report->now.hit_rate >= 0 &&
                       report->after.n_decode_tokens > before->n_decode_tokens;
    report->curve_hit_rate = report->now.hit_rate;
}

static void finish_point(const struct speed_report *report, double miss_rate,
                         struct speed_point *point)
{
    if (!report->has_curve)
        return;
    double miss = miss_rate + report->curve_hit_rate - point->hit_rate;
    miss = miss < 0 ? 0 : miss > 1 ? 1 : miss;
    struct limit_load load = report->limit.load;
    load.miss_bytes = miss * load.expert_bytes;
    point->hit_rate = 1 - miss;
    limit_of(&load, 0, &point->limit);
}

void speed_report_finish(struct speed_report *report, const struct limit_speeds *speeds)
{
    limit_between(&report->before, &report->after, &report->info, report->first_position, speeds,
                  &report->limit);
    const struct limit_load *load = &report->limit.load;
    const double miss = load->expert_bytes > 0 ? load->miss_bytes / load->expert_bytes : 0;
    finish_point(report, miss, &report->more);
    for (unsigned i = 0; i < SPEED_POINTS; i++)
        finish_point(report, miss, &report->points[i]);
    finish_point(report, miss, &report->now);
}

void speed_report_set_speed(struct speed_report *report, double tok_per_s)
{
    const struct limit_load load = report->limit.load;
    limit_of(&load, tok_per_s, &report->limit);
}

/* ---- shown ----------------------------------------------------------------------------------- */

const char *speed_report_curve_text(const struct speed_report *report,
                                    char text[SPEED_REPORT_BYTES])
{
    if (!report->has_curve) {
        (void)snprintf(text, SPEED_REPORT_BYTES, "unknown: no token was decoded with experts");
        return text;
    }
    int n = snprintf(text, SPEED_REPORT_BYTES, "cache holds %.1f%% of experts, hit rate %.1f%%; "
                     "hit rate by cache size:", 100 * report->now.share,
                     100 * report->now.hit_rate);
    for (unsigned i = 0; i < SPEED_POINTS && n > 0 && n < SPEED_REPORT_BYTES; i++)
        n += snprintf(text + n, SPEED_REPORT_BYTES - (size_t)n, "%s %.3g%%: %.1f%%",
                      i == 0 ? "" : ",", 100 * shares[i], 100 * report->points[i].hit_rate);
    return text;
}

const char *speed_report_more_text(const struct speed_report *report,
                                   char text[SPEED_REPORT_BYTES])
{
    char limit[UNIT_BYTES * 2] = "";
    if (report->is_resident)
        (void)snprintf(text, SPEED_REPORT_BYTES, "no change: every expert is in the cache");
    else if (!report->has_curve)
        (void)snprintf(text, SPEED_REPORT_BYTES, "unknown: no token was decoded with experts");
    else {
        if (report->more.limit.max_per_s > 0)
            (void)snprintf(limit, sizeof limit, ", limit %.2f -> %.2f tok/s",
                           report->limit.max_per_s, report->more.limit.max_per_s);
        (void)snprintf(text, SPEED_REPORT_BYTES, "cache %.1f%% -> %.1f%% of experts, hit rate "
                       "%.1f%% -> %.1f%%%s", 100 * report->now.share, 100 * report->more.share,
                       100 * report->now.hit_rate, 100 * report->more.hit_rate, limit);
    }
    return text;
}

static json_t *point_json(const struct speed_point *point)
{
    const bool is_known = point->limit.max_per_s > 0;
    return json_pack("{s:I, s:I, s:f, s:f, s:o, s:o}", "cache_bytes",
                     (json_int_t)point->cache_bytes, "n_slots", (json_int_t)point->n_slots,
                     "share", point->share, "hit_rate", point->hit_rate, "overlapped_tok_per_s",
                     is_known ? json_real(point->limit.max_per_s) : json_null(),
                     "serial_tok_per_s",
                     is_known ? json_real(point->limit.min_per_s) : json_null());
}

json_t *speed_report_json(const struct speed_report *report)
{
    json_t *curve = json_array();
    for (unsigned i = 0; report->has_curve && i < SPEED_POINTS; i++)
        (void)json_array_append_new(curve, point_json(&report->points[i]));
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "limit", limit_json(&report->limit),
                     "cache", report->has_curve ? point_json(&report->now) : json_null(),
                     "cache_hit_rate_of_curve",
                     report->has_curve ? json_real(report->curve_hit_rate) : json_null(),
                     "miss_curve", curve, "one_more_gib",
                     report->has_curve ? point_json(&report->more) : json_null());
}
