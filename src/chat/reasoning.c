#include "chat/reasoning.h"

#include <stddef.h>

const struct reasoning reasoning_list[] = {
    {.begin = "<think>", .end = "</think>", .closing = "\n</think>\n\n"},
    {NULL, NULL, NULL},
};
