/* Log lines. The library prints nothing itself: lines go to the sink that the application
 * installed, or are dropped. Install the sink before opening the first model; after that any thread
 * may call it. The token path never logs. */
#ifndef FLASHMOE_BASE_LOG_H
#define FLASHMOE_BASE_LOG_H

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

void log_set_sink(fm_log_fn *sink, void *ctx);

/* `module` is the name of the folder, for example "model" or "store". */
void log_info(const char *module, const char *fmt, ...) ERR_PRINTF(2, 3);
void log_warn(const char *module, const char *fmt, ...) ERR_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif
#endif
