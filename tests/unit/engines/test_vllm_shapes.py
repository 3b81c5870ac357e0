"""Programs of several shapes as vLLM's decode steps, on stand-ins: what is verified and drafted, and who says so."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fakes.models import target_scores
from fakes.vllm_server import adapter
from prometheus_client import REGISTRY
from sampling_oracle import drawn
from torch import Tensor
from vllm_shapes import ALGORITHMS, PROMPTS, ROWS, SHAPES, Serve, lookup, plans_of, serving

from specc.engines._plugin import ServerError
from specc.runtime.plan.shape import Shape
from specc.runtime.rotated import RotatedStep


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers, in which steps take as long as policies think."""
    with serving(monkeypatch) as start:
        yield start


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_texts_are_the_targets_own_at_any_shape(serve: Serve, algorithm: str, seed: int) -> None:
    """And every step accepts the drafts that were made for it, which are those of the draft after the whole text."""
    rng = random.Random(seed)
    server = serve(plans_of(algorithm))
    server.begin(PROMPTS)
    ready, ran = dict.fromkeys(ROWS, 3), dict.fromkeys(SHAPES, 0)
    for _ in range(14):
        drafts = rng.choice(sorted({*ready.values()}))
        rows = [row for row in rng.sample(ROWS, len(ROWS)) if ready[row] == drafts]
        ahead = rng.choice(SHAPES)
        server.decode(rows, drafts=drafts, ahead=ahead)
        ready |= dict.fromkeys(rows, ahead)
        ran[drafts] += 1
    server.judge()
    assert server.program.report()["served"] == 14
    assert not server.program.left
    counted = {
        sample.labels["shape"]: sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "specc:decode_steps_total" and sample.labels["by"] == "program"
    }
    assert all(counted[str(drafts)] >= number for drafts, number in ran.items() if number)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_number_between_shapes_is_vllms(serve: Serve, algorithm: str) -> None:
    """The program drafts as many as the next shape has, and vLLM verifies as many as it asked for."""
    server = serve(plans_of(algorithm))
    server.begin(PROMPTS)
    server.decode(ROWS, ahead=2)
    server.decode(ROWS, drafts=2, ahead=1)
    server.decode(ROWS, drafts=1)
    server.judge()
    assert server.program.left == {"drafts other than 0, 1 or 3": 1}
    assert server.program.served == 2


def test_a_prefill_is_no_step_without_drafts(serve: Serve) -> None:
    server = serve(plans_of("EAGLE"))
    server.begin(PROMPTS)
    server.decode(ROWS, ahead=0)
    server.decode(ROWS, drafts=0)
    assert server.program.served == 2
    assert not server.program.left, "prefills are vLLM's, and nothing is said of them"


def test_a_program_that_always_drafts_leaves_steps_without(serve: Serve) -> None:
    server = serve(plans_of("EAGLE", [1, 3]))
    server.begin(PROMPTS)
    server.decode(ROWS, ahead=0)
    server.decode(ROWS, drafts=0, ahead=1)
    server.decode(ROWS, drafts=1)
    server.judge()
    assert (server.program.served, server.program.left) == (2, {})


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_what_is_drawn_does_not_depend_on_the_shape(serve: Serve, algorithm: str) -> None:
    """But on the seed, and the place in the text."""
    asked = {2: {"seed": 7, "temperature": 1.5}, 0: {}, 5: {"seed": 3, "temperature": 0.7, "top_k": 20}, 1: {}}
    server = serve(plans_of(algorithm, verify="target_only", sampling=["top_k"], draft_sampling="coupled"))
    for row, prompt in PROMPTS.items():
        server.begin({row: prompt}, **asked[row])

    def says(row: int, text: list[int]) -> int:
        of = {"seed": 0, "temperature": 0.0, "top_k": 0} | asked[row]
        return drawn(target_scores(server.target.model, text).tolist(), *(of[key] for key in ("seed", "temperature")),
                     len(text), int(of["top_k"]))  # fmt: skip

    texts = list[dict[int, list[int]]]()
    for drafts, ahead in [(3, 1), (1, 1), (1, 0), (0, 3), (3, 0), (0, 0), (0, 1), (1, 3), (3, 3)]:
        server.decode(ROWS, drafts=drafts, ahead=ahead)
        texts.append({row: server.text(row) for row in ROWS})
    server.settle()
    for row in ROWS:
        text = texts[-1][row]
        for end in range(len(PROMPTS[row]) + 1, len(text)):
            assert text[end] == says(row, text[:end]), (row, end)
    assert server.program.served == 9


@pytest.mark.parametrize("known", [True, False])
def test_texts_obey_grammars_at_any_shape(serve: Serve, known: bool) -> None:
    plans = plans_of("EAGLE")
    server, vocabulary = serve(plans), plans[0].size("V")

    def even(text: list[int]) -> set[int]:
        return set(range(len(text) % 2, vocabulary, 2))

    server.grammars, server.known = {2: even}, known
    target = server.target.model

    def says(row: int, text: list[int]) -> int:
        allowed = sorted(even(text)) if row == 2 else range(vocabulary)
        return max(allowed, key=target_scores(target, text).tolist().__getitem__)

    server.begin(PROMPTS)
    for drafts, ahead in [(3, 1), (1, 0), (0, 3), (3, 3), (3, 0), (0, 1), (1, 3), (3, 3)]:
        server.decode(ROWS, drafts=drafts, ahead=ahead)
    server.judge(says, says)
    assert not server.program.left


