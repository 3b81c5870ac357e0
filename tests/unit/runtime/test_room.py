"""Requests without room for a step, by the reference ops: every toy program, chains and trees of all algorithms."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes.toys import ALONE, Toy
from gpu.room import run_out

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.program import Program


@pytest.mark.parametrize("toy", ALONE, ids=lambda toy: toy.name)
def test_a_request_without_room_is_left_alone(toy: Toy) -> None:
    torch.set_num_threads(1)
    build = build_program(load_text(toy.text, Path("toy.yaml"), names(), needs))
    plan = build.plan
    load = partial(Program, [plan], None, backend=ReferenceBackend())
    run_out(SimpleNamespace(Batch=Batch, load=load), torch.device("cpu"), seed=len(toy.name))
