#include "apps/cli/http_get.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/plat.h"
#include "base/plat_socket.h"

#define MAX_BYTES ((size_t)1 << 20)
#define MAX_NS (10 * UINT64_C(1000000000))

/* ---- URLs ------------------------------------------------------------------------------- */

static int bad_url(const char *text, const char *why, struct fm_error *err)
{
    return err_set(err, FM_ERR_ARG, "'%.100s' is not a server URL: %s; it should look like "
                   "http://127.0.0.1:8080", text, why);
}

static bool copy(char *to, size_t to_bytes, const char *from, size_t n)
{
    if (n >= to_bytes)
        return false;
    memcpy(to, from, n);
    to[n] = '\0';
    return true;
}

static bool is_port(const char *text)
{
    const size_t n = strspn(text, "0123456789");
    return n > 0 && n <= 5 && text[n] == '\0' && strtoul(text, NULL, 10) - 1 < 65535;
}

/* Parses HOST, HOST:PORT or [ADDRESS]:PORT. */
static bool split_host(const char *text, size_t n, struct http_url *url)
{
    const char *end = text + n, *port = url->is_https ? ":443" : ":80";
    const char *from = text, *until = memchr(text, ':', n);
    if (n > 0 && text[0] == '[') {
        from = text + 1;
        until = memchr(text, ']', n);
        if (until == NULL || (until + 1 < end && until[1] != ':'))
            return false;
    }
    if (until == NULL)
        until = end;
    if (!copy(url->host, sizeof url->host, from, (size_t)(until - from)) || url->host[0] == '\0')
        return false;
    until += *until == ']' && until < end;
    return copy(url->port, sizeof url->port, until < end ? until + 1 : port + 1,
                until < end ? (size_t)(end - until - 1) : strlen(port) - 1) && is_port(url->port);
}

int http_url_parse(const char *text, struct http_url *url, struct fm_error *err)
{
    *url = (struct http_url){.is_https = strncmp(text, "https://", 8) == 0};
    if (!url->is_https && strncmp(text, "http://", 7) != 0)
        return bad_url(text, "it does not begin with http:// or https://", err);
    for (const char *c = text; *c != '\0'; c++)
        if (*c <= ' ' || *c > '~' || strchr("\"'\\<>?#@", *c) != NULL)
            return bad_url(text, "it has an invalid character", err);
    const char *host = text + (url->is_https ? 8 : 7);
    size_t host_bytes = strcspn(host, "/"), all = strlen(text);
    while (all > 0 && text[all - 1] == '/')
        all--;
    const char *path = host + host_bytes, *end = text + all;
    if (!split_host(host, host_bytes, url))
        return bad_url(text, "its host or port is wrong", err);
    if (!copy(url->base, sizeof url->base, text, all) ||
        !copy(url->prefix, sizeof url->prefix, path, end > path ? (size_t)(end - path) : 0))
        return bad_url(text, "it is too long", err);
    return 0;
}

/* ---- the connection --------------------------------------------------------------------- */

struct talk {
    const struct http_url *url;
    uint64_t until_ns;
    int fd;
};

static int talk_fail(const struct talk *t, const char *what, int error, struct fm_error *err)
{
    return err_set(err, FM_ERR_IO, "%s port %s: %s: %s", t->url->host, t->url->port, what,
                   error == ETIMEDOUT ? "timed out" : strerror(error));
}

/* Returns 0 or an errno. */
static int wait_for(const struct talk *t, short events)
{
    for (;;) {
        const uint64_t now_ns = plat_now_ns();
        struct pollfd one = {.fd = t->fd, .events = events};
        if (now_ns >= t->until_ns)
            return ETIMEDOUT;
        const int n = poll(&one, 1, (int)((t->until_ns - now_ns) / 1000000 + 1));
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return errno;
    }
}

