/* Calls as tags with attributes. MiniMax-M2, and DeepSeek's DSML, whose tags begin with ｜DSML｜
 * and which calls the block function_calls (V3.2) or tool_calls (V4):
 *
 *   <minimax:tool_call>
 *   <invoke name="f"> <parameter name="K">V</parameter> ... </invoke> ...
 *   </minimax:tool_call>
 *
 * A parameter of DSML says what it is: string="true" for a string, string="false" for JSON. Without
 * that attribute, the schema of the tool decides (chat/toolcall_value.h). An <invoke> may contain
 * the arguments as one JSON object instead; forced calls are written that way. */
#include "chat/dialect.h"
#include "chat/tool_schema.h"
#include "chat/toolcall_value.h"

enum { AT_INVOKE, IN_NAME, AFTER_NAME, AT_PARAMETER, IN_KEY, AFTER_KEY, IN_VALUE, IN_JSON,
       AT_END, AT_CLOSE };

enum { TAG_INVOKE = 1, TAG_END = 2, TAG_PARAMETER = 4, TAG_CLOSE = 8 };

#define ATTRIBUTE_BYTES 24

/* The tags of a dialect: <invoke, </invoke>, <parameter, the end of the block. */
struct form {
    struct marker tags[5];
    struct value_end end;
};

static enum toolcall_status go(struct toolcall *tc, uint8_t state)
{
    tc->state = state;
    return TOOLCALL_MORE;
}

static enum toolcall_status begin_key(struct toolcall *tc)
{
    toolcall_begin_key(tc);
    return go(tc, IN_KEY);
}

static enum toolcall_status end_invoke(struct toolcall *tc)
{
    if (!tc->is_complete && !toolcall_end_values(tc))
        return TOOLCALL_BROKEN;
    return go(tc, AT_CLOSE);
}

/* Reads the rest of a parameter's tag and starts the value. */
static enum toolcall_status push_attributes(struct toolcall *tc, uint8_t byte)
{
    static const char is_string[] = "string=\"true\"", is_json[] = "string=\"false\"";
    if (byte != '>') {
        if (tc->n_tail == ATTRIBUTE_BYTES || byte < 0x20)
            return TOOLCALL_BROKEN;
        if (byte != ' ')
            tc->tail[tc->n_tail++] = (char)byte;
        return TOOLCALL_MORE;
    }
    const size_t n = tc->n_tail;
    tc->n_tail = 0;
    tc->state = IN_VALUE;
    unsigned types;
    if (n == 0)
        types = toolcall_key_types(tc);
    else if (n == sizeof is_string - 1 && memcmp(tc->tail, is_string, n) == 0)
        types = 0;
    else if (n == sizeof is_json - 1 && memcmp(tc->tail, is_json, n) == 0)
        types = TOOL_NUMBER | TOOL_BOOLEAN | TOOL_ARRAY | TOOL_OBJECT | TOOL_NULL;
    else
        return TOOLCALL_BROKEN;
    return toolcall_begin_value(tc, types) ? TOOLCALL_MORE : TOOLCALL_BROKEN;
}

static enum toolcall_status push_parameter(struct toolcall *tc, uint8_t byte,
                                           const struct form *form)
{
    unsigned tag;
    if (tc->n_tail == 0 && byte == '{') {
        tc->state = IN_JSON;
        return toolcall_push_json(tc, byte) ? TOOLCALL_MORE : TOOLCALL_BROKEN;
    }
    if (!toolcall_push_tag(tc, byte, form->tags, TAG_PARAMETER | TAG_END, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_PARAMETER ? begin_key(tc) : tag == TAG_END ? end_invoke(tc) : TOOLCALL_MORE;
}

static enum toolcall_status push_value(struct toolcall *tc, uint8_t byte, const struct form *form)
{
    unsigned tag;
    if (!toolcall_push_value(tc, byte, &form->end, &tag))
        return TOOLCALL_BROKEN;
    return tag == 0 ? TOOLCALL_MORE : tag == TAG_PARAMETER ? begin_key(tc) : end_invoke(tc);
}

static enum toolcall_status push_json(struct toolcall *tc, uint8_t byte)
{
    if (!toolcall_push_json(tc, byte))
        return TOOLCALL_BROKEN;
    return tc->is_complete ? go(tc, AT_END) : TOOLCALL_MORE;
}

/* Reads a name and its closing quote, then goes to `next`. */
static enum toolcall_status push_name(struct toolcall *tc, struct text_buffer *name, size_t at,
                                      uint8_t byte, uint8_t next)
{
    bool is_end;
    if (!toolcall_push_word(tc, name, at, byte, '"', &is_end))
        return TOOLCALL_BROKEN;
    return is_end ? go(tc, next) : TOOLCALL_MORE;
}

static enum toolcall_status push_close(struct toolcall *tc, uint8_t byte, const struct form *form)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, form->tags, TAG_INVOKE | TAG_CLOSE, &tag))
        return TOOLCALL_BROKEN;
    tc->next = form->tags[0].text;
    return tag == TAG_CLOSE ? TOOLCALL_WHOLE : tag == TAG_INVOKE ? TOOLCALL_NEXT : TOOLCALL_MORE;
}

