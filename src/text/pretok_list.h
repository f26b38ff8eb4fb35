/* Every pre-tokenizer, sorted: PRETOK(name of the descriptor). */
PRETOK(pretok_qwen2)
PRETOK(pretok_qwen35)
