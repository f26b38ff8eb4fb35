/* SHA-256, and SHA-1 for the ids of git blobs, as the hub lists them for downloaded files. The
 * caller owns the struct. Any thread; no allocation; nothing fails. */
#ifndef FLASHMOE_BASE_SHA_H
#define FLASHMOE_BASE_SHA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sha_kind { SHA_256, SHA_1 };
#define SHA_HEX_BYTES 65 /* with its NUL, for either kind */

struct sha {
    enum sha_kind kind;
    uint32_t state[8];
    uint64_t n_bytes;
    unsigned char block[64];
};

void sha_begin(struct sha *sha, enum sha_kind kind);
void sha_add(struct sha *sha, const void *data, size_t bytes);
/* Writes the lower-case digits, 64 or 40, and a NUL. The struct must be begun again afterwards. */
void sha_hex(struct sha *sha, char hex[SHA_HEX_BYTES]);

/* For tests: computes with any processor's instructions only. */
void sha_use_plain(int is_plain);

#ifdef __cplusplus
}
#endif
#endif
