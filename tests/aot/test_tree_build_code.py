"""tree_build as a real configuration declares it: no spills with any mask, alone and with the last draft step."""

import pytest
from compiled import candidates, compiled
from programs import load

MODEL = {"vocab_size": 128256, "dtype": "bfloat16"}
MASKS = {"none": {}, "qlen": {}, "bitpacked": {}, "full": {"context_length": 8192}}


def assert_no_spills(mask: str, topk: int = 8, num_steps: int = 5, nodes: int = 64) -> None:
    """Compile the unfused and the fused form."""
    shape = {"topk": topk, "num_steps": num_steps, "num_draft_tokens": nodes, "mask": mask}
    loaded = load("EAGLE", **shape, **MASKS[mask], target=MODEL, draft=MODEL)
    artifacts = compiled(candidates(loaded, "tree_build"), "sm_90")
    assert len(artifacts) == 2
    for artifact in artifacts.values():
        assert artifact.spills == 0, artifact
        assert not artifact.global_scratch


@pytest.mark.parametrize("mask", MASKS)
def test_no_spills(mask: str) -> None:
    assert_no_spills(mask)


@pytest.mark.slow
@pytest.mark.parametrize(("topk", "num_steps", "nodes"), [(16, 16, 512), (16, 5, 512), (16, 4, 64), (2, 16, 63)])
def test_no_spills_in_extreme_trees(topk: int, num_steps: int, nodes: int) -> None:
    assert_no_spills("qlen", topk, num_steps, nodes)
