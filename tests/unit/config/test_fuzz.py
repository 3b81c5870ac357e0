"""Whatever the text: it loads, or it is a DiagnosticError; never anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.algorithms import names, needs
from specc.config import load_config, load_text
from specc.config.schema import ConfigFile, ModelBlock
from specc.support.diagnostics import DiagnosticError
from specc.support.render import render, to_json

from .conftest import VALID

HERE = Path("no/such/directory/c.yaml")
LINES = VALID.splitlines()
KEYS = [*ConfigFile.model_fields, *ModelBlock.model_fields, "nonsense"]
NASTY = [
    "", "null", "~", "true", "-1", "0", "1e3", ".nan", "-.inf", "0x1F", "9" * 60, "1_000", "2024-01-01",
    "[", "]", "{", "}", "[1, [2, [3]]]", "{a: {b: c}}", "*x", "&x 1", "&x [*x]", "!!int x", "!!binary aGk=",
    "!!python/object:os.system x", "!!set {a}", "!!omap [a: 1]", "!!timestamp 2024-01-01", "!<x> y", "! z",
    "'", '"', '"\\x00"', '"\\ud800"', "|", ">", "|\n  a\n  b", "%YAML 1.1", "---", "...", "- 1", "? a", ": b", "<<: *x",
    "<<: {topk: 2}", "\t", "\x00", "\u2028", "\u202e", "é", "🙂", "# c", "@", "`", "a: b: c", "''", '""', "=",
]  # fmt: skip

changes = st.lists(
    st.tuples(
        st.sampled_from(["replace line", "replace value", "delete", "repeat", "cut", "insert", "key"]),
        st.integers(0, len(LINES)),
        st.integers(0, 40),
        st.one_of(st.sampled_from(NASTY), st.sampled_from(KEYS), st.text(max_size=8)),
    ),
    min_size=1,
    max_size=6,
)


def mutate(lines: list[str], change: tuple[str, int, int, str]) -> None:
    """Apply one change to the lines of a configuration."""
    what, index, column, text = change
    index %= len(lines) or 1
    line = lines[index] if lines else ""
    key, colon, _ = line.partition(":")
    new = {
        "replace line": [text],
        "replace value": [f"{key}{colon} {text}"],
        "delete": [],
        "repeat": [line, line],
        "cut": [line[:column]],
        "insert": [line[:column] + text + line[column:]],
        "key": [f"{' ' * (column % 5)}{text}: 1", line],
    }[what]
    lines[index : index + 1] = new


def survives(text: str) -> None:
    """Load the text, and print what is wrong with it in every form."""
    try:
        load_text(text, HERE, names(), needs)
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            render(diagnostic, error.sources, False, error.paths).encode()
        json.dumps(to_json(error.diagnostics, error.paths)).encode()


@settings(max_examples=400, deadline=None)
@given(changes)
def test_changed_configurations(found: list[tuple[str, int, int, str]]) -> None:
    lines = list(LINES)
    for change in found:
        mutate(lines, change)
    survives("\n".join(lines))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(NASTY),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=12))
def test_random_values(document: dict[str, object]) -> None:
    survives(json.dumps(document))


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_random_text(text: str) -> None:
    survives(text)


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=80))
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    try:
        load_config(path, names(), needs)
    except DiagnosticError:
        return
