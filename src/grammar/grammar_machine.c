#include "grammar/grammar_machine.h"

#include <string.h>

#include "grammar/grammar_string.h"

static const struct rule *rule_of(const struct machine *m, const struct frame *f)
{
    return &m->program->rules[f->rule];
}

static bool is_whole(const struct machine *m, const struct frame *f)
{
    return rule_of(m, f)->dfa->states[f->v[RAW_STATE]].accepts;
}

uint32_t machine_depth(const struct machine *m, const struct thread *t)
{
    return t->parent == NODE_NONE ? 0 : m->nodes[t->parent].depth + 1;
}

bool machine_is_whole_raw(const struct machine *m, const struct thread *t)
{
    return t->top.kind == FRAME_RAW && is_whole(m, &t->top);
}

/* ---- threads -------------------------------------------------------------------------------- */

static void add_thread(struct threads *out, const struct frame *top, uint32_t parent)
{
    for (uint32_t i = 0; i < out->n; i++)
        if (out->at[i].parent == parent && memcmp(&out->at[i].top, top, sizeof *top) == 0)
            return;
    if (out->n < MACHINE_THREADS)
        out->at[out->n++] = (struct thread){*top, parent};
}

/* Adds a node for a frame that another frame will stand on. */
static uint32_t add_node(struct machine *m, const struct frame *f, uint32_t parent, uint32_t depth)
{
    for (size_t i = m->first_new; i < m->n_nodes; i++)
        if (m->nodes[i].parent == parent && memcmp(&m->nodes[i].frame, f, sizeof *f) == 0)
            return (uint32_t)i;
    m->nodes[m->n_nodes] = (struct node){*f, parent, depth};
    return (uint32_t)m->n_nodes++;
}

/* Ends the top frame with this byte and continues with its parent. */
static void leave(struct machine *m, uint32_t parent, struct threads *out)
{
    if (parent == NODE_UNKNOWN)
        m->has_left = true;
    else
        add_thread(out, &m->nodes[parent].frame, m->nodes[parent].parent);
}

static bool fits(const struct machine *m, uint32_t value, uint32_t depth)
{
    const uint32_t height = m->program->values[value].height;
    return height != RULE_NONE && depth + height <= GRAMMAR_DEPTH;
}

/* Starts a value with its first byte. `owner` is the frame that continues after it. */
static void start_value(struct machine *m, const struct frame *owner, uint32_t owner_parent,
                        uint32_t depth, uint32_t value, uint8_t b, struct threads *out)
{
    const struct rule_value *v = &m->program->values[value];
    for (uint32_t i = 0; i < v->n && out->n < MACHINE_THREADS; i++) {
        const struct rule *r = &m->program->rules[v->rules[i]];
        struct frame f = {.rule = v->rules[i]};
        if (r->kind == RULE_RAW) {
            f.kind = FRAME_RAW;
            f.v[RAW_STATE] = dfa_step(r->dfa, 0, b);
            if (f.v[RAW_STATE] == DFA_NONE)
                continue;
        } else if (r->kind == RULE_STRING) {
            f.kind = FRAME_STRING;
            if (b != '"')
                continue;
            if (r->dfa == NULL && r->min == 0 && r->max == RULE_NONE)
                f.rule = RULE_NONE;
        } else {
            const bool is_array = r->kind == RULE_ARRAY;
            f.kind = is_array ? FRAME_ARRAY : FRAME_OBJECT;
            f.at = is_array ? 0 : (uint32_t)m->n_text - 1;
            if (b != (is_array ? '[' : '{') || r->height == RULE_NONE ||
                depth + r->height > GRAMMAR_DEPTH)
                continue;
        }
        add_thread(out, &f, add_node(m, owner, owner_parent, depth));
    }
}

