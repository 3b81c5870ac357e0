"""Machine code of the families that copy rows, for a large tree: wide accesses, and all loads before any store."""

from typing import Any

import pytest
from compiled import compiled, kernels_of, opcodes
from programs import load

from specc.compiler.codegen.aot import KernelSource

STEMS = ("rows", "compact", "duplicate_tail")
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
    return kernels_of(loaded, *STEMS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_spills(layout: str) -> None:
    artifacts = compiled(sources(layout), "sm_90").values()
    assert len(artifacts) == len(STEMS)
    for artifact in artifacts:
        assert artifact.spills == 0, artifact.kernel
        assert artifact.registers <= 96, artifact.kernel
        assert artifact.shared <= 4096, artifact.kernel


@pytest.mark.parametrize("stem", ["compact", "duplicate_tail"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_go_by_128_bits_if_they_can(layout: str, stem: str) -> None:
    """Every store is of a row; in registers is what a row's alignment allows."""
    (artifact,) = compiled([source for source in sources(layout) if source.function == stem], "sm_90").values()
    stores = [name for name in opcodes(artifact) if name.startswith("STG")]
    assert stores
    narrow = [name for name in stores if not name.endswith(".128")]
    if layout == "odd":
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
    (artifact,) = compiled([move], "sm_90").values()
    code = [name.split(".")[0] for name in opcodes(artifact)]
    last_load = max(place for place, name in enumerate(code) if name == "LDG")
    first_store = code.index("STG")
    assert "BAR" in code[last_load:first_store]
