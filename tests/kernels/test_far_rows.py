"""Rows of logits that start past 2**31 elements: every kernel that scans them gives what it gives of rows side by side.

The far rows lie in memory that is reserved and never touched but where they are. It also begins 2**31 elements before
the first row, so that an offset that wraps around finds zeros, and not another's memory.
"""

import mmap

import pytest
import torch
from cluster_cases import Scan, TypedBuilder, launch_of, prepared, small_module
from kernel_cases import generator
from kernel_launcher import Launcher
from torch import Tensor

from specc.compiler.ir.core import Module

NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux; Python has the name since 3.13
BATCH, ROWS, VOCAB, FAR = 2, 2, 50, 2**30


def far_apart(logits: Tensor) -> Tensor:
    """The first row of a copy of f16[rows, V], with FAR elements from row to row."""
    before, width = 2 * FAR, logits.element_size()
    size = (before + len(logits) * FAR) * width
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE)
    places = [(before + row * FAR) * width for row in range(len(logits))]
    rows = [torch.frombuffer(memory, dtype=logits.dtype, count=VOCAB, offset=place) for place in places]
    for row, content in zip(rows, logits, strict=True):
        row.copy_(content)
    return rows[0]


SCANNING = {"argmax": 1, "argmax of rows": ROWS, "sums": ROWS, "topk": 1, "topk of branches": ROWS}
"""Rows of logits of a request, by what is computed of them."""


def scanning(name: str) -> Module:
    """A module that reduces logits."""
    opcode = "vocab.topk" if name.startswith("topk") else "vocab.argmax"
    module = small_module(B=BATCH * ROWS, K=ROWS, N=ROWS, V=VOCAB)
    axis = {1: (), ROWS: ("K",) if opcode == "vocab.topk" else ("N",)}[SCANNING[name]]
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        logits = b.given("logits", "f16", *axis, "V")
        attrs = {} if opcode == "vocab.topk" else {"dtype": "i32", "keep": ""}
        results = b.many(opcode, logits, rows, **attrs)
        b.hand_out(*results)
        if name == "sums":
            b.hand_out(b("vocab.logprob", logits, rows, results[0]))
    return module


def results(launcher: Launcher, name: str, logits: Tensor, far: Tensor | None = None) -> dict[str, Tensor]:
    """All memory but the logits after a launch, of rows side by side or far apart."""
    batch, shape = BATCH * ROWS // SCANNING[name], (ROWS, VOCAB) if SCANNING[name] > 1 else (VOCAB,)
    given = {"req_pool_indices": torch.arange(batch) + 1, "logits": logits.view(batch, *shape)}
    slack = 0 if far is None else FAR - VOCAB
    memory, launch = prepared(scanning(name), given, generator(3), Scan(2, 16))
    if far is not None:
        launch = launch_of(memory.module, launch.spec.family, memory.cluster, batch, Scan(2, 16, slack))
        memory.tensors["logits"] = far
    launch.run(launcher, memory)
    return {key: value for key, value in memory.tensors.items() if key != "logits"}


@pytest.mark.parametrize("name", SCANNING)
def test_rows_past_32_bits(launcher: Launcher, name: str) -> None:
    if launcher.device != "cpu":
        pytest.skip("a GPU has no memory that is reserved and never touched")
    near, changed = torch.randn(2, BATCH * ROWS, VOCAB, generator=generator(7)).half()
    want, far_results = results(launcher, name, near), results(launcher, name, near, far_apart(near))
    differs = results(launcher, name, torch.cat((near[:2], changed[2:])))
    assert all(torch.equal(far_results[name], want[name]) for name in want)
    assert any(not torch.equal(differs[name], want[name]) for name in want)
