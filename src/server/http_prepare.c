/* From the body of a request to its job: what runs off the HTTP thread, and its memory. */
#include <string.h>

#include "base/plat.h"
#include "server/http_internal.h"
#include "server/text_json.h"

struct request_task {
    struct prepare_task base;
    const struct endpoint *endpoint;
    const struct api_context *context;
    struct text_buffer body;
    struct api_error error;

    /* Results. */
    bool has_call; /* call is set, and spec if the call has no error */
    struct api_call call;
    struct job_spec spec;
    struct text_buffer answer; /* of an endpoint that generates no text */
};

int http_refuse_memory(const struct mem_lease *lease, struct api_error *error)
{
    const uint64_t max = mem_lease_max(lease);
    const uint64_t used = mem_account_used(lease->account);
    *error = (struct api_error){0};
    /* Retrying does not help an answer that itself holds most of the memory. */
    if (lease->is_answered && lease->taken > used / 2)
        return api_fail(error, API_TOO_LARGE, NULL, "the answer takes too much memory: %llu of "
                        "%llu bytes for requests are in use, %llu of them by this one; ask for "
                        "fewer tokens, choices or logprobs, or raise the server's --request-memory",
                        (unsigned long long)used, (unsigned long long)lease->account->limit,
                        (unsigned long long)lease->taken);
    if (lease->wanted > max)
        return api_fail(error, API_TOO_LARGE, NULL, "the request needs more than %llu bytes of "
                        "memory, the maximum for one request; send less, or raise the "
                        "server's --request-memory", (unsigned long long)max);
    return api_fail(error, API_BUSY, NULL, "%llu of %llu bytes of memory for requests are in use: "
                    "try again later",
                    (unsigned long long)used, (unsigned long long)lease->account->limit);
}

/* ---- on a thread of jobs_prepare.h ---------------------------------------------------------- */

/* A string takes memory three times while it is parsed: a doubling buffer, and the value. */
#define PARSE_FACTOR 3

/* Parses the body, with room for what follows: a conversation is copied for the template and parsed
 * again. Returns NULL with t->error, or when the lease is over. */
static json_t *parse_body(struct request_task *t)
{
    json_error_t why;
    const int64_t before = t->base.lease.used;
    if (!mem_lease_reserve(PARSE_FACTOR * t->body.n))
        return NULL;
    json_t *body = json_read(text_buffer_text(&t->body), t->body.n, &why);
    if (body == NULL)
        (void)api_fail(&t->error, API_BAD, NULL, "the body is not JSON: line %d, column %d: %s",
                       why.line, why.column, why.text);
    const int64_t tree = t->base.lease.used - before;
    if (body != NULL && !mem_lease_reserve(2 * (uint64_t)(tree > 0 ? tree : 0) +
                                           PARSE_FACTOR * t->body.n)) {
        json_decref(body);
        body = NULL;
    }
    return body;
}

/* Answers a call that has nothing to compute. */
static void answer_idle(struct request_task *t)
{
    json_t *whole = t->call.api->whole(&t->call);
    if (!text_add_json(&t->answer, whole) || !text_add_string(&t->answer, "\n"))
        (void)api_fail(&t->error, API_INTERNAL, NULL, "out of memory for the answer");
    json_decref(whole);
    api_call_clear(&t->call);
    job_spec_clear(&t->spec);
    t->has_call = false;
}

static void read_body(struct request_task *t)
{
    json_t *body = parse_body(t);
    if (body == NULL)
        return;
    if (t->endpoint->api != NULL) {
        t->has_call = true;
        if (api_call_read(&t->call, t->endpoint->api, t->context, body, &t->body, &t->spec) != 0)
            t->error = t->call.error;
        else if (t->call.idle_reason != NULL)
            answer_idle(t);
    } else {
        (void)t->endpoint->look(t->context, body, &t->answer, &t->error);
    }
    json_decref(body);
}

/* Reports that the schemas of the tools took the memory, if they did. */
static void refuse_memory(struct request_task *t)
{
    const char *field = strcmp(t->error.param, "tools") == 0       ? "tools"
                        : strcmp(t->error.param, "functions") == 0 ? "functions"
                                                                   : NULL;
    (void)http_refuse_memory(&t->base.lease, &t->error);
    if (field == NULL)
        return;
    const struct api_error whole = t->error;
    t->error = (struct api_error){0};
    (void)api_fail(&t->error, whole.fault, field, "the schema of '%s' cannot be compiled: %s",
                   field, whole.text);
}

static void run_task(struct prepare_task *base)
{
    struct request_task *t = (struct request_task *)base;
    read_body(t);
    text_buffer_clear(&t->body);
    /* A part without memory may have been left out; the request has failed in any case. */
    if (base->lease.wanted > 0)
        refuse_memory(t);
    else if (mem_lease_is_over()) {
        t->error = (struct api_error){0};
        (void)api_fail(&t->error, API_SHUTDOWN, NULL, "the server is shutting down");
    }
}

