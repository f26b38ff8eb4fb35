#include "apps/pull/web.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/plat.h"

#define SECOND_NS 1000000000ull
#define MAX_WAIT_S 30
#define MAX_ASKED_WAIT_S 600 /* a server may ask for more; nobody waits longer than that */
#define REFUSED_BYTES 4096   /* of the text of an error */

int web_begin(struct fm_error *err)
{
    if (curl_calls_load(err) != 0)
        return FM_ERR_UNSUPPORTED;
    const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    return code == CURLE_OK ? 0 : err_set(err, FM_ERR_UNSUPPORTED, "libcurl cannot be used: %s",
                                          curl_easy_strerror(code));
}

const char *web_shown(const char *url, char out[MODEL_URL_BYTES])
{
    (void)snprintf(out, MODEL_URL_BYTES, "%.*s", (int)strcspn(url, "?#"), url);
    return out;
}

/* ---- hosts ------------------------------------------------------------------------------ */

struct origin {
    char scheme[16], host[256], port[16];
};

static bool take_part(CURLU *u, CURLUPart part, unsigned flags, char *out, size_t bytes)
{
    char *text = NULL;
    const bool is_there = curl_url_get(u, part, &text, flags) == CURLUE_OK &&
                          strlen(text) < bytes;
    if (is_there)
        (void)snprintf(out, bytes, "%s", text);
    curl_free(text);
    return is_there;
}

static bool origin_of(const char *url, struct origin *out)
{
    CURLU *u = curl_url();
    const bool is_good =
        u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        take_part(u, CURLUPART_SCHEME, 0, out->scheme, sizeof out->scheme) &&
        take_part(u, CURLUPART_HOST, 0, out->host, sizeof out->host) &&
        take_part(u, CURLUPART_PORT, CURLU_DEFAULT_PORT, out->port, sizeof out->port);
    curl_url_cleanup(u);
    return is_good;
}

/* Returns whether the host is this machine: by an address, not by a name such as 127.example. */
static bool is_this_machine(const char *host)
{
    uint8_t address[4];
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
           (inet_pton(AF_INET, host, address) == 1 && address[0] == 127);
}

/* Returns whether nobody between the hosts can read or change what is sent. */
static bool is_safe(const struct origin *o)
{
    return strcmp(o->scheme, "https") == 0 || is_this_machine(o->host);
}

bool web_sends_token(const struct pull_env *env, const char *url)
{
    struct origin hub, to;
    return env->token[0] != '\0' && origin_of(env->endpoint, &hub) && origin_of(url, &to) &&
           strcasecmp(hub.scheme, to.scheme) == 0 && strcasecmp(hub.host, to.host) == 0 &&
           strcmp(hub.port, to.port) == 0 && is_safe(&to);
}

bool web_is_good(long status)
{
    return status == 200 || status == 206;
}

