"""The kernels that SGLang's adapter brings as source compile for GPUs; the interpreter takes more than the compiler."""

from __future__ import annotations

import os
import subprocess
import sys

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specc.engines.sglang.attention.windowed.second_pool import fill_second
from specc.engines.sglang.attention.slot_lists import fill_lists, pack_mask
from specc.engines.sglang.attention.step_tables import fill_tables
from specc.engines.sglang.attention.windowed.window_lists import fill_windows

words = {"rows_ptr": "*i64", "seq_lens_ptr": "*i64", "slots_stride": "i32", "pages_stride": "i32"}
words |= {"mask_ptr": "*u8", "packed_ptr": "*u8"}
second = {name: "*i64" for name in ("map_ptr", "written_ptr", "by_token_ptr", "listed_ptr")}
words |= {"count": "i32"}

def built(kernel, arch, constants):
    names = [parameter.name for parameter in kernel.params if not parameter.is_constexpr]
    signature = {name: (words | second).get(name, "*i32") for name in names} | dict.fromkeys(constants, "constexpr")
    made = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", arch, 32))
    assert made.asm["cubin"] and not made.metadata.shared > 48 << 10
    print(made.metadata.name)

shared = {"SHARES": 16, "BLOCK": 512}
for arch in (80, 90, 100):
    for topk, page, steps in ((1, 1, 3), (4, 16, 3), (1, 1, 0)):
        sizes = {"P": page, "S": steps, "D": max(steps - 1, 0), "K": topk} | shared
        tables = {"LARGEST": 8, "VERIFIED": 4 if topk == 1 else 0, "WINDOW": 8, "FORWARDS": 8, "BRANCH": 4}
        built(fill_tables, arch, sizes | tables)
        built(fill_lists, arch, sizes | {"BRANCHES": 8 * topk, "C": 4096, "N": 8, "FORWARDS": 4})
    built(fill_second, arch, {"LARGEST": 8, "P": 16, "W": 4, "WRITES": 4} | shared)
    windows = {"W": 1023, "N": 4, "NODES": 4, "ROWS": 64} | shared
    built(fill_windows, arch, windows)
    built(fill_windows, arch, windows | {"map_ptr": None})
    built(pack_mask, arch, {"N": 8, "BYTES": 4096} | shared)
"""
KERNELS = [*["fill_tables", "fill_lists"] * 3, "fill_second", *["fill_windows"] * 2, "pack_mask"]


def test_kernels_compile() -> None:
    """In a process of its own, since tests interpret."""
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == KERNELS * 3
