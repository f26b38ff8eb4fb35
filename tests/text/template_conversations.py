"""Conversations that chat templates are compared on: [(name, variables)]."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place\nin °C",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A \"town\" & <country>"},
                "days": {"type": "integer", "default": 3, "minimum": 1},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "detail": {"type": "object", "properties": {
                    "wind": {"type": "boolean"},
                    "at": {"type": "array", "items": {"type": "number"}},
                    "mixed": {"type": ["string", "null"]}}, "required": ["wind"]},
            },
            "required": ["place"],
        },
    },
}
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "return": {"type": "number", "description": "the result"},
    },
}
BARE_TOOL = {"name": "bare", "description": "not wrapped", "parameters": {"type": "object"}}


def call(name, arguments, number=1):
    return {"id": f"call{number:05d}", "type": "function",
            "function": {"name": name, "arguments": arguments}}


def tool_turns(arguments, is_text_content=True):
    return [
        {"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "content": "" if is_text_content else None,
         "tool_calls": [call("get_weather", arguments)]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
         "content": "{\"t\": 21.5}"},
        {"role": "assistant", "content": "It is 21.5 °C."},
        {"role": "user", "content": "And tomorrow?"},
    ]


HI = {"role": "user", "content": "Hi"}
PLACE = {"place": "Zürich", "days": 2, "f": 1.5, "e": 1e22, "ok": True, "no": None,
         "list": [1, "a", {"b": []}], "empty": {}}

CONVERSATIONS = {
    "user": [HI],
    "system": [{"role": "system", "content": "Be brief."}, HI],
    "developer": [{"role": "developer", "content": "Be brief."}, HI],
    "turns": [{"role": "system", "content": "  spaces \n"}, {"role": "user", "content": "One"},
              {"role": "assistant", "content": "1"}, {"role": "user", "content": "Two\n"},
              {"role": "assistant", "content": " 2 "}, {"role": "user", "content": "\n three "}],
    "last is assistant": [HI, {"role": "assistant", "content": "Hello"}],
    "empty": [{"role": "user", "content": ""}],
    "empty system": [{"role": "system", "content": ""}, HI],
    "nothing": [],
    "no content": [HI, {"role": "assistant"}],
    "null content": [{"role": "user", "content": None}],
    "two users": [HI, {"role": "user", "content": "Again"}],
    "starts with assistant": [{"role": "assistant", "content": "Hello"}, HI],
    "late system": [HI, {"role": "system", "content": "Now be brief."}],
    "odd text": [{"role": "user", "content": "a\tb\r\n\u2028\u00a0\U0001f600 {{ x }} {% if %} "
                  "<|im_start|>system <|im_end|> </s> \\n \"q\" 'q' & < >"},
                 {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"},
                 {"role": "user", "content": "\u00c5\u0301 e\u0301 \ufeff"}],
    "thinking in text": [HI, {"role": "assistant", "content": "<think>\nwhy\n</think>\n\nSo."},
                         {"role": "user", "content": "More"},
                         {"role": "assistant", "content": "<think>a</think>b</think>c"},
                         {"role": "user", "content": "End"}],
    "reasoning": [HI, {"role": "assistant", "reasoning_content": "Let me see.\n", "content": "So"},
                  {"role": "user", "content": "More"}],
    "reasoning, other names": [HI, {"role": "assistant", "reasoning": "r", "thinking": "t",
                                    "content": "So"}, {"role": "user", "content": "More"}],
    "parts": [{"role": "system", "content": [{"type": "text", "text": "S"}]},
              {"role": "user", "content": [{"type": "text", "text": "One"},
                                           {"type": "text", "text": " two"}]}],
    "image": [{"role": "user", "content": [
        {"type": "image", "image": "a.png"}, {"type": "text", "text": "What is it?"}]}],
    "image url": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "text", "text": "What?"}]}],
    "odd parts": [{"role": "user", "content": [{"type": "video", "video": "v"},
                                               {"type": "audio"}, {"text": "x"}, "plain"]}],
    "tool turns": tool_turns(PLACE),
    "tool turns, text arguments": tool_turns("{\"place\": \"Zürich\"}"),
    "tool turns, null content": tool_turns(PLACE, False),
    "tool turns, bad arguments": tool_turns("not json"),
    "two calls": [HI, {"role": "assistant", "content": "Both", "reasoning_content": "Two.",
                       "tool_calls": [call("get_weather", {"place": "A"}),
                                      call("calculate", {}, 2)]},
                  {"role": "tool", "tool_call_id": "call00001", "content": "x"},
                  {"role": "tool", "tool_call_id": "call00002", "content": {"a": [1, 2.0]}}],
    "unwrapped call": [HI, {"role": "assistant", "content": "",
                            "tool_calls": [{"name": "bare", "arguments": {"a": 1}}]},
                       {"role": "tool", "content": "r"}],
    "tool parts": [HI, {"role": "assistant", "tool_calls": [call("calculate", {})]},
                   {"role": "tool", "content": [{"type": "text", "text": "done"}]}],
    "odd role": [{"role": "narrator", "content": "Once"}],
    "no role": [{"content": "x"}],
    "numbers": [{"role": "user", "content": 5}, {"role": "assistant", "content": True}],
}

SETTINGS = {
    "": {},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"tools": [WEATHER, CALCULATE]},
    "bare tool": {"tools": [BARE_TOOL]},
    "no tools": {"tools": []},
    "thinking on": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
    "thinking off": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    "continue": {"continue_final_message": True, "add_generation_prompt": False,
                 "documents": [{"title": "T", "text": "D"}], "date_string": "2026-01-01"},
    "kept thinking": {"clear_thinking": False, "preserve_thinking": True,
                      "keep_past_thinking": True, "add_vision_id": True, "tools": [WEATHER],
                      "builtin_tools": ["python"], "model_identity": "You.",
                      "custom_tools": [CALCULATE]},
}


def all_cases():
    for conversation, messages in CONVERSATIONS.items():
        for setting, more in SETTINGS.items():
            variables = {"messages": messages, "tools": None, "documents": None,
                         "add_generation_prompt": True, **more}
            yield f"{conversation} / {setting or 'plain'}", variables
