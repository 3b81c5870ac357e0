"""Child processes that answer questions, one line of JSON each way.

Plain subprocesses and not multiprocessing: a spawned multiprocessing child first imports the caller's main
module (and with it, perhaps, triton in another mode), and its environment is the caller's. These get an
environment made here, so nothing of the caller's leaks into what they compute.
"""

import concurrent.futures
import contextlib
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH")


class WorkerDiedError(Exception):
    """A child ended without an answer. The message has its exit status and the end of its stderr."""


class Worker:
    """One child running `python -c code argument`, started at a question if it is not running."""

    def __init__(self, code: str, argument: str, variables: Mapping[str, str], log: Path) -> None:
        self._command = [sys.executable, "-c", code, argument]
        self._log = log
        self._process: subprocess.Popen[str] | None = None
        self._environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        self._environment |= {
            "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
            "PYTHONSAFEPATH": "1",  # a file in the working directory must not replace a module
            "PYTHONHASHSEED": "0",
            **variables,
        }

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """The child's answer. WorkerDiedError if it gives none."""
        if self._process is None or self._process.poll() is not None:
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self._environment,
                )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.close()
            log_text = self._log.read_text(encoding="utf-8", errors="replace").strip()
            status = process.returncode
            raise WorkerDiedError(f"the process died (status {status})\n{log_text[-4000:]}".rstrip())
        return json.loads(line)

    def close(self) -> None:
        """End the child and wait for it."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                # An idle child leaves at the end of its input; one that is busy is not waited for.
                self._process.communicate(timeout=1)
            self._process.kill()
            self._process.communicate()
            self._process = None


def ask_all(
    workers: Sequence[Worker], questions: Sequence[dict[str, Any]]
) -> Generator[tuple[int, dict[str, Any] | WorkerDiedError]]:
    """Share the questions out; yields (position, answer or why there is none) as they come. Closes the
    workers.

    Closing the iterator early drops the questions not yet asked.
    """
    idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def ask(question: dict[str, Any]) -> dict[str, Any] | WorkerDiedError:
        worker = idle.get()
        try:
            return worker.ask(question)
        except WorkerDiedError as error:
            return error
        finally:
            idle.put(worker)

    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.enter_context(contextlib.closing(worker))
        pool = concurrent.futures.ThreadPoolExecutor(len(workers))
        stack.callback(pool.shutdown, cancel_futures=True)
        futures = {pool.submit(ask, question): position for position, question in enumerate(questions)}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()


def serve_stdin(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """The child's loop: `answer(question) -> dict` for every line of stdin until it closes."""
    # Whatever a compiler prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)
