/* The page of the server: files built into the program.
 *
 * The files are those of src/server/web, compiled in by cmake/embed.cmake; nothing is read at run
 * time. All of it is constant, so any thread may read it, and nothing fails. The page refers to its
 * files and to the server's paths relatively, so it also works below a prefix of a proxy.
 *
 * The files hold no secret and are given without a key: it is the page that asks for the key. They
 * go out with WEB_CONTENT_SECURITY_POLICY, and with `Cache-Control: no-cache` beside the etag, so
 * that a new program is never met with the page of the old one. */
#ifndef FLASHMOE_SERVER_WEB_H
#define FLASHMOE_SERVER_WEB_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Nothing inline, nothing from elsewhere, in nobody's frame. */
#define WEB_CONTENT_SECURITY_POLICY                                                                \
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "            \
    "object-src 'none'"

struct web_file {
    const char *path; /* "/" for index.html, "/NAME" for the others */
    const char *mime_type;
    const unsigned char *bytes;
    size_t n_bytes;
    const char *etag; /* with its quotes; changes with the bytes */
};

/* Ascending by path. */
extern const struct web_file web_files[];
extern const size_t web_n_files;

#ifdef __cplusplus
}
#endif

#endif
