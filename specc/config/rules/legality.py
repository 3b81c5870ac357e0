"""Rules about values, alone or together, that types cannot express.

Every rule reads the file as validated, keeps quiet about values that were reported already, and points at the
value to change with a note at the one it clashes with.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from specc.config.resolved import TARGET_OUTPUTS, ModelConfig
from specc.config.rules.needs import Needs
from specc.config.schema import REQUIRED, ConfigFile
from specc.config.text.locations import Locations
from specc.ir.ops.tree import mask_width
from specc.support.diagnostics import Diagnostics, Note
from specc.support.location import Location

MAX_BATCH = 65536
"""Largest batch size, in requests, that a bucket may name."""

MAX_POWER = 1024
"""Largest page, in tokens, of a table with the slot of every position, or of branches: a power of two."""

BLOCK = 16
"""Tokens of which a block is a multiple, where it is no power of two."""

MAX_KV_ROW = 65536
"""Largest num_kv_heads * head_dim, in elements."""

MAX_PACKED_NODES = 64
"""Most nodes whose mask fits the one word that `bitpacked` has per node."""

MAX_MASK_BYTES = 1 << 31
"""Most bytes that the mask of the largest batch may take."""


@dataclass(frozen=True)
class Checked:
    """What a rule works with: the values, their places, and where findings go."""

    file: ConfigFile
    places: Locations
    findings: Diagnostics

    def sound(self, *keys: str) -> bool:
        """Whether no error was reported yet at any of the top-level keys."""
        return not any(self.places.broken(key) for key in keys)


def check_file(checked: Checked, algorithm: str | None, needs: Needs) -> None:
    """Apply every rule that needs no model; ``needs`` is what the algorithm of this name asks for."""
    _required(checked)
    _algorithm(checked, algorithm, needs)
    _buckets(checked)
    _pool(checked)
    _page(checked)
    _no_repeats(checked, "archs", _written_archs(checked))
    _no_repeats(checked, "outputs", checked.file.outputs)
    _no_repeats(checked, "sampling", checked.file.sampling)
    _drawn(checked)
    _rows_drawn(checked)
    _drafts_drawn(checked, algorithm, needs)
    _logprobs(checked)
    _depths(checked)
    _width(checked, needs)
    _mask(checked, needs)
    _one_sided(checked)
    _not_yet(checked)


def _required(checked: Checked) -> None:
    """Report the keys that every file writes and this one does not."""
    for key in REQUIRED:
        if not checked.places.written(key) and checked.sound(key):
            message = f"key '{key}' is missing"
            checked.findings.error("config/missing-key", message, checked.places.key(), hint=f"add '{key}:'")


def _algorithm(checked: Checked, algorithm: str | None, needs: Needs) -> None:
    """Check that there is a draft exactly where one is used, and no tree where only chains are drafted."""
    at, findings = checked.places, checked.findings
    if algorithm is None:
        return
    if needs.draft and not at.written("draft") and checked.sound("draft"):
        findings.error("config/missing-key", "key 'draft' is missing", at.key(), hint="add 'draft:'")
    note = Note(f"the algorithm is {algorithm}", at.value("algorithm"))
    if not needs.draft and at.written("draft"):
        message = "there is no draft model to describe"
        findings.error("legal/no-draft", message, at.key("draft"), hint="leave 'draft:' out", notes=[note])
    if not needs.trees and checked.file.topk > 1 and checked.sound("topk"):
        message = f"topk is {checked.file.topk}, and only chains are drafted"
        findings.error("legal/chain-only", message, at.value("topk"), hint="write topk: 1", notes=[note])


def _buckets(checked: Checked) -> None:
    """Check that buckets ascend strictly from at least 1."""
    buckets, at, findings = checked.file.buckets, checked.places, checked.findings
    if not checked.sound("buckets"):
        return
    if not buckets:
        findings.error("config/buckets", "there must be at least one bucket", at.value("buckets"))
    for index, size in enumerate(buckets):
        if not 1 <= size <= MAX_BATCH:
            message = f"a bucket is a batch size from 1 to {MAX_BATCH}, and this is {str(size)[:40]}"
            findings.error("config/buckets", message, at.value("buckets", index))
        elif index and size <= buckets[index - 1]:
            note = Note("it follows this one", at.value("buckets", index - 1))
            hint = f"write {sorted(set(buckets))}" if min(buckets) > 0 else None
            message = f"buckets must ascend, and {size} follows {buckets[index - 1]}"
            findings.error("config/buckets", message, at.value("buckets", index), hint=hint, notes=[note])


def _pool(checked: Checked) -> None:
    """Check that the largest bucket fits the request pool."""
    buckets, limit, at = checked.file.buckets, checked.file.max_requests, checked.places
    if not checked.sound("max_requests", "buckets") or limit is None or not buckets or buckets[-1] <= limit:
        return
    message = f"the largest bucket is {buckets[-1]}, and max_requests is {limit}"
    if at.written("buckets"):
        notes = [Note("the request pool is bounded here", at.value("max_requests"))]
        checked.findings.error("config/buckets", message, at.value("buckets", len(buckets) - 1), notes=notes)
    else:
        hint = f"write buckets, which are {buckets} by default, up to {limit}"
        checked.findings.error("config/buckets", message, at.value("max_requests"), hint=hint)


def _page(checked: Checked) -> None:
    """Check the page: a power of two, or, where slots are looked up in blocks, a multiple of 16."""
    page, blocks = checked.file.page_size, checked.file.tables.slots == "block_table"
    legal = (not page & (page - 1) and page <= MAX_POWER) or (blocks and not page % BLOCK)
    if legal or not checked.sound("page_size") or checked.places.broken("tables", "slots"):
        return
    also = f", or a multiple of {BLOCK}" if blocks else ""
    message = f"page_size is a power of two up to {MAX_POWER}{also}, and this is {page}"
    hint = None if blocks else f"multiples of {BLOCK} are pages of an engine with tables: {{slots: block_table}}"
    checked.findings.error("config/out-of-range", message, checked.places.value("page_size"), hint=hint)


def _no_repeats(checked: Checked, key: str, entries: Iterable[str]) -> None:
    """Check that a list of words names each word once."""
    first: dict[str, int] = {}
    for index, entry in enumerate(entries if checked.sound(key) else ()):
        if entry in first:
            note = Note("first written here", checked.places.value(key, first[entry]))
            at = checked.places.value(key, index)
            checked.findings.error("config/out-of-range", f"'{entry}' is listed twice", at, notes=[note])
        first.setdefault(entry, index)


def _written_archs(checked: Checked) -> list[str]:
    """Return the words of `archs` as they are written: two GPUs may have one architecture."""
    written = checked.places.tree.values.get("archs")
    return [str(word).lower() for word in cast("list[object]", written)] if isinstance(written, list) else []


def _depths(checked: Checked) -> None:
    """Check that the depths ascend strictly, up to one that drafts."""
    steps, at = checked.file.num_steps if checked.sound("num_steps") else [], checked.places
    if max(steps, default=1) == 0:
        message, hint = "num_steps is 0: nothing is ever drafted", "write a number from 1 to 16, or [0, 3]"
        checked.findings.error("config/out-of-range", message, at.value("num_steps"), hint=hint)
    for index, (one, more) in enumerate(pairwise(steps), start=1):
        if more <= one:
            note = Note("it follows this one", at.value("num_steps", index - 1))
            message = f"num_steps must ascend, and {more} follows {one}"
            hint = f"write {sorted(set(steps))}"
            checked.findings.error(
                "config/out-of-range", message, at.value("num_steps", index), hint=hint, notes=[note]
            )


def _width(checked: Checked, needs: Needs) -> None:
    """Check N: S + 1 for a chain; for a tree from 2 up to all it can draft and the root."""
    file, at = checked.file, checked.places
    nodes, depth, width = file.num_draft_tokens, max(file.num_steps), file.topk
    if not checked.sound("num_draft_tokens", "num_steps", "topk") or (width > 1 and not needs.trees):
        return
    if nodes is None:
        if width > 1:
            hint = f"write num_draft_tokens: a number from 2 to {needs.most_nodes(width, depth)}"
            message = "a tree needs num_draft_tokens, the tokens the target verifies"
            checked.findings.error("config/missing-key", message, at.value("topk"), hint=hint)
        return
    where = at.value("num_draft_tokens")
    if width == 1 and nodes != depth + 1:
        message = f"a chain of {depth} steps verifies {depth + 1} tokens, and num_draft_tokens is {nodes}"
        notes = [_origin(checked, "num_steps", depth)]
        hint = f"write num_draft_tokens: {depth + 1}, or leave the key out"
        checked.findings.error("legal/chain-width", message, where, hint=hint, notes=notes)
    largest = needs.most_nodes(width, depth)
    if width > 1 and not 2 <= nodes <= largest:
        message = f"a tree with topk {width} and num_steps {depth} has 2 to {largest} nodes, and not {nodes}"
        notes = [_origin(checked, "topk", width), _origin(checked, "num_steps", depth)]
        checked.findings.error("legal/tree-size", message, where, notes=notes)


def _origin(checked: Checked, key: str, value: int) -> Note:
    """Return a note that says what a key is and where that was written."""
    if not checked.places.written(key):
        return Note(f"{key} is {value} by default")
    return Note(f"{key} is {value}", checked.places.value(key))


def _mask(checked: Checked, needs: Needs) -> None:
    """Check that the mask's mode fits the tree, and has what it needs."""
    file, at = checked.file, checked.places
    nodes = file.num_draft_tokens
    if file.topk == 1 or nodes is None or not needs.trees:
        return
    if not checked.sound("mask", "num_draft_tokens", "topk", "context_length"):
        return
    if file.mask == "bitpacked" and nodes > MAX_PACKED_NODES:
        message = f"a bitpacked mask holds at most {MAX_PACKED_NODES} nodes, and num_draft_tokens is {nodes}"
        notes = [_origin(checked, "num_draft_tokens", nodes)]
        checked.findings.error("legal/mask", message, at.value("mask"), hint="write mask: qlen", notes=notes)
    if file.mask == "full" and file.context_length is None:
        message = "mask: full covers the whole text, and context_length does not say how long one may be"
        where = at.value("mask" if at.written("mask") else "topk")
        checked.findings.error("config/missing-key", message, where, hint="add 'context_length:'")
    elif file.mask == "full" and file.context_length is not None and checked.sound("buckets") and file.buckets:
        size = file.buckets[-1] * mask_width("full", nodes, file.context_length)
        if size > MAX_MASK_BYTES:
            message = (
                f"the mask would take {size} bytes at the largest bucket, and at most {MAX_MASK_BYTES} are supported"
            )
            checked.findings.error("legal/mask", message, at.value("context_length"), hint="write mask: qlen")


