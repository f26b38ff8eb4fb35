"""Checks what PyPI's litellm sees of the server at FLASHMOE_URL; run by clients_test.py."""
import os
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true" # it would fetch one
import litellm # pylint: disable=wrong-import-position

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}}]
# The same server through three of its providers.
PROVIDERS = {"openai/any": URL + "/v1", "anthropic/any": URL, "ollama_chat/any": URL}
litellm.telemetry = False
litellm.suppress_debug_info = True


def says(text):
    return [{"role": "user", "content": text}]


class LiteLlm(unittest.TestCase):
    def complete(self, model, text, **more):
        return litellm.completion(model=model, api_base=PROVIDERS[model], api_key="sesame",
                                  messages=says(text), max_tokens=60, num_retries=0, **more)

    def test_text(self):
        for model in PROVIDERS:
            answer = self.complete(model, "A")
            self.assertEqual(answer.choices[0].message.content, TEXT, model)
            self.assertEqual(answer.usage.completion_tokens, 4, model)

    def test_stream(self):
        for model in PROVIDERS:
            parts = self.complete(model, "A", stream=True)
            self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts), TEXT, model)

    def test_tools(self):
        for model in PROVIDERS:
            call = self.complete(model, "T", tools=TOOLS).choices[0].message.tool_calls[0].function
            self.assertEqual(call.name, "get_weather", model)
            self.assertIn("Paris", call.arguments, model)

    def test_errors(self):
        with self.assertRaises(litellm.BadRequestError):
            self.complete("openai/any", "A", temperature=50)
        with self.assertRaises(litellm.AuthenticationError):
            litellm.completion(model="openai/any", api_base=URL + "/v1", api_key="no",
                               messages=says("A"), num_retries=0)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
