#!/usr/bin/env python3
"""A last message that is continued is rendered as transformers renders it.

usage: continued_test.py PROGRAM NANO [--cache DIR]

The exit status is 77 when the package cannot be installed.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from packages import HERE, python_of

sys.path.insert(0, str(HERE.parent / "api"))
import scripted_model # pylint: disable=wrong-import-position
from served import Server # pylint: disable=wrong-import-position

TRIMS = ("{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content | trim + "
         "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}"
         "{{- '<|im_start|>assistant\\n' }}{%- endif %}")
# As thinking models have it: the last message gets an empty reasoning before its text.
THINKS = ("{%- for m in messages %}{%- if m.role == 'assistant' and loop.last %}"
          "{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' + m.content.lstrip('\\n') }}"
          "{%- else %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}{%- endif %}"
          "{{- '<|im_end|>\\n' }}{%- endfor %}{{- '[end]' }}")
TEXTS = ["Once upon a", "A list:\n\n- one\n- ", " padded \n", "\u65e5\u672c\u8a9e \U0001f600",
         "<|im_end|> is text", "short. Hello there"]


def conversations():
    for text in TEXTS:
        yield [{"role": "user", "content": "Tell me."}, {"role": "assistant", "content": text}]
        yield [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."},
               {"role": "assistant", "content": text}, {"role": "user", "content": text},
               {"role": "assistant", "content": text}]


def rendered(program, model, all_messages):
    with Server(program, model) as server:
        for messages in all_messages:
            status, answer = server.post("/apply-template", {"messages": messages,
                                                             "continue_final_message": True})
            assert status == 200, (messages, answer)
            yield answer["prompt"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("nano")
    parser.add_argument("--cache", type=pathlib.Path)
    options = parser.parse_args()
    python = python_of("lm-eval", ["lm_eval[api]<1", "transformers<6"], options.cache)
    cases, ours = [], []
    with tempfile.TemporaryDirectory() as folder:
        for template in (None, TRIMS, THINKS):
            model = options.nano
            if template is not None:
                model = scripted_model.make(pathlib.Path(folder) / "model", template=template)
            cases += [(template, messages) for messages in conversations()]
            ours += rendered(options.program, model, conversations())
        file = pathlib.Path(folder) / "cases.json"
        file.write_text(json.dumps(cases))
        done = subprocess.run([python, HERE / "continued_client.py", file, options.nano],
                              check=True, stdout=subprocess.PIPE, encoding="utf-8",
                              env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": folder})
    theirs = json.loads(done.stdout.split("RESULT ", 1)[1])
    for (_, messages), a, b in zip(cases, ours, theirs, strict=True):
        assert a == b, (messages, a, b)
    print(f"{len(cases)} conversations are rendered alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())
