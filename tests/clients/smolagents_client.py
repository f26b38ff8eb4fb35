"""Checks what PyPI's smolagents sees of the server at FLASHMOE_URL; run by clients_test.py."""
import os
import unittest

from smolagents import OpenAIServerModel, tool
from smolagents.models import ChatMessageStreamDelta

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."


@tool
def get_weather(city: str, days: int) -> str:
    """Tells the weather.

    Args:
        city: where
        days: how many
    """
    return f"{city}, {days} days: sunny T"


def says(text):
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


class SmolAgents(unittest.TestCase):
    def setUp(self):
        self.model = OpenAIServerModel("any", api_base=URL + "/v1", api_key="sesame")

    def test_text(self):
        self.assertEqual(self.model(says("A")).content, TEXT)

    def test_stream(self):
        parts = list(self.model.generate_stream(says("A")))
        self.assertTrue(all(isinstance(p, ChatMessageStreamDelta) for p in parts))
        self.assertEqual("".join(p.content or "" for p in parts), TEXT)

    def test_tools(self):
        """It asks for a call that must come, and the server forces one."""
        message = self.model(says("T"), tools_to_call_from=[get_weather])
        call = message.tool_calls[0].function
        self.assertEqual(call.name, "get_weather")
        self.assertIn("days", str(call.arguments))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
