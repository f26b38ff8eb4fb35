"""Prints what transformers renders of conversations whose last message is continued; run by
continued_test.py with a file of [template or null, messages] and a folder with a tokenizer."""
import json
import sys

import transformers

tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[2])
with open(sys.argv[1], encoding="utf-8") as file:
    cases = json.load(file)
print("RESULT " + json.dumps([
    tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False,
                                  continue_final_message=True) for template, messages in cases]))
