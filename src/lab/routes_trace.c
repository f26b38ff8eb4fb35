/* Recorded routing: the CSV parser, and the mapping of a trace to another model. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "lab/routes_internal.h"
#include "base/limits.h"
#include "base/mem.h"

#define FIRST_LINE "# route_trace v1"
#define COLUMNS "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes"
/* Every turn has a token, so further turns would not be kept. */
#define TURNS_MAX ROUTES_POSITIONS_MAX
#define CELLS_MAX (1u << 26)
/* A raw trace has no header; its shape is that of the nano model. */
#define RAW_LAYERS 8
#define RAW_EXPERTS 64
#define RAW_USED 8
#define SHOWN_BYTES 40
/* Number of far tokens that provide experts which a token of the trace lacks. */
#define FAR_SOURCES 16 /* a power of two */
#define NEAR_SOURCES 64

struct turn {
    uint32_t first, last; /* steps */
    uint32_t offset;      /* token of the first step */
    bool is_there;
};

struct parser {
    const char *name;
    const char *at, *end;
    uint32_t line;
    struct trace *trace;
    uint32_t n_model_layers; /* the highest layer plus one; some layers have no experts */
    struct turn *turns;                   /* [TURNS_MAX] */
    uint16_t layer_index[LIMIT_LAYERS];   /* index among the layers that occur */
    bool has_layer[LIMIT_LAYERS];
    bool has_decode;
    uint32_t decode_turn, decode_step; /* the first decoded token */
};

struct row {
    uint32_t turn, phase, step, layer, slot, expert;
};

/* ---- lines and fields -------------------------------------------------------------------- */

static int fail(const struct parser *p, struct fm_error *err, const char *what, const char *value,
                size_t n)
{
    char shown[SHOWN_BYTES + 1];
    size_t used = 0;
    for (; used < n && used < SHOWN_BYTES; used++)
        shown[used] = isprint((unsigned char)value[used]) ? value[used] : '?';
    shown[used] = '\0';
    return err_set(err, FM_ERR_FORMAT, "%s: line %u: %s, found '%s'%s", p->name, p->line, what,
                   shown, n > used ? "..." : "");
}

/* Returns the next line without its end. Returns false after the last one. */
static bool next_line(struct parser *p, const char **line, size_t *n)
{
    if (p->at == p->end)
        return false;
    const char *stop = memchr(p->at, '\n', (size_t)(p->end - p->at));
    const char *after = stop != NULL ? stop + 1 : p->end;
    *line = p->at;
    *n = (size_t)((stop != NULL ? stop : p->end) - p->at);
    *n -= *n > 0 && (*line)[*n - 1] == '\r';
    p->at = after;
    p->line++;
    return true;
}

static bool parse_uint(const char *text, size_t n, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;
    if (n == 0 || n > 18)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!isdigit((unsigned char)text[i]))
            return false;
        value = value * 10 + (uint64_t)(text[i] - '0');
    }
    *out = value;
    return value <= max;
}

/* Returns whether the text is a decimal number, with or without exponent. Its value is not used. */
static bool is_real(const char *text, size_t n)
{
    size_t i = 0, n_digits = 0;
    i += i < n && (text[i] == '-' || text[i] == '+');
    for (bool has_point = false; i < n; i++) {
        if (text[i] == '.' && !has_point)
            has_point = true;
        else if (isdigit((unsigned char)text[i]))
            n_digits++;
        else
            break;
    }
    if (n_digits == 0 || i == n)
        return n_digits > 0;
    if (text[i] != 'e' && text[i] != 'E')
        return false;
    i++;
    i += i < n && (text[i] == '-' || text[i] == '+');
    const size_t first = i;
    while (i < n && isdigit((unsigned char)text[i]))
        i++;
    return i == n && i > first;
}

