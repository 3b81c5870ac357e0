"""A bound program whose target the engine runs: a step is two calls, `commit` and `propose`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Literal, NoReturn

import torch
from torch import Tensor

from .batch import Batch, integers
from .capabilities.given_rows import share
from .entry.columns import ROWS
from .entry.external import checked
from .entry.frame import Frame, Progress
from .entry.result import PrefillResult, ProposeResult, StepResult
from .errors import BatchError, BindError
from .graphs.capture import Recorder, check_capturable
from .graphs.segments import SegmentGraphs
from .memory.tables import plain_fault
from .plan.fields import row_stride
from .plan.halves import forwards, halves
from .plan.nodes import Capture, Given, Node, Reference
from .plan.outputs import PROPOSE
from .plan.plan import Plan
from .plan.shape import Shape
from .semantics.convention import DTYPES
from .step import Step

LOGITS, HIDDEN = "logits", "hidden"
PACKED = "G"
"""The axis of rows that follow each other, as many of each request as the engine says."""
MAKE = "make_"
"""The beginning of the names of methods by which callbacks make what is not handed over."""
ENDS = {"committed": (0, "step"), "proposed": (-1, PROPOSE)}
"""Methods that callbacks may have, called behind a half, or behind its last stretch, with rows and outputs by name."""


@dataclass(frozen=True)
class _Open:
    """A batch that has been committed, and not proposed yet: its rows, and the run that goes on."""

    rows: list[int] | Tensor
    frame: Frame


class RotatedStep(Step):
    """One program bound to an engine that runs the target by itself. Made by `Program.bind`; not thread safe.

    A step of a batch is a forward of the target over bonus and drafts of every request, by the engine; `commit`, which
    takes the logits; `propose` of the same batch, which drafts for the next step. Requests come in by `prefill`, or by
    `write_carry`; drafts of -1 are never accepted. Of several shapes, `commit` and `propose` are those of the step of
    one shape, which verifies as many drafts as it has; `propose` is told the shape of the next step.

    Callbacks that have the methods `make_logits(tokens=n)` or `make_hidden(tokens=n)` make what is not handed over,
    T[n, ...] of the target's last forward, and a graph holds what they queue. With `committed(rows=..., **outputs)` the
    first half ends, and with `proposed(rows=..., **outputs)` drafts for the deepest shape, rows of padding included,
    which are 0.
    """

    _open: _Open | None = None
    _captured_makes: frozenset[str] = frozenset()
    """The names of what graphs make of what an engine may hand over."""
    _largest: int | None = None
    _given: Mapping[str, Tensor] = {}
    _live = 0

    def decode(self, batch: Batch, **_: object) -> NoReturn:
        """BatchError: the engine runs the target of this program."""
        raise BatchError("this program does not run the target: commit its logits, then propose")

    def prefill(self, batch: Batch, *, run_idle: bool = False) -> PrefillResult:
        """As `Step.prefill`, which drafts, too. BatchError between the halves of a step."""
        self._check_closed("prefill")
        return super().prefill(batch, run_idle=run_idle)

    def commit(
        self,
        batch: Batch,
        logits: Tensor | None = None,
        *,
        at_least: int = 0,
        on_commit: Callable[[Tensor], object] | None = None,
    ) -> StepResult:
        """Accept drafts by the target's logits T[n, A, V] of every request's bonus and drafts, in this order.

        Args:
            batch: as for `Step.decode`; every request was prefilled or written, and proposed for if it has had a step.
            logits: of the rows of the batch, and of any behind them, which are not read. They may be T[n * A, V] as
                well, and of a batch with `verify_lens` they are T[n, V], the rows of one request behind those of
                another. Read in place, until `propose` has run, from rows as far apart as the plan has them: V
                elements, or the target's `padded_vocab_size`. None: the callbacks make them.
            at_least: as of `Step.decode`.
            on_commit: as of `Step.decode`.

        The result is valid until the next `commit`, so that its copy to the host may run beside `propose`. Raises as
        `Step.decode`, and BatchError when the last batch has not been proposed for, or nobody has logits.

        """
        self._check_closed("commit")
        if logits is None and LOGITS not in self._makes:
            raise BatchError(f"commit needs the logits: callbacks have no method {MAKE}{LOGITS}")
        columns = self._read("step", batch)
        rows, (at_least,) = len(columns[ROWS]), integers([at_least], "at_least")
        size = self._padded(rows, at_least)
        self._torn.check(columns[ROWS])
        progress, sent = Progress(self._stores, self._on_commit(on_commit, rows)), self._sent(columns[ROWS])
        frame = self._frame(size)
        if size:
            self._given, self._live = {} if logits is None else {LOGITS: logits}, rows
            with self._on_device(), self._torn.unless_done(sent, lambda: progress.begun):
                self._kv.check_place()
                self._staging["step"].send(columns, size)
                self._half(0, frame, progress)
        self._open = _Open(sent, frame)
        return StepResult(self._outputs("step", frame, rows))

    def propose(
        self, batch: Batch, hidden: Tensor | None = None, *, ahead: Shape | str | int | None = None
    ) -> ProposeResult:
        """Draft for the next step of the batch that was committed.

        Args:
            batch: the same requests in the same order.
            hidden: T[n, A, W] or T[n * A, W], the target's hidden states of the forward whose logits were committed,
                where the program reads them; n and rows as of the logits. None: the callbacks make them.
            ahead: the shape of the next step of these requests, by default the same; as for `at`. Of the result's
                drafts i64[b, S] the first ones are drafted, as many as it verifies. What is behind them says nothing.

        BatchError without a commit at this shape, after that of other rows, and for hidden states that lack or are not
        read; BindError for a shape that the program was not compiled for; ForwardContractError when these, or what a
        callback returns, are not as the plan has them. When something raises after that the rows of the batch are torn,
        unless the engine writes all that is carried.

        """
        if self._open is None:
            raise BatchError("propose follows a commit of the same batch, and there was none")
        drafts = (self if ahead is None else self.at(ahead)).shape.num_steps
        columns = self._read("step", batch)
        self._check_same(self._open.rows, columns[ROWS])
        made = hidden is None and HIDDEN in self._makes
        if not made and (hidden is not None) != self.reads_hidden:
            raise BatchError(f"propose {'needs the' if self.reads_hidden else 'does not read'} hidden states")
        frame, sent, rows = self._open.frame, self._sent(columns[ROWS]), len(columns[ROWS])
        if frame.rows:
            self._given = {} if hidden is None else {HIDDEN: hidden}
            if not made:
                self._check_given(frame)
            self._open = None
            with self._on_device(), self._torn.unless_done(sent, lambda: bool(self._stores)):
                self._kv.check_place()
                for half in range(1, self._ends(drafts)):
                    self._half(half, frame, Progress(begun=True))
        self._open = None
        return ProposeResult(self._outputs(PROPOSE, frame, rows))

    def _read(self, entry: str, batch: Batch) -> dict[str, list[int] | Tensor]:
        """As of any step, and which rows each request has, where the engine says it."""
        columns = super()._read(entry, batch)
        return columns | share(self._plan, batch.verify_lens, len(columns[ROWS]), self._device)

    def _dispatch(self, node: Node, frame: Frame) -> None:
        """As of any step, and take what the engine hands over; tell it when a half ends."""
        if isinstance(node, Given):
            take(node, frame, self._made(node, frame) | dict(self._given), self._live)
        else:
            super()._dispatch(node, frame)
        for end, (half, entry) in ENDS.items():
            if node is self._halves[half][-1] and (tell := getattr(self._callbacks, end, None)) is not None:
                tell(rows=frame.output(ROWS, frame.rows), **self._outputs(entry, frame, frame.rows))

    def _made(self, node: Given, frame: Frame) -> dict[str, Tensor]:
        """What callbacks make of what a node takes, and nobody has handed over."""
        tokens = frame.rows * frame.plan.size("A")
        wanted = [name for name in node.results if name not in self._given and name in self._makes]
        return {name: getattr(self._callbacks, MAKE + name)(tokens=tokens) for name in wanted}

    def _padded(self, rows: int, at_least: int) -> int:
        """Return how many rows a step of so many runs over: those of a bucket that is asked for, or that is captured.

        What an engine hands over of the others has no rows of padding, and its forwards see none.
        """
        size = self._size(most) if (most := max(rows, at_least)) else 0
        captured = self._graphs is not None and (self._largest is None or size <= self._largest)
        return size if at_least or captured else rows

    def _check_closed(self, what: str) -> None:
        if any(step._open is not None for step in self._shapes.values()):
            raise BatchError(f"{what} comes after propose of the batch that was committed")

    def _check_same(self, committed: list[int] | Tensor, rows: list[int] | Tensor) -> None:
        """BatchError unless these are the rows that were committed, as far as the host knows."""
        known = isinstance(committed, list) and isinstance(rows, list)
        if len(rows) != len(committed) or (known and rows != committed):
            raise BatchError(f"rows {list(committed)} were committed, and these are {list(rows)}")

    def _check_given(self, frame: Frame) -> None:
        """ForwardContractError for what is handed over in the second half; nothing has run."""
        for node in (node for node in self._halves[1] if isinstance(node, Given)):
            take(node, frame, self._given, self._live)

    @cached_property
    def _makes(self) -> frozenset[str]:
        """The names of what callbacks make of what an engine hands over."""
        names = (name for node in self._plan.nodes("step") if isinstance(node, Given) for name in node.results)
        return frozenset(name for name in names if callable(getattr(self._callbacks, MAKE + name, None)))

    def _with_fronts(self, graphs: Sequence[Capture]) -> list[Capture]:
        """Captures, and in those behind what is made how it is made."""
        self._captured_makes = self._makes - self._given.keys()
        fronts = {
            behind.name: node.name
            for half in self._halves
            for node, behind in pairwise(half)
            if isinstance(node, Given) and node.results.keys() <= self._captured_makes
        }
        heads = ((graph, fronts.get(graph.nodes[0])) for graph in graphs)
        return [graph if front is None else replace(graph, nodes=(front, *graph.nodes)) for graph, front in heads]

    @cached_property
    def _halves(self) -> tuple[tuple[Node, ...], ...]:
        return halves(self._plan)

    def _ends(self, drafts: int) -> int:
        """The half behind the last one that has to run for so many drafts."""
        made = accumulate(map(forwards, self._halves[1:]))
        return next((end for end, count in enumerate(made, start=2) if count >= drafts), len(self._halves))

    @cached_property
    def reads_hidden(self) -> bool:
        """Whether `propose` takes the target's hidden states."""
        return any(isinstance(node, Given) for node in self._halves[1])

    def _half(self, half: int, frame: Frame, progress: Progress) -> None:
        """Run the first half, or a stretch of the second, on the current stream.

        A graph that holds how something is made is of no use where that is handed over.
        """
        if self._graphs is not None:
            self._guard.check()
            assert isinstance(self._graphs, SegmentGraphs)  # `_captured` makes no others
            if self._captured_makes.isdisjoint(self._given):
                self._graphs.replay_half(half, frame, progress)
                return
        for node in self._halves[half]:
            progress.queue((node.name,), frame, partial(self._execute, node, frame))

    def capture(
        self,
        how: Literal[True, "segments"] = True,
        *,
        given: Mapping[str, Tensor] | None = None,
        tokens: int | None = None,
    ) -> None:
        """As `Step.capture`, of buckets whose steps verify up to so many `tokens`; others are launched node by node.

        `given` has what will always be handed over at the same place, `logits` or `hidden`, of the largest bucket: see
        `zeros`. Of several shapes it has enough rows for each, which finds its own by `given_at`. What callbacks make
        beside that is made in the graphs. A graph that reads something else than it was captured with, or makes what is
        handed over, is launched kernel by kernel, and calls its forwards, in every step (the former are
        `replays.moved`). BindError also when that is not what the engine hands over.
        """
        for step in self._shapes.values():
            handed = step.zeros()
            made = step._makes - (given or {}).keys()
            for name, tensor in (given or {}).items():
                expected = {name: list(zeros.shape) for name, zeros in handed.items()}
                if expected.get(name) != list((at := step.given_at(tensor)).shape):
                    raise BindError(f"{name} is given as {list(tensor.shape)}, handed over are {expected}")
                handed[name] = at
            step._given = {name: tensor for name, tensor in handed.items() if name not in made}
            step._largest = None if tokens is None else tokens // step._plan.size("A")
        super().capture(how)

    def given_at(self, tensor: Tensor) -> Tensor:
        """What is handed over to this shape in the largest bucket, T[n, A, ...], at the beginning of a tensor's rows.

        The tensor is T[rows, ...] or T[n, A, ...] of another shape; with too few rows it comes back as it is.
        """
        rows, path = self._plan.buckets[-1], self._plan.size("A")
        flat = tensor.flatten(0, 1) if tensor.dim() > 2 else tensor
        return flat[: rows * path].unflatten(0, (rows, path)) if len(flat) >= rows * path else tensor

    def zeros(self) -> dict[str, Tensor]:
        """What the engine hands over at the largest bucket, `logits` and perhaps `hidden`: new tensors of zeros."""
        nodes = [node for node in self._plan.nodes("step") if isinstance(node, Given)]
        frame, values = self._frame(self._plan.buckets[-1]), self._plan.values
        return {
            result: laid_apart(
                self._plan, name, self._table.new_zeros(frame.shape(name), dtype=DTYPES[values[name].dtype])
            )
            for node in nodes
            for result, name in node.results.items()
        }

    def _captured(self, beside: Recorder | None, *, segments: bool) -> SegmentGraphs:
        """Graphs of both halves, captured over zeros; the engine's own tensors may lie anywhere."""
        self._kv.check_place()
        self._guard.check()
        with self._on_device():
            if not segments:
                check_capturable(self._plan)
            graphs = self._plan.segments if segments else self._plan.captures
            how = self._frame, self._execute, self._idle, beside, self._largest
            return SegmentGraphs(self._plan, self._with_fronts(graphs), self._device, *how)


