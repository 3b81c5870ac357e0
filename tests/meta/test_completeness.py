"""What a pass, a kernel family or a diagnostic must come with."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
from fuzz.generators import GENERATORS

from specc.compiler.kernels import COMPOSED, LONE
from specc.compiler.passes.pipeline import PASSES
from specc.compiler.support.codes import CODES

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
THIS = Path(__file__).resolve()


def test_every_pass_is_one_file() -> None:
    machinery = {"__init__", "invariants", "pipeline"}
    stems = {path.stem for path in (ROOT / "specc" / "compiler" / "passes").glob("*.py")} - machinery
    assert stems == {name.replace("-", "_") for name in PASSES}
    for name, step in PASSES.items():
        assert Path(inspect.getfile(step)).stem == name.replace("-", "_")
        assert (inspect.getmodule(step).__doc__ or "").startswith(f"{name}: ")  # type: ignore[union-attr]


@pytest.mark.parametrize("name", PASSES)
def test_every_pass_has_cases(name: str) -> None:
    cases = [path for path in (TESTS / "filecheck" / name).iterdir() if path.suffix in (".yaml", ".specir")]
    assert len(cases) >= 2


def sources(kinds: tuple[str, ...]) -> str:
    """The text of all tests but this one."""
    files = [path for path in TESTS.rglob("*") if path.suffix in kinds and path.resolve() != THIS]
    return "\n".join(path.read_text(errors="replace") for path in files)


def test_every_diagnostic_is_hit() -> None:
    """Every code occurs in some test or case."""
    text = sources((".py", ".yaml", ".specir"))
    assert sorted(code for code in CODES if code not in text) == []


def test_every_diagnostic_is_raised_somewhere() -> None:
    """No code outlives its reason; and the code uses no other."""
    files = [path for path in (ROOT / "specc").rglob("*.py") if path.name != "codes.py"]
    used = set(re.findall(r'"([a-z]+/[a-z-]+)"', "\n".join(path.read_text() for path in files)))
    assert {code for code in CODES if code not in used} == set()


def test_tests_name_no_machine() -> None:
    """Tests depend on no place and no time."""
    for path in TESTS.rglob("*.py"):
        if path.resolve() != THIS:
            assert not re.search(r"/(home|root|Users)/\w", path.read_text()), path


CLOCKS = {"time", "monotonic", "perf_counter", "process_time", "thread_time", "elapsed_time"}
"""Methods that say what time it is, or how long something took; those that end in `_ns` besides."""
CLOCK = re.compile(rf"\.\s*({'|'.join(CLOCKS)})(_ns)?\s*\(")


def reads_clock(node: ast.AST) -> bool:
    """Whether something in an expression asks a clock."""
    called = (call.func for call in ast.walk(node) if isinstance(call, ast.Call))
    return any(isinstance(name, ast.Attribute) and name.attr.removesuffix("_ns") in CLOCKS for name in called)


def durations(source: str) -> list[int]:
    """Lines on which a time is taken from another, or an assertion asks a clock: a limit is added to a time."""
    if not CLOCK.search(source):  # most files have no clock, and take long to parse
        return []
    taken: list[int] = []
    for node in ast.walk(ast.parse(source)):
        is_difference = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
        if (is_difference or isinstance(node, ast.Assert)) and reads_clock(node):
            taken.append(node.lineno)
    return taken


def test_no_test_measures_time() -> None:
    """What took long on one machine is quick on another, and on the same one while others use it."""
    files = sorted(TESTS.rglob("test_*.py"))
    assert {f"{path.relative_to(TESTS)}:{line}" for path in files for line in durations(path.read_text())} == set()


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("begin = time.monotonic()\nwork()\nassert time.monotonic() - begin < 5", [3, 3]),
        ("def took():\n    start = time.process_time_ns()\n    return time.process_time_ns() - start", [3]),
        ("assert first.elapsed_time(second) < 3", [1]),
        ("until = time.monotonic() + 60\nwhile time.monotonic() < until:\n    work()", []),
        ("monkeypatch.setattr(time, 'perf_counter', lambda: now - 1)", []),
    ],
)
def test_what_measures_time(source: str, lines: list[int]) -> None:
    assert durations(source) == lines


def test_the_map_shows_every_pass_in_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    boxes = re.findall(r'^ {4}[a-z]+\["<b>[^<]*</b><br/>([a-z</>-]+)"\]$', page, re.M)
    assert "<br/>".join(boxes).split("<br/>") == list(PASSES)


def test_the_map_counts_kernel_families() -> None:
    """In words, as pages write numbers."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    spelt = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    words = dict(enumerate(spelt.split(), 1))
    sentence = f"{words[len(COMPOSED)]} compose kernels from ops, {words[len(LONE)]} do not"
    assert sentence in page