/* Accepts white space: one blank or, unless the rule is tight, a newline and some blanks. */
static bool take_blank(const struct rule *r, struct frame *f, uint8_t b)
{
    if (r->is_tight && b != ' ')
        return false;
    if (f->blanks == 0 && (b == ' ' || b == '\n')) {
        f->blanks = b == ' ' ? 1 : 2;
        return true;
    }
    if (f->blanks < 2 || f->blanks >= 2 + GRAMMAR_BLANKS || (b != ' ' && b != '\t'))
        return false;
    f->blanks++;
    return true;
}

/* ---- arrays --------------------------------------------------------------------------------- */

static bool may_add_item(const struct machine *m, const struct rule *r, const struct frame *f,
                         uint32_t depth, uint32_t *value)
{
    const uint32_t n = f->v[ARRAY_N];
    if (n >= r->max || (n >= r->n_items && r->rest == RULE_NONE))
        return false;
    *value = n < r->n_items ? r->items[n] : r->rest;
    return fits(m, *value, depth);
}

static void step_array(struct machine *m, const struct thread *t, uint8_t b, struct threads *out)
{
    const struct rule *r = rule_of(m, &t->top);
    const uint32_t depth = machine_depth(m, t);
    struct frame f = t->top;
    uint32_t value;
    if (f.phase == PHASE_AFTER) {
        if (b == ',' && f.blanks == 0 && may_add_item(m, r, &f, depth, &value)) {
            f.phase = PHASE_NEXT;
            add_thread(out, &f, t->parent);
        } else if (b == ']' && f.v[ARRAY_N] >= r->min) {
            leave(m, t->parent, out);
        } else if (f.v[ARRAY_N] >= r->min && take_blank(r, &f, b)) {
            add_thread(out, &f, t->parent);
        }
        return;
    }
    if (b == ']' && f.phase == PHASE_FIRST && r->min == 0) {
        leave(m, t->parent, out);
    } else if (take_blank(r, &f, b)) {
        add_thread(out, &f, t->parent);
    } else if (may_add_item(m, r, &f, depth, &value)) {
        /* Beyond this index all items are treated the same. */
        const uint32_t last = r->n_items > r->min ? r->n_items : r->min;
        f.v[ARRAY_N] += r->max != RULE_NONE || f.v[ARRAY_N] < last;
        f.phase = PHASE_AFTER;
        f.blanks = 0;
        start_value(m, &f, t->parent, depth, value, b, out);
    }
}

/* ---- objects -------------------------------------------------------------------------------- */

static uint64_t extras_left(const struct machine *m, const struct rule *r, const struct frame *f,
                            uint32_t depth)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < r->n_extras; i++) {
        if (!fits(m, r->extras[i].value, depth))
            continue;
        const uint64_t own = r->extras[i].names != NULL ? r->extras[i].names->n_words[0]
                                                        : DFA_MANY;
        n = own > DFA_MANY - n ? DFA_MANY : n + own;
    }
    return n == DFA_MANY ? n : n > f->v[OBJECT_N_EXTRAS] ? n - f->v[OBJECT_N_EXTRAS] : 0;
}

/* Returns whether `min` can still be reached with one more property and those from `from` on. */
static bool are_enough(const struct machine *m, const struct rule *r, const struct frame *f,
                       uint32_t depth, uint32_t from, bool is_extra)
{
    uint64_t n = (uint64_t)f->v[OBJECT_N] + 1;
    if (n >= r->min)
        return true;
    const uint64_t left = extras_left(m, r, f, depth);
    for (uint32_t i = from; i < r->n_properties; i++)
        n += fits(m, r->properties[i].value, depth);
    return left == DFA_MANY || n + left - (is_extra ? 1 : 0) >= r->min;
}

static bool may_take(const struct machine *m, const struct rule *r, const struct frame *f,
                     uint32_t depth, uint32_t i)
{
    const uint32_t next = f->v[OBJECT_NEXT];
    if (i < next || i > r->next_required[next] || !fits(m, r->properties[i].value, depth))
        return false;
    return !r->has_counts ||
           ((uint64_t)f->v[OBJECT_N] + 1 + r->n_required[i + 1] <= r->max &&
            are_enough(m, r, f, depth, i + 1, false));
}

