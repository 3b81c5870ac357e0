"""A token drawn from what is left of p where a draft ends a chain, of rows that several programs share.

The rule is that of the op `sample.residual`: from max(w p - q, 0) without the draft, by tiles of TILE entries and then
within one, as draw.py draws from the softmax of logits. A tile's logarithm is that of a sum of probabilities here, so
there is no largest to look for. The entries of a tile of which nothing is left stand in with their p, FALLEN lower than
any tile of which something is: they are drawn from where nothing is left of the whole row, and otherwise never. Where
that is nothing too, the token is the one that was drawn from p. A program draws an entry of its best tile itself, which
it has just read, so the last one to arrive has only to compare.

q of a draft that scores a part of the tokens is 0 of the others: a table says which entry of q a token is.

Programs share the rows that have a weight, which are known when they start: of rejection one, whatever its number.
"""

import triton
import triton.language as tl

from .argmax import arrived, first_of_largest, gather
from .draw import FIRST, TILE
from .mass import share
from .sample import gumbel, log_of, uniform_bits

LEAST = tl.constexpr(1.1754943508222875e-38)
"""The least normal f32; what is less is nothing."""
FALLEN = tl.constexpr(256.0)
"""More than lies between the logarithms, with noise, of any two sums of probabilities."""
ANYTHING = tl.constexpr(-128.0)
"""Between the two kinds of tiles."""


@triton.jit
def _with_weight(weights_ptr, b, c, N: tl.constexpr):
    # 1 of nodes c of a request that have a weight, else 0; the last node is none of them.
    return (tl.load(weights_ptr + b * N + c, mask=c < N - 1, other=0.0) > 0.0).to(tl.int32)


@triton.jit
def row_of(weights_ptr, b, number, N: tl.constexpr):
    """The node i32 of a request that is number `number` of those with a weight, but the last node; -1 without one."""
    c = tl.arange(0, triton.next_power_of_2(N))
    some = _with_weight(weights_ptr, b, c, N)
    return tl.max(tl.where((some > 0) & (tl.cumsum(some, axis=0) == number + 1), c, -1), axis=0)


@triton.jit
def sum_of(mass_ptr):
    """The sum of a mass, at least 1."""
    total = tl.load(mass_ptr + 1)
    return tl.where(total > 1.0, total, 1.0)


@triton.jit
def target_of(logits_ptr, scales_ptr, cuts_ptr, drawn_ptr, mass_ptr, weights_ptr, row, STRIDE: tl.constexpr):
    """Of a row of p: where it is, its scale, cut, largest logit, weight over sum, and the entry that has all, or -1."""
    scale = tl.load(scales_ptr + row)
    cut = scale
    if cuts_ptr is not None:
        cut = tl.load(cuts_ptr + row)
    top = tl.load(mass_ptr + row * 3)
    factor = tl.load(weights_ptr + row) / sum_of(mass_ptr + row * 3)
    sure = tl.where(top == float("inf"), tl.load(drawn_ptr + row), -1)
    # 64-bit: B * N * STRIDE may pass 2**31.
    return logits_ptr + row.to(tl.int64) * STRIDE, scale, cut, top, factor, sure


@triton.jit
def draft_of(
    tokens_ptr,
    masses_ptrs,
    q_ptrs,
    q_rows_ptrs,
    q_counts,
    b,
    c,
    N: tl.constexpr,
    V: tl.constexpr,
    OF_DRAFT: tl.constexpr,
):
    """The draft after node c, its row of OF_DRAFT entries of q, largest logit, 1 over sum, and what has all, or -1."""
    token = tl.load(tokens_ptr + b * N + c + 1)
    token = tl.where((token >= 0) & (token < V), token, -1).to(tl.int32)
    row_ptr = q_ptrs[0]
    mass_ptr = masses_ptrs[0]
    first = 0
    for i in tl.static_range(len(q_ptrs)):
        request = b.to(tl.int64)
        if q_rows_ptrs[i] is not None:
            request = tl.load(q_rows_ptrs[i] + b)
        here = (c >= first) & (c < first + q_counts[i])
        row_ptr = tl.where(here, q_ptrs[i] + (request * q_counts[i] + c - first) * OF_DRAFT, row_ptr)
        mass_ptr = tl.where(here, masses_ptrs[i] + (b * q_counts[i] + c - first) * 3, mass_ptr)
        first += q_counts[i]
    top = tl.load(mass_ptr)
    return token, row_ptr, top, 1.0 / sum_of(mass_ptr), tl.where(top == float("inf"), token, -1)


