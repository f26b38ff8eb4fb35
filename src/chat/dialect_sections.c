/* Calls in a section, with markers around every part and JSON as arguments. Kimi-K2:
 *
 *   <|tool_calls_section_begin|>
 *   <|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{...}<|tool_call_end|> ...
 *   <|tool_calls_section_end|>
 *
 * where functions.f:0 is the id of the call, and DeepSeek-V3.1:
 *
 *   <｜tool▁calls▁begin｜>
 *   <｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜> ...
 *   <｜tool▁calls▁end｜>
 *
 * DeepSeek-V3 and R1 write the type of a call before the separator, and after it the name on a line
 * of its own and the arguments as a block of code:
 *
 *   <｜tool▁call▁begin｜>function<｜tool▁sep｜>f
 *   ```json
 *   {...}
 *   ```<｜tool▁call▁end｜> ...
 *
 * Both forms are read whichever one the template shows: if the arguments do not follow the
 * separator, a name does. The fences and the marker after a call may be missing, and so may the
 * markers of the section. White space between the markers is skipped. */
#include "chat/dialect.h"
#include "chat/toolcall_value.h"

enum { AT_CALL, IN_NAME, AT_ARGUMENTS, IN_ARGUMENTS, AT_END, AT_NEXT, AT_LINE, IN_LINE, AT_FENCE,
       IN_FENCE };
enum { TAG_CALL = 1, TAG_ARGUMENTS = 2, TAG_END = 4, TAG_CLOSE = 8, TAG_FENCE = 16,
       TAG_END_FENCE = 32 };

static enum toolcall_status go(struct toolcall *tc, uint8_t state)
{
    tc->state = state;
    return TOOLCALL_MORE;
}

/* Collects the text before the marker of the arguments in `id`. */
static enum toolcall_status push_name(struct toolcall *tc, uint8_t byte)
{
    if (byte == '<') {
        tc->tail[tc->n_tail++] = '<';
        return go(tc, AT_ARGUMENTS);
    }
    const bool is_blank = toolcall_is_space(byte) && tc->id.n == 0;
    return is_blank || (tc->id.n < TOOLCALL_NAME_BYTES && toolcall_add_byte(tc, &tc->id, byte))
               ? TOOLCALL_MORE : TOOLCALL_BROKEN;
}

/* Splits functions.NAME:NUMBER; each part but the name may be missing. */
static bool read_id(struct toolcall *tc, bool has_ids)
{
    static const char prefix[] = "functions.";
    const char *text = text_buffer_text(&tc->id);
    for (; tc->id.n > 0 && toolcall_is_space((uint8_t)text[tc->id.n - 1]); tc->id.n--)
        ;
    size_t begin = 0, end = tc->id.n;
    if (has_ids && end > sizeof prefix - 1 && memcmp(text, prefix, sizeof prefix - 1) == 0)
        begin = sizeof prefix - 1;
    size_t digits = end;
    while (has_ids && digits > begin && text[digits - 1] >= '0' && text[digits - 1] <= '9')
        digits--;
    const bool has_number = digits < end && digits > begin + 1 && text[digits - 1] == ':';
    const bool ok = toolcall_set_name(tc, text + begin, (has_number ? digits - 1 : end) - begin);
    if (begin == 0 || !has_number)
        tc->id.n = 0; /* not an id */
    return ok;
}

/* Reads the arguments, which `end` ends: a marker, or the fence after them. */
static enum toolcall_status push_arguments(struct toolcall *tc, uint8_t byte, char end)
{
    if (!tc->is_ready && byte == (uint8_t)end) { /* no arguments */
        tc->tail[tc->n_tail++] = end;
        tc->state = AT_END;
        return toolcall_end_values(tc) ? TOOLCALL_MORE : TOOLCALL_BROKEN;
    }
    if (!toolcall_push_json(tc, byte))
        return TOOLCALL_BROKEN;
    return tc->is_complete ? go(tc, AT_END) : TOOLCALL_MORE;
}

