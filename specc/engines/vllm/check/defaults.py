"""What vLLM takes where its command line says nothing: attention, blocks, requests, graphs, sampling.

All of it is looked up in what the release itself has answered (`make answers`, `tests/vllm/resolved_answers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from specc.compiler.config.archs import CPU, Gpu
from specc.engines.vllm.check.command_line import ANSWERS
from specc.engines.vllm.served import own_layers

SINKS = r"GptOss|MiMoV2"
"""Those whose softmax has sinks; only a model that is built says it, of its config.json and its class."""


def attention(
    gpu: Gpu, cache: str, dtype: str, architecture: str, *, small_cache: bool, adaptive: bool = False
) -> str | None:
    """Return the attention backend of a model where none is written; None where vLLM has not said one."""
    sinks = "sinks" if cache == "mha" and not gpu.is_cpu and re.match(SINKS, architecture) else None
    layout = f"{sinks or cache} adaptive" if adaptive else sinks or cache
    said = _said("attention", own_layers(architecture) or layout, gpu) or {}
    return said.get(f"{dtype} fp8" if small_cache else dtype, said.get("usual"))


@cache
def _rows(table: str) -> Mapping[tuple[str, str], Any]:
    """Return the rows of a table by name and by GPU: their keys have a name and all GPUs that they are of."""
    split = ((key.partition(" on "), row) for key, row in ANSWERS.tables[table].items())
    return {(name, arch): row for (name, _, archs), row in split for arch in archs.split()}


def _said(table: str, name: str, gpu: Gpu) -> Any:
    """Return the row of a name on a GPU; None where vLLM was not asked."""
    return _rows(table).get((name, CPU if gpu.is_cpu else gpu.arch))


def is_captured(backend: str, gpu: Gpu) -> bool:
    """Return whether drafts with this attention can be a graph."""
    said = _said("backends", backend, gpu)
    return said is not None and said["captured"]


def is_adaptive(backend: str, gpu: Gpu) -> bool:
    """Return whether attention reads on the device how many drafts of each request a step verifies."""
    said = _said("backends", backend, gpu)
    return said is not None and said["adaptive"]


BLOCK: int = ANSWERS.tables["blocks"]["usual"]
"""Tokens of a block, where the backends have it."""


def window_block(architecture: str) -> int | None:
    """Return the tokens of a block of windows, of which alone layers of a class's drafts have any; None of most."""
    begin = own_layers(architecture)
    return None if begin is None else ANSWERS.tables["blocks"][begin]


def block_of(backends: set[str], gpu: Gpu) -> int:
    """Return the tokens of a block where nothing of it is written: the fewest that every backend has."""
    said = (_said("backends", name, gpu) for name in backends)
    return max([BLOCK, *(row["block"] for row in said if row is not None)])


def max_requests(gpu: Gpu, ranks: int = 1) -> int:
    """Return how many requests a server keeps where nothing of it is written."""
    if gpu.is_cpu:
        return ANSWERS.tables["max_requests"][CPU] * ranks
    starts = _said("max_requests", "usual", gpu)
    return starts[str(max(int(start) for start in starts if int(start) <= gpu.memory))]


def most_captured(requests: int, tokens: int, gpu: Gpu, architecture: str = "") -> int:
    """Return of how many tokens vLLM's largest graph is, for requests with so many tokens in a step.

    ``architecture`` is the target's class.
    """
    own = ANSWERS.tables["largest_graph"].get(architecture)
    return own or min(2 * requests * tokens, _said("largest_graph", "usual", gpu))


_STEPS = ((8, 64, 8), (64, 257, 16), (288, 1 << 16, 32))


def buckets_up_to(most: int) -> list[int]:
    """Return sizes of batches up to the largest: more of the small ones, which are the most frequent."""
    small = [size for size in (1, 2, 4) if size <= most]
    large = [size for begin, end, step in _STEPS for size in range(begin, min(end, most + 1), step)]
    return sorted({*small, *large, most})


SAMPLED: Mapping[str, float] = ANSWERS.tables["sampled"]
"""What a request of the OpenAI server is sampled with that says nothing of it, where the model says nothing either."""
