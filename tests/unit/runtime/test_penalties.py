"""Penalties and biases: what the ops give against transformers, and what a request may ask for and must say."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from penalties_oracle import changed
from programs import load
from test_torn import Boom, failing, machine_of
from test_transfer import Machine
from torch import Tensor

from specc.compiler.driver.build import build_program
from specc.runtime.batch import Batch
from specc.runtime.capabilities.sampling import GREEDY, Sampling, carried
from specc.runtime.errors import BatchError, FieldError, SamplingError
from specc.runtime.plan.parameters import PENALTIES
from specc.runtime.semantics.reference import OPS
from specc.runtime.state.carry import Carry

VOCAB, NODES, LEVELS = 19, 8, 3
HOW = [
    Sampling(0.0),
    Sampling(0.0, repetition_penalty=1.7),
    Sampling(1.0, repetition_penalty=0.25, frequency_penalty=-2, presence_penalty=2),
    Sampling(1.0, frequency_penalty=0.5, logit_bias={0: 100, 18: -1.5}),
    Sampling(0.0, repetition_penalty=2.5, presence_penalty=1.25, logit_bias={3: 0.5}),
]
"""Of five requests."""


def texts_of(source: torch.Generator) -> list[tuple[list[int], list[int]]]:
    """Prompts and outputs, of a small part of the vocabulary so that tokens come again; one without an output."""
    lengths = [(5, 9), (1, 4), (12, 20), (6, 30), (3, 0)]
    drawn = [[torch.randint(0, 11, (n,), generator=source).tolist() for n in pair] for pair in lengths]
    return [(prompt, output) for prompt, output in drawn]


def words(prompt: list[int], output: list[int]) -> list[int]:
    """What is carried of a text."""
    return [(token in prompt) + 2 * output.count(token) for token in range(VOCAB)]


def by_ops(logits: Tensor, texts: list[tuple[list[int], list[int]]], *nodes: Tensor) -> Tensor:
    """Changed logits of requests that are sampled as `HOW` says."""
    counts = torch.tensor([words(*text) for text in texts], dtype=torch.int32)
    penalties = [torch.tensor([getattr(how, name) for how in HOW], dtype=torch.float32) for name in PENALTIES]
    bias = torch.zeros(len(HOW), VOCAB)
    for row, how in zip(bias, HOW, strict=True):
        for token, value in dict(how.logit_bias).items():
            row[token] = value
    opcode = "sample.penalize_nodes" if nodes else "sample.penalize"
    (penalized,) = OPS[opcode]((logits, counts, *penalties, *nodes), {}, {"A": LEVELS + 1})
    return OPS["sample.bias"]((penalized, bias), {}, {})[0]


def test_after_a_text() -> None:
    """As transformers' processor and plain arithmetic over prompt and output."""
    source = torch.Generator().manual_seed(0)
    texts, logits = texts_of(source), 3 * torch.randn(len(HOW), VOCAB, generator=source)
    penalized = by_ops(logits, texts)
    wanted = [changed(row, *text, how) for row, text, how in zip(logits, texts, HOW, strict=True)]
    torch.testing.assert_close(penalized, torch.tensor(wanted), rtol=1e-6, atol=1e-6)
    assert torch.equal(penalized[0], logits[0])


@pytest.mark.parametrize("tree", [False, True])
def test_along_the_path_of_every_node(tree: bool) -> None:
    """A node's row is that of the text with the tokens of its ancestors and its own, the root's only once."""
    source = torch.Generator().manual_seed(1)
    count = NODES if tree else LEVELS + 1
    texts, logits = texts_of(source), 3 * torch.randn(len(HOW), count, VOCAB, generator=source)
    texts = [(prompt, [*output, 2]) for prompt, output in texts]  # the root has been counted
    tokens = torch.randint(0, 11, (len(HOW), count), generator=source)
    parent = torch.tensor([[-1, 0, 0, 1, 1, 3, 4, 2] if tree else [-1, 0, 1, 2]] * len(HOW))
    tokens[:, 0] = 2
    penalized = by_ops(logits, texts, tokens, *((parent,) if tree else ()))
    for b, (how, (prompt, output)) in enumerate(zip(HOW, texts, strict=True)):
        for node in range(count):
            path, here = [], node
            while here > 0:
                path.insert(0, int(tokens[b, here]))
                here = int(parent[b, here])
            wanted = torch.tensor(changed(logits[b, node], prompt, [*output, *path], how))
            torch.testing.assert_close(penalized[b, node], wanted, rtol=1e-6, atol=1e-6)


