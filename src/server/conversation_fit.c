/* Adapts a conversation to what the model's template reads. */
#include <string.h>

#include "chat/dialect.h"
#include "server/conversation.h"
#include "server/text_json.h"

void conversation_set_effort(struct conversation *c, const char *effort)
{
    if (effort == NULL || effort[0] == '\0')
        return;
    size_t n = strlen(effort);
    if (n >= sizeof c->effort) /* no effort has such a name: what is left is whole characters */
        for (n = sizeof c->effort - 1; n > 0 && ((unsigned char)effort[n] & 0xc0) == 0x80;)
            n--;
    memcpy(c->effort, effort, n);
    c->effort[n] = '\0';
    c->thinks = strcmp(effort, "none") == 0 || strcmp(effort, "minimal") == 0 ? THINKS_NOT : THINKS;
}

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text != NULL ? text : "";
}

/* ---- reasoning ------------------------------------------------------------------------------ */

/* Sets a variable unless the request did. */
static int set_missing(struct conversation *c, const char *name, json_t *value)
{
    if (json_object_get(c->variables, name) == NULL)
        return conversation_set(c, name, value);
    json_decref(value);
    return 0;
}

/* Returns the effort in the words of Harmony: low, medium and high. */
static const char *harmony_effort(const struct conversation *c)
{
    if (c->thinks == THINKS_NOT)
        return "low";
    return strcmp(c->effort, "xhigh") == 0 || strcmp(c->effort, "max") == 0 ? "high" : c->effort;
}

/* Tells the template whether to reason, under the names that templates read. */
static int set_variables(struct conversation *c, bool is_harmony)
{
    const json_t *given = json_object_get(c->variables, "enable_thinking");
    given = given != NULL ? given : json_object_get(c->variables, "thinking");
    if (json_is_boolean(given))
        c->thinks = json_is_true(given) ? THINKS : THINKS_NOT;
    const char *effort = is_harmony ? harmony_effort(c) : c->effort;
    int rc = 0;
    if (c->thinks != THINKS_BY_DEFAULT) {
        rc |= set_missing(c, "enable_thinking", json_boolean(c->thinks == THINKS));
        rc |= set_missing(c, "thinking", json_boolean(c->thinks == THINKS));
    }
    if (effort[0] != '\0')
        rc |= set_missing(c, "reasoning_effort", json_string(effort));
    return rc;
}

/* ---- calls as messages ---------------------------------------------------------------------- */

static bool has_role(const json_t *message, const char *role)
{
    return strcmp(text_of(message, "role"), role) == 0;
}

/* Puts the reasoning where Harmony's template reads it. Before a call the template takes one text:
 * the reasoning, or the content. */
static int set_thinking(json_t *message)
{
    const json_t *reasoning = json_object_get(message, "reasoning_content");
    const json_t *content = json_object_get(message, "content");
    if (reasoning == NULL || json_object_get(message, "thinking") != NULL)
        return 0;
    if (json_object_get(message, "tool_calls") == NULL || json_string_length(content) == 0)
        return json_object_set(message, "thinking", (json_t *)reasoning);
    struct text_buffer both = {0};
    const bool is_good =
        text_buffer_add(&both, json_string_value(reasoning), json_string_length(reasoning)) &&
        text_buffer_add(&both, "\n\n", 2) &&
        text_buffer_add(&both, json_string_value(content), json_string_length(content));
    int rc = is_good ? json_object_set_new(message, "thinking", api_buffer_json(&both)) : -1;
    if (rc == 0)
        rc = json_object_set_new(message, "content", json_string(""));
    text_buffer_clear(&both);
    return rc;
}

/* The results after a message with several calls. Each is added once. */
struct results {
    json_t *list, *by_id; /* index of the first result with an id */
    bool *is_added;
    size_t next; /* all before it are added */
};

static int results_open(struct results *r, const json_t *messages, size_t begin, size_t end)
{
    *r = (struct results){.list = json_array(), .by_id = json_object(),
                          .is_added = mem_new(end - begin, sizeof *r->is_added, "results", NULL)};
    int rc = r->list != NULL && r->by_id != NULL && r->is_added != NULL ? 0 : -1;
    for (size_t i = end; rc == 0 && i-- > begin;)
        rc = json_object_set_new(r->by_id, text_of(json_array_get(messages, i), "tool_call_id"),
                                 json_integer((json_int_t)(i - begin)));
    for (size_t i = begin; rc == 0 && i < end; i++)
        rc = json_array_append(r->list, json_array_get(messages, i));
    return rc;
}

static void results_close(struct results *r)
{
    json_decref(r->list);
    json_decref(r->by_id);
    mem_free(r->is_added);
}

/* Adds the result with this id, or otherwise the next one; nothing if all are added. */
static int results_add(struct results *r, json_t *out, const char *id)
{
    const json_t *known = json_object_get(r->by_id, id);
    size_t i = known != NULL ? (size_t)json_integer_value(known) : r->next;
    if (known == NULL || r->is_added[i]) {
        while (r->next < json_array_size(r->list) && r->is_added[r->next])
            r->next++;
        i = r->next;
    }
    if (i == json_array_size(r->list))
        return 0;
    r->is_added[i] = true;
    return json_array_append(out, json_array_get(r->list, i));
}

