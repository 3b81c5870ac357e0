"""An op that masks logits before every argmax and top-k: one declaration, one reference, one device function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cluster_cases import (
    FLOATS,
    LOGITS,
    POOL,
    Scan,
    TypedBuilder,
    check_cluster,
    check_module,
    form,
    integer,
    small_module,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quicker, random_rows
from kernel_launcher import Launcher
from programs import compile_to, load
from topk_cases import hostile_logits

from specc.compiler.algorithms import names, needs
from specc.compiler.algorithms.plugins.tiles import check_tile
from specc.compiler.ir.core import Module, Op, Value, tensor_type
from specc.compiler.ir.infer import assign_types
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import TensorType
from specc.runtime.semantics.convention import DTYPES

BAN = OpDef(
    "logits.ban",
    "logits: T[B, *x, ?v], banned: i1[B, *x, ?v] -> logits: T[B, *x, ?v]",
    "The logits, -inf where they are banned.",
    reference=lambda operands, attrs, dims: (operands[0].masked_fill(operands[1], -torch.inf),),
    tile=Path(__file__).with_name("ban_tile.py"),
)


@pytest.fixture(autouse=True)
def _ban(monkeypatch: pytest.MonkeyPatch) -> None:
    """The op, as long as a test runs."""
    check_tile(BAN)
    monkeypatch.setitem(OPS, BAN.name, BAN)


def ban(module: Module, logits: Value, readers: list[Op]) -> Op:
    """Let some readers of logits read them masked."""
    type_, first = tensor_type(logits), readers[0]
    banned = module.add_input(f"banned_{logits.name}", TensorType("i1", type_.shape))
    index = module.phases[first.phase].index(first)
    op = module.add_op(first.phase, BAN.name, (logits, banned), [("masked", None)], {}, None, index)
    assign_types(module, op)
    for reader in readers:
        module.replace_operand(reader, logits, op.result)
    return op


@pytest.mark.parametrize("opcode", LOGITS)
@pytest.mark.parametrize("dtype", FLOATS)
@settings(quicker, max_examples=10)
@given(
    seed=st.integers(0, 2**32),
    each=st.integers(0, 4),
    times=st.integers(1, 2),
    vocab=st.integers(8, 300) | st.integers(301, 3000) | st.sampled_from([256, 512, 2048]),
    scan=st.builds(
        Scan, splits=st.integers(1, 8), block=st.sampled_from([64, 256, 1024]), slack=st.sampled_from([0, 0, 1, 8])
    ),
)
def test_masked_rows(
    launcher: Launcher, opcode: str, dtype: str, seed: int, each: int, times: int, vocab: int, scan: Scan
) -> None:
    """All kinds of rows, masked once or twice, in the launch of the reduction; and what is bad of what is left."""
    source = generator(seed)
    module = small_module(K=each or 3, N=each or 3, V=vocab)
    axis = ("N" if opcode == "vocab.argmax" else "K",) * (each > 0)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    logits = b.given("logits", dtype, *axis, "V")
    with b.phase("draft"):
        attrs = {"dtype": "i32", "keep": ""} if opcode == "vocab.argmax" else {}
        b.hand_out(*b.many(opcode, logits, rows, **attrs))
    (reduction,) = module.phases["draft"]
    for _ in range(times):
        ban(module, reduction["logits"], [reduction])
    batch = random_rows(source, integer(source, 1, 3), POOL)
    lines = hostile_logits(source, len(batch) * (each or 1), vocab, vocab, DTYPES[dtype])
    drawn = {"req_pool_indices": batch, "logits": lines.view(len(batch), *([each] if each else []), vocab)}
    check_module(launcher, module, source, drawn, scan)
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1


PROGRAMS = [(name, form) for name in names() for form in ("chain", "tree") if form == "chain" or needs(name).trees]


@pytest.mark.parametrize("outputs", [[], ["logprobs"]], ids=str)
@pytest.mark.parametrize(("algorithm", "form_"), PROGRAMS)
def test_masked_programs(launcher: Launcher, algorithm: str, form_: str, outputs: list[str]) -> None:
    """Before every reduction of every program: the same launches, and each computes what masking first gives."""
    keys: dict[str, Any] = {"topk": 3, "num_draft_tokens": 6} if form_ == "tree" else {}
    before, module = (compile_to("canonicalize", load(algorithm, **keys, outputs=outputs)) for _ in range(2))
    for reduction in module.find(*LOGITS):
        logits = reduction["logits"]
        ban(module, logits, [op for op in module.users(logits) if op.opcode in (*LOGITS, "vocab.logprob")])
    formed = form(module)
    assert [stem for stem, _ in formed] == [stem for stem, _ in form(before)]
    source, checked = generator(len(algorithm)), 0
    for stem, cluster in formed:
        masks = [op for op in cluster if op.opcode == BAN.name]
        reductions = [op for op in cluster if op.opcode in LOGITS]
        assert [op["logits"].source for op in reductions] == masks
        if masks:
            check_cluster(launcher, module, stem, cluster, source, drawn_for(module, source, masks[0], reductions[0]))
            checked += 1
    assert checked


def drawn_for(module: Module, source: torch.Generator, mask: Op, reduction: Op) -> dict[str, torch.Tensor]:
    """Operands of a program's kernel as other kernels would leave them; tokens are drawn from all there are."""
    rows = random_rows(source, 3, POOL)
    count, branches = len(rows), module.size("K")
    sizes = tensor_type(mask["logits"]).sizes(module.dims)
    drawn = {"req_pool_indices": rows, reduction["rows"].name: rows}
    drawn[mask["logits"].name] = torch.randn(count, *sizes[1:], generator=source)
    drawn["accept_lens"] = torch.randint(0, module.size("A") + 1, (count,), generator=source, dtype=torch.int32)
    for op in module.find("tree.grow"):
        drawn[op.out("kept").name] = torch.randint(0, branches**2, (count, branches), generator=source)
    return drawn
