"""argmax, top-k and log-probabilities of rows: all dtypes, cuts and hostile rows; and what else is read of them."""

import math

import pytest
import torch
from cluster_cases import (
    FLOATS,
    POOL,
    Scan,
    TypedBuilder,
    carry,
    check_module,
    choice,
    integer,
    prepared,
    random_batch,
    random_value,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import argmax, generator, quick, random_rows
from kernel_launcher import Launcher
from topk_cases import hostile_batch, hostile_logits
from torch import Tensor

from specc.compiler.ir.core import Module, tensor_type
from specc.runtime.semantics.convention import DTYPES

BIT, WIDTH = 2, 5
scans = st.builds(
    Scan,
    splits=st.integers(1, 8),
    block=st.sampled_from([16, 64, 512, 1024]),
    slack=st.sampled_from([0, 0, 1, 8]),
)
vocabularies = st.integers(16, 300) | st.integers(301, 3000) | st.sampled_from([64, 512, 2048])


def reduction(opcode: str, dtype: str, rows: int, *, index: str = "i32", **sizes: int) -> Module:
    """A module with one reduction of 0 (no axis), 1 or more rows of a request, whose results are handed out."""
    axis = ("N",) if rows and opcode == "vocab.argmax" else ("K",) if rows else ()
    module = small_module(N=max(rows, 1), **{"K": 1} | sizes)
    b = TypedBuilder(module)
    logits = b.given("logits", dtype, *axis, "V")
    health = b.given("earlier", "i32")
    with b.phase("draft"):
        attrs = {"dtype": index, "keep": ""} if opcode == "vocab.argmax" else {}
        results = b.many(opcode, logits, module.inputs["req_pool_indices"], **attrs)
        raised = b("health.raise", health, results[-1], names=("health",), bit=BIT)
    b.hand_out(*results, raised)
    return module


def check(
    launcher: Launcher, module: Module, logits: Tensor, rows: Tensor, scan: Scan, source: torch.Generator
) -> dict[str, Tensor]:
    """Check the kernels of logits of any shape; the health word holds earlier bits."""
    earlier = torch.randint(0, 32, (len(rows),), generator=source, dtype=torch.int32) & ~(1 << BIT)
    values = {"req_pool_indices": rows, "logits": logits, "earlier": earlier}
    return check_module(launcher, module, source, values, scan)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    rows=st.just(0) | st.integers(1, 5),
    index=st.sampled_from(["i32", "i64"]),
    vocab=st.integers(1, 300) | vocabularies,
    scan=scans,
)
def test_argmax(launcher: Launcher, dtype: str, seed: int, rows: int, index: str, vocab: int, scan: Scan) -> None:
    """Of one row of a request or of several, against the reference and a plain scan."""
    source, module = generator(seed), reduction("vocab.argmax", dtype, rows, index=index, V=vocab)
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    results = check(launcher, module, logits, batch, scan.affordable(vocab), source)
    plain = [argmax(row) for row in logits.flatten(0, -2)]
    live = (batch != 0).repeat_interleave(max(rows, 1))
    assert results["index"].flatten()[live].tolist() == [plain[i][0] for i in live.nonzero().flatten()]
    assert results["bad"].flatten()[live].tolist() == [plain[i][1] for i in live.nonzero().flatten()]


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    branches=st.integers(1, 4) | st.integers(1, 8),
    each=st.booleans(),
    vocab=vocabularies,
    scan=scans,
)
def test_topk(launcher: Launcher, dtype: str, seed: int, branches: int, each: bool, vocab: int, scan: Scan) -> None:
    """Of one row of a request, or of one for each branch."""
    source, module = generator(seed), reduction("vocab.topk", dtype, each * branches, K=branches, V=vocab)
    batch = random_rows(source, integer(source, 1, 2), POOL)
    count = len(batch) * (branches if each else 1)
    logits = hostile_logits(source, count, vocab, vocab, DTYPES[dtype])
    shape = (len(batch), branches, vocab) if each else (len(batch), vocab)
    check(launcher, module, logits.view(shape), batch, scan.affordable(vocab), source)


def test_few_values_above_the_lowest(launcher: Launcher) -> None:
    """Lanes that hold nothing but -inf are behind one with the lowest finite value, wherever that is."""
    module = reduction("vocab.topk", "f32", 0, K=3, V=48)
    logits = torch.full((1, 48), -math.inf)
    logits[0, 3], logits[0, 14], logits[0, 31] = 1.0, torch.finfo(torch.float32).min, torch.finfo(torch.float32).min
    results = check(launcher, module, logits, torch.tensor([2]), Scan(1, 16), generator(0))
    assert results["index"][0].tolist() == [3, 14, 31]


