"""What SGLang's Triton kernel makes of a verification that the adapter has prepared, against plain torch.

Windows are listed, and rows may be packed, of which requests have different numbers.

Run in SGLang's environment, with Triton's interpreter: `.sglang/bin/python -O tests/sglang/real_windows.py`; SGLang
asserts that tensors are on a GPU, which `-O` leaves out. Prints the largest difference, with one KV pool, with two, and
of packed rows with windows and without.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[2]))


from specc.engines.sglang.attention.prepare.triton import Triton
from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.attention.step_tables import Sizes, Tables
from specc.engines.sglang.attention.windowed.second_pool import TwoPools

NODES, LARGEST, COLUMNS, HEADS, KEPT, WIDTH = 4, 5, 96, 4, 2, 16
WINDOW = 11
"""Tokens before its own that a query sees, as SGLang counts them."""
LENGTHS = [7, 60, 0, 11, 12]
"""Of requests; the one without text is padding."""
PACKED = [3, 1, 0, 4, 2]
"""How many rows each has where they are packed."""


class Translator:
    """SGLang's slots of whole texts, of a pool that translates none."""

    def pack_read_stream(
        self, plan: Any, *, req_pool_indices: Tensor, seq_lens: Tensor, indptr: Tensor, out: Tensor
    ) -> None:
        for place, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
            out[indptr[place] : indptr[place] + length] = SLOTS[row, :length].long()


DRAW = torch.Generator().manual_seed(0)
SLOTS = (torch.randperm(9 * COLUMNS, generator=DRAW).view(9, COLUMNS) + 1).int()
SLOTS[0] = 0
PLACES = torch.cat((torch.zeros(1, dtype=torch.int64), torch.randperm(9 * COLUMNS, generator=DRAW) + 1))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=DRAW)


def brute(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of one query [HEADS, WIDTH] to keys and values [n, KEPT, WIDTH]."""
    keys, values = (of.repeat_interleave(HEADS // KEPT, 1) for of in (keys, values))
    weights = torch.einsum("hd,nhd->hn", query, keys).softmax(-1)
    return torch.einsum("hn,nhd->hd", weights, values)


def apart(*, second: bool, window: int = WINDOW, packed: bool = False) -> float:
    """The largest difference of any entry."""
    sizes = Sizes(LARGEST, NODES - 1, 1, NODES, 1, context=COLUMNS - 8)
    tables = TwoPools(SLOTS, sizes, None, PLACES) if second else Tables(SLOTS, sizes)
    backend = SimpleNamespace(
        sliding_window_size=window,
        use_sliding_window_kv_pool=second,
        kv_indptr=torch.zeros(LARGEST + 1, dtype=torch.int32),
        mask_indptr=torch.zeros(LARGEST + 1, dtype=torch.int64),
        cuda_graph_kv_indices=torch.zeros(LARGEST * COLUMNS, dtype=torch.int64),
        kv_index_translator=Translator(),
    )
    rows, lengths = torch.tensor([3, 8, 0, 5, 1]), torch.tensor(LENGTHS)
    batch = SimpleNamespace(batch_size=len(rows), req_pool_indices=rows, seq_lens=lengths, kv_loc_plan=None)
    attention, counts = Triton(Roles([], None, backend, None), tables), PACKED if packed else [NODES] * len(LENGTHS)
    starts = [sum(counts[:place]) for place in range(len(counts))]
    if packed:
        attention.packed(batch, NODES, torch.tensor(counts).int(), torch.tensor(starts).int(), None, None)
    else:
        attention.target(batch, NODES, None, None)
    metadata: Any = backend.forward_metadata
    keys, values = random(len(PLACES), KEPT, WIDTH), random(len(PLACES), KEPT, WIDTH)
    query, new_keys, new_values = (random(len(rows) * NODES, heads, WIDTH) for heads in (HEADS, KEPT, KEPT))
    found, most = torch.full_like(query, torch.nan), 0.0
    lists = metadata.kv_indptr, metadata.kv_indices
    if window:
        lists = metadata.window_kv_indptr, metadata.window_kv_indices
    importlib.import_module("sglang.kernels.ops.attention.extend_attention").extend_attention_fwd(
        query, new_keys, new_values, found, keys, values, metadata.qo_indptr,
        *lists,
        None, True, None, metadata.max_extend_len, 1.0, 1.0, 1.0,
        sliding_window_size=window or -1, window_kv_offsets=metadata.window_kv_offsets,
    )  # fmt: skip
    places = PLACES if second else torch.arange(len(PLACES))
    if (metadata.swa_out_cache_loc is not None) != second:
        raise AssertionError("slots of a second pool are written where there is one")
    for place, (row, length) in enumerate(zip(rows.tolist(), LENGTHS, strict=True)):
        text = places[SLOTS[row, :length].long()]
        first = starts[place]
        if (
            second
            and metadata.swa_out_cache_loc[first : first + NODES].tolist()
            != places[SLOTS[row, length : length + NODES].long()].tolist()
        ):
            raise AssertionError("nodes are written elsewhere")
        for node in range(counts[place]):
            seen_keys, seen_values = (
                torch.cat((pool[text], new[first : first + node + 1]))[-window - 1 if window else 0 :]
                for pool, new in ((keys, new_keys), (values, new_values))
            )
            wanted = brute(query[first + node], seen_keys, seen_values)
            most = max(most, float((found[first + node] - wanted).abs().max()))
    return most


if __name__ == "__main__":
    packed = [apart(second=False, window=window, packed=True) for window in (WINDOW, 0)]
    json.dump([apart(second=False), apart(second=True), *packed], sys.stdout)
