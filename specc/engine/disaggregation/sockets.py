"""A channel over one TCP connection, whose two sides have proved to each other that they know the same secret."""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from contextlib import suppress
from enum import IntEnum
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor

SECRET = "SPECC_SECRET"
"""The environment variable with the secret that both sides share; empty without one."""
GREETING = b"specc 2\n"
"""What a connection begins with."""
NONCE = 32
PROOF_SECONDS = 5.0
"""How long whoever has connected may take to prove that it is the peer."""
POLL_SECONDS = 0.05
KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""After two minutes without a sign of life a machine is gone."""


class Role(IntEnum):
    """The side of a connection. The one that decodes listens, since it outlives its peers."""

    decode = 0
    prefill = 1


class SocketChannel:
    """A channel over a connected socket; tensors are on the host."""

    device = torch.device("cpu")

    def __init__(self, connected: socket.socket) -> None:
        """Take the socket over."""
        self._socket = connected
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE.items():
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    @property
    def host(self) -> str:
        """This side's address."""
        return self._socket.getsockname()[0]

    @property
    def peer(self) -> str:
        """The other side's address."""
        return self._socket.getpeername()[0]

    def send(self, tensor: Tensor, timeout: float) -> None:
        """Send u8[n]; returns when the network has it, not when the peer does."""
        left = _view(tensor)
        self._socket.settimeout(timeout)
        while left:
            left = left[self._socket.send(left) :]

    def receive(self, tensor: Tensor, timeout: float) -> None:
        """Fill u8[n]."""
        left = _view(tensor)
        self._socket.settimeout(timeout)
        while left:
            count = self._socket.recv_into(left)
            if not count:
                raise ConnectionError("the peer closed the connection")
            left = left[count:]

    def close(self) -> None:
        """Let go of the socket; who waits in it gets a ConnectionError."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _view(tensor: Tensor) -> memoryview:
    """The bytes of u8[n], in its memory."""
    held: Any = tensor.numpy()
    return memoryview(held)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at one address of this machine, on no other; port 0 is any that is free."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def meet(role: Role, host: str, port: int, timeout: float, secret: str | None = None) -> SocketChannel:
    """Wait for the peer at `host`:`port`, where the side that decodes listens until it has come.

    secret: by default what the environment says. Connections that do not know it are closed, and the next one is
    waited for. Raises ConnectionError or TimeoutError.
    """
    key = (os.environ.get(SECRET, "") if secret is None else secret).encode()
    end = monotonic() + timeout
    try:
        return _accept(host, port, key, end) if role is Role.decode else _reach(host, port, key, end)
    except TimeoutError as error:
        raise TimeoutError(f"no peer at {host}:{port} within {timeout} seconds{error}") from error
    except ConnectionError:
        raise
    except OSError as error:
        raise ConnectionError(f"{host}:{port}: {error}") from error


def _accept(host: str, port: int, key: bytes, end: float) -> SocketChannel:
    """The first connection that proves itself."""
    refused = ""
    with listen(host, port) as listening:
        while (left := end - monotonic()) > 0:
            listening.settimeout(left)
            try:
                connected = listening.accept()[0]
            except TimeoutError:
                break
            try:
                _prove(connected, Role.decode, key, min(end, monotonic() + PROOF_SECONDS))
                return SocketChannel(connected)
            except OSError as error:
                connected.close()
                refused = f"; a connection was refused: {error}"
    raise TimeoutError(refused)


def _reach(host: str, port: int, key: bytes, end: float) -> SocketChannel:
    """A connection to the side that decodes, which may not listen yet."""
    while (left := end - monotonic()) > 0:
        try:
            connected = socket.create_connection((host, port), left)
        except ConnectionRefusedError:
            sleep(POLL_SECONDS)
            continue
        except TimeoutError:
            break
        try:
            _prove(connected, Role.prefill, key, end)
            return SocketChannel(connected)
        except OSError:
            connected.close()
            raise
    raise TimeoutError("")


def _prove(connected: socket.socket, role: Role, key: bytes, end: float) -> None:
    """Let the peer prove that it knows the key, and prove it; ConnectionError or TimeoutError if it does not.

    Who connects proves it first, so that a stranger gets nothing to try secrets on.
    """
    mine = secrets.token_bytes(NONCE)
    connected.settimeout(PROOF_SECONDS)
    connected.sendall(GREETING + mine)
    theirs = _take(connected, len(GREETING) + NONCE, end)
    if not theirs.startswith(GREETING):
        raise ConnectionError("the peer does not speak this version of the messages")
    nonces = (mine, theirs[len(GREETING) :])
    decodes, prefills = nonces if role is Role.decode else nonces[::-1]
    proofs = {side: hmac.digest(key, bytes([side]) + decodes + prefills, "sha256") for side in Role}
    if role is Role.prefill:
        connected.sendall(proofs[role])
    if not hmac.compare_digest(_take(connected, len(proofs[role]), end), proofs[Role(1 - role)]):
        raise ConnectionError("the peer has another secret")
    if role is Role.decode:
        connected.sendall(proofs[role])


def _take(connected: socket.socket, count: int, end: float) -> bytes:
    """The next bytes, all of them before `end`."""
    found = b""
    while len(found) < count:
        connected.settimeout(max(end - monotonic(), 0.001))
        more = connected.recv(count - len(found))
        if not more:
            raise ConnectionError("the peer closed the connection before it was known: it may have another secret")
        found += more
    return found
