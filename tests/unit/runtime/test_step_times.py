"""Times of steps: what is measured, that nobody notices, and files of them, with anything in the place of anything."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.plans import program_of
from programs import brought
from test_bound_shapes import BUCKETS, bind, plans_of
from test_damaged_json import ODD, places
from test_transfer import CPU, text

from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.capabilities import step_times as module
from specc.runtime.capabilities.shape import AcceptanceShape, StepTimes
from specc.runtime.capabilities.step_times import WARM, measure_step_times, read_step_times, write_step_times
from specc.runtime.errors import BatchError, StepTimesError
from specc.runtime.plan.shape import Shape
from specc.runtime.program import Program

SHAPES = {Shape(0, 2, 1): (1, 2, 64), Shape(3, 1, 4): (1, 2), Shape(3, 2, 8): (1,)}
TIMES: StepTimes = {
    Shape(0, 2, 1): {1: 7.25, 2: 7.5, 64: 1e1},
    Shape(3, 1, 4): {1: 8.125, 2: 0.1 + 0.2},
    Shape(3, 2, 8): {1: 9.0},
}


@pytest.mark.parametrize("algorithm", ["EAGLE", "STANDALONE", "NGRAM"])
def test_padding_rows_are_timed_and_no_row_changes(algorithm: str) -> None:
    """Requests go on as those of a twin that nobody has timed."""
    rng = random.Random(5)
    prompts = {row: text(rng) for row in (2, 5)}
    machine, twin = (bind(plans_of(algorithm), 1) for _ in range(2))
    for runner in (machine, twin):
        runner.prefill(dict(prompts))
        runner.decode([2, 5])
    before = machine.step.read_carry([2, 5]).fields
    times = measure_step_times(machine.step, repeats=2)
    assert {shape: tuple(by_bucket) for shape, by_bucket in times.items()} == machine.step.buckets
    assert len(times) == 3
    AcceptanceShape(machine.step.buckets, times=times)  # which wants one of every bucket, above 0 and finite
    after = machine.step.read_carry([2, 5]).fields
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert [machine.decode([5, 2]) for _ in range(3)] == [twin.decode([5, 2]) for _ in range(3)]


class Clock:
    """A clock that goes on by as much as a step takes, and counts steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.steps, self.random = 0.0, Counter[tuple[Shape, int]](), random.Random(3)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def run(self, shape: Shape, bucket: int) -> None:
        """Take as long as the shape does in the bucket; warm-ups and every third step take far longer."""
        self.steps[shape, bucket] += 1
        slow = self.steps[shape, bucket] <= WARM or self.steps[shape, bucket] % 3 == 0
        self.now += (shape.num_steps + 1) * bucket * 1e-3 + slow * 50


def test_the_median_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In milliseconds, without the first steps, by what the engine runs."""
    step, clock = bind(plans_of("EAGLE"), 1).step, Clock(monkeypatch)
    times = measure_step_times(step, clock.run, repeats=7)
    for shape, by_bucket in times.items():
        assert by_bucket == {bucket: pytest.approx((shape.num_steps + 1) * bucket) for bucket in BUCKETS}
    assert set(clock.steps.values()) == {WARM + 7}
    with pytest.raises(ValueError, match="0 steps are to be timed"):
        measure_step_times(step, clock.run, repeats=0)


class Event:
    """A CUDA event on a device whose clock goes on when what is queued has run."""

    queue: list[Any]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.time: float | None = None

    def record(self) -> None:
        """Queue it."""
        self.queue.append(self)

    def synchronize(self) -> None:
        """Run all that is queued."""
        now = 0.0
        for item in self.queue:
            now += item if isinstance(item, float) else 0.0
            if isinstance(item, Event):
                item.time = now
        self.queue.clear()

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds between two events that have passed."""
        assert self.time is not None
        assert other.time is not None
        return other.time - self.time


def test_a_gpu_is_asked_for_its_time_once_the_steps_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    step = bind(plans_of("EAGLE"), 1).step
    step._device = torch.device("cuda", 0)
    Event.queue, waits = [], list[int]()

    def wait(event: Event) -> None:
        waits.append(len(Event.queue))
        synchronize(event)

    synchronize = Event.synchronize
    monkeypatch.setattr(Event, "synchronize", wait)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    took = iter([50.0, 50.0, 4.0, 90.0, 6.0, 5.0, 5.0] * 9)
    times = measure_step_times(step, lambda shape, bucket: Event.queue.append(next(took)), repeats=5)
    assert [set(by_bucket.values()) for by_bucket in times.values()] == [{5.0}] * 3
    assert waits == [WARM + 1 + 2 * 5] * 9


def test_what_a_step_raises_is_raised() -> None:
    machine = bind(plans_of("EAGLE"), 1)
    with pytest.raises(BatchError, match="at least 64 rows, the largest bucket of the shape 3 holds 4"):
        measure_step_times(machine.step, lambda shape, bucket: machine.step.decode(batch(), at_least=64))


