"""Checks what PyPI's pydantic-ai sees of the server at FLASHMOE_URL; run by clients_test.py."""
import asyncio
import os
import unittest

import pydantic
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."


class City(pydantic.BaseModel):
    """A city."""
    city: str
    days: int


def models():
    yield OpenAIChatModel("any", provider=OpenAIProvider(base_url=URL + "/v1", api_key="sesame"))
    yield AnthropicModel("any", provider=AnthropicProvider(base_url=URL, api_key="sesame"))


class PydanticAi(unittest.TestCase):
    def test_text(self):
        for model in models():
            answer = Agent(model).run_sync("A")
            self.assertEqual(answer.output, TEXT)
            self.assertEqual(answer.usage().output_tokens, 4)

    def test_stream(self):
        async def run(model):
            async with Agent(model).run_stream("A") as answer:
                return "".join([part async for part in answer.stream_text(delta=True)])

        for model in models():
            self.assertEqual(asyncio.run(run(model)), TEXT)

    def test_tools(self):
        for model in models():
            asked = []
            agent = Agent(model)

            @agent.tool_plain
            def get_weather(city: str, days: int) -> str:
                asked.append((city, days)) # pylint: disable=cell-var-from-loop
                return "sunny A"

            self.assertEqual(agent.run_sync("T").output, TEXT)
            self.assertEqual(asked, [("Paris", 3)])

    def test_typed(self):
        agent = Agent(next(models()), output_type=NativeOutput(City))
        self.assertEqual(agent.run_sync("O").output, City(city="Oslo", days=2))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
