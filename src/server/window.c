#include "server/window.h"

void window_note(struct window *w, const struct window_sample *sample)
{
    w->samples[w->next] = *sample;
    w->next = (w->next + 1) % WINDOW_SAMPLES;
    w->n += w->n < WINDOW_SAMPLES;
}

bool window_ends(const struct window *w, uint64_t now_ns, const struct window_sample **oldest,
                 const struct window_sample **newest)
{
    *oldest = *newest = NULL;
    for (unsigned i = 0; i < w->n; i++) {
        const struct window_sample *s = &w->samples[i];
        if (s->ns + WINDOW_NS < now_ns)
            continue;
        if (*oldest == NULL || s->ns < (*oldest)->ns)
            *oldest = s;
        if (*newest == NULL || s->ns > (*newest)->ns)
            *newest = s;
    }
    return *oldest != *newest;
}
