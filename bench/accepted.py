"""Tokens accepted per step of the example chains whose texts are drawn, by how they are drafted and verified.

    python bench/accepted.py [--only NAME,...] [--seeds N] [--temperatures T,...]

Every chain is verified by `target_only` with greedy and with coupled drafts, by `rejection`, and by `block`, at some
temperatures, over the same prompts and seeds. Texts of greedy and coupled drafts must be the same, token for token.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from cpu import CONTEXT, DRAFTS, EXAMPLES, NEW, PROMPTS
from transformers.utils import logging

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.loading import load_draft, load_target
from specc.lab.engine.serving.requests.request import Sampling, StopConditions
from specc.lab.engine.wheel import package

WAYS = {
    "greedy": "verify: target_only\n",
    "coupled": "verify: target_only\ndraft_sampling: coupled\n",
    "rejection": "verify: rejection\n",
    "block": "verify: block\n",
}
"""How chains are drafted and verified, as keys of their configuration."""
Texts = list[tuple[int, ...]]


def accepted(chain: str, way: str, temperatures: Sequence[float], seeds: int) -> list[tuple[float, Texts]]:
    """The mean accepted length and the texts of a chain, at each of the temperatures."""
    path, models = EXAMPLES / f"{chain}-chain.yaml", EXAMPLES / "models"
    text = re.sub(r"(?m)^verify:.*\n", "", path.read_text()) + WAYS[way]
    build = build_program(load_text(text, path, names(), needs))
    results: list[tuple[float, Texts]] = []
    with tempfile.TemporaryDirectory() as folder:
        (wheel,) = emit_wheel(build, Path(folder))
        with package(str(wheel)) as module:
            program = module.load("cpu")
            target = load_target(models / "target", program.plan)
            draft = load_draft(models / str(DRAFTS[chain]), program.plan, target)
            for temperature in temperatures:
                engine, texts = Engine(program, target, draft, max_context=CONTEXT), Texts()
                for seed in range(seeds):
                    done = engine.generate(PROMPTS, StopConditions(NEW), Sampling(temperature, seed))
                    texts += [completion.token_ids for completion in done]
                results.append((engine.stats.mean_accept_len, texts))
    return results


def main() -> None:
    """Print a table with a line for every chain and temperature."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    chains = [name for name, draft in DRAFTS.items() if draft is not None]
    parser.add_argument("--only", metavar="NAME,...", default=",".join(chains), help=f"some of {', '.join(chains)}")
    parser.add_argument("--seeds", type=int, default=4, help="texts of each prompt")
    parser.add_argument("--temperatures", default="0.5,1.0")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    temperatures = [float(value) for value in arguments.temperatures.split(",")]
    print(f"| chain | temperature | {' | '.join(WAYS)} |\n|---|---|{'---|' * len(WAYS)}")
    for chain in arguments.only.split(","):
        by_way = {way: accepted(chain, way, temperatures, arguments.seeds) for way in WAYS}
        for number, temperature in enumerate(temperatures):
            if by_way["greedy"][number][1] != by_way["coupled"][number][1]:
                sys.exit(f"{chain} at temperature {temperature}: coupled drafts have changed the text")
            lengths = " | ".join(f"{by_way[way][number][0]:.2f}" for way in WAYS)
            print(f"| {chain} | {temperature:g} | {lengths} |", flush=True)


if __name__ == "__main__":
    main()
