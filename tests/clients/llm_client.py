"""Checks what PyPI's llm, a program for the terminal, sees of the server at FLASHMOE_URL; run by
clients_test.py."""
import json
import os
import pathlib
import subprocess
import unittest

URL = os.environ["FLASHMOE_URL"]
TEXT = "Hello there, world."
MODELS = """- model_id: flash
  model_name: any
  api_base: "%s/v1"
  api_key_name: flash
  supports_tools: true
  supports_schema: true
"""


class Llm(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(os.environ["HOME"]) / "llm"
        folder.mkdir(exist_ok=True)
        (folder / "extra-openai-models.yaml").write_text(MODELS % URL, encoding="utf-8")
        (folder / "keys.json").write_text(json.dumps({"flash": "sesame"}), encoding="utf-8")
        self.environment = {**os.environ, "LLM_USER_PATH": str(folder)}

    def run_llm(self, *words):
        return subprocess.run(["llm", *words], env=self.environment, check=True, timeout=600,
                              stdout=subprocess.PIPE, encoding="utf-8").stdout.strip()

    def test_text(self):
        self.assertEqual(self.run_llm("-m", "flash", "A"), TEXT)
        self.assertEqual(self.run_llm("-m", "flash", "--no-stream", "A"), TEXT)

    def test_tools(self):
        code = "def get_weather(city: str, days: int) -> str:\n    return 'sunny A'\n"
        self.assertIn(TEXT, self.run_llm("-m", "flash", "--functions", code, "T"))

    def test_schema(self):
        found = json.loads(self.run_llm("-m", "flash", "--schema", "city, days int", "O"))
        self.assertEqual(found, {"city": "Oslo", "days": 2})


if __name__ == "__main__":
    unittest.main()
