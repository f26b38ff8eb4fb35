"""Checks what PyPI's instructor sees of the server at FLASHMOE_URL; run by clients_test.py."""
import os
import unittest

import instructor
import openai
import pydantic

URL = os.environ["FLASHMOE_URL"]


class City(pydantic.BaseModel):
    city: str
    days: int


class Instructor(unittest.TestCase):
    def test_modes(self):
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.TOOLS):
            with openai.OpenAI(base_url=URL + "/v1", api_key="sesame", max_retries=0) as client:
                found = instructor.from_openai(client, mode=mode).chat.completions.create(
                    model="any", response_model=City, max_retries=0, max_tokens=400,
                    temperature=0, messages=[{"role": "user", "content": "O"}])
            self.assertIsInstance(found, City)
            if mode == instructor.Mode.JSON_SCHEMA:
                self.assertEqual((found.city, found.days), ("Oslo", 2))

    def test_partial(self):
        with openai.OpenAI(base_url=URL + "/v1", api_key="sesame", max_retries=0) as client:
            parts = list(instructor.from_openai(
                client, mode=instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
                    model="any", response_model=City,
                    messages=[{"role": "user", "content": "O"}]))
        self.assertEqual((parts[-1].city, parts[-1].days), ("Oslo", 2))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
