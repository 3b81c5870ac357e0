"""The configuration file as written: its keys, their types, ranges, defaults and meaning.

This is the only list of keys. `json_schema` publishes it, `docs/config.md` repeats it (a test compares), and
`specc.compiler.config.resolution.resolve` turns an instance into a `specc.compiler.config.resolved.Config`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from specc.compiler.config.archs import ARCHS, GPUS, NATIVE, Arch, arch_of
from specc.compiler.config.block import Block, StateBlock
from specc.compiler.config.budget_entries import Budgets
from specc.compiler.config.presets import Engine
from specc.compiler.config.presets.engine_tables import TablesBlock
from specc.compiler.ir.opdef import PAGES

Role = Literal["target", "draft"]
HiddenSource = Literal["collapsed", "hc_residual", "aux"]
KvLayout = Literal["mha", "mla"]
Dtype = Literal["bfloat16", "float16", "float32"]
KvDtype = Literal["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2"]
MaskMode = Literal["none", "full", "qlen", "bitpacked", "slots"]
Verify = Literal["greedy", "target_only", "rejection", "block"]
VerifyRows = Literal["auto", "eager", "lazy"]
Penalties = Literal["exact", "committed"]
DraftSampling = Literal["greedy", "coupled"]
Logprobs = Literal["raw", "processed"]
Logits = Literal["gathered", "sharded"]
HeadForm = Literal["engine", "weights", "int8", "fp8"]
StateForm = Literal["engine", "select", "fold", "point", "auto"]
Sampling = Literal["penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p"]
StepForm = Literal["whole", "rotated"]
DraftPositions = Literal["true", "shifted", "auto"]
Output = Literal["accept_index", "hidden_states", "logprobs", "routed_experts", "indexer_topk"]

MOST_TOKENS = PAGES[-1]
"""Most tokens of a page."""
OUTPUTS: tuple[str, ...] = get_args(Output)
SAMPLING: tuple[Sampling, ...] = get_args(Sampling)
"""In the order in which they are applied."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}\Z")


def fault_of_name(name: str) -> str | None:
    """Return why a configuration cannot have a name, None where it can: only what can name a Python package is one."""
    if keyword.iskeyword(name):
        return "is a Python keyword"
    return None if _NAME.match(name) else "does not match [a-z][a-z0-9_]{0,62}"


def _check_name(value: object) -> object:
    """Let only names through that can be one."""
    if isinstance(value, str) and (what := fault_of_name(value)):
        raise PydanticCustomError("bad_name", "'{name}' {what}", {"name": value[:80], "what": what})
    return value


def _check_power(value: object) -> object:
    """Let only powers of two through; the range is the field's business."""
    if type(value) is int and value > 0 and value & (value - 1):
        raise PydanticCustomError("not_allowed", "must be a power of two, and {value} is not", {"value": value})
    return value


def _listed(value: object) -> object:
    """One depth is a list of one."""
    return value if isinstance(value, list) else [value]


def _word(value: object) -> object:
    """YAML reads the word ``true`` as a boolean: give the word back."""
    return "true" if value is True else value


def weighs_drafts(verify: str) -> bool:
    """Return whether drafts are drawn, and verified by how probable the draft found them: rejection and block."""
    return verify in ("rejection", "block")


def draws_tokens(verify: str) -> bool:
    """Return whether a program draws tokens as requests ask for: with any `verify` but greedy."""
    return verify != "greedy"


