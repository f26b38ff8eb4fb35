/* Applies the access rules to requests of libmicrohttpd. */
#include <string.h>
#include <strings.h>

#include "server/http_internal.h"

struct notes {
    struct access_headers *headers;
    const char *begin, *end; /* the bytes of the request line and the headers */
    const char *at;          /* the end of the last value; NULL: unknown */
    const char *name;        /* the header it belongs to */
};

/* Looks for bytes that belong to no header: after a NUL, or in a line without a name, where the
 * library ends the headers. The library splits a request in place, in its buffer. */
static void check_gap(struct notes *n, const char *next, ptrdiff_t max)
{
    if (n->at == NULL || n->at < n->begin || next <= n->at || next > n->end)
        return; /* a continued line is stored elsewhere */
    ptrdiff_t n_nul = 0;
    bool is_blank = true;
    for (const char *c = n->at; c < next; c++) {
        n_nul += *c == '\0';
        is_blank = is_blank && memchr(" \t\r\n", *c, 5) != NULL;
    }
    if (!is_blank || n_nul > max)
        n->headers->cut_off = n->name;
}

static enum MHD_Result note(void *ctx, enum MHD_ValueKind kind, const char *name,
                            const char *value)
{
    struct notes *n = ctx;
    (void)kind;
    access_note(n->headers, name, value);
    check_gap(n, name, 2);
    n->at = value != NULL ? value + strlen(value) : NULL;
    n->name = name;
    return MHD_YES;
}

static void note_all(struct request *r, const char *first_byte, struct access_headers *headers)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    struct notes n = {.headers = headers, .begin = first_byte,
                      .end = first_byte + (info != NULL ? info->header_size : 0)};
    (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, note, &n);
    check_gap(&n, n.end, 4);
}

/* Finds the first of the two headers with a valid key. */
static bool has_key(struct request *r)
{
    const struct access_keys *keys = &r->server->keys;
    const char *bearer = http_header(r, "Authorization"), *plain = http_header(r, "x-api-key");
    if (keys->n == 0)
        return true;
    if (bearer != NULL && strncasecmp(bearer, "Bearer ", 7) == 0 &&
        access_keys_find(keys, bearer + 7 + strspn(bearer + 7, " "), &r->owner))
        return true;
    return plain != NULL && access_keys_find(keys, plain, &r->owner);
}

void http_check_access(struct request *r, const char *method, const char *version)
{
    const struct access_call call = {
        .is_page = strcmp(r->method, "GET") == 0 && r->endpoint != NULL &&
                   r->endpoint->get == get_page,
        .is_1_0 = strcmp(version, "HTTP/1.0") == 0, .is_post = strcmp(r->method, "POST") == 0,
        .is_probe = strcmp(r->method, "GET") == 0 && r->endpoint != NULL &&
                    r->endpoint->get == get_health};
    struct access_headers headers = {0};
    note_all(r, method, &headers);
    if (access_check_framing(&headers, &call, &r->error) != 0) {
        r->must_close = true; /* the following bytes may be part of it */
        return;
    }
    if (access_check_site(&r->server->rules, &headers, &call, &r->error) != 0 ||
        strcmp(r->method, "OPTIONS") == 0) /* preflight requests carry no key */
        return;
    if (!(r->endpoint != NULL && r->endpoint->is_open) && !has_key(r))
        (void)api_fail(&r->error, API_AUTH, NULL, "the API key is missing or wrong: send it as "
                       "'Authorization: Bearer KEY' or as 'x-api-key: KEY'");
    else if (r->endpoint != NULL && strcmp(r->endpoint->method, "POST") == 0 &&
             strcmp(r->method, "POST") == 0)
        (void)access_check_type(&headers, &r->error);
    if (r->server->options.shares_prefixes)
        r->owner = 0;
}
