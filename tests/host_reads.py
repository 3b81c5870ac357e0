"""Notices where the host would have to wait for a device, on tensors of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
VALUES = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_consecutive,
    aten.equal,
}
"""What hands a value to the host, or a tensor whose shape depends on values."""
INDEXING = {aten.index, aten.index_put, aten.index_put_}


class HostReads(TorchDispatchMode):
    """While it is entered, `found` collects the ops whose results a host has to wait for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Collect nothing yet."""
        super().__init__()
        self.found: list[str] = []
        self._watching, self._monkeypatch = False, monkeypatch
        tolist = Tensor.tolist
        monkeypatch.setattr(Tensor, "tolist", lambda tensor: (self._note("tolist"), tolist(tensor))[1])

    def allow(self, owner: type, name: str) -> None:
        """Let a method read."""
        method = getattr(owner, name)

        def unwatched(*args: Any, **kwargs: Any) -> Any:
            with self._unwatched():
                return method(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, unwatched)

    def __enter__(self) -> HostReads:
        """Watch."""
        super().__enter__()
        self._watching = True
        return self

    def __exit__(self, *error: Any) -> None:
        """Watch no more."""
        self._watching = False
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, noting it if somebody has to wait for it."""
        op = func.overloadpacket
        by_mask = op in INDEXING and any(index is not None and index.dtype == torch.bool for index in args[1])
        if op in VALUES or by_mask:
            self._note(str(op))
        return func(*args, **(kwargs or {}))

    def _note(self, name: str) -> None:
        if self._watching:
            self.found.append(name)

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        before, self._watching = self._watching, False
        try:
            yield
        finally:
            self._watching = before