Count = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]


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
    aux_layers: Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1, max_length=64)] | None = None
    """Of a target with hidden_source aux: the layers, counted from 1, whose outputs are handed over, strictly
    ascending. Default: those that the draft's model was trained on, otherwise those
    that such drafts usually read: of an EAGLE3 head 2, L // 2 and L - 3 of L layers."""
    target_hidden_size: Annotated[Count, Field(le=1 << 20)] | None = None
    """Of a draft that reads rows of its target: elements per token, and per layer of aux rows. Default: hidden_size."""
    num_aux_layers: Annotated[int, Field(strict=True, ge=0, le=64)] | None = None
    """Of a draft that reads aux rows: layers side by side in one; 0 of a head that reads the target's last hidden state
    in their place. Default: 3, of a block drafter as many as it has layers itself."""
    markov_rank: Annotated[Count, Field(le=4096)] | None = None
    """Elements of a token's row in the Markov head of a draft, by which a drafted token knows of the one before."""
    selector_rank: Annotated[Count, Field(le=4096)] | None = None
    """Elements of a token's row in the selector of a draft, which says how well a candidate follows a token."""
    selector_top_k: Annotated[Count, Field(le=16)] | None = None
    """Candidates of each place of a block that the selector chooses among."""
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
    state_form: StateForm = "engine"
    """The side that commits the target's state. engine: a call of the engine's. select: a launch of the program's,
    which copies the state that the verification has left of the accepted node. fold: a launch, which advances the state
    by what the verification has left of each accepted node. point: a number that the program carries; the next
    verification goes on from the state of the accepted node. auto: the one of these three that moves the fewest
    bytes."""
    state: StateBlock | None = None
    """The sizes of a target's state, which fold needs. Default: those of the model."""
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
    token_map: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Of a draft that scores a part of the target's tokens: which ones. A file that lists them, relative to this one;
    model (the tensor d2t of its weights; the default where config.json has a draft_vocab_size); or engine (which brings
    the table d2t when it binds the program)."""
    head: HeadForm = "engine"
    """The side that computes a draft's head of the vocabulary: its forwards, which hand over logits (engine), or the
    program, which keeps of them what is asked for where they are computed, with the weights as they are (weights) or
    with a copy of them in 8 bits (int8; fp8, which is float8_e4m3fn and needs sm_89 or later). What is drafted may
    differ, and with verify: greedy or target_only never the text."""
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

    @property
    def computes_head(self) -> bool:
        """Return whether the program computes the head of this draft."""
        return self.head != "engine"


Steps = Annotated[int, Field(strict=True, ge=0, le=16)]
Branches = Annotated[Count, Field(le=16)]
Nodes = Annotated[Count, Field(le=512)]
Buckets = Annotated[list[Annotated[int, Field(strict=True)]], Field(max_length=64)]


class ShapeBlock(Block):
    """One shape of several, between which requests change."""

    num_steps: Steps
    """S: draft steps; 0 stands for a step without drafts, which keeps the draft's state up to date."""
    topk: Branches = 1
    """K: children kept per draft step."""
    num_draft_tokens: Nodes | None = None
    """N: tokens that the target verifies per request, as for the key of a configuration with one shape."""
    buckets: Buckets | None = None
    """Batch sizes that this shape is compiled for, some of the configuration's buckets; all of them by default."""
    budget: Budgets | None = None
    """Rows that the target reads of a request, as for the key of a configuration with one shape; all by default."""


