"""Tokens drawn from logits: keys of rows, and noise in front of an argmax, whatever rows and cuts there are."""

import importlib
import math
from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from cluster_cases import FLOATS, POOL, Scan, TypedBuilder, check_module, choice, integer, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quick, random_rows
from kernel_launcher import PACKAGE, Launcher
from topk_cases import hostile_batch
from torch import Tensor

from specc.compiler.ir.core import Module

TEMPERATURES = torch.tensor([0.0, 5e-7, 1e-6, 0.3, 1.0, 7.5, 2.0**20, math.nan, -1.0])


def keyed(rows: int) -> Module:
    """A module that makes keys of no axis, or of so many rows of a request."""
    module = small_module(N=max(rows, 1))
    b = TypedBuilder(module)
    seed, temperature = b.given("seed", "i64"), b.given("temperature", "f32")
    positions = b.given("positions", "i64", *(("N",) if rows else ()))
    with b.phase("tree"):
        b.hand_out(*b.many("sample.keys", seed, temperature, positions, offset=1, kind=3))
    return module


@settings(quick, max_examples=30)
@given(seed=st.integers(0, 2**32), rows=st.integers(0, 5))
def test_keys(launcher: Launcher, seed: int, rows: int) -> None:
    """Of any seed and position, 64 bits each."""
    source = generator(seed)
    batch = random_rows(source, integer(source, 1, 6), POOL)
    count = len(batch)
    values = {
        "req_pool_indices": batch,
        "seed": torch.randint(-(2**63), 2**63 - 1, (count,), generator=source),
        "temperature": TEMPERATURES[torch.randint(len(TEMPERATURES), (count,), generator=source)],
        "positions": torch.randint(0, 2**40, (count, rows) if rows else (count,), generator=source),
    }
    check_module(launcher, keyed(rows), source, values)


def drawn(dtype: str, rows: int, vocab: int, *, cut: bool = False) -> Module:
    """A module that draws a token for one row of a request, or for several; of what is not below a cut, if there is."""
    axes = ("N",) if rows else ()
    module = small_module(N=max(rows, 1), V=vocab)
    b = TypedBuilder(module)
    logits = b.given("logits", dtype, *axes, "V")
    keys, scales = b.given("keys", "i64", *axes), b.given("scales", "f32", *axes)
    cuts = (b.given("cuts", "f32", *axes),) if cut else ()
    with b.phase("verify"):
        rows = module.inputs["req_pool_indices"]
        b.hand_out(*b.many("sample.draw", logits, rows, keys, scales, *cuts, dtype="i32", keep=""))
    return module


def noise_of(source: torch.Generator, *shape: int) -> dict[str, Tensor]:
    """Keys and scales of rows, of which some are greedy."""
    keys = torch.randint(-(2**63), 2**63 - 1, shape, generator=source)
    scales = torch.tensor([0.0, 0.5, 1.0, 3.0, 1e6])
    return {"keys": keys, "scales": scales[torch.randint(len(scales), shape, generator=source)]}


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 4),
    vocab=st.integers(1, 300) | st.integers(301, 3000),
    cut=st.booleans(),
)
def test_draws(launcher: Launcher, dtype: str, seed: int, rows: int, vocab: int, cut: bool) -> None:
    """As the reference draws, from rows of every kind, and from what is not below a cut."""
    source = generator(seed)
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    shape = logits.shape[:-1]
    scan = Scan(integer(source, 1, 8), int(choice(source, ("64", "512")))).affordable(vocab)
    values = {"req_pool_indices": batch, "logits": logits, **noise_of(source, *shape)}
    if cut:  # of the row's own values, and none
        values["cuts"] = logits.float()[..., integer(source, 0, vocab - 1)].nan_to_num(nan=-math.inf)
    check_module(launcher, drawn(dtype, rows, vocab, cut=cut), source, values, scan)


@pytest.mark.parametrize("vocab", [64, 1000])
def test_cuts_decide_nothing(launcher: Launcher, vocab: int) -> None:
    """The same tokens bit by bit, however rows are cut."""
    source = generator(vocab)
    batch = torch.tensor([3, 1])
    values = {"req_pool_indices": batch, "logits": torch.randn(2, 3, vocab, generator=source)}
    values |= noise_of(source, 2, 3) | {"scales": torch.ones(2, 3)}
    indices = [
        check_module(launcher, drawn("f32", 3, vocab), source, values, Scan(splits, block))["index"]
        for splits, block in ((1, 1024), (3, 64), (8, 256))
    ]
    assert torch.equal(indices[0], indices[1])
    assert torch.equal(indices[0], indices[2])


@pytest.mark.parametrize("size", [1000.0, -3e4])
def test_noise_is_not_lost_beside_large_logits(launcher: Launcher, size: float) -> None:
    """Tokens are those of the reference, which draws equal logits as often as each other, however rows are cut."""
    source = generator(7)
    logits = torch.where(torch.rand(6, 4, 300, generator=source) < 0.3, size, size - 2000.0)
    values = {"req_pool_indices": torch.arange(1, 7), "logits": logits, **noise_of(source, 6, 4)}
    values["scales"] = torch.full((6, 4), 1e5)
    tokens = check_module(launcher, drawn("f32", 4, 300), source, values, Scan(3, 64))["index"]
    assert len(tokens.unique()) > 12
    assert torch.equal(tokens, check_module(launcher, drawn("f32", 4, 300), source, values, Scan(1, 512))["index"])


