"""Drafts that score a part of the target's tokens, beside the same drafts that score all of them.

    python bench/vocabulary.py [--only NAME,...] [--sizes N,...] [--heads HOW,...] [--check-only] [--rounds N]
                               [--threads N] [--device D]

Two questions. What does it cost: the accepted length of the example drafts, chains of three, with maps of the most
frequent tokens of the text that the models were trained on (the Python standard library), and of the head that was
trained with such a map; by whoever multiplies by the draft's head, and in how many bits (`draft.head`). Every text must
be the one that `generate` writes. What does it give: the time of a head of 128256 tokens and 4096 elements in bf16
against that of its rows for 32768 and 32000 tokens, which both must score alike; the two run in turn, and only ratios
are reported. The small models here have heads that cost nothing, so nothing is said of their own speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from cpu import CONTEXT, NEW, PROMPTS
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.utils import logging

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from specc.compiler.algorithms import names, needs
from specc.compiler.codegen.cache import Cache
from specc.compiler.config import load_text
from specc.compiler.driver.build import build_program, compile_machine_code
from specc.compiler.driver.wheel.build_wheel import emit_wheel
from specc.lab.commands.hot_tokens import most_frequent
from specc.lab.engine.engine import Engine
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.loading import load_draft, load_target
from specc.lab.engine.models.scores import rows_of
from specc.lab.engine.reference import greedy
from specc.lab.engine.serving.requests.request import StopConditions
from specc.lab.engine.wheel import load_program, package

MODELS = ROOT / "examples" / "models"
DRAFTS = ("standalone", "eagle", "eagle3", "mtp", "frozen-kv", "dflash")
TRAINED = {"eagle3": MODELS / "eagle3_reduced"}
"""Heads that were trained to score a part."""
HEAD, HIDDEN, PARTS, BATCHES = 128256, 4096, (32768, 32000), (1, 8, 64)


def hot(tokenizer: Any, sizes: Sequence[int], folder: Path) -> dict[int, Path]:
    """Maps of so many of the most frequent tokens of the text that the examples learned, as files."""
    counts: Counter[int] = Counter()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        counts.update(tokenizer(path.read_text(), add_special_tokens=False, verbose=False)["input_ids"])
    return maps(counts, sizes, tokenizer, folder)


def maps(counts: Counter[int], sizes: Sequence[int], tokenizer: Any, folder: Path) -> dict[int, Path]:
    """Maps of so many of the tokens that were counted most often, as files."""
    paths = {size: folder / f"hot-{size}.json" for size in sizes}
    for size, path in paths.items():
        path.write_text(json.dumps(most_frequent(counts, size, len(tokenizer), [tokenizer.eos_token_id])))
    return paths


@dataclass(frozen=True)
class Case:
    """A chain of an example: its name, its models, the map of tokens that its draft scores, the key of its head."""

    name: str
    target: Path
    draft: Path
    token_map: Path | None
    head: str

    def wheel(self, folder: Path, archs: Sequence[str] = (), buckets: Sequence[int] = (1, 2, 4, 8)) -> str:
        """The program for batches of some sizes, as a file; with machine code for some architectures."""
        text = (ROOT / "examples" / f"{self.name}-chain.yaml").read_text()
        text = text.replace("model: models/target\n", f"model: {self.target}\n")
        text = text.replace(f"model: models/{self.name.replace('-', '_')}\n", f"model: {self.draft}\n")
        text = text.replace("[1, 2, 4, 8]", str(list(buckets)))
        text += f"  head: {self.head}\n" + (f"  token_map: {self.token_map}\n" if self.token_map is not None else "")
        build = build_program(load_text(text, folder / "vocabulary.yaml", names(), needs))
        if archs:
            compile_machine_code(build, archs, cache=Cache.default())
        (wheel,) = emit_wheel(build, folder)
        return str(wheel)

    @contextmanager
    def engine(self, wheel: str, context: int, target: TargetModel | None = None) -> Iterator[Engine]:
        """The engine over its program, for texts of at most so many tokens; on the target's device, if it is loaded."""
        with package(wheel) as module:
            program = load_program(module, "cpu" if target is None else str(target.device))
            target = target or load_target(self.target, program.plan)
            draft = load_draft(self.draft, program.plan, target, self.token_map)
            yield Engine(program, target, draft, max_context=context, capture=False)


