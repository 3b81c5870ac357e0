"""The configuration after loading: every value present, checked, and plain.

Symbols follow the decode step: B requests, K = topk, S = num_steps, N = nodes verified per request
(root included), A = slots of an accepted path, P = rows of the request pool, W = width of a
handed-over hidden state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from specc.compiler.config.block import Block, Dtype, HeadForm, HiddenSource, KvDtype, KvLayout, Role, StateForm
from specc.compiler.config.budget_entries import GIVEN
from specc.compiler.config.chosen import Tuning
from specc.compiler.config.models.states import RecurrentState
from specc.compiler.config.schema import ConfigFile, Sampling
from specc.compiler.ir.ops.tree import mask_width
from specc.compiler.ir.types import DTYPES
from specc.runtime.plan.shape import Shape

T = TypeVar("T")

KV_BYTES: dict[str, int] = {dtype.torch: dtype.bytes for dtype in DTYPES.values()} | {"float8_e5m2": 1}
"""Bytes of one element of every dtype a KV pool may have; no value of the IR is float8_e5m2."""


TARGET_OUTPUTS: dict[str, str] = {"routed_experts": "experts_per_token", "indexer_topk": "index_topk"}
"""Outputs that the target's forward hands over, and the key that says how many numbers they have per layer."""


@dataclass(frozen=True)
class Sides(Generic[T]):
    """What is known of each model: None where there is no such model, and where it was reported that it is wrong."""

    target: T | None
    draft: T | None

    @property
    def present(self) -> dict[Role, T]:
        """What is known, by role."""
        sides: tuple[tuple[Role, T | None], ...] = ("target", self.target), ("draft", self.draft)
        return {role: side for role, side in sides if side is not None}