def _drawn(checked: Checked) -> None:
    """Report features of sampling in a program that draws nothing."""
    if checked.file.sampling and checked.file.verify == "greedy" and checked.sound("sampling", "verify"):
        message = "verify: greedy draws no tokens, and sampling lists how they are drawn"
        at, hint = checked.places.value("sampling"), "write verify: target_only, or leave sampling out"
        checked.findings.error("legal/sampling", message, at, hint=hint)
    unlisted = "penalties" not in checked.file.sampling and checked.sound("sampling", "penalties")
    if checked.file.penalties != "exact" and unlisted:
        message = "penalties says what penalties know, and sampling does not list them"
        at, hint = checked.places.value("penalties"), "add penalties to sampling, or leave penalties out"
        checked.findings.error("legal/sampling", message, at, hint=hint)


def _rows_drawn(checked: Checked) -> None:
    """Report a choice of rows in a program that does not draw the target's own tokens."""
    file = checked.file
    if file.verify_rows != "auto" and file.verify != "target_only" and checked.sound("verify", "verify_rows"):
        message = f"verify_rows: {file.verify_rows} is of verify: target_only, and verify is {file.verify}"
        at, hint = checked.places.value("verify_rows"), "write verify: target_only, or leave verify_rows out"
        checked.findings.error("legal/verify", message, at, hint=hint)


