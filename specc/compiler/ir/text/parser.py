"""Text -> module: a line-oriented parser of the form that printer.py writes.

Every line is one declaration, so the parser is a table from a line's first word to a function; a line that does not
fit is an ``ir/parse`` diagnostic at its place, and parsing goes on with the next line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any

from specc.compiler.ir.core import PHASES, CarriedValue, Module, Value
from specc.compiler.ir.text.attributes import declaration
from specc.compiler.ir.types import AXES, DTYPES, Dim, StateType, TensorType, Type
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.location import Location

_NAME = r"[A-Za-z_][\w.\-]*"
_LOC = r'(?: loc\((?P<file>"(?:[^"\\]|\\.)*"):(?P<line>\d+):(?P<column>\d+)\))?'
_ATTRS = r'(?: (?P<attrs>\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}))?'
_OP = re.compile(
    rf"(?:(?P<results>%{_NAME}(?:, %{_NAME})*) = )?(?P<opcode>{_NAME})\((?P<operands>[^)]*)\){_ATTRS}"
    rf"(?: : (?P<types>.*?))?{_LOC}"
)
_ESTABLISHED = re.compile(r"established (?P<names>[\w-]+(?:, [\w-]+)*)")
_DIM = re.compile(rf"dim (?P<name>{_NAME}) : (?P<axis>\w+)(?: (?P<rel><=|=) (?P<size>[0-9]+))?")
_INPUT = re.compile(rf"input %(?P<name>{_NAME}) : (?P<type>.+)")
_MARKS = r"(?: limit (?P<limit>-?\w+))?(?P<given> given)?(?P<kept> kept)?(?: table (?P<table>program|engine))?"
_CARRY = re.compile(rf"carry @(?P<name>{_NAME}) : (?P<type>.+?){_MARKS}{_LOC}")
_OUTPUT = re.compile(rf"output (?P<name>{_NAME}) = %(?P<value>{_NAME})")
_DECL = re.compile(rf"(?P<kind>\w+) @(?P<name>\S+){_ATTRS}")
_TYPE = re.compile(r"(?P<dtype>\w+)(?:<(?P<of>\w+)>)?\[(?P<shape>[^\]]*)\]")
_STATE = re.compile(r"!(?P<kind>kv|state)<(?P<owner>\w+)>(?:\[(?P<along>\w+)\])?")
_ATTR = re.compile(r"\s*(?P<key>\w+) = ")
_COMMA = re.compile(r"\s*,?\s*")
_RESULT = r"(?:\?|!\w++<\w+>(?:\[\w+\])?+|\w++(?:<\w+>)?\[[^\]]*+\])"
_RESULTS = re.compile(rf"(?:{_RESULT}(?:, {_RESULT})*+)?")
_WHOLE = re.compile(r"[0-9]+")
_MAX_MESSAGE = 200


class _Failure(Exception):
    pass


def parse_type(text: str) -> Type:
    """A type from its text.

    Raises:
        ValueError: not a type.

    """
    if state := _STATE.fullmatch(text):
        return StateType(state["owner"], state["kind"], state["along"] or "")
    tensor = _TYPE.fullmatch(text)
    if tensor is None or tensor["dtype"] not in DTYPES:
        raise ValueError(f"{text!r} is not a type")
    entries = [entry.strip() for entry in tensor["shape"].split(",") if entry.strip()]
    return TensorType(tensor["dtype"], tuple(int(e) if _WHOLE.fullmatch(e) else e for e in entries), tensor["of"] or "")


def parse_module(text: str, file: str = "<specir>") -> Module:
    """The module which ``text`` spells.

    Raises:
        DiagnosticError: ``ir/parse``, one diagnostic for every line that is wrong.

    """
    parser = _Parser(file)
    for number, line in enumerate(text.splitlines(), start=1):
        parser.line(number, line)
    parser.end()
    if parser.problems:
        raise DiagnosticError(parser.problems, sources={file: text})
    assert parser.module is not None
    return parser.module


class _Parser:
    def __init__(self, file: str) -> None:
        self.file = file
        self.module: Module | None = None
        self.phase: str | None = None
        self.closed = False
        self.problems: list[Diagnostic] = []
        self.values: dict[str, Value] = {}
        self.pending: list[tuple[int, str, str]] = []
        self.outputs: set[str] = set()

    def line(self, number: int, raw: str) -> None:
        text = _strip_comment(raw).strip()
        if not text:
            return
        try:
            self._statement(text, number)
        except RecursionError:
            self._fail(number, len(raw) - len(raw.lstrip()) + 1, "the line is nested too deeply")
        except (_Failure, ValueError, KeyError, TypeError) as problem:
            self._fail(number, len(raw) - len(raw.lstrip()) + 1, str(problem))

    def end(self) -> None:
        if self.module is None or not self.closed:
            self._fail(1, 1, "expected `module @name { ... }`")
            return
        for number, name, value in self.pending:
            if value not in self.values:
                self._fail(number, 1, f"output {name} reads %{value}, which nothing defines")
            else:
                self.module.outputs[name] = self.values[value]

    def _fail(self, line: int, column: int, message: str) -> None:
        short = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."
        self.problems.append(Diagnostic("ir/parse", short, Location(self.file, line, column)))

    def _statement(self, text: str, number: int) -> None:
        if self.module is None:
            head = re.fullmatch(rf"module @(?P<name>{_NAME}) \{{", text)
            if head is None:
                raise _Failure("expected `module @name {`")
            self.module = Module(head["name"])
            return
        if self.closed:
            raise _Failure("text after the module's end")
        if text == "}":
            self.closed, self.phase = self.phase is None, None
        elif self.phase is not None:
            self._op(self.module, text)
        else:
            word = text.split(maxsplit=1)[0]
            handler = self._handlers().get(word, self._decl)
            handler(self.module, text, number)

    def _handlers(self) -> dict[str, Callable[[Module, str, int], None]]:
        return {
            "established": self._established,
            "dim": self._dim,
            "input": self._input,
            "carry": self._carry,
            "phase": self._phase,
            "output": self._output,
        }

    def _established(self, module: Module, text: str, _: int) -> None:
        match = _full(_ESTABLISHED, text)
        module.established = {word.strip() for word in match["names"].split(",")}

    def _dim(self, module: Module, text: str, _: int) -> None:
        match = _full(_DIM, text)
        if match["axis"] not in AXES:
            raise _Failure(f"unknown axis {match['axis']!r}")
        _once("dim ", match["name"], module.dims)
        size = None if match["size"] is None else int(match["size"])
        module.dims[match["name"]] = Dim(match["name"], match["axis"], size, match["rel"] == "<=")

    def _input(self, module: Module, text: str, _: int) -> None:
        match = _full(_INPUT, text)
        self.values[match["name"]] = module.add_input(match["name"], parse_type(match["type"]))

    def _carry(self, module: Module, text: str, _: int) -> None:
        match = _full(_CARRY, text)
        type_ = parse_type(match["type"])
        if not isinstance(type_, TensorType):
            raise _Failure("only tensors are carried")
        _once("carry @", match["name"], module.carries)
        limit = match["limit"]
        limit = int(limit) if limit is not None and _WHOLE.fullmatch(limit.removeprefix("-")) else limit
        kept, given = match["kept"] is not None, match["given"] is not None
        module.carries[match["name"]] = CarriedValue(
            match["name"], type_, _location(match), kept, limit, given, match["table"] or ""
        )

    def _phase(self, module: Module, text: str, _: int) -> None:
        match = _full(re.compile(r"phase (?P<name>\w+) \{"), text)
        if match["name"] not in PHASES:
            raise _Failure(f"unknown phase {match['name']!r}")
        self.phase = match["name"]

    def _output(self, module: Module, text: str, number: int) -> None:
        match = _full(_OUTPUT, text)
        _once("output ", match["name"], self.outputs)
        self.outputs.add(match["name"])
        self.pending.append((number, match["name"], match["value"]))

    def _decl(self, module: Module, text: str, _: int) -> None:
        match = _full(_DECL, text)
        decl = declaration(match["kind"], match["name"], _attrs(match["attrs"]))
        _once(f"{match['kind']} @", decl.name, {other.name for other in module.decls_of(type(decl))})
        module.decls.append(decl)

    def _op(self, module: Module, text: str) -> None:
        assert self.phase is not None
        match = _full(_OP, text)
        names = [name.strip().removeprefix("%") for name in (match["results"] or "").split(",") if name]
        types = _types(match["types"], len(names))
        operands = [self._value(name) for name in match["operands"].split(",") if name.strip()]
        for index, name in enumerate(names):
            if name in self.values or name in names[:index]:
                raise _Failure(f"%{name} is defined twice")
        op = module.add_op(
            self.phase,
            match["opcode"],
            operands,
            zip(names, types, strict=True),
            _attrs(match["attrs"]),
            _location(match),
        )
        self.values.update({value.name: value for value in op.results})

    def _value(self, text: str) -> Value:
        name = text.strip().removeprefix("%")
        if name not in self.values:
            raise _Failure(f"%{name} is read before it is defined")
        return self.values[name]


def _once(what: str, name: str, declared: Container[str]) -> None:
    if name in declared:
        raise _Failure(f"{what}{name} is declared twice")


def _full(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    match = pattern.fullmatch(text)
    if match is None:
        raise _Failure(f"cannot read {text!r}")
    return match


def _strip_comment(line: str) -> str:
    quoted = escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif quoted and char == "\\":
            escaped = True
        elif char == '"':
            quoted = not quoted
        elif not quoted and line.startswith("//", index):
            return line[:index]
    return line


def _types(text: str | None, count: int) -> list[Type | None]:
    parts = re.findall(_RESULT, text or "") if _RESULTS.fullmatch(text or "") else None
    if parts is None or len(parts) != count:
        raise _Failure(f"{count} results need {count} types")
    return [None if part == "?" else parse_type(part) for part in parts]


def _attrs(text: str | None) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    rest, decoder = (text or "{}")[1:-1], json.JSONDecoder()
    at = 0 if rest.strip() else len(rest)
    while at < len(rest):
        key = _ATTR.match(rest, at)
        if key is None:
            raise _Failure(f"cannot read the attributes at {rest[at:]!r}")
        if key["key"] in attrs:
            raise _Failure(f"the attribute {key['key']} is written twice")
        value, end = decoder.raw_decode(rest, key.end())
        attrs[key["key"]] = _attr_value(value)
        match = _COMMA.match(rest, end)
        at = match.end() if match else end
    return attrs


def _attr_value(value: Any) -> Any:
    """A word, a number, a truth value, or a tuple of words or of numbers."""
    if isinstance(value, list) and {type(item) for item in value} in (set(), {int}, {str}):
        return tuple(value)
    if type(value) not in (str, int, bool):
        raise _Failure(f"{json.dumps(value)} is not an attribute's value")
    return value


def _location(match: re.Match[str]) -> Location | None:
    if match["file"] is None:
        return None
    return Location(json.loads(match["file"]), int(match["line"]), int(match["column"]))
