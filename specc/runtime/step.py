"""A bound program: memory, callbacks, and the entries `prefill` and `decode`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from .arena import Arena
from .backends import Backend
from .batch import Batch, check_lengths, check_rows
from .capture import Graphs, Replays
from .carry import Carry
from .errors import BatchError, BindError
from .external import call, check_callbacks
from .frame import Frame
from .kv_pools import KvPools
from .memory import Memory
from .plan import PROMPT, TABLE, External, Node, Plan
from .ranges import in_ranges
from .relay import Relay, RelayPools
from .result import StepResult
from .segments import SegmentGraphs
from .staging import Staging
from .tables import TableGuard, check_request_table, check_tables, prompt_tokens
from .transfer import Record, RecordLayout, Requests

ROWS, LENGTHS = "req_pool_indices", "seq_lens"
ENTRIES = ("prefill", "step")


class Step:
    """One program bound to an engine. Made by `Program.bind`; not thread safe.

    Args:
        plan: the program.
        backend: runs its launches.
        device: where its memory is.
        callbacks: the engine's forwards.
        req_to_token: i32[P, C], the KV slot of every position of every pool row; the engine's own tensor.
        kv_pools: the engine's KV buffers by owner, see `KvPools`.
        tables: what else the program reads of the engine's, see `Plan.tables`.
        capture: whether decode replays CUDA graphs, which are captured here: True for one of the whole step, "segments"
            for one of every run of launches between forwards.
        nvtx: whether every node that the host launches or calls is in an NVTX range of its name.
        poison: see `Arena`.
        memory: see `Arena`.
        depths: by num_steps the steps of one binding, which share state and memory; others may be added later.

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
        capture: bool | Literal["segments"] = False,
        nvtx: bool = False,
        poison: int | None = None,
        memory: Tensor | None = None,
        depths: dict[int, Step] | None = None,
    ) -> None:
        """Allocate the arena and, with `capture`, capture.

        BindError when callbacks, tables or KV buffers do not fit.
        """
        check_callbacks(plan, callbacks)
        check_request_table(plan, device, req_to_token)
        self._table, self._tables = req_to_token, check_tables(plan, device, tables or {})
        self._plan = plan
        self._backend = backend
        self._device = device
        self._callbacks = callbacks
        self._kv = KvPools(plan, device, kv_pools or {})
        self._arena = Arena(plan, device, poison, memory)
        self._kv.write_pointers(self._arena)
        self._pools = RelayPools(plan, self._arena)
        self._relay = Relay(plan, self._pools)
        self._layout = RecordLayout.of(plan)
        self._inputs = {entry: plan.written_inputs(entry) for entry in ENTRIES}
        self._reads_prompt = {entry: PROMPT in plan.reads(entry) for entry in ENTRIES}
        self._staging = {entry: Staging(plan, self._arena, self._inputs[entry]) for entry in ENTRIES}
        self._guard = TableGuard({TABLE: req_to_token, **self._tables})
        self._execute = in_ranges(self._dispatch) if nvtx else self._dispatch
        self._depths = {self.num_steps: self} if depths is None else depths
        self._graphs: Graphs | SegmentGraphs | None = None
        if capture:
            self._graphs = self._capture(segments=capture == "segments")

    @property
    def num_steps(self) -> int:
        """S: how many steps it drafts."""
        return self._plan.size("S")

    def at(self, num_steps: int) -> Step:
        """The step of another depth of the same binding: what one leaves of a request, the other goes on with.

        BindError when the program was not compiled for it.
        """
        if num_steps not in self._depths:
            known = ", ".join(map(str, sorted(self._depths)))
            raise BindError(f"the program was not compiled for num_steps {num_steps}; there is {known}")
        return self._depths[num_steps]

    @property
    def memory(self) -> Memory:
        """The device memory that the step holds."""
        return Memory.of(self._plan, self._arena, self._graphs.bytes if self._graphs else {})

    @property
    def replays(self) -> Replays:
        """How often graphs were replayed, at all depths together, and what was not; all zero without capture."""
        found = [step._graphs.replays for step in self._depths.values() if step._graphs]
        return Replays(sum(one.replayed for one in found), sum((one.moved for one in found), Counter[str]()))

    def decode(self, batch: Batch, *, at_least: int = 0) -> StepResult:
        """One decode step of the batch's requests, each prefilled before.

        Args:
            batch: lengths may be None when the program relays them.
            at_least: run the bucket that holds the batch and this many rows, filled up with padding rows, also when the
                batch is empty. With 0 a captured step runs the batch's own bucket, any other its rows as they are, and
                an empty batch does not run.

        Raises BatchError on a batch that cannot run, ForwardContractError when a callback breaks its contract, and
        BindError when `req_to_token` or a table has moved under a captured step, or KV buffers that kernels touch have.

        """
        columns = self._columns("step", batch)
        rows = len(columns[ROWS])
        if rows == 0 and at_least == 0:
            return self._result("step", self._frame(0), 0)
        size = self._size(max(rows, at_least)) if at_least or self._graphs else rows
        with self._on_device():
            self._kv.check_place()
            if self._graphs is not None:
                self._guard.check()
            self._staging["step"].send(columns)
            frame = self._graphs.replay(size) if self._graphs else self._run("step", self._frame(size))
        return self._result("step", frame, rows)

    def prefill(self, batch: Batch, *, run_idle: bool = False) -> StepResult:
        """Prefill target and draft for the batch's prompts; `bonus` is the first token of every request.

        `batch.seq_lens` are the prompt lengths. With `run_idle` an empty batch calls all forwards, with 0 rows and 0
        tokens, instead of none. Raises BatchError and ForwardContractError as `decode`.
        """
        columns = self._columns("prefill", batch)
        rows, tokens = len(columns[ROWS]), sum(columns[LENGTHS])
        if rows == 0 and not run_idle:
            return self._result("prefill", self._frame(0), 0)
        with self._on_device():
            given = batch.prompt_tokens
            prompt = {} if given is None else {PROMPT: prompt_tokens(given, tokens, self._device)}
            self._staging["prefill"].send(columns)
            frame = self._run("prefill", self._frame(rows, tokens, prompt))
        return self._result("prefill", frame, rows)

    def read_carry(self, rows: Sequence[int]) -> Carry:
        """A copy of the state of pool rows `rows`. BatchError when one is out of range or repeated."""
        return self._relay.read(rows)

    def write_carry(self, rows: Sequence[int], carry: Carry) -> None:
        """Put row i of `carry` into pool row `rows[i]`. CarryError or BatchError, and no change, if it cannot."""
        self._relay.write(rows, carry)

    def pack(self, rows: Sequence[int]) -> Tensor:
        """The state of pool rows `rows` as records u8[n, record_bytes] on the device. BatchError as `read_carry`."""
        return self._layout.pack(self.read_carry(rows))

    def unpack(self, records: Record) -> Carry:
        """The carry of records that `pack` made, anywhere. RecordError, see `RecordLayout.unpack`."""
        return self._layout.unpack(records, self._device)

    def build_draft_input(self, requests: Requests) -> Carry:
        """As `Program.build_draft_input`."""
        return self._layout.build_draft_input(requests, self._device)

    def _columns(self, entry: str, batch: Batch) -> dict[str, list[int]]:
        """The batch as checked lists of integers, by input name."""
        rows = check_rows(batch.req_pool_indices, self._plan.size("P"))
        if len(rows) > self._plan.buckets[-1]:
            raise BatchError(f"{len(rows)} requests, the largest bucket holds {self._plan.buckets[-1]}")
        columns = {ROWS: rows}
        room = self._table.shape[1]
        if entry == "step":
            room = min(room - int(self._plan.kv["window"]), self._plan.kv["longest"] or room)
        if batch.seq_lens is not None:
            columns[LENGTHS] = check_lengths(batch.seq_lens, rows, room)
        elif entry == "prefill" or LENGTHS in self._inputs[entry]:
            raise BatchError(f"{entry} needs the batch's seq_lens")
        if (batch.prompt_tokens is not None) != self._reads_prompt[entry]:
            needed = "needs the batch's" if self._reads_prompt[entry] else "does not read"
            raise BatchError(f"{entry} {needed} {PROMPT}")
        return columns

    def _size(self, rows: int) -> int:
        """The bucket that holds so many rows."""
        if rows > self._plan.buckets[-1]:
            raise BatchError(f"at least {rows} rows, the largest bucket holds {self._plan.buckets[-1]}")
        return self._plan.bucket(rows)

    def _frame(self, rows: int, ragged: int = 0, prompt: Mapping[str, Tensor] | None = None) -> Frame:
        inputs = {**self._tables, **(prompt or {})}
        return Frame(self._plan, self._arena, self._pools, self._table, rows, ragged, self._kv.buffers, inputs)

    def _run(self, entry: str, frame: Frame) -> Frame:
        """Run the nodes of an entry in order, on the current stream."""
        for node in self._plan.nodes(entry):
            self._execute(node, frame)
        return frame

    def _dispatch(self, node: Node, frame: Frame) -> None:
        if isinstance(node, External):
            call(node, frame, self._callbacks)
        else:
            self._backend.launch(node, frame)

    def _result(self, entry: str, frame: Frame, rows: int) -> StepResult:
        outputs = [output for output in self._plan.outputs if output.entry == entry]
        return StepResult({output.name: frame.output(output.value, rows) for output in outputs})

    def _capture(self, *, segments: bool) -> Graphs | SegmentGraphs:
        def idle() -> None:
            self._staging["step"].send({name: [] for name in self._inputs["step"]})

        def run(bucket: int) -> Frame:
            return self._run("step", self._frame(bucket))

        others = [other._graphs for other in self._depths.values()]
        beside = next((graphs.recorder for graphs in others if graphs is not None), None)
        with self._on_device():
            if segments:
                return SegmentGraphs(self._plan, self._device, self._frame, self._execute, idle, beside)
            return Graphs(self._plan, self._device, run, idle, beside)

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        guard = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        with guard, torch.no_grad():
            yield