bool web_is_redirect(long status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

int web_follow(const char *url, const char *location, char out[MODEL_URL_BYTES],
               struct fm_error *err)
{
    char from_text[MODEL_URL_BYTES], to_text[MODEL_URL_BYTES];
    struct origin from, to;
    CURLU *u = curl_url();
    const bool is_good = u != NULL && location[0] != '\0' &&
                         curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                         curl_url_set(u, CURLUPART_URL, location, 0) == CURLUE_OK &&
                         take_part(u, CURLUPART_URL, 0, out, MODEL_URL_BYTES);
    curl_url_cleanup(u);
    if (!is_good || !origin_of(out, &to) || !origin_of(url, &from) ||
        (strcmp(to.scheme, "http") != 0 && strcmp(to.scheme, "https") != 0))
        return err_set(err, FM_ERR_IO, "%s: it redirects to '%.200s', which is no URL of http or "
                       "https", web_shown(url, from_text), web_shown(location, to_text));
    if (is_safe(&from) && strcmp(from.scheme, "https") == 0 && strcmp(to.scheme, "http") == 0)
        return err_set(err, FM_ERR_IO, "%s: it redirects to %.200s, without https: refused",
                       web_shown(url, from_text), web_shown(out, to_text));
    return 0;
}

/* ---- requests --------------------------------------------------------------------------- */

/* Returns the value if the line is this header; *n is its length without blanks around it. */
static const char *value_of(const char *line, size_t bytes, const char *name, size_t *n)
{
    const size_t n_name = strlen(name);
    if (bytes <= n_name || strncasecmp(line, name, n_name) != 0 || line[n_name] != ':')
        return NULL;
    const char *at = line + n_name + 1, *end = line + bytes;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    *n = (size_t)(end - at);
    return at;
}

static void copy_header(const char *line, size_t bytes, const char *name, char *out, size_t size)
{
    size_t n;
    const char *value = value_of(line, bytes, name, &n);
    if (value != NULL && n < size) {
        memcpy(out, value, n);
        out[n] = '\0';
    }
}

/* Parses "bytes 0-99/1000". */
static void read_range(const char *text, struct web_reply *reply)
{
    unsigned long long first, last, total;
    int used = 0;
    reply->has_range = sscanf(text, "bytes %20llu-%20llu/%20llu%n", &first, &last, &total,
                              &used) == 3 &&
                       text[used] == '\0' && last >= first && total > last;
    if (reply->has_range) {
        reply->range_first = first;
        reply->range_end = last + 1;
        reply->range_total = total;
    }
}

/* Parses a Link header: <URL>; rel="next". */
static void read_link(const char *text, struct web_reply *reply)
{
    const char *begin = strchr(text, '<'), *end = begin != NULL ? strchr(begin, '>') : NULL;
    if (end != NULL && strstr(end, "rel=\"next\"") != NULL)
        (void)snprintf(reply->next, sizeof reply->next, "%.*s", (int)(end - begin - 1), begin + 1);
}

static size_t take_header(char *line, size_t size, size_t n, void *ctx)
{
    struct web_reply *reply = ctx;
    const size_t bytes = size * n;
    char text[MODEL_URL_BYTES] = "";
    if (bytes > 5 && strncmp(line, "HTTP/", 5) == 0)
        *reply = (struct web_reply){0};
    copy_header(line, bytes, "location", reply->location, sizeof reply->location);
    copy_header(line, bytes, "etag", reply->etag, sizeof reply->etag);
    copy_header(line, bytes, "x-error-message", reply->said, sizeof reply->said);
    copy_header(line, bytes, "x-error-code", reply->error_code, sizeof reply->error_code);
    copy_header(line, bytes, "content-range", text, sizeof text);
    if (text[0] != '\0')
        read_range(text, reply);
    text[0] = '\0';
    copy_header(line, bytes, "link", text, sizeof text);
    if (text[0] != '\0')
        read_link(text, reply);
    text[0] = '\0';
    copy_header(line, bytes, "content-encoding", text, sizeof text);
    if (text[0] != '\0' && strcasecmp(text, "identity") != 0)
        reply->is_encoded = true;
    text[0] = '\0';
    copy_header(line, bytes, "content-length", text, sizeof text);
    char *end;
    const unsigned long long length = strtoull(text, &end, 10);
    if (text[0] >= '0' && text[0] <= '9' && *end == '\0') {
        reply->has_length = true;
        reply->length = length;
    }
    return bytes;
}

static int stop_if_asked(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct web *web = ctx;
    (void)a, (void)b, (void)c, (void)d;
    return web->is_stopped != NULL && web->is_stopped() ? 1 : 0;
}

static void limit_protocols(CURL *easy)
{
#if LIBCURL_VERSION_NUM >= 0x075500
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
}

int web_prepare(const struct web *web, CURL *easy, const char *url, struct web_reply *reply,
                struct curl_slist **headers, struct fm_error *err)
{
    char line[PULL_TOKEN_BYTES + 32];
    struct curl_slist *list = curl_slist_append(NULL, "Accept-Encoding: identity"), *more = NULL;
    *reply = (struct web_reply){0};
    if (web_sends_token(web->env, url)) {
        (void)snprintf(line, sizeof line, "Authorization: Bearer %s", web->env->token);
        more = list != NULL ? curl_slist_append(list, line) : NULL;
        if (more == NULL) {
            curl_slist_free_all(list);
            list = NULL;
        }
    }
    *headers = list;
    if (list == NULL || curl_easy_setopt(easy, CURLOPT_URL, url) != CURLE_OK)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot prepare a request");
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, list);
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, "flashmoe/" FLASHMOE_VERSION);
    limit_protocols(easy);
    (void)curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
    /* One connection per request: with HTTP/2 all ranges would share one. */
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)web->timeout_s);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, (long)WEB_MIN_SPEED);
    (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)web->timeout_s);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, reply);
    (void)curl_easy_setopt(easy, CURLOPT_NOPROGRESS, 0L);
    (void)curl_easy_setopt(easy, CURLOPT_XFERINFOFUNCTION, stop_if_asked);
    (void)curl_easy_setopt(easy, CURLOPT_XFERINFODATA, (void *)(uintptr_t)web);
    if (web->env->ca_bundle != NULL)
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, web->env->ca_bundle);
    return 0;
}

