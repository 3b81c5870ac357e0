"""Compiles what SGLang calls of flashinfer, for machines where compiling it would cost minutes: flashinfer_aot.py OUT.

Needs nvcc and curand's headers of CUDA 13, g++, and flashinfer with torch (any build of it) in the path; no GPU. OUT
gets folders of libraries, which flashinfer takes instead of compiling once they lie in `flashinfer/data/aot`. They are
bound by tvm-ffi, not by Python or torch, so any version of those loads them.

    FLASHINFER_CUDA_ARCH_LIST=9.0a MAX_JOBS=2 python bench/sglang/flashinfer_aot.py out
    tar -C out -cJf flashinfer-aot.tar.xz aot    # there: tar -C .../site-packages/flashinfer/data -xJf ...

On two cores that others used, too, the prefill of one size of heads took 16 minutes. That of FlashAttention 3, for what
is not cached, takes longer; `--no-fa3` leaves it out, and a server with SGLANG_FLASHINFER_USE_PAGED=1 does not call it.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from flashinfer.jit.attention import modules
from flashinfer.jit.cascade import gen_cascade_module
from flashinfer.jit.sampling import gen_sampling_module

PLAIN = (0, False, False)
"""Attention without positions, window and cap."""


def attention(head: int, dtype: torch.dtype, *, fa3: bool) -> Iterator[Any]:
    """Modules for heads of so many values: decode, verify and extend, and with `fa3` prefill of what is not cached."""
    types = (dtype, dtype, dtype, torch.int32, head, head)
    yield modules.gen_batch_decode_module(*types, *PLAIN)
    # Keys and values are two tensors of the same strides: the variant of these alone is loaded.
    yield modules._gen_batch_prefill_primary_module("fa2", *types, *PLAIN, False)
    if fa3:
        yield modules.gen_batch_prefill_module("fa3", *types, *PLAIN, False)


def wanted(heads: Sequence[int], dtype: torch.dtype, *, fa3: bool) -> Iterator[Any]:
    """All modules: those that sample, and where a prefill has a cached prefix, come first."""
    yield gen_sampling_module()
    yield gen_cascade_module()
    for head in heads:
        yield from attention(head, dtype, fa3=fa3)


def stand_in(folder: str) -> None:
    """A library for the linker in the place of the driver's, which is only where a GPU is."""
    library = Path(folder) / "libcuda.so"
    subprocess.run(
        ["c++", "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(library), "-x", "c", os.devnull], check=True
    )
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("LIBRARY_PATH"))))


def main() -> None:
    """Compile and copy, one line for each module."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--heads", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--no-fa3", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stand_in(folder)
        for module in wanted(given.heads, getattr(torch, given.dtype), fa3=not given.no_fa3):
            start, target = time.monotonic(), given.out / "aot" / module.name / f"{module.name}.so"
            module.build()
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module.jit_library_path, target)
            logging.info("%6.0f s  %4.1f MiB  %s", time.monotonic() - start, target.stat().st_size / 2**20, module.name)


if __name__ == "__main__":
    main()
