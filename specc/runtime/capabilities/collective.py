"""What the ranks of a program with sharded logits do together: gather records, and compare what they run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..bound import BoundStep
from ..entry.frame import Frame
from ..errors import BindError, CollectiveError
from ..plan.nodes import Collective as Gather
from ..plan.nodes import Node
from ..plan.plan import RANK, Plan
from ..ranks import Collective

DIGEST_WORDS = 4


class GroupCollective:
    """The ranks of a process group of torch.distributed, by default that of all processes: gloo, or NCCL on CUDA.

    The timeout of the group says how long a rank waits for the others.
    """

    def __init__(self, group: Any = None) -> None:
        """BindError when torch.distributed has not been initialised."""
        if not dist.is_initialized():
            raise BindError("logits are sharded: initialise torch.distributed on every rank, or give a collective")
        self._group = group

    @property
    def rank(self) -> int:
        """The number of this rank in the group."""
        return dist.get_rank(self._group)

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return dist.get_world_size(self._group)

    def all_gather(self, out: Tensor, record: Tensor) -> None:
        """As `Collective.all_gather`."""
        with _typed_errors():
            # torch 2.14 has given it another name, and warns of the old one.
            all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            all_gather(out.view(-1), record.view(-1), group=self._group)


@contextmanager
def _typed_errors() -> Iterator[None]:
    """torch.distributed raises RuntimeError and its own classes, whatever is the matter."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CollectiveError(f"the ranks cannot gather their records: {first}") from error


class ShardedStep(BoundStep):
    """A step of one rank of several, or of a program that may have several."""

    def _brought(self, tables: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As of any step, and the number of the rank."""
        return super()._brought(tables) | rank_table(self._plan, self._collective, self._device)

    def _dispatch(self, node: Node, frame: Frame) -> None:
        """As of any step, and gather records."""
        if isinstance(node, Gather):
            return gather(node, frame, self._collective)
        return super()._dispatch(node, frame)


def rank_table(plan: Plan, collective: Collective | None, device: torch.device) -> dict[str, Tensor]:
    """The table of the rank's number, of a program with sharded logits. BindError for several ranks of whom none is."""
    if plan.ranks > 1 and collective is None:
        raise BindError(f"the program is of {plan.ranks} ranks, and is given no collective")
    number = collective.rank if collective is not None else 0
    return {RANK: torch.tensor([number], dtype=torch.int64, device=device)} if RANK in plan.inputs else {}


def gather(node: Gather, frame: Frame, collective: Collective | None) -> None:
    """Run a node: give the other ranks this one's record, and get theirs."""
    assert collective is not None  # `rank_table` has asked for it
    for call in node.ops:
        (record,), (records,) = call.operands, call.results
        collective.all_gather(frame.read(records), frame.read(record))


def check_ranks(collective: Collective, ranks: int, digest: str, device: torch.device) -> None:
    """Compare with all ranks what they run; every rank must call it.

    digest: of the program, sha256 in hex. BindError, on every rank, when one runs another program, or their numbers are
    not those of so many ranks; CollectiveError when one does not come.
    """
    words = [int(digest[at : at + 16], 16) - (1 << 63) for at in range(0, 16 * DIGEST_WORDS, 16)]
    mine = torch.tensor([[*words, ranks, collective.rank]], dtype=torch.int64, device=device)
    every = torch.empty((collective.size, DIGEST_WORDS + 2), dtype=torch.int64, device=device)
    collective.all_gather(every, mine)
    rows: list[list[int]] = every.tolist()
    for number, row in enumerate(rows):
        if row[:DIGEST_WORDS] != rows[0][:DIGEST_WORDS]:
            raise BindError(
                f"rank {number} runs another program than rank 0: build one wheel, and bind it on all ranks"
            )
    if (numbers := [row[-1] for row in rows]) != list(range(len(rows))):
        raise BindError(f"the ranks gather in the order {numbers}, not in that of {len(rows)} ranks")
    if len(rows) != ranks:
        raise BindError(f"the program is of {ranks} ranks, and the collective has {len(rows)}")
