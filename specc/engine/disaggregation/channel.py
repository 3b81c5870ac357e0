"""What moves tensors between two machines. Anything with the methods of `Channel` does."""

from __future__ import annotations

import queue
from typing import Protocol

import torch
from torch import Tensor


class Channel(Protocol):
    """A connection to one peer, both ways, in order. Both sides know the size of what comes next.

    Both methods raise ConnectionError when the peer is gone and TimeoutError when nothing moved for `timeout` seconds;
    no channel is used any more after either.
    """

    @property
    def device(self) -> torch.device:
        """Where the tensors of messages are sent from and received; their heads are always on the host."""
        ...

    def send(self, tensor: Tensor, timeout: float) -> None:
        """Send u8[n], contiguous; returns when it may be changed."""
        ...

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """Fill u8[n], contiguous, with what the peer sends; returns when it can be read from any stream."""
        ...

    def close(self) -> None:
        """Let go of the connection, whatever the peer does."""
        ...


class LocalChannel:
    """One end of a connection within a process, between threads; `pair` makes both."""

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
            found = self._incoming.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"nothing came for {timeout} seconds") from None
        if found is None:
            self._incoming.put(None)
            raise ConnectionError("the peer closed the channel")
        if found.shape != tensor.shape:
            raise ConnectionError(f"{len(found)} bytes came, not {len(tensor)}")
        tensor.copy_(found)

    def close(self) -> None:
        """Tell the other end that nothing comes any more, and let this one see the same."""
        self._outgoing.put(None)
        self._incoming.put(None)
