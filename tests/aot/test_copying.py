"""Machine code of the families that copy rows, for a large tree: wide accesses, and all loads before any store."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from programs import compile_to, load

from specc.codegen import machine_code, render
from specc.codegen.aot import Artifact, KernelSource, compile_kernels
from specc.codegen.cache import Cache
from specc.kernels import FAMILIES

STEMS = ("prepare", "compact", "duplicate_tail")
LARGE = {"hidden_size": 4096, "num_layers": 80, "num_kv_heads": 8, "head_dim": 128, "vocab_size": 128256}
LAYOUTS: dict[str, dict[str, Any]] = {
    "mha": LARGE,
    "mla": {**LARGE, "kv_layout": "mla", "num_kv_heads": 1, "head_dim": 576},
    # 6 bytes a row: nothing wider than 2 bytes is aligned, in keys and values or in the experts of a node.
    "odd": {**LARGE, "num_kv_heads": 1, "head_dim": 3},
}


def sources(
    layout: str, algorithm: str = "EAGLE", outputs: tuple[str, ...] = ("routed_experts",)
) -> list[KernelSource]:
    """The kernels of a tree of 64 nodes, 8 branches and 5 steps, as a build describes them; aligned where it can be."""
    target = {**LAYOUTS[layout], "dtype": "bfloat16", "experts_per_token": 8}
    tree = {"topk": 8, "num_steps": 5, "num_draft_tokens": 64, "page_size": 64, "buckets": [64]}
    loaded = load(algorithm, **tree, outputs=outputs, target=target, draft={**target, "num_layers": 2})
    module = compile_to("canonicalize", loaded)
    found = []
    for stem in STEMS:
        (cluster,) = FAMILIES[stem].candidates(module)
        spec = FAMILIES[stem].spec(module, stem, cluster)
        arguments = tuple((argument.name, argument.type) for argument in spec.arguments)
        found.append(
            KernelSource(
                name=f"{stem}_{layout}",
                function=stem,
                text=render.render_kernel(stem, spec.flags, ["a test"]),
                arguments=arguments,
                constants=spec.constants,
                aligned=frozenset(name for name, kind in arguments if kind[0] == "*" and name != "req_to_token_ptr"),
                num_warps=spec.num_warps,
                num_stages=spec.num_stages,
            )
        )
    return found


def build(given: list[KernelSource], *archs: str) -> dict[tuple[str, str], Artifact]:
    """Compile without a cache."""
    return compile_kernels(given, archs, lib=render.lib_sources(), cache=Cache.disabled(), workers=None, on_done=None)


@pytest.fixture(scope="module", params=LAYOUTS)
def built(request: pytest.FixtureRequest) -> dict[tuple[str, str], Artifact]:
    """One layout on every target, by family and target."""
    made = build(sources(request.param), "sm_80", "sm_90", "sm_100", "gfx942")
    return {(name.removesuffix(f"_{request.param}"), arch): artifact for (name, arch), artifact in made.items()}


def opcodes(artifact: Artifact) -> list[str]:
    """The instructions' names, in order."""
    pattern = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
    return pattern.findall(machine_code.sass(artifact.binary))


def test_no_spills(built: dict[tuple[str, str], Artifact]) -> None:
    assert len(built) == 4 * len(STEMS)
    for artifact in built.values():
        assert artifact.spills == 0, artifact.kernel
        assert artifact.registers <= 96, artifact.kernel
        assert artifact.shared <= 4096, artifact.kernel


@pytest.mark.parametrize("stem", ["compact", "duplicate_tail"])
def test_rows_go_by_128_bits_if_they_can(built: dict[tuple[str, str], Artifact], stem: str) -> None:
    """Every store is of a row; in registers is what a row's alignment allows."""
    artifact = built[stem, "sm_90"]
    stores = [name for name in opcodes(artifact) if name.startswith("STG")]
    assert stores
    narrow = [name for name in stores if not name.endswith(".128")]
    if artifact.kernel.endswith("_odd"):
        assert narrow
        assert all(".U16" in name for name in narrow)
        assert bool(set(stores) - set(narrow)) == (stem == "compact")  # hidden rows and experts
    else:
        assert narrow == []
    loads = [name for name in opcodes(artifact) if name.startswith("LDG")]
    assert len([name for name in loads if name.endswith(".128")]) == len(stores) - len(narrow)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_window_is_read_before_it_is_written(layout: str) -> None:
    """In a kernel that only moves KV rows a barrier stands between all loads and all stores of the loop's body."""
    (move,) = (source for source in sources(layout, "STANDALONE", ()) if source.function == "compact")
    assert not any(name.startswith("value") for name, _ in move.arguments)
    (artifact,) = build([move], "sm_90").values()
    code = [name.split(".")[0] for name in opcodes(artifact)]
    last_load = max(place for place, name in enumerate(code) if name == "LDG")
    first_store = code.index("STG")
    assert "BAR" in code[last_load:first_store]
