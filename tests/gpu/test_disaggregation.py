"""Prefill and decode as two processes on GPUs: through host memory on one, from GPU to GPU through NCCL on two."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from .conftest import ROOT, RUNNABLE, Built

PROMPTS = {
    "function": "def main():\n",
    "imports": "import os\nimport sys\n\n",
    "class": "class Node:\n    def __init__(self, value):\n        self.",
    "letter": "x",
    "loop": "for index in range(",
}
NEW = 48
NAMES = ("standalone-chain", "eagle-tree", "eagle-tree-paged", "ngram-tree")
ONE_GPU = {"decode": ("cuda:0", "cpu"), "prefill": ("cuda:0", "cpu")}
TWO_GPUS = {"decode": ("cuda:0", "cuda:0"), "prefill": ("cuda:1", "cuda:1")}
"""By side: the engine's device, and where the tensors of messages are."""
WAYS = [
    pytest.param(ONE_GPU, id="gloo"),
    pytest.param(TWO_GPUS, id="nccl", marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")),
]
SECONDS = 500.0
APART = "\ndisaggregation: true\n"
MOVING = 15.0
"""How long a side waits for a tensor of a message that has begun."""


@contextmanager
def sides(
    name: str, built: Built, way: dict[str, tuple[str, str]], whole: int | None = None
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Start both processes; whatever happens, none of them is left.

    whole: how many requests the side that prefills sends before it dies in the midst of the next.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    job = {"package": built.name, "draft": RUNNABLE[name], "port": port, "prompts": PROMPTS, "new": NEW}
    job |= {"moving": MOVING, "whole": whole}
    running: dict[str, subprocess.Popen[str]] = {}
    try:
        for role, (device, channel) in way.items():
            running[role] = start(built, job | {"role": role, "device": device, "channel": channel})
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.communicate()


def start(built: Built, job: dict[str, Any]) -> subprocess.Popen[str]:
    """Start one side."""
    paths = (str(ROOT), str(built.site), *filter(None, [os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "gpu.disaggregated_side", json.dumps(job)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, cwd=ROOT / "tests", env=environment, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What a side says at its end."""
    output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    return json.loads(output)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_text_equals_generate(name: str, way: dict[str, tuple[str, str]], example: Callable[..., Built]) -> None:
    """And drafts are accepted as often as if nothing had moved: a draft that computes on garbage changes no text."""
    pytest.importorskip("transformers")
    with sides(name, example(name, APART), way) as running:
        sent, decoded = answer(running["prefill"]), answer(running["decode"])
    assert sent == {"gone": dict.fromkeys(PROMPTS), "pages": 0, "rows": 0}
    assert decoded["errors"] == {}
    assert decoded["tokens"] == decoded["expected"]
    assert (decoded["prefills"], decoded["unhealthy"]) == (0, 0)
    assert decoded["accepted_here"] > 1.2
    assert abs(decoded["accepted"] - decoded["accepted_here"]) < 0.1 * decoded["accepted_here"]
    assert (decoded["pages"], decoded["rows"]) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_killing_the_side_that_prefills_costs_what_it_had_not_sent(
    way: dict[str, tuple[str, str]], example: Callable[..., Built]
) -> None:
    """Two are sent, the third dies under way, the others were still to come."""
    pytest.importorskip("transformers")
    name, (first, second, third, *others) = "standalone-chain", PROMPTS
    with sides(name, example(name, APART), way, whole=2) as running:
        decoded = answer(running["decode"])
        assert running["prefill"].wait(SECONDS) == -signal.SIGKILL
    assert decoded["tokens"] == {request: decoded["expected"][request] for request in (first, second)}
    assert decoded["errors"].keys() == {third, *others}
    assert {kind for kind, _ in decoded["errors"].values()} == {"TransferError"}
    assert "tensors of its state" in decoded["errors"][third][1]
    assert all("peer 'prefill' is gone" in decoded["errors"][request][1] for request in others)
    assert (decoded["pages"], decoded["rows"]) == (0, 0)
