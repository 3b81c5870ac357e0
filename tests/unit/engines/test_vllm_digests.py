"""Digests of functions: what changes them, and which of a vLLM that is installed are not known."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from specc.engines.vllm.server import digests

SOURCE = '''
@jit
def step(rows, lengths: tl.constexpr, *, most=4):
    """Do it."""
    for row in rows:
        if row < 0: return None
        lengths[row] += f"{row:>4}" and [*rows, {**rows, "a": 1}]
    return lengths
'''


def of(source: str) -> str:
    """The digest of the first definition in a source."""
    return digests.digest(ast.parse(source).body[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('    """Do it."""\n', ""),
        ('"""Do it."""', '"""Do something."""\n    "and say it"'),
        ("    return lengths", "    # Nothing else.\n\n    return (lengths)"),
        ("if row < 0: return None", "if row < 0:\n            return None"),
        ('"a"', "'a'"),
    ],
)
def test_what_nobody_runs_is_in_no_digest(old: str, new: str) -> None:
    assert old in SOURCE
    assert of(SOURCE.replace(old, new)) == of(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@jit\n", ""), ("row < 0", "row <= 0"), ("most=4", "most=5"), (": tl.constexpr", ""), ("+=", "-="),
        ("{row:>4}", "{row:>5}"), ("return None", "return"), ("return lengths", "return rows"), ("**rows, ", ""),
        ("*, most", "most"), ('"a": 1', '"a": True'), ("[*rows, ", "[rows, "),
    ],
)  # fmt: skip
def test_all_else_is(old: str, new: str) -> None:
    assert old in SOURCE
    assert of(SOURCE.replace(old, new)) != of(SOURCE)


def test_a_digest_is_the_same_in_every_python() -> None:
    """Of 3.11 and of those whose syntax trees have more fields: the table is made by any of them."""
    assert of(SOURCE) == "433cb1511e4b"
    node = ast.parse(SOURCE).body[0]
    node._fields = (*node._fields, "of_a_python_to_come")
    node.of_a_python_to_come = []
    assert digests.digest(node) == of(SOURCE)


def test_functions_that_are_not_known(small_engine: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with another digest than in any version that is tested, and those that are nowhere."""
    package = small_engine("vllm")
    names = {"workers": ["noted", "order"], "workers.Worker": ["step", "close"], "workers.Gone": ["step"]}
    monkeypatch.setattr(digests, "KNOWN", {owner: dict.fromkeys(of, "") for owner, of in names.items()})
    found = digests.digests(package)
    assert found["workers.Gone.step"] == ""
    assert len({*found.values()}) == 5
    known = {owner: {name: f"0123456789ab {found[f'{owner}.{name}']}" for name in of} for owner, of in names.items()}
    known["elsewhere"] = {"order": "0123456789ab"}
    monkeypatch.setattr(digests, "KNOWN", known)
    assert digests.unknown(digests.installed()) == ["workers.Gone.step", "elsewhere.order"]
    file = package / "workers.py"
    file.write_text(file.read_text().replace("self.last = batch", "self.last = publish"))
    assert digests.unknown(digests.installed()) == ["workers.Worker.step", "workers.Gone.step", "elsewhere.order"]