@triton.jit
def logits_of_draft(row_ptr, entries_ptr, at):
    """Logits f32 of tokens `at`, of a row of q: -inf of a token that is none of its entries.

    `entries_ptr` says which entry each token is; None where they are the same.
    """
    if entries_ptr is None:
        x = tl.load(row_ptr + at)
    else:
        entry = tl.load(entries_ptr + at)
        x = tl.load(row_ptr + entry, mask=entry >= 0, other=float("-inf"))
    return x.to(tl.float32)


@triton.jit
def probabilities(x, at, top, factor, sure, scale):
    """Probabilities f32 of logits f32 of entries `at`, times a factor; `sure` has all where it is an entry."""
    e = share(x, top, scale) * factor
    if sure >= 0:
        e = tl.where(at == sure, factor, 0.0)
    return tl.where(top > float("-inf"), e, 0.0)


@triton.jit
def parts_of_entries(
    target,
    draft,
    entries_ptr,
    row,
    at,
    CUT: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """Of entries `at`: what is left f32 with the draft's, without it, and w p without it."""
    row_ptr, scale, cut, top, factor, sure = target
    token, q_ptr, q_top, q_factor, q_sure = draft
    if WHOLE:
        x = PROLOGUE(tl.load(row_ptr + at).to(tl.float32), at, row, operands)
        y = logits_of_draft(q_ptr, entries_ptr, at)
    else:
        safe = tl.minimum(at, V - 1)
        x = PROLOGUE(tl.load(row_ptr + safe).to(tl.float32), safe, row, operands)
        x = tl.where(at < V, x, float("-inf"))
        y = logits_of_draft(q_ptr, entries_ptr, safe)
    if CUT:
        x = tl.where(x < cut, float("-inf"), x)
    p = probabilities(x, at, top, factor, sure, scale)
    left = p - probabilities(y, at, q_top, q_factor, q_sure, scale)
    left = tl.where(left > 0.0, left, 0.0)
    return left, tl.where(at == token, 0.0, left), tl.where(at == token, 0.0, p)


@triton.jit
def _value(left, other, tile, key):
    # Tiles' values with their noise, of what is left of them and, where that is nothing, of their p.
    some = left >= LEAST
    together = tl.where(some, left, other)
    value = log_of(together) - tl.where(some, 0.0, FALLEN) + gumbel(uniform_bits(tile + FIRST, key))
    return tl.where(together >= LEAST, value, float("-inf"))


@triton.jit
def _tiles(
    target,
    draft,
    entries_ptr,
    row,
    tile,
    key,
    CUT: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    WHOLE: tl.constexpr,
):
    # The values of tiles i32[T], and all that is left of them. Halves are as in draw.py: a thread has all of its tile.
    first = tile[:, None] * TILE + tl.arange(0, TILE // 2)[None, :]
    a, b, c = parts_of_entries(target, draft, entries_ptr, row, first, CUT, PROLOGUE, operands, V, WHOLE)
    d, e, f = parts_of_entries(target, draft, entries_ptr, row, first + TILE // 2, CUT, PROLOGUE, operands, V, WHOLE)
    left = tl.sum(b, axis=1) + tl.sum(e, axis=1)
    other = tl.sum(c, axis=1) + tl.sum(f, axis=1)
    return _value(left, other, tile, key), tl.sum(a, axis=1) + tl.sum(d, axis=1)


@triton.jit
def scan_chunk_of_residual(
    target,
    draft,
    entries_ptr,
    row,
    chunk,
    chunks,
    key,
    CUT: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(value f32, tile i32) of the best tile in a chunk of a row of p and of q, and the sum f32 of what is left."""
    TILES: tl.constexpr = BLOCK // TILE
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = V // BLOCK
    lane = tl.arange(0, TILES)
    per = (BLOCKS + chunks - 1) // chunks
    first = chunk * per
    stop = first + per
    best = tl.full([TILES], float("-inf"), tl.float32)
    best_block = tl.zeros([TILES], tl.int32)
    total = tl.zeros([TILES], tl.float32)
    for block in range(first, tl.minimum(stop, WHOLE)):
        tile = block * TILES + lane
        value, left = _tiles(target, draft, entries_ptr, row, tile, key, CUT, PROLOGUE, operands, V, True)
        total += left
        better = value > best
        best = tl.where(better, value, best)
        best_block = tl.where(better, block, best_block)
    # Two conditions, not one: the first is decided while compiling, and takes this code away when V is whole.
    if WHOLE < BLOCKS:
        if (first <= WHOLE) & (stop > WHOLE):
            tile = WHOLE * TILES + lane
            value, left = _tiles(target, draft, entries_ptr, row, tile, key, CUT, PROLOGUE, operands, V, False)
            total += left
            better = value > best
            best = tl.where(better, value, best)
            best_block = tl.where(better, WHOLE, best_block)
    value, tile = first_of_largest(best, best_block * TILES + lane, 0)
    return value, tile, tl.sum(total, axis=0)


@triton.jit
def _entry(
    target,
    draft,
    entries_ptr,
    row,
    tile,
    key,
    value,
    CUT: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
):
    # The entry i32 drawn of a tile i32 with a value: of what is left, or of p.
    at = tile * TILE + tl.arange(0, TILE)
    _, left, other = parts_of_entries(target, draft, entries_ptr, row, at, CUT, PROLOGUE, operands, V, False)
    chance = tl.where(value < ANYTHING, other, left)
    noisy = tl.where(chance >= LEAST, log_of(chance) + gumbel(uniform_bits(at, key)), float("-inf"))
    _, index = first_of_largest(noisy, at, 0)
    return index


@triton.jit
def scan_residual(
    tokens_ptr,
    logits_ptr,
    keys_ptr,
    scales_ptr,
    cuts_ptr,
    drawn_ptr,
    mass_ptr,
    weights_ptr,
    entries_ptr,
    masses_ptrs,
    q_ptrs,
    q_rows_ptrs,
    q_counts,
    value_ptr,
    index_ptr,
    sum_ptr,
    arrivals_ptr,
    b,
    program,
    programs,
    PROLOGUE: tl.constexpr,
    operands,
    N: tl.constexpr,
    MOST: tl.constexpr,
    V: tl.constexpr,
    OF_DRAFT: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scan one chunk of one of the MOST first nodes of N that have a weight, if there is one; true in the last program.

    Grid (B, MOST * splits); partials are [B, MOST, SPLITS], and none of a node that there is not.
    """
    splits = programs // MOST
    number = program // splits
    c = row_of(weights_ptr, b, number, N)
    if c >= 0:
        row = b * N + c
        target = target_of(logits_ptr, scales_ptr, cuts_ptr, drawn_ptr, mass_ptr, weights_ptr, row, STRIDE)
        draft = draft_of(tokens_ptr, masses_ptrs, q_ptrs, q_rows_ptrs, q_counts, b, c, N, V, OF_DRAFT)
        key = tl.load(keys_ptr + row)
        CUT: tl.constexpr = cuts_ptr is not None
        value, tile, total = scan_chunk_of_residual(
            target, draft, entries_ptr, row, program % splits, splits, key, CUT, PROLOGUE, operands, V, BLOCK
        )
        slot = (b * MOST + number) * SPLITS + program % splits
        tl.store(value_ptr + slot, value)
        tl.store(
            index_ptr + slot, _entry(target, draft, entries_ptr, row, tile, key, value, CUT, PROLOGUE, operands, V)
        )
        tl.store(sum_ptr + slot, total)
    return arrived(arrivals_ptr + b, programs)


@triton.jit
def combine_residual(
    drawn_ptr,
    weights_ptr,
    value_ptr,
    index_ptr,
    sum_ptr,
    b,
    programs,
    live,
    N: tl.constexpr,
    MOST: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Index i32[N] and sums f32[N] of a request's nodes, 0 of those that were not scanned."""
    column = tl.arange(0, triton.next_power_of_2(N))
    some = tl.where(live, _with_weight(weights_ptr, b, column, N), 0)
    before = tl.cumsum(some, axis=0) - 1
    number = tl.arange(0, triton.next_power_of_2(MOST))
    lane = tl.arange(0, SPLITS)
    scanned = (number < MOST) & (number < tl.sum(some, axis=0))
    present = scanned[:, None] & (lane < programs // MOST)[None, :]
    slots = (b * MOST + number[:, None]) * SPLITS + lane[None, :]
    values, entries = gather(value_ptr, index_ptr, slots, present)
    totals = tl.sum(tl.load(sum_ptr + slots, mask=present, other=0.0, cache_modifier=".cg"), axis=1)
    top, found = first_of_largest(values, entries, 1)
    here = (some > 0) & (before < MOST)
    at = tl.where(here, before, 0)
    drawn = tl.load(drawn_ptr + b * N + column, mask=here, other=0)
    index = tl.where(tl.gather(top, at, 0) > float("-inf"), tl.gather(found, at, 0), drawn)
    return tl.where(here, index, 0), tl.where(here, tl.gather(totals, at, 0), 0.0)
