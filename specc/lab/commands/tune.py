"""`specc tune`: choices that are faster than specc's own on the GPU of this machine, as a file that builds read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specc.cli.configuration import STDIN, ConfigArgument, EngineOption, load
from specc.cli.progress import progress
from specc.cli.reporting import EXIT_NO_GPU, Format, printing, reporting
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.render import printable
from specc.lab.commands.bench import no_gpu
from specc.lab.commands.reference import require_engine

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from specc.cli.reporting import Report
    from specc.compiler.config import LoadedConfig
    from specc.lab.measure.tuning.tuned import TuningResult
    from specc.runtime.plan.shape import Shape

EXAMPLES = {
    "tune": ("specc tune chain.yaml --seconds 300", "specc tune --shapes shapes.yaml -o shapes.times.json"),
}
"""What `--help` ends with."""

SECONDS = 120
"""How long candidates are timed, by default."""


def tune(
    config: ConfigArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Default: CONFIG with .tuning.yaml, or .times.json."),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Time the steps of every shape instead, on the configuration's models.")
    ] = False,
    seconds: Annotated[int, typer.Option(min=1, help="Stop trying candidates after so long.")] = SECONDS,
    engine: EngineOption = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    format: Annotated[Format, typer.Option(help="How what was found is printed.")] = Format.text,
) -> None:
    """Search tiles, warps and splits of the launches on this GPU, and write what is faster; results stay the same."""
    with reporting(format) as report:
        from specc.lab.measure.bench import device_arch, here

        if config == STDIN and output is None:
            raise typer.BadParameter("a configuration of standard input needs it", param_hint="--output")
        loaded = load(config, report, engine)
        device = here()
        if shapes:
            _time_shapes(loaded, report, output or config.with_suffix(".times.json"), device, format, quiet=quiet)
            return
        if device is None:
            if format is Format.json:
                typer.echo(json.dumps({"launches": [*_knobs(loaded)]}, indent=2))
            else:
                report.show([no_gpu("times, and nothing is searched")])
                with printing() as console:
                    console.print(_searched(loaded))
            raise typer.Exit(EXIT_NO_GPU)
        from specc.compiler.driver.build import require_compiler

        require_compiler(loaded.location("archs"))
        from specc.compiler.support.files.writing import write_output
        from specc.lab.measure.tuning.file import tuning_text
        from specc.lab.measure.tuning.tuned import tune as search

        _require_arch(loaded, device_arch(device))
        place = output or config.with_suffix(".tuning.yaml")
        with progress("building", quiet=quiet) as shown:
            tuned = search(loaded, device, seconds, shown.reach)
        write_output(place, tuning_text(tuned.tuning, tuned.winners, tuned.steps), folders=True)
        if format is Format.json:
            typer.echo(json.dumps(_record(tuned, place), indent=2))
            return
        with printing() as console:
            console.print(_gained(tuned))
        message = f"wrote {place}; a configuration reads it by the line 'tuning: {place.name}'"
        typer.echo(printable(message))


def _time_shapes(
    loaded: LoadedConfig, report: Report, place: Path, device: torch.device | None, format: Format, *, quiet: bool
) -> None:
    """Time steps of every shape in the reference engine, on the configuration's models, and write the file of them."""
    from specc.lab.measure.bench import device_arch

    if len(loaded.config.shapes) == 1:
        raise typer.BadParameter("the configuration has one shape: there is nothing to choose", param_hint="--shapes")
    if loaded.model_dir("target") is None:
        raise typer.BadParameter("the configuration names no `model:` of its target", param_hint="--shapes")
    if device is None:
        report.show([no_gpu("times, and none are written")])
        raise typer.Exit(EXIT_NO_GPU)
    _require_arch(loaded, device_arch(device))
    require_engine()
    from specc.compiler.driver.build import require_compiler
    from specc.lab.commands.timed_shapes import time_shapes

    require_compiler(loaded.location("archs"))
    with progress("building", quiet=quiet) as shown:
        times = time_shapes(loaded, device, place, shown.begin)
    if format is Format.json:
        named = {str(shape): dict(by_bucket) for shape, by_bucket in times.items()}
        typer.echo(json.dumps({"file": str(place), "times": named}, indent=2))
        return
    with printing() as console:
        console.print(_timed(times))
    typer.echo(printable(f"wrote {place}; `specc run --step-times {place}` chooses shapes by it"))


