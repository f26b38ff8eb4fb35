/* Responses and their headers. */
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/plat.h"
#include "base/plat_socket.h"
#include "server/http_internal.h"
#include "server/text_json.h"

const char *http_header(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    (void)MHD_add_response_header(response, name, value); /* a response without it is still valid */
}

static void add_cors(const struct request *r, struct MHD_Response *response)
{
    const char *origin = http_header(r, "Origin");
    if (origin == NULL || !access_is_allowed_origin(&r->server->rules, origin))
        return;
    add_header(response, "Access-Control-Allow-Origin", origin);
    add_header(response, "Vary", "Origin");
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
    if (status == 405 && r->endpoint != NULL)
        add_header(response, "Allow", r->endpoint->method);
    if (r->must_close)
        add_header(response, "Connection", "close");
    add_cors(r, response);
    r->status = status;
    const enum MHD_Result result = MHD_queue_response(r->connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* Sends r->out, which stays until it is sent. */
static enum MHD_Result send_kept(struct request *r, unsigned status, const char *type)
{
    r->n_sent += r->out.n;
    return queue(r, status, type,
                 MHD_create_response_from_buffer(r->out.n,
                                                 (void *)(uintptr_t)text_buffer_text(&r->out),
                                                 MHD_RESPMEM_PERSISTENT));
}

enum MHD_Result reply_bytes(struct request *r, const char *type, const char *bytes, size_t n)
{
    r->lease.is_answered = true;
    mem_lease_enter(&r->lease);
    const bool is_good = text_buffer_add(&r->out, bytes, n);
    mem_lease_leave();
    if (is_good)
        return send_kept(r, 200, type);
    (void)http_refuse_memory(&r->lease, &r->error);
    return reply_error(r);
}

enum MHD_Result reply_page(struct request *r, const struct web_file *file)
{
    const char *known = http_header(r, "If-None-Match");
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

enum MHD_Result reply_json(struct request *r, json_t *value)
{
    struct text_buffer text = {0};
    const enum MHD_Result result =
        text_add_json(&text, value)
            ? reply_bytes(r, "application/json", text_buffer_text(&text), text.n) : MHD_NO;
    json_decref(value);
    text_buffer_clear(&text);
    return result;
}

enum MHD_Result reply_small(struct request *r, unsigned status, json_t *value)
{
    struct text_buffer text = {0};
    enum MHD_Result result = MHD_NO;
    if (text_add_json(&text, value)) {
        r->n_sent += text.n;
        result = queue(r, status, "application/json",
                       MHD_create_response_from_buffer(text.n, text.data, MHD_RESPMEM_MUST_COPY));
    }
    json_decref(value);
    text_buffer_clear(&text);
    return result;
}

enum MHD_Result reply_kept(struct request *r, unsigned status)
{
    return send_kept(r, status, "application/json");
}

enum MHD_Result reply_error(struct request *r)
{
    return reply_small(r, api_status(r->error.fault, r->dialect),
                       api_error_json(&r->error, r->dialect));
}

void reply_error_at_once(struct request *r)
{
    struct text_buffer body = {0}, all = {0};
    json_t *value = api_error_json(&r->error, r->dialect);
    const int fd = r->client != NULL ? r->client->fd : -1;
    r->must_close = true;
    r->status = api_status(r->error.fault, r->dialect);
    /* A few hundred bytes on a connection that has sent nothing: they fit, or it is broken. */
    if (fd >= 0 && text_add_json(&body, value) &&
        text_add_format(&all, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: "
                        "application/json\r\nContent-Length: %zu\r\n\r\n", r->status,
                        MHD_get_reason_phrase_for(r->status), body.n) &&
        text_buffer_add(&all, text_buffer_text(&body), body.n) &&
        plat_send(fd, text_buffer_text(&all), all.n) == (ssize_t)all.n)
        r->n_sent += body.n;
    if (fd >= 0)
        (void)shutdown(fd, SHUT_WR);
    json_decref(value);
    text_buffer_clear(&body);
    text_buffer_clear(&all);
}

enum MHD_Result reply_preflight(struct request *r)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(0, NULL,
                                                                    MHD_RESPMEM_PERSISTENT);
    const char *wanted = http_header(r, "Access-Control-Request-Headers");
    if (response == NULL)
        return MHD_NO;
    add_header(response, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    add_header(response, "Access-Control-Allow-Headers", wanted != NULL ? wanted : "*");
    add_header(response, "Access-Control-Max-Age", "86400");
    const char *private = http_header(r, "Access-Control-Request-Private-Network");
    if (private != NULL && strcasecmp(private, "true") == 0) /* its origin is allowed or absent */
        add_header(response, "Access-Control-Allow-Private-Network", "true");
    return queue(r, 204, NULL, response);
}

/* Sends part of r->out. Returns the number of bytes. */
static size_t send_some(struct request *r, char *to, size_t max)
{
    const size_t left = r->out.n - r->out_at;
    const size_t n = left < max ? left : max;
    if (n > 0)
        memcpy(to, text_buffer_text(&r->out) + r->out_at, n);
    r->out_at += n;
    r->n_sent += n;
    if (r->out_at == r->out.n)
        r->out.n = r->out_at = 0;
    return n;
}

/* Sends the available bytes of the stream, or suspends the connection. */
static ssize_t read_stream(void *ctx, uint64_t position, char *to, size_t max)
{
    struct request *r = ctx;
    (void)position;
    if (r->is_gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    const size_t n = send_some(r, to, max);
    http_note_unsent(r);
    if (n > 0)
        return (ssize_t)n;
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
    return queue(r, 200, r->call.api->is_lines ? "application/x-ndjson" : "text/event-stream",
                 response);
}

/* Sends the next pieces of the answer. */
static ssize_t read_pieces(void *ctx, uint64_t position, char *to, size_t max)
{
    struct request *r = ctx;
    bool is_good = !r->is_gone;
    (void)position;
    mem_lease_enter(&r->lease);
    while (is_good && r->out.n < max && !api_pieces_is_over(&r->pieces))
        is_good = api_pieces_add(&r->pieces, &r->call, NULL, &r->out);
    mem_lease_leave();
    const size_t n = is_good ? send_some(r, to, max) : 0;
    if (n > 0)
        return (ssize_t)n;
    return is_good ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

enum MHD_Result reply_pieces(struct request *r)
{
    return queue(r, 200, "application/json",
                 MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 8192, read_pieces, r, NULL));
}
