"""Adaptive verification: vLLM says on the device how many drafts of each request are verified, and a program verifies.

vLLM asks for full CUDA graphs, and prices steps by them. A plugin makes up what steps cost, so that other numbers of
drafts are worth it from step to step. On a CPU it lets them run without graphs as well. The attention of a CPU reads
where requests begin from the tensor that the device's numbers are in. All else is vLLM's own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from conftest import tokenizer
from vllm_files import ON_GPU, VERSION
from vllm_programs import build_program, plugin_wheel
from vllm_server import Served, Variant, serve
from vllm_workload import is_greedy, without_aborts, workloads

pytestmark = pytest.mark.skipif(VERSION == "0.32.0", reason="it has no adaptive verification")
VARIANTS = [
    Variant("eagle3", "eagle3", program=True, ahead=True, adaptive=True),
    Variant("draft_model", "standalone", program=True, adaptive=True),
    Variant("mtp", "mimo", target="mimo", program=True, adaptive=True),
]
DRAWING = [replace(VARIANTS[0], drafting=how) for how in ("coupled", "rejection", "block")]
"""Whose drafts are drawn, so that accepted lengths are not those of vLLM's noise."""
SEEN = "SPECC_TEST_SEEN"
CHOOSING = """
import functools, json, os, torch

def register():
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu import model_runner
    from vllm.v1.worker.gpu.spec_decode import adaptive_verification as adaptive
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator as Speculator

    if not torch.cuda.is_available():
        VllmConfig._validate_adaptive_verification = lambda self: None
        model_runner.resolve_adaptive_cudagraph_mode = lambda mode, **_: mode
        adaptive.get_varlen_cudagraph_unsupported_backend = lambda *_, **__: None
    adaptive._assign_draft_token_budget_compiled = adaptive._assign_draft_token_budget
    Manager, out = adaptive.AdaptiveVerificationManager, open(os.environ["SPECC_TEST_SEEN"], "w")
    make, choose, share, record = (
        getattr(Manager, name) for name in ("__init__", "get_num_tokens", "reallocate_drafts", "record_confidences")
    )

    load = Speculator.load_model

    @functools.wraps(load)
    def loaded(self, target):
        load(self, target)
        self.draft_token_confidence_probs.fill_(1.0)  # rows of dummy runs have whatever was there

    def made(self, *given, **named):
        make(self, *given, **named)
        self.set_cost_curves([(1, 1.0)], [(tokens, 1.0 + 0.3 * tokens) for tokens in range(1, 65)])

    def chosen(self, tokens, drafts):
        self.scheduled = sum(map(len, drafts.values()))
        return choose(self, tokens, drafts)

    def shared(self, names, rows):
        found = share(self, names, rows)
        counts = found[0].diff().tolist()
        print(json.dumps({"drafts": found[2], "of": self.scheduled, "rows": counts}), file=out)
        return found

    def recorded(self, confidences, batch):
        print(json.dumps({"confidences": confidences[: batch.num_reqs].tolist()}), file=out, flush=True)
        record(self, confidences, batch)

    Speculator.load_model = loaded
    Manager.set_initial_cost_curves = lambda self, samples: None
    Manager.__init__, Manager.get_num_tokens = made, chosen
    Manager.reallocate_drafts, Manager.record_confidences = shared, recorded
"""


@dataclass(frozen=True)
class Run:
    """What came out of an engine, and what its manager said: how rows were shared out, and by which confidences."""

    served: Served
    shares: list[dict[str, Any]]
    confidences: list[list[list[float]]]


Runs = Callable[[Variant], Run]


@pytest.fixture(scope="module")
def run(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return what runs one engine for a workload, once, beside the plugin where it speculates."""
    folder, requests = tmp_path_factory.mktemp("adaptive"), workloads(tokenizer(models), (4,))

    @cache
    def once(variant: Variant) -> Run:
        where = folder / str(variant)
        if variant.method is None:
            return Run(serve(variant.engine(models), without_aborts(requests), where), [], [])
        wheels = [build_program(variant, models, where / "wheel")] if variant.program else []
        (where / "plugin").mkdir(parents=True)
        wheel, seen = plugin_wheel(CHOOSING, where / "plugin", wheels), where / "seen"
        served = serve(variant.engine(models), requests, where / "job", wheel=wheel, settings={SEEN: str(seen)})
        lines = [json.loads(line) for line in seen.read_text().splitlines()]
        shares = [line for line in lines if "rows" in line]
        return Run(served, shares, [line["confidences"] for line in lines if "confidences" in line])

    return once


@pytest.mark.parametrize("variant", [*VARIANTS, *DRAWING], ids=str)
def test_greedy_texts_are_those_without_speculation(variant: Variant, run: Runs) -> None:
    plain, served = run(variant.plain).served, run(variant).served
    for number, (request, output) in enumerate(zip(plain.requests, served.outputs, strict=True)):
        expected = plain.outputs[number]["token_ids"]
        if is_greedy(request):
            assert output["token_ids"] == expected[: len(output["token_ids"])], number
            assert "abort" in output["finish_reason"] or len(output["token_ids"]) == len(expected), number


@pytest.mark.parametrize("variant", [*VARIANTS, *DRAWING], ids=str)
def test_a_program_runs_steps_in_which_requests_have_different_numbers_of_rows(variant: Variant, run: Runs) -> None:
    """Budgets bind: of many steps some drafts have a row and some have none."""
    ran = run(variant)
    assert ran.served.counts is not None
    assert ran.served.counts["program_steps"] > ran.served.seen["steps"] / 3
    kinds = Counter("all" if share["drafts"] == share["of"] else bool(share["drafts"]) for share in ran.shares)
    assert kinds[True] > len(ran.shares) / 5, kinds
    assert sum(len({*share["rows"]}) > 1 for share in ran.shares) > 20, "requests that differ"


@pytest.mark.skipif(ON_GPU, reason="a confidence that is rounded otherwise may share rows out otherwise")
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_program_accepts_and_is_as_sure_as_vllms_own_step(variant: Variant, run: Runs) -> None:
    """At every verification of every request, and by every draft's confidence, which vLLM's estimator has learnt."""
    own, program = run(variant.own), run(variant)
    for number, (output, expected) in enumerate(zip(program.served.outputs, own.served.outputs, strict=True)):
        assert output.get("accepted") == expected.get("accepted"), number
        assert output["token_ids"] == expected["token_ids"], number
    assert program.shares == own.shares
    assert len(program.confidences) == len(own.confidences)
    for mine, wanted in zip(program.confidences, own.confidences, strict=True):
        for of_request, expected in zip(mine, wanted, strict=True):
            assert of_request == pytest.approx(expected, rel=1e-3)
