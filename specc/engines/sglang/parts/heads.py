"""The head of a draft's vocabulary, which a program computes: forwards of the draft hand over what it reads.

SGLang's logits processor multiplies rows by a model's head. While the draft's forward of a program runs, the rows are
what it gives instead; its own forwards have the processor as SGLang has made it. A draft that fills in blocks has the
head of the target, and its processor, or it multiplies by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from sglang.srt.layers.logits_processor import LogitsProcessor
from torch import Tensor

from ..._heads import HEAD, TOKEN_MAP, digest, named_tokens, of_rank, scores_part, unnamed_tokens
from ..kinds.block_drafts import selector_of

GETS, ITSELF = "_get_logits", "compute_base_logits"
"""The method of a logits processor that multiplies, and that of a draft which does so by itself."""


class Head:
    """The head of a draft, of a program that computes it; of another one nothing.

    Args:
        package: the program's.
        plan: the program's.
        runners: the model runners by role; without a draft's where no model drafts.
        scored: the tokens that SGLang's own head scores, as `scored_tokens`.
        group: the `GroupCoordinator` of tensor parallelism.

    ServerError where a file that names a part of the tokens cannot be read.
    """

    def __init__(self, package: Any, plan: Any, runners: Mapping[str, Any], scored: Tensor | None, group: Any) -> None:
        """Find what multiplies."""
        self._computed, self._runner = bool(plan.computes_head), runners.get("draft")
        head, self._processors = scoring(runners) if self._computed else (None, [])
        self._head: Any = head
        self._plan, self._group = plan, group
        self._named = named_tokens(package) if is_named(plan, scored) else None

    def __bool__(self) -> bool:
        """Whether the program computes it."""
        return self._computed

    @property
    def weight(self) -> Tensor:
        """What SGLang multiplies by: T[H, W] without the rows that it pads them by, or a rank's shard T[h, W]."""
        weight: Tensor = self._head.weight.data
        return weight[: _entries(self._plan, named=self._named is not None)] if _ranks(self._head) == 1 else weight

    def tables(self) -> dict[str, Tensor]:
        """By name the weights, and the tokens i64[Vd] that a file names; all ranks call this."""
        if not self:
            return {}
        weight, shared = self.weight, _ranks(self._head) > 1
        tokens = None if self._named is None else self._named.to(weight.device)
        table = of_rank(self._plan, weight, tokens, self._group) if shared else weight
        return {HEAD: table} | ({} if tokens is None else {TOKEN_MAP: tokens})

    @contextlib.contextmanager
    def left_out(self, runner: Any) -> Iterator[bool]:
        """While a forward of a program runs: whether it is the draft's, whose rows stand for their logits then."""
        left_out = self._computed and runner is self._runner
        processors = self._processors if left_out else []
        for processor in processors:
            setattr(processor, GETS, _rows)
        try:
            yield left_out
        finally:
            for processor in processors:
                delattr(processor, GETS)


def is_named(plan: Any, scored: Tensor | None) -> bool:
    """Whether a file says which tokens the program's draft scores: SGLang's own scores all."""
    return scored is None and scores_part(plan)


def listed(package: Any, plan: Any, scored: Tensor | None) -> str | None:
    """The digest of the tokens of that file; None where there is none. ServerError as `Head`."""
    return digest(named_tokens(package)) if is_named(plan, scored) else None


def misfits(plan: Any, runners: Mapping[str, Any], scored: Tensor | None, ranks: int) -> Iterator[str]:
    """What is in the way of a program that computes the head of its draft, on as many ranks as it is for.

    `runners` are model runners by role, `scored` are the tokens of SGLang's own head, as `scored_tokens`.
    """
    if not plan.computes_head or plan.ranks != ranks:
        return
    named = is_named(plan, scored)
    if named and (unnamed := unnamed_tokens()) is not None:
        yield unnamed
    runner = runners["draft"]
    if getattr(runner.model, "use_ordered_embeddings", False):
        yield "the draft scores the tokens of some centroids alone, and the program computes a product"
        return
    head, processors = scoring(runners)
    weight, multipliers = getattr(head, "weight", None), len(processors) + hasattr(runner.model, ITSELF)
    if multipliers != 1 or not isinstance(weight, Tensor) or hasattr(head, "set_lora"):
        yield "the draft has no head that one logits processor multiplies by"
        return
    if _ranks(head) not in (1, ranks) or (_ranks(head) > 1 and head.num_added_embeddings):
        yield "the head of the draft is not a part of the vocabulary on each rank"
        return
    entries, width = _entries(plan, named=named), int(plan.tables()[HEAD].axes[-1])
    length = len(weight) * _ranks(head)
    if weight.dtype != runner.dtype or tuple(weight.shape[1:]) != (width,) or length < entries:
        kept = f"{weight.dtype}{[length, *weight.shape[1:]]}"
        yield f"the head of the draft is kept as {kept}, the program reads {runner.dtype}[{entries}, {width}]"
    own = None if selector_of(runner.model) is None else runner.model.draft_config
    changes = {
        "a bias": getattr(head, "bias", None) is not None,
        "a scale": any(processor.logit_scale not in (None, 1.0) for processor in processors)
        or (own is not None and own.output_multiplier != 1),
        "a cap": any(processor.final_logit_softcapping for processor in processors)
        or (own is not None and bool(own.final_logit_softcapping)),
    }
    for what in (what for what, there in changes.items() if there):
        yield f"the logits of the draft have {what}, and the program computes a product"


def _entries(plan: Any, *, named: bool) -> int:
    """How many entries of SGLang's head a program reads, or has a part of by a file."""
    return int(plan.size("V" if named else "Vd"))


def _ranks(head: Any) -> int:
    """How many ranks have a shard of a head each; 1 where each has all of it."""
    return int(getattr(head, "tp_size", 1))


def scoring(runners: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """What scores the rows of a draft: a head, and the logits processors that multiply; none where the draft does.

    A draft with a selector has the target's head in its own place, once SGLang has scored by it.
    """
    draft = runners["draft"]
    scores = hasattr(draft.model, "lm_head") and selector_of(draft.model) is None
    scored = draft if scores else runners["target"]
    return getattr(scored.model, "lm_head", None), processors_of(scored)


def processors_of(runner: Any) -> list[Any]:
    """The logits processors of a model."""
    return [module for module in runner.model.modules() if isinstance(module, LogitsProcessor)]


def _rows(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
    """In the place of `LogitsProcessor._get_logits`: what it would multiply."""
    return hidden_states
