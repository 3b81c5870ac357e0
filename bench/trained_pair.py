"""A target and an EAGLE head with a large vocabulary, trained here, and what parts of it and 8 bits cost the draft.

    python bench/trained_pair.py [--seconds N] [--text DIR,...] [--megabytes N] [--vocabulary N] [--width N]
                                 [--layers N] [--steps N] [--tokens N] [--sizes N,...] [--heads HOW,...]
                                 [--prompts N] [--new N] [--device D] [--threads N] [--json FILE]

The text is what Python packages are made of: sources and documents of this machine's Python. Tokenizer, target and head
are trained as those of the examples are, on a GPU in bf16, and run in f32. Accepted lengths are those of a greedy chain
of three drafts that scores all tokens, or the most frequent ones of the training text, by whoever multiplies by the
head, and in how many bits (`draft.head`). Every text must be the target's own. All ends after `--seconds`: training
takes parts of what is left, and lengths that no time is left for are left out. docs/benchmarks.md says more.
"""

from __future__ import annotations

import time

STARTED = time.monotonic()

import argparse
import json
import math
import platform
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging
from vocabulary import MODELS, Case, maps

sys.path.insert(0, str(MODELS))
import train
from corpus import SEED, Corpus, is_held_out, train_tokenizer
from heads import HEADS, Reader, drafts_of, greedy

from specc.compiler.support.diagnostics import DiagnosticError
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.reference import compare
from specc.lab.engine.serving.requests.request import StopConditions

SUFFIXES = (".py", ".md", ".rst", ".txt")
LARGEST = 1 << 19
"""Bytes of the largest file that is read: larger ones are tables."""
SAMPLE = 0.5
"""The part of the text that the tokenizer learns from."""
READING, TARGET, HEAD = 0.1, 0.42, 0.36
"""The part of all time that files may take, and of what is left that each training has."""
BATCH = 32
"""Requests that a program serves at a time: with more, kernels of heads in f32 spill."""
RATES = {"target": 1.5e-3, "eagle": 2e-3}


@dataclass
class Clock:
    """The seconds of a run, of which none may be spent twice."""

    total: float
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until the run must end."""
        return max(self.total - (time.monotonic() - STARTED), 0)

    def part(self, share: float) -> float:
        """Some seconds of those that are left: a moment if none are."""
        return max(share * self.left, 1e-3)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Keep and print the seconds that something takes."""
        start = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - start, 1)
        print(f"-- {name}: {self.phases[name]} s, {self.left:.0f} s left", flush=True)


# --- text -----------------------------------------------------------------------------------


def read_texts(folders: Iterable[Path], most: float, seconds: float) -> tuple[list[str], list[str]]:
    """Different files below folders, shuffled: (training, held-out); at most so many bytes, for at most so long."""
    paths = sorted({path for folder in folders for path in folder.rglob("*") if path.suffix in SUFFIXES})
    Random(SEED).shuffle(paths)
    end = time.monotonic() + seconds
    seen, size = set[str](), 0
    splits: tuple[list[str], list[str]] = ([], [])
    with ThreadPoolExecutor(16) as pool:
        for start in range(0, len(paths), 256):
            for text in pool.map(_read, paths[start : start + 256]):
                if text and text not in seen and size < most:
                    seen.add(text)
                    size += len(text)
                    splits[is_held_out(text)].append(text)
            if size >= most or time.monotonic() > end:
                break
    return splits


def _read(path: Path) -> str:
    """The text of a file, nothing of what is none or too large."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return ""
    return path.read_text(encoding="utf-8", errors="ignore")


def sample(texts: Sequence[str]) -> Iterator[str]:
    """The first texts, as much as the tokenizer learns from."""
    left = SAMPLE * sum(map(len, texts))
    for text in texts:
        if left > 0:
            yield text
        left -= len(text)


def unigram_loss(counts: Tensor, tokens: Tensor) -> float:
    """Nats per token of what knows the frequencies i64[V] of the training text and no context, one added to each."""
    frequencies = (counts + 1).double()
    return float(-(frequencies / frequencies.sum()).log()[tokens].mean())


# --- models ---------------------------------------------------------------------------------


def sizes_of(width: int, vocabulary: int) -> dict[str, int]:
    """What target and head have in common, as `llama_config` calls it."""
    return {"hidden": width, "kv_heads": max(1, width // 128), "vocab_size": vocabulary}


@contextmanager
def training(device: torch.device) -> Iterator[None]:
    """Products in bf16 on a GPU; casts are not kept, because weights change."""
    with torch.enable_grad(), torch.autocast(device.type, torch.bfloat16, device.type == "cuda", cache_enabled=False):
        yield


def evaluate(out: Path, corpus: Corpus, counts: Tensor) -> dict[str, Any]:
    """Losses on held-out text in nats per token, and the share of drafts there that are the target's choice."""
    target, kind = train.load_model(out / "target", corpus.device), HEADS["eagle"]
    head, reader = kind.head.from_directory(out / "eagle", target), Reader(target)
    readings = [(reader(tokens), tokens) for tokens in corpus.held_out_batches(8)]
    count = len(readings)
    return {
        "unigram": unigram_loss(counts, corpus.held_out),
        "uniform": math.log(len(counts)),
        "target": sum(float(train.next_token_loss(reading.logits, tokens)) for reading, tokens in readings) / count,
        "head, of the target's distribution": sum(
            float(train.chain_loss(kind, head, reading, tokens)) for reading, tokens in readings
        )
        / count,
        "drafts that are the target's choice": train.agreement(drafts_of(kind, head), readings).tolist(),
    }


