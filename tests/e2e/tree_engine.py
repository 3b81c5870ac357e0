"""Engines over programs that are compiled in memory, with small random models whose drafts are often right."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any

import programs
import torch
from memoryless import plain_head
from random_hybrids import HYBRIDS, STATES
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM

from specc.compiler.driver.build import build_program
from specc.lab.engine.engine import Engine
from specc.lab.engine.memory.attention import plain_attention
from specc.lab.engine.models.causal_models import TargetModel
from specc.lab.engine.models.drafts import (
    DflashDraft,
    Draft,
    Eagle3Draft,
    EagleDraft,
    FrozenKvDraft,
    MtpDraft,
    StandaloneDraft,
)
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head
from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.dspark_head import DsparkHead
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head
from specc.lab.engine.models.heads.eagle_head import EagleHead
from specc.lab.engine.models.heads.frozen_kv_head import FrozenKvHead
from specc.lab.engine.models.heads.mtp_heads import MtpHeads
from specc.lab.engine.reference import greedy
from specc.runtime.backends import Backend
from specc.runtime.backends.cpu import ReferenceBackend
from specc.runtime.batch import Batch
from specc.runtime.entry.result import HostResult, StepResult
from specc.runtime.errors import SpeccError
from specc.runtime.graphs.capture import Replays
from specc.runtime.memory.arena import allocate
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.shape import Shape, named
from specc.runtime.state.carry import Carry
from specc.runtime.state.peer import check_peer, schema
from specc.runtime.state.transfer import RecordLayout
from specc.runtime.step import Step

from . import spelling

VOCAB = 64
CONTEXT = 96
ROWS = 9
EOS = 1
MODULES = 5
SIZES: dict[str, Any] = {"hidden_size": 32, "num_layers": 2, "num_kv_heads": 2, "head_dim": 8, "vocab_size": VOCAB}
LAYERS = {"EAGLE": 1, "EAGLE3": 1, "MULTI_LAYER_EAGLE": MODULES}
"""Layers of drafts that do not have two."""
AUX_LAYERS = (1, 2)
AUX = ("EAGLE3", "DFLASH", "DSPARK", "DFLASH2")
"""Algorithms whose drafts read outputs of several of the target's layers: these, counted from 1."""
LOOKUP = {"window": 64, "longest": 4, "corpus": "words.txt"}
"""Options of NGRAM: the text does not fit into the window."""
CUTS = (1, 12, 17, 33, 66)
"""Where prompts cut the base texts off, so that their continuations are known to the heads."""

CPU = torch.device("cpu")

__all__ = ["Batch", "SpeccError", "check_peer"]  # where an engine looks for them: in the module of the program


