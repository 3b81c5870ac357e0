"""What graphs of a program's steps hold in vLLM, on stand-ins of its modules: its update, its store, what they read."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from fakes.vllm_modules import DraftModelSpeculator, GPUModelRunner, MambaHybridModelState, ModelState
from fakes.vllm_server import PROGRAM
from prometheus_client import REGISTRY
from test_vllm_steps import ALGORITHMS, Serve, serve
from torch import Tensor
from vllm_batches import MANY_BATCHES as BATCHES
from vllm_batches import MANY_PROMPTS as PROMPTS
from vllm_batches import plan_of, run

from specc.runtime.rotated import RotatedStep

__all__ = ["serve"]


class More(ModelState):
    """A target that keeps more of requests than vLLM's tables, as nobody knows."""

    def postprocess_state(self, idx_mapping: Tensor, num_sampled: Tensor, num_computed_tokens: Tensor) -> None:
        """Keep something."""


@pytest.mark.parametrize(
    ("state", "given", "moved"),
    [
        (ModelState(), {}, True), (ModelState(), {"aux": True}, False), (MambaHybridModelState(6), {}, True),
        (MambaHybridModelState(6, "records"), {}, False), (More(), {}, False),
        (ModelState(), {"new": ["v1.worker.gpu.input_batch.post_update"]}, False),
    ],
    ids=["tables", "read", "hybrid", "records", "more", "unknown"],
)  # fmt: skip
def test_a_verification_ends_with_vllms_update_of_its_tables(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, state: ModelState, given: dict[str, Any], moved: bool
) -> None:
    """Once for each step. It does not where more is updated, somebody reads tables before, or both sides verify."""
    update, ended = GPUModelRunner.postprocess_sampled, list[bool]()

    @functools.wraps(update)
    def noted(runner: GPUModelRunner, *operands: Any) -> None:
        ended.append(runner.speculator.steps.committed is None)
        update(runner, *operands)

    monkeypatch.setattr(GPUModelRunner, "model_state", state)
    monkeypatch.setattr(GPUModelRunner, "postprocess_sampled", noted)
    server = serve(plan_of("EAGLE"), **given)
    server.begin(PROMPTS)
    ended.clear()
    run(server, BATCHES)
    server.judge()
    assert ended == [moved] * len(BATCHES)


@pytest.mark.parametrize("given", [{}, {"new": ["v1.worker.gpu.input_batch.post_update"]}], ids=["moved", "vllm's"])
def test_a_hybrid_target_keeps_how_many_tokens_were_accepted(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """Of every request in its own row, wherever vLLM's update is; rows of padding store nothing."""
    state = MambaHybridModelState(6)
    monkeypatch.setattr(GPUModelRunner, "model_state", state)
    server = serve(plan_of("EAGLE"), **given)
    server.begin(PROMPTS)
    before = server.states.num_computed_tokens.gpu.clone()
    for batch in BATCHES:
        run(server, [batch])
        after = server.states.num_computed_tokens.gpu.clone()
        assert (state.num_accepted_tokens_gpu[batch] == (after - before)[batch]).all()
        before = after
    nobodys = [row for row in range(6) if row not in PROMPTS]
    assert (state.num_accepted_tokens_gpu[nobodys] == 1).all()
    assert (state.num_accepted_tokens_gpu > 1).any()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_drafts_end_in_vllms_table(serve: Serve, monkeypatch: pytest.MonkeyPatch, algorithm: str) -> None:
    """So that nothing is missing where vLLM does not write any."""
    server = serve(plan_of(algorithm))
    server.begin(PROMPTS)
    monkeypatch.setattr(type(server.states.draft_tokens), "__setitem__", lambda *_: None)
    run(server, BATCHES)
    server.judge()
    assert server.program.served == len(BATCHES)


def test_vllm_stores_drafts_where_not_all_of_it_is_known(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"), new=["v1.worker.gpu.input_batch.post_update"])
    assert type(server.states.draft_tokens) is Tensor


def test_what_is_stored_is_read_in_place_and_anything_else_from_the_table(serve: Serve) -> None:
    server = serve(plan_of("EAGLE"))
    table, rows, same = server.states.draft_tokens, torch.tensor([4, 1]), torch.tensor([4, 1])
    drafts, others = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7, 8, 9], [7, 8, 9]])
    table.stored = rows, drafts
    table[rows] = drafts
    assert not table.any()
    assert table[rows, :2].tolist() == [[1, 2], [4, 5]]
    assert not table[same].any()
    table[same] = drafts
    assert table[rows].tolist() == table[same].tolist() == drafts.tolist()
    table.stored = rows, drafts
    table[rows] = others
    assert table[rows].tolist() == table[same].tolist() == others.tolist()


