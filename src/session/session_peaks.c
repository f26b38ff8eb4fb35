#include "session/session_peaks.h"

#include <stddef.h>

static const float *logits_of(const struct peak *peak)
{
    return __atomic_load_n(&peak->logits, __ATOMIC_ACQUIRE);
}

void peaks_set(struct peaks *p, const float *before, const float *logits, int64_t token)
{
    unsigned i = 0;
    peaks_forget(p, before);
    peaks_forget(p, logits);
    while (i < PEAKS_MAX && logits_of(&p->list[i]) != NULL)
        i++;
    if (token < 0 || i == PEAKS_MAX)
        return;
    p->list[i].token = (uint32_t)token;
    __atomic_store_n(&p->list[i].logits, logits, __ATOMIC_RELEASE);
}

void peaks_forget(struct peaks *p, const float *logits)
{
    for (unsigned i = 0; i < PEAKS_MAX; i++)
        if (logits_of(&p->list[i]) == logits)
            __atomic_store_n(&p->list[i].logits, NULL, __ATOMIC_RELEASE);
}

int32_t peaks_find(const struct peaks *p, const float *logits)
{
    for (unsigned i = 0; logits != NULL && i < PEAKS_MAX; i++)
        if (logits_of(&p->list[i]) == logits)
            return (int32_t)p->list[i].token;
    return -1;
}
