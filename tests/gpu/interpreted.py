"""Every launch of the example programs, in Triton's interpreter, against the reference ops.

    TRITON_INTERPRET=1 PYTHONPATH=.:bench:tests python tests/gpu/interpreted.py EXAMPLE...

What test_kernels.py does with machine code, for machines without a GPU. A program of its own, because Triton decides
between interpreting and compiling when it is first imported.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from ours import TritonBackend, plan_of

from gpu.nodes import Pair, check_program
from specc.algorithms import names
from specc.build import build_program
from specc.config import load_config

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Check the programs named on the command line, two buckets of each."""
    warnings.filterwarnings("ignore", "Conversion of an array", DeprecationWarning)
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        build = build_program(load_config(ROOT / "examples" / f"{name}.yaml", names()))
        with tempfile.TemporaryDirectory() as folder:
            backend = TritonBackend(build, Path(folder))
            check_program(Pair(plan_of(build), backend, torch.device("cpu"), seed=len(name)), (1, 4))
        print(f"{name}: every launch leaves what its ops say")


if __name__ == "__main__":
    main()
