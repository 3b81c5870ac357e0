"""Programs on several ranks of vLLM, on stand-ins: they agree before they run, and capture in vLLM's own context."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from fakes.vllm_ranks import GroupCoordinator, ranks
from fakes.vllm_server import PROGRAM, Server, adapter
from fakes.vllm_tables import VLLM
from programs import planned
from prometheus_client import REGISTRY
from vllm_batches import BATCHES, decode

from specc.runtime.plan.plan import Plan
from specc.runtime.rotated import RotatedStep

Serve = Callable[..., Server]
BOUND, CHOSEN, CAPTURE, SHAPE = "a bound program", "the program", "SPECC_CAPTURE", "SPECC_SHAPE"
UNKNOWN = "what is not known of vLLM"


@cache
def plan() -> Plan:
    """A program for vLLM, which does not know of ranks."""
    return planned("EAGLE", engine="vllm", page_size=4, max_requests=6, buckets=[1, 2])[0]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    for name in ("SPECC_PROGRAM", SHAPE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CAPTURE, "none")
    with VLLM.starting(Server, PROGRAM) as start:
        yield start


def messages_of_ranks(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of ranks."""
    return [record.getMessage() for record in caplog.records if "ranks" in record.getMessage()]


def otherwise(name: str, value: object) -> Callable[[dict[str, object]], dict[str, object]]:
    """Another rank, which says something else of one thing."""
    return lambda facts: facts | ({name: value} if name in facts else {})


def counted() -> float:
    """The steps that this process has counted."""
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name == "specc:decode_steps_total")


def test_one_rank_asks_nobody(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = ranks(monkeypatch, GroupCoordinator())
    decode(serve(plan()))
    assert alone.said == []


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_agree_run_the_program(
    serve: Serve, rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They ask twice: which program, and whether it is bound. The first of them tells of it and counts."""
    caplog.set_level(logging.INFO)
    group = ranks(monkeypatch, GroupCoordinator(2, rank))
    before, server = counted(), serve(plan())
    decode(server)
    assert server.program.served == len(BATCHES)
    assert [{*facts} for facts in group.said] == [{CHOSEN, CAPTURE, SHAPE}, {BOUND, UNKNOWN}]
    assert group.said[0] == {CHOSEN: f"{PROGRAM} 0.1.0+p1", CAPTURE: "none", SHAPE: "auto"}
    assert messages_of_ranks(caplog) == []
    assert counted() - before == (0 if rank else len(BATCHES))
    assert ("runs the decode steps" in caplog.text) != bool(rank)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("name", "value", "own_value"),
    [(CHOSEN, f"{PROGRAM} 0.1.0+p2", f"{PROGRAM} 0.1.0+p1"), (CHOSEN, None, f"{PROGRAM} 0.1.0+p1"),
     (CAPTURE, "drafts", "none"), (SHAPE, "3", "auto"), (BOUND, False, True), (UNKNOWN, ["a.b"], [])],
)  # fmt: skip
def test_where_a_rank_would_run_something_else_all_run_vllms_steps(
    serve: Serve, rank: int, name: str, value: object, own_value: object, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    ranks(monkeypatch, GroupCoordinator(2, rank, otherwise(name, value)))
    server = serve(plan())
    assert server.program is None
    decode(server)
    by_rank = f"{name} is {own_value} on rank 0, {value} on rank 1"
    line = f"specc: ranks would not run the same steps: {by_rank}. vLLM's own steps run"
    assert messages_of_ranks(caplog) == ([] if rank else [line])


def test_where_no_program_fits_this_rank_none_runs_on_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """This one asks, too: others wait for its answer."""
    group = ranks(monkeypatch, GroupCoordinator(2, 0, otherwise(CHOSEN, "another")))
    server = serve(plan(), rejection_sample_method="fly")
    assert server.program is None
    assert group.said[0][CHOSEN] is None
    assert any("None on rank 0, another on rank 1" in line for line in messages_of_ranks(caplog))
    decode(server)


def test_a_program_that_must_run_ends_a_server_whose_ranks_disagree(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks(monkeypatch, GroupCoordinator(2, 1, otherwise(CHOSEN, None)))
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    with pytest.raises(RuntimeError, match=f"SPECC_PROGRAM={PROGRAM}: this server has no step that a program runs"):
        serve(plan())


def test_a_rank_that_cannot_bind_says_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With what went wrong in the log, on whichever rank."""

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    group = ranks(monkeypatch, GroupCoordinator(2, 1, otherwise(BOUND, True)))
    binding = serve(plan())
    monkeypatch.setattr(adapter("drafts"), "Steps", fail)
    binding.runner.speculator.release()
    binding.runner.speculator.init_cudagraph_manager()
    assert binding.program is None
    assert group.said[-1] == {BOUND: False, UNKNOWN: []}
    assert "no memory" in caplog.text
    decode(binding)


@pytest.mark.parametrize("several", [False, True])
def test_drafts_are_captured_where_vllm_captures_its_all_reduce(
    serve: Serve, several: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ranks(monkeypatch, GroupCoordinator(2 if several else 1))
    monkeypatch.setenv(CAPTURE, "drafts")
    seen = list[list[str]]()
    monkeypatch.setattr(RotatedStep, "capture", lambda *_, **__: seen.append([*group.captures]))
    server = serve(plan())
    assert seen == [["begin"] if several else []]
    assert group.captures == (["begin", "end"] if several else [])
    assert server.program.report()["capture"] == "drafts"


def test_a_capture_that_fails_on_one_of_several_ranks_ends_the_server(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others would wait for its forwards."""

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no graph")

    ranks(monkeypatch, GroupCoordinator(2))
    monkeypatch.setenv(CAPTURE, "drafts")
    monkeypatch.setattr(RotatedStep, "capture", fail)
    with pytest.raises(RuntimeError, match="no graph"):
        serve(plan())
