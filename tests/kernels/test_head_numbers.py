"""The instructions that make numbers of bf16 of weights in 8 bits, run one by one in Python: all pairs of bytes.

No interpreter runs them, and kernels on a CPU take another way.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

HEAD = Path(__file__).parents[2] / "templates" / "lib" / "head.py"


def instructions(name: str) -> list[list[str]]:
    """The instructions of a constant of the library: opcode and operands, the result first."""
    text = HEAD.read_text()
    block = re.search(rf'^{name} = tl\.constexpr\("""{{(.*?)}}"""\)$', text, re.DOTALL | re.MULTILINE)
    assert block is not None
    lines = [line.strip().rstrip(";") for line in block[1].strip().splitlines()]
    return [re.split(r"[ ,]+", line) for line in lines if not line.startswith(".reg")]


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c of both lanes of words i64, numbers of bf16; those here are exact in f64."""
    lanes = [
        [(word >> shift & 0xFFFF).to(torch.int32).to(torch.uint16).view(torch.bfloat16).double() for word in (a, b, c)]
        for shift in (0, 16)
    ]
    low, high = ((x * y + z).to(torch.bfloat16).view(torch.uint16).to(torch.int64) for x, y, z in lanes)
    return high << 16 | low


def run(name: str, words: Tensor) -> tuple[Tensor, Tensor]:
    """What is left in $0 and $1 after all instructions, of words i64 in $2."""
    values = {"$2": words}

    def read(operand: str) -> Tensor:
        return values[operand] if operand in values else torch.full_like(words, int(operand, 0))

    for opcode, result, *operands in instructions(name):
        a, *rest = map(read, operands)
        match opcode:
            case "mov.b32":
                value = a
            case "and.b32":
                value = a & rest[0]
            case "shr.b32":
                value = a >> rest[0]
            case "shl.b32":
                value = (a << rest[0]) & 0xFFFFFFFF
            case "lop3.b32":
                assert operands[3] == "0xea"  # the table of (a & b) | c
                value = (a & rest[0]) | rest[1]
            case "fma.rn.bf16x2":
                value = fused(a, rest[0], rest[1])
            case _:
                raise AssertionError(f"{opcode} is not known here")
        values[result] = value
    return values["$0"], values["$1"]


@pytest.mark.parametrize(("name", "dtype"), [("E4M3", torch.float8_e4m3fn), ("I8", torch.int8)])
def test_all_numbers_of_8_bits(name: str, dtype: torch.dtype) -> None:
    """In each of the four bytes beside random others; NaN, which no weight is, is some number."""
    source = torch.Generator().manual_seed(5)
    number = torch.arange(256)
    for byte in range(4):
        others = torch.randint(0, 2**32, (256,), generator=source)
        words = (others & ~(0xFF << 8 * byte)) | number << 8 * byte
        result = run(name, words)[0 if byte % 2 else 1] >> 16 * (byte // 2) & 0xFFFF
        made = result.to(torch.int32).to(torch.uint16).view(torch.bfloat16).double()
        expected = number.to(torch.uint8).view(dtype).double()
        same = (made == expected) & (made.signbit() == expected.signbit())
        assert bool((same | expected.isnan()).all()), number[~same].tolist()
