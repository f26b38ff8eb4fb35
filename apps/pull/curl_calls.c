#define CURL_CALLS_THEMSELVES
#include "apps/pull/curl_calls.h"

#ifndef FLASHMOE_CURL_LINKED
#include <dlfcn.h>
#endif
#include <stddef.h>
#include <string.h>

#ifdef FLASHMOE_CURL_LINKED

struct curl_calls curl_calls = {
#define CURL_ADDRESS(name) .name = curl_##name,
    CURL_CALLS(CURL_ADDRESS)
#undef CURL_ADDRESS
};

int curl_calls_load(struct fm_error *err)
{
    (void)err;
    return 0;
}

#else

struct curl_calls curl_calls;

/* The names of its fourth interface, which has been the only one since 2006. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.4.dylib"};

static const struct {
    const char *name;
    size_t at;
} calls[] = {
#define CURL_ENTRY(name) {"curl_" #name, offsetof(struct curl_calls, name)},
    CURL_CALLS(CURL_ENTRY)
#undef CURL_ENTRY
};

int curl_calls_load(struct fm_error *err)
{
    static void *library;
    for (size_t i = 0; library == NULL && i < sizeof names / sizeof names[0]; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return err_set(err, FM_ERR_UNSUPPORTED, "%s is not installed, and downloads need it "
                       "(Debian: libcurl4)", names[0]);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *call = dlsym(library, calls[i].name);
        if (call == NULL)
            return err_set(err, FM_ERR_UNSUPPORTED, "libcurl is too old: it has no %s",
                           calls[i].name);
        memcpy((char *)&curl_calls + calls[i].at, &call, sizeof call);
    }
    return 0;
}

#endif
