"""The example heads, by the classes that serving engines know heads by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from programs import EXAMPLES

CLASSES = {"EagleHead": "LlamaForCausalLMEagle", "Eagle3Head": "LlamaForCausalLMEagle3"}
"""Classes of the reference engine's heads -> those that SGLang has."""
VLLM = CLASSES | {"EagleHead": "EagleLlamaForCausalLM"}
"""The same in vLLM."""


def write(folder: Path, classes: Mapping[str, str]) -> None:
    """Write `eagle`, `eagle3` and `eagle3_reduced`; the last with the header of its weights."""
    for model in ("eagle", "eagle3", "eagle3_reduced"):
        content = json.loads((EXAMPLES / "models" / model / "config.json").read_text())
        (folder / model).mkdir()
        named = content | {"architectures": [classes[name] for name in content["architectures"]]}
        (folder / model / "config.json").write_text(json.dumps(named))
        (folder / model / "model.safetensors").symlink_to(EXAMPLES / "models" / model / "model.safetensors")


@pytest.fixture(autouse=True)
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with heads for SGLang."""
    write(tmp_path, CLASSES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def heads_of_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with heads for vLLM."""
    write(tmp_path, VLLM)
    monkeypatch.chdir(tmp_path)
    return tmp_path
