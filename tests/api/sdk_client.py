"""Checks what PyPI's openai, anthropic, openai-agents and instructor see of the server at
FLASHMOE_URL; run by sdk_test.py."""
import asyncio
import json
import os
import typing
import unittest

import agents
import anthropic
import instructor
import openai
import pydantic

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"},
                                           "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}}
         for name in ("get_weather", "get_time")]
PICTURE = "iVBORw0KGgo="


class City(pydantic.BaseModel):
    city: str
    days: int


class Fixed(pydantic.BaseModel):
    kind: typing.Literal["a"]
    n: typing.Literal[7]


def says(text):
    return [{"role": "user", "content": text}]


class OpenAI(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key="sesame", max_retries=0)

    def tearDown(self):
        self.client.close()

    def chat(self, text, **more):
        return self.client.chat.completions.create(model="any", messages=says(text), **more)

    def test_text(self):
        answer = self.chat("A")
        self.assertEqual(answer.choices[0].message.content, TEXT)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.completion_tokens, 4)

    def test_stream(self):
        chunks = list(self.chat("A", stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
                         TEXT)
        self.assertEqual(chunks[-1].usage.completion_tokens, 4)

    def test_tools(self):
        answer = self.chat("T", tools=TOOLS).choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        call = answer.message.tool_calls[0]
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris", "days": 3})
        with self.client.chat.completions.stream(model="any", messages=says("U"),
                                                 tools=TOOLS) as stream:
            final = stream.get_final_completion().choices[0].message
        self.assertEqual([c.function.name for c in final.tool_calls], ["get_weather", "get_time"])
        history = [*says("U"), final.model_dump(exclude_none=True),
                   *({"role": "tool", "tool_call_id": c.id, "content": "ok A"}
                     for c in final.tool_calls)]
        again = self.client.chat.completions.create(model="any", messages=history, tools=TOOLS)
        self.assertEqual(again.choices[0].message.content, TEXT)

    def test_functions(self):
        """The form before tools."""
        functions = [t["function"] for t in TOOLS]
        answer = self.chat("T", functions=functions, function_call="auto").choices[0]
        self.assertEqual(answer.finish_reason, "function_call")
        call = answer.message.function_call
        self.assertEqual((call.name, json.loads(call.arguments)),
                         ("get_weather", {"city": "Paris", "days": 3}))
        streamed = ""
        for chunk in self.chat("T", functions=functions, stream=True):
            delta = chunk.choices[0].delta.function_call
            streamed += delta.arguments if delta else ""
        self.assertEqual(streamed, call.arguments)
        history = [*says("T"), answer.message.model_dump(exclude_none=True),
                   {"role": "function", "name": "get_weather", "content": "sunny A"}]
        again = self.client.chat.completions.create(model="any", messages=history,
                                                    functions=functions)
        self.assertEqual(again.choices[0].message.content, TEXT)

    def test_pictures(self):
        """A tool's picture does not end the conversation; one of the user is refused."""
        url = "data:image/png;base64," + PICTURE
        final = self.chat("T", tools=TOOLS).choices[0].message
        picture = {"type": "image_url", "image_url": {"url": url}}
        result = {"role": "tool", "tool_call_id": final.tool_calls[0].id}
        for more in ([{**result, "content": [picture, {"type": "text", "text": "so A"}]}],
                     [{**result, "content": "read"},
                      {"role": "user", "content": [picture, {"type": "text", "text": "so A"}]}]):
            again = self.client.chat.completions.create(
                model="any", tools=TOOLS, messages=[*says("T"), final, *more])
            self.assertEqual(again.choices[0].message.content, TEXT)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": [picture]}])
        self.assertEqual(caught.exception.param, "messages[0].content[0]")
        call = {"type": "function_call", "call_id": "c", "name": "get_time", "arguments": "{}"}
        parts = [{"type": "input_image", "image_url": url, "detail": "auto"},
                 {"type": "input_text", "text": "so A"}]
        answer = self.client.responses.create(model="any", input=[
            *says("T"), call, {"type": "function_call_output", "call_id": "c", "output": parts}])
        self.assertEqual(answer.output_text, TEXT)

    def test_reasoning(self):
        message = self.chat("R").choices[0].message
        self.assertEqual(message.reasoning_content, "Let me think.")
        self.assertEqual(message.content, "Forty-two.")

    def test_logprobs_and_choices(self):
        answer = self.chat("A", n=2, logprobs=True, top_logprobs=2)
        self.assertEqual(len(answer.choices), 2)
        self.assertEqual(answer.choices[1].logprobs.content[0].token, "Hello")

    def test_completions(self):
        self.assertEqual(self.client.completions.create(model="any", prompt="A").choices[0].text,
                         TEXT)

    def test_models(self):
        self.assertEqual(len(list(self.client.models.list())), 1)

    def test_responses(self):
        answer = self.client.responses.create(model="any", input="A")
        self.assertEqual(answer.output_text, TEXT)
        kinds = []
        with self.client.responses.stream(model="any", input="U", tools=[
                {"type": "function", "name": t["function"]["name"], "parameters": SCHEMA,
                 "strict": False} for t in TOOLS]) as stream:
            for event in stream:
                kinds.append(event.type)
            final = stream.get_final_response()
        self.assertEqual(kinds[-1], "response.completed")
        self.assertEqual([item.type for item in final.output],
                         ["reasoning", "message", "function_call", "function_call"])

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("A", temperature=50)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("word " * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=URL + "/v1", api_key="no").models.list()
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model="any", input="A", dimensions=3)

    def test_embeddings(self):
        found = self.client.embeddings.create(model="any", input=["A", "B", "A"]).data
        self.assertEqual([len(d.embedding) for d in found], [256] * 3)
        self.assertEqual(found[0].embedding, found[2].embedding)
        self.assertNotEqual(found[0].embedding, found[1].embedding)

    def test_cancel(self):
        stream = self.chat("L", stream=True)
        for _, chunk in zip(range(5), stream):
            self.assertEqual(chunk.model, "any")
        stream.close()
        self.assertEqual(self.chat("A").choices[0].message.content, TEXT)


