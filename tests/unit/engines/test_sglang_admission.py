"""How requests of SGLang that sample come into a program, without SGLang."""

from __future__ import annotations

import math
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fakes.drafts import Engine
from fakes.sglang_modules import request
from programs import planned
from sampling_oracle import drawn
from test_sglang import VOCABULARY
from torch import Tensor

from specc.engines._plugin import SEEDS
from specc.engines.sglang.requests.admission import PENALTIES, Admission, asked, seed_of
from specc.engines.sglang.requests.refusals import unserved
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.step import Step

ALL = 1 << 30
TEMPERATURE = ("seed", "temperature")


@pytest.mark.parametrize(
    ("given", "parameters"),
    [
        ({"top_k": 1, "top_p": 0.5, "temperature": 0.7}, {}),
        ({"top_k": ALL}, {"temperature": 1.0}),
        ({"top_k": VOCABULARY, "temperature": 0.3}, {"temperature": 0.3}),
        ({"top_k": VOCABULARY - 1, "top_p": 0.9}, {"temperature": 1.0, "top_k": VOCABULARY - 1, "top_p": 0.9}),
        ({"top_k": ALL, "min_p": 0.1, "temperature": 1e9}, {"temperature": 2.0**20, "min_p": 0.1}),
        ({"frequency_penalty": 0.5, "min_p": 0.1}, {"frequency_penalty": 0.5}),
        ({"logit_bias": {"5": 1, "7": -2.5}}, {"logit_bias": {5: 1.0, 7: -2.5}}),
        (
            {"top_k": ALL, "repetition_penalty": 2.0, "presence_penalty": -2.0},
            {"temperature": 1.0, "repetition_penalty": 2.0, "presence_penalty": -2.0},
        ),
    ],
)
def test_what_a_request_asks_for(given: dict[str, Any], parameters: dict[str, float]) -> None:
    """As SGLang keeps it: of a greedy request top_k is 1, and where it says nothing so large that all are left."""
    assert asked(request(**given), VOCABULARY) == parameters
    Sampling(**parameters)


@pytest.mark.parametrize(
    ("given", "parameters", "reason"),
    [
        ({"top_k": ALL}, (), "sampling"),
        ({"top_k": 5}, (), "sampling"),
        ({"top_k": ALL}, TEMPERATURE, None),
        ({"top_k": 5}, TEMPERATURE, "top_k"),
        ({"top_k": 5}, (*TEMPERATURE, "top_k"), None),
        ({"top_k": ALL, "top_p": 0.9}, (*TEMPERATURE, "top_k"), "top_p"),
        ({"top_k": ALL, "min_p": 0.1}, (*TEMPERATURE, "top_k", "top_p"), "min_p"),
        ({"top_k": 1, "min_p": 0.1}, TEMPERATURE, None),
        ({"top_k": ALL, "regex": "a+"}, TEMPERATURE, "a grammar"),
        ({"top_k": ALL, "regex": "a+"}, (*TEMPERATURE, "grammar"), None),
        ({"top_k": ALL, "presence_penalty": 0.1}, TEMPERATURE, "penalties"),
        ({"presence_penalty": 0.1, "repetition_penalty": 0.8}, (*TEMPERATURE, *PENALTIES), None),
        ({"repetition_penalty": 1e-4}, PENALTIES, "a repetition penalty below 0.000976562"),
        ({"logit_bias": {"5": 1.0}}, (*TEMPERATURE, *PENALTIES), "logit bias"),
        ({"logit_bias": {"5": -100.0}}, ("logit_bias",), None),
        ({"logit_bias": {"5": -101.0}}, ("logit_bias",), "a logit bias beyond 100"),
        ({"logit_bias": {"5": math.nan}}, ("logit_bias",), "a logit bias beyond 100"),
        ({"logit_bias": {"5": 1.0, "6": 100.5}}, ("logit_bias",), "a logit bias beyond 100"),
        ({"logit_bias": {"5": 1.0}, "top_k": ALL}, ("logit_bias",), "sampling"),
        ({"min_new_tokens": 2}, (*TEMPERATURE, *PENALTIES), "min_new_tokens"),
    ],
)
def test_only_what_the_program_was_built_with(given: dict[str, Any], parameters: Any, reason: str | None) -> None:
    assert unserved(request(**given), VOCABULARY, parameters) == reason


