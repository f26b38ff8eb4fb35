/* kv_golden_test FOLDER...: prints nats per token of each golden checkpoint with keys and values in
 * every format. Exit status 1 unless rot8 is within 0.002 of f16. The models are random: if two
 * experts score about the same, any change chooses another one, and the nats of a single text
 * change by more than that. So this takes the mean over the checkpoint's own text and many random
 * ones, which shows the cost of the format itself. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashmoe_lab.h"

#define MAX_TOKENS 512
#define N_TEXTS 128
#define TOLERANCE 0.002

static const char *const formats[] = {"f16", "f32", "rot8", "rot4", "rot3", "rot2"};
#define N_FORMATS (sizeof formats / sizeof formats[0])

struct text {
    int32_t ids[MAX_TOKENS];
    size_t n;
    double nats[N_FORMATS]; /* per token */
};

static struct text texts[N_TEXTS];

struct eval {
    const struct text *text;
    double nats;
};

static void die(const char *what)
{
    fprintf(stderr, "kv_golden_test: %s\n", what);
    exit(1);
}

/* Makes the checkpoint's own text, then random ones of the same length. */
static void make_texts(const char *folder)
{
    struct text *text = &texts[0];
    char path[4096];
    snprintf(path, sizeof path, "%s/golden.json", folder);
    json_t *root = json_load_file(path, 0, NULL);
    const json_t *ids = json_object_get(root, "input_ids");
    text->n = json_array_size(ids);
    if (text->n < 2 || text->n > MAX_TOKENS)
        die(path);
    for (size_t i = 0; i < text->n; i++)
        text->ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    const unsigned vocabulary = (unsigned)json_integer_value(json_object_get(root, "vocab"));
    json_decref(root);
    uint32_t state = 12345;
    for (unsigned t = 1; t < N_TEXTS; t++) {
        texts[t].n = text->n;
        for (size_t i = 0; i < text->n; i++) {
            state = state * 1664525u + 1013904223u;
            texts[t].ids[i] = (int32_t)((state >> 8) % vocabulary);
        }
    }
}

static void add_nats(void *ctx, unsigned position, const float *logits, unsigned n)
{
    struct eval *eval = ctx;
    const struct text *text = eval->text;
    if (position + 1 >= text->n)
        return;
    double max = logits[0], sum = 0;
    for (unsigned i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (unsigned i = 0; i < n; i++)
        sum += exp(logits[i] - max);
    eval->nats += log(sum) + max - logits[text->ids[position + 1]];
}

static void eval_texts(const char *folder, unsigned f)
{
    const char *format = formats[f];
    struct fm_model_options options = {.size = sizeof options};
    struct fm_model *model;
    struct fm_session *session;
    struct fm_error err;
    options.n_context = MAX_TOKENS;
    options.kv = format;
    if (fm_model_open(folder, &options, &model, &err) != 0 ||
        fm_session_open(model, &session, &err) != 0)
        die(err.text);
    struct fm_model_info info = {.size = sizeof info};
    fm_model_info(model, &info);
    if ((info.approximate != NULL) != (strncmp(format, "rot", 3) == 0))
        die("the label is wrong");
    struct eval eval;
    const struct fm_observer observer = {.size = sizeof observer, .ctx = &eval, .logits = add_nats};
    fm_session_observe(session, &observer);
    for (unsigned t = 0; t < N_TEXTS; t++) {
        eval = (struct eval){.text = &texts[t]};
        fm_session_reset(session);
        if (fm_session_eval(session, texts[t].ids, texts[t].n, &err) != 0)
            die(err.text);
        texts[t].nats[f] = eval.nats / (double)(texts[t].n - 1);
    }
    fm_session_close(session);
    fm_model_close(model);
}

int main(int argc, char **argv)
{
    int status = 0;
    for (int i = 1; i < argc; i++) {
        make_texts(argv[i]);
        for (unsigned f = 0; f < N_FORMATS; f++) {
            eval_texts(argv[i], f);
            double sum = 0, squares = 0;
            for (unsigned t = 0; t < N_TEXTS; t++) {
                const double cost = texts[t].nats[f] - texts[t].nats[0];
                sum += cost;
                squares += cost * cost;
            }
            const double mean = sum / N_TEXTS;
            const double off = sqrt((squares / N_TEXTS - mean * mean) / N_TEXTS);
            const bool is_off = strcmp(formats[f], "rot8") == 0 && !(fabs(mean) <= TOLERANCE);
            printf("%s %-4s %+.5f nats, standard error %.5f; own text %+.5f%s\n",
                   strrchr(argv[i], '/') + 1, formats[f], mean, off,
                   texts[0].nats[f] - texts[0].nats[0], is_off ? " TOO FAR" : "");
            status |= is_off;
        }
    }
    return status;
}
