"""Rows of the target shared out over a batch: kernels against a greedy choice in plain Python, and their references."""

from __future__ import annotations

import math

import pytest
import torch
from cluster_cases import FLOATS, MAX_B, Scan, TypedBuilder, check_cluster, choice, form, random_batch, small_module
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import generator, integer, quicker, random_logits
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.core import Module
from specc.runtime.semantics.convention import DTYPES

SEEDS = st.integers(0, 2**32)


KINDS = "equal", "odd", "tiny", "usual"


def random_estimates(source: torch.Generator, batch: int, steps: int, kind: str) -> Tensor:
    """f32[batch, steps]: products of probabilities, or few values and so many ties, NaN, and what is no probability."""
    if kind == "equal":
        return torch.randint(0, 3, (batch, steps), generator=source) / 2
    estimate = torch.rand(batch, steps, generator=source).cumprod(1)
    if kind == "odd":
        odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0, -1.0, 2.0, 1e-45])
        some = torch.rand(batch, steps, generator=source) < 0.4
        estimate[some] = odd[torch.randint(0, len(odd), (int(some.sum()),), generator=source)]
    return estimate * (2.0**-100 if kind == "tiny" else 1.0)


def probability(p: float) -> float:
    """A number from 0 to 1."""
    return 0.0 if math.isnan(p) else min(max(p, 0.0), 1.0)


def shares(estimate: Tensor, rows: Tensor, total: int) -> list[int]:
    """Rows of every request: one row after the other goes to the best draft that has none."""
    lens = [int(row != 0) for row in rows.tolist()]
    worth = [[probability(p) for p in request] for request in estimate.tolist()]
    left = {(b, place) for b, there in enumerate(lens) if there for place in range(len(worth[b]))}
    for _ in range(min(total - sum(lens), len(left))):
        b, place = min(left, key=lambda draft: (-worth[draft[0]][draft[1]], draft[1], draft[0]))
        left.remove((b, place))
        lens[b] += 1
    return lens


DRAFTED = pytest.mark.parametrize("drafted", ["chain", "tree"])
"""Whose drafts are the steps of a chain, or the nodes of a tree but for its root."""


def axes(drafted: str) -> tuple[str, str]:
    """The axes of drafts, and of all that may have a row."""
    return ("E", "N") if drafted == "tree" else ("S", "A")


def module_of(drafted: str, drafts: int, **more: int) -> Module:
    """A module of so many drafts; a tree's has other numbers of steps, and of places on a path."""
    each = {"S": 10, "A": 11, "E": drafts, "N": drafts + 1} if drafted == "tree" else {"S": drafts, "A": drafts + 1}
    return small_module(**each, **more)


def taking(steps: int, each: int, drafted: str = "chain") -> Module:
    """A module that shares rows out, and packs two values by that."""
    module, (drafts, nodes) = module_of(drafted, steps, G=each), axes(drafted)
    b = TypedBuilder(module)
    rows = module.inputs["req_pool_indices"]
    with b.phase("verify"):
        lens, starts = b.many("budget.take", b.given("estimate", "f32", drafts), rows, names=("lens", "starts"))
        packed = [
            b("budget.pack", b.given(name, "i64", nodes), lens, starts, names=(f"packed_{name}",), axis=nodes)
            for name in "xy"
        ]
    b.hand_out(lens, starts, *packed)
    return module


@DRAFTED
@pytest.mark.parametrize("kind", KINDS)
@quicker
@given(seed=SEEDS, steps=st.integers(2, 9))
def test_the_best_drafts_have_rows(launcher: Launcher, kind: str, drafted: str, seed: int, steps: int) -> None:
    source = generator(seed)
    rows, each = random_batch(source), integer(source, 1, steps)
    estimate, module = random_estimates(source, len(rows), steps, kind), taking(steps, each, drafted)
    ((stem, cluster),) = form(module)
    assert stem == "budget_take"
    given = {"req_pool_indices": rows, "estimate": estimate}
    given |= {name: torch.randint(0, 10**12, (len(rows), steps + 1), generator=source) for name in "xy"}
    made = check_cluster(launcher, module, stem, cluster, source, given)
    lens = shares(estimate, rows, each * len(rows))
    assert made["lens"].tolist() == lens
    assert made["starts"].tolist() == [sum(lens[:b]) for b in range(len(lens))]
    for name in "xy":
        flat = [value for request, own in zip(given[name].tolist(), lens, strict=True) for value in request[:own]]
        assert made[f"packed_{name}"].flatten().tolist() == flat + [0] * (each * len(rows) - len(flat))


