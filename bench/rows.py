"""Sampled verification of a tree: all rows drawn at once against the rows of the accepted path, one after the other.

    python bench/rows.py [--json FILE] [--check-only]

Two programs that differ in `verify_rows` alone, on the same tensors, in this process. What their steps decide must be
the same before anything is timed. A line has the launches from the target's logits to the committed lengths, eager over
lazy, both captured, and the mean accepted length, on which it depends.
Without a GPU steps are compared on tiny shapes, in Triton's interpreter. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import harness
import torch
from sampling import DTYPES, REQUEST, verification

from specc.lab.measure.against.compare import most_runs
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import WorkSizes, differences
from specc.lab.measure.against.work_tree import TreeWork
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.timing import Effort, capture, pairs

REAL = [(topk, steps, nodes, vocab, batch)
        for topk, steps, nodes in ((4, 3, 16), (8, 4, 48), (8, 5, 64))
        for vocab in (32000, 128256)
        for batch in (1, 8, 64)]  # fmt: skip
TINY = [(2, 2, 5, 120, 2)]
FILTERS: tuple[tuple[str, ...], ...] = ((), ("top_k", "top_p", "min_p"), ("penalties",))
PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
FORMS = ("eager", "lazy")
EFFORT = Effort(copies=10, samples=30)
STEPS = 3
"""Steps that are compared."""


class SampledTree(TreeWork):
    """A tree whose nodes go on to one of their children mostly, in requests that are sampled."""

    def __init__(self, shape: WorkSizes, device: torch.device, sampling: tuple[str, ...], *, runs: int) -> None:
        super().__init__(shape, device, runs=runs)
        names = ["seed", "temperature", *(name for name in sampling if name in REQUEST)]
        for name in names:
            value = torch.full((shape.pool,), REQUEST.get(name, 0), device=device)
            self.pools[f"sampling_{name}"] = value.to(DTYPES.get(name, torch.float32))
        if "penalties" in sampling:
            for name, value in PENALTIES.items():
                self.pools[f"sampling_{name}"] = torch.full((shape.pool,), value, device=device)
            counts = torch.randint(0, 60, (shape.pool, shape.vocab), generator=self._source, device=device)
            self.pools["sampling_counts"] = torch.where(counts < 4, counts, 0).to(torch.int32)


class Line(NamedTuple):
    """A case, eager over lazy, and what it depends on."""

    case: dict[str, object]
    eager_over_lazy: Ratio
    accepted: float


def sides(device: torch.device) -> Iterator[tuple[dict[str, ProgramLaunches], dict[str, object]]]:
    """Both programs of every case."""
    for topk, steps, nodes, vocab, batch in REAL if harness.ON_GPU else TINY:
        for sampling in FILTERS:
            width = 4096 if harness.ON_GPU else 40
            shape = WorkSizes(batch, steps, nodes, vocab, width, batch + 1, topk)
            work = SampledTree(shape, device, sampling, runs=most_runs(EFFORT))
            forms: dict[str, ProgramLaunches] = {}
            with ExitStack() as stack:
                for form in FORMS:
                    keys = f"verify: target_only\nverify_rows: {form}\nsampling: [{', '.join(sampling)}]\n"
                    program = harness.compiled(shape, [batch], device, keys=keys)
                    forms[form] = ProgramLaunches(work, *stack.enter_context(program))
                case: dict[str, object] = {"K": topk, "S": steps, "N": nodes, "V": vocab, "B": batch}
                yield forms, case | {"sampling": " ".join(sampling) or "none"}


def check(forms: dict[str, ProgramLaunches], label: str) -> float:
    """The mean accepted length; SystemExit unless steps decide the same in both forms."""
    accepted = 0.0
    for step in range(STEPS):
        eager, lazy = (forms[form].observed_step() for form in FORMS)
        if wrong := differences(lazy, eager):
            raise SystemExit(f"{label}: results differ in step {step} ({', '.join(wrong)}); nothing is reported")
        accepted = float(eager["accept_lens"].float().mean())
    print(f"{label}: same results over {STEPS} steps, {accepted:.2f} accepted in the last", flush=True)
    return accepted


def line(forms: dict[str, ProgramLaunches], case: dict[str, object], accepted: float) -> Line:
    """Captured against captured."""
    runs = [forms[form].queueing(verification(forms[form])) for form in FORMS]
    eager, lazy = (capture(run, EFFORT.copies) for run in runs)
    return Line(case, Ratio.of(*pairs(eager.replay, lazy.replay, EFFORT.samples)), accepted)


def main() -> None:
    """Compare, then time if there is a GPU."""
    options, device = harness.parser(__doc__).parse_args(), harness.device()
    lines: list[Line] = []
    for forms, case in sides(device):
        accepted = check(forms, " ".join(f"{key}={value}" for key, value in case.items()))
        if harness.ON_GPU and not options.check_only:
            lines.append(line(forms, case, accepted))
            print(f"  eager/lazy {lines[-1].eager_over_lazy}", flush=True)
    if options.json is not None:
        record = [
            result.case | {"accepted": result.accepted, "eager/lazy": vars(result.eager_over_lazy)} for result in lines
        ]
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
