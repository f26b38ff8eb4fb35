/* The coding agents that `flashmoe launch` knows, and how each is told of a server.
 *
 * An agent is told by its environment, its command line and, where neither can say it, a file that
 * is given to it by name; never by the user's own settings. `struct launch` owns its JSON values;
 * one thread. The only failure is want of memory. */
#ifndef FLASHMOE_APPS_CLI_LAUNCH_H
#define FLASHMOE_APPS_CLI_LAUNCH_H

#include <jansson.h>
#include <stdbool.h>

#include "apps/cli/http_get.h"

struct launch;

struct agent {
    const char *name; /* NULL ends the table */
    const char *program, *package; /* on PATH; of npm */
    /* Tokens of its first request, in a project without instructions of its own: measured with the
     * versions that docs/DEPLOY.md names. And a context in which some work gets done. */
    unsigned first_tokens, good_context;
    /* Fills environment, arguments and file; false for want of memory. */
    bool (*tell)(struct launch *launch);
};

#define AGENTS_MAX 8
extern const struct agent agents[];

struct launch {
    const struct agent *agent;
    struct http_url url;
    const char *api_key; /* what the agent sends; never empty, as none takes that */
    const char *model;
    unsigned n_context;  /* of the server; 0: not known */
    json_t *environment; /* an object of strings, in order */
    json_t *arguments;   /* an array of strings, those of the user last */
    const char *file_name; /* NULL: there is none */
    char *file_text;       /* of malloc */
};

/* Where the file will be stands as this in the arguments. */
#define LAUNCH_FILE "@file@"

bool launch_fill(struct launch *launch);
void launch_clear(struct launch *launch);

#endif
