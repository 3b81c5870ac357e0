"""The path of a chain or a tree and all that follows from it, against plain walks and the reference ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cluster_cases import (
    FLOATS,
    Drawn,
    Scan,
    TypedBuilder,
    carry,
    check_module,
    choice,
    integer,
    random_batch,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import argmax, generator, quicker
from kernel_launcher import Launcher
from topk_cases import hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module, Value
from specc.runtime.semantics.convention import DTYPES

BIT, RING = 1, 11
EVERYTHING = {"logprobs": True, "index": True, "extend": True, "carry": True, "raised": True, "nodes": True}
shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "nodes": st.integers(2, 9) | st.sampled_from([16, 21]),
        "steps": st.integers(1, 6),
        "vocab": st.integers(2, 12) | st.integers(13, 150) | st.sampled_from([512, 1500]),
        "dtype": st.sampled_from(FLOATS),
        "parts": st.fixed_dictionaries({name: st.booleans() for name in EVERYTHING}),
        "scan": st.builds(
            Scan, splits=st.integers(1, 4), block=st.sampled_from([16, 64, 1024]), slack=st.sampled_from([0, 0, 1, 8])
        ),
    }
)


def verification(shape: dict[str, Any], *, tree: bool) -> Module:
    """A step from the target's logits to the request's new length, with the parts that ``shape`` asks for."""
    nodes, parts = shape["nodes"] if tree else shape["steps"] + 1, shape["parts"]
    module = small_module(N=nodes, A=shape["steps"] + 1, K=1, V=shape["vocab"])
    axis = "N" if tree else "A"
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    logits, tokens = b.given("logits", shape["dtype"], axis, "V"), b.given("tokens", "i64", axis)
    parents = [b.given("parent", "i64", "N")] if tree else []
    with b.phase("verify"):
        targets, bad = b.many("vocab.argmax", logits, rows, dtype="i32", keep="", names=("targets", "bad"))
        predict, index, count = b.many("verify.greedy", tokens, targets, rows, *parents)
        if parts["raised"]:
            b.hand_out(b("health.raise", b.given("earlier", "i32"), bad, names=("health",), bit=BIT))
    with b.phase("commit"):
        path = b("commit.compact", targets, index, names=("path",)) if tree else predict
        if parts["logprobs"]:
            sums = b("vocab.logprob", logits, rows, targets, names=("sums",))
            b.hand_out(b("commit.compact", sums, index, names=("logprobs",)) if tree else sums)
        commit(b, shape, rows, lens, count, path)
    b.hand_out(path, count, *([index] if parts["index"] or tree else []), *([predict, bad] if parts["nodes"] else []))
    return module


def commit(b: TypedBuilder, shape: dict[str, Any], rows: Value, lens: Value, count: Value, path: Value) -> None:
    """What becomes of a path: lengths, the bonus token, what extend reads, and what is carried."""
    module, parts = b.module, shape["parts"]
    new, bonus = b.many("commit.lengths", lens, count, path)
    b.hand_out(new, bonus)
    if parts["extend"]:
        b.hand_out(b("commit.extend_ids", path, count), b("commit.select", count))
    if parts["carry"]:
        for name, value in (("lens", new), ("bonus", bonus), ("twice", bonus)):
            carry(module, name, "i64" if value is new else "i32")
            b.many("relay.publish" if value is new else "carry.store", rows, value, field=name)
        for name in ("text", "words"):
            carry(module, name, "i32", RING)
            b.many("carry.append", rows, lens, path, count, field=name)


def walk(tokens: list[int], targets: list[int], parents: list[int], limit: int) -> list[int]:
    """The columns that greedy verification accepts, root first, at most `limit`."""
    children: dict[int, list[int]] = {}
    for column, parent in enumerate(parents[1:], start=1):
        children.setdefault(parent, []).append(column)
    path = [0]
    for _ in range(limit - 1):
        agreed = (column for column in children.get(path[-1], []) if tokens[column] == targets[path[-1]])
        path += [column for column in [next(agreed, None)] if column is not None]
    return path


def check(launcher: Launcher, shape: dict[str, Any], drawn: Drawn, source: torch.Generator) -> Drawn:
    """Check a step of a tree if there are parents, else of a chain; by plain Python too."""
    tree, width = "parent" in drawn, shape["steps"] + 1
    count, nodes, _ = drawn["logits"].shape
    drawn["earlier"] = torch.randint(0, 32, (count,), generator=source, dtype=torch.int32) & ~(1 << BIT)
    drawn.setdefault("seq_lens", torch.randint(1, 2**40, (count,), generator=source))
    values = check_module(launcher, verification(shape, tree=tree), source, drawn, shape["scan"])
    for b, row in enumerate(drawn["req_pool_indices"].tolist()):
        path: list[int] = []
        targets = [argmax(line)[0] for line in drawn["logits"][b]]
        if row:
            parents = drawn["parent"][b].tolist() if tree else list(range(-1, nodes - 1))
            path = walk(drawn["tokens"][b].tolist(), targets, parents, width)
        emitted, rest = [targets[column] for column in path], width - len(path)
        assert values["accept_lens"][b] == len(path)
        assert values["accept_index"][b].tolist() == [b * nodes + column for column in path] + [-1] * rest
        assert values["path" if tree else "predict"][b].tolist() == emitted + [0] * rest
        assert values["new_seq_lens"][b] == (int(drawn["seq_lens"][b]) + len(path) if row else 0)
        assert values["bonus"][b] == (emitted[-1] if row else 0)
        if shape["parts"]["extend"]:
            assert values["ids"][b].tolist() == emitted + [0] * rest
            assert values["select"][b] == b * width + max(len(path) - 1, 0)
    return values


def random_inputs(shape: dict[str, Any], nodes: int, source: torch.Generator) -> tuple[Drawn, Tensor]:
    """(rows, logits and tokens; the target's tokens i64[B, N])."""
    rows = random_batch(source)[:3]
    lines = hostile_logits(source, len(rows) * nodes, shape["vocab"], shape["vocab"], DTYPES[shape["dtype"]])
    targets = torch.tensor([argmax(line)[0] for line in lines]).view(len(rows), nodes)
    tokens = torch.randint(0, shape["vocab"], (len(rows), nodes), generator=source)
    return {"req_pool_indices": rows, "logits": lines.view(len(rows), nodes, -1), "tokens": tokens}, targets


def affordable(shape: dict[str, Any]) -> dict[str, Any]:
    """Larger tiles where the interpreter would loop for seconds."""
    scan = shape["scan"]
    return shape if shape["vocab"] <= 150 else shape | {"scan": Scan(scan.splits, max(scan.block, 256), scan.slack)}


@settings(quicker, max_examples=40)
@given(shape=shapes)
def test_random_chains(launcher: Launcher, shape: dict[str, Any]) -> None:
    """Most drafts follow the target for a while."""
    source = generator(shape["seed"])
    drawn, targets = random_inputs(shape, shape["steps"] + 1, source)
    follow = torch.rand(targets[:, 1:].shape, generator=source) < 0.8
    drawn["tokens"][:, 1:] = torch.where(follow, targets[:, :-1], drawn["tokens"][:, 1:])
    check(launcher, affordable(shape), drawn, source)


def grow(nodes: int, source: torch.Generator) -> Tensor:
    """Parents i64[N]: every column has an earlier one, some are orphans; the earlier ones of few are preferred."""
    reach = torch.randint(1, 5, (nodes,), generator=source)
    columns = torch.arange(nodes)
    drawn = (columns - 1 - torch.randint(0, nodes, (nodes,), generator=source) % reach).clamp(min=0)
    orphan = torch.rand(nodes, generator=source) < 0.1
    orphan[0] = True
    return torch.where(orphan, -1, drawn)


def random_tree(shape: dict[str, Any], source: torch.Generator) -> Drawn:
    """Trees in which many children, often several of one node, hold the token that the target puts after it."""
    drawn, targets = random_inputs(shape, shape["nodes"], source)
    parent = torch.stack([grow(shape["nodes"], source) for _ in targets])
    wanted = targets.gather(1, parent.clamp(min=0))
    follow = torch.rand(parent.shape, generator=source) < 0.6
    return drawn | {"tokens": torch.where(follow, wanted, drawn["tokens"]), "parent": parent}


@settings(quicker, max_examples=40)
@given(shape=shapes)
def test_random_trees(launcher: Launcher, shape: dict[str, Any]) -> None:
    source = generator(shape["seed"])
    check(launcher, affordable(shape), random_tree(shape, source), source)


def case(**sizes: Any) -> dict[str, Any]:
    """A shape with every part, of which only some sizes matter."""
    return {"nodes": 5, "steps": 4, "vocab": 50, "dtype": "f32", "parts": EVERYTHING, "scan": Scan(2, 16)} | sizes


@pytest.mark.parametrize(("nodes", "steps", "splits"), [(64, 6, 2), (130, 4, 1)])
def test_large_trees(launcher: Launcher, nodes: int, steps: int, splits: int) -> None:
    """A path from the first column to the last, beside many that agree with nodes off it."""
    shape = case(nodes=nodes, steps=steps, vocab=90, dtype="bf16", scan=Scan(splits, 128))
    source = generator(nodes)
    drawn = {name: value[:1] for name, value in random_tree(shape, source).items()}
    columns = torch.linspace(0, nodes - 1, steps + 1).long()
    drawn["req_pool_indices"] = torch.tensor([4])
    drawn["parent"][0, columns[1:]] = columns[:-1]
    targets = torch.tensor([argmax(row)[0] for row in drawn["logits"][0]])
    wanted = targets[drawn["parent"][0].clamp(min=0)]
    drawn["tokens"][0] += (drawn["tokens"][0] == wanted) & torch.isin(drawn["parent"][0], columns)
    drawn["tokens"][0, columns[1:]] = targets[columns[:-1]]
    values = check(launcher, shape, drawn, source)
    assert values["accept_index"][0].tolist() == columns.tolist()


@settings(quicker, max_examples=12)
@given(shape=shapes, wild=st.booleans())
def test_links_that_are_no_tree(launcher: Launcher, shape: dict[str, Any], wild: bool) -> None:
    """Cycles, nodes that are their own parents, columns that do not exist: bounded, and as the reference walks."""
    source = generator(shape["seed"])
    drawn = random_tree(shape | {"parts": EVERYTHING}, source)
    size = drawn["parent"].shape
    low, high = (-(2**40), 2**40) if wild else (0, shape["nodes"])
    links = torch.randint(low, high, size, generator=source)
    drawn["parent"] = torch.where(torch.rand(size, generator=source) < 0.6, links, drawn["parent"])
    # Column 0 is nobody's child, and a token that agrees in its lower half does not agree.
    drawn["parent"][:, 0] = 0
    drawn["tokens"][torch.rand(size, generator=source) < 0.2] += 2**32
    check(launcher, affordable(shape), drawn, source)


def test_a_column_that_does_not_exist_has_no_children(launcher: Launcher) -> None:
    """All drafts agree with the target, and all hang below the column behind the last one."""
    source = generator(2)
    logits = torch.randn(1, 1, 50, generator=source).repeat(1, 5, 1)
    drawn = {"req_pool_indices": torch.tensor([5]), "logits": logits, "tokens": logits.argmax(-1)}
    values = check(launcher, case(), drawn | {"parent": torch.tensor([[-1, 5, 5, 5, 5]])}, source)
    assert values["accept_lens"][0] == 1


@pytest.mark.parametrize("accepted", range(4))
def test_every_accept_length_of_a_chain(launcher: Launcher, accepted: int) -> None:
    """Drafts that follow the target exactly `accepted` times are accepted exactly so often."""
    source = generator(accepted)
    logits = torch.randn(2, 4, 40, generator=source)
    targets = logits.argmax(-1)
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    tokens[:, 1:] = targets[:, :-1]
    if accepted < 3:
        tokens[:, accepted + 1] = (tokens[:, accepted + 1] + 1) % 40
    drawn = {"req_pool_indices": torch.tensor([5, 0]), "logits": logits, "tokens": tokens}
    values = check(launcher, case(steps=3, vocab=40), drawn | {"seq_lens": torch.tensor([7, 9])}, source)
    assert values["accept_lens"].tolist() == [accepted + 1, 0]
    assert values["new_seq_lens"].tolist() == [7 + accepted + 1, 0]
    assert values["bonus"].tolist() == [targets[0, accepted], 0]


@pytest.mark.parametrize("accepted", range(6))
def test_every_accept_length_of_a_tree(launcher: Launcher, accepted: int) -> None:
    """A path of six drafts beside decoys: as many are accepted as follow the target, and no more than S = 4."""
    source = generator(accepted)
    logits = torch.randn(1, 13, 50, generator=source)
    targets = logits[0].argmax(-1)
    # Columns 2, 4, ... 12 are the path; before each of them a sibling that does not agree.
    parent = torch.tensor([[-1, *(2 * (level // 2) for level in range(12))]])
    tokens = targets[parent.clamp(min=0)]
    tokens[0, 1::2] = (tokens[0, 1::2] + 1) % 50
    tokens[0, 2 * accepted + 2] = (tokens[0, 2 * accepted + 2] + 1) % 50
    drawn = {"req_pool_indices": torch.tensor([3]), "logits": logits, "tokens": tokens, "parent": parent}
    values = check(launcher, case(nodes=13), drawn, source)
    drafts = min(accepted, 4)
    assert values["accept_lens"][0] == drafts + 1
    assert values["accept_index"][0].tolist() == [2 * i for i in range(drafts + 1)] + [-1] * (4 - drafts)
    assert values["bonus"][0] == targets[2 * drafts]


def random_paths(source: torch.Generator, rows: Tensor, nodes: int, width: int) -> Drawn:
    """Paths of random lengths over the nodes, in any order; none of padding rows."""
    lens = torch.randint(1, min(nodes, width) + 1, (len(rows),), generator=source, dtype=torch.int32)
    lens[rows == 0] = 0
    index = torch.full((len(rows), width), -1, dtype=torch.int32)
    for b, length in enumerate(lens.tolist()):
        index[b, :length] = b * nodes + torch.randperm(nodes, generator=source)[:length]
    return {"req_pool_indices": rows, "accept_index": index, "accept_lens": lens}


@settings(quicker, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_everything_that_follows_from_a_path_follows_alone(launcher: Launcher, seed: int) -> None:
    """Of a path that lies in memory: each op in a kernel of its own inputs, of numbers of any dtype."""
    source = generator(seed)
    nodes, width = integer(source, 1, 70), integer(source, 2, 9)
    module = small_module(N=nodes, A=width)
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    index, count = b.given("accept_index", "i32", "A"), b.given("accept_lens", "i32")
    path, opcodes = b.given("path", "i32", "A"), ("compact", "last", "lengths", "ids", "select", "append")
    with b.phase("commit"):
        for number, opcode in enumerate(choice(source, opcodes) for _ in range(integer(source, 1, 4))):
            if opcode == "compact":
                # What another op computes; a forward's rows are copied by another kernel.
                depth = b.given(f"depth{number}", "i64", "N")
                b.hand_out(b("commit.compact", b("tree.positions", lens, depth), index))
            elif opcode == "last":
                x = b.given(f"x{number}", choice(source, (*FLOATS, "i32", "i64")), "N")
                b.hand_out(b("commit.last", x, index, count))
            elif opcode == "lengths":
                b.hand_out(*b.many("commit.lengths", lens, count, path))
            elif opcode == "ids":
                b.hand_out(b("commit.extend_ids", path, count))
            elif opcode == "select":
                b.hand_out(b("commit.select", count))
            else:
                carry(module, f"ring{number}", "i32", width + integer(source, 0, 9))
                b.many("carry.append", rows, lens, path, count, field=f"ring{number}")
    batch = random_batch(source)
    drawn = random_paths(source, batch, nodes, width)
    drawn |= {"seq_lens": torch.randint(0, 2**40, (len(batch),), generator=source)}
    check_module(launcher, module, source, drawn)