def take(node: Given, frame: Frame, given: Mapping[str, Tensor], live: int) -> None:
    """Let what the engine hands over of the first `live` rows, or more, stand for the node's values.

    The rows of a request may be an axis of their own, or follow each other as those of all requests do. Kernels do not
    read the rows of padding, so these may lack on CUDA. Raises ForwardContractError.
    """
    for result, value in node.results.items():
        tensor, rows, axes = given.get(result), frame.rows, frame.plan.values[value].axes
        if isinstance(tensor, Tensor) and not plain_fault(tensor):
            packed = PACKED in axes and tensor.dim() == len(axes) - 1
            tensor, live = (_in_rows(frame, value, tensor), 0) if packed else (tensor, live)
            if tensor.dim() == len(axes) - 1 and tensor.shape[0] % frame.dims[axes[1]] == 0:
                tensor = tensor.unflatten(0, (-1, frame.dims[axes[1]]))
            if tensor.dim() == len(axes):
                tensor = tensor[:rows]
                rows = max(live, tensor.shape[0])
        held = checked(f"the engine handed over {result}", frame, value, tensor, rows)
        if rows < frame.rows and not _kernels_alone(frame, held):
            behind = held.new_zeros(frame.rows - rows, *held.shape[1:])
            held = laid_apart(frame.plan, value, torch.cat([held, behind]))
        frame.adopt(value, held)


