"""Findings as text, byte for byte, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from specc.compiler.support.diagnostics import Diagnostic, Note
from specc.compiler.support.location import Location
from specc.compiler.support.render import MAX_SHOWN, render, render_all, to_json

SOURCE = "name: a\n\ttopk: 1\nx: 'ein bißchen 日本語' # c\n" + "\n" * 6 + "num_steps: 4\n"
SOURCES = {"c.yaml": SOURCE}


def test_headline_snippet_hint() -> None:
    diagnostic = Diagnostic("config/unknown-key", "unknown key 'name'", Location("c.yaml", 1, 1, 4), "write it")
    assert render(diagnostic, SOURCES) == (
        "error[config/unknown-key]: unknown key 'name'\n --> c.yaml:1:1\n  |\n1 | name: a\n  | ^^^^\n  = hint: write it"
    )


def test_note_and_two_digit_lines() -> None:
    note = Note("num_steps is 4", Location("c.yaml", 10, 12, 1))
    diagnostic = Diagnostic("legal/chain-width", "no", Location("c.yaml", 1, 7, 1), notes=(note, Note("that is all")))
    assert render(diagnostic, SOURCES) == (
        "error[legal/chain-width]: no\n"
        " --> c.yaml:1:7\n"
        "  |\n"
        "1 | name: a\n"
        "  |       ^\n"
        "note: num_steps is 4\n"
        "  --> c.yaml:10:12\n"
        "   |\n"
        "10 | num_steps: 4\n"
        "   |            ^\n"
        "note: that is all"
    )


def test_unknown_length_marks_the_word() -> None:
    lines = render(Diagnostic("config/not-yet", "no", Location("c.yaml", 10, 1)), SOURCES).split("\n")
    assert lines[-1] == "   | ^^^^^^^^^"


def test_tabs_and_wide_characters_line_up() -> None:
    tab = render(Diagnostic("config/not-yaml", "no", Location("c.yaml", 2, 2, 4)), SOURCES).split("\n")
    assert tab[-2:] == ["2 |  topk: 1", "  |  ^^^^"]
    wide = render(Diagnostic("config/not-yaml", "no", Location("c.yaml", 3, 17, 3)), SOURCES).split("\n")
    assert wide[-2:] == ["3 | x: 'ein bißchen 日本語' # c", "  |                 ^^^^^^"]


def test_columns_past_the_end() -> None:
    lines = render(Diagnostic("config/not-yaml", "no", Location("c.yaml", 1, 99, 9)), SOURCES).split("\n")
    assert lines[-1] == "  |        ^"


def test_long_lines_are_cut_around_the_place() -> None:
    text = {"c.yaml": "a" * 500 + "BAD" + "b" * 500}
    lines = render(Diagnostic("config/not-yaml", "no", Location("c.yaml", 1, 501, 3)), text).split("\n")
    assert len(lines[-2]) < 180
    column = lines[-1].index("^")
    assert lines[-2][column : column + 3] == "BAD"


def test_without_place_or_text() -> None:
    assert render(Diagnostic("emit/io", "disk full"), {}) == "error[emit/io]: disk full"
    unknown = Diagnostic("ir/parse", "no", Location("m.specir", 4, 2), severity="warning")
    assert render(unknown, SOURCES) == "warning[ir/parse]: no\n --> m.specir:4:2"
    beyond = Diagnostic("ir/parse", "no", Location("c.yaml", 400, 2))
    assert render(beyond, SOURCES) == "error[ir/parse]: no\n   --> c.yaml:400:2"


def test_paths_replace_names() -> None:
    diagnostic = Diagnostic("config/not-yet", "no", Location("c.yaml", 1, 1))
    assert " --> some/where/c.yaml:1:1\n" in render(diagnostic, SOURCES, paths={"c.yaml": "some/where/c.yaml"})


def test_control_characters_cannot_steer_a_terminal() -> None:
    text = render(
        Diagnostic("config/not-yet", "a\x1b[2Jb", Location("c.yaml", 1, 1)), {"c.yaml": "x: \x1b]0;t\x07\u202e"}
    )
    assert not set(text) & set("\x1b\x07\u202e")


@pytest.mark.parametrize("char", ["\n", "\r", "\x00", "\x1b", "\x7f", "\x85", "\u200b", "\u2028", "\u202e", "\ud800"])
def test_what_cannot_be_seen_is_escaped(char: str) -> None:
    """In the message, notes, the hint and paths alike: a name cannot begin a line of its own."""
    odd, place = f"a{char}b", Location("c.yaml", 1, 1)
    text = render(Diagnostic("emit/io", odd, place, odd, (Note(odd),)), {}, paths={"c.yaml": odd})
    assert text.split("\n") == [
        line.replace("ODD", f"a{ascii(char)[1:-1]}b")
        for line in ("error[emit/io]: ODD", " --> ODD:1:1", "note: ODD", "  = hint: ODD")
    ]


class Counting(Mapping[str, str]):
    """Sources that count how often a text is asked for."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.sources, self.asked = sources, 0

    def __getitem__(self, key: str) -> str:
        self.asked += 1
        return self.sources[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    def __contains__(self, key: object) -> bool:
        return key in self.sources


def test_a_text_is_cut_into_lines_once() -> None:
    sources = Counting({"c.yaml": "key: 1\n" * MAX_SHOWN})
    diagnostics = [Diagnostic("config/duplicate-key", "twice", Location("c.yaml", 1 + n, 1)) for n in range(MAX_SHOWN)]
    assert len(list(render_all(diagnostics, sources))) == MAX_SHOWN
    assert sources.asked == 1


def test_the_first_findings_are_shown_and_the_others_counted() -> None:
    diagnostics = [Diagnostic("emit/io", str(number)) for number in range(20_000)]
    assert list(render_all(diagnostics[:MAX_SHOWN], {}))[-1] == f"error[emit/io]: {MAX_SHOWN - 1}"
    shown = list(render_all(diagnostics, {}))
    assert len(shown) == MAX_SHOWN + 1
    assert shown[-1] == f"{20_000 - MAX_SHOWN} more of 20000 findings are not shown"
    assert len(to_json(diagnostics)) == 20_000


def test_colors_only_on_request() -> None:
    diagnostic = Diagnostic("config/not-yet", "no", Location("c.yaml", 1, 1, 4), "h", (Note("n"),))
    assert "\x1b" not in render(diagnostic, SOURCES, color=False)
    colored = render(diagnostic, SOURCES, color=True)
    assert colored.startswith("\x1b[1;31merror[config/not-yet]\x1b[0m")
    assert "\x1b[1;31m^^^^\x1b[0m" in colored


def test_json() -> None:
    note = Note("n", Location("c.yaml", 2, 3))
    diagnostics = [
        Diagnostic("config/not-yet", "no", Location("c.yaml", 1, 2), "h", (note,)),
        Diagnostic("emit/io", "io"),
    ]
    assert to_json(diagnostics, {"c.yaml": "d/c.yaml"}) == [
        {
            "code": "config/not-yet",
            "severity": "error",
            "message": "no",
            "file": "d/c.yaml",
            "line": 1,
            "column": 2,
            "hint": "h",
            "notes": [{"message": "n", "file": "d/c.yaml", "line": 2, "column": 3}],
        },
        {
            "code": "emit/io",
            "severity": "error",
            "message": "io",
            "file": None,
            "line": None,
            "column": None,
            "hint": None,
            "notes": [],
        },
    ]
