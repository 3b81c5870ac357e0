"""`specc build`: one configuration into a wheel, or into any of the texts on the way to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli import completion
from specc.cli.configuration import ConfigArgument, EngineOption, load, words_of
from specc.cli.progress import ProgressLine, progress
from specc.cli.reporting import Format, printing, reporting
from specc.compiler.support.render import printable

if TYPE_CHECKING:
    from specc.compiler.config import LoadedConfig
    from specc.compiler.driver.build import Build
    from specc.compiler.support.diagnostics import Diagnostic


class Emit(StrEnum):
    """What to write."""

    wheel = "wheel"
    plan = "plan"
    specir = "specir"
    kernels = "kernels"
    cubins = "cubins"


def build(
    config: ConfigArgument,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where to write.")] = Path("dist"),
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="ARCH,...",
            help="Architectures instead of the configuration's, e.g. sm_80,sm_90.",
            autocompletion=completion.arch,
        ),
    ] = None,
    engine: EngineOption = None,
    emit: Annotated[list[Emit] | None, typer.Option(help="What to write; may be repeated. Default: wheel.")] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="Compiler processes. Default: cores.")] = None,
    cache: Annotated[bool, typer.Option(help="Keep and reuse compiled kernels.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what was written.")] = False,
    format: Annotated[Format, typer.Option(help="How the summary and findings are printed.")] = Format.text,
) -> None:
    """Compile a configuration into specialised kernels, a plan and an installable wheel."""
    wanted = emit or [Emit.wheel]
    with reporting(format) as report:
        from specc.compiler.driver.build import build_program
        from specc.compiler.driver.compile import unloadable
        from specc.compiler.driver.summary import record
        from specc.compiler.pass_manager.instruments import Reproducer
        from specc.compiler.support.render import to_json

        loaded = load(config, report, engine)
        archs = _archs(loaded, arch)
        compiles = bool({Emit.wheel, Emit.cubins} & set(wanted))
        warnings = [*loaded.warnings, *unloadable(loaded, archs), *(_unkept() if compiles and cache else [])]
        if format is Format.text:
            report.show(warnings)
        with progress("passes and templates", quiet=quiet or format is Format.json) as shown:
            result = build_program(loaded, [Reproducer(Path())])
            if compiles:
                _compile(result, archs, jobs, cache, shown)
            shown.begin("writing")
            files = _write(result, wanted, output)
        if format is Format.json:
            typer.echo(json.dumps(record(result, files, to_json(warnings, loaded.paths)), indent=2))
            return
        _finish(result, files, quiet)


def _archs(loaded: LoadedConfig, chosen: str | None) -> Sequence[str]:
    """The architectures to compile for; a typo is a usage error."""
    from specc.compiler.config.archs import ARCHS, NATIVE, NoGpuError, arch_hint, arch_of, with_native

    if chosen is None:
        return loaded.config.archs
    archs = [str(arch_of(name)) for name in words_of(chosen)]
    unknown = [name for name in archs if name not in (*ARCHS, NATIVE)]
    if unknown or not archs:
        hint = arch_hint(unknown[0] if unknown else "")
        raise typer.BadParameter(f"unknown architecture {', '.join(unknown)!r}; {hint}", param_hint="--arch")
    try:
        return with_native(archs)
    except NoGpuError as error:
        raise typer.BadParameter(f"no GPU is on this machine: {error}", param_hint="--arch") from error


def _unkept() -> list[Diagnostic]:
    """That nothing is kept where caches are, if that is so."""
    from specc.compiler.support.diagnostics import Diagnostic
    from specc.compiler.support.files.cachedir import default_directory, fault

    directory = default_directory()
    if not (why := fault(directory)):
        return []
    message = f"no compiled kernels are kept or reused: the folder of caches '{directory}' {why}"
    hint = "chmod go-w it, or let SPECC_CACHE_DIR name a folder of your own"
    return [Diagnostic("aot/no-cache", message, hint=hint, severity="warning")]


def _compile(result: Build, archs: Sequence[str], jobs: int | None, cached: bool, shown: ProgressLine) -> None:
    from specc.compiler.codegen.cache import Cache
    from specc.compiler.driver.build import compile_machine_code

    cache = Cache.default() if cached else Cache.disabled()
    shown.begin("compiling", len(result.sources) * len(archs))

    def on_done(kernel: str, arch: str) -> None:
        shown.advance(f"compiled {kernel} for {arch}")

    compile_machine_code(result, archs, cache=cache, workers=jobs, on_done=on_done)


def _write(result: Build, wanted: Sequence[Emit], output: Path) -> list[Path]:
    from specc.compiler.driver.files import EMITTERS
    from specc.compiler.driver.wheel.build_wheel import emit_wheel

    with result.stage("emit"):
        files: list[Path] = []
        for name in dict.fromkeys(wanted):
            emitter = emit_wheel if name is Emit.wheel else EMITTERS[name]
            files += emitter(result, output)
    return files


def _finish(result: Build, files: Sequence[Path], quiet: bool) -> None:
    if quiet:
        for path in files:
            typer.echo(printable(str(path)))
        return
    from specc.compiler.driver.summary import print_summary

    with printing() as console:
        print_summary(result, console, files)
