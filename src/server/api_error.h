/* A failed request, before a dialect formats the error. The caller owns the struct. Any thread;
 * cannot fail. */
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
    API_BAD,       /* the request is invalid; `param` names the field */
    API_CONTEXT,   /* more tokens than the context holds */
    API_AUTH,
    API_FORBIDDEN, /* the host or web page is not allowed */
    API_NOT_FOUND,
    API_METHOD,
    API_LENGTH, /* the length of the body is missing */
    API_TOO_LARGE,
    API_MEDIA_TYPE, /* the body has no JSON content type */
    API_BUSY,
    API_SHUTDOWN,
    API_TIME,
    API_INTERNAL,
};

enum api_dialect { API_OPENAI, API_ANTHROPIC, API_OLLAMA };

struct api_error {
    enum api_fault fault;
    char param[96]; /* empty: none */
    char text[FM_ERROR_BYTES];
};

/* Records a fault unless there is one already. Returns -1, for `return api_fail(...)`. */
int api_fail(struct api_error *error, enum api_fault fault, const char *param, const char *fmt, ...)
    ERR_PRINTF(4, 5);
/* Returns the fault of an FM_ERR_* or JOB_ERR_* code. */
enum api_fault api_fault_of(int code);
unsigned api_status(enum api_fault fault, enum api_dialect dialect);
/* Returns the JSON body; NULL when memory runs out. */
json_t *api_error_json(const struct api_error *error, enum api_dialect dialect);

#ifdef __cplusplus
}
#endif
#endif
