"""The example heads, by the classes that serving engines know heads by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import EXAMPLES

CLASSES = {"EagleHead": "LlamaForCausalLMEagle", "Eagle3Head": "LlamaForCausalLMEagle3"}
"""Classes of the reference engine's heads -> those of published ones."""


@pytest.fixture(autouse=True)
def heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with `eagle`, `eagle3` and `eagle3_reduced`; the last with the header of its weights."""
    for model in ("eagle", "eagle3", "eagle3_reduced"):
        content = json.loads((EXAMPLES / "models" / model / "config.json").read_text())
        (tmp_path / model).mkdir()
        named = content | {"architectures": [CLASSES[name] for name in content["architectures"]]}
        (tmp_path / model / "config.json").write_text(json.dumps(named))
        (tmp_path / model / "model.safetensors").symlink_to(EXAMPLES / "models" / model / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path
