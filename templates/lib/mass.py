"""What a row's probabilities are made of, in the same scan as the draw: its largest logit and a sum over all of it.

The softmax of logits times a scale, of those not below the cut: p(x) = exp((x - largest) * scale) / sum. NaN counts as
-inf. Where the largest is infinite, by itself or times the scale, one entry has all of it, the one that is drawn, and
the sum is 1. A draw makes the sum of every tile of 16 entries anyway, relative to the tile's largest, so two
exponentials a tile are all there is to add.
"""

import triton
import triton.language as tl

from .topk import LOG2_E, LOWEST


@triton.jit
def steepness(scale):
    """What differences of logits are multiplied with for a power of two; a greedy request's scale counts as 1."""
    return tl.where(scale > 0.0, scale, 1.0) * LOG2_E


@triton.jit
def share(x, top, scale):
    """exp((x - top) * scale) f32; 0 of NaN, of what is above the top, and where x and top are the same infinity."""
    below = x - top
    return tl.exp2(tl.where(below <= 0.0, below, LOWEST) * steepness(scale))


@triton.jit
def add_mass(peak, mass, top, total, scale):
    """(peak, mass) of lanes with (top, total) of a tile each added; NaN once a total is NaN."""
    steep = steepness(scale)
    top = tl.maximum(top, LOWEST)
    new = tl.maximum(peak, top)
    return new, mass * tl.exp2((peak - new) * steep) + total * tl.exp2((top - new) * steep)


@triton.jit
def add_mass_exactly(peak, mass, top, total, scale):
    """The same with tiles among which are infinities; the mass is 1 where the peak is infinite."""
    new, mass = add_mass(peak, mass, top, tl.where(top > float("-inf"), total, 0.0), scale)
    return new, tl.where(new == float("inf"), 1.0, mass)


@triton.jit
def mass_of_parts(peak, mass, scale, axis: tl.constexpr):
    """Reduce peaks and masses along `axis` to those of all; parts that are not there are -inf and 0."""
    top = tl.max(peak, axis=axis, keep_dims=True)
    # The difference of equal infinities would be NaN.
    part = tl.where(peak == top, mass, mass * tl.exp2((peak - top) * steepness(scale)))
    return tl.max(peak, axis=axis), tl.sum(part, axis=axis)


@triton.jit
def block_of_mass(top, mass, x, scale, index, entry, there, UNSCALED: tl.constexpr):
    """The block f32[R, 4] of `sample.mass`: the largest logit, the sum, and the probability of an entry.

    Of rows [R]: peaks and masses as reduced, a logit x with its number, whether there is such an entry, and the entry
    that is drawn. A greedy request's probabilities are 1, and its sum is, too, unless it is to be that of the logits.
    """
    greedy = (scale > 0.0) == 0
    top = tl.where(mass > 0.0, top, float("-inf"))
    # As the draw sees it: what is no f32 times the scale is infinite.
    top = tl.where(tl.abs(top * scale) == float("inf"), top * scale, top)
    one = tl.abs(top) == float("inf")
    if not UNSCALED:
        one = one | greedy
    total = tl.where(one, 1.0, tl.maximum(mass, 1.0))
    chance = share(x, top, scale) / total
    chance = tl.where(top == float("inf"), tl.where(entry == index, 1.0, 0.0), chance)
    chance = tl.where(there & (x > float("-inf")), chance, 0.0)
    chance = tl.where(greedy, 1.0, chance)
    column = tl.arange(0, 4)[None, :]
    return tl.where(column == 0, top[:, None], tl.where(column == 1, total[:, None], chance[:, None]))
