"""A search on a GPU: its file builds, and the program gives the same bits as the default at every step."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from specc.cli.main import app
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.driver.build import build_program
from specc.lab.measure.session import Session, on
from specc.lab.measure.tuning.variants import DEFAULT, Variant, compiled, kernels_of, knobs_of, with_choices

from .conftest import EXAMPLES

SIZES = "hidden_size: 64, num_kv_heads: 2, head_dim: 32, vocab_size: 9000, dtype: bfloat16"
TEXTS = {
    "chain": f"algorithm: EAGLE\nnum_steps: 3\ntarget: {{{SIZES}, num_layers: 3}}\ndraft: {{{SIZES}, num_layers: 1}}\n",
    "tree": f"algorithm: EAGLE\ntopk: 3\nnum_steps: 3\nnum_draft_tokens: 9\npage_size: 8\n"
    f"target: {{{SIZES}, num_layers: 3}}\ndraft: {{{SIZES}, num_layers: 1}}\n",
}
TEXTS |= {f"head of a {kind}": f"{text[:-2]}, head: int8}}\n" for kind, text in TEXTS.items()}


def config(kind: str, arch: str) -> str:
    return f"name: tuned_{kind.replace(' ', '_')}\nbuckets: [1, 6]\narchs: [{arch}]\n{TEXTS[kind]}"


def test_what_is_found_is_built(arch: str, tmp_path: Path) -> None:
    """Whatever was faster there: all of it is in the file, and the next build takes it."""
    path, tuning = tmp_path / "c.yaml", tmp_path / "t.yaml"
    path.write_text(config("tree", arch))
    done = CliRunner().invoke(app, ["tune", str(path), "-o", str(tuning), "--seconds", "60", "--format", "json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    (gains,) = report["steps"].values()
    assert [gain["bucket"] for gain in gains] == [1, 6]
    path.write_text(config("tree", arch) + "tuning: t.yaml\n")
    explained = CliRunner().invoke(app, ["explain", str(path), "--pass", "tune-launches"])
    found = {choice["launch"] for winner in report["found"] for choice in winner["choices"]}
    assert set(re.findall(r"(\w+): tuned: ", explained.stdout)) == found
    done = CliRunner().invoke(app, ["build", str(path), "-o", str(tmp_path / "dist")])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("kind", TEXTS)
def test_any_choice_gives_the_same_bits(kind: str, arch: str, device: torch.device, tmp_path: Path) -> None:
    """All that may be chosen of a launch, with the most programs a row, over several steps."""
    from specc.compiler.algorithms import names, needs
    from specc.compiler.config import load_text

    loaded = load_text(config(kind, arch), EXAMPLES / "c.yaml", names(), needs)
    tuning = Tuning(arch, "", "", "", ())
    plain = build_program(loaded).shapes[0]
    default = variant(loaded, tmp_path / "default", device)
    for number in range(5):
        choices: list[LaunchChoice] = []
        for nodes in kernels_of(plain).values():
            knobs = knobs_of(plain, nodes[0].name)
            known = knobs.tiles, knobs.warps, knobs.stages
            form = [values[number % len(values)] if values else None for values in known]
            choices += [LaunchChoice(node.name, None, *form) for node in nodes]
        built = build_program(with_choices(loaded, tuning, tuple(choices))).shapes[0]
        cut = tuple(
            replace(choice, split=dict.fromkeys((1, 6), most) if most else {})
            for choice in choices
            for most in (knobs_of(built, choice.launch).split,)
        )
        chosen = variant(with_choices(loaded, tuning, cut), tmp_path / str(number), device)
        for bucket in (1, 6):
            assert steps(default, bucket, device) == steps(chosen, bucket, device), (number, bucket)


def variant(loaded, folder: Path, device: torch.device) -> Variant:
    made = compiled(build_program(loaded), 0, DEFAULT, folder, device)
    assert made is not None and not made.refused
    return made


def steps(candidate: Variant, bucket: int, device: torch.device) -> list[list[float]]:
    """All that three steps decide."""
    with on(device):
        session = Session(candidate.built.plan, candidate.backend, device, bucket, steps=3)
        decisions: list[list[float]] = []
        for _ in range(3):
            session.step()
            decisions += [tensor.flatten().tolist() for tensor in session.decided().values()]
    return decisions
