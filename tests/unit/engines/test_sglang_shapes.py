"""Programs of several shapes in SGLang, on stand-ins of its modules: which shape a step has, and that texts stay."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.sglang_modules import SETTINGS
from fakes.sglang_server import Server, adapter, part
from fakes.sglang_settings import validated
from fakes.sglang_worker import IntelAMXAttnBackend, TritonAttnBackend
from programs import planned
from prometheus_client import REGISTRY
from sampling_oracle import drawn
from test_sglang_worker import ALL, BATCHES, PROGRAM, PROMPTS, Serve, controller_of, run, serve

from specc.engines.sglang.attention.roles import Roles
from specc.engines.sglang.attention.step import branches
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape

__all__ = ["serve"]
CHAINS: list[dict[str, Any]] = [{"num_steps": steps} for steps in (0, 1, 3)]
MIXED: list[dict[str, Any]] = [
    {"num_steps": 3, "topk": 3, "num_draft_tokens": 9},
    {"num_steps": 2, "topk": 2, "num_draft_tokens": 5},
    *CHAINS,
]
BUCKETED = [MIXED[0] | {"buckets": [1]}, MIXED[1] | {"buckets": [1, 2]}, *CHAINS]
QLEN, FULL = {"mask": "qlen"}, {"mask": "full", "context_length": 88}
LONG = [*BATCHES, *BATCHES[::-1]]


def plans_of(shapes: list[dict[str, int]], algorithm: str = "EAGLE", **keys: Any) -> tuple[Plan, ...]:
    return planned(algorithm, engine="sglang", shapes=shapes, max_requests=6, buckets=[1, 2, 4], **keys)


def started(serve: Serve, plans: Sequence[Plan], **given: Any) -> Server:
    return serve(plans[0], others=plans[1:], **given)


def shuffle(server: Server, seed: int = 0) -> list[Shape]:
    """Have every step run at a shape drawn at random, which the list gets to know."""
    draw, chosen = random.Random(seed), list[Shape]()

    def choose(requests: int) -> Shape:
        plans = server.worker.steps._plans
        chosen.append(draw.choice([shape for shape, plan in plans.items() if plan.buckets[-1] >= requests]))
        return chosen[-1]

    server.worker.steps.shapes.choose = choose
    return chosen


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("algorithm", "shapes", "keys"),
    [
        ("EAGLE", CHAINS, {}),
        ("STANDALONE", CHAINS, {}),
        ("EAGLE", MIXED, QLEN),
        ("STANDALONE", MIXED, QLEN),
        ("EAGLE", MIXED, FULL),
        ("EAGLE", BUCKETED, QLEN),
    ],
)
def test_texts_are_the_targets_own_at_any_shape(
    serve: Serve, algorithm: str, shapes: Any, keys: Any, overlap: bool
) -> None:
    plans = plans_of(shapes, algorithm, **keys)
    attention = TritonAttnBackend if keys == FULL else IntelAMXAttnBackend
    server = started(serve, plans, overlap=overlap, attention=attention)
    chosen = shuffle(server)
    server.begin(PROMPTS)
    run(server, LONG)
    report = server.worker.steps.report()
    assert report["served_by_shape"] == {str(shape): chosen.count(shape) for shape in dict.fromkeys(chosen)}
    assert report["served"] == len(LONG) and len({*chosen}) == len(plans) > 2
    assert max(map(max, server.steps.values())) > 2, "drafts are accepted"


@pytest.mark.parametrize("overlap", [False, True])
def test_what_is_drawn_does_not_depend_on_shapes(serve: Serve, overlap: bool) -> None:
    """Token for token what the target draws at the place, by an oracle of its own."""
    keys = {"verify": "target_only", "sampling": ["top_k", "top_p"]}
    server = started(serve, plans_of(MIXED, **QLEN, **keys), overlap=overlap)
    shuffle(server)
    server.begin(PROMPTS, temperature=1.3, top_k=ALL, top_p=0.9, sampling_seed=7)
    run(server, LONG, lambda row, text: drawn(server.scores(text).tolist(), 7, 1.3, len(text), 0, 0.9))


def run_any(server: Server, batches: Sequence[Sequence[int]]) -> None:
    for rows in batches:
        server.decode(rows)
    server.settle()


def test_sglangs_own_steps_come_between_any_shapes(serve: Serve) -> None:
    """Chains, which the stand-in of its worker can draft."""
    server = started(serve, plans_of(CHAINS), metrics=True)
    chosen, before = shuffle(server), {shape: counted_steps(shape) for shape in server.worker.steps._plans}
    server.begin({row: PROMPTS[row] for row in (3, 1, 2)})
    server.begin({6: PROMPTS[6]}, min_new_tokens=2)
    run(server, LONG)
    assert server.worker.steps.tally.left == {"min_new_tokens": sum(6 in rows for rows in LONG)}
    assert {shape: counted_steps(shape) - was for shape, was in before.items()} == {
        shape: chosen.count(shape) for shape in before
    }


def test_a_policy_chooses_and_learns_from_what_is_accepted(serve: Serve) -> None:
    server = started(serve, plans_of(CHAINS), metrics=True)
    seen = list[tuple[str, list[int]]]()
    shapes = server.worker.steps.shapes
    observe = shapes.observe
    shapes.observe = lambda shape, lengths: (seen.append((str(shape), lengths)), observe(shape, lengths))
    server.begin(PROMPTS)
    before = {str(shape): counted_steps(shape) for shape in server.worker.steps._plans}
    run(server, BATCHES)
    assert server.worker.steps.report()["shape"] == "auto"
    assert [len(lengths) for _, lengths in seen] == list(map(len, BATCHES))
    for name, was in before.items():
        assert counted_steps(name) - was == sum(shape == name for shape, _ in seen)
    last, rows = seen[-1][0], len(BATCHES[-1])
    (time,) = (by_bucket[rows] for shape, by_bucket in shapes.times.items() if str(shape) == last)
    expected = server.worker.steps.report()["expected_tokens_per_second"]
    assert 1e3 * rows / time <= expected <= 1e3 * rows * (int(last) + 1) / time
    assert REGISTRY.get_sample_value("specc:expected_tokens_per_second", {"program": PROGRAM}) == expected


def counted_steps(shape: object) -> float:
    labels = {"program": PROGRAM, "by": "program", "reason": "", "shape": str(shape)}
    return REGISTRY.get_sample_value("specc:decode_steps_total", labels) or 0


def test_one_shape_alone_runs_where_the_server_is_told(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_SHAPE", "1")
    server = started(serve, plans_of(CHAINS))
    server.begin(PROMPTS)
    run(server, BATCHES)
    assert server.worker.steps.report()["served_by_shape"] == {"1": len(BATCHES)}
    monkeypatch.setenv("SPECC_SHAPE", "2")
    with pytest.raises(RuntimeError, match="SPECC_SHAPE is auto or one of 3, 1, 0, got '2'"):
        started(serve, plans_of(CHAINS))


def posted(server: Server) -> Callable[[object], bool]:
    """Settings over HTTP, where SGLang lets through numbers alone: whether they are taken."""
    controller, asked = controller_of(server), part("managers.io_struct.SetInternalStateReq")

    def post(settings: object) -> bool:
        given = validated(settings)
        return given is not None and controller.set_internal_state(asked(server_args=given)).updated

    return post


def given(server: Server) -> Callable[[object], bool]:
    """Settings in the same process, which are whatever they are: whether they are taken."""
    controller, asked = controller_of(server), part("managers.io_struct.SetInternalStateReq")
    return lambda settings: controller.set_internal_state(asked(server_args=settings)).updated


@pytest.mark.parametrize(("way", "form"), [(posted, "specc:{}"), (given, "specc:{}"), (given, "specc")])
def test_the_shape_is_changed_in_a_running_server(serve: Serve, way: Any, form: str) -> None:
    """Over HTTP by a key for each word; in the same process by that, or by the word itself."""
    server = started(serve, plans_of(CHAINS))
    switched, steps = way(server), server.worker.steps

    def settings(word: str) -> dict[str, object]:
        return {form.format(word): 1 if form != "specc" else word}

    server.begin(PROMPTS)
    for name in ("1", "0", "auto", "3"):
        assert switched(settings(name))
        before = steps.report()["served_by_shape"].get(name, 0)
        run(server, BATCHES[:2])
        report = steps.report()
        assert (report["shape"], report["on"]) == (name, True)
        assert name == "auto" or report["served_by_shape"][name] == before + 2
    before = steps.report()["served_by_shape"]
    assert switched(settings("off")) and not steps.report()["on"]
    run(server, BATCHES[:2])
    assert switched(settings("on"))
    run(server, BATCHES[:2])
    assert steps.report()["served_by_shape"] == before | {"3": before["3"] + 2}
    assert steps.tally.left == {"switched off": 2}
    assert switched(settings("off")) and switched(settings("0"))
    assert (steps.report()["shape"], steps.report()["on"]) == ("0", True)
    trees = started(serve, plans_of(MIXED, **QLEN))
    for name in ("2x2x5", "auto", "3x3x9"):
        assert way(trees)(settings(name)) and trees.worker.steps.report()["shape"] == name


def test_a_shape_that_is_taken_makes_room_for_batches_beyond_its_buckets(serve: Serve) -> None:
    """They run at the deepest shape that holds them, and smaller ones at the one that was asked for."""
    server = started(serve, plans_of(BUCKETED, **QLEN))
    assert posted(server)({"specc:3x3x9": 1})
    server.begin(PROMPTS)
    run(server, [[3], [3, 1], [3, 1, 2], [1], [3, 1, 2, 6]])
    assert server.worker.steps.report()["served_by_shape"] == {"3x3x9": 2, "3": 3}
    assert server.worker.steps.tally.left == {}


def test_a_number_is_never_taken_for_a_shape_or_the_switch_where_it_may_be_both(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """SGLang makes the number 0 of the text "0", so nobody knows any more which of them was meant."""
    server = started(serve, plans_of(CHAINS))
    post, steps = posted(server), server.worker.steps
    for value in (0, 1, "0", "1", 0.0, True, False, 3, "3"):
        assert not post({"specc": value})
    assert "0 may be a shape or the switch: write specc:on, specc:off or a shape" in caplog.text
    assert (steps.report()["on"], steps.report()["shape"]) == (True, "auto")
    other = started(serve, plans_of([{"num_steps": 2}, {"num_steps": 3}]))
    assert posted(other)({"specc": 0}) and not other.worker.steps.report()["on"]
    assert posted(other)({"specc": 1}) and other.worker.steps.report()["on"]


ODD = (2, -1, "2", "", "OFF", "5x4x8", math.nan, 10**400, None, [], {}, [1], {"a": 1}, (0,), {1}, b"3", object(),
       torch.zeros(2), torch.tensor(3))  # fmt: skip


@pytest.mark.parametrize("key", ["specc", "specc:3", "specc:", "specc:2", "specc:off:", "specc:auto\n", "specc:5x4x8"])
def test_what_is_no_setting_is_refused_and_changes_nothing(
    serve: Serve, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    server = started(serve, plans_of(CHAINS))
    way, steps = given(server), server.worker.steps
    before = steps.report()
    for value in (*ODD, *[1] * (key != "specc:3")):
        assert not way({key: value}), value
    for more in ({key: 1, "specc": 0}, {"specc:3": 1, "specc:off": 1}, {key: 1, "unknown": 1}):
        assert not way(more)
    assert steps.report() == before
    assert all(len(record.getMessage()) < 500 for record in caplog.records)


def test_times_are_measured_or_those_of_a_file(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plans = plans_of(CHAINS)
    measured = started(serve, plans).worker.steps.shapes.times
    assert {shape: [*times] for shape, times in measured.items()} == {plan.shape: [1, 2, 4] for plan in plans}
    times = {"3": {"1": 9.0, "4": 8.0}, "1": {"2": 2.5}, "0": {"1": 1.0}}
    file = tmp_path / "times.json"
    content = {"program": "any", "gpu": "any", "engine": "any", "unit": "ms", "times": times}
    file.write_text(json.dumps(content))
    monkeypatch.setenv("SPECC_STEP_TIMES", str(file))
    read = started(serve, plans).worker.steps.shapes.times
    assert {str(shape): {str(bucket): time for bucket, time in of.items()} for shape, of in read.items()} == times
    for wrong, message in (
        ({"unit": "s"}, "the unit is 's'"),
        ({"times": {name: {"1": 1.0} for name in times}}, "none of 2"),
    ):
        file.write_text(json.dumps(content | wrong))
        with pytest.raises(RuntimeError, match=rf"SPECC_STEP_TIMES=.*times\.json: .*{message}"):
            started(serve, plans)


@pytest.mark.parametrize(
    ("name", "value", "misfit"),
    [
        ("speculative_num_steps", 2, "num_steps is 3 in the program, 2 in the server"),
        ("speculative_eagle_topk", 1, "topk is 3 in the program, 1 in the server"),
        ("speculative_num_draft_tokens", 5, "num_draft_tokens is 9 in the program, 5 in the server"),
    ],
)
def test_the_server_has_of_everything_the_most(serve: Serve, name: str, value: int, misfit: str) -> None:
    plans = plans_of([{"num_steps": 3}, {"num_steps": 2, "topk": 3, "num_draft_tokens": 9}], **QLEN)
    server = started(serve, plans)
    by_shape = {plan.shape: plan for plan in plans}
    assert adapter("server.fit").misfits(by_shape, server.worker) == []
    setattr(SETTINGS.spec, name, value)
    assert adapter("server.fit").misfits(by_shape, server.worker) == [misfit]


@pytest.mark.parametrize(
    ("shape", "topk"), [(Shape(3, 1, 4), 1), (Shape(2, 2, 5), 2), (Shape(1, 1, 2), 1), (Shape(0, 4, 1), 1)]
)
def test_backends_of_a_shape_know_its_sizes_and_share_memory(shape: Shape, topk: int) -> None:
    """A step without drafts verifies as a chain does, whatever its root carries."""

    def backend(**sizes: int) -> Any:
        return SimpleNamespace(memory=[], **sizes)

    drafts = [backend(topk=4, speculative_num_steps=5) for _ in range(4)]
    container = backend(topk=4, speculative_num_steps=5)
    container.attn_backends = drafts
    verify, extend = backend(topk=4, speculative_num_draft_tokens=8), backend(num_draft_tokens=8)
    steps, nodes = shape.num_steps, shape.num_nodes
    assert branches(shape) == topk
    sized = Roles(drafts, container, verify, extend).sized(steps, topk, nodes)
    assert [vars(backend) for backend in sized.draft] == [
        {"memory": [], "topk": topk, "speculative_num_steps": steps} for _ in range(max(steps - 1, 0))
    ]
    assert all(backend.memory is own.memory for backend, own in zip(sized.draft, drafts, strict=False))
    assert vars(sized.verify) == {"memory": [], "topk": topk, "speculative_num_draft_tokens": nodes}
    assert vars(sized.extend) == {"memory": [], "num_draft_tokens": nodes}
    assert sized.verify.memory is verify.memory and sized.extend.memory is extend.memory
    if steps > 1:
        expected = {"memory": [], "topk": topk, "speculative_num_steps": steps, "attn_backends": sized.draft}
        assert vars(sized.container) == expected
    else:
        assert sized.container is None
    assert (container.attn_backends, container.topk, verify.topk, extend.num_draft_tokens) == (drafts, 4, 4, 8)


@pytest.mark.parametrize(
    ("ranks", "simulated", "told"), [(1, 2.0, False), (2, 2.0, True), (4, 2.0, True), (2, -1.0, False)]
)
def test_lengths_of_sharded_logits_are_not_simulated(
    serve: Serve, ranks: int, simulated: float, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On any number of ranks that have columns of their own."""
    server = serve(
        plans_of(CHAINS, target={"vocab_size": 128}, draft={"vocab_size": 128})[0], simulated=simulated, columns=640
    )
    sizes = {"vocab_size": 128} | ({"padded_vocab_size": 128} if ranks > 1 else {})
    sharded = {"logits": "sharded", "tensor_parallel": ranks} if ranks > 1 else {}
    (plan,) = planned("EAGLE", engine="sglang", target=sizes, draft=sizes, **sharded)
    fit, whole = adapter("server.fit"), SimpleNamespace(whole=None, headless=None)
    monkeypatch.setattr(fit.shards, "misfits", lambda *_: ())
    assert any("SIMULATE_ACC_LEN" in misfit for misfit in fit._shards(plan, server.worker, whole)) is told


