#include "server/access.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAME_BYTES 256
#define WORD_BYTES (NAME_BYTES + 32) /* of a list entry, with its NUL */
#define SHOWN "%.100s" /* a client's value in a message */

/* ---- names ---------------------------------------------------------------------------------- */

/* A normalized host and port: lower case, without a trailing dot. */
struct authority {
    char name[NAME_BYTES]; /* an IPv6 address without brackets */
    bool is_bracketed;
    unsigned port; /* 0: not given */
};

static bool read_port(const char *text, unsigned *port)
{
    const size_t n = strspn(text, "0123456789");
    *port = n > 0 && n <= 5 ? (unsigned)strtoul(text, NULL, 10) : 0;
    return text[n] == '\0' && (n == 0 || (*port > 0 && *port < 65536)); /* may be empty */
}

/* Parses NAME, NAME:PORT, [ADDRESS] or [ADDRESS]:PORT. Returns false for invalid characters or
 * trailing text. */
static bool read_authority(const char *text, struct authority *a)
{
    *a = (struct authority){.is_bracketed = text[0] == '['};
    text += a->is_bracketed;
    size_t n = strcspn(text, a->is_bracketed ? "]" : ":");
    if (n == 0 || n >= sizeof a->name || (a->is_bracketed && text[n] != ']'))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isalnum((unsigned char)text[i]) &&
            strchr(a->is_bracketed ? ":." : "-._", text[i]) == NULL)
            return false;
        a->name[i] = (char)tolower((unsigned char)text[i]);
    }
    text += n + a->is_bracketed;
    if (!a->is_bracketed && a->name[n - 1] == '.' && n > 1)
        a->name[n - 1] = '\0';
    return text[0] == '\0' || (text[0] == ':' && read_port(text + 1, &a->port));
}

