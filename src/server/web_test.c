#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/plat.h"
#include "server/web.h"

#define FOLDER FLASHMOE_TEST_DIR "/../src/server/web"

static const struct web_file *find(const char *path)
{
    for (size_t i = 0; i < web_n_files; i++) {
        if (strcmp(web_files[i].path, path) == 0) {
            return &web_files[i];
        }
    }
    return NULL;
}

static bool contains(const struct web_file *file, const char *text)
{
    return memmem(file->bytes, file->n_bytes, text, strlen(text)) != NULL;
}

/* Checks that the compiled-in files equal those of the folder. */
static void test_bytes(void **state)
{
    (void)state;
    assert_true(web_n_files >= 4);
    for (size_t i = 0; i < web_n_files; i++) {
        const struct web_file *file = &web_files[i];
        const char *name = strcmp(file->path, "/") == 0 ? "/index.html" : file->path;
        char path[512];
        char *bytes;
        size_t n_bytes;
        struct fm_error err;
        assert_true(snprintf(path, sizeof path, FOLDER "%s", name) < (int)sizeof path);
        if (plat_read_file(path, 1 << 20, &bytes, &n_bytes, &err) != 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(n_bytes, file->n_bytes);
        assert_memory_equal(bytes, file->bytes, n_bytes);
        mem_free(bytes);
    }
}

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < web_n_files; i++) {
        size_t etag_bytes = strlen(web_files[i].etag);
        assert_true(etag_bytes == 18 && web_files[i].etag[0] == '"');
        assert_int_equal(web_files[i].etag[etag_bytes - 1], '"');
        for (size_t j = i + 1; j < web_n_files; j++) {
            assert_true(strcmp(web_files[i].path, web_files[j].path) < 0);
            assert_string_not_equal(web_files[i].etag, web_files[j].etag);
        }
    }
    assert_string_equal(find("/")->mime_type, "text/html; charset=utf-8");
    assert_string_equal(find("/app.js")->mime_type, "text/javascript; charset=utf-8");
    assert_string_equal(find("/style.css")->mime_type, "text/css; charset=utf-8");
    assert_string_equal(find("/favicon.svg")->mime_type, "image/svg+xml");
    assert_null(find("/index.html"));
}

/* Checks that the page works without a network: every file it names is built in. */
static void test_alone(void **state)
{
    (void)state;
    static const char *const named[] = {"style.css", "theme.js", "app.js", "favicon.svg"};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        char attribute[64];
        char path[64];
        (void)snprintf(attribute, sizeof attribute, "=\"%s\"", named[i]);
        (void)snprintf(path, sizeof path, "/%s", named[i]);
        assert_true(contains(find("/"), attribute));
        assert_non_null(find(path));
    }
    assert_false(contains(find("/"), "//"));
    assert_false(contains(find("/style.css"), "url("));
    assert_false(contains(find("/style.css"), "@import"));
    for (size_t i = 0; i < web_n_files; i++) {
        assert_false(contains(&web_files[i], "innerHTML"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
