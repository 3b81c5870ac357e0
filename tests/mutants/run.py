"""Run mutants.toml: every mutant in a copy of the tree, against the tests that must notice it.

A mutant is one replacement in one file. It is *killed* when one of its tests fails; a mutant that does not import, or
crashes or hangs the tests, is not. `equivalent` ones are not run. The list is *stale* where a text is not found exactly
once. Exit status: 0 when every mutant was killed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import child

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COPIED = (
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "mkdocs.yml",
    "specc",
    "templates",
    "tests",
    "bench",
    "examples",
    "docs",
)
"""What tests need of the tree."""
PROCESSES = multiprocessing.get_context("forkserver")
"""Every run is forked from a process that has imported what takes long, and nothing of the tree."""
PROCESSES.set_forkserver_preload(["child", "torch", "triton", "hypothesis", "pydantic", "networkx", "transformers"])


@cache
def _statements(source: str) -> list[int]:
    """Where lines begin with which a statement of a file does, and where the file begins and ends."""
    lines = [0, *accumulate(len(line) + 1 for line in source.split("\n"))]
    firsts = (
        min(part.lineno for part in (node, *getattr(node, "decorator_list", ()))) for node in ast.parse(source).body
    )
    return [0, *(lines[line - 1] for line in firsts), len(source)]


@dataclass(frozen=True)
class Mutant:
    """One replacement; `killed_by` are pytest node ids, none where `equivalent` says why nobody could tell."""

    file: str
    text: str
    becomes: str
    why: str = ""
    killed_by: tuple[str, ...] = ()
    equivalent: str = ""

    def __str__(self) -> str:
        return f"{self.file}: {_short(self.text)} -> {_short(self.becomes)}"

    def apply(self, source: str) -> str:
        """The file with the mistake. ValueError when the text is not there exactly once, or the result no Python."""
        if (count := source.count(self.text)) != 1:
            raise ValueError(f"the text is found {count} times")
        begin = source.index(self.text)
        end = begin + len(self.text)
        if self.file.endswith(".py"):
            starts = _statements(source)
            first = max(start for start in starts if start <= begin)
            last = min(start for start in starts if start >= end)
            try:  # a file parses if all of its statements do
                ast.parse(source[first:begin] + self.becomes + source[end:last])
            except SyntaxError as error:
                raise ValueError(f"does not parse: {error}") from error
        return source[:begin] + self.becomes + source[end:]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed, survived, broken, crashed, timeout or stale; `said` by whom, or why."""

    mutant: Mutant
    kind: str
    said: str
    seconds: float


def read_mutants(path: Path = HERE / "mutants.toml") -> list[Mutant]:
    """The list, in its order. TypeError for an unknown key, ValueError unless killers or a reason are given."""
    mutants: list[Mutant] = []
    for file, entries in tomllib.loads(path.read_text()).items():
        for entry in entries:
            mutant = Mutant(file, **{**entry, "killed_by": tuple(entry.get("killed_by", ()))})
            if bool(mutant.killed_by and mutant.why) == bool(mutant.equivalent):
                raise ValueError(f"{mutant}: wants `why` and `killed_by`, or `equivalent`")
            mutants.append(mutant)
    return mutants


def copy_tree(to: Path) -> Path:
    """Copy what tests need, without what was compiled."""
    to.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, to / name)
    return to


class Tree:
    """A copy of the tree in which tests run, one run at a time."""

    def __init__(self, root: Path, timeout: float) -> None:
        """Copy the working tree to `root`; a run that takes longer than `timeout` seconds is killed."""
        self._root, self._timeout, self._edits = copy_tree(root), timeout, 0

    def run(self, tests: Sequence[str], patience: int = 1) -> tuple[int | None, str, dict[str, Any] | None]:
        """(exit status or None after `patience` timeouts, what pytest printed, the first failure)."""
        output, failure = self._root / "output", self._root / "failure"
        failure.unlink(missing_ok=True)
        shutil.rmtree(self._root / "cache", ignore_errors=True)  # what another mutant compiled must not be found
        process = PROCESSES.Process(target=child.run, args=(self._root, tests))
        process.start()
        process.join(patience * self._timeout)
        if (status := process.exitcode) is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        return status, output.read_text(errors="replace"), json.loads(failure.read_text()) if failure.exists() else None

    def _write(self, file: str, source: str) -> None:
        path = self._root / file
        path.write_text(source)
        self._edits += 1  # compiled files are known by seconds: every edit has its own
        os.utime(path, (self._edits, self._edits))

    def judge(self, mutant: Mutant) -> Verdict:
        """Apply a mutant, run its tests, and take it back."""
        source, start = (self._root / mutant.file).read_text(), time.monotonic()
        try:
            self._write(mutant.file, mutant.apply(source))
        except ValueError as error:
            return Verdict(mutant, "stale", str(error), 0)
        status, output, failure = self.run(mutant.killed_by)
        self._write(mutant.file, source)
        return Verdict(mutant, *_judged(status, output, failure), time.monotonic() - start)


