"""Train the example models: a small target, a standalone draft, and draft heads of seven kinds, one of them twice.

All of them learn the source text of the Python standard library. The draft and the heads are
distilled from the target as it is on disk, weights rounded to bfloat16.

    python examples/models/train.py [--only STAGE] [--out DIR] [--text DIR] [--device cpu|cuda]
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import GenerationConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from corpus import EOS, LENGTHS, SEED, Corpus, read_texts, train_tokenizer
from heads import (
    DEPTH,
    HEADS,
    VOCAB,
    Drafts,
    Kind,
    Reader,
    Reading,
    accepted_length,
    drafts_of,
    greedy,
    llama_config,
)

from specc.lab.commands.hot_tokens import most_frequent


class Schedule(NamedTuple):
    """How long to train on what: optimiser steps, the highest learning rate, tokens in a step.

    written: how many windows of text the target is made to write; every other step learns from those.
    seconds: when to end if the steps are not done by then.
    """

    steps: int
    rate: float
    tokens: int = 2048
    written: int = 0
    seconds: float = math.inf

    def scaled(self, factor: float) -> Schedule:
        """As many times shorter, down to one step."""
        return self._replace(steps=max(1, int(self.steps * factor)), written=math.ceil(self.written * factor))


SCHEDULES = {
    "target": Schedule(2200, 2e-3),
    "standalone": Schedule(1000, 3e-3),
    "eagle": Schedule(450, 2e-3),
    "eagle3": Schedule(4500, 2e-3, tokens=16384, written=16384),
    "eagle3_reduced": Schedule(120, 3e-4, tokens=4096, written=256),
    "mtp": Schedule(3500, 2e-3, tokens=16384, written=16384),
    "frozen_kv": Schedule(3500, 2e-3, tokens=16384, written=16384),
    "dflash": Schedule(6000, 2e-3, tokens=8192, written=16384),
    "dspark": Schedule(6000, 2e-3, tokens=8192, written=16384),
    "dflash2": Schedule(6000, 2e-3, tokens=8192, written=16384),
}
TARGET = {"hidden": 256, "layers": 4, "kv_heads": 2}
STAGES = ("tokenizer", "target", "standalone", *HEADS, "evaluate")
PROMPT = 48  # tokens of a held-out text, or of a text that the target continues in training


# --- models ---------------------------------------------------------------------------------


def save_model(model: LlamaForCausalLM, directory: Path) -> None:
    """Weights stored as bfloat16; the config asks for float32, so they are upcast at load."""
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(directory)
    GenerationConfig(bos_token_id=0, eos_token_id=1).save_pretrained(directory)
    weights = {
        name: value.detach().bfloat16()
        for name, value in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embedding
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def load_model(directory: Path, device: torch.device) -> LlamaForCausalLM:
    """A saved model in float32, frozen."""
    model: Any = LlamaForCausalLM.from_pretrained(directory)
    return model.to(device).eval().requires_grad_(False)


# --- training -------------------------------------------------------------------------------


class Job(NamedTuple):
    """A training stage's arguments: where models lie, what to read, for how long, and where to compute.

    sizes: those of the model that are not the example's, as `llama_config` calls them.
    """

    out: Path
    corpus: Corpus
    schedule: Schedule
    device: torch.device
    sizes: Mapping[str, int] = {}

    def batches(self) -> Iterator[Tensor]:
        """Training windows for every step."""
        return self.corpus.batches(self.schedule.steps, self.schedule.tokens, SEED + 1)


def optimise(
    name: str, model: nn.Module, schedule: Schedule, batches: Iterator[Tensor], loss_of: Callable[[Tensor], Tensor]
) -> int:
    """AdamW with a linear warmup and a cosine decay to a twentieth; prints loss and throughput, returns the steps."""
    steps, warmup = schedule.steps, max(1, schedule.steps // 20)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=schedule.rate, betas=(0.9, 0.95))
    start, running, step = time.monotonic(), None, 0

    def over() -> float:
        """The part of the time that is over."""
        return (time.monotonic() - start) / schedule.seconds

    def rate(step: int) -> float:
        cosine = 0.5 + 0.5 * math.cos(math.pi * min(max(step / steps, over()), 1))
        return min(max((step + 1) / warmup, 20 * over()), 0.05 + 0.95 * cosine)

    decay = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    model.train()
    for step, tokens in enumerate(batches, start=1):
        loss = loss_of(tokens)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        decay.step()
        running = loss.detach() if running is None else torch.lerp(running, loss.detach(), 0.05)
        last = step == steps or over() >= 1
        if step % 50 == 0 or last:
            speed = step * schedule.tokens / (time.monotonic() - start)
            print(f"{name} {step}/{steps}  loss {running:.3f}  {speed:.0f} tokens/s", flush=True)
        if last:
            break
    model.eval()
    return step


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean cross entropy of student logits against the teacher's distribution, both [..., V]."""
    return F.cross_entropy(student.flatten(0, -2), teacher.flatten(0, -2).softmax(-1))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of logits [B, n, V] against the token that follows in tokens [B, n]."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train_target(job: Job) -> int:
    """Plain language modelling."""
    torch.manual_seed(SEED)
    model: Any = LlamaForCausalLM(llama_config(**{**TARGET, **job.sizes}))
    model.to(job.device)
    steps = optimise("target", model, job.schedule, job.batches(), lambda x: next_token_loss(model(x).logits, x))
    save_model(model, job.out / "target")
    return steps