def expectation(estimate: Tensor, rows: Tensor, drafts: int, each: int) -> list[float]:
    """Tokens that every request emits on average if each has so many drafts, and as many rows."""
    lens = shares(estimate[:, :drafts], rows, each * len(rows))
    own = zip(estimate.tolist(), lens, strict=True)
    return [float(n > 0) + sum(probability(p) for p in request[: max(0, n - 1)]) for request, n in own]


@DRAFTED
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
@quicker
@given(seed=SEEDS, steps=st.integers(2, 6))
def test_other_budgets_are_expected_beside_the_own(
    launcher: Launcher, shared: bool, kind: str, drafted: str, seed: int, steps: int
) -> None:
    """Also where rows are not shared out at all; of fewer drafts, and of none."""
    source = generator(seed)
    rows, each = random_batch(source), integer(source, 1, steps)
    pairs = sorted({(drafts, integer(source, 1, drafts + 1)) for drafts in (0, integer(source, 1, steps), steps)})
    module = taking(steps, each, drafted) if shared else module_of(drafted, steps)
    b = TypedBuilder(module)
    with b.phase("verify"):
        estimate = module.find("budget.take")[0]["estimate"] if shared else b.given("estimate", "f32", axes(drafted)[0])
        attrs = {"columns": len(pairs), "shapes": ", ".join(f"{drafts}:{own}" for drafts, own in pairs)}
        b.hand_out(b("budget.expect", estimate, module.inputs["req_pool_indices"], names=("expected",), **attrs))
    ((stem, cluster),) = form(module)
    assert stem == ("budget_take" if shared else "budget_expect")
    found = random_estimates(source, len(rows), steps, kind)
    given = {"req_pool_indices": rows, "estimate": found}
    if shared:
        given |= {name: torch.randint(0, 10**12, (len(rows), steps + 1), generator=source) for name in "xy"}
    made = check_cluster(launcher, module, stem, cluster, source, given)["expected"]
    want = [expectation(found, rows, *pair) for pair in pairs]
    torch.testing.assert_close(made.T, torch.tensor(want), rtol=1e-6, atol=0.0)


def random_share(source: torch.Generator, rows: Tensor, steps: int, each: int) -> tuple[Tensor, Tensor]:
    """Rows that every request has, and where they begin."""
    estimate = torch.rand(len(rows), steps, generator=source)
    lens = torch.tensor(shares(estimate, rows, each * len(rows)), dtype=torch.int32)
    return lens, (lens.cumsum(0) - lens).int()


@DRAFTED
@pytest.mark.parametrize("reader", ["argmax", "draw", "cut"])
@quicker
@given(seed=SEEDS, steps=st.integers(1, 6), splits=st.sampled_from([0, 1, 2]))
def test_launches_read_packed_rows(
    launcher: Launcher, reader: str, drafted: str, seed: int, steps: int, splits: int
) -> None:
    """Rows that no request has are infinite: a launch that reads one gives other tokens, and calls them bad."""
    source = generator(seed)
    rows, each, vocab = random_batch(source), integer(source, 1, steps + 1), integer(source, 2, 600)
    module, (_, nodes) = module_of(drafted, steps, G=each, V=vocab), axes(drafted)
    b, dtype = TypedBuilder(module), choice(source, FLOATS)
    with b.phase("verify"):
        share = b.given("lens", "i32"), b.given("starts", "i32")
        logits = b("budget.logits", b.given("logits", dtype, "G", "V"), *share, names=("mine",), axis=nodes)
        operands, names = (logits, module.inputs["req_pool_indices"]), ("index", "bad")
        if reader == "argmax":
            b.hand_out(*b.many("vocab.argmax", *operands, names=names, dtype="i32", keep=""))
        elif reader == "draw":
            noise = b.given("keys", "i64", nodes), b.given("scales", "f32", nodes)
            b.hand_out(*b.many("sample.draw", *operands, *noise, names=names, dtype="i32", keep=""))
        else:
            b.hand_out(b("sample.top_k", logits, b.given("scales", "f32", nodes), b.given("k", "i32"), names=("cuts",)))
    ((stem, cluster),) = form(module)
    assert stem == reader and cluster[0].opcode == "budget.logits" and len(cluster) == 2
    lens, starts = random_share(source, rows, steps, each)
    flat = random_logits(source, each * len(rows), vocab, vocab, DTYPES[dtype])
    flat[int(lens.sum()) :] = math.inf
    given = {"req_pool_indices": rows, "lens": lens, "starts": starts}
    given["logits"] = flat.view(len(rows), each, vocab)
    given["keys"] = torch.randint(0, 2**62, (len(rows), steps + 1), generator=source)
    given["scales"] = torch.randint(0, 3, (len(rows), steps + 1), generator=source).float()
    given["k"] = torch.randint(0, vocab + 1, (len(rows),), generator=source, dtype=torch.int32)
    check_cluster(launcher, module, stem, cluster, source, given, Scan(splits=splits) if reader != "cut" else Scan())


