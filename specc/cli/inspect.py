"""`specc inspect`: what a compiled program is, without loading it."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specc.cli import completion
from specc.cli.reporting import Format, printing, reporting
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.archives import UNREADABLE, open_archive
from specc.compiler.support.render import printable
from specc.runtime.errors import DamagedWheelError, PlanError
from specc.runtime.plan.files.manifest import MANIFEST, Manifest, cuda_release, for_inspection, read_packaged
from specc.runtime.plan.files.plan_json import load_plans
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape

if TYPE_CHECKING:
    from rich.console import Console

CONFIG = "config.yaml"
"""The configuration as written, in the package."""


ProgramArgument = Annotated[
    str,
    typer.Argument(
        metavar="PROGRAM", help="A .whl file or an installed package.", autocompletion=completion.program,
        show_default=False,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A program whose files have the digests that it says.

    ``root`` is the folder of its package, which may be inside a wheel; ``sizes`` are of files in bytes; ``plans`` are
    by shape, the deepest first.
    """

    root: Traversable
    manifest: Manifest
    sizes: Mapping[str, int]
    plans: Mapping[Shape, Plan]


def inspect(
    program: ProgramArgument,
    format: Annotated[Format, typer.Option(help="How it is printed.")] = Format.text,
) -> None:
    """Show what a program is, after comparing its files' digests: versions, models, carry, launches, configuration."""
    with reporting(format):
        from specc.compiler.config.load import MAX_BYTES

        with opened(program) as shown:
            plans = shown.plans
            facts = _facts(shown, read_packaged(shown.root, CONFIG, MAX_BYTES))
        if format is Format.json:
            typer.echo(json.dumps(facts, indent=2))
            return
        with printing() as console:
            _print(console, facts, plans)


@contextmanager
def opened(program: str) -> Iterator[Opened]:
    """A program for the length of the block, after comparing the digests of its files; nothing of it is run.

    Raises:
        DiagnosticError: ``run/wheel-missing``, or ``run/wheel-unusable``, also for damage that the block meets.
    """
    with program_root(program) as root, undamaged(program):
        manifest = Manifest.read(root)
        sizes = manifest.verify(root)
        yield Opened(root, manifest, sizes, load_plans(root, manifest))


@contextmanager
def program_root(program: str) -> Iterator[Traversable]:
    """The folder of a program's package, which may be inside a wheel that is open for the length of the block.

    Raises:
        DiagnosticError: ``run/wheel-missing``.
    """
    with ExitStack() as opened:
        yield _root(program, opened)


def _root(program: str, opened: ExitStack) -> Traversable:
    """As `program_root`; what has to be closed is entered into ``opened``."""
    try:
        if program.endswith(".whl"):
            inside = zipfile.Path(opened.enter_context(open_archive(Path(program))))
            folders = [
                folder for folder in inside.iterdir() if folder.is_dir() and not folder.name.endswith(".dist-info")
            ]
            if len(folders) == 1 and folders[0].joinpath(MANIFEST).exists():
                return folders[0]
        elif "." not in program and (spec := find_spec(program)) is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations)))
            if (folder / MANIFEST).exists():
                return folder
        message = f"'{program}' is no program that specc compiled, or not installed"
    except (*UNREADABLE, ImportError) as error:
        message = f"cannot read '{program}': {error}"
    hint = "give the path of a .whl file, or the name of an installed package (specc_program_...)"
    raise DiagnosticError(Diagnostic("run/wheel-missing", message, hint=hint))


@contextmanager
def undamaged(program: str) -> Iterator[None]:
    """Raise DiagnosticError ``run/wheel-unusable`` where files of a program turn out to be damaged inside."""
    try:
        yield
    except (DamagedWheelError, PlanError) as error:
        raise DiagnosticError(Diagnostic("run/wheel-unusable", f"'{program}' is damaged: {error}")) from error


def _facts(program: Opened, text: str) -> dict[str, Any]:
    """What is shown, by its name; ``text`` is the configuration."""
    from specc.compiler.driver.summary import written_totals
    from specc.compiler.explain.program import rows

    manifest, sizes, plans = program.manifest, program.sizes, program.plans
    plan = next(iter(plans.values()))
    code = Counter[str]()
    for artifact in manifest.artifacts:
        code[artifact.arch] += sizes[artifact.file]
    carry = [{"name": row.name, "dtype": row.dtype, "elements": row.width, "bytes": row.bytes} for row in rows(plan)]
    return {
        "name": manifest.name,
        "version": manifest.version,
        "digest": manifest.digest,
        "package": program.root.name,
        "engine": manifest.engine,
        "algorithm": plan.algorithm,
        "shapes": [str(shape) for shape in sorted(plans)],
        "verified_tokens": plan.size("N"),
        "page_size": plan.kv.page_size,
        "buckets": sorted({bucket for shape_plan in plans.values() for bucket in shape_plan.buckets}),
        "archs": list(manifest.archs),
        "for_inspection": [arch for arch in manifest.archs if for_inspection(arch)],
        "kernels": len(plan.kernels),
        "machine_code": len(manifest.artifacts),
        "machine_code_bytes": dict(sorted(code.items())),
        "arena_bytes": max(shape_plan.memory.arena for shape_plan in plans.values()),
        "carry_bytes": sum(row.bytes for row in rows(plan)),
        "specc": manifest.specc,
        "triton": manifest.triton,
        "assembler": {arch: f"ptxas {assembler.version}" for arch, assembler in manifest.assemblers.items()},
        "cuda_driver": {arch: f">={cuda_release(assembler.driver)}" for arch, assembler in manifest.assemblers.items()},
        "torch": f">={manifest.torch}",
        "files": len(manifest.files),
        "models": {role: asdict(model) for role, model in plan.models.items()},
        "carry": carry,
        "totals": {str(shape): written_totals(shape_plan.totals) for shape, shape_plan in plans.items()},
        "configuration": text,
    }


def _print(console: Console, facts: Mapping[str, Any], plans: Mapping[Shape, Plan]) -> None:
    """Print everything as text: single facts, then tables, then the configuration without its comments."""
    from rich.text import Text

    from specc.compiler.driver.summary import plain_table, totals_table

    single = {key: value for key, value in facts.items() if key not in ("models", "carry", "totals", "configuration")}
    width = max(map(len, single))
    for key, value in single.items():
        console.out(f"{key.replace('_', ' '):{width}}  {printable(_spell(value))}", highlight=False)
    console.print(Text("\nmodels", "bold"), plain_table(_by_key(facts["models"])), sep="\n")
    console.print(Text("\ncarried by a request, from step to step", "bold"), plain_table(facts["carry"]), sep="\n")
    for shape, plan in plans.items():
        console.print(Text(f"\nshape {shape}" if len(plans) > 1 else "", "bold"), totals_table(plan.totals), sep="\n")
    console.print(Text("\nconfiguration", "bold"))
    for line in facts["configuration"].splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            console.out(printable(line), highlight=False)


def _by_key(models: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for every size of the models, with a column for each of them, the target first."""
    roles = sorted(models, reverse=True)
    return [
        {"": key.replace("_", " "), **{role: models[role][key] for role in roles}}
        for key in (models[roles[0]] if roles else ())
        if any(models[role][key] for role in roles)
    ]


def _spell(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_spell(item)}" for key, item in value.items()) or "none"
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value is None else str(value)
