"""What verify_commit covers: chains and trees, with and without log-probabilities; and what makes it decline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from programs import compile_to, load
from specc.kernels.verify_commit import FAMILY

from specc.algorithms import needs
from specc.ir.core import Module, Op, tensor_type
from specc.kernels.shared.base import MAX_SPLITS, only

TREE: dict[str, Any] = {"topk": 4, "num_steps": 4, "num_draft_tokens": 9}
FORMS: list[dict[str, Any]] = [{"num_steps": 4}, TREE]


def lowered(**keys: Any) -> Module:
    """A module in the form that kernels are chosen for."""
    return compile_to("canonicalize", load("EAGLE", **keys))


def op(module: Module, opcode: str) -> Op:
    """The op of this opcode in verify and commit, which have one."""
    return only(module.phases["verify"] + module.phases["commit"], opcode)


@pytest.mark.parametrize("outputs", [[], ["accept_index"], ["logprobs"], ["hidden_states", "logprobs"]], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=["chain", "tree"])
def test_covers_what_follows_from_the_path(form: dict[str, Any], outputs: list[str]) -> None:
    """Everything of the phases verify and commit but what moves or copies forwards' results."""
    module = lowered(**form, outputs=outputs)
    (cluster,) = FAMILY.candidates(module)
    left = [op for op in module.phases["verify"] + module.phases["commit"] if op not in cluster]
    tree = "topk" in form
    assert [op.opcode for op in left] == ["model.target", *(["commit.compact", "kv.move"] if tree else [])]
    assert all(op.operands[0].source is left[0] for op in left if op.opcode == "commit.compact")
    flags = FAMILY.spec(module, "verify_commit", cluster).flags
    wanted = {"accept_index": tree or "accept_index" in outputs, "logprobs": "logprobs" in outputs}
    stores = {"lengths": ("seq_lens",), "bonuses": (), "rings": ()}
    assert flags == {"tree": tree, "extend_ids": True, "select": True, **stores, **wanted}


CARRIES = {
    "MULTI_LAYER_EAGLE": {"bonuses": (), "rings": (), "extend_ids": True, "select": True},
    "FROZEN_KV_MTP": {"bonuses": ("bonus",), "rings": (), "extend_ids": False, "select": False},
    "DFLASH": {"bonuses": ("bonus",), "rings": (), "extend_ids": False, "select": False},
    "NGRAM": {"bonuses": (), "rings": ("text",), "extend_ids": False, "select": False},
}


@pytest.mark.parametrize(
    ("algorithm", "form"), [(name, form) for name in CARRIES for form in (FORMS if needs(name).trees else FORMS[:1])]
)
def test_stores_what_it_makes(algorithm: str, form: dict[str, Any]) -> None:
    """Lengths always; the bonus in the phase commit, or where nothing else is stored; tokens that enter a text."""
    module = compile_to("canonicalize", load(algorithm, **form))
    ((cluster, spec),) = [(found, FAMILY.spec(module, "verify_commit", found)) for found in FAMILY.candidates(module)]
    assert spec.flags["lengths"] == ("seq_lens",)
    assert {name: spec.flags[name] for name in CARRIES[algorithm]} == CARRIES[algorithm]
    passed = [argument.buffer for argument in spec.arguments if argument.buffer.startswith("relay.")]
    stored = [op for op in cluster if op.opcode in ("carry.store", "relay.publish", "carry.append")]
    assert sorted(passed) == sorted(f"relay.{op.attrs['field']}" for op in stored)
    assert [size for name, size in spec.constants if name == "L_text"] == [4096] * len(CARRIES[algorithm]["rings"])


@pytest.mark.parametrize("phase", ["commit", "extend"])
def test_stores_alone_in_a_later_phase_come_along(phase: str) -> None:
    """A bonus that is stored after commit is left to whoever stores the rest of its phase, if there is a rest."""
    module = compile_to("canonicalize", load("DFLASH"))
    (store,) = [op for op in module.phases["extend"] if op.opcode == "carry.store"]
    (cluster,) = FAMILY.candidates(module)
    assert store in cluster
    rows, bonus = store.operands
    lens = module.inputs["seq_lens"]
    module.add_op(phase, "carry.store", (rows, lens), (), {"field": "seq_lens"}, None)
    (cluster,) = FAMILY.candidates(module)
    assert (store in cluster) == (phase == "commit")
    assert bonus in {value for op in cluster for value in op.results}