def test_only_what_is_allowed_is_drawn(launcher: Launcher) -> None:
    """Of a row of -inf but for one entry that entry, whatever the noise."""
    source = generator(5)
    logits = torch.full((6, 200), -math.inf)
    logits[torch.arange(6), torch.arange(6) * 39] = -3.0
    values = {"req_pool_indices": torch.arange(1, 7), "logits": logits, **noise_of(source, 6)}
    results = check_module(launcher, drawn("f32", 0, 200), source, values, Scan(3, 64))
    assert results["index"].tolist() == [39 * i for i in range(6)]
    assert not results["bad"].any()


def allowed(dtype: str, rows: int, vocab: int, words: int, *, noise: bool) -> Module:
    """A module that takes the largest of what is allowed in one row of a request, or in several; or draws of it."""
    axes = ("N",) if rows else ()
    module = small_module(N=max(rows, 1), V=vocab)
    b = TypedBuilder(module)
    logits, bitmask = b.given("logits", dtype, *axes, "V"), b.given("bitmask", "i32", *axes, words)
    keyed = (b.given("keys", "i64", *axes), b.given("scales", "f32", *axes)) if noise else ()
    with b.phase("verify"):
        masked = b("sample.allow", logits, bitmask)
        reduction = "sample.draw" if noise else "vocab.argmax"
        b.hand_out(*b.many(reduction, masked, module.inputs["req_pool_indices"], *keyed, dtype="i32", keep=""))
    return module


def bitmasks(source: torch.Generator, *shape: int) -> Tensor:
    """Words i32 of any bits, of few, and of none."""
    words = torch.randint(-(2**31), 2**31, shape, generator=source).to(torch.int32)
    few = torch.ones(shape, dtype=torch.int32) << torch.randint(32, shape, generator=source).to(torch.int32)
    kind = torch.randint(4, (*shape[:-1], 1), generator=source)
    few = torch.where(torch.rand(shape, generator=source) < 0.3, few, 0)
    return torch.where(kind == 0, 0, torch.where(kind == 1, few, words)).to(torch.int32)


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(0, 4),
    vocab=st.integers(1, 300) | st.integers(301, 3000),
    more=st.integers(-1, 1),
    noise=st.booleans(),
)
def test_what_is_allowed(
    launcher: Launcher, dtype: str, seed: int, rows: int, vocab: int, more: int, noise: bool
) -> None:
    """As the reference, of rows of every kind, of masks with a word less than the row needs, or one more."""
    source = generator(seed)
    batch, logits = hostile_batch(source, dtype, rows, vocab)
    shape = logits.shape[:-1]
    words = max(1, -(-vocab // 32) + more)
    scan = Scan(integer(source, 1, 8), int(choice(source, ("64", "512")))).affordable(vocab)
    values = {"req_pool_indices": batch, "logits": logits, "bitmask": bitmasks(source, *shape, words)}
    values |= noise_of(source, *shape) if noise else {}
    check_module(launcher, allowed(dtype, rows, vocab, words, noise=noise), source, values, scan)


@pytest.mark.parametrize(
    ("vocab", "lacking"), [*product([1, 31, 32, 33, 200, 1000], [0]), (33, 1), (200, 1), (1000, 3)]
)
def test_bits_are_those_of_xgrammar(launcher: Launcher, vocab: int, lacking: int) -> None:
    """Bit v % 32 of word v // 32, in Python; where none is set the row is bad, and its token the first.

    Behind the last word no bit is set, whatever is in that word and however large the logits there are.
    """
    source, words = generator(vocab), -(-vocab // 32) - lacking
    logits, mask = torch.randn(6, 4, vocab, generator=source), bitmasks(source, 6, 4, words)
    mask[0, 0], mask[1, 1] = 0, -1
    mask[3], logits[3, :, -1] = -1, 100.0
    mask[2, 2], mask[2, 2, -1] = 0, -(2**31)  # the last bit of all: an entry only in rows of whole words
    values = {"req_pool_indices": torch.arange(1, 7), "logits": logits, "bitmask": mask}
    module = allowed("f32", 4, vocab, words, noise=False)
    results = check_module(launcher, module, source, values, Scan(3, 64))
    for b in range(6):
        for row in range(4):
            bits = [int(word) & 0xFFFFFFFF for word in mask[b, row]]
            able = [v for v in range(min(vocab, 32 * words)) if bits[v // 32] >> v % 32 & 1]
            best = max(able, key=lambda v: float(logits[b, row, v]), default=0)
            assert (int(results["index"][b, row]), bool(results["bad"][b, row])) == (best, not able)


@triton.jit
def write_noise(bits_ptr, out_ptr, NOISE: tl.constexpr, BLOCK: tl.constexpr):
    """The noise f32 of words u32 given as i64."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + lane, NOISE(tl.load(bits_ptr + lane).to(tl.uint32)))


def test_noise_is_gumbel_s(launcher: Launcher) -> None:
    """Within a few roundings of -log(-log(1 - u)), next to 0 and 1 too, where the unlikely is decided."""
    near = torch.arange(4096)
    words = torch.cat([near, 2**32 - 1 - near, (1 << torch.arange(32)).repeat_interleave(64), 2**27 - 2048 + near])
    words = torch.cat([words, torch.randint(0, 2**32, (8192,), generator=generator(1))])
    library = importlib.import_module(f"{PACKAGE}.lib.sample")
    device = launcher.device
    out = torch.empty(len(words), dtype=torch.float32, device=device)
    write_noise[(len(words) // 1024,)](words.to(device), out, library.gumbel, 1024)
    uniform = ((words.to(torch.float32) + 0.5) * 2.0**-32).clamp(max=1 - 2**-24).double()
    wanted = -(-torch.log1p(-uniform)).log()
    assert (out.cpu().double() - wanted).abs().max() < 2.5e-6
    assert wanted.max() > 22.8
    assert wanted.min() < -2.8
