"""The recurrent state of a target, which SGLang keeps in a pool of its own: committed by SGLang, in the program's step.

A verification leaves the state after each of its nodes in rows of its own, and spoils the last inputs of convolutions.
Then SGLang's commit writes both as they were after the last accepted node, whichever form its pool has. Where the radix
cache keeps states (`extra_buffer`, `extra_buffer_lazy`), the same commit stores that of a node at which a text crosses
an interval. The host says before each step where to.

With `--enable-linear-replayssm-spec` a verification leaves records of its nodes instead, from which states follow. Of
KDA the commit folds those of accepted nodes into the state. Of GDN it moves a ring's cursors of the request's pool row
behind them, and folds all that are there once there is no room for two more steps.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..._shapes import largest

STATE_ROWS, KEPT_ROWS, KEPT_INTERVAL = "state_rows", "kept_rows", "kept_interval"
"""Tables of a program that copies states: where they are, where they go where a text crosses an interval, and that."""


class RecurrentStates:
    """What a step does to the states of its requests; nothing in a server whose target keeps none.

    Args:
        worker: a worker of SGLang's.
        plans: of the program, by shape.

    """

    def __init__(self, worker: Any, plans: Mapping[Any, Any]) -> None:
        """Store nothing at any interval yet."""
        self._worker, self._nodes = worker.target_worker, dict[int, Tensor]()
        self._most, self._ring = max(plan.size("N") for plan in plans.values()), ring_of(worker) > 0
        table = worker.req_to_token_pool.req_to_token
        self._copies = any(copies(plan) for plan in plans.values())
        interval, rows = interval_of(worker), largest(plans)
        self._tracked = torch.full((rows,), -1, dtype=torch.int64, device=table.device) if interval else None
        self._interval = torch.tensor([interval], device=table.device)
        self._kept_rows = torch.full((len(table),), -1, dtype=torch.int32, device=table.device)

    def pools(self) -> dict[str, list[tuple[Tensor, Tensor]]]:
        """The states of all layers, each with those that a verification leaves, for a program that copies them."""
        if not self._copies:
            return {}
        states = _requests(self._worker).mamba_pool.mamba_cache
        parts = [(states.temporal, states.intermediate_ssm)]
        parts += zip(states.conv, states.intermediate_conv_window, strict=True)
        parts = [(kept, left) for kept, left in parts if kept.numel()]  # of short convolutions there is no matrix
        return {"target": [pair for layer in range(len(parts[0][0])) for pair in _of_layer(parts, layer)]}

    def tables(self) -> dict[str, Tensor]:
        """Where the states of requests are, and where they go where texts cross an interval."""
        if not self._copies:
            return {}
        rows = _requests(self._worker).req_index_to_mamba_index_mapping
        return {STATE_ROWS: rows, KEPT_ROWS: self._kept_rows, KEPT_INTERVAL: self._interval}

    def say(self, batch: Any) -> None:
        """Before a step: say where the states go that a batch's texts have where they cross an interval."""
        if self._tracked is None:
            return
        from sglang.srt.speculative.spec_utils import prepare_mamba_track_for_verify

        prepare_mamba_track_for_verify(batch)
        self._tracked.fill_(-1)
        self._tracked[: len(batch.mamba_track_indices)].copy_(batch.mamba_track_indices)
        if self._copies:
            self._kept_rows[batch.req_pool_indices] = batch.mamba_track_indices.to(torch.int32)

    def commit(self, attention: Any, rows: Tensor, accept_lens: Tensor, seq_lens: Tensor) -> None:
        """Let the state of requests in pool rows i64[b] be that after the last of `accept_lens` i32[b] of a chain.

        `attention` has verified it, as SGLang's object around that of all layers. `seq_lens` i64[b] are the lengths
        before that. Chains are said to have as many nodes as the longest, for which a ring then keeps room. A row of
        padding is said to have accepted one, which comes into SGLang's state of padding. A ring is told the truth:
        records are differences to a state, which several rows of padding would add to one state several times.
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
        accepted = accept_lens if self._ring else accept_lens.clamp(min=1)
        nodes = self._chains(len(rows), rows.device)
        commit_mamba_states_after_verify(self._by(attention), batch, accepted, nodes, self._most)

    def _by(self, attention: Any) -> Any:
        """The worker, as one whose steps are verified by that; SGLang's commit asks it for nothing but its runner."""
        runner = copy.copy(self._worker.model_runner)
        runner.attn_backend = attention
        return SimpleNamespace(model_runner=runner)

    def _chains(self, rows: int, device: torch.device) -> Tensor:
        """The nodes of chains i64[rows, N], by SGLang's numbers; in memory that a graph can hold.

        In front of the first is -1: of a row that has accepted none SGLang reads the number before its root, which then
        is of no node of that row.
        """
        if rows not in self._nodes:
            self._nodes[rows] = torch.arange(-1, rows * self._most, device=device)[1:].view(rows, self._most)
        return self._nodes[rows]