def test_what_no_tree_has() -> None:
    """Orphans, parents and tokens out of range: a path ends there, and nothing else happens."""
    logits = torch.zeros(1, 4, 5)
    ones = torch.ones(1)
    tokens, parent = torch.tensor([[0, 1, 9, 3]]), torch.tensor([[-1, -1, 1, 1 << 40]])
    given = logits, torch.zeros(1, 5, dtype=torch.int32), ones, ones, 0 * ones, tokens, parent
    (penalized,) = OPS["sample.penalize_nodes"](given, {}, {"A": 4})
    assert penalized[0].tolist() == [[0] * 5, [0, -1, 0, 0, 0], [0, -1, 0, 0, 0], [0, 0, 0, -1, 0]]


def test_extreme_logits() -> None:
    """What was impossible stays so, and nothing becomes a number that was none."""
    inf, nan = math.inf, math.nan
    logits = torch.tensor([[inf, -inf, nan, 0.0]]).expand(3, -1)
    counts = torch.full((3, 4), 7, dtype=torch.int32)
    for repetition in (2.0**-10, 1.0, 2.0**10):
        penalties = torch.full((3,), repetition), torch.tensor([-2.0, 0, 2]), torch.tensor([2.0, 0, -2])
        (penalized,) = OPS["sample.penalize"]((logits, counts, *penalties), {}, {})
        assert penalized[:, 0].tolist() == [inf] * 3
        assert penalized[:, 1].tolist() == [-inf] * 3
        assert penalized[:, 2].isnan().all()
        assert penalized[:, 3].isfinite().all()


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("repetition_penalty", (0, 0.0, -1, 2.0**-11, 1025, math.inf, math.nan, True, None, "1")),
        ("frequency_penalty", (-2.1, 2.0001, math.nan, -math.inf, False, None)),
        ("presence_penalty", (-3, 3, math.nan, "0")),
        ("logit_bias", ({-1: 1}, {True: 1}, {1.0: 1}, {1: 101}, {1: math.nan}, {1: "1"}, {1: True}, 3, None, [1])),
    ],
)
def test_out_of_range(name: str, bad: tuple[Any, ...]) -> None:
    for value in bad:
        with pytest.raises(SamplingError, match=f"^{name} "):
            Sampling(1.0, 0, **{name: value})


def test_biases_are_pairs() -> None:
    """In ascending order, however they were given; one of 0 is none, so that equal ways to sample are equal."""
    assert Sampling(1.0, 0, logit_bias={5: 1.5, 2: -1}).logit_bias == ((2, -1), (5, 1.5))
    assert Sampling(1.0, 0, logit_bias=((2, -1), (5, 1.5))) == Sampling(1.0, 0, logit_bias={5: 1.5, 3: 0, 2: -1})
    assert Sampling(0.0, 0, logit_bias={3: 0.0}) == GREEDY


@pytest.fixture
def machine() -> Machine:
    """Bound, after a first prefill and step of rows 2, 4 and 1."""
    loaded = load("STANDALONE", verify="target_only", sampling=["penalties", "logit_bias"])
    (built,) = build_program(loaded).shapes
    return machine_of(built.plan)


def test_texts_and_biases_are_in_the_pools(machine: Machine) -> None:
    """And those of who was there before are not."""
    step = machine.step
    for how, text, counts, biases in (
        (Sampling(0.0, presence_penalty=1, logit_bias={4: 2.5}), ([3, 3, 5], [5, 0, 5]), [2, 0, 0, 1, 0, 5], 2.5),
        (Sampling(0.0, repetition_penalty=2), ([1], []), [0, 1, 0, 0, 0, 0], 0),
        (Sampling(0.0), ([1], [2]), [0] * 6, 0),
    ):
        step.set_sampling([3], [how], [text])
        assert step.pools["sampling_counts"][3, :6].tolist() == counts
        assert step.pools["sampling_counts"][3, 6:].count_nonzero() == 0
        assert step.pools["sampling_logit_bias"][3, 4] == biases
        assert step.pools["sampling_logit_bias"][3].count_nonzero() == (biases != 0)
        assert [step.pools[f"sampling_{name}"][3].item() for name in PENALTIES] == [
            getattr(how, name) for name in PENALTIES
        ]


