"""Kernels of heads at a real size: they compile for every GPU, and take what the family and a block may."""

from __future__ import annotations

from typing import Any

import pytest
from compiled import MODEL, compiled, kernels_of, loads_of_two_bytes
from programs import load

from specc.compiler.codegen.artifact import KNOWN_ARCHS
from specc.compiler.config.archs import SHARED_BYTES
from specc.compiler.config.rules.legality import WITHOUT_FP8
from specc.compiler.kernels import FAMILIES

MARKOV = {"algorithm": "DSPARK", "num_steps": 2}
CHAIN, TREE = {"num_steps": 2}, {"num_steps": 3, "topk": 4, "num_draft_tokens": 8}


@pytest.mark.parametrize("head", ["weights", "int8", "fp8"])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["argmax", "topk"])
@pytest.mark.parametrize("largest", [8, 64, 256])
def test_tiles_of_every_size(head: str, shape: dict[str, Any], largest: int) -> None:
    archs = [arch for arch in KNOWN_ARCHS if head != "fp8" or arch not in WITHOUT_FP8]
    keys: dict[str, Any] = {"buckets": [largest], "target": MODEL, "draft": {**MODEL, "head": head}}
    sources = kernels_of(load(archs=archs, **keys, **shape), "head")
    assert sources
    for (_, arch), artifact in compiled(sources, *archs).items():
        assert artifact.spills <= FAMILIES["head"].spills, artifact
        assert artifact.shared <= SHARED_BYTES[arch], artifact


@pytest.mark.parametrize("verify", ["greedy", "rejection"])
@pytest.mark.parametrize(
    ("dtype", "largest", "head"),
    [
        *[("float32", 8, "engine"), ("bfloat16", 8, "engine"), ("bfloat16", 256, "engine")],
        *[("bfloat16", 8, "fp8"), ("bfloat16", 256, "int8"), ("float16", 64, "fp8")],
    ],
)
def test_logits_with_a_bias(verify: str, dtype: str, largest: int, head: str) -> None:
    """Reduced, or stored for a draw: two kernels, one for each row of the block; and one of a head that is computed."""
    model = MODEL | {"dtype": dtype}
    archs = [arch for arch in KNOWN_ARCHS if head != "fp8" or arch not in WITHOUT_FP8]
    keys: dict[str, Any] = {"buckets": [largest], "verify": verify, "target": model}
    draft = model | {"markov_rank": 256, "head": head}
    sources = kernels_of(load(archs=archs, **MARKOV, **keys, draft=draft), "head")
    assert len(sources) == 2 + (head != "engine")
    for (_, arch), artifact in compiled(sources[-1:], *archs).items():
        assert artifact.spills <= FAMILIES["head"].spills, artifact
        assert artifact.shared <= SHARED_BYTES[arch], artifact
        if arch == "sm_90":
            assert not loads_of_two_bytes(artifact), "weights are read in vectors"
