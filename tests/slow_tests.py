"""The list of slow tests, tests/slow.txt: what it names, what of that is gone, and how `make durations` writes it.

A line that begins with a path is a folder or a file, below it stand functions, and below those cases. Whatever has
nothing below it is slow as a whole: somebody wrote that. Cases are measured: `make durations` writes them.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

LIST = Path(__file__).parent / "slow.txt"
LONG = 0.2
"""A case that takes more seconds of a processor is slow, but for the quickest of its function."""
JUDGES = "meta/"
"""Tests of the tree as a whole, which any commit may break: none is slow for what it takes."""
Listed = dict[str, dict[str, set[str]]]
"""Cases by function, and those by path."""
GONE = pytest.StashKey[list[str]]()
"""Names of the list that a run, which has read their files, has not found."""


@cache
def folders_of(path: str) -> frozenset[str]:
    """Return all folders around a file, as a list names them; every run asks for each of its tests."""
    return frozenset(f"{folder}/" for folder in Path(path).parents)


def parts(name: str) -> tuple[str, str, str]:
    """Return the path, the function and the case of a test; its name begins with its path below tests/."""
    path, _, test = name.partition("::")
    function, _, case = test.partition("[")
    return path, function, case.removesuffix("]")


def read(text: str) -> Listed:
    """Return what a list names."""
    listed: Listed = {}
    path = function = ""
    for line in text.splitlines():
        if line.startswith(" " * 8):
            listed[path][function].add(line[8:])
        elif line.startswith(" " * 4):
            function = line[4:]
            listed[path][function] = set()
        elif line and not line.startswith("#"):
            path = line
            listed[path] = {}
    return listed


def written(listed: Listed) -> Iterator[str]:
    """Yield the lines of a list, sorted."""
    for path, functions in sorted(listed.items()):
        yield path
        for function, cases in sorted(functions.items()):
            yield f"    {function}"
            yield from (f"        {case}" for case in sorted(cases))


def is_whole(listed: Listed, name: str) -> bool:
    """Whether a list has all of a folder, of a file or of a test's function."""
    path, function, _ = parts(name)
    if not folders_of(path).isdisjoint(listed) or listed.get(path) == {}:
        return True
    return listed.get(path, {}).get(function) == set()


def has_case(listed: Listed, name: str) -> bool:
    """Whether a list has one case of a function."""
    path, function, case = parts(name)
    return case in listed.get(path, {}).get(function, ())


def gone(listed: Listed, names: Iterable[str], root: Path = LIST.parent) -> list[str]:
    """Return paths that are not there and, of files that ``names`` has tests of, functions and cases that it lacks."""
    found: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path, function, case in map(parts, names):
        found[path][function].add(case)
    missing = [path for path in listed if not (root / path).exists()]
    for path, functions in listed.items():
        for function, cases in functions.items() if path in found else ():
            there = found[path].get(function)
            missing += [f"{path}::{function}[{case}]" for case in cases - (there or set())]
            missing += [f"{path}::{function}"] if there is None else []
    return sorted(missing)


def with_durations(listed: Listed, seconds: Mapping[str, float]) -> Listed:
    """Return a list whose cases, in the files that were measured, are those that took long but the quickest of each.

    A case that was the quickest stays it until another takes a third less: lists should differ where tests do.
    """
    measured: defaultdict[str, defaultdict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for name, took in seconds.items():
        path, function, case = parts(name)
        took = 0.0 if path.startswith(JUDGES) else took
        measured[path][function][case] = took
    new = {path: dict(functions) for path, functions in listed.items() if path not in measured}
    for path, functions in measured.items():
        slow = {function: cases for function, cases in listed.get(path, {}).items() if not cases}
        for function, cases in functions.items():
            before = listed.get(path, {}).get(function, set())
            quickest = min(sorted(cases), key=lambda case: cases[case] * (1.5 if case in before else 1))
            if long := {case for case in cases if case != quickest and cases[case] > LONG}:
                slow[function] = long
        if slow:
            new[path] = slow
    return new


class Recorder:
    """A plugin that measures every test, and writes the list where all pass."""

    def __init__(self, config: pytest.Config, listed: Listed) -> None:
        self.config, self.listed = config, listed
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Measure a test and the programs that it waits for: on a busy machine a clock would measure others."""
        start = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            item.user_properties.append(("seconds", sum(os.times()[:4]) - start))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a worker has measured of a test that has run, unless its name has the folder of this checkout."""
        if report.when == "call" and report.passed and str(self.config.rootpath) not in report.nodeid:
            self.seconds[report.nodeid.removeprefix("tests/")] = dict(report.user_properties)["seconds"]

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the list, in the process that has the reports of all workers."""
        if exitstatus == pytest.ExitCode.OK and not hasattr(self.config, "workerinput"):
            head = "".join(f"{line}\n" for line in LIST.read_text().splitlines() if line.startswith("#"))
            lines = written(with_durations(self.listed, self.seconds))
            LIST.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
