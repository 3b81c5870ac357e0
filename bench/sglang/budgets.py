"""A program whose requests share the target's rows out beside SGLang's own shapes, by requests that are unlike.

    budgets.py --models DIR --programs DIR --out DIR [--budget SECONDS] [--limit SECONDS] [--spread 0,1] [FAMILY ...]

A family is a target and its draft (`FAMILIES`, by default all). Servers are started one after the other. One has the
program, which runs SGLang's own steps, then each of its shapes, at every batch; the others are SGLang with a shape of
its own. What is measured is the time of a step. Tokens are computed, of requests whose drafts are right as often as
published, at every place, on average over requests. With --spread they differ: the log-odds of a request's drafts are
apart from those of others by a normal number of that deviation. The draft knows of each request how often it is right
and of no single draft whether it is, so that this is less than what a draft's own probabilities tell. With a spread of
`inf` it knows of every draft whether it is right: no choice of rows has more tokens.
Results: OUT/budgets.json, OUT/budgets.md, OUT/runs; what is in OUT/runs already is not run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from queue import Queue
from statistics import NormalDist

import compare
import torch
from compare import Result, Session, numbers, say
from report import machine
from torch import Tensor
from variants import BUDGETED

OWN = compare.SIDES[:1]
"""The side of SGLang's own steps, which every server has."""
DRAWS = 400
"""Batches of requests that are drawn for each number of tokens."""
GRID = [NormalDist().inv_cdf((number + 0.5) / 999) for number in range(999)]


@dataclass(frozen=True)
class Family:
    """Servers that are compared.

    Attributes:
        program: the variant whose server has the program, of a shape of SGLang's.
        own: the others, SGLang's own.
        rates: how often a draft is right at each place, where those before it are; the last one counts for all behind.
        source: who published that, and of what.

    """

    program: str
    own: tuple[str, ...]
    rates: tuple[float, ...]
    source: str


FAMILIES = {
    "eagle3": Family(
        "budget8_eagle3",
        ("budget8_chain5", "budget8_chain2", "budget8_chain1", "budget8_nospec"),
        (0.71, 0.49 / 0.71, 0.32 / 0.49, 0.21 / 0.32, 0.14 / 0.21),
        "vllm-project/vllm pull request 32628: EAGLE3 on HumanEval, right by place 71, 49, 32, 21 and 14 %",
    ),
    "blocks": Family(
        "budget14_blocks",
        ("budget14_block8", "budget14_block4", "budget14_nospec"),
        (0.795,),
        "Red Hat AI's DFlash draft of Qwen3-8B on math: 82 % right at the first place, 3.74 drafts a step",
    ),
}


def survivals(rates: Sequence[float], drafts: int, spread: float, draw: Sequence[float] | Tensor) -> Tensor:
    """How probably each of so many drafts is accepted f64[n, drafts], of requests whose log-odds are apart by `draw`.

    The mean over all requests is that of `rates` at every place.
    """
    grid = torch.tensor(GRID, dtype=torch.float64)
    apart = spread * torch.as_tensor(draw, dtype=torch.float64)
    alive, of_grid, made, mean = torch.ones_like(apart), torch.ones_like(grid), list[Tensor](), 1.0
    for place in range(drafts):
        mean *= rates[min(place, len(rates) - 1)]
        low, high = -20.0, 20.0
        while high - low > 1e-9:
            odds = (low + high) / 2
            less = float((of_grid * torch.sigmoid(odds + spread * grid)).mean()) < mean
            low, high = (odds, high) if less else (low, odds)
        of_grid = of_grid * torch.sigmoid(low + spread * grid)
        alive = alive * torch.sigmoid(low + apart)
        made.append(alive)
    return torch.stack(made, -1) if made else apart.new_zeros(len(apart), 0)


