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
from baseline_chain import TorchChain

from specc.measure.against.chain import ChainSequence
from specc.measure.against.compare import most_runs
from specc.measure.against.ours import Ours
from specc.measure.against.parts import parts
from specc.measure.against.sequence import Sequence
from specc.measure.against.work import Shape, Work
from specc.measure.timing import Effort

VOCABULARIES, BATCHES, STEPS, WIDTH, POOL = (32000, 128256), (1, 8, 64), 3, 4096, 65
TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH = (300, 2049), (1, 3), 40
EFFORT = Effort(copies=10, samples=40)


def find_baseline() -> type[ChainSequence]:
    """SGLang's own kernels where they are installed, else torch ops."""
    try:
        from specc.measure.against.sglang_chain import SglangChain
    except ImportError:
        return TorchChain
    return SglangChain


def sides(device: torch.device, jit: bool) -> Iterator[harness.Sides]:
    """Both sides for every shape; one program per vocabulary."""
    theirs = find_baseline()
    real, tiny = (VOCABULARIES, BATCHES, WIDTH), (TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH)
    vocabularies, batches, width = real if harness.ON_GPU else tiny
    for vocab in vocabularies:
        shapes = [Shape(batch, STEPS, STEPS + 1, vocab, width, POOL) for batch in batches]
        with harness.compiled(shapes[-1], batches, device, jit=jit) as (plan, backend):
            for shape in shapes:
                work = Work(shape, device, runs=most_runs(EFFORT))
                yield Ours(work, plan, backend), theirs(work)


def sized(ours: Ours, theirs: Sequence) -> list[harness.Sized]:
    """The parts of a step. Of the bytes, what is small against a row of logits or a hidden state is left out."""
    shape = ours.work.shape
    row, state = shape.batch * 2 * shape.vocab, shape.batch * 2 * 2 * shape.width
    verify = shape.nodes * row
    sizes = {
        "verify + commit": (verify,),
        "draft step": (row,),
        "prepare": (state,),
        "extend + stash": (row + state,),
        "whole step": (state, *[row] * (shape.steps - 1), verify, row + state),
    }
    return [(part, sizes[part.work]) for part in parts(ours, theirs)]


def case(shape: Shape) -> harness.Case:
    """What tells the lines of a part apart."""
    return {"V": shape.vocab, "B": shape.batch}


if __name__ == "__main__":
    harness.main(harness.Benchmark(sides, sized, case, EFFORT), __doc__, find_baseline().name)