class Typed(unittest.TestCase):
    """Typed answers, also next to tools, as the libraries request them."""

    def setUp(self):
        self.client = openai.OpenAI(base_url=URL + "/v1", api_key="sesame", max_retries=0)

    def tearDown(self):
        self.client.close()

    def test_parse(self):
        tool = openai.pydantic_function_tool(City, name="get_weather")
        for more in ({}, {"tools": [tool]}):
            answer = self.client.chat.completions.parse(model="any", messages=says("O"),
                                                        response_format=City, **more)
            self.assertEqual(answer.choices[0].message.parsed, City(city="Oslo", days=2))
        answer = self.client.chat.completions.parse(
            model="any", messages=says("P"), response_format=City, tools=[tool])
        call = answer.choices[0].message.tool_calls[0].function
        self.assertEqual(call.parsed_arguments, City(city="Kyiv", days=3))
        answer = self.client.responses.parse(model="any", input="O", text_format=City)
        self.assertEqual(answer.output_parsed, City(city="Oslo", days=2))

    def test_cut_call(self):
        """A call that is cut off raises an error that says so, and is not a call."""
        with self.assertRaises(openai.LengthFinishReasonError):
            self.client.chat.completions.parse(model="any", messages=says("P"), max_tokens=2,
                                               response_format=City, tools=[
                                                   openai.pydantic_function_tool(
                                                       City, name="get_weather")])

    def test_agents(self):
        agents.set_tracing_disabled(True)
        asked = []

        @agents.function_tool
        def get_weather(city: str, days: int) -> str:
            asked.append((city, days))
            return "sunny O"

        async def run(kind):
            async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="sesame",
                                          max_retries=0) as client:
                agent = agents.Agent(name="x", instructions="Help.", tools=[get_weather],
                                     output_type=City, model=kind("any", openai_client=client))
                return await agents.Runner.run(agent, "P", max_turns=3)

        for kind in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
            self.assertEqual(asyncio.run(run(kind)).final_output, City(city="Oslo", days=2))
        self.assertEqual(asked, [("Kyiv", 3)] * 2)

    def test_instructor(self):
        for mode, kind, text, wanted in (
                (instructor.Mode.TOOLS, Fixed, "A", Fixed(kind="a", n=7)),
                (instructor.Mode.JSON_SCHEMA, City, "O", City(city="Oslo", days=2)),
                (instructor.Mode.JSON, City, "O", City(city="Oslo", days=2))):
            client = instructor.from_openai(self.client, mode=mode)
            answer = client.chat.completions.create(model="any", messages=says(text),
                                                    response_model=kind, max_retries=0)
            self.assertEqual(answer.model_dump(), wanted.model_dump())


