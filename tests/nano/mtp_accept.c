/* mtp_accept MODEL DEPTH: how many drafts of the model's own block are right. Reads texts from
 * standard input, a line each: the number of tokens of a prompt, then all tokens of the text. Every
 * token behind the prompt is given to a session by itself. Prints for each text the number of
 * passes, and in how many of them the drafts up to each depth were right. */
#include <stdio.h>
#include <stdlib.h>

#include "flashmoe.h"

#define MAX_TOKENS 4096

static void stop(const char *what, const struct fm_error *err)
{
    (void)fprintf(stderr, "mtp_accept: %s: %s\n", what, err->text);
    exit(1);
}

/* Reads a line of numbers. Returns how many. */
static size_t read_line(int32_t *numbers, size_t max)
{
    static char line[16 * MAX_TOKENS];
    size_t n = 0;
    if (fgets(line, sizeof line, stdin) == NULL)
        return 0;
    char *at = line, *end = line;
    for (; n < max; at = end) {
        const long number = strtol(at, &end, 10);
        if (end == at)
            break;
        numbers[n++] = (int32_t)number;
    }
    return n;
}

static void run(struct fm_model *model, struct fm_session *s, const int32_t *ids, size_t n_prompt,
                size_t n, unsigned depth)
{
    struct fm_error err;
    struct fm_stats before = {.size = sizeof before}, after = {.size = sizeof after};
    fm_session_reset(s);
    if (fm_session_eval(s, ids, n_prompt, &err) != 0)
        stop("prompt", &err);
    (void)fm_model_stats(model, &before);
    for (size_t i = n_prompt; i < n; i++)
        if (fm_session_eval(s, ids + i, 1, &err) != 0)
            stop("token", &err);
    (void)fm_model_stats(model, &after);
    printf("%llu", (unsigned long long)(after.n_decode_passes - before.n_decode_passes));
    for (unsigned d = 0; d < depth; d++)
        printf(" %llu",
               (unsigned long long)(after.n_drafts_accepted[d] - before.n_drafts_accepted[d]));
    printf("\n");
}

int main(int argc, char **argv)
{
    static int32_t numbers[1 + MAX_TOKENS];
    struct fm_error err;
    struct fm_model *model;
    struct fm_session *session;
    if (argc != 3) {
        (void)fprintf(stderr, "usage: mtp_accept MODEL DEPTH\n");
        return 2;
    }
    const struct fm_model_options options = {.size = sizeof options, .n_context = MAX_TOKENS,
                                             .n_drafts = (unsigned)atoi(argv[2]), .draft = FM_ON,
                                             .draft_source = FM_DRAFT_MTP, .kv = "f32"};
    if (fm_model_open(argv[1], &options, &model, &err) != 0)
        stop(argv[1], &err);
    if (fm_session_open(model, &session, &err) != 0)
        stop("session", &err);
    for (size_t n; (n = read_line(numbers, 1 + MAX_TOKENS)) > 1;)
        run(model, session, numbers + 1, (size_t)numbers[0], n - 1, options.n_drafts);
    fm_session_close(session);
    fm_model_close(model);
    return 0;
}
