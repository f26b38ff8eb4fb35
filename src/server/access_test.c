#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/access.h"

static const struct access_rules local = {.is_local = true, .host = "127.0.0.1"};
static const struct access_rules wide = {.host = "box.lan",
                                         .hosts = "Models.example.org, [fd00::7]",
                                         .cors = "https://a.example,app://desk,null"};

static bool site_is_good(const struct access_rules *rules, const struct access_headers *h,
                         bool is_page)
{
    struct api_error error = {0};
    const struct access_call call = {.is_page = is_page};
    const int rc = access_check_site(rules, h, &call, &error);
    assert_true((rc == 0) == (error.fault == API_GOOD));
    assert_true(rc == 0 || (error.fault == API_FORBIDDEN && error.text[0] != '\0'));
    return rc == 0;
}

static bool host_is_good(const struct access_rules *rules, const char *host)
{
    return site_is_good(rules, &(struct access_headers){.host = host}, false);
}

static void test_hosts(void **state)
{
    (void)state;
    static const char *const good[] = {
        "localhost", "localhost:8080", "LocalHost:1", "localhost.", "localhost.:8080", "127.0.0.1",
        "127.0.0.1:65535", "127.8.9.1", "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]:80", "localhost:", "[::1]:", "a.localhost", "a.b.LOCALHOST.:80"};
    static const char *const bad[] = {
        "", "evil.example", "evil.example:8080", "localhost.evil.example",
        "localhost.evil.example:1",
        "evil.localhost.example", "xlocalhost", "localhostx", ".localhost",
        "a.localhostx", "localhost:0",
        "localhost:65536", "localhost:80x", "localhost:8080:1", "localhost, evil.example",
        "evil@localhost", "localhost@evil.example", "localhost/", "localhost ", " localhost",
        "127.0.0.1.evil.example", "127.1", "0x7f.0.0.1", "2130706433", "0.0.0.0", "192.168.1.7:80",
        "::1", "[::1", "[::1]x", "[::2]", "[localhost]", "localhost..", ".", "[]"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(host_is_good(&local, good[i]));
        assert_true(host_is_good(&wide, good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(host_is_good(&local, bad[i]));
    /* Beyond loopback: its own name, those of the list, and every address. */
    static const char *const names[] = {"box.lan", "BOX.lan.:80", "models.example.org:443",
                                        "192.168.1.7:80", "0.0.0.0:8080", "[fd00::7]:1",
                                        "[2001:db8::1]"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_true(host_is_good(&wide, names[i]));
    assert_false(host_is_good(&wide, "evil.example"));
    assert_false(host_is_good(&wide, "a.models.example.org"));
    assert_false(host_is_good(&wide, "fd00::7"));
    const struct access_rules named = {.host = "0.0.0.0", .machine = "pc,pc.corp.example"};
    assert_true(host_is_good(&named, "pc:8080"));
    assert_true(host_is_good(&named, "PC.corp.example"));
    assert_false(host_is_good(&named, "pc.evil.example"));
    const struct access_rules inside = {.is_local = true, .machine = "pc"};
    assert_false(host_is_good(&inside, "pc"));
    const struct access_rules all = {.is_local = true, .hosts = "x.example,*"};
    assert_true(host_is_good(&all, "evil.example"));
    const struct access_rules none = {.is_local = true, .hosts = ",, ,"};
    assert_false(host_is_good(&none, "evil.example"));
}

static void test_origins(void **state)
{
    (void)state;
    static const char *const own[] = {"http://localhost", "http://localhost:3000",
                                      "https://LOCALHOST:1", "http://127.0.0.1:8080",
                                      "http://a.localhost:3000",
                                      "http://[::1]:8080", "http://127.200.0.1"};
    static const char *const foreign[] = {
        "http://localhost.evil.example", "http://localhost:3000.evil.example",
        "http://evil.example", "http://evil.example/localhost", "http://evil.example?://localhost",
        "http://x@localhost:3000.evil.example", "http://user@localhost", "http://localhost/",
        "null", "", "localhost", "://localhost", "file://localhost", "ftp://localhost",
        "x://http://localhost", "http://127.0.0.1.evil.example", "http://[::1].evil.example",
        "http://[::1", "http://localhost:", "http://localhost http://evil.example",
        "chrome-extension://localhost"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        assert_true(access_is_allowed_origin(&local, own[i]));
        assert_true(access_is_allowed_origin(&wide, own[i])); /* the list adds to them */
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++)
        assert_false(access_is_allowed_origin(&local, foreign[i]));
    assert_true(access_is_allowed_origin(&wide, "https://a.example"));
    assert_true(access_is_allowed_origin(&wide, "app://desk"));
    assert_true(access_is_allowed_origin(&wide, "null"));
    static const char *const lookalikes[] = {"https://a.example.evil.example", "https://a.exampl",
                                             "http://a.example", "https://a.example:444",
                                             "https://a.example,app://desk", "https://a.example/",
                                             "a.example"};
    for (size_t i = 0; i < sizeof lookalikes / sizeof lookalikes[0]; i++)
        assert_false(access_is_allowed_origin(&wide, lookalikes[i]));
    const struct access_rules apps = {
        .cors = "http://b.example:80/, HTTPS://c.example:443,app://obsidian.md,tauri://localhost/,"
                "vscode-webview://*,chrome-extension://abcdef,file://"};
    static const char *const listed[] = {
        "http://b.example", "https://c.example", "app://obsidian.md", "tauri://localhost",
        "vscode-webview://0a1b2c", "chrome-extension://abcdef", "file://"};
    static const char *const unlisted[] = {
        "https://b.example", "http://b.example:81", "http://c.example:443", "app://other",
        "vscode-webviews://0a1b2c", "chrome-extension://abcdeg", "file:///x", "null",
        "http://vscode-webview://a"};
    for (size_t i = 0; i < sizeof listed / sizeof listed[0]; i++)
        assert_true(access_is_allowed_origin(&apps, listed[i]));
    for (size_t i = 0; i < sizeof unlisted / sizeof unlisted[0]; i++)
        assert_false(access_is_allowed_origin(&apps, unlisted[i]));
    const struct access_rules all = {.cors = "*"};
    assert_true(access_is_allowed_origin(&all, "null"));
}

static void test_lists(void **state)
{
    (void)state;
    static const char *const good_hosts[] = {
        NULL, "", "*", ",, ,", "box", "flashmoe, host.docker.internal", "my_box.lan:8080",
        "192.168.1.7", "[fd00::7]", "x--1.example."};
    static const char *const bad_hosts[] = {
        "https://chat.example", "*.corp.example", "fd00::7", "[chat.example]", "a.example/", "a b",
        "good.example,bad.example/x", "user@a.example", "**", "b\xc3\xbc" "cher.example", "a:80x"};
    static const char *const good_origins[] = {
        NULL, "", "*", "null", "file://", "http://localhost:3000/", "https://a.example,app://desk",
        "app://obsidian.md", "tauri://localhost", "vscode-webview://0a1b2c", "vscode-webview://*",
        "chrome-extension://abcdef", "moz-extension://0a-1b/", "http://[::1]:5173"};
    static const char *const bad_origins[] = {
        "localhost:3000", "a.example", "https://*.example", "https://*", "http://a.example/chat",
        "http://", "app://", "://a", "http://a.example:x", "http://a.example?", "NULL", "**",
        "http://a.example//", "http://ok.example, nonsense"};
    char overlong[600] = "https://";
    struct fm_error err = {0};
    for (size_t i = 0; i < sizeof good_hosts / sizeof good_hosts[0]; i++)
        assert_int_equal(access_check_lists(good_hosts[i], NULL, &err), 0);
    for (size_t i = 0; i < sizeof good_origins / sizeof good_origins[0]; i++)
        assert_int_equal(access_check_lists(NULL, good_origins[i], &err), 0);
    for (size_t i = 0; i < sizeof bad_hosts / sizeof bad_hosts[0]; i++) {
        if (access_check_lists(bad_hosts[i], NULL, &err) != FM_ERR_ARG)
            fail_msg("%s", bad_hosts[i]);
        assert_non_null(strstr(err.text, "--allowed-host: '"));
    }
    for (size_t i = 0; i < sizeof bad_origins / sizeof bad_origins[0]; i++) {
        if (access_check_lists("a.example", bad_origins[i], &err) != FM_ERR_ARG)
            fail_msg("%s", bad_origins[i]);
        assert_non_null(strstr(err.text, "--cors: '"));
    }
    memset(overlong + 8, 'a', sizeof overlong - 9);
    assert_int_equal(access_check_lists(NULL, overlong, &err), FM_ERR_ARG);
    assert_int_equal(access_check_lists(overlong + 8, NULL, &err), FM_ERR_ARG);
    assert_true(access_allows_all("a, *") && !access_allows_all("a*,**") &&
                !access_allows_all(NULL) && !access_allows_all("app://*"));
    char names[16] = "";
    access_add_host(names, sizeof names, "pc");
    access_add_host(names, sizeof names, "*");
    access_add_host(names, sizeof names, "a,b");
    access_add_host(names, sizeof names, "pc.local");
    access_add_host(names, sizeof names, "much-too-long");
    assert_string_equal(names, "pc,pc.local");
}

static void test_pages(void **state)
{
    (void)state;
    const struct {
        const char *host, *origin, *site, *mode, *dest;
        bool is_page, is_good;
    } cases[] = {
        {"localhost:80", NULL, NULL, NULL, NULL, false, true},            /* a program */
        {"localhost:80", NULL, NULL, "cors", NULL, false, true},          /* Node's fetch */
        {"localhost:80", NULL, "none", "navigate", "document", true, true}, /* the address bar */
        {"localhost:80", NULL, "same-origin", "cors", "empty", false, true},
        {"localhost:80", "http://localhost:80", "same-origin", "cors", "empty", false, true},
        {"localhost:80", "http://localhost:3000", "same-site", "cors", "empty", false, true},
        {"127.0.0.1:80", "http://localhost:3000", "cross-site", "cors", "empty", false, true},
        {"localhost:80", "http://evil.example", "cross-site", "cors", "empty", false, false},
        {"localhost:80", "http://evil.example", NULL, NULL, NULL, false, false},
        {"localhost:80", "http://localhost.evil.example", NULL, NULL, NULL, false, false},
        {"localhost:80", "null", "cross-site", "cors", "empty", false, false},
        {"localhost:80", "null", NULL, NULL, NULL, false, false},
        {"localhost:80", "", NULL, NULL, NULL, false, false},
        {"localhost:80", "chrome-extension://abc", "none", "cors", "empty", false, false},
        {"localhost:80", NULL, "cross-site", "no-cors", "image", false, false},
        {"localhost:80", NULL, "same-site", "no-cors", "script", false, false},
        {"localhost:80", NULL, "whatever", NULL, NULL, false, false},
        {"localhost:80", NULL, "", NULL, NULL, false, false},
        {"localhost:80", NULL, "cross-site", "navigate", "document", true, true}, /* a link */
        {"localhost:80", NULL, "cross-site", "navigate", "document", false, false},
        {"localhost:80", NULL, "cross-site", "navigate", "iframe", true, false},
        {"localhost:80", NULL, "cross-site", "no-cors", "script", true, false},
        /* The page of a server elsewhere, with and without TLS before it. */
        {"192.168.1.7:80", "http://192.168.1.7:80", NULL, NULL, NULL, false, true},
        {"192.168.1.7", "http://192.168.1.7", NULL, NULL, NULL, false, true},
        {"192.168.1.7", "https://192.168.1.7", NULL, NULL, NULL, false, true},
        {"192.168.1.7:8080", "http://192.168.1.7", NULL, NULL, NULL, false, false},
        {"192.168.1.7", "http://192.168.1.7:8080", NULL, NULL, NULL, false, false},
        {"192.168.1.7:80", "http://192.168.1.70:80", NULL, NULL, NULL, false, false},
        {"[fd00::1]:80", "http://[fd00::1]:80", NULL, NULL, NULL, false, true},
    };
    const struct access_rules rules = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct access_headers h = {.host = cases[i].host, .origin = cases[i].origin,
                                         .site = cases[i].site, .mode = cases[i].mode,
                                         .dest = cases[i].dest};
        if (site_is_good(&rules, &h, cases[i].is_page) != cases[i].is_good)
            fail_msg("case %zu", i);
    }
}

static int framing(const char *const pairs[], struct access_call call)
{
    struct access_headers h = {0};
    struct api_error error = {0};
    for (size_t i = 0; pairs[i] != NULL; i += 2)
        access_note(&h, pairs[i], pairs[i + 1]);
    const int rc = access_check_framing(&h, &call, &error);
    assert_true(rc == 0 || error.fault == (call.is_post ? API_LENGTH : API_BAD));
    return rc;
}
#define FRAMING(...) framing((const char *const[]){__VA_ARGS__, NULL}, \
                              (struct access_call){0})
#define HOST "Host", "localhost"

static void test_framing(void **state)
{
    (void)state;
    assert_int_equal(FRAMING(HOST), 0);
    assert_int_equal(FRAMING(HOST, "Content-Length", "7"), 0);
    assert_int_equal(FRAMING(HOST, "transfer-encoding", "Chunked"), 0);
    assert_int_equal(FRAMING(HOST, "X-a", "1", "X-a", "2", "x~`|", ""), 0);
    assert_int_not_equal(FRAMING("X-a", "1"), 0);
    assert_int_not_equal(FRAMING("Host", ""), 0);
    assert_int_not_equal(FRAMING(HOST, "hOST", "localhost"), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Length", "7", "Content-Length", "7"), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Length", "7", "Transfer-Encoding", "chunked"), 0);
    assert_int_not_equal(FRAMING(HOST, "Transfer-Encoding", "chunked", "Transfer-Encoding",
                                 "chunked"), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Length", "+7"), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Length", ""), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Length", "7, 7"), 0);
    assert_int_not_equal(FRAMING(HOST, "Transfer-Encoding", "identity"), 0);
    assert_int_not_equal(FRAMING(HOST, "Transfer-Encoding", "gzip, chunked"), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Length ", "7"), 0);
    assert_int_not_equal(FRAMING(HOST, "", "7"), 0);
    assert_int_not_equal(FRAMING(HOST, "Origin", "null", "Origin", "http://localhost"), 0);
    assert_int_not_equal(FRAMING(HOST, "Content-Type", "text/plain", "Content-Type", "x"), 0);
    assert_int_not_equal(framing((const char *const[]){HOST, "Transfer-Encoding", "chunked", NULL},
                                 (struct access_call){.is_1_0 = true}), 0);
    /* A body must say where it ends. */
    const struct access_call post = {.is_post = true};
    assert_int_not_equal(framing((const char *const[]){HOST, NULL}, post), 0);
    assert_int_equal(framing((const char *const[]){HOST, "Content-Length", "0", NULL}, post), 0);
    assert_int_equal(framing((const char *const[]){HOST, "Transfer-Encoding", "chunked", NULL},
                             post), 0);
    /* Only an old program that asks for the health may leave the host out. */
    const char *const none[] = {"X-a", "1", NULL}, *const empty[] = {"Host", "", NULL};
    const struct access_call probe = {.is_1_0 = true, .is_probe = true};
    assert_int_equal(framing(none, probe), 0);
    assert_int_not_equal(framing(empty, probe), 0);
    assert_int_not_equal(framing(none, (struct access_call){.is_1_0 = true}), 0);
    assert_int_not_equal(framing(none, (struct access_call){.is_probe = true}), 0);
    const struct access_headers bare = {0}, page = {.origin = "http://evil.example"};
    assert_true(site_is_good(&local, &bare, false));
    assert_false(site_is_good(&local, &page, false));
}

static bool type_is_good(const char *type)
{
    struct api_error error = {0};
    const struct access_headers h = {.type = type};
    return access_check_type(&h, &error) == 0;
}

static void test_types(void **state)
{
    (void)state;
    static const char *const good[] = {NULL, "", "application/json", "Application/JSON ; charset=x",
                                       "application/json;charset=utf-8", "text/json",
                                       "application/vnd.api+json"};
    static const char *const bad[] = {
        "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
        "text/plain;application/json", "application/jsonx", "xapplication/json", "application/",
        ";application/json", "application/json,text/plain", "application/+jsonx", "text/x+json"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++)
        assert_true(type_is_good(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(type_is_good(bad[i]));
}

static void write_keys(const char *path, const char *text, mode_t mode)
{
    (void)unlink(path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0 && chmod(path, mode) == 0);
}

static void test_keys(void **state)
{
    (void)state;
    char path[] = "/tmp/access_test_XXXXXX";
    struct access_keys keys = {0};
    struct fm_error err = {0};
    uint64_t one = 0, two = 0, owner = 0;
    bool is_exposed = true;
    (void)close(mkstemp(path));
    write_keys(path, "# keys\n\n  first \r\nsecond\nfirst\n#third\nlast", 0600);
    assert_int_equal(access_keys_read(&keys, path, &is_exposed, &err), 0);
    assert_int_equal(keys.n, 3);
    assert_false(is_exposed);
    assert_true(access_keys_find(&keys, "first", &one) && access_keys_find(&keys, "second", &two));
    assert_true(one != 0 && two != 0 && one != two);
    assert_true(access_keys_find(&keys, "last", &owner));
    static const char *const wrong[] = {"", "firs", "first ", "firstx", "First", "#third", "third",
                                        "# keys", "firstsecond"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(access_keys_find(&keys, wrong[i], &owner));
    access_keys_clear(&keys);
    assert_false(access_keys_find(&keys, "first", &owner));

    write_keys(path, "first\n", 0644);
    assert_int_equal(access_keys_read(&keys, path, &is_exposed, &err), 0);
    assert_true(is_exposed);
    assert_true(access_keys_find(&keys, "first", &owner) && owner == one); /* of the key alone */
    access_keys_clear(&keys);
    static const char *const useless[] = {"", "\n \n# only\n", "good\nwith blank\n", "\xc3\xa9\n"};
    for (size_t i = 0; i < sizeof useless / sizeof useless[0]; i++) {
        write_keys(path, useless[i], 0600);
        assert_int_equal(access_keys_read(&keys, path, &is_exposed, &err), FM_ERR_ARG);
        assert_non_null(strstr(err.text, path));
        access_keys_clear(&keys);
    }
    write_keys(path, "first\n", 0602); /* everybody may add one */
    assert_int_equal(access_keys_read(&keys, path, &is_exposed, &err), FM_ERR_ARG);
    write_keys(path, "first\n", 0620); /* and so may a group */
    assert_int_equal(access_keys_read(&keys, path, &is_exposed, &err), FM_ERR_ARG);
    (void)unlink(path);
    assert_int_equal(access_keys_read(&keys, path, &is_exposed, &err), FM_ERR_IO);
    assert_int_equal(access_keys_read(&keys, "/tmp", &is_exposed, &err), FM_ERR_IO);
    assert_int_equal(access_keys_add(&keys, "", 0, "--api-key", &err), FM_ERR_ARG);
    assert_string_equal(err.text, "--api-key is empty: give a key, or leave it out");
    assert_int_equal(keys.n, 0);
    access_keys_clear(&keys);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts), cmocka_unit_test(test_origins), cmocka_unit_test(test_lists),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_framing), cmocka_unit_test(test_types), cmocka_unit_test(test_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
