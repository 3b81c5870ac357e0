"""The summary a build ends with: phases, launches, bytes, buffers, time per stage."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console, ConsoleOptions, Group
from rich.table import Table
from rich.text import Text

from specc.compiler.ir.ops.model import runs_a_model
from specc.compiler.support.render import printable
from specc.runtime.plan.nodes import External, Given, Node, Reference
from specc.runtime.plan.plan import Plan, Totals
from specc.runtime.plan.typed import to_json

if TYPE_CHECKING:
    from specc.compiler.driver.build import Build


def print_summary(build: Build, console: Console, files: Iterable[object]) -> None:
    """Print the summary of a finished build."""
    several = len(build.shapes) > 1
    for built in build.shapes:
        title = f"{built.plan.name}: {built.plan.algorithm}" + f", shape {built.shape}" * several
        console.print(Group(_phases(built.plan, title), totals_table(built.plan.totals)))
    if several:
        console.print(Text(_shared(build)))
    console.print(*_resources(build))
    for path in files:
        console.print(Text(printable(f"wrote {path}")), soft_wrap=True)
    stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in build.seconds.items())
    console.print(Text(f"time: {stages}"))


def _shared(build: Build) -> str:
    """The kernels and the memory that the shapes share, in a line."""
    uses = Counter(source.name for built in build.shapes for source in built.generated.sources)
    shared = sum(times > 1 for times in uses.values())
    arena = max(built.plan.memory.arena for built in build.shapes)
    return f"{len(uses)} kernels, {shared} of them for more than one shape; one arena of {arena:,} bytes"


def _phases(plan: Plan, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("phase")
    table.add_column("node")
    table.add_column("what")
    table.add_column("captures")
    for phase in plan.phases:
        for node in phase.nodes:
            table.add_row(phase.name, node.name, _what(node), node.capture or "" if isinstance(node, External) else "")
    return table


def _what(node: Node) -> str:
    if isinstance(node, External):
        what = " forward" if runs_a_model(node) else " on the host" if node.host else ""
        return f"the engine's {node.callback}{what}"
    if isinstance(node, Given):
        return f"{', '.join(node.results)} of the target, which the engine hands over"
    return counted(call.op for call in node.ops) + " (torch)" * isinstance(node, Reference)


def counted(words: Iterable[str]) -> str:
    """Words in order, each once: ``a x2, b``."""
    return ", ".join(word if n == 1 else f"{word} x{n}" for word, n in Counter(words).items())


@dataclass(frozen=True)
class NumberTable:
    """Columns of numbers, of which none is broken: columns that do not fit stand below, in a table of the same rows.

    ``rows`` is the first column, headed by ``first``; ``columns`` have by heading as many numbers.
    """

    title: str
    first: str
    rows: Sequence[str]
    columns: Mapping[str, Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        """One table, or as many as the width asks for."""
        parts: list[dict[str, Sequence[str]]] = [{}]
        whole = left = options.max_width - _width(self.first, self.rows)
        for heading, cells in self.columns.items():
            head = _head(heading, cells)
            if parts[-1] and _width(head, cells) > left:
                parts.append({})
                left = whole
            parts[-1][head] = cells
            left -= _width(head, cells)
        for number, part in enumerate(parts):
            table = Table(title=None if number else self.title, title_justify="left", box=None)
            for head in (self.first, *part):
                table.add_column(head, justify="right", vertical="bottom", no_wrap=True)
            for row in zip(self.rows, *part.values(), strict=True):
                table.add_row(*row)
            yield table


def _head(heading: str, cells: Sequence[str]) -> str:
    """The lines of a heading over numbers, which make the column no wider than they and its longest word do."""
    return "\n".join(textwrap.wrap(heading, max(map(len, [*heading.split(), *cells]))))


def _width(head: str, cells: Sequence[str]) -> int:
    """What a column takes, with a blank on both sides."""
    return max(map(len, [*head.split("\n"), *cells])) + 2


def totals_table(totals: Mapping[int, Totals]) -> NumberTable:
    """What a decode step costs in every bucket, as ``totals`` of a plan has it."""
    columns = {
        key.replace("_", " "): [f"{getattr(figures, key):,}" for figures in totals.values()]
        for key in totals_columns(totals)
    }
    return NumberTable("per decode step, by bucket", "bucket", [str(bucket) for bucket in totals], columns)


def totals_columns(totals: Mapping[int, Totals]) -> list[str]:
    """The keys of totals that are told: those that are not 0 in every bucket."""
    return [field.name for field in fields(Totals) if any(getattr(total, field.name) for total in totals.values())]


def written_totals(totals: Mapping[int, Totals]) -> dict[str, dict[str, Any]]:
    """The same as in plan.json."""
    return {str(bucket): to_json(figures) for bucket, figures in totals.items()}


def plain_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """Records as a table: a column for each key that some record has a value for, headed by its words."""
    keys = [key for key in (rows[0] if rows else ()) if any(row[key] is not None for row in rows)]
    table = Table(box=None)
    for key in keys:
        counts = all(isinstance(row[key], int) for row in rows)
        head = Text(printable(key.replace("_", " ")))
        table.add_column(head, justify="right" if counts else "left", overflow="fold", no_wrap=counts)
    for row in rows:
        table.add_row(*[Text(printable(_cell(row[key]))) for key in keys])
    return table


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, cast("Iterable[object]", value)))
    return f"{value:,}" if isinstance(value, int) else "" if value is None else str(value)


def record(build: Build, files: Iterable[object], warnings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `print_summary` prints, JSON-ready; ``warnings`` are findings that are no errors."""
    config = build.loaded.config
    return {
        "name": config.name,
        "algorithm": config.algorithm,
        "files": [str(file) for file in files],
        "programs": [
            {
                "shape": str(built.shape),
                "phases": {
                    phase.name: [
                        {"node": node.name, "what": _what(node), "capture": getattr(node, "capture", None)}
                        for node in phase.nodes
                    ]
                    for phase in built.plan.phases
                },
                "totals": written_totals(built.plan.totals),
            }
            for built in build.shapes
        ],
        "machine_code": [
            {"kernel": kernel, "arch": arch, "bytes": len(a.binary), "registers": a.registers, "spills": a.spills,
             "shared": a.shared}
            for (kernel, arch), a in build.artifacts.items()
        ],
        "seconds": dict(build.seconds),
        "warnings": [*warnings],
    }  # fmt: skip


def _resources(build: Build) -> list[Table]:
    if not build.artifacts:
        return []
    table = Table(title="machine code", title_justify="left", box=None)
    for name in ("kernel", "arch", "bytes", "registers", "spills", "shared"):
        counts = name not in ("kernel", "arch")
        table.add_column(name, justify="right" if counts else "left", no_wrap=counts, overflow="fold")
    for (kernel, arch), a in build.artifacts.items():
        table.add_row(kernel, arch, f"{len(a.binary):,}", str(a.registers), str(a.spills), str(a.shared))
    return [table]
