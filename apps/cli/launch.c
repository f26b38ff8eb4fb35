#include "apps/cli/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ANSWER 32000u /* maximum tokens per answer, for agents that require a number */
#define CONTEXT_GUESS 32768u

static bool set(struct launch *l, const char *name, const char *value)
{
    return json_object_set_new(l->environment, name, json_string(value)) == 0;
}

/* Sets a variable unless the user has set it. */
static bool set_default(struct launch *l, const char *name, unsigned value)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%u", value);
    return getenv(name) != NULL || set(l, name, text);
}

static bool add(struct launch *l, json_t *text)
{
    return text != NULL && json_array_append_new(l->arguments, text) == 0;
}

/* Returns the base URL for OpenAI clients. */
static json_t *openai_url(const struct launch *l)
{
    return json_sprintf("%s/v1", l->url.base);
}

static bool set_openai_url(struct launch *l, const char *name)
{
    return json_object_set_new(l->environment, name, openai_url(l)) == 0;
}

static unsigned context_of(const struct launch *l)
{
    return l->n_context > 0 ? l->n_context : CONTEXT_GUESS;
}

/* Allows an answer a quarter of the context; the conversation needs the rest. */
static unsigned answer_of(const struct launch *l)
{
    const unsigned quarter = context_of(l) / 4;
    return quarter < MAX_ANSWER ? quarter : MAX_ANSWER;
}

/* ---- one agent each --------------------------------------------------------------------- */

/* The server answers any model name with its one model. All names are set, so that the agent shows
 * the right one. The attribution header would change the start of the prompt with every request. */
