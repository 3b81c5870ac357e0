"""The reference engine on a CPU against plain `generate` of the same target: tokens per second, as ratios.

    python bench/cpu.py [--only NAME,...] [--check-only] [--rounds N] [--threads N] [--json FILE]

Every example chain, for one prompt, for a batch of eight, and for a queue of four times as many that are served eight
at a time, with two targets. Where eight texts begin together, those that accept less go on in smaller and smaller
batches at the end; a queue is what a server has. `example` is the example target as it is: four layers, hardly more
than its drafts, so that a draft has to be very good to be worth its forwards. `ten times` is the same target made to
cost about ten times a forward of the draft, which is what people have: layers are added that change nothing, because
their outputs are zero, so texts, drafts and accepted lengths stay what they are. Every text must be the one that
`generate` writes before anything is timed; then both run in turn, and only ratios are reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from specc.compiler.algorithms import names, needs
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.loading import load_draft, load_target
from specc.lab.engine.serving.requests.request import StopConditions
from specc.lab.engine.wheel import package

EXAMPLES = ROOT / "examples"
DRAFTS = {
    "standalone": "standalone",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "frozen-kv": "frozen_kv",
    "mtp": "mtp",
    "dflash": "dflash",
    "dspark": "dspark",
    "dflash2": "dflash2",
    "ngram": None,
}
"""By the name of an example chain, the directory of its draft."""
DRAFT_LAYERS = {
    "standalone": 2,
    "eagle": 1,
    "eagle3": 1,
    "frozen-kv": 2,
    "mtp": 1,
    "dflash": 2,
    "dspark": 2,
    "dflash2": 2,
    "ngram": 1,
}
"""Layers that run in one forward of the draft."""
PROMPTS = (
    "def main():\n",
    "import os\nimport sys\n\n",
    "class Node:\n    def __init__(self, value):\n        self.",
    "for index in range(",
    'def _read(self, path):\n    """Read a file.\n',
    "    if not isinstance(value, str):\n        raise TypeError(",
    "import unittest\n\nclass TestCase(unittest.TestCase):\n",
    "x = [",
)
NEW, CONTEXT = 96, 256
BATCH = len(PROMPTS)
WORK = {"1": PROMPTS[:1], f"{BATCH}": PROMPTS, f"{4 * BATCH}, {BATCH} at a time": 4 * PROMPTS}
TIMES = 10

Run = Callable[[], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Line:
    """One comparison: the engine's tokens per second over those of `generate`, median and range over the rounds."""

    chain: str
    target: str
    prompts: str
    accepted: float
    ratio: float
    low: float
    high: float


def deepened(layers: int, folder: Path) -> Path:
    """Save the example target with layers behind its own that add zero to the residual stream; returns the folder."""
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "models" / "target")
    own = model.config.num_hidden_layers
    model.config.num_hidden_layers = max(layers, own)
    deep = type(model)(model.config)
    deep.load_state_dict(model.state_dict(), strict=False)
    for layer in deep.model.layers[own:]:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    deep.save_pretrained(folder)
    AutoTokenizer.from_pretrained(EXAMPLES / "models" / "target").save_pretrained(folder)
    return folder


@contextmanager
def engine_of(chain: str, target: Path, folder: Path) -> Iterator[Engine]:
    """The engine over an example's program, built for a target in another directory."""
    text = (EXAMPLES / f"{chain}-chain.yaml").read_text().replace("model: models/target", f"model: {target}")
    build = build_program(load_text(text, EXAMPLES / f"{chain}-chain.yaml", names(), needs))
    (wheel,) = emit_wheel(build, folder)
    with package(str(wheel)) as module:
        program = module.load("cpu")
        model, name = load_target(target, program.plan), DRAFTS[chain]
        draft = None if name is None else load_draft(EXAMPLES / "models" / name, program.plan, model)
        yield Engine(program, model, draft, max_context=CONTEXT, share_prefixes=False)


def plainly(model: PreTrainedModel, tokenizer: Any, prompts: Sequence[str]) -> Run:
    """What transformers does with these prompts, `BATCH` at a time, padded on the left, as its documentation says."""
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
    batches = [
        tokenizer(list(prompts[start : start + BATCH]), return_tensors="pt", padding=True, return_token_type_ids=False)
        for start in range(0, len(prompts), BATCH)
    ]
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": tokenizer.pad_token_id}

    def run() -> list[tuple[int, ...]]:
        texts: list[tuple[int, ...]] = []
        for given in batches:
            with torch.no_grad():
                out: Any = model.generate(**given, **options)
            texts += [tuple(row[given["input_ids"].shape[1] :].tolist()) for row in out]
        return texts

    return run


def through(engine: Engine, prompts: Sequence[str]) -> Run:
    """The same through the engine, which serves at most `BATCH` at a time."""
    assert engine.scheduler.max_batch == BATCH
    return lambda: [done.token_ids for done in engine.generate(prompts, StopConditions(NEW))]


def compare(chain: str, kind: str, work: str, engine: Engine, plain: PreTrainedModel, rounds: int) -> Line | None:
    """Check the texts, then time both in turn; None if nothing is to be timed."""
    prompts = WORK[work]
    sides = through(engine, prompts), plainly(plain, engine.tokenizer, prompts)
    engine.stats.__init__()
    texts, wanted = (run() for run in sides)
    if texts != wanted:
        raise SystemExit(f"{chain}, {kind}, {work}: not the text of generate")
    accepted = engine.stats.mean_accept_len
    print(f"{chain}, {kind}, {work}: same text, {accepted:.2f} tokens accepted per step", file=sys.stderr)
    seconds = [[_timed(run) for run in sides] for _ in range(rounds)]
    ratios = sorted(plain_seconds / own for own, plain_seconds in seconds)
    return Line(chain, kind, work, accepted, statistics.median(ratios), ratios[0], ratios[-1]) if ratios else None


def _timed(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def lines(chains: Sequence[str], rounds: int) -> Iterator[Line]:
    """All comparisons."""
    for chain in chains:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            kinds = {
                "example": EXAMPLES / "models" / "target",
                "ten times": deepened(TIMES * DRAFT_LAYERS[chain], folder / "deep"),
            }
            for kind, target in kinds.items():
                plain = AutoModelForCausalLM.from_pretrained(target).eval()
                with engine_of(chain, target, folder / kind.replace(" ", "-")) as engine:
                    for work in WORK:
                        line = compare(chain, kind, work, engine, plain, rounds)
                        if line is not None:
                            yield line


def main() -> None:
    """Run what was asked for and print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", help=f"some of {', '.join(DRAFTS)}")
    parser.add_argument("--check-only", action="store_true", help="compare texts, time nothing")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="more of them quarrel on a machine that others use too")
    parser.add_argument("--json", type=Path, help="write the ratios here too")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    chains = arguments.only.split(",") if arguments.only else list(DRAFTS)
    results = list(lines(chains, 0 if arguments.check_only else arguments.rounds))
    if results:
        print("| chain | target | prompts | accepted | tokens/s, engine / generate |\n|---|---|---|---|---|")
    for line in results:
        spread = f"{line.ratio:.2f} ({line.low:.2f} to {line.high:.2f})"
        print(f"| {line.chain} | {line.target} | {line.prompts} | {line.accepted:.2f} | {spread} |")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(line) for line in results], indent=2))


if __name__ == "__main__":
    main()
