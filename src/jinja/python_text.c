#include "jinja/python_text.h"

struct case_run {
    uint32_t first, last, step;
    int32_t distance;
};

struct case_special {
    uint32_t code_point, to[3];
};

#include "jinja/python_text_tables.inc"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const struct {
    const struct case_run *runs;
    size_t n_runs;
    const struct case_special *specials;
    size_t n_specials;
} maps[] = {
    {lower_runs, COUNT(lower_runs), lower_specials, COUNT(lower_specials)},
    {upper_runs, COUNT(upper_runs), upper_specials, COUNT(upper_specials)},
    {title_runs, COUNT(title_runs), title_specials, COUNT(title_specials)},
    {fold_runs, COUNT(fold_runs), fold_specials, COUNT(fold_specials)},
};

size_t python_change_case(uint32_t code_point, enum python_case how, uint32_t out[3])
{
    out[0] = code_point;
    if (code_point < 0x80) {
        if (how == PYTHON_LOWER || how == PYTHON_FOLD)
            out[0] += code_point >= 'A' && code_point <= 'Z' ? 32 : 0;
        else
            out[0] -= code_point >= 'a' && code_point <= 'z' ? 32 : 0;
        return 1;
    }
    const struct case_run *runs = maps[how].runs;
    size_t low = 0, high = maps[how].n_runs;
    while (low < high) { /* finds the first run that begins after the character */
        const size_t middle = (low + high) / 2;
        if (runs[middle].first <= code_point)
            low = middle + 1;
        else
            high = middle;
    }
    const struct case_run *run = low > 0 ? &runs[low - 1] : NULL;
    if (run != NULL && code_point <= run->last && (code_point - run->first) % run->step == 0) {
        out[0] = (uint32_t)((int32_t)code_point + run->distance);
        return 1;
    }
    for (size_t i = 0; i < maps[how].n_specials; i++) {
        const struct case_special *special = &maps[how].specials[i];
        if (special->code_point != code_point)
            continue;
        size_t n = 0;
        for (; n < 3 && special->to[n] != 0; n++)
            out[n] = special->to[n];
        return n;
    }
    return 1;
}

static bool changes(uint32_t code_point, enum python_case how)
{
    uint32_t out[3];
    return python_change_case(code_point, how, out) != 1 || out[0] != code_point;
}

bool python_is_lower(uint32_t code_point)
{
    return changes(code_point, PYTHON_UPPER) && !changes(code_point, PYTHON_LOWER);
}

bool python_is_upper(uint32_t code_point)
{
    return changes(code_point, PYTHON_LOWER) && !changes(code_point, PYTHON_UPPER);
}

bool python_is_cased(uint32_t code_point)
{
    return changes(code_point, PYTHON_UPPER) || changes(code_point, PYTHON_LOWER);
}

bool python_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool python_is_line_end(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

bool python_is_printable(uint32_t code_point)
{
    size_t low = 0, high = COUNT(unprintable);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (unprintable[middle][1] < code_point)
            low = middle + 1;
        else
            high = middle;
    }
    return low == COUNT(unprintable) || unprintable[low][0] > code_point;
}