class ConfigFile(Block):
    """One configuration of speculative decoding, as written.

    `name`, `algorithm` and `target` must be written; they are optional here only so that one run can report their
    absence together with everything else.
    """

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,62}$"), BeforeValidator(_check_name)] | None = None
    """Name of the configuration and of the Python package built from it: lower-case letters, digits,
    underscores."""
    algorithm: Text | None = None
    """Speculative decoding algorithm, in any case."""
    engine: Engine | None = None
    """Serving engine that runs the program: it settles defaults and refuses what it does not do, and the wheel
    carries an adapter for it. Without, the wheel is for any engine."""
    topk: Branches = 1
    """K: children kept per draft step. 1 drafts a chain, more a tree."""
    num_steps: Annotated[
        list[Steps],
        BeforeValidator(_listed),
        Field(min_length=1, max_length=16),
    ] = [3]
    """S: draft steps. A list, ascending, compiles a program for each of them, between which requests may change at any
    step. In a list 0 stands for a step without drafts, which keeps the draft's state up to date."""
    num_draft_tokens: Nodes | None = None
    """N: tokens the target verifies per request, root included: num_steps + 1 for a chain, the default; for a tree
    from 2 to as many as the algorithm can draft, which is 1 + topk + (num_steps - 1) * topk^2 for one that grows it.
    With several num_steps it is that of the last; the others verify as many of them as they can draft."""
    shapes: Annotated[list[ShapeBlock], Field(min_length=1, max_length=16)] | None = None
    """Several shapes, in place of num_steps, topk and num_draft_tokens: the wheel holds a program for each of them,
    between which requests may change at any step."""
    budget: Budgets | None = None
    """Rows that the target reads of a request, its root included, on average over the batch: those of the drafts that
    are most probably accepted, so that requests have different numbers. A chain's with verify: greedy or target_only.
    A list, ascending, compiles a program for each, between which requests may change at any step; in a list all, the
    last, stands for a step that reads every draft. Default: all num_steps + 1."""
    page_size: Annotated[int, Field(strict=True, ge=1, le=MOST_TOKENS)] = 1
    """Tokens per page of the KV pool."""
    max_requests: Annotated[Count, Field(le=1 << 20)] | None = None
    """Requests the engine keeps at once; the request pool has one row more, row 0 being padding. Default: the
    largest bucket."""
    buckets: Buckets = [1, 2, 4, 8]
    """Batch sizes to compile for, strictly ascending; a batch runs padded to the next one. The largest
    is the largest batch."""
    verify: Verify = "greedy"
    """How the target decides: by its largest logit (greedy); for requests of any temperature, greedy ones among them,
    by a token drawn at every position (target_only), or, of chains that a model draws, by the probabilities of target
    and draft, for one draft after the other (rejection) or for all of a step (block)."""
    verify_rows: VerifyRows = "auto"
    """With verify: target_only, which rows of the target's logits are drawn from: all at once (eager), those of the
    accepted path one after the other (lazy), or what takes less time by an estimate over all buckets (auto). The tokens
    are the same. With logprobs: processed and a filter in sampling all rows are needed, and lazy is refused."""
    draft_sampling: DraftSampling = "greedy"
    """How a chain is drafted where verify is target_only: by the draft's largest logit (greedy), or by a token drawn
    with the noise that the target will draw with at the position (coupled), so that the two agree more often at
    temperatures above 0. The text is the same."""
    sampling: Annotated[list[Sampling], Field(max_length=16)] = []
    """What requests may ask for besides a temperature, of a program whose tokens are drawn: penalties
    (repetition_penalty, frequency_penalty and presence_penalty, for what the text has already), logit_bias (of any
    tokens), grammar (tokens that the host allows, such as those of a JSON schema), top_k, top_p and min_p (to draw from
    the most probable tokens alone). A request that asks for something else is refused."""
    penalties: Penalties = "exact"
    """What penalties know at the nodes of a step: the path to each node, as if decoding token by token (exact), or the
    text before the step alone (committed)."""
    outputs: Annotated[list[Output], Field(max_length=16)] = []
    """Results the engine wants besides tokens and lengths, of the accepted path: accept_index (its nodes),
    hidden_states, logprobs (of the emitted tokens, under the target), routed_experts and indexer_topk (as the target's
    forward hands them over)."""
    logprobs: Logprobs = "raw"
    """What the output logprobs is of: the target's logits as they are (raw), or what a token is drawn from, after
    penalties, biases, masks, temperature and cuts, where a greedy request has temperature 1 (processed)."""
    best_logprobs: Annotated[int, Field(strict=True, ge=0, le=20)] = 0
    """How many of the most probable tokens come with every emitted one, with their log-probabilities, in the outputs
    best_tokens and best_logprobs."""
    mask: MaskMode = "qlen"
    """Tree mask that the target's attention reads: qlen (nodes by nodes), bitpacked (the same as bits; at most 64
    nodes), full (with the prefix, flat; needs context_length), slots (the KV slots of the nodes that a node sees, and
    how many they are), or none. A chain is causal and has none."""
    context_length: Annotated[Count, Field(le=1 << 26)] | None = None
    """Longest text of a request, in tokens; sizes the mask of mode full."""
    step: StepForm = "whole"
    """Who runs the target in a step: the program, which drafts, verifies and extends around it (whole), or the engine,
    which hands over the logits of bonus and drafts and then has the next ones drafted (rotated). A chain's."""
    tables: TablesBlock = TablesBlock()
    """Of a rotated step, the tables of the engine's that hold KV slots and carried fields."""
    overlap: Flag = True
    """Whether the scheduler prepares a step before the previous one's results reach the host."""
    disaggregation: Flag = False
    """Whether prefill and decode run on different machines. The program then makes records of requests and reads them;
    kernels and buffers stay as they are."""
    archs: Annotated[
        list[Annotated[Arch | Literal["native"], BeforeValidator(arch_of)]], Field(min_length=1, max_length=16)
    ] = ["sm_90"]
    """GPU architectures to compile for: their names, names of GPUs in any case (h100, l40s, mi300x), or native for the
    GPUs of this machine."""
    tensor_parallel: Annotated[int, Field(strict=True, ge=1, le=16), BeforeValidator(_check_power)] = 1
    """Ranks that run the models together, a power of two; each runs this program."""
    logits: Logits = "gathered"
    """What a forward hands over of its logits: whole rows, on every rank (gathered), or the rank's share of the
    columns (sharded), of which the program gathers what it takes to choose tokens."""
    tuning: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """File of choices that `specc tune` has made for the launches of this program on a GPU, relative to this one."""
    draft_positions: Annotated[DraftPositions, BeforeValidator(_word)] = "auto"
    """Positions the draft sees: true (those of the text), shifted (one earlier, as drafts that read
    hidden states are trained), or auto (shifted exactly when the draft reads hidden states)."""
    target: ModelBlock | None = None
    """The model whose output is wanted."""
    draft: ModelBlock | None = None
    """The model that proposes tokens; written exactly where the algorithm has one."""
    options: dict[str, Any] = {}
    """Keys of the algorithm's own; docs/algorithms.md lists them."""

    @property
    def draws(self) -> bool:
        """Return whether the program draws tokens as requests ask for."""
        return draws_tokens(self.verify)

    @property
    def draws_target(self) -> bool:
        """Return whether tokens are drawn from what the target finds alone: target_only."""
        return self.verify == "target_only"

    @property
    def weighs_each(self) -> bool:
        """Return whether drafts are weighed one after the other, and not all of a step together: rejection."""
        return self.verify == "rejection"

    @property
    def weighs_drafts(self) -> bool:
        """Return whether drafts are drawn, and verified by how probable the draft found them: rejection and block."""
        return weighs_drafts(self.verify)

    @property
    def computes_head(self) -> bool:
        """Whether the program computes the head of its draft."""
        return self.draft is not None and self.draft.computes_head


