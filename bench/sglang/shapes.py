"""The shapes of a program, and those that it chooses, beside SGLang's own shapes.

    shapes.py --models DIR --programs DIR --out DIR [--device cpu] [--budget SECONDS] [--limit SECONDS] [PART ...]

First the texts of the example models at every shape beside SGLang's own (`texts`). Then servers one after the other, at
every batch. One has the program, which runs at each of its shapes, then at those it chooses, and last under a load that
rises and falls (`program`). The others are SGLang with a shape of its own, or without speculation (`default`, `chain3`,
`nospec`, `chain5`, `tree16`). `program_map` is a program whose drafts score a quarter of the tokens in 8 bits;
`chain3_map` and `chain5_map` are SGLang with the same map. Accepted lengths are made up: those of a table of --lengths,
by shape. The first table of --tables counts everywhere; for each other one the program's server is started again, and
chooses (`program:TABLE`).
Results: OUT/shapes.json, OUT/shapes.md, OUT/runs; what is in OUT/runs already is not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Queue

import compare
from compare import HERE, Result, Session, numbers, say
from prompts import text_prompts
from report import EQUAL, compare_texts, last_line, machine, share
from variants import SHAPED

OWN, AUTO = "own", "auto"
SHAPES = ("5x4x16", "5x4x8", "3x4x8", "5", "3", "1", "0")
"""Of configs/llama_shapes.yaml, and of its sibling of the example models."""
SERVERS = {
    "default": "5x4x8",
    "chain3": "3",
    "chain5": "5",
    "tree16": "3x4x16",
    "nospec": "0",
    "chain3_map": "map 3",
    "chain5_map": "map 5",
}
"""SGLang's own servers, and the shape of each; behind `map` a server whose draft scores the tokens of a map."""
PROGRAMS = {"program": "", "program_map": "map "}
"""Servers with a program, and what stands in front of its shapes."""
PARTS = ("texts", *PROGRAMS, *SERVERS)
LOAD = [1, 4, 16, 64, 16, 4, 1] * 2
NEAR_BEST, OVER_DEFAULT, OVER_TREE, OVER_OWN = 0.97, 1.10, 1.4, 1.10
Table = Mapping[str, float]


@dataclass(frozen=True)
class Comparison:
    """What is asked for, and where it goes.

    Attributes:
        session: as compare.py's.
        tables: accepted lengths by shape, by name; the first counts everywhere.
        job: replaces keys of every job.

    """

    session: Session
    tables: Mapping[str, Table]
    job: Result

    @cached_property
    def points(self) -> list[list[int]]:
        """Contexts and batches that are timed."""
        points = self.session.points
        return [[context, batch] for context in points.contexts for batch in points.batches]

    def path(self, part: str, suffix: str) -> Path:
        """A file of one part."""
        return self.session.out / "runs" / f"{part.replace(':', '.')}.{suffix}"

    def result(self, part: str) -> Result:
        """What it left; "error" where there is nothing."""
        return compare.left_in(self.path(part, "json"))

    def run(self, part: str) -> None:
        """Start a server and have it measured."""
        name, _, table = part.partition(":")
        variant = SHAPED["ex_eagle_shapes" if name == "texts" else f"shapes_{name}"]
        lengths = self.tables[table or next(iter(self.tables))]
        program = self.session.programs / variant.program if variant.program else None
        job: Result = {
            "engine": variant.engine(self.session.models, self.session.device),
            "sampling": {"temperature": 0},
        }
        if name == "texts":
            job |= {"prompts": text_prompts(self.session.models / "ex_target"), "sides": ["stock", AUTO, *SHAPES]}
        else:
            by_shape = ",".join(f"{shape}:{lengths[shape]}" for shape in SHAPES)
            own = {
                "SGLANG_SIMULATE_ACC_LEN": str(accepted(lengths, SERVERS.get(name, SHAPES[0]))),
                "SPECC_SIMULATE_ACC_LENS": by_shape,
            }
            job |= {"environment": own if variant.algorithm else {}, "points": self.points, "sides": [OWN]}
            if name in PROGRAMS:
                job |= {"sides": [AUTO] if table else [*SHAPES, AUTO], "load": LOAD}
        job |= {key: value for key, value in self.job.items() if key in job or name != "texts"}
        self.path(part, "job").write_text(json.dumps(job))
        settings = compare.environment(self.session, variant, program, "") | job.get("environment", {})
        script = "one.py" if name == "texts" else "shaped.py"
        compare.run_job(self.session, part, script, self.path(part, "job"), settings)


def accepted(lengths: Table, side: str) -> float:
    """The accepted length of a side: its last word is its shape."""
    return lengths[side.split()[-1]]


