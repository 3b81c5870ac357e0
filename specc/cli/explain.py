"""`specc explain`: the story of a configuration: what it is, what every pass decided and why, what is left to run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from specc.cli import completion
from specc.cli.configuration import (
    ChoiceTimesOption,
    EngineOption,
    ShapeOption,
    SubjectArgument,
    choices_among,
    load_subject,
    shape_index,
)
from specc.cli.reporting import Format, printing, reporting
from specc.compiler.ir.ops.model import runs_a_model
from specc.runtime.plan.shape import listed

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from specc.compiler.explain.program import PlacedNode
    from specc.compiler.explain.shapes import Choices
    from specc.compiler.explain.story import ConfigValue, PassStory, Story
    from specc.runtime.plan.plan import Plan


def explain(
    config: SubjectArgument,
    only: Annotated[
        str | None,
        typer.Option(
            "--pass", metavar="NAME", help="Tell only what this pass decided.", autocompletion=completion.one_pass
        ),
    ] = None,
    shape: ShapeOption = None,
    engine: EngineOption = None,
    full: Annotated[bool, typer.Option("--full", help="All of the story, and not what matters most of it.")] = False,
    step_times: ChoiceTimesOption = None,
    format: Annotated[Format, typer.Option(help="How the story is printed; JSON is always all of it.")] = Format.text,
) -> None:
    """Tell what becomes of a configuration and why, without compiling anything."""
    with reporting(format) as report:
        from specc.compiler.explain.document import document
        from specc.compiler.explain.story import tell
        from specc.compiler.support.render import to_json

        _require_pass(only)
        subject = load_subject(config, report, engine)
        at = shape_index(subject.loaded, shape)
        build, warnings = subject.compiled()
        story = tell(build.shapes[at], choices_among(subject, build, step_times))
        if only is not None:
            story = replace(story, passes=tuple(pass_story for pass_story in story.passes if pass_story.name == only))
        if format is Format.json:
            more = {"warnings": to_json(warnings, subject.loaded.paths)}
            typer.echo(json.dumps(document(story) | more, indent=2))
            return
        report.show(warnings)
        with printing() as console:
            for part in _told(story, only is not None, full):
                console.print(part)


def _require_pass(name: str | None) -> None:
    from specc.compiler.passes.pipeline import default_passes

    known = [step.name for step in default_passes()]
    if name is not None and name not in known:
        raise typer.BadParameter(f"no pass named {name!r}; there are {', '.join(known)}", param_hint="--pass")


def _told(story: Story, one_pass: bool, full: bool) -> Iterator[RenderableType]:
    """What a pass decided and what it did not choose; all of the story; or what matters most of it."""
    if one_pass and not full:
        return (_pass(pass_story, rejected=True) for pass_story in story.passes)
    return _text(story, rejected=one_pass) if full else _brief(story)


def _headline(story: Story) -> Text:
    from rich.text import Text

    several = f" of shape {story.shape}, compiled for {listed(story.shapes)}"
    form = story.form + several * (len(story.shapes) > 1)
    return Text(f"{story.plan.name}: {story.plan.algorithm}, {story.summary}; a {form}", "bold")


def _brief(story: Story) -> Iterator[RenderableType]:
    """What matters most, and where the rest is told."""
    from rich.table import Table
    from rich.text import Text

    from specc.compiler.explain.brief import lines

    yield _headline(story)
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    for word, line in lines(story):
        table.add_row(word, Text(line))
    if story.of_shapes is not None:
        yield table
        yield from _shapes(story.of_shapes)
        table = Table(box=None, show_header=False)
    table.add_row("more", Text("--full tells all, --pass NAME what one pass decided; specc report makes a page of it"))
    yield table


def _text(story: Story, *, rejected: bool) -> Iterator[RenderableType]:
    """The parts in order, each with a heading and a blank line before it but the first.

    rejected: whether what the passes did not choose is told as well.
    """
    from rich.text import Text

    from specc.compiler.driver.summary import totals_table
    from specc.compiler.explain.document import KV

    yield _headline(story)
    if story.of_shapes is not None:
        yield from _shapes(story.of_shapes)
    yield _settings("the configuration", story.settings)
    for model in story.models:
        yield _settings(f"{model.side}: {model.model or 'all sizes written out'}", model.settings)
    yield Text("\nwhat the passes decided", "bold")
    for pass_story in story.passes:
        yield _pass(pass_story, rejected)
    yield Text("\nwhat is kept", "bold")
    yield _captures(story.plan)
    yield _carry(story)
    yield Text("\nwhat runs", "bold")
    yield _nodes(story.plan)
    yield Text("\nwhat it costs", "bold")
    yield totals_table(story.plan.totals)
    kv = ", ".join(f"{key.replace('_', ' ')} {getattr(story.plan.kv, key)}" for key in KV)
    yield Text(f"kv slots per request, in tokens: {kv}")


def _shapes(choices: Choices) -> Iterator[RenderableType]:
    """Which shape a batch has, and what each of them costs."""
    from rich.text import Text

    from specc.compiler.driver.summary import NumberTable

    if choices.timed:
        columns = {"begins with": [str(bucket.first) for bucket in choices.buckets]}
        columns |= {"best": [str(bucket.best) for bucket in choices.buckets]}
        for shape in [cost.shape for cost in choices.costs]:
            timed = [bucket if shape in bucket.times else None for bucket in choices.buckets]
            columns[f"{shape} ms"] = ["" if timing is None else f"{timing.times[shape]:.2f}" for timing in timed]
            columns[f"{shape} tokens/ms"] = ["" if timing is None else f"{timing.speed(shape):.3f}" for timing in timed]
        yield NumberTable(
            "\nwhich shape a batch has", "bucket", [str(bucket.bucket) for bucket in choices.buckets], columns
        )
    else:
        rows = [(buckets, choice.shapes, str(choice.first)) for buckets, choice in choices.by_bucket()]
        yield _table("\nwhich shape a batch has", "buckets", "compiled for them", "begins with", rows=rows)
    yield Text(choices.rule)
    yield NumberTable("\nwhat a shape costs", "shape", [str(cost.shape) for cost in choices.costs], choices.columns())
    yield Text(f"The arena is one for all: {choices.arena_bytes:,} bytes.")


def _table(title: str, *columns: str, rows: Iterable[Iterable[object]]) -> Group:
    """A title over a table, all of it plain text: nothing is read as markup."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from specc.compiler.explain.brief import spelled

    words = [[spelled(value) for value in row] for row in rows]
    table = Table(box=None)
    for at, column in enumerate(columns):
        numbers = all(row[at].replace(",", "").isdecimal() for row in words if row[at])
        table.add_column(column, no_wrap=bool(words) and numbers)
    for row in words:
        table.add_row(*map(Text, row))
    return Group(Text(title, "italic"), table)


