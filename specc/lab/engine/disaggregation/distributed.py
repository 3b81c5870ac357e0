"""Channels over torch.distributed: gloo for what is on the host, NCCL between GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import IntEnum
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, TCPStore  # pyright: ignore[reportPrivateImportUsage]

START_SECONDS = 60.0
"""How long a side waits for the other one to come up."""
POLL_SECONDS = 0.0005
NCCL_SECONDS = 3600.0
"""After which NCCL's own watchdog ends the process; the timeouts of `send` and `receive` must be shorter."""


class Role(IntEnum):
    """The side of a connection, and its rank. The one that decodes hosts the rendezvous, since it outlives peers."""

    decode = 0
    prefill = 1


def connect(
    role: Role, host: str, port: int, device: torch.device | str = "cpu", *, timeout: float = START_SECONDS
) -> DistributedChannel:
    """Connect a machine that prefills and one that decodes, which hosts the rendezvous at `host`:`port`.

    device: on CUDA, the tensors of messages go through NCCL; both sides must be on CUDA then, on different GPUs. Raises
    TimeoutError or ConnectionError when the other side does not come within `timeout` seconds.
    """
    device = torch.empty(0, device=device).device  # with its number, which other threads need
    kinds: dict[str, Any] = {"cpu": (dist.ProcessGroupGloo, timeout)}
    if device.type == "cuda":
        kinds["cuda"] = (dist.ProcessGroupNCCL, NCCL_SECONDS)
    with plain_errors():
        store = TCPStore(host, port, len(Role), role is Role.decode, timedelta(seconds=timeout))
        groups = {
            name: kind(PrefixStore(name, store), role, len(Role), timedelta(seconds=most))
            for name, (kind, most) in kinds.items()
        }
    channel = DistributedChannel(groups, Role(1 - role), device, store)
    try:
        _begin(channel, role, timeout)
    except BaseException:
        channel.close()
        raise
    return channel


def _begin(channel: DistributedChannel, role: Role, timeout: float) -> None:
    """Move a byte: NCCL meets the peer with the first tensor and waits without end, so now, while both are there."""
    probe = torch.zeros(1, dtype=torch.uint8, device=channel.device)
    (channel.send if role is Role.prefill else channel.receive)(probe, timeout)


class DistributedChannel:
    """A channel over process groups of two, by the type of device whose tensors they move."""

    def __init__(self, groups: Mapping[str, ProcessGroup], peer: int, device: torch.device, store: object) -> None:
        """peer: the other side's rank. device: where tensors of messages are. store: to keep as long as the groups."""
        self._groups, self._peer, self.device, self._store = dict(groups), int(peer), device, store

    def send(self, tensor: Tensor, timeout: float) -> None:
        """Send u8[n]; gloo waits for the peer to receive it."""
        self._move("send", tensor, timeout)

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """Fill u8[n]."""
        self._move("recv", tensor, timeout)

    def close(self) -> None:
        """Let go of the groups; what is on its way through NCCL is given up."""
        nccl: Any = self._groups.pop("cuda", None)
        if nccl is not None:
            nccl.abort()
        self._groups.clear()
        self._store = None

    def _move(self, how: str, tensor: Tensor, timeout: float) -> None:
        """Wait for gloo in gloo, which notices a dead peer; for NCCL by asking, since its own wait cannot fail."""
        if not tensor.numel():
            return
        group = self._groups.get(tensor.device.type)
        if group is None:
            raise ConnectionError("the channel is closed")
        with plain_errors():
            work: Any = getattr(group, how)([tensor], self._peer, 0)
            if tensor.device.type != "cuda":
                work.wait(timedelta(seconds=timeout))
                return
            end = monotonic() + timeout
            while not work.is_completed():
                if monotonic() > end:
                    raise TimeoutError(f"nothing moved for {timeout} seconds")
                sleep(POLL_SECONDS)
            work.wait()
            torch.cuda.current_stream(tensor.device).synchronize()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Say what torch.distributed raises as ConnectionError or TimeoutError."""
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        timed_out = "timed out" in message.lower() or "timeout" in message.lower()
        raise (TimeoutError if timed_out else ConnectionError)(_gist(message)) from error


def _gist(message: str) -> str:
    """The first sentence, without the place in the source where it comes from."""
    return re.sub(r"^\[[^]]*\] ", "", message.partition("\n")[0]).partition(". ")[0]
