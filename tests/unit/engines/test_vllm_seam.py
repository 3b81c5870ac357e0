"""What the adapter for vLLM touches of it: the tables, and what a server does in which something has another name."""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes.vllm_modules import BaseSpeculator, GPUModelRunner, NgramGPUSpeculator, Worker
from fakes.vllm_sampling import LogitBiasState
from fakes.vllm_server import PROGRAM, Server, adapter
from fakes.vllm_tables import VLLM, RequestState
from programs import load
from vllm_batches import BATCHES, decode

from specc.compiler.driver.build import build_program
from specc.engines import vllm
from specc.engines._probe import touches
from specc.engines.adapter_files import LEFT_OUT
from specc.engines.vllm import seam
from specc.engines.vllm.kinds import KINDS
from specc.engines.vllm.kinds.look_ups import LOOK_UPS
from specc.runtime.plan.plan import Plan

FOLDER = Path(vllm.__file__).parent
FILES = sorted(path for path in FOLDER.rglob("*.py") if path.relative_to(FOLDER).parts[0] not in LEFT_OUT)
Serve = Callable[..., Server]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers."""
    monkeypatch.delenv("SPECC_PROGRAM", raising=False)
    monkeypatch.setenv("SPECC_CAPTURE", "none")
    with VLLM.starting(Server, PROGRAM) as start:
        yield start


def plan_of(algorithm: str) -> Plan:
    """A program for vLLM."""
    more: dict[str, Any] = {"page_size": 4, "max_requests": 6, "buckets": [1, 2]}
    more |= {"options": {"window": 64, "longest": 3, "shortest": 1}} if algorithm == "NGRAM" else {}
    return build_program(load(algorithm, engine="vllm", **more)).plan


def test_all_that_the_adapter_touches_is_there(serve: Serve) -> None:
    serve(plan_of("EAGLE"))
    checked = adapter("seam")
    tables = (checked.MUST, *checked.MAY.values())
    assert [list(checked.lacking(table)) for table in tables] == [[]] * (1 + len(checked.MAY))


def test_everything_that_is_imported_is_in_a_table() -> None:
    """So that a version in which it is missing is refused, or goes without it, by name."""
    rows = [touch for table in (seam.MUST, *seam.MAY.values()) for touch in touches(table)]
    known = {touch.place for touch in rows} | {f"{touch.place}.{name}" for touch in rows for name in touch.has.split()}
    above = {place.rpartition(".")[0] for place in known}
    imported = [
        (file.name, f"{node.module}.{alias.name}".removeprefix("vllm."))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vllm")
        for alias in node.names
    ]
    assert len(imported) > 7
    assert [(file, place) for file, place in imported if place not in known | above] == []


def renamed(self: Any, rows: int) -> None:
    """A LogitBiasState of a version to come."""
    self.use_logit_bias, self.early = np.zeros(rows, dtype=bool), {}
    self.biases = np.zeros(rows, dtype=np.int32)


def of_one_runner(self: Any, model_runner: Any) -> None:
    """A Worker of a version that has the second model runner alone."""
    self.model_runner = model_runner


def looking_up(self: Any, vllm_config: Any, device: torch.device, states: RequestState) -> None:
    """A NgramGPUSpeculator that is given the tables of requests by another name."""
    BaseSpeculator.__init__(self, vllm_config, device)


def test_a_version_without_something_runs_its_own_speculation(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All that it lacks stands in the log, and is why a server ends in which a program must run."""
    monkeypatch.setattr(LogitBiasState, "__init__", renamed)
    server = serve(plan_of("EAGLE"))
    assert "RuntimeError: vLLM 0.33.0: LogitBiasState has no num_logit_bias" in caplog.text
    assert server.program is None
    decode(server)
    monkeypatch.setenv("SPECC_PROGRAM", PROGRAM)
    with pytest.raises(SystemExit, match=f"SPECC_PROGRAM={PROGRAM}: vLLM 0.33.0: LogitBiasState has no num_logit_bias"):
        serve(plan_of("EAGLE"))


def test_what_may_be_missing_is_left_out(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs of what is there run in a version that is not tested, and the log says which do not."""
    monkeypatch.setattr(NgramGPUSpeculator, "__init__", looking_up)
    monkeypatch.setattr(GPUModelRunner, "profile_cudagraph_memory", lambda self, often: 0)
    monkeypatch.setattr(Worker, "__init__", of_one_runner)
    server = serve(plan_of("EAGLE"), release="0.34.0")
    decode(server)
    assert server.program.served == len(BATCHES)
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.rpartition(": ")[2] for line in lines[:3]] == [LOOK_UPS.absent, seam.PROFILE, seam.RUNNER]
    assert lines[0].startswith("vLLM 0.34.0: speculator.NgramGPUSpeculator takes no req_states; ")
    assert lines[3].startswith(
        "specc: tested with vLLM 0.32.0 and 0.33.0, this is 0.34.0: all that programs must have is there"
    )
    assert len(adapter("runner").SERVED) == len(KINDS) - 1
    caplog.clear()
    assert serve(plan_of("NGRAM"), release="0.34.0").program is None
    others = (touches(kind.needs)[0].place for kind in KINDS if kind is not LOOK_UPS)
    served = ", ".join(sorted(place.rpartition(".")[2] for place in others))
    assert f"drafts are those of NgramGPUSpeculator, served are {served}" in caplog.text
