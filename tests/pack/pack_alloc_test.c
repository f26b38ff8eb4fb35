/* Makes every allocation of packing and verifying fail once: FM_ERR_NOMEM with a sentence, no leaks
 * (AddressSanitizer checks that), and the files on the disk can be continued. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "flashmoe_lab.h"

static const char source[] = FLASHMOE_TEST_DIR "/golden/qwen3_moe";
static char folder[2048], packed[2200];

static void remove_packed(void)
{
    char command[3 * sizeof packed];
    (void)snprintf(command, sizeof command, "rm -rf '%s' '%s.partial'", packed, packed);
    assert_int_equal(system(command), 0);
}

static void test_packing(void **state)
{
    (void)state;
    struct fm_pack_options options = {.size = sizeof options};
    options.n_threads = 2;
    options.dense = "affine8-g32";
    int rc = -1, n_failed = 0;
    char whole[sizeof packed + 32];
    (void)snprintf(whole, sizeof whole, "%s.partial/model.json", packed);
    remove_packed();
    for (long n = 1; rc != 0; n++) {
        struct fm_error err = {0};
        /* A pack that only has to be renamed is not restarted. */
        options.restart = n % 5 == 0 && access(whole, F_OK) != 0;
        mem_fail_at(n);
        rc = fm_pack(source, packed, &options, NULL, &err);
        mem_fail_at(0);
        if (rc != 0) {
            assert_int_equal(rc, FM_ERR_NOMEM);
            assert_non_null(strstr(err.text, "memory"));
            n_failed++;
        }
    }
    assert_true(n_failed > 60);
}

static void test_verifying(void **state)
{
    (void)state;
    int rc = -1, n_failed = 0;
    for (long n = 1; rc != 0; n++) {
        struct fm_error err = {0};
        struct fm_verify_result result = {.size = sizeof result};
        mem_fail_at(n);
        rc = fm_verify(packed, NULL, &result, &err);
        mem_fail_at(0);
        assert_true(rc == FM_ERR_NOMEM || (rc == 0 && result.n_bad == 0));
        n_failed += rc != 0;
    }
    assert_true(n_failed > 20);
    remove_packed();
}

int main(int argc, char **argv)
{
    (void)snprintf(folder, sizeof folder, "%s", argc > 1 ? argv[1] : "/tmp");
    (void)snprintf(packed, sizeof packed, "%s/alloc-%ld.fmoe", folder, (long)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packing),
                                       cmocka_unit_test(test_verifying)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
