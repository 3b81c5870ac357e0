"""Declarations which the planning passes add to a module: what runs where, and where everything lives.

Each is printed as ``kind @name {field = value, ...}`` (``text/attributes.py``). A buffer is the plan's own record. The
others have what the plan has not: what a node follows in other graphs, how rows are aligned, what a launch moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from specc.compiler.ir.opdef import PAGES
from specc.runtime.plan.plan import Buffer


class Decl(Protocol):
    """A named planning fact."""

    @property
    def name(self) -> str:
        """Return what no other declaration of its kind is called."""
        ...


@dataclass(frozen=True)
class Options:
    """What the configuration asks for beyond dimensions; set when the module is made.

    Attributes:
        buckets: batch sizes to capture, ascending.
        page_size: tokens per KV page.
        longest: tokens of the longest text that full masks have room for; -1 where there are none.

    """

    name: str
    buckets: tuple[int, ...]
    page_size: int
    longest: int

    def __post_init__(self) -> None:
        """Raise ValueError for buckets that do not ascend from 1, and for a page of no length."""
        if not self.buckets or list(self.buckets) != sorted({max(bucket, 1) for bucket in self.buckets}):
            raise ValueError("buckets must ascend, and be at least 1")
        if self.page_size not in PAGES:
            raise ValueError(f"page_size is from 1 to {PAGES[-1]}, not {self.page_size}")


@dataclass(frozen=True)
class KvLayout:
    """KV slots of a step, in tokens.

    Attributes:
        page_size: tokens per page.
        first_draft_position: 0 if the draft's stream is shifted, 1 if it sees tokens at their true positions.
        verify_window: slots the target writes per request, from seq_len on.
        branch_room: positions every branch drafts into, on pages of its own; 0 for a chain.
        window: slots target and draft together may write per request, from seq_len on.
        reserve: slots to reserve per request before a step is scheduled.

    """

    name: str
    page_size: int
    first_draft_position: int
    verify_window: int
    branch_room: int
    window: int
    reserve: int


@dataclass(frozen=True)
class KvPool:
    """The KV buffers of one model, which the engine owns; set when the module is made.

    Attributes:
        layers: layers that keep keys and values.
        buffers: buffers per layer: 2 (keys, values), or 1 (latent rows).
        row_bytes: bytes of one slot in one buffer.
        dtype: element type, in the configuration's words.
        kept: whether a program of another depth reads or writes it, so that this one keeps what is written to it.

    """

    name: str
    layers: int
    buffers: int
    row_bytes: int
    dtype: str
    kept: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a pool without layers, buffers or bytes."""
        if min(self.layers, self.buffers, self.row_bytes) < 1:
            raise ValueError("layers, buffers and row_bytes are at least 1")


@dataclass(frozen=True)
class Kernel:
    """A cluster of ops (those whose ``kernel`` attribute names it) that one launch computes.

    Attributes:
        family: kernel family that covers it.
        phase: phase in which it is launched, that of its first op.
        bytes: device memory it moves at the largest bucket, by the cost model.

    """

    name: str
    family: str
    phase: str
    bytes: int


@dataclass(frozen=True)
class Tuned:
    """What a tuning file chose for the kernel of this name, in place of what specc does by itself.

    Attributes:
        tile: elements of a tile of logits; 0 where nothing was chosen.
        warps: warps of a program; 0 where nothing was chosen.
        stages: tiles that are on their way at once; 0 where nothing was chosen.
        splits: programs that share a row, or a request's copies, in every bucket; 0, or none at all, where nothing was.

    """

    name: str
    tile: int
    warps: int
    stages: int
    splits: tuple[int, ...]


@dataclass(frozen=True)
class Reference:
    """The node of an op (the one whose ``kernel`` attribute names it) that no kernel computes, but torch.

    Attributes:
        phase: phase in which it runs.
        bytes: device memory it moves at the largest bucket, by the cost model.

    """

    name: str
    phase: str
    bytes: int


@dataclass(frozen=True)
class Layout:
    """Where a value of this name is kept: strides in elements, and how its buffer is aligned in bytes.

    Attributes:
        buffer: buffer that holds it (in-place ops share one).
        owner: ``arena`` (specc allocates it), ``engine`` (a forward returns it) or ``input``.
        strides: elements between neighbours along each axis at the largest bucket.
        alignment: bytes that divide the address of every row.

    """

    name: str
    buffer: str
    owner: str
    strides: tuple[int, ...]
    alignment: int


@dataclass(frozen=True)
class Grid:
    """The launch grid of kernel ``kernel`` in bucket ``bucket``; ``grid[0]`` is the number of batch rows."""

    name: str
    kernel: str
    bucket: int
    grid: tuple[int, ...]


def scratch_owner(buffer: str) -> str:
    """The kernel that a buffer is scratch memory of, if one has this name: scratch is named ``<kernel>.<name>``."""
    return buffer.rpartition(".")[0]


@dataclass(frozen=True)
class Node:
    """One step of execution, in order: a kernel launch, an op in torch, an external call, or a collective.

    Attributes:
        phase: phase it belongs to.
        node: ``launch``, ``reference``, ``external``, ``collective`` or ``given``.
        after: nodes it must follow, transitively reduced.
        capture: name of the graph it is captured in when forwards can be captured, empty if it never is.
        segment: name of the graph it is captured in when they cannot; forwards have none.

    """

    name: str
    phase: str
    node: str
    after: tuple[str, ...]
    capture: str
    segment: str


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes on one architecture, as the machine code says."""

    name: str
    kernel: str
    arch: str
    registers: int
    spills: int
    shared: int


class Kind(NamedTuple):
    """How a record is declared.

    ``since``: the invariant that the pass which adds such declarations establishes; empty if they are always there.
    """

    record: type[Decl]
    since: str = ""


DECLS: dict[str, Kind] = {
    "options": Kind(Options),
    "kv": Kind(KvLayout, "kv-bound"),
    "kvpool": Kind(KvPool),
    "kernel": Kind(Kernel, "clustered"),
    "tuned": Kind(Tuned, "clustered"),
    "reference": Kind(Reference, "clustered"),
    "layout": Kind(Layout, "laid-out"),
    "grid": Kind(Grid, "bucketed"),
    "buffer": Kind(Buffer, "memory-planned"),
    "node": Kind(Node, "graph-planned"),
    "resources": Kind(Resources, "resources-checked"),
}
"""By the word that a line begins with."""
RECORDS: dict[type[Decl], str] = {kind.record: word for word, kind in DECLS.items()}
"""The word of every record."""