def _drafts_drawn(checked: Checked, algorithm: str | None, needs: Needs) -> None:
    """Report drafts that are to be drawn, of an algorithm without draft model, and of trees."""
    file = checked.file
    drawn = {"verify": file.verify if file.verify in ("rejection", "block") else None}
    drawn["draft_sampling"] = file.draft_sampling if file.draft_sampling == "coupled" else None
    for key, value in drawn.items():
        if value is not None and checked.sound(key) and algorithm is not None:
            hint = "write verify: target_only" if key == "verify" else "write draft_sampling: greedy"
            _draws(checked, key, value, algorithm, needs, hint)
    if file.draft_sampling == "coupled" and file.verify != "target_only" and checked.sound("draft_sampling", "verify"):
        message = f"draft_sampling: coupled is for verify: target_only, and verify is {file.verify}"
        at = checked.places.value("draft_sampling")
        checked.findings.error("legal/draft-sampling", message, at, hint="write verify: target_only")


def _draws(checked: Checked, key: str, value: str, algorithm: str, needs: Needs, hint: str) -> None:
    """Report one key that wants drafts to be drawn where no model drafts a chain."""
    at, findings, code = checked.places, checked.findings, f"legal/{key.replace('_', '-')}"
    if not needs.draft:
        note = Note(f"the algorithm is {algorithm}", at.value("algorithm"))
        message = f"{key}: {value} needs drafts that a model draws, and there is no draft model"
        findings.error(code, message, at.value(key), hint=hint, notes=[note])
    elif checked.file.topk > 1 and needs.trees and checked.sound("topk"):
        message = f"{key}: {value} is for chains, and topk is {checked.file.topk}"
        notes = [_origin(checked, "topk", checked.file.topk)]
        findings.error(code, message, at.value(key), hint=f"write topk: 1, or {hint[6:]}", notes=notes)


