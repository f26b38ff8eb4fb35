#include "apps/cluster/mpirun.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apps/cli/common.h"
#include "apps/cli/term.h"
#include "base/mem.h"

#define NOT_FOUND 127 /* as a shell */
#define MAX_RANKS 64

/* ---- the host file --------------------------------------------------------------------------- */

/* Reads "slots=N" of a line; returns 0 if it has none, or a negative number if it is wrong. */
static long slots_of(const char *line)
{
    const char *at = strstr(line, "slots");
    if (at == NULL || at == line || !isblank((unsigned char)at[-1]))
        return 0;
    at += strlen("slots");
    at += strspn(at, " \t");
    if (*at != '=')
        return -1;
    char *end;
    at += 1 + strspn(at + 1, " \t");
    const long n = strtol(at, &end, 10);
    return end > at && n > 0 && n <= MAX_RANKS ? n : -1;
}

int hostfile_read(struct hostfile *hosts, const char *path, struct fm_error *err)
{
    char *text, *rest = NULL;
    size_t bytes;
    unsigned line = 0;
    *hosts = (struct hostfile){.path = path, .has_slots = true};
    int rc = file_read(path, &text, &bytes, err);
    if (rc != 0)
        return err_wrap(err, rc, "the host file");
    for (char *at = text; rc == 0 && at != NULL; at = rest) {
        rest = strchr(at, '\n');
        if (rest != NULL)
            *rest++ = '\0';
        line++;
        at[strcspn(at, "#")] = '\0';
        at += strspn(at, " \t\r");
        if (*at == '\0')
            continue;
        const long n = slots_of(at);
        if (n < 0)
            rc = err_set(err, FM_ERR_FORMAT, "%s: line %u is '%.80s': expected a host and, behind "
                         "it, slots=N", path, line, at);
        hosts->has_slots = hosts->has_slots && n != 0;
        hosts->n_ranks += n > 0 ? (unsigned)n : 1;
    }
    if (rc == 0 && (hosts->n_ranks == 0 || hosts->n_ranks > MAX_RANKS))
        rc = err_set(err, FM_ERR_FORMAT, "%s: it has %u ranks, expected 1 to %d: one machine per "
                     "line, such as 'a slots=1'", path, hosts->n_ranks, MAX_RANKS);
    mem_free(text);
    return rc;
}

/* ---- words ----------------------------------------------------------------------------------- */

int mpirun_add(struct mpirun_words *w, const char *word, bool copies, struct fm_error *err)
{
    const size_t n = strlen(word) + 1;
    if (w->n == MPIRUN_WORDS || (copies && n > sizeof w->text - w->used))
        return err_set(err, FM_ERR_ARG, "the command line for mpirun is too long");
    if (copies) {
        memcpy(w->text + w->used, word, n);
        word = w->text + w->used;
        w->used += n;
    }
    w->words[w->n++] = word;
    w->words[w->n] = NULL;
    return 0;
}

static int add_all(struct mpirun_words *w, const char *text, struct fm_error *err)
{
    int rc = 0;
    while (rc == 0 && text != NULL && *text != '\0') {
        char word[512];
        text += strspn(text, " \t\n");
        const size_t n = strcspn(text, " \t\n");
        if (n >= sizeof word)
            return err_set(err, FM_ERR_ARG, "a word of --mpirun is too long");
        (void)snprintf(word, sizeof word, "%.*s", (int)n, text);
        text += n;
        if (n > 0)
            rc = mpirun_add(w, word, true, err);
    }
    return rc;
}

int mpirun_begin(struct mpirun_words *w, const struct hostfile *hosts, const char *more,
                 struct fm_error *err)
{
    char n[16];
    *w = (struct mpirun_words){0};
    (void)snprintf(n, sizeof n, "%u", hosts->n_ranks);
    int rc = mpirun_add(w, "mpirun", false, err);
    if (rc == 0)
        rc = mpirun_add(w, "--hostfile", false, err);
    if (rc == 0)
        rc = mpirun_add(w, hosts->path, false, err);
    if (rc == 0)
        rc = mpirun_add(w, "-n", false, err);
    if (rc == 0)
        rc = mpirun_add(w, n, true, err);
    if (rc == 0 && !hosts->has_slots)
        rc = add_all(w, "--map-by node", err);
    if (rc == 0)
        rc = add_all(w, "--bind-to none", err);
    return rc != 0 ? rc : add_all(w, more, err);
}

