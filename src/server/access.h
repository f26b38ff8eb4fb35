/* Who may use the server: the names it answers to, the web pages that may call it, API keys, and
 * headers whose meaning is in doubt. Knows nothing of libmicrohttpd.
 *
 * A browser on this machine reaches the server for any page it shows. So a request must name a host
 * that is ours (a page whose name was rebound to 127.0.0.1 names its own), and one that a page of
 * another origin has caused is refused unless that origin is allowed.
 *
 * Everything belongs to the thread of server_run. Strings are borrowed; keys are copied. */
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

/* Adds a key unless it is there. FM_ERR_ARG: it is empty or has a character that a header cannot
 * carry; the message begins with `source`, which says where the key came from. */
int access_keys_add(struct access_keys *keys, const char *text, size_t bytes, const char *source,
                    struct fm_error *err);
/* Adds the keys of a file: one per line; blank lines and lines that begin with # are skipped. Fails
 * when it has none, or when every user may write it. *is_exposed: every user may read it. */
int access_keys_read(struct access_keys *keys, const char *path, bool *is_exposed,
                     struct fm_error *err);
/* Whether one of the keys was sent; *owner tells which. Takes as long for each wrong key of one
 * length. */
bool access_keys_find(const struct access_keys *keys, const char *sent, uint64_t *owner);
void access_keys_clear(struct access_keys *keys);

/* ---- requests (access.c) ------------------------------------------------------------------ */

struct access_rules {
    bool is_local;     /* listens on loopback alone; otherwise every IP address is a good host */
    const char *host;  /* the address to listen on, as it was given; NULL: none */
    const char *hosts; /* further host names, separated by commas; "*": all; NULL: none */
    const char *machine; /* names of this machine, likewise; good beyond loopback; NULL: none */
    const char *cors;  /* origins allowed beside the pages of this machine, likewise */
};

/* The headers that decide. NULL: not sent. */
struct access_headers {
    const char *host, *length, *coding, *type, *origin, *site, *mode, *dest;
    const char *twice;    /* the name of one that was sent twice */
    const char *bad_name; /* a name that no header can have */
    const char *cut_off;  /* the name of one behind whose value there are bytes of no header */
};

struct access_call {
    bool is_page; /* GET of a file of the page */
    bool is_1_0;  /* HTTP/1.0 */
    bool is_post;
    bool is_probe; /* GET /health: programs that only ask whether it runs may be old */
};

/* Refuses words of --allowed-host and --cors that no request could match. NULL lists are good. */
int access_check_lists(const char *hosts, const char *cors, struct fm_error *err);
/* Whether one of the words is "*". */
bool access_allows_all(const char *list);
/* Adds a host name to a list of `capacity` bytes, unless it has none or the list no room. */
void access_add_host(char *list, size_t capacity, const char *name);

/* Notes a header of a request. */
void access_note(struct access_headers *h, const char *name, const char *value);
/* Refuses a request whose end or host two programs could see differently. 0 or -1. */
int access_check_framing(const struct access_headers *h, const struct access_call *call,
                         struct api_error *error);
/* Refuses a host that is not ours, and what pages of other sites send. 0 or -1. */
int access_check_site(const struct access_rules *rules, const struct access_headers *h,
                      const struct access_call *call, struct api_error *error);
/* Refuses a body that is not called JSON: a page may send such a one without asking. 0 or -1. */
int access_check_type(const struct access_headers *h, struct api_error *error);
/* Whether a page of this origin may read answers. */
bool access_is_allowed_origin(const struct access_rules *rules, const char *origin);

#ifdef __cplusplus
}
#endif
#endif
