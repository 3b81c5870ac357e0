"""Two builds of the same programs, launch by launch: what a change of the kernels costs or saves.

    python bench/versions.py emit FOLDER           the bench programs, built by the specc that is imported, for sm_90
    python bench/versions.py OLD NEW [--json FILE]  their launches against each other, on a GPU

Both builds run in this process on the same tensors and must give the same results before anything is timed. Ratios are
old over new: above 1 the new one is faster. Launches are compared in their order, if there are as many.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
from programs import compile_shape

from specc.compiler.codegen.cache import Cache
from specc.compiler.driver.build import compile_machine_code
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.lab.measure.against.program_launches import ProgramLaunches
from specc.lab.measure.against.work import Work, WorkSizes, differences
from specc.lab.measure.against.work_tree import TreeWork
from specc.lab.measure.results.ratios import Ratio
from specc.lab.measure.timing import Effort, capture, pairs
from specc.runtime.backends.cuda import CudaBackend
from specc.runtime.plan.files.manifest import Manifest
from specc.runtime.plan.files.plan_json import load_plan
from specc.runtime.plan.plan import Plan

VOCABULARIES, BATCHES, WIDTH, POOL = (32000, 128256), (1, 8, 64), 4096, 65
EFFORT = Effort(copies=10, samples=30)
RUNS = 64


def programs() -> dict[str, WorkSizes]:
    """Every program by name, at its largest batch."""
    largest = max(BATCHES)
    chains = {f"chain_{v}": WorkSizes(largest, 3, 4, v, WIDTH, POOL) for v in VOCABULARIES}
    trees = {
        f"tree_{k}_{v}": WorkSizes(largest, steps, nodes, v, WIDTH, POOL, topk=k, page=16)
        for k, steps, nodes in ((4, 3, 16), (8, 5, 64))
        for v in VOCABULARIES
    }
    return chains | trees


def emit(folder: Path) -> None:
    """Write every program's package, unpacked."""
    for name, shape in programs().items():
        build = compile_shape(shape, BATCHES)
        compile_machine_code(build, ["sm_90"], cache=Cache.default())
        target = folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        (wheel,) = emit_wheel(build, target)
        with ZipFile(wheel) as archive:
            archive.extractall(target)
        wheel.unlink()
        print(name, flush=True)


def load(folder: Path, device: torch.device) -> tuple[Plan, CudaBackend]:
    """The program in a folder that `emit` has written."""
    (package,) = [path for path in folder.iterdir() if (path / "plan.json").exists()]
    plan = load_plan(package)
    return plan, CudaBackend([plan], Manifest.read(package), package, device)


def compare(name: str, shape: WorkSizes, folders: tuple[Path, Path], device: torch.device) -> list[dict[str, object]]:
    """The ratios of one program and batch; SystemExit when its results differ."""
    work = (TreeWork if shape.topk > 1 else Work)(shape, device, runs=RUNS)
    old, new = (ProgramLaunches(work, *load(folder / name, device)) for folder in folders)
    for _ in range(3):
        if differing := differences(old.observed_step(), new.observed_step()):
            raise SystemExit(f"{name} B={shape.batch}: results differ: {', '.join(differing)}")
    work.settle({name: new.pool(name) for name in work.pools})
    for version in (old, new):
        version.reset()
        version.step()
    parts = [("whole step", old.step, new.step)]
    if len(old.launches) == len(new.launches):
        for old_node, new_node in zip(old.launches, new.launches, strict=True):
            parts.append(
                (
                    new_node.name,
                    lambda node=old_node: old.backend.launch(node, old.frame),
                    lambda node=new_node: new.backend.launch(node, new.frame),
                )
            )
    records = []
    for part, before, after in parts:
        first, second = (capture(run, EFFORT.copies).replay for run in (before, after))
        slow, fast = pairs(first, second, EFFORT.samples, (old.reset, new.reset))
        ratio = Ratio.of(slow, fast)
        us = sorted(fast)[len(fast) // 2] / EFFORT.copies * 1e3
        print(f"{name:14} B={shape.batch:<3} {part:20} {ratio}  {us:.1f} us", flush=True)
        records.append({"program": name, "batch": shape.batch, "launch": part, **vars(ratio), "us": us})
    return records


def main() -> None:
    """Emit, or compare two folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="folder of the older build, or `emit`")
    parser.add_argument("new", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="programs whose name has this text")
    given = parser.parse_args()
    if given.old == "emit":
        emit(given.new)
        return
    device, records = torch.device("cuda", torch.cuda.current_device()), []
    for name, shape in programs().items():
        if given.only in name:
            for batch in BATCHES:
                smaller = WorkSizes(**{**vars(shape), "batch": batch})
                records += compare(name, smaller, (Path(given.old), given.new), device)
    if given.json:
        given.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
