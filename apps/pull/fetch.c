#include "apps/pull/fetch.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/plat.h"

#define POLL_MS 100
#define IDLE_POLL_MS 10 /* while a file is finished, or before a retry */
#define BUFFER_BYTES (256 * 1024L)
/* A connection that got this much has not failed, however it ended. */
#define PROGRESS_BYTES (64 * 1024)

struct fetch;

struct connection {
    struct fetch *fetch;
    CURL *easy;
    struct curl_slist *headers;
    bool is_busy;
    struct piece piece;
    char url[MODEL_URL_BYTES];
    struct web_reply reply;
    char why[CURL_ERROR_SIZE];
    bool is_cut; /* the text of an error was too long: we ended the transfer; its status counts */
    bool is_checked; /* the head was compared with what was asked for */
    uint64_t n_got, n_ignored;
    struct fm_error err; /* why we ended the transfer; code 0: we did not */
    bool is_serial_wanted;
    unsigned n_failures, n_redirects;
    uint64_t not_before_ns;
};

struct fetch {
    const struct fetch_options *options;
    struct parts *parts;
    struct part_item *items;
    char *const *urls;
    char **links; /* [n_items] where redirects of the item's URL led, or NULL */
    CURLM *multi;
    struct connection *connections;
    uint64_t not_before_ns; /* the server asked us to wait; no transfer starts */
};

/* ---- one transfer ----------------------------------------------------------------------- */

/* Compares the head of a response with the request. */
static int check_head(struct connection *c, struct fm_error *err)
{
    const struct part_item *item = &c->fetch->items[c->piece.item];
    const struct web_reply *r = &c->reply;
    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &c->reply.status);
    if (!web_is_good(r->status))
        return 0; /* its text is ignored */
    if (r->is_encoded)
        return err_set(err, FM_ERR_IO, "'%s': the server compresses it although it was asked not "
                       "to", item->name);
    if (r->status == 200 && !c->piece.is_whole_file) {
        c->is_serial_wanted = true;
        return err_set(err, FM_ERR_CANCELLED, "no ranges");
    }
    const uint64_t total = r->status == 206 ? r->range_total : r->length;
    if (r->status == 206 && (!r->has_range || r->range_first != c->piece.at ||
                             r->range_end > c->piece.end))
        return err_set(err, FM_ERR_IO, "'%s': the server sends other bytes than those it was asked "
                       "for, %llu to %llu", item->name, (unsigned long long)c->piece.at,
                       (unsigned long long)c->piece.end - 1);
    if ((r->status == 206 || r->has_length) && total != item->bytes)
        return err_set(err, FM_ERR_IO, "'%s' has %llu bytes on the server, not the %llu that were "
                       "announced: it was changed; run the same command again", item->name,
                       (unsigned long long)total, (unsigned long long)item->bytes);
    if (item->version[0] != '\0' && r->etag[0] != '\0' && strcmp(item->version, r->etag) != 0)
        return err_set(err, FM_ERR_IO, "'%s' was changed on the server while it was downloaded; "
                       "run the same command again", item->name);
    return 0;
}

static size_t take_bytes(char *data, size_t size, size_t n, void *ctx)
{
    struct connection *c = ctx;
    const size_t bytes = size * n;
    int rc = 0;
    if (!c->is_checked)
        rc = check_head(c, &c->err);
    c->is_checked = true;
    if (rc == 0 && !web_is_good(c->reply.status)) {
        c->n_ignored += bytes;
        c->is_cut = c->n_ignored > WEB_IGNORED_BYTES;
        return c->is_cut ? 0 : bytes;
    }
    if (rc == 0) {
        rc = parts_write(c->fetch->parts, &c->piece, data, bytes, &c->err);
        c->n_got += rc == 0 ? bytes : 0;
    }
    return rc == 0 ? bytes : 0;
}

static int start(struct connection *c, struct fm_error *err)
{
    struct fetch *f = c->fetch;
    const char *link = f->links[c->piece.item];
    char range[64];
    (void)snprintf(c->url, sizeof c->url, "%s", link != NULL ? link : f->urls[c->piece.item]);
    c->err = (struct fm_error){0};
    c->is_checked = c->is_serial_wanted = c->is_cut = false;
    c->n_got = c->n_ignored = 0;
    c->why[0] = '\0';
    curl_easy_reset(c->easy);
    int rc = web_prepare(f->options->web, c->easy, c->url, &c->reply, &c->headers, err);
    if (rc != 0)
        return rc;
    (void)curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->why);
    (void)curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    (void)curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    (void)curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    (void)curl_easy_setopt(c->easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    if (!c->piece.is_whole_file) {
        (void)snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)c->piece.at,
                       (unsigned long long)c->piece.end - 1);
        (void)curl_easy_setopt(c->easy, CURLOPT_RANGE, range);
    }
    c->is_busy = curl_multi_add_handle(f->multi, c->easy) == CURLM_OK;
    return c->is_busy ? 0 : err_set(err, FM_ERR_NOMEM, "out of memory: cannot start a transfer");
}

