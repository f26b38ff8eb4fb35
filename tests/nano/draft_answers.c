/* draft_answers MODEL: drafts of all sources change no token and no logit of answers: greedy and at
 * temperature 1, constrained by a schema and not, alone and eight in a batch. Each way has more
 * than 10,000 tokens in all. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashmoe_lab.h"

#define N_SESSIONS 8
#define N_TOKENS 176 /* of a session, in one way of sampling */
#define N_WAYS 4     /* bit 0: temperature 1; bit 1: constrained */
#define CONTEXT 1024

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"the_name_of_the_animal\": {\"type\": \"string\","
    " \"maxLength\": 12}, \"description_of_the_place\": {\"enum\": [\"somewhere_in_the_forest\","
    " \"somewhere_by_the_sea\"]}, \"how_many_of_them\": {\"type\": \"integer\", \"minimum\": 0,"
    " \"maximum\": 99}}, \"required\": [\"the_name_of_the_animal\", \"description_of_the_place\","
    " \"how_many_of_them\"], \"additionalProperties\": false}";
static const char *const prompts[N_SESSIONS] = {
    "Once upon a time there was a little fox. Once upon a time there was a",
    "List: a b c d e a b c d e a b c", "def add(a, b):\n    return a + b\n\ndef sub(a, b):",
    "The sea was blue. The sky was blue. The", "1 2 3 4 5 6 7 8 9 10 11 12",
    "\"Hello,\" said the bird. \"Hello,\" said the", "int main(void)\n{\n    int i;\n    int",
    "Jack had 32 pencils. He gave 27 to Mia. How many"};

/* What one session wrote in one way. */
struct text {
    int32_t ids[N_TOKENS];
    char hash[33];
};

struct writer {
    struct fm_session *session;
    struct fm_answer *answer;
    struct fm_grammar *grammar;
    int32_t *prompt, id;
    size_t n_prompt;
    unsigned n;
    uint64_t seed;
    struct text *text;
};

static void must(int rc, const struct fm_error *err)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "draft_answers: %s\n", err->text);
    exit(1);
}

static int ignore(void *ctx, const struct fm_answer_event *event, struct fm_error *err)
{
    (void)ctx, (void)event, (void)err;
    return 0;
}

/* Begins an answer with another seed. */
static void begin(struct fm_model *model, struct writer *w, unsigned way)
{
    struct fm_error err = {0};
    const struct fm_sampling sampling = {.size = sizeof sampling, .top_p = 1,
                                         .temperature = (way & 1) != 0 ? 1 : 0, .seed = w->seed++};
    const struct fm_answer_options options = {
        .size = sizeof options, .event = ignore, .sampling = &sampling, .prompt = w->prompt,
        .n_prompt = w->n_prompt, .grammar = w->grammar, .ends_with_grammar = true};
    fm_answer_close(w->answer);
    must(fm_answer_open(model, &options, &w->answer, &err), &err);
}

/* Returns what the session computes next: a token, or the prompt of another answer. */
static struct fm_batch_item next(struct fm_model *model, struct writer *w, unsigned way)
{
    struct fm_error err = {0};
    must(fm_answer_step(w->answer, w->session, &w->id, &err), &err);
    if (w->id < 0) {
        begin(model, w, way);
        return (struct fm_batch_item){w->session, w->prompt, w->n_prompt, 0};
    }
    w->text->ids[w->n++] = w->id;
    return (struct fm_batch_item){w->session, &w->id, 1, 0};
}

/* Has n sessions write side by side. */
static void write_texts(struct fm_model *model, struct writer *writers, unsigned n, unsigned way)
{
    struct fm_error err = {0};
    for (unsigned i = 0; i < n; i++) {
        fm_session_reset(writers[i].session);
        must(fm_session_eval(writers[i].session, writers[i].prompt, writers[i].n_prompt, &err),
             &err);
        begin(model, &writers[i], way);
    }
    for (;;) {
        struct fm_batch_item items[N_SESSIONS];
        size_t n_items = 0;
        for (unsigned i = 0; i < n; i++)
            if (writers[i].n < N_TOKENS)
                items[n_items++] = next(model, &writers[i], way);
        if (n_items == 0)
            break;
        must(fm_eval_batch(model, items, n_items, &err), &err);
    }
    for (unsigned i = 0; i < n; i++)
        fm_session_logits_hash(writers[i].session, writers[i].text->hash);
}