class Prefill:
    """A prefill of SGLang's, and a program that samples."""

    def __init__(self, *sampling: str, seeds: Iterable[int] = (), **more: Any) -> None:
        keys: dict[str, Any] = {"sampling": ["top_k", *sampling], "buckets": [1, 2], "max_requests": 8}
        plan = planned("EAGLE", **{"verify": "target_only", **keys, **more})[0]
        engine = Engine.of_plan(plan, seed=3)
        self.step = Step(plan, ReferenceBackend(), torch.device("cpu"), engine, engine.table, engine.kv)
        package: Any = SimpleNamespace(plan=plan, plans={"3": plan}, Sampling=Sampling, Batch=Batch)
        self.admission = Admission(package, self.step, iter(seeds).__next__)

    def say(
        self, requests: list[Any], rows: list[int], served: list[int], *, logprobs: bool = False, **options: bool
    ) -> None:
        """Of requests in these rows, after texts of 5, 6, ... tokens."""
        for req, row in zip(requests, rows, strict=True):
            req.kv = SimpleNamespace(req_pool_idx=row)
        lengths = torch.arange(5, 5 + len(rows))
        batch = SimpleNamespace(
            reqs=requests, req_pool_indices=torch.tensor(rows), seq_lens=lengths, return_logprob=logprobs
        )
        self.admission.say(batch, served, **options)

    def first(self, logits: Tensor, tokens: list[int], logprobs: Tensor | None = None) -> list[int]:
        """First tokens from logits, where SGLang samples these tokens and leaves nothing of the logits."""

        def sample() -> Tensor:
            logits.zero_()
            return torch.tensor(tokens, dtype=torch.int32)

        output = SimpleNamespace(next_token_logits=logits, next_token_logprobs=logprobs)
        first_tokens = self.admission.first(sample, output)
        assert first_tokens.dtype == torch.int32
        return first_tokens.tolist()

    def counts(self, row: int) -> dict[int, int]:
        """What was counted of a row, by token."""
        counted = self.step.pools["sampling_counts"][row]
        return {token: int(counted[token]) for token in counted.nonzero()[:, 0].tolist()}

    def seeds(self, *rows: int) -> list[int]:
        return self.step.pools["sampling_seed"][list(rows)].tolist()


def test_what_is_in_the_rows() -> None:
    """Of those that are served; a seed of SGLang's may be any number, and a request without one gets its own."""
    prefill = Prefill(seeds=(71, 72, 73, 74))
    some = [request(top_k=ALL, temperature=0.5, sampling_seed=-3), request(), request(top_k=7), request(top_k=ALL)]
    prefill.say(some, [4, 1, 3, 2], [0, 1, 3])
    assert prefill.step.pools["sampling_temperature"][1:5].tolist() == [0.0, 1.0, 0.0, 0.5]
    assert prefill.step.pools["sampling_top_k"][1:5].tolist() == [0, 0, 0, 0]
    assert prefill.seeds(4) == [2**63 - 4]
    assert prefill.seeds(1, 2) == [71, 72]
    prefill.say(some[3:], [3], [0])
    assert prefill.seeds(3) == [72], "thrown out, it goes on as it began"
    prefill.say([request(top_k=ALL)], [3], [0])
    assert prefill.seeds(3) == [73]


def test_seeds_are_drawn_for_those_alone_that_have_none() -> None:
    prefill = Prefill(seeds=(42, 43))
    some = [request(top_k=ALL), request(top_k=ALL, sampling_seed=2**63 - 1), request(top_k=ALL)]
    prefill.say(some, [1, 2, 3], [0, 1, 2])
    assert prefill.seeds(1, 2, 3) == [42, 0, 43]


@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_no_seed_is_used_twice_where_draws_share_rows_out(verify: str) -> None:
    """Not by requests of one seed, and not by one that begins anew; the first token and the draft behind it have it."""
    prefill = Prefill(verify=verify, budget=2, seeds=[7, 8])
    twins = [request(top_k=ALL, sampling_seed=7) for _ in range(4)] + [request(top_k=ALL)]
    rows, seen = [1, 2, 3, 4, 5], list[int]()
    for _ in range(3):
        prefill.say(twins, rows, [0, 1, 2, 3, 4])
        seeds = prefill.seeds(*rows)
        assert [seed_of(twin) for twin in twins] == seeds
        logits = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(len(seen)))
        places = zip(logits, seeds, strict=True)
        expected = [drawn(row.tolist(), seed, 1.0, 5 + place) for place, (row, seed) in enumerate(places)]
        assert prefill.first(logits, [80] * 5) == expected
        seen += seeds
    assert len({*seen}) == len(seen)
    assert all(0 <= seed < SEEDS for seed in seen)
    again = Prefill(verify=verify, budget=2, seeds=[7, 8])
    again.say([request(top_k=ALL, sampling_seed=7) for _ in range(4)], rows[:4], [0, 1, 2, 3])
    assert again.seeds(*rows[:4]) == seen[:4], "another rank has the same"


