"""What every test folder shares: which tests are slow, the option that rewrites golden files, where helpers are."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

# Triton chooses between interpreting and compiling kernels when it is first imported, and transformers imports it.
if os.environ.get("SPECC_TEST_GPU") != "1":
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # Tensors are too small for more threads, and tests run beside each other. Programs that they start inherit it.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("COLUMNS", None)  # pytest-xdist gives its workers 80, which tables would keep to
os.environ.setdefault("SPECC_CACHE_DIR", str(Path(__file__).parents[1] / ".specc-cache"))

HERE = Path(__file__).parent
# programs.py and fakes, and packages of tests that those of other houses take helpers from
sys.path[:0] = [str(HERE), str(HERE / "unit"), str(HERE / "unit/compiler")]

import slow_tests  # noqa: E402

LISTED = slow_tests.read(slow_tests.LIST.read_text(encoding="utf-8"))

# A runner makes all commands anew of their signatures for each command line, which takes as long as many commands do.
typer.testing._get_command = cache(typer.testing._get_command)

# What tests and their imports make lasts: a search among it finds nothing and takes seconds.
gc.disable()

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``, ``--house``, ``--part`` and ``--durations-list``."""
    parser.addoption("--update-golden", action="store_true", help="rewrite kernels_generated/ instead of comparing")
    parser.addoption("--house", help="have no house of specc but this one and what it may import")
    parser.addoption("--part", default="0/1", metavar="K/N", help="of slow tests and engines one of N parts")
    parser.addoption("--durations-list", action="store_true", help="measure cases, and write those into tests/slow.txt")


FORBIDDEN = {"compiler": ("engines", "lab"), "runtime": ("compiler", "cli", "engines", "lab")}
"""Houses that are not there while the tests of one run."""


class AbsentHouses(MetaPathFinder):
    """Finds nothing of some houses, and has their names fail."""

    def __init__(self, houses: Iterable[str]) -> None:
        self.names = tuple(f"specc.{house}" for house in houses)

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for what is in such a house."""
        if fullname.startswith(self.names):
            raise ModuleNotFoundError(f"{fullname} is of another house", name=fullname)


def pytest_configure(config: pytest.Config) -> None:
    """Take houses away, and measure what is asked for."""
    if config.getoption("--durations-list"):
        config.pluginmanager.register(slow_tests.Recorder(config, LISTED))
    if absent := FORBIDDEN.get(config.getoption("house") or ""):
        sys.meta_path.insert(0, AbsentHouses(absent))


ELSEWHERE = ("browser", "conformance", "sglang", "vllm")
"""Folders that need more than `make setup` installs: they are read where ``-m`` or a path names them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out folders that nobody asks for, and of `make test` folders and files without a test that it runs."""
    marks, name = config.getoption("markexpr"), collection_path.relative_to(HERE).as_posix()
    if name in ELSEWHERE:
        return True if name not in marks else None
    slow = f"{name}/" in LISTED or slow_tests.is_whole(LISTED, name)
    return True if "not slow" in marks and slow else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what is slow, in one place, and keep the part that is asked for of what takes long and ``-m`` leaves."""
    seen: set[tuple[str, str, int]] = set()
    names = [*map(name_of, items)]
    for item, name in zip(items, names, strict=True):
        values = values_of(item)
        measured = slow_tests.has_case(LISTED, name) and not config.getoption("--durations-list")
        if measured or slow_tests.is_whole(LISTED, name) or (values and values <= seen):
            item.add_marker(pytest.mark.slow)
        seen |= values
    named = any("::" in argument for argument in config.args)  # single tests: others of their files are not read
    config.stash[slow_tests.GONE] = slow_tests.gone(LISTED, () if named else names)
    yield
    part, parts = (int(number) for number in config.getoption("part").split("/"))
    if parts > 1:
        groups = {item: kept_together(item) for item in items if takes_long(item)}
        kept = set([*dict.fromkeys(groups.values())][part % parts :: parts])
        left_out = {item for item, group in groups.items() if group not in kept}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def name_of(item: pytest.Item) -> str:
    """The name of a test below tests/."""
    return item.nodeid.removeprefix("tests/")


def values_of(item: pytest.Item) -> set[tuple[str, str, int]]:
    """The values of a test's parameters: of a grid, `make test` runs the cases that have one for the first time."""
    test = item.nodeid.partition("[")[0]
    return {(test, name, id(value)) for name, value in params_of(item).items()}


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what lasts: tests, and the modules that they import."""
    gc.freeze()
    gc.enable()


def takes_long(item: pytest.Item) -> bool:
    """Whether a test is slow or runs in an engine."""
    return item.get_closest_marker("slow") is not None or item.path.parent.name in ("sglang", "vllm")


def kept_together(item: pytest.Item) -> str:
    """Name the engine of a test, the same for what it is compared with; any other has a name of its own."""
    if item.path.parent.name not in ("sglang", "vllm"):
        return item.nodeid
    params = params_of(item)
    engines = [str(params[name]).replace("-program", "") for name in ("variant", "ranked", "engine") if name in params]
    if "family" in params:  # two files may have one of the same name
        return " ".join((item.path.name, str(params["family"]), *engines))
    return engines[0] if engines else item.path.name


def params_of(item: pytest.Item) -> Mapping[str, object]:
    """The parameters of a test by name; none where it has none."""
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
