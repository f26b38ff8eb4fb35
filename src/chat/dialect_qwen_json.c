/* The dialect of Qwen3 and Hermes: a JSON object in a tag.
 *
 *   <tool_call> {"name": "f", "arguments": {...}} </tool_call> */
#include "chat/dialect.h"

#define OPEN "<tool_call>"
#define CLOSE "</tool_call>"

enum { TAG_CLOSE = 1 };

static const struct marker tags[] = {{CLOSE, TAG_CLOSE}, {NULL, 0}};

static const struct dialect_opener openers[] = {
    {.text = OPEN, .first = '{'},
    {.text = NULL},
};

static enum toolcall_status push(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!tc->is_complete)
        return toolcall_push_object(tc, byte);
    if (!toolcall_push_tag(tc, byte, tags, TAG_CLOSE, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_CLOSE ? TOOLCALL_WHOLE : TOOLCALL_MORE;
}

static const char *const tokens[] = {OPEN, CLOSE, NULL};

static const struct grammar_call call = {
    .separator = "\n",
    .open = OPEN,
    .open_end = "\n",
    .before_name = "{ \"name\": \"",
    .before_arguments = ", \"arguments\": ",
    .after_arguments = " }",
    .close_begin = "\n",
    .close = CLOSE,
};

extern const struct dialect dialect_qwen_json;
const struct dialect dialect_qwen_json = {
    .name = "qwen-json",
    .in_template = OPEN,
    .may_restore = true,
    .tokens = tokens,
    .openers = openers,
    .push = push,
    .call = &call,
};
