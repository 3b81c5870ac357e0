"""The columns of a draft's head that ranks share out: as many on any number of ranks, whoever hands over logits."""

from __future__ import annotations

from typing import Any

import pytest
from programs import load


@pytest.mark.parametrize("ranks", [1, 2, 16])
@pytest.mark.parametrize(
    "engine", [None, *(pytest.param(name, marks=pytest.mark.engines) for name in ("sglang", "vllm"))]
)
@pytest.mark.parametrize("logits", ["gathered", "sharded"])
def test_columns_are_a_multiple_of_64(ranks: int, engine: str | None, logits: str) -> None:
    if engine == "vllm" and logits == "sharded":
        return
    more: dict[str, Any] = {} if engine is None else {"engine": engine, "page_size": 16}
    sizes = {"vocab_size": 90, "num_kv_heads": 16}
    keys = {"target": sizes, "draft": sizes | {"head": "int8"}, "tensor_parallel": ranks, "logits": logits}
    if engine is None and logits == "sharded":
        keys["target"] = sizes | {"padded_vocab_size": 96}
    config = load("EAGLE", **keys, **more).config
    assert config.draft is not None
    shared = ranks > 1 or logits == "sharded"
    assert config.draft.padded_vocab_size == (128 if shared else None)
    if logits == "gathered" and engine != "vllm":
        assert config.target.padded_vocab_size is None


def test_columns_that_are_written() -> None:
    sizes = {"vocab_size": 90, "head": "weights", "padded_vocab_size": 96}
    config = load("EAGLE", target={"vocab_size": 90}, draft=sizes, tensor_parallel=4).config
    assert config.draft is not None and config.draft.padded_vocab_size == 96