class NgramHistory:
    """The last tokens of texts, by which a target looks n-grams up (Engram); nothing where none does.

    SGLang keeps those before the token that is verified next, by pool row, and hashes nodes together with them. A
    prefill writes them, and behind each verification SGLang's worker moves accepted nodes there, by a launch that by
    default is in none of its graphs. So that is called behind a program's step, too.

    Args:
        worker: a worker of SGLang's.
        plans: of the program, by shape.

    """

    def __init__(self, worker: Any, plans: Mapping[Any, Any]) -> None:
        """Have room for the nodes of a step."""
        self._manager = worker.target_worker.model_runner.ngram_embedding_manager if looks_up(worker) else None
        device, rows = worker.req_to_token_pool.req_to_token.device, largest(plans)
        nodes = rows * max(plan.size("N") for plan in plans.values()) if self._manager is not None else 0
        self._nodes = torch.zeros(nodes, dtype=torch.int64, device=device)

    def keep(self, tokens: Tensor) -> None:
        """In a step, before its verification: keep the nodes i64[b, N], whose memory may be another's behind it."""
        if self._manager is not None:
            self._nodes[: tokens.numel()].copy_(tokens.flatten())

    def commit(self, rows: Tensor, accept_lens: Tensor, width: int) -> None:
        """Behind a step of `width` nodes of each request: the first `accept_lens` i32[b] of rows i64[b] are text."""
        if self._manager is not None:
            nodes = self._nodes[: len(rows) * width].view(-1, width)
            self._manager.update_after_verify(verify_ids_2d=nodes, req_pool_indices=rows, commit_lens=accept_lens)


def looks_up(worker: Any) -> bool:
    """Whether the target of a worker looks n-grams up; SGLang 0.5.22 has none that does."""
    manager = getattr(worker.target_worker.model_runner, "ngram_embedding_manager", None)
    return getattr(manager, "engram_hasher", None) is not None


def _requests(worker: Any) -> Any:
    """The requests' rows of a worker, which say where their states are."""
    return worker.model_runner.req_to_token_pool


def _of_layer(parts: Sequence[tuple[Tensor, Tensor]], layer: int) -> list[tuple[Tensor, Tensor]]:
    return [(kept[layer], left[layer]) for kept, left in parts]


def copies(plan: Any) -> bool:
    """Whether a program copies the states of accepted tokens; else SGLang commits them."""
    return STATE_ROWS in plan.inputs


def interval_of(worker: Any) -> int:
    """Tokens between the places at which a server stores the states of texts; 0 where it stores none."""
    if not is_recurrent(worker):
        return 0
    from sglang.srt.runtime_context import get_exec, get_schedule, mamba_track_grid

    return int(mamba_track_grid(get_schedule().page_size)) if get_exec().mamba.enable_mamba_extra_buffer else 0


def ring_of(worker: Any) -> int:
    """How many tokens' records a server's rings have room for, which are folded later (GDN); 0 where there are none."""
    pool: Any = getattr(worker.req_to_token_pool, "mamba_pool", None)
    return 0 if getattr(pool, "replayssm_cache_base", None) is None else pool.linear_replayssm_cache_len


def kept_at_ends(worker: Any) -> bool:
    """Whether a server keeps for prefixes the states that texts end with, rather than those at intervals."""
    if not is_recurrent(worker) or interval_of(worker):
        return False
    from sglang.srt.runtime_context import get_memory

    return not get_memory().disable_radix_cache


def misfits(plans: Mapping[Any, Any], worker: Any) -> Iterator[str]:
    """What keeps a program from leaving records in the rings of a server, or from copying its states by itself."""
    ring, most = ring_of(worker), max(plan.size("N") for plan in plans.values())
    if 0 < ring < most:
        yield f"a step leaves records of {most} nodes, rings have room for {ring} (--linear-replayssm-cache-len)"
    if not any(map(copies, plans.values())):
        return
    if any(kernel.family == "state_fold" for plan in plans.values() for kernel in plan.kernels.values()):
        yield "the server keeps records of its own for states, and folds them by itself: leave state_form: fold out"
    pool, linear = worker.req_to_token_pool, worker.target_worker.model_runner.attn_backend.linear_attn_backend
    snapshots = pool.mamba_pool.mamba_cache.intermediate_ssm
    if getattr(linear, "accept_lens_pool", None) is not None or snapshots is None:
        yield "the server keeps no state of each node: leave state_form out"
    elif any(plan.size("N") != snapshots.shape[2] for plan in plans.values()):
        yield "the server keeps the states of shorter steps elsewhere: leave state_form out"
    if pool.short_conv_pool.conv_state is not None or pool.ngram_pool.context is not None:
        yield "the server keeps states beside those of its recurrent layers: leave state_form out"


def is_recurrent(worker: Any) -> bool:
    """Whether the target of a worker keeps a recurrent state."""
    return hasattr(worker.req_to_token_pool, "mamba_pool")


def clear(worker: Any, rows: Tensor) -> None:
    """Let the states of pool rows i64[b] be those of new requests, as SGLang does where it gives them out.

    A prefill overwrites those of recurrent layers, and goes on from what layers that look n-grams up have beside them.
    """
    if is_recurrent(worker):
        pool = worker.req_to_token_pool
        pool.mamba_pool.clear_slots(pool.req_index_to_mamba_index_mapping[rows])


@contextlib.contextmanager
def own_states(worker: Any, rows: Tensor) -> Iterator[None]:
    """While a server is idle, give pool rows i64[b] states of their own. RuntimeError if there are too few.

    Their rings are empty, as a new request's are. A step may leave anything there: nobody reads it afterwards.
    """
    if not is_recurrent(worker):
        yield
        return
    pool = worker.req_to_token_pool
    mapping = pool.req_index_to_mamba_index_mapping
    if pool.mamba_pool.size < len(rows):
        raise RuntimeError(f"{len(rows)} texts need as many states, there are {pool.mamba_pool.size}")
    cursors = ("replayssm_spec_write_pos", "replayssm_cache_base", "replayssm_is_flush") if ring_of(worker) else ()
    for name in cursors:
        getattr(pool.mamba_pool, name)[rows] = 0
    kept = mapping[rows]
    mapping[rows] = torch.arange(1, len(rows) + 1, dtype=mapping.dtype, device=mapping.device)
    try:
        yield
    finally:
        mapping[rows] = kept
