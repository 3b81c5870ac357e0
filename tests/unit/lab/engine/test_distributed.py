"""The connection of two machines: what arrives, and what a side that is silent, gone or never there costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from ports import free_port

from specc.lab.engine.disaggregation.distributed import DistributedChannel, Role, connect

HOST, SECONDS = "127.0.0.1", 20.0


@pytest.fixture
def pair() -> Iterator[tuple[DistributedChannel, DistributedChannel]]:
    """Both ends of a connection, the one that decodes first."""
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        here, there = pool.map(lambda role: connect(role, HOST, port, timeout=SECONDS), Role)
    yield here, there
    here.close()
    there.close()


def data(*values: int) -> torch.Tensor:
    """Bytes."""
    return torch.tensor(values, dtype=torch.uint8)


def test_what_is_sent_arrives_in_order_and_whole(pair: tuple[DistributedChannel, DistributedChannel]) -> None:
    """Both ways; sending waits for who receives."""
    large = torch.randint(0, 256, (5_000_000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for here, there in (pair, pair[::-1]):
        with ThreadPoolExecutor(1) as pool:
            sent = pool.submit(lambda there=there: [there.send(x, SECONDS) for x in (data(1, 2), data(), large)])
            for wanted in (data(1, 2), data(), large):
                received = torch.full_like(wanted, 99)
                here.receive(received, SECONDS)
                assert torch.equal(received, wanted)
            sent.result()


def test_a_silent_peer(pair: tuple[DistributedChannel, DistributedChannel]) -> None:
    with pytest.raises(TimeoutError):
        pair[0].receive(data(0), 0.2)


@pytest.mark.parametrize("move", [DistributedChannel.send, DistributedChannel.receive])
def test_a_peer_that_goes(
    pair: tuple[DistributedChannel, DistributedChannel],
    move: Callable[[DistributedChannel, torch.Tensor, float], None],
) -> None:
    """It is noticed at once; who is gone himself moves nothing."""
    here, there = pair
    there.close()
    with pytest.raises(ConnectionError):
        move(here, data(0), SECONDS)
    with pytest.raises(ConnectionError, match="the channel is closed"):
        move(there, data(0), SECONDS)


@pytest.mark.parametrize("role", Role)
def test_nobody_comes(role: Role) -> None:
    with pytest.raises(TimeoutError):
        connect(role, HOST, free_port(), timeout=0.5)
