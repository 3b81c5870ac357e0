"""The head of a draft: a program's launches against the product and the reduction that an engine runs.

    python bench/heads.py [--json FILE] [--check-only]

Both sides begin with the same hidden rows, and end with the token of the largest logit, or with the K most probable
ones and their probabilities. The engine's side is torch's product in bf16 and its reduction of logits in f32, over all
entries of the vocabulary; the program's is its head and the merge behind it, over all entries or those of a map. Both
are captured. A line has engine over program, and program over a copy that moves as many bytes as the weights. Tokens
are compared first: those of a head in bf16 must be the largest of the product in f32, of rows without near ties; of
8 bits, how many are the same is said. Without a GPU tiny shapes are compared, in Triton's interpreter.
docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import harness
import torch

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.lab.measure.backends import cuda_backend
from specc.lab.measure.interpreted import InterpretedBackend
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.session import Session
from specc.lab.measure.timing import Effort, Floors, Run, capture, pairs
from specc.runtime.plan.draft_head import HEAD, WEIGHT
from specc.runtime.plan.nodes import Launch
from specc.runtime.plan.plan import TOKEN_MAP
from specc.runtime.semantics.reference import OPS

CONFIG = """\
name: bench_head
algorithm: EAGLE
topk: {topk}
num_steps: 2
num_draft_tokens: {nodes}
buckets: [{rows}]
archs: [sm_90]
target: {{hidden_size: {width}, num_layers: 1, num_kv_heads: 1, head_dim: 16, vocab_size: {vocab}, dtype: {dtype}}}
draft:
  {{hidden_size: {width}, num_layers: 1, num_kv_heads: 1, head_dim: 16, vocab_size: {entries}, dtype: {dtype},
   head: {head}{mapped}}}
"""
EFFORT = Effort(copies=10, samples=30)
NEAR = 2.0**-6
"""Rows whose two largest logits are nearer than this part of the largest are left out where tokens are compared."""


@dataclass(frozen=True)
class Case:
    """One head: requests, drafts kept of each, tokens, those that are scored, the width, how weights are kept."""

    rows: int
    topk: int
    vocab: int
    entries: int
    width: int
    head: str

    def text(self) -> str:
        """The configuration; in the interpreter rows are of 32 bits."""
        nodes = 3 if self.topk == 1 else 1 + 2 * self.topk
        mapped = ", token_map: engine" if self.entries < self.vocab else ""
        return CONFIG.format(
            **asdict(self), nodes=nodes, mapped=mapped, dtype="bfloat16" if harness.ON_GPU else "float32"
        )


REAL = [
    Case(rows, topk, 128256, entries, width, head)
    for topk, width in ((1, 4096), (1, 2048), (4, 4096))
    for entries in (128256, 32768)
    for head in ("weights", "int8", "fp8")
    for rows in (1, 4, 8, 32, 64, 256)
    if topk == 1 or rows <= 64
]
TINY = [
    Case(rows, topk, 500, entries, 96, head)
    for rows, topk, entries, head in ((1, 1, 500, "weights"), (3, 2, 500, "int8"), (5, 1, 200, "fp8"))
]


class Line(NamedTuple):
    """A case, its engine's time over its own, and its own over that of a copy of as many bytes."""

    case: Case
    engine_over_program: Ratio
    program_over_copy: Ratio


class Sides:
    """Both sides of a case, on the same rows and weights."""

    def __init__(self, case: Case, session: Session) -> None:
        """Find the launches behind the first forward of the draft: halves of 8 bits, the head, the merge."""
        self.case, self.session = case, session
        nodes = list(session.plan.nodes("step"))
        first = next(i for i, node in enumerate(nodes) if getattr(node, "callback", "") == "draft")
        behind = nodes[first + 1 : first + (3 if case.head == "weights" else 4)]
        self.launches = [node for node in behind if isinstance(node, Launch)]
        calls = [launch.ops[0] for launch in self.launches]
        assert [call.op.partition(".")[0] for call in calls] == ["head"] * (len(calls) - 1) + ["vocab"]
        self.call, frame = calls[-2], session.frame
        self.states = frame.read(calls[0].operands[0]).flatten(0, -2)
        tokens, head = session.engine_tables.get(TOKEN_MAP), session.engine_tables[HEAD]
        self.whole, self.scored = head, head if tokens is None else head[tokens]

    def program(self) -> None:
        """Queue the program's launches."""
        for launch in self.launches:
            self.session.backend.launch(launch, self.session.frame)

    def engine(self) -> None:
        """Queue the product in the weights' dtype, and its reduction."""
        logits = (self.states @ self.whole.T).float()
        if self.case.topk == 1:
            logits.argmax(-1)
        else:
            torch.softmax(logits, -1).topk(self.case.topk)

    def agree(self) -> float:
        """The part of rows without near ties whose first entry is that of the product in f32; records are merged by
        the reference.
        """
        best = (self.states.float() @ self.scored.float().T).topk(2)
        clear = best.values[:, 0] - best.values[:, 1] > NEAR * best.values[:, 0].abs()
        records, rows = self.session.frame.read(self.call.results[0]), torch.ones(self.case.rows, dtype=torch.int64)
        merge = "vocab.argmax_merge" if self.case.topk == 1 else "vocab.topk_merge"
        merged = OPS[merge]((records.cpu(), rows), {"dtype": "i64"}, {"K": self.case.topk})
        first = merged[0] if self.case.topk == 1 else merged[1][..., 0]
        same = first.flatten() == best.indices[:, 0].cpu()
        return float(same[clear.cpu()].float().mean()) if clear.any() else 1.0


def sides(device: torch.device) -> Iterator[Sides]:
    """Both sides of every case."""
    for case in REAL if harness.ON_GPU else TINY:
        build = build_program(load_text(case.text(), Path("bench_head.yaml"), names(), needs))
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            backend = cuda_backend(build, root, device) if harness.ON_GPU else InterpretedBackend(build, root)
            yield Sides(case, Session(build.plan, backend, device, case.rows, steps=1))


def check(both: Sides) -> None:
    """SystemExit unless the program's head in full has the tokens of the product; of 8 bits, say how many it has."""
    both.program()
    same, case = both.agree(), both.case
    if case.head == "weights" and same < 1:
        raise SystemExit(f"{case}: {same:.3f} of the tokens are those of the product; nothing is reported")
    print(f"{case}: {same:.3f} of the tokens are those of the product", flush=True)


def line(both: Sides, device: torch.device) -> Line:
    """Captured against captured."""
    weights = both.session.tables[WEIGHT]
    copy: Run = Floors(device, EFFORT).run([weights.numel() * weights.element_size()])
    engine, program, copied = (capture(run, EFFORT.copies) for run in (both.engine, both.program, copy))
    over = Ratio.of(*pairs(engine.replay, program.replay, EFFORT.samples))
    return Line(both.case, over, Ratio.of(*pairs(program.replay, copied.replay, EFFORT.samples)))


def main() -> None:
    """Compare, then time if there is a GPU."""
    options, device = harness.parser(__doc__).parse_args(), harness.device()
    lines: list[Line] = []
    for both in sides(device):
        check(both)
        if harness.ON_GPU and not options.check_only:
            lines.append(line(both, device))
            print(f"  engine/program {lines[-1].engine_over_program}, program/copy {lines[-1].program_over_copy}")
    if options.json is not None:
        record = [
            asdict(line.case)
            | {"engine/program": vars(line.engine_over_program), "program/copy": vars(line.program_over_copy)}
            for line in lines
        ]
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
