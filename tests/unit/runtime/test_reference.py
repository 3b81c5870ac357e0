"""Reference semantics against loops that say the same in the most obvious way."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.runtime.semantics.reference import OPS, STORES, evaluate

NAN, INF = math.nan, math.inf
SPECIAL = [NAN, -INF, INF, 0.0, -0.0, 1.0, 1.5, -2.0, 65504.0]
FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def plain_argmax(values: list[float]) -> tuple[int, bool]:
    """The argmax rule: (index, bad)."""
    best, index = -INF, 0
    for i, value in enumerate(values):
        if not math.isnan(value) and value > best:
            best, index = value, i
    return index, any(map(math.isnan, values)) or math.isinf(best)


@pytest.mark.parametrize("dtype", FLOATS)
@given(rows=st.lists(st.lists(st.sampled_from(SPECIAL), min_size=7, max_size=7), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_argmax(dtype: str, rows: list[list[float]]) -> None:
    logits = torch.tensor(rows, dtype=FLOATS[dtype])
    index, bad = OPS["vocab.argmax"]((logits, torch.ones(len(rows), dtype=torch.int64)), {"dtype": "i32"}, {})
    expected = [plain_argmax(row) for row in logits.tolist()]
    assert index.tolist() == [i for i, _ in expected]
    assert bad.tolist() == [b for _, b in expected]
    assert (index.dtype, bad.dtype) == (torch.int32, torch.bool)


@given(rows=st.lists(st.lists(st.sampled_from(SPECIAL), min_size=6, max_size=6), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_best(rows: list[list[float]]) -> None:
    """In the order of logits: beside infinite ones tokens with -inf stand so, too."""
    given = torch.tensor(rows), torch.ones(len(rows), dtype=torch.int64)
    tokens, logprobs = OPS["vocab.best"](given, {"count": 4}, {})
    for row, found, scores in zip(rows, tokens.tolist(), logprobs.tolist(), strict=True):
        clean = [-INF if math.isnan(value) else value for value in row]
        assert found == sorted(range(len(row)), key=lambda i: (-clean[i], i))[:4]
        below = [0.0 if value == max(clean) > -INF else value - max(clean) for value in clean]
        share = math.log(sum(math.exp(value) for value in below if not math.isnan(value)) or 1.0)
        wanted = [-INF if math.isnan(below[i]) else below[i] - share for i in found]
        assert scores == pytest.approx(wanted, rel=1e-5)


def test_argmax_of_padding_nodes_and_kept_axis() -> None:
    logits = torch.zeros(2, 3, 5)
    logits[..., 4] = 1.0
    logits[0, 1] = NAN
    rows = torch.tensor([4, 0])
    index, bad = OPS["vocab.argmax"]((logits, rows), {"dtype": "i64", "keep": ""}, {})
    assert index.tolist() == [[4, 0, 4], [0, 0, 0]]
    assert bad.tolist() == [[False, True, False], [False, False, False]]
    kept, bad = OPS["vocab.argmax"]((logits, rows), {"dtype": "i64", "keep": "K"}, {})
    assert torch.equal(kept, index[..., None])
    assert bad.shape == (2, 3)
    logits[1] = NAN
    assert not OPS["vocab.argmax"]((logits, rows), {"dtype": "i64"}, {})[1][1].any()


def plain_topk(values: list[float], k: int) -> tuple[list[float], list[int], bool]:
    clean = [-INF if math.isnan(value) else value for value in values]
    order = sorted(range(len(clean)), key=lambda i: (-clean[i], i))[:k]
    best = max(clean)
    bad = any(map(math.isnan, values)) or math.isinf(best)
    if best == -INF:
        return [0.0] * k, order, bad
    weights = [1.0 if value == best else math.exp(value - best) for value in clean]
    return [weights[i] / sum(weights) for i in order], order, bad


@given(rows=st.lists(st.lists(st.sampled_from(SPECIAL[:-1]), min_size=6, max_size=6), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_topk(rows: list[list[float]]) -> None:
    logits = torch.tensor(rows)
    p, index, bad = OPS["vocab.topk"]((logits, torch.ones(len(rows), dtype=torch.int64)), {}, {"K": 3})
    for b, row in enumerate(rows):
        probabilities, order, unusable = plain_topk(row, 3)
        assert index[b].tolist() == order
        assert p[b].tolist() == pytest.approx(probabilities)
        assert bool(bad[b]) is unusable
    assert (p.dtype, index.dtype, bad.dtype) == (torch.float32, torch.int64, torch.bool)


def test_topk_of_a_frontier_and_padding() -> None:
    logits = torch.randn(2, 3, 9, dtype=torch.bfloat16)
    p, index, bad = OPS["vocab.topk"]((logits, torch.tensor([2, 0])), {}, {"K": 3})
    assert p.shape == index.shape == (2, 3, 3)
    assert bad.shape == (2, 3)
    assert not p[1].any()
    assert not index[1].any()
    assert bool((p[0, :, :-1] >= p[0, :, 1:]).all())


def test_positions_and_slots() -> None:
    table = torch.arange(100, 150, dtype=torch.int32).view(5, 10)
    rows, lengths = torch.tensor([3, 0, 1]), torch.tensor([4, 0, 2])
    dims = {"B": 3, "K": 1, "D": 2, "N": 3, "A": 3}
    attrs = {"axis": "N", "offset": 1}
    (positions,) = OPS["kv.positions"]((lengths,), {**attrs, "stride": 1}, dims)
    assert positions.tolist() == [[5, 6, 7], [1, 2, 3], [3, 4, 5]]
    (positions,) = OPS["kv.positions"]((lengths,), {**attrs, "stride": 0}, dims)
    assert positions.tolist() == [[5, 5, 5], [1, 1, 1], [3, 3, 3]]
    assert OPS["kv.advance"]((positions,), {}, dims)[0].tolist() == [[6, 6, 6], [2, 2, 2], [4, 4, 4]]
    for op in ("kv.slots", "kv.verify_slots", "kv.extend_slots"):
        (slots,) = OPS[op]((table, rows, lengths), attrs, dims)
        assert slots.tolist() == [[135, 136, 137], [0, 0, 0], [113, 114, 115]]
        assert slots.dtype == torch.int64
    for op, attrs in (("kv.slots", {"axis": "D"}), ("kv.branch_slots", {"page": 1, "room": 2})):
        (slots,) = OPS[op]((table, rows, lengths), {**attrs, "offset": 1}, dims)
        assert slots.tolist() == [[[135], [0], [113]], [[136], [0], [114]]]


@pytest.mark.parametrize("op", ["kv.draft_slots", "kv.branch_slots"])
@pytest.mark.parametrize("seed", range(12))
def test_branches_draft_into_pages_of_their_own(op: str, seed: int) -> None:
    """Every branch but the first starts a page with as many tokens as the text has in its last one."""
    rng = random.Random(seed)
    branches, forwards, page = rng.randint(1, 4), rng.randint(1, 4), rng.choice([1, 2, 4, 16])
    offset, room = rng.randint(0, 1), rng.randint(forwards, 6)
    table = torch.tensor(rng.sample(range(1, 2000), 3 * 250), dtype=torch.int32).view(3, 250)
    rows, lengths = torch.tensor([2, 0, 1]), torch.tensor([rng.randint(0, 60), 0, rng.randint(0, 60)])
    attrs = {"offset": offset, "page": page, "room": room}
    (slots,) = OPS[op]((table, rows, lengths), attrs, {"K": branches, "D": forwards})
    assert (slots.shape, slots.dtype) == ((forwards, 3, branches), torch.int64)
    assert not slots[:, 1].any()
    for b in (0, 2):
        base = int(lengths[b]) + offset
        text = list(range(base // page * page))
        for k in range(branches):
            own_pages = [
                *range(base // page * page, base),
                *[None] * room,
            ]  # from the start of the page of the next token
            length = math.ceil(len(own_pages) / page) * page
            starts = [len(text) + k * length + i for i, known in enumerate(own_pages) if known is None]
            assert slots[:, b, k].tolist() == table[rows[b], starts[:forwards]].tolist()


def test_logprob() -> None:
    logits = torch.tensor([[[1.0, 2.0, NAN], [INF, INF, 0.0], [-INF, NAN, -INF]], [[0.0, 0.0, 0.0]] * 3])
    index = torch.tensor([[1, 0, 2], [0, 1, 2]], dtype=torch.int32)
    (logprob,) = OPS["vocab.logprob"]((logits, torch.tensor([4, 0]), index), {}, {})
    assert logprob.dtype == torch.float32
    assert logprob[0].tolist() == pytest.approx([-math.log1p(math.exp(-1)), math.log(0.5), -INF])
    assert logprob[1].tolist() == [0.0, 0.0, 0.0]
    wide = torch.randn(1, 500).half()
    (logprob,) = OPS["vocab.logprob"]((wide, torch.tensor([1]), torch.tensor([77], dtype=torch.int32)), {}, {})
    assert logprob.tolist() == pytest.approx([float(wide.double().log_softmax(-1)[0, 77])], abs=1e-5)


def test_health() -> None:
    (health,) = OPS["health.clear"]((torch.tensor([3, 0]),), {}, {})
    assert health.tolist() == [0, 0]
    assert health.dtype == torch.int32
    bad = torch.tensor([[[False, True]], [[False, False]]])
    (health,) = OPS["health.raise"]((health, bad), {"bit": 2}, {})
    (health,) = OPS["health.raise"]((health, torch.tensor([True, True])), {"bit": 0}, {})
    assert health.tolist() == [5, 1]


def test_state_ops_go_through_the_pools() -> None:
    pools = {"hidden": torch.arange(8.0).view(4, 2)}
    rows = torch.tensor([2, 0, 3])
    before = pools["hidden"].clone()
    (loaded,) = evaluate("carry.load", (rows,), {"field": "hidden"}, {}, pools)
    assert loaded.tolist() == [[4.0, 5.0], [0.0, 0.0], [6.0, 7.0]]
    for op in ("carry.store", "relay.publish"):
        assert evaluate(op, (rows, loaded + 1), {"field": "hidden"}, {}, pools) == ()
        assert pools["hidden"].tolist() == [[0.0, 1.0], [2.0, 3.0], [5.0, 6.0], [7.0, 8.0]]
        pools["hidden"] = before.clone()
    with pytest.raises(KeyError):
        evaluate("carry.load", (rows,), {"field": "absent"}, {}, pools)
    with pytest.raises(KeyError):
        evaluate("model.target", (), {}, {}, pools)
    assert OPS.keys() >= STORES.keys()


def test_chain_tokens() -> None:
    bonus, token = torch.tensor([7, 9], dtype=torch.int32), torch.tensor([[1], [2]])
    (tokens,) = OPS["chain.start"]((bonus, token), {}, {"A": 4})
    assert tokens.tolist() == [[7, 1, 0, 0], [9, 2, 0, 0]]
    assert tokens.dtype == torch.int64
    (tokens,) = OPS["chain.append"]((tokens, token), {"column": 3}, {})
    assert tokens.tolist() == [[7, 1, 0, 1], [9, 2, 0, 2]]


def test_commit() -> None:
    lens, accepted = torch.tensor([5, 0, 3]), torch.tensor([3, 0, 1], dtype=torch.int32)
    predict = torch.tensor([[4, 5, 6, 0], [0, 0, 0, 0], [8, 0, 0, 0]], dtype=torch.int32)
    new_lens, bonus = OPS["commit.lengths"]((lens, accepted, predict), {}, {})
    assert (new_lens.tolist(), bonus.tolist()) == ([8, 0, 4], [6, 0, 8])
    assert (new_lens.dtype, bonus.dtype) == (torch.int64, torch.int32)
    noise = torch.full_like(predict, 77)
    noisy = torch.where(torch.arange(4) < accepted[:, None], predict, noise)
    (ids,) = OPS["commit.extend_ids"]((noisy, accepted), {}, {})
    assert torch.equal(ids, predict.long())
    (select,) = OPS["commit.select"]((accepted,), {}, {"A": 4})
    assert select.tolist() == [2, 4, 8]


def test_path_of_a_value() -> None:
    x = torch.arange(24.0).view(2, 4, 3)
    index = torch.tensor([[0, 2, -1], [4, 5, 7]], dtype=torch.int32)
    (path,) = OPS["commit.path"]((x, index), {}, {})
    assert path.shape == (2, 3, 3)
    assert path[0].tolist() == [x[0, 0].tolist(), x[0, 2].tolist(), [0.0] * 3]
    assert torch.equal(path[1], x[1, [0, 1, 3]])
    (tokens,) = OPS["commit.path"]((x[..., 0], index), {}, {})
    assert tokens.tolist() == [[0.0, 6.0, 0.0], [12.0, 15.0, 21.0]]


def greedy(tokens: Tensor, argmax: Tensor, rows: Tensor, *parent: Tensor, path: int) -> list[list[object]]:
    results = OPS["verify.greedy"]((tokens, argmax.int(), rows, *parent), {}, {"A": path})
    assert {result.dtype for result in results} == {torch.int32}
    return [result.tolist() for result in results]


def test_the_worked_trace() -> None:
    """Two requests of six nodes: one accepts its first child, the other nothing."""
    parent = torch.tensor([[-1, 0, 0, 1, 2, 2]] * 2)
    tokens = torch.tensor([[50, 11, 12, 13, 14, 15], [60, 21, 22, 23, 24, 25]])
    argmax = torch.tensor([[11, 70, 0, 0, 0, 0], [71, 0, 0, 0, 0, 0]])
    predict, index, lens = greedy(tokens, argmax, torch.tensor([1, 2]), parent, path=4)
    assert index == [[0, 1, -1, -1], [6, -1, -1, -1]]
    assert lens == [2, 1]
    assert predict == [[11, 70, 0, 0, 0, 0], [71, 0, 0, 0, 0, 0]]
    new_lens, bonus = OPS["commit.lengths"](
        (
            torch.tensor([5, 3]),
            torch.tensor(lens, dtype=torch.int32),
            torch.tensor([[11, 70], [71, 0]]).int(),
        ),
        {},
        {},
    )
    assert (new_lens.tolist(), bonus.tolist()) == ([7, 4], [70, 71])


def test_a_sibling_is_taken_and_then_its_child() -> None:
    parent = torch.tensor([[-1, 0, 0, 1, 2, 2]])
    tokens = torch.tensor([[50, 11, 12, 13, 14, 15]])
    argmax = torch.tensor([[12, 0, 15, 0, 0, 9]])
    predict, index, lens = greedy(tokens, argmax, torch.tensor([1]), parent, path=4)
    assert (index, lens) == ([[0, 2, 5, -1]], [3])
    assert predict == [[12, 0, 15, 0, 0, 9]]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_chain(seed: int) -> None:
    rng = random.Random(seed)
    count, nodes = rng.randint(1, 4), rng.randint(2, 5)
    tokens = torch.tensor([[rng.randrange(3) for _ in range(nodes)] for _ in range(count)])
    argmax = torch.tensor([[rng.randrange(3) for _ in range(nodes)] for _ in range(count)])
    rows = torch.tensor([rng.randrange(3) for _ in range(count)])
    predict, index, lens = greedy(tokens, argmax, rows, path=nodes)
    for b in range(count):
        length = 0
        if rows[b]:
            length = 1
            while length < nodes and tokens[b, length] == argmax[b, length - 1]:
                length += 1
        assert lens[b] == length
        assert index[b] == [b * nodes + i if i < length else -1 for i in range(nodes)]
        assert predict[b] == [int(argmax[b, i]) if i < length else 0 for i in range(nodes)]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_tree(seed: int) -> None:
    """Any parents at all, orphans among them; the root is column 0, and of twins the first is taken."""
    rng = random.Random(seed)
    nodes, path = rng.randint(2, 9), rng.randint(2, 5)
    tokens = [rng.randrange(3) for _ in range(nodes)]
    argmax = [rng.randrange(3) for _ in range(nodes)]
    parent = [-1, *(rng.randrange(-1, c) for c in range(1, nodes))]
    columns = [0]
    while len(columns) < path:
        below = (c for c in range(nodes) if parent[c] == columns[-1] and tokens[c] == argmax[columns[-1]])
        if (child := next(below, None)) is None:
            break
        columns.append(child)
    operands = (torch.tensor([values]) for values in (tokens, argmax))
    predict, index, lens = greedy(*operands, torch.tensor([1]), torch.tensor([parent]), path=path)
    assert lens == [len(columns)]
    assert index == [columns + [-1] * (path - len(columns))]
    assert predict == [[argmax[c] if c in columns else 0 for c in range(nodes)]]


def test_parents_that_loop_end() -> None:
    tokens, loop = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 0, 1]])
    _, _, lens = greedy(tokens, torch.tensor([[9, 9, 9]]), torch.tensor([1]), loop, path=3)
    assert lens == [1]
    _, index, lens = greedy(tokens, torch.tensor([[6, 7, 5]]), torch.tensor([1]), loop, path=3)
    assert (lens, index) == ([3], [[0, 1, 2]])


def test_results_share_no_memory_with_operands() -> None:
    x = torch.ones(2, 3)
    (repeated,) = OPS["tree.repeat"]((x,), {}, {"K": 1})
    (path,) = OPS["commit.path"]((x, torch.tensor([[0, 1, 2], [3, 4, 5]])), {}, {})
    for result in (repeated, path):
        result.zero_()
    assert bool((x == 1).all())
