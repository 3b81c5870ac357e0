"""The launch that builds a tree, as real configurations declare it: no spills, any mask, with and without logits."""

import pytest
from compiled import MODEL, compiled, kernels_of
from programs import load

from specc.compiler.codegen.aot import KernelSource

MASKS = {"none": {}, "qlen": {}, "bitpacked": {}, "full": {"context_length": 8192}, "slots": {}}


def building(mask: str, topk: int, num_steps: int, nodes: int) -> KernelSource:
    """The kernel that selects, of a program."""
    shape = {"topk": topk, "num_steps": num_steps, "num_draft_tokens": nodes, "mask": mask}
    loaded = load("EAGLE", **shape, **MASKS[mask], target=MODEL, draft=MODEL)
    (source,) = (source for source in kernels_of(loaded) if "tree_select(" in source.text)
    return source


def assert_no_spills(source: KernelSource) -> None:
    """Compile it."""
    (artifact,) = compiled([source], "sm_90").values()
    assert artifact.spills == 0, artifact
    assert not artifact.global_scratch


@pytest.mark.parametrize("mask", MASKS)
def test_no_spills(mask: str) -> None:
    """After the last draft forward's logits; and in the rows that a step of depth 1 begins with."""
    last, first = building(mask, 8, 5, 64), building(mask, 8, 1, 9)
    assert (last.function, first.function) == ("topk", "rows")
    assert_no_spills(last)
    assert_no_spills(first)


@pytest.mark.parametrize("mask", ["qlen", "slots"])
@pytest.mark.parametrize(("topk", "num_steps", "nodes"), [(16, 16, 512), (16, 5, 512), (16, 4, 64), (2, 16, 63)])
def test_no_spills_in_extreme_trees(topk: int, num_steps: int, nodes: int, mask: str) -> None:
    assert_no_spills(building(mask, topk, num_steps, nodes))