def _in_rows(frame: Frame, value: str, tensor: Tensor) -> Tensor:
    """Packed rows T[n, ...] as T[b, G, ...]: with zeros behind them, or without those that kernels find behind it."""
    each = frame.dims[PACKED]
    whole, left = divmod(len(tensor), each)
    if left and not (whole and _kernels_alone(frame, tensor)):
        filled = torch.cat([tensor, tensor.new_zeros(each - left, *tensor.shape[1:])])
        return laid_apart(frame.plan, value, filled).unflatten(0, (-1, each))
    return tensor[: whole * each].unflatten(0, (-1, each))


def _kernels_alone(frame: Frame, tensor: Tensor) -> bool:
    """Whether nothing but kernels, which skip rows of padding, reads what is handed over."""
    return tensor.is_cuda and not any(isinstance(node, Reference) for node in frame.plan.nodes("step"))


def laid_apart(plan: Plan, value: str, tensor: Tensor) -> Tensor:
    """The same numbers, in rows as far apart as the plan has those of a value, with NaN between them."""
    row = row_stride(plan, value)
    if tensor.dim() < 2 or row <= tensor.shape[-1]:
        return tensor
    wide = tensor.new_full((*tensor.shape[:-1], row), torch.nan)[..., : tensor.shape[-1]]
    return wide.copy_(tensor)
