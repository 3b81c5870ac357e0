"""Servers of SGLang that change the number of steps while they run, on stand-ins of its modules."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.sglang_modules import SETTINGS
from fakes.sglang_server import Server, adapter
from test_sglang_shapes import plans_of
from test_sglang_worker import BATCHES, PROMPTS, Serve, run, serve

__all__ = ["serve"]
BY_BATCH = {1: 3, 2: 1, 3: 0, 4: 3}
"""How many steps a batch has, by its size."""
LONG = [*BATCHES, *BATCHES[::-1]]


def adapted(serve: Serve, **given: Any) -> Server:
    """A server that changes the number of steps, with a program of chains."""
    plans = plans_of([{"num_steps": number} for number in (0, 1, 3)])
    return serve(plans[0], others=plans[1:], adaptive=BY_BATCH, **given)


def misfits(server: Server) -> list[str]:
    plans = server.worker.steps._plans
    return adapter("server.fit").misfits(plans, server.worker)


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_have_the_shape_that_sglang_takes(serve: Serve, overlap: bool) -> None:
    """Which is the number of steps that its own step would have next."""
    server = adapted(serve, overlap=overlap)
    server.begin(PROMPTS)
    run(server, LONG)
    report = server.worker.steps.report()
    expected = [str(BY_BATCH[len(rows)]) for rows in LONG]
    assert report["shape"] == "auto" and report["served"] == len(LONG)
    assert report["served_by_shape"] == {name: expected.count(name) for name in dict.fromkeys(expected)}
    assert len({*expected}) == 3
    assert server.worker.speculative_num_steps == BY_BATCH[len(LONG[-1])]


def test_nothing_is_measured_and_nothing_is_left_changed_when_a_program_is_bound(serve: Serve) -> None:
    server = adapted(serve)
    assert server.worker.steps.shapes.times == {}
    assert server.worker.adaptive_controller.entered[-1] == SETTINGS.spec.speculative_num_steps == 3


def test_each_shape_has_the_attention_of_sglangs_state_of_it(serve: Serve) -> None:
    """Not that of another state, cut to size: SGLang has made one for as many steps."""
    server = adapted(serve)
    controller = server.worker.adaptive_controller
    for shape, attention in server.worker.steps._attention.items():
        draft, target = controller.backends(shape.num_steps)
        for of_role in attention._by_role.values():
            assert of_role._roles.verify is target
            assert [*of_role._roles.draft] == ([] if draft is None else draft.attn_backends)


def test_steps_that_are_left_to_sglang_have_as_many(serve: Serve) -> None:
    server = adapted(serve)
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, LONG)
    left = server.worker.steps.tally.left
    assert left == {"min_new_tokens": sum(6 in rows for rows in LONG)}
    served = [len(rows) for rows in LONG if 6 not in rows]
    by_shape = server.worker.steps.report()["served_by_shape"]
    assert by_shape == {name: [str(BY_BATCH[size]) for size in served].count(name) for name in by_shape}


def test_another_shape_may_be_asked_for(serve: Serve) -> None:
    server = adapted(serve)
    server.begin(PROMPTS)
    server.worker.steps.shapes.take("1")
    run(server, BATCHES)
    assert server.worker.steps.report()["served_by_shape"] == {"1": len(BATCHES)}
    server.worker.steps.shapes.take("auto")
    run(server, [[3], [3, 1]])
    assert server.worker.steps.report()["served_by_shape"] == {"1": len(BATCHES) + 1, "3": 1}


def test_a_batch_that_the_buckets_of_its_shape_do_not_hold(serve: Serve) -> None:
    """It runs at the deepest that holds it."""
    shapes: list[Any] = [{"num_steps": 0}, {"num_steps": 1}, {"num_steps": 3, "buckets": [1, 2]}]
    plans = plans_of(shapes)
    server = serve(plans[0], others=plans[1:], adaptive=BY_BATCH)
    server.begin(PROMPTS)
    run(server, [[3], [3, 1, 2, 6]])
    assert server.worker.steps.report()["served_by_shape"] == {"3": 1, "1": 1}


@pytest.mark.parametrize(
    ("candidates", "told"),
    [({1: 3, 2: 0, 3: 1}, []), ({1: 3, 2: 1}, ["1, 3"]), ({1: 3, 2: 0, 3: 1, 4: 2}, ["0, 1, 2, 3"])],
)
def test_a_program_has_all_candidates_as_shapes_and_no_more(
    serve: Serve, candidates: dict[int, int], told: list[str]
) -> None:
    server = adapted(serve)
    server.worker.adaptive_controller = type(server.worker.adaptive_controller)(server.worker, candidates)
    assert misfits(server) == [f"num_steps is 0, 1, 3 in the program, {listed} in the server" for listed in told]


def test_adapters_are_refused(serve: Serve) -> None:
    server = adapted(serve)
    SETTINGS.lora.enable_lora = True
    assert "adaptive speculation with LoRA is not served" in misfits(server)