static bool may_take_extra(const struct machine *m, const struct rule *r, const struct frame *f,
                           uint32_t depth, uint32_t extra)
{
    if (r->n_required[f->v[OBJECT_NEXT]] > 0 || !fits(m, r->extras[extra].value, depth))
        return false;
    return !r->has_counts || (f->v[OBJECT_N] < r->max && extras_left(m, r, f, depth) > 0 &&
                              are_enough(m, r, f, depth, r->n_properties, true));
}

static bool may_take_any(const struct machine *m, const struct rule *r, const struct frame *f,
                         uint32_t depth)
{
    for (uint32_t i = f->v[OBJECT_NEXT]; i < r->n_properties; i++) {
        if (may_take(m, r, f, depth, i))
            return true;
        if (r->properties[i].is_required)
            return false;
    }
    for (uint32_t i = 0; i < r->n_extras; i++)
        if (may_take_extra(m, r, f, depth, i))
            return true;
    return false;
}

/* Starts a key at its opening quote. */
static void start_key(struct machine *m, const struct thread *t, struct threads *out)
{
    const struct rule *r = rule_of(m, &t->top);
    const uint32_t depth = machine_depth(m, t);
    bool has_own = false;
    for (uint32_t i = t->top.v[OBJECT_NEXT]; i < r->n_properties && !has_own; i++) {
        has_own = may_take(m, r, &t->top, depth, i);
        if (r->properties[i].is_required)
            break;
    }
    struct frame f = t->top;
    f.blanks = 0;
    f.phase = PHASE_KEY;
    f.v[OBJECT_RANGE] = r->n_properties << 16;
    f.v[OBJECT_AT] = 0;
    if (has_own)
        add_thread(out, &f, t->parent);
    f.phase = PHASE_COLON;
    f.v[OBJECT_NEXT] = r->n_properties;
    for (uint32_t i = 0; i < r->n_extras; i++) {
        if (!may_take_extra(m, r, &t->top, depth, i))
            continue;
        f.v[OBJECT_VALUE] = r->extras[i].value;
        f.v[OBJECT_N] = t->top.v[OBJECT_N] + r->has_counts;
        f.v[OBJECT_N_EXTRAS] = t->top.v[OBJECT_N_EXTRAS] + r->has_counts;
        const struct frame key = {.kind = FRAME_STRING, .rule = t->top.rule,
                                  .v = {[STRING_EXTRA] = i + 1}, .at = (uint32_t)m->n_text};
        if (out->n < MACHINE_THREADS)
            add_thread(out, &key, add_node(m, &f, t->parent, depth));
    }
}

/* Takes one byte of a property's key. The keys that still match are neighbours in sorted order. */
static void step_key(struct machine *m, const struct thread *t, uint8_t b, struct threads *out)
{
    const struct rule *r = rule_of(m, &t->top);
    const uint32_t depth = machine_depth(m, t), at = t->top.v[OBJECT_AT];
    uint32_t lo = t->top.v[OBJECT_RANGE] & 0xffff, hi = t->top.v[OBJECT_RANGE] >> 16;
    while (lo < hi && (uint8_t)r->properties[r->by_key[lo]].key[at] != b)
        lo++;
    uint32_t end = lo;
    bool is_possible = false;
    for (; end < hi && (uint8_t)r->properties[r->by_key[end]].key[at] == b; end++)
        is_possible = is_possible || may_take(m, r, &t->top, depth, r->by_key[end]);
    if (!is_possible)
        return;
    struct frame f = t->top;
    const uint32_t i = r->by_key[lo];
    f.v[OBJECT_RANGE] = lo | end << 16;
    f.v[OBJECT_AT] = at + 1;
    if (r->properties[i].key_bytes == at + 1) {
        f.phase = PHASE_COLON;
        f.v[OBJECT_NEXT] = i + 1;
        f.v[OBJECT_AT] = 0;
        f.v[OBJECT_N] += r->has_counts;
        f.v[OBJECT_VALUE] = r->properties[i].value;
    }
    add_thread(out, &f, t->parent);
}

