#!/usr/bin/env python3
"""Writes the seed corpus of the requests fuzz target.

usage: make_requests_corpus.py [DIR]      (default: corpus/requests next to this script)

An input is one byte, which chooses the endpoint, and the body of a request. The seeds are small and
always the same. Inputs added by hand, such as a fixed finding, are kept.
"""
import json
import pathlib
import sys

CHAT, COMPLETIONS, MESSAGES, RESPONSES, TOKENIZE, DETOKENIZE, TEMPLATE, COUNT = range(8)
OLLAMA_CHAT, OLLAMA_GENERATE, COMPLETION, INFILL, EMBEDDINGS, OLLAMA_SHOW = range(128, 134)
OLLAMA_EMBED, OLLAMA_EMBEDDINGS = 134, 135
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SAY = [{"role": "user", "content": "hi"}]
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}
TALK = [{"role": "developer", "content": "d"}, {"role": "system", "content": [
    {"type": "text", "text": "s"}]}, *SAY, {"role": "assistant", "content": None,
                                            "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"}, {"role": "system",
                                                                      "content": "late"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}]


def seeds():
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.1, "seed": 7,
                "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1,
                "logit_bias": {"5": -100, "6": 3.5}, "stop": ["a", "bb"], "n": 2}
    return {
        "chat": (CHAT, {"messages": SAY}),
        "chat-stream": (CHAT, {"messages": TALK, "tools": TOOLS, "stream": True, "logprobs": True,
                               "top_logprobs": 2, "stream_options": {"include_usage": True},
                               "return_progress": True, "max_completion_tokens": 9, **sampling}),
        "chat-json": (CHAT, {"messages": SAY, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}),
        "chat-object": (CHAT, {"messages": SAY, "response_format": {"type": "json_object"}}),
        "chat-forced": (CHAT, {"messages": SAY, "tools": TOOLS, "tool_choice": "required"}),
        "chat-named": (CHAT, {"messages": SAY, "tools": TOOLS, "tool_choice": {
            "type": "function", "function": {"name": "f"}}}),
        "chat-thinking": (CHAT, {"messages": SAY, "reasoning_effort": "none",
                                 "chat_template_kwargs": {"enable_thinking": True}}),
        "chat-image": (CHAT, {"messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "x"}}]}]}),
        "chat-image-result": (CHAT, {"messages": [*TALK[:-2], {
            "role": "tool", "tool_call_id": "call_1", "content": [
                {"type": "text", "text": "t"}, {"type": "image_url"}, {"type": "text",
                                                                       "text": "u"}]}]}),
        "chat-functions": (CHAT, {"messages": [*SAY, {"role": "assistant", "function_call": {
            "name": "f", "arguments": "{}"}}, {"role": "function", "name": "f", "content": "r"}],
            "functions": [TOOLS[0]["function"]], "stream": True}),
        "chat-function-named": (CHAT, {"messages": SAY, "functions": [TOOLS[0]["function"]],
                                       "function_call": {"name": "f"}}),
        "messages-documents": (MESSAGES, {"max_tokens": 5, "messages": [{
            "role": "user", "content": [
                {"type": "document", "title": "T", "source": {"type": "text", "data": "d"}},
                {"type": "search_result", "title": "T", "source": "s", "content": [
                    {"type": "text", "text": "t"}]},
                {"type": "tool_result", "tool_use_id": "call_1",
                 "content": [{"type": "image"}]}]}]}),
        "responses-image": (RESPONSES, {"input": [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]},
            {"role": "user", "content": [{"type": "input_image"}]}]}),
        "ollama-images": (OLLAMA_CHAT, {"messages": [{**SAY[0], "images": ["x"]}, *SAY]}),
        "completions": (COMPLETIONS, {"prompt": "hi", "echo": True, "max_tokens": 5}),
        "completions-many": (COMPLETIONS, {"prompt": ["a", [1, 2]], "logprobs": 2, **sampling}),
        "completions-ids": (COMPLETIONS, {"prompt": [1, 2, 3], "stream": True}),
        "messages": (MESSAGES, {"max_tokens": 5, "system": [
            {"type": "text", "text": "x-anthropic-billing-header: 1"},
            {"type": "text", "text": "s"}], "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1",
                                          "content": [{"type": "text", "text": "ok"}]}]}],
            "tools": [{"name": "f", "input_schema": SCHEMA}], "stream": True,
            "stop_sequences": ["x"], "metadata": {"user_id": "u"},
            "thinking": {"type": "enabled", "budget_tokens": 5}}),
        "messages-any": (MESSAGES, {"max_tokens": 5, "messages": SAY, "tool_choice": {
            "type": "tool", "name": "f"}, "tools": [{"name": "f", "input_schema": SCHEMA}]}),
        "responses": (RESPONSES, {"input": "hi", "instructions": "i", "max_output_tokens": 5}),
        "responses-items": (RESPONSES, {"stream": True, "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text",
                                                                  "text": "d"}]},
            {"role": "user", "content": "u"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text",
                                                                  "text": "x"}]},
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "ok"}],
            "tools": [{"type": "namespace", "name": "n", "tools": [
                {"type": "function", "name": "f", "parameters": SCHEMA}]}, {"type": "web_search"}],
            "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}},
            "prompt_cache_key": "k"}),
        "responses-json": (RESPONSES, {"input": "hi", "text": {"format": {
            "type": "json_schema", "name": "x", "schema": SCHEMA}}}),
        "tokenize": (TOKENIZE, {"content": "hi <|im_end|>", "with_pieces": True}),
        "detokenize": (DETOKENIZE, {"tokens": [1, 2, 3]}),
        "template": (TEMPLATE, {"messages": TALK, "tools": TOOLS}),
        "count": (COUNT, {"messages": SAY, "system": "s"}),
        "chat-continued": (CHAT, {"messages": [*SAY, {"role": "assistant", "content": "so "}],
                                  "continue_final_message": True, "ignore_eos": True,
                                  "max_tokens": -1}),
        "messages-prefill": (MESSAGES, {"max_tokens": 5, "messages": [*SAY, {
            "role": "assistant", "content": [{"type": "text", "text": "<think>a"}]}]}),
        "completions-scored": (COMPLETIONS, {"prompt": [[1, 2], [3]], "echo": True, "logprobs": 3,
                                             "max_tokens": 0, "stream": True}),
        "ollama-chat": (OLLAMA_CHAT, {"model": "m", "messages": [*SAY, {
            "role": "assistant", "content": "", "thinking": "t", "tool_calls": [
                {"function": {"name": "f", "arguments": {"a": 1}}}]}, {
                    "role": "tool", "tool_name": "f", "content": "ok"}], "tools": TOOLS,
            "think": "low", "logprobs": True, "top_logprobs": 2, "options": {
                "num_predict": 5, "stop": ["a"], "seed": 3, "repeat_last_n": -1}}),
        "ollama-load": (OLLAMA_CHAT, {"model": "m", "messages": [], "keep_alive": 0}),
        "ollama-format": (OLLAMA_GENERATE, {"prompt": "hi", "system": "s", "format": SCHEMA,
                                            "stream": False}),
        "ollama-raw": (OLLAMA_GENERATE, {"prompt": "hi", "raw": True, "format": "json"}),
        "completion": (COMPLETION, {"prompt": ["hi", [1, 2]], "n_predict": 5, "n_probs": 2,
                                    "logit_bias": [[5, False], [6, 1.5]], "return_tokens": True,
                                    "stream": True, "json_schema": SCHEMA}),
        "infill": (INFILL, {"input_prefix": "a", "input_suffix": "b", "prompt": "c",
                            "input_extra": [{"filename": "f", "text": "t"}]}),
        "embeddings": (EMBEDDINGS, {"input": ["hi", [1, 2]], "encoding_format": "base64"}),
        "ollama-show": (OLLAMA_SHOW, {"model": "m"}),
        "ollama-embed": (OLLAMA_EMBED, {"input": ["hi", "there"], "keep_alive": "5m"}),
        "ollama-embeddings": (OLLAMA_EMBEDDINGS, {"prompt": "hi"}),
        "ollama-keep": (OLLAMA_CHAT, {"messages": SAY, "keep_alive": "1h30.5m"}),
    }


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus" / "requests"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (which, body) in seeds().items():
        (folder / name).write_bytes(bytes([which]) + json.dumps(body).encode())


if __name__ == "__main__":
    main()
