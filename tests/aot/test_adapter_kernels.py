"""The kernel that SGLang's adapter brings as source compiles for GPUs; the interpreter takes more than the compiler."""

from __future__ import annotations

import os
import subprocess
import sys

COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from specc.adapters.sglang.attention.step_tables import fill_tables

words = {"rows_ptr": "*i64", "seq_lens_ptr": "*i64", "slots_stride": "i32", "pages_stride": "i32"}
names = [parameter.name for parameter in fill_tables.params if not parameter.is_constexpr]
for arch in (80, 90, 100):
    for topk, page in ((1, 1), (4, 16)):
        constants = {"LARGEST": 8, "P": page, "S": 3, "K": topk, "VERIFIED": 4 if topk == 1 else 0, "WINDOW": 8}
        constants |= {"FORWARDS": 8, "BRANCH": 4, "SHARES": 16, "BLOCK": 512}
        signature = {name: words.get(name, "*i32") for name in names} | dict.fromkeys(constants, "constexpr")
        made = triton.compile(ASTSource(fill_tables, signature, constants), target=GPUTarget("cuda", arch, 32))
        assert made.asm["cubin"] and not made.metadata.shared > 48 << 10
        print(made.metadata.name)
"""


def test_step_tables_compile() -> None:
    """In a process of its own, since tests interpret."""
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["fill_tables"] * 6
