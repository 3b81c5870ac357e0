"""Reference semantics of the ops that look drafts up in a text; see `reference`."""

from __future__ import annotations

import torch

from .convention import Attrs, Dims, Tensors, register, zero_rows


@register("ngram.start")
def ngram_start(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B], seq_lens i64[B], first i32[B], prompt i64[T] -> text i32[B, L], L = `window`.

    Entry q % L is the token at position q, for the last L positions up to seq_len, at which `first` stands; the others
    are 0. Prompts follow each other. Padding rows: 0.
    """
    rows, seq_lens, first, prompt = operands
    entries = torch.arange(int(attrs["window"]), device=rows.device)
    back = (seq_lens[:, None] - entries) % len(entries)  # positions from the entry's to that of `first`
    position = seq_lens[:, None] - back
    begin = (seq_lens.cumsum(0) - seq_lens)[:, None]
    read = torch.cat([prompt, prompt.new_zeros(1)])[(begin + position).clamp(0, len(prompt))]
    text = torch.where(back == 0, first[:, None].to(torch.int64), read)
    return (torch.where((position >= 0) & (rows != 0)[:, None], text, 0).to(torch.int32),)


@register("ngram.propose")
def ngram_propose(operands: Tensors, attrs: Attrs, dims: Dims) -> Tensors:
    """Rows i64[B], seq_lens i64[B], text i32[B, L][, corpus i32[M]] -> tokens i64[B, X], X = `axis`.

    The rule stands at the op's definition. Every place of text and corpus has a rank: by its match, then those of the
    text, then the latest.
    """
    rows, seq_lens, text, *rest = operands
    corpus = rest[0] if rest else text.new_empty(0)
    size, steps, count = dims[attrs["axis"]], int(attrs["steps"]), text.shape[1]
    back = torch.arange(count, device=rows.device)
    own = text.gather(1, (seq_lens[:, None] - back) % count).to(torch.int64)  # the text read backwards from the root
    known = (seq_lens[:, None] + 1).clamp(max=count)
    corpus = corpus.to(torch.int64).expand(len(rows), -1)
    stop = torch.arange(corpus.shape[1], device=rows.device)
    period, end = back[1:], stop[:-1]
    in_text, in_corpus = torch.zeros_like(own[:, 1:]), torch.zeros_like(corpus[:, 1:])
    more_text, more_corpus = period < known, in_corpus == 0
    for i in range(min(int(attrs["longest"]), count)):
        more_text = more_text & (period + i < known) & (own.roll(-i, dims=1)[:, 1:] == own[:, i : i + 1])
        more_corpus = more_corpus & (end >= i) & (i < known) & (corpus.roll(i, dims=1)[:, :-1] == own[:, i : i + 1])
        in_text, in_corpus = in_text + more_text, in_corpus + more_corpus
    match = torch.cat([in_text, in_corpus], dim=1)
    place = torch.cat([len(stop) + count - period, end])
    possible = torch.cat([period < known, torch.ones_like(in_corpus, dtype=torch.bool)], dim=1)
    rank = torch.where(possible & (match >= int(attrs["shortest"])), match * (len(stop) + count) + place, -1)
    follows = torch.cat([own[:, :-1], corpus[:, 1:]], dim=1)
    ahead, last = torch.arange(steps, device=rows.device), attrs["beyond"] == "last"
    columns, fill = [own[:, :1]], own[:, :1].clamp(min=0) * last
    if not rank.shape[1]:  # of a text of one token nothing is found
        columns.append(fill.expand(-1, dims["K"] * steps))
    for _ in range(dims["K"] if rank.shape[1] else 0):
        best, chosen = rank.max(dim=1, keepdim=True)
        begin = follows.gather(1, chosen)
        at = chosen - len(period) + 1 + ahead
        texts = own.gather(1, (chosen - ahead % (chosen + 1)).clamp(0, count - 1))
        texts = texts.masked_fill((ahead > chosen) & last, -1)
        corpora = torch.nn.functional.pad(corpus, (0, 1), value=-1).gather(1, at.clamp(0, len(stop)))
        drafts = torch.where(chosen < len(period), texts, corpora).masked_fill(best < 0, -1)
        columns.append(torch.where(drafts < 0, fill, drafts))
        rank = torch.where(follows == begin, -1, rank)
    tokens = torch.cat(columns, dim=1)[:, :size]
    tokens = torch.nn.functional.pad(tokens, (0, size - tokens.shape[1]))
    return (zero_rows(tokens, rows == 0),)
