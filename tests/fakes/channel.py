"""A channel within a process, between threads."""

from __future__ import annotations

import queue

import torch
from torch import Tensor


class LocalChannel:
    """One end of a connection; `pair` makes both."""

    device = torch.device("cpu")

    def __init__(self, incoming: queue.Queue[Tensor | None], outgoing: queue.Queue[Tensor | None]) -> None:
        """Use `pair`."""
        self._incoming, self._outgoing = incoming, outgoing

    @staticmethod
    def pair() -> tuple[LocalChannel, LocalChannel]:
        """Two ends. What one sends waits until the other receives it; sending does not wait."""
        there, back = queue.Queue[Tensor | None](), queue.Queue[Tensor | None]()
        return LocalChannel(back, there), LocalChannel(there, back)

    def send(self, tensor: Tensor, timeout: float) -> None:
        """Queue a copy."""
        self._outgoing.put(tensor.clone())

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """Take the next tensor from the queue."""
        try:
            received = self._incoming.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"nothing came for {timeout} seconds") from None
        if received is None:
            self._incoming.put(None)
            raise ConnectionError("the peer closed the channel")
        if received.shape != tensor.shape:
            raise ConnectionError(f"{len(received)} bytes came, not {len(tensor)}")
        tensor.copy_(received)

    def close(self) -> None:
        """Tell the other end that nothing comes any more, and let this one see the same."""
        self._outgoing.put(None)
        self._incoming.put(None)
