"""Trees: what is selected of all candidates, and the masks of it, against the reference ops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from cluster_cases import (
    FLOATS,
    MAX_B,
    POOL,
    Drawn,
    Scan,
    TypedBuilder,
    check_module,
    integer,
    prepared,
    small_module,
)
from cluster_memory import random_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import assert_same, generator, quick, quicker, random_rows
from kernel_launcher import Launcher
from topk_cases import hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module, Value
from specc.runtime.semantics.convention import DTYPES
from specc.runtime.semantics.reference import OPS

BAD, ORPHAN = 0, 4
MODES = ("none", "qlen", "bitpacked", "full", "slots")
NEVER_SEEN = 1 << 40


trees = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "batch": st.integers(1, 4),
        "k": st.integers(1, 8),
        "steps": st.integers(1, 6),
        "share": st.sampled_from([0.0, 1.0]) | st.floats(0, 1) | st.floats(0, 0.3),
        "mode": st.sampled_from(MODES),
    }
)
PLAIN = {"seed": 3, "batch": 1, "share": 1.0, "mode": "none", "programs": 1}


def most(k: int, steps: int) -> int:
    """Candidates of all steps."""
    return k + (steps - 1) * k * k


def nodes_of(shape: dict[str, Any]) -> int:
    """N: between 2 and the most there can be, or that the mask can hold."""
    largest = 1 + most(shape["k"], shape["steps"])
    largest = min(largest, 64) if shape["mode"] == "bitpacked" else largest
    return shape.get("nodes") or 2 + round(shape["share"] * (largest - 2))


def width_of(mode: str, nodes: int, longest: int) -> int:
    """The attribute of a mask: bytes of a row, or elements of all rows of a request."""
    if mode == "full":
        return nodes * (longest + nodes)
    return next(size for size in (1, 2, 4, 8) if 8 * size >= nodes) if mode == "bitpacked" else 0


def hand_out_mask(b: TypedBuilder, shape: dict[str, Any], parent: Value) -> None:
    """The mask of a tree, in its mode."""
    mode = shape["mode"]
    if mode == "slots":
        b.hand_out(*b.many("tree.seen_slots", b.given("slots", "i64", "N"), parent))
    elif mode != "none":
        width = width_of(mode, nodes_of(shape), shape["longest"])
        b.hand_out(b("tree.mask", b.module.inputs["seq_lens"], parent, mode=mode, width=width))


def selection(shape: dict[str, Any], last: tuple[Value, Value] | None = None, b: TypedBuilder | None = None) -> Module:
    """The tree of the steps' candidates; those of a last step may be made in the same module."""
    steps, nodes = shape["steps"], nodes_of(shape)
    sizes = {"K": shape["k"], "N": nodes, "E": nodes - 1, "A": steps + 1, "B": max(MAX_B, shape["batch"])}
    module = b.module if b else small_module(**sizes)
    b = b or TypedBuilder(module)
    stored = steps if last is None else steps - 1
    scores = [b.given(f"scores{i}", "f32", *("K" for _ in range(1 + (i > 0)))) for i in range(stored)]
    tokens = [b.given(f"tokens{i}", "i64", *("K" for _ in range(1 + (i > 0)))) for i in range(stored)]
    kept = [b.given(f"kept{i}", "i64", "K") for i in range(1, steps - 1)]
    if last is not None:
        scores, tokens = [*scores, last[0]], [*tokens, last[1]]
    rows, lens = module.inputs["req_pool_indices"], module.inputs["seq_lens"]
    with b.phase("tree"):
        parts = (*scores, *tokens, *kept)
        chosen, parent, depth, orphan, *scores = b.many(
            "tree.select_scored" if shape.get("scored") else "tree.select",
            rows,
            b.given("bonus", "i32"),
            *parts,
            steps=steps,
            names=("tokens", "parent", "depth", "orphan", *["scores"] * bool(shape.get("scored"))),
        )
        before = module.outputs.get("health", None) or b.given("earlier", "i32")
        health = b("health.raise", before, orphan, names=("health_of_tree",), bit=ORPHAN)
        module.outputs["health"] = health
        b.hand_out(chosen, parent, b("tree.positions", lens, depth), *scores)
        hand_out_mask(b, shape, parent)
    return module


