"""Declarations which the planning passes add to a module: what runs where, and where everything lives.

Each is printed as ``kind @name {field = value, ...}``; its fields are the dataclass fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from specc.compiler.ir.opdef import PAGES


@dataclass(frozen=True)
class Decl:
    """A named planning fact.

    ``since``: the invariant that the pass which adds such declarations establishes; empty if they are always there.
    """

    kind: ClassVar[str] = "decl"
    since: ClassVar[str] = ""
    name: str


@dataclass(frozen=True)
class Options(Decl):
    """What the configuration asks for beyond dimensions; set when the module is made.

    Attributes:
        buckets: batch sizes to capture, ascending.
        page_size: tokens per KV page.
        longest: tokens of the longest text that full masks have room for; -1 where there are none.

    """

    kind: ClassVar[str] = "options"
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
class KvLayout(Decl):
    """KV slots of a step, in tokens.

    Attributes:
        page_size: tokens per page.
        first_draft_position: 0 if the draft's stream is shifted, 1 if it sees tokens at their true positions.
        verify_window: slots the target writes per request, from seq_len on.
        branch_room: positions every branch drafts into, on pages of its own; 0 for a chain.
        window: slots target and draft together may write per request, from seq_len on.
        reserve: slots to reserve per request before a step is scheduled.

    """

    kind: ClassVar[str] = "kv"
    since: ClassVar[str] = "kv-bound"
    page_size: int
    first_draft_position: int
    verify_window: int
    branch_room: int
    window: int
    reserve: int


@dataclass(frozen=True)
class KvPool(Decl):
    """The KV buffers of one model, which the engine owns; set when the module is made.

    Attributes:
        layers: layers that keep keys and values.
        buffers: buffers per layer: 2 (keys, values), or 1 (latent rows).
        row_bytes: bytes of one slot in one buffer.
        dtype: element type, in the configuration's words.
        kept: whether a program of another depth reads or writes it, so that this one keeps what is written to it.

    """

    kind: ClassVar[str] = "kvpool"
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
class Kernel(Decl):
    """A cluster of ops (those whose ``kernel`` attribute names it) that one launch computes.

    Attributes:
        family: kernel family that covers it.
        phase: phase in which it is launched, that of its first op.
        bytes: device memory it moves at the largest bucket, by the cost model.

    """

    kind: ClassVar[str] = "kernel"
    since: ClassVar[str] = "clustered"
    family: str
    phase: str
    bytes: int


@dataclass(frozen=True)
class Tuned(Decl):
    """What a tuning file chose for the kernel of this name, in place of what specc does by itself.

    Attributes:
        tile: elements of a tile of logits; 0 where nothing was chosen.
        warps: warps of a program; 0 where nothing was chosen.
        stages: tiles that are on their way at once; 0 where nothing was chosen.
        splits: programs that share a row, or a request's copies, in every bucket; 0, or none at all, where nothing was.

    """

    kind: ClassVar[str] = "tuned"
    since: ClassVar[str] = "clustered"
    tile: int
    warps: int
    stages: int
    splits: tuple[int, ...]


@dataclass(frozen=True)
class Reference(Decl):
    """The node of an op (the one whose ``kernel`` attribute names it) that no kernel computes, but torch.

    Attributes:
        phase: phase in which it runs.
        bytes: device memory it moves at the largest bucket, by the cost model.

    """

    kind: ClassVar[str] = "reference"
    since: ClassVar[str] = "clustered"
    phase: str
    bytes: int


@dataclass(frozen=True)
class Layout(Decl):
    """Where a value of this name is kept: strides in elements, and how its buffer is aligned in bytes.

    Attributes:
        buffer: buffer that holds it (in-place ops share one).
        owner: ``arena`` (specc allocates it), ``engine`` (a forward returns it) or ``input``.
        strides: elements between neighbours along each axis at the largest bucket.
        alignment: bytes that divide the address of every row.

    """

    kind: ClassVar[str] = "layout"
    since: ClassVar[str] = "laid-out"
    buffer: str
    owner: str
    strides: tuple[int, ...]
    alignment: int


@dataclass(frozen=True)
class Grid(Decl):
    """The launch grid of kernel ``kernel`` in bucket ``bucket``; ``grid[0]`` is the number of batch rows."""

    kind: ClassVar[str] = "grid"
    since: ClassVar[str] = "bucketed"
    kernel: str
    bucket: int
    grid: tuple[int, ...]


@dataclass(frozen=True)
class Buffer(Decl):
    """A buffer, allocated once at the largest bucket.

    Attributes:
        dtype: element type.
        axes: dimension names or element counts, outermost first, each as text.
        shape: elements along each axis at the largest bucket.
        strides: elements.
        owner: ``arena`` or ``engine``.
        offset: bytes from the start of the arena, -1 for an engine buffer.
        bytes: size.
        first: execution index of the first node that touches it; 0 if it lives across steps.
        last: execution index of the last node that touches it.
        init: ``zero`` if it must be zero when the program is loaded, else ``none``.
        alignment: bytes that divide its address.

    """

    kind: ClassVar[str] = "buffer"
    since: ClassVar[str] = "memory-planned"
    dtype: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: str
    offset: int
    bytes: int
    first: int
    last: int
    init: str
    alignment: int


def scratch_owner(buffer: str) -> str:
    """The kernel that a buffer is scratch memory of, if one has this name: scratch is named ``<kernel>.<name>``."""
    return buffer.rpartition(".")[0]


@dataclass(frozen=True)
class Node(Decl):
    """One step of execution, in order: a kernel launch, an op in torch, an external call, or a collective.

    Attributes:
        phase: phase it belongs to.
        node: ``launch``, ``reference``, ``external``, ``collective`` or ``given``.
        after: nodes it must follow, transitively reduced.
        capture: name of the graph it is captured in when forwards can be captured, empty if it never is.
        segment: name of the graph it is captured in when they cannot; forwards have none.

    """

    kind: ClassVar[str] = "node"
    since: ClassVar[str] = "graph-planned"
    phase: str
    node: str
    after: tuple[str, ...]
    capture: str
    segment: str


@dataclass(frozen=True)
class Resources(Decl):
    """What a compiled kernel takes on one architecture, as the machine code says."""

    kind: ClassVar[str] = "resources"
    since: ClassVar[str] = "resources-checked"
    kernel: str
    arch: str
    registers: int
    spills: int
    shared: int


DECLS: dict[str, type[Decl]] = {
    decl.kind: decl
    for decl in (Options, KvLayout, KvPool, Kernel, Tuned, Reference, Layout, Grid, Buffer, Node, Resources)
}
