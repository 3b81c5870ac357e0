"""What a prefilled request takes along from one engine to another (docs/runtime.md, "Disaggregation")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from specc.lab.engine.errors import ContractError
from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.state_pool import StatePool
from specc.runtime import Score
from specc.runtime.plan.plan import LENGTHS

Kv = dict[str, list[Tensor]]
"""By owner of a pool: rows T[n, kv_heads, head_dim] of each of its buffers, in the order of `KVPool.buffers`.

And by owner and `STATE` what its recurrent layers keep, in the order of `StatePool.tensors`.
"""
STATE = "_state"


@dataclass(frozen=True)
class Handover:
    """A request after its prefill, without its prompt.

    first: the first token. health: the health word of the prefill. kv: the rows of its positions in every pool, and
    what recurrent layers keep of it. carry: what the program carries for it, a `Carry` of one row. grammar: the source
    of its grammar, see `Sampling`. scores: what a program that hands out log-probabilities says of the first token.
    """

    first: int
    health: int
    kv: Kv
    carry: Any
    grammar: Mapping[str, str] = field(default_factory=dict)
    scores: Sequence[Score] = ()

    def check(self, vocab_size: int, length: int, *, scored: bool) -> None:
        """ContractError unless it can be that of a prompt of `length` tokens; waits for the device that it is on.

        scored: whether the program hands out log-probabilities.
        """
        if not 0 <= self.first < vocab_size:
            raise ContractError(f"the first token is {self.first}, the target has {vocab_size} tokens")
        if not 0 <= self.health < 1 << 31:
            raise ContractError(f"the health word is {self.health}, which no program has")
        if len(self.scores) != scored:
            raise ContractError(f"there are {len(self.scores)} log-probabilities of the first token, not {int(scored)}")
        carried = self.carry.fields.get(LENGTHS)
        if len(self.carry) != 1 or (carried is not None and int(carried) != length):
            raise ContractError(f"what is carried is not that of one prompt of {length} tokens: {carried}")


@dataclass(frozen=True)
class Places:
    """The KV rows that a program keeps of a text: of every pool's positions 0..n-1, `ahead` more of the draft's.

    ahead: the plan's `first_draft_position`, 1 where the draft has the first token behind the prompt, too. states: what
    recurrent layers keep of a text goes along, by the owner and `STATE`.
    """

    pools: Mapping[str, KVPool]
    req_to_token: Tensor
    ahead: int
    states: Mapping[str, StatePool] = field(default_factory=dict[str, StatePool])

    def count(self, owner: str, length: int) -> int:
        """How many rows a prompt of some length has in a pool."""
        return length + self.ahead * (owner == "draft")

    def take(self, row: int, length: int) -> Kv:
        """Copies of what the pools have of the request in a pool row, after a prompt of some length."""
        return {
            owner: [buffer[self._slots(row, 0, self.count(owner, length))] for buffer in pool.buffers]
            for owner, pool in self.pools.items()
        } | {owner + STATE: [tensor.clone() for tensor in pool.of_row(row)] for owner, pool in self.states.items()}

    def put(self, row: int, start: int, kv: Kv) -> None:
        """Write rows into the slots of a pool row from position `start` on; what is before it is there already."""
        for owner, pool in self.pools.items():
            for buffer, rows in zip(pool.buffers, kv[owner], strict=True):
                buffer[self._slots(row, start, len(rows))] = rows[start:].to(buffer.device)
        for owner, pool in self.states.items():
            for tensor, state in zip(pool.first_of_row(row), kv[owner + STATE], strict=True):
                tensor.copy_(state)

    def check(self, length: int, kv: Mapping[str, Any]) -> None:
        """ContractError unless these are the rows of a prompt of some length, in the dtypes and shapes of the pools."""
        expected = {owner: self._types(owner, length) for owner in self.pools}
        expected |= {
            owner + STATE: [_type_of(tensor) for tensor in pool.first_of_row(0)] for owner, pool in self.states.items()
        }
        types = {owner: [_type_of(rows) for rows in tensors] for owner, tensors in kv.items()}
        if types != expected:
            raise ContractError(f"the keys and values of a prompt of {length} tokens are {expected}, not {types}")

    def _types(self, owner: str, length: int) -> list[str]:
        rows = self.count(owner, length)
        return [_type_of(buffer[:1].expand(rows, -1, -1)) for buffer in self.pools[owner].buffers]

    def _slots(self, row: int, start: int, end: int) -> Tensor:
        return self.req_to_token[row, start:end].long()


def _type_of(rows: object) -> str:
    """The dtype and shape of a tensor, for people and for comparing."""
    return f"{rows.dtype}{list(rows.shape)}" if isinstance(rows, torch.Tensor) else type(rows).__name__
