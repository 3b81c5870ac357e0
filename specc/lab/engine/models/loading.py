"""Models from directories. Whatever is wrong with one is a DiagnosticError; Python that comes with one is never run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from specc.compiler.config.models.config_json import class_for, configuration
from specc.compiler.ir.ops.head import MARKOV
from specc.compiler.ir.ops.lattice import SELECTOR
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError
from specc.compiler.support.files.reading import read_text
from specc.compiler.support.token_map import TokenMapError, check_token_map, read_token_map
from specc.lab.engine.errors import UnsupportedModelError
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
from specc.lab.engine.models.generation import ignored_settings
from specc.lab.engine.models.heads.dflash2_head import Dflash2Head
from specc.lab.engine.models.heads.dflash_head import DflashHead
from specc.lab.engine.models.heads.dspark_head import DsparkHead
from specc.lab.engine.models.heads.eagle3_head import Eagle3Head, reads_last
from specc.lab.engine.models.heads.eagle_head import EagleHead, SharingHead
from specc.lab.engine.models.heads.frozen_kv_head import FrozenKvHead
from specc.lab.engine.models.heads.mtp_heads import ModuleHead, MtpHeads
from specc.lab.engine.models.heads.own_modules import has_modules, left_out
from specc.runtime.plan.plan import TOKEN_MAP, Plan
from specc.runtime.semantics.convention import DTYPES

CONFIGS = ("config.json", "tokenizer_config.json")
FILES = "give a directory with config.json and model.safetensors"
CONTENT = "the files are there: what is in them is damaged, or of another model, or unknown to transformers"
OWN_CODE = "asks for Python of the directory's own (auto_map), which is never run"
OWN_CODE_HINT = "the engine runs models that transformers has classes for; convert the directory to one of those"


def load_target(path: str | Path, plan: Plan, device: torch.device | str = "cpu") -> TargetModel:
    """Load a target and its tokenizer, in the dtype that the program was built for; check that they fit."""
    with _readable("target model", path):
        wanted = plan.models["target"]
        loaded = _weights(path, wanted.dtype, device)
        model = TargetModel(loaded, _tokenizer(path), wanted.aux_layers)
    model.facts.check("target", wanted)
    model.warnings = [*_own_code_left_out("target", path, loaded), *ignored_settings(loaded)]
    return model


def load_draft(path: str | Path, plan: Plan, target: TargetModel, token_map: str | Path | None = None) -> Draft:
    """Load the draft that the program's forwards ask for beside its target, and check that it fits.

    token_map: the file of the target's tokens that it scores, of a draft whose weights do not say it.
    """
    wanted = plan.models["draft"]
    with _readable("draft model", path):
        published = _head_of(plan, path)
        if published is None:
            loaded = _weights(path, wanted.dtype, target.device)
            draft = StandaloneDraft(loaded)
            draft.warnings = _own_code_left_out("draft", path, loaded)
        else:
            kind, wrap = published
            head = kind.from_directory(path, target.model, DTYPES[wanted.dtype])
            if isinstance(head, Eagle3Head | DflashHead):
                _check_aux(head, plan.models["target"].aux_layers)
            draft = wrap(head)
    _reduce(draft, plan, target, token_map)
    draft.facts.check("draft", wanted)
    return draft


def _reduce(draft: Draft, plan: Plan, target: TargetModel, file: str | Path | None) -> None:
    """Let a draft score the tokens of its map alone, if the program reads one."""
    own, rows = getattr(draft, "own_tokens", None), plan.models["draft"].vocab_size
    if TOKEN_MAP not in plan.tables() and own is None and file is None:
        return
    if TOKEN_MAP not in plan.tables():
        message = "the program's draft scores all tokens, and a map of some is given, as a file or in its weights"
        raise _refused("run/model-mismatch", message, "rebuild with draft.token_map")
    if (own is None) == (file is None):
        problem = "nothing says which" if own is None else "its weights say which, and so does a file"
        message = f"the draft scores {rows} of the target's tokens, and {problem}"
        raise _refused("run/model-mismatch", message, f"{'give' if own is None else 'leave out'} --token-map FILE")
    try:
        tokens = own if file is None else read_token_map(Path(file))
        assert tokens is not None  # exactly one of both is there
        check_token_map(tokens, rows, target.facts.vocab_size)
    except TokenMapError as error:
        raise _refused(error.code, str(error), error.hint) from error
    draft.score_only(torch.tensor(tokens, device=target.device))


def load_corpus(path: str | Path, target: TargetModel) -> torch.Tensor:
    """The tokens i32[M] of a text file, for programs that look drafts up there as well."""
    try:
        text = read_text(Path(path))
    except (OSError, ValueError) as error:
        message = f"cannot read the corpus {str(path)!r}: {error}"
        raise DiagnosticError(Diagnostic("config/unreadable", message)) from error
    tokens = target.tokenizer(text, add_special_tokens=False)["input_ids"]
    return torch.tensor(tokens, dtype=torch.int32, device=target.device)


def load_tokenizer(path: str | Path) -> Any:
    """Load the tokenizer of a directory alone; names of the Hub are not looked up."""
    with _readable("tokenizer of", path):
        tokenizer = _tokenizer(path)
    if tokenizer is None:
        message = f"the directory {str(path)!r} has no tokenizer"
        raise _refused("run/model-unreadable", message, "give the directory of a model with its tokenizer.json")
    return tokenizer


def brings_draft(path: str | Path, plan: Plan) -> bool:
    """Whether a target's directory has the module that the program drafts with."""
    head = _head_of(plan, path)
    return head is not None and head[0] in (ModuleHead, MtpHeads) and has_modules(_config(path))


