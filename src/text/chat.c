#include "text/chat.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

bool chat_is_available(const struct tokenizer *tok)
{
    int32_t id;
    return tokenizer_find(tok, "<|im_start|>", &id) && tokenizer_find(tok, "<|im_end|>", &id);
}

int chat_render(const char *system, const char *user, char **text, size_t *text_bytes,
                struct fm_error *err)
{
    static const char turn[] = "<|im_start|>%s\n%s<|im_end|>\n";
    static const char opening[] = "<|im_start|>assistant\n";
    const size_t framing = 2 * (sizeof turn + sizeof "system") + sizeof opening;
    size_t capacity = framing + (system != NULL ? strlen(system) : 0) + strlen(user);
    char *out = mem_new(capacity, 1, "the prompt", err);
    if (out == NULL)
        return FM_ERR_NOMEM;
    size_t used = 0;
    if (system != NULL)
        used += (size_t)snprintf(out, capacity, turn, "system", system);
    used += (size_t)snprintf(out + used, capacity - used, turn, "user", user);
    used += (size_t)snprintf(out + used, capacity - used, "%s", opening);
    *text = out;
    *text_bytes = used;
    return 0;
}