def test_log_probabilities_lie_along_the_path() -> None:
    module = lowered(**TREE, outputs=["logprobs"])
    (cluster,) = FAMILY.candidates(module)
    spec = FAMILY.spec(module, "verify_commit", cluster)
    bound = {argument.name: argument.value for argument in spec.arguments}
    assert bound["logprobs_ptr"] is module.outputs["logprobs"]
    assert bound["predict_ptr"] is module.outputs["predict"]
    for name in ("logprobs_ptr", "predict_ptr", "accept_index_ptr"):
        value = bound[name]
        assert value is not None
        assert tensor_type(value).shape == ("B", "A")
    assert {scratch.shape for scratch in spec.scratch} == {(4, 9, MAX_SPLITS), (4,)}


def hand_out(opcode: str, result: int) -> Callable[[Module], None]:
    """Make a result of an op an output."""

    def change(module: Module) -> None:
        module.outputs["more"] = op(module, opcode).results[result]

    return change


def other_logits(module: Module) -> None:
    """Log-probabilities under another model's logits."""
    logprob = op(module, "vocab.logprob")
    logits = module.add_input("others", tensor_type(logprob.operands[0]))
    module.set_operands(logprob, [logits, *logprob.operands[1:]])


def other_lengths(module: Module) -> None:
    """Lengths of a path of which verification knows nothing."""
    lengths = op(module, "commit.lengths")
    others = module.add_input("others", tensor_type(lengths.operands[2]))
    module.set_operands(lengths, [*lengths.operands[:2], others])


def another_select(module: Module) -> None:
    """Two results that the kernel has one argument for."""
    select = op(module, "commit.select")
    more = module.add_op("commit", "commit.select", select.operands, [("more", tensor_type(select.result))], {}, None)
    module.outputs["more"] = more.result


CHANGES = {
    "a second selection": another_select,
    "argmax is an output": hand_out("vocab.argmax", 0),
    "bad is an output": hand_out("vocab.argmax", 1),
    "tokens of nodes are an output": hand_out("verify.greedy", 0),
    "log-probabilities of nodes are an output": hand_out("vocab.logprob", 0),
    "log-probabilities of other logits": other_logits,
    "lengths of others": other_lengths,
}


@pytest.mark.parametrize("name", CHANGES)
def test_declines(name: str) -> None:
    """Nothing of a tree that the kernel does not write may be read, and all must belong to one path."""
    module = lowered(**TREE, outputs=["logprobs"])
    assert list(FAMILY.candidates(module))
    CHANGES[name](module)
    assert not list(FAMILY.candidates(module))


def test_extend_tokens_of_others_are_left_out() -> None:
    module = lowered(**TREE)
    ids = op(module, "commit.extend_ids")
    module.set_operands(ids, [module.add_input("others", tensor_type(ids.operands[0])), ids.operands[1]])
    (cluster,) = FAMILY.candidates(module)
    assert ids not in cluster
    assert not FAMILY.spec(module, "verify_commit", cluster).flags["extend_ids"]


def test_tokens_that_others_append_are_left_out() -> None:
    module = compile_to("canonicalize", load("NGRAM"))
    append = op(module, "carry.append")
    ((cluster,), lens) = FAMILY.candidates(module), append.operands[1]
    assert append in cluster
    others = module.add_input("others", tensor_type(lens))
    module.set_operands(append, [append.operands[0], others, *append.operands[2:]])
    assert all(append not in cluster for cluster in FAMILY.candidates(module))


@pytest.mark.parametrize(("nodes", "most"), [(2, 64), (9, 64), (32, 64), (33, 32), (64, 32), (200, 8), (300, 4)])
def test_splits_shrink_with_the_nodes(nodes: int, most: int) -> None:
    """One block of the last arriver holds all partial results: of every grid, and in the scratch."""
    model = {"vocab_size": 128256, "dtype": "bfloat16"}
    module = lowered(topk=8, num_steps=6, num_draft_tokens=nodes, target=model, draft=model)
    (cluster,) = FAMILY.candidates(module)
    spec = FAMILY.spec(module, "verify_commit", cluster)
    assert dict(spec.constants)["SPLITS"] == spec.scratch[0].shape[-1] == most
    for batch in (1, 2, 3, 64):
        rows, programs, _ = FAMILY.grid(module, cluster, batch)
        assert rows == batch
        assert programs % nodes == 0
        assert 1 <= programs // nodes <= most