def _judged(status: int | None, output: str, failure: dict[str, Any] | None) -> tuple[str, str]:
    if status is None:
        return "timeout", _tail(output)
    if status == 0:
        return "survived", ""
    if status < 0:
        return "crashed", f"by signal {-status}\n{_tail(output)}"
    if status != 1 or failure is None or failure["broken"]:
        return "broken", _tail(output)
    return "killed", f"{failure['test']} ({failure['error']})"


def _tail(text: str) -> str:
    return "\n".join(text.splitlines()[-12:])


def _short(text: str) -> str:
    return " ".join(text.split())


def changed_since(revision: str) -> set[str]:
    """Files that differ between a revision and the working tree."""
    command = ["git", "diff", "--name-only", revision]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())


def check_tests(trees: Sequence[Tree], mutants: Iterable[Mutant], pool: ThreadPoolExecutor) -> bool:
    """Whether the unmutated tree passes every test that is named, each file of tests in one of the trees."""
    tests = sorted({test for mutant in mutants for test in mutant.killed_by})
    files = sorted({test.split("::")[0] for test in tests})
    shares = [[test for test in tests if test.split("::")[0] in files[i :: len(trees)]] for i in range(len(trees))]
    runs = [pool.submit(tree.run, share, patience=20) for tree, share in zip(trees, shares, strict=True) if share]
    failed = [output for status, output, _ in (run.result() for run in runs) if status != 0]
    print(*failed, sep="\n", end="\n" if failed else "")
    return not failed


def run_mutants(mutants: Sequence[Mutant], jobs: int, timeout: float) -> list[Verdict]:
    """Judge mutants, `jobs` at a time; SystemExit when their tests fail without any."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(jobs) as pool:
        trees = list(pool.map(lambda job: Tree(Path(folder, str(job)), timeout), range(jobs)))
        if not check_tests(trees, mutants, pool):
            sys.exit("the tree itself fails these tests; no mutant was run")
        free: SimpleQueue[Tree] = SimpleQueue()
        for tree in trees:
            free.put(tree)

        def judge(mutant: Mutant) -> Verdict:
            tree = free.get()
            try:
                return tree.judge(mutant)
            finally:
                free.put(tree)

        verdicts: list[Verdict] = []
        try:
            for verdict in pool.map(judge, mutants):
                verdicts.append(verdict)
                print(f"{verdict.kind:9}{verdict.seconds:5.0f} s  {verdict.mutant}\n{'':18}{verdict.said}", flush=True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.kill()
            raise
        return verdicts


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once")
    parser.add_argument("--changed", metavar="REVISION", help="only those whose file differs from a revision's")
    parser.add_argument("--only", default="", metavar="TEXT", help="only those in whose line of --list TEXT occurs")
    parser.add_argument("--by", default="", metavar="TEXT", help="only those that a test must notice whose id has TEXT")
    parser.add_argument("--timeout", type=float, default=300, help="seconds until a run counts as hanging")
    arguments = parser.parse_args()
    mutants = [mutant for mutant in read_mutants() if arguments.only in str(mutant)]
    if arguments.by:
        mutants = [mutant for mutant in mutants if any(arguments.by in test for test in mutant.killed_by)]
    if arguments.changed:
        changed = changed_since(arguments.changed)
        mutants = [mutant for mutant in mutants if mutant.file in changed]
    if arguments.list:
        for mutant in mutants:
            print(mutant, f"{'':4}{mutant.why or 'equivalent: ' + mutant.equivalent}", sep="\n")
        return
    os.environ["TRITON_INTERPRET"] = "1"  # chosen when triton is imported
    live = [mutant for mutant in mutants if not mutant.equivalent]
    start = time.monotonic()
    verdicts = run_mutants(live, arguments.jobs, arguments.timeout)
    kinds = [verdict.kind for verdict in verdicts]
    counts = [f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))] + [f"{len(mutants) - len(live)} equivalent"]
    print(f"{len(mutants)} mutants: {', '.join(counts)}, in {time.monotonic() - start:.0f} s")
    sys.exit(any(kind != "killed" for kind in kinds))


if __name__ == "__main__":
    main()