/* Decides what follows the separator: the arguments, or a line with the name. */
static enum toolcall_status push_line(struct toolcall *tc, uint8_t byte)
{
    if (toolcall_is_space(byte))
        return TOOLCALL_MORE;
    if (byte == '{' || byte == '<') {
        tc->state = IN_ARGUMENTS;
        return read_id(tc, false) ? push_arguments(tc, byte, '<') : TOOLCALL_BROKEN;
    }
    tc->id.n = 0; /* it was the type */
    tc->state = IN_LINE;
    return push_name(tc, byte);
}

/* Reads the name up to the end of its line. */
static enum toolcall_status push_named_line(struct toolcall *tc, uint8_t byte)
{
    if (byte != '\n')
        return byte == '<' ? TOOLCALL_BROKEN : push_name(tc, byte);
    return read_id(tc, false) ? go(tc, AT_FENCE) : TOOLCALL_BROKEN;
}

static enum toolcall_status push(struct toolcall *tc, uint8_t byte, const struct marker *tags,
                                 bool has_ids)
{
    /* The markers that may come in each state. */
    static const uint8_t sets[] = {[AT_CALL] = TAG_CALL, [AT_ARGUMENTS] = TAG_ARGUMENTS,
                                   [AT_END] = TAG_END | TAG_END_FENCE | TAG_CALL | TAG_CLOSE,
                                   [AT_NEXT] = TAG_CALL | TAG_CLOSE, [AT_FENCE] = TAG_FENCE};
    unsigned tag;
    if (tc->state == AT_CALL && strcmp(tc->opening, tags[0].text) == 0)
        tc->state = IN_NAME;
    if (tc->state == IN_NAME)
        return push_name(tc, byte);
    if (tc->state == AT_LINE)
        return push_line(tc, byte);
    if (tc->state == IN_LINE)
        return push_named_line(tc, byte);
    if (tc->state == AT_FENCE && tc->n_tail == 0 && byte == '{')
        tc->state = IN_ARGUMENTS;
    if (tc->state == IN_ARGUMENTS || tc->state == IN_FENCE)
        return push_arguments(tc, byte, tc->state == IN_FENCE ? '`' : '<');
    if (!toolcall_push_tag(tc, byte, tags, sets[tc->state], &tag))
        return TOOLCALL_BROKEN;
    if (tag == 0 || tag == TAG_END_FENCE)
        return TOOLCALL_MORE;
    if (tag == TAG_FENCE)
        return go(tc, IN_FENCE);
    if (tag == TAG_ARGUMENTS && !has_ids)
        return go(tc, AT_LINE);
    if (tag == TAG_ARGUMENTS)
        return read_id(tc, true) ? go(tc, IN_ARGUMENTS) : TOOLCALL_BROKEN;
    tc->next = tags[0].text;
    return tag == TAG_CLOSE       ? TOOLCALL_WHOLE
           : tag == TAG_END       ? go(tc, AT_NEXT)
           : tc->state == AT_CALL ? go(tc, IN_NAME)
                                  : TOOLCALL_NEXT;
}

/* ---- Kimi --------------------------------------------------------------------------------- */

#define KIMI_OPEN "<|tool_calls_section_begin|>"
#define KIMI_CLOSE "<|tool_calls_section_end|>"
#define KIMI_CALL "<|tool_call_begin|>"
#define KIMI_ARGUMENTS "<|tool_call_argument_begin|>"
#define KIMI_END "<|tool_call_end|>"

static const struct marker kimi_tags[] = {
    {KIMI_CALL, TAG_CALL}, {KIMI_ARGUMENTS, TAG_ARGUMENTS}, {KIMI_END, TAG_END},
    {KIMI_CLOSE, TAG_CLOSE}, {NULL, 0},
};

static const struct dialect_opener kimi_openers[] = {
    {.text = KIMI_OPEN, .first = '<', .ends_reasoning = true},
    {.text = KIMI_CALL, .ends_reasoning = true},
    {.text = NULL},
};

static enum toolcall_status push_kimi(struct toolcall *tc, uint8_t byte)
{
    return push(tc, byte, kimi_tags, true);
}

static const char *const kimi_tokens[] = {KIMI_OPEN, KIMI_CLOSE, KIMI_CALL, KIMI_ARGUMENTS,
                                          KIMI_END, NULL};
static const char *const kimi_stops[] = {"<|im_end|>", "[EOS]", NULL};

