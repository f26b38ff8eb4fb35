/* Writes the engine's logits for a checkpoint, as raw numbers for sweep_config.py.
 *
 *   sweep_engine MODEL TOKEN...
 *
 * Writes float32 [n_tokens, vocabulary], native byte order, to standard output. If the model is
 * refused, the exit status is 3 and the error is on standard error. */
#include <stdio.h>
#include <stdlib.h>

#include "flashmoe_lab.h"

#define MAX_TOKENS 256
#define STATUS_REFUSED 3

static void write_row(void *ctx, unsigned position, const float *logits, unsigned n)
{
    (void)position;
    *(size_t *)ctx += fwrite(logits, sizeof *logits, n, stdout);
}

static int fail(const char *what, const struct fm_error *err, int status)
{
    fprintf(stderr, "%s: %s\n", what, err->text);
    return status;
}

int main(int argc, char **argv)
{
    int32_t ids[MAX_TOKENS];
    const int n_ids = argc - 2;
    if (n_ids < 1 || n_ids > MAX_TOKENS) {
        fprintf(stderr, "usage: sweep_engine MODEL TOKEN...\n");
        return 2;
    }
    for (int i = 0; i < n_ids; i++)
        ids[i] = (int32_t)atoi(argv[i + 2]);
    struct fm_error err;
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_session *session;
    options.kv = "f32"; /* the reference rounds nothing */
    options.n_context = (unsigned)n_ids;
    if (fm_model_open(argv[1], &options, &model, &err) != 0)
        return fail("open", &err, STATUS_REFUSED);
    if (fm_session_open(model, &session, &err) != 0)
        return fail("session", &err, 1);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    size_t n_written = 0;
    fm_session_observe(session, &(struct fm_observer){.size = sizeof(struct fm_observer),
                                                      .ctx = &n_written, .logits = write_row});
    if (fm_session_eval(session, ids, (size_t)n_ids, &err) != 0)
        return fail("eval", &err, 1);
    fm_session_close(session);
    fm_model_close(model);
    return fflush(stdout) == 0 && n_written == (size_t)n_ids * info.vocabulary ? 0 : 1;
}
