/* The dialect of GLM-4.5, 4.6 and 4.7:
 *
 *   <tool_call>f <arg_key>K</arg_key> <arg_value>V</arg_value> ... </tool_call>
 *
 * White space between the tags may be missing. Strings are written as they are, other values as
 * JSON; the schema of the tool decides (chat/toolcall_value.h). A name has no white space. */
#include "chat/dialect.h"
#include "chat/toolcall_value.h"

#define OPEN "<tool_call>"
#define CLOSE "</tool_call>"

enum { IN_NAME, AT_KEY, IN_KEY, AFTER_KEY, AT_VALUE, IN_VALUE };
enum { TAG_CLOSE = 1, TAG_KEY = 2, TAG_END_KEY = 4, TAG_VALUE = 8 };

static const struct marker tags[] = {
    {CLOSE, TAG_CLOSE},         {"<arg_key>", TAG_KEY},     {"</arg_key>", TAG_END_KEY},
    {"<arg_value>", TAG_VALUE}, {NULL, 0},
};

static const struct dialect_opener openers[] = {
    {.text = OPEN},
    {.text = NULL},
};

static const struct value_end value_end = {"</arg_value>", tags, TAG_KEY | TAG_CLOSE, false};

static enum toolcall_status go(struct toolcall *tc, uint8_t state)
{
    tc->state = state;
    return TOOLCALL_MORE;
}

static enum toolcall_status push_name(struct toolcall *tc, uint8_t byte)
{
    const bool is_end = byte == '<' || toolcall_is_space(byte);
    bool was_end;
    if (!toolcall_push_word(tc, &tc->name, 0, is_end ? '<' : byte, '<', &was_end))
        return TOOLCALL_BROKEN;
    if (!is_end)
        return TOOLCALL_MORE;
    if (byte == '<')
        tc->tail[tc->n_tail++] = '<';
    return go(tc, AT_KEY);
}

/* Goes on after a tag before a key, or in place of one. */
static enum toolcall_status take_tag(struct toolcall *tc, unsigned tag)
{
    if (tag == TAG_CLOSE)
        return toolcall_end_values(tc) ? TOOLCALL_WHOLE : TOOLCALL_BROKEN;
    toolcall_begin_key(tc);
    return go(tc, IN_KEY);
}

static enum toolcall_status push_key(struct toolcall *tc, uint8_t byte)
{
    bool is_end;
    if (!toolcall_push_word(tc, &tc->keys, tc->key_at, byte, '<', &is_end))
        return TOOLCALL_BROKEN;
    if (!is_end)
        return TOOLCALL_MORE;
    tc->tail[tc->n_tail++] = '<';
    return go(tc, AFTER_KEY);
}

/* Reads one tag of the set and goes to `next`, or on to what the tag says. */
static enum toolcall_status push_tag(struct toolcall *tc, uint8_t byte, unsigned set, uint8_t next)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, set, &tag))
        return TOOLCALL_BROKEN;
    if (tag == 0)
        return TOOLCALL_MORE;
    if (tag == TAG_VALUE && !toolcall_begin_value(tc, toolcall_key_types(tc)))
        return TOOLCALL_BROKEN;
    return tag == TAG_KEY || tag == TAG_CLOSE ? take_tag(tc, tag) : go(tc, next);
}

static enum toolcall_status push(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    switch (tc->state) {
    case IN_NAME:
        return push_name(tc, byte);
    case AT_KEY:
        return push_tag(tc, byte, TAG_KEY | TAG_CLOSE, IN_KEY);
    case IN_KEY:
        return push_key(tc, byte);
    case AFTER_KEY:
        return push_tag(tc, byte, TAG_END_KEY, AT_VALUE);
    case AT_VALUE:
        return push_tag(tc, byte, TAG_VALUE, IN_VALUE);
    default:
        if (!toolcall_push_value(tc, byte, &value_end, &tag))
            return TOOLCALL_BROKEN;
        return tag == 0 ? TOOLCALL_MORE : take_tag(tc, tag);
    }
}

static const char *const tokens[] = {OPEN, CLOSE, "<arg_key>", "</arg_key>", "<arg_value>",
                                     "</arg_value>", NULL};
static const char *const stops[] = {"<|user|>", "<|observation|>", "<|endoftext|>", NULL};

extern const struct dialect dialect_glm;
/* A forced call is written as qwen-json writes it, whose opener is the same. */
const struct dialect dialect_glm = {
    .name = "glm",
    .in_template = OPEN,
    .also_in_template = "<arg_key>",
    .may_begin_closed = true,
    .tokens = tokens,
    .stops = stops,
    .openers = openers,
    .push = push,
};
