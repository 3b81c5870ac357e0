"""What matters most of a story: the few lines that `specc explain` begins with, and what a report begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from specc.compiler.explain.program import rows
from specc.compiler.explain.story import RemarkStory, Story
from specc.compiler.ir.ops.model import runs_a_model
from specc.compiler.ir.types import DTYPES
from specc.compiler.pass_manager.pass_base import REMOVED, Choice
from specc.runtime.plan.draft_head import BIAS_WEIGHT, MADE_OF, TOKEN_ENTRIES, WEIGHT
from specc.runtime.plan.nodes import Collective, Given, Launch, Reference
from specc.runtime.plan.plan import TOKEN_MAP, Plan

MOST_NAMES = 4
"""Things that are named in a line; the others are counted."""
MOST_DECISIONS = 3

_KEPT = {"full": "every row of", "last": "one row of", "null": "nothing of"}
"""What a forward hands over, by its capture mode."""


def choice_of(story: Story, name: str) -> Choice | None:
    """The choice of a pass that made one besides what it removed, the first of several."""
    return next((choice for owner, _, choice in story.choices() if owner == name and choice.chosen != REMOVED), None)


def removed(story: Story) -> list[Choice]:
    """What is gone: first what would be carried, then what would take most bytes."""
    gone = [choice for _, _, choice in story.choices() if choice.chosen == REMOVED]
    return sorted(gone, key=lambda choice: (not choice.of.startswith("carry @"), -_next_best(choice)))


def weighty(story: Story) -> list[tuple[RemarkStory, Choice]]:
    """The decisions about a step whose best alternative costs the most times as much.

    Of a pass the one that saves most. What is removed, the arena and the graphs have lines of their own.
    """
    elsewhere = {node.name for node in story.plan.nodes("prefill")}
    heaviest: dict[str, tuple[float, RemarkStory, Choice]] = {}
    for name, remark, choice in story.choices():
        if not choice.cost or choice.of in elsewhere or name in ("plan-memory", "plan-graphs"):
            continue
        saved = _next_best(choice) - choice.cost
        if saved > 0 and saved >= (heaviest[name][0] if name in heaviest else 0):
            heaviest[name] = saved, remark, choice
    best = sorted(heaviest.values(), key=lambda launch: -_next_best(launch[2]) / (launch[2].cost or 1))
    return [(remark, choice) for _, remark, choice in best[:MOST_DECISIONS]]


def _next_best(choice: Choice) -> float:
    """What the cheapest alternative of a choice costs; 0 where nothing was counted."""
    return min((other.cost for other in choice.rejected if other.cost is not None), default=0)


def lines(story: Story) -> Iterator[tuple[str, str]]:
    """What matters, a line each: a word, and what there is to say."""
    plan, carry = story.plan, rows(story.plan)
    form, arena = choice_of(story, "select-tree-form"), choice_of(story, "plan-memory")
    if form is not None:
        yield "form", f"{form.chosen}: {form.reason}"
    yield "forwards", _forwards(plan)
    yield "launches", _launches(plan)
    batch, most = max(plan.totals.items())
    yield "reads", f"{most.vocab_bytes_read:,} bytes of logits in a step of {batch} requests, the largest bucket"
    for name, weight in (("head", WEIGHT), ("biases", BIAS_WEIGHT)):
        if weight in plan.inputs:
            yield name, _head(plan, weight)
    if TOKEN_ENTRIES in plan.inputs:
        yield "entries", f"{_bytes(plan, TOKEN_ENTRIES):,} bytes that say which of the draft's entries a token is"
    names = ", ".join(row.name for row in carry)
    yield "carries", f"{sum(row.bytes for row in carry):,} bytes a request" + f": {names}" * bool(names)
    apart = f", {arena.rejected[0].cost:,} without sharing" if arena is not None else ""
    yield "arena", f"{most.arena_bytes:,} bytes{apart}"
    yield "removed", removed_in_short(story)
    for n, (remark, choice) in enumerate(weighty(story)):
        yield "" if n else "decided", decision(choice) + (f" ({remark.place})" if remark.place else "")


def _head(plan: Plan, weight: str) -> str:
    """What is read of weights of the draft's head or of its biases, how often, and whose memory they are."""
    _, scale = MADE_OF[weight]
    size = _bytes(plan, weight, scale)
    reads = sum(weight in call.operands for node in plan.nodes("step") if isinstance(node, Launch) for call in node.ops)
    copied = scale in plan.inputs or TOKEN_MAP in plan.inputs
    whose = "a copy beside the engine's" if copied else "the engine's own"
    return f"{size:,} bytes of weights, {whose}, read {reads} times a step"


