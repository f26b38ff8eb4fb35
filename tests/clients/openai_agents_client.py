"""Checks what PyPI's openai-agents sees of the server at FLASHMOE_URL; run by clients_test.py."""
import asyncio
import os
import unittest

import agents
import openai

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."
KINDS = (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)
agents.set_tracing_disabled(True)


async def run(kind, asked, streams):
    @agents.function_tool
    def get_weather(city: str, days: int) -> str:
        asked.append((city, days))
        return "sunny A"

    async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key="sesame",
                                  max_retries=0) as client:
        agent = agents.Agent(name="x", instructions="Help.", tools=[get_weather],
                             model=kind("any", openai_client=client))
        if not streams:
            return (await agents.Runner.run(agent, "T")).final_output
        result = agents.Runner.run_streamed(agent, "T")
        async for _ in result.stream_events():
            pass
        return result.final_output


class Agents(unittest.TestCase):
    def test_tools(self):
        for kind in KINDS:
            for streams in (False, True):
                asked = []
                self.assertEqual(asyncio.run(run(kind, asked, streams)), TEXT)
                self.assertEqual(asked, [("Paris", 3)])


if __name__ == "__main__":
    unittest.main(warnings="ignore")
