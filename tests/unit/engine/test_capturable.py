"""Decode forwards read nothing back to the host, so that a CUDA graph can hold them.

They are run on fake tensors, which have shapes and no data: whatever would wait for the device (`item`, `tolist`,
`nonzero`, a truth value, a boolean index) raises here.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode

from specc.engine.callbacks import EngineCallbacks, Prompt
from specc.engine.kv_pool import KVPool
from specc.engine.models import DraftModel, TargetModel
from specc.engine.plan_facts import PlanFacts
from specc.engine.tree_attention import Branches

from .fake_program import make_plan
from .models_for_tests import CONFIGS, make_drafts, make_target

BATCH, NODES, COLUMNS = 3, 4, 64
CPU = torch.device("cpu")
HAS_HEAD = ("llama", "qwen3")


def make_callbacks(target: TargetModel, draft: DraftModel) -> EngineCallbacks:
    """Return callbacks over pools and a table of their own."""
    table = torch.arange(1, 1 + 6 * COLUMNS, dtype=torch.int32).view(6, COLUMNS)
    pools = (KVPool(facts.pool, 6 * COLUMNS + 1, CPU) for facts in (target.facts, draft.facts))
    facts = PlanFacts.read(make_plan(target, draft))
    return EngineCallbacks(target, draft, *pools, table, {1: Prompt([5, 6])}, facts)


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
        results = [
            callbacks.draft(step=0, **window(1), capture="last", **hidden[0]),
            callbacks.target(**window(NODES), capture="full"),
            callbacks.extend(
                **window(NODES), select=torch.zeros(BATCH, dtype=torch.int64), capture="last", **hidden[1]
            ),
        ]
    assert all(isinstance(result.logits, FakeTensor) for result in results)
    assert [tuple(result.logits.shape[:-1]) for result in results] == [(BATCH, 1), (BATCH, NODES), (BATCH,)]


@pytest.mark.parametrize("mode", ["qlen", "bitpacked", "full"])
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
    }
    hidden = {"hidden": torch.zeros(BATCH, 2, target.facts.hidden_size)} if draft.reads_hidden else {}
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        hidden = {name: fake.from_tensor(tensor) for name, tensor in hidden.items()}
        drafted = callbacks.draft(step=0, **window(2), capture="last", **hidden)
        verified = callbacks.target(**window(NODES), capture="full", mask=fake.from_tensor(masks[mode]))
    assert all(isinstance(result.logits, FakeTensor) for result in (drafted, verified))
    assert tuple(drafted.logits.shape) == (BATCH, 2, draft.facts.vocab_size)
    assert tuple(drafted.hidden.shape) == (BATCH, 2, draft.facts.hidden_size)


def test_a_forward_that_waits_is_noticed() -> None:
    """Prefill reads lengths on the host, and may: it is not captured."""
    target = make_target()
    callbacks = make_callbacks(target, make_drafts(target)["stranger"])
    ones = torch.ones(BATCH, dtype=torch.int64)
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, pytest.raises(DataDependentOutputException):
        callbacks.prefill_target(rows=fake.from_tensor(ones), seq_lens=fake.from_tensor(ones), capture="null")
