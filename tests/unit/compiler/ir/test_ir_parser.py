"""Text -> module -> text, and what the parser says about every kind of wrong line."""

from __future__ import annotations

import pytest
from programs import EXAMPLES, MODEL, config_text, load, passes_to

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_config
from specc.compiler.config.load import load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.checker import check_module
from specc.compiler.ir.core import Module, Op
from specc.compiler.ir.declarations import Options
from specc.compiler.ir.text.parser import parse_module, parse_type
from specc.compiler.ir.text.printer import print_module, print_op
from specc.compiler.ir.types import StateType, TensorType
from specc.compiler.pass_manager.manager import BaseInstrument, run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.pipeline import PASSES
from specc.compiler.support.diagnostics import DiagnosticError
from specc.compiler.support.location import Location


class RoundTrip(BaseInstrument):
    """After every pass the module's text must spell the same module."""

    def after(self, module: Module, step: object) -> None:
        text = print_module(module)
        again = parse_module(text)
        assert print_module(again) == text
        assert again.decls == module.decls


@pytest.mark.parametrize("name", ["llama-8b-eagle", "qwen3-standalone"])
def test_examples_at_every_stage(name: str) -> None:
    loaded = load_config(EXAMPLES / f"{name}.yaml", names(), needs)
    module = start_module(loaded)
    RoundTrip().after(module, None)
    run_passes(module, passes_to("plan-graphs", loaded), Context(loaded), [RoundTrip()])


@pytest.mark.parametrize("name", ["standalone-chain", "eagle-chain", "standalone-tree-paged", "eagle-tree-wide"])
def test_examples_with_model_directories(name: str) -> None:
    """The same, with the sizes written where the example names a directory."""
    text = (EXAMPLES / f"{name}.yaml").read_text()
    block = "".join(f"  {key}: {value}\n" for key, value in MODEL.items())
    for model in ("target", "standalone", "eagle"):
        text = text.replace(f"  model: models/{model}\n", block)
    loaded = load_text(text, EXAMPLES / f"{name}.yaml", names(), needs)
    module = start_module(loaded)
    run_passes(module, passes_to("plan-graphs", loaded), Context(loaded), [RoundTrip()])


def module_of(*lines: str) -> Module:
    """A module of some lines."""
    return parse_module("\n".join(["module @m {", *lines, "}"]), "m.specir")


def test_the_limit_of_a_carried_value() -> None:
    """An axis, a count or none, before what else a carry says; one that is not declared is told."""
    module = module_of(
        "dim V : vocab = 8",
        "carry @a : i32[B] limit V kept",
        "carry @b : f32[B] limit 1",
        "carry @c : i32[B]",
        "carry @d : i32[B] limit Q",
    )
    assert [(c.limit, c.kept) for c in module.carries.values()] == [
        ("V", True),
        (1, False),
        (None, False),
        ("Q", False),
    ]
    assert print_module(parse_module(print_module(module))) == print_module(module)
    assert "dimension Q is not declared" in [problem.message for problem in check_module(module)]


def errors(text: str) -> list[tuple[int, int, str]]:
    """Line, column and message of every ``ir/parse`` error of a text."""
    with pytest.raises(DiagnosticError) as raised:
        parse_module(text, "m.specir")
    diagnostics = raised.value.diagnostics
    assert {d.code for d in diagnostics} == {"ir/parse"}
    assert raised.value.sources == {"m.specir": text}
    return [(d.location.line, d.location.column, d.message) for d in diagnostics if d.location]


