"""Nobody is sent to an index for what is ours: it has `specc` of somebody else's, and no program."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from specc.compiler.driver.wheel.wheel import PREFIX
from specc.compiler.support.extras import how_to_get

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TREES = (".ci", "bench", "docs", "examples", "specc", "templates", "tests")
KINDS = {".md", ".py", ".jinja", ".sh", ".txt", ".toml", ".yaml", ".yml", ""}
PIP = re.compile(r"\bpip3? (?:install|download|wheel|index versions)\b((?:\\\n|[^\n`;|&])*)")


def asked_of_an_index(text: str) -> list[str]:
    """What commands of a text have pip look up, and is ours. What has a slash, or names a file, is a path."""
    text = re.sub(r"\{\{ distribution \}\}", f"{PREFIX}x", text)  # as a template of METADATA names a program
    return [word for command in PIP.findall(text) for word in words(command) if is_ours(word)]


def words(command: str) -> list[str]:
    """The words of a command, also where it stands in a sentence or in a string of a program."""
    command = command.replace("\\\n", " ")
    try:
        parts = shlex.split(command)
    except ValueError:
        parts = command.replace("'", " ").replace('"', " ").split()
    return [word.strip("\"'(),.:") for word in parts]


def is_ours(word: str) -> bool:
    """Whether pip takes a word for a distribution of ours."""
    try:
        name = canonicalize_name(Requirement(word).name)
    except InvalidRequirement:
        return False
    return name in ("specc", PROJECT["name"]) or (name.startswith(PREFIX) and not word.endswith(".whl"))


def texts() -> Iterator[tuple[Path, str]]:
    """Every file of the tree that tells somebody something."""
    paths = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "constraints.txt")]
    paths += [path for tree in TREES for path in sorted((ROOT / tree).rglob("*")) if path.suffix in KINDS]
    for path in paths:
        if path.is_file() and path != Path(__file__).resolve():
            yield path, path.read_text(errors="replace")


def test_nobody_is_sent_to_an_index() -> None:
    assert {str(path.relative_to(ROOT)): asked for path, text in texts() if (asked := asked_of_an_index(text))} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pip install specc", ["specc"]),
        ("$ pip install sglang==0.5.23 'specc[cuda]'\n", ["specc[cuda]"]),
        ('message = "no xgrammar: pip install specc[grammar]"', ["specc[grammar]"]),
        ("it needs matplotlib (`pip install 'specc[bench]'`).", ["specc[bench]"]),
        ("pip install \\\n    specc-compiler>=0.1", ["specc-compiler>=0.1"]),
        ("pip install --quiet specc_program_toy[cuda]", ["specc_program_toy[cuda]"]),
        ("`pip install {{ distribution }}[cuda]`.", ["specc-program-x[cuda]"]),
        ("pip install './specc[cuda]' && pip install dist/specc_program_toy-*.whl", []),
        ("pip install '{{ file }}[cuda]' 'specc_compiler-0.1.0-py3-none-any.whl[cuda]'", []),
        ("pip install torch; specc is there", []),
    ],
)
def test_what_is_found(text: str, expected: list[str]) -> None:
    assert asked_of_an_index(text) == expected


def test_the_distribution_is_named_like_nobody_elses() -> None:
    assert PROJECT["name"] == "specc-compiler"
    assert PROJECT["scripts"].keys() == {"specc", "specc-opt"}
    page = (ROOT / "docs" / "installation.md").read_text()
    assert f"The\ndistribution is called `{PROJECT['name']}`" in page
    assert f"{PROJECT['name'].replace('-', '_')}-0.1.0-py3-none-any.whl[cuda]" in page


def test_plugins_ask_for_the_distribution_by_its_name() -> None:
    example = tomllib.loads((ROOT / "examples" / "plugin" / "pyproject.toml").read_text())["project"]
    assert example["dependencies"] == [PROJECT["name"]]
    page = (ROOT / "docs" / "plugins.md").read_text()
    assert re.findall(r"^dependencies = (.*)$", page, re.MULTILINE) == [f'["{PROJECT["name"]}"]']


@pytest.mark.parametrize("extra", ["grammar", "bench"])
def test_hints_name_extras_that_there_are(extra: str) -> None:
    assert extra in PROJECT["optional-dependencies"]
    assert how_to_get(extra) == f"in the clone of specc, pip install '.[{extra}]'"
