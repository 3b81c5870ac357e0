"""Blocks of keys: the base of all, the two models, and the sizes of a recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["target", "draft"]
HiddenSource = Literal["collapsed", "hc_residual", "aux"]
KvLayout = Literal["mha", "mla"]
Dtype = Literal["bfloat16", "float16", "float32"]
KvDtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"]
HeadForm = Literal["engine", "weights", "int8", "fp8"]
StateForm = Literal["engine", "select", "fold", "point", "auto"]
StateKind = Literal["GDN", "KDA", "Mamba-2"]
MOST = 1 << 16
"""The largest size of a state that a program advances."""
Size = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Count = Annotated[int, Field(strict=True, ge=1)]

REQUIRED_SIZES: tuple[str, ...] = (
    "hidden_size",
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
    "dtype",
)
"""Keys that a model block without `model:` writes."""

SELECTOR: tuple[str, str] = ("selector_rank", "selector_top_k")
"""Keys of a draft with a selector, named as its config.json names them."""


class Block(BaseModel):
    """A block of keys: no key but the listed ones, no coercion, no change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class StateBlock(Block):
    """Sizes of the recurrent state of a request in one layer, on all ranks together. All but dtype are needed."""

    kind: StateKind | None = None
    """The rule by which every token changes it: a gated delta rule (GDN), one with a decay for each key channel (KDA),
    or a selective state space (Mamba-2)."""
    heads: Size | None = None
    """Matrices."""
    rows: Size | None = None
    """Value channels of a matrix; of Mamba-2 those of a head."""
    columns: Size | None = None
    """Key channels of a matrix; of Mamba-2 the state's."""
    groups: Size | None = None
    """Heads of keys, which equally many matrices share; of Mamba-2 groups."""
    kernel: Annotated[int, Field(strict=True, ge=2, le=64)] | None = None
    """Taps of the convolution."""
    dtype: Literal["bfloat16", "float16", "float32"] = "float32"
    """Element type of the matrices."""
    keys: Literal["bfloat16", "float16", "float32"] = "float32"
    """Element type of the keys that a verification leaves."""


class ModelBlock(Block):
    """A model: `model:` alone, or its sizes written out, or both; what is written wins."""

    model: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Directory of a Hugging Face model, relative to this file; its config.json gives the keys below."""
    hidden_size: Annotated[Count, Field(le=1 << 20)] | None = None
    """Elements per token of the hidden state that the layers work on."""
    hc_mult: Annotated[Count, Field(le=64)] | None = None
    """Residual streams of a model with hyper-connections; 1 without."""
    hidden_source: HiddenSource | None = None
    """Hidden state that the model hands over: collapsed (hidden_size wide), hc_residual
    (hidden_size * hc_mult wide), or aux (the outputs of aux_layers side by side; the target only). Default: for a
    target whose algorithm wants a certain one, or with aux_layers, that; otherwise collapsed when hc_mult is 1,
    otherwise what the architecture is known to do, otherwise hc_residual with a warning."""
    num_layers: Annotated[Count, Field(le=4096)] | None = None
    """Layers that keep keys and values."""
    num_hidden_layers: Annotated[Count, Field(le=4096)] | None = None
    """All layers, where some keep no keys and values. Default: num_layers."""
    state_layers: Annotated[int, Field(strict=True, ge=0, le=4096)] | None = None
    """Layers that keep a recurrent state of a request (linear attention, state spaces, short convolutions). A step
    commits the state of the last accepted token where the target has such layers. Default: those of the model, else
    none."""
    state_bytes: Annotated[int, Field(strict=True, ge=0, le=1 << 40)] | None = None
    """Bytes of that state in such a layer, of one request, on all ranks together. Default: those of the model, if its
    config.json says the sizes."""
    num_kv_heads: Annotated[Count, Field(le=4096)] | None = None
    """Key/value heads per layer; 1 for mla."""
    head_dim: Annotated[Count, Field(le=8192)] | None = None
    """Elements of one key/value head; for mla the length of the latent row, rotary part included."""
    kv_layout: KvLayout | None = None
    """Buffers of a layer: mha (keys and values, also for grouped heads; the default) or mla (one latent
    buffer)."""
    vocab_size: Annotated[Count, Field(le=1 << 24)] | None = None
    """Columns of the logits."""
    padded_vocab_size: Annotated[Count, Field(le=1 << 24)] | None = None
    """With logits: sharded, or of a draft whose head ranks share out, the columns of all shards together, of which
    those behind the vocabulary mean nothing: a multiple of tensor_parallel. Of the target of a rotated step, the
    elements from row to row of the logits that the engine hands over. Default: vocab_size."""
    dtype: Dtype | None = None
    """Element type of hidden states."""
    logits_dtype: Dtype | None = None
    """Element type of the logits that the engine's forwards hand over. Default: dtype."""
    kv_dtype: KvDtype | None = None
    """Element type of keys and values in the KV pool. Default: what the model was quantised for, otherwise dtype."""
    experts_per_token: Annotated[Count, Field(le=1024)] | None = None
    """Experts a token is routed to in every layer; needed for the output routed_experts."""
    index_topk: Annotated[Count, Field(le=1 << 20)] | None = None
    """Positions that the indexer of sparse attention picks per token and layer; needed for the output indexer_topk."""


