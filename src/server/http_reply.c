/* Answers, their headers, and who may see them. */
#include <string.h>
#include <strings.h>

#include "base/plat.h"
#include "server/http_internal.h"
#include "server/text_json.h"

/* ---- origins -------------------------------------------------------------------------------- */

/* "http://localhost:3000" and its like. */
static bool is_of_this_machine(const char *origin)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = strstr(origin, "://");
    if (host == NULL)
        return false;
    host += 3;
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        const size_t n = strlen(hosts[i]);
        if (strncmp(host, hosts[i], n) == 0 && (host[n] == '\0' || host[n] == ':'))
            return true;
    }
    return false;
}

static bool is_listed(const char *list, const char *origin)
{
    const size_t n = strlen(origin);
    for (const char *at = list; at != NULL && *at != '\0';) {
        const char *end = strchr(at, ',');
        const size_t bytes = end != NULL ? (size_t)(end - at) : strlen(at);
        if ((bytes == 1 && *at == '*') || (bytes == n && strncmp(at, origin, n) == 0))
            return true;
        at = end != NULL ? end + 1 : NULL;
    }
    return false;
}

static const char *header(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    (void)MHD_add_response_header(response, name, value); /* without it the answer is still one */
}

static void add_cors(const struct request *r, struct MHD_Response *response)
{
    const char *origin = header(r, "Origin"), *list = r->server->options.cors;
    if (origin == NULL || !(list != NULL ? is_listed(list, origin) : is_of_this_machine(origin)))
        return;
    add_header(response, "Access-Control-Allow-Origin", origin);
    add_header(response, "Vary", "Origin");
}

/* ---- the key -------------------------------------------------------------------------------- */

/* Takes as long wherever they differ. */
static bool is_same_key(const char *given, const char *key)
{
    const size_t n = strlen(key), n_given = strlen(given);
    volatile unsigned char differs = n != n_given;
    for (size_t i = 0; i < n; i++)
        differs = (unsigned char)(differs | (key[i] ^ (i < n_given ? given[i] : 0)));
    return differs == 0;
}

bool http_is_allowed(const struct request *r)
{
    const char *key = r->server->options.api_key;
    const char *bearer = header(r, "Authorization"), *plain = header(r, "x-api-key");
    if (key == NULL)
        return true;
    const bool has_bearer = bearer != NULL && strncasecmp(bearer, "Bearer ", 7) == 0;
    return (has_bearer && is_same_key(bearer + 7, key)) ||
           (plain != NULL && is_same_key(plain, key));
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Takes the response. */
static enum MHD_Result queue(struct request *r, unsigned status, const char *type,
                            struct MHD_Response *response)
{
    if (response == NULL)
        return MHD_NO;
    if (type != NULL)
        add_header(response, "Content-Type", type);
    add_header(response, "X-Content-Type-Options", "nosniff");
    if (status == 503 || status == 529)
        add_header(response, "Retry-After", "2");
    if (status == 401)
        add_header(response, "WWW-Authenticate", "Bearer");
    if (status == 405 && r->route != NULL)
        add_header(response, "Allow", r->route->method);
    add_cors(r, response);
    r->status = status;
    const enum MHD_Result result = MHD_queue_response(r->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

enum MHD_Result reply_bytes(struct request *r, unsigned status, const char *type,
                            const void *bytes, size_t n)
{
    r->n_sent += n;
    return queue(r, status, type,
                MHD_create_response_from_buffer(n, (void *)(uintptr_t)bytes,
                                                MHD_RESPMEM_MUST_COPY));
}

enum MHD_Result reply_page(struct request *r, const struct web_file *file)
{
    const char *known = header(r, "If-None-Match");
    const bool is_known = known != NULL && strstr(known, file->etag) != NULL;
    const size_t n = is_known ? 0 : file->n_bytes;
    struct MHD_Response *response = MHD_create_response_from_buffer(
        n, (void *)(uintptr_t)file->bytes, MHD_RESPMEM_PERSISTENT);
    if (response == NULL)
        return MHD_NO;
    add_header(response, "ETag", file->etag);
    add_header(response, "Cache-Control", "no-cache");
    add_header(response, "Content-Security-Policy", WEB_CONTENT_SECURITY_POLICY);
    add_header(response, "Referrer-Policy", "no-referrer");
    r->n_sent += n;
    return queue(r, is_known ? 304 : 200, file->mime_type, response);
}

enum MHD_Result reply_json(struct request *r, unsigned status, json_t *value)
{
    struct text_buffer text = {0};
    const bool is_good = text_add_json(&text, value);
    const enum MHD_Result result =
        is_good ? reply_bytes(r, status, "application/json", text_buffer_text(&text), text.n)
                : MHD_NO;
    json_decref(value);
    text_buffer_clear(&text);
    return result;
}

enum MHD_Result reply_kept(struct request *r, unsigned status)
{
    r->n_sent += r->out.n;
    return queue(r, status, "application/json",
                 MHD_create_response_from_buffer(r->out.n,
                                                 (void *)(uintptr_t)text_buffer_text(&r->out),
                                                 MHD_RESPMEM_PERSISTENT));
}

enum MHD_Result reply_error(struct request *r)
{
    return reply_json(r, api_status(r->error.fault, r->dialect),
                      api_error_json(&r->error, r->dialect));
}

enum MHD_Result reply_preflight(struct request *r)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL,
                                                                    MHD_RESPMEM_PERSISTENT);
    const char *wanted = header(r, "Access-Control-Request-Headers");
    if (response == NULL)
        return MHD_NO;
    add_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    add_header(response, "Access-Control-Allow-Headers", wanted != NULL ? wanted : "*");
    add_header(response, "Access-Control-Max-Age", "86400");
    return queue(r, 204, NULL, response);
}

/* What the stream has, or nothing and the connection waits. */
static ssize_t read_stream(void *ctx, uint64_t position, char *to, size_t most)
{
    struct request *r = ctx;
    (void)position;
    const size_t left = r->out.n - r->out_at;
    const size_t n = left < most ? left : most;
    if (r->is_gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n > 0) {
        memcpy(to, text_buffer_text(&r->out) + r->out_at, n);
        r->out_at += n;
        r->n_sent += n;
        if (r->out_at == r->out.n)
            r->out.n = r->out_at = 0;
        return (ssize_t)n;
    }
    if (r->is_over)
        return MHD_CONTENT_READER_END_OF_STREAM;
    r->is_suspended = true;
    MHD_suspend_connection(r->connection);
    return 0;
}

enum MHD_Result reply_stream(struct request *r)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, read_stream, r, NULL);
    if (response == NULL)
        return MHD_NO;
    add_header(response, "Cache-Control", "no-cache");
    add_header(response, "X-Accel-Buffering", "no");
    return queue(r, 200, "text/event-stream", response);
}