/* ---- the end of a transfer -------------------------------------------------------------- */

static void set_link(struct fetch *f, size_t item, const char *url)
{
    mem_free(f->links[item]);
    f->links[item] = url != NULL ? mem_strdup(url, NULL) : NULL; /* without it we ask again */
}

static int follow(struct connection *c, struct fm_error *err)
{
    struct fetch *f = c->fetch;
    char next[MODEL_URL_BYTES];
    if (c->n_redirects++ == WEB_MAX_REDIRECTS)
        return err_set(err, FM_ERR_IO, "'%s': more than %d redirects",
                       f->items[c->piece.item].name, WEB_MAX_REDIRECTS);
    int rc = web_follow(c->url, c->reply.location, next, err);
    if (rc == 0)
        set_link(f, c->piece.item, next);
    return rc;
}

/* Returns whether the response says that a link which we were redirected to has expired. */
static bool is_expired(const struct connection *c)
{
    const long status = c->reply.status;
    return c->fetch->links[c->piece.item] != NULL &&
           (status == 400 || status == 401 || status == 403 || status == 404 || status == 410);
}

/* Counts a failure and waits longer each time. Fails after too many in a row. */
static int retry(struct connection *c, CURLcode code, struct fm_error *err)
{
    const struct web *web = c->fetch->options->web;
    if (c->n_got >= PROGRESS_BYTES)
        c->n_failures = 0;
    if (c->n_failures++ >= web->n_retries)
        return web_explain(web, code, c->why, c->url, &c->reply, err);
    if (code == CURLE_OPERATION_TIMEDOUT && c->n_got > 0)
        log_warn("pull", "'%s': a connection had less than %d bytes per second for %u seconds; "
                 "trying again, %u of %u", c->fetch->items[c->piece.item].name, WEB_MIN_SPEED,
                 web->timeout_s, c->n_failures, web->n_retries);
    const uint64_t now = plat_now_ns(), asked = now + web_asked_ns(c->easy);
    c->not_before_ns = now + web_wait_ns(c->easy, c->n_failures);
    if (c->fetch->not_before_ns < asked)
        c->fetch->not_before_ns = asked;
    return 0;
}

/* Decides what follows the end of a transfer. Fails if the whole download cannot go on. */
static int judge(struct connection *c, CURLcode code, struct fm_error *err)
{
    struct fetch *f = c->fetch;
    const struct web *web = f->options->web;
    (void)curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &c->reply.status);
    if (c->is_cut)
        code = CURLE_OK;
    if (c->is_serial_wanted)
        return parts_make_serial(f->parts, &c->piece, err);
    if (c->err.code == FM_ERR_CANCELLED)
        return 0;
    if (c->err.code != 0) {
        *err = c->err;
        return c->err.code;
    }
    if (code == CURLE_OK && web_is_redirect(c->reply.status))
        return follow(c, err);
    c->n_redirects = 0;
    if (code == CURLE_OK && web_is_good(c->reply.status)) {
        if (c->piece.at < c->piece.end)
            return retry(c, CURLE_PARTIAL_FILE, err);
        c->n_failures = 0;
        return 0;
    }
    if (code == CURLE_OK && is_expired(c)) {
        set_link(f, c->piece.item, NULL);
        return retry(c, code, err);
    }
    if (web_may_retry(code, c->reply.status)) {
        /* The hub may know another host. */
        if (f->links[c->piece.item] != NULL && c->n_got == 0)
            set_link(f, c->piece.item, NULL);
        return retry(c, code, err);
    }
    return web_explain(web, code, c->why, c->url, &c->reply, err);
}

static void stop(struct connection *c)
{
    if (!c->is_busy)
        return;
    c->is_busy = false;
    (void)curl_multi_remove_handle(c->fetch->multi, c->easy);
    (void)curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(c->headers);
    c->headers = NULL;
    parts_release(c->fetch->parts, &c->piece);
}