def hostile_scores(source: torch.Generator, count: int) -> Tensor:
    """f32[count]: path scores of one request as any step could leave them."""
    kind = integer(source, 0, 8)
    scores = torch.rand(count, generator=source)
    some = torch.rand(count, generator=source) < 0.4
    if kind == 1:  # few values, so many ties
        scores = torch.randint(0, 3, (count,), generator=source) / 2
    elif kind == 2:
        scores[some] = math.nan
    elif kind == 3:
        scores[:] = math.nan
    elif kind == 4:
        scores[some] = torch.randint(-1, 2, (count,), generator=source)[some] * math.inf  # NaN, too
    elif kind == 5:  # negative, and zeros of both signs
        scores = torch.where(some, torch.copysign(torch.zeros(count), scores - 0.5), scores - 0.5)
    elif kind == 6:  # far apart, subnormal at one end
        scores = torch.exp2(-150 * scores)
    elif kind == 7:  # neighbours: only the last bits differ
        scores = (torch.randint(0, 40, (count,), generator=source, dtype=torch.int32) + 0x3F000000).view(torch.float32)
    elif kind == 8:
        scores[:] = torch.tensor([0.0, -0.0, math.inf, -math.inf])[integer(source, 0, 3)]
    return scores


def window(source: torch.Generator, rows: Tensor, nodes: int) -> Tensor:
    """Slots i64[b, N], each in the window once, up to the largest that a table may name; 0 in padding rows."""
    step = torch.randint(1, (2**31 - 1) // nodes, (len(rows), 1), generator=source)
    order = torch.stack([torch.randperm(nodes, generator=source) for _ in rows])
    return (2**31 - 1 - order * step).masked_fill((rows == 0)[:, None], 0)


def drafted(source: torch.Generator, shape: dict[str, Any]) -> Drawn:
    """What S draft steps leave: scores and tokens of every step, the kept of those in between.

    Half of the requests are grown by the reference, so that their trees hang together; of the others every number is
    random, and few of their nodes have a parent.
    """
    batch, k, steps = shape["batch"], shape["k"], shape["steps"]
    frontier = torch.rand(batch, k, generator=source).sort(descending=True).values
    left = {"scores0": frontier}
    for number in range(1, steps):
        p = torch.rand(batch, k, k, generator=source).sort(descending=True).values
        index = torch.zeros(batch, k, k, dtype=torch.int64)
        _, frontier, kept, scores = OPS["tree.grow"]((frontier, p, index), {}, {"K": k})
        left |= {f"scores{number}": scores, f"kept{number}": kept}
    left.pop(f"kept{steps - 1}", None)
    for b in range(batch):
        if torch.rand((), generator=source) < 0.5:
            for name, value in left.items():
                random = torch.randint(0, k * k, (k,), generator=source) if "kept" in name else None
                value[b] = hostile_scores(source, value[b].numel()).view(value[b].shape) if random is None else random
    for number in range(steps):
        shown = left[f"scores{number}"].shape
        left[f"tokens{number}"] = torch.randint(0, NEVER_SEEN, shown, generator=source)
    return left


def random_case(shape: dict[str, Any], rows: list[int] | None = None) -> tuple[torch.Generator, Drawn]:
    """(randomness, the inputs of a selection of what all steps left)."""
    source, batch = generator(shape["seed"]), shape["batch"]
    drawn_rows = random_rows(source, batch, max(POOL, batch + 1)) if rows is None else torch.tensor(rows)
    drawn = {
        "req_pool_indices": drawn_rows,
        "bonus": torch.randint(0, 999, (batch,), generator=source, dtype=torch.int32),
        "seq_lens": torch.randint(0, 99, (batch,), generator=source).masked_fill(drawn_rows == 0, 0),
        **drafted(source, shape),
    }
    if shape["mode"] == "slots":
        drawn["slots"] = window(source, drawn_rows, nodes_of(shape))
    return source, drawn


def check(launcher: Launcher, shape: dict[str, Any], drawn: Drawn, source: torch.Generator) -> Drawn:
    """Check a selection."""
    shape = shape | {"longest": int(drawn["seq_lens"].max())}
    drawn["earlier"] = torch.randint(0, 16, (shape["batch"],), generator=source, dtype=torch.int32)
    return check_module(launcher, selection(shape), source, drawn, Scan(programs=shape.get("programs", 0)))


@pytest.mark.parametrize("scored", [False, True], ids=["by-id", "best-first"])
@pytest.mark.parametrize("mode", MODES)
@settings(quick, max_examples=16)
@given(shape=trees)
def test_selections(launcher: Launcher, mode: str, scored: bool, shape: dict[str, Any]) -> None:
    shape = shape | {"scored": scored, "mode": mode, "programs": 1 + shape["seed"] % 3 if mode == "full" else 0}
    source, drawn = random_case(shape)
    check(launcher, shape, drawn, source)


def last_step(shape: dict[str, Any], dtype: str, vocab: int) -> Module:
    """A selection in the launch of the last forward's top-k."""
    nodes, steps = nodes_of(shape), shape["steps"]
    module = small_module(K=shape["k"], N=nodes, E=nodes - 1, A=steps + 1, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        p, index, bad = b.many("vocab.topk", b.given("logits", dtype, "K", "V"), rows)
        health = b("health.raise", b.given("earlier", "i32"), bad, names=("health",), bit=BAD)
        *_, candidates = b.many("tree.grow", b.given("parents", "f32", "K"), p, index)
    module.outputs["health"] = health
    return selection(shape, (candidates, index), b)


@pytest.mark.parametrize("mode", MODES)
@settings(quicker, max_examples=6)
@given(
    shape=trees,
    dtype=st.sampled_from(FLOATS),
    vocab=st.integers(8, 250) | st.sampled_from([64, 256]),
    scan=st.builds(
        Scan, splits=st.integers(1, 2), block=st.sampled_from([64, 256]), slack=st.sampled_from([0, 0, 1, 8])
    ),
)
def test_with_the_last_draft_step(
    launcher: Launcher, mode: str, shape: dict[str, Any], dtype: str, vocab: int, scan: Scan
) -> None:
    """The tree is that of the reference's grow and select, on the kernel's own probabilities; in one launch."""
    shape = shape | {"steps": max(2, shape["steps"]), "batch": min(2, shape["batch"]), "mode": mode}
    shape["scored"] = shape["seed"] % 2
    source, drawn = random_case(shape)
    k, last = shape["k"], shape["steps"] - 1
    del drawn[f"scores{last}"], drawn[f"tokens{last}"]
    lines = hostile_logits(source, shape["batch"] * k, vocab, vocab, DTYPES[dtype])
    drawn["logits"] = lines.view(shape["batch"], k, vocab)
    drawn["parents"] = torch.stack([hostile_scores(source, k) for _ in range(shape["batch"])])
    module = last_step(shape | {"longest": int(drawn["seq_lens"].max())}, dtype, vocab)
    check_module(launcher, module, source, drawn, scan)
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1


def of_places(shape: dict[str, Any], logits: tuple[str, int] | None = None) -> Module:
    """A tree of the products of places; of logits of a dtype and a vocabulary, or of what is given for them."""
    steps, nodes = shape["steps"], nodes_of(shape)
    dtype, vocab = logits or ("f32", 64)
    sizes = {"K": shape["k"], "S": steps, "N": nodes, "E": nodes - 1, "A": steps + 1, "V": vocab}
    module = small_module(**sizes, B=max(MAX_B, shape["batch"]))
    rows, lens, b = module.inputs["req_pool_indices"], module.inputs["seq_lens"], TypedBuilder(module)
    with b.phase("tree"):
        if logits is None:
            p, index = b.given("p", "f32", "S", "K"), b.given("index", "i64", "S", "K")
        else:
            p, index, bad = b.many("vocab.topk", b.given("logits", dtype, "S", "V"), rows)
            module.outputs["health"] = b("health.raise", b.given("earlier", "i32"), bad, names=("health",), bit=BAD)
        scored = bool(shape.get("scored"))
        names = ("tokens", "parent", "depth", *["scores"] * scored)
        tokens, parent, depth, *scores = b.many(
            "tree.product_scored" if scored else "tree.product",
            *(rows, b.given("bonus", "i32"), p, index),
            steps=steps,
            names=names,
        )
        b.hand_out(tokens, parent, b("tree.positions", lens, depth), *scores)
        hand_out_mask(b, shape, parent)
    return module


def places(shape: dict[str, Any]) -> tuple[torch.Generator, Drawn]:
    """(randomness, the inputs of a tree of products): descending shares, or any numbers at all."""
    source, batch = generator(shape["seed"]), shape["batch"]
    count = batch, shape["steps"], shape["k"]
    rows = random_rows(source, batch, max(POOL, batch + 1))
    p = torch.rand(count, generator=source).sort(dim=2, descending=True).values
    for b in range(batch):
        if torch.rand((), generator=source) < 0.5:
            p[b] = hostile_scores(source, p[b].numel()).view(p[b].shape)
    drawn = {
        "req_pool_indices": rows,
        "bonus": torch.randint(0, 999, (batch,), generator=source, dtype=torch.int32),
        "seq_lens": torch.randint(0, 99, (batch,), generator=source).masked_fill(rows == 0, 0),
        "p": p,
        "index": torch.randint(0, NEVER_SEEN, count, generator=source),
    }
    if shape["mode"] == "slots":
        drawn["slots"] = window(source, rows, nodes_of(shape))
    return source, drawn


@pytest.mark.parametrize("mode", MODES)
@settings(quicker, max_examples=8)
@given(shape=trees)
def test_products(launcher: Launcher, mode: str, shape: dict[str, Any]) -> None:
    """Whatever the candidates' shares are: NaN, negative, infinite, equal and in no order among them."""
    shape = shape | {"mode": mode, "k": min(shape["k"], 5), "share": shape["share"] / 2, "scored": shape["seed"] % 2}
    source, drawn = places(shape)
    shape |= {"longest": int(drawn["seq_lens"].max())}
    check_module(launcher, of_places(shape), source, drawn, Scan(programs=1))


@settings(quicker, max_examples=6)
@given(shape=trees, dtype=st.sampled_from(FLOATS), vocab=st.integers(8, 250))
def test_products_with_the_top_k(launcher: Launcher, shape: dict[str, Any], dtype: str, vocab: int) -> None:
    """All places of a block are ranked and linked in one launch."""
    shape = shape | {"batch": min(2, shape["batch"]), "steps": min(4, shape["steps"]), "share": shape["share"] / 2}
    source, drawn = places(shape)
    del drawn["p"], drawn["index"]
    lines = hostile_logits(source, shape["batch"] * shape["steps"], vocab, vocab, DTYPES[dtype])
    drawn["logits"] = lines.view(shape["batch"], shape["steps"], vocab)
    drawn["earlier"] = torch.randint(0, 16, (shape["batch"],), generator=source, dtype=torch.int32)
    module = of_places(shape | {"longest": int(drawn["seq_lens"].max())}, (dtype, vocab))
    check_module(launcher, module, source, drawn, Scan())
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1


@pytest.mark.parametrize(("k", "steps", "nodes"), [(8, 15, 64), (2, 15, 128), (1, 3, 4)])
def test_large_products(launcher: Launcher, k: int, steps: int, nodes: int) -> None:
    """Blocks as they are published, and a width of one."""
    shape = PLAIN | {"k": k, "steps": steps, "nodes": nodes, "seed": 11}
    source, drawn = places(shape)
    drawn["req_pool_indices"][:] = 4
    drawn["p"] = torch.softmax(3 * torch.randn(1, steps, k, generator=source), 2).sort(dim=2, descending=True).values
    results = check_module(launcher, of_places(shape), source, drawn, Scan(programs=1))
    assert (results["parent"][0, 1:] >= 0).all()
    assert (results["parent"][0] < torch.arange(nodes)).all()


def test_flat_masks_of_many_requests(launcher: Launcher) -> None:
    """A request's part begins behind those of all before it, which are counted 128 at a time."""
    shape = PLAIN | {"batch": 300, "k": 2, "steps": 1, "nodes": 3, "mode": "full"}
    source, drawn = random_case(shape, [(b + 1) * (b % 7 != 0) for b in range(300)])
    drawn["seq_lens"] = torch.randint(0, 3, (300,), generator=source).masked_fill(drawn["req_pool_indices"] == 0, 0)
    check(launcher, shape, drawn, source)


def test_flat_masks_of_long_texts(launcher: Launcher) -> None:
    """Rows of several blocks, which begin in the middle of one: what lies before is the end of the row before."""
    shape = PLAIN | {"batch": 2, "k": 2, "steps": 1, "nodes": 3, "mode": "full", "longest": 5000}
    source, drawn = random_case(shape, [3, 4])
    drawn["seq_lens"] = torch.tensor([5000, 4500])
    check(launcher, shape, drawn, source)


@pytest.mark.parametrize(
    ("k", "steps", "nodes", "mode"),
    [(8, 10, 512, "none"), (16, 5, 64, "none"), (10, 6, 128, "none"), (8, 10, 512, "slots"), (10, 6, 100, "slots")],
)
def test_large_trees(launcher: Launcher, k: int, steps: int, nodes: int, mode: str) -> None:
    """Up to 1034 candidates, grown by the reference: everyone but the root has a parent."""
    shape = PLAIN | {"k": k, "steps": steps, "nodes": nodes, "mode": mode}
    source, drawn = random_case(shape, [4])
    frontier = drawn["scores0"] = torch.rand(1, k, generator=source).sort(descending=True).values
    for number in range(1, steps):
        p = torch.rand(1, k, k, generator=source).sort(descending=True).values
        index = torch.zeros(1, k, k, dtype=torch.int64)
        _, frontier, kept, drawn[f"scores{number}"] = OPS["tree.grow"]((frontier, p, index), {}, {"K": k})
        if number < steps - 1:
            drawn[f"kept{number}"] = kept
    results = check(launcher, shape, drawn, source)
    assert (results["parent"][0, 1:] >= 0).all()


def test_an_orphan_is_reported_and_unreachable(launcher: Launcher) -> None:
    """The parent of the best candidate of step 1 has a NaN score, as its request's other step 0 candidates have."""
    shape = PLAIN | {"k": 2, "steps": 2, "batch": 3, "nodes": 4, "mode": "qlen"}
    source, drawn = random_case(shape, [4, 5, 0])
    drawn["scores0"] = torch.tensor([[math.nan, math.nan], [0.6, 0.4], [math.nan, math.nan]])
    drawn["scores1"] = torch.tensor([[[0.4, 0.1], [0.3, 0.2]]]).repeat(3, 1, 1)
    results = check(launcher, shape, drawn, source)
    assert results["parent"].tolist() == [[-1, -1, -1, -1], [-1, 0, 0, 1], [-1, -1, -1, -1]]
    assert [bool(word & (1 << ORPHAN)) for word in results["health_of_tree"].tolist()] == [True, False, False]


@pytest.mark.parametrize("value", [math.nan, -math.inf, 0.0, -0.0, 1.0, math.inf])
def test_equal_scores_keep_the_first(launcher: Launcher, value: float) -> None:
    shape = PLAIN | {"k": 3, "steps": 3, "nodes": 8}
    source, drawn = random_case(shape, [4])
    for number in range(3):
        drawn[f"scores{number}"].fill_(value)
    results = check(launcher, shape, drawn, source)
    tokens = torch.cat([drawn["tokens0"].view(-1), drawn["tokens1"].view(-1)])[:7]
    assert torch.equal(results["tokens"][0, 1:], tokens)


def test_zeros_of_both_signs_tie(launcher: Launcher) -> None:
    shape = PLAIN | {"k": 3, "steps": 3, "nodes": 8}
    source, drawn = random_case(shape, [4])
    for number in range(3):
        scores = drawn[f"scores{number}"].view(-1)
        scores.copy_(torch.copysign(torch.zeros(len(scores)), torch.arange(len(scores)) % 2 - 0.5))
    results = check(launcher, shape, drawn, source)
    assert torch.equal(results["tokens"][0, 1:4], drawn["tokens0"][0])


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("scale", [1e-40, 1e-12, 2e-9, 2.0, 7.0, 1e30, -1e-12, -1.0])
def test_scores_that_are_no_usual_probabilities(launcher: Launcher, scale: float, share: float) -> None:
    """Wherever the scores lie the best are found: what the search guesses first may be wrong on either side."""
    shape = PLAIN | {"k": 4, "steps": 3, "share": share}
    source, drawn = random_case(shape, [4])
    for number in range(3):
        drawn[f"scores{number}"] = scale * torch.rand(drawn[f"scores{number}"].shape, generator=source)
    check(launcher, shape, drawn, source)


@pytest.mark.parametrize("wild", [-1, 16, 2**31, -(2**40), 2**62])
def test_kept_out_of_range_reads_nothing_else(launcher: Launcher, wild: int) -> None:
    """No draft kernel writes such a thing; if memory holds it, the tree is some tree with clamped parents."""
    shape = PLAIN | {"k": 4, "steps": 4, "nodes": 30, "mode": "qlen", "longest": 0}
    _, drawn = random_case(shape, [4])
    results = {}
    for content in (wild, max(0, min(15, (wild + 2**31) % 2**32 - 2**31))):  # of the low word
        values = drawn | {"kept1": torch.full_like(drawn["kept1"], content)}
        values["earlier"] = torch.zeros(1, dtype=torch.int32)
        memory, launch = prepared(selection(shape), values, generator(1))
        after = memory.moved(launcher.device, {})
        launch.run(launcher, after)
        results[content] = {name: value.cpu() for name, value in after.tensors.items() if name != "kept1"}
    plain, clamped = results.values() if len(results) > 1 else [*results.values()] * 2
    for name, value in plain.items():
        assert_same(value, clamped[name], name)


@pytest.mark.parametrize("short", [0, 1, 7])
def test_a_mask_of_the_longest_texts_ends_where_its_buffer_does(launcher: Launcher, short: int) -> None:
    """N * (longest + N) elements for each request are enough: noise around them stays as it is."""
    longest, nodes, band = 33, 6, 4096
    shape = PLAIN | {"k": 2, "steps": 3, "batch": MAX_B, "nodes": nodes, "mode": "full", "longest": longest}
    source, drawn = random_case(shape, list(range(1, MAX_B + 1)))
    drawn["seq_lens"] = torch.tensor([longest] * (MAX_B - 1) + [longest - short])
    drawn["earlier"] = torch.zeros(MAX_B, dtype=torch.int32)
    memory, launch = prepared(selection(shape), drawn, source, Scan(programs=2))
    noise = random_tensor(source, (MAX_B * nodes * (longest + nodes) + 2 * band,), torch.bool)
    parent, lens = drawn_parents(launcher, memory, launch), drawn["seq_lens"]
    after = memory.moved(launcher.device, {})
    spread = noise.clone().to(launcher.device)
    after.tensors["mask"] = spread[band:-band]
    launch.run(launcher, after)
    attrs = {"mode": "full", "width": nodes * (longest + nodes)}
    (mask,) = OPS["tree.mask"]((lens, parent), attrs, {"N": nodes})
    size = int((lens + nodes).sum()) * nodes
    assert size == mask.numel() - short * nodes
    want = noise.clone()
    want[band : band + size] = mask.reshape(-1)[:size]
    assert_same(spread.cpu(), want, "the mask and what is around it")


def drawn_parents(launcher: Launcher, memory: Any, launch: Any) -> Tensor:
    """The parents that a selection finds."""
    after = memory.moved(launcher.device, {})
    launch.run(launcher, after)
    return after.tensors["parent"].cpu()