static const struct grammar_call kimi_call = {
    .separator = "",
    .open = KIMI_OPEN,
    .open_end = KIMI_CALL "functions.",
    .before_name = "",
    .is_bare = true,
    .before_arguments = ":0" KIMI_ARGUMENTS,
    .after_arguments = "",
    .close_begin = KIMI_END,
    .close = KIMI_CLOSE,
};

extern const struct dialect dialect_kimi;
const struct dialect dialect_kimi = {
    .name = "kimi",
    .in_template = KIMI_OPEN,
    .has_call_ids = true,
    .tokens = kimi_tokens,
    .stops = kimi_stops,
    .openers = kimi_openers,
    .push = push_kimi,
    .call = &kimi_call,
};

/* ---- DeepSeek ----------------------------------------------------------------------------- */

#define DEEPSEEK_OPEN "<｜tool▁calls▁begin｜>"
#define DEEPSEEK_CLOSE "<｜tool▁calls▁end｜>"
#define DEEPSEEK_CALL "<｜tool▁call▁begin｜>"
#define DEEPSEEK_ARGUMENTS "<｜tool▁sep｜>"
#define DEEPSEEK_END "<｜tool▁call▁end｜>"
#define DEEPSEEK_FENCE "```json"
#define DEEPSEEK_END_FENCE "```"

static const struct marker deepseek_tags[] = {
    {DEEPSEEK_CALL, TAG_CALL}, {DEEPSEEK_ARGUMENTS, TAG_ARGUMENTS}, {DEEPSEEK_END, TAG_END},
    {DEEPSEEK_CLOSE, TAG_CLOSE}, {DEEPSEEK_FENCE, TAG_FENCE}, {DEEPSEEK_END_FENCE, TAG_END_FENCE},
    {NULL, 0},
};

static const struct dialect_opener deepseek_openers[] = {
    {.text = DEEPSEEK_OPEN, .first = '<'},
    {.text = DEEPSEEK_CALL},
    {.text = NULL},
};

static enum toolcall_status push_deepseek(struct toolcall *tc, uint8_t byte)
{
    return push(tc, byte, deepseek_tags, false);
}

static const char *const deepseek_tokens[] = {DEEPSEEK_OPEN, DEEPSEEK_CLOSE, DEEPSEEK_CALL,
                                              DEEPSEEK_ARGUMENTS, DEEPSEEK_END, NULL};
static const char *const deepseek_stops[] = {"<｜end▁of▁sentence｜>", NULL};

static const struct grammar_call deepseek_call = {
    .separator = "",
    .open = DEEPSEEK_OPEN,
    .open_end = DEEPSEEK_CALL,
    .before_name = "",
    .is_bare = true,
    .middle = DEEPSEEK_ARGUMENTS,
    .before_arguments = "",
    .after_arguments = "",
    .close_begin = DEEPSEEK_END,
    .close = DEEPSEEK_CLOSE,
};

extern const struct dialect dialect_deepseek;
const struct dialect dialect_deepseek = {
    .name = "deepseek",
    .in_template = DEEPSEEK_OPEN,
    .not_in_template = DEEPSEEK_FENCE,
    .may_begin_closed = true,
    .tokens = deepseek_tokens,
    .stops = deepseek_stops,
    .openers = deepseek_openers,
    .push = push_deepseek,
    .call = &deepseek_call,
};

static const struct grammar_call deepseek_v3_call = {
    .separator = "",
    .open = DEEPSEEK_OPEN,
    .open_end = DEEPSEEK_CALL "function" DEEPSEEK_ARGUMENTS,
    .before_name = "",
    .is_bare = true,
    .before_arguments = "\n" DEEPSEEK_FENCE "\n",
    .after_arguments = "\n" DEEPSEEK_END_FENCE,
    .close_begin = DEEPSEEK_END,
    .close = DEEPSEEK_CLOSE,
};

extern const struct dialect dialect_deepseek_v3;
const struct dialect dialect_deepseek_v3 = {
    .name = "deepseek-v3",
    .in_template = DEEPSEEK_OPEN,
    .also_in_template = DEEPSEEK_FENCE,
    .may_begin_closed = true,
    .has_lone_calls = true,
    .tokens = deepseek_tokens,
    .stops = deepseek_stops,
    .openers = deepseek_openers,
    .push = push_deepseek,
    .call = &deepseek_v3_call,
};
