"""Ranks of vLLM as its adapter touches them: this process is one of them, and others answer what a test says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from .vllm_tables import at

Said = dict[str, object]


@at("distributed.parallel_state")
@dataclass
class GroupCoordinator:
    """One rank's view of all.

    Attributes:
        answer: what another rank says where this one says something; the same unless a test has others.
        said: what was said, by this rank.
        captures: which of `begin` and `end` happened around captures.

    """

    world_size: int = 1
    rank_in_group: int = 0
    answer: Callable[[Said], Said] = dict
    said: list[Said] = field(default_factory=list[Said])
    captures: list[str] = field(default_factory=list[str])

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """As if all ranks had given the same."""
        return torch.cat([input_] * self.world_size, dim)

    def all_reduce(self, input_: Tensor) -> Tensor:
        """As if the other ranks had given zeros."""
        return input_

    @property
    def cpu_group(self) -> GroupCoordinator:
        """In which objects are gathered."""
        return self


_THIS = SimpleNamespace(group=GroupCoordinator())


@at("distributed.parallel_state")
def get_tp_group() -> GroupCoordinator:
    return _THIS.group


@at("distributed.parallel_state")
@contextlib.contextmanager
def graph_capture(device: Any) -> Iterator[None]:
    get_tp_group().captures.append("begin")
    yield
    get_tp_group().captures.append("end")


def gather(out: list[Any], obj: Said, group: GroupCoordinator) -> None:
    """What torch's `all_gather_object` does."""
    group.said.append(obj)
    out[:] = [obj if rank == group.rank_in_group else group.answer(obj) for rank in range(group.world_size)]


def ranks(monkeypatch: pytest.MonkeyPatch, group: GroupCoordinator) -> GroupCoordinator:
    """This process is that rank until the test ends."""
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(_THIS, "group", group)
    return group
