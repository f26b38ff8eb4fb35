/* The access rules, with libmicrohttpd's requests. */
#include <string.h>
#include <strings.h>

#include "server/http_internal.h"

static const char *header(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

static enum MHD_Result note(void *ctx, enum MHD_ValueKind kind, const char *name,
                            const char *value)
{
    (void)kind;
    access_note(ctx, name, value);
    return MHD_YES;
}

/* The first of the two headers that has a key of ours. */
static bool has_key(struct request *r)
{
    const struct access_keys *keys = &r->server->keys;
    const char *bearer = header(r, "Authorization"), *plain = header(r, "x-api-key");
    if (keys->n == 0)
        return true;
    if (bearer != NULL && strncasecmp(bearer, "Bearer ", 7) == 0 &&
        access_keys_find(keys, bearer + 7 + strspn(bearer + 7, " "), &r->owner))
        return true;
    return plain != NULL && access_keys_find(keys, plain, &r->owner);
}

void http_check_access(struct request *r, const char *version)
{
    const struct access_call call = {
        .is_page = strcmp(r->method, "GET") == 0 && r->route != NULL && r->route->get == get_page,
        .is_1_0 = strcmp(version, "HTTP/1.0") == 0};
    struct access_headers headers = {0};
    (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, note, &headers);
    if (access_check_framing(&headers, &call, &r->error) != 0) {
        r->must_close = true; /* what follows may be part of it */
        return;
    }
    if (access_check_site(&r->server->rules, &headers, &call, &r->error) != 0 ||
        strcmp(r->method, "OPTIONS") == 0) /* a browser asks without the key */
        return;
    if (!(r->route != NULL && r->route->is_open) && !has_key(r))
        (void)api_fail(&r->error, API_AUTH, NULL, "the API key is missing or wrong: send it as "
                       "'Authorization: Bearer KEY' or as 'x-api-key: KEY'");
    else if (r->route != NULL && strcmp(r->route->method, "POST") == 0 &&
             strcmp(r->method, "POST") == 0)
        (void)access_check_type(&headers, &r->error);
    if (r->server->options.shares_prefixes)
        r->owner = 0;
}