@dataclass(frozen=True)
class Config:
    """One configuration, of a chain if topk is 1; shallower: further num_steps; others: further shapes.

    shares: the buckets of each shape, if they are not all, the configuration's own shape first. part: the tokens that a
    draft model scores, all if there are none. family: of the target.

    Random actions are seeded with its text. It says nothing of how tokens are drawn, so that they stay what they are.
    """

    algorithm: str
    topk: int
    steps: int
    nodes: int
    page_size: int
    mask: str = "qlen"
    overlap: bool = False
    buckets: tuple[int, ...] = (1, 2, 4, 8)
    shallower: tuple[int, ...] = ()
    others: tuple[Shape, ...] = field(default=(), repr=False)
    shares: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    verify: str = field(default="greedy", repr=False)
    sampling: tuple[str, ...] = field(default=(), repr=False)
    rows: str = field(default="auto", repr=False)
    penalties: str = field(default="exact", repr=False)
    draft_sampling: str = field(default="greedy", repr=False)
    logprobs: str = field(default="", repr=False)
    best: int = field(default=0, repr=False)
    head: str = field(default="engine", repr=False)
    part: tuple[int, ...] = field(default=(), repr=False)
    family: str = field(default="llama", repr=False)
    form: str = field(default="engine", repr=False)
    budget: int | tuple[int | str, ...] | None = field(default=None, repr=False)

    @property
    def drafted(self) -> dict[str, Any]:
        """The keys of its shapes."""
        if not self.others:
            steps = [*self.shallower, self.steps]
            return {"topk": self.topk, "num_steps": steps, "num_draft_tokens": self.nodes}
        names = ("num_steps", "topk", "num_draft_tokens")
        shapes = Shape(self.steps, self.topk, self.nodes), *self.others
        listed: list[dict[str, Any]] = [dict(zip(names, shape[:3], strict=True)) for shape in shapes]
        for shape, share in zip(listed, self.shares, strict=False):
            shape["buckets"] = list(share)
        return {"shapes": listed}

    @property
    def keys(self) -> dict[str, Any]:
        """The configuration as the keys of the YAML."""
        return {
            **self.drafted,
            "page_size": self.page_size,
            "mask": self.mask,
            "overlap": self.overlap,
            "buckets": list(self.buckets),
            "max_requests": ROWS - 1,
            "context_length": CONTEXT,
            "verify": self.verify,
            "sampling": list(self.sampling),
            "verify_rows": self.rows,
            "penalties": self.penalties,
            "draft_sampling": self.draft_sampling,
            **({"budget": list(self.budget) if isinstance(self.budget, tuple) else self.budget} if self.budget else {}),
            **(
                {"outputs": ["logprobs"], "logprobs": self.logprobs, "best_logprobs": self.best}
                if self.logprobs
                else {}
            ),
            **({"options": LOOKUP} if self.algorithm == "NGRAM" else {}),
        }


@cache
def plans_of(config: Config) -> tuple[Plan, ...]:
    """Compile a configuration for the models below, short of machine code; the deepest first."""
    draft = SIZES | {"num_layers": LAYERS.get(config.algorithm, SIZES["num_layers"]), "head": config.head}
    draft |= {"vocab_size": len(config.part), "token_map": "engine"} if config.part else {}
    recurrent = {"num_hidden_layers": 4, "state_layers": 2, "state_form": config.form}
    recurrent |= {"state": STATES[config.family]} if config.form in ("fold", "auto") else {}
    target = SIZES | (recurrent if config.family in HYBRIDS else {})
    loaded = programs.load(config.algorithm, target=target, draft=draft, **config.keys)
    return tuple(built.plan for built in build_program(loaded).shapes)


def shapes_of(config: Config, *wanted: int | str) -> list[Shape]:
    """The shapes of these names, by default all, the deepest first."""
    known = [plan.shape for plan in plans_of(config)]
    return [next(filter(None, [named(known, name)])) for name in wanted] if wanted else known


class InjectedError(RuntimeError):
    """What a forward raises when it is told to."""


class Faults:
    """An engine's callbacks, one call of which may be made to fail, before or after it has done its work."""

    def __init__(self, callbacks: Any) -> None:
        """Fail nowhere until `countdown` is set, to how many calls still succeed, or the name of a callback."""
        self.callbacks, self.countdown, self.name, self.late = callbacks, -1, "", False
        self.hit: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """A callback, or whatever else is asked of the engine's."""
        found = getattr(self.callbacks, name)
        return partial(self._call, name, found) if callable(found) else found

    def _call(self, name: str, callback: Callable[..., Any], **arguments: Any) -> Any:
        self.countdown -= 1
        if self.countdown != -1 and self.name != name:
            return callback(**arguments)
        self.name = ""
        self.hit.append(name)
        if self.late:
            callback(**arguments)
        raise InjectedError(name)


