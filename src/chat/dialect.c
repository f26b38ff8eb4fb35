#include "chat/dialect.h"

#include <string.h>

#include "chat/reasoning.h"

#define DIALECT(descriptor) extern const struct dialect descriptor;
#include "chat/dialect_list.h"
#undef DIALECT

static const struct dialect *const all[] = {
#define DIALECT(descriptor) &descriptor,
#include "chat/dialect_list.h"
#undef DIALECT
    NULL,
};

_Static_assert(sizeof all / sizeof all[0] <= DIALECTS_MAX + 1, "there is room for all dialects");

const struct dialect *const *dialect_all(void)
{
    return all;
}

const struct dialect *dialect_find(const char *name)
{
    for (unsigned i = 0; all[i] != NULL; i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

static bool contains(const struct dialect_text *where, const char *what)
{
    const size_t n = strlen(what);
    for (size_t i = 0; where->text != NULL && i + n <= where->bytes; i++)
        if (memcmp(where->text + i, what, n) == 0)
            return true;
    return false;
}

static bool shows(const struct dialect_text *template, const struct dialect *d)
{
    return contains(template, d->in_template) &&
           (d->also_in_template == NULL || contains(template, d->also_in_template)) &&
           (d->not_in_template == NULL || !contains(template, d->not_in_template));
}

void dialect_choose(const struct dialect_text *templates, size_t n,
                    const struct dialect *out[DIALECTS_MAX + 1])
{
    unsigned n_out = 0;
    for (unsigned i = 0; all[i] != NULL; i++) {
        bool is_shown = false;
        for (size_t t = 0; t < n; t++)
            is_shown = is_shown || shows(&templates[t], all[i]);
        if (is_shown)
            out[n_out++] = all[i];
    }
    for (unsigned i = 0, n_shown = n_out; n_shown == 0 && dialect_defaults()[i] != NULL; i++)
        out[n_out++] = dialect_defaults()[i];
    out[n_out] = NULL;
}

const struct dialect *const *dialect_defaults(void)
{
    static const struct dialect *const defaults[] = {&dialect_qwen_json, &dialect_qwen_xml, NULL};
    return defaults;
}

const struct dialect_frames *dialect_frames_of(const struct dialect *const *dialects)
{
    for (; *dialects != NULL; dialects++)
        if ((*dialects)->frames != NULL)
            return (*dialects)->frames;
    return NULL;
}

const struct grammar_call *dialect_forced_call(const struct dialect *const *dialects)
{
    for (; *dialects != NULL; dialects++)
        if ((*dialects)->call != NULL)
            return (*dialects)->call;
    return NULL;
}

static bool is_text(const char *text, size_t bytes, const char *wanted)
{
    return bytes == strlen(wanted) && memcmp(text, wanted, bytes) == 0;
}

bool dialect_is_marker(const struct dialect *const *dialects, const char *text, size_t bytes)
{
    for (const struct reasoning *r = reasoning_list; r->begin != NULL; r++)
        if (is_text(text, bytes, r->begin) || is_text(text, bytes, r->end))
            return true;
    for (; *dialects != NULL; dialects++)
        for (const char *const *token = (*dialects)->tokens; *token != NULL; token++)
            if (is_text(text, bytes, *token))
                return true;
    return false;
}
