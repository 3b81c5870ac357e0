"""What follows a draft's forward: which clusters are offered for every way of drafting, and what they pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from programs import compile_to, load

from specc.ir.core import Module
from specc.ir.opdef import OpDef
from specc.ir.ops import OPS
from specc.ir.parser import parse_module
from specc.kernels import FAMILIES
from specc.kernels.argmax import most_splits, rows_of
from specc.kernels.shared.base import MAX_SPLITS, Cluster, Spec

TREE: dict[str, Any] = {"topk": 4, "num_draft_tokens": 9}


def lowered(algorithm: str, **keys: Any) -> Module:
    """A module in the form that kernels are chosen for."""
    return compile_to("canonicalize", load(algorithm, **keys))


def offers(module: Module, stem: str, phase: str = "draft") -> list[tuple[Cluster, Spec]]:
    """The clusters of a family whose reduction is in a phase, and their kernels."""
    family = FAMILIES[stem]
    clusters = [cluster for cluster in family.candidates(module) if cluster[-1].phase == phase]
    return [(cluster, family.spec(module, "k", cluster)) for cluster in clusters]


def opcodes(cluster: Cluster) -> set[str]:
    """The opcodes of a cluster."""
    return {op.opcode for op in cluster}


def on(spec: Spec) -> set[str]:
    """The flags that are set."""
    return {flag for flag, value in spec.flags.items() if value is True}


def bound(spec: Spec) -> dict[str, str]:
    """The values that are passed, by argument."""
    return {argument.name: argument.value.name for argument in spec.arguments if argument.value is not None}


def columns(found: list[tuple[Cluster, Spec]]) -> list[int | None]:
    """The column that each kernel writes the token to."""
    return [next(a.literal for a in spec.arguments if a.name == "column") for _, spec in found]


def test_positions_that_stand_still_are_not_advanced() -> None:
    """An assistant's forwards share one position; the first one of a step also starts chain and hidden rows."""
    found = offers(lowered("FROZEN_KV_MTP", num_steps=4), "draft_step")
    assert [on(spec) for _, spec in found] == [{"start", "token", "repeat"}, {"token"}, {"token"}, set()]
    assert columns(found) == [1, 2, 3, 4]
    seed = bound(found[0][1])
    assert (seed["tokens_ptr"], seed["bonus_ptr"], seed["draft_tokens_ptr"]) == ("tokens", "root", "next_token")
    assert (seed["hidden_ptr"], seed["draft_hidden_ptr"]) == ("draft_hidden0", "frontier_hidden")
    assert dict(found[0][1].constants)["W"] == 64


def test_a_single_forward_passes_nothing_on() -> None:
    ((cluster, spec),) = offers(lowered("FROZEN_KV_MTP", num_steps=1), "draft_step")
    assert opcodes(cluster) == {"vocab.argmax", "chain.start", "health.raise"}
    assert on(spec) == {"start"}


def test_recurrent_drafts_advance() -> None:
    found = offers(lowered("EAGLE", num_steps=4), "draft_step")
    assert [on(spec) for _, spec in found] == [{"token", "advance"}, {"token", "advance"}, set()]
    assert columns(found) == [2, 3, 4]


@pytest.mark.parametrize("phase", ["prefill", "extend"])
def test_modules_append_wherever_they_run(phase: str) -> None:
    """Nobody reads a module's token itself: the next one reads it among the drafts, or in the shifted tokens."""
    found = offers(lowered("MULTI_LAYER_EAGLE"), "draft_step", phase)
    shift = {"shift"} if phase == "extend" else set[str]()
    assert [on(spec) for _, spec in found] == [shift, shift, set()]
    assert columns(found) == [0, 1, 2]
    assert all(dict(spec.constants)["N"] == 3 for _, spec in found)
    for number, (_, spec) in enumerate(found[:-1], start=1):
        assert ("A" in dict(spec.constants)) == bool(shift)
        if shift:
            assert bound(spec)["shifted_ptr"] == f"extend_tokens{number}"
            assert bound(spec)["accept_lens_ptr"] == "accept_lens"


