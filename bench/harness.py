"""What benchmarks of kernels share: their options, the device, and programs compiled for it.

Import it before anything that imports Triton: without a GPU it asks for Triton's interpreter.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)  # exp(-inf) is meant to be 0

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from programs import compile_shape

from specc.lab.measure.against.work import WorkSizes
from specc.lab.measure.backends import cuda_backend
from specc.lab.measure.interpreted import InterpretedBackend
from specc.runtime.backends import Backend
from specc.runtime.plan.plan import Plan


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of every benchmark: --json, --check-only."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="write the ratios here too")
    made.add_argument("--check-only", action="store_true", help="compare results, time nothing")
    return made


def device() -> torch.device:
    """Where programs run."""
    return torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")


@contextmanager
def compiled(
    shape: WorkSizes, buckets: Sequence[int], device: torch.device, *, keys: str = ""
) -> Iterator[tuple[Plan, Backend]]:
    """A program for the shape, and what launches its kernels: machine code on a GPU."""
    build = compile_shape(shape, buckets, keys=keys)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        yield build.plan, cuda_backend(build, root, device) if ON_GPU else InterpretedBackend(build, root)
