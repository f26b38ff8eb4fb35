/* Log probabilities as JSON, one token at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/api.h"
#include "server/text_json.h"

/* Marks the place of a list in an answer's JSON. No JSON string can contain it, since its quotes
 * would be escaped. */
#define MARK "[[\"logprobs\","
#define PIECE_BYTES 4096u

json_t *api_logprobs_mark(unsigned choice, enum api_list list)
{
    return json_pack("[[s, i, i]]", "logprobs", (int)choice, (int)list);
}

/* ---- one token ------------------------------------------------------------------------------ */

static json_t *token_json(const struct fm_model *model, const struct fm_logprob *p)
{
    size_t bytes = 0;
    const char *text = fm_token_text(model, p->id, &bytes);
    return text_json(text, bytes);
}

/* The first token of a prompt has no probability. */
static json_t *value_json(const struct fm_logprob *p)
{
    if (isnan(p->logprob))
        return json_null();
    return json_real(p->logprob > -9999.0f ? (double)p->logprob : -9999.0);
}

static json_t *entry_json(const struct fm_model *model, const struct fm_logprob *p)
{
    size_t bytes = 0;
    const char *text = fm_token_text(model, p->id, &bytes);
    json_t *raw = json_array();
    for (size_t i = 0; i < bytes; i++)
        (void)json_array_append_new(raw, json_integer((unsigned char)text[i]));
    return json_pack("{s:i, s:o, s:o, s:o}", "id", (int)p->id, "token", token_json(model, p),
                     "logprob", value_json(p), "bytes", raw);
}

/* Returns the list's item for the token at `at`, which is followed by its alternatives. */
static json_t *item_json(const struct fm_model *model, enum api_list list,
                         const struct fm_logprob *at, unsigned n_each)
{
    if (list == API_LIST_TOKENS)
        return token_json(model, at);
    if (list == API_LIST_VALUES)
        return value_json(at);
    if (list == API_LIST_IDS)
        return json_integer(at->id);
    if (list == API_LIST_TOPS && isnan(at->logprob))
        return json_null();
    json_t *entry = list == API_LIST_ENTRIES ? entry_json(model, at) : json_object();
    json_t *top = list == API_LIST_ENTRIES ? json_array() : NULL;
    for (unsigned k = 1; k < n_each; k++) {
        if (list == API_LIST_ENTRIES) {
            (void)json_array_append_new(top, entry_json(model, &at[k]));
            continue;
        }
        json_t *token = token_json(model, &at[k]);
        /* Parts of characters may have the same text: the likelier one stays. */
        if (json_object_get(entry, json_string_value(token)) == NULL)
            (void)json_object_set_new(entry, json_string_value(token), value_json(&at[k]));
        json_decref(token);
    }
    if (top != NULL)
        (void)json_object_set_new(entry, "top_logprobs", top);
    return entry;
}

/* ---- offsets -------------------------------------------------------------------------------- */

/* Returns how many bytes of a prompt's text are the token's: none for a token that the tokenizer
 * puts before every text, and one less for a word to which it adds a blank. */
static size_t bytes_in_prompt(const char *prompt, size_t left, const char *token, size_t bytes)
{
    if (bytes <= left && memcmp(prompt, token, bytes) == 0)
        return bytes;
    const bool has_blank = bytes > 1 && token[0] == ' ';
    return has_blank && bytes - 1 <= left && memcmp(prompt, token + 1, bytes - 1) == 0 ? bytes - 1
                                                                                       : 0;
}

/* Returns where the token begins, in characters from the beginning of the prompt, as OpenAI does.
 * A token within a character has that character's place. Every token is asked for once, in
 * order. */
static json_t *offset_json(const struct api_call *call, unsigned choice,
                           const struct fm_logprob *p)
{
    struct api_choice *c = &call->choices[choice];
    size_t bytes = 0;
    const char *text = fm_token_text(call->context->model, p->id, &bytes);
    size_t at = c->offsets.chars;
    if (c->offsets.n_prompt > 0) {
        const json_t *echo = api_echo_of(call, choice);
        const char *prompt = json_string_value(echo);
        const size_t done = c->offsets.bytes;
        if (prompt != NULL && text != NULL)
            bytes = bytes_in_prompt(prompt + done, json_string_length(echo) - done, text, bytes);
        text = prompt != NULL ? prompt + done : NULL;
        c->offsets.bytes += bytes;
    }
    if (text != NULL && bytes > 0) {
        const bool is_within = api_count_chars(text, 1) == 0 && at > 0;
        at -= is_within;
        c->offsets.chars += api_count_chars(text, bytes);
    }
    if (c->offsets.n_prompt > 0 && --c->offsets.n_prompt == 0)
        c->offsets.chars = c->offsets.prompt_chars;
    return json_integer((json_int_t)at);
}

/* ---- an answer ------------------------------------------------------------------------------ */

static void find_mark(struct api_pieces *p)
{
    const char *text = text_buffer_text(&p->text), *mark = strstr(text + p->at, MARK);
    p->mark = mark != NULL ? (size_t)(mark - text) : p->text.n - 1;
}

bool api_pieces_begin(struct api_pieces *p, const json_t *value)
{
    *p = (struct api_pieces){0};
    if (!text_add_json(&p->text, value) || !text_buffer_add(&p->text, "", 1))
        return false;
    find_mark(p);
    return true;
}

void api_pieces_clear(struct api_pieces *p)
{
    text_buffer_clear(&p->text);
    *p = (struct api_pieces){0};
}

bool api_pieces_is_over(const struct api_pieces *p)
{
    return p->source == NULL && p->at + 1 >= p->text.n;
}

/* Moves from the mark to its list. */
static bool begin_list(struct api_pieces *p, const struct api_call *call,
                       const struct job_logprobs *streamed, struct text_buffer *out)
{
    char *end = NULL;
    const unsigned long choice = strtoul(text_buffer_text(&p->text) + p->mark + sizeof MARK - 1,
                                         &end, 10);
    p->list = (enum api_list)strtoul(end + 1, &end, 10);
    p->at = (size_t)(end - text_buffer_text(&p->text)) + sizeof "]]" - 1;
    p->source = streamed != NULL ? streamed : &call->choices[choice].logprobs;
    p->choice = (unsigned)choice;
    p->token = 0;
    find_mark(p);
    return text_add_string(out, "[");
}

static bool add_item(struct api_pieces *p, const struct api_call *call, struct text_buffer *out)
{
    const struct job_logprobs *l = p->source;
    if (l->n_each == 0 || p->token + l->n_each > l->n) {
        p->source = NULL;
        return text_add_string(out, "]");
    }
    const struct fm_logprob *at = &l->at[p->token];
    json_t *item = p->list == API_LIST_OFFSETS ? offset_json(call, p->choice, at)
                                               : item_json(call->context->model, p->list, at,
                                                           l->n_each);
    const bool is_good = (p->token == 0 || text_add_string(out, ",")) && text_add_json(out, item);
    json_decref(item);
    p->token += l->n_each;
    return is_good;
}

bool api_pieces_add(struct api_pieces *p, const struct api_call *call,
                    const struct job_logprobs *streamed, struct text_buffer *out)
{
    if (p->source != NULL)
        return add_item(p, call, out) && !mem_lease_is_over();
    if (p->at == p->mark)
        return begin_list(p, call, streamed, out);
    const size_t left = p->mark - p->at, n = left < PIECE_BYTES ? left : PIECE_BYTES;
    const char *from = text_buffer_text(&p->text) + p->at;
    p->at += n;
    return text_buffer_add(out, from, n);
}
