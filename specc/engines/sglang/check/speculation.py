"""How SGLang 0.5.23 drafts by its arguments: which algorithm, with which draft, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specc.compiler.config.models import Fact, ModelFacts, read_model
from specc.compiler.config.models.drafting import of_bundled
from specc.engines.answers import OwnModules
from specc.engines.sglang.check.adaptive import candidates_of, left_off
from specc.engines.sglang.check.command_line import ADAPTIVE, ANSWERS, Arguments, argument
from specc.engines.sglang.check.defaults import shape
from specc.engines.sglang.check.models import (
    algorithms_of,
    architecture_of,
    as_draft,
    draft_in,
    marked,
    too_wide,
    unread_draft,
    unstarted,
)
from specc.engines.sglang.served import KINDS, NODES, STEPS, TOPK, KindOfDraft, kind_of

Model = tuple[Path, ModelFacts]
"""A directory, and what it says."""
Sizes = tuple[Fact, Fact, Fact]
"""Steps, topk and nodes."""
ALGORITHMS = tuple(name for kind in KINDS if not kind.written for name in kind.names)
"""Those that programs serve, by the names of the command line."""
INSTEAD = "EAGLE"
"""The algorithm of which SGLang makes another by its draft."""


@dataclass(frozen=True)
class DraftSource:
    """How a server drafts.

    Attributes:
        algorithm: by the program's name.
        kind: that of the algorithm; None of one that is not served.
        draft: the draft; None where no model drafts, and where none is given.
        origin: where the draft's directory comes from.
        sizes: None where they cannot be said.
        candidates: numbers of steps among which SGLang changes, of which `sizes` has the most; none where it does not.
        left_off: beside what it does not though it is asked to, in words.

    """

    algorithm: str
    kind: KindOfDraft | None
    draft: Model | None
    origin: str
    sizes: Sizes | None
    candidates: tuple[int, ...] = ()
    left_off: str = ""

    @property
    def lacks(self) -> bool:
        """Whether a model drafts, and there is none."""
        return self.draft is None and not (self.kind is not None and self.kind.model_less)

    @property
    def topk(self) -> int:
        """Drafts kept per step; 1 where they cannot be said."""
        return 1 if self.sizes is None else int(self.sizes[1].value)

    def roles(self, attention: Mapping[str, Fact]) -> dict[str, Fact]:
        """Return the attention backends of forwards that a step has: the first draft may be that of extend."""
        of_kind = attention if self.kind is None else self.kind.roles
        single = self.sizes is not None and self.sizes[0].value == 1 and "extend" in of_kind
        return {role: fact for role, fact in attention.items() if role in of_kind and not (single and role == "draft")}


def draft_source(arguments: Arguments, algorithm: str, target: Model | None) -> DraftSource:
    """Return how a server with this algorithm of SGLang's drafts; what is missing or not served is reported."""
    kind = _by_target(arguments, algorithm, target)
    algorithm, kind = (algorithm, kind_of(algorithm)) if kind is None else (kind.algorithms[0], kind)
    if kind is None:  # which was reported
        return DraftSource(algorithm, None, None, "", None)
    written = arguments.text("--speculative-algorithm", algorithm).upper()  # NEXTN, too, as which EAGLE is written
    if target is not None and (alone := unstarted(target[1].values, written)) is not None:
        arguments.refuse(alone, f"write {' or '.join(algorithms_of(target[1].values))}: the target brings what drafts")
    if kind.model_less:
        sizes = _sizes(arguments, algorithm, kind, None, target)
        return DraftSource(algorithm, kind, None, f"none, {kind.model_less} in texts", sizes)
    path, origin = _draft(arguments, kind, target)
    unknown = target is None and not path and arguments.text("--model-path")  # the target, which may bring modules
    draft = _bundled(None if unknown else arguments.model("--speculative-draft-model-path", path, read_model), kind)
    algorithm, kind = _by_draft(arguments, algorithm, kind, draft)
    _check_class(arguments, algorithm, draft)
    candidates = candidates_of(arguments, kind)
    sizes = _most(candidates) if candidates else _sizes(arguments, algorithm, kind, draft, target)
    nodes = 0 if sizes is None else int(sizes[2].value)
    if target is not None and (wide := too_wide(target[1].values, nodes)) is not None:
        arguments.refuse(wide, f"write a smaller {STEPS}, and {NODES} as many and one, or leave that out")
    return DraftSource(algorithm, kind, draft, origin, sizes, candidates, left_off(arguments, kind))


def algorithm_of(arguments: Arguments) -> str:
    """Return the algorithm's name, after reporting one that is not written, unknown or not served."""
    if not arguments.text("--speculative-algorithm"):
        arguments.wrong("--speculative-algorithm is missing", f"there are {', '.join(ALGORITHMS)}")
    written = arguments.text("--speculative-algorithm", ALGORITHMS[0]).upper()
    algorithm = "EAGLE" if written == "NEXTN" else written
    if algorithm not in ALGORITHMS:
        hint = f"there are {', '.join(ALGORITHMS)}"
        if algorithm in ANSWERS.algorithms:
            arguments.refuse(f"--speculative-algorithm {algorithm}", hint)
        else:
            arguments.wrong(f"--speculative-algorithm {written[:60]} is none of {arguments.title}'s own", hint)
    return algorithm


def _by_target(arguments: Arguments, algorithm: str, target: Model | None) -> KindOfDraft | None:
    """Return the kind that SGLang takes in the place of an algorithm, for some targets by itself; None of most.

    It does that where the algorithm is written by this name, and not as NEXTN.
    """
    as_it_is = arguments.text("--speculative-algorithm") == algorithm
    architecture = "" if target is None else architecture_of(target[1].values)
    for kind in KINDS:
        asked = bool(kind.setting[0]) and argument(kind.setting[0]) in arguments.values
        if kind.written == algorithm and (asked or (as_it_is and kind.of_target(architecture))):
            return kind
    return None


