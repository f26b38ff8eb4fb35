/* Many users of one server: a stream of OpenAI's completions API for each, all begun at once and
 * read on one thread, with the times at which text arrives.
 *
 * Keeps no state between calls. The other side is not trusted: what it sends is bounded, and a
 * server that says nothing for too long is given up. Errors name the server. */
#ifndef FLASHMOE_APPS_BENCH_SERVE_CLIENT_H
#define FLASHMOE_APPS_BENCH_SERVE_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "apps/cli/http_get.h"

#define SERVE_USERS_MAX 256

/* What one user got. Times are nanoseconds since the requests were sent; 0: never. */
struct serve_answer {
    uint64_t first_ns, last_ns; /* first and last piece of text */
    uint64_t gap_ns;            /* longest time between two tokens; without its count, pieces */
    uint64_t n_pieces;
    uint64_t n_tokens;          /* as the server counts them; without its count, pieces */
    uint64_t n_prompt, n_cached;
    uint64_t text_hash;
};

struct serve_load {
    const struct http_url *url;
    const char *api_key; /* NULL: none */
    const char *model;   /* name in the requests */
    unsigned n_users, n_tokens; /* tokens of each answer */
    const int32_t *const *prompts; /* [n_users] */
    size_t n_prompt;               /* tokens of each */
    /* Called whenever something arrived: users with text so far, and those whose answers ended. */
    void (*seen)(void *ctx, unsigned n_begun, unsigned n_ended);
    void *ctx;
};

/* Asks for all answers and waits for their ends. FM_ERR_CANCELLED after Ctrl-C. */
int serve_client_run(const struct serve_load *load, struct serve_answer *answers,
                     struct fm_error *err);

/* Asks a server for the name and the vocabulary of its model; *vocabulary is 0 if it does not tell.
 * `name` has room for 128 bytes. */
int serve_client_model(const struct http_url *url, const char *api_key, char name[128],
                       unsigned *vocabulary, struct fm_error *err);

#endif
