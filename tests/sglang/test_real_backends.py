"""SGLang's attention backends by their contract: each forward reads its own keys, and SGLang's graphs keep theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from real_backends import BATCHES, KINDS, NODES, PAGE, STEPS
from sglang_files import printed


@pytest.fixture(scope="module")
def reads() -> dict[str, Any]:
    said = printed("real_backends.py")
    return json.loads(said[said.index("{") :])


@pytest.mark.parametrize("kind", [*KINDS])
def test_forwards_read_their_keys(kind: str, reads: dict[str, Any]) -> None:
    kept, steps = reads[kind]
    assert kept, "what SGLang's graphs read has been replaced"
    more = {f"draft {step}": step + 1 for step in range(STEPS - 1)} | {"verify": NODES, "extend": STEPS + 1}
    for lengths, step in zip(BATCHES, steps, strict=True):
        assert step.keys() == more.keys()
        for forward, (keys, pages) in step.items():
            assert keys == [length + more[forward] for length in lengths.values()]
            for row, count, table in zip(lengths, keys, pages, strict=True):
                wanted = [reads["slots"][row][at] // PAGE for at in range(0, count, PAGE)]
                assert table[: len(wanted)] == wanted


def test_an_assistant_reads_the_text_in_a_second_pool(reads: dict[str, Any]) -> None:
    """As it is, without the place of any draft."""
    for lengths, (keys, pages) in zip(BATCHES, reads["assisted"], strict=True):
        assert keys == [*lengths.values()]
        for row, count, table in zip(lengths, keys, pages, strict=True):
            wanted = [reads["slots"][row][at] // PAGE for at in range(0, count, PAGE)]
            assert table[: len(wanted)] == wanted


def test_triton_verifies_what_the_adapter_prepares() -> None:
    """Windows over one KV pool and over two, and packed rows, by SGLang's kernel: float32, against plain torch."""
    said = printed("real_windows.py")
    apart = json.loads(said[said.rindex("[") :])
    assert len(apart) == 4 and max(apart) < 1e-5
