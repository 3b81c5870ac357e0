"""What a kind of attention has to do for a program: prepare the forwards of a step, for the roles that run on it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from .packed_rows import PackedRows
from .roles import Roles
from .step_tables import Tables


class StepAttention(ABC):
    """The forwards of one step by one kind of attention; every method returns SGLang's object that then runs.

    `begin` comes first in a step, whatever its first forward is. A step is run several times before it is captured, so
    that memory and wrappers may be made when a batch size is met first.
    """

    plans: ClassVar[bool] = False
    """Whether `plan` must be called on the host before each step."""

    def __init__(self, roles: Roles, tables: Tables) -> None:
        """Over the backend objects of a worker, and what the forwards of a step share."""
        self._roles, self._tables = roles, tables

    @cached_property
    def _packed(self) -> PackedRows:
        return PackedRows(self._tables.sizes.largest, self._tables.slots.device)

    def begin(self, batch: Any) -> None:  # noqa: B027
        """Prepare what all forwards of a step read. `batch` is that of the first one."""

    @abstractmethod
    def draft(self, step: int, batch: Any) -> Any:
        """For forward `step` of the draft."""

    def block(self, batch: Any, width: int) -> Any:
        """For `width` tokens of each request behind its text, of the draft; those see each other where layers say so.

        `served` says which kinds have it.
        """
        raise NotImplementedError(f"{type(self).__name__} prepares no blocks")

    @abstractmethod
    def target(self, batch: Any, width: int, mask: Tensor | None, counts: Tensor | None) -> Any:
        """For `width` nodes of each request; `mask` and, in mode `slots`, `counts` are the program's of a tree."""

    def packed(
        self, batch: Any, width: int, lens: Tensor, starts: Tensor, mask: Tensor | None, counts: Tensor | None
    ) -> Any:
        """For rows of the target, `lens` i32[b] of each request from `starts` i32[b] on, at most `width`.

        They are the first nodes of a tree, whose `mask` and `counts` are the program's, by request. `served` says
        which kinds have it.
        """
        raise NotImplementedError(f"{type(self).__name__} prepares no packed rows")

    @abstractmethod
    def extend(self, batch: Any, seq_lens: Tensor, width: int) -> Any:
        """For `width` tokens of each request behind `seq_lens` i64[b]."""

    def plan(self, rows: int, lengths: Sequence[int]) -> None:  # noqa: B027
        """Plan a step of so many rows, a bucket's where it is captured, with these lengths: 0 for padding."""

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """While steps are captured, and run before that."""
        yield
