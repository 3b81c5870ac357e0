"""A file as it is written -> `Config`, in stages: each takes what earlier ones settled, and yields what it finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from specc.compiler.config.archs import ARCHS, NATIVE, NoGpuError, with_native
from specc.compiler.config.models import ModelFacts
from specc.compiler.config.resolution.engine import for_engine, in_engine
from specc.compiler.config.resolution.facts import read_models
from specc.compiler.config.resolution.models import settle_models
from specc.compiler.config.resolution.reduced import check_map
from specc.compiler.config.resolution.sharded import check_shards, share_out
from specc.compiler.config.resolution.step_form import check_step
from specc.compiler.config.resolution.tuning import read_tuning
from specc.compiler.config.resolved import Config
from specc.compiler.config.rules.legality import check_file, check_models
from specc.compiler.config.rules.needs import Chosen, Needs
from specc.compiler.config.rules.shapes import settled_shapes
from specc.compiler.config.rules.validate import validate_options
from specc.compiler.config.rules.written_file import Written
from specc.compiler.config.schema import SAMPLING
from specc.compiler.support.diagnostics import Diagnostic, Diagnostics, Findings
from specc.compiler.support.suggest import did_you_mean


@dataclass(frozen=True)
class Resolved:
    """A complete configuration, and what the model directories of ``target`` and ``draft`` say, if they have one."""

    config: Config
    facts: Mapping[str, ModelFacts]


def resolve(
    written: Written, algorithms: Sequence[str], needs: Callable[[str], Needs], findings: Diagnostics
) -> Resolved | None:
    """Check every rule and return the complete configuration, or None if anything was wrong.

    ``algorithms`` are the known names; ``needs`` says what the chosen one asks for.
    """
    run = findings.collect
    chosen = run(_choose(written, algorithms, needs))
    facts = in_engine(written, chosen.needs, run(read_models(written, chosen.needs)))
    written = run(for_engine(written, chosen, facts))
    run(check_file(written, chosen))
    run(check_step(written, chosen.needs))
    run(check_shards(written))
    options = run(validate_options(chosen.needs.options, written)) if chosen.name is not None else None
    archs = run(_archs(written))
    models = run(settle_models(written, chosen.needs, facts))
    run(check_models(written, models))
    run(check_map(written, models))
    models = run(share_out(written, models))
    tuning = run(read_tuning(written, chosen.needs))
    if findings.errors or chosen.name is None or models.target is None or options is None:
        return None
    file, shapes = written.file, settled_shapes(written.file, chosen.needs)
    config = Config(
        file=file,
        name=file.name or "",
        algorithm=chosen.name,
        shape=max(shapes),
        buckets_of=shapes,
        max_requests=file.max_requests or file.buckets[-1],
        sampling=tuple(name for name in SAMPLING if name in file.sampling),
        archs=archs,
        target=models.target,
        draft=models.draft,
        options=options,
        tuning=tuning,
    )
    return Resolved(config, {**facts.present})


def _choose(written: Written, algorithms: Sequence[str], needs: Callable[[str], Needs]) -> Findings[Chosen]:
    """Return the algorithm of the name that is written, in any case."""
    name = written.file.algorithm
    known = next((known for known in algorithms if name is not None and known.lower() == name.lower()), None)
    if name is not None and known is None:
        message, at = f"unknown algorithm '{name[:60]}'", written.places.value("algorithm")
        yield Diagnostic("config/unknown-algorithm", message, at, did_you_mean(name, algorithms))
    return Chosen(known, needs(known) if known is not None else Needs())


def _archs(written: Written) -> Findings[tuple[str, ...]]:
    """Return the architectures, with those of this machine for ``native``; none after reporting that it has no GPU."""
    try:
        return with_native(written.file.archs)
    except NoGpuError as error:
        at = written.places.value("archs", written.file.archs.index(NATIVE))
        message = f"'{NATIVE}' stands for the GPUs of this machine: {error}"
        yield Diagnostic("config/no-gpu", message, at, f"write names: {', '.join(ARCHS)}")
        return ()
