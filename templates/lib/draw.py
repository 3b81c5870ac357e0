"""A token drawn from a row of logits that several programs share: scan a chunk, arrive, combine.

The rule is that of the op `sample.draw`: a tile is drawn by what its TILE entries have together, then an entry of it.
The noise of a tile is for all of its entries, so a logit takes one exponential and few instructions besides. The value
of a tile depends on its own entries alone, and every tile is in one chunk, so it is the same however a row is cut.

A row is cut into chunks as argmax.py says. A program draws an entry of its best tile, which it has just read, and what
arrives is as there: the largest value and a mark, the entry or, after NaN, its complement; so it is combined as there.
NaN is never drawn, and of infinities the first; a row of only NaN and -inf gives entry 0. Where the scale is 0 there is
no noise and no cut: the largest logit.

A tile's value is kept in two f32, itself and what its rounding leaves. Large logits at low temperatures would swallow
the noise otherwise, and of equal ones the first would be drawn too often. One f32 after the other is compared, an order
of all values, so the largest is the same however a row is cut.

With MASS a chunk says besides what its probabilities are made of, as mass.py says; without, that is nothing's.
"""

import triton
import triton.language as tl

from .argmax import arrive, bad_row, first_of_largest, gather
from .mass import add_mass, add_mass_exactly, block_of_mass, mass_of_parts
from .sample import gumbel, log_of, uniform_bits
from .topk import LOG2_E, LOWEST
from .vocab import _slots

TILE = tl.constexpr(16)
"""Entries that are drawn as a whole."""
FIRST = tl.constexpr(-(2**31))
"""What is added to a tile's number for the counter of its noise: entries are below."""


@triton.jit
def row_noise(keys_ptr, scales_ptr, cuts_ptr, row):
    """Key i64, scale f32 and cut f32 of rows; the cut is -inf where the scale is 0, and anything without cuts."""
    key = tl.load(keys_ptr + row)
    scale = tl.load(scales_ptr + row)
    cut = scale
    if cuts_ptr is not None:
        cut = tl.where(scale > 0.0, tl.load(cuts_ptr + row), float("-inf"))
    return key, scale, cut


@triton.jit
def _together(a, b, scale, GREEDY: tl.constexpr):
    # The largest m of tiles, of which a and b f32[T, TILE // 2] have halves, and the sum of exp((x - m) s), NaN with
    # NaN and +inf. Starting above -inf makes every -inf add exp(-inf) = 0 without a comparison. GREEDY is what a scale
    # of 0 counts as, times LOG2_E: of a draw it only has to be some number.
    top = tl.maximum(tl.maximum(tl.max(a, axis=1), tl.max(b, axis=1)), LOWEST)
    steep = tl.where(scale > 0.0, scale * LOG2_E, GREEDY)
    total = tl.sum(tl.exp2((a - top[:, None]) * steep), axis=1) + tl.sum(tl.exp2((b - top[:, None]) * steep), axis=1)
    return top, total


@triton.jit
def _together_exactly(x, scale, GREEDY: tl.constexpr):
    # The same of whole tiles f32[T, TILE] without NaN, among which are infinities: equal ones share.
    top = tl.max(x, axis=1)
    steep = tl.where(scale > 0.0, scale * LOG2_E, GREEDY)
    e = tl.where(x == top[:, None], 1.0, tl.exp2((x - top[:, None]) * steep))
    return top, tl.sum(e, axis=1)


@triton.jit
def _value(top, total, tile, key, scale):
    # Tiles' values with their noise, and what rounding leaves of them; a total of 0 is a tile of -inf.
    noise = log_of(total) + gumbel(uniform_bits(tile + FIRST, key))
    scaled = top * scale
    value = scaled + noise
    back = value - scaled
    rest = (scaled - (value - back)) + (noise - back) + tl.fma(top, scale, -scaled)
    rest = tl.where(tl.abs(value) < float("inf"), rest, 0.0)
    # Once more, as what is left of the product may be more than half of the value's last place.
    nearest = value + rest
    rest = tl.where(tl.abs(nearest) < float("inf"), rest - (nearest - value), 0.0)
    value = tl.where(total > 0.0, tl.where(scale > 0.0, nearest, top), float("-inf"))
    return value, tl.where(total > 0.0, tl.where(scale > 0.0, rest, 0.0), 0.0)