class Anthropic(unittest.TestCase):
    def setUp(self):
        self.client = anthropic.Anthropic(base_url=URL, api_key="sesame", max_retries=0)
        self.tools = [{"name": t["function"]["name"], "input_schema": SCHEMA} for t in TOOLS]

    def tearDown(self):
        self.client.close()

    def ask(self, text, **more):
        return self.client.messages.create(model="any", max_tokens=200, messages=says(text),
                                           **more)

    def test_text(self):
        answer = self.ask("A", system="Be kind.")
        self.assertEqual((answer.content[0].text, answer.stop_reason), (TEXT, "end_turn"))

    def test_stream(self):
        with self.client.messages.stream(model="any", max_tokens=200, messages=says("U"),
                                         tools=self.tools) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, "I look it up.")
        self.assertEqual([b.type for b in final.content],
                         ["thinking", "text", "tool_use", "tool_use"])
        self.assertEqual(final.content[2].input, {"city": "Rome"})
        self.assertEqual(final.usage.output_tokens, 10)
        results = [{"type": "tool_result", "tool_use_id": b.id, "content": "ok A"}
                   for b in final.content if b.type == "tool_use"]
        again = self.client.messages.create(
            model="any", max_tokens=200, tools=self.tools,
            messages=[*says("U"), {"role": "assistant", "content": final.content},
                      {"role": "user", "content": results}])
        self.assertEqual(again.content[0].text, TEXT)
        self.assertGreater(again.usage.cache_read_input_tokens, 20)

    def test_pictures(self):
        """As an agent's tool that reads a file answers."""
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                               "data": PICTURE}}
        final = self.ask("T", tools=self.tools)
        messages = [*says("T"), {"role": "assistant", "content": final.content},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": final.content[0].id,
                         "content": [picture, {"type": "text", "text": "so A"}]}]}]
        again = self.client.messages.create(model="any", max_tokens=200, tools=self.tools,
                                            messages=messages)
        self.assertEqual(again.content[0].text, TEXT)
        self.assertGreater(again.usage.cache_read_input_tokens, 20)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(model="any", max_tokens=5, messages=[
                {"role": "user", "content": [picture]}])
        self.assertIn("messages[0].content[0]", str(caught.exception))
        after = self.client.messages.create(model="any", max_tokens=200, messages=[
            {"role": "user", "content": [picture]}, *says("never mind A")])
        self.assertEqual(after.content[0].text, TEXT)

    def test_schema(self):
        schema = {**SCHEMA, "required": ["city", "days"], "additionalProperties": False}
        shape = {"format": {"type": "json_schema", "schema": schema}}
        for more in ({}, {"tools": self.tools}):
            answer = self.ask("O", extra_body={"output_config": shape}, **more)
            self.assertEqual(json.loads(answer.content[0].text), {"city": "Oslo", "days": 2})
        answer = self.ask("P", extra_body={"output_config": shape}, tools=self.tools)
        self.assertEqual(answer.content[0].input, {"city": "Kyiv", "days": 3})
        answer = self.ask("W", tools=self.tools, tool_choice={"type": "auto",
                                                              "disable_parallel_tool_use": True})
        self.assertEqual([b.type for b in answer.content], ["tool_use"])

    def test_count(self):
        count = self.client.messages.count_tokens(model="any", messages=says("A"))
        usage = self.ask("A").usage
        self.assertEqual(count.input_tokens,
                         usage.input_tokens + usage.cache_read_input_tokens)

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask("A", temperature=50)
        self.assertIn("temperature", str(caught.exception))
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=URL, api_key="no").messages.create(
                model="any", max_tokens=5, messages=says("A"))


if __name__ == "__main__":
    unittest.main()
