"""Masks along a draft tree, of a grammar in Python, which knows nothing of the tokens' spelling."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
import torch
from programs import planned
from torch import Tensor

from specc.lab.engine.errors import GrammarError
from specc.lab.engine.serving.requests.grammar import GrammarMasks, Grammars, Matcher
from specc.runtime.capabilities.sampling import Sampling

VOCAB, STOP, CPU = 70, 1, torch.device("cpu")


class Rising:
    """As `xgrammar.GrammarMatcher`: every token is a little larger than the one before, or ends the text."""

    def __init__(self) -> None:
        self.taken = [2]

    def is_terminated(self) -> bool:
        return self.taken[-1] == STOP

    def allowed(self) -> set[int]:
        return {STOP, *range(self.taken[-1] + 1, min(self.taken[-1] + 6, VOCAB))}

    def accept_token(self, token: int) -> bool:
        assert not self.is_terminated()
        if token in self.allowed():
            self.taken.append(token)
            return True
        return False

    def rollback(self, count: int) -> None:
        del self.taken[-count:]

    def fill_next_token_bitmask(self, mask: Tensor, index: int) -> None:
        assert not self.is_terminated()
        bits = sum(1 << token for token in self.allowed())
        words = [bits >> 32 * i & 0xFFFFFFFF for i in range(mask.shape[1])]
        mask[index] = torch.tensor([word - (1 << 32) if word >> 31 else word for word in words], dtype=torch.int32)


def tokens_of(mask: Tensor) -> set[int]:
    """The tokens of the vocabulary that a row allows."""
    words = [int(word) & 0xFFFFFFFF for word in mask]
    return {token for token in range(VOCAB) if words[token // 32] >> token % 32 & 1}


def random_tree(rng: random.Random, nodes: int) -> tuple[list[int], list[int]]:
    """Tokens and parents: some follow the grammar, some do not, some end it; some are orphans."""
    tokens, parents = [2], [-1]
    for column in range(1, nodes):
        parent = rng.choice([*range(column), -1])
        parents.append(parent)
        tokens.append(rng.choice([STOP, rng.randrange(VOCAB), min(tokens[parent] + rng.randint(1, 7), VOCAB - 1)]))
    return tokens, parents


@pytest.mark.parametrize("seed", range(20))
def test_every_node_that_may_be_has_the_mask_of_its_path(seed: int) -> None:
    """As if decoding its path token by token; the others, and those behind the end, keep theirs."""
    rng, inner = random.Random(seed), Rising()
    tokens, parents = random_tree(rng, rng.randint(1, 24))
    mask = torch.full((len(tokens), 3), -1, dtype=torch.int32)
    Matcher(inner).fill(mask, tokens, parents)
    assert inner.taken == [2]
    for column in range(len(tokens)):
        path, at = [], column
        while at > 0:
            path.insert(0, tokens[at])
            at = parents[at]
        alone = Rising()
        reached = at == 0 and all(not alone.is_terminated() and alone.accept_token(token) for token in path)
        wanted = alone.allowed() if reached and not alone.is_terminated() else {*range(VOCAB)}
        assert tokens_of(mask[column]) == wanted


def test_a_matcher_follows_what_was_emitted() -> None:
    """Every token once, however often it is told; a token that may not be is an error, and so is one behind the end."""
    inner = Rising()
    matcher = Matcher(inner)
    matcher.follow([])
    matcher.follow([4, 5])
    matcher.follow([4, 5])
    assert inner.taken == [2, 4, 5]
    with pytest.raises(GrammarError, match="token 30 at place 3 of the text"):
        matcher.follow([4, 5, 7, 30])
    assert inner.taken == [2, 4, 5, 7]
    matcher.follow([4, 5, 7, STOP])
    with pytest.raises(GrammarError, match="token 8 at place 4"):
        matcher.follow([4, 5, 7, STOP, 8])


@pytest.fixture
def masks() -> GrammarMasks:
    """Of a program of trees of 6 nodes."""
    keys: dict[str, Any] = {"topk": 2, "num_draft_tokens": 6, "verify": "target_only", "sampling": ["grammar"]}
    return GrammarMasks(planned("EAGLE", target={"vocab_size": VOCAB}, draft={"vocab_size": VOCAB}, **keys)[0], CPU)


def test_masks_are_those_of_the_next_launch(masks: GrammarMasks) -> None:
    """Rows without a grammar allow all, also those that had one before; all of it in the same memory."""
    tokens = torch.tensor([[2, 3, 9, 4, 1, 5]] * 3)
    parent = torch.tensor([[-1, 0, 0, 1, 1, 3]] * 3)
    place = masks.begin(tokens, parent).data_ptr()
    for restricted in ({1}, {0, 2}, set(), {2}, set()):
        masks.restricted = {row: Matcher(Rising()) for row in restricted}
        begun = masks.begin(tokens, parent)
        assert (begun.data_ptr(), begun.shape, begun.is_contiguous()) == (place, (3, 6, 3), True)
        masks.end(begun)
        for row in range(3):
            whole = tokens_of(begun[row, 0]) == {*range(VOCAB)}
            assert whole is (row not in restricted)
            assert (tokens_of(begun[row, 3]) == {STOP, 5, 6, 7, 8, 9}) is (row in restricted)
        first = masks.prefill(3)
        assert (first.data_ptr(), first.shape, first.is_contiguous()) == (place, (3, 3), True)
        for row in range(3):
            assert (tokens_of(first[row]) == {STOP, 3, 4, 5, 6, 7}) is (row in restricted)


def test_a_chain_needs_no_parents(masks: GrammarMasks) -> None:
    masks.restricted = {0: Matcher(Rising())}
    begun = masks.begin(torch.tensor([[2, 4, 6, 60]]), None)
    masks.end(begun)
    assert [min(tokens_of(row) - {STOP}) for row in begun[0, :3]] == [3, 5, 7]
    assert tokens_of(begun[0, 3]) == {*range(VOCAB)}


def test_the_nodes_are_those_that_were_begun(masks: GrammarMasks) -> None:
    """Tensors of a program are overwritten by what runs in the meantime."""
    masks.restricted = {0: Matcher(Rising())}
    tokens = torch.tensor([[2, 4, 6]])
    begun = masks.begin(tokens, None)
    tokens.fill_(60)
    masks.end(begun)
    assert [min(tokens_of(row) - {STOP}) for row in begun[0]] == [3, 5, 7]


def test_a_program_without_grammars_has_no_masks() -> None:
    made = GrammarMasks(planned("EAGLE")[0], CPU)
    assert made._masks.numel() == 0


def test_a_request_without_a_grammar_needs_nothing() -> None:
    """Neither a tokenizer nor the library."""
    assert Grammars(None, VOCAB, frozenset()).matcher(Sampling()) is None


def test_a_missing_library_is_named_with_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    with pytest.raises(
        GrammarError, match=r"not installed: xgrammar; in the clone of specc, pip install '\.\[grammar\]'"
    ):
        Grammars(None, VOCAB, frozenset({STOP})).matcher(Sampling(regex="a"))
