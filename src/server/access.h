/* Access control: the host names the server answers to, the web pages that may call it, API keys,
 * and ambiguous headers. Independent of libmicrohttpd.
 *
 * A browser on this machine can reach the server on behalf of any page. So a request must name one
 * of our hosts (a page that uses DNS rebinding names its own), and a request from a page of another
 * origin is refused unless that origin is allowed.
 *
 * Call everything from the thread of server_run. Strings are borrowed; keys are copied. */
#ifndef FLASHMOE_SERVER_ACCESS_H
#define FLASHMOE_SERVER_ACCESS_H

#include <stddef.h>
#include <stdint.h>

#include "server/api_error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- API keys (access_keys.c) ------------------------------------------------------------- */

struct access_key {
    char *text;
    uint64_t owner; /* identifies the key; never 0 */
};

struct access_keys {
    struct access_key *list;
    size_t n, cap; /* n 0: no key is required */
};

/* Adds a key unless it is already there. Fails with FM_ERR_ARG if it is empty or has a character
 * that a header cannot carry; the message begins with `source`, the origin of the key. */
int access_keys_add(struct access_keys *keys, const char *text, size_t bytes, const char *source,
                    struct fm_error *err);
/* Adds the keys of a file: one per line; blank lines and lines that begin with # are skipped. Fails
 * if it has none, or if other users may write it. *is_exposed: other users may read it. */
int access_keys_read(struct access_keys *keys, const char *path, bool *is_exposed,
                     struct fm_error *err);
/* Returns whether `sent` is one of the keys; *owner identifies it. Takes the same time for all
 * wrong keys of one length. */
bool access_keys_find(const struct access_keys *keys, const char *sent, uint64_t *owner);
void access_keys_clear(struct access_keys *keys);

/* ---- requests (access.c) ------------------------------------------------------------------ */

struct access_rules {
    bool is_local;     /* listens on loopback only; otherwise every IP address is a valid host */
    const char *host;  /* the address to listen on, as given; NULL: none */
    const char *hosts; /* additional host names, separated by commas; "*": all; NULL: none */
    const char *machine; /* names of this machine, likewise; valid unless is_local; NULL: none */
    const char *cors;  /* allowed origins besides pages of this machine, likewise */
};

/* The headers that matter here. NULL: not sent. */
struct access_headers {
    const char *host, *length, *coding, *type, *origin, *site, *mode, *dest;
    const char *twice;    /* the name of a header that was sent twice */
    const char *bad_name; /* an invalid header name */
    const char *cut_off;  /* the name of a header whose value is followed by stray bytes */
};

struct access_call {
    bool is_page; /* GET of a file of the page */
    bool is_1_0;  /* HTTP/1.0 */
    bool is_post;
    bool is_probe; /* GET /health, which old clients may send without Host */
};

/* Refuses words of --allowed-host and --cors that no request could match. Lists may be NULL. */
int access_check_lists(const char *hosts, const char *cors, struct fm_error *err);
/* Returns whether one of the words is "*". */
bool access_allows_all(const char *list);
/* Adds a host name to a list of `capacity` bytes, unless it is invalid or there is no room. */
void access_add_host(char *list, size_t capacity, const char *name);

/* Records a header of a request. */
void access_note(struct access_headers *h, const char *name, const char *value);
/* Refuses a request whose length or host is ambiguous (request smuggling). Returns 0 or -1. */
int access_check_framing(const struct access_headers *h, const struct access_call *call,
                         struct api_error *error);
/* Refuses an unknown host, and requests of pages of other sites. Returns 0 or -1. */
int access_check_site(const struct access_rules *rules, const struct access_headers *h,
                      const struct access_call *call, struct api_error *error);
/* Refuses a body without a JSON content type, which pages may send without a CORS preflight.
 * Returns 0 or -1. */
int access_check_type(const struct access_headers *h, struct api_error *error);
/* Returns whether a page of this origin may read responses. */
bool access_is_allowed_origin(const struct access_rules *rules, const char *origin);

#ifdef __cplusplus
}
#endif
#endif