@pytest.mark.parametrize("along", [True, False], ids=["path", "rows"])
@quicker
@given(seed=SEEDS, steps=st.integers(1, 6), count=st.integers(0, 4), splits=st.sampled_from([0, 1, 2]))
def test_scores_of_packed_rows(launcher: Launcher, along: bool, seed: int, steps: int, count: int, splits: int) -> None:
    """Of any nodes of a path, or of every row, as tokens are drawn from them; a row that no request has is infinite."""
    source = generator(seed)
    rows, each, vocab = random_batch(source), integer(source, 1, steps + 1), integer(source, 5, 600)
    module = small_module(S=steps, A=steps + 1, G=each, V=vocab)
    b, dtype, batch = TypedBuilder(module), choice(source, FLOATS), module.inputs["req_pool_indices"]
    path, suffix = ((b.given("path", "i32", "A"),), "_path") if along else ((), "")
    with b.phase("verify"):
        share = b.given("lens", "i32"), b.given("starts", "i32")
        logits = b("budget.logits", b.given("logits", dtype, "G", "V"), *share, names=("mine",))
        scaled = b("sample.scale", logits, b.given("scales", "f32", "A"), b.given("cuts", "f32", "A"))
        b.hand_out(b(f"vocab.logprob{suffix}", scaled, batch, b.given("index", "i32", "A"), *path))
        if count:
            b.hand_out(*b.many(f"vocab.best{suffix}", scaled, batch, *path, count=count))
    ((stem, cluster),) = form(module)
    assert stem == "score" and [op.opcode for op in cluster[:2]] == ["budget.logits", "sample.scale"]
    lens, starts = random_share(source, rows, steps, each)
    flat = (torch.randn(each * len(rows), vocab, generator=source) * 4).to(DTYPES[dtype])
    flat[int(lens.sum()) :] = math.inf
    shape = len(rows), steps + 1
    column = torch.randint(0, steps + 1, shape, generator=source) if along else torch.arange(steps + 1).expand(shape)
    ends = torch.randint(1, steps + 2, rows.shape, generator=source) if along else torch.full(rows.shape, steps + 1)
    there = (torch.arange(steps + 1) < ends[:, None]) & (rows != 0)[:, None]
    given = {"req_pool_indices": rows, "lens": lens, "starts": starts}
    given["logits"] = flat.view(len(rows), each, vocab)
    given["scales"] = torch.randint(0, 3, shape, generator=source).float()
    given["cuts"] = torch.randn(shape, generator=source) * 3
    given["index"] = torch.randint(vocab, shape, generator=source, dtype=torch.int32)
    given["path"] = torch.where(there, torch.arange(len(rows))[:, None] * (steps + 1) + column, -1).int()
    made = check_cluster(launcher, module, stem, cluster, source, given, Scan(splits=splits))["logprob"]
    assert not made[~there].any()
    for request, place in torch.nonzero(there).tolist():
        node = int(column[request, place])
        row = flat[int(starts[request]) + min(node, int(lens[request]) - 1)].float()
        if scale := given["scales"][request, node]:
            row = torch.where(row < given["cuts"][request, node], -math.inf, row) * scale
        want = row.log_softmax(-1)[int(given["index"][request, place])].nan_to_num(
            -math.inf, neginf=-math.inf
        )  # all is cut
        torch.testing.assert_close(made[request, place], want, rtol=1e-5, atol=1e-5)


