"""`specc bench`: every launch of a program beside its floor, on the GPU of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli.configuration import EngineOption, ShapeOption, SubjectArgument, chosen_shape, is_program, load, words_of
from specc.cli.inspect import opened
from specc.cli.progress import progress
from specc.cli.reporting import EXIT_NO_GPU, Format, Report, reporting
from specc.compiler.support.diagnostics import Diagnostic
from specc.compiler.support.files.archives import open_archive
from specc.lab.commands.measured import draw_figures, print_figures, require_drawable
from specc.lab.measure.against import Against
from specc.runtime.plan.files.manifest import MANIFEST, Manifest
from specc.runtime.plan.shape import Shape

if TYPE_CHECKING:
    from specc.compiler.driver.build import Build
    from specc.runtime.plan.plan import Plan

EXAMPLES = {
    "bench": ("specc bench chain.yaml --buckets 1,8", "specc bench dist/program.whl --plot bench.svg"),
}
"""What `--help` ends with."""


@dataclass(frozen=True)
class BenchSubject:
    """What is measured: a configuration that was built, or the package of a wheel, with the plans of its shapes."""

    made: Build | Path
    plans: Mapping[Shape, Plan]
    triton: str | None


def bench(
    subject: SubjectArgument,
    buckets: Annotated[str | None, typer.Option(metavar="N,...", help="Batch sizes. Default: all buckets.")] = None,
    shape: ShapeOption = None,
    engine: EngineOption = None,
    against: Annotated[Against, typer.Option(help="Whose own kernels are timed beside ours.")] = Against.auto,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="A picture, such as bench.svg.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    format: Annotated[Format, typer.Option(help="How the figures are printed.")] = Format.text,
) -> None:
    """Time every launch of a program, and a whole step without its forwards, beside an empty launch or a copy."""
    with reporting(format) as report, _subject(str(subject), engine, report) as measured:
        from specc.compiler.driver.build import require_compiler
        from specc.lab.measure.bench import backend_of, here, measure, unmeasured, versions_of
        from specc.lab.measure.results.plot import draw
        from specc.lab.measure.results.table import tables

        require_drawable(plot)
        _require_importable(against)
        plan = measured.plans[chosen_shape(measured.plans, shape)]
        wanted = _buckets(plan, buckets)
        device, versions = here(), versions_of(measured.triton)
        if device is None:
            print_figures(unmeasured(plan, wanted, versions), tables, [no_gpu("times")], format, report)
            raise typer.Exit(EXIT_NO_GPU)
        require_compiler(None)  # what a launch costs is measured by an empty one, which is compiled here
        with tempfile.TemporaryDirectory(prefix="specc-bench-") as folder, progress("compiling", quiet=quiet) as shown:
            backend = backend_of(measured.made, Path(folder), device)
            shown.begin("timing", 1 + len(wanted) * (1 + plan.totals[wanted[0]].launches_in_graph))
            measurement = measure(plan, backend, device, wanted, versions, lambda what: shown.advance(f"timed {what}"))
            if against is not Against.none:
                from specc.lab.measure.against.beside import beside

                shown.begin("comparing", len(wanted))
                measurement = beside(measurement, plan, backend, device, lambda what: shown.advance(f"timed {what}"))
        print_figures(measurement, tables, [], format, report)
        if plot is not None:
            draw_figures(measurement, draw, plot)


def no_gpu(what: str) -> Diagnostic:
    """That something cannot be measured here."""
    return Diagnostic(
        "measure/no-gpu",
        f"no CUDA GPU here, so no {what}",
        hint="run the same command where the program will run",
        severity="warning",
    )


@contextmanager
def _subject(target: str, engine: str | None, report: Report) -> Iterator[BenchSubject]:
    """Build a configuration, or unpack a wheel for the length of the block."""
    if not is_program(target):
        from specc.compiler.codegen.aot import triton_version
        from specc.compiler.driver.build import build_program, require_compiler

        loaded = load(Path(target), report, engine)
        require_compiler(loaded.location("archs"))
        build = build_program(loaded)
        yield BenchSubject(build, {built.shape: built.plan for built in build.shapes}, triton_version())
        return
    with tempfile.TemporaryDirectory(prefix="specc-wheel-") as folder, opened(target) as program:
        root, manifest = program.root, program.manifest
        root = _extracted(Path(target), root.name, manifest, Path(folder)) if target.endswith(".whl") else root
        yield BenchSubject(Path(str(root)), program.plans, manifest.triton)


def _extracted(wheel: Path, package: str, manifest: Manifest, folder: Path) -> Path:
    """Write the files of a wheel's package, all of which were read, and no others; returns the package's folder."""
    with open_archive(wheel) as archive:
        for file in (MANIFEST, *manifest.files):
            archive.extract(f"{package}/{file}", folder)
    return folder / package


def _buckets(plan: Plan, chosen: str | None) -> Sequence[int]:
    """The batch sizes of `--buckets`, which are buckets of the program."""
    if chosen is None:
        return plan.buckets
    words, known = words_of(chosen), {str(bucket): bucket for bucket in plan.buckets}
    wrong = [word[:60] for word in words if word not in known]
    if wrong or not words:
        listed = ", ".join(known)
        raise typer.BadParameter(f"no bucket {', '.join(wrong)!r}; there are {listed}", param_hint="--buckets")
    return sorted({known[word] for word in words})


def _require_importable(against: Against) -> None:
    """An engine that is named has to be there."""
    if against in (Against.none, Against.auto):
        return
    from specc.lab.measure.against.beside import missing

    reason = missing()
    if reason is not None:
        raise typer.BadParameter(reason, param_hint="--against")
