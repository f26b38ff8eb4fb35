#include "apps/bench/serve_client.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xxhash.h>

#include "apps/cli/interrupt.h"
#include "base/mem.h"
#include "base/plat.h"

#define LINE_BYTES ((size_t)1 << 20) /* of headers, and of a line of the stream */
#define SILENCE_NS (600 * UINT64_C(1000000000))

enum part { PART_HEAD, PART_SIZE, PART_CHUNK, PART_CHUNK_END, PART_PLAIN };

/* Bytes of headers or of a line that has not ended. */
struct pending {
    void *data;
    size_t n, capacity;
};

struct stream {
    int fd;
    enum part part;
    unsigned status;
    uint64_t chunk_left;
    struct pending line; /* headers, the size of a chunk, or a line of the body */
    struct pending body_line;
    struct serve_answer *answer;
    bool is_done; /* the last event was read */
    XXH3_state_t *hash;
};

struct client {
    const struct serve_load *load;
    struct stream *streams; /* [n_users] */
    struct pollfd *fds;
    uint64_t begin_ns;
    unsigned n_begun, n_ended;
};

static int client_fail(const struct client *c, const char *what, struct fm_error *err)
{
    return err_set(err, FM_ERR_IO, "the server %s: %s", c->load->url->base, what);
}

/* Returns false if memory runs out. */
static bool pending_add(struct pending *p, const char *text, size_t bytes)
{
    if (p->capacity < p->n + bytes &&
        mem_grow(&p->data, &p->capacity, p->n + bytes, 1, "an answer", NULL) != 0)
        return false;
    memcpy((char *)p->data + p->n, text, bytes);
    p->n += bytes;
    return true;
}

/* ---- the request ------------------------------------------------------------------------ */

/* Returns the path of an endpoint below /v1, which the URL may end with already. */
static const char *path_of(const struct http_url *url, const char *with_v1)
{
    const size_t n = strlen(url->prefix);
    return n >= 3 && strcmp(url->prefix + n - 3, "/v1") == 0 ? with_v1 + 3 : with_v1;
}

static json_t *ask_json(const struct serve_load *load, unsigned user)
{
    json_t *ids = json_array();
    for (size_t i = 0; i < load->n_prompt; i++)
        (void)json_array_append_new(ids, json_integer(load->prompts[user][i]));
    if (json_array_size(ids) != load->n_prompt) {
        json_decref(ids);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:I, s:i, s:b, s:{s:b}, s:b, s:b}", "model", load->model,
                     "prompt", ids, "max_tokens", (json_int_t)load->n_tokens, "temperature", 0,
                     "stream", 1, "stream_options", "include_usage", 1, "ignore_eos", 1,
                     "cache_prompt", 1);
}

static int send_ask(const struct client *c, unsigned user, struct fm_error *err)
{
    const struct serve_load *load = c->load;
    const struct http_url *url = load->url;
    const bool is_ipv6 = strchr(url->host, ':') != NULL;
    char head[4096];
    json_t *ask = ask_json(load, user);
    const size_t bytes = ask != NULL ? json_dumpb(ask, NULL, 0, JSON_COMPACT) : 0;
    char *body = bytes > 0 ? mem_new(bytes, 1, "a request", NULL) : NULL;
    if (body != NULL)
        (void)json_dumpb(ask, body, bytes, JSON_COMPACT); /* it has this size */
    json_decref(ask);
    if (body == NULL)
        return err_set(err, FM_ERR_NOMEM, "out of memory for a request");
    const int n = snprintf(head, sizeof head,
                           "POST %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nContent-Type: "
                           "application/json\r\nContent-Length: %zu\r\nConnection: close\r\n"
                           "%s%s%s\r\n", url->prefix, path_of(url, "/v1/completions"),
                           is_ipv6 ? "[" : "", url->host, is_ipv6 ? "]" : "", url->port,
                           bytes, load->api_key != NULL ? "Authorization: Bearer " : "",
                           load->api_key != NULL ? load->api_key : "",
                           load->api_key != NULL ? "\r\n" : "");
    int rc = n > 0 && (size_t)n < sizeof head ? 0 : err_set(err, FM_ERR_ARG,
                                                            "the API key is too long");
    if (rc == 0)
        rc = http_send(url, c->streams[user].fd, head, (size_t)n, err);
    if (rc == 0)
        rc = http_send(url, c->streams[user].fd, body, bytes, err);
    mem_free(body);
    return rc;
}

/* ---- the answer ------------------------------------------------------------------------- */

