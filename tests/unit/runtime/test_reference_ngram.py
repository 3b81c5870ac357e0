"""References of look-ups and of rings against plain loops over one request after the other."""

from __future__ import annotations

import random

import pytest
import torch
from fakes.vllm_modules import looked_up

from specc.runtime.semantics.reference import OPS


def ring(text: list[int], window: int) -> list[int]:
    """Token q of the text at entry q % window, for the last ones; 0 where there is none."""
    entries = [0] * window
    for position, token in enumerate(text):
        entries[position % window] = token
    return entries


def proposed(
    text: list[int], corpus: list[int], branches: int, steps: int, longest: int, shortest: int, beyond: str
) -> list[int]:
    """The root, and `steps` drafts of each branch; with `beyond` last the root where no token is found."""
    places: list[tuple[int, bool, int]] = []
    for own, source in ((True, text), (False, corpus)):
        for end in range(len(source) - 1):
            most = min(longest, end + 1, len(text))
            match = next((i for i in range(most) if source[end - i] != text[-1 - i]), most)
            if match >= shortest:
                places.append((match, own, end))
    drafts: dict[int, list[int]] = {}
    for _, own, end in sorted(places, reverse=True):
        grown = list(text if own else corpus)
        following: list[int] = []
        for at in range(end + 1, end + 1 + steps):
            following.append(grown[at] if at < len(grown) else text[-1] if beyond == "last" else 0)
            grown += following[-1:] if own and beyond == "period" else []
        if len(drafts) < branches:
            drafts.setdefault(following[0], following)
    lacking = [text[-1] if beyond == "last" else 0] * (branches - len(drafts)) * steps
    return [text[-1], *(token for branch in drafts.values() for token in branch), *lacking]


@pytest.mark.parametrize("seed", range(40))
def test_propose(seed: int) -> None:
    rng = random.Random(seed)
    window, branches, steps, letters = rng.randint(1, 12), rng.randint(1, 4), rng.randint(1, 4), rng.randint(1, 4)
    shortest = rng.randint(1, 3)
    longest, columns = rng.randint(shortest, 5), rng.randint(1, 1 + branches * steps)
    texts = [[rng.randrange(letters) for _ in range(rng.randint(1, 20))] for _ in range(4)]
    corpus = [rng.randrange(letters) for _ in range(rng.randint(0, 15))]
    operands = [torch.tensor([3, 1, 0, 2]), torch.tensor([len(text) - 1 for text in texts])]
    operands.append(torch.tensor([ring(text, window) for text in texts], dtype=torch.int32))
    operands += [torch.tensor(corpus, dtype=torch.int32)] * (seed % 3 > 0)
    beyond = "last" if seed % 2 else "period"
    attrs = {"axis": "N", "steps": steps, "longest": longest, "shortest": shortest, "beyond": beyond}
    (tokens,) = OPS["ngram.propose"](tuple(operands), attrs, {"N": columns, "K": branches})
    for b, text in enumerate(texts):
        known = corpus if seed % 3 else []
        wanted = proposed(text[-window:], known, branches, steps, longest, shortest, beyond) if b != 2 else []
        assert tokens[b].tolist() == (wanted + [0] * columns)[:columns]


@pytest.mark.parametrize("seed", range(60))
def test_what_vllm_would_propose(seed: int) -> None:
    """With `beyond` last, of a chain whose ring holds the whole text."""
    rng = random.Random(seed)
    steps, letters, shortest = rng.randint(1, 5), rng.randint(1, 5), rng.randint(1, 3)
    longest = rng.randint(shortest, 5)
    texts = [[rng.randrange(letters) for _ in range(rng.randint(1, 24))] for _ in range(6)]
    lengths = torch.tensor([len(text) - 1 for text in texts])
    rings = torch.tensor([ring(text, 24) for text in texts], dtype=torch.int32)
    attrs = {"axis": "A", "steps": steps, "longest": longest, "shortest": shortest, "beyond": "last"}
    (tokens,) = OPS["ngram.propose"]((torch.arange(1, 7), lengths, rings), attrs, {"A": 1 + steps, "K": 1})
    wanted = [[text[-1], *looked_up(text, steps, longest, shortest)] for text in texts]
    assert tokens.tolist() == wanted


@pytest.mark.parametrize(("beyond", "filled"), [("period", 0), ("last", 7)])
def test_a_ring_of_one_token_has_nothing_to_look_up(beyond: str, filled: int) -> None:
    rows, lengths = torch.tensor([1, 0]), torch.tensor([4, 0])
    attrs = {"axis": "N", "steps": 2, "longest": 3, "shortest": 1, "beyond": beyond}
    text = torch.tensor([[7], [7]], dtype=torch.int32)
    (drafted,) = OPS["ngram.propose"]((rows, lengths, text), attrs, {"N": 5, "K": 2})
    assert drafted.tolist() == [[7, *[filled] * 4], [0] * 5]


@pytest.mark.parametrize("seed", range(20))
def test_start_and_append(seed: int) -> None:
    rng = random.Random(seed)
    window, most = rng.randint(4, 12), 4
    prompts = [[rng.randrange(1, 90) for _ in range(rng.randint(1, 20))] for _ in range(3)]
    rows, lengths = torch.tensor([4, 2, 1]), torch.tensor([len(prompt) for prompt in prompts])
    first = torch.tensor([91, 92, 93], dtype=torch.int32)
    flat = torch.tensor([token for prompt in prompts for token in prompt])
    (text,) = OPS["ngram.start"]((rows, lengths, first, flat), {"window": window}, {})
    assert text.tolist() == [ring([*p, t], window) for p, t in zip(prompts, first.tolist(), strict=True)]
    pool = torch.full((5, window), -7, dtype=torch.int32)
    pool[rows] = text
    new = [[rng.randrange(90) for _ in range(rng.randint(0, most))] for _ in prompts]
    values = torch.tensor([tokens + [-1] * (most - len(tokens)) for tokens in new], dtype=torch.int32)
    count = torch.tensor([len(tokens) for tokens in new], dtype=torch.int32)
    rows[1] = 0
    (after,) = OPS["carry.append"]((rows, lengths, values, count, pool), {"field": "text"}, {})
    for b, row in ((0, 4), (2, 1)):
        assert after[row].tolist() == ring([*prompts[b], int(first[b]), *new[b]], window)
    assert torch.equal(after[[0, 2, 3]], pool[[0, 2, 3]])
