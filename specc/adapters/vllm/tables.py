"""vLLM's tables of requests, each with a row in front that vLLM does not see.

A row of zeros pads the batches of a program, and vLLM's row 0 is a request. So its tables become views of longer ones:
its row r is the program's row r + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

AHEAD = 1
"""How many rows more the program sees than vLLM."""
ALIGNED = 4
"""vLLM's kernels expect rows of a block table at multiples of 16 bytes: so many block numbers."""


def carried(states: Any, rows: int) -> dict[str, Tensor]:
    """The fields that vLLM keeps of requests, by the program's names: T[rows, ...], with the row in front.

    `states` is vLLM's RequestState, before it holds a request.
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
    return whole | {"bonus": whole["bonus"].view(-1)}


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