@pytest.mark.parametrize("algorithm", ["STANDALONE", "EAGLE"])
def test_nothing_is_written_behind_the_longest_text(serve: Serve, algorithm: str) -> None:
    """A shallower step goes on where a deeper one would end behind it."""
    plans, longest = plans_of(algorithm), 36
    server = serve(plans, longest=longest)
    server.begin({0: PROMPTS[5]})
    while len(server.text(0)) < longest:
        server.decode([0], drafts=1, ahead=1)
        server.settle()
    server.judge()
    assert {*server.program.left} <= {"a text near max_model_len", "drafts other than 0, 1 or 3"}


def test_captured_drafts_read_hidden_states_at_one_place(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a shallower step at its beginning. Graphs are left out here."""
    monkeypatch.setenv("SPECC_CAPTURE", "drafts")
    monkeypatch.setattr(RotatedStep, "capture", lambda _, tokens: None)
    server = serve(plans_of("EAGLE"))
    read, called = list[Tensor](), server.program._bound.target
    make = called.make_hidden

    def make_hidden(*, tokens: int) -> Tensor:
        read.append(make(tokens=tokens))
        return read[-1]

    monkeypatch.setattr(called, "make_hidden", make_hidden)
    server.begin(PROMPTS)
    for drafts, ahead in [(3, 1), (1, 0), (0, 3), (3, 3)]:
        server.decode(ROWS, drafts=drafts, ahead=ahead)
    server.judge()
    assert {tensor.data_ptr() for tensor in read} == {called.scored.at.data_ptr()}
    assert [len(tensor) for tensor in read] == [len(ROWS) * width for width in (4, 2, 1, 4)]


# --- who says how many drafts there are -------------------------------------------------------------------------------


def test_the_scheduler_asks_the_policy(serve: Serve) -> None:
    """Which is told what became of every step, those without drafts among them; vLLM captures for every number."""
    server = serve(plans_of("EAGLE"))
    table = server.config.speculative_config.num_speculative_tokens_per_batch_size
    assert table == [(1, 1, 3), (2, 2, 1), (3, 6, 0)]
    assert lookup(server)[2] == 3, "the deepest first"
    for _ in range(40):
        server.told(ROWS, lookup(server)[4], [1, 1, 1, 1])
    assert len(server.scheduler.seen) == 40
    assert lookup(server)[4] == 0, "nothing was accepted"
    for _ in range(600):
        server.told(ROWS, lookup(server)[4], [lookup(server)[4] + 1] * 4)
    assert lookup(server)[4] == 3, "what nobody drafts is tried again"


def test_what_the_policy_is_told(serve: Serve) -> None:
    """Of requests that decode, by the drafts that each had; of those that emitted nothing, nothing."""
    server, seen = serve(plans_of("EAGLE")), list[Any]()
    policy = lookup(server)._shapes
    policy.observe = lambda shape, lengths: seen.append((shape, lengths))
    server.told([2, 0, 5], 3, [4, 0, 1])
    server.told([2, 0], 0, [1, 1])
    server.told([1], 2, [2])
    assert seen == [(Shape(3, 1, 4), [4, 1]), (Shape(0, 1, 1), [1, 1])]


@pytest.mark.parametrize("shape", ["3", "1", "0"])
def test_a_shape_by_name_is_every_steps(serve: Serve, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    monkeypatch.setenv("SPECC_SHAPE", shape)
    server = serve(plans_of("EAGLE"))
    for _ in range(40):
        server.told(ROWS, int(shape), [1, 1, 1, 1])
    assert {lookup(server)[requests] for requests in range(1, 7)} == {int(shape)}
    assert server.config.speculative_config.num_speculative_tokens_per_batch_size == [(1, 6, int(shape))]


def test_a_shape_that_the_program_does_not_have_ends_the_server(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_SHAPE", "2")
    with pytest.raises(Exception, match="SPECC_SHAPE is auto or one of 3, 1, 0, got '2'") as raised:
        serve(plans_of("EAGLE"))
    assert type(raised.value).__name__ == ServerError.__name__


def test_a_servers_own_table_stays(serve: Serve) -> None:
    server = serve(plans_of("EAGLE"), num_speculative_tokens_per_batch_size=[(1, 2, 3), (3, 6, 1)])
    assert lookup(server) == {1: 3, 2: 3, 3: 1, 4: 1, 5: 1, 6: 1}
    assert server.program is not None


def test_a_program_of_one_shape_changes_nothing(serve: Serve) -> None:
    server = serve(plans_of("EAGLE", [3]))
    assert lookup(server) is None
    assert server.config.speculative_config.num_speculative_tokens_per_batch_size is None


def test_where_no_program_is_bound_the_number_stays(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though vLLM has captured for others by then."""
    monkeypatch.setattr(RotatedStep, "capture", lambda *_, **__: torch.zeros(1, device="meta").item())
    monkeypatch.setenv("SPECC_CAPTURE", "drafts")
    server = serve(plans_of("EAGLE"))
    assert server.program is None
    assert lookup(server) is None


def test_fewer_requests_than_shapes(serve: Serve) -> None:
    """A table has one number for each; what it leaves out runs, too."""
    numbers = adapter_numbers(serve)
    assert numbers.table(2) == [(1, 1, 3), (2, 2, 1)]
    assert numbers.table(1) == [(1, 1, 3)]
    assert numbers.table(3) == [(1, 1, 3), (2, 2, 1), (3, 3, 0)]


def adapter_numbers(serve: Serve) -> Any:
    server = serve(plans_of("EAGLE"))
    assert isinstance(lookup(server), adapter("server.numbers").DraftCounts)
    return lookup(server)
