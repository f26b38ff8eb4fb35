/* The files of the web page, built into the program.
 *
 * cmake/embed.cmake compiles in src/server/web; nothing is read at run time. Everything is
 * constant: any thread may read it, and nothing can fail. The page uses relative URLs, so that it
 * also works below a path prefix of a proxy.
 *
 * The files contain no secret and are served without a key; the page itself asks for the key. They
 * are sent with WEB_CONTENT_SECURITY_POLICY and, besides the etag, `Cache-Control: no-cache`, so
 * that a new server never works with the page of an old one. */
#ifndef FLASHMOE_SERVER_WEB_H
#define FLASHMOE_SERVER_WEB_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Allows no inline code, no other origin and no framing. */
#define WEB_CONTENT_SECURITY_POLICY                                                                \
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "            \
    "object-src 'none'"

struct web_file {
    const char *path; /* "/" for index.html, "/NAME" for the others */
    const char *mime_type;
    const unsigned char *bytes;
    size_t n_bytes;
    const char *etag; /* with quotes; changes with the bytes */
};

/* Sorted by path. */
extern const struct web_file web_files[];
extern const size_t web_n_files;

#ifdef __cplusplus
}
#endif

#endif
