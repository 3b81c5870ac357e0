"""Texts that drafts are looked up in, in the pool rows of a program, and what SGLang's own look-ups have of them.

A row is a ring: entry q % L is the token at position q, up to the last token, which stands at the committed length. A
prefill of SGLang's begins it, from what the host knows of a request; every step goes on, whosever it is.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from .. import seam


class TextState:
    """As `State`, of requests whose drafts no model makes."""

    relayed = False

    def __init__(self, package: Any, step: Any, worker: Any, numbers: Any, published: Any) -> None:
        """See `State`. SGLang verifies `draft_token_num` nodes of each request of the worker's."""
        self._input, self._pools = seam.placed(worker.kind.keeps), step.pools
        self._nodes, self._vocabulary = worker.draft_token_num, numbers.count
        self._text: Tensor = self._pools["text"]
        self._zero = torch.zeros(1, dtype=torch.int32, device=self._text.device)

    def blank(self, rows: int) -> Any:
        """What stands for the state of so many requests."""
        none = self._zero.expand(rows)
        tokens = self._zero.expand(rows * self._nodes)
        return self._input(draft_token_num=self._nodes, new_seq_lens=none, accept_tokens=tokens, accept_lens=none)

    def left(self, rows: int, *_: Any, **__: Any) -> Any:
        """What SGLang keeps of a step of the program's: all of it is in its rows."""
        return self.blank(rows)

    def begin(self, batch: Any) -> None:
        """Before a prefill of SGLang's: write the texts that it ends, also where others have left keys and values.

        The first token of an answer comes behind its text. A place that stands for a picture has no token of the
        target, and is -1.
        """
        parts = list(map(self._prompt, batch.reqs, batch.seq_lens_cpu.tolist()))
        counts = torch.tensor([len(tokens) for _, tokens in parts])
        columns, tokens = (torch.cat(rows) for rows in zip(*parts, strict=True))
        places = torch.arange(len(parts)).repeat_interleave(counts)
        sent = torch.stack((places, columns, tokens)).to(self._text.device, non_blocking=True)
        self._text[batch.req_pool_indices[sent[0]], sent[1]] = sent[2].to(self._text.dtype)

    def _prompt(self, request: Any, length: int) -> tuple[Tensor, Tensor]:
        """The entries i64[n] of a request's row, and their tokens i64[n], of the last positions below `length`."""
        first = max(0, length - self._text.shape[1])
        tokens = torch.frombuffer(_tokens(request, first, length), dtype=torch.int64)
        known = (tokens >= 0) & (tokens < self._vocabulary)
        return torch.arange(first, length) % self._text.shape[1], tokens.where(known, -1)

    def lend(self, batch: Any, *, relayed: bool) -> None:
        """Before a step of SGLang's own: hand over what the host does not know yet, under the overlap schedule."""
        if not relayed:
            return
        counts = [len(request.origin_input_ids) + len(request.output_ids) for request in batch.reqs]
        known = torch.tensor(counts).to(self._text.device, non_blocking=True)
        columns = (known[:, None] + torch.arange(self._nodes, device=known.device)) % self._text.shape[1]
        batch.spec_info.accept_tokens = self._text[batch.req_pool_indices[:, None], columns].flatten()
        batch.spec_info.accept_lens = batch.seq_lens + 1 - known

    def take(self, batch: Any, result: Any, *, relayed: bool) -> None:
        """Go on behind a forward of SGLang's, a prefill or a step, by the tokens that it leaves of each request."""
        rows, ends, counts = batch.req_pool_indices, result.new_seq_lens, result.accept_lens
        tokens = result.next_token_ids.view(len(rows), -1).to(self._text.dtype)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        columns = ((ends - counts + 1)[:, None] + places) % self._text.shape[1]
        own = self._text[rows[:, None], columns]
        self._text[rows[:, None], columns] = tokens.where(places < counts[:, None], own)
        if "bonus" in self._pools:
            self._pools["bonus"][rows] = tokens.gather(1, (counts - 1)[:, None].long())[:, 0]
        if not relayed:
            self._pools["seq_lens"][rows] = ends
            result.next_draft_input = self.blank(len(rows))


def _tokens(request: Any, first: int, length: int) -> array[int]:
    """Those of a request at positions from `first` on and below `length`; of one that begins anew what it emitted."""
    prompt = request.origin_input_ids
    begin, end = (max(0, place - len(prompt)) for place in (first, length))
    return array("q", prompt[first:length]) + array("q", request.output_ids[begin:end])
