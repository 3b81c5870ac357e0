"""The logit that the most probable tokens of a row end at, found without sorting the row; one program has it all.

The cut is the largest value t such that the weights of all logits not below t reach what is wanted: weight 1 for the
k-th largest logit, exp((x - largest) s) for those that have a share together. NaN has no weight, and neither has what
is below an earlier cut.

Tiles of eight logits that have one not below a bound are noted in a small memory, the `room`, and the cut is found
among their elements by halving an interval of orders (best.py) in registers. A bound: every lane of the program has
seen some elements and keeps the largest, so the k-th largest of those is not above the k-th largest of the row, and
little else is above it. Where the elements have not enough weight, or the tiles do not fit, the interval is halved by
reading the row again until they do; the least of what lanes keep, of which not much more is above, begins it.
"""

import triton
import triton.language as tl

from .best import order_value, sort_order
from .topk import LOG2_E, LOWEST

LEAST_ORDER = tl.constexpr(-0x7F800000)
"""The order of the lowest finite f32."""
TILE = tl.constexpr(8)
"""Elements that are noted together: what a load of 16 bytes brings of 16-bit logits."""


@triton.jit
def _load(row_ptr, start, V: tl.constexpr, BLOCK: tl.constexpr):
    # Logits T[BLOCK // TILE, TILE] from `start` on, -inf for what is not there.
    at = start + tl.arange(0, BLOCK // TILE)[:, None] * TILE + tl.arange(0, TILE)[None, :]
    return tl.load(row_ptr + at, mask=at < V, other=float("-inf"))


@triton.jit
def _changed(x, start, row, PROLOGUE: tl.constexpr, operands, V: tl.constexpr, BLOCK: tl.constexpr):
    # Logits T as `_load` gives them, changed, as f32.
    at = start + tl.arange(0, BLOCK // TILE)[:, None] * TILE + tl.arange(0, TILE)[None, :]
    return _changed_at(x, at, row, PROLOGUE, operands, V)


@triton.jit
def _changed_at(x, at, row, PROLOGUE: tl.constexpr, operands, V: tl.constexpr):
    x = x.to(tl.float32)
    if operands is not None:
        x = tl.where(at < V, PROLOGUE(x, tl.minimum(at, V - 1), row, operands), float("-inf"))
    return x


@triton.jit
def _weight(x, top, steep, SHARE: tl.constexpr):
    # Of values up to top, which is above -inf: exp2((x - top) * steep), or 1, and of -inf 0.
    if SHARE:
        return tl.where(x == top, 1.0, tl.exp2((x - top) * steep))
    return tl.where(x > float("-inf"), 1.0, 0.0)


@triton.jit
def _middle(low, high):
    # Between two orders i32, low if they are neighbours.
    return (low & high) + ((low ^ high) >> 1)


@triton.jit
def _lane_of_rank(order, rank):
    # A bound, 16 bits of an order, that `rank` of the elements i32[X] are not below, unless there are fewer.
    low = tl.full([], -(2**15), tl.int32)
    high = tl.full([], 2**15, tl.int32)
    while high - low > 1:
        middle = (low + high) >> 1
        enough = tl.sum((order >= (middle << 16)).to(tl.int32), axis=0) >= rank
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low << 16


@triton.jit
def _ends(
    row_ptr, row, PROLOGUE: tl.constexpr, operands, bound, LEAST: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr
):
    # The largest values f32[BLOCK // TILE] that lanes have seen, and if LEAST the least f32, not below a bound above
    # -inf.
    best = tl.full([BLOCK // TILE], float("-inf"), tl.float32)
    least = tl.full([BLOCK // TILE], float("inf"), tl.float32)
    # Here and below a block is loaded while the one before it is looked at.
    ahead = _load(row_ptr, 0, V, BLOCK)
    for start in range(0, V, BLOCK):
        x = _changed(ahead, start, row, PROLOGUE, operands, V, BLOCK)
        ahead = _load(row_ptr, start + BLOCK, V, BLOCK)
        best = tl.maximum(best, tl.max(tl.where(x >= bound, x, float("-inf")), axis=1))
        if LEAST:
            least = tl.minimum(least, tl.min(tl.where(x >= bound, x, float("inf")), axis=1))
    return best, tl.min(least, axis=0)


@triton.jit
def _note(inside, start, noted, room_ptr, BLOCK: tl.constexpr, ROOM: tl.constexpr):
    # Notes the tiles of a block with an element i1[BLOCK // TILE, TILE] inside, behind so many, if there is room.
    some = tl.max(inside.to(tl.int32), axis=1)
    more = tl.sum(some, axis=0)
    if more > 0:
        at = noted + tl.cumsum(some, axis=0) - 1
        tl.store(room_ptr + at, tl.arange(0, BLOCK // TILE) + start // TILE, mask=(some > 0) & (at < ROOM))
        noted += more
    return noted


@triton.jit
def _weigh(
    row_ptr,
    row,
    PROLOGUE: tl.constexpr,
    operands,
    room_ptr,
    bound,
    lower,
    low,
    top,
    steep,
    SHARE: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
):
    # How many elements are not below each of three values, the lowest first, and their weights; unless SHARE, for which
    # those are the same, not of the one between. Notes the tiles of the last, of which there are the first number.
    noted = tl.full([], 0, tl.int32)
    count = tl.zeros([BLOCK // TILE], tl.int32)
    total = tl.zeros([BLOCK // TILE], tl.float32)
    lower_count = count
    lower_total = total
    low_count = count
    low_total = total
    ahead = _load(row_ptr, 0, V, BLOCK)
    for start in range(0, V, BLOCK):
        x = _changed(ahead, start, row, PROLOGUE, operands, V, BLOCK)
        ahead = _load(row_ptr, start + BLOCK, V, BLOCK)
        count += tl.sum((x >= bound).to(tl.int32), axis=1)
        low_count += tl.sum((x >= low).to(tl.int32), axis=1)
        if SHARE:
            weight = _weight(x, top, steep, SHARE)
            total += tl.sum(tl.where(x >= bound, weight, 0.0), axis=1)
            lower_count += tl.sum((x >= lower).to(tl.int32), axis=1)
            lower_total += tl.sum(tl.where(x >= lower, weight, 0.0), axis=1)
            low_total += tl.sum(tl.where(x >= low, weight, 0.0), axis=1)
        noted = _note(x >= low, start, noted, room_ptr, BLOCK, ROOM)
    count = tl.sum(count, axis=0)
    lower_count = tl.sum(lower_count, axis=0)
    low_count = tl.sum(low_count, axis=0)
    if SHARE:
        return (
            noted,
            count,
            tl.sum(total, axis=0),
            lower_count,
            tl.sum(lower_total, axis=0),
            low_count,
            tl.sum(low_total, axis=0),
        )
    return noted, count, count.to(tl.float32), lower_count, 0.0, low_count, low_count.to(tl.float32)


@triton.jit
def _note_between(
    row_ptr,
    row,
    PROLOGUE: tl.constexpr,
    operands,
    room_ptr,
    low,
    high,
    top,
    steep,
    SHARE: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
):
    # Notes the tiles that have elements of values in [low, high): how many there are. And the weight of the elements
    # from `high` on; of none where it is NaN.
    noted = tl.full([], 0, tl.int32)
    total = tl.zeros([BLOCK // TILE], tl.float32)
    ahead = _load(row_ptr, 0, V, BLOCK)
    for start in range(0, V, BLOCK):
        x = _changed(ahead, start, row, PROLOGUE, operands, V, BLOCK)
        ahead = _load(row_ptr, start + BLOCK, V, BLOCK)
        above = x >= high
        total += tl.sum(tl.where(above, _weight(x, top, steep, SHARE), 0.0), axis=1)
        noted = _note((x >= low) & (above == 0), start, noted, room_ptr, BLOCK, ROOM)
    return noted, tl.sum(total, axis=0)


@triton.jit
def _noted(
    row_ptr,
    row,
    PROLOGUE: tl.constexpr,
    operands,
    room_ptr,
    noted,
    bound,
    low,
    high,
    V: tl.constexpr,
    ROOM: tl.constexpr,
):
    # The elements f32[ROOM, TILE] of the tiles noted with orders in [low, high), -inf elsewhere. The room is read once
    # all threads have stored what they put there.
    tl.debug_barrier()
    lane = tl.arange(0, ROOM)
    tile = tl.load(room_ptr + lane, mask=lane < noted, other=V, cache_modifier=".cg")
    at = tile[:, None] * TILE + tl.arange(0, TILE)[None, :]
    there = (lane < noted)[:, None] & (at < V)
    x = tl.load(row_ptr + at, mask=there, other=float("-inf"))
    x = _changed_at(x, tl.where(there, at, V), row, PROLOGUE, operands, V)
    order = sort_order(x)
    return tl.where((x >= bound) & (order >= low) & (order < high), x, float("-inf"))


@triton.jit
def _halve_in_row(
    row_ptr,
    row,
    PROLOGUE: tl.constexpr,
    operands,
    low,
    high,
    high_value,
    from_low,
    from_high,
    wanted,
    top,
    steep,
    SHARE: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
):
    # Narrows the orders [low, high), of which low has enough weight and high has not, by reading the row, until few
    # elements are inside; so many are not below low, and high. The middle is that of the values first, which share
    # elements better than their orders do.
    rounds = tl.full([], 0, tl.int32)
    low_value = order_value(low)
    while (from_low - from_high > ROOM) & (high - 1 > low):
        of_values = sort_order(low_value * 0.5 + high_value * 0.5)
        use = (rounds < 12) & (of_values > low) & (of_values < high)
        middle = tl.where(use, of_values, _middle(low, high))
        value = order_value(middle)
        weight = tl.zeros([BLOCK // TILE], tl.float32)
        count = tl.zeros([BLOCK // TILE], tl.int32)
        ahead = _load(row_ptr, 0, V, BLOCK)
        for start in range(0, V, BLOCK):
            x = _changed(ahead, start, row, PROLOGUE, operands, V, BLOCK)
            ahead = _load(row_ptr, start + BLOCK, V, BLOCK)
            weight += tl.sum(tl.where(x >= value, _weight(x, top, steep, SHARE), 0.0), axis=1)
            count += tl.sum((x >= value).to(tl.int32), axis=1)
        enough = tl.sum(weight, axis=0) >= wanted
        from_middle = tl.sum(count, axis=0)
        from_low = tl.where(enough, from_middle, from_low)
        from_high = tl.where(enough, from_high, from_middle)
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
        low_value = tl.where(enough, value, low_value)
        high_value = tl.where(enough, high_value, value)
        rounds += 1
    return low, high


@triton.jit
def _halve_in_room(x, weight, low, high, above, wanted):
    # The largest order in [low, high) from which on elements and what is `above` have enough weight; else low.
    order = sort_order(x)
    while high - 1 > low:
        middle = _middle(low, high)
        enough = above + tl.sum(tl.sum(tl.where(order >= middle, weight, 0.0), axis=1), axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _interval(below, lowest, low, lower, high, low_count, lower_count, count):
    # The orders [low, high) among which a cut is, the value of high, and how many elements are not below low and high:
    # from `low` on; or, if that is not weight enough, from `lower` up to it; or, if that is not either, up to `lower`.
    high_value = tl.where(lowest, order_value(lower), tl.where(below, order_value(low), float("inf")))
    high = tl.where(lowest, lower, tl.where(below, low, high))
    high_count = tl.where(lowest, lower_count, tl.where(below, low_count, 0))
    low = tl.where(lowest, LEAST_ORDER, tl.where(below, lower, low))
    low_count = tl.where(lowest, count, tl.where(below, lower_count, low_count))
    return low, high, high_value, low_count, high_count


@triton.jit
def find_cut(
    row_ptr,
    row,
    PROLOGUE: tl.constexpr,
    operands,
    room_ptr,
    within,
    amount,
    steep,
    rank,
    share,
    SHARE: tl.constexpr,
    THEN: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
):
    """The cut f32 of the row T[V] at `row_ptr`, -inf where there is not weight enough; and its largest value f32.

    Wanted is the weight `amount`, or if SHARE that share of the weight of all elements. `rank`: about how many elements
    will be left, a guess that decides how long it takes. `room_ptr` has room for i32[ROOM].

    If THEN, what is left of the first cut, of weights 1, is cut a second time, for the share `share` of the weights by
    `steep`. The third result says whether that was done: not where what is left had no room, or for a share of 1.
    """
    # What is not below has weight: no NaN, and no -inf.
    bound = tl.maximum(within, LOWEST)
    best, least = _ends(row_ptr, row, PROLOGUE, operands, bound, SHARE, V, BLOCK)
    top = tl.max(best, axis=0)
    found = float("-inf")
    done = False
    if top > float("-inf"):
        low = tl.maximum(_lane_of_rank(sort_order(best), rank), LEAST_ORDER)
        lower = tl.minimum(sort_order(tl.min(best, axis=0)), low)
        high = sort_order(top) + 1
        above = 0.0
        noted, count, total, lower_count, lower_total, low_count, low_total = _weigh(
            row_ptr,
            row,
            PROLOGUE,
            operands,
            room_ptr,
            bound,
            tl.maximum(order_value(lower), bound),
            tl.maximum(order_value(low), bound),
            top,
            steep,
            SHARE,
            V,
            BLOCK,
            ROOM,
        )
        wanted = amount * total if SHARE else amount
        if total >= wanted:
            if (low_total < wanted) | (noted > ROOM):
                high_value = float("inf")
                high_count = 0
                if SHARE:
                    below, lowest = low_total < wanted, lower_total < wanted
                    low, high, high_value, low_count, high_count = _interval(
                        below, lowest, low, lower, high, low_count, lower_count, count
                    )
                    low = tl.maximum(low, sort_order(least))
                low, high = _halve_in_row(
                    row_ptr,
                    row,
                    PROLOGUE,
                    operands,
                    low,
                    high,
                    high_value,
                    low_count,
                    high_count,
                    wanted,
                    top,
                    steep,
                    SHARE,
                    V,
                    BLOCK,
                    ROOM,
                )
                noted, above = _note_between(
                    row_ptr,
                    row,
                    PROLOGUE,
                    operands,
                    room_ptr,
                    order_value(low),
                    order_value(high),
                    top,
                    steep,
                    SHARE,
                    V,
                    BLOCK,
                    ROOM,
                )
            x = _noted(row_ptr, row, PROLOGUE, operands, room_ptr, noted, bound, low, high, V, ROOM)
            low = _halve_in_room(x, _weight(x, top, steep, SHARE), low, high, above, wanted)
            if THEN:
                done = (above == 0.0) & (share < 1.0)
                if done:
                    x = tl.where(sort_order(x) < low, float("-inf"), x)
                    weight = _weight(x, top, steep, True)
                    wanted = share * tl.sum(tl.sum(weight, axis=1), axis=0)
                    low = _halve_in_room(x, weight, low, high, above, wanted)
            found = order_value(low)
    return found, top, done


@triton.jit
def cut_row(
    logits_ptr,
    scales_ptr,
    within_ptr,
    count_ptr,
    share_ptr,
    least_ptr,
    room_ptr,
    cuts_ptr,
    b,
    row,
    PROLOGUE: tl.constexpr,
    operands,
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Store the cut f32 of row i32 `row`, of request `b`: the largest of those of the parameters that are there."""
    row_ptr = logits_ptr + row.to(tl.int64) * STRIDE
    room_ptr += row.to(tl.int64) * ROOM
    cut = tl.full([], float("-inf"), tl.float32)
    top = tl.full([], float("nan"), tl.float32)
    if within_ptr is not None:
        cut = tl.load(within_ptr + row)
    scale = tl.load(scales_ptr + row)
    shared = share_ptr is None
    share = 1.0
    steep = 0.0
    if share_ptr is not None:
        share = tl.load(share_ptr + b)
        shared = ((share < 1.0) & (scale > 0.0)) == 0
        share = tl.where(shared, 1.0, tl.maximum(share, 0.0))
        steep = scale * LOG2_E
    if count_ptr is not None:
        count = tl.load(count_ptr + b)
        if (count >= 1) & (count <= V) & (scale > 0.0):
            wanted, then = count.to(tl.float32), share_ptr is not None
            found, top, done = find_cut(
                row_ptr,
                row,
                PROLOGUE,
                operands,
                room_ptr,
                cut,
                wanted,
                steep,
                count,
                share,
                False,
                then,
                V,
                BLOCK,
                ROOM,
            )
            shared = shared | done
            cut = tl.maximum(cut, found, propagate_nan=tl.PropagateNan.ALL)
    if share_ptr is not None:
        if shared == 0:
            found, top, _ = find_cut(
                row_ptr,
                row,
                PROLOGUE,
                operands,
                room_ptr,
                cut,
                share,
                steep,
                ROOM // 2,
                share,
                True,
                False,
                V,
                BLOCK,
                ROOM,
            )
            cut = tl.maximum(cut, found, propagate_nan=tl.PropagateNan.ALL)
    if least_ptr is not None:
        least = tl.load(least_ptr + b)
        if (least > 0.0) & (scale > 0.0):
            if top != top:
                top = tl.max(_ends(row_ptr, row, PROLOGUE, operands, LOWEST, False, V, BLOCK)[0], axis=0)
            found = top + tl.log(tl.minimum(least, 1.0)) / scale
            cut = tl.where(top > float("-inf"), tl.maximum(cut, found, propagate_nan=tl.PropagateNan.ALL), cut)
    tl.store(cuts_ptr + row, cut)