@pytest.mark.parametrize(("vocab", "splits"), [(70, 3), (64, 3), (63, 2), (5, 3)])
def test_every_chunk_holds_its_own_blocks(launcher: Launcher, vocab: int, splits: int) -> None:
    """Of 16 logits each, the last one partial; the largest is the last logit, so that who reads on is seen."""
    module = reduction("vocab.argmax", "f32", 0, V=vocab)
    logits = torch.arange(vocab, dtype=torch.float32).view(1, vocab)
    values = {"req_pool_indices": torch.tensor([3]), "logits": logits}
    memory, launch = prepared(module, values, generator(0), Scan(splits, 16))
    after = memory.moved(launcher.device, {})
    launch.run(launcher, after)
    blocks = logits[0].split(16)
    each = -(-len(blocks) // splits)
    own = [blocks[chunk * each : (chunk + 1) * each] for chunk in range(splits)]
    best = [(max(part[-1]), int(max(part[-1]))) if part else (-math.inf, 0) for part in own]
    assert after.tensors["argmax.partial_value"][0, :splits].tolist() == [value for value, _ in best]
    assert after.tensors["argmax.partial_index"][0, :splits].tolist() == [place for _, place in best]
    assert after.tensors["index"][0] == vocab - 1


@pytest.mark.parametrize("each", [1, 2, 3, 5])
@pytest.mark.parametrize("opcode", ["vocab.argmax", "vocab.topk"])
def test_good_rows_raise_no_health(launcher: Launcher, opcode: str, each: int) -> None:
    """Whatever number of rows a request has: lanes past them are not bad."""
    source, module = generator(each), reduction(opcode, "f32", each, V=40, K=each)
    logits = torch.randn(1, each, 40, generator=source)
    results = check(launcher, module, logits, torch.tensor([4]), Scan(2, 16), source)
    assert not results["bad"].any()


@pytest.mark.parametrize(("k", "more", "splits"), [(1, 0, 1), (2, 0, 1), (3, 1, 3), (5, 0, 2), (8, 40, 4), (16, 20, 2)])
@pytest.mark.parametrize("each", [False, True])
def test_small_vocabularies(launcher: Launcher, k: int, more: int, splits: int, each: bool) -> None:
    """As many tokens as branches, or a few more: chunks are empty or hold fewer than K; K up to 16."""
    source, module = generator(k), reduction("vocab.topk", "f32", each * k, K=k, V=k + more)
    logits = hostile_logits(source, k, k + more, k + more, torch.float32)
    logits = logits[None] if each else logits[:1]
    check(launcher, module, logits, torch.tensor([7]), Scan(splits, 16), source)


LOW = torch.finfo(torch.float32).min


@pytest.mark.parametrize(
    ("row", "index", "p"),
    [
        ([1.0, math.nan, 3.0, 3.0], [2, 3, 0, 1], [0.46831053, 0.46831053, 0.06337894, 0.0]),
        ([LOW, -math.inf, LOW, math.nan], [0, 2, 1, 3], [0.5, 0.5, 0.0, 0.0]),
        ([-math.inf, math.nan, -math.inf, LOW], [3, 0, 1, 2], [1.0, 0.0, 0.0, 0.0]),
        ([5.0, math.inf, -math.inf, math.inf], [1, 3, 0, 2], [0.5, 0.5, 0.0, 0.0]),
        ([-math.inf, math.nan, -math.inf, math.nan], [0, 1, 2, 3], [0.0, 0.0, 0.0, 0.0]),
        ([-0.0, 0.0, -0.0, -1.0], [0, 1, 2, 3], [0.2969226, 0.2969226, 0.2969226, 0.1092318]),
        ([LOW, -LOW, 0.0, LOW], [1, 2, 0, 3], [1.0, 0.0, 0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("splits", [1, 4])
def test_rows_by_hand(launcher: Launcher, row: list[float], index: list[int], p: list[float], splits: int) -> None:
    """Rows of four, every value in a chunk of its own or all in one lane's column, and what they must give."""
    logits, at = torch.full((1, 64), -math.inf), torch.arange(4) * 16
    logits[0, at] = torch.tensor(row)
    source, module = generator(1), reduction("vocab.topk", "f32", 0, K=4, V=64)
    results = check(launcher, module, logits, torch.tensor([3]), Scan(splits, 16), source)
    places = [at[i].item() for i, q in zip(index, p, strict=True) if q]
    assert results["index"][0, : len(places)].tolist() == places
    torch.testing.assert_close(results["p"][0], torch.tensor(p))


@pytest.mark.parametrize("splits", [1, 2, 8])
@pytest.mark.parametrize("opcode", ["vocab.argmax", "vocab.topk"])
def test_ties_go_to_the_lowest_index(launcher: Launcher, opcode: str, splits: int) -> None:
    source, module = generator(0), reduction(opcode, "bf16", 0, K=4, V=200)
    logits = torch.where(torch.arange(200) % 3 == 0, -0.0, 0.0).to(torch.bfloat16)[None]
    results = check(launcher, module, logits, torch.tensor([3]), Scan(splits, 16), source)
    assert results["index"].flatten().tolist() == ([0, 1, 2, 3] if opcode == "vocab.topk" else [0])
    assert not results["bad"].any()


LONG = {
    "random": lambda source, size: torch.randn(size, generator=source),
    "ties": lambda source, size: torch.randint(0, 3, (size,), generator=source).float(),
    "equal": lambda _, size: torch.zeros(size),
    "rising": lambda _, size: torch.arange(float(size)),
    "one": lambda _, size: torch.where(torch.arange(size) == 0, 1.0, -math.inf),
    "few": lambda source, size: torch.where(torch.rand(size, generator=source) < 0.01, 1.0, -math.inf),
}


@pytest.mark.parametrize(("kind", "each"), [*((kind, False) for kind in LONG), ("ties", True), ("rising", True)])
@pytest.mark.parametrize(("k", "block", "vocab"), [(3, 16, 512), (4, 64, 1024)])
def test_groups_of_long_chunks(launcher: Launcher, kind: str, each: bool, k: int, block: int, vocab: int) -> None:
    """Chunks of which a group has seen more than is read again at once, or not: groups of four lanes, or of eight."""
    source, module = generator(k), reduction("vocab.topk", "f32", each * k, K=k, V=vocab)
    rows = torch.stack([LONG[kind](source, vocab) for _ in range(k if each else 1)])
    order = [sorted(range(vocab), key=lambda i, row=row: (-row[i].item(), i))[:k] for row in rows]
    for splits in (1, 3):
        results = check(launcher, module, rows[None] if each else rows, torch.tensor([3]), Scan(splits, block), source)
        assert results["index"].view(-1, k).tolist() == order


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("opcode", ["vocab.argmax", "vocab.topk"])
@pytest.mark.parametrize(
    ("value", "count", "bad"),
    [(math.nan, 1, True), (math.inf, 1, True), (math.inf, 3, True), (-math.inf, 198, False), (-math.inf, 200, True)],
)
def test_who_is_accused(launcher: Launcher, opcode: str, value: float, count: int, bad: bool, clear: bool) -> None:
    """Of two requests the one with odd values; a word that is cleared keeps no earlier bit."""
    source, module = generator(count), small_module(K=4, V=200)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    logits = b.given("logits", "f32", "V")
    with b.phase("draft"):
        earlier = b("health.clear", rows, names=("cleared",)) if clear else b.given("earlier", "i32")
        attrs = {"dtype": "i64", "keep": ""} if opcode == "vocab.argmax" else {}
        *_, flag = b.many(opcode, logits, rows, **attrs)
        b.hand_out(b("health.raise", earlier, flag, names=("health",), bit=BIT))
    drawn = torch.randn(2, 200, generator=source)
    drawn[1, torch.randperm(200, generator=source)[:count]] = value
    results = check(launcher, module, drawn, torch.tensor([3, 9]), Scan(3, 16), source)
    assert [bool(word & (1 << BIT)) for word in results["health"].tolist()] == [False, bad]
    assert not clear or results["health"][0] == 0


@pytest.mark.parametrize("opcode", ["vocab.argmax", "vocab.topk"])
def test_padding_rows_hold_what_zeros_give(launcher: Launcher, opcode: str) -> None:
    """Nothing of their logits shows, however bad they are."""
    source, module = generator(1), reduction(opcode, "f32", 0, K=4, V=200)
    logits = torch.stack([torch.full((200,), math.nan), torch.randn(200, generator=source)])
    results = check(launcher, module, logits, torch.tensor([0, 5]), Scan(3, 16), source)
    assert not any(value[0].any() for name, value in results.items() if name in ("index", "p", "bad"))


@pytest.mark.parametrize("kind", ["far apart", "one", "plus infinities", "lowest", "nothing", "nan", "nan alone"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_logprobs_of_hostile_rows(launcher: Launcher, kind: str, dtype: str) -> None:
    """Sums of exponentials over chunks of which some have no finite value, or are empty."""
    vocab, source = 150, generator(5)
    row = torch.randn(vocab, generator=source) * 30
    if kind == "far apart":
        row[::7] = torch.finfo(DTYPES[dtype]).min
        row[100] = 60000.0
    elif kind == "one":
        row[:] = -math.inf
        row[70] = -1.0
    elif kind == "plus infinities":
        row[[3, 60, 61, 149]] = math.inf
    elif kind == "lowest":
        row[:] = torch.finfo(DTYPES[dtype]).min
        row[20:140] = -math.inf
    elif kind == "nothing":
        row[:] = -math.inf
    elif kind == "nan":
        row[[0, 50, 51, 149]] = math.nan
    elif kind == "nan alone":
        row[:] = math.nan
    results = logprobs(launcher, torch.stack([row, torch.randn(vocab, generator=source)] * 2).to(DTYPES[dtype]))
    assert results["bad"][0, 0] == (kind in ("plus infinities", "nothing", "nan", "nan alone"))


def logprobs(launcher: Launcher, logits: Tensor, scan: Scan | None = None) -> dict[str, Tensor]:
    """Check the log-probabilities of the argmaxes of one request's rows."""
    dtype = {DTYPES[name]: name for name in FLOATS}[logits.dtype]
    module = reduction("vocab.argmax", dtype, len(logits), V=logits.shape[1])
    argmax_op = module.phases["draft"][0]
    b = TypedBuilder(module)
    with b.phase("draft"):
        b.hand_out(b("vocab.logprob", argmax_op["logits"], argmax_op["rows"], argmax_op.out("index")))
    results = check(launcher, module, logits[None], torch.tensor([3]), scan or Scan(4, 32), generator(3))
    plain = [logprob(row) for row in logits]
    torch.testing.assert_close(results["logprob"][0], torch.tensor(plain), rtol=1e-5, atol=1e-6)
    return results


def logprob(row: Tensor) -> float:
    """Log of the probability of the row's argmax: NaN is -inf, equal infinities share, nothing else gives -inf."""
    values = [value for value in row.double().tolist() if value > -math.inf]
    if not values:
        return -math.inf
    largest = max(values)
    return -math.log(sum(1.0 if value == largest else math.exp(value - largest) for value in values))


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=10)
@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), vocab=vocabularies, scan=scans)
def test_logprobs(launcher: Launcher, dtype: str, seed: int, rows: int, vocab: int, scan: Scan) -> None:
    """Of one row of a request or of several, with the argmax in the same scan."""
    logits = hostile_logits(generator(seed), rows, vocab, vocab, DTYPES[dtype])
    logprobs(launcher, logits, scan.affordable(vocab))


@settings(quick, max_examples=30)
@given(seed=st.integers(0, 2**32))
def test_reductions_are_stored_in_fields(launcher: Launcher, seed: int) -> None:
    """Results of a reduction in the rows of fields, more than one of them, and what is carried beside them."""
    source = generator(seed)
    topk, vocab, dtype = bool(integer(source, 0, 1)), integer(source, 8, 700), choice(source, FLOATS)
    module = small_module(K=integer(source, 2, 4) if topk else 1, V=vocab)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    logits, health = b.given("logits", dtype, "V"), b.given("earlier", "i32")
    with b.phase("extend"):
        attrs = {} if topk else {"dtype": choice(source, ("i32", "i64")), "keep": choice(source, ("", "K"))}
        *stored, bad = b.many("vocab.topk" if topk else "vocab.argmax", logits, rows, **attrs)
        b.hand_out(b("health.raise", health, bad, names=("health",), bit=integer(source, 0, 30)))
        values = {f"stored{i}": stored[integer(source, 0, len(stored) - 1)] for i in range(integer(source, 1, 3))}
        for number in range(integer(source, 0, 3)):
            values[f"other{number}"] = random_value(b, source, f"value{number}")
        for name, value in values.items():
            type_ = tensor_type(value)
            carry(module, name, type_.dtype, *type_.shape[1:])
            b.many("carry.store", rows, value, field=name)
    batch = random_batch(source)
    lines = hostile_logits(source, len(batch), vocab, vocab, DTYPES[dtype])
    given_ = {"req_pool_indices": batch, "logits": lines}
    scan = Scan(integer(source, 0, 8), (0, 64)[integer(source, 0, 1)], integer(source, 0, 3))
    check_module(launcher, module, source, given_, scan)
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1
