"""Programs of others that are run for what they print."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def output_of(command: Sequence[str | Path], seconds: float, most: int) -> str:
    """Return what a command prints, as far as it is text: at most so many bytes, within so many seconds.

    A command that goes on is ended, with what it has started. Raises OSError where it cannot be run.
    """
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            return _read(process.stdout.fileno(), time.monotonic() + seconds, most).decode(errors="replace")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _read(pipe: int, end: float, most: int) -> bytes:
    """Return what comes through a pipe until a time, whoever still holds its other end."""
    content = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0 and selector.select(left):
            if not (piece := os.read(pipe, most - len(content))):
                break  # it has ended, or there is as much as is wanted
            content += piece
    return bytes(content)