@pytest.mark.parametrize("graphs", [0, 8, 16, 40])
@pytest.mark.parametrize(
    ("algorithm", "layers"), [("STANDALONE", 0), ("EAGLE", 0), ("EAGLE", 2), ("FROZEN_KV_MTP", 0), ("NGRAM", 0)]
)
def test_what_is_captured_reads_hidden_states_at_one_place(
    serve: Serve, algorithm: str, layers: int, graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where vLLM's graphs leave them, if these are as large as the largest bucket. Graphs are left out here."""
    monkeypatch.setenv("SPECC_CAPTURE", "drafts")
    captured, handed, propose = list[int](), list[Tensor | None](), RotatedStep.propose

    def noted(step: RotatedStep, batch: Any, hidden: Tensor | None = None, **how: Any) -> Any:
        handed.append(hidden)
        return propose(step, batch, hidden, **how)

    monkeypatch.setattr(RotatedStep, "propose", noted)
    monkeypatch.setattr(RotatedStep, "capture", lambda _, tokens: captured.append(tokens))
    server = serve(plan_of(algorithm), max_graph=16, graphs=graphs, layers=layers)
    assert captured == [16], "vLLM's graphs hold 16 tokens at most"
    scored, compute_logits = list[Tensor](), server.target.compute_logits

    def noted_scores(hidden: Tensor) -> Tensor:
        scored.append(hidden)
        return compute_logits(hidden)

    monkeypatch.setattr(server.target, "compute_logits", noted_scores)
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program.report()["capture"] == "drafts"
    called, manager = server.program._bound.target, server.runner.cudagraph_manager
    place, fed = called.scored.at, [layer.at for layer in called._fed]
    assert {hidden.data_ptr() for hidden in scored[-len(BATCHES) :]} == {place.data_ptr()}
    assert {*handed} == {None}
    assert (place is manager.hidden_states) == (graphs >= 16)
    if algorithm == "EAGLE":
        left = manager.aux_hidden_states or [place]
        assert ([rows.data_ptr() for rows in fed] == [rows.data_ptr() for rows in left]) == (
            graphs >= 16 or len(left) == 1
        )
        assert [list(rows.shape) for rows in fed] == [[max(16, graphs), 64 // len(left)]] * len(left)


@pytest.mark.parametrize("algorithm", ["EAGLE", "NGRAM"])
def test_drafts_whose_attention_needs_the_host_are_not_captured(
    serve: Serve, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the word of vLLM's own draft, which n-grams have none of."""
    monkeypatch.setenv("SPECC_CAPTURE", "drafts")
    captured = list[int]()
    monkeypatch.setattr(RotatedStep, "capture", lambda _, tokens: captured.append(tokens))
    monkeypatch.setattr(DraftModelSpeculator, "supports_decode_metadata_update", False)
    server = serve(plan_of(algorithm))
    assert bool(captured) == (algorithm == "NGRAM")
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program.report()["served"] == len(BATCHES)


def test_after_a_capture_that_fails_vllms_steps_run(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: RotatedStep, tokens: int) -> None:
        raise RuntimeError(f"no graph of {tokens} tokens")

    monkeypatch.setenv("SPECC_CAPTURE", "drafts")
    monkeypatch.setattr(RotatedStep, "capture", fail)
    server = serve(plan_of("EAGLE"))
    assert server.program is None
    active = [
        sample.value for metric in REGISTRY.collect() for sample in metric.samples if "program_active" in sample.name
    ]
    assert active and not any(active)
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    with pytest.raises(RuntimeError, match="no graph of 512 tokens"):
        serve(plan_of("EAGLE"))


def test_nothing_is_alive_while_memory_is_measured(serve: Serve) -> None:
    """What vLLM captures for its profile is bound to keys and values that it gives back; later it binds again."""
    server = serve(plan_of("EAGLE"), profile=True)
    (bound,) = server.runner.profiled
    assert bound() is None, "the step that was bound for the profile"
    assert server.program is not None
    server.begin(PROMPTS)
    run(server, BATCHES)
    server.judge()
    assert server.program.report()["served"] == len(BATCHES)
