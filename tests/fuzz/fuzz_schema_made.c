/* Fuzzes schemas made from a grammar of keywords. The input decides which keywords are used where,
 * their values, and where references point. So nearly every input is a schema, and mutations change
 * its shape. FLASHMOE_SHOW in the environment prints the schema. */
#include <stdarg.h>

#include "schema_answers.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TEXT_BYTES = 64 << 10, DEPTH = 12, N_KEYWORDS_MAX = 5 };

enum form { A_SCHEMA, SCHEMAS, SCHEMA_MAP, COUNT, NUMBER, PATTERN, FORMAT, FLAG, NAMES, VALUES,
            ONE_VALUE, TYPES, REFERENCE, N_FORMS };

static const struct {
    const char *name;
    enum form form;
} keywords[] = {
    {"type", TYPES}, {"$ref", REFERENCE}, {"properties", SCHEMA_MAP},
    {"propertyNames", A_SCHEMA}, {"additionalProperties", A_SCHEMA},
    {"patternProperties", SCHEMA_MAP}, {"items", A_SCHEMA}, {"prefixItems", SCHEMAS},
    {"additionalItems", A_SCHEMA}, {"anyOf", SCHEMAS}, {"oneOf", SCHEMAS}, {"allOf", SCHEMAS},
    {"required", NAMES}, {"enum", VALUES}, {"const", ONE_VALUE}, {"pattern", PATTERN},
    {"format", FORMAT}, {"minLength", COUNT}, {"maxLength", COUNT}, {"minItems", COUNT},
    {"maxItems", COUNT}, {"minProperties", COUNT}, {"maxProperties", COUNT}, {"minimum", NUMBER},
    {"maximum", NUMBER}, {"exclusiveMinimum", NUMBER}, {"exclusiveMaximum", NUMBER},
    {"multipleOf", NUMBER}, {"$defs", SCHEMA_MAP}, {"definitions", SCHEMA_MAP},
    {"uniqueItems", FLAG}, {"title", PATTERN}, {"default", ONE_VALUE}, {"examples", VALUES},
    {"$anchor", PATTERN}, {"contentSchema", A_SCHEMA}, {"not", A_SCHEMA}, {"if", A_SCHEMA},
    {"then", A_SCHEMA}, {"else", A_SCHEMA}, {"contains", A_SCHEMA},
    {"dependentSchemas", SCHEMA_MAP}, {"unevaluatedProperties", A_SCHEMA}, {"$id", PATTERN},
};
enum { N_KEYWORDS = sizeof keywords / sizeof keywords[0], N_ENFORCED = 36, DEFS = 28, TITLE = 31 };

static const char *const names[] = {"a", "b", "c", "ab", "^a", "[ab]{2}", "x~y/z", "%24", "$defs",
                                    "", "\\u00e9"};
static const char *const pointers[] = {
    "#/$defs/a", "#", "#/$defs/b", "#/$defs/c", "#/%24defs/a", "#/definitions/a", "#/properties/a",
    "#/items", "#/propertyNames", "#/anyOf/0", "#/allOf/1", "#/additionalProperties",
    "#/$defs/a/properties/b", "#/$defs/a/items", "#/patternProperties/%5Ea", "#/$defs/x~0y~1z",
    "#/$defs", "other.json", "#/", "#/$defs/a/$ref"};
static const char *const numbers[] = {"0", "1", "2", "3", "5", "17", "64", "1000", "20000", "1e9",
                                      "4294967295", "18446744073709551616", "1e400", "1e-400",
                                      "-1", "0.5", "-2.25", "1e999999", "10", "123456789.125"};
static const char *const counts[] = {"0", "1", "2", "3", "5", "17", "64", "1000", "20000", "1e9",
                                     "4294967295", "18446744073709551616", "1e400", "-1", "0.5"};
static const char *const types[] = {"object", "array", "string", "integer", "number", "null",
                                    "boolean"};
static const char *const formats[] = {"date", "time", "date-time", "uuid", "email", "ipv4", "uri",
                                      "hostname", "duration", "ipv6", "other"};

struct maker {
    const uint8_t *data;
    size_t n, at;
    char *text;
    size_t n_text;
    unsigned depth;
};

static unsigned take(struct maker *m, unsigned below)
{
    return m->at < m->n ? m->data[m->at++] % below : 0;
}

/* Drops what does not fit. Then the schema is not valid JSON, which is fine too. */
static void put(struct maker *m, const char *fmt, ...)
{
    va_list list;
    va_start(list, fmt);
    const int n = vsnprintf(m->text + m->n_text, TEXT_BYTES - m->n_text, fmt, list);
    va_end(list);
    if (n > 0 && (size_t)n < TEXT_BYTES - m->n_text)
        m->n_text += (size_t)n;
}

#define PICK(m, list) (list)[take(m, sizeof(list) / sizeof((list)[0]))]

static void put_schema(struct maker *m);

static void put_literal(struct maker *m)
{
    const unsigned kind = m->depth < DEPTH ? take(m, 8) : take(m, 6);
    if (kind < 2) {
        put(m, "\"%s\"", PICK(m, names));
    } else if (kind < 4) {
        put(m, "%s", PICK(m, numbers));
    } else if (kind < 6) {
        put(m, "%s", kind == 4 ? "null" : "true");
    } else {
        m->depth++;
        put(m, kind == 6 ? "[" : "{\"a\":");
        put_literal(m);
        put(m, kind == 6 ? "," : ",\"b\":");
        put_literal(m);
        put(m, kind == 6 ? "]" : "}");
        m->depth--;
    }
}

