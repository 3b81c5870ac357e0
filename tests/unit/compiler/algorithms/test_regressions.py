"""Sizes that serving engines once took from the wrong model, one story each; here no build can repeat them.

An engine that keeps widths beside the data flow asks for one of two models at every place where a row is captured,
sized, merged or shipped. Each of these tests is a place where the wrong one was asked.
"""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import pytest
from programs import compile_to, load
from widths import check_widths, reads, refused

from specc.compiler import algorithms
from specc.compiler.algorithms import names, needs
from specc.compiler.algorithms.blocks.recurrent import build_recurrent
from specc.compiler.algorithms.blocks.scope import Algorithm, Scope
from specc.compiler.algorithms.blocks.verification import store
from specc.compiler.ir.analysis.liveness import hidden_result
from specc.compiler.ir.core import Module, is_state, tensor_type
from specc.compiler.ir.nodes import is_external
from specc.compiler.ir.types import DTYPES

TREE = {"topk": 2, "num_draft_tokens": 6, "page_size": 16}
SHAPES = pytest.mark.parametrize("shape", [{}, TREE], ids=["chain", "tree"])
NARROW = {"hidden_size": 32}


def front(algorithm: str, **keys: Any) -> Module:
    """A program after the front passes."""
    return compile_to("cse", load(algorithm, **keys))


def sizes(module: Module) -> set[int]:
    """Plain element counts along the axes of all values and fields: widths, and nothing that has an axis' name."""
    types = [tensor_type(value) for value in module.values() if not is_state(value)]
    types += [carry.type for carry in module.carries.values()]
    return {entry for type_ in types for entry in type_.shape if isinstance(entry, int)}


# --- a draft that is an ordinary model, of another width than its target ----------------------------------------------


@SHAPES
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "draft", [{"hidden_size": 32}, {"hidden_size": 128, "dtype": "bfloat16"}], ids=["narrow", "wide"]
)
def test_a_standalone_draft_has_no_hidden_rows_to_merge(
    draft: dict[str, Any], steps: int, shape: dict[str, Any]
) -> None:
    """Rows of the target were captured for a draft that reads none, and joined to placeholders of the draft's width."""
    nodes = {"num_draft_tokens": 3} if shape and steps == 1 else {}
    module = front("STANDALONE", num_steps=steps, draft=draft, **(shape | nodes))
    forwards = [op for op in module.ops() if is_external(op)]
    assert {op.attrs["capture"] for op in forwards} == {"null"}
    assert [op.opcode for op in forwards if hidden_result(op) is not None] == []
    assert reads(module) == {}
    assert module.carries.keys() == {"bonus", "topk_index", "seq_lens", *(["topk_p"] if shape else [])}
    assert sizes(module) == set(), "no value has an axis as long as a hidden state, of either model"


@SHAPES
def test_a_standalone_draft_is_not_touched_by_what_the_target_hands_over(shape: dict[str, Any]) -> None:
    """When the engine asks for the target's rows, they go out, and none of the draft's forwards changes."""
    module = front("STANDALONE", draft=NARROW, outputs=["hidden_states"], **shape)
    captures = {op.opcode: op.attrs["capture"] for op in module.ops() if is_external(op)}
    assert [opcode for opcode, capture in captures.items() if capture != "null"] == ["model.target"]
    assert sizes(module) == {64}
    assert "hidden" not in module.carries


# --- models that hand over residual streams ---------------------------------------------------------------------------

STREAMS = {"hc_mult": 4, "hidden_source": "hc_residual"}
MERGED = {"hc_mult": 4, "hidden_source": "collapsed"}


@SHAPES
@pytest.mark.parametrize("algorithm", ["EAGLE", "MULTI_LAYER_EAGLE"])
def test_the_width_of_streams_is_that_of_the_model_that_hands_them_over(algorithm: str, shape: dict[str, Any]) -> None:
    """The number of streams was multiplied in for one model where the rows were the other's, or not at all."""
    shape = shape if needs(algorithm).trees else {}
    for role in ("target", "draft"):
        check_widths(load(algorithm, **shape, **{role: STREAMS}), "hc_mult", "hc_mult")
    wide = front(algorithm, **shape, target=STREAMS, draft=STREAMS)
    assert {type_.rpartition(" ")[2] for type_ in reads(wide).values()} == {"256]"}
    merged = front(algorithm, **shape, target=MERGED, draft={})
    assert {type_.rpartition(" ")[2] for type_ in reads(merged).values()} == {"64]"}
    # Heads are often of one stream and as wide as all of the target's together.
    assert reads(front(algorithm, **shape, target=STREAMS, draft={"hidden_size": 256})) == reads(wide)


