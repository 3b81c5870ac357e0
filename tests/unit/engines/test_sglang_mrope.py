"""Positions of texts behind pictures in a program's forwards, on stand-ins of SGLang's modules."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import MultimodalInputs
from fakes.sglang_server import Server, adapter
from test_sglang_worker import PROMPTS, QLEN, Serve, plan_of, run, serve

__all__ = ["serve"]


def begin(server: Server, deltas: dict[int, int]) -> None:
    """Prefill requests in these rows; those that are not 0 places away have pictures."""
    for worker in (server.worker.target_worker.model_runner, server.worker.draft_worker.draft_runner):
        if worker.model.deltas is not None:
            worker.model.deltas |= deltas
    for row, delta in deltas.items():
        seen = MultimodalInputs(torch.tensor([[delta]])) if delta else None
        server.begin({row: PROMPTS[row]}, multimodal_inputs=seen)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("sees", [("target", "draft"), ("target",), ("draft",), ()], ids="-".join)
@pytest.mark.parametrize(("algorithm", "keys"), [("EAGLE", ()), ("STANDALONE", ()), ("EAGLE", QLEN)])
def test_texts_are_at_their_places_plus_a_delta(
    serve: Serve, algorithm: str, keys: Any, sees: Sequence[str], overlap: bool
) -> None:
    """In every forward, of models alone that have such positions; a row's is that of the request that has it now."""
    server = serve(plan_of(algorithm, *keys), overlap=overlap, sees=sees)
    begin(server, {3: -5, 1: 0, 6: 7})
    run(server, [[3, 1, 6], [6, 3], [1, 3]])
    begin(server, {3: 0, 1: 4})
    run(server, [[1, 3], [3, 6, 1], [6]])
    assert server.worker.steps.report()["served"] == 6
    assert server.worker.steps.report()["proof"] == "passed"


def test_packed_rows_are_moved_by_the_delta_of_the_request_that_has_them(serve: Serve) -> None:
    """Requests of padding have none, and rows that are nobody's are moved by any."""
    server = serve(plan_of("EAGLE"), sees=("target",))
    deltas, target = adapter("parts.mrope").Deltas, server.worker.target_worker.model_runner
    kept = deltas({"target": target}, torch.zeros(9, 1))
    pictures = [MultimodalInputs(torch.tensor([[delta]])) for delta in (5, -2)]
    requests = [SimpleNamespace(multimodal_inputs=media) for media in (*pictures, None)]
    kept.note(SimpleNamespace(reqs=requests, req_pool_indices=torch.tensor([3, 1, 2])))
    places = torch.tensor([10, 11, 12, 20, 30, 0])
    rows = SimpleNamespace(req_pool_indices=torch.tensor([3, 1, 2, 0]), positions=places, batch_size=4)
    kept.give(target, rows, torch.tensor([0, 3, 4, 5], dtype=torch.int32))
    assert rows.mrope_positions[:, :5].tolist() == [[15, 16, 17, 18, 30]] * 3
