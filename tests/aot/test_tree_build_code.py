"""tree_build as a real configuration declares it: no spills with any mask, alone and with the last draft step."""

import pytest
from programs import compile_to, load

from specc.codegen import render
from specc.codegen.aot import KernelSource, compile_kernels
from specc.codegen.cache import Cache
from specc.kernels import FAMILIES

MODEL = {"vocab_size": 128256, "dtype": "bfloat16"}
MASKS = {"none": {}, "qlen": {}, "bitpacked": {}, "full": {"context_length": 8192}}


def sources(mask: str, topk: int = 8, num_steps: int = 5, nodes: int = 64) -> list[KernelSource]:
    """Both forms of the kernel, every buffer aligned."""
    shape = {"topk": topk, "num_steps": num_steps, "num_draft_tokens": nodes, "mask": mask}
    module = compile_to("canonicalize", load("EAGLE", **shape, **MASKS[mask], target=MODEL, draft=MODEL))
    family = FAMILIES["tree_build"]
    found = []
    for number, cluster in enumerate(family.candidates(module)):
        spec = family.spec(module, "tree_build", cluster)
        found.append(
            KernelSource(
                name=f"tree_build_{number}",
                function=family.stem,
                text=render.render_kernel(family.stem, spec.flags, [mask]),
                arguments=tuple((argument.name, argument.type) for argument in spec.arguments),
                constants=spec.constants,
                aligned=frozenset(argument.name for argument in spec.arguments),
                num_warps=spec.num_warps,
                num_stages=spec.num_stages,
            )
        )
    return found


def assert_no_spills(given: list[KernelSource], *archs: str) -> None:
    """Compile the unfused and the fused form."""
    assert len(given) == 2
    none = Cache.disabled()
    artifacts = compile_kernels(given, archs, lib=render.lib_sources(), cache=none, workers=None, on_done=None)
    for artifact in artifacts.values():
        assert artifact.spills == 0, artifact
        assert not artifact.global_scratch


@pytest.mark.parametrize("mask", MASKS)
def test_no_spills(mask: str) -> None:
    assert_no_spills(sources(mask), "sm_90")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "gfx942"])
@pytest.mark.parametrize("mask", MASKS)
def test_no_spills_elsewhere(mask: str, arch: str) -> None:
    assert_no_spills(sources(mask), arch)


@pytest.mark.slow
@pytest.mark.parametrize(("topk", "num_steps", "nodes"), [(16, 16, 512), (16, 5, 512), (16, 4, 64), (2, 16, 63)])
def test_no_spills_in_extreme_trees(topk: int, num_steps: int, nodes: int) -> None:
    assert_no_spills(sources("qlen", topk, num_steps, nodes), "sm_90")
