"""How a program comes into an engine: versions, several programs, what is logged and what ends a server."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from specc.engines._plugin import MisfitError, ServerError, chosen, offer, tried, word


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the engine's, which is installed in its version 1.2."""
    made = ModuleType("engine_plugins")
    monkeypatch.setitem(sys.modules, "engine_plugins", made)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: {"engine": "1.2+cpu"}[name])
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    return made


def program(name: str, version: str = "0.1.0+p1") -> Any:
    made = ModuleType(name)
    made.__version__ = version
    return made


def test_programs_are_listed_once_and_the_first_replaces(place: ModuleType) -> None:
    replaced: list[list[Any]] = []
    first, second = program("a"), program("b", "0.1.0+p2")
    for offered in (first, second, first):
        offer(offered, "Engine", ("1.2",), "engine_plugins", replaced.append)
    assert vars(place)["specc_programs"] == [first, second]
    assert replaced == [[first, second]], "the same list, once"


@pytest.mark.parametrize(
    ("tested", "versions"),
    [(("1.1", "1.2"), None), (("1.3",), "1.3"), (("1.20",), "1.20"), (("1.0", "1.1", "1.3"), "1.0, 1.1 and 1.3")],
)
def test_a_version_that_is_probed(
    place: ModuleType, tested: Sequence[str], versions: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was tested runs silently, another with a warning, once for all programs."""
    for name in ("a", "b"):
        offer(program(name), "Engine", tested, "engine_plugins", lambda _: None)
    assert len(vars(place)["specc_programs"]) == 2
    warning = f"specc: tested with Engine {versions}, this is 1.2+cpu: all that programs must have is there"
    assert [record.getMessage().startswith(warning) for record in caplog.records] == [True] * (versions is not None)


def test_a_version_in_which_something_is_missing(place: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(_: list[Any]) -> None:
        raise RuntimeError("Engine 1.2: Worker has no topk")

    with pytest.raises(RuntimeError, match="Worker has no topk"):
        offer(program("a"), "Engine", ("1.1",), "engine_plugins", replace)
    assert vars(place)["specc_programs"] == []
    monkeypatch.setenv("SPECC_PROGRAM", "a")
    with pytest.raises(SystemExit, match=r"SPECC_PROGRAM=a: Engine 1\.2: Worker has no topk"):
        offer(program("a"), "Engine", ("1.2",), "engine_plugins", replace)


def test_none_may_run(place: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of the engine is looked at or replaced, whatever its version, and the log says why."""
    monkeypatch.setenv("SPECC_PROGRAM", "none")
    with caplog.at_level(logging.INFO):
        offer(program("a"), "Engine", ("9.9",), "engine_plugins", pytest.fail)
    assert vars(place).get("specc_programs") is None
    assert caplog.messages == ["specc: a does not run: SPECC_PROGRAM=none"]


def test_programs_of_two_speccs_do_not_mix(place: ModuleType) -> None:
    offer(program("a"), "Engine", ("1.2",), "engine_plugins", lambda _: None)
    with pytest.raises(RuntimeError, match=r"b is of specc 0\.2\.0, a of 0\.1\.0"):
        offer(program("b", "0.2.0+p1"), "Engine", ("1.2",), "engine_plugins", pytest.fail)


def test_the_one_that_fits_runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    a, b = program("a"), program("b")
    assert chosen([a, b], "Engine", lambda candidate: ["num_steps"] if candidate is a else []) is b
    assert chosen([a], "Engine", lambda candidate: ["num_steps is 3", "page_size is 1"]) is None
    assert "a does not fit this server: num_steps is 3; page_size is 1. Engine's own steps run" in caplog.text
    assert caplog.records[0].name == "engine.specc", "a child of the engine's logger"
    with pytest.raises(ServerError, match="several programs fit this server, set SPECC_PROGRAM to one of a, b"):
        chosen([a, b], "Engine", lambda candidate: [])
    monkeypatch.setenv("SPECC_PROGRAM", "a")
    assert chosen([a, b], "Engine", lambda candidate: []) is a
    with pytest.raises(RuntimeError, match="a does not fit this server: num_steps"):
        chosen([a, b], "Engine", lambda candidate: ["num_steps"])
    with pytest.raises(RuntimeError, match="SPECC_PROGRAM=a: no such program is installed for Engine"):
        chosen([b], "Engine", lambda candidate: [])


def test_what_fails_is_logged_unless_it_must_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("no blocks")

    def misuse() -> None:
        raise ServerError("a word")

    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    with caplog.at_level(logging.INFO):
        assert tried(fail, "Engine") is None
    assert "no program runs, Engine's own steps do" in caplog.text
    assert "no blocks" in caplog.text
    with pytest.raises(ServerError):
        tried(misuse, "Engine")
    with pytest.raises(RuntimeError, match="no blocks"):
        tried(fail, "Engine", must=True)
    monkeypatch.setenv("SPECC_PROGRAM", "a")
    with pytest.raises(RuntimeError, match="no blocks"):
        tried(fail, "Engine")
    assert tried(lambda: 3, "Engine") == 3


def test_what_differs_is_logged_in_a_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without a traceback, which is of no use to whoever built for another server."""

    def differ() -> None:
        raise MisfitError("page_size is 16 in the program, blocks of the draft have 8 slots")

    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    with caplog.at_level(logging.INFO):
        assert tried(differ, "Engine") is None
    [record] = caplog.records
    assert record.levelname == "WARNING" and record.exc_info is None
    assert record.getMessage() == (
        "specc: the program does not fit this server: page_size is 16 in the program, blocks of the draft have 8 "
        "slots. Engine's own steps run"
    )
    with pytest.raises(MisfitError):
        tried(differ, "Engine", must=True)
    monkeypatch.setenv("SPECC_PROGRAM", "a")
    with pytest.raises(MisfitError):
        tried(differ, "Engine")


def test_words_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECC_CAPTURE", raising=False)
    assert word("SPECC_CAPTURE", ("drafts", "none"), "drafts") == "drafts"
    monkeypatch.setenv("SPECC_CAPTURE", "all")
    with pytest.raises(ServerError, match="SPECC_CAPTURE is one of drafts, none, got 'all'"):
        word("SPECC_CAPTURE", ("drafts", "none"), "drafts")
