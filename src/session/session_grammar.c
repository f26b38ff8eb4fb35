/* Grammars: the public API of grammar/grammar.h, and the vocabulary that all grammars of a model
 * share. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "chat/dialect.h"
#include "grammar/gbnf_machine.h"
#include "grammar/grammar.h"
#include "session/answer.h"
#include "session/grammar_calls.h"
#include "session/session_internal.h"

struct model_grammars {
    pthread_mutex_t lock;
    struct grammar_vocabulary *vocabulary; /* created under the lock, immutable afterwards */
};

struct fm_grammar {
    const struct fm_model *model;
    struct grammar *grammar;   /* of a schema; or: */
    struct gbnf_machine *gbnf; /* of a grammar in GBNF */
    uint32_t *bits; /* [vocabulary / 32 + 1] the mask with stop tokens */
    bool is_ended;  /* by a stop token */
};

int model_grammars_open(struct fm_model *m, struct fm_error *err)
{
    m->grammars = mem_new(1, sizeof *m->grammars, "grammars", err);
    if (m->grammars == NULL)
        return FM_ERR_NOMEM;
    if (pthread_mutex_init(&m->grammars->lock, NULL) == 0)
        return 0;
    mem_free(m->grammars);
    m->grammars = NULL;
    return err_set(err, FM_ERR_NOMEM, "out of memory: cannot create a lock");
}

void model_grammars_close(struct fm_model *m)
{
    if (m->grammars == NULL)
        return;
    grammar_vocabulary_close(m->grammars->vocabulary);
    (void)pthread_mutex_destroy(&m->grammars->lock);
    mem_free(m->grammars);
}

static uint32_t n_ids(const struct fm_model *m)
{
    return m->engine.model->shape.vocabulary;
}

static int get_vocabulary(const struct fm_model *m, const struct grammar_vocabulary **out,
                          struct fm_error *err)
{
    if (m->tokenizer == NULL || (m->engine.model->n_stop_tokens == 0 && m->n_chat_stops == 0))
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "answers cannot be constrained to a schema: '%s' has no %s",
                       m->engine.model->source->path, m->tokenizer == NULL
                       ? "tokenizer.json" : "stop token ('eos_token_id' in config.json)");
    int rc = 0;
    (void)pthread_mutex_lock(&m->grammars->lock);
    if (m->grammars->vocabulary == NULL)
        rc = grammar_vocabulary_open(m->tokenizer, n_ids(m), &m->grammars->vocabulary, err);
    *out = m->grammars->vocabulary;
    (void)pthread_mutex_unlock(&m->grammars->lock);
    return rc;
}

int fm_grammar_open_json(const struct fm_model *m, const char *schema, size_t schema_bytes,
                         struct fm_grammar **out, struct fm_error *err)
{
    static const char any_object[] = "{\"type\": \"object\"}";
    const struct grammar_form form = {
        .schema = schema != NULL ? schema : any_object,
        .schema_bytes = schema != NULL ? schema_bytes : sizeof any_object - 1};
    return fm_grammar_open_form(m, &form, out, err);
}

static struct fm_grammar *new_grammar(const struct fm_model *m, struct fm_error *err)
{
    struct fm_grammar *g = mem_new(1, sizeof *g, "a grammar", err);
    if (g == NULL)
        return NULL;
    g->model = m;
    g->bits = mem_new(n_ids(m) / 32 + 1, sizeof *g->bits, "a grammar", err);
    if (g->bits != NULL)
        return g;
    mem_free(g);
    return NULL;
}