@SHAPES
def test_an_assistant_says_how_wide_the_streams_of_its_target_are(shape: dict[str, Any]) -> None:
    keys = {"target": STREAMS, "draft": NARROW | {"target_hidden_size": 256}}
    module = front("FROZEN_KV_MTP", **shape, **keys)
    assert str(module.carries["hidden"].type) == "f32[B, 256]"
    assert sizes(module) == {256}
    diagnostics = refused(load("FROZEN_KV_MTP", **shape, target=STREAMS, draft=NARROW | {"target_hidden_size": 64}))
    assert {d.code for d in diagnostics} == {"type/width-mismatch"}


# --- rows of the target in batches that were sized by the draft -------------------------------------------------------


@SHAPES
def test_rows_of_prefill_and_extend_are_as_wide_as_the_target_says(shape: dict[str, Any]) -> None:
    """Batches without requests, and static inputs of extend, were made as wide as the draft; its rows are the target's.

    Every row that comes from the target has the target's size, every row that the head passes on has its own.
    """
    module = front("EAGLE3", **shape, draft=NARROW | {"target_hidden_size": 64})
    assert reads(module) == {
        "prefill_draft": "f32[T, 128]",
        "draft_0": "f32[B, K, 32]",
        "draft_1": "f32[B, K, 32]",
        "extend": "f32[B, A, 128]",
    }
    assert str(module.carries["hidden"].type) == "f32[B, 32]"
    blocks = front("DFLASH", draft=NARROW | {"target_hidden_size": 64})
    assert reads(blocks) == {"prefill_inject": "f32[T, 128]", "inject": "f32[B, A, 128]"}
    assert sizes(blocks) == {128}


@SHAPES
def test_an_assistants_rows_are_the_targets_everywhere(shape: dict[str, Any]) -> None:
    """It hands back rows as wide as those it takes; its own layers' size stands in no type at all."""
    module = front("FROZEN_KV_MTP", **shape, draft=NARROW | {"target_hidden_size": 64})
    assert sizes(module) == {64}
    assert reads(module) == {"assist_0": "f32[B, 64]", "assist_1": "f32[B, K, 64]", "assist_2": "f32[B, K, 64]"}
    (prefill,) = module.find("model.prefill_target")
    assert str(tensor_type(prefill.results[-1])) == "f32[B, 64]", "one row per request, of the target"


# --- what is shipped between machines ---------------------------------------------------------------------------------

SHIPPED: dict[str, tuple[dict[str, Any], int]] = {
    "STANDALONE": ({"draft": NARROW}, 4 + 8 + 8),
    "EAGLE": ({"target": STREAMS, "draft": STREAMS}, 4 + 8 + 256 * 4 + 8),
    "EAGLE3": ({"draft": NARROW | {"target_hidden_size": 64}}, 4 + 8 + 32 * 4 + 8),
    "FROZEN_KV_MTP": ({"draft": NARROW | {"target_hidden_size": 64}}, 4 + 64 * 4 + 8),
    "MULTI_LAYER_EAGLE": ({"target": STREAMS, "draft": STREAMS}, 4 + 3 * 8 + 8),
    "DFLASH": ({"draft": NARROW | {"target_hidden_size": 64}}, 4 + 8),
    "DSPARK": ({"draft": NARROW | {"target_hidden_size": 64}}, 4 + 8),
    "DFLASH2": ({"draft": NARROW | {"target_hidden_size": 64}}, 4 + 8),
    "NGRAM": ({"options": {"window": 100}}, 100 * 4 + 8),
}


@pytest.mark.parametrize("algorithm", names())
def test_a_requests_record_is_what_its_program_carries(algorithm: str) -> None:
    """Records between prefill and decode were sized by one model, for one family of algorithms.

    Here a record is the carry: fields, dtypes and widths come from the module alone, for every algorithm, and every
    field that prefill stores is one that a step loads.
    """
    keys, size = SHIPPED[algorithm]
    module = front(algorithm, **keys)
    types = {name: carry.type for name, carry in module.carries.items()}
    assert sum(DTYPES[type_.dtype].bytes * prod(type_.sizes(module.dims)[1:]) for type_ in types.values()) == size
    stored = {str(op.attrs["field"]) for op in module.phases["prefill"] if op.opcode == "carry.store"}
    loaded = {str(op.attrs["field"]) for op in module.ops("step") if op.opcode == "carry.load"}
    assert stored == loaded == set(types)


