#include "quant/quant.h"

#include <string.h>

#define QUANT(descriptor) extern const struct quant descriptor;
#include "quant/quant_list.h"
#undef QUANT

static const struct quant *const all_formats[] = {
#define QUANT(descriptor) &descriptor,
#include "quant/quant_list.h"
#undef QUANT
};

const struct quant *quant_at(unsigned i)
{
    return i < sizeof all_formats / sizeof all_formats[0] ? all_formats[i] : NULL;
}

const struct quant *quant_find(const char *name)
{
    for (unsigned i = 0; quant_at(i) != NULL; i++)
        if (strcmp(quant_at(i)->name, name) == 0)
            return quant_at(i);
    return NULL;
}
