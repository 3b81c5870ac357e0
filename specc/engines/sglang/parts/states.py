"""The recurrent state of a target, which SGLang keeps in a pool of its own: committed by SGLang, in the program's step.

A verification leaves the state after each of its nodes in rows of its own, and spoils the last inputs of convolutions.
Then SGLang's commit writes both as they were after the last accepted node, whichever form its pool has. Where the radix
cache keeps states (`extra_buffer`), the same commit stores that of a node at which a text crosses an interval. The host
says before each step where to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


class RecurrentStates:
    """What a step does to the states of its requests; nothing in a server whose target keeps none.

    Args:
        worker: a worker of SGLang's.
        rows: of the largest bucket.

    """

    def __init__(self, worker: Any, rows: int) -> None:
        """Store nothing at any interval yet."""
        from sglang.srt.runtime_context import get_exec

        self._worker, self._nodes = worker.target_worker, dict[tuple[int, int], Tensor]()
        tracks = is_recurrent(worker) and get_exec().mamba.enable_mamba_extra_buffer
        device = worker.req_to_token_pool.req_to_token.device
        self._tracked = torch.full((rows,), -1, dtype=torch.int64, device=device) if tracks else None

    def say(self, batch: Any) -> None:
        """Before a step: say where the states go that a batch's texts have where they cross an interval."""
        if self._tracked is None:
            return
        from sglang.srt.speculative.spec_utils import prepare_mamba_track_for_verify

        prepare_mamba_track_for_verify(batch)
        self._tracked.fill_(-1)
        self._tracked[: len(batch.mamba_track_indices)].copy_(batch.mamba_track_indices)

    def commit(self, accept_lens: Tensor, rows: Tensor, seq_lens: Tensor, width: int) -> None:
        """Let the state of requests in pool rows i64[b] be that after the last of `accept_lens` i32[b] of a chain.

        `seq_lens` i64[b] are the lengths before that, `width` the nodes of each. A row of padding is said to have
        accepted one, which comes into SGLang's state of padding.
        """
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.runtime_context import get_schedule
        from sglang.srt.speculative.spec_utils import commit_mamba_states_after_verify

        batch = SimpleNamespace(
            forward_mode=ForwardMode.TARGET_VERIFY,
            req_pool_indices=rows,
            seq_lens=seq_lens,
            mamba_track_indices=None if self._tracked is None else self._tracked[: len(rows)],
            tree_cache=SimpleNamespace(page_size=get_schedule().page_size),
        )
        nodes = self._chains(len(rows), width, rows.device)
        commit_mamba_states_after_verify(self._worker, batch, accept_lens.clamp(min=1), nodes, width)

    def _chains(self, rows: int, width: int, device: torch.device) -> Tensor:
        """The nodes of chains i64[rows, width], by SGLang's numbers; in memory that a graph can hold."""
        if (rows, width) not in self._nodes:
            self._nodes[rows, width] = torch.arange(rows * width, device=device).view(rows, width)
        return self._nodes[rows, width]


def is_recurrent(worker: Any) -> bool:
    """Whether the target of a worker keeps a recurrent state."""
    return hasattr(worker.req_to_token_pool, "mamba_pool")


@contextlib.contextmanager
def own_states(worker: Any, rows: Tensor) -> Iterator[None]:
    """While a server is idle, give pool rows i64[b] states of their own. RuntimeError if there are too few."""
    if not is_recurrent(worker):
        yield
        return
    pool = worker.req_to_token_pool
    mapping = pool.req_index_to_mamba_index_mapping
    if pool.mamba_pool.size < len(rows):
        raise RuntimeError(f"{len(rows)} texts need as many states, there are {pool.mamba_pool.size}")
    kept = mapping[rows]
    mapping[rows] = torch.arange(1, len(rows) + 1, dtype=mapping.dtype, device=mapping.device)
    try:
        yield
    finally:
        mapping[rows] = kept
