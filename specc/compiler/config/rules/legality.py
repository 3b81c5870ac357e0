"""Rules about values, alone or together, that types cannot express.

Every rule reads the file as validated, keeps quiet about values that were reported already, and points at the
value to change with a note at the one it clashes with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from specc.compiler.config.resolved import TARGET_OUTPUTS, ModelConfig
from specc.compiler.config.rules.buckets import check_buckets
from specc.compiler.config.rules.checked import Checked, refuse
from specc.compiler.config.rules.needs import Needs
from specc.compiler.config.rules.shapes import check_shapes, origin, trees
from specc.compiler.config.schema import REQUIRED
from specc.compiler.ir.ops.tree import mask_width
from specc.compiler.support.diagnostics import Note
from specc.compiler.support.location import Location

MAX_KV_ROW = 65536
"""Largest num_kv_heads * head_dim, in elements."""

MAX_PACKED_NODES = 64
"""Most nodes whose mask fits the one word that `bitpacked` has per node."""

WITHOUT_FP8 = frozenset({"sm_80", "sm_86", "gfx90a", "gfx942"})
"""Architectures without instructions for float8_e4m3fn."""

_NO_HEAD = "leave head out: the draft's forwards compute it then"

MAX_MASK_BYTES = 1 << 31
"""Most bytes that the mask of the largest batch may take."""


def check_file(checked: Checked, algorithm: str | None, needs: Needs) -> None:
    """Apply every rule that needs no model; ``needs`` is what the algorithm of this name asks for."""
    _required(checked)
    _algorithm(checked, algorithm, needs)
    check_buckets(checked)
    _no_repeats(checked, "archs", _written_archs(checked))
    _no_repeats(checked, "outputs", checked.file.outputs)
    _no_repeats(checked, "sampling", checked.file.sampling)
    _drawn(checked)
    _rows_drawn(checked)
    _drafts_drawn(checked, algorithm, needs)
    _logprobs(checked)
    check_shapes(checked, needs)
    _mask(checked, needs)
    _one_sided(checked)
    _head(checked)
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
    for tree in trees(checked) if not needs.trees else ():
        message = f"topk is {tree.topk}, and only chains are drafted"
        findings.error("legal/chain-only", message, tree.at(checked, "topk"), hint="write topk: 1", notes=[note])


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


def _mask(checked: Checked, needs: Needs) -> None:
    """Check that the mask's mode fits every tree, and has what it needs."""
    file, at = checked.file, checked.places
    sized = {shape: shape.nodes for shape in trees(checked) if shape.nodes is not None and needs.trees}
    if not sized or not checked.sound("mask", "context_length"):
        return
    for shape, nodes in sized.items():
        if file.mask == "bitpacked" and nodes > MAX_PACKED_NODES:
            message = f"a bitpacked mask holds at most {MAX_PACKED_NODES} nodes, and num_draft_tokens is {nodes}"
            notes = [origin(checked, (*shape.path, "num_draft_tokens"), nodes)]
            checked.findings.error("legal/mask", message, at.value("mask"), hint="write mask: qlen", notes=notes)
            return
    largest = max(sized, key=sized.__getitem__)
    if file.mask == "full" and file.context_length is None:
        message = "mask: full covers the whole text, and context_length does not say how long one may be"
        where = at.value("mask") if at.written("mask") else largest.at(checked, "topk")
        checked.findings.error("config/missing-key", message, where, hint="add 'context_length:'")
    elif file.mask == "full" and file.context_length is not None and checked.sound("buckets", "shapes"):
        sizes = (
            buckets[-1] * mask_width("full", nodes, file.context_length)
            for shape, nodes in sized.items()
            if (buckets := shape.buckets or file.buckets)  # none where that is an error
        )
        size = max(sizes, default=0)
        if size > MAX_MASK_BYTES:
            message = (
                f"the mask would take {size} bytes at the largest bucket, and at most {MAX_MASK_BYTES} are supported"
            )
            checked.findings.error("legal/mask", message, at.value("context_length"), hint="write mask: qlen")


def _drawn(checked: Checked) -> None:
    """Report features of sampling in a program that draws nothing."""
    if checked.file.sampling and not checked.file.draws and checked.sound("sampling", "verify"):
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
    drawn = {"verify": file.verify if file.weighs_drafts else None}
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
    elif needs.trees and (drafted := trees(checked)):
        message = f"{key}: {value} is for chains, and topk is {drafted[0].topk}"
        notes = [origin(checked, (*drafted[0].path, "topk"), drafted[0].topk)]
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
    roles = {"aux_layers": "target", "target_hidden_size": "draft", "num_aux_layers": "draft"}
    roles |= {"token_map": "draft", "head": "draft"}
    for key, role in roles.items():
        other = "draft" if role == "target" else "target"
        if places.written(other, key) and not places.broken(other, key):
            hint = f"'{key}' belongs inside {role}:"
            checked.findings.error(
                "config/unknown-key", f"'{key}' says nothing about the {other}", places.key(other, key), hint=hint
            )


