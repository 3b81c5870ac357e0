"""Channels between machines: TCP for what is on the host, NCCL between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from specc.engine.disaggregation.channel import Channel
from specc.engine.disaggregation.sockets import Role, SocketChannel, listen, meet

START_SECONDS = 60.0
"""How long a side waits for the other one to come up."""
POLL_SECONDS = 0.0005
NCCL_SECONDS = 3600.0
"""After which NCCL's own watchdog ends the process; the timeouts of `send` and `receive` must be shorter."""


def connect(
    role: Role,
    host: str,
    port: int,
    device: torch.device | str = "cpu",
    *,
    timeout: float = START_SECONDS,
    secret: str | None = None,
) -> Channel:
    """Connect one machine that prefills and one that decodes, which listens at `host`:`port` and at no other address.

    device: on CUDA, the tensors of messages go through NCCL; both sides must be on CUDA then, on different GPUs.
    secret: what both sides know, by default the environment's SPECC_SECRET; a peer that does not know it is refused.
    Raises TimeoutError or ConnectionError when the other side does not come within `timeout` seconds.
    """
    device = torch.empty(0, device=device).device  # with its number, which other threads need
    heads = meet(role, host, port, timeout, secret)
    if device.type != "cuda":
        return heads
    try:
        with plain_errors():
            store = rendezvous(heads, role, timeout)
            nccl: Any = dist.ProcessGroupNCCL
            group = nccl(PrefixStore("cuda", store), role, len(Role), timedelta(seconds=NCCL_SECONDS))
        channel = NcclChannel(heads, group, Role(1 - role), device, store)
        _begin(channel, role, timeout)
    except BaseException:
        heads.close()
        raise
    return channel


def rendezvous(heads: SocketChannel, role: Role, timeout: float) -> TCPStore:
    """Where NCCL's sides find each other: at the address of the side that decodes alone, on a port that it tells."""
    number = torch.zeros(1, dtype=torch.int64)
    fd, host = None, heads.host
    if role is Role.decode:
        listening = listen(host, 0)
        number[0] = listening.getsockname()[1]
        fd = listening.detach()
        heads.send(number.view(torch.uint8), timeout)
    else:
        heads.receive(number.view(torch.uint8), timeout)
        host = heads.peer
    late = timedelta(seconds=timeout)
    return TCPStore(host, int(number), len(Role), role is Role.decode, late, master_listen_fd=fd)


def _begin(channel: NcclChannel, role: Role, timeout: float) -> None:
    """Move a byte: NCCL meets the peer with the first tensor and waits without end, so now, while both are there."""
    probe = torch.zeros(1, dtype=torch.uint8, device=channel.device)
    (channel.send if role is Role.prefill else channel.receive)(probe, timeout)


class NcclChannel:
    """A channel that moves tensors on a GPU through NCCL, and what is on the host through another channel."""

    def __init__(
        self, heads: SocketChannel, group: ProcessGroup, peer: int, device: torch.device, store: object
    ) -> None:
        """peer: the other side's rank. device: where tensors of messages are. store: to keep as long as the group."""
        self._heads, self._peer, self.device = heads, int(peer), device
        self._group: Any = group
        self._store = store

    def send(self, tensor: Tensor, timeout: float) -> None:
        """Send u8[n]."""
        if tensor.device.type == "cpu":
            self._heads.send(tensor, timeout)
        elif tensor.numel():
            with plain_errors():
                self._wait(self._group.send([tensor], self._peer, 0), timeout)

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """Fill u8[n]."""
        if tensor.device.type == "cpu":
            self._heads.receive(tensor, timeout)
        elif tensor.numel():
            with plain_errors():
                self._wait(self._group.recv([tensor], self._peer, 0), timeout)

    def close(self) -> None:
        """Let go of the connection; what is on its way through NCCL is given up."""
        self._heads.close()
        if self._group is not None:
            self._group.abort()
        self._group = self._store = None

    def _wait(self, work: Any, timeout: float) -> None:
        """Wait by asking, since NCCL's own wait cannot fail."""
        end = monotonic() + timeout
        while not work.is_completed():
            if monotonic() > end:
                raise TimeoutError(f"nothing moved for {timeout} seconds")
            sleep(POLL_SECONDS)
        work.wait()
        torch.cuda.current_stream(self.device).synchronize()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Say what torch.distributed raises as ConnectionError or TimeoutError."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        late = "timed out" in message.lower() or "timeout" in message.lower()
        raise (TimeoutError if late else ConnectionError)(_gist(message)) from error


def _gist(message: str) -> str:
    """The first sentence, without the place in the source where it comes from."""
    return re.sub(r"^\[[^]]*\] ", "", message.partition("\n")[0]).partition(". ")[0]
