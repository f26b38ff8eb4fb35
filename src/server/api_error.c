#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/job.h"
#include "server/text_json.h"

struct fault {
    unsigned status, anthropic_status;
    const char *openai, *code, *anthropic;
};

static const struct fault faults[] = {
    [API_GOOD] = {200, 200, "", NULL, ""},
    [API_BAD] = {400, 400, "invalid_request_error", NULL, "invalid_request_error"},
    [API_CONTEXT] = {400, 400, "invalid_request_error", "context_length_exceeded",
                     "invalid_request_error"},
    [API_AUTH] = {401, 401, "authentication_error", "invalid_api_key", "authentication_error"},
    [API_FORBIDDEN] = {403, 403, "invalid_request_error", "forbidden", "permission_error"},
    [API_NOT_FOUND] = {404, 404, "invalid_request_error", "not_found", "not_found_error"},
    [API_METHOD] = {405, 405, "invalid_request_error", "method_not_allowed",
                    "invalid_request_error"},
    [API_LENGTH] = {411, 411, "invalid_request_error", "length_required", "invalid_request_error"},
    [API_TOO_LARGE] = {413, 413, "invalid_request_error", "request_too_large",
                       "request_too_large"},
    [API_MEDIA_TYPE] = {415, 415, "invalid_request_error", "unsupported_media_type",
                        "invalid_request_error"},
    [API_BUSY] = {503, 529, "server_error", "overloaded", "overloaded_error"},
    [API_SHUTDOWN] = {503, 529, "server_error", "shutting_down", "overloaded_error"},
    [API_TIME] = {504, 504, "server_error", "timeout", "timeout_error"},
    [API_INTERNAL] = {500, 500, "server_error", "internal_error", "api_error"},
};

int api_fail(struct api_error *error, enum api_fault fault, const char *param, const char *fmt, ...)
{
    if (error->fault != API_GOOD)
        return -1;
    va_list list;
    va_start(list, fmt);
    (void)vsnprintf(error->text, sizeof error->text, fmt, list);
    va_end(list);
    error->fault = fault;
    (void)snprintf(error->param, sizeof error->param, "%s", param != NULL ? param : "");
    return -1;
}

enum api_fault api_fault_of(int code)
{
    switch (code) {
    case FM_ERR_ARG:
    case FM_ERR_UNSUPPORTED:
        return API_BAD;
    case JOB_ERR_BUSY:
        return API_BUSY;
    case JOB_ERR_SHUTDOWN:
        return API_SHUTDOWN;
    case JOB_ERR_TIME:
        return API_TIME;
    default:
        return API_INTERNAL;
    }
}

unsigned api_status(enum api_fault fault, enum api_dialect dialect)
{
    return dialect == API_ANTHROPIC ? faults[fault].anthropic_status : faults[fault].status;
}

json_t *api_error_json(const struct api_error *error, enum api_dialect dialect)
{
    const struct fault *fault = &faults[error->fault];
    json_t *text = text_json(error->text, strlen(error->text));
    if (dialect == API_ANTHROPIC)
        return json_pack("{s:s, s:{s:s, s:o}}", "type", "error", "error", "type", fault->anthropic,
                         "message", text);
    if (dialect == API_OLLAMA)
        return json_pack("{s:o}", "error", text);
    json_t *param = error->param[0] != '\0' ? text_json(error->param, strlen(error->param))
                                            : json_null();
    return json_pack("{s:{s:o, s:s, s:o, s:s?}}", "error", "message", text, "type", fault->openai,
                     "param", param, "code", fault->code);
}