static uint64_t number_at(const json_t *object, const char *name, uint64_t otherwise)
{
    const json_t *value = json_object_get(object, name);
    return json_is_integer(value) && json_integer_value(value) >= 0
               ? (uint64_t)json_integer_value(value) : otherwise;
}

static void take_text(struct client *c, struct stream *s, const char *text, size_t bytes,
                      uint64_t now_ns)
{
    struct serve_answer *a = s->answer;
    const uint64_t at_ns = now_ns - c->begin_ns;
    c->n_begun += a->n_pieces == 0;
    if (a->n_pieces == 0)
        a->first_ns = at_ns;
    else if (at_ns - a->last_ns > a->gap_ns)
        a->gap_ns = at_ns - a->last_ns;
    a->last_ns = at_ns;
    a->n_pieces++;
    (void)XXH3_64bits_update(s->hash, text, bytes); /* fails for NULL only */
}

static void take_usage(struct serve_answer *a, const json_t *usage)
{
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    a->n_tokens = number_at(usage, "completion_tokens", a->n_tokens);
    a->n_prompt = number_at(usage, "prompt_tokens", a->n_prompt);
    a->n_cached = number_at(details, "cached_tokens", a->n_cached);
}

/* llama-server tells here how much of the prompt it had. Ours also tells the longest time between
 * two tokens. Between two pieces may be more of them: no piece ends inside a character. */
static void take_timings(struct serve_answer *a, const json_t *timings)
{
    const double max_ms = json_number_value(json_object_get(timings, "predicted_max_ms"));
    a->n_cached = number_at(timings, "cache_n", a->n_cached);
    if (max_ms > 0 && max_ms < 1e9)
        a->gap_ns = (uint64_t)(1e6 * max_ms);
}

/* Returns whether an event brings a token. Its text may be empty, as often with random weights: the
 * last event of an answer also has an empty text, and says why it ended. */
static bool has_token(const json_t *choice)
{
    const json_t *piece = json_object_get(choice, "text");
    return json_string_length(piece) > 0 ||
           (json_is_string(piece) && !json_is_string(json_object_get(choice, "finish_reason")));
}

/* Reads one event of the stream. */
static int take_event(struct client *c, struct stream *s, const char *text, size_t bytes,
                      uint64_t now_ns, struct fm_error *err)
{
    json_t *event = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    const json_t *error = json_object_get(event, "error");
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const json_t *piece = json_object_get(choice, "text");
    int rc = 0;
    if (!json_is_object(event)) {
        rc = client_fail(c, "an event of its stream is not a JSON object", err);
    } else if (error != NULL) {
        const char *why = json_string_value(json_object_get(error, "message"));
        rc = client_fail(c, why != NULL ? why : "an error without a message", err);
    } else {
        if (has_token(choice))
            take_text(c, s, json_string_value(piece), json_string_length(piece), now_ns);
        take_usage(s->answer, json_object_get(event, "usage"));
        take_timings(s->answer, json_object_get(event, "timings"));
    }
    json_decref(event);
    return rc;
}

static int take_line(struct client *c, struct stream *s, uint64_t now_ns, struct fm_error *err)
{
    const char *text = s->body_line.data;
    size_t n = s->body_line.n;
    int rc = 0;
    while (n > 0 && (text[n - 1] == '\r' || text[n - 1] == '\n'))
        n--;
    if (s->status != 200 && n > 0)
        rc = err_set(err, FM_ERR_IO, "the server %s refuses a request with status %u: %.*s",
                     c->load->url->base, s->status, n < 300 ? (int)n : 300, text);
    else if (n >= 5 && memcmp(text, "data:", 5) == 0) {
        const size_t skip = n > 5 && text[5] == ' ' ? 6 : 5;
        if (n - skip == 6 && memcmp(text + skip, "[DONE]", 6) == 0)
            s->is_done = true;
        else
            rc = take_event(c, s, text + skip, n - skip, now_ns, err);
    }
    s->body_line.n = 0;
    return rc;
}

static int take_body(struct client *c, struct stream *s, const char *text, size_t bytes,
                     uint64_t now_ns, struct fm_error *err)
{
    int rc = 0;
    while (rc == 0 && bytes > 0) {
        const char *end = memchr(text, '\n', bytes);
        const size_t n = end != NULL ? (size_t)(end - text) + 1 : bytes;
        if (s->body_line.n + n > LINE_BYTES)
            return client_fail(c, "a line of its answer is too long", err);
        if (!pending_add(&s->body_line, text, n))
            return err_set(err, FM_ERR_NOMEM, "out of memory for an answer");
        if (end != NULL)
            rc = take_line(c, s, now_ns, err);
        text += n;
        bytes -= n;
    }
    return rc;
}

