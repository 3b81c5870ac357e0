"""Numbers of a reduced vocabulary become tokens in the launch that picks them, however they are picked and used."""

from __future__ import annotations

import pytest
import torch
from cluster_cases import Scan, TypedBuilder, carry, check_module, small_module
from kernel_cases import generator
from kernel_launcher import Launcher
from topk_cases import hostile_logits

from specc.compiler.ir.core import Module
from specc.compiler.ir.types import REDUCED, Dim, TensorType
from specc.runtime.plan.plan import TOKEN_MAP

V, SCORED, POOL = 90, 37, 9


def reduced(opcode: str, axis: tuple[str, ...], *, keep: str = "", branches: int = 1) -> Module:
    """One reduction over a part of the tokens, whose tokens are carried, health is raised, and both are handed out."""
    module = small_module(K=branches, N=2, V=V)
    module.dims["Vd"] = Dim("Vd", REDUCED, SCORED)
    table = module.add_input(TOKEN_MAP, TensorType("i64", ("Vd",)))
    b, rows = TypedBuilder(module), module.inputs["req_pool_indices"]
    logits = b.given("logits", "bf16", *axis, "Vd")
    with b.phase("extend"):
        attrs = {} if opcode == "vocab.topk" else {"dtype": "i64", "keep": keep}
        *_, index, bad = b.many(opcode, logits, rows, **attrs)
        token = b("vocab.translate", index, table, rows, names=("token",))
        raised = b("health.raise", b.given("earlier", "i32"), bad, names=("health",), bit=1)
        type_ = token.type
        assert isinstance(type_, TensorType)
        carry(module, "picked", "i64", *type_.shape[1:])
        b.many("carry.store", rows, token, field="picked")
    b.hand_out(token, raised)
    return module


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(
    ("opcode", "axis", "keep", "branches"),
    [
        ("vocab.argmax", (), "", 1),
        ("vocab.argmax", (), "K", 1),
        ("vocab.argmax", ("N",), "", 1),
        ("vocab.topk", (), "", 3),
        ("vocab.topk", ("K",), "", 3),
    ],
)
def test_tokens(launcher: Launcher, opcode: str, axis: tuple[str, ...], keep: str, branches: int, splits: int) -> None:
    module, source = reduced(opcode, axis, keep=keep, branches=branches), generator(splits)
    rows = torch.tensor([3, 0, 7, 5])
    each = [module.size(name) for name in axis]
    logits = hostile_logits(source, 4 * (each[0] if each else 1), SCORED, SCORED, torch.bfloat16)
    logits[0, : SCORED - 1] = -1.0
    logits[0, SCORED - 1] = 5.0  # the last column of the first row
    logits = logits.view(4, *each, SCORED)
    tokens = torch.randperm(V - 1, generator=source)[:SCORED].sort().values + 1
    earlier = torch.zeros(4, dtype=torch.int32)
    values = {"req_pool_indices": rows, "logits": logits, "earlier": earlier, TOKEN_MAP: tokens}
    token = check_module(launcher, module, source, values, Scan(splits, 16))["token"]
    assert not token[rows == 0].any()  # no map has token 0, and padding gives it
    scores = torch.nan_to_num(logits.float(), nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    first = token.reshape(4, *each, -1)[..., 0]
    assert torch.equal(first[rows != 0], tokens[scores.max(-1).indices][rows != 0])
    assert first[0].flatten()[0] == tokens[-1]