# --- accepted lengths -----------------------------------------------------------------------


@dataclass(frozen=True)
class Length:
    """The accepted length of a draft that scores so many tokens; texts: how many are not the target's own, near ties
    in 16 bits aside.
    """

    tokens: int
    head: str
    accepted: float
    wrong_texts: int
    ties: int
    seconds: float


class Measuring:
    """Programs over the trained pair, and the texts that all of them must write."""

    def __init__(self, corpus: Corpus, out: Path, prompts: int, new: int) -> None:
        """Write the texts of a batch by forwards of the target alone."""
        model = train.load_model(out / "target", corpus.device)
        begin = corpus.windows(corpus.held_out, prompts, train.PROMPT, torch.Generator().manual_seed(SEED))
        self.prompts, self.new = begin.tolist(), new
        self.wanted = [tuple(row) for row in greedy(model, begin, new)[:, train.PROMPT :].tolist()]
        self.target = TargetModel(model, corpus.tokenizer)

    def length(self, case: Case, wheel: str, tokens: int) -> Length:
        """The accepted length of a case; a text that is not that of the batch is compared with `generate`'s."""
        start = time.monotonic()
        with case.engine(wheel, train.PROMPT + self.new, self.target) as engine:
            done = engine.generate(self.prompts, StopConditions(self.new))
            accepted = engine.stats.mean_accept_len
        others = [result for result, text in zip(done, self.wanted, strict=True) if result.token_ids != text]
        verdicts = [compare(self.target, result, self.new) for result in others]
        wrong, ties = (
            [verdict for verdict in verdicts if not verdict.right],
            sum(len(verdict.ties) for verdict in verdicts),
        )
        for verdict in wrong:
            print(f"not the text of generate: {verdict}", flush=True)
        return Length(tokens, case.head, accepted, len(wrong), ties, round(time.monotonic() - start, 1))


def lengths(
    measuring: Measuring, cases: Sequence[tuple[int, Case]], wheels: Sequence[Future[str]], clock: Clock
) -> Iterator[Length]:
    """Accepted lengths in order, as long as there is time for one more; what cannot be built is left out."""
    longest = 0.0
    for (tokens, case), wheel in zip(cases, wheels, strict=True):
        if clock.left <= longest:
            break
        start = time.monotonic()
        try:
            length = measuring.length(case, wheel.result(), tokens)
        except DiagnosticError as error:
            print(f"{tokens} tokens, {case.head}: {error}", flush=True)
            continue
        longest = max(longest, time.monotonic() - start)
        print(length, flush=True)
        yield length


def table(rows: Sequence[Length], counts: Tensor) -> Iterator[str]:
    """Accepted lengths by size of the map and by head, and over that of the whole head as the draft itself has it."""
    heads, ranked = list(dict.fromkeys(row.head for row in rows)), counts.sort(descending=True).values
    yield f"| tokens | of the text | {' | '.join(heads)} | over the full head |"
    yield "|---" * (len(heads) + 3) + "|"
    for tokens in dict.fromkeys(row.tokens for row in rows):
        row = {row.head: row.accepted for row in rows if row.tokens == tokens}
        share = float(ranked[:tokens].sum() / ranked.sum())
        cells = [f"{row[head]:.3f}" if head in row else "" for head in heads]
        ratios = ", ".join(f"{row[head] / rows[0].accepted:.3f}" for head in heads if head in row)
        yield f"| {tokens} | {share:.2%} | {' | '.join(cells)} | {ratios} |"


# --- a run ----------------------------------------------------------------------------------


def trained(given: argparse.Namespace, out: Path, clock: Clock, report: dict[str, Any]) -> Corpus:
    """Read the text, train its tokenizer, and then the target."""
    with clock.phase("reading"):
        folders = [Path(folder) for folder in given.text.split(",")]
        learned, held_out = read_texts(folders, given.megabytes * 1e6, READING * given.seconds)
    with clock.phase("tokenizer"):
        train_tokenizer([out / "target"], sample(learned), given.vocabulary)
    with clock.phase("tokens"):
        corpus = Corpus(out / "target", learned, held_out, given.device)
    report["text"] = {
        "characters": sum(map(len, learned)),
        "files": [len(learned), len(held_out)],
        "tokens": [len(corpus.training), len(corpus.held_out)],
    }
    print(report["text"], flush=True)
    sizes = sizes_of(given.width, len(corpus.tokenizer))
    report["sizes"] = sizes | {"layers": given.layers}
    with clock.phase("target"), training(given.device):
        schedule = train.Schedule(given.steps, RATES["target"], given.tokens, seconds=clock.part(TARGET))
        steps = train.train_target(train.Job(out, corpus, schedule, given.device, sizes | {"layers": given.layers}))
    report["target"] = {"steps": steps, "tokens": steps * given.tokens}
    return corpus


