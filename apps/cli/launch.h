/* The coding agents that `flashmoe launch` knows, and how each is configured for a server.
 *
 * An agent is configured through its environment, its command line and, where neither suffices, a
 * file that it is given by name; never through the user's own settings. `struct launch` owns its
 * JSON values and file_text. One thread. The only failure is lack of memory. */
#ifndef FLASHMOE_APPS_CLI_LAUNCH_H
#define FLASHMOE_APPS_CLI_LAUNCH_H

#include <jansson.h>
#include <stdbool.h>

#include "apps/cli/http_get.h"

struct launch;

struct agent {
    const char *name; /* NULL ends the table */
    const char *program, *package; /* name on PATH; npm package */
    /* Tokens of its first request in a project without instructions, measured with the versions in
     * docs/DEPLOY.md; and a context that is large enough for useful work. */
    unsigned first_tokens, good_context;
    /* Fills environment, arguments and file. Returns false when memory runs out. */
    bool (*tell)(struct launch *launch);
};

#define AGENTS_MAX 8
extern const struct agent agents[];

struct launch {
    const struct agent *agent;
    struct http_url url;
    const char *api_key; /* what the agent sends; agents refuse an empty one */
    const char *model;
    unsigned n_context;  /* of the server; 0: unknown */
    json_t *environment; /* an object of strings, in order */
    json_t *arguments;   /* an array of strings; the user's come last */
    const char *file_name; /* NULL: no file */
    char *file_text;       /* allocated with malloc */
};

/* Stands for the path of the file in the arguments. */
#define LAUNCH_FILE "@file@"

bool launch_fill(struct launch *launch);
void launch_clear(struct launch *launch);

#endif
