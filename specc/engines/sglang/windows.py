"""The second KV pool of SGLang's models whose windows have one of their own (`SWAKVPool`).

SGLang's table of slots names those of the first pool, which has the layers that see the whole text. Its scheduler takes
a slot of each pool for every token that a step may write, and writes into a map where the second is. It gives slots of
the second back when their tokens leave the window, and both when a request ends, those of drafts that were not accepted
among them. So a program writes and reads slots of the first pool as ever, and attention looks those of the second up.
Nothing here waits for the device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .served_attention import CACHES


def first_pool(pool: Any) -> Any:
    """The pool of layers that see the whole text: the only one of most models."""
    return getattr(pool, "full_kv_pool", pool)


def map_of(pool: Any) -> Tensor | None:
    """Where each slot's second is, i64[slots + 1], 0 where it has none; None for a model with one pool."""
    return getattr(pool, "full_to_swa_index_mapping", None)


def oddity(pool: Any, target: Any, *, module: bool) -> str | None:
    """Say what differs from the two pools of gpt-oss; None if nothing does. `target` is the target's.

    A `module` that drafts has a single layer, which may have a window: its slots are those of the target's layers.
    """
    kinds = {type(kind).__name__ for kind in (pool.full_kv_pool, pool.swa_kv_pool)}
    if kinds != {CACHES["mha"]}:
        return f"{type(pool).__name__} of {' and '.join(sorted(kinds))}"
    whole = pool.full_layer_nums or module
    if not whole or pool.swa_req_ring_size is not None or map_of(pool) is not map_of(target):
        return f"{type(pool).__name__} with slots of another kind"
    return None


def slots_of(pool: Any) -> int:
    """How many slots there are for a text that has a second slot for each of its tokens."""
    return int(min(pool.size, getattr(pool, "size_swa", pool.size)))


@contextlib.contextmanager
def same_slots(pool: Any, slots: Tensor) -> Iterator[None]:
    """While a server is idle, give slots i64[...] the same of the second pool, and take them back."""
    places = map_of(pool)
    if places is None:
        yield
        return
    kept, slots = places.clone(), slots.long()
    places[slots] = slots
    try:
        yield
    finally:
        places.copy_(kept)
