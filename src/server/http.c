/* Requests, from the request line to the response. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/plat.h"
#include "server/http_internal.h"
#include "server/text_json.h"

static const struct endpoint endpoints[] = {
    {.path = "/", .method = "GET", .is_open = true, .get = get_page},
    {.path = "/health", .method = "GET", .is_open = true, .get = get_health},
    {.path = "/models", .method = "GET", .get = get_models},
    {.path = "/metrics", .method = "GET", .get = get_metrics},
    {.path = "/props", .method = "GET", .get = get_props},
    {.path = "/slots", .method = "GET", .get = get_slots},
    {.path = "/stats", .method = "GET", .get = get_stats},
    {.path = "/experts", .method = "GET", .get = get_experts},
    {.path = "/chat/completions", .method = "POST", .api = &api_chat},
    {.path = "/completions", .method = "POST", .api = &api_completions},
    {.path = "/responses", .method = "POST", .api = &api_responses},
    {.path = "/messages", .method = "POST", .api = &api_messages},
    {.path = "/messages/count_tokens", .method = "POST", .look = api_count_tokens},
    {.path = "/embeddings", .method = "POST", .api = &api_embeddings},
    {.path = "/completion", .method = "POST", .api = &api_llama_completion},
    {.path = "/infill", .method = "POST", .api = &api_llama_infill},
    {.path = "/tokenize", .method = "POST", .look = api_tokenize},
    {.path = "/detokenize", .method = "POST", .look = api_detokenize},
    {.path = "/apply-template", .method = "POST", .look = api_apply_template},
    {.path = "/api/version", .method = "GET", .get = get_ollama_version},
    {.path = "/api/tags", .method = "GET", .get = get_ollama_tags},
    {.path = "/api/ps", .method = "GET", .get = get_ollama_ps},
    {.path = "/api/show", .method = "POST", .look = api_ollama_show},
    {.path = "/api/chat", .method = "POST", .api = &api_ollama_chat},
    {.path = "/api/generate", .method = "POST", .api = &api_ollama_generate},
    {.path = "/api/embed", .method = "POST", .api = &api_ollama_embed},
    {.path = "/api/embeddings", .method = "POST", .api = &api_ollama_embeddings},
    {.path = "/api/pull", .method = "POST", .look = api_ollama_pull},
};

/* Finds the endpoint. /v1 is optional. /models/NAME is handled like the list; other paths are files
 * of the page. */
static const struct endpoint *find_endpoint(const char *path)
{
    if (strncmp(path, "/v1/", 4) == 0)
        path += 3;
    for (size_t i = 0; i < sizeof endpoints / sizeof endpoints[0]; i++)
        if (strcmp(path, endpoints[i].path) == 0)
            return &endpoints[i];
    if (strncmp(path, "/models/", 8) == 0)
        return &endpoints[2];
    return strchr(path + (path[0] == '/'), '/') == NULL && strchr(path, '.') != NULL ? &endpoints[0]
                                                                                    : NULL;
}

