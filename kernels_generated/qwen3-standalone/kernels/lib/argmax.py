"""Argmax over a vocabulary that several programs share: scan a chunk, arrive, combine.

The rule: the largest value; the lowest index on ties; NaN counts as -inf; -0.0 == 0.0; a row of only NaN and
-inf gives index 0. A row is bad if it holds NaN or its largest value is not finite.

Whether a chunk held NaN travels to the last arriver in the sign of the chunk's index, a `mark`: the index, or
its complement after NaN. So one program knows all about a row, and it can set the health bit or overwrite the
health word; were the bit or-ed in where the NaN is seen, nobody could clear the word in the same launch.

A row of V logits is cut into blocks of BLOCK; chunk c of `chunks` owns the blocks [c * per, (c + 1) * per).
Bounds are multiples of BLOCK, so the compiler can prove that every load starts on a 16 byte boundary. The
last chunks may be empty; they contribute (-inf, 0), which never beats a real value.
"""

import triton
import triton.language as tl


@triton.jit
def first_of_largest(value, index, axis: tl.constexpr):
    """Reduce along `axis` to (the largest value f32, its lowest index i32). No value may be NaN.

    Two plain reductions instead of one over pairs: `value == top` makes -0.0 and 0.0 tie whichever of the two
    the hardware's max returns, and the integer reduction is one instruction per warp on sm_80 and later.
    """
    top = tl.max(value, axis=axis, keep_dims=True)
    lowest = tl.min(tl.where(value == top, index, 2147483647), axis=axis)
    return tl.max(value, axis=axis), lowest


@triton.jit
def best_of_chunks(value, mark, axis: tl.constexpr):
    """Reduce the results of chunks along `axis` to (index i32, bad i1) of their row, by the rule above."""
    top, index = first_of_largest(value, tl.where(mark < 0, ~mark, mark), axis)
    return index, bad_row(top, mark, axis)


@triton.jit
def bad_row(top, mark, axis: tl.constexpr):
    """Whether rows are bad i1, of their largest value and the marks of their chunks along `axis`."""
    return (tl.abs(top) == float("inf")) | (tl.min(mark, axis=axis) < 0)


@triton.jit
def _larger_of_pairs(x, HALF: tl.constexpr):
    # Which elements make a pair does not matter, so the compiler may take those that a thread has in registers.
    first, second = tl.split(tl.reshape(x, [HALF, 2], can_reorder=True))
    return tl.maximum(first, second, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def nan_of_eight(x, BLOCK: tl.constexpr):
    """f32[BLOCK] -> f32[BLOCK // 8], NaN where one of eight elements is; BLOCK is at least 8.

    One operation per element, and an eighth of the registers that a flag per element would take.
    """
    return _larger_of_pairs(_larger_of_pairs(_larger_of_pairs(x, BLOCK // 2), BLOCK // 4), BLOCK // 8)


@triton.jit
def identity(logits, column, row, operands):
    """The prologue of a reduction that reads logits as they are."""
    return logits


@triton.jit
def scan_chunk(row_ptr, row, chunk, chunks, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, BLOCK: tl.constexpr):
    """(value f32, mark i32) of the best logit in chunk `chunk` of `chunks` of the row T[V] at `row_ptr`.

    What is reduced is PROLOGUE(logits f32, columns i32, row, operands), a function of a block of them.

    Every lane keeps its own running best, so an iteration is loads and four operations per element and no
    reduction across lanes. `x > best` is false for NaN and for a tie: NaN is never taken and the earliest index stays.
    What is kept is the block number, not the index: it is the same for all lanes, so no index vector is
    computed per block.
    """
    BLOCKS: tl.constexpr = (V + BLOCK - 1) // BLOCK
    WHOLE: tl.constexpr = V // BLOCK
    lane = tl.arange(0, BLOCK)
    per = (BLOCKS + chunks - 1) // chunks
    first = chunk * per
    stop = first + per
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_block = tl.zeros([BLOCK], tl.int32)
    nan = tl.zeros([BLOCK // 8], tl.float32)
    # Whole blocks carry no mask; the one partial block, if there is one, is peeled off below.
    for block in range(first, tl.minimum(stop, WHOLE)):
        offset = block * BLOCK + lane
        x = PROLOGUE(tl.load(row_ptr + offset).to(tl.float32), offset, row, operands)
        nan = tl.maximum(nan, nan_of_eight(x, BLOCK), propagate_nan=tl.PropagateNan.ALL)
        better = x > best
        best = tl.where(better, x, best)
        best_block = tl.where(better, block, best_block)
    # Two conditions, not one: the first is decided while compiling, and takes this code away when V is whole.
    if WHOLE < BLOCKS:
        if (first <= WHOLE) & (stop > WHOLE):
            offset = WHOLE * BLOCK + lane
            x = tl.load(row_ptr + offset, mask=offset < V, other=float("-inf")).to(tl.float32)
            x = tl.where(offset < V, PROLOGUE(x, tl.minimum(offset, V - 1), row, operands), float("-inf"))
            nan = tl.maximum(nan, nan_of_eight(x, BLOCK), propagate_nan=tl.PropagateNan.ALL)
            better = x > best
            best = tl.where(better, x, best)
            best_block = tl.where(better, WHOLE, best_block)
    value, index = first_of_largest(best, best_block * BLOCK + lane, 0)
    held_nan = tl.max((nan != nan).to(tl.int32), axis=0) != 0
    return value, tl.where(held_nan, ~index, index)


@triton.jit
def arrive(value_ptr, mark_ptr, slot, value, mark, arrivals_ptr, expected):
    """Store a partial result and count the arrival; true in the last of `expected` programs, which resets it."""
    tl.store(value_ptr + slot, value)
    tl.store(mark_ptr + slot, mark)
    return arrived(arrivals_ptr, expected)


@triton.jit
def arrived(arrivals_ptr, expected):
    """Count the arrival of a program that has stored its partials; true in the last one, which resets the counter.

    Memory order. Triton gives the counter, and partials that are scalars, to one and the same thread; the atomic's
    release covers that thread's stores. The barrier is for partials that other threads of its warp have stored,
    and for a compiler that would use two warps: an NVIDIA release covers what a barrier has ordered before it.
    The atomic is an acquire too: the program that sees `expected - 1` earlier arrivals has all of their partials
    before it. The value goes to the other threads of the program through a barrier, so the order holds for their
    loads. They must use cache_modifier ".cg" (`gather`), which does not look into the L1 cache.

    Resetting needs no atomic: every program of this launch has arrived, and the next launch waits for this
    one.
    """
    tl.debug_barrier()
    last = tl.atomic_add(arrivals_ptr, 1, sem="acq_rel", scope="gpu") == expected - 1
    if last:
        tl.store(arrivals_ptr, 0)
    return last


@triton.jit
def gather(value_ptr, mark_ptr, slot, present):
    """The partials at `slot` (a block); (-inf, 0) where `present` is false. Only after `arrive` gave true."""
    value = tl.load(value_ptr + slot, mask=present, other=float("-inf"), cache_modifier=".cg")
    mark = tl.load(mark_ptr + slot, mask=present, other=0, cache_modifier=".cg")
    return value, mark