static int parse_row(const struct parser *p, const char *line, size_t n, struct row *row,
                     struct fm_error *err)
{
    const struct {
        const char *what;
        uint32_t *out;
        uint64_t max;
    } fields[] = {
        {"expected a whole number in 'turn'", &row->turn, UINT32_MAX - 1},
        {"expected 0 or 1 in 'phase'", &row->phase, 1},
        {"expected a position in 'step'", &row->step, LIMIT_CONTEXT - 1},
        {"expected a layer below n_layer in 'layer'", &row->layer, p->n_model_layers - 1},
        {"expected a slot below n_expert_used in 'slot'", &row->slot, p->trace->n_used - 1},
        {"expected an expert below n_expert in 'expert'", &row->expert, p->trace->n_experts - 1},
        {"expected a number in 'weight'", NULL, 0},
        {"expected a whole number in 'residency'", NULL, UINT64_MAX},
        {"expected a whole number in 'expert_bytes'", NULL, UINT64_MAX},
    };
    const size_t n_fields = sizeof fields / sizeof fields[0], weight = 6;
    const char *at = line, *end = line + n;
    for (size_t i = 0; i < n_fields; i++) {
        const char *stop = memchr(at, ',', (size_t)(end - at));
        const bool is_last = i + 1 == n_fields;
        if ((stop == NULL) != is_last)
            return fail(p, err, "expected the 9 fields " COLUMNS, line, n);
        const size_t bytes = (size_t)((stop != NULL ? stop : end) - at);
        uint64_t value = 0;
        if (i == weight ? !is_real(at, bytes) : !parse_uint(at, bytes, fields[i].max, &value))
            return fail(p, err, fields[i].what, at, bytes);
        if (fields[i].out != NULL)
            *fields[i].out = (uint32_t)value;
        at = stop != NULL ? stop + 1 : end;
    }
    return 0;
}

/* ---- the head ---------------------------------------------------------------------------- */

/* Reads the number after the last " KEY=" of a comment. A path before it may contain anything. */
static int find_size(const struct parser *p, const char *line, size_t n, const char *key,
                     uint64_t max, uint32_t *out, struct fm_error *err)
{
    const size_t key_bytes = strlen(key);
    for (size_t i = n; i-- > 0;) {
        if (n - i < key_bytes || memcmp(line + i, key, key_bytes) != 0)
            continue;
        const char *value = line + i + key_bytes;
        size_t bytes = 0;
        while (value + bytes < line + n && value[bytes] != ' ')
            bytes++;
        uint64_t number;
        if (!parse_uint(value, bytes, max, &number) || number == 0)
            return fail(p, err, "a size of the model is out of range", line + i + 1,
                        key_bytes - 1 + bytes);
        *out = (uint32_t)number;
        return 0;
    }
    return 0;
}

static bool begins_with(const char *line, size_t n, const char *word)
{
    return n >= strlen(word) && memcmp(line, word, strlen(word)) == 0;
}

static int read_comment(struct parser *p, const char *line, size_t n, struct fm_error *err)
{
    struct trace *t = p->trace;
    /* How the recording was made. A path in it may contain anything. */
    if (begins_with(line, n, "# routes: ") || begins_with(line, n, "# approximate: "))
        return 0;
    int rc = find_size(p, line, n, " n_layer=", LIMIT_LAYERS, &p->n_model_layers, err);
    if (rc == 0)
        rc = find_size(p, line, n, " n_expert=", LIMIT_EXPERTS, &t->n_experts, err);
    if (rc == 0)
        rc = find_size(p, line, n, " n_expert_used=", LIMIT_TOP_K, &t->n_used, err);
    return rc;
}

static int read_head(struct parser *p, struct fm_error *err)
{
    const struct trace *t = p->trace;
    const char *line = "";
    size_t n = 0;
    if (!next_line(p, &line, &n) || n != strlen(FIRST_LINE) || memcmp(line, FIRST_LINE, n) != 0)
        return fail(p, err, "expected '" FIRST_LINE "'", line, n);
    bool is_there;
    while ((is_there = next_line(p, &line, &n)) && n > 0 && line[0] == '#') {
        int rc = read_comment(p, line, n, err);
        if (rc != 0)
            return rc;
    }
    if (!is_there || n != strlen(COLUMNS) || memcmp(line, COLUMNS, n) != 0)
        return fail(p, err, "expected the columns " COLUMNS, line, is_there ? n : 0);
    if (p->n_model_layers == 0 || t->n_experts == 0 || t->n_used == 0 || t->n_used > t->n_experts)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: the comments give n_layer=%u n_expert=%u n_expert_used=%u; all three "
                       "are needed", p->name, p->n_model_layers, t->n_experts, t->n_used);
    return 0;
}

