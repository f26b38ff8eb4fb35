/* The generator. In each layer experts have a popularity by rank: r^-alpha, times e^-delta outside
 * the hot set; early layers are flatter. A token draws its experts one after the other, without
 * replacement, in proportion to popularity; experts of the previous token are e^beta more probable.
 * This is the distribution of the Gumbel-top-k form in which such models are usually fitted, but it
 * needs only integers, so the bits are the same on every machine. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lab/routes_internal.h"
#include "base/fmath.h"
#include "base/mem.h"
#include "base/splitmix.h"

#define MILLION UINT64_C(1000000)
#define UNSET UINT64_MAX /* the default depends on the number of experts */

/* Fitted to the Qwen3-30B trace (128 experts, 6 per token, 48 layers): overlap within 0.03 at every
 * lag, distinct experts within 2 % in every window, LRU hit rates within 0.02 at every size. With
 * more experts the hot set keeps its share, drift keeps its rate per expert, and popularity is a
 * little steeper. For 512 experts and 10 per token this gives LRU hit rates of .52, .68, .85 and
 * .91 at 1/16, 1/8, 1/4 and 3/8; .54 to .59, .67, .81 and .92 to .94 were measured on such a
 * model. */
#define FITTED_EXPERTS 128
#define DEFAULT_HOT_SHARE 305000
#define DEFAULT_ALPHA 840000
#define ALPHA_PER_DOUBLING 55000
#define ALPHA_DOUBLINGS 2 /* nothing is known beyond */
#define DEFAULT_DELTA 3600000
#define DEFAULT_BETA 670000
#define DEFAULT_DRIFT 330000

/* Number of early layers with flatter routing, and the flatness of the first one. */
#define EARLY_LAYERS 6
#define FIRST_ALPHA_SHARE 0.45
#define FIRST_HOT_SHARE 0.85

static const double euler = 2.718281828459045;

/* ---- the text ---------------------------------------------------------------------------- */

struct gen_key {
    const char *name;
    size_t offset;
    uint64_t max; /* not in millionths */
    bool is_whole;
};

#define KEY(name, max, is_whole) {#name, offsetof(struct routes_gen, name), max, is_whole}
static const struct gen_key key_list[] = {
    KEY(hot, 65535, true),   KEY(alpha, 4, false),       KEY(delta, 20, false),
    KEY(beta, 8, false),     KEY(drift, 100, false),     KEY(topic, 1 << 24, true),
    KEY(topics, 65535, true), KEY(seed, UINT32_MAX, true), KEY(recall, 1, false),
};
#define N_KEYS (sizeof key_list / sizeof key_list[0])

static uint64_t *value_of(struct routes_gen *gen, const struct gen_key *key)
{
    return (uint64_t *)(void *)((char *)gen + key->offset);
}

/* Parses a number such as "12.5" in millionths. Returns false unless it has at most 16 digits and
 * at most 6 decimals. */
static bool parse_millionths(const char *text, size_t n, uint64_t *out)
{
    uint64_t value = 0;
    int n_decimals = -1;
    size_t n_digits = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '.' && n_decimals < 0) {
            n_decimals = 0;
            continue;
        }
        if (!isdigit((unsigned char)text[i]) || ++n_digits > 16 || n_decimals == 6)
            return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
        n_decimals += n_decimals >= 0;
    }
    for (int i = n_decimals < 0 ? 0 : n_decimals; i < 6; i++) {
        if (value > UINT64_MAX / 10)
            return false;
        value *= 10;
    }
    *out = value;
    return n_digits > 0;
}

static int set_key(struct routes_gen *gen, const char *text, const struct gen_key *key,
                   const char *value, size_t n, struct fm_error *err)
{
    uint64_t parsed;
    const bool is_share = key == &key_list[0] && n > 0 && value[n - 1] == '%';
    const uint64_t max = is_share ? 100 : key->max;
    if (!parse_millionths(value, is_share ? n - 1 : n, &parsed) || parsed > max * MILLION ||
        (key->is_whole && !is_share && parsed % MILLION != 0))
        return err_set(err, FM_ERR_ARG,
                       "'%s': '%s' is '%.*s', expected a %snumber from 0 to %llu%s", text,
                       key->name, (int)(n < 40 ? n : 40), value, key->is_whole ? "whole " : "",
                       (unsigned long long)max, key == &key_list[0] ? ", or a percentage" : "");
    if (key == &key_list[0]) {
        gen->is_hot_share = is_share;
        parsed /= is_share ? 100 : 1;
    }
    *value_of(gen, key) = parsed;
    return 0;
}

