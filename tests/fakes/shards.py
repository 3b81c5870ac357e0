"""A rank of the fake engine: it hands over its columns of the logits, and NaN in columns of no token.

Where logits are gathered it hands over what it is given, and says what that was: of a head all ranks have the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specc.compiler.config import Config
from specc.compiler.ir.ops.head import HALVES, LOGITS
from specc.runtime.capabilities.draft_tables import head_tables
from specc.runtime.plan.draft_head import HEAD, WEIGHT
from specc.runtime.plan.nodes import External
from specc.runtime.plan.plan import TOKEN_MAP, Plan
from specc.runtime.semantics.reference import OPS

PARTS = ("vocab.argmax_part", "vocab.topk_part")


class Sharded:
    """Callbacks of one rank, over those of an engine that scores all columns."""

    capturable = False

    def __init__(self, engine: Any, config: Config, rank: int) -> None:
        self.engine, self.config, self.rank = engine, config, rank
        self.last: tuple[str, int | None] = ("", None)
        self.whole, self.rows, self.states = torch.empty(0), torch.empty(0), torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.engine, name)
        if name.startswith("_") or not callable(member):
            return member
        model = self.config.models["target" if name.endswith("target") else "draft"]

        def forward(**operands: Any) -> Any:
            answer = member(**operands)
            if getattr(answer, "logits", None) is None:
                return answer
            self.last, self.rows = (name, operands.get("step")), operands["rows"]
            self.states = getattr(answer, "states", torch.empty(0))
            if self.config.file.logits == "sharded":
                columns = model.padded_vocab_size or model.vocab_size
                pad = answer.logits.new_full((*answer.logits.shape[:-1], columns - model.vocab_size), torch.nan)
                width = columns // self.config.file.tensor_parallel
                self.whole = whole = torch.cat((answer.logits, pad), dim=-1)
                answer.logits = whole[..., self.rank * width : (self.rank + 1) * width].contiguous()
            return answer

        # The runtime asks a callback what it takes.
        forward.__wrapped__ = member  # pyright: ignore[reportFunctionMemberAccess]
        return forward


class Siblings:
    """All ranks of a program in one process: what the others would send is computed by the reference ops.

    Whatever is gathered is of the forward that ran last. This rank's record must be what the reference makes of it.
    `tables` are those that every rank brings, of a head all entries.
    """

    def __init__(self, callbacks: Sharded, plan: Plan, tables: Mapping[str, Tensor]) -> None:
        self.callbacks, self.rank, self.size = callbacks, callbacks.rank, plan.ranks
        calls = [call for node in plan.nodes() if not isinstance(node, External) for call in node.ops]
        made = {call.operands[0]: call for call in calls if call.op in (HALVES, LOGITS, "comm.pad", *PARTS)}
        self.heads: list[tuple[Tensor, ...]] = []
        if WEIGHT in plan.inputs:
            every = (head_tables(plan, tables[HEAD], tables.get(TOKEN_MAP), rank) for rank in range(self.size))
            self.heads = [tuple(tables_of_rank.values()) for tables_of_rank in every]
        self.computed: set[tuple[str, int | None]] = set()
        self.parts: dict[tuple[str, int | None], tuple[Any, int]] = {}
        for node in plan.externals():
            call = made.get(node.results.get("logits", node.results.get("states", "")))
            if call is not None and call.op == HALVES:
                call = made[call.results[0]]
            if call is not None and call.op == LOGITS:
                self.computed.add((node.callback, node.step))
                call = made[call.results[0]]
            vocab = call.attrs["vocab"] if call is not None and call.op == "comm.pad" else 1 << 31
            while call is not None and call.op == "comm.pad":
                call = made[call.results[0]]
            if call is not None:
                self.parts[node.callback, node.step] = call, vocab

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """The records of all ranks."""
        call, vocab = self.parts[self.callbacks.last]
        for rank, shard in enumerate(self._shards()):
            number = torch.tensor([rank])
            (own,) = OPS["comm.pad"]((shard, number), {"vocab": vocab}, {})
            out[rank] = OPS[call.op]((own, self.callbacks.rows, number), call.attrs, {})[0][0]
        assert torch.equal(out[self.rank], record[0])

    def _logits(self, weight: Tensor, *scale: Tensor) -> Tensor:
        """What a rank's head gives of the rows of the last forward."""
        states = self.callbacks.states
        if not scale:
            return OPS[LOGITS]((states, weight), {}, {})[0]
        element = "i8" if weight.dtype == torch.int8 else "f8"
        high, low, worth = OPS[HALVES]((states,), {"dtype": element}, {})
        return OPS[LOGITS]((high, weight, low, worth, *scale), {}, {})[0]

    def _shards(self) -> Sequence[Tensor]:
        """The logits of every rank."""
        if self.callbacks.last in self.computed:
            return [self._logits(*head) for head in self.heads]
        return self.callbacks.whole.chunk(self.size, dim=-1)