/* Returns 0, or an errno without leaving a descriptor open. */
static int connect_one(struct talk *t, const struct addrinfo *to)
{
    int error = 0;
    socklen_t bytes = sizeof error;
    t->fd = plat_socket(to->ai_family);
    if (t->fd < 0)
        return errno;
    if (connect(t->fd, to->ai_addr, to->ai_addrlen) < 0)
        error = errno;
    if (error == EINPROGRESS && (error = wait_for(t, POLLOUT)) == 0 &&
        getsockopt(t->fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
        error = errno;
    if (error != 0) {
        (void)close(t->fd); /* nothing was written */
        t->fd = -1;
    }
    return error;
}

static int talk_connect(struct talk *t, struct fm_error *err)
{
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const int why = getaddrinfo(t->url->host, t->url->port, &wanted, &found);
    if (why != 0)
        return err_set(err, FM_ERR_IO, "%s: %s", t->url->host, gai_strerror(why));
    int error = ECONNREFUSED;
    for (const struct addrinfo *one = found; one != NULL; one = one->ai_next)
        if ((error = connect_one(t, one)) == 0)
            break;
    freeaddrinfo(found);
    return error == 0 ? 0 : talk_fail(t, "cannot connect", error, err);
}

static int talk_send(const struct talk *t, const char *text, size_t bytes, struct fm_error *err)
{
    while (bytes > 0) {
        const ssize_t n = plat_send(t->fd, text, bytes);
        int error = n < 0 ? errno : 0;
        if (error == EAGAIN || error == EINTR)
            error = wait_for(t, POLLOUT);
        if (error != 0)
            return talk_fail(t, "cannot send", error, err);
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return 0;
}

int http_connect(const struct http_url *url, int *fd, struct fm_error *err)
{
    struct talk t = {.url = url, .until_ns = plat_now_ns() + MAX_NS, .fd = -1};
    const int rc = talk_connect(&t, err);
    *fd = t.fd;
    return rc;
}

int http_send(const struct http_url *url, int fd, const char *text, size_t bytes,
              struct fm_error *err)
{
    const struct talk t = {.url = url, .until_ns = plat_now_ns() + MAX_NS, .fd = fd};
    return talk_send(&t, text, bytes, err);
}

/* Reads until the other side closes; `text` has room for MAX_BYTES and a NUL. */
static int talk_receive(const struct talk *t, char *text, size_t *bytes, struct fm_error *err)
{
    for (*bytes = 0;;) {
        int error = wait_for(t, POLLIN);
        const ssize_t n = error == 0 ? recv(t->fd, text + *bytes, MAX_BYTES - *bytes, 0) : 0;
        if (n < 0)
            error = errno;
        if (error == EAGAIN || error == EINTR)
            continue;
        if (error != 0)
            return talk_fail(t, "no answer", error, err);
        *bytes += (size_t)n;
        text[*bytes] = '\0';
        if (n == 0)
            return 0;
        if (*bytes == MAX_BYTES)
            return err_set(err, FM_ERR_IO, "%s port %s: the answer is too long", t->url->host,
                           t->url->port);
    }
}

/* ---- the answer ------------------------------------------------------------------------- */

/* Decodes chunks in place. Returns false when they are incomplete. */
static bool join_chunks(char *text, size_t *bytes)
{
    size_t at = 0, n = 0;
    for (;;) {
        char *end = NULL;
        const char *line = memchr(text + at, '\n', *bytes - at);
        const unsigned long long chunk = line != NULL ? strtoull(text + at, &end, 16) : 0;
        if (line == NULL || end == text + at)
            return false;
        at = (size_t)(line - text) + 1;
        if (chunk == 0)
            break;
        if (chunk > *bytes - at)
            return false;
        memmove(text + n, text + at, chunk);
        n += chunk;
        at += chunk;
        at += at < *bytes && text[at] == '\r';
        at += at < *bytes && text[at] == '\n';
    }
    *bytes = n;
    text[n] = '\0';
    return true;
}

/* Returns the value of a header, up to the end of its line, or NULL. */
static const char *find_header(const char *head, const char *name)
{
    const size_t n = strlen(name);
    for (const char *line = strchr(head, '\n'); line != NULL; line = strchr(line, '\n'))
        if (strncasecmp(++line, name, n) == 0 && line[n] == ':')
            return line + n + 1 + strspn(line + n + 1, " \t");
    return NULL;
}

/* Parses the whole response in `text`, which becomes the body. */
static bool read_answer(char *text, size_t bytes, struct http_answer *answer)
{
    char *body = strstr(text, "\r\n\r\n");
    unsigned minor;
    if (body == NULL || sscanf(text, "HTTP/1.%1u %3u", &minor, &answer->status) != 2)
        return false;
    body[2] = '\0';
    body += 4;
    bytes -= (size_t)(body - text);
    const char *coding = find_header(text, "Transfer-Encoding");
    const char *length = find_header(text, "Content-Length");
    if (length != NULL && coding == NULL && strtoull(length, NULL, 10) > bytes)
        return false;
    if (coding != NULL && strncasecmp(coding, "chunked", 7) == 0 && !join_chunks(body, &bytes))
        return false;
    memmove(text, body, bytes);
    text[bytes] = '\0';
    answer->body = text;
    answer->body_bytes = bytes;
    return true;
}

int http_get(const struct http_url *url, const char *path, const char *api_key,
             struct http_answer *answer, struct fm_error *err)
{
    struct talk t = {.url = url, .until_ns = plat_now_ns() + MAX_NS, .fd = -1};
    char request[4096];
    const bool is_ipv6 = strchr(url->host, ':') != NULL;
    size_t bytes = 0;
    *answer = (struct http_answer){0};
    const int n = snprintf(request, sizeof request,
                           "GET %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nAccept: application/json\r\n"
                           "Connection: close\r\n%s%s%s\r\n", url->prefix, path,
                           is_ipv6 ? "[" : "", url->host, is_ipv6 ? "]" : "", url->port,
                           api_key != NULL ? "Authorization: Bearer " : "",
                           api_key != NULL ? api_key : "", api_key != NULL ? "\r\n" : "");
    if (n < 0 || (size_t)n >= sizeof request)
        return err_set(err, FM_ERR_ARG, "the API key is too long");
    char *text = mem_new(MAX_BYTES + 1, 1, "an answer", err);
    int rc = text != NULL ? talk_connect(&t, err) : FM_ERR_NOMEM;
    if (rc == 0)
        rc = talk_send(&t, request, (size_t)n, err);
    if (rc == 0)
        rc = talk_receive(&t, text, &bytes, err);
    if (rc == 0 && !read_answer(text, bytes, answer))
        rc = err_set(err, FM_ERR_IO, "%s port %s: the response is not HTTP or is incomplete",
                     url->host, url->port);
    if (t.fd >= 0)
        (void)close(t.fd);
    if (rc != 0)
        mem_free(text);
    return rc;
}