@DRAFTED
@quicker
@given(seed=SEEDS, steps=st.integers(1, 6), width=st.integers(1, 700))
def test_hidden_rows_are_brought_to_their_requests(
    launcher: Launcher, drafted: str, seed: int, steps: int, width: int
) -> None:
    source = generator(seed)
    rows, each = random_batch(source), integer(source, 1, steps + 1)
    module = module_of(drafted, steps, G=each)
    b, dtype = TypedBuilder(module), choice(source, FLOATS)
    with b.phase("verify"):
        share = b.given("lens", "i32"), b.given("starts", "i32")
        packed = b.given("packed", dtype, "G", width)
        b.hand_out(b("budget.unpack", packed, *share, names=("x",), axis=axes(drafted)[1]))
    ((stem, cluster),) = form(module)
    assert stem == "budget_rows"
    lens, starts = random_share(source, rows, steps, each)
    packed = torch.randn(len(rows), each, width, generator=source).to(DTYPES[dtype])
    given = {"req_pool_indices": rows, "lens": lens, "starts": starts, "packed": packed}
    made = check_cluster(launcher, module, stem, cluster, source, given)["x"]
    flat = packed.flatten(0, 1)
    for request, own, start in zip(made, lens.tolist(), starts.tolist(), strict=True):
        assert torch.equal(request[:own], flat[start : start + own])
        assert not request[own:].any()


@quicker
@given(seed=SEEDS, drafts=st.integers(1, 40), places=st.integers(1, 6), width=st.integers(1, 700))
def test_hidden_rows_along_a_path(launcher: Launcher, seed: int, drafts: int, places: int, width: int) -> None:
    """Of any nodes that have a row, and of nobody where the path has ended."""
    source = generator(seed)
    rows, each = random_batch(source), integer(source, 1, drafts + 1)
    module = small_module(E=drafts, N=drafts + 1, A=places, G=each)
    b, dtype = TypedBuilder(module), choice(source, FLOATS)
    with b.phase("commit"):
        operands = b.given("packed", dtype, "G", width), b.given("lens", "i32"), b.given("starts", "i32")
        b.hand_out(b("budget.unpack", *operands, b.given("path", "i32", "A"), names=("x",)))
    ((stem, cluster),) = form(module)
    assert stem == "budget_rows"
    lens, starts = random_share(source, rows, drafts, each)
    packed = torch.randn(len(rows), each, width, generator=source).to(DTYPES[dtype])
    column = torch.randint(0, 1 << 20, (len(rows), places), generator=source) % lens.clamp(min=1)[:, None]
    ends = torch.randint(0, places + 1, rows.shape, generator=source)
    there = (torch.arange(places) < ends[:, None]) & (lens > 0)[:, None]
    path = torch.where(there, torch.arange(len(rows))[:, None] * (drafts + 1) + column, -1).int()
    given = {"req_pool_indices": rows, "lens": lens, "starts": starts, "packed": packed, "path": path}
    made = check_cluster(launcher, module, stem, cluster, source, given)["x"]
    flat = packed.flatten(0, 1)
    for request, place in torch.nonzero(torch.ones_like(there)).tolist():
        row = int(starts[request] + column[request, place])
        want = flat[row] if there[request, place] else torch.zeros_like(flat[0])
        assert torch.equal(made[request, place], want)


