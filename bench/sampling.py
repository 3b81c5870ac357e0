"""Sampled verification of a chain: specc's kernels against what SGLang 0.5.23 does before its own kernel samples.

    python bench/sampling.py [--json FILE] [--check-only]

Ours is everything from the target's logits to the committed lengths, thresholds of filters included. Theirs is torch's,
in the order of SGLang's eagle_utils.py: temperatures, softmax, the filters' renormalised probabilities, the zeroed
probabilities of the draft and the uniforms; the kernel that then samples is left out, in its favour. Both sides run in
this process, and our tokens must be those of the references before anything is timed. Only ratios are reported.
Without a GPU tokens are compared on tiny shapes, in Triton's interpreter. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import harness
import torch
from torch import Tensor

from specc.lab.measure.against.compare import most_runs
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import Work, WorkSizes
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.timing import Effort, Floors, capture, nothing, pairs
from specc.runtime.plan.nodes import Launch
from specc.runtime.semantics.reference import OPS

VOCABULARIES, BATCHES, STEPS, WIDTH, POOL = (32000, 128256), (1, 8, 64), 3, 4096, 65
TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH = (300,), (1, 3), 40
FILTERS: tuple[tuple[str, ...], ...] = ((), ("top_k",), ("top_p",), ("top_k", "top_p", "min_p"))
REQUEST: dict[str, float] = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05}
DTYPES = {"seed": torch.int64, "top_k": torch.int32}
EFFORT = Effort(copies=10, samples=30)
CLOSE = 2e-3
"""Of all tokens those that may differ from the reference's: where two candidates are as close as rounding."""


class SampledWork(Work):
    """Requests that are sampled.

    Peaked logits are such that the probability falls with the rank to the power of 1.3, as a model's do, times noise;
    flat ones are normal with a deviation of 2.5, and thousands of tokens have nine tenths.
    """

    def __init__(
        self, shape: WorkSizes, device: torch.device, filters: tuple[str, ...], *, peaked: bool, runs: int
    ) -> None:
        super().__init__(shape, device, runs=runs)
        self.filters, self.peaked = filters, peaked
        normal = self.target_logits.float()
        falling = 0.3 * normal - 1.3 * (1.0 + normal.argsort(-1).argsort(-1)).log()
        self.target_logits = (falling if peaked else 2.5 * normal).bfloat16()
        for name in ("seed", "temperature", *filters):
            value = torch.full((shape.pool,), REQUEST.get(name, 0), device=device)
            self.pools[f"sampling_{name}"] = value.to(DTYPES.get(name, torch.float32))
        self.pools["sampling_seed"] += torch.arange(shape.pool, device=device)

    def arrange(self) -> None:
        """Nothing: which drafts are accepted is drawn."""


class SoftmaxSequence:
    """The target's probabilities as SGLang makes them for its sampling kernels, from f32 logits."""

    def __init__(self, work: SampledWork) -> None:
        shape = work.shape
        self._filters = work.filters
        self._logits = work.target_logits.float().view(-1, shape.vocab)
        self._pools = {name: work.pools[f"sampling_{name}"][work.rows] for name in ("temperature", *work.filters)}
        self._batch, self._nodes = shape.batch, shape.nodes

    def probabilities(self) -> Tensor:
        """f32[B * N, V] of the target, by temperatures and filters."""
        each = {name: value.repeat_interleave(self._nodes) for name, value in self._pools.items()}
        probs = torch.softmax(self._logits / each["temperature"][:, None], dim=-1)
        if "top_k" in self._filters:
            ordered = probs.sort(dim=-1, descending=True).values
            pivot = ordered.gather(1, each["top_k"][:, None].long() - 1)
            probs = _renormalised(probs, pivot)
        if "top_p" in self._filters:
            ordered = probs.sort(dim=-1).values
            cutoff = torch.searchsorted(ordered.cumsum(-1), (1 - each["top_p"])[:, None])
            probs = _renormalised(probs, ordered.gather(1, cutoff.clamp(max=probs.shape[1] - 1)))
        return probs

    def coins(self) -> tuple[Tensor, Tensor]:
        """Uniforms of nodes f32[B, N], and of the last token f32[B]."""
        device = self._logits.device
        return torch.rand(self._batch, self._nodes, device=device), torch.rand(self._batch, device=device)

    def step(self) -> None:
        """Everything up to the call of the kernel that samples."""
        torch.zeros_like(self.probabilities())
        self.coins()