/* Returns whether the name is an IP address; *is_loopback says whether it is a loopback one. */
static bool is_address(const struct authority *a, bool *is_loopback)
{
    struct in_addr v4;
    struct in6_addr v6;
    *is_loopback = false;
    if (!a->is_bracketed) {
        if (inet_pton(AF_INET, a->name, &v4) != 1)
            return false;
        *is_loopback = ntohl(v4.s_addr) >> 24 == 127;
        return true;
    }
    if (inet_pton(AF_INET6, a->name, &v6) != 1)
        return false;
    *is_loopback = IN6_IS_ADDR_LOOPBACK(&v6) ||
                   (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
    return true;
}

/* Names below "localhost" are loopback too (RFC 6761). */
static bool is_of_this_machine(const struct authority *a)
{
    static const char below[] = ".localhost";
    const size_t n = strlen(a->name), n_below = sizeof below - 1;
    bool is_loopback;
    if (is_address(a, &is_loopback) || a->is_bracketed)
        return is_loopback;
    return strcmp(a->name, below + 1) == 0 ||
           (n > n_below && strcmp(a->name + n - n_below, below) == 0);
}

/* Returns whether `fits` accepts a word of a list separated by commas; ignores blanks. */
static bool any_word(const char *list, bool (*fits)(const char *word, const void *ctx),
                     const void *ctx)
{
    char word[WORD_BYTES];
    while (list != NULL && *list != '\0') {
        const size_t blanks = strspn(list, " \t");
        const size_t all = strcspn(list, ",");
        size_t n = all > blanks ? all - blanks : 0;
        while (n > 0 && strchr(" \t", list[blanks + n - 1]) != NULL)
            n--;
        if (n < sizeof word) {
            memcpy(word, list + blanks, n);
            word[n] = '\0';
            if (n > 0 && (strcmp(word, "*") == 0 || fits(word, ctx)))
                return true;
        }
        list += all + (list[all] == ',');
    }
    return false;
}

/* ---- hosts ---------------------------------------------------------------------------------- */

/* Ignores the port: it is that of whatever stands in front of the server. */
static bool is_that_host(const char *word, const void *ctx)
{
    const struct authority *host = ctx;
    struct authority a;
    return read_authority(word, &a) && a.is_bracketed == host->is_bracketed &&
           strcmp(a.name, host->name) == 0;
}

static bool is_good_host(const struct access_rules *rules, const char *text)
{
    struct authority host;
    bool is_loopback;
    if (!read_authority(text, &host))
        return false;
    if (is_of_this_machine(&host) || any_word(rules->hosts, is_that_host, &host))
        return true;
    if (is_address(&host, &is_loopback)) /* DNS cannot rebind an address */
        return !rules->is_local;
    if (!rules->is_local && any_word(rules->machine, is_that_host, &host))
        return true;
    return rules->host != NULL && strcasecmp(rules->host, host.name) == 0;
}

/* ---- origins -------------------------------------------------------------------------------- */

/* Parses an origin such as "http://localhost:3000"; a->port is never 0. */
static bool read_origin(const char *text, struct authority *a)
{
    const bool is_https = strncasecmp(text, "https://", 8) == 0;
    if (!is_https && strncasecmp(text, "http://", 7) != 0)
        return false;
    if (!read_authority(text + (is_https ? 8 : 7), a) || text[strlen(text) - 1] == ':')
        return false;
    if (a->port == 0)
        a->port = is_https ? 443 : 80;
    return true;
}

/* Returns the length of the scheme with "://" if the origin is not a web page's but that of a
 * desktop program or browser extension; else 0. */
static size_t app_scheme(const char *text)
{
    size_t n = 0;
    while (isalnum((unsigned char)text[n]) || (n > 0 && text[n] != '\0' && strchr("+-.", text[n])))
        n++;
    if (n == 0 || !isalpha((unsigned char)text[0]) || strncmp(text + n, "://", 3) != 0 ||
        strncasecmp(text, "http://", 7) == 0 || strncasecmp(text, "https://", 8) == 0)
        return 0;
    return n + 3;
}

/* Copies an origin of a list without a trailing slash. Returns app_scheme's result. */
static size_t read_listed(const char *word, char bare[WORD_BYTES])
{
    const size_t n = strlen(word), n_scheme = app_scheme(word);
    const bool has_slash = n > n_scheme && word[n - 1] == '/';
    (void)snprintf(bare, WORD_BYTES, "%.*s", (int)(n - has_slash), word);
    return n_scheme;
}

/* An asterisk after a scheme allows all origins of that scheme, except http and https. */
static bool is_that_origin(const char *word, const void *ctx)
{
    const char *origin = ctx;
    struct authority from, listed;
    char bare[WORD_BYTES];
    const size_t n_scheme = read_listed(word, bare);
    if (n_scheme > 0 && strcmp(word + n_scheme, "*") == 0)
        return strncasecmp(origin, word, n_scheme) == 0;
    if (read_origin(origin, &from) && read_origin(bare, &listed)) /* https://a is https://a:443 */
        return (origin[4] == ':') == (bare[4] == ':') && from.port == listed.port &&
               from.is_bracketed == listed.is_bracketed && strcmp(from.name, listed.name) == 0;
    return strcasecmp(bare, origin) == 0;
}

bool access_is_allowed_origin(const struct access_rules *rules, const char *origin)
{
    struct authority a;
    return (read_origin(origin, &a) && is_of_this_machine(&a)) ||
           any_word(rules->cors, is_that_origin, origin);
}

/* Returns whether a page sends the request to its own origin. Without a port in Host, either
 * scheme's default port matches, since TLS may end before this server. */
static bool is_own_page(const char *origin, const char *host)
{
    struct authority from, to;
    return read_origin(origin, &from) && read_authority(host, &to) &&
           from.is_bracketed == to.is_bracketed && strcmp(from.name, to.name) == 0 &&
           (to.port != 0 ? to.port == from.port : from.port == 80 || from.port == 443);
}

static bool is_word(const char *value, const char *word)
{
    return value != NULL && strcasecmp(value, word) == 0;
}

/* Programs send neither header. Browsers send Origin with every request that can be read or that
 * changes something, and Sec-Fetch-Site, which no page can forge, to trustworthy addresses. */
static bool is_good_page(const struct access_rules *rules, const struct access_headers *h,
                         const struct access_call *call)
{
    if (is_word(h->site, "same-origin"))
        return true;
    if (h->origin != NULL)
        return (h->host != NULL && is_own_page(h->origin, h->host)) ||
               access_is_allowed_origin(rules, h->origin);
    if (h->site == NULL || is_word(h->site, "none"))
        return true;
    return call->is_page && is_word(h->mode, "navigate") && is_word(h->dest, "document");
}

int access_check_site(const struct access_rules *rules, const struct access_headers *h,
                      const struct access_call *call, struct api_error *error)
{
    if (h->host != NULL && !is_good_host(rules, h->host)) /* only /health works without Host */
        return api_fail(error, API_FORBIDDEN, NULL, "Host '" SHOWN "' is not a name of this "
                        "server: use localhost or an address, or start it with --allowed-host NAME",
                        h->host);
    if (is_good_page(rules, h, call))
        return 0;
    if (h->origin != NULL)
        return api_fail(error, API_FORBIDDEN, NULL, "pages of Origin '" SHOWN "' may not use this "
                        "server: start it with --cors ORIGIN to allow them", h->origin);
    return api_fail(error, API_FORBIDDEN, NULL, "a page of another site sent this request "
                    "(Sec-Fetch-Site: " SHOWN "): it may not use this server", h->site);
}

/* ---- options -------------------------------------------------------------------------------- */

static bool no_word(const char *word, const void *ctx)
{
    (void)word;
    (void)ctx;
    return false;
}

bool access_allows_all(const char *list)
{
    return any_word(list, no_word, NULL);
}

void access_add_host(char *list, size_t capacity, const char *name)
{
    struct authority a;
    const size_t n = strlen(list);
    if (!read_authority(name, &a) || n + strlen(name) + 2 > capacity)
        return;
    (void)snprintf(list + n, capacity - n, "%s%s", n > 0 ? "," : "", name);
}

/* Returns whether the word is a host that is_that_host can match: a name or an address, an IPv6
 * address in brackets. */
static bool is_host_word(const char *word)
{
    struct authority a;
    bool is_loopback;
    return read_authority(word, &a) && (!a.is_bracketed || is_address(&a, &is_loopback));
}

static bool is_origin_word(const char *word)
{
    char bare[WORD_BYTES];
    struct authority a;
    const size_t n_scheme = read_listed(word, bare);
    if (strcmp(word, "null") == 0 || strcasecmp(word, "file://") == 0)
        return true;
    return n_scheme > 0 ? strcmp(word + n_scheme, "*") == 0 || read_authority(bare + n_scheme, &a)
                        : read_origin(bare, &a);
}

struct list_check {
    const char *list;
    bool (*is_good)(const char *word);
    const char *option, *advice;
    struct fm_error *err;
    int *rc;
};

/* Reports the first invalid word and stops. */
static bool is_bad_word(const char *word, const void *ctx)
{
    const struct list_check *check = ctx;
    if (check->is_good(word))
        return false;
    *check->rc = err_set(check->err, FM_ERR_ARG, "%s: '" SHOWN "' matches no request: %s",
                         check->option, word, check->advice);
    return true;
}

int access_check_lists(const char *hosts, const char *cors, struct fm_error *err)
{
    int rc = 0;
    const struct list_check checks[] = {
        {hosts, is_host_word, "--allowed-host", "write a host name alone, as chat.example, or an "
         "address, as 192.168.1.7 or [fd00::7], without a scheme or a path; * alone stands for all",
         err, &rc},
        {cors, is_origin_word, "--cors", "write SCHEME://HOST or SCHEME://HOST:PORT, as "
         "https://chat.example or app://obsidian.md, without a path; * alone stands for all",
         err, &rc}};
    for (size_t i = 0; rc == 0 && i < sizeof checks / sizeof checks[0]; i++) {
        size_t n = 0;
        (void)any_word(checks[i].list, is_bad_word, &checks[i]);
        for (const char *at = checks[i].list; rc == 0 && at != NULL && *at != '\0';
             at += n + (at[n] == ',')) {
            n = strcspn(at, ",");
            if (n >= WORD_BYTES) /* any_word skips it */
                rc = err_set(err, FM_ERR_ARG, "%s: '" SHOWN "...' has %zu characters, which is too "
                             "long for a host name", checks[i].option, at, n);
        }
    }
    return rc;
}

/* ---- framing -------------------------------------------------------------------------------- */

static bool is_token(const char *text)
{
    for (const char *c = text; *c != '\0'; c++)
        if (!isalnum((unsigned char)*c) && strchr("!#$%&'*+-.^_`|~", *c) == NULL)
            return false;
    return text[0] != '\0';
}

void access_note(struct access_headers *h, const char *name, const char *value)
{
    const struct {
        const char *name, **value;
    } all[] = {{"Host", &h->host}, {"Content-Length", &h->length},
               {"Transfer-Encoding", &h->coding}, {"Content-Type", &h->type},
               {"Origin", &h->origin}, {"Sec-Fetch-Site", &h->site},
               {"Sec-Fetch-Mode", &h->mode}, {"Sec-Fetch-Dest", &h->dest}};
    if (!is_token(name))
        h->bad_name = name;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcasecmp(name, all[i].name) != 0)
            continue;
        if (*all[i].value != NULL)
            h->twice = all[i].name;
        *all[i].value = value != NULL ? value : "";
    }
}

