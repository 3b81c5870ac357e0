"""Programs that weigh drafts by what they were drawn from as vLLM's decode steps, on stand-ins of its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from fakes.vllm_server import PROGRAM, Server
from fakes.vllm_tables import VLLM
from torch import Tensor
from vllm_batches import MANY_BATCHES, MANY_PROMPTS, plan_of, run

from specc.engines.vllm.tables import AHEAD
from specc.runtime.semantics.rejection import sample_mass

DRAWN = {"draft_sample_method": "probabilistic"}
HEAT = {2: 0.7, 0: 1.6, 5: 1.0, 1: 0.0}
Serve = Callable[..., Server]
ALGORITHMS = ["STANDALONE", "EAGLE", "MULTI_LAYER_EAGLE", "DFLASH", "DSPARK"]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    with VLLM.starting(Server, PROGRAM) as start:
        yield start


def masses(server: Server, row: int) -> Tensor:
    """What the program has of the drafts f32[S, 3] of the request in a row."""
    pools, drafts = server.program.step.pools, server.plan.size("S")
    whole = [pools[name] for name in sorted(pools) if name.startswith("draft_mass")]
    return torch.cat([table[row + AHEAD].view(-1, 3) for table in whole]).view(drafts, 3)


def wanted(server: Server, row: int, heat: float) -> Tensor:
    """The same by what vLLM has of them: logits in its table, and the drafts."""
    logits, drafts = server.runner.speculator.draft_logits[row], server.states.draft_tokens[row]
    count = len(drafts)
    scales = torch.full((count,), 1 / heat if heat else 0.0)
    (mass,) = sample_mass((logits, torch.ones(count), scales, drafts[:, None]), {"ahead": 0}, {})
    return mass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_drafts_of_vllm_s_are_weighed_by_what_it_drew_them_from(serve: Serve, algorithm: str) -> None:
    """Each request at its temperature, and nobody else's drafts change with them."""
    server = serve(plan_of(algorithm, ("verify", "rejection")), **DRAWN)
    table = server.runner.speculator.draft_logits
    assert table.shape[:2] == (6, server.plan.size("S"))
    table.copy_(2 * torch.randn(table.shape, generator=torch.Generator().manual_seed(8)))
    for row, heat in HEAT.items():
        server.begin({row: MANY_PROMPTS[row]}, temperature=heat)
        table[row] += row  # of the drafts of the last step, and not of these
    table.copy_(table.clone().roll(1, -1))
    before = {row: masses(server, row).clone() for row in HEAT}
    server.runner.sampler.num_token_ids[5] = 1
    server.decode([5, 2])
    for row in (5, 2):
        torch.testing.assert_close(masses(server, row), wanted(server, row, HEAT[row]))
        assert not torch.equal(masses(server, row), before[row])
    for row in (0, 1):
        assert torch.equal(masses(server, row), before[row])


@pytest.mark.parametrize("verify", ["rejection", "block"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_texts_of_greedy_requests_are_the_targets_own(serve: Serve, algorithm: str, verify: str) -> None:
    """Whichever side runs which step, and as many drafts are accepted as are right."""
    weighing = {"rejection_sample_method": "block"} if verify == "block" else {}
    server = serve(plan_of(algorithm, ("verify", verify)), **DRAWN, **weighing)
    server.begin(MANY_PROMPTS)
    server.runner.sampler.num_token_ids[5] = 1
    run(server, MANY_BATCHES)
    server.judge()
    assert server.program.served == sum(5 not in rows for rows in MANY_BATCHES)


def test_a_vllm_that_is_not_known_draws_by_itself(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """There is no trial of drafts that are drawn."""
    place = "v1.worker.gpu.input_batch.post_update"
    server = serve(plan_of("EAGLE", ("verify", "rejection")), new=[place], **DRAWN)
    assert server.program is None
    assert f"drafts that are drawn are not tried beside vLLM's own, and {place} are not known" in caplog.text
