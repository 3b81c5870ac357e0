"""Device functions that plugins bring, against the references that they bring: the example's, the page's, a toy's."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cluster_cases import (
    FLOATS,
    POOL,
    Scan,
    TypedBuilder,
    check_cluster,
    check_module,
    form,
    integer,
    random_batch,
    small_module,
)
from cluster_memory import random_tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import generator, quicker, random_rows
from kernel_launcher import Launcher
from programs import EXAMPLES, ROOT, compile_to, load
from topk_cases import hostile_logits

from specc.compiler import algorithms
from specc.compiler.algorithms.plugins.plugin import Plugin
from specc.compiler.algorithms.plugins.tiles import check_tile
from specc.compiler.ir.core import tensor_type
from specc.compiler.ir.opdef import OpDef
from specc.compiler.ir.ops import OPS
from specc.compiler.ir.types import Dim, TensorType
from specc.compiler.kernels import FAMILIES
from specc.compiler.support.diagnostics import DiagnosticError
from specc.runtime.semantics.convention import DTYPES

BLOCK = re.compile(r"^```python\n# (specc_medusa\w*\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def mix(operands: tuple[torch.Tensor, ...], attrs: dict[str, int], dims: dict[str, int]) -> tuple[torch.Tensor, ...]:
    """What the toy's op computes."""
    values, keep, scale, table, *extra = operands
    half = values.float() * scale.float()[:, None] * 0.5 + (extra[0].float() if extra else 0)
    flags = keep & (half > 0)
    shifted = torch.arange(dims["A"]) + 2 * table.sum() + 2 * attrs["by"]
    return half.to(torch.float16), flags, flags.sum(1).to(torch.int32), shifted.expand(values.shape).clone()


MIX = OpDef(
    "toy.mix",
    "values: T[B, A], keep: i1[B, A], scale: f16[B], table: i64[?t], extra?: bf16[B, A]"
    " -> half: f16[B, A], flags: i1[B, A], count: i32[B], shifted: i64[B, A]",
    "Half the values, scaled, which of those that are kept are positive, and how many.",
    {"by": int, "word": str},
    reference=mix,
    tile=Path(__file__).with_name("toy_tile.py"),
)


