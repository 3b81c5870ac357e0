"""Grammars of requests: JSON schemas and regular expressions by xgrammar, walked along what a step verifies.

A grammar goes with a request as its source text. Where the request runs it is compiled for the target's tokenizer, and
a matcher follows the tokens that were emitted; so it does not matter what happens to the request between two steps.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specc.compiler.support.extras import how_to_get
from specc.lab.engine.errors import GrammarError, first_line
from specc.runtime.capabilities.sampling import Sampling
from specc.runtime.plan.plan import Plan

ALL = -1
"""A word of a mask that allows all of its tokens."""


class Matcher:
    """Where the emitted tokens of a request have come to in its grammar."""

    def __init__(self, matcher: Any) -> None:
        """matcher: xgrammar's, at its beginning."""
        self._matcher, self._followed = matcher, 0

    def follow(self, emitted: Sequence[int]) -> None:
        """Go on to the end of all that was emitted. GrammarError at a token that the grammar does not allow there."""
        for token in emitted[self._followed :]:
            if not self._goes_on(token):
                raise GrammarError(
                    f"token {token} at place {self._followed} of the text is not what its grammar allows"
                )
            self._followed += 1

    def fill(self, mask: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> None:
        """Write what is allowed after each node i32[n, words], on the host.

        tokens: of the nodes, of which the first is the last emitted one. parents: the column of each node's parent,
        before it. The masks of nodes that are not allowed themselves stay as they are: nobody reads them.
        """
        children: list[list[int]] = [[] for _ in tokens]
        for column, parent in enumerate(parents):
            if 0 <= parent < column:
                children[parent].append(column)
        self._visit(0, mask, tokens, children)

    def _visit(self, column: int, mask: Tensor, tokens: Sequence[int], children: Sequence[Sequence[int]]) -> None:
        if self._matcher.is_terminated():
            return
        self._matcher.fill_next_token_bitmask(mask, column)
        for child in children[column]:
            word, bit = divmod(tokens[child], 32)
            if int(mask[column, word]) >> bit & 1 and self._goes_on(tokens[child]):
                self._visit(child, mask, tokens, children)
                self._matcher.rollback(1)

    def _goes_on(self, token: int) -> bool:
        """Take one more token, if there may be one."""
        return not self._matcher.is_terminated() and self._matcher.accept_token(token)


class Grammars:
    """Compiles grammars for a target. xgrammar is imported when the first request asks for one."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        """vocab_size: of the target, which may have more tokens than its tokenizer; these are never allowed."""
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, eos_token_ids

    def matcher(self, sampling: Sampling) -> Matcher | None:
        """The matcher of a request, None of one without a grammar. GrammarError for a grammar that is none."""
        if sampling.json_schema is None and sampling.regex is None:
            return None
        compiler = self._compiler
        try:
            if sampling.regex is not None:
                compiled = compiler.compile_regex(sampling.regex)
            else:
                json.loads(sampling.json_schema or "")
                compiled = compiler.compile_json_schema(sampling.json_schema, any_whitespace=False)
        except Exception as error:  # of the schema, of the expression: xgrammar's are of many kinds
            name = "json_schema" if sampling.regex is None else "regex"
            raise GrammarError(f"{name} cannot be compiled: {first_line(error)}") from error
        return Matcher(self._library.GrammarMatcher(compiled))

    @cached_property
    def _library(self) -> Any:
        try:
            return importlib.import_module("xgrammar")
        except ImportError as error:
            reason = f"grammars need a library that is not installed: {error.name}"
            raise GrammarError(f"{reason}; {how_to_get('grammar')}") from error

    @cached_property
    def _compiler(self) -> Any:
        """Xgrammar's, which keeps what it has compiled."""
        library = self._library
        if self._tokenizer is None or not self._eos:
            raise GrammarError("a grammar needs the target's tokenizer, and a token that ends a text")
        stops = {"vocab_size": self._vocab_size, "stop_token_ids": sorted(self._eos)}
        return library.GrammarCompiler(library.TokenizerInfo.from_huggingface(self._tokenizer, **stops))


class GrammarMasks:
    """The bitmasks that a program reads, i32[b, n, words] on the target's device; ones where all is allowed.

    restricted: the matchers of the next launch, by row of its batch. Without any nobody waits for the device.
    """

    def __init__(self, plan: Plan, device: torch.device) -> None:
        """Allocate them for as many requests as there can be, of a program that reads any."""
        self.restricted: Mapping[int, Matcher] = {}
        self._words = -(-plan.models["target"].vocab_size // 32)
        most = (plan.size("P") - 1) * plan.serving.reach * self._words * plan.restricts
        self._masks = torch.full((most,), ALL, dtype=torch.int32, device=device)
        self._written = 0
        self._nodes: tuple[Tensor, Tensor | None] | None = None

    def restrict(self, matchers: Iterable[Matcher | None]) -> None:
        """Say what the next launch is restricted by, row by row."""
        self.restricted = {row: matcher for row, matcher in enumerate(matchers) if matcher is not None}

    def begin(self, tokens: Tensor, parent: Tensor | None) -> Tensor:
        """Start to bring nodes i64[b, n] to the host; where their masks will be."""
        masks = self._of(*tokens.shape)
        if self.restricted:
            self._nodes = _on_its_way(tokens), None if parent is None else _on_its_way(parent)
            self._arrival = _recorded(tokens)
        return masks

    def end(self, masks: Tensor) -> None:
        """Wait for the nodes, not for what was queued since, and make their masks."""
        if not self.restricted or self._nodes is None:
            return
        if self._arrival is not None:
            self._arrival.synchronize()
        tokens, parents = self._nodes
        filled = torch.full(masks.shape, ALL, dtype=torch.int32)
        chain = range(-1, masks.shape[1] - 1)
        for row, matcher in self.restricted.items():
            links = chain if parents is None else parents[row].tolist()
            matcher.fill(filled[row], tokens[row].tolist(), links)
        self._send(masks, filled)

    def prefill(self, rows: int) -> Tensor:
        """The masks i32[rows, words] after the texts of a prefill."""
        masks = self._of(rows, 1)
        if self.restricted:
            filled = torch.full(masks.shape, ALL, dtype=torch.int32)
            for row, matcher in self.restricted.items():
                matcher.fill(filled[row], [0], [-1])
            self._send(masks, filled)
        return masks[:, 0]

    def _of(self, rows: int, nodes: int) -> Tensor:
        """The memory of some masks, all ones unless they are about to be written."""
        if not self.restricted and self._written:
            self._masks[: self._written].fill_(ALL)
            self._written = 0
        return self._masks[: rows * nodes * self._words].view(rows, nodes, self._words)

    def _send(self, masks: Tensor, filled: Tensor) -> None:
        self._written = max(self._written, masks.numel())
        masks.copy_(filled.pin_memory() if masks.is_cuda else filled, non_blocking=True)


def _on_its_way(tensor: Tensor) -> Tensor:
    """A copy on the host, which is there when all that is queued has run."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)


def _recorded(tensor: Tensor) -> torch.cuda.Event | None:
    """An event behind all that is queued on a tensor's device; None where nothing is ever queued."""
    if not tensor.is_cuda:
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event
