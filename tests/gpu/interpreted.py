"""Every launch of programs, in Triton's interpreter, against the reference ops.

    TRITON_INTERPRET=1 PYTHONPATH=.:bench:tests python tests/gpu/interpreted.py EXAMPLE|TOY...

What test_kernels.py does with machine code, for machines without a GPU. A program of its own, because Triton decides
between interpreting and compiling when it is first imported.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from ours import TritonBackend, plan_of

from gpu.nodes import Pair, check_program
from gpu.serving import Serving, Variant
from gpu.toy_programs import TOYS
from specc.algorithms import names, needs
from specc.build import build_program
from specc.config import load_config, load_text
from specc.runtime.backends import Backend
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.plan import Plan
from specc.runtime.program import Program

ROOT = Path(__file__).resolve().parents[2]
CPU, STEPS = torch.device("cpu"), 6


def main() -> None:
    """Check the programs named on the command line, two buckets of each."""
    warnings.filterwarnings("ignore", "Conversion of an array", DeprecationWarning)
    torch.set_num_threads(1)
    toys = {toy.name: toy.text for toy in TOYS}
    for name in sys.argv[1:]:
        path = ROOT / "examples" / f"{name}.yaml"
        loaded = load_text(toys[name], path, names(), needs) if name in toys else load_config(path, names(), needs)
        build = build_program(loaded)
        with tempfile.TemporaryDirectory() as folder:
            backend = TritonBackend(build, Path(folder))
            check_program(Pair(plan_of(build), backend, CPU, seed=len(name)), (1, 4))
            if name in toys:
                serve(plan_of(build), backend)
        print(f"{name}: every launch leaves what its ops say")


def serve(plan: Plan, backend: Backend) -> None:
    """Serve requests by interpreted kernels and by the reference ops, on models of integers; all must stay alike."""
    packages = {
        name: SimpleNamespace(Batch=Batch, load=partial(Program, plan, None, backend=how))
        for name, how in {"reference": ReferenceBackend(), "kernels": backend}.items()
    }
    serving = Serving({name: Variant(package, CPU) for name, package in packages.items()}, seed=len(plan.name))
    serving.run(STEPS)
    assert len(serving.accepted) > 1


if __name__ == "__main__":
    main()
