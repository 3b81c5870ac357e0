"""Experts that tokens went to, as results of requests, on stand-ins of SGLang's modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fakes.models import extra, fold, target_code
from fakes.sglang_routed import NOTHING, BaseTopkCapturer
from fakes.sglang_server import Server, adapter
from fakes.sglang_worker import IntelAMXAttnBackend
from programs import planned
from test_sglang_fit import misfits
from test_sglang_worker import BATCHES, PROMPTS, Serve, run, serve

from specc.runtime.plan.plan import Plan

__all__ = ["serve"]
TREE = {"topk": 3, "num_draft_tokens": 8, "mask": "qlen"}
LAYERS, CHOSEN, LARGEST, SLOTS = 2, 3, 4, 1000


def plan_of(algorithm: str = "EAGLE", **keys: Any) -> Plan:
    """A program that hands out the experts of what it emits."""
    target = {"vocab_size": 96, "experts_per_token": CHOSEN}
    keys = {"max_requests": 6, "buckets": [1, 2, LARGEST], "draft": {"vocab_size": 96}, "target": target} | keys
    return planned(algorithm, engine="sglang", **{"outputs": ["routed_experts"]} | keys)[0]


def capturer(rows: int = 64, shared: int = 0, chosen: int = CHOSEN) -> BaseTopkCapturer:
    return BaseTopkCapturer(rows, SLOTS, LAYERS, chosen, shared)


def all_followed(server: Server, routed: BaseTopkCapturer) -> None:
    """Every token that was emitted, but the last, has its experts at its slot; they follow from the text before it."""
    checked = 0
    for row, prompt in server.prompts.items():
        text, state = [*prompt, *server.requests[row].output_ids], 0
        layer, entry = torch.arange(LAYERS)[:, None], torch.arange(CHOSEN)
        for position, token in enumerate(text[:-1]):
            state = fold(state, target_code(token, position))
            kept = routed.host_cache.buffer[int(server.engine.table[row, position])]
            if position >= len(prompt):
                assert kept.tolist() == extra(torch.tensor(state), 0, layer, entry).tolist(), (row, position)
                checked += 1
    assert checked > 30


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize(("algorithm", "keys"), [("EAGLE", {}), ("STANDALONE", {}), ("EAGLE", TREE)])
def test_experts_are_those_of_the_text(serve: Serve, algorithm: str, keys: Any, shared: int, overlap: bool) -> None:
    """Those of the accepted path, without what stands behind them; of other slots nothing is touched."""
    plan, routed = plan_of(algorithm, **keys), capturer(shared=shared)
    server = serve(plan, overlap=overlap, routed=routed)
    server.begin(PROMPTS)
    run(server, BATCHES)
    all_followed(server, routed)
    assert server.worker.steps.report()["served"] == len(BATCHES)
    used = {0}
    for row, prompt in server.prompts.items():
        length = len(prompt) + len(server.requests[row].output_ids) - 1
        used |= set(server.engine.table[row, len(prompt) : length].tolist())
    others = [slot for slot in range(SLOTS) if slot not in used]
    assert (routed.host_cache.buffer[others] == NOTHING).all()


@pytest.mark.parametrize("overlap", [False, True])
def test_of_steps_that_are_left_to_sglang_too(serve: Serve, overlap: bool) -> None:
    routed = capturer(shared=1)
    server = serve(plan_of(), overlap=overlap, routed=routed)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    all_followed(server, routed)
    assert 0 < server.worker.steps.tally.left.total() < len(BATCHES)


def test_after_a_tree_of_sglangs_those_of_its_path_follow_the_path(serve: Serve) -> None:
    """Its nodes are not where the path is afterwards."""
    routed = capturer()
    server = serve(plan_of(**TREE), routed=routed)
    experts = torch.arange(2 * 8 * LAYERS * CHOSEN, dtype=torch.int32).view(16, LAYERS, CHOSEN)
    routed.capture(experts)
    rows, path = torch.tensor([3, 1]), torch.tensor([[0, 2, 5, -1], [8, -1, -1, -1]])
    result = adapter("requests.results").GenerationBatchResult(
        accept_index=path, accept_lens=torch.tensor([3, 1], dtype=torch.int32), new_seq_lens=torch.tensor([13, 8])
    )
    server.worker.steps.note(rows, result)
    result.routed_experts_output.finalize()
    slots = [*server.engine.table[3, 10:13].tolist(), int(server.engine.table[1, 7])]
    assert torch.equal(routed.host_cache.buffer[slots], experts[[0, 2, 5, 8]])
    assert (routed.host_cache.buffer[1:] != NOTHING).any(-1).any(-1).sum() == 4, "slot 0 is that of padding"


def test_where_a_forward_leaves_them_they_stay(serve: Serve) -> None:
    """At one address for the life of a captured step, with shared ones behind them or without."""
    for shared in (0, 1):
        server = serve(plan_of(), routed=capturer(shared=shared))
        routed = server.worker.steps._parts.routed
        first, second = (routed.of_nodes(torch.zeros(2, 4)) for _ in range(2))
        assert first.shape == (2, 4, LAYERS, CHOSEN) and first.is_contiguous()
        assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize(
    ("keys", "routed", "expected"),
    [
        ({}, None, ["outputs has routed_experts, and the server returns none"]),
        ({"outputs": []}, (), ["outputs lacks routed_experts, which the server returns"]),
        ({"outputs": []}, None, []),
        ({}, (16, 0, 2), ["routed_experts are (2, 3) in the program, (2, 2) in the server, by layer and token"]),
        ({}, (16,), []),
        ({}, (15,), ["a step has up to 16 nodes, the server has room for routed_experts of 15"]),
        (TREE, (32,), []),
        (TREE, (31,), ["a step has up to 32 nodes, the server has room for routed_experts of 31"]),
    ],
)
def test_what_the_server_returns_and_the_program_hands_out_go_together(
    serve: Serve, keys: Any, routed: tuple[int, ...] | None, expected: list[str]
) -> None:
    server = serve(plan_of(), routed=capturer(), attention=IntelAMXAttnBackend)
    server.plan = plan_of(**keys)
    for name, key in (("eagle_topk", "K"), ("num_draft_tokens", "N")):
        setattr(adapter("server.fit").get_spec(), f"speculative_{name}", server.plan.size(key))
    BaseTopkCapturer.current = None if routed is None else capturer(*routed)
    assert misfits(server) == expected
