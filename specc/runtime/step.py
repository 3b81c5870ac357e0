"""A bound program: memory, callbacks, and the entries `prefill` and `decode`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from .arena import Arena
from .backends import Backend
from .batch import Batch, check_lengths, check_rows
from .capture import Graphs, TableGuard
from .carry import Carry
from .errors import BatchError, BindError
from .external import call, check_callbacks
from .frame import Frame
from .kv_pools import KvPools
from .plan import External, Plan
from .relay import Relay, RelayPools
from .result import StepResult
from .staging import Staging

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
        capture: whether decode replays CUDA graphs; they are captured here.
        poison: see `Arena`.

    """

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        device: torch.device,
        callbacks: object,
        req_to_token: Tensor,
        kv_pools: Mapping[str, Sequence[Tensor]] | None = None,
        *,
        capture: bool = False,
        poison: int | None = None,
    ) -> None:
        """Allocate the arena and, with `capture`, capture. BindError when callbacks, table or KV buffers do not fit."""
        check_callbacks(plan, callbacks)
        _check_table(plan, device, req_to_token)
        self._plan = plan
        self._backend = backend
        self._device = device
        self._callbacks = callbacks
        self._table = req_to_token
        self._kv = KvPools(plan, device, kv_pools or {})
        self._arena = Arena(plan, device, poison)
        self._kv.write_pointers(self._arena)
        self._pools = RelayPools(plan, self._arena)
        self._relay = Relay(plan, self._pools)
        self._inputs = {entry: plan.written_inputs(entry) for entry in ENTRIES}
        self._staging = {entry: Staging(plan, self._arena, self._inputs[entry]) for entry in ENTRIES}
        self._guard = TableGuard(req_to_token)
        self._graphs = self._capture() if capture else None

    def decode(self, batch: Batch, *, padded: bool = False, run_idle: bool = False) -> StepResult:
        """One decode step of the batch's requests, each prefilled before.

        Args:
            batch: lengths may be None when the program relays them.
            padded: run the bucket that holds the batch, with padding rows, as a captured step always does.
            run_idle: run an empty batch as the smallest bucket of padding rows instead of not at all.

        Raises BatchError on a batch that cannot run, ForwardContractError when a callback breaks its contract, and
        BindError when `req_to_token` has moved under a captured step, or KV buffers that kernels touch have.

        """
        columns = self._columns("step", batch)
        rows = len(columns[ROWS])
        if rows == 0 and not run_idle:
            return self._result("step", self._frame(0), 0)
        whole = padded or rows == 0 or self._graphs is not None
        size = self._plan.bucket(rows) if whole else rows
        with self._on_device():
            self._kv.check_place()
            if self._graphs is not None:
                self._guard.check()
            self._staging["step"].send(columns)
            frame = self._graphs.replay(size) if self._graphs else self._run("step", self._frame(size))
        return self._result("step", frame, rows)

    def prefill(self, batch: Batch) -> StepResult:
        """Prefill target and draft for the batch's prompts; `bonus` is the first token of every request.

        `batch.seq_lens` are the prompt lengths. Raises BatchError and ForwardContractError as `decode`.
        """
        columns = self._columns("prefill", batch)
        rows = len(columns[ROWS])
        if rows == 0:
            return self._result("prefill", self._frame(0), 0)
        with self._on_device():
            self._staging["prefill"].send(columns)
            frame = self._run("prefill", self._frame(rows, ragged=sum(columns[LENGTHS])))
        return self._result("prefill", frame, rows)

    def read_carry(self, rows: Sequence[int]) -> Carry:
        """A copy of the state of pool rows `rows`. BatchError when one is out of range or repeated."""
        return self._relay.read(rows)

    def write_carry(self, rows: Sequence[int], carry: Carry) -> None:
        """Put row i of `carry` into pool row `rows[i]`. CarryError or BatchError, and no change, if it cannot."""
        self._relay.write(rows, carry)

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
        return columns

    def _frame(self, rows: int, ragged: int = 0) -> Frame:
        return Frame(self._plan, self._arena, self._pools, self._table, rows, ragged, self._kv.buffers)

    def _run(self, entry: str, frame: Frame) -> Frame:
        """Run the nodes of an entry in order, on the current stream."""
        for node in self._plan.nodes(entry):
            if isinstance(node, External):
                call(node, frame, self._callbacks)
            else:
                self._backend.launch(node, frame)
        return frame

    def _result(self, entry: str, frame: Frame, rows: int) -> StepResult:
        outputs = [output for output in self._plan.outputs if output.entry == entry]
        return StepResult({output.name: frame.output(output.value, rows) for output in outputs})

    def _capture(self) -> Graphs:
        with self._on_device():
            idle = {name: list[int]() for name in self._inputs["step"]}
            return Graphs(
                self._plan,
                self._device,
                run=lambda bucket: self._run("step", self._frame(bucket)),
                idle=lambda: self._staging["step"].send(idle),
            )

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        guard = torch.cuda.device(self._device) if self._device.type == "cuda" else contextlib.nullcontext()
        with guard, torch.no_grad():
            yield


def _check_table(plan: Plan, device: torch.device, table: Tensor) -> None:
    if table.dtype != torch.int32 or table.dim() != 2 or table.stride(1) != 1:
        layout = f"{table.dtype}{list(table.shape)} with strides {list(table.stride())}"
        raise BindError(f"req_to_token must be int32 [P, C] with adjacent columns, got {layout}")
    if table.shape[0] != plan.size("P"):
        raise BindError(f"req_to_token has {table.shape[0]} rows, the program has {plan.size('P')} pool rows")
    if table.device != device:
        raise BindError(f"req_to_token is on {table.device}, the program on {device}")
