"""What differs between two programs: keys, costs, launches, carry, memory and decisions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

from specc.compiler.driver.summary import counted
from specc.compiler.explain.brief import cost_of, spelled
from specc.compiler.explain.page.model import Page
from specc.compiler.explain.program import PlacedNode, does, rows
from specc.compiler.explain.story import Story
from specc.runtime.plan.nodes import OUTSIDE, External, Launch

_MEMORY = {"arena": "arena, bytes", "relay": "carried rows, bytes", "scratch": "scratch, bytes"}

_NAMED = ("What runs", "What is carried", "Buffers")
"""Areas in which a name is the compiler's own, so that the same thing may have another one."""


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same: what it is, here and there; None where it is not there at all."""

    what: str
    here: str | None
    there: str | None

    @property
    def change(self) -> str:
        """How much the number of here is above that of there; empty where one is no number."""
        here, there = _number(self.here), _number(self.there)
        if here is None or there is None:
            return ""
        return f"{here - there:+,}" + (f" ({(here - there) / there:+.0%})" if there else "")


@dataclass(frozen=True)
class Area:
    """What differs in one respect; empty where nothing does."""

    name: str
    differences: tuple[Difference, ...]

    @property
    def counts(self) -> bool:
        """Whether some of it are numbers."""
        return any(difference.change for difference in self.differences)


def compare(here: Page, there: Page) -> tuple[Area, ...]:
    """All differences of a program to another one, area by area."""
    shared = here.plan.totals.keys() & there.plan.totals.keys()
    bucket = max(shared, default=None)
    areas: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
        "Configuration": (_settings(here.story), _settings(there.story)),
        "Costs of a step" + (f" of {bucket} requests" if bucket else ""): (_costs(here, bucket), _costs(there, bucket)),
        "What runs": (_nodes(here), _nodes(there)),
        "What is carried": (_carry(here), _carry(there)),
        "Buffers": (_buffers(here), _buffers(there)),
        "Decisions": (_decisions(here.story), _decisions(there.story)),
    }
    return tuple(Area(name, tuple(_differing(*both, name in _NAMED))) for name, both in areas.items())


def _differing(here: Mapping[str, str], there: Mapping[str, str], named: bool) -> Iterator[Difference]:
    """What is not the same; where things are `named`, those that only their name tells apart are one difference."""
    renamed = _renamed(here, there) if named else {}
    for what in dict.fromkeys((*here, *there)):
        if what in renamed:
            yield Difference(here[what], what, renamed[what])
        elif what not in renamed.values() and here.get(what) != there.get(what):
            yield Difference(what, here.get(what), there.get(what))


def _renamed(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Names of here that there does not have, by which there has the same under a name of its own: one and no other."""
    mine, others = _only(here, there), _only(there, here)
    return {
        names[0]: others[value][0] for value, names in mine.items() if len(names) == len(others.get(value, ())) == 1
    }


def _only(here: Mapping[str, str], there: Mapping[str, str]) -> dict[str, list[str]]:
    """Names that only the first has, by what they stand for."""
    names: dict[str, list[str]] = {}
    for name in here.keys() - there.keys():
        names.setdefault(here[name], []).append(name)
    return names


def _number(text: str | None) -> int | None:
    """A count as a page writes it, with or without `,` between thousands."""
    return int(text.replace(",", "")) if text is not None and re.fullmatch(r"\d{1,3}(,\d{3})*|\d+", text) else None


def _settings(story: Story) -> dict[str, str]:
    values = {"name": story.plan.name} | {setting.key: spelled(setting.value) for setting in story.settings}
    for model in story.models:
        values |= {f"{model.side}.{setting.key}": spelled(setting.value) for setting in model.settings}
    return values


def _costs(page: Page, bucket: int | None) -> dict[str, str]:
    """What a step costs at the largest bucket that both have, each at its own largest if there is none; the memory."""
    batch = max(page.plan.totals) if bucket is None else bucket
    numbers = {key: value for key, value in asdict(page.plan.totals[batch]).items() if key != "arena_bytes"}
    rows = {"requests": f"{batch}"} | {key.replace("_", " "): f"{value:,}" for key, value in numbers.items()}
    return rows | {_MEMORY[key]: f"{value:,}" for key, value in asdict(page.plan.memory).items()}


def _nodes(page: Page) -> dict[str, str]:
    return {step.node.name: _node(page, step) for step in page.steps}


def _node(page: Page, step: PlacedNode) -> str:
    plan, node = page.plan, step.node
    if isinstance(node, Launch):
        grid = " × ".join(map(str, node.grid[plan.buckets[-1]]))
        ops = counted(call.op for call in node.ops)
        return f"{plan.kernels[node.kernel].family} over {ops}; grid {grid}; {step.bytes:,} bytes"
    if isinstance(node, OUTSIDE):
        operands = node.operands if isinstance(node, External) else {}
        return f"{does(node)}; reads {', '.join(operands) or 'nothing'}"
    return f"{node.kind}; {step.bytes:,} bytes"


def _carry(page: Page) -> dict[str, str]:
    return {row.name: f"{row.dtype}[{row.width:,}], {row.bytes:,} bytes" for row in rows(page.plan)}


def _buffers(page: Page) -> dict[str, str]:
    return {buffer.name: f"{page.kind(buffer)}, {buffer.bytes:,} bytes" for buffer in page.arena}


def _decisions(story: Story) -> dict[str, str]:
    """What each pass chose of what; costs but where a launch's bytes say them already."""
    decisions: dict[str, str] = {}
    for name, _, choice in story.choices():
        cost = cost_of(choice.cost, choice.unit) if name not in ("form-kernels", "specialize-buckets") else ""
        decisions[f"{name}: {choice.of}"] = choice.chosen + f" ({cost})" * bool(cost)
    return decisions


def count(areas: Iterable[Area]) -> int:
    """How many things differ."""
    return sum(len(area.differences) for area in areas)