/* Writes each call and its result as messages of their own. */
static int split_calls(json_t *out, const json_t *message, struct results *results)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        json_t *one = i == 0 ? json_copy((json_t *)message)
                             : json_pack("{s:s, s:s}", "role", "assistant", "content", "");
        rc = json_object_set_new(one, "tool_calls", json_pack("[O]", call));
        if (rc == 0)
            rc = json_array_append(out, one);
        json_decref(one);
        if (rc == 0)
            rc = results_add(results, out, text_of(call, "id"));
    }
    for (size_t i = 0; rc == 0 && i < json_array_size(results->list); i++)
        if (!results->is_added[i])
            rc = json_array_append(out, json_array_get(results->list, i));
    return rc;
}

static int fit_harmony(struct conversation *c)
{
    json_t *out = json_array();
    int rc = out != NULL ? 0 : -1;
    const size_t n = json_array_size(c->messages);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        json_t *message = json_array_get(c->messages, i);
        if (has_role(message, "assistant"))
            rc = set_thinking(message);
        if (rc == 0 && json_array_size(json_object_get(message, "tool_calls")) < 2) {
            rc = json_array_append(out, message);
            continue;
        }
        struct results results = {0};
        const size_t begin = i + 1;
        while (i + 1 < n && has_role(json_array_get(c->messages, i + 1), "tool"))
            i++;
        if (rc == 0)
            rc = results_open(&results, c->messages, begin, i + 1);
        if (rc == 0)
            rc = split_calls(out, message, &results);
        results_close(&results);
    }
    json_decref(rc == 0 ? c->messages : out);
    c->messages = rc == 0 ? out : c->messages;
    return rc;
}

/* ---- calls without content ------------------------------------------------------------------ */

/* Appends the content of a message with calls as a message of its own, with the reasoning. */
static int add_content_alone(json_t *out, json_t *message)
{
    json_t *before = json_copy(message);
    int rc = before != NULL && json_object_del(before, "tool_calls") == 0 ? 0 : -1;
    if (rc == 0)
        rc = json_array_append(out, before);
    json_decref(before);
    (void)json_object_del(message, "reasoning_content"); /* there may be none */
    return rc;
}

/* Makes the content of messages with calls null. Content that is not empty becomes a message of its
 * own before the calls. */
static int fit_lone_calls(struct conversation *c)
{
    json_t *out = json_array();
    int rc = out != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(c->messages); i++) {
        json_t *message = json_array_get(c->messages, i);
        if (json_array_size(json_object_get(message, "tool_calls")) > 0) {
            if (json_string_length(json_object_get(message, "content")) > 0)
                rc = add_content_alone(out, message);
            if (rc == 0)
                rc = json_object_set_new(message, "content", json_null());
        }
        if (rc == 0)
            rc = json_array_append(out, message);
    }
    json_decref(rc == 0 ? c->messages : out);
    c->messages = rc == 0 ? out : c->messages;
    return rc;
}

/* ---- ids ------------------------------------------------------------------------------------ */

/* Numbers the calls of a message, and remembers their new ids by the old ones. */
static int number_calls(const json_t *message, unsigned *n_calls, json_t *ids)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        json_t *id = json_sprintf("functions.%s:%u",
                                  text_of(json_object_get(call, "function"), "name"), *n_calls);
        ++*n_calls;
        rc = json_object_set(ids, text_of(call, "id"), id);
        if (rc == 0)
            rc = json_object_set(call, "id", id);
        json_decref(id);
    }
    return rc;
}

/* Gives calls the ids that the model was trained with, counted over the conversation. */
static int fit_ids(struct conversation *c)
{
    json_t *ids = json_object();
    unsigned n_calls = 0;
    int rc = ids != NULL ? 0 : -1;
    for (size_t i = 0; rc == 0 && i < json_array_size(c->messages); i++) {
        json_t *message = json_array_get(c->messages, i);
        json_t *id = json_object_get(ids, text_of(message, "tool_call_id"));
        if (has_role(message, "tool") && id != NULL)
            rc = json_object_set(message, "tool_call_id", id);
        else
            rc = number_calls(message, &n_calls, ids);
    }
    json_decref(ids);
    return rc;
}

/* ---- all of it ------------------------------------------------------------------------------ */

int conversation_fit(struct conversation *c, const struct fm_model *model)
{
    const struct dialect *const *dialects = model_dialects(model);
    const bool is_harmony = dialect_frames_of(dialects) != NULL;
    int rc = set_variables(c, is_harmony);
    if (rc == 0 && is_harmony)
        rc = fit_harmony(c);
    for (; rc == 0 && *dialects != NULL; dialects++) {
        if ((*dialects)->has_lone_calls)
            rc = fit_lone_calls(c);
        if (rc == 0 && (*dialects)->has_call_ids)
            rc = fit_ids(c);
    }
    return rc;
}

static int add_text(const char *text, size_t bytes, void *ctx)
{
    return text_buffer_add(ctx, text, bytes) ? 0 : -1;
}

bool conversation_spell_arguments(struct conversation *c)
{
    bool has_changed = false;
    for (size_t i = 0; i < json_array_size(c->messages); i++) {
        const json_t *calls = json_object_get(json_array_get(c->messages, i), "tool_calls");
        for (size_t k = 0; k < json_array_size(calls); k++) {
            json_t *function = json_object_get(json_array_get(calls, k), "function");
            const json_t *arguments = json_object_get(function, "arguments");
            struct text_buffer text = {0};
            if (!json_is_object(arguments))
                continue;
            /* With blanks, as models are trained to write it. */
            if (json_dump_callback(arguments, add_text, &text, 0) != 0 ||
                json_object_set_new(function, "arguments", api_buffer_json(&text)) != 0) {
                text_buffer_clear(&text);
                return false;
            }
            text_buffer_clear(&text);
            has_changed = true;
        }
    }
    return has_changed;
}
