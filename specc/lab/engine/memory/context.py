"""The paged memory of one forward, as one more cache of transformers, and what its tokens may attend to.

Model code from transformers runs as it is. Each of its attention layers hands the keys and values of the new tokens to
the forward's cache, which is a `PagedContext` here: it writes them to the pool and gives back those of all positions
that the request table points at. What a layer keeps, be it latent rows or keys and values of different widths, is the
layer's own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.probing import AttentionCache
from specc.lab.engine.memory.state_pool import RowStates

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether, by row, head, position of a token and position of a key, the token may attend to the key."""

_RUNNING: ContextVar[PagedContext] = ContextVar("running")


class PagedContext(AttentionCache):
    """Where the tokens of one forward go, and what they may attend to. Models run inside `with`.

    Holds no tensor that depends on data read back from the device, so a forward can be captured: the
    number of keys, `width`, is given by the caller.

    Attributes:
        reached: the layers that have handed over keys and values, in order.

    """

    def __init__(
        self,
        pool: KVPool,
        req_to_token: Tensor,
        rows: Tensor,
        positions: Tensor,
        slots: Tensor,
        width: int,
        states: RowStates | None = None,
    ) -> None:
        """Describe a forward of [b, n] tokens.

        req_to_token i32[P, C]; rows i64[b] pool row of every batch row; positions and slots i64[b, n] of
        every token, no slots where nothing is written, and negative ones for slot 0; width: how many positions are
        looked at, above every position that counts; states: what recurrent layers go on from, if there are some.
        """
        super().__init__(states)
        self.pool = pool
        self.positions = positions
        self.width = width
        self.write_slots = slots.reshape(-1).clamp(min=0)
        self.read_slots = req_to_token[:, :width].index_select(0, rows).long()
        self.key_positions = torch.arange(width, device=positions.device).expand(len(rows), -1)
        self.reached: list[int] = []
        self._masks: dict[int | None, Tensor] = {}

    def __enter__(self) -> PagedContext:
        """Be the context that attention and masks of the models inside ask."""
        self._token = _RUNNING.set(self)
        return self

    def __exit__(self, *exception: object) -> None:
        """Be it no longer."""
        _RUNNING.reset(self._token)

    def visible(self) -> Tensor:
        """Which keys each token attends to, bool[b, n, width], if no window slides: its own and those before it."""
        return self.key_positions[:, None] <= self.positions[..., None]

    def mask(self, window: int | None = None) -> Tensor:
        """Which keys each token attends to, bool[b, 1, n, width].

        With a sliding `window`, only those at the last `window` positions, its own included.
        """
        if window not in self._masks:
            mask = self.visible()
            if window is not None:
                mask = mask & (self.key_positions[:, None] > self.positions[..., None] - window)
            self._masks[window] = mask[:, None]
        return self._masks[window]

    def mask_by(self, function: MaskFunction) -> Tensor:
        """Which visible keys a model's own mask function lets each token attend to, bool[b, 1, n, width]."""
        if function is causal_mask_function:
            return self.mask()
        row = torch.arange(len(self.positions), device=self.positions.device)[:, None, None, None]
        head = torch.zeros_like(row[:1])
        return self.mask() & function(row, head, self.positions[:, None, :, None], self.key_positions[:, None, None])

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write keys and values T[b, heads, n, d] of this forward to their slots; return those of `width` positions."""
        self.reached.append(layer_idx)
        rows = [part.transpose(1, 2) for part in (key_states, value_states)]
        self.pool.write(layer_idx, self.write_slots, *(part.flatten(0, 1) for part in rows))
        key, value = self.pool.read(layer_idx, self.read_slots, *(part.shape[2:] for part in rows))
        return key.transpose(1, 2), value.transpose(1, 2)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """How many keys a layer gets back, and the first one's position."""
        return self.width, 0


class BlockContext(PagedContext):
    """A block of tokens at positions one after the other: each sees the whole block, and the text before it."""

    def visible(self) -> Tensor:
        """Which keys each token attends to, bool[b, n, width]: those up to the block's last position."""
        seen = self.key_positions[:, None] <= self.positions[:, -1:, None]
        return seen.expand(-1, self.positions.shape[1], -1)


def running() -> PagedContext:
    """The context of the forward that runs; raises RuntimeError outside of any."""
    context = _RUNNING.get(None)
    if context is None:
        raise RuntimeError("paged attention runs inside `with` of its context")
    return context
