"""A measurement as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from specc.compiler.support.render import printable
from specc.lab.measure.results.records import BucketFigures, Compared, Figures, HostCost, Measurement


def tables(measurement: Measurement) -> Iterator[Table | Text]:
    """A heading, a table for every bucket, what the host pays, and what was compared with an engine's kernels."""
    where = f"on {measurement.gpu}" if measurement.gpu else "not measured: no GPU"
    yield Text(printable(f"{measurement.name}: {measurement.algorithm}, shape {measurement.shape}, {where}"))
    for bucket in measurement.buckets:
        yield _bucket(bucket)
    if measurement.host:
        yield _host(measurement.host)
    if measurement.compared:
        yield _compared(measurement.against or "", measurement.compared)
    if measurement.remark:
        yield Text(f"not compared: {measurement.remark}")


def _bucket(figures: BucketFigures) -> Table:
    also = f", and {figures.references} that torch computes" if figures.references else ""
    table = Table(title=f"bucket {figures.bucket}{also}", title_justify="left", box=None)
    timed = figures.step.us is not None
    table.add_column("launch", overflow="fold")
    for name in ("programs", "warps", "bytes", *(("us", "floor us", "over floor") if timed else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for launch in (*figures.launches, figures.step):
        table.add_row(*_cells(launch))
    return table


def _cells(launch: Figures) -> list[Text | str]:
    cells: list[Text | str] = [
        Text(printable(launch.name)),
        f"{launch.programs:,}",
        str(launch.warps) if launch.kernel else "",
        f"{launch.bytes:,}",
    ]
    if launch.us is not None and launch.floor_us is not None and launch.ratio is not None:
        cells += [f"{launch.us.median:.2f}", f"{launch.floor_us.median:.2f}", str(launch.ratio)]
    return cells


def _host(costs: tuple[HostCost, ...]) -> Table:
    table = Table(title="launch of a graph, by its nodes", title_justify="left", box=None)
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column("host us", justify="right", no_wrap=True)
    for cost in costs:
        table.add_row(f"{cost.nodes:,}", str(cost.us))
    return table


def _compared(against: str, compared: tuple[Compared, ...]) -> Table:
    table = Table(title=f"{against} over specc, both captured", title_justify="left", box=None)
    table.add_column("bucket", justify="right", no_wrap=True)
    table.add_column("work")
    table.add_column("times as long", justify="right", no_wrap=True)
    for comparison in compared:
        table.add_row(str(comparison.bucket), comparison.work, str(comparison.ratio))
    return table
