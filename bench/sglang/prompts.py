"""Prompts for the example models: Python that people wrote, of the standard library, cut to many lengths."""

from __future__ import annotations

import argparse
import inspect
import subprocess
import tarfile
import threading
import typing
from pathlib import Path

PROMPTS = 32
SHORTEST, LONGEST = 20, 1980
"""With an answer, and what SGLang keeps free for a tree, the longest fits the context of 2048."""
MODULES = (argparse, inspect, subprocess, tarfile, threading, typing)


def lengths() -> list[int]:
    """From the shortest to the longest, in equal ratios."""
    ratio = (LONGEST / SHORTEST) ** (1 / (PROMPTS - 1))
    return [round(SHORTEST * ratio**number) for number in range(PROMPTS)]


def text_prompts(folder: Path) -> list[list[int]]:
    """Token ids of prompts, by the tokenizer of a model's folder; each begins at another line."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = "".join(map(inspect.getsource, MODULES)).splitlines(keepends=True)
    made = []
    for number, length in enumerate(lengths()):
        start = number * len(lines) // (PROMPTS + 1)
        made.append(tokenizer("".join(lines[start : start + LONGEST])).input_ids[:length])
    return made
