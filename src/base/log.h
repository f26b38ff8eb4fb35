/* Log lines. The library prints nothing: lines go to the sink the application installed, or
 * nowhere. Install the sink before the first model is opened; it may then be called from any
 * thread. Nothing on the token path logs. */
#ifndef FLASHMOE_BASE_LOG_H
#define FLASHMOE_BASE_LOG_H

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

void log_set_sink(fm_log_fn *sink, void *ctx);

/* `module` is the folder: "model", "store", ... */
void log_info(const char *module, const char *fmt, ...) ERR_PRINTF(2, 3);
void log_warn(const char *module, const char *fmt, ...) ERR_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