/* ---- HTTP ------------------------------------------------------------------------------- */

/* Looks for the end of the headers, or of the line with a chunk's size. */
static bool is_complete(const struct stream *s)
{
    const char *text = s->line.data;
    const size_t n = s->line.n;
    if (s->part == PART_HEAD)
        return n >= 4 && memcmp(text + n - 4, "\r\n\r\n", 4) == 0;
    return n > 0 && text[n - 1] == '\n';
}

static int read_head(const struct client *c, struct stream *s, struct fm_error *err)
{
    unsigned minor;
    const char *text = s->line.data;
    if (sscanf(text, "HTTP/1.%1u %3u", &minor, &s->status) != 2)
        return client_fail(c, "its answer is not HTTP", err);
    s->part = PART_PLAIN;
    for (const char *line = strchr(text, '\n'); line != NULL; line = strchr(line, '\n'))
        if (strncasecmp(++line, "Transfer-Encoding:", 18) == 0 &&
            strncasecmp(line + 18 + strspn(line + 18, " \t"), "chunked", 7) == 0)
            s->part = PART_SIZE;
    return 0;
}

static int end_line(const struct client *c, struct stream *s, struct fm_error *err)
{
    int rc = 0;
    if (!pending_add(&s->line, "", 1)) /* ends the text */
        return err_set(err, FM_ERR_NOMEM, "out of memory for an answer");
    const char *text = s->line.data;
    if (s->part == PART_HEAD) {
        rc = read_head(c, s, err);
    } else if (s->part == PART_CHUNK_END) {
        s->part = PART_SIZE;
    } else {
        char *end = NULL;
        s->chunk_left = strtoull(text, &end, 16);
        if (end == text)
            rc = client_fail(c, "its answer has a chunk without a size", err);
        s->part = s->chunk_left > 0 ? PART_CHUNK : PART_CHUNK_END;
    }
    s->line.n = 0;
    return rc;
}

static int take_bytes(struct client *c, struct stream *s, const char *text, size_t bytes,
                      uint64_t now_ns, struct fm_error *err)
{
    int rc = 0;
    while (rc == 0 && bytes > 0) {
        size_t n = 1;
        if (s->part == PART_PLAIN || s->part == PART_CHUNK) {
            n = s->part == PART_CHUNK && s->chunk_left < bytes ? (size_t)s->chunk_left : bytes;
            s->chunk_left -= s->part == PART_CHUNK ? n : 0;
            rc = take_body(c, s, text, n, now_ns, err);
            if (s->part == PART_CHUNK && s->chunk_left == 0)
                s->part = PART_CHUNK_END;
        } else if (s->line.n >= LINE_BYTES) {
            rc = client_fail(c, "its headers are too long", err);
        } else if (!pending_add(&s->line, text, 1)) {
            rc = err_set(err, FM_ERR_NOMEM, "out of memory for an answer");
        } else if (is_complete(s)) {
            rc = end_line(c, s, err);
        }
        text += n;
        bytes -= n;
    }
    return rc;
}

static int end_stream(struct client *c, struct stream *s, struct fm_error *err)
{
    struct serve_answer *a = s->answer;
    if (!s->is_done || a->n_pieces == 0)
        return client_fail(c, s->is_done ? "an answer has no text" : "an answer ended early", err);
    a->n_tokens = a->n_tokens > 0 ? a->n_tokens : a->n_pieces;
    a->text_hash = XXH3_64bits_digest(s->hash);
    (void)close(s->fd);
    s->fd = -1;
    c->n_ended++;
    return 0;
}

static int receive(struct client *c, struct stream *s, struct fm_error *err)
{
    char bytes[16384];
    const ssize_t n = recv(s->fd, bytes, sizeof bytes, 0);
    const int error = n < 0 ? errno : 0;
    if (error == EAGAIN || error == EINTR)
        return 0;
    if (n < 0)
        return client_fail(c, strerror(error), err);
    int rc = n > 0 ? take_bytes(c, s, bytes, (size_t)n, plat_now_ns(), err) : 0;
    if (rc == 0 && n == 0 && s->body_line.n > 0)
        rc = take_line(c, s, plat_now_ns(), err);
    return rc == 0 && (n == 0 || s->is_done) ? end_stream(c, s, err) : rc;
}

