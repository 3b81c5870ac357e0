"""Programs in the place of SGLang's blocks whose drafts a selector chooses, on stand-ins of its modules: DFLASH2."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_server import Server
from programs import planned
from test_sglang_fit import misfits
from test_sglang_worker import BATCHES, PROMPTS, Serve, counted, plan_of, run, serve

from specc.engines.sglang.kinds.block_drafts import BLOCKS, SELECTED_BLOCKS, SELECTOR
from specc.runtime.plan.plan import Plan

__all__ = ["serve"]


def target_of(server: Server) -> Any:
    """SGLang's model of the target."""
    return server.worker.target_worker.model_runner.model


def test_drafts_hang_on_the_tables_and_on_what_is_read_of_a_place(serve: Serve) -> None:
    """Others are accepted than without a selector, so that tests of steps notice what is wrong with it."""
    plan = plan_of("DFLASH2")
    server = serve(plan)
    for table in SELECTED_BLOCKS.tables(server.worker.draft_model).values():
        table.zero_()
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps != counted(plan, BATCHES)


def test_scores_are_what_the_draft_makes_of_rows_times_the_head(serve: Serve) -> None:
    """They are added to the selector's, so what the target's logits processor does to scores would change drafts."""
    plan = plan_of("DFLASH2")
    server = serve(plan)
    processor = target_of(server).processor
    processor.logit_scale = 16.0
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert (processor.logit_scale, processor.final_logit_softcapping) == (16.0, None)


def test_tables_are_those_that_a_program_reads(serve: Serve) -> None:
    """They are the server's own memory, which other weights may come into."""
    plan = plan_of("DFLASH2")
    server = serve(plan)
    model = server.worker.draft_model
    tables = SELECTED_BLOCKS.tables(model)
    assert tables.keys() == plan.tables().keys()
    for name, own in SELECTOR.items():
        assert tables[name].data_ptr() == getattr(model.candidate_selector, own).data_ptr()


def test_a_worker_is_of_the_kind_of_its_draft(serve: Serve) -> None:
    """SGLang has one name for both."""
    plain, selected = (plan_of(name) for name in ("DFLASH", "DFLASH2"))
    server = serve(selected)
    assert server.worker.kind.algorithms == SELECTED_BLOCKS.algorithms and misfits(server) == []
    server.plan = plain
    assert misfits(server) == ["algorithm is DFLASH in the program, DFLASH2 in the server"]
    server = serve(plain)
    assert server.worker.kind.algorithms == BLOCKS.algorithms and misfits(server) == []
    server.plan = selected
    assert misfits(server) == ["algorithm is DFLASH2 in the program, DFLASH in the server"]


@pytest.mark.parametrize(
    ("name", "projector", "embeds", "what"),
    [
        ("DFlash2DraftModel", "", False, ""),
        ("MiniMaxDFlash2DraftModel", "", False, ""),
        ("DFlashDraftModel", "", False, "of the class DFlashDraftModel"),
        ("DFlash2BeamDraftModel", "", False, "of the class DFlash2BeamDraftModel"),
        ("DFlash2DraftModel", "domino", False, "with a domino projector"),
        ("DFlash2DraftModel", "", True, "with an embedding of its own"),
    ],
)
def test_drafts_with_a_selector_that_are_no_plain_ones(name: str, projector: str, embeds: bool, what: str) -> None:
    assert SELECTED_BLOCKS.beside(name, projector, embeds=embeds) == what


def computing(server: Server) -> Plan:
    """A program that computes the head of the server's draft, which the target has."""
    sizes = {"vocab_size": 96}
    plan = planned("DFLASH2", engine="sglang", target=sizes, draft=sizes | {"head": "int8"})[0]
    width, draft = int(plan.tables()["draft_head"].axes[-1]), server.worker.draft_worker.draft_runner
    target_of(server).lm_head = SimpleNamespace(weight=torch.zeros(96, width, dtype=draft.dtype), tp_size=1)
    return plan


@pytest.mark.parametrize("scored", [False, True])
def test_a_program_computes_the_targets_head_for_a_draft(serve: Serve, scored: bool) -> None:
    """Whether SGLang has scored or not, by which the draft comes to the head. A program neither multiplies nor caps."""
    server = serve(plan_of("DFLASH2"))
    server.plan = computing(server)
    model = server.worker.draft_model
    model.lm_head = target_of(server).lm_head if scored else None
    model.draft_config = SimpleNamespace(output_multiplier=1.0, final_logit_softcapping=None)
    assert misfits(server) == []
    model.draft_config = SimpleNamespace(output_multiplier=0.5, final_logit_softcapping=30.0)
    changed = ["the logits of the draft have a scale", "the logits of the draft have a cap"]
    assert misfits(server) == [f"{what}, and the program computes a product" for what in changed]
