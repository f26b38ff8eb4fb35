/* The conversation: messages, tokens and files. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/mem.h"
#include "base/plat_dir.h"
#include "apps/chat/chat.h"
#include "apps/cli/common.h"

static int no_memory(struct fm_error *err)
{
    return err_set(err, FM_ERR_NOMEM, "out of memory for the conversation");
}

static json_t *new_message(const char *role, const char *text, size_t text_bytes)
{
    return json_pack("{s:s, s:o}", "role", role, "content", json_text(text, text_bytes));
}

static bool is_role(const json_t *message, const char *role)
{
    const char *name = json_string_value(json_object_get(message, "role"));
    return name != NULL && strcmp(name, role) == 0;
}

int chat_say(struct chat *chat, const char *role, const char *text, size_t text_bytes,
             struct fm_error *err)
{
    return json_array_append_new(chat->messages, new_message(role, text, text_bytes)) == 0
               ? 0 : no_memory(err);
}

int chat_set_system(struct chat *chat, const char *text, size_t text_bytes, struct fm_error *err)
{
    const bool has_one = is_role(json_array_get(chat->messages, 0), "system");
    int rc = 0;
    if (text_bytes == 0 && has_one)
        rc = json_array_remove(chat->messages, 0);
    else if (text_bytes > 0 && has_one)
        rc = json_array_set_new(chat->messages, 0, new_message("system", text, text_bytes));
    else if (text_bytes > 0)
        rc = json_array_insert_new(chat->messages, 0, new_message("system", text, text_bytes));
    return rc == 0 ? 0 : no_memory(err);
}

json_t *chat_take_last(struct chat *chat, const char *role)
{
    const size_t n = json_array_size(chat->messages);
    json_t *last = n > 0 ? json_array_get(chat->messages, n - 1) : NULL;
    if (last == NULL || !is_role(last, role))
        return NULL;
    (void)json_incref(last);
    (void)json_array_remove(chat->messages, n - 1);
    return last;
}

/* Builds the object for the template and for /save; borrows `messages`. */
static char *conversation_text(const struct chat *chat, const json_t *messages, bool is_file)
{
    json_t *object = json_pack("{s:O}", "messages", (json_t *)(uintptr_t)messages);
    if (object == NULL)
        return NULL;
    if (chat->thinking >= 0)
        (void)json_object_set_new(object, "enable_thinking", json_boolean(chat->thinking));
    if (chat->thinking >= 0 && !is_file) /* another name that templates read */
        (void)json_object_set_new(object, "thinking", json_boolean(chat->thinking));
    if (is_file) {
        (void)json_object_set_new(object, "now_s", json_integer(chat->now.now_s));
        (void)json_object_set_new(object, "now_offset_s", json_integer(chat->now.now_offset_s));
    }
    char *text = json_dumps(object, is_file ? JSON_INDENT(2) : JSON_COMPACT);
    json_decref(object);
    return text;
}

int chat_tokens(const struct chat *chat, const json_t *messages, int32_t **ids, size_t *n_ids,
                struct fm_error *err)
{
    char *text = conversation_text(chat, messages, false);
    if (text == NULL)
        return no_memory(err);
    int rc = fm_chat_tokenize(chat->model, text, strlen(text), &chat->now, ids, n_ids, err);
    free(text);
    return rc;
}

/* ---- files ------------------------------------------------------------------------------ */

static int snapshot_path(const char *path, char out[LIMIT_PATH_BYTES], struct fm_error *err)
{
    const int n = snprintf(out, LIMIT_PATH_BYTES, "%s.fmsnap", path);
    return n > 0 && n < LIMIT_PATH_BYTES
               ? 0 : err_set(err, FM_ERR_ARG, "the path '%s' is too long", path);
}

