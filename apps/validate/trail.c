#include "apps/validate/trail.h"

#include <stdio.h>
#include <xxhash.h>

#include "base/mem.h"

int trail_new(struct trail *t, unsigned n_positions, unsigned n_layers, unsigned n_used,
              struct fm_error *err)
{
    const uint64_t n = (uint64_t)n_positions * n_layers;
    *t = (struct trail){.n_positions = n_positions, .n_layers = n_layers, .n_used = n_used};
    t->hashes = mem_new(n, sizeof *t->hashes, "the hidden states' hashes", err);
    t->routes = mem_new(n * n_used, sizeof *t->routes, "the chosen experts", err);
    return t->hashes != NULL && t->routes != NULL ? 0 : FM_ERR_NOMEM;
}

void trail_free(struct trail *t)
{
    mem_free(t->hashes);
    mem_free(t->routes);
    *t = (struct trail){0};
}

static void see_state(void *ctx, unsigned layer, unsigned position, const float *x, unsigned n)
{
    struct trail *t = ctx;
    if (layer >= t->n_layers || position >= t->n_positions)
        return;
    const uint64_t hash = XXH3_64bits(x, n * sizeof *x);
    t->hashes[(size_t)position * t->n_layers + layer] = hash != 0 ? hash : 1;
}

static void see_route(void *ctx, unsigned layer, unsigned position, unsigned n,
                      const uint32_t *ids, const float *weights)
{
    struct trail *t = ctx;
    (void)weights;
    if (layer >= t->n_layers || position >= t->n_positions)
        return;
    uint32_t *to = t->routes + ((size_t)position * t->n_layers + layer) * t->n_used;
    for (unsigned i = 0; i < n && i < t->n_used; i++)
        to[i] = ids[i] + 1;
}

void trail_watch(struct trail *t, struct fm_session *session)
{
    fm_session_observe(session, &(struct fm_observer){.size = sizeof(struct fm_observer), .ctx = t,
                                                      .hidden = see_state, .route = see_route});
}

void trail_unwatch(struct fm_session *session)
{
    fm_session_observe(session, &(struct fm_observer){.size = sizeof(struct fm_observer)});
}

bool trail_differs(const struct trail *a, const struct trail *b, unsigned *position, int *layer)
{
    const unsigned n = a->n_positions < b->n_positions ? a->n_positions : b->n_positions;
    for (unsigned p = 0; p < n; p++)
        for (unsigned l = 0; l < a->n_layers && l < b->n_layers; l++) {
            const uint64_t x = a->hashes[(size_t)p * a->n_layers + l];
            const uint64_t y = b->hashes[(size_t)p * b->n_layers + l];
            if (x != 0 && y != 0 && x != y) {
                *position = p;
                *layer = (int)l - 1;
                return true;
            }
        }
    return false;
}

uint32_t trail_hash(const struct trail *t, unsigned layer, unsigned first, unsigned end)
{
    uint64_t hash = 0;
    for (unsigned p = first; p < end && p < t->n_positions; p++) {
        const uint64_t both[2] = {hash, t->hashes[(size_t)p * t->n_layers + layer]};
        hash = XXH3_64bits(both, sizeof both);
    }
    return (uint32_t)hash;
}

void trail_experts(const struct trail *t, unsigned position, unsigned layer, char *text,
                   size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    if (layer >= t->n_layers || position >= t->n_positions)
        return;
    const uint32_t *ids = t->routes + ((size_t)position * t->n_layers + layer) * t->n_used;
    for (unsigned i = 0; i < t->n_used && ids[i] != 0 && at + 16 < bytes; i++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%u", i > 0 ? ", " : "", ids[i] - 1);
}
