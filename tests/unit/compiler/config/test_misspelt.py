"""One mistake, one finding: every key of every example misspelt, or missing, in turn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

EXAMPLES = Path(__file__).parents[4] / "examples"
SIZES = "hidden_size: 256, num_layers: 4, num_kv_heads: 2, head_dim: 64, vocab_size: 2048, dtype: float32"


def errors_of(text: str) -> tuple[Diagnostic, ...]:
    """What is wrong with a text; nothing if it loads."""
    try:
        load_text(text, EXAMPLES / "x.yaml", names(), needs)
    except DiagnosticError as error:
        return tuple(diagnostic for diagnostic in error.diagnostics if diagnostic.severity == "error")
    return ()


def keys_of(path: Path) -> list[tuple[str, str]]:
    """Every line of an example that begins with a key, and the key."""
    return re.findall(r"^( *([a-z_]+):.*)$", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_misspelt_key_is_one_finding(path: Path) -> None:
    """At its line, with the key that was meant: what the other keys then lack is not told besides."""
    if "model:" in path.read_text():
        pytest.importorskip("transformers")
    text = path.read_text()
    if "../build/" in text:
        pytest.skip("its models are made by hand")
    assert errors_of(text) == ()
    for line, key in keys_of(path):
        swapped = key[:-2] + key[-1] + key[-2] if key[-1] != key[-2] else key + "x"
        changed = text.replace(line, line.replace(key, swapped, 1), 1)
        first, *others = errors_of(changed)
        assert (others, first.code, first.hint) == ([], "config/unknown-key", f"did you mean '{key}'?"), (key, others)
        assert first.location is not None
        assert swapped in changed.splitlines()[first.location.line - 1]


def test_a_key_in_the_wrong_block_is_one_finding() -> None:
    model = f"{{{SIZES}}}"
    head = "name: a\nalgorithm: EAGLE\n"
    (diagnostic,) = errors_of(f"{head}num_draft_tokens: 5\ntarget: {{{SIZES}, topk: 2}}\ndraft: {model}\n")
    assert (diagnostic.code, diagnostic.hint) == ("config/unknown-key", "'topk' belongs at the top level")
    less = f"{{{SIZES.replace('hidden_size: 256, ', '')}}}"
    (diagnostic,) = errors_of(f"{head}hidden_size: 256\ntarget: {less}\ndraft: {less}\n")
    assert (diagnostic.code, diagnostic.hint) == (
        "config/unknown-key",
        "'hidden_size' belongs inside target: or draft:",
    )


def test_a_key_of_the_other_model_is_one_finding() -> None:
    text = f"name: a\nalgorithm: EAGLE\ntarget: {{{SIZES}, head: int8}}\ndraft: {{{SIZES}, state_form: select}}\n"
    assert [(found.code, found.hint) for found in errors_of(text)] == [
        ("config/unknown-key", "'head' belongs inside draft:"),
        ("config/unknown-key", "'state_form' belongs inside target:"),
    ]


def test_a_key_of_a_shape_is_one_of_shapes() -> None:
    text = f"name: a\nalgorithm: EAGLE\nshapes: [{{num_steps: 3, topkk: 1}}]\ntarget: {{{SIZES}}}\ndraft: {{{SIZES}}}\n"
    (found,) = errors_of(text)
    assert (found.code, found.hint) == ("config/unknown-key", "did you mean 'topk'?")
