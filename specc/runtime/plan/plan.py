"""The plan: everything that is known of a compiled program, as frozen dataclasses.

The compiler ends with one, `plan.json` is its text (`plan_json`), and the runtime and engines read nothing else. Sizes
are in bytes, shapes and strides in elements. This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import PlanError
from .draft_head import HEAD, MADE
from .nodes import OUTSIDE, STORES, Capture, External, Given, Kernel, Node, OpSource, Phase, read_by, results_of
from .shape import Shape
from .typed import LARGEST

FORMAT = 5
BATCH_AXIS = "B"
RAGGED_AXIS = "T"
"""The axis of all prompt tokens of a prefill: the sum of the batch's lengths, known only at run time."""
CONTEXT_AXIS = "C"
"""The axis of the request table's columns, as many as the engine has bound."""
PROMPT, TABLE = "prompt_tokens", "req_to_token"
"""The inputs that are the tokens of a prefill's prompts, and the engine's request table."""
BLOCKS, COUNTS, TABLES = "block_table", "num_blocks", (TABLE, "block_table")
"""In place of that where KV slots come in blocks: which are a request's, how many; and both kinds of table."""
TOKEN_MAP = "d2t"
"""The table i64[Vd] of the target's tokens that a draft of a reduced vocabulary scores."""
RANK = "rank"
"""The table i64[1] of the rank's number, of programs whose logits are sharded; the runtime brings it."""
RANK_AXIS = "R"
"""The axis of all ranks' records. It is the first one, and what has it is dense whatever the rows of a batch."""
MOST_DIGITS = len(str(LARGEST))
"""Of a number that stands as text: those with more are no i64."""
LENGTHS = "seq_lens"
"""The carried field of committed lengths, where steps relay them."""


@dataclass(frozen=True)
class Value:
    """An SSA value that lives in memory: a view of `buffer` with its own names for the axes."""

    buffer: str
    dtype: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Buffer:
    """Memory of one or more values.

    Attributes:
        axes: dimension names or element counts, outermost first.
        owner: `arena`, or `engine`: the tensor that a forward returned.
        offset: bytes from the start of the arena, None of an engine buffer.
        lifetime: places, in the order of execution, of the first node that touches it and the last; the first is 0 if
            it lives across steps.
        init: `zero` if it must be zero when the program is loaded, else `none`.
        alignment: bytes that divide its address; of an engine buffer, what the engine has to keep.

    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    owner: str
    offset: int | None
    bytes: int
    lifetime: tuple[int, int]
    init: str
    alignment: int


@dataclass(frozen=True)
class Kv:
    """KV slots of a step, in tokens.

    Attributes:
        page_size: tokens per page.
        verify_window: slots that the target writes per request, from the committed length on.
        branch_room: positions that a branch of a tree drafts into, on pages of its own; 0 for a chain.
        window: positions from the committed length on that one step may write per request.
        reserve: slots to hold per request and step there.
        longest: the longest committed text whose mask fits, None where no mask covers the text.
        first_draft_position: 0 if the draft sees token p + 1 at position p, 1 if it sees tokens where they are.

    """

    page_size: int
    verify_window: int
    branch_room: int
    window: int
    reserve: int
    longest: int | None
    first_draft_position: int

    @property
    def shifted(self) -> bool:
        """Whether the draft sees token p + 1 at position p."""
        return self.first_draft_position == 0

    @property
    def draft_positions(self) -> str:
        """`shifted` or `true`, as configurations say it."""
        return "shifted" if self.shifted else "true"


@dataclass(frozen=True)
class KvPool:
    """The KV buffers of one model, the engine's: `layers` times `buffers` tensors of `row_bytes` per slot.

    `bound` says whether kernels touch them. Their addresses are then in the arena buffer `kv_pointers(owner)`.
    """

    layers: int
    buffers: int
    row_bytes: int
    dtype: str
    bound: bool


def kv_pointers(owner: str) -> str:
    """The arena buffer i64[layers * buffers] of the addresses of a model's KV buffers, layer by layer."""
    return f"kv.{owner}.pointers"


