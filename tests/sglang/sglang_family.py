"""Engines of a family of models of its own, and what holds of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, started
from sglang_programs import build_program
from sglang_server import Served, Variant, greedy, serve


@dataclass(frozen=True)
class Family:
    """Models, and engines of them that serve the same requests.

    Attributes:
        alone: the engine without speculation, whose texts are those of all.
        programs: engines with a program.
        write: writes the models into a folder.
        requests: made for the folder with the models; see `serve.py`.
        own: the engine that drafts the same without a program; by default that of each program on one rank.
        arguments: arguments of every engine beside those of its variant.
        settings: environment variables of those with a program.
        left: why steps may be left to SGLang.
        pools: SGLang's classes of the memory of target and draft; empty if they are not looked at.

    """

    alone: Variant
    programs: Sequence[Variant]
    write: Callable[[Path], object]
    requests: Callable[[Path], Sequence[Mapping[str, Any]]]
    own: Variant | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    left: frozenset[str] = frozenset({"logprobs", "sampling"})
    pools: Sequence[str] = ()

    def __str__(self) -> str:
        """The target's name, for the names of tests and of parts of them."""
        return self.alone.target

    def own_of(self, program: Variant) -> Variant:
        """The engine that drafts as a program does, without any."""
        plain = replace(program, program=False, overlap=False, samples=False, ranks=1, experts=False)
        return self.own or plain


@dataclass(frozen=True)
class Running:
    """A family's folder of models, and what its engines answered."""

    models: Path
    answers: Mapping[Variant, Future[Served]]

    def of(self, variant: Variant) -> Served:
        """What an engine answered, once it has."""
        return self.answers[variant].result()


def start(family: Family, pool: ThreadPoolExecutor, session: pytest.Session, models: Path, jobs: Path) -> Running:
    """Its engine without speculation, and those that tests of this session ask for as `engine` or `own`."""
    family.write(models)
    requests = family.requests(models)

    def run(variant: Variant) -> Served:
        engine = {**variant.engine(models), **family.arguments}
        wheel = build_program(engine, jobs / f"{variant}-wheel", *variant.options) if variant.program else None
        settings = family.settings if variant.program else None
        return serve(engine, requests, jobs / f"{variant}-job", overlap=variant.overlap, wheel=wheel, settings=settings)

    of_these = [variant for variant in asked(session, "engine", "own") if variant.target == family.alone.target]
    return Running(models, started(pool, [family.alone, *of_these], run))


def same_texts(served: Served, alone: Served) -> None:
    """Greedy requests have the texts of an engine that does not speculate, though some were thrown out."""
    for number, _, output in greedy(served):
        for key in ("token_ids", "finish_reason"):
            assert output[key] == alone.outputs[number][key], (number, key)
    assert sum(output["num_retractions"] for output in served.outputs) > 0


def all_accounted_for(served: Served) -> None:
    """Every slot and every row is free or cached at the end."""
    state = served.state["specc_testing"]
    assert state["idle"]
    assert state["slots_free"] + state["slots_cached"] == state["slots_owned_once"] == state["slots"]
    assert state["slots_protected"] == 0
    assert state["rows_free"] == state["rows_free_once"] == state["rows"]