class MemoryProgram:
    """A program on the reference backend. What the program owns is poisoned; every step may be padded.

    log: every launch and every wait for one, in order, by the launch's number. decoded: the buckets of decode steps.
    faults: where forwards fail.
    """

    def __init__(self, plans: Sequence[Plan], *, padded: bool = False, backend: Backend | None = None) -> None:
        """padded: run the bucket that holds the batch, as a captured step does. backend: runs the launches."""
        self.plans = {plan.shape: plan for plan in plans}
        self.plan, self.padded, self.backend = plans[0], padded, backend or ReferenceBackend()
        self.log: list[tuple[str, int]] = []
        self.buckets = {plan.shape: plan.buckets for plan in plans}
        self.decoded: list[int] = []
        self.schema, self.record_layout = schema(self.plan), RecordLayout.of(self.plan)

    def build_draft_input(self, requests: Any) -> Carry:
        """The carry of requests that another machine prefilled."""
        return self.record_layout.build_draft_input(requests, CPU)

    def bind(
        self,
        callbacks: object,
        table: Tensor,
        kv_pools: Any,
        *,
        tables: Any,
        capture: Any = None,
        nvtx: bool = False,
        **more: Any,
    ) -> MemoryStep:
        """Bind as a loaded program does."""
        self.faults = Faults(callbacks)
        given, shapes = (self.backend, CPU, self.faults, table, kv_pools, tables), dict[Shape, Step]()
        memory = allocate(self.plans.values(), CPU, poison=0xFF)
        for shape, plan in self.plans.items():
            shapes[shape] = Step(plan, *given, nvtx=nvtx, memory=memory, shapes=shapes, **more)
        step = shapes[self.plan.shape]
        if capture:
            step.capture(capture)
        return MemoryStep(self, step)


class MemoryStep:
    """A bound step whose decode is always padded, or never."""

    def __init__(self, program: MemoryProgram, step: Step) -> None:
        """Wrap a step."""
        self.program, self.step, self.launches = program, step, count()
        self.read_carry, self.write_carry, self.pools = step.read_carry, step.write_carry, step.pools
        self.set_sampling, self.buckets, self.device = step.set_sampling, step.buckets, step.device

    def at(self, shape: Shape) -> MemoryStep:
        """Decode at a shape from now on."""
        self.step = self.step.at(shape)
        return self

    @property
    def replays(self) -> Replays:
        """Return what has become of graphs."""
        return self.step.replays

    def prefill(self, batch: Batch, *, run_idle: bool = False) -> Launched:
        """Prefill."""
        return self._launched(self.step.prefill(batch, run_idle=run_idle))

    def decode(self, batch: Batch, *, at_least: int = 0) -> Launched:
        """One decode step, of lengths that the engine has made room for without knowing them."""
        plan = self.program.plans[self.step.shape]
        self.program.decoded.append(plan.bucket(max(len(batch.req_pool_indices), at_least)))
        result = self.step.decode(batch, at_least=max(at_least, int(self.program.padded)))
        self._check_room(result)
        return self._launched(result)

    def _check_room(self, result: StepResult) -> None:
        longest = max((result.new_seq_lens - result.accept_lens).tolist(), default=0)
        plan, memory = self.program.plan, self.program.faults.callbacks.memory
        assert memory.width >= min(longest + plan.serving.reach, memory.req_to_token.shape[1])
        assert longest <= (plan.kv.longest or longest)

    def idle(self) -> None:
        """A decode step of nobody, as a rank without requests runs it."""
        self.step.decode(Batch([], []), at_least=1)

    def _launched(self, result: StepResult) -> Launched:
        number = next(self.launches)
        self.program.log.append(("launch", number))
        return Launched(self.program, number, result)


class Launched:
    """The result of a launch, whose outputs are overwritten as soon as the copy is started."""

    def __init__(self, program: MemoryProgram, number: int, result: StepResult) -> None:
        """Nothing was copied yet."""
        self.program, self.number, self.result = program, number, result

    def start_copy(self) -> Launched:
        """Copy, and make sure that nobody reads the outputs themselves any more."""
        self.copy = self.result.start_copy()
        for output in self.result.outputs.values():
            output.fill_(-7)
        return self

    def wait(self) -> HostResult:
        """Note that somebody waited."""
        self.program.log.append(("wait", self.number))
        return self.copy.wait()


