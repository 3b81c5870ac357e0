"""What every bound program has: memory, callbacks, and the entries `prefill` and `decode`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Self

import torch
from torch import Tensor

from .backends import Backend
from .batch import Batch, integers
from .entry.columns import LENGTHS, ROWS, Columns
from .entry.external import call, check_callbacks
from .entry.frame import After, Frame, Progress
from .entry.ranges import in_ranges
from .entry.result import PrefillResult, StepResult
from .errors import BatchError, BindError
from .graphs.capture import Graphs, Recorder, Replays, check_capturable
from .graphs.segments import SegmentGraphs
from .memory.arena import Arena
from .memory.carried import check_carried
from .memory.footprint import Memory
from .memory.kv_rows import KvRows, Parts
from .memory.overlap import check_apart
from .memory.staging import Sent, Staging
from .memory.tables import TableGuard, check_names, check_request_table, check_tables, prompt_tokens, room
from .plan.capabilities import absent
from .plan.nodes import External, Launch, Node, Reference
from .plan.plan import PROMPT, Plan
from .plan.shape import Shape, listed, named
from .ranks import Collective
from .state.carry import Carry
from .state.limits import carried_fields
from .state.relay import Relay, RelayPools
from .state.torn import Torn

NEW_LENGTHS = "new_seq_lens"


class BoundStep:
    """One program bound to an engine, without the capabilities that only some programs have, see `Step`.

    Args:
        plan: the program.
        backend: runs its launches.
        device: where its memory is.
        callbacks: the engine's forwards.
        req_to_token: i32[p, C], the KV slot of every position of pool rows 0..p-1, or the block table of a program that
            reads one; the engine's own tensor. With fewer than P rows, those of requests are 1..p-1.
        kv_pools, state_pools: the engine's KV buffers and recurrent states by owner, see `KvPools` and `StatePools`.
        tables: what else the program reads of the engine's, see `Plan.tables`.
        collective: all ranks of a program with sharded logits, needed where there are several.
        carry: carried fields that live in tables of the engine's, see `check_carried`.
        nvtx: whether every node that the host launches or calls is in an NVTX range of its name.
        poison, memory: see `Arena`.
        shapes: the steps of one binding by shape, which share state and memory; others may be added later.

    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        device: torch.device,
        callbacks: object,
        req_to_token: Tensor,
        kv_pools: Mapping[str, Sequence[Tensor]] | None = None,
        tables: Mapping[str, Tensor] | None = None,
        *,
        collective: Collective | None = None,
        carry: Mapping[str, Tensor] | None = None,
        state_pools: Parts | None = None,
        nvtx: bool = False,
        poison: int | None = None,
        memory: Tensor | None = None,
        shapes: dict[Shape, Self] | None = None,
    ) -> None:
        """Allocate the arena. BindError when callbacks, tables or KV buffers do not fit, or memory is shared."""
        check_callbacks(plan, callbacks, "step")
        check_request_table(plan, device, req_to_token)
        self._table, self._collective = req_to_token, collective
        self._plan, self._backend, self._device, self._callbacks = plan, backend, device, callbacks
        self._shapes = {plan.shape: self} if shapes is None else shapes
        self._tables = self._brought({} if tables is None else tables)
        self._kv = self._moved({} if kv_pools is None else kv_pools, {} if state_pools is None else state_pools)
        outside = check_carried(plan, device, {} if carry is None else carry)
        read = {plan.table: req_to_token, **self._tables}
        check_apart({**self._kv.named, **{f"carry[{name!r}]": pool for name, pool in (carry or {}).items()}}, read)
        self._arena = Arena(plan, device, poison, memory)
        for name, tensor in outside.items():
            self._arena.stand_for(name, tensor)
        self._kv.write_pointers(self._arena)
        first = self._first_shape()
        self._torn = Torn(req_to_token.shape[0]) if first is self else first._torn
        self._pools = RelayPools(plan, self._arena)
        fields = carried_fields(plan, room(plan, req_to_token.shape[1]))
        self._relay = Relay(self._pools, req_to_token.shape[0], device, fields, self._torn)
        self._columns = {entry: Columns(plan, entry, req_to_token) for entry in ("prefill", "step")}
        self._stores = plan.stores("step")
        self._last: Sent = {} if first is self else first._last
        self._staging = {at: Staging(plan, self._arena, rows.inputs, self._last) for at, rows in self._columns.items()}
        self._guard = TableGuard({**read, **outside})
        self._execute = in_ranges(self._dispatch) if nvtx else self._dispatch
        self._graphs: Graphs | SegmentGraphs | None = None

    if not TYPE_CHECKING:  # checkers see what there is
        __getattr__ = absent

    def __repr__(self) -> str:
        """Name, what it decodes, how large a table it serves, its shapes, its device, and whether it is captured."""
        rows, columns = self._table.shape
        shapes = f", shapes {listed(self._shapes)}" if len(self._shapes) > 1 else ""
        how = "captured" if self._graphs else "not captured"
        where = f"{self._plan.table} [{rows}, {columns}]{shapes}, on {self._device}"
        return f"<Step {self._plan.name}: {self._plan.summary}, {where}, {how}>"

    @property
    def shape(self) -> Shape:
        """What it drafts and verifies."""
        return self._plan.shape

    @property
    def buckets(self) -> dict[Shape, tuple[int, ...]]:
        """By shape of the binding the batch sizes that it was compiled for, ascending."""
        return {shape: step._plan.buckets for shape, step in self._shapes.items()}

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self._device

    def at(self, shape: Shape | str | int) -> Self:
        """The step of another shape of the same binding, which goes on where this one is. BindError without one.

        A shape goes by its name, too, such as ``3`` or ``5x4x24``; a number means the only one of so many steps.
        """
        if (known := named(self._shapes, shape)) is None:
            raise BindError(f"the program was not compiled for the shape {shape!r}; there is {listed(self._shapes)}")
        return self._shapes[known]

    @property
    def pools(self) -> Mapping[str, Tensor]:
        """The pool rows themselves, by carried field, T[P, ...], of all shapes, in one place; row 0 is for padding.

        Who writes a row writes the state of its request.
        """
        return MappingProxyType(self._pools)

    @property
    def torn(self) -> frozenset[int]:
        """Pool rows, at all shapes, that a call which raised has left halfway.

        Until their prefill, or `write_carry`, a call that reads their state raises TornError.
        """
        return frozenset(self._torn.rows)

    @property
    def memory(self) -> Memory:
        """The device memory that the step holds."""
        return Memory.of(self._plan, self._arena, self._graphs.bytes if self._graphs else {})

    @property
    def replays(self) -> Replays:
        """How often graphs were replayed, at all shapes together, and what was not; all zero without capture."""
        counts = [step._graphs.replays for step in self._shapes.values() if step._graphs]
        return Replays(sum(count.replayed for count in counts), sum((count.moved for count in counts), Counter[str]()))

    def capture(self, how: Literal[True, "segments"] = True) -> None:
        """Capture the CUDA graphs that `decode` replays from then on, of all shapes; see `Program.bind`.

        For engines whose forwards cannot run while they bind: captures run them on padding rows, and change no row.
        BindError when it is done already, not on CUDA, not as the plan has it, or when a table has moved.
        """
        if not isinstance(how, bool | str) or how not in (True, "segments"):
            raise BindError(f"what to capture is True or 'segments', got {how!r}")
        if any(step._graphs for step in self._shapes.values()):
            raise BindError("the step has been captured already")
        captured: list[Graphs | SegmentGraphs] = []
        for step in self._shapes.values():
            beside = captured[0].recorder if captured else None
            captured.append(step._captured(beside, segments=how == "segments"))
        for step, graphs in zip(self._shapes.values(), captured, strict=True):
            step._graphs = graphs

    def decode(
        self, batch: Batch, *, at_least: int = 0, on_commit: Callable[[Tensor], object] | None = None
    ) -> StepResult:
        """One decode step of the batch's requests, each prefilled before.

        Args:
            batch: lengths may be None when the program relays them.
            at_least: run the bucket that holds the batch and this many rows, filled up with padding rows, also when the
                batch is empty. With 0 a captured step runs the batch's own bucket, any other its rows as they are, and
                an empty batch does not run.
            on_commit: called with the new lengths i64[b], the result's `new_seq_lens`, as soon as all that computes
                them has been queued, once; not for an empty batch. Without a graph of the whole step that is before
                what follows verification, so that a scheduler may go on with them.

        Raises BatchError on a batch that cannot run, of these TornError when a row of it is torn, ForwardContractError
        when a callback breaks its contract, BindError when `req_to_token` or a table has moved under a captured step,
        or KV buffers that kernels touch have, and whatever a callback or `on_commit` raises. Whoever raises before
        state is written, leaves it as it was: the step may be run again. Afterwards the rows of the batch are torn.

        """
        columns = self._read("step", batch)
        rows, (at_least,) = len(columns[ROWS]), integers([at_least], "at_least")
        if rows == 0 and at_least == 0:
            return StepResult(self._outputs("step", self._frame(0), 0))
        size = self._size(max(rows, at_least)) if at_least or self._graphs else rows
        self._torn.check(columns[ROWS])
        progress = Progress(self._stores, self._on_commit(on_commit, rows))
        sent = self._sent(columns[ROWS])
        with self._on_device(), self._torn.unless_done(sent, lambda: progress.begun):
            self._kv.check_place()
            if self._graphs is not None:
                self._guard.check()
            self._staging["step"].send(columns, size)
            graphs = self._graphs
            frame = graphs.replay(size, progress) if graphs else self._run("step", self._frame(size), progress)
            return StepResult(self._outputs("step", frame, rows))

    def prefill(self, batch: Batch, *, run_idle: bool = False) -> PrefillResult:
        """Prefill target and draft for the batch's prompts; `bonus` is the first token of every request.

        A batch may have as many requests as the largest bucket of any shape holds, whichever shape this one is of.
        `set_sampling` comes first where the program samples, again after a prefill that failed: otherwise this raises
        SamplingError.
        `batch.seq_lens` are the prompt lengths, as integers. With `run_idle` an empty batch calls all forwards, with 0
        rows and 0 tokens, instead of none. Raises BatchError and ForwardContractError as `decode`, and BindError when
        the callbacks lack a method of the prefill. When a forward raises, the rows of the batch are torn.
        """
        if (widest := self._widest()) is not self:
            return widest.prefill(batch, run_idle=run_idle)
        check_callbacks(self._plan, self._callbacks, "prefill")
        columns = self._read("prefill", batch)
        rows, lengths = len(columns[ROWS]), columns[LENGTHS]
        if isinstance(lengths, Tensor):
            raise BatchError("prefill needs the batch's seq_lens as integers, not as a tensor: it adds them up")
        tokens = sum(lengths)
        if rows == 0 and not run_idle:
            return PrefillResult(self._outputs("prefill", self._frame(0), 0))
        progress = Progress(frozenset(node.name for node in self._plan.nodes("prefill")))
        sent = self._sent(columns[ROWS])
        with self._prefilling(columns[ROWS], progress), self._torn.unless_done(sent, lambda: progress.begun):
            given = batch.prompt_tokens
            prompt = {} if given is None else {PROMPT: prompt_tokens(given, tokens, self._plan.size("V"), self._device)}
            self._staging["prefill"].send(columns, rows)
            frame = self._run("prefill", self._frame(rows, tokens, prompt), progress)
            self._torn.mend(sent)
            return PrefillResult(self._outputs("prefill", frame, rows))

    def read_carry(self, rows: Sequence[int] | Tensor) -> Carry:
        """A copy of the state of pool rows. BatchError for one out of range or repeated, TornError for a torn one.

        Rows may be i64[n] on the device: then nobody waits for them, and their values are the engine's word.
        """
        return self._relay.read(rows)

    def write_carry(self, rows: Sequence[int] | Tensor, carry: Carry) -> None:
        """Put row i of `carry` into pool row `rows[i]`, which is not torn then.

        CarryError or BatchError, and no change, if it cannot.
        Rows as for `read_carry`: with integers, which are sent to the device and waited for, values beyond the limits
        of their fields are a FieldError; with a tensor they are the engine's word, like the rows.
        """
        self._relay.write(rows, carry)

    def _first_shape(self) -> Self:
        """The step of the shape that was bound first, the deepest."""
        return next(iter(self._shapes.values()), self)

    def _widest(self) -> Self:
        """The step that prefills for all: of the shapes with the largest bucket the deepest."""
        return max(self._shapes.values(), key=lambda step: (step._plan.buckets[-1], step.shape))

    def _brought(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the program reads besides the request table, by name. BindError as `check_tables`."""
        if self._first_shape() is not self:
            tables = {name: table for name, table in tables.items() if name in self._plan.tables()}
        return check_tables(self._plan, self._device, tables, len(self._table))

    def _moved(self, kv_pools: Mapping[str, Sequence[Tensor]], state_pools: Parts) -> KvRows:
        """What kernels touch of the engine's pools: nothing. BindError for what the program does not know."""
        check_names("kv_pools", kv_pools, self._plan.kv_pools, "the program knows the KV buffers of")
        check_names("state_pools", state_pools, (), "the program commits the states of")
        return KvRows()

    @contextlib.contextmanager
    def _prefilling(self, rows: list[int] | Tensor, progress: Progress) -> Iterator[None]:
        """What surrounds the prefill of requests in pool rows; in it nodes are queued."""
        with self._on_device():
            yield

    def _size(self, rows: int) -> int:
        """The bucket that holds so many rows."""
        if rows < 0:
            raise BatchError(f"at least {rows} rows")
        self._hold(rows, "at least {} rows")
        return self._plan.bucket(rows)

    def _read(self, entry: str, batch: Batch) -> dict[str, list[int] | Tensor]:
        """The columns of a batch that an entry runs. BatchError when it cannot."""
        columns = self._columns[entry].of(batch)
        self._hold(len(columns[ROWS]))
        return columns

    def _hold(self, rows: int, what: str = "{} requests") -> None:
        """BatchError, which names the shapes that hold them, for more rows than this one holds."""
        if rows <= self._plan.buckets[-1]:
            return
        others = [shape for shape, buckets in self.buckets.items() if buckets[-1] >= rows]
        whose = f" of the shape {self.shape} holds" if len(self._shapes) > 1 else " holds"
        able = f"; {listed(others)} {'hold' if len(others) > 1 else 'holds'} them" if others else ""
        raise BatchError(f"{what.format(rows)}, the largest bucket{whose} {self._plan.buckets[-1]}{able}")

    def _frame(self, rows: int, ragged: int = 0, prompt: Mapping[str, Tensor] | None = None) -> Frame:
        inputs = {**self._tables, **(prompt or {})}
        return Frame(self._plan, self._arena, self._pools, self._table, rows, ragged, self._kv.buffers, inputs)

    def _run(self, entry: str, frame: Frame, progress: Progress | None = None) -> Frame:
        """Run the nodes of an entry in order, on the current stream."""
        progress = progress or Progress()
        for node in self._plan.nodes(entry):
            progress.queue((node.name,), frame, partial(self._execute, node, frame))
        return frame

    def _sent(self, rows: list[int] | Tensor) -> list[int] | Tensor:
        """The rows of a batch where nobody else writes: an engine may use its tensor for the next one meanwhile."""
        return rows if isinstance(rows, list) else self._arena.view(ROWS, len(rows))

    def _on_commit(self, on_commit: Callable[[Tensor], object] | None, rows: int) -> After | None:
        """Call it with the new lengths of so many rows."""
        if on_commit is None or rows == 0:
            return None
        if not callable(on_commit):
            raise BatchError(f"on_commit is a {type(on_commit).__name__}, which cannot be called")
        node, value = self._commit
        return After(node, lambda frame: on_commit(frame.output(value, rows)))

    @cached_property
    def _commit(self) -> tuple[str, str]:
        """The node after which the new lengths are there, and the value that has them."""
        value = self._plan.output(NEW_LENGTHS, "step").value
        return self._plan.producer(value).name, value

    def _dispatch(self, node: Node, frame: Frame) -> None:
        if isinstance(node, External):
            return call(node, frame, self._callbacks)
        assert isinstance(node, Launch | Reference)  # `check_held`: capabilities execute all others
        return self._backend.launch(node, frame)

    def _outputs(self, entry: str, frame: Frame, rows: int) -> dict[str, Tensor]:
        outputs = [output for output in self._plan.outputs if output.entry == entry]
        return {output.name: frame.output(output.value, rows) for output in outputs}

    def _idle(self) -> None:
        """Make the inputs a batch of padding rows."""
        self._staging["step"].send({name: [] for name in self._columns["step"].inputs}, 0)

    def _captured(self, beside: Recorder | None, *, segments: bool) -> Graphs | SegmentGraphs:
        """Graphs of this shape, in the memory pool of another's."""

        def run(bucket: int) -> Frame:
            return self._run("step", self._frame(bucket))

        self._kv.check_place()
        self._guard.check()
        with self._on_device():
            if not segments:
                check_capturable(self._plan)
            if segments or self._plan.restricts:
                graphs = self._plan.segments if segments else self._plan.captures
                return SegmentGraphs(self._plan, graphs, self._device, self._frame, self._execute, self._idle, beside)
            return Graphs(self._plan, self._device, run, self._idle, beside)

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        guard = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        with guard, torch.no_grad():
            yield