WRONG_LINES = [
    ("dim B : batch <= 8", "unknown axis 'batch'"),
    ("dim B request", "cannot read 'dim B request'"),
    ("dim B : request < 8", "cannot read"),
    ("input %a : i64", "'i64' is not a type"),
    ("input %a : i65[B]", "'i65[B]' is not a type"),
    ("input %rows : i64[B]", "value %rows is defined twice"),
    ("input a : i64[B]", "cannot read"),
    ("carry @c : !kv<draft>", "only tensors are carried"),
    ("carry @c : f99[B]", "'f99[B]' is not a type"),
    ("phase start {", "unknown phase 'start'"),
    ("phase draft", "cannot read"),
    ("output x %rows", "cannot read"),
    ("frob @x {}", "unknown declaration 'frob'"),
    ("whatever", "cannot read 'whatever'"),
    ("established", "cannot read 'established'"),
    ("kernel @k {bytes = 1}", "kernel has the fields bytes, family, phase"),
    ('kernel @k {bytes = "1", family = "f", phase = "draft"}', "bytes of kernel must be int"),
    ("options @o {buckets = 4, longest = -1, page_size = 1}", "buckets of options must be"),
    ("kernel @k {bytes 1}", "cannot read the attributes at 'bytes 1'"),
    ("kernel @k {bytes = }", "Expecting value"),
    ("kernel @k {bytes = 1, bytes = 2}", "the attribute bytes is written twice"),
    ("kernel @k {bytes = " + "[" * 100_000 + "}", "the line is nested too deeply"),
    ("x" * 100_000, f"cannot read '{'x' * 187}..."),
    ("kernel @k {bytes = 1.5}", "is not an attribute's value"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_LINES)
def test_wrong_lines(line: str, message: str) -> None:
    ((number, column, text),) = errors(f"module @m {{\n  input %rows : i64[B]\n  {line}\n}}\n")
    assert (number, column) == (3, 3)
    assert message in text


WRONG_OPS = [
    ("%h = health.clear(%nothing) : i32[B]", "%nothing is read before it is defined"),
    ("%h = health.clear(%h) : i32[B]", "%h is read before it is defined"),
    ("%rows = health.clear(%rows) : i32[B]", "%rows is defined twice"),
    ("%a, %a = health.clear(%rows) : i32[B], i32[B]", "%a is defined twice"),
    ("%h = health.clear(%rows)", "1 results need 1 types"),
    ("%h = health.clear(%rows) : i32[B], i32[B]", "1 results need 1 types"),
    ("%h = health.clear(%rows) : something", "1 results need 1 types"),
    ("%h = health.clear(%rows) : i99[B]", "'i99[B]' is not a type"),
    ("health.clear(%rows) : i32[B]", "0 results need 0 types"),
    ("%h = health.clear %rows : i32[B]", "cannot read"),
    ("%h = health.clear(%rows) {bit} : i32[B]", "cannot read the attributes"),
    ("%h = health.clear(%rows) {bit = [1, [2]]} : i32[B]", "is not an attribute's value"),
    ("%h = health.clear(%rows) {bit = null} : i32[B]", "is not an attribute's value"),
    ('%h = health.clear(%rows) : i32[B] loc("x.yaml":0:1)', "not a location"),
    ("%h = health.clear(%rows) : i32[B] loc(x.yaml:1:1)", "1 results need 1 types"),
    ("phase draft {", "cannot read"),
]


@pytest.mark.parametrize(("line", "message"), WRONG_OPS)
def test_wrong_ops(line: str, message: str) -> None:
    text = f"module @m {{\n  input %rows : i64[B]\n  phase prepare {{\n    {line}\n  }}\n}}\n"
    ((number, column, reported),) = errors(text)
    assert (number, column) == (4, 5)
    assert message in reported


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "expected `module @name { ... }`"),
        ("// only a comment\n", 1, "expected `module @name { ... }`"),
        ("module @m {\n", 1, "expected `module @name { ... }`"),
        ("module @m {\nphase draft {\n}\n", 1, "expected `module @name { ... }`"),
        ("module @m {\n}\ninput %a : i64[B]\n", 3, "text after the module's end"),
        ("module @m {\n}\nmodule @n {\n}\n", 3, "text after the module's end"),
        ("module @m {\n  output x = %nothing\n}\n", 2, "output x reads %nothing, which nothing defines"),
    ],
)
def test_wrong_modules(text: str, line: int, message: str) -> None:
    reported = errors(text)
    assert reported[0][0] == line
    assert message in reported[0][2]


def test_a_wrong_head_is_reported_where_it_is() -> None:
    assert errors("modul @m {\n}\n")[0] == (1, 1, "expected `module @name {`")


