"""A pass repeats: its options and the text that it was given make of it what the build made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from programs import load, passes_to
from strategies import configs, to_yaml

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_config, load_text
from specc.compiler.driver.compile import start_module
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.text.printer import print_module
from specc.compiler.pass_manager.instruments import spell
from specc.compiler.pass_manager.manager import run_passes
from specc.compiler.pass_manager.pass_base import Context
from specc.compiler.passes.pipeline import parse_pipeline

ROOT = Path(__file__).parents[2]
PATHS = [path for path in sorted((ROOT / "examples").glob("*.yaml")) if not path.stem.startswith("random")]
CHOSEN = ROOT / "tests" / "filecheck" / "tune-launches" / "chosen.yaml"


def repeat(loaded: LoadedConfig) -> list[str]:
    """Run every pass of a build twice, and return the names of those that changed something.

    The second run is by what is printed, without the configuration. Only expand-algorithm needs that.
    """
    module, changed = start_module(loaded), list[str]()
    for step in passes_to("plan-graphs", loaded):
        before = print_module(module)
        run_passes(module, [step], Context(loaded))
        after = print_module(module)
        if step.repeats:
            again = parse_module(before)
            (printed,) = parse_pipeline(spell(step))
            assert printed == step
            run_passes(again, [printed], Context())
            assert print_module(again) == after, spell(step)
        changed += [step.name] * (before != after)
    return changed


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_passes_of_examples(path: Path) -> None:
    assert "form-kernels" in repeat(load_config(path, names(), needs))


@settings(max_examples=15)
@given(configs())
def test_passes_of_any_configuration(keys: dict[str, Any]) -> None:
    assert "form-kernels" in repeat(load_text(to_yaml(keys), Path("random.yaml"), names(), needs))


def test_options_decide() -> None:
    """What a build is told by its configuration, a pass is told by its options."""
    carry = {"bonus": {"dtype": "int64", "written_by": "program"}}
    options = {"step": "rotated", "tables": {"slots": "block_table", "carry": carry}, "overlap": False, "page_size": 16}
    changed = repeat(load("EAGLE", **options))
    assert {"rotate-step", "place-carry", "bind-kv-layout"} <= set(changed)
    assert "tune-launches" in repeat(load_config(CHOSEN, names(), needs))
