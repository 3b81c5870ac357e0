"""A content-addressed store of compiled kernels.

The key says everything that decides the bytes, so an entry is never stale. One file per entry: the sha256 of
the rest, a line of JSON, the binary. A cache never fails a build: an entry that cannot be read, whose digest
does not match, or that is none, is dropped and compiled again; one that cannot be written is not written.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specc.compiler.support.files.cachedir import default_directory, keep, kept

FORMAT = 1
"""Part of every key. Raise it when the meaning of an entry changes."""

_DIGEST_BYTES = 64  # sha256 in hex


def digest(parts: dict[str, Any]) -> str:
    """The key of an entry: sha256 (hex) over `parts` (JSON values), whatever the order of its keys."""
    text = json.dumps({"format": FORMAT, "parts": parts}, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Cache:
    """Entries below `directory`; None stores nothing and finds nothing."""

    directory: Path | None

    @classmethod
    def default(cls) -> "Cache":
        """The user's cache, where `default_directory` says."""
        return cls(default_directory())

    @classmethod
    def disabled(cls) -> "Cache":
        """Never hits, never writes."""
        return cls(None)

    def path(self, key: str) -> Path:
        """Where the entry of `key` (64 hex digits) is or would be. ValueError when the cache is disabled."""
        if self.directory is None:
            raise ValueError("a disabled cache has no entries")
        return self.directory / "kernels" / key[:2] / key

    def load(self, key: str) -> tuple[dict[str, Any], bytes] | None:
        """The (metadata, binary) stored under `key`, or None. A damaged entry is removed."""
        if self.directory is None or (raw := kept(self.directory, self.path(key))) is None:
            return None
        entry = _opened(raw)
        if entry is None:
            with contextlib.suppress(OSError):
                self.path(key).unlink()
        return entry

    def store(self, key: str, metadata: dict[str, Any], binary: bytes) -> None:
        """Write an entry in one step: a reader sees all of it or nothing. Failures are ignored."""
        if self.directory is None:
            return
        body = json.dumps(metadata, sort_keys=True, ensure_ascii=True).encode() + b"\n" + binary
        raw = hashlib.sha256(body).hexdigest().encode() + body
        keep(self.directory, self.path(key), raw)


def _opened(raw: bytes) -> tuple[dict[str, Any], bytes] | None:
    """The metadata and binary of an entry; None where it is not what `Cache.store` writes."""
    claimed, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if hashlib.sha256(body).hexdigest().encode() != claimed:
        return None
    line, _, binary = body.partition(b"\n")
    try:
        metadata = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return (metadata, binary) if isinstance(metadata, dict) else None