static void step_object(struct machine *m, const struct thread *t, uint8_t b, struct threads *out)
{
    const struct rule *r = rule_of(m, &t->top);
    const uint32_t depth = machine_depth(m, t);
    const bool may_close = r->n_required[t->top.v[OBJECT_NEXT]] == 0 &&
                           t->top.v[OBJECT_N] >= r->min;
    struct frame f = t->top;
    switch (f.phase) {
    case PHASE_KEY:
        step_key(m, t, b, out);
        return;
    case PHASE_COLON:
        f.phase = PHASE_VALUE;
        if (b == ':')
            add_thread(out, &f, t->parent);
        return;
    case PHASE_VALUE:
        if (b == ' ') {
            if (f.blanks++ == 0)
                add_thread(out, &f, t->parent);
            return;
        }
        f.phase = PHASE_AFTER;
        f.blanks = 0;
        f.v[OBJECT_VALUE] = 0;
        start_value(m, &f, t->parent, depth, t->top.v[OBJECT_VALUE], b, out);
        return;
    case PHASE_AFTER:
        if (b == ',' && f.blanks == 0 && may_take_any(m, r, &f, depth)) {
            f.phase = PHASE_NEXT;
            add_thread(out, &f, t->parent);
        } else if (b == '}' && may_close) {
            leave(m, t->parent, out);
        } else if (may_close && take_blank(r, &f, b)) {
            add_thread(out, &f, t->parent);
        }
        return;
    default:
        if (b == '"')
            start_key(m, t, out);
        else if (b == '}' && f.phase == PHASE_FIRST && may_close)
            leave(m, t->parent, out);
        else if (take_blank(r, &f, b))
            add_thread(out, &f, t->parent);
    }
}

/* ---- strings -------------------------------------------------------------------------------- */

/* Iterates over the names of an object, from its bracket to the key at `end`. */
struct name_scan {
    uint32_t at, end, depth;
    bool is_key;
};

static bool next_name(const struct machine *m, struct name_scan *s, uint32_t *name)
{
    for (; s->at + 1 < s->end; s->at++) {
        const uint8_t c = m->text[s->at];
        if (c == ' ' || c == '\n' || c == '\t')
            continue;
        const bool is_found = c == '"' && s->is_key && s->depth == 1;
        if (c == '"') {
            *name = s->at + 1;
            for (s->at++; m->text[s->at] != '"'; s->at++)
                s->at += m->text[s->at] == '\\';
        }
        s->depth += c == '{' || c == '[';
        s->depth -= c == '}' || c == ']';
        s->is_key = c == '{' || c == ',';
        if (is_found) {
            s->at++;
            return true;
        }
    }
    return false;
}

/* Caches the names, unless there are too many. */
static void find_names(struct machine *m, uint32_t object_at, uint32_t key_at)
{
    if (m->names_object == object_at && m->names_key == key_at)
        return;
    struct name_scan scan = {.at = object_at, .end = key_at};
    uint32_t name;
    m->names_object = object_at;
    /* otherwise the text may still change */
    m->names_key = key_at <= m->n_fixed ? key_at : AT_UNKNOWN;
    for (m->n_names = 0; m->n_names <= MACHINE_NAMES && next_name(m, &scan, &name); m->n_names++)
        if (m->n_names < MACHINE_NAMES)
            m->names[m->n_names] = name;
}