def test_penalties_want_a_text(machine: Machine) -> None:
    """Of tokens that there are; nothing is written otherwise."""
    step, how = machine.step, Sampling(0.0, repetition_penalty=2)
    before = {name: pool.clone() for name, pool in step.pools.items()}
    vocab = step._plan.size("V")
    wrong: list[tuple[Any, str]] = [
        (None, "penalties need the text of every request"),
        ([], "penalties need the text of every request"),
        ([([vocab], [])], f"a text has token {vocab}, and the target has {vocab} tokens"),
        ([([], [-1])], "a text has token -1"),
        ([(["a"], [])], "tokens of a text must be integers"),
        ([(None, [])], "tokens of a text must be integers"),
        ([([],)], "penalties need the text of every request"),
        ([3], "penalties need the text of every request"),
    ]
    for texts, message in wrong:
        with pytest.raises(SamplingError, match=message):
            step.set_sampling([3], [how], texts)
    with pytest.raises(SamplingError, match=f"logit_bias has token {vocab}"):
        step.set_sampling([3], [Sampling(0.0, logit_bias={vocab: 1})])
    assert all(torch.equal(pool, before[name]) for name, pool in step.pools.items())
    step.set_sampling([3], [Sampling(0.0, logit_bias={3: 1})])


def test_what_is_emitted_is_counted(machine: Machine) -> None:
    """The first token in prefill, the accepted path in a step, and nobody else's."""
    step = machine.step
    before = step.pools["sampling_counts"].clone()
    result = step.decode(Batch([4, 1], [3, 2])).to_host()
    for row, tokens, count in zip([4, 1], result.predict, result.accept_lens, strict=True):
        added = torch.bincount(torch.tensor(tokens[: int(count)]), minlength=before.shape[1])
        assert torch.equal(step.pools["sampling_counts"][row], before[row] + 2 * added.to(torch.int32))
    assert torch.equal(step.pools["sampling_counts"][2], before[2])


def test_a_prefill_that_failed_wants_them_anew(machine: Machine) -> None:
    """For it may have counted its first token; one that was refused before has not."""
    step, nodes = machine.step, machine.plan.nodes("prefill")
    step.set_sampling([3], [Sampling(0.0, presence_penalty=1)], [([5, 5], [])])
    machine.engine.prompts |= {3: [5, 5]}
    with pytest.raises(BatchError):
        step.prefill(Batch([3], [0]))
    failing(step, nodes[-1].name, late=True)
    with pytest.raises(Boom):
        step.prefill(Batch([3], [2]))
    assert step.pools["sampling_counts"][3].count_nonzero() == 2
    with pytest.raises(SamplingError, match="nobody said how pool row 3 is sampled"):
        step.prefill(Batch([3], [2]))
    machine.prefill({3: [5, 5]})


def test_they_are_carried(machine: Machine) -> None:
    """So that a record says all that another machine has to know."""
    step = machine.step
    how = Sampling(0.5, 9, repetition_penalty=1.5, frequency_penalty=-0.5, logit_bias={2: 0.25, 5: -8})
    step.set_sampling([3], [how], [([1, 1], [2])])
    carry = step.unpack(step.pack([3]))
    assert carried(carry) == how
    step.write_carry([1], carry)
    assert step.pools["sampling_counts"][1, :4].tolist() == [0, 1, 2, 0]


def test_records_are_held_to_the_same_bounds(machine: Machine) -> None:
    step = machine.step
    carry = step.read_carry([1])
    for name, wrong in (
        ("repetition_penalty", -1),
        ("repetition_penalty", 1025),
        ("frequency_penalty", -2.5),
        ("presence_penalty", math.nan),
        ("counts", -1),
        ("logit_bias", 101),
        ("logit_bias", -math.inf),
    ):
        damaged = {field: values.clone() for field, values in carry.fields.items()}
        damaged[f"sampling_{name}"][0] = wrong
        with pytest.raises(FieldError, match=name):
            step.write_carry([1], Carry(damaged))
    low = {field: values.clone() for field, values in carry.fields.items()}
    low["sampling_frequency_penalty"][0], low["sampling_logit_bias"][0] = -2, -100
    step.write_carry([1], Carry(low))
