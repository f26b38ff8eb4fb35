/* Chat templates: the Jinja language as Hugging Face's transformers configures it (an immutable
 * sandbox, trim_blocks, lstrip_blocks, break and continue, {% generation %}, raise_exception,
 * strftime_now, tojson without HTML escapes). Renders what Python's jinja2 renders. `include`,
 * `import`, `extends`, `block` and autoescaping are refused; integers have 64 bits.
 *
 * A template owns its tree and is immutable after compiling, so any number of threads may render it
 * at once. The caller owns a rendering (jinja_rendering_clear).
 *
 * Every byte of a rendering has an origin. The template's own text, the special tokens and
 * everything the interpreter adds (quotes of JSON, digits of a number) belong to the template.
 * Strings of the conversation keep their origin through every filter, method and concatenation,
 * byte by byte. A character derived from another one, as by `upper` or `tojson`, inherits its
 * origin.
 *
 * Compiling fails with FM_ERR_FORMAT, or with FM_ERR_UNSUPPORTED for refused features. Rendering
 * fails with FM_ERR_FORMAT, with FM_ERR_ARG if the template itself refuses the conversation
 * (raise_exception) or a limit is exceeded, or with FM_ERR_NOMEM. Messages name the line of the
 * template. A template that does not end fails with a message that names the limit. */
#ifndef FLASHMOE_JINJA_JINJA_H
#define FLASHMOE_JINJA_JINJA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The largest real template has 20 KB and about 100 names. */
#define JINJA_SOURCE_BYTES (256u << 10)
#define JINJA_NAMES 2000
/* Maximum nesting of expressions and statements in the source; below 20 in real templates. */
#define JINJA_NESTING 100
/* Maximum nesting while rendering: calls, expressions, values within values. */
#define JINJA_DEPTH 400
#define JINJA_RANGE 100000 /* elements of range(), as in jinja2's sandbox */

/* 0 selects the default given in the comment. Real templates take about 100 steps per message, and
 * memory for twice the conversation. */
struct jinja_limits {
    uint64_t n_steps;      /* default 20 million; long strings take one more step per 64 bytes */
    uint64_t memory_bytes; /* default 512 MiB for all strings and lists; nothing is freed before the
                            * end */
    uint64_t output_bytes; /* default 64 MiB, the limit of the tokenizer */
};

struct jinja;

/* Compiles a template. `name` stands for it in messages. */
int jinja_compile(const char *name, const char *text, size_t bytes, struct jinja **out,
                  struct fm_error *err);
void jinja_free(struct jinja *jinja); /* accepts NULL */

enum jinja_origin {
    JINJA_TEMPLATE, /* the template, special tokens, known roles */
    JINJA_DATA,     /* any other author */
    JINJA_ANSWER,   /* text attributed to the model: content of assistant messages */
};

struct jinja_input {
    /* The variables, a JSON object. `messages` is handled specially: common roles ("user", "tool")
     * count as the template's; content and reasoning of assistant messages count as answers. */
    const json_t *variables;
    /* Variables that count as the template's own, such as bos_token; may be NULL. */
    const json_t *trusted;
    int64_t now_s;         /* for strftime_now: seconds since 1970 */
    int32_t now_offset_s;  /* offset of local time from UTC */
    struct jinja_limits limits;
};

struct jinja_rendering {
    char *text; /* NUL-terminated, UTF-8 */
    size_t bytes;
    uint8_t *origins; /* [bytes] enum jinja_origin */
};

int jinja_render(const struct jinja *jinja, const struct jinja_input *input,
                 struct jinja_rendering *out, struct fm_error *err);
void jinja_rendering_clear(struct jinja_rendering *rendering); /* accepts a zeroed one */

#ifdef __cplusplus
}
#endif
#endif