def test_lengths_are_simulated_by_shape(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_SIMULATE_ACC_LENS", "3:2.5,1:1.75")
    server = started(
        serve, plans_of(CHAINS, target={"vocab_size": 128}, draft={"vocab_size": 128}), simulated=2.0, columns=640
    )
    chosen = shuffle(server)
    server.begin(PROMPTS)
    run_any(server, LONG * 8)
    assert server.worker.steps.proof == "simulated"
    by_shape: dict[Shape, list[int]] = {shape: [] for shape in server.worker.steps._plans}
    turns = {row: iter(counts) for row, counts in server.steps.items()}
    for shape, rows in zip(chosen, LONG * 8, strict=True):
        lengths = {next(turns[row]) for row in rows}
        assert len(lengths) == 1, "of all requests of a step the same"
        by_shape[shape] += lengths
    means = {str(shape): sum(lengths) / len(lengths) for shape, lengths in by_shape.items()}
    assert means == {"3": pytest.approx(2.5, abs=0.5), "1": pytest.approx(1.75, abs=0.2), "0": 1.0}


def test_a_tree_that_is_less_deep_accepts_all_of_a_path(serve: Serve) -> None:
    """0 has the children 1 and 2, and 2 has 3: a length of 4 is cut to 3. Token 100 is drafted, so 101 ends a path."""
    started(serve, plans_of(CHAINS))
    sees = torch.eye(4, dtype=torch.bool)
    sees[1:, 0] = sees[3, 2] = True
    for length, said in ((1, {0: 101}), (2, {0: 100, 1: 101}), (3, {0: 7, 2: 9, 3: 101}), (4, {0: 7, 2: 9, 3: 101})):
        logits = torch.zeros(4, 128)
        launch = adapter("server.simulate").say_path[(1,)]
        tree = torch.tensor([0, 1, 1, 2]), sees
        launch(
            logits, torch.tensor([5, 100, 7, 9]), None, None, *tree, torch.tensor([length]), torch.tensor([3]), 4, 128,
            128, STEPS=1, BLOCK=4,
        )  # fmt: skip
        assert dict(logits.nonzero().tolist()) == said


def test_lengths_that_cannot_be(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    started(serve, plans_of(CHAINS))
    accepted_by_shape = adapter("server.simulate").accepted_by_shape
    for written in ("3", "3:x", "3:0.5", "3:inf", "3:nan", "3:2:1"):
        monkeypatch.setenv("SPECC_SIMULATE_ACC_LENS", written)
        with pytest.raises(RuntimeError, match="is a list such as"):
            accepted_by_shape()
    monkeypatch.setenv("SPECC_SIMULATE_ACC_LENS", " 5x4x8:2.8, 3:2.2")
    assert accepted_by_shape() == {"5x4x8": 2.8, "3": 2.2}


@pytest.mark.parametrize(("mean", "most"), [(1.0, 4), (2.2, 4), (3.9, 4), (9.0, 4), (1.5, 1), (2.8, 6)])
def test_a_drawn_length_has_its_mean_and_the_same_chance_at_every_position(
    serve: Serve, mean: float, most: int
) -> None:
    started(serve, plans_of(CHAINS))
    random.seed(1)
    drawn = adapter("server.simulate").drawn_lengths(mean, most)
    assert {*drawn} <= {*range(1, most + 1)}
    assert sum(drawn) / len(drawn) == pytest.approx(min(mean, most), abs=0.08)
    rates = [
        sum(length > position + 1 for length in drawn) / tried
        for position in range(most - 1)
        if (tried := sum(length > position for length in drawn)) > 500
    ]
    assert all(rate == pytest.approx(rates[0], abs=0.08) for rate in rates)
