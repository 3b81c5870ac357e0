"""Rules about values, alone or together, that types cannot express.

Every rule reads the file as validated, keeps quiet about values that were reported already, and points at the
value to change with a note at the one it clashes with.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from specc.compiler.config.models.states import RecurrentState
from specc.compiler.config.resolved import TARGET_OUTPUTS, ModelConfig, Sides
from specc.compiler.config.rules.buckets import check_buckets
from specc.compiler.config.rules.budgets import check_budget
from specc.compiler.config.rules.needs import Chosen, Needs
from specc.compiler.config.rules.shapes import check_shapes, origin, trees
from specc.compiler.config.rules.written_file import Written, refuse
from specc.compiler.config.schema import REQUIRED
from specc.compiler.ir.ops.tree import mask_width
from specc.compiler.support.diagnostics import Diagnostic, Findings, Note
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


def check_file(written: Written, chosen: Chosen) -> Findings[None]:
    """Apply every rule that needs no model."""
    yield from _required(written)
    yield from _algorithm(written, chosen)
    yield from check_buckets(written)
    yield from _no_repeats(written, "archs", _written_archs(written))
    yield from _no_repeats(written, "outputs", written.file.outputs)
    yield from _no_repeats(written, "sampling", written.file.sampling)
    yield from _drawn(written)
    yield from _rows_drawn(written)
    yield from _drafts_drawn(written, chosen)
    yield from _logprobs(written)
    yield from check_shapes(written, chosen.needs)
    yield from _mask(written, chosen.needs)
    yield from _head(written)
    yield from check_budget(written)
    yield from _not_yet(written)


def _required(written: Written) -> Findings[None]:
    """Report the keys that every file writes and this one does not."""
    for key in REQUIRED:
        if not written.places.written(key) and written.sound(key):
            message = f"key '{key}' is missing"
            yield Diagnostic("config/missing-key", message, written.places.key(), f"add '{key}:'")


def _algorithm(written: Written, chosen: Chosen) -> Findings[None]:
    """Check that there is a draft exactly where one is used, and no tree where only chains are drafted."""
    at, needs = written.places, chosen.needs
    if chosen.name is None:
        return
    if needs.draft and not at.written("draft") and written.sound("draft"):
        yield Diagnostic("config/missing-key", "key 'draft' is missing", at.key(), "add 'draft:'")
    note = Note(f"the algorithm is {chosen.name}", at.value("algorithm"))
    if not needs.draft and at.written("draft"):
        message = "there is no draft model to describe"
        yield Diagnostic("legal/no-draft", message, at.key("draft"), "leave 'draft:' out", (note,))
    for tree in trees(written) if not needs.trees else ():
        message = f"topk is {tree.topk}, and only chains are drafted"
        yield Diagnostic("legal/chain-only", message, tree.at(written, "topk"), "write topk: 1", (note,))


def _no_repeats(written: Written, key: str, entries: Iterable[str]) -> Findings[None]:
    """Check that a list of words names each word once."""
    first: dict[str, int] = {}
    for index, entry in enumerate(entries if written.sound(key) else ()):
        if entry in first:
            note = Note("first written here", written.places.value(key, first[entry]))
            at = written.places.value(key, index)
            yield Diagnostic("config/out-of-range", f"'{entry}' is listed twice", at, notes=(note,))
        first.setdefault(entry, index)


def _written_archs(written: Written) -> list[str]:
    """Return the words of `archs` as they are written: two GPUs may have one architecture."""
    words = written.places.tree.values.get("archs")
    return [str(word).lower() for word in cast("list[object]", words)] if isinstance(words, list) else []


def _mask(written: Written, needs: Needs) -> Findings[None]:
    """Check that the mask's mode fits every tree, and has what it needs."""
    file, at = written.file, written.places
    sized = {shape: shape.nodes for shape in trees(written) if shape.nodes is not None and needs.trees}
    if not sized or not written.sound("mask", "context_length"):
        return
    for shape, nodes in sized.items():
        if file.mask == "bitpacked" and nodes > MAX_PACKED_NODES:
            message = f"a bitpacked mask holds at most {MAX_PACKED_NODES} nodes, and num_draft_tokens is {nodes}"
            note = origin(written, (*shape.path, "num_draft_tokens"), nodes)
            yield Diagnostic("legal/mask", message, at.value("mask"), "write mask: qlen", (note,))
            return
    largest = max(sized, key=sized.__getitem__)
    if file.mask == "full" and file.context_length is None:
        message = "mask: full covers the whole text, and context_length does not say how long one may be"
        where = at.value("mask") if at.written("mask") else largest.at(written, "topk")
        yield Diagnostic("config/missing-key", message, where, "add 'context_length:'")
    elif file.mask == "full" and file.context_length is not None and written.sound("buckets", "shapes"):
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
            yield Diagnostic("legal/mask", message, at.value("context_length"), "write mask: qlen")


