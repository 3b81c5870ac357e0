"""What the ops that look drafts up in a text mean, in Python: their semantics, see `reference`."""

from __future__ import annotations

import torch

from .semantics import Attrs, Dims, Semantics, Tensors
from .semantics import register as _register

NGRAM_OPS: dict[str, Semantics] = {}


@_register(NGRAM_OPS, "ngram.start")
def ngram_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B], seq_lens i64[B], first i32[B], prompt i64[T] -> text i32[B, L], L = `window`.

    Entry q % L is the token at position q, for the last L positions up to seq_len, at which `first` stands; the others
    are 0. Prompts follow each other. Padding rows: 0.
    """
    rows, seq_lens, first, prompt = operands
    window = int(attrs["window"])
    text = torch.zeros(len(rows), window, dtype=torch.int32)
    begin = 0
    for b, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        tokens = [*prompt[begin : begin + length].tolist(), int(first[b])]
        begin += length
        for position in range(max(0, length + 1 - window), length + 1) if row else ():
            text[b, position % window] = tokens[position]
    return (text.to(rows.device),)


@_register(NGRAM_OPS, "ngram.propose")
def ngram_propose(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B], seq_lens i64[B], text i32[B, L][, corpus i32[M]] -> tokens i64[B, X], X = `axis`.

    The rule stands at the op's definition; brute force.
    """
    rows, seq_lens, text, *rest = operands
    corpus = rest[0].tolist() if rest else []
    size, steps = dims[attrs["axis"]], int(attrs["steps"])
    tokens = torch.zeros(len(rows), 1 + dims["K"] * steps, dtype=torch.int64)
    for b, (row, length) in enumerate(zip(rows.tolist(), seq_lens.tolist(), strict=True)):
        if row == 0:
            continue
        ring = text[b].tolist()
        own = [ring[position % len(ring)] for position in range(max(0, length + 1 - len(ring)), length + 1)]
        drafts = _branches(own, corpus, dims["K"], steps, int(attrs["longest"]), int(attrs["shortest"]))
        tokens[b, : 1 + len(drafts)] = torch.tensor([own[-1], *(max(token, 0) for token in drafts)])
    return (tokens[:, :size].to(rows.device),)


def _branches(own: list[int], corpus: list[int], count: int, steps: int, longest: int, shortest: int) -> list[int]:
    """The drafts of up to `count` branches, one after the other."""
    places: list[tuple[int, bool, int]] = []
    for of_text, source in ((True, own), (False, corpus)):
        matches = [(_match(own, source, end, longest), of_text, end) for end in range(len(source) - 1)]
        places += [place for place in matches if place[0] >= shortest]
    drafts: list[int] = []
    first: set[int] = set()
    for _, of_text, end in sorted(places, reverse=True):
        source = own if of_text else corpus
        if len(first) < count and source[end + 1] not in first:
            first.add(source[end + 1])
            period = len(own) - 1 - end
            following = [end + 1 + (i % period if of_text else i) for i in range(steps)]
            drafts += [source[at] if at < len(source) else 0 for at in following]
    return drafts


def _match(own: list[int], source: list[int], end: int, longest: int) -> int:
    """How many of the last tokens of `own` are those of `source` up to and including `end`, at most `longest`."""
    length = 0
    while length < min(longest, end + 1, len(own)) and source[end - length] == own[-1 - length]:
        length += 1
    return length
