/* Compares with the digests of another implementation (Python's hashlib). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/sha.h"

/* Byte i is i * 7 + i / 256 * 13. */
static const struct {
    size_t bytes;
    const char *sha_256, *sha_1;
} cases[] = {
    {0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
     "da39a3ee5e6b4b0d3255bfef95601890afd80709"},
    {1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
     "5ba93c9db0cff93f52b521d7420e43f6eda2784f"},
    {3, "b361d0f9a938a2bb4fbdc9c21dc5a859788041b0040919d8a811c1888184f4df",
     "75550941124b46eb4161d17ac200c05c4fc03ce7"},
    {55, "576a1bf8d4478657e6dc4af9398544765c2a92cde28478b019235cfed315fc09",
     "aecd1643c9903b9bae8cb94f53c50f8a4e18605b"},
    {56, "9b20501dfd1d99161c257950f3444f3e49230c351c5c8e0943ef369f85f5205d",
     "f5d65c621c02cc8e785159feff8088e3072da1bc"},
    {63, "30b345906b493f06f69444b6521113511c242f30e29840462950035043682f1e",
     "4952f0fe097e4d6410ae9eab4855aa836caf3bff"},
    {64, "d8bc63b4fc1156e5e7d95a418b9bf54cd3174bedbc2db40f74895349b229b3c0",
     "1e17ae1fc093e5daca033553c97a5192ca164486"},
    {65, "1ee23b0fbcaecc1aff4a9e8f1645f35ab2c8e13609cd73b68df8b5e3f63ce073",
     "ac44f5dbe3e9b5d2733fc9537fcad715c3c20bc3"},
    {119, "7a6589821178918ca8d9edaba5abfc1e9b2669564f4469b66885379c1530b2c8",
     "b4a4e69060d0b1e7e8ebbf7041a4211c63438b57"},
    {120, "655250427d56b1b0eeb8497d21428704273458a01772d6881b65c0abac0f8a98",
     "b651390c2996406336a3f6647e4b590c18cdd6f8"},
    {1000, "d037d0c973603f656fb02dc19aeef08b254b1e09507bcd191cbe060422768ac8",
     "8c95e8e81c305d89bc496e9f9b6346b7cd9d4e16"},
    {100003, "c6257b371c53a4b76e739cbdd81ad4a2a26801ea32a2e4c18227b61336800b7a",
     "646832190ae0b8e952c803f3ae0dbe45a05aab47"},
};

static unsigned char data[100003];

static void check(enum sha_kind kind, size_t bytes, size_t step, const char *expected)
{
    struct sha sha;
    char hex[SHA_HEX_BYTES];
    sha_begin(&sha, kind);
    for (size_t at = 0; at < bytes; at += step)
        sha_add(&sha, data + at, bytes - at < step ? bytes - at : step);
    sha_hex(&sha, hex);
    assert_string_equal(hex, expected);
}

static void test_digests(void **state)
{
    (void)state;
    static const size_t steps[] = {1, 7, 64, 100, 65536, 200000};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 7 + i / 256 * 13);
    for (int is_plain = 0; is_plain < 2; is_plain++) {
        sha_use_plain(is_plain);
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
            for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
                check(SHA_256, cases[c].bytes, steps[s], cases[c].sha_256);
                check(SHA_1, cases[c].bytes, steps[s], cases[c].sha_1);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_digests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
