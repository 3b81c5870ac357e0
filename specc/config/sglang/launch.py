"""The command that starts a server of SGLang's for a target and what drafts for it."""

from __future__ import annotations

from specc.config.models import ModelFacts
from specc.config.models.pair import Pair
from specc.config.proposal import Drafting, nodes_of, steps_of
from specc.config.sglang.written import own_dtype


def command(pair: Pair, chosen: Drafting, topk: int | None, num_steps: int | None) -> list[str]:
    """Return its words; SGLang chooses the shape where neither ``topk`` nor ``num_steps`` is given."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", pair.target.written]
    words += ["--speculative-algorithm", chosen.algorithm]
    if chosen.draft is not None and chosen.draft is not pair.target:
        words += ["--speculative-draft-model-path", chosen.draft.written]
        words += _dtype(pair.target.said, chosen)
    if topk is None and num_steps is None:
        return words
    kept, steps = topk or 1, steps_of(chosen, num_steps)[0]
    shape = {"num-steps": steps, "eagle-topk": kept, "num-draft-tokens": nodes_of(chosen, kept, steps)}
    return words + [word for name, value in shape.items() for word in (f"--speculative-{name}", str(value))]


def _dtype(target: ModelFacts, chosen: Drafting) -> list[str]:
    """Return the argument without which a head would run in another element type than its target, if it would."""
    draft, (wanted, _) = chosen.draft, own_dtype(target)
    if draft is None or chosen.algorithm == "STANDALONE" or own_dtype(draft.said)[0] == wanted:
        return []
    return ["--dtype", wanted]
