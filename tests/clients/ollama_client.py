"""Checks what PyPI's ollama sees of the server at FLASHMOE_URL; run by clients_test.py."""
import asyncio
import os
import unittest

import ollama
import pydantic

URL = os.environ["FLASHMOE_URL"]
KEY = {"Authorization": "Bearer sesame"}
TEXT = "Hello there, world."


class City(pydantic.BaseModel):
    city: str
    days: int


def get_weather(city: str, days: int) -> str:
    """Tells the weather.

    Args:
        city: where
        days: how many
    """
    return f"{city}, {days} days: sunny A"


def get_time() -> str:
    """Tells the time."""
    return "late"


def says(text):
    return [{"role": "user", "content": text}]


class Ollama(unittest.TestCase):
    def setUp(self):
        self.client = ollama.Client(host=URL, headers=KEY)

    def chat(self, text, **more):
        return self.client.chat(model="any", messages=says(text), **more)

    def test_list(self):
        model = self.client.list().models[0]
        self.assertGreater(model.size, 0)
        self.assertEqual(len(model.digest), 64)
        running = self.client.ps().models[0]
        self.assertEqual((running.model, running.context_length), (model.model, 4096))

    def test_show(self):
        shown = self.client.show("any")
        self.assertEqual(shown.modelinfo["qwen3_moe.context_length"], 4096)
        self.assertEqual(shown.details.family, "qwen3_moe")
        self.assertIn("completion", shown.capabilities)

    def test_chat(self):
        answer = self.chat("A")
        self.assertEqual(answer.message.content, TEXT)
        self.assertEqual((answer.done, answer.done_reason), (True, "stop"))
        self.assertEqual(answer.eval_count, 4)
        self.assertGreater(answer.prompt_eval_count, 0)
        self.assertGreaterEqual(answer.total_duration, answer.eval_duration)

    def test_stream(self):
        parts = list(self.chat("A", stream=True))
        self.assertEqual("".join(p.message.content for p in parts), TEXT)
        self.assertEqual([p.done for p in parts], [False] * (len(parts) - 1) + [True])
        self.assertEqual(parts[-1].eval_count, 4)
        self.assertGreater(len(parts), 3)

    def test_options(self):
        answer = self.chat("L", options={"num_predict": 5, "temperature": 0, "seed": 1,
                                         "repeat_last_n": 64, "num_ctx": 2048})
        self.assertEqual((answer.eval_count, answer.done_reason), (5, "length"))
        self.assertEqual(self.chat("A", options={"stop": [", w"]}).message.content, "Hello there")

    def test_thinking(self):
        message = self.chat("R", think=True).message
        self.assertEqual((message.thinking, message.content), ("Let me think.", "Forty-two."))
        parts = list(self.chat("R", stream=True))
        self.assertEqual("".join(p.message.thinking or "" for p in parts), "Let me think.")
        self.assertEqual("".join(p.message.content or "" for p in parts), "Forty-two.")

    def test_tools(self):
        for stream in (False, True):
            answer = self.chat("U", tools=[get_weather, get_time], stream=stream)
            parts = list(answer) if stream else [answer]
            calls = [c.function for p in parts for c in p.message.tool_calls or []]
            self.assertEqual([(c.name, dict(c.arguments)) for c in calls],
                             [("get_weather", {"city": "Rome"}), ("get_time", {})])
            self.assertEqual("".join(p.message.content or "" for p in parts), "I look it up.")
        message = self.chat("T", tools=[get_weather]).message
        call = message.tool_calls[0].function
        self.assertEqual(call.arguments, {"city": "Paris", "days": 3})
        again = self.client.chat(model="any", tools=[get_weather], messages=[
            *says("T"), message, {"role": "tool", "tool_name": call.name,
                                  "content": get_weather(**call.arguments)}])
        self.assertEqual(again.message.content, TEXT)

    def test_format(self):
        answer = self.chat("O", format=City.model_json_schema())
        self.assertEqual(City.model_validate_json(answer.message.content),
                         City(city="Oslo", days=2))
        self.assertTrue(self.chat("A", format="json", options={"num_predict": 30})
                        .message.content.startswith("{"))

    def test_generate(self):
        answer = self.client.generate(model="any", prompt="A", system="Help.")
        self.assertEqual((answer.response, answer.done), (TEXT, True))
        parts = list(self.client.generate(model="any", prompt="A", raw=True, stream=True))
        self.assertEqual("".join(p.response for p in parts), TEXT)
        self.assertEqual(self.client.generate(model="any").done_reason, "load")
        self.assertEqual(self.client.generate(model="any", keep_alive=0).done_reason, "unload")
        self.assertEqual(self.client.chat(model="any", messages=[]).done_reason, "load")

    def test_keep_alive(self):
        for zero in (0, "0", "0s", "0h0m"):
            self.assertEqual(self.client.generate(model="any", keep_alive=zero).done_reason,
                             "unload")
        for some in (-1, 300, "5m", "1h30m", "1.5h", "-1s"):
            self.assertEqual(self.client.generate(model="any", keep_alive=some).done_reason, "load")
            self.assertEqual(self.client.generate(model="any", prompt="A",
                                                  keep_alive=some).response, TEXT)
        for bad in ("", "5", "m", "5 m", ".h", "5q", "5m,"):
            with self.assertRaises(ollama.ResponseError) as caught:
                self.client.generate(model="any", prompt="A", keep_alive=bad)
            self.assertEqual(caught.exception.status_code, 400)
            self.assertIn("keep_alive", caught.exception.error)

    def test_embeddings(self):
        both = self.client.embed(model="any", input=["A", "B"])
        self.assertEqual((len(both.embeddings), len(both.embeddings[0])), (2, 256))
        self.assertGreater(both.prompt_eval_count, 1)
        one = self.client.embed(model="any", input="A").embeddings
        self.assertEqual(one[0], both.embeddings[0])
        self.assertEqual(self.client.embeddings(model="any", prompt="A").embedding, one[0])
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.embed(model="any", input="A", dimensions=7)
        self.assertIn("dimensions", caught.exception.error)

    def test_pull(self):
        """Programs pull the model that they are about to use. Others are not pulled here."""
        name = self.client.list().models[0].model
        for wanted in (name, name + ":latest"):
            self.assertEqual(self.client.pull(wanted).status, "success")
            self.assertEqual([p.status for p in self.client.pull(wanted, stream=True)], ["success"])
        for wanted in ("other", name + ":7b", name + "x"):
            with self.assertRaises(ollama.ResponseError) as caught:
                self.client.pull(wanted)
            self.assertEqual(caught.exception.status_code, 404)
            self.assertIn("flashmoe pull", caught.exception.error)
        for ask in (lambda: self.client.delete("x"), lambda: self.client.copy("x", "y"),
                    lambda: self.client.create("x", from_="y"), lambda: self.client.push("x")):
            with self.assertRaises(ollama.ResponseError) as caught:
                ask()
            self.assertEqual(caught.exception.status_code, 404)
            self.assertIn("manage models", caught.exception.error)

    def test_logprobs(self):
        answer = self.chat("A", logprobs=True, top_logprobs=2)
        self.assertEqual([p.token for p in answer.logprobs], ["Hello", " there", ", world."])
        self.assertEqual(len(answer.logprobs[0].top_logprobs), 2)
        parts = list(self.chat("A", logprobs=True, stream=True))
        self.assertEqual([q.token for p in parts for q in p.logprobs or []],
                         ["Hello", " there", ", world."])

    def test_errors(self):
        with self.assertRaises(ollama.ResponseError) as caught:
            self.chat("A", options={"temperature": 50})
        self.assertEqual(caught.exception.status_code, 400)
        self.assertIn("options.temperature", caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.chat("word " * 5000)
        self.assertIn("too long", caught.exception.error)
        with self.assertRaises(ollama.ResponseError) as caught:
            ollama.Client(host=URL, headers={"Authorization": "Bearer no"}).list()
        self.assertEqual(caught.exception.status_code, 401)
        with self.assertRaises(ollama.ResponseError) as caught:
            self.client.chat(model="any", messages=[{"role": "user", "content": "A",
                                                     "images": [b"x"]}])
        self.assertEqual(caught.exception.status_code, 400)

    def test_cancel(self):
        stream = self.chat("L", stream=True)
        for _, part in zip(range(5), stream):
            self.assertFalse(part.done)
        stream.close()
        self.assertEqual(self.chat("A").message.content, TEXT)

    def test_async(self):
        async def run():
            client = ollama.AsyncClient(host=URL, headers=KEY)
            text = ""
            async for part in await client.chat(model="any", messages=says("A"), stream=True):
                text += part.message.content
            return text

        self.assertEqual(asyncio.run(run()), TEXT)


if __name__ == "__main__":
    unittest.main(warnings="ignore") # sockets that the library leaves open
