"""Train the example models: a small target, a standalone draft and an EAGLE head.

All of them learn the source text of the Python standard library. The draft and the head are
distilled from the target as it is on disk, weights rounded to bfloat16.

    python examples/models/train.py [--only tokenizer|target|standalone|eagle|evaluate] [--out DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from specc.engine.eagle_head import EagleHead

STAGES = ("tokenizer", "target", "standalone", "eagle", "evaluate")
STEPS = {"target": 2200, "standalone": 1000, "eagle": 450}
LEARNING_RATE = {"target": 2e-3, "standalone": 3e-3, "eagle": 2e-3}
SEED = 0
VOCAB = 2048
BOS, EOS = "<|bos|>", "<|eos|>"
TOKENS_PER_STEP = 2048
LENGTHS = (256, 256, 256, 1024)  # window lengths, in turn: mostly short, some long
UNROLL = 3  # drafts that the head is trained to make from its own predictions
DEPTH = 3  # drafts per step in the evaluation
SKIPPED = {"encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "turtledemo"}
SKIPPED |= {"site-packages", "test", "tests"}


# --- text -----------------------------------------------------------------------------------


def is_held_out(name: str) -> bool:
    """About one file in twenty, chosen by a stable hash of its name."""
    return hashlib.sha256(name.encode()).digest()[0] < 13


def read_texts() -> tuple[list[str], list[str]]:
    """The standard library's source files, in order of name: (training, held-out)."""
    root = Path(sysconfig.get_path("stdlib"))
    splits: tuple[list[str], list[str]] = ([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED.isdisjoint(name.parts):
            text = path.read_text(encoding="utf-8", errors="ignore")
            splits[is_held_out(name.as_posix())].append(text)
    return splits


def train_tokenizer(out: Path, texts: list[str]) -> None:
    """Byte-level BPE that puts BOS before every text; written into each model's directory."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, bos)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    for name in ("target", "standalone", "eagle"):
        fast.save_pretrained(out / name)


class Corpus:
    """Token streams of both splits; every window drawn from them starts with BOS."""

    def __init__(self, directory: Path, training: list[str], held_out: list[str]) -> None:
        """Encode both splits with the tokenizer of directory."""
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.training = self._stream(training)
        self.held_out = self._stream(held_out)

    def _stream(self, texts: list[str]) -> Tensor:
        """All texts in one row of tokens [N], each closed by EOS."""
        closed = [text + EOS for text in texts]
        rows = self.tokenizer(closed, add_special_tokens=False, verbose=False)["input_ids"]
        return torch.tensor([token for row in rows for token in row])

    def windows(self, stream: Tensor, rows: int, length: int, seed: torch.Generator) -> Tensor:
        """Random windows [rows, length]: BOS, then length - 1 consecutive tokens."""
        starts = torch.randint(len(stream) - length, (rows, 1), generator=seed)
        body = stream[starts + torch.arange(length - 1)]
        return F.pad(body, (1, 0), value=self.tokenizer.bos_token_id)

    def batches(self, steps: int, seed: int) -> Iterator[Tensor]:
        """Training windows of TOKENS_PER_STEP tokens a step."""
        generator = torch.Generator().manual_seed(seed)
        for step in range(steps):
            length = LENGTHS[step % len(LENGTHS)]
            yield self.windows(self.training, TOKENS_PER_STEP // length, length, generator)

    def held_out_batches(self, count: int = 16) -> list[Tensor]:
        """The same few held-out windows every time."""
        generator = torch.Generator().manual_seed(SEED)
        return [self.windows(self.held_out, 8, 256, generator) for _ in range(count)]


# --- models ---------------------------------------------------------------------------------


def llama_config(hidden: int, layers: int, kv_heads: int) -> LlamaConfig:
    """A small Llama: heads of 64, an MLP three times as wide as the model, tied embeddings."""
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=kv_heads,
        head_dim=64,
        intermediate_size=3 * hidden,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )


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


def load_model(directory: Path) -> LlamaForCausalLM:
    """A saved model in float32, frozen."""
    return LlamaForCausalLM.from_pretrained(directory).eval().requires_grad_(False)


# --- training -------------------------------------------------------------------------------


def optimise(name: str, model: nn.Module, corpus: Corpus, loss_of: Callable[[Tensor], Tensor], scale: float) -> None:
    """AdamW with a linear warmup and a cosine decay to a twentieth; prints loss and throughput."""
    steps = max(1, int(STEPS[name] * scale))
    warmup = max(1, steps // 20)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=LEARNING_RATE[name], betas=(0.9, 0.95))

    def rate(step: int) -> float:
        cosine = 0.5 + 0.5 * math.cos(math.pi * step / steps)
        return min((step + 1) / warmup, 0.05 + 0.95 * cosine)

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    model.train()
    start, running = time.monotonic(), 0.0
    for step, tokens in enumerate(corpus.batches(steps, seed=SEED + 1), start=1):
        loss = loss_of(tokens)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        running = loss.item() if step == 1 else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0 or step == steps:
            speed = step * TOKENS_PER_STEP / (time.monotonic() - start)
            print(f"{name} {step}/{steps}  loss {running:.3f}  {speed:.0f} tokens/s", flush=True)
    model.eval()


def soft_cross_entropy(student: Tensor, teacher: Tensor) -> Tensor:
    """Mean cross entropy of student logits against the teacher's distribution, both [..., V]."""
    return F.cross_entropy(student.flatten(0, -2), teacher.flatten(0, -2).softmax(-1))


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of logits [B, n, V] against the token that follows in tokens [B, n]."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def train_target(out: Path, corpus: Corpus, scale: float) -> None:
    """Plain language modelling."""
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(llama_config(hidden=256, layers=4, kv_heads=2))
    optimise("target", model, corpus, lambda x: next_token_loss(model(x).logits, x), scale)
    save_model(model, out / "target")


def train_standalone(out: Path, corpus: Corpus, scale: float) -> None:
    """Distillation: match the target's distribution at every position of the text."""
    torch.manual_seed(SEED)
    target = load_model(out / "target")
    model = LlamaForCausalLM(llama_config(hidden=128, layers=2, kv_heads=1))

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            teacher = target(tokens).logits
        return soft_cross_entropy(model(tokens).logits, teacher)

    optimise("standalone", model, corpus, loss_of, scale)
    save_model(model, out / "standalone")


def unroll_mask(n: int, step: int) -> Tensor:
    """Which pairs a pair may read at an unrolled step: bool [1, 1, n, (step + 1) * n].

    Block 0 of the keys holds the pairs made of true hidden states, block j those whose hidden
    state is j predictions deep. As in drafting, the pair at q reads true pairs up to q - step,
    then one pair of each depth, up to itself.
    """
    query, key = torch.arange(n)[:, None], torch.arange(n)[None, :]
    blocks = [key <= query - step]
    blocks += [key == query - (step - depth) for depth in range(1, step + 1)]
    return torch.cat(blocks, dim=1)[None, None]


def unrolled(head: EagleHead, tokens: Tensor, hidden: Tensor) -> Iterator[Tensor]:
    """Yield the head's predictions [B, n - 1, H] after one, two, ... UNROLL steps.

    tokens [B, n] i64 and hidden [B, n, H] are the target's. Index p of a prediction is for the
    hidden state at p + 1; after k steps it is meaningful from p = k - 1 on.
    """
    positions = torch.arange(tokens.shape[1] - 1).expand(tokens.shape[0], -1)
    cache = DynamicCache()
    inputs = hidden[:, :-1]
    for step in range(UNROLL):
        mask = unroll_mask(inputs.shape[1], step)
        predicted = head(tokens[:, 1:], inputs, positions, attention_mask=mask, past_key_values=cache)
        yield predicted
        inputs = torch.cat((hidden[:, :1], predicted[:, :-1]), dim=1)


def train_eagle(out: Path, corpus: Corpus, scale: float) -> None:
    """Match the target's distribution and hidden states, over UNROLL chained predictions."""
    torch.manual_seed(SEED)
    target = load_model(out / "target")
    head = EagleHead(llama_config(hidden=256, layers=1, kv_heads=2)).share_with(target)
    for parameter in head.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)

    def loss_of(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = target.model(tokens).last_hidden_state
            teacher = target.lm_head(hidden)
        loss = torch.zeros(())
        for step, predicted in enumerate(unrolled(head, tokens, hidden)):
            guess = predicted[:, step:]
            loss = loss + soft_cross_entropy(head.logits(guess), teacher[:, step + 1 :])
            loss = loss + 0.2 * F.smooth_l1_loss(guess, hidden[:, step + 1 :])
        return loss / UNROLL

    optimise("eagle", head, corpus, loss_of, scale)
    head.save(out / "eagle", storage_dtype=torch.bfloat16)


# --- evaluation -----------------------------------------------------------------------------

Draft = Callable[[Tensor], Tensor]  # tokens [1, n] -> tokens [1, n + DEPTH]


def greedy(model: LlamaForCausalLM, tokens: Tensor, count: int) -> Tensor:
    """Append the model's count most likely next tokens: [1, n] -> [1, n + count]."""
    for _ in range(count):
        following = model(tokens, use_cache=False).logits[:, -1:].argmax(-1)
        tokens = torch.cat((tokens, following), dim=1)
    return tokens


def eagle_draft(head: EagleHead, target: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Append DEPTH drafts of the head to tokens [1, n], whose last one the target has not read."""
    hidden = target.model(tokens[:, :-1], use_cache=False).last_hidden_state
    for _ in range(DEPTH):
        positions = torch.arange(hidden.shape[1])[None]
        predicted = head(tokens[:, 1:], hidden, positions)[:, -1:]
        tokens = torch.cat((tokens, head.logits(predicted).argmax(-1)), dim=1)
        hidden = torch.cat((hidden, predicted), dim=1)
    return tokens


def accepted_length(draft: Draft, reference: Tensor, prompt: int, count: int) -> tuple[int, int]:
    """Speculate along reference [1, m], the target's greedy text: (tokens made, steps taken).

    Greedy verification keeps the drafts that agree with the target's own choices, then adds the
    next such choice, so the text produced is the reference whatever the drafts are.
    """
    position, steps = prompt, 0
    while position < prompt + count:
        drafted = draft(reference[:, :position])[0, position:]
        agree = drafted == reference[0, position : position + DEPTH]
        position += int(agree.long().cumprod(0).sum()) + 1
        steps += 1
    return position - prompt, steps


def mean_accepted(corpus: Corpus, target: LlamaForCausalLM, drafts: dict[str, Draft]) -> None:
    """Print the mean number of tokens per target step on held-out prompts, for every draft."""
    prompt, count = 48, 64
    generator = torch.Generator().manual_seed(SEED)
    prompts = corpus.windows(corpus.held_out, 20, prompt, generator)
    references = [greedy(target, row[None], count + DEPTH) for row in prompts]
    for name, draft in drafts.items():
        pairs = [accepted_length(draft, row, prompt, count) for row in references]
        tokens, steps = (sum(column) for column in zip(*pairs, strict=True))
        print(f"{name}: mean accepted length {tokens / steps:.2f} (depth {DEPTH}, greedy)")


@torch.no_grad()
def evaluate(out: Path, corpus: Corpus) -> None:
    """Held-out losses, agreement with the target, and accepted lengths."""
    target, standalone = load_model(out / "target"), load_model(out / "standalone")
    head = EagleHead.from_directory(out / "eagle", target)
    names = ["standalone", *(f"eagle draft {step + 1}" for step in range(UNROLL))]
    losses: dict[str, list[Tensor]] = {name: [] for name in ("target", "standalone")}
    agreement: dict[str, list[Tensor]] = {name: [] for name in names}
    for tokens in corpus.held_out_batches():
        hidden = target.model(tokens).last_hidden_state
        teacher, student = target.lm_head(hidden), standalone(tokens).logits
        choice = teacher.argmax(-1)
        losses["target"].append(next_token_loss(teacher, tokens))
        losses["standalone"].append(next_token_loss(student, tokens))
        agreement["standalone"].append((student.argmax(-1) == choice).float().mean())
        for step, predicted in enumerate(unrolled(head, tokens, hidden)):
            same = head.logits(predicted[:, step:]).argmax(-1) == choice[:, step + 1 :]
            agreement[f"eagle draft {step + 1}"].append(same.float().mean())
    for name, values in losses.items():
        print(f"{name}: held-out loss {torch.stack(values).mean():.3f} nats per token")
    for name, values in agreement.items():
        print(f"{name}: picks the target's token at {torch.stack(values).mean():.1%} of positions")
    drafts: dict[str, Draft] = {
        "standalone": lambda tokens: greedy(standalone, tokens, DEPTH),
        "eagle": lambda tokens: eagle_draft(head, target, tokens),
    }
    mean_accepted(corpus, target, drafts)


def main() -> None:
    """Run the stages in order, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=STAGES, help="run this stage alone")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the training steps")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    stages = (args.only,) if args.only else STAGES
    training, held_out = read_texts()
    print(f"{len(training)} training files, {len(held_out)} held out")
    if "tokenizer" in stages:
        train_tokenizer(args.out, training)
    corpus = Corpus(args.out / "target", training, held_out)
    print(f"{len(corpus.training)} training tokens, {len(corpus.held_out)} held out", flush=True)
    trainings = {"target": train_target, "standalone": train_standalone, "eagle": train_eagle}
    for name in stages:
        if name in trainings:
            trainings[name](args.out, corpus, args.scale)
    if "evaluate" in stages:
        evaluate(args.out, corpus)


if __name__ == "__main__":
    main()
