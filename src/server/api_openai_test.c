#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/api.h"

/* Some allocations of JSON fail: n_failing of them, after n_good. */
static unsigned n_good, n_failing;

static void *scarce(size_t bytes)
{
    if (n_good > 0) {
        n_good--;
        return malloc(bytes);
    }
    if (n_failing > 0) {
        n_failing--;
        return NULL;
    }
    return malloc(bytes);
}

/* Writes the event. Returns whether it was written, and that to `out`. */
static bool write_event(enum job_event_kind kind, bool has_functions, struct text_buffer *out)
{
    static const char text[] = "{\"city\": 1}";
    struct api_call call = {.api = &api_chat, .out = out, .has_functions = has_functions};
    struct job_event *event = calloc(1, sizeof *event + sizeof text);
    assert_non_null(event);
    event->kind = kind;
    event->text_bytes = sizeof text - 1;
    memcpy(event->text, text, sizeof text);
    (void)snprintf(event->name, sizeof event->name, "get_weather");
    const bool is_written = api_chat.write(&call, event);
    free(event);
    return is_written && text_buffer_add(out, "", 1);
}

/* Without memory a piece of a call is not written. It never becomes another one. */
static void test_calls_without_memory(void **state)
{
    (void)state;
    unsigned n_written = 0, n_not = 0;
    json_set_alloc_funcs(scarce, free);
    for (unsigned i = 0; i < 4 * 3 * 64; i++) {
        const bool is_begin = i % 2 == 1, has_functions = i / 2 % 2 == 1;
        struct text_buffer out = {0};
        n_failing = i / 4 % 3 + 1;
        n_good = i / 12;
        const bool is_written = write_event(is_begin ? JOB_CALL_BEGIN : JOB_CALL_ARGUMENTS,
                                            has_functions, &out);
        n_written += is_written;
        n_not += !is_written;
        if (is_written) {
            const char *got = text_buffer_text(&out);
            assert_true((strstr(got, "get_weather") != NULL) == is_begin);
            assert_true((strstr(got, "city") != NULL) == !is_begin);
            assert_true((strstr(got, "function_call") != NULL) == has_functions);
        }
        text_buffer_clear(&out);
    }
    json_set_alloc_funcs(malloc, free);
    assert_true(n_written > 0 && n_not > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
