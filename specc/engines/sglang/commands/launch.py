"""The command that starts a server of SGLang's for a target and what drafts for it."""

from __future__ import annotations

from collections.abc import Sequence

from specc.compiler.config.archs import Gpu
from specc.compiler.config.estimate.choice import ProposedShape
from specc.compiler.config.models import ModelFacts
from specc.compiler.config.models.pair import Pair
from specc.compiler.config.proposal import Drafting, nodes_of, steps_of
from specc.compiler.config.wanted import Limits
from specc.engines.sglang.check.command_line import parse
from specc.engines.sglang.check.look_ups import arguments_of
from specc.engines.sglang.check.models import has_modules
from specc.engines.sglang.check.server import started
from specc.engines.sglang.check.speculation import brings_modules
from specc.engines.sglang.check.written import forced_dtype, own_dtype
from specc.engines.sglang.served import BACKENDS, BLOCKS, BY_MODULES, LOOKS_UP
from specc.runtime.plan.shape import Shape

_OF_SGLANG = {algorithm: name for name, algorithm in BY_MODULES.items()}


def command(pair: Pair, chosen: Drafting, topk: int | None, num_steps: int | None) -> list[str]:
    """Return its words; SGLang chooses the shape where neither ``topk`` nor ``num_steps`` is given."""
    words = ["sglang", "serve", "--model-path", pair.target.written]
    words += ["--speculative-algorithm", _OF_SGLANG.get(chosen.algorithm, chosen.algorithm)]
    if chosen.algorithm in _OF_SGLANG and not has_modules(pair.target.said.values):
        words.append("--enable-multi-layer-eagle")
    by_itself = brings_modules(pair.target.said)
    if chosen.draft is not None and not (chosen.draft is pair.target and by_itself):
        words += ["--speculative-draft-model-path", chosen.draft.written]
        words += _dtype(pair.target.said, chosen)
    if topk is None and num_steps is None and chosen.algorithm not in _OF_SGLANG:  # modules say how many there are
        return words
    kept, steps = topk or 1, steps_of(chosen, num_steps)[0]
    return words + _shape(chosen, Shape(steps, kept, nodes_of(chosen, kept, steps)))


def command_of(pair: Pair, chosen: Drafting, shapes: Sequence[ProposedShape], gpu: Gpu) -> list[str]:
    """Return the words for a program of these shapes: the server's own is the largest of them in every size.

    A server takes another attention backend for a tree that is written. The one that it has otherwise is kept where it
    has trees.
    """
    largest = Shape(*map(max, zip(*(shape.shape for shape in shapes), strict=True)))
    words = command(pair, chosen, None, None) + _shape(chosen, largest)
    usual = started(parse(command(pair, chosen, None, None)), gpu).facts.attention["verify"]
    keeps = largest.is_tree and usual in BACKENDS and BACKENDS[usual].mask is not None
    return [*words, "--attention-backend", usual] if keeps else words


def limits(pair: Pair, chosen: Drafting, gpu: Gpu) -> Limits:
    """Return what a server on this GPU can have. DiagnosticError for one that has no program at all."""
    chains, trees = (parse(command(pair, chosen, topk, None)) for topk in (1, 2))
    server, _ = started(chains, gpu), started(trees, gpu)
    return Limits(server.buckets, not trees.findings.errors, not server.facts.single)


def _shape(chosen: Drafting, shape: Shape) -> list[str]:
    """Return the arguments of a shape."""
    return arguments_of(shape, looked_up=chosen.algorithm in LOOKS_UP, blocks=chosen.algorithm in BLOCKS)


def _dtype(target: ModelFacts, chosen: Drafting) -> list[str]:
    """Return the argument without which a head would run in another element type than its target, if it would."""
    draft, (wanted, _) = chosen.draft, own_dtype(target)
    if draft is None or chosen.algorithm == "STANDALONE" or own_dtype(draft.said)[0] == wanted:
        return []
    if forced_dtype(target) is not None:
        return []
    return ["--dtype", wanted]
