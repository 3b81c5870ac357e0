"""Mooncake's `TransferEngine` over TCP, as far as SGLang calls it: bytes of one process written into another's memory.

What it stands for needs the libraries of RDMA to be there, if only to be imported. Everything above it is SGLang's own:
rooms, pages, what is sent along, aborts. Memory that was not registered is neither read nor written.
"""

from __future__ import annotations

import ctypes
import socket
import struct
import threading
from collections.abc import Sequence

_COUNT, _PLACE = struct.Struct("!Q"), struct.Struct("!QQ")
_DONE, _REFUSED = b"\0", b"\1"


class TransferEngine:
    """Registered memory of this process, which others may write."""

    def __init__(self) -> None:
        self._regions: dict[int, int] = {}
        self._peers: dict[str, socket.socket] = {}
        self._lock = threading.Lock()
        self._server = socket.create_server(("", 0))

    def initialize(self, hostname: str, handshake: str, protocol: str, device: str) -> int:
        """Begin to take what others write."""
        threading.Thread(target=self._accept, daemon=True).start()
        return 0

    def get_rpc_port(self) -> int:
        """Where."""
        return self._server.getsockname()[1]

    def batch_register_memory(self, addresses: Sequence[int], lengths: Sequence[int]) -> int:
        """Let bytes at these places be read and written."""
        self._regions.update(zip(addresses, lengths, strict=True))
        return 0

    def batch_unregister_memory(self, addresses: Sequence[int]) -> int:
        """No longer."""
        for address in addresses:
            del self._regions[address]
        return 0

    def batch_transfer_sync_write(
        self, session: str, sources: Sequence[int], targets: Sequence[int], lengths: Sequence[int]
    ) -> int:
        """Write bytes of this process into memory of that behind `session`, host:port: 0, or -1 if that cannot be."""
        if not all(map(self._is_registered, sources, lengths)):
            return -1
        places = b"".join(map(_PLACE.pack, targets, lengths))
        content = b"".join(map(ctypes.string_at, sources, lengths))
        with self._lock:
            try:
                if session not in self._peers:
                    host, _, port = session.rpartition(":")
                    self._peers[session] = socket.create_connection((host, int(port)))
                peer = self._peers[session]
                peer.sendall(_COUNT.pack(len(targets)) + places + content)
                return 0 if _received(peer, 1) == _DONE else -1
            except OSError:
                self._peers.pop(session, None)
                return -1

    def send_probe(self, session: str) -> int:
        """Write nothing, which says whether somebody is there."""
        return self.batch_transfer_sync_write(session, [], [], [])

    def _is_registered(self, address: int, length: int) -> bool:
        return any(begin <= address and address + length <= begin + size for begin, size in self._regions.items())

    def _accept(self) -> None:
        while True:
            peer, _ = self._server.accept()
            threading.Thread(target=self._take, args=(peer,), daemon=True).start()

    def _take(self, peer: socket.socket) -> None:
        """What one peer writes, until it has gone."""
        with peer:
            try:
                while True:
                    (count,) = _COUNT.unpack(_received(peer, _COUNT.size))
                    places = list(_PLACE.iter_unpack(_received(peer, count * _PLACE.size)))
                    content = [_received(peer, length) for _, length in places]
                    allowed = all(self._is_registered(*place) for place in places)
                    for (address, length), written in zip(places, content, strict=True):
                        if allowed:
                            ctypes.memmove(address, written, length)
                    peer.sendall(_DONE if allowed else _REFUSED)
            except OSError:
                return


def _received(peer: socket.socket, length: int) -> bytes:
    """So many bytes. ConnectionError if the peer has gone before."""
    content = bytearray()
    while len(content) < length:
        part = peer.recv(min(length - len(content), 1 << 20))
        if not part:
            raise ConnectionError("the peer has gone")
        content += part
    return bytes(content)
