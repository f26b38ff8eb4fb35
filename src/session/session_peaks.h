/* Which token has the highest of a session's logits, where a device has found it with them. To look
 * for it takes the host longer than all else between two tokens. A sampler knows logits by their
 * address: those of a session stay as they are until it goes on.
 *
 * The thread that uses the model sets peaks, and any thread finds them. */
#ifndef FLASHMOE_SESSION_SESSION_PEAKS_H
#define FLASHMOE_SESSION_SESSION_PEAKS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEAKS_MAX 64 /* sessions; further ones have none */

struct peaks {
    struct peak {
        const float *logits; /* NULL: none; accessed atomically */
        uint32_t token;
    } list[PEAKS_MAX];
};

/* The peak of `logits` is this token, or -1: not known. Those of `before` are not used any more. */
void peaks_set(struct peaks *p, const float *before, const float *logits, int64_t token);
void peaks_forget(struct peaks *p, const float *logits);
/* Returns the token, or -1. */
int32_t peaks_find(const struct peaks *p, const float *logits);

#ifdef __cplusplus
}
#endif
#endif
