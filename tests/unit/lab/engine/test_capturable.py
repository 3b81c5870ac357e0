"""Decode forwards read nothing back to the host, so that a CUDA graph can hold them.

They are run on fake tensors, which have shapes and no data: whatever would wait for the device (`item`, `tolist`,
`nonzero`, a truth value, a boolean index) raises here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.program import make_plan
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from specc.lab.engine.memory.kv_pool import KVPool
from specc.lab.engine.memory.tree_attention import Branches
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import Draft
from specc.lab.engine.serving.callbacks import EngineMemory
from specc.lab.engine.serving.draft_callbacks import make_callbacks as bind_callbacks
from specc.lab.engine.serving.prompts import PrefillPrompt

from .models_for_tests import CONFIGS, make_drafts, make_pair, make_target

BATCH, NODES, COLUMNS = 3, 4, 64
CPU = torch.device("cpu")
HAS_HEAD = ("llama", "qwen3")


def make_callbacks(target: TargetModel, draft: Draft | None) -> Any:
    """Return callbacks over pools and a table of their own."""
    table = torch.arange(1, 1 + 6 * COLUMNS, dtype=torch.int32).view(6, COLUMNS)
    plan = make_plan(target, draft)
    models = {"target": target, "draft": draft}
    pools = {owner: KVPool(models[owner].facts.pool, 6 * COLUMNS + 1, CPU) for owner in plan.kv_pools}
    return bind_callbacks(target, draft, EngineMemory(pools, table, {1: PrefillPrompt([5, 6])}), plan)


def window(width: int) -> dict[str, torch.Tensor]:
    """Return the static inputs of a forward of `width` tokens a request."""
    wide = {name: torch.zeros(BATCH, width, dtype=torch.int64) for name in ("tokens", "positions", "slots")}
    return wide | {name: torch.zeros(BATCH, dtype=torch.int64) for name in ("rows", "seq_lens")}


def drafts_of(family: str) -> list[str]:
    return ["stranger", *(["head"] if family in HAS_HEAD else [])]


@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family in CONFIGS for kind in drafts_of(family)])
def test_no_forward_of_a_step_waits_for_the_device(family: str, kind: str) -> None:
    target = make_target(family)
    draft = make_drafts(target, family)["head"] if kind == "head" else make_drafts(make_target())["stranger"]
    callbacks = make_callbacks(target, draft)
    assert callbacks.capturable
    width = target.facts.hidden_size
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden = [{"hidden": torch.zeros(BATCH, n, width)} if draft.reads_hidden else {} for n in (1, NODES)]
        accepted = {
            "select": torch.zeros(BATCH, dtype=torch.int64),
            "accept_lens": torch.ones(BATCH, dtype=torch.int32),
        }
        results = [
            callbacks.draft(step=0, **window(1), capture="last", **hidden[0]),
            callbacks.target(**window(NODES), capture="full"),
            callbacks.extend(**window(NODES), **accepted, capture="last", **hidden[1]),
        ]
    assert all(isinstance(result.logits, FakeTensor) for result in results)
    assert [tuple(result.logits.shape[:-1]) for result in results] == [(BATCH, 1), (BATCH, NODES), (BATCH,)]


@pytest.mark.parametrize("mode", ["qlen", "bitpacked", "full", "slots"])
@pytest.mark.parametrize("kind", ["stranger", "head"])
def test_no_forward_of_a_tree_waits_either(kind: str, mode: str) -> None:
    target = make_target()
    draft = make_drafts(target)[kind]
    callbacks = make_callbacks(target, draft)
    callbacks.mask_mode, callbacks.branches = mode, Branches(1, 16, 3)
    masks = {
        "qlen": torch.zeros(BATCH, NODES, NODES, dtype=torch.bool),
        "bitpacked": torch.zeros(BATCH, NODES, 1, dtype=torch.uint8),
        "full": torch.zeros(BATCH, NODES * (COLUMNS + NODES), dtype=torch.bool),
        "slots": torch.zeros(BATCH, NODES, NODES, dtype=torch.int32),
    }
    visibility = {"mask": masks[mode]}
    if mode == "slots":
        visibility["counts"] = torch.ones(BATCH, NODES, dtype=torch.int32)
    hidden = {"hidden": torch.zeros(BATCH, 2, target.facts.hidden_size)} if draft.reads_hidden else {}
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        hidden = {name: fake.from_tensor(tensor) for name, tensor in hidden.items()}
        drafted = callbacks.draft(step=0, **window(2), capture="last", **hidden)
        visibility = {name: fake.from_tensor(tensor) for name, tensor in visibility.items()}
        verified = callbacks.target(**window(NODES), capture="full", **visibility)
    assert all(isinstance(result.logits, FakeTensor) for result in (drafted, verified))
    assert tuple(drafted.logits.shape) == (BATCH, 2, draft.facts.vocab_size)
    assert tuple(drafted.hidden.shape) == (BATCH, 2, draft.facts.hidden_size)


def test_no_forward_of_the_other_drafts_waits() -> None:
    static = window(NODES)
    ones = {name: tensor for name, tensor in static.items() if name in ("rows", "seq_lens")}
    token, select, bonus = (torch.zeros(BATCH, dtype=dtype) for dtype in (torch.int64, torch.int64, torch.int32))
    calls: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "frozen": [
            ("assist", {"step": 0, "tokens": token, "positions": token, "hidden": torch.zeros(BATCH, 32)}),
            ("assist", {"step": 1, **_only(window(2), "tokens", "positions"), "hidden": torch.zeros(BATCH, 2, 32)}),
        ],
        "mtp": [("extend_module", {"step": 2, **static, "select": select, "hidden": torch.zeros(BATCH, NODES, 32)})],
        "dflash": [
            ("block", {**_only(static, "positions", "slots"), "bonus": bonus}),
            ("inject", {**_only(static, "positions", "slots"), "hidden": torch.zeros(BATCH, NODES, 64)}),
        ],
    }
    shapes = {"frozen": [(BATCH,), (BATCH, 2)], "mtp": [(BATCH,)], "dflash": [(BATCH, NODES - 1), None]}
    for kind, forwards in calls.items():
        callbacks = make_callbacks(*make_pair(kind))
        assert callbacks.capturable
        with FakeTensorMode(allow_non_fake_inputs=True):
            results = [getattr(callbacks, name)(capture="null", **{**ones, **inputs}) for name, inputs in forwards]
        assert [None if out is None else tuple(out.logits.shape[:-1]) for out in results] == shapes[kind]


def test_without_draft_it_is_the_target_that_decides() -> None:
    assert make_callbacks(make_target(), None).capturable
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    assert not make_callbacks(make_target(rope_parameters=rope), None).capturable


def _only(inputs: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    return {name: inputs[name] for name in names}


def test_a_forward_that_waits_is_noticed() -> None:
    """Prefill reads lengths on the host, and may: it is not captured."""
    target = make_target()
    callbacks = make_callbacks(target, make_drafts(target)["stranger"])
    ones = torch.ones(BATCH, dtype=torch.int64)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, pytest.raises(DataDependentOutputException):
        callbacks.prefill_target(rows=fake.from_tensor(ones), seq_lens=fake.from_tensor(ones), capture="null")
