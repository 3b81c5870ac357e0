"""The head of a draft's vocabulary, which a program computes: the draft hands over what vLLM would multiply by it.

A model of vLLM's makes logits in `compute_logits`, in its own way: by a head of its own or its target's, behind a norm
or not, of all tokens or of some. What reaches its logits processor is what the program multiplies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from vllm.distributed.parallel_state import get_tp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor

from ..._heads import HEAD, TOKEN_MAP, named_tokens, of_rank, scores_part
from ..._plugin import MisfitError

OFFSETS = "draft_id_to_target_id"
"""The attribute of a model that scores a part of the tokens: how far behind its entry each of them is."""


class _Reached(Exception):
    """The logits processor is reached: with the module of the head, and the rows."""


class Head:
    """The head of a draft of vLLM's, of a program that computes it.

    Args:
        package: the program's.
        plan: the program's, at the deepest of its shapes.
        speculator: a DraftModelSpeculator with its model.

    MisfitError where the model's logits are something else than a product with the weights of one head, the same of all
    its modules; ServerError where a file that names a part of the tokens cannot be read.

    """

    def __init__(self, package: Any, plan: Any, speculator: Any) -> None:
        """Find the head by asking for logits, as far as the product."""
        self._speculator, self._plan = speculator, plan
        self._processors = [part for part in speculator.model.modules() if isinstance(part, LogitsProcessor)]
        dtype, width = speculator.vllm_config.model_config.dtype, int(plan.tables()[HEAD].axes[-1])
        zeros = torch.zeros((1, width), dtype=dtype, device=speculator.device)
        self._head, rows = self._reach(zeros, 0)
        for step in range(1, plan.size("S")):
            if self._reach(zeros, step)[0] is not self._head:
                raise MisfitError(f"draft {step} has another head than the first one")
        weight = getattr(self._head, "weight", None)
        if not isinstance(weight, Tensor) or (weight.dtype, tuple(weight.shape[1:])) != (rows.dtype, (width,)):
            kept = f"{weight.dtype}{list(weight.shape)}" if isinstance(weight, Tensor) else "no tensor"
            raise MisfitError(f"the head of the draft is kept as {kept}, the program reads {rows.dtype}[..., {width}]")
        if self._shared and (self._head.tp_size != plan.ranks or self._head.num_added_embeddings):
            raise MisfitError("the head of the draft is not a part of the vocabulary on each rank")
        if (length := len(weight) * (plan.ranks if self._shared else 1)) < self._entries:
            raise MisfitError(f"the head of the draft has {length} entries, the program reads {self._entries}")
        self._offsets: Tensor | None = getattr(speculator.model, OFFSETS, None)
        self._named = named_tokens(package).to(weight.device) if self._maps and self._offsets is None else None

    @property
    def _entries(self) -> int:
        entries: int = self._plan.size("Vd")
        return entries

    @property
    def _shared(self) -> bool:
        """Whether a rank has a shard of it."""
        return getattr(self._head, "tp_size", 1) > 1

    @property
    def _maps(self) -> bool:
        """Whether the program scores a part of the tokens."""
        return scores_part(self._plan)

    @property
    def weight(self) -> Tensor:
        """What vLLM multiplies by on this rank: all T[H, W] without the rows that it pads them by, or a shard T[h, W].

        The weights are those of all tokens where a file names a part.
        """
        weight: Tensor = self._head.weight.data
        return weight if self._shared or self._named is not None else weight[: self._entries]

    def tables(self) -> dict[str, Tensor]:
        """By name the weights, and the tokens i64[Vd] of a part; all ranks call this."""
        weight, tokens = self.weight, self._named
        if self._shared:
            weight = of_rank(self._plan, weight, tokens, get_tp_group())
        if tokens is None and self._maps and self._offsets is not None:
            tokens = self._offsets.data.to(torch.int64) + torch.arange(len(self._offsets), device=weight.device)
        return {HEAD: weight} | ({} if tokens is None else {TOKEN_MAP: tokens})

    def states(self, hidden: Tensor, step: int) -> Tensor:
        """The rows T[n, W] that the head of draft number `step` would multiply, of hidden states T[n, W]."""
        return self._reach(hidden, step)[1]

    def _reach(self, hidden: Tensor, step: int) -> tuple[Any, Tensor]:
        """The head that logits of hidden states would be made by, and of what."""
        with self._stopped():
            try:
                self._speculator.compute_draft_logits(hidden, step)
            except _Reached as reached:
                return reached.args[0], reached.args[1]
        raise MisfitError("the logits of the draft are made without a logits processor")

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        """While logits are asked for: the processors tell what they are given, and nothing is multiplied."""
        for processor in self._processors:
            processor.forward = _stop(processor)
        try:
            yield
        finally:
            for processor in self._processors:
                del processor.forward


def _stop(processor: Any) -> Any:
    """In the place of a LogitsProcessor's `forward`."""

    def forward(
        lm_head: Any, hidden_states: Tensor, embedding_bias: Tensor | None = None, skip_gather: bool = False
    ) -> None:
        changes = {
            "a bias": embedding_bias is not None,
            "a scale": processor.scale != 1.0,
            "a cap": processor.soft_cap is not None,
            "another product": processor.logits_as_input or processor.head_dtype not in (None, hidden_states.dtype),
        }
        for what in (what for what, there in changes.items() if there):
            raise MisfitError(f"the logits of the draft have {what}, and the program computes a product")
        raise _Reached(lm_head, hidden_states)

    return forward