@dataclass(frozen=True)
class ModelConfig:
    """One of the two models: sizes in elements, as the engine's forward and KV pool have them.

    ``model`` is the path as written in the file, or None when the values were written out. With
    ``kv_layout == "mla"`` a layer keeps one latent row per token: ``num_kv_heads`` is 1 and ``head_dim`` its
    length. ``aux_layers`` counts from 1: of a target what it hands over, of a draft what it was trained on, None where
    nothing says so; ``target_hidden_size`` and ``num_aux_layers`` are what a draft says of rows of several layers,
    of which it reads none if it says 0, but the target's last row. ``markov_rank`` is None of one without Markov head,
    ``selector_rank`` and ``selector_top_k`` of one without selector.
    ``num_hidden_layers`` is None where all layers keep keys and values, so that ``num_layers`` are all.
    ``state_layers`` keep a recurrent state, of ``state_bytes`` a request in each of them, 0 where that is not known.
    ``state_form`` says of a target who commits it, and ``state`` is what it is, None where that is not known.
    ``experts_per_token`` and ``index_topk`` are None where the model has no experts, or no sparse attention.
    ``token_map`` says of a draft that scores a part of the target's tokens where its map is: a file, ``model``
    or ``engine``; None of any other model. ``padded_vocab_size`` are the columns of all shards of its logits together,
    or the elements from row to row of those that an engine hands over; None where rows are whole and follow each
    other. ``kv_ranks`` are those that share out its KV heads: 1 where each keeps them all. ``head`` says of a draft who
    computes its head of the vocabulary, and by which weights; ``target_head`` whether that reads rows of the target's
    width.
    """

    model: str | None
    hidden_size: int
    hc_mult: int
    hidden_source: HiddenSource
    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_layout: KvLayout
    vocab_size: int
    dtype: Dtype
    logits_dtype: Dtype
    kv_dtype: KvDtype
    experts_per_token: int | None
    index_topk: int | None
    aux_layers: tuple[int, ...] | None = None
    target_hidden_size: int | None = None
    num_aux_layers: int | None = None
    markov_rank: int | None = None
    selector_rank: int | None = None
    selector_top_k: int | None = None
    num_hidden_layers: int | None = None
    state_layers: int = 0
    state_bytes: int = 0
    state_form: StateForm = "engine"
    state: RecurrentState | None = None
    token_map: str | None = None
    padded_vocab_size: int | None = None
    kv_ranks: int = 1
    head: HeadForm = "engine"
    target_head: bool = False

    @property
    def sizes(self) -> str:
        """What the model is, in words."""
        layers = f"{self.num_layers} layer{'s' * (self.num_layers > 1)} with keys and values"
        kv = f"{self.kv_layout} {self.num_kv_heads} x {self.head_dim} {self.kv_dtype}"
        return f"{layers} ({kv}), hidden {self.hidden_size}, vocabulary {self.vocab_size}, {self.dtype}"

    @property
    def depth(self) -> int:
        """All layers, those included that keep no keys and values."""
        return self.num_hidden_layers or self.num_layers

    @property
    def kv_heads_per_rank(self) -> int:
        """Key/value heads of a layer in the pool of one rank."""
        return max(1, self.num_kv_heads // self.kv_ranks)

    @property
    def kv_row_bytes(self) -> int:
        """Bytes of one token in one buffer (keys, values, or latent rows) of one layer, on one rank."""
        return self.kv_heads_per_rank * self.head_dim * KV_BYTES[self.kv_dtype]

    @property
    def spec_width(self) -> int:
        """W: elements per token of the hidden state that this model hands over."""
        if self.hidden_source == "aux":
            return self.hidden_size * len(self.aux_layers or ())
        return self.hidden_size * self.hc_mult if self.hidden_source == "hc_residual" else self.hidden_size

    @property
    def target_width(self) -> int:
        """Elements per token and layer of the target's rows, as this draft expects them."""
        return self.target_hidden_size or self.hidden_size

    @property
    def head_width(self) -> int:
        """Elements of a row that this draft's head of the vocabulary reads."""
        return self.target_width if self.target_head else self.hidden_size

    @property
    def aux_width(self) -> int:
        """Elements per token that this draft reads of its target: outputs of several layers, or its last row."""
        return max(1, self.num_aux_layers or 0) * self.target_width


@dataclass(frozen=True)
class Config:
    """One configuration of speculative decoding, complete and legal.

    ``file`` has its keys as they were checked, with the defaults of its engine. What other keys or the models' files
    decide stands beside it: a key that is a field here counts as it is here. ``algorithm`` is the name that is listed;
    ``options`` are the keys of the algorithm's own; ``draft`` is None for an algorithm without a draft model,
    ``tuning`` where specc makes all choices. ``buckets_of`` has all shapes that are compiled for, ascending, with their
    batch sizes; ``shape`` is one of them, the deepest in a configuration as it was loaded. ``sampling`` is in the order
    in which it is applied; in ``archs`` are those of this machine instead of ``native``.
    """

    file: ConfigFile
    name: str
    algorithm: str
    shape: Shape
    buckets_of: Mapping[Shape, tuple[int, ...]]
    max_requests: int
    sampling: tuple[Sampling, ...]
    archs: tuple[str, ...]
    target: ModelConfig
    draft: ModelConfig | None
    options: Block
    tuning: Tuning | None = None

    def settled(self, key: str) -> object:
        """What counts of a key of the file: what was settled of it, or what is written."""
        shape = self.shape
        of_shape = {"num_steps": shape.num_steps, "topk": shape.topk, "num_draft_tokens": shape.num_nodes}
        of_shape |= {
            "buckets": self.buckets,
            "shapes": self.shapes,
            "budget": GIVEN if self.rows_given else shape.budget,
        }
        if key in of_shape:
            return of_shape[key]
        return getattr(self, key) if key in self.__dataclass_fields__ else getattr(self.file, key)

    @property
    def models(self) -> Mapping[str, ModelConfig]:
        """The models by role: the target, and the draft if there is one."""
        return {**Sides(self.target, self.draft).present}

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """All that are compiled for, ascending."""
        return tuple(self.buckets_of)

    @property
    def buckets(self) -> tuple[int, ...]:
        """Batch sizes that the shape is compiled for."""
        return self.buckets_of[self.shape]

    @property
    def rotated(self) -> bool:
        """Whether the engine runs the target by itself."""
        return self.file.step == "rotated"

    @property
    def proposed(self) -> Shape:
        """What a step drafts: its shape; a rotated one drafts for the next step, which may be of any shape."""
        return self.shapes[-1] if self.rotated else self.shape

    @property
    def num_steps(self) -> int:
        """S: draft steps."""
        return self.proposed.num_steps

    @property
    def topk(self) -> int:
        """K: children kept per draft step."""
        return self.shape.topk

    @property
    def num_nodes(self) -> int:
        """N: nodes given to the target per request, root included."""
        return self.proposed.num_nodes

    @property
    def chain(self) -> bool:
        """Whether one token is drafted per step, so that there is no tree."""
        return self.topk == 1

    @property
    def budgeted(self) -> bool:
        """Whether the target has, at some shape, not a row for every draft."""
        return any(shape.budget is not None for shape in self.shapes)

    @property
    def rows_given(self) -> bool:
        """Whether the engine, which runs the target, says how many rows it has read of each request."""
        return self.file.budget == [GIVEN]

    @property
    def packed(self) -> int | None:
        """G: rows that the target reads of a request on average, where they are packed, or at most; None elsewhere."""
        return self.num_nodes if self.rows_given else self.shape.budget

    @property
    def widest(self) -> int:
        """The most branches of any shape: so many children of a root are carried."""
        return max(shape.topk for shape in self.shapes)

    @property
    def deepest(self) -> int:
        """The most steps of any shape."""
        return self.shapes[-1].num_steps

    def at(self, shape: Shape) -> Config:
        """The configuration at one of its shapes."""
        return replace(self, shape=shape)

    @property
    def drafted(self) -> str:
        """What is drafted, in words: ``chain of 3``, ``chain of 1, 3 or 5``, ``tree of 16 nodes``."""
        trees = dict.fromkeys(str(shape.num_nodes) for shape in self.shapes if shape.is_tree)
        chains = dict.fromkeys(str(shape.num_steps) for shape in self.shapes if not shape.is_tree)
        words = [f"chain of {_or(chains)}"] if chains else []
        return _or([*words, f"tree of {_or(trees)} nodes"] if trees else words)

    @property
    def mask_width(self) -> int:
        """Elements per request (``full``) or bytes per node (``bitpacked``) of the tree mask; 0 for other modes."""
        return mask_width(self.file.mask, self.num_nodes, self.file.context_length or 0)

    @property
    def longest(self) -> int:
        """Tokens of the longest text that the tree mask has room for; -1 where it holds nothing of the text."""
        return self.file.context_length if self.file.mask == "full" and self.file.context_length is not None else -1

    @property
    def path_slots(self) -> int:
        """A = S + 1: slots of an accepted path, the root and up to S drafts."""
        return self.num_steps + 1

    @property
    def pool_rows(self) -> int:
        """P: rows of the request pool; row 0 is the padding row."""
        return self.max_requests + 1

    @property
    def max_batch(self) -> int:
        """The largest B: the shape's largest bucket."""
        return self.buckets[-1]


def _or(words: Iterable[str]) -> str:
    """Words with commas, and ``or`` before the last one."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