def make_engine(
    config: Config, *, padded: bool = False, memory: float = ROWS, backend: Backend | None = None, **options: Any
) -> Engine:
    """Return an engine whose memory holds large numbers, or none, so that whatever reads what is not its own shows.

    memory: how many requests of the longest kind there are pages for. The engine runs ahead if the program can, as it
    would on a GPU.
    """
    program = MemoryProgram(plans_of(config), padded=padded, backend=backend)
    longest = -(-(CONTEXT - 1 + program.plan.kv.reserve) // config.page_size)
    pages = 1 + int(longest * memory)
    draft = options.pop("draft", draft_of(config.algorithm, config.family))
    if config.part and draft is not None:
        draft = copy(draft)
        draft.score_only(torch.tensor(config.part))
    tables = {} if draft is not None else {"corpus": torch.tensor(corpus(config.family), dtype=torch.int32)}
    target = target_of(config.algorithm, config.family)
    options = {"tables": tables, "max_context": CONTEXT, "num_pages": pages, "overlap": config.overlap, **options}
    if "grammar" in config.sampling:
        options = {"tokenizer": spelling.tokenizer(), **options}
    engine = Engine(program, target, draft, **options)
    generator = torch.Generator().manual_seed(1)
    for buffer in kv_buffers(engine):
        buffer.copy_(30 * torch.randn(buffer.shape, generator=generator))
    for states in (tensor for pool in engine.states.values() for tensor in pool.tensors):
        states[1:] = torch.nan
    return engine


def program_of(engine: Engine) -> MemoryProgram:
    """The program that `make_engine` made an engine for."""
    return engine.bound.program


def kv_buffers(engine: Engine) -> list[Tensor]:
    """All KV buffers of an engine."""
    return [buffer for pool in engine.pools.values() for buffer in pool.buffers]


@cache
def target_of(algorithm: str = "EAGLE", family: str = "llama") -> TargetModel:
    """A random target of a family, the same for all algorithms but for what it hands over."""
    if algorithm in AUX:
        return TargetModel(target_of(family=family).model, aux_layers=AUX_LAYERS)
    torch.manual_seed(0)
    if family == "llama":
        return TargetModel(LlamaForCausalLM(_config(2)))
    config = {**_config(4).to_dict(), **HYBRIDS[family]}
    config = {name: value for name, value in config.items() if name not in ("architectures", "model_type")}
    return TargetModel(AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**config)))


@cache
def draft_of(algorithm: str, family: str = "llama") -> Draft | None:
    """The target's own weights with noise, or a head that learned some of its texts; None for NGRAM.

    Beside a target that keeps a recurrent state a language model of another family has learned them.
    """
    if algorithm == "NGRAM":
        return None
    weights = target_of(family=family).model.state_dict()  # first, for making them seeds too
    torch.manual_seed(2)
    if algorithm == "STANDALONE":
        noisy = LlamaForCausalLM(_config(2))
        if family != "llama":
            return StandaloneDraft(_learned(noisy, family))
        noisy.load_state_dict({name: value + 0.02 * torch.randn(value.shape) for name, value in weights.items()})
        return StandaloneDraft(noisy)
    heads, config = _example_heads(), _config(LAYERS.get(algorithm, 2))
    config.eagle_config = {"eagle_aux_hidden_state_layer_ids": [layer - 1 for layer in AUX_LAYERS]}
    config.dflash_config = {"target_layer_ids": [layer - 1 for layer in AUX_LAYERS], "block_size": 4}
    config.markov_rank = 24
    config.dflash_config |= {"selector_rank": 24, "selector_top_k": 4, "conv_kernel_size": 2, "conv_group_size": 8}
    config.backbone_hidden_size, config.kv_layers = 32, [3, 1] if family in HYBRIDS else [1, 0]
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "EAGLE": (EagleHead, heads.eagle_chain, EagleDraft),
        "EAGLE3": (Eagle3Head, heads.eagle3_chain, Eagle3Draft),
        "FROZEN_KV_MTP": (FrozenKvHead, heads.frozen_chain, FrozenKvDraft),
        "MULTI_LAYER_EAGLE": (MtpHeads, heads.mtp_chain, MtpDraft),
        "DFLASH": (DflashHead, heads.dflash_chain, DflashDraft),
        "DSPARK": (DsparkHead, heads.dflash_chain, DflashDraft),
        "DFLASH2": (Dflash2Head, heads.dflash_chain, DflashDraft),
    }
    kind, chain, wrap = kinds[algorithm]
    return wrap(_fitted(kind(config).share_with(target_of(family=family).model), chain, family))