def _timed(times: Mapping[Shape, Mapping[int, float]]) -> Table:
    """A line for every bucket: milliseconds of a step at each shape that has it."""
    from rich.table import Table

    table = Table(title="milliseconds of a step", title_justify="left", box=None)
    table.add_column("bucket", justify="right")
    for shape in times:
        table.add_column(str(shape), justify="right")
    for bucket in sorted({bucket for by_bucket in times.values() for bucket in by_bucket}):
        times_of_bucket = (by_bucket.get(bucket) for by_bucket in times.values())
        table.add_row(str(bucket), *("" if time is None else f"{time:.3f}" for time in times_of_bucket))
    return table


def _require_arch(loaded: LoadedConfig, arch: str) -> None:
    """Refuse to tune a program for a GPU that it is not compiled for, or not for it alone."""
    archs = loaded.config.archs
    if archs != (arch,):
        message = f"this machine has a GPU of {arch}, and the program is for {', '.join(archs)}"
        hint = f"choices hold for one architecture: write archs: [{arch}]"
        raise DiagnosticError(Diagnostic("measure/other-arch", message, loaded.location("archs"), hint))


def _knobs(loaded: LoadedConfig) -> Iterator[dict[str, Any]]:
    """What would be searched, of every launch of a step."""
    from specc.compiler.driver.build import build_program
    from specc.lab.measure.tuning.variants import described, kernels_of, knobs_of

    for built in build_program(loaded).shapes:
        for nodes in kernels_of(built).values():
            knobs = knobs_of(built, nodes[0].name)
            yield {
                "shape": str(built.shape),
                "launches": [node.name for node in nodes],
                "now": described(built, nodes[0].name),
                "tiles": list(knobs.tiles),
                "warps": list(knobs.warps),
                "stages": list(knobs.stages),
                "most_split": knobs.split,
            }


def _searched(loaded: LoadedConfig) -> Table:
    """A line for every kernel that has knobs; at each shape, where there are several."""
    from rich.table import Table

    table, several = Table(box=None), len(loaded.config.shapes) > 1
    table.add_column("launches", overflow="fold", min_width=16)
    for name in ("now", "searched"):
        table.add_column(name, overflow="fold")
    for group in _knobs(loaded):
        names = ", ".join(group["launches"]) + f" of shape {group['shape']}" * several
        table.add_row(names, group["now"], _ranges(group))
    return table


def _ranges(group: Mapping[str, Any]) -> str:
    """The knobs of a launch, from the least to the most."""
    known = {
        "tile": group["tiles"],
        "warps": group["warps"],
        "stages": group["stages"],
        "split": (1, group["most_split"]),
    }
    return ", ".join(f"{word} {min(each)} to {max(each)}" for word, each in known.items() if each and max(each) > 1)


def _gained(tuned: TuningResult) -> Table:
    """A line for every kernel that has choices, and for every step."""
    from rich.table import Table

    table = Table(title=f"on {tuned.tuning.gpu}", title_justify="left", box=None)
    for name in ("launches", "instead of", "times as fast, at bucket"):
        table.add_column(name, overflow="fold")
    for winner in tuned.winners:
        names = ", ".join(choice.launch for choice in winner.choices)
        table.add_row(names, winner.default, ", ".join(map(str, winner.gains)))
    for shape, gains in tuned.steps.items():
        table.add_row(f"a step of shape {shape}", "", ", ".join(map(str, gains)))
    if not tuned.winners:
        table.add_row("nothing was faster by more than the noise", "", "")
    return table


def _record(tuned: TuningResult, place: Path) -> dict[str, object]:
    chosen = [
        {**asdict(winner), "choices": [_plain(asdict(choice)) for choice in winner.choices]} for winner in tuned.winners
    ]
    steps = {str(shape): [asdict(gain) for gain in gains] for shape, gains in tuned.steps.items()}
    named = {"gpu": tuned.tuning.gpu, "arch": tuned.tuning.arch, "triton": tuned.tuning.triton}
    return {"file": str(place), **named, "found": chosen, "steps": steps}


def _plain(choice: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in choice.items() if key != "location"}
