"""Stands in for a coding agent: reads its settings as the agent does, and sends one request.

usage: agent.py NAME [ARGUMENT...]

The agents themselves come from npm (1.3 GB) and are run by `make agents` with the settings that
`flashmoe launch` makes. guide_test.py compares the settings that the page shows with those.
"""
import json
import os
import pathlib
import sys
import tomllib
import urllib.request

QUESTION = [{"role": "user", "content": "Say hello."}]


def post(url, body, key):
    request = urllib.request.Request(url, json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def claude(_):
    env = os.environ
    answer = post(env["ANTHROPIC_BASE_URL"] + "/v1/messages",
                  {"model": env["ANTHROPIC_MODEL"], "max_tokens": 20, "messages": QUESTION},
                  env["ANTHROPIC_AUTH_TOKEN"])
    return answer["content"][0]["text"]


def codex(words):
    """Settings are in -c NAME=VALUE, in TOML, or in the file."""
    given = [word for before, word in zip(words, words[1:]) if before == "-c"]
    path = pathlib.Path.home() / ".codex/config.toml"
    text = "\n".join(given) if given else path.read_text(encoding="utf-8")
    settings = tomllib.loads(text)
    provider = settings["model_providers"][settings["model_provider"]]
    if provider["wire_api"] != "responses":
        sys.exit(f"wire_api is {provider['wire_api']}")
    answer = post(provider["base_url"] + "/responses",
                  {"model": settings["model"], "input": QUESTION, "max_output_tokens": 20},
                  os.environ[provider["env_key"]])
    return answer["output"][0]["content"][0]["text"]


def opencode(_):
    text = os.environ.get("OPENCODE_CONFIG_CONTENT") or \
        (pathlib.Path.home() / ".config/opencode/opencode.json").read_text(encoding="utf-8")
    settings = json.loads(text)
    name, _, model = settings["model"].partition("/")
    provider = settings["provider"][name]
    if model not in provider["models"]:
        sys.exit(f"'{model}' is not one of {list(provider['models'])}")
    answer = post(provider["options"]["baseURL"] + "/chat/completions",
                  {"model": model, "messages": QUESTION, "max_tokens": 20},
                  provider["options"]["apiKey"])
    return answer["choices"][0]["message"]["content"]


def main():
    agents = {"claude": claude, "codex": codex, "opencode": opencode}
    print(agents[sys.argv[1]](sys.argv[2:]))


if __name__ == "__main__":
    main()