def report(comparison: Comparison, parts: Iterable[str]) -> Result:
    """All that is known."""
    results = {part: comparison.result(part) for part in parts}
    errors = {part: result["error"] for part, result in results.items() if "error" in result}
    sides = dict[str, dict[str, Result]]()
    for context, batch in comparison.points:
        point = f"{context}x{batch}"
        for name, kind in PROGRAMS.items():
            for shape, rate in results.get(name, {}).get(point, {}).items():
                sides.setdefault(kind + shape, {})[point] = rate
        for name in SERVERS:
            if rate := results.get(name, {}).get(point, {}).get(OWN):
                sides.setdefault(f"SGLang {SERVERS[name]}", {})[point] = rate
    made: Result = {
        "machine": machine(),
        "errors": errors,
        "sides": sides,
        "texts": texts(comparison, results.get("texts", {})),
    }
    made["servers"] = {
        part: {key: result.get(key) for key in ("up_s", "server", "program")} for part, result in results.items()
    }
    made["load"] = {part: result["load"] for part, result in results.items() if "load" in result}
    made["tables"] = {}
    for number, (name, lengths) in enumerate(comparison.tables.items()):
        runs = {kind: results.get(part if not number else f"{part}:{name}", {}) for part, kind in PROGRAMS.items()}
        made["tables"][name] = judged(sides, {kind: run[AUTO] for kind, run in runs.items() if AUTO in run}, lengths)
    made["failures"] = [f"{part}: {last_line(error)}" for part, error in errors.items()]
    made["failures"] += failures(made, next(iter(comparison.tables.values())))
    return made


def texts(comparison: Comparison, result: Result) -> Result:
    """By side: answers that are those of SGLang's own steps, near ties of the target, and the mean accepted length."""
    own = result.get("stock", {})
    target = None
    made: Result = {}
    for side in (AUTO, *SHAPES):
        answered = result.get(side, {})
        lengths = [length for length in answered.get("accept_lengths", []) if length is not None]
        if not (same := compare_texts(answered, own)):
            continue
        made[side] = {"same": same, "accepted": statistics.mean(lengths) if lengths else None, "parting": {}}
        for number, place in enumerate(same["first_difference"]):
            if place is not None:
                from ties import Target

                target = target or Target(comparison.session.models / "ex_target")
                prompt = json.loads(comparison.path("texts", "job").read_text())["prompts"][number]
                ids = answered["output_ids"][number], own["output_ids"][number]
                made[side]["parting"][number] = target.parting(prompt, *ids, place)
    return made


def failures(made: Result, lengths: Table) -> Iterable[str]:
    """What must not be so: texts that part without a near tie, tokens a step that are not those of the table."""
    for side, same in made["texts"].items():
        if far := [str(number) for number, tie in same["parting"].items() if not tie["near"]]:
            yield f"texts of prompts {', '.join(far)} at {side} differ, and no near tie is there"
    for side, by_point in made["sides"].items():
        wanted = accepted(lengths, side)
        got = statistics.mean(rate["tokens_per_step"] for rate in by_point.values())
        if abs(got / wanted - 1) > EQUAL:
            yield f"{side}: {got:.2f} tokens a step, the table has {wanted:.2f}"
    for part, load in made["load"].items():
        if load["short"] or load["left"]:
            yield f"load of {part}: {load['short']} answers are too short, left to SGLang {load['left']}"


def judged(
    sides: Mapping[str, Mapping[str, Result]], chosen: Mapping[str, Mapping[str, Result]], lengths: Table
) -> Result:
    """By batch the tokens a second of each side with these accepted lengths, and what is said of them.

    chosen: what was measured where the program chose the shape, by what stands in front of its shapes.
    """
    rates: dict[str, dict[int, float]] = {}
    for side, by_point in sides.items():
        for point, rate in by_point.items():
            batch = int(point.split("x")[1])
            rates.setdefault(side, {})[batch] = 1e3 * batch * accepted(lengths, side) / rate["ms_per_step"]
    shares: dict[str, dict[int, dict[str, float]]] = {}
    for kind, by_point in chosen.items():
        for point, auto in by_point.items():
            batch, total, each = int(point.split("x")[1]), Counter[str](), list[float]()
            for sample in auto["samples"]:
                total.update(sample["steps"])
                tokens = sum(count * lengths[shape] for shape, count in sample["steps"].items())
                each.append(1e3 * batch * tokens / sample["ms"])
            rates.setdefault(kind + AUTO, {})[batch] = statistics.median(each)
            share = {shape: count / total.total() for shape, count in total.most_common()}
            shares.setdefault(kind + AUTO, {})[batch] = share
    lines = [line for kind in chosen for line in claims(rates, kind)]
    return {"lengths": dict(lengths), "tokens_per_s": rates, "shares": shares, "said": lines}


