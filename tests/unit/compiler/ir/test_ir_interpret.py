"""The interpreter of modules, on a graph small enough to follow by hand; and liveness of what it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from specc.compiler.ir.analysis.liveness import liveness
from specc.compiler.ir.interpret import interpret
from specc.compiler.ir.text.parser import parse_module
from specc.compiler.ir.types import StateType

TEXT = """module @m {
  established typed
  dim B : request <= 4
  dim V : vocab = 4
  dim P : pool = 4
  dim T : token
  input %rows : i64[B]
  input %lens : i64[B]
  input %kv : !kv<target>
  carry @first : i32[B]
  phase prefill {
    %logits, %kv1, %hidden = model.prefill_target(%rows, %lens, %kv) {capture = "full", dtype = "f32", logits_dtype = "f32", per = "T", width = 2} : f32[B, V], !kv<target>, f32[T, 2]
    %first, %bad = vocab.argmax(%logits, %rows) {dtype = "i32", keep = ""} : i32[B], i1[B]
    carry.store(%rows, %first) {field = "first"}
  }
  phase prepare {
    %root = carry.load(%rows) {field = "first"} : i32[B]
  }
  output first = %first
  output root = %root
}
"""  # noqa: E501


def forward(attrs: Mapping[str, Any], operands: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Logits that are largest at the request's length."""
    assert list(operands) == ["rows", "seq_lens"]
    assert attrs["width"] == 2
    logits = torch.nn.functional.one_hot(operands["seq_lens"], 4).to(torch.float32)
    return {"logits": logits, "hidden": torch.ones(6, 2)}


def test_a_prefill_and_a_step() -> None:
    module = parse_module(TEXT)
    inputs = {"rows": torch.tensor([2, 0, 1]), "lens": torch.tensor([3, 0, 2])}
    pools = {"first": torch.zeros(4, dtype=torch.int32)}
    values = interpret(module, "prefill", inputs, pools, {"model.prefill_target": forward}, 3)
    assert values["first"].tolist() == [3, 0, 2]
    assert values["hidden"].shape == (6, 2)
    assert "kv1" not in values
    assert pools["first"].tolist() == [0, 2, 3, 0]
    values = interpret(module, "step", {"rows": torch.tensor([1, 0])}, pools, {}, 2)
    assert values["root"].tolist() == [2, 0]
    assert "first" not in values


def test_a_missing_forward_is_an_error() -> None:
    inputs = {"rows": torch.tensor([2]), "lens": torch.tensor([3])}
    with pytest.raises(KeyError, match=r"model\.prefill_target"):
        interpret(parse_module(TEXT), "prefill", inputs, {}, {}, 1)


def test_liveness_goes_around_the_loop() -> None:
    """The store of the prefill is live because the step's load is."""
    module = parse_module(TEXT)
    live = liveness(module)
    assert live.fields == {"first"}
    assert live.states == {StateType("target")}
    assert live.ops == set(module.ops())
    names = {value.name for value in live.values}
    assert {"first", "root", "rows", "lens", "logits"} <= names
    assert not {"hidden", "bad"} & names
    del module.outputs["root"]
    live = liveness(module)
    assert live.fields == set()
    assert [op.opcode for op in module.ops() if op not in live.ops] == ["carry.store", "carry.load"]
