"""Where forwards return their results: callbacks that cannot be captured, around others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

Key = tuple[str, int | None, str]


class Static:
    """Every result is copied into a tensor that stays where it is, one per forward and shape."""

    capturable = False

    def __init__(self, callbacks: object) -> None:
        self._callbacks = callbacks
        self._held: dict[tuple[Key, torch.Size], Tensor] = {}

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._callbacks, name)
        return partial(self._call, name, member) if callable(member) else member

    def _call(self, name: str, forward: Callable[..., Any], **operands: Any) -> SimpleNamespace:
        fields: dict[str, Tensor | None] = vars(forward(**operands) or SimpleNamespace())
        key = (name, operands.get("step"))
        return SimpleNamespace(**{field: self.put((*key, field), tensor) for field, tensor in fields.items()})

    def put(self, key: Key, tensor: Tensor | None) -> Tensor | None:
        """The result as it is returned."""
        if tensor is None:
            return None
        place = self._held.setdefault((key, tensor.shape), torch.empty_like(tensor))
        return place.copy_(tensor)


class Fresh(Static):
    """No two results are at the same address: none is ever let go. Those of the forwards `only`, or of all."""

    def __init__(self, callbacks: object, *only: str) -> None:
        super().__init__(callbacks)
        self.only, self._kept = only, list[Tensor]()

    def put(self, key: Key, tensor: Tensor | None) -> Tensor | None:
        """The result as it is returned."""
        if tensor is None or (self.only and key[0] not in self.only):
            return super().put(key, tensor)
        self._kept.append(tensor.clone())
        return self._kept[-1]


class Overwriting(Static):
    """A forward writes its hidden rows over those that it was given, and hands back that memory; the rest is lost.

    So does SGLang's EAGLE3 head on a GPU, which adds to its rows in place.
    """

    def __init__(self, callbacks: object) -> None:
        super().__init__(callbacks)
        self.overwritten: set[tuple[str, int | None]] = set()

    def _call(self, name: str, forward: Callable[..., Any], **operands: Any) -> SimpleNamespace:
        found = super()._call(name, forward, **operands)
        given, hidden = operands.get("hidden"), getattr(found, "hidden", None)
        if given is not None and hidden is not None:
            assert given.dtype == hidden.dtype
            memory = given.view(-1)
            memory[hidden.numel() :] = torch.nan
            found.hidden = memory[: hidden.numel()].view(hidden.shape).copy_(hidden)
            self.overwritten.add((name, operands.get("step")))
        return found
