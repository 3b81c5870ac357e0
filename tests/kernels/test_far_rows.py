"""Rows of logits that start past 2**31 elements: every kernel that scans them gives what it gives of rows side by side.

The far rows lie in memory that is reserved and never touched but where they are. It also begins 2**31 elements before
the first row, so that an offset that wraps around finds zeros, and not another's memory.
"""

import mmap
from typing import Any

import pytest
import torch
from kernel_cases import generator
from kernel_families import FAMILIES, Family
from kernel_launcher import Launcher

NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux; Python has the name since 3.13
BATCH, ROWS, VOCAB, FAR = 2, 2, 50, 2**30
SIZES = {"V": VOCAB, "S": 2, "BLOCK": 16, "SPLITS": 2, "HEALTH_BIT": 1, "ORPHAN_BIT": 2, "W_bonus": 1}
CONSTANTS = SIZES | dict.fromkeys(("N", "A", "K", "ROWS"), ROWS)
ONE_ROW = {"draft_step", "extend_stash", "row_topk"}
"""Families with one row of logits per request."""
TENSORS = {"*fp16": torch.float16, "*fp32": torch.float32, "*i32": torch.int32, "*i64": torch.int64, "*i1": torch.bool}


def far_apart(logits: torch.Tensor) -> torch.Tensor:
    """The first row of a copy of f16[rows, V], with FAR elements from row to row."""
    before, width = 2 * FAR, logits.element_size()
    size = (before + len(logits) * FAR) * width
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    places = [(before + row * FAR) * width for row in range(len(logits))]
    rows = [torch.frombuffer(memory, dtype=logits.dtype, count=VOCAB, offset=place) for place in places]
    for row, content in zip(rows, logits, strict=True):
        row.copy_(content)
    return rows[0]


def results(
    launcher: Launcher, family: Family, flags: dict[str, Any], batch: int, logits: torch.Tensor, stride: int
) -> dict[str, torch.Tensor]:
    """All memory but the logits after a launch; before it there are zeros and the numbers of the rows."""
    arguments: dict[str, Any] = {}
    for name, kind in family.signature(flags, "fp16", "fp16"):
        arguments[name] = torch.zeros(256, dtype=TENSORS[kind]) if kind in TENSORS else 0
    arguments["rows_ptr"] = torch.arange(batch) + 1
    given = arguments | {"logits_ptr": logits}
    constants = {name: stride if name == "STRIDE" else CONSTANTS[name] for name in family.constant_names(flags)}
    rows = batch if family.stem in ONE_ROW else batch * ROWS
    launcher.launch(family.stem, flags, (batch, 2 * rows // batch), given, constants)
    del arguments["logits_ptr"]
    return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}


SCANNING = dict.fromkeys(("draft_step", "row_argmax", "row_topk", "tree_step", "verify_commit", "extend_stash"), "")
"""Kernels that scan logits, the plainest of a family or one with a flag."""
SCANNING |= {"verify_commit with sums": "logprobs", "extend_stash with top-k": "topk", "tree_build": "fused"}


@pytest.mark.parametrize("name", SCANNING)
def test_rows_past_32_bits(launcher: Launcher, name: str) -> None:
    if launcher.device != "cpu":
        pytest.skip("a GPU has no memory that is reserved and never touched")
    family, flag = FAMILIES[name.split()[0]], SCANNING[name]
    flags = next(flags for flags in family.combinations() if not flag or flags[flag])
    batch = BATCH * ROWS if family.stem in ONE_ROW else BATCH
    near, other = torch.randn(2, BATCH * ROWS, VOCAB, generator=generator(7)).half()
    want = results(launcher, family, flags, batch, near, VOCAB)
    found = results(launcher, family, flags, batch, far_apart(near), FAR)
    differs = results(launcher, family, flags, batch, torch.cat((near[:2], other[2:])), VOCAB)
    assert all(torch.equal(found[name], want[name]) for name in want)
    assert any(not torch.equal(differs[name], want[name]) for name in want)