/* ---- the rows ---------------------------------------------------------------------------- */

static void survey_row(struct parser *p, const struct row *row)
{
    p->has_layer[row->layer] = true;
    if (row->turn >= TURNS_MAX)
        return;
    struct turn *turn = &p->turns[row->turn];
    if (!turn->is_there || row->step < turn->first)
        turn->first = row->step;
    if (!turn->is_there || row->step > turn->last)
        turn->last = row->step;
    turn->is_there = true;
    if (row->phase == 1 && (!p->has_decode || row->turn < p->decode_turn ||
                            (row->turn == p->decode_turn && row->step < p->decode_step))) {
        p->has_decode = true;
        p->decode_turn = row->turn;
        p->decode_step = row->step;
    }
}

static int store_row(const struct parser *p, const struct row *row, struct fm_error *err)
{
    const struct trace *t = p->trace;
    if (row->turn >= TURNS_MAX)
        return 0;
    const struct turn *turn = &p->turns[row->turn];
    const uint32_t token = turn->offset + (row->step - turn->first);
    if (token >= t->n_tokens)
        return 0;
    uint16_t *cell =
        t->ids + ((size_t)token * t->n_layers + p->layer_index[row->layer]) * t->n_used;
    for (uint32_t i = 0; i < t->n_used; i++)
        if (cell[i] == row->expert || (i == row->slot && cell[i] != TRACE_NO_EXPERT))
            return err_set(err, FM_ERR_FORMAT,
                           "%s: line %u: turn %u, step %u, layer %u has %s %u twice", p->name,
                           p->line, row->turn, row->step, row->layer,
                           cell[i] == row->expert ? "expert" : "slot",
                           cell[i] == row->expert ? row->expert : row->slot);
    cell[row->slot] = (uint16_t)row->expert;
    return 0;
}

static int read_rows(struct parser *p, bool is_survey, struct fm_error *err)
{
    const char *line;
    size_t n;
    int rc = 0;
    while (rc == 0 && next_line(p, &line, &n)) {
        struct row row;
        if (n == 0 || line[0] == '#')
            continue;
        rc = parse_row(p, line, n, &row, err);
        if (rc == 0 && is_survey)
            survey_row(p, &row);
        else if (rc == 0)
            rc = store_row(p, &row, err);
    }
    return rc;
}

/* Numbers all tokens and layers, and allocates the table. */
static int number_all(struct parser *p, struct fm_error *err)
{
    struct trace *t = p->trace;
    uint32_t n_layers = 0;
    for (uint32_t i = 0; i < p->n_model_layers; i++)
        if (p->has_layer[i])
            p->layer_index[i] = (uint16_t)n_layers++;
    uint64_t n_tokens = 0;
    for (uint32_t i = 0; i < TURNS_MAX; i++)
        if (p->turns[i].is_there) {
            p->turns[i].offset = (uint32_t)n_tokens;
            n_tokens += (uint64_t)p->turns[i].last - p->turns[i].first + 1;
            if (n_tokens > ROUTES_POSITIONS_MAX)
                n_tokens = ROUTES_POSITIONS_MAX;
        }
    if (n_layers == 0 || n_tokens == 0)
        return err_set(err, FM_ERR_FORMAT, "%s: it contains no routes", p->name);
    if (p->has_decode) {
        const struct turn *turn = &p->turns[p->decode_turn];
        const uint64_t token = (uint64_t)turn->offset + (p->decode_step - turn->first);
        t->n_prefill = token < n_tokens ? (uint32_t)token : 0;
    }
    const uint64_t n_cells = n_tokens * n_layers * t->n_used;
    if (n_cells > CELLS_MAX)
        return err_set(err, FM_ERR_UNSUPPORTED,
                       "%s: %llu tokens of %u layers and %u experts are too many", p->name,
                       (unsigned long long)n_tokens, n_layers, t->n_used);
    t->ids = mem_new(n_cells, sizeof *t->ids, "the routing trace", err);
    if (t->ids == NULL)
        return FM_ERR_NOMEM;
    memset(t->ids, 0xff, n_cells * sizeof *t->ids);
    t->n_tokens = (uint32_t)n_tokens;
    t->n_layers = n_layers;
    return 0;
}