@cache
def expected(rates: tuple[float, ...], spread: float, drafts: int, rows: int, batch: int) -> float:
    """Tokens of a request in a step of so many drafts, whose batch shares `rows` of the target out for each request.

    With an infinite spread no row goes to a draft that fails.
    """
    if spread == inf:
        return 1 + min(rows - 1, float(survivals(rates, drafts, 0, [0]).sum()))
    draw = torch.randn(DRAWS * batch, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    chances = survivals(rates, drafts, spread, draw).view(DRAWS, -1)
    verified = chances.sort(dim=1, descending=True).values[:, : (rows - 1) * batch]
    return 1 + float(verified.sum()) / (DRAWS * batch)


def sizes(side: str) -> tuple[int, int]:
    """Drafts and rows of a side, by its name: 5, or 5b3 of three rows."""
    drafts, _, rows = side.partition("b")
    return int(drafts), int(rows or int(drafts) + 1)


def run(session: Session, family: Family) -> None:
    """Start its servers, one after the other."""
    for variant in map(BUDGETED.__getitem__, (family.program, *family.own)):
        if "error" in session.result(variant, OWN):
            program = session.programs / variant.program if variant.program else None
            job = session.path(variant, OWN, "job")
            job.write_text(json.dumps(compare.make_job(session, variant, [*OWN, *shapes_of(program)], None)))
            compare.run_job(session, variant.name, "one.py", job, compare.environment(session, variant, program, ""))


def shapes_of(program: Path | None) -> list[str]:
    """The names of the shapes of a program that is unpacked."""
    return list(json.loads((program / program.name / "manifest.json").read_text())["plans"]) if program else []


def milliseconds(session: Session, family: Family) -> Iterator[tuple[bool, str, str, float]]:
    """Of every side whether it is the program's, its name, prompt and batch, and the time of a step."""
    for variant in map(BUDGETED.__getitem__, (family.program, *family.own)):
        for side, points in session.result(variant, OWN).items():
            for point, rate in points.items() if isinstance(points, dict) else ():
                if isinstance(rate, dict) and "ms_per_step" in rate:
                    mine = side not in OWN
                    yield mine, side if mine else str(variant.shape[0]), point, rate["ms_per_step"]


def report(session: Session, names: Iterable[str], spreads: Iterable[float]) -> Result:
    """By family and point the time of every side, and by spread its tokens a second, those of the best, their ratio."""
    made: Result = {"machine": machine(), "families": {}}
    for name in names:
        family = FAMILIES[name]
        points: dict[str, dict[str, dict[str, float]]] = {}
        for mine, side, point, time_ms in milliseconds(session, family):
            points.setdefault(point, {"program": {}, "SGLang": {}})["program" if mine else "SGLang"][side] = time_ms
        made["families"][name] = {"source": family.source, "points": points, "spreads": {}}
        for spread in spreads:
            judged = {point: best(family, spread, sides, int(point.split("x")[1])) for point, sides in points.items()}
            made["families"][name]["spreads"][str(spread)] = judged
    return made


def best(family: Family, spread: float, sides: Mapping[str, Mapping[str, float]], batch: int) -> Result:
    """Tokens a second of all sides at a batch, the best of both, and how much the program's is of SGLang's."""
    rates = {
        who: {side: 1e3 * batch * expected(family.rates, spread, *sizes(side), batch) / ms for side, ms in of.items()}
        for who, of in sides.items()
    }
    tops = {who: max(of.items(), key=lambda pair: pair[1], default=("", 0.0)) for who, of in rates.items()}
    both = all(of for of in rates.values())
    return {"tokens_per_s": rates, "best": tops, "ratio": tops["program"][1] / tops["SGLang"][1] if both else None}


def tables(made: Result) -> str:
    """The same to read."""
    lines = list[str]()
    for name, family in made["families"].items():
        lines += [f"## {name}", "", family["source"], "", "milliseconds a step", ""]
        batches = [point.split("x")[1] for point in family["points"]]
        head = ["| | " + " | ".join(batches) + " |", "|---" * (len(batches) + 1) + "|"]
        sides = {(who, side) for of in family["points"].values() for who, by in of.items() for side in by}
        lines += head
        for who, side in sorted(sides):
            times = [family["points"][point][who].get(side) for point in family["points"]]
            lines.append(f"| {who} {side} | " + " | ".join("" if ms is None else f"{ms:.2f}" for ms in times) + " |")
        lines += ["", "tokens a second over the best of SGLang's own shapes, and which two these are", "", *head]
        for spread, by_point in family["spreads"].items():
            cells = [
                ""
                if entry["ratio"] is None
                else f"{entry['ratio']:.2f} ({entry['best']['program'][0]}, {entry['best']['SGLang'][0]})"
                for entry in by_point.values()
            ]
            lines.append(f"| spread {spread} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    """Run what is missing, then report on all that was asked for."""
    parser = compare.session_options(__doc__, limit=240)
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES], metavar="FAMILY")
    parser.add_argument("--contexts", type=numbers, default=(1024,), metavar="N,...")
    parser.add_argument("--batches", type=numbers, default=(1, 8, 32, 64, 128), metavar="N,...")
    parser.add_argument("--spread", default="0,1,1.5,inf", metavar="X,...")
    options = parser.parse_args()
    names = options.families or [*FAMILIES]
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    folders = (folder.resolve() for folder in (options.models, options.programs, options.out))
    gpus: Queue[str] = Queue()
    points = compare.Points(options.contexts, options.batches, ())
    deadline = time.monotonic() + options.budget
    session = Session(*folders, options.device, deadline, options.limit, options.job, gpus, points)
    for name in names:
        run(session, FAMILIES[name])
    made = report(session, names, map(float, options.spread.split(",")))
    (options.out / "budgets.json").write_text(json.dumps(made, indent=1))
    (options.out / "budgets.md").write_text(tables(made))
    say(tables(made))
    missing = [name for name, of in made["families"].items() if not of["points"]]
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