def test_files_that_pages_name_exist() -> None:
    """So that a walk through the code does not end where something has moved."""
    for path in [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for name in re.findall(r"`((?:specc|templates|tests|kernels_generated)/[\w./-]+)`", path.read_text()):
            assert (ROOT / name).exists(), f"{path.name} names {name}"


WALKS = (ROOT / "docs" / "architecture.md").read_text().partition("## Five walks")[2].partition("**What a change")[0]
NAMED = re.compile(r"\(((?:`\w+`(?:, )?)+)\)|`([\w.]+)`|`((?:specc|templates|tests|kernels_generated)/[\w./-]+)`")
"""In a walk: names in brackets, another name, or a file."""


@pytest.mark.parametrize("walk", [walk.split("**")[0] for walk in re.split(r"(?m)^\*\*.*\*\*$", WALKS)[1:]])
def test_what_a_walk_names_is_in_the_file_that_it_names(walk: str) -> None:
    """A name is in the file before it, and one in brackets is defined there."""
    found = 0
    for step in re.split(r"(?m)^\d\. ", walk)[1:]:
        text = ""
        for bracketed, name, file in NAMED.findall(step.replace("\n", " ")):
            if file:
                text = (ROOT / file).read_text() if (ROOT / file).is_file() else ""
            for defined in re.findall(r"\w+", bracketed):
                assert re.search(rf"(?m)^ *(def|class) {defined}\b|^{defined}\b.* = ", text), (defined, step)
                found += 1
            if name and text and not name.endswith(".py"):
                assert re.search(rf"\b{re.escape(name)}\b", text), (name, step)
                found += 1
    assert found > 3


def test_pages_that_code_names_exist() -> None:
    for path in sorted((ROOT / "specc").rglob("*.py")):
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text()):
            assert (ROOT / name).is_file(), f"{path.relative_to(ROOT)} names {name}"


def test_the_page_of_an_adapter_lists_its_files() -> None:
    """By their places in the folder; `attention/` stands for its own."""
    page = (ROOT / "docs" / "sglang-adapter.md").read_text()
    table = page.partition("is copied into the wheel:")[2].partition("\n\n* **")[0]
    listed = re.findall(r"`((?:\w+/)?\w+\.py|attention/)`", re.sub(r"`attention/` \|.*", "`attention/`", table))
    folder = ROOT / "specc" / "engines" / "sglang"
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.name != "__init__.py"}
    files = {name for name in files if not name.startswith(("check/", "commands/"))}
    assert sorted(listed) == sorted({name if not name.startswith("attention/") else "attention/" for name in files})


def test_the_page_of_the_engine_lists_its_files() -> None:
    page = (ROOT / "docs" / "engine.md").read_text().partition("## How it works")[2].partition("\n\n* **")[0]
    listed = [name for row in re.findall(r"(?m)^\| (`.*?) \|", page) for name in re.findall(r"`(\w+)`", row)]
    files = {path.stem for path in (ROOT / "specc" / "lab" / "engine").rglob("*.py") if path.stem != "__init__"}
    assert sorted(listed) == sorted(files)


def test_the_page_of_contributors_lists_every_generator_of_fuzzing() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| generator | input |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"(?m)^\| `(\w+)` \|", table)) == sorted(GENERATORS)


def test_modules_of_adapters_that_tests_look_up_by_name_are_there() -> None:
    """A test that waits for a module that has moved waits for nothing, or changes nothing."""
    named = re.compile(r'\b_(sglang|vllm)((?:\.\w+)+)"')
    files = [path for engine in ("sglang", "vllm") for path in (ROOT / "tests" / engine).rglob("*.py")]
    found = {match.groups() for path in files for match in named.finditer(path.read_text())}
    adapters = ROOT / "specc" / "engines"
    places = [adapters.joinpath(engine, *name.split(".")) for engine, name in sorted(found)]
    assert [place for place in places if not (place.is_dir() or place.with_suffix(".py").is_file())] == []
    assert len(places) >= 3