def _head_of(plan: Plan, path: str | Path) -> tuple[type[SharingHead], Callable[[Any], Draft]] | None:
    """Return the head that the forwards need and the draft it becomes; None for a language model of its own."""
    calls = plan.callbacks()
    if "assist" in calls:
        return FrozenKvHead, FrozenKvDraft
    if "extend_module" in calls:
        return MtpHeads, MtpDraft
    if "block" in calls:
        corrected = {MARKOV[0]: DsparkHead, SELECTOR[0]: Dflash2Head}
        return next((head for table, head in corrected.items() if table in plan.tables()), DflashHead), DflashDraft
    if not plan.serving.reads_hidden:
        return None
    config = _config(path)
    if plan.models["target"].aux_layers or reads_last(config.get("eagle_config")):
        return Eagle3Head, Eagle3Draft
    return (ModuleHead if has_modules(config) else EagleHead), EagleDraft


def _check_aux(head: Eagle3Head | DflashHead, layers: tuple[int, ...]) -> None:
    """Refuse a head that was trained on other layers than the target hands over."""
    trained, count = head.aux_layers, 0 if head.fc is None else head.fc.in_features // head.target_width
    if len(layers) != count or trained not in (None, layers):
        reads = f"layers {', '.join(map(str, trained))}" if trained else f"{count} layers"
        message = f"the draft reads {reads}, the target hands over layers {', '.join(map(str, layers))}"
        hint = "give the draft that the config's `draft.model` named, or rebuild for this one"
        raise DiagnosticError(Diagnostic("run/model-mismatch", message, hint=hint))


@contextmanager
def _readable(role: str, path: str | Path) -> Iterator[None]:
    """Turn what transformers raises for a bad directory into a diagnostic."""
    what = f"cannot load the {role} {str(path)!r}"
    if not os.path.isdir(path):  # a name that no file can have is none, too
        raise _refused("run/model-unreadable", f"{what}: there is no such directory", FILES)
    for file in Path(path).iterdir():  # transformers would wait for who writes to a pipe
        if file.exists() and not (file.is_file() or file.is_dir()):
            raise _refused("run/model-unreadable", f"{what}: {file.name} is no regular file", FILES)
    try:
        yield
    except DiagnosticError:
        raise
    except UnsupportedModelError as error:
        raise _refused("run/model-unsupported", f"the {role} cannot be run: {error}", error.hint) from error
    except Exception as error:  # transformers and safetensors raise many types here
        if "trust_remote_code" in str(error) and _asks_for_own_code(path):
            files = " and ".join(_asks_for_own_code(path))
            raise _refused("run/own-code", f"{what}: {files} {OWN_CODE}", OWN_CODE_HINT) from error
        lines = [line.strip() for line in str(error).strip().split("\n")]
        reason = " ".join(lines[: 1 + lines[0].endswith(":")]) or type(error).__name__
        raise _refused("run/model-unreadable", f"{what}: {reason}", CONTENT if _has_files(path) else FILES) from error


def _refused(code: str, message: str, hint: str | None) -> DiagnosticError:
    return DiagnosticError(Diagnostic(code, message, hint=hint))


def _has_files(path: str | Path) -> bool:
    """Whether a directory has a configuration and some weights."""
    names = {file.name for file in Path(path).iterdir()}
    return "config.json" in names and any(name.endswith((".safetensors", ".bin")) for name in names)


def _asks_for_own_code(path: str | Path) -> list[str]:
    """The files of a directory that ask for Python of its own."""
    return [name for name in CONFIGS if "auto_map" in _json(Path(path) / name)]


def _json(file: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none."""
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _config(path: str | Path) -> dict[str, Any]:
    """The keys of a model's config.json; empty where there is none."""
    return _json(Path(path) / "config.json")


def _read_as_another(path: str | Path) -> dict[str, Any]:
    """What to tell transformers of a model whose type it does not know, and which is one of a type that it knows."""
    content = _config(path)
    kind = str(content.get("model_type"))
    return {"config": configuration(content)} if class_for(kind) not in (None, kind) else {}


def _own_code_left_out(role: str, path: str | Path, model: PreTrainedModel) -> list[Diagnostic]:
    """A warning where a directory comes with Python of its own, and transformers' is run."""
    files = " and ".join(_asks_for_own_code(path))
    message = f"{files} of the {role} model {OWN_CODE}; transformers' own {type(model).__name__} is run instead"
    return [Diagnostic("run/own-code", message, severity="warning")] if files else []


def _weights(path: str | Path, dtype: str, device: torch.device | str) -> PreTrainedModel:
    """Load a causal language model; raises ValueError when the checkpoint lacks weights."""
    with left_out(_config(path)):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=DTYPES[dtype],
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            **_read_as_another(path),
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
    read = AutoTokenizer.from_pretrained
    more = _read_as_another(path)
    return read(path, local_files_only=True, trust_remote_code=False, **more) if has_one else None