/* Writes a piece of a regular expression, usually a valid one. */
static void put_pattern(struct maker *m)
{
    static const char *const atoms[] = {"a", "b", ".", "[ab]", "[^a]", "\\\\d", "\\\\S", "^", "$",
                                        "\\u00e9", "(", "\\\\u{1f642}"};
    static const char *const repeats[] = {"", "*", "+", "?", "{2}", "{1,3}", "{0,1000}", "{9,}",
                                          "{10000}", "|"};
    for (unsigned i = take(m, 4) + 1; i-- > 0;) {
        const unsigned kind = take(m, 4);
        if (kind > 0 || m->depth >= DEPTH) {
            put(m, "%s", PICK(m, atoms));
        } else {
            m->depth++;
            put(m, "(");
            put_pattern(m);
            put(m, ")");
            m->depth--;
        }
        put(m, "%s", PICK(m, repeats));
    }
}

static void put_list(struct maker *m, enum form form)
{
    const unsigned n = take(m, 4) + (form == SCHEMAS || form == TYPES);
    put(m, "[");
    for (unsigned i = 0; i < n; i++) {
        put(m, i > 0 ? "," : "");
        if (form == SCHEMAS)
            put_schema(m);
        else if (form == VALUES)
            put_literal(m);
        else
            put(m, "\"%s\"", form == NAMES ? PICK(m, names) : PICK(m, types));
    }
    put(m, "]");
}

/* Names are unique: each further one comes later in the list. */
static void put_map(struct maker *m)
{
    const unsigned n_names = sizeof names / sizeof names[0];
    put(m, "{");
    for (unsigned at = take(m, 4), i = 0; at < n_names && i < 4; at += 1 + take(m, 3), i++) {
        put(m, "%s\"%s\":", i > 0 ? "," : "", names[at]);
        put_schema(m);
    }
    put(m, "}");
}

static void put_value(struct maker *m, enum form form)
{
    switch (form) {
    case A_SCHEMA:
        put_schema(m);
        break;
    case SCHEMA_MAP:
        put_map(m);
        break;
    case COUNT:
        put(m, "%s", PICK(m, counts));
        break;
    case NUMBER:
        put(m, "%s", PICK(m, numbers));
        break;
    case PATTERN:
        put(m, "\"");
        put_pattern(m);
        put(m, "\"");
        break;
    case FORMAT:
        put(m, "\"%s\"", PICK(m, formats));
        break;
    case FLAG:
        put(m, take(m, 8) == 7 ? "true" : "false");
        break;
    case ONE_VALUE:
        put_literal(m);
        break;
    case REFERENCE:
        put(m, "\"%s\"", PICK(m, pointers));
        break;
    default:
        if (form == TYPES && take(m, 4) > 0)
            put(m, "\"%s\"", PICK(m, types));
        else
            put_list(m, form);
    }
}

static void put_keywords(struct maker *m, unsigned n, uint64_t used)
{
    const int has_others = used != 0;
    for (unsigned i = 0; i < n && m->at < m->n; i++) {
        const unsigned drawn = take(m, 256); /* keywords that are refused are rare */
        unsigned k = drawn < 250 ? drawn % N_ENFORCED
                                 : N_ENFORCED + drawn % (N_KEYWORDS - N_ENFORCED);
        for (unsigned tries = 0; (used >> k & 1) != 0 && tries < N_KEYWORDS; tries++)
            k = (k + 1) % N_KEYWORDS;
        used |= 1ull << k;
        put(m, "%s\"%s\":", has_others || i > 0 ? "," : "", keywords[k].name);
        const unsigned wrong = take(m, 64); /* sometimes a value of the wrong type */
        put_value(m, wrong == 63 ? (enum form)take(m, N_FORMS) : keywords[k].form);
    }
}

static void put_schema(struct maker *m)
{
    const unsigned kind = take(m, 12);
    if (m->depth >= DEPTH || m->at >= m->n || kind < 3) {
        if (kind == 0)
            put(m, take(m, 4) == 3 ? "false" : "true");
        else
            put(m, "{\"$ref\":\"%s\"}", PICK(m, pointers));
        return;
    }
    m->depth++;
    put(m, "{");
    put_keywords(m, kind % N_KEYWORDS_MAX, 0);
    put(m, "}");
    m->depth--;
}

/* The root has definitions that references can point to. */
static void put_root(struct maker *m)
{
    put(m, "{\"title\":\"\"");
    put_keywords(m, 1 + take(m, N_KEYWORDS_MAX), 1ull << DEFS | 1ull << TITLE);
    put(m, ",\"$defs\":{\"a\":");
    put_schema(m);
    put(m, ",\"b\":");
    put_schema(m);
    put(m, ",\"c\":");
    put_schema(m);
    put(m, ",\"x~y/z\":{\"type\":\"null\"}}}");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_BYTES];
    struct maker m = {.data = data, .n = size, .text = text};
    const uint32_t seed = take(&m, 256);
    put_root(&m);
    const int is_taken = try_schema(text, m.n_text, seed, 1);
    if (getenv("FLASHMOE_SHOW") != NULL)
        (void)printf("%s: %.*s\n", is_taken ? "compiles" : "refused", (int)m.n_text, text);
    return 0;
}
