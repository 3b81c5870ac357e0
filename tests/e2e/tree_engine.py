"""Engines over programs that are compiled in memory, with small random models whose drafts are often right."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import programs
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

from specc.build import build_program
from specc.engine.attention import plain_attention
from specc.engine.eagle_head import EagleHead
from specc.engine.engine import Engine
from specc.engine.models import DraftModel, EagleDraft, StandaloneDraft, TargetModel
from specc.engine.plan_facts import PlanFacts
from specc.engine.reference import greedy, plain_head
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.plan import Plan
from specc.runtime.step import Step

VOCAB = 64
CONTEXT = 96
ROWS = 9
EOS = 1
SIZES: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_kv_heads": 2, "head_dim": 8, "vocab_size": VOCAB}
CUTS = (1, 12, 17, 33, 66)
"""Where prompts cut the base texts off, so that their continuations are known to the head."""

CPU = torch.device("cpu")

__all__ = ["Batch"]  # where an engine looks for it: in the module of the program


@dataclass(frozen=True)
class Config:
    """One configuration of a tree."""

    algorithm: str
    topk: int
    steps: int
    nodes: int
    page_size: int
    mask: str = "qlen"
    overlap: bool = False
    buckets: tuple[int, ...] = (1, 2, 4, 8)

    @property
    def keys(self) -> dict[str, Any]:
        """The configuration as the keys of the YAML."""
        return {
            "topk": self.topk,
            "num_steps": self.steps,
            "num_draft_tokens": self.nodes,
            "page_size": self.page_size,
            "mask": self.mask,
            "overlap": self.overlap,
            "buckets": list(self.buckets),
            "max_requests": ROWS - 1,
            "context_length": CONTEXT,
        }


@cache
def plan_of(config: Config) -> Plan:
    """Compile a configuration for the models below, short of machine code."""
    sizes = [SIZES, SIZES | {"num_layers": 1 if config.algorithm == "EAGLE" else 2}]
    loaded = programs.load(config.algorithm, target=sizes[0], draft=sizes[1], **config.keys)
    return Plan.from_json(build_program(loaded).plan)


class MemoryProgram:
    """A program on the reference backend. What the program owns is poisoned; every step may be padded."""

    def __init__(self, plan: Plan, *, padded: bool = False) -> None:
        """padded: run the bucket that holds the batch, as a captured step does."""
        self.plan, self.padded = plan, padded

    def bind(self, callbacks: object, table: Tensor, kv_pools: Any, *, capture: bool | None = None) -> MemoryStep:
        """Bind as a loaded program does."""
        assert not capture
        step = Step(self.plan, ReferenceBackend(), CPU, callbacks, table, kv_pools, poison=0xFF)
        return MemoryStep(step, self.padded)


class MemoryStep:
    """A bound step whose decode is always padded, or never."""

    def __init__(self, step: Step, padded: bool) -> None:
        """Wrap a step."""
        self.step, self.padded = step, padded
        self.prefill = step.prefill

    def decode(self, batch: Batch) -> Any:
        """One decode step."""
        return self.step.decode(batch, padded=self.padded)


def make_engine(config: Config, *, padded: bool = False, memory: float = ROWS, **options: Any) -> Engine:
    """Return an engine whose KV memory holds large numbers, so that whatever reads a wrong slot shows.

    memory: how many requests of the longest kind there are pages for.
    """
    target, drafts = models()
    program = MemoryProgram(plan_of(config), padded=padded)
    longest = -(-(CONTEXT - 1 + PlanFacts.read(program.plan).reserve) // config.page_size)
    pages = 1 + int(longest * memory)
    engine = Engine(program, target, drafts[config.algorithm], max_context=CONTEXT, num_pages=pages, **options)
    generator = torch.Generator().manual_seed(1)
    for buffer in engine.target_pool.buffers + engine.draft_pool.buffers:
        buffer.copy_(30 * torch.randn(buffer.shape, generator=generator))
    return engine


@cache
def models() -> tuple[TargetModel, dict[str, DraftModel]]:
    """A random target; as drafts its own weights with noise, and a head that learned some of its texts."""
    torch.manual_seed(0)
    target = TargetModel(LlamaForCausalLM(_config(2)))
    noisy = LlamaForCausalLM(_config(2))
    noisy.load_state_dict({k: v + 0.02 * torch.randn(v.shape) for k, v in target.model.state_dict().items()})
    return target, {"STANDALONE": StandaloneDraft(noisy), "EAGLE": _fitted_head(target)}


@cache
def base_texts() -> tuple[tuple[int, ...], ...]:
    """Texts that prompts begin with, so that they share prefixes."""
    generator = torch.Generator().manual_seed(5)
    return tuple(tuple(row) for row in torch.randint(2, VOCAB, (3, 66), generator=generator).tolist())


@cache
def expected(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The target's own greedy text up to the end of the context; a shorter one is its beginning."""
    return greedy(models()[0], prompt, CONTEXT - len(prompt))


def _config(layers: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=EOS,
    )


def _fitted_head(target: TargetModel) -> EagleDraft:
    """Train a head for a moment on the target's own continuations of the base texts."""
    head = EagleHead(_config(1)).share_with(target.model)
    prompts = [text[:cut] for text in base_texts() for cut in CUTS]
    ids = torch.tensor([[*prompt, *greedy(target, prompt, CONTEXT - len(prompt))] for prompt in prompts])
    with torch.no_grad(), plain_attention(target.model):
        hidden = target.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        labels = target.logits(hidden).argmax(-1)
    positions = torch.arange(ids.shape[1] - 1).expand(len(ids), -1)
    optimizer = torch.optim.Adam(head.parameters(), lr=5e-3)
    with plain_head(head), torch.enable_grad():
        for _ in range(150):
            scores = head.logits(head(ids[:, 1:], hidden[:, :-1], positions))
            loss = cross_entropy(scores.flatten(0, 1), labels[:, 1:].flatten())
            optimizer.zero_grad()
            torch.autograd.backward(loss, inputs=list(head.parameters()))
            optimizer.step()
    return EagleDraft(head.requires_grad_(False))