def test_a_token_that_is_read_is_written() -> None:
    module = lowered("MULTI_LAYER_EAGLE")
    (argmax,) = [op for op in module.find("vocab.argmax") if op.results[0].name == "draft2"]
    module.outputs["second"] = argmax.results[0]
    assert [on(spec) for _, spec in offers(module, "draft_step", "extend")] == [{"shift"}, {"shift", "token"}, set()]


def test_trees_start_from_a_row() -> None:
    ((cluster, spec),) = offers(module := lowered("FROZEN_KV_MTP", **TREE), "row_topk")
    assert opcodes(cluster) == {"vocab.topk", "health.raise", "tree.repeat"}
    assert on(spec) == {"health", "p", "repeat"}
    assert bound(spec)["p_ptr"] == "seed_p"
    steps = offers(module, "tree_step")
    assert [on(spec) for _, spec in steps] == [{"frontier", "gather"}, set()]
    fused = [cluster for cluster, spec in offers(module, "tree_build", "tree") if "fused" in on(spec)]
    assert len(fused) == 1


def test_a_block_becomes_a_chain() -> None:
    module = lowered("DFLASH", num_steps=5)
    found = offers(module, "row_argmax")
    ((cluster, spec),) = found
    assert on(spec) == {"health", "join", "unread"}
    assert dict(spec.constants)["ROWS"] == 5
    assert spec.scratch[0].shape == (4, 5, MAX_SPLITS)
    assert FAMILIES["row_argmax"].grid(module, cluster, 2) == (2, 5, 1)
    module.outputs["drafts"] = cluster[0].results[0]
    assert [bound(spec).get("index_ptr") for _, spec in offers(module, "row_argmax")] == ["drafts"]


def test_splits_of_many_rows_are_combined_at_once() -> None:
    assert [most_splits(rows) for rows in (1, 32, 33, 64, 4096)] == [64, 64, 32, 32, 1]
    module = lowered("EAGLE", **{**TREE, "num_draft_tokens": 9})
    found = [rows_of(module, op) for op in module.find("vocab.argmax")]
    assert found == [1, 9]


HEAD = """module @small {
  established compacted, kv-bound, live, tree-form, typed, verify-selected
  dim B : request <= 4
  dim K : branch = 2
  dim N : node = 3
  dim V : vocab = 64
  input %rows : i64[B]
  input %health : i32[B]
  input %x : f32[B, V]
  input %y : bf16[B, N, V]
"""


def small(*ops: str, outputs: Mapping[str, str], head: str = HEAD) -> Module:
    """A module of a few ops that stand in the draft phase."""
    lines = ["  phase draft {", *(f"    {op}" for op in ops), "  }"]
    lines += [f"  output {name} = %{value}" for name, value in outputs.items()]
    return parse_module(head + "\n".join(lines) + "\n}\n", "small.specir")


@pytest.mark.parametrize("logits", ["%x", "%y"])
@pytest.mark.parametrize("dtype", ["i32", "i64"])
@pytest.mark.parametrize("raised", [False, True])
def test_any_argmax_has_a_kernel(logits: str, dtype: str, raised: bool) -> None:
    shape = "B" if logits == "%x" else "B, N"
    ops = [f'%a, %bad = vocab.argmax({logits}, %rows) {{dtype = "{dtype}", keep = ""}} : {dtype}[{shape}], i1[{shape}]']
    ops += ["%h = health.raise(%health, %bad) {bit = 2} : i32[B]"] if raised else []
    module = small(*ops, outputs={"a": "a"} | ({"h": "h"} if raised else {}))
    ((cluster, spec),) = offers(module, "row_argmax")
    assert on(spec) == ({"health"} if raised else set())
    assert [a.type for a in spec.arguments if a.name == "index_ptr"] == [f"*{dtype}"]
    known = dict(spec.constants)
    assert (known["ROWS"], known.get("HEALTH_BIT")) == (1 if logits == "%x" else 3, 4 if raised else None)
    assert FAMILIES["row_argmax"].grid(module, cluster, 3)[:2] == (3, known["ROWS"])


