"""`specc inspect`: what a compiled program is, without loading it."""

from __future__ import annotations

import json
import zipfile
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from specc.cli.reporting import Format, reporting
from specc.runtime.errors import DamagedWheelError, PlanError
from specc.runtime.plan.manifest import MANIFEST, Manifest, for_inspection
from specc.runtime.plan.plan_json import load_plan
from specc.support.archives import UNREADABLE
from specc.support.diagnostics import Diagnostic, DiagnosticError


def inspect(
    program: Annotated[str, typer.Argument(metavar="WHEEL_OR_PACKAGE", help="A .whl file or installed package.")],
    format: Annotated[Format, typer.Option(help="How it is printed.")] = Format.text,
) -> None:
    """Show name, version, digest, architectures and compilers of a program, after comparing its files' digests."""
    with reporting(format):
        try:
            found = _facts(_root(program))
        except (DamagedWheelError, PlanError) as error:
            raise DiagnosticError(Diagnostic("run/wheel-unusable", f"'{program}' is damaged: {error}")) from error
        if format is Format.json:
            typer.echo(json.dumps(found, indent=2))
            return
        width = max(map(len, found))
        for key, value in found.items():
            typer.echo(f"{key.replace('_', ' '):{width}}  {_spell(value)}")


def _root(program: str) -> Traversable:
    """The folder of the package, which may be inside a wheel."""
    try:
        if program.endswith(".whl"):
            inside = zipfile.Path(zipfile.ZipFile(program))
            folders = [
                folder for folder in inside.iterdir() if folder.is_dir() and not folder.name.endswith(".dist-info")
            ]
            if len(folders) == 1 and folders[0].joinpath(MANIFEST).exists():
                return folders[0]
        elif (spec := find_spec(program)) is not None and spec.submodule_search_locations:
            folder = Path(next(iter(spec.submodule_search_locations)))
            if (folder / MANIFEST).exists():
                return folder
        message = f"'{program}' is no program that specc compiled, or not installed"
    except (*UNREADABLE, ImportError) as error:
        message = f"cannot read '{program}': {error}"
    hint = "give the path of a .whl file, or the name of an installed package (specc_program_...)"
    raise DiagnosticError(Diagnostic("run/wheel-missing", message, hint=hint))


def _facts(root: Traversable) -> dict[str, Any]:
    """What is shown, by its name; DamagedWheelError or PlanError."""
    manifest = Manifest.read(root)
    manifest.verify(root)
    plan = load_plan(root)
    return {
        "name": manifest.name,
        "version": manifest.version,
        "digest": manifest.digest,
        "package": root.name,
        "engine": manifest.engine,
        "algorithm": plan.algorithm,
        "num_steps": sorted(manifest.plans),
        "verified_tokens": plan.size("N"),
        "page_size": plan.kv.page_size,
        "buckets": list(plan.buckets),
        "archs": list(manifest.archs),
        "for_inspection": [arch for arch in manifest.archs if for_inspection(arch)],
        "kernels": len(plan.kernels),
        "machine_code": len(manifest.artifacts),
        "specc": manifest.specc,
        "triton": manifest.triton,
        "torch": f">={manifest.torch}",
        "files": len(manifest.files),
    }


def _spell(value: object) -> str:
    """A value as people read it."""
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
