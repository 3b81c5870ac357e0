"""The text that the example models learn: files, tokenizer, windows of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from heads import VOCAB
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

SEED = 0
BOS, EOS = "<|bos|>", "<|eos|>"
LENGTHS = (256, 256, 256, 1024)  # window lengths, in turn: mostly short, some long
SKIPPED = {"encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "turtledemo"}
SKIPPED |= {"site-packages", "test", "tests"}


def is_held_out(name: str) -> bool:
    """About one file in twenty, chosen by a stable hash of its name."""
    return hashlib.sha256(name.encode()).digest()[0] < 13


def read_texts(root: Path) -> tuple[list[str], list[str]]:
    """The Python files below a directory, in order of name: (training, held-out)."""
    splits: tuple[list[str], list[str]] = ([], [])
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED.isdisjoint(name.parts):
            text = path.read_text(encoding="utf-8", errors="ignore")
            splits[is_held_out(name.as_posix())].append(text)
    return splits


def train_tokenizer(directories: Iterable[Path], texts: Iterable[str], size: int = VOCAB) -> None:
    """Byte-level BPE that puts BOS before every text; written into each model's directory."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
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
    for directory in directories:
        fast.save_pretrained(directory)


class Corpus:
    """Token streams of both splits; every window drawn from them starts with BOS."""

    def __init__(self, directory: Path, training: list[str], held_out: list[str], device: torch.device) -> None:
        """Encode both splits with the tokenizer of directory; windows are on device."""
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.device = device
        self.training = self._stream(training)
        self.held_out = self._stream(held_out)

    def _stream(self, texts: list[str]) -> Tensor:
        """All texts in one row of tokens [N], each closed by EOS."""
        closed = [text + EOS for text in texts]
        rows = self.tokenizer.backend_tokenizer.encode_batch_fast(closed, add_special_tokens=False)
        return torch.cat([torch.tensor(row.ids) for row in rows])

    def windows(self, stream: Tensor, rows: int, length: int, seed: torch.Generator) -> Tensor:
        """Random windows [rows, length]: BOS, then length - 1 consecutive tokens."""
        starts = torch.randint(len(stream) - length, (rows, 1), generator=seed)
        body = stream[starts + torch.arange(length - 1)]
        return F.pad(body, (1, 0), value=self.tokenizer.bos_token_id).to(self.device)

    def batches(self, steps: int, tokens: int, seed: int) -> Iterator[Tensor]:
        """Training windows of so many tokens for every step."""
        generator = torch.Generator().manual_seed(seed)
        for step in range(steps):
            length = LENGTHS[step % len(LENGTHS)]
            yield self.windows(self.training, tokens // length, length, generator)

    def held_out_batches(self, count: int = 16) -> list[Tensor]:
        """The same few held-out windows every time."""
        generator = torch.Generator().manual_seed(SEED)
        return [self.windows(self.held_out, 8, 256, generator) for _ in range(count)]
