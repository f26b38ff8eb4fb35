#include "base/bytes_text.h"

#include <stdio.h>

const char *bytes_text(uint64_t bytes, char text[BYTES_TEXT])
{
    const double mib = (double)bytes / (1 << 20);
    if (mib >= 1024)
        (void)snprintf(text, BYTES_TEXT, "%.2f GiB", mib / 1024);
    else
        (void)snprintf(text, BYTES_TEXT, "%.1f MiB", mib);
    return text;
}
