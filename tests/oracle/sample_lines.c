/* The C side of sampling.py: sample_lines MODEL. Reads one JSON object per line: "logits",
 * multiplied by 4096, "prompt", "answer", and the numbers of fm_sampling under their names, with
 * the bias as [[id, value], ...]. Writes one object for each: "ids" and "p", the tokens that may be
 * drawn and their probabilities; "drawn", one token; "top", the most likely tokens as
 * [[id, logprob], ...]. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include "flashmoe_lab.h"

enum { MAX = 4096, TOP = 5 };

static struct fm_model *model;
static float logits[MAX], probabilities[MAX];
static int32_t ids[MAX];
static struct fm_logit_bias bias[MAX];

static void fail(const char *text)
{
    (void)fprintf(stderr, "sample_lines: %s\n", text);
    exit(2);
}

static float number(const json_t *line, const char *name)
{
    return (float)json_number_value(json_object_get(line, name));
}

static struct fm_sampler *open_sampler(const json_t *line)
{
    const json_t *list = json_object_get(line, "logit_bias");
    for (size_t i = 0; i < json_array_size(list) && i < MAX; i++) {
        const json_t *pair = json_array_get(list, i);
        bias[i].id = (int32_t)json_integer_value(json_array_get(pair, 0));
        bias[i].bias = (float)json_number_value(json_array_get(pair, 1));
    }
    const struct fm_sampling sampling = {
        .size = sizeof sampling,
        .temperature = number(line, "temperature"),
        .top_k = (unsigned)number(line, "top_k"),
        .top_p = number(line, "top_p"),
        .min_p = number(line, "min_p"),
        .typical_p = number(line, "typical_p"),
        .repetition_penalty = number(line, "repetition_penalty"),
        .presence_penalty = number(line, "presence_penalty"),
        .frequency_penalty = number(line, "frequency_penalty"),
        .logit_bias = bias,
        .n_logit_bias = (unsigned)json_array_size(list),
        .seed = 1,
    };
    struct fm_sampler *sampler;
    struct fm_error err;
    if (fm_sampler_open(model, &sampling, &sampler, &err) != 0)
        fail(err.text);
    const char *const lists[] = {"prompt", "answer"};
    for (int k = 0; k < 2; k++) {
        const json_t *tokens = json_object_get(line, lists[k]);
        for (size_t i = 0; i < json_array_size(tokens); i++) {
            const int32_t id = (int32_t)json_integer_value(json_array_get(tokens, i));
            if (k == 0)
                fm_sampler_accept_prompt(sampler, &id, 1);
            else
                fm_sampler_accept(sampler, id);
        }
    }
    return sampler;
}

static json_t *run_line(const json_t *line)
{
    const json_t *list = json_object_get(line, "logits");
    for (size_t i = 0; i < json_array_size(list) && i < MAX; i++)
        logits[i] = (float)json_integer_value(json_array_get(list, i)) / 4096;
    struct fm_sampler *sampler = open_sampler(line);
    const int n = fm_sampler_distribution(sampler, logits, ids, probabilities);
    json_t *shown_ids = json_array(), *shown_p = json_array(), *shown_top = json_array();
    for (int i = 0; i < n; i++) {
        (void)json_array_append_new(shown_ids, json_integer(ids[i]));
        (void)json_array_append_new(shown_p, json_real(probabilities[i]));
    }
    struct fm_logprob chosen = {.id = 0}, top[TOP];
    const int n_top = fm_logprobs(model, logits, &chosen, top, TOP);
    for (int i = 0; i < n_top; i++)
        (void)json_array_append_new(shown_top, json_pack("[i, f]", top[i].id,
                                                         (double)top[i].logprob));
    const int32_t drawn = fm_sampler_pick(sampler, logits);
    fm_sampler_close(sampler);
    return json_pack("{s:o, s:o, s:o, s:i}", "ids", shown_ids, "p", shown_p, "top", shown_top,
                     "drawn", drawn);
}

int main(int argc, char **argv)
{
    struct fm_model_options options = {.size = sizeof options};
    struct fm_error err;
    options.metadata_only = true;
    if (argc != 2)
        fail("usage: sample_lines MODEL");
    if (fm_model_open(argv[1], &options, &model, &err) != 0)
        fail(err.text);
    char *text = NULL;
    size_t capacity = 0;
    while (getline(&text, &capacity, stdin) > 0) {
        json_t *line = json_loads(text, 0, NULL);
        json_t *out = run_line(line);
        if (out == NULL || json_dumpf(out, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF)
            fail("cannot write");
        json_decref(out);
        json_decref(line);
    }
    free(text);
    fm_model_close(model);
    return fflush(stdout) == 0 ? 0 : 2;
}