int routes_gen_parse(const char *text, struct routes_gen *gen, struct fm_error *err)
{
    *gen = (struct routes_gen){.hot = UNSET, .alpha = UNSET, .delta = DEFAULT_DELTA,
                               .beta = DEFAULT_BETA, .drift = UNSET, .seed = MILLION};
    const char *at = strchr(text, ':');
    while (at != NULL) {
        at++;
        const size_t n = strcspn(at, ","), n_name = strcspn(at, "=,");
        const struct gen_key *key = NULL;
        for (size_t i = 0; i < N_KEYS; i++)
            if (strlen(key_list[i].name) == n_name && strncmp(at, key_list[i].name, n_name) == 0)
                key = &key_list[i];
        if (key == NULL || n_name == n)
            return err_set(err, FM_ERR_ARG,
                           "'%s': '%.*s' is not KEY=VALUE with a key of hot, alpha, delta, beta, "
                           "drift, topic, topics, seed, recall", text, (int)(n < 40 ? n : 40), at);
        int rc = set_key(gen, text, key, at + n_name + 1, n - n_name - 1, err);
        if (rc != 0)
            return rc;
        at = at[n] == ',' ? at + n : NULL;
    }
    return 0;
}

static void set_defaults(struct routes_gen *gen, uint32_t n_experts)
{
    if (gen->hot == UNSET) {
        gen->hot = DEFAULT_HOT_SHARE;
        gen->is_hot_share = true;
    }
    if (gen->alpha == UNSET) {
        gen->alpha = DEFAULT_ALPHA;
        for (uint32_t i = 1; i <= ALPHA_DOUBLINGS; i++)
            gen->alpha += n_experts >> i >= FITTED_EXPERTS ? ALPHA_PER_DOUBLING : 0;
    }
    if (gen->drift == UNSET)
        gen->drift = (uint64_t)DEFAULT_DRIFT * n_experts / FITTED_EXPERTS;
}

void routes_gen_resolve(struct routes_gen *gen, uint32_t n_experts, char *text, size_t text_bytes)
{
    set_defaults(gen, n_experts);
    uint64_t hot = gen->is_hot_share ? (gen->hot * n_experts + MILLION / 2) / MILLION
                                     : gen->hot / MILLION;
    hot = hot < 1 ? 1 : hot > n_experts ? n_experts : hot;
    gen->hot = hot * MILLION;
    gen->is_hot_share = false;
    size_t used = (size_t)snprintf(text, text_bytes, "gen:");
    for (size_t i = 0; i < N_KEYS && used < text_bytes; i++) {
        const uint64_t value = *value_of(gen, &key_list[i]);
        char decimals[8] = "";
        if (value % MILLION != 0)
            (void)snprintf(decimals, sizeof decimals, ".%06u", (unsigned)(value % MILLION));
        for (size_t n = strlen(decimals); n > 0 && decimals[n - 1] == '0'; n--)
            decimals[n - 1] = '\0';
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s=%llu%s", i > 0 ? "," : "",
                                 key_list[i].name, (unsigned long long)(value / MILLION),
                                 decimals);
    }
}

/* ---- the draws --------------------------------------------------------------------------- */

/* One layer while its tokens are drawn. All arrays are [n_experts]. */
struct gen_layer {
    uint32_t n_experts;
    uint64_t random;
    uint64_t *weight;  /* by rank */
    uint64_t sum;      /* of weight */
    uint16_t *expert;  /* by rank */
    uint16_t *rank;    /* by expert */
    uint8_t *is_sticky, *is_taken; /* by expert */
    uint64_t stick;    /* e^beta in 1/65536 */
};

/* Returns a uniform random number from 0 to n - 1. */
static uint64_t random_below(struct gen_layer *l, uint64_t n)
{
    uint64_t mask = n - 1;
    for (unsigned shift = 1; shift < 64; shift *= 2)
        mask |= mask >> shift;
    for (;;) {
        uint64_t x = splitmix_next(&l->random) & mask;
        if (x < n)
            return x;
    }
}

static void swap_ranks(struct gen_layer *l, uint32_t a, uint32_t b)
{
    const uint16_t e = l->expert[a];
    l->expert[a] = l->expert[b];
    l->expert[b] = e;
    l->rank[l->expert[a]] = (uint16_t)a;
    l->rank[e] = (uint16_t)b;
}

static void shuffle(struct gen_layer *l)
{
    for (uint32_t i = l->n_experts; i > 1; i--)
        swap_ranks(l, i - 1, (uint32_t)random_below(l, i));
}

/* Draws the popularity of a topic. It depends only on the topic, so it returns with it. */
static void rank_topic(struct gen_layer *l, const struct routes_gen *gen, uint32_t layer,
                       uint64_t topic)
{
    const uint64_t random = l->random;
    l->random = (gen->seed / MILLION) << 16 ^ layer;
    l->random = splitmix_next(&l->random) ^ (topic + 1) << 32;
    for (uint32_t i = 0; i < l->n_experts; i++)
        l->expert[i] = l->rank[i] = (uint16_t)i;
    shuffle(l);
    l->random = random;
}

