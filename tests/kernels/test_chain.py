"""Chains that grow in place, by whatever makes their tokens; against plain lists and the reference ops."""

import pytest
import torch
from cluster_cases import POOL, Scan, TypedBuilder, check_module, choice, integer, random_batch, small_module
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import argmax, generator, quick, random_logits
from kernel_launcher import Launcher

from specc.compiler.ir.core import Module, Value
from specc.runtime.semantics.convention import DTYPES

FLOATS = ("f32", "f16", "bf16")


def module_of(steps: int, vocab: int = 40) -> Module:
    """A module of chains of so many drafts."""
    return small_module(K=1, S=steps, A=steps + 1, V=vocab)


def draft(b: TypedBuilder, dtype: str) -> Value:
    """The token i64[B, 1] of a forward."""
    logits = b.given("logits", dtype, "V")
    token, _ = b.many("vocab.argmax", logits, b.module.inputs["req_pool_indices"], dtype="i64", keep="K")
    return token


@pytest.mark.parametrize("dtype", FLOATS)
@settings(quick, max_examples=15)
@given(seed=st.integers(0, 2**32))
def test_what_becomes_of_a_drafted_token(launcher: Launcher, dtype: str, seed: int) -> None:
    """It starts or continues chains, with whose memory others may still want the chain of before, in one launch."""
    source = generator(seed)
    module = module_of(integer(source, 1, 9), integer(source, 1, 300))
    b, outputs = TypedBuilder(module), []
    bonus, lens = b.given("bonus", "i32"), b.given("accept_lens", "i32")
    with b.phase("draft"):
        token = draft(b, dtype)
        for number in range(integer(source, 1, 3)):
            kind = choice(source, ("start", "first", "append", "shift", "join", "advance"))
            if kind == "start":
                outputs.append(b("chain.start", bonus, token))
            elif kind == "first":
                outputs.append(b("chain.first", token))
            elif kind == "advance":
                outputs.append(b("kv.advance", b.given(f"at{number}", "i64", "K")))
            elif kind == "join":
                outputs.append(b("chain.join", bonus, b.given(f"drafts{number}", "i64", "S")))
            else:
                before = b.given(f"tokens{number}", "i64", "A" if kind == "shift" else choice(source, ("A", "S")))
                if integer(source, 0, 3) == 0:
                    module.outputs[f"before{number}"] = before
                outputs.append(
                    b("chain.shift", before, lens, token)
                    if kind == "shift"
                    else b("chain.append", before, token, column=integer(source, 0, module.size("S") - 1))
                )
        if integer(source, 0, 1):
            outputs.append(token)
    b.hand_out(*outputs)
    batch = random_batch(source)
    drawn = {"req_pool_indices": batch, "accept_lens": torch.randint(0, module.size("A") + 1, (len(batch),))}
    drawn["accept_lens"] = drawn["accept_lens"].int()
    drawn["logits"] = random_logits(source, len(batch), module.size("V"), module.size("V"), DTYPES[dtype])
    values = check_module(launcher, module, source, drawn, Scan(integer(source, 1, 4), 64, integer(source, 0, 2)))
    assert len({op.attrs["kernel"] for op in module.ops()}) == 1
    live = [argmax(line)[0] if row else 0 for line, row in zip(drawn["logits"], batch, strict=True)]
    assert values["index"][:, 0].tolist() == live


@pytest.mark.parametrize("path", [2, 3, 8, 9])
def test_shifting_by_every_accepted_length(launcher: Launcher, path: int) -> None:
    """Tokens past what is accepted stay, and those of a padding row, which accepts nothing, do all."""
    module = small_module(B=path + 1, K=1, A=path, V=40)
    b = TypedBuilder(module)
    with b.phase("extend"):
        tokens, lens = b.given("tokens", "i64", "A"), b.given("accept_lens", "i32")
        b.hand_out(b("chain.shift", tokens, lens, draft(b, "bf16"), names=("shifted",)))
    source = generator(path)
    before = torch.randint(0, 2**40, (path + 1, path), generator=source)
    logits = torch.randn(path + 1, 40, generator=source).to(torch.bfloat16)
    drawn = {"req_pool_indices": torch.arange(path + 1), "logits": logits, "tokens": before}
    drawn["accept_lens"] = torch.arange(path + 1, dtype=torch.int32)
    values = check_module(launcher, module, source, drawn, Scan(2, 16))
    for length, (line, shifted) in enumerate(zip(before.tolist(), values["shifted"].tolist(), strict=True)):
        token = argmax(logits[length])[0]
        assert shifted == (line[1:length] + [token] * (length > 0) + line[length:])[:path]
    assert len(before) < POOL


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8])
def test_a_chain_of_every_length(launcher: Launcher, steps: int) -> None:
    """Column by column, each from a forward of its own; what stands in memory before counts for nothing."""
    module = module_of(steps)
    b = TypedBuilder(module)
    with b.phase("draft"):
        bonus, chain = b.given("bonus", "i32"), b.given("before", "i64", "A")
        for column in range(1, steps + 1):
            logits = b.given(f"logits{column}", "f32", "V")
            rows = module.inputs["req_pool_indices"]
            token, _ = b.many("vocab.argmax", logits, rows, dtype="i64", keep="K")
            chain = b("chain.start", bonus, token) if column == 1 else b("chain.append", chain, token, column=column)
    module.outputs["chain"] = chain
    source, batch = generator(steps), torch.tensor([3, 0, 7])
    drawn = {"req_pool_indices": batch, "bonus": torch.tensor([5, 0, 9], dtype=torch.int32)}
    drawn |= {f"logits{column}": torch.randn(3, 40, generator=source) for column in range(1, steps + 1)}
    values = check_module(launcher, module, source, drawn)
    drafts = [[int(drawn[f"logits{c}"][b].argmax()) for c in range(1, steps + 1)] for b in range(3)]
    assert values[chain.name].tolist() == [[5, *drafts[0]], [0] * (steps + 1), [9, *drafts[2]]]
