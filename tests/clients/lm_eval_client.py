"""Lets PyPI's lm-eval-harness measure the texts of TEXTS, a JSON file, with the model behind
FLASHMOE_URL; run by lm_eval_test.py. Prints the sums of log probabilities as JSON.

A text is split after its first token: the rest is what the model has to predict. The task is a
file of lm-eval as its users write them.
"""
import json
import os
import pathlib
import sys
import tempfile

import lm_eval
import lm_eval.tasks

TASK = """
task: continue_text
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{first}}}}"
doc_to_target: "{{{{rest}}}}"
target_delimiter: ""
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
"""


def main():
    texts, tokenizer = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "task.yaml").write_text(TASK.format(file=texts))
        found = lm_eval.simple_evaluate(
            model="local-completions",
            model_args={"model": "nano", "base_url": os.environ["FLASHMOE_URL"] + "/v1/completions",
                        "tokenizer_backend": "huggingface", "tokenizer": tokenizer,
                        "num_concurrent": 2, "max_retries": 1, "max_length": 2048},
            tasks=["continue_text"], batch_size=2, log_samples=True, bootstrap_iters=0,
            task_manager=lm_eval.tasks.TaskManager(include_path=folder, include_defaults=False))
    print("RESULT " + json.dumps({
        "sums": [sample["resps"][0][0][0] for sample in found["samples"]["continue_text"]],
        "perplexity": found["results"]["continue_text"]["perplexity,none"]}))


if __name__ == "__main__":
    main()
