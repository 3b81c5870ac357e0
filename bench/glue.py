"""The glue of a greedy step: specc's kernels against SGLang 0.5.23's own, which do the same work.

    python bench/glue.py [--only chain|tree] [--json FILE] [--check-only]

Both sides run in this process, on the same tensors, and must give the same results before anything is timed. Only
ratios are reported. Without a GPU the results are compared on tiny shapes, in Triton's interpreter, and nothing is
timed; without SGLang nothing is compared. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import harness
import torch

from specc.compiler.kernels.writing.traffic import Traffic
from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.measure.against import compare
from specc.lab.measure.against.beside import agreeing, effort_of, missing
from specc.lab.measure.against.parts import StepPart, parts
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import WorkSizes
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.steps import tokens_moved
from specc.lab.measure.timing import Effort, Floors, Run, capture, nothing, pairs

if TYPE_CHECKING:  # it needs SGLang
    from specc.lab.measure.against.sequence import Sequence as Baseline

BATCHES = (1, 8, 64) if harness.ON_GPU else (1, 3)
EFFORT = Effort(copies=10, samples=40)
"""To find out whether a launch or a copy takes longer."""
COLUMNS = {"K": "topk", "S": "steps", "N": "nodes", "page": "page", "V": "vocab", "B": "batch"}


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        captured: their captured graph over ours.
        replay: their eager launches over one replay of ours.
        floor: ours over its floor.
    """

    work: str
    shape: WorkSizes
    captured: Ratio
    replay: Ratio
    floor: Ratio

    def cells(self) -> tuple[str, ...]:
        """As text, in the order of the table."""
        return self.work, *map(str, case(self.shape).values()), str(self.captured), str(self.replay), str(self.floor)

    def record(self) -> dict[str, object]:
        """As JSON."""
        ratios = {name: vars(getattr(self, name)) for name in ("captured", "replay", "floor")}
        return {"work": self.work, **case(self.shape), **ratios}


def case(shape: WorkSizes) -> dict[str, int]:
    """What tells the lines of a part apart."""
    return {column: getattr(shape, name) for column, name in COLUMNS.items()}


def programs() -> dict[str, list[WorkSizes]]:
    """One shape per program. Pages matter to a tree's `prepare` alone, vocabularies do not, so one has pages."""
    most = max(BATCHES)
    if not harness.ON_GPU:
        tiny = WorkSizes(most, 3, 6, 300, 40, 5, topk=2, layers=2, heads=1, head_dim=8)
        return {
            "chain": [WorkSizes(most, 3, 4, vocab, 40, 65) for vocab in (300, 2049)],
            "tree": [tiny, paged(tiny, 4)],
        }
    chains = [WorkSizes(most, 3, 4, vocab, 4096, 65) for vocab in (32000, 128256)]
    small = WorkSizes(most, 3, 16, 32000, 4096, 65, topk=4, layers=32)
    large = replace(small, topk=8, steps=5, nodes=64)
    wide = [replace(shape, vocab=128256) for shape in (small, large)]
    return {"chain": chains, "tree": [small, large, *wide, paged(small, 16), paged(large, 16)]}


def paged(shape: WorkSizes, page: int) -> WorkSizes:
    """The same with pages of so many tokens."""
    return replace(shape, page=page)


def lines(shape: WorkSizes, device: torch.device, floors: Floors | None) -> Iterator[Line]:
    """Compare both sides of a program at every batch, then time what they do; of pages the part that they change."""
    with harness.compiled(shape, BATCHES, device) as (plan, backend):
        for batch in BATCHES:
            at, effort = replace(shape, batch=batch), effort_of(plan)
            label = " ".join(f"{name}={value}" for name, value in case(at).items())
            try:
                program, counterpart = agreeing(plan, backend, device, batch, effort)
            except DiagnosticError as error:
                raise SystemExit(f"{label}: {error}; nothing is reported") from error
            print(f"{label}: same results over {compare.COMPARED_STEPS} steps", flush=True)
            counts = bytes_moved(program)
            if floors is None:
                continue
            for part in parts(program, counterpart):
                if at.page == 1 or "duplication" in part.work:
                    least = floors.run([counts[node.name] for node in part.launches])
                    yield line(part, at, program, counterpart, least, effort)


def bytes_moved(program: ProgramLaunches) -> dict[str, int]:
    """What each launch of a step has to move, found just before it runs: later ones write where it reads."""
    traffic, counts = Traffic.of_plan(program.plan), dict[str, int]()
    program.reset()
    for node in program.launches:
        counts[node.name] = traffic.launch(node.ops, program.work.shape.batch, tokens_moved(program.frame, node))
        program.backend.launch(node, program.frame)
    return counts


def line(
    part: StepPart, shape: WorkSizes, program: ProgramLaunches, counterpart: Baseline, least: Run, effort: Effort
) -> Line:
    """Captured against captured, eager against one replay, ours against its floor."""
    ratio, graph = compare.captured(part, program, counterpart, effort)
    program.reset()
    counterpart.reset()
    single = capture(program.queueing(part.launches), 1)
    replay, eager = pairs(single.replay, part.sglang, effort.samples, (program.reset, counterpart.reset))
    floor = capture(least, effort.copies)
    again, least_times = pairs(graph.replay, floor.replay, effort.samples, (program.reset, nothing))
    return Line(part.work, shape, ratio, Ratio.of(eager, replay), Ratio.of(again, least_times))


def report(results: Sequence[Line], path: Path | None) -> None:
    """Print the table, write the file."""
    rows = [
        ("work", *COLUMNS, "captured/captured", "eager/replay", "ours/floor"),
        *(result.cells() for result in results),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if path is not None:
        record = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        path.write_text(json.dumps(record | {"ratios": [result.record() for result in results]}, indent=2) + "\n")


def main() -> None:
    """Compare, then time if there is a GPU."""
    accepted = harness.parser(__doc__)
    accepted.add_argument("--only", choices=sorted(programs()), help="one form")
    options, device = accepted.parse_args(), harness.device()
    if why := missing():
        print(f"nothing is compared: {why}")
        return
    if not harness.ON_GPU:
        print("no CUDA device: comparing results in Triton's interpreter, timing nothing")
    results: list[Line] = []
    for form, shapes in programs().items():
        floors = Floors(device, EFFORT) if harness.ON_GPU and not options.check_only else None
        for shape in shapes if options.only in (None, form) else ():
            results += lines(shape, device, floors)
    if results:
        report(results, options.json)


if __name__ == "__main__":
    main()