def train_standalone(job: Job) -> int:
    """Distillation: match the target's distribution at every position of the text."""
    torch.manual_seed(SEED)
    target = load_model(job.out / "target", job.device)
    model: Any = LlamaForCausalLM(llama_config(hidden=128, layers=2, kv_heads=1))
    model.to(job.device)

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = target(tokens).logits
        return soft_cross_entropy(model(tokens).logits, teacher)

    steps = optimise("standalone", model, job.schedule, job.batches(), loss_of)
    save_model(model, job.out / "standalone")
    return steps


def written_by(target: LlamaForCausalLM, corpus: Corpus, count: int) -> Tensor:
    """Text of the target: count beginnings of training windows, continued greedily; [count, LENGTHS[0]]."""
    generator = torch.Generator().manual_seed(SEED + 2)
    prompts = corpus.windows(corpus.training, count, PROMPT, generator)
    return torch.cat([greedy(target, chunk, LENGTHS[0] - PROMPT) for chunk in prompts.split(4096)])


def with_written(batches: Iterator[Tensor], written: Tensor, tokens: int) -> Iterator[Tensor]:
    """Every other batch, beginning with the first, of rows of `written` [N, length] in its place."""
    generator = torch.Generator().manual_seed(SEED + 3)
    for step, batch in enumerate(batches):
        rows = torch.randint(len(written), (tokens // written.shape[1],), generator=generator)
        yield batch if step % 2 else written[rows.to(written.device)]


def chain_loss(kind: Kind, head: Any, reading: Reading, tokens: Tensor, scored: Any = slice(None)) -> Tensor:
    """Mean cross entropy of the head's drafts against the target's distribution over the tokens that are scored.

    The pull of a kind is added, and that of the scores of candidates against the target's distribution over these.
    """
    loss = torch.zeros((), device=tokens.device)
    for draft, rows in enumerate(kind.chain(head, reading, tokens), start=1):
        before, teacher = tokens[:, draft:], reading.logits[:, draft:][..., scored]
        scores = kind.scores(head, rows, before)
        loss = loss + soft_cross_entropy(scores, teacher)
        if kind.chooses:
            candidates, chosen = kind.chooses(head, rows, before, scores)
            loss = loss + soft_cross_entropy(chosen, teacher.gather(-1, candidates))
        if kind.pull:
            loss = loss + kind.pull * F.smooth_l1_loss(rows, reading.hidden[:, draft:])
    return loss / DEPTH


def train_head(name: str, job: Job) -> int:
    """Match the target's distribution at every draft of the head's chain."""
    torch.manual_seed(SEED)
    kind, reader = HEADS[name], Reader(load_model(job.out / "target", job.device))
    head = kind.head(kind.config(**job.sizes)).to(job.device).share_with(reader.target)
    for parameter in head.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
    scored = slice(None)
    if kind.begins:
        scored = begin_with(head, HEADS[kind.begins].head.from_directory(job.out / kind.begins, reader.target), job)
    batches = job.batches()
    if job.schedule.written:
        written = written_by(reader.target, job.corpus, job.schedule.written)
        batches = with_written(batches, written, job.schedule.tokens)

    def loss_of(tokens: Tensor) -> Tensor:
        return chain_loss(kind, head, reader(tokens), tokens, scored)

    steps = optimise(name, head, job.schedule, batches, loss_of)
    head.save(job.out / name, storage_dtype=torch.bfloat16)
    return steps


def begin_with(head: Any, whole: Any, job: Job) -> Any:
    """Take the weights of a head that scores all tokens, and its rows of scores of the text's most frequent ones.

    Returns the tokens that are scored, ascending: an index.
    """
    ends = job.corpus.tokenizer.convert_tokens_to_ids([EOS])
    tokens = most_frequent(Counter(job.corpus.training.tolist()), head.lm_head.out_features, VOCAB, ends)
    rows = torch.tensor(tokens, device=job.device)
    offsets = rows - torch.arange(len(tokens), device=job.device)
    weights = whole.state_dict()
    head.load_state_dict({**weights, "lm_head.weight": weights["lm_head.weight"][rows], "d2t": offsets})
    return tokens


TRAININGS: dict[str, Callable[[Job], int]] = {
    "target": train_target,
    "standalone": train_standalone,
    **{name: partial(train_head, name) for name in HEADS},
}


# --- evaluation -----------------------------------------------------------------------------


def picked(scores: Tensor, wanted: Tensor) -> Tensor:
    """Where tokens i64[B, n] have the highest of scores T[B, n, V]."""
    return scores.argmax(-1) == wanted


def within(scores: Tensor, wanted: Tensor) -> Tensor:
    """Where tokens i64[B, n] are among those that scores T[B, n, V] choose from."""
    return scores.gather(-1, wanted[..., None])[..., 0] > -torch.inf


def agreement(drafts: Drafts, readings: list[tuple[Reading, Tensor]], agrees: Any = picked) -> Tensor:
    """The share of positions where each draft is the target's choice after the same text, [DEPTH]; or could be it."""
    shares = [
        [
            agrees(scores, reading.logits[:, draft:].argmax(-1)).float().mean()
            for draft, scores in enumerate(drafts(reading, tokens), start=1)
        ]
        for reading, tokens in readings
    ]
    return torch.tensor(shares).mean(0)


@torch.no_grad()
def evaluate(out: Path, corpus: Corpus, device: torch.device) -> None:
    """Print held-out losses, and agreement with the target and accepted length of every draft."""
    target, standalone = (load_model(out / name, device) for name in ("target", "standalone"))

    def alone(reading: Reading, tokens: Tensor) -> Iterator[Tensor]:
        scores = standalone(tokens).logits
        return (scores[:, draft:] for draft in range(1, DEPTH + 1))

    heads = {name: drafts_of(kind, kind.head.from_directory(out / name, target)) for name, kind in HEADS.items()}
    reader = Reader(target)
    readings = [(reader(tokens), tokens) for tokens in corpus.held_out_batches()]
    for name, model in (("target", target), ("standalone", standalone)):
        losses = [next_token_loss(model(tokens).logits, tokens) for _, tokens in readings]
        print(f"{name}: held-out loss {torch.stack(losses).mean():.3f} nats per token")
    prompts = corpus.windows(corpus.held_out, 20, PROMPT, torch.Generator().manual_seed(SEED))
    texts = greedy(target, prompts, 64 + DEPTH)
    for name, drafts in {"standalone": alone, **heads}.items():
        shares, most = (
            ", ".join(f"{share:.1%}" for share in agreement(drafts, readings, agrees)) for agrees in (picked, within)
        )
        mean = accepted_length(drafts, reader(texts), texts, PROMPT)
        print(f"{name}: drafts that are the target's choice {shares} (at most {most}); accepted length {mean:.2f}")


def main() -> None:
    """Run the stages in order, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STAGES, help="run this stage alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--text", type=Path, default=Path(sysconfig.get_path("stdlib")), help="what to learn")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the length of the training")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    stages = (args.only,) if args.only else STAGES
    training, held_out = read_texts(args.text)
    print(f"{len(training)} training files, {len(held_out)} held out")
    if "tokenizer" in stages:
        train_tokenizer([args.out / name for name in ("target", "standalone", "eagle")], training)
    corpus = Corpus(args.out / "target", training, held_out, args.device)
    print(f"{len(corpus.training)} training tokens, {len(corpus.held_out)} held out", flush=True)
    for name in stages:
        if name in TRAININGS:
            TRAININGS[name](Job(args.out, corpus, SCHEDULES[name].scaled(args.scale), args.device))
    if "evaluate" in stages:
        evaluate(args.out, corpus, args.device)


if __name__ == "__main__":
    main()