static enum toolcall_status push(struct toolcall *tc, uint8_t byte, const struct form *form)
{
    unsigned tag;
    if (tc->state == AT_INVOKE && tc->opener->is_inner)
        tc->state = IN_NAME;
    switch (tc->state) {
    case AT_INVOKE:
        if (!toolcall_push_tag(tc, byte, form->tags, TAG_INVOKE, &tag))
            return TOOLCALL_BROKEN;
        return tag == TAG_INVOKE ? go(tc, IN_NAME) : TOOLCALL_MORE;
    case IN_NAME:
        return push_name(tc, &tc->name, 0, byte, AFTER_NAME);
    case AFTER_NAME:
        return byte == '>' ? go(tc, AT_PARAMETER) : TOOLCALL_BROKEN;
    case AT_PARAMETER:
        return push_parameter(tc, byte, form);
    case IN_KEY:
        return push_name(tc, &tc->keys, tc->key_at, byte, AFTER_KEY);
    case AFTER_KEY:
        return push_attributes(tc, byte);
    case IN_VALUE:
        return push_value(tc, byte, form);
    case IN_JSON:
        return push_json(tc, byte);
    case AT_END:
        if (!toolcall_push_tag(tc, byte, form->tags, TAG_END, &tag))
            return TOOLCALL_BROKEN;
        return tag == TAG_END ? end_invoke(tc) : TOOLCALL_MORE;
    default:
        return push_close(tc, byte, form);
    }
}

/* ---- MiniMax ------------------------------------------------------------------------------ */

#define MINIMAX_OPEN "<minimax:tool_call>"
#define MINIMAX_CLOSE "</minimax:tool_call>"

static const struct form minimax = {
    .tags = {{"<invoke name=\"", TAG_INVOKE}, {"</invoke>", TAG_END},
             {"<parameter name=\"", TAG_PARAMETER}, {MINIMAX_CLOSE, TAG_CLOSE}, {NULL, 0}},
    .end = {"</parameter>", minimax.tags, TAG_PARAMETER | TAG_END, false},
};

static const struct dialect_opener minimax_openers[] = {
    {.text = MINIMAX_OPEN, .first = '<'},
    {.text = "<invoke name=\"", .is_inner = true},
    {.text = NULL},
};

static enum toolcall_status push_minimax(struct toolcall *tc, uint8_t byte)
{
    return push(tc, byte, &minimax);
}

static const char *const minimax_tokens[] = {MINIMAX_OPEN, MINIMAX_CLOSE, NULL};
static const char *const minimax_stops[] = {"[e~[", NULL};

static const struct grammar_call minimax_call = {
    .separator = "\n",
    .open = MINIMAX_OPEN,
    .open_end = "\n",
    .before_name = "<invoke name=\"",
    .is_bare = true,
    .before_arguments = "\">\n",
    .after_arguments = "\n</invoke>",
    .close_begin = "\n",
    .close = MINIMAX_CLOSE,
};

extern const struct dialect dialect_minimax;
const struct dialect dialect_minimax = {
    .name = "minimax",
    .in_template = MINIMAX_OPEN,
    .tokens = minimax_tokens,
    .stops = minimax_stops,
    .openers = minimax_openers,
    .push = push_minimax,
    .call = &minimax_call,
};

/* ---- DSML --------------------------------------------------------------------------------- */

#define DSML "｜DSML｜"

static const char *const dsml_tokens[] = {DSML, NULL};
static const char *const dsml_stops[] = {"<｜end▁of▁sentence｜>", NULL};

#define DSML_DIALECT(id, label, block)                                                             \
    static const struct form id = {                                                               \
        .tags = {{"<" DSML "invoke name=\"", TAG_INVOKE}, {"</" DSML "invoke>", TAG_END},          \
                 {"<" DSML "parameter name=\"", TAG_PARAMETER},                                    \
                 {"</" DSML block ">", TAG_CLOSE}, {NULL, 0}},                                     \
        .end = {"</" DSML "parameter>", id.tags, TAG_PARAMETER | TAG_END, false},                  \
    };                                                                                             \
    static const struct dialect_opener id##_openers[] = {                                          \
        {.text = "<" DSML block ">", .first = '<', .ends_reasoning = true},                        \
        {.text = "<" DSML "invoke name=\"", .is_inner = true},                                     \
        {.text = NULL},                                                                            \
    };                                                                                             \
    static enum toolcall_status push_##id(struct toolcall *tc, uint8_t byte)                       \
    {                                                                                              \
        return push(tc, byte, &id);                                                                \
    }                                                                                              \
    static const struct grammar_call id##_call = {                                                 \
        .separator = "\n",                                                                         \
        .open = "<" DSML block ">",                                                                \
        .open_end = "\n",                                                                          \
        .before_name = "<" DSML "invoke name=\"",                                                  \
        .is_bare = true,                                                                           \
        .before_arguments = "\">\n",                                                               \
        .after_arguments = "\n</" DSML "invoke>",                                                  \
        .close_begin = "\n",                                                                       \
        .close = "</" DSML block ">",                                                              \
    };                                                                                             \
    extern const struct dialect dialect_##id;                                                      \
    const struct dialect dialect_##id = {                                                          \
        .name = label,                                                                             \
        .in_template = DSML,                                                                       \
        .also_in_template = block ">",                                                             \
        .may_begin_closed = true,                                                                  \
        .tokens = dsml_tokens,                                                                     \
        .stops = dsml_stops,                                                                       \
        .openers = id##_openers,                                                                   \
        .push = push_##id,                                                                         \
        .call = &id##_call,                                                                        \
    }

DSML_DIALECT(dsml_functions, "dsml-functions", "function_calls");
DSML_DIALECT(dsml_tools, "dsml-tools", "tool_calls");
