/* Harmony, the format of gpt-oss: an answer is a sequence of messages.
 *
 *   <|channel|>analysis<|message|> reasoning <|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
 *   <|message|>{...}<|call|>
 *
 * The recipient may also stand in the role part: <|start|>assistant to=functions.f<|channel|>...
 * The channel "analysis" is reasoning. "final" is the answer, and so is "commentary" without a
 * recipient: text that the model writes before it calls. The prompt ends with <|start|>assistant.
 * Of a recipient, "functions." is left out; others, such as "browser.search", are whole names. */
#include "chat/dialect.h"
#include "chat/toolcall_value.h"

#define START "<|start|>"
#define CHANNEL "<|channel|>"
#define CONSTRAIN "<|constrain|>"
#define MESSAGE "<|message|>"
#define END "<|end|>"
#define RETURN "<|return|>"
#define CALL "<|call|>"

enum { TAG_END = 1 };

static const struct marker tags[] = {{END, TAG_END}, {RETURN, TAG_END}, {CALL, TAG_END}, {NULL, 0}};

static enum toolcall_status push(struct toolcall *tc, uint8_t byte)
{
    unsigned tag;
    if (!tc->is_complete && !tc->is_ready && byte == '<' && tc->n_tail == 0) {
        tc->tail[tc->n_tail++] = '<'; /* no arguments */
        return toolcall_end_values(tc) ? TOOLCALL_MORE : TOOLCALL_BROKEN;
    }
    if (!tc->is_complete)
        return toolcall_push_json(tc, byte) ? TOOLCALL_MORE : TOOLCALL_BROKEN;
    if (!toolcall_push_tag(tc, byte, tags, TAG_END, &tag))
        return TOOLCALL_BROKEN;
    return tag == TAG_END ? TOOLCALL_WHOLE : TOOLCALL_MORE;
}

/* Returns where `what` begins in the text, or `bytes`. */
static size_t find(const char *text, size_t bytes, const char *what)
{
    const size_t n = strlen(what);
    for (size_t i = 0; i + n <= bytes; i++)
        if (memcmp(text + i, what, n) == 0)
            return i;
    return bytes;
}

/* Returns the length of the word at the start of the text. */
static size_t word_bytes(const char *text, size_t bytes)
{
    size_t n = 0;
    while (n < bytes && text[n] != '<' && !toolcall_is_space((uint8_t)text[n]))
        n++;
    return n;
}

static bool is_word(const char *text, size_t bytes, const char *word)
{
    return bytes == strlen(word) && memcmp(text, word, bytes) == 0;
}

static void read_recipient(const char *header, size_t bytes, struct frame_header *out)
{
    static const char to[] = "to=", prefix[] = "functions.";
    size_t at = find(header, bytes, to);
    while (at < bytes && at > 0 && !toolcall_is_space((uint8_t)header[at - 1]) &&
           header[at - 1] != '>')
        at += 1 + find(header + at + 1, bytes - at - 1, to);
    if (at >= bytes)
        return;
    const char *name = header + at + sizeof to - 1;
    size_t n = word_bytes(name, bytes - at - (sizeof to - 1));
    if (n > sizeof prefix - 1 && memcmp(name, prefix, sizeof prefix - 1) == 0) {
        name += sizeof prefix - 1;
        n -= sizeof prefix - 1;
    } else if (n == 0 || is_word(name, n, "assistant") || is_word(name, n, "user")) {
        return; /* a message, not a call */
    }
    out->name = name;
    out->name_bytes = n;
}

static void read_header(const char *header, size_t bytes, struct frame_header *out)
{
    size_t skip = bytes; /* where the last channel begins: a model may write two */
    for (size_t at = find(header, bytes, CHANNEL); at < bytes;
         at = skip + find(header + skip, bytes - skip, CHANNEL))
        skip = at + sizeof CHANNEL - 1;
    const char *channel = header + skip;
    const size_t n = word_bytes(channel, bytes - skip);
    *out = (struct frame_header){.is_reasoning = is_word(channel, n, "analysis"),
                                 .is_final = n == 0 || is_word(channel, n, "final")};
    read_recipient(header, bytes, out);
}

static const struct dialect_opener openers[] = {
    {.text = MESSAGE, .is_inner = true},
    {.text = NULL},
};

static const char *const begins[] = {START, CHANNEL, CONSTRAIN, NULL};
static const char *const ends[] = {END, RETURN, CALL, NULL};
static const struct dialect_frames frames = {
    .message = MESSAGE, .begins = begins, .ends = ends, .recipient = "to=", .read = read_header};

static const char *const tokens[] = {START, CHANNEL, CONSTRAIN, MESSAGE, END, RETURN, CALL, NULL};
static const char *const stops[] = {RETURN, CALL, "<|endoftext|>", NULL};

/* The recipient of a forced call stands in the role part, as in the model's template. */
static const struct grammar_call call = {
    .separator = "",
    .open = " to=functions.",
    .open_end = "",
    .before_name = "",
    .is_bare = true,
    .middle = CHANNEL,
    .before_arguments = "commentary json" MESSAGE,
    .after_arguments = "",
    .close_begin = "",
    .close = CALL,
};

extern const struct dialect dialect_harmony;
const struct dialect dialect_harmony = {
    .name = "harmony",
    .in_template = CHANNEL,
    .also_in_template = MESSAGE,
    .tokens = tokens,
    .stops = stops,
    .openers = openers,
    .frames = &frames,
    .push = push,
    .call = &call,
};
