"""A fault that mutate.py plants."""
from typing import NamedTuple


class Fault(NamedTuple):
    name: str  # what goes wrong, in a few words
    file: str
    old: str   # occurs once in the file
    new: str
    tests: list