static bool is_get(const struct request *r)
{
    return strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

void http_resume(struct request *r)
{
    if (!r->is_suspended)
        return;
    r->is_suspended = false;
    MHD_resume_connection(r->connection);
}

void http_give_up(struct request *r)
{
    if (r->is_gone)
        return;
    r->is_gone = true;
    if (r->job != NULL)
        jobs_cancel(r->server->jobs, r->job);
    http_resume(r);
}

/* Returns false when memory runs out. */
static bool take_event(struct request *r, const struct job_event *event)
{
    const size_t n_before = r->out.n;
    if (event->kind == JOB_DONE || event->kind == JOB_FAILED) {
        jobs_usage(r->server->jobs, r->job, &r->usage);
        r->call.usage = r->usage;
    }
    if (event->kind == JOB_FAILED) {
        (void)api_fail(&r->call.error, api_fault_of(event->code), NULL, "%s", event->text);
        r->error = r->call.error;
        r->server->n_errors += !r->is_gone;
    }
    if (!api_call_take(&r->call, event) || r->lease.wanted > 0) {
        r->out.n = n_before;
        return false;
    }
    r->is_over = event->kind == JOB_DONE || event->kind == JOB_FAILED;
    return true;
}

/* Ends an answer for which there is no memory. */
static void fail_for_memory(struct request *r)
{
    const struct job_event failed = {.kind = JOB_FAILED};
    jobs_cancel(r->server->jobs, r->job);
    (void)http_refuse_memory(&r->lease, &r->call.error);
    r->error = r->call.error;
    r->is_over = true;
    if (r->call.is_stream && !r->call.api->write(&r->call, &failed))
        http_give_up(r); /* the client sees a broken connection */
}

void http_note_unsent(struct request *r)
{
    if (r->job != NULL && r->call.is_stream)
        jobs_note_unsent(r->server->jobs, r->job, r->out.n - r->out_at);
}

/* Forgets what was sent, so that the text of a client that is always a little behind does not
 * grow. Moves at most as many bytes as were sent. */
static void drop_sent(struct request *r)
{
    const size_t left = r->out.n - r->out_at;
    if (r->out_at == 0 || left > r->out_at)
        return;
    char *text = r->out.data;
    memmove(text, text + r->out_at, left);
    r->out.n = left;
    r->out_at = 0;
}

void http_take_events(struct request *r)
{
    drop_sent(r);
    const size_t n_before = r->out.n;
    struct job_event *first = jobs_take_events(r->server->jobs, r->job), *next;
    bool is_good = true;
    mem_lease_enter(&r->lease);
    for (struct job_event *event = first; event != NULL && is_good; event = event->next)
        is_good = r->is_gone || r->is_over || take_event(r, event);
    mem_lease_leave();
    for (struct job_event *event = first; event != NULL; event = next) {
        next = event->next;
        job_event_free(event);
    }
    if (!is_good && r->lease.wanted > 0)
        fail_for_memory(r);
    else if (!is_good)
        http_give_up(r); /* out of memory: the client sees a broken connection */
    if (r->out.n != n_before)
        r->written_ns = plat_now_ns();
    http_note_unsent(r);
    if (r->out.n > r->out_at || r->is_over)
        http_resume(r);
}

/* Returns the key of the conversation that a header names. */
static uint64_t session_key(const struct request *r)
{
    static const char *const names[] = {"x-claude-code-session-id", "session_id",
                                        "x-session-affinity"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = http_header(r, names[i]);
        if (value != NULL && value[0] != '\0')
            return api_key_of(value);
    }
    return 0;
}

/* Memory that a large request reserves for the text of its answer. A small one may use the reserve
 * for answers as it grows (base/lease.h). */
#define ANSWER_BYTES (64u << 10)

/* Reserves what the end of a whole answer needs before computing it. Returns false with
 * r->error. */
static bool reserve_answer(struct request *r)
{
    const uint64_t bytes = api_whole_bytes(&r->call);
    const bool is_large = r->lease.used + (int64_t)bytes > (int64_t)MEM_LEASE_SMALL;
    r->lease.is_answered = true;
    if (r->call.is_stream)
        return true;
    mem_lease_enter(&r->lease);
    const bool is_good = mem_lease_reserve(bytes + (is_large ? ANSWER_BYTES : 0));
    mem_lease_leave();
    if (!is_good)
        (void)http_refuse_memory(&r->lease, &r->error);
    return is_good;
}

static enum MHD_Result begin_call(struct request *r)
{
    struct fm_error err = {0};
    struct job_spec spec;
    const enum MHD_Result result = http_answer_prepared(r, &spec);
    if (!r->has_call || r->error.fault != API_GOOD)
        return result;
    r->call.out = &r->out;
    if (!reserve_answer(r)) {
        job_spec_clear(&spec);
        return reply_error(r);
    }
    const uint64_t key = session_key(r);
    spec.key = key != 0 ? key : spec.key;
    spec.owner = r->owner;
    const int rc = jobs_submit(r->server->jobs, &spec, r, &r->job, &err);
    if (rc != 0) {
        (void)api_fail(&r->error, api_fault_of(rc), NULL, "%s", err.text);
        return reply_error(r);
    }
    r->written_ns = plat_now_ns();
    if (r->call.is_stream) /* sends something at once, so that the headers are sent */
        return text_add_string(&r->out, r->call.api->hello) ? reply_stream(r) : MHD_NO;
    r->is_suspended = true;
    MHD_suspend_connection(r->connection);
    return MHD_YES;
}

/* Sends the whole answer of an unstreamed call. */
static enum MHD_Result end_call(struct request *r)
{
    if (r->error.fault != API_GOOD)
        return reply_error(r);
    const bool in_pieces = r->call.has_logprobs;
    mem_lease_enter(&r->lease);
    json_t *whole = r->call.api->whole(&r->call);
    const bool is_good = (in_pieces ? api_pieces_begin(&r->pieces, whole)
                                    : text_add_json(&r->out, whole)) && r->lease.wanted == 0;
    json_decref(whole);
    mem_lease_leave();
    if (is_good)
        return in_pieces ? reply_pieces(r) : reply_kept(r, 200);
    if (r->lease.wanted == 0)
        return MHD_NO;
    (void)http_refuse_memory(&r->lease, &r->error);
    return reply_error(r);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Checks what the headers alone can show. */
static void check_headers(struct request *r, const char *method, const char *version)
{
    const char *length = http_header(r, "Content-Length");
    const bool fits_method = r->endpoint != NULL && (strcmp(r->endpoint->method, "GET") == 0
                                                      ? is_get(r)
                                                      : strcmp(r->method, "POST") == 0);
    const uint64_t max = r->server->options.request_bytes;
    char *end = NULL;
    http_check_access(r, method, version);
    if (r->error.fault != API_GOOD || strcmp(r->method, "OPTIONS") == 0)
        return;
    if (r->endpoint == NULL)
        (void)api_fail(&r->error, API_NOT_FOUND, NULL, "there is no %s %s here%s", r->method,
                       r->path, r->dialect == API_OLLAMA ? "; 'flashmoe pull', 'list' and 'rm' "
                       "manage models" : "");
    else if (!fits_method)
        (void)api_fail(&r->error, API_METHOD, NULL, "%s takes %s, not %s", r->path,
                       r->endpoint->method, r->method);
    else if (length != NULL && strtoull(length, &end, 10) > max)
        (void)api_fail(&r->error, API_TOO_LARGE, NULL, "the request has %s bytes; the maximum is "
                       "%llu (--request-limit)", length, (unsigned long long)max);
    r->length = length != NULL ? strtoull(length, NULL, 10) : 0;
}

/* Replies while the body still arrives, which the library cannot do. Reads and discards the rest,
 * for as long as a body may take: closing with unread bytes would destroy the response. */
static void refuse_body(struct request *r)
{
    mem_lease_enter(&r->lease);
    text_buffer_clear(&r->body);
    mem_lease_leave();
    http_give_memory(r);
    (void)api_fail(&r->error, API_TOO_LARGE, NULL, "the request has more than %llu bytes, the "
                   "maximum (--request-limit)",
                   (unsigned long long)r->server->options.request_bytes);
    reply_error_at_once(r);
}

/* Returns whose form errors have. */
static enum api_dialect dialect_of(struct MHD_Connection *connection, const char *url)
{
    if (strncmp(url, "/api/", 5) == 0)
        return API_OLLAMA;
    return strncmp(url, "/v1/messages", 12) == 0 ||
                   MHD_lookup_connection_value(connection, MHD_HEADER_KIND,
                                               "anthropic-version") != NULL
               ? API_ANTHROPIC : API_OPENAI;
}

static struct request *new_request(struct server *server, struct MHD_Connection *connection,
                                   const char *url, const char *method)
{
    struct request *r = mem_new(1, sizeof *r, "a request", NULL);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    if (r == NULL)
        return NULL;
    r->server = server;
    r->connection = connection;
    r->lease.account = &server->account;
    r->client = info != NULL ? info->socket_context : NULL;
    r->began_ns = plat_now_ns();
    (void)snprintf(r->method, sizeof r->method, "%s", method);
    (void)snprintf(r->path, sizeof r->path, "%s", url);
    if (r->client != NULL)
        r->client->request = r;
    server->n_requests++;
    r->endpoint = strlen(url) < sizeof r->path ? find_endpoint(url) : NULL;
    r->dialect = dialect_of(connection, url);
    return r;
}

enum MHD_Result http_handle(void *ctx, struct MHD_Connection *connection, const char *url,
                            const char *method, const char *version, const char *upload,
                            size_t *upload_bytes, void **state)
{
    struct server *server = ctx;
    struct request *r = *state;
    if (r == NULL) {
        r = *state = new_request(server, connection, url, method);
        if (r == NULL)
            return MHD_NO;
        check_headers(r, method, version);
        if (r->error.fault != API_GOOD)
            return reply_error(r);
        if (strcmp(method, "OPTIONS") == 0)
            return reply_preflight(r);
        /* Without memory for the body, it is read and discarded: a client that is still sending
         * would not see a response before its end. */
        http_check_length(r);
        return MHD_YES;
    }
    if (*upload_bytes > 0) {
        if (r->body.n + *upload_bytes > server->options.request_bytes && !r->must_close)
            refuse_body(r); /* chunked: its size was unknown */
        if (!r->must_close && !http_add_body(r, upload, *upload_bytes))
            return MHD_NO;
        *upload_bytes = 0;
        return MHD_YES;
    }
    if (r->must_close)
        return MHD_NO; /* it already has its response */
    r->is_read = true;
    if (r->is_gone)
        return MHD_NO;
    if (r->has_call)
        return end_call(r);
    if (r->error.fault != API_GOOD)
        return reply_error(r);
    if (is_get(r))
        return r->endpoint->get(r);
    return r->task != NULL ? begin_call(r) : http_prepare(r);
}

/* ---- the end -------------------------------------------------------------------------------- */

static void log_call(const struct request *r, char *line, size_t bytes)
{
    const struct job_usage *u = &r->usage;
    const uint64_t n_used = u->n_hits + u->n_misses;
    const double decode_s = (double)u->decode_ns * 1e-9;
    char drafts[96] = "";
    if (u->n_drafted > 0)
        (void)snprintf(drafts, sizeof drafts, " | drafts %llu of %llu right, %llu passes",
                       (unsigned long long)u->n_accepted, (unsigned long long)u->n_drafted,
                       (unsigned long long)u->n_draft_passes);
    (void)snprintf(line, bytes,
                   " | queue %.0f ms | prompt %llu tokens, %llu cached, %.0f ms | answer %llu "
                   "tokens, %.1f tok/s | hits %.0f%%, %.1f MB read%s",
                   (double)u->queue_ns * 1e-6, (unsigned long long)u->n_prompt,
                   (unsigned long long)u->n_cached, (double)u->prefill_ns * 1e-6,
                   (unsigned long long)u->n_answer,
                   decode_s > 0 && u->n_answer > 1 ? (double)(u->n_answer - 1) / decode_s : 0.0,
                   n_used > 0 ? 100 * (double)u->n_hits / (double)n_used : 100.0,
                   (double)u->bytes_read * 1e-6, drafts);
}

static void log_request(const struct request *r)
{
    char line[640], call[384] = "";
    const struct server_options *o = &r->server->options;
    if (o->log == NULL)
        return;
    if (r->job != NULL && r->is_over)
        log_call(r, call, sizeof call);
    (void)snprintf(line, sizeof line, "%s %.100s %u%s%s, %llu bytes, %.0f ms%s%s%.120s", r->method,
                   r->path, r->status, r->has_call && r->call.is_stream ? " stream" : "",
                   r->is_gone || (r->job != NULL && !r->is_over) ? " client gone" : "",
                   (unsigned long long)r->n_sent, (double)(plat_now_ns() - r->began_ns) * 1e-6,
                   call, r->error.fault != API_GOOD ? " | " : "", r->error.text);
    for (char *c = line; *c != '\0'; c++) /* a path may contain any byte: logs only ASCII */
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    o->log(o->ctx, line);
}

/* Frees everything of the request. What remains of its lease belongs to the job's specification. */
static void free_request(struct request *r)
{
    http_drop_task(r);
    mem_lease_enter(&r->lease);
    if (r->has_call)
        api_call_clear(&r->call);
    text_buffer_clear(&r->body);
    text_buffer_clear(&r->out);
    api_pieces_clear(&r->pieces);
    mem_lease_leave();
    if (r->job == NULL)
        r->lease.used = 0;
    http_give_memory(r);
    if (r->job != NULL) {
        job_disown(r->job, r->lease.taken);
        jobs_release(r->server->jobs, r->job);
    }
}

void http_completed(void *ctx, struct MHD_Connection *connection, void **state,
                    enum MHD_RequestTerminationCode code)
{
    struct server *server = ctx;
    struct request *r = *state;
    (void)connection;
    (void)code;
    if (r == NULL)
        return;
    if (r->job != NULL && !r->is_over)
        jobs_cancel(server->jobs, r->job);
    log_request(r);
    if (r->client != NULL) {
        r->client->request = NULL;
        r->client->since_ns = plat_now_ns();
        r->client->was_closed = false;
        if (r->client->is_dropping)
            (void)shutdown(r->client->fd, SHUT_RDWR);
    }
    free_request(r);
    server->n_requests--;
    server->n_served++;
    server->n_bytes += r->n_sent;
    mem_free(r);
    *state = NULL;
}
