"""Grammars of SGLang's requests, how it masks the nodes of a tree by them, and what it simulates acceptance with."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .sglang_modules import SRT, at

START, ALL = -1, -1
"""What a grammar has accepted before the first token, and a word of a mask that allows all of its tokens."""

SRT.put("speculative.spec_utils", SIMULATE_ACC_LEN=-1.0, SIMULATE_ACC_METHOD="match-expected")


@at("speculative.spec_utils")
def sample_simulated_acc_len(simulate_acc_len: float, simulate_acc_method: str, max_len: int) -> int:
    """One of the two lengths between which a wanted one is."""
    return min(max_len, int(simulate_acc_len) + (random.random() < simulate_acc_len % 1))


@at("utils.common")
def async_d2h(tensor: Tensor) -> Tensor:
    return tensor.clone()


@at("constrained.base_grammar_backend")
class GrammarRow(NamedTuple):
    row: int
    grammar: Any


class Grammar:
    """Two tokens of three may follow another one, which ones depends on a number."""

    def __init__(self, salt: int) -> None:
        self._salt, self._accepted = salt, [START]

    def allows(self, last: int, token: int) -> bool:
        return (token + last + self._salt) % 3 > 0

    def accept_token(self, token: int) -> None:
        assert self.allows(self._accepted[-1], token)
        self._accepted.append(token)

    def rollback(self, count: int) -> None:
        del self._accepted[len(self._accepted) - count :]

    def is_terminated(self) -> bool:
        return False

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: str) -> Tensor:
        return torch.full((batch_size, -(-vocab_size // 32)), ALL, dtype=torch.int32, device=device)

    def fill_vocab_mask(self, vocab_mask: Tensor, idx: int) -> None:
        for word in range(vocab_mask.shape[1]):
            bits = [self.allows(self._accepted[-1], 32 * word + bit) << bit for bit in range(32)]
            vocab_mask[idx, word] = sum(bits) - (bits[31] << 1)

    def fill_vocab_mask_batched(self, rows: Sequence[GrammarRow], vocab_mask: Tensor) -> None:
        for entry in rows:
            entry.grammar.fill_vocab_mask(vocab_mask, entry.row)


@at("speculative.spec_utils")
def generate_token_bitmask(
    reqs: Sequence[Any], retrieve_next_token_cpu: Tensor, retrieve_next_sibling_cpu: Tensor, draft_tokens_cpu: Tensor,
    vocab_size: int,
) -> tuple[Tensor | None, Any]:  # fmt: skip
    """Masks [b * N, W] of nodes; what its grammar does not allow has none, nor has what is behind it."""
    masks: Any = None
    grammar: Any = None
    nodes = draft_tokens_cpu.shape[1]
    for place, req in enumerate(reqs):
        if req.grammar is None:
            continue
        grammar = req.grammar
        if masks is None:
            masks = grammar.allocate_vocab_mask(vocab_size=vocab_size, batch_size=len(reqs) * nodes, device="cpu")
        tree = (retrieve_next_token_cpu[place], retrieve_next_sibling_cpu[place], draft_tokens_cpu[place])
        _fill(grammar, [of.tolist() for of in tree], masks[place * nodes : (place + 1) * nodes], 0)
    return masks, grammar


def _fill(grammar: Grammar, tree: Sequence[list[int]], masks: Tensor, node: int) -> None:
    """Fill the mask of a node which the grammar stands behind, and those of its children."""
    children, siblings, tokens = tree
    grammar.fill_vocab_mask(masks, node)
    child = children[node]
    while child != -1:
        if masks[node, tokens[child] // 32] >> tokens[child] % 32 & 1:
            grammar.accept_token(tokens[child])
            _fill(grammar, tree, masks, child)
            grammar.rollback(1)
        child = siblings[child]
