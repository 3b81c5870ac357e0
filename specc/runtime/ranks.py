"""The ranks of a program with sharded logits, as the runtime wants them."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Collective(Protocol):
    """All ranks of a program, seen from one of them. Anything with these three does."""

    @property
    def rank(self) -> int:
        """The number of this one: it has the columns from rank * V / size on."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """Write the records i64[1, ...] of all ranks, by rank, into out i64[size, ...]; both are contiguous.

        On CUDA it is queued on the current stream, and can be captured. Raises CollectiveError when a rank is gone, or
        does not come in time, where that is known when the call returns.
        """
        ...
