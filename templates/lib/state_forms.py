"""The `state` ops that copy nothing: which snapshot is the state of a request."""

import triton
import triton.language as tl


@triton.jit
def state_begin(b):
    """The snapshot i32 that a prefill leaves a state in."""
    return b * 0


@triton.jit
def state_point(point, accept_index, accept_lens, b, A: tl.constexpr, NODES: tl.constexpr):
    """The snapshot i32 that has the state of the last node of the accepted path i32[A]; ``point`` without one."""
    i = tl.arange(0, triton.next_power_of_2(A))
    column = tl.sum(tl.where(i == accept_lens - 1, accept_index - b * NODES, 0), axis=0)
    # What the index holds beyond the nodes of a request is none of them.
    found = (accept_lens > 0) & (column >= 0) & (column < NODES)
    return tl.where(found, tl.where(column + 1 == point, 0, column + 1), point)
