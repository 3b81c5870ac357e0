"""Places, findings, the collector, and the registry of codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specc.compiler.support.diagnostics import CODES, Diagnostic, DiagnosticError, Diagnostics, Note
from specc.compiler.support.location import Location
from specc.compiler.support.suggest import closest, did_you_mean


def at(line: int, column: int = 1, file: str = "x.yaml") -> Location:
    """Return a place."""
    return Location(file, line, column)


def test_location() -> None:
    assert str(at(12, 7)) == "x.yaml:12:7"
    assert at(2, 9) < at(10, 1)
    assert Location("x", 1, 1, 5) == Location("x", 1, 1)
    assert hash(Location("x", 1, 1, 5)) == hash(Location("x", 1, 1))


@pytest.mark.parametrize(("line", "column", "length"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_impossible_locations(line: int, column: int, length: int) -> None:
    with pytest.raises(ValueError, match="not a location"):
        Location("x", line, column, length)


def test_unknown_code() -> None:
    with pytest.raises(ValueError, match="unknown diagnostic code 'config/nonsense'"):
        Diagnostic("config/nonsense", "no")


def test_codes_are_well_formed_and_documented() -> None:
    table = (Path(__file__).parents[4] / "docs/diagnostics.md").read_text()
    rows = re.findall(r"^\| `([a-z]+/[a-z-]+)` \| (.*) \| (.+) \|$", table, re.MULTILINE)
    assert {code: meaning for code, meaning, _ in rows} == CODES
    assert len(rows) == len(CODES)
    for code, meaning in CODES.items():
        assert re.fullmatch(r"[a-z]+/[a-z]+(-[a-z]+)*", code)
        assert meaning.endswith(".")
        assert "\n" not in meaning


def test_error_needs_a_diagnostic() -> None:
    with pytest.raises(ValueError, match="at least one"):
        DiagnosticError([])
    error = DiagnosticError(Diagnostic("config/not-yet", "no", at(3)), {"x.yaml": "text"})
    assert str(error) == "x.yaml:3:1: error[config/not-yet]: no"
    assert (error.sources, error.paths) == ({"x.yaml": "text"}, {})


def test_collector_sorts_and_drops_repeats() -> None:
    diagnostics = Diagnostics()
    diagnostics.raise_if_errors()
    diagnostics.warning("config/hc-mult-default", "w", at(1))
    diagnostics.raise_if_errors()
    diagnostics.error("config/not-yet", "b", at(9), hint="h", notes=[Note("n", at(2))])
    diagnostics.error("config/not-yet", "a", at(2))
    diagnostics.error("config/not-yet", "a", at(2))
    diagnostics.error("emit/io", "nowhere")
    assert [d.message for d in diagnostics.errors] == ["nowhere", "a", "b"]
    with pytest.raises(DiagnosticError) as raised:
        diagnostics.raise_if_errors()
    assert [d.message for d in raised.value.diagnostics] == ["nowhere", "a", "b", "w"]


@pytest.mark.parametrize(
    ("word", "best"),
    [("pagesize", "page_size"), ("Page-Size", "page_size"), ("topK", "topk"), ("zzz", None), ("", None)],
)
def test_closest(word: str, best: str | None) -> None:
    assert closest(word, ("topk", "page_size")) == best


def test_did_you_mean_lists_when_nothing_is_close() -> None:
    assert did_you_mean("zzz", ("a", "b")) == "known: a, b"
    assert did_you_mean("zzz", ()) is None
