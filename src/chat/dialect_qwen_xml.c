/* The dialect of Qwen3-Coder and Qwen3.5, with or without the outer tag:
 *
 *   <tool_call> <function=f> <parameter=K> V </parameter> ... </function> </tool_call>
 *
 * becomes {"K": V, ...} (chat/toolcall_value.h), with the types of the tool's schema. One newline
 * at the start of a value and one at its end are dropped.
 *
 * Qwen3.5 sometimes calls a tool without ending its reasoning first; such a call ends it. A call
 * inside reasoning or without the outer tag must have the name of a tool, if the tools are known:
 * the text may only describe calls. */
#include "chat/dialect.h"
#include "chat/tool_schema.h"
#include "chat/toolcall_value.h"

enum { AT_FUNCTION, IN_NAME, AT_PARAMETER, IN_KEY, IN_VALUE, AT_CLOSE };

enum { TAG_CALL_END = 1, TAG_FUNCTION = 2, TAG_END_FUNCTION = 4, TAG_PARAMETER = 8 };

#define FUNCTION "<function="

static const struct marker tags[] = {
    {"</tool_call>", TAG_CALL_END},
    {FUNCTION, TAG_FUNCTION},
    {"</function>", TAG_END_FUNCTION},
    {"<parameter=", TAG_PARAMETER},
    {NULL, 0},
};

static const struct dialect_opener openers[] = {
    {.text = "<tool_call>", .first = '<', .ends_reasoning = true},
    {.text = FUNCTION, .stray = "</tool_call>"},
    {.text = NULL},
};

static bool is_bare(const struct toolcall *tc)
{
    return tc->opener == &openers[1];
}

static enum toolcall_status more_if(bool ok)
{
    return ok ? TOOLCALL_MORE : TOOLCALL_BROKEN;
}

static enum toolcall_status go(struct toolcall *tc, uint8_t state)
{
    tc->state = state;
    return TOOLCALL_MORE;
}

static const struct value_end value_end = {"</parameter>", tags, TAG_PARAMETER | TAG_END_FUNCTION,
                                           true};

static enum toolcall_status end_function(struct toolcall *tc)
{
    const bool ok = toolcall_end_values(tc);
    tc->state = AT_CLOSE;
    return !ok ? TOOLCALL_BROKEN : is_bare(tc) ? TOOLCALL_WHOLE : TOOLCALL_MORE;
}

static enum toolcall_status begin_key(struct toolcall *tc)
{
    toolcall_begin_key(tc);
    return go(tc, IN_KEY);
}

static enum toolcall_status push_value(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_value(tc, byte, &value_end, &tag))
        return TOOLCALL_BROKEN;
    return tag == 0 ? TOOLCALL_MORE : tag == TAG_PARAMETER ? begin_key(tc) : end_function(tc);
}

static enum toolcall_status push_key(struct toolcall *tc, uint8_t byte)
{
    bool is_end;
    if (!toolcall_push_word(tc, &tc->keys, tc->key_at, byte, '>', &is_end))
        return TOOLCALL_BROKEN;
    if (!is_end)
        return TOOLCALL_MORE;
    tc->state = IN_VALUE;
    return more_if(toolcall_begin_value(tc, toolcall_key_types(tc)));
}

static enum toolcall_status push_parameter(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, TAG_PARAMETER | TAG_END_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_PARAMETER      ? begin_key(tc)
           : tag == TAG_END_FUNCTION ? end_function(tc)
                                        : TOOLCALL_MORE;
}

static enum toolcall_status push_function(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, TAG_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_FUNCTION ? go(tc, IN_NAME) : TOOLCALL_MORE;
}

static enum toolcall_status push_close(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!toolcall_push_tag(tc, byte, tags, TAG_CALL_END | TAG_FUNCTION, &tag))
        return TOOLCALL_BROKEN;
    tc->next = FUNCTION;
    return tag == TAG_CALL_END   ? TOOLCALL_WHOLE
           : tag == TAG_FUNCTION ? TOOLCALL_NEXT
                                 : TOOLCALL_MORE;
}

static enum toolcall_status push(struct toolcall *tc, uint8_t byte)
{
    bool is_end = false;
    if (tc->state == AT_FUNCTION && is_bare(tc))
        tc->state = IN_NAME;
    switch (tc->state) {
    case AT_FUNCTION:
        return push_function(tc, byte);
    case IN_NAME:
        if (!toolcall_push_word(tc, &tc->name, 0, byte, '>', &is_end))
            return TOOLCALL_BROKEN;
        if (is_end && (is_bare(tc) || tc->is_early) && tc->tools != NULL &&
            !tool_schema_has(tc->tools, tc->name.data))
            return TOOLCALL_BROKEN; /* text about functions, not a call */
        return is_end ? go(tc, AT_PARAMETER) : TOOLCALL_MORE;
    case AT_PARAMETER:
        return push_parameter(tc, byte);
    case IN_KEY:
        return push_key(tc, byte);
    case IN_VALUE:
        return push_value(tc, byte);
    default:
        return push_close(tc, byte);
    }
}

static const char *const tokens[] = {"<tool_call>", "</tool_call>", NULL};

extern const struct dialect dialect_qwen_xml;
const struct dialect dialect_qwen_xml = {
    .name = "qwen-xml",
    .in_template = "<tool_call>",
    .not_in_template = "<arg_key>",
    .may_restore = true,
    .tokens = tokens,
    .openers = openers,
    .push = push,
};