static uint16_t *cell_at(const struct trace *t, uint32_t token, uint32_t layer)
{
    return t->ids + ((size_t)token * t->n_layers + layer) * t->n_used;
}

static bool is_empty(const struct trace *t, const uint16_t *cell)
{
    for (uint32_t i = 0; i < t->n_used; i++)
        if (cell[i] != TRACE_NO_EXPERT)
            return false;
    return true;
}

/* A layer that lacks a token takes the experts of the next token; the first token follows the
 * last. */
static int fill_gaps(const struct parser *p, struct fm_error *err)
{
    const struct trace *t = p->trace;
    for (uint32_t layer = 0; layer < t->n_layers; layer++) {
        uint32_t first = 0;
        while (first < t->n_tokens && is_empty(t, cell_at(t, first, layer)))
            first++;
        if (first == t->n_tokens)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: layer %u of those in the trace has no routes in the first %u "
                           "tokens", p->name, layer, t->n_tokens);
        const uint16_t *next = cell_at(t, first, layer);
        for (uint32_t token = t->n_tokens; token-- > 0;) {
            uint16_t *cell = cell_at(t, token, layer);
            if (is_empty(t, cell))
                memcpy(cell, next, t->n_used * sizeof *cell);
            next = cell;
        }
    }
    return 0;
}

int trace_parse(struct trace *trace, const char *name, const char *text, size_t text_bytes,
                struct fm_error *err)
{
    *trace = (struct trace){0};
    struct parser *p = mem_new(1, sizeof *p, "the routing trace", err);
    if (p == NULL)
        return FM_ERR_NOMEM;
    *p = (struct parser){.name = name, .at = text, .end = text + text_bytes, .trace = trace};
    p->turns = mem_new(TURNS_MAX, sizeof *p->turns, "the routing trace", err);
    int rc = p->turns != NULL ? read_head(p, err) : FM_ERR_NOMEM;
    const char *rows = p->at;
    const uint32_t rows_line = p->line;
    if (rc == 0)
        rc = read_rows(p, true, err);
    if (rc == 0)
        rc = number_all(p, err);
    if (rc == 0) {
        p->at = rows;
        p->line = rows_line;
        rc = read_rows(p, false, err);
    }
    if (rc == 0)
        rc = fill_gaps(p, err);
    mem_free(p->turns);
    mem_free(p);
    if (rc != 0)
        trace_clear(trace);
    return rc;
}

int trace_parse_raw(struct trace *trace, const char *name, const uint8_t *bytes, size_t n,
                    struct fm_error *err)
{
    const size_t token_bytes = RAW_LAYERS * RAW_USED;
    *trace = (struct trace){0};
    if (n == 0 || n % token_bytes != 0 || n > CELLS_MAX)
        return err_set(err, FM_ERR_FORMAT,
                       "%s: %zu bytes are not routes of %d of %d experts in %d layers: a token "
                       "has %zu bytes, and the maximum is %u bytes", name, n, RAW_USED, RAW_EXPERTS,
                       RAW_LAYERS, token_bytes, CELLS_MAX);
    for (size_t i = 0; i < n; i++) {
        bool is_bad = bytes[i] >= RAW_EXPERTS;
        for (size_t j = i - i % RAW_USED; j < i; j++)
            is_bad |= bytes[i] == bytes[j];
        if (is_bad)
            return err_set(err, FM_ERR_FORMAT,
                           "%s: byte %zu: expected another expert below %d, found %u", name, i,
                           RAW_EXPERTS, bytes[i]);
    }
    *trace = (struct trace){.n_tokens = (uint32_t)(n / token_bytes), .n_layers = RAW_LAYERS,
                            .n_experts = RAW_EXPERTS, .n_used = RAW_USED};
    trace->ids = mem_new(n, sizeof *trace->ids, "the routing trace", err);
    if (trace->ids == NULL) {
        trace_clear(trace);
        return FM_ERR_NOMEM;
    }
    for (size_t i = 0; i < n; i++)
        trace->ids[i] = bytes[i];
    return 0;
}

