"""Chains by SGLang's own contract: backends that prepare a forward themselves, from what lies on the device.

SGLang's graph runners ask a backend three things: to make room for a size of batch, before a capture
(`init_forward_metadata_out_graph` with `in_capture`), and to prepare a forward of it, outside of a graph and inside.
Here all is asked inside the step, but for the room, which is made when a size is met first. What these backends do for
drafts, verify and extend is work of the device, so that a graph records it.

Two things are to be minded. Room of a size replaces that which SGLang's own graph of the size reads: backends have ours
only while they prepare our forwards. And some backends let all forwards of a draft read the text alone: those are told
lengths that have the step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..backend import StepAttention
from ..kinds import backend_of
from ..roles import Roles, name_of
from ..step_tables import Tables

HELD = ("forward_metadata", "forward_decode_metadata")
"""What layers read, by the names that backends have for it."""
ROOM = "metadata"
"""In the names of tables of what a backend has made room for, by size of batch, or by a mode and that."""


@dataclass
class Room:
    """What a backend has for a size of batch: entries of its tables, and what layers read."""

    entries: dict[str, dict[Any, Any]] = field(default_factory=dict[str, dict[Any, Any]])
    held: dict[str, Any] = field(default_factory=dict[str, Any])


class Contract(StepAttention):
    """A backend of SGLang over room of our own."""

    def __init__(self, roles: Roles, tables: Tables) -> None:
        """See `StepAttention`. ValueError for a tree, which the contract of these backends has no place for."""
        super().__init__(roles, tables)
        if tables.sizes.topk > 1:
            raise ValueError(f"attention {', '.join(sorted(set(roles.named().values())))} serves chains")
        self._rooms: dict[tuple[int, int], Room] = {}
        self._lengths: dict[int, Tensor] = {}
        self._widths: dict[int, Tensor] = {}

    def draft(self, step: int, batch: Any) -> Any:
        """See `StepAttention`."""
        backend = self._roles.draft[step]
        if backend_of(name_of(backend)).adds_no_step:
            batch.seq_lens = self._drafting(step, batch)
        return self._prepared(backend, batch)

    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """See `StepAttention`."""
        return self._prepared(self._roles.verify, batch)

    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """See `StepAttention`."""
        rows = batch.batch_size
        if rows not in self._widths:
            self._widths[rows] = torch.full((rows,), width, dtype=torch.int32, device=seq_lens.device)
        batch.extend_prefix_lens, batch.extend_seq_lens_cpu = seq_lens, [width] * rows
        batch.extend_seq_lens = batch.spec_info.extend_seq_lens_tensor = self._widths[rows]
        return self._prepared(self._roles.extend, batch)

    def _drafting(self, step: int, batch: Any) -> Tensor:
        """Lengths i64[b] that forward `step` of the draft reads: L + step + 1, of all steps with the first."""
        rows = batch.batch_size
        if rows not in self._lengths:
            self._lengths[rows] = batch.seq_lens.new_empty(len(self._roles.draft), rows)
        if step == 0:
            more = self._tables.starts(len(self._roles.draft), 1, torch.int64)[1:, None]
            torch.add(batch.seq_lens, more, out=self._lengths[rows])
        return self._lengths[rows][step]

    def _prepared(self, backend: Any, batch: Any) -> Any:
        """The backend, of which layers then read what it has prepared for the batch."""
        rows = batch.batch_size
        room = self._rooms.get((id(backend), rows))
        with _exchanged(backend, rows, room):
            if room is None:
                backend.init_forward_metadata_out_graph(batch, in_capture=True)
                self._rooms[id(backend), rows] = _room(backend, rows)
            backend.init_forward_metadata_out_graph(batch)
            backend.init_forward_metadata_in_graph(batch)
        return backend


def _tables(backend: Any) -> dict[str, dict[Any, Any]]:
    return {name: of for name, of in vars(backend).items() if ROOM in name and isinstance(of, dict)}


def _of_size(table: dict[Any, Any], rows: int) -> dict[Any, Any]:
    return {key: entry for key, entry in table.items() if key == rows or (isinstance(key, tuple) and key[-1] == rows)}


def _room(backend: Any, rows: int) -> Room:
    entries = {name: _of_size(of, rows) for name, of in _tables(backend).items()}
    return Room(entries, {name: vars(backend)[name] for name in HELD if name in vars(backend)})


@contextlib.contextmanager
def _exchanged(backend: Any, rows: int, room: Room | None) -> Iterator[None]:
    """Give a backend our room of a size, if there is any yet, and SGLang's back on leaving."""
    entries = _room(backend, rows).entries
    if room is not None:
        for name, value in room.held.items():
            setattr(backend, name, value)
        for name, of in room.entries.items():
            getattr(backend, name).update(of)
    try:
        yield
    finally:
        for name, of in _tables(backend).items():
            for key in _of_size(of, rows).keys() - entries[name].keys():
                del of[key]
            of.update(entries[name])
