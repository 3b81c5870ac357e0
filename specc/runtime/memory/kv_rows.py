"""The engine's KV buffers as a step holds them: those of a program that touches none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from .arena import Arena

Parts = Mapping[str, Sequence[tuple[Tensor, ...]]]
"""The tensors of recurrent states by owner: of each part what is kept, and behind it what is pending."""


class KvRows:
    """No buffers.

    Attributes:
        buffers: T[slots, ...] per layer and kind (keys, values; or one of latent rows), layer by layer, by owner.
            Holding them keeps their memory alive.

    """

    buffers: Mapping[str, Sequence[Tensor]] = {}

    @property
    def named(self) -> dict[str, Tensor]:
        """Every buffer by its name for people."""
        pools = {f"kv_pools[{owner!r}]": buffers for owner, buffers in self.buffers.items()}
        return {f"{pool}[{i}]": buffer for pool, buffers in pools.items() for i, buffer in enumerate(buffers)}

    def write_pointers(self, arena: Arena) -> None:
        """Fill the pointer tables, i64[layers * buffers] per owner."""

    def check_place(self) -> None:
        """BindError when a buffer has moved since: the tables hold addresses."""
