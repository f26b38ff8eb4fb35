"""Checks what PyPI's langchain-openai and langchain-anthropic see of the server at FLASHMOE_URL;
run by clients_test.py."""
import os
import unittest

import pydantic
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."


class City(pydantic.BaseModel):
    """A city."""
    city: str
    days: int


@tool
def get_weather(city: str, days: int) -> str:
    """Tells the weather."""
    return f"{city}, {days} days: sunny A"


def models():
    yield ChatOpenAI(base_url=URL + "/v1", api_key="sesame", model="any", max_retries=0)
    yield ChatAnthropic(base_url=URL, api_key="sesame", model="any", max_retries=0, max_tokens=60)


class LangChain(unittest.TestCase):
    def test_text(self):
        for model in models():
            answer = model.invoke("A")
            self.assertEqual(answer.text if isinstance(answer.text, str) else answer.text(), TEXT)
            self.assertEqual(answer.usage_metadata["output_tokens"], 4)

    def test_stream(self):
        for model in models():
            text = ""
            for chunk in model.stream("A"):
                text += chunk.content if isinstance(chunk.content, str) else "".join(
                    part.get("text", "") for part in chunk.content)
            self.assertEqual(text, TEXT)

    def test_tools(self):
        for model in models():
            bound = model.bind_tools([get_weather])
            answer = bound.invoke("T")
            call = answer.tool_calls[0]
            self.assertEqual((call["name"], call["args"]),
                             ("get_weather", {"city": "Paris", "days": 3}))
            result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
            again = bound.invoke([HumanMessage("T"), answer, result])
            self.assertIn(TEXT, str(again.content))

    def test_typed(self):
        model = next(models()).with_structured_output(City, method="json_schema")
        self.assertEqual(model.invoke("O"), City(city="Oslo", days=2))

    def test_embeddings(self):
        found = OpenAIEmbeddings(base_url=URL + "/v1", api_key="sesame", model="any",
                                 check_embedding_ctx_length=False).embed_documents(["A", "B"])
        self.assertEqual([len(v) for v in found], [256, 256])


if __name__ == "__main__":
    unittest.main(warnings="ignore")