def _logprobs(checked: Checked) -> None:
    """Report what is said of log-probabilities that are no output."""
    if "logprobs" in checked.file.outputs or not checked.sound("outputs"):
        return
    for key, wanted in (("logprobs", checked.file.logprobs != "raw"), ("best_logprobs", checked.file.best_logprobs)):
        if wanted and checked.sound(key):
            message = f"{key} describes an output that is not listed"
            hint = f"write outputs: [logprobs], or leave {key} out"
            checked.findings.error("legal/logprobs", message, checked.places.value(key), hint=hint)


def _one_sided(checked: Checked) -> None:
    """Report keys that say something about one of the models and stand at the other."""
    places = checked.places
    sides = {"aux_layers": "target", "target_hidden_size": "draft", "num_aux_layers": "draft"}
    sides["token_map"] = "draft"
    for key, side in sides.items():
        other = "draft" if side == "target" else "target"
        if places.written(other, key) and not places.broken(other, key):
            hint = f"'{key}' belongs inside {side}:"
            checked.findings.error(
                "config/unknown-key", f"'{key}' says nothing about the {other}", places.key(other, key), hint=hint
            )


def _not_yet(checked: Checked) -> None:
    """Report what is legal and not implemented in this version."""
    file = checked.file
    aux = file.draft is not None and file.draft.hidden_source == "aux"
    refuse(checked, aux, "hidden_source: aux of a draft", ("draft", "hidden_source"), None)


def refuse(checked: Checked, wanted: bool, what: str, path: tuple[str | int, ...], hint: str | None) -> None:
    """Report one thing that is not implemented, if the file wants it."""
    if wanted:
        message = f"{what} is not implemented in this version"
        checked.findings.error("config/not-yet", message, checked.places.value(*path), hint=hint)


def check_models(checked: Checked, target: ModelConfig | None, draft: ModelConfig | None) -> None:
    """Apply the rules about the two models; a model that could not be settled is None."""
    for side, model in (("target", target), ("draft", draft)):
        if model is not None:
            _key_value_row(checked, side, model)
    if target is not None:
        _target_outputs(checked, target)
        if checked.file.best_logprobs > target.vocab_size and checked.sound("best_logprobs"):
            message = f"best_logprobs is {checked.file.best_logprobs}, and the target has {target.vocab_size} tokens"
            checked.findings.error("legal/logprobs", message, checked.places.value("best_logprobs"))
    if draft is not None and checked.file.topk > draft.vocab_size and checked.sound("topk"):
        message = f"topk is {checked.file.topk}, and the draft has {draft.vocab_size} tokens"
        checked.findings.error("legal/tree-size", message, checked.places.value("topk"))


def _target_outputs(checked: Checked, target: ModelConfig) -> None:
    """Check that the target has what the outputs hand over."""
    for index, output in enumerate(checked.file.outputs if checked.sound("outputs") else ()):
        key = TARGET_OUTPUTS.get(output)
        if key is not None and getattr(target, key) is None:
            message = f"the output '{output}' needs target.{key}, and nothing says it"
            at = checked.places.value("outputs", index)
            checked.findings.error("config/missing-key", message, at, hint=f"add '{key}:' inside target:")


def _settled_at(checked: Checked, side: str, key: str) -> Location:
    """Return where a model's value was settled: written out, or read from its `model:`."""
    return checked.places.value(side, key if checked.places.written(side, key) else "model")


def _key_value_row(checked: Checked, side: str, model: ModelConfig) -> None:
    """Check that a KV row has a sane length and a latent layout one head."""
    if model.kv_layout == "mla" and model.num_kv_heads != 1:
        message = f"mla keeps one latent row per token, so num_kv_heads is 1, and not {model.num_kv_heads}"
        hint = "write num_kv_heads: 1, and head_dim: the length of the latent row"
        checked.findings.error("config/out-of-range", message, _settled_at(checked, side, "num_kv_heads"), hint=hint)
    row = model.num_kv_heads * model.head_dim
    if row > MAX_KV_ROW:
        message = f"num_kv_heads * head_dim is {row}, and at most {MAX_KV_ROW} elements are supported"
        checked.findings.error("config/out-of-range", message, _settled_at(checked, side, "head_dim"))
