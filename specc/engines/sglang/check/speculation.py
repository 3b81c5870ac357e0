"""How SGLang 0.5.23 drafts by its arguments: which algorithm, with which draft, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.compiler.config.models import Fact, ModelFacts, read_model
from specc.engines.sglang.check import block_drafts
from specc.engines.sglang.check.command_line import ANSWERS, Arguments
from specc.engines.sglang.check.defaults import shape
from specc.engines.sglang.check.look_ups import form
from specc.engines.sglang.check.models import architecture_of, assists, has_modules, unread_draft
from specc.engines.sglang.check.preset import SGLANG
from specc.engines.sglang.served import BLOCKS, BY_MODULES, LOOKS_UP

Model = tuple[Path, ModelFacts]
"""A directory, and what it says."""
Sizes = tuple[Fact, Fact, Fact]
"""Steps, topk and nodes."""
ALGORITHMS = tuple(name for name in SGLANG.algorithms if name not in BY_MODULES.values())
"""Those that programs serve, by the names of the command line."""
ASSISTED = ("FROZEN_KV_MTP",)
"""Algorithms whose draft reads the target's keys and values. SGLang takes one for EAGLE with an assistant."""


@dataclass(frozen=True)
class DraftSource:
    """How a server drafts.

    Attributes:
        algorithm: by the program's name.
        draft: the draft; None where drafts are looked up, and where none is given.
        origin: where the draft's directory comes from.
        sizes: None where they cannot be said.
        modules: whether the draft has a module for each step.
        own: whether the target's own directory is the draft's.

    """

    algorithm: str
    draft: Model | None
    origin: str
    sizes: Sizes | None
    modules: bool
    own: bool = False

    @property
    def looks_up(self) -> bool:
        """Whether no model drafts."""
        return self.algorithm in LOOKS_UP

    @property
    def blocks(self) -> bool:
        """Whether a model fills in a block of drafts at once."""
        return self.algorithm in BLOCKS

    @property
    def assisted(self) -> bool:
        """Whether the draft reads the target's keys and values."""
        return self.algorithm in ASSISTED

    @property
    def topk(self) -> int:
        """Drafts kept per step; 1 where they cannot be said."""
        return 1 if self.sizes is None else int(self.sizes[1].value)

    def roles(self, attention: Mapping[str, Fact]) -> dict[str, Fact]:
        """Return the attention backends of forwards that a step has."""
        single = self.sizes is not None and self.sizes[0].value == 1 and not (self.blocks or self.assisted)
        absent = {"draft"} if self.looks_up or self.modules or single else set[str]()
        absent |= {"extend"} if self.looks_up or self.assisted or self.blocks else set()
        return {role: fact for role, fact in attention.items() if role not in absent}


def draft_source(arguments: Arguments, algorithm: str, target: Model | None) -> DraftSource:
    """Return how a server with this algorithm of SGLang's drafts; what is missing or not served is reported."""
    modules = _modules(arguments, algorithm, target)
    algorithm = BY_MODULES[algorithm] if modules else algorithm
    if algorithm in LOOKS_UP:
        return DraftSource(algorithm, None, "none, drafts are looked up in texts", form(arguments), modules=False)
    if algorithm not in ALGORITHMS and algorithm not in BY_MODULES.values():  # which was reported
        return DraftSource(algorithm, None, "", None, modules)
    path, origin = _draft(arguments, target)
    unknown = target is None and not path and arguments.text("--model-path")  # the target, which may bring modules
    draft = None if unknown else arguments.model("--speculative-draft-model-path", path, read_model)
    algorithm = _assisted(arguments, algorithm, draft)
    _check_class(arguments, algorithm, draft)
    if algorithm in BLOCKS:
        sizes = None if draft is None else block_drafts.form(arguments, draft[1])
    else:
        sizes = _shape(arguments, algorithm, target)
    own = draft is not None and target is not None and draft[0] == target[0]
    return DraftSource(algorithm, draft, origin, sizes, modules, own)


def algorithm_of(arguments: Arguments) -> str:
    """Return the algorithm's name, after reporting one that is not there or not served."""
    if not arguments.text("--speculative-algorithm"):
        arguments.wrong("--speculative-algorithm is missing", f"there are {', '.join(ALGORITHMS)}")
    written = arguments.text("--speculative-algorithm", ALGORITHMS[0]).upper()
    algorithm = "EAGLE" if written == "NEXTN" else written
    if algorithm not in ALGORITHMS:
        hint = f"there are {', '.join(ALGORITHMS)}"
        arguments.refuse(f"--speculative-algorithm {written[:60]}", hint)
    return algorithm


def _modules(arguments: Arguments, algorithm: str, target: Model | None) -> bool:
    """Return whether the draft has a module for each step, which SGLang takes by itself for some targets.

    It does that where the algorithm is written by this name, and not as NEXTN.
    """
    by_itself = target is not None and has_modules(target[1].values)
    by_itself = by_itself and arguments.text("--speculative-algorithm") == algorithm
    return algorithm in BY_MODULES and (by_itself or "--enable-multi-layer-eagle" in arguments.values)


def _assisted(arguments: Arguments, algorithm: str, draft: Model | None) -> str:
    """Return the algorithm that SGLang runs with a draft, after reporting one that does not go with it."""
    if draft is None or not assists(draft[1].values):
        if draft is not None and algorithm in ASSISTED:
            arguments.refuse(f"{algorithm} with the draft '{draft[0]}'", "give an assistant, or write EAGLE for a head")
        return algorithm
    if algorithm not in ("EAGLE", *ASSISTED):
        arguments.refuse(f"{algorithm} with an assistant", "write NEXTN, which SGLang runs as FROZEN_KV_MTP")
    return ASSISTED[0]


def _draft(arguments: Arguments, target: Model | None) -> tuple[str, str]:
    """Return the draft's directory, and where that comes from; an empty one where SGLang has none by itself."""
    name = "--speculative-draft-model-path"
    if (written := arguments.text(name)) or target is None:
        return written, name
    if brings_modules(target[1]):
        architecture = architecture_of(target[1].values)
        return arguments.text("--model-path"), f"modules of its own, which SGLang takes for {architecture}"
    return "", name


def brings_modules(target: ModelFacts) -> bool:
    """Return whether SGLang drafts with modules of a target's own directory where no draft is written."""
    return ANSWERS.modules_of(architecture_of(target.values), "") is not None


def _check_class(arguments: Arguments, algorithm: str, draft: Model | None) -> None:
    """Report a draft that SGLang cannot draft with: of a format or a class that it does not have, or no head."""
    if draft is None:
        return
    unread = unread_draft(draft[1].values, algorithm)
    if unread is not None:
        arguments.refuse(unread, "give a head as SGLang's documentation names it, or one that is converted")


def _shape(arguments: Arguments, algorithm: str, target: Model | None) -> Sizes | None:
    """Return steps, topk and nodes, or None after reporting which of them are missing."""
    names = [f"--speculative-{key}" for key in ("num-steps", "eagle-topk", "num-draft-tokens")]
    steps, topk, nodes = map(arguments.number, names)
    if not any(name in arguments.values for name in names):
        architecture = architecture_of(target[1].values) if target is not None else ""
        origin = f"SGLang's choice for {architecture or algorithm}, as no argument says it"
        of_steps, of_branches, of_nodes = (Fact(size, origin) for size in shape(algorithm, architecture))
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
