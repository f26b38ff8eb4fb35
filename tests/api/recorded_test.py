#!/usr/bin/env python3
"""Sends recorded answers of model families through the official client libraries: PyPI openai (chat
and responses) and anthropic, streamed and not, and each conversation's second turn.

usage: recorded_test.py PROGRAM [--cache DIR] [--only TEXT]

recorded.json has answers of llama.cpp's own tests (record.py), in the format of each family. For
each one a scripted model with the family's published template writes the answer, and the libraries
must see the content, the reasoning and the calls that llama.cpp expects. Then the results of the
calls are sent: at least the prefix that both prompts share must come from the cache.

The templates are those of real_templates_test.py, the libraries those of sdk_test.py. Exits with 77
if they cannot be had.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import scripted_model
import sdk_test
from served import Server

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[0] / "text"))
import compare_templates # pylint: disable=wrong-import-position

PIECE = 7 # characters; longer where that makes it unlike all others
USER = {"role": "user", "content": "What now?"}


def pieces_of(answer, prompt):
    """Cuts an answer into tokens, none of which occurs twice or ends the prompt."""
    found, at = [], 0
    while at < len(answer):
        n = PIECE
        while at + n < len(answer) and (answer[at:at + n] in found or
                                        prompt.endswith(answer[at:at + n])):
            n += 1
        found.append(answer[at:at + n])
        at += n
    while len(found) > 1 and (len(found[-1]) < PIECE or found[-1] in found[:-1]):
        found[-2:] = [found[-2] + found[-1]]
    return found


# ---- the three APIs ------------------------------------------------------------------------------

def of_calls(calls):
    return [(name, json.loads(arguments)) for name, arguments in calls]


class Chat:
    def __init__(self, url):
        import openai
        self.client = openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0)

    def ask(self, one, extra, stream, history=(), **more):
        tools = [{"type": "function", "function": tool} for tool in one["tools"]]
        body = {"model": "m", "messages": [USER, *history], "temperature": 0, "extra_body": extra,
                **({"tools": tools} if tools else {}), **more}
        if not stream:
            answer = self.client.chat.completions.create(**body)
            return answer.choices[0].message.model_dump(exclude_none=True), answer.usage
        message, usage = {"role": "assistant", "content": "", "reasoning_content": ""}, None
        for chunk in self.client.chat.completions.create(
                stream=True, stream_options={"include_usage": True}, **body):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                message["content"] += choice.delta.content or ""
                message["reasoning_content"] += (choice.delta.model_extra or {}).get(
                    "reasoning_content") or ""
                for call in choice.delta.tool_calls or []:
                    calls = message.setdefault("tool_calls", [])
                    if call.id:
                        calls.append({"id": call.id, "type": "function", "function": {
                            "name": call.function.name, "arguments": ""}})
                    calls[call.index]["function"]["arguments"] += call.function.arguments or ""
        return message, usage

    def read(self, message):
        calls = [(c["function"]["name"], c["function"]["arguments"])
                 for c in message.get("tool_calls", [])]
        return message.get("content") or "", message.get("reasoning_content") or "", of_calls(calls)

    def results(self, message):
        return [message, *({"role": "tool", "tool_call_id": c["id"], "content": "done"}
                           for c in message["tool_calls"])]

    def cached(self, usage):
        return usage.prompt_tokens_details.cached_tokens


class Responses(Chat):
    def ask(self, one, extra, stream, history=(), **more):
        tools = [{"type": "function", "strict": False, **tool} for tool in one["tools"]]
        if "max_tokens" in more:
            more["max_output_tokens"] = more.pop("max_tokens")
        body = {"model": "m", "input": [USER, *history], "temperature": 0, "extra_body": extra,
                **({"tools": tools} if tools else {}), **more}
        if stream:
            with self.client.responses.stream(**body) as events:
                for _ in events:
                    pass
                answer = events.get_final_response()
        else:
            answer = self.client.responses.create(**body)
        return answer.model_dump(exclude_none=True)["output"], answer.usage

    def read(self, message):
        texts = {"message": "", "reasoning": ""}
        for item in message:
            for part in item.get("content", []) if item["type"] in texts else ():
                texts[item["type"]] += part["text"]
        calls = [(i["name"], i["arguments"]) for i in message if i["type"] == "function_call"]
        return texts["message"], texts["reasoning"], of_calls(calls)

    def results(self, message):
        for item in message:
            item.pop("parsed_arguments", None)
        return [*message, *({"type": "function_call_output", "call_id": i["call_id"],
                             "output": "done"} for i in message if i["type"] == "function_call")]

    def cached(self, usage):
        return usage.input_tokens_details.cached_tokens


class Messages:
    def __init__(self, url):
        import anthropic
        self.client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)

    def ask(self, one, extra, stream, history=(), **more):
        tools = [{"name": tool["name"], "description": tool["description"],
                  "input_schema": tool["parameters"]} for tool in one["tools"]]
        body = {"model": "m", "messages": [USER, *history], "temperature": 0, "max_tokens": 500,
                "extra_body": extra, **({"tools": tools} if tools else {}), **more}
        if stream:
            body.pop("stream", None)
            with self.client.messages.stream(**body) as events:
                answer = events.get_final_message()
        else:
            answer = self.client.messages.create(**body)
        return [b.model_dump(exclude_none=True) for b in answer.content], answer.usage

    def read(self, message):
        texts = {"text": "", "thinking": ""}
        for block in message:
            if block["type"] in texts:
                texts[block["type"]] += block[block["type"]]
        return texts["text"], texts["thinking"], [(b["name"], b["input"]) for b in message
                                                  if b["type"] == "tool_use"]

    def results(self, message):
        return [{"role": "assistant", "content": message}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": b["id"], "content": "done"}
            for b in message if b["type"] == "tool_use"]}]

    def cached(self, usage):
        return usage.cache_read_input_tokens


# ---- one record ----------------------------------------------------------------------------------

def prompt_of(server, one, extra, history=()):
    tools = [{"type": "function", "function": tool} for tool in one["tools"]]
    status, answer = server.post("/apply-template", {
        "messages": [USER, *history], **({"tools": tools} if tools else {}), **extra})
    assert status == 200, answer
    return answer["prompt"]


def tokens_of(server, text):
    return server.post("/tokenize", {"content": text, "parse_special": True})[1]["tokens"]


def shared(first, second):
    """Returns how many tokens at the beginning of both prompts are the same."""
    n = 0
    while n < min(len(first), len(second)) and first[n] == second[n]:
        n += 1
    return n


def differences(server, one, extra):
    wanted = (one["content"].strip(), one["reasoning"].strip(),
              [(c["name"], json.loads(c["arguments"])) for c in one["calls"]])
    for api in (Chat, Responses, Messages):
        client = api(server.url)
        for stream in (False, True):
            where = f"{api.__name__}, {'streamed' if stream else 'whole'}"
            message, _ = client.ask(one, extra, stream)
            content, reasoning, calls = client.read(message)
            got = (content.strip(), reasoning.strip(), calls)
            if got != wanted:
                yield f"{where}: expected {wanted}\n  got {got}"
            elif calls:
                history = client.results(message)
                _, usage = client.ask(one, extra, False, history, max_tokens=1)
                yield from uncached(server, one, extra, client.cached(usage), where)


def uncached(server, one, extra, n_cached, where):
    """Checks the second turn: what its prompt shares with the first is not computed again."""
    calls = [{"id": f"functions.{c['name']}:{i}", "type": "function", "function": c}
             for i, c in enumerate(one["calls"])]
    history = [{"role": "assistant", "content": one["content"],
                "reasoning_content": one["reasoning"], "tool_calls": calls},
               *({"role": "tool", "tool_call_id": c["id"], "content": "done"} for c in calls)]
    n = shared(tokens_of(server, prompt_of(server, one, extra)),
               tokens_of(server, prompt_of(server, one, extra, history)))
    if n < 10 or n_cached < n:
        yield f"{where}: {n_cached} tokens of the second turn are cached, of {n} that are the same"


def check(program, template, records):
    """Returns how many records are read differently."""
    n_bad = 0
    with tempfile.TemporaryDirectory() as folder:
        scripted_model.make(folder, template=template)
        with Server(program, folder) as server:
            prompts = []
            for one in records:
                thinks = one.get("thinking", True) # as in llama.cpp
                extra = {"chat_template_kwargs": {"enable_thinking": thinks}}
                prompts.append((extra, prompt_of(server, one, extra)))
    for one, (extra, prompt) in zip(records, prompts):
        with tempfile.TemporaryDirectory() as folder:
            scripted_model.make(folder, template=template, context=16384,
                                scripts={prompt[-1]: pieces_of(one["answer"], prompt)})
            with Server(program, folder) as server:
                bad = list(differences(server, one, extra))
        n_bad += bool(bad)
        if bad:
            print(f"{one['template']}: {one['answer']!r}", *bad, sep="\n")
    return n_bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--cache", type=pathlib.Path, default=HERE.parents[1] / "build-oracle")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    python = sdk_test.python_client(cache)[0]
    if pathlib.Path(sys.prefix) != python.parents[1]:
        return subprocess.run([python, __file__, *sys.argv[1:]], check=False,
                              env={**os.environ, "NO_PROXY": "127.0.0.1"}).returncode
    spec = compare_templates.SDISTS[0]
    folder = compare_templates.fetch(cache, spec, [
        sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary",
        spec.partition("==")[0], "--quiet", spec])
    if folder is None:
        sdk_test.skip(f"{spec} is not there and cannot be fetched")
    found = {path.stem: path for path in folder.rglob("*.jinja")}
    records = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))
    n_bad = 0
    for name in sorted({one["template"] for one in records if options.only in one["template"]}):
        own = [one for one in records if one["template"] == name]
        bad = check(options.program, found[name].read_text(encoding="utf-8"), own)
        n_bad += bad
        print(f"{name}: {len(own)} answers, {bad} read differently", flush=True)
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
