"""``python -m tests.fuzz``: all generators, in parallel; ``python -m tests.fuzz steps --case 17``: one case, alone."""

from __future__ import annotations

import argparse
import os
import random
import sys

from . import runner
from .generators import GENERATORS


def main() -> int:
    """Run what the arguments say; 1 if anything but the three outcomes was seen."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("generator", nargs="*", choices=[[], *GENERATORS], help="default: all of them")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**6)), help="default: another one")
    parser.add_argument("--case", type=int, help="run this case alone and let what it raises through")
    parser.add_argument("--seconds", type=float, default=600, help="how long; default 600")
    parser.add_argument("--count", type=int, default=0, help="how many inputs of each generator, however long it takes")
    parser.add_argument("--first", type=int, default=0, help="the case to begin with, where another attack ended")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    given = parser.parse_args()
    names = given.generator or list(GENERATORS)
    if given.case is not None:
        for name in names:
            print(f"{name}: {runner.outcome_of(name, given.seed, given.case)}")
        return 0
    seconds = float("inf") if given.count else given.seconds
    return runner.report(
        runner.run(names, given.seed, given.jobs, seconds, given.count, given.first), given.seed, given.jobs
    )


if __name__ == "__main__":
    sys.exit(main())