def claims(rates: Mapping[str, Mapping[int, float]], kind: str) -> Iterable[str]:
    """What is said of a program that chooses its shapes: tokens a second by side and batch.

    Sides of SGLang with a map count where the program has one.
    """
    auto = rates[kind + AUTO]
    fixed = {kind + shape: rates[kind + shape] for shape in SHAPES if kind + shape in rates}
    own = {side: by for side, by in rates.items() if side.startswith("SGLang ") and (kind or "map" not in side)}
    for batch, rate in auto.items():
        best = max(fixed, key=lambda side: fixed[side].get(batch, 0), default=None)
        if best is not None and batch in fixed[best]:
            part = rate / fixed[best][batch]
            yield said(part >= NEAR_BEST, f"{kind}batch {batch}: {part:.3f} of the best single shape, {best}")
        for side, least, batches in (
            ("SGLang 5x4x8", 1.0, (2, 4, 8, 16)),
            ("SGLang 5x4x8", OVER_DEFAULT, (1, 32, 64)),
            ("SGLang 3x4x16", OVER_TREE, (32, 64)),
        ):
            if batch in batches and batch in own.get(side, {}):
                times = rate / own[side][batch]
                yield said(times >= least, f"{kind}batch {batch}: {times:.3f} times {side}, {least} wanted")
    whole = {side: statistics.geometric_mean(by.values()) for side, by in own.items() if by.keys() == auto.keys()}
    if whole:
        best = max(whole, key=whole.__getitem__)
        times = statistics.geometric_mean(auto.values()) / whole[best]
        yield said(times >= OVER_OWN, f"{kind}all batches: {times:.3f} times {best}, {OVER_OWN} wanted")


def said(holds: bool, what: str) -> str:
    """A line of what is judged."""
    return f"{'holds' if holds else 'FAILS'}: {what}"


def tables(made: Result, sources: Mapping[str, Result]) -> str:
    """Markdown."""
    lines = [", ".join(f"{name} {what}" for name, what in made["machine"].items() if what), ""]
    for part, server in made["servers"].items():
        attention = (server["server"] or {}).get("attention_backend")
        lines.append(f"{part}: up after {server['up_s']} s, attention {attention}, {server['program']}")
    for side, same in made["texts"].items():
        gaps = ", ".join(f"{tie['gap']:.3f}" for tie in same["parting"].values()) or "none"
        lines.append(f"texts at {side}: {share(same['same'])}; gaps {gaps}; accepted {same['accepted'] or 1:.2f}")
    points = list(dict.fromkeys(point for by in made["sides"].values() for point in by))
    lines += ["", "ms a step, median (range):", ""]
    lines += grid(
        ["side", *points], [[side, *(spread(by.get(point)) for point in points)] for side, by in made["sides"].items()]
    )
    for name, table in made["tables"].items():
        rates = table["tokens_per_s"]
        batches = list(dict.fromkeys(batch for by in rates.values() for batch in by))
        lines += ["", f"tokens/s with the accepted lengths of {name}. {sources[name]}", ""]
        rows = [[side, *(f"{by[b]:.0f}" if b in by else "-" for b in batches)] for side, by in rates.items()]
        lines += grid(["side", *map(str, batches)], rows)
        for side, by_batch in table["shares"].items():
            for batch, shares in by_batch.items():
                shape = ", ".join(f"{shape} {part:.0%}" for shape, part in shares.items())
                lines.append(f"{side} chose at batch {batch}: {shape}")
        lines += ["", *table["said"]]
    for part, load in made["load"].items():
        lines += [
            "",
            f"load of {part}: {load['answered']} answers, {load['short']} of them too short, "
            f"steps {load['steps']}, left to SGLang {load['left']}",
        ]
        lines += [f"{phase['clients']} clients: {phase['steps']}" for phase in load["phases"]]
    lines += ["", *(f"FAILED {what}" for what in made["failures"])]
    return "\n".join(lines) + "\n"


def spread(rate: Result | None) -> str:
    """Milliseconds and their range."""
    if rate is None:
        return "-"
    low, high = rate["ms_per_step_range"]
    return f"{rate['ms_per_step']:.2f} ({low:.2f} to {high:.2f})"


def grid(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    """A table."""
    return [
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = compare.session_options(__doc__, limit=420)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--lengths", type=Path, default=HERE / "accepted.json", help="tables of accepted lengths")
    parser.add_argument("--tables", default="specforge,vllm", help="which of them, the first for all servers")
    parser.add_argument("--contexts", type=numbers, default=(1024,), metavar="N,...")
    parser.add_argument("--batches", type=numbers, default=(1, 2, 4, 8, 16, 32, 64), metavar="N,...")
    return parser.parse_args()


def main() -> int:
    """Run what is missing, then report on all."""
    options = arguments()
    (options.out / "runs").mkdir(parents=True, exist_ok=True)
    described: dict[str, Result] = json.loads(options.lengths.read_text())
    names = options.tables.split(",")
    chosen = {name: described[name]["published"] | described[name]["made_up"] for name in names}
    folders = (path.resolve() for path in (options.models, options.programs, options.out))
    points = compare.Points(options.contexts, options.batches, ())
    deadline = time.monotonic() + options.budget
    session = Session(*folders, options.device, deadline, options.limit, {}, Queue(), points)
    comparison = Comparison(session, chosen, {"tokens": 192} | options.job)
    every = [*PARTS, *(f"program:{name}" for name in names[1:])]
    for part in options.parts or every:
        if "error" in comparison.result(part):
            comparison.run(part)
    made = report(comparison, every)
    (options.out / "shapes.json").write_text(json.dumps(made, indent=1))
    sources = {name: f"{described[name]['source']} Made up: {described[name]['made_up']}." for name in names}
    text = tables(made, sources)
    (options.out / "shapes.md").write_text(text)
    say(text)
    return int(bool(made["failures"]))


if __name__ == "__main__":
    sys.exit(main())