/* ---- failures --------------------------------------------------------------------------- */

bool web_may_retry(CURLcode code, long status)
{
    switch (code) {
    case CURLE_OK:
        return status == 408 || status == 425 || status == 429 || status >= 500;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CIPHER:
    case CURLE_WRITE_ERROR:
    case CURLE_ABORTED_BY_CALLBACK:
    case CURLE_OUT_OF_MEMORY:
        return false;
    default:
        return true;
    }
}

uint64_t web_asked_ns(CURL *easy)
{
    curl_off_t asked = 0;
    if (curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &asked) != CURLE_OK || asked <= 0)
        return 0;
    return (uint64_t)(asked < MAX_ASKED_WAIT_S ? asked : MAX_ASKED_WAIT_S) * SECOND_NS;
}

uint64_t web_wait_ns(CURL *easy, unsigned n_failures)
{
    if (web_asked_ns(easy) > 0)
        return web_asked_ns(easy);
    uint64_t wait = SECOND_NS / 4;
    for (unsigned i = 1; i < n_failures && wait < MAX_WAIT_S * SECOND_NS; i++)
        wait *= 2;
    return wait < MAX_WAIT_S * SECOND_NS ? wait : MAX_WAIT_S * SECOND_NS;
}

/* Returns whether the URL is one of the hub, which alone gets the token. */
static bool is_hub(const struct web *web, const char *url)
{
    struct origin hub, to;
    return origin_of(web->env->endpoint, &hub) && origin_of(url, &to) &&
           strcasecmp(hub.host, to.host) == 0 && strcmp(hub.port, to.port) == 0;
}

/* Returns what to do about a status. */
static const char *advice(const struct web *web, const char *url, const struct web_reply *reply)
{
    const bool has_token = web->env->token[0] != '\0';
    if ((reply->status == 401 || reply->status == 403) && !is_hub(web, url))
        return "; it must be public: the token is for the hub alone";
    if (strcmp(reply->error_code, "GatedRepo") == 0)
        return has_token ? "; accept the terms on the model's page with the account of this token"
                         : "; accept the terms on the model's page, then set HF_TOKEN to a token "
                           "of that account";
    if (reply->status == 401)
        return has_token ? "; the name may be wrong, or the token may not read it"
                         : "; the name may be wrong, or the model is private: set HF_TOKEN";
    if (reply->status == 403)
        return has_token ? "; the token may not read it" : "; it may need a token: set HF_TOKEN";
    if (reply->status == 404)
        return "; check the name, the revision and the file";
    return "; run the same command again to continue";
}