/* Returns name number i. If the names are not cached, `scan` must stand at it. */
static bool get_name(const struct machine *m, uint32_t i, struct name_scan *scan, uint32_t *name)
{
    if (m->n_names > MACHINE_NAMES)
        return next_name(m, scan, name);
    *name = i < m->n_names ? m->names[i] : 0;
    return i < m->n_names;
}

/* Returns whether two strings in the text have the same characters. The second one ends at `end`,
 * the first one at its quote. With `rest_at`, a prefix match is enough and *rest_at is set to where
 * the first one continues. */
static bool is_same_name(const struct machine *m, uint32_t a, uint32_t b, uint32_t end,
                         uint32_t *rest_at)
{
    while (b < end) {
        uint32_t x, y;
        if (m->text[a] == '"')
            return false;
        a += grammar_read_char(m->text + a, &x);
        b += grammar_read_char(m->text + b, &y);
        if (x != y)
            return false;
    }
    if (rest_at != NULL)
        *rest_at = a;
    return rest_at != NULL || m->text[a] == '"';
}

bool machine_name_is_new(struct machine *m, uint32_t object_at, uint32_t key_at)
{
    find_names(m, object_at, key_at);
    struct name_scan scan = {.at = object_at, .end = key_at};
    for (uint32_t i = 0, name; get_name(m, i, &scan, &name); i++)
        if (is_same_name(m, name, key_at, (uint32_t)m->n_text - 1, NULL))
            return false;
    return true;
}

/* Returns whether some allowed name that starts with the key so far is unused; `state` is the state
 * after the key so far. */
static bool is_name_left(struct machine *m, const struct dfa *names, uint32_t state,
                         uint32_t object_at, uint32_t key_at)
{
    uint64_t n_used = 0;
    find_names(m, object_at, key_at);
    struct name_scan scan = {.at = object_at, .end = key_at};
    for (uint32_t i = 0, name; get_name(m, i, &scan, &name); i++) {
        uint32_t at, c, s = state;
        if (!is_same_name(m, name, key_at, (uint32_t)m->n_text, &at))
            continue;
        while (s != DFA_NONE && m->text[at] != '"') {
            at += grammar_read_char(m->text + at, &c);
            s = dfa_step(names, s, c);
        }
        n_used += s != DFA_NONE && names->states[s].accepts;
    }
    return names->n_words[state] > n_used;
}

/* Returns whether the key may be used. Skips the check if the object is unknown; grammar_mask.c
 * repeats it when the object is known. */
static bool key_may_be(struct machine *m, const struct thread *t, const struct frame *f,
                       const struct dfa *names, bool is_closed)
{
    if (t->parent == NODE_UNKNOWN)
        return true; /* grammar_mask.c checks once the parent is known */
    const uint32_t object_at = m->nodes[t->parent].frame.at;
    const bool is_counted = !is_closed && names != NULL &&
                            rule_of(m, f)->extras[f->v[STRING_EXTRA] - 1].is_counted;
    if (!is_closed && (!is_counted || names->n_words[f->v[STRING_STATE]] == DFA_MANY))
        return true;
    if (object_at == AT_UNKNOWN) {
        m->is_unsure = true;
        return false;
    }
    return is_closed ? machine_name_is_new(m, object_at, f->at)
                     : is_name_left(m, names, f->v[STRING_STATE], object_at, f->at);
}