@pytest.mark.parametrize("drafted", ["chain", "block"])
@quicker
@given(seed=SEEDS, steps=st.integers(1, 9))
def test_estimates_are_products_corrected_by_what_was_accepted(
    launcher: Launcher, drafted: str, seed: int, steps: int
) -> None:
    source = generator(seed)
    rows = random_batch(source)
    module = small_module(S=steps, K=1)
    b = TypedBuilder(module)
    given: dict[str, Tensor] = {"req_pool_indices": rows}
    with b.phase("draft"):
        if drafted == "block":
            confidence = b("budget.only", b.given("p0", "f32", "S", "K"), names=("confidence",))
        else:
            confidence = b("budget.start", b.given("p0", "f32", "K"), names=("confidence",))
            for column in range(1, steps):
                p = b.given(f"p{column}", "f32", "K", "K")
                confidence = b("budget.append", confidence, p, names=("confidence",), column=column)
        b.hand_out(b("budget.estimate", confidence, b.given("agreement", "f32", 2), names=("estimate",)))
    found = random_estimates(source, len(rows), steps, choice(source, KINDS))
    if drafted == "block":
        given["p0"] = found[:, :, None]
    else:
        given |= {f"p{place}": found[:, place].reshape(-1, 1, *[1] * (place > 0)) for place in range(steps)}
    given["agreement"] = torch.rand(len(rows), 2, generator=source) * 9
    ((stem, cluster),) = form(module)
    estimate = check_cluster(launcher, module, stem, cluster, source, given)["estimate"]
    assert estimate.shape == (len(rows), steps) and len(rows) <= MAX_B
    want = [survivals(*pair) for pair in zip(found.tolist(), given["agreement"].tolist(), strict=True)]
    torch.testing.assert_close(estimate, torch.tensor(want), rtol=1e-5, atol=1e-30)
    assert all((request[1:] <= request[:-1]).all() for request in estimate)


def survivals(confidence: list[float], agreement: list[float]) -> list[float]:
    """How probable it is that each draft of a request and all before it are accepted."""
    ratio = (agreement[0] + 2) / (agreement[1] + 2)
    each = [probability(probability(p) * ratio) for p in confidence]
    return [math.prod(each[: place + 1]) for place in range(len(confidence))]


@quicker
@given(seed=SEEDS, steps=st.integers(1, 9))
def test_requests_learn_of_drafts_that_were_judged(launcher: Launcher, seed: int, steps: int) -> None:
    source = generator(seed)
    rows = random_batch(source)
    module = small_module(S=steps, A=steps + 1)
    b = TypedBuilder(module)
    with b.phase("commit"):
        operands = b.given("agreement", "f32", 2), b.given("confidence", "f32", "S"), b.given("tokens", "i64", "A")
        b.hand_out(b("budget.learn", *operands, b.given("accept_lens", "i32"), names=("after",)))
    confidence = random_estimates(source, len(rows), steps, choice(source, KINDS))
    lens = torch.where(rows == 0, 0, torch.randint(1, steps + 2, rows.shape, generator=source))
    accept_lens = torch.minimum(torch.randint(1, steps + 2, rows.shape, generator=source), lens).int()
    column = torch.arange(steps + 1)
    tokens = torch.where(column < lens[:, None], torch.randint(0, 99, (len(rows), steps + 1), generator=source), -1)
    given = {"req_pool_indices": rows, "confidence": confidence, "tokens": tokens, "accept_lens": accept_lens}
    given["agreement"] = torch.rand(len(rows), 2, generator=source) * 9
    ((stem, cluster),) = form(module)
    after = check_cluster(launcher, module, stem, cluster, source, given)["after"]
    for request, own, accepted, ps, before in zip(
        after, lens.tolist(), accept_lens.tolist(), confidence.tolist(), given["agreement"].tolist(), strict=True
    ):
        judged = ps[: max(0, min(own - 1, accepted))]
        want = [before[0] + max(0, accepted - 1), before[1] + sum(map(probability, judged))]
        torch.testing.assert_close(request, torch.tensor(want) * 0.97, rtol=1e-5, atol=1e-6)


def random_links(source: torch.Generator, batch: int, drafts: int) -> Tensor:
    """Parents i64[batch, drafts + 1] of trees whose nodes stand behind their parents; some have none."""
    before = torch.arange(drafts + 1).clamp(min=1)
    parent = torch.randint(0, 1 << 20, (batch, drafts + 1), generator=source) % before
    parent[torch.rand(parent.shape, generator=source) < 0.1] = -1
    parent[:, 0] = -1
    return parent


def shares_of(scores: list[float], parent: list[int]) -> list[float]:
    """How probable every node is behind its parent; 1 of the root."""
    known = [1.0, *map(probability, scores)]
    return [1.0] + [
        0.0 if above < 0 or not own else own / max(own, known[above])
        for own, above in zip(known[1:], parent[1:], strict=True)
    ]