def _drawn(written: Written) -> Findings[None]:
    """Report features of sampling in a program that draws nothing."""
    if written.file.sampling and not written.file.draws and written.sound("sampling", "verify"):
        message = "verify: greedy draws no tokens, and sampling lists how they are drawn"
        at, hint = written.places.value("sampling"), "write verify: target_only, or leave sampling out"
        yield Diagnostic("legal/sampling", message, at, hint)
    unlisted = "penalties" not in written.file.sampling and written.sound("sampling", "penalties")
    if written.file.penalties != "exact" and unlisted:
        message = "penalties says what penalties know, and sampling does not list them"
        at, hint = written.places.value("penalties"), "add penalties to sampling, or leave penalties out"
        yield Diagnostic("legal/sampling", message, at, hint)


def _rows_drawn(written: Written) -> Findings[None]:
    """Report a choice of rows in a program that does not draw the target's own tokens."""
    file = written.file
    if file.verify_rows != "auto" and not file.draws_target and written.sound("verify", "verify_rows"):
        message = f"verify_rows: {file.verify_rows} is of verify: target_only, and verify is {file.verify}"
        at, hint = written.places.value("verify_rows"), "write verify: target_only, or leave verify_rows out"
        yield Diagnostic("legal/verify", message, at, hint)


def _drafts_drawn(written: Written, chosen: Chosen) -> Findings[None]:
    """Report drafts that are to be drawn, of an algorithm without draft model, and of trees."""
    file = written.file
    drawn = {"verify": file.verify if file.weighs_drafts else None}
    drawn["draft_sampling"] = file.draft_sampling if file.draft_sampling == "coupled" else None
    for key, value in drawn.items():
        if value is not None and written.sound(key) and chosen.name is not None:
            hint = "write verify: target_only" if key == "verify" else "write draft_sampling: greedy"
            yield from _draws(written, key, value, chosen, hint)
    if file.draft_sampling == "coupled" and not file.draws_target and written.sound("draft_sampling", "verify"):
        message = f"draft_sampling: coupled is for verify: target_only, and verify is {file.verify}"
        at = written.places.value("draft_sampling")
        yield Diagnostic("legal/draft-sampling", message, at, "write verify: target_only")


def _draws(written: Written, key: str, value: str, chosen: Chosen, hint: str) -> Findings[None]:
    """Report one key that wants drafts to be drawn where no model drafts a chain."""
    at, code = written.places, f"legal/{key.replace('_', '-')}"
    if not chosen.needs.draft:
        note = Note(f"the algorithm is {chosen.name}", at.value("algorithm"))
        message = f"{key}: {value} needs drafts that a model draws, and there is no draft model"
        yield Diagnostic(code, message, at.value(key), hint, (note,))
    elif chosen.needs.trees and (drafted := trees(written)):
        message = f"{key}: {value} is for chains, and topk is {drafted[0].topk}"
        note = origin(written, (*drafted[0].path, "topk"), drafted[0].topk)
        yield Diagnostic(code, message, at.value(key), f"write topk: 1, or {hint[6:]}", (note,))


def _logprobs(written: Written) -> Findings[None]:
    """Report what is said of log-probabilities that are no output."""
    if "logprobs" in written.file.outputs or not written.sound("outputs"):
        return
    for key, asked in (("logprobs", written.file.logprobs != "raw"), ("best_logprobs", written.file.best_logprobs)):
        if asked and written.sound(key):
            message = f"{key} describes an output that is not listed"
            hint = f"write outputs: [logprobs], or leave {key} out"
            yield Diagnostic("legal/logprobs", message, written.places.value(key), hint)


def _not_yet(written: Written) -> Findings[None]:
    """Report what is legal and not implemented in this version."""
    file = written.file
    aux = file.draft is not None and file.draft.hidden_source == "aux"
    yield from refuse(written, aux, "hidden_source: aux of a draft", ("draft", "hidden_source"))
    ranks = file.computes_head and file.tensor_parallel > 1 and written.sound("tensor_parallel")
    for key, drawn in (("verify", file.weighs_drafts), ("draft_sampling", file.draft_sampling == "coupled")):
        what = f"{key}: {getattr(file, key)} with draft.head and tensor_parallel above 1"
        yield from refuse(written, ranks and drawn and written.sound(key), what, ("draft", "head"), _NO_HEAD)