@dataclass(frozen=True)
class Model:
    """What a program was compiled for of a target or draft; in `docs/config.md` as keys of the model.

    `aux_layers`: layers of the target, counted from 1, whose outputs it hands over, side by side; none where it hands
    over its hidden states.
    """

    hidden_size: int
    spec_width: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_layout: str
    vocab_size: int
    dtype: str
    logits_dtype: str
    aux_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Serving:
    """What an engine has to follow, beyond sizes; of a program of several shapes, at any of them.

    Attributes:
        reach: positions beyond a request's committed tokens that its forwards may be at.
        lookahead: tokens after a position that the draft's keys and values there depend on.
        settled: those of committed tokens never come from tokens that were only drafted.
        reads_hidden: some forward of a recurrent draft reads hidden states.
        mask_mode: how the target is told a tree, None if it is not.
        extras: what the program wants of the target besides logits and hidden states, sorted.

    """

    reach: int
    lookahead: int
    settled: bool
    reads_hidden: bool
    mask_mode: str | None = None
    extras: tuple[str, ...] = ()


@dataclass(frozen=True)
class Input:
    """An input of the program; `owner` is `arena` where the runtime writes it, else `engine`.

    `limit`: of a table whose numbers are entries of an axis, ascending, that axis; they are read once, at `bind`.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    owner: str
    limit: str = ""


@dataclass(frozen=True)
class Carried:
    """A carried value: a record of every request, whose axes start with `B`.

    `limit`: the axis or the count that its values are checked with, see `RecordField`; None: any value is one.
    `given`: the engine writes it when it admits a request (`Step.set_sampling`), and the program reads it or counts on.
    `written_by`: of a field in a table of the engine's who writes it, `program` or `engine`; empty of others.
    """

    name: str
    dtype: str
    axes: tuple[str, ...]
    limit: str | None = None
    given: bool = False
    written_by: str = ""


@dataclass(frozen=True)
class Output:
    """A value that an entry (`step` or `prefill`) hands back under `name`."""

    name: str
    value: str
    entry: str


@dataclass(frozen=True)
class ArenaBytes:
    """Bytes that a program allocates for itself, whatever the batch: of the whole `arena` those of the pool rows
    (`relay`), and those that kernels use for themselves while they run (`scratch`; they may hold values otherwise).
    """

    arena: int
    relay: int
    scratch: int


@dataclass(frozen=True)
class Totals:
    """What one decode step costs in one bucket; bytes where nothing else is said.

    `references` are nodes that torch computes, whose launches torch chooses and nobody counts. `host_syncs` counts the
    calls of the host, which may wait for the device: those of a program with grammars. `vocab_bytes_read` counts every
    read of a logits row by a kernel, `hidden_state_bytes` every buffer that holds hidden states.
    `collectives` are those of all ranks, in which each sends its record to every other: `wire_bytes` together.
    """

    launches_in_graph: int
    launches_outside_graph: int
    references: int
    host_syncs: int
    vocab_bytes_read: int
    hidden_state_bytes: int
    arena_bytes: int
    collectives: int = 0
    wire_bytes: int = 0


@dataclass(frozen=True, repr=False)
class Plan:
    """One compiled program.

    `captures` says what is captured when the forwards can be: the step, or every run of nodes between two calls of the
    host; `segments` when they cannot: every run of other nodes between two calls of the engine. `engine` is the serving
    engine that it was built for, None where it is for any; `runs_as` is the algorithm that an engine is told where
    `algorithm` is a plugin's that takes the place of one.
    """

    name: str
    algorithm: str
    specc: str
    dims: Mapping[str, int]
    kv: Kv
    kv_pools: Mapping[str, KvPool]
    models: Mapping[str, Model]
    serving: Serving
    options: Mapping[str, Any]
    disaggregation: bool
    inputs: Mapping[str, Input]
    carry: Mapping[str, Carried]
    outputs: tuple[Output, ...]
    values: Mapping[str, Value]
    buffers: Mapping[str, Buffer]
    kernels: Mapping[str, Kernel]
    ops: Mapping[str, OpSource]
    phases: tuple[Phase, ...]
    captures: tuple[Capture, ...]
    segments: tuple[Capture, ...]
    buckets: tuple[int, ...]
    memory: ArenaBytes
    totals: Mapping[int, Totals]
    engine: str | None = None
    runs_as: str | None = None

    def __repr__(self) -> str:
        """Name and summary: all of it is long."""
        return f"<Plan {self.name}: {self.summary}>"

    @property
    def summary(self) -> str:
        """What it decodes in a few words: how it drafts, what a step verifies, how many requests it takes."""
        return f"{self.algorithm}, {self.shape.words}, up to {self.buckets[-1]} requests"

    @property
    def shape(self) -> Shape:
        """What it drafts and verifies; of a rotated step what it verifies, since it drafts for a step of any shape."""
        steps = self.size("A") - 1 if self.rotated else self.size("S")
        return Shape(steps, self.size("K"), self.size("N"), self.dims.get("G"))

    @property
    def ranks(self) -> int:
        """Ranks that have a shard of the logits each; 1 where logits are whole."""
        return self.dims.get(RANK_AXIS, 1)

    @property
    def restricts(self) -> bool:
        """Whether the host says which tokens are allowed."""
        return any(call.host for call in self.externals())

    @property
    def samples(self) -> bool:
        """Whether the engine says how a request is sampled."""
        return any(field.given for field in self.carry.values())

    @property
    def scores(self) -> int | None:
        """How many best tokens come with the log-probability of every emitted one; None where that is not there."""
        homes = {output.name: self.home(output.value) for output in self.outputs if output.entry == "step"}
        if "logprobs" not in homes:
            return None
        best = homes.get("best_tokens")
        return int(best.shape[-1]) if best is not None else 0

    def nodes(self, entry: str | None = None) -> tuple[Node, ...]:
        """The nodes of `prefill` or `step`, by default of both, in execution order."""
        return tuple(node for phase in self.phases if entry in (None, phase.entry) for node in phase.nodes)

    @property
    def table(self) -> str:
        """The input that is the engine's table of KV slots."""
        return BLOCKS if BLOCKS in self.inputs else TABLE

    @property
    def rotated(self) -> bool:
        """Whether the engine runs the target, so that a step is two calls."""
        return any(isinstance(node, Given) for node in self.nodes("step"))

    def bucket(self, rows: int) -> int:
        """The smallest bucket that holds `rows` rows; PlanError when none does (check the batch first)."""
        if rows > self.buckets[-1]:
            raise PlanError(f"no bucket holds {rows} rows; the largest is {self.buckets[-1]}")
        return next(bucket for bucket in self.buckets if rows <= bucket)

    def size(self, axis: str) -> int:
        """Elements along an axis: a name of `dims`, or a count as text. PlanError if it is neither."""
        if axis.isdecimal() and len(axis) <= MOST_DIGITS and int(axis) <= LARGEST:
            return int(axis)
        if axis not in self.dims:
            raise PlanError(f"axis {axis!r} has no size; known: {', '.join(sorted(self.dims))}")
        return self.dims[axis]

    def home(self, name: str) -> Buffer | None:
        """The buffer of a value or input, by default the one of its own name; None when the engine brings it."""
        return self.buffers.get(self.values[name].buffer if name in self.values else name)

    @property
    def relays(self) -> bool:
        """Whether steps read committed lengths from the carry, so that one may start before the last one's are read."""
        return LENGTHS in self.carry

    def externals(self, entry: str | None = None) -> tuple[External, ...]:
        """The calls of forwards among `nodes(entry)`."""
        return tuple(node for node in self.nodes(entry) if isinstance(node, External))

    @property
    def computes_head(self) -> bool:
        """Whether the program computes the head of its draft, whose weights the engine brings."""
        return HEAD in self.inputs

    def tables(self) -> dict[str, Input]:
        """Inputs that the engine brings once, at bind, besides the request table: the runtime has the others."""
        known = (*TABLES, PROMPT, RANK, *MADE)
        return {name: table for name, table in self.inputs.items() if self.home(name) is None and name not in known}

    def written_inputs(self, entry: str) -> list[str]:
        """Inputs that `entry` reads and the runtime writes: they have a buffer. Sorted."""
        return sorted(name for name in self.reads(entry) if self.home(name) is not None)

    def reads(self, entry: str) -> frozenset[str]:
        """Names of the inputs that any node of `entry` reads."""
        return frozenset({name for node in self.nodes(entry) for name in read_by(node)} & set(self.inputs))

    def stores(self, entry: str) -> frozenset[str]:
        """Names of the nodes of `entry` that write pool rows."""
        computed = [node for node in self.nodes(entry) if not isinstance(node, OUTSIDE)]
        return frozenset(node.name for node in computed if not STORES.isdisjoint(call.op for call in node.ops))

    def callbacks(self, entry: str | None = None) -> tuple[str, ...]:
        """Callback methods that the program calls, or one entry of it, sorted."""
        return tuple(sorted({node.callback for node in self.externals(entry)}))

    def output(self, name: str, entry: str) -> Output:
        """An output of an entry. PlanError when there is none of that name."""
        for output in self.outputs:
            if (output.name, output.entry) == (name, entry):
                return output
        raise PlanError(f"{entry} has no output {name!r}")

    def producer(self, value: str) -> Node:
        """The node that computes a value. PlanError when none does."""
        for node in self.nodes():
            if value in results_of(node):
                return node
        raise PlanError(f"no node computes {value!r}")
