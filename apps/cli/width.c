#include "apps/cli/width.h"

#include <stdbool.h>

#include "apps/cli/term.h"

struct range {
    uint32_t first, last;
};

#include "apps/cli/width_tables.inc"

static bool is_in(const struct range *ranges, size_t n, uint32_t c)
{
    size_t low = 0;
    while (low < n) {
        const size_t middle = low + (n - low) / 2;
        if (c < ranges[middle].first)
            n = middle;
        else if (c > ranges[middle].last)
            low = middle + 1;
        else
            return true;
    }
    return false;
}

unsigned width_of(uint32_t c)
{
    if (c < 0x20 || (c >= 0x7f && c < 0xa0))
        return 0;
    if (c < 0xa0)
        return 1;
    if (is_in(empty_ranges, sizeof empty_ranges / sizeof empty_ranges[0], c))
        return 0;
    return is_in(wide_ranges, sizeof wide_ranges / sizeof wide_ranges[0], c) ? 2 : 1;
}

uint32_t width_decode(const char *text, size_t n, size_t *used)
{
    const unsigned char *s = (const unsigned char *)text;
    *used = utf8_length(s, n);
    if (*used == 0) {
        *used = 1;
        return 0xfffd;
    }
    uint32_t c = *used == 1 ? s[0] : s[0] & (0xffu >> (*used + 1));
    for (size_t i = 1; i < *used; i++)
        c = c << 6 | (s[i] & 0x3fu);
    return c;
}
