"""Engines of a file of tests that has models of its own, and what holds of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from engine_fixtures import asked, side_by_side, started
from sglang_programs import build_program
from sglang_server import Served, Variant, greedy, serve
from sglang_workload import without_aborts


@dataclass(frozen=True)
class Family:
    """Engines of the same models, which serve the same requests; none is aborted in the one without speculation.

    Attributes:
        alone: the one without speculation, whose texts are those of all.
        models: the folder with the models.
        requests: see `serve.py`.
        more: arguments of every engine beside those of its variant.
        settings: environment variables of those with a program.

    """

    alone: Variant
    models: Path
    requests: Sequence[Mapping[str, Any]]
    more: Mapping[str, Any]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def running(self, session: pytest.Session, folder: Path) -> Iterator[Mapping[Variant, Future[Served]]]:
        """It, and all engines that tests of this session ask for as `engine` or `own`."""

        def run(variant: Variant) -> Served:
            engine = {**variant.engine(self.models), **self.more}
            wheel = build_program(engine, folder / f"{variant}-wheel", *variant.options) if variant.program else None
            job, settings = folder / f"{variant}-job", self.settings if variant.program else None
            requests = without_aborts(self.requests) if variant == self.alone else self.requests
            return serve(engine, requests, job, overlap=variant.overlap, wheel=wheel, settings=settings)

        of_these = [variant for variant in asked(session, "engine", "own") if variant.target == self.alone.target]
        with side_by_side(2) as pool:
            yield started(pool, [self.alone, *of_these], run)


def own(program: Variant) -> Variant:
    """The engine that drafts the same without a program, on one rank."""
    return replace(program, program=False, overlap=False, samples=False, ranks=1, experts=False)


def same_texts(served: Served, alone: Served) -> None:
    """Greedy requests have the texts of an engine that does not speculate, though some were thrown out.

    Those of aborted requests as far as both go: SGLang does not cut their last step where the text would end.
    """
    for number, request, output in greedy(served):
        expected = alone.outputs[number]
        if output["finish_reason"]["type"] == "abort":
            tokens, whole = output["token_ids"], expected["token_ids"]
            assert len(tokens) >= request["abort_after"], number
            assert tokens[: len(whole)] == whole[: len(tokens)], number
        else:
            for key in ("token_ids", "text", "finish_reason"):
                assert output[key] == expected[key], (number, key)
    assert sum(output["num_retractions"] for output in served.outputs) > 0


def all_accounted_for(state: Mapping[str, Any]) -> None:
    """Every row, and every slot of each pool, is free or cached at the end; `state` is what `specc_testing` has."""
    assert state["idle"]
    for slots in state["slots"]:
        assert slots["free"] + slots["cached"] == slots["owned_once"] == slots["all"]
        assert slots["protected"] == 0
    assert state["rows_free"] == state["rows_free_once"] == state["rows"]