/* ---- all of them ------------------------------------------------------------------------ */

static int wait_for_some(struct client *c, uint64_t heard_ns, int *n_ready, struct fm_error *err)
{
    for (unsigned i = 0; i < c->load->n_users; i++)
        c->fds[i] = (struct pollfd){.fd = c->streams[i].fd, .events = POLLIN};
    *n_ready = poll(c->fds, c->load->n_users, 1000);
    if (interrupt_seen())
        return FM_ERR_CANCELLED;
    if (*n_ready < 0 && errno != EINTR)
        return client_fail(c, strerror(errno), err);
    if (*n_ready <= 0 && plat_now_ns() - heard_ns > SILENCE_NS)
        return client_fail(c, "it has said nothing for ten minutes", err);
    return 0;
}

static int read_all(struct client *c, struct fm_error *err)
{
    uint64_t heard_ns = plat_now_ns();
    int rc = 0;
    while (rc == 0 && c->n_ended < c->load->n_users) {
        int n_ready = 0;
        rc = wait_for_some(c, heard_ns, &n_ready, err);
        heard_ns = n_ready > 0 ? plat_now_ns() : heard_ns;
        for (unsigned i = 0; rc == 0 && n_ready > 0 && i < c->load->n_users; i++)
            if (c->fds[i].revents != 0)
                rc = receive(c, &c->streams[i], err);
        if (rc == 0 && n_ready > 0 && c->load->seen != NULL)
            c->load->seen(c->load->ctx, c->n_begun, c->n_ended);
    }
    return rc;
}

static int begin_all(struct client *c, struct serve_answer *answers, struct fm_error *err)
{
    int rc = 0;
    for (unsigned i = 0; i < c->load->n_users; i++)
        c->streams[i].fd = -1;
    for (unsigned i = 0; rc == 0 && i < c->load->n_users; i++) {
        struct stream *s = &c->streams[i];
        s->answer = &answers[i];
        s->hash = XXH3_createState();
        if (s->hash == NULL)
            return err_set(err, FM_ERR_NOMEM, "out of memory for the streams");
        (void)XXH3_64bits_reset(s->hash);
        rc = http_connect(c->load->url, &s->fd, err);
    }
    c->begin_ns = plat_now_ns();
    for (unsigned i = 0; rc == 0 && i < c->load->n_users; i++)
        rc = send_ask(c, i, err);
    return rc;
}

int serve_client_run(const struct serve_load *load, struct serve_answer *answers,
                     struct fm_error *err)
{
    struct client c = {.load = load,
                       .streams = mem_new(load->n_users, sizeof *c.streams, "the streams", err),
                       .fds = mem_new(load->n_users, sizeof *c.fds, "the streams", err)};
    int rc = c.streams == NULL || c.fds == NULL ? FM_ERR_NOMEM : 0;
    memset(answers, 0, load->n_users * sizeof *answers);
    if (rc == 0)
        rc = begin_all(&c, answers, err);
    if (rc == 0)
        rc = read_all(&c, err);
    for (unsigned i = 0; c.streams != NULL && i < load->n_users; i++) {
        plat_close(c.streams[i].fd);
        mem_free(c.streams[i].line.data);
        mem_free(c.streams[i].body_line.data);
        (void)XXH3_freeState(c.streams[i].hash); /* accepts NULL */
    }
    mem_free(c.streams);
    mem_free(c.fds);
    return rc;
}

int serve_client_model(const struct http_url *url, const char *api_key, char name[128],
                       unsigned *vocabulary, struct fm_error *err)
{
    struct http_answer answer;
    const int rc = http_get(url, path_of(url, "/v1/models"), api_key, &answer, err);
    if (rc != 0)
        return rc;
    json_t *all = json_loadb(answer.body, answer.body_bytes, 0, NULL);
    const json_t *model = json_array_get(json_object_get(all, "data"), 0);
    const char *id = json_string_value(json_object_get(model, "id"));
    const uint64_t n = number_at(json_object_get(model, "meta"), "n_vocab", 0);
    mem_free(answer.body);
    *vocabulary = n < INT32_MAX ? (unsigned)n : 0;
    (void)snprintf(name, 128, "%s", id != NULL ? id : "");
    json_decref(all);
    if (answer.status != 200 || id == NULL)
        return err_set(err, FM_ERR_IO, "%s%s does not list a model (status %u); --url needs a "
                       "server with OpenAI's API", url->base, path_of(url, "/v1/models"),
                       answer.status);
    return 0;
}
