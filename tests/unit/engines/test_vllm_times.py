"""How long steps of several shapes take in vLLM, on stand-ins, and a scheduler that is not where they run."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.plans import package_of
from fakes.vllm_core import Executor
from fakes.vllm_models import Draft
from fakes.vllm_modules import GPUModelRunner
from fakes.vllm_ranks import GroupCoordinator, ranks
from fakes.vllm_server import PROGRAM, adapter, config_of
from vllm_shapes import ALGORITHMS, PROMPTS, ROWS, SHAPES, Serve, lookup, plans_of, serving

from specc import runtime
from specc.runtime.capabilities import step_times
from specc.runtime.plan.shape import Shape


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers, in which steps take as long as policies think."""
    with serving(monkeypatch) as start:
        yield start


@pytest.fixture
def measuring(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Starts servers that measure it, by two steps of each shape and bucket."""
    monkeypatch.setattr(step_times, "WARM", 1)
    monkeypatch.setattr(runtime, "measure_step_times", partial(step_times.measure_step_times, repeats=1))
    return serve


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_times_are_measured_when_a_server_starts(
    measuring: Serve, algorithm: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of every shape in its own buckets: dummy runs of as many requests, and of as many tokens as it verifies."""
    caplog.set_level(logging.INFO)
    deepest, *others = plans_of(algorithm)
    server = measuring([replace(deepest, buckets=(1, 2)), *others])
    times = lookup(server).times
    assert {name: [*of] for name, of in times.items()} == {"3": [1, 2], "1": [1, 2, 4], "0": [1, 2, 4]}
    assert all(time > 0 for of in times.values() for time in of.values())
    ran = [[1 + int(name)] * bucket for name, of in times.items() for bucket in of for _ in range(2)]
    assert server.runner.dummies == ran
    assert server.runner.execute_model_state is None
    assert not server.runner.kv_connector.disabled
    (line,) = [text for text in messages(caplog) if "milliseconds" in text]
    assert line.startswith("specc: milliseconds of a step by number of drafts and batch: {'3': {1: ")


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_the_draft_runs_in_what_is_timed(measuring: Serve, algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the tokens that were verified, and over one of each request for every further draft of the next step."""
    ran, run = list[int](), Draft.run
    monkeypatch.setattr(Draft, "run", lambda self, ids, *more: (ran.append(len(ids)), run(self, ids, *more))[1])
    measuring(plans_of(algorithm))
    steps = [[bucket * (1 + drafts), *[bucket] * (drafts - 1)] for drafts in SHAPES[::-1] for bucket in (1, 2, 4)]
    assert ran == [tokens for step in steps for _ in range(2) for tokens in step]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_measuring_changes_no_request(measuring: Serve, algorithm: str) -> None:
    """Between any two steps of those that are served: texts and drafts are what they are without."""
    server = measuring(plans_of(algorithm))
    server.begin(PROMPTS)
    for drafts, ahead in [(3, 1), (1, 0), (0, 3), (3, 3)]:
        tables = {name: table.clone() for name, table in server.runner.speculator.fields.items()}
        assert adapter("server.times").measured(server.worker).keys() == {"3", "1", "0"}
        for name, table in server.runner.speculator.fields.items():
            assert torch.equal(table[1:], tables[name][1:]), name
        server.decode(ROWS, drafts=drafts, ahead=ahead)
    server.judge()
    assert server.program.served == 4


def test_the_policy_counts_by_what_was_measured(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {Shape(3, 1, 4): 9.0, Shape(1, 1, 2): 1.5, Shape(0, 1, 1): 1.0}
    measured = {shape: dict.fromkeys((1, 2, 4), time) for shape, time in slow.items()}
    monkeypatch.setattr(runtime, "measure_step_times", lambda *_: measured)
    server = serve(plans_of("EAGLE"))
    for _ in range(40):
        server.told(ROWS, drafts := lookup(server)[4], [drafts + 1] * 4)
    assert lookup(server)[4] == 1, "4 tokens in 9 ms, 2 in 1.5, 1 in 1"


@pytest.mark.parametrize("why", ["a number by name", "the server's table", "a file", "one shape", "adapters"])
def test_what_nobody_asks_for_is_not_measured(
    measuring: Serve, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    steps, given = SHAPES, dict[str, Any]()
    if why == "a number by name":
        monkeypatch.setenv("SPECC_SHAPE", "1")
    elif why == "the server's table":
        given["num_speculative_tokens_per_batch_size"] = [(1, 6, 3)]
    elif why == "a file":
        file = tmp_path / "times.json"
        known = {"program": "p", "gpu": "g", "engine": "e", "unit": "ms"}
        file.write_text(
            json.dumps(known | {"times": {str(drafts): {"1": 1, "2": 1, "4": 1.0 + drafts} for drafts in SHAPES}})
        )
        monkeypatch.setenv("SPECC_STEP_TIMES", str(file))
    elif why == "one shape":
        steps = [3]
    else:
        given["lora"] = object()
    server = measuring(plans_of("EAGLE", steps), **given)
    assert server.runner.dummies == []
    if why == "a file":
        assert lookup(server).times == {str(drafts): {1: 1, 2: 1, 4: 1.0 + drafts} for drafts in SHAPES}
    server.begin(PROMPTS)
    server.decode(ROWS)
    server.judge()


def test_a_bucket_that_the_server_cannot_fill_takes_as_long_as_one_that_it_can(measuring: Serve) -> None:
    """It has 6 tokens in a step: of 4 tokens each one request, of 2 tokens two."""
    server = measuring(plans_of("EAGLE"), most_tokens=6)
    assert {name: [*of] for name, of in lookup(server).times.items()} == {name: [1, 2, 4] for name in ("3", "1", "0")}
    assert [len(counts) for counts in server.runner.dummies[::2]] == [1, 1, 1, 1, 2, 2, 1, 2, 4]
    assert max(map(sum, server.runner.dummies)) == 4


@pytest.mark.parametrize("several", [False, True])
def test_where_a_step_cannot_be_timed_the_policy_estimates(
    measuring: Serve, several: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of several ranks the others would wait for the forwards of one that has failed."""
    ranks(monkeypatch, GroupCoordinator(2 if several else 1))
    monkeypatch.setattr(GPUModelRunner, "execute_model", fail)
    if several:
        with pytest.raises(RuntimeError, match="no forward"):
            measuring(plans_of("EAGLE"))
        return
    server = measuring(plans_of("EAGLE"))
    assert "it is not measured how long steps take" in caplog.text
    assert "no forward" in caplog.text
    assert not server.runner.kv_connector.disabled
    assert lookup(server).times == {}
    server.begin(PROMPTS)
    server.decode(ROWS, ahead=lookup(server)[4])
    server.judge()
    assert server.program.served == 1


def fail(*_: Any, **__: Any) -> None:
    raise RuntimeError("no forward")


# --- several ranks ----------------------------------------------------------------------------------------------------


def test_a_scheduler_in_a_process_of_its_own_asks_the_policy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its configuration has no table, and that of the ranks, which capture for every number, has one."""
    ranks(monkeypatch, GroupCoordinator(2))
    plans = plans_of("EAGLE")
    elsewhere = config_of(plans[0], 6, 64, 512)
    server = serve(plans, scheduled=elsewhere)
    assert elsewhere.speculative_config.num_speculative_tokens_per_batch_size is None
    assert server.config.speculative_config.num_speculative_tokens_per_batch_size == [(1, 1, 3), (2, 2, 1), (3, 6, 0)]
    for _ in range(40):
        server.told(ROWS, lookup(server)[4], [1, 1, 1, 1])
    assert lookup(server)[4] == 0


def test_a_program_that_the_scheduler_does_not_have_leaves_the_servers_number(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is installed where ranks are, and otherwise where the scheduler is."""
    server = serve(plans_of("EAGLE"))
    found = adapter("server.numbers").numbers_of
    other = package_of(plans_of("EAGLE")[0], PROGRAM, *plans_of("EAGLE")[1:])
    vars(other)["__version__"] = "0.1.0+p2"
    assert found([other], Executor([server.worker])) is None
    assert f"{PROGRAM} 0.1.0+p1 is not installed where the scheduler is" in caplog.text


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says."""
    return [record.getMessage() for record in caplog.records]
