#include "server/access.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAME_BYTES 256
#define SHOWN "%.100s" /* a value of the client's in a message */

/* ---- names ---------------------------------------------------------------------------------- */

/* A host and its port, in one spelling: lower case, without the dot at the end. */
struct authority {
    char name[NAME_BYTES]; /* an IPv6 address without its brackets */
    bool is_bracketed;
    unsigned port; /* 0: not given */
};

static bool read_port(const char *text, unsigned *port)
{
    const size_t n = strspn(text, "0123456789");
    *port = n > 0 && n <= 5 ? (unsigned)strtoul(text, NULL, 10) : 0;
    return text[n] == '\0' && *port > 0 && *port < 65536;
}

/* NAME, NAME:PORT, [ADDRESS] or [ADDRESS]:PORT, to the end of the text. */
static bool read_authority(const char *text, struct authority *a)
{
    *a = (struct authority){.is_bracketed = text[0] == '['};
    text += a->is_bracketed;
    size_t n = strcspn(text, a->is_bracketed ? "]" : ":");
    if (n == 0 || n >= sizeof a->name || (a->is_bracketed && text[n] != ']'))
        return false;
    for (size_t i = 0; i < n; i++)
        a->name[i] = (char)tolower((unsigned char)text[i]);
    text += n + a->is_bracketed;
    if (!a->is_bracketed && a->name[n - 1] == '.' && n > 1)
        a->name[n - 1] = '\0';
    return text[0] == '\0' || (text[0] == ':' && read_port(text + 1, &a->port));
}

/* Whether the name is an IP address, and then whether it is one of loopback. */
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

static bool is_of_this_machine(const struct authority *a)
{
    bool is_loopback;
    return is_address(a, &is_loopback) ? is_loopback
                                       : !a->is_bracketed && strcmp(a->name, "localhost") == 0;
}

/* Calls `fits` for each word of a list that is separated by commas; blanks do not count. */
static bool any_word(const char *list, bool (*fits)(const char *word, const void *ctx),
                     const void *ctx)
{
    char word[NAME_BYTES + 32];
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

/* The port of a request is that of whatever stands before the server: it does not count. */
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
    if (is_address(&host, &is_loopback)) /* an address cannot be rebound */
        return !rules->is_local;
    return rules->host != NULL && strcasecmp(rules->host, host.name) == 0;
}

/* ---- origins -------------------------------------------------------------------------------- */

/* "http://localhost:3000" and its like; *port is never 0. */
static bool read_origin(const char *text, struct authority *a)
{
    const bool is_https = strncasecmp(text, "https://", 8) == 0;
    if (!is_https && strncasecmp(text, "http://", 7) != 0)
        return false;
    if (!read_authority(text + (is_https ? 8 : 7), a))
        return false;
    if (a->port == 0)
        a->port = is_https ? 443 : 80;
    return true;
}

static bool is_that_origin(const char *word, const void *ctx)
{
    return strcasecmp(word, ctx) == 0;
}

bool access_is_allowed_origin(const struct access_rules *rules, const char *origin)
{
    struct authority a;
    if (rules->cors != NULL)
        return any_word(rules->cors, is_that_origin, origin);
    return read_origin(origin, &a) && is_of_this_machine(&a);
}

/* Whether the page came from where it sends its request. Without a port in Host that is the
 * default one of either scheme: TLS may end before this server. */
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

/* Requests of programs have neither header. Browsers send Origin with everything that can be read
 * or changes something, and Sec-Fetch-Site, which no page can forge, to trustworthy addresses. */
static bool is_good_page(const struct access_rules *rules, const struct access_headers *h,
                         const struct access_call *call)
{
    if (is_word(h->site, "same-origin"))
        return true;
    if (h->origin != NULL)
        return is_own_page(h->origin, h->host) || access_is_allowed_origin(rules, h->origin);
    if (h->site == NULL || is_word(h->site, "none"))
        return true;
    return call->is_page && is_word(h->mode, "navigate") && is_word(h->dest, "document");
}

int access_check_site(const struct access_rules *rules, const struct access_headers *h,
                      const struct access_call *call, struct api_error *error)
{
    if (!is_good_host(rules, h->host))
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
    if (h->host == NULL || h->host[0] == '\0')
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
        return api_fail(error, API_BAD, NULL, "Transfer-Encoding '" SHOWN "' is not taken: send "
                        "Content-Length, or 'chunked' with HTTP/1.1", h->coding);
    return 0;
}

/* ---- bodies --------------------------------------------------------------------------------- */

/* A program that sends no type is taken at its word: where a page leaves it out, its browser still
 * sends Origin. */
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
