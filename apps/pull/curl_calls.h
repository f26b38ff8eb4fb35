/* libcurl, loaded when something is downloaded. Linked to the program, it and its twenty libraries
 * would take 4 MB and 10 ms of every command. A static program cannot load it and has it linked
 * (FLASHMOE_CURL_LINKED). The files that include this use libcurl's functions by their names, once
 * curl_calls_load has succeeded. */
#ifndef FLASHMOE_APPS_PULL_CURL_CALLS_H
#define FLASHMOE_APPS_PULL_CURL_CALLS_H

#define CURL_DISABLE_TYPECHECK /* its macros need the functions themselves */
#include <curl/curl.h>

#include "base/err.h"

#define CURL_CALLS(CALL)                                                                           \
    CALL(easy_cleanup) CALL(easy_getinfo) CALL(easy_init) CALL(easy_perform) CALL(easy_reset)      \
    CALL(easy_setopt) CALL(easy_strerror) CALL(free) CALL(global_init) CALL(multi_add_handle)      \
    CALL(multi_cleanup) CALL(multi_info_read) CALL(multi_init) CALL(multi_perform)                 \
    CALL(multi_poll) CALL(multi_remove_handle) CALL(slist_append) CALL(slist_free_all) CALL(url)   \
    CALL(url_cleanup) CALL(url_get) CALL(url_set)

struct curl_calls {
#define CURL_MEMBER(name) __typeof__(curl_##name) *name;
    CURL_CALLS(CURL_MEMBER)
#undef CURL_MEMBER
};
extern struct curl_calls curl_calls;

/* Loads libcurl, once. */
int curl_calls_load(struct fm_error *err);

#ifndef CURL_CALLS_THEMSELVES
#undef curl_easy_setopt
#undef curl_easy_getinfo
#define curl_easy_cleanup curl_calls.easy_cleanup
#define curl_easy_getinfo curl_calls.easy_getinfo
#define curl_easy_init curl_calls.easy_init
#define curl_easy_perform curl_calls.easy_perform
#define curl_easy_reset curl_calls.easy_reset
#define curl_easy_setopt curl_calls.easy_setopt
#define curl_easy_strerror curl_calls.easy_strerror
#define curl_free curl_calls.free
#define curl_global_init curl_calls.global_init
#define curl_multi_add_handle curl_calls.multi_add_handle
#define curl_multi_cleanup curl_calls.multi_cleanup
#define curl_multi_info_read curl_calls.multi_info_read
#define curl_multi_init curl_calls.multi_init
#define curl_multi_perform curl_calls.multi_perform
#define curl_multi_poll curl_calls.multi_poll
#define curl_multi_remove_handle curl_calls.multi_remove_handle
#define curl_slist_append curl_calls.slist_append
#define curl_slist_free_all curl_calls.slist_free_all
#define curl_url curl_calls.url
#define curl_url_cleanup curl_calls.url_cleanup
#define curl_url_get curl_calls.url_get
#define curl_url_set curl_calls.url_set
#endif

#endif