REQUIRED: tuple[str, ...] = ("name", "algorithm", "target")
"""Keys that every configuration writes."""

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


def json_schema(algorithms: Collection[str]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a configuration file, for editors and other tools."""
    schema = cast("dict[str, Any]", _without_null(ConfigFile.model_json_schema()))
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "specc configuration"
    schema["description"] = "One configuration of speculative decoding."
    schema["required"] = list(REQUIRED)
    schema["properties"]["algorithm"]["examples"] = list(algorithms)
    steps = schema["properties"]["num_steps"]
    listed = {key: steps.pop(key) for key in ("type", "items", "minItems", "maxItems")} | {"contains": {"minimum": 1}}
    steps["anyOf"] = [listed["items"] | {"minimum": 1}, listed]
    schema["properties"]["archs"]["items"] = {"type": "string", "enum": [*ARCHS, *GPUS, NATIVE]}
    # YAML reads the bare word `true` as a boolean; both spellings mean the same.
    schema["properties"]["draft_positions"]["enum"] = [True, "true", "shifted", "auto"]
    schema["properties"]["draft_positions"].pop("type", None)
    schema["$defs"]["ModelBlock"]["anyOf"] = [{"required": ["model"]}, {"required": list(REQUIRED_SIZES)}]
    return schema


def _without_null(node: object) -> object:
    """Drop the null alternatives and null defaults: an absent key is left out, not written as null."""
    if isinstance(node, list):
        return [_without_null(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    plain: dict[str, Any] = {key: _without_null(value) for key, value in cast("dict[str, Any]", node).items()}
    if "default" in plain and plain["default"] is None:
        del plain["default"]
    if isinstance(plain.get("description"), str):
        plain["description"] = " ".join(plain["description"].split())
    options = [option for option in plain.get("anyOf", []) if option != {"type": "null"}]
    if "anyOf" in plain:
        del plain["anyOf"]
        plain = {**(options[0] if len(options) == 1 else {"anyOf": options}), **plain}
    return plain