def _by_draft(arguments: Arguments, algorithm: str, kind: KindOfDraft, draft: Model | None) -> tuple[str, KindOfDraft]:
    """Return the algorithm that runs with a draft, and its kind, after reporting one that does not go with it."""
    if draft is None:
        return algorithm, kind
    of_draft = marked(draft[1].values)
    if of_draft is not None and of_draft.written == algorithm:
        return of_draft.algorithms[0], of_draft
    if of_draft is None or not of_draft.drafts:
        if kind.drafts:
            hint = f"give {kind.called}, or write {INSTEAD} for a head"
            arguments.refuse(f"{algorithm} with the draft '{draft[0]}'", hint)
        return algorithm, kind
    name = of_draft.algorithms[0]
    if algorithm not in (INSTEAD, name):
        arguments.refuse(f"{algorithm} with {of_draft.called}", f"write NEXTN, which SGLang runs as {name}")
    return name, of_draft


def _bundled(draft: Model | None, kind: KindOfDraft) -> Model | None:
    """Return a draft as SGLang reads it, which may be among the weights of its target."""
    if draft is None:
        return None
    path, said = draft
    read = {key: Fact(value, _origin(said, key)) for key, value in as_draft(said.values, kind).items()}
    return path, replace(said, facts={**said.facts, **read})


def _origin(said: ModelFacts, key: str) -> str:
    """Return where it comes from what SGLang reads otherwise of a draft among the weights of its target."""
    fact = of_bundled(said.facts).get(key, said.facts["bundles_blocks"])
    return fact.origin


def _draft(arguments: Arguments, kind: KindOfDraft, target: Model | None) -> tuple[str, str]:
    """Return the draft's directory, and where that comes from; an empty one where SGLang has none by itself."""
    name = "--speculative-draft-model-path"
    if (written := arguments.text(name)) or target is None:
        return written, name
    if as_draft(target[1].values, kind):
        told = target[1].facts["bundles_blocks"].origin
        return arguments.text("--model-path"), f"weights of its own, which SGLang takes for {told} of its config.json"
    if (folder := draft_in(target[0], kind)) is not None:
        return str(folder), f"the folder {folder.name} of the target, which SGLang takes"
    if modules_of(target[1]) is not None and not kind.blocks:
        architecture = architecture_of(target[1].values)
        return arguments.text("--model-path"), f"modules of its own, which SGLang takes for {architecture}"
    return "", name


def modules_of(model: ModelFacts) -> OwnModules | None:
    """Return the modules that SGLang finds in a model's directory, and drafts with; None where it knows of none."""
    return ANSWERS.modules_of(architecture_of(model.values), "")


def _check_class(arguments: Arguments, algorithm: str, draft: Model | None) -> None:
    """Report a draft that SGLang cannot draft with: of a format or a class that it does not have, or no head."""
    if draft is None:
        return
    unread = unread_draft(draft[1].values, algorithm)
    if unread is not None:
        arguments.refuse(unread, "give a head as SGLang's documentation names it, or one that is converted")


def _sizes(
    arguments: Arguments, algorithm: str, kind: KindOfDraft, draft: Model | None, target: Model | None
) -> Sizes | None:
    """Return steps, topk and nodes; None where they cannot be said, as of a draft that is missing."""
    missing = draft is None and not kind.model_less
    said = None if missing else kind.shape(arguments, {} if draft is None else draft[1].facts)
    if said is None:
        return _shape(arguments, algorithm, target) if kind.has_steps else None
    steps, topk, nodes = (Fact(*size) for size in said)
    return steps, topk, nodes


def _most(candidates: Sequence[int]) -> Sizes:
    """Return steps, topk and nodes of the most steps of a server that changes their number, which has memory for it."""
    steps, origin = max(candidates), f"the most of {', '.join(map(str, candidates))}, candidates of {ADAPTIVE}"
    return Fact(steps, origin), Fact(1, origin), Fact(steps + 1, origin)


def _shape(arguments: Arguments, algorithm: str, target: Model | None) -> Sizes | None:
    """Return steps, topk and nodes, or None after reporting which of them are missing."""
    names = [STEPS, TOPK, NODES]
    steps, topk, nodes = map(arguments.number, names)
    if not any(name in arguments.values for name in names):
        architecture = architecture_of(target[1].values) if target is not None else ""
        chosen = shape(algorithm, architecture)
        if chosen is None:
            hint = f"SGLang starts no server of {architecture} without it: write 1, with {STEPS}"
            arguments.wrong(f"{TOPK} is missing", hint)
            return None
        origin = f"SGLang's choice for {architecture or algorithm}, as no argument says it"
        of_steps, of_branches, of_nodes = (Fact(size, origin) for size in chosen)
        return of_steps, of_branches, of_nodes
    needed = names[:2] if topk == 1 else names
    for name in needed:
        if name not in arguments.values:
            arguments.wrong(f"{name} is missing", "write all that is drafted, or leave it all to SGLang")
    if steps is None or topk is None or (topk > 1 and nodes is None):
        return None
    if topk == 1:
        return (
            Fact(steps, names[0]),
            Fact(1, names[1]),
            Fact(steps + 1, "num_steps + 1, as SGLang takes it with topk 1"),
        )
    return Fact(steps, names[0]), Fact(topk, names[1]), Fact(nodes or 0, names[2])