static void open_writer(struct fm_model *model, struct writer *w, unsigned i, unsigned way,
                        struct text *text)
{
    struct fm_error err = {0};
    *w = (struct writer){.seed = 1 + 1000 * i, .text = text};
    must(fm_session_open(model, &w->session, &err), &err);
    must(fm_tokenize(model, prompts[i], strlen(prompts[i]), FM_TEXT_PLAIN, &w->prompt,
                     &w->n_prompt, &err), &err);
    if ((way & 2) != 0)
        must(fm_grammar_open_json(model, schema, sizeof schema - 1, &w->grammar, &err), &err);
}

static void close_writer(struct writer *w)
{
    fm_answer_close(w->answer);
    fm_grammar_close(w->grammar);
    fm_session_close(w->session);
    fm_free(w->prompt);
}

/* Writes all texts, in batches or each alone, and adds up what drafts came to. */
static void run(const char *path, unsigned n_drafts, enum fm_choice draft, bool is_batch,
                struct text texts[N_WAYS][N_SESSIONS])
{
    const struct fm_model_options options = {
        .size = sizeof options, .n_context = CONTEXT, .n_sessions = N_SESSIONS,
        .n_drafts = n_drafts, .draft = draft};
    struct fm_stats stats = {.size = sizeof stats};
    struct fm_error err = {0};
    struct fm_model *model;
    must(fm_model_open(path, &options, &model, &err), &err);
    for (unsigned way = 0; way < N_WAYS; way++) {
        struct writer writers[N_SESSIONS];
        for (unsigned i = 0; i < N_SESSIONS; i++)
            open_writer(model, &writers[i], i, way, &texts[way][i]);
        for (unsigned i = 0; i < N_SESSIONS; i += is_batch ? N_SESSIONS : 1)
            write_texts(model, &writers[i], is_batch ? N_SESSIONS : 1, way);
        for (unsigned i = 0; i < N_SESSIONS; i++)
            close_writer(&writers[i]);
    }
    fm_model_stats(model, &stats);
    (void)printf("%u drafts%s%s: %llu tokens, %llu passes", n_drafts,
                 draft == FM_AUTO ? " at most" : "", is_batch ? ", in a batch" : "",
                 (unsigned long long)stats.n_decode_tokens,
                 (unsigned long long)stats.n_decode_passes);
    for (unsigned s = 0; s < FM_DRAFT_SOURCES; s++)
        if (stats.n_drafted_by[s][0] > 0)
            (void)printf("; %s: %llu of %llu first drafts right", fm_draft_source_name(s),
                         (unsigned long long)stats.n_drafts_accepted_by[s][0],
                         (unsigned long long)stats.n_drafted_by[s][0]);
    (void)printf("\n");
    if (draft == FM_ON && n_drafts > 0 &&
        (stats.n_drafts_accepted_by[FM_DRAFT_LOOKUP][0] == 0 ||
         stats.n_drafts_accepted_by[FM_DRAFT_GRAMMAR][0] == 0)) {
        (void)fprintf(stderr, "draft_answers: a source drafted nothing right\n");
        exit(1);
    }
    fm_model_close(model);
}

int main(int argc, char **argv)
{
    static struct text expected[N_WAYS][N_SESSIONS], found[N_WAYS][N_SESSIONS];
    static const struct {
        unsigned n_drafts;
        enum fm_choice draft;
    } settings[] = {{0, FM_OFF}, {3, FM_ON}, {8, FM_ON}, {4, FM_AUTO}};
    if (argc != 2)
        return 2;
    run(argv[1], 0, FM_OFF, false, expected);
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        for (unsigned is_batch = i == 0; is_batch < 2; is_batch++) {
            memset(found, 0, sizeof found);
            run(argv[1], settings[i].n_drafts, settings[i].draft, is_batch != 0, found);
            if (memcmp(found, expected, sizeof found) != 0) {
                (void)fprintf(stderr, "draft_answers: another text or other logits\n");
                return 1;
            }
        }
    return 0;
}