def accepted(case: Case, folder: Path) -> float:
    """The mean accepted length of a chain; its texts are those of `generate`."""
    with case.engine(case.wheel(folder), CONTEXT) as engine:
        for done in engine.generate(PROMPTS, StopConditions(NEW)):
            if done.token_ids != greedy(engine.target, done.prompt_ids, NEW):
                raise SystemExit(f"{case}: not the text of generate")
        return engine.stats.mean_accept_len


def lengths(chosen: Sequence[str], sizes: Sequence[int], heads: Sequence[str]) -> Iterator[str]:
    """A line of the table for every draft and head."""
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "target")
    with tempfile.TemporaryDirectory() as place:
        folder, target = Path(place), MODELS / "target"
        given = [None, *hot(tokenizer, sizes, folder).values()]
        for name, head in product(chosen, heads):
            draft = MODELS / name.replace("-", "_")
            accepted_lengths = [accepted(Case(name, target, draft, option, head), folder) for option in given]
            trained = accepted(Case(name, target, TRAINED[name], None, head), folder) if name in TRAINED else None
            cells = [f"{length:.2f}" for length in accepted_lengths] + ["" if trained is None else f"{trained:.2f}"]
            yield f"| {name} | {head} | {' | '.join(cells)} |"


def heads(device: torch.device, rounds: int) -> Iterator[str]:
    """A line for every batch: how many times as long the whole head takes."""
    torch.manual_seed(0)
    whole = torch.nn.Linear(HIDDEN, HEAD, bias=False, dtype=torch.bfloat16, device=device)
    for batch in BATCHES:
        rows, ratios = torch.randn(batch, HIDDEN, dtype=torch.bfloat16, device=device), list[str]()
        for size in PARTS:
            tokens = torch.randperm(HEAD)[:size].sort().values
            part = rows_of(whole, tokens)
            torch.testing.assert_close(part(rows), whole(rows)[:, tokens.to(device)], rtol=2e-2, atol=2e-2)
            pairs = [(timed(whole, rows), timed(part, rows)) for _ in range(rounds)]
            ratios.append(
                f"{statistics.median(whole_seconds / part_seconds for whole_seconds, part_seconds in pairs):.2f}"
                if pairs
                else "same scores"
            )
        yield f"| {batch} | {' | '.join(ratios)} |"


def timed(head: nn.Module, rows: Tensor) -> float:
    """Seconds that a head takes, on a GPU one time among several in a row."""
    if rows.device.type == "cpu":
        start = time.perf_counter()
        head(rows)
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        head(rows)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 20e3


@torch.no_grad()
def main() -> None:
    """Run what was asked for and print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", default=",".join(DRAFTS))
    parser.add_argument("--sizes", metavar="N,...", default="1024,512,256")
    parser.add_argument("--heads", metavar="HOW,...", default="engine", help="engine, weights, int8, fp8")
    parser.add_argument("--check-only", action="store_true", help="compare texts and scores, time nothing")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="of the heads that are timed")
    given = parser.parse_args()
    logging.disable_progress_bar()
    torch.set_num_threads(given.threads)
    sizes = [int(size) for size in given.sizes.split(",")]
    if given.only:
        print(f"| accepted length, of 2048 tokens | head | {' | '.join(map(str, [2048, *sizes]))} | trained so |")
        print("|---" * (len(sizes) + 4) + "|")
        for line in lengths(given.only.split(","), sizes, given.heads.split(",")):
            print(line, flush=True)
    print(f"\n| batch | {' | '.join(f'time of {HEAD} tokens / of {size}' for size in PARTS)} |")
    print("|---" * (len(PARTS) + 1) + "|")
    for line in heads(given.device, 0 if given.check_only else given.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
