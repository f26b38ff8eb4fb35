/* Requests to the hub and to the hosts that it sends us to, over libcurl.
 *
 * Redirects are followed here, not by libcurl, so that it is plain which request carries the
 * token: only one to the hub's own host, over https or to this machine. A redirect from https to
 * http is refused. One thread. Errors name the URL without its query, which may be a signature. */
#ifndef FLASHMOE_APPS_PULL_WEB_H
#define FLASHMOE_APPS_PULL_WEB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "apps/pull/curl_calls.h"
#include "apps/pull/model_name.h"
#include "apps/pull/pull_env.h"

#define WEB_ETAG_BYTES 256
#define WEB_TEXT_BYTES 256
#define WEB_MAX_REDIRECTS 10
/* Bytes per second; a connection that is slower for the whole timeout is given up. At this speed a
 * model would take years. */
#define WEB_MIN_SPEED 512
#define WEB_IGNORED_BYTES (64u << 10) /* of the text of a redirect or an error, which is not used */

struct web {
    const struct pull_env *env; /* borrowed */
    unsigned timeout_s, n_retries;
    bool (*is_stopped)(void); /* returns true to give up, as after Ctrl-C */
};

/* The head of a response. */
struct web_reply {
    long status;
    char location[MODEL_URL_BYTES];
    char etag[WEB_ETAG_BYTES];
    char next[MODEL_URL_BYTES];      /* the next page of a list, or "" */
    char said[WEB_TEXT_BYTES];       /* the server's own explanation, or "" */
    char error_code[WEB_TEXT_BYTES]; /* the hub's name of the error, such as GatedRepo, or "" */
    bool has_range;                  /* it has the bytes [range_first, range_end) of range_total */
    uint64_t range_first, range_end, range_total;
    bool has_length;
    uint64_t length;
    bool is_encoded; /* it is compressed, against our wish */
};

int web_begin(struct fm_error *err); /* once per program, before everything else */

/* Prepares a request. *headers belongs to the caller, who frees it after the transfer with
 * curl_slist_free_all; `reply` is filled in as the head arrives. */
int web_prepare(const struct web *web, CURL *easy, const char *url, struct web_reply *reply,
                struct curl_slist **headers, struct fm_error *err);

/* Returns whether a response with this status has bytes of the file. */
bool web_is_good(long status);
/* Returns whether a status asks for another URL. */
bool web_is_redirect(long status);
/* Writes where a redirect from `url` leads. Fails if that is not http or https, or less safe. */
int web_follow(const char *url, const char *location, char out[MODEL_URL_BYTES],
               struct fm_error *err);
/* Returns whether a request for this URL carries the token. */
bool web_sends_token(const struct pull_env *env, const char *url);
/* Returns whether trying again can help after this result; `status` is 0 without a response. */
bool web_may_retry(CURLcode code, long status);
/* Returns how long the server asks us to wait (Retry-After), or 0. */
uint64_t web_asked_ns(CURL *easy);
/* Returns how long to wait before a retry: the server's wish if it has one, else twice as long
 * each time. */
uint64_t web_wait_ns(CURL *easy, unsigned n_failures);
/* Sets the error for a request that failed for good. */
int web_explain(const struct web *web, CURLcode code, const char *why, const char *url,
                const struct web_reply *reply, struct fm_error *err);
/* Copies the URL without its query. */
const char *web_shown(const char *url, char out[MODEL_URL_BYTES]);

/* These follow redirects and retry. web_get gets a small document: *body is NUL-terminated; free it
 * with mem_free. Fails if it is larger than max_bytes. */
int web_get(const struct web *web, const char *url, size_t max_bytes, char **body, size_t *bytes,
            struct web_reply *reply, struct fm_error *err);
/* Gets exactly n bytes of a file. */
int web_get_range(const struct web *web, const char *url, uint64_t first, size_t n, char *out,
                  struct fm_error *err);
/* Finds out how large a file is, and its ETag ("" if it has none). */
int web_probe(const struct web *web, const char *url, uint64_t *bytes, char etag[WEB_ETAG_BYTES],
              struct fm_error *err);

#endif
