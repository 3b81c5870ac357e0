"""A step without models: it runs, requests stay alive, it starts over from a copy, and drafts are accepted."""

from __future__ import annotations

import pytest
import torch

from specc.compiler.driver.build import build_program
from specc.lab.measure.session import PROMPTS, SETTLED, Session
from specc.lab.measure.steps import tokens_moved
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.plan.nodes import Launch

from .conftest import CHAIN, TREE, load

CPU = torch.device("cpu")
STATE = "state: {kind: KDA, heads: 2, rows: 4, columns: 8, groups: 2, kernel: 4}"
KINDS = {
    "chain": CHAIN,
    "tree": TREE,
    "pages": TREE.replace("topk: 2", "topk: 2\npage_size: 8"),
    "no overlap": CHAIN + "overlap: false\n",
    "sampled": TREE + "verify: target_only\nsampling: [penalties, logit_bias, grammar, top_k, top_p, min_p]\n",
    "block": CHAIN + "verify: block\n",
    "logprobs": CHAIN + "outputs: [logprobs, hidden_states]\nbest_logprobs: 3\n",
    "ranks": CHAIN + "tensor_parallel: 2\nlogits: sharded\n",
    "full mask": TREE + "mask: full\ncontext_length: 128\n",
    "part": CHAIN.replace("num_layers: 1, num_kv_heads: 1, head_dim: 8, vocab_size: 9000",
                          "num_layers: 1, num_kv_heads: 1, head_dim: 8, token_map: engine, vocab_size: 100"),
    "rotated": CHAIN + "step: rotated\ntables: {slots: block_table}\n",
    "rotated alone": CHAIN.replace("EAGLE", "STANDALONE") + "step: rotated\n",
    "look-up": CHAIN.replace("EAGLE", "NGRAM").split("draft:")[0],
    "copied states": CHAIN.replace("target: {", "target: {state_layers: 2, state_form: select, "),
    "advanced states": CHAIN.replace("target: {", f"target: {{state_layers: 2, state_form: fold, {STATE}, "),
}  # fmt: skip


def session(text: str, rows: int = 3, steps: int = 5, seed: int = 0) -> Session:
    text = text.replace("9000", "300")
    return Session(build_program(load(text)).plan, ReferenceBackend(), CPU, rows, steps=steps, seed=seed)


def outputs(made: Session) -> dict[str, torch.Tensor]:
    step_outputs = [output for output in made.plan.outputs if output.entry == "step"]
    return {output.name: made.frame.read(output.value).clone() for output in step_outputs}


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_has_its_requests(kind: str) -> None:
    """No request runs out of room, in as many steps as were asked for, and none is bad."""
    made = session(KINDS[kind])
    accepted = 0
    for _ in range(5):
        made.step()
        results = outputs(made)
        assert results["health"].eq(0).all()
        assert results["accept_lens"].ge(1).all()
        accepted += int(results["accept_lens"].sum()) - 3
    assert accepted > 0 or kind == "look-up"


@pytest.mark.parametrize("kind", ["chain", "pages", "sampled"])
def test_it_starts_over(kind: str) -> None:
    made = session(KINDS[kind])
    memory = made.memory()
    made.step()
    first = outputs(made)
    made.step()
    made.restore(memory)
    made.step()
    again = outputs(made)
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_two_of_a_seed_are_alike_and_of_another_not() -> None:
    results: list[dict[str, torch.Tensor]] = []
    for seed in (0, 0, 1):
        made = session(TREE, seed=seed)
        made.step()
        results.append(outputs(made))
    first, same, reseeded = results
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["predict"], reseeded["predict"])


def test_launches_come_in_order_and_each_finds_what_was_left() -> None:
    made = session(TREE)
    names = [node.name for node in made.launches()]
    assert names == [node.name for node in made.plan.nodes("step") if isinstance(node, Launch)]


def test_lengths_are_those_of_texts() -> None:
    made = session(CHAIN)
    lengths = made.arena.buffer("relay.seq_lens")
    assert lengths[lengths > 0].min() >= PROMPTS + SETTLED


def test_what_is_moved_is_counted() -> None:
    """Of keys and values those of accepted nodes elsewhere than their place, and of pages what is in them."""
    made = session(KINDS["pages"])
    moved: dict[str, int | None] = {}
    for node in made.launches():
        moved[node.name] = tokens_moved(made.frame, node)
        if node.name == "duplicate_tail":
            lengths = made.frame.read("admitted_lens")
            assert moved[node.name] == int((lengths % 8).sum())
        if node.name == "compact":
            path, slots = made.frame.read("accept_index"), made.frame.read("verify_slots")
            wanted = sum(
                int(slots.view(-1)[node_] != slots[b, i])
                for b, row in enumerate(path.tolist())
                for i, node_ in enumerate(row)
                if node_ >= 0
            )
            assert moved[node.name] == wanted
    assert moved["prepare_rows"] is None


@pytest.mark.parametrize("kind", ["chain", "pages"])
def test_what_is_decided_is_what_is_accepted(kind: str) -> None:
    made = session(KINDS[kind])
    made.step()
    decided = made.decided()
    assert len(decided["predict"]) == int(decided["accept_lens"].sum())
    assert {f"relay.{name}" for name in made.plan.carry} <= decided.keys()
