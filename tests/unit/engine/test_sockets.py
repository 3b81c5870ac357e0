"""The connection of two machines: where it listens, who is let in, and what arrives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from specc.engine.disaggregation import sockets
from specc.engine.disaggregation.distributed import Role, connect, rendezvous
from specc.engine.disaggregation.sockets import GREETING, NONCE, SECRET, SocketChannel, meet


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every channel is closed in the end, and it shows when one side listens."""
    channels: list[SocketChannel] = []
    make = SocketChannel.__init__

    def remember(channel: SocketChannel, connected: socket.socket) -> None:
        channels.append(channel)
        make(channel, connected)

    def listen(host: str, port: int, make: Any = sockets.listen) -> socket.socket:
        found = make(host, port)
        LISTENS.set()
        return found

    monkeypatch.setattr(SocketChannel, "__init__", remember)
    monkeypatch.setattr(sockets, "listen", listen)
    LISTENS.clear()
    yield
    for channel in channels:
        channel.close()


HOST, OTHER = "127.0.0.1", "127.0.0.2"
SECONDS = 10.0
LISTENS = threading.Event()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


class Side(threading.Thread):
    """What one side finds, in a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.found, self.error = work, None, None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.work()
        except BaseException as error:
            self.error = error

    def result(self) -> Any:
        """Wait for it; raises what it has raised."""
        self.join(SECONDS)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.found


def listening(port: int, *, secret: str = "", timeout: float = SECONDS) -> Side:
    """The side that decodes, which listens by now."""
    side = Side(lambda: meet(Role.decode, HOST, port, timeout, secret))
    assert LISTENS.wait(SECONDS)
    LISTENS.clear()
    return side


def pair() -> tuple[SocketChannel, SocketChannel]:
    """Two ends of a connection."""
    port = free_port()
    side = listening(port)
    there = meet(Role.prefill, HOST, port, SECONDS, "")
    return side.result(), there


def data(*values: int) -> torch.Tensor:
    """Bytes."""
    return torch.tensor(values, dtype=torch.uint8)


def test_it_listens_at_its_address_alone() -> None:
    port = free_port()
    side = listening(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((OTHER, port), 1).close()
    meet(Role.prefill, HOST, port, SECONDS, "").close()
    side.result().close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, port), 1).close()


def test_the_rendezvous_of_gpus_listens_there_alone() -> None:
    here, there = pair()
    side = Side(lambda: rendezvous(here, Role.decode, SECONDS))
    other = rendezvous(there, Role.prefill, SECONDS)
    store = side.result()
    store.set("key", "value")
    assert other.get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((OTHER, store.port), 1).close()


@pytest.mark.parametrize("here", ["", "one"])
@pytest.mark.parametrize("there", ["", "one", "two"])
def test_who_knows_the_secret_is_let_in(here: str, there: str) -> None:
    port = free_port()
    side = listening(port, secret=here, timeout=0.5)
    if here == there:
        channel = meet(Role.prefill, HOST, port, SECONDS, there)
        channel.send(data(7), SECONDS)
        found = data(0)
        side.result().receive(found, SECONDS)
        assert found.tolist() == [7]
        return
    with pytest.raises(ConnectionError, match="it may have another secret"):
        meet(Role.prefill, HOST, port, SECONDS, there)
    with pytest.raises(TimeoutError, match="a connection was refused: the peer has another secret"):
        side.result()


def test_the_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "one")
    port = free_port()
    side = Side(lambda: connect(Role.decode, HOST, port, timeout=SECONDS))
    with pytest.raises(ConnectionError):
        connect(Role.prefill, HOST, port, timeout=SECONDS, secret="two")
    connect(Role.prefill, HOST, port, timeout=SECONDS)
    side.result()


def test_who_decodes_proves_nothing_to_strangers() -> None:
    """One that sends back what it got, and one that guesses, get a greeting and nothing else."""
    port = free_port()
    side = listening(port, secret="one")
    for answer in (lambda heard: heard + heard[-NONCE:], lambda heard: GREETING + bytes(NONCE) + bytes(32)):
        with socket.create_connection((HOST, port), SECONDS) as stranger:
            heard = stranger.recv(1024)
            assert heard.startswith(GREETING)
            stranger.sendall(answer(heard))
            stranger.settimeout(SECONDS)
            assert stranger.recv(1024) == b""
    meet(Role.prefill, HOST, port, SECONDS, "one")
    side.result()


def test_strangers_do_not_keep_the_peer_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that says nothing, nor one that drips, nor one that speaks something else."""
    monkeypatch.setattr(sockets, "PROOF_SECONDS", 0.3)
    port = free_port()
    side = listening(port)
    with (
        socket.create_connection((HOST, port)),
        socket.create_connection((HOST, port)) as dripping,
        socket.create_connection((HOST, port)) as web,
    ):
        dripping.sendall(GREETING)
        web.sendall(b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" + b" " * 100)
        meet(Role.prefill, HOST, port, SECONDS, "")
    side.result()


def test_nobody_comes() -> None:
    for role in Role:
        with pytest.raises(TimeoutError, match=r"no peer at 127\.0\.0\.1:\d+ within 0\.2 seconds"):
            meet(role, HOST, free_port(), 0.2, "")


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ConnectionError, match=r"192\.0\.2\.1"):
        meet(Role.decode, "192.0.2.1", free_port(), 1.0, "")
    with pytest.raises(ConnectionError, match="no host"):
        meet(Role.prefill, "no host", 1, 1.0, "")


def test_what_is_sent_arrives_in_order_and_whole() -> None:
    here, there = pair()
    large = torch.randint(0, 256, (5_000_000,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    side = Side(lambda: [there.send(tensor, SECONDS) for tensor in (data(1, 2), data(), large)])
    for wanted in (data(1), data(2), data(), large):
        found = torch.full_like(wanted, 99)
        here.receive(found, SECONDS)
        assert torch.equal(found, wanted)
    side.result()


def test_more_than_was_expected_harms_nobody() -> None:
    here, there = pair()
    there.send(torch.zeros(1000, dtype=torch.uint8), SECONDS)
    found = torch.ones(8, dtype=torch.uint8)
    here.receive(found, SECONDS)
    assert not found.any()


def test_a_silent_peer_and_one_that_goes() -> None:
    here, there = pair()
    with pytest.raises(TimeoutError):
        here.receive(data(0), 0.1)
    there.send(data(5), SECONDS)
    there.close()
    here.receive(data(0), SECONDS)
    with pytest.raises(ConnectionError, match="the peer closed the connection"):
        here.receive(data(0), SECONDS)


def test_closing_wakes_who_receives() -> None:
    here, _there = pair()
    side = Side(lambda: here.receive(data(0), SECONDS))
    here.close()
    with pytest.raises(OSError, match=r"."):
        side.result()
