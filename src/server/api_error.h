/* What went wrong with a request, before it is put into the words of a dialect. Owned by the
 * caller; any thread; nothing fails. */
#ifndef FLASHMOE_SERVER_API_ERROR_H
#define FLASHMOE_SERVER_API_ERROR_H

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"
#include "flashmoe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum api_fault {
    API_GOOD,
    API_BAD,       /* the request is wrong; `param` names the field */
    API_CONTEXT,   /* more tokens than the context holds */
    API_AUTH,
    API_FORBIDDEN, /* of a host or a web page that may not */
    API_NOT_FOUND,
    API_METHOD,
    API_LENGTH, /* nobody says where the body ends */
    API_TOO_LARGE,
    API_MEDIA_TYPE, /* the body is not called JSON */
    API_BUSY,
    API_SHUTDOWN,
    API_TIME,
    API_INTERNAL,
};

enum api_dialect { API_OPENAI, API_ANTHROPIC };

struct api_error {
    enum api_fault fault;
    char param[96]; /* empty: none */
    char text[FM_ERROR_BYTES];
};

/* The first fault counts. Returns -1, so that `return api_fail(...)` reads naturally. */
int api_fail(struct api_error *error, enum api_fault fault, const char *param, const char *fmt, ...)
    ERR_PRINTF(4, 5);
/* The fault of an FM_ERR_* or JOB_ERR_* code. */
enum api_fault api_fault_of(int code);
unsigned api_status(enum api_fault fault, enum api_dialect dialect);
/* The body of the answer; NULL for want of memory. */
json_t *api_error_json(const struct api_error *error, enum api_dialect dialect);

#ifdef __cplusplus
}
#endif
#endif
