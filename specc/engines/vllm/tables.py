"""vLLM's tables of requests, each with a row in front that vLLM does not see.

A row of zeros pads the batches of a program, and vLLM's row 0 is a request. So its tables become views of longer ones:
its row r is the program's row r + 1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._plugin import MisfitError

AHEAD = 1
"""How many rows more the program sees than vLLM."""
SHARE = "verify_lens"
"""The input of a program that says how many rows of each request the target has read."""
ALIGNED = 4
"""vLLM's kernels expect rows of a block table at multiples of 16 bytes: so many block numbers."""
NO_SLOT = -1
"""What vLLM has in the place of a slot where there is none."""


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


def draft_groups(speculator: Any) -> Mapping[int, frozenset[str]]:
    """The groups of KV caches that layers of the draft are in -> these layers."""
    groups = enumerate(speculator.kv_cache_config.kv_cache_groups)
    layers = {place: speculator.draft_attn_layer_names & set(group.layer_names) for place, group in groups}
    return {place: frozenset(names) for place, names in layers.items() if names}


class Blocks:
    """Blocks of the groups of KV caches that the draft's layers are in.

    Attributes:
        table: i32[P, W], which a request has in the group whose slots the program names, with the row in front.

    """

    def __init__(self, tables: Any, groups: Mapping[int, bool], plan: Any) -> None:
        """Of vLLM's BlockTables, before they are used. MisfitError if no group has pages of the program's size.

        groups: those of the draft -> whether vLLM names slots of it; it names none in a ring of each request's own.
        """
        page, paged = plan.kv.page_size, [group for group, named in groups.items() if named]
        own = [group for group in paged if tables.block_sizes[group] == page]
        if not own:
            sizes = " or ".join(dict.fromkeys(str(tables.block_sizes[group]) for group in paged))
            raise MisfitError(f"page_size is {page} in the program, blocks of the draft have {sizes} slots")
        self._tables, self._own, self._count = tables, own[0], len(tables.block_tables)
        self._of = {group: block_table(tables, group, plan.size("P")) for group in paged}
        self._rings = [group for group in groups if group not in paged]
        self.table = self._of[self._own]

    def room(self, rows: Any) -> Any:
        """How many tokens the blocks hold of requests in vLLM's rows, both arrays of numpy's."""
        counts, sizes = self._tables.num_blocks.np, self._tables.block_sizes
        rooms = [counts[group, rows] * sizes[group] for group in self._of]
        return functools.reduce(lambda least, room: least.clip(max=room), rooms)

    def slots(self, rows: Tensor, positions: Tensor, group: int | None = None) -> Tensor:
        """Slots i64[b, n] of positions i64[b, n] that requests have blocks for, in rows i64[b] of the table.

        They are of the program's group, or of another one of the draft's.
        """
        group = self._own if group is None else group
        table, page = self._of[group], self._tables.block_sizes[group]
        return table[rows[:, None], positions // page].long() * page + positions % page

    def slots_by_group(self, rows: Tensor, positions: Tensor, slots: Tensor) -> list[Tensor]:
        """Slots i64[b * n] by group of vLLM's, of which the program has named its own, `slots` i64[b, n].

        Padding has none in any. Groups in which the draft has no layers get the same, which nobody reads.
        """
        named = [slots.reshape(-1)] * self._count
        for group in self._of:
            if group != self._own:
                named[group] = torch.where(slots < 0, slots, self.slots(rows, positions, group)).reshape(-1)
        for group in self._rings:
            named[group] = torch.full_like(named[group], NO_SLOT)
        return named


class NoBlocks:
    """What a program has in their place that writes no keys and values, as one without a draft: any request has room.

    Attributes:
        table: i32[P, W] of zeros.

    """

    def __init__(self, plan: Any, longest: int, device: torch.device, groups: int = 0) -> None:
        """For texts of up to `longest` tokens, and the window of a step behind them; `groups` are all of vLLM's."""
        self._groups = groups
        width = -(-(longest + plan.kv.window) // plan.kv.page_size)
        self.table = torch.zeros(plan.size("P"), width, dtype=torch.int32, device=device)
        self._room = width * plan.kv.page_size

    def room(self, _: Any) -> int:
        """See `Blocks`."""
        return self._room

    def slots_by_group(self, rows: Tensor, positions: Tensor, slots: Tensor) -> list[Tensor]:
        """See `Blocks`; `slots` i64[b, n], none of which is any, are those of every group."""
        return [slots.reshape(-1)] * self._groups


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
