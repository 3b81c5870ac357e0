"""Programs of others that are run for what they print."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
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
        late = threading.Timer(seconds, _end, (process,))
        late.start()
        try:
            return process.stdout.read(most).decode(errors="replace")
        finally:
            late.cancel()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group, with all of it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