static int end_transfers(struct fetch *f, struct fm_error *err)
{
    int n_left, rc = 0;
    for (CURLMsg *m = curl_multi_info_read(f->multi, &n_left); rc == 0 && m != NULL;
         m = curl_multi_info_read(f->multi, &n_left)) {
        struct connection *c = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        const CURLcode code = m->data.result;
        (void)curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        rc = judge(c, code, err);
        stop(c);
    }
    return rc;
}

/* ---- all transfers ---------------------------------------------------------------------- */

static int start_transfers(struct fetch *f, struct fm_error *err)
{
    const uint64_t now = plat_now_ns();
    int rc = 0;
    if (now < f->not_before_ns)
        return 0;
    for (unsigned i = 0; rc == 0 && i < f->options->n_connections; i++) {
        struct connection *c = &f->connections[i];
        bool is_taken = false;
        if (c->is_busy || now < c->not_before_ns)
            continue;
        rc = parts_take(f->parts, &c->piece, &is_taken, err);
        if (rc != 0 || !is_taken)
            return rc;
        rc = start(c, err);
    }
    return rc;
}

static bool show(const struct fetch *f, const struct parts_status *s)
{
    char what[400];
    if (f->options->progress == NULL)
        return true;
    (void)snprintf(what, sizeof what, "%zu/%zu %.80s", s->n_finished, s->n_items,
                   s->name != NULL ? s->name : "");
    return f->options->progress(f->options->progress_ctx, what, s->done_bytes, s->total_bytes);
}

static int run(struct fetch *f, struct fm_error *err)
{
    struct parts_status status;
    for (;;) {
        int n_running, rc = parts_check(f->parts, &status, err);
        if (rc != 0 || status.n_finished == status.n_items)
            return rc;
        if (!show(f, &status))
            return err_set(err, FM_ERR_CANCELLED, "stopped");
        rc = start_transfers(f, err);
        if (rc != 0)
            return rc;
        if (curl_multi_perform(f->multi, &n_running) != CURLM_OK ||
            curl_multi_poll(f->multi, NULL, 0, n_running > 0 ? POLL_MS : IDLE_POLL_MS, NULL) !=
                CURLM_OK)
            return err_set(err, FM_ERR_IO, "libcurl fails; run the same command again to continue");
        rc = end_transfers(f, err);
        if (rc != 0)
            return rc;
    }
}

static int begin(struct fetch *f, size_t n_items, struct fm_error *err)
{
    const unsigned n = f->options->n_connections;
    f->multi = curl_multi_init();
    f->links = mem_new(n_items, sizeof *f->links, "the links", err);
    f->connections = mem_new(n, sizeof *f->connections, "the connections", err);
    if (f->links == NULL || f->connections == NULL)
        return FM_ERR_NOMEM;
    for (unsigned i = 0; i < n; i++) {
        f->connections[i].fetch = f;
        f->connections[i].easy = curl_easy_init();
        if (f->connections[i].easy == NULL || f->multi == NULL)
            return err_set(err, FM_ERR_NOMEM, "out of memory: cannot start a transfer");
    }
    return 0;
}

static void end(struct fetch *f, size_t n_items)
{
    for (unsigned i = 0; f->connections != NULL && i < f->options->n_connections; i++) {
        if (f->parts != NULL)
            stop(&f->connections[i]);
        curl_easy_cleanup(f->connections[i].easy);
    }
    if (f->multi != NULL)
        (void)curl_multi_cleanup(f->multi);
    for (size_t i = 0; f->links != NULL && i < n_items; i++)
        mem_free(f->links[i]);
    mem_free(f->links);
    mem_free(f->connections);
    parts_close(f->parts);
}

int fetch_run(const struct fetch_options *options, struct part_item *items, char *const *urls,
              size_t n_items, struct fm_error *err)
{
    struct fetch f = {.options = options, .items = items, .urls = urls};
    int rc = begin(&f, n_items, err);
    if (rc == 0)
        rc = parts_open(options->dir, options->work, items, n_items, options->n_connections,
                        &f.parts, err);
    if (rc == 0) {
        const uint64_t need = parts_missing_bytes(f.parts);
        const uint64_t free_bytes = plat_free_bytes(options->dir->path);
        if (need > free_bytes)
            rc = err_set(err, FM_ERR_IO, "not enough space in '%s': %.2f GB are still to be "
                         "downloaded and %.2f GB are free", options->dir->path,
                         (double)need * 1e-9, (double)free_bytes * 1e-9);
    }
    if (rc == 0)
        rc = run(&f, err);
    end(&f, n_items);
    return rc;
}