int web_explain(const struct web *web, CURLcode code, const char *why, const char *url,
                const struct web_reply *reply, struct fm_error *err)
{
    char shown[MODEL_URL_BYTES];
    web_shown(url, shown);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return err_set(err, FM_ERR_CANCELLED, "stopped");
    if (code == CURLE_OUT_OF_MEMORY)
        return err_set(err, FM_ERR_NOMEM, "out of memory: cannot get %.300s", shown);
    if (code != CURLE_OK)
        return err_set(err, FM_ERR_IO, "%.300s: %.300s%s", shown,
                       why != NULL && why[0] != '\0' ? why : curl_easy_strerror(code),
                       web_may_retry(code, 0) ? "; run the same command again to continue" : "");
    return err_set(err, FM_ERR_IO, "%.300s: the server answers %ld%s%.200s%s", shown,
                   reply->status, reply->said[0] != '\0' ? ", " : "", reply->said,
                   advice(web, url, reply));
}

/* ---- small documents -------------------------------------------------------------------- */

struct document {
    char *text;
    size_t bytes, capacity, max_bytes;
    bool is_too_large;
    bool is_probe; /* only the head matters */
    CURL *easy;    /* of the request that fills it in */
    size_t n_ignored;
    bool is_cut; /* the text of an error was too long: we ended the transfer; its status counts */
    struct fm_error *err;
};

static size_t take_text(char *data, size_t size, size_t n, void *ctx)
{
    struct document *d = ctx;
    const size_t bytes = size * n;
    long status = 0;
    (void)curl_easy_getinfo(d->easy, CURLINFO_RESPONSE_CODE, &status);
    if (!web_is_good(status)) {
        d->n_ignored += bytes;
        d->is_cut = d->n_ignored > WEB_IGNORED_BYTES;
        return d->is_cut ? 0 : bytes;
    }
    d->is_too_large = bytes > d->max_bytes - d->bytes;
    if (d->is_too_large || mem_grow((void **)&d->text, &d->capacity, d->bytes + bytes + 1, 1,
                                    "a document", d->err) != 0)
        return 0;
    memcpy(d->text + d->bytes, data, bytes);
    d->bytes += bytes;
    d->text[d->bytes] = '\0';
    return bytes;
}

