"""A rotated program does, step for step, what the whole one of the same configuration does, on the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from bound_script import bind, run
from hypothesis import given, settings
from hypothesis import strategies as st
from session import RecordingEngine, Script, content, defined, equal, script
from strategies import configs, to_yaml, whole_of
from torch import Tensor

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import Build, build_program
from specc.runtime.batch import Batch

LATER = 1
"""The bit of health that a rotated step raises of its drafts, and a whole one before they are verified."""


def build(keys: dict[str, Any]) -> Build:
    """Build a configuration, short of machine code."""
    return build_program(load_text(to_yaml(keys), Path("random.yaml"), names(), needs))


class Served:
    """Requests of a scenario in one program."""

    def __init__(self, built: Build, todo: Script, poison: int) -> None:
        self.built, self.todo = built, todo
        self.engine = RecordingEngine(built.loaded.config, todo)
        self.step = bind(built.plan, self.engine, todo, todo.tables(built.plan.tables()), poison)
        todo.sample(self.step)
        self.lengths = dict(todo.prompts)

    def turn(self, rows: list[int], *, first: bool) -> dict[str, Tensor]:
        """A prefill or a step of some requests: its outputs."""
        reads = first and "prompt_tokens" in self.built.module.inputs
        batch = Batch(rows, [self.lengths[row] for row in rows], self.todo.prompt_tokens(rows) if reads else None)
        outputs = run(self.step, self.engine, batch, first=first)
        if not first:
            self.lengths |= dict(zip(rows, outputs["new_seq_lens"].tolist(), strict=True))
        return defined(outputs, rows)

    def verified(self) -> list[Tensor]:
        """The tokens that the target has read in every step so far, of padding rows none."""
        calls = [operands for name, _, operands in self.engine.calls if name == "target"]
        return [operands["tokens"][operands["rows"] != 0] for operands in calls]


@settings(max_examples=12)
@given(configs(rotates=True), st.integers(0, 1 << 16))
def test_every_step_is_that_of_the_whole_program(keys: dict[str, Any], seed: int) -> None:
    """Tokens, drafts, lengths, log-probabilities, health and keys and values of the text, whatever the temperature."""
    torch.set_num_threads(1)
    rotated, whole = build(keys), build(whole_of(keys))
    assert rotated.plan.rotated
    assert not whole.plan.rotated
    todo = script(rotated.loaded.config, seed, steps=5)
    rotated_run, whole_run = Served(rotated, todo, 0xFF), Served(whole, todo, 0x5A)
    drafted = dict.fromkeys(todo.prompts, 0)
    for index, batch in enumerate([list(todo.prompts), *todo.batches]):
        rows = [row for row in batch if row]
        outputs, wanted = (served.turn(rows, first=not index) for served in (rotated_run, whole_run))
        for name, value in wanted.items():
            if name != "health":
                assert equal(outputs[name], value), f"{name} of run {index}"
        health = outputs["health"] | outputs.get("propose.health", 0)
        assert torch.equal(health & ~LATER, wanted["health"] & ~LATER), f"health of run {index}"
        expected_health = [drafted[row] if index else 0 for row in rows]
        assert (wanted["health"] & LATER).tolist() == expected_health, f"health of the drafts of run {index}"
        drafted |= dict(zip(rows, (health & LATER).tolist(), strict=True))
        held, other_held = (content(served.engine, served.lengths) for served in (rotated_run, whole_run))
        assert held.keys() == other_held.keys()
        for key, words in held.items():
            assert all(map(torch.equal, words, other_held[key])), f"keys and values of {key} after run {index}"
    assert all(map(torch.equal, rotated_run.verified(), whole_run.verified()))
    assert len(rotated_run.verified()) == len(whole_run.verified()) == len(todo.batches)
