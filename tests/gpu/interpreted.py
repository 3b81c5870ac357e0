"""Every launch of programs, in Triton's interpreter, against the reference ops.

    TRITON_INTERPRET=1 PYTHONPATH=.:tests python tests/gpu/interpreted.py EXAMPLE|TOY...

What test_kernels.py does with machine code, for machines without a GPU.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from fakes import extremes
from fakes.given_rows import ROWS, Machine
from fakes.toys import LAUNCHED, ROTATED, SAMPLED, TOYS
from programs import load
from triton_interpreter import lighten, quietly

from gpu.nodes import Pair, check_program
from gpu.room import run_out
from gpu.rotated import RotatedVariant
from gpu.serving import Serving, Variant
from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_config, load_text
from specc.compiler.config.chosen import LaunchChoice, Tuning
from specc.compiler.driver.build import build_program
from specc.lab.measure.interpreted import InterpretedBackend
from specc.lab.measure.tuning.variants import kernels_of, knobs_of, with_choices
from specc.runtime import rotated
from specc.runtime.backends import Backend
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.entry.frame import Frame
from specc.runtime.plan.nodes import Computed, Reference
from specc.runtime.plan.plan import Plan
from specc.runtime.program import Program

ROOT = Path(__file__).resolve().parents[2]
TUNING = Tuning("sm_90", "", "", "", ())
CPU, STEPS = torch.device("cpu"), 6


TEXTS = {toy.name: toy.text for toy in (*TOYS, LAUNCHED, *ROTATED, SAMPLED)}


def main() -> None:
    """Check the programs named on the command line."""
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        check(name)
        print(f"{name}: every launch leaves what its ops say")


def check(name: str) -> None:
    """Check one program, two buckets of it; serve requests with it if it is a toy."""
    lighten()
    path = ROOT / "examples" / f"{name}.yaml"
    loaded = load_text(TEXTS[name], path, names(), needs) if name in TEXTS else load_config(path, names(), needs)
    build = build_program(loaded)
    with tempfile.TemporaryDirectory() as folder, quietly():
        backend = InterpretedBackend(build, Path(folder))
        check_program(Pair(build.plan, backend, CPU, seed=len(name)), (1, 4))
        if name in TEXTS and name not in (SAMPLED.name, LAUNCHED.name):
            serve(build.plan, backend)


def check_without_drafts(name: str) -> None:
    """Check the step without drafts of a toy that has one beside its own."""
    lighten()
    text = re.sub(r"num_steps: (\d+)", r"num_steps: [0, \1]", TEXTS[name])
    build = build_program(load_text(text, ROOT / f"{name}.yaml", names(), needs))
    with tempfile.TemporaryDirectory() as folder, quietly():
        plan = build.shapes[-1].plan
        assert plan.size("S") == 0
        check_program(Pair(plan, InterpretedBackend(build, Path(folder)), CPU, seed=len(name)), (1, 4))


def check_tuned(name: str) -> None:
    """Check one toy, of more tokens, whose launches have another form, and all programs that they may."""
    lighten()
    loaded = load_text(TEXTS[name].replace("vocab_size: 64", "vocab_size: 1100"), ROOT / f"{name}.yaml", names(), needs)
    plain = build_program(loaded).shapes[0]
    choices: list[LaunchChoice] = []
    for nodes in kernels_of(plain).values():
        own, knobs = plain.plan.kernels[nodes[0].kernel], knobs_of(plain, nodes[0].name)
        tile = next((size for size in knobs.tiles if size != own.constants.get(knobs.constant)), None)
        warps = next((count for count in knobs.warps if count != own.num_warps), None)
        wanted = LaunchChoice("", tile=tile, warps=warps, stages=max(knobs.stages, default=None))
        choices += [with_all_splits(loaded, replace(wanted, launch=node.name)) for node in nodes]
    build = build_program(with_choices(loaded, TUNING, tuple(choices)))
    assert build.plan.kernels != plain.plan.kernels
    with tempfile.TemporaryDirectory() as folder, quietly():
        check_program(Pair(build.plan, InterpretedBackend(build, Path(folder)), CPU, seed=len(name)), (1, 4))


def check_given_rows(algorithm: str, verify: str) -> None:
    """Serve requests with rows that the engine gives, by interpreted kernels and by the reference ops, alike.

    Kernels read what is handed over in place, as they do on a GPU, where nobody fills it up.
    """
    lighten()
    keys = {"verify": verify, "step": "rotated", "budget": "given", "max_requests": 6, "buckets": [1, 2, 4]}
    build, draw = build_program(load(algorithm, **keys)), random.Random(5)
    with tempfile.TemporaryDirectory() as folder, quietly():
        kernels, torch_s = (
            Machine(build.plan, how) for how in (InterpretedBackend(build, Path(folder)), ReferenceBackend())
        )
        for machine in (kernels, torch_s):
            if verify != "greedy":
                machine.step.set_sampling(ROWS, [Sampling(temperature=heat, seed=5) for heat in (0.7, 0.0, 1.3)])
            machine.prefill()
        for _ in range(STEPS):
            rows = draw.sample(ROWS, draw.randint(1, len(ROWS)))
            lens = [draw.randint(1, build.plan.size("A")) for _ in rows]
            at_least = draw.choice((0, 4))
            with patch.object(rotated, "_kernels_alone", return_value=True):
                mine = kernels.decode(rows, lens, at_least)
            wanted = torch_s.decode(rows, lens, at_least)
            assert [vars(half) for half in mine] == [vars(half) for half in wanted]


def with_all_splits(loaded: LoadedConfig, choice: LaunchChoice) -> LaunchChoice:
    """A choice of a form with the most programs a row that it may have then, in every bucket."""
    built = build_program(with_choices(loaded, TUNING, (choice,))).shapes[0]
    most = knobs_of(built, choice.launch).split
    return replace(choice, split=dict.fromkeys(built.plan.buckets, most) if most else {})


def crowd(name: str) -> None:
    """Serve requests of a toy by interpreted kernels, until none has room."""
    lighten()
    build = build_program(load_text(TEXTS[name], ROOT / f"{name}.yaml", names(), needs))
    with tempfile.TemporaryDirectory() as folder, quietly():
        load = partial(Program, [build.plan], None, backend=InterpretedBackend(build, Path(folder)))
        run_out(SimpleNamespace(Batch=Batch, load=load), CPU, seed=len(name))


def extremes_of(mode: str) -> None:
    """Rows that no model should say, through the interpreted kernels of a mode, whose texts are the reference's."""
    lighten()
    crowd = extremes.crowd(mode)[:: 97 if mode != "greedy" else 4]
    build, torch_s = extremes.build(mode, len(crowd)), ReferenceBackend()
    with tempfile.TemporaryDirectory() as folder, quietly():
        interpreted = InterpretedBackend(build, Path(folder))

        def launch(node: Computed, frame: Frame) -> None:
            (torch_s if isinstance(node, Reference) else interpreted).launch(node, frame)

        texts = extremes.play(build.plan, SimpleNamespace(launch=launch), crowd, steps=2)
    assert texts == extremes.play(build.plan, torch_s, crowd, steps=2)


def serve(plan: Plan, backend: Backend) -> None:
    """Serve requests by interpreted kernels and by the reference ops, on models of integers; all must stay alike."""
    packages = {
        name: SimpleNamespace(Batch=Batch, load=partial(Program, [plan], None, backend=how))
        for name, how in {"reference": ReferenceBackend(), "kernels": backend}.items()
    }
    kind = RotatedVariant if plan.rotated else Variant
    serving = Serving({name: kind(package, CPU) for name, package in packages.items()}, seed=len(plan.name))
    serving.run(STEPS)
    assert len(serving.accepted) > 1


if __name__ == "__main__":
    main()
