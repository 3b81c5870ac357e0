"""Models from directories. Whatever is wrong with one is a DiagnosticError with code run/model-unreadable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from specc.engine.dflash_head import DflashHead
from specc.engine.drafts import DflashDraft, Draft, Eagle3Draft, EagleDraft, FrozenKvDraft, MtpDraft, StandaloneDraft
from specc.engine.eagle3_head import Eagle3Head
from specc.engine.eagle_head import EagleHead, SharingHead
from specc.engine.frozen_kv_head import FrozenKvHead
from specc.engine.models import TargetModel
from specc.engine.mtp_heads import MtpHeads
from specc.engine.plan_facts import DTYPES, PlanFacts
from specc.support.diagnostics import Diagnostic, DiagnosticError
from specc.support.reading import read_text


def load_target(path: str | Path, facts: PlanFacts, device: torch.device | str = "cpu") -> TargetModel:
    """Load a target and its tokenizer, in the dtype that the program was built for; check that they fit."""
    with _readable("target", path):
        plan = facts.models["target"]
        model = TargetModel(_weights(path, plan["dtype"], device), _tokenizer(path), facts.aux_layers)
    model.facts.check("target", plan)
    return model


def load_draft(path: str | Path, facts: PlanFacts, target: TargetModel) -> Draft:
    """Load the draft that the program's forwards ask for beside its target, and check that it fits."""
    plan = facts.models["draft"]
    with _readable("draft", path):
        found = _head_of(facts)
        if found is None:
            draft = StandaloneDraft(_weights(path, plan["dtype"], target.device))
        else:
            kind, wrap = found
            head = kind.from_directory(path, target.model, DTYPES[plan["dtype"]])
            if isinstance(head, Eagle3Head | DflashHead):
                _check_aux(head, facts.aux_layers)
            draft = wrap(head)
    draft.facts.check("draft", plan)
    return draft


def load_corpus(path: str | Path, target: TargetModel) -> torch.Tensor:
    """The tokens i32[M] of a text file, for programs that look drafts up there as well."""
    try:
        text = read_text(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read the corpus {str(path)!r}: {error}"
        raise DiagnosticError(Diagnostic("config/unreadable", message)) from error
    tokens = target.tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor(tokens, dtype=torch.int32, device=target.device)


def _head_of(facts: PlanFacts) -> tuple[type[SharingHead], Callable[[Any], Draft]] | None:
    """Return the head that the forwards need and the draft it becomes; None for a language model of its own."""
    if "assist" in facts.calls:
        return FrozenKvHead, FrozenKvDraft
    if "extend_module" in facts.calls:
        return MtpHeads, MtpDraft
    if "block" in facts.calls:
        return DflashHead, DflashDraft
    if not facts.reads_hidden:
        return None
    return (Eagle3Head, Eagle3Draft) if facts.aux_layers else (EagleHead, EagleDraft)


def _check_aux(head: Eagle3Head | DflashHead, layers: tuple[int, ...]) -> None:
    """Refuse a head that was trained on other layers than the target hands over."""
    trained, count = head.aux_layers, head.fc.in_features // head.target_width
    if len(layers) != count or trained not in (None, layers):
        reads = f"layers {', '.join(map(str, trained))}" if trained else f"{count} layers"
        message = f"the draft reads {reads}, the target hands over layers {', '.join(map(str, layers))}"
        hint = "give the draft that the config's `draft.model` named, or rebuild for this one"
        raise DiagnosticError(Diagnostic("run/model-mismatch", message, hint=hint))


@contextmanager
def _readable(role: str, path: str | Path) -> Iterator[None]:
    """Turn what transformers raises for a bad directory into a diagnostic."""
    if not Path(path).is_dir():
        raise _unreadable(role, path, "there is no such directory")
    try:
        yield
    except DiagnosticError:
        raise
    except Exception as error:  # transformers and safetensors raise many types here
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise _unreadable(role, path, reason) from error


def _unreadable(role: str, path: str | Path, reason: str) -> DiagnosticError:
    hint = "give a directory with config.json and model.safetensors"
    message = f"cannot load the {role} model {str(path)!r}: {reason}"
    return DiagnosticError(Diagnostic("run/model-unreadable", message, hint=hint))


def _weights(path: str | Path, dtype: str, device: torch.device | str) -> PreTrainedModel:
    """Load a causal language model; raises ValueError when the checkpoint lacks weights."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        path,
        dtype=DTYPES[dtype],
        local_files_only=True,
        output_loading_info=True,
    )
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ValueError(f"the checkpoint has no weights for {', '.join(missing[:3])}")
    return model.to(device)


def _tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a directory, None if it has none."""
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    has_one = any((Path(path) / name).exists() for name in names)
    return AutoTokenizer.from_pretrained(path, local_files_only=True) if has_one else None
