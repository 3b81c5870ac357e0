"""The dtypes of the IR: what torch, Triton and the runtime, which has a table of its own, say of them."""

from __future__ import annotations

import pytest
import torch
from triton.runtime.jit import type_canonicalisation_dict

from specc.compiler.config.resolved import KV_BYTES
from specc.compiler.ir.types import DTYPES, Dtype
from specc.runtime import dtypes
from specc.runtime.semantics.convention import DTYPES as OF_TORCH


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_dtype_is_that_of_torch_and_triton(dtype: Dtype) -> None:
    assert dtype.bytes == getattr(torch, dtype.torch).itemsize
    spelled = type_canonicalisation_dict[dtype.torch]  # a bool is `i1` or `u1`, by the version, which are one type
    assert dtype.pointer == f"*{spelled}".replace("u1", "i1")


def test_the_runtime_reads_what_the_compiler_writes() -> None:
    assert {name: dtype.torch for name, dtype in DTYPES.items()} == dtypes.DTYPES
    assert {name: getattr(torch, dtype.torch) for name, dtype in DTYPES.items()} == OF_TORCH


def test_kv_pools_may_have_eight_bits() -> None:
    assert {name: getattr(torch, name).itemsize for name in KV_BYTES} == KV_BYTES
    assert KV_BYTES.keys() >= {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
