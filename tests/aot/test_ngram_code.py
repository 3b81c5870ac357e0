"""The look-up as real configurations declare it: no spills with long texts, corpora, wide trees and any mask."""

from typing import Any

import pytest
from compiled import compiled, kernels_of
from programs import load

WIDE = {"topk": 4, "num_steps": 5, "num_draft_tokens": 21}
LARGEST = {"topk": 16, "num_steps": 16, "num_draft_tokens": 257, "options": {"corpus": "words.txt"}}
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_steps": 5},
    "tree": WIDE,
    "bitpacked": {**WIDE, "mask": "bitpacked"},
    "slots": {**WIDE, "mask": "slots"},
    "full": {**WIDE, "mask": "full", "context_length": 8192},
    "long": {**WIDE, "options": {"window": 100000, "longest": 32}},
    "corpus": {**WIDE, "options": {"corpus": "words.txt"}},
    "largest": LARGEST,
    "largest of slots": {**LARGEST, "mask": "slots"},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_spills(shape: str) -> None:
    """A look-up's registers leave room for five programs of 128 threads on a multiprocessor."""
    loaded = load("NGRAM", **SHAPES[shape])
    artifacts = compiled(kernels_of(loaded, "ngram_start", "ngram_propose"), "sm_90")
    assert len(artifacts) == 2
    for artifact in artifacts.values():
        assert artifact.spills == 0, artifact
        assert artifact.registers <= 96, artifact
        assert not artifact.global_scratch