@pytest.fixture
def _ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test brings is gone after it."""
    before = dict(OPS)
    yield
    for name in OPS.keys() - before.keys():
        OPS.pop(name)


@pytest.fixture
def ban(_ops: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpDef]:
    """The op of docs/plugins.md, of the page's files."""
    files: dict[str, str] = {}
    for name, text in BLOCK.findall((ROOT / "docs" / "plugins.md").read_text()):
        files[name] = files.get(name, "") + text + "\n\n"
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    algorithm = importlib.import_module("specc_medusa").MEDUSA
    yield Plugin(SimpleNamespace(name="MEDUSA", value="specc_medusa:MEDUSA", load=lambda: algorithm)).load().ops[0]
    for name in files:
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.mark.parametrize("opcode", ["vocab.argmax", "vocab.topk"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_prologue_of_the_page(launcher: Launcher, ban: OpDef, opcode: str, dtype: str) -> None:
    """In the launch of the reduction: hostile logits of rows that may be padding, with one token that never wins."""
    for seed in range(8):
        source = generator(seed)
        module = small_module(K=2, V=integer(source, 8, 700))
        rows, b, vocab = module.inputs["req_pool_indices"], TypedBuilder(module), module.size("V")
        with b.phase("draft"):
            logits = b(ban.name, b.given("logits", dtype, "K", "V"), token=integer(source, 0, vocab - 1))
            attrs = {"dtype": "i64", "keep": ""} if opcode == "vocab.argmax" else {}
            b.hand_out(*b.many(opcode, logits, rows, **attrs))
        batch = random_rows(source, 3, POOL)
        lines = hostile_logits(source, 2 * len(batch), vocab, vocab, DTYPES[dtype])
        drawn = {"req_pool_indices": batch, "logits": lines.view(len(batch), 2, vocab)}
        check_module(launcher, module, source, drawn, Scan(splits=integer(source, 1, 4), block=256))
        assert len({op.attrs["kernel"] for op in module.ops()}) == 1


def test_logits_that_several_read_are_the_references(ban: OpDef) -> None:
    """As they are where another operand of the same op is what it changes."""
    module = small_module(V=64)
    rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
    with b.phase("draft"):
        logits = b(ban.name, b.given("logits", "f32", "V"), token=3)
        b.hand_out(logits, *b.many("vocab.argmax", logits, rows, dtype="i64", keep=""))
    assert [cluster[0].opcode for _, cluster in form(module)] == ["vocab.argmax"]
    (left,) = module.find(ban.name)
    assert left.attrs["kernel"] == "torch_medusa_ban"


ADD = """
import triton

@triton.jit
def toy_add(logits, column, row, other_ptr, V):
    return logits
"""


def test_what_is_read_from_memory_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits that the same launch changes are in no memory; other operands that it does not make are."""
    (tmp_path / "add.py").write_text(ADD)
    signature = "logits: T[B, V], other: T[B, V] -> logits: T[B, V]"
    add = OpDef("toy.add", signature, "", reference=len, tile=tmp_path / "add.py")
    check_tile(add)
    monkeypatch.setitem(OPS, add.name, add)
    for same in (False, True):
        module = small_module(V=64)
        rows, b = module.inputs["req_pool_indices"], TypedBuilder(module)
        first, second = b.given("first", "f32", "V"), b.given("second", "f32", "V")
        with b.phase("draft"):
            changed = b(add.name, first, second)
            logits = b(add.name, changed, changed if same else second)
            b.hand_out(*b.many("vocab.argmax", logits, rows, dtype="i64", keep=""))
        formed = [op.opcode for _, cluster in form(module) for op in cluster]
        assert formed == ["toy.add", "toy.add"] * (not same) + ["vocab.argmax"]


def test_an_op_without_a_tile_has_no_function_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's `load_row` is nobody's."""
    op = OpDef("load.row", "row_ptr: i32[B], live: i1[B] -> row: i32[B]", "", reference=len)
    monkeypatch.setitem(OPS, op.name, op)
    module = small_module()
    b = TypedBuilder(module)
    with b.phase("draft"):
        b.hand_out(b(op.name, b.given("first", "i32"), b.given("live", "i1")))
    assert form(module) == []


@pytest.mark.parametrize("keys", [{}, {"topk": 3, "num_draft_tokens": 6}], ids=["chain", "tree"])
@pytest.mark.usefixtures("_ops")
def test_the_op_of_the_example(launcher: Launcher, monkeypatch: pytest.MonkeyPatch, keys: dict[str, int]) -> None:
    """In the launch that verifies, of the plugin's own program: predictions that repeat, padding rows among them."""
    monkeypatch.syspath_prepend(str(EXAMPLES / "plugin" / "src"))
    algorithm = importlib.import_module("specc_anchored").ANCHORED
    point = SimpleNamespace(name="anchored", value="specc_anchored:ANCHORED", load=lambda: algorithm)
    monkeypatch.setattr(algorithms, "entry_points", lambda group: [point])
    module = compile_to("canonicalize", load("ANCHORED", num_steps=3, **keys))
    ((stem, cluster),) = [kernel for kernel in form(module) if any(op.opcode == "anchored.repeats" for op in kernel[1])]
    (op,) = module.find("anchored.repeats")
    (argmax,) = [op for op in cluster if op.opcode == "vocab.argmax"]
    seen = set[int]()
    for seed in range(6):
        source = generator(seed)
        batch = random_rows(source, 4, POOL)
        nodes, vocab = tensor_type(argmax["logits"]).sizes(module.dims)[1:]
        best = torch.randint(0, 2, (len(batch), nodes), generator=source)
        drawn = {"req_pool_indices": batch, argmax["rows"].name: batch}
        drawn[argmax["logits"].name] = torch.nn.functional.one_hot(best, vocab).float()
        for verify in module.find("verify.greedy"):
            drawn[verify["tokens"].name] = torch.randint(0, 2, (len(batch), nodes), generator=source)
            if (parent := verify.get("parent")) is not None:  # every node has two children
                drawn[parent.name] = ((torch.arange(nodes) + 1) // 2 - 1).expand(len(batch), -1)
        values = check_cluster(launcher, module, stem, cluster, source, drawn)
        seen |= set(values[op.result.name].tolist())
        assert not values[op.result.name][batch == 0].any()
    assert len(seen) > 2


def test_a_size_that_only_the_engine_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, MIX.name, MIX)
    module = small_module(A=4)
    module.dims["M"] = Dim("M", "corpus", None)
    b, table = TypedBuilder(module), module.add_input("table", TensorType("i64", ("M",)))
    given_ = b.given("values", "f32", "A"), b.given("keep", "i1", "A"), b.given("scale", "f16"), table
    with b.phase("commit"):
        b.hand_out(*b.many(MIX.name, *given_, by=7, word='a"b'))
    ((stem, cluster),) = form(module)
    with pytest.raises(DiagnosticError, match=r"the tile of toy\.mix asks for SIZE_TABLE, which only the engine knows"):
        FAMILIES[stem].spec(module, stem, cluster)


@settings(quicker, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([*FLOATS, "i32"]),
    width=st.integers(1, 40),
    left_out=st.booleans(),
    read=st.booleans(),
)
def test_all_that_a_tile_may_ask_for(
    launcher: Launcher, seed: int, dtype: str, width: int, left_out: bool, read: bool
) -> None:
    """Blocks, memory, what is left out, attributes, sizes, the library; its results are of the signature's types,
    also for what reads them in the same launch.
    """
    check_tile(MIX)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPS, MIX.name, MIX)
        source = generator(seed)
        module = small_module(A=width, N=width)
        b, table = TypedBuilder(module), integer(source, 1, 5)
        operands = [b.given("values", dtype, "A"), b.given("keep", "i1", "A"), b.given("scale", "f16")]
        operands.append(module.add_input("table", TensorType("i64", (table,))))
        if not left_out:
            operands.append(b.given("extra", "bf16", "A"))
        with b.phase("commit"):
            half, flags, count, shifted = b.many(MIX.name, *operands, by=7, word='a"b')
            b.hand_out(half, flags, count, shifted)
            if read:
                nothing = () if left_out else (operands[4],)
                b.hand_out(*b.many(MIX.name, half, flags, *operands[2:4], *nothing, by=-1, word='a"b'))
        rows = random_batch(source)
        values = random_tensor(source, (len(rows), width), DTYPES[dtype])
        drawn = {"req_pool_indices": rows, "values": values if dtype != "i32" else values % 1000}
        check_module(launcher, module, source, drawn)
        assert len({op.attrs["kernel"] for op in module.ops()}) == 1