def distilled(given: argparse.Namespace, out: Path, clock: Clock, report: dict[str, Any], corpus: Corpus) -> None:
    """Train the head on the target, and on text that the target writes."""
    tokens, left = max(max(train.LENGTHS), given.tokens // 4), clock.part(HEAD)
    with clock.phase("head"), training(given.device):
        schedule = train.Schedule(given.steps, RATES["eagle"], tokens, written=given.tokens // 16, seconds=left)
        sizes = sizes_of(given.width, len(corpus.tokenizer))
        steps = train.train_head("eagle", train.Job(out, corpus, schedule, given.device, sizes))
    report["head"] = {"steps": steps, "tokens": steps * tokens}


def cases_of(given: argparse.Namespace, out: Path, corpus: Corpus, counts: Tensor) -> list[tuple[int, Case]]:
    """How many tokens a draft scores, and the program of that: the whole vocabulary first."""
    counted = Counter(dict(enumerate(counts.tolist())))
    chosen = [int(size) for size in given.sizes.split(",")]
    given_maps = {len(corpus.tokenizer): None, **maps(counted, chosen, corpus.tokenizer, out)}
    return [
        (tokens, Case("eagle", out / "target", out / "eagle", path, head))
        for (tokens, path), head in product(given_maps.items(), given.heads.split(","))
    ]


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=215, help="when all ends, the imports of this script included")
    places = dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "purelib"))
    parser.add_argument("--text", metavar="DIR,...", default=",".join(places), help="what to learn")
    parser.add_argument("--megabytes", type=float, default=100, help="the most text")
    parser.add_argument("--vocabulary", type=int, default=131072)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=1_000_000, help="the most steps of each training")
    parser.add_argument("--tokens", type=int, default=16384, help="of a step of the target")
    parser.add_argument("--sizes", metavar="N,...", default="32768,16384,8192")
    parser.add_argument("--heads", metavar="HOW,...", default="engine,fp8,int8,weights", help="the draft's own first")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--new", type=int, default=64, help="tokens of each text")
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write all figures here too")
    return parser.parse_args()


@torch.no_grad()
def run(given: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Train, compile, measure; SystemExit where a text is not the target's."""
    clock, on_gpu = Clock(given.seconds), given.device.type == "cuda"
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(given.device) if on_gpu else "cpu",
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("torch", "triton", "transformers", "tokenizers")},
        "phases": clock.phases,
    }
    corpus = trained(given, out, clock, report)
    counts = torch.bincount(corpus.training, minlength=len(corpus.tokenizer))
    HEADS["eagle"].head(HEADS["eagle"].config(**sizes_of(given.width, len(counts)))).save(out / "eagle")
    cases = cases_of(given, out, corpus, counts)
    archs = ["sm_{}{}".format(*torch.cuda.get_device_capability(given.device))] if on_gpu else []
    with ThreadPoolExecutor(1) as compiling:
        wheels = [
            compiling.submit(case.wheel, folder_of(out, case), archs, [min(given.prompts, BATCH)]) for _, case in cases
        ]
        distilled(given, out, clock, report, corpus)
        with clock.phase("losses"):
            report["losses"] = evaluate(out, corpus, counts)
            print(report["losses"], flush=True)
        with clock.phase("accepted lengths"):
            measuring = Measuring(corpus, out, given.prompts, given.new)
            rows = list(lengths(measuring, cases, wheels, clock))
            compiling.shutdown(cancel_futures=True)
    for line in table(rows, counts):
        print(line, flush=True)
    written = [token for text in measuring.wanted for token in text]
    report["texts"] = {"tokens": len(written), "different tokens": len(set(written))}
    report["example"] = corpus.tokenizer.decode(measuring.prompts[0] + list(measuring.wanted[0]))
    report["accepted"] = [asdict(row) for row in rows]
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=2) + "\n")
    if any(row.wrong_texts for row in rows):
        raise SystemExit("not all texts are those of the target")
    return report


def folder_of(out: Path, case: Case) -> Path:
    """A folder of its own for a program: all have one name."""
    folder = out / f"{case.token_map.stem if case.token_map else 'all'}-{case.head}"
    folder.mkdir()
    return folder


def main() -> None:
    """Run with models and programs in a folder that does not stay."""
    given = arguments()
    logging.disable_progress_bar()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        run(given, Path(folder))


if __name__ == "__main__":
    main()