class TargetBlock(ModelBlock):
    """The model that verifies: keys of any model, and those of a target alone."""

    aux_layers: Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1, max_length=64)] | None = None
    """With hidden_source aux the layers, counted from 1, whose outputs are handed over, strictly ascending. Default:
    those that the draft's model was trained on, otherwise those that such drafts usually read: of an EAGLE3 head 2,
    L // 2 and L - 3 of L layers."""
    state_form: StateForm = "engine"
    """The side that commits the state. engine: a call of the engine's. select: a launch of the program's,
    which copies the state that the verification has left of the accepted node. fold: a launch, which advances the state
    by what the verification has left of each accepted node. point: a number that the program carries; the next
    verification goes on from the state of the accepted node. auto: the one of these three that moves the fewest
    bytes."""
    state: StateBlock | None = None
    """The sizes of the state, which fold needs. Default: those of the model."""


class DraftBlock(ModelBlock):
    """The model that drafts: keys of any model, and those of a draft alone."""

    target_hidden_size: Annotated[Count, Field(le=1 << 20)] | None = None
    """Where the draft reads rows of its target: elements per token, and per layer of aux rows. Default: hidden_size."""
    num_aux_layers: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    """Where the draft reads aux rows: layers side by side in one; 0 of a head that reads the target's last hidden state
    in their place. Default: 3, of a block drafter as many as it has layers itself."""
    markov_rank: Annotated[Count, Field(le=4096)] | None = None
    """Elements of a token's row in the Markov head, by which a drafted token knows of the one before."""
    selector_rank: Annotated[Count, Field(le=4096)] | None = None
    """Elements of a token's row in the selector, which says how well a candidate follows a token."""
    selector_top_k: Annotated[Count, Field(le=16)] | None = None
    """Candidates of each place of a block that the selector chooses among."""
    token_map: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Where the draft scores a part of the target's tokens: which ones. A file that lists them, relative to this one;
    model (the tensor d2t of its weights; the default where config.json has a draft_vocab_size); or engine (which brings
    the table d2t when it binds the program)."""
    head: HeadForm = "engine"
    """The side that computes the head of the vocabulary: the draft's forwards, which hand over logits (engine), or the
    program, which keeps of them what is asked for where they are computed, with the weights as they are (weights) or
    with a copy of them in 8 bits (int8; fp8, which is float8_e4m3fn and needs sm_89 or later). What is drafted may
    differ, and with verify: greedy or target_only never the text."""

    @property
    def computes_head(self) -> bool:
        """Return whether the program computes the head of this draft."""
        return self.head != "engine"


BLOCKS: Mapping[Role, type[ModelBlock]] = {"target": TargetBlock, "draft": DraftBlock}
"""The keys of each of the models."""