def batch() -> Any:
    """A batch of nobody."""
    return module.Batch([], [])


@pytest.fixture
def program() -> Program:
    plans = plans_of("EAGLE")
    return Program(plans, program_of(plans[0]).manifest, CPU, ReferenceBackend(brought()))


def written(path: Path, program: Program) -> Any:
    """A file of the times, as JSON."""
    write_step_times(path, TIMES, program, engine="toy 1.2")
    return json.loads(path.read_text())


def test_a_file_says_what_was_measured(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "times.json"
    content = written(path, program)
    assert content == {
        "program": f"{program.manifest.name} {program.version}",
        "gpu": "cpu",
        "engine": "toy 1.2",
        "unit": "ms",
        "times": {
            "0": {"1": 7.25, "2": 7.5, "64": 10.0},
            "3": {"1": 8.125, "2": 0.1 + 0.2},
            "3x2x8": {"1": 9.0},
        },
    }
    assert read_step_times(path, SHAPES) == TIMES
    path.write_text(path.read_text().replace("10.0", "10"))
    assert read_step_times(path, SHAPES) == TIMES


def test_a_shape_may_lack_buckets(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "times.json"
    content = written(path, program)
    content["times"]["0"] = {"64": 10.0}
    path.write_text(json.dumps(content))
    assert read_step_times(path, SHAPES)[Shape(0, 2, 1)] == {64: 10.0}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"3x2x8"', '"5x4x24"', "the program has no shape '5x4x24'; there is 0, 3, 3x2x8"),
        ('"3"', '"03"', "the program has no shape '03'"),
        ('"64"', '"32"', "shape 0 has no bucket 32; there is 1, 2, 64"),
        ('"64"', '"01"', "key 1 is there twice"),
        ('"64"', '"2"', "key '2' is there twice"),
        ('"64"', '"-1"', "a key of the file.times.0 is '-1'"),
        ("9.0", "0", "shape 3x2x8 takes 0 ms, and a time is above 0"),
        ("9.0", "-1.5", "takes -1.5 ms"),
        ("9.0", "NaN", "NaN is no number of JSON"),
        ("9.0", "1e999", "1e999 is too large"),
        ("9.0", "true", "the file.times.3x2x8.1 is True"),
        ("9.0", '"9"', "the file.times.3x2x8.1 is '9'"),
        ('"ms"', '"us"', "the unit is 'us', and not ms"),
        ('"unit"', '"units"', "the file has 'units', which nothing reads"),
        ('"unit": "ms",', "", "the file has no 'unit'"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, program: Program, old: str, new: str, message: str) -> None:
    path = tmp_path / "times.json"
    written(path, program)
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(StepTimesError, match=r"^times\.json: ") as caught:
        read_step_times(path, SHAPES)
    assert message in str(caught.value)


def test_every_shape_of_the_program_is_there(tmp_path: Path, program: Program) -> None:
    path = tmp_path / "times.json"
    content = written(path, program)
    del content["times"]["3"]
    content["times"]["0"] = {}
    path.write_text(json.dumps(content))
    with pytest.raises(StepTimesError, match=r"^times\.json: it has no times of shape 0, 3$"):
        read_step_times(path, SHAPES)


def test_only_a_small_regular_file_is_read(tmp_path: Path) -> None:
    pipe, large = tmp_path / "pipe", tmp_path / "large"
    os.mkfifo(pipe)
    large.write_bytes(b" " * (module.MOST_BYTES + 1))
    (tmp_path / "latin").write_bytes(b'{"\xe4": 1}')
    for path, message in [
        (tmp_path / "nothing", "nothing is missing"),
        (tmp_path, "it is no regular file"),
        (pipe, "it is no regular file"),
        (large, "it is larger than 1048576 bytes"),
        (tmp_path / "latin", "cannot be read"),
    ]:
        with pytest.raises(StepTimesError, match=message):
            read_step_times(path, SHAPES)


@pytest.mark.parametrize("seed", range(4))
def test_anything_in_the_place_of_anything_is_read_or_refused(tmp_path: Path, program: Program, seed: int) -> None:
    path, rng = tmp_path / "times.json", random.Random(seed)
    content = written(path, program)
    for _ in range(300):
        damaged = json.loads(json.dumps(content))
        *outer, key = rng.choice([place for place in places(damaged) if place])
        inside = damaged
        for step in outer:
            inside = inside[step]
        inside[key] = rng.choice(ODD)
        path.write_text(json.dumps(damaged))
        try:
            times = read_step_times(path, SHAPES)
        except StepTimesError:
            continue
        assert times.keys() == SHAPES.keys()
        assert all(set(by_bucket) <= set(SHAPES[shape]) for shape, by_bucket in times.items())
        assert all(0 < time < float("inf") for by_bucket in times.values() for time in by_bucket.values())
