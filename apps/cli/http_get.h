/* One GET over HTTP/1.1, to query a server, and connections for other requests. No TLS, no
 * redirects.
 *
 * Keeps no state; any thread. Errors name the host and port: FM_ERR_ARG for an invalid URL,
 * FM_ERR_IO when the server does not answer in time or does not speak HTTP. */
#ifndef FLASHMOE_APPS_CLI_HTTP_GET_H
#define FLASHMOE_APPS_CLI_HTTP_GET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct http_url {
    bool is_https;
    char host[256], port[8]; /* an IPv6 address without brackets */
    char base[1024]; /* the URL without a trailing slash, as clients expect it */
    char prefix[512]; /* its path: "" or "/..." */
};

struct http_answer {
    unsigned status;
    char *body; /* NUL-terminated; free with mem_free */
    size_t body_bytes;
};

int http_url_parse(const char *text, struct http_url *url, struct fm_error *err);

/* Gets `path`, which begins with a slash and is appended to the URL's own path. `api_key` may be
 * NULL. A response over one megabyte or ten seconds is an error. */
int http_get(const struct http_url *url, const char *path, const char *api_key,
             struct http_answer *answer, struct fm_error *err);

/* Connects within ten seconds. The caller closes the descriptor, which does not block; -1 after a
 * failure. */
int http_connect(const struct http_url *url, int *fd, struct fm_error *err);
/* Sends all of a text within ten seconds. */
int http_send(const struct http_url *url, int fd, const char *text, size_t bytes,
              struct fm_error *err);

#endif
