/* Starting ranks with mpirun, and the lines that start them. Called from the main thread only. */
#ifndef FLASHMOE_APPS_CLUSTER_MPIRUN_H
#define FLASHMOE_APPS_CLUSTER_MPIRUN_H

#include <stdbool.h>
#include <stddef.h>

#include "apps/cli/options.h"
#include "base/err.h"
#include "base/limits.h"

#define MPIRUN_WORDS 128

/* The words of a command line. They are borrowed but for those in `text`. */
struct mpirun_words {
    const char *words[MPIRUN_WORDS + 1]; /* ends with NULL */
    unsigned n;
    char text[4096];
    size_t used;
};

struct hostfile {
    const char *path;
    unsigned n_ranks;
    bool has_slots; /* on every line: otherwise one rank per machine */
};

/* Counts the ranks of a host file. The error names the file and the line. */
int hostfile_read(struct hostfile *hosts, const char *path, struct fm_error *err);

/* Adds a word; a copy of it if `copies`. Fails when there is no room. */
int mpirun_add(struct mpirun_words *w, const char *word, bool copies, struct fm_error *err);
/* Begins with mpirun, the host file and further words of the user, separated by blanks. */
int mpirun_begin(struct mpirun_words *w, const struct hostfile *hosts, const char *more,
                 struct fm_error *err);
/* Adds the options of a group that the user has given. */
int mpirun_add_given(struct mpirun_words *w, const struct args *args,
                     const struct option_group *group, struct fm_error *err);
/* Writes the words for a shell. */
void mpirun_print(const struct mpirun_words *w);

/* Runs it and returns its standard output (mem_free). When it fails, prints the lines of flashmoe,
 * or all of mpirun's if there are none, on standard error. */
int mpirun_run(const struct mpirun_words *w, char **out, size_t *bytes, struct fm_error *err);

#endif
