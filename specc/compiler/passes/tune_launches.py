"""tune-launches: what a tuning file chose for a launch stands in place of what specc would choose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from specc.compiler.config import LoadedConfig
from specc.compiler.config.chosen import LaunchChoice
from specc.compiler.ir.core import Module
from specc.compiler.ir.declarations import Kernel, Options, Tuned
from specc.compiler.kernels import FAMILIES
from specc.compiler.kernels.writing.family import cluster_of
from specc.compiler.kernels.writing.knobs import Knobs, tuned
from specc.compiler.pass_manager import pass_base
from specc.compiler.pass_manager.options import SIZE, Range
from specc.compiler.pass_manager.pass_base import Context, Pass
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.location import Location
from specc.compiler.support.suggest import did_you_mean

KNOB = Range(1, 65535)
_SPELLED = re.compile(
    r"(?P<launch>[^:]+):(?P<tile>\d*):(?P<warps>\d*):(?P<stages>\d*):(?P<split>(\d+-\d+(/\d+-\d+)*)?)", re.ASCII
)


@dataclass(frozen=True)
class TuneLaunches(Pass):
    """A choice may change no result: whatever is no knob of a launch is refused, and so is a value that it lacks."""

    name = "tune-launches"
    requires = frozenset({"clustered"})
    until = "laid-out"

    choices: str = ""
    """Launches as ``name:tile:warps:stages:bucket-split/...``, ``+`` between them; what is left out stays specc's."""

    def __post_init__(self) -> None:
        """Raise ValueError for what is no such list."""
        _choices(self.choices)

    @classmethod
    def of(cls, loaded: LoadedConfig) -> TuneLaunches:
        """As the tuning file says for this shape."""
        tuning, shape, there = loaded.config.tuning, (None, str(loaded.config.shape)), loaded.config.buckets
        chosen = () if tuning is None else tuning.choices
        return cls("+".join(_spelled(choice, there) for choice in chosen if choice.shape in shape))

    def run(self, module: Module, ctx: Context) -> None:
        """Declare the choices of the launches of this shape."""
        findings: list[Diagnostic] = []
        kernels = {kernel.name: kernel for kernel in module.decls_of(Kernel)}
        for unplaced in _choices(self.choices):
            choice = replace(unplaced, location=_location(unplaced, ctx))
            if choice.launch not in kernels:
                message = f"the program has no launch {choice.launch}"
                hint = did_you_mean(choice.launch, kernels) or f"there are {', '.join(kernels)}"
                findings.append(Diagnostic("tuning/no-launch", message, choice.location, hint))
                continue
            findings += self._declare(module, kernels[choice.launch], choice, ctx)
        if findings:
            raise DiagnosticError(findings)

    def _declare(self, module: Module, kernel: Kernel, choice: LaunchChoice, ctx: Context) -> list[Diagnostic]:
        """Add the declaration of one choice; what is impossible about it."""
        buckets = module.decl(Options).buckets
        if unknown := sorted(choice.split.keys() - set(buckets)):
            listed = ", ".join(map(str, buckets))
            message = f"{kernel.name}: the program has no bucket of {unknown[0]}; there are {listed}"
            return [Diagnostic("tuning/no-choice", message, choice.location)]
        splits = tuple(choice.split.get(bucket, 0) for bucket in buckets) if choice.split else ()
        before = spell_choices(module, kernel)
        chosen = Tuned(kernel.name, choice.tile or 0, choice.warps or 0, choice.stages or 0, splits)
        wrong = impossible(module, kernel, replace(chosen, splits=()))
        if not wrong:
            module.decls.append(chosen)
            wrong = impossible(module, kernel, chosen)
            now = spell_choices(module, kernel)
            own = pass_base.Rejected(before, "specc's own, which was slower where it was measured")
            decision = pass_base.Choice(kernel.name, now, "the tuning file has it", (own,))
            message = f"{decision.of}: tuned: {decision.chosen} instead of {own.what}"
            self.remark(ctx, message, choice.location, decision)
        return [Diagnostic("tuning/no-choice", f"{kernel.name}: {why}", choice.location) for why in wrong]


def _spelled(choice: LaunchChoice, buckets: Sequence[int]) -> str:
    """A choice for a shape with these buckets; it may be of others, too, with more of them."""
    split = "/".join(f"{bucket}-{programs}" for bucket, programs in choice.split.items() if bucket in buckets)
    compiled = ":".join(str(knob or "") for knob in (choice.tile, choice.warps, choice.stages))
    return f"{quote(choice.launch, safe='')}:{compiled}:{split}"