@pytest.mark.parametrize("p", [False, True])
@pytest.mark.parametrize("raised", [False, True])
def test_any_topk_of_a_row_has_a_kernel(p: bool, raised: bool) -> None:
    ops = ["%p, %a, %bad = vocab.topk(%x, %rows) : f32[B, K], i64[B, K], i1[B]"]
    ops += ["%h = health.raise(%health, %bad) {bit = 0} : i32[B]"] if raised else []
    module = small(*ops, outputs={"a": "a"} | ({"h": "h"} if raised else {}) | ({"p": "p"} if p else {}))
    ((_, spec),) = offers(module, "row_topk")
    assert on(spec) == {flag for flag, there in (("health", raised), ("p", p)) if there}
    assert ("health_ptr" in bound(spec)) == ("HEALTH_BIT" in dict(spec.constants)) == raised


@pytest.mark.parametrize("stem", ["row_argmax", "row_topk"])
def test_bad_rows_that_are_read_otherwise_are_not_covered(stem: str) -> None:
    """No kernel writes which rows were bad."""
    topk = "%p, %a, %bad = vocab.topk(%x, %rows) : f32[B, K], i64[B, K], i1[B]"
    argmax = '%a, %bad = vocab.argmax(%x, %rows) {dtype = "i32", keep = ""} : i32[B], i1[B]'
    assert offers(small(topk if stem == "row_topk" else argmax, outputs={"a": "a"}), stem)
    assert not offers(small(topk if stem == "row_topk" else argmax, outputs={"a": "a", "bad": "bad"}), stem)


PROBE = OpDef(
    "model.probe",
    "rows: i64[B], at: i64[B, K], tokens: i64[B, K] -> logits: $dtype[B, K, V]",
    "A forward that nobody knows, with its positions under another name and in another place.",
    {"capture": str, "dtype": str, "step": int},
    effect="external",
)
PROBED = (
    '%l{0} = model.probe(%rows, {1}, {2}) {{capture = "null", dtype = "f32", logits_dtype = "f32"}} : f32[B, K, V]',
    "%p{0}, %index{0}, %bad{0} = vocab.topk(%l{0}, %rows) : f32[B, K, K], i64[B, K, K], i1[B, K]",
    "%h{0} = health.raise({3}, %bad{0}) {{bit = 0}} : i32[B]",
    "%token{0}, %score{0}, %kept{0}, %candidates{0} = tree.grow(%scores, %p{0}, %index{0})"
    " : i64[B, K], f32[B, K], i64[B, K], f32[B, K, K]",
)
PROBE_INPUTS = """  input %at : i64[B, K]
  input %tokens : i64[B, K]
  input %scores : f32[B, K]
"""


def test_forwards_are_not_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What advances is what the forward read; and if another forward reads it too, only the last one may."""
    monkeypatch.setitem(OPS, "model.probe", PROBE)
    first = [line.format(0, "%at", "%tokens", "%health") for line in PROBED]
    again = [line.format(1, "%at", "%token0", "%h0") for line in PROBED]
    further = "%at1 = kv.advance(%at) : i64[B, K]"
    last = [line.format(2, "%at1", "%token1", "%h1") for line in PROBED]
    read = [f"{name}{step}" for name in ("index", "token", "score", "kept", "candidates") for step in range(3)]
    outputs = dict(zip(read, read, strict=True)) | {"h": "h2"}
    module = small(*first, *again, further, *last, outputs=outputs, head=HEAD + PROBE_INPUTS)
    found = offers(module, "tree_step")
    assert [on(spec) for _, spec in found] == [{"frontier"}, {"frontier", "advance"}, {"frontier"}]
    assert bound(found[1][1])["positions_ptr"] == "at1"