@pytest.mark.parametrize(
    "keys", [{"verify": "target_only", "budget": 2}, {"verify": "rejection"}, {"verify": "block"}], ids=str
)
def test_a_seed_stays_as_it_is_elsewhere(keys: dict[str, Any]) -> None:
    prefill = Prefill(**keys)
    twins = [request(top_k=ALL, sampling_seed=7) for _ in range(2)]
    for _ in range(2):
        prefill.say(twins, [1, 2], [0, 1])
        assert prefill.seeds(1, 2) == [7, 7]


def test_who_draws_the_first_token() -> None:
    """The program for those that it goes on with and that sample, in parts as large as a bucket; SGLang the others."""
    prefill = Prefill()
    given: list[dict[str, Any]] = [{"top_k": ALL}, {"top_k": 1}, {"top_k": 9, "temperature": 2.0}, {"min_p": 0.1}]
    some = [
        request(**({"top_k": ALL, "sampling_seed": seed} | options)) for seed, options in enumerate([*given, *given])
    ]
    rows, served = list(range(1, 9)), [0, 1, 2, 4, 5, 6]
    logits = 2 * torch.randn(8, VOCABULARY, generator=torch.Generator().manual_seed(5))
    own = list(range(80, 88))
    prefill.say(some, rows, served)
    tokens = prefill.first(logits.clone(), own)
    expected = list(own)
    for place in (0, 2, 4, 6):
        asks = given[place % 4]
        temperature, top_k = asks.get("temperature", 1.0), asks["top_k"] % ALL
        expected[place] = drawn(logits[place].tolist(), place, temperature, 5 + place, top_k)
    assert tokens == expected
    assert prefill.first(logits.clone(), own) == own, "once for a prefill"
    prefill.say(some, rows, served, draws=False)
    assert prefill.first(logits.clone(), own) == own, "a watermark is SGLang's"


def test_log_probabilities_of_first_tokens_are_those_of_the_tokens_that_were_drawn() -> None:
    prefill = Prefill()
    some = [request(top_k=ALL, sampling_seed=seed) for seed in range(3)]
    prefill.say(some, [1, 2, 3], [0, 2], logprobs=True)
    logits = 2 * torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(6))
    logprobs = torch.tensor([7.0, 8.0, 9.0])
    tokens = prefill.first(logits.clone(), [80, 81, 82], logprobs)
    expected = logits.log_softmax(-1)
    assert logprobs.tolist() == pytest.approx([float(expected[0, tokens[0]]), 8.0, float(expected[2, tokens[2]])])


def test_what_was_emitted_is_counted() -> None:
    """Before a request was thrown out, too, and by whoever draws; of the prompt nothing is, as in SGLang."""
    prefill = Prefill("penalties", seeds=range(9))
    some = [request(frequency_penalty=1.5), request(), request(repetition_penalty=1.5), request(top_k=3)]
    some[0].output_ids, some[1].output_ids, some[2].output_ids = [7, 9, 7], [5], [11]
    logits = torch.zeros(4, VOCABULARY)
    logits[:, 7], logits[:, 9], logits[:, 3] = 4.0, 3.5, 2.5  # less 3.0 and 1.5
    prefill.say(some, [4, 1, 3, 2], [0, 1, 2])
    assert [prefill.counts(row) for row in (4, 1, 3)] == [{7: 4, 9: 2}, {}, {11: 2}], "only where it is read"
    assert prefill.first(logits, [80, 81, 82, 83]) == [3, 81, 7, 83]
    counted = [{3: 2, 7: 4, 9: 2}, {81: 2}, {7: 2, 11: 2}, {83: 2}]
    assert [prefill.counts(row) for row in (4, 1, 3, 2)] == counted
