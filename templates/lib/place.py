"""The `place` ops on what one program has in registers of a request; blocks are as rows.py says."""

import triton
import triton.language as tl


@triton.jit
def place_best(candidates):
    """The first T of candidates T[K]."""
    return tl.sum(tl.where(tl.arange(0, candidates.shape[0]) == 0, candidates, 0), axis=0)


@triton.jit
def place_start(candidates, S: tl.constexpr):
    """Candidates T[S, K] of all places: the first one's T[K], 0 behind it."""
    return tl.where(tl.arange(0, triton.next_power_of_2(S))[:, None] == 0, candidates[None, :], 0)


@triton.jit
def place_append(places, candidates, place):
    """Candidates T[S, K] of all places, with those of one place replaced by T[K]."""
    return tl.where(tl.arange(0, places.shape[0])[:, None] == place, candidates[None, :], places)