@cache
def base_texts() -> tuple[tuple[int, ...], ...]:
    """Texts that prompts begin with, so that they share prefixes."""
    generator = torch.Generator().manual_seed(5)
    return tuple(tuple(row) for row in torch.randint(2, VOCAB, (3, 66), generator=generator).tolist())


@cache
def corpus(family: str = "llama") -> tuple[int, ...]:
    """A text of the target's, between words that no text has."""
    return (-1, *expected(base_texts()[0][:33], family), -1, 5, 6, -1)


@cache
def expected(prompt: tuple[int, ...], family: str = "llama") -> tuple[int, ...]:
    """The target's own greedy text up to the end of the context; a shorter one is its beginning."""
    return greedy(target_of(family=family), prompt, CONTEXT - len(prompt))


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


@cache
def _example_heads() -> Any:
    """The script of the examples that says how heads are unrolled over a text; it is no part of the package."""
    path = Path(__file__).parents[2] / "examples" / "models" / "heads.py"
    spec = importlib.util.spec_from_file_location("example_heads", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _continued(family: str) -> Tensor:
    """Beginnings of the base texts with the target's own continuations, as long as the context: i64[n, C]."""
    if family in HYBRIDS:
        prompts = [text[:cut] for text in base_texts() for cut in CUTS]
        return torch.tensor([[*prompt, *expected(prompt, family)] for prompt in prompts])
    target, texts = target_of(family=family).model, torch.tensor(base_texts())
    with plain_attention(target):
        continued = [_example_heads().greedy(target, texts[:, :cut], CONTEXT - cut) for cut in CUTS]
    return torch.stack(continued, 1).flatten(0, 1)


def _learned(model: LlamaForCausalLM, family: str) -> LlamaForCausalLM:
    """Train a language model for a moment on those texts."""
    ids = _continued(family)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    with torch.enable_grad():
        for _ in range(60):
            optimizer.zero_grad()
            model(ids, labels=ids).loss.backward()
            optimizer.step()
    return model.requires_grad_(False)


def _scores(head: Any, rows: Tensor, before: Tensor) -> Tensor:
    """What a head finds of rows T[n, m, W] behind tokens i64[n, m]."""
    scores = head.logits(rows)
    if isinstance(head, Dflash2Head):
        return scores + head.candidate_selector(rows, before)
    return scores + head.markov_head(before) if isinstance(head, DsparkHead) else scores


def _fitted(head: Any, chain: Callable[..., Any], family: str) -> Any:
    """Train a head for a moment on the same."""
    target, ids = target_of("DFLASH", family), _continued(family)
    kept = DynamicCache(config=target.model.config)
    with torch.no_grad(), plain_attention(target.model):
        hidden = target.model.base_model(ids, past_key_values=kept).last_hidden_state
        scores = target.logits(hidden)
        reading = _example_heads().Reading(hidden, target.handed_over(hidden), kept, scores)
    labels = scores.argmax(-1)
    optimizer = torch.optim.Adam(head.parameters(), lr=5e-3)
    with plain_head(head), torch.enable_grad():
        for _ in range(40):
            losses = [
                cross_entropy(
                    _scores(head, rows, ids[:, depth : depth + rows.shape[1]]).flatten(0, 1),
                    labels[:, depth : depth + rows.shape[1]].flatten(),
                )
                for depth, rows in enumerate(chain(head, reading, ids), start=1)
            ]
            optimizer.zero_grad()
            torch.autograd.backward(sum(losses), inputs=list(head.parameters()))
            optimizer.step()
    return head.requires_grad_(False)
