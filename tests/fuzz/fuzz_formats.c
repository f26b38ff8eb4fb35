/* Fuzzes a model's answer in the formats of families other than Qwen, with the same promises as
 * fuzz_toolcall.c. The first byte of the input and a bit of the fourth choose dialect and options,
 * the other three how the answer is cut, and the rest is the answer; a byte 1 begins or ends the
 * text of special tokens and is not part of it. With FLASHMOE_FUZZ_FORMAT=NAME in the environment
 * every input is in that dialect. */
#include "chat/dialect.h"
#include "message_record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"},"
    "\"sn\":{\"type\":[\"string\",\"null\"]}}}}}]";

/* Every second marker is a special token. */
static bool is_special(const void *ctx, const char *text)
{
    return (strlen(text) + *(const uint8_t *)ctx) % 2 == 0;
}

static const char *const names[][3] = {{"harmony"},        {"glm", "qwen-json"}, {"minimax"},
                                       {"dsml-functions"}, {"dsml-tools"},       {"kimi"},
                                       {"deepseek"},       {"kimi", "minimax"},  {"deepseek-v3"}};
enum { N_FORMATS = sizeof names / sizeof names[0] };

/* Returns the row of the format that the environment names, or N_FORMATS. */
static unsigned only_format(void)
{
    const char *wanted = getenv("FLASHMOE_FUZZ_FORMAT");
    unsigned row = wanted != NULL ? 0 : N_FORMATS;
    while (row < N_FORMATS && strcmp(names[row][0], wanted) != 0)
        row++;
    require(wanted == NULL || row < N_FORMATS, "FLASHMOE_FUZZ_FORMAT is a format");
    return row;
}

static const struct dialect *const *dialects_of(unsigned which)
{
    static const struct dialect *list[3];
    static unsigned only = N_FORMATS + 1;
    if (only > N_FORMATS)
        only = only_format();
    const unsigned row = only < N_FORMATS ? only : which % N_FORMATS;
    for (unsigned i = 0; i < 3; i++)
        list[i] = names[row][i] != NULL ? dialect_find(names[row][i]) : NULL;
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
        .dialects = dialects_of((data[0] & 7u) | (data[3] & 64u) >> 3),
        .is_thinking = (data[0] & 8) != 0,
        .hold_calls = (data[0] & 16) != 0,
        .is_special = (data[0] & 32) != 0 ? is_special : NULL,
        .special_ctx = data,
        .call_bytes = (data[0] & 64) != 0 ? 90 : 0,
        .is_without_calls = (data[0] & 192) == 128,
        .is_call = (data[0] & 192) == 192,
        .tools = (data[3] & 128) != 0 ? tools : NULL,
        .id_seed = data[0],
    };
    uint8_t *answer = malloc(size);
    bool *kinds = calloc(size, sizeof *kinds);
    require(answer != NULL && kinds != NULL, "there is memory");
    bool is_marked = false;
    size_t n = 0;
    for (size_t i = HEAD_BYTES; i < size; i++) {
        if (data[i] == 1) {
            is_marked = !is_marked;
            continue;
        }
        kinds[n] = is_marked;
        answer[n++] = data[i];
    }
    check_cuts(&options, data, answer, kinds, n);
    free(answer);
    free(kinds);
    return 0;
}
