"""Decode with a program that `specc build` made of ANCHORED, over a toy engine.

python demo.py specc_program_anchored_tree

The target's rule is 5 * token + 3 * key + position, and one more after every seventh token; the key of a text is its
first token, which the target reads from its KV memory. Its hidden rows hold the key, so a draft that sees the anchor
knows all but the exception. The text must be the rule's, and the KV memory must hold it in order.
"""

from __future__ import annotations

import importlib
import sys
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

PROMPTS = [[7, 1, 2], [11, 3], [2, 50, 9, 4, 60]]
NEW_TOKENS = 40
COLUMNS = 128


def rule(token: Tensor, key: Tensor, position: Tensor, vocab: int) -> Tensor:
    """The token after `token`, which stands at `position` of a text with this key; broadcasts."""
    return (5 * token + 3 * key + position + (token % 7 == 0)) % vocab


def greedy(prompt: list[int], count: int, vocab: int) -> list[int]:
    """The rule's text, one token at a time."""
    text = list(prompt)
    for _ in range(count):
        token, key, position = (torch.tensor(number) for number in (text[-1], text[0], len(text) - 1))
        text.append(int(rule(token, key, position, vocab)))
    return text[len(prompt) :]


class Engine:
    """The callbacks of the program, and the memory that they work on: a page of `page` slots after the other."""

    def __init__(self, module: Any) -> None:
        """Size everything by the program's plan; pool row r has columns r * COLUMNS .. as its slots."""
        plan = module.plan
        rows, target = plan.size("P"), plan.models["target"]
        self.forward, self.vocab, self.width = module.Forward, target.vocab_size, target.hidden_size
        self.table = torch.arange(rows * COLUMNS, dtype=torch.int32).view(rows, COLUMNS)
        shape = (rows * COLUMNS, target.num_kv_heads, target.head_dim)
        self.kv = [torch.full(shape, -1.0), torch.full(shape, -1.0)]
        self.prompts: dict[int, list[int]] = {}

    def prefill_target(self, *, rows: Tensor, seq_lens: Tensor, capture: str) -> Any:
        """Logits f32[b, V] and hidden rows f32[b, W] of the prompts' last tokens."""
        del seq_lens, capture
        last, hidden = [], []
        for row in rows.tolist():
            text = torch.tensor(self.prompts[row])
            self._write(self.table[row, : len(text)].long(), text)
            key = text[0]
            last.append(self._logits(rule(text[-1], key, torch.tensor(len(text) - 1), self.vocab)))
            hidden.append(self._hidden(key))
        return self.forward(torch.stack(last), torch.stack(hidden))

    def target(
        self, *, tokens: Tensor, positions: Tensor, slots: Tensor, rows: Tensor, seq_lens: Tensor, capture: str,
        mask: Tensor | None = None,
    ) -> Any:  # fmt: skip
        """Logits f32[b, n, V] and hidden rows f32[b, n, W] of the nodes; a node depends on its token and on the key."""
        del seq_lens, capture, mask
        self._write(slots, tokens)
        key = self.kv[0][self.table[rows, 0].long(), 0, 0].long()[:, None].expand_as(tokens)
        return self.forward(self._logits(rule(tokens, key, positions, self.vocab)), self._hidden(key))

    def anchored(
        self, *, step: int, tokens: Tensor, positions: Tensor, rows: Tensor, anchor: Tensor, capture: str
    ) -> Any:
        """Logits f32[b, ..., V] of the draft: the rule without its exception, which comes second."""
        del step, rows, capture
        key = anchor[:, 0].long().view(-1, *([1] * (tokens.dim() - 1)))
        plain = (5 * tokens + 3 * key + positions) % self.vocab
        return self.forward(2 * self._logits(plain) + self._logits((plain + 1) % self.vocab))

    def _write(self, slots: Tensor, tokens: Tensor) -> None:
        for buffer in self.kv:
            buffer[slots.flatten()] = tokens.flatten().float()[:, None, None]

    def _logits(self, token: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(token.long(), self.vocab).float()

    def _hidden(self, key: Tensor) -> Tensor:
        return torch.nn.functional.pad(key[..., None].float(), (0, self.width - 1))


def main() -> None:
    """Decode the prompts together; exit with an error where the text, the drafts or the memory are not right."""
    module = importlib.import_module(sys.argv[1])
    engine = Engine(module)
    step = module.load("cpu").bind(engine, engine.table, {"target": engine.kv})
    rows = list(range(1, len(PROMPTS) + 1))
    engine.prompts = dict(zip(rows, PROMPTS, strict=True))
    lengths = [len(prompt) for prompt in PROMPTS]
    texts = [[token] for token in step.prefill(module.Batch(rows, lengths)).to_host().bonus]
    steps = 0
    while min(map(len, texts)) < NEW_TOKENS:
        result = step.decode(module.Batch(rows, lengths)).to_host()
        for request, text in enumerate(texts):
            tokens = result.tokens(request)
            expected = [text[-1], *tokens[:-1]]  # the accepted path as it was drafted: the root, then all but the bonus
            if result.drafted[request][: len(tokens)] != expected:
                sys.exit(f"drafted {result.drafted[request]}, the path is {expected}")
            again = sum(token == before for before, token in pairwise(tokens))
            if result.repeats[request] != again:
                sys.exit(f"{result.repeats[request]} repeats, in {tokens} there are {again}")
            text += tokens
        lengths, steps = result.new_seq_lens, steps + 1
    for row, prompt, text, length in zip(rows, PROMPTS, texts, lengths, strict=True):
        if text != greedy(prompt, len(text), engine.vocab):
            sys.exit(f"wrong text after {prompt}: {text}")
        kept = engine.kv[0][engine.table[row, :length].long(), 0, 0].long().tolist()
        if kept != [*prompt, *text][:length]:
            sys.exit(f"the KV memory of {prompt} holds {kept}")
    accepted = (sum(map(len, texts)) - len(texts)) / (steps * len(texts))
    print(f"{len(texts)} texts right, mean accepted length {accepted:.2f}")


if __name__ == "__main__":
    main()
