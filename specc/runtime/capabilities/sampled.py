"""What a bound program has that samples: how its requests are, their first tokens, and what counts as their output."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ..batch import Batch
from ..bound import BoundStep
from ..entry.columns import LENGTHS, ROWS
from ..entry.first import FirstTokens
from ..entry.frame import Progress
from ..errors import BatchError
from ..memory.tables import batch_column, type_fault
from ..plan.plan import Input
from .sampling import Sampling, SamplingRows, Text


class SampledStep(BoundStep):
    """A step whose requests the engine says how to sample."""

    def set_sampling(
        self, rows: Sequence[int], params: Sequence[Sampling], texts: Sequence[Text] | None = None
    ) -> None:
        """Say how the request in pool row `rows[i]` is sampled, before its prefill, which draws its first token.

        It stays in the row, and is part of its carry. One without a seed gets its own. Where a request has a penalty,
        `texts[i]` are the tokens of its prompt, and those that it has emitted before, as after it was thrown out; what
        it emits from then on the program counts. BatchError for rows out of range or repeated, SamplingError for
        parameters out of range, such as the program was built without, or a penalty without text; nothing is written.
        """
        with self._on_device():
            self._sampling.set(rows, params, texts)

    def first_tokens(self, batch: Batch, logits: Tensor) -> Tensor:
        """The tokens i32[b] that `prefill` would draw of the target's logits T[b, V] after the batch's texts.

        For engines that prefill on their own, between `set_sampling` and `write_carry`: what is drawn is counted, and
        may have been stored in the rows. `batch.seq_lens` say how long the texts are. Valid until the next call of the
        step. BatchError as `decode`, or without lengths; ForwardContractError for logits that the plan does not have
        so; BindError where a program computes more in the launch that draws.
        """
        if (widest := self._widest()) is not self:
            return widest.first_tokens(batch, logits)
        columns = self._read("step", batch)
        if LENGTHS not in columns:
            raise BatchError("first_tokens needs the batch's seq_lens")
        rows = len(columns[ROWS])
        frame = self._frame(rows)
        with self._on_device():
            self._staging["prefill"].send({name: columns[name] for name in self._columns["prefill"].inputs}, rows)
            tokens = self._first.run(frame, logits, self._execute, rows)
            if not self._first.counted:
                self._sampling.count(self._arena.view(ROWS, rows), tokens, None)
            return tokens

    def count(self, rows: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> None:
        """Count tokens [b], or the first lengths [b] of tokens [b, n], as output of the requests in rows i64[b].

        For what an engine emits by itself between steps; tensors on the device, of i32 or i64, whose values are the
        engine's word. BatchError for others.
        """
        self._sampling.count(*_emitted(rows, tokens, lengths, self._device))

    @contextlib.contextmanager
    def _prefilling(self, rows: list[int] | Tensor, progress: Progress) -> Iterator[None]:
        """SamplingError, before anything runs, for requests of which nobody said how they are sampled."""
        self._sampling.check(rows)
        try:
            with super()._prefilling(rows, progress):
                yield
        finally:
            if progress.begun:  # the first token may have been counted
                self._sampling.used(rows)

    @cached_property
    def _sampling(self) -> SamplingRows:
        """One for all shapes: that of the first."""
        first = self._first_shape()
        return SamplingRows(self._plan, self._pools, len(self._table)) if first is self else first._sampling

    @cached_property
    def _first(self) -> FirstTokens:
        return FirstTokens(self._plan)


def _emitted(
    rows: Tensor, tokens: Tensor, lengths: Tensor | None, device: torch.device
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments of `Step.count`. BatchError unless they are what it says; their values are not read."""
    sizes = {"b": len(batch_column("rows", rows, device))}
    wide = isinstance(tokens, Tensor) and tokens.dim() > 1
    given = {"tokens": (tokens, ("b", "n") if wide else ("b",)), "lengths": (lengths, ("b",))}
    if lengths is None:
        del given["lengths"]
    for name, (tensor, axes) in given.items():
        dtype = "i32" if isinstance(tensor, Tensor) and tensor.dtype == torch.int32 else "i64"
        if fault := type_fault(Input(name, dtype, axes, "engine"), device, tensor, sizes):
            raise BatchError(f"{name} {fault}")
    return rows, tokens, lengths