/* Frees a task and what it owns. */
static void close_task(struct prepare_task *base)
{
    struct request_task *t = (struct request_task *)base;
    if (t->has_call) {
        api_call_clear(&t->call);
        job_spec_clear(&t->spec);
    }
    text_buffer_clear(&t->body);
    text_buffer_clear(&t->answer);
    mem_free(t);
}

/* ---- on the HTTP thread --------------------------------------------------------------------- */

bool http_add_body(struct request *r, const char *bytes, size_t n)
{
    struct text_buffer *b = &r->body;
    if (r->error.fault != API_GOOD) { /* already refused: discards the rest */
        r->n_dropped += n;
        return r->n_dropped <= r->server->options.request_bytes;
    }
    mem_lease_enter(&r->lease);
    if (b->n + n > b->capacity && r->length > 0) { /* grows to exactly the announced length */
        size_t none = 0, want = 2 * b->capacity > b->n + n ? 2 * b->capacity : b->n + n;
        want = want < r->length ? want : r->length;
        if (want >= b->n + n && mem_grow(&b->data, &none, want, 1, "a request", NULL) == 0)
            b->capacity = none;
    }
    const bool is_good = text_buffer_add(b, bytes, n);
    if (!is_good)
        text_buffer_clear(b);
    mem_lease_leave();
    if (!is_good) {
        (void)http_refuse_memory(&r->lease, &r->error);
        http_give_memory(r);
    }
    return true;
}

void http_check_length(struct request *r)
{
    const struct mem_lease *lease = &r->lease;
    const struct mem_account *account = lease->account;
    struct mem_lease asked = *lease;
    asked.wanted = r->length;
    if (r->length == 0) /* no body, or chunked and counted on arrival */
        return;
    if (r->length > mem_lease_max(lease) ||
        mem_account_used(account) + r->length >
            account->limit - mem_lease_spare(lease, r->length))
        (void)http_refuse_memory(&asked, &r->error);
}

void http_give_memory(struct request *r)
{
    const uint64_t used = r->lease.used > 0 ? (uint64_t)r->lease.used : 0;
    const uint64_t kept = used < r->lease.taken ? used : r->lease.taken;
    preparers_give(r->server->preparers, r->lease.taken - kept);
    r->lease.taken = kept;
}

enum MHD_Result http_prepare(struct request *r)
{
    struct fm_error err = {0};
    struct request_task *t = mem_new(1, sizeof *t, "a request", NULL);
    if (t == NULL)
        return MHD_NO;
    t->base = (struct prepare_task){.run = run_task, .close = close_task, .bytes = r->body.n,
                                    .lease = r->lease, .owner = r};
    t->endpoint = r->endpoint;
    t->context = &r->server->context;
    t->body = r->body;
    const int rc = preparers_submit(r->server->preparers, &t->base, &err);
    if (rc != 0) {
        mem_free(t);
        (void)api_fail(&r->error, api_fault_of(rc), NULL, "%s", err.text);
        return reply_error(r);
    }
    r->body = (struct text_buffer){0};
    r->lease = (struct mem_lease){.account = r->lease.account};
    r->task = &t->base;
    r->is_suspended = true;
    MHD_suspend_connection(r->connection);
    return MHD_YES;
}

void http_prepared(struct prepare_task *task)
{
    struct request *r = task->owner;
    r->is_prepared = true;
    http_resume(r);
}

void http_drop_task(struct request *r)
{
    struct prepare_task *task = r->task;
    r->task = NULL;
    if (task != NULL && !r->is_prepared) {
        preparers_abandon(r->server->preparers, task);
    } else if (task != NULL) {
        r->lease = task->lease;
        mem_lease_enter(&r->lease);
        close_task(task);
        mem_lease_leave();
    }
}

enum MHD_Result http_answer_prepared(struct request *r, struct job_spec *spec)
{
    struct request_task *t = (struct request_task *)r->task;
    if (t->base.rc != 0)
        (void)api_fail(&t->error, api_fault_of(t->base.rc), NULL, "the server is shutting down");
    r->lease = t->base.lease;
    r->error = t->error;
    r->out = t->answer;
    r->has_call = t->has_call;
    r->call = t->call;
    *spec = t->spec;
    r->task = NULL;
    mem_lease_enter(&r->lease);
    text_buffer_clear(&t->body);
    mem_lease_leave();
    mem_free(t);
    if (r->error.fault != API_GOOD) {
        job_spec_clear(spec);
        return reply_error(r);
    }
    return r->has_call ? MHD_YES : reply_kept(r, 200);
}