@quicker
@given(seed=SEEDS, drafts=st.integers(1, 40), places=st.integers(2, 7))
def test_paths_are_as_probable_as_all_of_their_drafts(launcher: Launcher, seed: int, drafts: int, places: int) -> None:
    """Each corrected by what the request has accepted; and no node is more probable than those that stand before it."""
    source = generator(seed)
    rows, module = random_batch(source), small_module(A=places, E=drafts, N=drafts + 1)
    b = TypedBuilder(module)
    with b.phase("tree"):
        operands = b.given("scores", "f32", "E"), b.given("parent", "i64", "N"), b.given("agreement", "f32", 2)
        b.hand_out(b("budget.estimate_paths", *operands, names=("estimate",)))
    scores = random_estimates(source, len(rows), drafts, choice(source, KINDS))
    given = {"req_pool_indices": rows, "scores": scores, "parent": random_links(source, len(rows), drafts)}
    given["agreement"] = torch.rand(len(rows), 2, generator=source) * 9
    ((stem, cluster),) = form(module)
    estimate = check_cluster(launcher, module, stem, cluster, source, given)["estimate"]
    for own, found, parent, (right, hoped) in zip(
        estimate, scores.tolist(), given["parent"].tolist(), given["agreement"].tolist(), strict=True
    ):
        each = [min(1.0, p * (right + 2) / (hoped + 2)) for p in shares_of(found, parent)]
        want = list[float]()
        for column in range(1, drafts + 1):
            path, at = 1.0, column
            for _ in range(places - 1):
                path, at = (path * each[at], parent[at]) if at > 0 else (path, at)
            want.append(min(path, want[-1]) if want else path)
        torch.testing.assert_close(own, torch.tensor(want), rtol=1e-5, atol=1e-30)
        assert (own[1:] <= own[:-1]).all()


@quicker
@given(seed=SEEDS, drafts=st.integers(1, 40), places=st.integers(1, 7))
def test_requests_learn_of_nodes_behind_accepted_ones(launcher: Launcher, seed: int, drafts: int, places: int) -> None:
    """Nodes without a row teach nothing, and one child of a node is right at most."""
    source = generator(seed)
    rows, module = random_batch(source), small_module(A=places, E=drafts, N=drafts + 1)
    b = TypedBuilder(module)
    with b.phase("verify"):
        operands = b.given("agreement", "f32", 2), b.given("scores", "f32", "E"), b.given("parent", "i64", "N")
        path = b.given("accept_index", "i32", "A"), b.given("accept_lens", "i32")
        b.hand_out(b("budget.learn_paths", *operands, b.given("tokens", "i64", "N"), *path, names=("after",)))
    scores, count = random_estimates(source, len(rows), drafts, choice(source, KINDS)), len(rows)
    lens = torch.where(rows == 0, 0, torch.randint(1, drafts + 2, rows.shape, generator=source))
    accept_lens = torch.minimum(torch.randint(1, places + 1, rows.shape, generator=source), lens).int()
    tokens = torch.randint(0, 99, (count, drafts + 1), generator=source)
    tokens = torch.where(torch.arange(drafts + 1) < lens[:, None], tokens, -1)
    column = torch.stack([torch.randperm(drafts + places, generator=source)[:places] % (drafts + 1) for _ in rows])
    column[:, 0] = 0
    index = torch.arange(count)[:, None] * (drafts + 1) + column
    index = torch.where(torch.arange(places) < accept_lens[:, None], index, -1).int()
    given = {"req_pool_indices": rows, "scores": scores, "parent": random_links(source, count, drafts)}
    given |= {"tokens": tokens, "accept_index": index, "accept_lens": accept_lens}
    given["agreement"] = torch.rand(count, 2, generator=source) * 9
    ((stem, cluster),) = form(module)
    after = check_cluster(launcher, module, stem, cluster, source, given)["after"]
    for request, own, accepted, found, parent, path, before in zip(
        after,
        lens.tolist(),
        accept_lens.tolist(),
        scores.tolist(),
        given["parent"].tolist(),
        column.tolist(),
        given["agreement"].tolist(),
        strict=True,
    ):
        each, on_path = shares_of(found, parent), set(path[:accepted])
        hoped = sum(each[node] for node in range(1, own) if parent[node] in on_path)
        want = [before[0] + max(0, accepted - 1), before[1] + hoped]
        torch.testing.assert_close(request, torch.tensor(want) * 0.97, rtol=1e-5, atol=1e-4)
