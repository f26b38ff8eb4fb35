/* Endpoints about the server itself, and the page. */
#include <stdio.h>
#include <string.h>

#include "base/plat.h"
#include "server/http_internal.h"
#include "server/text_json.h"

/* ---- the page ------------------------------------------------------------------------------- */

enum MHD_Result get_page(struct request *r)
{
    for (size_t i = 0; i < web_n_files; i++)
        if (strcmp(web_files[i].path, r->path) == 0)
            return reply_page(r, &web_files[i]);
    (void)api_fail(&r->error, API_NOT_FOUND, NULL, "there is no %s here", r->path);
    return reply_error(r);
}

/* ---- small ones ----------------------------------------------------------------------------- */

enum MHD_Result get_health(struct request *r)
{
    return reply_small(r, 200, json_pack("{s:s}", "status", "ok"));
}

static json_t *model_json(const struct server *s)
{
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(s->options.model, &info);
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:i, s:{s:i, s:i, s:i, s:I, s:s}}", "id",
                     s->context.model_name, "object", "model", "created", (json_int_t)s->began_s,
                     "owned_by", "flashmoe", "context_length", (int)s->context.n_context,
                     "max_model_len", (int)s->context.n_context, "meta", "n_ctx",
                     (int)s->context.n_context, "n_ctx_train", (int)info.max_context, "n_vocab",
                     (int)info.vocabulary, "n_params", (json_int_t)info.n_parameters,
                     "architecture", info.architecture);
}

enum MHD_Result get_models(struct request *r)
{
    const char *path = strncmp(r->path, "/v1/", 4) == 0 ? r->path + 3 : r->path;
    if (strcmp(path, "/models") != 0) /* any name means the one model */
        return reply_json(r, model_json(r->server));
    return reply_json(r, json_pack("{s:s, s:[o], s:b, s:s, s:s}", "object", "list", "data",
                                   model_json(r->server), "has_more", 0, "first_id",
                                   r->server->context.model_name, "last_id",
                                   r->server->context.model_name));
}

static json_t *number_or_null(double x)
{
    return x >= 0 ? json_real(x) : json_null();
}

/* Shows a key its own sessions; all sessions without keys or with shared prefixes. */
enum MHD_Result get_slots(struct request *r)
{
    struct jobs_stats stats;
    json_t *list = json_array();
    jobs_stats(r->server->jobs, &stats);
    for (unsigned i = 0; i < stats.n_slots; i++)
        if (stats.slot_owners[i] == r->owner)
            (void)json_array_append_new(
                list, json_pack("{s:i, s:b, s:i, s:i}", "id", (int)i, "is_processing",
                                stats.slots[i].is_taken, "n_past", (int)stats.slots[i].position,
                                "n_ctx", (int)r->server->context.n_context));
    return reply_json(r, list);
}

/* ---- what the page shows -------------------------------------------------------------------- */

/* Returns what a GPU holds and did; NULL: memory ran out. */
static json_t *gpu_json(const struct fm_stats *m)
{
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "name", m->gpu,
                     "budget_bytes", (json_int_t)m->gpu_budget_bytes,
                     "dense_bytes", (json_int_t)m->gpu_dense_bytes,
                     "cache_bytes", (json_int_t)m->gpu_cache_bytes,
                     "kv_bytes", (json_int_t)m->gpu_kv_bytes,
                     "scratch_bytes", (json_int_t)m->gpu_scratch_bytes,
                     "n_slots", (json_int_t)m->n_gpu_slots,
                     "n_expert_hits", (json_int_t)m->n_expert_hits_gpu,
                     "n_experts_sent", (json_int_t)m->n_experts_sent,
                     "n_experts_computed", (json_int_t)m->n_experts_computed,
                     "n_experts_moved_up", (json_int_t)m->n_experts_moved_up,
                     "n_experts_moved_down", (json_int_t)m->n_experts_moved_down);
}

/* What each rank of a cluster does, as in fm_rank_stats. */
static json_t *ranks_json(const struct jobs_stats *stats)
{
    json_t *all = json_array();
    for (unsigned i = 0; i < stats->n_ranks; i++) {
        const struct fm_rank_stats *s = &stats->ranks[i];
        (void)json_array_append_new(all, json_pack(
            "{s:i, s:s, s:i, s:i, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:f, s:I}", "rank", (int)i,
            "host", s->host, "first_layer", (int)s->first_layer, "n_layers", (int)s->n_layers,
            "memory_budget_bytes", (json_int_t)s->memory_budget_bytes, "n_expert_hits",
            (json_int_t)s->n_expert_hits, "n_expert_misses", (json_int_t)s->n_expert_misses,
            "bytes_read", (json_int_t)s->bytes_read, "read_wait_s",
            (double)s->read_wait_ns * 1e-9, "busy_s", (double)s->busy_ns * 1e-9, "bytes_sent",
            (json_int_t)s->bytes_sent, "network_s", (double)s->network_ns * 1e-9,
            "n_lone_passes", (json_int_t)s->n_lone_passes));
    }
    return all;
}