def _renormalised(probs: Tensor, pivot: Tensor) -> Tensor:
    """What is not below a pivot of its row, in shares of it."""
    kept = torch.where(probs >= pivot, probs, 0.0)
    return kept / kept.sum(-1, keepdim=True)


@dataclass(frozen=True)
class Line:
    """One line: a case, their captured graph over ours, ours over its floor."""

    case: dict[str, object]
    captured: Ratio
    floor: Ratio


def verification(program: ProgramLaunches) -> list[Launch]:
    """The launches that find cuts, draw and walk."""
    return [node for node in program.launches if node.name.startswith(("cut", "verify"))]


def check(program: ProgramLaunches, work: SampledWork) -> None:
    """SystemExit unless the tokens of accepted nodes are those that the references draw."""
    shape, rows = work.shape, work.rows
    seq_lens = program.pool("seq_lens")[rows].clone()
    seen = program.observed_step()
    positions = seq_lens[:, None] + torch.arange(shape.nodes, device=work.device)
    request = {name: work.pools[f"sampling_{name}"][rows] for name in ("seed", "temperature", *work.filters)}
    given = request["seed"], request["temperature"], positions
    keys, scales = OPS["sample.keys"](given, {"offset": 1, "kind": 0}, {})
    cuts: tuple[Tensor, ...] = ()
    for name in work.filters:
        cuts = OPS[f"sample.{name}"]((work.target_logits, scales, request[name], *cuts), {}, {})
    token, _ = OPS["sample.draw"]((work.target_logits, rows, keys, scales, *cuts), {"dtype": "i32"}, {})
    accepted = torch.arange(shape.nodes, device=work.device) < seen["accept_lens"][:, None]
    wrong = int(((seen["predict"] != token) & accepted).sum())
    if wrong > max(CLOSE * int(accepted.sum()), 0):
        raise SystemExit(f"{wrong} of {int(accepted.sum())} tokens are not those of the reference")


def sides(device: torch.device) -> Iterator[tuple[ProgramLaunches, SampledWork]]:
    """Every program at every batch."""
    real, tiny = (VOCABULARIES, BATCHES, WIDTH), (TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH)
    vocabularies, batches, width = real if harness.ON_GPU else tiny
    for vocab in vocabularies:
        for filters in FILTERS:
            shapes = [WorkSizes(batch, STEPS, STEPS + 1, vocab, width, POOL) for batch in batches]
            keys = f"verify: target_only\nsampling: [{', '.join(filters)}]\n"
            with harness.compiled(shapes[-1], batches, device, keys=keys) as (plan, backend):
                for shape, peaked in product(shapes, (True, False) if filters else (True,)):
                    work = SampledWork(shape, device, filters, peaked=peaked, runs=most_runs(EFFORT))
                    yield ProgramLaunches(work, plan, backend), work


def line(program: ProgramLaunches, work: SampledWork, floors: Floors) -> Line:
    """Captured against captured, and ours against a copy of the logits."""
    baseline, shape = SoftmaxSequence(work), work.shape
    program.reset()
    program.step()
    graph = capture(program.queueing(verification(program)), EFFORT.copies)
    baseline_graph = capture(baseline.step, EFFORT.copies)
    us, them = pairs(graph.replay, baseline_graph.replay, EFFORT.samples)
    least = floors.run((shape.batch * shape.nodes * shape.vocab * 2,))
    floor = capture(least, EFFORT.copies)
    again, copied = pairs(graph.replay, floor.replay, EFFORT.samples, (nothing, nothing))
    case: dict[str, object] = {"V": shape.vocab, "B": shape.batch, "filters": " ".join(work.filters) or "none"}
    case["logits"] = "peaked" if work.peaked else "flat"
    return Line(case, Ratio.of(them, us), Ratio.of(again, copied))


def main() -> None:
    """Compare, then time if there is a GPU."""
    options, device = harness.parser(__doc__).parse_args(), harness.device()
    floors = Floors(device, EFFORT) if harness.ON_GPU and not options.check_only else None
    lines: list[Line] = []
    for program, work in sides(device):
        check(program, work)
        label = f"V={work.shape.vocab} B={work.shape.batch} {'peaked' if work.peaked else 'flat'}"
        label += f" filters: {', '.join(work.filters) or 'none'}"
        print(f"{label}: tokens as the references draw", flush=True)
        if floors is not None:
            lines.append(line(program, work, floors))
            print(f"  captured/captured {lines[-1].captured}  ours/floor {lines[-1].floor}", flush=True)
    if options.json is not None:
        record = [result.case | {"captured": vars(result.captured), "floor": vars(result.floor)} for result in lines]
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