def _build_remembering(scope: Scope) -> None:
    """A draft that also carries five numbers of its own, and hands them out."""
    build_recurrent(scope, reads_hidden=False)
    scope.carry("memory", "f32", 5)
    with scope.b.phase("prepare"):
        before = scope.b("carry.load", scope.rows, names=("memory",), field="memory")
    for phase in ("prefill", "extend"):
        with scope.b.phase(phase):
            store(scope, {"memory": scope.table(f"{phase}_memory", "f32", "B", 5)})
    scope.output("remembered", before)


def test_a_record_has_the_fields_of_an_algorithm_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records were filled for the algorithms that an engine knew, and only what those carry was shipped."""
    plugin = Algorithm("REMEMBERING", "a plugin", _build_remembering)
    point = SimpleNamespace(name="REMEMBERING", value="plugin:it", load=lambda: plugin)
    monkeypatch.setattr(algorithms, "entry_points", lambda group: [point] if group == "specc.algorithms" else [])
    types = {name: str(carry.type) for name, carry in front("REMEMBERING", draft=NARROW).carries.items()}
    own = {"bonus": "i32[B]", "topk_index": "i64[B, K]", "seq_lens": "i64[B]"}
    assert types == own | {"memory": "f32[B, 5]"}


# --- heads over several layers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [32, 128], ids=["narrower", "wider"])
@pytest.mark.parametrize("algorithm", ["EAGLE3", "DFLASH"])
def test_a_draft_of_another_width_than_the_target(algorithm: str, size: int) -> None:
    """Refused unless the draft says how wide the target is; what it carries then has its own width."""
    check_widths(load(algorithm, draft={"hidden_size": size}), "hidden_size", "hidden_size")
    check_widths(load(algorithm, draft={"target_hidden_size": size}), "target_hidden_size", "hidden_size")
    module = front(algorithm, draft={"hidden_size": size, "target_hidden_size": 64})
    assert {str(module.carries[name].type) for name in module.carries.keys() & {"hidden"}} <= {f"f32[B, {size}]"}


@pytest.mark.parametrize("algorithm", ["EAGLE3", "DFLASH"])
def test_streams_or_merged(algorithm: str) -> None:
    """What a model does with its streams changes what a draft carries, and not the layers that are handed over."""
    for source, width in (("hc_residual", 256), ("collapsed", 64)):
        streams = {"hc_mult": 4, "hidden_source": source}
        module = front(algorithm, target={"hc_mult": 4}, draft=streams)
        assert {*reads(module).values()} >= {"f32[B, A, 128]", "f32[T, 128]"}
        assert {str(module.carries[name].type) for name in module.carries.keys() & {"hidden"}} <= {f"f32[B, {width}]"}
        written = load(algorithm, target=streams | {"aux_layers": None})
        check_widths(written, "hidden_size", "hidden_source")


@pytest.mark.parametrize("algorithm", ["EAGLE3", "DFLASH"])
def test_another_number_of_layers(algorithm: str) -> None:
    check_widths(load(algorithm, draft={"num_aux_layers": 3}), "num_aux_layers", "aux_layers")
    check_widths(load(algorithm, target={"aux_layers": [2]}), "num_aux_layers", "aux_layers")


@pytest.mark.parametrize("algorithm", ["EAGLE3", "DFLASH"])
def test_another_dtype(algorithm: str) -> None:
    """A draft that projects rows of several layers takes the target's dtype; one that reads them bare refuses it."""
    keys = {"target": {"dtype": "bfloat16"}, "draft": {"dtype": "float16"}}
    module = front(algorithm, **keys)
    assert {type_ for type_ in reads(module).values() if "128" in type_} == {"bf16[T, 128]", "bf16[B, A, 128]"}
    assert {str(module.carries[name].type) for name in module.carries.keys() & {"hidden"}} <= {"f16[B, 64]"}
    for bare in ("EAGLE", "MULTI_LAYER_EAGLE"):
        loaded = load(bare, **keys)
        diagnostics = refused(loaded)
        assert {(d.code, d.location) for d in diagnostics} == {
            ("type/dtype-mismatch", loaded.location("draft", "hidden_size"))
        }
        assert {note.location for d in diagnostics for note in d.notes} == {loaded.location("target", "hidden_size")}