enum MHD_Result get_stats(struct request *r)
{
    const struct server_options *o = &r->server->options;
    struct jobs_stats s;
    jobs_stats(r->server->jobs, &s);
    const double share = o->limit_share != NULL && s.window_s > 0 && s.is_decode_only
                             ? o->limit_share(o->ctx, &s.before, &s.model, s.position) : -1;
    json_t *stats = json_pack(
        "{s:s, s:i, s:i, s:i, s:f, s:f, s:o, s:f, s:I, s:I, s:o}", "model",
        r->server->context.model_name, "n_context", (int)r->server->context.n_context,
        "active", (int)s.n_running, "queued", (int)s.n_queued, "tokens_per_s", s.answer_per_s,
        "prefill_tokens_per_s", s.prompt_per_s, "hit_rate", number_or_null(s.hit_rate),
        "read_bytes_per_s", s.read_bytes_per_s, "memory_bytes", (json_int_t)plat_resident_bytes(),
        "memory_budget_bytes", (json_int_t)s.model.memory_budget_bytes, "limit_share",
        number_or_null(share > 1 ? 1 : share));
    if (s.model.gpu != NULL)
        (void)json_object_set_new(stats, "gpu", gpu_json(&s.model));
    if (s.n_ranks > 0)
        (void)json_object_set_new(stats, "ranks", ranks_json(&s));
    return reply_json(r, stats);
}

enum MHD_Result get_experts(struct request *r)
{
    struct text_buffer text = {0};
    enum MHD_Result result = MHD_NO;
    if (jobs_experts(r->server->jobs, &text))
        result = reply_bytes(r, "application/json", text_buffer_text(&text), text.n);
    text_buffer_clear(&text);
    return result;
}

/* ---- metrics -------------------------------------------------------------------------------- */

struct metric {
    const char *name, *type, *help;
    double value;
};

static bool add_metric(struct text_buffer *out, const struct metric *m)
{
    return text_add_format(out, "# HELP flashmoe_%s %s\n# TYPE flashmoe_%s %s\nflashmoe_%s %.17g\n",
                           m->name, m->help, m->name, m->type, m->name, m->value);
}

static bool add_metrics(struct text_buffer *out, const struct metric *metrics, size_t n)
{
    bool is_good = true;
    for (size_t i = 0; is_good && i < n; i++)
        is_good = add_metric(out, &metrics[i]);
    return is_good;
}

/* Adds nothing without a GPU. */
static bool add_gpu_metrics(struct text_buffer *out, const struct fm_stats *m)
{
    const struct metric metrics[] = {
        {"gpu_memory_budget_bytes", "gauge", "Budget of the GPU's memory.",
         (double)m->gpu_budget_bytes},
        {"gpu_dense_bytes", "gauge", "Of it: dense weights.", (double)m->gpu_dense_bytes},
        {"gpu_cache_bytes", "gauge", "Of it: experts.", (double)m->gpu_cache_bytes},
        {"gpu_kv_bytes", "gauge", "Of it: KV and state.", (double)m->gpu_kv_bytes},
        {"gpu_scratch_bytes", "gauge", "Of it: scratch.", (double)m->gpu_scratch_bytes},
        {"gpu_slots", "gauge", "Experts that fit into the GPU's memory.", (double)m->n_gpu_slots},
        {"gpu_expert_hits_total", "counter", "Experts found in the GPU's memory.",
         (double)m->n_expert_hits_gpu},
        {"gpu_experts_sent_total", "counter", "Experts copied to the GPU for one use.",
         (double)m->n_experts_sent},
        {"gpu_experts_computed_total", "counter", "Experts computed by the processor instead.",
         (double)m->n_experts_computed},
        {"gpu_experts_moved_up_total", "counter", "Experts moved to the GPU's memory.",
         (double)m->n_experts_moved_up},
        {"gpu_experts_moved_down_total", "counter", "Experts moved back to the host's memory.",
         (double)m->n_experts_moved_down},
    };
    return m->gpu == NULL || add_metrics(out, metrics, sizeof metrics / sizeof metrics[0]);
}