/* One request. Returns 0 with any status of the server. */
static int get_once(const struct web *web, CURL *easy, const char *url, const char *range,
                    struct document *d, struct web_reply *reply, CURLcode *code, char why[],
                    struct fm_error *err)
{
    struct curl_slist *headers = NULL;
    d->easy = easy;
    d->bytes = d->n_ignored = 0;
    d->is_cut = false;
    why[0] = '\0';
    curl_easy_reset(easy);
    int rc = web_prepare(web, easy, url, reply, &headers, err);
    if (rc == 0) {
        (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
        (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_text);
        (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, d);
        if (range != NULL)
            (void)curl_easy_setopt(easy, CURLOPT_RANGE, range);
        *code = curl_easy_perform(easy);
        if (d->is_cut)
            *code = CURLE_OK;
        (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &reply->status);
    }
    /* The handle keeps the pointer. */
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    return rc;
}

/* Waits, but not after Ctrl-C. */
static void wait_ns(const struct web *web, uint64_t ns)
{
    for (uint64_t end = plat_now_ns() + ns; plat_now_ns() < end;) {
        if (web->is_stopped != NULL && web->is_stopped())
            return;
        plat_sleep_ns(SECOND_NS / 20);
    }
}

static int get_all(const struct web *web, CURL *easy, char at[MODEL_URL_BYTES], const char *range,
                   struct document *d, struct web_reply *reply, struct fm_error *err)
{
    char why[CURL_ERROR_SIZE], next[MODEL_URL_BYTES];
    CURLcode code = CURLE_OK;
    unsigned n_redirects = 0, n_failures = 0;
    for (;;) {
        int rc = get_once(web, easy, at, range, d, reply, &code, why, err);
        if (rc != 0)
            return rc;
        const bool is_good = web_is_good(reply->status);
        if (d->is_probe && is_good && (code == CURLE_OK || d->is_too_large))
            return 0;
        if (range != NULL && reply->status == 200 && (code == CURLE_OK || d->is_too_large))
            return err_set(err, FM_ERR_IO, "%.300s: the server sends whole files only, and packing "
                           "needs ranges of them; pull without --pack, then pack",
                           web_shown(at, next));
        if (d->is_too_large)
            return err_set(err, FM_ERR_IO, "%.300s: the answer is larger than %zu bytes",
                           web_shown(at, next), d->max_bytes);
        if (code == CURLE_OK && is_good)
            return 0;
        if (code == CURLE_OK && web_is_redirect(reply->status)) {
            rc = n_redirects++ < WEB_MAX_REDIRECTS
                     ? web_follow(at, reply->location, next, err)
                     : err_set(err, FM_ERR_IO, "%.300s: more than %d redirects",
                               web_shown(at, next), WEB_MAX_REDIRECTS);
            if (rc != 0)
                return rc;
            (void)snprintf(at, MODEL_URL_BYTES, "%s", next);
            continue;
        }
        if (!web_may_retry(code, reply->status) || n_failures++ == web->n_retries)
            return web_explain(web, code, why, at, reply, err);
        wait_ns(web, web_wait_ns(easy, n_failures));
    }
}

/* Allocates what a request needs and makes it. */
static int get(const struct web *web, const char *url, const char *range, struct document *d,
               struct web_reply *reply, struct fm_error *err)
{
    char at[MODEL_URL_BYTES];
    CURL *easy = curl_easy_init();
    (void)snprintf(at, sizeof at, "%s", url);
    int rc = easy == NULL ? err_set(err, FM_ERR_NOMEM, "out of memory: cannot prepare a request")
                          : mem_grow((void **)&d->text, &d->capacity, REFUSED_BYTES, 1,
                                     "a document", err);
    if (rc == 0) {
        d->text[0] = '\0';
        rc = get_all(web, easy, at, range, d, reply, err);
    }
    curl_easy_cleanup(easy);
    return rc;
}

int web_get(const struct web *web, const char *url, size_t max_bytes, char **body, size_t *bytes,
            struct web_reply *reply, struct fm_error *err)
{
    struct document d = {.max_bytes = max_bytes, .err = err};
    const int rc = get(web, url, NULL, &d, reply, err);
    if (rc != 0)
        mem_free(d.text);
    *body = rc == 0 ? d.text : NULL;
    *bytes = rc == 0 ? d.bytes : 0;
    return rc;
}

int web_get_range(const struct web *web, const char *url, uint64_t first, size_t n, char *out,
                  struct fm_error *err)
{
    char range[64], shown[MODEL_URL_BYTES];
    struct web_reply reply;
    struct document d = {.max_bytes = n, .err = err};
    (void)snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)first,
                   (unsigned long long)first + n - 1);
    int rc = get(web, url, range, &d, &reply, err);
    if (rc == 0 && (reply.status != 206 || d.bytes != n || !reply.has_range ||
                    reply.range_first != first || reply.is_encoded))
        rc = err_set(err, FM_ERR_IO, "%.300s: the server does not send the range that it was asked "
                     "for", web_shown(url, shown));
    if (rc == 0)
        memcpy(out, d.text, n);
    mem_free(d.text);
    return rc;
}

int web_probe(const struct web *web, const char *url, uint64_t *bytes, char etag[WEB_ETAG_BYTES],
              struct fm_error *err)
{
    char shown[MODEL_URL_BYTES];
    struct web_reply reply;
    struct document d = {.max_bytes = 1, .is_probe = true, .err = err};
    int rc = get(web, url, "0-0", &d, &reply, err);
    const bool is_known = rc == 0 && (reply.status == 206 ? reply.has_range : reply.has_length);
    if (rc == 0 && !is_known)
        rc = err_set(err, FM_ERR_IO, "%.300s: the server does not say how large the file is",
                     web_shown(url, shown));
    *bytes = reply.status == 206 ? reply.range_total : reply.length;
    (void)snprintf(etag, WEB_ETAG_BYTES, "%s", reply.etag);
    mem_free(d.text);
    return rc;
}
