"""The glue of a greedy chain step: specc's kernels against the same work as SGLang 0.5.23 does it.

    python bench/chain.py [--json FILE] [--check-only] [--jit]

Both sides run in this process, on the same tensors, and must give the same results before anything is timed. Only
ratios are reported. Without a GPU the results are compared on a tiny shape, in Triton's interpreter, and nothing is
timed. docs/benchmarks.md says what each line means.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from baseline import TorchSequence
from measure import COPIES, WARM_UPS, Floors, Ratio, Run, capture, nothing, pairs
from ours import Ours, TritonBackend, compile_chain, cuda_backend, plan_of
from work import Shape, Work, differences

VOCABULARIES, BATCHES, STEPS, WIDTH, POOL = (32000, 128256), (1, 8, 64), 3, 4096, 65
TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH = (300, 2049), (1, 3), 40
COMPARED_STEPS = 3
"""Steps that are compared, each on the state that the last one left."""
MAX_RUNS = COMPARED_STEPS + WARM_UPS + COPIES
"""More steps than ever follow each other without a reset."""


@dataclass(frozen=True)
class Part:
    """A part of a step on both sides, and the bytes that each of our launches in it has to move."""

    work: str
    ours: Run
    theirs: Run
    launch_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        captured: their captured graph over ours.
        replay: their eager launches over one replay of ours.
        floor: ours over its floor.
    """

    work: str
    vocab: int
    batch: int
    captured: Ratio
    replay: Ratio
    floor: Ratio


def main() -> None:
    """Compare, then time if there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the ratios here too")
    parser.add_argument("--check-only", action="store_true", help="compare results, time nothing")
    parser.add_argument("--jit", action="store_true", help="Triton's own compiler instead of ahead-of-time code")
    options = parser.parse_args()
    device = torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")
    if not ON_GPU:
        print("no CUDA device: comparing results in Triton's interpreter, timing nothing")
    baseline = find_baseline()
    print(f"against: {baseline.name}")
    lines: list[Line] = []
    for ours, theirs in sides(device, baseline, jit=options.jit):
        check(ours, theirs)
        if ON_GPU and not options.check_only:
            lines += measured(ours, theirs)
    if lines:
        report(lines, baseline.name, options.json)


def find_baseline() -> type[TorchSequence]:
    """SGLang's own kernels where they are installed (and a GPU to run them on), else torch ops."""
    if not ON_GPU:
        return TorchSequence
    try:
        from baseline_sglang import SglangKernels
    except ImportError:
        return TorchSequence
    return SglangKernels


def sides(device: torch.device, baseline: type[TorchSequence], *, jit: bool) -> Iterator[tuple[Ours, TorchSequence]]:
    """Both sides for every shape; one program per vocabulary."""
    real, tiny = (VOCABULARIES, BATCHES, WIDTH), (TINY_VOCABULARIES, TINY_BATCHES, TINY_WIDTH)
    vocabularies, batches, width = real if ON_GPU else tiny
    for vocab in vocabularies:
        build = compile_chain(Shape(max(batches), STEPS, vocab, width, POOL), batches)
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            backend = cuda_backend(build, root, device) if ON_GPU and not jit else TritonBackend(build, root)
            for batch in batches:
                work = Work(Shape(batch, STEPS, vocab, width, POOL), device, runs=MAX_RUNS)
                yield Ours(work, plan_of(build), backend), baseline(work)


def check(ours: Ours, theirs: TorchSequence) -> None:
    """Stop unless both sides give the same results, over several steps."""
    shape = ours.work.shape
    label = f"V={shape.vocab} B={shape.batch}"
    for step in range(COMPARED_STEPS):
        found = differences(ours.observed_step(), theirs.observed_step())
        if found:
            raise SystemExit(f"{label}: results differ in step {step} ({', '.join(found)}); nothing is reported")
    print(f"{label}: same results over {COMPARED_STEPS} steps")
    ours.reset()
    theirs.reset()


def measured(ours: Ours, theirs: TorchSequence) -> list[Line]:
    """Time every part, and the whole."""
    floors = Floors(ours.work.device)
    return [line(part, ours, theirs, floors) for part in parts(ours, theirs)]


def parts(ours: Ours, theirs: TorchSequence) -> list[Part]:
    """The parts of a step. Of the bytes, what is small against a row of logits or a hidden state is left out."""
    shape = ours.work.shape
    row, state = shape.batch * 2 * shape.vocab, shape.batch * 2 * 2 * shape.width
    verify = shape.nodes * row

    def prepare() -> None:
        theirs.prepare()
        theirs.chain()  # the verify inputs, which our prepare writes

    return [
        Part("verify + commit", lambda: ours.launch("verify_commit"), theirs.verify_commit, (verify,)),
        Part("draft step", lambda: ours.launch("draft_step"), lambda: theirs.draft_step(0), (row,)),
        Part("prepare", lambda: ours.launch("prepare"), prepare, (state,)),
        Part("extend + stash", lambda: ours.launch("extend_stash"), theirs.extend_stash, (row + state,)),
        Part("whole step", ours.step, theirs.step, (state, *[row] * (shape.steps - 1), verify, row + state)),
    ]


def line(part: Part, ours: Ours, theirs: TorchSequence, floors: Floors) -> Line:
    """Captured against captured, eager against one replay, ours against its floor."""

    def reset() -> None:
        ours.reset()
        theirs.reset()

    reset()
    ours.step()  # every part starts from a finished step
    theirs.step()
    our_graph, their_graph = capture(part.ours, COPIES), capture(part.theirs, COPIES)
    us, them = pairs(our_graph.replay, their_graph.replay, (ours.reset, theirs.reset))
    reset()
    replay, eager = pairs(capture(part.ours, 1).replay, part.theirs, (ours.reset, theirs.reset))
    floor = capture(floors.run(part.launch_bytes), COPIES)
    again, least = pairs(our_graph.replay, floor.replay, (ours.reset, nothing))
    shape = ours.work.shape
    return Line(
        part.work, shape.vocab, shape.batch, Ratio.of(them, us), Ratio.of(eager, replay), Ratio.of(again, least)
    )


def report(lines: list[Line], baseline: str, path: Path | None) -> None:
    """Print the table, write the file."""
    rows = [("work", "vocab", "batch", "captured/captured", "eager/replay", "ours/floor")]
    rows += [(i.work, str(i.vocab), str(i.batch), str(i.captured), str(i.replay), str(i.floor)) for i in lines]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if path is not None:
        record = {"against": baseline, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        path.write_text(json.dumps(record | {"ratios": [asdict(item) for item in lines]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