static bool tell_claude(struct launch *l)
{
    static const char *const models[] = {
        "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
        "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
        "CLAUDE_CODE_SUBAGENT_MODEL"};
    bool is_good = set(l, "ANTHROPIC_BASE_URL", l->url.base) &&
                   set(l, "ANTHROPIC_AUTH_TOKEN", l->api_key) && set(l, "ANTHROPIC_API_KEY", "");
    for (size_t i = 0; is_good && i < sizeof models / sizeof models[0]; i++)
        is_good = set(l, models[i], l->model);
    return is_good && set(l, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1") &&
           set(l, "CLAUDE_CODE_ATTRIBUTION_HEADER", "0") &&
           set_default(l, "CLAUDE_CODE_MAX_OUTPUT_TOKENS", answer_of(l)) &&
           set_default(l, "CLAUDE_CODE_AUTO_COMPACT_WINDOW", context_of(l)) &&
           set_default(l, "API_TIMEOUT_MS", 3600000);
}

/* Adds -c KEY=VALUE. A JSON string is also a TOML string. */
static bool add_setting(struct launch *l, const char *key, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    const bool is_good = text != NULL && add(l, json_string("-c")) &&
                         add(l, json_sprintf("%s=%s", key, text));
    free(text);
    json_decref(value);
    return is_good;
}

static bool tell_codex(struct launch *l)
{
    return set(l, "FLASHMOE_API_KEY", l->api_key) &&
           add_setting(l, "model_provider", json_string("flashmoe")) &&
           add_setting(l, "model_providers.flashmoe.name", json_string("Flash-MoE")) &&
           add_setting(l, "model_providers.flashmoe.base_url", openai_url(l)) &&
           add_setting(l, "model_providers.flashmoe.env_key", json_string("FLASHMOE_API_KEY")) &&
           add_setting(l, "model_providers.flashmoe.wire_api", json_string("responses")) &&
           add_setting(l, "model_providers.flashmoe.stream_idle_timeout_ms",
                       json_integer(3600000)) &&
           add_setting(l, "model", json_string(l->model)) &&
           add_setting(l, "model_context_window", json_integer(context_of(l)));
}

static bool tell_opencode(struct launch *l)
{
    json_t *config = json_pack(
        "{s:{s:{s:s, s:s, s:{s:o, s:s}, s:{s:{s:s, s:{s:i, s:i}}}}}, s:o, s:o}", "provider",
        "flashmoe", "npm", "@ai-sdk/openai-compatible", "name", "Flash-MoE", "options", "baseURL",
        openai_url(l), "apiKey", l->api_key, "models", l->model, "name", l->model, "limit",
        "context", (int)context_of(l), "output", (int)answer_of(l), "model",
        json_sprintf("flashmoe/%s", l->model), "small_model",
        json_sprintf("flashmoe/%s", l->model));
    char *text = config != NULL ? json_dumps(config, JSON_COMPACT) : NULL;
    const bool is_good = text != NULL && set(l, "OPENCODE_CONFIG_CONTENT", text);
    free(text);
    json_decref(config);
    return is_good;
}

static bool tell_qwen(struct launch *l)
{
    return set_openai_url(l, "OPENAI_BASE_URL") && set(l, "OPENAI_API_KEY", l->api_key) &&
           set(l, "OPENAI_MODEL", l->model) &&
           set_default(l, "QWEN_CODE_MAX_OUTPUT_TOKENS", answer_of(l)) &&
           add(l, json_string("--auth-type")) && add(l, json_string("openai")) &&
           add(l, json_string("--model")) && add(l, json_string(l->model));
}

/* The agent's model list is a user file, so an extension adds the model for this run. */
static bool tell_pi(struct launch *l)
{
    json_t *provider = json_pack(
        "{s:s, s:o, s:s, s:s, s:[{s:s, s:s, s:b, s:[s], s:{s:i, s:i, s:i, s:i}, s:i, s:i}]}",
        "name", "Flash-MoE", "baseUrl", openai_url(l), "apiKey", "FLASHMOE_API_KEY", "api",
        "openai-completions", "models", "id", l->model, "name", l->model, "reasoning", 0, "input",
        "text", "cost", "input", 0, "output", 0, "cacheRead", 0, "cacheWrite", 0, "contextWindow",
        (int)context_of(l), "maxTokens", (int)answer_of(l));
    char *text = provider != NULL ? json_dumps(provider, JSON_INDENT(2)) : NULL;
    json_decref(provider);
    if (text == NULL)
        return false;
    static const char form[] = "export default function (pi) {\n"
                               "  pi.registerProvider(\"flashmoe\", %s);\n}\n";
    const size_t bytes = sizeof form + strlen(text);
    l->file_name = "flashmoe.js";
    l->file_text = malloc(bytes);
    if (l->file_text != NULL)
        (void)snprintf(l->file_text, bytes, form, text);
    free(text);
    return l->file_text != NULL && set(l, "FLASHMOE_API_KEY", l->api_key) &&
           add(l, json_string("--extension")) && add(l, json_string(LAUNCH_FILE)) &&
           add(l, json_string("--provider")) && add(l, json_string("flashmoe")) &&
           add(l, json_string("--model")) && add(l, json_string(l->model));
}

const struct agent agents[] = {
    {"claude", "claude", "@anthropic-ai/claude-code", 18814, 65536, tell_claude},
    {"codex", "codex", "@openai/codex", 6111, 32768, tell_codex},
    {"opencode", "opencode", "opencode-ai", 7207, 32768, tell_opencode},
    {"qwen", "qwen", "@qwen-code/qwen-code", 14857, 32768, tell_qwen},
    {"pi", "pi", "@mariozechner/pi-coding-agent", 1360, 16384, tell_pi},
    {.name = NULL},
};

bool launch_fill(struct launch *launch)
{
    launch->environment = json_object();
    launch->arguments = json_array();
    return launch->environment != NULL && launch->arguments != NULL &&
           launch->agent->tell(launch);
}

void launch_clear(struct launch *launch)
{
    json_decref(launch->environment);
    json_decref(launch->arguments);
    free(launch->file_text);
    launch->environment = launch->arguments = NULL;
    launch->file_text = NULL;
}
