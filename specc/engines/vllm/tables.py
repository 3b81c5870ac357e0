"""vLLM's tables of requests, each with a row in front that vLLM does not see.

A row of zeros pads the batches of a program, and vLLM's row 0 is a request. So its tables become views of longer ones:
its row r is the program's row r + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._plugin import MisfitError

AHEAD = 1
"""How many rows more the program sees than vLLM."""
ALIGNED = 4
"""vLLM's kernels expect rows of a block table at multiples of 16 bytes: so many block numbers."""


def carried(states: Any, rows: int, *, text: bool = False) -> dict[str, Tensor]:
    """The fields that vLLM keeps of requests, by the program's names: T[rows, ...], with the row in front.

    `states` is vLLM's RequestState, before it holds a request; `text`: its table of all tokens is one of them.
    """
    whole = {
        "drafts": _longer(states.draft_tokens, rows),
        "bonus": _longer(states.last_sampled_tokens, rows),
        "seq_lens": _longer(states.num_computed_tokens.gpu, rows),
    }
    seen = slice(AHEAD, AHEAD + states.max_num_reqs)
    states.draft_tokens = whole["drafts"][seen]
    states.last_sampled_tokens = whole["bonus"][seen]
    states.num_computed_tokens.gpu = whole["seq_lens"][seen]
    if text:
        # Where n-grams are looked up it is no memory of the host's that the GPU sees, but the GPU's own.
        whole["text"] = _longer(states.all_token_ids.gpu, rows)
        states.all_token_ids.gpu = whole["text"][seen]
    return whole | {"bonus": whole["bonus"].view(-1)}


def last_places(speculator: Any, rows: int) -> tuple[Tensor, Tensor]:
    """What a MultiModuleMTPSpeculator keeps of the last S - 1 places of requests, with the row in front.

    That are tokens i64[rows, S - 1] and hidden states T[rows, S - 1, W], before there is any request.
    """
    tokens, states = (
        _longer(speculator.cached_draft_input_ids, rows),
        _longer(speculator.cached_target_hidden_states, rows),
    )
    seen = slice(AHEAD, AHEAD + len(speculator.cached_draft_input_ids))
    speculator.cached_draft_input_ids, speculator.cached_target_hidden_states = tokens[seen], states[seen]
    return tokens, states


class Drafts(Tensor):
    """vLLM's table of drafts i64[requests, S], into which the program may have put those of a step already.

    Attributes:
        stored: the rows i64[b] of a batch, as vLLM has them, and their drafts i64[b, S], which are in the table.

    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]
    stored: tuple[Tensor, Tensor] | None = None

    def __setitem__(self, rows: Any, drafts: Any) -> None:
        """Write what is not there yet."""
        if self.stored is None or rows is not self.stored[0] or drafts is not self.stored[1]:
            self.stored = None
            super().__setitem__(rows, drafts)

    def __getitem__(self, at: Any) -> Tensor:
        """Of rows that were stored, their drafts in place; of all others what is read."""
        rows, *columns = at if isinstance(at, tuple) else (at,)
        if self.stored is None or rows is not self.stored[0]:
            read: Tensor = super().__getitem__(at)
            return read
        return self.stored[1][(slice(None), *columns)] if columns else self.stored[1]


class Blocks:
    """Blocks of a group of KV caches, which the draft's layers are in.

    Attributes:
        table: i32[P, W], which a request has, with the row in front.

    """

    def __init__(self, tables: Any, group: int, plan: Any) -> None:
        """Of vLLM's BlockTables, before they are used. MisfitError if the program has pages of another size."""
        self._tables, self._group, self._page = tables, group, plan.kv.page_size
        if (size := tables.block_sizes[group]) != self._page:
            raise MisfitError(f"page_size is {self._page} in the program, blocks of the draft have {size} slots")
        self.table = block_table(tables, group, plan.size("P"))

    def room(self, rows: Any) -> Any:
        """How many tokens the blocks hold of requests in vLLM's rows, both arrays of numpy's."""
        return self._tables.num_blocks.np[self._group, rows] * self._page

    def slots(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Slots i64[b, n] of positions i64[b, n] that requests have blocks for, in rows i64[b] of the table."""
        return self.table[rows[:, None], positions // self._page].long() * self._page + positions % self._page


class NoBlocks:
    """What a program without a draft has in their place: it writes no keys and values, and any request has room.

    Attributes:
        table: i32[P, W] of zeros.

    """

    def __init__(self, plan: Any, longest: int, device: torch.device) -> None:
        """For texts of up to `longest` tokens, and the window of a step behind them."""
        width = -(-(longest + plan.kv.window) // plan.kv.page_size)
        self.table = torch.zeros(plan.size("P"), width, dtype=torch.int32, device=device)
        self._room = width * plan.kv.page_size

    def room(self, _: Any) -> int:
        """See `Blocks`."""
        return self._room


def block_table(tables: Any, group: int, rows: int) -> Tensor:
    """The block table i32[rows, W] of a group of vLLM's BlockTables, with the row in front; before it is used."""
    table, (requests, width) = tables.block_tables[group], tables.block_tables[group].gpu.shape
    width = -(-width // ALIGNED) * ALIGNED
    whole = table.gpu.new_zeros(rows, width)
    table.gpu = whole[AHEAD : AHEAD + requests]
    tables.input_block_tables[group] = torch.zeros_like(table.gpu)
    tables.init_block_table_layout_tensors()
    return whole


def _longer(table: Tensor, rows: int) -> Tensor:
    return table.new_zeros(rows, *table.shape[1:])
