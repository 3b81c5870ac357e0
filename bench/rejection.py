"""Drafts that are drawn and accepted by what they were drawn from: specc's launches against SGLang 0.5.23's.

    python bench/rejection.py [--json FILE] [--check-only]

Ours are the launches of a chain from the target's logits to the committed lengths, and one that draws a draft. Theirs
are torch's, in the order of SGLang's eagle_utils.py and spec_utils.py: temperatures, softmax, the filters' renormalised
probabilities and the uniforms, then its own Triton kernel, which accepts; and softmax, exponentials and argmax for a
draft. What was drafted from they find as probabilities that nobody had to make, stack or relay. Where SGLang's kernel
cannot be imported it is left out, in its favour.
Both sides run in this process, and what ours accept must be what the references do before anything is timed. Without a
GPU that is compared on tiny shapes, in Triton's interpreter. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import harness
import torch
from sampling import CLOSE, REQUEST, SampledWork, SoftmaxSequence, verification
from torch import Tensor

from specc.lab.measure.against.compare import most_runs
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import WorkSizes
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.timing import Effort, Floors, capture, pairs
from specc.runtime.backends.cpu import ReferenceBackend

try:
    from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton
except ImportError:
    chain_speculative_sampling_triton = None

MODES = ("rejection", "block")
FILTERS: tuple[tuple[str, ...], ...] = ((), ("top_k", "top_p"))
REAL, TINY = ((32000, 128256), (1, 8, 64), 4096, 65), ((300,), (1, 3), 40, 65)
STEPS, APART = 3, 0.8
"""Deviation of a draft's logits from the target's."""
EFFORT = Effort(copies=10, samples=30)


class DrawnWork(SampledWork):
    """Requests whose drafts are drawn, from logits that are near the target's.

    Attributes:
        draft_probs: f32[B, S, V], what the drafts are drawn from.

    """

    def __init__(self, shape: WorkSizes, device: torch.device, filters: tuple[str, ...], *, runs: int) -> None:
        super().__init__(shape, device, filters, peaked=True, runs=runs)
        noise = torch.randn(shape.batch, shape.steps, shape.vocab, generator=self._source, device=device)
        logits = (self.target_logits[:, :-1].float() + APART * noise).bfloat16()
        self.draft_probs = (logits.float() / REQUEST["temperature"]).softmax(-1)
        self.draft_logits = [row[:, None].contiguous() for row in logits.unbind(1)[1:]]
        first, probs = logits[:, 0], self.draft_probs[:, 0]
        token = torch.multinomial(probs, 1, generator=self._source)
        top = first.amax(-1, keepdim=True)
        total = ((first.float() - top.float()) / REQUEST["temperature"]).exp().sum(-1, keepdim=True)
        carried = {
            "draft_logits0": first,
            "draft_mass0": torch.cat([top.float(), total, probs.gather(1, token)], dim=1),
            "topk_index": token,
        }
        for name, value in carried.items():
            self.pools[name] = value.new_zeros(shape.pool, value.shape[1])
            self.pools[name][self.rows] = value


class SoftmaxBaseline(SoftmaxSequence):
    """SGLang's verification of drawn drafts, and its draw of one."""

    def __init__(self, work: DrawnWork, tokens: Tensor, mode: str) -> None:
        """Take the drafts i64[B, N] behind their roots."""
        super().__init__(work)
        self._tokens, self._block, self._drafted = tokens, mode == "block", work.draft_probs
        self._draft, self._heat = work.draft_logits[0][:, 0], self._pools["temperature"]
        count, nodes = tokens.shape
        self._places = torch.arange(count * nodes, device=tokens.device).view(count, nodes)

    def step(self) -> None:
        """From the target's logits to what is accepted."""
        probs = self.probabilities()
        count, nodes = self._tokens.shape
        coins, last = self.coins()
        if chain_speculative_sampling_triton is None:
            return
        predict = torch.zeros(count * nodes, dtype=torch.int32, device=probs.device)
        index = torch.full((count, nodes), -1, dtype=torch.int32, device=probs.device)
        correct = torch.empty(count, dtype=torch.int32, device=probs.device)
        chain_speculative_sampling_triton(
            predict, index, correct, self._tokens, self._places, self._places, self._places, coins, last,
            probs.view(count, nodes, -1), self._drafted, 1.0, 1.0, True, block_verification=self._block,
        )  # fmt: skip

    def draft(self) -> None:
        """A draft of the first forward's logits, and its probability."""
        probs = torch.softmax(self._draft.float() / self._heat[:, None], dim=-1)
        noise = torch.empty_like(probs).exponential_().clamp_(min=torch.finfo(torch.float32).tiny)
        token = probs.div(noise).argmax(dim=-1, keepdim=True)
        probs.gather(1, token)


