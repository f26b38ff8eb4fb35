/* draft_edit MODEL FILE EDITED: how many passes it takes to write an edited file behind the file
 * itself, with drafts and without. Prints both, and exits with 3 unless drafts need at least 2.5
 * times fewer, with the same logits. */
#include <stdio.h>
#include <stdlib.h>

#include "flashmoe.h"

#define TIMES_FEWER 2.5

static void must(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "draft_edit: %s\n", err->text);
    exit(1);
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(*bytes + 1);
    if (text == NULL || fread(text, 1, *bytes, file) != *bytes) {
        perror(path);
        exit(1);
    }
    fclose(file);
    return text;
}

struct ids {
    int32_t *at;
    size_t n;
};

static struct ids tokens_of(const struct fm_model *model, const char *path)
{
    struct fm_error err;
    struct ids ids;
    size_t bytes;
    char *text = read_file(path, &bytes);
    must(fm_tokenize(model, text, bytes, FM_TEXT_PLAIN, &ids.at, &ids.n, &err), &err);
    free(text);
    return ids;
}

/* Evaluates the file as a prompt and the edited one token by token. Returns the passes. */
static uint64_t write_edited(const char *path, unsigned n_drafts, const char *file,
                             const char *edited, char hash[33])
{
    struct fm_model_options options = {.size = sizeof options, .n_drafts = n_drafts,
                                       .draft = FM_ON, .n_context = 32768,
                                       .draft_source = FM_DRAFT_LOOKUP};
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_session *session;
    struct fm_model *model;
    struct fm_error err;
    must(fm_model_open(path, &options, &model, &err), &err);
    must(fm_session_open(model, &session, &err), &err);
    const struct ids before = tokens_of(model, file), after = tokens_of(model, edited);
    must(fm_session_eval(session, before.at, before.n, &err), &err);
    for (size_t i = 0; i < after.n; i++)
        must(fm_session_eval(session, after.at + i, 1, &err), &err);
    fm_session_logits_hash(session, hash);
    fm_model_stats(model, &stats);
    printf("%u drafts: %zu tokens behind %zu, %llu passes, %.0f tok/s, logits %s\n", n_drafts,
           after.n, before.n, (unsigned long long)stats.n_decode_passes,
           (double)stats.n_decode_tokens * 1e9 / (double)stats.decode_ns, hash);
    fm_free(before.at);
    fm_free(after.at);
    fm_session_close(session);
    fm_model_close(model);
    return stats.n_decode_passes;
}

int main(int argc, char **argv)
{
    char plain[33], drafted[33];
    if (argc < 4)
        return 2;
    const uint64_t n_plain = write_edited(argv[1], 0, argv[2], argv[3], plain);
    const uint64_t n_drafted = write_edited(argv[1], 4, argv[2], argv[3], drafted);
    const double times = (double)n_plain / (double)n_drafted;
    bool is_same = true;
    for (unsigned i = 0; i < 33; i++)
        is_same = is_same && plain[i] == drafted[i];
    printf("%.2f times fewer passes%s\n", times, is_same ? "" : ", but other logits");
    return is_same && times >= TIMES_FEWER ? 0 : 3;
}
