/* One GET over HTTP/1.1, for asking a server what it is. No TLS, no redirects.
 *
 * Owns nothing; any thread. The errors name the host and the port: FM_ERR_ARG for a URL that cannot
 * be one, FM_ERR_IO when nobody answers in time or what comes is not HTTP. */
#ifndef FLASHMOE_APPS_CLI_HTTP_GET_H
#define FLASHMOE_APPS_CLI_HTTP_GET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct http_url {
    bool is_https;
    char host[256], port[8]; /* an IPv6 address without its brackets */
    char base[1024]; /* the URL without a slash at the end, as a client is given it */
    char prefix[512]; /* the path of it, "" or "/..." */
};

struct http_answer {
    unsigned status;
    char *body; /* NUL-terminated; free with mem_free */
    size_t body_bytes;
};

int http_url_parse(const char *text, struct http_url *url, struct fm_error *err);

/* `path` begins with a slash and is taken below the URL's own; `api_key` may be NULL. An answer of
 * more than a megabyte, or one that takes more than ten seconds, is an error. */
int http_get(const struct http_url *url, const char *path, const char *api_key,
             struct http_answer *answer, struct fm_error *err);

#endif
