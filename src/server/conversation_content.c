/* The text of a message's parts, and what stands for those that are not text. */
#include <stdio.h>
#include <string.h>

#include "server/conversation.h"
#include "server/text_json.h"

/* ---- parts that are not text ---------------------------------------------------------------- */

enum content_other content_other_at(const json_t *messages, size_t i, content_speaker_fn *speaker)
{
    const enum content_speaker who = speaker(json_array_get(messages, i));
    if (who == SPEAKER_SYSTEM)
        return OTHER_REFUSED;
    if (who != SPEAKER_USER)
        return OTHER_NAMED;
    for (size_t k = i + 1; k < json_array_size(messages); k++)
        if (speaker(json_array_get(messages, k)) != SPEAKER_MODEL)
            return OTHER_NAMED;
    for (size_t k = i; k > 0; k--) {
        const enum content_speaker before = speaker(json_array_get(messages, k - 1));
        if (before != SPEAKER_USER)
            return before == SPEAKER_TOOL ? OTHER_NAMED : OTHER_REFUSED;
    }
    return OTHER_REFUSED;
}

/* Writes what a type is about: "image" for image, image_url and input_image. */
static void kind_of(const char *type, char kind[32])
{
    static const char input[] = "input_", url[] = "_url";
    if (strncmp(type, input, sizeof input - 1) == 0)
        type += sizeof input - 1;
    size_t n = strlen(type);
    if (n > sizeof url - 1 && strcmp(type + n - (sizeof url - 1), url) == 0)
        n -= sizeof url - 1;
    if (n == 0 || n > 31 || strspn(type, "abcdefghijklmnopqrstuvwxyz_") < n) {
        type = "part";
        n = 4;
    }
    memcpy(kind, type, n);
    kind[n] = '\0';
}

/* Ends the line before a part that stands on lines of its own. */
static bool end_line(struct text_buffer *out)
{
    return out->n == 0 || text_buffer_text(out)[out->n - 1] == '\n' ||
           text_buffer_add(out, "\n", 1);
}

bool content_name(struct turn *turn, const char *type)
{
    char kind[32];
    kind_of(type, kind);
    turn->ends_in_block = true;
    return end_line(&turn->content) &&
           text_add_format(&turn->content, "[%s left out: this model reads text only]", kind);
}

/* ---- text ----------------------------------------------------------------------------------- */

static int no_memory(struct api_error *error)
{
    return api_fail(error, API_INTERNAL, NULL, "out of memory for the conversation");
}

static bool is_type(const json_t *part, const char *type)
{
    const char *own = json_string_value(json_object_get(part, "type"));
    return own != NULL && strcmp(own, type) == 0;
}

/* Adds text that follows other parts. */
static bool add_text(struct turn *turn, const json_t *text)
{
    if (json_string_length(text) == 0)
        return true;
    const bool is_good = !turn->ends_in_block || end_line(&turn->content);
    turn->ends_in_block = false;
    return is_good && text_buffer_add(&turn->content, json_string_value(text),
                                      json_string_length(text));
}

/* Adds a line of text if there is some. */
static bool add_heading(struct turn *turn, const json_t *text)
{
    return json_string_length(text) == 0 || (end_line(&turn->content) && add_text(turn, text) &&
                                             text_buffer_add(&turn->content, "\n", 1));
}

/* Returns the text of Anthropic's documents and search results: a string, or an array of parts.
 * NULL: the part is another one, or is not text. */
static const json_t *inner_text(const json_t *part)
{
    const json_t *source = json_object_get(part, "source"), *inner = NULL;
    if (is_type(part, "search_result"))
        inner = json_object_get(part, "content");
    else if (is_type(part, "document") && is_type(source, "text"))
        inner = json_object_get(source, "data");
    else if (is_type(part, "document") && is_type(source, "content"))
        inner = json_object_get(source, "content");
    return json_is_string(inner) || json_is_array(inner) ? inner : NULL;
}

/* Adds a document or a search result with its title, on lines of its own. */
static int add_document(const json_t *part, const json_t *inner, const char *path,
                        enum content_other other, struct turn *turn, struct api_error *error)
{
    if (!add_heading(turn, json_object_get(part, "title")) ||
        !add_heading(turn, json_object_get(part, "source")) || !end_line(&turn->content))
        return no_memory(error);
    const int rc = content_text(inner, path, other, turn, error);
    turn->ends_in_block = true;
    return rc;
}

int content_part(const json_t *part, const char *path, size_t i, enum content_other other,
                 struct turn *turn, struct api_error *error)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const bool is_refusal = is_type(part, "refusal");
    const bool is_text = json_is_string(part) || is_refusal || is_type(part, "text") ||
                         is_type(part, "input_text") || is_type(part, "output_text");
    const json_t *inner = inner_text(part);
    const json_t *text = json_is_string(part)
                             ? part : json_object_get(part, is_refusal ? "refusal" : "text");
    char name[96];
    (void)snprintf(name, sizeof name, "%s[%zu]", path, i);
    if (inner != NULL)
        return add_document(part, inner, name, other, turn, error);
    if (!is_text && type != NULL && other == OTHER_NAMED)
        return content_name(turn, type) ? 0 : no_memory(error);
    if (!is_text)
        return api_fail(error, API_BAD, name, "'%s' is a part of type '%.40s'; this model reads "
                        "text only", name, type != NULL ? type : "none");
    if (!json_is_string(text))
        return api_fail(error, API_BAD, name, "'%s' has no text", name);
    return add_text(turn, text) ? 0 : no_memory(error);
}

int content_text(const json_t *content, const char *path, enum content_other other,
                 struct turn *turn, struct api_error *error)
{
    if (content == NULL || json_is_null(content))
        return 0;
    if (json_is_string(content))
        return add_text(turn, content) ? 0 : no_memory(error);
    if (!json_is_array(content))
        return api_fail(error, API_BAD, path, "'%s' must be a string or an array of parts", path);
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(content); i++)
        rc = content_part(json_array_get(content, i), path, i, other, turn, error);
    return rc;
}
