"""Results are typed: they have what the program hands out by name, and say so."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import typing
from typing import Any, get_args

import pytest
import torch

from specc.compiler.config.schema import ConfigFile
from specc.runtime.entry.outputs import Attribute
from specc.runtime.entry.result import (
    HostPrefill,
    HostProposal,
    HostResult,
    PrefillResult,
    ProposeResult,
    Score,
    StepResult,
)
from specc.runtime.plan.outputs import MEANINGS

DECODED = {
    "predict": torch.tensor([[4, 7, 0], [5, 0, 0]], dtype=torch.int32),
    "accept_lens": torch.tensor([2, 1], dtype=torch.int32),
    "new_seq_lens": torch.tensor([9, 6]),
    "bonus": torch.tensor([7, 5], dtype=torch.int32),
    "health": torch.tensor([0, 1], dtype=torch.int32),
}
PROPOSED = ProposeResult, HostProposal
PREFILLED = {name: DECODED[name] for name in ("bonus", "health")}
SCORES = {
    "logprobs": torch.tensor([[-1.0, -2.0, 9.0], [-3.0, 9.0, 9.0]]),
    "best_tokens": torch.tensor([[[4, 1], [7, 2], [9, 9]], [[5, 3], [9, 9], [9, 9]]], dtype=torch.int32),
    "best_logprobs": torch.tensor([[[-1.0, -1.5], [-2.0, -2.5], [9, 9]], [[-3.0, -3.5], [9, 9], [9, 9]]]),
}


def public(value: object) -> set[str]:
    """What completion offers."""
    return {name for name in dir(value) if not name.startswith("_")}


def test_completion_offers_what_there_is() -> None:
    methods = {"outputs", "start_copy", "to_host"}
    on_host = {"outputs", "tokens", "scores", "faults"}
    decoded, prefilled = StepResult(DECODED), PrefillResult(PREFILLED)
    assert public(decoded) == methods | DECODED.keys()
    assert public(decoded.to_host()) == on_host | DECODED.keys()
    assert public(prefilled) == methods | PREFILLED.keys()
    assert public(prefilled.to_host()) == on_host | PREFILLED.keys()


def test_every_output_of_a_configuration_is_typed() -> None:
    """Those of `outputs:` with what comes along, and those that are always there, of a step and of a prefill."""
    asked = get_args(get_args(typing.get_type_hints(ConfigFile)["outputs"])[0])
    best = {"best_tokens", "best_logprobs"}
    assert {*asked, *best, *DECODED, "expected_tokens", "drafts"} == MEANINGS.keys()
    of_prefills = {*PREFILLED, "logprobs", *best}
    for kind, names in (
        *((kind, MEANINGS.keys() - {"drafts"}) for kind in (StepResult, HostResult)),
        *((kind, {"health", "drafts"}) for kind in PROPOSED),
    ):
        assert {name for name, member in inspect.getmembers(kind) if isinstance(member, Attribute)} == names
    for kind in (PrefillResult, HostPrefill):
        assert {name for name, member in inspect.getmembers(kind) if isinstance(member, Attribute)} == of_prefills


def test_a_plugins_outputs_are_attributes() -> None:
    drafted = torch.tensor([3, 4])
    result = StepResult({**DECODED, "drafted": drafted, "to_host": drafted})
    assert result.drafted is drafted  # type: ignore[attr-defined]
    assert result.to_host().drafted == [3, 4]  # type: ignore[attr-defined]
    assert {"drafted", "to_host"} <= public(result)
    assert result.outputs["to_host"] is drafted, "a method keeps its name, and the output is there by its own"


def test_a_result_says_what_it_holds_without_reading_it() -> None:
    held = {name: tensor.to("meta") for name, tensor in DECODED.items()}
    listed = "predict i32[2, 3], accept_lens i32[2], new_seq_lens i64[2], bonus i32[2], health i32[2]"
    assert repr(StepResult(held)) == f"<StepResult {listed}>"
    assert repr(PrefillResult(PREFILLED)) == "<PrefillResult bonus i32[2], health i32[2]>"
    assert repr(PrefillResult(PREFILLED).to_host()) == "HostPrefill(outputs={'bonus': [7, 5], 'health': [0, 1]})"


@pytest.mark.parametrize("kind", [StepResult, HostResult])
def test_help_has_shapes_and_dtypes(kind: type) -> None:
    page = pydoc.plain(pydoc.render_doc(kind))
    for name in MEANINGS.keys() - {"drafts"}:
        assert f" |  {name}\n |      {MEANINGS[name]}\n" in page


def test_results_stay_what_they_are() -> None:
    result = StepResult(DECODED)
    with pytest.raises(AttributeError, match="cannot assign to field 'bonus'"):
        result.bonus = DECODED["predict"]
    with pytest.raises(AttributeError, match="the output 'bonus' cannot be set"):
        object.__setattr__(result, "bonus", DECODED["predict"])
    assert result.bonus is DECODED["bonus"]


def test_tokens_and_scores_of_a_step() -> None:
    host = StepResult(DECODED | SCORES).to_host()
    assert [host.tokens(0), host.tokens(1)] == [[4, 7], [5]]
    assert host.scores(0) == [Score(-1.0, ((4, -1.0), (1, -1.5))), Score(-2.0, ((7, -2.0), (2, -2.5)))]
    assert host.scores(1) == [Score(-3.0, ((5, -3.0), (3, -3.5)))]
    alone = StepResult(DECODED | {"logprobs": SCORES["logprobs"]}).to_host()
    assert alone.scores(0) == [Score(-1.0), Score(-2.0)]
    assert StepResult(DECODED).to_host().scores(0) == []
    assert [host.faults(0), host.faults(1)] == [(), ("draft",)]


def test_the_token_and_its_score_of_a_prefill() -> None:
    scores = {name: tensor[:, 0] for name, tensor in SCORES.items()}
    host = PrefillResult(PREFILLED | scores).to_host()
    assert [host.tokens(0), host.tokens(1)] == [[7], [5]]
    assert host.scores(0) == [Score(-1.0, ((4, -1.0), (1, -1.5)))]
    alone = PrefillResult(PREFILLED | {"logprobs": scores["logprobs"]}).to_host()
    assert alone.scores(1) == [Score(-3.0)]
    assert PrefillResult(PREFILLED).to_host().scores(0) == []


def test_results_can_be_copied_and_pickled() -> None:
    host: Any = StepResult({**DECODED, "drafted": torch.tensor([3, 4])}).to_host()
    for copied in (copy.copy(host), copy.deepcopy(host), pickle.loads(pickle.dumps(host))):
        assert (copied, copied.drafted, copied.bonus) == (host, [3, 4], [7, 5])