def _bytes(plan: Plan, *names: str) -> int:
    """Bytes of the inputs of these names, if there are any."""
    known = [plan.inputs[name] for name in names if name in plan.inputs]
    return sum(DTYPES[entry.dtype].bytes * prod(map(plan.size, entry.axes)) for entry in known)


def decision(choice: Choice) -> str:
    """A choice in a sentence, with its cheapest alternative."""
    counted = [other for other in choice.rejected if other.cost is not None]
    best = min(counted, key=lambda other: other.cost or 0)
    mine, other = cost_of(choice.cost, choice.unit), cost_of(best.cost, choice.unit)
    return f"{choice.of}: {choice.chosen} ({mine}), not {best.what} ({other})"


def cost_of(cost: float | None, unit: str) -> str:
    """A cost with its unit; nothing where none was counted."""
    if cost is None:
        return ""
    amount = f"{cost:,}" if isinstance(cost, int) else f"{cost:,.1f}"
    return f"{amount} {unit.removesuffix('s') if cost == 1 else unit}"


def sized(count: int) -> str:
    """A number of bytes in the largest binary unit of which it has one: ``56 KiB``, ``1.5 MiB``."""
    amount, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} {unit}" if amount == int(amount) or amount >= 100 else f"{amount:.1f} {unit}"


def spelled(value: object) -> str:
    """A value of the configuration, as the file has it; several after one another."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def spans(names: Iterable[str]) -> str:
    """Names in order, those that only count on as one: ``draft_0..2, extend``."""
    stretches: list[tuple[str, int, int]] = []
    for name in names:
        stem, _, number = name.rpartition("_")
        at = int(number) if stem and number.isdecimal() else -1
        if at > 0 and stretches and stretches[-1][0] == stem and stretches[-1][2] == at - 1:
            stretches[-1] = stem, stretches[-1][1], at
        else:
            stretches.append((stem, at, at) if at >= 0 else (name, -1, -1))
    return ", ".join(_span(*stretch) for stretch in stretches)


def _span(stem: str, first: int, last: int) -> str:
    if first < 0:
        return stem
    return f"{stem}_{first}" + (f"..{last}" if last > first else "")


def _forwards(plan: Plan) -> str:
    calls = plan.externals("step")
    forwards = [node for node in calls if runs_a_model(node)]
    of_modes = [(words, [node.name for node in forwards if node.capture == mode]) for mode, words in _KEPT.items()]
    kept = [f"{words} {spans(names)}" for words, names in of_modes if names]
    given = [node.name for node in plan.nodes("step") if isinstance(node, Given)]
    hosts = [node.name for node in calls if node.host]
    more = f"; calls of the host: {spans(hosts)}" if hosts else ""
    more += "; the engine commits recurrent states" if len(forwards) + len(hosts) < len(calls) else ""
    more += f"; the engine hands over {spans(given)}" if given else ""
    return f"{len(forwards)} a step; hidden states: {'; '.join(kept)}{more}"


def _launches(plan: Plan) -> str:
    nodes = plan.nodes("step")
    names = [node.name for node in nodes if isinstance(node, Launch)]
    graphs = sum(capture.entry == "step" for capture in plan.captures)
    most = max(total.host_syncs for total in plan.totals.values())
    others = f", {most} waits for the host" if most else ", no wait for the host"
    torch = [node.name for node in nodes if isinstance(node, Reference)]
    gathers = sum(isinstance(node, Collective) for node in nodes)
    more = f", {len(torch)} by torch ({spans(torch)})" * bool(torch) + f", {gathers} collectives" * bool(gathers)
    where = f" in {graphs} graphs" if graphs > 1 else " in one graph"
    return f"{len(names)} a step{where}{more}{others}: {spans(names)}"


def removed_in_short(story: Story) -> str:
    """What is gone: the first few by name, the others counted."""
    gone = removed(story)
    if not gone:
        return "nothing"
    named = [choice.of for choice in gone if choice.rejected][:MOST_NAMES]
    rest = len(gone) - len(named)
    if not named:
        return gone[0].of if rest == 1 else f"{rest} ops that nothing reads"
    return ", ".join(named) + (f" and {rest} more" if rest else "")
