"""Downloads a repository with PyPI's huggingface_hub. Usage: real_client.py REPO; HF_ENDPOINT and
HF_HOME say from where and to where. Prints the folder."""
import sys

import huggingface_hub

print(huggingface_hub.snapshot_download(sys.argv[1], ignore_patterns=["original/*"]))