int chat_save(struct chat *chat, const char *path, struct fm_error *err)
{
    char snapshot[LIMIT_PATH_BYTES];
    int rc = snapshot_path(path, snapshot, err);
    if (rc != 0)
        return rc;
    char *text = conversation_text(chat, chat->messages, true);
    if (text == NULL)
        return no_memory(err);
    rc = plat_replace_file(path, text, strlen(text), err);
    free(text);
    if (rc != 0)
        return rc;
    struct fm_error why = {0};
    const unsigned position = fm_session_position(chat->session);
    if (position > 0 && fm_session_save(chat->session, snapshot, &why) != 0)
        say("note: the snapshot was not saved, so /load will compute the conversation again: %s",
            why.text);
    say("saved %zu messages in '%s'%s", json_array_size(chat->messages), path,
        position > 0 && why.code == 0 ? ", with a snapshot beside it" : "");
    return 0;
}

/* Returns the messages of a parsed file, borrowed from it. */
static int find_messages(const char *path, const json_t *file, json_t **out, struct fm_error *err)
{
    *out = json_is_array(file) ? (json_t *)(uintptr_t)file : json_object_get(file, "messages");
    if (!json_is_array(*out))
        return err_set(err, FM_ERR_FORMAT, "'%s' is not a conversation: it is neither an array of "
                       "messages nor an object with 'messages'", path);
    for (size_t i = 0; i < json_array_size(*out); i++) {
        const json_t *message = json_array_get(*out, i);
        if (!json_is_string(json_object_get(message, "role")))
            return err_set(err, FM_ERR_FORMAT, "'%s': message %zu has no role", path, i + 1);
    }
    return 0;
}

static int read_json(const char *path, json_t **out, struct fm_error *err)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t why;
    int rc = file_read(path, &text, &bytes, err);
    if (rc != 0)
        return rc;
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    mem_free(text);
    return *out != NULL ? 0 : err_set(err, FM_ERR_FORMAT, "'%s' is not JSON: line %d: %s", path,
                                      why.line, why.text);
}

/* Restores the session's snapshot. Without it the next turn computes everything. */
static void load_snapshot(struct chat *chat, const char *path)
{
    struct fm_error why = {0};
    if (!plat_file_exists(path)) {
        say("note: '%s' is missing; the next message computes the conversation again",
            path);
        return;
    }
    if (fm_session_load(chat->session, path, &why) != 0) {
        say("note: %s", why.text);
        say("note: the next message computes the conversation again");
        fm_session_reset(chat->session);
    }
}

int chat_load(struct chat *chat, const char *path, struct fm_error *err)
{
    char snapshot[LIMIT_PATH_BYTES];
    json_t *file = NULL, *messages = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = snapshot_path(path, snapshot, err);
    if (rc == 0)
        rc = read_json(path, &file, err);
    if (rc == 0)
        rc = find_messages(path, file, &messages, err);
    if (rc == 0 && json_array_size(messages) > 0)
        rc = chat_tokens(chat, messages, &ids, &n_ids, err); /* checks that the template accepts */
    fm_free(ids);
    if (rc == 0) {
        const json_t *thinking = json_object_get(file, "enable_thinking");
        const json_t *now_s = json_object_get(file, "now_s");
        const json_t *offset_s = json_object_get(file, "now_offset_s");
        chat->thinking = json_is_boolean(thinking) ? json_is_true(thinking) : -1;
        if (json_is_integer(now_s))
            chat->now.now_s = json_integer_value(now_s);
        if (json_is_integer(offset_s))
            chat->now.now_offset_s = (int32_t)json_integer_value(offset_s);
        (void)json_incref(messages);
        json_decref(chat->messages);
        chat->messages = messages;
        if (now_s != NULL)
            plat_make_path_private(path); /* the files of /save */
        load_snapshot(chat, snapshot);
        say("loaded %zu messages, %zu tokens; %u of them are already computed",
            json_array_size(messages), n_ids, fm_session_position(chat->session));
    }
    json_decref(file);
    return rc;
}