def _settings(title: str, settings: Iterable[ConfigValue]) -> Group:
    rows = [
        (f"{s.key} ({s.symbol})" if s.symbol else s.key, s.value, s.place if s.origin == "written" else s.origin)
        for s in settings
    ]
    return _table(title, "key", "value", "from", rows=rows)


def _pass(story: PassStory, rejected: bool) -> Group:
    from specc.compiler.explain.brief import cost_of

    rows: list[tuple[str | None, str]] = []
    for remark in story.remarks:
        rows.append((remark.place, remark.message))
        if remark.choice is None or not rejected:
            continue
        for other in remark.choice.rejected:
            cost = f" ({cost_of(other.cost, remark.choice.unit)})" if other.cost is not None else ""
            rows.append((None, f"  not {other.what}{cost}: {other.reason}"))
    return _table(f"{story.name}: {story.summary}", "where", "what", rows=rows)


def _captures(plan: Plan) -> Group:
    from specc.compiler.explain.program import captured

    rows = [
        (c.forward, c.mode, c.dtype, c.width, _bytes(c.bytes, c.mode), ", ".join(c.readers)) for c in captured(plan)
    ]
    columns = ("forward", "captures", "dtype", "width", "bytes", "read by")
    return _table("hidden states that forwards hand over, at the largest bucket", *columns, rows=rows)


def _bytes(count: int | None, mode: str) -> str | None:
    if count is None:
        return None if mode == "null" else "by length"
    return f"{count:,}"


def _carry(story: Story) -> Group:
    from specc.compiler.explain.program import rows

    carry = rows(story.plan)
    cells = [(row.name, row.dtype, row.width, f"{row.bytes:,}", story.places[row.name]) for row in carry]
    title = f"carried between steps: {sum(row.bytes for row in carry):,} bytes per request"
    return _table(title, "field", "dtype", "elements", "bytes", "from", rows=cells)


def _nodes(plan: Plan) -> Group:
    from specc.compiler.explain.program import steps

    rows = [
        (
            step.phase.name,
            step.node.name,
            *_node(plan, step),
            "" if step.bytes is None else f"{step.bytes:,}",
            step.graph or "none",
        )
        for step in steps(plan)
    ]
    columns = ("phase", "node", "kernel", "what", "grid", "bytes", "graph")
    return _table("launches and forwards in order, grids and bytes at the largest bucket", *columns, rows=rows)


def _node(plan: Plan, step: PlacedNode) -> tuple[str, str, str]:
    """What computes a node, what it is, and its grid."""
    from specc.compiler.driver.summary import counted
    from specc.compiler.passes.form_kernels import REFERENCE_LAUNCHES
    from specc.runtime.plan.nodes import Collective, External, Launch, Reference

    node = step.node
    if isinstance(node, Launch):
        grid = " x ".join(map(str, node.grid[plan.buckets[-1]]))
        return plan.kernels[node.kernel].family, counted(call.op for call in node.ops), grid
    if isinstance(node, Reference):
        return "torch", f"{node.ops[-1].op}, in some {REFERENCE_LAUNCHES} launches", ""
    if isinstance(node, Collective):
        return "collective", f"records of {plan.ranks} ranks", ""
    if not isinstance(node, External):
        return "engine", "hands this over", ""
    reads = ", ".join(name if name == value else f"{name} = {value}" for name, value in node.operands.items())
    if node.host:
        return "host", f"reads {reads}; may wait for the device", ""
    if not runs_a_model(node):
        return "engine", f"reads {reads}; commits recurrent states", ""
    return "forward", f"reads {reads}; captures {node.capture}", ""
