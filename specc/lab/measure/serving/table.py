"""Tables and a picture of a server with a program and without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from specc.compiler.support.render import printable
from specc.lab.measure.results.plot import panels_of, save
from specc.lab.measure.serving.figures import APART, BESIDE, SWITCHED, BatchFigures, Served, SideFigures

SIDES = ("program", "without")
HOW = {SWITCHED: "{0}, switched on and off", BESIDE: "{0} against {1}", APART: "{0}, with it and then without it"}
"""What is said of the addresses."""


def tables(served: Served) -> Iterator[Table | Text]:
    """What was compared, the verdict about texts, and a table with two lines for each number of clients."""
    named = served.program or "the program (the server does not name it)"
    yield Text(printable(f"{named}: {served.model}, {HOW[served.how].format(*served.addresses)}"))
    yield Text(printable(f"prompts     {served.prompts}; {served.prompt_tokens:g} tokens (median)"))
    ties = f", {served.texts.near_ties} part at a near tie" if served.texts.near_ties else ""
    yield Text(f"texts       {served.texts.equal} of {served.texts.compared} are equal{ties}")
    yield Text(f"turns       {served.turns} of each side, of {', '.join(_requests(batch) for batch in served.batches)}")
    yield _figures(served)
    largest = served.batches[-1]
    if largest.program.by_position:
        shares = ", ".join(f"{share:.2f}" for share in largest.program.by_position)
        yield Text(f"accepted by position, {largest.clients} clients: {shares}")


def _requests(batch: BatchFigures) -> str:
    return f"{batch.requests} requests by {batch.clients} client{'s' * (batch.clients != 1)}"


def _figures(served: Served) -> Table:
    table = Table(box=None)
    names = ("clients", "side", "tokens/s", "ms/token", "p90", "ms/first", "accepted", "steps", "times the rate")
    for name in names:
        table.add_column(name, justify="left" if name == "side" else "right")
    for batch in served.batches:
        table.add_row(str(batch.clients), SIDES[0], *_cells(batch.program), str(batch.ratio))
        table.add_row("", SIDES[1], *_cells(batch.other), "")
    return table


def _cells(side: SideFigures) -> list[str]:
    return [
        f"{side.tokens_per_s:.1f}",
        "" if side.per_token_ms is None else f"{side.per_token_ms:.2f}",
        "" if side.per_token_ms_p90 is None else f"{side.per_token_ms_p90:.2f}",
        f"{side.first_token_ms:.1f}",
        "" if side.accept_length is None else f"{side.accept_length:.2f}",
        "" if side.program_steps is None else f"{100 * side.program_steps:.0f} %",
    ]


def draw(served: Served, path: Path) -> None:
    """Write a picture of the tokens/s of both sides; raises ValueError and OSError as `plot.draw`."""
    figure, panels = panels_of([2] * len(served.batches))
    for panel, batch in zip(panels, served.batches, strict=True):
        rates = [batch.program.tokens_per_s, batch.other.tokens_per_s]
        panel.barh([0, 1], rates, height=0.7, color=["#4c78a8", "#bab0ac"])
        panel.set_yticks([0, 1], list(SIDES))
        panel.invert_yaxis()
        panel.margins(x=0.12)
        panel.set_title(f"{batch.clients} clients: {batch.ratio} times as many tokens/s", loc="left")
    panels[-1].set_xlabel("tokens/s of all clients together, median of the turns")
    figure.suptitle(printable(f"{served.program or served.model}: with the program and without it"))
    save(figure, path, served.program or served.model)
