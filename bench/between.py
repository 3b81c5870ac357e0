"""What overlap, graphs and depths are worth to the reference engine: the same texts, in several ways of running.

    python bench/between.py [--check-only] [--rounds N]

The example models are so small that the host decides how long a step takes, which is what these ways differ in; a large
model hides more of it. Every way must give the target's own text before anything is timed. Then all of them run in
turn, and only ratios to the first are reported. Without a GPU there are no graphs, and nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from specc.compiler.algorithms import names, needs
from specc.compiler.codegen.cache import Cache
from specc.compiler.config import load_config
from specc.compiler.driver.build import build_program, compile_machine_code
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.loading import load_draft, load_target
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions
from specc.lab.engine.wheel import package
from specc.runtime.backends.cuda import device_arch
from specc.runtime.plan.shape import Shape

DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
MODELS = ROOT / "examples" / "models"
PROMPTS = ("def main():\n", "import os\nimport sys\n\n", "class Node:\n", "for index in range(")
NEW, CONTEXT = (128, 256) if DEVICE.type == "cuda" else (12, 64)


@dataclass
class Way:
    """A way to run the engine; `seconds` has what each round took."""

    name: str
    options: dict[str, Any]
    engine: Engine | None = None
    seconds: list[float] = field(default_factory=list[float])

    def run(self) -> list[tuple[int, ...]]:
        """Complete all prompts; the tokens of each."""
        assert self.engine is not None
        return [done.token_ids for done in self.engine.generate(PROMPTS, StopConditions(NEW))]


def ways_of_running() -> list[Way]:
    """Of one program, from the plainest on; on a CPU those without graphs."""
    eager: dict[str, Any] = {"capture": False}
    ways = [Way("eager, waiting", {**eager, "overlap": False}), Way("eager, overlap", {**eager, "overlap": True})]
    if DEVICE.type == "cuda":
        ways += [Way("segments, overlap", {"capture": "segments"})]
        ways += [Way("one graph, waiting", {"overlap": False}), Way("one graph, overlap", {})]
    return ways


def shapes(known: Iterable[Shape]) -> list[Way]:
    """One after the other alone, the deepest first, and all by what is accepted."""
    return [*(Way(f"shape {shape}", {"shape": shape}) for shape in known), Way("by acceptance", {})]


@contextmanager
def built(name: str) -> Iterator[ModuleType]:
    """The package of an example, compiled for the GPU if there is one."""
    build = build_program(load_config(ROOT / "examples" / f"{name}.yaml", names(), needs))
    if DEVICE.type == "cuda":
        compile_machine_code(build, [device_arch(DEVICE)], cache=Cache.default())
    with tempfile.TemporaryDirectory() as folder:
        (wheel,) = emit_wheel(build, Path(folder))
        with package(str(wheel)) as module:
            yield module


def compare(title: str, module: ModuleType, ways: Sequence[Way], rounds: int) -> None:
    """Check every way, then time them in turn."""
    program = module.load(DEVICE)
    target = load_target(MODELS / "target", program.plan, DEVICE)
    draft = load_draft(MODELS / "eagle", program.plan, target)
    wanted = [greedy(target, tuple(target.tokenizer(prompt)["input_ids"]), NEW) for prompt in PROMPTS]
    for way in ways:
        way.engine = Engine(program, target, draft, max_context=CONTEXT, share_prefixes=False, **way.options)
        if way.run() != wanted:
            raise SystemExit(f"{title}: {way.name} does not give the target's text")
        print(f"{title}: {way.name}: same text")
    for _ in range(rounds if DEVICE.type == "cuda" else 0):
        for way in ways:
            start = time.perf_counter()
            way.run()
            way.seconds.append(time.perf_counter() - start)
    first = ways[0].seconds
    for way in ways if first else ():
        ratios = sorted(base / seconds for base, seconds in zip(first, way.seconds, strict=True))
        low, middle, high = ratios[0], statistics.median(ratios), ratios[-1]
        print(f"{title}: {way.name}: {middle:.2f} times as fast as {ways[0].name} ({low:.2f} to {high:.2f})")


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check-only", action="store_true", help="compare texts, time nothing")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    rounds = 0 if arguments.check_only else arguments.rounds
    with built("eagle-chain") as module:
        compare("ways of running", module, ways_of_running(), rounds)
    with built("eagle-chain-adaptive") as module:
        plans = list(module.load(DEVICE).plans)
        compare("shapes", module, shapes(plans), rounds)


if __name__ == "__main__":
    main()