@triton.jit
def _larger(value, rest, best, best_rest):
    # Whether values are larger than the best so far.
    return (value > best) | ((value == best) & (rest > best_rest))


@triton.jit
def _first_of_largest(value, rest, index, axis: tl.constexpr):
    # As `first_of_largest`, of values with their rests: both, and the lowest index.
    top = tl.max(value, axis=axis, keep_dims=True)
    rest, index = first_of_largest(tl.where(value == top, rest, float("-inf")), index, axis)
    return tl.max(value, axis=axis), rest, index


@triton.jit
def _logits(
    row_ptr, row, at, cut, CUT: tl.constexpr, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, WHOLE: tl.constexpr
):
    # Logits f32[T, x] of entries i32[T, x], -inf below the cut; those of a WHOLE block are all there.
    if WHOLE:
        x = PROLOGUE(tl.load(row_ptr + at).to(tl.float32), at, row, operands)
    else:
        x = tl.load(row_ptr + at, mask=at < V, other=float("-inf")).to(tl.float32)
        x = tl.where(at < V, PROLOGUE(x, tl.minimum(at, V - 1), row, operands), float("-inf"))
    if CUT:
        x = tl.where(x < cut, float("-inf"), x)
    return x


@triton.jit
def _block(
    row_ptr,
    row,
    tile,
    key,
    scale,
    cut,
    CUT: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    WHOLE: tl.constexpr,
    GREEDY: tl.constexpr,
):
    # The values of tiles i32[T] and their rests, their largest and their sums. A half of a tile is what a load of 16
    # bytes brings of 16-bit logits: so a thread has all of its tile, sums it alone, and no other thread makes the same
    # noise.
    first = tile[:, None] * TILE + tl.arange(0, TILE // 2)[None, :]
    a = _logits(row_ptr, row, first, cut, CUT, PROLOGUE, operands, V, WHOLE)
    b = _logits(row_ptr, row, first + TILE // 2, cut, CUT, PROLOGUE, operands, V, WHOLE)
    top, total = _together(a, b, scale, GREEDY)
    value, rest = _value(top, total, tile, key, scale)
    return value, rest, top, total


@triton.jit
def scan_chunk_and_draw(
    row_ptr,
    row,
    chunk,
    chunks,
    key,
    scale,
    cut,
    CUT: tl.constexpr,
    MASS: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GREEDY: tl.constexpr,
):
    """(value f32, rest f32, mark i32) of the best tile in chunk `chunk` of `chunks` of the row T[V] at `row_ptr`, and
    peak and mass f32.

    Logits are read a second time only in a chunk that holds NaN or +inf.
    """
    TILES: tl.constexpr = BLOCK // TILE
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = V // BLOCK
    lane = tl.arange(0, TILES)
    per = (BLOCKS + chunks - 1) // chunks
    first = chunk * per
    stop = first + per
    best = tl.full([TILES], float("-inf"), tl.float32)
    best_rest = tl.zeros([TILES], tl.float32)
    best_block = tl.zeros([TILES], tl.int32)
    wrong = tl.zeros([TILES], tl.float32)
    peak = tl.full([TILES], LOWEST, tl.float32)
    mass = tl.zeros([TILES], tl.float32)
    for block in range(first, tl.minimum(stop, WHOLE)):
        tile = block * TILES + lane
        value, rest, top, total = _block(row_ptr, row, tile, key, scale, cut, CUT, PROLOGUE, operands, V, True, GREEDY)
        wrong += total * 0.0
        if MASS:
            peak, mass = add_mass(peak, mass, top, total, scale)
        better = _larger(value, rest, best, best_rest)
        best = tl.where(better, value, best)
        best_rest = tl.where(better, rest, best_rest)
        best_block = tl.where(better, block, best_block)
    # Two conditions, not one: the first is decided while compiling, and takes this code away when V is whole.
    if WHOLE < BLOCKS:
        if (first <= WHOLE) & (stop > WHOLE):
            tile = WHOLE * TILES + lane
            value, rest, top, total = _block(
                row_ptr, row, tile, key, scale, cut, CUT, PROLOGUE, operands, V, False, GREEDY
            )
            wrong += total * 0.0
            if MASS:
                peak, mass = add_mass(peak, mass, top, total, scale)
            better = _larger(value, rest, best, best_rest)
            best = tl.where(better, value, best)
            best_rest = tl.where(better, rest, best_rest)
            best_block = tl.where(better, WHOLE, best_block)
    value, rest, mark = _first_of_largest(best, best_rest, best_block * TILES + lane, 0)
    peak, mass = mass_of_parts(peak, mass, scale, 0)
    if tl.max((wrong != wrong).to(tl.int32), axis=0) != 0:
        value, rest, mark, peak, mass = _scan_exactly(
            row_ptr, row, first, stop, key, scale, cut, CUT, MASS, PROLOGUE, operands, V, BLOCK, GREEDY
        )
    return value, rest, mark, peak, mass


@triton.jit
def _scan_exactly(
    row_ptr,
    row,
    first,
    stop,
    key,
    scale,
    cut,
    CUT: tl.constexpr,
    MASS: tl.constexpr,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    GREEDY: tl.constexpr,
):
    # As `scan_chunk_and_draw`, right for all values.
    TILES: tl.constexpr = BLOCK // TILE
    lane = tl.arange(0, TILES)
    best = tl.full([TILES], float("-inf"), tl.float32)
    best_rest = tl.zeros([TILES], tl.float32)
    best_block = tl.zeros([TILES], tl.int32)
    nan = tl.zeros([TILES], tl.int32)
    peak = tl.full([TILES], LOWEST, tl.float32)
    mass = tl.zeros([TILES], tl.float32)
    for block in range(first, tl.minimum(stop, (V + BLOCK - 1) // BLOCK)):
        tile = block * TILES + lane
        at = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
        x = _logits(row_ptr, row, at, cut, CUT, PROLOGUE, operands, V, False)
        nan = nan | tl.max((x != x).to(tl.int32), axis=1)
        top, total = _together_exactly(tl.where(x == x, x, float("-inf")), scale, GREEDY)
        value, rest = _value(top, total, tile, key, scale)
        if MASS:
            peak, mass = add_mass_exactly(peak, mass, top, total, scale)
        better = _larger(value, rest, best, best_rest)
        best = tl.where(better, value, best)
        best_rest = tl.where(better, rest, best_rest)
        best_block = tl.where(better, block, best_block)
    value, rest, index = _first_of_largest(best, best_rest, best_block * TILES + lane, 0)
    peak, mass = mass_of_parts(peak, mass, scale, 0)
    return value, rest, tl.where(tl.max(nan, axis=0) != 0, ~index, index), peak, mass


@triton.jit
def _entry(row_ptr, row, tile, key, scale, cut, CUT: tl.constexpr, PROLOGUE: tl.constexpr, operands, V: tl.constexpr):
    # The entry i32 drawn of a tile i32.
    at = tile * TILE + tl.arange(0, TILE)
    x = tl.load(row_ptr + tl.minimum(at, V - 1)).to(tl.float32)
    x = PROLOGUE(x, tl.minimum(at, V - 1), row, operands)
    x = tl.where((at < V) & (x == x), x, float("-inf"))
    if CUT:
        x = tl.where(x < cut, float("-inf"), x)
    # Less the largest, so that none of the noise is lost, unless that is infinite.
    top = tl.max(x, axis=0)
    noisy = (x - top) * scale + gumbel(uniform_bits(at, key))
    noisy = tl.where(scale > 0.0, tl.where(tl.abs(top * scale) < float("inf"), noisy, x * scale), x)
    _, index = first_of_largest(noisy, at, 0)
    return index


@triton.jit
def scan_draw(
    logits_ptr,
    keys_ptr,
    scales_ptr,
    cuts_ptr,
    value_ptr,
    rest_ptr,
    mark_ptr,
    peak_ptr,
    mass_ptr,
    arrivals_ptr,
    b,
    program,
    programs,
    PROLOGUE: tl.constexpr,
    operands,
    ROWS: tl.constexpr,
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNSCALED: tl.constexpr = False,
):
    """Scan one chunk and draw of its best tile; true in the last program. Keys, scales, cuts or None are [B, ROWS].

    With what it has of the row's mass, unless `peak_ptr` and `mass_ptr` are None. UNSCALED is as of `block_of_mass`.
    """
    splits = programs // ROWS
    row = b * ROWS + program // splits
    split = program % splits
    row_ptr = logits_ptr + row.to(tl.int64) * STRIDE
    key, scale, cut = row_noise(keys_ptr, scales_ptr, cuts_ptr, row)
    CUT: tl.constexpr = cuts_ptr is not None
    MASS: tl.constexpr = peak_ptr is not None
    GREEDY: tl.constexpr = LOG2_E if UNSCALED else 1.0
    value, rest, mark, peak, mass = scan_chunk_and_draw(
        row_ptr, row, split, splits, key, scale, cut, CUT, MASS, PROLOGUE, operands, V, BLOCK, GREEDY
    )
    tile = tl.where(mark < 0, ~mark, mark)
    entry = _entry(row_ptr, row, tile, key, scale, cut, CUT, PROLOGUE, operands, V)
    mark = tl.where(mark < 0, ~entry, entry)
    slot = row * SPLITS + split
    tl.store(rest_ptr + slot, rest)
    if MASS:
        tl.store(peak_ptr + slot, peak)
        tl.store(mass_ptr + slot, mass)
    return arrive(value_ptr, mark_ptr, slot, value, mark, arrivals_ptr + b, programs)


@triton.jit
def combine_draw(value_ptr, rest_ptr, mark_ptr, b, programs, live, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    """Index i32[ROWS] and bad i1[ROWS] of a request's rows; of a single row a scalar each."""
    slots, present = _slots(b, programs, live, ROWS, SPLITS)
    values, marks = gather(value_ptr, mark_ptr, slots, present)
    rests = tl.load(rest_ptr + slots, mask=present, other=0.0, cache_modifier=".cg")
    axis: tl.constexpr = len(values.shape) - 1
    top, _, index = _first_of_largest(values, rests, tl.where(marks < 0, ~marks, marks), axis)
    bad = bad_row(top, marks, axis)
    if ROWS > 1:
        bad = bad & (tl.arange(0, triton.next_power_of_2(ROWS)) < ROWS)
    return index, bad & live


@triton.jit
def combine_mass(
    logits_ptr,
    scales_ptr,
    cuts_ptr,
    entries_ptr,
    index,
    peak_ptr,
    mass_ptr,
    b,
    programs,
    live,
    PROLOGUE: tl.constexpr,
    operands,
    AHEAD: tl.constexpr,
    ROWS: tl.constexpr,
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    SPLITS: tl.constexpr,
    UNSCALED: tl.constexpr = False,
):
    """The masses f32[ROWS, 4] of a request's rows with the probability of an entry of each; of a single row f32[4].

    The entry is the index i32[ROWS] that is drawn, or number AHEAD further in `entries_ptr` i64[B, ROWS]. UNSCALED is
    as of `block_of_mass`.
    """
    slots, present = _slots(b, programs, live, ROWS, SPLITS)
    peaks, masses = gather(peak_ptr, mass_ptr, slots, present)
    of_request = tl.arange(0, triton.next_power_of_2(ROWS))
    row = b * ROWS + tl.minimum(of_request, ROWS - 1)
    _, scale, cut = row_noise(scales_ptr, scales_ptr, cuts_ptr, row)
    if ROWS == 1:
        peaks = peaks[None, :]
        masses = masses[None, :]
    top, mass = mass_of_parts(peaks, masses, scale[:, None], 1)
    index = index + of_request * 0
    entry = index
    there = of_request < ROWS
    if entries_ptr is not None:
        there = of_request + AHEAD < ROWS
        wanted = tl.load(entries_ptr + b * ROWS + of_request + AHEAD, mask=there & live, other=0)
        there = there & (wanted >= 0) & (wanted < V)
        entry = tl.where(there, wanted, 0).to(tl.int32)
    x = tl.load(logits_ptr + row.to(tl.int64) * STRIDE + entry, mask=there & live, other=float("-inf")).to(tl.float32)
    x = PROLOGUE(x, entry, row, operands)
    x = tl.where(x == x, x, float("-inf"))
    if cuts_ptr is not None:
        x = tl.where(x < cut, float("-inf"), x)
    block = tl.where(live, block_of_mass(top, mass, x, scale, index, entry, there, UNSCALED), 0.0)
    if ROWS == 1:
        block = tl.reshape(block, [4])
    return block
