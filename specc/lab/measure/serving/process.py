"""A server by its own command line: started, waited for until it answers, and stopped with all of its processes."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError, Note

HOST = "127.0.0.1"
EVERYWHERE = {"": HOST, "0.0.0.0": HOST, "::": "::1"}
"""Addresses at which a server listens on all interfaces, and one of these that reaches it."""
HEALTH = "/health"
"""A path that answers with an error of the server's while it is not ready yet; without such a path it is not found."""
STOP_S, GONE_S = 30, 10
"""Seconds to end in order once that is asked for, and for the system to take back the processes that were killed."""
LOOK_S = 0.2
"""Seconds between two looks at a server that is starting."""
LINES, CHARACTERS, LONGEST_LINE = 20, 300, 1 << 16
"""How many lines of a log are shown, how much of each, and how much of a log is taken for one at most."""
RUNS = re.compile(r"specc: (\w+) runs the decode steps")
"""A line in the log of a server with a program."""


@dataclass(frozen=True)
class ServerCommand:
    """What starts a server: its words, none of them for a shell, and where it will answer.

    Attributes:
        words: program and arguments.
        url: the address.
        start_s: seconds within which it must answer.

    """

    words: tuple[str, ...]
    url: str
    start_s: float

    @staticmethod
    def of(words: Sequence[str], start_s: float) -> ServerCommand:
        """Read the words of a user, and add a free port where they name none. ValueError for a port that is none."""
        host = _value(words, "--host") or ""
        host = EVERYWHERE.get(host, host)
        written = _value(words, "--port")
        port = str(_free_port()) if written is None else written
        if not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 1 << 16):
            raise ValueError(f"--port of the command is no port: {port[:60]!r}")
        added = ("--port", port) if written is None else ()
        return ServerCommand((*words, *added), f"http://{f'[{host}]' if ':' in host else host}:{port}", start_s)

    def __str__(self) -> str:
        """As it is typed."""
        return shlex.join(self.words)


@dataclass(frozen=True)
class Running:
    """A server's process and its log."""

    command: ServerCommand
    process: subprocess.Popen[bytes]
    log: Path

    def lines(self, having: str = "") -> list[str]:
        """The last lines of its log that have a text."""
        with self.log.open(encoding="utf-8", errors="replace") as file:
            lines = iter(partial(file.readline, LONGEST_LINE), "")
            return [line[:CHARACTERS].rstrip() for line in deque(filter(lambda text: having in text, lines), LINES)]

    def program(self) -> str | None:
        """The program that it says to run, if there is one."""
        return next((match[1] for line in self.lines("specc: ") if (match := RUNS.search(line))), None)

    def failed(self, how: str) -> DiagnosticError:
        """It does not run, or not yet: how that is, with the end of its log."""
        hint = "type the command without specc to see all that it says; --start-timeout gives it more time to start"
        return _not_running(f"'{self.command}' {how}", hint, self.lines())


def _not_running(message: str, hint: str, log: Sequence[str] = ()) -> DiagnosticError:
    """A server that was to be started is not there, and what its log says."""
    notes = tuple(Note(f"its log: {line}") for line in log)
    return DiagnosticError(Diagnostic("serve/not-running", message, hint=hint, notes=notes))


@asynccontextmanager
async def started(command: ServerCommand, settings: Mapping[str, str]) -> AsyncIterator[Running]:
    """Run a server with these variables beside those of this process; when the block ends, none of it is left.

    DiagnosticError ``serve/not-running`` where it cannot be started, ends, or does not answer in time. An error of the
    block becomes that one where the server has ended.
    """
    if _is_taken(command):
        hint = "give the command another --port, or none"
        raise _not_running(f"something listens at {command.url} already, where the server is to be", hint)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder, _stopped_as_interrupted():
        figures = Path(folder) / "figures"
        figures.mkdir()
        log = Path(folder) / "log.txt"
        # In an empty folder of theirs, all processes of a server leave what they count.
        variables = {**os.environ, **settings, "PROMETHEUS_MULTIPROC_DIR": str(figures)}
        with log.open("wb") as file:
            process = _process(command, variables, file.fileno())
        try:
            running = Running(command, process, log)
            await _answers(running)
            try:
                yield running
            except DiagnosticError as error:
                await asyncio.sleep(LOOK_S)
                if (status := process.poll()) is not None:
                    raise running.failed(f"ended while it was measured, with status {status}") from error
                raise
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server that leads a group of processes: in order, if it does so in time, and then whatever is left."""
    try:
        process.terminate()
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        until = time.monotonic() + GONE_S
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            while time.monotonic() < until:  # what they had of a GPU is free when they are gone
                os.killpg(process.pid, 0)
                time.sleep(LOOK_S / 10)


def _process(command: ServerCommand, variables: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command.words, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        hint = "words behind -- are run without a shell: env NAME=VALUE ... sets variables, bash -c TEXT runs a text"
        raise _not_running(f"'{command}' cannot be started: {error.strerror or error}", hint) from error


async def _answers(running: Running) -> None:
    """Wait until a server answers as one that is ready."""
    import aiohttp

    begin, limit = time.monotonic(), running.command.start_s
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(limit)) as session:
        while (seconds := time.monotonic() - begin) < limit:
            if (status := running.process.poll()) is not None:
                raise running.failed(f"ended after {seconds:.0f} s with status {status}, before it answered")
            with suppress(aiohttp.ClientError, OSError, ValueError):
                timeout = aiohttp.ClientTimeout(limit - seconds)
                async with session.get(running.command.url + HEALTH, timeout=timeout) as response:
                    if response.status < 500:
                        return
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError  # which is lost where a connection is refused at that moment
            await asyncio.sleep(LOOK_S)
    raise running.failed(f"has not answered at {running.command.url} for {limit:g} s")


def _is_taken(command: ServerCommand) -> bool:
    """Whether somebody listens where a server is to be."""
    address = urlsplit(command.url)
    with socket.socket(socket.AF_INET6 if ":" in (address.hostname or "") else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what a server left a moment ago is free
        try:
            probe.bind((address.hostname, address.port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _value(words: Sequence[str], name: str) -> str | None:
    """The last value of an argument; None where it is not given."""
    for word, behind in reversed([*zip(words, [*words[1:], ""], strict=True)]):
        if word == name or word.startswith(f"{name}="):
            return behind if word == name else word.removeprefix(f"{name}=")
    return None


def _free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@contextmanager
def _stopped_as_interrupted() -> Iterator[None]:
    """Signals that would end this process at once interrupt it, as Ctrl-C does: what it has started is stopped."""
    ending = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