void trace_clear(struct trace *trace)
{
    mem_free(trace->ids);
    *trace = (struct trace){0};
}

/* ---- mapping between shapes -------------------------------------------------------------- */

/* The experts chosen so far for one token. */
struct choice {
    uint16_t *ids; /* ascending */
    uint32_t n, k;
};

static void choose(struct choice *c, uint16_t id)
{
    uint32_t at = c->n;
    while (at > 0 && c->ids[at - 1] > id)
        at--;
    if (c->n == c->k || (at > 0 && c->ids[at - 1] == id))
        return;
    memmove(c->ids + at + 1, c->ids + at, (c->n - at) * sizeof *c->ids);
    c->ids[at] = id;
    c->n++;
}

/* Returns the distance from a token to its jth source: 0, then 1/2, 1/4, 3/4, 1/8, 5/8 and so on of
 * the trace, then the tokens that follow. */
static uint32_t source_distance(uint32_t j, uint32_t n_tokens)
{
    if (j >= FAR_SOURCES)
        return (j - FAR_SOURCES + 1) % n_tokens;
    uint32_t mirrored = 0;
    for (uint32_t bit = 1; bit < FAR_SOURCES; bit *= 2)
        mirrored |= j & bit ? FAR_SOURCES / 2 / bit : 0;
    return (uint32_t)((uint64_t)mirrored * n_tokens / FAR_SOURCES);
}

static void choose_from(const struct trace *t, const struct routes_shape *s, uint32_t token,
                        uint32_t layer, struct choice *c)
{
    const uint32_t n_blocks = (s->n_experts + t->n_experts - 1) / t->n_experts;
    const uint32_t own_layer = (uint32_t)((uint64_t)layer * t->n_layers / s->n_layers);
    for (uint32_t i = 0; i < n_blocks * t->n_used && c->n < c->k; i++) {
        const uint32_t block = (i + layer) % n_blocks;
        const uint32_t from_layer =
            (own_layer + (uint32_t)((uint64_t)block * t->n_layers / n_blocks)) % t->n_layers;
        const uint16_t e = cell_at(t, token, from_layer)[i / n_blocks];
        if (e == TRACE_NO_EXPERT)
            continue;
        const uint64_t first = (uint64_t)block * s->n_experts / n_blocks;
        const uint64_t size = (uint64_t)(block + 1) * s->n_experts / n_blocks - first;
        choose(c, (uint16_t)(first + e * size / t->n_experts));
    }
}

void trace_map(const struct trace *trace, struct routes *routes)
{
    const struct routes_shape *s = &routes->shape;
    for (uint32_t p = 0; p < s->n_positions; p++)
        for (uint32_t layer = 0; layer < s->n_layers; layer++) {
            struct choice c = {routes->ids + ((size_t)p * s->n_layers + layer) * s->n_used, 0,
                               s->n_used};
            for (uint32_t j = 0; c.n < c.k && j < FAR_SOURCES + NEAR_SOURCES; j++)
                choose_from(trace, s, (p + source_distance(j, trace->n_tokens)) % trace->n_tokens,
                            layer, &c);
            for (uint32_t e = 0; c.n < c.k; e++) /* the trace has too few: take any */
                choose(&c, (uint16_t)e);
        }
}
