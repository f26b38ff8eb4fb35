#include "apps/pull/pull_env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/plat.h"

/* Returns the variable if it is set and not empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static bool is_true(const char *name)
{
    const char *value = variable(name);
    return value != NULL && (strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0 ||
                             strcasecmp(value, "yes") == 0 || strcasecmp(value, "on") == 0);
}

/* Writes FOLDER/REST, or HOME/BELOW/REST without the variable. Relative folders are ignored, and so
 * is "~", which only a shell knows. */
static bool join(const char *folder, const char *below, const char *rest,
                 char out[LIMIT_PATH_BYTES])
{
    const char *home = variable("HOME");
    const bool has_folder = folder != NULL && folder[0] == '/';
    if (!has_folder && (home == NULL || home[0] != '/'))
        return false;
    const int n = has_folder ? snprintf(out, LIMIT_PATH_BYTES, "%s%s", folder, rest)
                             : snprintf(out, LIMIT_PATH_BYTES, "%s%s%s", home, below, rest);
    return n > 0 && n < LIMIT_PATH_BYTES;
}

/* Writes HF_HOME, or what stands for it, and `rest`. */
static bool hub_home(const char *rest, char out[LIMIT_PATH_BYTES])
{
    char below[64];
    if (variable("HF_HOME") != NULL)
        return join(variable("HF_HOME"), "/.cache/huggingface", rest, out);
    (void)snprintf(below, sizeof below, "/huggingface%s", rest);
    return join(variable("XDG_CACHE_HOME"), "/.cache", below, out);
}

bool pull_env_has_models(void)
{
    return variable("FLASHMOE_MODELS") != NULL;
}

int pull_env_folders(struct pull_env *env, struct fm_error *err)
{
    const char *cache = variable("HF_HUB_CACHE"), *models = variable("FLASHMOE_MODELS");
    *env = (struct pull_env){0};
    cache = cache != NULL ? cache : variable("HUGGINGFACE_HUB_CACHE");
    if (cache != NULL && cache[0] == '/')
        (void)snprintf(env->hub_cache, sizeof env->hub_cache, "%s", cache);
    else if (!hub_home("/hub", env->hub_cache))
        env->hub_cache[0] = '\0';
    /* Another folder could be on a disk that is too small. */
    if (models != NULL && models[0] != '/')
        return err_set(err, FM_ERR_ARG, "FLASHMOE_MODELS is '%.200s': expected an absolute path",
                       models);
    if (models != NULL ? join(models, "", "", env->models)
                       : join(variable("XDG_DATA_HOME"), "/.local/share", "/flashmoe/models",
                              env->models))
        return 0;
    return err_set(err, FM_ERR_ARG, "there is no folder for models: HOME is not set, or a path is "
                   "too long; set FLASHMOE_MODELS to an absolute path");
}

/* Takes a token without the blanks around it. It becomes part of a request's head, so it may have
 * no other blanks and no control characters. */
static int take_token(struct pull_env *env, const char *text, const char *from,
                      struct fm_error *err)
{
    text += strspn(text, " \t\r\n");
    const size_t n = strcspn(text, " \t\r\n");
    if (n >= sizeof env->token || text[n + strspn(text + n, " \t\r\n")] != '\0')
        return err_set(err, FM_ERR_ARG, "%s: what is there is not a token", from);
    for (size_t i = 0; i < n; i++)
        if (text[i] < 33 || text[i] > 126)
            return err_set(err, FM_ERR_ARG, "%s: what is there is not a token", from);
    memcpy(env->token, text, n);
    env->token[n] = '\0';
    return 0;
}

static int read_token(struct pull_env *env, struct fm_error *err)
{
    char path[LIMIT_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    const char *given = variable("HF_TOKEN");
    if (given != NULL)
        return take_token(env, given, "HF_TOKEN", err);
    given = variable("HUGGING_FACE_HUB_TOKEN");
    if (given != NULL)
        return take_token(env, given, "HUGGING_FACE_HUB_TOKEN", err);
    if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return 0;
    const bool has_path = variable("HF_TOKEN_PATH") != NULL
                              ? snprintf(path, sizeof path, "%s", variable("HF_TOKEN_PATH")) > 0
                              : hub_home("/token", path);
    if (!has_path || !plat_file_exists(path))
        return 0;
    int rc = plat_read_file(path, 64 * 1024, &text, &bytes, err);
    if (rc == 0)
        rc = take_token(env, text, path, err);
    mem_free(text);
    return rc;
}

static int read_endpoint(struct pull_env *env, struct fm_error *err)
{
    const char *text = variable("HF_ENDPOINT");
    text = text != NULL ? text : "https://huggingface.co";
    const bool is_url = strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '/')
        n--;
    if (!is_url || n >= sizeof env->endpoint || strpbrk(text, " \t\r\n?#@\\\"") != NULL)
        return err_set(err, FM_ERR_ARG, "HF_ENDPOINT is '%.200s': expected the URL of a hub, such "
                       "as https://huggingface.co", text);
    (void)snprintf(env->endpoint, sizeof env->endpoint, "%.*s", (int)n, text);
    return 0;
}

/* Sets the certificates. A library of the system knows where the system keeps them; one that is
 * linked to the program looks where distributions do. */
static void find_certificates(struct pull_env *env)
{
    static const char *const bundles[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"};
    for (size_t i = 0; env->ca_bundle == NULL && i < sizeof bundles / sizeof bundles[0]; i++)
        env->ca_bundle = variable(bundles[i]);
#ifdef FLASHMOE_CURL_LINKED
    static const char *const files[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Arch, Alpine, Gentoo */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, RHEL */
        "/etc/ssl/ca-bundle.pem",             /* SUSE */
        "/etc/ssl/cert.pem",                  /* Alpine, Void */
    };
    for (size_t i = 0; env->ca_bundle == NULL && i < sizeof files / sizeof files[0]; i++)
        if (plat_file_exists(files[i]))
            env->ca_bundle = files[i];
#endif
}

int pull_env_read(struct pull_env *env, struct fm_error *err)
{
    int rc = pull_env_folders(env, err);
    if (rc != 0)
        return rc;
    env->is_offline = is_true("HF_HUB_OFFLINE");
    find_certificates(env);
    rc = read_endpoint(env, err);
    return rc != 0 ? rc : read_token(env, err);
}