int mpirun_add_given(struct mpirun_words *w, const struct args *args,
                     const struct option_group *group, struct fm_error *err)
{
    int rc = 0;
    for (const struct option *o = group->options; rc == 0 && o->name != NULL; o++) {
        char word[64];
        if (!args_given(args, o->name))
            continue;
        (void)snprintf(word, sizeof word, "--%s", o->name);
        rc = mpirun_add(w, word, true, err);
        if (rc == 0 && o->kind != OPTION_FLAG)
            for (size_t i = 0; i < args->n_values; i++)
                if (args->values[i].option == o)
                    rc = mpirun_add(w, args->values[i].text, false, err);
    }
    return rc;
}

void mpirun_print(const struct mpirun_words *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        const char *word = w->words[i];
        const bool is_plain =
            word[0] != '\0' && word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW"
                                                 "XYZ0123456789-_./,:=+%@")] == '\0';
        (void)printf("%s%s", i > 0 ? " " : "", is_plain ? word : "'");
        for (; !is_plain && *word != '\0'; word++)
            (void)printf(*word == '\'' ? "'\\''" : "%c", *word);
        (void)printf("%s", is_plain ? "" : "'");
    }
    (void)printf("\n");
}

/* ---- running --------------------------------------------------------------------------------- */

static int read_all(int fd, char **out, size_t *bytes, struct fm_error *err)
{
    void *buffer = NULL;
    size_t used = 0, capacity = 0;
    ssize_t n = 1;
    int rc = 0;
    while (rc == 0 && n != 0) {
        rc = mem_grow(&buffer, &capacity, used + 4096, 1, "the measurement", err);
        n = rc == 0 ? read(fd, (char *)buffer + used, capacity - used - 1) : 0;
        if (n < 0 && errno != EINTR)
            rc = err_set(err, FM_ERR_IO, "cannot read from mpirun: %s", strerror(errno));
        used += n > 0 ? (size_t)n : 0;
    }
    if (rc == 0)
        ((char *)buffer)[used] = '\0';
    *out = buffer;
    *bytes = used;
    return rc;
}

/* Shows what flashmoe said on the ranks, or else all that mpirun said. */
static void show_messages(FILE *messages)
{
    char line[2048];
    unsigned n = 0;
    for (int pass = 0; pass < 2 && n == 0; pass++) {
        rewind(messages);
        while (fgets(line, sizeof line, messages) != NULL)
            if (pass == 1 || strncmp(line, "flashmoe: ", 10) == 0) {
                (void)fputs(line, stderr);
                n++;
            }
    }
}

/* Replaces this process, a child, by mpirun. */
static void become(const struct mpirun_words *w, int out, int messages)
{
    (void)signal(SIGPIPE, SIG_DFL); /* exec keeps ignored signals ignored */
    if (dup2(out, STDOUT_FILENO) >= 0 && dup2(messages, STDERR_FILENO) >= 0)
        (void)execvp(w->words[0], (char *const *)(uintptr_t)w->words);
    _exit(NOT_FOUND);
}

static int wait_for(pid_t child, FILE *messages, struct fm_error *err)
{
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_FOUND)
        return err_set(err, FM_ERR_UNSUPPORTED, "mpirun cannot be started: install Open MPI "
                       "(Debian: openmpi-bin), or plan from numbers with --machines");
    show_messages(messages);
    return err_set(err, FM_ERR_IO, "the machines could not be measured: mpirun has ended with %s "
                   "%d. It must reach every host of the file without a question ('ssh HOST true'), "
                   "and flashmoe and the model must be there at the same paths",
                   WIFEXITED(status) ? "status" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

int mpirun_run(const struct mpirun_words *w, char **out, size_t *bytes, struct fm_error *err)
{
    int ends[2];
    FILE *messages = tmpfile();
    *out = NULL;
    if (messages == NULL || pipe(ends) != 0) {
        const int why = errno;
        if (messages != NULL)
            (void)fclose(messages);
        return err_set(err, FM_ERR_IO, "cannot start mpirun: %s", strerror(why));
    }
    (void)fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        become(w, ends[1], fileno(messages));
    }
    (void)close(ends[1]);
    int rc = child > 0 ? read_all(ends[0], out, bytes, err)
                       : err_set(err, FM_ERR_IO, "cannot start mpirun: %s", strerror(errno));
    (void)close(ends[0]);
    const int ended = child > 0 ? wait_for(child, messages, rc == 0 ? err : NULL) : 0;
    (void)fclose(messages);
    rc = rc != 0 ? rc : ended;
    if (rc != 0) {
        mem_free(*out);
        *out = NULL;
    }
    return rc;
}
