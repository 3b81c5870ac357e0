"""Texts of a few tokens that are drawn, so many of each prompt that their distributions are told apart."""

from __future__ import annotations

import math
import os
from typing import Any

from sglang_server import Served

PROMPTS: list[tuple[str, dict[str, float]]] = [
    ("import os\n", {"temperature": 1.0}),
    ("class Foo:\n    def ", {"temperature": 1.2, "top_k": 20}),
    ("for name in ", {"temperature": 0.9, "top_p": 0.9}),
]
TEXTS = int(os.environ.get("SPECC_TEST_TEXTS", "300"))
"""Of each prompt; `make sglang TEXTS=2000` takes some six minutes."""
BIAS = 1 + 0.1 * math.sqrt(2000 / TEXTS)
"""A temperature that so many texts tell from the right one; of 2000 one that is a tenth too high."""
CROWD = {"max_running_requests": 64, "max_total_tokens": 8192, "chunked_prefill_size": 2048}


def short(warmer: float = 1.0, *, seeds: bool, alike: bool = False) -> list[dict[str, Any]]:
    """Four tokens of every prompt, TEXTS times; without seeds SGLang's own sampler draws as it likes.

    `alike`: all requests have one seed.
    """
    made: list[dict[str, Any]] = []
    for text, wanted in PROMPTS:
        sampling = {**wanted, "temperature": wanted["temperature"] * warmer, "max_new_tokens": 4, "ignore_eos": True}
        for number in range(TEXTS):
            seed = {"sampling_seed": 0 if alike else number} if seeds else {}
            made.append({"text": text, "stream": False, "sampling": sampling | seed})
    return made


def texts(served: Served) -> list[list[list[int]]]:
    """The tokens of every text, by prompt."""
    tokens = [output["token_ids"] for output in served.outputs]
    return [tokens[start : start + TEXTS] for start in range(0, len(tokens), TEXTS)]