int fm_grammar_open_gbnf(const struct fm_model *m, const char *text, size_t bytes,
                         struct fm_grammar **out, struct fm_error *err)
{
    *out = NULL;
    const struct grammar_vocabulary *vocabulary = NULL;
    struct gbnf *gbnf = NULL;
    int rc = get_vocabulary(m, &vocabulary, err);
    if (rc == 0)
        rc = gbnf_compile(text, bytes, &gbnf, err);
    if (rc != 0)
        return rc;
    struct fm_grammar *g = new_grammar(m, err);
    if (g == NULL) {
        gbnf_free(gbnf);
        return FM_ERR_NOMEM;
    }
    rc = gbnf_machine_open(gbnf, grammar_vocabulary_trie(vocabulary), &g->gbnf, err);
    if (rc != 0) {
        fm_grammar_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

int fm_grammar_open_form(const struct fm_model *m, const struct grammar_form *form,
                         struct fm_grammar **out, struct fm_error *err)
{
    *out = NULL;
    const struct grammar_vocabulary *vocabulary = NULL;
    int rc = get_vocabulary(m, &vocabulary, err);
    if (rc != 0)
        return rc;
    struct grammar_form spelled = *form;
    if (spelled.call == NULL)
        spelled.call = dialect_forced_call(model_dialects(m));
    /* Where calls are messages of their own, the answer itself contains none. */
    if (spelled.schema != NULL && dialect_frames_of(model_dialects(m)) != NULL)
        spelled.n_tools = 0;
    struct fm_grammar *g = new_grammar(m, err);
    rc = g != NULL ? grammar_open_form(vocabulary, &spelled, &g->grammar, err) : FM_ERR_NOMEM;
    if (rc != 0) {
        fm_grammar_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void fm_grammar_close(struct fm_grammar *g)
{
    if (g == NULL)
        return;
    grammar_close(g->grammar);
    gbnf_machine_close(g->gbnf);
    mem_free(g->bits);
    mem_free(g);
}

void fm_grammar_reset(struct fm_grammar *g)
{
    g->is_ended = false;
    if (g->gbnf != NULL)
        gbnf_machine_reset(g->gbnf);
    else
        grammar_reset(g->grammar);
}

static void allow(struct fm_grammar *g, int32_t id)
{
    if ((uint32_t)id < n_ids(g->model))
        g->bits[id / 32] |= 1u << id % 32;
}

static bool may_end(const struct fm_grammar *g)
{
    return g->gbnf != NULL ? gbnf_machine_may_end(g->gbnf) : grammar_may_end(g->grammar);
}

const uint32_t *constraint_mask(struct fm_grammar *g)
{
    const uint32_t *mask = g->gbnf != NULL ? gbnf_machine_mask(g->gbnf) : grammar_mask(g->grammar);
    if (!may_end(g))
        return mask;
    memcpy(g->bits, mask, (n_ids(g->model) / 32 + 1) * sizeof *g->bits);
    const struct model *model = g->model->engine.model;
    for (unsigned i = 0; i < model->n_stop_tokens; i++)
        allow(g, model->stop_tokens[i]);
    for (unsigned i = 0; i < g->model->n_chat_stops; i++)
        allow(g, g->model->chat_stops[i]);
    return g->bits;
}

int constraint_check(struct fm_grammar *g, struct fm_error *err)
{
    return g->gbnf != NULL ? gbnf_machine_check(g->gbnf, err) : 0;
}

uint32_t constraint_forced(struct fm_grammar *g, int32_t *ids, uint32_t max)
{
    return g->is_ended || g->gbnf != NULL ? 0 : grammar_forced(g->grammar, ids, max);
}

void fm_grammar_mask(struct fm_grammar *g, float *logits)
{
    const uint32_t *mask = constraint_mask(g);
    for (uint32_t id = 0; id < n_ids(g->model); id++)
        if ((mask[id / 32] >> id % 32 & 1) == 0)
            logits[id] = -INFINITY;
}

int fm_grammar_accept(struct fm_grammar *g, int32_t id, struct fm_error *err)
{
    if (g->is_ended)
        return err_set(err, FM_ERR_ARG, "the answer is over");
    if (!fm_token_is_stop(g->model, id))
        return g->gbnf != NULL ? gbnf_machine_accept(g->gbnf, id, err)
                               : grammar_accept(g->grammar, id, err);
    g->is_ended = may_end(g);
    return g->is_ended ? 0 : err_set(err, FM_ERR_ARG, "token %d ends the answer before it is "
                                     "complete", (int)id);
}

bool fm_grammar_must_end(const struct fm_grammar *g)
{
    return g->gbnf != NULL ? gbnf_machine_must_end(g->gbnf) : grammar_must_end(g->grammar);
}
