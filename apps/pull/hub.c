#include "apps/pull/hub.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define LIST_BYTES (64u << 20)
#define MAX_PAGES 1000

/* ---- URLs ------------------------------------------------------------------------------- */

/* Appends text in the form that a URL needs; `kept` are characters besides letters and digits. */
static bool append(char *out, size_t size, const char *text, const char *kept)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t n = strlen(out);
    for (; *text != '\0' && n + 4 < size; text++) {
        const unsigned char c = (unsigned char)*text;
        const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || strchr(kept, (char)c) != NULL;
        if (!is_plain)
            out[n++] = '%';
        if (!is_plain)
            out[n++] = digits[c >> 4];
        out[n++] = is_plain ? (char)c : digits[c & 15];
    }
    out[n] = '\0';
    return *text == '\0';
}

bool hub_url(const struct pull_env *env, const struct model_name *name, const char *commit,
             const char *path, char out[MODEL_URL_BYTES])
{
    (void)snprintf(out, MODEL_URL_BYTES, "%s/%s/%s/resolve/%s/", env->endpoint, name->org,
                   name->name, commit);
    return append(out, MODEL_URL_BYTES, path, "-._~/");
}

/* ---- listing ---------------------------------------------------------------------------- */

static int find_commit(const struct web *web, const struct model_name *name,
                       struct hub_repo *repo, struct fm_error *err)
{
    char url[MODEL_URL_BYTES], *body = NULL;
    size_t bytes = 0;
    struct web_reply reply;
    (void)snprintf(url, sizeof url, "%s/api/models/%s/%s/revision/", web->env->endpoint,
                   name->org, name->name);
    if (!append(url, sizeof url, name->revision, "-._~"))
        return err_set(err, FM_ERR_ARG, "the name is too long");
    int rc = web_get(web, url, LIST_BYTES, &body, &bytes, &reply, err);
    if (rc == 0)
        rc = hub_read_commit(url, body, bytes, repo, err);
    mem_free(body);
    return rc;
}

static int list_page(const struct web *web, char url[MODEL_URL_BYTES], struct hub_repo *repo,
                     struct fm_error *err)
{
    char next[MODEL_URL_BYTES] = "", *body = NULL;
    size_t bytes = 0;
    struct web_reply reply;
    int rc = web_get(web, url, LIST_BYTES, &body, &bytes, &reply, err);
    if (rc == 0)
        rc = hub_read_page(url, body, bytes, repo, err);
    if (rc == 0 && reply.next[0] != '\0')
        rc = web_follow(url, reply.next, next, err);
    (void)snprintf(url, MODEL_URL_BYTES, "%s", next);
    mem_free(body);
    return rc;
}

int hub_list(const struct web *web, const struct model_name *name, struct hub_repo *repo,
             struct fm_error *err)
{
    char url[MODEL_URL_BYTES];
    *repo = (struct hub_repo){0};
    int rc = find_commit(web, name, repo, err);
    (void)snprintf(url, sizeof url, "%s/api/models/%s/%s/tree/%s?recursive=true",
                   web->env->endpoint, name->org, name->name, repo->commit);
    for (unsigned i = 0; rc == 0 && url[0] != '\0'; i++)
        rc = i < MAX_PAGES ? list_page(web, url, repo, err)
                           : hub_bad_answer(url, "the list has too many pages", err);
    return rc;
}
