"""The configuration file as written: its keys, their types, ranges, defaults and meaning.

With `block` this is the only list of keys. `json_schema` publishes it, `docs/config.md` repeats it (a test compares),
and `specc.compiler.config.resolution.resolve` turns an instance into a `specc.compiler.config.resolved.Config`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from specc.compiler.config.archs import ARCHS, GPUS, NATIVE, Arch, arch_of
from specc.compiler.config.block import BLOCKS, REQUIRED_SIZES, Block, Count, DraftBlock, TargetBlock
from specc.compiler.config.budget_entries import Budgets
from specc.compiler.config.presets import Engine
from specc.compiler.config.presets.engine_tables import TablesBlock
from specc.compiler.ir.opdef import PAGES

MaskMode = Literal["none", "full", "qlen", "bitpacked", "slots"]
Verify = Literal["greedy", "target_only", "rejection", "block"]
VerifyRows = Literal["auto", "eager", "lazy"]
Penalties = Literal["exact", "committed"]
DraftSampling = Literal["greedy", "coupled"]
Logprobs = Literal["raw", "processed"]
Logits = Literal["gathered", "sharded"]
Sampling = Literal["penalties", "logit_bias", "grammar", "top_k", "top_p", "min_p"]
StepForm = Literal["whole", "rotated"]
DraftPositions = Literal["true", "shifted", "auto"]
Output = Literal["accept_index", "hidden_states", "logprobs", "routed_experts", "indexer_topk"]

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


Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]


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
    are most probably accepted, so that requests have different numbers. A list, ascending, compiles a program for each,
    between which requests may change at any step; in a list all, the last, stands for a step that reads every draft.
    Given: an engine that runs the target says how many rows each request has. Default: a row for every node."""
    page_size: Annotated[int, Field(strict=True, ge=1, le=PAGES[-1])] = 1
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
    target: TargetBlock | None = None
    """The model whose output is wanted."""
    draft: DraftBlock | None = None
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
    for block in BLOCKS.values():
        schema["$defs"][block.__name__]["anyOf"] = [{"required": ["model"]}, {"required": list(REQUIRED_SIZES)}]
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
