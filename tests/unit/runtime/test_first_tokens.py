"""`first_tokens`: what a prefill would draw, for engines that prefill on their own."""

from __future__ import annotations

import pytest
import torch
from fakes.grammar import words
from sampling_oracle import drawn
from test_transfer import CHAIN, Machine, machine
from torch import Tensor

from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.errors import BatchError, BindError, ForwardContractError

FILTERS = {"verify": "target_only", "sampling": ["top_k", "top_p", "min_p"]}
ROWS, LENGTHS = [3, 1, 4, 2], [5, 9, 2, 16]
PARAMS = [Sampling(0.0), Sampling(1.5, 7), Sampling(0.7, 8, top_k=5), Sampling(2.0, 9, top_k=9, top_p=0.8, min_p=0.02)]


ALGORITHMS = ["STANDALONE", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "MULTI_LAYER_EAGLE", "DFLASH", "NGRAM"]
STORING = ("FROZEN_KV_MTP", "DFLASH", "NGRAM")
"""Those that store in the launch that draws."""


def scores(width: int, rows: int = len(ROWS)) -> Tensor:
    return 2 * torch.randn(rows, width, generator=torch.Generator().manual_seed(5))


def state(machine: Machine) -> dict[str, Tensor]:
    return {name: pool.clone() for name, pool in machine.step.pools.items()}