static void step_string(struct machine *m, const struct thread *t, uint8_t b, struct threads *out)
{
    struct frame f = t->top;
    const bool is_key = f.v[STRING_EXTRA] > 0;
    const struct rule *r = f.rule != RULE_NONE ? rule_of(m, &f) : NULL;
    const struct dfa *dfa = r == NULL ? NULL
                            : is_key ? r->extras[f.v[STRING_EXTRA] - 1].names : r->dfa;
    const bool has_limits = r != NULL && !is_key && (r->min > 0 || r->max != RULE_NONE);
    if (f.v[STRING_PART] == 0) {
        if (b == '"') {
            if ((dfa == NULL || dfa->states[f.v[STRING_STATE]].accepts) &&
                (!has_limits || f.v[STRING_LENGTH] >= r->min) &&
                (!is_key || key_may_be(m, t, &f, dfa, true)))
                leave(m, t->parent, out);
            return;
        }
        if (has_limits && f.v[STRING_LENGTH] >= r->max)
            return;
        /* Counted names have no escapes, so each byte is one character. */
        if (is_key && (b == '\\' || b >= 0x80) && r != NULL &&
            r->extras[f.v[STRING_EXTRA] - 1].is_counted)
            return;
    }
    uint32_t c;
    const enum string_step step = grammar_string_step(dfa, f.v[STRING_STATE],
                                                      &f.v[STRING_PART], b, &c);
    if (step == STRING_NO)
        return;
    if (step == STRING_CHAR) {
        if (dfa != NULL)
            f.v[STRING_STATE] = dfa_step(dfa, f.v[STRING_STATE], c);
        if (f.v[STRING_STATE] == DFA_NONE || (is_key && !key_may_be(m, t, &f, dfa, false)))
            return;
        f.v[STRING_LENGTH] += has_limits;
    }
    add_thread(out, &f, t->parent);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Returns the tag at this place of a text around a call, or NULL. */
static const struct call_tag *tag_at(const struct grammar_program *p, const char *text, uint32_t at)
{
    for (uint32_t i = 0; i < p->call.n_tags; i++)
        if (p->call.tags[i].in == text && p->call.tags[i].at == at)
            return &p->call.tags[i];
    return NULL;
}

/* Returns true where only the token of a tag may come, and ordinary characters do. */
static bool needs_token(const struct machine *m, const char *text, uint32_t at)
{
    const struct call_tag *tag = m->is_tag ? NULL : tag_at(m->program, text, at);
    return tag != NULL && tag->is_token;
}

static bool step_text(const struct machine *m, const char *text, uint32_t *at, uint8_t b)
{
    *at += text[*at] == ' ' && b != ' ';
    if (b == '\0' || needs_token(m, text, *at) || (uint8_t)text[*at] != b)
        return false;
    ++*at;
    return true;
}

/* Takes one byte of a tool's name. The names that still match are neighbours in sorted order. */
static void step_name(const struct machine *m, struct frame f, uint8_t b, struct threads *out)
{
    const struct rule *r = &m->program->rules[m->program->calls];
    const uint32_t at = f.v[ANSWER_AT];
    uint32_t lo = f.v[ANSWER_RANGE] & 0xffff, hi = f.v[ANSWER_RANGE] >> 16;
    while (lo < hi && (uint8_t)r->properties[r->by_key[lo]].key[at] != b)
        lo++;
    uint32_t end = lo;
    while (end < hi && (uint8_t)r->properties[r->by_key[end]].key[at] == b)
        end++;
    if (lo == end)
        return;
    const struct rule_property *tool = &r->properties[r->by_key[lo]];
    f.v[ANSWER_AT] = at + 1;
    f.v[ANSWER_RANGE] = lo | end << 16;
    if (tool->key_bytes == at + 1) {
        if (m->program->call.is_bare && needs_token(m, m->program->call.arguments, 0))
            return;
        f.phase = PHASE_ARGUMENTS;
        f.v[ANSWER_AT] = m->program->call.is_bare; /* its first byte has ended the name */
        f.v[ANSWER_RANGE] = 0;
        f.v[ANSWER_VALUE] = tool->value;
    }
    add_thread(out, &f, NODE_NONE);
}

static void begin_name(const struct machine *m, struct frame *f)
{
    f->phase = PHASE_NAME;
    f->v[ANSWER_AT] = 0;
    f->v[ANSWER_RANGE] = m->program->rules[m->program->calls].n_properties << 16;
}

static void step_lead(const struct machine *m, struct frame f, uint8_t b, struct threads *out)
{
    const char *lead = m->program->call.lead;
    if (!step_text(m, lead, &f.v[ANSWER_AT], b))
        return;
    f.phase = PHASE_LEAD;
    if (lead[f.v[ANSWER_AT]] == '\0')
        begin_name(m, &f);
    add_thread(out, &f, NODE_NONE);
}

/* Leaves the tail if it is complete. */
static void end_call(const struct grammar_program *p, struct frame *f)
{
    const uint32_t at = f->v[ANSWER_AT];
    if (p->call.tail[at] != '\0' && !(p->is_opened && at == p->call.body_end))
        return;
    f->phase = p->is_opened || p->is_one_call ? PHASE_AFTER : PHASE_CALLED;
    f->v[ANSWER_AT] = 0;
}

static void step_arguments(struct machine *m, struct frame f, uint8_t b, struct threads *out)
{
    const char *rest = m->program->call.arguments + f.v[ANSWER_AT];
    const uint32_t value = f.v[ANSWER_VALUE];
    if (rest[0] == '\0' || (rest[0] == ' ' && rest[1] == '\0' && b != ' ')) {
        f.v[ANSWER_AT] = f.v[ANSWER_VALUE] = 0;
        f.phase = PHASE_TAIL;
        end_call(m->program, &f); /* if nothing has to follow */
        start_value(m, &f, NODE_NONE, 0, value, b, out);
    } else if (step_text(m, m->program->call.arguments, &f.v[ANSWER_AT], b)) {
        add_thread(out, &f, NODE_NONE);
    }
}

static void step_answer(struct machine *m, struct frame f, uint8_t b, struct threads *out)
{
    const struct grammar_program *p = m->program;
    switch (f.phase) {
    case PHASE_AFTER:
        return;
    case PHASE_LEAD:
    case PHASE_CALLED:
        step_lead(m, f, b, out);
        return;
    case PHASE_NAME:
        step_name(m, f, b, out);
        return;
    case PHASE_ARGUMENTS:
        step_arguments(m, f, b, out);
        return;
    case PHASE_TAIL:
        if (!step_text(m, p->call.tail, &f.v[ANSWER_AT], b))
            return;
        end_call(p, &f);
        add_thread(out, &f, NODE_NONE);
        return;
    default:
        if (p->calls != RULE_NONE) {
            f.v[ANSWER_AT] = p->call.open_at;
            step_lead(m, f, b, out);
            f.v[ANSWER_AT] = 0;
        }
        f.phase = PHASE_AFTER;
        if (p->answer != RULE_NONE)
            start_value(m, &f, NODE_NONE, 0, p->answer, b, out);
    }
}

/* ---- all of it ------------------------------------------------------------------------------ */

static void step_thread(struct machine *m, const struct thread *t, uint8_t b, struct threads *out)
{
    struct thread below = *t;
    switch ((enum frame_kind)t->top.kind) {
    case FRAME_RAW:
        below.top.v[RAW_STATE] = dfa_step(rule_of(m, &t->top)->dfa, t->top.v[RAW_STATE], b);
        if (below.top.v[RAW_STATE] != DFA_NONE) {
            add_thread(out, &below.top, t->parent);
        } else if (is_whole(m, &t->top) && t->parent != NODE_UNKNOWN) {
            below = (struct thread){m->nodes[t->parent].frame, m->nodes[t->parent].parent};
            step_thread(m, &below, b, out); /* the parent is not a raw value */
        }
        return;
    case FRAME_STRING:
        step_string(m, t, b, out);
        return;
    case FRAME_ARRAY:
        step_array(m, t, b, out);
        return;
    case FRAME_OBJECT:
        step_object(m, t, b, out);
        return;
    case FRAME_ANSWER:
        step_answer(m, t->top, b, out);
        return;
    }
}

void machine_start(struct machine *m, struct threads *out)
{
    m->n_nodes = 1;
    m->nodes[NODE_UNKNOWN] = (struct node){.parent = NODE_NONE};
    m->names_object = m->names_key = AT_UNKNOWN;
    out->n = 0;
    struct frame f = {.kind = FRAME_ANSWER, .phase = PHASE_FIRST};
    if (m->program->is_opened) {
        f.phase = PHASE_LEAD;
        f.v[ANSWER_AT] = m->program->call.body_at;
        if (m->program->call.lead[f.v[ANSWER_AT]] == '\0')
            begin_name(m, &f);
    }
    add_thread(out, &f, NODE_NONE);
}

void machine_step(struct machine *m, const struct threads *in, struct threads *out)
{
    out->n = 0;
    m->first_new = m->n_nodes;
    for (uint32_t i = 0; i < in->n; i++)
        step_thread(m, &in->at[i], m->text[m->n_text - 1], out);
}

/* Returns whether the name of a call is complete and nothing of what follows it has come. */
static bool is_after_name(const struct grammar_program *p, const struct frame *f)
{
    const struct rule *r = &p->rules[p->calls];
    if (!p->call.is_bare)
        return f->phase == PHASE_ARGUMENTS && f->v[ANSWER_AT] == 0;
    uint32_t i = f->phase == PHASE_NAME ? f->v[ANSWER_RANGE] & 0xffff : 0;
    const uint32_t end = f->phase == PHASE_NAME ? f->v[ANSWER_RANGE] >> 16 : 0;
    while (i < end && r->properties[r->by_key[i]].key_bytes != f->v[ANSWER_AT] + 1)
        i++;
    return i < end;
}

const char *machine_tag(const struct machine *m, const struct threads *threads)
{
    const struct grammar_program *p = m->program;
    const struct frame *f = &threads->at[0].top; /* outside of values there is only one thread */
    if (threads->n != 1 || f->kind != FRAME_ANSWER || p->calls == RULE_NONE)
        return NULL;
    const struct call_tag *tag = NULL;
    if (f->phase == PHASE_FIRST)
        tag = tag_at(p, p->call.lead, p->call.open_at);
    else if (f->phase == PHASE_LEAD || f->phase == PHASE_CALLED)
        tag = tag_at(p, p->call.lead, f->v[ANSWER_AT]);
    else if (f->phase == PHASE_TAIL)
        tag = tag_at(p, p->call.tail, f->v[ANSWER_AT]);
    else if (f->phase == PHASE_ARGUMENTS && f->v[ANSWER_AT] > 0)
        tag = tag_at(p, p->call.arguments, f->v[ANSWER_AT]);
    else if (is_after_name(p, f))
        tag = tag_at(p, p->call.arguments, 0);
    return tag != NULL ? tag->text : NULL;
}

/* Returns whether the answer may end in this frame. After calls, a separator may come and then the
 * end. */
static bool may_end_here(const struct machine *m, const struct frame *f)
{
    return f->phase == PHASE_AFTER || f->phase == PHASE_CALLED ||
           (f->phase == PHASE_LEAD && f->v[ANSWER_AT] == m->program->call.open_at);
}

bool machine_may_end(const struct machine *m, const struct threads *threads)
{
    for (uint32_t i = 0; i < threads->n; i++) {
        const struct thread *t = &threads->at[i];
        if (t->top.kind == FRAME_ANSWER && may_end_here(m, &t->top))
            return true;
        if (machine_is_whole_raw(m, t) && t->parent != NODE_UNKNOWN &&
            m->nodes[t->parent].frame.kind == FRAME_ANSWER)
            return true;
    }
    return false;
}

bool machine_must_end(const struct threads *threads)
{
    bool all = true;
    for (uint32_t i = 0; i < threads->n; i++)
        all = all && threads->at[i].top.kind == FRAME_ANSWER &&
              threads->at[i].top.phase == PHASE_AFTER;
    return all;
}
