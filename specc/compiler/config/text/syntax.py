"""YAML text -> nodes with marks, through ruamel.yaml's parser; its errors become diagnostics."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Protocol

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scanner import RoundTripScanner, ScannerError

from specc.compiler.support.diagnostics import Diagnostics, Note
from specc.compiler.support.location import Location

_PARSER_FAILURES = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    NotImplementedError,
)


MAX_NESTING = 64
"""Most blocks, lists and mappings in each other, far more than any configuration has."""


WORDS_OF_A_VALUE = 8
"""Most that a value takes of a text: its key and itself, each with an anchor and a tag, a colon and a comma."""


class _Scanner(RoundTripScanner):
    """ruamel.yaml's scanner, with a limit on how deep a text is nested, and on how many words it has.

    It takes time by the square of the one, and much of it for each of the other.
    """

    def __init__(self, most_values: int, **given: Any) -> None:
        super().__init__(**given)
        self._words, self._most_values = 0, most_values

    def fetch_more_tokens(self) -> Any:
        """Read the next word, or comment."""
        self._words += 1
        if self._words > WORDS_OF_A_VALUE * self._most_values:
            raise ScannerError(problem=too_much(self._most_values), problem_mark=self.reader.get_mark())
        return super().fetch_more_tokens()

    def fetch_comment(self, comment: Any) -> None:
        """Take a comment, which is no word."""
        self._words -= 1
        super().fetch_comment(comment)

    def add_indent(self, column: int) -> bool:
        """Open a block where it is further in than the last."""
        self._limit(len(self.indents))
        return super().add_indent(column)

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:
        """Open a list or mapping in brackets."""
        self._limit(self.flow_level)
        super().fetch_flow_collection_start(TokenClass, to_push)

    def _limit(self, depth: int) -> None:
        """Raise ScannerError for more than `MAX_NESTING` levels."""
        if depth > MAX_NESTING:
            raise ScannerError(problem="the text is nested too deeply", problem_mark=self.reader.get_mark())


class Mark(Protocol):
    """The part of a ruamel.yaml mark that is used: 0-based line and column, offset in the text."""

    line: int
    column: int
    index: int


class YamlNode(Protocol):
    """The part of a ruamel.yaml node that is used."""

    tag: str
    value: Any
    start_mark: Mark
    end_mark: Mark


def too_much(most_values: int) -> str:
    """Return what is said of a text of more values, or of words for more."""
    return f"more than {most_values} values, counting what aliases repeat"


def compose(text: str, file: str, findings: Diagnostics, most_values: int) -> YamlNode | None:
    """Return the root node of the only document, or None after reporting; one of more than so many values is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a name that anchors twice: harmless
            yaml = YAML(typ="rt", pure=True)
            yaml.Scanner = partial(_Scanner, most_values)
            root: YamlNode | None = yaml.compose(text)  # pyright: ignore[reportUnknownMemberType]
    except YAMLError as error:
        _report_syntax(error, text, file, findings)
    except RecursionError:
        findings.error("config/not-yaml", "the text is nested too deeply", Location(file, 1, 1))
    except _PARSER_FAILURES as error:
        # The parser gives up on some malformed texts (odd directives, broken escapes) in its own words.
        findings.error("config/not-yaml", f"the YAML parser gave up: {error}", Location(file, 1, 1))
    else:
        if root is None:
            findings.error(
                "config/not-a-mapping",
                "the file is empty",
                Location(file, 1, 1),
                hint="start with a line like 'name: my_config'",
            )
        return root
    return None


def _report_syntax(error: Exception, text: str, file: str, findings: Diagnostics) -> None:
    """Report a parser error at its mark, with the context mark as a note."""
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML")
    mark = getattr(error, "problem_mark", None)
    location = _located(mark, text, file) if mark is not None else _at_offset(error, text, file)
    notes: list[Note] = []
    context, context_mark = getattr(error, "context", None), getattr(error, "context_mark", None)
    if context and context_mark is not None:
        place = _located(context_mark, text, file)
        if place != location:
            notes.append(Note(str(context), place))
    findings.error("config/not-yaml", problem, location, hint=_syntax_hint(problem), notes=notes)


def _located(mark: Mark, text: str, file: str) -> Location:
    """Return the place of a mark; a mark past the last line moves to the end of the text."""
    lines = text.splitlines() or [""]
    if mark.line >= len(lines):
        return Location(file, len(lines), len(lines[-1]) + 1, 1)
    return Location(file, mark.line + 1, mark.column + 1, 1)


def _at_offset(error: Exception, text: str, file: str) -> Location:
    """Return the place of an error that only knows its offset in the text (unprintable characters)."""
    offset = getattr(error, "position", 0)
    before = text[: offset if isinstance(offset, int) else 0]
    return Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"), 1)


def _syntax_hint(problem: str) -> str | None:
    """Return advice for the parser messages that beginners meet most."""
    if "'\\t'" in problem or "\\t" in problem or "tab" in problem:
        return "indent with blanks; YAML does not allow tabs there"
    if "another document" in problem:
        return "one file holds one configuration; remove the '---' line and what follows"
    if "undefined alias" in problem:
        return "an alias '*name' needs an anchor '&name' above it"
    if "mapping values are not allowed" in problem:
        return "look for a missing line break or a ': ' inside an unquoted value"
    return None