def wanted(logits: Tensor) -> list[int]:
    """By the oracle in floats of Python."""
    return [
        drawn(row.tolist(), params.seed or 0, params.temperature, length, params.top_k, params.top_p, params.min_p)
        for row, length, params in zip(logits, LENGTHS, PARAMS, strict=True)
    ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("device", [False, True], ids=["integers", "tensors"])
def test_as_the_prefill_draws(algorithm: str, device: bool) -> None:
    """From the same logits, row by row and after every length; of what is carried at most the rows' own changes."""
    decoder = machine(algorithm, 3, **CHAIN, **FILTERS)
    decoder.step.set_sampling(ROWS, PARAMS)
    logits, before = scores(decoder.plan.size("V")), state(decoder)
    batch = Batch(torch.tensor(ROWS), torch.tensor(LENGTHS)) if device else Batch(ROWS, LENGTHS)
    assert decoder.step.first_tokens(batch, logits).tolist() == wanted(logits)
    others = [row for row in range(decoder.plan.size("P")) if row not in ROWS]
    for name, pool in decoder.step.pools.items():
        rows = others if algorithm in STORING and "sampling" not in name else slice(None)
        assert torch.equal(pool[rows], before[name][rows]), name
    assert decoder.step.torn == frozenset()
    assert decoder.engine.calls == []


def test_between_steps() -> None:
    """A step goes on from where it was, and a prefill gives what was told before."""
    drawing, plain = (machine("EAGLE", 3, **CHAIN, **FILTERS) for _ in range(2))
    for each in (drawing, plain):
        each.prefill({1: [5, 4, 3], 2: [8, 1]})
    drawing.step.first_tokens(Batch([4], [9]), scores(drawing.plan.size("V"), 1))
    for _ in range(3):
        assert drawing.decode([1, 2]) == plain.decode([1, 2])


def test_a_greedy_program_takes_the_largest() -> None:
    decoder = machine("STANDALONE", 3, **CHAIN)
    logits = scores(decoder.plan.size("V"))
    assert decoder.step.first_tokens(Batch(ROWS, LENGTHS), logits).tolist() == logits.argmax(-1).tolist()
    assert decoder.step.first_tokens(Batch([], []), logits[:0]).tolist() == []


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = machine("STANDALONE", 3, overlap=True, **CHAIN, **FILTERS)
    logits = scores(decoder.plan.size("V"))
    with pytest.raises(BatchError, match="first_tokens needs the batch's seq_lens"):
        decoder.step.first_tokens(Batch(ROWS), logits)
    for wrong in (logits.bfloat16(), logits[:2], logits[:, 1:], logits.T.contiguous().T):
        with pytest.raises(ForwardContractError, match="prefill_target"):
            decoder.step.first_tokens(Batch(ROWS, LENGTHS), wrong)
    reading_hidden = machine("FROZEN_KV_MTP", 3, **CHAIN, **FILTERS)
    monkeypatch.setattr("specc.runtime.entry.first.STORE", "what reads it")
    with pytest.raises(BindError, match="reads prefill_target_hidden, too"):
        reading_hidden.step.first_tokens(Batch(ROWS, LENGTHS), logits)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_drawn_counts_as_output(algorithm: str) -> None:
    """Once, whichever launch of a prefill would do it."""
    decoder = machine(algorithm, 3, **CHAIN, verify="target_only", sampling=["penalties"])
    params = [Sampling(0.0, presence_penalty=1), Sampling(1.5, 7), *PARAMS[:1] * 2]
    decoder.step.set_sampling(ROWS, params, [([2], [4])] * 4)
    before = decoder.step.pools["sampling_counts"].clone()
    tokens = decoder.step.first_tokens(Batch(ROWS, LENGTHS), scores(decoder.plan.size("V"))).tolist()
    for row, token in zip(ROWS, tokens, strict=True):
        before[row, token] += 2
    assert torch.equal(decoder.step.pools["sampling_counts"], before)


def test_what_the_engine_emits_counts_when_it_says_so() -> None:
    """Of rows of tokens the first few, of a column all; nothing without penalties."""
    decoder = machine("EAGLE", 3, **CHAIN, verify="target_only", sampling=["penalties"])
    expected = decoder.step.pools["sampling_counts"].zero_().clone()
    decoder.step.count(torch.tensor([4, 1]), torch.tensor([[5, 5, 6], [7, 8, 9]]), torch.tensor([3, 1]))
    decoder.step.count(torch.tensor([2, 1]), torch.tensor([3, 7]))
    expected[4, 5], expected[4, 6], expected[1, 7], expected[2, 3] = 4, 2, 4, 2
    assert torch.equal(decoder.step.pools["sampling_counts"], expected)
    machine("EAGLE", 3, **CHAIN).step.count(torch.tensor([2]), torch.tensor([3]))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("asked", [{}, {"verify": "target_only", "sampling": ["penalties"]}], ids=["greedy", "counts"])
def test_of_nothing(algorithm: str, asked: dict[str, object]) -> None:
    """Whichever launch counts, no requests have no tokens, and no rows none to count; their own may be of any width."""
    decoder = machine(algorithm, 3, **CHAIN, **asked)
    before, nobody = state(decoder), torch.zeros(0, dtype=torch.int64)
    assert decoder.step.first_tokens(Batch([], []), scores(decoder.plan.size("V"), 0)).tolist() == []
    for tokens in (nobody, nobody[:, None], torch.zeros(0, 3, dtype=torch.int32)):
        decoder.step.count(nobody, tokens)
        decoder.step.count(nobody, tokens, nobody)
    decoder.step.count(torch.tensor([3]), torch.zeros(1, 0, dtype=torch.int64))
    assert all(torch.equal(pool, before[name]) for name, pool in decoder.step.pools.items())


def test_the_host_is_asked_for_masks() -> None:
    """As in a prefill: the largest of what each grammar allows is taken, and no forward is called."""
    decoder = machine("EAGLE", 3, **CHAIN, verify="target_only", sampling=["grammar"])
    decoder.engine.grammars |= {3: 1, 4: 2, 2: 5}
    decoder.step.set_sampling(ROWS, [Sampling(0.0)] * 4)
    logits, vocab = scores(decoder.plan.size("V")), decoder.plan.size("V")
    expected = []
    for row, length, of in zip(ROWS, LENGTHS, logits, strict=True):
        mask = words(decoder.engine.grammars.get(row, 0), 1, length, vocab)
        expected.append(
            max(range(vocab), key=lambda v, of=of, mask=mask: float(of[v]) if mask[v // 32] >> v % 32 & 1 else -9)
        )
    assert expected != logits.argmax(-1).tolist()
    assert decoder.step.first_tokens(Batch(ROWS, LENGTHS), logits).tolist() == expected
    assert {name for name, *_ in decoder.engine.calls} <= {"grammar_prefill"}
