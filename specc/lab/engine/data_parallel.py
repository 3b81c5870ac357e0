"""Data parallel: the engines of several ranks step together, since their forwards wait for each other.

docs/data-parallel.md shows how to run them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, Protocol
from zlib import crc32

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from specc.lab.engine.disaggregation.distributed import plain_errors
from specc.lab.engine.engine import Engine
from specc.lab.engine.errors import LockStepError
from specc.lab.engine.serving.requests.request import Completion, Request
from specc.runtime import FixedShape
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape


class Peers(Protocol):
    """All ranks of a group, seen from one of them. Anything with these two does."""

    @property
    def rank(self) -> int:
        """The number of this one."""
        ...

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """The largest over all ranks of each number; every rank gives as many, as often, and all get the same.

        Raises ConnectionError or TimeoutError when some rank does not.
        """
        ...


class GroupPeers:
    """The ranks of a process group of torch.distributed that moves tensors on the host, as gloo does.

    No other collective may use the group: make one with `torch.distributed.new_group(backend="gloo")`.
    """

    def __init__(self, group: ProcessGroup) -> None:
        """group: its timeout says how long a rank waits for the others."""
        self._group = group

    @property
    def rank(self) -> int:
        """The number of this rank in the group."""
        return self._group.rank()

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """As `Peers.largest`, in one all-reduce."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        with plain_errors():
            self._group.allreduce([tensor], dist.ReduceOp.MAX).wait()
        return tensor.tolist()


class Round(NamedTuple):
    """What a rank has to do in a round, or the most that any has.

    prefill, decode: rows. shape: its place among those of the program, ascending. working: 1 if it has any request.
    leaving: its number, from 1 on, if it leaves.
    """

    prefill: int = 0
    decode: int = 0
    shape: int = 0
    working: int = 0
    leaving: int = 0


class LockStep:
    """One rank's engine, which launches what the others launch, whether it has requests for it or not.

    In every round the ranks agree on one prefill, one decode step in one bucket and as deep as any of them wants, or
    nothing; a round with a prefill is followed by one without. Use it as a context: whoever leaves tells the others.

    has_work: whether any rank had a request in the last round, true before the first. All ranks have it alike.
    """

    def __init__(self, engine: Engine, peers: Peers) -> None:
        """Join the others, which must do so too; `engine` is stepped by nobody else.

        Raises LockStepError when their programs do not call the same forwards in the same buckets, or when they cannot
        be reached.
        """
        self.engine, self.peers = engine, peers
        self.has_work, self._shapes = True, sorted(engine.program.plans)
        self._over = self._prefilled = False
        with self._or_over():
            number = _number(engine.program)
            if peers.largest([number, -number]) != [number, -number]:
                raise LockStepError("the ranks' programs call other forwards, or have other buckets")

    def step(self) -> list[Completion]:
        """One round: agree, launch, read as `Engine.step` does; returns what finished here.

        Raises StepFailedError as `Engine.step`. When it comes of the launch, others may wait for a forward that this
        rank will not call, so lock-step is over, and every further step raises LockStepError. In any other case the
        next step goes on. Raises LockStepError, in the same round on all ranks that are left, when one has left.
        """
        if self._over:
            raise LockStepError("lock-step is over")
        engine = self.engine
        fresh = [] if self._prefilled else engine.admit()
        due = [] if fresh else engine.due()
        shape = self._shapes.index(engine.shape.choose(len(due))) if due else 0
        agreed = self._agree(Round(len(fresh), len(due), shape, int(engine.has_work)), fresh, due)
        self.has_work, self._prefilled = agreed.working > 0, agreed.prefill > 0
        most = agreed.prefill or agreed.decode
        if most:
            with self._or_over():
                engine.launch(fresh if self._prefilled else due, shape=self._shape(agreed), at_least=most)
        engine.read(keep=engine.ahead if most else 0)
        return engine.collect()

    def run(self) -> Iterator[Completion]:
        """Step until no rank has work; yields what finishes here."""
        while self.has_work:
            yield from self.step()

    def close(self) -> None:
        """Leave, which the others learn in their next round. When all leave at once, nobody is told anything."""
        if not self._over:
            self._over = True
            with suppress(ConnectionError, TimeoutError):
                self.peers.largest(Round(leaving=1 + self.peers.rank))

    def __enter__(self) -> LockStep:
        """Return itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Leave, whatever happened."""
        self.close()

    def _shape(self, agreed: Round) -> Shape | None:
        """What all ranks decode at: the deepest that any chose, or one that holds the most requests of any."""
        if agreed.prefill:
            return None
        return FixedShape(self._shapes[agreed.shape], self.engine.program.buckets).choose(agreed.decode)

    def _agree(self, mine: Round, fresh: Sequence[Request], due: Sequence[Request]) -> Round:
        """What all ranks do in this round; without an answer, requests that were to be prefilled wait again.

        fresh, due: those that this rank would prefill, or decode.
        """
        try:
            with self._or_over():
                agreed = Round(*self.peers.largest(mine))
                if agreed.leaving:
                    raise LockStepError(f"rank {agreed.leaving - 1} has left")
        except BaseException:
            self.engine.scheduler.expel(fresh)
            raise
        return agreed

    @contextmanager
    def _or_over(self) -> Iterator[None]:
        """Whatever is raised in the block ends lock-step: nobody knows where the other ranks are."""
        try:
            yield
        except BaseException as error:
            self._over = True
            if isinstance(error, ConnectionError | TimeoutError):
                raise LockStepError(f"the other ranks cannot be reached: {error}") from error
            raise


def _number(program: Any) -> int:
    """A number that tells apart programs whose forwards, or the shapes of whose forwards, differ."""
    shapes = [_shape(plan) for plan in program.plans.values()]
    return crc32(repr(shapes).encode())


def _shape(plan: Plan) -> tuple[object, ...]:
    """The forwards of a step, and what decides their shapes."""
    forwards = tuple((node.callback, node.step) for node in plan.externals())
    return forwards, plan.buckets, plan.size("K"), plan.size("A"), plan.serving.reach