static double sum_of(const uint64_t counts[FM_DRAFTS_MAX])
{
    double sum = 0;
    for (unsigned i = 0; i < FM_DRAFTS_MAX; i++)
        sum += (double)counts[i];
    return sum;
}

/* Adds drafts by source and distance, and passes by their number. */
static bool add_draft_metrics(struct text_buffer *out, const struct fm_stats *m)
{
    static const char *const names[] = {"draft_tokens_total", "draft_tokens_accepted_total"};
    bool is_good = true, is_on = false;
    for (unsigned i = 0; i <= FM_DRAFTS_MAX; i++)
        is_on |= m->n_draft_passes[i] > 0;
    for (unsigned n = 0; is_on && is_good && n < 2; n++) {
        is_good = text_add_format(out, "# HELP flashmoe_%s Guessed tokens%s, by source and "
                                  "distance.\n# TYPE flashmoe_%s counter\n", names[n],
                                  n == 0 ? "" : " that were right", names[n]);
        for (unsigned s = 0; is_good && s < FM_DRAFT_SOURCES; s++)
            for (unsigned i = 0; is_good && i < FM_DRAFTS_MAX && m->n_drafted_by[s][i] > 0; i++)
                is_good = text_add_format(
                    out, "flashmoe_%s{source=\"%s\",distance=\"%u\"} %llu\n", names[n],
                    fm_draft_source_name(s), i + 1,
                    (unsigned long long)(n == 0 ? m->n_drafted_by[s][i]
                                                : m->n_drafts_accepted_by[s][i]));
    }
    if (is_on && is_good)
        is_good = text_add_format(out, "# HELP flashmoe_draft_passes_total Passes of a request by "
                                  "the drafts that were decided on.\n"
                                  "# TYPE flashmoe_draft_passes_total counter\n");
    for (unsigned i = 0; is_on && is_good && i <= FM_DRAFTS_MAX; i++)
        if (m->n_draft_passes[i] > 0)
            is_good = text_add_format(out, "flashmoe_draft_passes_total{drafts=\"%u\"} %llu\n", i,
                                      (unsigned long long)m->n_draft_passes[i]);
    return is_good;
}

/* A value of one rank; NAME_total are counters. */
struct rank_metric {
    const char *name, *help;
    double (*value)(const struct fm_rank_stats *s);
};

static double rank_layers(const struct fm_rank_stats *s)
{
    return s->n_layers;
}

static double rank_budget(const struct fm_rank_stats *s)
{
    return (double)s->memory_budget_bytes;
}

static double rank_hits(const struct fm_rank_stats *s)
{
    return (double)s->n_expert_hits;
}

static double rank_misses(const struct fm_rank_stats *s)
{
    return (double)s->n_expert_misses;
}

static double rank_read(const struct fm_rank_stats *s)
{
    return (double)s->bytes_read;
}

static double rank_wait(const struct fm_rank_stats *s)
{
    return (double)s->read_wait_ns * 1e-9;
}

static double rank_busy(const struct fm_rank_stats *s)
{
    return (double)s->busy_ns * 1e-9;
}

static double rank_sent(const struct fm_rank_stats *s)
{
    return (double)s->bytes_sent;
}

static double rank_network(const struct fm_rank_stats *s)
{
    return (double)s->network_ns * 1e-9;
}

/* Adds nothing for a model on one machine. */
static bool add_rank_metrics(struct text_buffer *out, const struct jobs_stats *stats)
{
    static const struct rank_metric metrics[] = {
        {"rank_layers", "Layers of a rank.", rank_layers},
        {"rank_memory_budget_bytes", "Budget of a rank.", rank_budget},
        {"rank_expert_hits_total", "Experts that a rank found in memory.", rank_hits},
        {"rank_expert_misses_total", "Experts that a rank read on demand.", rank_misses},
        {"rank_expert_read_bytes_total", "Bytes of experts that a rank read.", rank_read},
        {"rank_expert_wait_seconds_total", "Time that a rank waited for experts.", rank_wait},
        {"rank_busy_seconds_total", "Time that a rank worked for the first one.", rank_busy},
        {"rank_sent_bytes_total", "Bytes that a rank sent to the next one.", rank_sent},
        {"rank_network_seconds_total", "Of rank 0: time in the network of passes that were under "
         "way one at a time.", rank_network},
    };
    bool is_good = true;
    for (size_t i = 0; stats->n_ranks > 0 && i < sizeof metrics / sizeof metrics[0]; i++) {
        const struct rank_metric *m = &metrics[i];
        const bool is_counter = strstr(m->name, "_total") != NULL;
        is_good = is_good &&
                  text_add_format(out, "# HELP flashmoe_%s %s\n# TYPE flashmoe_%s %s\n", m->name,
                                  m->help, m->name, is_counter ? "counter" : "gauge");
        for (unsigned r = 0; is_good && r < stats->n_ranks; r++)
            is_good = text_add_format(out, "flashmoe_%s{rank=\"%u\",host=\"%s\"} %.17g\n",
                                      m->name, r, stats->ranks[r].host,
                                      m->value(&stats->ranks[r]));
    }
    return is_good;
}

