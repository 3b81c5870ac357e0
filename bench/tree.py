"""The glue of a greedy tree step: specc's kernels against the same work as SGLang 0.5.23 does it.

    python bench/tree.py [--json FILE] [--check-only] [--jit]

Both sides run in this process, on the same tensors, and must give the same results before anything is timed. Only
ratios are reported. Without a GPU the results are compared on a tiny shape, in Triton's interpreter, and nothing is
timed. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import harness
import torch
from baseline_tree import TorchTree

from specc.measure.against.compare import most_runs
from specc.measure.against.ours import Ours
from specc.measure.against.parts import parts
from specc.measure.against.sequence import Sequence
from specc.measure.against.tree import TreeSequence
from specc.measure.against.work import Shape
from specc.measure.against.work_tree import TreeWork
from specc.measure.timing import Effort

BATCHES, TINY_BATCHES = (1, 8, 64), (1, 3)
PAGE, TINY_PAGE = 16, 4
EFFORT = Effort(copies=5, samples=16)


def find_baseline() -> type[TreeSequence]:
    """SGLang's own functions where they are installed, else torch ops and kernels of ours after them."""
    try:
        from specc.measure.against.sglang_tree import SglangTree
    except ImportError:
        return TorchTree
    return SglangTree


def programs() -> list[Shape]:
    """One shape per program. Pages matter to `prepare` alone, vocabularies do not, so one has pages."""
    if not harness.ON_GPU:
        tiny = Shape(max(TINY_BATCHES), 3, 6, 300, 40, 5, topk=2, layers=2, heads=1, head_dim=8)
        return [tiny, replace(tiny, page=TINY_PAGE)]
    small = Shape(max(BATCHES), 3, 16, 32000, 4096, 65, topk=4, layers=32)
    large = replace(small, topk=8, steps=5, nodes=64)
    wide = [replace(shape, vocab=128256) for shape in (small, large)]
    return [small, large, *wide, replace(small, page=PAGE), replace(large, page=PAGE)]


def sides(device: torch.device, jit: bool) -> Iterator[harness.Sides]:
    """Both sides for every shape."""
    batches, theirs = BATCHES if harness.ON_GPU else TINY_BATCHES, find_baseline()
    for program in programs():
        with harness.compiled(program, batches, device, jit=jit) as (plan, backend):
            for batch in batches:
                work = TreeWork(replace(program, batch=batch), device, runs=most_runs(EFFORT))
                yield Ours(work, plan, backend), theirs(work)


@dataclass(frozen=True)
class Bytes:
    """What each launch has to move, but for what is small against a row of logits or a hidden state."""

    prepare: int
    duplicate: int
    step: int
    build: int
    verify: int
    compact: int
    extend: int

    @staticmethod
    def of(theirs: TreeSequence) -> Bytes:
        """Of the step that it has finished: how much is accepted and moved depends on the work."""
        shape = theirs.shape
        row, state = shape.batch * 2 * shape.vocab, shape.batch * 2 * shape.width
        branches = shape.topk * row
        places = theirs.accept_index % shape.nodes
        inside = torch.arange(shape.path, device=places.device) < theirs.accept_lens[:, None]
        moved = (inside & (places != torch.arange(shape.path, device=places.device))).sum()
        tails = (theirs.seq_lens % shape.page).sum() * (shape.topk - 1)
        return Bytes(
            prepare=state * (1 + shape.topk),
            duplicate=int(tails) * 2 * shape.row_bytes * 2,
            step=branches + 2 * shape.topk * state,
            build=branches + shape.batch * shape.nodes**2,
            verify=shape.nodes * row,
            compact=int(theirs.accept_lens.sum()) * 2 * 2 * shape.width
            + int(moved) * 2 * shape.row_bytes * 2 * shape.layers,
            extend=row + 2 * state,
        )


def sized(ours: Ours, theirs: Sequence) -> list[harness.Sized]:
    """The parts of a step; of programs with pages only the one that pages change."""
    assert isinstance(theirs, TreeSequence)
    theirs.step()
    sizes = Bytes.of(theirs)
    last = (sizes.build, sizes.verify, sizes.compact)
    found = {
        "draft expansion": (sizes.step,),
        "tree build": last[:1],
        "verify + commit + move": last[1:],
        "prepare": (sizes.prepare,),
        "prepare + tail duplication": (sizes.prepare, sizes.duplicate),
        "extend + stash": (sizes.extend,),
        "whole step": (sizes.prepare, *[sizes.step] * (ours.work.shape.steps - 2), *last, sizes.extend),
    }
    paged = ours.work.shape.page > 1
    return [(part, found[part.work]) for part in parts(ours, theirs) if not paged or "duplication" in part.work]


def case(shape: Shape) -> harness.Case:
    """What tells the lines of a part apart."""
    return {"K": shape.topk, "S": shape.steps, "N": shape.nodes, "page": shape.page, "V": shape.vocab, "B": shape.batch}


if __name__ == "__main__":
    harness.main(harness.Benchmark(sides, sized, case, EFFORT), __doc__, find_baseline().name)
