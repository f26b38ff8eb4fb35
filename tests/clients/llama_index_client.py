"""Checks what PyPI's llama-index sees of the server at FLASHMOE_URL; run by clients_test.py."""
import os
import unittest

import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."


class City(pydantic.BaseModel):
    """A city."""
    city: str
    days: int


def get_weather(city: str, days: int) -> str:
    """Tells the weather."""
    return f"{city}, {days} days: sunny A"


class LlamaIndex(unittest.TestCase):
    def setUp(self):
        self.model = OpenAILike(model="any", api_base=URL + "/v1", api_key="sesame",
                                is_chat_model=True, is_function_calling_model=True,
                                context_window=4096, max_retries=0)

    def test_text(self):
        self.assertEqual(self.model.complete("A").text, TEXT)
        answer = self.model.chat([ChatMessage(role="user", content="A")])
        self.assertEqual(answer.message.content, TEXT)

    def test_stream(self):
        self.assertEqual("".join(p.delta for p in self.model.stream_complete("A")), TEXT)

    def test_tools(self):
        tool = FunctionTool.from_defaults(get_weather)
        answer = self.model.chat_with_tools([tool], user_msg="T", allow_parallel_tool_calls=True)
        call = self.model.get_tool_calls_from_response(answer)[0]
        self.assertEqual((call.tool_name, call.tool_kwargs),
                         ("get_weather", {"city": "Paris", "days": 3}))

    def test_embeddings(self):
        model = OpenAILikeEmbedding(model_name="any", api_base=URL + "/v1", api_key="sesame")
        self.assertEqual(len(model.get_text_embedding("A")), 256)
        self.assertEqual(len(model.get_text_embedding_batch(["A", "B", "A"])), 3)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