def _not_yet(checked: Checked) -> None:
    """Report what is legal and not implemented in this version."""
    file = checked.file
    aux = file.draft is not None and file.draft.hidden_source == "aux"
    refuse(checked, aux, "hidden_source: aux of a draft", ("draft", "hidden_source"), None)
    ranks = file.computes_head and file.tensor_parallel > 1 and checked.sound("tensor_parallel")
    drawn = {"verify": ("rejection", "block"), "draft_sampling": ("coupled",)}
    for key, values in drawn.items():
        wanted = ranks and getattr(file, key) in values and checked.sound(key)
        what = f"{key}: {getattr(file, key)} with draft.head and tensor_parallel above 1"
        refuse(checked, wanted, what, ("draft", "head"), _NO_HEAD)


def _head(checked: Checked) -> None:
    """Check that every GPU that is compiled for computes with the weights of the draft's head."""
    file = checked.file
    if file.draft is None or not file.computes_head:
        return
    if file.draft.logits_dtype not in (None, "float32"):
        message = "the program computes the draft's logits in float32, and its forwards hand over none"
        at, hint = checked.places.value("draft", "logits_dtype"), "leave logits_dtype out"
        checked.findings.error("legal/head", message, at, hint=hint)
    if file.draft.head != "fp8" or not checked.sound("archs"):
        return
    for index, arch in enumerate(file.archs):
        if arch in WITHOUT_FP8:
            message = f"weights of the format e4m3 are none that {arch} converts"
            note = Note("the head is in 8 bits", checked.places.value("draft", "head"))
            at, hint = checked.places.value("archs", index), "write head: int8, or leave this one out"
            checked.findings.error("legal/head", message, at, hint=hint, notes=[note])


def check_models(checked: Checked, target: ModelConfig | None, draft: ModelConfig | None) -> None:
    """Apply the rules about the two models; a model that could not be settled is None."""
    for role, model in (("target", target), ("draft", draft)):
        if model is not None:
            _key_value_row(checked, role, model)
    if target is not None:
        _target_outputs(checked, target)
        if checked.file.best_logprobs > target.vocab_size and checked.sound("best_logprobs"):
            message = f"best_logprobs is {checked.file.best_logprobs}, and the target has {target.vocab_size} tokens"
            checked.findings.error("legal/logprobs", message, checked.places.value("best_logprobs"))
    for tree in trees(checked) if draft is not None else ():
        if draft is not None and tree.topk > draft.vocab_size:
            message = f"topk is {tree.topk}, and the draft has {draft.vocab_size} tokens"
            checked.findings.error("legal/tree-size", message, tree.at(checked, "topk"))


def _target_outputs(checked: Checked, target: ModelConfig) -> None:
    """Check that the target has what the outputs hand over."""
    for index, output in enumerate(checked.file.outputs if checked.sound("outputs") else ()):
        key = TARGET_OUTPUTS.get(output)
        if key is not None and getattr(target, key) is None:
            message = f"the output '{output}' needs target.{key}, and nothing says it"
            at = checked.places.value("outputs", index)
            checked.findings.error("config/missing-key", message, at, hint=f"add '{key}:' inside target:")


def _settled_at(checked: Checked, role: str, key: str) -> Location:
    """Return where a model's value was settled: written out, or read from its `model:`."""
    return checked.places.value(role, key if checked.places.written(role, key) else "model")


def _key_value_row(checked: Checked, role: str, model: ModelConfig) -> None:
    """Check that a KV row has a sane length and a latent layout one head."""
    if model.kv_layout == "mla" and model.num_kv_heads != 1:
        message = f"mla keeps one latent row per token, so num_kv_heads is 1, and not {model.num_kv_heads}"
        hint = "write num_kv_heads: 1, and head_dim: the length of the latent row"
        checked.findings.error("config/out-of-range", message, _settled_at(checked, role, "num_kv_heads"), hint=hint)
    row = model.num_kv_heads * model.head_dim
    if row > MAX_KV_ROW:
        message = f"num_kv_heads * head_dim is {row}, and at most {MAX_KV_ROW} elements are supported"
        checked.findings.error("config/out-of-range", message, _settled_at(checked, role, "head_dim"))
