/* Arguments that a dialect writes as keys and values between tags. They become {"K": V, ...}.
 *
 * A value is text; its type decides what the text stands for:
 *   - types 0: a string;
 *   - where no string is allowed, text that parses as JSON is that JSON;
 *   - where a string and other types are allowed, text that parses as JSON of one of the other
 *     types is that JSON;
 *   - true, false and null may be capitalised, and None means null;
 *   - everything else is a string.
 *
 * For dialects only. Functions return false when the call breaks. One thread. */
#ifndef FLASHMOE_CHAT_TOOLCALL_VALUE_H
#define FLASHMOE_CHAT_TOOLCALL_VALUE_H

#include "chat/toolcall.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a value ends: at `close`, white space, and then one of the tags of `set`. So it may contain
 * any other text, even the closing tag. */
struct value_end {
    const char *close;
    const struct marker *tags;
    unsigned set;
    bool drops_newlines; /* one newline at the start of a value and one at its end are dropped */
};

/* Takes a byte of a name, which begins at buffer[at] and ends before `end`. Sets *is_end there and
 * adds a NUL. */
bool toolcall_push_word(struct toolcall *tc, struct text_buffer *buffer, size_t at, uint8_t byte,
                        char end, bool *is_end);

/* Starts a key, whose bytes go to keys.data from key_at on. */
void toolcall_begin_key(struct toolcall *tc);
/* Returns the types that the schema allows for the last key; 0 for a string. */
unsigned toolcall_key_types(const struct toolcall *tc);
/* Starts the value of the last key. Breaks if the key came before or if there are too many. */
bool toolcall_begin_value(struct toolcall *tc, unsigned types);
/* Takes a byte of the value. Sets *tag to the tag after the value once that tag is complete; the
 * value has then ended. */
bool toolcall_push_value(struct toolcall *tc, uint8_t byte, const struct value_end *end,
                         unsigned *tag);
/* Ends the arguments: the call is ready and complete. */
bool toolcall_end_values(struct toolcall *tc);

/* Takes the next byte of arguments that are a JSON object, and passes it on. Sets is_ready with the
 * first byte and is_complete with the last. White space before the object is skipped. */
bool toolcall_push_json(struct toolcall *tc, uint8_t byte);

#ifdef __cplusplus
}
#endif
#endif