def _head(written: Written) -> Findings[None]:
    """Check that every GPU that is compiled for computes with the weights of the draft's head."""
    file = written.file
    if file.draft is None or not file.computes_head:
        return
    if file.draft.logits_dtype not in (None, "float32"):
        message = "the program computes the draft's logits in float32, and its forwards hand over none"
        at, hint = written.places.value("draft", "logits_dtype"), "leave logits_dtype out"
        yield Diagnostic("legal/head", message, at, hint)
    if file.draft.head != "fp8":
        return
    for arch, at in written.entries("archs"):
        if arch in WITHOUT_FP8:
            message = f"weights of the format e4m3 are none that {arch} converts"
            note = Note("the head is in 8 bits", written.places.value("draft", "head"))
            hint = "write head: int8, or leave this one out"
            yield Diagnostic("legal/head", message, at, hint, (note,))


def check_models(written: Written, models: Sides[ModelConfig]) -> Findings[None]:
    """Apply the rules about the two models, as far as they were settled."""
    target, draft = models.target, models.draft
    for role, model in models.present.items():
        yield from _key_value_row(written, role, model)
    if target is not None:
        yield from _state_form(written, target)
    if target is not None:
        yield from _target_outputs(written, target)
        if written.file.best_logprobs > target.vocab_size and written.sound("best_logprobs"):
            message = f"best_logprobs is {written.file.best_logprobs}, and the target has {target.vocab_size} tokens"
            yield Diagnostic("legal/logprobs", message, written.places.value("best_logprobs"))
    for tree in trees(written):
        if draft is not None and tree.topk > draft.vocab_size:
            message = f"topk is {tree.topk}, and the draft has {draft.vocab_size} tokens"
            yield Diagnostic("legal/tree-size", message, tree.at(written, "topk"))


def _state_form(written: Written, target: ModelConfig) -> Findings[None]:
    """Check that there is a state to commit where the program is to, and that its step runs the target."""
    if target.state_form == "engine":
        return
    at, hint = written.places.value("target", "state_form"), "leave it out"
    if not target.state_layers:
        yield Diagnostic("legal/state-form", "no layer of the target keeps a recurrent state", at, hint)
    elif written.file.step == "rotated":
        note = Note("the engine runs the target by itself", written.places.value("step"))
        message = "a rotated step commits no state: the engine does"
        yield Diagnostic("legal/state-form", message, at, hint, (note,))
    elif target.state_form == "fold":
        yield from _folds(written, target.state)


def _folds(written: Written, state: RecurrentState | None) -> Findings[None]:
    """Check that the sizes of a state are known that the program is to advance, and warn of one that is rounded."""
    at, hint = written.places.value("target", "state_form"), "write state_form: select, which copies any state"
    if state is None:
        if not written.broken("target", "state") and not written.places.written("target", "state"):
            message = "state_form is fold, and nothing says what the state is"
            yield Diagnostic("config/missing-key", message, at, "add 'state:' inside target:, or write select")
        return
    for fault in state.faults(written.file.tensor_parallel):
        yield Diagnostic("legal/state-form", fault, _settled_at(written, "target", "state"), hint)
    if state.matrices in ("bfloat16", "float16"):
        message = f"a state of {state.matrices} is rounded once a step, and by a model's own code after every token"
        yield Diagnostic("legal/state-form", f"{message}: texts may differ", at, hint, severity="warning")


def _target_outputs(written: Written, target: ModelConfig) -> Findings[None]:
    """Check that the target has what the outputs hand over."""
    for output, at in written.entries("outputs"):
        key = TARGET_OUTPUTS.get(output)
        if key is not None and getattr(target, key) is None:
            message = f"the output '{output}' needs target.{key}, and nothing says it"
            yield Diagnostic("config/missing-key", message, at, f"add '{key}:' inside target:")


def _settled_at(written: Written, role: str, key: str) -> Location:
    """Return where a model's value was settled: written out, or read from its `model:`."""
    return written.places.value(role, key if written.places.written(role, key) else "model")


def _key_value_row(written: Written, role: str, model: ModelConfig) -> Findings[None]:
    """Check that a KV row has a sane length and a latent layout one head."""
    if model.kv_layout == "mla" and model.num_kv_heads != 1:
        message = f"mla keeps one latent row per token, so num_kv_heads is 1, and not {model.num_kv_heads}"
        hint = "write num_kv_heads: 1, and head_dim: the length of the latent row"
        yield Diagnostic("config/out-of-range", message, _settled_at(written, role, "num_kv_heads"), hint)
    row = model.num_kv_heads * model.head_dim
    if row > MAX_KV_ROW:
        message = f"num_kv_heads * head_dim is {row}, and at most {MAX_KV_ROW} elements are supported"
        yield Diagnostic("config/out-of-range", message, _settled_at(written, role, "head_dim"))