static void begin_layer(struct gen_layer *l, const struct routes_gen *gen, uint32_t layer)
{
    const uint32_t n = l->n_experts;
    const double late = layer < EARLY_LAYERS ? (double)layer / EARLY_LAYERS : 1;
    const double alpha =
        (double)gen->alpha / 1e6 * (FIRST_ALPHA_SHARE + (1 - FIRST_ALPHA_SHARE) * late);
    const double cold = fmath_pow_of(euler, -((double)gen->delta / 1e6));
    double hot = (double)(gen->hot / MILLION);
    if (hot < FIRST_HOT_SHARE * n)
        hot += (FIRST_HOT_SHARE * n - hot) * (1 - late);
    l->random = (gen->seed / MILLION) << 16 ^ layer;
    l->random = splitmix_next(&l->random);
    l->sum = 0;
    for (uint32_t r = 0; r < n; r++) {
        double p = fmath_pow_of(r + 1.0, -alpha) * (r + 1.0 <= hot ? 1 : cold);
        l->weight[r] = (uint64_t)(p * 0x1p32) + 1;
        l->sum += l->weight[r];
        l->expert[r] = l->rank[r] = (uint16_t)r;
    }
    memset(l->is_sticky, 0, n);
    memset(l->is_taken, 0, n);
    shuffle(l);
}

static uint64_t weight_now(const struct gen_layer *l, uint32_t rank)
{
    const uint64_t w = l->weight[rank];
    return l->is_sticky[l->expert[rank]] ? (w * l->stick) >> 16 : w;
}

/* Draws the experts of one token, ascending. `before` are those of the previous token; NULL for the
 * first. */
static void draw_token(struct gen_layer *l, uint16_t *ids, const uint16_t *before, uint32_t k)
{
    uint64_t sum = l->sum;
    for (uint32_t i = 0; before != NULL && i < k; i++) {
        const uint32_t rank = l->rank[before[i]];
        l->is_sticky[before[i]] = 1;
        sum += weight_now(l, rank) - l->weight[rank];
    }
    for (uint32_t i = 0; i < k; i++) {
        uint64_t x = random_below(l, sum), w = 0;
        uint32_t r = 0;
        for (;; r++) {
            w = l->is_taken[l->expert[r]] ? 0 : weight_now(l, r);
            if (x < w)
                break;
            x -= w;
        }
        sum -= w;
        const uint16_t e = l->expert[r];
        l->is_taken[e] = 1;
        uint32_t at = i;
        for (; at > 0 && ids[at - 1] > e; at--)
            ids[at] = ids[at - 1];
        ids[at] = e;
    }
    for (uint32_t i = 0; i < k; i++) {
        l->is_taken[ids[i]] = 0;
        if (before != NULL)
            l->is_sticky[before[i]] = 0;
    }
}

static void drift(struct gen_layer *l, uint64_t millionths)
{
    uint64_t n = millionths / MILLION;
    n += random_below(l, MILLION) < millionths % MILLION;
    for (; n > 0; n--) {
        const uint32_t a = (uint32_t)random_below(l, l->n_experts);
        swap_ranks(l, a, (uint32_t)random_below(l, l->n_experts));
    }
}

static void fill_layer(struct gen_layer *l, const struct routes_gen *gen, struct routes *routes,
                       uint32_t layer)
{
    const struct routes_shape *s = &routes->shape;
    const uint64_t topic = gen->topic / MILLION, n_topics = gen->topics / MILLION;
    begin_layer(l, gen, layer);
    const uint16_t *before = NULL;
    for (uint32_t p = 0; p < s->n_positions; p++) {
        uint16_t *ids = routes->ids + ((size_t)p * s->n_layers + layer) * s->n_used;
        /* Two random hot sets share a quarter, as real topics do. */
        if (topic > 0 && n_topics > 0 && p % topic == 0)
            rank_topic(l, gen, layer, p / topic % n_topics);
        else if (p > 0 && topic > 0 && p % topic == 0)
            shuffle(l);
        else if (p > 0)
            drift(l, gen->drift);
        draw_token(l, ids, before, s->n_used);
        before = ids;
    }
}

int routes_gen_fill(const struct routes_gen *gen, struct routes *routes, struct fm_error *err)
{
    routes->recall = (uint32_t)gen->recall;
    routes->seed = gen->seed / MILLION;
    const uint32_t n = routes->shape.n_experts;
    char *block = mem_new(n, sizeof(uint64_t) + 2 * sizeof(uint16_t) + 2, "the routes", err);
    if (block == NULL)
        return FM_ERR_NOMEM;
    struct gen_layer l = {.n_experts = n, .weight = (uint64_t *)(void *)block};
    l.expert = (uint16_t *)(l.weight + n);
    l.rank = l.expert + n;
    l.is_sticky = (uint8_t *)(l.rank + n);
    l.is_taken = l.is_sticky + n;
    l.stick = (uint64_t)(fmath_pow_of(euler, (double)gen->beta / 1e6) * 0x1p16);
    for (uint32_t layer = 0; layer < routes->shape.n_layers; layer++)
        fill_layer(&l, gen, routes, layer);
    mem_free(block);
    return 0;
}
