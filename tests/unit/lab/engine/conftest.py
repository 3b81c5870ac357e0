"""Model directories and an importable package with the fake program in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from fakes import program as fake_program
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specc.lab.engine.models.causal_models import CausalModel, TargetModel
from specc.lab.engine.models.drafts import Draft
from specc.runtime.plan.plan import Plan
from specc.runtime.plan.typed import to_json

from .models_for_tests import VOCAB, make_drafts, make_target

NAME = "specc_fake_chain"


def save_tokenizer(path: Path) -> None:
    """Write a tokenizer of printable ASCII: token 2 + i is character 32 + i, 0 is BOS and 1 EOS."""
    vocab = {"<s>": 0, "</s>": 1, **{chr(32 + i): 2 + i for i in range(VOCAB - 2)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(path)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return directories of a target (with tokenizer), of two standalone drafts and of an EAGLE head."""
    torch.manual_seed(0)
    root = tmp_path_factory.mktemp("models")
    target = make_target()
    drafts = make_drafts(target)
    for name, model in (("target", target), ("twin", drafts["twin"]), ("stranger", drafts["stranger"])):
        assert isinstance(model, CausalModel)
        model.model.save_pretrained(root / name)
    drafts["head"].head.save(root / "head")
    save_tokenizer(root / "target")
    return {name: root / name for name in ("target", "twin", "stranger", "head")}


@cache
def _sizes() -> tuple[TargetModel, dict[str, Draft]]:
    """Models that programs are made for, which nobody runs."""
    target = make_target()
    return target, make_drafts(target)


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Return a function that makes the package `specc_fake_chain`, built for one of the test drafts."""

    def make(draft: str | None = "twin", **more: object) -> ModuleType:
        target, drafts = _sizes()
        plan = fake_program.make_plan(target, drafts[draft] if draft else None, **more)
        module = ModuleType(NAME)
        module.load = lambda device: fake_program.FakeProgram(plan)
        module.Batch = fake_program.Batch
        monkeypatch.setitem(sys.modules, NAME, module)
        return module

    return make


def source_of_package(plan: Plan) -> str:
    """Return the source of a package with the fake program for a plan."""
    return (
        f"import json\nfrom {fake_program.__name__} import Batch, FakeProgram\n"
        "from specc.runtime.plan.plan import Plan\nfrom specc.runtime.plan.typed import from_json\n"
        f"def load(device): return FakeProgram(from_json(Plan, json.loads({json.dumps(to_json(plan))!r}), 'plan'))\n"
    )
