"""A valid configuration without models, and ways to load changed copies of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specc.compiler.algorithms import names, needs
from specc.compiler.config import LoadedConfig, load_config
from specc.compiler.support.diagnostics import Diagnostic, DiagnosticError

VALID = """\
name: my_config
algorithm: EAGLE
topk: 1
num_steps: 3
num_draft_tokens: 4
page_size: 16
max_requests: 64
buckets: [1, 8, 64]
verify: greedy
outputs: [accept_index]
archs: [sm_90, sm_100]
target:
  hidden_size: 4096
  num_layers: 32
  num_kv_heads: 8
  head_dim: 128
  vocab_size: 32000
  dtype: bfloat16
draft:
  hidden_size: 4096
  num_layers: 1
  num_kv_heads: 8
  head_dim: 128
  vocab_size: 32000
  dtype: bfloat16
"""
"""Lines 1-11 are the top level, 12-18 the target, 19-25 the draft."""

Load = Callable[[str | bytes], LoadedConfig]
Find = Callable[[str | bytes], tuple[Diagnostic, ...]]
Model = Callable[..., Path]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that writes a text to ``c.yaml`` and loads it."""

    def run(text: str | bytes) -> LoadedConfig:
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, names(), needs)

    return run


@pytest.fixture
def find(load: Load) -> Find:
    """Return a function that gives a text's findings: the errors if it is wrong, else the warnings."""

    def run(text: str | bytes) -> tuple[Diagnostic, ...]:
        try:
            return load(text).warnings
        except DiagnosticError as error:
            return error.diagnostics

    return run


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Return a function that makes a model directory from the keys of its config.json."""

    def make(name: str = "m", **keys: object) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(keys))
        return directory

    return make


@pytest.fixture(autouse=True)
def _own_memory(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What transformers said is remembered for one test only."""
    monkeypatch.setenv("SPECC_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
