"""The command that starts a server of SGLang's for a target and what drafts for it."""

from __future__ import annotations

from collections.abc import Sequence

from specc.compiler.config.archs import Gpu
from specc.compiler.config.estimate.choice import ProposedShape
from specc.compiler.config.models import ModelFacts
from specc.compiler.config.models.pair import Pair
from specc.compiler.config.proposal import Drafting, nodes_of, steps_of
from specc.compiler.config.wanted import Limits
from specc.engines.sglang.check.command_line import argument, parse
from specc.engines.sglang.check.defaults import shape
from specc.engines.sglang.check.models import architecture_of
from specc.engines.sglang.check.server import started
from specc.engines.sglang.check.speculation import modules_of
from specc.engines.sglang.check.written import forced_dtype, own_dtype
from specc.engines.sglang.served import BACKENDS, KindOfDraft, kind_of
from specc.runtime.plan.shape import Shape


def command(pair: Pair, chosen: Drafting, topk: int | None, num_steps: int | None) -> list[str]:
    """Return its words; SGLang chooses the shape where neither ``topk`` nor ``num_steps`` is given, and it has one."""
    words, kind = _unshaped(pair, chosen), _kind(chosen)
    written = kind.has_steps and shape(chosen.algorithm, architecture_of(pair.target.said.values)) is None
    if topk is None and num_steps is None and not (written or kind.each_step):
        return words
    kept, steps = topk or 1, steps_of(chosen, num_steps)[0]
    return words + kind.arguments(steps, kept, nodes_of(chosen, kept, steps))


def _unshaped(pair: Pair, chosen: Drafting) -> list[str]:
    """Return the words of the command that say nothing of the shape."""
    kind = _kind(chosen)
    words = ["sglang", "serve", "--model-path", pair.target.written]
    words += ["--speculative-algorithm", kind.written or chosen.algorithm]
    if kind.setting[0] and not kind.of_target(architecture_of(pair.target.said.values)):
        words.append(argument(kind.setting[0]))
    brought = modules_of(pair.target.said) is not None
    if chosen.draft is not None and not (chosen.draft is pair.target and brought):
        words += ["--speculative-draft-model-path", chosen.draft.written]
        words += _dtype(pair.target.said, chosen)
    return words


def command_of(pair: Pair, chosen: Drafting, shapes: Sequence[ProposedShape], gpu: Gpu) -> list[str]:
    """Return the words for a program of these shapes: the server's own is the largest of them in every size.

    A server takes another attention backend for a tree that is written. The one that it has otherwise is kept where it
    has trees.
    """
    largest = Shape(*map(max, zip(*(proposed.shape for proposed in shapes), strict=True)))
    words = _unshaped(pair, chosen) + _kind(chosen).arguments(*largest[:3])
    usual = started(parse(command(pair, chosen, None, None)), gpu).facts.attention["verify"]
    keeps = largest.is_tree and usual in BACKENDS and BACKENDS[usual].mask is not None
    return [*words, "--attention-backend", usual] if keeps else words


def limits(pair: Pair, chosen: Drafting, gpu: Gpu) -> Limits:
    """Return what a server on this GPU can have. DiagnosticError for one that has no program at all."""
    chains, trees = (parse(command(pair, chosen, topk, None)) for topk in (1, 2))
    server, _ = started(chains, gpu), started(trees, gpu)
    return Limits(server.buckets, not trees.findings.errors, not server.facts.single)


def _kind(chosen: Drafting) -> KindOfDraft:
    """Return how SGLang drafts with an algorithm that it serves."""
    kind = kind_of(chosen.algorithm)
    assert kind is not None
    return kind


def _dtype(target: ModelFacts, chosen: Drafting) -> list[str]:
    """Return the argument without which a head would run in another element type than its target, if it would."""
    draft, (wanted, _) = chosen.draft, own_dtype(target)
    if draft is None or _kind(chosen).own_dtype or own_dtype(draft.said)[0] == wanted:
        return []
    if forced_dtype(target) is not None:
        return []
    return ["--dtype", wanted]
