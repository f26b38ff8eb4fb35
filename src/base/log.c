#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/limits.h"

static fm_log_fn *log_sink;
static void *log_ctx;

void log_set_sink(fm_log_fn *sink, void *ctx)
{
    log_sink = sink;
    log_ctx = ctx;
}

static void log_line(int level, const char *module, const char *fmt, va_list args)
{
    if (log_sink == NULL)
        return;
    char text[1024];
    (void)vsnprintf(text, sizeof text, fmt, args); /* truncation is acceptable */
    log_sink(log_ctx, level, module, text);
}

void log_info(const char *module, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    log_line(FM_LOG_INFO, module, fmt, args);
    va_end(args);
}

void log_warn(const char *module, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    log_line(FM_LOG_WARN, module, fmt, args);
    va_end(args);
}
