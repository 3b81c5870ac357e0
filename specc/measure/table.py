"""A measurement as tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from specc.measure.records import BucketFigures, Compared, Figures, HostCost, Measurement
from specc.support.render import printable


def tables(found: Measurement) -> Iterator[Table | Text]:
    """A heading, a table for every bucket, what the host pays, and what was compared with an engine's kernels."""
    where = f"on {found.gpu}" if found.gpu else "not measured: no GPU"
    yield Text(printable(f"{found.name}: {found.algorithm}, num_steps {found.num_steps}, {where}"))
    for one in found.buckets:
        yield _bucket(one)
    if found.host:
        yield _host(found.host)
    if found.compared:
        yield _compared(found.against or "", found.compared)
    if found.remark:
        yield Text(f"not compared: {found.remark}")


def _bucket(found: BucketFigures) -> Table:
    also = f", and {found.references} that torch computes" if found.references else ""
    table = Table(title=f"bucket {found.bucket}{also}", title_justify="left", box=None)
    timed = found.step.us is not None
    table.add_column("launch", overflow="fold")
    for name in ("programs", "warps", "bytes", *(("us", "floor us", "over floor") if timed else ())):
        table.add_column(name, justify="right", no_wrap=True)
    for one in (*found.launches, found.step):
        table.add_row(*_cells(one))
    return table


def _cells(one: Figures) -> list[Text | str]:
    cells: list[Text | str] = [
        Text(printable(one.name)),
        f"{one.programs:,}",
        str(one.warps) if one.kernel else "",
        f"{one.bytes:,}",
    ]
    if one.us is not None and one.floor_us is not None and one.ratio is not None:
        cells += [f"{one.us.median:.2f}", f"{one.floor_us.median:.2f}", str(one.ratio)]
    return cells


def _host(found: tuple[HostCost, ...]) -> Table:
    table = Table(title="launch of a graph, by its nodes", title_justify="left", box=None)
    table.add_column("nodes", justify="right", no_wrap=True)
    table.add_column("host us", justify="right", no_wrap=True)
    for one in found:
        table.add_row(f"{one.nodes:,}", str(one.us))
    return table


def _compared(against: str, found: tuple[Compared, ...]) -> Table:
    table = Table(title=f"{against} over specc, both captured", title_justify="left", box=None)
    table.add_column("bucket", justify="right", no_wrap=True)
    table.add_column("work")
    table.add_column("times as long", justify="right", no_wrap=True)
    for one in found:
        table.add_row(str(one.bucket), one.work, str(one.ratio))
    return table
