"""The glue of a greedy chain step: specc's kernels against the same work as SGLang 0.5.23 does it.

    python bench/chain.py [--json FILE] [--check-only] [--jit]

Both sides run in this process, on the same tensors, and must give the same results before anything is timed. Only
ratios are reported. Without a GPU the results are compared on a tiny shape, in Triton's interpreter, and nothing is
timed. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

from collections.abc import Iterator

import harness
import torch
from baseline import Sequence, TorchSequence
from ours import Ours
from work import Shape, Work

from specc.measure.timing import Effort

VOCABULARIES, BATCHES, STEPS, WIDTH, POOL = (32000, 128256), (1, 8, 64), 3, 4096, 65
TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH = (300, 2049), (1, 3), 40
EFFORT = Effort(copies=10, samples=40)


def find_baseline() -> type[TorchSequence]:
    """SGLang's own kernels where they are installed, else torch ops."""
    try:
        from baseline_sglang import SglangKernels
    except ImportError:
        return TorchSequence
    return SglangKernels


def sides(device: torch.device, jit: bool) -> Iterator[harness.Sides]:
    """Both sides for every shape; one program per vocabulary."""
    theirs = find_baseline()
    real, tiny = (VOCABULARIES, BATCHES, WIDTH), (TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH)
    vocabularies, batches, width = real if harness.ON_GPU else tiny
    for vocab in vocabularies:
        shapes = [Shape(batch, STEPS, STEPS + 1, vocab, width, POOL) for batch in batches]
        with harness.compiled(shapes[-1], batches, device, jit=jit) as (plan, backend):
            for shape in shapes:
                work = Work(shape, device, runs=harness.most_runs(EFFORT))
                yield Ours(work, plan, backend), theirs(work)


def parts(ours: Ours, theirs: Sequence) -> list[harness.Part]:
    """The parts of a step. Of the bytes, what is small against a row of logits or a hidden state is left out."""
    shape = ours.work.shape
    row, state = shape.batch * 2 * shape.vocab, shape.batch * 2 * 2 * shape.width
    verify = shape.nodes * row

    def prepare() -> None:
        theirs.prepare()
        theirs.verify_inputs()  # which our prepare writes

    return [
        harness.Part("verify + commit", lambda: ours.launch("verify_argmax"), theirs.verify_commit, (verify,)),
        harness.Part("draft step", lambda: ours.launch("draft_argmax"), lambda: theirs.draft_step(0), (row,)),
        harness.Part("prepare", lambda: ours.launch("prepare_rows"), prepare, (state,)),
        harness.Part("extend + stash", lambda: ours.launch("extend_argmax"), theirs.extend_stash, (row + state,)),
        harness.Part("whole step", ours.step, theirs.step, (state, *[row] * (shape.steps - 1), verify, row + state)),
    ]


def case(shape: Shape) -> harness.Case:
    """What tells the lines of a part apart."""
    return {"V": shape.vocab, "B": shape.batch}


if __name__ == "__main__":
    harness.main(harness.Benchmark(sides, parts, case, EFFORT), __doc__, find_baseline().name)
