/* Chat templates: the Jinja language as Hugging Face's transformers sets it up (an immutable
 * sandbox, trim_blocks, lstrip_blocks, break and continue, {% generation %}, raise_exception,
 * strftime_now, tojson without HTML escapes). What is rendered is what Python's jinja2 renders.
 * `include`, `import`, `extends`, `block` and autoescaping are refused; integers have 64 bits.
 *
 * A template owns its tree, is immutable after compiling and may be rendered by any number of
 * threads at once. A rendering belongs to the caller (jinja_rendering_clear).
 *
 * Every byte of a rendering knows who wrote it. The template's own text, the special tokens and
 * everything the interpreter adds (quotes of JSON, digits of a number) are the template's; strings
 * of the conversation keep their origin through every filter, method and concatenation, byte by
 * byte. A character that is made of another one, as by `upper` or `tojson`, has its origin.
 *
 * Compiling fails with FM_ERR_FORMAT, or FM_ERR_UNSUPPORTED for what is refused; rendering fails
 * with FM_ERR_FORMAT, FM_ERR_ARG where the template itself refuses the conversation
 * (raise_exception), or FM_ERR_NOMEM. Both sentences name the line of the template. A template
 * that runs away ends in an error that names the limit. */
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

/* The largest real template has 20 KB and some 100 names. */
#define JINJA_SOURCE_BYTES (256u << 10)
#define JINJA_NAMES 2000
/* Nesting of expressions and statements in the source: below 20 in real templates. */
#define JINJA_NESTING 100
/* Nesting while it runs: calls, expressions, values within values. */
#define JINJA_DEPTH 400
#define JINJA_RANGE 100000 /* elements of range(), as in jinja2's sandbox */

/* 0 stands for the value in the comment. Real templates take some 100 steps for a message, and
 * twice the conversation in memory. */
struct jinja_limits {
    uint64_t n_steps;      /* 20 million; long strings count one more for every 64 bytes */
    uint64_t memory_bytes; /* 512 MiB: all strings and lists together, nothing is given back */
    uint64_t output_bytes; /* 64 MiB: what can be tokenized */
};

struct jinja;

/* `name` stands for the template in messages. */
int jinja_compile(const char *name, const char *text, size_t bytes, struct jinja **out,
                  struct fm_error *err);
void jinja_free(struct jinja *jinja); /* accepts NULL */

enum jinja_origin {
    JINJA_TEMPLATE, /* the template, special tokens, known roles */
    JINJA_DATA,     /* anybody */
    JINJA_ANSWER,   /* what the model is said to have written: content of assistant messages */
};

struct jinja_input {
    /* The variables: a JSON object. `messages` is known: a role everybody uses ("user", "tool")
     * counts as the template's, content and reasoning of an assistant's as its answer. */
    const json_t *variables;
    /* Variables that count as the template's own, such as bos_token; may be NULL. */
    const json_t *trusted;
    int64_t now_s;         /* for strftime_now: seconds since 1970 */
    int32_t now_offset_s;  /* what local time is ahead of UTC */
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