int access_check_framing(const struct access_headers *h, const struct access_call *call,
                         struct api_error *error)
{
    if (h->bad_name != NULL)
        return api_fail(error, API_BAD, NULL, "'" SHOWN "' is not the name of a header",
                        h->bad_name);
    if (h->twice != NULL)
        return api_fail(error, API_BAD, NULL, "the request has two %s headers: send one", h->twice);
    if (h->cut_off != NULL)
        return api_fail(error, API_BAD, NULL, "the header '" SHOWN "' contains a NUL or is "
                        "followed by a line without a name", h->cut_off);
    if (h->host == NULL ? !(call->is_1_0 && call->is_probe) : h->host[0] == '\0')
        return api_fail(error, API_BAD, NULL, "the request has no Host header: send the host name "
                        "of the URL");
    if (h->length != NULL && h->coding != NULL)
        return api_fail(error, API_BAD, NULL, "the request has both Content-Length and "
                        "Transfer-Encoding: send one of them");
    if (h->length != NULL && (h->length[0] == '\0' ||
                              h->length[strspn(h->length, "0123456789")] != '\0'))
        return api_fail(error, API_BAD, NULL, "Content-Length '" SHOWN "' is not a number",
                        h->length);
    if (h->coding != NULL && (strcasecmp(h->coding, "chunked") != 0 || call->is_1_0))
        return api_fail(error, API_BAD, NULL, "Transfer-Encoding '" SHOWN "' is not supported: "
                        "send Content-Length, or 'chunked' with HTTP/1.1", h->coding);
    if (call->is_post && h->length == NULL && h->coding == NULL)
        return api_fail(error, API_LENGTH, NULL, "the request has neither Content-Length nor "
                        "Transfer-Encoding: send one of them");
    return 0;
}

/* ---- bodies --------------------------------------------------------------------------------- */

/* Accepts a missing type: if a page leaves it out, its browser still sends Origin. */
int access_check_type(const struct access_headers *h, struct api_error *error)
{
    const char *type = h->type != NULL ? h->type : "";
    size_t n = strcspn(type, ";");
    while (n > 0 && strchr(" \t", type[n - 1]) != NULL)
        n--;
    if (n == 0 && type[0] == '\0')
        return 0;
    if ((n == 16 && strncasecmp(type, "application/json", n) == 0) ||
        (n == 9 && strncasecmp(type, "text/json", n) == 0) ||
        (n > 17 && strncasecmp(type, "application/", 12) == 0 &&
         strncasecmp(type + n - 5, "+json", 5) == 0))
        return 0;
    return api_fail(error, API_MEDIA_TYPE, NULL, "Content-Type '" SHOWN "' is not JSON: send "
                    "'Content-Type: application/json' (curl: --json, or -H with that header)",
                    type);
}