static bool add_other_metrics(struct text_buffer *out, const struct jobs_stats *s)
{
    return add_gpu_metrics(out, &s->model) && add_rank_metrics(out, s);
}

enum MHD_Result get_metrics(struct request *r)
{
    const struct server *server = r->server;
    struct jobs_stats s;
    struct preparers_stats reading;
    struct text_buffer out = {0};
    jobs_stats(server->jobs, &s);
    preparers_stats(server->preparers, &reading);
    const struct metric metrics[] = {
        {"http_requests_total", "counter", "HTTP requests answered.", (double)server->n_served},
        {"http_bytes_total", "counter", "Bytes of HTTP response bodies.", (double)server->n_bytes},
        {"http_connections", "gauge", "Open connections.", server->n_clients},
        {"requests_total", "counter", "Requests that generate text.", (double)s.n_submitted},
        {"requests_refused_total", "counter", "Refused: queue full.", (double)s.n_refused},
        {"requests_done_total", "counter", "Answered.", (double)s.n_done},
        {"requests_failed_total", "counter", "Failed.", (double)s.n_failed},
        {"requests_cancelled_total", "counter", "Client disconnected.", (double)s.n_cancelled},
        {"requests_preparing", "gauge", "Being parsed, rendered and tokenized, or waiting for it.",
         reading.n_queued + reading.n_running},
        {"requests_running", "gauge", "Being answered.", s.n_running},
        {"requests_held", "gauge", "Of these, streams that wait for their client to read.",
         s.n_held},
        {"requests_queued", "gauge", "Waiting.", s.n_queued},
        {"prompt_tokens_total", "counter", "Tokens of prompts.", (double)s.n_prompt},
        {"prompt_tokens_cached_total", "counter", "Prompt tokens reused.", (double)s.n_cached},
        {"answer_tokens_total", "counter", "Tokens of answers.", (double)s.n_answer},
        {"passes_total", "counter", "Passes over the model.", (double)s.n_passes},
        {"passes_seconds_total", "counter", "Time of all passes.", (double)s.pass_ns * 1e-9},
        {"drafts_total", "counter", "Guessed tokens that were computed (--draft).",
         sum_of(s.model.n_drafted)},
        {"drafts_accepted_total", "counter", "Of these, guessed right.",
         sum_of(s.model.n_drafts_accepted)},
        {"expert_hits_total", "counter", "Experts found in memory.",
         (double)s.model.n_expert_hits},
        {"expert_misses_total", "counter", "Experts read on demand.",
         (double)s.model.n_expert_misses},
        {"expert_read_bytes_total", "counter", "Bytes of experts read.",
         (double)s.model.bytes_read},
        {"expert_wait_seconds_total", "counter", "Time spent waiting for experts.",
         (double)s.model.read_wait_ns * 1e-9},
        {"memory_bytes", "gauge", "Resident memory.", (double)plat_resident_bytes()},
        {"memory_budget_bytes", "gauge", "Budget.", (double)s.model.memory_budget_bytes},
        {"request_memory_bytes", "gauge", "Memory used by requests.",
         (double)mem_account_used(&server->account)},
        {"request_memory_limit_bytes", "gauge", "Maximum memory for requests.",
         (double)server->account.limit},
        {"snapshot_files", "gauge", "Snapshots on disk.", (double)s.snapshots.n_files},
        {"snapshot_bytes", "gauge", "Size of all snapshots.", (double)s.snapshots.bytes},
        {"uptime_seconds", "gauge", "Time since the start.",
         (double)(plat_now_ns() - server->begin_ns) * 1e-9},
    };
    const bool is_good = add_metrics(&out, metrics, sizeof metrics / sizeof metrics[0]) &&
                         add_draft_metrics(&out, &s.model) && add_other_metrics(&out, &s);
    const enum MHD_Result result =
        is_good ? reply_bytes(r, "text/plain; version=0.0.4; charset=utf-8",
                              text_buffer_text(&out), out.n)
                : MHD_NO;
    text_buffer_clear(&out);
    return result;
}
