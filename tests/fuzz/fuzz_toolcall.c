/* Fuzzes a model's answer. The first byte of the input chooses the options, the next three how the
 * answer is cut, and the rest is the answer. The events must be the same for every cut, their texts
 * must add up to the answer, complete calls must have JSON objects as arguments, and characters
 * must stay whole. */
#include "chat/dialect.h"
#include "message_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
    "\"a\":{\"type\":\"array\"},\"o\":{\"type\":\"object\"},\"z\":{\"type\":\"null\"},"
    "\"sn\":{\"type\":[\"string\",\"null\"]},\"is\":{\"anyOf\":[{\"type\":\"integer\"},"
    "{\"type\":\"string\"}]}}}}}]";

/* Bit 0: JSON, bit 1: XML. */
static const struct dialect *const *dialects_of(unsigned which)
{
    static const struct dialect *list[3];
    unsigned n = 0;
    if ((which & 1) != 0)
        list[n++] = dialect_find("qwen-json");
    if ((which & 2) != 0)
        list[n++] = dialect_find("qwen-xml");
    list[n] = NULL;
    return list;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static json_t *tools;
    if (tools == NULL)
        tools = json_loads(tools_text, 0, NULL);
    if (size < HEAD_BYTES)
        return 0;
    const struct message_options options = {
        .is_thinking = (data[0] & 1) != 0,
        .hold_calls = (data[0] & 2) != 0,
        .tools = (data[0] & 4) != 0 ? tools : NULL,
        .dialects = dialects_of(3u - (data[0] >> 3 & 3u)),
        .call_bytes = (data[0] & 32) != 0 ? 50 : 0,
        .id_seed = data[0],
    };
    check_cuts(&options, data, data + HEAD_BYTES, NULL, size - HEAD_BYTES);
    return 0;
}
