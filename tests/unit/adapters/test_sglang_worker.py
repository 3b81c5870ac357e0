"""Programs as SGLang's decode steps, on stand-ins of its modules: texts, what is left to SGLang, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from fakes.plans import program_of
from fakes.sglang_modules import SRT
from fakes.sglang_server import PROGRAM, Server, adapter, engine_of
from fakes.sglang_worker import IntelAMXAttnBackend, TritonAttnBackend
from programs import load

from specc.driver.build import build_program
from specc.runtime.batch import Batch
from specc.runtime.plan.plan import Plan

Serve = Callable[..., Server]
PROMPTS = {3: [4, 9, 2], 1: [7, 1], 6: [5, 5, 8, 1, 2], 2: [1]}
TREE = (("topk", 3), ("num_draft_tokens", 8))
QLEN, FULL = (*TREE, ("mask", "qlen")), (*TREE, ("mask", "full"), ("context_length", 88))


@cache
def plan_of(algorithm: str, *keys: tuple[str, Any], scored: int | None = None) -> Plan:
    """A program for SGLang; `scored`: how many tokens its draft scores, by SGLang's token map."""
    draft = {} if scored is None else {"vocab_size": scored, "token_map": "engine"}
    more = {"max_requests": 6, "buckets": [1, 2, 4], "draft": draft, **dict(keys)}
    return build_program(load(algorithm, engine="sglang", **more)).plan


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server."""
    for name in ("SPECC_PROGRAM", "SPECC_PROOF", "SPECC_FALLBACK", "SPECC_CAPTURE"):
        monkeypatch.delenv(name, raising=False)
    with SRT.installed(PROGRAM):
        yield lambda plan, **how: Server(plan, monkeypatch, **how)


def test_all_that_the_adapter_touches_is_there(serve: Serve) -> None:
    serve(plan_of("EAGLE"))
    seam = adapter("seam")
    assert list(seam.lacking(seam.MUST)) == []


def counted(plan: Plan, batches: Sequence[Sequence[int]], scored: list[int] | None = None) -> dict[int, list[int]]:
    """How many tokens each step gives a request, by pool row, of a program that prefills by itself."""
    engine = engine_of(plan, scored)
    engine.prompts |= PROMPTS
    tables = {} if scored is None else {"d2t": torch.tensor(scored)}
    step = program_of(plan).bind(engine, engine.table, engine.kv, tables=tables, capture=False)
    step.prefill(Batch([*PROMPTS], [len(prompt) for prompt in PROMPTS.values()]))
    found: dict[int, list[int]] = {row: [] for row in PROMPTS}
    for rows in batches:
        for row, count in zip(rows, step.decode(Batch(list(rows))).to_host().accept_lens, strict=True):
            found[row].append(count)
    return found


def run(server: Server, batches: Sequence[Sequence[int]], **how: Any) -> None:
    for rows in batches:
        server.decode(rows, **how)
    server.settle()
    for row, one in server.requests.items():
        assert one.output_ids == server.own_text(row)


BATCHES = [[3, 1, 6, 2], [1, 2], [6], [2, 3, 6], [3], [2, 1, 3], [3, 1, 6, 2]]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("algorithm", "keys"), [("EAGLE", ()), ("STANDALONE", ()), ("EAGLE", QLEN), ("EAGLE", FULL)])
def test_texts_are_the_targets_own(serve: Serve, algorithm: str, keys: Any, overlap: bool) -> None:
    plan = plan_of(algorithm, *keys)
    server = serve(plan, overlap=overlap, attention=TritonAttnBackend if keys == FULL else IntelAMXAttnBackend)
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES)
    assert server.worker.steps.report() == {
        "program": PROGRAM, "version": "0.1.0+p1", "capture": "none", "proof": "passed", "sampling": [],
        "best_logprobs": 0, "served": len(BATCHES), "left": {},
    }  # fmt: skip


SCORED = [token for token in range(54) if token not in (0, 2, 5, 11, 12, 13)]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "scored"), [("EAGLE", None), ("STANDALONE", None), ("EAGLE", SCORED)], ids=["eagle", "own", "map"]
)
def test_steps_of_either_go_on_where_the_other_stopped(
    serve: Serve, algorithm: str, scored: list[int] | None, overlap: bool
) -> None:
    """A request with a grammar is SGLang's, and so is every batch that it is in: drafts are as good as in a program."""
    plan = plan_of(algorithm, scored=None if scored is None else len(scored))
    server = serve(plan, overlap=overlap, scored=scored)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, BATCHES)
    assert server.steps == counted(plan, BATCHES, scored)
    assert max(max(counts) for counts in server.steps.values()) > 2, "drafts are accepted"
    assert server.worker.steps.left == {"min_new_tokens": sum(6 in rows for rows in BATCHES)}