def test_all_errors_of_a_file_are_reported() -> None:
    text = """module @m {
  dim B : nonsense
  input %rows : i64[B]
  phase prepare {
      %h = health.clear(%lens) : i32[B]
    %ok = health.clear(%rows) : i32[B]
    what is this
  }
  output h = %ok
  output x = %h
}
"""
    assert [(line, column) for line, column, _ in errors(text)] == [(2, 3), (5, 7), (7, 5), (10, 1)]


@pytest.mark.parametrize("line", ["dim B : request <= 8", "carry @c : i64[B]", "output o = %rows"])
def test_what_is_declared_twice(line: str) -> None:
    ((number, _, message),) = errors(f"module @m {{\n  input %rows : i64[B]\n  {line}\n  {line}\n}}\n")
    assert number == 4
    assert message.endswith("is declared twice")


@pytest.mark.parametrize("unit", ["aaaa", "a[a[", "?, ?", '", "', "{a ="])
@pytest.mark.parametrize("head", ["%a = x.y() : ", "%a = x.y() {", "%a = x.y(", "carry @a : ", ""])
def test_a_line_of_a_million_characters_is_read(head: str, unit: str) -> None:
    """By its length: whoever went back at every character would not come to the end."""
    long = unit * (1_000_000 // len(unit))
    assert {line for line, *_ in errors(f"module @m {{\nphase prepare {{\n{head}{long}\n}}\n}}\n")} == {3}


def test_comments_and_blank_lines() -> None:
    module = module_of(
        "  // dim K : branch = 1",
        "",
        "  dim B : request <= 8  // rows",
        '  carry @a : i64[B] loc("http://x // y\\"//":3:4)  // not "quoted',
        '  carry @b : i64[B] loc("ends in a backslash\\\\":5:6)  // "',
    )
    assert set(module.dims) == {"B"}
    assert module.carries["a"].location == Location('http://x // y"//', 3, 4)
    assert module.carries["b"].location == Location("ends in a backslash\\", 5, 6)


def test_attributes_of_every_type() -> None:
    line = '%h = health.clear(%rows) {a = -3, b = true, c = "x, y = {} \\""} : i32[B]'
    module = module_of("input %rows : i64[B]", "phase prepare {", line, "}")
    (op,) = module.find("health.clear")
    assert op.attrs == {"a": -3, "b": True, "c": 'x, y = {} "'}
    assert print_op(op) == line


def test_types() -> None:
    assert parse_type("bf16[B, 4096]") == TensorType("bf16", ("B", 4096))
    assert parse_type("f32[]") == TensorType("f32", ())
    assert parse_type("!kv<draft>") == StateType("draft")
    for text in ("", "i64", "i64[B", "!kv<>", "u16[B]", "kv<draft>"):
        with pytest.raises(ValueError, match="not a type"):
            parse_type(text)


def test_ops_need_no_types() -> None:
    module = module_of("input %rows : i64[B]", "phase prepare {", "%h = health.clear(%rows) : ?", "}")
    assert module.find("health.clear")[0].result.type is None


def test_locations_can_be_left_out() -> None:
    module = start_module(load())
    assert 'loc("small.yaml":2:12)' in print_module(module)
    assert "loc(" not in print_module(module, locations=False)


def test_declarations_keep_their_types() -> None:
    module = start_module(load(buckets=[1, 5]))
    (options,) = parse_module(print_module(module)).decls_of(Options)
    assert options == Options("config", (1, 5), 1, -1)


def test_file_names_are_escaped() -> None:
    loaded = load_text(config_text(), EXAMPLES / 'a "b".yaml', names(), needs)
    module = start_module(loaded)
    again = parse_module(print_module(module))
    assert _only(again).location == _only(module).location


def _only(module: Module) -> Op:
    (op,) = module.ops()
    return op


def test_a_phase_may_be_split() -> None:
    """Text order is execution order within a phase, whatever stands between."""
    lines = ["input %r : i64[B]", "phase prepare {", "%a = health.clear(%r) : ?", "}", "phase draft {", "}"]
    module = module_of(*lines, "phase prepare {", "%b = health.clear(%r) : ?", "}")
    assert [op.result.name for op in module.phases["prepare"]] == ["a", "b"]


def test_every_pass_is_covered_by_the_round_trip() -> None:
    assert [step.name for step in passes_to("plan-graphs")] == [name for name in PASSES if name != "check-resources"]