class Line(NamedTuple):
    """A case, their captured graph over ours, ours over a copy of the logits."""

    case: dict[str, object]
    captured: Ratio
    floor: Ratio


def check(program: ProgramLaunches, label: str) -> Tensor:
    """The tokens i64[B, N] that were verified; SystemExit unless what is accepted is what the references accept."""
    seen = program.observed_step()
    program.reset()
    kernels, program.backend = program.backend, ReferenceBackend()
    expected = program.observed_step()
    program.backend = kernels
    program.reset()
    accepted = torch.arange(program.work.shape.nodes, device=program.work.device) < expected["accept_lens"][:, None]
    wrong = int(((seen["predict"] != expected["predict"]) & accepted).sum())
    wrong += int((seen["accept_lens"] != expected["accept_lens"]).sum())
    if wrong > CLOSE * int(accepted.sum()):
        raise SystemExit(f"{label}: {wrong} of {int(accepted.sum())} tokens are not those of the references")
    mean = float(seen["accept_lens"].float().mean())
    print(f"{label}: accepted as the references do, {mean:.2f} tokens a request", flush=True)
    return seen["target.tokens"].to(torch.int64)


def sides(device: torch.device) -> Iterator[tuple[ProgramLaunches, DrawnWork, str]]:
    """Every program at every batch."""
    vocabularies, batches, width, pool = REAL if harness.ON_GPU else TINY
    for vocab, mode, filters in product(vocabularies, MODES, FILTERS):
        shapes = [WorkSizes(batch, STEPS, STEPS + 1, vocab, width, pool) for batch in batches]
        keys = f"verify: {mode}\nsampling: [{', '.join(filters)}]\n"
        with harness.compiled(shapes[-1], batches, device, keys=keys) as (plan, backend):
            for shape in shapes:
                work = DrawnWork(shape, device, filters, runs=most_runs(EFFORT))
                yield ProgramLaunches(work, plan, backend), work, mode


def lines(
    program: ProgramLaunches, baseline: SoftmaxBaseline, case: dict[str, object], floors: Floors
) -> Iterator[Line]:
    """Verification, and a draft."""
    shape = program.work.shape
    row = shape.batch * shape.vocab * 2
    parts = {
        "verify": (program.queueing(verification(program)), baseline.step, row * shape.nodes),
        "draft": (program.queueing(program.nodes("draft_draw_0")), baseline.draft, row),
    }
    for name, (our_run, baseline_run, count) in parts.items():
        program.reset()
        program.step()
        graphs = [capture(run, EFFORT.copies) for run in (our_run, baseline_run, floors.run((count,)))]
        us, them = pairs(graphs[0].replay, graphs[1].replay, EFFORT.samples)
        again, copied = pairs(graphs[0].replay, graphs[2].replay, EFFORT.samples)
        yield Line({"work": name, **case}, Ratio.of(them, us), Ratio.of(again, copied))


def main() -> None:
    """Compare, then time if there is a GPU."""
    options, device = harness.parser(__doc__).parse_args(), harness.device()
    floors = Floors(device, EFFORT) if harness.ON_GPU and not options.check_only else None
    print(f"SGLang's kernel: {'left out' if chain_speculative_sampling_triton is None else 'run'}")
    results: list[Line] = []
    for program, work, mode in sides(device):
        case: dict[str, object] = {"V": work.shape.vocab, "B": work.shape.batch, "verify": mode}
        case["filters"] = " ".join(work.filters) or "none"
        tokens = check(program, " ".join(f"{key}={value}" for key, value in case.items()))
        for line in () if floors is None else lines(program, SoftmaxBaseline(work, tokens, mode), case, floors):
            results.append(line)
            print(f"  {line.case['work']}: captured/captured {line.captured}  ours/floor {line.floor}", flush=True)
    if options.json is not None:
        record = [result.case | {"captured": vars(result.captured), "floor": vars(result.floor)} for result in results]
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