def _choices(text: str) -> list[LaunchChoice]:
    """The choices that are spelled; ValueError for text of another form."""
    choices: dict[str, LaunchChoice] = {}
    for word in filter(None, text.split("+")):
        if (match := _SPELLED.fullmatch(word)) is None or (launch := unquote(match["launch"])) in choices:
            raise ValueError(f"no choice for a launch, or another one: {word!r:.60}")
        tile, warps, stages = (KNOB.number(match[n]) if match[n] else None for n in ("tile", "warps", "stages"))
        programs: dict[int, int] = {}
        for share in filter(None, match["split"].split("/")):
            bucket, _, count = share.partition("-")
            if (number := SIZE.number(bucket)) in programs:
                raise ValueError(f"the bucket {bucket} of {launch!r:.60} is there twice")
            programs[number] = KNOB.number(count)
        choices[launch] = LaunchChoice(launch, None, tile, warps, stages, programs)
    return [*choices.values()]


def _location(choice: LaunchChoice, ctx: Context) -> Location | None:
    """Where the tuning file of the configuration has it."""
    config = ctx.loaded.config if ctx.loaded is not None else None
    written = config.tuning.of(choice.launch, config.shape) if config is not None and config.tuning else None
    return written.location if written is not None else None


def impossible(module: Module, kernel: Kernel, chosen: Tuned) -> list[str]:
    """What of a choice the kernel does not have, or not with its tiles."""
    knobs = FAMILIES[kernel.family].knobs(module, cluster_of(module, kernel.name))
    reasons: list[str] = []
    for word, value, known in _compiled(chosen, knobs):
        if value and value not in known:
            none = "it multiplies no matrices" if word == "stages" else "its results would depend on it"
            listed = f"it is one of {', '.join(map(str, known))}" if known else none
            reasons.append(f"{word} {value} cannot be chosen: {listed}")
    most = max(chosen.splits, default=0)
    if most > knobs.split:
        limit = f"at most {knobs.split} programs share" if knobs.split else "its results, or its work, allow no other"
        reasons.append(f"split {most} cannot be chosen: {limit}")
    return reasons


def _compiled(chosen: Tuned, knobs: Knobs) -> Iterator[tuple[str, int, tuple[int, ...]]]:
    """Each choice that a kernel is compiled with: its name, what was chosen, and what may be."""
    yield "tile", chosen.tile, knobs.tiles
    yield "warps", chosen.warps, knobs.warps
    yield "stages", chosen.stages, knobs.stages


def wrongly_tuned(module: Module) -> list[str]:
    """What of the choices that a module declares no kernel of it has."""
    kernels = {kernel.name: kernel for kernel in module.decls_of(Kernel)}
    bad = [f"{entry.name} is tuned, and no kernel" for entry in module.decls_of(Tuned) if entry.name not in kernels]
    known = [entry for entry in module.decls_of(Tuned) if entry.name in kernels]
    count = len(module.decl(Options).buckets) if known else 0
    bad += [
        f"{choice.name} has a split for {len(choice.splits)} buckets"
        for choice in known
        if len(choice.splits) not in (0, count)
    ]
    return bad or [
        f"{choice.name}: {why}" for choice in known for why in impossible(module, kernels[choice.name], choice)
    ]


def spell_choices(module: Module, kernel: Kernel) -> str:
    """The tile, warps, stages and split that a kernel has, in words."""
    family, cluster = FAMILIES[kernel.family], cluster_of(module, kernel.name)
    knobs, spec = family.knobs(module, cluster), family.spec(module, kernel.name, cluster)
    chosen = tuned(module, cluster[0])
    words = [f"tile {dict(spec.constants)[knobs.constant]}"] if knobs.tiles else []
    warps = chosen.warps if chosen is not None and chosen.warps else spec.num_warps
    words += [f"{warps} warp{'s' * (warps > 1)}"] if knobs.warps else []
    stages = chosen.stages if chosen is not None and chosen.stages else spec.num_stages
    words += [f"{stages} stage{'s' * (stages > 1)}"] if knobs.stages else []
    if knobs.split:
        buckets = module.decl(Options).buckets
        splits = {bucket: knobs.split_of(family.grid(module, cluster, bucket)) for bucket in buckets}
        words.append(f"split {', '.join(f'{split} at {bucket}' for bucket, split in splits.items())}")
    return ", ".join(words) or "nothing to choose"
